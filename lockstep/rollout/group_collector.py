"""Collectors over env runners, for trainers: `GroupCollector`, `AsyncGroupCollector` and `EvaluationCollector`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.rollout.base_collector import no_copies_of_collectors
from lockstep.rollout.callbacks import EnvironmentCallback
from lockstep.rollout.env_runner import MultiAgentEnvRunner
from lockstep.rollout.evaluation_sink import EvaluationSink
from lockstep.rollout.fragment_sinks import CollectResult, FragmentSink, checked_agents_of_modules
from lockstep.rollout.protocols import CollectorTraits, LearningPolicy
from lockstep.rollout.replay_writer import Buffer
from lockstep.rollout.runner_group import EnvRunnerGroup
from lockstep.rollout.schedules import FirstReady, FixedLag, SampleSchedule, SynchronousSampling
from lockstep.rollout.storage_sinks import storage_sink
from lockstep.state.streams import RandomStreams
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.statistics import CollectStats, returns_and_lens


class GroupCollector(CollectorTraits):
    """Collector whose steps are taken by the runners of a group, all at the same time.

    It collects what one `Collector` of all the runners' environments would collect; for several agents, what one
    `MultiAgentCollector` would. Each collect sends the policy's weights with the requests, waits for the fragments, and
    writes them into `buffer`, the environments of the runners side by side. Without a buffer only returns and lengths
    are kept. Callbacks are called in the runners' processes, each of which has its own instances; `metrics` reports the
    values that all of them log.

    This is the base class of the collectors over env runners. Its `schedule` decides which fragments make a collect,
    and its `sink` stores or counts them. Subclasses only choose the two.

    Args:
        policy: The policy, whose weights the runners act with.
        group: The env runners.
        buffer: Buffer that steps are stored in.
    """

    in_runners = True
    takes_state_of_one = False
    is_seeded = True

    def __init__(
        self,
        policy: LearningPolicy,
        group: EnvRunnerGroup,
        buffer: Buffer | None = None,
    ) -> None:
        schedule = SynchronousSampling(group)
        self._begin(policy, schedule, storage_sink(policy, schedule), buffer)

    def _begin(
        self, policy: LearningPolicy, schedule: SampleSchedule, sink: FragmentSink, buffer: Buffer | None
    ) -> None:
        """Construct the collector from a schedule and a sink."""
        self.policy = policy
        self.schedule = schedule
        self.sink = sink
        self.group = schedule.group
        envs = self.group.envs
        backend = envs.backend if self.group.is_local else f"{envs.backend} in {len(self.group)} env runners"
        self.env = replace(envs, num_envs=self.group.num_envs, backend=backend)
        self.observation_space = envs.stored_observation_space
        self.agents_of_modules = sink.agents_of_modules
        self.episodes_cut = 0
        """Number of running episodes that the last `set_state` could not continue."""
        self.buffer = buffer
        self.reset_stat()

    @property
    def num_envs(self) -> int:
        """Number of environments side by side in one collect."""
        return self.schedule.num_envs

    @property
    def buffer(self) -> Buffer | None:
        """Buffer that steps are stored in: a `RolloutStore`, or a `ReplayBuffer` with one sub-buffer for each
        environment; for several agents an `EpisodeStore` or a `MultiAgentReplayBuffer`. It may be replaced between two
        collects.
        """
        return self.sink.buffer

    @buffer.setter
    def buffer(self, buffer: Buffer | None) -> None:
        self.sink.set_buffer(buffer)

    # -- collecting ---

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps or `n_episode` episodes, store them, and return the statistics of the collect.

        If an exception is raised, no step of the collect is stored, and the next collect begins new episodes.

        Args:
            n_step: Number of steps, rounded up to whole vector steps of all environments.
            n_episode: Number of episodes, of which each runner collects its share. The next collect begins new
                episodes.
            random: Whether actions are drawn uniformly from the action space.

        Raises:
            ValueError, EnvRunnerError, EnvironmentStepError, MalformedBufferError: As `EnvRunnerGroup.sample`.
        """
        self.schedule.check_amount(n_step, n_episode, random)
        started = time.perf_counter()
        # Read before sampling. Steps of this version were acted by the weights that the next update starts from.
        version = self.policy.weights_seq_no
        self.schedule.publish(self.policy)
        sample = partial(self.schedule.fragments, random=random)
        collected = self.sink.collect(sample, n_step, n_episode, version)
        return self._statistics(collected, time.perf_counter() - started)

    def _statistics(self, collected: CollectResult, seconds: float) -> CollectStats:
        """Add the episodes and steps to the counters, and return the statistics of the collect.

        Args:
            collected: The episodes and steps.
            seconds: Duration of the collect.
        """
        parts = collected.parts
        epsilon: dict[str, float] = {}
        for part in parts:
            epsilon.update(part.epsilon)
        returns, lens = returns_and_lens(collected.episodes)
        stats = CollectStats(
            n_collected_episodes=len(collected.episodes),
            n_collected_steps=collected.num_steps,
            collect_time=seconds,
            # Means over the runners: they sample at the same time, and the sum could exceed the duration.
            env_time=sum(part.env_time for part in parts) / collected.num_parallel,
            act_time=sum(part.act_time for part in parts) / collected.num_parallel,
            returns=returns,
            lens=lens,
            env_restarts=sum(part.env_restarts for part in parts),
            agents=parts[0].agents,
            agent_returns=tuple(collected.agent_returns),
            agent_modules=tuple(collected.agent_modules),
            epsilon=epsilon,
            **self.metrics.statistics([part.logged for part in parts if part.logged is not None]),
        )
        self.collect_step += stats.n_collected_steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time
        return stats

    def get_stats(self) -> dict[str, int]:
        """Return the numbers of `EnvRunnerGroup.get_stats`; if runners sample while the policy learns, also the numbers
        of sampled, collected, dropped and waiting steps."""
        return {**self.schedule.get_stats(), **self.group.get_stats()}

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes in all environments with the next collect. Requested and waiting fragments are dropped.

        Args:
            reset_buffer: Whether the buffer is emptied.
            reset_stats: Whether the counters are set to zero.
        """
        self.schedule.drop_all()
        self.reset_env()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()

    def reset_env(self) -> None:
        """Begin new episodes in all environments: with the next collect, or at once in an evaluation."""
        self.sink.renew()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer. `keep_statistics`: see `BaseCollector.reset_buffer`."""
        self.sink.reset_buffer(keep_statistics)

    def reset_stat(self) -> None:
        """Set the counters of steps, episodes and seconds to zero, and discard what callbacks have logged."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0
        self.metrics = Metrics()

    def close(self) -> None:
        """End the runners and their environments. Later collects and resets raise `RuntimeError`."""
        self.group.shutdown()

    __reduce__ = no_copies_of_collectors

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the states of the runners, the waiting fragments and the counters. Waits for requested fragments.

        Raises:
            ValueError: The buffer has data that is not learned from yet.
        """
        buffer_state = self.sink.get_state()
        # Before the group's state: the schedule waits for the requested fragments, and the runners' states change
        # until then.
        schedule_state = self.schedule.get_state()
        return {
            "group": self.group.get_state(),
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            "buffer": buffer_state,
            "metrics": self.metrics.get_state(),
            **schedule_state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. With another number of runners, new episodes begin instead.

        Raises `ValueError` for the state of a collector in one process.
        """
        if "group" not in state:
            raise ValueError("the state is of a collector in one process; resume with env_runners.num_env_runners=0")
        runner_states = [saved["collector"] for saved in state["group"]["runners"]]
        if len(runner_states) == len(self.group):
            lost = [saved for saved in runner_states if saved["env"] is None]
        else:
            lost = runner_states
        self.episodes_cut = sum(int(np.count_nonzero(saved["lengths"])) for saved in lost)
        self.group.set_state(state["group"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if "metrics" in state:
            self.metrics.set_state(state["metrics"])
        self.sink.set_state(state["buffer"])
        self.schedule.set_state(state, self.sink.restore_fragments(state.get("waiting", ())))

    # -- settings that runners take from their configuration ---

    def reseed(self, streams: RandomStreams) -> None:
        """Raise `ValueError`: env runners derive their random streams from their configuration."""
        raise ValueError("streams do not reach env runners, which have those of their configuration; leave them out")

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback]) -> None:
        """Raise `ValueError` for callbacks: env runners construct the callbacks of their configuration."""
        if callbacks:
            raise ValueError(
                f"callbacks={callbacks!r} do not reach env runners, which cannot be handed an object; give the class: "
                "config.callbacks(...)"
            )

    # -- modules that are added and removed in a run ---

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Give each learning module a replay buffer for its agents; see `CollectorLike.fit_replay`."""
        self.sink.fit_replay(agents)

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts, and begin new ones with the next steps.

        Waiting fragments of such episodes are dropped.
        """
        self.schedule.drop_episodes_of(module_id)
        self.group.foreach_env_runner(MultiAgentEnvRunner.leave_episodes_of, module_id)


class EvaluationCollector(GroupCollector):
    """Collector over env runners for evaluation. It stores nothing, and returns the returns and lengths of episodes.

    They equal bit for bit the results of one `Collector` of all environments; see `EvaluationSink`. A collect of
    `n_step` steps is rounded up to whole vector steps of all environments. A collect of `n_episode` episodes begins new
    episodes, and the first that start count.
    """

    counts_afterwards = True

    def __init__(self, policy: LearningPolicy, group: EnvRunnerGroup) -> None:
        schedule = SynchronousSampling(group)
        self._begin(policy, schedule, EvaluationSink(schedule, checked_agents_of_modules(policy, schedule)), None)


class AsyncGroupCollector(GroupCollector):
    """Collector over env runners that sample while the policy learns.

    A rollout, the result of one `collect`, consists of `fragments_per_batch` fragments side by side, each of
    `fragment_length` vector steps of one runner. So `num_envs` is `fragments_per_batch` times the number of
    environments of a runner. A rollout always has `steps_per_collect` steps: another `n_step`, `n_episode` and `random`
    raise `ValueError`. Each collect publishes the policy's weights, and each runner takes them with its next request.

    Fragments of older weights contain the log-probabilities under the weights that acted
    (`RolloutStore.action_logp`; for several agents the extra model output `action_logp`), so that V-trace, an
    off-policy correction, can correct for the lag. With several agents the last action of an agent may have no next
    observation at the end of a fragment. It is then stored in the next fragment, although older weights chose it.
    `EnvRunnerGroup` describes how lost runners are replaced. If an environment raises, waiting fragments are kept.

    Args:
        policy: The policy, whose weights the runners act with.
        group: The env runners.
        buffer: Buffer that steps are stored in.
        fragment_length: Number of vector steps of a fragment.
        fragments_per_batch: Number of fragments of a rollout.
        max_lag: Largest number of updates by which the weights that acted may be older than the policy's. With 0,
            collecting and learning alternate, and the run equals a synchronous one.
        fixed_lag: Whether the lag is always `max_lag`. The run can then be repeated bit for bit, with any number of
            runners (`FixedLag`). Otherwise a rollout consists of the fragments that are ready first (`FirstReady`).
    """

    may_evaluate = False
    schedule: FixedLag | FirstReady

    def __init__(
        self,
        policy: LearningPolicy,
        group: EnvRunnerGroup,
        buffer: RolloutStore | EpisodeStore | None = None,
        *,
        fragment_length: int,
        fragments_per_batch: int,
        max_lag: int,
        fixed_lag: bool = True,
    ) -> None:
        schedule_class = FixedLag if fixed_lag or max_lag == 0 else FirstReady
        schedule = schedule_class(group, fragment_length, fragments_per_batch, max_lag)
        self._begin(policy, schedule, storage_sink(policy, schedule), buffer)

    @property
    def fragment_length(self) -> int:
        """Number of vector steps in one fragment."""
        return self.schedule.fragment_length

    @property
    def fragments_per_batch(self) -> int:
        """Number of fragments in one rollout."""
        return self.schedule.fragments_per_batch

    @property
    def max_lag(self) -> int:
        """Largest number of updates by which the weights that acted are older than the policy's. With `fixed_lag` the
        lag is always this number."""
        return self.schedule.max_lag

    @property
    def fixed_lag(self) -> bool:
        """Whether each rollout is acted by the weights of exactly `max_lag` updates before."""
        return self.schedule.fixed_lag

    @property
    def envs_per_runner(self) -> int:
        """Number of environments of one runner."""
        return self.schedule.envs_per_runner

    @property
    def steps_per_collect(self) -> int:
        """Number of steps in one rollout."""
        return self.schedule.steps_per_collect
