"""How long a checkpoint of a large replay buffer stalls training, and how long it takes to go on from it.

    python benchmarks/replay_checkpoint.py                    # 1,000,000 transitions, as of CartPole and HalfCheetah
    python benchmarks/replay_checkpoint.py --render

"first": nothing of the buffer is on the disk yet; "later": 10,000 transitions after the one before. Both are whole
calls of ``write_checkpoint`` with everything synced to the disk. "resume": a new buffer, the files read, checked by
SHA-256 and taken in. Written to ``results/replay_checkpoint.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

from lockstep.replay import ReplayBuffer
from lockstep.state import read_checkpoint, write_checkpoint

ROWS, LATER, ENVS, CHUNK = 1_000_000, 10_000, 8, 20_000
Rows = Callable[[int], dict[str, Any]]


def vectors(obs_size: int, action_size: int) -> Rows:
    """Return the rows of float32 observations."""
    rng = np.random.default_rng(0)

    def make(number: int) -> dict[str, Any]:
        return {
            "obs": rng.random((number, obs_size), dtype=np.float32),
            "actions": rng.random((number, action_size), dtype=np.float32),
            "rewards": rng.random(number, dtype=np.float32),
            "terminateds": rng.random(number) < 0.01,
            "truncateds": np.zeros(number, bool),
            "new_obs": rng.random((number, obs_size), dtype=np.float32),
        }

    return make


CASES: dict[str, tuple[Rows, dict[str, Any]]] = {
    "CartPole": (vectors(4, 1), {}),
    "HalfCheetah": (vectors(17, 6), {}),
    "HalfCheetah, prioritised": (vectors(17, 6), {"priorities": {}}),
}


def fill(buffer: ReplayBuffer, make: Rows, number: int) -> None:
    """Add so many rows, spread over the sub-buffers."""
    for start in range(0, number, CHUNK):
        buffer.extend(make(min(CHUNK, number - start)))


def measure(make: Rows, options: dict[str, Any], place: Path) -> dict[str, float]:
    """Measure the seconds of one buffer's checkpoints, and its size."""
    buffer = ReplayBuffer(ROWS, buffer_num=ENVS, **options)
    fill(buffer, make, ROWS)
    found: dict[str, float] = {"megabytes": buffer.nbytes() / 1e6, "rows": len(buffer)}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = function()
        found[name] = time.perf_counter() - began
        return result

    timed("first", lambda: write_checkpoint(place / "0", {"replay": buffer.checkpoint_state()}))
    for number in (1, 2, 3):
        fill(buffer, make, LATER)
        path = timed(
            f"later_{number}", lambda n=number: write_checkpoint(place / str(n), {"replay": buffer.checkpoint_state()})
        )
    found["later"] = max(found.pop(f"later_{number}") for number in (1, 2, 3))
    expected = buffer.sample(64)
    again = ReplayBuffer(ROWS, buffer_num=ENVS, **options)
    timed("resume", lambda: again.set_state(read_checkpoint(path / "replay")[""]))
    drawn = again.sample(64)
    if any(np.any(drawn[name] != expected[name]) for name in expected):
        raise RuntimeError("the buffer that was read draws something else")
    found["peak_gigabytes_of_the_process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def render(record: dict[str, Any]) -> str:
    """Return the table."""
    rows = [
        [name, f"{f['megabytes']:,.0f} MB", *(f"{f[key]:.2f} s" for key in ("first", "later", "resume"))]
        for name, f in record["cases"].items()
    ]
    head = f"# Checkpoints of a replay buffer of {ROWS:,} transitions\n\n"
    command = "`python benchmarks/replay_checkpoint.py`\n\n"
    note = (
        f'\n"Later": {LATER:,} transitions after the checkpoint before, the slowest of three. Pieces of which nothing '
        'changed are hard links to the file of the checkpoint before. "Resume" reads and checks everything.\n\n'
    )
    columns = ["data", "columns", "first checkpoint", "later", "resume"]
    return head + command + report.table(columns, rows) + note + report.machine_line(record["machine"]) + "\n"


def measure_cases(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cases."""
    record: dict[str, Any] = {"machine": report.machine(), "cases": {}}
    for name, (make, settings) in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            record["cases"][name] = measure(make, settings, Path(place))
        print(name, {key: round(value, 3) for key, value in record["cases"][name].items()}, flush=True)
    return record


if __name__ == "__main__":
    raise SystemExit(report.command(report.parser_of(__doc__), "replay_checkpoint", measure_cases, render))
