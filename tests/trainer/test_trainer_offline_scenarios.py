"""Small offline runs: how they end, what they count, which score is the best (on- and off-policy: its own table)."""

import math

import pytest
from scenario_tools import LENGTH, Raises, offline_trainer_of, play
from trainer_tools import Recorder, RecordingLogger, Stops, learned

from lockstep.trainer import restore_trainer, save_trainer

ENDS = {"reason": "max_epoch", "env_step": 0, "gradient_step": 210, "epochs": 3}
SAVED = [(1, 0, 70), (2, 0, 140), (3, 0, 210)]

# name: (what is given, what comes out); an epoch of 70 gradient steps is 64 and 6: two events
SCENARIOS = {
    "runs to the last epoch": ({}, {**ENDS, "evaluations": 4, "saves": SAVED, "best_epoch": 0}),
    "the mean return is the score, also below zero": ({}, {"best": -float(LENGTH), "best_saves": 1}),
    "no epoch: nothing is learned and nothing evaluated": (
        {"max_epoch": 0},
        {"reason": "max_epoch", "gradient_step": 0, "evaluations": 0, "saves": [(0, 0, 0)]},
    ),
    "no epoch: success is not asked for": ({"max_epoch": 0, "stop_fn": lambda score: 1 / 0}, {"reason": "max_epoch"}),
    "one epoch": ({"max_epoch": 1}, {"epochs": 1, "gradient_step": 70, "evaluations": 2, "saves": SAVED[:1]}),
    "an epoch of one gradient step": ({"step_per_epoch": 1}, {"gradient_step": 3, "epochs": 3}),
    "success before training": (
        {"scores": [9], "stop_at": 9},
        {"reason": "stop_fn", "gradient_step": 0, "epochs": 0, "saves": [(0, 0, 0)], "best_saves": 1},
    ),
    "success after the first epoch": (
        {"scores": [1, 9], "stop_at": 9},
        {"reason": "stop_fn", "epochs": 1, "gradient_step": 70, "saves": SAVED[:1], "best": 9.0},
    ),
    "success in the last epoch": ({"scores": [1, 2, 3, 9], "stop_at": 9}, {"reason": "stop_fn", "saves": SAVED}),
    "a peak that did not suffice does not stop the run later": (
        {"scores": [8, 1, 1, 1], "stop_at": 9},
        {**ENDS, "best": 8.0, "best_epoch": 0},
    ),
    "negative scores: the largest is the best": (
        {"scores": [-300, -100, -200, -150]},
        {**ENDS, "best": -100.0, "best_epoch": 1, "best_saves": 2},
    ),
    "a first score that is no number is not the best": ({"scores": [math.nan, -7, math.nan, -9]}, {"best": -7.0}),
    "evaluation every second epoch and at the end": ({"test_interval": 2}, {**ENDS, "evaluations": 3}),
    "checkpoints every second epoch and at the end": ({"checkpoint_interval": 2}, {"saves": SAVED[1:]}),
    "no evaluation": ({"evaluate": False}, {**ENDS, "evaluations": 0, "best": None, "saves": SAVED}),
    "no checkpoints": ({"save_checkpoint_fn": None}, ENDS),
    "everything in every gradient step": ({"batch_size": None, "step_per_epoch": 2}, {"gradient_step": 6}),
    "a callback stops at the start: the first evaluation is still made": (
        {"callbacks": [Stops("RunStart")]},
        {"reason": "enough", "gradient_step": 0, "evaluations": 1, "saves": [(0, 0, 0)]},
    ),
    "a callback stops inside the second epoch": (
        {"callbacks": [Stops("UpdateEnd", at=3)]},
        {"reason": "enough", "epochs": 2, "gradient_step": 134, "saves": [(1, 0, 70), (2, 0, 134)]},
    ),
    "a callback stops after an epoch": (
        {"callbacks": [Stops("EpochEnd", at=2)]},
        {"reason": "enough", "epochs": 2, "saves": SAVED[:2]},
    ),
    "a callback asks for an interrupt": (
        {"callbacks": [Stops("UpdateEnd", "interrupted", at=3)]},
        {"reason": "interrupted", "epochs": 1, "gradient_step": 134},
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_offline_scenario(name):
    given, expected = SCENARIOS[name]
    given = dict(given, callbacks=[Stops(c.event_name, c.reason, c.left) for c in given.get("callbacks", ())])
    outcome = play("offline", **given)
    if outcome.error is not None:
        raise outcome.error
    assert {key: getattr(outcome, key) for key in expected} == expected
    assert outcome.steps == [None] * outcome.epochs  # nothing is collected
    assert outcome.log[-2:] == ["RunEnd", "finalize"]
    assert outcome.log.count("RunStart") == outcome.log.count("RunEnd") == 1
    assert outcome.log.count("EpochEnd") == outcome.epochs
    rows = given.get("batch_size", 4) or len(outcome.trainer.buffer)
    assert outcome.trainer.samples_seen == rows * outcome.gradient_step


HOOKS = ["train_fn", "test_fn", "stop_fn", "compute_score_fn", "save_best_fn", "save_checkpoint_fn"]
HOOKS += ["RunStart", "UpdateEnd", "EvaluationEnd", "CheckpointSaved", "EpochEnd", "RunEnd", "logger"]


def broken(hook, error, saves, log):
    once = [error]

    def fail(*arguments):
        if once:
            raise once.pop()
        return 0.0 if hook == "compute_score_fn" else None

    options = {"save_checkpoint_fn": lambda *where: (saves.append(where), "somewhere")[1]}
    if hook.endswith("_fn"):
        options[hook] = fail
    watchers = [Raises(hook, error)] if hook[0].isupper() else []
    options |= {"callbacks": [*watchers, Recorder(log)], "logger": RecordingLogger(log)}
    trainer = offline_trainer_of(step_per_epoch=4, **options)
    if hook == "logger":
        trainer.logger.log = fail
    return trainer


@pytest.mark.parametrize("error", [LookupError("mine"), KeyboardInterrupt()], ids=["exception", "interrupt"])
@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_hook_raises_ends_an_offline_run_in_order(hook, error):
    saves, log = [], []
    trainer = broken(hook, error, saves, log)
    if isinstance(error, LookupError):
        with pytest.raises(LookupError) as caught:
            trainer.run()
        assert caught.value is error
        assert trainer.stop_reason == ("max_epoch" if hook == "RunEnd" else "error")
    elif hook != "RunEnd":
        assert trainer.run().stop_reason == "interrupted"
    else:
        return
    assert log[-2:] == ["RunEnd", "finalize"]
    if hook != "save_checkpoint_fn":
        assert saves[-1] == (trainer.epoch, 0, trainer.gradient_step)
        assert len(set(saves)) == len(saves)
    trainer.callbacks = [c for c in trainer.callbacks if not isinstance(c, Raises)]
    info = trainer.run()  # the trainer is as good as new
    assert (info.stop_reason, info.train_step, info.gradient_step) == ("max_epoch", 0, 12)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_an_offline_run_goes_on_from_a_checkpoint_after_each_update(at, tmp_path):
    """Interrupted after the `at`-th update, inside an epoch or at its end; a new trainer goes on from there."""
    whole = offline_trainer_of()
    whole.run()
    stopped = offline_trainer_of(callbacks=[Stops("UpdateEnd", "interrupted", at=at)])
    stopped.run()
    assert stopped.stop_reason == "interrupted"
    again = offline_trainer_of()
    restore_trainer(again, save_trainer(stopped, tmp_path / "checkpoint"))
    again.run()
    assert again.gradient_step == whole.gradient_step == 210
    assert again.samples_seen == whole.samples_seen
    assert learned(again) == learned(whole)


def test_an_offline_trainer_is_run_again_after_its_end():
    trainer = offline_trainer_of(step_per_epoch=3)
    trainer.run()
    assert (trainer.run().gradient_step, trainer.samples_seen) == (9, 36)
