"""`ActionMasker`, which gives an environment the method `action_masks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym


class ActionMasker(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper with the method `action_masks()`.

    Args:
        env: Environment.
        action_mask_fn: Function that returns the mask for an environment, or the name of a method of `env` that
            returns it.

    Raises:
        ValueError: `env` has no method with that name.
    """

    def __init__(self, env: gym.Env[Any, Any], action_mask_fn: str | Callable[[Any], Any]) -> None:
        super().__init__(env)
        self._action_mask_fn = action_mask_fn
        if isinstance(action_mask_fn, str):
            method = env.get_wrapper_attr(action_mask_fn) if env.has_wrapper_attr(action_mask_fn) else None
            if not callable(method):
                raise ValueError(f"ActionMasker: {env} has no method {action_mask_fn!r}")

    def action_masks(self) -> Any:
        """Return the mask of the present actions."""
        if isinstance(self._action_mask_fn, str):
            return self.env.get_wrapper_attr(self._action_mask_fn)()
        return self._action_mask_fn(self.env)
