"""The state of a replay buffer: as copies, or for a checkpoint as views in pieces; copies of whole buffers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from lockstep.data.actions import ActionForm, told
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
        "action_form": None if buffer.action_form is None else buffer.action_form.get_state(),
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
        (rows, number), (own_rows, own_number) = state["size"], size
        raise ValueError(
            f"the state is of a buffer of size={rows * number} with buffer_num={number}, this one has "
            f"size={own_rows * own_number} with buffer_num={own_number}; make it with the same"
        )
    parts = {"priorities": buffer.priorities is not None, "next_obs": buffer.options.ignore_obs_next}
    for part, present in parts.items():
        if columns and (state[part] is not None) != present:
            option = {"priorities": "priorities (PrioritizedReplayBuffer)", "next_obs": "ignore_obs_next=True"}[part]
            raise ValueError(
                f"the state was made {'without' if present else 'with'} {option}, this buffer "
                f"{'with' if present else 'without'}; make it alike"
            )
    # one written before buffers knew whose actions they hold: they are those of who collected
    form = ActionForm.from_state(state["action_form"]) if "action_form" in state else buffer.action_form
    if buffer.action_form not in (None, form):
        raise ValueError(f"the state has {told(form)}, this buffer {told(buffer.action_form)}")
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
    buffer.action_form = form


def reduce(buffer: ReplayBuffer) -> tuple[Any, ...]:
    """What another buffer like this is made of. The columns are views on memory, which copy as arrays of their own:
    so a buffer is built anew and given the state.
    """
    made = {
        **buffer.options.keywords(),
        "storage": buffer._store.storage,  # files in a temporary folder of their own
        "priorities": buffer.priority_options(),
        "hindsight": buffer.hindsight,
    }
    of_a_subclass = {name: value for name, value in vars(buffer).items() if name not in _attributes()}
    return rebuild, (type(buffer), buffer.options.size, made, get_state(buffer)), of_a_subclass


def rebuild(cls: type[ReplayBuffer], size: int, made: Mapping[str, Any], state: Mapping[str, Any]) -> ReplayBuffer:
    """A buffer of this class from what `reduce` told."""
    from lockstep.replay.buffer import ReplayBuffer

    buffer = cls.__new__(cls)
    ReplayBuffer.__init__(buffer, size, **made)
    buffer.set_state(state)
    return buffer


def deep_copy(buffer: ReplayBuffer, memo: dict[int, Any]) -> ReplayBuffer:
    """A buffer of its own; functions (schedules, goals) are the same."""
    build, parts, of_a_subclass = reduce(buffer)
    twin: ReplayBuffer = build(*parts)
    memo[id(buffer)] = twin
    vars(twin).update(copy.deepcopy(of_a_subclass, memo))
    return twin


@cache
def _attributes() -> frozenset[str]:
    from lockstep.replay.buffer import ReplayBuffer

    one = spaces.Discrete(1)
    return frozenset(vars(ReplayBuffer(1, observation_space=one, action_space=one)))
