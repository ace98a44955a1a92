"""Which runs are compiled by default: decided from the plan, kept by the run, the same whatever an earlier run left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep import ALGORITHMS, DQNConfig, PPOConfig
from lockstep.algorithms import SACConfig
from lockstep.learner import Learner
from lockstep.learner.compile.choice import compiling_pays
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.runs.run import Run, prepare_resume, prepare_run
from lockstep.tracking.logger import torch_param_hash

NOT_COMPILED = next(config for config in ALGORITHMS if any(rule.option == "framework.compile" for rule in config.rules))
"""The algorithm that refuses to be compiled."""


def ppo(total_steps, **training):
    training = {"train_batch_size": 1024, "minibatch_size": 256, "num_epochs": 4} | training
    return PPOConfig().environment("CartPole-v1").training(**training).reporting(total_steps=total_steps)


def off_policy(config, env, total_steps):
    config.environment(env).env_runners(num_envs_per_env_runner=1)
    return config.reporting(total_steps=total_steps, loggers=[])


class OwnDQNConfig(DQNConfig):
    """With a learner that may update targets in another way than `after_gradient_step`; it never steps here."""

    learner_class = Learner


DECISIONS = {
    "PPO, 1,000,000 steps": (ppo(1_000_000), False),
    "PPO, 5,000,000 steps": (ppo(5_000_000), True),
    "DQN, 100,000 steps": (off_policy(DQNConfig(), "CartPole-v1", 100_000), False),
    "DQN, 1,000,000 steps": (off_policy(DQNConfig(), "CartPole-v1", 1_000_000), True),
    "SAC, 5,000 steps": (off_policy(SACConfig(), "Pendulum-v1", 5_000), False),
    "SAC, 20,000 steps": (off_policy(SACConfig(), "Pendulum-v1", 20_000), True),
    "asked for": (ppo(2_048).framework(compile=True), True),
    "refused": (ppo(5_000_000).framework(compile=False), False),
    "with memory": (ppo(50_000_000).rl_module(model_config={"recurrent": "lstm"}), False),
    "another optimizer": (ppo(50_000_000, optimizer="adamw"), False),
    "a learner for which compiling is refused": (
        off_policy(OwnDQNConfig(), "CartPole-v1", 1_000_000),
        False,
    ),
    "an algorithm that is not compiled": (
        NOT_COMPILED().environment("CartPole-v1").reporting(total_steps=50_000_000, loggers=[]),
        False,
    ),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_the_planned_work_decides_whether_a_run_is_compiled(name):
    config, expected = DECISIONS[name]
    asked = config.framework.compile
    trainer = config.build_trainer()
    assert trainer.policy.config.framework.compile is expected
    assert (trainer.policy.learner_group.learner.compiled is not None) == expected
    assert config.framework.compile == asked  # the user's own is as it was
    trainer.close()


@pytest.mark.parametrize("compile", [False, "auto", True])
@pytest.mark.parametrize("env", ["CartPole-v1", "mpe2.simple_spread_v3"])
def test_the_module_that_a_user_hands_in_is_the_one_that_is_trained(env, compile):
    config = PPOConfig().environment(env).framework(compile=compile)
    own = config.with_agents().build_learner().module[DEFAULT_MODULE_ID]
    trainer = config.rl_module(rl_module_spec=own).build_trainer()
    assert trainer.policy.learner_group.learner.module[DEFAULT_MODULE_ID] is own
    trainer.close()


def test_more_steps_or_larger_networks_never_speak_against_compiling():
    parameters = [torch.nn.Parameter(torch.zeros(64, 64)) for _ in range(6)]
    by_steps = [compiling_pays(steps, 64.0 * steps, parameters) for steps in (0, 10**4, 10**5, 10**6)]
    assert by_steps == sorted(by_steps)
    assert (by_steps[0], by_steps[-1]) == (False, True)
    wide = [torch.nn.Parameter(torch.zeros(512, 512)) for _ in range(6)]
    assert compiling_pays(10**4, 256.0 * 10**4, wide)


def test_a_learner_that_nobody_asks_steps_eagerly():
    assert ppo(5_000_000).build_learner_group().learner.compiled is None


def settings_in(run: Path) -> dict[str, object]:
    return json.loads((run / "config.json").read_text())["config"]["framework"]


def test_a_run_keeps_its_decision_when_it_is_resumed_for_longer(tmp_path):
    config = ppo(2_048).reporting(steps_per_epoch=1_024)
    path = prepare_run(config, tmp_path).finish().path
    assert settings_in(path)["compile"] is False
    for given in (None, config):
        resumption = prepare_resume(path, config=given, total_steps=100_000_000)
        assert resumption.config.framework.compile is False
        assert "framework.compile" not in resumption.changes


def test_loggers_begin_with_the_decision(tmp_path):
    run = prepare_run(ppo(2_048).reporting(loggers=["wandb"]), tmp_path)
    assert run.trainer.logger.config["framework"]["compile"] is False
    run.trainer.close()


def test_without_a_compiler_a_run_is_eager_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.warns(RuntimeWarning, match="no-compiler.*compiling needs one") as found:
        result = lockstep.train(ppo(2_048).framework(compile=True), root=tmp_path)
    assert sum("no-compiler" in str(warning.message) for warning in found) == 1
    assert settings_in(result.path)["compile"] is False


def test_a_run_that_is_resumed_without_a_compiler_is_eager_from_then_on(tmp_path, monkeypatch):
    path = prepare_run(ppo(2_048).reporting(steps_per_epoch=1_024), tmp_path).finish().path
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    resumption = prepare_resume(path, settings={"framework.compile": True}, total_steps=4_096)
    with pytest.warns(RuntimeWarning, match="no-compiler"):
        resumption.build().trainer.close()
    assert settings_in(path)["compile"] is False


@pytest.mark.long
def test_a_run_compiled_by_default_resumes_equally_without_kept_code(tmp_path, monkeypatch):
    config = ppo(5_000_000).reporting(steps_per_epoch=2_048).evaluation(evaluation_interval=0)

    def train(run: Run, num_epochs: int) -> str:
        for epoch in run.trainer:
            if epoch.epoch == num_epochs:
                break
        run.trainer.close()
        assert run.trainer.policy.learner_group.learner.compiled is not None
        return torch_param_hash(run.trainer.policy.acting[DEFAULT_MODULE_ID].module)

    undisturbed = train(prepare_run(config, tmp_path), num_epochs=4)
    stopped = prepare_run(config, tmp_path)
    train(stopped, num_epochs=2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    resumed = prepare_resume(stopped.folder.path).build()
    assert train(resumed, num_epochs=4) == undisturbed


@pytest.mark.long
def test_runs_that_begin_together_compile_once(tmp_path):
    """Processes with other seeds, and a compiler that counts its calls."""
    real = subprocess.run(["which", "g++"], capture_output=True, text=True, check=True).stdout.strip()
    calls, compiler = tmp_path / "calls", tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo >> {calls};; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    program = (
        "import sys; from lockstep import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1').framework(compile=True).debugging(seed=int(sys.argv[1]))\n"
        "config.reporting(total_steps=2_048, loggers=[]).build_trainer().run()\n"
    )

    def num_calls(home: Path, seeds: range) -> int:
        calls.write_text("")
        env = {**os.environ, "CXX": str(compiler)}
        env |= {"XDG_CACHE_HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
        runs = [subprocess.Popen([sys.executable, "-c", program, str(seed)], env=env) for seed in seeds]
        assert [run.wait() for run in runs] == [0] * len(seeds)
        return len(calls.read_text().splitlines())

    alone, together = num_calls(tmp_path / "alone", range(1)), num_calls(tmp_path / "together", range(2))
    assert together == alone > 0
    assert num_calls(tmp_path / "together", range(2, 3)) == 0  # kept
    assert not list(tmp_path.glob("*/lockstep/**/*.lock"))
