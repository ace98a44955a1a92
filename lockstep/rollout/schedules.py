"""Schedules: which fragments of env runners make the next collect (`SynchronousSampling`, `FixedLag`, `FirstReady`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lockstep.rollout.base_collector import exactly_one
from lockstep.rollout.fragments import AnyFragment, StoredFragment
from lockstep.rollout.protocols import LearningPolicy
from lockstep.rollout.runner_group import EnvRunnerGroup

WAIT_S = 1.0
"""seconds of one wait for a fragment"""


class SampleSchedule(ABC):
    """Asks the runners of a group for fragments, and decides which fragments make the next collect.

    A collector calls `check_amount` and `publish` at the beginning of each collect; its purpose then calls `fragments`,
    once or several times.
    """

    by_runner: ClassVar[bool] = True
    """Whether each fragment is stored where its runner has its environments, rather than in the order of arrival."""

    def __init__(self, group: EnvRunnerGroup) -> None:
        self.group = group

    @property
    def num_envs(self) -> int:
        """Number of environments side by side in one collect."""
        return self.group.num_envs

    @abstractmethod
    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        """Raise `ValueError` for a collect that this schedule cannot make."""

    @abstractmethod
    def publish(self, policy: LearningPolicy) -> None:
        """Make each runner act with the policy's present weights from its next request on."""

    @abstractmethod
    def fragments(self, n_step: int | None, n_episode: int | None, *, random: bool) -> Sequence[AnyFragment]:
        """Return the next fragments, all of one kind.

        Raises as the group's methods.
        """

    @abstractmethod
    def drop_all(self) -> None:
        """Drop all fragments that are under way or wait."""

    @abstractmethod
    def drop_episodes_of(self, module_id: str) -> None:
        """Drop the fragments under way or waiting in which this module acts."""

    @abstractmethod
    def get_stats(self) -> dict[str, int]:
        """Return the numbers of steps by what became of them."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Wait for the fragments under way; return the entries that the schedule adds to the collector's state."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Continue from the collector's state, in which the fragments `waiting` were not handed over yet."""


class SynchronousSampling(SampleSchedule):
    """All runners sample together with the policy's present weights, and the policy waits for them."""

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        """Raise `ValueError` unless exactly one of the two is passed, a whole number above 0."""
        exactly_one(n_step=n_step, n_episode=n_episode)

    def publish(self, policy: LearningPolicy) -> None:
        """Make all runners act with the policy's present weights. They are not copied: nothing learns meanwhile."""
        self.group.set_weights(policy.acting_weights(copy=False))

    def fragments(self, n_step: int | None, n_episode: int | None, *, random: bool) -> list[AnyFragment]:
        """Return one fragment of each runner, in their order."""
        return self.group.sample(n_step, n_episode, random=random)

    def drop_all(self) -> None:
        """Do nothing: between two collects no fragment is under way."""

    def drop_episodes_of(self, module_id: str) -> None:
        """Do nothing: between two collects no fragment is under way."""

    def get_stats(self) -> dict[str, int]:
        """Return nothing: each step that is sampled is handed over."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return nothing: between two collects no fragment is under way."""
        return {}

    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Do nothing: the runners have the whole state."""


class AsynchronousSampling(SampleSchedule):
    """Runners sample while the policy learns. Subclasses decide which fragments make the next rollout.

    A rollout is `fragments_per_batch` fragments side by side, of `fragment_length` vector steps of one runner each.
    Each step is sampled once, and then handed over in a rollout, dropped, or waiting. `get_stats` has the numbers.
    """

    by_runner = False
    fixed_lag: ClassVar[bool] = False
    """Whether each rollout is acted by the weights of `max_lag` updates before."""

    def __init__(self, group: EnvRunnerGroup, fragment_length: int, fragments_per_batch: int, max_lag: int) -> None:
        super().__init__(group)
        self.fragment_length = fragment_length
        self.fragments_per_batch = fragments_per_batch
        self.max_lag = max_lag
        self.envs_per_runner = group.envs.num_envs
        """Number of environments of one runner."""
        self.waiting: list[StoredFragment] = []
        """Fragments that were sampled and not handed over."""
        self.published = -1
        """Version of the weights that the runners have; -1: not known"""
        self._num_rollouts = 0
        """number of rollouts that were handed over"""
        self._counts = {"sampled": 0, "collected": 0, "dropped": 0}
        """steps by what became of them: sampled = collected + dropped + waiting"""

    @property
    def num_envs(self) -> int:
        """Number of environments side by side in one rollout. Those of one runner may be there several times."""
        return self.fragments_per_batch * self.envs_per_runner

    @property
    def steps_per_fragment(self) -> int:
        """Number of steps in one fragment."""
        return self.fragment_length * self.envs_per_runner

    @property
    def steps_per_collect(self) -> int:
        """Number of steps in one rollout."""
        return self.fragment_length * self.num_envs

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        """Raise `ValueError` for any other amount than `steps_per_collect`."""
        if n_episode is not None or n_step not in (None, self.steps_per_collect) or random:
            raise ValueError(
                f"n_step={n_step}, n_episode={n_episode}, random={random}: one rollout of an asynchronous collector "
                f"has {self.steps_per_collect} steps ({self.fragments_per_batch} fragments of {self.envs_per_runner} "
                f"environments and {self.fragment_length} steps), drawn by the policy"
            )

    def publish(self, policy: LearningPolicy) -> None:
        """Make each runner act with the policy's weights from its next request on, if these are other weights."""
        self.group.check_open()
        version = policy.weights_seq_no
        if version != self.published:
            self.group.set_weights(policy.acting_weights())
            self.published = version

    def fragments(self, n_step: int | None, n_episode: int | None, *, random: bool) -> list[StoredFragment]:
        """Return the fragments of the next rollout.

        Fragments that wait are kept where an environment or a runner raises.
        """
        chosen = self._choose()
        self._num_rollouts += 1
        self._counts["collected"] += sum(map(len, chosen))
        return chosen

    @abstractmethod
    def _choose(self) -> list[StoredFragment]:
        """Return the fragments of the next rollout, which wait no longer, and keep the runners at work."""

    def take(self, fragments: list[StoredFragment]) -> None:
        """Let these fragments wait, and count their steps as sampled."""
        self.waiting += fragments
        self._counts["sampled"] += sum(map(len, fragments))

    def _drop(self, is_of_no_use: Callable[[StoredFragment], bool]) -> None:
        """Drop waiting fragments, and count their steps."""
        kept = []
        for fragment in self.waiting:
            if is_of_no_use(fragment):
                self._counts["dropped"] += len(fragment)
            else:
                kept.append(fragment)
        self.waiting = kept

    def _drop_older_than(self, version: float) -> None:
        self._drop(lambda fragment: fragment.weights_seq_no < version)

    def drop_all(self) -> None:
        """Drop all fragments that are under way or wait, and count their steps."""
        self.group.check_open()
        self.take(self.group.drain())
        self._drop_older_than(np.inf)

    def drop_episodes_of(self, module_id: str) -> None:
        """Drop the fragments under way or waiting in which this module acts, and count their steps."""
        self.take(self.group.drain())
        self._drop(lambda fragment: fragment.has_acted(module_id))

    def get_stats(self) -> dict[str, int]:
        """Return the numbers of steps by what became of them."""
        counts = {**self._counts, "waiting": sum(map(len, self.waiting))}
        return {f"num_steps_{name}": number for name, number in counts.items()}

    def get_state(self) -> dict[str, Any]:
        """Wait for the fragments under way; return the waiting fragments and the counters."""
        self.take(self.group.drain())
        return {
            "waiting": [fragment.get_state() for fragment in self.waiting],
            "counts": dict(self._counts),
            "num_rollouts": self._num_rollouts,
        }

    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Continue from the collector's state: its waiting fragments are handed over first."""
        self.waiting = list(waiting)
        self._counts = {name: int(state["counts"][name]) for name in self._counts}
        self._num_rollouts = int(state["num_rollouts"])
        self.published = -1


class FixedLag(AsynchronousSampling):
    """The rollout of update u is acted by the weights of update u - `max_lag` exactly.

    The first rollouts are acted by the weights at the start. Each collect asks for the rollout that is `max_lag`
    updates away, each runner has the same share of each, and the fragments are in the runners' order: so the run is
    the same, to the last bit, in every repetition and for every number of runners that share the same environments.
    """

    fixed_lag = True

    def _choose(self) -> list[StoredFragment]:
        """Return the fragments of the rollout whose turn it is, in the order of their runners, and ask for those of the
        rollout that is `max_lag` updates away."""
        number = self.fragments_per_batch
        num_runners = len(self.group)
        first = self._num_rollouts * number
        wanted = Counter(place % num_runners for place in range(first, first + number * (self.max_lag + 1)))
        waiting = Counter(fragment.runner for fragment in self.waiting)
        for index in range(num_runners):
            # After the first collects this is the last rollout only. At the start, after an error and after a restore
            # others are missing too.
            for _ in range(wanted[index] - waiting[index] - self.group.num_asked(index)):
                self.group.ask(index, self.steps_per_fragment)

        needed = Counter(place % num_runners for place in range(first, first + number))
        while needed - Counter(fragment.runner for fragment in self.waiting):
            self.take(self.group.ready(WAIT_S))

        chosen: list[tuple[int, int, StoredFragment]] = []
        kept = []
        taken = Counter[int]()
        for fragment in self.waiting:  # those of one runner are in its order
            if taken[fragment.runner] < needed[fragment.runner]:
                chosen.append((taken[fragment.runner], fragment.runner, fragment))
                taken[fragment.runner] += 1
            else:
                kept.append(fragment)
        self.waiting = kept
        return [fragment for _, _, fragment in sorted(chosen, key=lambda each: each[:2])]


class FirstReady(AsynchronousSampling):
    """A rollout is whichever fragments are ready first.

    No step is handed over whose weights are more than `max_lag` updates behind the policy; a fragment that is, is
    dropped. So that this is rare, no more fragments are asked for than can be trained on in time (back-pressure: at
    most `fragments_per_batch * (max_lag + 1)` under way or waiting): runners rest while the learner is behind.
    """

    def _choose(self) -> list[StoredFragment]:
        """Return the fragments that are ready first, and keep the runners at work."""
        number = self.fragments_per_batch
        oldest = self.published - self.max_lag
        self._drop_older_than(oldest)
        while len(self.waiting) < number:
            self.ask(number * (self.max_lag + 1))
            self.take(self.group.ready(WAIT_S))
            self._drop_older_than(oldest)
        chosen, self.waiting = self.waiting[:number], self.waiting[number:]
        self.ask(number * self.max_lag)  # for the time in which the policy learns
        return sorted(chosen, key=lambda fragment: fragment.runner)

    def ask(self, limit: int) -> None:
        """Ask idle runners for fragments while less than `limit` are under way or waiting."""
        room = limit - len(self.waiting) - self.group.num_in_flight
        most = self.group.section.max_requests_in_flight_per_env_runner
        for _ in range(room):
            asked, index = min((self.group.num_asked(i), i) for i in range(len(self.group)))
            if asked >= most:
                break
            self.group.ask(index, self.steps_per_fragment)
