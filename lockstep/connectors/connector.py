"""`Connector`, the base class of all transforms around a network, and `ObsPipeline`, a sequence of connectors."""

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
    map_tree,
    named_leaves,
    rows_of,
    stack_observations,
    zip_trees,
)
from lockstep.envs import StepResult
from lockstep.ops.statistics import RunningMoments

Leaf = Callable[[Any], Any]
"""Transform of one leaf of an observation: arrays to arrays, tensors to tensors."""
Join = Callable[[RunningMoments], RunningMoments]
"""Function from the moments of one learner's rows to those of the rows of all learners."""
FinalObs = tuple[npt.NDArray[Any], Any]
"""Rows `[k]` of the episodes that ended, and their true last observations `[k, ...]`."""


class Connector(ABC):
    """Transform that is the same when acting (numpy) and when learning (numpy or torch).

    Leading dimensions of the data are arbitrary. A connector works on one space, which `bind` sets once. A subclass
    that overrides `update` or `update_joined` has statistics. A subclass that overrides `reset` or `after_step` has a
    memory, and is called with one row for each environment, step after step. No further declaration is needed.
    """

    is_recorded = False
    """Whether this connector, and all connectors before it, are applied once when data are collected, so that their
    output is stored."""
    rescales = False
    """Whether this maps actions in [-1, 1] onto the bounds of a Box, as `RescaleActions` does."""
    on_device = False
    """Whether this consists of torch operations that never wait for the device and whose shapes do not depend on
    values. Only then a connector of train columns, of actions, or one whose output is stored, can run on the device of
    tensor environments. One with a memory runs by `export_call` there, and does not read actions or rewards."""

    keeps_entries = False
    """Whether each entry of a Dict comes from the entry with the same key alone, besides `added_entries`."""
    added_entries: tuple[str, ...] = ()
    """Keys that this adds to a Dict observation, without reading its other entries."""

    # `has_statistics` and `has_memory` follow from the methods, and are not declared. With a declaration, a user's
    # connector that forgets it would run, with statistics that are never updated and a memory that is never reset.

    @property
    def has_statistics(self) -> bool:
        """Whether `update` changes the transform."""
        return self._overrides("update") or self._overrides("update_joined")

    @property
    def takes_moments(self) -> bool:
        """Whether the statistics are moments of arrays, which may be computed elsewhere and merged at once."""
        return False

    @property
    def has_memory(self) -> bool:
        """Whether the output depends on earlier calls, until `reset`."""
        return self._overrides("reset") or self._overrides("after_step")

    @property
    def num_stored_frames(self) -> int:
        """Number of frames in the stacks `[frames, ...]` that this outputs; 1 for any other output.

        A replay buffer stores each frame of such stacks once.
        """
        return 1

    @property
    def unwrapped(self) -> Connector:
        """The connector itself, or the connector that this one applies to a part of an observation."""
        return self

    @property
    def class_name(self) -> str:
        """Name of the class of `unwrapped`, for messages and in states."""
        return type(self.unwrapped).__name__

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        """Return the space of the transformed data, without changing the connector.

        Raises:
            ValueError: The connector cannot take data of this space.
        """
        return input_space

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        """Prepare for data of `input_space`, and return its `output_space`. Statistics start at their beginning."""
        return self.output_space(input_space)

    def input_space(self, action_space: Space[Any]) -> Space[Any]:
        """Return the space of the actions that are transformed into `action_space`, for a connector of actions."""
        return action_space

    @abstractmethod
    def __call__(self, data: Tree) -> Any:
        """Return the transformed data: arrays for arrays, tensors for tensors. The input is not changed."""

    def update(self, data: Tree) -> None:
        """Add rows `[N, ...]` (numpy) of the input to the statistics, if there are any."""
        # For one learner, a connector need only define `update_joined`.
        if self._overrides("update_joined"):
            self.update_joined(data, lambda moments: moments)

    def update_joined(self, data: Tree, join: Join) -> None:
        """Add rows to the statistics when each of several learners has a part of the rows (N may be 0).

        Args:
            data: Rows `[N, ...]` (numpy) of this learner.
            join: Function from the moments of this learner's rows to those of all rows. Every learner must call it
                equally often, because it waits for the others.

        Raises:
            TypeError: The connector has statistics, but does not override this method.
        """
        if self.has_statistics:
            raise TypeError(
                f"{type(self).__name__} has statistics but no update_joined(data, join), so several learners would "
                "each have different ones; write it with RunningMoments (as NormalizeObs does), or train with one "
                "learner"
            )

    @property
    def joins_statistics(self) -> bool:
        """Whether several learners can share statistics, because there are none or `update_joined` joins them."""
        return self._overrides("update_joined") or not self.has_statistics

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        """Begin episodes in some rows: earlier calls no longer count there.

        Args:
            env_index: Index or indices of the rows. None stands for all rows, whose number may change then.
        """
        return

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        """Record the last step of the environments.

        Args:
            actions: `[B, ...]` in the form of the environment. None if they are not known yet, and come in another
            call. rewards: `[B]`. None if they are not known yet, and come in another call.
        """
        return

    def get_state(self) -> dict[str, Any]:
        """Return the statistics and the memory. Empty if there are none."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned.

        Raises:
            ValueError: The state is of another connector or space.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")

    # -- export: an artefact is a pure function, whose memory is an input and an output ---

    reads_rewards = False
    """Whether `export_call` needs `memory["reward"]` `[B]`: the reward of the last step, 0 where an episode begins."""

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return the memory of a row at the beginning of an episode, `{name: [...]}`. Empty without a memory.

        Raises:
            TypeError: The connector has a memory, but does not override this method.
        """
        if self.has_memory:
            raise TypeError(
                f"{type(self).__name__} has a memory and does not say how it is exported; define export_memory(), "
                "export_call(data, memory) and, where it follows actions, export_after(memory, actions), as FrameStack "
                "and PreviousActions do"
            )
        return {}

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Return the output of `__call__` for tensors `[B, ...]`, and the memory `{name: [B, ...]}` after the call.

        It is traced once, for every number of rows, so it must not depend on the values of tensors.
        """
        return self(data), {}

    def export_after(self, memory: dict[str, Tensor], actions: Tree) -> dict[str, Tensor]:
        """Return the memory after the actions `[B, ...]` of this step, in the form of the environment."""
        return memory

    def keep_entries(self, space: Space[Any]) -> None:  # noqa: B027
        """Prepare for data with the entries of `space` alone, which are some of the entries of the bound space.

        Called for a copy that is exported. A connector with a memory for each entry drops those of other entries.
        """

    def check_plain(self, option: str) -> None:
        """Raise `ValueError` if this has statistics or a memory, which the connectors of `option` must not have."""
        for has_feature, feature in ((self.has_statistics, "statistics"), (self.has_memory, "a memory")):
            if has_feature:
                raise ValueError(
                    f"{option}: {type(self).__name__} has {feature}, which only connectors of observations may have "
                    "(env_runners.env_to_module_connector); environment(normalize_rewards=True) has statistics of "
                    "rewards"
                )

    def _overrides(self, method: str) -> bool:
        """Return whether a subclass defines the method."""
        # The methods are compared because a user's connector cannot be expected to declare which ones it has.
        return getattr(type(self), method) is not getattr(Connector, method)


class LeafConnector(Connector):
    """Connector that transforms each leaf of a Dict or Tuple separately, and does not change action masks."""

    keeps_entries = True

    _leaves: Any = None
    """Transforms of the leaves after `bind`, in a tree like the space."""

    @abstractmethod
    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        """Return the output space and the transform of a leaf with this space."""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        return self._map(input_space)[0]

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        self._leaves = self._map(input_space)[1]
        return self.output_space(input_space)

    def __call__(self, data: Tree) -> Any:
        if self._leaves is None:
            raise RuntimeError(f"{type(self).__name__} does not know its space yet: call bind(space) first")
        return apply_leaves(self._leaves, data)

    def _map(self, space: Space[Any]) -> tuple[Space[Any], Any]:
        """Return the output space, and the transforms of the leaves in a tree like the space."""
        if isinstance(space, spaces.Dict):
            is_masked = carries_mask(space)
            output_spaces: list[tuple[str, Space[Any]]] = []
            transforms: dict[str, Any] = {}
            for key, part in space.spaces.items():
                if is_masked and key == ACTION_MASK:
                    output_space, transform = part, same
                else:
                    output_space, transform = self._map(part)
                output_spaces.append((key, output_space))
                transforms[key] = transform
            return spaces.Dict(output_spaces), transforms
        if isinstance(space, spaces.Tuple):
            parts = [self._map(part) for part in space.spaces]
            return spaces.Tuple([output_space for output_space, _ in parts]), tuple(leaf for _, leaf in parts)
        return self.leaf(space)


def same(data: Tree) -> Any:
    """Return the data unchanged: the transform of a leaf that a connector does not concern."""
    return data


def apply_leaves(transforms: Tree, data: Tree) -> Tree:
    """Return the tree `data` with each leaf transformed by the function at its place in `transforms`.

    A function at the place of a tree, such as the mask of a Dict of actions, takes the whole tree. Entries that only
    `transforms` has are passed over.
    """
    if callable(transforms):
        return transforms(data)
    # Along the data, and not along the transforms: acting has the entries that the policy sees, and no others.
    if isinstance(data, Mapping):
        return {key: apply_leaves(transforms[key], part) for key, part in data.items()}
    return tuple(apply_leaves(transform, part) for transform, part in zip(transforms, data, strict=True))


class ObsPipeline:
    """Sequence of connectors from the environment's observations to the network's.

    The connectors are bound to the spaces, so their statistics start at their beginning.

    Args:
        connectors: The connectors in their order.
        observation_space: Space of the environment's observations. Needed if there are connectors.

    Raises:
        ValueError: There are connectors without a space, one of them cannot take its space, or the output of a user's
            connector is not in its output space.
        TypeError: An object is not a connector.
    """

    makes_pairs = False
    """Whether an output is a pair of an observation and its mirror image, as a symmetric network takes it."""

    def __init__(self, connectors: Sequence[Connector] = (), observation_space: Space[Any] | None = None) -> None:
        self.connectors = tuple(connectors)
        self.is_identity = not self.connectors
        self.input_space = observation_space
        self.observation_space = observation_space
        """Space of the output."""
        self._spaces: list[tuple[Space[Any], Space[Any]] | None] = []
        """Input and output space of each connector of the user's, whose output is checked in each call. None for
        connectors of Lockstep."""
        for connector in self.connectors:
            if not isinstance(connector, Connector):
                raise TypeError(
                    f"{type(connector).__name__} is not a connector of observations; possible are NormalizeObs, "
                    "FlattenObs, OneHot, FrameStack, ... and subclasses of Connector"
                )
            if self.observation_space is None:
                raise ValueError("an ObsPipeline with connectors needs the observation_space they work on")
            before = self.observation_space
            self.observation_space = connector.bind(before)
            is_users = not type(connector.unwrapped).__module__.startswith("lockstep.")
            self._spaces.append((before, self.observation_space) if is_users else None)
            if is_users:
                self._check_output(connector, before, self.observation_space)

        with_statistics = [i for i, connector in enumerate(self.connectors) if connector.has_statistics]
        self.has_statistics = bool(with_statistics)
        """Whether `update` changes a connector."""
        # Rows need not go further than to the last connector with statistics.
        self._updated = self.connectors[: with_statistics[-1] + 1] if with_statistics else ()
        self._with_memory = tuple(connector for connector in self.connectors if connector.has_memory)
        self.has_memory = bool(self._with_memory)
        """Whether the output depends on earlier calls, until `reset`."""

    def _check_output(self, connector: Connector, input_space: Space[Any], output_space: Space[Any]) -> None:
        """Raise `ValueError` if a connector's output for two sampled rows is not in its output space."""
        # A copy, because seeding changes the space, which the user may be drawing from.
        sampled_space = copy.deepcopy(input_space)
        sampled_space.seed(0)
        rows = [sampled_space.sample() for _ in range(2)]
        output = connector(stack_observations(input_space, rows))
        connector.reset()
        actual = _forms(output)
        expected = _forms(allocate(output_space, 2))
        if actual != expected:
            raise ValueError(
                f"{connector.class_name} gives {actual} for two rows of {input_space}, and its output_space says "
                f"{expected} ({output_space}); override output_space(input_space), keys of a Dict in its order"
            )

    def __call__(self, data: Tree) -> Any:
        """Return the network's observations `[..., *output]` for the environment's `[..., *raw]`, numpy or torch.

        Raises:
            ValueError: A connector of the user's gives other shapes than its output space has.
        """
        for connector, in_and_out in zip(self.connectors, self._spaces):
            before = data
            data = connector(before)
            if in_and_out is not None:
                self._check_shapes(connector, in_and_out, before, data)
        return data

    def _check_shapes(
        self, connector: Connector, in_and_out: tuple[Space[Any], Space[Any]], before: Tree, after: Tree
    ) -> None:
        """Raise `ValueError` if a connector changes the number of rows, or its rows have not the shape of its space.

        The network would take a wrong shape for another leading dimension, and learn from wrong rows.
        """
        input_space, output_space = in_and_out
        expected = {_leading(leaf, space) for leaf, space in _with_spaces(before, input_space)}
        actual = {_leading(leaf, space) for leaf, space in _with_spaces(after, output_space)}
        if actual != expected:
            raise ValueError(
                f"{connector.class_name} gives {_forms(after)} for {_forms(before)}, and its output_space is "
                f"{output_space}; a connector gives the same shapes in every call, and as many rows as it gets"
            )

    def copy(self) -> ObsPipeline:
        """Return an independent copy with the same statistics and an empty memory."""
        pipeline = copy.deepcopy(self)
        pipeline.reset()
        return pipeline

    # -- memory ---

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        """Begin episodes in some rows, see `Connector.reset`."""
        for connector in self._with_memory:
            connector.reset(env_index)

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        """Record the last step of the environments, see `Connector.after_step`."""
        for connector in self._with_memory:
            connector.after_step(actions, rewards)

    def follow(self, step: StepResult, actions: Tree) -> tuple[Any, FinalObs | None]:
        """Transform one step of all environments, in any autoreset mode.

        Args:
            step: Result of the step.
            actions: `[B, ...]`, the actions of the step in the form of the environment.

        Returns:
            The network's next observations `[B, ...]`, whose memory the next step may reuse, and the rows `[k]` of the
            episodes that ended with the network's form of their true last observations `[k, ...]`; None if no episode
            ended.
        """
        final = step.final_obs
        if not self.has_memory:
            return self(step.obs), None if final is None else (final[0], self(final[1]))
        self.after_step(actions, step.rewards)
        if step.valid is not None and not step.valid.all():
            # Rows that are not transitions: their environment was reset, or was restarted after a failure.
            self.reset(np.flatnonzero(~step.valid))
        if final is None:
            return self(step.obs), None

        # The rows of ended episodes have two observations in this step: the last one of the old episode, which
        # continues its memory, and the first one of the new episode. So the connectors are called twice, and the memory
        # is restored in between. The other rows take part in both calls, because a connector sees all rows.
        rows = final[0]
        before = self.get_state()
        last = zip_trees(lambda pair: _with_rows(pair[0], rows, pair[1]), [step.obs, final[1]], "obs")
        last = rows_of(self(last), rows)
        self.set_state(before)
        self.reset(rows)
        return self(step.obs), (rows, last)

    # -- statistics ---

    def update(self, data: Tree, rows: npt.NDArray[Any] | None = None, join: Join | None = None) -> None:
        """Add the environment's observations to the statistics. Each connector gets the output of the one before.

        Args:
            data: Tree of arrays `[N, ...]`.
            rows: Indices or flags `[N]` of the rows to add. Defaults to all.
            join: With several learners, the function from one learner's moments to those of all.
        """
        if not self.has_statistics:
            return
        if rows is not None:
            data = map_tree(lambda leaf: leaf[rows], data)
        for connector in self._updated:
            # Before the update: the next connector must get rows of the statistics that the network has seen.
            following = None if connector is self._updated[-1] else connector(data)
            if join is None:
                connector.update(data)
            else:
                connector.update_joined(data, join)
            data = following

    def get_state(self) -> dict[str, Any]:
        """Return the state of each connector by its position and class name."""
        return {f"{i}_{c.class_name}": c.get_state() for i, c in enumerate(self.connectors)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned.

        Raises:
            ValueError: The state is of other connectors.
        """
        names = list(self.get_state())
        if sorted(state) != sorted(names):
            raise ValueError(f"state is of the connectors {sorted(state)}, this pipeline has {sorted(names)}")
        for name, connector in zip(names, self.connectors):
            connector.set_state(state[name])


def _with_rows(leaf: npt.NDArray[Any], rows: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of `leaf` in which some rows are replaced by `values`."""
    mixed = leaf.copy()
    mixed[rows] = values
    return mixed


def _leading(leaf: Tree, space: Space[Any]) -> tuple[int, ...] | None:
    """Return the leading dimensions of an array of rows, or None if the others are not those of the space."""
    shape = tuple(np.shape(leaf))
    row_shape = tuple(space.shape or ())
    num_leading = len(shape) - len(row_shape)
    if num_leading < 0 or shape[num_leading:] != row_shape:
        return None
    return shape[:num_leading]


def _with_spaces(tree: Tree, space: Space[Any]) -> Iterator[tuple[Any, Space[Any]]]:
    """Yield each leaf of a space with the array at its place in the tree, or None if the tree is of another kind.

    Entries of a Dict that the tree does not have are passed over: acting has the entries that the policy sees.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, Mapping):
            yield None, space
            return
        for key, part in space.spaces.items():
            if key in tree:
                yield from _with_spaces(tree[key], part)
    elif isinstance(space, spaces.Tuple):
        fits = isinstance(tree, tuple) and len(tree) == len(space.spaces)
        for index, part in enumerate(space.spaces):
            yield from _with_spaces(tree[index] if fits else None, part)
    else:
        yield tree, space


def _forms(tree: Tree) -> list[tuple[str, tuple[int, ...], str]]:
    """Return the path, shape and dtype of each leaf, in the order of the keys."""
    return [(path, leaf.shape, leaf.dtype.name) for path, leaf in named_leaves("obs", map_tree(np.asarray, tree))]
