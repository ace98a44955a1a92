"""Checkpoints: exact round trips, layout, refusals, damage."""

import contextlib
import json
import math
import os
import pickle
import shutil
import struct
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from parts import examples

from lockstep.state import (
    CheckpointError,
    SealedArrays,
    SealedTree,
    newest_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from lockstep.state.checkpoint import (
    carried_checkpoint,
    checkpoints_in,
    damaged_files,
    manifest_checksum,
    newest_attempt,
)

# fmt: off
NUMPY_TYPES = [
    "?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", ">f8", ">i4", "c8", "c16",
    "U3", "S4", "M8[ns]", "m8[s]", "g",
]
# fmt: on
TORCH_TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def raw_bytes(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def same(left: object, right: object) -> bool:
    """Equal in type, shape, element type and every bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and raw_bytes(left) == raw_bytes(right)
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("d", left) == struct.pack("d", right)
    return left == right


arrays = st.sampled_from(NUMPY_TYPES).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
plain_tensors = hnp.arrays(
    st.sampled_from([np.dtype(kind) for kind in ["?", "u1", "i4", "i8", "f4", "f8", "c8"]]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
).map(lambda array: torch.from_numpy(array.copy()))
# longdouble is left out as a scalar: its padding bytes are not part of the value
scalars = st.sampled_from([kind for kind in NUMPY_TYPES if kind not in ("S4", "g", ">f8", ">i4")]).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), ()).map(lambda array: array[()])
)
text = st.text(st.characters(), max_size=6)  # lone surrogates and control characters included
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**200)
    | st.floats()
    | text
    | arrays
    | plain_tensors
    | scalars
)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.integers() | st.just("$tuple"), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.text(st.sampled_from("abcXYZ019_-+äß "), min_size=1, max_size=5).filter(
    lambda name: not name.endswith(" ") and name != "manifest"
)
trees = st.dictionaries(names, nested, max_size=3)


@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folders=st.dictionaries(st.sampled_from(["", "learner", "learner/rl_module/p0", "other"]), trees, max_size=3))
def test_round_trip_is_exact_in_value_and_type(tmp_path: Path, folders: dict) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", folders)
    read = read_checkpoint(path)
    assert set(read) == set(folders)
    for folder, tree in folders.items():
        assert same(read[folder], tree), (folder, tree, read[folder])


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)], ids=str)
def test_every_torch_type_round_trips(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype) if shape else torch.tensor(1).to(dtype)
    tree = {"flat": {"tensor": tensor}, "nested": {"deep": [tensor]}}
    assert same(read_checkpoint(write_checkpoint(tmp_path / "c", {"": tree}))[""], tree)


def test_views_transposes_and_gradients_are_stored_as_their_own_values(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    weight = torch.nn.Parameter(flat[:6].view(2, 3))
    array = np.arange(12.0).reshape(3, 4)
    read_only = np.arange(3)
    read_only.flags.writeable = False
    tree = {
        "w": {"a": weight, "b": flat[6:], "t": flat.view(3, 4).T, "same": flat[6:]},
        "n": {"f": np.asfortranarray(array), "neg": array[::-1, ::2], "ro": read_only},
    }
    read = read_checkpoint(write_checkpoint(tmp_path / "c", {"": tree}))[""]
    assert torch.equal(read["w"]["a"], flat[:6].view(2, 3))
    assert type(read["w"]["a"]) is torch.Tensor
    assert torch.equal(read["w"]["t"], flat.view(3, 4).T)
    assert torch.equal(read["w"]["same"], flat[6:])
    assert (read["n"]["f"] == array).all()
    assert (read["n"]["neg"] == array[::-1, ::2]).all()
    read["n"]["ro"][0] = 7  # what is read belongs to the reader
    read["w"]["b"].fill_(3)
    assert read["w"]["same"][0] == 6


def test_flat_dicts_of_tensors_are_plain_safetensors_and_the_rest_is_json(tmp_path: Path) -> None:
    tree = {"weights": {"layer.weight": torch.ones(2, 3)}, "spec": {"hiddens": (64, 64)}, "state": {"m": [np.ones(2)]}}
    path = write_checkpoint(tmp_path / "c", {"learner/rl_module/p0": {"weights": tree["weights"]}, "": tree})
    module = path / "learner" / "rl_module" / "p0"
    assert sorted(file.name for file in module.iterdir()) == ["manifest.json", "weights.safetensors"]
    foreign = safetensors.torch.load_file(module / "weights.safetensors")
    assert torch.equal(foreign["layer.weight"], torch.ones(2, 3))
    files = sorted(file.name for file in path.iterdir() if file.is_file())
    assert files == ["manifest.json", "spec.json", "state.json", "state.safetensors", "weights.safetensors"]
    assert json.loads((path / "spec.json").read_text()) == {"hiddens": {"$tuple": [64, 64]}}


def test_arrays_whose_paths_look_alike_stay_apart(tmp_path: Path) -> None:
    tree = {"s": {"a/b": np.zeros(1), "a": {"b": np.ones(1), 0: np.full(1, 2)}, "list": [np.full(1, 3)], 5: (1,)}}
    assert same(read_checkpoint(write_checkpoint(tmp_path / "c", {"": tree}))[""], tree)


def test_every_array_starts_at_a_multiple_of_its_item_size(tmp_path: Path) -> None:
    tree = {"w": {"a": np.ones(3, bool), "b": np.ones(3, "f8"), "c": np.ones(3, "f2"), "d": np.ones(3, "i4")}}
    content = (write_checkpoint(tmp_path / "c", {"": tree}) / "w.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for name, array in tree["w"].items():
        assert (8 + size + header[name]["data_offsets"][0]) % array.itemsize == 0


def test_a_subfolder_of_a_checkpoint_is_a_checkpoint_wherever_it_moves(tmp_path: Path) -> None:
    folders = {"learner": {"k": 1}, "learner/rl_module/p0": {"w": 2}, "learner/rl_module/p1": {"w": 3}}
    path = write_checkpoint(tmp_path / "c", folders, metadata={"step": 5})
    (path / "learner" / "rl_module").rename(tmp_path / "moved")
    assert read_checkpoint(tmp_path / "moved") == {"p0": {"w": 2}, "p1": {"w": 3}}
    assert read_checkpoint(tmp_path / "moved" / "p1") == {"": {"w": 3}}
    assert verify_checkpoint(tmp_path / "moved" / "p1")["metadata"] == {"step": 5}


@pytest.mark.parametrize("swap", [True, False])
def test_writing_again_replaces_the_checkpoint_whole(
    tmp_path: Path, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swap:  # a file system that cannot exchange two names
        monkeypatch.setattr("lockstep.state.replace._exchange", lambda first, second: False)
    write_checkpoint(tmp_path / "best", {"": {"old": 1, "step": 1}})
    write_checkpoint(tmp_path / "best", {"": {"step": 2}})
    assert read_checkpoint(tmp_path / "best") == {"": {"step": 2}}
    assert [child.name for child in tmp_path.iterdir()] == ["best"]


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_checkpoint("runs/c", {"": {"a": 1}})
    assert path == tmp_path / "runs" / "c"
    assert read_checkpoint("runs/c") == {"": {"a": 1}}


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({1, 2}, "builtins.set"),
        (np.array([object()], dtype=object), "type object"),
        (np.zeros(2, dtype=[("a", "f4")]), "an array of type"),
        (torch.zeros(2, 2).to_sparse(), "layout"),
        (Point(1, 2), "Point"),
        (1 + 2j, "builtins.complex"),
        ({(1, 2): 3}, "keys must be str or int"),
        ({True: 3}, "keys must be str or int"),
        (b"bytes", "builtins.bytes"),
    ],
    ids=["set", "objects", "records", "sparse", "namedtuple", "complex", "tuple-key", "bool-key", "bytes"],
)
def test_what_has_no_safe_form_is_refused_with_its_place(tmp_path: Path, value: object, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint) as caught:
        write_checkpoint(tmp_path / "c", {"": {"optimizer": {"deep": [0, value]}}})
    assert "optimizer/deep/1" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


LOOP: dict = {}
LOOP["again"] = LOOP
NAMES = ["", "..", ".hidden", "a/b", "a\\b", "nul\0", "a\n", "manifest", "x" * 201, 3]
FOLDERS = ["/abs", "../up", "a//b", "a/../../b", "a/"]


@pytest.mark.parametrize(
    ("folders", "metadata", "complaint"),
    [
        *(({"": {name: 1}}, None, "key") for name in NAMES),
        *(({folder: {"a": 1}}, None, "folder") for folder in FOLDERS),
        ({"": {"loop": LOOP}}, None, "contains itself"),
        ({"": {"a": 1}}, {"f": print}, "metadata must be plain JSON"),
    ],
    ids=[*(f"key-{k}" for k in range(len(NAMES))), *(f"folder-{k}" for k in range(len(FOLDERS))), "loop", "metadata"],
)
def test_unwritable_names_and_metadata_are_refused_and_leave_nothing(
    tmp_path: Path, folders: dict, metadata: dict | None, complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        write_checkpoint(tmp_path / "c", folders, metadata=metadata)
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_the_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        write_checkpoint(tmp_path / "mine", {"": {"a": 1}})
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="a file is in its place"):
        write_checkpoint(tmp_path / "file", {"": {"a": 1}})
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


# Damage


def example(path: Path, step: int = 1) -> Path:
    tree = {"weights": {"w": torch.arange(6.0)}, "state": {"step": step, "noise": np.arange(4)}}
    return write_checkpoint(path, {"": tree, "learner": tree})


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = example(tmp_path / "c")
    rng = np.random.default_rng(0)
    for file in sorted(path.rglob("*.*")):
        whole = file.read_bytes()
        if file == path / "manifest.json":
            continue
        for _ in range(5):
            damaged = bytearray(whole)
            damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"SHA-256") as caught:
                read_checkpoint(path)
            assert str(file.relative_to(path)) in str(caught.value)
        file.write_bytes(whole)
    read_checkpoint(path)


def edit_manifest(path: Path, *, signed: bool = True, drop: tuple[str, ...] = (), **changes: object) -> None:
    """Change the root manifest of a checkpoint; `signed`: its checksum too."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.update(changes)
    for name in drop:
        del manifest[name]
    if signed:
        manifest["sha256"] = manifest_checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def as_of_format_1(path: Path, **changes: object) -> Path:
    """Give a checkpoint the manifest that Lockstep 0.2 wrote."""
    drop = ("attempt", "steps", "carried", "sha256")
    edit_manifest(path, signed=False, drop=drop, format=1, lockstep_version="0.2.0", **changes)
    return path


def test_a_damaged_manifest_is_refused_or_says_the_same(tmp_path: Path) -> None:
    """All of it has a checksum: the time of writing and the metadata too."""
    path = write_checkpoint(tmp_path / "c", {"": {"a": 1}}, metadata={"score": 1.5, "name": "x"}, steps=7, attempt=3)
    intact = verify_checkpoint(path)
    whole = (path / "manifest.json").read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        (path / "manifest.json").write_bytes(damaged)
        with contextlib.suppress(CheckpointError):
            assert verify_checkpoint(path) == intact, bytes(damaged[position - 20 : position + 20])


@pytest.mark.parametrize("change", [{"created_ns": 1}, {"metadata": {"epoch": 9}}, {"attempt": 5}, {"steps": 1}])
def test_an_edited_manifest_is_refused(tmp_path: Path, change: dict) -> None:
    path = example(tmp_path / "c")
    edit_manifest(path, signed=False, **change)
    with pytest.raises(CheckpointError, match=r"manifest\.json is not what was written \(SHA-256\)"):
        read_checkpoint(path)


def test_a_manifest_of_0_2_is_read_and_one_that_lost_its_checksum_is_not(tmp_path: Path) -> None:
    path = as_of_format_1(example(tmp_path / "old"))
    assert read_checkpoint(path)[""]["state"]["step"] == 1
    path = example(tmp_path / "new")
    edit_manifest(path, signed=False, format=1, created_ns=1)
    with pytest.raises(CheckpointError, match="SHA-256"):
        read_checkpoint(path)


def test_a_checkpoint_of_a_development_version_is_refused_by_name(tmp_path: Path) -> None:
    path = as_of_format_1(example(tmp_path / "c"))
    edit_manifest(path, signed=False, lockstep_version="0.1.0")
    with pytest.raises(CheckpointError, match=r"written by lockstep 0\.1\.0, a development version; .*cannot read it"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["state.json", "learner/weights.safetensors"])
def test_truncated_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    path = example(tmp_path / "c")
    file = path / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{name} has .* bytes"):
        verify_checkpoint(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_checkpoint(path)


def test_foreign_directories_and_missing_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        read_checkpoint(tmp_path / "nowhere")
    (tmp_path / "dir").mkdir()
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        read_checkpoint(tmp_path / "dir")
    for content in ("[]", '{"version": 3}', '{"format": 1}', "null", "{", "\xff"):
        (tmp_path / "dir" / "manifest.json").write_text(content)
        with pytest.raises(CheckpointError, match="manifest"):
            verify_checkpoint(tmp_path / "dir")


def test_a_newer_format_says_what_it_needs(tmp_path: Path) -> None:
    path = example(tmp_path / "c")
    edit_manifest(path, format=3, lockstep_version="9.9.9")
    with pytest.raises(CheckpointError, match=r"format 3, written by lockstep 9\.9\.9.*Upgrade"):
        read_checkpoint(path)


def test_a_manifest_that_points_outside_is_refused(tmp_path: Path) -> None:
    path = example(tmp_path / "c")
    (tmp_path / "secret").write_text("1")
    manifest = json.loads((path / "manifest.json").read_text())
    edit_manifest(path, files={**manifest["files"], "../secret": {"size": 1, "sha256": "0"}})
    with pytest.raises(CheckpointError, match="points outside"):
        read_checkpoint(path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return Path.touch, (self.target,)


def test_a_pickle_in_place_of_a_file_executes_nothing(tmp_path: Path) -> None:
    """Even one whose size and hash the manifest vouches for."""
    import hashlib

    target = tmp_path / "executed"
    payload = pickle.dumps(Bomb(target))
    for name in ("state.json", "weights.safetensors"):
        path = example(tmp_path / "c")
        (path / name).write_bytes(payload)
        manifest = json.loads((path / "manifest.json").read_text())
        entry = {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
        edit_manifest(path, files={**manifest["files"], name: entry})
        with pytest.raises(CheckpointError, match="cannot understand"):
            read_checkpoint(path)
    assert not target.exists()
    pickle.loads(payload)
    assert target.exists()  # the payload is live


# The newest


def test_newest_has_the_most_steps_of_the_last_attempt(tmp_path: Path) -> None:
    def save(name: str, steps: int, attempt: int, created_ns: int | None = None) -> Path:
        path = write_checkpoint(tmp_path / name, {"": {"state": {}}}, steps=steps, attempt=attempt)
        if created_ns is not None:
            edit_manifest(path, created_ns=created_ns)
        return path

    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert newest_checkpoint(tmp_path) is None
    assert newest_attempt(tmp_path) == 0
    save("step_9", 9, 1, created_ns=1 << 62)  # the clock was ahead
    save("step_10", 10, 1)
    assert newest_checkpoint(tmp_path) == tmp_path / "step_10"
    save("error", 99, 7)  # used only where it is asked for by its path
    assert newest_checkpoint(tmp_path) == tmp_path / "step_10"
    assert newest_attempt(tmp_path) == 7
    last = save("step_2", 2, 2, created_ns=0)  # a run that was resumed from an earlier checkpoint
    assert newest_checkpoint(tmp_path) == last
    (last / "state.json").write_text("{ }")
    (tmp_path / "notes").mkdir()
    (tmp_path / "a file").write_text("")
    with pytest.warns(RuntimeWarning) as caught:
        assert newest_checkpoint(tmp_path) == tmp_path / "step_10"
    said = [str(warning.message) for warning in caught]
    assert any("step_2" in message and "state.json" in message for message in said)
    assert any("notes" in message for message in said)


def test_checkpoints_of_0_2_come_first_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for steps, created_ns in ((200, 5), (300, 4), (100, 9)):
        as_of_format_1(example(tmp_path / f"old_{steps}"), metadata={"env_step": steps}, created_ns=created_ns)
    as_of_format_1(example(tmp_path / "offline"), metadata={"env_step": 0, "gradient_step": 250}, created_ns=1)
    write_checkpoint(tmp_path / "new", {"": {}}, steps=50, attempt=1)
    names = [path.name for path in checkpoints_in(tmp_path)]
    assert names == ["new", "old_300", "offline", "old_200", "old_100"]


def test_a_file_that_cannot_be_read_is_a_damaged_one(tmp_path: Path) -> None:
    """As on a bad sector: /proc/self/mem answers a read at its start with an input/output error."""
    write_checkpoint(tmp_path / "a", {"": {"state": {"step": 1}}}, steps=1)
    bad = write_checkpoint(tmp_path / "b", {"": {"state": {"step": 2}}}, steps=2)
    (bad / "state.json").unlink()
    (bad / "state.json").symlink_to("/proc/self/mem")
    with pytest.warns(RuntimeWarning, match=r"passed over b: cannot read state\.json"):
        assert newest_checkpoint(tmp_path) == tmp_path / "a"
    assert list(damaged_files(bad)) == ["state.json"]
    (bad / "manifest.json").unlink()
    (bad / "manifest.json").symlink_to("/proc/self/mem")
    with pytest.warns(RuntimeWarning, match="passed over b: cannot read checkpoint"):
        assert newest_checkpoint(tmp_path) == tmp_path / "a"


def test_damaged_files_are_listed_and_the_rest_can_be_read(tmp_path: Path) -> None:
    tree = {"rows": {"a": np.arange(3)}}
    path = write_checkpoint(tmp_path / "c", {"": {"n": 1}, "replay": tree, "replay/p1": tree, "replays": tree})
    for name in ("replay/rows.safetensors", "replay/p1/rows.safetensors"):
        (path / name).write_bytes(b"x")
    assert list(damaged_files(path)) == ["replay/rows.safetensors", "replay/p1/rows.safetensors"]
    with pytest.raises(CheckpointError, match="replay/rows"):
        verify_checkpoint(path)
    verify_checkpoint(path, without=["replay"])
    assert set(read_checkpoint(path, without=["replay"])) == {"", "replays"}


def test_a_checkpoint_carries_another_one_which_is_not_read_with_it(tmp_path: Path) -> None:
    best = example(tmp_path / "best", step=4)
    path = write_checkpoint(tmp_path / "c", {"": {"n": 1}}, carried={"best": best})
    shutil.rmtree(best)
    assert read_checkpoint(path) == {"": {"n": 1}}
    found = carried_checkpoint(path, "best")
    assert found is not None
    assert read_checkpoint(found)[""]["state"]["step"] == 4
    assert carried_checkpoint(path, "other") is None
    (found / "state.json").write_text("{}")
    verify_checkpoint(path)
    with pytest.raises(CheckpointError, match="damaged"):
        carried_checkpoint(path, "best")


# Arrays that do not change stand in several checkpoints as one file


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


def rot(file: Path) -> None:
    """Flip a bit as a disk does, which changes no time."""
    content, before = bytearray(file.read_bytes()), file.stat()
    content[-1] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("each_time", [True, False])
def test_a_shared_file_that_has_rotted_is_written_again(tmp_path, monkeypatch, each_time):
    """A large file is verified once in a process, so rot that comes later is found where it is loaded."""
    sealed = SealedArrays(a=np.arange(5))
    if not each_time:
        monkeypatch.setattr("lockstep.state.checkpoint.VERIFIED_EACH_TIME", 1)
    first = save(tmp_path / "0", sealed)
    if each_time:
        save(tmp_path / "1", sealed)
    rot(first / "sealed.safetensors")
    second = save(tmp_path / "2", sealed)
    assert inode(first) != inode(second)
    third = save(tmp_path / "3", sealed)
    assert inode(second) == inode(third)
    if not each_time:
        rot(third / "sealed.safetensors")
        fourth = write_checkpoint(tmp_path / "4", {"": {"sealed": sealed}})
        assert list(damaged_files(fourth)) == ["sealed.safetensors"]


def test_a_shared_file_that_cannot_be_read_is_written_again(tmp_path):
    sealed = SealedArrays(a=np.arange(5))
    first = save(tmp_path / "0", sealed)
    (first / "sealed.safetensors").unlink()
    (first / "sealed.safetensors").symlink_to("/proc/self/mem")
    assert damaged_files(save(tmp_path / "1", sealed)) == {}


def test_a_sealed_tree_shares_both_of_its_files(tmp_path):
    sealed = SealedTree({"epochs": [{"mean": 1.5, "values": np.arange(3)}]})
    paths = [write_checkpoint(tmp_path / str(k), {"inner": {"sealed": sealed}}) for k in range(3)]
    for suffix in ("json", "safetensors"):
        assert len({(path / "inner" / f"sealed.{suffix}").stat().st_ino for path in paths}) == 1
    rot(paths[2] / "inner" / "sealed.safetensors")
    again = write_checkpoint(tmp_path / "again", {"inner": {"sealed": sealed}})
    found = read_checkpoint(again)["inner"]["sealed"]["epochs"][0]
    assert (found["mean"], found["values"].tolist()) == (1.5, [0, 1, 2])
