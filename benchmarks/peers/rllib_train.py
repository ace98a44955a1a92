"""Train with RLlib's new API stack, in the driver's process: PPO, DQN and SAC.

PPO's learner makes its Adam with the default epsilon (1e-8). SAC's critics are given the networks of the others
(``rllib_joined_critics.py``), its first steps are taken by its policy, not at random. The new stack has no TD3.
"""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import protocol

w = protocol.read(__doc__)
warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.algorithms.sac import SACConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from rllib_joined_critics import module_options  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)


def in_process(config: Any, **runners: Any) -> Any:
    """Return a configuration whose env runner and learner are the driver's process."""
    config.environment(w.environment).learners(num_learners=0)
    return config.env_runners(num_env_runners=0, num_envs_per_env_runner=w.num_envs, **runners)


def ppo() -> Any:
    """Return the common setting in RLlib's words."""
    return (
        in_process(PPOConfig(), rollout_fragment_length=w.steps_per_env, gym_env_vectorize_mode="sync")
        .training(
            lr=w.lr,
            gamma=w.gamma,
            lambda_=w.lambda_,
            clip_param=w.clip,
            entropy_coeff=w.entropy_coeff,
            vf_loss_coeff=w.value_coeff,
            vf_clip_param=math.inf,
            use_kl_loss=False,
            grad_clip=w.max_grad_norm,
            grad_clip_by="global_norm",
            train_batch_size_per_learner=w.batch,
            minibatch_size=w.minibatch,
            num_epochs=w.num_epochs,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(w.hiddens), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(metrics_num_episodes_for_smoothing=w.num_returns)
    )


def dqn() -> Any:
    """Return the common setting; RLlib's training intensity is rows replayed for each step sampled."""
    return (
        in_process(DQNConfig(), rollout_fragment_length=w.vector_steps, gym_env_vectorize_mode="sync")
        .training(
            lr=w.lr,
            gamma=w.gamma,
            train_batch_size_per_learner=w.batch,
            training_intensity=w.updates * w.batch / w.round_steps,
            target_network_update_freq=w.rounds_per_target * w.round_steps,
            num_steps_sampled_before_learning_starts=w.random_steps,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": w.capacity},
            double_q=False,
            dueling=False,
            n_step=1,
            num_atoms=1,
            grad_clip=w.max_grad_norm,
            epsilon=[(0, 1.0), (w.steps // 2, w.last_epsilon)],
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(w.hiddens), fcnet_activation="relu"))
        .reporting(
            metrics_num_episodes_for_smoothing=w.num_returns,
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=w.round_steps,
        )
    )


def sac() -> Any:
    """Return the common setting: a step sampled, a gradient step; 100 steps in each call of `train()`."""
    return (
        in_process(SACConfig(), rollout_fragment_length=1)
        .training(
            actor_lr=w.lr,
            critic_lr=w.lr,
            alpha_lr=w.lr,
            gamma=w.gamma,
            tau=w.tau,
            train_batch_size_per_learner=w.batch,
            num_steps_sampled_before_learning_starts=w.random_steps,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": w.capacity},
            n_step=1,
        )
        .rl_module(**module_options(w.hiddens))
        .reporting(
            metrics_num_episodes_for_smoothing=w.num_returns,
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=100,
        )
    )


def main() -> None:
    """Train and report; steps trained are counted as the learner counts them."""
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = {"ppo": ppo, "dqn": dqn, "sac": sac}[w.algorithm]()
    algorithm = config.debugging(seed=w.seed, log_level="ERROR").build_algo()
    clock = protocol.Clock(w)
    clock.start()
    steps, trained = 0, 0
    while steps < w.steps:
        result = algorithm.train()
        learners = result.get("learners", {}).get("__all_modules__", {})
        trained = learners.get("num_env_steps_trained_lifetime", 0)
        steps = int(result["num_env_steps_sampled_lifetime"])
        if w.algorithm != "dqn" or steps > w.random_steps:
            clock.mark(steps)
    clock.episode(result["env_runners"]["episode_return_mean"])  # already the mean of the last ones
    facts = {} if w.algorithm == "ppo" else {"gradient_steps": round(trained / w.batch)}
    clock.report("rllib", ray.__version__, **facts)
    algorithm.stop()
    ray.shutdown()


main()
