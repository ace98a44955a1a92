"""Arguments of wrong kinds and values: refused in the call itself, by name, and nothing is changed."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_parts import BOX, MODULE, assert_same, episodes, parameters, ppo_batch, ppo_config, spec

from lockstep import A2CConfig, LearnerGroup, PPOConfig
from lockstep.learner import Learner
from lockstep.learner.config import TrainingSection


@pytest.fixture(scope="module")
def group():
    return ppo_config().build_learner_group()


@pytest.mark.parametrize("async_update", [False, True])
@pytest.mark.parametrize(
    "given, message",
    [
        (None, "episodes is a NoneType; a list of SingleAgentEpisode or MultiAgentEpisode is needed"),
        (3, "episodes is a int; a list"),
        ("all", "episodes is a str; a list"),
        (episodes()[0], r"episodes is one SingleAgentEpisode; a list of .* is needed: \[episode\]"),
        (ppo_batch(), "episodes is a SampleBatch; .*update_from_batch takes batches"),
        (iter(episodes()), "episodes is a list_iterator; a list"),
    ],
)
def test_what_is_no_list_of_episodes_is_refused(group, given, message, async_update):
    with pytest.raises(TypeError, match=message):
        group.update_from_episodes(given, async_update=async_update)
    with pytest.raises(TypeError, match=message):
        group.learner.update_from_episodes(given)
    assert group.get_stats()["num_calls"] == 0


@pytest.mark.parametrize("async_update", [False, True])
@pytest.mark.parametrize("given", [None, 3, dict(ppo_batch()), episodes()])
def test_what_is_no_batch_is_refused(group, given, async_update):
    with pytest.raises(
        TypeError, match=f"batch must be a SampleBatch or a MultiAgentBatch, not {type(given).__name__}"
    ):
        group.update_from_batch(given, async_update=async_update)
    assert group.get_stats()["num_calls"] == 0


@pytest.mark.parametrize("name", ["async_update", "return_state", "reduce_results", "shuffle_batch_per_epoch"])
@pytest.mark.parametrize("value", ["yes", 1, None])
def test_flags_are_true_or_false(group, name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} .* must be True or False"):
        group.update_from_batch(ppo_batch(), **{name: value})
    assert group.get_stats()["num_calls"] == 0


@pytest.mark.parametrize("steps", [-1, float("nan"), float("inf")])
def test_timesteps_are_finite_and_not_negative(group, steps):
    with pytest.raises(ValueError, match="steps are finite, at least 0"):
        group.update_from_batch(ppo_batch(), timesteps={"num_env_steps_sampled_lifetime": steps})


@pytest.mark.parametrize("timesteps", [{3: 3}, {"num_env_steps_sampled_lifetime": True}, [1]])
def test_timesteps_are_numbers_by_name(group, timesteps):
    with pytest.raises(TypeError, match="timesteps must be a dict such as"):
        group.learner.update_from_batch(ppo_batch(), timesteps=timesteps)


@pytest.mark.parametrize("components", [3, [3], {"rl_module": 1}])
def test_components_are_names(group, components):
    for owner in (group, group.learner):
        with pytest.raises(TypeError, match=r"components=.* must be one name, a list of names, or None"):
            owner.get_state(components)
        with pytest.raises(TypeError, match=r"not_components=.* must be one name, a list of names, or None"):
            owner.get_state(not_components=components)
    with pytest.raises(TypeError, match=r"module_ids=.* must be one name"):
        group.get_weights(components)


def test_states_and_weights_are_dicts(group):
    with pytest.raises(TypeError, match="a group's state is a dict"):
        group.set_state(None)
    with pytest.raises(TypeError, match="a learner's state is a dict by component, not NoneType"):
        group.learner.set_state(None)
    with pytest.raises(TypeError, match="weights is a NoneType; a dict"):
        group.set_weights(None)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"config": 3}, r"config is a int; a learner takes a training section"),
        ({"config": PPOConfig()}, r"config is a PPOConfig; .*use its build_learner\(\)"),
        ({"framework": 3}, "framework is a int; a FrameworkSection is needed"),
        ({"streams": 0}, "streams is a int; a RandomStreams is needed"),
        ({"module_configs": 3}, "module_configs must be a dict {module id: TrainingSection}"),
        ({"module_configs": {MODULE: {"lr": 1e-3}}}, "module_configs must be a dict {module id: TrainingSection}"),
        ({"connectors": {MODULE: 3}}, "connectors must be a dict {module id: ModuleConnectors}"),
        ({"reducer": 3}, "reducer is a int"),
        ({"policies_to_train": 3}, "policies_to_train=3; give a list of module ids"),
    ],
)
def test_parts_of_a_learner_are_of_the_kinds_it_needs(options, message):
    with pytest.raises(TypeError, match=message):
        Learner(**{"config": TrainingSection(), "module_spec": spec(), **options}).build()


def test_configs_of_modules_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=rf"module_configs names \['other'\]; the modules are \['{MODULE}'\]"):
        Learner(config=TrainingSection(), module_spec=spec(), module_configs={"other": TrainingSection()}).build()


def test_a_group_is_made_of_a_learner_and_its_section(group):
    with pytest.raises(TypeError, match="learner is a int; a Learner or a LearnerBackend is needed"):
        LearnerGroup(3)
    with pytest.raises(TypeError, match="section is a int; a LearnersSection is needed"):
        LearnerGroup(group.learner, 3)


def with_action(value):
    batch = ppo_batch()
    batch["actions"] = batch["actions"].astype(np.float32) if isinstance(value, float) else batch["actions"]
    batch["actions"][5] = value
    return batch


@pytest.mark.parametrize("value", [3, -1, 0.5])
def test_discrete_action_outside_its_space_names_module_column_row_given_and_allowed(group, value):
    before = parameters(group.learner)
    expected = (
        rf"module '{MODULE}': column 'actions' has {value} at row 5; allowed are whole numbers 0 to 2 "
        r"\(action space Discrete\(3\)\)"
    )
    with pytest.raises(ValueError, match=expected):
        group.learner.update_from_batch(with_action(value))
    assert_same(parameters(group.learner), before)


def test_discrete_action_outside_its_space_is_refused_in_episodes_too(group):
    wrong = episodes()
    wrong[1].set_actions(new_data=7, at_indices=2)
    with pytest.raises(ValueError, match="column 'actions' has 7 at row 5; allowed are whole numbers 0 to 2"):
        group.learner.update_from_episodes(wrong)


@pytest.mark.parametrize(
    "space, wrong, allowed",
    [
        (spaces.MultiDiscrete([2, 3]), [2, 0], r"0, below \[2, 3\]"),
        (spaces.MultiBinary(2), [0, 2], r"0, below \[2, 2\]"),
    ],
)
def test_several_discrete_actions_are_each_in_their_range(space, wrong, allowed):
    config = A2CConfig().environment(observation_space=BOX, action_space=space)
    learner, batch = config.rl_module(model_config={"hiddens": (4,)}).build_learner(), ppo_batch(6)
    batch["actions"] = np.array([[0, 1]] * 5 + [wrong])
    with pytest.raises(ValueError, match=rf"has \[{wrong[0]}, {wrong[1]}\] at row 5; allowed are .* {allowed}"):
        learner.update_from_batch(batch)


def test_actions_are_counted_from_zero_whatever_the_start_of_the_space_is():
    config = A2CConfig().environment(observation_space=BOX, action_space=spaces.Discrete(3, start=5))
    learner = config.rl_module(model_config={"hiddens": (4,)}).build_learner()
    assert learner.update_from_batch(ppo_batch())[MODULE]["num_module_steps_trained"] == 24


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"lr": [[0, 1e-3], [10, -1.0]]},
            r"lr=\[\[0, 0.001\], \[10, -1.0\]\] is not allowed; it must be a finite number",
        ),
        ({"lr": float("inf")}, "lr=inf is not allowed; it must be a finite number, at least 0"),
        ({"lr": float("nan")}, "lr=nan is not allowed; it must be a finite number, at least 0"),
        ({"clip_param": [[0, 0.2], [10, 0.0]]}, "clip_param=.* is not allowed; it must be above 0"),
        ({"lr": lambda step: -1.0}, "training.lr: the function gives -1 at step 0; .* progress_remaining"),
        (
            {"lr": lambda progress: progress * 1e-3, "train_batch_size": 2048},
            "training.lr: the function gives 2.048 at step 2048; it must give .* at most 1, .* progress_remaining",
        ),
        ({"lr": lambda progress: 1e-4 + progress * 1e-3}, "training.lr: the function gives .* progress_remaining"),
        ({"clip_param": lambda progress: 0.1 + 0.1 * progress}, "training.clip_param: .* progress_remaining"),
    ],
)
def test_schedules_with_values_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ppo_config(**options).build_learner()


@pytest.mark.parametrize("lr", [-1.0, float("nan"), "fast", True])
def test_learning_rates_are_finite_and_not_negative(group, lr):
    with pytest.raises(ValueError, match="is not allowed; it must be a finite number, at least 0"):
        group.learner._set_optimizer_lr(group.learner.get_optimizer(MODULE), lr)


def only_b(module_id):
    return module_id == "b"


@pytest.mark.parametrize(
    "function, trains",
    [
        (lambda module_id: True, True),
        (lambda module_id, batch: True, True),
        (lambda module_id, batch=None: True, True),
        (lambda *arguments: len(arguments) == 2, True),
        (lambda module_id, **more: True, True),
        (only_b, False),
    ],
)
def test_policies_to_train_may_be_a_function_of_the_module_id_or_of_it_and_the_batch(function, trains):
    learner = ppo_config().multi_agent(policies_to_train=function).build_learner()
    for results in (learner.update_from_batch(ppo_batch()), learner.update_from_episodes(episodes())):
        assert (MODULE in results) == trains


def test_policies_to_train_is_given_the_batch_and_none_for_episodes():
    seen = []
    config = ppo_config().multi_agent(policies_to_train=lambda module_id, batch: seen.append(batch) is None)
    learner, batch = config.build_learner(), ppo_batch()
    learner.update_from_batch(batch)
    assert all(given is batch for given in seen)
    seen.clear()
    learner.update_from_episodes(episodes())
    assert set(seen) == {None}


def test_policies_to_train_that_takes_neither_is_refused():
    with pytest.raises(
        TypeError, match=r"policies_to_train\(a, b, c\) must take \(module_id\), or \(module_id, batch\)"
    ):
        ppo_config().multi_agent(policies_to_train=lambda a, b, c: True).build_learner()


def test_names_of_states_are_texts_and_only_floats_are_trained(group):
    with pytest.raises(TypeError, match="the name of a state must be a text, not 3"):
        group.learner.register_state(3, 1.0)
    with pytest.raises(ValueError, match=r"only floats can be trained, not torch.int64; give dtype=torch.float32"):
        group.learner._get_tensor_variable(3, trainable=True)
    assert group.learner._get_tensor_variable(3, dtype=torch.float32, trainable=True).requires_grad


def test_a_function_of_another_librarys_progress_is_refused_before_the_run_begins():
    config = PPOConfig().environment("CartPole-v1").training(lr=lambda progress: progress * 1e-4)
    config.env_runners(num_envs_per_env_runner=2).training(train_batch_size=64, minibatch_size=32)
    config.validate()
    with pytest.raises(ValueError, match=r"training.lr: the function gives 2 at step 20000; .* progress_remaining"):
        config.reporting(total_steps=200_000).build_trainer()
