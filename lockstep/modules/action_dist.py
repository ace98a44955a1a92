"""Distributions over the actions of a space, and masks that forbid some of them."""

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
    """Description of the distribution over an action space: its class, and its sizes.

    | space | distribution | actions in batches |
    |---|---|---|
    | Discrete | Categorical | int64 `[N]`, from 0 |
    | MultiDiscrete | MultiCategorical | int64 `[N, parts]`, from 0 |
    | MultiBinary | Bernoulli | int8 `[N, bits]` |
    | Box of floats | DiagGaussian, or (squashed) SquashedGaussian in [-1, 1] | float `[N, A]` |
    | the same, deterministic | SquashedDeterministic in [-1, 1] | float `[N, A]` |
    | Dict or Tuple of these, nested | Composite, independent parts | float `[N, A]`, the parts concatenated |

    Environments expect the shape, offset and dtype of the space. `to_env` converts actions to that form, and `from_env`
    converts them back.

    Raises:
        ValueError: The space is not supported, is a Box of integers, or is not a Box although `squashed`.
    """

    action_space: Space[Any]
    """Action space of the environment."""
    squashed: bool = False
    """Squash actions of a Box by tanh into [-1, 1]."""
    deterministic: bool = False
    """Actions without chance. Needs `squashed`."""
    dist_class: type[Distribution] = field(init=False, repr=False, compare=False)
    """Class of the distribution."""
    static: dict[str, Any] = field(init=False, repr=False, compare=False)
    """Keyword arguments with the sizes of the distribution, for the methods of `dist_class`."""

    def __post_init__(self) -> None:
        dist_class, static = _describe(self.action_space, self.squashed)
        object.__setattr__(self, "dist_class", SquashedDeterministic if self.deterministic else dist_class)
        object.__setattr__(self, "static", static)

    @property
    def input_size(self) -> int:
        """Number of network outputs for each row: D in `action_dist_inputs` `[N, D]`."""
        return self.dist_class.input_size(**self.static)

    @property
    def noise_size(self) -> int:
        """Number of random numbers that select an action."""
        return self.dist_class.noise_size(**self.static)

    @property
    def is_discrete(self) -> bool:
        """Whether all inputs are logits of choices, so that a mask can forbid each of them."""
        return self.num_choices == self.input_size

    @property
    def num_choices(self) -> int:
        """Number of the inputs that are logits of choices. A mask has as many entries."""
        return mask_size(self.action_space)

    @property
    def num_log_stds(self) -> int:
        """Number of the inputs that are log standard deviations. They are the last ones."""
        return self.input_size - self.noise_size

    def from_inputs(self, inputs: Tensor) -> Distribution:
        """Return the distribution of a network output `[N, input_size]`. `ValueError` for another last dimension."""
        return self.dist_class.from_inputs(inputs, **self.static)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Draw the random numbers of many actions at once, `[*leading_shape, noise_size]`."""
        return self.dist_class.draw_noise(rng, leading_shape, **self.static)

    def to_env(self, actions: np.ndarray) -> Tree:
        """Return actions of a batch, `[..., A]`, in the shape, dtype and offset of the action space.

        Does not copy if the form is the same.
        """
        return to_space(self.action_space, actions)

    def from_env(self, actions: Tree) -> np.ndarray:
        """Return actions of the environment in the form of batches: the inverse of `to_env`."""
        return from_space(self.action_space, actions)

    def split_mask(self, observation_space: Space[Any]) -> tuple[Space[Any], bool]:
        """Return the part of an observation space without the action mask, and whether there is a mask.

        Raises:
            ValueError: The actions have no choices, the mask has another size than the logits, or it is misplaced.
        """
        if not carries_mask(observation_space):
            return observation_space, False
        check_mask_space(self.action_space, cast(spaces.Dict, observation_space)[ACTION_MASK])
        return without_mask(observation_space), True

    def full_mask(self, mask: Tree) -> Tensor:
        """Return the mask `[N, input_size]` of all inputs, from the mask of an observation.

        A Composite has inputs that are not choices, such as means. They are never forbidden.
        """
        parts = [part for _, part, _ in mask_parts(self.action_space, mask)]
        flat: Tensor = parts[0] if len(parts) == 1 else torch.cat([part.to(torch.bool) for part in parts], dim=-1)
        if not isinstance(self.action_space, COMPOSITE):
            return flat
        full = torch.ones(*flat.shape[:-1], self.input_size, dtype=torch.bool, device=flat.device)
        full[..., self._choice_inputs()] = flat.to(torch.bool)
        return full

    def _choice_inputs(self) -> list[int]:
        """Return the indices of the inputs of a Composite that are logits of choices."""
        indices: list[int] = []
        start = 0
        for leaf, (dist_class, static) in zip(action_leaves(self.action_space), self.static["parts"]):
            size = dist_class.noise_size(**static)
            if mask_size(leaf):
                indices += range(start, start + size)
            start += size
        return indices


def _describe(space: Space[Any], squashed: bool) -> tuple[type[Distribution], dict[str, Any]]:
    """Return the distribution's class for a space, and the keyword arguments with its sizes."""
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
    """Return whether float32 can hold every choice of a space exactly, as it must in a composite action."""
    return not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or mask_size(space) <= 2**24
