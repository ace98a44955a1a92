"""Arrays that do not change stand in several checkpoints as one file."""

from __future__ import annotations

import shutil

import numpy as np

from lockstep.state import SealedArrays, read_checkpoint, verify_checkpoint, write_checkpoint


def inode(path, name="sealed"):
    return (path / f"{name}.safetensors").stat().st_ino


def save(place, sealed):
    path = write_checkpoint(place, {"": {"sealed": sealed, "other": {"x": np.arange(3)}}})
    verify_checkpoint(path)
    return path


def test_the_next_checkpoint_gets_the_file_of_the_one_before(tmp_path):
    sealed = SealedArrays(a=np.arange(5), b=np.ones((2, 2), np.float32))
    paths = [save(tmp_path / str(k), sealed) for k in range(3)]
    assert inode(paths[0]) == inode(paths[1]) == inode(paths[2])
    assert inode(paths[0], "other") != inode(paths[1], "other")
    shutil.rmtree(paths[0])
    for path in paths[1:]:
        found = read_checkpoint(path)[""]["sealed"]
        assert type(found) is dict
        np.testing.assert_array_equal(found["a"], np.arange(5))


def test_other_objects_with_the_same_arrays_are_written_anew(tmp_path):
    first = save(tmp_path / "0", SealedArrays(a=np.arange(5)))
    second = save(tmp_path / "1", SealedArrays(a=np.arange(5)))
    assert inode(first) != inode(second)


def test_arrays_are_written_again_where_the_file_is_gone_or_replaced(tmp_path):
    sealed = SealedArrays(a=np.arange(5))
    shutil.rmtree(save(tmp_path / "0", sealed))
    second = save(tmp_path / "1", sealed)
    file = second / "sealed.safetensors"
    file.unlink()
    file.write_bytes(b"something else")
    third = save(tmp_path / "2", sealed)
    np.testing.assert_array_equal(read_checkpoint(third)[""]["sealed"]["a"], np.arange(5))
    again = save(tmp_path / "2", sealed)  # in the place of the checkpoint that holds the file
    np.testing.assert_array_equal(read_checkpoint(again)[""]["sealed"]["a"], np.arange(5))
    assert inode(again) == inode(save(tmp_path / "3", sealed))
