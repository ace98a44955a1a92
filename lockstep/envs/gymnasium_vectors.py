"""Boundaries over gymnasium's own vector environments and EnvPool's, in any autoreset mode.

`lockstep.envs.boundary` explains the three modes. Each is translated like this:

- NEXT_STEP: the step after an ending only resets. Where the back end can reset single rows safely (`SyncVectorEnv`,
  `AsyncVectorEnv` with shared memory), the boundary resets them at once, so that no step is wasted. Elsewhere the reset
  row is marked as invalid.
- SAME_STEP: the back end has already reset the row. The last observation is in `infos["final_obs"]`.
- DISABLED: the boundary resets the finished rows with `reset_mask`.
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
from lockstep.envs.env_state import env_state, has_env_state, set_env_state
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
    """Boundary over any `gymnasium.vector.VectorEnv`, wrapped or not.

    Args:
        env: The vector environment. The boundary closes it.

    Raises:
        ValueError: The environment has no autoreset mode, steps only part of its rows at a time, or has a space that is
            not stored in fixed-size arrays.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._set_spaces(env.single_observation_space, env.single_action_space)
        base: Any = env.unwrapped
        is_sync = isinstance(base, SyncVectorEnv)
        is_async = isinstance(base, AsyncVectorEnv)
        if is_sync:
            self.backend = "gymnasium_sync"
        elif is_async:
            self.backend = "gymnasium_async"
        else:
            self.backend = "native"
        spec = getattr(base.envs[0] if is_sync else env, "spec", None)
        self.single_env_spec = spec if isinstance(spec, EnvSpec) else None

        mode = _autoreset_mode(env)
        self.autoreset_mode = mode.name
        batch_size = base.config["batch_size"] if is_envpool(base) else getattr(base, "batch_size", None)
        if batch_size not in (None, 0, self.num_envs):
            raise ValueError(
                f"the vector environment answers {batch_size} of its {self.num_envs} rows at a time; the boundary "
                "steps all rows together. Make it with batch_size equal to num_envs."
            )

        # Only these exact classes, without a wrapper, are known to reset just the rows of `reset_mask`: a vector
        # wrapper or a subclass may treat it as a reset of all rows, and clear what it counts for the other rows.
        respects_mask = type(env) is SyncVectorEnv or (type(env) is AsyncVectorEnv and env.shared_memory)
        self._resets_rows = mode is AutoresetMode.DISABLED or (mode is AutoresetMode.NEXT_STEP and respects_mask)
        self._has_final_infos = mode is AutoresetMode.SAME_STEP
        self.has_invalid_rows = not (self._resets_rows or self._has_final_infos)
        self._pending_resets: Flags | None = None
        """Rows that will only reset in the next step, which is therefore not a transition; None: no row."""
        # Without shared memory, a worker in NEXT_STEP mode does not notice an explicit reset: if its last step ended an
        # episode, it resets once more in the next step. So an explicit reset must not clear `_pending_resets`.
        self._resets_twice = is_async and self.has_invalid_rows and not base.shared_memory

        self._result = StepResult(None, self.num_envs)
        self._env_step: Callable[[Any], Any] = env.step
        self._raw_obs: list[Any] = getattr(base, "_env_obs", []) if is_sync else []
        """Observations of the single environments before gymnasium casts them into its batch, where 1e300
        would become infinite. A private list of `SyncVectorEnv`; if it is missing, only the batch is checked."""

    def _reset(self, seeds: list[int] | None) -> Tree:
        seed: Any = seeds
        if seeds and self.backend == "native":
            # A native vector has one generator, unless it says that it seeds each row.
            seeds_rows = getattr(self.env, "seeds_rows", False)
            seed = np.array(seeds) % _LARGEST_SEED if seeds_rows else seeds[0]

        self._result.obs = self._reset_rows(seed)
        if not self._resets_twice:
            self._pending_resets = None
        return self._result.obs

    def _reset_rows(self, seed: Any, **options: Any) -> Tree:
        """Reset all rows, or those of the `reset_mask` in the options. Return the observations of all rows."""
        try:
            obs, infos = self._env_reset(seed, **options)
            if self.infos is not None:
                self._record_reset_infos(infos, options)
            self._check_raw_obs()
            return self._form.hold(as_arrays(obs), (self.num_envs,))
        except EnvironmentStepError:
            raise
        except RAISED as error:
            self._check_raw_obs(error)
            raise self._error_at(_row_in_traceback(error), error) from error

    def _check_raw_obs(self, error: BaseException | None = None, actions: Tree = None) -> None:
        """Check the observations of single environments, which gymnasium casts before the boundary can see them.

        Args:
            error: Exception that gymnasium raised, if any. A wrong observation is then the likely cause of it.
            actions: Actions of this step; None during a reset.

        Raises:
            EnvironmentStepError: The space cannot hold an observation. Names the row, with `error` as its cause.
        """
        for row, obs in enumerate(self._raw_obs):
            if obs is None:  # of an environment that has not been reset
                continue
            try:
                self._form.hold(obs)
            except ValueError as wrong:
                wrong.__cause__ = error
                raise self._error_at(row, wrong, actions) from wrong

    def _env_reset(self, seed: Any, **options: Any) -> tuple[Tree, Mapping[str, Any]]:
        """Reset the back end and return its observations and infos."""
        return self.env.reset(seed=seed, **options)

    def single_envs(self) -> list[Any]:
        """Return the environments of a `SyncVectorEnv`. For another vector, return the vector B times."""
        base: Any = self.env.unwrapped
        return list(base.envs) if isinstance(base, SyncVectorEnv) else [self.env] * self.num_envs

    def keep_infos(self) -> None:
        """Record the infos of all rows from now on."""
        if self.infos is None:
            self.infos = RowInfos(self.num_envs)
            self._env_step = self._recording_step(self._env_step, self.infos)

    def _record_reset_infos(self, infos: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        mask = options.get("options", {}).get("reset_mask")
        rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        for row in rows:
            self.infos.reset_infos[row] = copy_arrays(_info_of_row(infos, row))  # type: ignore[union-attr]

    def _recording_step(self, env_step: Callable[[Tree], Any], row_infos: RowInfos) -> Callable[[Tree], Any]:
        """Return the back end's step function, extended by recording the infos of each row."""

        def step(actions: Tree) -> Any:
            answer = env_step(actions)
            infos = answer[4]
            done = np.logical_or(answer[2], answer[3])
            present = {key: value for key, value in infos.items() if str(key).strip("_") not in _FINAL}

            for row in range(self.num_envs):
                info = copy_arrays(_info_of_row(present, row))
                if done[row] and self._has_final_infos:
                    # SAME_STEP: the plain keys are from the reset, and `final_info` is from the step before it.
                    row_infos.step_infos[row] = _info_of_row(infos.get("final_info") or {}, row)
                    row_infos.reset_infos[row] = info
                elif self._pending_resets is not None and self._pending_resets[row]:
                    row_infos.reset_infos[row] = info
                else:
                    row_infos.step_infos[row] = info
            return answer

        return step

    def _error_at(
        self, row: int | None, error: BaseException | str | None, actions: Tree = None, hint: str = ""
    ) -> EnvironmentStepError:
        """Return the error of a row in a step with these actions, or in a reset if `actions` is None."""
        action = None if row is None or actions is None else rows_of(actions, row)
        during = "reset" if actions is None else "step"
        return step_error(error, backend=self.backend, env_index=row, action=action, during=during, hint=hint)

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        if not self._started or self._closed:
            self._check_started()

        try:
            # A copy, because environments may write into the action.
            obs, rewards, terminateds, truncateds, infos = self._env_step(copy_arrays(actions))
        except EnvironmentStepError:
            raise
        except RAISED as error:
            self._check_raw_obs(error, actions)
            raise self._error_at(_row_in_traceback(error), error, actions) from error
        if self._raw_obs:
            self._check_raw_obs(actions=actions)

        # A native vector may return other arrays than numpy's.
        result = self._result
        if type(obs) is not np.ndarray:
            obs = as_arrays(obs)
        if type(rewards) is not np.ndarray:
            terminateds = np.asarray(terminateds)
            truncateds = np.asarray(truncateds)
        try:
            result.obs = self._form.hold(obs, (self.num_envs,))
            result.rewards = as_rewards(rewards, self.num_envs)
        except ValueError as error:
            raise self._error_at(None, error, actions) from error
        result.terminateds = terminateds
        result.truncateds = truncateds

        # Rows whose episode ended in the step before have only been reset by this one.
        result.valid = None
        if self._pending_resets is not None:
            result.valid = ~self._pending_resets
            self._pending_resets = None

        done = np.logical_or(terminateds, truncateds)
        if done.any():
            self._end_episodes(result, done, infos)
        elif result.any_done:
            result.any_done = False
            result.final_obs = None
            result.infos = None
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _end_episodes(self, result: StepResult, done: Flags, infos: Mapping[str, Any]) -> None:
        """Take the final observations and infos of the `done` rows, and see that these rows are reset."""
        rows = np.flatnonzero(done)
        result.any_done = True
        if self._has_final_infos:
            result.final_obs = (rows, self._final_from_infos(infos, rows))
            infos = infos.get("final_info") or {}
        else:
            # Before the reset below, which overwrites `result.obs`.
            result.final_obs = (rows, rows_of(result.obs, rows))
        result.infos = {row: _info_of_row(infos, row) for row in rows.tolist()} if infos else None

        if self._resets_rows:
            result.obs = self._reset_rows(None, options={"reset_mask": done})
        elif self.has_invalid_rows:
            self._pending_resets = done

    def _final_from_infos(self, infos: Mapping[str, Any], rows: Rows) -> Tree:
        """Return the final observations of these rows, a tree `[len(rows), ...]`, from the infos of SAME_STEP mode."""
        final = infos.get("final_obs")
        if final is None:
            raise ValueError(
                f"{type(self.env).__name__} says autoreset mode SAME_STEP but gave no infos['final_obs'] for rows "
                f"{rows.tolist()}: without it the last observation of an episode is lost."
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            # gymnasium's own vectors: one observation for each ended row, and None for the others.
            try:
                return self._form.rows([final[row] for row in rows])
            except (TypeError, ValueError, KeyError) as error:
                raise ValueError(
                    f"infos['final_obs'] has {[final[row] for row in rows]!r} for rows {rows.tolist()}, which are no "
                    f"observations ({error}). gymnasium's vectors keep the last observation of an episode under this "
                    "key: an environment must not use it in its own info"
                ) from error
        # A plain batch of all rows, which `AtariVectorEnv` gives.
        batch = self._form.hold(as_arrays(final), (self.num_envs,))
        return rows_of(batch, rows)

    def _stateful_envs(self) -> list[Any]:
        """Return the environments of a `SyncVectorEnv`, or the native vector itself, if all can give their state.

        Empty otherwise, and for a wrapped vector, whose wrappers may have a state that nobody can read.
        """
        if self.env is not self.env.unwrapped:
            return []
        envs = list(self.env.envs) if type(self.env) is SyncVectorEnv else [self.env]
        return envs if all(map(has_env_state, envs)) else []

    def _env_states(self) -> list[Any]:
        return [env_state(env) for env in self._stateful_envs()]

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of a `SyncVectorEnv` or of a native vector that can give it; None for all others."""
        state = super().get_state()
        return None if state is None else {**state, "pending": self._pending_resets}

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Restore a state that `get_state` returned, and return the current observations."""
        envs = self._stateful_envs()
        if not envs:
            return super().set_state(state)
        self._check_number("set_state", "states", state["envs"], len(envs))

        self.reset()
        obs = allocate(self.observation_space, self.num_envs)
        write_rows(obs, ..., state["obs"])
        for env, state_of_env in zip(envs, state["envs"], strict=True):
            set_env_state(env, state_of_env)
        self._result.obs = obs
        self._pending_resets = state.get("pending")  # missing in states of back ends without pending resets
        return self._result.obs

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row, if the vector renders."""
        frames: Any = self.env.render()
        return frames[row] if isinstance(frames, tuple | list | np.ndarray) else frames

    def close(self) -> None:
        """Close the vector environment. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.env.close()


_FINAL = ("final_obs", "final_info")
"""Keys of a vector's infos about ended episodes. The keys of their masks begin with an underscore."""


def _info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row from gymnasium's dict of arrays, in which `_key` masks the rows that have `key`."""
    info = {}
    masks = {f"_{key}" for key in infos}  # a key may be something other than a string
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if key in masks or (mask is not None and not mask[row]):
            continue
        if isinstance(value, Mapping):
            info[key] = _info_of_row(value, row)
        else:
            info[key] = value[row] if isinstance(value, np.ndarray | list | tuple) else value
    return info


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return the autoreset mode of this instance; `ValueError` if it does not say.

    The attribute of the instance takes precedence over the metadata: some classes (`AtariVectorEnv`) write the mode of
    the newest instance into metadata that all instances share.
    """
    for value in (getattr(env.unwrapped, "autoreset_mode", None), env.metadata.get("autoreset_mode")):
        if value is not None:
            return AutoresetMode(value)
    raise ValueError(
        f"{type(env.unwrapped).__name__} does not say how it resets finished rows. Set env.metadata['autoreset_mode'] "
        "to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED."
    )


def _row_in_traceback(error: BaseException) -> int | None:
    """Return the row of a `SyncVectorEnv` that raised; None if unknown.

    gymnasium's error does not name the row, but the frame of its loop is in the traceback, with the loop variable `i`.
    """
    loops = (SyncVectorEnv.step.__code__, SyncVectorEnv.reset.__code__)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in loops:
            row = traceback.tb_frame.f_locals.get("i")
            return row if isinstance(row, int) else None
        traceback = traceback.tb_next
    return None


# -- AsyncVectorEnv ---

_REPORT_TIMEOUT = 5.0
"""Seconds to wait for the report of a worker that has announced a failure."""
_RESTARTS = (
    "gymnasium's AsyncVectorEnv cannot start a worker again; our own vector does, within limits: give the function "
    "that makes one environment, with env_runners(vectorize_mode='async') or "
    "make_vector(function, num_envs=n, mode='async')."
)


class AsyncVectorEnvBoundary(VectorEnvBoundary):
    """Boundary over gymnasium's `AsyncVectorEnv` (one process for each environment) that guards its known faults.

    - After a time-out its pipes would answer the previous question. The boundary ends the workers and refuses steps.
    - An error in a worker is raised here with its traceback, row and last action; gymnasium only logs the traceback.
    - A dead worker cannot be restarted from outside, since the arguments of its process are gone. The error names the
      vector that can restart workers (`WorkerVectorEnv`).
    - In DISABLED mode a step past the end of an episode raises nothing. The boundary always resets finished rows.

    Args:
        env: The vector environment, not wrapped.
        step_timeout: Seconds that the slowest environment may take for a step or a reset. None waits for ever.
    """

    def __init__(self, env: AsyncVectorEnv, *, step_timeout: float | None = None) -> None:
        super().__init__(env)
        self._workers = env
        self._step_timeout = step_timeout
        self._env_step = self._step_workers
        self._last_actions: Tree = None
        self._awaits_answers = False
        """True while workers were asked something and have not all answered: `close` must then not ask again."""
        # A private method that gymnasium calls after every answer. gymnasium's version closes the pipes of the failed
        # rows and raises an exception without row, action and traceback.
        env._raise_if_errors = self._raise_worker_errors  # type: ignore[method-assign]

    def _step_workers(self, actions: Tree) -> Any:
        self._last_actions = actions
        with self._guarded("step"):
            self._workers.step_async(actions)
            return self._workers.step_wait(self._step_timeout)

    def _env_reset(self, seed: Any, **options: Any) -> tuple[Tree, Mapping[str, Any]]:
        if not options:  # a reset of all rows, not of those that ended in a step
            self._last_actions = None
        with self._guarded("reset"):
            self._workers.reset_async(seed, **options)
            return self._workers.reset_wait(self._step_timeout)

    @contextlib.contextmanager
    def _guarded(self, during: str) -> Iterator[None]:
        """Turn time-outs and dead workers into our errors, and end all workers after either."""
        self._awaits_answers = True
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
        self._awaits_answers = False

    def _dead_row(self) -> int | None:
        """Return the first worker that has ended. Waits, as a pipe may close a moment before its process is gone."""
        sentinels = [process.sentinel for process in self._workers.processes]
        ended = connection.wait(sentinels, timeout=_REPORT_TIMEOUT)
        return min((sentinels.index(sentinel) for sentinel in ended), default=None)  # type: ignore[arg-type]

    def _raise_worker_errors(self, successes: Iterable[bool]) -> None:
        """Raise the error of a failed worker with its row, last action and traceback.

        Replaces `AsyncVectorEnv._raise_if_errors`.
        """
        failed = [row for row, success in enumerate(successes) if not success]
        if not failed:
            return
        try:
            row, _, value, text = self._workers.error_queue.get(timeout=_REPORT_TIMEOUT)
        except Exception as error:  # no report came, or its exception cannot be unpickled
            row = failed[0]
            value = f"an error that cannot be pickled or made again ({error!r})"
            text = "(in a worker process; step the environment in one process to see its traceback)"
        self._end_workers(f"error in row {row}")
        # Ctrl-C interrupts the workers as well. It is a request of the user, not a fault of the environment.
        if isinstance(value, KeyboardInterrupt):
            raise value
        raise self._error_at(row, value, self._last_actions) from WorkerTraceback(text)

    def _end_workers(self, failure: str) -> None:
        """Kill all processes and close their pipes, without asking them anything. Later calls report `failure`."""
        self._failure = failure
        self._closed = True
        self._workers.closed = True
        for process in self._workers.processes:
            process.kill()
            process.join()
        for pipe in self._workers.parent_pipes:
            if pipe is not None:
                pipe.close()

    __reduce__ = no_copies("processes", "make another one")

    def close(self) -> None:
        """End the workers. A second call does nothing."""
        if not self._closed:
            self._closed = True
            if not self._awaits_answers:
                with contextlib.suppress(EOFError, OSError):
                    self._workers.close()
            if not self._workers.closed:
                self._end_workers("")


# -- EnvPool ---

_LARGEST_SEED = 2**31 - 1


def is_envpool(env: object) -> bool:
    """Return whether `env` is a pool of EnvPool with the gymnasium interface. Does not import EnvPool."""
    return any(base.__name__ == "GymnasiumEnvPoolMixin" for base in type(env).__mro__)


class EnvPoolBoundary(VectorEnvBoundary):
    """Boundary over a pool of EnvPool. Reset rows are marked as invalid.

    EnvPool resets in the step after an ending (NEXT_STEP), steps rows on its own threads, and accepts seeds only when a
    pool is made. It reports an episode that terminates in the very step of its time limit as truncated only.

    Args:
        env: A pool made by `envpool.make_gymnasium`, with `batch_size` equal to `num_envs`.
        make: Function that makes the same pool with other seeds, for `reset(seeds)`. None: a pool that the caller made
            keeps its seeds.
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
            self._env_step = self.env.step
            if self.infos is not None:
                self._env_step = self._recording_step(self.env.step, self.infos)
        return self.env.reset()


def make_envpool(
    env_id: str, num_envs: int, config: Mapping[str, Any], wrap: Callable[[Any], Any] = lambda pool: pool
) -> EnvPoolBoundary:
    """Make a pool of `num_envs` environments of `env_id`.

    Args:
        env_id: Id of an environment that EnvPool has.
        num_envs: Number of environments B.
        config: Keyword arguments for `envpool.make_gymnasium`.
        wrap: Function that wraps each pool that is made, also after `reset(seeds)`.

    Raises:
        ValueError: EnvPool is not installed, or does not know the id. Names the nearest ids.
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
            # gymnasium warns of each bound that it rounds to float32, when the spaces are first read.
            warnings.simplefilter("ignore", UserWarning)
            pool = envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seeds, **config)
            _ = pool.observation_space, pool.action_space
            return wrap(pool)

    seeds = np.random.default_rng().integers(_LARGEST_SEED, size=num_envs).tolist()
    return EnvPoolBoundary(make(seeds), make)
