"""`AsyncGroupCollector`: env runners that go on collecting while the policy learns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.rollout.fragments import Fragment, append_fragments
from lockstep.rollout.group_collector import GroupCollector, merged_stats
from lockstep.rollout.protocols import PublishingPolicy
from lockstep.rollout.runner_group import EnvRunnerGroup
from lockstep.state.checks import check_whole, check_wholes
from lockstep.tracking.statistics import CollectStats

WAIT_S = 1.0
"""seconds of one wait for a fragment"""


@dataclass
class StepCounts:
    """What became of the steps that runners have sampled: sampled = collected + dropped + waiting."""

    sampled: int = 0
    collected: int = 0
    """handed over to be trained on"""
    dropped: int = 0
    """older than `max_lag` when their turn came, or left behind by a reset"""
    waiting: int = 0


class AsyncGroupCollector(GroupCollector):
    """Collects from runners that are always at work; a train batch is whichever fragments are ready first.

    `fragment_length` vector steps make a fragment of one runner, `fragments_per_batch` of them the rollout of one
    `collect`, side by side: its `num_envs` is that many times the environments of a runner. When a collect returns, the
    runners go on with the weights they have; the next collect publishes the policy's new weights, which each runner
    takes with its next request.

    `max_lag`: no step is handed over whose weights are more than so many updates behind the policy; a fragment that is,
    is dropped, and its steps are counted. So that this is rare, no more fragments are asked for than can be trained on
    in time (back-pressure: at most `fragments_per_batch * (max_lag + 1)` under way or waiting): runners rest while the
    learner is behind. `max_lag=0`: collecting and learning take turns, each runner gets the same share, and the
    fragments come in the runners' order; the run is then the synchronous one, to the last bit.

    Fragments of older weights carry the log-probabilities of the policy that acted (`RolloutStore.action_logp`), so
    that V-trace can correct for it. For runners that are lost see `EnvRunnerGroup`.
    """

    def __init__(
        self,
        policy: PublishingPolicy,
        group: EnvRunnerGroup,
        buffer: RolloutStore | None = None,
        *,
        fragment_length: int,
        fragments_per_batch: int,
        max_lag: int,
    ) -> None:
        check_wholes(fragment_length=fragment_length, fragments_per_batch=fragments_per_batch)
        check_whole("max_lag", max_lag, 0)
        self.fragment_length, self.fragments_per_batch, self.max_lag = fragment_length, fragments_per_batch, max_lag
        self.counts = StepCounts()
        self._versioned = policy
        self._waiting: list[Fragment] = []
        self._published: int | None = None
        super().__init__(policy, group, buffer)

    @property
    def num_envs(self) -> int:
        """Environments side by side in one rollout; a runner's may be among them several times."""
        return self.fragments_per_batch * self.envs_per_runner

    @property
    def envs_per_runner(self) -> int:
        """Environments of one runner."""
        return int(self.group.envs["num_envs"])

    @property
    def steps_per_collect(self) -> int:
        """Steps in one rollout."""
        return self.fragment_length * self.num_envs

    # -- collecting ---

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """The next rollout, of `steps_per_collect` steps: `n_step` can say nothing else.

        Raises `ValueError` for another amount, and as `EnvRunnerGroup.sample_async`; what waits is kept then.
        """
        if n_episode is not None or n_step not in (None, self.steps_per_collect) or random:
            raise ValueError(
                f"n_step={n_step}, n_episode={n_episode}, random={random}: one rollout of an asynchronous collector "
                f"has {self.steps_per_collect} steps ({self.fragments_per_batch} fragments of {self.envs_per_runner} "
                f"environments and {self.fragment_length} steps), drawn by the policy"
            )
        self.group.check_open()
        started = time.perf_counter()
        now = self._versioned.weights_seq_no
        if now != self._published:
            self.group.set_weights(self.policy.acting_weights())
            self._published = now
        self._drop_older_than(now - self.max_lag)
        while len(self._waiting) < self.fragments_per_batch:
            self._ask(self.fragments_per_batch * (self.max_lag + 1))
            self._take(self.group.ready(WAIT_S))
            self._drop_older_than(now - self.max_lag)
        chosen, self._waiting = self._waiting[: self.fragments_per_batch], self._waiting[self.fragments_per_batch :]
        self._ask(self.fragments_per_batch * self.max_lag)  # what the runners do while the policy learns
        chosen.sort(key=lambda fragment: fragment.runner)
        if self.store is not None:
            append_fragments(self.store, _known_by_logp(chosen, now))
        stats = merged_stats(chosen, time.perf_counter() - started)
        self._count(chosen, "collected")
        self.collect_step += stats.n_collected_steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time
        return stats

    def _ask(self, limit: int) -> None:
        """Asks idle runners for fragments while less than `limit` are under way or waiting."""
        group, steps = self.group, self.fragment_length * self.envs_per_runner
        if self.max_lag == 0:  # shares do not depend on who is fast
            there = Counter(fragment.runner for fragment in self._waiting)  # some may wait since an error, or a restore
            for number in range(limit if group.num_in_flight == 0 else 0):
                if there[number % len(group)]:
                    there[number % len(group)] -= 1
                else:
                    group.ask(number % len(group), steps)
            return
        room = limit - len(self._waiting) - group.num_in_flight
        most = group.section.max_requests_in_flight_per_env_runner
        for _ in range(room):
            asked, index = min((group.num_asked(i), i) for i in range(len(group)))
            if asked >= most:
                break
            group.ask(index, steps)

    def _take(self, fragments: list[Fragment]) -> None:
        self._waiting += fragments
        self._count(fragments, "sampled")

    def _drop_older_than(self, version: int) -> None:
        old = [fragment for fragment in self._waiting if fragment.weights_seq_no < version]
        if old:
            self._waiting = [fragment for fragment in self._waiting if fragment.weights_seq_no >= version]
            self._count(old, "dropped")

    def _count(self, fragments: list[Fragment], name: str) -> None:
        setattr(self.counts, name, getattr(self.counts, name) + sum(map(len, fragments)))
        self.counts.waiting = sum(map(len, self._waiting))

    def get_stats(self) -> dict[str, int]:
        """Steps by what became of them, and the runners' (`EnvRunnerGroup.get_stats`)."""
        steps = {f"num_steps_{name}": number for name, number in asdict(self.counts).items()}
        return {**steps, **self.group.get_stats()}

    # -- resets, state ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """The next collect begins new episodes everywhere; what waits or is under way is dropped, and counted."""
        self.group.check_open()
        self._take(self.group.drain())
        dropped, self._waiting = self._waiting, []
        self._count(dropped, "dropped")
        super().reset(reset_buffer, reset_stats)

    def get_state(self) -> dict[str, Any]:
        """At a drained point: waits for what is under way, and keeps it with what waits; then as `GroupCollector`."""
        self._take(self.group.drain())
        waiting = [_plain(fragment) for fragment in self._waiting]
        return {**super().get_state(), "waiting": waiting, "counts": asdict(self.counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`: what waited is handed over first."""
        super().set_state(state)
        self._waiting = [_fragment(saved) for saved in state["waiting"]]
        self.counts = StepCounts(**state["counts"])
        self._published = None


def _known_by_logp(fragments: list[Fragment], now: int) -> list[Fragment]:
    """Steps of the present weights have no log-probability of their own: NaN beside others, None where all are."""
    if all(fragment.weights_seq_no == now or fragment.action_logp is None for fragment in fragments):
        return [replace(fragment, action_logp=None) for fragment in fragments]
    return [
        fragment
        if fragment.weights_seq_no != now
        else replace(fragment, action_logp=np.full(fragment.rewards.shape, np.nan, np.float32))
        for fragment in fragments
    ]


def _plain(fragment: Fragment) -> dict[str, Any]:
    """A fragment as values that a checkpoint can hold."""
    own = {item.name: getattr(fragment, item.name) for item in fields(fragment)}
    return {**own, "stats": fragment.stats.get_state()}


def _fragment(saved: Mapping[str, Any]) -> Fragment:
    return Fragment(**{**saved, "stats": CollectStats.from_state(saved["stats"])})
