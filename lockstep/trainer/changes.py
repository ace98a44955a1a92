"""Other settings for a run that goes on: what has changed, what cannot change, and how its history says so."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.plain_values import named_options
from lockstep.trainer.build import epoch_length, steps_per_update, stretch_schedules

ANEW = "begin a run with its weights: lockstep train ... --from RUN, lockstep.train(..., init_from=path)"
KEPT = {
    "environment": f"the episodes of the run go on in its environments; {ANEW}",
    "rl_module": "the run goes on with its networks; train a new run",
    "multi_agent": f"the run goes on with its modules and agents; {ANEW}",
    "offline_data": f"the run goes on with its data; {ANEW}",
    "debugging": "the run goes on with its random numbers; train a new run",
    "env_runners.num_env_runners": f"the episodes of the run go on in its environments; {ANEW}",
    "env_runners.num_envs_per_env_runner": f"the episodes of the run go on in its environments; {ANEW}",
    "env_runners.vectorize_mode": f"the episodes of the run go on in its environments; {ANEW}",
    "env_runners.batch_mode": "it would cut the episodes of the run otherwise; train a new run",
    "evaluation.evaluation_num_envs": f"evaluation goes on in its environments; {ANEW}",
    "replay.capacity": f"the run goes on with its replay buffer; {ANEW}",
    "replay.prioritized": f"the run goes on with its replay buffer; {ANEW}",
    "replay.her": f"the run goes on with its replay buffer; {ANEW}",
    "replay.ignore_obs_next": f"the run goes on with its replay buffer; {ANEW}",
    "replay.storage": f"the run goes on with its replay buffer; {ANEW}",
    "reporting.loggers": "the records of the run go on as they began; train a new run",
    "training.learner_class": f"the run goes on with its learner; {ANEW}",
    "framework.dtype": f"the run goes on with its networks; {ANEW}",
}
"""What a run keeps, by section or option, and what to do instead."""
CHANGEABLE = ("rl_module.algorithm_config_overrides_per_module", "multi_agent.reward_metric")
"""exceptions in sections that are kept"""
TOTAL, EPOCH = "reporting.total_steps", "reporting.steps_per_epoch"


class Change(NamedTuple):
    """An option's value before and after."""

    before: Any
    after: Any


Changes = dict[str, Change]


def changes_between(before: AlgorithmConfig, after: AlgorithmConfig) -> Changes:
    """Return the options that differ, as plain values by path."""
    old, new = _options_of(before), _options_of(after)
    pairs = {path: Change(old.get(path), new.get(path)) for path in {**old, **new}}
    return {path: pair for path, pair in pairs.items() if pair.before != pair.after}


def check_changes(changes: Changes, config: AlgorithmConfig) -> None:
    """Raise `ValueError` naming an option that a run keeps, with its two values and what to do instead."""
    first_values = {f"training.{name}" for name in config.first_values}
    for path, (before, after) in changes.items():
        reason = KEPT.get(path) or KEPT.get(path.partition(".")[0])
        if path in first_values:
            reason = f"the run goes on with what has become of it; {ANEW}"
        if reason is not None and not path.startswith(CHANGEABLE):
            raise ValueError(
                f"{path}={after!r} (the run has {before!r}) cannot be changed in a run that goes on: {reason}"
            )


def follow_total(before: AlgorithmConfig, after: AlgorithmConfig, given: Mapping[str, Any]) -> list[str]:
    """Fit `after` to its new length: epochs stay as long as they were, and schedules that ended with the run are
    stretched. Returns the paths of those. Options that are `given`, or that differ already, stay as they are.
    """
    if after.total_steps == before.total_steps:
        return []
    if after.steps_per_epoch is None and EPOCH not in given:
        after.reporting(steps_per_epoch=epoch_length(before, steps_per_update(before)))
    old, new = before.sections["training"], after.sections["training"]
    same = [f.name for f in fields(new) if getattr(old, f.name) == getattr(new, f.name)]
    names = [name for name in same if f"training.{name}" not in given]
    return stretch_schedules(after, after.total_steps / before.total_steps, names, ended_at=before.total_steps)


def in_words(changes: Changes) -> str:
    """Return `"training.lr=0.001 (was 0.0003), ..."`."""
    return ", ".join(f"{path}={after!r} (was {before!r})" for path, (before, after) in changes.items())


def history_entry(changes: Changes, step: int) -> dict[str, Any]:
    """Return what a run's `config.json` notes of changes from a step on."""
    said = {path: {"before": before, "after": after} for path, (before, after) in changes.items()}
    return {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changes": said}


def _options_of(config: AlgorithmConfig) -> dict[str, Any]:
    return dict(_leaves(named_options(config)))


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in nested dicts by path; an empty dict is a value, too."""
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
