"""PPO on CartPole-v1 with RLlib's new API stack: everything in the driver's process (no remote workers).

RLlib's learner makes its Adam with the default epsilon (1e-8); the rest of the setting is the common one.
"""

from __future__ import annotations

import logging
import math
import os
import warnings

import protocol as p

OPTIONS = p.parse("RLlib's PPO on CartPole-v1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)


def build_config() -> PPOConfig:
    """The common setting in RLlib's words."""
    return (
        PPOConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=p.NUM_ENVS,
            rollout_fragment_length=p.STEPS_PER_ENV,
            gym_env_vectorize_mode="sync",
        )
        .learners(num_learners=0)
        .training(
            lr=p.LEARNING_RATE,
            gamma=p.GAMMA,
            lambda_=p.LAMBDA,
            clip_param=p.CLIP,
            entropy_coeff=p.ENTROPY_COEFFICIENT,
            vf_loss_coeff=p.VALUE_COEFFICIENT,
            vf_clip_param=math.inf,
            use_kl_loss=False,
            grad_clip=p.MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            train_batch_size_per_learner=p.BATCH,
            minibatch_size=p.MINIBATCH,
            num_epochs=p.NUM_EPOCHS,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(p.HIDDENS), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(metrics_num_episodes_for_smoothing=20)
        .debugging(seed=OPTIONS.seed, log_level="ERROR")
    )


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = build_config().build_algo()
    clock = p.Clock()
    clock.start()
    steps = 0
    result = {}
    while steps < OPTIONS.steps:
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        clock.mark(steps)
    clock.episode(result["env_runners"]["episode_return_mean"])  # already the mean of the last 20
    clock.report("rllib", ray.__version__, OPTIONS.threads)
    algorithm.stop()
    ray.shutdown()


main()
