"""An environment that shows a cue in any kind of observation and asks for it in any kind of action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.data.actions import mask_size

CUES = (0, 1)
BLANK = 2
BEST_IN_BOX = 0.5
"""the best action of a Box at cue 1; at cue 0 its negative"""
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "Discrete": spaces.Discrete(3),
    "Dict": spaces.Dict({"number": spaces.Discrete(3), "place": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 2]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-1.0, 1.0, (1,), np.float32),
    "Dict": spaces.Dict({"turn": spaces.Discrete(2), "push": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
    "Tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(2)]),
}
MASKED: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": ACTIONS["Box"],
    "Dict": spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
    "Tuple": spaces.Tuple([spaces.MultiBinary(3), spaces.Discrete(3)]),
}
"""the same with one choice more, which the mask forbids"""


class CueEnv(gym.Env[Any, Any]):
    """Two steps long: each is worth 1 for the action that belongs to the cue.

    With `memory` the second observation is blank, so that the cue has to be remembered. With `mask` there is one choice
    more, which observations forbid; taking it raises `ValueError`. `turned`: each cue asks for what
    belongs to the other. `hint`: the entry "hint" shows in both steps which cue the best action belongs to.
    """

    state_attributes = ("cue", "t")

    def __init__(
        self,
        observations: str = "Box",
        actions: str = "Discrete",
        mask: bool = False,
        memory: bool = False,
        turned: bool = False,
        hint: bool = False,
    ) -> None:
        self.kind, self.mask, self.memory, self.turned, self.hint = observations, mask, memory, turned, hint
        self.observation_space = OBSERVATIONS[observations]
        self.action_space = (MASKED if mask else ACTIONS)[actions]
        if mask or hint:
            inner = self.observation_space
            parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"observations": inner}
            if mask:
                self.allowed = mask_of(self.action_space)
                parts["action_mask"] = mask_space(self.allowed)
            if hint:
                parts["hint"] = OBSERVATIONS["Box"]
            self.observation_space = spaces.Dict(parts)
        self.cue, self.t = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with a cue, drawn or given as `options={"cue": ...}`."""
        super().reset(seed=seed)
        self.cue = (options or {}).get("cue", int(self.np_random.integers(2)))
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, the first or the last."""
        self.t += 1
        reward = worth(self.action_space, action, self.wanted)
        if self.mask and forbidden(self.action_space, action):
            raise ValueError(f"{action!r} is forbidden")
        return self._observe(), reward, self.t == 2, False, {}

    @property
    def wanted(self) -> int:
        """The cue that the best action belongs to."""
        return 1 - self.cue if self.turned else self.cue

    def best_action(self) -> Any:
        """Return the best action of this episode."""
        return best_of(self.action_space, self.wanted)

    def random_action(self) -> Any:
        """Return one of the allowed actions, drawn by the action space's generator."""
        while self.mask and forbidden(self.action_space, action := self.action_space.sample()):
            pass
        return action if self.mask else self.action_space.sample()

    def _observe(self) -> Any:
        shown = BLANK if self.memory and self.t else self.cue
        observation = shown_as(self.kind, shown)
        if not self.mask and not self.hint:
            return observation
        parts = observation if isinstance(observation, dict) else {"observations": observation}
        if self.mask:
            parts = {**parts, "action_mask": self.allowed}
        if self.hint:
            parts = {**parts, "hint": shown_as("Box", self.wanted)}
        return parts


class HintEnv(CueEnv):
    """What the teacher of a student in `CueEnv` sees: the entry "hint" alone, as an array."""

    def __init__(self, actions: str, mask: bool, turned: bool) -> None:
        super().__init__("Box", actions, mask, turned=turned)
        self.observation_space = OBSERVATIONS["Box"]

    def _observe(self) -> Any:
        return shown_as("Box", self.wanted)


def shown_as(kind: str, cue: int) -> Any:
    """Return the observation of a cue, 0 or 1, or of none, `BLANK`."""
    place = np.array([(-1.0, 1.0, 0.0)[cue]], np.float32)
    if kind == "Box":
        return np.array([place[0], -place[0]], np.float32)
    if kind == "Discrete":
        return cue
    if kind == "Dict":
        return {"number": cue, "place": place}
    picture = np.zeros((8, 8, 1), np.uint8)
    if cue != BLANK:
        picture[:, 4 * cue : 4 * cue + 4] = 255
    return picture


def parts_of(space: Any) -> dict[Any, Any]:
    """Return the parts of a Dict or a Tuple by key; none of another space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}


def joined(space: Any, parts: dict[Any, Any]) -> Any:
    """Return parts by key as what a Dict or a Tuple is made of."""
    return tuple(parts.values()) if isinstance(space, spaces.Tuple) else parts


def worth(space: Any, action: Any, cue: int) -> float:
    """Return 1 for the best action, else less: the mean over the parts of an action."""
    if parts := parts_of(space):
        return float(np.mean([worth(part, action[key], cue) for key, part in parts.items()]))
    if isinstance(space, spaces.Box):
        return 1.0 - float((np.asarray(action)[0] - BEST_IN_BOX * (2 * cue - 1)) ** 2)
    if isinstance(space, spaces.Discrete):
        return 1.0 if int(action) == cue else -1.0
    return float(np.mean(np.where(np.asarray(action)[:2] == (cue, 1 - cue), 1.0, -1.0)))


def best_of(space: Any, cue: int) -> Any:
    """Return the best action of a space."""
    if parts := parts_of(space):
        return joined(space, {key: best_of(part, cue) for key, part in parts.items()})
    if isinstance(space, spaces.Box):
        return np.array([BEST_IN_BOX * (2 * cue - 1)], np.float32)
    if isinstance(space, spaces.Discrete):
        return np.int64(cue)
    best = np.zeros(space.shape, space.dtype)
    best[:2] = cue, 1 - cue
    return best


def distance(space: Any, action: Any, best: Any) -> float:
    """Return how far two actions are apart, at most over all parts."""
    if parts := parts_of(space):
        return max(distance(part, action[key], best[key]) for key, part in parts.items())
    return float(np.abs(np.asarray(action, np.float64) - best).max())


def mask_of(space: Any) -> Any:
    """Return what allows all but the last choice of each part."""
    if parts := parts_of(space):
        return joined(space, {key: mask_of(part) for key, part in parts.items() if mask_size(part)})
    allowed = np.ones(mask_size(space) or 1, np.int8)
    allowed[-1] = 0
    return allowed


def mask_space(allowed: Any) -> spaces.Space[Any]:
    """Return the space of a mask."""
    if isinstance(allowed, dict):
        return spaces.Dict({name: mask_space(part) for name, part in allowed.items()})
    return spaces.Tuple(map(mask_space, allowed)) if isinstance(allowed, tuple) else spaces.MultiBinary(len(allowed))


def forbidden(space: Any, action: Any) -> bool:
    """Return whether an action takes a choice that `mask_of` forbids."""
    if parts := parts_of(space):
        return any(forbidden(part, action[key]) for key, part in parts.items())
    if isinstance(space, spaces.Discrete):
        return int(action) == space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return int(action[1]) == 2
    return isinstance(space, spaces.MultiBinary) and bool(action[2])
