"""`ActingObservations`: what acting needs of an observation, if parts of an algorithm see different entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space

from lockstep.connectors.connector import ObsPipeline
from lockstep.data.groups import OWN_OBS, STATE, Groups, needed_paths, pruned, pruned_space, without_others
from lockstep.data.trees import Tree


class ActingObservations:
    """Way of an observation to the network when acting: only the entries that the policy sees are used.

    With a group for the policy, other entries may be missing. Connectors that make an entry from others may need all
    of them, so all entries are used if the policy sees an entry that the environment does not have.

    Args:
        groups: Observation groups of the network.
        raw_space: Observation space of the environment.
        stored_space: Space of the observations after the recording connectors.
        pipeline: Connectors from stored observations to the network's.
        is_bare: Whether callers give an agent's own observation, which is the entry `"obs"` of `raw_space`.
        network_is_bare: Whether the network expects that entry alone, as networks of version 0.2 do.
        has_other_memory: Whether the network updates the memory of another part while it acts, if stored observations
            have its entries. They are then passed on.

    Attributes:
        space: Space of the observations that acting accepts.
        stored_space: Space of these observations after the recording connectors.
    """

    def __init__(
        self,
        groups: Groups,
        raw_space: Space[Any],
        stored_space: Space[Any],
        pipeline: ObsPipeline,
        *,
        is_bare: bool = False,
        network_is_bare: bool = False,
        has_other_memory: bool = False,
    ) -> None:
        paths = needed_paths(raw_space, groups)
        self.sees_all = paths is None
        """Whether all entries are needed."""
        self._drops_entries = paths is not None and not has_other_memory
        self._pipeline = pipeline
        self._is_bare = is_bare
        self._network_is_bare = network_is_bare
        self._full_space = raw_space
        self._raw_space = raw_space if paths is None else pruned_space(raw_space, paths)
        self.stored_space = stored_space if paths is None else pruned_space(stored_space, paths)
        self.space: Any = self._raw_space[OWN_OBS] if is_bare else self._raw_space  # type: ignore[index]
        self.is_identity = pipeline.is_identity and self.sees_all and not network_is_bare
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
