"""`GroupCollector`, `AsyncGroupCollector`, `EvaluationCollector`: env runners as a collector, for a trainer."""

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
    """Collects with all runners of a group, in step, as a `Collector` of all their environments would, or (of several
    agents) a `MultiAgentCollector`.

    Each collect sends the policy's weights with the request, waits for the fragments, and writes them into `buffer`,
    the environments of the runners side by side. The buffer's owner empties it; without one only returns and lengths
    are kept. Callbacks are called in the runners' processes, each of which has instances of its own; `metrics` reports
    what all of them log.

    This is the one collector over env runners. Its `schedule` decides which fragments make a collect, and its `purpose`
    what becomes of them. Subclasses only choose the two.
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
        """Construct the collector of a schedule and a purpose."""
        self.policy = policy
        self.schedule = schedule
        self.sink = sink
        self.group = schedule.group
        envs = self.group.envs
        backend = envs.backend if self.group.is_local else f"{envs.backend} in {len(self.group)} env runners"
        self.env = replace(envs, num_envs=self.group.num_envs, backend=backend)
        self.observation_space = envs.stacked_observation_space
        self.agents_of_modules = sink.agents_of_modules
        self.episodes_cut = 0
        """running episodes that the last `set_state` could not continue"""
        self.buffer = buffer
        self.reset_stat()

    @property
    def num_envs(self) -> int:
        """Environments side by side in one collect."""
        return self.schedule.num_envs

    @property
    def buffer(self) -> Buffer | None:
        """Where steps are stored: a `RolloutStore`, or a `ReplayBuffer` with one for each environment; of several
        agents an `EpisodeStore` or a `MultiAgentReplayBuffer`. May be replaced between collects, as a collector's.
        """
        return self.sink.buffer

    @buffer.setter
    def buffer(self, buffer: Buffer | None) -> None:
        self.sink.set_buffer(buffer)

    # -- collecting ---

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps (rounded up to whole vector steps of all environments) or `n_episode` episodes, of
        which each runner plays its share; the collect after that begins new episodes.

        Raises as `EnvRunnerGroup.sample`; no row is left behind then, and the next collect begins new episodes.
        """
        self.schedule.check_amount(n_step, n_episode, random)
        started = time.perf_counter()
        version = self.policy.weights_seq_no
        self.schedule.publish(self.policy)
        sample = partial(self.schedule.fragments, random=random)
        collected = self.sink.collect(sample, n_step, n_episode, version)
        return self._statistics(collected, time.perf_counter() - started)

    def _statistics(self, collected: CollectResult, seconds: float) -> CollectStats:
        """Add episodes and steps to the counters; return the statistics of all runners.

        Seconds in environments and acting are means over the runners, which sample at the same time; `seconds` are
        those of the whole collect.
        """
        parts = collected.parts
        epsilon: dict[str, float] = {}
        for part in parts:
            epsilon.update(part.epsilon)
        stats = CollectStats(
            len(collected.episodes),
            collected.num_steps,
            seconds,
            sum(part.env_time for part in parts) / collected.num_parallel,
            sum(part.act_time for part in parts) / collected.num_parallel,
            *returns_and_lens(collected.episodes),
            sum(part.env_restarts for part in parts),
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
        """Return steps by what became of them, where the runners sample while the policy learns, and the runners'
        numbers (`EnvRunnerGroup.get_stats`)."""
        return {**self.schedule.get_stats(), **self.group.get_stats()}

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere with the next collect; empty buffer and counters if asked. Fragments that wait
        or are under way are dropped, and counted."""
        self.schedule.drop_all()
        self.reset_env()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()

    def reset_env(self) -> None:
        """Begin new episodes everywhere: with the next collect, in an evaluation now. Nothing is estimated across this
        boundary."""
        self.sink.renew()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer."""
        self.sink.reset_buffer(keep_statistics)

    def reset_stat(self) -> None:
        """Set the counters to zero."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0
        self.metrics = Metrics()

    def close(self) -> None:
        """End the runners and their environments. Collects and resets raise `RuntimeError` from then on."""
        self.group.shutdown()

    __reduce__ = no_copies_of_collectors

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the runners' states (environments as far as they can tell theirs) and counters. Waits for fragments
        under way, and returns those that wait too.

        `ValueError` while there is data to be learned from.
        """
        of_buffer = self.sink.get_state()
        of_schedule = self.schedule.get_state()  # before the group's: the runners finish what they were asked for
        return {
            "group": self.group.get_state(),
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            "buffer": of_buffer,
            "metrics": self.metrics.get_state(),
            **of_schedule,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; with another number of runners, new episodes begin (a boundary)."""
        if "group" not in state:
            raise ValueError("the state is of a collector in one process; resume with env_runners.num_env_runners=0")
        runners = [saved["collector"] for saved in state["group"]["runners"]]
        lost = runners if len(runners) != len(self.group) else [saved for saved in runners if saved["env"] is None]
        self.episodes_cut = sum(int(np.count_nonzero(saved["lengths"])) for saved in lost)
        self.group.set_state(state["group"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if "metrics" in state:
            self.metrics.set_state(state["metrics"])
        self.sink.set_state(state["buffer"])
        self.schedule.set_state(state, self.sink.restore_fragments(state.get("waiting", ())))

    # -- what the runners have from their configuration ---

    def reseed(self, streams: RandomStreams) -> None:
        """Raise `ValueError`: env runners have the random streams of their configuration."""
        raise ValueError("streams do not reach env runners, which have those of their configuration; leave them out")

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback]) -> None:
        """Raise `ValueError` for callbacks: env runners make those of their configuration."""
        if callbacks:
            raise ValueError(
                f"callbacks={callbacks!r} do not reach env runners, which cannot be handed an object; give the class: "
                "config.callbacks(...)"
            )

    # -- modules that come and go ---

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""
        self.sink.fit_replay(agents)

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin there with the next steps. Fragments
        of such episodes that wait are dropped, and counted."""
        self.schedule.drop_episodes_of(module_id)
        self.group.foreach_env_runner(MultiAgentEnvRunner.leave_episodes_of, module_id)


class EvaluationCollector(GroupCollector):
    """Collects with all runners of a group and stores nothing: returns and lengths, those of one `Collector` of all
    environments to the last bit. See `EvaluationSink`.

    A collect of `n_step` steps is rounded up to whole vector steps of all environments; one of `n_episode` episodes
    begins new ones, and counts the first that start.
    """

    counts_afterwards = True

    def __init__(self, policy: LearningPolicy, group: EnvRunnerGroup) -> None:
        schedule = SynchronousSampling(group)
        self._begin(policy, schedule, EvaluationSink(schedule, checked_agents_of_modules(policy, schedule)), None)


class AsyncGroupCollector(GroupCollector):
    """Collects from runners that continue to sample while the policy learns.

    `fragment_length` vector steps make a fragment of one runner, `fragments_per_batch` of them the rollout of one
    `collect`, side by side: its `num_envs` is that many times the environments of a runner. A rollout always has
    `steps_per_collect` steps: another `n_step`, `n_episode` and `random` are refused with `ValueError`. Each collect
    publishes the policy's new weights, which each runner takes with its next request.

    `fixed_lag`: the rollout of update u is acted by the weights of update u - `max_lag` exactly, and the run is the
    same, to the last bit, in every repetition and for every number of runners (see `FixedLag`). `max_lag=0`: collecting
    and learning take turns, and the run is the synchronous one. Without `fixed_lag` the rollout is whichever fragments
    are ready first, none of which is more than `max_lag` updates behind the policy (see `FirstReady`).

    Fragments of older weights carry the log-probabilities of the policy that acted (`RolloutStore.action_logp`, of
    several agents the extra model output `action_logp`), so that V-trace can correct for it. An action that waits for
    its agent's next observation comes with the fragment that has it, and may be older. For runners that are lost see
    `EnvRunnerGroup`. Where an environment raises, fragments that wait are kept.
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
        chosen = FixedLag if fixed_lag or max_lag == 0 else FirstReady
        schedule = chosen(group, fragment_length, fragments_per_batch, max_lag)
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
        """Number of updates by which the weights that acted are behind the policy, at most or (`fixed_lag`) always."""
        return self.schedule.max_lag

    @property
    def fixed_lag(self) -> bool:
        """Whether each rollout is acted by the weights of `max_lag` updates before."""
        return self.schedule.fixed_lag

    @property
    def envs_per_runner(self) -> int:
        """Number of environments of one runner."""
        return self.schedule.envs_per_runner

    @property
    def steps_per_collect(self) -> int:
        """Number of steps in one rollout."""
        return self.schedule.steps_per_collect
