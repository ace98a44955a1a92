"""Wrappers of Atari games. `AtariWrapper` has all of them, with the settings of Mnih et al. 2015."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep_sb3.common.extras import naming_extra

NOOP = 0
FIRE = 1


def _meanings(env: gym.Env) -> list[str]:
    """Return the names of a game's actions. Raises `ValueError` for an environment that is not an Atari game."""
    game: Any = env.unwrapped
    if not hasattr(game, "get_action_meanings"):
        raise ValueError(f"{env} is not an Atari game: it has no method get_action_meanings")
    meanings: list[str] = game.get_action_meanings()
    return meanings


class StickyActionEnv(gym.Wrapper):
    """Wrapper that repeats the last action instead of taking the new one with a probability (Machado et al. 2018)."""

    def __init__(self, env: gym.Env, action_repeat_probability: float) -> None:
        super().__init__(env)
        self.action_repeat_probability = action_repeat_probability
        self._last_action: Any = NOOP

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, whose last action is NOOP."""
        self._last_action = NOOP
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take the action or the last one."""
        if self.np_random.random() >= self.action_repeat_probability:
            self._last_action = action
        return self.env.step(self._last_action)


class NoopResetEnv(gym.Wrapper):
    """Wrapper that begins each episode with 1 to `noop_max` times NOOP.

    `override_num_noops` replaces the random number, if it is not None.
    """

    def __init__(self, env: gym.Env, noop_max: int = 30) -> None:
        super().__init__(env)
        if _meanings(env)[NOOP] != "NOOP":
            raise ValueError(f"the first action of {env} is {_meanings(env)[NOOP]}; NoopResetEnv needs NOOP")
        self.noop_max = noop_max
        self.override_num_noops: int | None = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with NOOPs. A game that ends by them begins again."""
        obs, info = self.env.reset(**kwargs)
        number = self.override_num_noops
        if number is None:
            number = int(self.unwrapped.np_random.integers(1, self.noop_max + 1))
        for _ in range(number):
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        return obs, info


class FireResetEnv(gym.Wrapper):
    """Wrapper that begins each episode with FIRE and then action 2, for games that wait for it."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        meanings = _meanings(env)
        if meanings[1:2] != ["FIRE"] or len(meanings) < 3:
            raise ValueError(f"the actions of {env} are {meanings}; FireResetEnv needs FIRE as the second of three")

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and fire. A game that ends by that begins again."""
        obs, info = self.env.reset(**kwargs)
        for action in (FIRE, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        return obs, info


class EpisodicLifeEnv(gym.Wrapper):
    """Wrapper that ends an episode when a life is lost, and resets the game only when it is over.

    After a lost life `reset` takes one NOOP, and the game continues.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    def _count_lives(self) -> int:
        """Return the number of lives that are left."""
        game: Any = self.env.unwrapped
        return int(game.ale.lives())

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, which terminates if a life is lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        lives = self._count_lives()
        # Some games stay at 0 lives for a few frames before they are over; they end by themselves.
        if 0 < lives < self.lives:
            terminated = True
        self.lives = lives
        return obs, reward, terminated, truncated, info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the game if it is over, otherwise take a NOOP."""
        if self.was_real_done:
            obs, info = self.env.reset(**kwargs)
        else:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        self.was_real_done = False
        self.lives = self._count_lives()
        return obs, info


class MaxAndSkipEnv(gym.Wrapper):
    """Wrapper that repeats an action `skip` times, and returns the sum of the rewards.

    The observation is the maximum of the last two frames, since some games draw objects in every second frame only.
    """

    def __init__(self, env: gym.Env, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Repeat the action until the episode ends, at most `skip` times."""
        total_reward = 0.0
        frames: list[np.ndarray] = []
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            frames = [*frames[-1:], np.array(obs)]
            total_reward += float(reward)
            if terminated or truncated:
                break
        return np.max(frames, axis=0), total_reward, terminated, truncated, info


class ClipRewardEnv(gym.RewardWrapper):
    """Wrapper that replaces rewards by their sign."""

    def reward(self, reward: SupportsFloat) -> float:
        """Return 1, 0 or -1."""
        return float(np.sign(float(reward)))


class WarpFrame(gym.ObservationWrapper):
    """Wrapper that makes frames gray and scales them to `[height, width, 1]`."""

    def __init__(self, env: gym.Env, width: int = 84, height: int = 84) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"WarpFrame takes frames of a Box, not of {space}")
        self.width = width
        self.height = height
        self.observation_space = spaces.Box(0, 255, (height, width, 1), dtype=space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return a frame `[H, W, 3]` as a gray one `[height, width, 1]`."""
        with naming_extra("WarpFrame", "atari", "lockstep-rl"):
            import cv2

        gray = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY)
        return cv2.resize(gray, (self.width, self.height), interpolation=cv2.INTER_AREA)[:, :, None]


class AtariWrapper(gym.Wrapper):
    """Wrapper with the usual preprocessing of Atari games.

    Args:
        env: Game that does not skip frames itself, such as "PongNoFrameskip-v4".
        noop_max: Largest number of NOOPs at the beginning of an episode; 0 for none.
        frame_skip: Number of frames that an action lasts.
        screen_size: Height and width of an observation.
        terminal_on_life_loss: End an episode when a life is lost; the game itself continues.
        clip_reward: Replace rewards by their sign.
        action_repeat_probability: Probability that the last action is repeated.
    """

    def __init__(
        self,
        env: gym.Env,
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
        action_repeat_probability: float = 0.0,
    ) -> None:
        if action_repeat_probability > 0.0:
            env = StickyActionEnv(env, action_repeat_probability)
        if noop_max > 0:
            env = NoopResetEnv(env, noop_max)
        if frame_skip > 1:
            env = MaxAndSkipEnv(env, frame_skip)
        if terminal_on_life_loss:
            env = EpisodicLifeEnv(env)
        if "FIRE" in _meanings(env):
            env = FireResetEnv(env)
        env = WarpFrame(env, screen_size, screen_size)
        if clip_reward:
            env = ClipRewardEnv(env)
        super().__init__(env)
