"""Stacks of frames and n-step rewards, made when rows are drawn."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from replay_tools import EPISODES, rows

from lockstep.envs.toys.counting import CountingEnv
from lockstep.ops import n_step_returns
from lockstep.replay import ReplayBuffer, VectorReplayBuffer


@pytest.mark.parametrize("shared", [False, True])
def test_stacks_of_single_frames_equal_those_of_a_stacking_environment(shared):
    """`save_only_last_obs` stores one frame of each stack; what is drawn is the whole stack again."""
    env: gym.Env = FrameStackObservation(CountingEnv(EPISODES), 4)
    buffer = ReplayBuffer(64, stack_num=4, save_only_last_obs=True, ignore_obs_next=shared)
    seen = []
    obs, _ = env.reset(seed=0)
    for step in range(40):
        new_obs, reward, terminated, truncated, _ = env.step(step % 4)
        buffer.add({
            "obs": obs[None], "actions": np.array([step % 4]), "rewards": np.array([reward], np.float32),
            "terminateds": np.array([terminated]), "truncateds": np.array([truncated]), "new_obs": new_obs[None],
        })  # fmt: skip
        seen.append((obs, new_obs))
        obs = env.reset()[0] if terminated or truncated else new_obs
    assert buffer.schema["obs"].shape == (2,)
    batch = buffer.all()
    np.testing.assert_array_equal(batch["obs"], [before for before, _ in seen])
    np.testing.assert_array_equal(batch["new_obs"], [after for _, after in seen])
    spaced = ReplayBuffer(
        9, stack_num=4, save_only_last_obs=True, observation_space=env.observation_space, action_space=env.action_space
    )
    assert spaced.schema["obs"].shape == (2,)


def test_frames_stored_once_take_a_fraction_of_the_memory_of_stacks():
    """A million transitions of four 84x84 frames: 7.1 GB of frames instead of 56 GB of stacks."""
    frame = np.zeros((1, 4, 84, 84), np.uint8)
    row = {**rows(1), "obs": frame, "new_obs": frame}
    single = ReplayBuffer(100, stack_num=4, save_only_last_obs=True, ignore_obs_next=True)
    stacked = ReplayBuffer(100)
    for buffer in (single, stacked):
        buffer.add(row)
    assert single.nbytes() == 100 * (84 * 84 + 8 + 4)
    assert stacked.nbytes() == 100 * (8 * 84 * 84 + 8 + 4)


def test_sample_avail_draws_only_rows_with_different_frames():
    buffer = ReplayBuffer(30, stack_num=3, sample_avail=True)
    for step, end in enumerate(["", "", "", "terminated", "", "terminated", "", "", ""]):
        buffer.add(rows(1, step, ends=[end]))
    assert buffer.indices().tolist() == [2, 3, 8]
    assert set(buffer.sample_indices(100).tolist()) == {2, 3, 8}
    short = ReplayBuffer(30, stack_num=3, sample_avail=True)
    short.add(rows(1))
    with pytest.raises(ValueError, match="no row has the 3 frames"):
        short.sample(1)


def test_rows_whose_earlier_frames_were_overwritten_are_never_drawn():
    buffer = ReplayBuffer(6, stack_num=3)
    for step in range(8):
        buffer.add(rows(1, step))
    assert buffer.indices().tolist() == [4, 5, 0, 1]
    assert (buffer.all()["obs"][:, :, 0] == np.arange(4, 8)[:, None] + [-2, -1, 0]).all()


@examples(60)
@given(
    seed=st.integers(0, 2**31),
    num_rows=st.integers(1, 30),
    n_step=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_n_step_rewards_and_discounts_bootstrap_to_the_estimators_returns(seed, num_rows, n_step, gamma):
    """`rewards + discounts * ~terminateds * V(new_obs)` is `ops.n_step_returns`, truncations and cuts included."""
    rng = np.random.default_rng(seed)
    ends = rng.choice(["", "", "", "terminated", "truncated"], num_rows)
    cuts = (rng.random(num_rows) < 0.1) & (ends == "")
    buffer = ReplayBuffer(num_rows, n_step=n_step, gamma=gamma)
    rewards = rng.normal(size=num_rows)
    for k in range(num_rows):
        buffer.add({**rows(1, k, ends=[ends[k]]), "rewards": rewards[[k]]})
        if cuts[k]:
            buffer.cut()
    values = rng.normal(size=num_rows + 1)  # V of an observation that counts k
    batch = buffer[np.arange(num_rows)]
    following = values[batch["new_obs"][:, 0].astype(int)]
    discounts = batch.get("discounts", gamma)
    found = batch["rewards"] + discounts * ~batch["terminateds"] * following
    expected = n_step_returns(
        rewards, values[1:], ends == "terminated", (ends == "truncated") | cuts, gamma=gamma, n_step=n_step
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_n_step_keeps_the_kind_of_end_of_its_last_step():
    buffer = ReplayBuffer(20, n_step=2, gamma=0.5)
    for step, end in enumerate(["", "truncated", "", "terminated", ""]):
        buffer.add(rows(1, step, ends=[end]))
    batch = buffer.all()
    assert batch["truncateds"].tolist() == [True, True, False, False, False]
    assert batch["terminateds"].tolist() == [False, False, True, True, False]
    assert batch["discounts"].tolist() == [0.25, 0.5, 0.25, 0.5, 0.5]
    assert batch["new_obs"][:, 0].tolist() == [2, 2, 4, 4, 5]
    assert batch["rewards"].tolist() == [0.5, 1, 3.5, 3, 4]


def test_last_observations_of_overwritten_episodes_make_room_again():
    buffer = ReplayBuffer(12, ignore_obs_next=True)
    for step in range(600):
        buffer.add(rows(1, 10 * step, ends=["terminated" if step % 2 else "truncated"]))
    assert len(buffer._next_obs.pool) == 16
    assert buffer.all()["new_obs"][:, 0].tolist() == [10 * step + 1 for step in range(588, 600)]


# ---- rows of an episode that were left out: what comes after them lacks its earlier frames ---


def stacking_buffer(**options):
    return VectorReplayBuffer(40, 2, stack_num=3, **options)


def add_steps(buffer, *firsts):
    for first in firsts:
        buffer.add(rows(2, first))


def not_drawn(buffer):
    """Return what is seen in rows that are stored and not drawn."""
    rows_left = np.setdiff1d(buffer.ring.in_order(), buffer.indices())
    return sorted(buffer.store.take("obs", rows_left)[:, 0].astype(int).tolist())


@pytest.mark.parametrize("shared", [False, True])
def test_rows_after_a_gap_lack_frames_until_a_cut_removes_the_gap(shared):
    buffer = stacking_buffer(ignore_obs_next=shared)
    add_steps(buffer, 0, 1)
    buffer.cut([0], goes_on=True)
    buffer.cut([1])
    add_steps(buffer, 10, 11, 12)
    assert not_drawn(buffer) == [10, 11]
    buffer.cut([0], goes_on=True)
    buffer.cut()
    add_steps(buffer, 20, 21)
    assert not_drawn(buffer) == [10, 11]


def test_an_emptied_buffer_knows_which_episodes_continue():
    for keep, expected in ((True, [10, 11]), (False, [])):
        buffer = stacking_buffer()
        add_steps(buffer, 0)
        buffer.cut([1])
        buffer.reset(keep_statistics=keep)
        buffer.reset(keep_statistics=keep)
        add_steps(buffer, 10, 11, 12)
        assert not_drawn(buffer) == expected


def test_a_gap_outlives_a_state_and_rows_dropped_before_it():
    buffer = stacking_buffer()
    add_steps(buffer, 0, 1)
    with_nan = rows(2, 2)
    with_nan["rewards"][1] = np.nan
    buffer.add(with_nan)
    buffer.cut([0], goes_on=True)
    assert buffer.dropnull() == 1
    twin = stacking_buffer()
    twin.set_state(buffer.get_state())
    for each in (buffer, twin):
        add_steps(each, 10, 11, 12)
        assert not_drawn(each) == [10, 11, 11, 12]  # sub-buffer 1 sees one more; its newest row was dropped
