"""What the traced gradient step reads and writes. The trace is run as it is: nothing is compiled."""

from __future__ import annotations

import pytest
import torch
from learner_parts import MODULE, parameters, ppo_batch, ppo_config, value_batch, value_learner

from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import MultiAgentBatch, SampleBatch
from lockstep.learner import compiled


@pytest.fixture
def traced(monkeypatch):
    """Learners with `compile=True` run the graph that would be compiled; gives the list of these graphs."""
    graphs = []

    def compile_graph(graph, *_):
        graphs.append(graph)
        return lambda given: graph(*given)

    monkeypatch.setattr(compiled, "compile_graph", compile_graph)
    return graphs


def learners(cls=PPOLearner):
    """One that traces and one that does not."""
    made = [ppo_config(learner_class=cls, lr=0.01).framework(dtype="float32", compile=both) for both in (True, False)]
    return [config.build_learner() for config in made]


def assert_close(first, second):
    for (name, own), other in zip(parameters(first).items(), parameters(second).values(), strict=True):
        torch.testing.assert_close(torch.as_tensor(own), torch.as_tensor(other), rtol=0, atol=1e-5, msg=name)


@pytest.mark.usefixtures("traced")
def test_one_tensor_in_two_columns_is_two_inputs():
    pair = learners()
    for seed, shared in ((0, True), (1, False)):
        columns = {name: torch.as_tensor(column) for name, column in ppo_batch(32, seed=seed).items()}
        columns["value_targets"] = columns["value_targets"] * 3 + 5
        if shared:
            columns["advantages"] = columns["value_targets"] = columns["value_targets"].float()
        for learner in pair:
            learner.update_from_batch(SampleBatch(columns), minibatch_size=8)
    assert_close(*pair)


@pytest.mark.usefixtures("traced")
def test_a_minibatch_without_rows_of_some_module_is_traced_without_it():
    pair = [value_learner(modules=("a", "b"), dtype="float32", compile_it=both) for both in (True, False)]
    batch = MultiAgentBatch({"a": value_batch(40, seed=0), "b": value_batch(3, seed=1)}, 40)
    for learner in pair:
        learner.update_from_batch(batch, minibatch_size=8)
    assert_close(*pair)


def test_state_that_lies_in_memory_in_another_way_is_another_graph(traced):
    learner, eager = learners()

    def graphs_after(replace):
        for entry in learner.optimizers:
            (moments,) = entry.optimizer.state.values()
            moments["exp_avg"] = replace(moments["exp_avg"])
        for one in (learner, eager):
            one.update_from_batch(ppo_batch(32), minibatch_size=16)
        assert_close(learner, eager)
        return len(traced)

    for one in (learner, eager):
        one.update_from_batch(ppo_batch(32), minibatch_size=16)
    assert graphs_after(lambda moments: moments) == 1
    assert graphs_after(torch.clone) == 1
    assert graphs_after(lambda moments: moments.repeat_interleave(2)[::2]) == 2
    assert graphs_after(torch.Tensor.contiguous) == 3


def test_columns_in_another_order_within_one_are_another_graph():
    first, second = torch.zeros(4, 2), torch.ones(4, 2)
    learner = learners()[0]
    found = [
        learner.compiled._find({MODULE: {"obs": obs}}, {MODULE: None}, None)
        for learner.compiled._compile, obs in (
            ((lambda *_: "first"), {"a": first, "b": second}),
            ((lambda *_: "second"), {"b": second, "a": first}),
            ((lambda *_: "third"), {"a": second, "b": first}),
        )
    ]
    assert found == ["first", "second", "first"]


class OwnAdam(PPOLearner):
    """Registers an optimizer that is not stepped as one flat tensor."""

    def configure_optimizers_for_module(self, module_id, config):
        params = list(self.module[module_id].parameters())
        self.register_optimizer(module_id=module_id, optimizer=torch.optim.Adam(params, lr=0.1), params=params)


def test_an_optimizer_whose_step_is_not_compiled_keeps_its_own_state():
    learner, eager = learners(OwnAdam)
    with pytest.warns(UserWarning, match="this gradient step runs eagerly"):
        learner.update_from_batch(ppo_batch(32), minibatch_size=8)
    eager.update_from_batch(ppo_batch(32), minibatch_size=8)
    eager.set_state(learner.get_state())
    assert_close(learner, eager)
