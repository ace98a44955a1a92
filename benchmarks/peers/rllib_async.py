"""RLlib's IMPALA or APPO, new API stack: env runners in Ray actors, the learner in the driver's process."""

from __future__ import annotations

import logging
import os
import warnings

import async_work as w

OPTIONS = w.parse("RLlib's asynchronous algorithms")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.appo import APPOConfig  # noqa: E402
from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)


def build_config() -> IMPALAConfig:
    """The common setting in RLlib's words; everything else is its default."""
    config = (APPOConfig if OPTIONS.algorithm == "appo" else IMPALAConfig)()
    return (
        config.environment(w.ENVIRONMENT)
        .env_runners(
            num_env_runners=OPTIONS.runners,
            num_envs_per_env_runner=OPTIONS.envs,
            rollout_fragment_length=OPTIONS.fragment,
            gym_env_vectorize_mode="sync",
        )
        .learners(num_learners=0)
        .training(lr=w.LEARNING_RATE, train_batch_size_per_learner=OPTIONS.batch)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(w.HIDDENS), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=OPTIONS.seed, log_level="ERROR")
    )


def main() -> None:
    """Train and report; steps trained are counted as the learner counts them."""
    ray.init(
        address="local",
        num_cpus=OPTIONS.runners + 2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    algorithm = build_config().build_algo()
    clock = w.Clock(OPTIONS.seconds)
    over = False
    while not over:
        result = algorithm.train()
        learners = result.get("learners", {}).get("__all_modules__", {})
        trained = learners.get("num_env_steps_trained_lifetime", 0)
        over = clock.mark(float(result["num_env_steps_sampled_lifetime"]), float(trained))
    clock.report("rllib", ray.__version__)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
