"""Arguments and batches that cannot be: refused in the call itself, by name, and nothing is changed."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    ValueLearner,
    assert_same,
    episodes,
    make_episode,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    value_batch,
    value_learner,
)
from torch import nn

from lockstep import A2CConfig, LearnerGroup, PPOConfig, SampleBatch
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner import Learner
from lockstep.learner.config import LearnersSection, TrainingSection
from lockstep.modules import RLModuleSpec


@pytest.fixture(scope="module")
def group():
    return ppo_config().build_learner_group()


def options_of(**options):
    return lambda group: group.learner.update_from_batch(ppo_batch(), **options)


def parts_of(**parts):
    return lambda group: Learner(**{"config": TrainingSection(), "module_spec": spec(), **parts}).build()


REFUSED = [
    ("no episodes", lambda group: group.update_from_episodes(None), TypeError, ["episodes", "NoneType"]),
    ("a number", lambda group: group.update_from_episodes(3), TypeError, ["episodes", "a list"]),
    ("a text", lambda group: group.learner.update_from_episodes("all"), TypeError, ["episodes", "str"]),
    ("one episode", lambda group: group.update_from_episodes(episodes()[0]), TypeError, ["[episode]"]),
    ("a batch", lambda group: group.update_from_episodes(ppo_batch()), TypeError, ["update_from_batch"]),
    ("an iterator", lambda group: group.update_from_episodes(iter(episodes())), TypeError, ["list_iterator"]),
    ("no batch", lambda group: group.update_from_batch(None), TypeError, ["SampleBatch", "NoneType"]),
    ("a dict", lambda group: group.learner.update_from_batch(dict(ppo_batch())), TypeError, ["SampleBatch", "dict"]),
    ("on_full", lambda group: group.update_from_batch(ppo_batch(), async_update=True, on_full="x"), ValueError, ["x"]),
    (
        "asynchronous",
        lambda group: group.update_from_batch(ppo_batch(), async_update=True, num_epochs=0),
        ValueError,
        ["num_epochs=0"],
    ),
    ("unknown", options_of(num_epoch=2), TypeError, ["num_epoch"]),
    ("epochs", options_of(num_epochs=0), ValueError, ["num_epochs=0", "at least 1"]),
    ("half an epoch", options_of(num_epochs=1.5), ValueError, ["num_epochs=1.5"]),
    ("minibatch", options_of(minibatch_size=0), ValueError, ["minibatch_size=0", "or None"]),
    ("half a row", options_of(minibatch_size=2.5), ValueError, ["minibatch_size=2.5"]),
    ("no dict of steps", options_of(timesteps=40_000), TypeError, ["timesteps must be a dict such as", "40000"]),
    ("a list of steps", options_of(timesteps=[1]), TypeError, ["timesteps must be a dict"]),
    ("a flag of steps", options_of(timesteps={"n": True}), TypeError, ["timesteps must be a dict"]),
    ("negative steps", options_of(timesteps={"n": -1}), ValueError, ["at least 0"]),
    ("infinite steps", options_of(timesteps={"n": float("inf")}), ValueError, ["finite"]),
    ("steps that are none", options_of(timesteps={"n": float("nan")}), ValueError, ["finite"]),
    ("component", lambda group: group.learner.get_state([3]), TypeError, ["[3]", "a list of names"]),
    ("not_component", lambda group: group.get_state(not_components={"a": 1}), TypeError, ["a list of names"]),
    ("module_ids", lambda group: group.get_weights([3]), TypeError, ["[3]"]),
    ("group's state", lambda group: group.set_state(None), TypeError, ["a group's state is a dict"]),
    ("learner's state", lambda group: group.learner.set_state(None), TypeError, ["dict by component", "NoneType"]),
    ("weights", lambda group: group.set_weights(None), ValueError, ["must be a dict", "NoneType"]),
    ("config", parts_of(config=3), TypeError, ["config is a int", "training section"]),
    ("whole config", parts_of(config=PPOConfig()), TypeError, ["PPOConfig", "build_learner()"]),
    ("who learns", parts_of(policies_to_train=3), TypeError, ["policies_to_train=3"]),
    ("module_configs", parts_of(module_configs={"x": TrainingSection()}), ValueError, ["['x']", MODULE]),
    ("no learner", lambda group: LearnerGroup(3), TypeError, ["a Learner or a LearnerBackend"]),
    ("no section", lambda group: LearnerGroup(group.learner, 3), TypeError, ["LearnersSection"]),
    ("whole number", lambda group: group.learner._get_tensor_variable(3, trainable=True), ValueError, ["int64"]),
]


@pytest.mark.parametrize("call, error, words", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_bad_call_is_refused_at_once_and_changes_nothing(group, call, error, words):
    before, random = parameters(group.learner), group.learner.streams.get_state()
    with pytest.raises(error) as raised:
        call(group)
    assert [word for word in words if word not in str(raised.value)] == []
    assert_same(parameters(group.learner), before)
    assert group.learner.weights_seq_no == 0
    assert group.learner.streams.get_state() == random


class Misnamed(ValueLearner):
    def compute_losses(self, *, fwd_out, batch):
        return {"everybody": super().compute_losses(fwd_out=fwd_out, batch=batch)["a"]}


def sgd(*sizes):
    return torch.optim.SGD([nn.Parameter(torch.zeros(size)) for size in sizes], lr=1.0)


def registered(learner, optimizer, params, **names):
    learner.register_optimizer(optimizer=optimizer, params=params, **names)


def held_by(optimizer):
    return optimizer.param_groups[0]["params"]


def added(**arguments):
    return lambda a: a.add_module(**{"module_id": "b", "module_spec": spec(), **arguments})


def of_class(cls):
    return lambda a: value_learner(cls, modules=("a",)).update_from_batch(value_batch())


def a_and_b():
    return value_learner(modules=("a", "b"))


def of_two(batch):
    return lambda a: a_and_b().update_from_batch(batch)


def strict(build):
    return lambda a: getattr(ppo_config().learners(never_skip_update=True), build)().update_from_episodes([])


NOTHING = "nothing to train on", "never_skip_update=True"
TAKEN = "there is a module 'a' already"
REFUSED_BY_A_LEARNER = [
    # modules
    ("id taken", added(module_id="a"), ValueError, [TAKEN]),
    ("id of all", added(module_id=ALL), ValueError, ["non-empty text other than '__all_modules__'"]),
    ("id with a slash", added(module_id="a/b"), ValueError, ["without"]),
    ("id of torch's", added(module_id="keys"), ValueError, ["a name that torch's modules use"]),
    ("id taken in a group", lambda a: added(module_id="a")(LearnerGroup(a)), ValueError, [TAKEN]),
    ("no id", lambda a: added(module_id="")(LearnerGroup(a)), ValueError, ["module id"]),
    ("a plain module", added(module_spec=nn.Linear(3, 3)), TypeError, ["a built RLModule", "Linear"]),
    ("an empty spec", added(module_spec=RLModuleSpec()), ValueError, ["module_class"]),
    ("unknown override", added(config_overrides={"learning_rate": 1}), ValueError, ["'learning_rate' to override"]),
    ("misspelt override", added(config_overrides={"grad_clp": 1}), ValueError, ["did you mean 'grad_clip'"]),
    ("override's value", added(config_overrides={"grad_clip": 0}), ValueError, ["grad_clip=0 is not allowed"]),
    ("overrides", added(config_overrides=[1]), TypeError, ["a dict of training options"]),
    ("who learns then", added(new_should_module_be_updated=["c"]), ValueError, ["names ['c']", "['a', 'b']"]),
    ("who learns, as text", added(new_should_module_be_updated="b"), TypeError, ["a list of module ids", "['b']"]),
    ("removing a stranger", lambda a: a.remove_module("x"), KeyError, ["no module 'x'", "['a']"]),
    ("removing it of a group", lambda a: LearnerGroup(a).remove_module("x"), KeyError, ["no module 'x'", "['a']"]),
    ("removing the last", lambda a: a.remove_module("a"), ValueError, ["'a' is the only module"]),
    ("remote", lambda a: LearnerGroup(a, LearnersSection(num_learners=2)), ValueError, ["num_learners=2", "cluster"]),
    ("resize", lambda a: LearnerGroup(a).resize(2), ValueError, ["resize(2)", "learners(num_learners=2)"]),
    # optimizers
    ("no module", lambda a: a.get_parameters("a"), ValueError, ["torch.nn.Module", "str"]),
    ("no parameter", lambda a: a.get_param_ref("weight"), ValueError, ["a parameter of a module", "str"]),
    ("no optimizer", lambda a: a._check_registered_optimizer([], []), ValueError, ["torch.optim.Optimizer", "list"]),
    ("no parameters", lambda a: a._check_registered_optimizer(sgd(1), ["w"]), ValueError, ["list of parameters"]),
    ("a name", lambda a: a._get_optimizer_lr("adam"), ValueError, ["torch.optim.Optimizer", "str"]),
    ("a stranger", lambda a: a._get_optimizer_lr(sgd(1)), KeyError, ["this SGD is not registered", "a.default"]),
    ("a rate for it", lambda a: a._set_optimizer_lr(sgd(1), 0.1), KeyError, ["this SGD is not registered"]),
    ("its gradients", lambda a: a.filter_param_dict_for_optimizer({}, sgd(1)), KeyError, ["is not registered"]),
    ("unknown", lambda a: a.get_optimizer("a", "critic"), KeyError, ["no optimizer 'critic'", "a.default_optimizer"]),
    ("unknown module", lambda a: a.get_optimizers_for_module("x"), KeyError, ["no module 'x'", "['a']"]),
    ("for a stranger", lambda a: registered(a, o := sgd(1), held_by(o), module_id="x"), KeyError, ["no module 'x'"]),
    ("other parameters", lambda a: registered(a, o := sgd(2, 3), held_by(o)[:1]), ValueError, ["holds 2", "lists 1"]),
    ("its name", lambda a: registered(a, o := sgd(2), held_by(o), module_id="a"), ValueError, ["already registered"]),
    (
        "a parameter twice",
        lambda a: registered(a, torch.optim.SGD(p := list(a.module.parameters()), lr=1.0), p, optimizer_name="b"),
        ValueError,
        ["already belongs to optimizer 'a.default_optimizer'"],
    ),
    ("no step", lambda a: a.optimizers.register("a", "b", torch.optim.Adam, [], 0.1), ValueError, ["at least one"]),
    *(
        (f"rate {rate}", lambda a, rate=rate: a._set_optimizer_lr(a.get_optimizer("a"), rate), ValueError, ["finite"])
        for rate in (-1.0, float("nan"), "fast", True)
    ),
    # batches
    ("a batch for two", of_two(value_batch()), ValueError, ["one module only", "['a', 'b']"]),
    ("strangers' rows", of_two(MultiAgentBatch({"x": value_batch()}, 10)), KeyError, ["rows for ['x']", "['a', 'b']"]),
    (
        "one of two lacks a column",
        of_two(MultiAgentBatch({"a": value_batch(), "b": SampleBatch(obs=value_batch()["obs"])}, 10)),
        KeyError,
        ["module 'b' lacks ['value_targets']", "['obs']", "ValueLearner.compute_loss_for_module"],
    ),
    (
        "episodes of no module",
        lambda a: a_and_b().update_from_episodes(episodes()),
        ValueError,
        ["0, which has no module_id"],
    ),
    ("a stranger's", lambda a: a.update_from_episodes([make_episode(4, module_id="z")]), KeyError, ["rows for ['z']"]),
    ("no episode", lambda a: a.update_from_episodes([{}]), TypeError, ["position 0 is a dict", "MultiAgentEpisode"]),
    ("episodes lack a column", lambda a: a.update_from_episodes(episodes()), KeyError, ["lacks ['value_targets']"]),
    ("no loss", of_class(Learner), TypeError, ["compute_loss_for_module"]),
    ("a stranger's loss", of_class(Misnamed), ValueError, ["a loss for 'everybody'", "['a']", ALL]),
    ("nothing to train", strict("build_learner"), ValueError, [*NOTHING]),
    ("nothing to train in a group", strict("build_learner_group"), ValueError, [*NOTHING]),
    # state
    ("a state twice", lambda a: (a.register_state("x", 1), a.register_state("x", 1)), ValueError, ["'x' is already"]),
    ("component", lambda a: a.get_state("optimiser"), KeyError, ["no component 'optimiser'", "'connectors'"]),
    ("not_components", lambda a: a.get_state(not_components="x"), KeyError, ["no component 'x'", "'connectors'"]),
    ("module's component", lambda a: a.get_state("rl_module/x"), KeyError, ["'rl_module/x'", "rl_module/a"]),
    ("beside the learner", lambda a: LearnerGroup(a).get_state("rl_module"), KeyError, ["'rl_module'", "'learner'"]),
    ("below the learner", lambda a: LearnerGroup(a).get_state("learner/x"), KeyError, ["no component 'x'"]),
    ("without it", lambda a: LearnerGroup(a).get_state(not_components=["x"]), KeyError, ["'x'", "'learner'"]),
    ("group's state", lambda a: LearnerGroup(a).set_state({"rl_module": {}}), ValueError, ["'learner'", "'rl_module'"]),
    ("weights of a stranger", lambda a: LearnerGroup(a).get_weights(["x"]), KeyError, ["no modules ['x']", "['a']"]),
    ("a stranger's weights", lambda a: LearnerGroup(a).set_weights({"x": {}}), ValueError, ["module 'x' is unknown"]),
    ("some weights", lambda a: LearnerGroup(a).set_weights({"a": {}}), ValueError, ["a: missing", "policy_head.bias"]),
    ("a function of three", lambda a: policy_of(lambda a, b, c: True), TypeError, ["(module_id, batch)"]),
]


def policy_of(function):
    return ppo_config().multi_agent(policies_to_train=function).build_learner()


@pytest.mark.parametrize(
    "call, error, words", [row[1:] for row in REFUSED_BY_A_LEARNER], ids=[row[0] for row in REFUSED_BY_A_LEARNER]
)
def test_a_refusal_of_a_learner_names_the_cause_and_changes_nothing(call, error, words):
    learner = value_learner(modules=("a",))
    learner.update_from_batch(value_batch())
    before, keys = parameters(learner), [entry.key for entry in learner.optimizers]
    with pytest.raises(error) as raised:
        call(learner)
    assert [word for word in words if word not in str(raised.value)] == []
    assert list(learner.module) == ["a"]
    assert [entry.key for entry in learner.optimizers] == keys
    assert (set(learner.connectors), learner.policies_to_train, learner.weights_seq_no) == ({"a"}, None, 1)
    assert_same(parameters(learner), before)


def small_a2c(space):
    config = A2CConfig().environment(observation_space=BOX, action_space=space)
    return config.rl_module(model_config={"hiddens": (4,)}).build_learner()


@pytest.mark.parametrize(
    "space, sound, wrong, allowed",
    [
        (THREE, 0, 3, "whole numbers 0 to 2 (action space Discrete(3))"),
        (THREE, 0, -1, "whole numbers 0 to 2 (action space Discrete(3))"),
        (THREE, 0.0, 0.5, "whole numbers 0 to 2 (action space Discrete(3))"),
        (spaces.MultiDiscrete([2, 3]), [0, 1], [2, 0], "0, below [2, 3]"),
        (spaces.MultiBinary(2), [0, 1], [0, 2], "0, below [2, 2]"),
    ],
)
def test_a_discrete_action_outside_its_space_is_refused_with_its_row(space, sound, wrong, allowed):
    learner, batch = small_a2c(space), ppo_batch(6, actions=np.array([sound] * 5 + [wrong]))
    before = parameters(learner)
    with pytest.raises(ValueError) as refused:
        learner.update_from_batch(batch)
    for words in (f"module '{MODULE}': column 'actions' has {wrong} at row 5; allowed are ", allowed):
        assert words in str(refused.value)
    assert_same(parameters(learner), before)


def test_discrete_action_outside_its_space_is_refused_in_episodes_too(group):
    wrong = episodes()
    wrong[1].set_actions(new_data=7, at_indices=2)
    with pytest.raises(ValueError, match="column 'actions' has 7 at row 5; allowed are whole numbers 0 to 2"):
        group.learner.update_from_episodes(wrong)


def test_actions_are_counted_from_zero_whatever_the_start_of_the_space_is():
    learner = small_a2c(spaces.Discrete(3, start=5))
    assert learner.update_from_batch(ppo_batch())[MODULE]["num_module_steps_trained"] == 24


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": [[0, 1e-3], [10, -1.0]]}, r"lr=\[\[0, 0.001\], \[10, -1.0\]\] is not allowed; .* finite"),
        ({"lr": float("inf")}, "lr=inf is not allowed; .* finite number, at least 0"),
        ({"lr": float("nan")}, "lr=nan is not allowed; .* finite number, at least 0"),
        ({"clip_param": [[0, 0.0], [10, 0.2]]}, "clip_param=.* is not allowed; it must be .*above 0"),
        ({"lr": lambda step: -1.0}, "training.lr: the function gives -1 at step 0; .* progress_remaining"),
        (
            {"lr": lambda progress: progress * 1e-3, "train_batch_size": 2048},
            "lr: .* gives 2.048 at step 2048; .* at most 1, .* progress_remaining",
        ),
        ({"lr": lambda progress: 1e-4 + progress * 1e-3}, "training.lr: the function gives .* progress_remaining"),
        ({"clip_param": lambda progress: 0.1 + 0.1 * progress}, "training.clip_param: .* progress_remaining"),
    ],
)
def test_schedules_with_values_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ppo_config(**options).build_learner()


@pytest.mark.parametrize(
    "function, trains",
    [
        (lambda module_id: True, True),
        (lambda module_id, batch: True, True),
        (lambda module_id, batch=None: True, True),
        (lambda *arguments: len(arguments) == 2, True),
        (lambda module_id, **more: True, True),
        (lambda module_id: module_id == "b", False),
    ],
)
def test_policies_to_train_may_be_a_function_of_module_id_and_batch(function, trains):
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


def test_a_progress_schedule_of_another_library_is_refused_before_the_run():
    config = PPOConfig().environment("CartPole-v1").training(lr=lambda progress: progress * 1e-4)
    config.env_runners(num_envs_per_env_runner=2).training(train_batch_size=64, minibatch_size=32)
    config.validate()
    with pytest.raises(ValueError, match=r"training.lr: the function gives 2 at step 20000; .* progress_remaining"):
        config.reporting(total_steps=200_000).build_trainer()


ROWS = 24


@pytest.mark.parametrize(
    "column, wrong, given, expected",
    [
        ("obs", np.zeros((ROWS, 4), np.float32), (ROWS, 4), (ROWS, 3)),
        ("obs", np.zeros(ROWS, np.float32), (ROWS,), (ROWS, 3)),
        ("obs", np.zeros((ROWS, 1, 3), np.float32), (ROWS, 1, 3), (ROWS, 3)),
        ("actions", np.zeros((ROWS, 1), np.int64), (ROWS, 1), (ROWS,)),
        ("advantages", np.zeros((ROWS, 1)), (ROWS, 1), (ROWS,)),
        ("value_targets", np.zeros((ROWS, 2)), (ROWS, 2), (ROWS,)),
        ("action_logp", np.zeros((ROWS, 3)), (ROWS, 3), (ROWS,)),
    ],
)
def test_a_wrong_column_shape_names_module_column_shapes_and_method(column, wrong, given, expected):
    learner, batch = ppo_config().build_learner(), ppo_batch(ROWS)
    before = parameters(learner)
    batch[column] = wrong
    with pytest.raises(ValueError) as refused:
        learner.update_from_batch(batch)
    for part in (f"module {MODULE!r}", f"column {column!r}", f"shape {given}", f"expected {expected}",
                 "PPOLearner.required_columns", "PPOLearner.compute_loss_for_module"):  # fmt: skip
        assert part in str(refused.value)
    assert_same(parameters(learner), before)
    assert learner.weights_seq_no == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda learner: learner.update_from_batch(value_batch()),
        lambda learner: learner.update_from_episodes([]),
        lambda learner: learner.get_state(),
        lambda learner: learner.set_state({}),
        lambda learner: learner.save_to_path("somewhere"),
        lambda learner: learner.restore_from_path("somewhere"),
        lambda learner: learner.add_module(module_id="b", module_spec=spec()),
        lambda learner: learner.remove_module("b"),
        lambda learner: learner.get_optimizers_for_module("b"),
    ],
)
def test_everything_of_an_unbuilt_learner_raises_runtime_error(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value_learner().save_to_path("somewhere")
    learner = ValueLearner(config=TrainingSection(), module_spec=spec())
    with pytest.raises(RuntimeError, match=r"this learner is not built; call build\(\) first"):
        use(learner)
