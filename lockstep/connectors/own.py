"""`OfOwnObservation`: a connector of an agent's own observation, next to which there is a central state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor

from lockstep.connectors.connector import Connector, Join
from lockstep.data.groups import OWN_OBS, STATE, split_state, with_state, with_state_space
from lockstep.data.trees import Tree


class OfOwnObservation(Connector):
    """Connector that applies another one to an agent's own observation, and does not change the central state.

    So connectors that users list see what their agents see, as without a centralised critic. The state may be missing,
    as when acting.

    Args:
        connector: The connector of own observations.
    """

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.is_recorded = connector.is_recorded
        self.on_device = connector.on_device
        self.reads_rewards = connector.reads_rewards
        self.keeps_entries = connector.keeps_entries
        self.added_entries = connector.added_entries
        self._is_bare = True
        """Whether own observations are an entry "obs", and not entries of a Dict."""

    @property
    def unwrapped(self) -> Connector:
        return self.connector

    # -- what the connector is ---

    @property
    def has_statistics(self) -> bool:
        return self.connector.has_statistics

    @property
    def has_memory(self) -> bool:
        return self.connector.has_memory

    @property
    def joins_statistics(self) -> bool:
        return self.connector.joins_statistics

    # -- observations ---

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        own_space, state_space = split_state(input_space)
        return with_state_space(self.connector.output_space(own_space), state_space)

    def bind(self, input_space: Space[Any]) -> Space[Any]:
        own_space, state_space = split_state(input_space)
        self._is_bare = not isinstance(own_space, spaces.Dict)
        return with_state_space(self.connector.bind(own_space), state_space)

    def __call__(self, data: Tree) -> Any:
        return self._with_state_of(data, self.connector(self._own(data)))

    def _own(self, data: Mapping[str, Any]) -> Any:
        """Return the own part of an observation, or of its space, with or without the state."""
        # By the space, and not by the keys: an observation may lack entries that acting does not need.
        if self._is_bare:
            return data[OWN_OBS]
        return {name: entry for name, entry in data.items() if name != STATE}

    @staticmethod
    def _with_state_of(data: Mapping[str, Any], own: Tree) -> Any:
        """Return an own observation with the state of `data`, if this has one."""
        if STATE in data:
            return with_state(own, data[STATE])
        return own if isinstance(own, Mapping) else {OWN_OBS: own}

    # -- statistics and memory ---

    def update(self, data: Tree) -> None:
        self.connector.update(self._own(data))

    def update_joined(self, data: Tree, join: Join) -> None:
        self.connector.update_joined(self._own(data), join)

    def reset(self, env_index: int | npt.NDArray[Any] | None = None) -> None:
        self.connector.reset(env_index)

    def after_step(self, actions: Tree, rewards: npt.NDArray[Any] | None) -> None:
        self.connector.after_step(actions, rewards)

    def get_state(self) -> dict[str, Any]:
        return self.connector.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.connector.set_state(state)

    # -- export ---

    def export_memory(self) -> dict[str, npt.NDArray[Any]]:
        return self.connector.export_memory()

    def export_call(self, data: Tree, memory: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        own, memory_after = self.connector.export_call(self._own(data), memory)
        return self._with_state_of(data, own), memory_after

    def export_after(self, memory: dict[str, Tensor], actions: Tree) -> dict[str, Tensor]:
        return self.connector.export_after(memory, actions)

    def keep_entries(self, space: Space[Any]) -> None:
        own = self._own(space)  # type: ignore[arg-type]
        self.connector.keep_entries(spaces.Dict(list(own.items())) if isinstance(own, dict) else own)
