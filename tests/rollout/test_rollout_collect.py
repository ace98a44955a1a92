"""How much a collect collects, what it tells, and that a failed one leaves nothing behind."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from acting_tools import Acting
from gymnasium import spaces

from lockstep import AsyncCollector, RolloutStore
from lockstep.envs import LightSyncVectorEnv, make_vector
from lockstep.envs.errors import EnvironmentStepError
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import Collector, MalformedBufferError
from lockstep.state.streams import RandomStreams


def light(episodes, num_envs=4, same=False):
    return LightSyncVectorEnv([partial(CountingEnv, episodes, offset=0 if same else b) for b in range(num_envs)])


def collector_of(env, *, store=True, **options):
    boundary = make_vector(env)
    collector = Collector(Acting(), boundary, **options)
    if store:
        collector.buffer = RolloutStore(4, collector.num_envs, collector.observation_space, boundary.action_space)
    return collector


LENGTHS = (1, 7, 2, 30, 1, 1, 12)
ENDLESS = tuple((length, "terminate") for length in LENGTHS)


def first_started(n_episode, num_envs, reset_steps=0):
    """(env, length) of the first `n_episode` episodes to start as they end, and the vector steps that takes."""
    episode = dict.fromkeys(range(num_envs), 0)
    counted = [(0, b) for b in range(min(n_episode, num_envs))]
    clock, result, started, last = dict.fromkeys(range(num_envs), 0), [], len(counted), 0
    running = {b for _, b in counted}
    while running:
        b = min(running, key=lambda b: (clock[b] + LENGTHS[(b + episode[b]) % len(LENGTHS)], b))
        length = LENGTHS[(b + episode[b]) % len(LENGTHS)]
        result.append((b, length))
        last = clock[b] + length
        clock[b] = last + reset_steps
        episode[b] += 1
        if started < n_episode:
            started += 1
        else:
            running.discard(b)
    return result, last


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("n_episode", [1, 3, 4, 9, 20])
def test_the_first_episodes_to_start_count_however_long_they_last(n_episode, native):
    env = CountingVectorEnv(4, ENDLESS, "NextStep") if native else light(ENDLESS)
    collector = collector_of(env)
    stats = collector.collect(n_episode=n_episode)
    expected, _ = first_started(n_episode, 4, reset_steps=int(native))
    assert list(stats.lens) == [length for _, length in expected]
    assert stats.n_collected_steps == sum(stats.lens) == len(collector.buffer)
    episodes = list(collector.buffer.episodes())
    assert sorted(len(e) for e in episodes) == sorted(stats.lens)
    assert all(e.is_terminated and e.t_started == 0 for e in episodes)


class ChanceLength(gym.Env):
    """Episodes of 1 or 41 steps, by chance alike: 21 in the mean."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 41]))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_short_episodes_do_not_crowd_out_long_ones():
    collector = collector_of(LightSyncVectorEnv([ChanceLength] * 8), store=False)
    lens = np.array([length for _ in range(40) for length in collector.collect(n_episode=12).lens])
    assert lens.size == 480
    deviation = 20.0 / np.sqrt(lens.size)
    assert abs(lens.mean() - 21.0) < 4 * deviation  # the first to *end* would give about 10


def test_returns_and_lengths_are_those_of_whole_episodes_across_collects():
    episodes = ((17, "terminate"), (5, "truncate"), (11, "both"))
    collector = collector_of(light(episodes), exploration_noise=True)
    seen, sums = [], np.zeros(4)
    for _ in range(30):
        stats = collector.collect(n_step=12)
        store = collector.buffer
        for t in range(store.size):
            sums += store.rewards[t]
            for b in np.flatnonzero(store.terminateds[t] | store.truncateds[t]):
                seen.append((sums[b], int(store.obs[t, b, 0]) + 1))
                sums[b] = 0.0
        assert stats.n_collected_episodes == len(stats.returns) == len(stats.lens)
        assert list(zip(stats.returns, stats.lens)) == seen[len(seen) - len(stats.lens) :]
        store.clear()
    assert len(seen) > 20
    assert collector.collect_step == 360
    assert collector.collect_episode == len(seen)


def test_an_epoch_in_which_no_episode_ended_has_no_returns():
    stats = collector_of(light(((50, "terminate"),))).collect(n_step=8)
    assert (stats.n_collected_episodes, stats.n_collected_steps) == (0, 8)
    assert (stats.returns.tolist(), stats.lens.tolist(), stats.returns_stat, stats.lens_stat) == ([], [], None, None)
    assert stats.collect_time > 0
    assert stats.collect_speed == pytest.approx(8 / stats.collect_time)


def test_n_step_is_rounded_up_to_whole_vector_steps_and_says_so():
    collector = collector_of(light(ENDLESS))
    with pytest.warns(
        UserWarning, match=r"10 steps .* n_step, .* step_per_collect\) are no multiple of the 4 environments: 12 are"
    ) as told:
        assert collector.collect(n_step=10).n_collected_steps == 12
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert collector.collect(n_step=12).n_collected_steps == 12


def test_more_steps_than_the_store_had_room_for():
    collector = collector_of(light(ENDLESS), exploration_noise=True)
    collector.collect(n_step=4 * 300)
    store = collector.buffer
    assert store.size == 300 <= store.num_steps
    np.testing.assert_array_equal(store.rewards[:300], 10 * (store.obs[:300, :, 0] + 1) + store.actions[:300])


def test_two_collects_into_one_store_are_one_rollout():
    one, two = collector_of(light(ENDLESS)), collector_of(light(ENDLESS))
    one.collect(n_step=80)
    two.collect(n_step=28)
    two.collect(n_step=52)
    left, right = one.buffer.trajectories(), two.buffer.trajectories()
    for name in ("obs", "rewards", "terminateds", "cuts", "dones"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(np.sort(left.bootstrap_index), np.sort(right.bootstrap_index))
    assert [(e.id_, e.t_started, e.t) for e in one.buffer.episodes()] == [
        (e.id_, e.t_started, e.t) for e in two.buffer.episodes()
    ]


def test_a_policy_explores_in_training_or_if_asked_and_else_is_greedy():
    collector = collector_of(light(ENDLESS))
    collector.collect(n_step=80)
    assert not collector.buffer.actions[:20].any()
    collector.reset()
    collector.policy.is_exploring = True
    collector.collect(n_step=80)
    assert set(np.unique(collector.buffer.actions[:20])) == {0, 1, 2, 3}
    told = collector_of(light(ENDLESS), exploration_noise=True)
    told.collect(n_step=80)
    assert set(np.unique(told.buffer.actions[:20])) == {0, 1, 2, 3}


def test_random_actions_come_from_the_space_and_from_their_own_stream():
    def actions(used_before):
        collector = collector_of(light(ENDLESS), exploration_noise=True, streams=RandomStreams(5))
        collector.collect(n_step=4 * used_before)
        collector.reset()
        collector.collect(n_step=160, random=True)
        return collector.buffer.actions[:40].copy()

    first, again = actions(1), actions(200)
    assert set(np.unique(first)) == {0, 1, 2, 3}
    np.testing.assert_array_equal(first, again)


def test_unseeded_collectors_play_other_episodes_and_seeded_ones_the_same():
    def evaluated(**seed):
        with make_vector("CartPole-v1", num_envs=2) as envs:
            buffer = VectorReplayBuffer(400, 2)
            collector = Collector(Acting(), envs, buffer, **seed)
            collector.collect(n_episode=2)
            collector.collect(n_step=20, random=True)
            return buffer.all()["obs"].tolist()

    assert evaluated() != evaluated()
    assert evaluated(seed=3) == evaluated(seed=3) == evaluated(streams=RandomStreams(3)) != evaluated(seed=4)


def test_hooks_see_every_step_and_every_episode_that_counts():
    steps, ended = [], []
    collector = collector_of(
        light(ENDLESS),
        store=False,
        on_step_hook=lambda step: steps.append(step.rewards.copy()),
        on_episode_done_hook=lambda b, total, length: ended.append((b, total, length)),
    )
    stats = collector.collect(n_episode=9)
    assert [(total, length) for _, total, length in ended] == list(zip(stats.returns, stats.lens))
    expected, num_steps = first_started(9, 4)
    assert [(b, length) for b, _, length in ended] == expected
    assert all(total == 10 * length * (length + 1) / 2 for _, total, length in ended)
    assert len(steps) == num_steps
    steps.clear()
    collector.collect(n_step=40)
    assert len(steps) == 10


def test_a_collector_resets_itself_and_reset_before_collect_starts_over():
    collector = collector_of(light(((50, "terminate"),)))
    collector.collect(n_step=12)
    np.testing.assert_array_equal(collector.buffer.obs[0, :, 0], 0.0)
    collector.buffer.clear()
    collector.collect(n_step=8)
    np.testing.assert_array_equal(collector.buffer.obs[0, :, 0], 3.0)
    collector.buffer.clear()
    collector.collect(n_step=8, reset_before_collect=True)
    np.testing.assert_array_equal(collector.buffer.obs[0, :, 0], 0.0)
    assert len({e.id_ for e in collector.buffer.episodes()}) == 4
    assert all(e.t_started == 0 for e in collector.buffer.episodes())


def test_episodes_that_run_may_be_counted_too():
    collector = collector_of(light(((6, "terminate"),), same=True))
    collector.collect(n_step=16)
    collector.buffer.clear()
    stats = collector.collect(n_episode=4, reset_before_collect=False)
    assert stats.lens.tolist() == [6, 6, 6, 6]
    assert stats.n_collected_steps == 8  # the rest of them
    assert all(e.t_started == 4 and e.t == 6 for e in collector.buffer.episodes())


@pytest.mark.parametrize("is_saved", [False, True])
def test_the_collect_after_one_by_episodes_begins_new_episodes(is_saved):
    collector = collector_of(light(((6, "terminate"), (50, "terminate"))))
    collector.collect(n_episode=1)  # rows 1 to 3 are in the middle of episodes that are not stored
    collector.buffer.clear()
    if is_saved:
        other = collector_of(light(((6, "terminate"), (50, "terminate"))))
        other.set_state(collector.get_state())
        collector = other
    collector.collect(n_step=8)
    assert all(e.t_started == 0 for e in collector.buffer.episodes())
    np.testing.assert_array_equal(collector.buffer.obs[0, :, 0], 0.0)
    collector.buffer.clear()
    collector.collect(n_step=8)  # and after that they go on
    np.testing.assert_array_equal(collector.buffer.obs[0, :, 0], 2.0)


def test_a_reset_in_mid_episode_writes_a_boundary():
    collector = collector_of(light(((3, "truncate"), (50, "terminate")), num_envs=3))
    collector.collect(n_step=4 * 3)  # rows 0 and 2 are in their second episode, row 1 in its first
    collector.reset(reset_buffer=False)
    collector.collect(n_step=2 * 3)
    store = collector.buffer
    data = store.trajectories()
    assert data.cuts[3].all()
    assert data.dones[3].all()
    assert not data.terminateds.any()
    np.testing.assert_array_equal(data.obs[4, :, 0], 0.0)
    last = dict(zip(data.bootstrap_index.tolist(), data.bootstrap_obs[:, 0]))
    assert [last[3 * 3 + b] for b in range(3)] == [1.0, 4.0, 1.0]  # not the first observation after the reset
    pieces = [(e.id_, e.t_started, e.t, e.is_done) for e in store.episodes()]
    assert [piece[1:] for piece in pieces] == [
        (0, 3, True), (0, 1, False), (0, 2, False),
        (0, 4, False), (0, 2, False),
        (0, 3, True), (0, 1, False), (0, 2, False),
    ]  # fmt: skip
    assert len({piece[0] for piece in pieces}) == 8
    ids_before = {piece[0] for piece in pieces}
    store.clear()
    collector.collect(n_step=3)
    assert [e.t_started for e in store.episodes()] == [2, 2, 2]
    assert {e.id_ for e in store.episodes()} <= ids_before


def test_a_reset_right_after_a_rollout_keeps_its_bootstrap_observations():
    collector = collector_of(light(((50, "terminate"),), num_envs=2))
    collector.collect(n_step=6)
    collector.reset(reset_buffer=False)
    data = collector.buffer.trajectories()
    assert data.bootstrap_index.tolist() == [4, 5]
    assert data.bootstrap_obs[:, 0].tolist() == [3.0, 3.0]


def test_each_reset_begins_other_episodes_which_follow_from_the_seed():
    def begun(seed):
        collector = collector_of(make_vector("CartPole-v1", num_envs=2), streams=RandomStreams(seed))
        first = []
        for _ in range(3):
            collector.reset()
            collector.collect(n_step=2)
            first += collector.buffer.obs[0].tolist()
        return first

    assert len({tuple(obs) for obs in begun(5)}) == 6
    assert begun(5) == begun(5) != begun(6)


def test_reset_empties_buffer_and_statistics_as_asked():
    collector = collector_of(light(ENDLESS))
    collector.collect(n_step=40)
    collector.reset(reset_buffer=False, reset_stats=False)
    assert len(collector.buffer) == 40
    assert collector.collect_step == 40
    collector.reset()
    assert len(collector.buffer) == 0
    assert (collector.collect_step, collector.collect_episode, collector.collect_time) == (0, 0, 0.0)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_episode_that_never_ends_is_given_up(monkeypatch, is_async):
    monkeypatch.setattr("lockstep.rollout.base_collector.MAX_EPISODE_STEPS", 20)
    mode, steps = ("async", 21) if is_async else ("auto", 128)
    told = pytest.raises(RuntimeError, match=f"has not ended in {steps} steps, and 20 are the limit; .*TimeLimit")
    with make_vector(partial(CountingEnv, ((10**9, "terminate"),)), num_envs=1, mode=mode) as env, told:
        (AsyncCollector if is_async else Collector)(Acting(), env).collect(n_episode=1)


class Breaking(CountingEnv):
    """Gives what is wrong in one step of one episode."""

    def __init__(self, wrong, at, length=50):
        super().__init__(((length, "truncate"),))
        self.wrong, self.at = wrong, at

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.episode_number == 0 and self.step_number == self.at:
            if self.wrong == "raise":
                raise OSError("the simulator is gone")
            if self.wrong == "reward":
                reward = float("nan")
            else:
                obs = np.array([np.nan, 0.0], np.float32)
        return obs, reward, terminated, truncated, info


def breaking(wrong, at, length=50):
    fine = partial(CountingEnv, ((length, "truncate"),))
    return LightSyncVectorEnv([fine, fine, partial(Breaking, wrong, at, length), fine])


@pytest.mark.parametrize(
    "wrong, length, column, step", [("reward", 50, "rewards", 4), ("obs", 50, "obs", 5), ("obs", 5, "final_obs", 4)]
)
def test_nan_in_a_new_row_is_refused_with_environment_step_and_column(wrong, length, column, step):
    collector = collector_of(breaking(wrong, 9 if length == 50 else 5, length))
    collector.collect(n_step=16 if length == 50 else 4)
    collector.buffer.clear()
    if length == 5:
        collector.reset()
    expected = f"environment 2 gave a value that is not finite in column '{column}' at step {step} of this collect"
    with pytest.raises(MalformedBufferError, match=expected):
        collector.collect(n_step=32)
    assert len(collector.buffer) == 0
    collector.reset()
    assert collector.collect(n_step=8).n_collected_steps == 8


@pytest.mark.parametrize(
    "wrong, length, found",
    [
        ("reward", 50, lambda store: store.rewards[2, 2]),
        ("obs", 50, lambda store: store.obs[3, 2, 0]),
        ("obs", 3, lambda store: store.final_obs[0][2, 0]),
    ],
    ids=["rewards", "obs", "final_obs"],
)
def test_nan_is_taken_where_told_and_old_rows_are_not_looked_at_again(wrong, length, found):
    collector = collector_of(breaking(wrong, 3, length), raise_on_nan_in_buffer=False)
    collector.collect(n_step=16)
    assert np.isnan(found(collector.buffer))
    collector.raise_on_nan_in_buffer = True
    assert collector.collect(n_step=16).n_collected_steps == 16
    assert len(collector.buffer) == 32


def test_an_environment_that_raises_is_named_and_leaves_no_row():
    collector = collector_of(breaking("raise", 7))
    collector.collect(n_step=16)
    kept = collector.buffer.rewards[:4].copy()
    with pytest.raises(EnvironmentStepError, match=r"environment 2 .* raised OSError: the simulator is gone") as caught:
        collector.collect(n_step=16)
    assert caught.value.env_index == 2
    assert type(caught.value.__cause__) is OSError
    assert len(collector.buffer) == 16
    np.testing.assert_array_equal(collector.buffer.rewards[:4], kept)
    with pytest.raises(ValueError, match="between an update and the next collect only"):
        collector.get_state()
    collector.collect(n_step=8)  # begins new episodes; those of the failed collect were left
    data = collector.buffer.trajectories()
    assert data.cuts[3].all()
    np.testing.assert_array_equal(data.obs[4:, :, 0], [[0.0] * 4, [1.0] * 4])


def test_a_hook_that_raises_is_not_hidden_and_leaves_no_row():
    calls = []

    def hook(step):
        calls.append(1)
        if len(calls) == 5:
            raise KeyError("mine")

    collector = collector_of(light(ENDLESS), on_step_hook=hook)
    with pytest.raises(KeyError, match="mine"):
        collector.collect(n_step=40)
    assert len(collector.buffer) == 0
    assert collector.buffer.final_index == []
    assert collector.collect(n_step=8).n_collected_steps == 8


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("native", [False, True])
def test_a_restored_collector_goes_on_in_mid_episode(native, frame_stack):
    def make():
        env = make_vector(CountingVectorEnv(4, ENDLESS, "NextStep") if native else light(ENDLESS))
        collector = Collector(Acting().stacking(frame_stack, env), env, exploration_noise=True)
        collector.buffer = RolloutStore(4, 4, collector.observation_space, collector.env.action_space)
        return collector

    def rollout(collector, n_step):
        stats = collector.collect(n_step=n_step)
        data = collector.buffer.trajectories()
        pieces = [(e.id_, e.t_started, e.t) for e in collector.buffer.episodes()]
        arrays = [data.obs.copy(), data.actions.copy(), data.rewards.copy(), data.bootstrap_obs.copy()]
        collector.buffer.clear()
        return arrays, pieces, stats.returns.tolist(), stats.lens.tolist()

    whole = make()
    rollout(whole, 60)
    state = whole.get_state()
    expected = rollout(whole, 80)
    restored = make()
    restored.collect(n_step=12)  # whatever it did before
    restored.buffer.clear()
    restored.set_state(state)
    got = rollout(restored, 80)
    assert got[1:] == expected[1:]
    for left, right in zip(got[0], expected[0]):
        np.testing.assert_array_equal(left, right)
    assert restored.collect_step == whole.collect_step > 60


def test_environments_without_state_restart_with_the_seeds_of_such_a_run():
    class NoState(ChanceLength):
        pass

    def make():
        return collector_of(LightSyncVectorEnv([NoState] * 4), store=False)

    whole = make()
    whole.collect(n_episode=6)
    state = whole.get_state()
    assert state["env"] is None
    expected = whole.collect(n_episode=10)
    restored = make()
    restored.set_state(state)
    assert restored.collect(n_episode=10).lens.tolist() == expected.lens.tolist()


def test_rows_that_are_dropped_leave_no_log_probability_behind():
    space = spaces.Box(-1, 1, (1,))
    store = RolloutStore(2, 1, space, spaces.Discrete(2))
    store.record_logp()
    store.write_logp(0, np.float32([-1.0]))
    store.write_logp(1, np.float32([-9.0]))
    store.drop_after(1)
    np.testing.assert_array_equal(store.action_logp, np.float32([[-1.0], [np.nan]]))


def test_rows_that_are_dropped_leave_no_beginning_of_an_episode_behind():
    store = RolloutStore(4, 2, spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
    store.starts = [np.array([[True, True]]), np.array([[False, True], [True, False]])]
    store.drop_after(2)
    np.testing.assert_array_equal(np.concatenate(store.starts), [[True, True], [False, True]])


@pytest.mark.parametrize("name", ["policy", "env", "num_envs", "agents_of_modules"])
def test_what_the_stepper_uses_is_not_replaced_on_the_collector_alone(name):
    collector = collector_of(light(ENDLESS))
    with pytest.raises(AttributeError, match=name):
        setattr(collector, name, getattr(collector, name))
