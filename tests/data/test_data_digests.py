"""Digests of rows and files: what they depend on, and when a note stands for reading the file."""

import json
import os

import numpy as np
import pytest

from lockstep import SampleBatch
from lockstep.data import OfflineDataset, write_rows
from lockstep.data.digests import digest_of_file, digest_of_rows


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.npy"
    path.write_bytes(b"some rows")
    return path


def note_of(path):
    return path.with_name(f".{path.name}.digest.json")


def test_every_value_name_type_and_shape_counts():
    array = np.arange(12, dtype=np.float32)
    plain = digest_of_rows([{"obs": array}])
    others = [{"obs": array + (array == 7)}, {"new_obs": array}, {"obs": array.view(np.int32)}, {"obs": array[:, None]}]
    assert len({plain, *(digest_of_rows([each]) for each in others)}) == 5
    assert digest_of_rows([{"obs": array.copy()}]) == plain
    assert digest_of_rows([{"infos": np.array([{"a": 1}, None])}]) == digest_of_rows(
        [{"infos": np.array([{"a": 1}, None])}]
    )


def test_a_note_beside_the_file_is_used_while_size_and_time_are_the_same(rows):
    digest = digest_of_file(rows)
    noted = json.loads(note_of(rows).read_text())
    note_of(rows).write_text(json.dumps({**noted, "sha256": "as noted"}))
    assert digest_of_file(rows) == "as noted"

    rows.write_bytes(b"some more rows")
    other = digest_of_file(rows)
    assert other not in (digest, "as noted")
    assert json.loads(note_of(rows).read_text())["sha256"] == other


def test_a_time_that_differs_by_a_nanosecond_is_another(rows):
    digest_of_file(rows)
    noted = json.loads(note_of(rows).read_text())
    note_of(rows).write_text(json.dumps({**noted, "sha256": "as noted"}))
    time_ns = rows.stat().st_mtime_ns
    os.utime(rows, ns=(time_ns, time_ns + 1))
    assert digest_of_file(rows) != "as noted"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}', "\x00"])
def test_a_damaged_note_is_written_again(rows, text):
    digest = digest_of_file(rows)
    note_of(rows).write_text(text)
    assert digest_of_file(rows) == digest
    assert json.loads(note_of(rows).read_text())["sha256"] == digest


def test_the_note_is_in_the_users_cache_beside_a_read_only_file(rows, tmp_path):
    note_of(rows).mkdir()
    digest = digest_of_file(rows)
    (note,) = (tmp_path / "cache/lockstep/digests").iterdir()
    note.write_text(note.read_text().replace(digest, "as noted"))
    assert digest_of_file(rows) == "as noted"


def test_a_data_set_on_disk_has_the_digest_of_its_files_and_columns(tmp_path):
    batch = SampleBatch(obs=np.arange(6.0).reshape(3, 2), actions=np.arange(3))
    path = write_rows(tmp_path / "rows", batch)
    digests = {OfflineDataset(path).digest(), OfflineDataset(path, columns=["obs"]).digest()}
    digests.add(OfflineDataset([path, path]).digest())
    assert len(digests) == 3
    assert OfflineDataset(path, max_memory_bytes=0).digest() in digests
