"""What every connector of observations is: a map between spaces, the same for numpy and torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.ops.statistics import RunningMoments

Leaf = Callable[[Any], Any]
Join = Callable[[RunningMoments], RunningMoments]


class Connector(ABC):
    """A transform of observations that must be the same when acting (numpy) and when learning (torch).

    Leading dimensions of the data are arbitrary. A connector works on one space, given once by :meth:`bind`.
    """

    has_statistics = False
    """Whether `update` changes what the connector does."""

    @abstractmethod
    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        """The space of the transformed data; changes nothing. `ValueError` for a space it cannot take."""

    @abstractmethod
    def bind(self, input_space: Space[Any]) -> Space[Any]:
        """Prepare for data of `input_space` and return its :meth:`output_space`. Statistics start anew."""

    @abstractmethod
    def __call__(self, data: Any) -> Any:
        """Transformed data: arrays for arrays, tensors for tensors. The input is not changed."""

    def update(self, data: Any) -> None:
        """Take rows `[N, ...]` (numpy) of the input into the statistics, if there are any."""
        return

    def update_joined(self, data: Any, join: Join) -> None:
        """`update` where several learners have each a part of the rows (N may be 0).

        Every learner must call `join` equally often: it makes the moments of all learners' rows from those of one's
        own. `TypeError` from a connector with statistics that does not say how its parts are joined.
        """
        if self.has_statistics:
            raise TypeError(
                f"{type(self).__name__} has statistics but no update_joined(data, join), so several learners would "
                "each see other ones; write it with RunningMoments (as NormalizeObs does), or train with one learner"
            )

    def get_state(self) -> dict[str, Any]:
        """Statistics; empty where there are none."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` gave. `ValueError` if it is of another connector or space."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")


class LeafConnector(Connector):
    """A connector that treats each leaf of a Dict or Tuple by itself and leaves action masks alone."""

    def __init__(self) -> None:
        self._input_space: Space[Any] | None = None
        self._leaves: Any = None

    @abstractmethod
    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf | None]:
        """Output space and transform of one leaf; None leaves it as it is."""

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        return self._map(input_space)[0]

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        output, self._leaves = self._map(input_space)
        self._input_space = input_space
        return output

    def __call__(self, data: Any) -> Any:
        leaves = self._leaves
        if callable(leaves):
            return leaves(data)
        if self._input_space is None:
            raise RuntimeError(f"{type(self).__name__} does not know its space yet: call bind(space) first")
        return _apply(leaves, data)

    def _map(self, space: Space[Any]) -> tuple[Space[Any], Any]:
        if isinstance(space, spaces.Dict):
            is_masked = carries_mask(space)
            mapped = {
                key: (part, None) if is_masked and key == ACTION_MASK else self._map(part)
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


def _apply(leaves: Any, data: Any) -> Any:
    if isinstance(leaves, dict):
        return {key: _apply(leaf, data[key]) for key, leaf in leaves.items()}
    if isinstance(leaves, tuple):
        return tuple(_apply(leaf, part) for leaf, part in zip(leaves, data))
    return data if leaves is None else leaves(data)


def walk(leaves: Any, data: Any) -> list[tuple[Leaf, Any]]:
    """(transform, its data) for each leaf that has a transform, in the order of the space."""
    if isinstance(leaves, dict):
        return [pair for key, leaf in leaves.items() for pair in walk(leaf, None if data is None else data[key])]
    if isinstance(leaves, tuple):
        return [pair for i, leaf in enumerate(leaves) for pair in walk(leaf, None if data is None else data[i])]
    return [] if leaves is None else [(leaves, data)]
