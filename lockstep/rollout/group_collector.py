"""`GroupCollector`, `AsyncGroupCollector`, `EvaluationCollector`: env runners as a collector, for a trainer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.replay import ReplayBuffer
from lockstep.rollout.agent_stepper import agents_of_modules
from lockstep.rollout.base_collector import (
    LIMIT_THEM,
    MAY_NEVER_END,
    NEVER_ENDS,
    check_no_data,
    exactly_one,
    no_copies_of_collectors,
    warn_of_long_episode,
)
from lockstep.rollout.callbacks import EnvironmentCallback
from lockstep.rollout.env_runner import Ended, MultiAgentEnvRunner, RunnersEnv
from lockstep.rollout.fragment_writers import AgentFragmentWriter, FragmentWriter
from lockstep.rollout.fragments import AgentFragment, Fragment
from lockstep.rollout.protocols import CollectorTraits, LearningPolicy, sole_part
from lockstep.rollout.replay_writer import AgentBuffer
from lockstep.rollout.runner_group import EnvRunnerGroup
from lockstep.rollout.stepper import CHUNK
from lockstep.state.streams import RandomStreams
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.statistics import CollectStats, returns_and_lens

WAIT_S = 1.0
"""seconds of one wait for a fragment"""


class GroupCollector(CollectorTraits):
    """Collects with all runners of a group, in step, as a `Collector` of all their environments would, or (of several
    agents) a `MultiAgentCollector`.

    Each collect sends the policy's weights with the request, waits for the fragments, and writes them into `buffer`,
    the environments of the runners side by side. The buffer's owner empties it; without one only returns and lengths
    are kept. Callbacks are called in the runners' processes, each of which has instances of its own; `metrics` reports
    what all of them log.
    """

    by_runner = True
    """whether rows are written where their runner has its environments, or fragments in the order in which they come"""
    in_runners = True
    takes_state_of_one = False
    is_seeded = True

    def __init__(
        self,
        policy: LearningPolicy,
        group: EnvRunnerGroup,
        buffer: RolloutStore | ReplayBuffer | AgentBuffer | None = None,
    ) -> None:
        self.policy, self.group = policy, group
        envs = group.envs
        backend = envs.backend if group.is_local else f"{envs.backend} in {len(group)} env runners"
        self.env = replace(envs, num_envs=group.num_envs, backend=backend)
        self.observation_space = envs.stacked_observation_space
        self._writer = self._writer_for(envs)
        self.episodes_cut = 0
        """running episodes that the last `set_state` could not continue"""
        self.buffer = buffer
        self.reset_stat()

    def _writer_for(self, envs: RunnersEnv) -> Any:
        """Return what writes into the buffer. `ValueError` where the policy was made for other environments."""
        spaces = envs.observation_space, envs.action_space
        if getattr(self.policy, "is_multi_agent", False):
            self.agents_of_modules = agents_of_modules(self.policy, *spaces)
            return AgentFragmentWriter(self.policy.acting, self.agents_of_modules, spaces, self.group.num_envs)
        part = sole_part(self.policy)
        part.check_spaces(*spaces)
        return FragmentWriter(part, self.num_envs, self.observation_space, spaces[1], by_runner=self.by_runner)

    @property
    def num_envs(self) -> int:
        """Environments of all runners."""
        return self.group.num_envs

    @property
    def buffer(self) -> Any:
        """Where steps are stored: a `RolloutStore`, or a `ReplayBuffer` with one for each environment; of several
        agents an `EpisodeStore` or a `MultiAgentReplayBuffer`. May be replaced between collects, as a collector's.
        """
        return self._writer.buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        self._writer.buffer = buffer

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps (rounded up to whole vector steps of all environments) or `n_episode` episodes, of
        which each runner plays its share; the collect after that begins new episodes.

        Raises as `EnvRunnerGroup.sample`; no row is left behind then, and the next collect begins new episodes.
        """
        started = time.perf_counter()
        self.group.set_weights(self.policy.acting_weights(copy=False))
        fragments = self.group.sample(n_step, n_episode, random=random)
        self._writer.write(fragments, self.policy.weights_seq_no)
        return self._counted(fragments, time.perf_counter() - started)

    def _counted(self, fragments: Sequence[Fragment | AgentFragment], seconds: float) -> CollectStats:
        """Add the fragments to the counters; return the statistics of all runners.

        Episodes come in the order in which they ended. Seconds in environments and acting are means over the runners,
        which go on at the same time; `seconds` in all.
        """
        parts = [fragment.stats for fragment in fragments]
        ended = [episode for part in parts for episode in zip(part.returns, part.lens)]
        of_agents = [returns for part in parts for returns in part.agent_returns]
        modules = [names for part in parts for names in part.agent_modules]
        if all(len(fragment.ended_in_step) == len(fragment.stats.returns) for fragment in fragments):
            order = np.argsort(np.concatenate([fragment.ended_in_step for fragment in fragments]), kind="stable")
            ended = [ended[i] for i in order]
            of_agents, modules = ([each[i] for i in order if each] for each in (of_agents, modules))
        num_steps = sum(part.n_collected_steps for part in parts)
        return self._totals(ended, num_steps, parts, len(parts), seconds, of_agents, modules)

    def _totals(
        self,
        ended: Sequence[tuple[float, int]],
        num_steps: int,
        parts: Sequence[CollectStats],
        at_once: int,
        seconds: float,
        of_agents: Sequence[tuple[float, ...]] = (),
        modules: Sequence[tuple[str, ...]] = (),
    ) -> CollectStats:
        """Add these episodes and steps to the counters; return the statistics. `at_once`: how many of `parts` were
        collected at the same time."""
        epsilon: dict[str, float] = {}
        for part in parts:
            epsilon.update(part.epsilon)
        stats = CollectStats(
            len(ended),
            num_steps,
            seconds,
            sum(part.env_time for part in parts) / at_once,
            sum(part.act_time for part in parts) / at_once,
            *returns_and_lens(ended),
            sum(part.env_restarts for part in parts),
            agents=parts[0].agents,
            agent_returns=tuple(of_agents),
            agent_modules=tuple(modules),
            epsilon=epsilon,
            **self.metrics.statistics([part.logged for part in parts if part.logged is not None]),
        )
        self.collect_step += stats.n_collected_steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time
        return stats

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere with the next collect; empty buffer and counters if asked."""
        self.reset_env()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()

    def reset_env(self) -> None:
        """Begin new episodes everywhere with the next collect; nothing is estimated across this boundary."""
        self.group.renew()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer."""
        self._writer.reset_buffer(keep_statistics)

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

    def get_state(self) -> dict[str, Any]:
        """Return the runners' states (environments as far as they can tell theirs) and counters."""
        check_no_data(self.buffer)
        return {
            "group": self.group.get_state(),
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            "buffer": self._writer.get_state(),
            "metrics": self.metrics.get_state(),
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
        self._writer.set_state(state["buffer"])

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
        """Give each module that learns a replay buffer for these agents; None: for those whose spaces are its own."""
        self._writer.fit_replay(agents)

    def leave_episodes_of(self, module_id: str) -> None:
        """Leave the episodes under way in which this module acts; new ones begin there with the next steps."""
        self.group.foreach_env_runner(MultiAgentEnvRunner.leave_episodes_of, module_id)


class EvaluationCollector(GroupCollector):
    """Collects with all runners of a group and stores nothing: returns and lengths, those of one `Collector` of all
    environments to the last bit.

    Runners play up to 128 vector steps at a time, and which episodes count is decided here, over all environments: the
    first that start, however long they last. So an evaluation may go on for up to 127 vector steps after its end.
    Of several agents only the episodes that count have a seed: the next evaluation begins with those that come then.
    """

    counts_afterwards = True

    @property
    def buffer(self) -> None:
        """None: nothing is stored."""

    @buffer.setter
    def buffer(self, buffer: object) -> None:
        if buffer is not None:
            raise ValueError(f"buffer={buffer!r} is not allowed; env runners of evaluation store nothing")

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps (rounded up to whole vector steps of all environments) or `n_episode` episodes, with
        which new ones begin. Raises as `EnvRunnerGroup.sample`."""
        amount, num_envs = exactly_one(n_step=n_step, n_episode=n_episode), self.num_envs
        started = time.perf_counter()
        self.group.set_weights(self.policy.acting_weights(copy=False))
        if n_episode is not None:
            self.group.renew()
        counting, to_start = np.arange(num_envs) < amount, amount - num_envs
        counted = np.zeros(num_envs, np.int64)
        ended: list[Ended] = []
        played: list[CollectStats] = []
        steps = idle = 0
        has_warned = False
        while counting.any() if n_step is None else steps < amount:
            number = CHUNK if n_step is None else min(CHUNK, -(-(amount - steps) // num_envs))
            parts = self.group.play(number, random=random)
            played += [part.stats for part in parts]
            steps += sum(part.stats.n_collected_steps for part in parts)
            idle += number
            for episode in sorted(episode for part in parts for episode in part.ended):
                b = episode.env
                if n_step is None and not counting[b]:
                    continue
                ended.append(episode)
                counted[b] += 1
                idle = 0
                if to_start <= 0:
                    counting[b] = False
                to_start -= 1
            if n_step is None and idle > NEVER_ENDS:
                raise RuntimeError(f"no episode has ended in {idle} steps of {num_envs} environments; {LIMIT_THEM}")
            if n_step is None and idle > MAY_NEVER_END and not has_warned:
                has_warned = True
                warn_of_long_episode(idle)
        if n_step is None:
            self.group.renew()
            steps = sum(episode.length for episode in ended)
            if self.policy.is_multi_agent:
                self.group.foreach_env_runner(MultiAgentEnvRunner.go_on_from, counted)
        returns = [(episode.episode_return, episode.length) for episode in ended]
        of_agents = [episode.agent_returns for episode in ended if episode.agent_returns]
        modules = [episode.agent_modules for episode in ended if episode.agent_modules]
        seconds = time.perf_counter() - started
        return self._totals(returns, steps, played, len(self.group), seconds, of_agents, modules)

    def reset_env(self) -> None:
        """Begin new episodes everywhere now, as a `Collector` does: the next ones have other seeds."""
        self.group.reset()


class AsyncGroupCollector(GroupCollector):
    """Collects from runners that go on while the policy learns.

    `fragment_length` vector steps make a fragment of one runner, `fragments_per_batch` of them the rollout of one
    `collect`, side by side: its `num_envs` is that many times the environments of a runner. Each collect publishes the
    policy's new weights, which each runner takes with its next request.

    `fixed_lag`: the rollout of update u is acted by the weights of update u - `max_lag` exactly (the first ones by the
    weights at the start). Each collect asks for the rollout that is `max_lag` updates away, each runner has the same
    share of each, and the fragments stand in the runners' order: so the run is the same, to the last bit, in every
    repetition and for every number of runners that share the same environments. `max_lag=0`: collecting and learning
    take turns, and the run is the synchronous one.

    Without it the rollout is whichever fragments are ready first. No step is handed over whose weights are more than
    `max_lag` updates behind the policy; a fragment that is, is dropped, and its steps are counted. So that this is
    rare, no more fragments are asked for than can be trained on in time (back-pressure: at most
    `fragments_per_batch * (max_lag + 1)` under way or waiting): runners rest while the learner is behind.

    Fragments of older weights carry the log-probabilities of the policy that acted (`RolloutStore.action_logp`, of
    several agents the extra model output `action_logp`), so that V-trace can correct for it. An action that waits for
    its agent's next observation comes with the fragment that has it, and may be older. For runners that are lost see
    `EnvRunnerGroup`.
    """

    by_runner = False
    may_evaluate = False

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
        self.fragment_length, self.fragments_per_batch = fragment_length, fragments_per_batch
        self.max_lag, self.fixed_lag = max_lag, fixed_lag or max_lag == 0
        self._num_rollouts = 0
        """that were handed over"""
        self._counts = {"sampled": 0, "collected": 0, "dropped": 0}
        """steps by what became of them: sampled = collected + dropped + those that wait"""
        self._waiting: list[Any] = []
        """fragments that were sampled and not handed over"""
        self._published: int | None = None
        """version of the weights that the runners have"""
        super().__init__(policy, group, buffer)

    @property
    def num_envs(self) -> int:
        """Environments side by side in one rollout; a runner's may be among them several times."""
        return self.fragments_per_batch * self.envs_per_runner

    @property
    def envs_per_runner(self) -> int:
        """Environments of one runner."""
        return self.group.envs.num_envs

    @property
    def steps_per_collect(self) -> int:
        """Steps in one rollout."""
        return self.fragment_length * self.num_envs

    # -- collecting ---

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect the next rollout, of `steps_per_collect` steps: `n_step` can say nothing else.

        Raises `ValueError` for another amount, and as `EnvRunnerGroup.ready`; what waits is kept then.
        """
        if n_episode is not None or n_step not in (None, self.steps_per_collect) or random:
            raise ValueError(
                f"n_step={n_step}, n_episode={n_episode}, random={random}: one rollout of an asynchronous collector "
                f"has {self.steps_per_collect} steps ({self.fragments_per_batch} fragments of {self.envs_per_runner} "
                f"environments and {self.fragment_length} steps), drawn by the policy"
            )
        self.group.check_open()
        started = time.perf_counter()
        now = self.policy.weights_seq_no
        if now != self._published:
            self.group.set_weights(self.policy.acting_weights())
            self._published = now
        chosen = self._next_fragments() if self.fixed_lag else self._first_fragments(now)
        self._num_rollouts += 1
        self._writer.write(chosen, now)
        self._counts["collected"] += sum(map(len, chosen))
        return self._counted(chosen, time.perf_counter() - started)

    def _next_fragments(self) -> list[Any]:
        """Return the fragments of the rollout whose turn it is, in the order of their runners, and ask for the one that
        is `max_lag` updates away."""
        number, runners = self.fragments_per_batch, len(self.group)
        first = self._num_rollouts * number
        wanted = Counter(place % runners for place in range(first, first + number * (self.max_lag + 1)))
        there = Counter(fragment.runner for fragment in self._waiting)
        for index in range(runners):  # fewer are there at the start, after an error and after a restore
            for _ in range(wanted[index] - there[index] - self.group.num_asked(index)):
                self.group.ask(index, self.fragment_length * self.envs_per_runner)
        needed = Counter(place % runners for place in range(first, first + number))
        while needed - Counter(fragment.runner for fragment in self._waiting):
            self._take(self.group.ready(WAIT_S))
        chosen: list[tuple[int, int, Any]] = []
        kept, taken = [], Counter[int]()
        for fragment in self._waiting:  # of one runner in its order
            if taken[fragment.runner] < needed[fragment.runner]:
                chosen.append((taken[fragment.runner], fragment.runner, fragment))
                taken[fragment.runner] += 1
            else:
                kept.append(fragment)
        self._waiting = kept
        return [fragment for _, _, fragment in sorted(chosen, key=lambda each: each[:2])]

    def _first_fragments(self, now: int) -> list[Any]:
        """Return the fragments that are ready first, and keep the runners at work."""
        self._drop_older_than(now - self.max_lag)
        while len(self._waiting) < self.fragments_per_batch:
            self._ask(self.fragments_per_batch * (self.max_lag + 1))
            self._take(self.group.ready(WAIT_S))
            self._drop_older_than(now - self.max_lag)
        chosen, self._waiting = self._waiting[: self.fragments_per_batch], self._waiting[self.fragments_per_batch :]
        self._ask(self.fragments_per_batch * self.max_lag)  # what the runners do while the policy learns
        return sorted(chosen, key=lambda fragment: fragment.runner)

    def _ask(self, limit: int) -> None:
        """Ask idle runners for fragments while less than `limit` are under way or waiting."""
        group, steps = self.group, self.fragment_length * self.envs_per_runner
        room = limit - len(self._waiting) - group.num_in_flight
        most = group.section.max_requests_in_flight_per_env_runner
        for _ in range(room):
            asked, index = min((group.num_asked(i), i) for i in range(len(group)))
            if asked >= most:
                break
            group.ask(index, steps)

    def _take(self, fragments: list[Fragment]) -> None:
        self._waiting += fragments
        self._counts["sampled"] += sum(map(len, fragments))

    def _drop_older_than(self, version: float) -> None:
        self._drop(lambda fragment: fragment.weights_seq_no < version)

    def _drop(self, is_of_no_use: Callable[[Any], bool]) -> None:
        """Drop fragments that wait, and count their steps."""
        self._counts["dropped"] += sum(len(fragment) for fragment in self._waiting if is_of_no_use(fragment))
        self._waiting = [fragment for fragment in self._waiting if not is_of_no_use(fragment)]

    def get_stats(self) -> dict[str, int]:
        """Return steps by what became of them, and the runners' numbers (`EnvRunnerGroup.get_stats`)."""
        counts = {**self._counts, "waiting": sum(map(len, self._waiting))}
        return {**{f"num_steps_{name}": number for name, number in counts.items()}, **self.group.get_stats()}

    # -- resets, state ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere with the next collect; what waits or is under way is dropped, and counted."""
        self.group.check_open()
        self._take(self.group.drain())
        self._drop_older_than(np.inf)
        super().reset(reset_buffer, reset_stats)

    def leave_episodes_of(self, module_id: str) -> None:
        """Leave the episodes under way in which this module acts; what waits of them is dropped, and counted."""
        self._take(self.group.drain())
        self._drop(lambda fragment: fragment.has_acted(module_id))
        super().leave_episodes_of(module_id)

    def get_state(self) -> dict[str, Any]:
        """Wait for what is under way and return it with what waits; else as `GroupCollector.get_state`."""
        self._take(self.group.drain())
        waiting = [fragment.get_state() for fragment in self._waiting]
        counts = {"waiting": waiting, "counts": dict(self._counts), "num_rollouts": self._num_rollouts}
        return {**super().get_state(), **counts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`: what waited is handed over first."""
        super().set_state(state)
        self._waiting = [self._writer.fragment_class.from_state(saved) for saved in state["waiting"]]
        self._counts = {name: int(state["counts"][name]) for name in self._counts}
        self._num_rollouts, self._published = int(state["num_rollouts"]), None
