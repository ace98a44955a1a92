"""Publish weights, sample and train with RLlib (new API stack) and two env runners, for ``runner_speed.py``."""

from __future__ import annotations

import logging
import math
import warnings

import protocol
from runner_work import BATCH, MINIBATCH, NETWORKS, NUM_ENVS, NUM_EPOCHS, NUM_RUNNERS, STEPS_PER_ENV

w = protocol.read(__doc__)
warnings.filterwarnings("ignore")

import ray  # noqa: E402
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
            num_env_runners=NUM_RUNNERS,
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=STEPS_PER_ENV,
            gym_env_vectorize_mode="sync",
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=MINIBATCH,
            num_epochs=NUM_EPOCHS,
            vf_clip_param=math.inf,
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(NETWORKS[w.work]), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(log_level="ERROR")
    )
    algorithm = config.build_algo()
    group = algorithm.env_runner_group

    def publish() -> None:
        """Send weights to all runners; what comes after in each runner's queue tells that they have them."""
        algorithm.learner_group._learner._weights_seq_no += 1  # else runners pass over weights that they have
        group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
        group.foreach_env_runner(lambda runner: 0, local_env_runner=False)

    entries = {"publish": publish}
    if w.work == "64x64":
        entries["sample"] = lambda: synchronous_parallel_sample(
            worker_set=group, max_env_steps=BATCH, sample_timeout_s=60.0, **SAMPLE
        )
        entries["iteration"] = algorithm.train
    weights = algorithm.learner_group.get_state(components=["learner/rl_module"], inference_only=True)
    size = sum(array.nbytes for array in weights["learner"]["rl_module"]["default_policy"].values())
    measured = {name: lambda call=call: protocol.Measured(lambda _: call()) for name, call in entries.items()}
    named = {f"rllib, {name}": make for name, make in measured.items()}
    protocol.serve("rllib", ray.__version__, named, num_bytes=size)


if __name__ == "__main__":
    main()
