"""Several learners behind the methods of a group: they train what one trains."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    episodes,
    ppo_batch,
    ppo_config,
    spec,
    value_batch,
)

from lockstep import LearnerGroup, RolloutStore
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.group import LearnerBackend, run_request
from lockstep.learner.reduction import DistributedReducer
from lockstep.learner.sharding import shards_of


class ThreadBackend(LearnerBackend):
    """Learners in threads of this process: what a backend has to do, in few lines."""

    is_local = False

    def __init__(self, folder, size, config):
        self.last_checkpoint = ""
        self.pool = ThreadPoolExecutor(size)
        self.learners = []
        reducers = self._all(lambda rank: DistributedReducer(rank, size, folder), [(rank,) for rank in range(size)])
        for reducer in reducers:  # one after another: initial weights are drawn from torch's one generator
            self.learners.append(config.build_learner(reducer=reducer))
        self.learner = self.learners[0]

    def __len__(self):
        return len(self.learners)

    def _all(self, func, args):
        return [future.result(30) for future in [self.pool.submit(func, *each) for each in args]]

    def update(self, request):
        shards = shards_of(request.data, len(self), self.learners[0].modules_with_memory())
        parts = [type(request)(request.kind, shard, request.options, request.return_state) for shard in shards]
        return self._all(lambda learner, part: run_request(part, learner), zip(self.learners, parts))

    def foreach(self, func, *args):
        return self._all(func, [(learner, *args) for learner in self.learners])

    def shutdown(self):
        self.pool.shutdown()


@pytest.fixture
def three(tmp_path):
    backend = ThreadBackend(tmp_path / "store", 3, ppo_config().debugging(seed=0))
    with LearnerGroup(backend) as group:
        yield group


def weights_near(group, other):
    for name, array in other.get_weights()[MODULE].items():
        np.testing.assert_allclose(group.get_weights()[MODULE][name], array, rtol=0, atol=1e-12, err_msg=name)


def assert_trains_as_one(folder, config, size, updates, data, *, atol=1e-12, **options):
    """A group of `size` learners and one learner, handed the same `data(update)`, end with the same parameters."""
    one = config.build_learner_group()
    with LearnerGroup(ThreadBackend(folder, size, config)) as several:
        for update in range(updates):
            given = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": update % 2 == 0, **options}
            results = several.update_from_episodes(data(update), **given)
            expected = one.update_from_episodes(data(update), **given)
        for name in ("policy_loss", "vf_explained_var", "num_module_steps_trained"):
            assert results[MODULE][name] == pytest.approx(expected[MODULE][name], abs=1e-9), name
        assert results[ALL]["num_env_steps_trained"] == expected[ALL]["num_env_steps_trained"]
        weights_near(several, one)


@pytest.mark.parametrize(("size", "memory"), [(2, None), (3, None), (3, "lstm")])
def test_group_trains_one_list_of_unequal_episodes_as_one_learner_does(tmp_path, size, memory):
    config = ppo_config(normalize_advantages="batch", grad_clip=0.1, lr=1e-2).debugging(seed=0)
    config.environment(normalize_observations=True, normalize_rewards=True)
    if memory:
        config.rl_module(model_config={"recurrent": memory, "recurrent_size": 4, "max_seq_len": 4})

    def given(update):
        rng = np.random.default_rng(update)
        lengths = [int(rng.integers(1, 9)), 25, *(int(n) for n in rng.integers(1, 6, size=3))]
        return episodes(lengths, ("open", "truncated", "terminated", "truncated", "open"), seed=update)

    assert_trains_as_one(tmp_path / "store", config, size, 20, given)


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

    assert_trains_as_one(tmp_path / "store", config, size, 20, given)


def test_group_of_three_learners_trains_a_batch_as_one_learner_does(three):
    one = ppo_config().debugging(seed=0).build_learner_group()
    for seed in range(4):
        options = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": bool(seed % 2)}
        results = three.update_from_batch(ppo_batch(23, seed), **options)
        expected = one.update_from_batch(ppo_batch(23, seed), **options)
        assert results[MODULE]["policy_loss"] == pytest.approx(expected[MODULE]["policy_loss"], abs=1e-12)
        assert results[ALL]["num_env_steps_trained"] == 46
    weights_near(three, one)


def test_group_of_three_learners_answers_every_method(three):
    assert (three.is_local, three.is_remote, len(three)) == (False, True, 3)
    results = three.update_from_episodes(episodes(), reduce_results=False, return_state=True)
    assert [part[MODULE]["policy_loss"] for part in results] == [results[0][MODULE]["policy_loss"]] * 3
    assert ["_rl_module_state_after_update" in part for part in results] == [True, False, False]
    assert three.foreach_learner(lambda learner: learner.reducer.rank) == [0, 1, 2]
    three.update_from_episodes(episodes(seed=1), async_update=True)
    assert [part["call_id"] for part in three.drain()] == [2]
    other = ppo_config().debugging(seed=1).build_learner_group()
    three.set_state(other.get_state())
    weights_near(three, other)
    three.add_module(module_id="more", module_spec=spec((4,)), new_should_module_be_updated=[MODULE])
    assert three.foreach_learner(lambda learner: sorted(learner.module)) == [[MODULE, "more"]] * 3
    three.remove_module("more")
    assert three.update_from_episodes([])[ALL]["num_updates_skipped"] == 1
    assert three.get_stats()["num_updates_skipped"] == other.get_stats()["num_updates_skipped"] + 1
    with pytest.raises(RuntimeError, match="in other processes; use foreach_learner"):
        three.learner


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
