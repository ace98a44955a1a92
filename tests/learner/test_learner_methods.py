"""The learner's rows of the contract that no other file shows: optimizers' methods, tensors, hooks for gradients."""

import re
import warnings

import numpy as np
import pytest
import torch
from learner_parts import (
    ALL,
    MODULE,
    ValueLearner,
    assert_same,
    differs,
    episodes,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    value_batch,
    value_learner,
)
from torch import nn

from lockstep import PPOConfig, policy_within_training_step
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import TrainingSection

NAN = float("nan")


class TwoOptimizers(ValueLearner):
    """Adam for the policy network, momentum for the value network."""

    def configure_optimizers_for_module(self, module_id, config):
        module = self.module[module_id]
        for name, parts, make in (
            ("policy", (module.encoder, module.policy_head), torch.optim.Adam),
            ("value", (module.value_encoder, module.value_head), torch.optim.SGD),
        ):
            params = [param for part in parts for param in self.get_parameters(part)]
            self.register_optimizer(
                module_id=module_id, optimizer_name=name, optimizer=make(params, lr=0.1), params=params
            )


# -- optimizers ---


def test_filter_param_dict_for_optimizer_gives_its_part_only():
    learner = value_learner(TwoOptimizers)
    gradients = {param: index for index, param in enumerate(learner.module.parameters())}
    module = learner.module[MODULE]
    value = [*module.value_encoder.parameters(), *module.value_head.parameters()]
    part = learner.filter_param_dict_for_optimizer(gradients, learner.get_optimizer(MODULE, "value"))
    assert part == {param: gradients[param] for param in value}
    assert learner.filter_param_dict_for_optimizer({value[0]: 1}, learner.get_optimizer(MODULE, "policy")) == {}


def test_learning_rate_of_an_optimizer_can_be_read_and_set():
    learner = value_learner(TwoOptimizers)
    optimizer = learner.get_optimizer(MODULE, "value")
    assert learner._get_optimizer_lr(optimizer) == 0.1
    learner._set_optimizer_lr(optimizer, 0.025)
    assert learner._get_optimizer_lr(optimizer) == optimizer.param_groups[0]["lr"] == 0.025
    assert learner._get_optimizer_lr(learner.get_optimizer(MODULE, "policy")) == 0.1
    results = learner.update_from_batch(value_batch())
    assert results[MODULE]["value_learning_rate"] == 0.025


@pytest.mark.parametrize("cls", [ValueLearner, TwoOptimizers])
def test_optimizer_state_makes_an_exact_round_trip(cls):
    learner, other = value_learner(cls), value_learner(cls)
    for number in range(3):
        learner.update_from_batch(value_batch(seed=number))
    other.set_state(learner.get_state("rl_module"))
    other._set_optimizer_state(learner._get_optimizer_state())
    for each in (learner, other):
        each.update_from_batch(value_batch(seed=9))
    assert_same(parameters(learner), parameters(other))
    state = learner._get_optimizer_state()
    key = next(iter(state))
    del state[key]
    with pytest.raises(ValueError, match=re.escape(f"missing [{key!r}]")):
        other._set_optimizer_state(state)


# -- tensors ---


@pytest.mark.parametrize(
    "value, dtype",
    [
        (1.5, torch.float32),
        ([1.0, 2.0], torch.float32),
        (np.zeros(2), torch.float32),
        (torch.zeros(2, dtype=torch.float64), torch.float32),
        (3, torch.int64),
        (np.zeros(2, np.int32), torch.int32),
        (True, torch.bool),
        (np.zeros(2, np.uint8), torch.uint8),
    ],
)
def test_tensor_variable_is_float32_for_floats_and_keeps_the_kind_of_the_rest(value, dtype):
    tensor = value_learner(build=False)._get_tensor_variable(value)
    assert (tensor.dtype, tensor.requires_grad) == (dtype, False)
    np.testing.assert_array_equal(np.asarray(tensor), np.asarray(value))


def test_tensor_variable_is_a_copy_and_a_parameter_where_it_is_to_be_trained():
    learner, source = value_learner(build=False), torch.zeros(2)
    variable = learner._get_tensor_variable(source, dtype=torch.float64, trainable=True)
    assert isinstance(variable, nn.Parameter)
    assert (variable.dtype, variable.requires_grad) == (torch.float64, True)
    source.fill_(7.0)
    assert variable.tolist() == [0.0, 0.0]


# -- gradients ---


class PerModule(ValueLearner):
    """Notes for which modules gradients are postprocessed, and doubles those of one."""

    def build(self):
        self.calls = []
        return super().build()

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients_dict):
        self.calls.append((module_id, config.grad_clip, len(module_gradients_dict)))
        clipped = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        return {param: 2 * gradient for param, gradient in clipped.items()} if module_id == "b" else clipped


def test_gradients_are_postprocessed_module_by_module_with_its_own_config():
    sections = {"b": TrainingSection(grad_clip=0.5)}
    learner = value_learner(PerModule, modules=("a", "b"), module_configs=sections)
    plain = value_learner(modules=("a", "b"), module_configs=sections)
    batch = MultiAgentBatch({"a": value_batch(), "b": value_batch(seed=1)}, 10)
    for each in (learner, plain):
        each.update_from_batch(batch)
    assert learner.calls == [("a", None, 8), ("b", 0.5, 8)]
    own = dict(zip(learner.module["b"].parameters(), plain.module["b"].parameters()))
    for param, other in own.items():
        torch.testing.assert_close(param.grad, 2 * other.grad)
    assert_same(dict(learner.module["a"].state_dict()), dict(plain.module["a"].state_dict()))


class AllTogether(PerModule):
    """One optimizer over all modules."""

    def configure_optimizers(self):
        params = list(self.module.parameters())
        self.register_optimizer(optimizer=torch.optim.SGD(params, lr=1.0), params=params)


@pytest.mark.parametrize("by", ["value", "norm", "global_norm"])
def test_three_kinds_of_clipping_hold_for_an_optimizer_under_all_modules_too(by):
    limit = 0.05
    learners = [
        value_learner(AllTogether, modules=("a", "b"), grad_clip=clip, grad_clip_by=by) for clip in (None, limit)
    ]
    before = parameters(learners[0])
    batch = MultiAgentBatch({"a": value_batch(), "b": value_batch(seed=1)}, 10)
    for learner in learners:
        learner.update_from_batch(batch)
        assert learner.calls == [(ALL, learner.config.grad_clip, 16)]
    raw, clipped = (
        {name: before[name] - tensor for name, tensor in parameters(learner).items()} for learner in learners
    )  # lr 1: the step is the gradient
    total = torch.cat([gradient.reshape(-1) for gradient in raw.values()]).norm()
    assert total > limit
    for name, gradient in raw.items():
        expected = {
            "value": gradient.clamp(-limit, limit),
            "norm": gradient * min(1.0, limit / (float(gradient.norm()) + 1e-6)),
            "global_norm": gradient * (limit / (float(total) + 1e-6)),
        }[by]
        torch.testing.assert_close(clipped[name], expected, rtol=1e-9, atol=1e-12)


def test_clip_function_of_ones_own_is_used():
    class SignClip(ValueLearner):
        def _get_clip_function(self):
            def clip(tensors, limit, by, norm):
                for tensor in tensors:
                    tensor.sign_().mul_(limit)

            return clip

    learner = value_learner(SignClip, grad_clip=0.125)
    learner.update_from_batch(value_batch())
    assert {abs(value) for param in learner.module.parameters() for value in param.grad.unique().tolist()} <= {0, 0.125}


def test_postprocessing_that_loses_a_gradient_is_refused_with_its_shape():
    class Loses(ValueLearner):
        def postprocess_gradients(self, gradients):
            return dict(list(gradients.items())[1:])

    learner = value_learner(Loses)
    before = parameters(learner)
    with pytest.raises(ValueError, match=r"lack a parameter of shape \(4, 3\) of optimizer 'default_policy\."):
        learner.update_from_batch(value_batch())
    assert_same(parameters(learner), before)


# -- gradients that are not finite ---


def poisoned(rows=6):
    batch = value_batch(rows)
    batch["value_targets"][0] = NAN
    return batch


@pytest.mark.parametrize("policy", ["skip", "zero"])
@pytest.mark.parametrize("cls", [ValueLearner, TwoOptimizers])
def test_first_bad_tensor_is_named_though_later_gradients_are_sound(policy, cls):
    learner = value_learner(cls, nan_policy=policy)
    with pytest.warns(RuntimeWarning, match=r"1 gradient steps had .*first bad tensor: rl_modules\.default_policy"):
        results = learner.update_from_batch(poisoned(12), minibatch_size=4)  # the first of three minibatches
    assert results[ALL]["num_bad_gradients"] == 1
    assert learner.first_bad_tensor == f"rl_modules.{MODULE}.value_encoder.mlp.0.weight"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learner.update_from_batch(value_batch())[ALL]["num_bad_gradients"] == 0


def test_bad_gradient_under_all_modules_is_named_by_module():
    learner = value_learner(AllTogether, modules=("a", "b"))
    before = parameters(learner)
    with pytest.warns(RuntimeWarning, match=r"first bad tensor: rl_modules\.b\.value_encoder"):
        learner.update_from_batch(MultiAgentBatch({"a": value_batch(6), "b": poisoned(6)}, 6))
    assert_same(parameters(learner), before)


def test_nan_policy_can_be_each_modules_own():
    sections = {"b": TrainingSection(nan_policy="stop")}
    learner = value_learner(modules=("a", "b"), module_configs=sections)
    with pytest.warns(RuntimeWarning, match=r"first bad tensor: rl_modules\.a"):
        learner.update_from_batch(MultiAgentBatch({"a": poisoned(), "b": value_batch(6)}, 6))
    with pytest.raises(FloatingPointError, match=r"first bad tensor: rl_modules\.b"):
        learner.update_from_batch(MultiAgentBatch({"a": value_batch(6), "b": poisoned()}, 6))


# -- update options, apply, shutdown ---


def test_apply_calls_a_function_with_the_learner():
    learner = value_learner()
    assert learner.apply(lambda each, add: each.weights_seq_no + add, 5) == 5


def test_learner_can_go_on_after_shutdown():
    learner, other = value_learner(), value_learner()
    learner.update_from_batch(value_batch())
    other.update_from_batch(value_batch())
    learner.shutdown()
    for each in (learner, other):
        each.update_from_batch(value_batch(seed=1))
    assert_same(parameters(learner), parameters(other))


# -- results ---


def test_results_have_every_name_of_the_contract():
    learner = ppo_config().build_learner()
    results = learner.update_from_episodes(episodes((9, 7, 8)), minibatch_size=8, num_epochs=2)
    assert {
        "total_loss", "policy_loss", "vf_loss", "vf_explained_var", "entropy", "mean_kl_loss",
        "gradients_default_optimizer_global_norm", "default_optimizer_learning_rate", "num_module_steps_trained",
        "num_module_steps_trained_lifetime", "module_train_batch_size_mean", "weights_seq_no",
        "diff_num_grad_updates_vs_sampler_policy", "num_trainable_parameters",
    } <= results[MODULE].keys()  # fmt: skip
    assert {
        "num_env_steps_trained", "num_env_steps_trained_lifetime", "num_minibatches", "num_updates_skipped",
        "seconds_pipeline", "seconds_forward_backward", "seconds_reduction", "seconds_step",
    } <= results[ALL].keys()  # fmt: skip
    assert {type(value) for part in results.values() for value in part.values()} <= {int, float}


def test_seconds_of_the_stages_add_up_to_those_of_the_gradient_steps():
    learner = ppo_config().build_learner()
    results = learner.update_from_batch(ppo_batch(200), minibatch_size=8, num_epochs=2)[ALL]
    stages = [results[f"seconds_{name}"] for name in ("forward_backward", "reduction", "step")]
    assert min(stages) > 0
    assert 0.5 * results["seconds_gradient_steps"] < sum(stages) < results["seconds_gradient_steps"]
    again = learner.update_from_batch(ppo_batch(8))[ALL]
    assert again["seconds_step"] < results["seconds_step"]  # each update's own, not the sum


def test_results_say_how_old_the_weights_were_that_acted():
    learner = value_learner()
    for lag in (0, 1, 2):
        batch = value_batch()
        batch["weights_seq_no"] = np.zeros(len(batch), np.int64)
        assert learner.update_from_batch(batch)[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == lag
    batch["weights_seq_no"] = np.array([3, 2] * 5)
    assert learner.update_from_batch(batch)[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 0.5
    assert learner.update_from_batch(value_batch())[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 0


def test_lag_is_read_from_a_rollout_store_and_from_episodes():
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy = config.env_runners(num_envs_per_env_runner=2).build_policy()
    learner, collector = policy.learner_group.learner, config.build_collector(policy)
    collector.buffer = RolloutStore(8, 2, collector.observation_space, policy.action_space)
    with policy_within_training_step(policy):
        collector.collect(n_step=16)
    collector.close()
    for lag in (0, 1):
        results = learner.update_from_episodes(collector.buffer.episodes())
        assert results[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == lag
    episode = SingleAgentEpisode(
        observations=np.zeros((4, 4), np.float32),
        actions=np.zeros(3, np.int64),
        rewards=np.zeros(3),
        extra_model_outputs={"weights_seq_no": np.array([1, 1, 1])},
    )
    results = learner.update_from_episodes([episode])
    assert results[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 1


def test_single_and_several_specs_modules_and_nothing_else_are_taken():
    section, framework = TrainingSection(), value_learner(build=False).framework
    for given in (spec(), spec().build(seed=0)):
        learner = ValueLearner(config=section, module_spec=given, framework=framework).build()
        assert list(learner.module) == [MODULE]
    with pytest.raises(TypeError, match=r"a MultiRLModuleSpec or a built module, not Linear; wrap_module\(\)"):
        ValueLearner(config=section, module_spec=nn.Linear(3, 3), framework=framework).build()
    assert differs(parameters(learner), parameters(value_learner(seed=4)))


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_step_where_the_host_must_not_wait_follows_the_same_policy(policy, monkeypatch):
    """The form of the step for a GPU, on the CPU: what is bad is found, counted and named without asking the device."""
    learner = value_learner()
    learner.update_from_batch(value_batch())
    (entry,) = learner.optimizers
    before, moments = parameters(learner), [tensor.clone() for tensor in entry.adam_state()]
    for bad in (False, True):
        entry.flat.grad.fill_(0.5)
        if bad:
            entry.flat.grad_views[2][0, 0] = float("inf")
        skip = entry._look_on_device(policy)
        assert (skip is None) == (policy == "zero")
        if bad:
            monkeypatch.setattr(entry, "on_host", False)
            monkeypatch.setattr(type(entry), "_look_on_device", lambda self, policy, skip=skip: skip)
            entry.step(policy)
            assert differs(before, parameters(learner)) == ([] if policy == "skip" else list(before))
            same = [torch.equal(*pair) for pair in zip(moments, entry.adam_state())]
            assert same == [policy == "skip"] * 3
    assert float(entry.bad_steps) == 1
    assert entry.flat.grad.isfinite().all() == (policy == "zero")
    assert entry.take_bad_parameter() is entry.flat.params[2]
    assert entry.take_bad_parameter() is None
