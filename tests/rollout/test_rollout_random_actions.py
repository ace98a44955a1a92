"""Random actions: those of the space, evenly; those that a mask allows only; the same wherever environments are."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from acting_tools import Acting
from agent_games import CountingGame, game_config
from gymnasium import spaces

from lockstep import AsyncCollector, Collector, DQNConfig, RolloutStore
from lockstep.data.actions import random_actions
from lockstep.envs import WorkerVectorEnv, make_vector
from lockstep.replay import VectorReplayBuffer
from lockstep.state.streams import RandomStreams

ACTIONS = 5


class Masked(gym.Env):
    """Allows two of its actions, which it draws; refuses the others."""

    action_space = spaces.Discrete(ACTIONS, start=2)
    observation_space = spaces.Dict(
        {"observations": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.Box(0, 1, (ACTIONS,), np.int8)}
    )

    def __init__(self, offset=0):
        self.offset = offset

    def reset(self, *, seed=None, options=None):
        super().reset(seed=self.offset)
        self.steps = 0
        return self.look(), {}

    def look(self):
        self.mask = np.zeros(ACTIONS, np.int8)
        self.mask[self.np_random.choice(ACTIONS, 2, replace=False)] = 1
        return {"observations": np.zeros(2, np.float32), "action_mask": self.mask}

    def step(self, action):
        if not self.mask[action - 2]:
            raise ValueError(f"action {action} is not allowed by {self.mask}")
        self.steps += 1
        return self.look(), 1.0, self.steps >= 9, False, {}


class FromTwo(Acting):
    def from_env(self, actions):
        return actions - 2

    def to_env(self, actions):
        return actions + 2


def makers(first, last):
    return [partial(Masked, b) for b in range(first, last)]


def random_rollout(first, last, in_all):
    env = make_vector(gym.vector.SyncVectorEnv(makers(first, last)))
    store = RolloutStore(40, last - first, env.observation_space, env.action_space)
    collector = Collector(FromTwo(), env, store, streams=RandomStreams(7), place=(first, in_all))
    collector.collect(n_step=40 * (last - first), random=True)
    return store.obs["action_mask"][:40].copy(), store.actions[:40].copy()


def test_random_actions_are_those_that_the_mask_allows_and_all_of_them():
    masks, actions = random_rollout(0, 4, 4)
    assert np.take_along_axis(masks, actions[..., None], 2).all()
    shares = [(np.cumsum(mask)[action] == 1) for mask, action in zip(masks.reshape(-1, ACTIONS), actions.reshape(-1))]
    assert 0.3 < np.mean(shares) < 0.7  # the first and the second of the two alike
    assert set(np.unique(actions)) == set(range(ACTIONS))


def test_masked_random_actions_are_the_same_whoever_has_the_environments():
    masks, actions = random_rollout(0, 4, 4)
    for first, last in ((0, 1), (1, 4)):
        own_masks, own = random_rollout(first, last, 4)
        np.testing.assert_array_equal(own_masks, masks[:, first:last])
        np.testing.assert_array_equal(own, actions[:, first:last])


def test_async_collector_draws_random_actions_that_the_masks_allow():
    with WorkerVectorEnv(makers(0, 3)) as env:
        buffer = VectorReplayBuffer(600, 3)
        stats = AsyncCollector(FromTwo(), env, buffer).collect(n_step=200, random=True)
    assert stats.n_collected_steps == len(buffer) == 200
    batch = buffer.all()
    assert np.take_along_axis(batch["obs"]["action_mask"], batch["actions"][:, None], 1).all()


@pytest.mark.parametrize("learning_starts", [0, 20])
def test_random_warm_up_of_a_run_keeps_to_the_mask(learning_starts):
    config = DQNConfig().environment(Masked).reporting(total_steps=64).rl_module(model_config={"hiddens": (8,)})
    info = config.replay(learning_starts=learning_starts).build_trainer().run()
    assert info.train_step == 64


class MaskedChoices(Masked):
    """Forbids some of the choices of each of several at once, or some of its bits."""

    def __init__(self, actions, entries, offset=0):
        super().__init__(offset)
        self.action_space, self.entries = actions, entries
        mask = spaces.MultiBinary(entries)
        self.observation_space = spaces.Dict({**Masked.observation_space.spaces, "action_mask": mask})

    def look(self):
        self.mask = self.np_random.integers(0, 2, self.entries).astype(np.int8)
        if isinstance(self.action_space, spaces.MultiDiscrete):
            self.mask[[1, 4]] = 1  # one of each choice at least
        return {"observations": np.zeros(2, np.float32), "action_mask": self.mask}

    def step(self, action):
        self.steps += 1
        if isinstance(self.action_space, spaces.MultiBinary):
            allowed = not (action.astype(bool) & (self.mask == 0)).any()
        else:
            first, second = action - self.action_space.start
            allowed = self.mask[first] and self.mask[2 + second]
        if not allowed:
            raise ValueError(f"action {action} is not allowed by {self.mask}")
        return self.look(), 1.0, self.steps >= 9, False, {}


CHOICES = {
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3], start=[5, -1]), 5),
    "MultiBinary": (spaces.MultiBinary(4), 4),
}


@pytest.mark.parametrize("actions, entries", CHOICES.values(), ids=CHOICES)
def test_masked_random_actions_cover_exactly_the_allowed_choices(actions, entries):
    env = make_vector(gym.vector.SyncVectorEnv([partial(MaskedChoices, actions, entries, b) for b in range(4)]))
    store = RolloutStore(100, 4, env.observation_space, env.action_space)
    Collector(Acting(), env, store).collect(n_step=400, random=True)
    taken = store.actions[:100].reshape(400, -1)
    assert taken.dtype == actions.dtype
    assert len(np.unique(taken, axis=0)) == (6 if entries == 5 else 16)  # every one there is
    if isinstance(actions, spaces.MultiBinary):  # of bits that are free half are set
        assert 0.45 < taken[store.obs["action_mask"][:100].reshape(400, -1) == 1].mean() < 0.55


class MaskedGame(CountingGame):
    """Each agent makes two choices at once, of which its mask forbids some; strict about it."""

    def observation_space(self, agent):
        mask = spaces.Box(0, 1, (5,), np.int8)
        return spaces.Dict({"observations": spaces.Box(0.0, 100.0, (2,), np.float32), "action_mask": mask})

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 3], start=[5, -1])

    def _obs(self, agents):
        masks = {"a": [0, 1, 1, 0, 1], "b": [1, 1, 0, 1, 0], "c": [1, 0, 1, 1, 0]}
        self.masks = {agent: np.array(masks[agent], np.int8) for agent in agents}
        seen = super()._obs(agents)
        return {agent: {"observations": seen[agent], "action_mask": self.masks[agent]} for agent in agents}

    def step(self, actions):
        for agent, (first, second) in actions.items():
            assert self.masks[agent][first - 5], "of the first choice"
            assert self.masks[agent][2 + second + 1], "of the second choice"
        return super().step(dict.fromkeys(actions, 0))


def test_random_actions_of_several_agents_are_those_that_their_masks_allow():
    config = game_config(MaskedGame)
    collector = config.build_collector(config.build_policy())
    assert collector.collect(n_episode=40, random=True).n_collected_episodes == 40


SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.Discrete(4, dtype=np.int32),
    spaces.Box(-2.0, np.array([1.0, 2.0], np.float32)),
    spaces.Box(-np.inf, np.inf, (2,)),
    spaces.Box(0, 5, (2,), np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_actions_of_every_space_are_valid_and_follow_the_generator(space):
    drawn = random_actions(space, np.random.default_rng(1), 5)
    sample = np.asarray(space.sample())
    assert drawn.shape == (5, *sample.shape)
    assert drawn.dtype == sample.dtype
    assert all(space.contains(row) for row in drawn)
    np.testing.assert_array_equal(drawn, random_actions(space, np.random.default_rng(1), 5))
    assert (drawn != random_actions(space, np.random.default_rng(2), 5)).any()


def test_random_actions_fill_their_space_evenly():
    rng = np.random.default_rng(0)
    counts = np.bincount(random_actions(spaces.Discrete(3, start=2), rng, 30_000) - 2)
    assert abs(counts / 30_000 - 1 / 3).max() < 0.01
    box = random_actions(spaces.Box(-1.0, 3.0, (1,)), rng, 30_000)
    assert abs(np.histogram(box, 4, (-1.0, 3.0))[0] / 30_000 - 0.25).max() < 0.01
