"""`BaseCollector`: the loop of all collectors that step environments in this process."""

from __future__ import annotations

import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data.actions import ACTION_MASK, carries_mask, flat_mask, mask_size
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.options.checks import check_flags, check_functions, check_whole, is_number, no_copies
from lockstep.rollout.callbacks import EnvironmentCallback, EnvironmentEvents, Episode
from lockstep.rollout.protocols import CollectorTraits, acting_parts
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats, returns_and_lens

CHUNK = 128
"""vector steps that are collected at a time, with random numbers drawn in bulk"""
MAY_NEVER_END = 50_000
"""Number of steps after which a collect by episodes warns of an episode."""
NEVER_ENDS = 1_000_000
"""steps after which a collect by episodes gives up on an episode"""
LIMIT_THEM = (
    "limit the episodes' length (gymnasium.wrappers.TimeLimit, gymnasium.make(id, max_episode_steps=...); in "
    "evaluation alone: evaluation(max_episode_steps=...))"
)
no_copies_of_collectors = no_copies(
    "environments and random generators",
    "make another one on environments of its own, then other.set_state(collector.get_state())",
)


class BaseCollector(CollectorTraits, ABC):
    """Collects an amount of steps or episodes, counts them, and keeps statistics and random streams.

    Subclasses say how vector steps are made (`_run`), where they are stored, and how episodes begin anew.
    """

    policy: Any
    env: Any
    rounds_up = True
    """are all environments stepped together, so that `n_step` is rounded up to whole vector steps?"""

    def __init__(
        self,
        *,
        exploration_noise: bool,
        epsilon: float,
        raise_on_nan_in_buffer: bool,
        on_episode_done_hook: Callable[[int, float, int], None] | None,
        seed: int | None,
        streams: RandomStreams | None,
    ) -> None:
        check_flags(exploration_noise=exploration_noise, raise_on_nan_in_buffer=raise_on_nan_in_buffer)
        check_functions(on_episode_done_hook=on_episode_done_hook)
        if not is_number(epsilon) or not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon={epsilon!r} is not allowed; it must be between 0 and 1")
        if seed is not None and streams is not None:
            raise ValueError(f"seed={seed} and streams are not allowed together; the streams have a seed of their own")
        self.exploration_noise, self.epsilon = exploration_noise, float(epsilon)
        self.raise_on_nan_in_buffer = raise_on_nan_in_buffer
        self.on_episode_done_hook = on_episode_done_hook
        self.is_seeded = seed is not None or streams is not None
        self.streams = RandomStreams(secrets.randbits(63) if seed is None else seed) if streams is None else streams
        self.num_resets = 0
        self.episodes_cut = 0
        """running episodes that the last `set_state` could not continue"""
        self._is_begun = False
        """can the next collect go on with the episodes under way?"""
        self._left_open = False
        """did a collect by episodes leave others unfinished, whose beginnings are not stored?"""
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        """return and length of the episode under way in each environment"""
        self._ended: list[tuple[float, int]] = []
        """return and length of the episodes that ended in this collect and count"""
        self._counting: np.ndarray | None = None
        """[B] whether the episode under way counts, in a collect by episodes"""
        self._to_start = 0
        """episodes that count and have not begun, in a collect by episodes"""
        self._steps = 0
        """steps of this collect so far"""
        self._env_time = self._act_time = 0.0
        self._of_agents: dict[str, Any] = {}
        """statistics of single agents, where there are several"""
        self.events: EnvironmentEvents | None = None
        """calls the callbacks that have something to do with the environments"""
        self.reset_stat()

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return int(self.env.num_envs)

    @property
    def explores(self) -> bool:
        """Are actions drawn, rather than the most likely ones taken?"""
        return bool(self.exploration_noise or self.epsilon or self.policy.is_exploring)

    def reseed(self, streams: RandomStreams) -> None:
        """Take these random streams from now on, beginning with their first reset."""
        self.streams, self.num_resets, self.is_seeded = streams, 0, True

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback], runner: Any = None) -> None:
        """Call these for what happens in the environments, in place of those before.

        `runner`: the env runner that they are told of; None: this collector.
        """
        events = EnvironmentEvents(callbacks, runner or self)
        self.events = None if events.is_empty else events

    @abstractmethod
    def _running_episodes(self) -> Sequence[Episode]:
        """Return the episodes under way, as they are recorded for callbacks."""

    def _tell_created(self) -> None:
        if self.events is not None:
            self.events.created(self.env.single_envs())

    def _begin_told(self) -> None:
        """Prepare the buffer, and the callbacks."""
        self._tell_created()
        self._begin_collect()
        if self.events is not None:
            self.events.begin_collect(self._running_episodes())

    def _end_told(self) -> dict[str, Any]:
        """Check and store what was collected, and tell of it; return what callbacks have logged."""
        self._end_collect()
        return {} if self.events is None else self.events.end_collect()

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere, seeded from the collector's streams; empty buffer and statistics if asked."""
        self.env.check_open()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()
        self._tell_created()
        self.reset_env()

    @abstractmethod
    def reset_env(self) -> None:
        """Begin new episodes everywhere; nothing is estimated across this boundary."""

    @abstractmethod
    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer."""

    def reset_stat(self) -> None:
        """Set the counters to zero."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0
        if self.events is not None:
            self.events.forget()

    def close(self) -> None:
        """Close the environments (a second call does nothing). Collects and resets raise `RuntimeError` then."""
        self.env.close()

    __reduce__ = no_copies_of_collectors

    # -- collecting ---

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
    ) -> CollectStats:
        """Collect `n_step` steps (rounded up to whole vector steps, with a warning) or `n_episode` whole episodes.

        The first `n_episode` that *start* count, however long they last: new ones begin with this collect, and with the
        next (unless `reset_before_collect=False`). `random=True` draws actions from the action space, of those that a
        mask allows. Rows that only reset an environment are no steps: up to `num_envs - 1` steps more may be taken.

        Raises `ValueError` unless exactly one of the two is passed, `MalformedBufferError` for NaN in a new row,
        `EnvironmentStepError` where an environment raises.
        """
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        if n_step is not None and self.rounds_up and amount % self.num_envs:
            warnings.warn(
                f"{amount} steps for each collect (a collector's n_step, a trainer's step_per_collect) are no multiple "
                f"of the {self.num_envs} environments: {-(-amount // self.num_envs) * self.num_envs} are collected",
                stacklevel=2,
            )
        self.env.check_open()
        if reset_before_collect is None:
            reset_before_collect = n_episode is not None or self._left_open
        return self._collect(n_episode, amount, random, reset_before_collect)

    def collect_vector_steps(self, number: int, *, random: bool = False, renew: bool = False) -> CollectStats:
        """Make `number` vector steps, at most 128, however many of their rows only reset an environment. `renew`: new
        episodes first. Raises as `collect`."""
        self.env.check_open()
        return self._collect(None, number * self.num_envs, random, renew or self._left_open, once=True)

    def _collect(
        self, n_episode: int | None, amount: int, random: bool, renew: bool, *, once: bool = False
    ) -> CollectStats:
        """Collect `amount` steps or `n_episode` episodes. `once`: none more for rows that are no steps."""
        if renew or not self._is_begun:
            self.reset(reset_buffer=False, reset_stats=False)
        started, restarts = time.perf_counter(), getattr(self.env, "num_restarts", 0)
        epsilon = epsilon_by_module(acting_parts(self.policy), self.epsilon, random) if random or self.explores else {}
        self._ended.clear()
        self._counting = None
        self._steps, self._env_time, self._act_time = 0, 0.0, 0.0
        self._begin_told()
        try:
            if n_episode is not None:
                self._collect_episodes(n_episode, random)
            else:
                self._collect_steps(amount, random, once)
            logged = self._end_told()
        except BaseException:
            self._is_begun = False
            self._abandon_collect()
            raise
        self._left_open = n_episode is not None
        seconds = time.perf_counter() - started
        self.collect_step += self._steps
        self.collect_episode += len(self._ended)
        self.collect_time += seconds
        return CollectStats(
            len(self._ended),
            self._steps,
            seconds,
            self._env_time,
            self._act_time,
            *returns_and_lens(self._ended),
            getattr(self.env, "num_restarts", 0) - restarts,
            epsilon=epsilon,
            **self._of_agents,
            **logged,  # type: ignore[misc]
        )

    def _collect_steps(self, n_step: int, random: bool, once: bool) -> None:
        while self._steps < n_step:  # rows that only reset an environment are no steps
            self._steps += self._run(n_step - self._steps, random)
            if once:
                break

    def _collect_episodes(self, n_episode: int, random: bool) -> None:
        self._to_start = max(0, n_episode - self.num_envs)
        self._collect_counting(np.arange(self.num_envs) < n_episode, random)

    def _collect_counting(self, counting: np.ndarray, random: bool) -> None:
        """Collect until no environment has an episode under way that counts; `counting` has those that begin with."""
        self._counting = counting
        has_warned = False
        while self._counting.any():
            self._steps += self._run(CHUNK * self.num_envs, random)
            longest = int(self._lengths[self._counting].max(initial=0))
            if longest > NEVER_ENDS:
                raise RuntimeError(
                    f"an episode has not ended in {longest} steps, and {NEVER_ENDS} are the limit; {LIMIT_THEM}"
                )
            if longest > MAY_NEVER_END and not has_warned:
                has_warned = True
                warn_of_long_episode(longest)
        self._counting = None

    @abstractmethod
    def _run(self, most: int, random: bool) -> int:
        """Collect about `most` steps, at most `CHUNK` vector steps; return how many count.

        In a collect by episodes only steps of the environments in `_counting` count; the run ends when none is left.
        """

    def _end_episode(self, b: int) -> None:
        """Take down the episode that ended in environment `b`, if it counts, and tell the hook."""
        episode = float(self._returns[b]), int(self._lengths[b])
        self._returns[b], self._lengths[b] = 0.0, 0
        if self._counting is not None:
            if not self._counting[b]:
                return
            self._counting[b] = self._begins_another(b)
        self._ended.append(episode)
        if self.on_episode_done_hook is not None:
            self.on_episode_done_hook(b, *episode)

    def _begins_another(self, b: int) -> bool:
        """Return whether the next episode in environment `b` counts too, in a collect by episodes."""
        self._to_start -= 1
        return self._to_start >= 0

    @abstractmethod
    def _begin_collect(self) -> None:
        """Prepare the buffer for what comes."""

    @abstractmethod
    def _end_collect(self) -> None:
        """Check and store what was collected."""

    @abstractmethod
    def _abandon_collect(self) -> None:
        """Leave nothing behind of a collect that failed."""

    # -- state ---

    @property
    def is_begun(self) -> bool:
        """Are there episodes under way that the next collect goes on with?"""
        return self._is_begun

    def get_state(self) -> dict[str, Any]:
        """Return random streams, counters and running episodes. `ValueError` while there is data to be learned from."""
        check_no_data(self.buffer)
        return {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "left_open": self._left_open,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            **({} if self.events is None else {"events": self.events.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self._left_open = bool(state["left_open"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if self.events is not None and "events" in state:
            self.events.set_state(state["events"])

    @property
    @abstractmethod
    def buffer(self) -> Any:
        """Where steps are stored; may be replaced between collects."""


def epsilon_by_module(parts: Mapping[str, Any], own: float, random: bool) -> dict[str, float]:
    """Return the probability of an action by chance in a collect that begins now, by module.

    Args:
        parts: what acts, by module id. Parts that do not explore epsilon-greedily are left out.
        own: the collector's own epsilon, which takes the place of the parts' schedules; 0: there is none.
        random: whether all actions are random.
    """
    found: dict[str, float] = {}
    for module_id, part in parts.items():
        exploration = getattr(part, "exploration", None)
        if exploration is None or not exploration.is_epsilon_greedy:
            continue
        if random:
            found[module_id] = 1.0
        else:
            found[module_id] = own or part.exploration_level
    return found


def warn_of_long_episode(steps: int) -> None:
    """Warn that an episode of a collect by episodes has not ended in so many steps."""
    warnings.warn(
        f"an episode has not ended in {steps:,} steps, and a collect of whole episodes waits for its end, up to "
        f"{NEVER_ENDS:,} steps; if episodes never end, {LIMIT_THEM}",
        RuntimeWarning,
        stacklevel=2,
    )


def exactly_one(**amounts: int | None) -> int:
    """Return the one amount that is not None. `ValueError` unless there is exactly one, and it is whole and above 0."""
    (first, a), (second, b) = amounts.items()
    if (a is None) == (b is None):
        raise ValueError(f"give exactly one of {first} and {second}, not {first}={a!r} and {second}={b!r}")
    return check_whole(first, a, 1) if b is None else check_whole(second, b, 1)


def check_no_data(buffer: Any) -> None:
    """Raise `ValueError` where a collector's buffer has data that is not learned from yet."""
    if isinstance(buffer, RolloutStore | EpisodeStore) and buffer.size:
        raise ValueError("a collector can be saved between an update and the next collect only, not with data in it")


def masks_in(obs: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> np.ndarray | None:
    """Return the action masks `[rows, choices]` that observations carry, or None."""
    if not mask_size(action_space) or not carries_mask(observation_space):
        return None
    return flat_mask(action_space, obs[ACTION_MASK]) != 0
