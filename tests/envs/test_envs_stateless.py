"""CartPole and Pendulum without velocities: the same games, of which less is seen."""

import gymnasium as gym
import numpy as np
import pytest

from lockstep.envs import register_environments

register_environments()


@pytest.mark.parametrize(
    "env, whole, shown, length",
    [
        ("lockstep/StatelessCartPole-v0", "CartPole-v1", [0, 2], 500),
        ("lockstep/StatelessPendulum-v0", "Pendulum-v1", [0, 1], 200),
    ],
)
def test_the_game_is_the_same_but_velocities_are_not_shown(env, whole, shown, length):
    part, whole = gym.make(env), gym.make(whole)
    assert part.spec.max_episode_steps == whole.spec.max_episode_steps == length
    assert part.observation_space == gym.spaces.Box(
        whole.observation_space.low[shown], whole.observation_space.high[shown], dtype=np.float32
    )
    seen, expected = part.reset(seed=3)[0], whole.reset(seed=3)[0]
    whole.action_space.seed(0)
    for _ in range(30):
        np.testing.assert_array_equal(seen, expected[shown])
        action = whole.action_space.sample()
        (seen, *rest, _), (expected, *others, _) = part.step(action), whole.step(action)
        assert rest == others
        if rest[1]:
            seen, expected = part.reset(seed=4)[0], whole.reset(seed=4)[0]
