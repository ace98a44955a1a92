"""From the actions of a distribution to those of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.actions import RescaleActions
from lockstep.modules.action_dist import ActionDist


class ClipActions:
    """Limits actions of a Box, `[..., A]` or in the space's own shape, to its bounds; actions of other spaces pass.

    The learner keeps the actions as they were drawn: a Gaussian's density is that of the unlimited ones.
    """

    def __init__(self, action_space: Space[Any]) -> None:
        self._low = self._high = None
        if isinstance(action_space, spaces.Box) and (
            action_space.bounded_below.any() or action_space.bounded_above.any()
        ):
            self._low, self._high = action_space.low.reshape(-1), action_space.high.reshape(-1)
        self.is_identity = self._low is None

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """The same actions within the bounds, a new array."""
        if self._low is None or self._high is None:
            return actions
        rows = actions.reshape(-1, self._low.size)
        return np.minimum(np.maximum(rows, self._low), self._high).reshape(actions.shape)


class EnvActions:
    """A module's actions, ready for the environment: limited to the bounds or rescaled onto them, then in the
    action space's shape, dtype and offset.
    """

    def __init__(self, action_dist: ActionDist, *, bounds: str | None = None) -> None:
        """`bounds` for a Box: "clip", "rescale" (from [-1, 1]), or "ignore". None: rescale what is squashed,
        clip the rest.

        Raises:
            ValueError: an unknown `bounds`, or "rescale" for a space without finite bounds.
        """
        space = action_dist.action_space
        if bounds is None:
            bounds = "rescale" if action_dist.squashed else "clip"
        if bounds not in ("clip", "rescale", "ignore"):
            raise ValueError(f'bounds of actions must be "clip", "rescale" or "ignore", got {bounds!r}')
        self.action_dist = action_dist
        self.bounds = bounds
        self._limit: ClipActions | RescaleActions | None = None
        if bounds == "rescale":
            self._limit = RescaleActions(space)
        elif bounds == "clip" and not ClipActions(space).is_identity:
            self._limit = ClipActions(space)
        self.is_identity = isinstance(space, spaces.Discrete) and space.start == 0

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """`[..., A]` (`[...]` for Discrete) -> `[..., *action_space.shape]`."""
        if self.is_identity:
            return actions
        return self.action_dist.to_env(actions if self._limit is None else self._limit(actions))
