"""Environments with goals: what hindsight replay asks of them, and bit flipping, the smallest one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from lockstep.state.checks import check_whole

Bits = npt.NDArray[np.float32]
Info = Any
"""One info, or an array of them; not looked at."""
GoalFunction = Callable[[Any, Any, Any], Any]
"""`f(achieved_goal [N, ...], desired_goal [N, ...], info) -> [N]`"""


class BitFlipping(gym.Env[Any, Any]):
    """Make some bits equal to others, flipping one in each step (Andrychowicz et al. 2017, arXiv:1707.01495).

    Reward -1 for each step, 0 for the one that reaches the goal, which terminates the episode; truncated after
    `num_bits` steps. Beginning and goal are drawn anew for each episode, different ones. For more than about 12 bits
    the goal is never met by chance, so that nothing is learned from the goals that were wanted, only from those that
    were reached.

    Observations are dicts with `observation` and `achieved_goal` (the bits) and `desired_goal`, zeros and ones. With
    `num_bits` n the best return is `1 - d` where d bits differ, about `1 - n / 2` in the mean.
    """

    metadata = {"render_modes": []}

    def __init__(self, num_bits: int = 15) -> None:
        self.num_bits = num_bits = check_whole("num_bits", num_bits, 1)
        box = spaces.Box(0.0, 1.0, (num_bits,), np.float32)
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = spaces.Discrete(num_bits)
        self.bits = np.zeros(num_bits, np.float32)
        self.goal = np.zeros(num_bits, np.float32)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw new bits and another goal."""
        super().reset(seed=seed)
        self.t = 0
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.num_bits)).astype(np.float32)
        if np.array_equal(self.bits, self.goal):
            self.goal[self.np_random.integers(self.num_bits)] += 1.0
            self.goal %= 2.0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flip the bit `action`."""
        self.bits = self.bits.copy()
        self.bits[action] = 1.0 - self.bits[action]
        self.t += 1
        reached = bool(self.compute_terminated(self.bits, self.goal, {}))
        return self._observe(), 0.0 if reached else -1.0, reached, not reached and self.t >= self.num_bits, {}

    def compute_reward(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return 0 where the goal `[..., n]` is reached, else -1; `[...]`."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return where the goal `[..., n]` is reached, bool `[...]`."""
        return np.asarray((np.asarray(achieved_goal) == np.asarray(desired_goal)).all(-1))

    def get_env_state(self) -> dict[str, Any]:
        """Return bits, goal and step."""
        return {"bits": self.bits.copy(), "goal": self.goal.copy(), "t": self.t}

    def set_env_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_env_state` gave."""
        self.bits, self.goal = (np.array(state[name], np.float32) for name in ("bits", "goal"))
        self.t = int(state["t"])

    def _observe(self) -> dict[str, npt.NDArray[np.float32]]:
        return {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}


def goal_functions(env: gym.Env[Any, Any]) -> tuple[GoalFunction, GoalFunction | None]:
    """Return `compute_reward` of an environment with goals and, where it has one, `compute_terminated`.

    gymnasium-robotics names them so.

    Raises:
        ValueError: it has no `compute_reward`.
    """
    base: Any = env.unwrapped
    compute_reward = getattr(base, "compute_reward", None)
    if not callable(compute_reward):
        raise ValueError(
            f"{type(base).__name__} has no compute_reward(achieved_goal, desired_goal, info), which hindsight replay "
            "needs; write it, or give the collector an HERVectorReplayBuffer with a function of your own"
        )
    compute_terminated = getattr(base, "compute_terminated", None)
    return compute_reward, compute_terminated if callable(compute_terminated) else None
