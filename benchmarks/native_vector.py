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
import statistics
from typing import Any

import report
from runner import Entry, run_rounds
from training_comparison import tell

STAGES = ("environment", "acting", "other_collecting", "update", "rest")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds, the variants alternately."""
    record: dict[str, Any] = {
        "work": f"PPO, CartPole-v1, {options.num_envs} native environments x 128 steps, 4 epochs, two 64x64 networks",
        "steps": options.steps,
        "rounds": options.rounds,
        "machine": report.machine(),
    }
    work = {"algorithm": "ppo", "native": True, "steps": options.steps, "num_envs": options.num_envs}
    variants = []
    for rows in options.minibatch:
        for compiled in (False,) if options.eager else (False, True):
            name = "lockstep, native vector" + ", compiled" * compiled
            facts = {"entry": name, "asked_minibatch": rows}
            variants.append((facts, Entry("lockstep_train.py"), {**work, "minibatch": rows, "compile": compiled}))
    return run_rounds(options.name, record, variants, options, tell)


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if "error" not in run:
            groups.setdefault((run.get("entry", run["name"]), run["minibatch"]), []).append(run)
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


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--steps", type=int, default=262_144)
    command.add_argument("--num-envs", type=int, default=64)
    command.add_argument("--minibatch", type=int, nargs="+", default=[256, 2048])
    command.add_argument("--eager", action="store_true", help="leave out the compiled entries")
    command.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    raise SystemExit(report.command(command, "native_vector", measure, render, rounds=5))
