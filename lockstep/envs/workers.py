"""Environments in processes of their own: stepped together, or whichever is ready; dead or hanging ones begin anew."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

from lockstep.envs import trees
from lockstep.envs.boundary import StepResult, VectorBoundary
from lockstep.envs.env_state import check_rows
from lockstep.envs.errors import EnvironmentStepError, EnvironmentTimeoutError, WorkerTraceback, step_error
from lockstep.envs.worker import shared_tree, work
from lockstep.state.checks import is_number
from lockstep.state.messages import no_copies
from lockstep.state.restarts import RestartBudget, RestartLimits

_GRACE = 1.0
"""seconds that a worker is given to end by itself"""


@dataclass(frozen=True)
class Arrived:
    """What one environment answered to a step."""

    row: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: Any = None
    """tree `[1, ...]`, where an episode ended"""
    info: dict[str, Any] | None = None
    lost: bool = False
    """the worker was started again: there is no transition, a new episode has begun"""


class WorkerVectorEnv(VectorBoundary):
    """Steps `B` environments, each in a process of its own; a finished one is reset at once (SAME_STEP).

    A worker that dies, or does not answer within `step_timeout`, is started again within `restarts`; only its own
    unfinished episode is lost (`StepResult.lost`). An exception in an environment arrives whole, and no restart is made
    for it. `send` and `receive` step single rows.

    Args:
        env_fns: one function for each row that makes its environment.
        step_timeout: seconds that an environment may take for a step or a reset; None waits for ever.
        restarts: limits, of all rows together; the default is 10 in a run and 1 in 60 s.

    Raises:
        ValueError: no environment, a space without an array of fixed size, a time-out that is not above 0, or
            `restarts` that are no limits.
    """

    backend = "workers"
    autoreset_mode = "SAME_STEP"

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        *,
        step_timeout: float | None = None,
        restarts: RestartLimits | None = None,
    ) -> None:
        if len(env_fns) == 0:
            raise ValueError("num_envs must be at least 1, got no environment.")
        if step_timeout is not None and not (is_number(step_timeout) and step_timeout > 0):
            raise ValueError(f"step_timeout must be a positive number of seconds or None, got {step_timeout!r}.")
        if restarts is not None and not isinstance(restarts, RestartLimits):
            raise ValueError(
                f"restarts={restarts!r} is not allowed; it must be a lockstep.envs.RestartLimits (RestartLimits(0): "
                "never), or None for the default"
            )
        self.num_envs = len(env_fns)
        probe = env_fns[0]()
        self.observation_space = trees.space_of(probe, "observation_space")
        self.action_space = trees.space_of(probe, "action_space")
        self.single_env_spec = probe.spec
        probe.close()
        trees.check_supported(self.observation_space, "the observation space")
        trees.check_supported(self.action_space, "the action space")
        self.step_timeout, self.restarts = step_timeout, RestartBudget(restarts or RestartLimits())
        self.has_invalid_rows = True
        self._env_fns = [CloudpickleWrapper(make) for make in env_fns]
        self._memory: list[Any] = []
        self._obs = shared_tree(self.observation_space, self.num_envs, self._allocate)
        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, trees.ARRAY_SPACES)
        flags = np.zeros((2, self.num_envs), np.bool_)
        self._result = StepResult(self._obs, np.zeros(self.num_envs), flags[0], flags[1])
        self._seeds: list[int | None] = [None] * self.num_envs
        self._sent: dict[int, tuple[float, Any]] = {}  # row -> when, which action
        self._started, self._broken = False, ""
        self._dropped: set[str] = set()
        self._pipes: list[Any] = [None] * self.num_envs
        self._processes: list[Any] = [None] * self.num_envs
        for row in range(self.num_envs):
            self._start(row)

    @property
    def num_restarts(self) -> int:
        """Workers that were started again since the vector was made."""
        return self.restarts.num_restarts

    def _allocate(self, size: int) -> Any:
        self._memory.append(multiprocessing.RawArray("b", size))
        return self._memory[-1]

    def _start(self, row: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        arguments = (self._env_fns[row], row, self.num_envs, theirs, self._memory, os.getpid())
        process = multiprocessing.Process(target=work, args=arguments, daemon=True, name=f"environment {row}")
        process.start()
        theirs.close()
        self._pipes[row], self._processes[row] = ours, process

    # -- asking and answering ---

    def _ask(self, row: int, name: str, argument: Any = None) -> None:
        try:
            self._pipes[row].send((name, argument))
        except OSError:
            return  # it is dead, which reading its answer tells

    def _answer(self, row: int, deadline: float | None, action: Any, during: str) -> Any:
        """The row's answer. Raises what ended the worker: `EOFError`, `TimeoutError`, or the environment's error."""
        pipe = self._pipes[row]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not pipe.poll(left):
            raise TimeoutError
        try:
            answer = pipe.recv()
        except OSError as error:
            raise EOFError from error
        if answer[0] == "ok":
            if answer[2]:
                self._tell_dropped(answer[2])
            return answer[1]
        told = step_error(answer[1], backend=self.backend, env_index=row, action=action, during=during)
        raise told from WorkerTraceback(answer[2])

    def _tell_dropped(self, dropped: dict[str, str]) -> None:
        """Warns, once for each key of an info."""
        new = {key: reason for key, reason in dropped.items() if key not in self._dropped}
        self._dropped |= new.keys()
        for key, reason in new.items():
            warnings.warn(
                f"info[{key!r}] cannot be pickled and is left out ({reason}): an environment in a process of its own "
                "can only give what can; take it out of info, or step the environments in this process "
                "(vectorize_mode='sync', make_vector(..., mode='sync'))",
                RuntimeWarning,
                stacklevel=3,
            )

    def _deadline(self) -> float | None:
        return None if self.step_timeout is None else time.monotonic() + self.step_timeout

    def _ask_all(self, name: str, arguments: Sequence[Any], actions: Sequence[Any] | None) -> list[Any]:
        """Every row's answer; `Arrived(lost=True)` for one that was started again. All are read before one raises."""
        deadline = self._deadline()
        for row, argument in enumerate(arguments):
            self._ask(row, name, argument)
        answers: list[Any] = []
        failed: EnvironmentStepError | None = None
        for row in range(self.num_envs):
            action = None if actions is None else actions[row]
            try:
                answers.append(self._answer(row, deadline, action, name))
            except (EOFError, TimeoutError) as error:
                self._restart(row, error, action, name)
                answers.append(Arrived(row, lost=True))
            except EnvironmentStepError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return answers

    def _restart(self, row: int, error: Exception, action: Any, during: str) -> None:
        """A new worker with a new episode in it, and a warning; the error where the limits do not allow one."""
        hangs = isinstance(error, TimeoutError)
        self._end_worker(row, kill=True)
        what = f"did not answer within step_timeout={self.step_timeout} s" if hangs else "ended without an answer"
        code = "" if hangs else f", exit code {self._processes[row].exitcode}"
        told = f"environment {row} {what} (during {during}; last action: {action!r}{code})"
        refused = self.restarts.take("any")  # the rows share the limits
        if refused is not None:
            self._broken = told
            self._end_all()
            kind = EnvironmentTimeoutError if hangs else EnvironmentStepError
            raise kind(
                f"{told}, and was not started again: {refused}. All workers were ended; build the vector again.",
                env_index=row,
                action=action,
            ) from error
        warnings.warn(
            f"{told}; it was started again ({self.num_restarts} of {self.restarts.limits.in_run}), its unfinished "
            "episode is lost",
            RuntimeWarning,
            stacklevel=2,
        )
        self._start(row)
        seed = self._seeds[row]
        self._seeds[row] = None if seed is None else (seed + 1_000_003) % 2**31  # not the episodes that it had
        self._ask(row, "reset", self._seeds[row])
        try:
            self._answer(row, self._deadline(), None, "reset")
        except (EOFError, TimeoutError) as second:
            self._restart(row, second, None, "reset")

    def check_open(self) -> None:
        """Raises `RuntimeError` after `close`, `EnvironmentStepError` after a failure that ended the workers."""
        if self._broken:
            raise EnvironmentStepError(f"the workers were ended ({self._broken}); build the vector again.")
        super().check_open()

    # -- all rows together ---

    def reset(self, seeds: list[int] | None = None) -> Any:
        """Begin a new episode in every row; see `VectorBoundary.reset`."""
        self.check_open()
        self._check_seeds(seeds)
        self.drain()
        self._seeds = [None] * self.num_envs if seeds is None else [int(seed) for seed in seeds]
        self._ask_all("reset", self._seeds, None)
        self._started = True
        self._clear()
        return self._obs

    def _clear(self) -> None:
        result = self._result
        result.rewards[:] = 0.0
        result.terminateds[:] = result.truncateds[:] = False
        result.any_done, result.final_obs, result.infos, result.valid, result.lost = False, None, None, None, None

    def step(self, actions: Any) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        split = self._split(actions, self.num_envs)
        arrived = self._ask_all("step", split, split)
        self._clear()
        result = self._result
        done: list[Arrived] = []
        lost: list[int] = []
        for row, answer in enumerate(arrived):
            if isinstance(answer, Arrived):
                lost.append(row)
                continue
            result.rewards[row], result.terminateds[row], result.truncateds[row], final, info = answer
            if final is not None:
                done.append(Arrived(row, final_obs=final, info=info))
        if done:
            rows = np.array([one.row for one in done], np.int64)
            result.final_obs = (rows, trees.concatenate([one.final_obs for one in done]))
            result.infos = {one.row: one.info for one in done if one.info} or None
        if lost:
            result.lost = np.array(lost, np.int64)
            result.valid = np.ones(self.num_envs, np.bool_)
            result.valid[lost] = False
        result.any_done = bool(done or lost)
        return result

    def _split(self, actions: Any, num_rows: int) -> list[Any]:
        self.check_open()
        if not self._started:
            raise ValueError("step was called before reset: call reset(seeds) once, then step.")
        if not self._rows_of_actions:
            return list(trees.split_actions(self._batched_actions, actions))
        if len(actions) != num_rows:
            raise ValueError(f"step got {len(actions)} actions for {num_rows} environments; give one for each row.")
        return list(actions)

    # -- single rows ---

    @property
    def observations(self) -> Any:
        """The newest observation of every row, a tree `[B, ...]`, written to by later steps."""
        return self._obs

    @property
    def in_flight(self) -> list[int]:
        """Rows that were sent an action and have not been received."""
        return list(self._sent)

    def send(self, rows: Sequence[int], actions: Any) -> None:
        """Hands an action to each of these rows (array spaces only), and does not wait."""
        now = time.monotonic()
        for row, action in zip(rows, self._split(actions, len(rows)), strict=True):
            self._sent[row] = (now, action)
            self._ask(row, "step", action)

    def receive(self, most: int) -> list[Arrived]:
        """Waits until one sent row has answered, and gives all that have, at most `most`, in the order of sending."""
        by_pipe = {id(self._pipes[row]): row for row in self._sent}
        pipes = [self._pipes[row] for row in self._sent]
        deadline = None if self.step_timeout is None else min(at for at, _ in self._sent.values()) + self.step_timeout
        ready = connection.wait(pipes, None if deadline is None else max(0.0, deadline - time.monotonic()))
        rows = {by_pipe[id(pipe)] for pipe in ready}
        if not rows:  # the one that was sent first has had its time
            rows = {next(iter(self._sent))}
        return [self._received(row) for row in [row for row in self._sent if row in rows][:most]]

    def _received(self, row: int) -> Arrived:
        _, action = self._sent.pop(row)
        try:
            reward, terminated, truncated, final, info = self._answer(row, time.monotonic(), action, "step")
        except (EOFError, TimeoutError) as error:
            self._restart(row, error, action, "step")
            return Arrived(row, lost=True)
        return Arrived(row, reward, terminated, truncated, final, info)

    def drain(self) -> None:
        """Takes in and forgets all answers that are still to come."""
        while self._sent:
            self.receive(len(self._sent))

    # -- state and end ---

    __reduce__ = no_copies("processes", "make another one, then other.set_state(env.get_state())")

    def get_state(self) -> dict[str, Any] | None:
        """The state of every environment; None where one cannot tell it, or while actions are under way."""
        if not self._started or self._broken or self._closed or self._sent:
            return None
        states = self._ask_all("get_state", [None] * self.num_envs, None)
        if any(state is None or isinstance(state, Arrived) for state in states):
            return None
        return {"envs": states, "obs": trees.gather(self._obs, np.arange(self.num_envs))}

    def set_state(self, state: dict[str, Any]) -> Any:
        """Continue from what `get_state` gave (ours, or of environments in one process); gives the observations."""
        self.check_open()
        check_rows(state, self.num_envs)
        self.drain()
        self._ask_all("set_state", state["envs"], None)
        trees.copy_into(self._obs, state["obs"])
        self._started = True
        self._clear()
        return self._obs

    def render(self, row: int = 0) -> Any:
        """The frame of one row."""
        self.check_open()
        self._ask(row, "render")
        return self._answer(row, self._deadline(), None, "render")

    def _end_worker(self, row: int, kill: bool = False) -> None:
        process = self._processes[row]
        if kill:
            process.kill()
        process.join(_GRACE)
        if process.is_alive():
            process.kill()
            process.join()
        self._pipes[row].close()

    def _end_all(self) -> None:
        self._sent.clear()
        for row in range(self.num_envs):
            if not self._pipes[row].closed:
                self._ask(row, "close")
        for row in range(self.num_envs):
            if not self._pipes[row].closed:
                self._end_worker(row, kill=bool(self._broken))

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        if not self._broken and not self._closed:
            self._closed = True
            self._end_all()
