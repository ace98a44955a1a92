"""What brings the actions of a distribution to an environment; `RescaleActions` lies in `lockstep.data.actions`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space


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
        """Return the actions within the bounds, in a new array."""
        if self._low is None or self._high is None:
            return actions
        rows = actions.reshape(-1, self._low.size)
        return np.minimum(np.maximum(rows, self._low), self._high).reshape(actions.shape)
