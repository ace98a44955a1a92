"""Runs with classes and functions of the running script: what their folder notes, and who goes on with them."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from warm import run_python

import lockstep
from lockstep.cli import main
from lockstep.runs.run import load_policy, resume
from lockstep.state.trust import NotHandedInError, handed_in

OBJECTS = """
import gymnasium as gym
import numpy as np
import torch
import lockstep
from lockstep.algorithms import PPOConfig
from lockstep.algorithms.ppo import PPOLearner
from lockstep.trainer import Callback

class Count(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, self.steps / 10, np.float32), float(action), self.steps >= 10, False, {}

    def get_env_state(self):
        return {"steps": self.steps}

    def set_env_state(self, state):
        self.steps = state["steps"]

class Encoder(torch.nn.Module):
    def __init__(self, observation_space):
        super().__init__()
        self.net, self.output_size = torch.nn.Linear(2, 8), 8

    def forward(self, obs):
        return self.net(obs)

class OwnLearner(PPOLearner):
    pass

class Watch(Callback):
    def on_event(self, event):
        return None

def rate(step):
    return 1e-3

def config(total_steps, full=True):
    config = PPOConfig().environment(Count).debugging(seed=3).evaluation(evaluation_duration=1)
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    config.reporting(total_steps=total_steps, steps_per_epoch=64)
    if full:
        config.training(learner_class=OwnLearner, lr=rate, optimizer=torch.optim.SGD)
        config.callbacks(Watch).rl_module(model_config={"encoder": Encoder})
    return config

def weights(policy):
    return [value.tolist() for value in policy.module.state_dict().values()]
"""
TRAINS = """
if __name__ == "__main__":
    full = lockstep.train(config(128), root="full")
    small = lockstep.train(config(64, full=False), root="small")
    forked = config(64, full=False).env_runners(vectorize_mode="async", num_envs_per_env_runner=2)
    lockstep.train(forked, root="workers")
    whole = lockstep.train(config(256), root="whole")
    resumed = lockstep.resume(full.path, config=config(256))
    assert weights(resumed.policy) == weights(whole.policy)
    assert weights(resumed.policy) != weights(full.policy)
"""
RESUMES = """
import sys
if __name__ == "__main__":
    whole, resumed = (weights(lockstep.resume(path, config=config(320)).policy) for path in sys.argv[1:])
    assert whole == resumed
"""


def run_script(folder, name, text, *arguments):
    file = folder / name
    file.write_text(text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
    done = run_python([file, *arguments], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs of a script, by the name of their root; their environment, networks and others are its classes."""
    folder = tmp_path_factory.mktemp("script")
    run_script(folder, "train_it.py", OBJECTS + TRAINS)
    return {name: next((folder / name).iterdir()) for name in ("full", "small", "workers", "whole")}


def test_a_run_notes_the_objects_of_its_script_with_their_source(runs):
    config = json.loads((runs["full"] / "config.json").read_text())["config"]
    sources = config["script"]
    assert sorted(sources) == [f"__main__:{name}" for name in ("Count", "Encoder", "OwnLearner", "Watch", "rate")]
    assert sources["__main__:rate"]["text"] == "def rate(step):\n    return 1e-3\n"
    assert all(Path(source["file"]).name == "train_it.py" for source in sources.values())
    assert config["environment"]["env"] == {"__import__": "__main__:Count"}


def test_another_script_that_hands_its_objects_in_goes_on_bit_for_bit(runs):
    folder = runs["full"].parents[1]
    run_script(folder, "go_on.py", OBJECTS + RESUMES, runs["whole"], runs["full"])


SEEDS = """
from lockstep.runs import SeedEnded, run_seeds
events = list(run_seeds(config(128), [1], root="seeds"))
(ended,) = [event for event in events if isinstance(event, SeedEnded)]
assert ended.error == "", ended.error
"""


@pytest.mark.long
def test_classes_without_a_file_are_sent_to_the_processes_of_seeds(tmp_path):
    """As in a notebook: the text is executed from the command line, so a process cannot import it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
    done = run_python(["-c", OBJECTS + SEEDS], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "seeds").iterdir()
    assert json.loads((run / "summary.json").read_text())["train_step"] == 128


def fails(call):
    with pytest.raises(NotHandedInError) as caught:
        call()
    return str(caught.value)


REFUSED = {
    "resume": lambda path: fails(lambda: resume(path, total_steps=1024)),
    "load_policy, whose encoder is of the script": lambda path: fails(lambda: load_policy(path)),
}


@pytest.mark.parametrize("reader", REFUSED.values(), ids=REFUSED)
def test_who_must_import_an_object_of_a_script_refuses_and_says_what_to_do(reader, runs):
    error = reader(runs["full"])
    assert "was defined in the script or notebook that wrote it" in error
    assert "go_on.py)" in error or "train_it.py)" in error  # the script that wrote the checkpoint
    assert "lockstep.resume(path, config=...)" in error
    assert "move it to a file of its own" in error


@pytest.mark.parametrize("command", [("resume", "--total-steps", "1024"), ("eval", "--episodes", "1")])
def test_commands_that_need_the_environment_of_a_script_refuse(command, runs, capsys):
    name, *options = command
    before = (runs["small"] / "config.json").read_text()
    assert main([name, str(runs["small"]), *options]) != 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "environment.env" in shown
    assert "Count, which was defined in the script or notebook" in shown
    assert (runs["small"] / "config.json").read_text() == before


def test_a_policy_acts_without_the_environment_of_its_script(runs, tmp_path):
    policy = load_policy(runs["small"])
    policy.save_to_path(tmp_path)
    again = load_policy(tmp_path)
    observation = np.zeros(2, np.float32)
    assert policy.compute_single_action(observation) == again.compute_single_action(observation)
    assert again.config.to_dict() == policy.config.to_dict()
    assert "__main__:Count" in again.config.to_dict()["script"]


def test_a_script_object_is_not_one_of_another_script_by_its_name(runs, monkeypatch):
    script = sys.modules["__main__"]
    monkeypatch.setattr(script, "Count", object, raising=False)
    monkeypatch.setattr(script, "Encoder", object, raising=False)
    fails(lambda: load_policy(runs["full"], trust=True))
    config = load_policy(runs["small"], trust=True).config
    fails(lambda: config.make_envs(1))


def test_objects_that_are_handed_in_take_the_place_of_their_names(runs, monkeypatch):
    script = {"__name__": "__main__"}
    exec(OBJECTS, script)  # as in a notebook
    objects = [script[name] for name in ("Count", "Encoder", "OwnLearner", "Watch", "rate")]
    with handed_in(*objects):
        policy = load_policy(runs["full"])
    assert policy.config.environment.env is script["Count"]
    assert policy.config.training.learner_class is script["OwnLearner"]


def test_a_configuration_of_another_algorithm_is_refused(runs):
    with pytest.raises(ValueError, match=r"config= is for 'a2c'; the run in .* is of 'ppo'"):
        resume(runs["small"], config=lockstep.algorithms.A2CConfig())


def test_options_that_a_run_keeps_are_refused_in_a_configuration_too(runs):
    script = {"__name__": "__main__"}
    exec(OBJECTS, script)  # as in a notebook
    with pytest.raises(ValueError, match=r"debugging.seed=4 \(the run has 3\) cannot be changed"):
        resume(runs["small"], config=script["config"](128, full=False).debugging(seed=4))
