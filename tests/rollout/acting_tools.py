"""Policies without a network."""

import numpy as np


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


class Exploring(Acting):
    """Acts by chance."""

    is_exploring = True
