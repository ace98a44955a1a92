"""Contract, section 6 and learner section 2: minibatches, shards and sequences."""

import numpy as np
import pytest
from episode_makers import given as make_episode
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import examples

from lockstep.data import (
    MiniBatchIterator,
    MultiAgentBatch,
    SampleBatch,
    minibatch_indices,
    multi_minibatch_indices,
    shard_batch,
    shard_episodes,
)
from lockstep.data.indices import cut_into_sequences


def lists(indices):
    return [index.tolist() for index in indices]


def test_a_small_batch_is_one_minibatch_and_none_means_the_whole():
    assert lists(minibatch_indices(3, 8, 2)) == [[0, 1, 2], [0, 1, 2]]
    rng = np.random.default_rng(0)
    assert lists(minibatch_indices(4, None, 2, shuffle=True, rng=rng)) == [[0, 1, 2, 3]] * 2
    assert lists(minibatch_indices(0, 4, 2)) == []


def test_shuffling_draws_one_permutation_for_each_pass_the_first_included():
    got = list(minibatch_indices(7, 3, 2, shuffle=True, rng=np.random.default_rng(5)))
    rng = np.random.default_rng(5)
    for number in range(2):
        order = rng.permutation(7)
        np.testing.assert_array_equal(got[2 * number], order[:3])
        np.testing.assert_array_equal(got[2 * number + 1], order[3:6])


@settings(deadline=None)
@given(rows=st.integers(1, 40), size=st.integers(1, 45), epochs=st.integers(1, 5))
def test_unshuffled_rows_are_visited_in_turn(rows, size, epochs):
    got = [row for index in minibatch_indices(rows, size, epochs) for row in index.tolist()]
    assert got == [i % rows for i in range(len(got))]
    sizes = [len(index) for index in minibatch_indices(rows, size, epochs)]
    assert sizes == [min(size, rows)] * (epochs * (rows // min(size, rows)))


@settings(deadline=None)
@given(
    sizes=st.dictionaries(st.sampled_from("abc"), st.integers(0, 30), min_size=1),
    size=st.integers(1, 30),
    epochs=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_modules_share_minibatches_in_proportion(sizes, size, epochs, shuffle):
    largest = max(sizes.values())
    got = list(multi_minibatch_indices(sizes, size, epochs, shuffle, np.random.default_rng(0)))
    if not largest:
        assert got == []
        return
    size = min(size, largest)
    assert len(got) == epochs * (largest // size)
    for key, rows in sizes.items():
        pieces = [index.get(key, np.empty(0, np.int64)) for index in got]
        for piece in pieces:
            assert abs(len(piece) - size * rows / largest) < 1
            assert len(set(piece.tolist())) == len(piece)
        visits = np.bincount(np.concatenate(pieces), minlength=rows)
        assert len(visits) == rows
        if largest % size == 0:
            assert (visits == epochs).all()
        elif rows and not shuffle:
            assert visits.max() - visits.min() <= 1


def test_iterator_over_a_sample_batch_gives_views_or_gathers():
    batch = SampleBatch(a=np.arange(5))
    got = list(MiniBatchIterator(batch, minibatch_size=2, num_epochs=2))
    assert [part["a"].tolist() for part in got] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert np.shares_memory(got[0]["a"], batch["a"])
    shuffled = MiniBatchIterator(batch, minibatch_size=5, shuffle_batch_per_epoch=True, rng=np.random.default_rng(0))
    assert sorted(next(iter(shuffled))["a"].tolist()) == [0, 1, 2, 3, 4]


def test_iterator_never_takes_a_permutation_for_a_run_of_rows():
    class Fixed:
        def permutation(self, rows):
            return np.array([0, 3, 1, 3])[:rows]

    batch = SampleBatch(a=np.arange(4))
    iterator = MiniBatchIterator(batch, minibatch_size=4, shuffle_batch_per_epoch=True, rng=Fixed())
    assert next(iter(iterator))["a"].tolist() == [0, 3, 1, 3]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_iterator_counts_sequences_where_there_are_any(kind):
    batch = SampleBatch(a=np.arange(6), seq_lens=[1, 2, 3], state_in=np.arange(3.0))
    batch = batch.to_torch() if kind == "torch" else batch
    got = list(MiniBatchIterator(batch, minibatch_size=2, num_epochs=2))
    assert [part["a"].tolist() for part in got] == [[0, 1, 2], [3, 4, 5, 0]]
    assert [part["state_in"].tolist() for part in got] == [[0.0, 1.0], [2.0, 0.0]]


def test_iterator_over_modules_keeps_their_proportion():
    batch = MultiAgentBatch({"p": SampleBatch(a=np.arange(8)), "q": SampleBatch(a=np.arange(4)), "e": SampleBatch()}, 8)
    got = list(MiniBatchIterator(batch, minibatch_size=4))
    assert [{key: part[key]["a"].tolist() for key in part} for part in got] == [
        {"p": [0, 1, 2, 3], "q": [0, 1]},
        {"p": [4, 5, 6, 7], "q": [2, 3]},
    ]
    assert [part.env_steps() for part in got] == [4, 4]


# ---- shards ----


def test_shard_batch_cuts_between_sequences_and_module_by_module():
    batch = SampleBatch(a=np.arange(6), seq_lens=[1, 2, 3])
    assert [part["seq_lens"].tolist() for part in shard_batch(batch, 2)] == [[1], [2, 3]]
    whole = MultiAgentBatch({"p": SampleBatch(a=np.arange(5)), "q": SampleBatch(a=np.arange(2))}, 5)
    parts = shard_batch(whole, 2)
    assert [(part.env_steps(), len(part["p"]), len(part["q"])) for part in parts] == [(2, 2, 1), (3, 3, 1)]


def test_shard_episodes_of_the_contract_gives_59_59_60():
    episodes = [make_episode(length) for length in (10, 21, 3, 4, 35, 41, 5, 15, 44)]
    shards = shard_episodes(episodes, 3)
    assert [sum(len(piece) for piece in shard) for shard in shards] == [59, 59, 60]


def test_shard_episodes_cuts_a_long_episode_and_keeps_its_lookback():
    whole = make_episode(10, 3, t_started=7)
    (first,), (second,) = shard_episodes([whole], 2)
    assert (first.t_started, first.t, first.len_lookback_buffer) == (7, 12, 3)
    assert (second.t_started, second.t, second.len_lookback_buffer) == (12, 17, 3)
    assert second.get_actions(slice(-3, 0), neg_index_as_lookback=True).tolist() == [5, 6, 7]
    assert np.shares_memory(second.get_actions(), whole.get_actions())
    assert [second.len_lookback_buffer for _, (second,) in [shard_episodes([whole], 2, 1)]] == [1]


def test_shard_episodes_without_cutting_keeps_the_longest_first():
    episodes = [make_episode(length) for length in (9, 2, 7, 4, 1)]
    shards = shard_episodes(episodes, 2, cut=False)
    assert [[len(piece) for piece in shard] for shard in shards] == [[9, 2], [7, 4, 1]]
    assert {id(piece) for shard in shards for piece in shard} == {id(one) for one in episodes}
    assert [len(shard) for shard in shard_episodes(episodes[:1], 3, cut=False)].count(1) == 1


@examples(60)
@given(lengths=st.lists(st.integers(0, 30), max_size=12), shards=st.integers(1, 5))
def test_shard_episodes_keeps_every_step_once_and_changes_no_episode(lengths, shards):
    episodes = [make_episode(length) for length in lengths]
    for number, one in enumerate(episodes):
        one.id_ = f"{number}"
    before = [one.get_state() for one in episodes]
    parts = shard_episodes(episodes, shards)
    sizes = [sum(len(piece) for piece in part) for part in parts]
    assert sizes == sorted(sizes)
    assert max(sizes) - min(sizes) <= 1
    steps = sorted((piece.id_, t) for part in parts for piece in part for t in range(piece.t_started, piece.t))
    assert steps == sorted((one.id_, t) for one in episodes for t in range(len(one)))
    for one, state in zip(episodes, before):
        now = one.get_state()
        assert {key: str(value) for key, value in now.items()} == {key: str(value) for key, value in state.items()}


# ---- sequences ----


@examples(80)
@given(
    starts=st.integers(1, 9).flatmap(
        lambda t: st.integers(1, 4).flatmap(
            lambda b: st.lists(st.lists(st.booleans(), min_size=b, max_size=b), min_size=t, max_size=t)
        )
    ),
    max_seq_len=st.integers(1, 6),
)
def test_cut_into_sequences_and_back_is_identity(starts, max_seq_len):
    starts = np.array(starts)
    num_steps, num_columns = starts.shape
    first, lengths, number = cut_into_sequences(starts, max_seq_len)
    assert lengths.min() >= 1
    assert lengths.max() <= max_seq_len
    rows = [row + np.arange(length) * num_columns for row, length in zip(first, lengths)]
    together = np.concatenate(rows)
    assert sorted(together.tolist()) == list(range(starts.size))
    in_time = np.arange(starts.size).reshape(num_steps, num_columns).T.reshape(-1)
    assert np.array_equal(together, in_time)  # column by column, in the order of time
    flat = starts.reshape(-1)
    for k, sequence in enumerate(rows):
        assert not flat[sequence[1:]].any()
        assert len(set((sequence % num_columns).tolist())) == 1
        begins = flat[sequence[0]] or sequence[0] < num_columns
        assert (number[k] == 0) == begins
        if number[k]:
            assert lengths[k - 1] == max_seq_len
            assert rows[k - 1][-1] + num_columns == sequence[0]
