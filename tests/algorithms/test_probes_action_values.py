"""DQN, C51 and QR-DQN learn every probe with discrete actions: values and actions against the exact answers."""

import numpy as np
import pytest
import torch

from lockstep import get_config
from lockstep.envs.probes import PROBES

DISCRETE = [probe for probe in PROBES if not probe.continuous]
GAMMA = 0.5
OPTIONS = {
    "dqn": {},
    "c51": {"num_atoms": 21, "v_min": -2.0, "v_max": 3.0},  # no atom at 1 / (1 - gamma): two share it
    "qrdqn": {"num_quantiles": 8},
}


@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("probe", DISCRETE, ids=lambda probe: probe.__name__)
def test_values_and_actions_become_the_exact_ones(probe, algorithm):
    config = get_config(algorithm).environment(probe).env_runners(num_envs_per_env_runner=4, rollout_fragment_length=25)
    config.training(gamma=GAMMA, lr=1e-2, epsilon=0.3, target_update_interval=20, **OPTIONS[algorithm])
    config.replay(learning_starts=100, update_per_step=0.8, capacity=1_000)
    config.rl_module(model_config={"hiddens": (16,)}).evaluation(evaluation_interval=0).reporting(total_steps=1_000)
    trainer = config.build_trainer()
    trainer.run()
    policy, env = trainer.policy, probe()
    obs = np.array(probe.observations, np.float32)
    with torch.no_grad():
        values = policy.module.compute_values({"obs": torch.from_numpy(obs)}).numpy()
    np.testing.assert_allclose(values, [env.exact_value(row, GAMMA) for row in obs], atol=0.05)
    if env.best_action(obs[0]) is not None:
        np.testing.assert_array_equal(policy.compute_actions(obs, explore=False), [env.best_action(row) for row in obs])
