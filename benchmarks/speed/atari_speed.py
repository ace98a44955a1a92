"""ale-py's vector environment and EnvPool behind the boundary: processor time of a step of Atari.

    taskset -c 0 python benchmarks/speed/atari_speed.py          # about one minute

Eight games of Pong in the profile of `lockstep/envs/atari.py`, random actions, one thread. What is measured is the time
of the process on its core, of all its threads: a machine that others use does not change it much. All are measured in
turn, each time in a process of its own. Written to ``results/atari_speed.json`` (every run) and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report

NUM_ENVS, STEPS = 8, 500
MODES = {"vector": "ale-py `AtariVectorEnv`", "envpool": "EnvPool", "sync": "single games in a loop"}


def measure_one(mode: str) -> dict[str, Any]:
    """Return microseconds of an environment step, of the processor and of the clock."""
    import numpy as np

    from lockstep.envs import make_vector

    config = {} if mode == "sync" else {"num_threads": 1}
    envs = make_vector("ALE/Pong-v5", num_envs=NUM_ENVS, mode=mode, env_config=config, seed=0)
    actions = np.random.default_rng(0).integers(6, size=(STEPS + 50, NUM_ENVS))
    for each in actions[:50]:
        envs.step(each)
    cpu, wall = time.process_time(), time.perf_counter()
    for each in actions[50:]:
        envs.step(each)
    number = STEPS * NUM_ENVS / 1e6
    return {"cpu_us": (time.process_time() - cpu) / number, "wall_us": (time.perf_counter() - wall) / number}


def main() -> None:
    """Measure all in turn, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=MODES, help="measure one, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one)))
        return
    record: dict[str, Any] = {"machine": report.machine(), "revision": report.revision(), "runs": {}}
    for _ in range(options.rounds):
        for mode in MODES:
            found = report.run_json([sys.executable, __file__, "--one", mode])
            record["runs"].setdefault(mode, []).append(found)
    rows = []
    for mode, runs in record["runs"].items():
        cpu = [run["cpu_us"] for run in runs]
        rows.append([MODES[mode], f"{statistics.median(cpu):.0f}", f"{min(cpu):.0f} to {max(cpu):.0f}"])
    header = ["8 games of Pong", "processor time of a step, microseconds (median)", f"{options.rounds} runs"]
    lines = ["# Atari's back ends", "", report.machine_line(record["machine"]), "", report.table(header, rows)]
    report.write("atari_speed", record, "\n".join(lines))


if __name__ == "__main__":
    main()
