"""Seeds side by side: the same bits as alone, failures that stay alone, stops, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lockstep import PPOConfig
from lockstep.runs import SeedBegun, SeedEnded, SeedProgress, run_seeds
from lockstep.runs.run import prepare_run
from lockstep.state.checkpoint import read_checkpoint
from lockstep.tracking import RunFolder

LOCK = threading.Lock()  # which no process can send to another


def config(total_steps: int = 512) -> PPOConfig:
    made = PPOConfig().environment("CartPole-v1").training(train_batch_size=128, minibatch_size=64, num_epochs=1)
    made.reporting(total_steps=total_steps, steps_per_epoch=256).evaluation(evaluation_duration=2)
    return made.env_runners(num_envs_per_env_runner=2)


def describe(run, config) -> dict[str, str]:
    """What a seed tells when it begins; seed 1 fails instead."""
    if config.debugging.seed == 1:
        raise ValueError("seed 1 does not want to")
    return {"process": str(os.getpid())}


def weights(path: Path) -> list[bytes]:
    tree = read_checkpoint(RunFolder.open(path).newest_checkpoint())
    return [array.tobytes() for name, part in sorted(tree.items()) if "rl_module" in name for array in arrays(part)]


def arrays(tree) -> list:
    if hasattr(tree, "tobytes"):
        return [tree]
    if hasattr(tree, "numpy"):
        return [tree.numpy()]
    return [array for _, part in sorted(tree.items()) for array in arrays(part)] if isinstance(tree, dict) else []


@pytest.mark.long
def test_seeds_keep_their_bits_side_by_side_and_fail_alone(tmp_path: Path) -> None:
    events = list(run_seeds(config(), [1, 2, 3], jobs=2, root=tmp_path / "runs", describe=describe))
    ended = {event.seed: event for event in events if isinstance(event, SeedEnded)}
    assert ended[1].error == "ValueError: seed 1 does not want to"
    assert ended[1].path is not None
    assert "_s1_" in ended[1].path.name
    assert (ended[2].error, ended[3].error) == ("", "")
    begun = {event.seed: event for event in events if isinstance(event, SeedBegun)}
    assert set(begun) == {2, 3}
    assert begun[2].path == ended[2].path
    assert len({event.facts["process"] for event in begun.values()} | {str(os.getpid())}) == 3
    told = [event for event in events if isinstance(event, SeedProgress) and event.seed == 2]
    assert [event.line.split(" steps")[0].strip() for event in told if event.line] == ["0/512", "256/512", "512/512"]
    assert (told[-1].progress.step, told[-1].progress.total) == (512, 512)
    assert told[-1].progress.score == RunFolder.open(ended[2].path).read_summary()["final_return"]
    alone = prepare_run(config().debugging(seed=2), tmp_path / "alone").finish()
    assert weights(ended[2].path) == weights(alone.path) != weights(ended[3].path)
    assert len(weights(alone.path)) > 0


@pytest.mark.faults
def test_a_stop_ends_runs_where_they_can_be_resumed(tmp_path: Path) -> None:
    far: list[int] = []
    ended = []
    for event in run_seeds(config(10**7), [0, 2, 3], jobs=2, root=tmp_path, wants_stop=lambda: bool(far)):
        if isinstance(event, SeedProgress) and event.progress.step > 256:
            far.append(event.seed)
        if isinstance(event, SeedEnded):
            ended.append(event)
    assert {event.seed for event in ended} <= {0, 2}
    for event in ended:
        assert event.error == ""
        folder = RunFolder.open(event.path)
        assert folder.read_summary()["stop_reason"] == "interrupted"
        assert folder.newest_checkpoint() is not None


@pytest.mark.long
def test_an_iterator_that_is_closed_ends_its_processes(tmp_path: Path) -> None:
    events = run_seeds(config(10**7), [2], jobs=1, root=tmp_path, describe=describe)
    process = int(next(event for event in events if isinstance(event, SeedBegun)).facts["process"])
    os.kill(process, 0)
    events.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.long
def test_a_process_that_is_killed_is_a_failure(tmp_path: Path) -> None:
    events = []
    for event in run_seeds(config(10**7), [2], root=tmp_path, describe=describe):
        events.append(event)
        if isinstance(event, SeedBegun):
            os.kill(int(event.facts["process"]), signal.SIGKILL)
    assert events[-1] == SeedEnded(2, events[0].path, "its process was killed")


PARENT = """
import sys
import threading
from test_trainer_seeds import config, describe
from lockstep.trainer import SeedBegun, run_seeds
if __name__ == "__main__":
    for event in run_seeds(config(10**7), [2], root=sys.argv[1], describe=describe):
        if isinstance(event, SeedBegun):
            print(event.facts["process"], flush=True)
"""


@pytest.mark.faults
def test_a_run_ends_cleanly_when_the_process_above_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        process = int(parent.stdout.readline())
        parent.kill()
    while Path(f"/proc/{process}").exists():
        time.sleep(0.1)
    (run,) = (tmp_path / "runs").iterdir()
    assert RunFolder.open(run).read_summary()["stop_reason"] == "interrupted"


@pytest.mark.parametrize(
    ("change", "jobs", "message"),
    [
        (lambda made: made.learners(num_learners=2), 2, "not allowed with num_learners"),
        (lambda made: made.env_runners(num_env_runners=2), 2, "not allowed with num_learners or num_env_runners"),
        (
            lambda made: made.environment(lambda options: LOCK),
            2,
            "cannot be sent to another process",
        ),
        (lambda made: made, 0, "jobs=0 is not allowed"),
    ],
)
def test_what_cannot_run_side_by_side_is_refused(tmp_path: Path, change, jobs, message) -> None:
    with pytest.raises(ValueError, match=message):
        next(run_seeds(change(config()), [0], jobs=jobs, root=tmp_path))
    assert not list(tmp_path.iterdir())
