"""Actions of every space arrive in the environment as it takes them, and are stored as the learner takes them."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lockstep import PPOConfig, RolloutStore
from lockstep.envs import make_vector
from lockstep.rollout import Collector


class Recording(gym.Env):
    """Keeps the actions it is given; refuses what is not in its space in form or value."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), dtype=np.float32)

    def __init__(self, space):
        self.action_space, self.given = space, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.given.append(np.array(action))
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 0.0, False, len(self.given) % 7 == 0, {}


LOW = np.array([[-3.0, 0.0], [10.0, -0.5]])
HIGH = np.array([[-1.0, 8.0], [11.0, 0.5]])
SPACES = {
    "discrete": (spaces.Discrete(3), {}),
    "discrete_from_1": (spaces.Discrete(3, start=1), {}),
    "discrete_from_minus_5": (spaces.Discrete(3, start=-5), {}),
    "multi_discrete": (spaces.MultiDiscrete([3, 2, 4]), {}),
    "multi_discrete_square_from_2": (spaces.MultiDiscrete([[3, 2], [2, 5]], start=[[2, 2], [0, 1]]), {}),
    "multi_binary": (spaces.MultiBinary(4), {}),
    "multi_binary_square": (spaces.MultiBinary([2, 2]), {}),
    "box_clipped": (spaces.Box(-0.5, 0.5, (2,), dtype=np.float32), {"clip_actions": True}),
    "box_clipped_float64": (spaces.Box(LOW, HIGH, dtype=np.float64), {"clip_actions": True}),
    "box_rescaled": (spaces.Box(-2.0, 2.0, (2,), dtype=np.float32), {"rescale_actions": True}),
    "box_rescaled_square": (spaces.Box(LOW, HIGH, dtype=np.float64), {"rescale_actions": True}),
    "box_unbounded": (spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32), {}),
    "box_squashed": (spaces.Box(-2.0, 6.0, (2,), dtype=np.float32), {"squash": True}),
}


def collector_for(name):
    space, options = SPACES[name]
    squash = options.get("squash", False)
    config = PPOConfig().environment(env_config={}, **{k: v for k, v in options.items() if k != "squash"})
    config.rl_module(model_config={"hiddens": (4,), "squash_actions": squash, "free_log_std": not squash})
    config.environment(lambda: Recording(space))
    policy = config.build_policy(spaces=(Recording.observation_space, space))
    boundary = make_vector(lambda: Recording(space), num_envs=3)
    store = RolloutStore(8, 3, boundary.observation_space, boundary.action_space)
    return Collector(policy, boundary, store, exploration_noise=True)


def expected_in_env(name, stored):
    """What the environment must be given for stored actions `[..., A]`, from the meaning of the options alone."""
    space, options = SPACES[name]
    if isinstance(space, spaces.Discrete):
        return stored + space.start
    shaped = stored.reshape(-1, *space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return shaped + space.start
    if options.get("clip_actions"):
        return np.clip(shaped, space.low, space.high)
    if options.get("rescale_actions") or options.get("squash"):
        return np.clip((space.high + space.low) / 2 + shaped * (space.high - space.low) / 2, space.low, space.high)
    return shaped


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_actions_arrive_in_the_environment_as_they_must(name, random):
    collector = collector_for(name)
    space, options = SPACES[name]
    collector.collect(n_step=240, random=random)
    stored = collector.buffer.actions[:80]
    for b, env in enumerate(collector.env.envs):
        given = np.stack(env.unwrapped.given)
        assert given.dtype == space.dtype
        np.testing.assert_allclose(given, expected_in_env(name, stored[:, b]), rtol=1e-5, atol=1e-5)
    given = np.concatenate([np.stack(env.unwrapped.given) for env in collector.env.envs])
    if isinstance(space, spaces.Box):
        assert len(np.unique(given.reshape(240, -1)[:, 0])) > 30
        if random and space.is_bounded():  # uniform over the whole box, not pressed against its bounds
            share = (given - space.low) / (space.high - space.low)
            assert 0.3 < share.mean() < 0.7
            assert share.std() == pytest.approx(12**-0.5, abs=0.05)
            assert ((share < 1e-6) | (share > 1 - 1e-6)).mean() < 0.02
        if options.get("clip_actions") and not random:
            assert (stored.reshape(-1, *space.shape) > space.high).any()  # the learner sees what was drawn
    else:
        high = space.nvec if isinstance(space, spaces.MultiDiscrete) else getattr(space, "n", 2)
        low = getattr(space, "start", 0)
        assert (given.min(axis=0) == low).all()
        if isinstance(space, spaces.MultiBinary):
            assert (given.max(axis=0) == 1).all()
        else:
            assert (given.max(axis=0) == low + high - 1).all()


@pytest.mark.parametrize("name", SPACES)
def test_stored_actions_are_learned_from_whatever_the_environment_takes(name):
    collector = collector_for(name)
    collector.collect(n_step=96)
    policy = collector.policy
    with policy.within_training_step():
        stats = policy.update(0, collector.buffer, batch_size=32, repeat=1)
    assert stats.gradient_steps == 3
    assert np.isfinite(stats.metrics["policy_loss"].mean)
    assert stats.metrics["entropy"].count == 3
