"""Atari wrappers and small environments of `lockstep_sb3`."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from small_tasks import Copy

from lockstep_sb3.common.atari_wrappers import (
    AtariWrapper,
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    MaxAndSkipEnv,
    NoopResetEnv,
    StickyActionEnv,
    WarpFrame,
)
from lockstep_sb3.common.env_checker import check_env
from lockstep_sb3.common.env_util import is_wrapped, make_atari_env
from lockstep_sb3.common.envs import (
    BitFlippingEnv,
    FakeImageEnv,
    IdentityEnv,
    IdentityEnvBox,
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
    SimpleMultiObsEnv,
)
from lockstep_sb3.common.monitor import Monitor
from lockstep_sb3.common.vec_env import VecFrameStack


@pytest.fixture(scope="module")
def breakout():
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)

    def make():
        return gym.make("BreakoutNoFrameskip-v4")

    return make


def test_a_lost_life_ends_the_episode_and_not_the_game(breakout):
    env = EpisodicLifeEnv(FireResetEnv(Monitor(breakout())))
    env.reset(seed=0)
    game = env.unwrapped.ale
    assert game.lives() == 5
    frames = []
    for lives in (4, 3):
        terminated = False
        while not terminated:
            _, _, terminated, truncated, info = env.step(1)
            assert not truncated
        assert (game.lives(), env.was_real_done) == (lives, False)
        assert "episode" not in info
        frames.append(game.getEpisodeFrameNumber())
        env.reset()
        assert game.lives() == lives  # the game continues
    assert frames[1] > frames[0]
    for _ in range(3):
        while not env.step(1)[2]:
            pass
        last_lives, was_over = game.lives(), env.was_real_done
        env.reset()
    assert (last_lives, was_over, game.lives()) == (0, True, 5)


def test_frames_are_skipped_and_scaled_and_rewards_clipped(breakout):
    env = MaxAndSkipEnv(breakout(), skip=4)
    env.reset(seed=0)
    number = env.unwrapped.ale.getEpisodeFrameNumber()
    obs, reward, *_ = env.step(1)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == number + 4
    assert (obs.shape, type(reward)) == ((210, 160, 3), float)
    small = WarpFrame(breakout(), width=42, height=84)
    assert small.observation_space.shape == small.reset(seed=0)[0].shape == (84, 42, 1)
    assert [ClipRewardEnv(env).reward(value) for value in (-3.0, 0, 7)] == [-1.0, 0.0, 1.0]


def test_episodes_begin_with_noops(breakout):
    env = NoopResetEnv(breakout(), noop_max=30)
    numbers = set()
    for seed in range(4):
        env.reset(seed=seed)
        numbers.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(numbers) > 1
    env.override_num_noops = 7
    env.reset(seed=0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == 7


class Last(gym.Wrapper):
    """Wrapper that notes the actions that reach the game."""

    taken = ()

    def step(self, action):
        self.taken = (*self.taken, int(action))
        return self.env.step(action)


def test_actions_are_repeated_with_their_probability(breakout):
    game = Last(breakout())
    env = StickyActionEnv(game, action_repeat_probability=0.5)
    env.reset(seed=0)
    for number in range(200):
        env.step(2 if number % 2 else 3)
    repeats = sum(game.taken[i] == game.taken[i - 1] for i in range(1, 200))
    assert 60 < repeats < 140
    assert is_wrapped(AtariWrapper(breakout(), action_repeat_probability=0.25), StickyActionEnv)


def test_atari_vectors_are_stacked_as_in_the_papers(breakout):
    venv = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=2, seed=1), n_stack=4)
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((2, 84, 84, 4), np.uint8)
    ends = []
    for _ in range(150):
        _, rewards, dones, infos = venv.step([1, 1])
        assert set(rewards) <= {-1.0, 0.0, 1.0}
        ends += [("episode" in info) for info, done in zip(infos, dones) if done]
    assert ends  # lives were lost
    assert sum(ends) <= len(ends) / 4  # and few games were over
    venv.close()


def test_another_environment_is_refused_by_atari_wrappers():
    with pytest.raises(ValueError, match="not an Atari game"):
        AtariWrapper(Copy())


# -- small environments ---


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda: IdentityEnv(dim=3), lambda obs: obs),
        (lambda: IdentityEnvBox(eps=0.1), lambda obs: obs + 0.05),
        (lambda: IdentityEnvMultiDiscrete(4), lambda obs: obs),
        (lambda: IdentityEnvMultiBinary(4), lambda obs: obs),
    ],
)
def test_the_observation_is_the_right_action(make, right):
    env = make()
    obs, _ = env.reset(seed=0)
    obs, reward, terminated, truncated, _ = env.step(right(np.array(obs)))
    assert (reward, terminated, truncated) == (1.0, False, False)
    ends = [env.step(env.action_space.sample())[3] for _ in range(99)]
    assert ends == [False] * 98 + [True]
    check_env(make(), warn=False)


@pytest.mark.parametrize("options", [{}, {"continuous": True}, {"discrete_obs_space": True}, {"image_obs_space": True}])
def test_flipping_all_bits_ends_the_episode(options):
    env = BitFlippingEnv(n_bits=4, **options)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    wrong = np.flatnonzero(env.state == 0)
    for number, bit in enumerate(wrong):
        action = np.where(np.arange(4) == bit, 1.0, -1.0) if env.continuous else bit
        obs, reward, terminated, _, info = env.step(action)
        is_last = number == len(wrong) - 1
        assert (reward, terminated, info["is_success"]) == (0.0 if is_last else -1.0, is_last, is_last)
    assert np.all(obs["achieved_goal"] == obs["desired_goal"])
    check_env(BitFlippingEnv(n_bits=4, **options), warn=False)


def test_the_grid_has_a_way_along_its_border():
    env = SimpleMultiObsEnv(random_start=False)
    env.reset(seed=0)
    assert env.step(0)[1] == -0.1  # nothing is left of the start
    steps = [env.step(action) for action in (1, 1, 1, 2, 2, 2)]
    assert [round(step[1], 1) for step in steps] == [-0.1] * 5 + [1.0]
    assert steps[-1][2]
    env.reset(seed=0)
    assert env.step(1)[0]["img"].shape == (64, 64, 1)
    before = env.state
    env.step(2)
    assert env.state == before  # the inside is blocked
    check_env(SimpleMultiObsEnv(channel_last=False), warn=False)
    check_env(FakeImageEnv(channel_first=True), warn=False)
