"""Observation groups: which entries of a Dict observation the parts of an algorithm see.

A part is the policy, the critic, the teacher of a distillation, or the network of an intrinsic reward. A group lists
keys of the observation space; the key of an entry in a nested Dict is its path, such as `"sensors/left"`. A part
without a group sees all entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.actions import ACTION_MASK, carries_mask, without_mask
from lockstep.data.trees import Tree

POLICY = "policy"
CRITIC = "critic"
TEACHER = "teacher"
INTRINSIC = "intrinsic"
PARTS = (POLICY, CRITIC, TEACHER, INTRINSIC)
"""Parts of algorithms that may have a group."""
Groups = Mapping[str, Sequence[str]]
"""Keys by part."""
NO_GROUPS: Groups = {}
Path = tuple[str, ...]
"""Keys that lead to an entry of nested Dicts."""
OWN_OBS = "obs"
"""Key of an agent's own observation, if this is not a Dict and the agents have a central state."""
STATE = "state"
"""Key of the central state of several agents."""


def checked_groups(groups: object) -> dict[str, tuple[str, ...]]:
    """Return groups with their keys as tuples.

    Raises:
        ValueError: An unknown part, an empty group, or a key that occurs twice.
        TypeError: Not a dict of lists of names.
    """
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"observation_groups={groups!r} must be a dict such as {{'policy': ['proprio'], 'critic': ['proprio', "
            "'heights']}"
        )
    checked = {}
    for part, keys in groups.items():
        if part not in PARTS:
            raise ValueError(f"observation_groups has a group for {part!r}; parts are {', '.join(PARTS)}")
        is_list = isinstance(keys, Sequence) and not isinstance(keys, str)
        if not is_list or not all(isinstance(key, str) for key in keys):
            raise TypeError(f"observation_groups[{part!r}]={keys!r} must be a list of keys of the observation space")
        if not keys:
            raise ValueError(
                f"observation_groups[{part!r}] is empty: a part has to see something. Leave it out to let the part "
                "see all entries"
            )
        if len(set(keys)) < len(keys):
            raise ValueError(f"observation_groups[{part!r}]={list(keys)} names an entry twice")
        checked[part] = tuple(keys)
    return checked


def check_keys(groups: Groups, space: Space[Any]) -> None:
    """Raise `ValueError` if groups are for another kind of observations, or name keys that the space does not have."""
    for part, keys in groups.items():
        for key in keys:
            path_of(key, space, part)


def path_of(key: str, space: Space[Any], part: str) -> Path:
    """Return the path of an entry. `ValueError` names the `part` whose group has the key if there is no such entry."""
    if not isinstance(space, spaces.Dict):
        raise ValueError(
            f"observation_groups[{part!r}] needs observations that are a Dict, not {space}. Connectors that make one "
            "array of a Dict, such as FlattenObs, leave no entries to choose from"
        )
    paths = dict(_paths(space, ()))
    if key not in paths:
        raise ValueError(
            f"observation_groups[{part!r}] names {key!r}, which is not in the observation space; it has "
            f"{', '.join(map(repr, paths))}"
        )
    return paths[key]


def _paths(space: spaces.Dict, above: Path) -> Iterable[tuple[str, Path]]:
    """Yield the key and the path of each entry, and of each Dict among them."""
    for name, part in space.spaces.items():
        path = (*above, name)
        yield "/".join(path), path
        if isinstance(part, spaces.Dict):
            yield from _paths(part, path)


def entry_at(tree: Tree, path: Path) -> Any:
    """Return the entry at a path of an observation or a space."""
    for name in path:
        tree = tree[name]
    return tree


class PartView:
    """What one part of an algorithm sees of an observation.

    A group of one entry is seen as this entry alone, and several entries as a flat Dict in the order of the group.
    Without a group the view is the whole observation. An action mask is not part of a view.

    Args:
        part: Name of the part.
        space: Space of the whole observations, as the network receives them.
        groups: Groups of all parts.

    Attributes:
        space: Space of the view.

    Raises:
        ValueError: The group does not fit the space.
    """

    def __init__(self, part: str, space: Space[Any], groups: Groups) -> None:
        self.part = part
        self._is_masked = carries_mask(space)
        keys = groups.get(part)
        self.paths: dict[str, Path] | None = None
        """Paths by key; None if the part sees all entries."""
        if keys is None:
            self.space: Any = without_mask(space) if self._is_masked else space
            return
        self.paths = {key: path_of(key, space, part) for key in keys if not self._is_mask(key)}
        if not self.paths:
            raise ValueError(f"observation_groups[{part!r}] has the action mask alone; name what the part observes")
        entries = {key: entry_at(space, path) for key, path in self.paths.items()}
        # A list keeps the order of the group. From a dict gymnasium would sort the keys.
        self.space = next(iter(entries.values())) if len(entries) == 1 else spaces.Dict(list(entries.items()))
        self._sole_path = next(iter(self.paths.values())) if len(entries) == 1 else None

    @property
    def in_words(self) -> str:
        """The keys that the part sees, for messages."""
        return "all entries" if self.paths is None else str(list(self.paths))

    def _is_mask(self, key: str) -> bool:
        return self._is_masked and key == ACTION_MASK

    @property
    def is_identity(self) -> bool:
        """Whether the view is the observation itself."""
        return self.paths is None and not self._is_masked

    def __call__(self, obs: Tree) -> Any:
        """Return the view of observations `[..., *]`, without a copy. Entries of other parts may be missing.

        `ValueError` if an entry of the group is missing.
        """
        if self.paths is None:
            return without_mask(obs) if self._is_masked else obs
        try:
            if self._sole_path is not None:
                return entry_at(obs, self._sole_path)
            return {key: entry_at(obs, path) for key, path in self.paths.items()}
        except (KeyError, IndexError, TypeError) as error:
            given = list(obs) if isinstance(obs, Mapping) else type(obs).__name__
            raise ValueError(
                f"the {self.part} sees {list(self.paths)}, and the observations are {given}; give it all of its entries"
            ) from error


def needed_paths(
    space: Space[Any], groups: Groups, part: str = POLICY, *, added: Sequence[str] = ()
) -> tuple[Path, ...] | None:
    """Return the paths of the entries of a space that a part needs, with the action mask. None stands for all.

    All entries are needed if the part has no group, and if the space lacks one of its keys: then a connector makes the
    entry, of entries that only the connector knows.

    Args:
        space: Space of the observations.
        groups: Groups of all parts.
        part: Name of the part.
        added: Keys that connectors add without reading other entries, see `Connector.added_entries`.
    """
    if part not in groups or not isinstance(space, spaces.Dict):
        return None
    keys = [key for key in groups[part] if key not in added]
    paths = dict(_paths(space, ()))
    if not paths.keys() >= set(keys):
        return None
    needed = [paths[key] for key in keys]
    if carries_mask(space) and (ACTION_MASK,) not in needed:
        needed.append((ACTION_MASK,))
    return tuple(needed)


def pruned_space(space: Space[Any], paths: Iterable[Path]) -> Space[Any]:
    """Return a nested Dict with only the entries at these paths. Paths that the space does not have are passed over."""
    kept = []
    wanted = list(paths)
    for name, part in space.spaces.items():  # type: ignore[attr-defined]
        below = [path[1:] for path in wanted if path[:1] == (name,)]
        if () in below:
            kept.append((name, part))
        elif below and isinstance(part, spaces.Dict):
            kept.append((name, pruned_space(part, below)))
    return spaces.Dict(kept)


def pruned(obs: Tree, space: Space[Any]) -> Any:
    """Return the entries of an observation, or of any tree like it, that `space`, a result of `pruned_space`, has.

    `KeyError` if one of them is missing.
    """
    if not isinstance(space, spaces.Dict):
        return obs
    return {name: pruned(obs[name], part) for name, part in space.spaces.items()}


def without_others(obs: Mapping[str, Any], full_space: Space[Any], space: Space[Any]) -> dict[str, Any]:
    """Return an observation without the entries that only `full_space` has. Unknown entries stay, for a check."""
    kept = {}
    for name, value in obs.items():
        is_other = name in full_space.spaces and name not in space.spaces  # type: ignore[attr-defined]
        if is_other:
            continue
        part = space.spaces.get(name)  # type: ignore[attr-defined]
        if isinstance(part, spaces.Dict) and isinstance(value, Mapping):
            value = without_others(value, full_space[name], part)  # type: ignore[index]
        kept[name] = value
    return kept


# -- the central state of several agents ---


def with_state_space(space: Space[Any], state_space: Space[Any]) -> spaces.Dict:
    """Return an agent's observation space with the central state: `{"obs": space, "state": state_space}`.

    To a Dict the entry "state" is added.

    Raises:
        ValueError: The Dict has an entry "state".
    """
    if not isinstance(space, spaces.Dict):
        return spaces.Dict([(OWN_OBS, space), (STATE, state_space)])
    if STATE in space.spaces:
        raise ValueError(
            f"multi_agent.centralized_critic adds the entry {STATE!r} to observations, and {space} has one; rename it"
        )
    return spaces.Dict([*space.spaces.items(), (STATE, state_space)])


def space_of_old_file(space: Space[Any], state_space: Space[Any]) -> spaces.Dict:
    """Return the observation space of a network in a file of version 0.2, which has a `critic_space`; warn of it.

    `space`: an agent's own observations. `state_space`: the network's `critic_space`.
    """
    warnings.warn(
        "the file has a network with a critic_space, as in version 0.2. It is read as one with observations "
        "{'obs': observation, 'state': state}; save it again to keep it in this form",
        DeprecationWarning,
        stacklevel=2,
    )
    return with_state_space(space, state_space)


def with_state(obs: Tree, state: Tree) -> dict[str, Any]:
    """Return an agent's observation with the central state, in the form of `with_state_space`."""
    return {**obs, STATE: state} if isinstance(obs, Mapping) else {OWN_OBS: obs, STATE: state}


def has_state(obs: Tree) -> bool:
    """Return whether an agent's observation, or its space, has the central state."""
    return isinstance(obs, Mapping | spaces.Dict) and STATE in obs.keys()  # noqa: SIM118 - a space is no dict


def split_state(obs: Tree) -> tuple[Any, Any]:
    """Return an agent's own observation, or its space, and the central state: the inverse of `with_state`.

    The state is None if the observation has none, as when acting.
    """
    names = list(obs.keys())
    if set(names) <= {OWN_OBS, STATE}:
        return obs[OWN_OBS], obs[STATE] if STATE in names else None
    own: Any = [(name, obs[name]) for name in names if name != STATE]
    own = spaces.Dict(own) if isinstance(obs, spaces.Dict) else dict(own)
    return own, obs[STATE] if STATE in names else None


def central_groups(own_space: Space[Any]) -> dict[str, tuple[str, ...]]:
    """Return the groups of a network whose critic sees the central state, for the agent's own observation space.

    The state comes first, as in the value functions of version 0.2, whose weights so keep their places.
    """
    own: tuple[str, ...] = (OWN_OBS,)
    if isinstance(own_space, spaces.Dict):
        own = tuple(name for name in own_space.spaces if name != ACTION_MASK)
    return {POLICY: own, CRITIC: (STATE, *own)}
