"""Environments and networks with a fault, for `lockstep doctor`."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TransformReward

from lockstep.modules import DefaultActorCriticModule


class Endless(gym.Env):
    """A walk on a line that nothing ends."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 0.1 * (2.0 * action - 1.0)
        return np.array([self.place], np.float32), -abs(self.place), False, False, {}


class BrokenLater(gym.Wrapper):
    """CartPole with a reward that is NaN from the 100th step on."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.steps = 0

    def step(self, action):
        self.steps += 1
        obs, reward, *rest = self.env.step(action)
        return obs, float("nan") if self.steps > 100 else reward, *rest


def thousandfold():
    """Pendulum with rewards of scale 1,000."""
    return TransformReward(gym.make("Pendulum-v1"), lambda reward: 250.0 * reward)


class DeadModule(DefaultActorCriticModule):
    """A policy whose rectified units are all off."""

    def setup(self):
        super().setup()
        with torch.no_grad():
            for name, param in self.named_parameters():
                if "mlp" in name and name.endswith("bias"):
                    param.fill_(-50.0)
