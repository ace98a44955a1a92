"""Read-only views of the episodes that callbacks receive."""

from __future__ import annotations

from typing import Any

from lockstep.data import MultiAgentEpisode, SingleAgentEpisode

MUTATING_METHODS = frozenset(
    (
        "add_env_reset",
        "add_env_step",
        "concat_episode",
        "put_column",
        "set_observations",
        "set_actions",
        "set_rewards",
        "set_extra_model_outputs",
    )
)
"""Methods of episodes that would change the episode."""


class SingleAgentEpisodeView(SingleAgentEpisode):
    """Read-only view of an episode of one agent, which shows the steps that the episode gets later.

    It is a subclass so that callbacks can ask `isinstance(episode, SingleAgentEpisode)`. Reading delegates to the
    episode, and the inherited slots stay empty. A slice is a new episode, which may be changed.

    Raises:
        AttributeError: an attribute is set, a private one is read, or a method is called that would change the episode.
    """

    __slots__ = ("_viewed",)

    def __init__(self, episode: SingleAgentEpisode) -> None:
        object.__setattr__(self, "_viewed", episode)

    def __getattribute__(self, name: str) -> Any:
        return _read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse_setting(name)

    # Python looks special methods up on the class, so those that an episode has are written out.
    def __len__(self) -> int:
        return len(_viewed(self))

    def __getitem__(self, key: int | slice) -> SingleAgentEpisode:
        return _viewed(self)[key]

    def __repr__(self) -> str:
        return repr(_viewed(self))


class MultiAgentEpisodeView(MultiAgentEpisode):
    """Read-only view of an episode of several agents: see `SingleAgentEpisodeView`."""

    __slots__ = ("_viewed",)

    def __init__(self, episode: MultiAgentEpisode) -> None:
        object.__setattr__(self, "_viewed", episode)

    def __getattribute__(self, name: str) -> Any:
        return _read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse_setting(name)

    def __len__(self) -> int:
        return len(_viewed(self))

    def __getitem__(self, key: int | slice) -> MultiAgentEpisode:
        return _viewed(self)[key]

    def __repr__(self) -> str:
        return repr(_viewed(self))


EpisodeView = SingleAgentEpisodeView | MultiAgentEpisodeView


def _viewed(view: EpisodeView) -> Any:
    """Return the episode that `view` shows."""
    return object.__getattribute__(view, "_viewed")


def _read(view: EpisodeView, name: str) -> Any:
    """Return an attribute of the episode that `view` shows. Special names (`__class__`, ...) are the view's own."""
    if name.startswith("__"):
        return object.__getattribute__(view, name)
    if name.startswith("_") or name in MUTATING_METHODS:
        raise AttributeError(f"a callback reads an episode and cannot call {name}(); change a copy, such as episode[:]")
    return getattr(_viewed(view), name)


def _refuse_setting(name: str) -> None:
    raise AttributeError(f"a callback reads an episode and cannot set {name}; change a copy, such as episode[:]")
