"""`AlgorithmConfig`: several modules, options of single modules, resources, and how it is printed."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from lockstep import A2CConfig, PPOConfig, SampleBatch
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.modules import ModelConfig, MultiRLModule, MultiRLModuleSpec, RLModuleSpec

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Discrete(2)
SPACES = (BOX, TWO)


def small(cls=PPOConfig):
    config = cls().environment(observation_space=BOX, action_space=TWO).rl_module(model_config={"hiddens": (4,)})
    return config.training(train_batch_size=16, **({"minibatch_size": 8} if cls is PPOConfig else {}))


def two(**specs):
    return MultiRLModuleSpec({"a": RLModuleSpec(**specs), "b": RLModuleSpec(model_config=ModelConfig(hiddens=(6,)))})


def batch(rows=16, seed=0):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(2, size=rows),
        action_logp=np.log(rng.uniform(0.3, 0.7, size=rows)).astype(np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        value_targets=rng.normal(size=rows).astype(np.float32),
    )


# -- several modules ---


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
def test_spec_of_several_modules_is_filled_built_and_trained(config):
    learner = small(config).rl_module(rl_module_spec=two()).build_learner()
    assert list(learner.module) == ["a", "b"]
    assert learner.module["a"].model_config.hiddens == (4,)  # the section's
    assert learner.module["b"].model_config.hiddens == (6,)  # its own
    assert learner.connectors["a"] is not learner.connectors["b"]
    results = learner.update_from_batch(MultiAgentBatch({"a": batch(), "b": batch(seed=1)}, 16))
    assert {"a", "b"} <= results.keys()


def test_modules_of_one_spec_start_from_different_weights_that_depend_on_the_seed_only():
    spec = MultiRLModuleSpec({"a": RLModuleSpec(), "b": RLModuleSpec()})
    first, second = (small().rl_module(rl_module_spec=spec).build_learner() for _ in range(2))
    weights = first.module["a"].policy_head.weight
    assert not np.array_equal(weights.detach(), first.module["b"].policy_head.weight.detach())
    np.testing.assert_array_equal(weights.detach(), second.module["a"].policy_head.weight.detach())


def test_built_modules_are_kept():
    modules = MultiRLModule({"a": RLModuleSpec(*_network(), model_config=ModelConfig(hiddens=(4,))).build(seed=1)})
    assert small().rl_module(rl_module_spec=modules).build_learner().module is modules


def _network():
    from lockstep.modules import DefaultActorCriticModule

    return DefaultActorCriticModule, BOX, TWO


def test_group_and_learner_are_built_from_an_environment_from_spaces_and_from_a_spec():
    config = PPOConfig().rl_module(model_config={"hiddens": (4,)})
    assert list(config.build_learner("CartPole-v1").module) == ["default_policy"]
    assert config.build_learner(spaces=SPACES).module["default_policy"].action_space == TWO
    group = config.build_learner_group(spaces=SPACES, rl_module_spec=two())
    assert list(group.learner.module) == ["a", "b"]
    assert config.rl_module_spec is None  # the configuration is as it was
    assert list(config.build_learner_group("CartPole-v1").learner.module) == ["default_policy"]


# -- options of single modules ---


def test_overrides_hold_for_their_module_only_and_schedules_too():
    overrides = {"b": {"lr": [[0, 0.5], [100, 0.0]], "entropy_coeff": 0.25, "grad_clip": None}}
    config = small().training(lr=0.01, grad_clip=0.5)
    learner = config.rl_module(rl_module_spec=two(), algorithm_config_overrides_per_module=overrides).build_learner()
    assert (learner.config_of("a").lr, learner.config_of("a").grad_clip) == (0.01, 0.5)
    assert learner.config_of("b").grad_clip is None
    assert float(learner.coefficient("b", "entropy_coeff")) == 0.25
    assert float(learner.coefficient("a", "entropy_coeff")) == 0.0
    given = MultiAgentBatch({"a": batch(), "b": batch(seed=1)}, 16)
    results = learner.update_from_batch(given, timesteps={"num_env_steps_sampled_lifetime": 50})
    assert results["a"]["default_optimizer_learning_rate"] == 0.01
    assert results["b"]["default_optimizer_learning_rate"] == 0.25


def test_overrides_can_be_made_by_the_algorithms_config_or_be_one():
    assert PPOConfig.overrides(lr=0.5, clip_param=0.1) == {"lr": 0.5, "clip_param": 0.1}
    with pytest.raises(ValueError, match="no option 'clip' to override for a module; did you mean"):
        PPOConfig.overrides(clip=0.1)
    whole = PPOConfig().training(lr=0.5)
    config = small().rl_module(rl_module_spec=two(), algorithm_config_overrides_per_module={"a": whole})
    assert config.algorithm_config_overrides_per_module == {"a": {"lr": 0.5}}
    learner = config.build_learner()
    assert (learner.config_of("a").lr, learner.config_of("a").train_batch_size) == (0.5, 16)


@pytest.mark.parametrize(
    "overrides, error, message",
    [
        ({"c": {"lr": 0.1}}, ValueError, r"names \['c'\]; the modules are \['a', 'b'\]"),
        ({"a": {"learning_rte": 0.1}}, ValueError, r"per_module\['a'\]: training has no option 'learning_rte'"),
        (
            {"a": {"num_epochs": 3}},
            ValueError,
            r"training.num_epochs holds for the whole update.* own lr, gamma",
        ),
        ({"a": {"minibatch_size": 3}}, ValueError, r"training.minibatch_size holds for the whole update"),
        ({"a": {"grad_clip": 0}}, ValueError, r"per_module\['a'\]: training.grad_clip=0 is not allowed"),
        ({"a": 0.1}, TypeError, r"per_module\['a'\]: .*must be a dict of training options"),
    ],
)
def test_overrides_that_cannot_be_are_refused_by_module(overrides, error, message):
    config = small().rl_module(rl_module_spec=two(), algorithm_config_overrides_per_module=overrides)
    with pytest.raises(error, match=message):
        config.build_learner()


def test_overrides_and_resources_travel_through_copies_and_json():
    config = (
        small()
        .rl_module(algorithm_config_overrides_per_module={"default_policy": {"lr": [[0, 0.1], [9, 0.0]]}})
        .learners(num_cpus_per_learner=2, custom_resources_per_learner={"fast_disk": 0.5})
        .resources(num_cpus_for_main_process=3, placement_strategy="SPREAD")
    )
    restored = PPOConfig().update_from_dict(json.loads(config.to_json()))
    assert restored == config == config.copy()
    assert (restored.custom_resources_per_learner, restored.placement_strategy) == ({"fast_disk": 0.5}, "SPREAD")


# -- printing, suggestions ---


def test_description_shows_what_differs_or_all():
    config = PPOConfig().training(gamma=0.9).learners(num_cpus_per_learner=2)
    assert config.describe() == "PPOConfig\nlearners.num_cpus_per_learner = 2\ntraining.gamma = 0.9"
    everything = config.describe(all_options=True).splitlines()
    assert len(everything) == 1 + len(config._all_options())
    assert "training.lr = 0.0003" in everything


@pytest.mark.parametrize(
    "wrong, right", [("trainign", "training"), ("build_lerner", "build_learner"), ("gama", "gamma")]
)
def test_unknown_attribute_suggests_options_sections_and_methods(wrong, right):
    with pytest.raises(AttributeError, match=f"PPOConfig has no option '{wrong}'; did you mean .*'{right}'"):
        getattr(PPOConfig(), wrong)
