"""Policies without a network, and a buffer that notes what it tells."""

import numpy as np

from lockstep.connectors import FrameStack, ObsPipeline
from lockstep.replay import VectorReplayBuffer


class Acting:
    """The least a collector needs: actions by chance where it explores, else zeros."""

    weights_seq_no = 0
    is_exploring = False

    def act(self, obs, noise):
        return np.zeros(len(obs), np.int64) if noise is None else noise

    def draw_noise(self, rng, leading_shape):
        return rng.integers(0, 4, leading_shape)

    def to_env(self, actions):
        return actions

    def from_env(self, actions):
        return actions

    def check_spaces(self, observation_space, action_space):
        return None

    def stacking(self, num_frames, env):
        """Take stacks of so many observations of `env`; returns the policy."""
        self.recorded = ObsPipeline([FrameStack(num_frames)] if num_frames > 1 else [], env.observation_space)
        return self


class Exploring(Acting):
    """Acts by chance."""

    is_exploring = True


class NotingBuffer(VectorReplayBuffer):
    """`told`: `(return, length)` of each row that was added, zeros where no episode ended."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = []

    def add(self, batch, buffer_ids=None):
        placed = super().add(batch, buffer_ids)
        self.told.extend(zip(placed.episode_return.tolist(), placed.episode_length.tolist()))
        return placed
