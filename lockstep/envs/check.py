"""Check of an environment with random actions: spaces, flags, seeds, NaN, endless episodes, scales and speed."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from lockstep.data import MultiAgentEnvError
from lockstep.data.actions import (
    ACTION_MASK,
    action_leaves,
    allowed_actions,
    allows_nothing,
    carries_mask,
    check_mask_space,
    flat_mask,
    mask_size,
)
from lockstep.data.agent_steps import AgentDict
from lockstep.data.trees import Tree, leaves_of_space, map_tree, rows_of, trees_equal
from lockstep.data.values import as_reward, check_supported, checked_array
from lockstep.envs.boundary import EnvLike, space_of
from lockstep.envs.errors import ANSWER_FORMS, OLD_API, RAISED
from lockstep.envs.make import check_single_env, named_environment, single_env_factory
from lockstep.envs.multi_agent import AgentEnvAdapter, is_agent_env, make_adapter

LEVELS = ("error", "warning", "info")
_SEEDED_STEPS = 50
"""Number of steps that are repeated with the same seed."""
LARGE_SCALE, SMALL_SCALE = 100.0, 1e-3
"""Root mean squares of rewards and observations between which networks learn with the usual settings."""


@dataclass(frozen=True)
class Finding:
    """Fault or fact that `check_environment` reports.

    Attributes:
        level: "error" (training would be wrong or stop), "warning" (likely to hurt) or "info" (a fact).
        code: Short name of the kind of finding, for programs. Each kind is reported once.
        message: The fault, its place, and what to do.
        value: Number of an "info" that measures something, such as environment steps per second; else None.
    """

    level: str
    code: str
    message: str
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


def check_environment(
    env: EnvLike,
    *,
    env_config: Mapping[str, Any] | None = None,
    num_steps: int = 2000,
    max_seconds: float = 5.0,
    seed: int = 0,
) -> list[Finding]:
    """Step an environment with random actions and return its faults, errors first.

    Args:
        env: An id, a class or function that makes one environment, or a finished environment (left open). It has one
            agent or, in the forms of PettingZoo and of RLlib's `MultiAgentEnv`, several.
        env_config: Keyword arguments for making it.
        num_steps, max_seconds: Limits of the check; it ends at the first.
        seed: Seed of the resets and of the random actions.

    Returns:
        The findings. Without an "error" among them, the environment can be trained on. The last two are facts: the mean
        return of the random episodes that ended ("random_return", if any did), and the speed ("speed").

    Raises:
        ValueError: The id is unknown. An environment that raises while it is made is a finding instead.
    """
    is_finished = isinstance(env, gym.Env) or is_agent_env(env)
    make = (lambda: env) if is_finished else _factory(env, env_config)
    try:
        made = make()
    except ValueError:  # an unknown id or package, reported as everywhere
        raise
    except RAISED as error:
        message = f"making the environment raised {type(error).__name__}: {error}"
        return [Finding("error", "cannot_be_made", message)]
    examination_class = _AgentsExamination if is_agent_env(made) else _Examination
    examination = examination_class(made, num_steps, max_seconds, seed)
    try:
        if examination.examine_spaces():
            examination.run()
            examination.repeat()
    finally:
        if not is_finished and hasattr(made, "close"):
            made.close()
    return sorted(examination.findings, key=lambda finding: LEVELS.index(finding.level))


def _factory(env: EnvLike, env_config: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Return a function that makes one environment, which may have one agent or several."""
    named = named_environment(env) if isinstance(env, str) else env
    if isinstance(named, str | EnvSpec) or not callable(named):
        return single_env_factory(named, env_config)

    def make() -> Any:
        made = named(**(env_config or {}))
        return made if is_agent_env(made) else check_single_env(made, named)

    return make


class _MeanSquare:
    """Running mean of the squares of all finite numbers that were added."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, values: Tree) -> None:
        """Add a number or the numbers of an array."""
        array = np.atleast_1d(np.asarray(values, np.float64))
        finite = array[np.isfinite(array)]
        with np.errstate(over="ignore"):  # squares above 1e308 become infinite, which is large as well
            self._sum += float(np.square(finite).sum())
        self._count += finite.size

    def root(self) -> float:
        """Return the root of the mean square; 0 before the first number."""
        return math.sqrt(self._sum / self._count) if self._count else 0.0


class _Examination:
    """Examination of an environment with one agent, and its findings so far.

    `examine_spaces`, `run` and `repeat` are called in this order; the first decides whether the others make sense.
    """

    def __init__(self, env: Any, num_steps: int, max_seconds: float, seed: int) -> None:
        self.env = env
        self.findings: list[Finding] = []
        self._num_steps = num_steps
        self._max_seconds = max_seconds
        self._seed = seed
        self._is_masked = False
        """True if observations carry an action mask that can be applied."""
        self._returns: list[float] = []
        """Returns of the episodes that ended."""
        self._reward_size = _MeanSquare()
        self._obs_size = _MeanSquare()
        """Of the observations that are plain numbers, without images and choices."""
        self._env_seconds = 0.0
        """Time spent in calls of the environment."""

    def add(self, level: str, code: str, message: str, value: float | None = None) -> None:
        """Add a finding, unless there is one of the same kind."""
        if all(finding.code != code for finding in self.findings):
            self.findings.append(Finding(level, code, message, value))

    def examine_spaces(self) -> bool:
        """Add findings about the spaces. Return whether both can be used at all."""
        for name in ("observation_space", "action_space"):
            kind = "missing"
            try:
                space = space_of(self.env, name)
                kind = "unsupported"
                check_supported(space, name)
            except ValueError as error:
                self.add("error", f"{name}_{kind}", str(error))
        if self.findings:
            return False
        self._examine_mask()
        space = self.env.action_space
        if any(isinstance(leaf, spaces.Box) and not leaf.is_bounded("both") for leaf in action_leaves(space)):
            message = f"action_space {space} has infinite bounds: actions can be neither rescaled nor clipped"
            self.add("warning", "action_space_unbounded", message)
        return True

    def _examine_mask(self) -> None:
        """Set `_is_masked`, and add an error for an action mask that cannot be applied."""
        observation_space, action_space = self.env.observation_space, self.env.action_space
        try:
            if not carries_mask(observation_space):
                return
        except ValueError as error:
            self.add("error", "action_mask_place", str(error))
            return
        try:
            check_mask_space(action_space, observation_space[ACTION_MASK])
            self._is_masked = True
        except ValueError as error:
            kind = "action_mask_shape" if mask_size(action_space) else "action_mask_kind"
            self.add("error", kind, str(error))

    def _action(self, obs: Tree) -> Tree:
        """Return a random action that the observation's mask allows."""
        return self._random_action(self.env.action_space, obs if self._is_masked else None)

    def _random_action(self, space: spaces.Space[Any], obs: Tree, subject: str = "") -> Tree:
        """Return a random action that the mask of `obs` allows. Adds an error for a mask that allows no action.

        `subject`: words before the error's message, such as the agent.
        """
        mask = _mask_in(space, obs)
        if mask is None:
            return space.sample()
        if allows_nothing(space, mask):
            message = (
                f"{subject}the action mask {mask.tolist()} allows nothing, and the episode goes on: allow an action, "
                "or end the episode with the step that leads there"
            )
            self.add("error", "action_mask_empty", message)
        return rows_of(allowed_actions(space, space.np_random, mask[None]), 0)

    def _reset(self, name: str, **seed: int) -> Tree:
        """Reset and return the observation, after examining it; None if the call failed. `name`: of the call."""
        answer = self._call("reset", name, **seed)
        if answer is None:
            return None
        self._examine_observation(answer[0], f"from {name}")
        self._examine_info(answer[1], "reset")
        return answer[0]

    def run(self) -> None:
        """Take random actions, and examine observations, rewards, flags, infos, endings and speed."""
        self.env.action_space.seed(self._seed)
        number = 0  # steps in all
        length = 0  # steps of the episode under way
        episode_return = 0.0
        obs = self._reset("reset(seed)", seed=self._seed)
        while obs is not None and number < self._num_steps and self._env_seconds <= self._max_seconds:
            number += 1
            action = self._action(obs)
            answer = self._call("step", f"step {number} with action {action!r}", action)
            if answer is None:
                return
            self._examine_step(answer, number)
            next_obs, reward, terminated, truncated, _ = answer
            if isinstance(obs, np.ndarray) and next_obs is obs:
                self.add(
                    "info",
                    "observation_reused",
                    "step gives the same array object each time; whoever keeps it must copy (Lockstep does)",
                )

            obs = next_obs
            length += 1
            episode_return += _reward_number(reward)
            self._reward_size.add(_reward_number(reward))
            if terminated or truncated:
                self._returns.append(episode_return)
                length = 0
                episode_return = 0.0
                obs = self._reset(f"the reset after {number} steps")
        if obs is None:
            return
        self._report_summary(number, length)

    def _report_summary(self, number: int, length: int) -> None:
        """Add the findings about endings, returns, speed and scales.

        Args:
            number: Steps in all.
            length: Steps of the last episode, which has not ended.
        """
        if not self._returns:
            self._examine_endless(length)
        elif np.isfinite(mean := float(np.mean(self._returns))):
            message = f"{mean:.6g} is the mean return of {len(self._returns)} episodes of random actions"
            self.add("info", "random_return", message, mean)
        speed = number / max(self._env_seconds, 1e-9)
        message = f"{speed:,.0f} environment steps in a second, one environment, resets included"
        self.add("info", "speed", message, speed)
        self._examine_scales()

    def _examine_scales(self) -> None:
        """Add warnings of rewards and observations whose scale networks do not learn from with the usual settings."""
        rewards, obs = self._reward_size.root(), self._obs_size.root()
        if rewards >= LARGE_SCALE or 0.0 < rewards < SMALL_SCALE:
            self.add(
                "warning",
                "reward_scale",
                f"the root mean square of rewards is {rewards:,.3g}; networks learn well from rewards between "
                f"{SMALL_SCALE:g} and {LARGE_SCALE:g}: set environment.normalize_rewards=True, or scale them",
            )
        if obs >= LARGE_SCALE:
            self.add(
                "warning",
                "observation_scale",
                f"the root mean square of observations is {obs:,.3g}; networks learn well from numbers around 1: set "
                "environment.normalize_observations=True, or scale them",
            )

    def _measure(self, space: spaces.Space[Any], obs: Tree) -> None:
        """Add an observation's plain numbers to their mean square. The encoders scale images and choices themselves."""
        for leaf, part, _ in leaves_of_space(space, obs, "observation"):
            is_plain = isinstance(leaf, spaces.Box) and leaf.dtype != np.uint8
            if is_plain and np.shape(part) == leaf.shape:
                self._obs_size.add(np.asarray(part, np.float64))

    def _examine_endless(self, length: int) -> None:
        """Add a finding about `length` steps without the end of an episode."""
        limit = getattr(getattr(self.env, "spec", None), "max_episode_steps", None)
        if limit is None:
            self.add(
                "warning",
                "never_ends",
                f"no episode ended in {length} random steps and there is no time limit: no return would ever be "
                "counted. Wrap it in gymnasium.wrappers.TimeLimit",
            )
        elif length > limit:
            self.add("error", "limit_ignored", f"an episode went {length} steps over its limit of {limit}")

    def repeat(self) -> None:
        """Check that the same seed and the same actions give the same episode twice."""
        if any(finding.level == "error" for finding in self.findings):
            return
        first = self._seeded_episode()
        second = self._seeded_episode()
        differences = [step for step, (a, b) in enumerate(zip(first, second)) if not trees_equal(a, b)]
        if differences or len(first) != len(second):
            self.add(
                "error",
                "seed_ignored",
                f"reset(seed={self._seed}) twice and the same actions gave different episodes from step "
                f"{(differences or [0])[0]} on (0 is the reset): draw random numbers from self.np_random after "
                "super().reset(seed=seed)",
            )

    def _seeded_episode(self) -> list[Tree]:
        """Return copies of the first observation, and of (observation, reward) of each step of a seeded episode."""
        env = self.env
        env.action_space.seed(self._seed)
        obs = env.reset(seed=self._seed)[0]
        record = [map_tree(np.array, obs)]
        for _ in range(_SEEDED_STEPS):
            obs, reward, terminated, truncated, _ = env.step(self._action(obs))
            record.append((map_tree(np.array, obs), as_reward(reward)))
            if terminated or truncated:
                break
        return record

    def _examine_step(self, answer: tuple[Any, ...], number: int) -> None:
        """Add findings about the five values that step `number` returned."""
        obs, reward, terminated, truncated, info = answer
        self._examine_observation(obs, f"at step {number}")
        try:
            if not np.isfinite(as_reward(reward)):
                self.add("error", "reward_not_finite", f"the reward at step {number} is {reward!r}")
        except ValueError:
            self.add("error", "reward_type", f"the reward at step {number} is {reward!r}, expected one number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.add("error", f"{name}_not_bool", f"{name} is {flag!r} ({type(flag).__name__}), not a bool")
        self._examine_info(info, "step")

    def _examine_observation(self, obs: Tree, where: str) -> None:
        """Add findings about an observation that does not fit its space. `where`: the call, for messages."""
        self._examine_part(self.env.observation_space, obs, "the observation", where)

    def _examine_part(self, space: Space[Any], obs: Tree, subject: str, where: str) -> None:
        """Add findings about an observation and all its parts. `subject`: the observation's name in messages."""
        try:
            for leaf, part, name in leaves_of_space(space, obs, subject):
                self._examine_leaf(leaf, part, f"{name} {where}")
            self._measure(space, obs)
        except ValueError as error:
            self.add("error", "observation_keys", f"{error} ({where})")

    def _examine_leaf(self, space: Space[Any], part: Tree, name: str) -> None:
        """Add the first fault of one part of an observation. The branches are in order of severity."""
        shape = np.shape(part)
        dtype = np.asarray(part).dtype
        if dtype.kind in "OUS":
            self.add("error", "observation_type", f"{name} is a {type(part).__name__}, no array of numbers")
        elif shape != (space.shape or ()):
            self.add("error", "observation_shape", f"{name} has shape {shape}, its space says {space.shape}")
        elif dtype.kind == "f" and not np.isfinite(part).all():
            self.add("error", "observation_not_finite", f"{name} has NaN or infinite values")
        elif dtype != space.dtype and not self._can_hold(space, part, name):
            return
        elif not isinstance(space, spaces.Box):
            if not space.contains(part):
                self._add_outside(space, part, name)
        elif not (np.all(part >= space.low) and np.all(part <= space.high)):
            self._add_outside(space, part, name)
        elif dtype != space.dtype:
            self.add("warning", "observation_dtype", f"{name} is {dtype}, its space says {space.dtype}")

    def _add_outside(self, space: spaces.Space[Any], part: Tree, name: str) -> None:
        """Add the finding that a part of an observation is not in its space."""
        self.add("error", "observation_outside", f"{name} lies outside of its space {space}: {part!r}")

    def _can_hold(self, space: spaces.Space[Any], part: Tree, name: str) -> bool:
        """Return whether a space can hold numbers of another dtype. Adds an error if not."""
        try:
            checked_array(space, part, name)
        except ValueError as error:
            self.add("error", "observation_not_held", str(error))
            return False
        return True

    def _examine_info(self, info: object, source: str) -> None:
        """Add findings about an info. `source`: "reset" or "step"."""
        if not isinstance(info, dict):
            self.add("error", "info_type", f"the info of {source} is a {type(info).__name__}, expected a dict")
        elif not all(isinstance(key, str) for key in info):
            self.add("warning", "info_keys", f"the info of {source} has keys that are no strings: {list(info)!r}")

    def _call(self, method: str, name: str, *arguments: object, **options: object) -> tuple[Any, ...] | None:
        """Return the answer of an environment's method. None, with an error added, if it raises or has another form."""
        start = time.perf_counter()
        try:
            answer = getattr(self.env, method)(*arguments, **options)
        except RAISED as error:
            *_, place = traceback.extract_tb(error.__traceback__)
            where = f"{place.filename}:{place.lineno}"
            self.add("error", f"{method}_raises", f"{name} raised {type(error).__name__}: {error} (at {where})")
            return None
        self._env_seconds += time.perf_counter() - start
        number, values = ANSWER_FORMS[method]
        if isinstance(answer, tuple) and len(answer) == number:
            return answer
        form = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
        self.add("error", f"{method}_form", f"{method} gave {form}, expected {number}: {values}. {OLD_API}")
        return None


class _AgentsExamination(_Examination):
    """Examination of an environment with several agents: each agent's spaces, observations and rewards."""

    def examine_spaces(self) -> bool:
        """Add findings about the spaces. Return whether those of all agents can be used."""
        try:
            self._spaces = dict(zip(("observation", "action"), make_adapter(self.env).spaces()))
        except ValueError as error:
            self.add("error", "spaces_missing", str(error))
            return False
        if not self._spaces["observation"]:
            self.add("error", "agents_missing", "it does not say which possible_agents there may be; name all of them")
        for kind, spaces_of_agents in self._spaces.items():
            for agent, space in spaces_of_agents.items():
                try:
                    check_supported(space, f"the {kind} space of agent {agent!r}")
                except ValueError as error:
                    self.add("error", f"{kind}_space_unsupported", str(error))
        return not self.findings

    def _actions(self, adapter: AgentEnvAdapter) -> dict[Any, Any]:
        """Return a random action for each agent to act, which its mask allows."""
        actions = {}
        for agent, obs in adapter.to_act.items():
            space = self._spaces["action"][agent]
            action = self._random_action(space, obs, f"agent {agent!r}: ")
            actions[agent] = int(action) if isinstance(space, spaces.Discrete) else action
        return actions

    def _advance(self, adapter: AgentEnvAdapter, number: int) -> bool:
        """Take step `number`, or reset if the episode has ended. Return whether the environment raised nothing."""
        start = time.perf_counter()
        needs_reset = adapter.episode.is_done or not adapter.episode.is_reset
        rewards: AgentDict = {}
        try:
            if needs_reset:
                adapter.begin(seed=None if number else self._seed)
            else:
                rewards = adapter.step(self._actions(adapter))
        except MultiAgentEnvError as error:
            self.add("error", "agents_data", str(error))
            return False
        except RAISED as error:
            *_, place = traceback.extract_tb(error.__traceback__)
            kind = "reset" if needs_reset else "step"
            where = f"at {place.filename}:{place.lineno}"
            self.add("error", f"{kind}_raises", f"{kind} {number} raised {type(error).__name__}: {error} ({where})")
            return False
        self._env_seconds += time.perf_counter() - start

        for agent, obs in adapter.to_act.items():
            self._examine_part(self._spaces["observation"][agent], obs, f"agent {agent!r}: the observation", "")
        for agent, reward in rewards.items():
            self._reward_size.add(float(reward))
            if not np.isfinite(float(reward)):
                self.add("error", "reward_not_finite", f"the reward of agent {agent!r} at step {number} is {reward!r}")
        return True

    def run(self) -> None:
        """Take random actions of all agents, and examine observations, rewards, endings and speed."""
        self._seed_actions()
        adapter = make_adapter(self.env)
        number = 0
        if not self._advance(adapter, 0):
            return
        while number < self._num_steps and self._env_seconds <= self._max_seconds:
            number += 1
            if not self._advance(adapter, number):
                return
            if adapter.episode.is_done:
                agent_episodes = adapter.episode.agent_episodes.values()
                self._returns.append(sum(episode.get_return() for episode in agent_episodes))
        self._report_summary(number, len(adapter.episode))

    def _seed_actions(self) -> None:
        for space in self._spaces["action"].values():
            space.seed(self._seed)

    def _seeded_episode(self) -> list[Tree]:
        self._seed_actions()
        adapter = make_adapter(self.env)
        adapter.begin(seed=self._seed)
        record: list[Tree] = [dict(adapter.to_act)]
        while len(record) <= _SEEDED_STEPS and not adapter.episode.is_done:
            rewards = adapter.step(self._actions(adapter))
            record.append((dict(adapter.to_act), {agent: float(reward) for agent, reward in rewards.items()}))
        return record


def _mask_in(space: spaces.Space[Any], obs: Tree) -> np.ndarray | None:
    """Return the mask `[choices]` that an observation carries; None if it has none that fits the action space."""
    mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) and mask_size(space) else None
    if mask is None:
        return None
    try:
        flat = flat_mask(space, mask)
    except ValueError:  # reported by `_examine_mask`
        return None
    return flat if flat.shape == (mask_size(space),) else None


def _reward_number(reward: Tree) -> float:
    """Return a reward as a number; NaN if it is not a number, which `_examine_step` reports."""
    try:
        return as_reward(reward)
    except ValueError:
        return math.nan
