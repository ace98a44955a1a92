"""Shards of episodes and rollouts: learners that share them train what one trains."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    assert_near,
    episodes,
    ppo_config,
    value_batch,
)
from torch import nn

from lockstep import RolloutStore
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.many.reduction import DistributedReducer
from lockstep.learner.many.sharding import shards_of


def assert_trains_as_one(folder, config, size, data):
    """`size` learners on the shards of `data(update)` end with the parameters of one learner that gets all of it."""
    one = config.build_learner()
    with ThreadPoolExecutor(size) as pool:
        reducers = list(pool.map(lambda rank: DistributedReducer(rank, size, folder), range(size)))
        several = [config.build_learner(reducer=reducer) for reducer in reducers]
        for update in range(8):
            options = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": update % 2 == 0}
            shards = shards_of(data(update), size, one.modules_with_memory())
            calls = [pool.submit(each.update_from_episodes, part, **options) for each, part in zip(several, shards)]
            results, *_ = [call.result(30) for call in calls]
            expected = one.update_from_episodes(data(update), **options)
    for name in ("policy_loss", "vf_explained_var", "num_module_steps_trained"):
        assert results[MODULE][name] == pytest.approx(expected[MODULE][name], abs=1e-9), name
    assert results[ALL]["num_env_steps_trained"] == expected[ALL]["num_env_steps_trained"]
    for each in several:
        assert_near(each, one, 1e-12)


class Own(nn.Module):
    """An encoder of the user's own."""

    def __init__(self, space):
        super().__init__()
        self.output_size = 6
        self.layer = nn.Linear(*space.shape, 6)

    def forward(self, obs):
        return self.layer(obs).tanh()


LSTM = {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 4}
ATTENTION = {"attention": {"size": 4, "num_heads": 2, "memory": 5, "hidden_size": 4}, "max_seq_len": 4}


@pytest.mark.parametrize(("size", "model"), [(2, {}), (3, {}), (3, LSTM), (3, ATTENTION), (2, {"encoder": Own})])
@pytest.mark.long
def test_group_trains_one_list_of_unequal_episodes_as_one_learner_does(tmp_path, size, model):
    config = ppo_config(normalize_advantages="batch", grad_clip=0.1, lr=1e-2).debugging(seed=0)
    config.environment(normalize_observations=True, normalize_rewards=True)
    config.rl_module(model_config=model)

    def given(update):
        rng = np.random.default_rng(update)
        lengths = [int(rng.integers(1, 9)), 25, *(int(n) for n in rng.integers(1, 6, size=3))]
        return episodes(lengths, ("open", "truncated", "terminated", "truncated", "open"), seed=update)

    assert_trains_as_one(tmp_path / "store", config, size, given)


@pytest.mark.parametrize(("size", "num_envs", "listed"), [(2, 3, False), (3, 2, True), (3, 1, False)])
def test_group_trains_a_whole_rollout_as_one_learner_does(tmp_path, size, num_envs, listed):
    config = ppo_config(normalize_advantages="batch", lr=1e-2).debugging(seed=0)

    def given(update):
        rng = np.random.default_rng(update)
        store = RolloutStore(10, num_envs, BOX, THREE)
        for t in range(10):
            store.write_obs(t, rng.normal(size=(num_envs, 3)).astype(np.float32))
            ended = rng.random(num_envs) < 0.2
            store.write_step(
                t, rng.integers(3, size=num_envs), rng.normal(size=num_envs), ended, np.zeros(num_envs, bool)
            )
            if ended.any():
                store.final_index.append(t * num_envs + np.flatnonzero(ended))
                store.final_obs.append(rng.normal(size=(int(ended.sum()), 3)).astype(np.float32))
            if t in (3, 7):
                store.mark_valid(t, np.arange(num_envs) > 0, None)
        store.end(10, rng.normal(size=(num_envs, 3)).astype(np.float32))
        return list(store.episodes()) if listed else store.episodes()

    assert_trains_as_one(tmp_path / "store", config, size, given)


def test_shards_hold_every_step_once_and_leave_the_data_unchanged():
    given = episodes()
    shards = shards_of(given, 5, {MODULE: False})
    assert [len(episode) for episode in given] == [3, 5, 4]
    owned = [shard.trajectories[MODULE].num_rows for shard in shards]
    assert owned == [shard.env_steps for shard in shards] == [2, 2, 3, 2, 3]
    assert np.concatenate([shard.trajectories[MODULE].positions for shard in shards]).tolist() == list(range(12))
    assert [len(part) for part in shards_of(value_batch(7), 3, {})] == [2, 2, 3]
    both = MultiAgentBatch({"a": value_batch(6), "b": value_batch(4)}, 6)
    assert [part.env_steps() for part in shards_of(both, 2, {})] == [3, 3]
