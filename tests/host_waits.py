"""A device that is none, which shows where the host would wait for a GPU.

A tensor of it says `device.type == "meta"` and holds one of the CPU's, on which its operations run. So code takes the
path that it takes on a GPU, the numbers are the CPU's, and every crossing between host and device is seen.
"""

from __future__ import annotations

import importlib
import traceback
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
OPTIMIZER = importlib.import_module("torch.optim.optimizer")
FUSED_DEVICES = "_get_fused_kernels_supported_devices"
PACKAGE = str(Path(__file__).parents[1] / "lockstep")
aten = torch.ops.aten
READ_VALUES = {
    aten._local_scalar_dense,  # item, float, int, bool
    aten._linalg_check_errors,
    aten.equal,
    aten.masked_select,
    aten.nonzero,
    aten.repeat_interleave,
    aten.unique_consecutive,
    aten.unique_dim,
    aten._unique2,
}
"""operations whose result, or its shape, the host has to know"""
INDEX = {aten.index, aten.index_put, aten.index_put_}
COPY = {aten._to_copy, aten.copy_}
TAKE_BOTH = COPY | INDEX
"""operations on tensors of both sides"""
MAKE_FROM_DATA = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


class HostWaitError(AssertionError):
    """The host would wait for the device where it must not."""


class NoWaits(TorchDispatchMode):
    """Raises `HostWaitError` for an operation that reads values, on any device: a CUDA graph cannot hold it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        by_mask = packet in INDEX and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        if packet in READ_VALUES or by_mask:
            raise HostWaitError(f"{func} reads values, or its result has a shape that depends on them")
        return func(*args, **(kwargs or {}))


class DeviceTensor(Tensor):
    """A tensor of the device; `inner` is the CPU's, with its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made: Any = Tensor._make_wrapper_subclass(cls, inner.size(), device=DEVICE, **layout)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.data_ptr:
            return args[0].inner.data_ptr()
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].inner = args[1].inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})[0]

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.inner!r})"


class StandInDevice:
    """A context in which `torch.device("meta")` computes. `waits`: where the host has waited for it.

    While `forbids` is set it raises `HostWaitError` instead.
    """

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.forbids = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        fused = getattr(OPTIMIZER, FUSED_DEVICES)
        self._stack.callback(setattr, OPTIMIZER, FUSED_DEVICES, fused)
        setattr(OPTIMIZER, FUSED_DEVICES, lambda: [*fused(), DEVICE.type])
        self._stack.enter_context(_Factories())
        self._stack.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def note(self, reason: str) -> None:
        """Count a wait, or refuse it."""
        frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside of the package"
        if self.forbids:
            raise HostWaitError(f"the host waits for the device at {place}: {reason}")
        self.waits.append(f"{place}: {reason}")


class _Operations(TorchDispatchMode):
    def __init__(self, device: StandInDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, reason = computed(func, args, kwargs or {})
        if reason is not None:
            self.device.note(reason)
        return found


class _Factories(TorchFunctionMode):
    """Lets tensors that are made from data keep their values: torch itself leaves those of "meta" empty."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in MAKE_FROM_DATA:
            return func(*args, **kwargs)
        device = kwargs.pop("device", args[0].device if func is Tensor.new_tensor else None)
        if device is None or torch.device(device) != DEVICE or isinstance(args[-1], Tensor):
            return func(*args, **kwargs, device=device)
        return func(*args, **kwargs, device="cpu").to(DEVICE)


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, str | None]:
    """Return what an operation gives, and why the host waits for it; None where it does not."""
    tensors: list[Tensor] = []
    plain_args, plain_kwargs = _unwrapped(args, tensors), {k: _unwrapped(v, tensors) for k, v in kwargs.items()}
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    packet, goes_to_device = func.overloadpacket, bool(on_device)
    if kwargs.get("device") is not None:
        goes_to_device = torch.device(kwargs["device"]) == DEVICE
        if goes_to_device:
            plain_kwargs["device"] = torch.device("cpu")
    elif packet is aten.copy_:
        goes_to_device = isinstance(args[0], DeviceTensor)
    reason = _reason_to_wait(packet, args, on_device, goes_to_device)
    if on_device and packet not in TAKE_BOTH and any(t.dim() for t in tensors if not isinstance(t, DeviceTensor)):
        raise RuntimeError(f"{func}: expected all tensors to be on one device, but some are the host's")
    found = func(*plain_args, **plain_kwargs)
    if not goes_to_device:
        return found, reason
    if on_device and torch.Tag.inplace_view in func.tags:  # such as `transpose_`: shape and strides of the outer, too
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            func(*args, **kwargs)
    return _wrapped(found, {id(tensor.inner): tensor for tensor in on_device}), reason


def _unwrapped(value: Any, tensors: list[Tensor]) -> Any:
    """Return arguments with the CPU's tensors, and add the tensors among them to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.inner if isinstance(value, DeviceTensor) else value
    return type(value)(_unwrapped(each, tensors) for each in value) if type(value) in (list, tuple) else value


def _wrapped(value: Any, known: dict[int, DeviceTensor]) -> Any:
    """Return results as tensors of the device: those that are arguments as themselves."""
    if isinstance(value, Tensor):
        if id(value) in known:
            return known[id(value)]
        # A view of a parameter is no inference tensor, even where it is made in inference mode; nor may its outer be.
        with torch.inference_mode(value.is_inference()) if torch.is_inference_mode_enabled() else nullcontext():
            return DeviceTensor(value)
    return type(value)(_wrapped(each, known) for each in value) if type(value) in (list, tuple) else value


def _reason_to_wait(packet: Any, args: Any, on_device: list[DeviceTensor], goes_to_device: bool) -> str | None:
    if packet in COPY:
        if isinstance(args[packet is aten.copy_], DeviceTensor) == goes_to_device:
            return None
        return f"a copy {'to' if goes_to_device else 'from'} the device"  # memory of the host that is not pinned
    if on_device and packet in READ_VALUES:
        return f"{packet} reads values"
    if on_device and packet in INDEX:
        indices = [index for index in args[1] if index is not None]
        if not all(isinstance(index, DeviceTensor) for index in indices):
            return "an index of the host's"
        is_fill = packet is not aten.index and args[2].numel() == 1
        if not is_fill and any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "the shape of what a mask picks depends on values"
    return None
