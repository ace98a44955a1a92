"""`VecMonitor`: writes returns and lengths of the episodes of a vector environment to a file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep_sb3.common.monitor import Monitor, ResultsWriter
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecMonitor(VecEnvWrapper):
    """Wrapper that adds return and length of an episode to its last info, as `info["episode"]`.

    Vector environments of this package have this info already. The wrapper is for a file of the episodes, and for
    rewards that other wrappers below it have changed.

    Args:
        venv: Vector environment to wrap.
        filename: File of the episodes, see `Monitor`; None for no file.
        info_keywords: Keys of infos that are written with the episode.
    """

    def __init__(self, venv: VecEnv, filename: str | None = None, info_keywords: Sequence[str] = ()) -> None:
        super().__init__(venv)
        if _has_monitor(venv):
            warnings.warn("the environments have a Monitor; VecMonitor overwrites its episodes", stacklevel=2)
        self.info_keywords = tuple(info_keywords)
        self.episode_count = 0
        self.t_start = time.time()
        self.episode_returns = np.zeros(self.num_envs, np.float32)
        self.episode_lengths = np.zeros(self.num_envs, np.int32)
        self.results_writer: ResultsWriter | None = None
        if filename:
            spec = getattr(venv, "spec", None)
            header = {"t_start": self.t_start, "env_id": str(getattr(spec, "id", None))}
            self.results_writer = ResultsWriter(filename, header, self.info_keywords)

    def reset(self) -> Any:
        self.episode_returns[:] = 0.0
        self.episode_lengths[:] = 0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        self.episode_returns += rewards
        self.episode_lengths += 1
        infos = list(infos)
        for row in np.flatnonzero(dones):
            info = dict(infos[row])
            seconds = round(time.time() - self.t_start, 6)
            episode = {"r": float(self.episode_returns[row]), "l": int(self.episode_lengths[row]), "t": seconds}
            episode |= {key: info[key] for key in self.info_keywords}
            infos[row] = {**info, "episode": episode}
            self.episode_count += 1
            self.episode_returns[row] = 0.0
            self.episode_lengths[row] = 0
            if self.results_writer is not None:
                self.results_writer.write_row(episode)
        return obs, rewards, dones, infos

    def close(self) -> None:
        if self.results_writer is not None:
            self.results_writer.close()
        self.venv.close()


def _has_monitor(venv: Any) -> bool:
    """Return whether the first environment has a `Monitor`. False for a vector environment that cannot tell."""
    try:
        return bool(venv.env_is_wrapped(Monitor, indices=[0])[0])
    except (AttributeError, RuntimeError):
        return False
