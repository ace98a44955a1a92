"""What people start with: whole runs by default, beside Stable-Baselines3 and RLlib, from first and second starts.

    make bench-start                                        # installs the peers first; about twenty minutes
    python benchmarks/speed/start_speed.py --only dqn pong  # some parts again; those of the others stay
    python benchmarks/speed/start_speed.py --whole sac      # also one run that is not shortened
    python benchmarks/speed/start_speed.py --quick          # all of it in small: results/start_speed_quick.json and .md
    python benchmarks/speed/start_speed.py --render         # the table again, from the raw results

A first start finds no compiled code, a second one finds what the first has kept. Long runs are not made in full: a run
has the settings of all its planned steps, by which the default decides whether to compile, and ends early. The time of
the whole is that of its first part as measured (start and compiling included) and the remaining steps at the rate of
the rest. `--whole` makes a run to its end, to check that. Only the runs as processes are always made in full.

Every time is kept twice, of the clock and of the processor: that of the training process and of the compiler that it
waits for. On a quiet machine both say the same. Entries alternate, each run is a process, and each round starts at
another entry. Written to ``results/start_speed.json`` after every run; the table comes beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import learner_speed
import report
from runner import Entry, alternate, check_installed
from train_speed import PONG_ENTRIES

Run = dict[str, Any]
Record = dict[str, Any]
KINDS = ("processor_seconds", "seconds")

LOCKSTEP, SB3, FLOOR = Entry("lockstep_train.py"), Entry("sb3_train.py", "sb3"), Entry("floors.py")
QUICK = 8
"""How many times shorter `--quick` is."""


@dataclass(frozen=True)
class Training:
    """Runs of an algorithm: by default (first and second start), eager, and those of Stable-Baselines3."""

    title: str
    planned: int
    """Steps of the whole run."""
    least: int
    """Steps of a first start, and of the shortest run."""
    steps: dict[str, int]
    """Steps of the other runs."""
    work: dict[str, Any]
    """Settings, where they differ from those of `peers/protocol.py`."""


# PPO's settings are those of `protocol.PPO`; DQN's and SAC's are the defaults of Stable-Baselines3.
TRAININGS = {
    "ppo": Training(
        "PPO CartPole, 8 environments",
        planned=5_000_000,
        least=10_240,
        steps={"second": 307_200, "eager": 153_600, "sb3": 51_200},
        work={"algorithm": "ppo"},
    ),
    "dqn": Training(
        "DQN CartPole, one environment, a gradient step every 4 steps",
        planned=1_000_000,
        least=3_000,
        steps={"second": 42_000, "eager": 22_000, "sb3": 14_000},
        work={
            "algorithm": "dqn",
            "num_envs": 1,
            "vector_steps": 4,
            "round_steps": 4,
            "updates": 1,
            "rounds_per_target": 2_500,
            "batch": 32,
            "hiddens": (64, 64),
            "lr": 1e-4,
            "capacity": 1_000_000,
            "random_steps": 100,
            # As in the last nine tenths of a run: acting without the network would be cheaper.
            "first_epsilon": 0.05,
            "measured_from": 2_000,
        },
    ),
    "sac": Training(
        "SAC Pendulum, one environment, 256x256, batch 256",
        planned=20_000,
        least=400,
        steps={"second": 1_300, "eager": 1_100, "sb3": 1_100},
        work={
            "algorithm": "sac",
            "lr": 3e-4,
            "capacity": 1_000_000,
            "random_steps": 100,
            "measured_from": 300,
        },
    ),
}
PROCESS_STEPS = 1_000_000
PONG_STEPS = 5_120
LEARNER_ROUNDS = 7
"""Its updates are short, and alternate within two processes."""
WAYS = {"second": (LOCKSTEP, None), "eager": (LOCKSTEP, False), "sb3": (SB3, False), "floor": (FLOOR, False)}
"""The entry of each way to train, and its option `compile`; None is the default."""


# -- measuring ---


class Measurement:
    """Measures the parts in turn, and adds every run to the record."""

    def __init__(self, options: argparse.Namespace, record: Record, folder: Path) -> None:
        self.options = options
        self.record = record
        self.folder = folder
        """Holds a cache folder for each algorithm: what its first start has compiled."""
        self.rounds = rounds_of(options)
        self.began = time.perf_counter()

    def training(self, part: str) -> None:
        """Measure first and second start, eager training, Stable-Baselines3 and the floor."""
        training = TRAININGS[part]
        self._trained(part, training, "first", training.least, 0)
        for number, way in alternate(list(WAYS), self.rounds):
            self._trained(part, training, way, self._steps(training.steps.get(way, 0), training.least), number)
        if part in self.options.whole:
            self._trained(part, training, "whole", training.planned, 0)

    def process(self, part: str) -> None:
        """Measure processes that train with PPO to the end, eager and from the second start with `compile=True`."""
        training, work = TRAININGS["ppo"], TRAININGS["ppo"].work
        if not (self.folder / "ppo").exists():
            self._run("process", "first", LOCKSTEP, {**work, "compile": True, "steps": training.least}, "ppo", 0)
        steps = self._steps(PROCESS_STEPS, training.least)
        for number, way in alternate(["eager", "second"], min(2, self.rounds)):
            asked = {**work, "compile": way == "second", "steps": steps}
            self._run(part, way, LOCKSTEP, asked, "ppo", number)

    def learner(self, part: str) -> None:
        """Measure the update of the learner beside RLlib's and the floor of PPO's gradient step."""
        asked = argparse.Namespace(remote=False, device="cpu", no_compile=False, timeout=300.0)
        asked.rounds = self.rounds if self.options.quick else LEARNER_ROUNDS
        found = learner_speed.measure_work("64x64", [learner_speed.RLLIB, learner_speed.LOCKSTEP], asked)
        self.record["learner"] = found
        self._run(part, "floor", FLOOR, TRAININGS["ppo"].work, "ppo", 0)

    def pong(self, part: str) -> None:
        """Measure PPO with the Nature network beside Stable-Baselines3."""
        for number, way in alternate(["eager", "sb3"], min(2, self.rounds)):
            entry = PONG_ENTRIES["lockstep" if way == "eager" else way]
            self._run(part, way, entry, {"steps": self._steps(PONG_STEPS, 3_072)}, part, number)

    def _steps(self, steps: int, least: int) -> int:
        return max(steps // QUICK, least) if self.options.quick else steps

    def _trained(self, part: str, training: Training, way: str, steps: int, number: int) -> None:
        entry, compiled = WAYS.get(way, WAYS["second"])
        asked = {**training.work, "compile": compiled, "planned": training.planned}
        if steps:
            asked["steps"] = steps
        self._run(part, way, entry, asked, part, number)

    def _run(self, part: str, way: str, entry: Entry, work: dict[str, Any], cache: str, number: int) -> None:
        """Run an entry in a process of its own, and keep what it says beside the times of the whole process."""
        words = entry.command({**work, "seed": number})
        folder = self.folder / cache
        variables = {
            "PYTHONPATH": str(report.ROOT),
            "XDG_CACHE_HOME": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/start_speed_bytecode",  # as an installed package has it
        }
        run: Run = {"part": part, "way": way, "round": number, "work": json.loads(words[2])}
        run["load_average"] = round(os.getloadavg()[0], 2)
        began, used = time.perf_counter(), processor_seconds_of_children()
        try:
            line = report.run_json(words, timeout=self.options.timeout, variables=variables)
        except report.RunFailed as error:
            line = {"error": str(error)}
        process = {"seconds": time.perf_counter() - began, "processor_seconds": processor_seconds_of_children() - used}
        run |= {"process": {kind: round(value, 2) for kind, value in process.items()}, **line}
        self.record["runs"].append(run)
        report.write(self.options.name, self.record)
        found = f"FAILED: {line['error']}" if "error" in line else told(run)
        print(f"[{time.perf_counter() - self.began:5.0f} s] {part}, round {number + 1}, {way}: {found}", flush=True)


def rounds_of(options: argparse.Namespace) -> int:
    """Return how many rounds are measured."""
    return 1 if options.quick else int(options.rounds)


def processor_seconds_of_children() -> float:
    """Return the processor's time of all ended processes that this one started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def told(run: Run) -> str:
    """Return in a few words what a run found."""
    if "rest" not in run:
        return f"{run['steps_per_s']:,.0f} steps/s"
    first, rest, process = run["first"]["seconds"], run["rest"], run["process"]["seconds"]
    rates = " and ".join(f"{rest['steps'] / rest[kind]:,.0f}" for kind in KINDS)
    return f"{rates} steps/s by processor and clock, first part {first:.1f} s, process {process:.1f} s"


PARTS: dict[str, Callable[[Measurement, str], None]] = {
    **dict.fromkeys(TRAININGS, Measurement.training),
    "process": Measurement.process,
    "learner": Measurement.learner,
    "pong": Measurement.pong,
}


def measure(options: argparse.Namespace) -> Record:
    """Measure all parts, or those asked for beside what the results have of the others."""
    check_installed([SB3, learner_speed.RLLIB])
    file = report.RESULTS / f"{options.name}.json"
    parts = options.only or list(PARTS)
    record: Record = {"machines": {}, "runs": []}
    if options.only and file.exists():
        record = json.loads(file.read_text(encoding="utf-8"))
        record["runs"] = [run for run in record["runs"] if run["part"] not in parts]
    with tempfile.TemporaryDirectory(prefix="start_speed_") as folder:
        measurement = Measurement(options, record, Path(folder))
        for part in parts:
            record["machines"][part] = {**report.machine(), "quick": options.quick, "rounds": rounds_of(options)}
            PARTS[part](measurement, part)
            report.write(options.name, record)
    return record


# -- the table ---


@dataclass(frozen=True)
class Comparison:
    """One row of the table."""

    work: str
    ours: str
    """What Lockstep does in the row, and how fast."""
    other: str
    """What it is compared with, and how fast that is."""
    ratio: str
    """Times as fast, by the processor's time: the median, and the range over rounds."""
    by_clock: str
    goal: str
    floor: str


def runs_of(record: Record, part: str, way: str) -> list[Run]:
    """Return the runs that did not fail."""
    return [run for run in record["runs"] if run["part"] == part and run["way"] == way and "error" not in run]


def seconds_of_whole(first: Run, rest: Run, planned: int, kind: str) -> float:
    """Return the seconds of a whole run: its first part, and the remaining steps at the rate of `rest`."""
    start, steady = first["first"], rest["rest"]
    return start[kind] + (planned - start["steps"]) * steady[kind] / steady["steps"]


def wholes(record: Record, part: str, way: str, kind: str) -> list[float]:
    """Return the seconds of the whole run in each round. A first start runs at the rate of the second ones."""
    planned = TRAININGS[part].planned
    if way == "first":
        starts = runs_of(record, part, "first")
        return [seconds_of_whole(starts[0], run, planned, kind) for run in runs_of(record, part, "second") if starts]
    return [seconds_of_whole(run, run, planned, kind) for run in runs_of(record, part, way)]


def compared(
    work: str,
    ours: tuple[str, Sequence[Sequence[float]]],
    other: tuple[str, Sequence[Sequence[float]]],
    goal: float | None,
    floor: str,
    shown: Callable[[float], str],
) -> Comparison:
    """Return a row from the seconds of both sides: in each round, for each of `KINDS`."""
    (our_name, our_seconds), (other_name, other_seconds) = ours, other
    ratios = [statistics.median(theirs) / statistics.median(mine) for mine, theirs in zip(our_seconds, other_seconds)]
    by_round = [theirs / mine for mine, theirs in zip(our_seconds[0], other_seconds[0])]
    reached = "" if goal is None else f"{goal:g}, {'met' if round(ratios[0], 2) >= goal else 'not met'}"
    return Comparison(
        work,
        f"{our_name}: {shown(statistics.median(our_seconds[0]))}",
        f"{other_name}: {shown(statistics.median(other_seconds[0]))}",
        f"**{ratios[0]:.2f}** ({min(by_round):.2f}-{max(by_round):.2f})",
        f"{ratios[1]:.2f}",
        reached,
        floor,
    )


def rate_of(steps: float) -> Callable[[float], str]:
    """Return a function that says seconds of so many steps as a rate."""
    return lambda seconds: f"{steps / seconds:,.0f} steps/s"


def rows_of_training(record: Record, part: str) -> Iterator[Comparison]:
    """Return the rows of a training: by default from both starts, and eager."""
    training = TRAININGS[part]
    seconds = {way: [wholes(record, part, way, kind) for kind in KINDS] for way in ("first", *WAYS) if way != "floor"}
    if not all(values[0] for values in seconds.values()):
        return
    floors = [run["steps_per_s"] for run in runs_of(record, part, "floor")]
    floor = f"{max(floors):,.0f} steps/s" if floors else ""
    sb3, eager = ("Stable-Baselines3", seconds["sb3"]), ("eager", seconds["eager"])
    shown, work = rate_of(training.planned), f"{training.title}, {training.planned:,} steps"
    goals = {"ppo": (5.0, 4.0), "dqn": (3.0, 2.0), "sac": (1.4, None)}[part]
    compiled = "compiled" if runs_of(record, part, "second")[0]["compiled"] is True else "eager"
    by_default = f"by default ({compiled})"
    yield compared(work, (f"{by_default}, second start", seconds["second"]), sb3, goals[0], floor, shown)
    yield compared(work, (f"{by_default}, first start", seconds["first"]), eager, 1.0, floor, shown)
    yield compared(work, eager, sb3, goals[1], floor, shown)


def rows_of_process(record: Record) -> Iterator[Comparison]:
    """Return the row of whole processes."""
    seconds = {
        way: [[run["process"][kind] for run in runs_of(record, "process", way)] for kind in KINDS]
        for way in ("second", "eager")
    }
    if not all(values[0] for values in seconds.values()):
        return
    steps = runs_of(record, "process", "eager")[0]["work"]["steps"]
    work = f"the same as a process, {steps:,} steps"
    second, eager = ("`compile=True`, second start", seconds["second"]), ("eager", seconds["eager"])
    floors = [run["steps_per_s"] for run in runs_of(record, "ppo", "floor")]
    floor = f"{steps / max(floors):.1f} s" if floors else ""
    yield compared(work, second, eager, 1.4, floor, lambda value: f"{value:.1f} s")


def rows_of_learner(record: Record) -> Iterator[Comparison]:
    """Return the rows of the update from episodes."""
    found, floors = record.get("learner"), runs_of(record, "learner", "floor")
    if not found:
        return

    def seconds(name: str) -> list[list[float]]:
        runs = found["runs"][name]
        return [[statistics.median(values) for values in runs[kind]] for kind in KINDS]

    rows, rllib = found["rows"], ("RLlib", seconds("rllib, episodes"))
    floor = ""
    if floors:
        alone = floors[0]["seconds"]
        steps = found["num_epochs"] * (rows // found["minibatch"])
        floor = f"{1e3 * (steps * alone['gradient_step'] + rows * alone['values']):.1f} ms"
    work = f"`update_from_episodes`, {rows:,} steps, {found['num_epochs']} epochs"
    for way, goal in (("eager", 5.0), ("compiled", 9.0)):
        ours = (way if way == "eager" else "`compile=True`", seconds(f"lockstep {way}, episodes"))
        yield compared(work, ours, rllib, goal, floor, lambda value: f"{1e3 * value:.1f} ms")


def rows_of_pong(record: Record) -> Iterator[Comparison]:
    """Return the row of Pong. The floor is the network alone and the environment alone."""
    runs = {way: runs_of(record, "pong", way) for way in ("eager", "sb3")}
    if not all(runs.values()):
        return
    seconds = {way: [[run["rest"][kind] / run["rest"]["steps"] for run in found] for kind in KINDS]
               for way, found in runs.items()}  # fmt: skip
    alone = min(sum(run["seconds_alone"].values()) / run["steps_of_update"] for run in runs["eager"])
    ours, sb3 = ("eager", seconds["eager"]), ("Stable-Baselines3", seconds["sb3"])
    work = "PPO ALE/Pong, 8 environments, Nature network"
    yield compared(work, ours, sb3, 1.6, f"{1 / alone:,.0f} steps/s", rate_of(1))


def rows_of(record: Record) -> list[Comparison]:
    """Return all rows of which there are results, in the order of the table."""
    rows = [*rows_of_training(record, "ppo"), *rows_of_process(record)]
    rows += [*rows_of_training(record, "dqn"), *rows_of_training(record, "sac")]
    return [*rows, *rows_of_learner(record), *rows_of_pong(record)]


def lines_of_wholes(record: Record) -> Iterator[str]:
    """Return what runs to the end took, beside what was computed."""
    for part, training in TRAININGS.items():
        for run in runs_of(record, part, "whole"):
            took = [run["first"][kind] + run["rest"][kind] for kind in KINDS]
            computed = [statistics.median(wholes(record, part, "second", kind)) for kind in KINDS]
            yield (
                f"- {training.title}: {training.planned:,} steps by default, second start, made to the end, took "
                f"{took[0]:.1f} s of the processor and {took[1]:.1f} s by the clock; computed {computed[0]:.1f} and "
                f"{computed[1]:.1f} s."
            )


def lines_of_machines(record: Record) -> Iterator[str]:
    """Return where and when the parts were measured; parts of one day, machine and revision share a line."""
    parts_of: dict[str, list[str]] = {}
    for part, facts in record["machines"].items():
        line = report.machine_line({**facts, "date": facts["date"][:10]}).partition("; load")[0]
        in_small = " in small (`--quick`)" if facts["quick"] else ""
        parts_of.setdefault(f"{facts['rounds']} rounds{in_small}. {line}.", []).append(part)
    for line, parts in parts_of.items():
        yield f"{', '.join(parts)}: {line}"


def render(record: Record) -> str:
    """Return the page of a record."""
    header = ["work", "Lockstep", "compared with", "times as fast", "by the clock", "goal", "floor"]
    runs = [run for run in record["runs"] if "error" not in run]
    failed = [f"{run['part']} {run['way']}" for run in record["runs"] if "error" in run]
    loads = [run["load_average"] for run in record["runs"]]
    versions = {run["name"]: run["version"] for run in runs if run["way"] != "floor"}
    versions |= record.get("learner", {}).get("versions", {})
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    torch_versions = ", ".join(sorted({run["torch"] for run in runs if "torch" in run}))
    notes = [
        "Rates, seconds and `times as fast` are by the processor's time, of the training process and of the compiler "
        "that it waits for: medians, and ratios of medians (lowest-highest of the rounds). One thread.",
        "The floor is the environment's own steps, the networks' matrix products and Adam, each timed alone in a plain "
        "loop (`benchmarks/peers/floors.py`); of Pong, the network's passes and the environment.",
        f"{len(loads)} runs, load before each {min(loads)} to {max(loads)}. {named}, PyTorch {torch_versions}.",
        *lines_of_machines(record),
    ]
    if failed:
        notes.append(f"Failed: {', '.join(failed)}.")
    table = report.table(header, [list(vars(row).values()) for row in rows_of(record)])
    parts = ["# What people start with\n", table, *lines_of_wholes(record), "", *notes]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Measure the parts, or write the page again."""
    parser = report.parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="some of the parts")
    parser.add_argument("--whole", nargs="+", choices=list(TRAININGS), default=[], help="also run these to the end")
    parser.add_argument("--quick", action="store_true", help="in small, in one round, to other files")
    parser.add_argument("--timeout", type=float, default=1_800.0, help="seconds for one run")

    def name(options: argparse.Namespace) -> str:
        return "start_speed_quick" if options.quick else "start_speed"

    return report.command(parser, name, measure, render, rounds=3)


if __name__ == "__main__":
    raise SystemExit(main())
