"""Files from strangers: what they name is not run.

Each case puts the name of an object that would write a marker file into one field of one kind of file, and hands that
file to a function that reads it.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from parts import one_in
from torch import nn
from warm import run_python

import lockstep
from lockstep import Learner, LearnerGroup, Policy, PPOConfig
from lockstep.cli import main
from lockstep.connectors import ClipObs
from lockstep.diagnosis import doctor
from lockstep.modules import MultiRLModule, RLModule
from lockstep.runs.run import load_policy, resume
from lockstep.state import read_checkpoint, write_checkpoint
from lockstep.trainer import Callback, build_trainer
from lockstep.tuning.space import Range, read_space
from lockstep.tuning.study import Search
from lockstep_sb3 import PPO

MARKERS: list[str] = []
"""what has been called, by the functions below"""


def ran(*arguments: object, **options: object) -> None:
    """Would be the shell of a hostile file."""
    MARKERS.append("ran")
    raise RuntimeError("a hostile file has run code")


class NotOfTheKind:
    """A class with the method of a callback, whose constructor would be the shell."""

    def __init__(self, *arguments: object, **options: object) -> None:
        ran()

    def on_event(self, event: object) -> None:
        ran()


class Own(nn.Module):
    """An encoder of the right kind."""

    def __init__(self, space: Any, width: int = 3) -> None:
        super().__init__()
        self.layer, self.output_size = nn.Linear(4, width), width

    def forward(self, obs: Any) -> Any:
        return self.layer(obs)


class Watch(Callback):
    """A callback of the right kind."""


class Pole(gym.Wrapper):
    """An environment of the right kind."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))


def own_encoder(space: Any) -> Own:
    return Own(space)


def own_rate(step: float) -> float:
    return 1e-3


def own_pole(**options: Any) -> Pole:
    return Pole(**options)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """A home folder of the test's own, and no word in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.delenv("LOCKSTEP_TRUST", raising=False)
    MARKERS.clear()


def config_for(**model: Any) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    config.env_runners(num_envs_per_env_runner=2).evaluation(evaluation_interval=0)
    return config.reporting(total_steps=128, steps_per_epoch=64).rl_module(model_config={"hiddens": [8], **model})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run of a stranger, to be copied."""
    return lockstep.train(config_for(), root=tmp_path_factory.mktemp("stranger")).path


NAMES = {
    "a function": f"{__name__}:ran",
    "a class of another kind": f"{__name__}:NotOfTheKind",
    "a class of the system": "subprocess:Popen",
    "a function of the system": "os:system",
    "an attribute through a module of Lockstep": "lockstep.state.trust:importlib.import_module",
    "a function of Lockstep": "lockstep.state.trust:import_object",
}
Change = Callable[[dict[str, Any], Any], None]
"""puts a name into a configuration"""


def at(*path: str, named: bool = True) -> Change:
    """Return what puts a name at a place: in the form of an object, or as plain text."""

    def change(config: dict[str, Any], name: str) -> None:
        tree: Any = config
        for key in path[:-1]:
            tree = tree.setdefault(key, {})
        tree[path[-1]] = {"__import__": name} if named else name

    return change


def each_of(*path: str) -> Change:
    return lambda config, name: at(*path, named=False)(config, [{"__import__": name}])


ENCODER = ("rl_module", "model_config", "encoder")
OVERRIDES = ("rl_module", "algorithm_config_overrides_per_module", "default_policy")
WHEN_LOADED: dict[str, Change] = {
    "encoder as text": at(*ENCODER, named=False),
    "encoder": at(*ENCODER),
    "arguments of an encoder": at("rl_module", "model_config", "encoder_config", "extractor"),
    "module class as text": at("rl_module", "rl_module_spec", named=False),
    "module class": at("rl_module", "rl_module_spec"),
    "optimizer": at("training", "optimizer"),
    "arguments of an optimizer": at("training", "optimizer_kwargs", "foreach"),
    "optimizer of one module": at(*OVERRIDES, "optimizer"),
    "learner": at("training", "learner_class"),
    "settings of a learner": at("training", "learner_config_dict", "anything"),
    "learning rate": at("training", "lr"),
    "coefficient": at("training", "entropy_coeff"),
    "learning rate of one module": at(*OVERRIDES, "lr"),
    "intrinsic reward": at("training", "intrinsic_reward"),
    "learner connector": at("training", "learner_connector"),
    "observation connector": at("env_runners", "env_to_module_connector"),
    "action connector": at("env_runners", "module_to_env_connector"),
    "callback": at("callbacks", "callbacks_class"),
    "one of several callbacks": each_of("callbacks", "callbacks_class"),
    "evaluation function": at("evaluation", "custom_evaluation_function"),
    "settings of evaluation": at("evaluation", "evaluation_config", "environment.env_config"),
    "agents' mapping": at("multi_agent", "policy_mapping_fn"),
    "learning agents": at("multi_agent", "policies_to_train"),
    "reward metric": at("multi_agent", "reward_metric"),
    "arguments of an environment": at("environment", "env_config", "factory"),
    "recorded data": at("offline_data", "input_"),
}
"""fields that are refused when the file is read"""
WHEN_MADE: dict[str, Change] = {
    "environment": at("environment", "env"),
    "environment as text": at("environment", "env", named=False),
}
"""fields that are refused when the environment is made"""


class Reader(NamedTuple):
    """A function that reads a run, and where the run's configuration lies for it."""

    read: Callable[[Path], object]
    where: str
    makes_environments: bool = False
    is_command: bool = False


def in_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the configuration in a run's config.json."""
    info = json.loads((folder / "config.json").read_text())
    change(info["config"])
    (folder / "config.json").write_text(json.dumps(info))


def in_policy(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the configuration in all checkpoints of a run."""
    for manifest in list(folder.glob("*/*/policy/manifest.json")):
        root = manifest.parent.parent
        folders = read_checkpoint(root)
        change(folders["policy"]["state"]["config"])
        shutil.rmtree(root)
        write_checkpoint(root, folders)


def read_pretrained(folder: Path) -> Policy:
    (checkpoint,) = list(folder.glob("checkpoints/*"))[-1:]
    hub = folder / "hub"
    hub.mkdir()
    shutil.copytree(checkpoint, hub / "checkpoint")
    return Policy.from_pretrained(hub)


def checkpoint_of(folder: Path) -> Path:
    return sorted(folder.glob("checkpoints/*"))[-1]


def made(policy: Policy) -> None:
    """Call what makes environments of a policy that was loaded."""
    config = policy.config
    for make in (lambda: config.make_envs(1), config.build_trainer, lambda: build_trainer(config)):
        with pytest.raises(ValueError, match=r"trust=True|is not"):
            make()
    config.make_envs(1)


def command(*words: str) -> Callable[[Path], object]:
    return lambda folder: main([word.format(run=folder) for word in words])


READERS: dict[str, Reader] = {
    "load_policy": Reader(lambda folder: made(load_policy(folder)), "policy", True),
    "Policy.from_checkpoint": Reader(
        lambda folder: made(Policy.from_checkpoint(checkpoint_of(folder))), "policy", True
    ),
    "from_pretrained": Reader(lambda folder: made(read_pretrained(folder)), "policy", True),
    "resume, checkpoint": Reader(lambda folder: resume(folder, total_steps=256), "policy", True),
    "resume, config.json": Reader(lambda folder: resume(folder, total_steps=256), "config", True),
    "lockstep resume": Reader(command("resume", "{run}", "--total-steps=256"), "config", True, True),
    "lockstep eval": Reader(command("eval", "{run}", "--episodes=1"), "policy", True, True),
    "lockstep export": Reader(command("export", "{run}"), "policy", is_command=True),
    "lockstep train --config": Reader(
        command("train", "ppo", "CartPole-v1", "--config={run}/config.json", "--no-check"), "config", is_command=True
    ),
    "lockstep eject --config": Reader(
        command("eject", "ppo", "CartPole-v1", "--config={run}/config.json"), "config", is_command=True
    ),
    "lockstep tune --config": Reader(
        command("tune", "ppo", "CartPole-v1", "--config={run}/config.json", "--trials=1"), "config", is_command=True
    ),
}


def hostile(run: Path, tmp_path: Path, where: str, change: Change, name: str) -> Path:
    """Return a copy of a run with a hostile name."""
    folder = shutil.copytree(run, tmp_path / "run")
    change_all = in_policy if where == "policy" else in_config
    change_all(folder, lambda config: change(config, name))
    return folder


def check_refused(reader: Reader, folder: Path, capfd: Any) -> str:
    """Read a hostile run, and return the words of the error."""
    if reader.is_command:
        capfd.readouterr()
        assert reader.read(folder) in (1, 2)
        words = capfd.readouterr().err
    else:
        with pytest.raises((ValueError, TypeError)) as error:
            reader.read(folder)
        words = str(error.value)
    assert MARKERS == []
    return words


@pytest.mark.parametrize("field", WHEN_LOADED)
@pytest.mark.parametrize("kind", NAMES)
def test_no_field_of_a_configuration_runs_what_it_names(field, kind):
    """All fields and kinds of names, in the one function that every reader calls with what it has read."""
    data = json.loads(config_for().to_json())
    WHEN_LOADED[field](data, NAMES[kind])
    with pytest.raises((ValueError, TypeError)):
        PPOConfig().update_from_dict(data, file="hostile.json")
    assert MARKERS == []


@pytest.mark.parametrize("field", WHEN_MADE)
@pytest.mark.parametrize("kind", NAMES)
def test_no_environment_of_a_configuration_runs_what_it_names(field, kind):
    data = json.loads(config_for().to_json())
    WHEN_MADE[field](data, NAMES[kind])
    data["environment"]["env_config"] = {"name": f"{__name__}:ran"}
    config = PPOConfig().update_from_dict(data, file="hostile.json")
    for make in (
        lambda: config.make_envs(1),
        lambda: config.copy().make_envs(2),
        config.build_trainer,
        config.build_policy,
        config.with_agents,
        config.find_spaces,
        lambda: config.make_agent_envs(1),
        lambda: PPOConfig().update_from_dict(config.to_dict()).make_envs(1),
    ):
        with pytest.raises(ValueError, match=r"environment\.env in (hostile\.json|the configuration)|is unknown"):
            make()
    assert MARKERS == []


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("field", one_in(3, ["encoder as text", "callback", "learning rate"]))
def test_no_reader_of_a_run_runs_what_its_files_name(reader, field, run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    found = READERS[reader]
    folder = hostile(run, tmp_path, found.where, WHEN_LOADED[field], NAMES["a function"])
    words = check_refused(found, folder, capfd)
    assert "test_trainer_hostile_files:ran" in words
    if field != "callback":  # which is never a function
        assert "trust=True" in words
        assert "--trust" in words


@pytest.mark.parametrize("reader", [name for name, each in READERS.items() if each.makes_environments])
@pytest.mark.parametrize("field", WHEN_MADE)
def test_no_reader_of_a_run_makes_the_environment_that_its_files_name(reader, field, run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    found = READERS[reader]
    folder = hostile(run, tmp_path, found.where, WHEN_MADE[field], NAMES["a function"])
    words = check_refused(found, folder, capfd)
    assert "environment.env" in words


@pytest.mark.parametrize("reader", one_in(2, ["doctor", "export"]))
@pytest.mark.parametrize("field", WHEN_MADE)
def test_who_can_do_without_an_environment_does_not_make_a_hostile_one(reader, field, run, tmp_path, capfd):
    folder = hostile(run, tmp_path, "policy", WHEN_MADE[field], NAMES["a function"])
    if reader == "doctor":
        assert "trust=True" in str(doctor(folder).note)
    else:
        assert main(["export", str(folder), "--format=torch"]) in (0, 1, 2)
    assert MARKERS == []


def test_doctor_says_that_a_hostile_policy_was_not_loaded(run, tmp_path):
    folder = hostile(run, tmp_path, "policy", WHEN_LOADED["encoder as text"], NAMES["a function"])
    assert "trust=True" in str(doctor(folder).note)
    assert MARKERS == []


# -- checkpoints of modules and learners, modules that come ---


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


SPEC_FIELDS = {
    "module class": (("module_class",), NAMES["a class of another kind"]),
    "module class of the system": (("module_class",), "subprocess:Popen"),
    "encoder": (("model_config", "encoder"), NAMES["a function"]),
    "encoder of a free dict": (("model_config", "encoder"), NAMES["a function of Lockstep"]),
}


@pytest.mark.parametrize("field", one_in(2, SPEC_FIELDS))
@pytest.mark.parametrize(
    "reader",
    ["RLModule", "MultiRLModule", "Learner", "LearnerGroup", "add_module", "Policy"],
)
def test_no_spec_of_a_module_runs_what_it_names(reader, field, tmp_path):
    path, name = SPEC_FIELDS[field]
    policy = config_for().build_policy()
    module, target = policy.module, tmp_path / "saved"
    saved = {
        "RLModule": module.save_to_path,
        "MultiRLModule": MultiRLModule({"p0": module}).save_to_path,
        "add_module": module.save_to_path,
        "Learner": policy.learner_group.learner.save_to_path,
        "LearnerGroup": policy.learner_group.save_to_path,
        "Policy": policy.save_to_path,
    }
    folders = read_checkpoint(saved[reader](target))
    for tree in folders.values():
        if "spec" in tree:
            put(tree["spec"], path, name)
            if "free" in field:
                tree["spec"]["model_config_class"] = None
    shutil.rmtree(target)
    write_checkpoint(target, folders)
    several = PPOConfig().multi_agent(policies=["p0"], policy_mapping_fn={"a": "p0"})
    several.environment(observation_space=policy.observation_space, action_space=policy.action_space)
    read = {
        "RLModule": lambda: RLModule.from_checkpoint(target),
        "MultiRLModule": lambda: MultiRLModule.from_checkpoint(target),
        "Learner": lambda: Learner.from_checkpoint(target),
        "LearnerGroup": lambda: LearnerGroup.from_checkpoint(target),
        "add_module": lambda: several.build_policy().add_module("p1", init_from=target),
        "Policy": lambda: Policy.from_checkpoint(target),
    }
    if reader == "Policy":  # its networks are built from the configuration
        read[reader]()
    else:
        with pytest.raises(ValueError, match="names"):
            read[reader]()
    assert MARKERS == []


@pytest.mark.parametrize(
    "path", one_in(3, [(("learner_class",),), (("training", "class"),), (("framework", "class"),)])
)
@pytest.mark.parametrize("kind", NAMES)
def test_no_recipe_of_a_learner_runs_what_it_names(path, kind, tmp_path):
    target = tmp_path / "saved"
    folders = read_checkpoint(config_for().build_learner().save_to_path(target))
    put(folders["learner"]["recipe"], path, NAMES[kind])
    write_checkpoint(target, folders)
    with pytest.raises(ValueError, match="is no"):
        Learner.from_checkpoint(target)
    assert MARKERS == []


@pytest.mark.parametrize("reader", ["from_checkpoint", "restore_from_path"])
@pytest.mark.parametrize("field", ["spec", "config_overrides"])
def test_no_recipe_of_a_module_that_came_runs_what_it_names(reader, field, tmp_path):
    space = gym.spaces.Box(-1, 1, (4,))
    config = PPOConfig().multi_agent(policies=["p0"], policy_mapping_fn={"a": "p0"})
    config.environment(observation_space=space, action_space=gym.spaces.Discrete(2))
    policy = config.build_policy()
    policy.add_module("p1", config_overrides={"lr": 1e-3})
    folders = read_checkpoint(policy.save_to_path(tmp_path / "saved"))
    recipe = folders["policy"]["state"]["modules"]["p1"]
    if field == "spec":
        recipe["spec"]["module_class"] = NAMES["a class of another kind"]
    else:
        recipe["config_overrides"]["lr"] = {"__import__": NAMES["a function"]}
    write_checkpoint(tmp_path / "saved", folders)
    with pytest.raises(ValueError, match=r"trust=True|is not"):
        if reader == "from_checkpoint":
            Policy.from_checkpoint(tmp_path / "saved")
        else:
            config.build_policy().restore_from_path(tmp_path / "saved")
    assert MARKERS == []


# -- the door of Stable-Baselines3 ---

DOOR_FIELDS = {
    "class": (("class",), NAMES["a class of another kind"]),
    "class of the system": (("class",), "subprocess:Popen"),
    "option": (("options", "learning_rate"), {"__import__": NAMES["a function"]}),
    "extractor": (("options", "policy_kwargs"), {"features_extractor_class": {"__import__": NAMES["a function"]}}),
    "optimizer": (("options", "policy_kwargs"), {"optimizer_class": {"__import__": NAMES["a function"]}}),
    "activation": (("options", "policy_kwargs"), {"activation_fn": {"__import__": NAMES["a function"]}}),
    "argument": (
        ("options", "policy_kwargs"),
        {"features_extractor_kwargs": {"make": {"__import__": NAMES["a function"]}}},
    ),
    "noise": (("options", "action_noise"), {"noise": "dataclass"}),
    "attribute of a module": (("options", "action_noise"), {"noise": "Any"}),
}


@pytest.mark.parametrize("field", one_in(3, DOOR_FIELDS))
def test_no_archive_of_the_door_runs_what_it_names(field, tmp_path):
    model = PPO("MlpPolicy", gym.make("CartPole-v1"), n_steps=32, batch_size=32, device="cpu")
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        archive.extractall(tmp_path / "open")
    folders = read_checkpoint(tmp_path / "open")
    path, value = DOOR_FIELDS[field]
    put(folders["sb3"], path, value)
    write_checkpoint(tmp_path / "open", folders)
    shutil.make_archive(str(tmp_path / "hostile"), "zip", tmp_path / "open")
    with pytest.raises(ValueError, match=r"names|must be one of"):
        PPO.load(tmp_path / "hostile.zip")
    assert MARKERS == []


# -- one's own work, and what needs no word ---


def own_config() -> PPOConfig:
    """A configuration with objects of one's own in many places, functions among them."""
    config = config_for(encoder=own_encoder)
    config.training(lr=own_rate, optimizer=torch.optim.SGD).callbacks(Watch)
    return config.environment(own_pole).env_runners(env_to_module_connector=_clip)


def _clip(observation_space: Any, action_space: Any) -> ClipObs:
    return ClipObs(-5.0, 5.0)


def test_a_run_of_ones_own_goes_on_without_a_word(tmp_path):
    path = lockstep.train(own_config(), root=tmp_path).path
    assert load_policy(path).config.training.lr is own_rate
    assert resume(path, total_steps=192).policy.timesteps["num_env_steps_sampled_lifetime"] == 192


def test_the_run_of_somebody_else_needs_the_word(tmp_path, monkeypatch):
    path = lockstep.train(own_config(), root=tmp_path).path
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of another user"))
    for read in (load_policy, resume):
        with pytest.raises(ValueError, match="trust=True"):
            read(path)
    assert load_policy(path, trust=True).config.make_envs(1).num_envs == 1
    assert resume(path, total_steps=192, trust=True).path == path
    monkeypatch.setenv("LOCKSTEP_TRUST", "1")
    assert load_policy(path).config.callbacks.classes == [Watch]


def test_a_run_without_a_signature_is_signed_once_by_a_command(tmp_path, monkeypatch, capfd):
    path = lockstep.train(own_config(), root=tmp_path).path
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of another user"))
    with pytest.raises(ValueError, match="lockstep trust RUN"):
        load_policy(path)
    assert main(["trust", str(path)]) == 0
    assert "test_trainer_hostile_files:own_encoder" in capfd.readouterr().out
    assert load_policy(path).config.training.lr is own_rate
    assert resume(path, total_steps=192).path == path
    in_config(path, lambda config: WHEN_LOADED["coefficient"](config, NAMES["a function"]))
    with pytest.raises(ValueError, match=r"trust=True|is not"):
        resume(path)
    assert MARKERS == []


def test_other_options_of_ones_own_run_may_be_edited(tmp_path):
    path = lockstep.train(own_config(), root=tmp_path).path
    in_config(path, lambda config: config["reporting"].update(total_steps=192))
    with pytest.warns(RuntimeWarning, match="total_steps=192"):
        assert resume(path).policy.timesteps["num_env_steps_sampled_lifetime"] == 192


def test_classes_of_the_kind_need_no_word_and_no_signature(tmp_path, monkeypatch):
    config = config_for(encoder=Own, encoder_config={"width": 5}).callbacks(Watch).environment(Pole)
    config.training(optimizer=torch.optim.SGD)
    path = lockstep.train(config, root=tmp_path).path
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of another user"))
    policy = load_policy(path)
    assert policy.config.make_envs(2).num_envs == 2
    assert policy.compute_single_action(np.zeros(4, np.float32)) in (0, 1)
    assert resume(path, total_steps=192).path == path


def test_what_a_stranger_named_does_not_become_ones_own_by_saving_it(run, tmp_path):
    folder = hostile(run, tmp_path, "policy", WHEN_MADE["environment"], NAMES["a function"])
    load_policy(folder).save_to_path(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"trust=True|is not"):
        load_policy(tmp_path / "mine").config.make_envs(1)
    assert MARKERS == []


def test_trusting_nothing_is_an_error(tmp_path, capfd):
    assert main(["trust", str(tmp_path)]) == 2
    assert "nothing to sign" in capfd.readouterr().err


# -- what else is built by name ---


def test_a_stray_class_with_the_method_of_a_callback_is_not_built():
    with pytest.raises(TypeError, match=r"lockstep\.trainer\.Callback"):
        config_for().callbacks(NotOfTheKind)
    assert MARKERS == []


def test_a_study_gives_no_value_that_its_space_does_not_have(tmp_path):
    space = {"rl_module.model_config": Range(choices=({"hiddens": [8]}, {"hiddens": [16]}))}
    search = Search("study", "sqlite://", tmp_path, config_for(), space)
    assert search.config_of(1, {"rl_module.model_config": {"hiddens": [16]}})
    with pytest.raises(ValueError, match="the storage was changed"):
        search.config_of(1, {"rl_module.model_config": {"encoder": NAMES["a function"]}})
    assert MARKERS == []


@pytest.mark.parametrize("path", ["rl_module.model_config", "rl_module.model_config.encoder", "environment.env"])
def test_no_space_of_a_search_runs_what_it_names(path, tmp_path):
    choice = {"encoder": NAMES["a function"]} if path.endswith("model_config") else NAMES["a function"]
    (tmp_path / "space.json").write_text(json.dumps({path: {"choices": [choice]}}))
    with pytest.raises(ValueError, match="trust=True"):
        read_space(tmp_path / "space.json")
    assert read_space(tmp_path / "space.json", trust=True)[path].choices == (choice,)
    assert MARKERS == []


HOSTILE_MODULE = """
from pathlib import Path
import gymnasium, torch
Path("MARKER").touch()
class Pole(gymnasium.Env): pass
class Net(torch.nn.Module): pass
"""


@pytest.mark.parametrize("field", ["environment as text", pytest.param("encoder as text", marks=pytest.mark.long)])
def test_no_command_imports_a_module_of_the_current_folder_for_a_file(field, run, tmp_path):
    """A process of its own: its current folder is on `sys.path`, in front of all others."""
    change = {**WHEN_MADE, **WHEN_LOADED}[field]
    name = "evil:Pole" if "environment" in field else "evil:Net"
    folder = hostile(run, tmp_path, "policy", change, name)
    (tmp_path / "evil.py").write_text(HOSTILE_MODULE)
    command = ["-m", "lockstep.cli", "eval", folder, "--episodes=1"]
    done = run_python(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "'evil' is in the current folder" in done.stderr
    assert not (tmp_path / "MARKER").exists()
    run_python([*command, "--trust"], cwd=tmp_path)
    assert (tmp_path / "MARKER").exists()
