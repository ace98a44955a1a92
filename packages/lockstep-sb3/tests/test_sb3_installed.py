"""Callbacks, vectors and loggers of an installed Stable-Baselines3 are taken by the models of `lockstep_sb3`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / ".bench/sb3"
"""Environment of `benchmarks/peers/setup_peers.py sb3`."""

PROGRAM = """
import sys
sys.path.append(sys.argv[1])  # at the end: all other packages are those of this environment
import numpy as np
from small_tasks import Copy, Count
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EveryNTimesteps
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnMaxEpisodes, StopTrainingOnRewardThreshold
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from lockstep_sb3 import DQN, PPO
from lockstep_sb3.common.callbacks import CallbackList as OurList
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.vec_env import VecNormalize

class Keeps(BaseCallback):
    def __init__(self):
        super().__init__()
        self.seen, self.events = [], []
    def _on_rollout_end(self):
        self.events.append("rollout_end")
    def _on_step(self):
        self.seen.append((self.num_timesteps, self.locals["actions"].shape, len(self.locals["infos"])))
        self.logger.record("own/steps", self.num_timesteps)
        return True

small = {"net_arch": [8]}
venv = DummyVecEnv([lambda: Monitor(Copy()), lambda: Monitor(Copy())])
keeps, inner = Keeps(), Keeps()
model = PPO("MlpPolicy", venv, n_steps=8, batch_size=16, n_epochs=1, policy_kwargs=small)
model.set_logger(configure(sys.argv[2] + "/logs", ["csv"]))
saves = CheckpointCallback(8, sys.argv[2], "ppo")
model.learn(32, OurList([keeps, CallbackList([EveryNTimesteps(8, inner), saves])]))
assert [step for step, _, _ in keeps.seen] == list(range(2, 34, 2)), keeps.seen
assert keeps.seen[0][1:] == ((2,), 2)
assert keeps.events == ["rollout_end"] * 2
assert [step for step, _, _ in inner.seen] == [8, 16, 24, 32], inner.seen
assert "own/steps" in open(sys.argv[2] + "/logs/progress.csv").readline()
assert len(model.ep_info_buffer) == 2
assert PPO.load(sys.argv[2] + "/ppo_32_steps").num_timesteps == 32

stop = StopTrainingOnMaxEpisodes(2)
dqn = DQN("MlpPolicy", VecNormalize(VecMonitor(DummyVecEnv([Count]))), policy_kwargs=small, learning_starts=2)
dqn.learn(1000, stop)
assert dqn.num_timesteps == 6, dqn.num_timesteps
judge = StopTrainingOnRewardThreshold(6.0)
evaluation = EvalCallback(DummyVecEnv([lambda: Monitor(Count())]), judge, eval_freq=4, verbose=0)
other = PPO("MlpPolicy", DummyVecEnv([lambda: Monitor(Count())]), n_steps=64, policy_kwargs=small).learn(64, evaluation)
assert other.num_timesteps == 4, other.num_timesteps
assert evaluate_policy(other, DummyVecEnv([lambda: Monitor(Count())]), 2) == (6.0, 0.0)
print("done")
"""


@pytest.mark.long
@pytest.mark.skipif(not BENCH.is_dir(), reason="needs `python benchmarks/peers/setup_peers.py sb3`")
def test_parts_of_an_installed_stable_baselines3_are_taken(tmp_path):
    packages = next((BENCH / "lib").glob("python3.*")) / "site-packages"
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(packages), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]
