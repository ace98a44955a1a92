"""Times this checkout against another one, work by work, in turn on the same machine.

    git worktree add ../before REVISION
    python benchmarks/speed/revisions.py ../before                       # all works, about half an hour
    python benchmarks/speed/revisions.py ../before --works ppo learner   # those whose names begin so
    python benchmarks/speed/revisions.py ../before --name trial          # also writes results/trial.md and .json

`works.py` has the works, and `--help` says what each of them times:

- training: ppo, ppo compiled, dqn, sac; on tensors: "tensors, ppo", "tensors, sac", "tensors, dqn"; of several agents:
  "agents, ppo", "agents, self-play"
- collection: collector, "collector, rollout", "collector, episodes", "collector, agents", "collector, ready",
  "collector, runners", "collector, runners on Ray", "collector, tensors"
- updates: "learner, episodes", "learner, batch", "learners on Ray"
- samples: "replay, uniform", "replay, prioritized", "replay, n-step", "replay, stacks", "replay, sequences",
  "replay, hindsight", "replay, agents"
- data, import

Each checkout has a process of its own for each work; a round asks both in turn, and each round begins with the other
one. Two processes of the same code differ by several percent for as long as they live, so there are several pairs of
them. Every ratio is before / after: above 1 this checkout is faster. The table gives three, each the ratio of medians
over the pairs: of a process's median wall time, of its median processor time (with the children that it waited for),
and of the processor time of its fastest round, with the median of the pairs' own ratios of that (lowest-highest).

On an idle machine all three say the same. Where the machine has other work to do, quote the fastest rounds: neighbours
share caches and cores, and can only add processor time. Works on Ray do nearly everything in other processes, so only
their wall time counts, measured on an idle machine. Two checkouts of one revision show how far from 1 the ratios come
out here: on two busy cores the fastest rounds of a pair differ by 3 to 7 %, so a ratio of 0.97 needs ten pairs or more.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Resident

KINDS = ("wall", "processor")
Seconds = dict[str, list[float]]
"""Seconds of every round, by kind of time."""


SAME_HEAP = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""glibc keeps what is freed: whether it hands large arrays back to the system is an accident of the heap's layout, and
moved "data" by 25 % between two runs of the same code"""


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def serve(name: str) -> None:
    """Do the work once for each line of the input, and print its seconds."""
    from works import WORKS

    work = WORKS[name]()
    for _ in range(3):
        work()
    print(json.dumps({"work": name}), flush=True)
    for _ in sys.stdin:
        began, used = time.perf_counter(), processor_seconds()
        work()
        print(json.dumps({"wall": time.perf_counter() - began, "processor": processor_seconds() - used}), flush=True)


def measure(before: Path, work: str, rounds: int, seed: int) -> tuple[Seconds, Seconds]:
    """Return the seconds of one pair of processes, before and after.

    `seed` is that of the hashes of texts in both: how fast dictionaries look up is an accident, too.
    """
    os.environ["PYTHONHASHSEED"] = str(seed)
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", work, "."]
    workers = list[Resident]()
    try:
        for checkout in (before.resolve(), report.ROOT):
            workers.append(Resident(command, 900.0, checkout))
        found: tuple[Seconds, Seconds] = ({kind: [] for kind in KINDS}, {kind: [] for kind in KINDS})
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                answer = workers[which].ask()
                for kind in KINDS:
                    found[which][kind].append(round(answer[kind], 6))
        return found
    finally:
        for worker in workers:
            worker.close()


HEADER = (
    "work",
    "wall before, ms",
    "after, ms",
    "ratio",
    "processor before, ms",
    "after, ms",
    "ratio",
    "fastest",
    "pairs",
)
ON_RAY = ("collector, runners on Ray", "learners on Ray")
"""Works of which only wall time counts."""
ESTIMATES: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
    ("wall", statistics.median),
    ("processor", statistics.median),
    ("processor", min),
)
"""What stands for all rounds of a process."""


def row_of(work: str, pairs: list[tuple[Seconds, Seconds]]) -> list[str]:
    """Return the row of a work."""
    cells = [work]
    for kind, estimate in ESTIMATES:
        old, new = ([estimate(pair[which][kind]) for pair in pairs] for which in (0, 1))
        before, after = statistics.median(old), statistics.median(new)
        if estimate is not min:
            cells += [f"{1e3 * before:.1f}", f"{1e3 * after:.1f}", f"{before / after:.3f}"]
        elif work in ON_RAY:
            cells += ["", ""]
        else:
            cells += [f"{before / after:.3f}", report.spread([*map(operator.truediv, old, new)], digits=3)]
    return cells


def main() -> None:
    """Measure and print a row for each work."""
    from works import WORKS

    works = "\n".join(f"  {name}: {work.__doc__}" for name, work in WORKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"works:\n{works}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--works", nargs="*", default=[""], metavar="NAME", help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each process")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    parser.add_argument("--name", help="write results/NAME.md and .json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    chosen = [name for name in WORKS if name.startswith(tuple(options.works))]
    if not chosen:
        parser.error(f"--works {' '.join(options.works)}: no work begins so; there are {', '.join(WORKS)}")
    os.environ.update(SAME_HEAP)
    facts, raw, rows = report.machine(), dict[str, Any](), list[list[str]]()
    print(report.table(HEADER, []), end="", flush=True)
    for work in chosen:
        pairs = [measure(options.before, work, options.rounds, seed) for seed in range(options.pairs)]
        raw[work] = [{"before": old, "after": new} for old, new in pairs]
        rows.append(row_of(work, pairs))
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
        if options.name:
            command = f"# Before and after\n\n`python benchmarks/speed/revisions.py BEFORE --name {options.name}`\n\n"
            text = f"{command}{report.table(HEADER, rows)}\n{report.machine_line(facts)}\n"
            report.write(options.name, {"machine": facts, "works": raw}, text)
    print(f"Load average {facts['load_average']} before, {os.getloadavg()[0]:.2f} after, {facts['cores']} cores.")


if __name__ == "__main__":
    main()
