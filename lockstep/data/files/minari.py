"""Lossless conversion of episodes and batches to Minari datasets and back (extra `offline`).

Datasets are in the local Minari folder (`MINARI_DATASETS_PATH`); nothing is downloaded. Images are stored losslessly,
never as JPEG. A JSON note among the options of each episode holds what Minari has no place for: ids, start times, types
of text, order of keys. Datasets without the note are read by their spaces.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space, Text, Tuple

from lockstep.data.codec import decode_column, decode_object, encode_column, encode_object
from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.sample_batch import SampleBatch, concat_samples
from lockstep.data.trees import Tree, allocate, leaves_of_space, map_pair, zip_trees
from lockstep.options.checks import install_hint
from lockstep.state.replace import clear_stale, move_into_place, temporary_sibling
from lockstep.state.sizes import check_claim, count_of

# ---- infos ---------------------------------------------------------------------------------------------------

_JSON = "lockstep_json"
"""Name of the column of infos that holds JSON texts."""


def _packed_infos(infos: Sequence[Any], name: str) -> tuple[dict[str, Any] | None, Any]:
    """Return infos as Minari stores them, and the note from which `_unpacked_infos` restores them.

    Infos that have the same numbers and arrays in each row become columns, which other programs can read. All others
    become one JSON text for each row.

    Raises:
        TypeError: JSON cannot express an info; names it.
    """
    if all(type(info) is dict and not info for info in infos):
        return None, "empty"
    columns = _columns_of(infos)
    if columns is not None:
        kinds = {key: kind for key, (kind, _) in columns.items()}
        return {key: column for key, (_, column) in columns.items()}, kinds
    return {_JSON: [json.dumps(encode_object(info, name)) for info in infos]}, "json"


def _columns_of(infos: Sequence[Any]) -> dict[str, tuple[str, np.ndarray]] | None:
    """Return infos as columns, `{key: (type of the values, array)}`; None if they cannot be columns."""
    first = infos[0]
    if not all(type(info) is dict and list(info) == list(first) for info in infos):
        return None
    columns = {}
    for key in first:
        column = _column_of([info[key] for info in infos])
        if column is None or not _is_hdf5_name(key) or key == _JSON:
            return None
        columns[key] = column
    return columns


def _is_hdf5_name(key: object) -> bool:
    """Return whether a key can name a group or array in an HDF5 file."""
    return isinstance(key, str) and "/" not in key and key not in ("", ".")


def _column_of(values: list[Any]) -> tuple[str, np.ndarray] | None:
    """Return (type of the values, array) of numbers or arrays of one type and shape; None for other values."""
    kind, *other_kinds = {type(value) for value in values}
    if other_kinds or not (kind in (bool, int, float, np.ndarray) or issubclass(kind, np.generic)):
        return None
    arrays = [np.asarray(value) for value in values]
    is_uniform = len({(array.dtype, array.shape) for array in arrays}) == 1
    if not is_uniform or arrays[0].dtype.kind not in "biuf" or not arrays[0].size:
        return None
    return kind.__name__, np.stack(arrays)


def _unpacked_infos(stored: Mapping[str, Any] | None, note: Any, count: int) -> list[Any] | None:
    """Return the infos of `count` observations from Minari's columns and the note of `_packed_infos`.

    Without a note (None), the columns of another program become infos.

    Raises:
        ValueError: a column has another number of rows; names it.
    """
    if note == "empty":
        return [{} for _ in range(count)]
    if not stored:
        return None
    if note == "json":
        return [decode_object(json.loads(text)) for text in stored[_JSON]]

    kinds = dict.fromkeys(stored, "") if note is None else note
    infos: list[Any] = [{} for _ in range(count)]
    for key, kind in kinds.items():
        for info, value in zip(infos, _values_of(stored[key], kind, count, key)):
            info[key] = value
    return infos


def _values_of(column: Tree, kind: str, count: int, name: str) -> list[Any]:
    """Return the values of a stored column of infos, in the type that `kind` names."""
    if isinstance(column, Mapping):
        parts = {key: _values_of(part, "", count, f"{name}/{key}") for key, part in column.items()}
        return [{key: values[row] for key, values in parts.items()} for row in range(count)]
    if np.ndim(column) == 0 or len(column) != count:
        raise ValueError(f"infos {name!r} have {np.shape(column)} rows for {count} observations")
    if kind in ("bool", "int", "float"):
        return column.tolist()
    if kind == "ndarray":
        return [np.array(value) for value in column]
    return [value.decode() if isinstance(value, bytes) else value for value in column]


# ---- HDF5 ----------------------------------------------------------------------------------------------------


def _hdf5_of(episodes: Iterable[Mapping[str, Any]]) -> memoryview:
    """Return the content of an HDF5 file in Minari's layout.

    Each episode is a group `episode_<n>`, and a tuple is a group of `_index_<n>`.

    Args:
        episodes: For each episode a dict with `attributes`, and trees of arrays or lists of str by name
            (`observations`, ...).
    """
    h5py = import_module("h5py")
    content = io.BytesIO()
    with h5py.File(content, "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, **episode["attributes"]})
            for name, tree in episode.items():
                if name != "attributes" and tree is not None:
                    _add(h5py, group, name, tree)
    return content.getbuffer()


def _add(h5py: ModuleType, group: Any, name: str, tree: Tree) -> None:
    """Add a tree to a group under `name`."""
    if isinstance(tree, dict | tuple):
        parts = tree if isinstance(tree, dict) else {f"_index_{i}": part for i, part in enumerate(tree)}
        branch = group.create_group(name)
        for key, part in parts.items():
            _add(h5py, branch, key, part)
        return

    rows: Any
    if isinstance(tree, list) or tree.dtype.kind == "U":
        rows = list(tree)
        shape: tuple[int, ...] = ()
        dtype = h5py.string_dtype("utf-8")
    else:
        rows = np.ascontiguousarray(tree)
        shape = rows.shape[1:]
        dtype = None
    # Chunks that can grow, so that Minari can append to an episode.
    group.create_dataset(name, data=rows, dtype=dtype, chunks=True, maxshape=(None, *shape))


_NOTE = "lockstep"
"""Key of the note in the options of an episode."""
_LONGEST_NOTE = 60_000
"""Largest number of characters of a note: HDF5 holds attributes of up to 64 KiB."""
_COLUMNS_NOTE = "lockstep_batch_columns"
"""Key of the names and dtypes of a batch's columns in the metadata of a dataset."""
_BATCH_COLUMNS = (
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.TERMINATEDS),
    *(Columns.TRUNCATEDS, Columns.T, Columns.EPS_ID),
)
"""Columns of a batch that Minari has a place for."""
_REQUIRED_COLUMNS = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS)

_MODULES = (
    *("h5py", "PIL", "minari", "minari.dataset.minari_dataset", "minari.namespace"),
    *("minari.dataset.minari_storage", "minari.serialization", "minari.storage"),
)
"""Modules of Minari, and packages that it imports late, so that a missing one is named before anything is written."""
_DAMAGE = (*(OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError), AssertionError)
"""Errors of Minari and its dependencies on damaged or foreign datasets."""


def _minari() -> Any:
    """Return the package minari with all modules that are used here; `ImportError` says what to install."""
    try:
        for name in _MODULES:
            import_module(name)
    except ImportError as error:
        raise ImportError(f"Minari datasets need more packages: {install_hint('offline')} ({error})") from None
    return import_module("minari")


# ---- writing -------------------------------------------------------------------------------------------------


def write_minari(
    dataset_id: str,
    data: SampleBatch | Sequence[SingleAgentEpisode],
    *,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write episodes, or the episodes of a batch, as a local dataset, and return its directory.

    Lookback is not written. The file is made in memory first, and the dataset appears when it is complete.

    Args:
        dataset_id: Id of the dataset, `<name>-v<version>` or `<namespace>/<name>-v<version>`.
        data: Episodes, or a batch with the columns `obs`, `new_obs`, `actions`, `rewards` and `terminateds`. The batch
            may have `truncateds`, `infos`, `t` and `eps_id` as well.
        observation_space: Space of an observation. Defaults to that of the first episode.
        action_space: Space of an action. Defaults to that of the first episode.
        overwrite: Replace a dataset of the same id.
        metadata: Further entries for Minari (`algorithm_name`, `description`, ...).

    Raises:
        ValueError: the id is malformed or exists, a space is missing, the data does not fit the spaces, an episode has
            no steps, Minari has no place for a column or an extra model output, or a `new_obs` differs from the `obs`
            of the next row.
        TypeError: infos hold objects that JSON cannot express.
        OSError: the dataset cannot be written; names it.
    """
    minari = _minari()
    namespace = _namespace_of(minari, dataset_id)
    extra_metadata = dict(metadata or {})
    if isinstance(data, SampleBatch):
        flat = data.to_numpy().flat()
        extra_metadata[_COLUMNS_NOTE] = [[name, _type_of(column)] for name, column in flat.items()]
        data = _episodes_of(flat)
    episodes = list(data)
    if not episodes:
        raise ValueError("there is no episode to write")

    if observation_space is None:
        observation_space = episodes[0].observation_space
    if action_space is None:
        action_space = episodes[0].action_space
    _check_spaces(minari, {"observation_space": observation_space, "action_space": action_space})

    path = Path(minari.storage.get_dataset_path(dataset_id))
    if path.exists() and not overwrite:
        raise ValueError(f"there is a dataset {dataset_id!r} at {path} already; overwrite=True replaces it")
    parts = [_parts_of(number, episode, observation_space, action_space) for number, episode in enumerate(episodes)]
    content = _hdf5_of(parts)

    if namespace is not None and namespace not in minari.namespace.list_local_namespaces():
        minari.namespace.create_namespace(namespace)
    clear_stale(path.parent)
    temporary = temporary_sibling(path)
    try:
        (temporary / "data").mkdir(parents=True)
        storage = minari.dataset.minari_storage.MinariStorage.new(
            temporary / "data", observation_space, action_space, data_format="hdf5", jpeg_encoding=False
        )
        with (temporary / "data" / "main_data.hdf5").open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        dataset_metadata = {
            "total_episodes": len(episodes),
            "total_steps": sum(map(len, episodes)),
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "dataset_size": storage.get_size(),
        }
        storage.update_metadata({**dataset_metadata, **extra_metadata})
        move_into_place(temporary, path)
    except OSError as error:
        raise OSError(f"the Minari dataset {dataset_id!r} cannot be written to {path}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _namespace_of(minari: ModuleType, dataset_id: str) -> str | None:
    """Return the namespace of a dataset id, or None; `ValueError` for a malformed id."""
    try:
        return minari.dataset.minari_dataset.parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):
        raise ValueError(
            f"dataset_id={dataset_id!r}; allowed are '<name>-v<version>' and '<namespace>/<name>-v<version>', of "
            "letters, digits, '-' and '_', the namespace of at least two"
        ) from None


def _check_spaces(minari: ModuleType, spaces: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless Minari can store each space without loss."""
    codec = minari.serialization
    for name, space in spaces.items():
        if space is None:
            raise ValueError(f"{name} is needed: the first episode has none, give {name}=...")
        try:
            restored = codec.deserialize_space(codec.serialize_space(space))
        except RuntimeError:  # a kind of space that Minari does not know
            restored = None
        if restored != space or getattr(restored, "dtype", None) != getattr(space, "dtype", None):
            raise ValueError(f"{name} is {space}, which Minari cannot keep (it would be {restored})")


def _parts_of(number: int, episode: SingleAgentEpisode, observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return an episode in the form for `_hdf5_of`; `ValueError` if Minari cannot hold it."""
    where = f"episode {number} ({episode.id_!r})"
    if not len(episode):
        raise ValueError(f"{where} has no step; Minari keeps episodes of at least one")
    if episode.extra_keys:
        raise ValueError(
            f"{where} has the extra model outputs {sorted(episode.extra_keys)}, for which Minari has no place; "
            "leave them out, or keep the batch with to_parquet()"
        )

    observations = episode.get_observations()
    actions = episode.get_actions()
    _check_fits(observations, observation_space, f"{where}: observations")
    _check_fits(actions, action_space, f"{where}: actions")
    infos, infos_note = _packed_infos(episode.get_infos(), f"infos of {where}")
    terminations = np.zeros(len(episode), dtype=bool)
    truncations = np.zeros(len(episode), dtype=bool)
    terminations[-1] = episode.is_terminated
    truncations[-1] = episode.is_truncated

    note = {
        "id": encode_object(episode.id_, "id_"),
        "agent_id": encode_object(episode.agent_id, "agent_id"),
        "module_id": episode.module_id,
        "multi_agent_episode_id": episode.multi_agent_episode_id,
        "t_started": int(episode.t_started),
        "custom_data": encode_object(dict(episode.custom_data), f"custom_data of {where}"),
        "observations": encode_column(observations, _path_of, _path_of, "observations"),
        "actions": encode_column(actions, _path_of, _path_of, "actions"),
        "infos": infos_note,
    }
    text = json.dumps(note)
    if len(text) > _LONGEST_NOTE:
        raise ValueError(f"{where}: its custom_data and names take {len(text)} characters; Minari has room for 60,000")
    return {
        "attributes": {"total_steps": len(episode), f"options/{_NOTE}": text},
        "observations": observations,
        "actions": actions,
        "rewards": episode.get_rewards(),
        "terminations": terminations,
        "truncations": truncations,
        "infos": infos,
    }


def _check_fits(tree: Tree, space: Space[Any], name: str) -> None:
    """Raise `ValueError` unless a tree has the structure of the space, and rows of its shapes."""
    _check_keys(space)
    for part, leaf, path in leaves_of_space(space, tree, name):
        is_text = isinstance(part, Text)
        shape = () if is_text else tuple(part.shape)
        kinds = "U" if is_text else "biuf"
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in kinds or leaf.shape[1:] != shape:
            is_array = isinstance(leaf, np.ndarray)
            shown = f"{leaf.dtype}{list(leaf.shape[1:])}" if is_array else f"a {type(leaf).__name__}"
            raise ValueError(f"{path} have rows {shown}, which do not fit the space {part}")


def _check_keys(space: Space[Any]) -> None:
    """Raise `ValueError` if a key of a Dict space cannot be a name in an HDF5 file."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            if not _is_hdf5_name(key):
                raise ValueError(f"the key {key!r} cannot name a part of a Minari observation or action")
            _check_keys(part)
    elif isinstance(space, Tuple):
        for part in space.spaces:
            _check_keys(part)


def _path_of(_: np.ndarray, path: str) -> str:
    """Return the path of an array as its key: it is stored in the HDF5 file under that path."""
    return path


def _type_of(column: Tree) -> str | None:
    return column.dtype.str if isinstance(column, np.ndarray) and column.dtype != object else None


def _episodes_of(batch: SampleBatch) -> list[SingleAgentEpisode]:
    """Return the episodes of a flat batch; `ValueError` if some of its data would be lost."""
    if odd := [name for name in batch if name not in _BATCH_COLUMNS]:
        raise ValueError(f"columns {odd} have no place in Minari; allowed are {list(_BATCH_COLUMNS)}")
    if missing := [name for name in _REQUIRED_COLUMNS if name not in batch]:
        raise ValueError(f"column {missing[0]!r} is missing; columns are {sorted(batch)}")

    episodes = []
    row = 0
    for part in batch.split_by_episode():
        if not part.is_single_trajectory():
            raise ValueError(f"rows {row} to {row + len(part)} have one eps_id, but an end among them")
        zip_trees(_check_chain, [part[Columns.OBS], part[Columns.NEXT_OBS]], f"new_obs (from row {row} on)")
        times = part.get(Columns.T)
        if times is not None and not np.array_equal(times, times[0] + np.arange(len(part))):
            raise ValueError(f"column 't' of the episode from row {row} on does not count its steps")
        episodes.append(SingleAgentEpisode.from_sample_batch(part))
        row += len(part)
    return episodes


def _check_chain(pair: list[Any]) -> Any:
    """Raise `ValueError` unless each `new_obs` is the `obs` of the next row; `pair` is (obs, new_obs) of one leaf."""
    # Bytes are compared, since NaN differs from itself.
    obs, new_obs = (np.ascontiguousarray(leaf) for leaf in pair)
    if obs.dtype != new_obs.dtype or obs[1:].tobytes() != new_obs[:-1].tobytes():
        raise ValueError("new_obs of a row is not the obs of the row after it, so that Minari would lose one of them")
    return obs


# ---- reading -------------------------------------------------------------------------------------------------


def read_minari(dataset_id: str) -> list[SingleAgentEpisode]:
    """Return all episodes of a local dataset. They have the spaces of the dataset.

    Raises:
        FileNotFoundError: there is no such dataset. Nothing is downloaded.
        ValueError: the dataset is damaged, or an episode ends before its last step; names the dataset.
    """
    return [episode for episode, _ in _read(dataset_id)]


def read_minari_batch(dataset_id: str) -> SampleBatch:
    """Return all steps of a local dataset as a batch. If a batch was written, its columns are restored.

    Errors are those of `read_minari`.
    """
    batches = []
    columns = None
    for episode, columns_note in _read(dataset_id):
        batches.append(episode.get_sample_batch())
        columns = columns_note  # the same for all episodes
    batch = concat_samples(batches)
    if columns is None:
        return batch
    return SampleBatch({name: batch[name] if dtype is None else batch[name].astype(dtype) for name, dtype in columns})


def _read(dataset_id: str) -> Iterator[tuple[SingleAgentEpisode, Any]]:
    """Iterate over (episode, note of the batch's columns or None) of a dataset."""
    minari = _minari()
    path = Path(minari.storage.get_dataset_path(dataset_id))
    if not (path / "data").is_dir():
        raise FileNotFoundError(f"there is no Minari dataset {dataset_id!r} at {path}; nothing is downloaded")
    try:
        _check_sizes(path / "data")
        dataset = minari.MinariDataset(path / "data")
        storage = dataset.storage
        indices = range(dataset.total_episodes)
        columns = storage.metadata.get(_COLUMNS_NOTE)
        episodes = zip(storage.get_episodes(indices), storage.get_episode_metadata(indices), strict=True)
        for stored, episode_metadata in episodes:
            yield _episode_of(stored, episode_metadata, dataset), columns
    except _DAMAGE as error:
        raise ValueError(f"the Minari dataset {dataset_id!r} at {path} cannot be read: {error!r}") from error


def _check_sizes(folder: Path) -> None:
    """Check that a dataset fits into memory, since Minari lists all episodes and reads every array of an HDF5 file.

    Raises:
        ClaimedSizeError: the dataset does not fit. A compressed array of 10^15 zeros takes a few bytes.
    """
    num_episodes = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["total_episodes"]
    check_claim("its list of episodes", 8 * count_of("its list of episodes", [num_episodes]))
    file = folder / "main_data.hdf5"
    if not file.exists():
        return  # a dataset in Arrow format, whose compressed sizes are not checked
    h5py = import_module("h5py")
    sizes: list[int] = []

    def add_size(_: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append(item.nbytes)

    with h5py.File(file) as content:
        content.visititems(add_size)
    check_claim("what it holds, unpacked,", sum(sizes))


def _episode_of(stored: Mapping[str, Any], episode_metadata: Mapping[str, Any], dataset: Any) -> SingleAgentEpisode:
    """Return the episode of Minari's stored arrays and metadata."""
    text = episode_metadata.get("options", {}).get(_NOTE)
    note = json.loads(text) if text is not None else {}
    num_steps = len(stored["rewards"])
    terminated = _ends(stored, "terminations")
    truncated = _ends(stored, "truncations")

    if note:

        def get(path: str) -> np.ndarray:
            return np.asarray(reduce(_part_of, path.split("/"), stored))

        observations, actions = (decode_column(note[name], get, get) for name in ("observations", "actions"))
    else:
        observations = _ordered(stored["observations"], dataset.observation_space)
        actions = _ordered(stored["actions"], dataset.action_space)

    episode = SingleAgentEpisode(
        decode_object(note["id"]) if note else str(stored["id"]),
        observations=observations,
        observation_space=dataset.observation_space,
        actions=actions,
        action_space=dataset.action_space,
        rewards=np.asarray(stored["rewards"]),
        infos=_unpacked_infos(stored["infos"], note.get("infos"), num_steps + 1),
        terminated=terminated,
        truncated=truncated,
        t_started=note.get("t_started", 0),
        agent_id=decode_object(note.get("agent_id")),
        module_id=note.get("module_id"),
        multi_agent_episode_id=note.get("multi_agent_episode_id"),
    )
    episode.custom_data = decode_object(note["custom_data"]) if note else {}
    return episode


def _ends(stored: Mapping[str, Any], name: str) -> bool:
    """Return the last of an episode's flags; `ValueError` if an earlier one is set."""
    flags = np.asarray(stored[name], dtype=bool)
    if flags[:-1].any():
        num_steps = len(stored["rewards"])
        raise ValueError(f"{name} of episode {stored['id']} end it at step {int(np.argmax(flags))} of {num_steps}")
    return bool(flags[-1:].any())


def _part_of(tree: Tree, name: str) -> Any:
    """Return the part of a dict or tuple under `name`."""
    return tree[int(name)] if isinstance(tree, tuple) else tree[name]


def _ordered(tree: Tree, space: Space[Any]) -> Tree:
    """Return the tree of a dataset of another program, with its keys in the order of the space."""
    return map_pair(lambda _, leaf: np.asarray(leaf), allocate(space, 0), tree)
