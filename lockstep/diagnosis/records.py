"""`RunRecords`: what a run's folder says about it, and whether it learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from lockstep.data.codec import naming_damage
from lockstep.state.markup import number_text
from lockstep.tracking import RunFolder, RunFolderError, read_metrics

Series = list[tuple[int, float]]
"""steps and values of one metric"""
NOISE = 3.0
"""standard errors that a gain in return must exceed to count"""


@dataclass(frozen=True)
class Returns:
    """The episodes of one record: an evaluation, or what training collected since the last one."""

    step: int
    mean: float
    std: float
    low: float
    high: float
    count: int
    length: float
    """mean steps of an episode"""


class RunRecords:
    """The configuration and the records of a run.

    Raises:
        RunFolderError: there is no run, or nothing was recorded.
        ValueError: a record is damaged; the error names the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = folder = RunFolder.open(path)
        if not folder.metrics_path.exists():
            raise RunFolderError(f"the run in {folder.path} has no metrics.jsonl; train with the logger jsonl")
        records = read_metrics(folder.metrics_path)
        if not records:
            raise RunFolderError(
                f"the run in {folder.path} is empty: metrics.jsonl has no record; let it train for an epoch "
                "(reporting.steps_per_epoch) first"
            )
        self.records = records
        self.updates = [record for record in records if record["scope"] == "update"]
        with naming_damage(folder.metrics_path, "file of records"):
            self._summarise()

    def _summarise(self) -> None:
        """Gather the returns of all records, and how far the run is."""
        self.evaluations, self.training = self._returns("test"), self._returns("train")
        info: Mapping[str, Any] = next(
            (record["data"] for record in reversed(self.records) if record["scope"] == "info"), {}
        )
        trained = [record for record in self.records if record["scope"] == "train"]
        steps = [int(record["step"]) for record in trained]
        episodes = sum(record["data"].get("n_collected_episodes", 0) for record in trained)
        self.env_steps = max([int(info.get("train_step") or 0), *steps])
        self.episodes = max(int(info.get("train_episode") or 0), episodes)
        self.gradient_steps = max([int(info.get("gradient_step") or 0), *(int(r["step"]) for r in self.updates)])

    def _returns(self, scope: str) -> list[Returns]:
        found = []
        for record in self.records:
            data = record["data"]
            if record["scope"] == scope and data.get("returns_stat/count"):
                mean, std, low, high = (float(data[f"returns_stat/{name}"]) for name in ("mean", "std", "min", "max"))
                length, count = float(data.get("lens_stat/mean") or 0.0), int(data["returns_stat/count"])
                found.append(Returns(int(record["step"]), mean, std, low, high, count, length))
        return found

    def option(self, path: str) -> Any:
        """Return an option by its path (`"training.lr"`), as plain JSON; None where the run has none of that name."""
        value: Any = self.folder.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def has_option(self, path: str) -> bool:
        """Return whether the run's configuration has this option."""
        section, _, name = path.partition(".")
        return name in (self.folder.config.get(section) or {})

    def series(self, name: str) -> dict[str, Series]:
        """Return the metrics of updates that are called `name`, or end in it: one for each module and optimizer."""
        found: dict[str, Series] = {}
        for record in self.updates:
            for key, value in record["data"].items():
                if key.endswith(name) and isinstance(value, int | float):
                    found.setdefault(key, []).append((int(record["step"]), float(value)))
        return found

    @property
    def is_over(self) -> bool:
        """Whether the run has come to an end of any kind."""
        return self.folder.summary_path.exists()

    @property
    def collects(self) -> bool:
        """Whether it learns from an environment, and not from data."""
        return self.option("offline_data.input_") is None and self.env_steps > 0

    @property
    def is_multi_agent(self) -> bool:
        """Whether several agents learn or act."""
        return self.option("multi_agent.policies") is not None

    @property
    def steps_of_an_env(self) -> int:
        """Steps that each environment has made."""
        runners = max(1, self.option("env_runners.num_env_runners") or 0)
        return self.env_steps // max(1, runners * (self.option("env_runners.num_envs_per_env_runner") or 1))

    @property
    def env_name(self) -> str:
        """The environment as the command line takes it, where it has such a name."""
        named = self.option("environment.env")
        return named if isinstance(named, str) else self.folder.env

    @property
    def registered(self) -> Any:
        """The environment's specification, where gymnasium knows it by its id."""
        return gym.registry.get(self.folder.env)

    @property
    def curve(self) -> list[Returns]:
        """Evaluations; of a run without, or with a single one, its training episodes."""
        return self.evaluations if len(self.evaluations) > 1 else self.training

    def expected_return(self) -> float | None:
        """Return the return at which the task counts as solved: `evaluation.stop_return`, or what gymnasium says."""
        stop = self.option("evaluation.stop_return")
        return stop if stop is not None else getattr(self.registered, "reward_threshold", None)

    def learns(self, expected: float | None) -> bool | None:
        """Return whether it gets better; None where there is no curve to tell it from.

        It does where its last returns reach `expected`; or where they are better than the first by more than chance,
        by half of what was ever gained, and, below `expected`, still on the way up.
        """
        curve = self.curve
        if len(curve) < 2 or (self.is_multi_agent and len({each.mean for each in curve}) == 1):
            return None  # agents who play against each other earn nothing together
        size = max(1, len(curve) // 3)
        last, before = _pooled(curve[-size:]), _pooled(curve[-2 * size : -size] or curve[:1])
        if expected is not None and last[0] >= expected:
            return True
        first, best = _pooled(curve[:1]), max(each.mean for each in curve)
        gain, noise = last[0] - first[0], NOISE * math.hypot(first[1], last[1])
        gained = gain > noise and gain >= 0.5 * (best - first[0])
        return gained and (expected is None or last[0] - before[0] > math.hypot(last[1], before[1]))

    def progress(self, expected: float | None) -> str:
        """Return the curve in words, and the return at which the task counts as solved."""
        curve, kind = self.curve, "evaluations" if self.curve is self.evaluations else "records of training"
        if not curve:
            return f"no return was recorded in {self.env_steps or self.gradient_steps:,} steps"
        first, last = curve[0], curve[-1]
        return (
            f"{len(curve)} {kind}: mean return {number_text(first.mean)} at step {first.step:,}, "
            f"{number_text(last.mean)} at step {last.step:,}"
            + ("" if expected is None else f" ({expected:g} is expected)")
        )


def _pooled(records: Sequence[Returns]) -> tuple[float, float]:
    """Return the mean of the means, and its standard error."""
    errors = [each.std**2 / each.count for each in records]
    return float(np.mean([each.mean for each in records])), math.sqrt(sum(errors)) / len(records)
