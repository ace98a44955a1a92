"""Runs that end inside an epoch, in a hook or before they begin, and go on: nothing is done twice, nothing is lost."""

import pytest
from scenario_tools import KINDS, trainer_of
from trainer_tools import collected, learned

from lockstep.trainer import Callback, restore_trainer, save_trainer


class Once(Callback):
    """Raises at the first event of a name at an environment step."""

    def __init__(self, name, env_step, error):
        self.where, self.left = (name, env_step), [error]

    def on_event(self, event):
        if (type(event).__name__, event.env_step) == self.where and self.left:
            raise self.left.pop()


def bits(trainer):
    return learned(trainer), collected(trainer), trainer.env_step, trainer.gradient_step, trainer.test_episode


@pytest.mark.parametrize("kind", KINDS)
def test_test_in_train_evaluates_once_in_an_epoch_that_is_interrupted_and_goes_on(kind, folder):
    def trainer(*callbacks):
        options = {
            "compute_score_fn": lambda stats: 9.0 - stats.n_collected_episodes,
            "stop_fn": lambda score: score > 6,
        }
        options |= {"test_in_train": True, "step_per_epoch": 32, "max_epoch": 2, "episode_per_test": 3}
        return trainer_of(kind, callbacks=callbacks, **options)

    straight, first, again = trainer(), trainer(Once("UpdateEnd", 16, KeyboardInterrupt())), trainer()
    straight.run()
    first.run()
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    again.run()
    assert straight.test_episode == 3 * (1 + 2 * 2)
    assert bits(again) == bits(straight)
