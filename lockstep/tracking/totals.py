"""`Totals`: statistics of several collects and updates together, for example of an epoch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.tracking.metrics import Metrics, named
from lockstep.tracking.statistics import CollectStats, SequenceSummaryStats, SeriesAndSeconds, TrainingStats

MOST_WAITING = 64
"""Number of updates whose metrics wait until they are added. Between two updates a gradient step empties the
processor's caches, so that adding many updates at once costs far less than adding the same number one by one."""


class Totals:
    """Totals of collects and updates. The time to add one does not depend on how many there are already.

    An epoch has both kinds; totals of only collects or only updates leave the other kind empty.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {
            "n_collected_episodes": 0,
            "n_collected_steps": 0,
            "env_restarts": 0,
            "collect_time": 0.0,
            "env_time": 0.0,
            "act_time": 0.0,
        }
        """Sums of fields of `CollectStats`, by their names."""
        self._episodes: dict[str, list[Any]] = {"returns": [], "lens": [], "agent_returns": [], "agent_modules": []}
        """Values of all episodes, by fields of `CollectStats`."""
        self._agents: tuple[str, ...] = ()
        self._epsilon: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._logged = Metrics()
        """Values behind `_metrics`, which callbacks logged while the environments were stepped."""

        self.train_time = 0.0
        self.gradient_steps = 0
        self._first_bad_step: int | None = None
        self._series: dict[str, array[float]] = {}
        """Value of each learner metric in each gradient step. An epoch may have 100,000 updates: an array takes a
        quarter of the memory of a list."""
        self._stage_seconds: dict[str, float] = {}
        self._waiting: list[TrainingStats] = []
        """Updates that are not yet in `_series` and `_stage_seconds`."""

    # -- collects ---

    def add_collect(self, stats: CollectStats) -> None:
        """Add a collect."""
        for name in self._sums:
            self._sums[name] += getattr(stats, name)
        for name, values in self._episodes.items():
            values.extend(getattr(stats, name))
        self._agents = self._agents or stats.agents
        self._metrics.update(stats.metrics)
        self._epsilon.update(stats.epsilon)
        if stats.logged is not None:
            self._logged.add(stats.logged)

    def collect_stats(self) -> CollectStats:
        """Return the statistics of all collects together."""
        episodes = {name: tuple(values) for name, values in self._episodes.items()}
        metrics: dict[str, Any] = {}
        if self._metrics:
            # Metrics that span collects have their last report; the others are computed from all values of the epoch.
            metrics["metrics"] = {**self._metrics, **named(self._logged.current_numbers())}
            metrics["logged"] = self._logged.part()
        return CollectStats(
            **self._sums,
            **episodes,  # type: ignore[arg-type]
            agents=self._agents,
            epsilon=dict(self._epsilon),
            **metrics,
        )

    # -- updates ---

    def add_update(self, stats: TrainingStats) -> None:
        """Add an update."""
        if self._first_bad_step is None and stats.first_bad_step is not None:
            self._first_bad_step = self.gradient_steps + stats.first_bad_step
        self.train_time += stats.train_time
        self.gradient_steps += stats.gradient_steps
        self._waiting.append(stats)
        if len(self._waiting) >= MOST_WAITING:
            self.series_and_seconds()

    def training_stats(self) -> TrainingStats:
        """Return the statistics of all updates together, over all their gradient steps."""
        series, seconds = self.series_and_seconds()
        metrics = {name: SequenceSummaryStats.from_sequence(values) for name, values in series.items()}
        return TrainingStats(self.train_time, self.gradient_steps, metrics, dict(seconds), self._first_bad_step)

    def series_and_seconds(self) -> SeriesAndSeconds:
        """Return the value of each learner metric in each gradient step, and the seconds of each stage."""
        for stats in self._waiting:
            series, seconds = stats.series_and_seconds()
            for name, value in seconds.items():
                self._stage_seconds[name] = self._stage_seconds.get(name, 0.0) + value
            for name, values in series.items():
                if values:
                    if name not in self._series:
                        self._series[name] = array("d")
                    self._series[name].extend(values)
        self._waiting.clear()
        return self._series, self._stage_seconds

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the totals as plain values and arrays. The keys are the same as in earlier versions."""
        series, seconds = self.series_and_seconds()
        return {
            "collected": self.collect_stats().get_state(),
            "updates": {
                "train_time": self.train_time,
                "gradient_steps": self.gradient_steps,
                "first_bad_step": self._first_bad_step,
                "series": {name: np.array(values) for name, values in series.items()},
                "stage_seconds": dict(seconds),
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` in totals that are empty. Other keys of `state` are ignored."""
        self.add_collect(CollectStats.from_state(state["collected"]))
        updates = state["updates"]
        self.train_time = updates["train_time"]
        self.gradient_steps = updates["gradient_steps"]
        self._first_bad_step = updates["first_bad_step"]
        self._series = {name: array("d", values) for name, values in updates["series"].items()}
        self._stage_seconds = dict(updates["stage_seconds"])


def merge_training_stats(parts: Sequence[TrainingStats]) -> TrainingStats:
    """Return the statistics of several updates together, over all their gradient steps."""
    totals = Totals()
    for part in parts:
        totals.add_update(part)
    finite = not any(part.bad_losses() for part in parts)
    return TrainingStats.of_update(totals.train_time, totals.gradient_steps, totals.series_and_seconds, finite)
