"""Policies that are built, or asked for actions, by several threads at once."""

import sys
import threading

import numpy as np
import pytest
import torch
from agent_games import game_config
from parts import one_in

from lockstep import DQNConfig, PPOConfig, SACConfig
from lockstep.learner.novelty import make_intrinsic_reward

NUM_THREADS = 4


@pytest.fixture(autouse=True)
def short_turns():
    """Have threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    """Return what `work(i)` gives in each thread; all begin together."""
    results, begin = [None] * NUM_THREADS, threading.Barrier(NUM_THREADS)

    def run(i):
        begin.wait()
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


HIDDENS = {"hiddens": (64, 64)}
CONFIGS = {
    "ppo": lambda: PPOConfig().environment("CartPole-v1").rl_module(model_config=HIDDENS),
    "ppo, normalised": lambda: CONFIGS["ppo"]().environment(normalize_observations=True),
    "ppo, frames": lambda: CONFIGS["ppo"]().environment(frame_stack=3),
    "ppo, lstm": lambda: CONFIGS["ppo"]().rl_module(model_config={**HIDDENS, "recurrent": "lstm"}),
    "ppo, torch": lambda: CONFIGS["ppo"]().rl_module(model_config={**HIDDENS, "activation": "gelu"}),
    "dqn": lambda: DQNConfig().environment("CartPole-v1").rl_module(model_config=HIDDENS),
    "dqn, dueling": lambda: CONFIGS["dqn"]().rl_module(model_config={**HIDDENS, "dueling": True}),
    "sac": lambda: SACConfig().environment("Pendulum-v1").rl_module(model_config=HIDDENS),
    "several agents": lambda: game_config(),
    "several agents, frames": lambda: game_config().environment(frame_stack=2),
}


def answers(policy, observations):
    """The actions of one caller, who asks again and again; those who remember hand on their state."""
    found, state = [], None
    for obs in observations:
        result = policy.compute_actions(obs, state)
        result, state = result if policy.is_stateful else (result, None)
        found.append(result)
    return found


def observations_of(policy, i):
    space = policy.observation_space
    if policy.is_multi_agent:
        space = next(iter(space.values()))
        space.seed(i)
        return [{"a": space.sample(), "b": space.sample()} for _ in range(100)]
    rng = np.random.default_rng(i)
    return [rng.standard_normal((3, *space.shape), np.float32) for _ in range(300)]


@pytest.mark.parametrize("kind", one_in(3, CONFIGS))
def test_threads_asking_one_policy_get_actions_for_their_observations(kind):
    config = CONFIGS[kind]().debugging(seed=1)
    policy, alone = config.build_policy(), config.build_policy()
    observations = [observations_of(policy, i) for i in range(NUM_THREADS)]
    expected = []
    for each in observations:
        alone.reset()
        expected.append(answers(alone, each))
    found = in_threads(lambda i: answers(policy, observations[i]))
    for mine, right in zip(found, expected):
        for one, other in zip(mine, right):
            np.testing.assert_equal(one, other)


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.module.parameters()])


def test_threads_that_build_policies_get_the_weights_of_their_seeds():
    def build(seed):
        return weights(PPOConfig().environment("CartPole-v1").debugging(seed=seed).build_policy())

    expected = [build(i) for i in range(NUM_THREADS)]
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for _ in range(5):
        assert all(map(torch.equal, in_threads(build), expected))
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_make_intrinsic_rewards_get_weights_of_their_seeds():
    space = PPOConfig().environment("CartPole-v1").find_spaces()[0]

    def build(seed):
        network = make_intrinsic_reward("rnd", space, 1.0, seed).network
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    expected = [build(i) for i in range(NUM_THREADS)]
    for _ in range(5):
        assert all(map(torch.equal, in_threads(build), expected))
