"""`BaseCollector`: the loop of all collectors that step environments in this process."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from lockstep.envs import VectorBoundary
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.options.checks import check_flags, check_functions, check_whole, is_number, no_copies
from lockstep.rollout.callbacks import EnvironmentCallback, EnvironmentEvents
from lockstep.rollout.protocols import CollectorTraits, acting_parts
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats
from lockstep.tracking.totals import Totals

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


class BaseCollector(CollectorTraits):
    """Collects an amount of steps or episodes, counts them, and keeps statistics.

    Its `stepper` takes the steps and stores them. Subclasses only choose the stepper.
    """

    def __init__(
        self,
        stepper: Stepper,
        buffer: object,
        *,
        exploration_noise: bool,
        epsilon: float,
        raise_on_nan_in_buffer: bool,
        on_step_hook: Callable[[Any], None] | None,
        on_episode_done_hook: Callable[[int, float, int], None] | None,
        is_seeded: bool,
        whole_episodes: bool,
    ) -> None:
        check_flags(exploration_noise=exploration_noise, raise_on_nan_in_buffer=raise_on_nan_in_buffer)
        check_functions(on_step_hook=on_step_hook, on_episode_done_hook=on_episode_done_hook)
        if not is_number(epsilon) or not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon={epsilon!r} is not allowed; it must be between 0 and 1")
        self.stepper = stepper
        self.exploration_noise = exploration_noise
        self.epsilon = float(epsilon)
        self.raise_on_nan_in_buffer = raise_on_nan_in_buffer
        self.on_step_hook = on_step_hook
        self.on_episode_done_hook = on_episode_done_hook
        self.whole_episodes = whole_episodes
        """Whether a collect by steps ends with the end of an episode in each environment."""
        self.is_seeded = is_seeded
        self.events: EnvironmentEvents | None = None
        """Calls the callbacks that watch the environments; None: there are none."""
        self.reset_stat()
        self.buffer = buffer

    @property
    def policy(self) -> Any:
        """The policy that acts."""
        return self.stepper.policy

    @property
    def env(self) -> Any:
        """The environments, behind their boundary."""
        return self.stepper.env

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self.stepper.num_envs

    @property
    def agents_of_modules(self) -> Mapping[str, list[Any]]:  # type: ignore[override]
        """Agents that each module acts for, by module id; empty for one agent."""
        return self.stepper.agents_of_modules

    @property
    def streams(self) -> RandomStreams:
        """Random streams of episodes, exploration and random actions."""
        return self.stepper.streams

    @property
    def num_resets(self) -> int:
        """Number of resets with the present random streams."""
        return self.stepper.num_resets

    @property
    def observation_space(self) -> Any:
        """Space of the observations as they are stored; by agent where there are several."""
        return self.stepper.observation_space

    @property
    def episodes_cut(self) -> int:
        """Running episodes that the last `set_state` could not continue."""
        return self.stepper.episodes_cut

    @property
    def explores(self) -> bool:
        """Whether actions are drawn, rather than the most likely ones taken."""
        return bool(self.exploration_noise or self.epsilon or self.policy.is_exploring)

    @property
    def buffer(self) -> Any:
        """Where steps are stored.

        It may be replaced between collects. The episodes under way then continue in the new one, without the steps that
        the old one has of them.
        """
        return self.stepper.buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        self.stepper.set_buffer(buffer, self.raise_on_nan_in_buffer)

    def reseed(self, streams: RandomStreams) -> None:
        """Use these random streams from now on, beginning with their first reset."""
        self.stepper.reseed(streams)
        self.is_seeded = True

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback], runner: Any = None) -> None:
        """Call these callbacks for what happens in the environments, in place of those before.

        `runner`: the env runner that they are handed; None: this collector. Raises `ValueError` where the environments
        are on a device, and a callback watches them.
        """
        events = EnvironmentEvents(callbacks, runner or self)
        chosen = None if events.is_empty else events
        self.stepper.set_events(chosen)
        self.events = chosen

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere, seeded from the collector's streams; empty buffer and statistics if asked."""
        self.env.check_open()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()
        self._report_environments()
        self.reset_env()

    def reset_env(self) -> None:
        """Begin new episodes everywhere. Those under way are left: nothing is estimated across this boundary."""
        self.stepper.reset()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer."""
        self.stepper.empty_buffer(keep_statistics)

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

    def _report_environments(self) -> None:
        if self.events is not None:
            self.events.created(self.env.single_envs())

    # -- collecting ---

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> CollectStats:
        """Collect `n_step` steps (rounded up to whole vector steps, with a warning) or `n_episode` whole episodes.

        The first `n_episode` that *start* count, however long they last: new ones begin with this collect, and with the
        next (unless `reset_before_collect=False`). `random=True` draws actions from the action space, of those that a
        mask allows. Rows that only reset an environment are no steps: up to `num_envs - 1` steps more may be taken.
        With `whole_episodes` at least `n_step` steps are collected, and no episode is cut. `then` is for steps on a
        device (`launches_updates`): it is called when they are launched and before the host waits for them, and
        launches the work that reads the buffer.

        Raises `ValueError` unless exactly one of the two is passed, `MalformedBufferError` for NaN in a new row,
        `EnvironmentStepError` where an environment raises.
        """
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        self.stepper.check_amount(n_step, n_episode, random)
        if then is not None and not self.launches_updates:
            raise ValueError(f"then={then!r} is for steps on a device, which a TensorCollector takes; leave it out")
        if n_step is not None and self.whole_episodes and not self.stepper.rests:
            if reset_before_collect is False:
                raise ValueError("reset_before_collect=False: whole episodes begin with the collect; leave it out")
            return self._collect_rounds(amount, random)
        if n_step is not None and self.stepper.rounds_up and amount % self.num_envs:
            warnings.warn(
                f"{amount} steps for each collect (a collector's n_step, a trainer's step_per_collect) are no multiple "
                f"of the {self.num_envs} environments: {-(-amount // self.num_envs) * self.num_envs} are collected",
                stacklevel=2,
            )
        self.env.check_open()
        if reset_before_collect is None:
            reset_before_collect = n_episode is not None or self.stepper.episodes.left_open
        return self._collect(n_episode, amount, random, reset_before_collect, then=then)

    def collect_vector_steps(self, number: int, *, random: bool = False, renew: bool = False) -> CollectStats:
        """Take exactly `number` vector steps, even where an episode is still under way or a row only resets.

        `renew`: begin new episodes first. Raises as `collect`, and `ValueError` where environments are not stepped
        together.
        """
        if not self.stepper.has_vector_steps:
            raise ValueError(f"{type(self).__name__} does not step its environments together: use collect(n_step=...)")
        self.stepper.check_amount(number * self.num_envs, None, random)
        self.env.check_open()
        renew = renew or self.stepper.episodes.left_open
        return self._collect(None, number * self.num_envs, random, renew, counts_resets=True)

    def _collect_rounds(self, n_step: int, random: bool) -> CollectStats:
        """Collect whole episodes until there are `n_step` steps: one of each environment, then another of each.

        All environments are stepped together. Those that are done wait for the others, and what they do meanwhile does
        not count.
        """
        first = self.stepper.num_rows
        totals = Totals()
        num_steps = 0
        try:
            while num_steps < n_step:
                self.env.check_open()
                stats = self._collect(self.num_envs, self.num_envs, random, renew=True)
                totals.add_collect(stats)
                num_steps += stats.n_collected_steps
        except BaseException:
            self.stepper.drop_after(first)
            raise
        return totals.collect_stats()

    def _collect(
        self,
        n_episode: int | None,
        amount: int,
        random: bool,
        renew: bool,
        *,
        counts_resets: bool = False,
        then: Callable[[], None] | None = None,
    ) -> CollectStats:
        """Collect `amount` steps or `n_episode` episodes.

        Args:
            n_episode: number of episodes; None: the amount decides.
            amount: number of steps.
            random: whether actions are drawn from the action space.
            renew: whether new episodes begin first.
            counts_resets: whether rows that only reset an environment are part of the amount.
            then: called before the host waits for steps on a device.
        """
        stepper = self.stepper
        episodes = stepper.episodes
        if renew or not episodes.is_begun:
            self.reset(reset_buffer=False, reset_stats=False)
        started, restarts = time.perf_counter(), getattr(self.env, "num_restarts", 0)
        explores = self.explores
        epsilon = epsilon_by_module(acting_parts(self.policy), self.epsilon, random) if random or explores else {}
        episodes.begin_collect(self.on_episode_done_hook)
        self._report_environments()
        stepper.begin_collect(StepMode(random, explores, self.epsilon, self.raise_on_nan_in_buffer, self.on_step_hook))
        if self.events is not None:
            self.events.begin_collect(stepper.running_episodes())
        try:
            if n_episode is not None:
                self._collect_episodes(n_episode)
            elif counts_resets:
                self._collect_vector_steps(amount)
            elif self.whole_episodes and stepper.rests:
                self._collect_shares(amount)
            else:
                self._collect_steps(amount)
            if then is not None:
                then()
            of_agents = stepper.end_collect()
            logged: dict[str, Any] = {} if self.events is None else self.events.end_collect()
        except BaseException:
            episodes.is_begun = False
            stepper.abandon_collect()
            raise
        episodes.left_open = n_episode is not None
        seconds = stepper.seconds_since(started)
        returns, lens = stepper.ended_episodes()
        self.collect_step += episodes.num_steps
        self.collect_episode += len(returns)
        self.collect_time += seconds
        return CollectStats(
            len(returns),
            episodes.num_steps,
            seconds,
            stepper.env_time,
            stepper.act_time,
            returns,
            lens,
            getattr(self.env, "num_restarts", 0) - restarts,
            epsilon=epsilon,
            **of_agents,
            **logged,
        )

    def _collect_steps(self, n_step: int) -> None:
        episodes = self.stepper.episodes
        while episodes.num_steps < n_step:  # rows that only reset an environment are no steps
            episodes.num_steps += self.stepper.run(n_step - episodes.num_steps)

    def _collect_vector_steps(self, amount: int) -> None:
        episodes = self.stepper.episodes
        while (left := amount - episodes.vector_steps * self.num_envs) > 0:
            episodes.num_steps += self.stepper.run(left)

    def _collect_episodes(self, n_episode: int) -> None:
        self.stepper.episodes.to_start = max(0, n_episode - self.num_envs)
        self._collect_counting(np.arange(self.num_envs) < n_episode)

    def _collect_shares(self, n_step: int) -> None:
        """Collect whole episodes of each environment until it has taken its share of the steps."""
        episodes = self.stepper.episodes
        episodes.share = -(-n_step // self.num_envs)
        episodes.taken[:] = 0
        self._collect_counting(np.ones(self.num_envs, bool))
        episodes.share = 0

    def _collect_counting(self, counting: np.ndarray) -> None:
        """Collect until no environment has an episode under way that counts; `counting` has those that begin with."""
        episodes = self.stepper.episodes
        episodes.counting = counting
        has_warned = False
        while counting.any():
            episodes.num_steps += self.stepper.run(CHUNK * self.num_envs)
            longest = int(episodes.lengths[counting].max(initial=0))
            if longest > NEVER_ENDS:
                raise RuntimeError(
                    f"an episode has not ended in {longest} steps, and {NEVER_ENDS} are the limit; {LIMIT_THEM}"
                )
            if longest > MAY_NEVER_END and not has_warned:
                has_warned = True
                warn_of_long_episode(longest)
        episodes.counting = None

    # -- state ---

    @property
    def is_begun(self) -> bool:
        """Whether there are episodes under way that the next collect continues."""
        return self.stepper.episodes.is_begun

    def get_state(self) -> dict[str, Any]:
        """Return environments (None where they cannot tell their state), episodes, random streams and counters.

        `ValueError` while there is data to be learned from.
        """
        check_no_data(self.buffer)
        return {
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            **({} if self.events is None else {"events": self.events.get_state()}),
            **self.stepper.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes (a boundary).

        `ValueError` for a state of other environments: what was collected stays, episodes under way end.
        """
        self.stepper.set_state(state)
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if self.events is not None and "events" in state:
            self.events.set_state(state["events"])


def makes_environments(given: object) -> bool:
    """Return whether environments have to be made of what a collector was given: an id, a class or a function."""
    return isinstance(given, str | EnvSpec) or callable(given)


@contextmanager
def closed_if_refused(given: object, env: VectorBoundary | AgentEnvs) -> Iterator[None]:
    """Close environments where the collector that made them is refused: each may be in a process of its own.

    Args:
        given: what the caller passed. Finished environments stay open; they are the caller's.
        env: the environments, behind their boundary.
    """
    try:
        yield
    except BaseException:
        if makes_environments(given):
            env.close()
        raise


def streams_of(seed: int | None, streams: RandomStreams | None) -> RandomStreams:
    """Return `streams`, those of `seed`, or random ones. `ValueError` for both."""
    if seed is not None and streams is not None:
        raise ValueError(f"seed={seed} and streams are not allowed together; the streams have a seed of their own")
    if streams is not None:
        return streams
    return RandomStreams(secrets.randbits(63) if seed is None else seed)


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
    if buffer is not None and not buffer.is_sampled and buffer.size:
        raise ValueError("a collector can be saved between an update and the next collect only, not with data in it")
