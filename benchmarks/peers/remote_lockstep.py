"""Lockstep's learners in Ray actors for ``remote_learners.py``: updates of 1 and 2 of them, and building a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import learner_work as w

OPTIONS = w.worker_options("Lockstep's side of remote_learners.py")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402

from lockstep import LearnerGroup, PPOConfig, RolloutStore, SampleBatch, __version__  # noqa: E402
from lockstep.data import SingleAgentEpisode  # noqa: E402

WORK = w.REMOTE_WORKS[OPTIONS.work]
SPACES = (gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Discrete(w.NUM_ACTIONS))
PASSES: dict[str, Any] = {
    "num_epochs": WORK.num_epochs,
    "minibatch_size": WORK.minibatch,
    "shuffle_batch_per_epoch": True,
}
COLUMNS = ("obs", "actions", "action_logp", "advantages", "value_targets")
GROUPS: dict[int, LearnerGroup] = {}


def build(num_learners: int) -> LearnerGroup:
    """A new group."""
    config = (
        PPOConfig()
        .environment(lambda: None, observation_space=SPACES[0], action_space=SPACES[1])
        .training(
            lr=w.LEARNING_RATE,
            gamma=w.GAMMA,
            lambda_=w.LAMBDA,
            clip_param=w.CLIP,
            entropy_coeff=w.ENTROPY_COEFFICIENT,
            vf_loss_coeff=w.VALUE_COEFFICIENT,
            grad_clip=w.MAX_GRAD_NORM,
            train_batch_size=WORK.rows,
            minibatch_size=WORK.minibatch,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(model_config={"hiddens": WORK.hiddens, "activation": "tanh"})
        .learners(num_learners=num_learners)
    )
    return config.build_learner_group()


def group_of(num_learners: int) -> LearnerGroup:
    """The group that the entries share."""
    if num_learners not in GROUPS:
        GROUPS[num_learners] = build(num_learners)
    return GROUPS[num_learners]


def make_episodes() -> list[SingleAgentEpisode]:
    """One after another, as a user hands them in."""
    return [
        SingleAgentEpisode(
            observations=piece.obs,
            actions=piece.actions,
            rewards=piece.rewards,
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": piece.inputs, "action_logp": piece.logp},
            observation_space=SPACES[0],
            action_space=SPACES[1],
        )
        for piece in w.pieces_of(OPTIONS.rollout)
    ]


def make_rollout_episodes() -> Any:
    """The same as views on one store, as the collector hands them out."""
    data = OPTIONS.rollout
    store = RolloutStore(WORK.num_steps, WORK.num_envs, *SPACES)
    for t in range(WORK.num_steps):
        store.write_obs(t, data["obs"][t])
        ones = np.ones(WORK.num_envs, np.float32)
        store.write_step(t, data["actions"][t], ones, data["terminated"][t], data["truncated"][t])
    store.end(WORK.num_steps, data["obs"][-1])
    rows = np.flatnonzero(data["terminated"] | data["truncated"])
    for row, final in zip(rows, data["finals"]):
        store.final_index.append(np.array([row]))
        store.final_obs.append(final[None])
    return store.episodes()


def make_batch() -> SampleBatch:
    """The train batch."""
    return SampleBatch({name: OPTIONS.rollout[f"batch/{name}"] for name in COLUMNS})


def update_entry(num_learners: int, source: str) -> Callable[[], w.Entry]:
    """Updates of a group from `source`."""

    def make() -> w.Entry:
        group = group_of(num_learners)
        data: Any = {"episodes": make_episodes, "rollout": make_rollout_episodes, "batch": make_batch}[source]()
        update = group.update_from_batch if source == "batch" else group.update_from_episodes
        return w.Entry(lambda _: update(data, **PASSES))

    return make


def building() -> w.Entry:
    """Building a group of two; the one before is ended first, off the clock."""
    built: list[LearnerGroup] = []

    def end() -> None:
        while built:
            built.pop().shutdown()

    return w.Entry(lambda _: built.append(build(2)), end)


ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
ENTRIES = {
    f"lockstep, {number} learner{'s' * (number > 1)}, {source}": update_entry(number, source)
    for number in (1, 2)
    for source in ("episodes", "rollout", "batch")
}
w.serve("lockstep", __version__, {**ENTRIES, "lockstep, building 2": building}, OPTIONS.device)
