"""The counters of a run: their attributes on the trainer, and the flags that stand for an epoch's stage in files."""

import pytest
from scenario_tools import trainer_of

from lockstep.trainer import Callback
from lockstep.trainer.counters import Counters, EpochStage

FLAGS = {
    EpochStage.BETWEEN: {"in_epoch": False, "epoch_end_due": False},
    EpochStage.RUNNING: {"in_epoch": True, "epoch_end_due": False},
    EpochStage.UNREPORTED: {"in_epoch": False, "epoch_end_due": True},
}
AS_SAVED_BY_2DD00802 = {
    "epoch": 2,
    "in_epoch": True,
    "epoch_steps": 64,
    "epoch_end_due": False,
    "env_step": 192,
    "env_episode": 8,
    "gradient_step": 12,
    "test_env_step": 30,
    "test_episode": 6,
    "last_test_at": 160,
    "tested_in_train": True,
    "best_score": 5.0,
    "best_epoch": 0,
    "stop_reason": "interrupted",
    "seconds": {"total": 6.0, "collect": 1.0, "update": 2.0, "test": 3.0, "env": 0.5, "act": 0.25},
    "steps_learned_from": 0,
    "updates_made": 0,
    "learning_resumes_at": 0,
    "samples_seen": 0,
}


def test_the_cases_have_every_stage():
    assert list(FLAGS) == list(EpochStage)


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize("stage", EpochStage)
def test_a_saved_state_holds_the_flags_of_its_stage(stage, tested):
    saved = {**AS_SAVED_BY_2DD00802, **FLAGS[stage], "tested_in_train": tested}
    counters = Counters.from_state(saved)
    assert counters.stage is stage
    assert counters.tested_in_train is tested
    assert counters.stop_reason is None
    assert counters.step_counts == (2, 192, 12)
    assert {**counters.get_state(), "stop_reason": "interrupted"} == saved


def test_missing_counters_of_old_files_are_zero_and_unknown_ones_ignored():
    saved = {name: value for name, value in AS_SAVED_BY_2DD00802.items() if name != "learning_resumes_at"}
    counters = Counters.from_state({**saved, "stage": 7, "run": "no method"})
    assert counters.learning_resumes_at == 0
    assert counters.stage is EpochStage.RUNNING
    assert "run" not in vars(counters)


def test_a_state_does_not_share_its_seconds():
    counters = Counters()
    state = counters.get_state()
    restored = Counters.from_state(state)
    counters.seconds["total"] = 1.0
    assert state["seconds"]["total"] == restored.seconds["total"] == 0.0


def test_each_counter_is_an_attribute_of_the_trainer_that_can_be_set():
    trainer = trainer_of("on", evaluate=False)
    for name in vars(trainer.counters).keys() - {"stage"}:
        assert getattr(trainer, name) == getattr(trainer.counters, name)
        setattr(trainer, name, 7)
        assert getattr(trainer.counters, name) == 7
        assert name not in vars(trainer)


def test_stages_of_a_run_follow_in_order_and_callbacks_cannot_change_them():
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_run_start(self, event):
            self.trainer = event.trainer
            event.trainer.counters.epoch = 99

        def on_update_end(self, event):
            self.seen.append(self.trainer.counters.stage)

        on_epoch_end = on_update_end
        on_checkpoint_saved = on_update_end

    watch = Watch()
    trainer = trainer_of("on", callbacks=[watch], max_epoch=1, save_checkpoint_fn=lambda *_: "somewhere")
    trainer.run()
    *updates, saved, ended = watch.seen
    assert set(updates) == {EpochStage.RUNNING}
    assert (saved, ended) == (EpochStage.UNREPORTED, EpochStage.BETWEEN)
    assert trainer.epoch == 1
