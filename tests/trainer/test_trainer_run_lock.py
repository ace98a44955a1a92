"""One process at a time trains a run: a second is refused, one that slept ends with an error, reading stays free."""

import os
import shutil
import signal

import pytest
from parts import fast_if
from scenario_tools import config_of
from trainer_tools import At, digest, records_of

from lockstep import load_policy
from lockstep.runs.run import prepare_resume, prepare_run, resume
from lockstep.state.checkpoint import verify_checkpoint
from lockstep.tracking import RunFolder, RunLockError, read_metrics
from lockstep.trainer import Callback


class Pause(Callback):
    """Tells that an epoch has ended, and waits for a word to go on."""

    def __init__(self, epoch, told, word):
        self.epoch, self.told, self.word = epoch, told, word

    def on_epoch_end(self, event):
        if event.epoch == self.epoch:
            self.told.set()
            self.word.wait()


def train(folder, told, word, answers):
    """In another process."""
    run = prepare_run(config_of("on"), folder, callbacks=[Pause(2, told, word)])
    try:
        run.finish()
        answers.put("")
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


@pytest.fixture
def other(processes, folder):
    """A process that has trained two of three epochs, what makes it go on, what it says at its end, and its run."""
    told, word, answers = processes.Event(), processes.Event(), processes.Queue()
    process = processes.Process(target=train, args=(folder / "runs", told, word, answers))
    process.start()
    told.wait()
    (path,) = (folder / "runs").iterdir()
    yield process, word, answers, path
    process.kill()
    process.join()


def files_of(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.faults
def test_a_second_trainer_is_refused_and_reading_stays_free(other, folder):
    process, word, answers, path = other
    before = files_of(path)
    with pytest.raises(RunLockError, match=rf"trained by process {process.pid} on .*--take-over"):
        resume(path, total_steps=96)
    assert files_of(path) == before
    load_policy(path)
    read_metrics(path)
    assert prepare_resume(path).step == 32
    word.set()
    assert answers.get() == ""
    process.join()
    assert not (path / "lock.json").exists()
    whole = prepare_run(config_of("on"), folder / "whole").finish()
    assert records_of(path) == records_of(whole.path)


@pytest.mark.faults
def test_a_run_that_was_killed_is_gone_on_with_at_once(other):
    process, _, _, path = other
    process.kill()
    process.join()
    assert (path / "lock.json").exists()
    assert resume(path).info.train_step == 48


@pytest.mark.faults
def test_a_process_that_slept_through_a_takeover_ends_without_writing(other, folder):
    process, word, answers, path = other
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(RunLockError, match="alive"):
        resume(path)
    result = resume(path, take_over=True, total_steps=64)
    before = files_of(path)
    os.kill(process.pid, signal.SIGCONT)
    word.set()
    assert "RunLockError" in answers.get()
    process.join()
    assert files_of(path) == before
    whole = prepare_run(config_of("on"), folder / "whole").finish()
    assert digest(resume(whole.path, total_steps=64).policy.get_state()) == digest(result.policy.get_state())


@pytest.mark.parametrize("how", ["moved", "deleted"])
@pytest.mark.parametrize("kind", fast_if("on".__eq__, ["on", "off"]))
def test_moving_or_deleting_the_folder_of_a_run_ends_the_run(kind, how, folder):
    def away():
        if how == "moved":
            path.rename(folder / "elsewhere")
        else:
            shutil.rmtree(path)

    run = prepare_run(config_of(kind), folder / "runs", callbacks=[At("UpdateEnd", 24, away)])
    path = run.folder.path
    with pytest.raises(RunLockError, match="moved or deleted"):
        run.finish()
    assert not path.exists()
    if how == "moved":
        verify_checkpoint(RunFolder.open(folder / "elsewhere").newest_checkpoint())
        assert resume(folder / "elsewhere").info.train_step == 48
