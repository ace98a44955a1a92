"""From an action space to the distribution over its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.data.actions import from_space, to_space
from lockstep.ops.deterministic import SquashedDeterministic
from lockstep.ops.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)


@dataclass(frozen=True)
class ActionDist:
    """How actions of a space are distributed: which class of distribution, with which sizes.

    | space | distribution | actions as learned from |
    |---|---|---|
    | Discrete | Categorical | int64 `[N]`, from 0 |
    | MultiDiscrete | MultiCategorical | int64 `[N, parts]`, from 0 |
    | MultiBinary | Bernoulli | int8 `[N, bits]` |
    | Box of floats | DiagGaussian, or (squashed) SquashedGaussian in [-1, 1] | float `[N, A]` |
    | the same, deterministic | SquashedDeterministic in [-1, 1] | float `[N, A]` |

    Environments want the space's own shape, offset and dtype: :meth:`to_env` and back :meth:`from_env`.

    Raises:
        ValueError: another space, a Box of integers, or `squashed` for something that is no Box.
    """

    action_space: Space[Any]
    squashed: bool = False
    deterministic: bool = False
    dist_class: type[Distribution] = field(init=False, repr=False, compare=False)
    static: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dist_class, static = _describe(self.action_space, self.squashed)
        if self.deterministic:
            if not self.squashed:
                raise ValueError("deterministic actions are squashed ones of a Box; give squashed=True too")
            dist_class = SquashedDeterministic
        object.__setattr__(self, "dist_class", dist_class)
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
        """Whether the inputs are logits of choices (which a mask can forbid)."""
        return issubclass(self.dist_class, Categorical | MultiCategorical | Bernoulli)

    def from_inputs(self, inputs: Tensor) -> Distribution:
        """The distribution for a network's output `[N, input_size]`; `ValueError` for another last
        dimension.
        """
        return self.dist_class.from_inputs(inputs, **self.static)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Random numbers `[*leading_shape, noise_size]` for acting many steps (drawn in bulk)."""
        return self.dist_class.draw_noise(rng, leading_shape, **self.static)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions as learned from, `[..., A]`, in the shape, dtype and offset of the action space. No copy
        where they are the same.
        """
        return to_space(self.action_space, actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`to_env` (for recorded data)."""
        return from_space(self.action_space, actions)


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
    hint = " (a Box of integers can be declared as MultiDiscrete)" if isinstance(space, spaces.Box) else ""
    raise ValueError(
        f"no distribution for action space {space}{hint}; possible are Discrete, MultiDiscrete, MultiBinary "
        f"and a "
        "Box of floats. Wrap the environment so that its actions are one of these."
    )
