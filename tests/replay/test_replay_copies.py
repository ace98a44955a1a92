"""Copies of whole buffers: `copy.deepcopy`, `copy.copy`, and between processes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from replay_tools import fill_from_counting
from test_replay_files import OPTIONS, go_on, tree_equal
from test_replay_hindsight import fill, reach

from lockstep.replay import HERVectorReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

COPIES = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", [*OPTIONS, "memmap"])
def test_a_copy_is_complete_and_shares_no_memory(kind, how):
    options = {**OPTIONS, "memmap": {"storage": "memmap"}}[kind]
    buffer = fill_from_counting(VectorReplayBuffer(40, 4, **options), 17)
    before = buffer.get_state()
    twin = COPIES[how](buffer)
    assert type(twin) is VectorReplayBuffer
    assert twin.options == buffer.options
    tree_equal(twin.get_state(), before)
    fill_from_counting(twin, 9, seed=1, cut_at=(0,))
    go_on(twin)
    tree_equal(buffer.get_state(), before)  # nothing that the copy does is seen here
    later = copy.deepcopy(buffer)
    for one in (buffer, later):
        fill_from_counting(one, 9, seed=1, cut_at=(0,))
    tree_equal(go_on(later), go_on(buffer))


def test_a_copy_keeps_its_goals_and_an_empty_one_its_options():
    buffer = fill(HERVectorReplayBuffer(60, 2, reach, n_step=2, seed=4), 25)
    twin = copy.deepcopy(buffer)
    assert twin.hindsight.compute_reward is reach
    tree_equal(dict(twin.sample(30)), dict(buffer.sample(30)))
    empty = copy.deepcopy(PrioritizedVectorReplayBuffer(10, 2, alpha=0.3, beta=0.9, n_step=3))
    assert (len(empty), empty.options.n_step, empty.priorities.alpha, empty.priorities.beta(0)) == (0, 3, 0.3, 0.9)


class Named(ReplayBuffer):
    def __init__(self, name):
        super().__init__(10)
        self.name, self.notes = name, [1]


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_a_subclass_keeps_what_the_subclass_added(how):
    named = Named("mine")
    twin = COPIES[how](named)
    twin.notes.append(2)
    assert (type(twin), twin.name, named.notes) == (Named, "mine", [1])


def test_one_buffer_in_two_places_is_one_buffer_in_the_copy():
    buffer = fill_from_counting(ReplayBuffer(10), 5)
    first, second = copy.deepcopy([buffer, buffer])
    assert first is second
    assert first is not buffer
    np.testing.assert_array_equal(first.all()["obs"], buffer.all()["obs"])
