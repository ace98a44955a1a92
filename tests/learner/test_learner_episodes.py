"""Learning from episodes: one's own, and the views that a collector hands out."""

import copy
import pickle

import numpy as np
import pytest
import torch
from algorithm_cases import FROM_RETURNS
from learner_parts import (
    ALL,
    MODULE,
    assert_near,
    assert_same,
    differs,
    episodes,
    make_episode,
    own_copy,
    parameters,
    ppo_config,
    rollout,
)

from lockstep import A2CConfig, BCConfig, PPOConfig, get_config
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.rollout import RolloutEpisodes
from lockstep.data.sample_batch import concat_samples
from lockstep.data.trajectories import trajectories_from_episodes
from lockstep.learner.learner import Learner

OPTIONS = {"num_epochs": 2, "minibatch_size": None}


def collected(config, num_steps=40, num_envs=2):
    """A rollout of a real environment, with the policy that collected it."""
    policy, collector = rollout(config.env_runners(num_envs_per_env_runner=num_envs), num_steps // num_envs)
    collector.close()
    return policy, collector.buffer


def cartpole(config=None):
    config = (config or PPOConfig()).environment("CartPole-v1")
    return config.rl_module(model_config={"hiddens": (8,)}).framework(dtype="float64")


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
def test_own_episodes_teach_the_same_as_the_views_on_the_rollout_store(config):
    policy, store = collected(cartpole(config()), num_steps=80)
    views = store.episodes()
    assert isinstance(views, RolloutEpisodes)
    own = [own_copy(view) for view in views]
    assert sum(len(episode) for episode in own) == len(store) == 80
    assert any(episode.is_terminated for episode in own)
    assert not all(episode.is_done for episode in own)
    first, second = policy.learner_group.learner, cartpole(config()).build_learner()
    assert_same(parameters(first), parameters(second))
    before = parameters(first)
    first.update_from_episodes(views, **OPTIONS)
    second.update_from_episodes(own, **OPTIONS)
    assert differs(before, parameters(first))
    assert_near(first, second, 1e-6)


def test_callers_episodes_are_not_changed():
    pieces = episodes()
    before = [piece.get_state() for piece in episodes()]
    ppo_config().build_learner().update_from_episodes(pieces, minibatch_size=4, shuffle_batch_per_epoch=True)
    for piece, state in zip(pieces, before):
        after = piece.get_state()
        for name in ("observations", "actions", "rewards"):
            if name in state:
                np.testing.assert_equal(after[name], state[name])
        assert len(piece) == len(piece.get_rewards())


def test_episodes_without_steps_are_nothing_to_train_on():
    learner = ppo_config().build_learner()
    empty = SingleAgentEpisode(observations=[np.zeros(3, np.float32)])
    assert learner.update_from_episodes([empty])[ALL]["num_updates_skipped"] == 1
    results = learner.update_from_episodes([empty, *episodes((4,), ("open",))])
    assert results[ALL]["num_env_steps_trained"] == 4


class RecordingLearner(Learner):
    """Has only a loss; keeps the columns that it gets."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.got = batch
        return self.masked_mean(fwd_out["vf_preds"].square(), batch)


def test_a_learner_with_only_a_loss_gets_recorded_columns():
    _, store = collected(cartpole(), num_steps=120)
    logp = np.linspace(-2.0, -0.1, store.size * store.num_envs, dtype=np.float32)
    store.action_logp = logp.reshape(store.size, store.num_envs)
    views = store.episodes()
    assert any(view.is_terminated for view in views)
    found = []
    for given in (views, list(views)[::-1], [SingleAgentEpisode.from_state(view.get_state()) for view in views]):
        config = cartpole().training(learner_class=RecordingLearner, minibatch_size=None)
        learner = config.build_learner()
        learner.update_from_episodes(given)
        names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds", "action_logp")
        assert set(names) <= set(learner.got)
        rows = torch.cat([learner.got[name].reshape(len(store), -1).double() for name in names], 1).numpy()
        found.append(rows[np.lexsort(rows.T)])
    expected = [view.get_data_dict() for view in views]
    rows = np.concatenate([np.concatenate([np.reshape(d[n], (len(d["t"]), -1)) for n in names], 1) for d in expected])
    for each in found:
        np.testing.assert_allclose(each, rows[np.lexsort(rows.T)], rtol=1e-6)


def test_extra_model_outputs_reach_the_loss_with_and_without_memory():
    for model_config in ({"hiddens": (8,)}, {"recurrent": "gru", "max_seq_len": 4}):
        config = PPOConfig().environment("CartPole-v1").rl_module(model_config=model_config)
        learner = config.training(learner_class=RecordingLearner, minibatch_size=None).build_learner()
        outputs = {"effort": np.arange(6.0), "note": np.array(["a"] * 6)}
        learner.update_from_episodes([make_episode(6, size=4, actions=2, **outputs)])
        mask = learner.got.get("loss_mask")
        effort = learner.got["effort"] if mask is None else learner.got["effort"][mask]
        assert effort.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert "note" not in learner.got


@pytest.mark.parametrize(
    "extra",
    [
        lambda n: np.zeros((n, n)),  # another width in each episode
        lambda n: np.array([{n: 1}] * n, dtype=object),
        lambda n: {str(n): np.zeros(n)},
    ],
)
def test_extra_model_outputs_that_cannot_be_joined_are_passed_over(extra):
    learner = cartpole().build_learner()
    given = [make_episode(n, size=4, actions=2, attention=extra(n)) for n in (5, 7)]
    assert learner.update_from_episodes(given)[ALL]["num_env_steps_trained"] == 12


def test_bc_trains_equally_on_episodes_and_on_their_batch():
    _, store = collected(cartpole(), num_steps=40)
    learners = [BCConfig().environment("CartPole-v1").build_learner() for _ in range(2)]
    learners[0].update_from_episodes(store.episodes())
    learners[1].update_from_batch(concat_samples([view.get_sample_batch() for view in store.episodes()]))
    assert_near(*learners, 1e-6)


def test_offline_learning_uses_the_returns_of_the_rest_of_the_episode():
    learner = get_config(FROM_RETURNS).environment("CartPole-v1").training(gamma=0.5).build_learner()
    obs = np.arange(20.0, dtype=np.float32).reshape(5, 4)
    parts = {"actions": np.zeros(4, np.int64), "rewards": np.array([1.0, 2.0, 4.0, 8.0], np.float32)}
    pieces = [SingleAgentEpisode(observations=obs, **parts, terminated=end) for end in (True, False)]
    found = learner.prepare_batch(trajectories_from_episodes(pieces), module_id=MODULE)
    assert found["rewards"].tolist() == 2 * [4.0, 6.0, 8.0, 8.0]
    assert found["discounts"].tolist() == 2 * [0.0625, 0.125, 0.25, 0.5]
    assert found["terminateds"].tolist() == [True] * 4 + [False] * 4
    assert torch.equal(found["new_obs"], torch.from_numpy(obs[[4] * 8]))


def test_statistics_of_observations_move_after_the_gradient_steps_only():
    config = ppo_config().environment(normalize_observations=True)
    learner, pieces = config.build_learner(), episodes((6, 5), ("terminated", "open"))
    first = learner.prepare_batch(trajectories_from_episodes(pieces), module_id=MODULE)["obs"].clone()
    learner.update_from_episodes(pieces)
    second = learner.prepare_batch(trajectories_from_episodes(pieces), module_id=MODULE)["obs"]
    raw = np.concatenate([np.asarray(piece.get_observations())[:-1] for piece in pieces])
    np.testing.assert_allclose(first.numpy(), raw, atol=1e-5)  # no statistics yet
    np.testing.assert_allclose(second.numpy(), (raw - raw.mean(0)) / raw.std(0), atol=1e-5)


@pytest.fixture
def filled():
    """A learner, and the store that its policy filled: 3 environments, 40 steps each."""
    policy, store = collected(cartpole().framework(dtype="float32"), 120, num_envs=3)
    return policy.learner_group.learner, store


# -- `update_from_episodes` on views makes no copy before the minibatch gather: data.md, section 7 ---


@pytest.mark.parametrize("given", [lambda views: views, list, lambda views: list(views)[::-1]])
def test_update_from_episodes_on_views_copies_nothing_before_the_gather(filled, given):
    learner, store = filled
    seen = []
    prepare = learner.prepare_batch

    def watched(trajectories, **options):
        seen.append((trajectories, prepare(trajectories, **options)))
        return seen[-1][1]

    learner.prepare_batch = watched
    learner.update_from_episodes(given(store.episodes()), num_epochs=1, minibatch_size=32)
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


def test_episodes_that_are_not_just_the_rollout_are_read_one_by_one(filled):
    _, store = filled
    episodes = list(store.episodes())
    assert not is_copied(store, episodes)
    assert is_copied(store, episodes[1:])
    assert is_copied(store, [*episodes[1:], episodes[1]])
    assert is_copied(store, [*episodes[1:], episodes[0][:]])


def test_changed_episodes_are_learned_from_as_they_are(filled):
    _, store = filled
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


def test_views_of_an_emptied_store_are_not_those_of_its_next_rollout(filled):
    _, store = filled
    episodes = list(store.episodes())
    size = store.size
    store.clear()
    store.size = size
    store.final_index = []
    assert is_copied(store, episodes)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_view_is_sent_without_the_rest_of_its_rollout(filled, duplicate):
    _, store = filled
    episode = store.episodes()[0]
    other = duplicate(episode)
    assert other.source is None
    assert episode.source is not None
    np.testing.assert_array_equal(other.get_observations(), episode.get_observations())
    assert len(pickle.dumps(other)) < 6_000
