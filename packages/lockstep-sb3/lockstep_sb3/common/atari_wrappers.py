"""`AtariWrapper`, built from gymnasium's wrappers."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, TransformReward


class FireResetEnv(gym.Wrapper):
    """Wrapper that starts each episode with the action FIRE, in games that have it."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the game, and fire. If the game ends by that, reset it again."""
        reset_result = self.env.reset(**kwargs)
        if "FIRE" not in self.get_wrapper_attr("get_action_meanings")()[1:2]:
            return reset_result
        obs, _, terminated, truncated, info = self.env.step(1)
        return self.env.reset(**kwargs) if terminated or truncated else (obs, info)


def AtariWrapper(env: gym.Env, *, clip_reward: bool = True, **options: Any) -> gym.Env:
    """Return an Atari game with the usual preprocessing.

    Observations are gray frames of 84 x 84, one for every 4 frames of the game. Episodes start with FIRE, and end with
    a lost life. Rewards are replaced by their sign, unless `clip_reward=False`. `options` are those of gymnasium's
    `AtariPreprocessing`.
    """
    options = {"terminal_on_life_loss": True, "grayscale_newaxis": True, **options}
    env = FireResetEnv(AtariPreprocessing(env, **options))
    return TransformReward(env, lambda reward: float(np.sign(float(reward)))) if clip_reward else env
