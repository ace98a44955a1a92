"""Actions as a policy learns from them, as an environment takes them, and as a mask allows them."""

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
"""action spaces with parts, nested or not: their actions are trees"""
ACTION_COLUMN = np.float32
"""of composite actions, whose parts lie side by side; whole numbers up to 2**24 are exact in it"""


def action_leaves(space: Space[Any]) -> Iterator[Space[Any]]:
    """Iterate over the simple spaces that an action space is made of, in its order: of a simple one itself."""
    if isinstance(space, COMPOSITE):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from action_leaves(part)
    else:
        yield space


def action_width(space: Space[Any]) -> int:
    """Return the numbers that an action takes as it is learned from, where it is part of a composite one."""
    return sum(int(np.prod(_shape(leaf), dtype=int)) for leaf in action_leaves(space))


def like_space(space: Space[Any], parts: Iterator[Any]) -> Tree:
    """Return the tree of an action space with the next of `parts` at each of its simple spaces."""
    if isinstance(space, spaces.Dict):
        return {key: like_space(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(like_space(part, parts) for part in space.spaces)
    return next(parts)


def to_space(space: Space[Any], actions: Array) -> Tree:
    """Bring flat actions from 0, `[..., A]` (`[...]` for Discrete), to the shape, dtype and offset of a space.

    They are an array or a tensor; of a Dict or Tuple they come as the tree of its parts. No copy where they are the
    same.
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
    if isinstance(space, spaces.Discrete):
        return to_space(space, as_dtype(column[..., 0], space.dtype))
    return to_space(space, column)


def from_space(space: Space[Any], actions: Tree) -> np.ndarray:
    """Return the inverse of `to_space`; of a Dict or Tuple the parts side by side, float32 `[..., A]`."""
    if isinstance(space, COMPOSITE):
        parts = [
            _part_from_space(leaf, np.asarray(part)) for leaf, part, _ in leaves_of_space(space, actions, "action")
        ]
        return np.concatenate(parts, axis=-1, dtype=ACTION_COLUMN, casting="unsafe")
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions) - (space.start if space.start else 0)
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions - space.start
    shape = _shape(space)
    return actions.reshape(*actions.shape[: actions.ndim - len(shape)], -1)


def _part_from_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    flat = from_space(space, actions)
    return flat[..., None] if isinstance(space, spaces.Discrete) else flat


def _shape(space: Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def map_boxes(make: Callable[[Space[Any]], Any], space: Space[Any]) -> list[Any]:
    """Return `make(box)` for each Box of floats of a Dict or Tuple of actions, None for each other part; in order."""
    return [make(leaf) if isinstance(leaf, spaces.Box) else None for leaf in action_leaves(space)]


def apply_to_parts(functions: Iterable[Any], space: Space[Any], actions: Tree) -> Tree:
    """Return composite actions with each part changed by its function, where that is not None."""
    parts = zip(functions, leaves_of_space(space, actions, "action"))
    return like_space(space, (part if change is None else change(part) for change, (_, part, _) in parts))


class RescaleActions:
    """Map actions in [-1, 1], `[..., A]` or in the space's own shape, linearly onto the bounds of a Box (beyond them
    they are limited). Of a Dict or Tuple it maps those parts that are a Box.

    Raises:
        ValueError: another space, or a Box without finite bounds.
    """

    is_identity = False

    def __init__(self, action_space: Space[Any]) -> None:
        self._space, self._parts = action_space, []
        if isinstance(action_space, COMPOSITE):
            self._parts = map_boxes(RescaleActions, action_space)
            return
        if not isinstance(action_space, spaces.Box) or not action_space.is_bounded():
            raise ValueError(f"RescaleActions needs a Box with finite bounds, got {action_space}")
        # Halved before the difference: bounds may be as large as the type allows.
        low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)
        self._low, self._high = Constant(low), Constant(high)
        self._centre, self._half = Constant(low / 2 + high / 2), Constant(high / 2 - low / 2)

    def __call__(self, actions: Tree) -> Tree:
        """Map [-1, 1] to the bounds."""
        if self._parts:
            return apply_to_parts(self._parts, self._space, actions)
        half, centre, low, high = (each.like(actions) for each in (self._half, self._centre, self._low, self._high))
        rows = actions.reshape(-1, low.shape[0])
        return clip(rows * half + centre, low, high).reshape(actions.shape)

    def inverse(self, actions: Tree) -> Tree:
        """Map the bounds to [-1, 1] (0 where both bounds are the same)."""
        if self._parts:
            return apply_to_parts([part and part.inverse for part in self._parts], self._space, actions)
        centre, half = self._centre.array, self._half.array
        rows = actions.reshape(-1, centre.size)
        return ((rows - centre) / np.where(half > 0, half, 1.0)).reshape(actions.shape)


@dataclass(frozen=True)
class ActionForm:
    """The form of the actions that a policy learns from, which sets them apart from those of the environment.

    They are flat and begin at 0, and `rescaled` ones lie within [-1, 1] instead of the bounds of a Box.
    """

    action_space: Space[Any]
    rescaled: bool = False

    @classmethod
    def of(cls, action_space: Space[Any], rescaled: bool = False) -> ActionForm | None:
        """Return the form of these actions, None where nothing sets them apart."""
        if isinstance(action_space, COMPOSITE):
            return cls(action_space, rescaled)
        if rescaled and isinstance(action_space, spaces.Box):
            rescaled = bool((action_space.low != -1.0).any() or (action_space.high != 1.0).any())
        starts = np.asarray(getattr(action_space, "start", 0))
        flat = isinstance(action_space, spaces.Discrete) or len(_shape(action_space)) == 1
        return None if flat and not rescaled and not starts.any() else cls(action_space, rescaled)

    def to_env(self, actions: np.ndarray) -> Tree:
        """Bring actions `[N, ...]` as learned from to those of the environment."""
        of_space = to_space(self.action_space, actions)
        return RescaleActions(self.action_space)(of_space) if self.rescaled else of_space

    def from_env(self, actions: Tree) -> np.ndarray:
        """Bring actions of the environment to those that are learned from."""
        return from_space(
            self.action_space, RescaleActions(self.action_space).inverse(actions) if self.rescaled else actions
        )

    def get_state(self) -> dict[str, Any]:
        """Return the form as plain data."""
        return {"space": describe_space(self.action_space), "rescaled": self.rescaled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> ActionForm | None:
        """Return the form that `get_state` described; None for None."""
        return None if state is None else cls(space_from(state["space"]), bool(state["rescaled"]))


def single_action(actions: Tree, row: int) -> Tree:
    """Return a copy of one of the environment's actions `[B, ...]`, as it takes one: plain ints of choices."""

    def plain(part: np.ndarray) -> np.ndarray | int:
        return int(part) if part.ndim == 0 and part.dtype.kind in "iu" else part.copy()

    return map_tree(plain, rows_of(actions, row))


def describe_actions(form: ActionForm | None) -> str:
    """Return in words whose actions these are: the environment's, or those that are learned from."""
    if form is None:
        return "the environment's actions"
    return f"actions {'rescaled to [-1, 1]' if form.rescaled else 'flat, from 0'}, for {form.action_space}"


ACTION_MASK = "action_mask"


def carries_mask(space: Space[Any]) -> bool:
    """Return whether `space` is a Dict with an action mask: the entry `"action_mask"` beside what is observed.

    Raises:
        ValueError: the mask has nothing beside it, or lies deeper in the space, where it would not be seen.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        if len(space.spaces) == 1:
            raise ValueError(f"observation space {space} has nothing but an action mask; put observations beside it")
        return True
    where = _mask_below(space)
    if where is not None:
        raise ValueError(
            f"observation space {space} has an action mask at {where}, where it is not looked for; move it to the top: "
            'spaces.Dict({"observations": ..., "action_mask": ...})'
        )
    return False


def _mask_below(space: Space[Any]) -> str | None:
    """Return where in a tree of spaces an action mask is, as keys in brackets."""
    parts: Any = ()
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    for key, part in parts:
        below = "" if key == ACTION_MASK else _mask_below(part)
        if below is not None:
            return f"[{key!r}]{below}"
    return None


def without_mask(obs: Any) -> Any:
    """Return an observation (or its space) without its action mask: the one other entry, or all others."""
    rest = {key: obs[key] for key in obs.keys() if key != ACTION_MASK}  # noqa: SIM118 - of a space too
    if len(rest) == 1:
        return next(iter(rest.values()))
    return spaces.Dict(list(rest.items())) if isinstance(obs, spaces.Dict) else rest


def mask_size(action_space: Space[Any]) -> int:
    """Return the number of entries of a mask for these actions: one for each choice, of all parts that have choices."""
    return sum(map(_num_choices, action_leaves(action_space)))


def _num_choices(space: Space[Any]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape, dtype=int)) if isinstance(space, spaces.MultiBinary) else 0


def mask_parts(action_space: Space[Any], mask: Tree, name: str = ACTION_MASK) -> Iterator[tuple[int, Any, str]]:
    """Iterate over (number of entries, part, name) of an action mask, in the order of the choices.

    A mask is one vector of all choices, or built like a Dict or Tuple of actions, with a vector at each part that has
    choices; parts without are left out. `mask` may be the space of the mask, or masks `[..., entries]`.
    Raises `ValueError` for a mask that is built otherwise.
    """
    is_tree = isinstance(mask, Mapping | tuple | list | spaces.Dict | spaces.Tuple)
    if not is_tree or not isinstance(action_space, COMPOSITE):
        yield mask_size(action_space), mask, name
        return
    is_dict = isinstance(action_space, spaces.Dict)
    parts: Any = action_space.spaces
    with_choices = {key: part for key, part in (parts.items() if is_dict else enumerate(parts)) if mask_size(part)}
    found = dict(mask.items()) if isinstance(mask, Mapping | spaces.Dict) else dict(zip(with_choices, mask))
    fits = found.keys() == with_choices.keys() and len(mask) == len(with_choices)
    if not fits or is_dict != isinstance(mask, Mapping | spaces.Dict):
        has = sorted(found) if isinstance(mask, Mapping | spaces.Dict) else f"{len(mask)} parts"
        raise ValueError(
            f"{name} has {has}; it must be one vector of {mask_size(action_space)} entries, or a "
            f"{type(action_space).__name__} with a mask for each of {list(with_choices)}"
        )
    for key, part in with_choices.items():
        yield from mask_parts(part, found[key], f"{name}[{key!r}]")


def check_mask_space(action_space: Space[Any], mask: Space[Any]) -> None:
    """Raise `ValueError`, naming what is wrong, for the space of a mask that does not fit the actions."""
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
    """Return masks `[..., choices]` as one array, whatever their form."""
    parts = [part for _, part, _ in mask_parts(action_space, mask)]
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _sizes_of_choices(space: spaces.Space[Any]) -> list[int]:
    """Return how many actions each choice of a simple space has; empty for one without choices, and for bits."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec.reshape(-1)] if isinstance(space, spaces.MultiDiscrete) else []


def forbidden_rows(space: Space[Any], actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return `[N]`, which of the actions `[N, ...]`, as learned from, the masks `[N, choices]` forbid."""
    leaves = list(action_leaves(space))
    columns = split_columns(actions.reshape(len(mask), -1), [action_width(leaf) for leaf in leaves])
    masks = split_columns(mask != 0, [_num_choices(leaf) for leaf in leaves])
    found = np.zeros(len(mask), bool)
    for leaf, column, allowed in zip(leaves, columns, masks):
        if isinstance(leaf, spaces.MultiBinary):
            found |= ((column != 0) & ~allowed).any(1)
        elif sizes := _sizes_of_choices(leaf):
            entries = column.astype(np.int64) + np.cumsum([0, *sizes[:-1]])
            found |= ~np.take_along_axis(allowed, entries, 1).all(1)
    return found


def allows_nothing(space: Space[Any], mask: np.ndarray) -> bool:
    """Return whether a mask `[choices]`, as `flat_mask` returns it, leaves some choice without an action."""
    leaves = list(action_leaves(space))
    for leaf, part in zip(leaves, split_columns(mask, [_num_choices(leaf) for leaf in leaves])):
        sizes = _sizes_of_choices(leaf)
        if sizes and not all(choice.any() for choice in split_columns(part, sizes)):
            return True
    return False


def allowed_actions(space: Space[Any], rng: np.random.Generator, mask: np.ndarray) -> Tree:
    """Draw actions `[N, ...]` for masks `[N, D]` with an entry for each choice, as `flat_mask` returns them.

    Of each choice the actions whose entry is not 0 are equally likely (the first one where all are 0); a bit whose
    entry is 0 is 0. Parts of a composite action without choices are drawn as `random_actions` does.
    """
    if isinstance(space, COMPOSITE):
        leaves = list(action_leaves(space))
        masks = np.split(mask, np.cumsum([_num_choices(leaf) for leaf in leaves])[:-1], axis=1)
        return like_space(space, (random_actions(leaf, rng, len(mask), part) for leaf, part in zip(leaves, masks)))
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, spaces.Discrete):
        return (space.start + chances.argmax(1)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (chances >= 0.5).astype(space.dtype).reshape(-1, *space.shape)
    choices = np.split(chances, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
    actions = np.stack([choice.argmax(1) for choice in choices], axis=1).reshape(-1, *space.shape)
    return (space.start + actions).astype(space.dtype)


def random_actions(space: Space[Any], rng: np.random.Generator, number: int, masks: np.ndarray | None = None) -> Tree:
    """Draw actions `[number, ...]` as `space.sample()` does: each equally likely, a bounded box evenly filled.

    `masks` `[number, choices]`: draw only what they allow.
    """
    if masks is not None and mask_size(space):
        return allowed_actions(space, rng, masks)
    if isinstance(space, COMPOSITE):
        return like_space(space, (random_actions(leaf, rng, number) for leaf in action_leaves(space)))
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, number, space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return rng.uniform(space.low, space.high, (number, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(number)])
