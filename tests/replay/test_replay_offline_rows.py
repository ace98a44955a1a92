"""`OfflineRows` gives each row once in each pass; `with_whole_returns` reads a buffer to the ends of its episodes."""

import numpy as np
import pytest

from lockstep.data import SampleBatch
from lockstep.replay import HERReplayBuffer, OfflineRows, ReplayBuffer

ROWS = SampleBatch(x=np.arange(7))


def test_each_pass_has_every_row_once_in_a_new_order():
    rows = OfflineRows(ROWS, seed=3)
    drawn = np.concatenate([rows.sample(n)["x"] for n in (5, 5, 11)])
    assert rows.drawn == 21
    passes = drawn.reshape(3, 7)
    assert (np.sort(passes) == np.arange(7)).all()
    assert len({tuple(each) for each in passes.tolist()}) == 3
    assert np.array_equal(OfflineRows(ROWS, seed=3).sample(21)["x"], drawn)  # however it is cut
    assert not np.array_equal(OfflineRows(ROWS, seed=4).sample(21)["x"], drawn)


def test_a_permutation_is_a_separate_whole_pass():
    rows = OfflineRows(ROWS)
    rows.sample(3)
    assert sorted(rows.permutation()) == list(range(7))
    assert rows.drawn == 14


def test_the_state_has_the_position_in_the_pass():
    one = OfflineRows(ROWS, seed=1)
    one.sample(10)
    other = OfflineRows(ROWS, seed=1)
    other.set_state(one.get_state())
    assert np.array_equal(one.sample(9)["x"], other.sample(9)["x"])
    with pytest.raises(ValueError, match="seed=1; here it is 2"):
        OfflineRows(ROWS, seed=2).set_state(one.get_state())
    with pytest.raises(ValueError, match="num_rows=7; here it is 3"):
        OfflineRows(ROWS[:3], seed=1).set_state(one.get_state())


def test_drawn_rows_are_converted_and_empty_data_refused():
    rows = OfflineRows(ROWS, convert=lambda batch: SampleBatch(y=batch["x"] * 2))
    assert set(rows.sample(4)["y"]) <= set(range(0, 14, 2))
    for n, source in ((0, ROWS), (1, ROWS[:0])):
        with pytest.raises(ValueError, match=f"{n} rows cannot be drawn of {len(source)}"):
            OfflineRows(source).sample(n)


def test_whole_returns_reach_the_end_of_the_episode_and_say_how_it_ended():
    """Rewards 1, 2, 3 (terminated), 4, 5 (truncated), 6 (left), with gamma 1/2."""
    batch = {
        "obs": np.arange(6.0),
        "new_obs": np.array([1.0, 2.0, 90.0, 4.0, 91.0, 92.0]),
        "actions": np.zeros(6, np.int64),
        "rewards": np.arange(1.0, 7.0),
        "terminateds": np.array([0, 0, 1, 0, 0, 0], bool),
        "truncateds": np.array([0, 0, 0, 0, 1, 0], bool),
    }
    buffer = ReplayBuffer.from_batch(batch)
    view = buffer.with_whole_returns(0.5)
    seen = view[np.arange(6)]
    assert view.store is buffer.store  # nothing is copied
    np.testing.assert_allclose(seen["rewards"], [1 + 1 + 0.75, 2 + 1.5, 3, 4 + 2.5, 5, 6])
    np.testing.assert_allclose(seen["discounts"], [0.125, 0.25, 0.5, 0.25, 0.5, 0.5])
    np.testing.assert_allclose(seen["new_obs"], [90, 90, 90, 91, 91, 92])
    assert seen["terminateds"].tolist() == [True] * 3 + [False] * 3
    np.testing.assert_allclose(buffer[np.arange(6)]["rewards"], batch["rewards"])  # the buffer itself as before
    np.testing.assert_allclose(buffer.column("rewards"), batch["rewards"])


def test_whole_returns_of_relabelled_goals_are_refused():
    with pytest.raises(ValueError, match="hindsight has no returns of whole episodes"):
        HERReplayBuffer(10, lambda a, g, i: a[:, 0]).with_whole_returns(0.9)
