"""Configurations as JSON with specs and sets in them, wrong kinds of values, and groups from a whole spec."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.algorithms.ppo import PPOLearner
from lockstep.modules import DefaultActorCriticModule, ModelConfig, MultiRLModuleSpec, RLModule, RLModuleSpec

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Discrete(2)
SPEC = RLModuleSpec(DefaultActorCriticModule, BOX, TWO, model_config=ModelConfig(hiddens=(4,)))


def mapped(agent_id, episode):
    """A mapping that JSON can name."""
    return "a"


def config():
    return (
        PPOConfig().environment(observation_space=BOX, action_space=TWO).training(train_batch_size=8, minibatch_size=8)
    )


@pytest.mark.parametrize(
    "section, options",
    [
        ("rl_module", {"rl_module_spec": SPEC}),
        ("rl_module", {"rl_module_spec": RLModuleSpec(model_config={"hiddens": [8]})}),
        ("rl_module", {"rl_module_spec": MultiRLModuleSpec({"a": SPEC, "b": RLModuleSpec()})}),
        ("multi_agent", {"policies": {"a": SPEC, "b": None}, "policy_mapping_fn": mapped}),
        ("multi_agent", {"policies_to_train": {"default_policy"}}),
        ("training", {"learner_class": PPOLearner, "learner_config_dict": {"limit": [1, 2.5, None]}}),
    ],
)
def test_json_round_trip_keeps_specs_sets_and_classes(section, options):
    given = getattr(config(), section)(**options)
    restored = PPOConfig().update_from_dict(json.loads(given.to_json()))
    assert restored == given
    assert type(restored.model_config) is ModelConfig
    for option, value in options.items():
        assert type(getattr(restored, option)) is type(value)


def test_group_of_a_spec_that_went_through_json_is_the_same():
    given = config().rl_module(rl_module_spec=SPEC)
    restored = PPOConfig().update_from_dict(json.loads(given.to_json()))
    first, second = (each.build_learner_group().get_weights()["default_policy"] for each in (given, restored))
    assert first["policy_head.weight"].shape == (2, 4)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_spec_of_a_class_that_cannot_be_imported_is_refused_by_its_path():
    class Local(RLModule):
        pass

    with pytest.raises(ValueError, match=r"rl_module\.rl_module_spec\.module_class=.*cannot be written to JSON"):
        config().rl_module(rl_module_spec=RLModuleSpec(Local)).to_json()


def test_a_spec_without_modules_is_refused():
    with pytest.raises(ValueError, match="no modules; a learner needs at least one"):
        config().rl_module(rl_module_spec=MultiRLModuleSpec({})).build_learner()


def test_spaces_that_are_no_pair_are_refused():
    with pytest.raises(TypeError, match="give \\(observation space, action space\\)"):
        PPOConfig().build_learner_group(spaces=(BOX,))


def test_group_is_built_from_a_spec_with_its_spaces_alone():
    group = PPOConfig().build_learner_group(rl_module_spec=SPEC)
    assert group.learner.module["default_policy"].action_space == TWO
    with pytest.raises(ValueError, match=r"environment\.env is not set"):
        PPOConfig().build_learner_group(rl_module_spec=RLModuleSpec())
    with pytest.raises(ValueError, match=r"environment\.env is not set"):
        PPOConfig().environment(frame_stack=2).build_learner_group(rl_module_spec=SPEC)


def test_numbers_of_numpy_are_written_as_those_of_python():
    given = config().debugging(seed=np.int64(3)).training(lr=np.float32(0.5), train_batch_size=np.int64(16))
    given.rl_module(model_config={"hiddens": (np.int64(8),), "max_seq_len": np.int32(5)})
    plain = config().debugging(seed=3).training(lr=0.5, train_batch_size=16)
    plain.rl_module(model_config={"hiddens": (8,), "max_seq_len": 5})
    assert given.to_json() == plain.to_json()
    given.build_learner()
