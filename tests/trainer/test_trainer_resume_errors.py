"""Runs that end inside an epoch, in a hook or before they begin, and go on: nothing is done twice, nothing is lost."""

import pytest
from scenario_tools import KINDS, trainer_of
from trainer_tools import Recorder, collected, learned, records_of

from lockstep.replay import VectorReplayBuffer
from lockstep.state import newest_checkpoint
from lockstep.tracking import JsonlLogger
from lockstep.trainer import Callback, CheckpointCallback, restore_trainer, save_trainer


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


def test_a_resume_that_is_refused_saves_nothing_and_is_refused_again(folder):
    """It wrote a checkpoint of no step, which the log then named to go on from; a second `run` began anew."""

    def trainer(resume, **options):
        logger = JsonlLogger(folder / "metrics.jsonl", resume=resume)
        made = trainer_of("off", logger=logger, resume_from_log=resume, **options)
        made.save_checkpoint_fn = lambda *where: save_trainer(made, folder / f"step_{where[1]}")
        return made

    trainer(False, max_epoch=1).run()
    other, again, log = trainer(True), trainer(True), []
    other.callbacks.append(Recorder(log))
    other.train_collector.buffer = other.buffer = VectorReplayBuffer(10, other.train_collector.num_envs)
    for _ in range(2):
        with pytest.raises(ValueError, match="this one has size=10 with buffer_num=2"):
            other.run()
    assert log == []
    assert [path.name for path in folder.glob("step_*")] == ["step_16"]
    assert [stats.epoch for stats in again] == [2, 3]


@pytest.mark.parametrize("where", ["save_best_fn", "EvaluationEnd", "compute_score_fn"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_first_evaluation_that_failed_in_a_hook_is_made_again_and_its_best_policy_saved(kind, where, folder):
    """Its score stayed the best one, and the policy that had it was never saved."""
    saved, left = [], [LookupError("mine")]

    def save(policy):
        if where == "save_best_fn" and left:
            raise left.pop()
        saved.append(policy)

    def score(stats):
        if where == "compute_score_fn" and left:
            raise left.pop()
        return 5.0

    callbacks = [Once("EvaluationEnd", 0, left[0])] if where == "EvaluationEnd" else []
    first = trainer_of(kind, save_best_fn=save, compute_score_fn=score, callbacks=callbacks)
    with pytest.raises(LookupError, match="mine"):
        first.run()
    again = trainer_of(kind, save_best_fn=save, compute_score_fn=score)
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    info = again.run()
    assert saved == [again.policy]
    assert (info.best_score, info.best_epoch, info.test_episode) == (5.0, 0, 2 * (1 + 1 + 3))


def test_gradient_steps_of_a_collect_after_which_a_hook_failed_are_made_after_the_next_one(folder):
    """They were lost: a run that went on made fewer than `update_per_step` for each step."""
    first, again = trainer_of("off", callbacks=[Once("CollectEnd", 24, LookupError("mine"))]), trainer_of("off")
    with pytest.raises(LookupError, match="mine"):
        first.run()
    assert (first.env_step, first.gradient_step) == (24, 2)
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    again.run()
    assert (again.env_step, again.gradient_step) == (48, 6)


def test_a_run_that_fails_at_its_start_raises_that_error_alone(folder):
    """The callback that writes checkpoints had not seen the start, and failed at the end."""
    trainer = trainer_of("on", callbacks=[Once("RunStart", 0, KeyboardInterrupt()), CheckpointCallback(folder)])
    assert trainer.run().stop_reason == "interrupted"
    trainer = trainer_of("on", callbacks=[Once("RunStart", 0, LookupError("mine")), CheckpointCallback(folder)])
    with pytest.raises(LookupError, match="mine") as caught:
        trainer.run()
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("kind", KINDS)
def test_records_held_back_are_the_same_where_a_run_with_a_checkpoint_callback_is_interrupted(kind, folder):
    """They were written before that last checkpoint, and so cut in two where the run went on."""

    def run(name, *callbacks, go_on_from=None):
        path = folder / f"{name}.jsonl"
        logger = JsonlLogger(path, resume=go_on_from is not None, train_interval=40, update_interval=5)
        trainer = trainer_of(kind, logger=logger, callbacks=[*callbacks, CheckpointCallback(folder / name)])
        if go_on_from is not None:
            restore_trainer(trainer, go_on_from)
        trainer.run()
        return [record for record in records_of(path) if '"scope": "save"' not in record]

    straight = run("straight")
    run("again", Once("UpdateEnd", 24, KeyboardInterrupt()))
    assert run("again", go_on_from=newest_checkpoint(folder / "again")) == straight
