"""Names of classes and functions in files: they name a public folder, and those of earlier versions are still found."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_cases import SPACES, WITH_ATOMS, takes
from parts import one_in

import lockstep
from lockstep import ALGORITHMS, PPOConfig, get_config
from lockstep.connectors import Connector, NormalizeObs, RescaleActions
from lockstep.envs import CountingEnv
from lockstep.envs.make import ENVIRONMENT_CLASS, named_environment
from lockstep.learner import FrameworkSection, Learner, TrainingSection
from lockstep.modules import DefaultActorCriticModule, FlatFeatures, RLModuleSpec
from lockstep.recipes import RECIPES, sign_of_rewards
from lockstep.rollout import EnvironmentCallback
from lockstep.state.names import current_name, import_path, name_of, with_current_names
from lockstep.state.old_names import OLD_NAMES
from lockstep.state.trust import FileNames, Kind, UntrustedError, import_object, signed
from lockstep.trainer import Callback, LoggingCallback

OWN_NAME = re.compile(rb"lockstep[\w.]*:[A-Za-z_][\w.]*")
TAKEN = (
    *(Learner, TrainingSection, FrameworkSection, Callback, EnvironmentCallback, Connector, RescaleActions),
    *(torch.nn.Module, torch.optim.Optimizer, *ENVIRONMENT_CLASS.bases),
)
"""Bases of the classes that options take, or whose objects are written with their class."""
NEVER_WRITTEN = {
    "LeafConnector": "a base without a transform",
    "RowMemory": "a base without a transform",
    "OfOwnObservation": "made around connectors that users list, which are written",
    "CustomFeatures": "a part of a network",
    "ResidualBlock": "a part of a network",
    "Gate": "a part of a network",
    "RelativeAttention": "a part of a network",
    "TransformerLayer": "a part of a network",
    "NormalizedMLP": "a part of a network",
    "BatchNorm": "a part of a network",
    "ResidualMLP": "a part of a network",
    "ResidualEncoder": "a part of a network",
    "ResidualHead": "a part of a network",
    "ResidualCritics": "a part of a network",
    "ModuleWithCritics": "a base of networks",
    "MemorylessEncoder": "a part of a network",
    "SharedMemoryLayers": "a part of a network",
    "StackedRecurrence": "a part of a network",
    "ActingGraph": "a network that is exported",
    "StopsWithPool": "a callback with arguments",
    "Interruption": "a callback with arguments",
    "RankSynchronizer": "a callback with arguments",
    "VideoCallback": "a callback with arguments",
}
"""Classes in no `__all__`, of a kind that options take by class, and why no file names them."""


def is_public(name: str) -> bool:
    """Return whether the part before the colon is a folder that lists the first part behind it in `__all__`."""
    folder, _, qualified = name.partition(":")
    module = importlib.import_module(folder)
    return hasattr(module, "__path__") and qualified.partition(".")[0] in getattr(module, "__all__", ())


def names_below(folder):
    """Return the names of Lockstep's own objects in all files of a folder."""
    texts = (path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {name.decode() for text in texts for name in OWN_NAME.findall(text)}


# -- from objects to names ---


def top_function():
    """Has a name."""


def module_of_agent(agent_id, episode):
    """Name the module of an agent as the agent."""
    return agent_id


class Own:
    """Has one too."""

    class Inner:
        """And so has this."""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (DefaultActorCriticModule, "lockstep.modules:DefaultActorCriticModule"),
        (Learner, "lockstep:Learner"),
        (get_config(WITH_ATOMS).sections["training"].__class__, "lockstep.algorithms.families:AtomTraining"),
        (sign_of_rewards, "lockstep.recipes:sign_of_rewards"),
        (lockstep.trainer.BaseTrainer.run, "lockstep:BaseTrainer.run"),
        (top_function, f"{__name__}:top_function"),
        (Own.Inner, f"{__name__}:Own.Inner"),
        (name_of, "lockstep.state.names:name_of"),
        (torch.optim.RMSprop, "torch.optim.rmsprop:RMSprop"),
    ],
)
def test_an_object_is_named_by_the_shortest_public_folder_and_found_again(value, name):
    assert name_of(value) == import_path("option", value) == name
    assert import_object(name) is value


def test_another_object_of_a_public_name_does_not_get_that_name():
    impostor = type("DefaultActorCriticModule", (), {"__module__": DefaultActorCriticModule.__module__})
    assert name_of(impostor) == f"{DefaultActorCriticModule.__module__}:DefaultActorCriticModule"


def test_every_class_that_an_option_takes_has_a_public_name():
    found = {}
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("lockstep.") or module_name.startswith("lockstep.compat."):
            continue
        for name, value in vars(module).items():
            is_defined_here = inspect.isclass(value) and value.__module__ == module_name and name == value.__qualname__
            if is_defined_here and not name.startswith("_") and issubclass(value, TAKEN):
                found[name] = name_of(value)
    assert len(found) > 100
    assert {name for name, path in found.items() if not is_public(path)} - NEVER_WRITTEN.keys() == set()
    assert all(import_object(path).__name__ == name for name, path in found.items())


def test_functions_that_recipes_name_are_public():
    texts = [recipe.config().to_json().encode() for recipe in RECIPES]
    names = {name.decode() for text in texts for name in OWN_NAME.findall(text)}
    assert names == {"lockstep.recipes:sign_of_rewards", "lockstep.recipes:small_rewards"}
    assert all(map(is_public, names))


# -- files of today ---


def rich_policy(algorithm):
    """Return a policy with an encoder of the library, in the first kind of space that the algorithm acts in."""
    action_space = next(SPACES[kind] for kind in SPACES if takes(algorithm, kind))
    config = get_config(algorithm).environment(observation_space=SPACES["box"], action_space=action_space)
    return config.rl_module(model_config={"hiddens": (4,), "encoder": FlatFeatures}).build_policy()


@pytest.mark.parametrize("algorithm", one_in(4, [config.algorithm for config in ALGORITHMS]))
def test_files_of_every_algorithm_name_public_folders_only(algorithm, tmp_path):
    policy = rich_policy(algorithm)
    policy.save_to_path(tmp_path / "policy")
    policy.learner_group.save_to_path(tmp_path / "group")
    config = policy.config.copy().training(learner_class=policy.config.learner_class)
    config.env_runners(env_to_module_connector=NormalizeObs).callbacks([LoggingCallback])
    (tmp_path / "config.json").write_text(config.environment(CountingEnv).to_json())

    names = names_below(tmp_path)
    assert names >= {
        *("lockstep.modules:FlatFeatures", "lockstep.learner:FrameworkSection", "lockstep.connectors:NormalizeObs"),
        *("lockstep.trainer:LoggingCallback", "lockstep.envs:CountingEnv"),
        *(name_of(type(config.training)), name_of(config.learner_class)),
    }
    assert {name for name in names if not is_public(name)} == set()


def test_files_of_several_agents_name_public_folders_only(tmp_path):
    box, two = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2)
    config = PPOConfig().environment(observation_space=box, action_space=two)
    config.multi_agent(policies=["a", "b"], policy_mapping_fn=module_of_agent).training(
        learner_connector=sign_of_rewards
    )
    config.rl_module(rl_module_spec=RLModuleSpec(DefaultActorCriticModule))
    config.rl_module(algorithm_config_overrides_per_module={"a": {"lr": 0.1}})
    config.build_policy().save_to_path(tmp_path / "policy")
    names = names_below(tmp_path)
    assert {"lockstep.modules:DefaultActorCriticModule", "lockstep.algorithms:PPOTraining"} <= names
    assert {name for name in names if not is_public(name)} == set()


# -- names of earlier versions ---


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_finds_the_object_whose_name_is_the_present_one(old):
    found = import_object(old)
    assert name_of(found) == current_name(old), "a public name has moved: add a line for it to OLD_NAMES"
    assert is_public(current_name(old))


def test_a_name_that_moves_twice_is_found(monkeypatch):
    monkeypatch.setitem(OLD_NAMES, "lockstep.before:Learner", "lockstep.between:Learner")
    monkeypatch.setitem(OLD_NAMES, "lockstep.between:Learner", "lockstep:Learner")
    assert import_object("lockstep.before:Learner") is Learner


def test_an_environment_is_found_by_its_old_name():
    assert named_environment("lockstep.envs.counting:CountingEnv") is CountingEnv


def test_a_configuration_with_old_names_is_the_one_with_present_names():
    config = PPOConfig().environment(CountingEnv).rl_module(model_config={"encoder": FlatFeatures})
    config.env_runners(env_to_module_connector=NormalizeObs)
    today = json.loads(config.to_json())
    text = config.to_json()
    for old, new in OLD_NAMES.items():
        text = text.replace(f'"{new}"', f'"{old}"')
    before = json.loads(text)
    assert "lockstep.modules.encoders:FlatFeatures" in text
    assert before != today
    assert with_current_names(before) == today
    assert json.loads(PPOConfig().update_from_dict(before).to_json()) == today


def test_a_signature_over_old_names_holds_and_strangers_get_no_function():
    old = "lockstep.recipes.families:sign_of_rewards"
    tree = signed({"learner_connector": {"__import__": old}})
    assert FileNames("file", tree).find("training.learner_connector", old, None) is sign_of_rewards
    stranger = FileNames("file", {"learner_connector": {"__import__": old}})
    connectors = Kind("a connector", (NormalizeObs,))
    for kind in (None, connectors):
        with pytest.raises(UntrustedError, match="sign_of_rewards"):
            stranger.find("training.learner_connector", old, kind)
