"""Boundary over vectors with the interface of Stable-Baselines3's `VecEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.data.trees import Tree, copy_arrays
from lockstep.data.values import as_rewards
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary
from lockstep.envs.errors import step_error


def is_vec_env(env: object) -> bool:
    """Return whether an object has the stepping methods of Stable-Baselines3's `VecEnv`. Does not import it."""
    return all(hasattr(env, name) for name in ("num_envs", "step_async", "step_wait", "observation_space"))


class VecEnvBoundary(VectorBoundary):
    """Boundary over a `VecEnv` of Stable-Baselines3, or any object with its interface.

    A `VecEnv` resets finished rows within the step. The last observation of the old episode is then in
    `infos[row]["terminal_observation"]`, and `infos[row]["TimeLimit.truncated"]` is True if the episode was cut off.

    Args:
        env: The vector. The boundary closes it.
    """

    backend = "vec_env"
    autoreset_mode = "SAME_STEP"
    infos: RowInfos
    _keeps_infos = False
    """True after `keep_infos`: then `infos` has copies. Otherwise it has the vector's own dicts, which cost nothing and
    may change in the next step."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._set_spaces(env.observation_space, env.action_space)
        self._result = StepResult(None, self.num_envs)
        self.infos = RowInfos(self.num_envs)

    def _reset(self, seeds: list[int] | None) -> Any:
        if seeds is not None and hasattr(self.env, "seed"):
            # One seed: `VecEnv.seed` gives row k the seed plus k. It must fit into 32 bits.
            self.env.seed(seeds[0] % 2**31)
        try:
            obs = self.env.reset()
        except SystemExit as error:  # see `RAISED`
            raise step_error(error, backend=self.backend, env_index=None, during="reset") from error
        self._result.obs = self._form.hold(obs, (self.num_envs,))
        return self._result.obs

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        self._check_started()
        result = self._result
        result.clear_endings()
        try:
            # A copy, because environments may write into the action.
            obs, rewards, dones, infos = self.env.step(copy_arrays(actions))
        except SystemExit as error:
            raise step_error(error, backend=self.backend, env_index=None, action=actions, during="step") from error

        result.obs = self._form.hold(obs, (self.num_envs,))
        result.rewards = as_rewards(rewards, self.num_envs)
        # `dones` says whether an episode ended; the info only adds the reason.
        result.truncateds[:] = [done and info.get("TimeLimit.truncated", False) for done, info in zip(dones, infos)]
        result.terminateds[:] = dones & ~result.truncateds
        self.infos.step_infos = copy_arrays(list(infos)) if self._keeps_infos else infos

        if result.truncateds.any() or result.terminateds.any():
            rows = np.flatnonzero(dones)
            final = [infos[row]["terminal_observation"] for row in rows]
            result.final_obs = (rows, self._form.rows(final))
            result.any_done = True
            result.infos = {int(row): infos[row] for row in rows}
        if self._watch is not None:
            self._watch_step(result)
        return result

    def keep_infos(self) -> None:
        """Copy the infos of each step from now on, so that later steps do not change them."""
        self._keeps_infos = True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()
