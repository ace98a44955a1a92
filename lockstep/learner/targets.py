"""`TargetNetwork`: a copy of a module that follows it, for targets that stand still meanwhile."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import FlatParameters, OptimizerSet
from lockstep.modules import ParameterPlaces


class TargetNetwork:
    """A copy of `module` whose parameters lie in one flat tensor, so that following is one operation.

    Parameters that do not learn are the module's own, in the same memory. Buffers (a `BatchNorm` has some) are copied
    whenever it follows.

    Register it as state of the learner (`register_state`), so that checkpoints hold it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module).requires_grad_(False)
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        copies = dict(self.module.named_parameters())
        self._shapes = [copies[name].shape for name in self._names]
        self.flat = torch.cat([copies[name].detach().reshape(-1) for name in self._names])
        self.num_steps = 0
        """gradient steps since it was made"""
        self._flats: list[FlatParameters] | None = None
        self._pieces: list[tuple[Tensor, Tensor]] = []
        """parts of `flat`, and the parts of `_flats` that they follow"""
        self.bind(module)

    def bind(self, source: nn.Module) -> None:
        """Follow `source` from now on, whose objects or memory may be others than before.

        What was replaced in the copy becomes a view of `flat` again, and its values are kept.
        """
        self.source = source
        copies, theirs = dict(self.module.named_parameters()), dict(source.named_parameters())
        for name, view in self.views().items():
            if copies[name].shape != view.shape:
                raise ValueError(
                    f"{name} of the target network was {tuple(view.shape)}, is {tuple(copies[name].shape)}"
                )
            if copies[name].data_ptr() != view.data_ptr():
                view.copy_(copies[name].detach())
                copies[name].data = view
        for name in theirs.keys() - set(self._names):
            copies[name].data = theirs[name].data
        self.followed = [theirs[name] for name in self._names]
        """the parameters that it goes after"""
        self._buffers, self._followed_buffers = dict(self.module.named_buffers()), dict(source.named_buffers())
        self._flats = None
        self._places = ParameterPlaces(self.module, self._names)

    def is_bound(self) -> bool:
        """Return whether the parameters of the copy still lie in `flat`."""
        return not self._places.have_changed()

    def views(self) -> dict[str, Tensor]:
        """Return the parameters by name, as views of `flat` made now."""
        parts = self.flat.split([shape.numel() for shape in self._shapes])
        return {name: part.view(shape) for name, shape, part in zip(self._names, self._shapes, parts)}

    def after_gradient_step(self, optimizers: OptimizerSet, interval: int, tau: float) -> None:
        """Go `tau` of the way to the parameters that learn, in each `interval`-th call."""
        self.num_steps += 1
        if self.num_steps % interval:
            return
        flats = [entry.flat for entry in optimizers]
        known = self._flats
        if known is None or len(flats) != len(known) or not all(map(operator.is_, flats, known)):
            self._flats, self._pieces = flats, self._paired(flats)
        for piece, source in self._pieces:
            if tau == 1.0:
                piece.copy_(source)
            else:
                piece.lerp_(source, tau)
        for name, buffer in self._buffers.items():
            buffer.copy_(self._followed_buffers[name])

    def begin_anew(self, optimizers: OptimizerSet) -> None:
        """Become a copy of what learns, with no gradient steps counted."""
        self.after_gradient_step(optimizers, 1, 1.0)
        self.num_steps = 0

    def _paired(self, flats: Sequence[FlatParameters]) -> list[tuple[Tensor, Tensor]]:
        """Return pieces as long as can be: what lies side by side here and in an optimizer's flat tensor is one."""
        places: dict[int, tuple[Tensor, int]] = {}
        for flat in flats:
            starts = itertools.accumulate(flat.sizes, initial=0)
            places |= {id(p): (flat.data, start) for p, start in zip(flat.params, starts)}
        pieces: list[list[Any]] = []
        here = 0
        for p in self.followed:
            source, there = places.get(id(p), (p.detach().reshape(-1), 0))  # one without an optimizer
            if pieces and source is pieces[-1][0] and there == pieces[-1][2] + pieces[-1][3]:
                pieces[-1][3] += p.numel()
            else:
                pieces.append([source, here, there, p.numel()])
            here += p.numel()
        return [(self.flat[here : here + n], source[there : there + n]) for source, here, there, n in pieces]

    def get_state(self) -> dict[str, Any]:
        """Return the parameters that learn and buffers (copies), and the count."""
        buffers = {name: buffer.cpu().numpy().copy() for name, buffer in self._buffers.items()}
        state = {"flat": self.flat.cpu().numpy().copy(), "num_steps": self.num_steps}
        return {**state, "buffers": buffers} if buffers else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` returned; `ValueError` for another number of parameters or other buffers."""
        flat = torch.as_tensor(state["flat"])
        if flat.shape != self.flat.shape:
            raise ValueError(f"the target network has {self.flat.numel()} parameters, the state {flat.numel()}")
        buffers = {name: torch.as_tensor(value) for name, value in state.get("buffers", {}).items()}
        here, there = ({name: tuple(b.shape) for name, b in each.items()} for each in (self._buffers, buffers))
        if buffers and here != there:
            raise ValueError(f"the target network has the buffers {here}, the state {there}")
        self.flat.copy_(flat)
        for name, value in buffers.items():
            self._buffers[name].copy_(value)
        self.num_steps = int(state["num_steps"])
