"""Weights as they travel from who learns to who acts: one flat buffer with a version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.modules.rl_module import RLModule


@dataclass(frozen=True)
class ActingWeights:
    """All that acting needs of one module at one moment."""

    version: int
    """`weights_seq_no` of the learner: updates made so far"""
    flat: np.ndarray
    """[bytes] uint8: the tensors of the module that acting needs, one after another (`flatten_module`)"""
    obs_state: Mapping[str, Any] = field(default_factory=dict)
    """statistics of the observation pipeline; empty: leave them as they are"""
    timesteps: Mapping[str, int] = field(default_factory=dict)
    """the time, for exploration that depends on it; empty: leave it as it is"""

    @property
    def num_bytes(self) -> int:
        """Size of the flat buffer."""
        return int(self.flat.nbytes)


def flatten_module(module: RLModule, *, copy: bool = True) -> np.ndarray:
    """[bytes] uint8, every parameter and buffer that acting needs (no value network), in a fixed order.

    Tensors that lie one after another in memory, as an optimizer's flat parameters do, are copied at once; with
    `copy=False` and all of them there, the result is that memory itself, which changes with the next gradient step.
    """
    runs = [run.cpu() for run in _runs(module)]
    if not runs:
        return np.empty(0, np.uint8)
    if len(runs) > 1:
        return torch.cat(runs).numpy()
    return (runs[0].clone() if copy else runs[0]).numpy()


def load_flat(module: RLModule, flat: np.ndarray) -> None:
    """Copies what `flatten_module` gave for such a module into its own tensors, in place.

    Raises `ValueError` where the buffer is of a module of another shape; nothing is changed then.
    """
    runs = list(_runs(module))
    expected = sum(run.numel() for run in runs)
    if flat.dtype != np.uint8 or flat.shape != (expected,):
        raise ValueError(
            f"the weights are {flat.dtype} {flat.shape}, {type(module).__name__} needs uint8 ({expected},): they are "
            "of another network; build runners and learners from one configuration"
        )
    start = 0
    for run in runs:
        part = flat[start : start + run.numel()]
        start += run.numel()
        if run.device.type == "cpu":
            np.copyto(run.numpy(), part)
        else:
            run.copy_(torch.from_numpy(part.copy()))


def _runs(module: RLModule) -> Iterator[Tensor]:
    """The tensors that acting needs as uint8 views on their memory; neighbours in memory are one view."""
    dropped = module.get_non_inference_attributes()
    run: Tensor | None = None
    for name, tensor in module.state_dict().items():
        if any(name == item or name.startswith(f"{item}.") for item in dropped) or tensor.numel() == 0:
            continue
        part = tensor.detach().reshape(-1).view(torch.uint8)
        if not tensor.is_contiguous():
            raise ValueError(f"{name} of {type(module).__name__} is not contiguous in memory; make it .contiguous()")
        if run is not None and _follows(run, part):
            run = run.as_strided((run.numel() + part.numel(),), (1,))
        else:
            if run is not None:
                yield run
            run = part
    if run is not None:
        yield run


def _follows(run: Tensor, part: Tensor) -> bool:
    """Does `part` begin where `run` ends, in the same storage?"""
    same = run.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() and run.device == part.device
    return same and run.data_ptr() + run.numel() == part.data_ptr()
