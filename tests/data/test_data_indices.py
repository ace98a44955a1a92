"""Cutting time-major data into sequences: every row once, in order, across no start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data.indices import cut_into_sequences


@settings(max_examples=80, deadline=None)
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


def test_sequences_have_at_least_one_row():
    with pytest.raises(ValueError, match="max_seq_len=0"):
        cut_into_sequences(np.zeros((2, 2), bool), 0)
