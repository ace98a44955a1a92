"""Small runs of the three trainers in one table: how they end, what they count, which score is the best.

Each has epochs of two updates: of 8 environment steps and one gradient step, or offline of 64 and 6 gradient steps.
"""

import math
import warnings

import pytest
from parts import fast_if
from scenario_tools import KINDS, LENGTH, TRAINERS, outcome_of, play, trainer_of
from trainer_tools import At, Recorder, RecordingLogger, Stops, learned, noting

from lockstep.tracking.statistics import TimingStats
from lockstep.trainer import Callback, restore_trainer, save_trainer

NAN, INF = math.nan, math.inf
END = {"reason": "max_epoch", "epochs": 3, "updates": 6}
SAVED = [(1, 2), (2, 4), (3, 6)]
"""epoch and updates of each checkpoint"""


def position(kind, updates):
    """Environment steps and gradient steps after so many updates."""
    return (0, updates // 2 * 70 + updates % 2 * 64) if kind == "offline" else (8 * updates, updates)


# name: (options, what comes out); `play` says what `scores` and `stop_at` are
SCENARIOS = {
    "runs to the last epoch": ({}, {**END, "evaluations": 4, "saves": SAVED, "best_epoch": 0}),
    "the mean return is the score, also below zero": ({}, {"best": -float(LENGTH), "best_saves": 1}),
    "negative scores: the largest is the best": (
        {"scores": [-300, -100, -200, -150]},
        {**END, "best": -100.0, "best_epoch": 1, "best_saves": 2},
    ),
    "equal scores: the first stays the best": ({"scores": [5, 5, 5, 5]}, {"best_epoch": 0, "best_saves": 1}),
    "rising scores: each is the best": ({"scores": [1, 2, 3, 4]}, {"best": 4.0, "best_epoch": 3, "best_saves": 4}),
    "a first score that is no number is not the best": (
        {"scores": [NAN, -7, NAN, -9]},
        {"best": -7.0, "best_epoch": 1},
    ),
    "no score is a number: there is no best": (
        {"scores": [NAN] * 4},
        {**END, "best": None, "best_epoch": None, "best_saves": 0},
    ),
    "infinite scores are compared as such": ({"scores": [-INF, 1, INF, 2]}, {"best": INF, "best_epoch": 2}),
    "a score that is no number does not stop the run": ({"scores": [NAN] * 4, "stop_at": -INF}, END),
    "success before training": (
        {"scores": [9], "stop_at": 9},
        {"reason": "stop_fn", "updates": 0, "epochs": 0, "saves": [(0, 0)], "best_saves": 1},
    ),
    "success after the first epoch": (
        {"scores": [1, 9], "stop_at": 9},
        {"reason": "stop_fn", "epochs": 1, "updates": 2, "saves": SAVED[:1], "best": 9.0},
    ),
    "success in the last epoch": ({"scores": [1, 2, 3, 9], "stop_at": 9}, {"reason": "stop_fn", "saves": SAVED}),
    "a peak that did not suffice does not stop the run later": (
        {"scores": [8, 1, 1, 1], "stop_at": 9},
        {**END, "best": 8.0, "best_epoch": 0},
    ),
    "no epoch: nothing is trained and nothing evaluated": (
        {"max_epoch": 0},
        {"reason": "max_epoch", "updates": 0, "evaluations": 0, "saves": [(0, 0)]},
    ),
    "evaluation every second epoch and at the end": ({"test_interval": 2}, {**END, "evaluations": 3}),
    "checkpoints every second epoch and at the end": ({"checkpoint_interval": 2}, {"saves": SAVED[1:]}),
    "no checkpoints with an interval of 0, not at the end either": ({"checkpoint_interval": 0}, {**END, "saves": []}),
    "no evaluation": ({"evaluate": False}, {**END, "evaluations": 0, "best": None, "saves": SAVED}),
    "no checkpoints": ({"save_checkpoint_fn": None}, END),
    "a checkpoint without a path is no event": ({"save_checkpoint_fn": lambda *where: None}, END),
    "a callback stops at the start: the first evaluation is still made": (
        {"callbacks": [Stops("RunStart")]},
        {"reason": "enough", "updates": 0, "evaluations": 1, "saves": [(0, 0)]},
    ),
    "a callback stops inside the second epoch": (
        {"callbacks": [Stops("UpdateEnd", at=3)]},
        {"reason": "enough", "epochs": 2, "updates": 3, "saves": [(1, 2), (2, 3)]},
    ),
    "a callback stops after an epoch": (
        {"callbacks": [Stops("EpochEnd", at=2)]},
        {"reason": "enough", "epochs": 2, "saves": SAVED[:2]},
    ),
    "a callback stops at a checkpoint": (
        {"callbacks": [Stops("CheckpointSaved")], "save_checkpoint_fn": lambda *where: "somewhere"},
        {"reason": "enough", "epochs": 1},
    ),
    "a callback that asks at the very end changes nothing": ({"callbacks": [Stops("RunEnd")]}, END),
    "the first of two reasons counts": (
        {"callbacks": [Stops("UpdateEnd", "one", at=2), Stops("UpdateEnd", "two", at=2)]},
        {"reason": "one", "epochs": 1},
    ),
    "a callback's reason goes before success in the same epoch": (
        {"callbacks": [Stops("UpdateEnd")], "scores": [1, 9], "stop_at": 9},
        {"reason": "enough", "epochs": 1},
    ),
    "a callback asks for an interrupt": (
        {"callbacks": [Stops("UpdateEnd", "interrupted", at=3)]},
        {"reason": "interrupted", "epochs": 1, "updates": 3, "saves": [(1, 2), (2, 3)]},
    ),
}
COLLECTING = {
    "a collect that overshoots the epoch is counted whole and carried on": (
        {"step_per_epoch": 12},
        {"steps": [16, 8, 16], "env_step": 40, "gradient_step": 5},
    ),
    "a collect that is longer than epochs leaves some of them empty": (
        {"step_per_epoch": 3},
        {"steps": [8, 0, 8], "env_step": 16, "gradient_step": 2, "evaluations": 4},
    ),
    "whole episodes instead of steps": ({"episode_per_collect": 2}, {"steps": [16, 16, 16], "gradient_step": 6}),
    "more environments than episodes": ({"episode_per_collect": 1, "step_per_epoch": 8}, {"steps": [8, 8, 8]}),
    "a callback stops after a collect: it is learned from": (
        {"callbacks": [Stops("CollectEnd")]},
        {"reason": "enough", "epochs": 1, "updates": 1, "evaluations": 2, "saves": [(1, 1)]},
    ),
    "test_in_train: training suffices and evaluation too, the run stops in mid-epoch": (
        {"test_in_train": True, "scores": [1, 9, 9, 9], "stop_at": 9},
        {"reason": "stop_fn", "epochs": 1, "updates": 1},
    ),
    "test_in_train: training suffices and evaluation does not, the run goes on": (
        {"test_in_train": True, "scores": [1, 9, 2, 3, 9, 2, 3, 9, 2, 3], "stop_at": 9},
        {**END, "evaluations": 7},
    ),
    "test_in_train: training does not suffice, no more evaluations": (
        {"test_in_train": True, "scores": range(10), "stop_at": 99},
        {**END, "evaluations": 4},
    ),
}
OFF = {
    "random steps first are not learned from": ({"learning_starts": 16}, {"gradient_step": 4, "env_step": 48}),
    "random steps only": ({"learning_starts": 99}, {"gradient_step": 0, "env_step": 48}),
    "random steps that end inside a collect count as a whole one": ({"learning_starts": 9}, {"gradient_step": 4}),
    "a sample of everything": ({"batch_size": None}, {"gradient_step": 6}),
}
ON = {
    "minibatches": ({"batch_size": 4}, {"gradient_step": 12}),
    "passes of minibatches": ({"batch_size": 4, "repeat_per_collect": 2}, {"gradient_step": 24}),
}
OFFLINE = {
    "an epoch of one gradient step": ({"step_per_epoch": 1}, {"gradient_step": 3, "epochs": 3}),
    "everything in every gradient step": ({"batch_size": None, "step_per_epoch": 2}, {"gradient_step": 6}),
}
ROWS = [(kind, *row) for kind in TRAINERS for row in SCENARIOS.items()]
ROWS += [(kind, *row) for kind in KINDS for row in COLLECTING.items()]
ROWS += [(kind, *row) for kind, table in (("off", OFF), ("on", ON), ("offline", OFFLINE)) for row in table.items()]


@pytest.mark.filterwarnings("ignore:no training episode")
@pytest.mark.parametrize("kind, name, row", ROWS, ids=[f"{kind}-{name}" for kind, name, _ in ROWS])
def test_scenario(kind, name, row):
    options, expected = row
    fresh = [Stops(c.event_name, c.reason, c.left) for c in options.get("callbacks", ())]
    outcome = play(kind, **{**options, "callbacks": fresh})
    if outcome.error is not None:
        raise outcome.error
    expected = dict(expected)
    if "saves" in expected:
        expected["saves"] = [(epoch, *position(kind, updates)) for epoch, updates in expected["saves"]]
    if "updates" in expected:
        assert (outcome.env_step, outcome.gradient_step) == position(kind, expected["updates"])
    assert {key: getattr(outcome, key) for key in expected} == expected
    assert outcome.log[-2:] == ["RunEnd", "finalize"]
    assert outcome.log.count("RunStart") == outcome.log.count("RunEnd") == 1
    assert outcome.log.count("EpochEnd") == outcome.epochs
    if kind == "offline":
        rows = options.get("batch_size", 4) or len(outcome.trainer.buffer)
        assert (outcome.env_step, outcome.steps) == (0, [None] * outcome.epochs)  # nothing is collected
        assert outcome.trainer.samples_seen == rows * outcome.gradient_step
    else:
        assert outcome.trainer.policy.timesteps["num_env_steps_sampled_lifetime"] == outcome.env_step


@pytest.mark.parametrize("kind", TRAINERS)
def test_events_come_in_the_order_of_the_contract(kind):
    log = []
    options = noting(log)
    note = options.pop("save_checkpoint_fn")
    trainer = trainer_of(kind, max_epoch=2, save_checkpoint_fn=lambda *where: note(*where) or "somewhere", **options)
    for collector, name in ((trainer.train_collector, "train"), (trainer.test_collector, "test")):
        if collector is not None:
            collector.on_step_hook = lambda step, name=name: log.append(name) if log[-1] != name else None
    log.extend(f"epoch {stats.epoch}" for stats in trainer)

    def evaluation(epoch, updates):
        step, gradient_step = position(kind, updates)
        test = [f"test_fn {epoch} {step}", "test", "score", f"log test {step or gradient_step}"]
        return [*test, "EvaluationEnd", "save_best", "stop_fn"]

    def update(epoch, updates):
        step, gradient_step = position(kind, updates)
        collect = [] if kind == "offline" else ["train", f"log train {step}", "CollectEnd"]
        called = f"train_fn {epoch} {position(kind, updates - 1)[0]}"
        return [called, *collect, f"log update {gradient_step}", "UpdateEnd"]

    def end(epoch, updates):
        saved = [f"checkpoint {(epoch, *position(kind, updates))}", "CheckpointSaved"]
        return [*saved, f"log info {epoch}", "EpochEnd", f"epoch {epoch}"]

    first = [*update(1, 1), *update(1, 2), *evaluation(1, 2), *end(1, 2)]
    second = [*update(2, 3), *update(2, 4), *evaluation(2, 4), *end(2, 4)]
    assert log == ["RunStart", *evaluation(0, 0), *first, *second, "RunEnd", "finalize"]


HOOKS = ["train_fn", "test_fn", "stop_fn", "compute_score_fn", "save_best_fn", "save_checkpoint_fn", "RunStart"]
HOOKS += ["UpdateEnd", "EvaluationEnd", "CheckpointSaved", "EpochEnd", "logger"]
COLLECTOR_HOOKS = ["on_step_hook", "on_episode_done_hook", "CollectEnd"]
BROKEN = [(hook, kind) for hook in HOOKS for kind in TRAINERS]
BROKEN += [(hook, kind) for hook in COLLECTOR_HOOKS for kind in KINDS]


def broken(kind, hook, error, saves):
    """A trainer whose hook raises, once; the others do nothing."""
    once = [error]

    def fail(*arguments, **options):
        if once:
            raise once.pop()
        return 0.0 if hook == "compute_score_fn" else None

    options = {"save_checkpoint_fn": lambda *where: (saves.append(where), "somewhere")[1]}
    if hook.endswith("_fn"):
        options[hook] = fail
    if kind == "offline":
        options["step_per_epoch"] = 4
    log = []
    watchers = [At(hook, None, error)] if hook[0].isupper() else []
    trainer = trainer_of(kind, callbacks=[*watchers, Recorder(log)], logger=RecordingLogger(log), **options)
    if hook.startswith("on_"):
        setattr(trainer.train_collector, hook, fail)
    if hook == "logger":
        trainer.logger.log = fail
    return trainer, log


@pytest.mark.parametrize("hook, kind", [*BROKEN, *(("RunEnd", kind) for kind in TRAINERS)])
def test_an_exception_in_a_hook_ends_the_run_in_order_and_arrives_whole(hook, kind):
    saves, error = [], LookupError("mine")
    trainer, log = broken(kind, hook, error, saves)
    with pytest.raises(LookupError, match="mine") as caught:
        trainer.run()
    assert caught.value is error
    assert trainer.stop_reason == ("max_epoch" if hook == "RunEnd" else "error")
    assert log[-2:] == ["RunEnd", "finalize"]
    if hook != "save_checkpoint_fn":
        assert saves[-1] == (trainer.epoch, trainer.env_step, trainer.gradient_step)
        assert len(set(saves)) == len(saves)
    info = trainer.run()  # the trainer is as good as new
    counts = (0, 12) if kind == "offline" else (48, 6)
    assert (info.stop_reason, info.train_step, info.gradient_step) == ("max_epoch", *counts)


WITHIN_A_STEP = ("on_step_hook", "on_episode_done_hook", "CollectEnd")
"""Hooks that are called while a training step is under way: no run could continue from the state at that moment."""


@pytest.mark.parametrize("hook, kind", BROKEN)
def test_an_interrupt_in_a_hook_ends_the_run_in_order_without_an_exception(hook, kind):
    saves = []
    trainer, log = broken(kind, hook, KeyboardInterrupt(), saves)
    assert trainer.run().stop_reason == "interrupted"
    assert log[-2:] == ["RunEnd", "finalize"]
    if hook in WITHIN_A_STEP:
        assert saves == []
    elif hook != "save_checkpoint_fn":
        assert saves[-1] == (trainer.epoch, trainer.env_step, trainer.gradient_step)


@pytest.mark.parametrize("at", fast_if((2, 3).__contains__, [1, 2, 3, 4, 5]))
@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_goes_on_from_a_checkpoint_after_each_update(kind, at, folder):
    """Interrupted after the `at`-th update, inside an epoch or at its end; a new trainer goes on from there."""
    whole, again = trainer_of(kind), trainer_of(kind)
    whole.run()
    stopped = trainer_of(kind, callbacks=[Stops("UpdateEnd", "interrupted", at=at)])
    assert stopped.run().stop_reason == "interrupted"
    restore_trainer(again, save_trainer(stopped, folder / "checkpoint"))
    again.run()
    assert (again.env_step, again.gradient_step) == position(kind, 6)
    assert getattr(again, "samples_seen", 0) == getattr(whole, "samples_seen", 0)
    assert learned(again) == learned(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_returns_and_lengths_span_collects_of_whole_episodes(kind):
    trainer = trainer_of(
        kind, step_per_collect=6, step_per_epoch=18, max_epoch=2
    )  # three vector steps, episodes of four
    first, second = list(trainer)
    assert first.train_collect_stat.returns.tolist() == [-4.0] * 4
    assert first.train_collect_stat.lens.tolist() == [4] * 4
    assert second.train_collect_stat.n_collected_episodes == 4
    assert trainer.info().train_episode == 8


@pytest.mark.parametrize("after", ["the end", "an interrupt", "an error", "one epoch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_is_reset_and_run_again_after(kind, after):
    class Once(Callback):
        left = 1

        def on_update_end(self, event):
            if event.env_step == 24 and self.left and after != "the end":
                self.left = 0
                raise KeyboardInterrupt if after == "an interrupt" else LookupError("once")

    options = {"update_per_step": 0.3} if kind == "off" else {}
    trainer = trainer_of(kind, callbacks=[] if after in ("the end", "one epoch") else [Once()], **options)
    if after == "one epoch":
        next(trainer)
    elif after == "an error":
        with pytest.raises(LookupError):
            trainer.run()
    else:
        trainer.run()
    trainer.reset(reset_buffer=True)
    zero = outcome_of(trainer)
    assert (zero.env_step, zero.gradient_step, zero.evaluations, zero.best, zero.reason, zero.epochs) == (
        *(0, 0, 0, None, None, 0),
    )
    assert (trainer.info().timing, trainer.last_test, trainer.history) == (TimingStats(), None, [])
    assert len(trainer.buffer.episodes() if kind == "on" else trainer.buffer) == 0
    assert [stats.epoch for stats in trainer] == [1, 2, 3]
    again = outcome_of(trainer)
    updates = 6 if kind == "on" else 14  # 48 * 0.3: the fraction begins anew too
    assert (again.env_step, again.gradient_step, again.steps) == (48, updates, [16] * 3)


def test_two_kinds_of_trainers_alternate_in_a_zip_as_if_alone():
    on, off = trainer_of("on"), trainer_of("off", max_epoch=2)
    assert [(a.epoch, b.epoch) for a, b in zip(off, on)] == [(1, 1), (2, 2)]
    assert (off.stop_reason, on.stop_reason) == ("max_epoch", None)
    assert next(on).epoch == 3
    for trainer in (on, off):
        with pytest.raises(StopIteration):
            next(trainer)
    for kind, trainer in (("on", on), ("off", off)):
        alone = trainer_of(kind, max_epoch=trainer.max_epoch)
        alone.run()
        assert learned(alone) == learned(trainer)


def test_a_score_that_is_no_number_at_all_is_told():
    with pytest.raises(TypeError, match="compute_score_fn returned None; it must return a number"):
        trainer_of("on", compute_score_fn=lambda stats: None).run()


def test_test_in_train_is_off_with_a_warning_where_it_cannot_work():
    with pytest.warns(UserWarning, match="test_in_train=True is off"):
        trainer = trainer_of("off", test_in_train=True)
    assert not trainer.test_in_train
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer_of("off", test_in_train=True, stop_fn=bool).test_in_train
