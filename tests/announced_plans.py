"""What a plan announced, compared with what the run did."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep import BaseTrainer, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.cli.plan import Plan
from lockstep.data.trees import leaves
from lockstep.options.texts import size_text
from lockstep.rollout import TensorCollector
from lockstep.trainer import Callback

RATE = r"(?:(?P<name>[\w.]+) )?(?P<start>[\d.e+-]+)(?: throughout| at the first update, (?P<end>[\d.e+-]+) at the last)"
DIGITS = 1e-5
"""relative: rates are announced with six digits"""


@dataclass(frozen=True)
class Announced:
    """The numbers of a plan."""

    gradient_steps: int | None
    """None: no number is announced"""
    steps: int
    """environment steps; offline: gradient steps"""
    num_envs: int | None
    memory: str | None
    rates: Mapping[str, tuple[float, float]]
    """first and last learning rate by optimizer; by "" where all have the same"""
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
    memory: str | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    """by optimizer: of the first update, and later ones up to the last"""
    earlier: dict[str, list[float]] = field(default_factory=dict)
    """by optimizer: of the last record before, and where an earlier schedule ended; the first record of a run that goes
    on is a mean that reaches back to these"""
    episodes: set[int] = field(default_factory=set)
    """in each evaluation"""
    is_whole: bool = True
    """nothing ended the run before its last step"""

    def note_rates(self, metrics: Mapping[str, float]) -> None:
        """Adds the learning rates of one record."""
        for name, rate in metrics.items():
            if name.endswith("_learning_rate"):
                self.rates.setdefault(name.removesuffix("_learning_rate"), []).append(rate)


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
    steps = number("updates", r"environment steps, ([\d,]+) in all") if "rollout store" in facts else None
    if "replay buffer" in facts:
        steps = number("updates", r"each of ([\d,]+) environment steps")
    memory = re.search(r"[\d.]+ (?:B|KiB|MiB|GiB)$", facts.get("rollout store", facts.get("replay buffer", "")))
    rates = {}
    for part in facts["learning rate"].split("; "):
        found = re.fullmatch(RATE, part)
        if found is None:
            raise ValueError(f"the plan's line cannot be read: learning rate  {part}")
        rates[found["name"] or ""] = float(found["start"]), float(found["end"] or found["start"])
    counts_episodes = re.match(r"\d+ (?!steps)", facts["evaluation"]) is not None  # else steps, or a function decides
    return Announced(
        gradient_steps,
        steps if steps is not None else gradient_steps or 0,
        number("environments", r"^(\d+) x ") if " x " in facts["environments"] else None,
        None if memory is None else memory[0],
        rates,
        number("evaluation", r"^(\d+) episodes") if counts_episodes else None,
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
    if happened.memory is not None:
        same("memory", announced.memory, happened.memory)
    for episodes in happened.episodes:
        same("episodes of an evaluation", announced.episodes, episodes)
    for optimizer, records in happened.rates.items():
        named = [pair for name, pair in announced.rates.items() if name == "" or name.endswith(f".{optimizer}")]
        if len(named) != 1:
            found.append(f"the learning rate of {optimizer} is not announced, only of {list(announced.rates)}")
            continue
        (start, end), first, last = named[0], records[0], records[-1]
        reached = [start, *happened.earlier.get(optimizer, [])]
        low, high = min(reached), max(reached)
        if not low * (1 - DIGITS) <= first <= high * (1 + DIGITS):
            found.append(f"first learning rate of {optimizer}: {start} announced, {first} taken")
        if happened.is_whole and not math.isclose(end, last, rel_tol=DIGITS, abs_tol=1e-12):
            found.append(f"last learning rate of {optimizer}: {end} announced, {last} taken")
    return found


def memory_of(trainer: BaseTrainer) -> str | None:
    """Bytes of the arrays in which a trainer's data are, as a plan writes them."""
    buffer: Any = getattr(trainer, "buffer", None)
    if isinstance(getattr(trainer, "train_collector", None), TensorCollector):
        return None  # what is on a device is not in the plan
    if isinstance(trainer, OffpolicyTrainer):
        return size_text(buffer.nbytes())
    if not isinstance(trainer, OnpolicyTrainer):
        return None
    arrays = [*leaves(buffer.obs), buffer.actions, buffer.rewards, buffer.terminateds, buffer.truncateds, buffer.valid]
    return size_text(sum(array.nbytes for array in arrays))


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
        if trainer.policy.config.env_runners.batch_mode == "complete_episodes":
            return  # it says that collects may have more steps
        self.announced = read_plan(Plan(trainer, trainer.policy.config).facts(["a trainer"]))
        self.before = event.gradient_step, event.position
        self.happened = Happened()

    def on_update_end(self, event):
        if self.announced is not None:
            self.happened.note_rates(event.stats.get_loss_stats_dict())

    def on_evaluation_end(self, event):
        evaluator = self.trainer.evaluator
        if self.announced is not None and evaluator.n_step is None and evaluator.custom_function is None:
            self.happened.episodes.add(event.stats.n_collected_episodes)

    def on_run_end(self, event):
        if self.announced is None or event.reason == "error":
            return
        trainer, happened = self.trainer, self.happened
        happened.gradient_steps = event.gradient_step - self.before[0]
        happened.steps = event.position - self.before[1]
        happened.is_whole = event.reason == "max_epoch"
        happened.num_envs = None if trainer.train_collector is None else trainer.train_collector.num_envs
        happened.memory = memory_of(trainer) if happened.steps else None
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
