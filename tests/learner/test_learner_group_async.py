"""Asynchronous updates of a group: order, bounds, dropping, conservation, errors, the end. With real threads."""

import random
import threading
import time
from itertools import count

import numpy as np
import pytest
from learner_parts import (
    ALL,
    MODULE,
    ValueLearner,
    assert_same,
    episodes,
    parameters,
    ppo_batch,
    ppo_config,
    value_batch,
    value_learner,
)

from lockstep import LearnerGroup, SampleBatch
from lockstep.data.rollout import RolloutStore
from lockstep.learner.config import LearnersSection
from lockstep.learner.group import LearnerBackend


class GatedLearner(ValueLearner):
    """Its updates wait for `gate`, and take the seconds that `delay()` says."""

    gate: threading.Event
    delay = staticmethod(lambda: 0.0)

    def before_gradient_based_update(self, *, timesteps):
        super().before_gradient_based_update(timesteps=timesteps)
        self.gate.wait()
        time.sleep(self.delay())


def gated_group(limit=3, is_open=False, **options):
    learner = value_learner(GatedLearner, **options)
    learner.gate = threading.Event()
    if is_open:
        learner.gate.set()
    return LearnerGroup(learner, LearnersSection(max_requests_in_flight_per_learner=limit)), learner


def update_threads():
    return [thread for thread in threading.enumerate() if thread.name == "lockstep-learner-updates"]


def wait_until(condition):
    while not condition():  # what never happens is ended by the time-out of the test
        time.sleep(0.005)


def call_ids(results):
    return [part["call_id"] for part in results]


def test_async_updates_return_earlier_results_in_order_with_call_ids():
    group, learner = gated_group()
    assert group.update_from_batch(value_batch(4), async_update=True) == []
    assert group.update_from_batch(value_batch(5), async_update=True) == []
    assert group.get_stats()["num_in_flight"] == 2
    learner.gate.set()
    wait_until(lambda: group.get_stats()["num_in_flight"] == 0)
    ready = group.update_from_batch(value_batch(6), async_update=True)
    assert call_ids(ready) == [1, 2]
    assert [part[MODULE]["num_module_steps_trained"] for part in ready] == [4, 5]
    assert [part[MODULE]["num_module_steps_trained"] for part in group.drain()] == [6]
    assert group.drain() == []


def test_async_updates_train_like_synchronous_ones():
    group, other = ppo_config().build_learner_group(), ppo_config().build_learner_group()
    options = {"minibatch_size": 4, "num_epochs": 2, "shuffle_batch_per_epoch": True}
    for seed in range(6):
        group.update_from_batch(ppo_batch(seed=seed), async_update=True, **options)
        other.update_from_batch(ppo_batch(seed=seed), **options)
    group.update_from_episodes(episodes(), async_update=True, **options)
    other.update_from_episodes(episodes(), **options)
    group.drain()
    assert_same(parameters(group.learner), parameters(other.learner))


def test_async_update_trains_on_a_copy_of_the_data():
    group, learner = gated_group()
    other, _ = gated_group(is_open=True)
    batch = value_batch(8)
    other.update_from_batch(value_batch(8))
    group.update_from_batch(batch, async_update=True, timesteps={"num_env_steps_sampled_lifetime": 1})
    batch["obs"][:] = np.nan
    learner.gate.set()
    group.drain()
    assert_same(parameters(learner), parameters(other.learner))


def test_async_update_trains_on_a_copy_of_an_overwritten_rollout():
    groups = [ppo_config().build_learner_group() for _ in range(2)]
    store, rng = RolloutStore(4, 2, ppo_config().observation_space, ppo_config().action_space), np.random.default_rng(0)
    for t in range(4):
        store.write_obs(t, rng.normal(size=(2, 3)).astype(np.float32))
        store.write_step(t, rng.integers(3, size=2), rng.normal(size=2), np.zeros(2, bool), np.zeros(2, bool))
    store.end(4, rng.normal(size=(2, 3)).astype(np.float32))
    groups[0].update_from_episodes(store.episodes())
    with groups[1]._queue.between_updates():
        groups[1].update_from_episodes(store.episodes(), async_update=True)
        store.rewards[:] = np.nan
        store.obs[:] = np.nan
        store.clear()
    (results,) = groups[1].drain()
    assert results[MODULE]["num_module_steps_trained"] == 8
    assert_same(parameters(groups[0].learner), parameters(groups[1].learner))


def test_when_full_the_call_waits():
    group, learner = gated_group(limit=2)
    for _ in range(2):
        group.update_from_batch(value_batch(), async_update=True)
    done = threading.Event()

    def third():
        group.update_from_batch(value_batch(), async_update=True)
        done.set()

    waiting = threading.Thread(target=third)
    waiting.start()
    assert not done.wait(0.2)
    assert group.get_stats()["num_in_flight"] == 2
    learner.gate.set()
    assert done.wait(10)
    waiting.join()
    assert call_ids(group.drain()) == [1, 2, 3]


def test_with_on_full_drop_the_oldest_pending_request_is_dropped():
    group, learner = gated_group(limit=3)
    group.update_from_batch(value_batch(1), async_update=True)
    wait_until(lambda: group.get_stats()["num_waiting"] == 0)
    for rows in (2, 3, 4, 5):
        group.update_from_batch(value_batch(rows), async_update=True, on_full="drop")
    stats = group.get_stats()
    assert (stats["num_in_flight"], stats["num_dropped"], stats["num_steps_dropped"]) == (3, 2, 5)
    learner.gate.set()
    assert call_ids(group.drain()) == [1, 4, 5]
    stats = group.get_stats()
    assert (stats["num_steps_submitted"], stats["num_steps_trained"], stats["num_steps_dropped"]) == (15, 10, 5)


@pytest.mark.parametrize("seed", range(6))
def test_every_submitted_step_is_trained_or_dropped_under_random_delays(seed):
    rng = random.Random(seed)
    group, learner = gated_group(limit=rng.randint(1, 3), is_open=True)
    learner.delay = lambda: rng.choice([0.0, 0.0, 0.002, 0.005])
    submitted, seen, numbers = 0, [], count(1)
    for _ in range(40):
        rows, action = rng.randint(0, 9), rng.choice(["wait", "drop", "drop", "sync", "drain", "weights", "sleep"])
        if action in ("wait", "drop"):
            seen += group.update_from_batch(value_batch(rows), async_update=True, on_full=action)
            submitted += rows
            next(numbers)
        elif action == "sync":
            group.update_from_batch(value_batch(rows))
            submitted += rows
            next(numbers)
        elif action == "drain":
            seen += group.drain()
            assert group.get_stats()["num_in_flight"] == 0
        elif action == "weights":
            group.set_weights(group.get_weights())
        else:
            time.sleep(rng.choice([0.0, 0.003]))
    seen += group.drain()
    stats = group.get_stats()
    assert stats["num_steps_submitted"] == submitted == stats["num_steps_trained"] + stats["num_steps_dropped"]
    assert stats["num_steps_trained"] == learner.lifetime.get("env_steps", 0)
    assert stats["num_calls"] == stats["last_call_id"] == next(numbers) - 1
    assert call_ids(seen) == sorted(call_ids(seen))
    assert len(set(call_ids(seen))) == len(seen)
    assert stats["num_calls"] == learner.weights_seq_no + stats["num_updates_skipped"] + stats["num_dropped"]
    group.shutdown()
    assert update_threads() == []


def test_many_threads_may_call_a_group_and_no_row_is_lost():
    group, learner = gated_group(limit=2, is_open=True)

    def call():
        for _ in range(10):
            group.update_from_batch(value_batch(3), async_update=True, on_full="drop")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    group.drain()
    stats = group.get_stats()
    assert stats["num_steps_submitted"] == 120 == stats["num_steps_trained"] + stats["num_steps_dropped"]
    assert learner.lifetime["env_steps"] == stats["num_steps_trained"]


def test_sync_update_comes_after_all_async_updates_submitted_before_it():
    group, learner = gated_group()
    group.update_from_batch(value_batch(4), async_update=True)
    threading.Timer(0.05, learner.gate.set).start()
    results = group.update_from_batch(value_batch(5))
    assert results["call_id"] == 2
    assert results[MODULE]["weights_seq_no"] == 2
    assert call_ids(group.drain()) == [1]


def test_async_results_of_each_learner_come_with_the_new_state():
    group, _ = gated_group(is_open=True)
    group.update_from_batch(value_batch(), async_update=True, reduce_results=False, return_state=True)
    ((results,),) = group.drain()
    assert results["call_id"] == 1
    weights = group.get_weights()[MODULE]
    for name, array in results["_rl_module_state_after_update"][MODULE].items():
        np.testing.assert_array_equal(array, weights[name])


# -- errors and the end ---


@pytest.mark.parametrize("by", ["the next call", "drain"])
def test_an_error_in_the_thread_arrives_before_anything_new_is_accepted(by):
    group, learner = gated_group()
    group.update_from_batch(value_batch(2), async_update=True)
    group.update_from_batch(SampleBatch(obs=np.zeros((3, 3), np.float32)), async_update=True)
    group.update_from_batch(value_batch(4), async_update=True)
    learner.gate.set()
    wait_until(lambda: group.get_stats()["num_in_flight"] == 0)
    with pytest.raises(KeyError, match="value_targets") as caught:
        group.drain() if by == "drain" else group.update_from_batch(value_batch(9), async_update=True)
    assert caught.value.__notes__ == ["in the asynchronous update with call_id=2"]
    assert "check_columns" in [entry.name for entry in caught.traceback]
    assert call_ids(group.drain()) == [1, 3]
    stats = group.get_stats()
    assert (stats["num_failed"], stats["num_steps_trained"], stats["num_steps_dropped"]) == (1, 6, 3)
    assert stats["num_steps_submitted"] == 9


def test_the_group_counts_a_failed_synchronous_update_and_continues():
    group, _ = gated_group(is_open=True)
    with pytest.raises(KeyError, match="value_targets"):
        group.update_from_batch(SampleBatch(obs=np.zeros((3, 3), np.float32)))
    assert group.update_from_batch(value_batch(4))[ALL]["num_env_steps_trained"] == 4
    assert group.get_stats()["num_steps_dropped"] == 3


def test_an_async_empty_list_is_counted_or_refused_by_never_skip_update():
    group = ppo_config().build_learner_group()
    group.update_from_episodes([], async_update=True)
    (results,) = group.drain()
    assert results[ALL]["num_updates_skipped"] == 1
    strict = ppo_config().learners(never_skip_update=True).build_learner_group()
    strict.update_from_episodes([], async_update=True)
    with pytest.raises(ValueError, match="never_skip_update=True"):
        strict.drain()


def test_shutdown_ends_the_update_drops_pending_ones_and_joins_the_thread():
    group, learner = gated_group()
    for rows in (1, 2, 3):
        group.update_from_batch(value_batch(rows), async_update=True)
    wait_until(lambda: group.get_stats()["num_waiting"] == 2)
    threading.Timer(0.05, learner.gate.set).start()
    with group:
        pass
    assert update_threads() == []
    stats = group.get_stats()
    assert (stats["num_steps_trained"], stats["num_steps_dropped"], stats["num_dropped"]) == (1, 5, 2)
    group.shutdown()
    for call in (group.update_from_batch, lambda batch: group.update_from_batch(batch, async_update=True)):
        with pytest.raises(RuntimeError, match="shut down; build a new one"):
            call(value_batch())


def test_shutdown_frees_a_call_that_waits():
    group, learner = gated_group(limit=1)
    group.update_from_batch(value_batch(), async_update=True)
    caught = []

    def second():
        try:
            group.update_from_batch(value_batch(), async_update=True)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.05)
    threading.Timer(0.05, learner.gate.set).start()
    group.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert len(caught) <= 1


def test_no_thread_is_left_when_nothing_is_under_way():
    group, _ = gated_group(is_open=True)
    group.update_from_batch(value_batch(), async_update=True)
    group.drain()
    wait_until(lambda: not update_threads())
    assert update_threads() == []


def test_weights_and_state_are_read_between_updates():
    group, learner = gated_group()
    before = group.get_weights()
    group.update_from_batch(value_batch(), async_update=True)
    wait_until(lambda: group.get_stats()["num_waiting"] == 0)
    threading.Timer(0.05, learner.gate.set).start()
    after = group.get_weights()
    assert learner.weights_seq_no == 1
    assert any(not np.array_equal(before[MODULE][name], after[MODULE][name]) for name in after[MODULE])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_counts_its_steps_at_once_and_holds_its_own_data(is_async):
    options = {"timesteps": None, "num_epochs": 1, "minibatch_size": None, "shuffle_batch_per_epoch": False}
    backend, handed_in = LearnerBackend(ppo_config().build_learner()), episodes((5, 4))
    request = backend.request("episodes", handed_in, options, return_state=False, reduce_results=True)
    request = backend.divided(request, is_async=is_async)
    assert request.num_steps == 9
    assert (request.data is handed_in) == (not is_async)
    handed_in.clear()
    assert len(request.data) == (2 if is_async else 0)


class GateOpenedByRequest(LearnerBackend):
    """Opens the gate of its learner when another update is requested, and notes how data are divided."""

    def __init__(self, learner):
        super().__init__(learner)
        self.divided_in_flight = []

    def request(self, *arguments, **options):
        request = super().request(*arguments, **options)
        if self.divided_in_flight:
            self.learner.gate.set()
        return request

    def share(self, data):
        self.divided_in_flight.append(self.group.num_in_flight)
        return super().share(data)


def test_data_of_a_plain_update_are_divided_if_no_other_update_runs():
    learner = value_learner(GatedLearner)
    learner.gate = threading.Event()
    backend = GateOpenedByRequest(learner)
    backend.group = group = LearnerGroup(backend)
    group.update_from_batch(value_batch(), async_update=True)
    group.update_from_batch(value_batch())
    assert backend.divided_in_flight == [0, 0]
    assert learner.weights_seq_no == 2
    group.drain()
