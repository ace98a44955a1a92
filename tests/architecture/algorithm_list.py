"""Write the imports and `__all__` of the algorithms, in `lockstep/algorithms/__init__.py` and `lockstep/__init__.py`.

`python tests/architecture/algorithm_list.py` writes both files anew from the tuple `ALGORITHMS` and from the classes of
the files beside it; `make pages` runs it. Who adds an algorithm writes its file, and one line into `ALGORITHMS`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOM, FACE = ROOT / "lockstep/algorithms", ROOT / "lockstep/__init__.py"
COMMAND = "python tests/architecture/algorithm_list.py"
OF_ALGORITHMS = re.compile(r"^from lockstep\.algorithms\.\w+ import .*\n", re.MULTILINE)
IMPORTED_BY_FACE = re.compile(r"^    from lockstep\.algorithms import \([^)]*\)\n", re.MULTILINE)
"""The import under `TYPE_CHECKING`: at run time the package loads its names when the first is used."""
EXPORTED = re.compile(r"^__all__ = \[[^]]*\]\n", re.MULTILINE)


def listed() -> list[str]:
    """Return the names in `ALGORITHMS`, in its order, from the source: until this has run, it cannot be imported."""
    tree = ast.parse((ROOM / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ALGORITHMS":
            assert isinstance(node.value, ast.Tuple)
            return [ast.unparse(each) for each in node.value.elts]
    raise LookupError(f"{ROOM.name}/__init__.py has no ALGORITHMS: tuple[...] = (...)")


def classes_by_file() -> dict[str, list[str]]:
    """Return the public classes of each file of an algorithm, by its module. `LookupError` for one that has no file."""
    wanted, found = set(listed()), {}
    for path in sorted(ROOM.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        if wanted & set(names):
            found[path.stem] = names
            wanted -= set(names)
    if wanted:
        raise LookupError(f"ALGORITHMS names {sorted(wanted)}, which no file in {ROOM.relative_to(ROOT)} defines")
    return found


def exported(text: str, others: Sequence[str], names: Sequence[str]) -> str:
    """Return a source whose `__all__` has these `names`, and of the `others` of the algorithms none."""
    match = EXPORTED.search(text)
    assert match, "there is no __all__ = [...]"
    kept = [name for name in ast.literal_eval(match.group().partition(" = ")[2]) if name not in others]
    listing = "".join(f'    "{name}",\n' for name in [*kept, *names])
    return text[: match.start()] + f"__all__ = [\n{listing}]\n" + text[match.end() :]


def written() -> dict[Path, str]:
    """Return both files as they are to be, by path."""
    by_file = classes_by_file()
    of_room = (ROOM / "__init__.py").read_text(encoding="utf-8")
    before = [name for line in OF_ALGORITHMS.findall(of_room) for name in line.partition(" import ")[2].split(", ")]
    before = [name.strip() for name in before]
    first = OF_ALGORITHMS.search(of_room)
    assert first
    imports = [f"from lockstep.algorithms.{file} import {', '.join(names)}\n" for file, names in by_file.items()]
    of_room = of_room[: first.start()] + "".join(imports) + OF_ALGORITHMS.sub("", of_room[first.start() :])
    of_room = exported(of_room, before, [name for names in by_file.values() for name in names])

    of_face = FACE.read_text(encoding="utf-8")
    match = IMPORTED_BY_FACE.search(of_face)
    assert match
    imported = [name.strip() for name in match.group().partition("(")[2].rstrip(")\n").split(",") if name.strip()]
    kept = [name for name in imported if name not in before]
    new = f"    from lockstep.algorithms import ({', '.join([*kept, *listed()])})\n"
    of_face = of_face[: match.start()] + new + of_face[match.end() :]
    of_face = exported(of_face, before, listed())
    return {ROOM / "__init__.py": sorted_by_ruff(of_room), FACE: sorted_by_ruff(of_face)}


def sorted_by_ruff(text: str) -> str:
    """Return a source with its imports and `__all__` in the order and form of the other files."""
    for options in (["check", "--fix-only", "--select", "I,RUF022", "--quiet"], ["format"]):
        command = [sys.executable, "-m", "ruff", *options, "--stdin-filename", "lockstep/__init__.py", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
