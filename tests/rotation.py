"""The rotating part of the long tests: each commit runs one of `NUM_PARTS`, and `PART=all` runs them all."""

from __future__ import annotations

import re
import subprocess
import zlib
from pathlib import Path

NUM_PARTS = 4
BY_COMMIT = "commit"
"""The value of `--part` that lets the commit's hash choose."""
ALL = "all"

NEVER_ROTATE = (
    "tests/learner/test_learner_compile_cache.py",
    "tests/past/",
    "tests/state/test_state_faults.py",
    "tests/state/test_state_trust.py",
    "tests/trainer/test_trainer_faults.py",
    "tests/trainer/test_trainer_flipped_bytes.py",
    "tests/trainer/test_trainer_hostile_files.py",
)
"""Old checkpoints, hostile files and code, kills: these run with every part, as does every test with "kill" in its
name."""


def part_of(nodeid: str) -> int | None:
    """Return the part, from 1 to `NUM_PARTS`, that a test belongs to, or None if it runs with every part.

    It depends on the test's own name alone, so that a new test moves no other to another part.
    """
    if nodeid.startswith(NEVER_ROTATE) or "kill" in nodeid:
        return None
    return 1 + zlib.crc32(nodeid.encode()) % NUM_PARTS


def chooses_none(expression: str, text: str) -> bool:
    """Return whether `pytest -m expression` chooses no test of a file; where it cannot be known, False.

    `text` is the source of the file and of its folder's conftest.py.
    """
    wanted = re.findall(r"\w+", re.sub(r"\bnot \w+|\band\b|\bor\b", "", expression))
    if wanted:
        if "hypothesis" in wanted and "from hypothesis import" in text:  # hypothesis puts the mark on tests itself
            return False
        if "long" in wanted and "from parts import" in text:  # which puts the mark on cases
            return False
        return not any(f"mark.{mark}" in text for mark in wanted)
    unwanted = re.findall(r"\bnot (\w+)", expression)
    of_the_file = re.findall(r"^pytestmark = .*$", text, re.MULTILINE)
    return any(f"mark.{mark}" in line for line in of_the_file for mark in unwanted)


def chosen_part(word: str, commit: str) -> int | None:
    """Return the part that `--part` asks for, or None for all of them.

    Raises `ValueError` unless `word` is `"commit"`, `"all"` or a number from 1 to `NUM_PARTS`. Where there is no commit
    (an unpacked sdist), `"commit"` means all parts.
    """
    if word == ALL:
        return None
    if word == BY_COMMIT:
        return 1 + int(commit, 16) % NUM_PARTS if commit else None
    if word in map(str, range(1, NUM_PARTS + 1)):
        return int(word)
    raise ValueError(f"--part={word}: it is {BY_COMMIT!r}, {ALL!r} or a number from 1 to {NUM_PARTS}")


def commit_of(root: Path) -> str:
    """Return the hash of the commit that is checked out in `root`, or an empty text if there is none."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def sentence(part: int) -> str:
    """Return the line that says which part runs and which command runs the same again."""
    return (
        f"long tests: part {part} of {NUM_PARTS} (by default the commit's hash chooses one). "
        f"Again: make test-long PART={part}; all parts: make test-long PART={ALL}"
    )
