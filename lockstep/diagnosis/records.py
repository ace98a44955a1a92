"""Configuration and records of a run, read from its folder, and whether they show that it learns."""

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
"""Values of one metric, each with its step."""
NOISE_FACTOR = 3.0
"""Standard errors that a gain in return must exceed to count."""


@dataclass(frozen=True)
class Returns:
    """Returns of the episodes in one record: of an evaluation, or of training since the last record."""

    step: int
    mean: float
    std: float
    low: float
    high: float
    count: int
    """Number of episodes."""
    length: float
    """Mean number of steps of an episode."""


class RunRecords:
    """Configuration and records of a run.

    Attributes:
        evaluations: Returns of each evaluation.
        training: Returns of each record of training episodes.
        updates: Records of updates, as in metrics.jsonl.
        env_steps: Number of environment steps.
        episodes: Number of training episodes.
        gradient_steps: Number of gradient steps.

    Raises:
        RunFolderError: there is no run, or nothing was recorded.
        ValueError: a record is damaged; the error names the file.
    """

    def __init__(self, path: str | Path) -> None:
        folder = RunFolder.open(path)
        if not folder.metrics_path.exists():
            raise RunFolderError(f"the run in {folder.path} has no metrics.jsonl; train with the logger jsonl")
        records = read_metrics(folder.metrics_path)
        if not records:
            raise RunFolderError(
                f"the run in {folder.path} is empty: metrics.jsonl has no record; let it train for an epoch "
                "(reporting.steps_per_epoch) first"
            )
        self.folder = folder
        self.records = records
        self.updates = [record for record in records if record["scope"] == "update"]
        with naming_damage(folder.metrics_path, "file of records"):
            self._read_returns_and_steps()

    def _read_returns_and_steps(self) -> None:
        self.evaluations = self._returns("test")
        self.training = self._returns("train")

        # A run that was killed has no last record of scope "info", so the steps of its other records count too.
        info: Mapping[str, Any] = {}
        for record in self.records:
            if record["scope"] == "info":
                info = record["data"]
        train_records = [record for record in self.records if record["scope"] == "train"]
        steps = [int(record["step"]) for record in train_records]
        num_episodes = sum(record["data"].get("n_collected_episodes", 0) for record in train_records)
        gradient_steps = [int(record["step"]) for record in self.updates]
        self.env_steps = max([int(info.get("train_step") or 0), *steps])
        self.episodes = max(int(info.get("train_episode") or 0), num_episodes)
        self.gradient_steps = max([int(info.get("gradient_step") or 0), *gradient_steps])

    def _returns(self, scope: str) -> list[Returns]:
        """Return the returns of all records of a scope that have episodes."""
        returns = []
        for record in self.records:
            data = record["data"]
            if record["scope"] == scope and data.get("returns_stat/count"):
                of_record = Returns(
                    step=int(record["step"]),
                    mean=float(data["returns_stat/mean"]),
                    std=float(data["returns_stat/std"]),
                    low=float(data["returns_stat/min"]),
                    high=float(data["returns_stat/max"]),
                    count=int(data["returns_stat/count"]),
                    length=float(data.get("lens_stat/mean") or 0.0),
                )
                returns.append(of_record)
        return returns

    def option(self, path: str) -> Any:
        """Return an option by its path (`"training.lr"`), as plain JSON; None if the run does not have the option."""
        value: Any = self.folder.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def has_option(self, path: str) -> bool:
        """Return whether the run's configuration has an option."""
        section, _, name = path.partition(".")
        return name in (self.folder.config.get(section) or {})

    def series(self, name: str) -> dict[str, Series]:
        """Return the metrics of updates whose name ends in `name`: one for each module and optimizer."""
        series: dict[str, Series] = {}
        for record in self.updates:
            for key, value in record["data"].items():
                if key.endswith(name) and isinstance(value, int | float):
                    series.setdefault(key, []).append((int(record["step"]), float(value)))
        return series

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, for any reason."""
        return self.folder.summary_path.exists()

    @property
    def collects(self) -> bool:
        """Whether the run learns from an environment, not from recorded data."""
        return self.option("offline_data.input_") is None and self.env_steps > 0

    @property
    def is_multi_agent(self) -> bool:
        """Whether several agents learn or act."""
        return self.option("multi_agent.policies") is not None

    @property
    def steps_of_an_env(self) -> int:
        """Number of steps in each environment."""
        num_runners = max(1, self.option("env_runners.num_env_runners") or 0)
        envs_per_runner = self.option("env_runners.num_envs_per_env_runner") or 1
        return self.env_steps // max(1, num_runners * envs_per_runner)

    @property
    def env_name(self) -> str:
        """Name of the environment, as the command line accepts it if the environment has such a name."""
        name = self.option("environment.env")
        return name if isinstance(name, str) else self.folder.env

    @property
    def registered(self) -> Any:
        """Specification of the environment in gymnasium; None if it is not registered."""
        return gym.registry.get(self.folder.env)

    @property
    def curve(self) -> list[Returns]:
        """Returns of the evaluations, or of training if there are fewer than two evaluations."""
        return self.evaluations if len(self.evaluations) > 1 else self.training

    def expected_return(self) -> float | None:
        """Return the return at which the task counts as solved: `evaluation.stop_return`, else that of gymnasium."""
        stop_return = self.option("evaluation.stop_return")
        if stop_return is not None:
            return stop_return
        return getattr(self.registered, "reward_threshold", None)

    def learns(self, expected: float | None) -> bool | None:
        """Return whether the run improves; None if its curve does not show it.

        It improves if the returns of the last third of the curve reach `expected`. Otherwise they must be better than
        the first ones by more than chance and by half of the largest gain, and, if a return is expected, also better
        than those of the previous third.
        """
        curve = self.curve
        if len(curve) < 2:
            return None
        if self.is_multi_agent and len({returns.mean for returns in curve}) == 1:
            return None  # agents that play against each other always have the same return in total

        size = max(1, len(curve) // 3)
        last, last_error = _pooled(curve[-size:])
        if expected is not None and last >= expected:
            return True

        first, first_error = _pooled(curve[:1])
        best = max(returns.mean for returns in curve)
        gain = last - first
        has_gained = gain > NOISE_FACTOR * math.hypot(first_error, last_error) and gain >= 0.5 * (best - first)
        if expected is None:
            return has_gained
        previous, previous_error = _pooled(curve[-2 * size : -size] or curve[:1])
        return has_gained and last - previous > math.hypot(last_error, previous_error)

    def progress(self, expected: float | None) -> str:
        """Return the course of the returns, and the return at which the task counts as solved, in words."""
        curve = self.curve
        if not curve:
            return f"no return was recorded in {self.env_steps or self.gradient_steps:,} steps"
        kind = "evaluations" if curve is self.evaluations else "records of training"
        first = curve[0]
        last = curve[-1]
        text = (
            f"{len(curve)} {kind}: mean return {number_text(first.mean)} at step {first.step:,}, "
            f"{number_text(last.mean)} at step {last.step:,}"
        )
        if expected is not None:
            text += f" ({expected:g} is expected)"
        return text


def _pooled(records: Sequence[Returns]) -> tuple[float, float]:
    """Return the mean of the records' mean returns, and its standard error, sqrt(sum_i std_i^2 / n_i) / N."""
    variances = [returns.std**2 / returns.count for returns in records]
    mean = float(np.mean([returns.mean for returns in records]))
    return mean, math.sqrt(sum(variances)) / len(records)
