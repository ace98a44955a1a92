"""`EnvRunnerGroup`: one or many env runners that sample together, in step or as each becomes ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from lockstep.modules import ActingWeights
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError
from lockstep.rollout.fragments import Fragment
from lockstep.rollout.runner_backend import Call, RunnerBackend, RunnerLostError
from lockstep.state.restarts import RestartBudget, RestartLimits

INLINE_BYTES = 98_304
"""weights up to this size travel with the request for samples instead of through the object store"""
START_S = 120.0
"""seconds that a new runner may take for its first answer, beside `sample_timeout_s`"""


@dataclass
class _Request:
    """What a runner was asked for, so that another one can be asked for it in its place."""

    index: int
    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


class EnvRunnerGroup:
    """Samples with all runners of a backend.

    `sample` asks all runners for their share and waits: the fragments come in the order of the runners, and with one
    seed they are the same whatever the number of runners is, as far as numpy's products of matrices of other heights
    are (single actions in the last bit of a Gaussian policy may differ). `sample_async` keeps requests under way on
    each runner and returns what is ready.

    `set_weights` puts the weights once where all runners can fetch them; each takes them with its next request, so
    that a version costs no round trip of its own. Normalisers of observations have their statistics from the learner,
    which sees the raw rows of all runners, and travel with the weights; runners keep none of their own. Scaling of
    rewards is the learner's alone. Nothing has to be merged.

    A runner that dies, or takes longer than `section.sample_timeout_s`, is replaced: its unfinished fragment and
    episodes are lost, the new runner (with random streams of its own) is asked for the same share, the others lose
    nothing. Beyond `limits`: `EnvRunnerError`. What an environment raises is raised here; the next sample begins new
    episodes on that runner (after `sample`: on all).
    """

    def __init__(
        self, backend: RunnerBackend, section: EnvRunnersSection | None = None, limits: RestartLimits | None = None
    ) -> None:
        self.section = section or EnvRunnersSection()
        self._restarts = RestartBudget(limits or RestartLimits())
        self._backend = backend
        self._weights: Any = None
        self._version: int | None = None
        self._publication = 0
        self._generations = [0] * len(backend)
        self._has_weights = [0] * len(backend)
        """number of the publication that each runner was sent last"""
        self._is_new = [True] * len(backend)
        self._heard = [time.monotonic()] * len(backend)
        """when each runner last gave an answer, or was asked while it was idle"""
        self._renew = False
        self._to_renew: set[int] = set()
        """runners whose next fragment in `sample_async` begins new episodes"""
        self._in_flight: dict[Call, _Request] = {}
        self._is_shut_down = False
        self._kept: list[Fragment] = []
        """of `sample_async`"""
        self.num_lost_requests = 0
        """requests whose runner was lost; each was made again to its successor"""
        try:
            self.envs: dict[str, Any] = self.foreach_env_runner(EnvRunner.describe)[0]
        except BaseException:
            self.shutdown()
            raise

    # -- what it is ---

    @property
    def is_local(self) -> bool:
        """Is the runner in this process?"""
        return self._backend.is_local

    def __len__(self) -> int:
        """Number of runners; 1 when local."""
        return len(self._backend)

    @property
    def num_envs(self) -> int:
        """Environments of all runners."""
        return len(self) * int(self.envs["num_envs"])

    @property
    def num_in_flight(self) -> int:
        """Requests of `sample_async` under way."""
        return len(self._in_flight)

    @property
    def num_restarts(self) -> int:
        """Runners that were replaced."""
        return self._restarts.num_restarts

    def get_stats(self) -> dict[str, int]:
        """Runners, replacements, requests under way and lost, version of the weights."""
        return {
            "num_env_runners": 0 if self.is_local else len(self),
            "num_restarts": self.num_restarts,
            "num_in_flight": self.num_in_flight,
            "num_lost_requests": self.num_lost_requests,
            "weights_seq_no": -1 if self._version is None else self._version,
        }

    def process_ids(self) -> list[int]:
        """Of the runners in other processes, in order."""
        return self._backend.process_ids()

    # -- weights ---

    def set_weights(self, weights: ActingWeights, *, wait: bool = False) -> None:
        """From its next request on, each runner acts with these. `wait=True`: tells all, returns when all have them.

        The weights are taken over at once: what they were made from may change afterwards.
        """
        self.check_open()
        is_small = weights.num_bytes <= INLINE_BYTES or self.is_local
        self._weights = replace(weights, flat=weights.flat.copy()) if is_small else self._backend.put(weights)
        self._version, self._publication = weights.version, self._publication + 1
        if wait:
            self._gather([_Request(i, _set_weights) for i in range(len(self))])

    def check_open(self) -> None:
        """Raises `RuntimeError` after `shutdown`."""
        if self._is_shut_down:
            raise RuntimeError("these env runners are shut down; build a new group, or a new collector with it")

    def _send(self, request: _Request) -> Call:
        self.check_open()
        i, options = request.index, dict(request.options)
        if self._publication != self._has_weights[i]:
            options["weights"], self._has_weights[i] = self._weights, self._publication
        if not any(asked.index == i for asked in self._in_flight.values()):
            self._heard[i] = time.monotonic()
        return self._backend.call(i, request.func, *request.args, **options)

    # -- sampling in step ---

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> list[Fragment]:
        """One fragment of each runner, in their order, together `num_timesteps` steps (rounded up to whole vector steps
        of all environments) or `num_episodes` whole episodes.

        Of episodes each runner plays its share, so that none is preferred for being short; runners without a share are
        left out. The sample after it begins new episodes. Raises `ValueError` unless exactly one of the two is given
        or while `sample_async` has requests under way.
        """
        if self._in_flight:
            raise ValueError(f"{self.num_in_flight} asynchronous requests are under way; call drain() before sample()")
        shares = self._shares(num_timesteps, num_episodes)
        renew, self._renew = self._renew or bool(self._to_renew), True  # unless all ends well
        self._to_renew.clear()
        requests = [
            _Request(i, _sample, share, {"random": random, "renew": renew})
            for i, share in enumerate(shares)
            if share != (None, 0)
        ]
        fragments: list[Fragment] = self._gather(requests)
        self._renew = num_episodes is not None  # others are in the middle of episodes that are nowhere
        return fragments

    def renew(self) -> None:
        """The next `sample` begins new episodes everywhere."""
        self.check_open()
        self._renew = True

    def _shares(self, num_timesteps: Any, num_episodes: Any) -> list[tuple[int | None, int | None]]:
        """What each runner is asked for of an amount for all."""
        steps, episodes = _checked_amount(num_timesteps, num_episodes)
        if steps is not None:
            return [(-(-steps // self.num_envs) * self.num_envs // len(self), None)] * len(self)
        assert episodes is not None
        return [(None, episodes // len(self) + (i < episodes % len(self))) for i in range(len(self))]

    def _gather(self, requests: Sequence[_Request]) -> list[Any]:
        """The result of each request, in order; runners that are lost are replaced and asked again."""
        waiting = {self._send(request): place for place, request in enumerate(requests)}
        results: list[Any] = [None] * len(requests)
        while waiting:
            late = min(self._deadline(requests[place].index) for place in waiting.values())
            ended = self._backend.wait(list(waiting), max(0.0, late - time.monotonic()))
            for call in ended:
                place = waiting.pop(call)
                try:
                    results[place] = self._result(call, requests[place].index)
                except RunnerLostError as lost:
                    waiting[self._ask_again(requests[place], str(lost))] = place
            for call, place in list(waiting.items()):
                if self._is_late(requests[place].index):
                    del waiting[call]
                    waiting[self._ask_again(requests[place], self._late_text())] = place
        return results

    # -- sampling as runners become ready ---

    def sample_async(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        timeout_s: float = 0.0,
        random: bool = False,
    ) -> list[Fragment]:
        """Asks each runner that has fewer than `section.max_requests_in_flight_per_env_runner` requests under way for
        fragments of `num_timesteps` steps (or `num_episodes` episodes) *each*, and returns the fragments that are
        ready, those of one runner in its order; each tells the `weights_seq_no` it was sampled with.

        Waits up to `timeout_s` seconds for the first one. A new `set_weights` reaches a runner with its next request.
        """
        for i in range(len(self)):
            for _ in range(self.section.max_requests_in_flight_per_env_runner - self.num_asked(i)):
                self.ask(i, num_timesteps, num_episodes, random=random)
        return self.ready(timeout_s)

    def ask(
        self,
        index: int,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> None:
        """Asks one runner for one more fragment, as `sample_async` does; `ready` returns it."""
        if self._renew:
            self._to_renew, self._renew = set(range(len(self))), False
        options = {"random": random, "renew": index in self._to_renew}
        request = _Request(index, _sample, _checked_amount(num_timesteps, num_episodes), options)
        self._to_renew.discard(index)
        self._in_flight[self._send(request)] = request

    def num_asked(self, index: int) -> int:
        """Requests under way on one runner."""
        return sum(request.index == index for request in self._in_flight.values())

    def ready(self, timeout_s: float = 0.0) -> list[Fragment]:
        """The fragments that are ready; waits up to `timeout_s` seconds for the first one, if any is under way."""
        return self._ready(timeout_s) if self._in_flight else self._kept_fragments()

    def drain(self) -> list[Fragment]:
        """Waits for all requests under way, without making new ones; their fragments."""
        fragments = []
        while self._in_flight:
            fragments += self._ready(self.section.sample_timeout_s)
        return fragments + self._kept_fragments()

    def _ready(self, timeout_s: float) -> list[Fragment]:
        until = time.monotonic() + timeout_s
        while True:
            late = min(self._deadline(request.index) for request in self._in_flight.values())
            ended = self._backend.wait(list(self._in_flight), max(0.0, min(until, late) - time.monotonic()))
            fragments = self._kept_fragments()
            try:
                for call in ended:
                    fragments += self._take(call)
            except BaseException:
                self._kept = fragments
                raise
            for i in {request.index for request in self._in_flight.values()}:
                if self._is_late(i):
                    self._ask_all_again(i, self._late_text())
            if fragments or not self._in_flight or time.monotonic() >= until:
                return fragments

    def _kept_fragments(self) -> list[Fragment]:
        """Those that came beside an error."""
        kept, self._kept = self._kept, []
        return kept

    def _take(self, call: Call) -> list[Fragment]:
        """The fragment of an ended call, none where its runner was lost (its successor is asked for it)."""
        if call not in self._in_flight:  # of a runner that was replaced since
            return []
        request = self._in_flight[call]
        try:
            fragment: Fragment = self._result(call, request.index)
        except RunnerLostError as lost:
            self._ask_all_again(request.index, str(lost))
            return []
        except BaseException:
            del self._in_flight[call]
            raise
        del self._in_flight[call]
        return [fragment]

    def _ask_all_again(self, index: int, reason: str) -> None:
        lost = {call: request for call, request in self._in_flight.items() if request.index == index}
        for call in lost:
            del self._in_flight[call]
        self._replace(index, reason)
        self.num_lost_requests += len(lost)
        for request in lost.values():
            self._in_flight[self._send(request)] = request

    # -- runners that are lost ---

    def _result(self, call: Call, index: int) -> Any:
        try:
            value = self._backend.result(call)
        except RunnerLostError:
            raise
        except Exception as error:
            self._heard_of(index)
            first = index * int(self.envs["num_envs"]) if hasattr(self, "envs") else 0
            error.add_note(f"in env runner {index} of {len(self)}, whose environment 0 is number {first} of all")
            raise
        self._heard_of(index)
        return value

    def _heard_of(self, index: int) -> None:
        self._heard[index], self._is_new[index] = time.monotonic(), False

    def _deadline(self, index: int) -> float:
        return self._heard[index] + self.section.sample_timeout_s + (START_S if self._is_new[index] else 0.0)

    def _is_late(self, index: int) -> bool:
        return time.monotonic() >= self._deadline(index)

    def _late_text(self) -> str:
        return f"it gave no answer in env_runners.sample_timeout_s={self.section.sample_timeout_s:g} seconds"

    def _ask_again(self, request: _Request, reason: str) -> Call:
        self._ask_all_again(request.index, reason)
        self.num_lost_requests += 1
        return self._send(request)

    def _replace(self, index: int, reason: str) -> None:
        refused = self._restarts.take(index)
        if refused is not None:
            raise EnvRunnerError(
                f"env runner {index} of {len(self)} was lost ({reason}) and is not replaced: {refused} "
                "(fault_tolerance); look at what ends its process (memory? the environment?), or allow more"
            )
        self._generations[index] += 1
        self._has_weights[index], self._is_new[index] = 0, True
        self._backend.replace(index, self._generations[index])

    # -- the rest ---

    def foreach_env_runner(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(runner, *args)]`, in order, after the requests under way."""
        return self._gather([_Request(i, _apply, (func, *args)) for i in range(len(self))])

    def get_state(self) -> dict[str, Any]:
        """The state of each runner, between two samples; where environments can tell theirs, to go on exactly."""
        states = self.foreach_env_runner(EnvRunner.get_state)
        return {"runners": states, "generations": list(self._generations), "renew": self._renew}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`. A group of another number of runners begins new episodes instead."""
        if len(state["runners"]) != len(self):
            self._renew = True
            return
        self._renew, self._generations = bool(state["renew"]), list(state["generations"])
        self._gather([_Request(i, _apply, (EnvRunner.set_state, saved)) for i, saved in enumerate(state["runners"])])

    def shutdown(self) -> None:
        """Ends all runners and their environments; what is under way is lost. A second call does nothing."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._in_flight.clear()
            self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _checked_amount(num_timesteps: Any, num_episodes: Any) -> tuple[int | None, int | None]:
    """`ValueError` unless exactly one of the two is given, a whole number of at least 1."""
    named = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
    given = {name: n for name, n in named.items() if n is not None}
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in given.values())
    if len(given) != 1 or not whole:
        raise ValueError(
            f"num_timesteps={num_timesteps!r} and num_episodes={num_episodes!r} are not allowed; give exactly one of "
            "them, a whole number of at least 1"
        )
    steps, episodes = (None if n is None else int(n) for n in named.values())
    return steps, episodes


def _sample(runner: EnvRunner, num_timesteps: int | None, num_episodes: int | None, **options: Any) -> Fragment:
    return runner.sample(num_timesteps, num_episodes, **options)


def _set_weights(runner: EnvRunner, weights: ActingWeights | None = None) -> None:
    if weights is not None:
        runner.set_weights(weights)


def _apply(runner: EnvRunner, func: Callable[..., Any], *args: Any, weights: ActingWeights | None = None) -> Any:
    _set_weights(runner, weights)
    return func(runner, *args)
