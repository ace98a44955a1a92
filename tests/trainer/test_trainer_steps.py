"""The steps that the loop calls and a subclass overrides, `run(...)`, and what a callback is handed of the trainer."""

import inspect
import time

import pytest
from scenario_tools import TRAINERS, trainer_of
from trainer_tools import RecordingLogger, build, digest

from lockstep import BaseTrainer, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.tracking.statistics import CollectStats, CollectStatsBase, InfoStats, TrainingStats
from lockstep.trainer import Callback, CheckpointCallback, gather_info, restore_trainer
from lockstep.trainer import test_episode as play_episodes
from lockstep.trainer.callbacks import TrainerView

CHANGING = {"run", "reset", "close", "training_step", "policy_update_fn", "test_step", "set_seed"}
CHANGING |= {"set_state", "set_own_folders", "restore_from_path", "choose_compiling"}
READING = {"info", "get_state", "own_folders", "checkpoint_folders", "save_to_path"}
READING |= {"describe_updates", "work_left", "first_and_last_update"}
FOR_CALLBACKS = {"add_module", "remove_module", "set_policies_to_train", "set_policy_mapping_fn"}
"""what changes who plays and learns: `SelfPlay` does"""


def weights_of(trainer):
    return digest(dict(trainer.policy.module.state_dict()))


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_subclass_that_overrides_training_step_changes_the_run(kind):
    given = []

    def training_step(self):
        collected, training, stop = super(type(self), self).training_step()
        given.append((collected, training, stop))
        return collected, training, len(given) == 2

    trainer = trainer_of(kind, methods={"training_step": training_step}, step_per_epoch=128)
    info = trainer.run()
    assert (info.stop_reason, len(info.history), len(given)) == ("stop_fn", 1, 2)
    assert all(isinstance(collected, CollectStatsBase) for collected, _, _ in given)
    assert sum(training.gradient_steps for _, training, _ in given) == info.gradient_step > 0
    assert [stop for *_, stop in given] == [False, False]


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_subclass_that_overrides_policy_update_fn_changes_the_run(kind):
    given = []

    def nothing(self, collect_stats):
        given.append(collect_stats)
        return TrainingStats()

    trainer = trainer_of(kind, methods={"policy_update_fn": nothing}, max_epoch=2)
    before = weights_of(trainer)
    assert trainer.run().gradient_step == 0
    assert weights_of(trainer) == before
    assert len(given) == 4
    assert all(isinstance(stats, CollectStatsBase) for stats in given)
    trainer = trainer_of(kind)
    assert trainer.run().gradient_step > 0
    assert weights_of(trainer) != before


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_subclass_that_overrides_test_step_changes_the_run(kind):
    given = []

    def test_step(self):
        given.append(super(type(self), self).test_step())
        return given[-1][0], len(given) == 2

    trainer = trainer_of(kind, methods={"test_step": test_step}, stop_fn=lambda score: True)
    info = trainer.run()  # the first evaluation, which satisfies stop_fn, does not stop it; the second one does
    assert [stop for _, stop in given] == [True, True]
    assert all(isinstance(stats, CollectStats) for stats, _ in given)
    assert (info.stop_reason, len(info.history)) == ("stop_fn", 1)
    assert info.test_step == trainer.test_env_step == sum(stats.n_collected_steps for stats, _ in given)


def test_run_resets_collectors_and_buffer_as_it_is_told():
    trainer = trainer_of("off", max_epoch=1)
    trainer.run()
    assert (trainer.train_collector.collect_step, len(trainer.buffer)) == (16, 16)
    trainer.run(reset_collectors=False)
    assert (trainer.env_step, trainer.train_collector.collect_step, len(trainer.buffer)) == (16, 32, 32)
    trainer.run()
    assert (trainer.train_collector.collect_step, len(trainer.buffer)) == (16, 48)
    trainer.run(reset_collectors=True, reset_buffer=True)
    assert (trainer.train_collector.collect_step, len(trainer.buffer)) == (16, 16)
    for begin in (trainer.run, trainer.reset):
        with pytest.raises(ValueError, match=r"reset_buffer=True is not allowed with reset_collectors=False"):
            begin(reset_collectors=False, reset_buffer=True)
        with pytest.raises(ValueError, match="reset_collectors='no' is not allowed"):
            begin(reset_collectors="no")


def test_gather_info_is_called_as_its_first_users_call_it():
    trainer = build()
    trainer.run()
    collectors = trainer.train_collector, trainer.test_collector
    info = gather_info(time.time() - 5.0, 2.0, 8, 20.0, 19.0, 1.5, *collectors)
    assert isinstance(info, InfoStats)
    assert (info.gradient_step, info.best_score, info.best_reward, info.best_reward_std) == (8, 20.0, 19.0, 1.5)
    mine = trainer.info()
    for name in ("train_step", "train_episode", "test_step", "test_episode"):
        assert getattr(info, name) == getattr(mine, name) > 0
    assert (info.timing.train_time_update, info.timing.test_time) == (2.0, collectors[1].collect_time)
    assert 5.0 <= info.timing.total_time < 60.0
    assert info.timing.train_time == 2.0 + collectors[0].collect_time
    named = {"start_time": time.time(), "policy_update_time": 0.5, "gradient_step": 3}
    info = gather_info(**named, best_score=0.0, best_reward=0.0, best_reward_std=0.0)
    assert (info.train_step, info.test_episode, info.timing.update_speed) == (0, 0, 6.0)


def test_test_episode_is_called_as_its_first_users_call_it():
    trainer, log = build(), []
    logger, collector = RecordingLogger(log), trainer.test_collector
    stats = play_episodes(collector, lambda epoch, step: log.append((epoch, step)), 3, 4, logger, 70)
    assert (stats.n_collected_episodes, len(stats.returns)) == (4, 4)
    assert log == [(3, 70), "log test 70"]
    play_episodes(collector, None, epoch=1, n_episode=2, logger=logger)
    assert log == [(3, 70), "log test 70"]  # nothing is logged without a step


class Tries(Callback):
    """Does something to the trainer that it is handed."""

    def __init__(self, deed):
        self.deed, self.error = deed, None

    def on_run_start(self, event):
        try:
            self.deed(event.trainer)
        except Exception as error:
            self.error = error


DEEDS = {
    "set trainer.max_epoch": lambda trainer: setattr(trainer, "max_epoch", 9),
    "set trainer.stop_fn": lambda trainer: setattr(trainer, "stop_fn", None),
    **{f"call trainer.{name}()": lambda trainer, name=name: getattr(trainer, name)() for name in sorted(CHANGING)},
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_callback_cannot_change_the_run_through_the_trainer_it_is_handed(deed):
    callback = Tries(DEEDS[deed])
    trainer = build(max_epoch=0, callbacks=[callback])
    trainer.run()
    assert isinstance(callback.error, AttributeError)
    assert f"cannot {deed}" in str(callback.error)
    assert trainer.max_epoch == 0


def test_a_callback_reads_the_trainer_it_is_handed_and_saves_it(folder):
    seen = []

    class Reads(Callback):
        def on_run_start(self, event):
            self.trainer = event.trainer

        def on_epoch_end(self, event):
            self.trainer.history.__getitem__(-1)
            for change in ("append", "clear", "pop"):
                assert not hasattr(self.trainer.history, change)
                assert not hasattr(self.trainer.seconds, change)
            seen.append((self.trainer.env_step, self.trainer.policy, self.trainer.info().gradient_step))

    trainer = build(callbacks=[Reads(), CheckpointCallback(folder / "points")])
    trainer.run()
    assert seen == [(128, trainer.policy, 4), (256, trainer.policy, 8)]
    again = build(max_epoch=3)
    restore_trainer(again, folder / "points" / f"step_{256:012d}")
    assert again.env_step == 256


def test_every_public_trainer_method_is_known_to_change_the_run_or_not():
    """A new one must be put into `TrainerView.CHANGES`, or into the list of this test."""
    assert TrainerView.CHANGES == CHANGING
    for kind in (BaseTrainer, OnpolicyTrainer, OffpolicyTrainer, OfflineTrainer):
        methods = {name for name, part in inspect.getmembers(kind, callable) if not inspect.isclass(part)}
        public = {name for name in methods if not name.startswith("_")}
        assert public <= CHANGING | READING | FOR_CALLBACKS
