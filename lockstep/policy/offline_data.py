"""Prepare recorded data for offline learning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data import OfflineDataset, SampleBatch, read_minari_batch
from lockstep.data.actions import COMPOSITE, action_leaves, action_width
from lockstep.data.columns import Columns
from lockstep.data.config import OfflineDataSection
from lockstep.data.trees import Tree, leaves, map_tree, named_leaves
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.policy import Policy
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.replay.rows import REQUIRED, TABLE_FORMATS, read_table
from lockstep.replay.storage import Shape, shapes_of_rows, shapes_of_space
from lockstep.rollout.errors import MalformedBufferError, first_not_finite
from lockstep.state.checkpoint import MANIFEST
from lockstep.state.streams import RandomStreams

OfflineData = ReplayBuffer | OfflineRows
"""Data from which gradient steps draw samples."""
MINARI_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+")
"""Pattern of the ids of Minari's data sets, such as `D4RL/door/human-v2`."""


def open_data(section: OfflineDataSection) -> Any:
    """Open the data of the option `offline_data.input_`: a `SampleBatch`, an `OfflineDataset` or a `ReplayBuffer`.

    Raises:
        ValueError: The option is not set.
        FileNotFoundError: The file or data set does not exist.
        KeyError: A column of the option `columns` does not exist.
    """
    section.validate()
    data, columns = section.input_, section.columns
    if data is None:
        raise ValueError(
            "offline_data.input_ is not set; give the path of a file that write_rows wrote, the id of a Minari "
            "dataset, or a replay buffer (lockstep train: --set offline_data.input_=PATH)"
        )
    if isinstance(data, str) and MINARI_ID.fullmatch(data) and not _is_local_data(Path(data)):
        data = _minari_batch(data)
    elif isinstance(data, str | Path) and Path(data).suffix in TABLE_FORMATS:
        if not Path(data).exists():
            raise FileNotFoundError(f"there is no file {data} (offline_data.input_)")
        data = read_table(Path(data))
    elif isinstance(data, str | Path) and Path(data).is_dir():
        data = ReplayBuffer.load(data)
    elif isinstance(data, str | Path | list | tuple):
        return OfflineDataset(data, columns=columns, max_memory_bytes=section.max_memory_bytes)
    if columns is None or not isinstance(data, SampleBatch):
        return data
    sources = dict(columns) if isinstance(columns, Mapping) else dict(zip(columns, columns))
    missing = [source for source in sources.values() if source not in data]
    if missing:
        raise KeyError(f"the offline data have no column {missing[0]!r}; columns are {sorted(data)}")
    return SampleBatch({name: data[source] for name, source in sources.items()})


def _is_local_data(path: Path) -> bool:
    """Return whether the path is a file or the folder of a replay buffer.

    A folder alone is not enough: Minari may have downloaded the data set into a folder named after its id.
    """
    return path.is_file() or (path / MANIFEST).exists()


def _minari_batch(dataset_id: str) -> SampleBatch:
    """Return a local Minari data set. Raises `FileNotFoundError`, which says how to get it."""
    try:
        return read_minari_batch(dataset_id)
    except FileNotFoundError as error:
        is_ours = dataset_id.startswith("lockstep/")
        advice = "python benchmarks/learning/make_offline_data.py makes it; " if is_ours else ""
        raise FileNotFoundError(
            f"{error}; {advice}offline_data.input_ takes other data: an id or a path (--set offline_data.input_=PATH)"
        ) from None


def offline_source(data: object, policy: Policy, origin: str = "") -> OfflineData:
    """Return data in the form from which gradient steps draw samples, checked against the policy.

    Args:
        data: A `ReplayBuffer`, whose actions must have the form that the policy learns from (`action_form`); or data
            with the environment's actions, which are converted: a `SampleBatch`, an `OfflineDataset`, the id of a local
            Minari data set, or the path of a file. Batches with all columns of a transition become a `ReplayBuffer`,
            other data `OfflineRows`.
        policy: The policy, of a single agent.
        origin: Name of the data in errors. Defaults to the path, if `data` is one.

    Raises:
        MalformedBufferError: The data are empty, have NaN or infinity, lack columns, or do not fit the policy's spaces;
            or a `ReplayBuffer` has actions of another form.
        FileNotFoundError: A path or data set does not exist.
    """
    is_list_of_paths = isinstance(data, list | tuple) and bool(data) and isinstance(data[0], str | Path)
    if isinstance(data, str | Path) or is_list_of_paths:
        origin = origin or str(data)
        data = open_data(OfflineDataSection(input_=data))
    part = policy.acting[DEFAULT_MODULE_ID]
    if part.recorded.has_memory and not isinstance(data, ReplayBuffer):
        names = [type(connector).__name__ for connector in part.recorded.connectors if connector.has_memory]
        raise MalformedBufferError(
            f"the policy has {', '.join(names)}, whose output depends on earlier steps; give a ReplayBuffer that a "
            "collector of the policy has filled, because its observations have passed through these connectors"
        )
    source = _source(data, part, origin)
    if len(source) == 0:
        raise MalformedBufferError(f"the offline data are empty ({source!r}); give some with transitions")
    _check_rows(source, part, policy.required_columns)
    if isinstance(source, ReplayBuffer):
        part.check_action_form(source)
        check_numbers(source, "the offline data")
        (actions,) = leaves(source.column(Columns.ACTIONS))
        _check_action_shape(actions, part.action_space, origin)
        _check_actions(actions, part)
    return source


def _source(data: object, part: ActingPolicy, origin: str) -> OfflineData:
    """Return data in the form from which gradient steps draw samples."""
    if isinstance(data, ReplayBuffer | OfflineRows):
        return data
    seed = RandomStreams(part.config.debugging.seed).seed("replay")
    if isinstance(data, OfflineDataset):
        return OfflineRows(data, seed=seed, convert=partial(_with_learned_actions, part=part, origin=origin))
    if not isinstance(data, SampleBatch):
        raise MalformedBufferError(
            f"the offline data are a {type(data).__name__}; give a ReplayBuffer, a SampleBatch, an OfflineDataset, "
            "the id of a Minari dataset, or the path of a file"
        )
    batch = SampleBatch({name: column for name, column in data.to_numpy().items() if name != Columns.INFOS})
    batch = _with_learned_actions(batch, part, origin)
    if len(batch) and all(name in batch for name in REQUIRED):
        buffer = ReplayBuffer.from_batch(batch, gamma=part.config.training.gamma, seed=seed)
        buffer.action_form = part.action_form
        return buffer
    return OfflineRows(batch, seed=seed)


def _with_learned_actions(batch: SampleBatch, part: ActingPolicy, origin: str = "") -> SampleBatch:
    """Return a batch with its actions converted to the form that the policy learns from."""
    _check_finite(batch, "the offline data")
    if Columns.ACTIONS not in batch:
        return batch
    env_actions = map_tree(np.asarray, batch[Columns.ACTIONS])
    if isinstance(env_actions, np.ndarray):
        _check_action_shape(env_actions, part.random_space, origin)
    actions = part.from_env(env_actions)
    _check_actions(actions, part)
    return SampleBatch({**dict(batch.items()), Columns.ACTIONS: actions})


def _check_rows(source: OfflineData, part: ActingPolicy, required: tuple[str, ...]) -> None:
    """Raise `MalformedBufferError` if the first row lacks columns, or does not have the shapes of the policy's
    spaces."""
    row = source[source.indices()[:1]]
    missing = [name for name in required if name not in row]
    if missing:
        raise MalformedBufferError(
            f"{part.config.algorithm} needs the column {missing[0]!r}; the offline data have {sorted(row)}"
        )
    expected = shapes_of_space(part.stored_observation_space)
    for name in (Columns.OBS, Columns.NEXT_OBS):
        if name in row and _dims(shapes_of_rows(name, row[name])) != _dims(expected):
            raise MalformedBufferError(
                f"column {name!r} of the offline data has rows of {shapes_of_rows(name, row[name])}, the policy's "
                f"observations are {part.stored_observation_space}"
            )


def check_numbers(buffer: ReplayBuffer, label: str) -> None:
    """Raise `MalformedBufferError` for a buffer with NaN, or with infinity in a column that losses read.

    `label`: name of the data at the beginning of the message.
    """
    if buffer.hasnull():
        raise MalformedBufferError(f"{label} have transitions with NaN; call dropnull() on the buffer first")
    num_rows_before = 0
    for piece in buffer.pieces():
        _check_finite(piece, label, num_rows_before)
        num_rows_before += len(piece[Columns.REWARDS])


def _check_finite(columns: Mapping[str, Any], label: str, num_rows_before: int = 0) -> None:
    """Raise `MalformedBufferError` for NaN and infinity. `num_rows_before`: number of rows checked before these."""
    for name in REQUIRED:
        if name not in columns:
            continue
        for path, leaf in named_leaves(name, columns[name]):
            index = first_not_finite(np.asarray(leaf))
            if index is not None:
                raise MalformedBufferError(
                    f"{label} have {leaf[tuple(index)]} in column {path!r} (row {num_rows_before + index[0]} of "
                    f"{num_rows_before + len(leaf)} looked at); only finite numbers are allowed: leave such rows out, "
                    "or fix what wrote them"
                )


def _dims(tree: Tree) -> Any:
    """Return a tree of `Shape`s as a tree of their dimensions, without the dtypes."""
    if isinstance(tree, Shape):
        return tree.shape
    if isinstance(tree, dict):
        return {name: _dims(part) for name, part in tree.items()}
    return tuple(_dims(part) for part in tree)


def _check_action_shape(column: np.ndarray, space: spaces.Space[Any], origin: str) -> None:
    """Raise `MalformedBufferError` unless the rows of a column of actions have the shape of `space`."""
    if isinstance(space, COMPOSITE):
        return
    shape = column.shape[1:]
    expected = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        fits = shape == expected
    else:
        # Actions may be flattened.
        fits = np.prod(shape) == np.prod(expected)
    if not fits:
        suffix = f" ({origin})" if origin else ""
        raise MalformedBufferError(
            f"column 'actions' of the offline data{suffix} has rows of shape {shape}, the policy's actions have shape "
            f"{expected} ({space}); give data of an environment with the policy's actions"
        )


def _check_actions(actions: Tree, part: ActingPolicy) -> None:
    """Raise `MalformedBufferError` for actions, as learned from, that the policy cannot take."""
    (column,) = leaves(actions)
    space = part.action_space
    if isinstance(space, COMPOSITE):
        # The parts of a composite action are side by side in one row.
        subspaces = list(action_leaves(space))
        ends = np.cumsum([action_width(subspace) for subspace in subspaces])
        for subspace, columns in zip(subspaces, np.split(column, ends[:-1], axis=-1)):
            _check_part(columns, subspace, part)
    # Vectors for a Discrete space are not checked: action connectors map the module's vectors to the environment's
    # numbers, so the space does not bound them.
    elif not isinstance(space, spaces.Discrete) or np.ndim(column) == 1:
        _check_part(column, space, part)


def _check_part(column: np.ndarray, space: spaces.Space[Any], part: ActingPolicy) -> None:
    """Raise `MalformedBufferError` for actions outside of a space, or of one part of a composite space."""
    if not len(column):
        return
    low, high = float(column.min()), float(column.max())
    if isinstance(space, spaces.Discrete):
        num_actions = int(space.n)
        # In a composite action whole numbers are stored as floats, next to the numbers of other parts.
        kinds = "iuf" if isinstance(part.action_space, COMPOSITE) else "iu"
        is_whole = column.dtype.kind in kinds and (column == np.rint(column)).all()
        if not (is_whole and low >= 0 and high < num_actions):
            raise MalformedBufferError(
                f"actions of the offline data are {column.dtype} from {low:g} to {high:g}, the policy's are whole "
                f"numbers from 0 to {num_actions - 1}"
            )
    elif (
        isinstance(space, spaces.Box)
        and part.connectors.actions is not None
        and part.connectors.actions.rescales
        and max(-low, high) > 1.001  # rounding may leave [-1, 1] a little
    ):
        raise MalformedBufferError(
            f"actions of the offline data reach from {low:g} to {high:g}, the policy's lie within [-1, 1] "
            "(policy.from_env translates the environment's)"
        )
