"""How a run on collected rollouts ends: callbacks, interrupts, errors, losses that are not finite."""

import math
import os
import signal
import threading

import pytest
from trainer_tools import Recorder, build

from lockstep.state.checkpoint import read_checkpoint
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer import EarlyStop, save_trainer


def test_early_stop_at_a_threshold_after_patience_and_after_a_time():
    scores = iter([1.0, 5.0, 3.0, 9.0])
    trainer = build(max_epoch=9, compute_score_fn=lambda stats: next(scores), callbacks=[EarlyStop(threshold=9.0)])
    assert trainer.run().stop_reason == "score 9 reached the threshold 9"
    scores = iter([1.0, 5.0, 3.0, 4.0, 6.0, 7.0])
    patient = EarlyStop(patience=2)
    trainer = build(max_epoch=9, compute_score_fn=lambda stats: next(scores), callbacks=[patient])
    assert trainer.run().stop_reason == "no better score in 2 evaluations"
    assert trainer.epoch == 3
    scores = iter([1.0, 2.0, 1.5, 3.0])
    trainer.max_epoch = 3
    assert trainer.run().stop_reason == "max_epoch"  # a new run counts from zero
    quick = build(max_epoch=9, callbacks=[EarlyStop(time_limit_s=1e-9)])
    assert quick.run().stop_reason == "time limit of 1e-09 s"
    assert build(max_epoch=1, callbacks=[EarlyStop(time_limit_s=1e6)]).run().stop_reason == "max_epoch"
    with pytest.raises(ValueError, match="threshold, patience or time_limit_s"):
        EarlyStop()


def test_ctrl_c_waits_for_the_end_of_the_update_and_the_second_one_does_not():
    events = []

    def press(*arguments):
        if trainer.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
            events.append("pressed")

    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press)
    info = trainer.run()
    assert info.stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "pressed", "CollectEnd", "UpdateEnd", "RunEnd"]
    assert (info.train_step, info.history) == (64, ())

    def press_twice(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        events.append("not reached")

    events.clear()
    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press_twice)
    assert trainer.run().stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "RunEnd"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_another_thread_leaves_signals_alone():
    trainer = build(max_epoch=1)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.stop_reason == "max_epoch"


def test_a_last_checkpoint_that_fails_too_does_not_hide_the_first_error():
    def fail(*arguments):
        raise LookupError("first")

    def fail_too(*arguments):
        raise OSError("second")

    with pytest.raises(LookupError, match="first") as caught:
        build(train_fn=fail, save_checkpoint_fn=fail_too).run()
    assert caught.value.__notes__ == ["the run could not be ended in order either: second"]


def spoil(trainer, factor, env_step=None):
    """Multiply a logged loss at an environment step, or always."""
    learner = trainer.policy.learner_group.learner
    plain = learner.compute_losses

    def spoiled(**arguments):
        losses = plain(**arguments)
        if env_step in (None, trainer.env_step):
            learner.log("default_policy", policy_loss=losses["default_policy"] * factor)
        return losses

    learner.compute_losses = spoiled


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_with_step_metric_and_batch(factor, folder):
    trainer = build(max_epoch=2, save_checkpoint_fn=lambda *at: save_trainer(trainer, folder / "last"))
    spoil(trainer, factor, env_step=128)
    expected = "policy_loss is not finite at environment step 128, gradient step 4"
    with pytest.raises(FloatingPointError, match=expected):
        trainer.run()
    saved = read_checkpoint(folder / "last")
    assert saved["bad_batch"]["batch"]["obs"].shape == (16, 4, 4)
    assert saved["bad_batch"]["batch"]["rewards"].shape == (16, 4)
    assert saved["trainer"]["state"]["counters"]["stop_reason"] == "error"
    trainer.reset()
    assert trainer.bad_batch is None
    going_on = build(max_epoch=1, nan_policy="ignore")
    spoil(going_on, factor)
    info = going_on.run()
    assert info.stop_reason == "max_epoch"
    seen = info.history[0].training_stat.metrics["policy_loss"]
    assert not math.isfinite(seen.mean)
    assert seen.count > 0


@pytest.mark.parametrize("own_score", [{}, {"compute_score_fn": lambda stats: 7.0}])
def test_an_empty_evaluation_is_an_error(own_score):
    trainer = build(**own_score)
    trainer.test_collector.collect = lambda n_episode: CollectStats(0, 30)
    with pytest.raises(ValueError, match="the evaluation has no finished episode; raise episode_per_test"):
        trainer.run()
    assert (trainer.stop_reason, trainer.best_score) == ("error", None)
