"""A run makes exactly the steps that it is asked for, whatever an epoch is; and it can be made longer."""

import pytest
from scenario_tools import KINDS, config_of, trainer_of
from trainer_tools import At, collected, learned

from lockstep.trainer import restore_trainer, save_trainer


def lengths_of(trainer):
    return [stats.train_collect_stat.n_collected_steps for stats in trainer.history]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_with_the_steps_asked_for_and_its_last_epoch_is_shorter(kind):
    trainer = config_of(kind).reporting(total_steps=40).build_trainer()
    assert trainer.steps_in_all == 40
    info = trainer.run()
    assert (info.train_step, info.stop_reason) == (40, "max_epoch")
    assert lengths_of(trainer) == [16, 16, 8]
    assert trainer.last_test is trainer.history[-1].test_collect_stat


@pytest.mark.parametrize("kind", KINDS)
def test_total_steps_within_a_collect_end_with_that_collect(kind):
    trainer = config_of(kind).reporting(total_steps=33).build_trainer()
    assert trainer.steps_in_all == 40
    assert trainer.run().train_step == 40


@pytest.mark.parametrize("total_steps, steps_per_epoch", [(90, 40), (30, 100), (130, 65)])
def test_an_offline_run_makes_exactly_the_gradient_steps_asked_for(total_steps, steps_per_epoch):
    config = config_of("offline").reporting(total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    trainer = config.evaluation(evaluation_interval=0).build_trainer()
    assert trainer.steps_in_all == total_steps
    assert trainer.run().gradient_step == total_steps
    assert trainer.history[-1].epoch == -(-total_steps // steps_per_epoch)


def test_a_trainer_by_hand_may_be_given_total_steps():
    trainer = trainer_of("on", max_epoch=9, total_steps=24)
    assert trainer.run().train_step == 24
    assert trainer.run().train_step == 24, "a new run"
    assert trainer_of("on", max_epoch=1, total_steps=24).run().train_step == 16, "max_epoch is a bound, too"
    with pytest.raises(ValueError, match="total_steps=0 is not allowed"):
        trainer_of("on", total_steps=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_made_longer_goes_on_inside_its_short_epoch_bit_by_bit(kind, folder):
    """Epochs end where those of a run do that had that length from the beginning."""
    config = config_of(kind)
    short, longer, straight = (config.copy().reporting(total_steps=n).build_trainer() for n in (24, 64, 64))
    short.run()
    restore_trainer(longer, save_trainer(short, folder / "checkpoint"))
    longer.run()
    straight.run()
    assert [stats.info_stat.train_step for stats in longer.history] == [16, 24, 32, 48, 64]
    assert [stats.epoch for stats in longer.history] == [1, 2, 2, 3, 4]
    assert lengths_of(longer) == [16, 8, 8, 16, 16]
    assert learned(longer) == learned(straight)
    longer.test_collector = straight.test_collector = None  # it has made one evaluation more
    assert collected(longer) == collected(straight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_interrupted_before_its_last_evaluation_resumes_with_it(kind, folder):
    config = config_of(kind).reporting(total_steps=40)
    first, again = config.build_trainer(callbacks=[At("UpdateEnd", 40, KeyboardInterrupt())]), config.build_trainer()
    assert first.run().stop_reason == "interrupted"
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    assert not again.is_complete
    again.run()
    assert again.is_complete
    straight = config.build_trainer()
    straight.run()
    assert (again.env_step, again.test_episode, lengths_of(again)) == (40, 8, [16, 16, 8])
    assert (learned(again), collected(again)) == (learned(straight), collected(straight))
