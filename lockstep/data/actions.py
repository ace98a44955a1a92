"""The two forms of an action, the policy's and the environment's, and action masks.

A policy learns from flat actions that begin at 0 (*the policy's form*). The environment takes values of its action
space (*the environment's form*): dicts, tuples, offsets, bounds. A mask says which choices are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import Tree, leaves_of_space, map_tree, rows_of
from lockstep.ops.arrays import Array, Constant, as_dtype, clip, constant_like, split_columns

COMPOSITE = (spaces.Dict, spaces.Tuple)
"""Action spaces with parts, nested or not. Their actions are trees."""
ACTION_COLUMN = np.float32
"""Dtype of composite actions in the policy's form: all parts in one row. Whole numbers up to 2**24 are exact in it."""


def action_leaves(space: Space[Any]) -> Iterator[Space[Any]]:
    """Iterate over the simple spaces of an action space, in its order. A simple space yields itself."""
    if isinstance(space, COMPOSITE):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from action_leaves(part)
    else:
        yield space


def action_width(space: Space[Any]) -> int:
    """Return how many columns an action occupies in the policy's form of a composite action."""
    return sum(int(np.prod(_shape(leaf), dtype=int)) for leaf in action_leaves(space))


def like_space(space: Space[Any], parts: Iterator[Any]) -> Tree:
    """Return a tree built like an action space, with the next of `parts` in place of each simple space."""
    if isinstance(space, spaces.Dict):
        return {key: like_space(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(like_space(part, parts) for part in space.spaces)
    return next(parts)


def to_space(space: Space[Any], actions: Array) -> Tree:
    """Return actions of the policy in the shape, dtype and offset of an action space, without rescaling.

    Args:
        space: Action space of the environment.
        actions: Array or tensor `[..., A]`, or `[...]` for Discrete.

    Returns:
        Actions of the space; a tree for Dict and Tuple. They are the argument itself if nothing changes.
    """
    if isinstance(space, spaces.Discrete):
        return actions if space.start == 0 else actions + int(space.start)
    if isinstance(space, COMPOSITE):
        leaves = list(action_leaves(space))
        columns = split_columns(actions, [action_width(leaf) for leaf in leaves])
        return like_space(space, (_part_to_space(leaf, column) for leaf, column in zip(leaves, columns)))

    leading = actions.shape[:-1]
    actions = as_dtype(actions.reshape(leading + _shape(space)), np.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions + constant_like(space.start, actions)
    return actions


def _part_to_space(space: Space[Any], column: Array) -> Tree:
    """Return one part of a composite action from its columns `[..., A]`, which are floats."""
    if isinstance(space, spaces.Discrete):
        return to_space(space, as_dtype(column[..., 0], space.dtype))
    return to_space(space, column)


def from_space(space: Space[Any], actions: Tree) -> np.ndarray:
    """Return actions of a space in the policy's form, without rescaling: the inverse of `to_space`.

    Actions of a Dict or Tuple become one float32 array `[..., A]` with the parts next to each other.
    """
    if isinstance(space, COMPOSITE):
        leaves = leaves_of_space(space, actions, "action")
        parts = [_part_from_space(leaf, np.asarray(part)) for leaf, part, _ in leaves]
        return np.concatenate(parts, axis=-1, dtype=ACTION_COLUMN, casting="unsafe")
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions) - (space.start if space.start else 0)

    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions - space.start
    leading = actions.shape[: actions.ndim - len(_shape(space))]
    return actions.reshape(*leading, -1)


def _part_from_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    flat = from_space(space, actions)
    return flat[..., None] if isinstance(space, spaces.Discrete) else flat


def _shape(space: Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def map_boxes(make: Callable[[Space[Any]], Any], space: Space[Any]) -> list[Any]:
    """Return a list with `make(box)` for each Box of a Dict or Tuple of actions, and None for each other part."""
    return [make(leaf) if isinstance(leaf, spaces.Box) else None for leaf in action_leaves(space)]


def apply_to_parts(functions: Iterable[Any], space: Space[Any], actions: Tree) -> Tree:
    """Return composite actions with each part mapped by its function. Parts without a function (None) stay."""
    parts = zip(functions, leaves_of_space(space, actions, "action"))
    return like_space(space, (part if function is None else function(part) for function, (_, part, _) in parts))


class RescaleActions:
    """Linear map of actions in [-1, 1] onto the bounds of a Box.

    Actions are `[..., A]`, or in the shape of the space; those outside [-1, 1] are clipped to the bounds. In a Dict or
    Tuple the parts that are a Box are mapped.

    Raises:
        ValueError: the space is not a Box, Dict or Tuple, or the bounds of a Box are not finite.
    """

    is_identity = False
    rescales = True
    """Whether this maps [-1, 1] onto the bounds, as in `Connector`."""
    on_device = True
    """Whether this consists of torch operations, as in `Connector`."""

    def __init__(self, action_space: Space[Any]) -> None:
        self._space = action_space
        self._parts: list[Any] = []
        if isinstance(action_space, COMPOSITE):
            self._parts = map_boxes(RescaleActions, action_space)
            return
        if not isinstance(action_space, spaces.Box) or not action_space.is_bounded():
            raise ValueError(f"RescaleActions needs a Box with finite bounds, got {action_space}")

        low = action_space.low.reshape(-1)
        high = action_space.high.reshape(-1)
        self._low = Constant(low)
        self._high = Constant(high)
        # Halved before they are added: bounds may be as large as their dtype allows, and the sum would overflow.
        self._centre = Constant(low / 2 + high / 2)
        self._half = Constant(high / 2 - low / 2)

    def check_plain(self, option: str) -> None:
        """Accept every option: there are no statistics and no memory, see `Connector.check_plain`."""

    def input_space(self, action_space: Space[Any]) -> Space[Any]:
        """Return the space of the module's actions: that of the environment, whose bounds become [-1, 1]."""
        return action_space

    def __call__(self, actions: Tree) -> Tree:
        """Map actions from [-1, 1] to the bounds."""
        if self._parts:
            return apply_to_parts(self._parts, self._space, actions)
        half, centre, low, high = (each.like(actions) for each in (self._half, self._centre, self._low, self._high))
        rows = actions.reshape(-1, low.shape[0])
        return clip(rows * half + centre, low, high).reshape(actions.shape)

    def export_call(self, actions: Tree, memory: Mapping[str, Any]) -> tuple[Tree, dict[str, Any]]:
        """Return the output of `__call__` for tensors and an empty memory, see `Connector.export_call`."""
        return self(actions), {}

    def inverse(self, actions: Tree) -> Tree:
        """Map actions from the bounds to [-1, 1]; to 0 if both bounds are equal."""
        if self._parts:
            return apply_to_parts([part and part.inverse for part in self._parts], self._space, actions)
        centre = self._centre.array
        half = self._half.array
        rows = actions.reshape(-1, centre.size)
        return ((rows - centre) / np.where(half > 0, half, 1.0)).reshape(actions.shape)


@dataclass(frozen=True)
class ActionForm:
    """Form of the actions that a policy learns from, if it differs from the environment's form.

    Attributes:
        action_space: Action space of the environment.
        rescaled: Whether the policy's actions lie in [-1, 1] instead of the bounds of a Box.
    """

    action_space: Space[Any]
    rescaled: bool = False

    @classmethod
    def of(cls, action_space: Space[Any], rescaled: bool = False) -> ActionForm | None:
        """Return the form of the policy's actions, or None if both forms are equal."""
        if isinstance(action_space, COMPOSITE):
            return cls(action_space, rescaled)
        if rescaled and isinstance(action_space, spaces.Box):
            rescaled = bool((action_space.low != -1.0).any() or (action_space.high != 1.0).any())
        start = np.asarray(getattr(action_space, "start", 0))
        is_flat = isinstance(action_space, spaces.Discrete) or len(_shape(action_space)) == 1
        return None if is_flat and not rescaled and not start.any() else cls(action_space, rescaled)

    def to_env(self, actions: np.ndarray) -> Tree:
        """Return the policy's actions `[N, ...]` in the environment's form."""
        in_space = to_space(self.action_space, actions)
        return RescaleActions(self.action_space)(in_space) if self.rescaled else in_space

    def from_env(self, actions: Tree) -> np.ndarray:
        """Return the environment's actions in the policy's form."""
        if self.rescaled:
            actions = RescaleActions(self.action_space).inverse(actions)
        return from_space(self.action_space, actions)

    def get_state(self) -> dict[str, Any]:
        """Return the form as plain values."""
        return {"space": describe_space(self.action_space), "rescaled": self.rescaled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> ActionForm | None:
        """Return the form of a state of `get_state`; None for None."""
        return None if state is None else cls(space_from(state["space"]), bool(state["rescaled"]))


def single_action(actions: Tree, row: int) -> Tree:
    """Return a copy of one row of the environment's actions `[B, ...]`. Choices become plain ints."""

    def plain(part: np.ndarray) -> np.ndarray | int:
        # Environments may look a choice up in a dict or compare its type, for which an array will not do.
        return int(part) if part.ndim == 0 and part.dtype.kind in "iu" else part.copy()

    return map_tree(plain, rows_of(actions, row))


def describe_actions(form: ActionForm | None) -> str:
    """Return words for messages that say which form actions have. None is the environment's form."""
    if form is None:
        return "the environment's actions"
    return f"actions {'rescaled to [-1, 1]' if form.rescaled else 'flat, from 0'}, for {form.action_space}"


# ---- action masks --------------------------------------------------------------------------------------------

ACTION_MASK = "action_mask"
"""Key of the mask in an observation."""


def carries_mask(space: Space[Any]) -> bool:
    """Return whether an observation space is a Dict with the entry `"action_mask"`.

    Raises:
        ValueError: the mask is the only entry, or it is deeper in the space, and nothing would read it.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        if len(space.spaces) == 1:
            raise ValueError(f"observation space {space} has nothing but an action mask; put observations beside it")
        return True

    place = _place_of_mask(space)
    if place is not None:
        raise ValueError(
            f"observation space {space} has an action mask at {place}, where it is not looked for; move it to the top: "
            'spaces.Dict({"observations": ..., "action_mask": ...})'
        )
    return False


def _place_of_mask(space: Space[Any]) -> str | None:
    """Return the place of an action mask in a nested space, as keys in brackets; None if there is no mask."""
    parts: Any = ()
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    for key, part in parts:
        place = "" if key == ACTION_MASK else _place_of_mask(part)
        if place is not None:
            return f"[{key!r}]{place}"
    return None


def without_mask(obs: Any) -> Any:
    """Return an observation, or its space, without the action mask: the other entry, or a dict of several others."""
    entries = {key: obs[key] for key in obs.keys() if key != ACTION_MASK}  # noqa: SIM118 - a space is no dict
    if len(entries) == 1:
        return next(iter(entries.values()))
    return spaces.Dict(list(entries.items())) if isinstance(obs, spaces.Dict) else entries


def mask_size(action_space: Space[Any]) -> int:
    """Return the number of entries in a mask for these actions: one for each choice of every part with choices."""
    return sum(map(_num_choices, action_leaves(action_space)))


def _num_choices(space: Space[Any]) -> int:
    """Return the number of mask entries of a simple space; 0 for one that cannot be masked, such as a Box."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape, dtype=int))
    return 0


def mask_parts(action_space: Space[Any], mask: Tree, name: str = ACTION_MASK) -> Iterator[tuple[int, Any, str]]:
    """Iterate over (number of entries, part, name) of an action mask, in the order of the choices.

    Args:
        action_space: Action space of the environment.
        mask: Space of the mask, or masks `[..., entries]`. It is one vector of all choices, or built like the Dict or
            Tuple of actions, with a vector for each part that has choices. Parts without choices have no mask.
        name: Name of the mask in errors.

    Raises:
        ValueError: the mask has another structure.
    """
    has_parts = isinstance(mask, Mapping | tuple | list | spaces.Dict | spaces.Tuple)
    if not has_parts or not isinstance(action_space, COMPOSITE):
        yield mask_size(action_space), mask, name
        return

    is_dict = isinstance(action_space, spaces.Dict)
    action_parts: Any = action_space.spaces
    keyed_parts = action_parts.items() if is_dict else enumerate(action_parts)
    with_choices = {key: part for key, part in keyed_parts if mask_size(part)}

    is_mask_dict = isinstance(mask, Mapping | spaces.Dict)
    masks = dict(mask.items()) if is_mask_dict else dict(zip(with_choices, mask))
    fits = masks.keys() == with_choices.keys() and len(mask) == len(with_choices)
    if not fits or is_dict != is_mask_dict:
        has = sorted(masks) if is_mask_dict else f"{len(mask)} parts"
        raise ValueError(
            f"{name} has {has}; it must be one vector of {mask_size(action_space)} entries, or a "
            f"{type(action_space).__name__} with a mask for each of {list(with_choices)}"
        )
    for key, part in with_choices.items():
        yield from mask_parts(part, masks[key], f"{name}[{key!r}]")


def check_mask_space(action_space: Space[Any], mask: Space[Any]) -> None:
    """Raise `ValueError` if actions of this space cannot be masked, or the space of the mask does not fit them."""
    if not mask_size(action_space):
        raise ValueError(
            f"actions of {action_space} cannot be masked; only Discrete, MultiDiscrete and MultiBinary can, and Dicts "
            "and Tuples with one of them. Leave the mask out"
        )
    for size, part, name in mask_parts(action_space, mask):
        if part.shape != (size,):
            raise ValueError(
                f"the {name} {part} must have shape ({size},), one entry for each choice of {action_space}"
            )


def flat_mask(action_space: Space[Any], mask: Tree) -> np.ndarray:
    """Return masks in any allowed structure as one array `[..., choices]`."""
    parts = [part for _, part, _ in mask_parts(action_space, mask)]
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _sizes_of_choices(space: spaces.Space[Any]) -> list[int]:
    """Return the number of actions of each choice in a simple space; an empty list for bits and for other spaces."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    return []


def forbidden_rows(space: Space[Any], actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return which actions the masks forbid, bool `[N]`.

    Args:
        space: Action space of the environment.
        actions: Actions `[N, ...]` in the policy's form.
        mask: Masks `[N, choices]`, as `flat_mask` returns them.
    """
    leaves = list(action_leaves(space))
    columns = split_columns(actions.reshape(len(mask), -1), [action_width(leaf) for leaf in leaves])
    masks = split_columns(mask != 0, [_num_choices(leaf) for leaf in leaves])
    is_forbidden = np.zeros(len(mask), bool)
    for leaf, column, allowed in zip(leaves, columns, masks):
        if isinstance(leaf, spaces.MultiBinary):
            # A mask entry of a bit says whether it may be 1; it may always be 0.
            is_forbidden |= ((column != 0) & ~allowed).any(1)
        elif sizes := _sizes_of_choices(leaf):
            entries = column.astype(np.int64) + np.cumsum([0, *sizes[:-1]])
            is_forbidden |= ~np.take_along_axis(allowed, entries, 1).all(1)
    return is_forbidden


def allows_nothing(space: Space[Any], mask: np.ndarray) -> bool:
    """Return whether a mask `[choices]` of `flat_mask` forbids every action of some choice."""
    leaves = list(action_leaves(space))
    for leaf, part in zip(leaves, split_columns(mask, [_num_choices(leaf) for leaf in leaves])):
        sizes = _sizes_of_choices(leaf)
        if sizes and not all(choice.any() for choice in split_columns(part, sizes)):
            return True
    return False


def allowed_actions(space: Space[Any], rng: np.random.Generator, mask: np.ndarray) -> Tree:
    """Draw actions `[N, ...]` of a space that the masks `[N, choices]` of `flat_mask` allow.

    The allowed actions of each choice are equally likely; if none is allowed, the first one is drawn. A bit that must
    not be 1 is 0. Parts of a composite action without choices are drawn as in `random_actions`.
    """
    if isinstance(space, COMPOSITE):
        leaves = list(action_leaves(space))
        ends = np.cumsum([_num_choices(leaf) for leaf in leaves])
        masks = np.split(mask, ends[:-1], axis=1)
        return like_space(space, (random_actions(leaf, rng, len(mask), part) for leaf, part in zip(leaves, masks)))

    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    # The largest of equally distributed numbers is a uniform draw; forbidden actions get one below all others.
    chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, spaces.Discrete):
        return (space.start + chances.argmax(1)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (chances >= 0.5).astype(space.dtype).reshape(-1, *space.shape)
    choices = np.split(chances, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
    actions = np.stack([choice.argmax(1) for choice in choices], axis=1).reshape(-1, *space.shape)
    return (space.start + actions).astype(space.dtype)


def random_actions(space: Space[Any], rng: np.random.Generator, number: int, masks: np.ndarray | None = None) -> Tree:
    """Draw actions `[number, ...]` from the distribution of `space.sample()`.

    Choices are equally likely, and a bounded Box is filled evenly. With `masks` `[number, choices]`, only actions that
    they allow are drawn.
    """
    if masks is not None and mask_size(space):
        return allowed_actions(space, rng, masks)
    if isinstance(space, COMPOSITE):
        return like_space(space, (random_actions(leaf, rng, number) for leaf in action_leaves(space)))
    # The usual spaces in one draw; others row by row, by gymnasium.
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, number, space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return rng.uniform(space.low, space.high, (number, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(number)])
