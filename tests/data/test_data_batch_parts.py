"""Contract, section 2: joining, slicing, splitting, shuffling and padding of a `SampleBatch`."""

import numpy as np
import pytest
import torch

from lockstep.data import MultiAgentBatch, SampleBatch, concat_samples


def rows(batch):
    return batch["a"].tolist()


def plain(n=10, **extra):
    return SampleBatch(a=np.arange(n), obs={"x": np.arange(n * 2.0).reshape(n, 2), "y": torch.arange(n)}, **extra)


def sequences(lengths=(3, 1, 4)):
    n = sum(lengths)
    return SampleBatch(
        a=np.arange(n), seq_lens=np.array(lengths), state_in={"h": np.arange(len(lengths)) * 10.0}, infos=[{}] * n
    )


def time_major():
    """Two sequences of 3 and 2 rows in columns [3, 2]."""
    return SampleBatch(
        a=np.array([[0, 3], [1, 4], [2, -1]]), seq_lens=[3, 2], state_in=np.array([[5.0], [6.0]]), _time_major=True
    )


# ---- concat_samples ----


def test_concat_joins_columns_of_every_kind():
    joined = concat_samples([plain(2), plain(3), plain(1)])
    assert rows(joined) == [0, 1, 0, 1, 2, 0]
    assert joined["obs"]["x"].shape == (6, 2)
    assert torch.equal(joined["obs"]["y"], torch.tensor([0, 1, 0, 1, 2, 0]))


def test_concat_of_a_missing_column_names_column_and_position():
    batches = [plain(2, r=[1, 2]), plain(2)]
    with pytest.raises(KeyError, match=r"'r' is missing in the batch at position 1"):
        concat_samples(batches)
    with pytest.raises(KeyError, match=r"'r' is missing in the batch at position 0"):
        concat_samples(batches[::-1])
    assert sorted(concat_samples(batches, on_missing="drop")) == ["a", "obs"]
    with pytest.raises(ValueError, match="on_missing='skip'"):
        concat_samples(batches, on_missing="skip")


def test_concat_skips_empty_batches_and_nothing_gives_an_empty_batch():
    assert rows(concat_samples([SampleBatch(), plain(2), SampleBatch(b=[])])) == [0, 1]
    assert len(concat_samples([])) == 0
    assert isinstance(concat_samples([]), SampleBatch)
    assert list(concat_samples([SampleBatch(b=[])])) == ["b"]


def test_concat_takes_the_largest_max_seq_len():
    joined = concat_samples([sequences((3, 1)), sequences((5,))])
    assert joined.max_seq_len == 5
    assert joined["seq_lens"].tolist() == [3, 1, 5]
    assert joined["state_in"]["h"].tolist() == [0.0, 10.0, 0.0]
    padded = concat_samples([sequences((3, 1)).right_zero_pad(5), sequences((5,)).right_zero_pad(5)])
    assert padded.max_seq_len == 5
    assert padded["a"].tolist() == [0, 1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 1, 2, 3, 4]


def test_concat_weighs_num_grad_updates_by_rows():
    batches = [SampleBatch(a=np.arange(n), _num_grad_updates=known) for n, known in [(1, 2.0), (3, 4.0), (9, None)]]
    assert concat_samples(batches).num_grad_updates == 3.5
    assert concat_samples(batches[2:]).num_grad_updates is None
    assert concat_samples([*batches, SampleBatch()]).num_grad_updates == 3.5


def test_concat_gives_columns_of_its_own():
    parts = [plain(2), plain(3)]
    joined = concat_samples(parts)
    joined["a"][:] = -1
    assert rows(parts[0]) == [0, 1]


def test_concat_of_time_major_batches_joins_the_batch_axis():
    joined = concat_samples([time_major(), time_major()])
    assert joined["a"].shape == (3, 4)
    assert joined["state_in"].shape == (4, 1)
    assert len(joined) == 10


def test_concat_with_a_multi_agent_batch_gives_one():
    joined = concat_samples([plain(2), MultiAgentBatch({"p": plain(3)}, 3)])
    assert isinstance(joined, MultiAgentBatch)
    assert joined.env_steps() == 5


# ---- slices ----


def test_slices_are_views():
    batch = plain()
    part = batch[2:5]
    assert rows(part) == [2, 3, 4]
    assert np.shares_memory(part["a"], batch["a"])
    assert np.shares_memory(part["obs"]["x"], batch["obs"]["x"])
    part["obs"]["y"][0] = 100
    assert batch["obs"]["y"][2] == 100
    assert rows(batch.slice(2, 5)) == [2, 3, 4]


def test_masks_and_indices_gather():
    batch = plain(4)
    assert rows(batch[np.array([True, False, True, False])]) == [0, 2]
    assert rows(batch[[3, 0, -1]]) == [3, 0, 3]
    assert batch[torch.tensor([1, 2])]["obs"]["y"].tolist() == [1, 2]
    assert rows(batch[[]]) == []


@pytest.mark.parametrize("pad", [False, True])
def test_slices_of_sequences_snap_to_whole_sequences(pad):
    batch = sequences((3, 1, 4))
    if pad:
        batch.right_zero_pad(4)
    for start, stop, expected in [
        (0, 4, [3, 1]),
        (3, 8, [1, 4]),
        (1, 3, [3]),  # from the sequence that holds row 1, up to the one that holds row 3
        (4, 5, []),
        (0, 1, []),
        (5, 99, [4]),
        (0, 8, [3, 1, 4]),
    ]:
        part = batch[start:stop]
        assert part["seq_lens"].tolist() == expected
        assert len(part) == sum(expected)
        assert len(part["state_in"]["h"]) == len(expected)
    assert batch[3:8].unpad()["a"].tolist() == [3, 4, 5, 6, 7]


def test_slice_with_a_step_takes_sequences_whose_first_row_it_names():
    batch = sequences((3, 1, 4))
    assert batch[0:8:4]["seq_lens"].tolist() == [3, 4]
    assert batch[::-1]["seq_lens"].tolist() == [4, 1, 3]


def test_slice_with_state_range_takes_these_sequences():
    batch = sequences((3, 1, 4))
    part = batch.slice(3, 8, 1, 3)
    assert rows(part) == [3, 4, 5, 6, 7]
    assert part["state_in"]["h"].tolist() == [10.0, 20.0]


def test_whole_sequences_can_be_picked():
    batch = sequences((3, 1, 4))
    picked = batch.take_sequences(np.array([2, 0]))
    assert rows(picked) == [4, 5, 6, 7, 0, 1, 2]
    assert picked["state_in"]["h"].tolist() == [20.0, 0.0]
    assert np.shares_memory(batch.take_sequences(slice(1, 3))["a"], batch["a"])


def test_time_major_slices_the_batch_axis():
    part = time_major()[3:5]
    assert part["a"].tolist() == [[3], [4], [-1]]
    assert part["state_in"].tolist() == [[6.0]]
    assert time_major().take_sequences(np.array([1, 0]))["a"][0].tolist() == [3, 0]


# ---- timeslices, split ----


def test_timeslices_of_ten_rows_by_three():
    batch = plain(10)
    assert [len(part) for part in batch.timeslices(3)] == [3, 3, 3, 1]
    assert [rows(part) for part in batch.timeslices(num_slices=3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [len(part) for part in batch.timeslices(num_slices=4)] == [2, 2, 3, 3]


def test_timeslices_of_sequences_take_whole_ones():
    assert [part["seq_lens"].tolist() for part in sequences((3, 1, 4, 2)).timeslices(2)] == [[3, 1], [4], [2]]


def test_split_gives_batches_of_a_size_shuffled_on_demand():
    batch = plain(10)
    assert [rows(part) for part in batch.split(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    mixed = [rows(part) for part in batch.split(4, shuffle=True, generator=0)]
    assert [len(part) for part in mixed] == [4, 4, 2]
    order = [row for part in mixed for row in part]
    assert sorted(order) == list(range(10))
    assert order != list(range(10))
    assert rows(batch) == list(range(10))


# ---- split_by_episode ----


def test_split_by_episode_uses_eps_id_first():
    batch = plain(5, eps_id=["x", "x", "y", "y", "x"], terminateds=[True] * 5)
    parts = batch.split_by_episode()
    assert [rows(part) for part in parts] == [[0, 1], [2, 3], [4]]
    assert np.shares_memory(parts[1]["a"], batch["a"])


def test_split_by_episode_uses_a_key_or_the_flags():
    batch = plain(5, terminateds=[False, True, False, False, False], truncateds=[False, False, False, True, False])
    assert [rows(part) for part in batch.split_by_episode()] == [[0, 1], [2, 3], [4]]
    batch["env_id"] = [0, 0, 0, 1, 1]
    assert [rows(part) for part in batch.split_by_episode("env_id")] == [[0, 1, 2], [3, 4]]
    assert [rows(p) for p in plain(3, dones=[True, False, True]).split_by_episode()] == [[0], [1, 2]]


@pytest.mark.parametrize("key", ["dones", "terminateds", "truncateds"])
@pytest.mark.parametrize("as_column", [np.array, torch.tensor])
def test_split_by_episode_by_a_flag_cuts_after_each_row_that_has_it(key, as_column):
    batch = plain(7, **{key: as_column([False, False, False, True, False, True, False])})
    assert [rows(part) for part in batch.split_by_episode(key=key)] == [[0, 1, 2, 3], [4, 5], [6]]
    assert [rows(part) for part in batch.split_by_episode()] == [[0, 1, 2, 3], [4, 5], [6]]
    assert [rows(part) for part in plain(3, **{key: as_column([1, 1, 0])}).split_by_episode(key)] == [[0], [1], [2]]
    whole_sequences = sequences((3, 1, 4))
    whole_sequences[key] = as_column([0, 0, 1, 1, 0, 0, 0, 1])
    assert [part["seq_lens"].tolist() for part in whole_sequences.split_by_episode(key)] == [[3], [1], [4]]


@pytest.mark.parametrize("dtype", [np.int64, np.float32, "U2", "U3", "S8", object, torch.Tensor])
def test_split_by_episode_takes_ids_of_every_kind(dtype):
    ids = np.array([10, 10, 11, 11, 11, 21, 10])
    column = torch.from_numpy(ids) if dtype is torch.Tensor else ids.astype(dtype)
    parts = SampleBatch(a=np.arange(7), eps_id=column).split_by_episode()
    assert [rows(part) for part in parts] == [[0, 1], [2, 3, 4], [5], [6]]
    twice = SampleBatch(a=np.arange(14), eps_id=np.repeat(ids, 2).astype(str)[::1])[::2]
    assert [len(part) for part in twice.split_by_episode()] == [2, 3, 1, 1]


def test_split_by_episode_reads_like_a_list_of_the_batch_as_it_was():
    batch = plain(6, eps_id=[0, 0, 1, 2, 2, 2])
    parts = batch.split_by_episode()
    batch["a"] = np.zeros(6)
    assert len(parts) == 3
    assert rows(parts[-1]) == [3, 4, 5]
    assert [rows(part) for part in parts[1:]] == [[2], [3, 4, 5]]
    assert rows(concat_samples(parts)) == list(range(6))
    assert repr(parts) == "Pieces(3)"
    assert SampleBatch().split_by_episode() == []


def test_split_by_episode_keeps_whole_sequences():
    batch = sequences((3, 1, 4))
    batch["eps_id"] = [0, 0, 0, 0, 1, 1, 1, 1]
    parts = batch.split_by_episode()
    assert [part["seq_lens"].tolist() for part in parts] == [[3, 1], [4]]
    with_empty = SampleBatch(a=[0, 1], eps_id=[0, 1], seq_lens=[1, 1, 0], state_in=[5.0, 6.0, 7.0])
    assert [part["state_in"].tolist() for part in with_empty.split_by_episode()] == [[5.0], [6.0, 7.0]]


# ---- shuffle ----


def test_shuffle_is_in_place_and_a_function_of_the_seed():
    batch = plain(20)
    assert batch.shuffle(np.random.default_rng(1)) is batch
    assert rows(batch) == rows(plain(20).shuffle(1)) != list(range(20))
    assert sequences((3, 1, 4, 2, 5)).shuffle(3)["seq_lens"].tolist() != [3, 1, 4, 2, 5]


# ---- padding ----


def test_right_zero_pad_fills_each_sequence_and_keeps_len():
    batch = sequences((3, 1))
    assert batch.right_zero_pad(4) is batch
    assert batch["a"].tolist() == [0, 1, 2, 0, 3, 0, 0, 0]
    assert batch.zero_padded
    assert batch.max_seq_len == 4
    assert len(batch) == 4
    assert batch["state_in"]["h"].tolist() == [0.0, 10.0]
    assert batch["infos"][3] is None
    assert batch.unpad() is batch
    assert rows(batch) == [0, 1, 2, 3]
    assert not batch.zero_padded


def test_right_zero_pad_can_spread_states():
    batch = sequences((3, 1)).right_zero_pad(3, exclude_states=False)
    assert batch["state_in"]["h"].tolist() == [0.0, 0.0, 0.0, 10.0, 0.0, 0.0]
    assert batch[3:4]["state_in"]["h"].tolist() == [10.0, 0.0, 0.0]
    assert batch.unpad()["state_in"]["h"].tolist() == [0.0, 10.0]


def test_padding_can_be_widened_and_torch_is_padded_too():
    batch = SampleBatch(a=torch.arange(4), seq_lens=[3, 1]).right_zero_pad(3).right_zero_pad(4)
    assert batch["a"].tolist() == [0, 1, 2, 0, 3, 0, 0, 0]


def test_time_major_batches_have_a_length_and_unpad():
    batch = time_major()
    assert len(batch) == 5
    assert rows(batch.unpad()) == [0, 1, 2, 3, 4]
    assert not batch.time_major
    assert len(SampleBatch(a=np.zeros((4, 3)), _time_major=True)) == 12
