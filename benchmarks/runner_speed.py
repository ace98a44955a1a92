"""Two env runners in Ray actors beside RLlib's: publishing weights, sampling, whole iterations of PPO.

    python benchmarks/setup_peers.py rllib
    python benchmarks/runner_speed.py                             # about ten minutes
    python benchmarks/runner_speed.py --works 64x64 --rounds 9
    python benchmarks/runner_speed.py --render                    # the page again, from the raw results

CartPole-v1, 2 runners of 8 environments, 128 steps of each for one sample; one learner in the driver's process; one
thread everywhere. "publish": from weights in the learner until both runners act with them (what acting needs, so
without the value network). "sample": from the request until 2,048 steps lie in the driver, ready to be learned from
(ours publishes the weights within it). "iteration": sample, 4 passes over minibatches of 256, publish. Both sides live
in processes of their own, each with its own Ray, for the whole run; a round asks every entry in turn. Written to
``results/<name>.json`` (every call) and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import learner_speed as ls
import report
import setup_peers

sys.path.insert(0, str(report.HERE / "peers"))

import runner_work as w

GOALS = {"64x64": 3.0, "0.1 MB": 3.0, "1 MB": 1.0, "10 MB": 1.0, "100 MB": 1.0}


def measure(work: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one network."""
    began, workers = time.perf_counter(), list[ls.Worker]()
    sides = [(report.lockstep_python(), "runners_lockstep.py")]
    if not options.no_peer:
        sides.insert(0, (str(setup_peers.environment_python("rllib")), "runners_rllib.py"))
    try:
        for python, script in sides:
            workers.append(ls.Worker(python, script, ["--work", work], options.timeout))
        entries = [(entry, worker) for worker in workers for entry in worker.facts["entries"]]
        for entry, worker in entries:
            worker.ask(entry=entry, times=2)
        runs: dict[str, list[list[float]]] = {f"{worker.facts['name']}, {entry}": [] for entry, worker in entries}
        for number in range(options.rounds):
            shift = number * len(entries) // options.rounds
            for entry, worker in entries[shift:] + entries[:shift]:
                seconds = worker.ask(entry=entry, times=5)["seconds"]
                runs[f"{worker.facts['name']}, {entry}"].append([round(value, 6) for value in seconds])
            ls.said(began, f"{work}: round {number + 1} of {options.rounds}")
    finally:
        for worker in workers:
            worker.close()
    facts = {worker.facts["name"]: worker.facts for worker in workers}
    return {
        "num_bytes": {name: found["num_bytes"] for name, found in facts.items()},
        "versions": {name: found["version"] for name, found in facts.items()},
        "torch": workers[-1].facts["torch"],
        "runs": runs,
    }


def render(record: dict[str, Any]) -> str:
    """The page."""
    lines = ["# Env runners in Ray actors", "", report.machine_line(record["machine"]), ""]
    rows = []
    for work, part in record["works"].items():
        middle = {
            name: statistics.median([value for values in found for value in values])
            for name, found in part["runs"].items()
        }
        for name, seconds in middle.items():
            side, entry = name.split(", ")
            rate = "" if entry == "publish" else f"{w.BATCH / seconds:,.0f}"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(w.HIDDENS), default=list(w.HIDDENS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    parser.add_argument("--name", default="runner_speed")
    parser.add_argument("--no-peer", action="store_true", help="only our side")
    parser.add_argument("--render", action="store_true", help="write the page again from the raw results")
    options = parser.parse_args()
    if options.render:
        record = json.loads((report.HERE / "results" / f"{options.name}.json").read_text())
    else:
        report.warn_if_busy()
        record = {"command": " ".join(["python", *sys.argv]), "machine": report.machine()}
        record["works"] = {work: measure(work, options) for work in options.works}
    report.write(options.name, record, render(record))
    print(render(record))


if __name__ == "__main__":
    main()
