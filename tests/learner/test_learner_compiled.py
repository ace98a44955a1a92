"""Compiled gradient steps: what they read, give out and write. Most traces are run as they are, not compiled."""

import numpy as np
import pytest
import torch
from learner_parts import BOX, MODULE, THREE, assert_near, ppo_batch, ppo_config, value_batch, value_learner

from lockstep import get_config
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
    assert_near(*pair)


@pytest.mark.usefixtures("traced")
def test_a_minibatch_without_rows_of_some_module_is_traced_without_it():
    pair = [value_learner(modules=("a", "b"), dtype="float32", compile_it=both) for both in (True, False)]
    batch = MultiAgentBatch({"a": value_batch(40, seed=0), "b": value_batch(3, seed=1)}, 40)
    for learner in pair:
        learner.update_from_batch(batch, minibatch_size=8)
    assert_near(*pair)


def test_state_that_lies_in_memory_in_another_way_is_another_graph(traced):
    learner, eager = learners()

    def graphs_after(replace):
        for entry in learner.optimizers:
            (moments,) = entry.optimizer.state.values()
            moments["exp_avg"] = replace(moments["exp_avg"])
        for one in (learner, eager):
            one.update_from_batch(ppo_batch(32), minibatch_size=16)
        assert_near(learner, eager)
        return len(traced)

    for one in (learner, eager):
        one.update_from_batch(ppo_batch(32), minibatch_size=16)
    assert graphs_after(lambda moments: moments) == 1
    assert graphs_after(torch.clone) == 1
    assert graphs_after(lambda moments: moments.repeat_interleave(2)[::2]) == 2
    assert graphs_after(torch.Tensor.contiguous) == 3


ROWS = 8
CASES = {
    "dqn": ("dqn", {"tau": 0.2, "target_update_interval": 2}, {"dueling": True, "activation": "relu"}),
    "c51": ("c51", {"target_update_interval": 4, "num_atoms": 5, "v_min": -1.0, "v_max": 2.0}, {}),
    "qrdqn": ("qrdqn", {"target_update_interval": 4, "num_quantiles": 4, "double_q": False}, {}),
}


def learner_of(algorithm, training, model, compile_it):
    config = get_config(algorithm).training(lr=1e-2, grad_clip=0.5, **training)
    config.rl_module(model_config={"hiddens": (8,), "policy_gain": 1.0, **model})
    return config.framework(compile=compile_it).build_learner(spaces=(BOX, THREE))


def sample(seed, rows=5 * ROWS):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        new_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(3, size=rows),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminateds=rng.random(rows) < 0.2,
        weights=rng.random(rows, np.float32),
    )


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "dqn" else pytest.mark.faults) for n in CASES])
def test_compiled_steps_are_the_eager_ones_and_the_target_network_follows(name):
    compiled, eager = (learner_of(*CASES[name], compile_it) for compile_it in (True, False))
    for update in range(3):
        found, expected = (
            learner.update_from_batch(sample(update), minibatch_size=ROWS)[MODULE] for learner in (compiled, eager)
        )
        for key in ("qf_loss", "q_mean", "td_error_mean", "gradients_default_optimizer_global_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4), key
    assert all(compiled.compiled._steps.values())
    torch.testing.assert_close(compiled.row_errors[MODULE], eager.row_errors[MODULE], rtol=1e-4, atol=1e-5)
    assert_near(compiled, eager)
    targets = [learner.registered[f"{MODULE}/target"] for learner in (compiled, eager)]
    assert targets[0].num_steps == targets[1].num_steps == 15
    torch.testing.assert_close(targets[0].flat, targets[1].flat, rtol=0, atol=1e-5)
    assert not torch.equal(targets[0].flat, compiled.optimizers.get(MODULE, "default_optimizer").flat.data)
