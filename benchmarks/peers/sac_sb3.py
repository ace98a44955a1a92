"""SAC and TD3 on Pendulum-v1 with Stable-Baselines3, as its documentation has it."""

from __future__ import annotations

from typing import Any

import sac_protocol as p

OPTIONS = p.parse("Stable-Baselines3's SAC and TD3 on Pendulum-v1")

import numpy as np  # noqa: E402
import stable_baselines3  # noqa: E402
from stable_baselines3 import SAC, TD3  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402


class Marks(BaseCallback):
    """Marks the end of each update: the start of the next step."""

    def __init__(self, clock: p.Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        self.clock.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    common: dict[str, Any] = {
        "learning_rate": p.LEARNING_RATE,
        "buffer_size": p.CAPACITY,
        "learning_starts": p.RANDOM_STEPS,
        "batch_size": p.BATCH,
        "tau": p.TAU,
        "gamma": p.GAMMA,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(p.HIDDENS)},
        "seed": OPTIONS.seed,
        "device": "cpu",
    }
    if OPTIONS.algorithm == "sac":
        algorithm: Any = SAC("MlpPolicy", p.ENVIRONMENT, **common)
    else:
        noise = NormalActionNoise(np.zeros(1), np.full(1, p.NOISE))
        algorithm = TD3("MlpPolicy", p.ENVIRONMENT, action_noise=noise, policy_delay=p.POLICY_DELAY, **common)
    clock = p.Clock(OPTIONS.steps)
    algorithm.learn(OPTIONS.steps, callback=Marks(clock))
    clock.mark(algorithm.num_timesteps)
    for episode in list(algorithm.ep_info_buffer)[-p.NUM_RETURNS :]:
        clock.episode(episode["r"])
    clock.report("stable-baselines3", stable_baselines3.__version__, OPTIONS, gradient_steps=algorithm._n_updates)


main()
