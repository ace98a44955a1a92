"""Statistics of collection and training (frozen, plain numbers, JSON-serialisable), and averages that go on."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch

from lockstep.ops.statistics import RunningMoments
from lockstep.state.checks import check_whole, is_number

Series = Mapping[str, Sequence[float]]
"""by metric: its value in each gradient step, or the one of a whole update"""
NO_RETURNS, NO_LENS = np.empty(0, np.float64), np.empty(0, np.int64)
"""of no episode"""
NO_RETURNS.flags.writeable = NO_LENS.flags.writeable = False
MAX_WAITING = 64
"""updates; more of them keep more memory and save nothing"""


def asdict(stats: Any) -> dict[str, Any]:
    """Return all fields of a statistics object, those of subclasses and of statistics within it too, for JSON.

    Arrays and tuples become lists. (`dataclasses.asdict` has the same fields and keeps arrays.)
    """
    return {item.name: _plain(getattr(stats, item.name)) for item in fields(stats)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return asdict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class SequenceSummaryStats:
    """Summary of some numbers; all fields but `count` are None where there are none."""

    mean: float | None = None
    std: float | None = None
    max: float | None = None
    min: float | None = None
    median: float | None = None
    count: int = 0

    @classmethod
    def from_sequence(cls, values: Sequence[float]) -> Self:
        """Summarise a list or an array; population deviation.

        An empty sequence gives None, not zeros; with a NaN among them every field is NaN.
        """
        if len(values) == 1:
            return cls.of_one(float(values[0]))
        numbers = [float(value) for value in values]
        if not numbers:
            return cls()
        if any(map(math.isnan, numbers)):
            return cls(math.nan, math.nan, math.nan, math.nan, math.nan, len(numbers))
        mean = sum(numbers) / len(numbers)
        # a product: a power raises where the result is too large
        std = (sum((value - mean) * (value - mean) for value in numbers) / len(numbers)) ** 0.5
        return cls(mean, std, max(numbers), min(numbers), _median(numbers), len(numbers))

    @classmethod
    def of_one(cls, value: float) -> Self:
        """Return the summary of one number, faster than the constructor does."""
        stats = object.__new__(cls)
        std = value - value  # 0, but NaN of what is not finite, as of several
        stats.__dict__.update(mean=value, std=std, max=value, min=value, median=value, count=1)
        return stats


@dataclass(frozen=True)
class CollectStatsBase:
    """How much was collected."""

    n_collected_episodes: int = 0
    """episodes that ended"""
    n_collected_steps: int = 0
    """environment steps"""


@dataclass(frozen=True, eq=False)
class CollectStats(CollectStatsBase):
    """Of one or several collects; returns and lengths are those of whole episodes, however many collects they span.

    They may be given as any sequence, and are read-only arrays. What is made of other fields is a field too.
    """

    collect_time: float = 0.0
    """seconds"""
    env_time: float = 0.0
    """seconds of it inside the environments"""
    act_time: float = 0.0
    """seconds of it choosing actions"""
    returns: np.ndarray = field(default_factory=lambda: NO_RETURNS)
    """float64 [E], of the episodes that ended"""
    lens: np.ndarray = field(default_factory=lambda: NO_LENS)
    """int64 [E], their lengths in steps"""
    env_restarts: int = 0
    """environments whose worker died or hung and was started again"""
    agents: tuple[str, ...] = ()
    """names of several agents; `returns` has one number for all of them, by default the sum"""
    agent_returns: tuple[tuple[float, ...], ...] = ()
    """[episode][agent] of the episodes that ended; empty for one agent"""

    collect_speed: float = field(init=False)
    """environment steps per second"""
    returns_stat: SequenceSummaryStats | None = field(init=False)
    """None where no episode ended"""
    lens_stat: SequenceSummaryStats | None = field(init=False)
    """None where no episode ended"""

    def __post_init__(self) -> None:
        values = self.__dict__
        values["collect_speed"] = self.n_collected_steps / self.collect_time if self.collect_time > 0 else 0.0
        values["returns"], values["returns_stat"] = _of_episodes(self.returns, NO_RETURNS)
        values["lens"], values["lens_stat"] = _of_episodes(self.lens, NO_LENS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectStats) and asdict(self) == asdict(other)

    __hash__ = None  # type: ignore[assignment]

    def get_state(self) -> dict[str, Any]:
        """Return all fields that are not made of others."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the statistics that `get_state` was called on."""
        return cls(**state)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for a logger."""
        out: dict[str, Any] = {
            "n_collected_episodes": self.n_collected_episodes,
            "n_collected_steps": self.n_collected_steps,
            "collect_time": self.collect_time,
            "collect_speed": self.collect_speed,
            "env_restarts": self.env_restarts,
        }
        for name, stat in (("returns_stat", self.returns_stat), ("lens_stat", self.lens_stat)):
            if stat is not None:
                out[name] = asdict(stat)
        if self.agent_returns:
            columns = zip(self.agents, zip(*self.agent_returns))
            out["returns"] = {agent: sum(column) / len(column) for agent, column in columns}
        return out


def _of_episodes(values: np.ndarray, none: np.ndarray) -> tuple[np.ndarray, SequenceSummaryStats | None]:
    """Return a read-only array of the dtype of `none`, and its summary."""
    if not len(values):
        return none, None
    numbers = np.array(values, none.dtype)
    numbers.flags.writeable = False
    return numbers, SequenceSummaryStats.from_sequence(numbers.tolist())


def returns_and_lens(ended: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns and lengths of `CollectStats` from those of each episode."""
    if not ended:
        return NO_RETURNS, NO_LENS
    returns, lens = zip(*ended)
    return np.array(returns, np.float64), np.array(lens, np.int64)


class CollectTotals:
    """Collects put together one after another, in time that grows with their number alone."""

    def __init__(self) -> None:
        self._episodes, self._steps, self._env_restarts = 0, 0, 0
        self._seconds, self._env_time, self._act_time = 0.0, 0.0, 0.0
        self._returns: list[float] = []
        self._lens: list[int] = []
        self._agents: tuple[str, ...] = ()
        self._agent_returns: list[tuple[float, ...]] = []

    def add(self, stats: CollectStats) -> None:
        """Add a collect."""
        self._episodes += stats.n_collected_episodes
        self._steps += stats.n_collected_steps
        self._seconds += stats.collect_time
        self._env_time += stats.env_time
        self._act_time += stats.act_time
        self._env_restarts += stats.env_restarts
        self._returns += stats.returns.tolist()
        self._lens += stats.lens.tolist()
        self._agents = self._agents or stats.agents
        self._agent_returns += stats.agent_returns

    def stats(self) -> CollectStats:
        """Return all of them as one."""
        return CollectStats(
            self._episodes,
            self._steps,
            self._seconds,
            self._env_time,
            self._act_time,
            np.array(self._returns, np.float64),
            np.array(self._lens, np.int64),
            self._env_restarts,
            self._agents,
            tuple(self._agent_returns),
        )


@dataclass(frozen=True)
class TrainingStats:
    """Of one or several updates: each loss and learner metric over their gradient steps.

    A metric is an attribute too: `stats.policy_loss.mean` is `stats.metrics["policy_loss"].mean`.
    """

    train_time: float = 0.0
    """seconds"""
    gradient_steps: int = 0
    metrics: Mapping[str, SequenceSummaryStats] = field(default_factory=dict)
    """e.g. `metrics["policy_loss"].mean`"""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """seconds by stage of the update"""
    first_bad_step: int | None = None
    """the first of these gradient steps, counted from 1, in which a loss was not finite"""

    @classmethod
    def of_update(
        cls, train_time: float, gradient_steps: int, read: Callable[[], tuple[Series, dict[str, float]]], finite: bool
    ) -> Self:
        """Return the statistics of one update. `metrics` and `stage_seconds` are made of what `read()` returns when
        they are first asked for: off-policy updates have twenty metrics for each step, and few are ever looked at.

        `train_time`: seconds; `read()`: the metrics' values, and seconds by stage; `finite`: the means of all losses
        are.
        """
        stats = object.__new__(cls)
        bad = None if finite else first_bad_step(read()[0])
        stats.__dict__.update(train_time=train_time, gradient_steps=gradient_steps, first_bad_step=bad)
        stats.__dict__.update(_read=read, _finite=finite)
        return stats

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:  # called for what is not there
            if name not in ("metrics", "stage_seconds"):
                metrics = {} if name.startswith("_") else self.metrics
                if name not in metrics:
                    raise AttributeError(
                        f"{type(self).__name__} has no attribute {name!r}; its metrics are {sorted(metrics)}"
                    )
                return metrics[name]
            if "_read" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            series, made = self._read()
            if name == "metrics":
                made = {metric: SequenceSummaryStats.from_sequence(values) for metric, values in series.items()}
            return self.__dict__.setdefault(name, made)

    def get_state(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        metrics = {name: asdict(stat) for name, stat in self.metrics.items()}
        return {**values, "metrics": metrics, "stage_seconds": dict(self.stage_seconds)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the statistics that `get_state` was called on."""
        metrics = {name: SequenceSummaryStats(**stat) for name, stat in state["metrics"].items()}
        return cls(**{**state, "metrics": metrics})

    def series_and_seconds(self) -> tuple[Series, dict[str, float]] | None:
        """Return the metrics' values in each gradient step and the stages' seconds; None for summaries only."""
        read = self.__dict__.get("_read")
        return None if read is None else read()

    def bad_losses(self) -> list[str]:
        """Return the names of the losses whose mean is not finite."""
        if self.__dict__.get("_finite"):
            return []
        losses = ((name, stat.mean) for name, stat in self.metrics.items() if "loss" in name)
        return [name for name, mean in losses if mean is not None and not math.isfinite(mean)]

    def get_loss_stats_dict(self) -> dict[str, float]:
        """Return the mean of each metric."""
        return {name: stat.mean for name, stat in self.metrics.items() if stat.mean is not None}


@dataclass(frozen=True)
class TimingStats:
    """Seconds of a run so far, by a monotonic clock."""

    total_time: float = 0.0
    train_time: float = 0.0
    train_time_collect: float = 0.0
    train_time_update: float = 0.0
    test_time: float = 0.0
    update_speed: float = 0.0
    """environment steps (offline: gradient steps) per second of training time (collection and updates)"""
    env_time: float = 0.0
    """of the collection, inside the environments"""
    act_time: float = 0.0
    """of the collection, choosing actions"""


@dataclass(frozen=True)
class InfoStats:
    """A run so far."""

    gradient_step: int = 0
    best_score: float | None = None
    best_reward: float | None = None
    best_reward_std: float | None = None
    best_epoch: int | None = None
    train_step: int = 0
    train_episode: int = 0
    test_step: int = 0
    test_episode: int = 0
    timing: TimingStats = field(default_factory=TimingStats)
    stop_reason: str | None = None
    samples_seen: int = 0
    """offline: transitions in all gradient steps"""
    dataset_passes: float = 0.0
    """offline: how often each transition was learned from, on the average"""
    history: tuple[EpochStats, ...] = field(default=(), repr=False)
    """every epoch; not printed with the rest"""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for a logger or a summary, without the history."""
        out = {name: value for name, value in self.__dict__.items() if name not in ("history", "timing")}
        return {**out, "timing": asdict(self.timing)}


@dataclass(frozen=True)
class EpochStats:
    """One epoch; unpacks into `(epoch, stats, info)`."""

    epoch: int
    train_collect_stat: CollectStats | None
    """the whole epoch"""
    test_collect_stat: CollectStats | None
    """None without evaluation"""
    training_stat: TrainingStats | None
    """the whole epoch"""
    info_stat: InfoStats

    def __iter__(self) -> Iterator[Any]:
        return iter((self.epoch, self, self.info_stat))

    def get_state(self) -> dict[str, Any]:
        """Return all fields as plain values and arrays, without the history of `info_stat`."""
        parts = (self.train_collect_stat, self.test_collect_stat, self.training_stat)
        train, test, training = (None if part is None else part.get_state() for part in parts)
        info = self.info_stat.to_dict()
        return {"epoch": self.epoch, "train": train, "test": test, "training": training, "info": info}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the statistics that `get_state` was called on."""
        info = InfoStats(**{**state["info"], "timing": TimingStats(**state["info"]["timing"])})
        train, test = (
            None if state[name] is None else CollectStats.from_state(state[name]) for name in ("train", "test")
        )
        training = None if state["training"] is None else TrainingStats.from_state(state["training"])
        return cls(state["epoch"], train, test, training, info)


class TrainingTotals:
    """Updates put together. A number takes eight bytes: an epoch may have 100,000 updates.

    Many at a time: between two gradient steps, when the processor's caches hold other things, the same takes longer.
    """

    def __init__(self) -> None:
        self.train_time, self.gradient_steps = 0.0, 0
        self.stage_seconds: dict[str, float] = {}
        self.first_bad_step: int | None = None
        self._values: dict[str, array[float]] = {}
        """of updates that tell the value in each gradient step"""
        self._parts: dict[str, list[SequenceSummaryStats]] = {}
        """of updates that tell no more than a summary of several"""
        self._waiting: list[TrainingStats] = []

    def add(self, stats: TrainingStats) -> None:
        """Add an update."""
        if self.first_bad_step is None and stats.first_bad_step is not None:
            self.first_bad_step = self.gradient_steps + stats.first_bad_step
        self.train_time += stats.train_time
        self.gradient_steps += stats.gradient_steps
        self._waiting.append(stats)
        if len(self._waiting) >= MAX_WAITING:
            self._take_in()

    def _take_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for stats in waiting:
            series, seconds = stats.series_and_seconds() or self._of_summaries(stats)
            for name, value in seconds.items():
                self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + value
            for name, values in series.items():
                if values:
                    self._values.setdefault(name, array("d")).extend(values)

    def _of_summaries(self, stats: TrainingStats) -> tuple[Series, Mapping[str, float]]:
        series: dict[str, Sequence[float]] = {}
        for name, stat in stats.metrics.items():
            if stat.count == 1 and stat.mean is not None:
                series[name] = (stat.mean,)
            elif stat.count:
                self._parts.setdefault(name, []).append(stat)
        return series, stats.stage_seconds

    def stats(self) -> TrainingStats:
        """Return all of them as one, over all their gradient steps.

        An update that has only a summary of several steps counts in the median with its median for each of them; all
        else is exact.
        """
        self._take_in()
        names = dict.fromkeys([*self._values, *self._parts])
        merged = {name: _merged(self._values.get(name, array("d")), self._parts.get(name, [])) for name in names}
        seconds = dict(self.stage_seconds)
        return TrainingStats(self.train_time, self.gradient_steps, merged, seconds, self.first_bad_step)

    def get_state(self) -> dict[str, Any]:
        """Return the totals as plain values and arrays."""
        self._take_in()
        return {
            "train_time": self.train_time,
            "gradient_steps": self.gradient_steps,
            "stage_seconds": dict(self.stage_seconds),
            "first_bad_step": self.first_bad_step,
            "values": {name: np.array(values) for name, values in self._values.items()},
            "parts": {name: [asdict(stat) for stat in stats] for name, stats in self._parts.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self._waiting.clear()
        self.train_time, self.gradient_steps = float(state["train_time"]), int(state["gradient_steps"])
        self.stage_seconds, self.first_bad_step = dict(state["stage_seconds"]), state["first_bad_step"]
        self._values = {name: array("d", values) for name, values in state["values"].items()}
        self._parts = {name: [SequenceSummaryStats(**s) for s in stats] for name, stats in state["parts"].items()}


def merge_training_stats(parts: Iterable[TrainingStats]) -> TrainingStats:
    """Return several updates as one, see `TrainingTotals.stats`."""
    totals = TrainingTotals()
    for part in parts:
        totals.add(part)
    return totals.stats()


def first_bad_step(series: Mapping[str, Sequence[float]]) -> int | None:
    """Return the first step, from 1, in which a loss among `{metric: value in each gradient step}` is not finite.

    Losses that are not of every step (a policy that learns in every second one) are left out: the total has them.
    """
    losses = [values for name, values in series.items() if "loss" in name]
    number = max(map(len, losses), default=0)
    losses = [values for values in losses if len(values) == number]
    if all(math.isfinite(sum(values)) for values in losses):
        return None
    return next((k for k, step in enumerate(zip(*losses), 1) if not all(map(math.isfinite, step))), None)


def _median(numbers: Sequence[float]) -> float:
    """Return the median of at least one number. (Importing the standard library's `statistics` takes long.)"""
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(numbers) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _merged(values: array[float], parts: Sequence[SequenceSummaryStats]) -> SequenceSummaryStats:
    """Return the summary of single numbers and of summaries of several."""
    rows = [(part.mean, part.std, part.max, part.min, part.median, part.count) for part in parts]
    singles, of_parts = np.array(values), np.array(rows, np.float64).reshape(-1, 6).T
    means, highest, lowest, medians = (np.concatenate([singles, of_parts[i]]) for i in (0, 2, 3, 4))
    stds = np.concatenate([np.zeros(len(singles)), of_parts[1]])
    counts = np.concatenate([np.ones(len(singles)), of_parts[5]])
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.average(means, weights=counts)
        std = np.average((means - mean) ** 2 + stds**2, weights=counts) ** 0.5
        order = np.argsort(medians)
        up_to, count = counts[order].cumsum(), int(counts.sum())
        middle = medians[order[np.searchsorted(up_to, [(count + 1) // 2, count // 2 + 1])]]
        middle = np.append(middle, medians[np.isnan(medians)])  # a NaN is seen here too
        return SequenceSummaryStats(
            float(mean), float(std), float(highest.max()), float(lowest.min()), float(middle.mean()), count
        )


class MovAvg:
    """Mean and deviation of the last `size` numbers; NaN and infinities are ignored.

    Raises `ValueError`: `size` is no whole number of at least 1.
    """

    def __init__(self, size: int = 100) -> None:
        self.size: int = check_whole("size", size, 1)
        self._numbers: deque[float] = deque(maxlen=self.size)

    def add(self, numbers: float | np.ndarray | torch.Tensor | Iterable[float]) -> float:
        """Add one number or several; returns the new mean."""
        if isinstance(numbers, torch.Tensor):
            numbers = numbers.detach().cpu().numpy()
        values = numbers if isinstance(numbers, np.ndarray | list | tuple | float | int) else list(numbers)
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        self._numbers.extend(flat[np.isfinite(flat)].tolist())
        return self.get()

    def get(self) -> float:
        """Return the mean; 0 before the first number."""
        return float(np.mean(self._numbers)) if self._numbers else 0.0

    mean = get

    def std(self) -> float:
        """Return the population standard deviation; 0 before the first number."""
        return float(np.std(self._numbers)) if self._numbers else 0.0

    def __len__(self) -> int:
        return len(self._numbers)


class RunningMeanStd:
    """Mean and deviation of all rows seen, and what they are scaled with; over `RunningMoments`.

    `shape` is that of a row; None takes it from the first rows.
    `norm(x)` is `(x - mean) / sqrt(var + eps)`, limited to `[-clip_max, clip_max]` (None: not limited). Before the
    first row mean is 0 and var is 1.

    Raises `ValueError`: rows of another shape than `shape`; `eps` or `clip_max` is no number above 0; `shape` is no
    tuple.
    """

    def __init__(
        self, shape: tuple[int, ...] | None = None, *, clip_max: float | None = 10.0, eps: float = 1e-8
    ) -> None:
        options: list[tuple[str, Any, str]] = [("eps", eps, ""), ("clip_max", clip_max, ", or None")]
        for name, value, none in options:
            if not (none and value is None) and not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r} is not allowed; it must be a number above 0{none}")
        if shape is not None and not isinstance(shape, tuple):
            raise ValueError(f"shape={shape!r} is not allowed; it must be a tuple, () for single numbers, or None")
        self.clip_max, self.eps = clip_max, eps
        self._any_shape = shape is None
        self.moments = RunningMoments(shape or ())

    def _take_shape(self, shape: tuple[int, ...]) -> None:
        if self._any_shape and not self.count and shape != self.moments.shape:
            self.moments = RunningMoments(shape)

    @property
    def mean(self) -> np.ndarray:
        """`[*shape]`."""
        return self.moments.mean

    @property
    def var(self) -> np.ndarray:
        """`[*shape]`, population variance."""
        return self.moments.var

    @property
    def count(self) -> int:
        """Rows seen."""
        return self.moments.count

    def update(self, rows: npt.ArrayLike) -> None:
        """Take in rows `[N, *shape]`; how they are cut into calls makes no difference.

        An empty list changes nothing.
        """
        array = np.asarray(rows, dtype=np.float64)
        if array.shape == (0,):
            return
        self._take_shape(array.shape[1:])
        self.moments.update(array)

    def merge(self, other: RunningMeanStd) -> None:
        """Take in everything that `other` has seen; `other` is not changed. `ValueError` for another shape."""
        if other.count:
            self._take_shape(other.moments.shape)
            self.moments.merge(other.moments)

    def get_state(self) -> dict[str, Any]:
        """Return the moments as copies; `clip_max` and `eps` are options."""
        return self.moments.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`. `KeyError` where entries are missing, `ValueError` for another shape."""
        moments = RunningMoments(np.shape(state["mean"])) if self._any_shape and "mean" in state else self.moments
        moments.set_state(state)
        self.moments = moments

    def norm(self, x: npt.ArrayLike) -> np.ndarray:
        """Return `x`, `[..., *shape]`, scaled; the moments are not changed."""
        return np.asarray(self.moments.normalize(np.asarray(x), self.clip_max, self.eps))
