"""RLlib's PPO learner (new API stack) for ``learner_speed.py``: from episodes and from a batch, in this process."""

from __future__ import annotations

import copy
import logging
import math
import os
import warnings
from typing import Any

import learner_work as w

OPTIONS = w.worker_options("RLlib's side of learner_speed.py")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)
WORK = w.WORKS[OPTIONS.work]
if WORK.kind == "image":  # its convolutions refuse bytes; its own wrappers scale images when they are collected
    for column in ("obs", "finals", "batch/obs"):
        OPTIONS.rollout[column] = OPTIONS.rollout[column].astype(np.float32) / 127.5 - 1.0
MODULE = "default_policy"
MINIBATCH = 256 if WORK.kind == "lstm" else WORK.minibatch  # here in steps: it takes 13 sequences for 256 of them


def model_config() -> DefaultModelConfig:
    """The network in RLlib's words."""
    if WORK.kind == "image":
        return DefaultModelConfig(
            conv_filters=[[*layer, "valid"] for layer in w.FILTERS],
            conv_activation="relu",
            vf_share_layers=True,
        )
    if WORK.kind == "lstm":
        return DefaultModelConfig(
            fcnet_hiddens=list(WORK.hiddens),
            fcnet_activation="tanh",
            vf_share_layers=True,
            use_lstm=True,
            lstm_cell_size=w.MEMORY,
            max_seq_len=w.SEQUENCE,
        )
    return DefaultModelConfig(fcnet_hiddens=list(WORK.hiddens), fcnet_activation="tanh", vf_share_layers=False)


def build() -> Any:
    """A built learner."""
    config = (
        PPOConfig()
        .learners(num_learners=0, num_gpus_per_learner=int(OPTIONS.device == "cuda"))
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
            train_batch_size_per_learner=WORK.rows,
            minibatch_size=MINIBATCH,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(model_config=model_config())
    )
    space = gym.spaces.Box(-1, 1, w.IMAGE) if WORK.kind == "image" else gym.spaces.Box(-5, 5, (4,))
    return config.build_learner(spaces={MODULE: (space, gym.spaces.Discrete(w.NUM_ACTIONS))})


def update(learner: Any, **data: Any) -> None:
    """One update call."""
    learner.update(
        **data, num_epochs=WORK.num_epochs, minibatch_size=MINIBATCH, shuffle_batch_per_epoch=WORK.num_epochs > 1
    )


def stages_of(learner: Any, call: Any) -> Any:
    """Times the learner's own methods; `rest` holds its minibatch iterator (the gather) and its metrics."""

    def stages() -> dict[str, float]:
        watch, kept = w.Stopwatch(), dict(vars(learner))
        names = {
            "_make_batch_if_necessary": "pipeline",
            "compute_losses": "loss",
            "compute_gradients": "backward",
            "postprocess_gradients": "clip",
            "apply_gradients": "step",
        }
        for method, stage in names.items():
            watch.wrap(learner, method, stage)
        watch.wrap(learner.module, "forward_train", "forward")
        try:
            return watch.run(call)
        finally:
            for method in names:
                if method in kept:
                    setattr(learner, method, kept[method])
                else:
                    delattr(learner, method)
            del learner.module.forward_train

    return stages


def episodes() -> w.Entry:
    """The pipeline (values, advantages) included. Its pipeline changes the episodes: each update gets fresh copies."""
    learner = build()
    templates = [
        SingleAgentEpisode(
            observations=list(piece.obs),
            actions=list(piece.actions),
            rewards=list(piece.rewards),
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": list(piece.inputs), "action_logp": list(piece.logp)},
            observation_space=learner.module[MODULE].observation_space,
            action_space=learner.module[MODULE].action_space,
            len_lookback_buffer=0,
        ).to_numpy()
        for piece in w.pieces_of(OPTIONS.rollout)
    ]

    def fresh() -> list[SingleAgentEpisode]:
        return copy.deepcopy(templates)

    return w.Entry(
        lambda given: update(learner, episodes=given),
        fresh,
        stages_of(learner, lambda given=fresh: update(learner, episodes=given())),
    )


def batch() -> w.Entry:
    """From a finished train batch of tensors."""
    learner = build()
    columns = {
        name.removeprefix("batch/"): torch.from_numpy(value).to(OPTIONS.device)
        for name, value in OPTIONS.rollout.items()
        if name.startswith("batch/")
    }

    def fresh() -> MultiAgentBatch:
        return MultiAgentBatch({MODULE: SampleBatch(dict(columns))}, WORK.rows)

    return w.Entry(
        lambda given: update(learner, batch=given),
        fresh,
        stages_of(learner, lambda: update(learner, batch=fresh())),
    )


ENTRIES = {"rllib, episodes": episodes, "rllib, batch": batch}
if WORK.kind == "lstm":
    del ENTRIES["rllib, batch"]
w.serve("rllib", ray.__version__, ENTRIES, OPTIONS.device)
