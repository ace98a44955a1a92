"""Hindsight: goals come from the row's own episode, rewards are computed anew, storage is untouched."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lockstep.replay import HERReplayBuffer, HERVectorReplayBuffer, Hindsight, ReplayBuffer, VectorReplayBuffer

LENGTHS = (4, 7, 1, 5)
GAMMA = 0.5


def reach(achieved, desired, info):
    """-1 each step until the goal is there, as gymnasium-robotics' sparse reward."""
    assert info == {}
    return -(np.abs(achieved - desired).sum(-1) > 0).astype(np.float64)


def arrived(achieved, desired, info):
    return np.abs(achieved - desired).sum(-1) == 0


def goal_obs(b, episode, step):
    """What is achieved names sub-buffer, episode and step; the goal is one that is never reached."""
    achieved = np.stack([b, episode, step], -1).astype(np.float32)
    return {"observation": achieved[:, 2:], "achieved_goal": achieved, "desired_goal": -np.ones_like(achieved)}


def fill(buffer, num_steps, cut_at=()):
    number = buffer.buffer_num
    b, episode, step = np.arange(number), np.zeros(number, int), np.zeros(number, int)
    for t in range(num_steps):
        if t in cut_at:
            buffer.cut()
            episode, step = episode + 1, np.zeros(number, int)
        length = np.array(LENGTHS)[(b + episode) % 4]
        done = step + 1 == length
        buffer.add({
            "obs": goal_obs(b, episode, step),
            "actions": step % 3,
            "rewards": np.full(number, -1.0, np.float32),
            "terminateds": np.zeros(number, bool),
            "truncateds": done,
            "new_obs": goal_obs(b, episode, step + 1),
        })  # fmt: skip
        episode, step = episode + done, np.where(done, 0, step + 1)
    return buffer


def split(batch):
    relabelled = batch["obs"]["desired_goal"][..., 0].reshape(len(batch), -1)[:, 0] >= 0
    return np.flatnonzero(relabelled), np.flatnonzero(~relabelled)


def episode_rows(buffer, row):
    while buffer.prev(row)[0] != row:
        (row,) = buffer.prev(row)
    found = [row]
    while buffer.next(row)[0] != row:
        (row,) = buffer.next(row)
        found.append(row)
    return found


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("shared", [False, True])
def test_goals_are_those_achieved_in_the_same_episode(strategy, shared):
    buffer = HERVectorReplayBuffer(60, 3, reach, strategy=strategy, ignore_obs_next=shared)
    fill(buffer, 33, cut_at=(9, 30))
    reached = set()
    for _ in range(5):
        batch = buffer.sample(200)
        relabelled, kept = split(batch)
        for k in relabelled:
            row = batch["batch_indexes"][k]
            goal = batch["obs"]["desired_goal"][k]
            np.testing.assert_array_equal(goal, batch["new_obs"]["desired_goal"][k])
            rows = episode_rows(buffer, row)
            achieved = [tuple(buffer[[r]]["new_obs"]["achieved_goal"][0]) for r in rows]
            places = {"future": rows.index(row), "final": len(rows) - 1, "episode": 0}
            assert tuple(goal) in achieved[places[strategy] :]
            reached.add((row, tuple(goal)))
            assert batch["rewards"][k] == -(tuple(batch["new_obs"]["achieved_goal"][k]) != tuple(goal))
        assert (batch["rewards"][kept] == -1).all()
        assert (batch["obs"]["desired_goal"][kept] == -1).all()
    if strategy != "final":  # every goal that is possible comes
        assert len(reached) > {"future": 100, "episode": 200}[strategy]


def test_a_share_of_k_over_k_plus_1_is_relabelled():
    for future_k, share in ((4.0, 0.8), (1.0, 0.5), (0.0, 0.0)):
        buffer = fill(HERReplayBuffer(50, reach, future_k=future_k), 40)
        relabelled, _ = split(buffer.sample(4000))
        assert len(relabelled) / 4000 == pytest.approx(share, abs=0.03)


def test_each_goal_that_a_row_may_get_is_as_likely_as_the_others():
    buffer = fill(HERReplayBuffer(50, reach), 11)  # episodes of 4 and 7 steps
    batch = buffer.sample(20_000)
    relabelled, _ = split(batch)
    steps = batch["obs"]["desired_goal"][relabelled, 2]
    for begins in (4, 6):  # the rows of the second episode's first and third step
        after = steps[batch["batch_indexes"][relabelled] == begins]
        first = begins - 4
        share = np.bincount(after.astype(int), minlength=8)[first + 1 :] / len(after)
        np.testing.assert_allclose(share, 1 / (7 - first), atol=0.06)


def test_hindsight_never_changes_stored_rows():
    buffer = fill(HERReplayBuffer(50, reach), 40)
    before = buffer.all()
    for _ in range(10):
        buffer.sample(100)
    after = buffer.all()
    for name in ("obs", "new_obs"):
        assert (after[name]["desired_goal"] == -1).all()
        np.testing.assert_array_equal(before[name]["achieved_goal"], after[name]["achieved_goal"])
    assert (after["rewards"] == -1).all()


@pytest.mark.parametrize("n_step", [1, 2, 4])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("ends", [False, True])
def test_hindsight_with_n_step_sums_new_rewards_and_stops_at_the_goal(n_step, stack, ends):
    buffer = HERVectorReplayBuffer(
        60, 3, reach, n_step=n_step, gamma=GAMMA, stack_num=stack, compute_terminated=arrived if ends else None
    )
    fill(buffer, 33, cut_at=(9,))
    batch = buffer.sample(300)
    relabelled, kept = split(batch)
    assert len(relabelled) > 100
    assert len(kept) > 20
    last = (lambda frames: frames[-1]) if stack > 1 else (lambda frames: frames)
    stored = buffer.to_batch()["new_obs"]["achieved_goal"]
    after = dict(zip(buffer.ring.in_order().tolist(), stored))
    stored_truncateds = dict(zip(buffer.ring.in_order().tolist(), buffer.to_batch()["truncateds"]))
    for k in [*relabelled, *kept]:
        rows = episode_rows(buffer, batch["batch_indexes"][k])
        rows = rows[rows.index(batch["batch_indexes"][k]) :][:n_step]
        goal = last(batch["obs"]["desired_goal"][k])
        total, discount, terminated = 0.0, 1.0, False
        for row in rows:
            achieved = after[int(row)]
            at_goal = bool((achieved == goal).all())
            total += discount * -float(not at_goal)
            discount *= GAMMA
            if at_goal and ends and k in relabelled:
                terminated = True
                break
        assert batch["rewards"][k] == pytest.approx(total)
        assert batch["terminateds"][k] == terminated
        assert batch["truncateds"][k] == stored_truncateds[int(row)]
        np.testing.assert_array_equal(last(batch["new_obs"]["achieved_goal"][k]), achieved)
        if n_step > 1:
            assert batch["discounts"][k] == pytest.approx(discount)
        if stack > 1:
            assert (batch["obs"]["desired_goal"][k] == goal).all()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_prioritized_rows_have_goals_rewards_and_errors_of_their_episodes(num_envs):
    kind = ReplayBuffer if num_envs == 1 else partial(VectorReplayBuffer, buffer_num=num_envs)
    buffer = kind(60, priorities={"alpha": 1.0, "beta": 0.5}, hindsight=Hindsight(reach), seed=1)
    fill(buffer, 20, cut_at=(9,))
    rows = buffer.indices()
    errors = np.where(rows % 4 == 0, 9.0, 1.0)
    buffer.update_weight(rows, errors)
    batch = buffer.sample(6000)
    drawn = batch["batch_indexes"]
    counts = np.array([(drawn == row).sum() for row in rows])
    np.testing.assert_allclose(counts / 6000, errors / errors.sum(), atol=0.02)
    smallest = errors[np.isin(rows, drawn)].min()
    np.testing.assert_allclose(batch["weights"], np.where(drawn % 4 == 0, (9 / smallest) ** -0.5, 1.0), rtol=1e-5)
    relabelled, kept = split(batch)
    assert len(relabelled) / 6000 == pytest.approx(0.8, abs=0.03)
    assert (drawn[relabelled] % 4 == 0).mean() == pytest.approx((drawn % 4 == 0).mean(), abs=0.03)
    after = {row: tuple(buffer[[row]]["new_obs"]["achieved_goal"][0]) for row in rows}
    ahead = {row: [after[r] for r in episode_rows(buffer, row)] for row in rows}
    for k in relabelled[:500]:
        goal, row = tuple(batch["obs"]["desired_goal"][k]), drawn[k]
        assert goal in ahead[row][ahead[row].index(after[row]) :]
        assert batch["rewards"][k] == -float(after[row] != goal)
    assert (batch["rewards"][kept] == -1).all()
    some, new = rows[:5], np.array([0.5, -2.0, 3.0, -4.0, 20.0])
    buffer.update_weight(some, new)
    moved = errors + buffer.priorities.epsilon
    moved[:5] = np.abs(new) + buffer.priorities.epsilon
    np.testing.assert_allclose(buffer.priorities.tree[rows], moved)
    again = buffer.sample(6000)["batch_indexes"]
    np.testing.assert_allclose([(again == row).mean() for row in some], moved[:5] / moved.sum(), atol=0.02)


def test_hindsight_refuses_options_that_are_not_allowed():
    with pytest.raises(TypeError, match="compute_reward must be a function"):
        HERReplayBuffer(5, 3)
    with pytest.raises(ValueError, match=r"strategy=.past.*future.*final"):
        HERReplayBuffer(5, reach, strategy="past")
    with pytest.raises(ValueError, match="future_k=-1"):
        HERReplayBuffer(5, reach, future_k=-1)
    with pytest.raises(ValueError, match="observations that are dicts"):
        HERReplayBuffer(5, reach).add({
            "obs": np.zeros((1, 2)), "actions": [0], "rewards": [0.0], "terminateds": [False], "truncateds": [False],
            "new_obs": np.zeros((1, 2)),
        })  # fmt: skip
    buffer = fill(HERReplayBuffer(50, lambda achieved, desired, info: np.zeros(3)), 40)
    with pytest.raises(ValueError, match="one reward for each row"):
        buffer.sample(64)
