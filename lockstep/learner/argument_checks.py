"""Is what a learner or a group is handed of the right kind? What is not, is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lockstep.connectors import ModuleConnectors
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.state.streams import RandomStreams


def check_parts_of_learner(
    config: Any, framework: Any, connectors: Any, module_configs: Any, streams: Any, reducer: Any
) -> None:
    """Raises `TypeError` naming the argument of `Learner(...)`, what was given and what is needed."""
    if not isinstance(config, TrainingSection):
        raise TypeError(
            f"config is a {type(config).__name__}; a learner takes a training section, such as "
            "PPOConfig().training (of a whole configuration, use its build_learner())"
        )
    single: tuple[tuple[str, Any, type], ...] = (
        ("framework", framework, FrameworkSection),
        ("streams", streams, RandomStreams),
    )
    for name, given, kind in single:
        if given is not None and not isinstance(given, kind):
            raise TypeError(f"{name} is a {type(given).__name__}; a {kind.__name__} is needed, or None")
    by_module: tuple[tuple[str, Any, type], ...] = (
        ("connectors", connectors, ModuleConnectors),
        ("module_configs", module_configs, TrainingSection),
    )
    for name, given, kind in by_module:
        if given is None or (isinstance(given, Mapping) and all(isinstance(part, kind) for part in given.values())):
            continue
        raise TypeError(f"{name} must be a dict {{module id: {kind.__name__}}}, or None, not {given!r}")
    if reducer is not None and not (hasattr(reducer, "world_size") and hasattr(reducer, "sum_")):
        raise TypeError(f"reducer is a {type(reducer).__name__}; one of lockstep.learner.reduction is needed, or None")


def check_episodes(episodes: Any) -> None:
    """Raises `TypeError` for what cannot be a list of episodes."""
    needed = "a list of SingleAgentEpisode or MultiAgentEpisode is needed"
    if isinstance(episodes, SingleAgentEpisode | MultiAgentEpisode):
        raise TypeError(f"episodes is one {type(episodes).__name__}; {needed}: [episode]")
    if isinstance(episodes, SampleBatch | MultiAgentBatch):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}; update_from_batch takes batches")
    wrong = (int, float, str, bytes, Mapping, Iterator)
    if episodes is None or isinstance(episodes, wrong):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}")


def check_batch(batch: Any) -> None:
    """Raises `TypeError` for what is no batch."""
    if not isinstance(batch, SampleBatch | MultiAgentBatch):
        raise TypeError(f"batch must be a SampleBatch or a MultiAgentBatch, not {type(batch).__name__}")


def checked_names(what: str, names: Any) -> list[str] | None:
    """One name or several as a list; `TypeError` for anything but text."""
    if names is None:
        return None
    given = [names] if isinstance(names, str) else names
    if isinstance(given, Mapping) or not isinstance(given, Collection) or not all(isinstance(n, str) for n in given):
        raise TypeError(f"{what}={names!r} must be one name, a list of names, or None")
    return list(given)
