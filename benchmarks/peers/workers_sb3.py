"""Step environments in worker processes with Stable-Baselines3's `SubprocVecEnv`, for ``workers_speed.py``."""

from __future__ import annotations

import protocol

w = protocol.read(__doc__)

import stable_baselines3  # noqa: E402
from stable_baselines3.common.vec_env import SubprocVecEnv  # noqa: E402
from workers_work import COSTS, actions_of, maker, processor_time  # noqa: E402


def build() -> protocol.Measured:
    """Return what times the steps of a vector."""
    cost = COSTS[w.cost]
    # Its default, a fork server, steps as fast, but imports torch again for each of 64 environments.
    vector = SubprocVecEnv([maker(cost)] * w.num_envs, start_method="fork")
    vector.seed(0)
    vector.reset()
    actions = actions_of(cost, w.num_envs)

    def call(_: None) -> None:
        for each in actions:
            vector.step(each)

    return protocol.Measured(call, processor_time=processor_time)


if __name__ == "__main__":
    protocol.serve("sb3", stable_baselines3.__version__, {"sb3": build})
