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
MINARI_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+")


def open_data(section: OfflineDataSection) -> Any:
    """Open what `offline_data(input_=...)` names: a `SampleBatch`, an `OfflineDataset` or a `ReplayBuffer`.

    Raises:
        ValueError: nothing is named.
        FileNotFoundError: what is named is not there.
        KeyError: a column that is not there.
    """
    section.validate()
    data, columns = section.input_, section.columns
    if data is None:
        raise ValueError(
            "offline_data.input_ is not set; give the path of a file that write_rows wrote, the id of a Minari "
            "dataset, or a replay buffer (lockstep train: --set offline_data.input_=PATH)"
        )
    if isinstance(data, str) and MINARI_ID.fullmatch(data) and not _is_here(Path(data)):
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
    wanted = dict(columns) if isinstance(columns, Mapping) else dict(zip(columns, columns))
    missing = [name for name in wanted.values() if name not in data]
    if missing:
        raise KeyError(f"the offline data have no column {missing[0]!r}; columns are {sorted(data)}")
    return SampleBatch({name: data[source] for name, source in wanted.items()})


def _is_here(path: Path) -> bool:
    """Whether it is a file, or the folder of a buffer; Minari's data may lie under a path that is their id."""
    return path.is_file() or (path / MANIFEST).exists()


def _minari_batch(dataset_id: str) -> SampleBatch:
    """Read a local Minari dataset; `FileNotFoundError` says how to get one."""
    try:
        return read_minari_batch(dataset_id)
    except FileNotFoundError as error:
        is_ours = dataset_id.startswith("lockstep/")
        how = "python benchmarks/learning/make_offline_data.py makes it; " if is_ours else ""
        raise FileNotFoundError(
            f"{error}; {how}offline_data.input_ takes other data: an id or a path (--set offline_data.input_=PATH)"
        ) from None


def offline_source(data: object, policy: Policy, origin: str = "") -> OfflineData:
    """Return data in the form from which gradient steps draw, checked against the policy.

    Args:
        data: a `ReplayBuffer`, taken as it is where it holds the actions that the policy learns from (see its
            `action_form`), or something that holds the environment's actions, which are translated: a `SampleBatch`,
            an `OfflineDataset`, the id of a local Minari dataset, or the path of a file. Batches with all columns of a
            transition become a `ReplayBuffer`, others `OfflineRows`.
        policy: the policy, of a single agent.
        origin: where the data come from, for errors; a path that is given says it itself.

    Raises:
        MalformedBufferError: data that are empty, have NaN or infinity, lack columns, do not fit the policy's spaces,
            or are a `ReplayBuffer` with other actions.
        FileNotFoundError: a path or dataset that is not there.
    """
    if isinstance(data, str | Path) or (isinstance(data, list | tuple) and data and isinstance(data[0], str | Path)):
        origin = origin or str(data)
        data = open_data(OfflineDataSection(input_=data))
    part = policy.acting[DEFAULT_MODULE_ID]
    if part.recorded.has_memory and not isinstance(data, ReplayBuffer):
        names = [type(connector).__name__ for connector in part.recorded.connectors if connector.has_memory]
        raise MalformedBufferError(
            f"the policy has {', '.join(names)}, which follows environments step by step; give a ReplayBuffer that a "
            "collector of the policy has filled, whose observations are those that it has made"
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
    if isinstance(data, ReplayBuffer | OfflineRows):
        return data
    seed = RandomStreams(part.config.debugging.seed).seed("replay")
    if isinstance(data, OfflineDataset):
        return OfflineRows(data, seed=seed, convert=partial(_to_learn_from, part=part, origin=origin))
    if not isinstance(data, SampleBatch):
        raise MalformedBufferError(
            f"the offline data are a {type(data).__name__}; give a ReplayBuffer, a SampleBatch, an OfflineDataset, "
            "the id of a Minari dataset, or the path of a file"
        )
    batch = SampleBatch({name: column for name, column in data.to_numpy().items() if name != Columns.INFOS})
    batch = _to_learn_from(batch, part, origin)
    if len(batch) and all(name in batch for name in REQUIRED):
        buffer = ReplayBuffer.from_batch(batch, gamma=part.config.training.gamma, seed=seed)
        buffer.action_form = part.action_form
        return buffer
    return OfflineRows(batch, seed=seed)


def _to_learn_from(batch: SampleBatch, part: ActingPolicy, origin: str = "") -> SampleBatch:
    """Return the batch with actions as the policy learns from them."""
    _check_finite(batch, "the offline data")
    if Columns.ACTIONS not in batch:
        return batch
    given = map_tree(np.asarray, batch[Columns.ACTIONS])
    if isinstance(given, np.ndarray):
        _check_action_shape(given, part.random_space, origin)
    actions = part.from_env(given)
    _check_actions(actions, part)
    return SampleBatch({**dict(batch.items()), Columns.ACTIONS: actions})


def _check_rows(source: OfflineData, part: ActingPolicy, required: tuple[str, ...]) -> None:
    """Refuse data whose first row lacks columns or does not have the shapes of the policy's spaces."""
    row = source[source.indices()[:1]]
    missing = [name for name in required if name not in row]
    if missing:
        raise MalformedBufferError(
            f"{part.config.algorithm} needs the column {missing[0]!r}; the offline data have {sorted(row)}"
        )
    expected = shapes_of_space(part.seen_space)
    for name in (Columns.OBS, Columns.NEXT_OBS):
        if name in row and _dims(shapes_of_rows(name, row[name])) != _dims(expected):
            raise MalformedBufferError(
                f"column {name!r} of the offline data has rows of {shapes_of_rows(name, row[name])}, the policy's "
                f"observations are {part.seen_space}"
            )


def check_numbers(buffer: ReplayBuffer, what: str) -> None:
    """Raise `MalformedBufferError` for a buffer with NaN anywhere, or infinity in what is learned from."""
    if buffer.hasnull():
        raise MalformedBufferError(f"{what} have transitions with NaN; call dropnull() on the buffer first")
    before = 0
    for piece in buffer.pieces():
        _check_finite(piece, what, before)
        before += len(piece[Columns.REWARDS])


def _check_finite(columns: Mapping[str, Any], what: str, before: int = 0) -> None:
    """Refuse NaN and infinity; `before`: rows that were looked at before these."""
    for name in REQUIRED:
        for path, leaf in named_leaves(name, columns[name]) if name in columns else ():
            where = first_not_finite(np.asarray(leaf))
            if where is not None:
                raise MalformedBufferError(
                    f"{what} have {leaf[tuple(where)]} in column {path!r} (row {before + where[0]} of "
                    f"{before + len(leaf)} looked at); only finite numbers are allowed: leave such rows out, or mend "
                    "what wrote them"
                )


def _dims(tree: Tree) -> Any:
    if isinstance(tree, Shape):
        return tree.shape
    return {k: _dims(v) for k, v in tree.items()} if isinstance(tree, dict) else tuple(_dims(part) for part in tree)


def _check_action_shape(column: np.ndarray, space: spaces.Space[Any], origin: str) -> None:
    """Raise `MalformedBufferError` for rows of actions that are wider or narrower than those of `space`."""
    if isinstance(space, COMPOSITE):
        return
    found, wanted = column.shape[1:], tuple(space.shape or ())
    fits = found == wanted if isinstance(space, spaces.Discrete) else np.prod(found) == np.prod(wanted)
    if not fits:
        where = f"column 'actions' of the offline data{f' ({origin})' if origin else ''}"
        raise MalformedBufferError(
            f"{where} has rows of shape {found}, the policy's actions have shape {wanted} ({space}); give data of an "
            "environment with the policy's actions"
        )


def _check_actions(actions: Tree, part: ActingPolicy) -> None:
    """Raise `MalformedBufferError` for actions that the policy cannot take."""
    (column,) = leaves(actions)
    space = part.action_space
    if isinstance(space, COMPOSITE):
        parts = list(action_leaves(space))
        for leaf, columns in zip(parts, np.split(column, np.cumsum(list(map(action_width, parts)))[:-1], axis=-1)):
            _check_part(columns, leaf, part)
    elif not isinstance(space, spaces.Discrete) or np.ndim(column) == 1:
        _check_part(column, space, part)


def _check_part(column: np.ndarray, space: spaces.Space[Any], part: ActingPolicy) -> None:
    if not len(column):
        return
    low, high = float(column.min()), float(column.max())
    if isinstance(space, spaces.Discrete):
        num = int(space.n)
        kinds = "iuf" if isinstance(part.action_space, COMPOSITE) else "iu"
        whole = column.dtype.kind in kinds and (column == np.rint(column)).all()
        if not (whole and low >= 0 and high < num):
            raise MalformedBufferError(
                f"actions of the offline data are {column.dtype} from {low:g} to {high:g}, the policy's are whole "
                f"numbers from 0 to {num - 1}"
            )
    elif (
        isinstance(space, spaces.Box)
        and part.connectors.actions is not None
        and part.connectors.actions.rescales
        and max(-low, high) > 1.001
    ):
        raise MalformedBufferError(
            f"actions of the offline data reach from {low:g} to {high:g}, the policy's lie within [-1, 1] "
            "(policy.from_env translates the environment's)"
        )
