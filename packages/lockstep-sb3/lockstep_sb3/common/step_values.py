"""`StepValues`: the local variables of `learn` that callbacks read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StepValues(dict[str, Any]):
    """Values of the present step by name. Those that cost time are computed when they are first read.

    Args:
        computed: Functions without arguments that compute a value, by its name.
        **values: Values that do not change with the steps.
    """

    def __init__(self, computed: dict[str, Callable[[], Any]], /, **values: Any) -> None:
        super().__init__(**values)
        self.computed = computed

    def set_step(self, **values: Any) -> None:
        """Set the values of a new step, and forget the computed ones of the last step."""
        for name in self.computed:
            self.pop(name, None)
        self.update(values)

    def __missing__(self, name: str) -> Any:
        if name not in self.computed:
            raise KeyError(f"{name!r} is not a value of a step; there are {', '.join(sorted({*self, *self.computed}))}")
        value = self[name] = self.computed[name]()
        return value

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.computed

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` if there is none with this name."""
        try:
            return self[name]
        except KeyError:
            return default
