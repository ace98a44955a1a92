"""`ActingObservations`: what acting needs of an observation, if parts of an algorithm see different entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors.connector import ObsPipeline
from lockstep.data.groups import (
    OWN_OBS,
    POLICY,
    STATE,
    Groups,
    needed_paths,
    pruned,
    pruned_space,
    split_state,
    without_others,
)
from lockstep.data.trees import Tree


class ActingObservations:
    """Way of an observation to the network when acting: only the entries that the policy sees are used.

    With a group for the policy, other entries may be missing. Connectors that make an entry from others may need all
    of them, so all entries are used if the policy sees an entry that neither the environment has nor a connector adds
    by itself. The central state of several agents is used only if the policy's group has it.

    Args:
        groups: Observation groups of the network.
        recorded: Connectors from the environment's observations to the stored ones.
        pipeline: Connectors from stored observations to the network's.
        raw_space: Observation space of the environment.
        has_central_state: Whether `raw_space` is an agent's space with a central state.
        is_old: Whether the network expects its own observation alone, as networks of version 0.2 do.
        has_other_memory: Whether the network updates the memory of another part while it acts, if stored observations
            have its entries. They are then passed on.

    Attributes:
        space: Space of the observations that acting accepts.
        stored_space: Space of these observations after the recording connectors.
    """

    def __init__(
        self,
        groups: Groups,
        recorded: ObsPipeline,
        pipeline: ObsPipeline,
        raw_space: Space[Any],
        *,
        has_central_state: bool = False,
        is_old: bool = False,
        has_other_memory: bool = False,
    ) -> None:
        stored_space: Any = raw_space if recorded.is_identity else recorded.observation_space
        added: list[str] = []
        for connector in recorded.connectors:
            added += connector.added_entries
        paths = needed_paths(raw_space, groups, added=added)
        stored_paths = needed_paths(stored_space, groups)
        leaves_state = has_central_state and POLICY in groups and STATE not in groups[POLICY]
        if leaves_state:
            # Keys of the group may be keys of the environment by chance, such as "obs" after `FlattenObs`.
            keep_entries = all(connector.keeps_entries for connector in (*recorded.connectors, *pipeline.connectors))
            if not keep_entries or paths is None:
                paths = _own_paths(raw_space)
                stored_paths = _own_paths(stored_space)
        self.sees_all = paths is None
        """Whether all entries are needed."""
        self._drops_entries = paths is not None and not has_other_memory
        self._pipeline = pipeline
        self._full_space = raw_space
        self._raw_space = raw_space if paths is None else pruned_space(raw_space, paths)
        self.stored_space = stored_space if stored_paths is None else pruned_space(stored_space, stored_paths)

        # Callers give an agent's own observation, which is the entry "obs" of `raw_space` if it is not a Dict.
        self._is_bare = leaves_state and _is_bare(raw_space)
        self._network_is_bare = is_old and leaves_state and _is_bare(pipeline.observation_space or stored_space)
        self.space: Any = self._raw_space[OWN_OBS] if self._is_bare else self._raw_space  # type: ignore[index]
        self.is_identity = pipeline.is_identity and self.sees_all and not self._network_is_bare
        """Whether stored observations pass unchanged."""

    def of_policy(self, obs: Tree) -> Any:
        """Return what a caller gives without the entries of other parts. The result is not checked yet."""
        if self.sees_all or not isinstance(obs, Mapping):
            return obs
        if self._is_bare and set(obs) <= {OWN_OBS, STATE} and OWN_OBS in obs:
            return obs[OWN_OBS]
        return without_others(obs, self._full_space, self._raw_space)

    def as_recorded(self, obs: Tree) -> Any:
        """Return an observation of `space` in the form that the recording connectors take."""
        return {OWN_OBS: obs} if self._is_bare else obs

    def __call__(self, data: Tree) -> Any:
        """Return the network's observations for stored ones `[..., *]`, numpy or torch."""
        if self._drops_entries:
            data = pruned(data, self.stored_space)
        return self.for_network(self._pipeline(data))

    def for_network(self, data: Tree) -> Any:
        """Return observations after all connectors in the form that the network expects."""
        return data[OWN_OBS] if self._network_is_bare else data


def _own_paths(space: Space[Any]) -> tuple[tuple[str], ...]:
    """Return the paths of the entries of an agent's own observation."""
    return tuple((name,) for name in space.spaces if name != STATE)  # type: ignore[attr-defined]


def _is_bare(space: Space[Any]) -> bool:
    """Return whether an agent's own observation is not a Dict, for its space with a central state."""
    own_space, _ = split_state(space)
    return not isinstance(own_space, spaces.Dict)
