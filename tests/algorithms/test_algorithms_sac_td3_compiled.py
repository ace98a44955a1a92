"""With `compile=True` SAC's and TD3's whole gradient steps give what eager ones give."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import SACConfig, SampleBatch, TD3Config

MODULE = "default_policy"
SPACES = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)


def batch_of(seed, rows=16):
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=(rows, 3)).astype(np.float32) for name in ("obs", "new_obs")}
    columns |= {"actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32), "terminateds": rng.random(rows) < 0.3}
    return SampleBatch(columns | {"rewards": rng.normal(size=rows).astype(np.float32)})


def state_of(learner):
    parts = [*learner.module.parameters(), learner.registered[f"{MODULE}/target"].flat]
    parts += [value for value in learner.registered.values() if isinstance(value, torch.Tensor)]
    return torch.cat([part.detach().reshape(-1) for part in parts])


@pytest.mark.learning
@pytest.mark.parametrize("config", [SACConfig, TD3Config])
@pytest.mark.parametrize("half", [False, True])
def test_compiled_gradient_steps_are_the_eager_ones(config, half):
    """Parameters, temperature, targets, metrics and row errors; TD3's policy waits in every second step."""
    eager, compiled = (
        config()
        .framework(compile=on, mixed_precision=half)
        .rl_module(model_config={"hiddens": (16, 16)})
        .build_learner(spaces=SPACES)
        for on in (False, True)
    )
    tolerance = 5e-3 if half else 1e-5
    for seed in range(6):
        results = [learner.update_from_batch(batch_of(seed))[MODULE] for learner in (eager, compiled)]
        assert results[0].keys() == results[1].keys()
        torch.testing.assert_close(state_of(compiled), state_of(eager), atol=tolerance, rtol=0)
        errors = [learner.row_errors[MODULE] for learner in (eager, compiled)]
        torch.testing.assert_close(*errors, atol=5 * tolerance, rtol=0)
    assert compiled.compiled._steps
    assert None not in compiled.compiled._steps.values()
