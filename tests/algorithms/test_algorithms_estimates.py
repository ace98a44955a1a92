"""`lockstep.estimate`: the value of a policy is in the intervals that other policies' episodes give."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from gymnasium import spaces
from parts import fast_if

import lockstep
from lockstep import DQNConfig, PPOConfig, SampleBatch, TD3Config
from lockstep.data.episode import SingleAgentEpisode

STATES = 3
CHAIN = spaces.Box(0.0, 1.0, (STATES,), np.float32)
TWO, MOVE = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)
GAMMA = 0.9


@cache
def policy_of(kind=PPOConfig, moves=False, seed=0):
    """A policy whose probabilities in the chain are far from even."""
    actions = MOVE if moves else TWO
    config = kind().environment(observation_space=CHAIN, action_space=actions).debugging(seed=seed)
    config.rl_module(model_config={"hiddens": (8,), "policy_gain": 3.0} if kind is PPOConfig else {"hiddens": (8,)})
    return config.training(gamma=GAMMA).build_policy()


def probabilities(policy):
    eye = np.eye(STATES, dtype=np.float32)
    return np.exp([policy.action_logp(eye, np.full(STATES, a)) for a in range(2)]).T


def play(number, seed, steps=STATES):
    """Episodes of a policy that takes both actions alike in a chain: action 1 moves on and earns the state's number,
    action 0 stays and earns nothing. `steps=1`: a bandit, which ends at once."""
    rng, episodes = np.random.default_rng(seed), []
    for _ in range(number):
        state, obs, actions, rewards = 0, [0], [], []
        while state < steps:
            action = int(rng.integers(2))
            actions.append(action)
            rewards.append((state + 1.0) * action + 0.1 * rng.normal())
            state += action if steps > 1 else 1
            obs.append(min(state, STATES - 1))
        episodes.append(episode_of(obs, actions, rewards, np.full(len(actions), np.log(0.5))))
    return episodes


def episode_of(states, actions, rewards, logp=None, **ends):
    return SingleAgentEpisode(
        observations=np.eye(STATES, dtype=np.float32)[states],
        observation_space=CHAIN,
        actions=np.array(actions),
        action_space=TWO if np.ndim(actions) == 1 else MOVE,
        rewards=np.array(rewards),
        extra_model_outputs={} if logp is None else {"action_logp": np.asarray(logp)},
        **(ends or {"terminated": True}),
    )


def value_of(policy, steps=STATES):
    """The value in the first state: V(s) = p (s + 1 + gamma V(s + 1)) + (1 - p) gamma V(s)."""
    p = probabilities(policy)[:, 1]
    if steps == 1:
        return p[0]
    value = 0.0
    for state in reversed(range(steps)):
        value = p[state] * (state + 1 + GAMMA * value) / (1 - GAMMA * (1 - p[state]))
    return value


@pytest.mark.parametrize("steps", fast_if(STATES.__eq__, [1, STATES]), ids=["bandit", "chain"])
@pytest.mark.parametrize("method", ["is", "wis", "fqe"])
def test_the_interval_holds_the_known_value_of_a_policy(method, steps):
    policy = policy_of()
    expected, held, widths = value_of(policy, steps), 0, []
    for seed in range(6):
        found = lockstep.estimate(policy, play(300, seed, steps), method, num_bootstraps=100, num_features=0)
        held += found.low <= expected <= found.high
        widths.append(found.high - found.low)
        assert found.low < found.value < found.high
    assert held >= 5, (held, expected)
    assert np.mean(widths) < expected  # and it says something
    uniform = np.mean([sum(GAMMA**t * r for t, r in enumerate(e.get_rewards())) for e in play(2000, 99, steps)])
    assert abs(uniform - expected) > np.mean(widths)  # which the returns of the other policy do not


def test_episodes_of_the_policy_itself_give_their_mean_return():
    policy = policy_of()
    episodes = play(50, 0)
    for episode in episodes:
        obs = np.asarray(episode.get_observations())[:-1]
        episode.set_extra_model_outputs(
            key="action_logp", new_data=policy.action_logp(obs, np.asarray(episode.get_actions()))
        )
    returns = [sum(GAMMA**t * r for t, r in enumerate(e.get_rewards())) for e in episodes]
    found = lockstep.estimate(policy, episodes, "is")
    assert found.value == pytest.approx(np.mean(returns), rel=1e-5)
    assert found.effective_num_episodes == pytest.approx(50, rel=1e-4)
    assert lockstep.estimate(policy, episodes, "is") == found  # seeded
    assert lockstep.estimate(policy, episodes, "is", seed=1).low != found.low
    narrow = lockstep.estimate(policy, episodes, "is", confidence=0.5)
    assert found.low < narrow.low < narrow.high < found.high


def test_a_batch_is_split_into_its_episodes():
    episodes = play(20, 0)
    batch = SampleBatch.concat_samples([episode.get_sample_batch() for episode in episodes])
    assert lockstep.estimate(policy_of(), batch) == lockstep.estimate(policy_of(), episodes)


@pytest.mark.parametrize("method", ["wis", "fqe"])
def test_a_policy_of_action_values_takes_the_best_action(method):
    policy = policy_of(DQNConfig)
    best = policy.act(np.eye(STATES, dtype=np.float32), None)
    found = lockstep.estimate(policy, play(400, 0, 1), method, num_features=0)
    assert found.value == pytest.approx(float(best[0]), abs=0.05)
    greedy = lockstep.estimate(policy_of(), play(400, 0, 1), method, explore=False, num_features=0)
    assert greedy.value == pytest.approx(float(policy_of().act(np.eye(STATES, dtype=np.float32), None)[0]), abs=0.05)


@pytest.mark.parametrize("kind", [PPOConfig, TD3Config])
def test_fitted_q_evaluation_takes_continuous_actions(kind):
    """The reward is -(a - 0.5)^2 in one step: the value of a policy is known from its actions."""
    policy, rng = policy_of(kind, moves=True), np.random.default_rng(0)
    episodes = []
    for _ in range(400):
        action = rng.uniform(-1, 1, (1, 1)).astype(np.float32)
        rewards = -np.square(action[:, 0] - 0.5)
        episodes.append(episode_of([0, 1], action, rewards))
    noise = policy.draw_noise(rng, (4000,)) if kind is PPOConfig else None
    drawn = policy.act(np.eye(STATES, dtype=np.float32)[np.zeros(4000, int)], noise)
    inside = np.clip(drawn, -1, 1) if kind is PPOConfig else drawn
    found = lockstep.estimate(policy, episodes, "fqe", num_bootstraps=20)
    expected = float(-np.square(inside[:, 0] - 0.5).mean())
    assert found.value == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("method", ["wis", "fqe"])
def test_actions_are_learned_from_0_wherever_their_space_starts(method, explore):
    policies = []
    for start in (0, 5):
        config = PPOConfig().environment(observation_space=CHAIN, action_space=spaces.Discrete(2, start=start))
        config.debugging(seed=0).rl_module(model_config={"hiddens": (8,), "policy_gain": 3.0})
        policies.append(config.training(gamma=GAMMA).build_policy())
    plain, moved = (
        lockstep.estimate(policy, play(50, 0, 1), method, explore=explore, num_features=0) for policy in policies
    )
    assert moved == plain
    assert moved.value == pytest.approx(value_of(policies[0], 1), abs=0.2) or not explore


def test_actions_are_refused_whose_space_starts_elsewhere():
    config = PPOConfig().environment(observation_space=CHAIN, action_space=spaces.Discrete(2, start=5))
    episodes = [episode_of([0, 1], [6], [1.0], [0.0])]
    with pytest.raises(ValueError, match=r"episode 0 has actions from 6 to 6; a policy on .* learns from 0 to 1"):
        lockstep.estimate(config.build_policy(), episodes, "fqe")


def test_memory_of_fitted_q_evaluation_is_linear_in_the_actions():
    """75 actions and 20 features of 1,000 steps: their products alone would be 12 MB, and those of products 18 MB."""
    config = PPOConfig().environment(observation_space=CHAIN, action_space=spaces.Discrete(75)).training(gamma=GAMMA)
    policy = config.rl_module(model_config={"hiddens": (8,)}).build_policy()
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(100):
        actions = rng.integers(75, size=10)
        episodes.append(episode_of(rng.integers(STATES, size=11), actions, rng.normal(size=10)))
    options = {"num_features": 16, "num_bootstraps": 1}
    lockstep.estimate(policy, episodes[:2], "fqe", **options)  # what is imported and made once
    tracemalloc.start()
    lockstep.estimate(policy, episodes, "fqe", **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    steps, features = 1_000, 20
    assert peak < 32 * steps * (features + 75) + 24 * 75 * features**2 + 33e6  # of which 32 MiB for a matrix


EPISODE = episode_of([0, 1], [1], [1.0])
REFUSED = [
    ({"episodes": []}, "must be a list of SingleAgentEpisode"),
    ({"episodes": [3]}, "must be a list of SingleAgentEpisode"),
    ({"episodes": [episode_of([0, 1], [1], [1.0], [0.0], terminated=False)]}, "is not whole"),
    ({"episodes": [EPISODE]}, "has no 'action_logp'", "with_logp=True"),
    ({"episodes": [episode_of([0, 1], [1], [1.0], [np.nan])]}, "not finite"),
    ({"method": "dr"}, "method='dr'"),
    ({"gamma": 1.5}, "gamma=1.5"),
    ({"confidence": 1.0}, "confidence=1.0"),
    ({"num_bootstraps": 0}, "num_bootstraps=0"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[1] for row in REFUSED])
def test_what_cannot_be_estimated_is_refused(row):
    options, *words = row
    with pytest.raises(ValueError) as refused:
        lockstep.estimate(policy_of(), **{"episodes": play(3, 0), **options})
    assert [word for word in words if word not in str(refused.value)] == []


def test_probabilities_of_deterministic_continuous_actions_are_refused():
    episode = episode_of([0, 1], np.zeros((1, 1), np.float32), [1.0], [0.0])
    with pytest.raises(ValueError, match="have no probabilities; use method='fqe'"):
        lockstep.estimate(policy_of(TD3Config, moves=True), [episode])


def test_values_without_bound_are_told():
    loop = [episode_of([0, 0, 0], [0, 1], [1.0, 1.0], truncated=True)] * 3
    with pytest.warns(RuntimeWarning, match="has not converged"):
        lockstep.estimate(policy_of(), loop, "fqe", gamma=1.0, num_features=0, num_bootstraps=2)
