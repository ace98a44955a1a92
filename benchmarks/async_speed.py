"""IMPALA and APPO with env runners in processes of their own, beside RLlib's: steps trained per second.

    python benchmarks/setup_peers.py rllib
    python benchmarks/async_speed.py                          # 3 rounds, about eight minutes
    python benchmarks/async_speed.py --rounds 5 --seconds 30 --runners 2 --envs 16
    python benchmarks/async_speed.py --render                 # the page again, from the raw results

CartPole-v1, two 64x64 networks, the learner in the driver's process, one thread each. A round runs every entry once, in
a process of its own; each round starts at another entry. The first update and the five seconds after it come before the
clock. RLlib's count of trained steps has one more for each piece of an episode (its bootstrap row). Written to
``results/<name>.json`` (every run) and ``.md``.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import report
from runner import Entry, check_installed, run_rounds

ALGORITHMS = ("impala", "appo")
ENTRIES = {"lockstep": Entry("lockstep_train.py"), "rllib": Entry("rllib_train.py", "rllib")}
GOAL = 3.0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of both sides."""
    check_installed(list(ENTRIES.values()))
    settings = {name: getattr(options, name) for name in ("rounds", "seconds", "runners", "envs", "fragment", "batch")}
    record: dict[str, Any] = {"work": "IMPALA and APPO, CartPole-v1", **settings, "machine": report.machine()}
    work = {name: settings[name] for name in ("seconds", "runners", "fragment", "batch")}
    variants = [
        ({"side": side, "algorithm": algorithm}, entry, {**work, "algorithm": algorithm, "num_envs": options.envs})
        for algorithm in options.algorithms
        for side, entry in ENTRIES.items()
    ]
    return run_rounds(
        options.name, record, variants, options, lambda line: f"{line['trained_per_s']:,.0f} steps trained per second"
    )


def render(record: dict[str, Any]) -> str:
    """Return the page: medians, ranges, ratios."""
    lines = [
        "# Asynchronous throughput",
        "",
        f"CartPole-v1, {record['runners']} env runners of {record['envs']} environments, fragments of "
        f"{record['fragment']} steps, train batches of {record['batch']}, one gradient step each. "
        f"{record['rounds']} rounds of {record['seconds']:g} s. Command: `python benchmarks/async_speed.py`.",
        "",
        "| | steps trained per second | slowest and fastest round | Lockstep / RLlib |",
        "|---|---|---|---|",
    ]
    for algorithm in dict.fromkeys(run["algorithm"] for run in record["runs"]):
        rates = {
            side: [r["trained_per_s"] for r in record["runs"] if (r["side"], r["algorithm"]) == (side, algorithm)
                   and "error" not in r]
            for side in ENTRIES
        }  # fmt: skip
        ratio = ""
        if all(rates.values()):
            ratio = f"{statistics.median(rates['lockstep']) / statistics.median(rates['rllib']):.1f} (goal {GOAL:g})"
        for side in ENTRIES:
            if rates[side]:
                low, middle, high = min(rates[side]), statistics.median(rates[side]), max(rates[side])
                said = ratio if side == "lockstep" else ""
                lines.append(f"| {side}, {algorithm} | {middle:,.0f} | {low:,.0f} - {high:,.0f} | {said} |")
    lags = [run["lag"] for run in record["runs"] if "lag" in run]
    if lags:
        lines += ["", f"Lockstep's policies that acted were {min(lags):g} to {max(lags):g} updates old at the end."]
    failed = [run for run in record["runs"] if "error" in run]
    lines += ["", *(f"- failed: {run['command']}: {run['error']}" for run in failed)] if failed else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    command.add_argument("--seconds", type=float, default=20.0)
    command.add_argument("--runners", type=int, default=2)
    command.add_argument("--envs", type=int, default=8)
    command.add_argument("--fragment", type=int, default=50)
    command.add_argument("--batch", type=int, default=800)
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    raise SystemExit(report.command(command, "async_speed", measure, render, rounds=3))
