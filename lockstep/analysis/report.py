"""`write_report`: a page about runs, with curves, settings, final evaluations, durations and videos.

The page is one file that needs no network: the template `report_page.html`, filled with data and text.
"""

import base64
import html
import itertools
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
"""Name, scope and metric of the records that are drawn; all but the first are drawn only if every run has them."""
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MAX_EMBEDDED_BYTES = 8 * 2**20
"""Size of a video above which it is linked instead of embedded."""
MAX_PAGE_BYTES = 40 * 2**20
"""Size of all embedded videos together."""
_STAGE_COLOURS = ("#4E79A7", "#F28E2B", "#59A14F", "#E15759", "#B07AA1", "#9C755F", "#76B7B2", "#EDC948")
_OPEN_ROWS = 20
"""Number of rows above which a table of settings is folded."""


@dataclass(frozen=True)
class _RunData:
    """Data of a run that the page needs."""

    run: RunFolder
    records: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)
    """Content of its summary.json; empty for a run that has not ended."""

    @classmethod
    def of(cls, run: RunFolder) -> "_RunData":
        """Read the data of a run."""
        summary = run.read_summary() if run.summary_path.exists() else {}
        return cls(run, read_metrics(run.path), summary)

    def curve(self, scope: str, metric: str, x: Axis = "steps") -> Curve:
        """Return a metric of the run, see `read_curve`."""
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
    """Write a page about runs, one HTML file that needs no network, and return its path.

    The newest video of each run (below the run's folder) is embedded if it is small. Others are linked relative to the
    page's folder, and the page says so.

    Args:
        runs: folders of runs, or of a folder that holds runs, such as `runs`.
        output: file of the page.
        group_by, labels: as in `plot_runs`.
        metrics: further records to draw, with their scopes: `"update/entropy"`.
        title: heading of the page.

    Raises:
        ValueError: there is no run; or a folder does not hold a run, is damaged, or has no evaluation or no record of
            `metrics`.
    """
    opened = open_runs(runs)
    groups = group_runs(opened, group_by=group_by, labels=labels)
    data_of = {run.path: _RunData.of(run) for run in opened}
    target = Path(output).absolute()
    envs = list(dict.fromkeys(run.env for run in opened))
    plural = f"{len(opened)} runs" if len(opened) > 1 else "1 run"
    parts = {
        "title": html.escape(title),
        "lead": html.escape(
            f"{plural} on {', '.join(envs)}. Written {time.strftime('%Y-%m-%d %H:%M')} by Lockstep {__version__}."
        ),
        "finals": _finals(groups, data_of),
        "runs": _runs_table(groups, data_of),
        "differences": _differences(groups),
        "times": _times(groups, data_of),
        "videos": _videos(opened, target.parent),
        # "<" is escaped so that no text can end the script that the data are in.
        "data": json.dumps(_data(groups, data_of, metrics), separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


# -- curves ---


def _data(groups: Sequence[RunGroup], data_of: Mapping[Path, _RunData], metrics: Sequence[str]) -> dict[str, Any]:
    """Return the data that the page's script draws: records by panel and horizontal axis."""
    # Name, scope, metric, and whether every run must have the record.
    requested = [(*record, record is RECORDS[0]) for record in RECORDS]
    for text in metrics:
        scope, slash, metric = text.partition("/")
        if not slash:
            raise ValueError(f"metric {text!r} has no scope; write it as update/entropy or train/returns_stat/mean")
        requested.append((text, scope, metric, True))

    is_offline = all(data.run.is_offline for data in data_of.values())
    axes = {**AXES, "steps": AXES["gradient_steps"] if is_offline else AXES["steps"]}
    panels = by_environment(groups)
    records = []
    for name, scope, metric, is_needed in requested:
        # A run that has the record may still lack the steps or seconds of another axis.
        by_axis = {x: _panels(panels, data_of, groups, scope, metric, x, is_needed and x == "steps") for x in AXES}
        if by_axis["steps"]:
            records.append({"name": name, "axes": {x: drawn for x, drawn in by_axis.items() if drawn}})
    return {
        "groups": [{"label": group.label, "colour": _colour(number)} for number, group in enumerate(groups)],
        "axes": axes,
        "records": records,
    }


def _panels(
    panels: Mapping[str, Sequence[RunGroup]],
    data_of: Mapping[Path, _RunData],
    groups: Sequence[RunGroup],
    scope: str,
    metric: str,
    x: Axis,
    is_needed: bool,
) -> list[dict[str, Any]]:
    """Return one panel for each environment; no panel if a run lacks the record and it is not needed."""
    numbers = {group.label: number for number, group in enumerate(groups)}
    result = []
    try:
        for env, parts in panels.items():
            drawn = [_group(part, data_of, numbers[part.label], scope, metric, x) for part in parts]
            result.append({"title": env, "groups": drawn})
    except ValueError:
        if is_needed:
            raise
        return []
    return result


def _group(
    group: RunGroup, data_of: Mapping[Path, _RunData], number: int, scope: str, metric: str, x: Axis
) -> dict[str, Any]:
    """Return the curves of a group's runs; for several runs also their interquartile mean with its interval."""
    curves = [data_of[run.path].curve(scope, metric, x) for run in group.runs]
    single = [
        {"name": f"seed {run.seed}", "x": _numbers(curve.x), "y": _numbers(curve.values)}
        for run, curve in zip(group.runs, curves)
    ]
    if len(curves) == 1:
        x_values, values, spread = curves[0]
        if np.isfinite(spread).all():
            line = _line(x_values, values, values - spread, values + spread)
        else:
            line = _line(x_values, values)
        return {"group": number, **line, "runs": single}
    points, values = align_curves(curves)
    interval = iqm_bootstrap(values)
    return {"group": number, **_line(points, interval.value, interval.low, interval.high), "runs": single}


def _line(
    x: np.ndarray, y: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None
) -> dict[str, Any]:
    """Return a line with the ends of its band, if there are any, as the page's script reads it."""
    named = {"x": x, "y": y, "low": low, "high": high}
    return {name: _numbers(values) for name, values in named.items() if values is not None}


def _numbers(values: np.ndarray) -> list[float]:
    """Return numbers with six significant digits, which keep the page small."""
    return [float(f"{value:.6g}") if abs(value) < 1e6 else round(value) for value in values.tolist()]


def _colour(number: int) -> str:
    """Return the colour of a group by its number."""
    return COLOURS[number % len(COLOURS)]


# -- tables ---


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are text, which is escaped here, or `_Html`."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = ""
    for row in rows:
        cells = "".join(f"<td{_kind(cell)}>{_cell(cell)}</td>" for cell in row)
        body += f"<tr>{cells}</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


class _Html(str):
    """Markup, which must not be escaped."""


def _cell(text: str) -> str:
    """Return the content of a cell as markup."""
    return text if isinstance(text, _Html) else html.escape(text)


def _kind(text: str) -> str:
    """Return the class attribute of a cell: labels and numbers are aligned differently."""
    if isinstance(text, _Html):
        return ' class="label"'
    return ' class="number"' if text.lstrip("-")[:1].isdigit() else ""


def _coloured_label(group: RunGroup, groups: Sequence[RunGroup]) -> _Html:
    """Return the label of a group after a square of its colour."""
    number = [other.label for other in groups].index(group.label)
    return _Html(f'<span class="square" style="background:{_colour(number)}"></span>{html.escape(group.label)}')


def _finals(groups: Sequence[RunGroup], data_of: Mapping[Path, _RunData]) -> str:
    """Return a table of the last evaluations of each group in each environment."""
    rows = []
    for env, parts in by_environment(groups).items():
        for part in parts:
            scores = np.array([data_of[run.path].curve("test", RETURN).values[-1] for run in part.runs])
            interval = iqm_bootstrap(scores)
            ends = "-"
            if len(scores) > 1:
                ends = f"{number_text(interval.low)} to {number_text(interval.high)}"
            numbers = (scores.mean(), np.median(scores), scores.min(), scores.max())
            shown = [number_text(number) for number in numbers]
            rows.append(
                (env, _coloured_label(part, groups), str(len(scores)), number_text(interval.value), ends, *shown)
            )
    columns = ("environment", "runs of", "runs", "IQM", "95 % interval", "mean", "median", "worst", "best")
    return _table(columns, rows)


def _runs_table(groups: Sequence[RunGroup], data_of: Mapping[Path, _RunData]) -> str:
    """Return a table of all runs."""
    rows = []
    for group in groups:
        for run in group.runs:
            summary = data_of[run.path].summary
            curve = data_of[run.path].curve("test", RETURN)
            spread = "" if not np.isfinite(curve.spread[-1]) else f" ± {number_text(curve.spread[-1], 3)}"
            speed = duration = "-"
            ended = "not ended"
            if summary:
                speed = f"{summary['steps_per_second']:,.0f}"
                duration = _duration(float(summary["timing"]["total_time"]))
                ended = run.ending_text(summary)
            rows.append(
                (
                    run.path.name,
                    _coloured_label(group, groups),
                    run.env,
                    str(run.seed),
                    f"{int(curve.x[-1]):,}",
                    f"{number_text(curve.values[-1])}{spread}",
                    number_text(curve.values.max()),
                    speed,
                    duration,
                    ended,
                )
            )
    columns = ("run", "of", "environment", "seed", "steps", "last return", "best", "steps/s", "time", "ended")
    return _table(columns, rows)


def _duration(seconds: float) -> str:
    """Return a duration as text, in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _differences(groups: Sequence[RunGroup]) -> str:
    """Return a table of the options, versions and revisions that differ between runs."""
    runs = list(itertools.chain.from_iterable(group.runs for group in groups))
    rows = []
    for path in differing_options(runs):
        cells = [_values(run.settings().get(path, MISSING) for run in group.runs) for group in groups]
        rows.append((path, *cells))

    versions = {run.path: {**run.info.get("versions", {}), "revision": run.info.get("git_revision")} for run in runs}
    for name in dict.fromkeys(itertools.chain.from_iterable(versions.values())):
        if len({of_run.get(name) for of_run in versions.values()}) > 1:
            cells = [_values(versions[run.path].get(name) or MISSING for run in group.runs) for group in groups]
            rows.append((f"version: {name}", *cells))

    if not rows:
        return f"<p>{'Nothing but seeds' if len(runs) > 1 else 'There is one run'}.</p>"
    table = _table(("option", *(_coloured_label(group, groups) for group in groups)), rows)
    if len(rows) <= _OPEN_ROWS:
        return table
    return f"<details><summary>{len(rows)} options</summary>{table}</details>"


def _values(values: Iterable[Any]) -> str:
    """Return the different values of an option as one text."""
    return " / ".join(dict.fromkeys(map(value_text, values)))


# -- times and videos ---


def _times(groups: Sequence[RunGroup], data_of: Mapping[Path, _RunData]) -> str:
    """Return a bar for each run that has ended, divided by the time of its stages."""
    colours: dict[str, str] = {}
    rows = []
    for group in groups:
        for run in group.runs:
            summary = data_of[run.path].summary
            if summary:
                name = f"{_coloured_label(group, groups)}, {html.escape(run.env)}, seed {html.escape(str(run.seed))}"
                bar = _stage_bar(summary, colours)
                rows.append(f'<div class="run">{name}</div><div class="bar">{bar}</div>')
    if not rows:
        return "<p>Known when a run has ended.</p>"
    legend = "".join(
        f'<span><span class="square" style="background:{colour}"></span>{html.escape(stage)}</span>'
        for stage, colour in colours.items()
    )
    return f'<div class="stages">{legend}</div><div class="times">{"".join(rows)}</div>'


def _stage_bar(summary: Mapping[str, Any], colours: dict[str, str]) -> str:
    """Return the bar of a run, divided by the time of its stages; stages without a colour get one in `colours`."""
    parts = []
    for stage, (seconds, share) in stage_seconds(summary).items():
        colour = colours.setdefault(stage, _STAGE_COLOURS[len(colours) % len(_STAGE_COLOURS)])
        text = html.escape(f"{stage}: {seconds:.1f} s, {share:.0%}")
        number = f"{share:.0%}" if share >= 0.07 else ""  # a narrower part has no room for it
        style = f"width:{100 * share:.2f}%;background:{colour}"
        parts.append(f'<span style="{style}" title="{text}">{number}</span>')
    return "".join(parts)


def _videos(runs: Sequence[RunFolder], folder: Path) -> str:
    """Return the newest video of each run, embedded if it is small, and links to all others."""
    shown = []
    links = []
    total = 0
    for run in runs:
        inside = run.path.resolve()
        videos = sorted(path for path in run.path.rglob("*") if path.suffix.lower() in VIDEOS)
        # A symbolic link in a run that somebody else made may point to any file of this machine.
        videos = [path for path in videos if path.resolve().is_relative_to(inside)]
        newest = max(videos, key=lambda path: path.stat().st_mtime, default=None)
        for path in videos:
            name = html.escape(f"{run.path.name}/{path.relative_to(run.path)}")
            size = path.stat().st_size
            if path == newest and size <= MAX_EMBEDDED_BYTES and total + size <= MAX_PAGE_BYTES:
                total += size
                shown.append(f"<figure>{_player(path)}<figcaption>{name} (embedded)</figcaption></figure>")
            else:
                # Quoted, so that a folder called `javascript:...` does not become a script.
                link = html.escape(quote(os.path.relpath(path, folder)), quote=True)
                links.append(f'<li><a href="{link}">{name}</a> ({size / 2**20:.1f} MiB)</li>')
    if not shown and not links:
        return "<p>There are none. <code>lockstep eval RUN --video RUN/video.mp4</code> makes one.</p>"
    text = f'<div class="videos">{"".join(shown)}</div>' if shown else ""
    if links:
        text += f"<p>Linked: these play while the files stay where they are.</p><ul>{''.join(links)}</ul>"
    return text


def _player(path: Path) -> str:
    """Return a video or an animated picture with its content embedded."""
    kind = VIDEOS[path.suffix.lower()]
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    if kind.startswith("image/"):
        return f'<img src="{source}" alt="{html.escape(path.name)}">'
    return f'<video controls muted loop src="{source}"></video>'
