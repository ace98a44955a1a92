"""RLlib's learners in Ray actors for ``remote_learners.py``: updates of 1 and 2 of them, and building a group."""

from __future__ import annotations

import copy
import logging
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import learner_work as w

OPTIONS = w.worker_options("RLlib's side of remote_learners.py")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)
WORK = w.REMOTE_WORKS[OPTIONS.work]
MODULE = "default_policy"
SPACES = (gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Discrete(w.NUM_ACTIONS))
GROUPS: dict[int, Any] = {}


def build(num_learners: int) -> Any:
    """A new group; sizes are those of each learner here, so they are divided."""
    config = (
        PPOConfig()
        .learners(num_learners=num_learners, num_cpus_per_learner=1, num_gpus_per_learner=0)
        .training(
            lr=w.LEARNING_RATE,
            gamma=w.GAMMA,
            lambda_=w.LAMBDA,
            clip_param=w.CLIP,
            entropy_coeff=w.ENTROPY_COEFFICIENT,
            vf_loss_coeff=w.VALUE_COEFFICIENT,
            vf_clip_param=math.inf,
            use_kl_loss=False,
            grad_clip=w.MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            train_batch_size_per_learner=WORK.rows // num_learners,
            minibatch_size=WORK.minibatch // num_learners,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(WORK.hiddens), fcnet_activation="tanh", vf_share_layers=False
            )
        )
    )
    return config.build_learner_group(spaces={MODULE: SPACES})


def update_entry(num_learners: int, source: str) -> Callable[[], w.Entry]:
    """Updates of a group from `source`."""

    def make() -> w.Entry:
        if num_learners not in GROUPS:
            GROUPS[num_learners] = build(num_learners)
        group = GROUPS[num_learners]
        passes = {
            "num_epochs": WORK.num_epochs,
            "minibatch_size": WORK.minibatch // num_learners,
            "shuffle_batch_per_epoch": True,
        }
        fresh = fresh_batch() if source == "batch" else fresh_episodes()
        return w.Entry(lambda given: group.update(**{source: given}, **passes), fresh)

    return make


def fresh_episodes() -> Callable[[], Any]:
    """Its pipeline may change the episodes: each update gets fresh copies."""
    templates = [
        SingleAgentEpisode(
            observations=list(piece.obs),
            actions=list(piece.actions),
            rewards=list(piece.rewards),
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": list(piece.inputs), "action_logp": list(piece.logp)},
            observation_space=SPACES[0],
            action_space=SPACES[1],
            len_lookback_buffer=0,
        ).to_numpy()
        for piece in w.pieces_of(OPTIONS.rollout)
    ]
    return lambda: copy.deepcopy(templates)


def fresh_batch() -> Callable[[], Any]:
    """The train batch as tensors."""
    columns = {
        name.removeprefix("batch/"): torch.from_numpy(value)
        for name, value in OPTIONS.rollout.items()
        if name.startswith("batch/")
    }
    return lambda: MultiAgentBatch({MODULE: SampleBatch(dict(columns))}, WORK.rows)


def building() -> w.Entry:
    """Building a group of two; the one before is ended first, off the clock."""
    built: list[Any] = []

    def end() -> None:
        while built:
            built.pop().shutdown()

    return w.Entry(lambda _: built.append(build(2)), end)


ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
ENTRIES = {
    f"rllib, {number} learner{'s' * (number > 1)}, {source}": update_entry(number, source)
    for number in (1, 2)
    for source in ("episodes", "batch")
}
w.serve("rllib", ray.__version__, {**ENTRIES, "rllib, building 2": building}, OPTIONS.device)
