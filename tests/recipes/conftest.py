"""Commands of `benchmarks/` as modules."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """`benchmark(name)` loads a command's module, with results in an empty folder; all are forgotten at the end."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    before = set(sys.modules)
    monkeypatch.setattr(importlib.import_module("report"), "RESULTS", tmp_path)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if "benchmarks" in Path(getattr(sys.modules[name], "__file__", None) or "").parts:
            del sys.modules[name]
