"""Runs of every kind that is resumed bit by bit, small, in a folder; also in a process that may be killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from algorithm_cases import FAST, FROM_RETURNS, NAMES, OFF_POLICY, OFFLINE, takes
from gymnasium import spaces
from trainer_tools import collected, config_for, digest, learned

from lockstep.replay import HERVectorReplayBuffer
from lockstep.tracking import RunFolder
from lockstep.trainer import build_trainer, restore_trainer

NUM_BITS = 3
LSTM = {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 8}
UNIFORM = {"replay": {"prioritized": False, "n_step": 1}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "on-policy": ("ppo", {}),
    "recurrent": ("ppo", {"rl_module": {"model_config": LSTM}}),
    "uniform": ("dqn", UNIFORM),
    "prioritised": ("dqn", {"replay": {"n_step": 1}}),
    "n-step": ("dqn", {"replay": {"prioritized": False, "n_step": 3}}),
    "hindsight": ("dqn", UNIFORM),
    "temperature": ("sac", UNIFORM),
    "delayed policy": ("td3", {}),
    "offline": (FROM_RETURNS, {}),
    "offline pass after pass": ("bc", {"offline_data": {"columns": ("obs", "actions")}}),
}
ONE_ENV = {"env_runners": {"num_envs_per_env_runner": 1}}
SEQUENCES = {
    "rl_module": {"model_config": LSTM},
    "replay": {"sequence_length": 4, "burn_in": 2, "prioritized": True, "n_step": 2},
}
OF_DATA = next(name for name in OFFLINE if name in FAST)
OTHERS = [name for name in NAMES if name not in {*(algorithm for algorithm, _ in KINDS.values()), OF_DATA}]
"""algorithms that no kind of run stands for"""
MORE_KINDS = {
    "one environment": ("ppo", ONE_ENV),
    "intrinsic rewards": ("ppo", {"training": {"intrinsic_reward": "rnd"}}),
    "intrinsic rewards, replay": ("dqn", {**UNIFORM, "training": {"intrinsic_reward": "rnd"}}),
    "sequences": ("dqn", SEQUENCES),
    "offline sequences": (OF_DATA, {"rl_module": {"model_config": LSTM}}),
    **{name: (name, UNIFORM if name in OFF_POLICY and takes(name, "box") else {}) for name in OTHERS},
}


class BitFlip(gym.Env):
    """Flip one of three bits a step until they are as asked; at most six steps. It tells its state."""

    observation_space = spaces.Dict(
        {name: spaces.Box(0.0, 1.0, (NUM_BITS,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Discrete(NUM_BITS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, NUM_BITS)).astype(np.float32)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.bits[action] = 1.0 - self.bits[action]
        self.count += 1
        reward = float(reached(self.bits, self.goal))
        return self._obs(), reward, reward == 0.0, self.count == 6, {}

    def _obs(self) -> dict[str, np.ndarray]:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}

    def get_env_state(self) -> dict[str, Any]:
        return {"bits": self.bits.copy(), "goal": self.goal.copy(), "count": self.count}

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.bits, self.goal, self.count = np.array(state["bits"]), np.array(state["goal"]), state["count"]


def reached(achieved: Any, desired: Any, *_: Any) -> Any:
    """0 where the goal is reached, else -1."""
    return -(np.asarray(achieved) != np.asarray(desired)).any(-1).astype(np.float32)


def run_kind(folder: Path, kind: str, total_steps: int, *, callbacks: Any = (), **more: Any) -> Any:
    """Runs in a folder until `total_steps`, from the newest checkpoint there if there is one; the trainer.

    A run that was killed before its first checkpoint cannot be resumed: it begins again in a new folder.
    """
    algorithm, sections = {**KINDS, **MORE_KINDS}[kind]
    if folder.exists() and RunFolder.open(folder).newest_checkpoint() is None:
        shutil.rmtree(folder)
    goals = kind == "hindsight"
    env: Any = BitFlip if goals else None
    config = config_for(algorithm, env, total_steps=total_steps, **sections, **more)
    resume = (folder / "config.json").exists()
    if not resume:
        made = RunFolder.create(folder.parent, algo=algorithm, env="a task", seed=3, config={})
        made.path.rename(folder)
    run = RunFolder.open(folder)
    trainer: Any = build_trainer(config, folder=run, resume=resume, callbacks=callbacks)
    if goals:
        trainer.collector.buffer = HERVectorReplayBuffer(200, 4, reached, seed=5)
        trainer.buffer = trainer.collector.buffer
    newest = run.newest_checkpoint()
    if newest is not None:
        restore_trainer(trainer, newest)
    trainer.run()
    return trainer


def bits_of(trainer: Any) -> dict[str, str]:
    """Hashes of weights, optimizers and random state; of environments and their streams; of the replay buffer, or of
    where drawing from offline data stands.
    """
    replay = digest(trainer.buffer.get_state()) if trainer.policy.config.is_off_policy else ""
    if trainer.policy.config.is_offline:
        replay = digest(trainer.own_folders())
    return {"learner": learned(trainer), "collectors": collected(trainer), "replay": replay}


def work_on(folder: str, kind: str, total_steps: int, answers: Any) -> None:
    """In another process."""
    torch.set_num_threads(1)
    answers.put(bits_of(run_kind(Path(folder), kind, total_steps)))
