"""PPO and A2C with an LSTM or GRU remember what a network without memory cannot know."""

import numpy as np
import pytest

from lockstep import get_config
from lockstep.envs.probes import MEMORY_PROBES, MemoryProbe

SETTINGS = {
    "ppo": {"lr": 1e-2, "train_batch_size": 256, "minibatch_size": 16, "num_epochs": 4},
    "a2c": {"lr": 1e-2, "train_batch_size": 64},
}
TOTAL_STEPS = {"ppo": 3_000, "a2c": 5_000}


def trained(algorithm, recurrent, max_seq_len=20, probe=MemoryProbe):
    config = (
        get_config(algorithm)
        .environment(probe)
        .env_runners(num_envs_per_env_runner=8)
        .training(gamma=0.9, **SETTINGS[algorithm])
        .rl_module(
            model_config={"hiddens": (8,), "recurrent": recurrent, "recurrent_size": 8, "max_seq_len": max_seq_len}
        )
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=TOTAL_STEPS[algorithm])
    )
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


def last_actions(policy, probe=MemoryProbe):
    """The last action of an episode that begins with -1 and of one that begins with 1."""
    state = None
    for t in range(probe.delay + 1):
        obs = np.array(probe.observations, np.float32) if t == 0 else np.zeros((2, 1), np.float32)
        if policy.is_stateful:
            actions, state = policy.compute_actions(obs, state, explore=False)
        else:
            actions = policy.compute_actions(obs, explore=False)
    return actions.tolist()


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
@pytest.mark.parametrize("probe", MEMORY_PROBES, ids=lambda probe: probe.__name__)
def test_a_network_with_memory_learns_to_remember(algorithm, recurrent, probe):
    assert last_actions(trained(algorithm, recurrent, probe=probe)) == [0, 1]


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_a_network_without_memory_cannot(algorithm):
    """It sees the same zero after both: one action for both of them."""
    first, second = last_actions(trained(algorithm, None))
    assert first == second


def test_stored_states_matter_where_sequences_are_shorter_than_the_delay():
    """No gradient flows over the whole delay in sequences of two steps, but what the stored state holds is read."""
    assert last_actions(trained("ppo", "gru", max_seq_len=2)) == [0, 1]
