"""Issue 3, point 5: rows on disk in shuffled minibatches, within a memory limit; every row once, exact resume."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from lockstep.data import OfflineDataset, SampleBatch, concat_samples, parquet_batches, write_rows


def numbered(start, stop):
    """Rows that tell their own number in every leaf."""
    n = np.arange(start, stop)
    return SampleBatch(
        obs={"z": (np.stack([n, -n], 1).astype(np.float32), (n % 2 == 0)), "a": torch.from_numpy(n * 2)},
        n=n,
        half=torch.from_numpy(n).to(torch.bfloat16),
        eps_id=np.array([f"e{i % 7}" for i in n], dtype="<U4"),
        image=(n[:, None, None] * np.ones((1, 3, 2), int)).astype(np.uint8),
    )


def assert_rows(batch, n):
    n = np.asarray(n)
    assert batch["n"].tolist() == n.tolist()
    assert list(batch) == ["obs", "n", "half", "eps_id", "image"]
    assert list(batch["obs"]) == ["z", "a"]
    assert isinstance(batch["obs"]["z"], tuple)
    np.testing.assert_array_equal(batch["obs"]["z"][0], np.stack([n, -n], 1).astype(np.float32))
    np.testing.assert_array_equal(batch["obs"]["z"][1], n % 2 == 0)
    assert torch.equal(batch["obs"]["a"], torch.from_numpy(n * 2))
    assert torch.equal(batch["half"], torch.from_numpy(n).to(torch.bfloat16))
    assert batch["eps_id"].tolist() == [f"e{i % 7}" for i in n]
    assert batch["image"].shape == (len(n), 3, 2)
    np.testing.assert_array_equal(batch["image"][:, 2, 1], n.astype(np.uint8))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """70 rows in three files, one of them written from several batches, one from Parquet."""
    folder = tmp_path_factory.mktemp("rows")
    parquet = numbered(50, 70).to_parquet(folder / "part", row_group_size=6)
    return [
        write_rows(folder / "a", (numbered(i, i + 5) for i in range(0, 40, 5))),
        write_rows(folder / "b", numbered(40, 50)),
        write_rows(folder / "c", parquet_batches(parquet, 8)),
    ]


@pytest.fixture(params=[0, 1 << 20], ids=["on disk", "in memory"])
def dataset(request, paths):
    return OfflineDataset(paths, max_memory_bytes=request.param)


def test_len_columns_schema_and_rows_over_several_files(dataset, paths):
    assert len(dataset) == 70
    assert dataset.paths == paths
    assert dataset.columns == ("obs", "n", "half", "eps_id", "image")
    assert dataset.schema["obs/z/0"] == (np.dtype(np.float32), (2,))
    assert dataset.schema["image"] == (np.dtype(np.uint8), (3, 2))
    assert dataset.size_bytes() == 70 * (8 + 1 + 8 + 8 + 2 + 16 + 6)
    assert "70 rows of 49 bytes in 3 files" in repr(dataset)
    assert_rows(dataset[:], range(70))
    assert_rows(dataset[38:52], range(38, 52))
    assert_rows(dataset[60:30:-4], range(60, 30, -4))
    assert_rows(dataset[[69, 0, 45, 0, -1, 39, 40]], [69, 0, 45, 0, 69, 39, 40])
    assert_rows(dataset[[]], np.arange(0))
    batch = dataset[3:5]
    batch["n"][:] = 0  # memory of its own
    assert_rows(dataset[3:5], [3, 4])
    with pytest.raises(IndexError, match="row 70 is outside of 70 rows"):
        dataset[[0, 70]]
    with pytest.raises(TypeError, match="a list of integers"):
        dataset[[0.5]]


def test_every_row_comes_exactly_once_in_each_pass(dataset):
    batches = list(dataset.minibatches(16, num_epochs=3, seed=5))
    assert [len(batch) for batch in batches] == [16, 16, 16, 16, 6] * 3
    passes = [concat_samples(batches[i : i + 5])["n"] for i in (0, 5, 10)]
    for order in passes:
        assert sorted(order.tolist()) == list(range(70))
        assert_rows(dataset[order], order)
    assert not np.array_equal(passes[0], passes[1])
    assert [len(batch) for batch in dataset.minibatches(16, drop_last=True)] == [16] * 4
    assert concat_samples(list(dataset.minibatches(16, shuffle=False)))["n"].tolist() == list(range(70))
    assert list(dataset.minibatches(80, drop_last=True)) == []


def test_the_order_is_a_function_of_the_seed(dataset, paths):
    def order(seed, source=dataset):
        return np.concatenate([batch["n"] for batch in source.minibatches(9, seed=seed, num_epochs=2)]).tolist()

    assert order(1) == order(1) == order(1, OfflineDataset(paths, max_memory_bytes=0))
    assert order(1) != order(2)


def test_the_shuffle_is_global_and_uniform(dataset):
    """Where row 0 lands over 700 passes: chi-squared over 7 bins of 10 places stays below its 0.999 quantile."""
    place = [int(np.flatnonzero(next(dataset.minibatches(70, seed=seed))["n"] == 0)[0]) // 10 for seed in range(700)]
    counts = np.bincount(place, minlength=7)
    assert float(((counts - 100) ** 2 / 100).sum()) < 22.5


def test_get_state_and_set_state_resume_exactly(dataset, paths):
    whole = [batch["n"].tolist() for batch in dataset.minibatches(16, num_epochs=3, seed=2)]
    for done in (0, 1, 5, 7, 15):
        first = dataset.minibatches(16, num_epochs=3, seed=2)
        for _ in range(done):
            next(first)
        second = OfflineDataset(paths).minibatches(16, num_epochs=3, seed=2)
        next(second)
        second.set_state(first.get_state())
        assert [batch["n"].tolist() for batch in second] == whole[done:]
    state = dataset.minibatches(16, seed=2).get_state()
    with pytest.raises(ValueError, match="taken with seed=2; here it is 3"):
        dataset.minibatches(16, seed=3).set_state(state)
    with pytest.raises(ValueError, match="taken with num_rows=70; here it is 10"):
        OfflineDataset(paths[1]).minibatches(16, seed=2).set_state(state)
    with pytest.raises(KeyError, match="lacks 'num_rows'"):
        dataset.minibatches(16).set_state({"epoch": 1})


def test_passes_without_end_and_some_columns_only(paths):
    dataset = OfflineDataset(paths, columns=["half", "obs"])
    assert dataset.columns == ("half", "obs")
    minibatches = dataset.minibatches(50, num_epochs=None)
    assert [list(next(minibatches)) for _ in range(7)] == [["half", "obs"]] * 7
    assert (minibatches.epoch, minibatches.position) == (3, 50)
    with pytest.raises(KeyError, match=r"a\.npy has no column 'reward'; columns are \['eps_id', 'half'"):
        OfflineDataset(paths, columns=["reward"])


def test_settings_that_make_no_sense_are_refused(dataset, paths):
    for settings, message in (
        ({"size": 0}, "size=0"),
        ({"size": 1, "num_epochs": 0}, "num_epochs=0"),
        ({"size": 1, "seed": -1}, "seed=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            dataset.minibatches(**settings)
    with pytest.raises(ValueError, match="max_memory_bytes=-1"):
        OfflineDataset(paths, max_memory_bytes=-1)
    with pytest.raises(ValueError, match="there is no file; give one path or several"):
        OfflineDataset([])


def test_numpy_itself_opens_a_file_of_rows(paths):
    records = np.load(paths[0], mmap_mode="r")
    assert records["n"].tolist() == list(range(40))
    assert records["obs/z/0"][3].tolist() == [3.0, -3.0]


def test_write_rows_names_batch_and_column_that_do_not_fit(tmp_path):
    first = SampleBatch(obs={"x": np.zeros((2, 3), np.float32)}, name=np.array(["ab", "c"]))
    for other, message in (
        (SampleBatch(obs=np.zeros(1), name=["a"]), "column 'obs' of batch 1 differs"),
        (SampleBatch(obs={"x": np.zeros((1, 3))}, name=["a"]), "column 'obs' of batch 1 differs.*float64"),
        (
            SampleBatch(obs={"x": np.zeros((1, 4), np.float32)}, name=["a"]),
            r"column 'obs/x' of batch 1 differs.*float32\[4\]",
        ),
        (SampleBatch(obs={"x": np.zeros((1, 3), np.float32)}, name=["abc"]), "column 'name' of batch 1 differs.*U3"),
        (SampleBatch(obs={"x": np.zeros((1, 3), np.float32)}), "column 'name' of batch 1 differs"),
        (SampleBatch(first, t=[1, 2]), "column 't' of batch 1 differs"),
        (SampleBatch(first, seq_lens=[2]), "batch 1 .* sequences"),
    ):
        with pytest.raises(ValueError, match=message):
            write_rows(tmp_path / "r", [first, other])
    for rows, message in (
        (SampleBatch(infos=[{}]), "column 'infos' holds objects"),
        ([{}], "batch 0 is a dict"),
        ([SampleBatch(), first[:0]], r"there is no row to write to .*r\.npy"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            write_rows(tmp_path / "r", rows)
    assert list(tmp_path.iterdir()) == []
    joined = OfflineDataset(write_rows(tmp_path / "r", [first, SampleBatch(first, name=["a", "b"])]))
    assert joined[:]["name"].tolist() == ["ab", "c", "a", "b"]


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path, file_size_limit):
    path = write_rows(tmp_path / "r", SampleBatch(a=np.arange(3)))
    with pytest.raises(OSError, match=r"r\.npy cannot be written"), file_size_limit(10_000):
        write_rows(path, (SampleBatch(a=np.arange(100)) for _ in range(100)))
    assert OfflineDataset(path)[:]["a"].tolist() == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["r.npy"]


def test_damaged_foreign_missing_and_unlike_files_are_refused_by_name(tmp_path, paths):
    data = paths[1].read_bytes()
    bad = tmp_path / "bad.npy"
    for length in {0, 5, 20, len(data) // 2, len(data) - 1} | set(range(0, len(data), 61)):
        bad.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"bad\.npy is no readable file of rows"):
            OfflineDataset(bad)
    for array in (np.zeros(3), np.zeros(3, dtype="i4,f8"), np.zeros((3, 2), dtype=[("a", "f4")])):
        np.save(bad, array)
        with pytest.raises(ValueError, match=r"bad\.npy is no readable file of rows"):
            OfflineDataset(bad)
    bad.write_text("something else")
    with pytest.raises(ValueError, match=r"bad\.npy is no readable file of rows"):
        OfflineDataset(bad)
    with pytest.raises(FileNotFoundError, match="none"):
        OfflineDataset(tmp_path / "none")
    other = write_rows(tmp_path / "other", SampleBatch(a=np.zeros(2)))
    with pytest.raises(ValueError, match=r"other\.npy has columns .* unlike .*a\.npy with"):
        OfflineDataset([paths[0], other])
    shrinking = write_rows(tmp_path / "shrinking", numbered(0, 20))
    for limit in (0, 1 << 20):
        dataset = OfflineDataset(shrinking, max_memory_bytes=limit)
        content = shrinking.read_bytes()
        shrinking.write_bytes(content[:600])
        with pytest.raises(ValueError, match=r"shrinking\.npy has become shorter since it was opened"):
            dataset[[19, 3, 7, 18]]
        shrinking.write_bytes(content)


MEMORY_LIMIT = 24 << 20
ROWS, WIDTH = 100_000, 60
UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from lockstep.data import OfflineDataset, SampleBatch, parquet_batches, write_rows

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

list(OfflineDataset(sys.argv[2]).minibatches(2))  # whatever is imported at first use
before = kilobytes("VmHWM")
limit = (kilobytes("VmData") << 10) + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # the system refuses more memory than that
dataset = OfflineDataset(sys.argv[1], max_memory_bytes=0)
seen = np.zeros(len(dataset), dtype=np.uint8)
for batch in dataset.minibatches(256, num_epochs=2, seed=1):
    seen[batch["n"]] += 1
    assert (batch["obs"][:, 7] == batch["n"]).all()
assert (seen == 2).all()
print("resident", (kilobytes("VmHWM") - before) << 10, flush=True)
try:
    dataset[:]
except MemoryError:
    print("all at once does not fit")
"""


def test_a_data_set_beyond_the_memory_limit_is_iterated_in_minibatches(tmp_path):
    """As `benchmarks/speed/offline_memory.py` does with 1,000,000 rows; here with a tenth of the rows."""

    def parts():
        for start in range(0, ROWS, 10_000):
            n = np.arange(start, start + 10_000)
            yield SampleBatch(obs=np.repeat(n[:, None], WIDTH, 1).astype(np.float32), n=n, rewards=n * 0.5)

    path = write_rows(tmp_path / "big", parts())
    small = write_rows(tmp_path / "small", SampleBatch(n=np.arange(5)))
    assert path.stat().st_size > MEMORY_LIMIT
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(path), str(small), str(MEMORY_LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "all at once does not fit"
    assert int(lines[0].split()[1]) < MEMORY_LIMIT / 4
