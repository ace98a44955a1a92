"""Replay buffers and collectors beside Tianshou's: adding vector steps, drawing batches, collecting into a buffer.

    python benchmarks/speed/replay_speed.py            # 5 rounds, about 4 minutes
    python benchmarks/speed/replay_speed.py --render

Each round runs both libraries in processes of their own, one thread, in alternating order; a figure is the least of
several stretches of calls (processor time). Ratios are taken within a round. Written to ``results/replay_speed.json``
and ``.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, run_programs, seconds_of

ENTRIES = {
    "lockstep": Entry("replay_classes.py", None, {"library": "lockstep"}),
    "tianshou": Entry("replay_classes.py", "tianshou", {"library": "tianshou"}),
}
WORK = {
    "add": "add a step of 8 environments",
    "add_prioritized": "the same, prioritised",
    "add_frames": "add an 84x84 frame, stored once",
    "sample": "draw 256 rows of 100,000",
    "sample_large": "draw 256 rows of 1,000,000",
    "sample_prioritized": "draw 256 rows and update their priorities",
    "sample_frames": "draw 256 rows with 4 frames each, now and next",
    "sample_n_step": "draw 256 rows with 3-step rewards",
}
COLLECT = {
    "collect_network": "with a Q network of 64x64 and epsilon 0.1",
    "collect_random": "with random actions",
}
COLLECTED = 2_048
"""steps of one call, as in ``peers/replay_classes.py``"""
RATIOS = ("times as fast", "of the least")
"""columns: round by round, and of the least times of all rounds"""


def lines(record: dict[str, Any], works: dict[str, str], shown: Callable[[float], float], digits: int) -> list[Any]:
    """Return the rows of a table: a text, a figure for each library, and how many times as fast ours is.

    The latter round by round, and of the least times of all rounds.
    """
    rows = []
    for work, text in works.items():
        ours, theirs = (seconds_of(record, library, work) for library in ENTRIES)
        cells = [report.spread([shown(v) for v in found], digits) if found else "-" for found in (ours, theirs)]
        ratio = report.spread([b / a for a, b in zip(ours, theirs)], 1) if theirs else "-"
        rows.append([text, *cells, ratio, f"{min(theirs) / min(ours):.1f}" if theirs else "-"])
    return rows


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    versions = {run["name"]: f"{run['name']} {run['version']}" for run in record["runs"]}
    names = [versions[name] for name in ENTRIES]
    each = next(run["bytes_for_a_frame_row"] for run in record["runs"] if run["name"] == "lockstep")
    stacks = 2 * 4 * 84 * 84 + 8 + 4
    return (
        "# Replay buffers and collectors: speed\n\n"
        f"`python benchmarks/speed/replay_speed.py --rounds {record['rounds']}`\n\n"
        + report.table(
            ["microseconds for one call", *names, *RATIOS], lines(record, WORK, lambda value: 1e6 * value, 1)
        )
        + "\nTianshou computes n-step returns in the algorithm, so there is no such figure of its buffer.\n\n"
        + report.table(
            ["steps per second of 8 CartPole-v1, collected into a vector buffer", *names, *RATIOS],
            lines(record, COLLECT, lambda value: COLLECTED / value, 0),
        )
        + "\n## Memory\n\nA buffer of 1,000,000 transitions of 84x84 frames with `stack_num=4, ignore_obs_next=True`: "
        + f"**{each * 1e6 / 1e9:.2f} GB** ({each:,.0f} bytes for a transition, everything that is kept beside the "
        + "frames included; scaled from the arrays of the full buffer of 20,000 in this measurement, with episodes of "
        + f"250 steps). Both stacks of four frames in each row would take {stacks * 1e6 / 1e9:.1f} GB.\n\n"
        + f"{record['rounds']} rounds, one thread; medians, least and largest. What else runs on the machine can "
        + "only add time, and adds much to some rounds here: the last column compares the least times of all rounds. "
        + f"{report.machine_line(record['machine'])}\n"
    )


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    raise SystemExit(report.command(command, "replay_speed", partial(run_programs, ENTRIES), render, rounds=5))
