"""gymnasium's own vector environments and EnvPool's, in any autoreset mode, behind the boundary.

- NEXT_STEP: the step after an ending only resets. Where the back end resets single rows safely (`SyncVectorEnv`,
  `AsyncVectorEnv` with shared memory) the boundary does so at once; elsewhere that row comes as invalid.
- SAME_STEP: the back end has reset already; the true last observation is in `infos["final_obs"]`.
- DISABLED: the boundary resets the finished rows through `reset_mask`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import connection
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lockstep.data.trees import Tree, allocate, as_arrays, copy_arrays, rows_of, write_rows
from lockstep.data.values import as_rewards
from lockstep.envs.boundary import Flags, RowInfos, StepResult, VectorBoundary
from lockstep.envs.env_state import env_state, set_env_state, tells_state
from lockstep.envs.errors import (
    RAISED,
    EnvironmentStepError,
    EnvironmentTimeoutError,
    WorkerTraceback,
    did_you_mean,
    step_error,
)
from lockstep.options.checks import install_hint, no_copies

Rows = npt.NDArray[np.int64]


class VectorEnvBoundary(VectorBoundary):
    """Puts any `gymnasium.vector.VectorEnv` (wrapped or not) behind the boundary.

    Args:
        env: the vector environment; the boundary closes it.

    Raises:
        ValueError: the environment tells no autoreset mode, steps only part of its rows at a time, or has a space
            without an array of fixed size.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._set_spaces(env.single_observation_space, env.single_action_space)
        base: Any = env.unwrapped
        self.backend = next((name for kind, name in _BACKENDS.items() if isinstance(base, kind)), "native")
        spec = getattr(base.envs[0] if isinstance(base, SyncVectorEnv) else env, "spec", None)
        self.single_env_spec = spec if isinstance(spec, EnvSpec) else None
        mode = _autoreset_mode(env)
        self.autoreset_mode = mode.name
        batch_size = base.config["batch_size"] if is_envpool(base) else getattr(base, "batch_size", None)
        if batch_size not in (None, 0, self.num_envs):
            raise ValueError(
                f"the vector environment answers {batch_size} of its {self.num_envs} rows at a time; the boundary "
                "steps all rows together. Make it with batch_size equal to num_envs."
            )
        heeds_mask = type(env) is SyncVectorEnv or (type(env) is AsyncVectorEnv and env.shared_memory)
        self._resets_here = mode is AutoresetMode.DISABLED or (mode is AutoresetMode.NEXT_STEP and heeds_mask)
        self._has_final_infos = mode is AutoresetMode.SAME_STEP
        self.has_invalid_rows = not (self._resets_here or self._has_final_infos)
        self._pending: Flags | None = None
        """rows that only reset in the next step"""
        # Without shared memory a worker in NEXT_STEP mode does not notice an explicit reset: if its last
        # step ended an episode it resets once more in the next step, which is then no transition.
        self._resets_twice = isinstance(base, AsyncVectorEnv) and self.has_invalid_rows and not base.shared_memory
        self._result = StepResult(None, self.num_envs)
        self._env_step: Callable[[Any], Any] = env.step
        self._given: list[Any] = getattr(base, "_env_obs", []) if isinstance(base, SyncVectorEnv) else []
        """observations as the environments gave them, before gymnasium casts them; empty where it does not tell"""

    def _reset(self, seeds: list[int] | None) -> Tree:
        seed: Any = seeds
        if seeds and self.backend == "native":  # one generator, or one for each row
            seed = np.array(seeds) % _LARGEST_SEED if getattr(self.env, "seeds_rows", False) else seeds[0]
        self._result.obs = self._reset_rows(seed)
        if not self._resets_twice:
            self._pending = None
        return self._result.obs

    def _reset_rows(self, seed: Any, **options: Any) -> Tree:
        """Reset all rows, or those of the mask in the options; return the observations of all."""
        try:
            obs, infos = self._env_reset(seed, **options)
            if self.infos is not None:
                self._keep_reset(infos, options)
            self._check_given()
            return self._form.hold(as_arrays(obs), (self.num_envs,))
        except EnvironmentStepError:
            raise
        except RAISED as error:
            self._check_given(error)
            raise self._error_at(_row_in_traceback(error), error) from error

    def _check_given(self, error: BaseException | None = None, actions: Tree = None) -> None:
        """Check what single environments gave, which gymnasium casts before it can be seen here.

        Raises:
            EnvironmentStepError: naming the row, with `error` as its cause, where the space cannot hold an observation.
        """
        for row, obs in enumerate(self._given):
            if obs is None:  # of an environment that has not been reset
                continue
            try:
                self._form.hold(obs)
            except ValueError as wrong:
                wrong.__cause__ = error
                raise self._error_at(row, wrong, actions) from wrong

    def _env_reset(self, seed: Any, **options: Any) -> tuple[Tree, Mapping[str, Any]]:
        """Reset the back end; return observations and infos."""
        return self.env.reset(seed=seed, **options)

    def single_envs(self) -> list[Any]:
        """Return the environments of a `SyncVectorEnv`; of another vector itself for each row."""
        base: Any = self.env.unwrapped
        return list(base.envs) if isinstance(base, SyncVectorEnv) else [self.env] * self.num_envs

    def keep_infos(self) -> None:
        """Keep the infos of all rows from now on."""
        if self.infos is None:
            self.infos = RowInfos(self.num_envs)
            self._env_step = self._keeping(self._env_step)

    def _keep_reset(self, infos: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        mask = options.get("options", {}).get("reset_mask")
        for row in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            self.infos.reset_infos[row] = copy_arrays(_info_of_row(infos, row))  # type: ignore[union-attr]

    def _keeping(self, env_step: Callable[[Tree], Any]) -> Callable[[Tree], Any]:
        """Return the back end's step, whose infos are kept row by row."""

        def step(actions: Tree) -> Any:
            outcome = env_step(actions)
            infos, done = outcome[4], np.logical_or(outcome[2], outcome[3])
            present = {key: value for key, value in infos.items() if str(key).strip("_") not in _FINAL}
            for row in range(self.num_envs):
                info = copy_arrays(_info_of_row(present, row))
                is_reset = self._pending is not None and self._pending[row]
                if done[row] and self._has_final_infos:
                    self.infos.step_infos[row] = _info_of_row(infos.get("final_info") or {}, row)  # type: ignore[union-attr]
                    is_reset = True
                (self.infos.reset_infos if is_reset else self.infos.step_infos)[row] = info  # type: ignore[union-attr]
            return outcome

        return step

    def _error_at(
        self, row: int | None, error: BaseException | str | None, actions: Tree = None, hint: str = ""
    ) -> EnvironmentStepError:
        """Return the error of a row; without actions, that of a reset."""
        action = None if row is None or actions is None else rows_of(actions, row)
        during = "reset" if actions is None else "step"
        return step_error(error, backend=self.backend, env_index=row, action=action, during=during, hint=hint)

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        if not self._started or self._closed:
            self._check_started()
        try:
            # copied, as environments may write into what they get
            obs, rewards, terminateds, truncateds, infos = self._env_step(copy_arrays(actions))
        except EnvironmentStepError:
            raise
        except RAISED as error:
            self._check_given(error, actions)
            raise self._error_at(_row_in_traceback(error), error, actions) from error
        if self._given:
            self._check_given(actions=actions)
        result = self._result
        if type(obs) is not np.ndarray:
            obs = as_arrays(obs)
        if type(rewards) is not np.ndarray:
            terminateds, truncateds = map(np.asarray, (terminateds, truncateds))
        try:
            result.obs = self._form.hold(obs, (self.num_envs,))
            result.rewards = as_rewards(rewards, self.num_envs)
        except ValueError as error:
            raise self._error_at(None, error, actions) from error
        result.terminateds, result.truncateds = terminateds, truncateds
        result.valid = None
        if self._pending is not None:
            result.valid, self._pending = ~self._pending, None
        done = np.logical_or(terminateds, truncateds)
        if done.any():
            self._end_episodes(result, done, infos)
        elif result.any_done:
            result.any_done, result.final_obs, result.infos = False, None, None
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _end_episodes(self, result: StepResult, done: Flags, infos: Mapping[str, Any]) -> None:
        rows = np.flatnonzero(done)
        result.any_done = True
        if self._has_final_infos:
            result.final_obs = (rows, self._final_from_infos(infos, rows))
            infos = infos.get("final_info") or {}
        else:
            result.final_obs = (rows, rows_of(result.obs, rows))
        result.infos = {row: _info_of_row(infos, row) for row in rows.tolist()} if infos else None
        if self._resets_here:
            result.obs = self._reset_rows(None, options={"reset_mask": done})
        elif self.has_invalid_rows:
            self._pending = done

    def _final_from_infos(self, infos: Mapping[str, Any], rows: Rows) -> Tree:
        final = infos.get("final_obs")
        if final is None:
            raise ValueError(
                f"{type(self.env).__name__} says autoreset mode SAME_STEP but gave no infos['final_obs'] for rows "
                f"{rows.tolist()}: without it the last observation of an episode is lost."
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            try:
                return self._form.rows([final[row] for row in rows])
            except (TypeError, ValueError, KeyError) as error:
                raise ValueError(
                    f"infos['final_obs'] has {[final[row] for row in rows]!r} for rows {rows.tolist()}, which are no "
                    f"observations ({error}). gymnasium's vectors keep the last observation of an episode under this "
                    "key: an environment must not use it in its own info"
                ) from error
        held = self._form.hold(as_arrays(final), (self.num_envs,))
        return rows_of(held, rows)  # a plain batch, as AtariVectorEnv gives

    def _stateful_envs(self) -> list[Any]:
        """Return the environments that can tell a state, those of a `SyncVectorEnv` or a native vector; else none."""
        if self.env is not self.env.unwrapped:
            return []
        envs = list(self.env.envs) if type(self.env) is SyncVectorEnv else [self.env]
        return envs if all(map(tells_state, envs)) else []

    def _env_states(self) -> list[Any]:
        return [env_state(env) for env in self._stateful_envs()]

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of a `SyncVectorEnv` or of a native vector that tells it; None for all others."""
        state = super().get_state()
        return None if state is None else {**state, "pending": self._pending}

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Continue from what `get_state` gave; return the current observations."""
        envs = self._stateful_envs()
        if not envs:
            return super().set_state(state)
        self._check_number("set_state", "states", state["envs"], len(envs))
        self.reset()
        obs = allocate(self.observation_space, self.num_envs)
        write_rows(obs, ..., state["obs"])
        for env, env_part in zip(envs, state["envs"], strict=True):
            set_env_state(env, env_part)
        self._result.obs = obs
        self._pending = state.get("pending")  # other back ends let no reset wait
        return self._result.obs

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row, where the vector renders."""
        frames: Any = self.env.render()
        return frames[row] if isinstance(frames, tuple | list | np.ndarray) else frames

    def close(self) -> None:
        """Close the vector environment; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.env.close()


_FINAL = ("final_obs", "final_info")
"""Keys under which a vector tells how episodes ended; their masks have an underscore before."""


def _info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return what gymnasium's dict of arrays (with masks of the rows that have a key) says of one row."""
    info = {}
    masks = {f"_{key}" for key in infos}  # that of a key that is no text, too
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if key in masks or (mask is not None and not mask[row]):
            continue
        if isinstance(value, Mapping):
            info[key] = _info_of_row(value, row)
        else:
            info[key] = value[row] if isinstance(value, np.ndarray | list | tuple) else value
    return info


_BACKENDS = {SyncVectorEnv: "gymnasium_sync", AsyncVectorEnv: "gymnasium_async"}


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return the autoreset mode of this very instance; `ValueError` where it tells none.

    The instance's own attribute goes before its metadata: some classes (`AtariVectorEnv`) write the mode of the
    instance made last into metadata that all instances share.
    """
    for value in (getattr(env.unwrapped, "autoreset_mode", None), env.metadata.get("autoreset_mode")):
        if value is not None:
            return AutoresetMode(value)
    raise ValueError(
        f"{type(env.unwrapped).__name__} does not say how it resets finished rows. Set env.metadata['autoreset_mode'] "
        "to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED."
    )


def _row_in_traceback(error: BaseException) -> int | None:
    """Return the row that failed: gymnasium does not tell it, but its loop variable does."""
    codes = (SyncVectorEnv.step.__code__, SyncVectorEnv.reset.__code__)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            row = traceback.tb_frame.f_locals.get("i")
            return row if isinstance(row, int) else None
        traceback = traceback.tb_next
    return None


# -- AsyncVectorEnv ---

_REPORT_TIMEOUT = 5.0
"""Seconds to wait for the report of a worker that has said that it failed."""
_RESTARTS = (
    "gymnasium's AsyncVectorEnv cannot start a worker again; our own vector does, within limits: give the function "
    "that makes one environment, with env_runners(vectorize_mode='async') or "
    "make_vector(function, num_envs=n, mode='async')."
)


class AsyncVectorEnvBoundary(VectorEnvBoundary):
    """Puts `AsyncVectorEnv` (one process for each environment) behind the boundary, and guards its known faults.

    - After a time-out its pipes answer the wrong question: the workers are ended, and a further step is refused.
    - An error in a worker arrives with its traceback, row and last action; gymnasium only logs the traceback.
    - A worker that died cannot be started again from outside: the answers of the others are read, and the arguments of
      its process gone. The error says what can (`WorkerVectorEnv`).
    - In DISABLED mode stepping past the end is silent: the boundary resets finished rows itself, always.

    Args:
        env: the vector environment, not wrapped.
        step_timeout: seconds that the slowest environment may take for a step or a reset; None waits for ever.
    """

    def __init__(self, env: AsyncVectorEnv, *, step_timeout: float | None = None) -> None:
        super().__init__(env)
        self._workers, self._step_timeout = env, step_timeout
        self._env_step = self._step_workers
        self._last_actions: Tree = None
        self._under_way = False
        """the workers were asked something and have not answered"""
        env._raise_if_errors = self._raise_worker_errors  # type: ignore[method-assign]

    def _step_workers(self, actions: Tree) -> Any:
        self._last_actions = actions
        with self._guarded("step"):
            self._workers.step_async(actions)
            return self._workers.step_wait(self._step_timeout)

    def _env_reset(self, seed: Any, **options: Any) -> tuple[Tree, Mapping[str, Any]]:
        if not options:
            self._last_actions = None
        with self._guarded("reset"):
            self._workers.reset_async(seed, **options)
            return self._workers.reset_wait(self._step_timeout)

    @contextlib.contextmanager
    def _guarded(self, during: str) -> Iterator[None]:
        self._under_way = True
        try:
            yield
        except multiprocessing.TimeoutError as error:
            late = [row for row, pipe in enumerate(self._workers.parent_pipes) if not pipe.poll(0)]
            self._end_workers(f"time-out of rows {late}")
            raise EnvironmentTimeoutError(
                f"environments {late} did not answer within step_timeout={self._step_timeout} s (during {during}). "
                f"Their pipes are out of step, so all workers were ended; build the vector again. {_RESTARTS}",
                env_index=late[0] if late else None,
            ) from error
        except (EOFError, ConnectionError) as error:
            row = self._dead_row()
            self._end_workers(f"worker {row} died")
            raise self._error_at(row, None, self._last_actions, hint=f"{_RESTARTS} ") from error
        self._under_way = False

    def _dead_row(self) -> int | None:
        """Return the first worker that has ended; a pipe may be seen closed a moment before its process is gone."""
        sentinels = [process.sentinel for process in self._workers.processes]
        ended = connection.wait(sentinels, timeout=_REPORT_TIMEOUT)
        return min((sentinels.index(sentinel) for sentinel in ended), default=None)  # type: ignore[arg-type]

    def _raise_worker_errors(self, successes: Iterable[bool]) -> None:
        """Stand in for `AsyncVectorEnv._raise_if_errors`: with the place and the traceback."""
        failed = [row for row, success in enumerate(successes) if not success]
        if not failed:
            return
        try:
            row, _, value, text = self._workers.error_queue.get(timeout=_REPORT_TIMEOUT)
        except Exception as error:  # none came, or it cannot be made again
            row, value = failed[0], f"an error that cannot be pickled or made again ({error!r})"
            text = "(in a worker process; step the environment in one process to see its traceback)"
        self._end_workers(f"error in row {row}")
        if isinstance(value, KeyboardInterrupt):
            raise value
        raise self._error_at(row, value, self._last_actions) from WorkerTraceback(text)

    def _end_workers(self, failure: str) -> None:
        """End all processes and pipes without asking them anything."""
        self._failure = failure
        self._closed = self._workers.closed = True
        for process in self._workers.processes:
            process.kill()
            process.join()
        for pipe in self._workers.parent_pipes:
            if pipe is not None:
                pipe.close()

    __reduce__ = no_copies("processes", "make another one")

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        if not self._closed:
            self._closed = True
            if not self._under_way:
                with contextlib.suppress(EOFError, OSError):
                    self._workers.close()
            if not self._workers.closed:
                self._end_workers("")


# -- EnvPool ---

_LARGEST_SEED = 2**31 - 1


def is_envpool(env: object) -> bool:
    """Return whether `env` is a pool with the gymnasium interface; needs no import of EnvPool."""
    return any(base.__name__ == "GymnasiumEnvPoolMixin" for base in type(env).__mro__)


class EnvPoolBoundary(VectorEnvBoundary):
    """Puts a pool of EnvPool behind the boundary; rows that only reset come as invalid.

    EnvPool resets in the step after an ending (NEXT_STEP), steps rows on its own threads, and takes seeds only when a
    pool is made. It reports an episode that terminates in the very step of its time limit as truncated only.

    Args:
        env: a pool made by `envpool.make_gymnasium`, with `batch_size` equal to `num_envs`.
        make: makes the same pool with other seeds, for `reset(seeds)`; None where only the caller could.
    """

    def __init__(self, env: Any, make: Callable[[list[int]], Any] | None = None) -> None:
        super().__init__(env)
        self.backend = "envpool"
        self._make = make

    def _env_reset(self, seed: Any, **options: Any) -> tuple[Tree, Mapping[str, Any]]:
        if seed is not None and self._make is None:
            warnings.warn(
                "a pool takes its seeds when it is made: the seeds handed to reset are not used. Pass the id with "
                "mode='envpool' instead of a finished pool.",
                stacklevel=5,
            )
        elif seed is not None and self._make is not None:
            self.env.close()
            self.env = self._make([each % _LARGEST_SEED for each in seed])
            self._env_step = self.env.step if self.infos is None else self._keeping(self.env.step)
        return self.env.reset()


def make_envpool(
    env_id: str, num_envs: int, config: Mapping[str, Any], wrap: Callable[[Any], Any] = lambda pool: pool
) -> EnvPoolBoundary:
    """Make a pool of `num_envs` environments of `env_id`. `wrap`: what stands around each pool that is made.

    Raises:
        ValueError: EnvPool is not installed, or does not know the id (with the nearest ones).
    """
    try:
        import envpool
    except ImportError as error:
        raise ValueError(f"mode='envpool' needs EnvPool: {install_hint('envpool')}") from error
    known = envpool.list_all_envs()
    if env_id not in known:
        raise ValueError(f"EnvPool does not know the environment id {env_id!r}.{did_you_mean(env_id, known)}")

    def make(seeds: list[int]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # spaces rounded to float32, told once for each bound
            pool = envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seeds, **config)
            _ = pool.observation_space, pool.action_space
            return wrap(pool)

    seeds = np.random.default_rng().integers(_LARGEST_SEED, size=num_envs).tolist()
    return EnvPoolBoundary(make(seeds), make)
