"""Requests for updates, and the queue whose thread runs asynchronous ones in order."""

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
    """Arguments of one update call."""

    kind: Kind
    """Whether `data` are episodes or a batch."""
    data: Any
    options: Mapping[str, Any]
    """Keyword arguments of `Learner.update_from_episodes` and `update_from_batch`."""
    return_state: bool = False
    """Return the weights after the update, too."""
    reduce_results: bool = True
    """Return one dict of results, not a list with one for each learner."""
    call_id: int = 0
    """Number of the call, from 1 on."""
    num_steps: int = 0
    """Number of environment steps in `data`."""

    @classmethod
    def checked(
        cls, kind: Kind, data: object, options: Mapping[str, Any], return_state: bool, reduce_results: bool
    ) -> Self:
        """Return the request for an update from these episodes or this batch.

        Raises `TypeError` or `ValueError` for data of another kind and for illegal options. So they are refused in the
        user's own call, and not later in a thread or in another process.
        """
        UpdateOptions(**options)  # for its checks
        options = {**options, "timesteps": dict(options["timesteps"] or {})}
        if kind == "episodes":
            check_episodes(data)
        else:
            check_batch(data)
        return cls(kind, data, options, return_state, reduce_results, num_steps=num_steps_of(data))


def num_steps_of(data: object) -> int:
    """Return the number of environment steps in episodes or a batch; 0 for other data, which the learner refuses."""
    if hasattr(data, "env_steps"):
        return int(data.env_steps())
    return sum(num_steps_of(item) for item in data) if isinstance(data, list | tuple) else 0


def frozen_data(data: Any) -> Any:
    """Return a copy of episodes or of a batch. The caller may change the original while the request waits."""
    if isinstance(data, SampleBatch | MultiAgentBatch | RolloutEpisodes):
        return data.copy()
    return [copy.deepcopy(episode, _shared(episode)) for episode in data]


def _shared(episode: object) -> dict[int, Any]:
    """Return a memo with which `deepcopy` shares the spaces of an episode instead of copying them."""
    spaces = (getattr(episode, name, None) for name in ("observation_space", "action_space"))
    return {id(space): space for space in spaces if space is not None}


@dataclass
class RequestCounts:
    """Numbers of requests and of their environment steps, by how the requests ended.

    Every submitted step is trained, dropped, or in a request that waits or runs.
    """

    num_calls: int = 0
    """Number of requests."""
    num_dropped: int = 0
    """Number of requests that were dropped because too many were waiting, or by `close`."""
    num_failed: int = 0
    """Number of requests that raised an error."""
    num_steps_submitted: int = 0
    num_steps_trained: int = 0
    num_steps_dropped: int = 0
    """Number of steps in requests that were dropped, failed, or had nothing to train."""


@dataclass
class Outcome:
    """Outcome of a request: the value to return, or an error."""

    value: Any = None
    has_trained: bool = False
    """Whether anything was trained."""
    error: BaseException | None = None


class RequestQueue:
    """Queue of update requests, which a thread runs one after another. The thread ends when no request waits.

    Calls that do not go through the thread are ordered with it here: `turn` for an update in the caller's own thread,
    `between_updates` and `when_idle` for calls during which no update may run.

    Args:
        run: Function that runs a request, and returns the call's value and whether anything was trained.
        limit: Largest number of requests that wait or run in the thread.
    """

    def __init__(self, run: Callable[[UpdateRequest], tuple[Any, bool]], limit: int) -> None:
        self.run = run
        self.limit = limit
        self.counts = RequestCounts()
        # `_changed` guards all attributes below, and is held for moments only. `_busy` is held while an update runs. A
        # thread may wait for `_busy` only without holding `_changed`, since the running update takes it when it ends.
        self._changed = threading.Condition()
        self._busy = threading.RLock()
        self._waiting: deque[UpdateRequest] = deque()
        self._running: UpdateRequest | None = None
        self._finished: deque[Outcome] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- calls of the user's thread ---

    def check_open(self) -> None:
        """Check that the queue is not closed; `RuntimeError` otherwise."""
        if self._closed:
            raise RuntimeError("this group of learners is shut down; build a new one")

    def between_updates(self) -> AbstractContextManager[Any]:
        """Return a context in which no update runs. It waits for the running update, but not for those that wait."""
        return self._busy

    @contextmanager
    def when_idle(self) -> Iterator[None]:
        """Return a context in which no update runs. It first waits for all submitted requests."""
        while True:
            with self._changed:
                self._changed.wait_for(self._is_idle)
            # Another thread may have submitted a request before `_busy` was taken, so look again.
            with self._busy:
                if self._is_idle():
                    yield
                    return

    @contextmanager
    def turn(self, num_steps: int) -> Iterator[Outcome]:
        """Return a context in which the caller itself runs an update of `num_steps` environment steps.

        It waits for all requests submitted before, and counts how the update ends. The caller sets `has_trained` of the
        outcome.
        """
        with self._changed:
            # One test in the usual case: open and idle.
            if self._closed or self.num_in_flight:
                self.check_open()
                self._changed.wait_for(self._is_idle)
            self._count_in(num_steps)
        outcome = Outcome()
        has_failed = True
        try:
            with self._busy:
                yield outcome
            has_failed = False
        finally:
            self._count_out(num_steps, has_failed, outcome.has_trained)

    def submit(self, request: UpdateRequest, on_full: OnFull) -> None:
        """Hand `request` to the thread. If there are `limit` requests, wait, or drop the oldest one that waits.

        If none waits (one runs, and the limit is 1), the new request is the oldest, and is dropped itself.
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
        """Return the values that have become ready since the last call, in call order.

        If there is an error among them, it is raised, and the values are returned by the next call.
        """
        with self._changed:
            for outcome in self._finished:
                if outcome.error is not None:
                    self._finished.remove(outcome)
                    raise outcome.error
            values = [outcome.value for outcome in self._finished]
            self._finished.clear()
            return values

    def drain(self) -> list[Any]:
        """Wait for all requests, and return the values that `take_finished` returns."""
        with self._changed:
            self._changed.wait_for(self._is_idle)
        return self.take_finished()

    def close(self) -> None:
        """Drop the waiting requests, wait for the running one, and end the thread. A second call does nothing."""
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
        """Number of requests that wait or run in the thread."""
        return len(self._waiting) + (self._running is not None)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    # -- the thread ---

    def _work(self) -> None:
        """Run requests until none waits. The next `submit` then starts a new thread."""
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
            # Everything, `SystemExit` included, is raised again in the caller's thread. If it ended this thread
            # instead, the request would stay the running one, and everybody would wait for it.
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
        """Count a request when it is accepted. The caller holds `_changed`."""
        self.counts.num_calls += 1
        self.counts.num_steps_submitted += num_steps

    def _count_out(self, num_steps: int, has_failed: bool, has_trained: bool) -> None:
        """Count a request when it ends. The caller need not hold `_changed`."""
        with self._changed:
            if has_trained and not has_failed:
                self.counts.num_steps_trained += num_steps
            else:
                self.counts.num_failed += has_failed
                self.counts.num_steps_dropped += num_steps
