"""Compiled runs: minutes, most of which torch's compiler takes."""

from __future__ import annotations

from functools import partial
from typing import Any

from hashed.algorithms import OFFLINE, ONLINE, add_runs
from hashed.entries import Results, run, small


def compiled_run(algorithm: str, **sections: Any) -> Results:
    """Train with steps that are compiled from the first one on."""
    return run(small(algorithm, framework={"compile": True, "compile_after": 0}, **sections))


add_runs("compiled", {name: partial(compiled_run, name) for name in (*ONLINE, *OFFLINE)})
