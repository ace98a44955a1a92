"""State, copies, files, joining, dropping, and taking in tables."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from replay_tools import EPISODES, check_counting, fill_from_counting, rows
from test_replay_hindsight import fill, reach
from test_replay_reference import Driver, check_everything

from lockstep.data import SampleBatch, concat_samples
from lockstep.envs.toys.counting import CountingEnv
from lockstep.replay import (
    HERReplayBuffer,
    HERVectorReplayBuffer,
    Hindsight,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from lockstep.state import CheckpointError, read_checkpoint, write_checkpoint


def tree_equal(left, right, where=""):
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert list(left) == list(right), where
        for name in left:
            tree_equal(left[name], right[name], f"{where}/{name}")
    elif isinstance(left, list | tuple):
        for k, (a, b) in enumerate(zip(left, right, strict=True)):
            tree_equal(a, b, f"{where}/{k}")
    else:
        np.testing.assert_array_equal(left, right, err_msg=where)


def go_on(buffer):
    """What a buffer gives and becomes when it is used further."""
    found = []
    for step in range(3):
        batch = buffer.sample(20)
        found += [dict(batch), buffer.permutation()]
        if buffer.priorities is not None:
            buffer.update_weight(batch["batch_indexes"], batch["rewards"] + step)
    buffer.add(rows(buffer.buffer_num, 90, obs_size=2))
    return {"found": found, "state": buffer.get_state()}


OPTIONS = {
    "uniform": {},
    "prioritized": {"priorities": {"alpha": 0.7, "beta": [[0, 0.4], [99, 1.0]]}},
    "n_step": {"n_step": 3, "ignore_obs_next": True},
    "stacked": {"stack_num": 3, "priorities": {}, "ignore_obs_next": True},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("num_steps", [0, 7, 40])
def test_states_and_saved_files_continue_bit_for_bit(kind, num_steps, tmp_path):
    def make(**more):
        return ReplayBuffer(48, buffer_num=3, seed=5, **OPTIONS[kind], **more)

    buffer = fill_from_counting(make(), num_steps, cut_at=(5,))
    if num_steps:
        drawn = buffer.sample(9)
        if buffer.priorities is not None:  # an error that stays the largest: new rows have its priority
            buffer.update_weight(drawn["batch_indexes"][:1], [1e3])
    restored, other = make(storage="memmap"), fill_from_counting(make(), 30)
    state = buffer.get_state()
    other.set_state(state) if num_steps else other
    restored.set_state(state)
    loaded = ReplayBuffer.load(buffer.save(tmp_path / "buffer"))
    write_checkpoint(tmp_path / "run", {"replay": state})
    write_checkpoint(tmp_path / "pieces", {"replay": buffer.checkpoint_state()})
    from_run, from_pieces = make(), make()
    from_run.set_state(read_checkpoint(tmp_path / "run")["replay"])
    from_pieces.set_state(read_checkpoint(tmp_path / "pieces")["replay"])
    if not num_steps:
        assert len(loaded) == len(from_run) == len(from_pieces) == 0
        return
    expected = go_on(buffer)
    for again in (restored, other, loaded, from_run, from_pieces):
        tree_equal(go_on(again), expected)


@examples(30)
@given(
    seed=st.integers(0, 2**31), size=st.integers(1, 12), num_buffers=st.integers(1, 3), length=st.integers(1, 5),
    steps=st.lists(st.integers(0, 14), min_size=2, max_size=4),
)  # fmt: skip
def test_a_checkpoint_in_pieces_writes_what_has_changed_and_links_the_rest(
    seed, size, num_buffers, length, steps, tmp_path_factory
):
    place = tmp_path_factory.mktemp("pieces")
    driver = Driver(seed, size, num_buffers)
    driver.add(np.arange(num_buffers))
    buffer = driver.buffer
    buffer._checkpoint_pieces.length = length
    files = {}
    for number, num_steps in enumerate(steps):
        driver.random_walk(num_steps, lambda driver: None)
        before = {name: np.array(piece["actions"]) for name, piece in files.items()}
        path = write_checkpoint(place / str(number), {"": buffer.checkpoint_state()})
        found = read_checkpoint(path)[""]
        again = ReplayBuffer(size * num_buffers, buffer_num=num_buffers)
        again.set_state(found)
        tree_equal(again.get_state(), buffer.get_state())
        files = {name: piece for name, piece in found.items() if name.startswith("rows_")}
        for name, piece in files.items():
            same_rows = name in before and np.array_equal(before[name], piece["actions"])
            linked = number > 0 and (path / f"{name}.safetensors").stat().st_nlink > 1
            assert linked <= same_rows
            if num_steps == 0 and number > 0:
                assert linked


@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_sub_buffers_of_a_loaded_buffer_share_its_memory_as_before(storage, tmp_path):
    buffer = fill_from_counting(VectorReplayBuffer(24, 3, seed=2), 13)
    loaded = VectorReplayBuffer.load(buffer.save(tmp_path / "saved"), storage=storage)
    for each in (buffer, loaded):
        assert each.add(rows(1, 70, obs_size=2), [1]).indices % 3 == 1
        each.add(rows(3, 80, obs_size=2))
        assert {70, 80, 81, 82} <= set(each.all()["obs"][:, 0].tolist())
    tree_equal(go_on(loaded), go_on(buffer))


def test_a_state_is_a_copy():
    buffer = fill_from_counting(ReplayBuffer(20), 9)
    state = buffer.get_state()
    before = state["columns"]["obs"].copy()
    fill_from_counting(buffer, 20, seed=1)
    np.testing.assert_array_equal(state["columns"]["obs"], before)


def test_a_state_of_another_buffer_is_refused():
    state = fill_from_counting(VectorReplayBuffer(20, 2), 9).get_state()
    with pytest.raises(
        ValueError, match=r"a buffer of size=20 with buffer_num=2, this one has size=20 with buffer_num=1; make it with"
    ):
        ReplayBuffer(20).set_state(state)
    with pytest.raises(ValueError, match=r"without priorities \(PrioritizedReplayBuffer\), this buffer with"):
        PrioritizedVectorReplayBuffer(20, 2).set_state(state)
    with pytest.raises(ValueError, match="without ignore_obs_next=True, this buffer with; make both the same"):
        VectorReplayBuffer(20, 2, ignore_obs_next=True).set_state(state)
    wider = VectorReplayBuffer(20, 2)
    wider.add(rows(2))
    with pytest.raises(ValueError, match="'obs' has rows of shape"):
        wider.set_state(state)


@pytest.mark.parametrize(
    "other",
    [
        {"actions": np.zeros(1, np.int32)},
        {"rewards": np.zeros(1)},
        {"extra": np.zeros(1)},
        {name: {"left": np.zeros((1, 4), np.float32)} for name in ("obs", "new_obs")},
    ],
    ids=list,
)
def test_a_state_with_other_columns_is_refused_and_changes_no_row(other):
    buffer, source = ReplayBuffer(20), ReplayBuffer(20)
    row = rows(1)
    row |= {name: {"right": row[name]} for name in ("obs", "new_obs")}
    for _ in range(5):
        buffer.add(row)
        source.add({**row, "actions": row["actions"] + 1, **other})
    before = buffer.get_state()
    with pytest.raises(ValueError, match=r"the state .*column"):
        buffer.set_state(source.get_state())
    tree_equal(buffer.get_state(), before)


def test_saved_files_are_safe_and_say_what_they_are(tmp_path):
    path = PrioritizedReplayBuffer(20).save(tmp_path / "empty")
    assert type(PrioritizedReplayBuffer.load(path)) is PrioritizedReplayBuffer
    with pytest.raises(ValueError, match="holds a PrioritizedReplayBuffer, not a VectorReplayBuffer"):
        VectorReplayBuffer.load(path)
    path = fill_from_counting(ReplayBuffer(20), 9).save(tmp_path / "full")
    assert not [file for file in path.iterdir() if file.suffix not in (".json", ".safetensors")]
    columns = path / "rows_00000.safetensors"
    columns.write_bytes(columns.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="rows_00000"):
        ReplayBuffer.load(path)
    other = write_checkpoint(tmp_path / "other", {"": {"a": 1}})
    with pytest.raises(CheckpointError, match="not of a replay buffer"):
        ReplayBuffer.load(other)


def test_functions_are_not_saved_and_must_be_given_to_load(tmp_path):
    path = fill(HERReplayBuffer(30, reach), 20).save(tmp_path / "her")
    with pytest.raises(ValueError, match="hindsight"):
        ReplayBuffer.load(path)
    assert len(HERReplayBuffer.load(path, hindsight=Hindsight(reach)).sample(5)) == 5
    path = PrioritizedReplayBuffer(30, beta=lambda step: 0.5).save(tmp_path / "beta")
    with pytest.raises(ValueError, match="beta was a function"):
        ReplayBuffer.load(path)
    assert ReplayBuffer.load(path, beta=0.7).priorities.beta(0) == 0.7


def test_memory_mapped_files_are_removed_with_their_buffer(tmp_path):
    kept = fill_from_counting(ReplayBuffer(20, storage="memmap", directory=tmp_path / "kept"), 9)
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == [
        "actions.bin", "new_obs.bin", "obs.bin", "rewards.bin",
    ]  # fmt: skip
    check_counting(kept, kept.sample(30))
    temporary = fill_from_counting(ReplayBuffer(20, storage="memmap"), 9)
    place = temporary.store.directory
    assert place.is_dir()
    del temporary
    assert not place.exists()


# ---- copies ----

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


# ---- other buffers -------------------------------------------------------------------------------------


@examples(40)
@given(
    seed=st.integers(0, 2**31), size=st.integers(1, 7), room=st.integers(1, 9), stack=st.integers(1, 3),
    shared=st.booleans(), other_shared=st.booleans(),
)  # fmt: skip
def test_update_copies_another_buffer_and_its_boundaries(seed, size, room, stack, shared, other_shared):
    source = Driver(seed, size, 2, stack_num=stack, ignore_obs_next=other_shared)
    target = Driver(seed + 1, room, 2, stack_num=stack, ignore_obs_next=shared)
    source.random_walk(20, lambda driver: None)
    target.random_walk(10, lambda driver: None)
    if not len(source.buffer):
        return
    index = target.buffer.update(source.buffer)
    assert len(index) == len(source.buffer)
    for b, slow_rows in enumerate(source.slow.rows):
        target.cut([b])
        begins = None
        for row in slow_rows:
            begins = row.history if begins is None else begins
            target.slow.add(b, row.obs, row.action, row.reward, row.new_obs, row.end)
            copied = target.slow.rows[b][-1]
            copied.history = row.history
        target.slow.cut(b)
    check_everything(target)


def test_update_with_itself_is_refused_and_other_columns_too():
    buffer = fill_from_counting(ReplayBuffer(20), 9)
    with pytest.raises(ValueError, match="with itself"):
        buffer.update(buffer)
    with pytest.raises(ValueError, match="another view of its rows"):
        buffer.update(buffer.with_whole_returns(0.9))
    other = ReplayBuffer(20)
    other.add(rows(1))
    with pytest.raises(ValueError, match="'obs' expects"):
        buffer.update(other)


@pytest.mark.parametrize("shared", [False, True])
def test_an_update_that_does_not_fit_writes_nothing(shared):
    """Not in the first rows, and not in the last: integers become flags where they are 0 or 1."""
    buffer = VectorReplayBuffer(40, 2, ignore_obs_next=shared)
    buffer.add({**rows(2), "marked": np.array([True, False])})  # an episode under way: no boundary may come into it
    before = buffer.get_state()
    for obs_size, last in ((3, 1), (4, 2)):
        other = ReplayBuffer(10)
        for mark in (0, 1, last):
            other.add({**rows(1, obs_size=obs_size), "marked": np.array([mark])})
        with pytest.raises(ValueError, match="'obs' expects" if obs_size == 3 else "'marked' expects"):
            buffer.update(other)
        tree_equal(buffer.get_state(), before)


def test_reset_keeps_statistics_on_request():
    for keep, expected in ((False, (10, 1)), (True, (13, 3))):
        buffer = ReplayBuffer(6)
        buffer.add(rows(1, 1))
        buffer.add(rows(1, 2))
        buffer.reset(keep_statistics=keep)
        assert len(buffer) == 0
        placed = buffer.add(rows(1, 10, ends=["terminated"]))
        assert (placed.episode_return, placed.episode_length) == expected
        assert placed.indices == 0


# ---- NaN -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
def test_dropnull_leaves_a_buffer_that_continues(shared, stack):
    buffer = VectorReplayBuffer(16, 2, ignore_obs_next=shared, stack_num=stack, n_step=2, gamma=0.5)
    for step in range(6):
        batch = rows(2, 10 * step)
        batch["new_obs"] = batch["obs"] + 10
        batch["rewards"][1] = np.nan if step == 3 else 1
        buffer.add(batch)
    assert buffer.hasnull()
    assert buffer.dropnull() == 1
    assert not buffer.hasnull()
    assert buffer.dropnull() == 0
    assert len(buffer) == 11
    lost = 2 if stack == 3 else 0  # rows after the dropped one have no whole stack
    assert len(buffer.indices()) == 11 - lost
    batch = buffer.to_batch()
    assert batch["obs"][:, 0].tolist() == [0, 10, 20, 30, 40, 50, 1, 11, 21, 41, 51]
    assert batch["eps_id"].tolist() == [0] * 6 + [1] * 3 + [2] * 2
    assert batch["new_obs"][8, 0] == 31
    placed = buffer.add(rows(2, 60, ends=["terminated", "terminated"]))
    assert placed.episode_length.tolist() == [7, 3]
    assert placed.episode_start.tolist() == [0, 7]
    assert len(buffer) == 13
    assert np.isfinite(buffer.sample(64)["rewards"]).all()


@pytest.mark.parametrize("place", ["obs", "new_obs"])
def test_hasnull_and_dropnull_search_nested_observations(place):
    def nested(values):
        return {"step": np.zeros(1, np.int64), "rest": ({"far": values.astype(np.float32)},)}

    buffer = ReplayBuffer(8)
    for step in range(3):
        batch = rows(1, step)
        batch |= {name: nested(batch[name]) for name in ("obs", "new_obs")}
        if step == 1:
            batch[place]["rest"][0]["far"][0, -1] = np.nan
        buffer.add(batch)
    assert buffer.hasnull()
    assert buffer.dropnull() == 1
    assert not buffer.hasnull()
    assert buffer.to_batch()["obs"]["rest"][0]["far"][:, 0].tolist() == [0.0, 2.0]


def test_dropnull_keeps_priorities():
    buffer = PrioritizedReplayBuffer(8, alpha=1.0, epsilon=1e-9)
    for step in range(5):
        buffer.add({**rows(1, step), "rewards": np.array([np.nan if step == 2 else 0], np.float32)})
    buffer.update_weight(np.arange(5), np.arange(5) + 1.0)
    buffer.dropnull()
    np.testing.assert_allclose(buffer.priorities.tree.values, [1, 2, 4, 5, 0, 0, 0, 0])


# ---- tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("shared", [False, True])
def test_npz_and_parquet_keep_transitions_and_boundaries(suffix, shared, tmp_path):
    buffer = fill_from_counting(VectorReplayBuffer(30, 2, ignore_obs_next=shared), 26, cut_at=(17,))
    path = buffer.export(tmp_path / f"rows{suffix}")
    again = ReplayBuffer.from_file(path, ignore_obs_next=shared)
    left, right = buffer.to_batch(), again.to_batch()
    assert len(left) == 30
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    spread = ReplayBuffer.from_file(path, buffer_num=3)
    assert sorted(spread.to_batch()["obs"].tolist()) == sorted(left["obs"].tolist())
    with pytest.raises(ValueError, match=r"\.npz, \.parquet"):
        buffer.export(tmp_path / "rows.hdf5")


def test_minari_datasets_are_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer = fill_from_counting(VectorReplayBuffer(30, 2), 26, cut_at=(17,))
    env = CountingEnv(EPISODES)
    buffer.to_minari("counting-v0", env.observation_space, env.action_space)
    left, right = buffer.to_batch(), ReplayBuffer.from_minari("counting-v0").to_batch()
    for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "eps_id"):
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_extend_reads_episodes_by_flags_or_eps_id_and_keeps_the_last_rows():
    batch = SampleBatch({**rows(9, ends=["", "", "terminated", "", "", "", "", "", ""]), "infos": [{}] * 9})
    batch["eps_id"] = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    buffer = ReplayBuffer.from_batch(batch)
    assert buffer.maxsize == 9
    assert buffer.next(np.arange(9)).tolist() == [1, 2, 2, 4, 4, 6, 7, 8, 8]
    assert buffer.unfinished_index().tolist() == []
    small = ReplayBuffer.from_batch(batch, size=4)
    assert small.to_batch()["obs"][:, 0].tolist() == [5, 6, 7, 8]
    two = ReplayBuffer.from_batch(batch, buffer_num=2)
    assert two.maxsize == 12
    assert two.to_batch()["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert two.ring.count.tolist() == [3, 6]


def test_joined_batches_with_equal_eps_ids_stay_separate_episodes():
    part = ReplayBuffer(10)
    for step in range(3):
        part.add(rows(1, first=step))
    joined = concat_samples([part.to_batch(), part.to_batch()])
    assert joined["eps_id"].tolist() == [0] * 6
    assert ReplayBuffer.from_batch(joined, n_step=5, gamma=1.0).all()["rewards"].tolist() == [3, 3, 2, 3, 3, 2]


@pytest.mark.parametrize(
    "more, rewards",
    [({"t": [0, 2, 4, 5]}, [6, 6, 5, 3]), ({"agent_id": [0, 0, 1, 1]}, [1, 1, 5, 3])],
    ids=["acts-at-some-steps", "agents-of-one-episode"],
)
def test_rows_of_one_eps_id_are_one_episode_of_each_agent(more, rewards):
    batch = {**rows(4), "eps_id": np.zeros(4, np.int64), **{name: np.array(column) for name, column in more.items()}}
    assert ReplayBuffer.from_batch(batch, n_step=5, gamma=1.0).all()["rewards"].tolist() == rewards


def test_padding_rows_of_sequences_are_not_stored():
    batch = SampleBatch({**rows(5, first=1), "seq_lens": np.array([2, 3])}).right_zero_pad(4)
    buffer, other = ReplayBuffer.from_batch(batch), ReplayBuffer(20)
    assert other.extend(batch).tolist() == [0, 1, 2, 3, 4]
    for found in (buffer, other):
        assert found.all()["obs"][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_two_buffers_on_one_directory_do_not_write_into_each_others_rows(tmp_path):
    first = ReplayBuffer(10, storage="memmap", directory=tmp_path)
    first.add(rows(1, first=3))
    second = ReplayBuffer(10, storage="memmap", directory=tmp_path)
    second.add(rows(1, first=7))
    assert (first.all()["obs"][0, 0], second.all()["obs"][0, 0]) == (3.0, 7.0)


def test_a_table_that_lacks_a_column_is_refused_with_what_it_has():
    with pytest.raises(KeyError, match=r"column '\w+' is missing; given are \['obs'\]"):
        ReplayBuffer.from_batch({"obs": np.zeros((3, 2))})


def test_added_rows_print_their_arrays():
    buffer = ReplayBuffer(10)
    placed = [buffer.add(rows(1, first=2, ends=[end])) for end in ("", "terminated")][1]
    assert repr(placed) == "AddedRows(indices=[1], episode_return=[4.], episode_length=[2], episode_start=[0])"
