"""`Profiler`: where the seconds of a run went."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from lockstep.tracking.statistics import CollectStats, TrainingStats
from lockstep.trainer.callbacks import Callback, Stop
from lockstep.trainer.display import clock_text
from lockstep.trainer.events import CollectEnd, EvaluationEnd, RunEnd, RunStart, UpdateEnd

STAGES = ("environment", "acting", "storing", "returns", "update", "evaluation", "waiting")


class Profiler(Callback):
    """Adds up the seconds of a run by stage; `print_at_end` prints a table of them when the run ends.

    `environment`: stepping; `acting`: choosing actions; `storing`: the rest of collection; `returns`: making a batch of
    what was collected (values, returns, advantages; samples of a replay buffer); `update`: gradient steps;
    `evaluation`; `waiting`: all else, as writing checkpoints, callbacks, and whoever iterates over the trainer.
    """

    def __init__(self, *, print_at_end: bool = False) -> None:
        self.print_at_end = print_at_end
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._started, self._before = time.monotonic(), 0.0

    @property
    def total(self) -> float:
        """Seconds of the run, by the wall."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Each stage's share of the whole, which is 1; all are 0 before the run."""
        total = self.total
        return {name: seconds / total if total else 0.0 for name, seconds in self.seconds.items()}

    def report(self) -> str:
        """A line for each stage: seconds and share."""
        lines = [f"{name:<12}{self.seconds[name]:>10.3f} s{share:>8.1%}" for name, share in self.shares.items()]
        return "\n".join([*lines, f"{'together':<12}{self.total:>10.3f} s  ({clock_text(self.total)})"])

    # -- events ---

    def on_run_start(self, event: RunStart) -> Stop:
        """A new run begins at zero, one that goes on where it was."""
        if event.env_step == event.gradient_step == 0:
            self.seconds = dict.fromkeys(STAGES, 0.0)
        self._started, self._before = time.monotonic(), self.total
        return None

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Environment, acting, storing."""
        stats = event.stats
        self._add("environment", stats.env_time)
        self._add("acting", stats.act_time)
        self._add("storing", stats.collect_time - stats.env_time - stats.act_time)
        return None

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Returns and gradient steps."""
        stats: TrainingStats = event.stats
        steps = stats.stage_seconds.get("gradient_steps", stats.train_time)
        self._add("returns", stats.train_time - steps)
        self._add("update", steps)
        return None

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Evaluation."""
        stats: CollectStats = event.stats
        self._add("evaluation", stats.collect_time)
        return None

    def on_run_end(self, event: RunEnd) -> Stop:
        """The table, if it is to be printed."""
        self._wait()
        if self.print_at_end:
            sys.stdout.write(self.report() + "\n")
        return None

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] += max(0.0, seconds)
        self._wait()

    def _wait(self) -> None:
        """What is left of the wall's time."""
        known = self.total - self.seconds["waiting"]
        self.seconds["waiting"] = max(0.0, self._before + time.monotonic() - self._started - known)

    # -- state ---

    def get_state(self) -> Mapping[str, Any]:
        """Seconds so far."""
        self._wait()
        return {"seconds": dict(self.seconds)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from them."""
        self.seconds = dict(state["seconds"])
