"""Connectors with a memory: frame stacks, and the action and reward of the step before."""

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
    """Connector with a memory of each row (environment), until its `reset`."""

    _memory: npt.NDArray[Any] | None = None
    """`[B, ...]`. None before the first call, when the number of rows is unknown."""

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        if env_index is None:
            self._memory = None
        elif self._memory is not None:
            self._forget(np.atleast_1d(env_index))

    @abstractmethod
    def _forget(self, rows: npt.NDArray[Any]) -> None:
        """Begin episodes in some rows, given by their indices."""

    def _check_rows(self, number: int) -> None:
        """Raise `ValueError` if the number of rows has changed without a `reset`."""
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
    """Stack of the last `num_frames` observations of each environment (DQN's four frames: Mnih et al. 2015).

    A stack never has frames of two episodes: the first observation of an episode fills its whole stack. Stacks are
    recorded, so acting and learning use the same ones.

    A Box `[...]` becomes `[num_frames, ...]`, oldest frame first. Images with channels are concatenated along their
    channels. In a Dict each Box is stacked; action masks and other parts do not change.

    Args:
        num_frames: Number of frames in a stack, at least 1.

    Raises:
        ValueError: The observations are neither a Box nor a Dict with one.
    """

    keeps_entries = True
    on_device = True

    def __init__(self, num_frames: int = 4) -> None:
        self.num_frames = check_whole("num_frames", num_frames, 1)
        self._begins: list[int] = []
        """Rows whose next observation fills the whole stack."""
        self._parts: dict[str, FrameStack] = {}
        """Stack of each Box in a Dict. Empty for a single Box."""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        boxes = _boxes_in(input_space)
        if boxes and isinstance(input_space, spaces.Dict):
            parts = input_space.spaces.items()
            return spaces.Dict([(key, self.output_space(part) if key in boxes else part) for key, part in parts])
        if not isinstance(input_space, spaces.Box):
            raise ValueError(
                f"FrameStack takes a Box or a Dict with one, not {input_space}; flatten the observations first"
            )
        lows = [input_space.low] * self.num_frames
        highs = [input_space.high] * self.num_frames
        axis = _channel_axis(input_space)
        if axis is None:
            low, high = np.stack(lows), np.stack(highs)
        else:
            low, high = np.concatenate(lows, axis), np.concatenate(highs, axis)
        return spaces.Box(low, high, dtype=input_space.dtype.type)

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        self._space = input_space
        self._axis = _channel_axis(input_space)
        self._parts = {key: FrameStack(self.num_frames) for key in _boxes_in(input_space)}
        for key, part in self._parts.items():
            part.bind(input_space[key])  # type: ignore[index]
        return self.output_space(input_space)

    def keep_entries(self, space: Space[Any]) -> None:
        if isinstance(space, spaces.Dict):
            self._parts = {key: part for key, part in self._parts.items() if key in space.spaces}

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
            # The next call fills all stacks, whatever their number.
            self._begins = []

    def _forget(self, rows: npt.NDArray[Any]) -> None:
        self._begins += rows.tolist()

    def __call__(self, data: Tree) -> Any:
        """Return the stacks `[B, ...]` after the next observations `[B, ...]`. The next call may overwrite them."""
        if self._parts:
            return {key: self._parts[key](leaf) if key in self._parts else leaf for key, leaf in data.items()}
        if data.shape[1:] != self._space.shape:
            raise ValueError(f"observation of shape {data.shape} does not fit the space {self._space}")
        frames = self._memory
        if frames is None:
            frames = self._memory = np.repeat(data[:, None], self.num_frames, axis=1)
            return self._layout(frames)
        if len(frames) != len(data):
            self._check_rows(len(data))  # raises the error
        frames[:, :-1] = frames[:, 1:]
        frames[:, -1] = data
        if self._begins:
            frames[self._begins] = data[self._begins][:, None]
            self._begins = []
        return self._layout(frames)

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        if self._parts:
            memories = {}
            for key, part in self._parts.items():
                for name, leaf in part.export_memory().items():
                    memories[f"{name}/{key}"] = leaf
            return memories
        space = self._space
        return {
            "frames": np.zeros((self.num_frames, *(space.shape or ())), space.dtype),
            "has_frames": np.zeros((), np.bool_),
        }

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        if self._parts:
            stacks = dict(data)
            memory_after: dict[str, Tensor] = {}
            for key, part in self._parts.items():
                part_memory = {name: memory[f"{name}/{key}"] for name in ("frames", "has_frames")}
                stacks[key], part_after = part.export_call(data[key], part_memory)
                memory_after |= {f"{name}/{key}": leaf for name, leaf in part_after.items()}
            return stacks, memory_after

        # Both cases are computed and one is chosen by `where`, because a trace cannot branch on values.
        frames = memory["frames"]
        newest = data.unsqueeze(1)
        moved = torch.cat([frames[:, 1:], newest], dim=1)
        has_frames = memory["has_frames"].reshape(-1, *[1] * (frames.dim() - 1))
        frames = torch.where(has_frames, moved, newest.expand_as(frames))
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
        frames = state["memory"]
        shape = (self.num_frames, *(self._space.shape or ()))
        if frames is not None and np.shape(frames)[1:] != shape:
            raise ValueError(f"frames of shape {np.shape(frames)} do not fit [B, {', '.join(map(str, shape))}]")
        super().set_state(state)
        self._begins = [int(row) for row in state["begins"]]

    def _layout(self, frames: Tree) -> Any:
        """Return frames `[B, num_frames, ...]` (an array or a tensor) in the layout of the output space."""
        if self._axis is None:
            return frames
        if self._axis == 0:
            return frames.reshape(frames.shape[0], -1, *frames.shape[3:])
        return move_axis(frames, 1, 3).reshape(*frames.shape[:1], *frames.shape[2:4], -1)


def _boxes_in(space: Space[Any]) -> list[str]:
    """Return the keys of the Boxes in a Dict that are stacked, or an empty list for another space."""
    if not isinstance(space, spaces.Dict):
        return []
    return [key for key, part in space.spaces.items() if isinstance(part, spaces.Box) and key != ACTION_MASK]


def _channel_axis(space: Space[Any]) -> int | None:
    """Return the axis of an image's channels, along which frames are concatenated; None without channels."""
    if is_image(space) and len(space.shape or ()) == 3:
        return 2 if channels_last(space.shape or ()) else 0
    return None


class _AddedVector(RowMemory):
    """Connector that adds a vector from its memory to the observation, under a key of its own."""

    keeps_entries = True
    key: str
    """Key of the vector in the observation."""
    _size: int
    """Length of the vector."""

    def output_space(self, input_space: Space[Any]) -> spaces.Dict:
        parts = list(input_space.spaces.items()) if isinstance(input_space, spaces.Dict) else [("obs", input_space)]
        if self.key in dict(parts):
            raise ValueError(f"{type(self).__name__} adds the key {self.key!r}, which {input_space} has already")
        return spaces.Dict([*parts, (self.key, self._added_space())])

    @abstractmethod
    def _added_space(self) -> spaces.Box:
        """Return the space of the added vector."""

    def _forget(self, rows: npt.NDArray[Any]) -> None:
        if self._memory is not None:
            self._memory[rows] = 0.0

    def __call__(self, data: Tree) -> dict[str, Any]:
        """Return the observations `[B, ...]` as a dict with the vector of each row."""
        number = len(next(leaves(data)))
        if self._memory is None:
            self._memory = np.zeros((number, self._size), np.float32)
        self._check_rows(number)
        return self._with_vector(data, self._memory.copy())

    def _with_vector(self, data: Tree, vector: Tree) -> dict[str, Any]:
        """Return the observations as a dict to which the vector is added."""
        observations = data if isinstance(data, dict) else {"obs": data}
        return {**observations, self.key: vector}


class PreviousActions(_AddedVector):
    """Connector that adds the action of the step before to the observation, as `"previous_actions"`.

    It is the environment's action as one flat vector, in which discrete choices are one-hot. It is zero where an
    episode begins. An observation `[...]` becomes the Dict `{"obs": [...], "previous_actions": [size]}`. A Dict gets
    one more key, so that an action mask stays in its place.

    Args:
        action_space: Action space of the environment.
    """

    key = "previous_actions"
    added_entries = (key,)

    def __init__(self, action_space: Space[Any]) -> None:
        self._flat = FlattenObs()
        self._space = self._flat.bind(action_space)
        (self._size,) = self._space.shape or ()

    def _added_space(self) -> spaces.Box:
        low, high = self._space.low, self._space.high  # type: ignore[attr-defined]
        # The space must contain the zeros of an episode's beginning.
        return spaces.Box(np.minimum(low, 0.0), np.maximum(high, 0.0), dtype=np.float32)

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        if actions is not None:
            self._memory = np.array(self._flat(actions))

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        return {self.key: np.zeros(self._size, np.float32)}

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return self._with_vector(data, memory[self.key]), dict(memory)

    def export_after(self, memory: dict[str, Tensor], actions: Tree) -> dict[str, Tensor]:
        return {self.key: self._flat(actions)}


class PreviousRewards(_AddedVector):
    """Connector that adds the reward of the step before to the observation, as `"previous_rewards"` `[1]`.

    The form of the observation is that of `PreviousActions`. A program that calls a policy itself passes the rewards by
    `compute_actions(obs, rewards=...)`.

    Raises:
        ValueError: In a call, if the rewards of the step before were not passed.
    """

    key = "previous_rewards"
    added_entries = (key,)
    _size = 1
    _is_known = True
    """Whether the rewards of the last step were passed."""
    _begins = np.zeros(0, bool)
    """`[B]`, whether a row was reset since the last call."""
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
            # The rewards of rows that were reset belong to the episode before.
            rewards = np.where(self._begins, 0.0, rewards)
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
        return self._with_vector(data, memory["reward"].unsqueeze(-1)), {}

    def get_state(self) -> dict[str, Any]:
        begins = None if self._memory is None else self._begins.copy()
        return {**super().get_state(), "begins": begins, "is_known": self._is_known}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._is_known = bool(state["is_known"])
        if state["begins"] is not None:
            self._begins = np.array(state["begins"], bool)
