"""DQN on CartPole-v1 with Stable-Baselines3, as its documentation has it: make_vec_env and DQN."""

from __future__ import annotations

import dqn_setting as s
import protocol as p

OPTIONS = p.parse("Stable-Baselines3's DQN on CartPole-v1", s.UPDATES)

import stable_baselines3  # noqa: E402
from stable_baselines3 import DQN  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402


class Marks(BaseCallback):
    """Marks the end of each update: the start of the next rollout."""

    def __init__(self, clock: p.Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        if self.model._n_updates:
            self.clock.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    algorithm = DQN(
        "MlpPolicy",
        make_vec_env(p.ENVIRONMENT, n_envs=p.NUM_ENVS, seed=OPTIONS.seed),
        learning_rate=s.LEARNING_RATE,
        buffer_size=s.CAPACITY,
        learning_starts=s.STARTS,
        batch_size=s.BATCH,
        gamma=p.GAMMA,
        train_freq=(s.VECTOR_STEPS, "step"),
        gradient_steps=OPTIONS.updates,
        target_update_interval=s.ROUNDS_PER_TARGET * s.ROUND,
        exploration_fraction=0.5,
        exploration_final_eps=s.LAST_EPSILON,
        max_grad_norm=s.MAX_GRAD_NORM,
        policy_kwargs={"net_arch": list(s.HIDDENS)},
        seed=OPTIONS.seed,
        device="cpu",
        verbose=0,
    )
    clock = p.Clock()
    clock.start()
    algorithm.learn(OPTIONS.steps, callback=Marks(clock))
    clock.mark(algorithm.num_timesteps)
    for episode in list(algorithm.ep_info_buffer)[-20:]:
        clock.episode(episode["r"])
    clock.report(
        "stable-baselines3", stable_baselines3.__version__, OPTIONS.threads, gradient_steps=algorithm._n_updates
    )


main()
