"""Compiled gradient steps of algorithms with a target network: parameters, target, errors and metrics as eager ones."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import SampleBatch, get_config

MODULE, ROWS = "default_policy", 8
SPACES = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
CASES = {
    "dqn": ("dqn", {"tau": 0.2, "target_update_interval": 2}, {"dueling": True, "activation": "relu"}),
    "c51": ("c51", {"target_update_interval": 4, "num_atoms": 5, "v_min": -1.0, "v_max": 2.0}, {}),
    "qrdqn": ("qrdqn", {"target_update_interval": 4, "num_quantiles": 4, "double_q": False}, {}),
}


def learner_of(algorithm, training, model, compile_it):
    config = get_config(algorithm).training(lr=1e-2, grad_clip=0.5, **training)
    config.rl_module(model_config={"hiddens": (8,), "policy_gain": 1.0, **model})
    return config.framework(compile=compile_it).build_learner(spaces=SPACES)


def sample(seed, rows=5 * ROWS):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        new_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(0, 2, rows),
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
    for own, other in zip(compiled.module[MODULE].parameters(), eager.module[MODULE].parameters()):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5)
    targets = [learner.registered[f"{MODULE}/target"] for learner in (compiled, eager)]
    assert targets[0].num_steps == targets[1].num_steps == 15
    torch.testing.assert_close(targets[0].flat, targets[1].flat, rtol=0, atol=1e-5)
    assert not torch.equal(targets[0].flat, compiled.optimizers.get(MODULE, "default_optimizer").flat.data)
