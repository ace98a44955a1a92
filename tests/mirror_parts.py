"""Mirrors of the spaces that tests have, and a task that is the same in a mirror.

All at the top of a module, since configurations name functions.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

MIRRORED_OBS = (1.0, 1.0, -1.0)


def mirror(obs, actions):
    """Three numbers, of which two change places and the last its sign; for actions see `mirrored_actions`."""
    sign = torch.tensor(MIRRORED_OBS, dtype=obs.dtype, device=obs.device)
    return obs[..., [1, 0, 2]] * sign, mirrored_actions(actions)


def mirrored_actions(actions):
    """Three choices in the opposite order; two numbers that change places and signs; or a Dict with both."""
    if isinstance(actions, dict):
        box, choices = actions["both"]
        return {"gear": 2 - actions["gear"], "both": (mirrored_actions(box), choices)}
    return -actions.flip(-1) if actions.is_floating_point() else 2 - actions


def swing(obs, actions):
    """The mirror of Pendulum, without constants that a graph on a device would have to copy there."""
    return torch.cat([obs[..., :1], -obs[..., 1:]], -1), -actions


def mirrored_numbers(obs):
    """The mirror images of arrays `[..., 3]`."""
    return obs[..., [1, 0, 2]] * np.array(MIRRORED_OBS, obs.dtype)


class OneSided(gym.Env):
    """One step, whose best action `best_actions(obs)` is in mirror image at mirrored observations.

    Only observations with a positive last number are seen: the other side has to be known from the mirror. The first
    two numbers have another mean and scale each, so that normalised observations are no mirror images of each other.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = one_sided(self.np_random, 1)[0]
        return self.obs, {}

    def step(self, action):
        error = np.square(np.asarray(action) - best_actions(self.obs)).sum()
        return self.obs, -float(error), True, False, {}


def one_sided(rng, number):
    """Observations `[number, 3]` of `OneSided`."""
    obs = rng.uniform((2.0, -0.5, 0.1), (4.0, 0.5, 1.0), (number, 3))
    return obs.astype(np.float32)


def best_actions(obs):
    """The best actions `[..., 2]` in `OneSided`."""
    x, y, z = obs[..., 0], obs[..., 1], obs[..., 2]
    turn = np.sign(z) * (1.0 - np.abs(z))
    return np.stack([0.6 * turn + 0.1 * x - 0.1 * y, 0.6 * turn + 0.1 * x - 0.1 * y], -1)


def differences_from_image(policy, seed=0, number=500):
    """The differences `[number, 2]` between a policy's actions at mirrored observations and its mirrored actions."""
    obs = one_sided(np.random.default_rng(seed), number)
    actions = policy.compute_actions(obs)
    images = policy.compute_actions(mirrored_numbers(obs))
    return np.abs(images + actions[:, ::-1])
