"""Flat parameters, registered optimizers, clipping, gradients that are not finite."""

import re

import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, NAMES, SPACES, has_option, takes
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    ValueLearner,
    WholeLearner,
    assert_same,
    differs,
    parameters,
    spec,
    told,
    train,
    value_batch,
    value_batches,
    value_learner,
)
from torch import nn

from lockstep import get_config
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import TrainingSection

NAN = float("nan")


def value_part(learner):
    module = learner.module[MODULE]
    return [*module.value_encoder.parameters(), *module.value_head.parameters()]


def policy_part(learner):
    module = learner.module[MODULE]
    return [*module.encoder.parameters(), *module.policy_head.parameters()]


# -- flat parameters ---


def test_parameters_and_gradients_are_views_of_one_flat_tensor_each():
    learner = value_learner()
    learner.update_from_batch(value_batch())
    params = list(learner.module.parameters())
    assert len({param.untyped_storage().data_ptr() for param in params}) == 1
    assert len({param.grad.untyped_storage().data_ptr() for param in params}) == 1
    flat = learner.get_optimizer(MODULE).param_groups[0]["params"]
    assert [tuple(tensor.shape) for tensor in flat] == [(sum(param.numel() for param in params),)]
    torch.testing.assert_close(flat[0].detach(), torch.cat([param.detach().reshape(-1) for param in params]))
    with torch.no_grad():
        params[0].fill_(7.0)
    assert flat[0][: params[0].numel()].eq(7.0).all()


def test_frozen_encoder_stays_as_it_is_and_the_rest_learns():
    module = spec().build(seed=3)
    module.value_encoder.requires_grad_(False)
    learner = ValueLearner(config=TrainingSection(), module_spec=module).build()
    before = parameters(learner)
    results = learner.update_from_batch(value_batch())
    changed = differs(before, parameters(learner))
    assert changed == [f"rl_modules.{MODULE}.value_head.weight", f"rl_modules.{MODULE}.value_head.bias"]
    frozen = sum(param.numel() for param in module.value_encoder.parameters())
    everything = sum(param.numel() for param in module.parameters())
    assert results[MODULE]["num_trainable_parameters"] == everything - frozen
    (flat,) = learner.get_optimizer(MODULE).param_groups[0]["params"]
    assert flat.numel() == everything - frozen  # no moments, no clipping, no all-reduce for what is frozen


# -- optimizers of one's own ---


class TwoOptimizers(WholeLearner):
    """SGD with momentum for the value network, the default kind for the policy's."""

    def configure_optimizers_for_module(self, module_id, config):
        self.register_optimizer(
            module_id=module_id,
            optimizer_name="value",
            optimizer=torch.optim.SGD(value_part(self), lr=0.5, momentum=0.9),
            params=value_part(self),
            lr_or_lr_schedule=[[0, 0.1], [100, 0.05]],
        )
        self.register_optimizer(
            module_id=module_id,
            optimizer_name="policy",
            optimizer=torch.optim.Adam(policy_part(self), lr=config.lr),
            params=policy_part(self),
        )


def test_second_optimizer_for_the_value_network_steps_as_in_plain_torch():
    learner = value_learner(TwoOptimizers, lr=0.01)
    copy = spec().build().double()
    copy.load_state_dict(learner.module[MODULE].state_dict())
    plain = [
        torch.optim.SGD([*copy.value_encoder.parameters(), *copy.value_head.parameters()], lr=0.1, momentum=0.9),
        torch.optim.Adam([*copy.encoder.parameters(), *copy.policy_head.parameters()], lr=0.01),
    ]
    for seed in range(4):
        batch = value_batch(seed=seed)
        learner.update_from_batch(batch)
        out = copy.forward_train({"obs": torch.from_numpy(batch["obs"]).double()})
        loss = (out["vf_preds"] - torch.from_numpy(batch["value_targets"])).square().mean()
        loss = loss + out["action_dist_inputs"].square().sum(-1).mean()
        copy.zero_grad()
        loss.backward()
        for optimizer in plain:
            optimizer.step()
    for (name, own), other in zip(learner.module[MODULE].named_parameters(), copy.parameters()):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12, msg=name)


def test_each_optimizer_has_its_own_schedule_and_results():
    learner = value_learner(TwoOptimizers, lr=0.01)
    results = learner.update_from_batch(value_batch(), timesteps={"num_env_steps_sampled_lifetime": 50})[MODULE]
    assert results["value_learning_rate"] == pytest.approx(0.075)
    assert results["policy_learning_rate"] == 0.01
    assert results["value_learning_rate"] != results["policy_learning_rate"]
    assert results["gradients_value_global_norm"] > 0
    assert results["gradients_policy_global_norm"] > 0


class OwnGroups(ValueLearner):
    """An optimizer whose parameter groups have rates of their own."""

    def configure_optimizers_for_module(self, module_id, config):
        groups = [{"params": value_part(self), "lr": 1e-5}, {"params": policy_part(self)}]
        self.register_optimizer(
            module_id=module_id,
            optimizer=torch.optim.Adam(groups, lr=1e-2),
            params=[*value_part(self), *policy_part(self)],
        )


def test_registering_without_a_rate_keeps_the_rates_of_all_groups():
    learner, other = value_learner(OwnGroups, lr=0.3), value_learner(OwnGroups)

    def rates():
        return [group["lr"] for group in learner.get_optimizer(MODULE).param_groups]

    assert rates() == [1e-5, 1e-2]
    for now in (0, 1000):
        learner.update_from_batch(value_batch(), timesteps={"num_env_steps_sampled_lifetime": now})
        assert rates() == [1e-5, 1e-2]
    learner.set_state(other.get_state())
    learner.update_from_batch(value_batch())
    assert rates() == [1e-5, 1e-2]
    learner.get_optimizer(MODULE).param_groups[0]["lr"] = 2e-5
    learner.update_from_batch(value_batch())
    assert rates() == [2e-5, 1e-2]


def test_optimizer_that_needs_a_closure_is_refused_when_it_is_registered():
    learner = value_learner()
    extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="LBFGS needs a closure"):
        learner.register_optimizer(
            module_id=MODULE, optimizer_name="extra", optimizer=torch.optim.LBFGS([extra]), params=[extra]
        )


def test_filter_param_dict_for_optimizer_gives_its_part_only():
    learner = value_learner(TwoOptimizers)
    gradients = {param: index for index, param in enumerate(learner.module.parameters())}
    value = value_part(learner)
    part = learner.filter_param_dict_for_optimizer(gradients, learner.get_optimizer(MODULE, "value"))
    assert part == {param: gradients[param] for param in value}
    assert learner.filter_param_dict_for_optimizer({value[0]: 1}, learner.get_optimizer(MODULE, "policy")) == {}


def test_learning_rate_of_an_optimizer_can_be_read_and_set():
    learner = value_learner(TwoOptimizers, lr=0.1)
    optimizer = learner.get_optimizer(MODULE, "policy")
    assert learner._get_optimizer_lr(optimizer) == 0.1
    learner._set_optimizer_lr(optimizer, 0.025)
    assert learner._get_optimizer_lr(optimizer) == optimizer.param_groups[0]["lr"] == 0.025
    assert learner._get_optimizer_lr(learner.get_optimizer(MODULE, "value")) == 0.1
    results = learner.update_from_batch(value_batch())
    assert results[MODULE]["policy_learning_rate"] == 0.025


@pytest.mark.parametrize("cls", [ValueLearner, TwoOptimizers])
def test_optimizer_state_makes_an_exact_round_trip(cls):
    learner, other = value_learner(cls), value_learner(cls)
    for number in range(3):
        learner.update_from_batch(value_batch(seed=number))
    other.set_state(learner.get_state("rl_module"))
    other._set_optimizer_state(learner._get_optimizer_state())
    train((learner, other), value_batch(seed=9))
    assert_same(parameters(learner), parameters(other))
    state = learner._get_optimizer_state()
    key = next(iter(state))
    del state[key]
    with pytest.raises(ValueError, match=re.escape(f"missing [{key!r}]")):
        other._set_optimizer_state(state)


# -- which optimizer ---


OPTIMIZERS = {
    "adam": ("adam", {"betas": (0.8, 0.9)}, torch.optim.Adam, {"eps": 1e-8}),
    "adam that decays": ("adam", {"weight_decay": 0.1, "amsgrad": True}, torch.optim.Adam, {"eps": 1e-8}),
    "adamw": ("adamw", {"weight_decay": 0.1}, torch.optim.AdamW, {"eps": 1e-8}),
    "rmsprop": ("rmsprop", {"alpha": 0.9, "momentum": 0.5, "centered": True}, torch.optim.RMSprop, {}),
    "sgd": ("sgd", {"momentum": 0.9, "nesterov": True}, torch.optim.SGD, {}),
    "a class": (torch.optim.Adagrad, {"lr_decay": 0.1}, torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_configured_optimizer_steps_as_torchs_own_on_single_parameters(name):
    kind, settings, cls, added = OPTIMIZERS[name]
    learner = value_learner(optimizer=kind, optimizer_kwargs=settings, lr=[[0, 0.01], [100, 0.0]], grad_clip=0.1)
    twin = value_learner(
        type("Own", (ValueLearner,), {"configure_optimizers_for_module": own_optimizer(cls, {**settings, **added})}),
        grad_clip=0.1,
    )
    (entry,) = learner.optimizers
    assert (entry.steps_flat, type(entry.optimizer)) == (True, cls)
    for update in range(12):
        train((learner, twin), value_batch(seed=update))
    for name, value in parameters(learner).items():
        torch.testing.assert_close(value, parameters(twin)[name], rtol=1e-12, atol=1e-12, msg=name)


def own_optimizer(cls, settings):
    def configure(self, module_id, config):
        params = list(self.module[module_id].parameters())
        optimizer = cls(params, lr=0.01, **settings)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=[[0, 0.01], [100, 0.0]]
        )

    return configure


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_optimizer_of_every_algorithm_is_the_configured_one(algorithm):
    actions = SPACES["discrete" if takes(algorithm, "discrete") else "box"]
    config = get_config(algorithm).rl_module(model_config={"hiddens": (2,)})
    config.training(optimizer="sgd", optimizer_kwargs={"momentum": 0.5})
    if has_option(algorithm, "lagrangian"):
        config.training(lagrangian=True)
    optimizers = config.build_learner(spaces=(BOX, actions)).optimizers
    assert len(optimizers) >= 1
    found = {entry.name: (type(entry.optimizer), entry.optimizer.param_groups[0]["momentum"]) for entry in optimizers}
    for own in ALGORITHM_CASES[algorithm].steps_itself:
        del found[own]
    assert set(found.values()) == {(torch.optim.SGD, 0.5)}
    assert found.keys() >= ALGORITHM_CASES[algorithm].optimizers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_configured_optimizer_continues_exactly_from_a_checkpoint(name, tmp_path):
    kind, settings, *_ = OPTIMIZERS[name]
    learner, other = (value_learner(optimizer=kind, optimizer_kwargs=settings) for _ in range(2))
    for number in range(3):
        learner.update_from_batch(value_batch(seed=number))
    learner.save_to_path(tmp_path / "learner")
    other.restore_from_path(tmp_path / "learner")
    train((learner, other), value_batch(seed=9))
    assert_same(parameters(learner), parameters(other))


def test_state_of_another_optimizer_is_refused_by_name():
    learner, other = value_learner(), value_learner(optimizer="sgd")
    learner.update_from_batch(value_batch())
    with pytest.raises(ValueError, match=r"is SGD, and the state is of another one .* training\.optimizer"):
        other._set_optimizer_state(learner._get_optimizer_state())


def test_a_continued_run_uses_the_settings_of_its_configuration():
    learner = value_learner(optimizer="adamw", optimizer_kwargs={"weight_decay": 0.1})
    other = value_learner(optimizer="adamw", optimizer_kwargs={"weight_decay": 0.3}, adam_epsilon=1e-3)
    other._set_optimizer_state(learner._get_optimizer_state())
    group = other.get_optimizer(MODULE).param_groups[0]
    assert (group["weight_decay"], group["eps"], group["lr"]) == (0.3, 1e-3, 3e-4)


@pytest.mark.parametrize("kind", ["adamw", "rmsprop", "sgd"])
def test_frozen_parameters_and_bad_gradients_leave_optimizers_unchanged(kind):
    settings = {"weight_decay": 0.1, **({} if kind == "adamw" else {"momentum": 0.9})}
    learner = value_learner(optimizer=kind, optimizer_kwargs=settings, lr=0.1)
    learner.update_from_batch(value_batch())
    before = parameters(learner)
    with pytest.warns(RuntimeWarning, match="not finite"):
        learner.update_from_batch(poisoned())
    assert differs(before, parameters(learner)) == []
    learner.module[MODULE].value_head.requires_grad_(False)
    learner.update_from_batch(value_batch(seed=1))
    changed = differs(before, parameters(learner))
    assert changed
    assert [name for name in changed if "value_head" in name] == []


def test_denormal_numbers_are_flushed_from_the_moments_of_any_optimizer():
    learner = value_learner(optimizer="sgd", optimizer_kwargs={"momentum": 0.9})
    learner.update_from_batch(value_batch())
    (entry,) = learner.optimizers
    momentum = entry.optimizer.state[entry.flat.parameter]["momentum_buffer"]
    sound = torch.arange(len(momentum)) > 0
    momentum.fill_(1e-20)[0] = 1e-300
    entry.flush_denormals()
    assert momentum[0] == 0.0
    assert momentum.ne(0.0).equal(sound)


# -- clipping ---


class GradientLearner(ValueLearner):
    """Keeps the gradients before and after they are postprocessed, and notes for which modules they are."""

    def build(self):
        self.calls, self.factors = [], {}
        return super().build()

    def postprocess_gradients(self, gradients):
        self.raw = {param: gradient.clone() for param, gradient in gradients.items()}
        self.clipped = super().postprocess_gradients(gradients)
        return self.clipped

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients_dict):
        self.calls.append((module_id, config.grad_clip, len(module_gradients_dict)))
        clipped = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        return {param: self.factors.get(module_id, 1) * gradient for param, gradient in clipped.items()}


class AllTogether(GradientLearner):
    """One optimizer over all modules, whose step is the gradient."""

    def configure_optimizers(self):
        params = list(self.module.parameters())
        self.register_optimizer(optimizer=torch.optim.SGD(params, lr=1.0), params=params)


def norm_of(gradients, params):
    return torch.cat([gradients[param].reshape(-1) for param in params]).norm()


@pytest.mark.parametrize("by", ["value", "norm", "global_norm"])
@pytest.mark.parametrize("cls", [GradientLearner, AllTogether])
def test_clipping_by_value_norm_and_global_norm(cls, by):
    limit = 0.05
    learner = value_learner(cls, modules=("a", "b"), grad_clip=limit, grad_clip_by=by)
    before = {param: param.detach().clone() for param in learner.module.parameters()}
    learner.update_from_batch(value_batches("a", "b"))
    assert learner.calls == ([("a", limit, 8), ("b", limit, 8)] if cls is GradientLearner else [(ALL, limit, 16)])
    assert set(learner.clipped) == set(before)
    for part in learner.module.values() if cls is GradientLearner else [learner.module]:
        params = list(part.parameters())
        total = norm_of(learner.raw, params)
        assert total > limit
        for param in params:
            raw = learner.raw[param]
            if by == "value":
                expected = raw.clamp(-limit, limit)
            else:
                expected = raw * min(1.0, limit / (float(raw.norm() if by == "norm" else total) + 1e-6))
            torch.testing.assert_close(learner.clipped[param], expected, rtol=1e-9, atol=1e-12)
            if cls is AllTogether:
                torch.testing.assert_close(before[param] - param, expected, rtol=1e-9, atol=1e-12)
        large = max(params, key=lambda param: learner.raw[param].abs().max())
        assert not torch.equal(learner.raw[large], learner.clipped[large])


def test_each_module_is_clipped_by_its_own_config():
    tight = TrainingSection(grad_clip=1e-3)
    learner = value_learner(GradientLearner, modules=("a", "b"), module_configs={"b": tight})
    learner.update_from_batch(value_batches("a", "b"))
    a, b = (float(norm_of(learner.clipped, module.parameters())) for module in learner.module.values())
    assert b == pytest.approx(1e-3, rel=1e-2)
    assert a > 0.01


def test_gradients_are_postprocessed_module_by_module_with_its_own_config():
    sections = {"b": TrainingSection(grad_clip=0.5)}
    learner, plain = (value_learner(GradientLearner, modules=("a", "b"), module_configs=sections) for _ in range(2))
    learner.factors["b"] = 2
    train((learner, plain), value_batches("a", "b"))
    assert learner.calls == [("a", None, 8), ("b", 0.5, 8)]
    for param, other in zip(learner.module["b"].parameters(), plain.module["b"].parameters()):
        torch.testing.assert_close(param.grad, 2 * other.grad)
    assert_same(dict(learner.module["a"].state_dict()), dict(plain.module["a"].state_dict()))


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


def poisoned(rows=6, at=0, value=NAN):
    batch = value_batch(rows)
    batch["value_targets"][at] = value
    return batch


def optimizer_moments(learner):
    state = learner.get_state("optimizer")["optimizer"]
    return {
        f"{key}.{index}.{name}": torch.as_tensor(tensor)
        for key, entry in state.items()
        for index, values in entry["state"].items()
        for name, tensor in values.items()
    }


@pytest.mark.parametrize("cls", [WholeLearner, TwoOptimizers])
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_nan_policy_skip_leaves_parameters_and_moments_and_counts(cls, value):
    learner = value_learner(cls, grad_clip=0.5, **({"lr": 0.01} if cls is TwoOptimizers else {}))
    learner.update_from_batch(value_batch(), minibatch_size=5)
    touched = value_part(learner) if cls is TwoOptimizers else list(learner.module.parameters())
    before = [param.detach().clone() for param in touched]
    moments = optimizer_moments(learner)
    results = learner.update_from_batch(poisoned(5, 2, value))
    assert results[ALL]["num_bad_gradients"] == 1
    assert all(torch.equal(old, new) for old, new in zip(before, touched))
    kept = {key: tensor for key, tensor in moments.items() if cls is WholeLearner or ".value." in key}
    after = optimizer_moments(learner)
    assert_same(kept, {key: after[key] for key in kept})
    results = learner.update_from_batch(value_batch(5, seed=3))
    assert results[ALL]["num_bad_gradients"] == 0
    assert not all(torch.equal(old, new) for old, new in zip(before, touched))


def test_nan_policy_skip_leaves_out_only_the_bad_gradient_steps():
    poisonous, clean = value_learner(WholeLearner), value_learner(WholeLearner)
    results = poisonous.update_from_batch(poisoned(12, 5), minibatch_size=4)
    assert results[ALL]["num_bad_gradients"] == 1
    assert results[ALL]["num_minibatches"] == 3
    whole = value_batch(12)
    for rows in (slice(0, 4), slice(8, 12)):
        clean.update_from_batch(whole[rows])
    assert_same(parameters(poisonous), parameters(clean))


@pytest.mark.parametrize("grad_clip", [None, 0.5])
def test_nan_policy_stop_names_the_first_bad_tensor_and_moves_nothing(grad_clip):
    learner = value_learner(WholeLearner, nan_policy="stop", grad_clip=grad_clip)
    before = parameters(learner)
    with pytest.raises(FloatingPointError) as stopped:
        learner.update_from_batch(poisoned())
    assert f"rl_modules.{MODULE}.value_encoder.mlp.0.weight" in str(stopped.value)
    assert "nan_policy='skip'" in str(stopped.value)
    assert_same(parameters(learner), before)


@pytest.mark.parametrize("grad_clip", [None, 0.5])
def test_nan_policy_zero_steps_on_with_the_finite_part(grad_clip):
    learner = value_learner(WholeLearner, nan_policy="zero", grad_clip=grad_clip)
    before = parameters(learner)
    results = learner.update_from_batch(poisoned())
    assert results[ALL]["num_bad_gradients"] == 1
    changed = differs(before, parameters(learner))
    assert changed
    assert not any(".value_" in name for name in changed)
    assert all(tensor.isfinite().all() for tensor in parameters(learner).values())


@pytest.mark.parametrize("policy", ["skip", "zero"])
@pytest.mark.parametrize("cls", [ValueLearner, TwoOptimizers])
def test_first_bad_tensor_is_named_though_later_gradients_are_sound(policy, cls):
    learner = value_learner(cls, nan_policy=policy)
    with pytest.warns(RuntimeWarning, match=r"1 gradient steps had .*first bad tensor: rl_modules\.default_policy"):
        results = learner.update_from_batch(poisoned(12), minibatch_size=4)  # the first of three minibatches
    assert results[ALL]["num_bad_gradients"] == 1
    assert learner.first_bad_tensor == f"rl_modules.{MODULE}.value_encoder.mlp.0.weight"
    assert not told(lambda: learner.update_from_batch(value_batch()))


def test_nan_policy_can_be_each_modules_own():
    sections = {"b": TrainingSection(nan_policy="stop")}
    learner = value_learner(modules=("a", "b"), module_configs=sections)
    with pytest.warns(RuntimeWarning, match=r"first bad tensor: rl_modules\.a"):
        learner.update_from_batch(MultiAgentBatch({"a": poisoned(), "b": value_batch(6)}, 6))
    with pytest.raises(FloatingPointError, match=r"first bad tensor: rl_modules\.b"):
        learner.update_from_batch(MultiAgentBatch({"a": value_batch(6), "b": poisoned()}, 6))
