"""Connectors with a memory: frame stacks, and what was done and earned in the step before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.connectors.connector import Connector
from lockstep.connectors.observations import FlattenObs
from lockstep.data.actions import ACTION_MASK
from lockstep.data.trees import Tree, leaves
from lockstep.modules.encoders import channels_last, is_image
from lockstep.ops.arrays import move_axis
from lockstep.options.checks import check_whole


class RowMemory(Connector):
    """Remembers something of each row (environment), `_memory` `[B, ...]`, until its `reset`."""

    _memory: npt.NDArray[Any] | None = None

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        if env_index is None:
            self._memory = None
        elif self._memory is not None:
            self._forget(np.atleast_1d(env_index))

    @abstractmethod
    def _forget(self, rows: npt.NDArray[Any]) -> None:
        """Begin episodes in these rows."""

    def _check_rows(self, number: int) -> None:
        if self._memory is not None and len(self._memory) != number:
            raise ValueError(
                f"{type(self).__name__} remembers {len(self._memory)} rows and got {number}; call reset() where other "
                "episodes begin"
            )

    def get_state(self) -> dict[str, Any]:
        return {"memory": None if self._memory is None else self._memory.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._memory = None if state["memory"] is None else np.array(state["memory"])


class FrameStack(RowMemory):
    """Stacks the last `num_frames` observations of each environment (DQN's four frames: Mnih et al. 2015).

    Stacks are stored and learned from; they never reach over an episode's boundary: the first observation of an episode
    fills its whole stack.

    A Box `[...]` becomes `[num_frames, ...]`, oldest first; images with channels are joined along their channels. Of a
    Dict each Box is stacked, and action masks and all else stay as they are. `ValueError` for another space.
    """

    def __init__(self, num_frames: int = 4) -> None:
        self.num_frames = check_whole("num_frames", num_frames, 1)
        self._begins: list[int] = []
        """rows whose next observation fills the stack"""
        self._parts: dict[str, FrameStack] = {}
        """of a Dict: what stacks each Box"""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        boxes = _boxes_in(input_space)
        if boxes and isinstance(input_space, spaces.Dict):
            parts = input_space.spaces.items()
            return spaces.Dict([(key, self.output_space(part) if key in boxes else part) for key, part in parts])
        if not isinstance(input_space, spaces.Box):
            raise ValueError(
                f"FrameStack takes a Box or a Dict with one, not {input_space}; flatten the observations first"
            )
        axis = _channel_axis(input_space)
        low, high = (
            np.concatenate([bound] * self.num_frames, axis) if axis is not None else np.stack([bound] * self.num_frames)
            for bound in (input_space.low, input_space.high)
        )
        return spaces.Box(low, high, dtype=input_space.dtype.type)

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        self._space, self._axis = input_space, _channel_axis(input_space)
        self._parts = {key: FrameStack(self.num_frames) for key in _boxes_in(input_space)}
        for key, part in self._parts.items():
            part.bind(input_space[key])  # type: ignore[index]
        return self.output_space(input_space)

    @property
    def stacks_on_new_axis(self) -> bool:
        """Whether stacks are `[num_frames, ...]`, the form in which a replay buffer makes them from single frames."""
        return self._axis is None and not self._parts

    @property
    def num_stored_frames(self) -> int:
        return self.num_frames if self.stacks_on_new_axis else 1

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        super().reset(env_index)
        for part in self._parts.values():
            part.reset(env_index)
        if self._memory is None:
            self._begins = []

    def _forget(self, rows: npt.NDArray[Any]) -> None:
        self._begins += rows.tolist()

    def __call__(self, data: Tree) -> Any:
        """Return stacks `[B, ...]`, which the next call may write over, for the next observations `[B, ...]`."""
        if self._parts:
            return {key: self._parts[key](leaf) if key in self._parts else leaf for key, leaf in data.items()}
        if data.shape[1:] != self._space.shape:
            raise ValueError(f"observation of shape {data.shape} does not fit the space {self._space}")
        frames = self._memory
        if frames is None:
            frames = self._memory = np.repeat(data[:, None], self.num_frames, axis=1)
            return self._layout(frames)
        if len(frames) != len(data):
            self._check_rows(len(data))
        frames[:, :-1] = frames[:, 1:]
        frames[:, -1] = data
        if self._begins:
            frames[self._begins] = data[self._begins][:, None]
            self._begins = []
        return self._layout(frames)

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        if self._parts:
            memories = {key: part.export_memory() for key, part in self._parts.items()}
            return {f"{name}/{key}": leaf for key, memory in memories.items() for name, leaf in memory.items()}
        space = self._space
        return {
            "frames": np.zeros((self.num_frames, *(space.shape or ())), space.dtype),
            "has_frames": np.zeros((), np.bool_),
        }

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        if self._parts:
            stacks, after = dict(data), dict[str, Tensor]()
            for key, part in self._parts.items():
                own = {name: memory[f"{name}/{key}"] for name in ("frames", "has_frames")}
                stacks[key], new = part.export_call(data[key], own)
                after |= {f"{name}/{key}": leaf for name, leaf in new.items()}
            return stacks, after
        frames, newest = memory["frames"], data.unsqueeze(1)
        moved = torch.cat([frames[:, 1:], newest], dim=1)
        goes_on = memory["has_frames"].reshape(-1, *[1] * (frames.dim() - 1))
        frames = torch.where(goes_on, moved, newest.expand_as(frames))
        return self._layout(frames), {"frames": frames, "has_frames": torch.ones_like(memory["has_frames"])}

    def get_state(self) -> dict[str, Any]:
        if self._parts:
            return {"parts": {key: part.get_state() for key, part in self._parts.items()}}
        return {**super().get_state(), "begins": list(self._begins)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for key, part in self._parts.items():
            part.set_state(state["parts"][key])
        if self._parts:
            return
        frames, shape = state["memory"], (self.num_frames, *(self._space.shape or ()))
        if frames is not None and np.shape(frames)[1:] != shape:
            raise ValueError(f"frames of shape {np.shape(frames)} do not fit [B, {', '.join(map(str, shape))}]")
        super().set_state(state)
        self._begins = [int(row) for row in state["begins"]]

    def _layout(self, frames: Tree) -> Any:
        """Return `[B, num_frames, ...]`, an array or a tensor, as the output space has it."""
        if self._axis is None:
            return frames
        if self._axis == 0:
            return frames.reshape(frames.shape[0], -1, *frames.shape[3:])
        return move_axis(frames, 1, 3).reshape(*frames.shape[:1], *frames.shape[2:4], -1)


def _boxes_in(space: Space[Any]) -> list[str]:
    """Return the keys of a Dict whose Boxes are stacked; none of another space."""
    if not isinstance(space, spaces.Dict):
        return []
    return [key for key, part in space.spaces.items() if isinstance(part, spaces.Box) and key != ACTION_MASK]


def _channel_axis(space: Space[Any]) -> int | None:
    """Return the axis of an image's channels, along which frames are joined; None: along a new first axis."""
    if is_image(space) and len(space.shape or ()) == 3:
        return 2 if channels_last(space.shape or ()) else 0
    return None


class _Beside(RowMemory):
    """Adds a vector of what it remembers to the observation, under a name of its own."""

    key: str
    _size: int

    def output_space(self, input_space: Space[Any]) -> spaces.Dict:
        parts = list(input_space.spaces.items()) if isinstance(input_space, spaces.Dict) else [("obs", input_space)]
        if self.key in dict(parts):
            raise ValueError(f"{type(self).__name__} adds the key {self.key!r}, which {input_space} has already")
        return spaces.Dict([*parts, (self.key, self._added_space())])

    @abstractmethod
    def _added_space(self) -> spaces.Box:
        """Return the space of what is added."""

    def _forget(self, rows: npt.NDArray[Any]) -> None:
        if self._memory is not None:
            self._memory[rows] = 0.0

    def __call__(self, data: Tree) -> dict[str, Any]:
        """Return the observations `[B, ...]` as a dict with what is remembered of each row."""
        number = len(next(leaves(data)))
        if self._memory is None:
            self._memory = np.zeros((number, self._size), np.float32)
        self._check_rows(number)
        return self._beside(data, self._memory.copy())

    def _beside(self, data: Tree, remembered: Tree) -> dict[str, Any]:
        return {**(data if isinstance(data, dict) else {"obs": data}), self.key: remembered}


class PreviousActions(_Beside):
    """Adds the action before as `"previous_actions"`: the environment's, flat, discrete choices one-hot.

    An observation `[...]` becomes the Dict `{"obs": [...], "previous_actions": [size]}`; a Dict gets one more key, so
    that its mask stays where it is. Zeros where an episode begins.
    """

    key = "previous_actions"

    def __init__(self, action_space: Space[Any]) -> None:
        self._flat = FlattenObs()
        self._space = self._flat.bind(action_space)
        (self._size,) = self._space.shape or ()

    def _added_space(self) -> spaces.Box:
        low, high = self._space.low, self._space.high  # type: ignore[attr-defined]
        return spaces.Box(np.minimum(low, 0.0), np.maximum(high, 0.0), dtype=np.float32)

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        if actions is not None:
            self._memory = np.array(self._flat(actions))

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        return {self.key: np.zeros(self._size, np.float32)}

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return self._beside(data, memory[self.key]), dict(memory)

    def export_after(self, memory: dict[str, Tensor], actions: Tree) -> dict[str, Tensor]:
        return {self.key: self._flat(actions)}


class PreviousRewards(_Beside):
    """Adds the reward of the step before as `"previous_rewards"` `[1]`, otherwise as `PreviousActions`.

    A policy that is called by hand is told by `compute_actions(obs, rewards=...)`; `ValueError` where it is not.
    """

    key = "previous_rewards"
    _size = 1
    _is_known = True
    _begins = np.zeros(0, bool)
    """[B], rows that have been reset since the last call"""
    reads_rewards = True

    def _added_space(self) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        super().reset(env_index)
        if env_index is None:
            self._is_known = True
        elif self._memory is not None:
            self._begins[env_index] = True

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        self._is_known = rewards is not None
        if rewards is not None and self._memory is not None:
            self._check_rows(len(rewards))
            rewards = np.where(self._begins, 0.0, rewards)  # they are of the episode before
            self._memory = rewards[:, None].astype(np.float32)

    def __call__(self, data: Tree) -> dict[str, Any]:
        if not self._is_known and not self._begins.all():
            raise ValueError("PreviousRewards does not know the rewards of the step before; hand them in: rewards=...")
        output = super().__call__(data)
        self._begins = np.zeros(len(output[self.key]), bool)
        return output

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return self._beside(data, memory["reward"].unsqueeze(-1)), {}

    def get_state(self) -> dict[str, Any]:
        begins = None if self._memory is None else self._begins.copy()
        return {**super().get_state(), "begins": begins, "is_known": self._is_known}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._is_known = bool(state["is_known"])
        if state["begins"] is not None:
            self._begins = np.array(state["begins"], bool)
