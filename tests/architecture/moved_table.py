"""The table of moved and renamed names in `docs/from-0.2.md`, written from the tables by which old names still work.

`python tests/architecture/moved_table.py` writes it; a test compares the page with the code.
"""

from __future__ import annotations

import re

from public_names import ROOT, moved_names

PAGE = ROOT / "docs/from-0.2.md"
TABLE = re.compile(r"(<!-- moved -->\n)(.*?)(<!-- end of moved -->)", re.DOTALL)


def table() -> str:
    """Return the table in Markdown. Names that keep their name and have the same new folder share a row."""
    together: dict[tuple[str, str], list[str]] = {}
    lines = ["| before | now |", "|---|---|"]
    for old, new in moved_names().items():
        old_folder, _, old_name = old.rpartition(".")
        new_folder, _, new_name = new.rpartition(".")
        if old_name == new_name:
            together.setdefault((old_folder, new_folder), []).append(old_name)
        else:
            lines.append(f"| `{old}` | `{new}` |")
    for (old_folder, new_folder), names in together.items():
        lines.append(f"| from `{old_folder}`: {', '.join(f'`{name}`' for name in names)} | from `{new_folder}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(TABLE.sub(lambda match: match[1] + table() + match[3], PAGE.read_text()))


if __name__ == "__main__":
    main()
