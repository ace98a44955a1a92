"""One table of small runs of the three trainers: settings, and what is counted, how the run ends, which score is best.

On- and off-policy runs have three epochs of two updates: each update is of 8 environment steps and one gradient step.
Offline runs have three epochs of 70 gradient steps, in updates of 64 and 6.
"""

import copy
import math
from typing import Any, NamedTuple

import pytest
from scenario_tools import KINDS, LENGTH, TRAINERS, play, position
from trainer_tools import Stops

from lockstep.trainer import EarlyStop

NAN, INF = math.nan, math.inf
END = {"reason": "max_epoch", "epochs": 3, "updates": 6}
"""Outcome of a run that nothing ends before its last epoch."""
SAVED = [(1, 2), (2, 4), (3, 6)]
"""Epoch and number of updates at each checkpoint of such a run."""


class Scenario(NamedTuple):
    """A row of the table: one run for each kind of trainer."""

    kinds: tuple[str, ...]
    name: str
    settings: dict[str, Any]
    """Arguments of `play`."""
    expected: dict[str, Any]
    """Attributes of the `Outcome`. `saves` has pairs of an epoch and a number of updates, see `position`."""


SCENARIOS = [
    # -- all trainers: scores, intervals, callbacks ---
    Scenario(TRAINERS, "runs to the last epoch", {}, {**END, "evaluations": 4, "saves": SAVED, "best_epoch": 0}),
    Scenario(TRAINERS, "the mean return is the score, also below zero", {}, {"best": -float(LENGTH), "best_saves": 1}),
    Scenario(
        TRAINERS,
        "negative scores: the largest is the best",
        {"scores": [-300, -100, -200, -150]},
        {**END, "best": -100.0, "best_epoch": 1, "best_saves": 2},
    ),
    Scenario(
        TRAINERS, "equal scores: the first stays the best", {"scores": [5, 5, 5, 5]}, {"best_epoch": 0, "best_saves": 1}
    ),
    Scenario(
        TRAINERS,
        "rising scores: each is the best",
        {"scores": [1, 2, 3, 4]},
        {"best": 4.0, "best_epoch": 3, "best_saves": 4},
    ),
    Scenario(
        TRAINERS,
        "a first score that is no number is not the best",
        {"scores": [NAN, -7, NAN, -9]},
        {"best": -7.0, "best_epoch": 1},
    ),
    Scenario(
        TRAINERS,
        "no score is a number: there is no best",
        {"scores": [NAN] * 4},
        {**END, "best": None, "best_epoch": None, "best_saves": 0},
    ),
    Scenario(
        TRAINERS, "infinite scores are compared as such", {"scores": [-INF, 1, INF, 2]}, {"best": INF, "best_epoch": 2}
    ),
    Scenario(TRAINERS, "a score that is no number does not stop the run", {"scores": [NAN] * 4, "stop_at": -INF}, END),
    Scenario(
        TRAINERS,
        "success before training",
        {"scores": [9], "stop_at": 9},
        {"reason": "stop_fn", "updates": 0, "epochs": 0, "saves": [(0, 0)], "best_saves": 1},
    ),
    Scenario(
        TRAINERS,
        "success after the first epoch",
        {"scores": [1, 9], "stop_at": 9},
        {"reason": "stop_fn", "epochs": 1, "updates": 2, "saves": SAVED[:1], "best": 9.0},
    ),
    Scenario(
        TRAINERS,
        "success in the last epoch",
        {"scores": [1, 2, 3, 9], "stop_at": 9},
        {"reason": "stop_fn", "saves": SAVED},
    ),
    Scenario(
        TRAINERS,
        "a peak that did not suffice does not stop the run later",
        {"scores": [8, 1, 1, 1], "stop_at": 9},
        {**END, "best": 8.0, "best_epoch": 0},
    ),
    Scenario(
        TRAINERS,
        "no epoch: nothing is trained and nothing evaluated",
        {"max_epoch": 0},
        {"reason": "max_epoch", "updates": 0, "evaluations": 0, "saves": [(0, 0)]},
    ),
    Scenario(TRAINERS, "evaluation every second epoch and at the end", {"test_interval": 2}, {**END, "evaluations": 3}),
    Scenario(
        TRAINERS, "checkpoints every second epoch and at the end", {"checkpoint_interval": 2}, {"saves": SAVED[1:]}
    ),
    Scenario(
        TRAINERS,
        "no checkpoints with an interval of 0, not at the end either",
        {"checkpoint_interval": 0},
        {**END, "saves": []},
    ),
    Scenario(TRAINERS, "no evaluation", {"evaluate": False}, {**END, "evaluations": 0, "best": None, "saves": SAVED}),
    Scenario(TRAINERS, "no checkpoints", {"save_checkpoint_fn": None}, END),
    Scenario(TRAINERS, "a checkpoint without a path is no event", {"save_checkpoint_fn": lambda *where: None}, END),
    Scenario(
        TRAINERS,
        "a callback stops at the start: the first evaluation is still made",
        {"callbacks": [Stops("RunStart")]},
        {"reason": "enough", "updates": 0, "evaluations": 1, "saves": [(0, 0)]},
    ),
    Scenario(
        TRAINERS,
        "a callback stops inside the second epoch",
        {"callbacks": [Stops("UpdateEnd", at=3)]},
        {"reason": "enough", "epochs": 2, "updates": 3, "saves": [(1, 2), (2, 3)]},
    ),
    Scenario(
        TRAINERS,
        "a callback stops after an epoch",
        {"callbacks": [Stops("EpochEnd", at=2)]},
        {"reason": "enough", "epochs": 2, "saves": SAVED[:2]},
    ),
    Scenario(
        TRAINERS,
        "a callback stops at a checkpoint",
        {"callbacks": [Stops("CheckpointSaved")], "save_checkpoint_fn": lambda *where: "somewhere"},
        {"reason": "enough", "epochs": 1},
    ),
    Scenario(TRAINERS, "a callback that asks at the very end changes nothing", {"callbacks": [Stops("RunEnd")]}, END),
    Scenario(
        TRAINERS,
        "the first of two reasons counts",
        {"callbacks": [Stops("UpdateEnd", "one", at=2), Stops("UpdateEnd", "two", at=2)]},
        {"reason": "one", "epochs": 1},
    ),
    Scenario(
        TRAINERS,
        "a callback's reason goes before success in the same epoch",
        {"callbacks": [Stops("UpdateEnd")], "scores": [1, 9], "stop_at": 9},
        {"reason": "enough", "epochs": 1},
    ),
    Scenario(
        TRAINERS,
        "a callback asks for an interrupt",
        {"callbacks": [Stops("UpdateEnd", "interrupted", at=3)]},
        {"reason": "interrupted", "epochs": 1, "updates": 3, "saves": [(1, 2), (2, 3)]},
    ),
    Scenario(
        TRAINERS,
        "EarlyStop: a score reaches the threshold",
        {"max_epoch": 9, "scores": [1, 5, 3, 9], "callbacks": [EarlyStop(threshold=9.0)]},
        {"reason": "score 9 reached the threshold 9", "epochs": 3},
    ),
    Scenario(
        TRAINERS,
        "EarlyStop: no better score for a number of evaluations",
        {"max_epoch": 9, "scores": [1, 5, 3, 4, 6, 7], "callbacks": [EarlyStop(patience=2)]},
        {"reason": "no better score in 2 evaluations", "epochs": 3},
    ),
    Scenario(
        TRAINERS,
        "EarlyStop: the time is over",
        {"max_epoch": 9, "callbacks": [EarlyStop(time_limit_s=1e-9)]},
        {"reason": "time limit of 1e-09 s"},
    ),
    Scenario(TRAINERS, "EarlyStop: the time is not over", {"callbacks": [EarlyStop(time_limit_s=1e6)]}, END),
    # -- trainers that collect ---
    Scenario(
        KINDS,
        "a collect that overshoots the epoch is counted whole and carried on",
        {"step_per_epoch": 12},
        {"steps": [16, 8, 16], "env_step": 40, "gradient_step": 5},
    ),
    Scenario(
        KINDS,
        "a collect that is longer than epochs leaves some of them empty",
        {"step_per_epoch": 3},
        {"steps": [8, 0, 8], "env_step": 16, "gradient_step": 2, "evaluations": 4},
    ),
    Scenario(
        KINDS,
        "whole episodes instead of steps",
        {"episode_per_collect": 2},
        {"steps": [16, 16, 16], "gradient_step": 6},
    ),
    Scenario(
        KINDS, "more environments than episodes", {"episode_per_collect": 1, "step_per_epoch": 8}, {"steps": [8, 8, 8]}
    ),
    Scenario(
        KINDS,
        "a callback stops after a collect: it is learned from",
        {"callbacks": [Stops("CollectEnd")]},
        {"reason": "enough", "epochs": 1, "updates": 1, "evaluations": 2, "saves": [(1, 1)]},
    ),
    Scenario(
        KINDS,
        "test_in_train: training suffices and evaluation too, the run stops in mid-epoch",
        {"test_in_train": True, "scores": [1, 9, 9, 9], "stop_at": 9},
        {"reason": "stop_fn", "epochs": 1, "updates": 1},
    ),
    Scenario(
        KINDS,
        "test_in_train: training suffices and evaluation does not, the run goes on",
        {"test_in_train": True, "scores": [1, 9, 2, 3, 9, 2, 3, 9, 2, 3], "stop_at": 9},
        {**END, "evaluations": 7},
    ),
    Scenario(
        KINDS,
        "test_in_train: training does not suffice, no more evaluations",
        {"test_in_train": True, "scores": range(10), "stop_at": 99},
        {**END, "evaluations": 4},
    ),
    Scenario(
        KINDS,
        "total_steps: the last epoch is shorter, and evaluated",
        {"configured": {"total_steps": 40}},
        {
            "reason": "max_epoch",
            "steps_in_all": 40,
            "env_step": 40,
            "steps": [16, 16, 8],
            "last_epoch_is_evaluated": True,
        },
    ),
    Scenario(
        KINDS,
        "total_steps within a collect: the run ends with that collect",
        {"configured": {"total_steps": 33}},
        {"steps_in_all": 40, "env_step": 40},
    ),
    Scenario(
        KINDS, "total_steps by hand: reached before max_epoch", {"max_epoch": 9, "total_steps": 24}, {"env_step": 24}
    ),
    Scenario(
        KINDS,
        "total_steps by hand: not reached within max_epoch",
        {"max_epoch": 1, "total_steps": 24},
        {"env_step": 16},
    ),
    # -- off-policy ---
    Scenario(
        ("off",),
        "random steps first are not learned from",
        {"learning_starts": 16},
        {"gradient_step": 4, "env_step": 48},
    ),
    Scenario(("off",), "random steps only", {"learning_starts": 99}, {"gradient_step": 0, "env_step": 48}),
    Scenario(
        ("off",),
        "random steps that end inside a collect count as a whole one",
        {"learning_starts": 9},
        {"gradient_step": 4},
    ),
    Scenario(("off",), "a sample of everything", {"batch_size": None}, {"gradient_step": 6}),
    Scenario(
        ("off",),
        "update_per_step 0.25: the fraction is carried over collects of 4 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 0.25, "step_per_collect": 4, "step_per_epoch": 24},
        {"gradient_steps_by_update": [1, 2, 3, 4, 5, 6]},
    ),
    Scenario(
        ("off",),
        "update_per_step 0.25: the fraction is carried over collects of 8 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 0.25, "step_per_collect": 8, "step_per_epoch": 24},
        {"gradient_steps_by_update": [2, 4, 6]},
    ),
    Scenario(
        ("off",),
        "update_per_step 0.1: the fraction is carried over collects of 4 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 0.1, "step_per_collect": 4, "step_per_epoch": 24},
        {"gradient_steps_by_update": [0, 0, 1, 1, 2, 2]},
    ),
    Scenario(
        ("off",),
        "update_per_step 3: the fraction is carried over collects of 4 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 3, "step_per_collect": 4, "step_per_epoch": 12},
        {"gradient_steps_by_update": [12, 24, 36]},
    ),
    Scenario(
        ("off",),
        "update_per_step 0.29: the fraction is carried over collects of 20 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 0.29, "step_per_collect": 20, "step_per_epoch": 100},
        {"gradient_steps_by_update": [5, 11, 17, 23, 29]},
    ),  # 0.29 * 100 is less than 29
    Scenario(
        ("off",),
        "update_per_step 1 / 3: the fraction is carried over collects of 8 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 1 / 3, "step_per_collect": 8, "step_per_epoch": 48},
        {"gradient_steps_by_update": [2, 5, 8, 10, 13, 16]},
    ),
    Scenario(
        ("off",),
        "update_per_step 0.01: the fraction is carried over collects of 4 steps",
        {"evaluate": False, "max_epoch": 1, "update_per_step": 0.01, "step_per_collect": 4, "step_per_epoch": 100},
        {"gradient_steps_by_update": [0] * 24 + [1]},
    ),
    # -- on-policy ---
    Scenario(("on",), "minibatches", {"batch_size": 4}, {"gradient_step": 12}),
    Scenario(("on",), "passes of minibatches", {"batch_size": 4, "repeat_per_collect": 2}, {"gradient_step": 24}),
    # -- offline ---
    Scenario(("offline",), "an epoch of one gradient step", {"step_per_epoch": 1}, {"gradient_step": 3, "epochs": 3}),
    Scenario(
        ("offline",),
        "everything in every gradient step",
        {"batch_size": None, "step_per_epoch": 2},
        {"gradient_step": 6},
    ),
    Scenario(
        ("offline",),
        "total_steps: the last epoch is shorter",
        {"evaluate": False, "configured": {"total_steps": 90, "steps_per_epoch": 40}},
        {"steps_in_all": 90, "gradient_step": 90, "epochs": 3},
    ),
    Scenario(
        ("offline",),
        "total_steps: less than an epoch",
        {"evaluate": False, "configured": {"total_steps": 30, "steps_per_epoch": 100}},
        {"steps_in_all": 30, "gradient_step": 30, "epochs": 1},
    ),
    Scenario(
        ("offline",),
        "total_steps: whole epochs",
        {"evaluate": False, "configured": {"total_steps": 130, "steps_per_epoch": 65}},
        {"steps_in_all": 130, "gradient_step": 130, "epochs": 2},
    ),
]

RUNS = [(kind, scenario) for scenario in SCENARIOS for kind in scenario.kinds]


@pytest.mark.filterwarnings("ignore:no training episode")
@pytest.mark.parametrize(("kind", "scenario"), RUNS, ids=[f"{kind}-{scenario.name}" for kind, scenario in RUNS])
def test_scenario(kind, scenario):
    # Callbacks have state, and a row is run by several trainers.
    settings = {**scenario.settings, "callbacks": copy.deepcopy(scenario.settings.get("callbacks", []))}
    outcome = play(kind, **settings)
    if outcome.error is not None:
        raise outcome.error

    expected = dict(scenario.expected)
    if "saves" in expected:
        expected["saves"] = [(epoch, *position(kind, updates)) for epoch, updates in expected["saves"]]
    if "updates" in expected:
        assert (outcome.env_step, outcome.gradient_step) == position(kind, expected["updates"])
    assert {name: getattr(outcome, name) for name in expected} == expected

    # These hold for every run.
    assert outcome.log[-2:] == ["RunEnd", "finalize"]
    assert outcome.log.count("RunStart") == outcome.log.count("RunEnd") == 1
    assert outcome.log.count("EpochEnd") == outcome.epochs
    if kind == "offline":
        rows = settings.get("batch_size", 4) or len(outcome.trainer.buffer)
        assert (outcome.env_step, outcome.steps) == (0, [None] * outcome.epochs), "nothing is collected"
        assert outcome.trainer.samples_seen == rows * outcome.gradient_step
    else:
        assert outcome.trainer.policy.timesteps["num_env_steps_sampled_lifetime"] == outcome.env_step


def test_the_scenarios_have_different_names():
    names = [(kind, scenario.name, str(scenario.settings.get("update_per_step"))) for kind, scenario in RUNS]
    assert len(set(names)) == len(names)
