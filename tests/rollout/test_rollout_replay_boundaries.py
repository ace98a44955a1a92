"""Boundaries in a replay buffer: nothing that is drawn reaches over rows left out, resets, or other buffers."""

from functools import partial
from itertools import count

import numpy as np
import pytest
from acting_tools import Acting
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from runner_tools import ManyRunners

from lockstep import AsyncCollector, Collector, DQNConfig, RolloutStore
from lockstep.envs import CountingEnv, WorkerVectorEnv, make_vector
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.group_collector import GroupCollector

FRAMES = 3
SHORT, LONG = ((7, "terminate"),), ((50, "terminate"),)


def stacking(episodes, offset=0):
    return FrameStackObservation(CountingEnv(episodes, offset=offset), FRAMES)


def stack_buffer(num_envs):
    return VectorReplayBuffer(200 * num_envs, num_envs, stack_num=FRAMES, save_only_last_obs=True)


def n_step_buffer(num_envs, **options):
    return VectorReplayBuffer(300 * num_envs, num_envs, n_step=3, gamma=0.5, **options)


def check_windows(buffer):
    """Each is of one episode, and as many steps as its discount says."""
    batch = buffer.all()
    steps = batch["new_obs"][:, 0] - batch["obs"][:, 0]
    assert np.array_equal(batch["obs"][:, 1], batch["new_obs"][:, 1])
    np.testing.assert_array_equal(batch["discounts"], 0.5**steps)


def check_stacks(buffer, lost):
    """All that are drawn are right, and `lost` rows are not drawn."""
    batch = buffer.all()
    newest = batch["obs"][:, -1, 0]
    for j in range(FRAMES):
        np.testing.assert_array_equal(batch["obs"][:, -1 - j, 0], np.maximum(newest - j, 0))
    assert (batch["obs"][:, :, 1] == batch["obs"][:, -1:, 1]).all()
    assert len(buffer) - len(batch["rewards"]) == lost


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_windows_do_not_reach_over_steps_that_did_not_count(mode, shared):
    env = SyncVectorEnv([partial(CountingEnv, episodes) for episodes in (SHORT, LONG, LONG)], autoreset_mode=mode)
    collector = Collector(Acting(), env, n_step_buffer(3, ignore_obs_next=shared))
    collector.collect(n_step=9)
    collector.collect(n_episode=1, reset_before_collect=False)
    collector.collect(n_step=12, reset_before_collect=False)
    check_windows(collector.buffer)
    one = collector.buffer[[i for i in collector.buffer.indices() if i % 3 == 1]]
    assert one["obs"][:, 0].tolist() == [0, 1, 2, *range(7, 7 + len(one["obs"]) - 3)]
    assert one["discounts"][:4].tolist() == [0.125, 0.25, 0.5, 0.125]


def test_windows_of_an_async_collector_do_not_reach_over_steps_that_did_not_count():
    with WorkerVectorEnv([partial(CountingEnv, ((25, "terminate"),))] * 3) as env:
        collector = AsyncCollector(Acting(), env, n_step_buffer(3))
        collector.collect(n_step=31)
        collector.collect(n_episode=1, reset_before_collect=False)
        stats = collector.collect(n_step=120)
        check_windows(collector.buffer)
        assert set(stats.lens) == {25}
        assert set(stats.returns) == {10.0 * sum(range(1, 26))}


def stack_collector(*lengths):
    env = SyncVectorEnv([partial(stacking, episodes) for episodes in lengths], autoreset_mode=AutoresetMode.SAME_STEP)
    return Collector(Acting(), env, stack_buffer(len(lengths)))


def test_rows_after_steps_that_did_not_count_are_not_drawn_where_their_frames_are_gone():
    collector = stack_collector(SHORT, LONG, LONG)
    collector.collect(n_episode=1)  # environments 1 and 2 go on to their step 7; none of theirs is stored
    collector.collect(n_step=24, reset_before_collect=False)
    check_stacks(collector.buffer, lost=2 * (FRAMES - 1))
    collector.collect(n_episode=1, reset_before_collect=False)
    collector.collect(n_step=30, reset_before_collect=False)
    check_stacks(collector.buffer, lost=2 * 2 * (FRAMES - 1))


def test_episodes_that_begin_after_steps_that_did_not_count_are_whole():
    collector = stack_collector(((14, "terminate"),), SHORT, ((13, "terminate"), (9, "terminate")))
    collector.collect(n_episode=1)
    # a new episode in 0 and in 1; 2 is at the second step of its second
    collector.collect(n_step=24, reset_before_collect=False)
    check_stacks(collector.buffer, lost=FRAMES - 1)


@pytest.mark.parametrize("keep", [False, True])
def test_rows_after_the_buffer_was_emptied_in_an_episode_are_not_drawn_where_their_frames_are_gone(keep):
    collector = stack_collector(SHORT, LONG)
    collector.collect(n_step=28)  # 0 has just ended its second episode, 1 is in the middle
    collector.reset_buffer(keep_statistics=keep)
    collector.reset_buffer(keep_statistics=keep)
    collector.collect(n_step=10)
    check_stacks(collector.buffer, lost=FRAMES - 1)
    collector.reset()
    collector.collect(n_step=10)
    check_stacks(collector.buffer, lost=0)


@pytest.mark.parametrize("keep", [False, True])
def test_rows_of_an_async_collector_after_its_buffer_was_emptied_are_not_drawn_where_frames_are_gone(keep):
    with WorkerVectorEnv([partial(stacking, LONG)]) as env:
        buffer = stack_buffer(1)
        collector = AsyncCollector(Acting(), env, buffer)
        collector.collect(n_step=9)
        collector.reset_buffer(keep_statistics=keep)
        collector.collect(n_step=9)
        check_stacks(buffer, lost=FRAMES - 1)


def group_collector():
    made = count()
    config = DQNConfig().environment(lambda: stacking(((20, "terminate"), (50, "terminate")), next(made)))
    config.env_runners(num_envs_per_env_runner=2).rl_module(model_config={"hiddens": (4,)})
    build = partial(config.build_env_runner, config.find_spaces(), False)
    group = EnvRunnerGroup(ManyRunners(build, 2), config.sections["env_runners"])
    return GroupCollector(config.build_policy(), group, stack_buffer(4))


def test_a_group_of_runners_begins_new_episodes_after_a_collect_by_episodes():
    collector = group_collector()
    buffer = collector.buffer
    collector.collect(n_episode=1)  # of the first runner; its other environment is in the middle of an episode
    check_stacks(buffer, lost=0)
    first = list(range(len(buffer)))
    assert sorted(buffer.all()["obs"][:, -1, 0]) == first
    collector.collect(n_step=32)  # runners without a share of the episodes begin new ones, too
    check_stacks(buffer, lost=0)
    assert sorted(buffer.all()["obs"][:, -1, 0]) == sorted([*first, *4 * list(range(8))])
    collector.collect(n_episode=4)
    check_stacks(buffer, lost=0)
    collector.close()


def test_rows_of_a_group_of_runners_after_its_buffer_was_emptied_in_episodes_are_not_drawn_where_frames_are_gone():
    collector = group_collector()
    collector.collect(n_step=4 * 20)  # 0 and 2 have just ended their first episode, 1 and 3 are in the middle
    collector.reset_buffer()
    collector.collect(n_step=4 * 9)
    check_stacks(collector.buffer, lost=2 * (FRAMES - 1))
    collector.reset()
    collector.collect(n_step=4 * 9)
    check_stacks(collector.buffer, lost=0)
    collector.close()


def rows_of_others(buffer):
    """Transitions of an episode of someone else."""
    columns = {"obs": np.full((4, 2), 900.0, np.float32), "new_obs": np.full((4, 2), 900.0, np.float32)}
    columns |= {name: np.zeros(4, bool) for name in ("terminateds", "truncateds")}
    return {**columns, "actions": np.zeros(4, np.int64), "rewards": np.zeros(4, np.float32)}


@pytest.mark.parametrize("make", [lambda: stack_collector(LONG, LONG), group_collector])
def test_rows_after_those_of_others_are_not_drawn_where_frames_are_of_before(make):
    collector = make()
    buffer, number = collector.buffer, collector.num_envs
    collector.collect(n_step=9 * number)
    others = buffer.extend(rows_of_others(buffer))
    collector.collect(n_step=3 * number)
    drawn = buffer.all()
    newest = drawn["obs"][:, -1, 0]
    np.testing.assert_array_equal(drawn["obs"][:, 0, 0][newest < 900], np.maximum(newest[newest < 900] - FRAMES + 1, 0))
    assert len(buffer) - len(newest) == number * (FRAMES - 1)
    assert len(others) == 4
    collector.close()


@pytest.mark.parametrize("number", [1, 3])
def test_windows_do_not_reach_over_from_a_buffer_that_is_put_back_to_what_is_collected_then(number):
    collector = Collector(Acting(), SyncVectorEnv([partial(CountingEnv, LONG)] * number), n_step_buffer(number))
    collector.collect(n_step=8 * number)
    before = collector.buffer.get_state()
    collector.collect(n_step=5 * number)
    collector.buffer.set_state(before)
    collector.collect(n_step=5 * number)
    check_windows(collector.buffer)


def test_windows_of_an_async_collector_do_not_reach_over_from_a_buffer_that_is_put_back():
    with WorkerVectorEnv([partial(CountingEnv, LONG)] * 2) as env:
        collector = AsyncCollector(Acting(), env, n_step_buffer(2))
        collector.collect(n_step=8)
        before = collector.buffer.get_state()
        collector.collect(n_step=10)
        collector.buffer.set_state(before)
        collector.collect(n_step=10)
        check_windows(collector.buffer)


def test_windows_of_environments_that_are_put_back_do_not_begin_before():
    collector = Collector(Acting(), make_vector(partial(CountingEnv, LONG)), n_step_buffer(1))
    collector.collect(n_step=8)
    before = collector.get_state()
    collector.collect(n_step=5)
    collector.set_state(before)
    assert collector.get_state()["lengths"] == 8
    collector.collect(n_step=5)
    check_windows(collector.buffer)


def test_windows_of_a_collector_that_goes_on_with_its_buffer_reach_over():
    collectors = [Collector(Acting(), make_vector(partial(CountingEnv, LONG)), n_step_buffer(1)) for _ in range(2)]
    collectors[0].collect(n_step=8)
    collectors[1].set_state(collectors[0].get_state())
    collectors[1].buffer.set_state(collectors[0].buffer.get_state())
    for collector in collectors:
        collector.collect(n_step=5)
    drawn = [collector.buffer.all() for collector in collectors]
    np.testing.assert_array_equal(drawn[0]["discounts"], drawn[1]["discounts"])
    assert (drawn[0]["discounts"] == 0.5**3).sum() == 11


def check_another_buffer(collector, lost):
    """What comes after a change of buffers lacks its first frames, and goes on with nothing that was there."""
    first = collector.buffer
    collector.buffer = second = stack_buffer(first.buffer_num)
    collector.collect(n_step=40)
    check_stacks(second, lost)
    collector.buffer = second  # the same: nothing is lost
    collector.collect(n_step=8)
    check_stacks(second, lost)
    collector.buffer = first
    collector.collect(n_step=8)
    check_stacks(first, first.buffer_num * (FRAMES - 1))  # by now all are in the middle


def test_rows_after_another_buffer_was_given_in_an_episode_are_not_drawn_where_their_frames_are_gone():
    collector = stack_collector(((14, "terminate"), (50, "terminate")), ((90, "terminate"),))
    collector.collect(n_step=28)
    check_another_buffer(collector, lost=FRAMES - 1)


def test_rows_of_an_async_collector_after_another_buffer_was_given_are_not_drawn_where_frames_are_gone():
    with WorkerVectorEnv([partial(stacking, ((90, "terminate"),))]) as env:
        collector = AsyncCollector(Acting(), env, stack_buffer(1))
        collector.collect(n_step=9)
        check_another_buffer(collector, lost=FRAMES - 1)


def test_rows_of_a_group_of_runners_after_another_buffer_was_given_are_not_drawn_where_frames_are_gone():
    collector = group_collector()
    collector.collect(n_step=4 * 10)
    collector.buffer = stack_buffer(4)
    collector.collect(n_step=4 * 9)
    check_stacks(collector.buffer, lost=4 * (FRAMES - 1))
    collector.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_episodes_of_a_rollout_have_no_steps_that_did_not_count_and_know_where_they_begin(mode):
    lengths = ((7, "terminate"),), ((5, "terminate"), (40, "truncate")), LONG
    env = SyncVectorEnv([partial(CountingEnv, episodes) for episodes in lengths], autoreset_mode=mode)
    collector = Collector(Acting(), env, RolloutStore(40, 3, env.single_observation_space, env.single_action_space))
    collector.collect(n_step=9)
    collector.collect(n_episode=1, reset_before_collect=False)  # steps of the first environment alone count
    stats = collector.collect(n_step=60, reset_before_collect=False)
    store = collector.buffer
    pieces, whole = list(store.episodes()), len(store)
    assert sum(map(len, pieces)) == whole == 9 + 4 + stats.n_collected_steps
    begun = {}
    for piece in pieces:
        obs = piece.get_observations()
        assert obs[:, 0].tolist() == list(range(piece.t_started, piece.t_started + len(piece) + 1))
        assert len(set(obs[:, 1])) == 1
        begun.setdefault(piece.id_, []).append((piece.t_started, obs[0, 1]))
    (in_two,) = (id_ for id_, starts in begun.items() if len(starts) > 1)
    assert begun[in_two] == [(0, 0.0), (7, 0.0)]  # the long one, which goes on
    store.clear()
    collector.collect(n_step=3)
    assert in_two in [piece.id_ for piece in store.episodes()]
