"""`TargetNetwork`: a slowly updated copy of a module, so that the targets a value function learns change slowly."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import FlatParameters, OptimizerSet
from lockstep.modules import ParameterAddresses


class TargetNetwork:
    """Copy of `module` whose parameters lie in one flat tensor, so that an update of the copy is one operation.

    Parameters that do not learn are not copied: they share the memory of the module's own. Buffers (of a `BatchNorm`,
    for example) are copied with every update.

    Register it as state of the learner (`register_state`), so that checkpoints hold it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module).requires_grad_(False)
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        copies = dict(self.module.named_parameters())
        self._shapes = [copies[name].shape for name in self._names]
        self.flat = torch.cat([copies[name].detach().reshape(-1) for name in self._names])
        """All parameters of the copy that follow the module, `[n]`."""
        self.num_steps = 0
        """Number of gradient steps since it was made."""
        self._flats: list[FlatParameters] | None = None
        """The optimizers' flat parameters for which `_pieces` was made; None if it has to be made again."""
        self._pieces: list[tuple[Tensor, Tensor]] = []
        """Parts of `flat`, each with the part of a flat tensor in `_flats` that it follows."""
        self.bind(module)

    def bind(self, source: nn.Module) -> None:
        """Follow the parameters of `source` from now on. Called again after they were replaced or moved in memory.

        Parameters of the copy that were replaced become views of `flat` again, and keep their values. Raises
        `ValueError` if one has another shape now.
        """
        self.source = source
        copies = dict(self.module.named_parameters())
        originals = dict(source.named_parameters())
        for name, view in self.views().items():
            if copies[name].shape != view.shape:
                raise ValueError(
                    f"{name} of the target network was {tuple(view.shape)}, is {tuple(copies[name].shape)}"
                )
            if copies[name].data_ptr() != view.data_ptr():
                view.copy_(copies[name].detach())
                copies[name].data = view
        for name in originals.keys() - set(self._names):
            copies[name].data = originals[name].data

        self.followed = [originals[name] for name in self._names]
        """Parameters of the module, in the order of `flat`."""
        self._buffers = dict(self.module.named_buffers())
        self._followed_buffers = dict(source.named_buffers())
        self._flats = None
        self._places = ParameterAddresses(self.module, self._names)

    def is_bound(self) -> bool:
        """Return whether the parameters of the copy still lie in `flat`."""
        return not self._places.have_changed()

    def views(self) -> dict[str, Tensor]:
        """Return the parameters by name, as new views of `flat`."""
        parts = self.flat.split([shape.numel() for shape in self._shapes])
        return {name: part.view(shape) for name, shape, part in zip(self._names, self._shapes, parts)}

    def after_gradient_step(self, optimizers: OptimizerSet, interval: int, tau: float) -> None:
        """Move the copy towards the module in each `interval`-th call: target <- (1 - tau) target + tau module."""
        self.num_steps += 1
        if self.num_steps % interval:
            return
        flats = [entry.flat for entry in optimizers]
        known = self._flats
        if known is None or len(flats) != len(known) or not all(map(operator.is_, flats, known)):
            self._flats = flats
            self._pieces = self._pair_with(flats)
        for piece, source in self._pieces:
            if tau == 1.0:
                piece.copy_(source)
            else:
                piece.lerp_(source, tau)
        for name, buffer in self._buffers.items():
            buffer.copy_(self._followed_buffers[name])

    def reset(self, optimizers: OptimizerSet) -> None:
        """Make the copy equal to the module, and count gradient steps from 0."""
        # An update in every call (interval 1) that copies all of the module (tau 1).
        self.after_gradient_step(optimizers, 1, 1.0)
        self.num_steps = 0

    def _pair_with(self, flats: Sequence[FlatParameters]) -> list[tuple[Tensor, Tensor]]:
        """Return parts of `flat` with the tensors that they follow, as few and as long as possible.

        Parameters that are neighbours both here and in an optimizer's flat tensor are one part, so that all parameters
        of one optimizer usually take one operation.
        """
        # The flat tensor that holds a parameter, and the start of the parameter there, by `id(parameter)`.
        places: dict[int, tuple[Tensor, int]] = {}
        for flat in flats:
            starts = itertools.accumulate(flat.sizes, initial=0)
            places |= {id(p): (flat.data, start) for p, start in zip(flat.params, starts)}

        # Walk along `flat`, and prolong the last part as long as the next parameter follows it in its source as well.
        # Each part: source, start in `flat`, start in the source, length.
        pieces: list[tuple[Tensor, int, int, int]] = []
        start = 0
        for p in self.followed:
            source, source_start = places.get(id(p), (p.detach().reshape(-1), 0))  # it may have no optimizer
            if pieces:
                last_source, last_start, last_source_start, length = pieces[-1]
                if source is last_source and source_start == last_source_start + length:
                    pieces[-1] = (source, last_start, last_source_start, length + p.numel())
                    start += p.numel()
                    continue
            pieces.append((source, start, source_start, p.numel()))
            start += p.numel()
        return [
            (self.flat[start : start + length], source[source_start : source_start + length])
            for source, start, source_start, length in pieces
        ]

    def get_state(self) -> dict[str, Any]:
        """Return copies of the parameters that learn and of the buffers, and the number of gradient steps."""
        buffers = {name: buffer.cpu().numpy().copy() for name, buffer in self._buffers.items()}
        state = {"flat": self.flat.cpu().numpy().copy(), "num_steps": self.num_steps}
        return {**state, "buffers": buffers} if buffers else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; `ValueError` for another number of parameters or other buffers."""
        flat = torch.as_tensor(state["flat"])
        if flat.shape != self.flat.shape:
            raise ValueError(f"the target network has {self.flat.numel()} parameters, the state {flat.numel()}")
        buffers = {name: torch.as_tensor(value) for name, value in state.get("buffers", {}).items()}
        present_shapes = {name: tuple(buffer.shape) for name, buffer in self._buffers.items()}
        saved_shapes = {name: tuple(buffer.shape) for name, buffer in buffers.items()}
        if buffers and present_shapes != saved_shapes:
            raise ValueError(f"the target network has the buffers {present_shapes}, the state {saved_shapes}")
        self.flat.copy_(flat)
        for name, value in buffers.items():
            self._buffers[name].copy_(value)
        self.num_steps = int(state["num_steps"])


def target_networks(registered: Mapping[str, Any]) -> dict[str, TargetNetwork]:
    """Return the target networks among a learner's registered state, by name."""
    return {name: value for name, value in registered.items() if isinstance(value, TargetNetwork)}
