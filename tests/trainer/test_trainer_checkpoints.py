"""What a run's folder keeps: checkpoints of errors apart, the best policy that belongs to a checkpoint, each epoch's
statistics once, and the rest of a checkpoint whose replay buffer is damaged.
"""

import itertools
import math
import os
import shutil
import signal

import pytest
from algorithm_cases import ON_POLICY
from parts import fast_if, one_in
from scenario_tools import KINDS, Paying, config_of, trainer_of
from trainer_tools import At, config_for, digest, learned, records_of

from lockstep import Policy, get_config, load_policy
from lockstep.runs.run import prepare_resume, prepare_run, resume
from lockstep.state.checkpoint import (
    CheckpointError,
    newest_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from lockstep.tracking import JsonlLogger, RunFolder
from lockstep.trainer import Callback, CheckpointCallback, restore_trainer, save_trainer


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def steps_in(path):
    return [int(name.removeprefix("step_")) for name in names_in(path / "checkpoints") if name != "error"]


# -- errors ---


@pytest.mark.parametrize("kind", fast_if("off".__eq__, KINDS))
def test_the_state_at_an_error_is_kept_apart_and_used_only_if_asked(kind, folder):
    whole = prepare_run(config_of(kind), folder / "whole").finish()
    config = config_of(kind).checkpointing(num_to_keep=1)
    broken = prepare_run(config, folder / "broken", callbacks=[At("UpdateEnd", 40, LookupError("motor 3"))])
    with pytest.raises(LookupError):
        broken.finish()
    path = broken.folder.path
    assert names_in(path / "checkpoints") == ["error", "step_000000000032"]
    assert verify_checkpoint(path / "checkpoints" / "error")["metadata"]["stop_reason"] == "error"
    assert broken.folder.newest_checkpoint().name == "step_000000000032"
    copied = shutil.copytree(path, folder / "copied")
    assert prepare_resume(path).step == 32
    assert digest(resume(path).policy.get_state()) == digest(whole.policy.get_state())
    asked = prepare_resume(copied / "checkpoints" / "error")
    assert asked.step == 40
    assert digest(asked.build().finish().policy.get_state()) == digest(whole.policy.get_state())


def test_many_errors_push_out_no_healthy_checkpoint(folder):
    first = prepare_run(config_of("on").checkpointing(num_to_keep=2), folder).finish().path
    for steps in (64, 80, 96):
        with pytest.raises(LookupError):
            resume(first, total_steps=steps, callbacks=[At("UpdateEnd", None, LookupError("again"))])
    assert steps_in(first) == [32, 48]
    for steps in (32, 48):
        verify_checkpoint(first / "checkpoints" / f"step_{steps:012d}")


def test_a_trainer_by_hand_keeps_the_state_at_an_error_apart_too(folder):
    logger = JsonlLogger(folder / "metrics.jsonl")
    saver = CheckpointCallback(folder / "checkpoints", num_to_keep=1)
    trainer = trainer_of("on", logger=logger, callbacks=[saver, At("UpdateEnd", 40, LookupError("broken"))])
    with pytest.raises(LookupError):
        trainer.run()
    assert names_in(folder / "checkpoints") == ["error", "step_000000000032"]
    again = trainer_of("on", logger=JsonlLogger(folder / "metrics.jsonl", resume=True), resume_from_log=True)
    again.reset()
    assert again.env_step == 32, "the log names no checkpoint of an error"


def test_the_newest_checkpoint_is_that_of_the_last_start(folder):
    """A run that goes on from an earlier checkpoint leaves the later ones behind; they are the first to go."""
    path = prepare_run(config_of("on").checkpointing(num_to_keep=3), folder).finish().path
    assert [verify_checkpoint(each)["attempt"] for each in sorted((path / "checkpoints").iterdir())] == [1, 1, 1]
    run = prepare_resume(path / "checkpoints" / "step_000000000016", settings={"training.lr": 0.5}).build()
    next(run.trainer)
    run.trainer.close()
    newest = RunFolder.open(path).newest_checkpoint()
    assert (newest.name, verify_checkpoint(newest)["attempt"]) == ("step_000000000032", 2)
    assert prepare_resume(path).step == 32


# -- the best policy ---


class Growing(Paying):
    """The return of an episode is the number of episodes that its environment has played."""

    pay, episodes = 1.0, 0

    def reset(self, **options):
        self.episodes += 1
        return super().reset(**options)

    def step(self, action):
        obs, _, ended, truncated, info = super().step(action)
        return obs, self.pay * self.episodes, ended, truncated, info

    def get_env_state(self):
        return {"count": self.count, "episodes": self.episodes}

    def set_env_state(self, state):
        self.count, self.episodes = state["count"], state["episodes"]


class Kill(Callback):
    """Kills this process at the end of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, event):
        if event.epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def growing_config(interval):
    config = config_of("on", Growing).training(lr=0.05).reporting(total_steps=96)
    return config.checkpointing(checkpoint_interval=interval)


def train_and_die(folder, interval, epoch):
    """In another process."""
    prepare_run(growing_config(interval), folder, callbacks=[Kill(epoch)]).finish()


def killed_run(processes, folder, interval, epoch):
    process = processes.Process(target=train_and_die, args=(folder, interval, epoch))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (path,) = folder.iterdir()
    return path


def module_of(policy):
    return digest(dict(policy.module.state_dict()))


@pytest.mark.faults
@pytest.mark.parametrize("interval, epoch", [(2, 3), (4, 5)])
def test_the_best_policy_of_a_future_that_was_killed_does_not_outlive_it(
    interval, epoch, processes, folder, monkeypatch
):
    """Each evaluation is the best so far until the kill, none is one afterwards."""
    path = killed_run(processes, folder, interval, epoch)
    killed = module_of(load_policy(path))
    monkeypatch.setattr(Growing, "pay", 0.0)
    result = resume(path, settings={"training.lr": 0.001})
    summary = RunFolder.open(path).read_summary()
    assert summary["best_epoch"] == interval
    best = module_of(load_policy(path))
    assert best != killed
    assert best == module_of(Policy.from_checkpoint(path / "checkpoints" / f"step_{16 * interval:012d}"))
    assert result.info.best_epoch == interval


def test_a_run_resumed_before_its_first_evaluation_has_no_best_policy(folder, monkeypatch):
    config = config_of("on", Growing).evaluation(evaluation_interval=0)
    run = prepare_run(config, folder)
    next(run.trainer)
    run.trainer.policy.save_to_path(run.folder.best_policy)  # as a later evaluation would have done
    run.trainer.close()
    again = prepare_resume(run.folder.path).build()
    assert not run.folder.best_policy.exists()
    again.trainer.close()


def test_a_damaged_best_policy_ends_no_run(folder):
    run = prepare_run(config_of("on"), folder)
    next(run.trainer)
    (run.folder.best_policy / "policy" / "state.json").write_text("{}")
    with pytest.warns(RuntimeWarning, match="not kept in the new checkpoint: damaged checkpoint .*best/policy"):
        next(run.trainer)
    run.trainer.close()
    with pytest.warns(RuntimeWarning):
        assert prepare_resume(run.folder.path).build().finish().info.train_step == 48


# -- history ---


@pytest.mark.parametrize("epochs", fast_if(lambda epochs: epochs < 100, [72, 200]))
def test_checkpoints_write_the_statistics_of_an_epoch_a_few_times_only(epochs, folder):
    """The bytes of all checkpoints grow as the run does, not as its square."""
    trainer = trainer_of("on", max_epoch=epochs, evaluate=False)
    written, before = [0], set()

    def save(*where):
        path = save_trainer(trainer, folder / f"step_{trainer.env_step:012d}")
        files = {file.stat().st_ino: file.stat().st_size for file in (path / "history").glob("*.json")}
        written.append(sum(size for inode, size in files.items() if inode not in before))
        before.update(files)
        assert len(files) <= 1 + 7 * (1 + int(math.log(trainer.epoch, 8)))
        return path

    trainer.save_checkpoint_fn = save
    trainer.run()
    one = len(str(trainer.history[0].get_state()))
    assert sum(written) < epochs * one * 5, "written with each checkpoint it would be 36 times, or 100"
    again = trainer_of("on", max_epoch=epochs, evaluate=False)
    restore_trainer(again, newest_checkpoint(folder))
    assert [stats.get_state() for stats in again.history] == [stats.get_state() for stats in trainer.history]


def test_a_checkpoint_of_0_2_which_holds_the_history_in_its_state_goes_on(folder):
    whole = trainer_of("on")
    whole.run()
    first = trainer_of("on", max_epoch=2)
    first.run()
    save_trainer(first, folder / "new")
    folders = read_checkpoint(folder / "new")
    folders.pop("history")
    folders["trainer"]["state"]["history"] = [stats.get_state() for stats in first.history]
    del folders["trainer"]["state"]["counters"]["learning_resumes_at"]
    again = trainer_of("on")
    restore_trainer(again, write_checkpoint(folder / "old", folders))
    again.run()
    assert learned(again) == learned(whole)
    assert [stats.epoch for stats in again.history] == [1, 2, 3]


# -- a damaged replay buffer ---


def rot(path):
    """Flip a bit of all stored pieces of rows, as a disk does."""
    pieces = sorted(path.glob("checkpoints/step_*/replay/**/*.safetensors"))
    for file in {file.stat().st_ino: file for file in pieces}.values():
        content, before = bytearray(file.read_bytes()), file.stat()
        content[-1] ^= 1
        with file.open("r+b") as opened:
            opened.write(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replay_config(kind):
    if kind == "n-step, prioritised":
        return config_for("dqn", total_steps=384)
    return config_of("off").replay(learning_starts=8)


@pytest.mark.parametrize("kind", fast_if("uniform".__eq__, ["uniform", "n-step, prioritised"]))
def test_a_run_with_damaged_replay_continues_without_it_if_asked(kind, folder):
    config = replay_config(kind)
    total = config.reporting.total_steps
    run = prepare_run(config, folder)
    next(run.trainer)
    next(run.trainer)
    run.trainer.close()
    path, step = run.folder.path, run.trainer.env_step
    rot(path)
    words = r"only its replay buffer is damaged \(replay/.*--drop-damaged-replay"
    with pytest.warns(RuntimeWarning, match="passed over step_"), pytest.raises(ValueError, match=words):
        prepare_resume(path)
    with pytest.raises(CheckpointError, match=r"only its replay buffer is damaged"):
        prepare_resume(path / "checkpoints" / f"step_{step:012d}")
    with pytest.warns(RuntimeWarning, match="continues with an empty one"):
        resumption = prepare_resume(path, drop_damaged_replay=True)
    again = resumption.build()
    assert (again.trainer.env_step, len(again.trainer.buffer)) == (step, 0)
    result = again.finish()
    assert result.info.train_step == total
    starts = config.replay.learning_starts
    assert result.info.gradient_step > run.trainer.gradient_step
    assert again.trainer.learning_resumes_at == step + starts
    verify_checkpoint(RunFolder.open(path).newest_checkpoint())
    assert len(again.trainer.buffer) == min(total - step, config.replay.capacity)


def test_an_intact_replay_is_not_dropped(folder):
    whole = prepare_run(config_of("off"), folder / "whole").finish()
    run = prepare_run(config_of("off"), folder / "halves")
    next(run.trainer)
    run.trainer.close()
    result = resume(run.folder.path, drop_damaged_replay=True)
    assert digest(result.policy.get_state()) == digest(whole.policy.get_state())


def test_a_replay_piece_that_rots_in_a_run_damages_no_later_checkpoint(folder):
    run = prepare_run(config_of("off").checkpointing(num_to_keep=9), folder)
    rotten = At("EpochEnd", 16, lambda: rot(run.folder.path))
    run.trainer.callbacks.append(rotten)
    run.finish()
    paths = sorted((run.folder.path / "checkpoints").iterdir())
    with pytest.raises(CheckpointError):
        verify_checkpoint(paths[0])
    for path in paths[1:]:
        verify_checkpoint(path)


# -- ends that were killed ---


class KillWhenDrawing(Callback):
    """Kills this process where the curve is drawn."""

    def on_run_end(self, event):
        import lockstep.runs.run as module

        def die(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)

        module.plot_runs = die


def train_and_die_drawing(folder):
    """In another process."""
    prepare_run(config_of("on"), folder, callbacks=[KillWhenDrawing()]).finish()


@pytest.mark.faults
def test_a_run_that_is_killed_at_its_curve_gets_one_when_it_is_finished(processes, folder):
    pytest.importorskip("matplotlib")
    process = processes.Process(target=train_and_die_drawing, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (path,) = folder.iterdir()
    assert not (path / "curve.png").exists()
    assert not prepare_resume(path).is_finished
    resume(path)
    assert (path / "curve.png").exists()
    assert prepare_resume(path).is_finished


def test_a_run_of_whole_episodes_killed_after_its_checkpoint_finishes(folder):
    """Whole episodes may bring more steps than one collect has."""
    (algorithm,) = (name for name in ON_POLICY if get_config(name).env_runners.batch_mode == "complete_episodes")
    config = config_for(algorithm, total_steps=16, num_envs=2, training={"train_batch_size": 8})
    whole = prepare_run(config, folder).finish()
    assert whole.info.train_step >= 16 + 8, "beyond its end by more than one collect asks for"
    (whole.path / "summary.json").unlink()
    result = resume(whole.path)
    assert (result.info.train_step, result.info.stop_reason) == (whole.info.train_step, "max_epoch")
    with pytest.raises(ValueError, match=r"total_steps=8 is not allowed; .* steps already"):
        resume(whole.path, total_steps=8)


# -- interrupts ---


class Interrupting(Paying):
    """Raises KeyboardInterrupt in a step, as Ctrl-C in an environment's own loop does."""

    left = math.inf

    def step(self, action):
        Interrupting.left -= 1
        if Interrupting.left < 0:
            Interrupting.left = math.inf
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("at", ["collect", "evaluation"])
@pytest.mark.parametrize("kind", one_in(2, KINDS))
def test_an_interrupt_within_a_step_writes_no_torn_checkpoint(kind, at, folder, monkeypatch):
    """The run goes on from the one before, to the bits of one that was never interrupted."""
    whole = prepare_run(config_of(kind, Interrupting), folder / "whole").finish()
    event = ("CollectEnd", 24) if at == "collect" else ("UpdateEnd", 32)

    def soon():
        monkeypatch.setattr(Interrupting, "left", 3)

    run = prepare_run(config_of(kind, Interrupting), folder / "torn", callbacks=[At(*event, soon)])
    assert run.finish().info.stop_reason == "interrupted"
    monkeypatch.setattr(Interrupting, "left", math.inf)
    assert steps_in(run.folder.path) == [16]
    assert digest(resume(run.folder.path).policy.get_state()) == digest(whole.policy.get_state())
    assert records_of(run.folder.path) == records_of(whole.path)


def test_a_second_ctrl_c_within_an_update_writes_no_checkpoint(folder):
    run = prepare_run(config_of("on"), folder)
    plain, calls = run.trainer.policy_update_fn, itertools.count()

    def press_twice(stats):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return plain(stats)

    run.trainer.policy_update_fn = press_twice
    assert run.finish().info.stop_reason == "interrupted"
    assert (run.trainer.env_step, steps_in(run.folder.path)) == (24, [16])
    saver = CheckpointCallback(folder / "by_hand")
    trainer = trainer_of("on", callbacks=[saver])
    plain, calls = trainer.policy_update_fn, itertools.count()
    trainer.policy_update_fn = press_twice
    trainer.run()
    assert names_in(folder / "by_hand") == ["step_000000000016"]
