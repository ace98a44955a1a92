"""The product of all options: its factors and their levels, and the configuration, verdict and run of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed
from algorithm_cases import ALGORITHM_CASES, has_option
from cue_env import ACTIONS, CUES, OBSERVATIONS, CueEnv, HintEnv, distance

from lockstep import ALGORITHMS, SampleBatch, get_config
from lockstep.config import base as base_config
from lockstep.data.trees import stack_rows
from lockstep.learner.compile import update as compiled
from lockstep.learner.group import LearnerBackend, run_request
from lockstep.learner.many.reduction import DistributedReducer
from lockstep.learner.many.sharding import shards_of

Cell = Mapping[str, str]
"""one level of each factor"""
FACTORS: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(config.algorithm for config in ALGORITHMS),
    "observations": tuple(OBSERVATIONS),
    "actions": tuple(ACTIONS),
    "mask": ("no mask", "mask"),
    "memory": ("no memory", "lstm", "gru", "attention"),
    "replay": ("uniform", "prioritized"),
    "n_step": ("1 step", "3 steps"),
    "normalized": ("nothing", "observations", "rewards", "both"),
    "learners": ("1 learner", "2 learners"),
    "compile": ("eager", "compile"),
}

# -- the configuration of a cell ---

MEMORIES: dict[str, dict[str, Any]] = {
    "no memory": {},
    "lstm": {"recurrent": "lstm", "recurrent_size": 8},
    "gru": {"recurrent": "gru", "recurrent_size": 8},
    "attention": {"attention": {"size": 16, "num_heads": 2, "memory": 4, "hidden_size": 16}},
}


def configured(cell: Cell, turned: bool = False) -> Any:
    """Return the configuration of a cell, small and tuned to learn from `CueEnv` in about a second.

    Raises `ValueError` for options that the algorithm does not have.
    """
    name, actions, remembers = cell["algorithm"], cell["actions"], cell["memory"] != "no memory"
    config, in_a_box = get_config(name), actions in ("Box", "Dict")
    is_masked, teacher = cell["mask"] == "mask", ALGORITHM_CASES[name].teacher
    make = partial(CueEnv, cell["observations"], actions, is_masked, remembers, turned, teacher is not None)
    config.environment(
        make,
        normalize_observations=cell["normalized"] in ("observations", "both"),
        normalize_rewards=cell["normalized"] in ("rewards", "both"),
    )
    config.training(**ALGORITHM_CASES[name].product).evaluation(evaluation_interval=0).debugging(seed=1)
    if has_option(name, "target_entropy"):
        config.training(target_entropy=-2.0 if in_a_box else 0.02)
    images = {"conv_filters": ((4, 4, 4),), "conv_activation": "tanh", "image_hiddens": (16,)}
    model = {
        "hiddens": (16,),
        "critic_hiddens": (16,),
        "activation": "tanh",
        "max_seq_len": 4,
        "log_std_init": -1.0,
        **images,
    }
    config.rl_module(model_config={**model, **MEMORIES[cell["memory"]]})
    if teacher is not None:
        seen = [key for key in make().observation_space.spaces if key not in ("hint", "action_mask")]
        config.rl_module(observation_groups={"policy": seen, "teacher": ["hint"]})
        config.training(teacher=teacher_of(teacher, actions, is_masked, turned))
    if cell["memory"] == "attention":
        config.training(lr=3e-3)
    if remembers and has_option(name, "unit_norm_weights"):
        # Without both FlashSAC learns its cells in 2 to 10 epochs; with one or both it takes 8 to more than 64.
        config.training(unit_norm_weights=False, batch_norm=False)
    if config.is_offline:
        config.offline_data(input_=played(make(), 0.9 if ALGORITHM_CASES[name].imitates else 0.5))
        config.reporting(total_steps=1_000, steps_per_epoch=50)
    else:
        config.env_runners(num_envs_per_env_runner=8).reporting(total_steps=16_384, steps_per_epoch=256)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=8)
        config.replay(learning_starts=128, capacity=2_000, update_per_step=1 / 4)
        if remembers:
            config.replay(sequence_length=2, burn_in=2)
    if cell["replay"] == "prioritized":
        config.replay(prioritized=True)
    if cell["n_step"] == "3 steps":
        config.replay(n_step=3)
    if cell["learners"] == "2 learners":
        config.learners(num_learners=2)
    return config.framework(compile=cell["compile"] == "compile", compile_after=0)


@cache
def teacher_of(make_teacher: Callable[..., Any], actions: str, mask: bool, turned: bool) -> Any:
    """Return a teacher that knows the best actions of these spaces from the entry "hint"."""
    make = partial(HintEnv, actions, mask, turned)
    policy = make_teacher(make, played(make(), 1.0))
    assert error(policy, make()) < 0.1
    return policy


def played(env: CueEnv, share: float, episodes: int = 128) -> SampleBatch:
    """Return transitions of allowed actions, of which this share are the best ones."""
    rng, rows = np.random.default_rng(0), []
    env.action_space.seed(0)
    for episode in range(episodes):
        obs, _ = env.reset(options={"cue": episode % 2})
        terminated = False
        while not terminated:
            action = env.best_action() if rng.random() < share else env.random_action()
            new_obs, reward, terminated, _, _ = env.step(action)
            rows.append((obs, action, np.float32(reward), new_obs, terminated, False))
            obs = new_obs
    names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")
    return SampleBatch({name: stack_rows(name, column) for name, column in zip(names, zip(*rows))})


# -- what becomes of it ---


def verdict(cell: Cell) -> str | None:
    """Return None where the trainer of a cell is built, else the message with which it is refused."""
    with in_this_process():
        try:
            trainer = configured(cell).build_trainer()
        except ValueError as refused:
            return str(refused)
    trainer.policy.learner_group.shutdown()
    return None


def error(policy: Any, env: CueEnv) -> float:
    """Return how far the policy's actions are from the best ones, at most, over both episodes."""
    far, state = 0.0, None
    for cue in CUES:
        obs, _ = env.reset(options={"cue": cue})
        state, terminated = None, False
        while not terminated:
            if policy.is_stateful:
                action, state = policy.compute_single_action(obs, state, explore=False)
            else:
                action = policy.compute_single_action(obs, explore=False)
            far = max(far, distance(env.action_space, action, env.best_action()))
            obs, _, terminated, _, _ = env.step(action)
    return far


def epochs_to_the_optimum(cell: Cell, tolerance: float = 0.2) -> int | None:
    """Train until two epochs in a row end with the best actions (of a Box: nearly); return how many, None for never.

    Where the untrained policy knows them by chance, each cue asks for the other's.
    """
    with in_this_process():
        for turned in (False, True):
            config = configured(cell, turned)
            env, trainer = config.environment.env(), config.build_trainer()
            with trainer.policy.learner_group:
                if error(trainer.policy, env) <= tolerance:
                    continue
                in_a_row = 0
                for epoch, stats, _ in trainer:
                    losses = stats.training_stat.get_loss_stats_dict()
                    assert np.isfinite(list(losses.values())).all(), losses
                    in_a_row = in_a_row + 1 if error(trainer.policy, env) <= tolerance else 0
                    if in_a_row == 2:
                        return int(epoch)
                return None
    raise AssertionError("the untrained policy knows what two opposite environments ask for")


# -- without processes and compilers ---


class ThreadedLearners(LearnerBackend):
    """Several learners in threads, who get shards and meet over gloo as those on Ray do."""

    is_local = False

    def __init__(self, build: Any, section: Any, **options: Any) -> None:
        self.last_checkpoint, number = "", section.num_learners
        self.threads, store = ThreadPoolExecutor(number), torch.distributed.HashStore()

        def join(rank: int) -> DistributedReducer:
            return DistributedReducer(rank, number, store, shares_memory=False)

        # One after another: initial weights are drawn with torch's own generator, which threads share.
        self.learners = [build(reducer=reducer) for reducer in self.threads.map(join, range(number))]

    def __len__(self) -> int:
        return len(self.learners)

    def share(self, data: Any) -> list[Any]:
        return shards_of(data, len(self), self.learners[0].modules_with_memory())

    def update(self, request: Any) -> list[Any]:
        requests = [replace(request, data=shard) for shard in request.data]
        return list(self.threads.map(run_request, requests, self.learners))

    def foreach(self, func: Any, *args: Any) -> list[Any]:
        return list(self.threads.map(lambda learner: func(learner, *args), self.learners))

    def first(self, func: Any, *args: Any) -> Any:
        return func(self.learners[0], *args)

    def peek(self, func: Any) -> Any:
        return func(self.learners[0])

    def shutdown(self) -> None:
        self.threads.shutdown()


def run_as_traced(graph: Any, inputs: Any, on_host: bool) -> Any:
    """Return what runs the traced step without a compiler, whose own part `tests/learner` tests."""
    return lambda: lambda inputs: graph(*inputs)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Have learners in threads, and compiled steps run as they were traced: both take seconds to start."""
    with (
        mock.patch.object(base_config, "start_learners", ThreadedLearners),
        mock.patch.object(compiled, "compile_graph", run_as_traced),
    ):
        yield
