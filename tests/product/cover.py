"""What each algorithm refuses, and a pairwise cover of the rest; writes both.

`PYTHONPATH=tests python tests/product/cover.py`
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from cells import FACTORS, Cell, verdict

ROOT = Path(__file__).parents[2]
PAGE, COVER = ROOT / "docs/product.md", Path(__file__).with_name("cover.json")
BEGIN, END = "<!-- product -->", "<!-- end of product -->"
OTHERS = tuple(name for name in FACTORS if name != "algorithm")
Level = tuple[str, str]
"""a factor and one of its levels"""
Refused = dict[frozenset[Level], str]
"""one level or two, and with which message an algorithm refuses them"""


def plain(algorithm: str) -> dict[str, str]:
    """Return the cell of an algorithm with the first level of each factor that it does not refuse."""
    cell = {factor: levels[0] for factor, levels in FACTORS.items()} | {"algorithm": algorithm}
    return cell if verdict(cell) is None else {**cell, "actions": "Box"}


def refused_levels(algorithm: str) -> Refused:
    """Return the levels that an algorithm refuses: each is tried in a plain cell."""
    cell = plain(algorithm)
    tried = ((frozenset({level}), verdict({**cell, level[0]: level[1]})) for level in levels())
    return {level: message for level, message in tried if message is not None}


def refused_pairs(algorithm: str, alone: Refused) -> Refused:
    """Return pairs of levels that an algorithm refuses though it takes each `alone`."""
    cell = plain(algorithm)
    others = [level for level in levels() if frozenset({level}) not in alone and cell[level[0]] != level[1]]
    pairs = [pair for pair in itertools.combinations(others, 2) if pair[0][0] != pair[1][0]]
    tried = ((frozenset(pair), verdict({**cell, **dict(pair)})) for pair in pairs)
    return {pair: message for pair, message in tried if message is not None}


def levels() -> Iterator[Level]:
    """Yield the levels of all factors but the algorithm."""
    return ((factor, level) for factor in OTHERS for level in FACTORS[factor])


def allowed_pairs(refused: Refused) -> set[frozenset[Level]]:
    """Return the pairs of levels of two factors that are not refused, together or one alone."""
    pairs = (frozenset(pair) for pair in itertools.combinations(levels(), 2) if pair[0][0] != pair[1][0])
    return {pair for pair in pairs if not any(each <= pair for each in refused)}


def cover_of(algorithm: str, refused: Refused) -> list[dict[str, str]]:
    """Return cells of an algorithm in which every allowed pair of levels occurs.

    Greedy: a cell begins with a pair that is missing, and takes for one factor after another the level that adds most
    missing pairs; of equally good ones the rarest so far.
    """
    missing = allowed_pairs(refused)
    cells, used = list[dict[str, str]](), Counter[Level]()
    while missing:
        cell = dict(min(missing, key=lambda pair: [used[level] for level in sorted(pair)] + sorted(pair)))
        for factor in OTHERS:
            if factor not in cell:
                options = [level for level in FACTORS[factor] if fits({**cell, factor: level}, refused)]
                gains = {level: len(missing & pairs_in({**cell, factor: level})) for level in options}
                cell[factor] = max(options, key=lambda level: (gains[level], -used[factor, level]))
        cell = {factor: cell[factor] for factor in OTHERS}
        missing -= pairs_in(cell)
        used.update(cell.items())
        cells.append({"algorithm": algorithm, **cell})
    return cells


def fits(cell: Cell, refused: Refused) -> bool:
    """Return whether nothing of a cell, or of a part of one, is refused."""
    return not any(each <= set(cell.items()) for each in refused)


def pairs_in(cell: Cell) -> set[frozenset[Level]]:
    """Return the pairs of levels in a cell."""
    return {frozenset(pair) for pair in itertools.combinations(cell.items(), 2)}


# -- the page ---


def table(refused: dict[str, Refused]) -> Iterator[str]:
    """Yield the lines of the table: a row for each level, a column for each algorithm, and the reasons."""
    reasons: dict[str, int] = {}

    def entry(algorithm: str, level: Level) -> str:
        message = refused[algorithm].get(frozenset({level}))
        if message is None:
            return "yes"
        return f"[{reasons.setdefault(reason(algorithm, message), len(reasons) + 1)}]"

    yield from ("| | " + " | ".join(refused) + " |", "|---|" + "---|" * len(refused))
    for factor, level in levels():
        yield f"| {factor}: {level} | " + " | ".join(entry(name, (factor, level)) for name in refused) + " |"
    yield from ("", "Why not:", "")
    yield from (f"{number}. `{text}`" for text, number in reasons.items())
    together: dict[tuple[str, str], list[str]] = {}
    for algorithm, found in refused.items():
        for pair, message in found.items():
            if len(pair) == 2:
                words = " with ".join(f"{factor}: {level}" for factor, level in sorted(pair))
                together.setdefault((words, reason(algorithm, message)), []).append(algorithm)
    yield from ("", "Refused together, though each works alone:", "")
    yield from (f"- {words} ({', '.join(names)}): `{text}`" for (words, text), names in together.items())


def reason(algorithm: str, message: str) -> str:
    """Return a message without what differs from one algorithm or space to the next."""
    return re.sub(r"not \w+\(.*\)$", "not SPACE", re.sub(rf"\b{algorithm}\b", "NAME", message))


def page(refused: dict[str, Refused]) -> str:
    """Return the page with the table that the code makes."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return "\n".join([before + BEGIN, "", *table(refused), "", END + rest.partition(END)[2]])


def all_refused(algorithms: Iterable[str] = FACTORS["algorithm"]) -> dict[str, Refused]:
    """Return what each algorithm refuses, levels and pairs."""
    alone = {name: refused_levels(name) for name in algorithms}
    return {name: found | refused_pairs(name, found) for name, found in alone.items()}


def main() -> None:
    """Write the page and the cover."""
    refused = all_refused()
    PAGE.write_text(page(refused))
    cells = [cell for name, found in refused.items() for cell in cover_of(name, found)]
    COVER.write_text("[\n" + ",\n".join(json.dumps(list(cell.values())) for cell in cells) + "\n]\n")
    print(len(cells), "cells")


if __name__ == "__main__":
    main()
