"""What a trainer counts and what it begins anew; how it acts when it evaluates in the middle of an epoch."""

import pytest
from scenario_tools import KINDS, trainer_of

from lockstep.trainer import restore_trainer, save_trainer
from lockstep.trainer.video import VideoCallback


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_in_mid_epoch_does_not_explore(kind):
    asked, exploring = [], []
    trainer = trainer_of(
        kind,
        max_epoch=1,
        test_in_train=True,
        stop_fn=lambda score: (asked.append(score), len(asked) == 2)[1],  # yes to the training return only
    )
    collector, collect = trainer.test_collector, trainer.test_collector.collect

    def watched(**amount):
        exploring.append(trainer.policy.is_exploring)
        return collect(**amount)

    collector.collect = watched
    trainer.run()
    assert exploring == [False] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_begins_both_collectors_and_all_of_their_counts_anew(kind):
    trainer = trainer_of(kind, max_epoch=1)
    trainer.run()
    collectors = trainer.train_collector, trainer.test_collector
    assert all(collector.collect_step > 0 for collector in collectors)
    trainer.reset()
    assert [(c.collect_step, c.collect_episode, c.collect_time) for c in collectors] == [(0, 0, 0.0)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_holds_the_times_and_the_last_evaluation(kind, tmp_path):
    trainer = trainer_of(kind, max_epoch=1)
    timing = trainer.run().timing
    other = trainer_of(kind)
    restore_trainer(other, save_trainer(trainer, tmp_path / "checkpoint"))
    assert other.info().timing == timing
    assert min(timing.train_time_collect, timing.train_time_update, timing.test_time) > 0
    assert other.last_test == trainer.last_test
    assert len(other.last_test.returns) == 2


def test_a_video_callback_goes_on_counting_evaluations(tmp_path):
    callback, again = (VideoCallback(tmp_path, interval=5) for _ in range(2))
    callback.num_evaluations = 3
    again.set_state(callback.get_state())
    assert (again.num_evaluations, again.get_state()) == (3, callback.get_state())
