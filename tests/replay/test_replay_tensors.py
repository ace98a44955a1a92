"""The ring of tensors: what is written, drawn, kept, and refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from host_waits import DEVICE, StandInDevice
from scipy import stats

from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.tensor_rollout import check_room
from lockstep.data.trees import leaves, map_tree
from lockstep.replay import Hindsight, Priorities, ReplayBuffer, TensorReplay, VectorReplayBuffer, tensor_replay
from lockstep.replay.priorities import TensorPriorities

B = 3


def replay_of(capacity: int = 4 * B, **options: Any) -> TensorReplay:
    return TensorReplay(capacity, torch.zeros(B, 2), torch.zeros(B, dtype=torch.int64), **options)


def write(replay: TensorReplay, number: int, first: int = 0) -> None:
    """Write vector steps that say which they are: the step in rewards and observations, the environment in actions."""
    for step in range(first, first + number):
        obs = torch.full((B, 2), float(step))
        dones = torch.tensor([step % 2 == 0, step % 3 == 0, False])
        extras = {"time_outs": torch.tensor([step % 4 == 0, False, False]) & dones, "final_obs": obs + 0.5}
        replay.begin_step(step, obs)
        replay.end_step(step, torch.arange(B), torch.full((B,), float(step)), dones, extras)
    replay.count(number)


def test_the_oldest_steps_are_overwritten():
    replay = replay_of()
    write(replay, 6)
    assert len(replay) == 4 * B
    assert replay.columns["rewards"][:, 0].tolist() == [4, 5, 2, 3]
    assert torch.equal(replay.columns["new_obs"], replay.columns["obs"] + 0.5)
    assert replay.columns["terminateds"].tolist() == [
        [False, False, False],  # 4: a time limit
        [False, False, False],
        [True, False, False],  # 2
        [False, True, False],  # 3
    ]
    rows = replay.rows(torch.tensor([2 * B + 1]))
    assert rows["actions"].item() == 1
    assert rows["rewards"].item() == 2.0
    assert replay.row_bytes == 2 * 4 + 2 * 4 + 8 + 4 + 1


@pytest.mark.parametrize("cut_after", [None, 0, 1, 2])
@pytest.mark.parametrize("n_step", [2, 3, 5])
@pytest.mark.parametrize("written", [2, 3, 4, 7, 11])
def test_rewards_of_n_steps_are_those_of_the_buffer_of_arrays(n_step, written, cut_after):
    """From each row: across the place where the ring begins again, up to an episode's end, to a reset in the middle of
    episodes (so many steps before the newest one), or to the newest step."""
    replay = TensorReplay(4 * B, torch.zeros(B, 2), torch.zeros(B, dtype=torch.int64), n_step, gamma=0.9)
    arrays = VectorReplayBuffer(4 * B, B, n_step=n_step, gamma=0.9)
    rng = np.random.default_rng(0)
    for step in range(written):
        obs, final = rng.normal(size=(2, B, 2)).astype(np.float32)
        rewards = rng.normal(size=B).astype(np.float32)
        ended, cut = rng.random((2, B)) < 0.2
        replay.begin_step(step, torch.from_numpy(obs))
        extras = {"time_outs": torch.from_numpy(cut & ~ended), "final_obs": torch.from_numpy(final)}
        dones = torch.from_numpy(ended | cut)
        replay.end_step(step, torch.arange(B), torch.from_numpy(rewards), dones, extras)
        row = {"obs": obs, "actions": np.arange(B), "rewards": rewards, "new_obs": final}
        arrays.add({**row, "terminateds": ended, "truncateds": cut & ~ended})
        replay.count(1)
        if cut_after == written - 1 - step:
            replay.cut()
            arrays.cut(range(B))
    found, wanted = replay.rows(torch.arange(len(replay))), arrays[arrays.indices()]
    orders = [np.argsort(np.asarray(columns["obs"])[:, 0]) for columns in (found, wanted)]
    for name in ("obs", "actions", "rewards", "new_obs", "terminateds", "discounts"):
        np.testing.assert_allclose(found[name].numpy()[orders[0]], wanted[name][orders[1]], atol=1e-6, err_msg=name)
    assert set(found) == {"obs", "actions", "rewards", "new_obs", "terminateds", "discounts"}


@pytest.mark.parametrize("written", [1, 3, 4, 7])
def test_every_stored_row_is_equally_likely(written):
    replay, generator = replay_of(), torch.Generator().manual_seed(1)
    write(replay, written)
    drawn = replay.sample(6000, generator)
    numbers = (drawn["rewards"] * B + drawn["actions"]).long()
    found, counts = np.unique(numbers.numpy(), return_counts=True)
    first = max(0, written - 4)
    assert found.tolist() == list(range(first * B, written * B))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_number_just_below_one_draws_a_stored_row(monkeypatch):
    largest = 1.0 - 2.0**-53
    monkeypatch.setattr(torch, "rand", lambda number, **_: torch.full((number,), largest, dtype=torch.float64))
    for number in (1, 3, 5, 7, 2**20 - 1, 2**24 + 3):
        assert int((torch.rand(1) * torch.tensor([number])).long()) == number - 1


def test_a_replay_continues_from_its_state():
    one, other = replay_of(), replay_of()
    write(one, 6)
    write(other, 3)
    other.set_state(one.get_state())
    for replay in (one, other):
        write(replay, 2, first=6)
    assert len(one) == len(other)
    for name, column in one.columns.items():
        assert torch.equal(column, other.columns[name]), name
    drawn = [replay.sample(50, torch.Generator().manual_seed(2)) for replay in (one, other)]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


def test_a_state_of_few_steps_is_small():
    replay = replay_of(1000 * B)
    write(replay, 2)
    assert len(replay.get_state()["columns"]["obs"]) == 2


@pytest.mark.parametrize(
    "other",
    [replay_of(5 * B), TensorReplay(4 * B, torch.zeros(B, 3), torch.zeros(B, dtype=torch.int64))],
    ids=["length", "observations"],
)
def test_a_state_of_another_buffer_is_refused_and_changes_nothing(other):
    replay = replay_of()
    write(replay, 2)
    before = replay.get_state()
    with pytest.raises(ValueError, match="is of another buffer"):
        replay.set_state(other.get_state())
    assert all(
        np.array_equal(column, before["columns"][name]) for name, column in replay.get_state()["columns"].items()
    )


def test_a_state_without_all_of_its_steps_is_refused_and_changes_nothing():
    replay, other = replay_of(), replay_of()
    write(replay, 2)
    write(other, 4)
    state = replay.get_state()
    with pytest.raises(ValueError, match=r"of 4 vector steps, its columns hold .*'obs': 2"):
        other.set_state({**state, "written": 6})
    assert (other.size, int(other.written)) == (4, 4)


def test_a_capacity_beyond_device_memory_is_refused_with_one_that_fits(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10_000, 20_000))
    on_gpu = partial(check_room, torch.device("cuda"))
    monkeypatch.setattr(tensor_replay, "check_room", lambda device, *rest: on_gpu(*rest))
    with pytest.raises(
        ValueError, match=r"9,999 transitions need .*: 344 transitions would fit.*lower replay.capacity"
    ):
        replay_of(10_000)
    assert len(replay_of(344).columns["obs"]) == 344 // B


@pytest.mark.parametrize("capacity", [B - 1, 0, 2.5])
def test_a_capacity_below_a_vector_step_is_refused(capacity: Any):
    with pytest.raises((TypeError, ValueError), match="capacity"):
        replay_of(capacity)


def test_an_emptied_replay_starts_again():
    replay = replay_of()
    write(replay, 6)
    replay.clear()
    assert len(replay) == 0
    write(replay, 1, first=9)
    assert set(replay.sample(50, torch.Generator().manual_seed(0))["rewards"].tolist()) == {9.0}


@pytest.mark.parametrize("before", [2, 6])
def test_a_collect_that_failed_is_forgotten(before):
    """Nobody draws a row of it, and the next collect goes on where it began."""
    replay, plain = replay_of(), replay_of()
    write(replay, before)
    replay.begin_collect(weights_seq_no=1)
    write(replay, 2, first=100)
    replay.abandon_collect()
    assert replay.columns["rewards"].max() < 100
    assert len(replay) == min(before, 4) * B
    write(replay, 3, first=before)
    write(plain, before + 3)
    assert all(torch.equal(column, plain.columns[name]) for name, column in replay.columns.items())
    assert (replay.size, int(replay.written)) == (plain.size, int(plain.written))


def test_a_first_collect_that_failed_leaves_nothing():
    replay = replay_of()
    replay.begin_collect(weights_seq_no=0)
    write(replay, 2)
    replay.abandon_collect()
    assert (len(replay), int(replay.written)) == (0, 0)


def test_returns_do_not_go_beyond_the_copies_that_a_failed_collect_leaves():
    replay = replay_of(10 * B, n_step=3, gamma=1.0)
    for step in range(9):
        obs = torch.full((B, 2), float(step))
        never = torch.zeros(B, dtype=torch.bool)
        replay.begin_step(step, obs)
        replay.end_step(
            step, torch.arange(B), torch.full((B,), float(step)), never, {"time_outs": never, "final_obs": obs}
        )
    replay.count(9)
    replay.begin_collect(weights_seq_no=1)
    write(replay, 3, first=100)
    replay.abandon_collect()
    # In the places of steps 9, 0 and 1 are copies of step 8.
    rewards = replay.rows(torch.arange(0, 10 * B, B))["rewards"].tolist()
    assert rewards == [8.0, 8.0, 9.0, 12.0, 15.0, 18.0, 21.0, 15.0, 8.0, 8.0]


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("whole", [0, 2])
@pytest.mark.parametrize("before", [0, 2, 6])
def test_a_collect_that_fails_within_a_step_is_not_counted(before, whole, prioritised):
    """A step that has only begun has written over the observations of the oldest one."""
    replay = prioritized(beta=[[0, 0.0], [1000, 1000.0]])[0] if prioritised else replay_of()
    write(replay, before)
    replay.begin_collect(weights_seq_no=1)
    for step in range(whole):
        obs, never = torch.full((B, 2), 100.0), torch.zeros(B, dtype=torch.bool)
        replay.begin_step(step, obs)
        replay.end_step(step, torch.arange(B), obs[:, 0], never, {"time_outs": never, "final_obs": obs})
    replay.begin_step(whole, torch.full((B, 2), 100.0))
    replay.abandon_collect()
    assert int(replay.written) == before
    assert len(replay) == min(before, 4) * B
    if before:
        drawn = replay.sample(200, torch.Generator().manual_seed(0))
        assert drawn["obs"].max() < before
        assert torch.equal(drawn["obs"][:, 0], drawn["rewards"])
    state = replay.get_state()
    replay_of(priorities={"alpha": 0.5} if prioritised else None).set_state(state)
    if prioritised:
        assert replay.priorities.beta.value == before * B


# -- observations that are trees ---


def tree_of(obs: torch.Tensor) -> Any:
    return {"first": obs[:, :1], "more": ({"second": obs[:, 1]}, (obs > 3.0).to(torch.uint8))}


def flat_of(tree: Any) -> torch.Tensor:
    return torch.cat([tree["first"], tree["more"][0]["second"].unsqueeze(-1)], -1)


class Trees(TensorReplay):
    """Writes observations as trees."""

    def begin_step(self, t: int, obs: Any) -> None:
        super().begin_step(t, tree_of(obs))

    def end_step(self, t: int, actions: Any, rewards: Any, dones: Any, extras: Any) -> None:
        super().end_step(t, actions, rewards, dones, {**extras, "final_obs": tree_of(extras["final_obs"])})


def trees_of(capacity: int = 4 * B, share: RowShare = ALL_ROWS, **options: Any) -> Trees:
    return Trees(capacity, tree_of(torch.zeros(B, 2)), torch.zeros(B, dtype=torch.int64), **options, share=share)


@pytest.mark.parametrize("n_step", [1, 3])
def test_trees_are_stored_drawn_and_forgotten_as_one_tensor_is(n_step):
    tree, flat = trees_of(n_step=n_step), replay_of(n_step=n_step)
    for replay in (tree, flat):
        write(replay, 6)
        replay.begin_collect(weights_seq_no=1)
        write(replay, 1, first=100)
        replay.abandon_collect()
    rows, expected = tree.rows(torch.arange(4 * B)), flat.rows(torch.arange(4 * B))
    assert rows.keys() == expected.keys()
    for name, column in expected.items():
        found = flat_of(rows[name]) if name in ("obs", "new_obs") else rows[name]
        assert torch.equal(found, column), name
    assert torch.equal(rows["obs"]["more"][1], (expected["obs"] > 3.0).to(torch.uint8))
    assert tree.end(2) == 0
    assert list(tree.last_steps(2)) == [
        *(f"{name}/{entry}" for name in ("obs", "new_obs") for entry in ("first", "more/0/second", "more/1")),
        "rewards",
    ]
    tree.columns["obs"]["more"][0]["second"][1].fill_(float("nan"))
    assert tree.end(4) == B


def test_a_replay_of_trees_continues_from_its_state():
    """That of all ranks too, of which each takes its environments."""
    one = trees_of()
    write(one, 6)
    state = one.get_state()
    other = trees_of()
    other.set_state(state)
    assert all(map(torch.equal, leaves(one.columns), leaves(other.columns)))

    def gather(columns: Any) -> Any:
        return [columns, map_tree(lambda leaf: ~leaf if leaf.dtype == bool else leaf + 1, columns)]

    shared = trees_of(8 * B, share=RowShare(0, 2, gather))
    write(shared, 6)
    state = shared.get_state()
    second = trees_of(8 * B, share=RowShare(1, 2, gather))
    second.set_state(state)
    for mine, leaf in zip(leaves(second.columns), leaves(shared.columns), strict=True):
        assert torch.equal(mine[:6], (~leaf if leaf.dtype == torch.bool else leaf + 1)[:6])


def test_a_state_of_another_tree_is_refused():
    replay, other = trees_of(), replay_of()
    write(replay, 2)
    write(other, 2)
    with pytest.raises(ValueError, match=r"is of another buffer .*obs/more/0/second"):
        replay.set_state(other.get_state())


# -- priorities ---

ALL = torch.arange(4 * B)


def prioritized(capacity: int = 4 * B, **options: Any) -> tuple[TensorReplay, Any]:
    """Return a buffer and its priorities."""
    replay = replay_of(capacity, priorities={"alpha": 0.5, "beta": 1.0, "epsilon": 1.0, **options})
    return replay, replay.priorities


def values_of(replay: Any) -> list[float]:
    return replay.priorities.tree.values.tolist()


def test_priorities_and_weights_are_the_written_ones():
    """`p = (|error| + 1) ** 0.5`; a new row has the largest so far, at first 1; weights `(p / smallest p) ** -beta`."""
    replay, priorities = prioritized(beta=[[0, 0.0], [4 * B, 2.0]])
    write(replay, 2)
    assert values_of(replay) == [1.0] * 2 * B + [0.0] * 2 * B
    priorities.update(torch.tensor([0, 1, 4]), torch.tensor([-8.0, 3.0, 0.0]))
    assert values_of(replay)[:6] == [3.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    write(replay, 1, first=2)
    assert values_of(replay)[2 * B :] == [3.0] * B + [0.0] * B
    assert float(priorities.largest) == 9.0
    # beta is 1.5 at 9 of 12 rows added
    found = priorities.weights(torch.tensor([0, 1, 2]))
    assert found.tolist() == pytest.approx([3.0**-1.5, 2.0**-1.5, 1.0], rel=1e-7)
    assert priorities.weights(torch.tensor([0, 1])).tolist() == pytest.approx([1.5**-1.5, 1.0], rel=1e-7)
    assert found.dtype == torch.float32
    assert replay.row_bytes == replay_of().row_bytes + 12


def test_rows_are_drawn_in_proportion_to_their_priorities():
    replay, priorities = prioritized()
    write(replay, 2)
    priorities.update(ALL[: 2 * B], torch.tensor([0.0, 3.0, 8.0, 0.0, 15.0, 24.0]))
    drawn = replay.sample(20_000, torch.Generator().manual_seed(0))
    index = drawn["batch_indexes"]
    assert torch.equal(drawn["rewards"] * B + drawn["actions"], index.to(torch.float32))
    assert torch.equal(drawn["weights"], priorities.weights(index))
    expected = np.array([1.0, 2.0, 3.0, 1.0, 4.0, 5.0])
    counts = np.bincount(index, minlength=2 * B)
    assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


def test_priorities_of_tensors_are_those_of_arrays():
    """Through many steps and updates with rows named twice and errors that are not finite, over the ring's end."""
    steps, options = 1500, {"alpha": 0.6, "beta": [[0, 0.4], [3000, 1.0]], "epsilon": 1e-6}
    replay, arrays = replay_of(steps * B, priorities=options), Priorities(steps * B, **options)
    rng, added = np.random.default_rng(0), 0
    for step in range(2 * steps):
        write(replay, 1, first=step)
        arrays.add(step % steps * B + np.arange(B))
        added += B
        if step % 20:
            continue
        uniforms = rng.random(64)
        rows = arrays.tree.draw(uniforms)
        assert np.array_equal(replay.priorities.tree.draw(torch.from_numpy(uniforms)).numpy(), rows)
        weights = replay.priorities.weights(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(weights, arrays.weights(rows, added), rtol=1e-6)
        rows[40:] = rows[:24]  # named twice, the second time with another error
        errors = rng.standard_cauchy(64)
        errors[rng.integers(0, 64, 5)] = rng.choice([np.nan, np.inf])
        sound = np.isfinite(errors)
        arrays.update(rows[sound], errors[sound])
        replay.priorities.update(torch.from_numpy(rows), torch.from_numpy(errors))
        np.testing.assert_allclose(values_of(replay), arrays.tree.values, rtol=1e-12)
        assert float(replay.priorities.largest) == arrays.largest


def test_priorities_on_a_device_wait_for_no_value_and_no_copy():
    """With the numbers of the CPU."""
    rows, errors = torch.tensor([0, 4, 4, 4099]), torch.tensor([2.0, 5.0, float("nan"), 8.0])
    uniforms, found = torch.linspace(0.0, 0.99, 40, dtype=torch.float64), []
    with StandInDevice() as stand_in:
        for device in (DEVICE, torch.device("cpu")):
            priorities = TensorPriorities(5000, device, alpha=0.5)
            inputs = [value.to(device) for value in (rows, errors, uniforms)]
            stand_in.forbids = True
            priorities.add(inputs[0])
            priorities.count(4)
            priorities.update(*inputs[:2])
            drawn = priorities.tree.draw(inputs[2])
            weights = priorities.weights(drawn)
            stand_in.forbids = False
            found.append([value.cpu().tolist() for value in (priorities.tree.values, drawn, weights)])
    assert found[0] == found[1]
    assert set(found[0][1]) == {0, 4, 4099}


def test_rows_without_a_transition_are_not_drawn(monkeypatch):
    """Where rounding leads behind the last row, it is the last."""
    replay, priorities = prioritized(1000 * B)
    write(replay, 30)
    monkeypatch.setattr(priorities.tree, "draw", lambda uniforms: torch.tensor([0, 30 * B - 1, 30 * B, 30 * B + 40]))
    drawn = replay.sample(4, torch.Generator())["batch_indexes"]
    assert drawn.tolist() == [0, 30 * B - 1, 30 * B - 1, 30 * B - 1]


def test_priorities_continue_from_their_state():
    options = {"beta": [[0, 0.2], [100, 1.0]], "alpha": 0.7}
    (one, _), (other, _) = (prioritized(200 * B, **options) for _ in range(2))
    write(one, 150)
    one.priorities.update(torch.arange(400), torch.linspace(0.0, 9.0, 400))
    write(other, 170)
    other.set_state(one.get_state())
    drawn = []
    for replay in (one, other):
        write(replay, 3, first=150)
        drawn.append(replay.sample(50, torch.Generator().manual_seed(2)))
        replay.priorities.update(drawn[-1]["batch_indexes"], drawn[-1]["rewards"])
    assert all(torch.equal(column, drawn[1][name]) for name, column in drawn[0].items())
    for mine, its in zip(one.priorities.tree.levels, other.priorities.tree.levels):
        assert torch.equal(mine, its)
    assert len(one.get_state()["priorities"]["tree"]["values"]) == 153 * B


def test_states_with_and_without_priorities_are_not_interchangeable():
    replay, _ = prioritized()
    write(replay, 2)
    plain = replay_of()
    write(plain, 2)
    for one, other in ((replay, plain), (plain, replay)):
        with pytest.raises(ValueError, match="is of another buffer"):
            one.set_state(other.get_state())


def test_an_emptied_buffer_keeps_the_largest_priority_alone():
    replay, priorities = prioritized()
    write(replay, 6)
    priorities.update(ALL, torch.full((4 * B,), 8.0))
    replay.clear()
    assert sum(values_of(replay)) == float(priorities.tree.levels[-1].sum()) == 0.0
    write(replay, 1)
    assert values_of(replay) == [3.0] * B + [0.0] * 3 * B


@pytest.mark.parametrize(("before", "kept"), [(2, [1, 2]), (3, [4, 2, 4]), (6, [1, 2, 2, 2])])
def test_a_failed_collect_leaves_earlier_priorities(before, kept):
    """Of the steps before it, in whose places the last of them stands, if they were overwritten; 0 behind the last."""
    replay, priorities = prioritized(beta=[[0, 0.0], [1000, 1000.0]])
    write(replay, before)
    errors = torch.tensor([0.0, 3.0, 15.0, 24.0])  # to priorities 1, 2, 4 and 5, by place
    priorities.update(ALL[: len(replay)], errors[: len(replay) // B].repeat_interleave(B))
    replay.begin_collect(weights_seq_no=1)
    write(replay, 2, first=100)
    replay.abandon_collect()
    assert values_of(replay) == [float(value) for value in kept for _ in range(B)] + [0.0] * (4 - len(kept)) * B
    assert float(priorities.tree.levels[-1].sum()) == sum(kept) * B
    assert priorities.beta.value == before * B


def test_a_first_collect_that_failed_leaves_no_priorities():
    replay, priorities = prioritized(beta=[[0, 0.0], [1000, 1000.0]])
    replay.begin_collect(weights_seq_no=0)
    write(replay, 2)
    replay.abandon_collect()
    assert sum(values_of(replay)) == priorities.beta.value == 0.0


@pytest.mark.parametrize("options", [{"alpha": -1.0}, {"epsilon": 0.0}, {"beta": -0.1}])
def test_bad_options_of_priorities_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=.* is not allowed"):
        prioritized(**options)


# -- hindsight ---


def reach(achieved: Any, desired: Any, info: Any) -> Any:
    """Return minus the distance to the goal, of tensors for tensors."""
    assert info == {}
    return -abs(achieved - desired).sum(-1)


def arrived(achieved: Any, desired: Any, info: Any) -> Any:
    return abs(achieved - desired).sum(-1) <= 1.0


class Given:
    """Random numbers in the place of a generator."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def random(self, shape: Any) -> Any:
        assert shape == self.numbers.shape
        return self.numbers


def goal_obs(rng: Any) -> Any:
    """Return observations whose goals are a few whole numbers, so that some are achieved by chance."""
    goals = rng.integers(0, 4, (2, B, 2)).astype(np.float32)
    return {"achieved_goal": goals[0], "desired_goal": goals[1], "observation": rng.random((B, 3), np.float32)}


def hindsight_pair(hindsight: Any, written: int, n_step: int, cut_after: int | None) -> tuple[Any, Any]:
    """Return a `TensorReplay` and a `ReplayBuffer` with the same rows."""
    rng = np.random.default_rng(written)
    first = map_tree(torch.from_numpy, goal_obs(rng))
    options: dict[str, Any] = {"n_step": n_step, "gamma": 0.9, "hindsight": hindsight}
    replay = TensorReplay(8 * B, first, torch.zeros(B, dtype=torch.int64), **options)
    arrays = ReplayBuffer(8 * B, buffer_num=B, **options)
    for step in range(written):
        obs, final = goal_obs(rng), goal_obs(rng)
        rewards = rng.normal(size=B).astype(np.float32)
        ended, cut = rng.random((2, B)) < 0.15
        replay.begin_step(step, map_tree(torch.from_numpy, obs))
        extras = {"time_outs": torch.from_numpy(cut & ~ended), "final_obs": map_tree(torch.from_numpy, final)}
        replay.end_step(step, torch.arange(B), torch.from_numpy(rewards), torch.from_numpy(ended | cut), extras)
        row = {"obs": obs, "actions": np.arange(B), "rewards": rewards, "new_obs": final}
        arrays.add({**row, "terminateds": ended, "truncateds": cut & ~ended})
        replay.end(1)
        replay.count(1)
        if cut_after == written - 1 - step:
            replay.cut()
            arrays.cut()
    return replay, arrays


@pytest.mark.parametrize("judges_ends", [False, True], ids=["stored ends", "ends of goals"])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(("written", "cut_after"), [(5, None), (7, 2), (8, 0), (21, None), (27, 3)])
def test_goals_of_hindsight_are_those_of_the_buffer_of_arrays(written, cut_after, n_step, strategy, judges_ends):
    """For the same rows and random numbers: all columns, in a ring that is part full or has begun anew."""
    hindsight = Hindsight(reach, future_k=3.0, strategy=strategy, compute_terminated=arrived if judges_ends else None)
    replay, arrays = hindsight_pair(hindsight, written, n_step, cut_after)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(replay), 300)
    chances = rng.random((2, 300))
    found = replay.rows(torch.from_numpy(rows), torch.from_numpy(chances))
    arrays.reader.streams.numpy = lambda name: Given(chances)
    wanted = arrays.reader.columns(rows, hindsight)
    assert set(wanted) - set(found) == {"truncateds"}
    for name, column in found.items():
        for one, other in zip(leaves(wanted[name]), leaves(column)):
            np.testing.assert_allclose(other.numpy(), one, rtol=1e-6, atol=1e-6, err_msg=name)
    kept = replay.rows(torch.from_numpy(rows))
    is_new = (found["obs"]["desired_goal"] != kept["obs"]["desired_goal"]).any(-1)
    assert 0.4 < is_new.float().mean() < 0.8
    untouched = torch.from_numpy(chances[0]) >= 0.75
    assert torch.equal(found["rewards"][untouched], kept["rewards"][untouched])
    assert {leaf.dtype for leaf in leaves(found)} == {leaf.dtype for leaf in leaves(kept)}


def test_hindsight_draws_in_the_stream_of_rows_and_is_restored():
    hindsight = Hindsight(reach, strategy="episode")
    replay, _ = hindsight_pair(hindsight, 21, 1, None)
    again, _ = hindsight_pair(hindsight, 3, 1, None)
    again.set_state(replay.get_state())
    samples = [each.sample(100, torch.Generator().manual_seed(1)) for each in (replay, again)]
    for one, other in zip(*map(leaves, samples)):
        assert torch.equal(one, other)
    plain = replay.rows(replay.draw_indices(100, torch.Generator().manual_seed(1)))
    assert torch.equal(plain["obs"]["observation"], samples[0]["obs"]["observation"])
    assert not torch.equal(plain["obs"]["desired_goal"], samples[0]["obs"]["desired_goal"])


def test_no_goal_is_taken_from_steps_that_were_dropped():
    """After a collect that failed, goals are those of the steps that remain."""
    replay, _ = hindsight_pair(Hindsight(reach, strategy="final"), 20, 1, None)
    kept = replay.columns["new_obs"]["achieved_goal"].clone()
    replay.begin_collect(0)
    obs = map_tree(lambda leaf: torch.full((B, *leaf.shape[2:]), 50.0), replay.columns["obs"])
    for step in range(3):
        replay.begin_step(step, obs)
        no = torch.zeros(B, dtype=torch.bool)
        replay.end_step(step, torch.arange(B), torch.zeros(B), no, {"time_outs": no, "final_obs": obs})
    replay.end(3)
    replay.count(3)
    replay.abandon_collect()
    found = replay.sample(500, torch.Generator().manual_seed(0))
    assert float(found["obs"]["desired_goal"].max()) < 4.0
    assert float(kept.max()) < 4.0


def test_goals_that_are_missing_or_judged_by_arrays_are_refused():
    with pytest.raises(ValueError, match="hindsight needs observations that are dicts with"):
        replay_of(hindsight=Hindsight(reach))
    replay, _ = hindsight_pair(Hindsight(lambda achieved, desired, info: 1.0), 0, 1, None)
    with pytest.raises(ValueError, match=r"compute_reward gave a float .*a tensor with one reward for each row"):
        replay.rows(torch.zeros(4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.float64))
