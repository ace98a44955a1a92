"""Looks an environment over: broken spaces, flags, seeds, NaN, episodes without end, and its speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.data.actions import ACTION_MASK, MASKABLE, allowed_actions, carries_mask, mask_size
from lockstep.envs import trees
from lockstep.envs.errors import FORMS, OLD_API
from lockstep.envs.make import single_env_factory

LEVELS = ("error", "warning", "info")
_SEEDED_STEPS = 50


@dataclass(frozen=True)
class Finding:
    """One thing that `check_environment` saw.

    Attributes:
        level: "error" (training would be wrong or stop), "warning" (likely to hurt), "info" (a fact).
        code: a short name of the kind, for programs; each kind is reported once.
        message: what was seen, where, and what to do.
        value: the number of an "info" that measures something (environment steps for each second), else None.
    """

    level: str
    code: str
    message: str
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


def check_environment(
    env: Any,
    *,
    env_config: Mapping[str, Any] | None = None,
    num_steps: int = 2000,
    max_seconds: float = 5.0,
    seed: int = 0,
) -> list[Finding]:
    """Step an environment with random actions and report what is wrong with it; errors come first.

    Args:
        env: an id, a class or function that makes one environment, or a finished environment (left open).
        env_config: keyword arguments for making it.
        num_steps, max_seconds: how long to look, whichever ends first.
        seed: of the resets and of the random actions.

    Returns:
        findings; without an "error" among them the environment can be trained on. The last is its speed.

    Raises:
        ValueError: the id is unknown. (An environment that fails while being made is a finding.)
    """
    given = isinstance(env, gym.Env)
    make = (lambda: env) if given else single_env_factory(env, env_config)
    look = _Look(num_steps, max_seconds, seed)
    try:
        made = make()
    except ValueError:
        raise
    except Exception as error:
        look.add("error", "cannot_be_made", f"making the environment raised {type(error).__name__}: {error}")
        return look.findings
    try:
        if look.spaces(made) and look.begins(made):
            look.runs(made)
            look.repeats(made)
    finally:
        if not given:
            made.close()
    return sorted(look.findings, key=lambda finding: LEVELS.index(finding.level))


class _Look:
    """The findings so far, and the steps of the examination in order."""

    def __init__(self, num_steps: int, max_seconds: float, seed: int) -> None:
        self.findings: list[Finding] = []
        self._num_steps, self._max_seconds, self._seed = num_steps, max_seconds, seed
        self._masked = False
        self._first: Any = None

    def add(self, level: str, code: str, message: str, value: float | None = None) -> None:
        if all(finding.code != code for finding in self.findings):
            self.findings.append(Finding(level, code, message, value))

    def spaces(self, env: Any) -> bool:
        """Whether both spaces can be used at all."""
        fine = True
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, spaces.Space):
                self.add("error", f"{name}_missing", trees.no_space(env, name))
                fine = False
                continue
            try:
                trees.check_supported(space, name)
            except ValueError as error:
                self.add("error", f"{name}_unsupported", str(error))
                fine = False
        if fine:
            self._mask(env.observation_space, env.action_space)
        if fine and isinstance(env.action_space, spaces.Box) and not env.action_space.is_bounded("both"):
            self.add(
                "warning",
                "action_space_unbounded",
                f"action_space {env.action_space} has infinite bounds: actions can be neither rescaled nor clipped",
            )
        return fine

    def _mask(self, observation_space: Any, action_space: Any) -> None:
        """Note whether observations carry an action mask; one that cannot be applied is an error."""
        try:
            self._masked = carries_mask(observation_space)
        except ValueError as error:
            self.add("error", "action_mask_place", str(error))
            return
        if not self._masked:
            return
        mask = observation_space[ACTION_MASK]
        if not isinstance(action_space, MASKABLE):
            self._masked = False
            self.add("error", "action_mask_kind", f"actions of {action_space} cannot be masked; leave the mask out")
        elif mask.shape != (mask_size(action_space),):
            self._masked = False
            self.add(
                "error",
                "action_mask_shape",
                f"the action mask {mask} must have shape ({mask_size(action_space)},), one entry for each choice of "
                f"{action_space}",
            )

    def _action(self, env: Any, obs: Any) -> Any:
        """A random action, of those that the observation's mask allows."""
        space = env.action_space
        mask = obs.get(ACTION_MASK) if self._masked and isinstance(obs, Mapping) else None
        if mask is None or np.shape(mask) != (mask_size(space),):  # what is wrong with it is a finding already
            return space.sample()
        return allowed_actions(space, space.np_random, np.asarray(mask)[None])[0]

    def begins(self, env: Any) -> bool:
        """Whether `reset` works."""
        answer = self._try(lambda: env.reset(seed=self._seed), "reset", "reset(seed)")
        if answer is None:
            return False
        if not (isinstance(answer, tuple) and len(answer) == 2):
            given, (_, values) = type(answer).__name__, FORMS["reset"]
            self.add("error", "reset_form", f"reset gave {given}, expected {values}. {OLD_API}")
            return False
        self._first = answer[0]
        self._observation(env, answer[0], "from reset")
        self._info(answer[1], "reset")
        return True

    def runs(self, env: Any) -> None:
        """Random actions: observations, rewards, flags, infos, endings and speed."""
        env.action_space.seed(self._seed)
        length, endings, spent, done_steps = 0, 0, 0.0, 0
        last: Any = None
        obs = self._first
        for number in range(1, self._num_steps + 1):
            action = self._action(env, obs)
            begun = time.perf_counter()
            answer = self._try(partial(env.step, action), "step", f"step {number} with action {action!r}")
            spent += time.perf_counter() - begun
            if answer is None or not self._step_form(env, answer, number):
                return
            done_steps, length, obs = number, length + 1, answer[0]
            if isinstance(answer[0], np.ndarray) and answer[0] is last:
                self.add(
                    "info",
                    "observation_reused",
                    "step gives the same array object each time; whoever keeps it must copy (Lockstep does)",
                )
            last = answer[0]
            if answer[2] or answer[3]:
                endings, length = endings + 1, 0
                begun = time.perf_counter()
                again = self._try(env.reset, "reset", f"the reset after {number} steps")
                spent += time.perf_counter() - begun
                if again is None:
                    return
                obs = again[0]
                self._observation(env, obs, f"from the reset after {number} steps")
            if spent > self._max_seconds:
                break
        self._endings(env, endings, length, done_steps)
        speed = done_steps / max(spent, 1e-9)
        message = f"{speed:,.0f} environment steps in a second, one environment, resets included"
        self.add("info", "speed", message, speed)

    def _endings(self, env: Any, endings: int, length: int, steps: int) -> None:
        limit = None if env.spec is None else env.spec.max_episode_steps
        if endings == 0 and limit is None:
            self.add(
                "warning",
                "never_ends",
                f"no episode ended in {steps} random steps and there is no time limit: no return would ever "
                "be "
                "counted. Wrap it in gymnasium.wrappers.TimeLimit",
            )
        elif endings == 0 and limit is not None and length > limit:
            self.add("error", "limit_ignored", f"an episode went {length} steps over its limit of {limit}")

    def repeats(self, env: Any) -> None:
        """The same seed must give the same episode."""
        if any(finding.level == "error" for finding in self.findings):
            return
        first, second = self._episode(env), self._episode(env)
        if len(first) != len(second) or not all(map(_same, first, second)):
            number = next((k for k, (a, b) in enumerate(zip(first, second)) if not _same(a, b)), 0)
            self.add(
                "error",
                "seed_ignored",
                f"reset(seed={self._seed}) twice and the same actions gave different episodes from step "
                f"{number} on "
                "(0 is the reset): draw random numbers from self.np_random after super().reset(seed=seed)",
            )

    def _episode(self, env: Any) -> list[Any]:
        env.action_space.seed(self._seed)
        obs = env.reset(seed=self._seed)[0]
        seen = [_copied(obs)]
        for _ in range(_SEEDED_STEPS):
            obs, reward, terminated, truncated, _ = env.step(self._action(env, obs))
            seen.append((_copied(obs), float(reward)))
            if terminated or truncated:
                break
        return seen

    def _step_form(self, env: Any, answer: Any, number: int) -> bool:
        if not (isinstance(answer, tuple) and len(answer) == 5):
            given = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            number, values = FORMS["step"]
            self.add("error", "step_form", f"step gave {given}, expected {number}: {values}. {OLD_API}")
            return False
        obs, reward, terminated, truncated, info = answer
        self._observation(env, obs, f"at step {number}")
        self._reward(reward, number)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.add("error", f"{name}_not_bool", f"{name} is {flag!r} ({type(flag).__name__}), not a bool")
        self._info(info, "step")
        return True

    def _observation(self, env: Any, obs: Any, where: str) -> None:
        """Say in which way an observation does not fit its space."""
        for space, part, name in _leaves(env.observation_space, obs, "the observation", self.add):
            self._array(space, part, f"{name} {where}")

    def _array(self, space: Any, part: Any, name: str) -> None:
        shape, dtype = np.shape(part), np.asarray(part).dtype
        if dtype.kind in "OUS":
            self.add("error", "observation_type", f"{name} is a {type(part).__name__}, no array of numbers")
        elif shape != (space.shape or ()):
            self.add("error", "observation_shape", f"{name} has shape {shape}, its space says {space.shape}")
        elif dtype.kind == "f" and not np.isfinite(part).all():
            self.add("error", "observation_not_finite", f"{name} has NaN or infinite values")
        elif isinstance(space, spaces.Box) and not (np.all(part >= space.low) and np.all(part <= space.high)):
            self.add("error", "observation_outside", f"{name} lies outside of its space {space}: {part!r}")
        elif isinstance(space, spaces.Box) and dtype != space.dtype:
            self.add("warning", "observation_dtype", f"{name} is {dtype}, its space says {space.dtype}")
        elif not isinstance(space, spaces.Box) and not space.contains(part):
            self.add("error", "observation_outside", f"{name} lies outside of its space {space}: {part!r}")

    def _reward(self, reward: Any, number: int) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "biuf":
            self.add("error", "reward_type", f"the reward at step {number} is {reward!r}, expected one number")
        elif not np.isfinite(float(reward)):
            self.add("error", "reward_not_finite", f"the reward at step {number} is {reward!r}")

    def _info(self, info: Any, source: str) -> None:
        if not isinstance(info, dict):
            self.add("error", "info_type", f"the info of {source} is a {type(info).__name__}, expected a dict")
        elif not all(isinstance(key, str) for key in info):
            self.add("warning", "info_keys", f"the info of {source} has keys that are no strings: {list(info)!r}")

    def _try(self, call: Callable[[], Any], kind: str, name: str) -> Any:
        try:
            answer = call()
        except Exception as error:
            traceback, place = error.__traceback__, ""
            while traceback is not None:
                place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
                traceback = traceback.tb_next
            self.add("error", f"{kind}_raises", f"{name} raised {type(error).__name__}: {error} (at {place})")
            return None
        if answer is None:
            self.add("error", f"{kind}_form", f"{name} gave nothing back")
        return answer


def _leaves(space: Any, value: Any, name: str, add: Any) -> list[tuple[Any, Any, str]]:
    """Pairs of a leaf space and the part of the observation that belongs to it."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            add("error", "observation_keys", f"{name} is {value!r}, its space has keys {list(space.spaces)}")
            return []
        parts = [(part, value[key], f"{name}[{key!r}]") for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            add("error", "observation_keys", f"{name} is {value!r}, its space has {len(space.spaces)} parts")
            return []
        parts = [(part, value[k], f"{name}[{k}]") for k, part in enumerate(space.spaces)]
    else:
        return [(space, value, name)]
    return [leaf for part, inner, inner_name in parts for leaf in _leaves(part, inner, inner_name, add)]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    return tuple(map(_copied, value)) if isinstance(value, tuple | list) else np.array(value)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return all(_same(part, right[key]) for key, part in left.items())
    if isinstance(left, tuple | list):
        return all(map(_same, left, right))
    return bool(np.array_equal(left, right))
