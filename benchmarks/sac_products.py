"""What an update of SAC or TD3 costs at the least: its products of 256 x 256 matrices alone, in float32 and bfloat16.

    python benchmarks/sac_products.py [--rounds 200]

One thread, batch 256, layers of 256 units. A product counts once for a forward pass of one network, once for the
gradient of its inputs and once for that of its weights. SAC: policy at both observations, two critics and two target
critics forward (6), two critics' gradients (4), two critics at the policy's action, forward and down to it (4), the
policy's gradient (2). TD3 in the mean of two steps: 9, and the policy's 5 in every second one.

Twice: on the same matrices again and again, which stay in the core's own cache (1 MiB here; one product in float32
touches 0.75), and on 32 sets of matrices in turn, as in an update, where each product finds others. What an update can
reach lies between the two. Written to ``results/sac_products.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import report

PRODUCTS = {"SAC": 16.0, "TD3": 9 + 5 / 2}
SIZE = 256
SETS = {"": 1, ", other matrices each time": 32}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the processor's microseconds for one product, the kinds in turn."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    torch.set_num_threads(1)
    record: dict[str, Any] = {"rounds": options.rounds, "machine": report.machine(), "torch": torch.__version__}
    matrices = {
        dtype + which: torch.randn(3 * number, SIZE, SIZE).to(getattr(torch, dtype)).unbind()
        for dtype in ("float32", "bfloat16")
        for which, number in SETS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in matrices}
    for _ in range(options.rounds):
        for name, pool in matrices.items():
            torch.mm(pool[0], pool[1], out=pool[2])
            began = time.process_time()
            for k in range(32):
                a, b, out = pool[3 * k % len(pool) :][:3]
                torch.mm(a, b, out=out)
            seconds[name].append((time.process_time() - began) / 32 * 1e6)
    record["microseconds"] = {
        name: {"lowest": round(min(values), 1), "median": round(statistics.median(values), 1)}
        for name, values in seconds.items()
    }
    return record


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    rows = []
    for name, found in record["microseconds"].items():
        cells = [f"{count * found[kind] / 1e3:.2f}" for count in PRODUCTS.values() for kind in ("lowest", "median")]
        rows.append([name, f"{found['lowest']:.0f}", f"{2 * SIZE**3 / found['lowest'] / 1e3:.0f}", *cells])
    header = ["products in", "us each, lowest", "GFLOP/s"]
    header += [f"{algorithm}, ms, {kind}" for algorithm in PRODUCTS for kind in ("lowest", "median")]
    return "\n".join(
        [
            "# The products of an update of SAC and TD3 alone",
            "",
            report.table(header, rows),
            f"{record['rounds']} rounds of 32 products, one thread. PyTorch {record['torch']}. "
            f"{report.machine_line(record['machine'])}",
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(report.command(report.parser_of(__doc__), "sac_products", measure, render, rounds=200))
