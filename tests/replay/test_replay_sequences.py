"""Sequences for networks with memory: which rows they hold, burn-in, stored states, n steps, priorities, refusals."""

import copy

import numpy as np
import pytest
from replay_tools import fill_from_counting

from lockstep.replay import HERReplayBuffer, ReplayBuffer


def filled(number=12, size=64, ends=(), **options):
    """A buffer of one environment: rewards 1, 2, ..., `state_in` the row's number; episodes end after rows `ends`."""
    buffer = ReplayBuffer(size, **{"sequence_length": 4, **options})
    for k in range(number):
        buffer.add(
            {
                "obs": np.array([[k]], np.float32),
                "actions": np.array([k % 2]),
                "rewards": np.array([k + 1.0], np.float32),
                "terminateds": np.array([k in ends]),
                "truncateds": np.array([False]),
                "new_obs": np.array([[k + 1]], np.float32),
                "state_in": {"h": np.array([[float(k)]], np.float32)},
            }
        )
    return buffer


def sequences(batch):
    """The observations of each sequence."""
    return [part.tolist() for part in np.split(batch["obs"][:, 0], np.cumsum(batch["seq_lens"])[:-1])]


def test_an_episode_is_cut_from_its_start_and_rows_keep_their_sequence():
    buffer = filled(12, ends=(5,))
    found = {tuple(rows) for rows in sequences(buffer.sample(200))}
    assert found == {(0, 1, 2, 3), (4, 5), (6, 7, 8, 9), (10, 11)}


def test_each_row_is_equally_likely():
    buffer = filled(12, ends=(5,), seed=3)
    counts = np.bincount(buffer.sample(6_000)["obs"][:, 0].astype(int), minlength=12)
    # of 12 rows a sequence of n is drawn with probability n / 12, and gives each of its rows once
    np.testing.assert_allclose(counts / 6_000, [4 / 12] * 4 + [2 / 12] * 2 + [4 / 12] * 4 + [2 / 12] * 2, atol=0.02)


def test_burn_in_precedes_a_sequence_within_its_episode_with_its_state():
    buffer = filled(12, ends=(5,), burn_in=3)
    batch = buffer.sample(100)
    masks = np.split(batch["loss_mask"], np.cumsum(batch["seq_lens"])[:-1])
    found = {tuple(rows): mask.tolist() for rows, mask in zip(sequences(batch), masks)}
    assert found == {
        (0, 1, 2, 3): [True] * 4,
        (1, 2, 3, 4, 5): [False] * 3 + [True] * 2,
        (6, 7, 8, 9): [True] * 4,
        (7, 8, 9, 10, 11): [False] * 3 + [True] * 2,
    }
    assert batch["state_in"]["h"][:, 0].tolist() == [rows[0] for rows in sequences(batch)]
    assert batch["new_obs"][:, 0].tolist() == (batch["obs"][:, 0] + 1).tolist()


def test_overwritten_rows_are_not_used_for_burn_in():
    buffer = filled(13, size=8, burn_in=2)  # rows 5 to 12 of one episode are left
    assert {tuple(rows) for rows in sequences(buffer.sample(100))} == {(5, 6, 7, 8), (7, 8, 9, 10, 11, 12)}


def test_sums_of_n_steps_stay_within_the_sequence():
    buffer = filled(6, ends=(5,), n_step=3, gamma=0.5)
    batch = buffer.sample(50)
    first = np.flatnonzero(batch["obs"][:, 0] == 0)[0]
    rows = slice(first, first + 4)
    assert batch["rewards"][rows].tolist() == [1 + 1 + 0.75, 2 + 1.5 + 1, 3 + 2, 4]
    assert batch["num_steps"][rows].tolist() == [3, 3, 2, 1]
    assert batch["discounts"][rows].tolist() == [0.125, 0.125, 0.25, 0.5]
    assert not batch["terminateds"][rows].any()
    last = np.flatnonzero(batch["obs"][:, 0] == 4)[0]
    assert batch["rewards"][last : last + 2].tolist() == [5 + 3, 6]
    assert batch["terminateds"][last : last + 2].tolist() == [True, True]


def test_a_boundary_is_the_end_of_a_sequence():
    buffer = filled(3)
    buffer.cut()
    buffer.update(filled(2))
    assert {tuple(rows) for rows in sequences(buffer.sample(50))} == {(0, 1, 2), (0, 1)}


def test_rows_of_one_sequence_share_its_weight_and_priority():
    buffer = filled(8, priorities={"alpha": 1.0, "beta": 1.0})
    batch = buffer.sample(20)
    indices, lengths = batch["batch_indexes"], batch["seq_lens"]
    assert [np.ptp(part) for part in np.split(batch["weights"], np.cumsum(lengths)[:-1])] == [0.0] * 20
    buffer.update_weight(np.arange(8), [1e-9] * 4 + [1.0] * 4)
    assert {tuple(rows) for rows in sequences(buffer.sample(50))} == {(4, 5, 6, 7)}
    assert indices.shape == batch["rewards"].shape


@pytest.mark.parametrize("ignore_obs_next", [False, True])
def test_sequences_of_many_environments_follow_their_own_episodes(ignore_obs_next):
    buffer = ReplayBuffer(90, buffer_num=3, sequence_length=3, burn_in=2, ignore_obs_next=ignore_obs_next)
    fill_from_counting(buffer, 100, cut_at=(17, 40))
    batch = buffer.sample(2_000)
    parts = np.cumsum(batch["seq_lens"])[:-1]
    for rows, new_obs, index, mask in zip(
        *(np.split(batch[name], parts) for name in ("obs", "new_obs", "batch_indexes", "loss_mask"))
    ):
        assert np.array_equal(buffer.next(index[:-1]), index[1:])
        np.testing.assert_array_equal(rows[1:], new_obs[:-1])
        assert 1 <= mask.sum() <= 3
        assert mask[-1]
        assert (~mask).sum() in (0, 2)
    assert set(batch["batch_indexes"].tolist()) == set(buffer.indices().tolist())


def test_a_copy_and_a_saved_buffer_draw_the_same(tmp_path):
    buffer = filled(12, ends=(5,), burn_in=2, n_step=2)
    loaded = ReplayBuffer.load(buffer.save(tmp_path / "buffer"))
    twin = copy.deepcopy(buffer)
    for other in (loaded, twin):
        assert other.options == buffer.options
    drawn = [each.sample(5) for each in (buffer, loaded, twin)]
    for name, column in drawn[0].items():
        for other in drawn[1:]:
            np.testing.assert_equal(other[name], column)


REFUSED = {
    "burn-in without sequences": ({"burn_in": 2}, "burn_in=2 .*sequence_length=None"),
    "burn-in longer than sequences": ({"sequence_length": 4, "burn_in": 5}, "burn_in=5 .*sequence_length=4"),
    "an empty sequence": ({"sequence_length": 0}, "sequence_length"),
    "stacks of frames": ({"sequence_length": 4, "stack_num": 2}, "stack_num=2 .*sequence_length=4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_sequences_are_refused(name):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        ReplayBuffer(10, **options)


def test_hindsight_in_sequences_is_refused():
    with pytest.raises(ValueError, match=r"sequence_length=4 .*hindsight"):
        HERReplayBuffer(10, lambda achieved, desired, info: 0.0, sequence_length=4)


# -- data that are there already, as sequences ---


def test_a_sequence_view_has_the_rows_of_the_buffer_and_its_own_states():
    buffer = filled(12, ends=(5,), sequence_length=None)
    view = buffer.in_sequences(4, 3)
    batch = view.sample(100)
    assert "state_in" not in batch
    assert {tuple(rows) for rows in sequences(batch)} == {
        (0, 1, 2, 3),
        (1, 2, 3, 4, 5),
        (6, 7, 8, 9),
        (7, 8, 9, 10, 11),
    }
    assert view.store is buffer.store
    assert len(view) == len(buffer) == 12
    assert "seq_lens" not in buffer.sample(3)
    assert "state_in" in buffer.sample(3)


def test_whole_returns_reach_to_the_end_of_the_sequence():
    buffer = filled(12, ends=(5,), sequence_length=None).in_sequences(4).with_whole_returns(0.5)
    batch = buffer.sample(50)
    assert "state_in" not in batch
    first = np.flatnonzero(batch["obs"][:, 0] == 0)[0]
    rows = slice(first, first + 4)
    assert batch["rewards"][rows].tolist() == [1 + 1 + 0.75 + 0.5, 2 + 1.5 + 1, 3 + 2, 4]
    assert batch["num_steps"][rows].tolist() == [4, 3, 2, 1]
    assert batch["new_obs"][rows, 0].tolist() == [1, 2, 3, 4]
    last = np.flatnonzero(batch["obs"][:, 0] == 4)[0]
    assert batch["terminateds"][last : last + 2].tolist() == [True, True]


@pytest.mark.parametrize("options, words", [({"stack_num": 2}, "stack_num=2"), ({"her": True}, "hindsight")])
def test_buffers_without_sequences_are_refused(options, words):
    if options.pop("her", False):
        buffer = HERReplayBuffer(8, lambda *goals: np.zeros(len(goals[0])))
    else:
        buffer = ReplayBuffer(8, **options)
    with pytest.raises(ValueError, match=f"{words}.*sequence_length=4|sequence_length=4.*{words}"):
        buffer.in_sequences(4)
