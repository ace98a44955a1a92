"""From an action space to the distribution over its actions, and to the mask that forbids some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.data.actions import ACTION_MASK, carries_mask, from_space, to_space, without_mask
from lockstep.ops.distributions import (
    Bernoulli,
    Categorical,
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
        """Whether the inputs are logits of choices, which a mask can forbid."""
        return issubclass(self.dist_class, Categorical | MultiCategorical | Bernoulli)

    def from_inputs(self, inputs: Tensor) -> Distribution:
        """Return the distribution for a network's output `[N, input_size]`; `ValueError` for another last dimension."""
        return self.dist_class.from_inputs(inputs, **self.static)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Draw random numbers `[*leading_shape, noise_size]`, for acting many steps."""
        return self.dist_class.draw_noise(rng, leading_shape, **self.static)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Turn actions as learned from, `[..., A]`, into the shape, dtype and offset of the action space.

        Makes no copy where they are the same.
        """
        return to_space(self.action_space, actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Turn recorded actions of the environment into actions as learned from: the inverse of `to_env`."""
        return from_space(self.action_space, actions)

    def split_mask(self, observation_space: Space[Any]) -> tuple[Space[Any], bool]:
        """Return the space of what a network sees, and whether observations carry a mask of the actions.

        Raises:
            ValueError: actions that have no choices, a mask of another size than the logits, or a misplaced mask.
        """
        if not carries_mask(observation_space):
            return observation_space, False
        mask = cast(spaces.Dict, observation_space)[ACTION_MASK]
        if not self.is_discrete:
            raise ValueError(
                f"observation space {observation_space} carries an action mask, but actions of {self.action_space} "
                "cannot be masked; only Discrete, MultiDiscrete and MultiBinary can"
            )
        if mask.shape != (self.input_size,):
            raise ValueError(
                f"the action mask {mask} must have shape ({self.input_size},), one entry for each logit of "
                f"{self.action_space}"
            )
        return without_mask(observation_space), True


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
        f"no distribution for action space {space}{hint}; possible are Discrete, MultiDiscrete, MultiBinary and a Box "
        "of floats. Wrap the environment so that its actions are one of these."
    )
