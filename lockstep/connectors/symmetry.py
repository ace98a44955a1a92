"""`Symmetry`, mirror images of observations and actions by a function of the user's, and pairs of observations.

Mittal et al. 2024, "Symmetry Considerations for Learning Task Symmetric Robot Policies", arXiv:2403.04359.

The function works on the observations that are *stored*: those of the environment, after connectors that record their
output (stacked frames, previous actions). The mirror images then pass the same connectors as the observations. It would
be wrong to mirror the outputs of the connectors: with the running statistics of `NormalizeObs`, a mirrored number is
not the number with another sign. Actions have the form of the environment's action space, before clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space
from torch import Tensor

from lockstep.connectors.connector import Connector, ObsPipeline
from lockstep.data.actions import (
    ACTION_COLUMN,
    ACTION_MASK,
    COMPOSITE,
    action_leaves,
    action_width,
    carries_mask,
    like_space,
)
from lockstep.data.trees import (
    Tree,
    allocate,
    completed,
    leaves,
    leaves_of_space,
    map_pair,
    map_tree,
    named_leaves,
    to_torch_leaf,
)
from lockstep.modules.mirror import MirrorNumbers
from lockstep.ops.arrays import Array, Constant, torch_dtype

SymmetryFunction = Callable[[Any, Any], Any]
"""Function `f(observations, actions)` that returns both in mirror image. Both are trees of tensors `[N, ...]`."""
NUM_SAMPLES = 32
"""Number of sampled rows on which a function is checked."""
TOLERANCE = 1e-5
"""Largest difference of two numbers that count as equal, relative to numbers above 1."""
LARGEST_SAMPLE = 100.0
"""Bound of sampled numbers: a space with huge bounds samples huge numbers."""


class ActionsToEnv(Protocol):
    """The members of an `ActionPipeline` that `Symmetry` reads."""

    @property
    def connectors(self) -> Sequence[Any]:
        """Connectors from the module's actions to the environment's."""

    @property
    def module_space(self) -> Space[Any]:
        """Action space of the module."""

    @property
    def rescales(self) -> bool:
        """Whether a connector maps [-1, 1] onto the bounds."""


class FunctionActions:
    """Conversion between a policy's actions and the form in which the user's function takes them.

    The function takes actions in the shape, offset and bounds of the environment's action space. They are not clipped,
    so that both forms have the same information. With the user's own connectors of actions, which may have no inverse,
    they are the network's actions in the shape of the network's space.

    Args:
        action_space: Action space of the environment.
        pipeline: Connectors from the network's actions to the environment's. None if both are the same.
    """

    def __init__(self, action_space: Space[Any], pipeline: ActionsToEnv | None) -> None:
        has_own = False
        rescales = False
        if pipeline is not None:
            has_own = any(not type(each).__module__.startswith("lockstep.") for each in pipeline.connectors)
            rescales = pipeline.rescales and not has_own
        self.space: Any = action_space
        """Space of the actions that the function takes."""
        if pipeline is not None and has_own:
            self.space = pipeline.module_space
        self.is_bounded = rescales
        """Whether the policy's actions are in [-1, 1]."""
        self._leaves = list(action_leaves(self.space))
        starts = [leaf.start if isinstance(leaf, spaces.MultiDiscrete) else None for leaf in self._leaves]
        self._starts = [None if start is None else Constant(start) for start in starts]
        self._scales = [_Scale(leaf) if rescales and isinstance(leaf, spaces.Box) else None for leaf in self._leaves]

    def to_function(self, actions: Tensor) -> Tree:
        """Return the policy's actions `[N, ...]` in the form of the function."""
        if not isinstance(self.space, COMPOSITE):
            return self._part_to_function(0, actions)
        columns = actions.split([action_width(leaf) for leaf in self._leaves], dim=-1)
        parts = []
        for number, (leaf, column) in enumerate(zip(self._leaves, columns)):
            if isinstance(leaf, spaces.Discrete):
                column = column[..., 0].to(torch.int64)
            parts.append(self._part_to_function(number, column))
        return like_space(self.space, iter(parts))

    def _part_to_function(self, number: int, actions: Tensor) -> Tensor:
        space = self._leaves[number]
        if isinstance(space, spaces.Discrete):
            return actions + int(space.start)
        actions = actions.reshape(len(actions), *(space.shape or ()))
        scale = self._scales[number]
        if isinstance(space, spaces.Box):
            # The dtype stays that of the policy: rounding to the space's would make the learner's float64 useless.
            return actions if scale is None else scale.to_bounds(actions)
        assert space.dtype is not None
        actions = actions.to(torch_dtype(space.dtype))
        start = self._starts[number]
        return actions if start is None else actions + start.like(actions)

    def from_function(self, actions: Tree) -> Tensor:
        """Return actions in the form of the function as the policy's actions `[N, ...]`."""
        if not isinstance(self.space, COMPOSITE):
            return self._part_from_function(0, actions)
        columns = []
        for number, (_, part, _) in enumerate(leaves_of_space(self.space, actions, "action")):
            column = self._part_from_function(number, part)
            column = column.unsqueeze(-1) if column.dim() == 1 else column
            columns.append(column if column.is_floating_point() else column.to(torch_dtype(ACTION_COLUMN)))
        return torch.cat(columns, dim=-1)

    def _part_from_function(self, number: int, actions: Tensor) -> Tensor:
        space = self._leaves[number]
        if isinstance(space, spaces.Discrete):
            return actions - int(space.start)
        scale = self._scales[number]
        if scale is not None:
            actions = scale.from_bounds(actions)
        start = self._starts[number]
        if start is not None:
            actions = actions - start.like(actions)
        return actions.reshape(len(actions), -1)


class _Scale:
    """Linear map from [-1, 1] onto the bounds of a Box, and back, without clipping."""

    def __init__(self, space: spaces.Box) -> None:
        # Halved before they are added, as in `RescaleActions`: the sum of two bounds might overflow.
        half = space.high / 2 - space.low / 2
        self._centre = Constant(space.low / 2 + space.high / 2)
        self._half = Constant(half)
        self._divisor = Constant(np.where(half > 0, half, np.ones_like(half)))

    def to_bounds(self, actions: Tensor) -> Tensor:
        bounded: Tensor = actions * self._half.like(actions) + self._centre.like(actions)
        return bounded

    def from_bounds(self, actions: Tensor) -> Tensor:
        unit: Tensor = (actions - self._centre.like(actions)) / self._divisor.like(actions)
        return unit


class Symmetry:
    """Mirror images of stored observations and of a policy's actions.

    The function is checked on sampled rows: that it mirrors each row by itself and leaves its inputs as they are, that
    observations do not change the mirrored actions nor actions the mirrored observations, that mirrored actions are in
    the action space, and that the mirror image of a mirror image is the original.

    Args:
        function: Function `f(observations, actions)` of trees of tensors `[N, ...]`, see `SymmetryFunction`.
        observation_space: Space of the stored observations.
        action_space: Action space of the environment.
        pipeline: Connectors from the network's actions to the environment's. None if both are the same.

    Raises:
        TypeError, ValueError: The function is not such a mirror. The message names the largest difference.
    """

    def __init__(
        self,
        function: SymmetryFunction,
        observation_space: Space[Any],
        action_space: Space[Any],
        pipeline: ActionsToEnv | None = None,
    ) -> None:
        self.function = function
        self.observation_space = observation_space
        self.form = FunctionActions(action_space, pipeline)
        self.name = f"training.symmetry={getattr(function, '__qualname__', function)!s}"
        """The option with the name of the function, for messages."""
        self._no_obs = map_tree(Constant, allocate(observation_space, 1))
        """One observation of zeros."""
        self._num_leaves = sum(1 for _ in leaves(self._no_obs))
        self._knows_parts = False
        """Whether the function is known to mirror some entries of an observation without the others."""
        samples = self._samples()
        self._one_action = map_tree(lambda leaf: Constant(leaf[:1].numpy()), samples[1])
        """An action for calls in which only observations are mirrored."""
        self._check(*samples)
        self.numbers = self._find_numbers(samples[1])
        """Numbers of the mirror of actions. None if it has none: choices of several parts, or actions that do not just
        change places and signs."""
        self._index: Constant | None = None
        if self.numbers is not None:
            self._index = Constant(self.numbers.index)
            self._sign = Constant(self.numbers.sign)
            self._offset = Constant(self.numbers.offset)
        self._check_masks(samples[0])

    # -- mirror images ---

    def observations(self, obs: Tree) -> Any:
        """Return the mirror images of stored observations `[N, ...]`: arrays for arrays, tensors for tensors."""
        first = next(leaves(obs))
        if not isinstance(first, Tensor):
            mirrored = self.observations(map_tree(to_torch_leaf, obs))
            return map_tree(lambda leaf: leaf.numpy(), mirrored)
        actions = self._repeated(self._one_action, first)
        return self._mirrored_observations(obs, actions)

    def actions(self, actions: Array, obs: Tree) -> Any:
        """Return the mirror images of the policy's actions `[N, ...]`, in their dtype.

        `obs` `[N, ...]` are the stored observations, which the function takes as well.
        """
        if not isinstance(actions, Tensor):
            return self.actions(to_torch_leaf(actions), map_tree(to_torch_leaf, obs)).numpy()
        if self._index is not None:
            index = self._index.like(actions)
            if isinstance(self.form.space, spaces.Discrete):
                return index[actions.to(torch.int64)].to(actions.dtype)
            sign = self._sign.like(actions).to(actions.dtype)
            return actions.index_select(-1, index) * sign + self._offset.like(actions).to(actions.dtype)
        mirrored = self._call(obs, self.form.to_function(actions))[1]
        return self.form.from_function(mirrored).to(actions.dtype)

    def _mirrored_observations(self, obs: Tree, actions: Tree) -> Any:
        """Return the mirror images of observations, which may lack entries of a Dict that acting does not need.

        The function then gets zeros in their place.
        """
        if sum(1 for _ in leaves(obs)) == self._num_leaves:
            return self._call(obs, actions)[0]
        if not self._knows_parts:
            self._check_part(obs)
        return self._part_of_image(obs, actions)

    def _part_of_image(self, obs: Tree, actions: Tree) -> Any:
        """Return the mirror images of the entries in `obs`, with zeros for the entries that it lacks."""
        whole = completed(obs, self._repeated(self._no_obs, next(leaves(obs))))
        return map_pair(_second, obs, self._call(whole, actions)[0])

    def _call(self, obs: Tree, actions: Tree) -> tuple[Any, Any]:
        """Return the function's results, with the order of keys and the dtypes of its arguments."""
        returned = self.function(obs, actions)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise TypeError(
                f"{self.name} returned a {type(returned).__name__}; f(observations, actions) must return both in "
                "mirror image, as a pair"
            )
        mirrored_obs, mirrored_actions = returned
        return self._in_form("observations", obs, mirrored_obs), self._in_form("actions", actions, mirrored_actions)

    def _in_form(self, name: str, given: Tree, returned: Tree) -> Any:
        """Return the function's result in the form of its argument; `ValueError` for another structure or shapes."""
        expected = {path: tuple(leaf.shape) for path, leaf in named_leaves(name, given)}
        found = {path: tuple(getattr(leaf, "shape", ())) for path, leaf in named_leaves(name, returned)}
        if found != expected or not all(isinstance(leaf, Tensor) for leaf in leaves(returned)):
            raise ValueError(
                f"{self.name} returned {name} of the shapes {found} for {expected}; it must return tensors of the same "
                "shapes"
            )
        return map_pair(lambda leaf, part: part.to(leaf.dtype), given, returned)

    @staticmethod
    def _repeated(constants: Tree, like: Tensor) -> Any:
        """Return one row `[1, ...]` of each leaf as often as `like` `[N, ...]` has rows, without a copy."""

        def repeated(constant: Any) -> Tensor:
            row: Tensor = constant.like(like)
            # Not `len(like)`, which would make the number of rows a constant of an exported graph.
            return row.expand(like.shape[0], *row.shape[1:])

        return map_tree(repeated, constants)

    # -- checks ---

    def _samples(self) -> tuple[Any, Any]:
        """Return observations and actions for the function, `NUM_SAMPLES` rows of each."""
        return _sampled(self.observation_space), _sampled(self.form.space)

    def _check(self, obs: Tree, actions: Tree) -> None:
        """Raise an error unless the function is a mirror on sampled rows, see the class."""
        kept = map_tree(torch.clone, (obs, actions))
        mirrored_obs, mirrored_actions = self._call(obs, actions)
        if _largest_difference((obs, actions), kept)[0]:
            raise ValueError(f"{self.name} changes its arguments in place; let it work on copies, obs.clone()")

        again = self._call(mirrored_obs, mirrored_actions)
        difference, where = _largest_difference(kept, again)
        if difference > TOLERANCE:
            raise ValueError(
                f"{self.name} is not an involution: applied twice it must return what it was given, and the largest "
                f"difference is {difference:.3g}, in {where}"
            )

        first = map_tree(lambda leaf: leaf[:1], kept)
        difference, where = _largest_difference(
            map_tree(lambda leaf: leaf[:1], (mirrored_obs, mirrored_actions)), self._call(*first)
        )
        if difference > TOLERANCE:
            raise ValueError(
                f"{self.name} mirrors a row differently if there are other rows: the largest difference is "
                f"{difference:.3g}, in {where}; the first dimension counts the rows, and must stay as it is"
            )

        def shifted(leaf: Tensor) -> Tensor:
            return leaf.roll(1, 0)

        other_obs, other_actions = self._call(kept[0], map_tree(shifted, kept[1]))
        expected = (mirrored_obs, map_tree(shifted, mirrored_actions))
        difference, where = _largest_difference(expected, (other_obs, other_actions))
        if difference > TOLERANCE:
            raise ValueError(
                f"{self.name} must mirror observations and actions independently of each other: with other actions "
                f"the largest difference is {difference:.3g}, in {where}"
            )
        self._check_bounds(kept[1], mirrored_actions)

    def _check_bounds(self, actions: Tree, mirrored: Tree) -> None:
        """Raise `ValueError` if a mirrored action is outside of the action space."""
        parts = zip(
            leaves_of_space(self.form.space, actions, "actions"), leaves_of_space(self.form.space, mirrored, "actions")
        )
        for (space, _, path), (_, part, _) in parts:
            low, high = _bounds(space)
            outside = torch.maximum(low - part, part - high).clamp(min=0)
            if float(outside.max()) > TOLERANCE * max(1.0, float(part.abs().max())):
                raise ValueError(
                    f"{self.name} mirrors an action of {space} to one outside of it, by up to "
                    f"{float(outside.max()):.3g} in {path}; actions have the bounds and the numbers of the "
                    "environment's action space"
                )

    def _check_masks(self, obs: Tree) -> None:
        """Raise `ValueError` if mirrored masks of a Discrete space do not allow the mirrored actions."""
        if not carries_mask(self.observation_space) or self._index is None:
            return
        mirrored = self.observations(obs)[ACTION_MASK]
        expected = obs[ACTION_MASK].index_select(-1, self._index.like(mirrored))
        if not torch.equal(mirrored, expected):
            raise ValueError(
                f"{self.name} does not mirror observations['{ACTION_MASK}'] as it mirrors actions: the mirrored mask "
                "must allow the mirror images of the allowed actions"
            )

    def _check_part(self, obs: Tree) -> None:
        """Raise `ValueError` if the mirror images of the entries in `obs` depend on entries that are missing there."""
        sampled, actions = self._samples()
        expected = map_pair(_second, obs, self._call(sampled, actions)[0])
        found = self._part_of_image(map_pair(_second, obs, sampled), actions)
        difference, where = _largest_difference(expected, found)
        if difference > TOLERANCE:
            raise ValueError(
                f"{self.name} mirrors entries that the policy sees by entries that it does not see: without these the "
                f"largest difference is {difference:.3g}, in {where}"
            )
        self._knows_parts = True

    # -- numbers of the mirror of actions ---

    def _find_numbers(self, sampled: Tree) -> MirrorNumbers | None:
        """Return the numbers of the mirror of actions, or None if it has none."""
        space = self.form.space
        if isinstance(space, spaces.Discrete):
            index = self._mirrored_actions(torch.arange(int(space.n)))
            ones = np.ones(len(index))
            return MirrorNumbers(index.numpy(), ones, np.zeros_like(ones))
        if not isinstance(space, spaces.Box):
            return None

        # The effect of each entry of an action on each entry of its mirror image.
        size = action_width(space)
        probes = torch.cat([torch.zeros(1, size), torch.eye(size)]).to(torch.float64)
        images = self._mirrored_actions(probes)
        offset = images[0]
        effects = images[1:] - offset
        index = effects.abs().argmax(0)
        sign = effects.gather(0, index.unsqueeze(0)).squeeze(0).sign()
        offset = torch.where(offset.abs() > TOLERANCE, offset, 0.0)
        if self.form.is_bounded and bool(offset.any()):
            return None

        actions = self.form.from_function(sampled).to(torch.float64)
        expected = self._mirrored_actions(actions)
        found = actions.index_select(-1, index) * sign + offset
        if _largest_difference(expected, found)[0] > TOLERANCE:
            return None
        return MirrorNumbers(index.numpy(), sign.numpy(), offset.numpy())

    def _mirrored_actions(self, actions: Tensor) -> Tensor:
        """Return the mirror images of the policy's actions by the function itself."""
        obs = self._repeated(self._no_obs, actions)
        return self.form.from_function(self._call(obs, self.form.to_function(actions))[1])


class PairPipeline(ObsPipeline):
    """Pipeline for a symmetric network: each output is a pair, of an observation and of its mirror image.

    Both are the outputs of the same connectors. `observation_space` is the space of each of the two. Statistics are
    those of the observations that were collected, not of their mirror images.

    Args:
        connectors: The connectors in their order.
        observation_space: Space of the stored observations.
        mirror: Function that returns the mirror images of stored observations.
    """

    makes_pairs = True

    def __init__(
        self, connectors: Sequence[Connector], observation_space: Space[Any], mirror: Callable[[Tree], Tree]
    ) -> None:
        super().__init__(connectors, observation_space)
        self.is_identity = False
        self.mirror = mirror

    def __call__(self, data: Tree) -> Any:
        """Return the network's form of the observations, and of their mirror images."""
        return super().__call__(data), super().__call__(self.mirror(data))


def _sampled(space: Space[Any], number: int = NUM_SAMPLES) -> Any:
    """Return sampled rows of a space as tensors `[number, ...]`. Floats are at most `LARGEST_SAMPLE`."""
    batched = batch_space(space, number)
    batched.seed(0)

    def limited(leaf: npt.NDArray[Any]) -> Tensor:
        if leaf.dtype.kind == "f":
            leaf = np.where(np.abs(leaf) > LARGEST_SAMPLE, np.fmod(leaf, LARGEST_SAMPLE), leaf).astype(leaf.dtype)
        return torch.from_numpy(leaf.copy())

    sampled: Any = map_tree(limited, batched.sample())
    return sampled


def _bounds(space: Space[Any]) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each entry of a simple space."""
    if isinstance(space, spaces.Box):
        return torch.from_numpy(space.low), torch.from_numpy(space.high)
    if isinstance(space, spaces.Discrete):
        low = torch.tensor(int(space.start))
        return low, low + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        low = torch.from_numpy(space.start)
        return low, low + torch.from_numpy(space.nvec) - 1
    return torch.zeros((), dtype=torch.int8), torch.ones((), dtype=torch.int8)


def _second(leaf: Tree, part: Tree) -> Tree:
    """Return the second argument, for `map_pair`."""
    return part


def _largest_difference(first: Tree, second: Tree) -> tuple[float, str]:
    """Return the largest difference between two trees, relative for numbers above 1, and the path of its leaf."""
    largest = 0.0
    where = ""
    others = leaves(second)
    for path, leaf in named_leaves("", first):
        exact = leaf.to(torch.float64)
        other = next(others).to(torch.float64)
        if not leaf.numel():
            continue
        differences = (exact - other).abs() / exact.abs().clamp(min=1.0)
        difference = float(differences.nan_to_num(torch.inf).max())
        if difference > largest:
            largest = difference
            where = path
    # Arguments are pairs of observations and actions, whose paths begin with their number.
    for prefix, name in (("/0", "observations"), ("/1", "actions")):
        if where.startswith(prefix):
            where = name + where.removeprefix(prefix)
    return largest, where.lstrip("/")
