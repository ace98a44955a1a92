"""PPO can be read from end to end: under 700 lines together, the loss under 60."""

from __future__ import annotations

import re

from reading_path import LEAVES, LOSS, PATH, ROOT, counted

DOCUMENT = ROOT / "docs/reading-ppo.md"


def test_the_path_is_under_700_lines():
    sizes = counted(PATH)
    assert sum(size for _, _, size in sizes) < 700, sizes


def test_the_loss_is_under_60_lines():
    ((_, _, size),) = counted([LOSS])
    assert 10 < size < 60


def test_the_path_with_all_that_it_calls_stays_readable():
    assert sum(size for _, _, size in counted([*PATH, *LEAVES])) < 1000


def test_the_document_lists_this_path_with_its_lengths():
    rows = re.findall(r"^\| \[`(\S+)`\]\(\S+\) \| `?([^|`]+)`? \| (\d+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    listed = [(path, what) for path, what, _ in rows]
    expected = counted([*PATH, *LEAVES])
    assert listed == [(path, what) for path, what, _ in expected]
    off = {(p, w): (int(n), now) for (p, w, n), (_, _, now) in zip(rows, expected) if abs(int(n) - now) > 10}
    assert off == {}, "the lengths have changed: python tests/architecture/reading_path.py prints the new tables"
