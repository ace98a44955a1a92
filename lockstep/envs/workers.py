"""Environments in separate processes, stepped together or row by row. Dead or hanging workers are restarted."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, iterate

from lockstep.data.trees import Tree, allocate, concat_trees, copy_arrays, map_tree, rows_of, write_rows
from lockstep.data.values import ARRAY_SPACES, ObservationForm, as_reward
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary, space_of
from lockstep.envs.channel import Channel, seconds_until
from lockstep.envs.env_state import env_state, set_env_state
from lockstep.envs.errors import RAISED, EnvironmentStepError, EnvironmentTimeoutError, WorkerTraceback, step_error
from lockstep.envs.worker_process import begin_worker, worker_context
from lockstep.options.checks import no_copies
from lockstep.options.restarts import RestartBudget, RestartLimits

_GRACE = 1.0
"""Seconds that a worker has to close its environment and exit before it is killed."""
_LOST = object()
"""Answer of a row whose worker was restarted, in place of its transition."""


@dataclass(frozen=True)
class RowStepResult:
    """Result of one environment's step. The observation to act on next is in `WorkerVectorEnv.observations`."""

    row: int
    """Row of the environment in the vector."""
    reward: float = 0.0
    """Reward of the step."""
    terminated: bool = False
    """True if the task ended: bootstrap with 0."""
    truncated: bool = False
    """True if the episode was cut off: bootstrap with the value of `final_obs`."""
    final_obs: Tree = None
    """Last observation of the episode, a tree `[1, ...]`; None if no episode ended."""
    info: dict[str, Any] | None = None
    """Info of the last step of an episode; None if it is empty or no episode ended."""
    lost: bool = False
    """True if the worker was restarted: there is no transition, and a new episode has begun."""


class WorkerVectorEnv(VectorBoundary):
    """Vector of `B` environments in separate processes that resets a finished one at once (SAME_STEP).

    A worker that dies, or does not answer within `step_timeout`, is restarted as far as `restarts` allows. Only its own
    unfinished episode is lost (`StepResult.lost`). An exception in an environment is raised here with its traceback and
    causes no restart: the same code would raise again. `send` and `receive` step single rows.

    The values of every step (action, observation, reward, flags) are in memory that all processes share. The channel of
    a row then carries an empty message each way, which only wakes the process at its other end. No lock is needed: a
    worker writes its row only between the message that asks for a step and its answer, and this process reads the row
    only after the answer. Values that not every step has (final observations, infos, errors) are pickled into the
    answer.

    Args:
        env_fns: One function for each row that makes its environment.
        step_timeout: Seconds that an environment may take for a step or a reset. None waits for ever.
        restarts: Limits for all rows together. By default 10 in a run and 1 in 60 s.

    Raises:
        ValueError: A space is not stored in fixed-size arrays, or `restarts` is not a `RestartLimits`.
    """

    backend = "workers"
    autoreset_mode = "SAME_STEP"
    has_invalid_rows = True  # a lost row is not a transition

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        *,
        step_timeout: float | None = None,
        restarts: RestartLimits | None = None,
    ) -> None:
        if restarts is not None and not isinstance(restarts, RestartLimits):  # `restarts=0` must not mean the default
            raise ValueError(
                f"restarts={restarts!r} is not allowed; it must be a lockstep.envs.RestartLimits (RestartLimits(0): "
                "never), or None for the default"
            )
        self.num_envs = len(env_fns)

        # The spaces must be known before the shared memory is allocated, hence before any worker starts.
        probe = env_fns[0]()
        self._set_spaces(space_of(probe, "observation_space"), space_of(probe, "action_space"))
        self.single_env_spec = probe.spec
        probe.close()

        self.step_timeout = step_timeout
        self.restarts = RestartBudget(restarts or RestartLimits())
        self._env_fns = [CloudpickleWrapper(make) for make in env_fns]
        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, ARRAY_SPACES)
        """True if the actions of a step are one array [B, ...], so that `actions[row]` is the action of a row."""

        self._memory: list[Any] = []
        """Blocks of shared memory, in the order in which `_SharedRows` asks for them."""
        shared = _SharedRows(self.observation_space, self.action_space, self.num_envs, self._allocate)
        self.observations = shared.obs
        """The newest observation of every row, a tree `[B, ...]`. Later steps write into it."""
        self._actions = shared.actions
        self._result = StepResult(self.observations, self.num_envs)
        self._result.rewards = shared.rewards
        self._result.terminateds = shared.terminateds
        self._result.truncateds = shared.truncateds

        self._seeds: list[int | None] = [None] * self.num_envs
        """Seed of each row's last explicit reset; a restarted worker derives its new one from it."""
        self._sent: dict[int, tuple[float | None, Tree]] = {}
        """`row: (deadline, action)` for the rows that `send` has started and `receive` has not returned."""
        self._unpicklable_keys: set[str] = set()
        """Keys of infos about which a warning was given."""
        self._channels: list[Any] = [None] * self.num_envs
        self._processes: list[Any] = [None] * self.num_envs
        # A vector that is garbage-collected without `close` leaves no processes behind. The finalizer gets the lists
        # and not `self`, which it would keep alive.
        self._finalizer = weakref.finalize(self, _end_workers, self._channels, self._processes, os.getpid())
        for row in range(self.num_envs):
            self._start(row)

    @property
    def num_restarts(self) -> int:
        """Number of workers that were restarted since the vector was made."""
        return self.restarts.num_restarts

    def _allocate(self, size: int) -> Any:
        """Return a block of `size` bytes that every worker can map."""
        self._memory.append(worker_context().RawArray("b", size))
        return self._memory[-1]

    def _start(self, row: int) -> None:
        """Start the worker process of a row."""
        ours, theirs = Channel.pair()
        arguments = (self._env_fns[row], row, self.num_envs, theirs, self._memory)
        process = worker_context().Process(target=_work, args=arguments, daemon=True, name=f"environment {row}")
        process.start()
        # Only the worker may hold its end; otherwise the channel would not report the end of a dead worker.
        theirs.close()
        self._channels[row] = ours
        self._processes[row] = process

    # -- requests and answers ---

    def _ask(self, row: int, name: str, argument: object = None, *, deadline: float | None) -> None:
        """Send a request to the worker of a row. A dead worker is noticed when its answer is read."""
        self._channels[row].offer(ForkingPickler.dumps((name, argument)), deadline)

    def _read_answer(self, row: int, deadline: float | None, action: Tree, during: str) -> Any:
        """Return the answer of a row, or `_LOST` if its worker was restarted; raise what its environment raised.

        The answer to a step is None or `(final observation, its info)`; all else is in the shared memory.
        """
        try:
            message = self._receive(row, deadline)
        except (EOFError, OSError) as error:
            self._restart(row, error, action, during)
            return _LOST
        if not message:
            return None

        succeeded, answer, details = ForkingPickler.loads(message)
        if not succeeded:
            failure = step_error(answer, backend=self.backend, env_index=row, action=action, during=during)
            raise failure from WorkerTraceback(details)
        self._warn_of_unpicklable(details)

        if during == "reset" and self.infos is not None:
            self.infos.step_infos[row] = {}
            self.infos.reset_infos[row] = answer or self.infos.reset_infos[row]
        elif during == "step":
            *ending, infos = answer
            if self.infos is not None:
                self.infos.step_infos[row] = infos[0]
                self.infos.reset_infos[row] = infos[1] or self.infos.reset_infos[row]
            return ending if ending[0] is not None else None
        return answer

    def _warn_of_unpicklable(self, reasons: dict[str, str]) -> None:
        """Warn once about each key of an info that could not be pickled. `reasons`: `{key: reason}`."""
        for key in reasons.keys() - self._unpicklable_keys:
            self._unpicklable_keys.add(key)
            warnings.warn(
                f"info[{key!r}] cannot be pickled and is left out ({reasons[key]}): an environment in its own process "
                "can only give what can; take it out of info, or step the environments in this process "
                "(vectorize_mode='sync', make_vector(..., mode='sync'))",
                RuntimeWarning,
                stacklevel=4,
            )

    def keep_infos(self) -> None:
        """Make every worker send its infos from now on."""
        if self.infos is None:
            self._ask_all("keep_infos", [None] * self.num_envs)
            self.infos = RowInfos(self.num_envs)

    def _receive(self, row: int, deadline: float | None) -> bytes:
        """Return the next message of a row. `TimeoutError` after the deadline, `EOFError` from a dead worker."""
        message: bytes = self._channels[row].receive(deadline)
        return message

    def _deadline(self) -> float | None:
        """Return the time of `time.monotonic()` by which a request that is sent now must be answered."""
        return None if self.step_timeout is None else time.monotonic() + self.step_timeout

    def _ask_all(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Send a request to every row and return their answers."""
        deadline = self._deadline()
        for row, argument in enumerate(arguments):
            self._ask(row, name, argument, deadline=deadline)
        return self._read_answers(deadline, [None] * self.num_envs, name)

    def _read_answers(self, deadline: float | None, actions: Sequence[Tree], during: str) -> list[Any]:
        """Return the answers of all rows. Reads all before it raises the first error.

        An answer that stays in its channel would be taken for the answer to the next request.
        """
        answers: list[Any] = []
        failure: EnvironmentStepError | None = None
        for row, action in enumerate(actions):
            try:
                answers.append(self._read_answer(row, deadline, action, during))
            except EnvironmentStepError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def _restart(self, row: int, error: Exception, action: Tree, during: str) -> None:
        """Start a new worker that begins a new episode, and warn. Raises if the limits do not allow a restart."""
        hangs = isinstance(error, TimeoutError)
        self._end_worker(row)
        event = f"did not answer within step_timeout={self.step_timeout} s" if hangs else "ended without an answer"
        code = "" if hangs else f", exit code {self._processes[row].exitcode}"
        failure = f"environment {row} {event} (during {during}; last action: {action!r}{code})"

        refusal = self.restarts.take("any")  # one key: the rows share the limits
        if refusal is not None:
            self._failure = failure
            self._end_all()
            kind = EnvironmentTimeoutError if hangs else EnvironmentStepError
            raise kind(
                f"{failure}, and was not started again: {refusal}. All workers were ended; build the vector again.",
                env_index=row,
                action=action,
            ) from error
        warnings.warn(
            f"{failure}; it was started again ({self.num_restarts} of {self.restarts.limits.in_run}), its unfinished "
            "episode is lost",
            RuntimeWarning,
            stacklevel=2,
        )

        self._start(row)
        deadline = self._deadline()
        if self.infos is not None:
            self._ask(row, "keep_infos", deadline=deadline)
            self._read_answer(row, deadline, None, "keep_infos")
        # Another seed than before: with the same one, the environment would repeat the episodes that it has played,
        # and perhaps die in the same step again.
        seed = self._seeds[row]
        self._seeds[row] = None if seed is None else (seed + 1_000_003) % 2**31
        self._ask(row, "reset", self._seeds[row], deadline=deadline)
        self._read_answer(row, deadline, None, "reset")

    # -- all rows together ---

    def _reset(self, seeds: list[int] | None) -> Tree:
        self.drain()
        self._seeds = [None] * self.num_envs if seeds is None else [*seeds]
        self._ask_all("reset", self._seeds)
        return self.observations

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        rows = range(self.num_envs)
        deadline = self._deadline()
        row_actions = self._start_step(rows, actions, deadline)
        answers = self._read_answers(deadline, row_actions, "step")

        result = self._result
        result.clear_endings()
        done = [row for row in rows if answers[row] is not None and answers[row] is not _LOST]
        lost = [row for row in rows if answers[row] is _LOST]
        if done:
            final = concat_trees([answers[row][0] for row in done], "observation")
            result.final_obs = (np.array(done, np.int64), final)
            result.infos = {row: answers[row][1] for row in done if answers[row][1]} or None
        if lost:
            self._clear_step(lost)
            result.lost = np.array(lost, np.int64)
            result.valid = np.ones(self.num_envs, np.bool_)
            result.valid[lost] = False
        result.any_done = bool(done or lost)
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _start_step(self, rows: Sequence[int], actions: Tree, deadline: float | None) -> Sequence[Tree]:
        """Make these rows step, without waiting for them. Return the action of each."""
        self._check_started()
        row_actions = actions
        if self._rows_of_actions:
            self._check_number("step", "actions", actions, len(rows))
        else:
            row_actions = list(iterate(self._batched_actions, actions))

        if self._actions is not None and _has_form(actions, self._actions):
            self._actions[list(rows)] = actions
            for row in rows:
                self._channels[row].offer(b"", deadline)
        else:
            for row, action in zip(rows, row_actions, strict=True):
                self._ask(row, "step", action, deadline=deadline)
        return row_actions

    def _clear_step(self, rows: Sequence[int]) -> None:
        """Clear the rewards and flags of lost rows: a worker may have written them before it was ended."""
        self._result.rewards[rows] = 0.0
        self._result.terminateds[rows] = False
        self._result.truncateds[rows] = False

    # -- single rows ---

    @property
    def in_flight(self) -> list[int]:
        """Rows that `send` has started and `receive` has not returned."""
        return list(self._sent)

    def send(self, rows: Sequence[int], actions: Tree) -> None:
        """Send one action to each of these rows, without waiting for them. Only for action spaces of one array."""
        deadline = self._deadline()
        for row, action in zip(rows, self._start_step(rows, actions, deadline), strict=True):
            self._sent[row] = (deadline, action)

    def receive(self, most: int) -> list[RowStepResult]:
        """Wait until a sent row has answered, and return the results of all that have, in the order of sending.

        A row whose deadline has passed counts as answered: its worker was restarted.

        Args:
            most: Maximum number of results. The others wait for the next call.
        """
        results = []
        for row in self._rows_to_receive()[:most]:
            deadline, action = self._sent.pop(row)
            answer = self._read_answer(row, deadline, action, "step")
            results.append(self._row_result(row, answer))
        if self._watch is not None:
            self._watch_rows(results)
        return results

    def _row_result(self, row: int, answer: list[Tree] | None) -> RowStepResult:
        """Return the result of a row's step from its answer and the shared memory."""
        if answer is _LOST:
            self._clear_step([row])
            return RowStepResult(row, lost=True)
        final_obs, info = answer or (None, None)
        return RowStepResult(
            row,
            float(self._result.rewards[row]),
            terminated=bool(self._result.terminateds[row]),
            truncated=bool(self._result.truncateds[row]),
            final_obs=final_obs,
            info=info,
        )

    def _watch_rows(self, results: Sequence[RowStepResult]) -> None:
        """Compare the observations of single rows with their bounds; see `_watch_step`."""
        for result in results:
            if result.final_obs is not None:
                self._compare_bounds(result.final_obs, [result.row], num_ended=1)
        rows = [result.row for result in results]
        self._compare_bounds(rows_of(self.observations, rows), rows)

    def _rows_to_receive(self) -> list[int]:
        """Wait until a sent row has answered or passed its deadline. Return the rows to which either applies."""
        first_deadline, _ = next(iter(self._sent.values()))  # sent first, so due first
        ready = connection.wait([self._channels[row] for row in self._sent], seconds_until(first_deadline))
        now = time.monotonic()
        rows = []
        for row, (deadline, _) in self._sent.items():
            is_late = deadline is not None and deadline <= now
            if is_late or self._channels[row] in ready:
                rows.append(row)
        return rows

    def drain(self) -> None:
        """Receive all outstanding answers and discard them."""
        while self._sent:
            self.receive(len(self._sent))

    # -- state and end ---

    __reduce__ = no_copies("processes", "make another one, then other.set_state(env.get_state())")

    def _env_states(self) -> list[Any]:
        """Return the state of every environment; empty while rows are in flight, in the middle of a transition."""
        if self._failure or self._closed or self._sent:
            return []
        return self._ask_all("get_state", [None] * self.num_envs)

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Restore a state, which may be from environments in one process, and return the current observations."""
        self.check_open()
        self._check_number("set_state", "states", state["envs"], self.num_envs)
        self.drain()
        self._ask_all("set_state", state["envs"])
        write_rows(self.observations, ..., state["obs"])
        self._started = True
        return self.observations

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row."""
        self.check_open()
        deadline = self._deadline()
        self._ask(row, "render", deadline=deadline)
        frame = self._read_answer(row, deadline, None, "render")
        if frame is _LOST:
            raise step_error(None, backend=self.backend, env_index=row, during="render")
        return frame

    def _end_worker(self, row: int) -> None:
        _end_process(self._processes[row], self._channels[row], grace=0.0)

    def _end_all(self) -> None:
        self._sent.clear()
        grace = 0.0 if self._failure else _GRACE
        _end_workers(self._channels, self._processes, os.getpid(), grace)

    def close(self) -> None:
        """End the workers. A second call does nothing."""
        if not self._failure and not self._closed:
            self._closed = True
            self._end_all()


def _has_form(actions: Tree, shared: np.ndarray) -> bool:
    """Return whether the shared memory holds these actions without a cast.

    Other actions are pickled, so that an environment sees the dtype that the caller gave.
    """
    if not isinstance(actions, np.ndarray):
        return False
    return actions.dtype == shared.dtype and actions.shape[1:] == shared.shape[1:]


def _end_workers(channels: list[Any], processes: list[Any], owner: int, grace: float = _GRACE) -> None:
    """End the workers that still run: ask them to close, and kill those that run after `grace` seconds."""
    if os.getpid() != owner:
        return  # a finalizer in a forked copy of this process, which must not end the workers of the original
    deadline = time.monotonic() + grace
    open_rows = [row for row, channel in enumerate(channels) if channel is not None and not channel.closed]
    for row in open_rows:  # ask all first, so that they close at the same time
        channels[row].offer(ForkingPickler.dumps(("close", None)), deadline)
    for row in open_rows:
        _end_process(processes[row], channels[row], grace)


def _end_process(process: BaseProcess, channel: Channel, grace: float) -> None:
    process.join(grace)
    process.kill()
    process.join()
    channel.close()


# -- in the process of one environment ---


class _SharedRows:
    """Arrays that every step reads and writes, one row for each environment, in shared memory.

    The owner and each worker build this object over the same blocks, in the same order, so the arrays overlap.

    Args:
        make: Function that returns a block of shared memory of a number of bytes.

    Attributes:
        obs: Tree `[B, ...]`, the newest observations.
        actions: Array `[B, ...]`, the actions to take; None for Dict and Tuple actions, which are pickled.
        rewards: Float `[B]`, the rewards of the last step.
        terminateds, truncateds: Bool `[B]`, the flags of the last step.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        make: Callable[[int], Any],
    ) -> None:
        def shared(leaf: np.ndarray) -> np.ndarray:
            block = make(max(1, leaf.nbytes))  # a block of 0 bytes is not allowed
            return np.frombuffer(block, leaf.dtype, leaf.size).reshape(leaf.shape)

        self.obs: Tree = map_tree(shared, allocate(observation_space, num_envs))
        self.rewards = shared(np.zeros(num_envs))
        self.terminateds = shared(np.zeros(num_envs, np.bool_))
        self.truncateds = shared(np.zeros(num_envs, np.bool_))
        self.actions: np.ndarray | None = None
        if isinstance(action_space, ARRAY_SPACES):
            self.actions = shared(allocate(action_space, num_envs))


def _work(make_env: Callable[[], gym.Env], row: int, num_envs: int, channel: Channel, memory: list[Any]) -> None:
    """Run a worker: answer requests until the channel closes.

    A request is `(name, argument)`; the empty message requests a step with the action in the shared memory. An answer
    is `(True, result, unpicklable)` or `(False, summary of an exception, traceback)`; the empty message is the result
    None. `unpicklable` has the keys that were left out of an info, each with the reason.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which ends the run in order
    begin_worker()
    try:
        server = _EnvServer(make_env(), row, num_envs, memory)
        commands: dict[str, Callable[[Any], Any]] = {
            "reset": server.reset,
            "step": server.step,
            "keep_infos": server.keep_infos,
            "get_state": lambda _: env_state(server.env),
            "set_state": lambda state: set_env_state(server.env, state),
            "render": lambda _: server.env.render(),
        }
        while True:
            message = channel.receive()
            name, argument = ForkingPickler.loads(message) if message else ("step", server.action())
            if name == "close":
                server.env.close()
                return
            try:
                answer = _pickled_result(name, commands[name](argument))
            except RAISED as error:
                answer = ForkingPickler.dumps((False, _summary(error), traceback.format_exc()))
            channel.send(answer)
    except (EOFError, OSError):  # the owner is gone, or has closed the channel
        return


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _pickled_result(name: str, result: tuple[Any, ...] | dict[str, Any] | None) -> bytes | memoryview:
    """Return the answer to a request as bytes. Keys of an info that cannot be pickled are left out.

    Raises:
        TypeError: Something other than the info of an episode's last step cannot be pickled.
    """
    if result is None:
        return b""
    try:
        return ForkingPickler.dumps((True, result, {}))
    except Exception as error:
        final_obs, info, infos = result if isinstance(result, tuple) else (None, None, None)
        # A callback that asked for all infos gets an error rather than a part of them.
        if info is None or infos is not None:
            raise TypeError(f"what {name} gave cannot be pickled ({_summary(error)})") from error

    picklable = {}
    unpicklable = {}
    for key, value in info.items():
        try:
            ForkingPickler.dumps((key, value))
            picklable[key] = value
        except Exception as error:
            unpicklable[str(key)] = _summary(error)
    return ForkingPickler.dumps((True, (final_obs, picklable, None), unpicklable))


class _EnvServer:
    """One environment in its worker process. Results of steps are written into its row of the shared memory."""

    def __init__(self, env: gym.Env, row: int, num_envs: int, memory: list[Any]) -> None:
        self.env = env
        self.row = row
        self.keeps_infos = False
        blocks = iter(memory)
        self._shared = _SharedRows(env.observation_space, env.action_space, num_envs, lambda size: next(blocks))
        self._form = ObservationForm.of(env.observation_space)

    def keep_infos(self, _: None) -> None:
        """Return the infos of all steps and resets from now on."""
        self.keeps_infos = True

    def action(self) -> Any:
        """Return a copy of the action in the shared memory. A copy, because the environment may store it."""
        assert self._shared.actions is not None
        return copy_arrays(self._shared.actions[self.row])

    def reset(self, seed: int | None) -> dict[str, Any] | None:
        """Begin an episode. Return its info, or None unless infos are kept."""
        obs, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._form.write(self._shared.obs, self.row, obs)
        return info if self.keeps_infos else None

    def step(self, action: Tree) -> tuple[Any, ...] | None:
        """Take an action, and begin a new episode if this step ends one.

        Returns:
            None, or `(final_obs, final_info, infos)`. The first two are None unless the episode ended (and
            `final_info` also if it is empty). `infos` is None unless infos are kept: `(info of the step, info of the
            reset after it)`.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        final_obs = None
        reset_info = None
        if terminated or truncated:
            # Copies, because the reset may write into the arrays of the last observation and of its info.
            final_obs = self._form.rows([obs])
            info = copy_arrays(info)
            obs, reset_info = self.env.reset()

        self._form.write(self._shared.obs, self.row, obs)
        self._shared.rewards[self.row] = as_reward(reward)
        self._shared.terminateds[self.row] = bool(terminated)
        self._shared.truncateds[self.row] = bool(truncated)
        if final_obs is None and not self.keeps_infos:
            return None

        final_info = info if final_obs is not None and info else None
        infos = (info or {}, reset_info) if self.keeps_infos else None
        return final_obs, final_info, infos
