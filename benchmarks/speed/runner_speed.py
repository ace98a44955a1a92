"""Two env runners in Ray actors beside RLlib's: publishing weights, sampling, whole iterations of PPO.

    python benchmarks/peers/setup_peers.py rllib
    python benchmarks/speed/runner_speed.py                             # about ten minutes
    python benchmarks/speed/runner_speed.py --works 64x64 --rounds 9
    python benchmarks/speed/runner_speed.py --render                    # the page again, from the raw results

CartPole-v1, 2 runners of 8 environments, 128 steps of each for one sample; one learner in the driver's process; one
thread everywhere. "publish": from weights in the learner until both runners act with them (what acting needs, so
without the value network). "sample": from the request until 2,048 steps lie in the driver, ready to be learned from
(ours publishes the weights within it). "iteration": sample, 4 passes over minibatches of 256, publish. Both sides live
in processes of their own, each with its own Ray, for the whole run; a round asks every entry in turn. Written to
``results/<name>.json`` (every call) and ``.md``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, ask_rounds, check_installed

sys.path.insert(0, str(report.HERE / "peers"))

from runner_work import BATCH

GOALS = {"64x64": 3.0, "0.1 MB": 3.0, "1 MB": 1.0, "10 MB": 1.0, "100 MB": 1.0}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of each network."""
    entries = [Entry("runners_lockstep.py")]
    if not options.no_peer:
        entries.insert(0, Entry("runners_rllib.py", "rllib"))
    check_installed(entries)
    record: dict[str, Any] = {"machine": report.machine(), "works": {}}
    for work in options.works:
        found = ask_rounds(entries, {"work": work}, options, lambda _: 5)
        record["works"][work] = {
            "num_bytes": {name: facts["num_bytes"] for name, facts in found["facts"].items()},
            "versions": found["versions"],
            "torch": found["torch"],
            "runs": {name: seconds["seconds"] for name, seconds in found["runs"].items()},
        }
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page."""
    lines = ["# Env runners in Ray actors", "", report.machine_line(record["machine"]), ""]
    rows = []
    for work, part in record["works"].items():
        middle = {
            name: statistics.median([value for values in found for value in values])
            for name, found in part["runs"].items()
        }
        for name, seconds in middle.items():
            side, entry = name.split(", ")
            rate = "" if entry == "publish" else f"{BATCH / seconds:,.0f}"
            ratio = ""
            if side == "lockstep" and f"rllib, {entry}" in middle:
                pairs = zip(part["runs"][f"rllib, {entry}"], part["runs"][name])
                by_round = [statistics.median(a) / statistics.median(b) for a, b in pairs]
                whole = middle[f"rllib, {entry}"] / seconds
                ratio = f"**{whole:.2f}** ({min(by_round):.2f}-{max(by_round):.2f}; goal {GOALS[work]:g})"
            size = f"{part['num_bytes'][side] / 1e6:.2f}"
            rows.append([work, entry, side, size, f"{1e3 * seconds:.2f}", rate, ratio])
    header = ["network", "what", "side", "MB of weights", "ms (median)", "steps/s", "x RLlib (by round)"]
    return "\n".join([*lines, report.table(header, rows), ""])


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--works", nargs="+", choices=list(GOALS), default=list(GOALS))
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    command.add_argument("--no-peer", action="store_true", help="only our side")
    raise SystemExit(report.command(command, "runner_speed", measure, render, rounds=7))
