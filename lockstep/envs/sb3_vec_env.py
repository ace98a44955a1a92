"""A vector with the interface of Stable-Baselines3's `VecEnv` behind the boundary."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.data.trees import Tree, copy_arrays
from lockstep.data.values import as_rewards
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary
from lockstep.envs.errors import step_error


def is_vec_env(env: object) -> bool:
    """Return whether something is stepped as Stable-Baselines3 does it: by `step_async` and `step_wait`."""
    return all(hasattr(env, name) for name in ("num_envs", "step_async", "step_wait", "observation_space"))


class VecEnvBoundary(VectorBoundary):
    """Puts a `VecEnv`, of Stable-Baselines3 or made for it, behind the boundary.

    It begins episodes anew by itself; the true last observation is in `infos[row]["terminal_observation"]`, and
    `infos[row]["TimeLimit.truncated"]` says whether an episode was cut.

    Args:
        env: the vector; the boundary closes it.
    """

    backend, autoreset_mode = "vec_env", "SAME_STEP"
    _keeps_infos = False
    """Whether someone keeps the infos, so that their arrays must be their own."""

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, env.num_envs
        self._set_spaces(env.observation_space, env.action_space)
        self._result, self.infos = StepResult(None, self.num_envs), RowInfos(self.num_envs)

    def _reset(self, seeds: list[int] | None) -> Any:
        if seeds is not None and hasattr(self.env, "seed"):
            self.env.seed(seeds[0] % 2**31)
        try:
            obs = self.env.reset()
        except SystemExit as error:
            raise step_error(error, backend=self.backend, env_index=None, during="reset") from error
        self._result.obs = self._form.hold(obs, (self.num_envs,))
        return self._result.obs

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        self._check_started()
        result = self._result
        result.clear_endings()
        try:
            # copied, as environments may write into what they get
            obs, rewards, dones, infos = self.env.step(copy_arrays(actions))
        except SystemExit as error:
            raise step_error(error, backend=self.backend, env_index=None, action=actions, during="step") from error
        result.obs, result.rewards = self._form.hold(obs, (self.num_envs,)), as_rewards(rewards, self.num_envs)
        result.truncateds[:] = [done and info.get("TimeLimit.truncated", False) for done, info in zip(dones, infos)]
        result.terminateds[:] = dones & ~result.truncateds
        self.infos.step_infos = copy_arrays(list(infos)) if self._keeps_infos else infos  # type: ignore[union-attr]
        if result.truncateds.any() or result.terminateds.any():
            rows = np.flatnonzero(dones)
            last = [infos[row]["terminal_observation"] for row in rows]
            result.final_obs, result.any_done = (rows, self._form.rows(last)), True
            result.infos = {int(row): infos[row] for row in rows}
        if self._watch is not None:
            self._watch_step(result)
        return result

    def keep_infos(self) -> None:
        """Have the infos keep what they say when the environments step on."""
        self._keeps_infos = True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()
