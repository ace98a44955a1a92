"""The collection loop shared by all collectors that step environments in this process: `BaseCollector`."""

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
from lockstep.rollout.protocols import CollectorTraits, Guide, acting_parts
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper
from lockstep.state.streams import RandomStreams
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.statistics import CollectStats
from lockstep.tracking.totals import Totals

WARN_EPISODE_STEPS = 50_000
"""Episode length in steps from which a collect of whole episodes warns that the episode may never end."""
MAX_EPISODE_STEPS = 1_000_000
"""Episode length in steps from which a collect of whole episodes raises `RuntimeError`."""
EPISODE_LIMIT_ADVICE = (
    "limit the episodes' length (gymnasium.wrappers.TimeLimit, gymnasium.make(id, max_episode_steps=...); in "
    "evaluation alone: evaluation(max_episode_steps=...))"
)
"""How to limit the length of episodes: the last part of messages about episodes that do not end."""

no_copies_of_collectors = no_copies(
    "environments and random generators",
    "make another one on environments of its own, then other.set_state(collector.get_state())",
)
"""`__reduce__` of collectors: raises the error that explains why a collector cannot be copied or pickled."""


class BaseCollector(CollectorTraits):
    """Base class of collectors: collects a number of steps or episodes, and counts them.

    The collector decides how much to collect and which episodes count. Its `stepper` acts, steps the environments and
    stores the steps. Subclasses choose the stepper, and document the parameters.
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
        """Whether the random streams were passed or have a seed. If not, a trainer replaces them by the policy's."""
        self.events: EnvironmentEvents | None = None
        """Dispatcher to the callbacks that handle events of environments; None without such callbacks."""
        self.reset_stat()
        self.buffer = buffer

    @property
    def policy(self) -> Any:
        """The policy that acts."""
        return self.stepper.policy

    @property
    def env(self) -> Any:
        """The environments, wrapped in their boundary (`VectorBoundary`, `AgentEnvs`, `TensorBoundary`)."""
        return self.stepper.env

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self.stepper.num_envs

    @property
    def agents_of_modules(self) -> Mapping[str, list[Any]]:  # type: ignore[override]
        """Agents of each module, by module id; empty for an environment with a single agent."""
        return self.stepper.agents_of_modules

    @property
    def streams(self) -> RandomStreams:
        """Random streams for the seeds of episodes, for exploration and for random actions."""
        return self.stepper.streams

    @property
    def num_resets(self) -> int:
        """Number of resets since the random streams were set; the seeds of the next reset depend on it."""
        return self.stepper.num_resets

    @property
    def observation_space(self) -> Any:
        """Space of the stored observations; for several agents a dict of spaces by agent."""
        return self.stepper.observation_space

    @property
    def episodes_cut(self) -> int:
        """Number of running episodes that the last `set_state` could not continue."""
        return self.stepper.episodes_cut

    @property
    def explores(self) -> bool:
        """Whether the policy samples its actions; otherwise it takes the most likely ones."""
        return bool(self.exploration_noise or self.epsilon or self.policy.is_exploring)

    @property
    def buffer(self) -> Any:
        """Buffer that steps are stored in.

        It may be replaced between two collects. Running episodes then continue in the new buffer; their earlier steps
        stay in the old one.
        """
        return self.stepper.buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        self.stepper.set_buffer(buffer, self.raise_on_nan_in_buffer)

    def reseed(self, streams: RandomStreams) -> None:
        """Replace the random streams. The next reset takes the first seeds of the new streams."""
        self.stepper.reseed(streams)
        self.is_seeded = True

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback], runner: Any = None) -> None:
        """Replace the callbacks that handle the events of the environments.

        Args:
            callbacks: The callbacks. Those that override no event of an environment are ignored.
            runner: Env runner that is passed to the callbacks. Defaults to this collector.

        Raises:
            ValueError: A callback handles events of environments that step on a device.
        """
        dispatcher = EnvironmentEvents(callbacks, runner or self)
        # Without handlers there is no dispatcher, so that the step loop skips the events with one test for None.
        events = None if dispatcher.is_empty else dispatcher
        self.stepper.set_events(events)
        self.events = events

    def set_guide(self, guide: Guide) -> None:
        """Let another policy take some of the actions in the place of the collector's policy.

        Args:
            guide: The other policy, with the probability that it takes an action.

        Raises:
            ValueError: The environments of several agents, of a device, or of an `AsyncCollector` are stepped.
        """
        self.stepper.set_guide(guide)

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes in all environments, seeded from the collector's random streams.

        Args:
            reset_buffer: Whether the buffer is emptied first.
            reset_stats: Whether the counters are set to zero first.
        """
        self.env.check_open()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()
        self._report_environments()
        self.reset_env()

    def reset_env(self) -> None:
        """Begin new episodes in all environments, and keep the stored steps.

        Running episodes are cut: the learner treats them as truncated at their last stored row, and no return reaches
        across the cut.
        """
        self.stepper.reset()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer.

        `keep_statistics`: whether the returns and lengths of running episodes, as a replay buffer counts them,
        continue.
        """
        self.stepper.empty_buffer(keep_statistics)

    def reset_stat(self) -> None:
        """Set the counters of steps, episodes and seconds to zero, and discard what callbacks have logged."""
        self.collect_step = 0
        """Number of steps since the last `reset_stat`."""
        self.collect_episode = 0
        """Number of ended episodes since the last `reset_stat`."""
        self.collect_time = 0.0
        """Seconds of all collects since the last `reset_stat`."""
        if self.events is not None:
            self.events.forget()

    def close(self) -> None:
        """Close the environments. Later collects and resets raise `RuntimeError`; a second call does nothing."""
        self.env.close()

    __reduce__ = no_copies_of_collectors

    def _report_environments(self) -> None:
        """Notify the callbacks of the environments, once."""
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
        """Collect `n_step` steps or `n_episode` whole episodes, store them, and return the statistics of the collect.

        Steps are rounded up to whole vector steps, with a warning. With `whole_episodes` at least `n_step` steps are
        collected and no episode is cut. With the autoreset mode NEXT_STEP, rows that only reset an environment are not
        steps. Vector steps are taken until there are `n_step` other rows, so up to `num_envs - 1` more are collected.

        The first `n_episode` episodes that *start* are collected, however long they last. (The first that *end* would
        favour short ones.) All environments are reset first. They are reset again before the next collect, unless that
        is called with `reset_before_collect=False`.

        Args:
            n_step: Number of steps over all environments.
            n_episode: Number of episodes over all environments.
            random: Whether actions are drawn uniformly from the action space, respecting action masks.
            reset_before_collect: Whether new episodes begin first. Defaults to True for episodes, and for steps
                after a collect of episodes.
            then: Function that launches work on the collected steps, for environments on a device
                (`launches_updates`). It is called after the steps are launched and before the host waits for them.

        Raises:
            ValueError: Not exactly one of `n_step` and `n_episode` is passed, or the stepper cannot collect that
                amount.
            MalformedBufferError: A new row has a value that is not finite.
            EnvironmentStepError: An environment raises.
        """
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        self.stepper.check_amount(n_step, n_episode, random)
        if then is not None and not self.launches_updates:
            raise ValueError(f"then={then!r} is for steps on a device, which a TensorCollector takes; leave it out")

        if n_step is not None and self.whole_episodes and not self.stepper.steps_counting_envs_only:
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
            # A collect by episodes leaves episodes running whose first steps were not stored. They cannot be continued.
            reset_before_collect = n_episode is not None or self.stepper.episodes.left_open
        return self._collect(n_episode, amount, random, reset_before_collect, then=then)

    def collect_vector_steps(self, number: int, *, random: bool = False, renew: bool = False) -> CollectStats:
        """Take exactly `number` vector steps, and return the statistics of the collect.

        Unlike in `collect`, rows that only reset an environment are part of the amount: collectors that make the same
        calls stay at the same vector step.

        Args:
            number: Number of vector steps.
            random: Whether actions are drawn uniformly from the action space.
            renew: Whether new episodes begin first.

        Raises:
            ValueError: The stepper does not step all environments together.
            MalformedBufferError, EnvironmentStepError: As `collect`.
        """
        if not self.stepper.has_vector_steps:
            raise ValueError(f"{type(self).__name__} does not step its environments together: use collect(n_step=...)")
        self.stepper.check_amount(number * self.num_envs, None, random)
        self.env.check_open()
        renew = renew or self.stepper.episodes.left_open
        return self._collect(None, number * self.num_envs, random, renew, counts_resets=True)

    def _collect_rounds(self, n_step: int, random: bool) -> CollectStats:
        """Collect rounds of whole episodes, one episode of each environment, until there are `n_step` steps.

        All environments of a vector are stepped together. An environment whose episode has ended is stepped until the
        longest episode of the round ends, and these steps are not stored.
        """
        num_rows_before = self.stepper.num_rows
        totals = Totals()
        num_steps = 0
        try:
            while num_steps < n_step:
                self.env.check_open()
                # One episode in each environment. The amount of steps is not used in a collect by episodes.
                stats = self._collect(self.num_envs, 0, random, renew=True)
                totals.add_collect(stats)
                num_steps += stats.n_collected_steps
        except BaseException:
            # `_collect` has dropped the rows of its own round; a failed collect must not leave the earlier rounds
            # either. This includes KeyboardInterrupt: in a notebook the next call continues with the same buffer.
            self.stepper.drop_after(num_rows_before)
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
        """Collect `amount` steps or `n_episode` episodes, and return the statistics of the collect.

        Args:
            n_episode: Number of episodes; None to collect `amount` steps.
            amount: Number of steps; not used if `n_episode` is passed.
            random: Whether actions are drawn uniformly from the action space.
            renew: Whether new episodes begin first.
            counts_resets: Whether rows that only reset an environment are part of the amount.
            then: Function that is called before the host waits for steps on a device.
        """
        stepper = self.stepper
        episodes = stepper.episodes
        if renew or not episodes.is_begun:
            self.reset(reset_buffer=False, reset_stats=False)

        started = time.perf_counter()
        num_restarts_before = getattr(self.env, "num_restarts", 0)
        explores = self.explores
        # Before the steps: the schedules of epsilon go by the number of steps at the beginning of the collect.
        epsilon: dict[str, float] = {}
        if random or explores:
            epsilon = epsilon_by_module(acting_parts(self.policy), self.epsilon, random)

        episodes.begin_collect(self.on_episode_done_hook)
        self._report_environments()
        stepper.begin_collect(StepMode(random, explores, self.epsilon, self.raise_on_nan_in_buffer, self.on_step_hook))
        if self.events is not None:
            self.events.begin_collect(stepper.running_episodes())

        try:
            if n_episode is not None:
                # `collect(n_episode=)`, and each round of `_collect_rounds`.
                self._collect_episodes(n_episode)
            elif counts_resets:
                # `collect_vector_steps`.
                self._collect_vector_steps(amount)
            elif self.whole_episodes and stepper.steps_counting_envs_only:
                # `collect(n_step=)` of whole episodes, if environments can wait while others finish.
                self._collect_shares(amount)
            else:
                # `collect(n_step=)`.
                self._collect_steps(amount)

            # On a device the steps are only launched so far, and `end_collect` waits for them. `then` launches the
            # update in between, so that the device goes from the steps to the update without waiting for the host.
            if then is not None:
                then()
            agent_statistics = stepper.end_collect()
            logged = self._end_metrics(stepper.take_log())
        except BaseException:
            # A learner must not train on a part of a collect, whose last episodes have no end. The environments may be
            # in the middle of a step, so the next collect resets them. This includes KeyboardInterrupt: in a notebook
            # the next call continues with the same collector.
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
            n_collected_episodes=len(returns),
            n_collected_steps=episodes.num_steps,
            collect_time=seconds,
            env_time=stepper.env_time,
            act_time=stepper.act_time,
            returns=returns,
            lens=lens,
            env_restarts=getattr(self.env, "num_restarts", 0) - num_restarts_before,
            epsilon=epsilon,
            **agent_statistics,
            **logged,
        )

    def _end_metrics(self, log: Mapping[str, tuple[float, int]]) -> dict[str, Any]:
        """Return the metrics of a collect, as arguments of `CollectStats`.

        They are the values that callbacks have logged, and those of the environments (see `Stepper.take_log`).
        """
        if self.events is None and not log:
            return {}
        metrics = Metrics() if self.events is None else self.events.metrics
        for name, (mean, number) in log.items():
            # rsl_rl's names may begin with a slash.
            metrics.log_value(name.strip("/"), mean, weight=number)
        if self.events is None:
            return metrics.statistics([metrics.take()])
        return self.events.end_collect()

    def _collect_steps(self, n_step: int) -> None:
        """Run the stepper until `n_step` steps are collected.

        One run may not be enough: with the autoreset mode NEXT_STEP some rows only reset an environment, and these are
        not steps.
        """
        episodes = self.stepper.episodes
        while episodes.num_steps < n_step:
            episodes.num_steps += self.stepper.run(n_step - episodes.num_steps)

    def _collect_vector_steps(self, amount: int) -> None:
        """Run the stepper until `amount` rows are collected, including rows that only reset an environment."""
        episodes = self.stepper.episodes
        while (num_rows_left := amount - episodes.vector_steps * self.num_envs) > 0:
            episodes.num_steps += self.stepper.run(num_rows_left)

    def _collect_episodes(self, n_episode: int) -> None:
        """Run the stepper until the first `n_episode` episodes that start have ended.

        With fewer episodes than environments only the first environments count. With more, an environment whose
        episode ends takes the next of the `num_to_start` episodes.
        """
        self.stepper.episodes.num_to_start = max(0, n_episode - self.num_envs)
        self._collect_counting(np.arange(self.num_envs) < n_episode)

    def _collect_shares(self, n_step: int) -> None:
        """Collect whole episodes of each environment until it has taken its share of `n_step`."""
        episodes = self.stepper.episodes
        episodes.min_steps = -(-n_step // self.num_envs)
        episodes.steps_taken[:] = 0
        self._collect_counting(np.ones(self.num_envs, bool))
        episodes.min_steps = 0

    def _collect_counting(self, counting: np.ndarray) -> None:
        """Run the stepper until no environment has a running episode that counts.

        Args:
            counting: `[B]` bool, environments whose first episode counts. `RunningEpisodes.end` updates it in place.
        """
        episodes = self.stepper.episodes
        episodes.counting = counting
        has_warned = False
        while counting.any():
            episodes.num_steps += self.stepper.run(CHUNK * self.num_envs)

            # An environment without terminal states and time limit would run forever.
            longest = int(episodes.lengths[counting].max(initial=0))
            if longest > MAX_EPISODE_STEPS:
                raise RuntimeError(
                    f"an episode has not ended in {longest} steps, and {MAX_EPISODE_STEPS} are the limit; "
                    f"{EPISODE_LIMIT_ADVICE}"
                )
            if longest > WARN_EPISODE_STEPS and not has_warned:
                has_warned = True
                warn_of_long_episode(longest)
        episodes.counting = None

    # -- state ---

    @property
    def is_begun(self) -> bool:
        """Whether there are running episodes that the next collect continues."""
        return self.stepper.episodes.is_begun

    def get_state(self) -> dict[str, Any]:
        """Return the state of the environments, the running episodes, the random streams and the counters.

        The environments' state is None if they do not support saving it.

        Raises:
            ValueError: The buffer has data that is not learned from yet.
        """
        check_no_data(self.buffer)
        state: dict[str, Any] = {
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
        }
        if self.events is not None:
            state["events"] = self.events.get_state()
        return state | self.stepper.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned.

        Environments whose state was not saved begin new episodes with the next collect; `episodes_cut` counts the
        episodes that could not be continued.

        Raises:
            ValueError: The state is of other environments. Collected steps stay, and running episodes are cut.
        """
        self.stepper.set_state(state)
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if self.events is not None and "events" in state:
            self.events.set_state(state["events"])


def makes_environments(env: object) -> bool:
    """Return whether a collector has to construct its environments from this argument: an id, a class or a function."""
    return isinstance(env, str | EnvSpec) or callable(env)


@contextmanager
def close_env_on_error(source: object, env: VectorBoundary | AgentEnvs) -> Iterator[None]:
    """Close the environments if the construction of their collector fails.

    Each environment may have a process, which nobody else would end.

    Args:
        source: The caller's `env` argument. Environments that the caller has constructed stay open.
        env: The environments, wrapped in their boundary.
    """
    try:
        yield
    except BaseException:
        # This includes KeyboardInterrupt: its traceback would keep the environments and their processes alive.
        if makes_environments(source):
            env.close()
        raise


def resolve_streams(seed: int | None, streams: RandomStreams | None) -> RandomStreams:
    """Return `streams`, or new streams from `seed`; without either, streams with a random seed.

    Raises `ValueError` if both are passed.
    """
    if seed is not None and streams is not None:
        raise ValueError(f"seed={seed} and streams are not allowed together; the streams have a seed of their own")
    if streams is not None:
        return streams
    return RandomStreams(secrets.randbits(63) if seed is None else seed)


def epsilon_by_module(parts: Mapping[str, Any], collector_epsilon: float, random: bool) -> dict[str, float]:
    """Return the probability of a random action in a collect that begins now, by module.

    Args:
        parts: Acting parts by module id. Parts that do not explore epsilon-greedily are left out of the result.
        collector_epsilon: The collector's `epsilon`, which replaces the schedules of the parts unless it is 0.
        random: Whether all actions are random.
    """
    epsilon: dict[str, float] = {}
    for module_id, part in parts.items():
        exploration = getattr(part, "exploration", None)
        if exploration is None or not exploration.is_epsilon_greedy:
            continue
        if random:
            epsilon[module_id] = 1.0
        else:
            epsilon[module_id] = collector_epsilon or part.exploration_level
    return epsilon


def warn_of_long_episode(steps: int) -> None:
    """Warn that an episode has not ended in `steps` steps, in a collect that waits for its end."""
    warnings.warn(
        f"an episode has not ended in {steps:,} steps, and a collect of whole episodes waits for its end, up to "
        f"{MAX_EPISODE_STEPS:,} steps; if episodes never end, {EPISODE_LIMIT_ADVICE}",
        RuntimeWarning,
        stacklevel=2,
    )


def exactly_one(**amounts: int | None) -> int:
    """Return the one amount that is not None.

    Raises `ValueError` unless exactly one of the two is passed and it is a whole number above 0.
    """
    (first_name, first), (second_name, second) = amounts.items()
    if (first is None) == (second is None):
        raise ValueError(
            f"give exactly one of {first_name} and {second_name}, not {first_name}={first!r} and "
            f"{second_name}={second!r}"
        )
    if second is None:
        return check_whole(first_name, first, 1)
    return check_whole(second_name, second, 1)


def check_no_data(buffer: Any) -> None:
    """Raise `ValueError` if a collector's buffer has data that is not learned from yet.

    A checkpoint between a collect and its update would lose the collected steps: rollouts are not saved. A replay
    buffer saves its contents.
    """
    if buffer is not None and not buffer.is_sampled and buffer.size:
        raise ValueError("a collector can be saved between an update and the next collect only, not with data in it")
