"""`MaskedBoundary`: a vector environment whose observations contain the masks of its environments' actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.envs import StepResult, VectorBoundary

OBS = "obs"
"""Key of the environment's observation, next to the key of its mask."""
MASK = "action_mask"
"""Key at which Lockstep's policies look for a mask."""


def choices_of(action_space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the action space as choices, each of which can be masked.

    A number of `MultiBinary` becomes a choice between 0 and 1, so that a mask may forbid either of them.

    Raises:
        ValueError: actions of this space cannot be masked.
    """
    if isinstance(action_space, spaces.MultiBinary) and len(action_space.shape) == 1:
        return spaces.MultiDiscrete([2] * action_space.shape[0])
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        return action_space
    raise ValueError(
        f"MaskablePPO: actions of {action_space} cannot be masked; it takes Discrete, MultiDiscrete and MultiBinary "
        "with one dimension. Use PPO"
    )


def num_entries(choices: spaces.Space[Any]) -> int:
    """Return the number of entries in a mask for a space of `choices_of`."""
    if isinstance(choices, spaces.Discrete):
        return int(choices.n)
    nvec: Any = choices.nvec  # type: ignore[attr-defined]
    return int(np.sum(nvec))


def masked_space(observation_space: spaces.Space[Any], choices: spaces.Space[Any]) -> spaces.Dict:
    """Return the space of observations with masks: `{"obs": observation, "action_mask": mask}`."""
    return spaces.Dict({OBS: observation_space, MASK: spaces.MultiBinary(num_entries(choices))})


def with_masks(observations: Any, masks: np.ndarray) -> dict[str, Any]:
    """Return observations `[B, ...]` with their masks `[B, entries]`, in the form of `masked_space`."""
    return {MASK: masks, OBS: observations}  # the order of the space, which sorts its keys


class MaskedBoundary(VectorBoundary):
    """Vector environment that adds masks to the observations of another one.

    Args:
        inner: The other vector environment. It must reset a finished environment within the step (`SAME_STEP`), or
            be one that resets it at once.
        read_masks: Function that returns the present masks `[B, entries]` of all environments.
    """

    def __init__(self, inner: VectorBoundary, read_masks: Callable[[], Any]) -> None:
        self.inner = inner
        self.read_masks = read_masks
        self.num_envs = inner.num_envs
        self.backend = inner.backend
        self.autoreset_mode = inner.autoreset_mode
        self.has_invalid_rows = inner.has_invalid_rows
        self.single_env_spec = inner.single_env_spec
        self.action_space = choices_of(inner.action_space)
        self.observation_space = masked_space(inner.observation_space, self.action_space)
        self.uses_masks = True
        """Whether masks are read. Without them every action is allowed."""
        self._num_entries = num_entries(self.action_space)
        self._result = StepResult(None, self.num_envs)

    def _masks(self) -> np.ndarray:
        """Return the present masks, int8 `[B, entries]`."""
        shape = (self.num_envs, self._num_entries)
        if not self.uses_masks:
            return np.ones(shape, np.int8)
        masks = np.asarray(self.read_masks())
        if masks.size != shape[0] * shape[1]:
            raise ValueError(
                f"action_masks() returned masks of shape {masks.shape[1:]}; actions of {self.inner.action_space} need "
                f"{self._num_entries} entries, one for each choice"
            )
        flags: np.ndarray = masks.reshape(shape).astype(bool)
        return flags.astype(np.int8)

    def _reset(self, seeds: list[int] | None) -> dict[str, Any]:
        self._result.obs = with_masks(self.inner.reset(seeds), self._masks())
        obs: dict[str, Any] = self._result.obs
        return obs

    def step(self, actions: Any) -> StepResult:
        """Take one action in every row, and read the masks of the actions that are allowed next."""
        taken = self.inner.step(np.asarray(actions, self.inner.action_space.dtype))
        result = self._result
        _copy_fields(taken, result)
        result.obs = with_masks(taken.obs, self._masks())
        result.final_obs = None
        if taken.final_obs is not None:
            # No action is taken at the last observation of an episode, so its mask is never read.
            rows, last_obs = taken.final_obs
            result.final_obs = (rows, with_masks(last_obs, np.ones((len(rows), self._num_entries), np.int8)))
        return result

    def single_envs(self) -> list[Any]:
        return self.inner.single_envs()

    def keep_infos(self) -> None:
        self.inner.keep_infos()
        self.infos = self.inner.infos

    def render(self, row: int = 0) -> Any:
        return self.inner.render(row)

    def close(self) -> None:
        self.inner.close()


def without_masks(result: StepResult) -> StepResult:
    """Return a step of `MaskedBoundary` with the observations of the environments themselves."""
    plain = StepResult(result.obs[OBS], 0)
    _copy_fields(result, plain)
    if result.final_obs is not None:
        rows, last_obs = result.final_obs
        plain.final_obs = (rows, last_obs[OBS])
    if result.acted_on is not None:
        plain.acted_on = result.acted_on[OBS]
    plain.actions = result.actions
    return plain


def _copy_fields(source: StepResult, target: StepResult) -> None:
    """Set all fields of `target` but observations to those of `source`; arrays are shared."""
    target.rewards = source.rewards
    target.terminateds = source.terminateds
    target.truncateds = source.truncateds
    target.valid = source.valid
    target.lost = source.lost
    target.infos = source.infos
    target.any_done = source.any_done
