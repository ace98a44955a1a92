"""PPO, A2C, IMPALA and APPO learn every probe: values and policy against the exact answers.

Which probe fails tells what is wrong; see `lockstep.envs.probes`.
"""

import numpy as np
import pytest
import torch

from lockstep import get_config
from lockstep.envs.probes import PROBES

GAMMA = 0.5
TOTAL_STEPS = {"ppo": 8_000, "a2c": 16_000, "impala": 10_000, "appo": 8_000}
SETTINGS = {
    "ppo": {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64, "num_epochs": 4},
    "a2c": {"lr": 1e-2, "train_batch_size": 40, "entropy_coeff": 0.0},
    "impala": {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64, "num_epochs": 2, "entropy_coeff": 0.0},
    "appo": {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64, "num_epochs": 4, "entropy_coeff": 0.0},
}
REGRESSION_TOLERANCE = 0.02
"""of a value where the policy does not matter"""
POLICY_TOLERANCE = {"ppo": 0.02, "a2c": 0.1, "impala": 0.1, "appo": 0.02}
"""of a value under the learned policy, which still explores a little (A2C takes one gradient step for each rollout)"""
ACTION_TOLERANCE = {"ppo": 0.05, "a2c": 0.15, "impala": 0.15, "appo": 0.05}


def learned_policy(algorithm, probe, seed=0):
    config = (
        get_config(algorithm)
        .environment(probe)
        .env_runners(num_envs_per_env_runner=8)
        .training(gamma=GAMMA, **SETTINGS[algorithm])
        .rl_module(model_config={"hiddens": (16,)})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=TOTAL_STEPS[algorithm])
        .debugging(seed=seed)
    )
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


SHORT = {"TruncationProbe", "ActionProbeContinuous", "ObservationActionProbe"}
"""what the fast suite runs of algorithms that are made of parts of the others"""
CASES = [
    pytest.param(algorithm, probe, id=f"{probe.__name__}-{algorithm}", marks=marks)
    for probe in PROBES
    for algorithm in SETTINGS
    for marks in [() if algorithm in ("ppo", "a2c") or probe.__name__ in SHORT else pytest.mark.learning]
]


@pytest.mark.parametrize(("algorithm", "probe"), CASES)
def test_values_and_actions_become_the_exact_ones(algorithm, probe):
    env = probe()
    policy = learned_policy(algorithm, probe)
    obs = np.array(probe.observations, np.float32)
    best = [env.best_action(row) for row in obs]
    matters = best[0] is not None

    with torch.no_grad():
        values = policy.module.compute_values({"obs": torch.from_numpy(obs)}).numpy()
    exact = [env.exact_value(row, GAMMA) for row in obs]
    np.testing.assert_allclose(values, exact, atol=POLICY_TOLERANCE[algorithm] if matters else REGRESSION_TOLERANCE)

    if matters:
        actions = policy.compute_actions(obs, explore=False)
        np.testing.assert_allclose(actions, np.stack(best), atol=ACTION_TOLERANCE[algorithm] if env.continuous else 0)


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_the_drawn_actions_are_as_good_as_the_most_likely_ones(algorithm):
    """The policy itself has become sure, not only its mode: 200 drawn actions at each observation."""
    probe = next(probe for probe in PROBES if probe.__name__ == "ObservationActionProbe")
    policy = learned_policy(algorithm, probe)
    for observation in probe.observations:
        actions = policy.compute_actions(np.full((200, 1), observation[0], np.float32), explore=True)
        assert np.mean(actions == probe().best_action(observation)) >= 0.95
