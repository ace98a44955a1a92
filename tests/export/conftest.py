"""What exports to ONNX share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_registry_of_onnx_functions() -> Iterator[None]:
    """Let torch's exporter read the sources of its 500 ONNX functions once, which takes longer than a whole export.

    The exporter makes the table anew for each export and only adds a caller's own translations to it, of which
    Lockstep has none. What an export writes is the same.
    """
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(registration.ONNXRegistry.from_torchlib)
        patch.setattr(registration.ONNXRegistry, "from_torchlib", staticmethod(once))
        yield
