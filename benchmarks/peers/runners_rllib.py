"""RLlib's side of ``runner_speed.py`` (new API stack)."""

from __future__ import annotations

import logging
import math
import warnings

import runner_work as w

OPTIONS = w.worker_options("RLlib's side of runner_speed.py")
warnings.filterwarnings("ignore")

import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)

SAMPLE = {"_uses_new_env_runners": True, "_return_metrics": True}
"""as its PPO asks for samples"""


def main() -> None:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=w.NUM_RUNNERS,
            num_envs_per_env_runner=w.NUM_ENVS,
            rollout_fragment_length=w.STEPS_PER_ENV,
            gym_env_vectorize_mode="sync",
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=w.BATCH,
            minibatch_size=w.MINIBATCH,
            num_epochs=w.NUM_EPOCHS,
            vf_clip_param=math.inf,
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(w.HIDDENS[OPTIONS.work]), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(log_level="ERROR")
    )
    algorithm = config.build_algo()
    group = algorithm.env_runner_group

    def publish() -> None:
        """Sent to all runners; what comes after in each runner's queue tells that they have it."""
        algorithm.learner_group._learner._weights_seq_no += 1  # else runners pass over weights that they have
        group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
        group.foreach_env_runner(lambda runner: 0, local_env_runner=False)

    entries = {"publish": publish}
    if OPTIONS.work == "64x64":
        entries["sample"] = lambda: synchronous_parallel_sample(
            worker_set=group, max_env_steps=w.BATCH, sample_timeout_s=60.0, **SAMPLE
        )
        entries["iteration"] = algorithm.train
    weights = algorithm.learner_group.get_state(components=["learner/rl_module"], inference_only=True)
    size = sum(array.nbytes for array in weights["learner"]["rl_module"]["default_policy"].values())
    w.serve(entries, name="rllib", version=ray.__version__, torch=torch.__version__, num_bytes=size)


if __name__ == "__main__":
    main()
