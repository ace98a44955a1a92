"""From an action space to the distribution over its actions, and to the mask that forbids some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.data.actions import (
    ACTION_MASK,
    COMPOSITE,
    action_leaves,
    carries_mask,
    check_mask_space,
    from_space,
    mask_parts,
    mask_size,
    to_space,
    without_mask,
)
from lockstep.data.trees import Tree
from lockstep.ops.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedDeterministic,
    SquashedGaussian,
)


@dataclass(frozen=True)
class ActionDist:
    """Describes how the actions of a space are distributed: the class of the distribution, and its sizes.

    | space | distribution | actions as learned from |
    |---|---|---|
    | Discrete | Categorical | int64 `[N]`, from 0 |
    | MultiDiscrete | MultiCategorical | int64 `[N, parts]`, from 0 |
    | MultiBinary | Bernoulli | int8 `[N, bits]` |
    | Box of floats | DiagGaussian, or (squashed) SquashedGaussian in [-1, 1] | float `[N, A]` |
    | the same, deterministic | SquashedDeterministic in [-1, 1] | float `[N, A]` |
    | Dict or Tuple of these, nested | Composite, independent parts | float `[N, A]`, the parts side by side |

    Environments want the space's own shape, offset and dtype: `to_env`, and back `from_env`.

    Raises:
        ValueError: another space, a Box of integers, or `squashed` for a space that is no Box.
    """

    action_space: Space[Any]
    squashed: bool = False
    deterministic: bool = False
    """needs `squashed`"""
    dist_class: type[Distribution] = field(init=False, repr=False, compare=False)
    static: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dist_class, static = _describe(self.action_space, self.squashed)
        object.__setattr__(self, "dist_class", SquashedDeterministic if self.deterministic else dist_class)
        object.__setattr__(self, "static", static)

    @property
    def input_size(self) -> int:
        """Number of network outputs for each row (`D` of `action_dist_inputs`)."""
        return self.dist_class.input_size(**self.static)

    @property
    def noise_size(self) -> int:
        """Number of random numbers for each action."""
        return self.dist_class.noise_size(**self.static)

    @property
    def is_discrete(self) -> bool:
        """Whether all inputs are logits of choices, which a mask can forbid."""
        return self.num_choices == self.input_size

    @property
    def num_choices(self) -> int:
        """Number of logits of choices among the inputs: the entries of a mask."""
        return mask_size(self.action_space)

    @property
    def num_log_stds(self) -> int:
        """Number of logarithms of standard deviations, which come last among the inputs."""
        return self.input_size - self.noise_size

    def from_inputs(self, inputs: Tensor) -> Distribution:
        """Return the distribution for a network's output `[N, input_size]`; `ValueError` for another last dimension."""
        return self.dist_class.from_inputs(inputs, **self.static)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Draw random numbers `[*leading_shape, noise_size]`, for acting many steps."""
        return self.dist_class.draw_noise(rng, leading_shape, **self.static)

    def to_env(self, actions: np.ndarray) -> Tree:
        """Turn actions as learned from, `[..., A]`, into the shape, dtype and offset of the action space.

        Makes no copy where they are the same.
        """
        return to_space(self.action_space, actions)

    def from_env(self, actions: Tree) -> np.ndarray:
        """Turn recorded actions of the environment into actions as learned from: the inverse of `to_env`."""
        return from_space(self.action_space, actions)

    def split_mask(self, observation_space: Space[Any]) -> tuple[Space[Any], bool]:
        """Return the space of what a network sees, and whether observations carry a mask of the actions.

        Raises:
            ValueError: actions that have no choices, a mask of another size than the logits, or a misplaced mask.
        """
        if not carries_mask(observation_space):
            return observation_space, False
        check_mask_space(self.action_space, cast(spaces.Dict, observation_space)[ACTION_MASK])
        return without_mask(observation_space), True

    def full_mask(self, mask: Tree) -> Tensor:
        """Return the mask `[N, input_size]` of all inputs, for that of an observation: no mask forbids a mean."""
        parts = [part for _, part, _ in mask_parts(self.action_space, mask)]
        flat: Tensor = parts[0] if len(parts) == 1 else torch.cat([part.to(torch.bool) for part in parts], dim=-1)
        if not isinstance(self.action_space, COMPOSITE):
            return flat
        full = torch.ones(*flat.shape[:-1], self.input_size, dtype=torch.bool, device=flat.device)
        full[..., self._choices()] = flat.to(torch.bool)
        return full

    def _choices(self) -> list[int]:
        """Return which of the inputs of a Composite are logits of choices."""
        found: list[int] = []
        first = 0
        for leaf, (dist_class, static) in zip(action_leaves(self.action_space), self.static["parts"]):
            size = dist_class.noise_size(**static)
            found += range(first, first + size) if mask_size(leaf) else ()
            first += size
        return found


def _describe(space: Space[Any], squashed: bool) -> tuple[type[Distribution], dict[str, Any]]:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return SquashedGaussian if squashed else DiagGaussian, {"size": int(np.prod(space.shape, dtype=int))}
    if squashed:
        raise ValueError(f"squashed actions need a Box of floats, not {space}")
    if isinstance(space, spaces.Discrete):
        return Categorical, {"size": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical, {"nvec": tuple(int(n) for n in space.nvec.reshape(-1))}
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli, {"size": int(np.prod(space.shape, dtype=int))}
    leaves = list(action_leaves(space)) if isinstance(space, COMPOSITE) else []
    if leaves and all(map(_is_exact, leaves)):
        return Composite, {"parts": tuple(_describe(leaf, False) for leaf in leaves)}
    hint = " (a Box of integers can be declared as MultiDiscrete)" if isinstance(space, spaces.Box) else ""
    raise ValueError(
        f"no distribution for action space {space}{hint}; possible are Discrete, MultiDiscrete, MultiBinary, a Box "
        "of floats, and Dicts and Tuples of these (of at most 2**24 choices each). Wrap the environment so that its "
        "actions are one of these."
    )


def _is_exact(space: Space[Any]) -> bool:
    """Return whether the choices of a part of a composite action are exact as floats."""
    return not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or mask_size(space) <= 2**24
