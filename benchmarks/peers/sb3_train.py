"""Train PPO, DQN, SAC or TD3 with Stable-Baselines3 as its documentation has it; PPO on `ALE/*` with its CNN."""

from __future__ import annotations

from typing import Any

import protocol

w = protocol.read(__doc__)

import numpy as np  # noqa: E402
import stable_baselines3  # noqa: E402
from stable_baselines3 import DQN, PPO, SAC, TD3  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env, make_vec_env  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402
from stable_baselines3.common.vec_env import VecFrameStack  # noqa: E402


class Marks(BaseCallback):
    """Marks the end of each update: the start of the next rollout."""

    def __init__(self, clock: protocol.Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        if w.algorithm != "dqn" or self.model._n_updates:
            self.clock.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def build_ppo_parts() -> tuple[str, Any, dict[str, Any]]:
    """Return PPO's policy, environments and networks."""
    if not protocol.has_frames(w):
        widths = {"net_arch": {"pi": list(w.hiddens), "vf": list(w.hiddens)}}
        return "MlpPolicy", make_vec_env(w.environment, n_envs=w.num_envs, seed=w.seed), widths
    envs = make_atari_env(
        w.environment,
        n_envs=w.num_envs,
        seed=w.seed,
        wrapper_kwargs={"noop_max": 0, "terminal_on_life_loss": False},
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.25},
    )
    return "CnnPolicy", VecFrameStack(envs, n_stack=4), {}


def build() -> Any:
    """Return the algorithm with the common setting."""
    common: dict[str, Any] = {"learning_rate": w.lr, "gamma": w.gamma, "seed": w.seed, "device": "cpu", "verbose": 0}
    if w.algorithm == "ppo":
        policy, envs, networks = build_ppo_parts()
        return PPO(
            policy,
            envs,
            n_steps=w.steps_per_env,
            batch_size=w.minibatch,
            n_epochs=w.num_epochs,
            gae_lambda=w.lambda_,
            clip_range=w.clip,
            ent_coef=w.entropy_coeff,
            vf_coef=w.value_coeff,
            max_grad_norm=w.max_grad_norm,
            policy_kwargs={**networks, "optimizer_kwargs": {"eps": w.adam_epsilon}},
            **common,
        )
    common |= {"buffer_size": w.capacity, "learning_starts": w.random_steps, "batch_size": w.batch}
    common |= {"policy_kwargs": {"net_arch": list(w.hiddens)}}
    if w.algorithm == "dqn":
        return DQN(
            "MlpPolicy",
            make_vec_env(w.environment, n_envs=w.num_envs, seed=w.seed),
            train_freq=(w.vector_steps, "step"),
            gradient_steps=w.updates,
            target_update_interval=w.rounds_per_target * w.round_steps,
            exploration_fraction=0.5,
            exploration_initial_eps=w.first_epsilon,
            exploration_final_eps=w.last_epsilon,
            max_grad_norm=w.max_grad_norm,
            **common,
        )
    common |= {"tau": w.tau, "train_freq": 1, "gradient_steps": 1}
    if w.algorithm == "sac":
        return SAC("MlpPolicy", w.environment, **common)
    noise = NormalActionNoise(np.zeros(1), np.full(1, w.noise))
    return TD3("MlpPolicy", w.environment, action_noise=noise, policy_delay=w.policy_delay, **common)


def main() -> None:
    """Train and report."""
    algorithm = build()
    clock = protocol.Clock(w)
    clock.start()
    algorithm.learn(w.steps, callback=Marks(clock))
    clock.mark(algorithm.num_timesteps)
    for episode in list(algorithm.ep_info_buffer)[-w.num_returns :]:
        clock.episode(episode["r"])
    facts = {} if w.algorithm == "ppo" else {"gradient_steps": algorithm._n_updates}
    clock.report("stable-baselines3", stable_baselines3.__version__, **facts)


main()
