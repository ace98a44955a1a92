"""Replay buffers on disk: whole buffers as checkpoints, their transitions as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.minari_files import write_minari
from lockstep.data.sample_batch import SampleBatch
from lockstep.replay import transfer
from lockstep.replay.hindsight import Hindsight
from lockstep.replay.intake import check_columns
from lockstep.state import CheckpointError, ScheduleLike, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from lockstep.replay.buffer import ReplayBuffer

FORMATS = (".npz", ".parquet")


def save(buffer: ReplayBuffer, path: str | Path) -> Path:
    """See `ReplayBuffer.save`."""
    priorities = buffer.priority_options()
    if priorities is not None and callable(priorities["beta"]):
        priorities["beta"] = None
    hindsight = buffer.hindsight
    made = {
        "class": type(buffer).__name__,
        "size": buffer.options.size,
        "options": buffer.options.keywords(),
        "priorities": priorities,
        "hindsight": None if hindsight is None else {"strategy": hindsight.strategy, "share": hindsight.share},
    }
    return write_checkpoint(path, {"": {"replay": made, **buffer.checkpoint_state()}})


def load(
    cls: type[ReplayBuffer],
    path: str | Path,
    storage: str,
    directory: str | Path | None,
    beta: ScheduleLike | None,
    hindsight: Hindsight | None,
) -> ReplayBuffer:
    """See `ReplayBuffer.load`."""
    from lockstep.replay.buffer import ReplayBuffer

    folders = read_checkpoint(path)
    if "replay" not in folders.get("", {}):
        raise CheckpointError(f"{path} is a checkpoint, but not of a replay buffer")
    state = folders[""]
    made = state.pop("replay")
    if cls is not ReplayBuffer and cls.__name__ != made["class"]:
        raise ValueError(f"{path} holds a {made['class']}, not a {cls.__name__}; ReplayBuffer.load reads every kind")
    priorities = made["priorities"]
    if priorities is not None:
        if beta is not None:
            priorities["beta"] = beta
        elif priorities["beta"] is None:
            raise ValueError("beta was a function, which no file holds: give it as load(path, beta=...)")
    if made["hindsight"] is not None and hindsight is None:
        raise ValueError(
            f"the buffer has hindsight ({made['hindsight']}), whose functions no file holds: give them as "
            "load(path, hindsight=Hindsight(compute_reward, ...))"
        )
    buffer = cls.__new__(cls)
    ReplayBuffer.__init__(
        buffer,
        made["size"],
        **made["options"],
        storage=storage,
        directory=directory,
        priorities=priorities,
        hindsight=hindsight,
    )
    buffer.set_state(state)
    return buffer


def export(buffer: ReplayBuffer, path: str | Path) -> Path:
    """See `ReplayBuffer.export`."""
    path = Path(path)
    _check_suffix(path)
    batch = buffer.to_batch()
    return batch.to_npz(path) if path.suffix == ".npz" else batch.to_parquet(path)


def to_minari(
    buffer: ReplayBuffer, dataset_id: str, observation_space: Any, action_space: Any, more: dict[str, Any]
) -> Path:
    """See `ReplayBuffer.to_minari`."""
    given = {"observation_space": observation_space, "action_space": action_space, **more}
    return write_minari(dataset_id, buffer.to_batch(), **given)


def import_batch(path: str | Path) -> SampleBatch:
    """The batch in a file of one of the `FORMATS`."""
    path = Path(path)
    _check_suffix(path)
    return SampleBatch.from_npz(path) if path.suffix == ".npz" else SampleBatch.from_parquet(path)


def make(cls: type[ReplayBuffer], batch: Any, size: int | None, options: dict[str, Any]) -> ReplayBuffer:
    """See `ReplayBuffer.from_batch`."""
    from lockstep.replay.buffer import ReplayBuffer

    if cls is not ReplayBuffer:
        raise TypeError(
            f"use ReplayBuffer, not {cls.__name__}, with the options buffer_num=, priorities=, hindsight= for its parts"
        )
    check_columns(batch)
    batch = transfer.flat_rows(batch)
    if size is None:
        num_buffers = options.get("buffer_num", 1)
        lengths = transfer.episodes_in(batch)[0] if len(batch["rewards"]) else np.ones(1, np.int64)
        owner = transfer.spread(lengths, np.zeros(num_buffers, np.int64))
        size = num_buffers * int(np.bincount(owner, lengths).max())
    buffer = ReplayBuffer(size, **options)
    buffer.extend(batch)
    return buffer


def _check_suffix(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name}: the name must end in one of {', '.join(FORMATS)}, which says the format")
