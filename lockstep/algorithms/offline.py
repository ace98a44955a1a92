"""From what somebody has collected to what an offline algorithm learns from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data import OfflineDataset, SampleBatch, read_minari_batch
from lockstep.data.actions import told
from lockstep.data.columns import Columns
from lockstep.data.config import OfflineDataSection
from lockstep.data.trees import leaves, named_leaves
from lockstep.learner.learner import Learner
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.replay.rows import REQUIRED, TABLE_FORMATS, read_table
from lockstep.replay.storage import Shape, shapes_of_rows, shapes_of_space
from lockstep.rollout.errors import MalformedBufferError
from lockstep.rollout.finite import first_not_finite
from lockstep.state.checkpoint import MANIFEST
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.algorithms.policy import Policy

OfflineData = ReplayBuffer | OfflineRows
MINARI_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+")
AT_ONCE = 65_536
"""rows that are looked at together"""


def open_data(section: OfflineDataSection) -> Any:
    """What `offline_data(input_=...)` names, as it is: a `SampleBatch`, an `OfflineDataset` or a `ReplayBuffer`.

    Raises `ValueError` where nothing is named, `FileNotFoundError` for what is not there, `KeyError` for columns that
    there are not.
    """
    section.validate()
    given, columns = section.input_, section.columns
    if given is None:
        raise ValueError(
            "offline_data.input_ is not set; give the path of a file that write_rows wrote, the id of a Minari "
            "dataset, or a replay buffer (lockstep train: --set offline_data.input_=PATH)"
        )
    if isinstance(given, str) and MINARI_ID.fullmatch(given) and not _is_here(Path(given)):
        given = _minari_batch(given)
    elif isinstance(given, str | Path) and Path(given).suffix in TABLE_FORMATS:
        if not Path(given).exists():
            raise FileNotFoundError(f"there is no file {given} (offline_data.input_)")
        given = read_table(Path(given))
    elif isinstance(given, str | Path) and Path(given).is_dir():
        given = ReplayBuffer.load(given)
    elif isinstance(given, str | Path | list | tuple):
        return OfflineDataset(given, columns=columns, max_memory_bytes=section.max_memory_bytes)
    if columns is None or not isinstance(given, SampleBatch):
        return given
    wanted = dict(columns) if isinstance(columns, Mapping) else dict(zip(columns, columns))
    missing = [name for name in wanted.values() if name not in given]
    if missing:
        raise KeyError(f"the offline data have no column {missing[0]!r}; columns are {sorted(given)}")
    return SampleBatch({name: given[source] for name, source in wanted.items()})


def _is_here(path: Path) -> bool:
    """Is it a file, or the folder of a buffer? One of Minari's may have the path that is its id."""
    return path.is_file() or (path / MANIFEST).exists()


def _minari_batch(dataset_id: str) -> SampleBatch:
    """A local Minari dataset; `FileNotFoundError` that says how to get one."""
    try:
        return read_minari_batch(dataset_id)
    except FileNotFoundError as error:
        own = dataset_id.startswith("lockstep/")
        how = "python benchmarks/make_offline_data.py makes it; " if own else ""
        raise FileNotFoundError(
            f"{error}; {how}offline_data.input_ takes other data: an id or a path (--set offline_data.input_=PATH)"
        ) from None


def offline_source(given: Any, policy: Policy) -> OfflineData:
    """Data in the form from which gradient steps draw, checked against the policy.

    `given`: a `ReplayBuffer`, taken as it is where it holds the actions that the policy learns from (see its
    `action_form`), or something that holds the environment's actions, which are translated: a `SampleBatch`, an
    `OfflineDataset`, the id of a local Minari dataset, or the path of a file. Batches with all columns of a transition
    become a `ReplayBuffer`, others `OfflineRows`.

    Raises `MalformedBufferError` for what is empty, has NaN or infinity, lacks columns, does not fit the policy's
    spaces, or is a `ReplayBuffer` with other actions; `FileNotFoundError` for a path or dataset that is not there.
    """
    if isinstance(given, str | Path) or (
        isinstance(given, list | tuple) and given and isinstance(given[0], str | Path)
    ):
        given = open_data(OfflineDataSection(input_=given))
    source = _source(given, policy)
    if len(source) == 0:
        raise MalformedBufferError(f"the offline data are empty ({source!r}); give some with transitions")
    _check_rows(source, policy)
    if isinstance(source, ReplayBuffer):
        check_whose_actions(source, policy)
        check_numbers(source, "the offline data")
        _check_actions(source.column(Columns.ACTIONS), policy)
    return source


def fit_normalizers(data: OfflineData, policy: Policy) -> None:
    """Gives the observation statistics of the policy all rows, once. Nothing where there are none."""
    if not policy.connectors.obs.has_statistics:
        return
    for start in range(0, len(data), AT_ONCE):
        if isinstance(data, ReplayBuffer):
            obs = data[data.indices()[start : start + AT_ONCE]][Columns.OBS]
        else:
            obs = data[np.arange(start, min(start + AT_ONCE, len(data)))][Columns.OBS]
        policy.connectors.update(obs, None)
    if not policy.learner_group.is_local:  # it acts with a copy
        state = policy.connectors.obs.get_state()
        policy.learner_group.foreach_learner(_take_obs_statistics, DEFAULT_MODULE_ID, state)


def _source(given: Any, policy: Policy) -> OfflineData:
    if isinstance(given, ReplayBuffer | OfflineRows):
        return given
    seed = RandomStreams(policy.config.debugging.seed).seed("replay")
    if isinstance(given, OfflineDataset):
        return OfflineRows(given, seed=seed, convert=partial(_to_learn_from, policy=policy))
    if not isinstance(given, SampleBatch):
        raise MalformedBufferError(
            f"the offline data are a {type(given).__name__}; give a ReplayBuffer, a SampleBatch, an OfflineDataset, "
            "the id of a Minari dataset, or the path of a file"
        )
    batch = SampleBatch({name: column for name, column in given.to_numpy().items() if name != Columns.INFOS})
    batch = _to_learn_from(batch, policy)
    if len(batch) and all(name in batch for name in REQUIRED):
        buffer = ReplayBuffer.from_batch(batch, gamma=policy.config.training.gamma, seed=seed)
        buffer.action_form = policy.action_form
        return buffer
    return OfflineRows(batch, seed=seed)


def _to_learn_from(batch: SampleBatch, policy: Policy) -> SampleBatch:
    """The batch with actions as the policy learns from them."""
    _check_finite(batch, "the offline data")
    if Columns.ACTIONS not in batch:
        return batch
    actions = policy.from_env(np.asarray(batch[Columns.ACTIONS]))
    _check_actions(actions, policy)
    return SampleBatch({**dict(batch.items()), Columns.ACTIONS: actions})


def _check_rows(source: OfflineData, policy: Policy) -> None:
    """Columns and shapes of one row against the learner and the policy's spaces."""
    row = source[source.indices()[:1]] if isinstance(source, ReplayBuffer) else source[np.arange(1)]
    missing = [name for name in required_columns(policy) if name not in row]
    if missing:
        raise MalformedBufferError(
            f"{policy.config.algorithm} needs the column {missing[0]!r}; the offline data have {sorted(row)}"
        )
    expected = shapes_of_space(policy.observation_space)
    for name in (Columns.OBS, Columns.NEXT_OBS):
        if name in row and _dims(shapes_of_rows(name, row[name])) != _dims(expected):
            raise MalformedBufferError(
                f"column {name!r} of the offline data has rows of {shapes_of_rows(name, row[name])}, the policy's "
                f"observations are {policy.observation_space}"
            )


def required_columns(policy: Policy) -> tuple[str, ...]:
    """Columns without which the policy's learners cannot learn."""
    names: tuple[str, ...] = policy.learner_group.first_learner(_columns_of, DEFAULT_MODULE_ID)
    return names


def _columns_of(learner: Learner, module_id: str) -> tuple[str, ...]:
    return learner.required_columns(module_id)


def _take_obs_statistics(learner: Learner, module_id: str, state: Any) -> None:
    learner.connectors[module_id].obs.set_state(state)


def check_numbers(buffer: ReplayBuffer, what: str) -> None:
    """Raises `MalformedBufferError` for a buffer with NaN anywhere, or infinity in what is learned from."""
    if buffer.hasnull():
        raise MalformedBufferError(f"{what} have transitions with NaN; call dropnull() on the buffer first")
    before = 0
    for piece in buffer.pieces():
        _check_finite(piece, what, before)
        before += len(piece[Columns.REWARDS])


def _check_finite(columns: Mapping[str, Any], what: str, before: int = 0) -> None:
    """`before`: rows that were looked at before these."""
    for name in REQUIRED:
        for path, leaf in named_leaves(name, columns[name]) if name in columns else ():
            where = first_not_finite(np.asarray(leaf))
            if where is not None:
                raise MalformedBufferError(
                    f"{what} have {leaf[tuple(where)]} in column {path!r} (row {before + where[0]} of "
                    f"{before + len(leaf)} looked at); only finite numbers are allowed: leave such rows out, or mend "
                    "what wrote them"
                )


def check_whose_actions(buffer: ReplayBuffer, policy: Policy) -> None:
    """Raises `MalformedBufferError` for a buffer whose actions are not those that the policy learns from."""
    if buffer.action_form != policy.action_form:
        raise MalformedBufferError(
            f"the replay buffer holds {told(buffer.action_form)}, and the policy learns from "
            f"{told(policy.action_form)}; give buffer.to_batch(), which is translated, or set buffer.action_form = "
            "policy.action_form where its actions are the policy's already"
        )


def _dims(tree: Any) -> Any:
    if isinstance(tree, Shape):
        return tree.shape
    return {k: _dims(v) for k, v in tree.items()} if isinstance(tree, dict) else tuple(_dims(part) for part in tree)


def _check_actions(actions: Any, policy: Policy) -> None:
    """Raises `MalformedBufferError` for actions that the policy cannot take."""
    dist = policy.module.action_dist_cls
    (column,) = leaves(actions)
    if not len(column):
        return
    low, high = float(column.min()), float(column.max())
    if dist.is_discrete and hasattr(policy.action_space, "n") and np.ndim(column) == 1:
        num = int(policy.action_space.n)
        if not (column.dtype.kind in "iu" and low >= 0 and high < num):
            raise MalformedBufferError(
                f"actions of the offline data are {column.dtype} from {low:g} to {high:g}, the policy's are whole "
                f"numbers from 0 to {num - 1}"
            )
    elif hasattr(policy.connectors.actions, "inverse") and max(-low, high) > 1.001:
        raise MalformedBufferError(
            f"actions of the offline data reach from {low:g} to {high:g}, the policy's lie within [-1, 1] "
            "(policy.from_env translates the environment's)"
        )


__all__ = ["OfflineData", "check_whose_actions", "fit_normalizers", "offline_source", "open_data", "required_columns"]
