"""Numbers and texts as pages, pictures and terminals show them; texts from files are escaped."""

from __future__ import annotations

import html
import re
from typing import SupportsFloat


def number_text(number: SupportsFloat | None, digits: int = 4) -> str:
    """Return a number as people read it: `13,380`, `412.3`, with `digits` significant digits or all whole ones.

    None is "none".
    """
    if number is None:
        return "none"
    value = float(number)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def one_line(text: object) -> str:
    """Return a text on one line: a line break would begin another block of a page."""
    return " ".join(str(text).split())


def markdown_text(text: object) -> str:
    """Return a text as Markdown that shows it as it is, within a line or a cell of a table.

    Tags, links, code and emphasis become letters. Brackets stay where they make no link, so that lists of numbers can
    be read in the source too.
    """
    plain = html.escape(one_line(text), quote=False)
    return re.sub(r"[\\`*|]|\](?=\()", r"\\\g<0>", plain)


def markdown_code(text: object) -> str:
    """Return a text as a span of code in Markdown, within a line or a cell of a table."""
    plain = one_line(text).replace("`", "'").replace("|", r"\|")
    return f"`{plain}`"


def picture_text(text: object) -> str:
    """Return a text as matplotlib draws it letter by letter: dollar signs would begin a formula."""
    return one_line(text).replace("$", r"\$")
