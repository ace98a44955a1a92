"""SAC on Pendulum-v1 with RLlib's new API stack: everything in the driver's process (no remote workers).

Its critics are given the networks of the others (``rllib_joined_critics.py``). Its first steps are taken by its policy,
not at random. The new stack has no TD3.
"""

from __future__ import annotations

import logging
import os
import warnings

import sac_protocol as p

OPTIONS = p.parse("RLlib's SAC on Pendulum-v1", algorithms=("sac",))
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.sac import SACConfig  # noqa: E402
from rllib_joined_critics import module_options  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)
STEPS_PER_CALL = 100
"""of `train()`; RLlib's default"""


def build_config() -> SACConfig:
    """The common setting in RLlib's words: a step sampled, a gradient step."""
    return (
        SACConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=1)
        .learners(num_learners=0)
        .training(
            actor_lr=p.LEARNING_RATE,
            critic_lr=p.LEARNING_RATE,
            alpha_lr=p.LEARNING_RATE,
            gamma=p.GAMMA,
            tau=p.TAU,
            train_batch_size_per_learner=p.BATCH,
            num_steps_sampled_before_learning_starts=p.RANDOM_STEPS,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": p.CAPACITY},
            n_step=1,
        )
        .rl_module(**module_options(p.HIDDENS))
        .reporting(
            metrics_num_episodes_for_smoothing=p.NUM_RETURNS,
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=STEPS_PER_CALL,
        )
        .debugging(seed=OPTIONS.seed, log_level="ERROR")
    )


def main() -> None:
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = build_config().build_algo()
    clock = p.Clock(OPTIONS.steps)
    steps, result = 0, {}
    while steps < OPTIONS.steps:
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        clock.mark(steps)
    clock.episode(result["env_runners"]["episode_return_mean"])  # already the mean of the last ones
    trained = result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"]
    clock.report("rllib", ray.__version__, OPTIONS, gradient_steps=round(trained / p.BATCH))
    algorithm.stop()
    ray.shutdown()


main()
