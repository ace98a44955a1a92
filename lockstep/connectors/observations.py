"""Connectors of observations: their base, the pipeline that composes them, and those that are shipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.trees import leaves, map_tree
from lockstep.modules.encoders import channels_last, is_image, one_hot_outputs
from lockstep.ops.statistics import RunningMoments

Leaf = Callable[[Any], Any]
Join = Callable[[RunningMoments], RunningMoments]
FinalObs = tuple[np.ndarray, np.ndarray]


class Connector(ABC):
    """Transforms observations, in the same way when acting (numpy) and when learning (torch).

    Leading dimensions of the data are arbitrary. A connector works on one space, which `bind` names once.
    """

    has_statistics = False
    """Whether `update` changes what the connector does."""

    @abstractmethod
    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        """Return the space of the transformed data; `ValueError` for a space it cannot take. Changes nothing."""

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        """Prepare for data of `input_space` and return its `output_space`. Statistics start anew."""
        return self.output_space(input_space)

    @abstractmethod
    def __call__(self, data: Any) -> Any:
        """Return transformed data: arrays for arrays, tensors for tensors. The input is not changed."""

    def update(self, data: Any) -> None:
        """Take rows `[N, ...]` (numpy) of the input into the statistics, if there are any."""
        return

    def update_joined(self, data: Any, join: Join) -> None:
        """Do as `update` where each of several learners has a part of the rows (N may be 0).

        Every learner must call `join` equally often: it turns the moments of a learner's rows into those of all rows.
        `TypeError` from a connector with statistics that does not say how its parts are joined.
        """
        if self.has_statistics:
            raise TypeError(
                f"{type(self).__name__} has statistics but no update_joined(data, join), so several learners would "
                "each see other ones; write it with RunningMoments (as NormalizeObs does), or train with one learner"
            )

    def get_state(self) -> dict[str, Any]:
        """Return the statistics; empty where there are none."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave. `ValueError` if it is of another connector or space."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")


class LeafConnector(Connector):
    """Transforms each leaf of a Dict or Tuple by itself, and leaves action masks alone."""

    _leaves: Any = None
    """after `bind` the transforms, a tree like the space"""

    @abstractmethod
    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        """Return the output space and the transform of one leaf."""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        return self._map(input_space)[0]

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        self._leaves = self._map(input_space)[1]
        return self.output_space(input_space)

    def __call__(self, data: Any) -> Any:
        transforms = self._leaves
        if callable(transforms):
            return transforms(data)
        if transforms is None:
            raise RuntimeError(f"{type(self).__name__} does not know its space yet: call bind(space) first")
        return _apply(transforms, data)

    def _map(self, space: Space[Any]) -> tuple[Space[Any], Any]:
        if isinstance(space, spaces.Dict):
            is_masked = carries_mask(space)
            mapped = {
                key: (part, _same) if is_masked and key == ACTION_MASK else self._map(part)
                for key, part in space.spaces.items()
            }
            return (
                spaces.Dict([(key, part) for key, (part, _) in mapped.items()]),
                {key: leaf for key, (_, leaf) in mapped.items()},
            )
        if isinstance(space, spaces.Tuple):
            parts = [self._map(part) for part in space.spaces]
            return spaces.Tuple([part for part, _ in parts]), tuple(leaf for _, leaf in parts)
        return self.leaf(space)


def _same(data: Any) -> Any:
    return data


def _apply(transforms: Any, data: Any) -> Any:
    if isinstance(transforms, dict):
        return {key: _apply(transform, data[key]) for key, transform in transforms.items()}
    if isinstance(transforms, tuple):
        return tuple(_apply(transform, part) for transform, part in zip(transforms, data))
    return transforms(data)


class ObsPipeline:
    """Applies connectors one after the other: raw observations in, what the network sees out."""

    def __init__(self, connectors: Sequence[Connector] = (), observation_space: Space[Any] | None = None) -> None:
        """Bind the connectors to `observation_space`, that of the raw observations. Statistics start anew.

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
                    "FlattenObs, OneHot and subclasses of Connector (FrameStack goes to the environments)"
                )
            if self.observation_space is None:
                raise ValueError("an ObsPipeline with connectors needs the observation_space they work on")
            self.observation_space = connector.bind(self.observation_space)
        learning = [i for i, connector in enumerate(self.connectors) if connector.has_statistics]
        self.has_statistics = bool(learning)
        """Whether `update` changes anything."""
        self._updated = self.connectors[: learning[-1] + 1] if learning else ()

    def __call__(self, data: Any) -> Any:
        """Return `[..., *output]` for `[..., *raw]`, numpy or torch."""
        for connector in self.connectors:
            data = connector(data)
        return data

    def update(self, data: Any, rows: npt.NDArray[Any] | None = None, join: Join | None = None) -> None:
        """Take raw observations `[N, ...]` (numpy tree) into the statistics.

        Every connector sees what the ones before it made of them.

        Args:
            rows: take these only (indices or flags `[N]`).
            join: with several learners, the moments of what all of them have seen.
        """
        if not self.has_statistics:
            return
        if rows is not None:
            data = map_tree(lambda leaf: leaf[rows], data)
        for connector in self._updated:
            following = None if connector is self._updated[-1] else connector(data)
            if join is None:
                connector.update(data)
            else:
                connector.update_joined(data, join)
            data = following

    def get_state(self) -> dict[str, Any]:
        """Return the state of each connector, by position and name."""
        return {f"{i}_{type(c).__name__}": c.get_state() for i, c in enumerate(self.connectors)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave. `ValueError` if it is of other connectors."""
        names = list(self.get_state())
        if sorted(state) != sorted(names):
            raise ValueError(f"state is of the connectors {sorted(state)}, this pipeline has {sorted(names)}")
        for name, connector in zip(names, self.connectors):
            connector.set_state(state[name])


class NormalizeObs(LeafConnector):
    """Gives `(obs - mean) / sqrt(var + epsilon)`, limited to [-clip, clip], by running statistics of each entry.

    Every Box that is not an image is normalised and comes out as float32; other leaves pass. Before the first
    `update` the mean is 0 and the variance 1. Statistics change by `update` only.
    """

    has_statistics = True

    def __init__(self, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        if not clip > 0 or not epsilon > 0:
            raise ValueError(f"NormalizeObs needs clip > 0 and epsilon > 0, got {clip} and {epsilon}")
        self.clip = float(clip)
        self.epsilon = float(epsilon)

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Box) or is_image(space):
            return space, _same
        output = spaces.Box(-self.clip, self.clip, space.shape, np.float32)
        return output, _Normalizer(space, self.clip, self.epsilon)

    @property
    def moments(self) -> list[RunningMoments]:
        """The statistics of each normalised leaf, in the order of the space."""
        return [normalizer.moments for normalizer in self._normalizers()]

    def update(self, data: Any) -> None:
        self.update_joined(data, lambda seen: seen)

    def update_joined(self, data: Any, join: Join) -> None:
        def update(normalizer: Leaf) -> Leaf:
            return partial(normalizer.update, join=join) if isinstance(normalizer, _Normalizer) else _same

        _apply(map_tree(update, self._leaves), data)

    def get_state(self) -> dict[str, Any]:
        return {"leaves": [moments.get_state() for moments in self.moments]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        normalizers = self._normalizers()
        if set(state) != {"leaves"} or len(state["leaves"]) != len(normalizers):
            raise ValueError(f"the state does not fit {len(normalizers)} normalised leaves")
        fresh = [RunningMoments(normalizer.moments.shape) for normalizer in normalizers]
        for moments, saved in zip(fresh, state["leaves"]):
            moments.set_state(saved)
        for normalizer, moments in zip(normalizers, fresh):
            normalizer.take(moments)

    def _normalizers(self) -> list[_Normalizer]:
        return [leaf for leaf in leaves(self._leaves) if isinstance(leaf, _Normalizer)]


class _Normalizer:
    """Normalises one leaf. Mean and factor are float32, so that numpy and torch compute the same numbers."""

    def __init__(self, space: spaces.Box, clip: float, epsilon: float) -> None:
        self.space = space
        self._epsilon, self._clip = epsilon, clip
        self._high, self._low = np.full((), clip, np.float32), np.full((), -clip, np.float32)
        self.take(RunningMoments(space.shape))

    def take(self, moments: RunningMoments) -> None:
        """Normalise with these moments from now on."""
        self.moments = moments
        self._mean = moments.mean.astype(np.float32)
        self._factor = np.asarray(1.0 / np.sqrt(moments.var + self._epsilon), np.float32)
        self._tensors: dict[torch.device, list[torch.Tensor]] = {}

    def update(self, rows: Any, join: Join) -> None:
        """Take in rows `[N, ...]`; `join` as for `Connector.update_joined`."""
        seen = RunningMoments(self.moments.shape)
        seen.update(rows)
        self.moments.merge(join(seen))
        self.take(self.moments)

    def __call__(self, x: Any) -> Any:
        shape = self._mean.shape
        if x.shape[max(len(x.shape) - len(shape), 0) :] != shape:
            raise ValueError(f"observation of shape {tuple(x.shape)} does not fit the space {self.space}")
        if isinstance(x, torch.Tensor):
            if x.device not in self._tensors:
                self._tensors[x.device] = [torch.tensor(array, device=x.device) for array in (self._mean, self._factor)]
            mean, factor = self._tensors[x.device]
            return ((x.to(torch.float32) - mean) * factor).clamp_(-self._clip, self._clip)
        if x.dtype != np.float32:
            x = x.astype(np.float32)
        out = np.subtract(x, self._mean)
        out = np.multiply(out, self._factor, out)
        np.minimum(out, self._high, out=out)
        return np.maximum(out, self._low, out=out)


class OneHot(LeafConnector):
    """Turns Discrete `[...]` into float32 `[..., n]`, MultiDiscrete `[..., *shape]` into `[..., sum(nvec)]`.

    A number outside of the space gives zeros. Other leaves pass.
    """

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return space, _same
        parts, values = one_hot_outputs(space)
        transform = partial(_one_hot, num_dims=len(space.shape or ()), parts=parts, values=values)
        return spaces.Box(0.0, 1.0, (len(values),), np.float32), transform


class FlattenObs(OneHot):
    """Joins a tree of Box, Discrete, MultiDiscrete and MultiBinary into one float32 vector.

    Numbers stay as they are, discrete choices become one-hot, parts come in the order of the space. `ValueError` for
    observations with an action mask.
    """

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return super().leaf(space)
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ValueError(
                f"FlattenObs cannot flatten {space}; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can be"
            )
        flat = spaces.flatten_space(space)
        assert isinstance(flat, spaces.Box)
        output = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        return output, partial(_flat, num_dims=len(space.shape or ()))

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        if carries_mask(input_space):
            raise ValueError(
                f"FlattenObs would hide the action mask of {input_space} among the numbers; leave it out, the networks "
                "take Dict observations as they are"
            )
        return spaces.flatten_space(super().output_space(input_space))

    def __call__(self, data: Any) -> Any:
        parts = list(leaves(super().__call__(data)))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, -1)


def _one_hot(x: Any, num_dims: int, parts: npt.NDArray[Any], values: npt.NDArray[Any]) -> Any:
    flat = _rows(x, num_dims)
    if isinstance(x, torch.Tensor):
        on_device = [torch.from_numpy(array).to(x.device) for array in (parts, values)]
        return (flat[..., on_device[0]] == on_device[1]).to(torch.float32)
    return (flat[..., parts] == values).astype(np.float32)


def _flat(x: Any, num_dims: int) -> Any:
    flat = _rows(x, num_dims)
    return flat.to(torch.float32) if isinstance(x, torch.Tensor) else flat.astype(np.float32, copy=False)


def _rows(x: Any, num_dims: int) -> Any:
    """Return `x` with its last `num_dims` dimensions as one."""
    return x.reshape(*x.shape[: x.ndim - num_dims], -1) if num_dims else x[..., None]


class FrameStack:
    """Stacks the last `num_frames` observations of each environment (DQN's four frames: Mnih et al. 2015).

    It sits at the environments, because it remembers. Stacks are stored and learned from; they never reach over an
    episode's boundary: the first observation of an episode fills its whole stack.

    A Box `[...]` becomes `[num_frames, ...]`, oldest first; images with channels are joined along their channels.
    `ValueError` for another space.
    """

    def __init__(self, num_frames: int, observation_space: Space[Any]) -> None:
        self.num_frames = num_frames
        self.input_space = observation_space
        self.observation_space = self.output_space(observation_space)
        self._frames: np.ndarray | None = None  # [B, num_frames, ...]

    def output_space(self, input_space: Space[Any]) -> spaces.Box:
        """Return the space of stacks of observations of `input_space`."""
        if not isinstance(input_space, spaces.Box):
            raise ValueError(f"FrameStack takes a Box, not {input_space}; flatten the observations first")
        axis = _channel_axis(input_space)
        low, high = (
            np.concatenate([bound] * self.num_frames, axis) if axis is not None else np.stack([bound] * self.num_frames)
            for bound in (input_space.low, input_space.high)
        )
        return spaces.Box(low, high, dtype=input_space.dtype.type)

    def reset(self, obs: np.ndarray) -> np.ndarray:
        """Begin an episode in every environment with `obs` `[B, ...]`; return stacks `[B, ...]`."""
        self._check(obs)
        self._frames = np.repeat(obs[:, None], self.num_frames, axis=1)
        return self._layout(self._frames)

    def step(
        self, obs: np.ndarray, final_obs: FinalObs | None = None, valid: np.ndarray | None = None
    ) -> tuple[np.ndarray, FinalObs | None]:
        """Take in one step.

        Args:
            obs: `[B, ...]`, to act on next; the first of a new episode where one ended.
            final_obs: None, or (rows `[k]`, last observations `[k, ...]`) of the episodes that ended.
            valid: None, or `[B]`; False where the step only reset an environment.

        Returns:
            Stacks to act on `[B, ...]` (may be reused by the next step), and the rows with the last stacks of the
            episodes that ended.

        Raises:
            RuntimeError: before the first `reset`.
        """
        frames = self._frames
        if frames is None:
            raise RuntimeError("FrameStack.step before reset(obs)")
        self._check(obs)
        frames[:, :-1] = frames[:, 1:]
        frames[:, -1] = obs
        stacked_final = None
        if final_obs is not None:
            rows, finals = final_obs
            last = frames[rows]
            last[:, -1] = finals
            stacked_final = rows, self._layout(last)
            frames[rows] = obs[rows][:, None]
        if valid is not None and not valid.all():
            frames[~valid] = obs[~valid][:, None]
        return self._layout(frames), stacked_final

    def get_state(self) -> dict[str, Any]:
        """Return the frames of the running episodes."""
        return {"frames": None if self._frames is None else self._frames.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave. `ValueError` for frames of another shape."""
        frames = state["frames"]
        shape = (self.num_frames, *(self.input_space.shape or ()))
        if frames is not None and np.shape(frames)[1:] != shape:
            raise ValueError(f"frames of shape {np.shape(frames)} do not fit [B, {', '.join(map(str, shape))}]")
        self._frames = None if frames is None else np.array(frames)

    def _check(self, obs: np.ndarray) -> None:
        if obs.shape[1:] != self.input_space.shape:
            raise ValueError(f"observation of shape {obs.shape} does not fit the space {self.input_space}")

    def _layout(self, frames: np.ndarray) -> np.ndarray:
        """Return `[B, num_frames, ...]` as the output space has it."""
        axis = _channel_axis(self.input_space)
        if axis is None:
            return frames
        if axis == 0:
            return frames.reshape(len(frames), -1, *frames.shape[3:])
        return np.moveaxis(frames, 1, 3).reshape(*frames.shape[:1], *frames.shape[2:4], -1)


def _channel_axis(space: Space[Any]) -> int | None:
    """Return the axis of an image's channels, along which frames are joined; None: along a new first axis."""
    if is_image(space) and len(space.shape or ()) == 3:
        return 2 if channels_last(space.shape or ()) else 0
    return None
