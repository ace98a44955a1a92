"""An environment of pictures that remembers what was done in it, and a pipeline of a user's own for it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.connectors import Connector, Grayscale, NormalizeObs, OneHot, PreviousActions, PreviousRewards, Resize


class PictureEnv(gym.Env[Any, Any]):
    """Shows a picture in colour and a room; episodes last 3 to 7 steps, all of it depends on the actions taken."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (16, 16, 3), np.uint8),
            "room": spaces.Discrete(3),
            "speed": spaces.Box(-9, 9, (2,)),
        }
    )
    action_space = spaces.Discrete(3)
    state_attributes = ("step_number", "length", "sum_of_actions")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number, self.length = 0, int(self.np_random.integers(3, 8))
        self.sum_of_actions = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        self.sum_of_actions += int(action)
        reward = float(self.sum_of_actions % 3 == 0) + 0.1 * self.step_number
        over = self.step_number == self.length
        return self._obs(), reward, over and self.length % 2 == 0, over and self.length % 2 == 1, {}

    def _obs(self) -> dict[str, Any]:
        rng = np.random.default_rng([self.step_number, self.length, self.sum_of_actions])
        return {
            "picture": rng.integers(0, 256, (16, 16, 3)).astype(np.uint8),
            "room": np.int64(self.sum_of_actions % 3),
            "speed": rng.normal(size=2).astype(np.float32),
        }


class Doubled(Connector):
    """A connector of a user's own: twice the numbers of "speed"."""

    def output_space(self, input_space: Any) -> Any:
        speed = input_space["speed"]
        parts = {**input_space.spaces, "speed": spaces.Box(2 * speed.low, 2 * speed.high, speed.shape)}
        return spaces.Dict(list(parts.items()))

    def __call__(self, data: Any) -> Any:
        return {**data, "speed": data["speed"] * 2}


def see(observation_space: Any, action_space: Any) -> list[Connector]:
    """Grey small pictures, a one-hot room, and what was done and earned before; statistics behind these."""
    return [
        *(Doubled(), Grayscale(), Resize(8, 8), OneHot()),
        *(PreviousActions(action_space), PreviousRewards(), NormalizeObs()),
    ]


class Turned(Connector):
    """The module's actions in the opposite order."""

    def __call__(self, data: Any) -> Any:
        return 2 - data


def turn(observation_space: Any, action_space: Any) -> Connector:
    """Turn the actions."""
    return Turned()


def play(policy: Any, num_steps: int = 20, explore: bool = False) -> list[int]:
    """The actions of a policy that is called by hand, with one environment."""
    env, reward = PictureEnv(), None
    actions: list[int] = []
    obs, _ = env.reset(seed=5)
    policy.reset()
    for _ in range(num_steps):
        actions.append(policy.compute_single_action(obs, explore=explore, rewards=reward))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        if terminated or truncated:
            obs, _ = env.reset()
            policy.reset(0)
    return actions
