"""Full disks, places that cannot be written and environments that break in the middle of a run: the message, what is
left on the disk, and that the run goes on from there to the same bits.
"""

from contextlib import ExitStack

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from kill_tools import bits_of, run_kind
from trainer_tools import At, config_for, records_of

from lockstep.envs.errors import EnvironmentStepError
from lockstep.state.checkpoint import CheckpointError, verify_checkpoint
from lockstep.tracking import RunFolder, read_metrics
from lockstep.trainer import build_trainer, restore_trainer

WHOLE = 512


@pytest.fixture(scope="module")
def expected(shared_folder):
    return bits_of(run_kind(shared_folder / "whole", "on-policy", WHOLE)), records_of(shared_folder / "whole")


def assert_whole(path, checkpoints, error=False):
    """Only these checkpoints, each intact; whole records; nothing half-written."""
    names = ["error"] * error + [f"step_{n:012d}" for n in checkpoints]
    assert sorted(child.name for child in (path / "checkpoints").iterdir()) == names
    for child in (path / "checkpoints").iterdir():
        verify_checkpoint(child)
    assert (path / "metrics.jsonl").read_bytes().endswith(b"\n")
    read_metrics(path)
    assert not [left for left in path.rglob("*") if left.name.startswith(".") or left.name.endswith(".tmp")]


@pytest.mark.parametrize(
    "what, message", [("records", r"cannot log to .*metrics\.jsonl"), ("checkpoint", "cannot write")]
)
def test_a_full_disk_in_mid_run_loses_nothing_that_was_whole(folder, file_size_limit, expected, what, message):
    limits = ExitStack()

    def fill():
        size = 1 << 13 if what == "checkpoint" else (folder / "run" / "metrics.jsonl").stat().st_size + 10
        limits.enter_context(file_size_limit(size))

    with limits, pytest.raises((OSError, CheckpointError), match=message) as caught:
        run_kind(folder / "run", "on-policy", WHOLE, callbacks=[At("UpdateEnd", 320, fill)])
    assert "File too large" in str(caught.value)
    assert type(caught.value) is (CheckpointError if what == "checkpoint" else OSError)
    assert_whole(folder / "run", [128, 256])
    trainer = run_kind(folder / "run", "on-policy", WHOLE)
    assert (bits_of(trainer), records_of(folder / "run")) == expected


class Fragile(CartPoleEnv):
    """Breaks at the given step of all its copies; it tells its state."""

    broken_at, count = None, 0

    def step(self, action):
        Fragile.count += 1
        if Fragile.count == Fragile.broken_at:
            raise RuntimeError("motor 3 is stuck")
        return super().step(action)

    def get_env_state(self):
        return {"state": self.state, "beyond": self.steps_beyond_terminated}

    def set_env_state(self, state):
        self.state, self.steps_beyond_terminated = state["state"], state["beyond"]


def test_an_environment_that_raises_leaves_a_checkpoint_to_go_on_from(folder):
    config = config_for(env=Fragile, total_steps=WHOLE, evaluation={"evaluation_interval": 0})
    run = RunFolder.create(folder, algo="ppo", env="Fragile", seed=3, config=config_for().to_dict())
    Fragile.count, Fragile.broken_at = 0, 330
    trainer = build_trainer(config, folder=run)
    with pytest.raises(EnvironmentStepError, match=r"environment 1 .* raised RuntimeError: motor 3 is stuck") as caught:
        trainer.run()
    assert caught.value.env_index == 329 % 4
    assert caught.value.action in (0, 1)
    assert str(caught.value.__cause__) == "motor 3 is stuck"
    frames, trace = [], caught.value.__cause__.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    assert Fragile.step.__code__ in frames
    assert_whole(run.path, [128, 256], error=True)  # which holds the updates of the epoch that broke
    assert verify_checkpoint(run.error_checkpoint)["metadata"] == {
        "epoch": 3,
        "env_step": 320,
        "gradient_step": 20,
        "stop_reason": "error",
    }

    Fragile.broken_at = None
    again = build_trainer(config, folder=run, resume=True)
    restore_trainer(again, run.newest_checkpoint())
    info = again.run()
    assert (info.stop_reason, info.train_step, info.gradient_step) == ("max_epoch", WHOLE, 32)
    assert [stats.epoch for stats in info.history] == [1, 2, 3, 4]
    steps = [r["data"]["n_collected_steps"] for r in read_metrics(run.path) if r["scope"] == "train"]
    assert sum(steps) == WHOLE
