"""State of a part that an object may lack."""

from __future__ import annotations

from typing import Protocol, TypeVar

State_co = TypeVar("State_co", covariant=True)


class HasState(Protocol[State_co]):
    """Object whose `get_state` returns its state."""

    def get_state(self) -> State_co:
        """Return the state."""
        ...


def optional_state(part: HasState[State_co] | None) -> State_co | None:
    """Return the state of a part, or None if there is no such part."""
    return None if part is None else part.get_state()
