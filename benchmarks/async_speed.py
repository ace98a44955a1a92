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
import json
import os
import statistics
from typing import Any

import report
import setup_peers

ALGORITHMS = ("impala", "appo")
SIDES = ("lockstep", "rllib")
GOAL = 3.0


def one_run(side: str, algorithm: str, options: argparse.Namespace, round_number: int) -> dict[str, Any]:
    """One process; its line with what was asked, or with ``error``."""
    python = report.lockstep_python() if side == "lockstep" else str(setup_peers.environment_python("rllib"))
    arguments = [f"benchmarks/peers/{side}_async.py", "--algorithm", algorithm, "--seed", str(round_number)]
    for name in ("seconds", "runners", "envs", "fragment", "batch"):
        arguments += [f"--{name}", str(getattr(options, name))]
    asked = {
        "side": side,
        "algorithm": algorithm,
        "round": round_number,
        "command": "python " + " ".join(arguments),
        "load_average": round(os.getloadavg()[0], 2),
    }
    try:
        return {**asked, **report.run_json([python, *arguments], timeout=options.timeout)}
    except report.RunFailed as error:
        return {**asked, "error": str(error)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the raw record is written after each run."""
    settings = {name: getattr(options, name) for name in ("rounds", "seconds", "runners", "envs", "fragment", "batch")}
    record: dict[str, Any] = {
        "work": "IMPALA and APPO, CartPole-v1",
        **settings,
        "machine": report.machine(),
        "runs": [],
    }
    report.warn_if_busy()
    entries = [(side, algorithm) for algorithm in options.algorithms for side in SIDES]
    for round_number in range(options.rounds):
        shift = round_number % len(entries)
        for side, algorithm in entries[shift:] + entries[:shift]:
            run = one_run(side, algorithm, options, round_number)
            record["runs"].append(run)
            report.write(options.name, record)
            said = f"{run['trained_per_s']:,.0f} steps/s" if "error" not in run else "FAILED: " + run["error"]
            print(f"round {round_number}: {side:9} {algorithm:7} {said}", flush=True)
    return record


def render(record: dict[str, Any]) -> str:
    """The page: medians, ranges, ratios."""
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
            for side in SIDES
        }  # fmt: skip
        ratio = ""
        if all(rates.values()):
            ratio = f"{statistics.median(rates['lockstep']) / statistics.median(rates['rllib']):.1f} (goal {GOAL:g})"
        for side in SIDES:
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


def main() -> None:
    """Measure or render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--fragment", type=int, default=50)
    parser.add_argument("--batch", type=int, default=800)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    parser.add_argument("--name", default="async_speed")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    saved = report.RESULTS / f"{options.name}.json"
    record = json.loads(saved.read_text(encoding="utf-8")) if options.render else measure(options)
    page = render(record)
    report.write(options.name, record, page)
    print(page)


if __name__ == "__main__":
    main()
