"""`BitFlippingEnv`: bits that have to be flipped one by one, for hindsight replay."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

IMAGE_SIZE = 36
"""Height and width of the images."""


class BitFlippingEnv(gym.Env):
    """Environment whose goal is that all bits are 1. An action flips one bit, and each step costs 1.

    Observations are dicts with `observation`, `achieved_goal` (both the bits) and `desired_goal`.

    Args:
        n_bits: Number of bits.
        continuous: Whether actions are `n_bits` numbers, of which the positive ones flip their bit.
        max_steps: Number of steps after which an episode is truncated. Defaults to `n_bits`.
        discrete_obs_space: Whether the bits are given as one number.
        image_obs_space: Whether the bits are given as the first pixels of an image of 36 x 36.
        channel_first: Whether the channel is the first dimension of images.
        render_mode: Has no effect: `render` returns the bits.
    """

    spec = EnvSpec("BitFlippingEnv-v0", "lockstep_sb3.common.envs:BitFlippingEnv")

    def __init__(
        self,
        n_bits: int = 10,
        continuous: bool = False,
        max_steps: int | None = None,
        discrete_obs_space: bool = False,
        image_obs_space: bool = False,
        channel_first: bool = True,
        render_mode: str = "human",
    ) -> None:
        if discrete_obs_space and image_obs_space:
            raise ValueError("BitFlippingEnv: give discrete_obs_space or image_obs_space, not both")
        self.n_bits = n_bits
        self.continuous = continuous
        self.discrete_obs_space = discrete_obs_space
        self.image_obs_space = image_obs_space
        self.image_shape = (1, IMAGE_SIZE, IMAGE_SIZE) if channel_first else (IMAGE_SIZE, IMAGE_SIZE, 1)
        self.render_mode = render_mode
        self.max_steps = n_bits if max_steps is None else max_steps
        self.current_step = 0
        self.state = np.zeros(n_bits, np.int8)
        part = self._part_space()
        self.observation_space = spaces.Dict(
            {"observation": part, "achieved_goal": part, "desired_goal": part}  # equal spaces
        )
        self.action_space = spaces.Box(-1.0, 1.0, (n_bits,), np.float32) if continuous else spaces.Discrete(n_bits)
        self.desired_goal = np.ones(n_bits, np.int8)

    def _part_space(self) -> spaces.Space:
        """Return the space of the bits in an observation."""
        if self.discrete_obs_space:
            return spaces.Discrete(2**self.n_bits)
        if self.image_obs_space:
            return spaces.Box(0, 255, self.image_shape, np.uint8)
        return spaces.MultiBinary(self.n_bits)

    def convert_if_needed(self, state: np.ndarray) -> Any:
        """Return bits in the form of the observation space."""
        if self.discrete_obs_space:
            return int(state.astype(np.int64) @ (1 << np.arange(self.n_bits)))
        if self.image_obs_space:
            pixels = np.zeros(IMAGE_SIZE * IMAGE_SIZE, np.uint8)
            pixels[: self.n_bits] = 255 * state.astype(np.uint8)
            return pixels.reshape(self.image_shape)
        return state.copy()

    def convert_to_bit_vector(self, state: Any, batch_size: int) -> np.ndarray:
        """Return the bits `[batch_size, n_bits]` of observations."""
        rows = np.asarray(state).reshape(batch_size, -1)
        if self.discrete_obs_space:
            return (rows.astype(np.int64) >> np.arange(self.n_bits)) & 1
        return rows[:, : self.n_bits] // 255 if self.image_obs_space else rows

    def _obs(self) -> dict[str, Any]:
        """Return the present observation."""
        bits = self.convert_if_needed(self.state)
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self.convert_if_needed(self.desired_goal)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with random bits."""
        super().reset(seed=seed)
        self.current_step = 0
        self.state = self.np_random.integers(2, size=self.n_bits, dtype=np.int8)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flip bits. The episode terminates when all bits are 1."""
        flips = np.asarray(action) > 0 if self.continuous else np.arange(self.n_bits) == action
        self.state = np.where(flips, 1 - self.state, self.state).astype(np.int8)
        self.current_step += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], None).item())
        is_success = reward == 0.0
        is_truncated = self.current_step >= self.max_steps and not is_success
        return obs, reward, is_success, is_truncated, {"is_success": is_success}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, _info: Any) -> np.ndarray:
        """Return the rewards `[N]` of goals: 0 where all bits are equal, else -1."""
        batch_size = 1
        if np.ndim(achieved_goal) > len(self._part_space().shape or ()):
            batch_size = len(achieved_goal)
        achieved = self.convert_to_bit_vector(achieved_goal, batch_size)
        desired = self.convert_to_bit_vector(desired_goal, batch_size)
        return -np.any(achieved != desired, axis=-1).astype(np.float32)

    def render(self) -> np.ndarray:
        """Return the bits."""
        return self.state.copy()
