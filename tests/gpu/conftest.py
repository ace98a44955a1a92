"""Tests of a CUDA device: run with `make gpu` where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "product"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder, and skip what needs a device that is not there."""
    missing = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            if not torch.cuda.is_available():
                item.add_marker(missing)
