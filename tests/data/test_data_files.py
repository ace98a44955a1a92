"""Contract, section 2: a batch in files, as a tensordict and compressed comes back as it was, to the bit."""

import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.data import (
    MultiAgentBatch,
    OfflineDataset,
    SampleBatch,
    concat_samples,
    parquet_batches,
    read_minari,
    write_minari,
    write_rows,
)
from lockstep.data.trees import leaf_bytes, named_leaves
from lockstep.options.checks import install_hint

DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]


def numbers(shape, dtype, seed=0):
    """Every bit pattern may occur, NaN included."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape).copy()


def every_dtype(rows=7):
    columns = {f"z_{name}": numbers((rows,), name, i) for i, name in enumerate(DTYPES)}
    columns |= {f"a_{name}": numbers((rows, 2, 3), name, i) for i, name in enumerate(DTYPES)}
    columns["half"] = torch.tensor([0.5, float("nan"), -0.0] * rows, dtype=torch.bfloat16)[:rows]
    columns["tensor"] = torch.arange(rows * 2, dtype=torch.int16).reshape(rows, 2)
    columns["complex"] = numbers((rows, 2), "float32").astype(np.complex64)
    columns["swapped"] = np.arange(rows, dtype=">f4")
    columns["date"] = np.arange(rows).astype("datetime64[s]")
    columns["letters"] = np.array([b"ab", b"c", b""] * rows)[:rows]
    columns["eps_id"] = np.array(["first", "zweite", "é\U0001f600"] * rows)[:rows]
    columns["nothing"] = np.zeros((rows, 0, 2), np.float32)
    columns["strided"] = np.arange(rows * 4.0).reshape(rows, 4)[:, ::-2]
    return SampleBatch(columns)


def with_objects():
    return SampleBatch(
        infos=[
            {"k": (1, None, float("inf")), 3: np.arange(2, dtype=np.int16)},
            {},
            {"s": np.float32(0.1), "l": [True]},
        ],
        obs=np.arange(3.0),
    )


def sequences():
    return SampleBatch(
        obs=np.arange(8.0, dtype=np.float32).reshape(8, 1),
        seq_lens=np.array([3, 1, 4], np.int32),
        state_in={"h": np.arange(6.0, dtype=np.float32).reshape(3, 2)},
        infos=[{"row": row} for row in range(8)],
        _max_seq_len=6,
    )


def time_major():
    return SampleBatch(
        obs=np.arange(12.0).reshape(3, 2, 2), seq_lens=[3, 2], state_in=np.array([[5.0], [6.0]]), _time_major=True
    )


def no_rows():
    return SampleBatch(
        obs={"x": np.zeros((0, 3), np.float16), "y": (torch.zeros(0, 2, dtype=torch.int32),)},
        eps_id=np.array([], dtype="<U8"),
        infos=[],
    )


def marked():
    batch = SampleBatch(obs=np.arange(2))
    batch.set_training()
    batch.num_grad_updates = 3.5
    return batch


BATCHES = {
    "every dtype": every_dtype,
    "objects": with_objects,
    "sequences": sequences,
    "padded": lambda: sequences().right_zero_pad(5),
    "padded with states": lambda: sequences().right_zero_pad(5, exclude_states=False),
    "time-major": time_major,
    "no rows": no_rows,
    "no columns": SampleBatch,
    "marks": marked,
}


def same_object(first, second):
    if isinstance(first, np.ndarray | torch.Tensor):
        same_leaf(first, second)
    elif isinstance(first, dict):
        assert type(first) is type(second)
        assert list(first) == list(second)
        for key in first:
            same_object(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert type(first) is type(second)
        assert len(first) == len(second)
        for one, other in zip(first, second):
            same_object(one, other)
    else:
        assert type(first) is type(second)
        assert first == second


def same_leaf(first, second):
    assert type(first) is type(second)
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    if isinstance(first, torch.Tensor):
        bits = [leaf.contiguous().reshape(-1).view(torch.uint8) for leaf in (first, second)]
        assert torch.equal(*bits)
    elif first.dtype == object:
        for one, other in zip(first.reshape(-1), second.reshape(-1)):
            same_object(one, other)
    else:
        assert first.tobytes() == second.tobytes()


def same(first, second):
    """Names in order, nesting, dtypes, shapes, bits and marks."""
    assert isinstance(second, SampleBatch)
    same_object(dict(first), dict(second))
    assert first.marks() == second.marks()
    assert len(first) == len(second)
    assert first.max_seq_len == second.max_seq_len


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_to_npz_from_npz_is_lossless(make, tmp_path):
    path = make().to_npz(tmp_path / "batch")
    assert path == tmp_path / "batch.npz"
    same(make(), SampleBatch.from_npz(path))


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("row_group_size", [3, 65_536])
def test_to_parquet_from_parquet_is_lossless(make, row_group_size, tmp_path):
    path = make().to_parquet(tmp_path / "batch", row_group_size=row_group_size)
    assert path == tmp_path / "batch.parquet"
    back = SampleBatch.from_parquet(path)
    same(make(), back)
    for name, column in back.items():
        for _, leaf in named_leaves(name, column):
            assert isinstance(leaf, torch.Tensor) or leaf.flags.writeable


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_to_tensordict_from_tensordict_is_lossless(make):
    same(make(), SampleBatch.from_tensordict(make().to_tensordict()))


@pytest.mark.parametrize("make", [make for name, make in BATCHES.items() if name != "objects"])
@pytest.mark.parametrize("bulk", [False, True])
def test_compress_and_decompress_if_needed_is_lossless(make, bulk):
    batch = make()
    names = [name for name in batch if name not in ("seq_lens", "infos")]
    assert batch.compress(bulk, names) is batch
    assert len(batch) == len(make())
    for name in names:
        for _, leaf in named_leaves(name, batch[name]):
            assert not leaf.nbytes or leaf.dtype == object or not leaf_bytes(leaf)
    assert batch.decompress_if_needed(names) is batch
    same(make(), batch)
    same(make(), batch.decompress_if_needed(names))


def test_names_with_slashes_do_not_collide(tmp_path):
    batch = SampleBatch({"a": {"b": np.arange(2), "b+": np.zeros(2)}, "a/b": np.arange(2.0), "a/b+": np.ones(2)})
    same(batch, SampleBatch.from_parquet(batch.to_parquet(tmp_path / "a")))
    same(batch, SampleBatch.from_npz(batch.to_npz(tmp_path / "a")))


def test_from_parquet_reads_some_columns_and_names_a_missing_one(tmp_path):
    actions = (np.arange(3), np.zeros((3, 1), np.float16))
    path = SampleBatch(rewards=np.arange(3.0), obs={"a": np.ones(3)}, actions=actions).to_parquet(tmp_path / "b")
    back = SampleBatch.from_parquet(path, columns=["actions", "rewards"])
    assert list(back) == ["actions", "rewards"]
    same_object(back["actions"], actions)
    with pytest.raises(KeyError, match=r"b\.parquet has no column 'reward'; columns are \['actions', 'obs', 'rewards'"):
        SampleBatch.from_parquet(path, columns=["reward"])


def test_parquet_batches_gives_rows_in_order_over_several_files(tmp_path):
    paths = [
        SampleBatch(obs={"x": np.arange(i, i + 10)}, infos=[{"i": i}] * 10).to_parquet(
            tmp_path / str(i), row_group_size=4
        )
        for i in (0, 10)
    ]
    batches = list(parquet_batches(paths, 3))
    assert max(len(batch) for batch in batches) == 3
    assert concat_samples(batches)["obs"]["x"].tolist() == list(range(20))
    assert [info["i"] for info in concat_samples(batches)["infos"]] == [0] * 10 + [10] * 10
    assert [list(batch) for batch in parquet_batches(paths[0], 5, ["infos"])] == [["infos"]] * 3
    with pytest.raises(KeyError, match="no column 'acts'"):
        next(parquet_batches(paths, 3, ["acts"]))
    with pytest.raises(ValueError, match="size=0"):
        next(parquet_batches(paths, 0))
    with pytest.raises(ValueError, match=r"s\.parquet .*'seq_lens' has other rows than steps"):
        list(parquet_batches(sequences().to_parquet(tmp_path / "s"), 3))


def test_a_plain_parquet_table_is_read_and_a_bad_column_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float32)), 2)
    pa.parquet.write_table(
        pa.table({"r": [1.5, 2.5, 3.5], "d": [True, False, True], "s": ["a", "bcd", "é"], "o": pairs}), path
    )
    back = SampleBatch.from_parquet(path)
    assert list(back) == ["r", "d", "s", "o"]
    assert back["r"].tolist() == [1.5, 2.5, 3.5]
    assert back["d"].dtype == bool
    assert back["s"].tolist() == ["a", "bcd", "é"]
    assert back["o"].tolist() == [[0, 1], [2, 3], [4, 5]]
    half_empty = pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))
    for columns, words in (
        ({"r": [1.5, None]}, "column 'r' has 1 empty cells"),
        ({"o": half_empty}, "column 'o' has 1 empty cells"),
        ({"r": [[1], [2, 3]]}, "column 'r' is of type list<.*allowed are numbers"),
    ):
        pa.parquet.write_table(pa.table(columns), path)
        with pytest.raises(ValueError, match=rf"t\.parquet .*{words}"):
            SampleBatch.from_parquet(path)


FILES = {
    "npz": (SampleBatch.to_npz, SampleBatch.from_npz),
    "parquet": (SampleBatch.to_parquet, SampleBatch.from_parquet),
}


@pytest.mark.parametrize("kind", FILES)
def test_damaged_and_foreign_files_are_refused_by_name(kind, tmp_path):
    write, read = FILES[kind]
    path = write(SampleBatch(obs=np.random.default_rng(0).random((50, 4)), infos=[{"a": 1}] * 50), tmp_path / "b")
    data = path.read_bytes()
    for length in {0, 1, 100, len(data) // 2, len(data) - 1} | set(range(0, len(data), 97)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=rf"b\.{kind} is no readable"):
            read(path)
    for place in range(0, len(data), 23):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with suppress(ValueError):  # a byte of no meaning may be read over; wrong data are never read
            back = read(path)["obs"]
            np.testing.assert_array_equal(back, np.random.default_rng(0).random((50, 4)))
    path.write_text("no such format, but long enough to be something else entirely")
    with pytest.raises(ValueError, match=rf"b\.{kind} is no readable"):
        read(path)
    with pytest.raises(FileNotFoundError, match=r"none"):
        read(tmp_path / "none")


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"infos": [{"deep": [object()]}]}, r"column 'infos' holds a object, .*allowed are None, bool"),
        ({"obs": {"x": np.zeros(2, dtype="i4,f8")}}, r"'obs/x' is a ndarray of \[\('f0'.*allowed are plain arrays"),
        ({"obs": np.ma.masked_array([1, 2], [True, False])}, "column 'obs' is a MaskedArray"),
        ({"obs": {1.5: np.zeros(2)}}, r"column 'obs' has the key 1\.5"),
    ],
    ids=["objects", "records", "masked", "keys"],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(kind, columns, words, tmp_path):
    with pytest.raises(TypeError, match=words):
        FILES[kind][0](SampleBatch(columns), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FILES)
def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(kind, tmp_path, file_size_limit):
    write, read = FILES[kind]
    path = write(SampleBatch(obs=np.arange(3)), tmp_path / "b")
    with pytest.raises(OSError, match=rf"b\.{kind} cannot be written"), file_size_limit(10_000):
        write(SampleBatch(obs=np.random.default_rng(0).random(5_000)), path)
    assert read(path)["obs"].tolist() == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == [f"b.{kind}"]
    with pytest.raises(OSError, match=r"there is no directory .*none"):
        write(SampleBatch(obs=np.arange(3)), tmp_path / "none" / "b")


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path):
    """Killed amid the block that all formats write through; the next write in that directory clears up."""
    code = (
        "import os, pathlib, sys; from lockstep.state.replace import replacing_file\n"
        "with replacing_file(pathlib.Path(sys.argv[1])) as name: name.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "b.parquet")], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    path = SampleBatch(obs=np.arange(3)).to_parquet(tmp_path / "b")
    assert list(tmp_path.iterdir()) == [path]
    assert len(SampleBatch.from_parquet(path)) == 3


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("pyarrow", "offline", lambda: SampleBatch(a=[1]).to_parquet("never")),
        ("pyarrow", "offline", lambda: SampleBatch.from_parquet("never")),
        ("minari", "offline", lambda: read_minari("never-v0")),
        ("h5py", "offline", lambda: write_minari("never-v0", [])),
        ("tensordict", "tensordict", lambda: SampleBatch(a=[1]).to_tensordict()),
        ("lz4", "compression", lambda: SampleBatch(obs=[1]).compress()),
    ],
)
def test_a_missing_package_is_said_with_what_installs_it(package, extra, call, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # the import system's own word for "not to be had"
    with pytest.raises(ImportError, match=re.escape(install_hint(extra))):
        call()


LEAVES = st.builds(
    lambda dtype, width, seed, torch_too: (
        numbers((4, *width), dtype, seed) if not torch_too else torch.from_numpy(numbers((4, *width), dtype, seed))
    ),
    st.sampled_from(DTYPES),
    st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    st.integers(0, 9),
    st.booleans(),
)
TREES = st.recursive(
    LEAVES,
    lambda inside: st.one_of(
        st.dictionaries(st.sampled_from("abc/"), inside, max_size=3), st.lists(inside, max_size=3).map(tuple)
    ),
    max_leaves=5,
)


@given(columns=st.dictionaries(st.sampled_from(["obs", "new_obs", "z", "é", "a b"]), TREES, max_size=4))
@examples(30)
def test_any_tree_of_columns_comes_back_from_every_format(columns):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch = SampleBatch(columns)
        same(batch, SampleBatch.from_npz(batch.to_npz(folder / "b")))
        same(batch, SampleBatch.from_parquet(batch.to_parquet(folder / "b")))
        same(batch, SampleBatch.from_tensordict(batch.to_tensordict()))
        same(batch, batch.copy(shallow=True).compress(True, list(batch)).decompress_if_needed(list(batch)))
        if len(batch):
            same(batch, OfflineDataset(write_rows(folder / "b", batch), max_memory_bytes=0)[:])


# ---- tensordict ----


def test_tensordict_can_be_indexed_and_shares_memory():
    batch = SampleBatch(obs=np.arange(4.0), infos=[[1], {"a": torch.zeros(2)}, None, "x"], eps_id=["a", "b", "a", "b"])
    tensordict = batch.to_tensordict()
    assert tensordict.batch_size == (4,)
    back = SampleBatch.from_tensordict(tensordict[1:3])
    assert back["obs"].tolist() == [1.0, 2.0]
    assert back["eps_id"].tolist() == ["b", "a"]
    assert back["infos"][1] is None
    batch["obs"][0] = 9.0
    assert SampleBatch.from_tensordict(tensordict)["obs"][0] == 9.0


def test_a_tensordict_from_elsewhere_is_read_and_a_wrong_one_refused():
    from tensordict import TensorDict

    foreign = TensorDict({"obs": torch.zeros(3, 2), "next": {"reward": torch.ones(3, 1)}}, batch_size=[3])
    back = SampleBatch.from_tensordict(foreign)
    assert back["next"]["reward"].shape == (3, 1)
    with pytest.raises(ValueError, match=r"batch_size is \[3, 1\]; rows have one dimension: use tensordict.reshape"):
        SampleBatch.from_tensordict(TensorDict({"a": torch.zeros(3, 1)}, batch_size=[3, 1]))
    with pytest.raises(TypeError, match="a TensorDict is needed, got a dict"):
        SampleBatch.from_tensordict({})
    with pytest.raises(ValueError, match="a column is named '_lockstep'"):
        SampleBatch(_lockstep=[1]).to_tensordict()


# ---- compression ----


def frames(rows=6):
    return SampleBatch(obs=np.arange(rows * 400, dtype=np.int64).reshape(rows, 400) // 100, a=np.arange(rows))


@pytest.mark.parametrize("bulk", [False, True])
def test_compressed_rows_can_be_sliced_joined_shuffled_and_padded(bulk):
    batch = frames().compress(bulk)
    assert batch["a"].dtype == np.int64
    assert batch.size_bytes() < frames().size_bytes() / 4
    assert "bytes>" in repr(batch)
    parts = concat_samples([batch[4:], frames(3).compress(not bulk), batch[[1, 0]], frames(0).compress(bulk)])
    expected = concat_samples([frames()[4:], frames(3), frames()[[1, 0]]])
    same(expected, parts.copy().decompress_if_needed())
    same(expected.shuffle(3), parts.shuffle(3).decompress_if_needed())
    padded = SampleBatch(frames().compress(bulk), seq_lens=[0, 2, 4]).right_zero_pad(4).decompress_if_needed()
    same(SampleBatch(frames(), seq_lens=[0, 2, 4]).right_zero_pad(4), padded)
    assert next(frames().compress(bulk).rows())["a"] == 0


@pytest.mark.parametrize("bulk", [False, True])
def test_compressed_time_major_columns_keep_both_axes(bulk):
    batch = SampleBatch(obs=np.arange(12.0).reshape(3, 2, 2), a=np.zeros((3, 2)), _time_major=True).compress(bulk)
    assert len(batch) == 6
    batch["b"] = np.zeros((3, 2))
    assert batch.decompress_if_needed()["obs"].shape == (3, 2, 2)


@pytest.mark.parametrize("bulk", [False, True])
def test_multi_agent_batch_compress_and_decompress_if_needed(bulk):
    batch = MultiAgentBatch({"p": frames(), "q": SampleBatch(new_obs=frames()["obs"])}, 6)
    before = batch.copy()
    assert batch.compress(bulk) is batch
    assert batch["p"]["obs"].dtype == object
    assert batch["q"]["new_obs"].dtype == object
    assert batch.size_bytes() < before.size_bytes() / 4
    assert batch.decompress_if_needed() is batch
    for module_id in before:
        same(before[module_id], batch[module_id])
    with pytest.raises(KeyError, match=r"no column 'act' to compress; columns are \['a', 'new_obs', 'obs'\]"):
        batch.compress(columns=["act"])
    batch.compress(columns={"a"})
    assert batch["p"]["a"].dtype == object


def test_compress_refuses_what_it_cannot_bring_back_and_changes_nothing():
    batch = SampleBatch(obs=np.arange(3), infos=[{}, {}, {}])
    with pytest.raises(TypeError, match="column 'infos' is a ndarray of object"):
        batch.compress(columns=["obs", "infos"])
    assert batch["obs"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError, match=r"no column 'new_ob' to compress; columns are \['infos', 'obs'\]"):
        batch.compress(columns={"obs", "new_ob"})
    with pytest.raises(ValueError, match="'seq_lens' counts the rows"):
        sequences().compress(columns=["seq_lens"])
    mixed = concat_samples([SampleBatch(obs=np.arange(3)).compress(), SampleBatch(obs=np.arange(3.0)).compress()])
    with pytest.raises(ValueError, match=r"'obs' holds compressed <i8\[\] and, in row 3, compressed <f8\[\]"):
        mixed.decompress_if_needed()
    with pytest.raises(TypeError, match="holds a CompressedRow"):
        SampleBatch(infos=np.array([batch.compress()["obs"][0]])).to_npz("never")
