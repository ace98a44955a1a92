"""`EnvRunnerGroup`: one or many env runners that sample together, in step or as each becomes ready."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from lockstep.modules import ActingWeights
from lockstep.options.restarts import RestartBudget, RestartLimits
from lockstep.rollout.base_collector import exactly_one
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner, RunnersEnv
from lockstep.rollout.errors import EnvRunnerError, RunnerLostError
from lockstep.rollout.fragments import AnyFragment, StoredFragment

INLINE_BYTES = 98_304
"""weights up to this size travel with the request for samples instead of through the object store"""
START_S = 120.0
"""seconds that a new runner may take for its first answer, beside `sample_timeout_s`"""
BuildRunner = Callable[..., EnvRunner]
"""`build(index=..., num_runners=..., generation=...)`: a runner with environments of its own"""
Call = Any
"""a call under way"""


class RunnerBackend(Protocol):
    """Where the runners of a group live. Calls of one runner are worked off in the order in which they were made."""

    is_local: bool

    def __len__(self) -> int:
        """Number of runners."""

    def put(self, value: Any) -> Any:
        """Put `value` where all runners can fetch it; return what to hand to `call`."""

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Begin `func(runner, *args, **options)` on one runner; return at once."""

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return those of `calls` that have ended, as soon as there is one; none after `timeout_s` seconds."""

    def result(self, call: Call) -> Any:
        """Return what an ended call returned, or raise what it raised; `RunnerLostError` where its runner is lost."""

    def replace(self, index: int, generation: int) -> None:
        """End a runner, if it still lives, and start another one in its place."""

    def process_ids(self) -> list[int]:
        """Return the processes of the runners, in order."""

    def shutdown(self) -> None:
        """End all processes."""


class LocalRunner:
    """One runner in this process. A call is made when its result is asked for, which is a copy."""

    is_local = True

    def __init__(self, build: BuildRunner) -> None:
        self.runner = build(index=0, num_runners=1, generation=0)

    def __len__(self) -> int:
        return 1

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Keep the call."""
        return partial(func, self.runner, *args, **options)

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return all calls."""
        return list(calls)

    def result(self, call: Call) -> Any:
        """Make the call."""
        return copy.deepcopy(call())

    def replace(self, index: int, generation: int) -> None:
        """Do nothing: this process cannot be lost."""

    def process_ids(self) -> list[int]:
        """Return none: there is no other process."""
        return []

    def shutdown(self) -> None:
        """Close the environments."""
        self.runner.close()


@dataclass(eq=False)
class _Request:
    """What a runner was asked for, so that its successor can be asked for it."""

    index: int
    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    is_waited_for: bool = True
    """does a call of the group wait for it, rather than `ready` return it?"""
    is_done: bool = False
    value: Any = None
    publication: int | None = None
    """number of the weights that it is answered with, those of when it was first made"""
    weights: Any = None


class EnvRunnerGroup:
    """Samples with all runners of a backend.

    `sample` asks all runners for their share and waits: the fragments come in the order of the runners, and with one
    seed they are the same whatever the number of runners is, as far as numpy's products of matrices of other heights
    are (single actions in the last bit of a Gaussian policy may differ). `ask` asks one runner and does not wait;
    `ready` returns the fragments that have come.

    `set_weights` puts the weights once where all runners can fetch them; each takes them with its next request, so
    that a version costs no round trip of its own. Normalisers of observations have their statistics from the learner,
    which sees the raw rows of all runners, and travel with the weights; runners keep none of their own. Scaling of
    rewards is the learner's alone. Nothing has to be merged.

    A runner that dies, or takes longer than `section.sample_timeout_s`, is replaced. Each answer brings the runner's
    state; its successor goes on from the last one and is asked for the same with the same weights, so that the run is,
    to the last bit, the undisturbed one. Where environments cannot tell their state, and where the successor is lost
    before it has answered, too (what it was asked for may be what ends its process), the next one has random streams of
    its own and begins new episodes. Beyond `limits`: `EnvRunnerError`. What an environment raises is raised here; the
    next sample begins new episodes on that runner (after `sample`: on all).
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
        self._states: list[Any] = [None] * len(backend)
        """of each runner after its last answer; None: not known, or nothing was answered yet"""
        self._left_behind: list[Any] = [None] * len(backend)
        """state of a lost runner, which its successor takes with its first request"""
        self._is_successor = [False] * len(backend)
        """did a runner take the place of a lost one, and has not answered yet?"""
        self._heard = [time.monotonic()] * len(backend)
        """when each runner last gave an answer, or was asked while it was idle"""
        self._to_renew: set[int] = set()
        """runners whose next fragment begins new episodes"""
        self._in_flight: dict[Call, _Request] = {}
        self._finished: list[StoredFragment] = []
        """fragments that `ready` has not returned yet"""
        self._is_shut_down = False
        self.num_lost_requests = 0
        """requests whose runner was lost; each was made again to its successor"""
        try:
            self.envs: RunnersEnv = self.foreach_env_runner(EnvRunner.describe)[0]
            """those of one runner"""
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
        return len(self) * self.envs.num_envs

    @property
    def num_in_flight(self) -> int:
        """Requests of `ask` under way."""
        return len(self._in_flight)

    @property
    def num_restarts(self) -> int:
        """Runners that were replaced."""
        return self._restarts.num_restarts

    def get_stats(self) -> dict[str, int]:
        """Return numbers of runners, replacements, requests under way and lost, and the version of the weights."""
        return {
            "num_env_runners": 0 if self.is_local else len(self),
            "num_restarts": self.num_restarts,
            "num_in_flight": self.num_in_flight,
            "num_lost_requests": self.num_lost_requests,
            "weights_seq_no": -1 if self._version is None else self._version,
        }

    def process_ids(self) -> list[int]:
        """Return the processes of the runners, in order; none for a local one."""
        return self._backend.process_ids()

    def check_open(self) -> None:
        """Raise `RuntimeError` after `shutdown`."""
        if self._is_shut_down:
            raise RuntimeError("these env runners are shut down; build a new group, or a new collector with it")

    # -- weights ---

    def set_weights(self, weights: ActingWeights) -> None:
        """Make each runner act with these from its next request on.

        The weights are taken over at once: what they were made from may change afterwards.
        """
        self.check_open()
        is_small = weights.num_bytes <= INLINE_BYTES or self.is_local
        self._weights = replace(weights, flat=weights.flat.copy()) if is_small else self._backend.put(weights)
        self._version, self._publication = weights.version, self._publication + 1

    # -- sampling in step ---

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> list[Any]:
        """Return one fragment of each runner, in their order: together `num_timesteps` steps (rounded up to whole
        vector steps of all environments) or `num_episodes` whole episodes.

        A fragment is a `Fragment`, of several agents an `AgentFragment`; runners that store nothing give
        `UnstoredFragment`s.
        Of episodes each runner plays its share, so that none is preferred for being short; runners without a share are
        left out. The sample after it begins new episodes. Raises `ValueError` unless exactly one of the two is passed
        and no request of `ask` is under way.
        """
        if self._in_flight:
            raise ValueError(f"{self.num_in_flight} asynchronous requests are under way; call drain() before sample()")
        exactly_one(num_timesteps=num_timesteps, num_episodes=num_episodes)
        number = len(self)
        shares: list[tuple[int | None, int | None]]
        if num_timesteps is not None:
            shares = [(-(-num_timesteps // self.num_envs) * self.num_envs // number, None)] * number
        else:
            episodes = num_episodes or 0
            shares = [(None, episodes // number + (i < episodes % number)) for i in range(number)]
        options = {"random": random, "renew": bool(self._to_renew)}
        self.renew()  # unless all ends well
        requests = [
            _Request(i, EnvRunner.sample, share, options) for i, share in enumerate(shares) if share != (None, 0)
        ]
        fragments: list[AnyFragment] = self._gather(requests)
        if num_episodes is None:  # else others are in the middle of episodes that are nowhere
            self._to_renew.clear()
        return fragments

    def reset(self) -> None:
        """Begin new episodes everywhere now."""
        self.renew()  # unless all ends well
        self.foreach_env_runner(EnvRunner.reset)
        self._to_renew.clear()

    def renew(self) -> None:
        """Begin new episodes everywhere with the next fragments."""
        self.check_open()
        self._to_renew = set(range(len(self)))

    def foreach_env_runner(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Return `[func(runner, *args)]`, in order, after the requests under way."""
        return self._gather([_Request(i, func, args) for i in range(len(self))])

    def _gather(self, requests: Sequence[_Request]) -> list[Any]:
        """Return the result of each request, in order."""
        for request in requests:
            self._send(request)
        try:
            while not all(request.is_done for request in requests):
                self._receive(math.inf)
        finally:
            self._in_flight = {call: other for call, other in self._in_flight.items() if not other.is_waited_for}
        return [request.value for request in requests]

    # -- sampling as runners become ready ---

    def ask(
        self,
        index: int,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> None:
        """Ask one runner for a fragment of `num_timesteps` steps or `num_episodes` episodes; `ready` returns it."""
        exactly_one(num_timesteps=num_timesteps, num_episodes=num_episodes)
        options = {"random": random, "renew": index in self._to_renew}
        self._to_renew.discard(index)
        self._send(_Request(index, EnvRunner.sample, (num_timesteps, num_episodes), options, is_waited_for=False))

    def num_asked(self, index: int) -> int:
        """Return the number of requests under way on one runner."""
        return sum(request.index == index for request in self._in_flight.values())

    def ready(self, timeout_s: float = 0.0) -> list[StoredFragment]:
        """Return the fragments that have come, those of one runner in its order; each tells its `weights_seq_no`.

        Waits up to `timeout_s` seconds for the first one, if any is under way.
        """
        until = time.monotonic() + timeout_s
        while self._in_flight:
            self._receive(until)
            if self._finished or time.monotonic() >= until:
                break
        finished, self._finished = self._finished, []
        return finished

    def drain(self) -> list[StoredFragment]:
        """Wait for all requests under way; return their fragments."""
        while self._in_flight:
            self._receive(math.inf)
        return self.ready()

    # -- requests ---

    def _send(self, request: _Request) -> None:
        self.check_open()
        i, options = request.index, dict(request.options)
        if request.publication is None:
            request.publication, request.weights = self._publication, self._weights
        if request.publication != self._has_weights[i]:
            options["weights"], self._has_weights[i] = request.weights, request.publication
        if self._left_behind[i] is not None:
            options["state"], self._left_behind[i] = self._left_behind[i], None
        if self.num_asked(i) == 0:
            self._heard[i] = time.monotonic()
        apply = EnvRunner.apply if self.is_local else EnvRunner.apply_with_state
        self._in_flight[self._backend.call(i, apply, request.func, *request.args, **options)] = request

    def _receive(self, until: float) -> None:
        """Wait until a call has ended, or until then; take in what has ended, replace runners that are lost or late."""
        late = min(self._deadline(request.index) for request in self._in_flight.values())
        for call in self._backend.wait(list(self._in_flight), max(0.0, min(until, late) - time.monotonic())):
            if call in self._in_flight:  # else it is of a runner that was replaced since
                self._take(call)
        for i in {request.index for request in self._in_flight.values()}:
            if time.monotonic() >= self._deadline(i):
                self._replace(
                    i, f"it gave no answer in env_runners.sample_timeout_s={self.section.sample_timeout_s:g} seconds"
                )

    def _take(self, call: Call) -> None:
        """Take in what an ended call returned. Raises what it raised."""
        request = self._in_flight[call]
        i = request.index
        try:
            answer = self._backend.result(call)
        except RunnerLostError as lost:
            self._replace(i, str(lost))
            return
        except BaseException as error:
            del self._in_flight[call]
            error.add_note(f"in env runner {i} of {len(self)}")
            self._note_answer(i, None)
            raise
        del self._in_flight[call]
        request.value, state = (answer, None) if self.is_local else answer
        request.is_done = True
        self._note_answer(i, state)
        if not request.is_waited_for:
            self._finished.append(request.value)

    def _note_answer(self, index: int, state: Any) -> None:
        self._heard[index], self._states[index] = time.monotonic(), state
        self._is_new[index] = self._is_successor[index] = False

    def _deadline(self, index: int) -> float:
        return self._heard[index] + self.section.sample_timeout_s + (START_S if self._is_new[index] else 0.0)

    def _replace(self, index: int, reason: str) -> None:
        """Start another runner in the place of a lost one, and ask it for what that one was asked for."""
        refused = self._restarts.take(index)
        if refused is not None:
            raise EnvRunnerError(
                f"env runner {index} of {len(self)} was lost ({reason}) and is not replaced: {refused} "
                "(fault_tolerance); look at what ends its process (memory? the environment?), or allow more"
            )
        left = None if self._is_successor[index] else self._states[index]
        if self._is_successor[index] or (left is None and not self._is_new[index]):
            self._generations[index] += 1
        self._left_behind[index], self._states[index], self._has_weights[index] = left, None, 0
        self._is_new[index] = self._is_successor[index] = True
        lost = {call: request for call, request in self._in_flight.items() if request.index == index}
        for call in lost:
            del self._in_flight[call]
        self.num_lost_requests += len(lost)
        self._backend.replace(index, self._generations[index])
        for request in lost.values():
            self._send(request)

    # -- state, end ---

    def get_state(self) -> dict[str, Any]:
        """Return the state of each runner, between two samples; exact where environments can tell theirs."""
        states = self.foreach_env_runner(EnvRunner.get_state)
        return {"runners": states, "generations": list(self._generations), "renew": sorted(self._to_renew)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`. A group of another number of runners begins new episodes instead."""
        runners = state["runners"]
        if len(runners) != len(self):
            self.renew()
            return
        self._to_renew = set(state["renew"])
        self._generations = list(state["generations"])
        self._gather([_Request(i, EnvRunner.set_state, (saved,)) for i, saved in enumerate(runners)])

    def shutdown(self) -> None:
        """End all runners and their environments; what is under way is lost. A second call does nothing."""
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
