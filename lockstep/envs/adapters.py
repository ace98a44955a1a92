"""gymnasium's own vector environments, in any autoreset mode, behind the boundary.

- NEXT_STEP: the step after an ending only resets. Where the back end resets single rows safely
  (`SyncVectorEnv`, `AsyncVectorEnv` with shared memory) the boundary does so at once; elsewhere that row
  comes as invalid.
- SAME_STEP: the back end has reset already; the true last observation is in ``infos["final_obs"]``.
- DISABLED: the boundary resets the finished rows through ``reset_mask``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lockstep.envs import trees
from lockstep.envs.boundary import StepResult, VectorBoundary
from lockstep.envs.env_state import check_rows, env_state, set_env_state, tells_state
from lockstep.envs.errors import EnvironmentStepError, step_error


class VectorEnvBoundary(VectorBoundary):
    """Any `gymnasium.vector.VectorEnv` (wrapped or not) behind the boundary.

    Args:
        env: the vector environment; the boundary closes it.

    Raises:
        ValueError: the environment tells no autoreset mode, steps only part of its rows at a time, or has a
            space without an array of fixed size.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        trees.check_supported(self.observation_space, "the observation space")
        trees.check_supported(self.action_space, "the action space")
        self.single_env_spec = _spec_of(env)
        base: Any = env.unwrapped
        self.backend = _backend_name(base)
        mode = autoreset_mode_of(env)
        self.autoreset_mode = mode.name
        self._check_batch_size(base)
        masked = mode is AutoresetMode.NEXT_STEP and env is base and self._resets_single_rows(base)
        self._resets_here = masked or mode is AutoresetMode.DISABLED
        self._told_in_infos = mode is AutoresetMode.SAME_STEP
        self.has_invalid_rows = not (self._resets_here or self._told_in_infos)
        self._pending = np.zeros(self.num_envs, dtype=np.bool_)
        self._done = np.zeros(self.num_envs, dtype=np.bool_)
        self._any_pending = False
        # Without shared memory a worker in NEXT_STEP mode does not notice an explicit reset: if its last
        # step ended an episode it resets once more in the next step, which is then no transition.
        self._resets_twice = (
            isinstance(base, AsyncVectorEnv) and not base.shared_memory and mode is AutoresetMode.NEXT_STEP
        )
        self._mask_unproven = env is base and mode is AutoresetMode.DISABLED
        empty = np.zeros(self.num_envs, dtype=np.bool_)
        self._result = StepResult(None, np.zeros(self.num_envs), empty, empty)
        self._env_step = env.step
        self._started = False

    def _check_batch_size(self, base: Any) -> None:
        batch_size = getattr(base, "batch_size", None)
        if batch_size is not None and batch_size != self.num_envs:
            raise ValueError(
                f"the vector environment answers {batch_size} of its {self.num_envs} rows at a time; the "
                "boundary "
                "steps all rows together. Make it with batch_size equal to num_envs."
            )

    def _resets_single_rows(self, base: Any) -> bool:
        """Whether a masked reset in NEXT_STEP mode leaves no second reset behind."""
        return type(base) is SyncVectorEnv

    def reset(self, seeds: list[int] | None = None) -> Any:
        """Begin a new episode in every row; see `VectorBoundary.reset`."""
        self.check_open()
        self._check_seeds(seeds)
        try:
            obs = self._reset_all(seeds)
        except EnvironmentStepError:
            raise
        except Exception as error:
            raise self._error(error, None, "reset") from error
        self._forget_pending()
        self._started = True
        result = self._result
        result.obs = as_arrays(obs)
        result.any_done, result.final_obs, result.infos, result.valid = False, None, None, None
        return result.obs

    def _reset_all(self, seeds: list[int] | None) -> Any:
        if seeds is None:
            return self.env.reset()[0]
        if self.backend == "native":
            return self.env.reset(seed=int(seeds[0]))[0]
        return self.env.reset(seed=[int(seed) for seed in seeds])[0]  # type: ignore[arg-type]

    def _forget_pending(self) -> None:
        if not self._resets_twice:
            self._pending[:] = False
        self._any_pending = bool(self._pending.any())

    def step(self, actions: Any) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        if not self._started or self._closed:
            self.check_open()
            raise ValueError("step was called before reset: call reset(seeds) once, then step.")
        try:
            obs, rewards, terminateds, truncateds, infos = self._env_step(actions)
        except EnvironmentStepError:
            raise
        except Exception as error:
            raise self._error(error, actions, "step") from error
        result = self._result
        if type(obs) is not np.ndarray:
            obs = as_arrays(obs)
        if type(rewards) is not np.ndarray:
            rewards, terminateds, truncateds = map(np.asarray, (rewards, terminateds, truncateds))
        result.obs, result.rewards = obs, rewards
        result.terminateds, result.truncateds = terminateds, truncateds
        result.valid = None
        if self._any_pending:
            result.valid = ~self._pending
            self._pending[:] = False
            self._any_pending = False
        done = np.logical_or(terminateds, truncateds, out=self._done)
        if done.any():
            self._end_episodes(result, done, infos)
        elif result.any_done:
            result.any_done, result.final_obs, result.infos = False, None, None
        return result

    def _end_episodes(self, result: StepResult, done: npt.NDArray[np.bool_], infos: Mapping[str, Any]) -> None:
        rows = np.flatnonzero(done)
        result.any_done = True
        if self._told_in_infos:
            result.final_obs = (rows, self._final_from_infos(infos, rows))
            result.infos = _FinalInfos.of(infos.get("final_info"), rows)
            return
        result.final_obs = (rows, trees.gather(result.obs, rows))
        result.infos = _FinalInfos.of(infos, rows)
        if self._resets_here:
            # a copy of the mask: gymnasium empties the options it is given, and may keep the array
            obs = as_arrays(self._reset_rows(done.copy()))
            if self._mask_unproven:
                self._prove_mask(result.obs, obs, ~done)
            result.obs = obs
        else:
            self._pending[:] = done
            self._any_pending = True

    def _reset_rows(self, mask: npt.NDArray[np.bool_]) -> Any:
        try:
            return self.env.reset(options={"reset_mask": mask})[0]
        except EnvironmentStepError:
            raise
        except Exception as error:
            raise self._error(error, None, "reset") from error

    def _prove_mask(self, before: Any, after: Any, kept: npt.NDArray[np.bool_]) -> None:
        """A vector that ignores ``reset_mask`` would restart running episodes without a word."""
        if not kept.any():
            return
        self._mask_unproven = False
        if not _equal(trees.gather(before, kept), trees.gather(after, kept)):
            raise ValueError(
                f"{type(self.env).__name__} says autoreset mode DISABLED but did not heed "
                "reset(options={'reset_mask': ...}): running episodes were reset too. Use another autoreset "
                "mode."
            )

    def _final_from_infos(self, infos: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> Any:
        final = infos.get("final_obs")
        if final is None:
            raise ValueError(
                f"{type(self.env).__name__} says autoreset mode SAME_STEP but gave no infos['final_obs'] "
                "for rows "
                f"{rows.tolist()}: without it the last observation of an episode is lost."
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            return trees.stack_rows(self.observation_space, [final[row] for row in rows])
        return trees.gather(as_arrays(final), rows)  # a plain batch, as AtariVectorEnv gives

    def _error(self, error: Exception, actions: Any, during: str) -> EnvironmentStepError:
        """The error with the row: gymnasium does not tell it, but its loop variable does."""
        row = _row_in_traceback(error.__traceback__)
        action = None if row is None or actions is None else _row_of(actions, row)
        return step_error(error, backend=self.backend, env_index=row, action=action, during=during)

    def get_state(self) -> dict[str, Any] | None:
        """The state of a `SyncVectorEnv` or of a native vector that tells it; None for all others."""
        if not self._started or self.env is not self.env.unwrapped:
            return None
        envs = self.env.envs if type(self.env) is SyncVectorEnv else [self.env]
        states = [env_state(env) for env in envs]
        if any(state is None for state in states):
            return None
        obs = trees.gather(self._result.obs, np.arange(self.num_envs))
        return {"envs": states, "obs": obs, "pending": self._pending.copy()}

    def set_state(self, state: dict[str, Any]) -> Any:
        """Continue from what `get_state` gave; returns the current observations."""
        envs = self.env.envs if type(self.env) is SyncVectorEnv else [self.env]
        if self.env is not self.env.unwrapped or any(not tells_state(env) for env in envs):
            return super().set_state(state)
        check_rows(state, len(envs))
        pending = state.get("pending", np.zeros(self.num_envs, bool))  # other back ends let no reset wait
        if len(pending) != self.num_envs:
            raise ValueError(f"the state is of {len(pending)} rows, there are {self.num_envs} here.")
        self.reset()
        for env, one in zip(envs, state["envs"], strict=True):
            set_env_state(env, one)
        result = self._result
        result.obs = trees.gather(state["obs"], np.arange(self.num_envs))
        self._pending[:] = pending
        self._any_pending = bool(self._pending.any())
        return result.obs

    def render(self, row: int = 0) -> Any:
        """The frame of one row, where the vector renders."""
        frames: Any = self.env.render()
        return frames[row] if isinstance(frames, tuple | list | np.ndarray) else frames

    def close(self) -> None:
        """Close the vector environment; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.env.close()


class _FinalInfos(Mapping[int, dict[str, Any]]):
    """Infos of the rows that ended, taken out of gymnasium's dict of arrays when one is asked for."""

    def __init__(self, infos: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> None:
        self._infos, self._rows = infos, rows

    @staticmethod
    def of(infos: Mapping[str, Any] | None, rows: npt.NDArray[np.int64]) -> Any:
        """None where there is nothing to tell."""
        return _FinalInfos(infos, rows) if infos else None

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row not in self._rows:
            raise KeyError(row)
        return _info_of_row(self._infos, row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows.tolist())

    def __len__(self) -> int:
        return len(self._rows)


def _info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    info = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if (key.startswith("_") and key[1:] in infos) or (mask is not None and not mask[row]):
            continue
        info[key] = _info_of_row(value, row) if isinstance(value, Mapping) else value[row]
    return info


def _spec_of(env: Any) -> Any:
    base = env.unwrapped
    spec = getattr(base.envs[0] if isinstance(base, SyncVectorEnv) else env, "spec", None)
    return spec if isinstance(spec, EnvSpec) else None


def _backend_name(base: Any) -> str:
    if isinstance(base, SyncVectorEnv):
        return "gymnasium_sync"
    return "gymnasium_async" if isinstance(base, AsyncVectorEnv) else "native"


def autoreset_mode_of(env: VectorEnv) -> AutoresetMode:
    """The autoreset mode of this very instance.

    The instance's own attribute goes before its metadata: some classes (`AtariVectorEnv`) write the mode of
    the instance made last into metadata that all instances share.

    Raises:
        ValueError: the environment tells none.
    """
    for value in (getattr(env.unwrapped, "autoreset_mode", None), env.metadata.get("autoreset_mode")):
        if isinstance(value, AutoresetMode):
            return value
        if value is not None:
            return AutoresetMode(value)
    raise ValueError(
        f"{type(env.unwrapped).__name__} does not say how it resets finished rows. Set "
        "env.metadata['autoreset_mode'] to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED."
    )


def as_arrays(tree: Any) -> Any:
    """The same tree with numpy arrays as leaves (jax and torch arrays are converted)."""
    if isinstance(tree, np.ndarray):
        return tree
    if isinstance(tree, Mapping):
        return {key: as_arrays(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(as_arrays(part) for part in tree)
    return np.asarray(tree)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(left, Mapping):
        return all(_equal(part, right[key]) for key, part in left.items())
    return all(_equal(part, other) for part, other in zip(left, right, strict=True))


def _row_of(tree: Any, row: int) -> Any:
    if isinstance(tree, Mapping):
        return {key: _row_of(part, row) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_row_of(part, row) for part in tree)
    return tree[row]


def _row_in_traceback(traceback: TracebackType | None) -> int | None:
    codes = (SyncVectorEnv.step.__code__, SyncVectorEnv.reset.__code__)
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            row = traceback.tb_frame.f_locals.get("i")
            return row if isinstance(row, int) else None
        traceback = traceback.tb_next
    return None


def native_vector(spec: EnvSpec, num_envs: int, config: Mapping[str, Any]) -> VectorEnv:
    """gymnasium's native vector form of an environment.

    Raises:
        ValueError: it has none.
    """
    if spec.vector_entry_point is None:
        raise ValueError(
            f"{spec.id!r} has no native vector form (vector_entry_point); use mode='sync' or mode='async'."
        )
    return gym.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **config)
