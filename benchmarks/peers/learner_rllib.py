"""Update RLlib's PPO learner (new API stack) for ``learner_speed.py``: from episodes and from a batch.

With ``remote`` for ``learner_speed.py --remote``: groups of 1 and 2 learners in Ray actors, and building one.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import learner_work as lw
import protocol

w = protocol.read(__doc__)
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
WORK = lw.WORKS[w.work]
ROLLOUT = dict(np.load(w.rollout))
MODULE = "default_policy"


def configured(num_learners: int, **learners: Any) -> PPOConfig:
    """Return the common setting in RLlib's words; its sizes are those of each learner, so they are divided."""
    share = max(num_learners, 1)
    return (
        PPOConfig()
        .learners(num_learners=num_learners, **learners)
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
            train_batch_size_per_learner=WORK.rows // share,
            minibatch_size=WORK.minibatch // share,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(WORK.hiddens), fcnet_activation="tanh", vf_share_layers=False
            )
        )
    )


SPACES = {MODULE: (gym.spaces.Box(-5, 5, (4,)), gym.spaces.Discrete(lw.NUM_ACTIONS))}


def build() -> Any:
    """Build a learner in this process."""
    return configured(0, num_gpus_per_learner=int(w.device == "cuda")).build_learner(spaces=SPACES)


def build_group(num_learners: int) -> Any:
    """Build a group of remote learners."""
    config = configured(num_learners, num_cpus_per_learner=1, num_gpus_per_learner=0)
    return config.build_learner_group(spaces=SPACES)


def update(learner: Any, **data: Any) -> None:
    """Make one update call."""
    learner.update(
        **data, num_epochs=WORK.num_epochs, minibatch_size=WORK.minibatch, shuffle_batch_per_epoch=WORK.num_epochs > 1
    )


def hooks_of(learner: Any) -> list[tuple[Any, str, str]]:
    """Return the learner's own methods by stage; `rest` holds its minibatch iterator (the gather) and its metrics."""
    stages = {
        "_make_batch_if_necessary": "pipeline",
        "compute_losses": "loss",
        "compute_gradients": "backward",
        "postprocess_gradients": "clip",
        "apply_gradients": "step",
    }
    hooks = [(learner, method, stage) for method, stage in stages.items()]
    return [*hooks, (learner.module, "forward_train", "forward")]


def fresh_episodes() -> Callable[[], list[SingleAgentEpisode]]:
    """Return what makes copies of the episodes: its pipeline changes them, so each update gets its own."""
    templates = [
        SingleAgentEpisode(
            observations=list(piece.obs),
            actions=list(piece.actions),
            rewards=list(piece.rewards),
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": list(piece.inputs), "action_logp": list(piece.logp)},
            observation_space=SPACES[MODULE][0],
            action_space=SPACES[MODULE][1],
            len_lookback_buffer=0,
        ).to_numpy()
        for piece in lw.pieces_of(ROLLOUT)
    ]
    return lambda: copy.deepcopy(templates)


def fresh_batch() -> Callable[[], MultiAgentBatch]:
    """Return what makes the train batch of tensors."""
    columns = {name: torch.from_numpy(value).to(w.device) for name, value in lw.batch_of(ROLLOUT).items()}
    return lambda: MultiAgentBatch({MODULE: SampleBatch(dict(columns))}, WORK.rows)


FRESH = {"episodes": fresh_episodes, "batch": fresh_batch}


def learner_entry(source: str) -> Callable[[], protocol.Measured]:
    """Return updates of a learner from `source`, the pipeline (values, advantages) of episodes included."""

    def make() -> protocol.Measured:
        learner, fresh = build(), FRESH[source]()

        def stages() -> dict[str, float]:
            data = fresh()
            return lw.stages_of(lambda: update(learner, **{source: data}), hooks_of(learner))

        return protocol.Measured(lambda consumed: update(learner, **{source: consumed}), fresh, stages)

    return make


def group_entry(group: Any, num_learners: int, source: str) -> protocol.Measured:
    """Return updates of the group from `source`."""
    passes = {"num_epochs": WORK.num_epochs, "minibatch_size": WORK.minibatch // num_learners}
    passes["shuffle_batch_per_epoch"] = True
    return protocol.Measured(lambda consumed: group.update(**{source: consumed}, **passes), FRESH[source]())


if w.remote:
    entries = lw.remote_entries("rllib", list(FRESH), build_group, group_entry)
else:
    entries = {f"rllib, {source}": learner_entry(source) for source in FRESH}
protocol.serve("rllib", ray.__version__, entries, w.device)
