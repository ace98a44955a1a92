"""DQN on CartPole-v1 with RLlib's new API stack: everything in the driver's process (no remote workers)."""

from __future__ import annotations

import logging
import os
import warnings

import dqn_setting as s
import protocol as p

OPTIONS = p.parse("RLlib's DQN on CartPole-v1", s.UPDATES)
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)


def build_config() -> DQNConfig:
    """The common setting in RLlib's words. Its training intensity is rows replayed for each step sampled."""
    return (
        DQNConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=p.NUM_ENVS,
            rollout_fragment_length=s.VECTOR_STEPS,
            gym_env_vectorize_mode="sync",
        )
        .learners(num_learners=0)
        .training(
            lr=s.LEARNING_RATE,
            gamma=p.GAMMA,
            train_batch_size_per_learner=s.BATCH,
            training_intensity=OPTIONS.updates * s.BATCH / s.ROUND,
            target_network_update_freq=s.ROUNDS_PER_TARGET * s.ROUND,
            num_steps_sampled_before_learning_starts=s.STARTS,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": s.CAPACITY},
            double_q=False,
            dueling=False,
            n_step=1,
            num_atoms=1,
            grad_clip=s.MAX_GRAD_NORM,
            epsilon=[(0, 1.0), (OPTIONS.steps // 2, s.LAST_EPSILON)],
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(s.HIDDENS), fcnet_activation="relu"))
        .reporting(
            metrics_num_episodes_for_smoothing=20,
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=s.ROUND,
        )
        .debugging(seed=OPTIONS.seed, log_level="ERROR")
    )


def main() -> None:
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = build_config().build_algo()
    clock = p.Clock()
    clock.start()
    steps = 0
    result = {}
    while steps < OPTIONS.steps:
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        if steps > s.STARTS:
            clock.mark(steps)
    clock.episode(result["env_runners"]["episode_return_mean"])  # already the mean of the last 20
    trained = result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"]
    clock.report("rllib", ray.__version__, OPTIONS.threads, gradient_steps=round(trained / s.BATCH))
    algorithm.stop()
    ray.shutdown()


main()
