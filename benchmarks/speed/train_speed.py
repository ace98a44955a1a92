"""Whole training runs of Lockstep and its peers, alternately, each in a process of its own.

    python benchmarks/speed/train_speed.py ppo                        # CartPole-v1, 5 rounds, one thread each
    python benchmarks/speed/train_speed.py ppo --threads 1 2          # each of them with one thread and with two
    python benchmarks/speed/train_speed.py dqn --updates 40 --name dqn_cartpole_updates  # a gradient step for two steps
    python benchmarks/speed/train_speed.py sac --only lockstep sb3 --rounds 2 --name quick # Pendulum-v1; `td3` likewise
    python benchmarks/speed/train_speed.py pong --rounds 3            # PPO with the Nature network on ALE/Pong-v5
    python benchmarks/speed/train_speed.py ppo --render               # the table again, from the raw results

The settings are in ``peers/protocol.py``, the same for all libraries. A round runs every entry once with a seed of its
own. Where several thread counts were measured, an entry is compared at its faster one. ``half`` entries multiply in
bfloat16. Every run is written to ``results/<name>.json`` as soon as it ends; the table comes beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, run_rounds


def entry(script: str, peer: str | None = "cleanrl", *, own_loop: bool = False, **work: Any) -> Entry:
    """Return an entry that is compiled where its work says so."""
    return Entry(script, peer, work, compiled=work.get("compile", False), own_loop=own_loop)


LIBRARIES = {
    "lockstep": entry("lockstep_train.py", None),
    "lockstep-compiled": entry("lockstep_train.py", None, compile=True),
    "sb3": entry("sb3_train.py", "sb3"),
    "tianshou": entry("tianshou_train.py", "tianshou"),
    "rllib": entry("rllib_train.py", "rllib"),
    "torchrl": entry("torchrl_train.py", "torchrl"),
}
PPO_ENTRIES = {
    **LIBRARIES,
    "cleanrl-style": entry("cleanrl_style.py"),
    "leanrl-style": entry("leanrl_style.py"),
    "leanrl-style-compiled": entry("leanrl_style.py", compile=True),
    "own-lean": entry("cleanrl_style.py", lean=True, own_loop=True),
    "own-lean-compiled": entry("cleanrl_style.py", compile=True, own_loop=True),
}
DQN_ENTRIES = {
    **LIBRARIES,
    "cleanrl-style": entry("cleanrl_style_dqn.py"),
    "cleanrl-style-compiled": entry("cleanrl_style_dqn.py", compile=True),
}
SAC_ENTRIES = {
    **LIBRARIES,
    "lockstep-half": entry("lockstep_train.py", None, half=True),
    "lockstep-compiled-half": entry("lockstep_train.py", None, compile=True, half=True),
    "plain": entry("sac_plain.py"),
    "plain-compiled": entry("sac_plain.py", compile=True),
}
TD3_ENTRIES = {name: found for name, found in SAC_ENTRIES.items() if name != "rllib"}
PONG = {"environment": "ALE/Pong-v5", "lr": 2.5e-4, "clip": 0.1, "measured_from": 1_024}
PONG_ENTRIES = {
    name: entry(each.script, each.environment, **each.work, **PONG)
    for name, each in {**SAC_ENTRIES, **PPO_ENTRIES}.items()
    if name.startswith("lockstep") or name in ("sb3", "cleanrl-style")
}


@dataclass(frozen=True)
class Row:
    """The runs of one entry at one thread count."""

    name: str
    entry: Entry
    threads: int
    runs: list[dict[str, Any]]

    def values(self, key: str) -> list[float]:
        """Return a figure of each run that has it."""
        return [run[key] for run in self.runs if run[key] is not None]

    @property
    def compared(self) -> float:
        """The median rate that the entry is compared by."""
        return statistics.median(self.values("steady_steps_per_s" if self.entry.compiled else "steps_per_s"))


def best(rows: Sequence[Row], *, ours: bool, compiled: bool | None = None) -> Row | None:
    """Return the fastest row of Lockstep (or of the peers), eager, compiled or (None) either.

    Our own lean loop counts as a peer only where the published kind, LeanRL's, was not measured.
    """
    with_lean_peer = any(row.name.startswith("leanrl") for row in rows)
    for row in rows:
        if row.entry.is_ours == ours and compiled in (None, row.entry.compiled):
            if not (row.entry.own_loop and with_lean_peer):
                return row
    return None


def ppo_verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the ratios that the project promises, where both sides were measured, and those to our own lean loop."""
    eager, compiled = best(rows, ours=True, compiled=False), best(rows, ours=True, compiled=True)
    any_peer, eager_peer = best(rows, ours=False), best(rows, ours=False, compiled=False)
    sb3 = next((row for row in rows if row.name == "sb3"), None)
    lines = [
        f"- {ours.name} / {peer.name}: **{ours.compared / peer.compared:.2f}** (goal {goal})"
        for ours, peer, goal in ((eager, sb3, 2.5), (eager, eager_peer, 2.0), (compiled, any_peer, 3.0))
        if ours is not None and peer is not None
    ]
    for row in rows:
        ours = compiled if row.entry.compiled else eager
        if row.entry.own_loop and ours is not None and any(r.name.startswith("leanrl") for r in rows):
            lines.append(f"- {ours.name} / {row.name}: {ours.compared / row.compared:.2f} (a loop of ours, no peer)")
    return lines


def dqn_verdicts(rows: Sequence[Row]) -> list[str]:
    """Return ours over the fastest peer: eager over eager, compiled over all."""
    lines = []
    for compiled, peers in ((False, False), (True, None), (False, None)):
        ours, peer = best(rows, ours=True, compiled=compiled), best(rows, ours=False, compiled=peers)
        if ours is not None and peer is not None:
            lines.append(f"- {ours.name} / {peer.name}: {ours.compared / peer.compared:.2f}")
    return [*dict.fromkeys(lines), "", "The goal is 3 over the fastest peer."]


def ratios(rows: Sequence[Row]) -> list[str]:
    """Return ours over Stable-Baselines3, and over the fastest peer, each with as many threads."""

    def rate(row: Row) -> float:
        return statistics.median(row.values("steady_steps_per_s"))

    lines = []
    for row in rows:
        peers = {peer.name: rate(peer) for peer in rows if not peer.entry.is_ours and peer.threads == row.threads}
        if row.entry.is_ours and peers:
            for name in dict.fromkeys(["sb3", max(peers, key=peers.__getitem__)]):
                if name in peers:
                    ratio = rate(row) / peers[name]
                    lines.append(f"- {row.name} / {name}, {row.threads} thread(s) each: {ratio:.2f}")
    return lines


def pendulum_verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the ratios and their goals."""
    return [
        *ratios(rows),
        "",
        "The goals are 2 over Stable-Baselines3 in float32, and 4 with products in bfloat16. Rates are by the "
        "processor's time with one thread, by the clock with more.",
    ]


def pong_verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the ratios, the rates by the clock, and what the network and the environment take alone."""
    shares, by_clock = [], []
    for row in rows:
        clock = [run["steps"] / run["seconds_total_loop"] for run in row.runs]
        by_clock.append([row.name, report.spread(clock)])
        if row.entry.is_ours:
            shares.append(_alone(row, rows))
    floor = "floor, steps/s"
    return [
        *ratios(rows),
        "",
        "The goals are 1.6 over Stable-Baselines3 eager, and 2 with what processor and compiler offer.",
        "",
        report.table(["by the clock", "steps/s"], by_clock),
        report.table(["share of a step", "network alone", "environment alone", floor, "floor / sb3"], shares),
        "Network alone: forward and backward passes over as many frames, in batches of the same sizes, eager. Floor: a "
        "loop that does nothing but these passes and the environment's steps.",
    ]


def _alone(row: Row, rows: Sequence[Row]) -> list[str]:
    """Return Lockstep's line of the table: shares of its steps, and the rate of network and environment alone."""
    steps = row.runs[0]["steps_of_update"]
    medians = [statistics.median(run["seconds_alone"][part] for run in row.runs) for part in ("network", "environment")]
    shares = [f"{100 * seconds * row.compared / steps:.0f} %" for seconds in medians]
    floor = steps / sum(medians)
    sb3 = next((peer for peer in rows if peer.name == "sb3" and peer.threads == row.threads), None)
    return [row.name, *shares, f"{floor:,.0f}", "" if sb3 is None else f"{floor / sb3.compared:.2f}"]


WARM = (
    "`steady` leaves out the first five updates; compiled entries are compared by it, eager ones by the whole loop. "
    "`return` is the mean of the last 20 training episodes (median over rounds)."
)
WARM_PENDULUM = (
    "Both rates leave out the first 600 steps (500 without gradient steps). `return` is the mean of the last 5 "
    "training episodes (median over rounds)."
)
WARM_PONG = (
    "Steps in a second of the processor's time, without the first update and its rollout. `return` is the mean of the "
    "last 20 training episodes (median over rounds)."
)
PPO_WORK = "4 epochs, minibatch 256, two 64x64 networks"


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how its page reads."""

    algorithm: str
    name: str
    """of the files in benchmarks/results"""
    title: str
    about: str
    """the work in words"""
    steps: int
    entries: Mapping[str, Entry]
    verdicts: Callable[[Sequence[Row]], list[str]]
    """lines under the table: the ratios that the project promises"""
    columns: str = WARM


def pendulum(algorithm: str, entries: Mapping[str, Entry]) -> Comparison:
    """Return SAC's comparison or TD3's."""
    name = algorithm.upper()
    about = f"{name}, Pendulum-v1, a gradient step on 256 rows for each step, networks of 256 x 256"
    title, files = f"{name} on Pendulum-v1", f"{algorithm}_pendulum"
    return Comparison(algorithm, files, title, about, 3_000, entries, pendulum_verdicts, WARM_PENDULUM)


COMPARISONS = {
    "ppo": Comparison("ppo", "ppo_cartpole", "PPO on CartPole-v1",
                      f"PPO, CartPole-v1, 8 environments x 128 steps, {PPO_WORK}", 65_536, PPO_ENTRIES, ppo_verdicts),
    "dqn": Comparison("dqn", "dqn_cartpole", "DQN on CartPole-v1",
                      "DQN, CartPole-v1, 8 environments x 10 steps and then gradient steps on 128 rows, network of 120 "
                      "and 84 units", 51_200, DQN_ENTRIES, dqn_verdicts),
    "sac": pendulum("sac", SAC_ENTRIES),
    "td3": pendulum("td3", TD3_ENTRIES),
    "pong": Comparison("ppo", "ppo_pong", "PPO on ALE/Pong-v5",
                       "PPO, ALE/Pong-v5 (84 x 84, grey, four frames, sticky actions), 8 environments x 128 steps, 4 "
                       "epochs, minibatch 256, the network of Mnih et al. 2015", 8_192, PONG_ENTRIES, pong_verdicts,
                       WARM_PONG),
}  # fmt: skip


def tell(line: dict[str, Any]) -> str:
    """Return what a run found in a few words."""
    rates = f"{line['steps_per_s']:9,.0f} steps/s, steady {line['steady_steps_per_s']:9,.0f}"
    return f"{rates}, return {line['final_return']}"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of the entries that are installed."""
    comparison = COMPARISONS[options.work]
    steps = options.steps or comparison.steps
    asked = {"updates": options.updates} if options.work == "dqn" else {}
    record: dict[str, Any] = {
        "comparison": options.work,
        "work": comparison.about,
        "steps": steps,
        "rounds": options.rounds,
        "options": {f"--{name}": value for name, value in asked.items()},
        "machine": report.machine(),
    }
    work, variants = {"algorithm": comparison.algorithm, **asked, "steps": steps}, []
    for name in options.only or comparison.entries:
        if name not in comparison.entries:
            raise SystemExit(f"no entry {name!r}; the entries of {options.work} are {', '.join(comparison.entries)}")
        entry = comparison.entries[name]
        if entry.missing:
            print(f"left out: {name} ({entry.missing})", file=sys.stderr)
            continue
        variants += [
            ({"entry": name, "asked_threads": threads}, entry, {**work, "threads": threads})
            for threads in options.threads
        ]
    if not variants:
        raise SystemExit("nothing to measure")
    return run_rounds(options.name, record, variants, options, tell)


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record, the fastest entry first; the foot tells of failed runs."""
    comparison = COMPARISONS[record.get("comparison") or record["work"].partition(",")[0].lower()]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if "error" not in run:
            groups.setdefault((run["entry"], run["asked_threads"]), []).append(run)
    rows = [Row(name, comparison.entries[name], threads, runs) for (name, threads), runs in groups.items()]
    rows.sort(key=lambda row: -row.compared)
    fastest = best(rows, ours=False)
    lines = []
    for row in rows:
        ratio = f"{row.compared / fastest.compared:.2f}" if fastest else "-"
        returns = row.values("final_return")
        rates = [report.spread(row.values(key)) for key in ("steps_per_s", "steady_steps_per_s")]
        middle = f"{statistics.median(returns):.0f}" if returns else "-"
        lines.append([row.name, row.runs[0]["version"], str(row.threads), *rates, ratio, middle])
    header = ["entry", "version", "threads", "steps/s, whole loop", "steps/s, steady", "x fastest peer", "return"]
    asked = "".join(f"; {option} {value}" for option, value in record.get("options", {}).items())
    failed = [run for run in record["runs"] if "error" in run]
    torch_versions = sorted({run["torch"] for run in record["runs"] if "torch" in run})
    notes = [
        f"{record['work']}{asked}; {record['steps']:,} steps, {record['rounds']} rounds: median (lowest-highest).",
        comparison.columns,
        f"PyTorch {', '.join(torch_versions)}. {report.machine_line(record['machine'])}",
    ]
    if failed:
        notes.append(f"{len(failed)} run(s) failed: {', '.join(sorted({run['entry'] for run in failed}))}.")
    if "note" in record:
        notes.append(record["note"])
    head = [f"# {comparison.title}", "", report.table(header, lines)]
    return "\n".join([*head, *comparison.verdicts(rows), "", *notes, ""])


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("work", choices=list(COMPARISONS))
    command.add_argument("--steps", type=int, help="of each run")
    command.add_argument("--threads", type=int, nargs="+", default=[1], help="thread counts, for example: 1 2")
    command.add_argument("--only", nargs="+", help="some of the entries")
    command.add_argument("--updates", type=int, default=8, help="of DQN, after each 80 environment steps (default 8)")
    command.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    raise SystemExit(report.command(command, lambda options: COMPARISONS[options.work].name, measure, render, rounds=5))
