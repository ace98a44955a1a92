"""The state of a replay buffer: as copies, or for a checkpoint as views in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data.trees import map_tree
from lockstep.replay.segments import Segments

if TYPE_CHECKING:
    from lockstep.replay.buffer import ReplayBuffer


def get_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """See `ReplayBuffer.get_state`."""
    return {**_beside_columns(buffer), "columns": buffer._store.get_state(buffer._ring.used())}


def checkpoint_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """See `ReplayBuffer.checkpoint_state`."""
    state = _beside_columns(buffer)
    if not buffer._store.leaves:
        return {**state, "columns": {}}
    schema = {
        name: map_tree(lambda shape: [list(shape.shape), shape.dtype.str], tree)
        for name, tree in buffer._store.shapes().items()
    }
    return {**state, "schema": schema, **buffer._segments.give()}


def _beside_columns(buffer: ReplayBuffer) -> dict[str, Any]:
    ring, shared, priorities = buffer._ring, buffer._shared, buffer.priorities
    return {
        "size": [ring.size, ring.num_buffers],
        "num_added": buffer.num_added,
        "streams": buffer.streams.get_state(),
        "ring": ring.get_state(),
        "next_obs": None if shared is None else shared.get_state(),
        "priorities": None if priorities is None else priorities.get_state(ring.used()),
    }


def set_state(buffer: ReplayBuffer, state: Mapping[str, Any]) -> None:
    """See `ReplayBuffer.set_state`."""
    ring = buffer._ring
    size = [ring.size, ring.num_buffers]
    columns = state["columns"] if "columns" in state else Segments.join(state, state["schema"])
    if list(state["size"]) != size:
        raise ValueError(f"the state has {list(state['size'])} rows and sub-buffers, this buffer {size}")
    parts = {"priorities": buffer.priorities is not None, "next_obs": buffer.options.ignore_obs_next}
    for part, present in parts.items():
        if columns and (state[part] is not None) != present:
            raise ValueError(f"the state was made {'without' if present else 'with'} {part}, this buffer otherwise")
    if columns:
        buffer._store.set_state(columns)
        buffer._know()
    ring.set_state(state["ring"])
    if buffer._shared is not None and state["next_obs"] is not None:
        buffer._shared.set_state(state["next_obs"])
    if buffer.priorities is not None:
        buffer.priorities.set_state(state["priorities"])
    buffer.streams.set_state(state["streams"])
    buffer.num_added = int(state["num_added"])
