"""The last observations of an episode side by side, so that one of them shows motion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.modules.encoders import channels_last, is_image

FinalObs = tuple[np.ndarray, np.ndarray]


class FrameStack:
    """Stacks the last `num_frames` observations of each environment (DQN's four frames: Mnih et al. 2015).

    It sits at the environments, because it remembers; what is stored and learned from are stacks, which never
    reach over an episode's boundary: the first observation of an episode fills its whole stack.

    A Box `[...]` becomes `[num_frames, ...]`, oldest first; images with channels are joined along their
    channels.
    """

    def __init__(self, num_frames: int, observation_space: Space[Any]) -> None:
        """Raises:
        ValueError: a space other than Box, or no frames.
        """
        if not isinstance(num_frames, int | np.integer) or num_frames < 1:
            raise ValueError(f"FrameStack needs a whole number of frames of at least 1, got {num_frames!r}")
        self.num_frames = int(num_frames)
        self.input_space = observation_space
        self.observation_space = self.output_space(observation_space)
        self._frames: np.ndarray | None = None  # [B, num_frames, ...]

    def output_space(self, input_space: Space[Any]) -> spaces.Box:
        """The space of stacks of observations of `input_space`."""
        if not isinstance(input_space, spaces.Box):
            raise ValueError(f"FrameStack takes a Box, not {input_space}; flatten the observations first")
        axis = _channel_axis(input_space)
        low, high = (
            np.concatenate([bound] * self.num_frames, axis) if axis is not None else np.stack([bound] * self.num_frames)
            for bound in (input_space.low, input_space.high)
        )
        return spaces.Box(low, high, dtype=input_space.dtype.type)

    def reset(self, obs: np.ndarray) -> np.ndarray:
        """Begin an episode in every environment with `obs` `[B, ...]`; returns stacks `[B, ...]`."""
        self._check(obs)
        self._frames = np.repeat(obs[:, None], self.num_frames, axis=1)
        return self._layout(self._frames)

    def step(
        self, obs: np.ndarray, final_obs: FinalObs | None = None, valid: np.ndarray | None = None
    ) -> tuple[np.ndarray, FinalObs | None]:
        """One step further.

        Args:
            obs: `[B, ...]`, to act on next; the first of a new episode where one ended.
            final_obs: None, or (rows `[k]`, last observations `[k, ...]`) of the episodes that ended.
            valid: None, or `[B]`; False where the step only reset an environment.

        Returns:
            Stacks to act on `[B, ...]` (may be reused by the next step), and the rows with the last stacks of
            the episodes that ended.

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
        """The frames of the running episodes."""
        return {"frames": None if self._frames is None else self._frames.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` gave. `ValueError` for frames of another shape."""
        frames = state["frames"]
        shape = (self.num_frames, *(self.input_space.shape or ()))
        if frames is not None and np.shape(frames)[1:] != shape:
            raise ValueError(f"frames of shape {np.shape(frames)} do not fit [B, {', '.join(map(str, shape))}]")
        self._frames = None if frames is None else np.array(frames)

    def _check(self, obs: np.ndarray) -> None:
        if obs.shape[1:] != self.input_space.shape:
            raise ValueError(f"observation of shape {obs.shape} does not fit the space {self.input_space}")

    def _layout(self, frames: np.ndarray) -> np.ndarray:
        """`[B, num_frames, ...]` as the output space has it."""
        axis = _channel_axis(self.input_space)
        if axis is None:
            return frames
        if axis == 0:
            return frames.reshape(len(frames), -1, *frames.shape[3:])
        return np.moveaxis(frames, 1, 3).reshape(*frames.shape[:1], *frames.shape[2:4], -1)


def _channel_axis(space: Space[Any]) -> int | None:
    """Along which the frames are joined: the channels of an image; None: along a new first axis."""
    if is_image(space) and len(space.shape or ()) == 3:
        return 2 if channels_last(space.shape or ()) else 0
    return None
