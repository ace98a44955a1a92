"""`EnvRunnerGroup`: env runners, in this process or in many, that sample together or each as soon as it is ready."""

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
"""Size in bytes up to which weights are sent with each request, instead of through Ray's object store."""
START_S = 120.0
"""Time in seconds that a new runner may take for its first answer, in addition to `sample_timeout_s`."""
BuildRunner = Callable[..., EnvRunner]
"""Function `build(index=..., num_runners=..., generation=...)` that returns a runner with its own environments."""
Call = Any
"""Handle of a call that a backend has begun."""


class RunnerBackend(Protocol):
    """The place where the runners of a group live. Each runner executes its calls in the order in which they were
    made."""

    is_local: bool
    """Whether the runner is in this process."""

    def __len__(self) -> int:
        """Number of runners."""

    def put(self, value: Any) -> Any:
        """Store `value` where all runners can read it; return the reference to pass to `call`."""

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Begin `func(runner, *args, **options)` on one runner, and return its handle without waiting."""

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return the ended ones of `calls` as soon as there is one; an empty list after `timeout_s` seconds."""

    def result(self, call: Call) -> Any:
        """Return the result of an ended call, or raise its exception; `RunnerLostError` if its runner is lost."""

    def replace(self, index: int, generation: int) -> None:
        """End a runner, if it is still alive, and start another one in its place."""

    def process_ids(self) -> list[int]:
        """Return the process ids of the runners, in order."""

    def shutdown(self) -> None:
        """End all processes."""


class LocalRunner:
    """Backend with one runner in this process. A call is made when its result is requested, and the result is
    copied."""

    is_local = True

    def __init__(self, build: BuildRunner) -> None:
        self.runner = build(index=0, num_runners=1, generation=0)

    def __len__(self) -> int:
        return 1

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Return a function that makes the call."""
        return partial(func, self.runner, *args, **options)

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return all calls."""
        return list(calls)

    def result(self, call: Call) -> Any:
        """Make the call, and return a copy of its result: the runner overwrites its columns in the next sample."""
        return copy.deepcopy(call())

    def replace(self, index: int, generation: int) -> None:
        """Do nothing: this process cannot be lost."""

    def process_ids(self) -> list[int]:
        """Return an empty list: there is no other process."""
        return []

    def shutdown(self) -> None:
        """Close the environments."""
        self.runner.close()


@dataclass(eq=False)
class _Request:
    """A request to one runner. It is kept until it is answered, so that a successor of the runner can answer it."""

    index: int
    """Index of the runner."""
    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    is_blocking: bool = True
    """Whether a method of the group waits for the answer; otherwise `ready` returns it."""
    is_done: bool = False
    value: Any = None
    """The answer, once the request is done."""
    publication: int | None = None
    """Number of the `set_weights` call whose weights the runner acts with for this request. It is fixed when the
    request is sent first, so that a successor acts with the same weights."""
    weights: Any = None
    """Weights of that publication, as a backend's `put` returned them."""


@dataclass
class _RunnerRecord:
    """The group's knowledge of one runner."""

    generation: int = 0
    """Number of the random streams of the runner; it grows where a successor cannot continue the state."""
    publication: int = 0
    """Number of the `set_weights` call whose weights the runner was sent last."""
    has_answered: bool = False
    """Whether the present process has answered a request."""
    is_successor: bool = False
    """Whether the present process replaced a lost one and has not answered yet."""
    state: Any = None
    """State of the runner after its last answer; None if it is not known."""
    state_to_restore: Any = None
    """State of a lost runner, which its successor gets with its first request."""
    last_answer: float = field(default_factory=time.monotonic)
    """Time of the runner's last answer, or of the last request that it got while it was idle."""


class EnvRunnerGroup:
    """All env runners of a backend, as one source of samples.

    Sampling: `sample` requests a share from each runner and waits; fragments are in the order of the runners. With one
    seed they are the same for any number of runners, as far as numpy's matrix products do not depend on the number of
    rows (single actions of a Gaussian policy may differ in the last bit). `ask` requests a fragment from one runner
    without waiting; `ready` returns the fragments that have arrived.

    Weights: `set_weights` stores the weights once where all runners can read them. Each runner takes them with its next
    request, so that new weights cost no round trip. The learner computes the statistics of observation normalisers,
    because it sees the raw rows of all runners, and sends them with the weights. Rewards are scaled in the learner
    only. So runners compute no statistics, and none have to be merged.

    Lost runners: a runner that dies, or takes longer than `section.sample_timeout_s`, is replaced. Each answer contains
    the runner's state. The successor restores the last state and answers the same requests with the same weights, so
    that the run continues bit for bit as without the loss. If the environments do not support saving their state, the
    successor has new random streams and begins new episodes. The same happens if a successor is lost before its first
    answer: the saved state or the request may have ended it, so the next successor does not repeat them exactly.

    Args:
        backend: The place where the runners live.
        section: Options of collection.
        limits: Limits of the replacements.

    Raises:
        EnvRunnerError: From any method that waits for answers: more runners were lost than `limits` allow. What an
            environment raises is raised in the same methods. The next sample then begins new episodes on that runner
            (after `sample`: on all runners).
    """

    def __init__(
        self, backend: RunnerBackend, section: EnvRunnersSection | None = None, limits: RestartLimits | None = None
    ) -> None:
        self.section = section or EnvRunnersSection()
        self._restarts = RestartBudget(limits or RestartLimits())
        self._backend = backend
        self._weights: Any = None
        self._version: int | None = None
        """Version of the weights; None before the first `set_weights`."""
        self._publication = 0
        """Number of calls of `set_weights`."""
        self._runners = [_RunnerRecord() for _ in range(len(backend))]
        self._to_renew: set[int] = set()
        """Runners that begin new episodes with their next fragment."""
        self._in_flight: dict[Call, _Request] = {}
        """Requests that are not answered yet, by the handle of their call."""
        self._finished: list[StoredFragment] = []
        """Fragments that have arrived and were not returned by `ready` yet."""
        self._is_shut_down = False
        self.num_lost_requests = 0
        """Number of requests whose runner was lost. Each was sent again to the successor."""
        try:
            self.envs: RunnersEnv = self.foreach_env_runner(EnvRunner.describe)[0]
            """Description of the environments of one runner."""
        except BaseException:
            # This includes KeyboardInterrupt: nobody else has the group and could end the processes of its runners.
            self.shutdown()
            raise

    # -- properties ---

    @property
    def is_local(self) -> bool:
        """Whether the runner is in this process."""
        return self._backend.is_local

    def __len__(self) -> int:
        """Number of runners; 1 for a runner in this process."""
        return len(self._backend)

    @property
    def num_envs(self) -> int:
        """Number of environments of all runners."""
        return len(self) * self.envs.num_envs

    @property
    def num_in_flight(self) -> int:
        """Number of requests of `ask` that are not answered yet."""
        return len(self._in_flight)

    @property
    def num_restarts(self) -> int:
        """Number of replaced runners."""
        return self._restarts.num_restarts

    def get_stats(self) -> dict[str, int]:
        """Return the numbers of runners, replacements, open and lost requests, and the version of the weights."""
        num_env_runners = 0 if self.is_local else len(self)
        return {
            "num_env_runners": num_env_runners,
            "num_restarts": self.num_restarts,
            "num_in_flight": self.num_in_flight,
            "num_lost_requests": self.num_lost_requests,
            "weights_seq_no": -1 if self._version is None else self._version,
        }

    def process_ids(self) -> list[int]:
        """Return the process ids of the runners, in order; an empty list for a runner in this process."""
        return self._backend.process_ids()

    def check_open(self) -> None:
        """Raise `RuntimeError` after `shutdown`."""
        if self._is_shut_down:
            raise RuntimeError("these env runners are shut down; build a new group, or a new collector with it")

    # -- weights ---

    def set_weights(self, weights: ActingWeights) -> None:
        """Make each runner act with these weights from its next request on.

        The weights are copied: their owner may change them afterwards.
        """
        self.check_open()
        is_small = weights.num_bytes <= INLINE_BYTES or self.is_local
        if is_small:
            self._weights = replace(weights, flat=weights.flat.copy())
        else:
            self._weights = self._backend.put(weights)
        self._version = weights.version
        self._publication += 1

    # -- synchronous sampling ---

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> list[Any]:
        """Return one fragment of each runner, in the order of the runners, after waiting for all of them.

        Fragments are of the class `Fragment`, or `AgentFragment` for several agents; runners that store nothing return
        `UnstoredFragment`s. With `num_episodes` each runner collects its share of the episodes, so that short episodes
        are not favoured. Runners without a share are left out, and the next sample begins new episodes.

        Args:
            num_timesteps: Number of steps of all fragments together, rounded up to whole vector steps of all
                environments.
            num_episodes: Number of whole episodes of all fragments together.
            random: Whether actions are drawn uniformly from the action space.

        Raises:
            ValueError: Not exactly one of the two amounts is passed, or a request of `ask` is not answered yet.
            EnvRunnerError, EnvironmentStepError, MalformedBufferError: See the class and `EnvRunner.sample`.
        """
        if self._in_flight:
            raise ValueError(f"{self.num_in_flight} asynchronous requests are under way; call drain() before sample()")
        exactly_one(num_timesteps=num_timesteps, num_episodes=num_episodes)
        number = len(self)
        shares: list[tuple[int | None, int | None]]
        if num_timesteps is not None:
            num_vector_steps = -(-num_timesteps // self.num_envs)
            shares = [(num_vector_steps * self.num_envs // number, None)] * number
        else:
            num_each, remainder = divmod(num_episodes or 0, number)
            shares = [(None, num_each + (i < remainder)) for i in range(number)]

        # In a synchronous collect all runners begin new episodes if one of them has to, as one collector would.
        options = {"random": random, "renew": bool(self._to_renew)}
        # If one runner fails, the others have taken steps that nobody collects: all of them must begin new episodes.
        self.renew()
        requests = [
            _Request(i, EnvRunner.sample, share, options) for i, share in enumerate(shares) if share != (None, 0)
        ]
        fragments: list[AnyFragment] = self._gather(requests)
        if num_episodes is None:
            # After a collect by episodes `_to_renew` stays: environments that did not count any more are in the middle
            # of episodes that are not stored.
            self._to_renew.clear()
        return fragments

    def reset(self) -> None:
        """Begin new episodes in all environments now."""
        self.renew()  # in case the reset fails on one of the runners
        self.foreach_env_runner(EnvRunner.reset)
        self._to_renew.clear()

    def renew(self) -> None:
        """Begin new episodes in all environments with the next fragments."""
        self.check_open()
        self._to_renew = set(range(len(self)))

    def foreach_env_runner(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `func(runner, *args)` on each runner after its open requests, and return the results in order."""
        return self._gather([_Request(i, func, args) for i in range(len(self))])

    def _gather(self, requests: Sequence[_Request]) -> list[Any]:
        """Send requests, wait for all answers, and return them in the order of the requests."""
        for request in requests:
            self._send(request)
        try:
            while not all(request.is_done for request in requests):
                self._receive(math.inf)
        finally:
            # If one request has raised, the answers to the others of this call are of no use any more.
            self._in_flight = {call: request for call, request in self._in_flight.items() if not request.is_blocking}
        return [request.value for request in requests]

    # -- asynchronous sampling ---

    def ask(
        self,
        index: int,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
    ) -> None:
        """Request a fragment from one runner, without waiting; `ready` returns it.

        Args:
            index: Index of the runner.
            num_timesteps: Number of steps of the fragment.
            num_episodes: Number of whole episodes of the fragment, instead of steps.
            random: Whether actions are drawn uniformly from the action space.
        """
        exactly_one(num_timesteps=num_timesteps, num_episodes=num_episodes)
        options = {"random": random, "renew": index in self._to_renew}
        self._to_renew.discard(index)
        self._send(_Request(index, EnvRunner.sample, (num_timesteps, num_episodes), options, is_blocking=False))

    def num_asked(self, index: int) -> int:
        """Return the number of open requests to one runner."""
        return sum(request.index == index for request in self._in_flight.values())

    def ready(self, timeout_s: float = 0.0) -> list[StoredFragment]:
        """Return the fragments that have arrived, the fragments of a runner in the order in which it sampled them.

        Waits up to `timeout_s` seconds for the first fragment, if any is requested.
        """
        until = time.monotonic() + timeout_s
        while self._in_flight:
            self._receive(until)
            if self._finished or time.monotonic() >= until:
                break
        finished = self._finished
        self._finished = []
        return finished

    def drain(self) -> list[StoredFragment]:
        """Wait for all requested fragments, and return them."""
        while self._in_flight:
            self._receive(math.inf)
        return self.ready()

    # -- requests ---

    def _send(self, request: _Request) -> None:
        """Send a request to its runner, with the weights and the state that the runner needs and does not have."""
        self.check_open()
        i = request.index
        runner = self._runners[i]
        options = dict(request.options)
        if request.publication is None:
            request.publication = self._publication
            request.weights = self._weights
        if request.publication != runner.publication:
            options["weights"] = request.weights
            runner.publication = request.publication
        if runner.state_to_restore is not None:
            options["state"] = runner.state_to_restore
            runner.state_to_restore = None
        if self.num_asked(i) == 0:
            # The runner was idle, and its time for an answer begins now.
            runner.last_answer = time.monotonic()
        apply = EnvRunner.apply if self.is_local else EnvRunner.apply_with_state
        self._in_flight[self._backend.call(i, apply, request.func, *request.args, **options)] = request

    def _receive(self, until: float) -> None:
        """Wait until a call has ended or the time is `until`; take the answers, and replace lost and late runners."""
        next_deadline = min(self._deadline(request.index) for request in self._in_flight.values())
        timeout_s = max(0.0, min(until, next_deadline) - time.monotonic())
        for call in self._backend.wait(list(self._in_flight), timeout_s):
            # The calls of a runner that was replaced in this loop are not in flight any more.
            if call in self._in_flight:
                self._take_answer(call)
        for i in {request.index for request in self._in_flight.values()}:
            if time.monotonic() >= self._deadline(i):
                self._replace(
                    i, f"it gave no answer in env_runners.sample_timeout_s={self.section.sample_timeout_s:g} seconds"
                )

    def _take_answer(self, call: Call) -> None:
        """Take the answer of an ended call, or raise the exception of the call. A lost runner is replaced."""
        request = self._in_flight[call]
        i = request.index
        try:
            answer = self._backend.result(call)
        except RunnerLostError as lost:
            self._replace(i, str(lost))
            return
        except BaseException as error:
            # KeyboardInterrupt too: a local runner steps environments within `result`, and an unfinished call that
            # stayed in flight would be made again.
            del self._in_flight[call]
            error.add_note(f"in env runner {i} of {len(self)}")
            self._note_answer(i, None)
            raise
        del self._in_flight[call]
        request.value, state = (answer, None) if self.is_local else answer
        request.is_done = True
        self._note_answer(i, state)
        if not request.is_blocking:
            self._finished.append(request.value)

    def _note_answer(self, index: int, state: Any) -> None:
        """Note that a runner has answered. `state`: its state afterwards; None if it is not known."""
        runner = self._runners[index]
        runner.last_answer = time.monotonic()
        runner.state = state
        runner.has_answered = True
        runner.is_successor = False

    def _deadline(self, index: int) -> float:
        """Return the time at which a runner without an answer counts as hanging."""
        runner = self._runners[index]
        start_s = 0.0 if runner.has_answered else START_S
        return runner.last_answer + self.section.sample_timeout_s + start_s

    def _replace(self, index: int, reason: str) -> None:
        """Start a successor of a lost runner, and send it the open requests of the lost one."""
        refusal = self._restarts.take(index)
        if refusal is not None:
            raise EnvRunnerError(
                f"env runner {index} of {len(self)} was lost ({reason}) and is not replaced: {refusal} "
                "(fault_tolerance); look at what ends its process (memory? the environment?), or allow more"
            )

        runner = self._runners[index]
        # A successor that is lost before its first answer may have been ended by the request itself. The next one gets
        # no state and other random streams, so that it does not run into the same step again.
        state = None if runner.is_successor else runner.state
        is_state_unknown = runner.has_answered and state is None
        if runner.is_successor or is_state_unknown:
            runner.generation += 1
        runner.state_to_restore = state
        runner.state = None
        runner.publication = 0
        runner.has_answered = False
        runner.is_successor = True

        lost_requests = {call: request for call, request in self._in_flight.items() if request.index == index}
        for call in lost_requests:
            del self._in_flight[call]
        self.num_lost_requests += len(lost_requests)
        self._backend.replace(index, runner.generation)
        for request in lost_requests.values():
            self._send(request)

    # -- state, end ---

    def get_state(self) -> dict[str, Any]:
        """Return the state of each runner. Environments that do not support saving their state are left out of it."""
        states = self.foreach_env_runner(EnvRunner.get_state)
        generations = [runner.generation for runner in self._runners]
        return {"runners": states, "generations": generations, "renew": sorted(self._to_renew)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. With another number of runners, new episodes begin instead."""
        runner_states = state["runners"]
        if len(runner_states) != len(self):
            self.renew()
            return
        self._to_renew = set(state["renew"])
        for runner, generation in zip(self._runners, state["generations"]):
            runner.generation = generation
        self._gather([_Request(i, EnvRunner.set_state, (saved,)) for i, saved in enumerate(runner_states)])

    def shutdown(self) -> None:
        """End all runners and their environments. Open requests are lost; a second call does nothing."""
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
