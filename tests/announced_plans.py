"""What a plan announced, compared with what the run did."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep import BaseTrainer, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.cli.plan import Plan
from lockstep.trainer import Callback


@dataclass(frozen=True)
class Announced:
    """The numbers of a plan."""

    gradient_steps: int | None
    """None: no number is announced"""
    steps: int
    """environment steps; offline: gradient steps"""
    num_envs: int | None
    episodes: int | None
    """in one evaluation"""
    at_most: bool = False
    """the gradient steps may be fewer"""
    about: bool = False
    """the gradient steps may be some more or fewer"""


@dataclass
class Happened:
    """The same numbers, of what was done."""

    gradient_steps: int = 0
    steps: int = 0
    num_envs: int | None = None
    episodes: set[int] = field(default_factory=set)
    """in each evaluation"""
    is_whole: bool = True
    """nothing ended the run before its last step"""


def read_plan(facts: Mapping[str, str]) -> Announced:
    """The numbers in a plan's lines. `ValueError` where a line that is there cannot be read."""

    def number(name: str, pattern: str) -> int | None:
        if name not in facts:
            return None
        found = re.search(pattern, facts[name])
        if found is None:
            raise ValueError(f"the plan's line cannot be read: {name}  {facts[name]}")
        return int(found[1].replace(",", ""))

    gradient_steps = None
    if re.match(r"(?:at most |about )?\d", facts["gradient steps"]):
        gradient_steps = number("gradient steps", r"^(?:at most |about )?([\d,]+)")
    steps = number("updates", r"environment steps, ([\d,]+) in all") if "in all" in facts.get("updates", "") else None
    if "replay buffer" in facts:
        steps = number("updates", r"each of ([\d,]+) environment steps")
    evaluates = facts["evaluation"] != "none"
    return Announced(
        gradient_steps,
        steps if steps is not None else gradient_steps or 0,
        number("environments", r"^(\d+) x ") if " x " in facts["environments"] else None,
        number("evaluation", r"^(\d+) episodes") if evaluates else None,
        facts["gradient steps"].startswith("at most"),
        facts["gradient steps"].startswith("about"),
    )


def differences(announced: Announced, happened: Happened) -> list[str]:
    """In words, whatever was announced and did not happen."""
    found = []

    def same(what: str, said: Any, did: Any) -> None:
        if said != did:
            found.append(f"{what}: {said} announced, {did} made")

    if happened.is_whole or happened.steps > announced.steps:
        same("steps", announced.steps, happened.steps)
    said, did = announced.gradient_steps, happened.gradient_steps
    if said is not None and announced.about:
        if happened.is_whole and not 0.9 * said <= did <= 1.1 * said:
            found.append(f"gradient steps: about {said} announced, {did} made")
    elif said is not None and (did > said or (happened.is_whole and not announced.at_most)):
        same("gradient steps", said, did)
    if happened.num_envs is not None:
        same("environments", announced.num_envs, happened.num_envs)
    for episodes in happened.episodes:
        same("episodes of an evaluation", announced.episodes, episodes)
    return found


class PlanWatch(Callback):
    """Reads the plan of each run of a trainer and compares it with what the run did."""

    def __init__(self, trainer: BaseTrainer, found: list[str], runs: list[BaseTrainer]) -> None:
        self.trainer, self.found, self.runs = trainer, found, runs
        self.announced: Announced | None = None

    def on_run_start(self, event):
        trainer = self.trainer
        self.announced = None
        plain = isinstance(trainer, OnpolicyTrainer | OffpolicyTrainer | OfflineTrainer)
        if not plain or trainer.policy.is_multi_agent or getattr(trainer, "episode_per_collect", None):
            return  # a plan is of one agent, and of collects whose steps are known
        self.announced = read_plan(Plan(trainer, trainer.policy.config).facts(["a trainer"]))
        self.before = event.gradient_step, event.position
        self.happened = Happened()

    def on_evaluation_end(self, event):
        if self.announced is not None:
            self.happened.episodes.add(event.stats.n_collected_episodes)

    def on_run_end(self, event):
        if self.announced is None or event.reason == "error":
            return
        trainer, happened = self.trainer, self.happened
        happened.gradient_steps = event.gradient_step - self.before[0]
        happened.steps = event.position - self.before[1]
        happened.is_whole = event.reason == "max_epoch"
        happened.num_envs = None if trainer.train_collector is None else trainer.train_collector.num_envs
        self.found += differences(self.announced, happened)
        self.runs.append(trainer)


def watch_plans(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[BaseTrainer]]:
    """From now on every trainer's plan is compared. Returns two lists that fill: differences, and trainers that ran."""
    found: list[str] = []
    runs: list[BaseTrainer] = []
    make = BaseTrainer.__init__

    @functools.wraps(make)
    def made(self: BaseTrainer, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.callbacks.append(PlanWatch(self, found, runs))

    monkeypatch.setattr(BaseTrainer, "__init__", made)
    return found, runs
