"""Environments in processes of their own: stepped together, or whichever is ready; dead or hanging ones begin anew."""

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
"""Seconds that a worker is given to end by itself."""
_LOST = object()
"""The answer of a row whose worker was started again."""


@dataclass(frozen=True)
class Arrived:
    """The answer of one environment to a step."""

    row: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: Tree = None
    """tree `[1, ...]`, where an episode ended"""
    info: dict[str, Any] | None = None
    lost: bool = False
    """the worker was started again: there is no transition, a new episode has begun"""


class WorkerVectorEnv(VectorBoundary):
    """Steps `B` environments, each in a process of its own; a finished one is reset at once (SAME_STEP).

    A worker that dies, or does not answer within `step_timeout`, is started again within `restarts`; only its own
    unfinished episode is lost (`StepResult.lost`). An exception in an environment arrives whole, and no restart is made
    for it. `send` and `receive` step single rows.

    What every step has (action, observation, reward, flags) is in memory that all processes share. The channel of a row
    then carries an empty message each way, which wakes the process at its other end. Everything rare is pickled.

    Args:
        env_fns: one function for each row that makes its environment.
        step_timeout: seconds that an environment may take for a step or a reset; None waits for ever.
        restarts: limits, of all rows together; the default is 10 in a run and 1 in 60 s.

    Raises:
        ValueError: a space without an array of fixed size, or `restarts` that are no limits.
    """

    backend = "workers"
    autoreset_mode = "SAME_STEP"
    has_invalid_rows = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        *,
        step_timeout: float | None = None,
        restarts: RestartLimits | None = None,
    ) -> None:
        if restarts is not None and not isinstance(restarts, RestartLimits):  # 0 would be the default
            raise ValueError(
                f"restarts={restarts!r} is not allowed; it must be a lockstep.envs.RestartLimits (RestartLimits(0): "
                "never), or None for the default"
            )
        self.num_envs = len(env_fns)
        probe = env_fns[0]()
        self._set_spaces(space_of(probe, "observation_space"), space_of(probe, "action_space"))
        self.single_env_spec = probe.spec
        probe.close()
        self.step_timeout, self.restarts = step_timeout, RestartBudget(restarts or RestartLimits())
        self._env_fns = [CloudpickleWrapper(make) for make in env_fns]
        self._memory: list[Any] = []
        shared = _SharedRows(self.observation_space, self.action_space, self.num_envs, self._allocate)
        self.observations = shared.obs
        """the newest observation of every row, a tree `[B, ...]`, written to by later steps"""
        self._actions = shared.actions
        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, ARRAY_SPACES)
        self._result = StepResult(self.observations, self.num_envs)
        self._result.rewards = shared.rewards
        self._result.terminateds = shared.terminateds
        self._result.truncateds = shared.truncateds
        self._seeds: list[int | None] = [None] * self.num_envs
        self._sent: dict[int, tuple[float | None, Tree]] = {}  # row -> deadline, action
        self._dropped: set[str] = set()
        self._pipes: list[Any] = [None] * self.num_envs
        self._processes: list[Any] = [None] * self.num_envs
        # A vector that is dropped without `close` leaves no processes.
        self._finalizer = weakref.finalize(self, _end_workers, self._pipes, self._processes, os.getpid())
        for row in range(self.num_envs):
            self._start(row)

    @property
    def num_restarts(self) -> int:
        """Workers that were started again since the vector was made."""
        return self.restarts.num_restarts

    def _allocate(self, size: int) -> Any:
        self._memory.append(worker_context().RawArray("b", size))
        return self._memory[-1]

    def _start(self, row: int) -> None:
        ours, theirs = Channel.pair()
        arguments = (self._env_fns[row], row, self.num_envs, theirs, self._memory)
        process = worker_context().Process(target=_work, args=arguments, daemon=True, name=f"environment {row}")
        process.start()
        theirs.close()
        self._pipes[row], self._processes[row] = ours, process

    # -- asking and answering ---

    def _ask(self, row: int, name: str, argument: object = None, *, deadline: float | None) -> None:
        self._pipes[row].offer(ForkingPickler.dumps((name, argument)), deadline)

    def _answer(self, row: int, deadline: float | None, action: Tree, during: str) -> Any:
        """Return a row's answer, `_LOST` where its worker was started again; raise what its environment raised.

        The answer to a step is None or `(final observation, its info)`; the rest is in the shared memory.
        """
        try:
            message = self._receive(row, deadline)
        except (EOFError, OSError) as error:
            self._restart(row, error, action, during)
            return _LOST
        if not message:
            return None
        is_told, answer, more = ForkingPickler.loads(message)
        if not is_told:
            failure = step_error(answer, backend=self.backend, env_index=row, action=action, during=during)
            raise failure from WorkerTraceback(more)
        self._warn_of_dropped(more)
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

    def _warn_of_dropped(self, dropped: dict[str, str]) -> None:
        """Warn once of each key of an info that cannot be pickled."""
        for key in dropped.keys() - self._dropped:
            self._dropped.add(key)
            warnings.warn(
                f"info[{key!r}] cannot be pickled and is left out ({dropped[key]}): an environment in its own process "
                "can only give what can; take it out of info, or step the environments in this process "
                "(vectorize_mode='sync', make_vector(..., mode='sync'))",
                RuntimeWarning,
                stacklevel=4,
            )

    def keep_infos(self) -> None:
        """Have each worker send its infos from now on."""
        if self.infos is None:
            self._ask_all("keep_infos", [None] * self.num_envs)
            self.infos = RowInfos(self.num_envs)

    def _receive(self, row: int, deadline: float | None) -> bytes:
        """Return a row's next message; `TimeoutError` where it is not there in time, `EOFError` where none comes."""
        message: bytes = self._pipes[row].receive(deadline)
        return message

    def _deadline(self) -> float | None:
        return None if self.step_timeout is None else time.monotonic() + self.step_timeout

    def _ask_all(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Return every row's answer, all read before one raises."""
        deadline = self._deadline()
        for row, argument in enumerate(arguments):
            self._ask(row, name, argument, deadline=deadline)
        return self._answers(deadline, [None] * self.num_envs, name)

    def _answers(self, deadline: float | None, actions: Sequence[Tree], during: str) -> list[Any]:
        """Return every row's answer, all read before one raises."""
        answers: list[Any] = []
        failed: EnvironmentStepError | None = None
        for row, action in enumerate(actions):
            try:
                answers.append(self._answer(row, deadline, action, during))
            except EnvironmentStepError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return answers

    def _restart(self, row: int, error: Exception, action: Tree, during: str) -> None:
        """Start a new worker with a new episode in it, and warn; raise where the limits do not allow one."""
        hangs = isinstance(error, TimeoutError)
        self._end_worker(row)
        happened = f"did not answer within step_timeout={self.step_timeout} s" if hangs else "ended without an answer"
        code = "" if hangs else f", exit code {self._processes[row].exitcode}"
        failure = f"environment {row} {happened} (during {during}; last action: {action!r}{code})"
        refused = self.restarts.take("any")  # the rows share the limits
        if refused is not None:
            self._failure = failure
            self._end_all()
            kind = EnvironmentTimeoutError if hangs else EnvironmentStepError
            raise kind(
                f"{failure}, and was not started again: {refused}. All workers were ended; build the vector again.",
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
            self._answer(row, deadline, None, "keep_infos")
        seed = self._seeds[row]
        self._seeds[row] = None if seed is None else (seed + 1_000_003) % 2**31  # not the episodes that it had
        self._ask(row, "reset", self._seeds[row], deadline=deadline)
        self._answer(row, deadline, None, "reset")

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
        single = self._hand_over(rows, actions, deadline)
        answers = self._answers(deadline, single, "step")
        result = self._result
        result.clear_endings()
        done = [row for row in rows if answers[row] is not None and answers[row] is not _LOST]
        lost = [row for row in rows if answers[row] is _LOST]
        if done:
            final = concat_trees([answers[row][0] for row in done], "observation")
            result.final_obs = (np.array(done, np.int64), final)
            result.infos = {row: answers[row][1] for row in done if answers[row][1]} or None
        if lost:
            self._forget_step(lost)
            result.lost = np.array(lost, np.int64)
            result.valid = np.ones(self.num_envs, np.bool_)
            result.valid[lost] = False
        result.any_done = bool(done or lost)
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _hand_over(self, rows: Sequence[int], actions: Tree, deadline: float | None) -> Sequence[Tree]:
        """Have these rows step, without waiting; return the action of each."""
        self._check_started()
        single = actions
        if self._rows_of_actions:
            self._check_number("step", "actions", actions, len(rows))
        else:
            single = list(iterate(self._batched_actions, actions))
        if self._actions is not None and _has_form(actions, self._actions):
            self._actions[list(rows)] = actions
            for row in rows:
                self._pipes[row].offer(b"", deadline)
        else:
            for row, action in zip(rows, single, strict=True):
                self._ask(row, "step", action, deadline=deadline)
        return single

    def _forget_step(self, rows: Sequence[int]) -> None:
        """Clear what workers that were ended may have written of a step."""
        self._result.rewards[rows] = 0.0
        self._result.terminateds[rows] = self._result.truncateds[rows] = False

    # -- single rows ---

    @property
    def in_flight(self) -> list[int]:
        """Rows that were sent an action and have not been received."""
        return list(self._sent)

    def send(self, rows: Sequence[int], actions: Tree) -> None:
        """Hand an action to each of these rows (array spaces only), without waiting."""
        deadline = self._deadline()
        for row, action in zip(rows, self._hand_over(rows, actions, deadline), strict=True):
            self._sent[row] = (deadline, action)

    def receive(self, most: int) -> list[Arrived]:
        """Wait until one sent row has answered; return all that have, at most `most`, in the order of sending.

        A row that has had its time counts as one that has answered: its worker was started again.
        """
        answers = []
        for row in self._rows_to_receive()[:most]:
            deadline, action = self._sent.pop(row)
            answers.append(self._arrived(row, self._answer(row, deadline, action, "step")))
        if self._watch is not None:
            self._watch_rows(answers)
        return answers

    def _arrived(self, row: int, answer: list[Tree] | None) -> Arrived:
        """Return the answer of a row to a step, with what is in the shared memory."""
        if answer is _LOST:
            self._forget_step([row])
            return Arrived(row, lost=True)
        result = self._result
        flags = {"terminated": bool(result.terminateds[row]), "truncated": bool(result.truncateds[row])}
        final_obs, info = answer or (None, None)
        return Arrived(row, float(result.rewards[row]), final_obs=final_obs, info=info, **flags)

    def _watch_rows(self, answers: Sequence[Arrived]) -> None:
        """Compare the observations of single rows with their bounds; see `_watch_step`."""
        for answer in answers:
            if answer.final_obs is not None:
                self._compare_bounds(answer.final_obs, [answer.row], num_ended=1)
        rows = [answer.row for answer in answers]
        self._compare_bounds(rows_of(self.observations, rows), rows)

    def _rows_to_receive(self) -> list[int]:
        """Wait until a sent row has answered or has had its time; return the rows of which that is true."""
        first_deadline, _ = next(iter(self._sent.values()))
        ready = connection.wait([self._pipes[row] for row in self._sent], seconds_until(first_deadline))
        now = time.monotonic()
        rows = []
        for row, (deadline, _) in self._sent.items():
            is_late = deadline is not None and deadline <= now
            if is_late or self._pipes[row] in ready:
                rows.append(row)
        return rows

    def drain(self) -> None:
        """Take in and forget all answers that are still to come."""
        while self._sent:
            self.receive(len(self._sent))

    # -- state and end ---

    __reduce__ = no_copies("processes", "make another one, then other.set_state(env.get_state())")

    def _env_states(self) -> list[Any]:
        """Return none while actions are under way."""
        if self._failure or self._closed or self._sent:
            return []
        return self._ask_all("get_state", [None] * self.num_envs)

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Continue from what `get_state` gave (ours, or of environments in one process); return the observations."""
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
        frame = self._answer(row, deadline, None, "render")
        if frame is _LOST:
            raise step_error(None, backend=self.backend, env_index=row, during="render")
        return frame

    def _end_worker(self, row: int) -> None:
        _end_process(self._processes[row], self._pipes[row], grace=0.0)

    def _end_all(self) -> None:
        self._sent.clear()
        _end_workers(self._pipes, self._processes, os.getpid(), grace=0.0 if self._failure else _GRACE)

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        if not self._failure and not self._closed:
            self._closed = True
            self._end_all()


def _has_form(actions: Tree, shared: np.ndarray) -> bool:
    """Return whether environments get exactly these actions out of the shared memory, without a cast."""
    if not isinstance(actions, np.ndarray):
        return False
    return actions.dtype == shared.dtype and actions.shape[1:] == shared.shape[1:]


def _end_workers(channels: list[Any], processes: list[Any], owner: int, grace: float = _GRACE) -> None:
    """End the workers that still run, in order where they do so within `grace` seconds."""
    if os.getpid() != owner:
        return  # a forked copy of the vector: the workers are not this process's
    deadline = time.monotonic() + grace
    open_rows = [row for row, channel in enumerate(channels) if channel is not None and not channel.closed]
    for row in open_rows:
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
    """What steps read and write, one row for each environment, in memory that `make(bytes)` gives array by array.

    Attributes:
        obs: tree `[B, ...]`, the newest observations.
        actions: array `[B, ...]`, the actions to take; None for a dict or tuple of actions, which are pickled.
        rewards: float `[B]`, of the last step.
        terminateds, truncateds: bool `[B]`, of the last step.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        make: Callable[[int], Any],
    ) -> None:
        def shared(leaf: np.ndarray) -> np.ndarray:
            return np.frombuffer(make(max(1, leaf.nbytes)), leaf.dtype, leaf.size).reshape(leaf.shape)

        self.obs: Tree = map_tree(shared, allocate(observation_space, num_envs))
        self.rewards = shared(np.zeros(num_envs))
        self.terminateds = shared(np.zeros(num_envs, np.bool_))
        self.truncateds = shared(np.zeros(num_envs, np.bool_))
        self.actions: np.ndarray | None = None
        if isinstance(action_space, ARRAY_SPACES):
            self.actions = shared(allocate(action_space, num_envs))


def _work(make_env: Callable[[], gym.Env], row: int, num_envs: int, channel: Channel, memory: list[Any]) -> None:
    """Answer until the channel closes: with `(True, result, dropped)`, `(False, summary, traceback)`, or nothing.

    An empty message asks for a step with the action in the shared memory; an empty answer is the result None.
    `dropped`: keys of an info that cannot be pickled, each with the reason.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which ends the run in order
    begin_worker()
    try:
        served = _ServedEnv(make_env(), row, num_envs, memory)
        commands: dict[str, Callable[[Any], Any]] = {
            "reset": served.reset,
            "step": served.step,
            "keep_infos": served.keep_infos,
            "get_state": lambda _: env_state(served.env),
            "set_state": lambda state: set_env_state(served.env, state),
            "render": lambda _: served.env.render(),
        }
        while True:
            message = channel.receive()
            name, argument = ForkingPickler.loads(message) if message else ("step", served.action())
            if name == "close":
                served.env.close()
                return
            try:
                answer = _pickled(name, commands[name](argument))
            except RAISED as error:
                answer = ForkingPickler.dumps((False, _summary(error), traceback.format_exc()))
            channel.send(answer)
    except (EOFError, OSError):
        return


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _pickled(name: str, result: tuple[Any, ...] | dict[str, Any] | None) -> bytes | memoryview:
    """Return the answer as bytes; keys of an info that cannot be pickled are left out, and named with the reason."""
    if result is None:
        return b""
    try:
        return ForkingPickler.dumps((True, result, {}))
    except Exception as error:
        final_obs, info, infos = result if isinstance(result, tuple) else (None, None, None)
        if info is None or infos is not None:
            raise TypeError(f"what {name} gave cannot be pickled ({_summary(error)})") from error
    kept, dropped = {}, {}
    for key, value in info.items():
        try:
            ForkingPickler.dumps((key, value))
            kept[key] = value
        except Exception as error:
            dropped[str(key)] = _summary(error)
    return ForkingPickler.dumps((True, (final_obs, kept, None), dropped))


class _ServedEnv:
    """Holds one environment; what steps give goes into its row of the shared memory."""

    def __init__(self, env: gym.Env, row: int, num_envs: int, memory: list[Any]) -> None:
        self.env, self.row = env, row
        self.keeps_infos = False
        parts = iter(memory)
        self._shared = _SharedRows(env.observation_space, env.action_space, num_envs, lambda size: next(parts))
        self._form = ObservationForm.of(env.observation_space)

    def keep_infos(self, _: None) -> None:
        """Give the infos of all steps and resets from now on."""
        self.keeps_infos = True

    def action(self) -> Any:
        """Return a copy of the action in the shared memory: the environment may keep it."""
        assert self._shared.actions is not None
        return copy_arrays(self._shared.actions[self.row])

    def reset(self, seed: int | None) -> dict[str, Any] | None:
        """Begin an episode; return its info, where infos are kept."""
        obs, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._form.write(self._shared.obs, self.row, obs)
        return info if self.keeps_infos else None

    def step(self, action: Tree) -> tuple[Any, ...] | None:
        """Take an action, and begin a new episode where one ended.

        Returns:
            None, or `(final observation, its info, infos)`: the first two where the episode ended (the info where it
            is not empty), the infos of the step and of a reset after it where they are kept.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        final = first = None
        if terminated or truncated:
            final = self._form.rows([obs])
            info = copy_arrays(info)  # the reset may write into its arrays
            obs, first = self.env.reset()
        self._form.write(self._shared.obs, self.row, obs)
        self._shared.rewards[self.row] = as_reward(reward)
        self._shared.terminateds[self.row] = bool(terminated)
        self._shared.truncateds[self.row] = bool(truncated)
        if final is None and not self.keeps_infos:
            return None
        last = info if final is not None and info else None
        return final, last, (info or {}, first) if self.keeps_infos else None
