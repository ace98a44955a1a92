"""Connectors of observations, and the pipeline that composes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors.base import Connector, Join, Leaf, LeafConnector, walk
from lockstep.data.actions import carries_mask
from lockstep.data.trees import map_tree
from lockstep.modules.encoders import is_image
from lockstep.ops.statistics import RunningMoments


class ObsPipeline:
    """Connectors one after the other: raw observations in, what the network sees out."""

    def __init__(self, connectors: Sequence[Connector] = (), observation_space: Space[Any] | None = None) -> None:
        """`observation_space` is that of the raw observations; connectors are bound to it (statistics start
        anew).

        Raises:
            ValueError: connectors without a space, or a space that one of them cannot take.
            TypeError: something that is no connector of observations.
        """
        self.connectors = tuple(connectors)
        self.is_identity = not self.connectors
        self.input_space = observation_space
        self.observation_space = observation_space
        """Of the output."""
        for connector in self.connectors:
            if not isinstance(connector, Connector):
                raise TypeError(
                    f"{type(connector).__name__} is no connector of observations; possible are NormalizeObs, "
                    "ClipObs, FlattenObs, OneHot and subclasses of Connector (FrameStack goes to the "
                    "environments)"
                )
            if self.observation_space is None:
                raise ValueError("an ObsPipeline with connectors needs the observation_space they work on")
            self.observation_space = connector.bind(self.observation_space)

    @property
    def has_statistics(self) -> bool:
        """Whether `update` changes anything."""
        return any(connector.has_statistics for connector in self.connectors)

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        """The space of the output for raw observations of `input_space`; changes nothing."""
        for connector in self.connectors:
            input_space = connector.output_space(input_space)
        return input_space

    def __call__(self, data: Any) -> Any:
        """`[..., *raw]` -> `[..., *output]`, numpy or torch."""
        for connector in self.connectors:
            data = connector(data)
        return data

    def update(self, data: Any, rows: npt.NDArray[Any] | None = None, join: Join | None = None) -> None:
        """Take raw observations `[N, ...]` (numpy tree) into the statistics, of these only `rows` (indices or
        flags `[N]`) if given. Every connector sees what the ones before it made of them.

        `join`: with several learners, the moments of what all of them have seen.
        """
        if not self.has_statistics:
            return
        if rows is not None:
            data = map_tree(lambda leaf: leaf[rows], data)
        last = max(i for i, connector in enumerate(self.connectors) if connector.has_statistics)
        for i, connector in enumerate(self.connectors[: last + 1]):
            following = connector(data) if i < last else None
            if join is None:
                connector.update(data)
            else:
                connector.update_joined(data, join)
            data = following

    def get_state(self) -> dict[str, Any]:
        """State of each connector, by position and name."""
        return {f"{i}_{type(c).__name__}": c.get_state() for i, c in enumerate(self.connectors)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` gave. `ValueError` if it is of other connectors."""
        names = list(self.get_state())
        if sorted(state) != sorted(names):
            raise ValueError(f"state is of the connectors {sorted(state)}, this pipeline has {sorted(names)}")
        for name, connector in zip(names, self.connectors):
            connector.set_state(state[name])


class NormalizeObs(LeafConnector):
    """`(obs - mean) / sqrt(var + epsilon)`, limited to [-clip, clip], with running statistics for each entry.

    Every Box that is not an image is normalised and comes out as float32; other leaves pass. Before the first
    `update` the mean is 0 and the variance 1. Statistics change by `update` only.
    """

    has_statistics = True

    def __init__(self, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        if not clip > 0 or not epsilon > 0:
            raise ValueError(f"NormalizeObs needs clip > 0 and epsilon > 0, got {clip} and {epsilon}")
        self.clip = float(clip)
        self.epsilon = float(epsilon)

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf | None]:
        if not isinstance(space, spaces.Box) or is_image(space):
            return space, None
        output = spaces.Box(-self.clip, self.clip, space.shape, np.float32)
        return output, _Normalizer(space, self.clip, self.epsilon)

    @property
    def moments(self) -> list[RunningMoments]:
        """The statistics of each normalised leaf, in the order of the space."""
        return [normalizer.moments for normalizer in self._normalizers()]

    def update(self, data: Any) -> None:
        self.update_joined(data, lambda seen: seen)

    def update_joined(self, data: Any, join: Join) -> None:
        for normalizer, rows in walk(self._leaves, data):
            assert isinstance(normalizer, _Normalizer)
            seen = RunningMoments(normalizer.moments.shape)
            seen.update(rows)
            normalizer.moments.merge(join(seen))
            normalizer.refresh()

    def merge(self, other: NormalizeObs) -> None:
        """Take in everything that `other` (of the same space) has seen: exact over shards."""
        for mine, theirs in zip(self._normalizers(), other._normalizers(), strict=True):
            mine.moments.merge(theirs.moments)
            mine.refresh()

    def get_state(self) -> dict[str, Any]:
        return {"leaves": [normalizer.moments.get_state() for normalizer in self._normalizers()]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        normalizers = self._normalizers()
        if set(state) != {"leaves"} or len(state["leaves"]) != len(normalizers):
            raise ValueError(f"the state does not fit {len(normalizers)} normalised leaves of {self._input_space}")
        fresh = [RunningMoments(normalizer.moments.shape) for normalizer in normalizers]
        for moments, saved in zip(fresh, state["leaves"]):
            moments.set_state(saved)
        for normalizer, moments in zip(normalizers, fresh):
            normalizer.moments = moments
            normalizer.refresh()

    def _normalizers(self) -> list[_Normalizer]:
        return [leaf for leaf, _ in walk(self._leaves, None) if isinstance(leaf, _Normalizer)]


class _Normalizer:
    """One leaf. Mean and factor are kept as float32 so that numpy and torch compute the same numbers."""

    def __init__(self, space: spaces.Box, clip: float, epsilon: float) -> None:
        self.space = space
        self.moments = RunningMoments(space.shape)
        self._epsilon = epsilon
        self._high, self._low = np.full((), clip, np.float32), np.full((), -clip, np.float32)
        self._clip = clip
        self.refresh()

    def refresh(self) -> None:
        """Take over the moments."""
        self._mean = self.moments.mean.astype(np.float32)
        self._factor = np.asarray(1.0 / np.sqrt(self.moments.var + self._epsilon), np.float32)
        self._tensors: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: Any) -> Any:
        shape = self._mean.shape
        if x.shape[max(len(x.shape) - len(shape), 0) :] != shape:
            raise ValueError(f"observation of shape {tuple(x.shape)} does not fit the space {self.space}")
        if isinstance(x, torch.Tensor):
            return self._normalize_tensor(x)
        if x.dtype == np.float32:
            out = np.subtract(x, self._mean)
        else:
            out = np.subtract(x.astype(np.float32), self._mean)
        out = np.multiply(out, self._factor, out)
        np.minimum(out, self._high, out=out)
        return np.maximum(out, self._low, out=out)

    def _normalize_tensor(self, x: torch.Tensor) -> torch.Tensor:
        if x.device not in self._tensors:
            self._tensors[x.device] = (
                torch.from_numpy(self._mean.copy()).to(x.device),
                torch.from_numpy(self._factor.copy()).to(x.device),
            )
        mean, factor = self._tensors[x.device]
        return ((x.to(torch.float32) - mean) * factor).clamp_(-self._clip, self._clip)


class ClipObs(LeafConnector):
    """Limits every Box of floats to [low, high]; other leaves and images pass."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        if not low < high:
            raise ValueError(f"ClipObs needs low < high, got {low} and {high}")
        self.low, self.high = float(low), float(high)

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf | None]:
        if not isinstance(space, spaces.Box) or is_image(space) or not np.issubdtype(space.dtype, np.floating):
            return space, None
        low, high = (np.clip(bound, self.low, self.high) for bound in (space.low, space.high))
        return spaces.Box(low, high, space.shape, space.dtype.type), self._clip

    def _clip(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.clamp(self.low, self.high)
        return np.minimum(np.maximum(x, self.low), self.high)


class OneHot(LeafConnector):
    """Discrete `[...]` -> float32 `[..., n]`, MultiDiscrete `[..., *shape]` -> `[..., sum(nvec)]`; other
    leaves pass.

    A number outside of the space gives zeros.
    """

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf | None]:
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return space, None
        leaf = _OneHot(space)
        return spaces.Box(0.0, 1.0, (leaf.size,), np.float32), leaf


class _OneHot:
    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        if isinstance(space, spaces.Discrete):
            nvec, start = np.array([space.n]), np.array([space.start])
        else:
            nvec, start = space.nvec.reshape(-1), space.start.reshape(-1)
        self._num_dims = len(space.shape or ())
        self._parts = np.repeat(np.arange(len(nvec)), nvec)
        self._values = np.concatenate([np.arange(n) + first for n, first in zip(nvec, start)])
        self.size = int(nvec.sum())

    def __call__(self, x: Any) -> Any:
        flat = x.reshape(*x.shape[: x.ndim - self._num_dims], -1) if self._num_dims else x[..., None]
        if isinstance(x, torch.Tensor):
            parts, values = (torch.from_numpy(a).to(x.device) for a in (self._parts, self._values))
            return (flat[..., parts] == values).to(torch.float32)
        return (flat[..., self._parts] == self._values).astype(np.float32)


class FlattenObs(Connector):
    """Any tree of Box, Discrete, MultiDiscrete and MultiBinary -> one float32 vector: numbers as they are,
    discrete choices one-hot, parts in the order of the space. `ValueError` for observations with an action mask.
    """

    def __init__(self) -> None:
        self._space: Space[Any] | None = None
        self._one_hot = OneHot()

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        if carries_mask(input_space):
            raise ValueError(
                f"FlattenObs would hide the action mask of {input_space} among the numbers; leave it out, the networks "
                "take Dict observations as they are"
            )
        low, high = _flat_bounds(OneHot().output_space(input_space))
        return spaces.Box(low, high, dtype=np.float32)

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        output = self.output_space(input_space)
        self._space = self._one_hot.bind(input_space)
        return output

    def __call__(self, data: Any) -> Any:
        if self._space is None:
            raise RuntimeError("FlattenObs does not know its space yet: call bind(space) first")
        parts = list(_flat_parts(self._space, self._one_hot(data)))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, -1)


def _flat_parts(space: Space[Any], data: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        return [part for key, sub in space.spaces.items() for part in _flat_parts(sub, data[key])]
    if isinstance(space, spaces.Tuple):
        return [part for i, sub in enumerate(space.spaces) for part in _flat_parts(sub, data[i])]
    num_dims = len(space.shape or ())
    flat = data.reshape(*data.shape[: data.ndim - num_dims], -1) if num_dims else data[..., None]
    return [flat.to(torch.float32) if isinstance(flat, torch.Tensor) else flat.astype(np.float32, copy=False)]


def _flat_bounds(space: Space[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        bounds = [_flat_bounds(part) for part in parts]
        return np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds])
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape, dtype=int))
        return np.zeros(size, np.float32), np.ones(size, np.float32)
    raise ValueError(
        f"FlattenObs cannot flatten {space}; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can be"
    )
