"""Boundaries in a replay buffer: nothing that is drawn reaches over rows left out, resets, or other buffers."""

from contextlib import closing
from functools import partial
from itertools import count

import numpy as np
import pytest
from acting_tools import Acting, NotingBuffer
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from runner_tools import ManyRunners

from lockstep import AsyncCollector, Collector, DQNConfig, RolloutStore
from lockstep.envs import CountingEnv, WorkerVectorEnv
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.group_collector import GroupCollector

FRAMES = 3
SHORT, LONG = ((7, "terminate"),), ((50, "terminate"),)


def stacking(episodes, offset=0):
    return FrameStackObservation(CountingEnv(episodes, offset=offset), FRAMES)


def stack_buffer(num_envs):
    return VectorReplayBuffer(200 * num_envs, num_envs, stack_num=FRAMES, save_only_last_obs=True)


def n_step_buffer(num_envs, n_step=3, **options):
    return VectorReplayBuffer(300 * num_envs, num_envs, n_step=n_step, gamma=0.5, **options)


def collector_of(kind, makers, buffer):
    if kind is AsyncCollector:
        return AsyncCollector(Acting(), WorkerVectorEnv(makers), buffer)
    return Collector(Acting(), SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), buffer)


def long_collector(kind, num_envs, **options):
    return collector_of(kind, [partial(CountingEnv, LONG)] * num_envs, n_step_buffer(num_envs, **options))


def stack_collector(*lengths, kind=Collector):
    return collector_of(kind, [partial(stacking, episodes) for episodes in lengths], stack_buffer(len(lengths)))


def group_collector():
    made = count()
    config = DQNConfig().environment(lambda: stacking(((20, "terminate"), (50, "terminate")), next(made)))
    config.env_runners(num_envs_per_env_runner=2).rl_module(model_config={"hiddens": (4,)})
    build = partial(config.build_env_runner, config.find_spaces(), False)
    group = EnvRunnerGroup(ManyRunners(build, 2), config.sections["env_runners"])
    return GroupCollector(config.build_policy(), group, stack_buffer(4))


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


def test_async_collector_windows_do_not_cross_uncounted_steps():
    with WorkerVectorEnv([partial(CountingEnv, ((25, "terminate"),))] * 3) as env:
        collector = AsyncCollector(Acting(), env, n_step_buffer(3))
        collector.collect(n_step=31)
        collector.collect(n_episode=1, reset_before_collect=False)
        stats = collector.collect(n_step=120)
        check_windows(collector.buffer)
        assert set(stats.lens) == {25}
        assert set(stats.returns) == {10.0 * sum(range(1, 26))}


def test_rows_after_uncounted_steps_are_not_drawn_without_their_frames():
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


def test_runners_start_new_episodes_after_a_collect_by_episodes():
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


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("make", "steps", "in_the_middle"),
    [
        (partial(stack_collector, SHORT, LONG), 14, 1),  # 0 has just ended its second episode
        (partial(stack_collector, LONG, kind=AsyncCollector), 9, 1),
        (group_collector, 20, 2),  # 0 and 2 have just ended their first episode
    ],
    ids=["Collector", "AsyncCollector", "GroupCollector"],
)
def test_rows_after_an_emptied_buffer_are_not_drawn_without_their_frames(make, steps, in_the_middle, keep):
    with closing(make()) as collector:
        collector.collect(n_step=steps * collector.num_envs)
        for _ in range(2):
            collector.reset_buffer(keep_statistics=keep)
        collector.collect(n_step=5 * collector.num_envs)
        check_stacks(collector.buffer, lost=in_the_middle * (FRAMES - 1))
        collector.reset()
        collector.collect(n_step=5 * collector.num_envs)
        check_stacks(collector.buffer, lost=0)


@pytest.mark.parametrize(("kind", "num_envs"), [(Collector, 4), (AsyncCollector, 1)])
@pytest.mark.parametrize(("keep", "told"), [(True, (10.0 * 15, 5)), (False, (10.0 * 9, 2))])
def test_an_emptied_buffer_keeps_its_statistics_where_asked(kind, num_envs, keep, told):
    buffer = NotingBuffer(40 * num_envs, num_envs)
    with closing(collector_of(kind, [partial(CountingEnv, ((5, "terminate"),))] * num_envs, buffer)) as collector:
        collector.collect(n_step=3 * num_envs)
        collector.reset_buffer(keep_statistics=keep)
        assert len(buffer) == 0
        collector.collect(n_step=2 * num_envs)
    assert buffer.told[-num_envs:] == [told] * num_envs


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_a_reset_in_the_middle_of_an_episode_writes_a_boundary(kind):
    with closing(long_collector(kind, 2, n_step=5)) as collector:
        collector.collect(n_step=22)
        collector.reset(reset_buffer=False)
        assert not len(collector.buffer.unfinished_index())
        collector.collect(n_step=22)
        check_windows(collector.buffer)
        batch = collector.buffer.all()
    assert len(batch["obs"]) == 44
    assert not batch["terminateds"].any()


def rows_of_others(buffer):
    """Transitions of an episode of someone else."""
    columns = {"obs": np.full((4, 2), 900.0, np.float32), "new_obs": np.full((4, 2), 900.0, np.float32)}
    columns |= {name: np.zeros(4, bool) for name in ("terminateds", "truncateds")}
    return {**columns, "actions": np.zeros(4, np.int64), "rewards": np.zeros(4, np.float32)}


@pytest.mark.parametrize("make", [lambda: stack_collector(LONG, LONG), group_collector])
def test_rows_after_foreign_rows_are_not_drawn_without_their_frames(make):
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


@pytest.mark.parametrize(("kind", "num_envs"), [(Collector, 1), (Collector, 3), (AsyncCollector, 2)])
def test_windows_do_not_cross_from_a_restored_buffer_to_new_rows(kind, num_envs):
    with closing(long_collector(kind, num_envs)) as collector:
        collector.collect(n_step=8 * num_envs)
        before = collector.buffer.get_state()
        collector.collect(n_step=5 * num_envs)
        collector.buffer.set_state(before)
        collector.collect(n_step=5 * num_envs)
        check_windows(collector.buffer)


def test_windows_of_environments_that_are_put_back_do_not_begin_before():
    collector = long_collector(Collector, 1)
    collector.collect(n_step=8)
    before = collector.get_state()
    collector.collect(n_step=5)
    collector.set_state(before)
    assert collector.get_state()["lengths"] == 8
    collector.collect(n_step=5)
    check_windows(collector.buffer)


ENDLESS = ((90, "terminate"),)


@pytest.mark.parametrize(
    ("make", "steps", "in_the_middle"),
    [
        (partial(stack_collector, ((14, "terminate"), (50, "terminate")), ENDLESS), 14, 1),
        (partial(stack_collector, ENDLESS, kind=AsyncCollector), 9, 1),
        (group_collector, 10, 4),
    ],
    ids=["Collector", "AsyncCollector", "GroupCollector"],
)
def test_rows_after_a_change_of_buffer_are_not_drawn_without_their_frames(make, steps, in_the_middle):
    with closing(make()) as collector:
        collector.collect(n_step=steps * collector.num_envs)
        first = collector.buffer
        collector.buffer = second = stack_buffer(first.buffer_num)
        collector.collect(n_step=40)
        check_stacks(second, lost=in_the_middle * (FRAMES - 1))
        collector.buffer = second  # the same: nothing is lost
        collector.collect(n_step=8)
        check_stacks(second, lost=in_the_middle * (FRAMES - 1))
        collector.buffer = first
        collector.collect(n_step=8)
        check_stacks(first, lost=first.buffer_num * (FRAMES - 1))  # by now all are in the middle


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_episodes_of_a_rollout_skip_uncounted_steps_and_know_their_start(mode):
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
