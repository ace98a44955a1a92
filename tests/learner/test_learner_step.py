"""The present gradient step of a learner: set in one place, put back, and the same for learners of users."""

import pickle

import numpy as np
import pytest
import torch
from learner_parts import MODULE, assert_same, parameters, ppo_batch, ppo_config

from lockstep.algorithms.ppo import PPOLearner
from lockstep.learner.learner import Learner

OTHERS = frozenset(["other"])


class OwnMeans(PPOLearner):
    """Overrides state, means and logging in one, as a user may."""

    def setup_module(self, module_id):
        self.weights_logged, self.means_taken, self.marks = [], 0, []

    def masked_mean(self, values, batch):
        self.means_taken += 1
        return super().masked_mean(values, batch)

    def log(self, module_id, **metrics):
        self.weights_logged.append(self.rows_in_step)
        super().log(module_id, **{f"own_{name}": value for name, value in metrics.items()})

    def get_state(self, components=None, **options):
        state = super().get_state(components, **options)
        return {**state, "lifetime": {**state["lifetime"], "mark": 7}} if "lifetime" in state else state

    def set_state(self, state):
        self.marks.append(state.get("lifetime", {}).get("mark"))
        super().set_state(state)


class RowsSetByHand(PPOLearner):
    """Sets what a step is about by hand, as learners did before there was `in_step`."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        rows_in_step, self.rows_in_step = self.rows_in_step, 3
        self.log(module_id, three=torch.tensor(3.0))
        self.rows_in_step = rows_in_step
        self.row_errors = {module_id: fwd_out["vf_preds"].detach()}
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class CountsItsSteps(PPOLearner):
    """Has a counter with a likely name, which must not be one of the learner's own."""

    def setup_module(self, module_id):
        self.step = 0

    def after_gradient_step(self):
        super().after_gradient_step()
        self.step += 1


def learner_of(cls):
    """A learner that writes out its loss: a kernel takes means of its own."""
    return ppo_config(learner_class=cls).framework(fused_losses=False).build_learner()


def test_a_step_is_put_back_after_it_and_after_an_error():
    learner = learner_of(PPOLearner)
    before = learner.step_context
    learner.rows_in_step = 5
    with learner.in_step(8, OTHERS) as step:
        assert learner.step_context is step
        assert (learner.rows_in_step, learner.stand_ins, learner.metrics.weight) == (8, OTHERS, 8)
        with pytest.raises(KeyError), learner.in_step(2) as part:
            assert (learner.rows_in_step, part.stand_ins, learner.metrics.weight) == (2, OTHERS, 2)
            raise KeyError("gone")
        assert (learner.step_context, learner.metrics.weight) == (step, 8)
    assert learner.step_context is before
    assert (learner.rows_in_step, learner.metrics.weight) == (5, 5)


def test_results_of_a_step_are_read_after_it():
    learner, errors = learner_of(PPOLearner), torch.ones(4)
    with learner.in_step(4, OTHERS):
        with learner.in_step(2):
            learner.row_errors = {MODULE: errors}
        learner.row_values[MODULE] = errors * 2
    assert learner.row_errors[MODULE] is errors
    assert learner.row_values[MODULE].tolist() == [2, 2, 2, 2]
    assert learner.stand_ins == OTHERS  # they say whose errors these are not


@pytest.mark.parametrize("name", ["rows_in_step", "row_errors", "row_values"])
def test_the_context_of_a_step_can_be_set_by_hand(name):
    learner = learner_of(PPOLearner)
    value = 3 if name == "rows_in_step" else {MODULE: torch.ones(2)}
    setattr(learner, name, value)
    assert getattr(learner, name) is value
    assert learner.metrics.weight == learner.rows_in_step


def test_the_weight_of_the_metrics_is_the_rows_of_the_step():
    learner = learner_of(PPOLearner)
    learner.metrics.weight = 6
    assert learner.rows_in_step == 6


def test_a_learner_may_count_its_steps_in_an_attribute_of_that_name():
    plain, own = learner_of(PPOLearner), learner_of(CountsItsSteps)
    for each in (plain, own):
        each.update_from_batch(ppo_batch(12), minibatch_size=4)
    assert own.step == 3
    assert_same(parameters(plain), parameters(own))


def test_a_learner_that_sets_its_rows_by_hand_learns_as_others_do():
    learners = [learner_of(cls) for cls in (PPOLearner, RowsSetByHand)]
    plain, own = (each.update_from_batch(ppo_batch(12), minibatch_size=4)[MODULE] for each in learners)
    assert_same(parameters(learners[0]), parameters(learners[1]))
    assert own["three"] == 3.0
    assert own["total_loss"] == plain["total_loss"]
    assert len(learners[1].row_errors[MODULE]) == 4


def test_overridden_methods_of_a_learner_are_called_for_every_module(tmp_path):
    own, plain = learner_of(OwnMeans), learner_of(PPOLearner)
    results = [each.update_from_batch(ppo_batch(12), minibatch_size=4) for each in (own, plain)]
    assert_same(parameters(own), parameters(plain))
    assert own.means_taken > 0
    assert set(own.weights_logged) == {4}
    assert results[0][MODULE]["own_total_loss"] == results[1][MODULE]["total_loss"]
    path = own.save_to_path(tmp_path / "saved")
    for other in (learner_of(OwnMeans), OwnMeans.from_checkpoint(path)):
        other.restore_from_path(path)
        assert other.marks[-1] == 7
        assert other.lifetime["mark"] == 7
        np.testing.assert_equal(other.get_weights(), own.get_weights())
    with pytest.raises(ValueError, match="nothing was changed"):
        own.set_state({"registered": {"unknown": 1}})


@pytest.mark.parametrize("name", ["after_update", "set_state", "get_state", "get_weights", "update_from_batch"])
def test_what_other_processes_are_sent_by_name_is_a_function_of_the_class(name):
    assert pickle.loads(pickle.dumps(getattr(Learner, name))) is getattr(Learner, name)
