"""Queries whether torch is tracing or transforming the code that runs, taken from private parts of torch.

A compiled kernel reads memory: a trace does not see that, and a tensor of a transform (`torch.func`) has none. So every
fast path asks here first. If a later release of torch has moved one of these functions, the answer is always True: then
the plain operations run, which are right everywhere, only slower.
"""

from __future__ import annotations

from typing import Any

__all__ = ["are_functorch_transforms_active", "has_any_global_hook", "is_in_torch_dispatch_mode"]

try:
    from torch._C import _are_functorch_transforms_active as are_functorch_transforms_active
except ImportError:

    def are_functorch_transforms_active() -> bool:
        """Return whether `torch.func.grad`, `vmap` or another transform may be running."""
        return True


try:
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode
except ImportError:

    def is_in_torch_dispatch_mode(include_infra_modes: bool = True) -> bool:
        """Return whether a `TorchDispatchMode` may be active, as in `make_fx`."""
        return True


try:
    from torch.nn.modules.module import _has_any_global_hook as has_any_global_hook
except ImportError:

    def has_any_global_hook() -> Any:
        """Return whether a hook for all modules may be registered, which a fused function would not call."""
        return True
