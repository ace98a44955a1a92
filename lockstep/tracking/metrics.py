"""`Metrics`: values by name, each reduced to one number, the same however many processes log them."""

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
Entry = tuple[float, float, int]
"""a value, its weight, and the step in which it was logged"""
Logged = dict[Key, list[Entry]]
Part = Mapping[str, Any]
"""what one process logged, as lists and one array: good for a checkpoint and for other processes"""

REDUCTIONS = ("mean", "min", "max", "sum", "lifetime_sum", "ema", "percentiles", "item")
WINDOWED = ("mean", "min", "max", "sum", "percentiles")
PERCENTILES = (0, 50, 75, 90, 95, 99, 100)
EMA_COEFF = 0.01


class Reduction(TypedDict, total=False):
    """How the values of a key become one number; `Metrics.log_value` says what each means."""

    reduce: str
    window: int | None
    ema_coeff: float | None


@dataclass(frozen=True)
class _How:
    reduce: str = "mean"
    window: int | None = None
    ema_coeff: float | None = None

    @property
    def goes_on(self) -> bool:
        """Does the number of one report go into that of the next?"""
        return self.window is not None or self.reduce in ("lifetime_sum", "ema")

    def kept(self, before: list[Entry], new: list[Entry]) -> list[Entry]:
        """Return the entries that the number is made of, from those kept so far and those that count."""
        if self.window is not None:
            return [*before, *new][-self.window :]
        if self.reduce == "lifetime_sum":
            return [(sum(value for value, *_ in [*before, *new]), 1.0, 0)]
        if self.reduce != "ema":
            return new
        coeff = EMA_COEFF if self.ema_coeff is None else self.ema_coeff
        average = None if not before else before[0][0]
        for value, *_ in new:
            average = value if average is None else (1.0 - coeff) * average + coeff * value
        return [] if average is None else [(average, 1.0, 0)]

    def numbers(self, entries: list[Entry]) -> dict[Key, float]:
        """Return the number of these entries, under an empty key, or several under a further part of it."""
        if self.reduce == "mean":
            return {(): _weighted_mean(entries)}
        values = [value for value, *_ in entries]
        if self.reduce == "percentiles":
            found = np.percentile(values, PERCENTILES).tolist() if values else [float("nan")] * len(PERCENTILES)
            return {(f"p{share}",): value for share, value in zip(PERCENTILES, found)}
        if self.reduce in ("sum", "lifetime_sum"):
            return {(): float(sum(values))}
        if not values:
            return {(): float("nan")}
        return {(): float(getattr(np, self.reduce)(values)) if self.reduce in ("min", "max") else values[-1]}


MEAN = _How()


def _how(reduce: str = "mean", window: int | None = None, ema_coeff: float | None = None) -> _How:
    """Return how values are reduced; always the same object for a plain mean."""
    is_mean = reduce == "mean" and window is None and ema_coeff is None
    return MEAN if is_mean else _How(reduce, window, ema_coeff)


class Metrics:
    """Takes in values by key and reports one number for each; the same class on a learner, in the callbacks of an
    environment's process and in a trainer.

    A report (an update's, a collect's, an epoch's) is of the values since the one before; windows, averages that go on
    and lifetime sums continue, and are part of checkpoints. Tensors stay on their device until the report, and then
    cross to the host together. `step` is the gradient step, or vector step, that values are logged in, and `weight`
    the number of rows that stand behind a single one; their owner sets both.

    Values of several processes (`take` in each, `report(parts)` in one) are brought into the order of their steps, and
    within a step into that of the processes: so m env runners give the numbers of one. The learners' rows of one
    gradient step have one mean, weighted by rows, before it enters a mean or an `ema`; `item` is the last process's.
    """

    def __init__(self) -> None:
        self.step, self.weight = 0, 1.0
        self.series: dict[Key, list[float]] = {}
        """after a report: the value of each mean in each step, of all others the number that was reported"""
        self._means: list[tuple[Key, Mapping[str, Any], float, int]] = []
        """(first parts of the key, values by its last part, weight, step) of each call of `log_means`"""
        self._vectors: list[tuple[list[tuple[Key, float]], Tensor, int]] = []
        self._values: list[tuple[Key, Any, float, int]] = []
        self._pass_start = self._pass_end = 0
        """of the last pass, in gradient steps"""
        self._hows: dict[Key, _How] = {}
        """of keys that `log_value` has seen; all others are means"""
        self._kept: Logged = {}
        self._reported: dict[Key, float] = {}

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
        """Log a value under a name, or under several parts of one (`("agent_1", "goals")` is reported as
        `agent_1/goals`).

        `value`: a number, or an array or tensor, each element of which is a value. `reduce`: `mean` (weighted by rows
        on a learner), `min`, `max`, `sum` and `item` (the last one) of a report; `percentiles` (reported as `key/p0`,
        `p50`, `p75`, `p90`, `p95`, `p99`, `p100`); `lifetime_sum` and `ema` of all reports. `window`: of the last so
        many values, however many reports they span. `ema_coeff`: the share of a new value, 0.01 where it is not given.
        `weight`: rows behind the value; 0: it does not count.

        Raises `TypeError` for a value that is no number, `ValueError` for a key that is reduced in another way already,
        and for a `window` or `ema_coeff` that `reduce` has no use for; each names the key.
        """
        parts = _key_of(key)
        how = _how(reduce, window, ema_coeff)
        if self._hows.get(parts) != how:
            self._declare(parts, how)
        plain = _numbers(parts, value)
        is_several = not isinstance(plain, float) and plain.ndim > 0
        rows = self.weight if weight is None else weight
        self._values.append((parts, plain, min(rows, 1.0) if is_several else rows, self.step))

    def log_dict(self, values: Mapping[str, Any], key: str | Key = (), **how: Unpack[Reduction]) -> None:
        """Log each value of a (nested) dict, under `key` and its own name, in one way (see `log_value`)."""
        start = _key_of(key) if key else ()
        for name, value in values.items():
            if isinstance(value, Mapping):
                self.log_dict(value, (*start, name), **how)
            else:
                self.log_value((*start, name), value, **how)

    @contextmanager
    def log_time(self, key: str | Key, **how: Unpack[Reduction]) -> Iterator[None]:
        """Return a context whose seconds are logged (see `log_value`)."""
        started = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - started, **how)

    def log_means(self, key: Key, values: Mapping[str, Tensor]) -> None:
        """Log the means of the rows of a gradient step: 0-d tensors by the last part of their keys."""
        self._means.append((key, values, self.weight, self.step))

    def log_vector(self, names: list[tuple[Key, float]], values: Tensor) -> None:
        """Log a tensor `[K]` with values of the present step, for `names` (key and weight of each)."""
        self._vectors.append((names, values, self.step))

    def _declare(self, key: Key, how: _How) -> None:
        """Take down how a key is reduced. `ValueError` where that cannot be, or is not as it was."""
        words = f"metrics: {'/'.join(key)!r} with"
        try:
            check_choice("reduce", how.reduce, REDUCTIONS)
            check_whole("window", how.window, 1, optional=True)
            check_number("ema_coeff", how.ema_coeff, optional=True, gt=0, le=1)
        except ValueError as error:
            raise ValueError(f"{words} {error}") from None
        if how.window is not None and how.reduce not in WINDOWED:
            raise ValueError(f"{words} window={how.window}: reduce={how.reduce!r} has none, only {WINDOWED} have")
        if how.ema_coeff is not None and how.reduce != "ema":
            raise ValueError(f"{words} ema_coeff={how.ema_coeff}: reduce={how.reduce!r} has none, only 'ema' has")
        before = self._hows.setdefault(key, how)
        if before != how:
            raise ValueError(f"{words} {how}: it was logged with {before} before; log it alike, or under another key")

    # -- of gradient steps ---

    def items(self) -> list[tuple[Key, Any, float]]:
        """Return key, value and weight of what `log_means` and `log_value` have logged since the last report."""
        logged = self._means
        found = [((*key, name), value, rows) for key, several, rows, _ in logged for name, value in several.items()]
        return found + [(key, value, rows) for key, value, rows, _ in self._values]

    def beside(self) -> Metrics:
        """Return other ones for the same step, into which a step is logged that is only traced."""
        other = copy.copy(self)
        vars(other).update(vars(Metrics()), step=self.step, weight=self.weight, _hows=self._hows)
        return other

    def end_step(self) -> None:
        """Mark the end of a step."""
        self.step += 1

    def end_pass(self) -> None:
        """Mark the end of a pass over a batch, after that of its last step."""
        self._pass_start, self._pass_end = self._pass_end, self.step

    def pass_mean(self, *key: str) -> Tensor:
        """Return the mean (0-d) of a metric over the steps of the last pass; NaN where it was not logged then.

        The same number on all learners, if what was logged is (as a `masked_mean` is).
        """
        values: list[Any] = []
        for names, vector, step in self._vectors:
            if step >= self._pass_start:
                keys = [each for each, _ in names]
                if key in keys:
                    values.append(vector[keys.index(key)])
        for start, logged, _, step in self._means:
            if step >= self._pass_start and start == key[:-1] and key[-1] in logged:
                values.append(logged[key[-1]])
        values += [torch.as_tensor(v) for each, v, _, step in self._values if each == key and step >= self._pass_start]
        return torch.stack(values).mean() if values else torch.tensor(float("nan"))

    def take_over(self, others: Metrics, num_steps: int, steps_in_pass: int) -> None:
        """Take what others have logged in their first steps, whole passes, as logged here.

        Tensors stay what they are: a later call may find other numbers in them.
        """
        self._means += [entry for entry in others._means if entry[3] < num_steps]
        self._vectors += [entry for entry in others._vectors if entry[2] < num_steps]
        self._values += [entry for entry in others._values if entry[3] < num_steps]
        self.step = self._pass_end = num_steps
        self._pass_start = num_steps - steps_in_pass

    # -- reports ---

    def peek(self, key: str | Key) -> Any:
        """Return the number that a report would give now (of percentiles: a dict), else the one that was reported last.

        Waits for the device that the values are on. `KeyError` where nothing was logged under the key.
        """
        parts = _key_of(key)
        entries = self._on_host().get(parts)
        if entries is None:
            found = {name: value for name, value in self._reported.items() if name[: len(parts)] == parts}
        else:
            how = self._hows.get(parts, MEAN)
            found = {(*parts, *more): value for more, value in how.numbers(self._kept_of(parts, entries)).items()}
        if not found:
            known = sorted({"/".join(name) for name in (*self._hows, *self._reported)})
            raise KeyError(f"nothing was logged under {'/'.join(parts)!r}; there are {known}")
        return found[parts] if parts in found else {name[-1]: value for name, value in found.items()}

    def take(self) -> Part:
        """Return what was logged since the last report or `take`, and forget it: the part of this process."""
        part = self.part()
        self._forget()
        return part

    def part(self) -> Part:
        """Return what was logged since the last report or `take`."""
        return self._packed(self._on_host())

    def joined(self, parts: Sequence[Part]) -> Part:
        """Return what several processes logged as the part of one, in the order of steps and processes."""
        return self._packed(self._merged(parts))

    def statistics(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return what `CollectStats` has of what the processes logged: a report, and its values."""
        part = parts[0] if len(parts) == 1 else self.joined(parts)
        numbers = self.report([part])
        return {"metrics": named(numbers), "logged": part} if numbers else {}

    def add(self, part: Part) -> None:
        """Take in what another one has logged, after all that is here."""
        merged = self._merged([part])
        self._values += [(key, value, rows, self.step) for key, part in merged.items() for value, rows, _ in part]
        self.end_step()

    def so_far(self) -> dict[Key, float]:
        """Return the numbers that a report would give of what does not go on in the next one; nothing is forgotten."""
        logged = {key: part for key, part in self._on_host().items() if not self._hows.get(key, MEAN).goes_on}
        return {
            (*key, *more): value
            for key, part in logged.items()
            for more, value in self._hows.get(key, MEAN).numbers(self._kept_of(key, part)).items()
        }

    def report(self, parts: Sequence[Part] | None = None, *, by_step: bool = False) -> dict[Key, float]:
        """Return the number of each metric since the last report, and begin the next one.

        `parts`: what the processes logged, in their order; None: what was logged here. `by_step`: means of one step are
        those of different rows of it, and become one first. Raises `ValueError` for a key that is reduced in two ways.
        """
        if parts is None:
            logged = self._on_host()
            self._forget()
        else:
            logged = self._merged(parts)
        if by_step:
            for key, entries in logged.items():
                if self._hows.get(key, MEAN).reduce in ("mean", "ema"):
                    logged[key] = _joined_by_step(entries)
        self.series, found = {}, {}
        for key in self._kept:
            logged.setdefault(key, [])
        for key, new in logged.items():
            how = self._hows.get(key, MEAN)
            if how is MEAN:
                found[key] = _weighted_mean(new)
                self.series[key] = [value for value, _, _ in new]
                continue
            entries = self._kept_of(key, new)
            if how.goes_on:
                self._kept[key] = entries
            numbers = {(*key, *more): value for more, value in how.numbers(entries).items()}
            found.update(numbers)
            self.series.update({name: [value] for name, value in numbers.items()})
        self._reported.update(found)
        return found

    def _kept_of(self, key: Key, new: list[Entry]) -> list[Entry]:
        """Return the entries that the number of a key is made of. Of a mean the weight says what counts."""
        how = self._hows.get(key, MEAN)
        if how is MEAN:
            return new
        return how.kept(self._kept.get(key, []), [entry for entry in new if entry[1]])

    def _forget(self) -> None:
        self._means, self._vectors, self._values = [], [], []
        self.step = self._pass_start = self._pass_end = 0

    def _on_host(self) -> Logged:
        """Return what was logged by key, in one transfer to the host."""
        logged: Logged = {}
        vectors = [vector for _, vector, _ in self._vectors]
        if len(vectors) == 1:
            numbers = iter(vectors[0].tolist())
        else:
            numbers = iter(torch.cat(vectors).tolist() if vectors else [])
        for names, _, step in self._vectors:
            for key, rows in names:
                logged.setdefault(key, []).append((next(numbers), rows, step))
        tensors = [value for _, values, _, _ in self._means for value in values.values()]
        further = [value for _, value, _, _ in self._values if isinstance(value, Tensor)]
        numbers = iter(_numbers_of(tensors, further))
        for start, values, rows, step in self._means:
            for name in values:
                logged.setdefault((*start, name), []).append((next(numbers), rows, step))
        for key in logged.keys() & self._hows.keys():
            self._declare(key, MEAN)  # refused, where it is none
        for key, value, rows, step in self._values:
            is_tensor = isinstance(value, Tensor)
            elements = list(itertools.islice(numbers, value.numel())) if is_tensor else np.ravel(value).tolist()
            logged.setdefault(key, []).extend((each, rows, step) for each in elements)
        return logged

    def _packed(self, logged: Logged) -> dict[str, Any]:
        rows = [(index, *entry) for index, several in enumerate(logged.values()) for entry in several]
        hows = [self._hows.get(key, MEAN) for key in logged]
        return {
            "keys": [list(key) for key in logged],
            "reductions": [[how.reduce, how.window, how.ema_coeff] for how in hows],
            "entries": np.array(rows, np.float64).reshape(-1, 4),
        }

    def _merged(self, parts: Sequence[Part]) -> Logged:
        """Return what all processes logged, in the order of steps and processes."""
        logged: Logged = {}
        for part in parts:
            for key, entries in self._unpacked(part).items():
                logged.setdefault(key, []).extend(entries)
        for entries in logged.values():
            entries.sort(key=_step_of)
        return logged

    def _unpacked(self, part: Part) -> Logged:
        """Return the entries of a part by key, in the order in which they were packed."""
        logged: Logged = {}
        keys = [tuple(key) for key in part["keys"]]
        for key, how in zip(keys, part["reductions"]):
            if _how(*how) != self._hows.get(key, MEAN):
                self._declare(key, _how(*how))
        for index, value, rows, step in np.reshape(part["entries"], (-1, 4)).tolist():
            logged.setdefault(keys[int(index)], []).append((value, rows, int(step)))
        return logged

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return sums, averages and windows that go on, what waits for the next report, and what was reported last."""
        return {
            "reductions": [[list(key), how.reduce, how.window, how.ema_coeff] for key, how in self._hows.items()],
            "kept": self._packed(self._kept),
            "logged": self._packed(self._on_host()),
            "reported": [list(key) for key in self._reported],
            "numbers": np.array(list(self._reported.values()), np.float64),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self._forget()
        self._hows = {tuple(key): _how(*how) for key, *how in state["reductions"]}
        # In the order in which they were kept: their steps are those of several reports, each of which began at 0.
        self._kept = self._unpacked(state["kept"])
        logged = self._unpacked(state["logged"])
        self._values = [(key, *entry) for key, entries in logged.items() for entry in entries]
        keys = [tuple(key) for key in state["reported"]]
        self._reported = dict(zip(keys, np.asarray(state["numbers"]).tolist()))


def named(numbers: Mapping[Key, float]) -> dict[str, float]:
    """Return a report with the parts of each key joined by `/`."""
    return {"/".join(key): value for key, value in numbers.items()}


def _step_of(entry: Entry) -> int:
    return entry[2]


def _key_of(key: str | Key) -> Key:
    parts = (key,) if isinstance(key, str) else tuple(key)
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise TypeError(f"metrics: the key {key!r} is not allowed; it must be a text, or a tuple of texts")
    return parts


def _numbers(key: Key, value: object) -> Any:
    """Return a value as a float, an array or a detached tensor. `TypeError` for what is no number."""
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
    """Return the elements of all tensors, of the 0-d `singles` first, in one transfer for each kind of tensor."""
    if not several:
        return torch.stack(singles).tolist() if singles else []
    tensors = [*singles, *several]
    found: list[list[float]] = [[] for _ in tensors]
    kinds: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    for indices in kinds.values():
        numbers = iter(torch.cat([tensors[index].reshape(-1) for index in indices]).tolist())
        for index in indices:
            found[index] = [float(next(numbers)) for _ in range(tensors[index].numel())]
    return list(itertools.chain.from_iterable(found))


def _weighted_mean(entries: list[Entry]) -> float:
    """Return the mean by weight; NaN where there is none."""
    if len(entries) == 1:  # as it is, without rounding
        return entries[0][0] if entries[0][1] else float("nan")
    counted = [(value, rows) for value, rows, _ in entries if rows]
    return sum(value * rows for value, rows in counted) / sum(rows for _, rows in counted) if counted else float("nan")


def _joined_by_step(entries: list[Entry]) -> list[Entry]:
    """Return one value for each step: the mean by weight."""
    by_step: dict[int, list[float]] = {}
    for value, rows, step in entries:
        total = by_step.setdefault(step, [0.0, 0.0])
        if rows:
            total[0] += value * rows
            total[1] += rows
    return [(total / rows, rows, step) for step, (total, rows) in by_step.items() if rows]
