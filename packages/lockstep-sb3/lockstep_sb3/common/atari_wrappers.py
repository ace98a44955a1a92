"""`AtariWrapper`, by gymnasium's wrappers."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, TransformReward


class FireResetEnv(gym.Wrapper):
    """Begins each episode with FIRE, in games that have it."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        outcome = self.env.reset(**kwargs)
        if "FIRE" not in self.get_wrapper_attr("get_action_meanings")()[1:2]:
            return outcome
        obs, _, terminated, truncated, info = self.env.step(1)
        return self.env.reset(**kwargs) if terminated or truncated else (obs, info)


def AtariWrapper(env: gym.Env, *, clip_reward: bool = True, **options: Any) -> gym.Env:
    """Grey frames of 84 x 84, 4 for an action, FIRE at the start, the sign of rewards; a lost life ends and resets."""
    options = {"terminal_on_life_loss": True, "grayscale_newaxis": True, **options}
    env = FireResetEnv(AtariPreprocessing(env, **options))
    return TransformReward(env, lambda reward: float(np.sign(float(reward)))) if clip_reward else env
