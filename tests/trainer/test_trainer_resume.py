"""Exact resume: N steps, a new process and N more are 2N steps, to the last bit; kills with SIGKILL included."""

import os
import random
import shutil
import time

import gymnasium as gym
import pytest
from kill_tools import KINDS, MORE_KINDS, bits_of, run_kind, work_on
from parts import fast_if
from scenario_tools import trainer_of
from trainer_tools import config_for, digest, learned, records_of

from lockstep import Policy
from lockstep.state.checkpoint import read_checkpoint
from lockstep.tracking import RunFolder
from lockstep.trainer import restore_trainer, save_trainer
from lockstep.trainer.callbacks import EarlyStop

NUM_KILLS = int(os.environ.get("NUM_KILLS", "50"))
MANY = [pytest.param(kind, NUM_KILLS, marks=pytest.mark.faults) for kind in KINDS]
EPOCH = 128
HALF, WHOLE = 2 * EPOCH, 4 * EPOCH


ONE_OF_A_FAMILY = ("on-policy", "prioritised", "offline", "recurrent", "temperature")
"""kinds of runs whose state is of different parts; the others go on in a new process in the long tests"""


@pytest.mark.parametrize(
    "kind",
    [
        *fast_if(ONE_OF_A_FAMILY.__contains__, KINDS),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in MORE_KINDS),
    ],
)
def test_n_and_a_new_process_and_n_are_2n_to_the_last_bit(kind, processes, folder):
    """Weights, optimizer, normalisers, random streams, environments, counters and records."""
    whole = bits_of(run_kind(folder / "whole", kind, WHOLE))
    half = run_kind(folder / "halves", kind, HALF)
    assert half.gradient_step > 0
    assert bits_of(half) != whole
    process, answers = started(processes, folder / "halves", kind, WHOLE)
    assert answers.get() == whole
    process.join()
    assert records_of(folder / "halves") == records_of(folder / "whole")
    assert state_of(folder / "halves") == state_of(folder / "whole")


def state_of(folder):
    """Hashes of the parts of the newest checkpoint, wall times left out."""
    folders = read_checkpoint(RunFolder.open(folder).newest_checkpoint())
    state = {**folders["trainer"].pop("state"), "history": folders.pop("history")}
    timed = ("collect_time", "env_time", "act_time", "train_time", "stage_seconds", "timing", "update_speed", "seconds")

    def kept(tree):
        if isinstance(tree, dict):
            return {key: kept(part) for key, part in tree.items() if key not in timed}
        return [kept(part) for part in tree] if isinstance(tree, list) else tree

    names = ("counters", "best", "last_test", "collected", "updates", "history", "callbacks")
    parts = folders | {name: kept(state[name]) for name in names}
    return {name: digest(part) for name, part in parts.items()}


@pytest.mark.parametrize("kind, number", [("on-policy", 4), *MANY])
@pytest.mark.long
def test_kills_at_random_moments_change_no_bit_and_no_record(kind, number, processes, folder):
    """Every other kill waits for a new checkpoint first, so that the run gets on; the others come at any time. A run
    that reaches its end meanwhile is compared, and another begins.
    """
    chance = random.Random(kind)
    total = 40 * EPOCH
    expected = bits_of(run_kind(folder / "whole", kind, total))
    place, kills, furthest = folder / "killed", 0, 0

    def finished(answers):
        assert answers.get() == expected
        assert records_of(place) == records_of(folder / "whole")
        shutil.rmtree(place)

    while kills < number:
        process, answers = started(processes, place, kind, total)
        if kills % 2:
            before = newest_step(place)
            while process.is_alive() and newest_step(place) <= before:
                time.sleep(0.002)
            time.sleep(chance.uniform(0.0, 0.05))
        else:
            time.sleep(chance.uniform(0.0, 0.4))
        process.kill()
        process.join()
        if process.exitcode == 0:
            finished(answers)
            continue
        assert process.exitcode == -9
        kills, furthest = kills + 1, max(furthest, newest_step(place))
    assert furthest > number // 5 * EPOCH - EPOCH
    process, answers = started(processes, place, kind, total)
    process.join()
    finished(answers)


def started(processes, place, kind, total):
    answers = processes.SimpleQueue()
    process = processes.Process(target=work_on, args=(str(place), kind, total, answers))
    process.start()
    return process, answers


def newest_step(place):
    return max((int(path.name[5:]) for path in (place / "checkpoints").glob("step_*")), default=0)


def test_resuming_a_finished_run_trains_nothing_and_reports_its_result(folder):
    first = run_kind(folder / "run", "on-policy", HALF)
    before = records_of(folder / "run")
    trainer = run_kind(folder / "run", "on-policy", HALF)
    assert (trainer.env_step, trainer.stop_reason, len(trainer.history)) == (HALF, "max_epoch", 2)
    assert trainer.best_stats.returns.tolist() == first.best_stats.returns.tolist()
    assert trainer.last_test.returns.tolist() == first.last_test.returns.tolist()
    assert all(trainer.seconds[name] == first.seconds[name] > 0 for name in ("collect", "update", "test"))
    assert records_of(folder / "run") == before


def test_after_a_reset_a_restored_trainer_begins_a_new_run(folder):
    trainer = config_for(total_steps=HALF).build_trainer()
    next(trainer)
    path = save_trainer(trainer, folder / "checkpoint")
    restored = config_for(total_steps=HALF).build_trainer()
    restore_trainer(restored, path)
    assert restored.env_step == 128
    restored.reset()
    assert [stats.epoch for stats in restored] == [1, 2]
    restore_trainer(restored, path)
    assert [stats.epoch for stats in restored] == [2]


def test_callbacks_of_one_class_each_get_their_own_state_back(folder):
    def build():
        callbacks = [EarlyStop(patience=100), EarlyStop(patience=100)]
        return trainer_of("on", max_epoch=1, callbacks=callbacks), *callbacks

    trainer, patient, hasty = build()
    trainer.run()
    patient.num_without_best, hasty.num_without_best = 3, 8
    path = save_trainer(trainer, folder / "checkpoint")
    other, patient, hasty = build()
    restore_trainer(other, path)
    assert (patient.num_without_best, hasty.num_without_best) == (3, 8)


def test_a_policy_alone_is_no_run_and_a_run_holds_its_policy(folder):
    trainer = config_for().build_trainer()
    next(trainer)
    trainer.policy.save_to_path(folder / "policy")
    with pytest.raises(ValueError, match="holds a policy only, not a whole run"):
        restore_trainer(trainer, folder / "policy")
    save_trainer(trainer, folder / "run")
    for path in (folder / "policy", folder / "run"):
        policy = Policy.from_checkpoint(path)
        assert digest(policy.get_state()) == learned(trainer)
        assert policy.observation_space == trainer.policy.observation_space


def test_an_unnamed_environment_can_be_trained_on_and_its_policy_read(folder):
    trainer = config_for(env=lambda: gym.make("CartPole-v1")).build_trainer()
    next(trainer)
    path = save_trainer(trainer, folder / "run")
    policy = Policy.from_checkpoint(path)
    assert digest(policy.get_state()) == learned(trainer)
    assert policy.config.env == "<lambda>"
