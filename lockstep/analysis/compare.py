"""Comparison of two sets of runs: whether one is better, by how much, and how certain that is.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lockstep.analysis.intervals import (
    Interval,
    improvement_bootstrap,
    iqm_bootstrap,
    iqm_difference_bootstrap,
    performance_profile,
)
from lockstep.analysis.plots import COLOURS, RETURN, dress, new_figure, read_curve, save_figure
from lockstep.analysis.run_groups import RunGroup, RunPath, group_runs, open_runs, value_text
from lockstep.options.checks import check_whole, suggestion
from lockstep.state.markup import markdown_text, number_text, picture_text
from lockstep.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Scores = Mapping[str, np.ndarray]
"""One score for each run, by task."""
COLUMNS = ("task", "runs of", "runs", "IQM", "95 % interval", "mean", "median", "worst", "best")
"""Columns of the table of a comparison."""
_NUM_THRESHOLDS = 201
"""Number of points of a performance profile."""
_IMPROVEMENT_COLOUR = "#555555"
FEW = 5
"""Number of runs below which a note warns that bootstrap intervals are too narrow."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sets of scores, `first` and `second`, on the same tasks.

    If there are several tasks, or a scale, the statistics are computed from scaled scores, with 0 at the low end of the
    task's scale and 1 at its high end.
    """

    labels: tuple[str, str]
    """Names of both sides."""
    first: Scores
    """Scores of the first side, not scaled."""
    second: Scores
    """Scores of the second side, not scaled."""
    scale: Mapping[str, tuple[float, float]]
    """Low and high end by task; empty for scores that are not scaled."""
    iqms: tuple[Interval, Interval]
    """Interquartile mean of each side, over all tasks together."""
    difference: Interval
    """Difference of the interquartile means, first side minus second side."""
    improvement: Interval
    """Probability that a run of the first side scores above a run of the second, as a mean over tasks."""
    thresholds: np.ndarray
    """Scores `[P]` of the points of the performance profiles."""
    profiles: tuple[Interval, Interval]
    """Share of runs above each threshold, for each side."""
    notes: tuple[str, ...] = ()
    """Sentences about the limits of the comparison."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Options of each side by its label, if they are too long for a label."""

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table with the `COLUMNS`: two for each task, then two for all tasks, scaled."""
        rows = []
        for task in self.first:
            for label, scores in zip(self.labels, (self.first[task], self.second[task])):
                rows.append(_interval_row(task, label, scores, iqm_bootstrap(scores)))
        if self.scale:
            for label, tasks, interval in zip(self.labels, self._scaled(), self.iqms):
                rows.append(_interval_row("all, scaled", label, np.concatenate(tasks), interval))
        return rows

    def facts(self) -> dict[str, str]:
        """Return the results in words, by name: difference, probability of improvement, and what they mean.

        The limits of the comparison come before its meaning, so that nobody reads the one without the others.
        """
        first, second = self.labels
        low, high = float(self.difference.low), float(self.difference.high)
        if low > 0 or high < 0:
            better = first if low > 0 else second
            meaning = f"{better} is better in these runs: the interval of the difference does not contain 0"
        else:
            meaning = "not distinguished by these runs: the interval of the difference contains 0"

        facts = {"compared": f"{first} against {second}", **self.settings}
        if self.scale:
            ends = [f"{task} {value_text(zero)} to {value_text(one)}" for task, (zero, one) in self.scale.items()]
            facts["scaled"] = f"to 0 and 1: {', '.join(ends)}"
        facts["difference"] = f"{self.difference} between interquartile means"
        facts["improvement"] = f"{self.improvement} is the probability that a run of the first is better"
        for number, note in enumerate(self.notes, start=1):
            facts[f"note {number}"] = note
        facts["so"] = meaning
        return facts

    def markdown(self) -> str:
        """Return the table and the results in words as Markdown."""
        numbers = ("---:",) * (len(COLUMNS) - 2)
        lines = [COLUMNS, ("---", "---", *numbers), *self.rows()]
        table = "".join(f"| {' | '.join(map(markdown_text, cells))} |\n" for cells in lines)
        return table + "\n" + "".join(f"- {name}: {markdown_text(text)}\n" for name, text in self.facts().items())

    def draw(self) -> Any:
        """Return a matplotlib figure of interquartile means, probability of improvement and performance profiles."""
        figure, (means, chance, profiles) = new_figure(3, self.settings)
        unit = "scaled return" if self.scale else "return"

        for number, (label, interval) in enumerate(zip(self.labels, self.iqms)):
            _draw_interval(means, interval, number, COLOURS[number])
            text = f"{picture_text(label)}: {interval}"
            at_left = means.get_yaxis_transform()
            means.text(0.02, number - 0.2, text, transform=at_left, va="bottom", color=COLOURS[number])
        self._draw_improvement(chance)
        # Upside down, so that the first side is at the top, with room for its text above the bar.
        chance.set_ylim(0.6, -0.6)
        means.set_ylim(1.5, -0.6)
        for panel in (means, chance):
            panel.set_yticks([])

        for colour, label, shares in zip(COLOURS, self.labels, self.profiles):
            name = picture_text(label)
            profiles.plot(
                self.thresholds, shares.value, color=colour, linewidth=2.0, drawstyle="steps-post", label=name
            )
            profiles.fill_between(self.thresholds, shares.low, shares.high, step="post", color=colour, alpha=0.2, lw=0)

        band = ["95 % bootstrap interval"]
        tasks = ", ".join(self.first)
        dress(means, f"Interquartile mean, {tasks}" if len(tasks) < 40 else "Interquartile mean", unit, "")
        dress(chance, "Probability of improvement", f"P({self.labels[0]} > {self.labels[1]})", "")
        dress(profiles, "Performance profile", f"{unit} r", "share of runs above r", band)
        means.use_sticky_edges = False  # bars would take away the margin
        means.margins(x=0.05)
        chance.set_xlim(-0.02, 1.02)
        for note in _notes_on_number(self.first, self.second):
            chance.get_figure(root=False).supxlabel(note, fontsize="small")
        return figure

    def _draw_improvement(self, panel: "Axes") -> None:
        """Draw the probability of improvement, with the numbers of runs in its text."""
        _draw_interval(panel, self.improvement, 0, _IMPROVEMENT_COLOUR)
        panel.axvline(0.5, color="#777777", linewidth=1.0, linestyle="--")
        num_first, num_second = (sum(map(len, side.values())) for side in (self.first, self.second))
        text = f"{self.improvement}, {num_first} against {num_second} runs"
        probability = float(self.improvement.value)
        panel.text(probability, -0.2, text, ha=_alignment(probability), va="bottom", color=_IMPROVEMENT_COLOUR)

    def save(self, output: RunPath) -> Path:
        """Write the picture and return its path. `ImportError` if matplotlib is not installed."""
        return save_figure(self.draw(), output)

    def _scaled(self) -> list[list[np.ndarray]]:
        """Return the scaled scores of each side, for each task."""
        return [_scaled(side, self.scale) for side in (self.first, self.second)]


def compare_runs(
    runs: Sequence[RunPath] | RunPath,
    against: Sequence[RunPath] | RunPath,
    *,
    metric: str = RETURN,
    scope: str = "test",
    at_step: int | None = None,
    scale: Mapping[str, tuple[float, float]] | None = None,
    labels: Sequence[str] = (),
    num_resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare the last evaluations of two sets of runs on the same environments.

    Args:
        runs, against: folders of runs, at least two on each side for each environment.
        metric, scope: name of the record that is the score.
        at_step: step up to which evaluations count. None: all of them.
        scale: returns that become 0 and 1, by environment. If there are several environments, those that are not named
            are scaled from the lowest to the highest score of both sides.
        labels: names of both sides. Otherwise they are named by the options in which they differ.
        num_resamples, seed: arguments of the bootstrap.

    Raises:
        ValueError: the environments of the two sides differ, a side has too few runs, or a folder does not hold a run
            or has no such record.
    """
    sides = open_runs(runs, scope), open_runs(against, scope)
    all_runs = open_runs([*(run.path for run in sides[0]), *(run.path for run in sides[1])])  # refuses a run on both
    tasks = _same_tasks(*sides)
    check_whole("at_step", at_step, 1, optional=True)

    scores: list[dict[str, np.ndarray]] = []
    ends: list[int] = []
    for side in sides:
        by_task: dict[str, list[float]] = {task: [] for task in tasks}
        for run in side:
            end, score = _score(run.path, metric, scope, at_step)
            by_task[run.task].append(score)
            ends.append(end)
        scores.append({task: np.array(values) for task, values in by_task.items()})

    if len(labels) not in (0, 2):
        raise ValueError(f"labels={list(labels)!r} is not allowed; give two, one for each side")
    groups = group_runs(all_runs)
    if not labels:
        labels = _side_labels(sides, groups)
    notes = [*_notes(sides, groups, labels), *_notes_on_length(ends, at_step)]
    comparison = compare_scores(*scores, labels=labels, scale=scale, num_resamples=num_resamples, seed=seed)
    settings = {group.label: group.settings for group in groups if group.settings and group.label in labels}
    return replace(comparison, notes=(*notes, *comparison.notes), settings=settings)


def compare_scores(
    first: Scores,
    second: Scores,
    *,
    labels: Sequence[str] = ("first", "second"),
    scale: Mapping[str, tuple[float, float]] | None = None,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare scores by task, such as `{"CartPole-v1": [500.0, 480.0]}`. Other arguments are as in `compare_runs`.

    Raises `ValueError`: the tasks of the two sides differ, a task has fewer than two scores, there is a NaN, or the
    ends of a scale are equal.
    """
    if set(first) != set(second) or not first:
        raise ValueError(f"the tasks {list(first)} and {list(second)} differ; compare scores of the same tasks")
    first, second = ({task: np.asarray(side[task], np.float64) for task in first} for side in (first, second))
    for label, side in zip(labels, (first, second)):
        for task, scores in side.items():
            if len(scores) < 2:
                raise ValueError(
                    f"{label} has {len(scores)} run of {task}; an interval needs at least two, better ten: train more "
                    "seeds (--seeds)"
                )

    scale = _complete_scale(first, second, scale or {})
    ours = _scaled(first, scale)
    theirs = _scaled(second, scale)
    values = np.concatenate([*ours, *theirs])
    thresholds = np.linspace(values.min(), values.max(), _NUM_THRESHOLDS)
    draws = {"num_resamples": num_resamples, "seed": seed}
    return Comparison(
        labels=(labels[0], labels[1]),
        first=first,
        second=second,
        scale=scale,
        iqms=(iqm_bootstrap(ours, **draws), iqm_bootstrap(theirs, **draws)),
        difference=iqm_difference_bootstrap(ours, theirs, **draws),
        improvement=improvement_bootstrap(ours, theirs, **draws),
        thresholds=thresholds,
        profiles=(
            performance_profile(ours, thresholds, **draws),
            performance_profile(theirs, thresholds, **draws),
        ),
        notes=tuple(_notes_on_number(first, second)),
    )


def _same_tasks(first: Sequence[RunFolder], second: Sequence[RunFolder]) -> list[str]:
    """Return the environments of both sides. `ValueError` if they differ."""
    ours = [*dict.fromkeys(run.task for run in first)]
    theirs = [*dict.fromkeys(run.task for run in second)]
    if set(ours) != set(theirs):
        raise ValueError(
            f"runs of different environments cannot be compared: {', '.join(ours)} against {', '.join(theirs)}; give "
            "runs of the same environments on both sides"
        )
    return ours


def _score(path: Path, metric: str, scope: str, at_step: int | None) -> tuple[int, float]:
    """Return the step and the value of the last record up to a step."""
    curve = read_curve(path, metric, scope)
    last = len(curve.x) if at_step is None else int(np.searchsorted(curve.x, at_step, side="right"))
    if last == 0:
        raise ValueError(f"{path} has no {scope}/{metric} up to step {at_step}; its first is at {int(curve.x[0])}")
    return int(curve.x[last - 1]), float(curve.values[last - 1])


def _labels_in(side: Sequence[RunFolder], groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the labels of the groups that the runs of a side belong to, for each task."""
    label_of: dict[Path, str] = {}
    for group in groups:
        label_of.update({run.path: group.label for run in group.runs})
    by_task: dict[str, list[str]] = {}
    for run in side:
        labels = by_task.setdefault(run.task, [])
        if label_of[run.path] not in labels:
            labels.append(label_of[run.path])
    return by_task


def _names_in(labels: Sequence[str], groups: Sequence[RunGroup]) -> str:
    """Return labels as one text, with the settings of their groups."""
    settings = {group.label: group.settings for group in groups}
    return "; ".join(f"{label} ({settings[label]})" if settings[label] else label for label in labels)


def _side_labels(sides: Sequence[Sequence[RunFolder]], groups: Sequence[RunGroup]) -> list[str]:
    """Return names of both sides: their settings, or their algorithms if each side has one, or letters."""
    settings = [set(itertools.chain.from_iterable(_labels_in(side, groups).values())) for side in sides]
    algorithms = [{run.algo.upper() for run in side} for side in sides]
    for names in (settings, algorithms):
        if all(len(of_side) == 1 for of_side in names) and names[0] != names[1]:
            return [next(iter(of_side)) for of_side in names]
    return ["A", "B"]


def _notes(sides: Sequence[Sequence[RunFolder]], groups: Sequence[RunGroup], labels: Sequence[str]) -> Iterator[str]:
    """Yield reasons why the comparison says less than it seems to."""
    for label, side in zip(labels, sides):
        for task, of_groups in _labels_in(side, groups).items():
            if len(of_groups) > 1:
                yield f"{label} mixes runs of different settings on {task}: {_names_in(of_groups, groups)}"
        settings = Counter((run.task, run.seed, json.dumps(run.settings(), sort_keys=True)) for run in side)
        twice = [f"{task} seed {seed}" for (task, seed, _), count in settings.items() if count > 1]
        if twice:
            yield f"{label} has more than one run of {', '.join(twice)}: runs with equal seeds are not independent"
    if _labels_in(sides[0], groups) == _labels_in(sides[1], groups):
        yield "both sides have the same settings"


def _notes_on_number(first: Scores, second: Scores) -> Iterator[str]:
    """Yield a note if a side has few runs of a task."""
    fewest = min(map(len, [*first.values(), *second.values()]))
    if fewest < FEW:
        yield f"with {fewest} runs intervals come out too narrow; take {FEW} or more"


def _notes_on_length(ends: Sequence[int], at_step: int | None) -> Iterator[str]:
    """Yield a note if the last evaluations are at different steps."""
    if at_step is None and min(ends) != max(ends):
        yield (
            f"the last evaluations are at different steps, {min(ends):,} to {max(ends):,}; compare at one step with "
            f"--at-step {min(ends)}"
        )


def _complete_scale(
    first: Scores, second: Scores, known: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return a scale for each task; nothing for a single task without one."""
    for task, (low, high) in known.items():
        if task not in first:
            raise ValueError(f"scale: there is no task {task!r}; {suggestion(task, first)}")
        if not low < high:
            raise ValueError(f"scale: {task} from {low:g} to {high:g} is not allowed; the second must be the larger")
    if len(first) == 1 and not known:
        return {}
    scale = {}
    for task in first:
        scores = np.concatenate([first[task], second[task]])
        scale[task] = known.get(task, (float(scores.min()), float(scores.max())))
        if scale[task][0] == scale[task][1]:
            raise ValueError(
                f"all runs of {task} score {scale[task][0]:g}, so there is nothing to scale by: give its ends, e.g. "
                f"--scale {task}=0:{scale[task][1]:g}"
            )
    return scale


def _scaled(side: Scores, scale: Mapping[str, tuple[float, float]]) -> list[np.ndarray]:
    """Return the scaled scores of each task."""
    if not scale:
        return list(side.values())
    scaled = []
    for task, scores in side.items():
        low, high = scale[task]
        scaled.append((scores - low) / (high - low))
    return scaled


def _interval_row(task: str, label: str, scores: np.ndarray, interval: Interval) -> tuple[str, ...]:
    """Return a row of the table."""
    numbers = (scores.mean(), np.median(scores), scores.min(), scores.max())
    return (
        task,
        label,
        str(len(scores)),
        number_text(interval.value),
        f"{number_text(interval.low)} to {number_text(interval.high)}",
        *(number_text(number) for number in numbers),
    )


def _draw_interval(panel: "Axes", interval: Interval, row: int, colour: str) -> None:
    """Draw a bar over an interval with a line at its number."""
    value, low, high = (float(part) for part in interval)
    panel.barh(row, high - low, left=low, height=0.3, color=colour, alpha=0.3)
    panel.plot([value, value], [row - 0.15, row + 0.15], color=colour, linewidth=3.0, solid_capstyle="butt")


def _alignment(probability: float) -> Literal["left", "center", "right"]:
    """Return the alignment of a text at a probability, such that the text stays in a panel from 0 to 1."""
    if probability < 1 / 3:
        return "left"
    return "right" if probability > 2 / 3 else "center"
