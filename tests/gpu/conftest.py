"""Tests of a CUDA device: run with `make gpu` where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "product"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device that is not there."""
    if torch.cuda.is_available():
        return
    missing = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(missing)
