"""Schedules, which decide which fragments of env runners make the next collect: `SynchronousSampling`, `FixedLag` and
`FirstReady`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from lockstep.rollout.base_collector import exactly_one
from lockstep.rollout.fragments import AnyFragment, StoredFragment
from lockstep.rollout.protocols import LearningPolicy
from lockstep.rollout.runner_group import EnvRunnerGroup

WAIT_S = 1.0
"""Duration in seconds of one wait for a fragment."""


class SampleSchedule(ABC):
    """Base class of the schedules, which request fragments from env runners and choose the fragments of a collect.

    A collector calls `check_amount` and `publish` at the beginning of each collect. Its sink then calls `fragments`,
    once or several times.
    """

    by_runner: ClassVar[bool] = True
    """Whether each fragment is stored in the columns of its runner's environments, rather than in the order in
    which `fragments` returns them."""

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
        """Return the next fragments, all of the same class.

        Args:
            n_step: Number of steps; None to collect episodes.
            n_episode: Number of episodes; None to collect steps.
            random: Whether actions are drawn uniformly from the action space.

        Raises:
            ValueError, EnvRunnerError, EnvironmentStepError: As `EnvRunnerGroup.sample` and `EnvRunnerGroup.ready`.
        """

    @abstractmethod
    def drop_all(self) -> None:
        """Drop all fragments that are requested or waiting."""

    @abstractmethod
    def drop_episodes_of(self, module_id: str) -> None:
        """Drop the requested and waiting fragments in which this module acts."""

    @abstractmethod
    def get_stats(self) -> dict[str, int]:
        """Return the numbers of sampled, collected, dropped and waiting steps, by metric name."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Wait for the requested fragments, and return the entries that the schedule adds to the collector's state."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Restore the collector's state. `waiting`: the fragments of that state that were not collected yet."""


class SynchronousSampling(SampleSchedule):
    """Schedule in which all runners sample with the policy's present weights while the policy waits for them."""

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        """Raise `ValueError` unless exactly one of the two is passed, a whole number above 0."""
        exactly_one(n_step=n_step, n_episode=n_episode)

    def publish(self, policy: LearningPolicy) -> None:
        """Make all runners act with the policy's present weights."""
        # Without a copy: the policy does not learn while the runners sample.
        self.group.set_weights(policy.acting_weights(copy=False))

    def fragments(self, n_step: int | None, n_episode: int | None, *, random: bool) -> list[AnyFragment]:
        """Return one fragment of each runner, in their order."""
        return self.group.sample(n_step, n_episode, random=random)

    def drop_all(self) -> None:
        """Do nothing: between two collects no fragment is requested."""

    def drop_episodes_of(self, module_id: str) -> None:
        """Do nothing: between two collects no fragment is requested."""

    def get_stats(self) -> dict[str, int]:
        """Return an empty dict: each sampled step is collected."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return an empty dict: between two collects no fragment is requested."""
        return {}

    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Do nothing: the schedule has no state beside that of the runners."""


class AsynchronousSampling(SampleSchedule):
    """Base class of the schedules in which runners sample while the policy learns.

    A rollout is `fragments_per_batch` fragments side by side, each of `fragment_length` vector steps of one runner.
    Subclasses choose the fragments of the next rollout. A sampled step waits until it is collected or dropped, so that
    always `sampled = collected + dropped + waiting`. `get_stats` returns these numbers.

    Args:
        group: The runners.
        fragment_length: Number of vector steps of a fragment.
        fragments_per_batch: Number of fragments of a rollout.
        max_lag: Largest number of updates by which the weights that acted may be older than the policy's.
    """

    by_runner = False
    fixed_lag: ClassVar[bool] = False
    """Whether each rollout is acted by the weights of exactly `max_lag` updates before."""

    def __init__(self, group: EnvRunnerGroup, fragment_length: int, fragments_per_batch: int, max_lag: int) -> None:
        super().__init__(group)
        self.fragment_length = fragment_length
        self.fragments_per_batch = fragments_per_batch
        self.max_lag = max_lag
        self.envs_per_runner = group.envs.num_envs
        """Number of environments of one runner."""
        self.waiting: list[StoredFragment] = []
        """Fragments that are neither collected nor dropped."""
        self.published = -1
        """Version of the weights that the runners have; -1 if not known."""
        self._num_rollouts = 0
        """Number of rollouts that were collected."""
        self._counts = {"sampled": 0, "collected": 0, "dropped": 0}
        """Numbers of sampled, collected and dropped steps."""

    @property
    def num_envs(self) -> int:
        """Number of columns of one rollout. An environment has several columns if the rollout has several fragments of
        its runner."""
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
        """Make each runner act with the policy's weights from its next request on, if the weights have changed."""
        self.group.check_open()
        version = policy.weights_seq_no
        if version != self.published:
            self.group.set_weights(policy.acting_weights())
            self.published = version

    def fragments(self, n_step: int | None, n_episode: int | None, *, random: bool) -> list[StoredFragment]:
        """Return the fragments of the next rollout.

        If an environment or a runner raises, the waiting fragments are kept for the next call.
        """
        chosen = self._choose()
        self._num_rollouts += 1
        self._counts["collected"] += sum(map(len, chosen))
        return chosen

    @abstractmethod
    def _choose(self) -> list[StoredFragment]:
        """Remove the fragments of the next rollout from `waiting` and return them; request fragments of later ones."""

    def take(self, fragments: list[StoredFragment]) -> None:
        """Append fragments to `waiting`, and count their steps as sampled."""
        self.waiting += fragments
        self._counts["sampled"] += sum(map(len, fragments))

    def _drop(self, is_useless: Callable[[StoredFragment], bool]) -> None:
        """Drop the waiting fragments for which `is_useless` is True, and count their steps."""
        useful = []
        for fragment in self.waiting:
            if is_useless(fragment):
                self._counts["dropped"] += len(fragment)
            else:
                useful.append(fragment)
        self.waiting = useful

    def _drop_older_than(self, version: float) -> None:
        """Drop the waiting fragments of weights older than `version`, and count their steps."""
        self._drop(lambda fragment: fragment.weights_seq_no < version)

    def drop_all(self) -> None:
        """Drop all requested and waiting fragments, and count their steps."""
        self.group.check_open()
        self.take(self.group.drain())
        self._drop_older_than(np.inf)

    def drop_episodes_of(self, module_id: str) -> None:
        """Drop the requested and waiting fragments in which this module acts, and count their steps."""
        self.take(self.group.drain())
        self._drop(lambda fragment: fragment.has_acted(module_id))

    def get_stats(self) -> dict[str, int]:
        """Return the numbers of sampled, collected, dropped and waiting steps, by metric name."""
        counts = {**self._counts, "waiting": sum(map(len, self.waiting))}
        return {f"num_steps_{name}": number for name, number in counts.items()}

    def get_state(self) -> dict[str, Any]:
        """Wait for the requested fragments, and return the waiting fragments and the counters."""
        self.take(self.group.drain())
        return {
            "waiting": [fragment.get_state() for fragment in self.waiting],
            "counts": dict(self._counts),
            "num_rollouts": self._num_rollouts,
        }

    def set_state(self, state: Mapping[str, Any], waiting: list[StoredFragment]) -> None:
        """Restore the collector's state. The next rollouts take its waiting fragments first."""
        self.waiting = list(waiting)
        self._counts = {name: int(state["counts"][name]) for name in self._counts}
        self._num_rollouts = int(state["num_rollouts"])
        self.published = -1


class FixedLag(AsynchronousSampling):
    """Schedule in which the rollout of update u is acted by the weights of exactly update u - `max_lag`.

    The first `max_lag` rollouts are acted by the initial weights. Each collect requests the fragments of the rollout
    that is collected `max_lag` updates later. Each runner samples the same share of each rollout, and fragments are in
    the order of the runners. So repetitions of a run are equal bit for bit, and so are runs whose environments are
    split over other numbers of runners.
    """

    fixed_lag = True

    def _choose(self) -> list[StoredFragment]:
        # Fragment number i, counted over the whole run, is always sampled by runner i modulo the number of runners.
        number = self.fragments_per_batch
        num_runners = len(self.group)
        first = self._num_rollouts * number
        requested = Counter(i % num_runners for i in range(first, first + number * (self.max_lag + 1)))
        waiting = Counter(fragment.runner for fragment in self.waiting)
        for index in range(num_runners):
            # Usually only the fragments of the rollout in `max_lag` updates are missing. At the start of a run, after
            # an error and after a restore, fragments of earlier rollouts are missing too.
            for _ in range(requested[index] - waiting[index] - self.group.num_asked(index)):
                self.group.ask(index, self.steps_per_fragment)

        needed = Counter(i % num_runners for i in range(first, first + number))
        while needed - Counter(fragment.runner for fragment in self.waiting):
            self.take(self.group.ready(WAIT_S))

        # The waiting fragments of one runner are in the order in which it sampled them. The rollout takes them in
        # turns: the first fragment of each runner, then the second of each.
        chosen: list[tuple[int, int, StoredFragment]] = []
        still_waiting = []
        num_chosen = Counter[int]()
        for fragment in self.waiting:
            runner = fragment.runner
            if num_chosen[runner] < needed[runner]:
                chosen.append((num_chosen[runner], runner, fragment))
                num_chosen[runner] += 1
            else:
                still_waiting.append(fragment)
        self.waiting = still_waiting
        chosen.sort(key=itemgetter(0, 1))
        return [fragment for _, _, fragment in chosen]


class FirstReady(AsynchronousSampling):
    """Schedule in which a rollout consists of the fragments that are ready first.

    Fragments whose weights are more than `max_lag` updates older than the policy's are dropped. To make this rare, at
    most `fragments_per_batch * (max_lag + 1)` fragments are requested or waiting at a time (back-pressure): that is as
    many as the learner can use in time. Runners are idle while the learner is behind.
    """

    def _choose(self) -> list[StoredFragment]:
        number = self.fragments_per_batch
        oldest = self.published - self.max_lag
        self._drop_older_than(oldest)
        while len(self.waiting) < number:
            self.ask(number * (self.max_lag + 1))
            self.take(self.group.ready(WAIT_S))
            self._drop_older_than(oldest)
        chosen = self.waiting[:number]
        self.waiting = self.waiting[number:]
        # The runners sample these while the policy learns from the chosen ones.
        self.ask(number * self.max_lag)
        return sorted(chosen, key=lambda fragment: fragment.runner)

    def ask(self, limit: int) -> None:
        """Request fragments, from the least busy runners first, until `limit` fragments are requested or waiting."""
        num_missing = limit - len(self.waiting) - self.group.num_in_flight
        max_requests = self.group.section.max_requests_in_flight_per_env_runner
        for _ in range(num_missing):
            num_requests, index = min((self.group.num_asked(i), i) for i in range(len(self.group)))
            if num_requests >= max_requests:
                break
            self.group.ask(index, self.steps_per_fragment)
