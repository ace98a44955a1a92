"""Statistics of collection and training (frozen, plain numbers, JSON-serialisable), and averages that go on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from lockstep.ops.statistics import RunningMoments
from lockstep.options.checks import check_number, check_whole
from lockstep.tracking.metrics import Part

Series = Mapping[str, Sequence[float]]
SeriesAndSeconds = tuple[Series, Mapping[str, float]]
"""by metric: its value in each gradient step, or the one of a whole update"""


def asdict(stats: Any) -> dict[str, Any]:
    """Return all fields of a statistics object, those of subclasses and of statistics within it too, for JSON.

    Arrays and tuples become lists. (`dataclasses.asdict` has the same fields and keeps arrays.)
    """
    return {item.name: _json_value(getattr(stats, item.name)) for item in fields(stats)}


def _json_value(value: object, of_stats: Callable[[Any], Any] = asdict) -> Any:
    if is_dataclass(value):
        return of_stats(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _json_value(item, of_stats) for name, item in value.items()}
    return [_json_value(item, of_stats) for item in value] if isinstance(value, list | tuple) else value


class Stats:
    """Base of the statistics: all of them go into a checkpoint and come back in the same way."""

    def get_state(self) -> dict[str, Any]:
        """Return all fields that are not made of others, as plain values."""
        names = [item.name for item in fields(self) if item.init]  # type: ignore[arg-type]
        return {name: _json_value(getattr(self, name), Stats.get_state) for name in names}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the statistics that `get_state` was called on."""
        inner: dict[str, Callable[[Any], Any]] = {
            "timing": TimingStats.from_state,
            "train_collect_stat": CollectStats.from_state,
            "test_collect_stat": CollectStats.from_state,
            "training_stat": TrainingStats.from_state,
            "info_stat": InfoStats.from_state,
            "metrics": lambda stats: {name: _summary_or_number(stat) for name, stat in stats.items()},
            "history": lambda epochs: tuple(map(EpochStats.from_state, epochs)),
        }
        names = [item.name for item in fields(cls) if item.init and item.name in state]  # type: ignore[arg-type]
        values = {name: state[name] for name in names}
        return cls(**{k: inner[k](v) if k in inner and v is not None else v for k, v in values.items()})


@dataclass(frozen=True)
class SequenceSummaryStats(Stats):
    """Summary of some numbers; all fields but `count` are None where there are none."""

    mean: float | None = None
    std: float | None = None
    max: float | None = None
    min: float | None = None
    median: float | None = None
    count: int = 0

    @classmethod
    def from_sequence(cls, values: Sequence[float] | np.ndarray) -> Self:
        """Summarise a list or an array; population deviation.

        An empty sequence gives None, not zeros; with a NaN among them every field is NaN.
        """
        count = len(values)
        if count == 0:
            return cls()
        if count == 1:
            value = float(values[0])
            return cls(value, value - value, value, value, value, 1)  # the deviation of infinity is NaN
        ordered = np.sort(np.array(values, np.float64))
        if np.isnan(ordered[-1]):
            return cls(math.nan, math.nan, math.nan, math.nan, math.nan, count)
        with np.errstate(invalid="ignore", over="ignore"):
            median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
            mean, std = float(ordered.mean()), float(ordered.std())
        return cls(mean, std, float(ordered[-1]), float(ordered[0]), float(median), count)


@dataclass(frozen=True)
class CollectStatsBase(Stats):
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
    returns: np.ndarray = ()  # type: ignore[assignment]
    """float64 [E], of the episodes that ended"""
    lens: np.ndarray = ()  # type: ignore[assignment]
    """int64 [E], their lengths in steps"""
    env_restarts: int = 0
    """environments whose worker died or hung and was started again"""
    agents: tuple[str, ...] = ()
    """names of several agents; `returns` has one number for all of them, by default the sum"""
    agent_returns: tuple[tuple[float, ...], ...] = ()
    """`[episode, agent]` of the episodes that ended; empty for one agent"""
    agent_modules: tuple[tuple[str, ...], ...] = ()
    """`[episode, agent]`: the module that acted for the agent, "" for one that was not there"""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """what callbacks logged in the environments' processes, reduced, by name"""
    logged: Part | None = field(default=None, repr=False)
    """the values behind `metrics`, so that several collects can be put together"""
    epsilon: Mapping[str, float] = field(default_factory=dict)
    """By module: the probability of an action by chance, of the last of several collects. Modules that do not explore
    epsilon-greedily are left out; 1 where all actions are random."""

    collect_speed: float = field(init=False)
    """environment steps per second"""
    returns_stat: SequenceSummaryStats | None = field(init=False)
    """None where no episode ended"""
    lens_stat: SequenceSummaryStats | None = field(init=False)
    """None where no episode ended"""

    def __post_init__(self) -> None:
        values = self.__dict__
        values["collect_speed"] = self.n_collected_steps / self.collect_time if self.collect_time > 0 else 0.0
        for name, dtype in (("returns", np.float64), ("lens", np.int64)):
            numbers = np.array(values[name], dtype)
            numbers.flags.writeable = False
            values[name] = numbers
            values[f"{name}_stat"] = SequenceSummaryStats.from_sequence(numbers) if len(numbers) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectStats) and asdict(self) == asdict(other)

    __hash__ = None  # type: ignore[assignment]

    def returns_by_agent(self) -> dict[str, list[float]]:
        """Return the returns of each of several agents, those of the episodes in which it was there."""
        found: dict[str, list[float]] = {}
        for returns, modules in zip(self.agent_returns, self.agent_modules):
            for agent, value, module_id in zip(self.agents, returns, modules):
                if module_id:
                    found.setdefault(agent, []).append(value)
        return {agent: found[agent] for agent in self.agents if agent in found}

    def returns_by_module(self) -> dict[str, list[float]]:
        """Return the returns of all agents for which a module acted, one for each agent and episode."""
        found: dict[str, list[float]] = {}
        for returns, modules in zip(self.agent_returns, self.agent_modules):
            for value, module_id in zip(returns, modules):
                if module_id:
                    found.setdefault(module_id, []).append(value)
        return found

    def without_values(self) -> Self:
        """Return the statistics without the values behind `metrics`, which are not kept for ever."""
        return self if self.logged is None else replace(self, logged=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for a logger."""
        counts = ("n_collected_episodes", "n_collected_steps", "collect_time", "collect_speed", "env_restarts")
        found = {name: getattr(self, name) for name in (*counts, "returns_stat", "lens_stat")}
        out = {name: _json_value(value) for name, value in found.items() if value is not None}
        if self.agent_returns:
            columns = zip(self.agents, zip(*self.agent_returns))
            out["returns"] = {agent: sum(column) / len(column) for agent, column in columns}
        if self.epsilon:
            out["epsilon"] = dict(self.epsilon) if self.agents else next(iter(self.epsilon.values()))
        if self.metrics:
            out["metrics"] = dict(self.metrics)
        return out


def returns_and_lens(ended: Sequence[tuple[float, int]]) -> tuple[Any, Any]:
    """Return the returns and lengths of `CollectStats` from those of each episode."""
    returns, lens = zip(*ended) if ended else ((), ())
    return returns, lens


def _summary_or_number(state: Mapping[str, Any] | float) -> Any:
    return SequenceSummaryStats.from_state(state) if isinstance(state, Mapping) else float(state)


@dataclass(frozen=True)
class TrainingStats(Stats):
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
        cls, train_time: float, gradient_steps: int, read: Callable[[], SeriesAndSeconds], finite: bool
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
            if name in ("metrics", "stage_seconds") and "_read" in self.__dict__:
                series, made = self._read()
                if name == "metrics":
                    made = {metric: SequenceSummaryStats.from_sequence(values) for metric, values in series.items()}
                return self.__dict__.setdefault(name, made)
            metrics = {} if name.startswith("_") or name == "metrics" else self.metrics
            if name not in metrics:
                raise AttributeError(
                    f"{type(self).__name__} has no attribute {name!r}; its metrics are {sorted(metrics)}"
                )
            return metrics[name]

    def series_and_seconds(self) -> SeriesAndSeconds:
        """Return the metrics' values in each gradient step, and the stages' seconds.

        Where only summaries are known, the mean stands for each step.
        """
        if "_read" in self.__dict__:
            found: SeriesAndSeconds = self.__dict__["_read"]()
            return found
        return {k: [] if v.mean is None else [v.mean] * v.count for k, v in self.metrics.items()}, self.stage_seconds

    def bad_losses(self) -> list[str]:
        """Return the names of the losses whose mean is not finite."""
        if self.__dict__.get("_finite"):
            return []
        return [name for name, mean in self.get_loss_stats_dict().items() if "loss" in name and not math.isfinite(mean)]

    def get_loss_stats_dict(self) -> dict[str, float]:
        """Return the mean of each metric."""
        return {name: stat.mean for name, stat in self.metrics.items() if stat.mean is not None}


@dataclass(frozen=True)
class TimingStats(Stats):
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

    @classmethod
    def of_seconds(
        cls,
        *,
        steps: int,
        total: float,
        collect: float,
        update: float,
        test: float,
        env: float = 0.0,
        act: float = 0.0,
    ) -> Self:
        """Return the times of a run of so many `steps`, in which collects, updates and tests took these seconds.

        `env` and `act` are the seconds of the collects inside the environments and choosing actions.
        """
        train = collect + update
        return cls(
            total_time=total,
            train_time=train,
            train_time_collect=collect,
            train_time_update=update,
            test_time=test,
            update_speed=steps / train if train > 0 else 0.0,
            env_time=env,
            act_time=act,
        )


@dataclass(frozen=True)
class InfoStats(Stats):
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
        return {name: _json_value(value) for name, value in self.__dict__.items() if name != "history"}


@dataclass(frozen=True)
class EpochStats(Stats):
    """One epoch; unpacks into `(epoch, stats, info)`."""

    epoch: int
    train_collect_stat: CollectStats | None
    """the whole epoch"""
    test_collect_stat: CollectStats | None
    """None without evaluation"""
    training_stat: TrainingStats | None
    """the whole epoch"""
    info_stat: InfoStats
    metrics: Mapping[str, float] = field(default_factory=dict)
    """what callbacks logged in the trainer's process since the epoch before, reduced, by name"""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.epoch, self, self.info_stat))


def first_bad_step(series: Series) -> int | None:
    """Return the first step, from 1, in which a loss among `{metric: value in each gradient step}` is not finite.

    Losses that are not of every step (a policy that learns in every second one) are left out: the total has them.
    """
    losses = [values for name, values in series.items() if "loss" in name]
    number = max(map(len, losses), default=0)
    losses = [values for values in losses if len(values) == number]
    return next((k for k, step in enumerate(zip(*losses), 1) if not all(map(math.isfinite, step))), None)


class MovAvg:
    """Mean and deviation of the last `size` numbers; NaN and infinities are ignored.

    Raises `ValueError`: `size` is no whole number of at least 1.
    """

    def __init__(self, size: int = 100) -> None:
        self.size: int = check_whole("size", size, 1)
        self._numbers: deque[float] = deque(maxlen=self.size)

    def add(self, numbers: npt.ArrayLike) -> float:
        """Add one number or several; returns the new mean."""
        flat = np.asarray(numbers, dtype=np.float64).reshape(-1)
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


class RunningMeanStd(RunningMoments):
    """Mean and deviation of all rows seen, and what they are scaled with.

    `shape` is that of a row; None takes it from the first rows.
    `norm(x)` is `(x - mean) / sqrt(var + eps)`, limited to `[-clip_max, clip_max]` (None: not limited). Before the
    first row mean is 0 and var is 1.

    Raises `ValueError`: rows of another shape than `shape`; `eps` or `clip_max` is no number above 0.
    """

    def __init__(
        self, shape: tuple[int, ...] | None = None, *, clip_max: float | None = 10.0, eps: float = 1e-8
    ) -> None:
        check_number("eps", eps, gt=0)
        check_number("clip_max", clip_max, optional=True, gt=0)
        super().__init__(shape or ())
        self.clip_max, self.eps = clip_max, eps
        self._any_shape = shape is None

    def _take_shape(self, shape: tuple[int, ...]) -> None:
        if self._any_shape and not self.count:
            super().__init__(shape)

    def update(self, x: npt.ArrayLike) -> None:
        """Take in rows `[N, *shape]`, or an empty list; how they are cut into calls makes no difference."""
        rows = np.asarray(x, dtype=np.float64)
        if rows.shape != (0,):
            self._take_shape(rows.shape[1:])
            super().update(rows)

    def merge(self, other: RunningMoments) -> None:
        """Take in everything that `other` has seen; `other` is not changed. `ValueError` for another shape."""
        if other.count:
            self._take_shape(other.shape)
            super().merge(other)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`. `KeyError` where entries are missing, `ValueError` for another shape."""
        if self._any_shape:
            self.shape = np.shape(state["mean"])
        super().set_state(state)

    def norm(self, x: npt.ArrayLike) -> np.ndarray:
        """Return `x`, `[..., *shape]`, scaled, as float64 if it is that and else float32; the moments stay."""
        array = np.asarray(x)
        kind = np.float64 if array.dtype == np.float64 else np.float32
        scaled = (array.astype(kind) - self.mean.astype(kind)) * (1.0 / np.sqrt(self.var + self.eps)).astype(kind)
        return np.asarray(scaled if self.clip_max is None else np.clip(scaled, -self.clip_max, self.clip_max))
