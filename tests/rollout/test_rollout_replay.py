"""Collector and replay buffer, for every back end and autoreset mode: what is stored is what one environment gives."""

import numpy as np
import pytest
from acting_tools import Exploring, NotingBuffer
from test_rollout_transitions import BACKENDS, CASES, NUM_ENVS, assert_as_alone, assert_rows, makers

from lockstep import RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import LightSyncVectorEnv, make_vector
from lockstep.envs.counting import CountingEnv
from lockstep.replay import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from lockstep.rollout import Collector, MalformedBufferError

NAMES = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")


def collector_of(env, size=4000, frame_stack=1, buffer=None, **options):
    chosen = VectorReplayBuffer(size, NUM_ENVS, **options) if buffer is None else buffer
    return Collector(Exploring(), make_vector(env), buffer=chosen, frame_stack=frame_stack, seed=1)


def rows_by_env(buffer):
    """Transitions of each environment, oldest first, as tuples."""
    rows = [[] for _ in range(buffer.buffer_num)]
    indices = buffer.ring.in_order()
    data = buffer[indices]
    for k, index in enumerate(indices):
        rows[index % buffer.buffer_num].append(tuple(map_tree(lambda leaf, k=k: leaf[k], data[n]) for n in NAMES))
    return rows


@pytest.mark.parametrize("ignore_obs_next", [False, True])
@pytest.mark.parametrize("backend, mode", CASES)
def test_every_transition_in_the_replay_buffer_equals_the_single_environment(backend, mode, ignore_obs_next):
    collector = collector_of(BACKENDS[backend](mode), ignore_obs_next=ignore_obs_next)
    with collector.env:
        steps = sum(collector.collect(n_step=n).n_collected_steps for n in (4, 24, 4, 8, 120))
    assert len(collector.buffer) == steps
    rows = rows_by_env(collector.buffer)
    assert all(sum(row[4] or row[5] for row in of_one) >= 5 for of_one in rows)
    assert_as_alone(rows)


@pytest.mark.parametrize("backend, mode", [("light", "SameStep"), ("native", "NextStep")])
def test_more_steps_than_fit_in_one_piece_are_stored_whole(backend, mode):
    collector = collector_of(BACKENDS[backend](mode))
    with collector.env:
        stats = collector.collect(n_step=300 * NUM_ENVS)
    assert len(collector.buffer) == stats.n_collected_steps
    assert_as_alone(rows_by_env(collector.buffer))


def test_returns_and_lengths_that_the_buffer_reports_are_those_of_the_collector():
    buffer = NotingBuffer(4000, NUM_ENVS)
    stats = collector_of(BACKENDS["light"]("SameStep"), buffer=buffer).collect(n_step=200)
    assert sorted(told for told in buffer.told if told[1]) == sorted(zip(stats.returns, stats.lens))


def test_nested_observations_and_stacks_are_stored():
    collector = collector_of(LightSyncVectorEnv(makers(True)))
    collector.collect(n_step=120)
    assert_as_alone(rows_by_env(collector.buffer), nested=True)
    stacked = collector_of(LightSyncVectorEnv(makers()), frame_stack=3, stack_num=3, save_only_last_obs=True)
    stacked.collect(n_step=120)
    batch = stacked.buffer.sample(200)
    for name in ("obs", "new_obs"):
        frames = batch[name]
        back = np.maximum(frames[:, -1:, 0] - np.array([2, 1, 0]), 0)
        np.testing.assert_array_equal(frames[:, :, 0], back)
        assert (frames[:, :, 1] == frames[:, -1:, 1]).all()


def test_random_actions_first_and_the_policy_after_them_glue_no_episodes():
    collector = collector_of(BACKENDS["light"]("SameStep"))
    collector.collect(n_step=36, random=True)
    collector.collect(n_step=36)
    assert_as_alone(rows_by_env(collector.buffer))
    assert collector.num_resets == 1


def test_whole_episodes_are_stored_and_rows_that_do_not_count_are_not():
    collector = collector_of(BACKENDS["light"]("SameStep"))
    stats = collector.collect(n_episode=7)
    assert stats.n_collected_episodes == 7
    data = collector.buffer.to_batch()
    assert len(data) == stats.n_collected_steps == sum(stats.lens)
    assert np.count_nonzero(data["terminateds"] | data["truncateds"]) == 7


class GivesNan(CountingEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, float("nan") if self.step_number == 140 else reward, *rest)


def test_nan_in_a_new_row_is_refused_with_environment_step_and_column_and_its_piece_is_not_stored():
    collector = collector_of(
        LightSyncVectorEnv([CountingEnv, CountingEnv, lambda: GivesNan(((500, "terminate"),))] + [CountingEnv])
    )
    with pytest.raises(MalformedBufferError, match=r"environment 2 .* column 'rewards' at step 139 of this collect"):
        collector.collect(n_step=200 * NUM_ENVS)
    assert len(collector.buffer) == 128 * NUM_ENVS
    assert np.isfinite(collector.buffer.all()["rewards"]).all()
    collector.collect(n_step=4 * NUM_ENVS)  # the next one begins new episodes
    assert collector.num_resets == 2
    buffer = VectorReplayBuffer(4000, NUM_ENVS)
    free = Collector(Exploring(), collector.env, buffer, raise_on_nan_in_buffer=False)
    free.collect(n_step=200 * NUM_ENVS)
    assert free.buffer.hasnull()


def test_the_collectors_buffer_is_the_one_given_and_may_be_replaced():
    first, second = VectorReplayBuffer(100, NUM_ENVS), PrioritizedVectorReplayBuffer(100, NUM_ENVS)
    collector = collector_of(BACKENDS["light"]("SameStep"), buffer=first)
    assert collector.buffer is first
    collector.collect(n_step=8)
    collector.buffer = second
    collector.collect(n_step=8)
    assert (len(first), len(second)) == (8, 8)
    collector.reset_buffer()
    assert (len(first), len(second)) == (8, 0)
    collector.buffer = RolloutStore(5, NUM_ENVS, collector.observation_space, collector.env.action_space)
    assert isinstance(collector.buffer, RolloutStore)


def test_a_collector_continues_bit_by_bit_with_its_buffer_saved_beside():
    whole, first, second = (collector_of(BACKENDS["light"]("SameStep")) for _ in range(3))
    for collector in (whole, first):
        collector.collect(n_step=20)
    second.set_state(first.get_state())
    second.buffer.set_state(first.buffer.get_state())
    for collector in (whole, second):
        collector.collect(n_step=40)
    for one, other in zip(rows_by_env(whole.buffer), rows_by_env(second.buffer)):
        assert_rows(one, other)
