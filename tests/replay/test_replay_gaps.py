"""Rows of an episode that were left out: what comes after them lacks its earlier frames, whatever the buffer does."""

import numpy as np
import pytest
from replay_tools import rows

from lockstep.replay import VectorReplayBuffer


def buffer_of(**options):
    return VectorReplayBuffer(40, 2, stack_num=3, **options)


def add(buffer, *firsts):
    for first in firsts:
        buffer.add(rows(2, first))


def lost(buffer):
    """What is seen in rows that are stored and not drawn."""
    rows_left = np.setdiff1d(buffer.ring.in_order(), buffer.indices())
    return sorted(buffer.store.take("obs", rows_left)[:, 0].astype(int).tolist())


@pytest.mark.parametrize("shared", [False, True])
def test_rows_that_lack_frames_are_those_after_a_gap_and_a_cut_takes_it_back(shared):
    buffer = buffer_of(ignore_obs_next=shared)
    add(buffer, 0, 1)
    buffer.cut([0], goes_on=True)
    buffer.cut([1])
    add(buffer, 10, 11, 12)
    assert lost(buffer) == [10, 11]
    buffer.cut([0], goes_on=True)
    buffer.cut()
    add(buffer, 20, 21)
    assert lost(buffer) == [10, 11]


def test_an_emptied_buffer_knows_which_episodes_go_on():
    for keep, expected in ((True, [10, 11]), (False, [])):
        buffer = buffer_of()
        add(buffer, 0)
        buffer.cut([1])
        buffer.reset(keep_statistics=keep)
        buffer.reset(keep_statistics=keep)
        add(buffer, 10, 11, 12)
        assert lost(buffer) == expected


def test_a_gap_outlives_a_state_and_rows_dropped_before_it():
    buffer = buffer_of()
    add(buffer, 0, 1)
    with_nan = rows(2, 2)
    with_nan["rewards"][1] = np.nan
    buffer.add(with_nan)
    buffer.cut([0], goes_on=True)
    assert buffer.dropnull() == 1
    twin = buffer_of()
    twin.set_state(buffer.get_state())
    for one in (buffer, twin):
        add(one, 10, 11, 12)
        assert lost(one) == [10, 11, 11, 12]  # sub-buffer 1 sees one more; its newest row was dropped
