"""Texts for pages, pictures and terminals: numbers as people read them, and escaped texts from files."""

from __future__ import annotations

import html
import re
from typing import SupportsFloat


def number_text(number: SupportsFloat | None, digits: int = 4) -> str:
    """Return a number as people read it, such as `"13,380"` or `"412.3"`; None is `"none"`.

    Args:
        number: The number.
        digits: Number of significant digits. A number with more digits before the point has all of these.
    """
    if number is None:
        return "none"
    value = float(number)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def one_line(text: object) -> str:
    """Return a text on one line, because a line break would begin another block of a page."""
    return " ".join(str(text).split())


def markdown_text(text: object) -> str:
    """Return Markdown that shows a text letter by letter, within a line or a cell of a table.

    The characters of tags, links, code and emphasis are escaped. Brackets that do not make a link are left, so that
    lists of numbers are readable in the source as well.
    """
    plain = html.escape(one_line(text), quote=False)
    return re.sub(r"[\\`*|]|\](?=\()", r"\\\g<0>", plain)


def markdown_code(text: object) -> str:
    """Return Markdown that shows a text as code, within a line or a cell of a table."""
    plain = one_line(text).replace("`", "'").replace("|", r"\|")
    return f"`{plain}`"


def picture_text(text: object) -> str:
    """Return a text that matplotlib draws letter by letter. Dollar signs are escaped, because they begin a formula."""
    return one_line(text).replace("$", r"\$")
