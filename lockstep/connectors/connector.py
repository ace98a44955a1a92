"""`Connector`, the base of all transforms around a network, and `ObsPipeline`, which composes those of observations."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.trees import (
    Tree,
    allocate,
    map_pair,
    map_tree,
    named_leaves,
    rows_of,
    stack_observations,
    zip_trees,
)
from lockstep.envs import StepResult
from lockstep.ops.statistics import RunningMoments

Leaf = Callable[[Any], Any]
Join = Callable[[RunningMoments], RunningMoments]
FinalObs = tuple[npt.NDArray[Any], Any]
"""rows `[k]` of episodes that ended, and their true last observations `[k, ...]`"""


class Connector(ABC):
    """Transforms data in the same way when acting (numpy) and when learning (numpy or torch).

    Leading dimensions of the data are arbitrary. A connector works on one space, which `bind` names once. One that
    overrides `update` or `update_joined` has statistics; one that overrides `reset` has a memory, and sees one row for
    each environment, step after step. Neither is told in another way.
    """

    is_recorded = False
    """Apply it, and all that stand before it, once where data are collected, so that its output is what is stored."""

    @property
    def has_statistics(self) -> bool:
        """Whether `update` changes what the connector does."""
        return self._overrides("update") or self._overrides("update_joined")

    @property
    def takes_moments(self) -> bool:
        """Whether its statistics are moments of one array, which may be taken elsewhere and handed in at once."""
        return False

    @property
    def has_memory(self) -> bool:
        """Whether what it gives depends on what it was called with before, until `reset`."""
        return self._overrides("reset") or self._overrides("after_step")

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        """Return the space of the transformed data; `ValueError` for a space it cannot take. Changes nothing."""
        return input_space

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        """Prepare for data of `input_space` and return its `output_space`. Statistics start anew."""
        return self.output_space(input_space)

    def input_space(self, action_space: Space[Any]) -> Space[Any]:
        """Of a connector of actions: return the space that the module acts in, for the one that it brings them to."""
        return action_space

    @abstractmethod
    def __call__(self, data: Tree) -> Any:
        """Return transformed data: arrays for arrays, tensors for tensors. The input is not changed."""

    def update(self, data: Tree) -> None:
        """Take rows `[N, ...]` (numpy) of the input into the statistics, if there are any."""
        if self._overrides("update_joined"):
            self.update_joined(data, lambda seen: seen)

    def update_joined(self, data: Tree, join: Join) -> None:
        """Do as `update` where each of several learners has a part of the rows (N may be 0).

        Every learner must call `join` equally often: it turns the moments of a learner's rows into those of all rows.
        `TypeError` from a connector with statistics that does not say how its parts are joined.
        """
        if self.has_statistics:
            raise TypeError(
                f"{type(self).__name__} has statistics but no update_joined(data, join), so several learners would "
                "each see other ones; write it with RunningMoments (as NormalizeObs does), or train with one learner"
            )

    @property
    def joins_statistics(self) -> bool:
        """Whether several learners can have the statistics of one: there are none, or `update_joined` joins them."""
        return self._overrides("update_joined") or not self.has_statistics

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        """Forget what was before: an episode begins in these rows. None: in all, whose number may be another then."""
        return

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        """Take note of what was done: `actions` `[B, ...]` as the environment takes them, and what they brought, `[B]`.

        None stands for what is not known now, and may come in a call of its own.
        """
        return

    def get_state(self) -> dict[str, Any]:
        """Return statistics and memory; empty where there are none."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave. `ValueError` if it is of another connector or space."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")

    # -- in an exported artefact, where all that is remembered goes in and comes out ---

    reads_rewards = False
    """Whether `export_call` needs `memory["reward"]` `[B]`: that of the step before, 0 where an episode begins."""

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is remembered of a row where an episode begins, `{name: [...]}`; empty without a memory.

        `TypeError` from a connector with a memory that does not say how it is exported.
        """
        if self.has_memory:
            raise TypeError(
                f"{type(self).__name__} has a memory and does not say how it is exported; define export_memory(), "
                "export_call(data, memory) and, where it follows actions, export_after(memory, actions), as FrameStack "
                "and PreviousActions do"
            )
        return {}

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Return what `__call__` makes of tensors `[B, ...]`, and the memory `{name: [B, ...]}` after it.

        It is traced once, for all numbers of rows, so it may not read the values of tensors.
        """
        return self(data), {}

    def export_after(self, memory: dict[str, Tensor], actions: Tree) -> dict[str, Tensor]:
        """Return the memory after the actions `[B, ...]` of this step, as the environment takes them."""
        return memory

    def check_plain(self, option: str) -> None:
        """Raise `ValueError` for statistics or a memory, where `option` has no place for them."""
        for has, what in ((self.has_statistics, "statistics"), (self.has_memory, "a memory")):
            if has:
                raise ValueError(
                    f"{option}: {type(self).__name__} has {what}, which only connectors of observations may have "
                    "(env_runners.env_to_module_connector); environment(normalize_rewards=True) has statistics of "
                    "rewards"
                )

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Connector, method)


class LeafConnector(Connector):
    """Transforms each leaf of a Dict or Tuple by itself, and leaves action masks alone."""

    _leaves: Any = None
    """after `bind` the transforms, a tree like the space"""

    @abstractmethod
    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        """Return the output space and the transform of one leaf."""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        return self._map(input_space)[0]

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        self._leaves = self._map(input_space)[1]
        return self.output_space(input_space)

    def __call__(self, data: Tree) -> Any:
        transforms = self._leaves
        if callable(transforms):
            return transforms(data)
        if transforms is None:
            raise RuntimeError(f"{type(self).__name__} does not know its space yet: call bind(space) first")
        return apply_leaves(transforms, data)

    def _map(self, space: Space[Any]) -> tuple[Space[Any], Any]:
        if isinstance(space, spaces.Dict):
            is_masked = carries_mask(space)
            mapped = {
                key: (part, same) if is_masked and key == ACTION_MASK else self._map(part)
                for key, part in space.spaces.items()
            }
            return (
                spaces.Dict([(key, part) for key, (part, _) in mapped.items()]),
                {key: leaf for key, (_, leaf) in mapped.items()},
            )
        if isinstance(space, spaces.Tuple):
            parts = [self._map(part) for part in space.spaces]
            return spaces.Tuple([part for part, _ in parts]), tuple(leaf for _, leaf in parts)
        return self.leaf(space)


def same(data: Tree) -> Any:
    """Return the data as they are."""
    return data


def apply_leaves(transforms: Tree, data: Tree) -> Tree:
    """Return the tree `data` with each leaf transformed by the function at its place in `transforms`."""
    return map_pair(_apply, transforms, data)


def _apply(transform: Leaf, data: Tree) -> Tree:
    return transform(data)


class ObsPipeline:
    """Applies connectors one after the other: raw observations in, what the network sees out."""

    def __init__(self, connectors: Sequence[Connector] = (), observation_space: Space[Any] | None = None) -> None:
        """Bind the connectors to `observation_space`, that of the raw observations. Statistics start anew.

        Raises:
            ValueError: connectors without a space, a space that one of them cannot take, or output that is not of the
                space that a connector of the user's names.
            TypeError: something that is no connector.
        """
        self.connectors = tuple(connectors)
        self.is_identity = not self.connectors
        self.input_space = observation_space
        self.observation_space = observation_space
        """Of the output."""
        self._spaces: list[tuple[Space[Any], Space[Any]] | None] = []
        """for each connector of the user's, before and behind it: what it gives is checked in each call"""
        for connector in self.connectors:
            if not isinstance(connector, Connector):
                raise TypeError(
                    f"{type(connector).__name__} is no connector of observations; possible are NormalizeObs, "
                    "FlattenObs, OneHot, FrameStack, ... and subclasses of Connector"
                )
            if self.observation_space is None:
                raise ValueError("an ObsPipeline with connectors needs the observation_space they work on")
            before, self.observation_space = self.observation_space, connector.bind(self.observation_space)
            is_own = not type(connector).__module__.startswith("lockstep.")
            self._spaces.append((before, self.observation_space) if is_own else None)
            if is_own:
                self._check_output(connector, before, self.observation_space)
        learning = [i for i, connector in enumerate(self.connectors) if connector.has_statistics]
        self.has_statistics = bool(learning)
        """Whether `update` changes anything."""
        self._updated = self.connectors[: learning[-1] + 1] if learning else ()
        self._remembering = tuple(connector for connector in self.connectors if connector.has_memory)
        self.has_memory = bool(self._remembering)
        """Whether the output depends on earlier calls, until `reset`."""

    def _check_output(self, connector: Connector, input_space: Space[Any], output_space: Space[Any]) -> None:
        """Raise `ValueError` where a bound connector makes of two rows something else than its output space says."""
        sampled = copy.deepcopy(input_space)
        sampled.seed(0)
        output = connector(stack_observations(input_space, [sampled.sample() for _ in range(2)]))
        connector.reset()
        found, wanted = _forms(output), _forms(allocate(output_space, 2))
        if found != wanted:
            raise ValueError(
                f"{type(connector).__name__} gives {found} for two rows of {input_space}, and its output_space says "
                f"{wanted} ({output_space}); override output_space(input_space), keys of a Dict in its order"
            )

    def __call__(self, data: Tree) -> Any:
        """Return `[..., *output]` for `[..., *raw]`, numpy or torch.

        Raises `ValueError` for a connector of the user's that gives other shapes than its output space says.
        """
        for connector, around in zip(self.connectors, self._spaces):
            before, data = data, connector(data)
            if around is not None:
                self._check_shapes(connector, around, before, data)
        return data

    def _check_shapes(
        self, connector: Connector, around: tuple[Space[Any], Space[Any]], before: Tree, after: Tree
    ) -> None:
        """Raise `ValueError` where a connector gives rows of other shapes than its space says, or another number."""
        leading = {_leading(leaf, space) for leaf, space in _with_spaces(before, around[0])}
        found = {_leading(leaf, space) for leaf, space in _with_spaces(after, around[1])}
        if found != leading:
            raise ValueError(
                f"{type(connector).__name__} gives {_forms(after)} for {_forms(before)}, and its output_space is "
                f"{around[1]}; a connector gives the same shapes in every call, and as many rows as it gets"
            )

    def copy(self) -> ObsPipeline:
        """Return one of its own that remembers nothing."""
        twin = copy.deepcopy(self)
        twin.reset()
        return twin

    # -- memory ---

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        """Begin episodes in these rows (None: in all, whose number may be another then)."""
        for connector in self._remembering:
            connector.reset(env_index)

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        """Tell what was done, see `Connector.after_step`."""
        for connector in self._remembering:
            connector.after_step(actions, rewards)

    def follow(self, step: StepResult, actions: Tree) -> tuple[Any, FinalObs | None]:
        """Take in one step of all environments, in any autoreset mode.

        Args:
            step: what the environments gave.
            actions: `[B, ...]` that led to it, as the environment takes them.

        Returns:
            What to act on next, `[B, ...]` (may be reused by the next step), and None, or (rows `[k]`, the output for
            the true last observations `[k, ...]`) of the episodes that ended.
        """
        final = step.final_obs
        if not self.has_memory:
            return self(step.obs), None if final is None else (final[0], self(final[1]))
        self.after_step(actions, step.rewards)
        if step.valid is not None and not step.valid.all():  # rows that only reset their environment, or lost it
            self.reset(np.flatnonzero(~step.valid))
        if final is None:
            return self(step.obs), None
        rows = final[0]
        before = self.get_state()
        last = zip_trees(lambda pair: _with_rows(pair[0], rows, pair[1]), [step.obs, final[1]], "obs")
        last = rows_of(self(last), rows)
        self.set_state(before)
        self.reset(rows)
        return self(step.obs), (rows, last)

    # -- statistics ---

    def update(self, data: Tree, rows: npt.NDArray[Any] | None = None, join: Join | None = None) -> None:
        """Take raw observations `[N, ...]` (numpy tree) into the statistics.

        Every connector sees what the ones before it made of them.

        Args:
            rows: take these only (indices or flags `[N]`).
            join: with several learners, the moments of what all of them have seen.
        """
        if not self.has_statistics:
            return
        if rows is not None:
            data = map_tree(lambda leaf: leaf[rows], data)
        for connector in self._updated:
            following = None if connector is self._updated[-1] else connector(data)
            if join is None:
                connector.update(data)
            else:
                connector.update_joined(data, join)
            data = following

    def get_state(self) -> dict[str, Any]:
        """Return the state of each connector, by position and name."""
        return {f"{i}_{type(c).__name__}": c.get_state() for i, c in enumerate(self.connectors)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave. `ValueError` if it is of other connectors."""
        names = list(self.get_state())
        if sorted(state) != sorted(names):
            raise ValueError(f"state is of the connectors {sorted(state)}, this pipeline has {sorted(names)}")
        for name, connector in zip(names, self.connectors):
            connector.set_state(state[name])


def _with_rows(leaf: npt.NDArray[Any], rows: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    mixed = leaf.copy()
    mixed[rows] = values
    return mixed


def _leading(leaf: Tree, space: Space[Any]) -> tuple[int, ...] | None:
    """Return the dimensions before those of one row; None where these are not the space's."""
    shape, row = tuple(np.shape(leaf)), tuple(space.shape or ())
    number = len(shape) - len(row)
    return shape[:number] if number >= 0 and shape[number:] == row else None


def _with_spaces(tree: Tree, space: Space[Any]) -> Iterator[tuple[Any, Space[Any]]]:
    """Yield each leaf of a tree with its space; None for one that is not there."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: dict[Any, Space[Any]] = dict(
            space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        )
        fits = isinstance(tree, Mapping | tuple) and len(tree) == len(parts)
        for key, part in parts.items():
            yield from _with_spaces(tree[key] if fits else None, part)
    else:
        yield tree, space


def _forms(tree: Tree) -> list[tuple[str, tuple[int, ...], str]]:
    """Return path, shape and dtype of each leaf, in the order of the keys."""
    return [(path, leaf.shape, leaf.dtype.name) for path, leaf in named_leaves("obs", map_tree(np.asarray, tree))]
