"""Batches and episodes beside RLlib's and Tianshou's classes, and beside plain ``np.concatenate``.

    python benchmarks/speed/data_speed.py             # 5 rounds, about 2 minutes
    python benchmarks/speed/data_speed.py --render

Each round runs every library in a process of its own, one thread, each round beginning with another one; within a
process each piece of work is the least of many calls (processor time). Ratios are taken within a round. Written to
``results/data_speed.json`` and ``.md``.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, run_programs, seconds_of

ENTRIES = {
    name: Entry("data_classes.py", None if name == "lockstep" else name, {"library": name})
    for name in ("lockstep", "rllib", "tianshou")
}
GOALS: tuple[tuple[str, str, str, float], ...] = (
    ("concat", "concatenation against plain `np.concatenate`, times as long (at most)", "plain_concat", 1.5),
    ("slice", "slicing a batch, times as fast as RLlib", "rllib", 1.0),
    ("split_integers", "`split_by_episode`, 400 episodes by integer ids, times as fast as RLlib", "rllib", 100.0),
    ("split_strings", "the same by ids of 32 characters", "rllib", 100.0),
    ("split_flags", "the same by `terminateds`", "rllib", 100.0),
    ("build", "200 steps by `add_env_step` and packing, times as fast as RLlib", "rllib", 1.0),
    ("build_extras", "the same with two extra model outputs", "rllib", 1.0),
    ("slice_episode", "slicing an episode, times as fast as RLlib", "rllib", 3.0),
)
WORK = {
    "plain_concat": "plain `np.concatenate`, 100 x 200 rows x 10 columns",
    "concat": "concatenation of the same as batches",
    "slice": "`batch[100:300]`",
    "split_integers": "split 400 episodes by integer ids",
    "split_integers_read": "split by integer ids, and read every piece",
    "split_strings": "split by ids of 32 characters",
    "split_strings_read": "split by ids of 32 characters, and read every piece",
    "split_flags": "split by `terminateds`",
    "split_flags_read": "split by `terminateds`, and read every piece",
    "build": "an episode of 200 steps, packed",
    "build_extras": "an episode of 200 steps with two extra outputs, packed",
    "slice_episode": "`episode[50:100]`",
}
LEAST_STEPS_PER_S = 900_000


def ratios(record: dict[str, Any], work: str, against: str) -> list[float]:
    """Return, round by round: Lockstep's time over the plain one's, or a library's time over Lockstep's."""
    ours = seconds_of(record, "lockstep", work)
    if against == "plain_concat":
        return [mine / plain for mine, plain in zip(ours, seconds_of(record, "lockstep", against))]
    return [theirs / mine for mine, theirs in zip(ours, seconds_of(record, against, work))]


def judge(record: dict[str, Any]) -> list[tuple[str, list[float], float, bool]]:
    """Return goal, ratios by round, the number to reach, whether the median does."""
    judged = []
    for work, text, against, goal in GOALS:
        found = ratios(record, work, against)
        middle = statistics.median(found)
        judged.append((text, found, goal, middle <= goal if against == "plain_concat" else middle >= goal))
    rates = [200 / seconds for seconds in seconds_of(record, "lockstep", "build")]
    judged.append(
        ("200 steps by `add_env_step` and packing, steps/s", rates, LEAST_STEPS_PER_S, min(rates) >= LEAST_STEPS_PER_S)
    )
    return judged


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    goals = [
        [text, report.spread(found, 0 if goal > 1000 else 2), f"{goal:,g}", "yes" if met else "NO"]
        for text, found, goal, met in judge(record)
    ]
    times = []
    for work, text in WORK.items():
        cells = [
            report.spread([1e6 * value for value in found], 1) if (found := seconds_of(record, library, work)) else "-"
            for library in ENTRIES
        ]
        times.append([text, *cells])
    versions = {run["name"]: f"{run['name']} {run['version']}" for run in record["runs"]}
    lines = ["# Batches and episodes: speed", ""]
    lines += [report.table(["goal", "median (lowest-highest)", "to reach", "reached"], goals)]
    lines += ["Microseconds for one call:", "", report.table(["work", *(versions[name] for name in ENTRIES)], times)]
    lines += [
        "`split_by_episode` finds the boundaries and makes a piece, as views, when it is read; RLlib makes all of them "
        "at once, so the rows *read every piece* are the ones to compare where all are needed. Tianshou has no such "
        "split; its replay buffer stands in for the episode.",
        "",
        f"{record['rounds']} rounds, one thread; NumPy {record['runs'][0]['numpy']}. "
        f"{report.machine_line(record['machine'])}",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    raise SystemExit(report.command(command, "data_speed", partial(run_programs, ENTRIES), render, rounds=5))
