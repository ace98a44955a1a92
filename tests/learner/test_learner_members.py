"""Modules that come and go while training goes on, shared parameters and optimizers, who learns."""

import numpy as np
import pytest
import torch
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    ValueLearner,
    assert_same,
    differs,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    train,
    value_batch,
    value_batches,
    value_learner,
)
from torch import nn

from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import TrainingSection
from lockstep.modules import MultiRLModule, MultiRLModuleSpec, wrap_module


def of_module(learner, module_id):
    return {name: tensor.clone() for name, tensor in learner.module[module_id].state_dict().items()}


# -- adding ---


def test_added_module_trains_and_changes_nothing_for_the_others():
    learner, alone = value_learner(modules=("a",), lr=0.01), value_learner(modules=("a",), lr=0.01)
    train((learner, alone), value_batches("a"))
    made = learner.add_module(module_id="b", module_spec=spec())
    assert isinstance(made, MultiRLModuleSpec)
    assert list(made.rl_module_specs) == list(learner.module) == ["a", "b"]
    before = of_module(learner, "b")
    for number in range(3):
        results = learner.update_from_batch(value_batches("a", "b", seed=number))
        alone.update_from_batch(value_batches("a", seed=number))
    assert_same(of_module(learner, "a"), of_module(alone, "a"))
    assert differs(before, of_module(learner, "b"))
    assert results["b"]["num_module_steps_trained_lifetime"] == 30
    assert results["a"]["num_module_steps_trained_lifetime"] == 40


def test_added_module_starts_from_weights_that_depend_on_seed_and_id_only():
    first, second, other = value_learner(), value_learner(), value_learner(seed=1)
    second.update_from_batch(value_batch())
    torch.manual_seed(5)
    for learner in (first, second, other):
        learner.add_module(module_id="b", module_spec=spec())
    assert_same(of_module(first, "b"), of_module(second, "b"))
    assert differs(of_module(first, "b"), of_module(other, "b"))


def test_algorithms_state_comes_and_goes_with_a_module():
    learner = ppo_config(kl_coeff=0.3).build_learner()
    learner.add_module(module_id="b", module_spec=spec(), config_overrides={"kl_coeff": 0.7})
    assert float(learner.registered["b/kl_coeff"]) == pytest.approx(0.7)
    batch = ppo_batch(action_dist_inputs=np.zeros((24, 3)))
    learner.update_from_batch(MultiAgentBatch({MODULE: batch, "b": batch}, len(batch)))
    assert "b/kl_coeff" in learner.get_state()["registered"]
    learner.remove_module("b")
    state = learner.get_state()
    assert set(state["registered"]) == {f"{MODULE}/kl_coeff"}
    assert set(state["coefficients"]) == {f"{MODULE}/clip_param", f"{MODULE}/entropy_coeff"}


class PickyLearner(ValueLearner):
    """Takes modules with a value network only, and fails while it sets up a module called bad."""

    def _is_module_compatible_with_learner(self, module):
        return hasattr(module, "value_head")

    def configure_optimizers_for_module(self, module_id, config):
        self.register_state(f"{module_id}/count", 0)
        super().configure_optimizers_for_module(module_id, config)
        if module_id == "bad":
            raise OSError("half way")


def test_incompatible_module_is_refused_by_id_when_built_and_when_added():
    plain = wrap_module(nn.Linear(3, 3), BOX, THREE)
    with pytest.raises(ValueError, match=r"module 'b' cannot be trained here.*PickyLearner\._is_module"):
        PickyLearner(config=TrainingSection(), module_spec=MultiRLModule({"a": spec().build(), "b": plain})).build()
    learner = value_learner(PickyLearner)
    with pytest.raises(ValueError, match=r"module 'b' cannot be trained here.*PickyLearner\._is_module"):
        learner.add_module(module_id="b", module_spec=plain)
    assert list(learner.module) == [MODULE]


def test_module_whose_setup_fails_half_way_leaves_nothing_behind():
    learner = value_learner(PickyLearner)
    before = learner.get_state()
    with pytest.raises(OSError, match="half way"):
        learner.add_module(module_id="bad", module_spec=spec())
    after = learner.get_state()
    for part in ("rl_module", "optimizer", "connectors", "registered"):
        assert after[part].keys() == before[part].keys(), part


# -- removing ---


def test_removing_a_module_removes_its_optimizer_schedules_and_counters():
    learner, alone = value_learner(modules=("a", "b"), lr=0.01), value_learner(modules=("a", "b"), lr=0.01)
    train((learner, alone), value_batches("a", "b"))
    left = learner.remove_module("b")
    assert list(left.rl_module_specs) == list(learner.module) == ["a"]
    state = learner.get_state()
    assert list(state["optimizer"]) == ["a.default_optimizer"]
    assert list(state["rl_module"]) == list(state["connectors"]) == ["a"]
    assert "b/rows" not in state["lifetime"]
    train((learner, alone), value_batches("a", seed=1))
    assert_same(of_module(learner, "a"), of_module(alone, "a"))
    learner.add_module(module_id="b", module_spec=spec())  # the id is free again, its optimizer new
    assert not learner.get_state()["optimizer"]["b.default_optimizer"]["state"]


def test_who_learns_follows_the_modules():
    learner = value_learner(modules=("a", "b"), policies_to_train=["a", "b"])
    learner.add_module(module_id="c", module_spec=spec(), new_should_module_be_updated=["b", "c"])
    before = parameters(learner)
    learner.update_from_batch(value_batches("a", "b", "c"))
    assert {name.split(".")[1] for name in differs(before, parameters(learner))} == {"b", "c"}
    learner.remove_module("b")
    assert learner.policies_to_train == ["c"]
    learner.remove_module("c", new_should_module_be_updated=lambda module_id, batch: True)
    assert learner.should_module_be_updated("a")


def test_module_that_no_longer_learns_is_not_moved_by_its_momentum():
    learner = value_learner(modules=("a", "b"), lr=0.01)
    learner.update_from_batch(value_batches("a", "b"))
    before = of_module(learner, "b")
    learner.update_from_batch(MultiAgentBatch({"a": value_batch(), "b": value_batch(0)}, 10))  # no rows
    assert_same(of_module(learner, "b"), before)
    learner.policies_to_train = ["a"]
    learner.update_from_batch(value_batches("a", "b"))
    assert_same(of_module(learner, "b"), before)
    learner.policies_to_train = None
    learner.update_from_batch(value_batches("a", "b"))
    assert differs(of_module(learner, "b"), before)


def test_minibatch_without_rows_of_a_small_module_changes_nothing_of_it():
    learner = value_learner(modules=("a", "b"), lr=0.01)
    batch = MultiAgentBatch({"a": value_batch(40), "b": value_batch(3)}, 40)
    results = learner.update_from_batch(batch, minibatch_size=4)  # ten minibatches, three rows
    assert results[ALL]["num_minibatches"] == 10
    assert results[ALL]["num_bad_gradients"] == 0
    assert np.isfinite(results["b"]["total_loss"])
    assert results["b"]["num_module_steps_trained"] == 3


# -- shared parameters ---


class SharedOptimizer(ValueLearner):
    """One optimizer over all that any module has."""

    make = torch.optim.Adam

    def configure_optimizers(self):
        params = list(dict.fromkeys(param for module in self.module.values() for param in module.parameters()))
        self.register_optimizer(optimizer=type(self).make(params, lr=0.01), params=params)


def shared(cls=SharedOptimizer):
    """Two modules with one value encoder."""
    modules = {mid: spec().build(seed=number) for number, mid in enumerate(("a", "b"))}
    modules["b"].value_encoder = modules["a"].value_encoder
    return cls(
        config=TrainingSection(grad_clip=None),
        module_spec=MultiRLModule(modules),
        framework=value_learner(build=False).framework,
    ).build()


def test_removing_a_module_with_a_shared_encoder_keeps_the_encoder():
    learner, alone = shared(), shared()
    train((learner, alone), value_batches("a", "b"))
    learner.remove_module("b")
    moments = learner.get_state("optimizer")["optimizer"][f"{ALL}.default_optimizer"]["state"]
    assert len(moments) == len(list(learner.module["a"].parameters()))
    for seed in (1, 2):
        learner.update_from_batch(value_batches("a", seed=seed))
        alone.update_from_batch(value_batches("a", seed=seed))
    assert_same(of_module(learner, "a"), of_module(alone, "a"))


def test_flat_adam_over_several_modules_keeps_its_moments_when_one_leaves():
    class FlatShared(ValueLearner):
        def configure_optimizers(self):
            params = [param for module in self.module.values() for param in module.parameters()]
            self.optimizers.register(ALL, "adam", lambda flat: torch.optim.Adam([flat], fused=True), params, 0.01)

    learner, alone = (value_learner(FlatShared, modules=("a", "b", "c")) for _ in range(2))
    train((learner, alone), value_batches("a", "b", "c"))
    learner.remove_module("b")
    train((learner, alone), value_batches("a", "c", seed=3))
    for module_id in ("a", "c"):
        assert_same(of_module(learner, module_id), of_module(alone, module_id))
    other = value_learner(FlatShared, modules=("a", "c"))
    other.set_state(learner.get_state())
    train((learner, other), value_batches("a", "c", seed=4))
    assert_same(parameters(learner), parameters(other))


def test_module_whose_optimizer_steps_shared_parameters_is_not_removed():
    class OwnsShared(ValueLearner):
        def configure_optimizers_for_module(self, module_id, config):
            if module_id == "a":
                super().configure_optimizers_for_module(module_id, config)

    learner = shared(OwnsShared)
    with pytest.raises(ValueError, match=r"optimizer 'a\.default_optimizer'.*under '__all_modules__'"):
        learner.remove_module("a")
    assert list(learner.module) == ["a", "b"]
