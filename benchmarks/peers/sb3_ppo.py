"""PPO on CartPole-v1 with Stable-Baselines3, as its documentation has it: make_vec_env and PPO."""

from __future__ import annotations

import protocol as p

OPTIONS = p.parse("Stable-Baselines3's PPO on CartPole-v1")

import stable_baselines3  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402


class Marks(BaseCallback):
    """Marks the end of each update: the start of the next rollout."""

    def __init__(self, clock: p.Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        self.clock.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    environments = make_vec_env(p.ENVIRONMENT, n_envs=p.NUM_ENVS, seed=OPTIONS.seed)
    algorithm = PPO(
        "MlpPolicy",
        environments,
        learning_rate=p.LEARNING_RATE,
        n_steps=p.STEPS_PER_ENV,
        batch_size=p.MINIBATCH,
        n_epochs=p.NUM_EPOCHS,
        gamma=p.GAMMA,
        gae_lambda=p.LAMBDA,
        clip_range=p.CLIP,
        ent_coef=p.ENTROPY_COEFFICIENT,
        vf_coef=p.VALUE_COEFFICIENT,
        max_grad_norm=p.MAX_GRAD_NORM,
        policy_kwargs={
            "net_arch": {"pi": list(p.HIDDENS), "vf": list(p.HIDDENS)},
            "optimizer_kwargs": {"eps": p.ADAM_EPSILON},
        },
        seed=OPTIONS.seed,
        device="cpu",
        verbose=0,
    )
    clock = p.Clock()
    clock.start()
    algorithm.learn(OPTIONS.steps, callback=Marks(clock))
    clock.mark(algorithm.num_timesteps)
    for episode in algorithm.ep_info_buffer:
        clock.episode(episode["r"])
    clock.report("stable-baselines3", stable_baselines3.__version__, OPTIONS.threads)


main()
