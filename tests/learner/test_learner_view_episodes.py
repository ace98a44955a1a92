"""Contract data.md, section 7: `update_from_episodes` on view episodes makes no copy before the minibatch gather."""

import copy
import pickle

import numpy as np
import pytest

from lockstep import PPOConfig, policy_within_training_step
from lockstep.data.rollout import RolloutStore
from lockstep.data.trajectories import trajectories_from_episodes


@pytest.fixture
def collected():
    """A learner, and the store that its policy filled: 3 environments, 40 steps each."""
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3)
    policy = config.rl_module(model_config={"hiddens": (8,)}).build_policy()
    collector = config.build_collector(policy)
    collector.buffer = RolloutStore(40, 3, collector.observation_space, policy.action_space)
    with policy_within_training_step(policy):
        collector.collect(n_step=120)
    collector.close()
    return policy.learner_group.learner, collector.buffer


def as_handed_out(store):
    return store.episodes()


def as_a_list(store):
    return list(store.episodes())


def in_another_order(store):
    return list(store.episodes())[::-1]


@pytest.mark.parametrize("given", [as_handed_out, as_a_list, in_another_order])
def test_update_from_episodes_on_views_copies_nothing_before_the_minibatch_gather(collected, given):
    learner, store = collected
    seen = []
    prepare = learner.prepare_batch

    def watched(trajectories, **options):
        seen.append((trajectories, prepare(trajectories, **options)))
        return seen[-1][1]

    learner.prepare_batch = watched
    learner.update_from_episodes(given(store), num_epochs=1, minibatch_size=32)
    ((trajectories, columns),) = seen
    for name in ("obs", "actions", "rewards", "terminateds"):
        assert np.shares_memory(getattr(trajectories, name), getattr(store, name)), name
    assert len(columns["obs"]) == 120
    for name in ("obs", "actions"):
        assert np.shares_memory(columns[name].numpy(), getattr(store, name)), name


def is_copied(store, episodes):
    trajectories = trajectories_from_episodes(episodes)
    assert trajectories.num_rows == sum(map(len, episodes))
    return not np.shares_memory(trajectories.obs, store.obs)


def test_episodes_that_are_not_just_the_rollout_are_read_one_by_one(collected):
    _, store = collected
    episodes = list(store.episodes())
    assert not is_copied(store, episodes)
    assert is_copied(store, episodes[1:])
    assert is_copied(store, [*episodes[1:], episodes[1]])
    assert is_copied(store, [*episodes[1:], episodes[0][:]])


def test_changed_episodes_are_learned_from_as_they_are(collected):
    _, store = collected
    for change in (
        lambda episode: episode.set_rewards(new_data=np.full(len(episode), 7.0)),
        lambda episode: episode.set_extra_model_outputs(key="w", new_data=np.zeros(len(episode))),
    ):
        episodes = list(store.episodes())
        change(episodes[0])
        assert is_copied(store, episodes)
    episodes = list(store.episodes())
    open_one = next(episode for episode in episodes if not episode.is_done)
    open_one.add_env_step(store.obs[0, 0], 1, 1.0)
    assert is_copied(store, episodes)


def test_views_of_an_emptied_store_are_not_taken_for_its_next_rollout(collected):
    _, store = collected
    episodes = list(store.episodes())
    size = store.size
    store.clear()
    store.size = size
    store.final_index = []
    assert is_copied(store, episodes)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_view_travels_without_the_rollout_it_lies_in(collected, duplicate):
    _, store = collected
    episode = store.episodes()[0]
    other = duplicate(episode)
    assert other.source is None
    assert episode.source is not None
    np.testing.assert_array_equal(other.get_observations(), episode.get_observations())
    assert len(pickle.dumps(other)) < 6_000
