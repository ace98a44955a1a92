"""`Metrics`: values by name, each reduced to one number, the same for any number of processes that log them."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from lockstep.options.checks import check_choice, check_number, check_whole

Key = tuple[str, ...]
"""Name of a metric, in parts."""
Entry = tuple[float, float, int]
"""A value, its weight, and the step in which it was logged."""
MeansCall = tuple[Key, Mapping[str, Any], float, int]
"""Call of `Metrics.log_means`: first parts of the key, values by its last part, weight, step."""
VectorCall = tuple[list[tuple[Key, float]], Tensor, int]
"""Call of `Metrics.log_vector`: key and weight of each value, values, step."""
ValueCall = tuple[Key, Any, float, int]
"""Call of `Metrics.log_value`: key, value, weight, step."""
Logged = dict[Key, list[Entry]]
"""Entries of each metric."""
Part = Mapping[str, Any]
"""Entries that one process has logged, as lists and one array: the form for checkpoints and for other processes."""

REDUCTIONS = ("mean", "min", "max", "sum", "lifetime_sum", "ema", "percentiles", "item")
"""Ways in which the values of a metric become one number."""
WINDOWED = ("mean", "min", "max", "sum", "percentiles")
"""Reductions that may have a window."""
PERCENTILES = (0, 50, 75, 90, 95, 99, 100)
EMA_COEFF = 0.01
"""Share of a new value in an exponential moving average, if none is given."""


class Reduction(TypedDict, total=False):
    """Keywords for how the values of a key become one number. Their meaning is described in `Metrics.log_value`."""

    reduce: str
    window: int | None
    ema_coeff: float | None


@dataclass(frozen=True)
class _ReductionRule:
    """How the values of one metric become one number; the fields are the arguments of `Metrics.log_value`."""

    reduce: str = "mean"
    window: int | None = None
    ema_coeff: float | None = None

    @property
    def spans_reports(self) -> bool:
        """Whether values of earlier reports enter the number of a later one."""
        return self.window is not None or self.reduce in ("lifetime_sum", "ema")

    def combined(self, before: list[Entry], new: list[Entry]) -> list[Entry]:
        """Return the entries that the number is computed from, given entries of earlier reports and new ones.

        A later report needs no others: a lifetime sum and a moving average become one entry.
        """
        if self.window is not None:
            return [*before, *new][-self.window :]
        if self.reduce == "lifetime_sum":
            return [(sum(value for value, *_ in [*before, *new]), 1.0, 0)]
        if self.reduce == "ema":
            return self._moving_average(before, new)
        return new

    def _moving_average(self, before: list[Entry], new: list[Entry]) -> list[Entry]:
        """Return the moving average as one entry, `a <- (1 - c) a + c x` for each value; nothing before the first."""
        coeff = EMA_COEFF if self.ema_coeff is None else self.ema_coeff
        average = before[0][0] if before else None
        for value, *_ in new:
            average = value if average is None else (1.0 - coeff) * average + coeff * value
        return [] if average is None else [(average, 1.0, 0)]

    def numbers(self, entries: list[Entry]) -> dict[Key, float]:
        """Return the number of these entries under an empty key, or several numbers under further parts of the key."""
        if self.reduce == "mean":
            return {(): _weighted_mean(entries)}
        values = [value for value, *_ in entries]
        if self.reduce == "percentiles":
            numbers = np.percentile(values, PERCENTILES).tolist() if values else [float("nan")] * len(PERCENTILES)
            return {(f"p{share}",): number for share, number in zip(PERCENTILES, numbers)}
        if self.reduce in ("sum", "lifetime_sum"):
            return {(): float(sum(values))}
        if not values:
            return {(): float("nan")}
        if self.reduce in ("min", "max"):
            return {(): float(getattr(np, self.reduce)(values))}
        return {(): values[-1]}  # item, or an average that is one entry


MEAN = _ReductionRule()
"""Rule of a plain mean. There is one object for it, so that `is` finds it without comparing fields."""


def _rule_of(reduce: str = "mean", window: int | None = None, ema_coeff: float | None = None) -> _ReductionRule:
    """Return the rule for the arguments of `Metrics.log_value`; `MEAN` itself for a plain mean."""
    is_mean = reduce == "mean" and window is None and ema_coeff is None
    return MEAN if is_mean else _ReductionRule(reduce, window, ema_coeff)


class Metrics:
    """Collection of values by key that reports one number for each key.

    The same class serves in learners, in callbacks in the processes of environments, and in trainers. A report (of an
    update, a collect, an epoch) covers the values since the report before. Windows, moving averages and lifetime sums
    continue over reports, and are part of checkpoints.

    Tensors stay on their device until the report, and then are moved to the host together: a transfer for each value
    would make the host wait in every gradient step.

    Values of several processes (`take` in each process, `report(parts)` in one of them) are sorted by step, and within
    a step by process, so that the numbers do not depend on the number of env runners. The rows of one gradient step
    that several learners share have one mean, weighted by rows, before it enters a mean or an `ema`; `item` is the
    value of the last process.

    Attributes:
        step: gradient step or vector step that values are logged in. The owner sets it.
        weight: number of rows behind a single value. The owner sets it.
        series: after a report, the value of each mean in each step; of all other metrics the reported number.
    """

    def __init__(self) -> None:
        self.step = 0
        self.weight = 1.0
        self.series: dict[Key, list[float]] = {}

        # Logging only appends to these lists. Everything else waits for the report.
        self._means: list[MeansCall] = []
        self._vectors: list[VectorCall] = []
        self._values: list[ValueCall] = []

        self._pass_start = 0
        """First gradient step of the last pass."""
        self._pass_end = 0
        """Gradient step after the last pass."""
        self._rules: dict[Key, _ReductionRule] = {}
        """Rules of the keys that `log_value` has used. All other keys are plain means."""
        self._carried: Logged = {}
        """Entries of earlier reports that later ones need."""
        self._reported: dict[Key, float] = {}
        """Numbers reported last."""

    # -- logging ---

    def log_value(
        self,
        key: str | Key,
        value: object,
        reduce: str = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        *,
        weight: float | None = None,
    ) -> None:
        """Log a value, or each element of an array or tensor.

        Args:
            key: name of the metric, or several parts of it: `("agent_1", "goals")` is reported as `agent_1/goals`.
            value: a number, or an array or tensor of numbers.
            reduce: `mean` (weighted by rows on a learner), `min`, `max`, `sum` or `item` (the last value) of the values
                in a report; `percentiles` of them (reported as `key/p0`, `p50`, `p75`, `p90`, `p95`, `p99`, `p100`); or
                `lifetime_sum` or `ema` over all reports.
            window: number of last values that are reduced, however many reports they span. None: all values in the
                report.
            ema_coeff: share of a new value in an `ema`. None: 0.01.
            weight: number of rows behind the value. 0: it does not count. None: `Metrics.weight`.

        Raises:
            TypeError: the value is not a number.
            ValueError: the key is already reduced in another way, or `window` or `ema_coeff` does not go with `reduce`.
                The message names the key.
        """
        parts = _key_of(key)
        rule = _rule_of(reduce, window, ema_coeff)
        if self._rules.get(parts) != rule:
            self._declare(parts, rule)
        plain = _as_numbers(parts, value)
        has_elements = not isinstance(plain, float) and plain.ndim > 0
        rows = self.weight if weight is None else weight
        # Each element of an array is one row, whereas a single value is the mean of `rows` rows.
        self._values.append((parts, plain, min(rows, 1.0) if has_elements else rows, self.step))

    def log_dict(self, values: Mapping[str, Any], key: str | Key = (), **reduction: Unpack[Reduction]) -> None:
        """Log each value of a (nested) dict under `key` and its own name, all with one reduction (see `log_value`)."""
        start = _key_of(key) if key else ()
        for name, value in values.items():
            if isinstance(value, Mapping):
                self.log_dict(value, (*start, name), **reduction)
            else:
                self.log_value((*start, name), value, **reduction)

    @contextmanager
    def log_time(self, key: str | Key, **reduction: Unpack[Reduction]) -> Iterator[None]:
        """Return a context whose duration in seconds is logged (see `log_value`)."""
        started = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - started, **reduction)

    def log_means(self, key: Key, values: Mapping[str, Tensor]) -> None:
        """Log means over the rows of the present gradient step.

        Args:
            key: first parts of all keys.
            values: 0-d tensors by the last part of their keys.
        """
        self._means.append((key, values, self.weight, self.step))

    def log_vector(self, names: list[tuple[Key, float]], values: Tensor) -> None:
        """Log the values of the present step that are in one tensor.

        Args:
            names: key and weight of each value.
            values: `[K]`, on any device.
        """
        self._vectors.append((names, values, self.step))

    def _declare(self, key: Key, rule: _ReductionRule) -> None:
        """Record how a key is reduced. `ValueError` for a rule that is not allowed, or differs from the known one."""
        words = f"metrics: {'/'.join(key)!r} with"
        try:
            check_choice("reduce", rule.reduce, REDUCTIONS)
            check_whole("window", rule.window, 1, optional=True)
            check_number("ema_coeff", rule.ema_coeff, optional=True, gt=0, le=1)
        except ValueError as error:
            raise ValueError(f"{words} {error}") from None
        if rule.window is not None and rule.reduce not in WINDOWED:
            raise ValueError(f"{words} window={rule.window}: reduce={rule.reduce!r} has none, only {WINDOWED} have")
        if rule.ema_coeff is not None and rule.reduce != "ema":
            raise ValueError(f"{words} ema_coeff={rule.ema_coeff}: reduce={rule.reduce!r} has none, only 'ema' has")
        before = self._rules.setdefault(key, rule)
        if before != rule:
            raise ValueError(
                f"{words} {rule}: it was logged with {before} before; log it in the same way, or under another key"
            )

    # -- gradient steps ---

    def items(self) -> list[tuple[Key, Any, float]]:
        """Return key, value and weight of all that `log_means` and `log_value` have logged since the last report."""
        result: list[tuple[Key, Any, float]] = []
        for key, means, rows, _ in self._means:
            result += [((*key, name), value, rows) for name, value in means.items()]
        return result + [(key, value, rows) for key, value, rows, _ in self._values]

    def for_tracing(self) -> Metrics:
        """Return empty metrics for the present step, with the same rules.

        A step that a compiler traces or a CUDA graph captures logs into them. Its values are not results by themselves:
        `adopt_steps` or `log_vector` brings in the numbers of the steps that really ran.
        """
        other = copy.copy(self)
        vars(other).update(vars(Metrics()), step=self.step, weight=self.weight, _rules=self._rules)
        return other

    def end_step(self) -> None:
        """Mark the end of a step."""
        self.step += 1

    def end_pass(self) -> None:
        """Mark the end of a pass over a batch. It comes after the end of the pass's last step."""
        self._pass_start = self._pass_end
        self._pass_end = self.step

    def pass_mean(self, *key: str) -> Tensor:
        """Return the mean of a metric over the steps of the last pass, 0-d; NaN if it was not logged in them.

        All learners get the same number if the logged values are the same on all of them, as a `masked_mean` is.
        """
        values: list[Any] = []
        for names, vector, step in self._vectors:
            if step >= self._pass_start:
                keys = [each for each, _ in names]
                if key in keys:
                    values.append(vector[keys.index(key)])
        for start, means, _, step in self._means:
            if step >= self._pass_start and start == key[:-1] and key[-1] in means:
                values.append(means[key[-1]])
        for each, value, _, step in self._values:
            if each == key and step >= self._pass_start:
                values.append(torch.as_tensor(value))
        return torch.stack(values).mean() if values else torch.tensor(float("nan"))

    def calls_before(self, step: int) -> tuple[list[MeansCall], list[VectorCall], list[ValueCall]]:
        """Return the calls of `log_means`, `log_vector` and `log_value` since the last report and before a step."""
        means = [call for call in self._means if call[3] < step]
        vectors = [call for call in self._vectors if call[2] < step]
        values = [call for call in self._values if call[3] < step]
        return means, vectors, values

    def adopt_steps(self, other: Metrics, num_steps: int, steps_in_pass: int) -> None:
        """Adopt the first steps that other metrics have logged, which are whole passes, as if logged here.

        The tensors are not copied. A replay of the CUDA graph that writes them replaces the numbers in them.

        Args:
            other: metrics to adopt from.
            num_steps: number of steps to adopt.
            steps_in_pass: number of steps of a pass.
        """
        means, vectors, values = other.calls_before(num_steps)
        self._means += means
        self._vectors += vectors
        self._values += values
        self.step = num_steps
        self._pass_end = num_steps
        self._pass_start = num_steps - steps_in_pass

    # -- reports ---

    def peek(self, key: str | Key) -> Any:
        """Return the number that a report would give now, or else the one reported last.

        For percentiles it is a dict. Waits for the device that the values are on. `KeyError` if nothing was logged
        under the key.
        """
        parts = _key_of(key)
        entries = self._on_host().get(parts)
        if entries is None:
            numbers = {name: value for name, value in self._reported.items() if name[: len(parts)] == parts}
        else:
            rule = self._rules.get(parts, MEAN)
            of_rule = rule.numbers(self._entries_of(parts, entries))
            numbers = {(*parts, *more): value for more, value in of_rule.items()}
        if not numbers:
            known = sorted({"/".join(name) for name in (*self._rules, *self._reported)})
            raise KeyError(f"nothing was logged under {'/'.join(parts)!r}; there are {known}")
        return numbers[parts] if parts in numbers else {name[-1]: value for name, value in numbers.items()}

    def take(self) -> Part:
        """Return the entries of this process since the last report or `take`, and forget them."""
        part = self.part()
        self._forget()
        return part

    def part(self) -> Part:
        """Return the entries of this process since the last report or `take`."""
        return self._packed(self._on_host())

    def joined(self, parts: Sequence[Part]) -> Part:
        """Return the entries of several processes as one part, in the order of steps and processes."""
        return self._packed(self._merged(parts))

    def statistics(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the fields `metrics` and `logged` of `CollectStats` for the entries of several processes."""
        part = parts[0] if len(parts) == 1 else self.joined(parts)
        numbers = self.report([part])
        return {"metrics": named(numbers), "logged": part} if numbers else {}

    def add(self, part: Part) -> None:
        """Add entries that other metrics have logged, as one step after all that are here."""
        for key, entries in self._merged([part]).items():
            self._values += [(key, value, rows, self.step) for value, rows, _ in entries]
        self.end_step()

    def current_numbers(self) -> dict[Key, float]:
        """Return the numbers that a report would give now, without forgetting anything.

        Metrics that span reports are left out, because entries of earlier reports may be elsewhere.
        """
        numbers: dict[Key, float] = {}
        for key, entries in self._on_host().items():
            rule = self._rules.get(key, MEAN)
            if not rule.spans_reports:
                of_rule = rule.numbers(self._entries_of(key, entries))
                numbers.update({(*key, *more): value for more, value in of_rule.items()})
        return numbers

    def report(self, parts: Sequence[Part] | None = None, *, by_step: bool = False) -> dict[Key, float]:
        """Return the number of each metric since the last report, and begin the next report.

        Args:
            parts: entries of several processes, in their order. None: the entries logged here.
            by_step: whether the means of one step cover different rows of it, as those of several learners do, and are
                joined to one mean first.

        Raises:
            ValueError: a key is reduced in two ways.
        """
        if parts is None:
            logged = self._on_host()
            self._forget()
        else:
            logged = self._merged(parts)

        if by_step:
            for key, entries in logged.items():
                if self._rules.get(key, MEAN).reduce in ("mean", "ema"):
                    logged[key] = _joined_by_step(entries)
        # Metrics that span reports are in each one, also if nothing new was logged.
        for key in self._carried:
            logged.setdefault(key, [])

        self.series = {}
        report = {}
        for key, new in logged.items():
            rule = self._rules.get(key, MEAN)
            if rule is MEAN:
                report[key] = _weighted_mean(new)
                self.series[key] = [value for value, _, _ in new]
                continue
            entries = self._entries_of(key, new)
            if rule.spans_reports:
                self._carried[key] = entries
            numbers = {(*key, *more): value for more, value in rule.numbers(entries).items()}
            report.update(numbers)
            self.series.update({name: [value] for name, value in numbers.items()})
        self._reported.update(report)
        return report

    def _entries_of(self, key: Key, new: list[Entry]) -> list[Entry]:
        """Return the entries that the number of a key is computed from. Entries of weight 0 are left out.

        A plain mean keeps them: its weights say which entries count, and `series` has all of them.
        """
        rule = self._rules.get(key, MEAN)
        if rule is MEAN:
            return new
        return rule.combined(self._carried.get(key, []), [entry for entry in new if entry[1]])

    def _forget(self) -> None:
        """Forget everything logged since the last report."""
        self._means = []
        self._vectors = []
        self._values = []
        self.step = 0
        self._pass_start = 0
        self._pass_end = 0

    def _on_host(self) -> Logged:
        """Return all entries logged since the last report, with one transfer to the host for each kind of tensor."""
        logged: Logged = {}

        vectors = [vector for _, vector, _ in self._vectors]
        if len(vectors) == 1:
            numbers = iter(vectors[0].tolist())
        else:
            numbers = iter(torch.cat(vectors).tolist() if vectors else [])
        for names, _, step in self._vectors:
            for key, rows in names:
                logged.setdefault(key, []).append((next(numbers), rows, step))

        # Both loops below consume the numbers in the order in which the tensors are listed here.
        means: list[Tensor] = []
        for _, values, _, _ in self._means:
            means += values.values()
        further = [value for _, value, _, _ in self._values if isinstance(value, Tensor)]
        numbers = iter(_numbers_of(means, further))
        for start, values, rows, step in self._means:
            for name in values:
                logged.setdefault((*start, name), []).append((next(numbers), rows, step))

        # So far all keys are plain means; a key for which `log_value` has declared something else is refused.
        for key in logged.keys() & self._rules.keys():
            self._declare(key, MEAN)
        for key, value, rows, step in self._values:
            is_tensor = isinstance(value, Tensor)
            elements = list(itertools.islice(numbers, value.numel())) if is_tensor else np.ravel(value).tolist()
            logged.setdefault(key, []).extend((each, rows, step) for each in elements)
        return logged

    def _packed(self, logged: Logged) -> dict[str, Any]:
        """Return entries in the form of `Part`."""
        rows: list[tuple[float, ...]] = []
        for index, entries in enumerate(logged.values()):
            rows += [(index, *entry) for entry in entries]
        rules = [self._rules.get(key, MEAN) for key in logged]
        return {
            "keys": [list(key) for key in logged],
            "reductions": [[rule.reduce, rule.window, rule.ema_coeff] for rule in rules],
            "entries": np.array(rows, np.float64).reshape(-1, 4),
        }

    def _merged(self, parts: Sequence[Part]) -> Logged:
        """Return the entries of all processes, in the order of steps and processes."""
        logged: Logged = {}
        for part in parts:
            for key, entries in self._unpacked(part).items():
                logged.setdefault(key, []).extend(entries)
        for entries in logged.values():
            entries.sort(key=_step_of)  # stable: within a step the order of processes stays
        return logged

    def _unpacked(self, part: Part) -> Logged:
        """Return the entries of a part by key, in the order in which they were packed."""
        logged: Logged = {}
        keys = [tuple(key) for key in part["keys"]]
        for key, reduction in zip(keys, part["reductions"]):
            rule = _rule_of(*reduction)
            if rule != self._rules.get(key, MEAN):
                self._declare(key, rule)
        for index, value, rows, step in np.reshape(part["entries"], (-1, 4)).tolist():
            logged.setdefault(keys[int(index)], []).append((value, rows, int(step)))
        return logged

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the carried entries, the entries of the next report, and the numbers reported last."""
        return {
            "reductions": [[list(key), rule.reduce, rule.window, rule.ema_coeff] for key, rule in self._rules.items()],
            "kept": self._packed(self._carried),
            "logged": self._packed(self._on_host()),
            "reported": [list(key) for key in self._reported],
            "numbers": np.array(list(self._reported.values()), np.float64),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._forget()
        self._rules = {tuple(key): _rule_of(*reduction) for key, *reduction in state["reductions"]}
        # Not sorted by step: carried entries come from several reports, each of which counts steps from 0.
        self._carried = self._unpacked(state["kept"])
        logged = self._unpacked(state["logged"])
        self._values = []
        for key, entries in logged.items():
            self._values += [(key, *entry) for entry in entries]
        keys = [tuple(key) for key in state["reported"]]
        self._reported = dict(zip(keys, np.asarray(state["numbers"]).tolist()))


def named(numbers: Mapping[Key, float]) -> dict[str, float]:
    """Return the numbers of a report, with the parts of each key joined by `/`."""
    return {"/".join(key): value for key, value in numbers.items()}


def _step_of(entry: Entry) -> int:
    """Return the step of an entry."""
    return entry[2]


def _key_of(key: str | Key) -> Key:
    """Return a key in parts. `TypeError` for a key that is not a text or a tuple of texts."""
    parts = (key,) if isinstance(key, str) else tuple(key)
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise TypeError(f"metrics: the key {key!r} is not allowed; it must be a text, or a tuple of texts")
    return parts


def _as_numbers(key: Key, value: object) -> Any:
    """Return a value as a float, an array or a detached tensor. `TypeError` for a value that is not a number."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return value.astype(np.float64) if value.ndim else float(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(
        f"metrics: {'/'.join(key)!r} was given {value!r}, a {type(value).__name__}; a value must be a number, or an "
        "array or tensor of numbers"
    )


def _numbers_of(singles: list[Tensor], several: list[Tensor]) -> list[float]:
    """Return the elements of all tensors, first the 0-d `singles`, then the elements of `several`.

    There is one transfer for each device and dtype: tensors of different dtypes cannot be joined without rounding.
    """
    if not several:
        return torch.stack(singles).tolist() if singles else []
    tensors = [*singles, *several]
    elements: list[list[float]] = [[] for _ in tensors]
    kinds: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    for indices in kinds.values():
        numbers = iter(torch.cat([tensors[index].reshape(-1) for index in indices]).tolist())
        for index in indices:
            elements[index] = [float(next(numbers)) for _ in range(tensors[index].numel())]
    return list(itertools.chain.from_iterable(elements))


def _weighted_mean(entries: list[Entry]) -> float:
    """Return the mean of the values by weight; NaN if no value counts."""
    if len(entries) == 1:
        value, rows, _ = entries[0]
        return value if rows else float("nan")  # value * rows / rows would be rounded
    counted = [(value, rows) for value, rows, _ in entries if rows]
    if not counted:
        return float("nan")
    return sum(value * rows for value, rows in counted) / sum(rows for _, rows in counted)


def _joined_by_step(entries: list[Entry]) -> list[Entry]:
    """Return one entry for each step, with the mean of its values by weight."""
    by_step: dict[int, list[float]] = {}
    for value, rows, step in entries:
        total = by_step.setdefault(step, [0.0, 0.0])
        if rows:
            total[0] += value * rows
            total[1] += rows
    return [(total / rows, rows, step) for step, (total, rows) in by_step.items() if rows]
