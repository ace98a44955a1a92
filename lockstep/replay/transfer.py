"""Moving rows between buffers and batches: joining, dropping, taking in and giving out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.actions import told
from lockstep.data.columns import Columns
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import leaves
from lockstep.replay.intake import check_columns
from lockstep.replay.ring import CUT, LOST, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    from lockstep.replay.buffer import ReplayBuffer

NOT_STORED = (Columns.EPS_ID, Columns.T, Columns.INFOS, Columns.DONES, Columns.BATCH_INDEXES, Columns.SEQ_LENS)
"""columns of a batch that `extend` leaves out"""
CHUNK = 65_536
"""rows that are looked at in one go"""


def copy_rows(source: ReplayBuffer, rows: np.ndarray, target: ReplayBuffer, buffer_id: int) -> np.ndarray:
    """Appends stored rows, in this order and of one sub-buffer of `source`, to one of `target`; their new indices.

    Episodes under way in the target are left before, those of the last row after. A row whose predecessor is not
    copied begins an episode of which the beginning is lost.
    """
    target.cut([buffer_id])
    if not len(rows):
        return rows
    ring, taken = source._ring, target._ring
    before = ring.prev(rows)
    goes_on = np.zeros(len(rows), bool)
    goes_on[:-1] = before[1:] == rows[:-1]
    orphans = (before != rows) | ring.begins_lost(rows)
    orphans[1:] &= ~goes_on[:-1]
    done = (ring.flags[rows] & (TERMINATED | TRUNCATED)) != 0
    marks = np.where(goes_on | done, 0, CUT).astype(np.uint8)
    marks[:-1] |= np.where(orphans[1:], LOST, 0).astype(np.uint8)
    was_empty = taken.count[buffer_id] == 0
    if orphans[0] and not was_empty:
        taken.flags[taken.newest[buffer_id]] |= LOST
    index = np.concatenate(
        [
            append(target, source._reader.plain(rows[start : start + CHUNK]), buffer_id, marks[start : start + CHUNK])
            for start in range(0, len(rows), CHUNK)
        ]
    )
    if orphans[0] and was_empty and len(rows) <= taken.size:
        taken.inherits[buffer_id] = True
    return index


def append(buffer: ReplayBuffer, batch: Any, buffer_id: int, cuts: np.ndarray) -> np.ndarray:
    """Adds rows one after another to one sub-buffer, with further flags `cuts`; their indices."""
    number, size = len(np.asarray(batch[Columns.REWARDS])), buffer._ring.size
    values = buffer._conformed(batch, number, False)
    index = np.empty(number, np.int64)
    for start in range(0, number, size):
        piece = slice(start, start + size)
        part = [value[piece] for value in values]
        index[piece] = buffer._write(np.full(len(part[0]), buffer_id), part, cuts[piece].copy()).indices
    return index


def join(target: ReplayBuffer, other: ReplayBuffer, *, replace: bool = False) -> np.ndarray:
    """See `ReplayBuffer.update`; with `replace` the target is emptied before, once it is known that the rows fit."""
    if other._ring is target._ring:
        raise ValueError("a buffer cannot be updated with itself, nor with another view of its rows")
    if not len(target) and target.action_form is None:
        form = other.action_form
    elif other.action_form == target.action_form:
        form = target.action_form
    else:
        raise ValueError(
            f"the buffer holds {told(target.action_form)}, the other one {told(other.action_form)}; "
            "extend(other.to_batch()) translates them; where they are the same already, set its action_form"
        )
    check_fits(target, other)
    target.action_form = form
    if replace:
        target.reset()
    found = []
    for b, rows in enumerate(rows_by_buffer(other)):
        found.append(copy_rows(other, rows, target, b % target.buffer_num))
    return np.concatenate(found)


def check_fits(target: ReplayBuffer, other: ReplayBuffer) -> None:
    """`KeyError` or `ValueError` where stored rows of `other` are none that the target takes. Writes nothing."""
    if target.schema == other.schema:
        return
    rows = other._ring.in_order()
    for start in range(0, len(rows), CHUNK):
        piece = other._reader.plain(rows[start : start + CHUNK])
        target._conformed(piece, len(piece[Columns.REWARDS]), False)


def rows_by_buffer(buffer: ReplayBuffer) -> list[np.ndarray]:
    """The stored rows of each sub-buffer, oldest first."""
    return np.split(buffer._ring.in_order(), np.cumsum(buffer._ring.count)[:-1])


def null_rows(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """bool [N]: is there a NaN in any column of a transition?"""
    found = np.zeros(len(rows), bool)
    for start in range(0, len(rows), CHUNK):
        piece = slice(start, start + CHUNK)
        for column in buffer._reader.plain(rows[piece]).values():
            for leaf in leaves(column):
                if leaf.dtype.kind in "fc":
                    found[piece] |= np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1)
    return found


def drop_nulls(buffer: ReplayBuffer) -> int:
    """See `ReplayBuffer.dropnull`."""
    if not buffer.hasnull():
        return 0
    before, state, emptied = len(buffer), buffer.get_state(), buffer.empty_twin()
    without_nulls(buffer, emptied)
    found = emptied.get_state()
    state.update({name: found[name] for name in ("ring", "columns", "next_obs")})
    if found["priorities"] is not None:
        state["priorities"]["values"] = found["priorities"]["values"]
    buffer.set_state(state)
    return before - len(buffer)


def without_nulls(buffer: ReplayBuffer, emptied: ReplayBuffer) -> None:
    """Copies what has no NaN from `buffer` to an empty buffer of the same kind, priorities included."""
    goes_on = buffer._ring.go_on()
    for b, rows in enumerate(rows_by_buffer(buffer)):
        kept = rows[~null_rows(buffer, rows)]
        index = copy_rows(buffer, kept, emptied, b)
        if buffer.priorities is not None and emptied.priorities is not None:
            emptied.priorities.tree[index] = buffer.priorities.tree[kept]
        newest = buffer._ring.newest[[b]]
        if len(kept) and kept[-1] == newest[0] and buffer._ring.flags[newest[0]] == 0:
            _keep_open(buffer, emptied, b, kept, index)
        elif goes_on[b]:
            emptied.cut([b], goes_on=True)


def _keep_open(source: ReplayBuffer, target: ReplayBuffer, b: int, kept: np.ndarray, index: np.ndarray) -> None:
    """The episode under way in sub-buffer `b` goes on in the target; what was dropped of it does not count."""
    ring, taken = source._ring, target._ring
    taken.flags[taken.newest[b]] = 0
    first, _ = ring.episode_bounds(kept[-1:])
    breaks = np.flatnonzero(ring.prev(kept[1:]) != kept[:-1]) + 1
    begin = int(breaks[-1]) if len(breaks) else 0
    if kept[begin] == first[0]:  # nothing of it was dropped
        taken.returns[b], taken.lengths[b] = ring.returns[b], ring.lengths[b]
        taken.starts[b] = index[begin] if ring.starts[b] == first[0] else -1
        return
    taken.returns[b] = source._reader.rewards[kept[begin:]].astype(np.float64).sum(axis=0)
    taken.lengths[b], taken.starts[b] = len(kept) - begin, index[begin]


def to_batch(buffer: ReplayBuffer) -> SampleBatch:
    """See `ReplayBuffer.to_batch`."""
    rows = buffer._ring.in_order()
    columns = buffer._reader.plain(rows)
    if buffer.action_form is not None and rows.size:
        columns[Columns.ACTIONS] = buffer.action_form.to_env(columns[Columns.ACTIONS])
    starts = buffer._ring.prev(rows) == rows
    number = np.cumsum(starts) - 1
    firsts = np.flatnonzero(starts)
    columns[Columns.EPS_ID] = number.astype(np.int64)
    columns[Columns.T] = (np.arange(len(rows)) - firsts[number]).astype(np.int64) if len(rows) else rows
    return SampleBatch(columns)


def extend(buffer: ReplayBuffer, batch: Any) -> np.ndarray:
    """See `ReplayBuffer.extend`."""
    check_columns(batch)
    batch = flat_rows(batch)
    columns = {name: column for name, column in dict(batch).items() if name not in NOT_STORED}
    number = len(np.asarray(columns[Columns.REWARDS]))
    index = np.empty(number, np.int64)
    if not number:
        return index
    if buffer.action_form is not None:
        columns[Columns.ACTIONS] = buffer.action_form.from_env(np.asarray(columns[Columns.ACTIONS]))
    lengths, cuts = episodes_in(batch)
    owner = spread(lengths, buffer._ring.count)
    plain = SampleBatch(columns)
    for b in range(buffer.buffer_num):
        rows = np.flatnonzero(np.repeat(owner == b, lengths))
        if len(rows):
            buffer.cut([b])
            part = plain if len(rows) == number else plain[rows]
            index[rows] = append(buffer, part, b, np.where(cuts[rows], CUT, 0).astype(np.uint8))
    return index


def flat_rows(batch: Any) -> Any:
    """The batch without rows that only fill up its sequences."""
    return batch._flat() if isinstance(batch, SampleBatch) else batch


def episodes_in(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the episodes of a batch with at least one row, and bool [n], where one is left without being done."""
    ends = np.asarray(batch[Columns.TERMINATEDS], bool) | np.asarray(batch[Columns.TRUNCATEDS], bool)
    breaks = ends.copy()
    breaks[-1] = True
    for name in (Columns.EPS_ID, Columns.AGENT_ID):
        if name in batch:
            ids = np.asarray(batch[name])
            breaks[:-1] |= ids[1:] != ids[:-1]
    if Columns.T in batch:  # ids may repeat where batches were joined
        times = np.asarray(batch[Columns.T])
        breaks[:-1] |= times[1:] <= times[:-1]
    lasts = np.flatnonzero(breaks)
    return np.diff(lasts, prepend=-1), breaks & ~ends


def spread(lengths: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """The sub-buffer of each episode: the one that has the fewest rows by then."""
    load = filled.astype(np.int64).copy()
    owner = np.empty(len(lengths), np.int64)
    for k, length in enumerate(lengths.tolist()):
        owner[k] = b = int(load.argmin())
        load[b] += length
    return owner
