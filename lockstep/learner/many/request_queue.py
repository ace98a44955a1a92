"""Requests for asynchronous updates, and the thread that works them off one after another."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from lockstep.data.rollout import RolloutEpisodes
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.learner.inputs import check_batch
from lockstep.learner.many.sharding import check_episodes
from lockstep.learner.minibatches import UpdateOptions

Kind = Literal["episodes", "batch"]
OnFull = Literal["wait", "drop"]


@dataclass(frozen=True)
class UpdateRequest:
    """One update call: what to train on and how."""

    kind: Kind
    data: Any
    options: Mapping[str, Any]
    """keywords of `Learner.update_from_episodes` and `update_from_batch`"""
    return_state: bool = False
    reduce_results: bool = True
    call_id: int = 0
    num_steps: int = 0
    """environment steps handed in"""

    @classmethod
    def checked(
        cls, kind: Kind, data: object, options: Mapping[str, Any], return_state: bool, reduce_results: bool
    ) -> Self:
        """Return the request for an update from these episodes or this batch.

        Raises `TypeError` or `ValueError` for data of another kind and for options that an update does not take, so
        that they are refused in the call itself, not in that of a thread or of another process.
        """
        UpdateOptions(**options)
        options = {**options, "timesteps": dict(options["timesteps"] or {})}
        if kind == "episodes":
            check_episodes(data)
        else:
            check_batch(data)
        return cls(kind, data, options, return_state, reduce_results, num_steps=num_steps_of(data))


def num_steps_of(data: object) -> int:
    """Return the environment steps in episodes or a batch; 0 for what is neither (the learner refuses it)."""
    if hasattr(data, "env_steps"):
        return int(data.env_steps())
    return sum(num_steps_of(item) for item in data) if isinstance(data, list | tuple) else 0


def frozen_data(data: Any) -> Any:
    """Return a copy of episodes or of a batch, which the caller may change while it waits for its turn."""
    if isinstance(data, SampleBatch | MultiAgentBatch | RolloutEpisodes):
        return data.copy()
    return [copy.deepcopy(episode, _shared(episode)) for episode in data]


def _shared(copied: object) -> dict[int, Any]:
    """Return the memo of a deep copy that leaves spaces as they are."""
    spaces = (getattr(copied, name, None) for name in ("observation_space", "action_space"))
    return {id(space): space for space in spaces if space is not None}


@dataclass
class RequestCounts:
    """How requests ended. Every environment step submitted is trained or dropped, or under way."""

    num_calls: int = 0
    num_dropped: int = 0
    """requests dropped because too many were waiting, or by `shutdown`"""
    num_failed: int = 0
    num_steps_submitted: int = 0
    num_steps_trained: int = 0
    num_steps_dropped: int = 0
    """of requests that were dropped, failed, or had nothing to train"""


@dataclass
class Outcome:
    """How an update ended."""

    value: Any = None
    has_trained: bool = False
    error: BaseException | None = None


class RequestQueue:
    """Runs requests one after another in a thread that lives while there is work, and gives callers their turn.

    `run(request)` returns what the call returns, and whether anything was trained. At most `limit` requests are under
    way (waiting or running) in the thread.
    """

    def __init__(self, run: Callable[[UpdateRequest], tuple[Any, bool]], limit: int) -> None:
        self.run, self.limit, self.counts = run, limit, RequestCounts()
        self._changed = threading.Condition()
        self._busy = threading.RLock()
        self._waiting: deque[UpdateRequest] = deque()
        self._running: UpdateRequest | None = None
        self._finished: deque[Outcome] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- what the caller does ---

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError("this group of learners is shut down; build a new one")

    def between_updates(self) -> AbstractContextManager[Any]:
        """Return what keeps updates out, after the one that runs has ended."""
        return self._busy

    @contextmanager
    def when_idle(self) -> Iterator[None]:
        """Wait for all that was submitted, then keep updates out."""
        while True:
            with self._changed:
                self._changed.wait_for(self._is_idle)
            with self._busy:
                if self._is_idle():
                    yield
                    return

    @contextmanager
    def turn(self, num_steps: int) -> Iterator[Outcome]:
        """Keep other updates out for one of the caller's, of `num_steps` environment steps, and count how it ends.

        It comes after all that were submitted before it. The caller says whether anything was trained.
        """
        with self._changed:
            if self._closed or self.num_in_flight:
                self.check_open()
                self._changed.wait_for(self._is_idle)
            self._count_in(num_steps)
        outcome, has_failed = Outcome(), True
        try:
            with self._busy:
                yield outcome
            has_failed = False
        finally:
            self._count_out(num_steps, has_failed, outcome.has_trained)

    def submit(self, request: UpdateRequest, on_full: OnFull) -> None:
        """Leave `request` to the thread. With `limit` requests under way: wait, or drop the oldest waiting one.

        Where none waits, the new one is the oldest, and is dropped itself.
        """
        with self._changed:
            self.check_open()
            if on_full == "wait":
                self._changed.wait_for(lambda: self._closed or self.num_in_flight < self.limit)
                self.check_open()
            self._count_in(request.num_steps)
            self._waiting.append(request)
            while self.num_in_flight > self.limit:
                self._drop(self._waiting.popleft())
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lockstep-learner-updates")
                self._thread.start()

    def take_finished(self) -> list[Any]:
        """Return what has become ready since the last time, in call order. An error among it is raised, alone."""
        with self._changed:
            for outcome in self._finished:
                if outcome.error is not None:
                    self._finished.remove(outcome)
                    raise outcome.error
            values = [outcome.value for outcome in self._finished]
            self._finished.clear()
            return values

    def drain(self) -> list[Any]:
        """Wait for all that is under way; then as `take_finished`."""
        with self._changed:
            self._changed.wait_for(self._is_idle)
        return self.take_finished()

    def close(self) -> None:
        """Drop what waits, let the running request end, and join the thread. A second call does nothing."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._drop(self._waiting.popleft())
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests waiting or running in the thread."""
        return len(self._waiting) + (self._running is not None)

    @property
    def num_waiting(self) -> int:
        """Requests whose turn has not come."""
        return len(self._waiting)

    # -- inside ---

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                self._running = request = self._waiting.popleft()
            outcome = Outcome()
            try:
                with self._busy:
                    outcome.value, outcome.has_trained = self.run(request)
            except BaseException as error:
                error.add_note(f"in the asynchronous update with call_id={request.call_id}")
                outcome.error = error
            with self._changed:
                self._count_out(request.num_steps, outcome.error is not None, outcome.has_trained)
                self._finished.append(outcome)
                self._running = None
                self._changed.notify_all()

    def _is_idle(self) -> bool:
        return self.num_in_flight == 0

    def _drop(self, request: UpdateRequest) -> None:
        self.counts.num_dropped += 1
        self.counts.num_steps_dropped += request.num_steps
        self._changed.notify_all()

    def _count_in(self, num_steps: int) -> None:
        self.counts.num_calls += 1
        self.counts.num_steps_submitted += num_steps

    def _count_out(self, num_steps: int, has_failed: bool, has_trained: bool) -> None:
        with self._changed:
            if has_trained and not has_failed:
                self.counts.num_steps_trained += num_steps
            else:
                self.counts.num_failed += has_failed
                self.counts.num_steps_dropped += num_steps
