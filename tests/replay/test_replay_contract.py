"""Replay buffers: each line of section 5 of the trainers' contract."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_tools import check_counting, fill_from_counting, rows

from lockstep.data import SampleBatch
from lockstep.data.trees import named_leaves
from lockstep.replay import (
    HERReplayBuffer,
    HERVectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)

# ---- the schema ----------------------------------------------------------------------------------------


def test_schema_comes_from_the_first_rows():
    buffer = VectorReplayBuffer(20, 2)
    assert buffer.schema == {}
    buffer.add({**rows(2), "logp": np.zeros((2, 3), np.float64)})
    found = {name: (shape.shape, shape.dtype.name) for name, shape in buffer.schema.items()}
    assert found == {
        "obs": ((4,), "float32"),
        "actions": ((), "int64"),
        "rewards": ((), "float32"),
        "logp": ((3,), "float64"),
        "new_obs": ((4,), "float32"),
    }
    assert buffer.nbytes() == 20 * (16 + 8 + 4 + 24 + 16)


def test_schema_comes_from_the_spaces():
    observation_space = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float32), "b": spaces.Discrete(3)})
    buffer = ReplayBuffer(5, observation_space=observation_space, action_space=spaces.Box(-1, 1, (2,), np.float64))
    assert buffer.schema["obs"]["a"].shape == (2,)
    assert buffer.schema["obs"]["b"].dtype == np.int64
    assert buffer.schema["actions"].dtype == np.float64
    with pytest.raises(ValueError, match=r"column 'obs/a' expects shape \(1, 2\) of float32.*got shape \(1, 3\)"):
        buffer.add({**rows(1), "actions": np.zeros((1, 2)), **{
            name: {"a": np.zeros((1, 3), np.float32), "b": np.zeros(1, np.int64)} for name in ("obs", "new_obs")
        }})  # fmt: skip
    with pytest.raises(ValueError, match="no fixed shape"):
        ReplayBuffer(5, observation_space=spaces.Text(3), action_space=spaces.Discrete(2))
    with pytest.raises(ValueError, match="give both"):
        ReplayBuffer(5, observation_space=spaces.Discrete(2))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("obs", np.zeros((2, 3), np.float32), r"expects shape \(2, 4\) of float32.*got shape \(2, 3\) of float32"),
        ("obs", np.zeros((3, 4), np.float32), r"expects shape \(2, 4\).*got shape \(3, 4\)"),
        ("obs", np.zeros((4, 2), np.float32), r"got shape \(4, 2\)"),  # as many bytes
        ("obs", np.zeros((2, 2, 2), np.float32), r"got shape \(2, 2, 2\)"),
        ("obs", np.zeros((2, 4), complex), r"of float32.*got shape \(2, 4\) of complex128"),
        ("actions", np.zeros(2), r"expects shape \(2,\) of int64.*got shape \(2,\) of float64"),
        ("actions", np.zeros((2, 1), np.int64), r"got shape \(2, 1\)"),
        ("rewards", np.zeros((2, 1), np.float32), r"expects shape \(2,\).*got shape \(2, 1\)"),
        ("rewards", np.zeros((1, 2), np.float32), r"got shape \(1, 2\)"),
        ("terminateds", np.zeros((2, 2), bool), r"expects shape \(2,\) of bool"),
        ("truncateds", np.zeros((2, 1), bool), r"expects shape \(2,\) of bool"),
        ("new_obs", {"a": np.zeros((2, 4))}, "expects .* got dict"),
        ("new_obs", np.zeros((2, 2), np.complex64), "of float32.*of complex64"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_row_that_does_not_fit_is_refused_with_field_shape_and_dtype(name, value, message, shared):
    buffer = VectorReplayBuffer(20, 2, ignore_obs_next=shared)
    buffer.add(rows(2))
    before = buffer.get_state()
    with pytest.raises(ValueError, match=f"'{name}' .*{message}"):
        buffer.add({**rows(2, 1), name: value})
    pairs = zip(named_leaves("", before), named_leaves("", buffer.get_state()), strict=True)
    for (path, kept), (_, found) in pairs:
        np.testing.assert_array_equal(found, kept, err_msg=path)


def test_missing_and_unknown_columns_are_named():
    buffer = ReplayBuffer(5)
    with pytest.raises(KeyError, match="'new_obs' is missing"):
        buffer.add({name: column for name, column in rows(1).items() if name != "new_obs"})
    with pytest.raises(ValueError, match="'weights' is one that drawing adds"):
        buffer.add({**rows(1), "weights": np.ones(1)})
    with pytest.raises(TypeError, match="numbers only"):
        buffer.add({**rows(1), "infos": np.array([{}], object)})
    buffer.add(rows(1))
    with pytest.raises(KeyError, match=r"missing: \['rewards'\], unknown: \['reward'\]"):
        buffer.add({**{n: c for n, c in rows(1).items() if n != "rewards"}, "reward": np.ones(1)})


def test_lists_tensors_and_narrower_types_fit():
    buffer = ReplayBuffer(5)
    buffer.add(rows(1))
    buffer.add({
        "obs": torch.ones(1, 4), "actions": [1], "rewards": [2], "terminateds": [0], "truncateds": torch.ones(1).bool(),
        "new_obs": np.ones((1, 4)),
    })  # fmt: skip
    last = buffer[[1]]
    assert (last["rewards"], last["truncateds"], last["terminateds"]) == (2, True, False)


# ---- adding --------------------------------------------------------------------------------------------


def test_add_takes_a_vector_step_and_returns_index_return_length_and_start():
    buffer = VectorReplayBuffer(12, 3)
    buffer.add(rows(3, 0))
    indices, returns, lengths, starts = buffer.add(rows(3, 10, ends=["terminated", "", "truncated"]))
    assert indices.tolist() == [3, 4, 5]
    assert returns.tolist() == [10, 0, 14]
    assert lengths.tolist() == [2, 0, 2]
    assert starts.tolist() == [0, 1, 2]
    indices, returns, lengths, starts = buffer.add(rows(2, 20, ends=["terminated", "terminated"]), buffer_ids=[2, 1])
    assert indices.tolist() == [8, 7]
    assert returns.tolist() == [20, 33]
    assert lengths.tolist() == [1, 3]
    assert starts.tolist() == [8, 1]


def test_returns_are_true_for_episodes_longer_than_the_buffer():
    buffer = ReplayBuffer(4)
    for step in range(9):
        placed = buffer.add(rows(1, step))
        assert placed.episode_start == (0 if step < 4 else -1)
    placed = buffer.add(rows(1, 9, ends=["terminated"]))
    assert (placed.episode_return, placed.episode_length, placed.episode_start) == (45, 10, -1)


def test_rewards_of_several_agents_give_a_return_for_each():
    buffer = VectorReplayBuffer(8, 2, n_step=2, gamma=0.5)
    for ends in (["", ""], ["terminated", ""]):
        placed = buffer.add({**rows(2, ends=ends), "rewards": np.array([[1, 2], [3, 4]], np.float32)})
    assert placed.episode_return.tolist() == [[2, 4], [0, 0]]
    assert buffer[[0, 1]]["rewards"].tolist() == [[1.5, 3], [4.5, 6]]


def test_wrong_sub_buffers_are_refused():
    buffer = VectorReplayBuffer(12, 3)
    for wrong in ([0, 0], [3], [-1], [0.5], [[0]]):
        with pytest.raises(ValueError, match="buffer_ids"):
            buffer.add(rows(1), wrong)
    assert len(buffer) == 0


# ---- drawing -------------------------------------------------------------------------------------------


def test_sample_has_the_columns_of_transitions():
    buffer = fill_from_counting(VectorReplayBuffer(40, 4), 9)
    batch = buffer.sample(16)
    assert isinstance(batch, SampleBatch)
    assert len(batch) == 16
    assert set(batch) == {"obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "batch_indexes"}
    check_counting(buffer, batch)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, None])
def test_sample_takes_n_of_at_least_one(n):
    buffer = ReplayBuffer(4)
    buffer.add(rows(1))
    for draw in (buffer.sample, buffer.sample_indices):
        with pytest.raises(ValueError, match=r"at least 1 \(all\(\) gives everything\)"):
            draw(n)


def test_an_empty_buffer_says_so():
    for draw in (lambda b: b.sample(1), lambda b: b.sample_indices(1), lambda b: b.permutation()):
        with pytest.raises(ValueError, match="empty"):
            draw(ReplayBuffer(4))
    assert len(ReplayBuffer(4)) == 0


def test_all_and_permutation_have_every_row_once():
    buffer = fill_from_counting(VectorReplayBuffer(24, 3), 13)
    assert len(buffer) == 24
    batch = buffer.all()
    check_counting(buffer, batch)
    assert sorted(batch["batch_indexes"].tolist()) == list(range(24))
    first, second = buffer.permutation(), buffer.permutation()
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(24))
    assert first.tolist() != second.tolist()


def test_next_and_prev_stop_at_episode_ends_and_at_the_write_position():
    buffer = ReplayBuffer(6)
    for step, end in enumerate(["", "", "terminated", "", "", "", "", ""]):
        buffer.add(rows(1, step, ends=[end]))
    # positions hold steps 6 7 | 2! 3 4 5; the newest is 1, the oldest 2
    assert buffer.next([2, 3, 4, 5, 0, 1]).tolist() == [2, 4, 5, 0, 1, 1]
    assert buffer.prev([2, 3, 4, 5, 0, 1]).tolist() == [2, 3, 3, 4, 5, 0]
    assert buffer.unfinished_index().tolist() == [1]
    buffer.cut()
    assert buffer.unfinished_index().tolist() == []
    with pytest.raises(IndexError, match=r"0 \.\. 5, got 6"):
        buffer.next(6)
    with pytest.raises(IndexError, match="no transition"):
        fill_from_counting(ReplayBuffer(6), 2).prev(4)


def test_next_prev_and_reading_take_negative_indices_as_an_array_does():
    buffer = fill_from_counting(ReplayBuffer(6), 4)
    assert buffer.prev(-1).tolist() == buffer.prev(3).tolist() == [2]
    assert buffer.next([-4, -2, 0]).tolist() == buffer.next([0, 2, 0]).tolist() == [1, 3, 1]
    np.testing.assert_array_equal(buffer[[-1, 1]]["obs"], buffer[[3, 1]]["obs"])
    for index in (-5, [0, -5], 4, 6):
        with pytest.raises(IndexError):
            buffer.prev(index)
    full = ReplayBuffer(6)
    for step in range(8):
        full.add(rows(1, step))
    assert full.prev([-1, -6]).tolist() == full.prev([5, 0]).tolist() == [4, 5]
    with pytest.raises(IndexError, match="index -7 is out of range: 6 rows"):
        full.next(-7)
    vector = VectorReplayBuffer(12, 2)
    for step in range(3):
        vector.add(SampleBatch(rows(2, step)))
    assert vector.prev([-1, -2]).tolist() == vector.prev([5, 4]).tolist() == [3, 2]
    with pytest.raises(IndexError, match="index -1 is out of range: 0 rows"):
        ReplayBuffer(6).prev(-1)


def test_a_256_sample_from_8_sub_buffers_hits_about_226_distinct_offsets():
    """Sub-buffers draw independently: 1000 * (1 - (1 - 1/1000)**256) = 226.0."""
    for cls, options in ((VectorReplayBuffer, {}), (PrioritizedVectorReplayBuffer, {"alpha": 0.5})):
        buffer = cls(8000, 8, **options)
        for step in range(1000):
            buffer.add(rows(8, step))
        distinct = [len(set((buffer.sample_indices(256) // 8).tolist())) for _ in range(200)]
        assert 223 < np.mean(distinct) < 230
        shares = np.bincount(np.concatenate([buffer.sample_indices(256) % 8 for _ in range(200)]), minlength=8)
        np.testing.assert_allclose(shares / shares.sum(), 1 / 8, atol=0.01)


def test_every_row_is_equally_likely_with_unequal_sub_buffers():
    buffer = VectorReplayBuffer(30, 3)
    for step in range(12):
        buffer.add(rows(1, step), [0])
    for step in range(3):
        buffer.add(rows(1, step), [2])
    counts = np.bincount(buffer.sample_indices(26_000), minlength=30)
    stored = buffer.indices()
    assert len(stored) == 13
    assert counts.sum() == counts[stored].sum()
    np.testing.assert_allclose(counts[stored], 2000, rtol=0.12)


def test_one_seed_one_sequence_of_draws():
    def drawn(seed):
        buffer = fill_from_counting(VectorReplayBuffer(40, 4, seed=seed), 9)
        return buffer.sample_indices(50).tolist() + buffer.permutation().tolist()

    assert drawn(3) == drawn(3) != drawn(4)


# ---- boundaries ----------------------------------------------------------------------------------------


def test_a_reset_within_an_episode_writes_a_boundary_that_nothing_crosses():
    for shared in (False, True):
        buffer = ReplayBuffer(10, n_step=3, stack_num=3, gamma=0.5, ignore_obs_next=shared)
        for step in range(3):
            buffer.add(rows(1, step))
        buffer.cut()
        for step in range(20, 23):
            placed = buffer.add(rows(1, step, ends=["terminated" if step == 22 else ""]))
        assert (placed.episode_return, placed.episode_length, placed.episode_start) == (63, 3, 3)
        before, after = buffer[[1]], buffer[[3]]
        assert before["rewards"] == 1 + 0.5 * 2
        assert before["discounts"] == 0.25
        assert not before["terminateds"]
        assert not before["truncateds"]
        assert before["new_obs"][0, :, 0].tolist() == [1, 2, 3]
        assert after["obs"][0, :, 0].tolist() == [20, 20, 20]


def test_rows_that_do_not_follow_each_other_are_different_episodes():
    buffer = ReplayBuffer(10, ignore_obs_next=True)
    for step in (0, 1, 7, 8):
        buffer.add(rows(1, step))
    assert buffer.all()["new_obs"][:, 0].tolist() == [1, 2, 8, 9]
    assert buffer.next([0, 1, 2, 3]).tolist() == [1, 1, 3, 3]


def test_terminated_and_truncated_stay_apart_and_next_obs_is_true():
    for shared in (False, True):
        buffer = fill_from_counting(ReplayBuffer(30, ignore_obs_next=shared), 30)
        batch = buffer.all()
        check_counting(buffer, batch)
        assert batch["terminateds"].sum() > 3
        assert (batch["truncateds"] & ~batch["terminateds"]).sum() > 2
        assert (batch["truncateds"] & batch["terminateds"]).sum() > 0


# ---- every buffer --------------------------------------------------------------------------------------

KINDS = {
    "uniform": lambda **o: ReplayBuffer(23, **o),
    "vector": lambda **o: VectorReplayBuffer(48, 3, **o),
    "prioritized": lambda **o: PrioritizedReplayBuffer(23, **o),
    "prioritized_vector": lambda **o: PrioritizedVectorReplayBuffer(48, 3, **o),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_every_combination_of_replay_options_gives_the_true_transitions(kind, n_step, stack, shared, tmp_path):
    storage = {"storage": "memmap", "directory": tmp_path} if n_step != stack else {}
    buffer = KINDS[kind](n_step=n_step, stack_num=stack, ignore_obs_next=shared, **storage)
    fill_from_counting(buffer, 40, cut_at=(11, 29), random_rows=shared)
    check_counting(buffer, buffer.all())
    batch = buffer.sample(64)
    check_counting(buffer, batch)
    if kind.startswith("prioritized"):
        assert batch["weights"].max() == 1
        buffer.update_weight(batch["batch_indexes"], np.arange(64) % 7)
        check_counting(buffer, buffer.sample(64))


def reach(achieved, desired, info):
    return -(np.abs(achieved - desired).sum(-1) > 0).astype(np.float64)


REFUSED = [
    ({"size": 0}, "size=0"),
    ({"stack_num": 0}, "stack_num=0 is not allowed"),
    ({"n_step": 1.5}, "n_step=1.5 is not allowed"),
    ({"gamma": "high"}, "gamma='high' is not allowed"),
    ({"gamma": 1.1}, r"gamma=1.1 .* \[0, 1\]"),
    ({"storage": "disk"}, "storage='disk'.*'memory', 'memmap'"),
    ({"directory": "x"}, "for storage='memmap' only"),
    ({"sample_avail": True}, "stack_num of at least 2"),
    *(({name: 1, "stack_num": 2}, f"{name}=1") for name in ("ignore_obs_next", "save_only_last_obs", "sample_avail")),
    ({"size": 2, "buffer_num": 3}, "size=2 is less than one row for each of buffer_num=3"),
    *(
        ({"priorities": {name: value}}, re.escape(f"{name}={value!r} is not allowed; it must be "))
        for name, value in (
            ("alpha", -0.1), ("alpha", "high"), ("epsilon", 0), ("epsilon", None), ("beta", -0.4),
            ("beta", [[0, 0.4], [9, -1]]),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [ReplayBuffer, partial(VectorReplayBuffer, buffer_num=2), partial(HERReplayBuffer, compute_reward=reach)]
)
@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_options_that_are_not_allowed_are_refused(kind, options, words):
    given = {"size": 10, **options}
    with pytest.raises(ValueError, match=words):
        kind(given.pop("size"), **given)


def test_all_six_names_are_one_class_with_its_parts_chosen():
    for made in (
        VectorReplayBuffer(10, 2),
        PrioritizedReplayBuffer(10),
        PrioritizedVectorReplayBuffer(10, 2),
        HERReplayBuffer(10, reach),
        HERVectorReplayBuffer(10, 2, reach),
    ):
        assert type(made).__mro__[1] is ReplayBuffer
        assert made.maxsize == 10
    assert VectorReplayBuffer(10, 3).maxsize == 12


@pytest.mark.parametrize("num_rows", [1, 2, 9])
def test_rows_that_were_never_neighbours_keep_their_own_next_observations(num_rows):
    """As of a data set whose rows were shuffled or picked: each begins where the row before did not lead to."""
    buffer = ReplayBuffer(12, ignore_obs_next=True)
    begins = np.array([10, 11, 30, 40, 41, 42, 60, 70, 80], np.float32)[:num_rows]
    for number in range(2):
        obs = np.repeat(begins[:, None] + 100 * number, 2, 1)
        done = np.zeros(num_rows, bool)
        batch = SampleBatch(obs=obs, new_obs=obs + 1, actions=np.zeros(num_rows, np.int64), rewards=done * 1.0)
        index = buffer.extend(SampleBatch({**batch, "terminateds": done, "truncateds": done}))
        found = buffer[index]
        np.testing.assert_array_equal(found["obs"], obs)
        np.testing.assert_array_equal(found["new_obs"], obs + 1)
        goes_on = np.append(begins[1:] == begins[:-1] + 1, False)
        np.testing.assert_array_equal(buffer.next(index) != index, goes_on)
