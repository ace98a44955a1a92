"""One page about runs: curves, settings that differ, final evaluations, shares of time, videos.

The page is one file that asks nothing of a network: `report_page.html` with the data and the words put in.
"""

import base64
import html
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from lockstep._version import __version__
from lockstep.analysis.intervals import iqm_bootstrap
from lockstep.analysis.plots import AXES, COLOURS, RETURN, Axis, Curve, align_curves, by_environment, curve_of
from lockstep.analysis.run_groups import (
    MISSING,
    RunGroup,
    RunPath,
    differing_options,
    group_runs,
    open_runs,
    value_text,
)
from lockstep.state.markup import number_text
from lockstep.state.replace import replacing_file
from lockstep.tracking.records import read_metrics
from lockstep.tracking.run_folder import RunFolder, stage_seconds

PAGE = Path(__file__).with_name("report_page.html")
RECORDS = (
    ("evaluation return", "test", RETURN),
    ("evaluation episode length", "test", "lens_stat/mean"),
    ("training return", "train", RETURN),
)
"""name, scope, metric; all but the first are drawn where every run has them"""
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MAX_EMBEDDED_BYTES, MAX_PAGE_BYTES = 8 * 2**20, 40 * 2**20
"""a video above the first, and all once their sum is above the second, are linked"""
_OPEN_ROWS = 20
"""a longer table of settings is folded"""


@dataclass(frozen=True)
class _Read:
    """A run with all that the page needs of it."""

    run: RunFolder
    records: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)
    """empty for a run that has not ended"""

    @classmethod
    def of(cls, run: RunFolder) -> "_Read":
        summary = run.read_summary() if run.summary_path.exists() else {}
        return cls(run, read_metrics(run.path), summary)

    def curve(self, scope: str, metric: str, x: Axis = "steps") -> Curve:
        return curve_of(self.records, metric, scope, x, source=self.run.path)


def write_report(
    runs: Sequence[RunPath] | RunPath,
    output: RunPath,
    *,
    group_by: Sequence[str] = (),
    labels: Sequence[str] = (),
    metrics: Sequence[str] = (),
    title: str = "Runs",
) -> Path:
    """Write a page about runs and return its path: one HTML file that needs no network.

    Args:
        runs: folders of runs.
        output: the page.
        group_by, labels: as for `plot_runs`.
        metrics: other records to draw, with their scope: `"update/entropy"`.
        title: heading of the page.

    The newest video of each run (below the run's folder) is embedded where it is small; others are linked from where
    the page lies, and the page says which.

    Raises `ValueError`: no run is given, one is no run or damaged, or has no evaluation or no record of `metrics`.
    """
    opened = open_runs(runs)
    groups = group_runs(opened, group_by=group_by, labels=labels)
    read = {run.path: _Read.of(run) for run in opened}
    target = Path(output).absolute()
    envs = list(dict.fromkeys(run.env for run in opened))
    plural = f"{len(opened)} runs" if len(opened) > 1 else "1 run"
    parts = {
        "title": html.escape(title),
        "lead": html.escape(
            f"{plural} on {', '.join(envs)}. Written {time.strftime('%Y-%m-%d %H:%M')} by Lockstep {__version__}."
        ),
        "finals": _finals(groups, read),
        "runs": _runs_table(groups, read),
        "differences": _differences(groups),
        "times": _times(groups, read),
        "videos": _videos(opened, target.parent),
        "data": json.dumps(_data(groups, read, metrics), separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


# -- curves ---


def _data(groups: Sequence[RunGroup], read: Mapping[Path, _Read], metrics: Sequence[str]) -> dict[str, Any]:
    """Return what the page's script draws: records by panel and axis."""
    wanted = [(*record, record is RECORDS[0]) for record in RECORDS]
    for text in metrics:
        scope, slash, metric = text.partition("/")
        if not slash:
            raise ValueError(f"metric {text!r} has no scope; write it as update/entropy or train/returns_stat/mean")
        wanted.append((text, scope, metric, True))
    offline = all(part.run.is_offline for part in read.values())
    axes = {**AXES, "steps": AXES["gradient_steps"] if offline else AXES["steps"]}
    panels = by_environment(groups)
    records = []
    for name, scope, metric, is_needed in wanted:
        by_axis = {x: _panels(panels, read, groups, scope, metric, x, is_needed and x == "steps") for x in AXES}
        if by_axis["steps"]:
            records.append({"name": name, "axes": {x: found for x, found in by_axis.items() if found}})
    return {
        "groups": [{"label": group.label, "colour": _colour(number)} for number, group in enumerate(groups)],
        "axes": axes,
        "records": records,
    }


def _panels(
    panels: Mapping[str, Sequence[RunGroup]],
    read: Mapping[Path, _Read],
    groups: Sequence[RunGroup],
    scope: str,
    metric: str,
    x: Axis,
    is_needed: bool,
) -> list[dict[str, Any]]:
    """Return one panel for each environment; none where a run lacks the record and it is not needed."""
    numbers = {group.label: number for number, group in enumerate(groups)}
    try:
        return [
            {"title": env, "groups": [_group(part, read, numbers[part.label], scope, metric, x) for part in parts]}
            for env, parts in panels.items()
        ]
    except ValueError:
        if is_needed:
            raise
        return []


def _group(
    group: RunGroup, read: Mapping[Path, _Read], number: int, scope: str, metric: str, x: Axis
) -> dict[str, Any]:
    """Return the curves of a group's runs, and of several their interquartile mean with its interval."""
    curves = [read[run.path].curve(scope, metric, x) for run in group.runs]
    single = [
        {"name": f"seed {run.seed}", "x": _numbers(curve.x), "y": _numbers(curve.values)}
        for run, curve in zip(group.runs, curves)
    ]
    if len(curves) == 1:
        spread = curves[0].spread
        known = bool(np.isfinite(spread).all())
        ends = (curves[0].values - spread, curves[0].values + spread) if known else ()
        return {"group": number, **_line(curves[0].x, curves[0].values, *ends), "runs": single}
    points, values = align_curves(curves)
    interval = iqm_bootstrap(values)
    return {"group": number, **_line(points, interval.value, interval.low, interval.high), "runs": single}


def _line(
    x: np.ndarray, y: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None
) -> dict[str, Any]:
    named = {"x": x, "y": y, "low": low, "high": high}
    return {name: _numbers(values) for name, values in named.items() if values is not None}


def _numbers(values: np.ndarray) -> list[float]:
    """Return six significant digits of each."""
    return [float(f"{value:.6g}") if abs(value) < 1e6 else round(value) for value in values.tolist()]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


# -- tables ---


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are text, escaped here, or `_Html`."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td{_kind(cell)}>{_cell(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


class _Html(str):
    """Text that is markup already."""


def _cell(text: str) -> str:
    return text if isinstance(text, _Html) else html.escape(text)


def _kind(text: str) -> str:
    if isinstance(text, _Html):
        return ' class="label"'
    return ' class="number"' if text.lstrip("-")[:1].isdigit() else ""


def _named(group: RunGroup, groups: Sequence[RunGroup]) -> _Html:
    """Return a group's label behind a square of its colour."""
    number = [other.label for other in groups].index(group.label)
    return _Html(f'<span class="square" style="background:{_colour(number)}"></span>{html.escape(group.label)}')


def _finals(groups: Sequence[RunGroup], read: Mapping[Path, _Read]) -> str:
    rows = []
    for env, parts in by_environment(groups).items():
        for part in parts:
            scores = np.array([read[run.path].curve("test", RETURN).values[-1] for run in part.runs])
            interval = iqm_bootstrap(scores)
            ends = "-"
            if len(scores) > 1:
                ends = f"{number_text(interval.low)} to {number_text(interval.high)}"
            numbers = (scores.mean(), np.median(scores), scores.min(), scores.max())
            shown = [number_text(number) for number in numbers]
            rows.append((env, _named(part, groups), str(len(scores)), number_text(interval.value), ends, *shown))
    columns = ("environment", "runs of", "runs", "IQM", "95 % interval", "mean", "median", "worst", "best")
    return _table(columns, rows)


def _runs_table(groups: Sequence[RunGroup], read: Mapping[Path, _Read]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            curve, summary = read[run.path].curve("test", RETURN), read[run.path].summary
            spread = "" if not np.isfinite(curve.spread[-1]) else f" ± {number_text(curve.spread[-1], 3)}"
            rows.append(
                (
                    run.path.name,
                    _named(group, groups),
                    run.env,
                    str(run.seed),
                    f"{int(curve.x[-1]):,}",
                    f"{number_text(curve.values[-1])}{spread}",
                    number_text(curve.values.max()),
                    f"{summary['steps_per_second']:,.0f}" if summary else "-",
                    _duration(float(summary["timing"]["total_time"])) if summary else "-",
                    str(summary.get("stop_reason")) if summary else "not ended",
                )
            )
    columns = ("run", "of", "environment", "seed", "steps", "last return", "best", "steps/s", "time", "ended by")
    return _table(columns, rows)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _differences(groups: Sequence[RunGroup]) -> str:
    """Return a table of what is not the same in all runs: options, then versions and revision."""
    runs = [run for group in groups for run in group.runs]
    rows = []
    for path in differing_options(runs):
        cells = [_values(run.settings().get(path, MISSING) for run in group.runs) for group in groups]
        rows.append((path, *cells))
    facts = {run.path: {**run.info.get("versions", {}), "revision": run.info.get("git_revision")} for run in runs}
    names = dict.fromkeys(name for found in facts.values() for name in found)
    for name in [name for name in names if len({found.get(name) for found in facts.values()}) > 1]:
        cells = [_values(facts[run.path].get(name) or MISSING for run in group.runs) for group in groups]
        rows.append((f"version: {name}", *cells))
    if not rows:
        return f"<p>{'Nothing but seeds' if len(runs) > 1 else 'There is one run'}.</p>"
    table = _table(("option", *(_named(group, groups) for group in groups)), rows)
    if len(rows) <= _OPEN_ROWS:
        return table
    return f"<details><summary>{len(rows)} options</summary>{table}</details>"


def _values(values: Iterable[Any]) -> str:
    return " / ".join(dict.fromkeys(map(value_text, values)))


# -- time and videos ---


def _times(groups: Sequence[RunGroup], read: Mapping[Path, _Read]) -> str:
    """Return a bar for each run that has ended, cut by where its seconds went."""
    stages: dict[str, str] = {}
    rows = []
    for group in groups:
        for run in group.runs:
            summary = read[run.path].summary
            if not summary:
                continue
            bars = []
            for stage, (seconds, share) in stage_seconds(summary).items():
                colour = stages.setdefault(stage, _STAGE_COLOURS[len(stages) % len(_STAGE_COLOURS)])
                text = html.escape(f"{stage}: {seconds:.1f} s, {share:.0%}")
                words = f"{share:.0%}" if share >= 0.07 else ""
                style = f"width:{100 * share:.2f}%;background:{colour}"
                bars.append(f'<span style="{style}" title="{text}">{words}</span>')
            name = f"{_named(group, groups)}, {html.escape(run.env)}, seed {html.escape(str(run.seed))}"
            rows.append(f'<div class="run">{name}</div><div class="bar">{"".join(bars)}</div>')
    if not rows:
        return "<p>Known when a run has ended.</p>"
    legend = "".join(
        f'<span><span class="square" style="background:{colour}"></span>{html.escape(stage)}</span>'
        for stage, colour in stages.items()
    )
    return f'<div class="stages">{legend}</div><div class="times">{"".join(rows)}</div>'


_STAGE_COLOURS = ("#4E79A7", "#F28E2B", "#59A14F", "#E15759", "#B07AA1", "#9C755F", "#76B7B2", "#EDC948")


def _videos(runs: Sequence[RunFolder], folder: Path) -> str:
    """Return the newest video of each run, embedded where it is small, and links to the others."""
    shown, links, total = [], [], 0
    for run in runs:
        inside = run.path.resolve()
        found = sorted(path for path in run.path.rglob("*") if path.suffix.lower() in VIDEOS)
        # A link in a run that somebody else made may show any file of this machine.
        found = [path for path in found if path.resolve().is_relative_to(inside)]
        newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
        for path in found:
            name = html.escape(f"{run.path.name}/{path.relative_to(run.path)}")
            size = path.stat().st_size
            if path == newest and size <= MAX_EMBEDDED_BYTES and total + size <= MAX_PAGE_BYTES:
                total += size
                shown.append(f"<figure>{_player(path)}<figcaption>{name} (embedded)</figcaption></figure>")
            else:
                # Quoted, so that a folder named `javascript:...` is a folder.
                link = html.escape(quote(os.path.relpath(path, folder)), quote=True)
                links.append(f'<li><a href="{link}">{name}</a> ({size / 2**20:.1f} MiB)</li>')
    if not shown and not links:
        return "<p>There are none. <code>lockstep eval RUN --video RUN/video.mp4</code> makes one.</p>"
    text = f'<div class="videos">{"".join(shown)}</div>' if shown else ""
    if links:
        text += f"<p>Linked: these play while the files stay where they are.</p><ul>{''.join(links)}</ul>"
    return text


def _player(path: Path) -> str:
    kind = VIDEOS[path.suffix.lower()]
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    if kind.startswith("image/"):
        return f'<img src="{source}" alt="{html.escape(path.name)}">'
    return f'<video controls muted loop src="{source}"></video>'
