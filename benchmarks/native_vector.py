"""Lockstep's PPO on gymnasium's native CartPole vector: the rate, and where the time goes.

    python benchmarks/native_vector.py                        # 64 environments, minibatches of 256 and of 2048
    python benchmarks/native_vector.py --minibatch 256 --eager --rounds 3
    python benchmarks/native_vector.py --render

The setting is that of ``ppo_cartpole.py`` but for the number of environments; an update has 64 x 128 rows. The
environment's own rate (random actions, nothing else) is measured in the same processes, raw and behind Lockstep's
boundary. Written to ``results/<name>.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import report

SCRIPT = "benchmarks/peers/lockstep_native.py"
STAGES = ("environment", "acting", "other_collecting", "update", "rest")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds, the variants alternately."""
    report.warn_if_busy()
    record: dict[str, Any] = {
        "work": f"PPO, CartPole-v1, {options.num_envs} native environments x 128 steps, 4 epochs, two 64x64 networks",
        "steps": options.steps,
        "rounds": options.rounds,
        "machine": report.machine(),
        "runs": [],
    }
    modes = [[]] if options.eager else [[], ["--compile"]]
    variants = [[*mode, "--minibatch", str(rows)] for rows in options.minibatch for mode in modes]
    began, total = time.perf_counter(), options.rounds * len(variants)
    for round_number in range(options.rounds):
        for variant in variants if round_number % 2 == 0 else variants[::-1]:
            arguments = [SCRIPT, "--steps", str(options.steps), "--num-envs", str(options.num_envs), *variant]
            arguments += ["--seed", str(round_number)]
            asked = {"round": round_number, "command": "python " + " ".join(arguments)}
            try:
                line = report.run_json([report.lockstep_python(), *arguments], threads=1)
            except report.RunFailed as error:
                line = {"error": str(error)}
            record["runs"].append({**asked, **line})
            report.write(options.name, record)
            done = len(record["runs"])
            left = (time.perf_counter() - began) / done * (total - done)
            said = (
                "FAILED: " + line["error"] if "error" in line else f"steady {line['steady_steps_per_s']:,.0f} steps/s"
            )
            print(f"[{done:2}/{total}] {' '.join(variant):30} {said}  ({left:.0f} s left)", flush=True)
    return record


def render(record: dict[str, Any]) -> str:
    """The markdown page of a record."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if "error" not in run:
            groups.setdefault((run["name"], run["minibatch"]), []).append(run)
    lines = []
    for (name, minibatch), runs in sorted(groups.items(), key=lambda item: item[0][::-1]):
        seconds = {stage: sum(run["seconds"][stage] for run in runs) for stage in STAGES}
        shares = [f"{100 * seconds[stage] / sum(seconds.values()):.0f} %" for stage in STAGES]
        rates = [report.spread([run[key] for run in runs]) for key in ("steps_per_s", "steady_steps_per_s")]
        returns = [run["final_return"] for run in runs if run["final_return"] is not None]
        middle = f"{statistics.median(returns):.0f}" if returns else "-"
        lines.append([name, str(minibatch), *rates, *shares, middle])
    header = ["entry", "minibatch", "steps/s, whole loop", "steps/s, steady"]
    header += ["environment", "acting", "other collecting", "update", "rest", "return"]
    good = [run for runs in groups.values() for run in runs]
    notes = []
    if good:
        alone = report.spread([run["environment_steps_per_s"] for run in good])
        behind = report.spread([run["boundary_steps_per_s"] for run in good])
        notes += [
            f"The environment alone: {alone} steps/s; behind Lockstep's boundary: {behind} steps/s.",
            "",
            f"{record['work']}; {record['steps']:,} steps, {record['rounds']} rounds: median (lowest-highest), one "
            "thread; shares are of the whole loop (a compiled entry's update includes compiling), `steady` leaves "
            f"out the first five updates. PyTorch {good[0]['torch']}. {report.machine_line(record['machine'])}",
        ]
    if failed := len(record["runs"]) - len(good):
        notes.append(f"{failed} run(s) failed; see the raw results.")
    return "\n".join(["# 64 native vector environments", "", report.table(header, lines), *notes, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Lockstep's PPO on native vector environments.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=262_144)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--minibatch", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--eager", action="store_true", help="leave out the compiled entries")
    parser.add_argument("--name", default="native_vector", help="name of the files in benchmarks/results")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    options = parser.parse_args()
    if options.render:
        record = json.loads((report.RESULTS / f"{options.name}.json").read_text(encoding="utf-8"))
    else:
        record = measure(options)
    text = render(record)
    report.write(options.name, record, text)
    print("\n" + text)
    return 1 if any("error" in run for run in record["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
