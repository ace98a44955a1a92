"""State of a learner: all or nothing, by component, and through a checkpoint into a new process."""

import copy

import numpy as np
import pytest
import torch
from learner_parts import (
    MODULE,
    ValueLearner,
    assert_same,
    differs,
    episodes,
    fingerprint,
    parameters,
    ppo_batch,
    ppo_config,
    train,
    value_batch,
    value_learner,
)

COMPONENTS = [
    "rl_module", "optimizer", "connectors", "coefficients", "registered", "should_module_be_updated",
    "weights_seq_no", "lifetime", "metrics", "random",
]  # fmt: skip
OPTIONS = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": True}


def trained_ppo(seed=0, **training):
    """A PPO learner with everything that can be in its state: statistics, penalty, schedules, moments."""
    training = {"kl_coeff": 0.2, "lr": [[0, 0.01], [1000, 0.0]], **training}
    config = ppo_config(**training).environment(normalize_observations=True, normalize_rewards=True)
    learner = config.debugging(seed=seed).build_learner()
    for number in range(2):
        learner.update_from_episodes(
            episodes((9, 7), ("terminated", "truncated"), seed=number),
            timesteps={"num_env_steps_sampled_lifetime": 100 * number},
            **OPTIONS,
        )
    return learner


def test_state_has_every_component_and_set_state_brings_back_all_of_it():
    learner, other = trained_ppo(), ppo_config(kl_coeff=0.2, lr=[[0, 0.01], [1000, 0.0]])
    other = other.environment(normalize_observations=True, normalize_rewards=True).debugging(seed=5).build_learner()
    state = learner.get_state()
    assert sorted(state) == sorted(COMPONENTS)
    other.set_state(state)
    assert fingerprint(other.get_state()) == fingerprint(state)
    train((learner, other), episodes((9, 7), seed=9), **OPTIONS)
    assert_same(parameters(other), parameters(learner))
    assert fingerprint(other.get_state()) == fingerprint(learner.get_state())


def test_state_is_a_copy():
    learner = trained_ppo()
    state = learner.get_state()
    kept = copy.deepcopy(state)
    learner.update_from_episodes(episodes(seed=9), **OPTIONS)
    assert fingerprint(state) == fingerprint(kept)
    assert differs(parameters(learner), parameters(trained_ppo()))


def test_components_are_selected_and_excluded_by_path():
    learner = value_learner(modules=("a", "b"))
    assert set(learner.get_state("rl_module")) == {"rl_module"}
    assert set(learner.get_state(["weights_seq_no", "rl_module/a"])) == {"weights_seq_no", "rl_module"}
    assert set(learner.get_state("rl_module/a")["rl_module"]) == {"a"}
    assert set(learner.get_state(["rl_module/a", "rl_module/b"])["rl_module"]) == {"a", "b"}
    rest = learner.get_state(not_components="rl_module")
    assert set(rest) == set(COMPONENTS) - {"rl_module"}
    assert set(learner.get_state(not_components=["rl_module/a"])["rl_module"]) == {"b"}


@pytest.fixture(scope="module")
def learner_and_other_state():
    return trained_ppo(seed=1), trained_ppo().get_state()


ADAM = ("optimizer", f"{MODULE}.default_optimizer")


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("replay",), {}, r"unknown components \['replay'\]; a learner's state has \['coefficients'"),
        (("rl_module", MODULE, "policy_head.bias"), None, r"missing \['policy_head.bias'\]"),
        (("rl_module", MODULE, "extra"), np.zeros(2), r"unknown \['extra'\]"),
        (("rl_module", MODULE, "policy_head.bias"), np.zeros(7), r"policy_head.bias has shape \(7,\), expected \(3,\)"),
        (("rl_module", "other"), {}, "module 'other' is unknown"),
        (("optimizer", "other.default_optimizer"), {}, r"unknown \['other.default_optimizer'\]"),
        ((*ADAM,), None, r"missing \['default_policy.default_optimizer'\]"),
        ((*ADAM, "state", 0, "exp_avg"), torch.zeros(3), r"exp_avg of parameter 0 has shape \(3,\)"),
        ((*ADAM, "state", 0, "exp_avg"), None, r"the state has \['exp_avg_sq', 'step'\]"),
        ((*ADAM, "schedule"), None, "schedule"),
        (("coefficients", f"{MODULE}/clip_param"), None, r"coefficients: missing \['default_policy/clip_param'\]"),
        (("coefficients", f"{MODULE}/clip_param"), {}, "schedule"),
        (("registered", f"{MODULE}/kl_coeff"), torch.zeros(3), "shape"),
        (("registered", "alpha"), 1.0, r"registered: missing \[\], unknown \['alpha'\]"),
        (("connectors", MODULE), {}, "obs"),
        (("lifetime",), {"env_steps": "many"}, "many"),
        (("random", "root_seed"), None, "random streams"),
        # of wrong types
        (("rl_module", MODULE), [1, 2], "default_policy must be a dict, not list"),
        (("optimizer",), 3, "optimizer must be a dict, not int"),
        (("registered",), [1], "registered must be a dict, not list"),
        (("should_module_be_updated",), 3, "must be None or a list of ids, not 3"),
        (("weights_seq_no",), "many", "many"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_is_changed(learner_and_other_state, path, value, message):
    """The state has `value` at the path of keys; or nothing, where it is None."""
    learner, state = learner_and_other_state[0], copy.deepcopy(learner_and_other_state[1])
    before, (*way, last), inner = learner.get_state(), path, state
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    with pytest.raises(ValueError, match=message):
        learner.set_state(state)
    assert fingerprint(learner.get_state()) == fingerprint(before)


# -- registered state and coefficients ---


class CountingLearner(ValueLearner):
    """Has a temperature of its own, a count and a vector, which belong to its state."""

    scheduled = ("share",)

    def build(self):
        if self._module is None:
            super().build()
            self.alpha = self.register_state("alpha", torch.tensor(1.0, dtype=torch.float64))
            self.history = self.register_state("history", np.zeros(3))
            self.register_state("count", 0)
        return self

    def after_gradient_based_update(self, *, timesteps):
        self.alpha.mul_(0.5)
        self.history[0] += 1
        self.registered["count"] += 1


def test_registered_state_travels_with_the_learner(tmp_path):
    learner, other = value_learner(CountingLearner), value_learner(CountingLearner, seed=1)
    for _ in range(3):
        learner.update_from_batch(value_batch())
    other.restore_from_path(learner.save_to_path(tmp_path / "checkpoint"))
    assert float(other.alpha) == 0.125
    assert other.history.tolist() == [3, 0, 0]
    assert other.registered["count"] == 3
    assert other.alpha is other.registered["alpha"]


def test_coefficient_is_a_tensor_that_follows_its_schedule():
    learner = value_learner(CountingLearner, share=[[0, 1.0], [10, 0.0]])
    tensor = learner.coefficient(MODULE, "share")
    assert (tensor.shape, tensor.dtype) == ((), torch.float64)
    for step, value in ((0, 1.0), (5, 0.5), (20, 0.0)):
        learner.update_from_batch(value_batch(), timesteps={"num_env_steps_sampled_lifetime": step})
        assert float(tensor) == pytest.approx(value)
        assert learner.coefficient(MODULE, "share") is tensor


def test_batches_and_episodes_can_alternate_without_losing_counts():
    learner = ppo_config().build_learner()
    learner.update_from_batch(ppo_batch(24))
    results = learner.update_from_episodes(episodes((3, 5, 4)))
    assert results["__all_modules__"]["num_env_steps_trained_lifetime"] == 36
