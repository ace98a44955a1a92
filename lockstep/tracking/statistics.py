"""Statistics of collection and training as frozen dataclasses of plain numbers, and running averages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lockstep.ops.statistics import RunningMoments
from lockstep.options.checks import check_number, check_whole
from lockstep.tracking.metrics import Part

Series = Mapping[str, Sequence[float]]
"""Values of each metric: one in each gradient step, or one for a whole update."""
SeriesAndSeconds = tuple[Series, Mapping[str, float]]
"""Values of each metric, and seconds of each stage of the update."""


def asdict(stats: Any) -> dict[str, Any]:
    """Return all fields of a statistics object and of nested statistics as values for JSON.

    Arrays and tuples become lists, which `dataclasses.asdict` would leave as they are.
    """
    return {item.name: _json_value(getattr(stats, item.name)) for item in fields(stats)}


def _json_value(value: object, of_stats: Callable[[Any], Any] = asdict) -> Any:
    """Return a value as JSON can hold it; `of_stats` converts nested statistics."""
    if is_dataclass(value):
        return of_stats(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _json_value(item, of_stats) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item, of_stats) for item in value]
    return value


class Stats:
    """Base of all statistics, with their conversion to the state of a checkpoint and back."""

    def get_state(self) -> dict[str, Any]:
        """Return all fields that are not computed from others, as plain values."""
        names = [item.name for item in fields(self) if item.init]  # type: ignore[arg-type]
        return {name: _json_value(getattr(self, name), Stats.get_state) for name in names}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the statistics of a state of `get_state`. Fields that it does not have get their defaults."""
        nested: dict[str, Callable[[Any], Any]] = {
            "timing": TimingStats.from_state,
            "train_collect_stat": CollectStats.from_state,
            "test_collect_stat": CollectStats.from_state,
            "training_stat": TrainingStats.from_state,
            "info_stat": InfoStats.from_state,
            "metrics": lambda stats: {name: _summary_or_number(stat) for name, stat in stats.items()},
            "history": lambda epochs: tuple(map(EpochStats.from_state, epochs)),
        }
        names = [item.name for item in fields(cls) if item.init and item.name in state]  # type: ignore[arg-type]
        values = {}
        for name in names:
            value = state[name]
            values[name] = nested[name](value) if name in nested and value is not None else value
        return cls(**values)


@dataclass(frozen=True)
class SequenceSummaryStats(Stats):
    """Summary of a sequence of numbers. For an empty sequence all fields but `count` are None."""

    mean: float | None = None
    std: float | None = None
    max: float | None = None
    min: float | None = None
    median: float | None = None
    count: int = 0

    @classmethod
    def from_sequence(cls, values: Sequence[float] | np.ndarray) -> Self:
        """Return the summary of a list or an array, with the population standard deviation.

        If one of the numbers is NaN, every field is NaN.
        """
        count = len(values)
        if count == 0:
            return cls()
        if count == 1:
            value = float(values[0])
            deviation = value - value  # 0, but NaN for an infinite value, as the formula gives it
            return cls(value, deviation, value, value, value, 1)
        # One sort gives maximum, minimum and median, and shows a NaN, which is sorted to the end.
        ordered = np.sort(np.array(values, np.float64))
        if np.isnan(ordered[-1]):
            return cls(math.nan, math.nan, math.nan, math.nan, math.nan, count)
        with np.errstate(invalid="ignore", over="ignore"):
            median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
            mean = float(ordered.mean())
            std = float(ordered.std())
        return cls(mean, std, float(ordered[-1]), float(ordered[0]), float(median), count)


@dataclass(frozen=True)
class CollectStatsBase(Stats):
    """Number of episodes and steps of a collect."""

    n_collected_episodes: int = 0
    """Number of episodes that ended."""
    n_collected_steps: int = 0
    """Number of environment steps."""


@dataclass(frozen=True, eq=False)
class CollectStats(CollectStatsBase):
    """Statistics of one or several collects.

    Returns and lengths count whole episodes, however many collects an episode spans. They may be given as any
    sequences, and become read-only arrays. Fields that are computed from others cannot be given.
    """

    collect_time: float = 0.0
    """Duration of the collects in seconds."""
    env_time: float = 0.0
    """Seconds of `collect_time` inside the environments."""
    act_time: float = 0.0
    """Seconds of `collect_time` for choosing actions."""
    returns: np.ndarray = ()  # type: ignore[assignment]
    """Returns of the episodes that ended, float64 [E]."""
    lens: np.ndarray = ()  # type: ignore[assignment]
    """Lengths of these episodes in steps, int64 [E]."""
    env_restarts: int = 0
    """Number of environments whose worker died or hung and was started again."""
    agents: tuple[str, ...] = ()
    """Names of several agents. `returns` has one number for all of them, by default their sum."""
    agent_returns: tuple[tuple[float, ...], ...] = ()
    """Returns `[episode, agent]` of the episodes that ended; empty for a single agent."""
    agent_modules: tuple[tuple[str, ...], ...] = ()
    """Module `[episode, agent]` that acted for the agent, "" for an agent that did not take part."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Reduced metrics, by name, that callbacks logged in the processes of the environments."""
    logged: Part | None = field(default=None, repr=False)
    """The values behind `metrics`. The metrics of several collects together are computed from them."""
    epsilon: Mapping[str, float] = field(default_factory=dict)
    """Probability of a random action in the last collect, by module. It is 1 while all actions
    are random. Modules that do not explore epsilon-greedily are left out."""

    collect_speed: float = field(init=False)
    """Environment steps per second."""
    returns_stat: SequenceSummaryStats | None = field(init=False)
    """Summary of `returns`, None if no episode ended."""
    lens_stat: SequenceSummaryStats | None = field(init=False)
    """Summary of `lens`, None if no episode ended."""

    def __post_init__(self) -> None:
        values = self.__dict__  # the dataclass is frozen: attributes cannot be assigned
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
        """Return the returns of each agent in the episodes it took part in, agents in the order of `agents`."""
        by_agent: dict[str, list[float]] = {}
        for returns, modules in zip(self.agent_returns, self.agent_modules):
            for agent, value, module_id in zip(self.agents, returns, modules):
                if module_id:
                    by_agent.setdefault(agent, []).append(value)
        return {agent: by_agent[agent] for agent in self.agents if agent in by_agent}

    def returns_by_module(self) -> dict[str, list[float]]:
        """Return for each module the returns of the agents it acted for, one for each agent and episode."""
        by_module: dict[str, list[float]] = {}
        for returns, modules in zip(self.agent_returns, self.agent_modules):
            for value, module_id in zip(returns, modules):
                if module_id:
                    by_module.setdefault(module_id, []).append(value)
        return by_module

    def without_values(self) -> Self:
        """Return the statistics without `logged`, which would make the history of a run large."""
        return self if self.logged is None else replace(self, logged=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for a logger."""
        counts = ("n_collected_episodes", "n_collected_steps", "collect_time", "collect_speed", "env_restarts")
        fields_logged = {name: getattr(self, name) for name in (*counts, "returns_stat", "lens_stat")}
        record = {name: _json_value(value) for name, value in fields_logged.items() if value is not None}
        if self.agent_returns:
            columns = zip(self.agents, zip(*self.agent_returns))
            record["returns"] = {agent: sum(column) / len(column) for agent, column in columns}
        if self.epsilon:
            record["epsilon"] = dict(self.epsilon) if self.agents else next(iter(self.epsilon.values()))
        if self.metrics:
            record["metrics"] = dict(self.metrics)
        return record


def returns_and_lens(ended: Sequence[tuple[float, int]]) -> tuple[Any, Any]:
    """Return all returns and all lengths, for `CollectStats`, from (return, length) of each episode that ended."""
    returns, lens = zip(*ended) if ended else ((), ())
    return returns, lens


def _summary_or_number(state: Mapping[str, Any] | float) -> Any:
    """Return a metric from its state: a summary for updates, a number for collects and epochs."""
    return SequenceSummaryStats.from_state(state) if isinstance(state, Mapping) else float(state)


@dataclass(frozen=True)
class TrainingStats(Stats):
    """Statistics of one or several updates: each loss and learner metric, summarised over the gradient steps.

    A metric is also an attribute: `stats.policy_loss.mean` is `stats.metrics["policy_loss"].mean`.
    """

    train_time: float = 0.0
    """Duration of the updates in seconds."""
    gradient_steps: int = 0
    """Number of gradient steps."""
    metrics: Mapping[str, SequenceSummaryStats] = field(default_factory=dict)
    """Summary of each metric by its name, for example `metrics["policy_loss"].mean`."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage of the updates, by its name."""
    first_bad_step: int | None = None
    """The first of these gradient steps, counted from 1, in which a loss was not finite."""

    @classmethod
    def of_update(
        cls, train_time: float, gradient_steps: int, read: Callable[[], SeriesAndSeconds], finite: bool
    ) -> Self:
        """Return the statistics of one update, whose `metrics` and `stage_seconds` are computed on first access.

        An off-policy update may be a single gradient step with twenty metrics, and few of these statistics are ever
        looked at. Summarising all of them would cost as much as the step.

        Args:
            train_time: duration of the update in seconds.
            gradient_steps: number of gradient steps.
            read: function that returns the values of the metrics and the seconds of the stages. It may be called
                several times.
            finite: whether the means of all losses are finite.
        """
        # The constructor would set all fields. Two must be missing, so that Python calls `__getattr__` for them.
        stats = object.__new__(cls)
        bad = None if finite else first_bad_step(read()[0])
        stats.__dict__.update(train_time=train_time, gradient_steps=gradient_steps, first_bad_step=bad)
        stats.__dict__.update(_read=read, _finite=finite)
        return stats

    def __getattr__(self, name: str) -> SequenceSummaryStats:
        """Return a metric by its name. Python calls this for names that are not attributes (yet)."""
        if name in ("metrics", "stage_seconds") and "_read" in self.__dict__:
            series, computed = self.__dict__["_read"]()
            if name == "metrics":
                computed = {metric: SequenceSummaryStats.from_sequence(values) for metric, values in series.items()}
            return self.__dict__.setdefault(name, computed)
        # Copying and unpickling ask for private names before there are any fields.
        metrics = {} if name.startswith("_") or name == "metrics" else self.metrics
        if name not in metrics:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its metrics are {sorted(metrics)}")
        return metrics[name]

    def series_and_seconds(self) -> SeriesAndSeconds:
        """Return the values of each metric in each gradient step, and the seconds of each stage.

        If only summaries are known, every step has the mean.
        """
        if "_read" in self.__dict__:
            values: SeriesAndSeconds = self.__dict__["_read"]()
            return values
        series = {}
        for name, summary in self.metrics.items():
            series[name] = [] if summary.mean is None else [summary.mean] * summary.count
        return series, self.stage_seconds

    def bad_losses(self) -> list[str]:
        """Return the names of the losses whose mean is not finite."""
        if self.__dict__.get("_finite"):  # known without computing the summaries
            return []
        return [name for name, mean in self.get_loss_stats_dict().items() if "loss" in name and not math.isfinite(mean)]

    def get_loss_stats_dict(self) -> dict[str, float]:
        """Return the mean of each metric."""
        return {name: stat.mean for name, stat in self.metrics.items() if stat.mean is not None}


@dataclass(frozen=True)
class TimingStats(Stats):
    """Times of a run so far, in seconds of a monotonic clock."""

    total_time: float = 0.0
    """Duration of the run."""
    train_time: float = 0.0
    """Seconds of collection and updates together."""
    train_time_collect: float = 0.0
    """Seconds of collection."""
    train_time_update: float = 0.0
    """Seconds of updates."""
    test_time: float = 0.0
    """Seconds of evaluation."""
    update_speed: float = 0.0
    """Environment steps (offline: gradient steps) per second of `train_time`."""
    env_time: float = 0.0
    """Seconds of collection inside the environments."""
    act_time: float = 0.0
    """Seconds of collection for choosing actions."""

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
        """Return the times of a run.

        Args:
            steps: environment steps so far (offline: gradient steps).
            total: seconds since the run began.
            collect, update, test: seconds of collection, updates and evaluation.
            env, act: seconds of collection inside the environments, and for choosing actions.
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
    """Statistics of a run so far."""

    gradient_step: int = 0
    """Number of gradient steps."""
    best_score: float | None = None
    """Score of the best evaluation, by which the best policy is chosen."""
    best_reward: float | None = None
    """Mean return of the best evaluation."""
    best_reward_std: float | None = None
    """Standard deviation of the returns of the best evaluation."""
    best_epoch: int | None = None
    """Epoch of the best evaluation."""
    train_step: int = 0
    """Number of environment steps in training."""
    train_episode: int = 0
    """Number of episodes that ended in training."""
    test_step: int = 0
    """Number of environment steps in evaluation."""
    test_episode: int = 0
    """Number of episodes in evaluation."""
    timing: TimingStats = field(default_factory=TimingStats)
    """Times of the run."""
    stop_reason: str | None = None
    """Why the run ended; None while it is under way."""
    samples_seen: int = 0
    """Offline: number of transitions in all gradient steps."""
    dataset_passes: float = 0.0
    """Offline: how often each transition was learned from, on average."""
    history: tuple[EpochStats, ...] = field(default=(), repr=False)
    """Statistics of every epoch. They are not printed with the other fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for a logger or a summary, without the history."""
        return {name: _json_value(value) for name, value in self.__dict__.items() if name != "history"}


@dataclass(frozen=True)
class EpochStats(Stats):
    """Statistics of one epoch. They unpack into `(epoch, stats, info)`."""

    epoch: int
    """Number of the epoch, counted from 1."""
    train_collect_stat: CollectStats | None
    """Collects of the whole epoch; None for offline training."""
    test_collect_stat: CollectStats | None
    """Evaluation at the end of the epoch, None without one."""
    training_stat: TrainingStats | None
    """Updates of the whole epoch, None without one."""
    info_stat: InfoStats
    """The run so far."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Reduced metrics, by name, that callbacks logged in the trainer's process during the epoch."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.epoch, self, self.info_stat))


def first_bad_step(series: Series) -> int | None:
    """Return the first gradient step, counted from 1, in which a loss is not finite; None if all are finite.

    Args:
        series: values of each metric in each gradient step. Losses that do not have a value in every step (a policy
            may learn in every second one only) are left out: the steps of their values are not known. The total loss
            contains them.
    """
    losses = [values for name, values in series.items() if "loss" in name]
    num_steps = max(map(len, losses), default=0)
    losses = [values for values in losses if len(values) == num_steps]
    return next((k for k, step in enumerate(zip(*losses), 1) if not all(map(math.isfinite, step))), None)


class MovAvg:
    """Moving average: mean and standard deviation of the last `size` numbers. NaN and infinities are ignored.

    Raises `ValueError`: `size` is not a whole number of at least 1.
    """

    def __init__(self, size: int = 100) -> None:
        self.size: int = check_whole("size", size, 1)
        self._numbers: deque[float] = deque(maxlen=self.size)

    def add(self, numbers: npt.ArrayLike) -> float:
        """Add one or several numbers, and return the new mean."""
        flat = np.asarray(numbers, dtype=np.float64).reshape(-1)
        self._numbers.extend(flat[np.isfinite(flat)].tolist())
        return self.get()

    def get(self) -> float:
        """Return the mean, 0 before the first number."""
        return float(np.mean(self._numbers)) if self._numbers else 0.0

    mean = get

    def std(self) -> float:
        """Return the population standard deviation, 0 before the first number."""
        return float(np.std(self._numbers)) if self._numbers else 0.0

    def __len__(self) -> int:
        return len(self._numbers)


class RunningMeanStd(RunningMoments):
    """Running mean and variance of rows, with which values are normalised.

    `norm(x)` is `(x - mean) / sqrt(var + eps)`, clipped to `[-clip_max, clip_max]`. Before the first row the mean is 0
    and the variance 1.

    Args:
        shape: shape of a row. None: the shape of the first rows.
        clip_max: limit of normalised values. None: they are not clipped.
        eps: number above 0 that is added to the variance.

    Raises:
        ValueError: rows of another shape than `shape`; or `eps` or `clip_max` is not above 0.
    """

    def __init__(
        self, shape: tuple[int, ...] | None = None, *, clip_max: float | None = 10.0, eps: float = 1e-8
    ) -> None:
        check_number("eps", eps, gt=0)
        check_number("clip_max", clip_max, optional=True, gt=0)
        super().__init__(shape or ())
        self.clip_max = clip_max
        self.eps = eps
        self._any_shape = shape is None

    def _take_shape(self, shape: tuple[int, ...]) -> None:
        """Use the shape of the first rows, if none was given."""
        if self._any_shape and not self.count:
            super().__init__(shape)

    def update(self, x: npt.ArrayLike) -> None:
        """Add rows `[N, *shape]`, or an empty list. How rows are divided among calls makes no difference."""
        rows = np.asarray(x, dtype=np.float64)
        if rows.shape != (0,):
            self._take_shape(rows.shape[1:])
            super().update(rows)

    def merge(self, other: RunningMoments) -> None:
        """Add all rows of other statistics, which do not change. `ValueError` for rows of another shape."""
        if other.count:
            self._take_shape(other.shape)
            super().merge(other)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`. `KeyError` for missing entries, `ValueError` for rows of another shape."""
        if self._any_shape:
            self.shape = np.shape(state["mean"])
        super().set_state(state)

    def norm(self, x: npt.ArrayLike) -> np.ndarray:
        """Return `x`, `[..., *shape]`, normalised: as float64 if it is float64, otherwise as float32."""
        array = np.asarray(x)
        dtype = np.float64 if array.dtype == np.float64 else np.float32
        scale = (1.0 / np.sqrt(self.var + self.eps)).astype(dtype)
        normalised = (array.astype(dtype) - self.mean.astype(dtype)) * scale
        if self.clip_max is not None:
            normalised = np.clip(normalised, -self.clip_max, self.clip_max)
        return np.asarray(normalised)
