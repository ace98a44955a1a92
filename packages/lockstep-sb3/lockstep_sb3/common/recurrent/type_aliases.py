"""`RNNStates`, the states of two memories."""

from typing import Any, NamedTuple


class RNNStates(NamedTuple):
    """States of the memories of policy and value function, each a tuple (hidden, cell)."""

    pi: tuple[Any, ...]
    vf: tuple[Any, ...]
