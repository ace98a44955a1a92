"""Every algorithm learns every probe: values and policy against the exact answers.

Which probe fails tells what is wrong; see `lockstep.envs.probes`.
"""

import numpy as np
import pytest
import torch
from algorithm_kinds import ON_POLICY, taking

from lockstep import TD3Config, get_config
from lockstep.envs.probes import PROBES, ObservationActionProbe

GAMMA = 0.5
SOFT = {"lr": [[0, 1e-2], [900, 1e-3]], "tau": 0.05}
ACTION_VALUES = {"lr": 1e-2, "epsilon": 0.3, "target_update_interval": 20}
DELAYED = {**SOFT, "actor_lr": [[0, 3e-3], [900, 3e-4]], "exploration_noise": 0.3}
MINIBATCHES = {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64}
TRAINING = {
    "ppo": {**MINIBATCHES, "num_epochs": 4},
    "a2c": {"lr": 1e-2, "train_batch_size": 40, "entropy_coeff": 0.0},
    "impala": {**MINIBATCHES, "num_epochs": 2, "entropy_coeff": 0.0},
    "appo": {**MINIBATCHES, "num_epochs": 4, "entropy_coeff": 0.0},
    "dqn": ACTION_VALUES,
    "c51": {**ACTION_VALUES, "num_atoms": 21, "v_min": -2.0, "v_max": 3.0},  # no atom at 1 / (1 - gamma)
    "qrdqn": {**ACTION_VALUES, "num_quantiles": 8},
    "sac": {**SOFT, "initial_alpha": 0.02, "alpha_lr": 1e-3},
    "td3": {**DELAYED, "target_noise": 0.05},
    "ddpg": {**DELAYED, "target_noise": 0.0},
}
WITH_ACTION_VALUES, IN_A_BOX = taking("discrete"), (*taking("box"), "ddpg")
STEPS = {"ppo": 8_000, "a2c": 16_000, "impala": 10_000, "appo": 8_000, **dict.fromkeys(WITH_ACTION_VALUES, 1_000)}
SHORT = {"TruncationProbe", "ActionProbeContinuous", "ObservationActionProbe"}
"""what the fast suite runs of algorithms that are made of parts of the others"""
FAST = {
    "impala": SHORT,
    "appo": SHORT,
    "sac": {"TruncationProbe", "ObservationActionProbeContinuous"},
    "td3": {"ObservationActionProbeContinuous"},
    "ddpg": {"ObservationActionProbeContinuous"},
}


def learned_policy(algorithm, probe):
    config = TD3Config.ddpg() if algorithm == "ddpg" else get_config(algorithm)
    config.environment(probe).env_runners(num_envs_per_env_runner=8 if algorithm in ON_POLICY else 4)
    config.training(gamma=GAMMA, **TRAINING[algorithm]).reporting(total_steps=STEPS.get(algorithm, 900))
    if algorithm in WITH_ACTION_VALUES:
        config.env_runners(rollout_fragment_length=25)
    if config.is_off_policy:
        often = 0.8 if algorithm in WITH_ACTION_VALUES else 1.0
        config.replay(learning_starts=100, capacity=1_000, update_per_step=often)
    if algorithm == "sac":
        config.training(target_entropy=-2.0 if probe.continuous else 0.02)
    config.rl_module(model_config={"hiddens": (16,)}).evaluation(evaluation_interval=0)
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


def tolerances(algorithm, matters):
    """Of values and of continuous actions; a policy that matters still explores a little."""
    if algorithm in ("a2c", "impala"):  # few gradient steps for each rollout
        return 0.1 if matters else 0.02, 0.15
    if algorithm in ON_POLICY:
        return 0.02, 0.05
    return (0.05, 0.0) if algorithm in WITH_ACTION_VALUES else (0.1, 0.2)  # kinks of a small network


def probes_of(algorithm):
    """Those whose actions the algorithm can take; where actions do not matter they may be a Box."""
    for probe in PROBES:
        if algorithm in IN_A_BOX and not probe.continuous and probe().best_action((0.0,)) is None:
            yield type(probe.__name__, (probe,), {"continuous": True})
        elif probe.continuous if algorithm in IN_A_BOX else not probe.continuous or algorithm not in WITH_ACTION_VALUES:
            yield probe


CASES = [
    pytest.param(algorithm, probe, id=f"{probe.__name__}-{algorithm}", marks=marks)
    for algorithm in TRAINING
    for probe in probes_of(algorithm)
    for marks in [() if probe.__name__ in FAST.get(algorithm, {probe.__name__}) else pytest.mark.learning]
]


@pytest.mark.parametrize(("algorithm", "probe"), CASES)
def test_values_and_actions_become_the_exact_ones(algorithm, probe):
    env, policy = probe(), learned_policy(algorithm, probe)
    obs = np.array(probe.observations, np.float32)
    best = [env.best_action(row) for row in obs]
    of_values, of_actions = tolerances(algorithm, best[0] is not None)
    with torch.no_grad():
        values = policy.module.compute_values({"obs": torch.from_numpy(obs)}).numpy()
    np.testing.assert_allclose(values, [env.exact_value(row, GAMMA) for row in obs], atol=of_values)
    if best[0] is not None:
        actions = policy.compute_actions(obs, explore=False)
        np.testing.assert_allclose(actions, np.stack(best), atol=of_actions if env.continuous else 0)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_drawn_actions_are_as_good_as_the_most_likely_ones(algorithm):
    """The policy itself has become sure, not only its mode: 200 drawn actions at each observation."""
    policy = learned_policy(algorithm, ObservationActionProbe)
    for observation in ObservationActionProbe.observations:
        actions = policy.compute_actions(np.full((200, 1), observation[0], np.float32), explore=True)
        assert np.mean(actions == ObservationActionProbe().best_action(observation)) >= 0.95
