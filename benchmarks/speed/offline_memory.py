"""A data set larger than a memory limit, iterated in shuffled minibatches: time and resident memory.

    python benchmarks/speed/offline_memory.py [--rows 1000000] [--limit-mib 64] [--rounds 3]

Each way of reading is a process of its own. Its data segment is limited (RLIMIT_DATA) to what it holds after its
imports plus the limit, so that the system refuses more; resident memory is the highest value beyond that after the
imports (VmHWM). Ways that need more are measured again without a limit. Written to ``results/offline_memory.*``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report

SIZE = 256
SHUFFLED, ORDERED = "every row once, globally shuffled", "every row once, in order"
WAYS = {
    "rows_shuffled": ("`OfflineDataset.minibatches`", SHUFFLED),
    "rows_cold": ("the same, the file not in the system's cache", SHUFFLED),
    "rows_ordered": ("`OfflineDataset.minibatches(shuffle=False)`", ORDERED),
    "rows_in_memory": ("`OfflineDataset(max_memory_bytes=2**40).minibatches`", SHUFFLED),
    "memory_map": ("`numpy.load(mmap_mode='r')` and `take`, the same file", SHUFFLED),
    "parquet_batches": ("`parquet_batches`", ORDERED),
    "parquet_whole": ("`SampleBatch.from_parquet`, `split(shuffle=True)`", SHUFFLED),
}


def rows(count: int) -> Iterator[Any]:
    """Yield batches of a locomotion data set's shape: 522 bytes a row."""
    import numpy as np

    from lockstep.data import SampleBatch

    rng = np.random.default_rng(0)
    for start in range(0, count, 10_000):
        t = np.arange(start, min(start + 10_000, count))
        yield SampleBatch(
            obs=rng.random((len(t), 60), dtype=np.float32),
            new_obs=rng.random((len(t), 60), dtype=np.float32),
            actions=rng.random((len(t), 6), dtype=np.float32),
            rewards=rng.random(len(t)),
            terminateds=np.zeros(len(t), bool),
            truncateds=np.zeros(len(t), bool),
            t=t,
        )


def minibatches(way: str, folder: Path) -> Iterator[Any]:
    """Yield the minibatches of one pass."""
    import numpy as np

    from lockstep.data import OfflineDataset, SampleBatch, parquet_batches

    rows_file, parquet = folder / "rows.npy", folder / "rows.parquet"
    if way == "rows_cold":
        descriptor = os.open(rows_file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    if way.startswith("rows_"):
        dataset = OfflineDataset(rows_file, max_memory_bytes=2**40 if way == "rows_in_memory" else 0)
        yield from dataset.minibatches(SIZE, seed=1, shuffle=way != "rows_ordered")
    elif way == "memory_map":
        records = np.load(rows_file, mmap_mode="r")
        order = np.random.default_rng(1).permutation(len(records))
        for start in range(0, len(records), SIZE):
            part = records.take(order[start : start + SIZE])
            yield SampleBatch({name: np.array(part[name]) for name in part.dtype.names})
    elif way == "parquet_batches":
        yield from parquet_batches(parquet, SIZE)
    else:
        yield from SampleBatch.from_parquet(parquet).split(SIZE, shuffle=True, generator=1)


def bytes_of(name: str) -> int:
    """Return a line of this process's status, such as ``VmHWM``."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(name))


def child(way: str, folder: Path, limit: int) -> dict[str, Any]:
    """Measure one way, under `limit` bytes beyond what the process holds after its imports (0: no limit)."""
    import numpy as np

    for _ in minibatches(way, folder / "small"):  # whatever is imported at first use
        pass
    before = bytes_of("VmHWM")
    if limit:
        data = bytes_of("VmData") + limit
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
    count = json.loads((folder / "about.json").read_text(encoding="utf-8"))["rows"]
    seen = np.zeros(count, np.uint8)
    began, cpu = time.perf_counter(), time.process_time()
    try:
        for batch in minibatches(way, folder):
            seen[batch["t"]] += 1
    except MemoryError:
        return {"fits": False}
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if not (seen == 1).all():
        raise RuntimeError(f"{way}: a row did not come exactly once")
    return {"fits": True, "seconds": seconds, "cpu_seconds": cpu, "resident": bytes_of("VmHWM") - before}


def write_files(folder: Path, count: int) -> dict[str, Any]:
    """Write the data set as rows and as Parquet, and a small one of each beside them."""
    from lockstep.data import concat_samples, write_rows

    clock: Callable[[], float] = time.perf_counter
    began = clock()
    path = write_rows(folder / "rows", rows(count))
    seconds = clock() - began
    concat_samples(list(rows(count))).to_parquet(folder / "rows")
    (folder / "small").mkdir()
    small = next(rows(1_000))
    write_rows(folder / "small" / "rows", small)
    small.to_parquet(folder / "small" / "rows")
    (folder / "about.json").write_text(json.dumps({"rows": count}))
    parquet_bytes = (folder / "rows.parquet").stat().st_size
    return {"bytes": path.stat().st_size, "parquet_bytes": parquet_bytes, "write_seconds": seconds}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all ways in each round, in files of a temporary directory."""
    limit = options.limit_mib << 20
    record: dict[str, Any] = {"rows": options.rows, "limit": limit, "rounds": options.rounds}
    record["machine"] = report.machine()
    with tempfile.TemporaryDirectory() as name:
        record |= write_files(Path(name), options.rows)
        command = [report.lockstep_python(), __file__, "--child", name]
        record["runs"] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                run = report.run_json([*command, way, str(limit)])
                if not run["fits"]:
                    run = {**report.run_json([*command, way, "0"]), "fits": False}
                record["runs"][way].append(run)
    return record


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    lines = []
    for way, (text, order) in WAYS.items():
        runs = record["runs"][way]
        fits = "yes" if all(run["fits"] for run in runs) else "no"
        lines.append(
            [
                text,
                order,
                report.spread([record["rows"] / run["cpu_seconds"] / 1000 for run in runs]),
                report.spread([run["seconds"] for run in runs], 1),
                report.spread([run["resident"] / 2**20 for run in runs]),
                fits,
            ]
        )
    header = ["way", "what comes", "thousand rows/s of CPU", "seconds", "resident beyond imports, MiB", "in the limit"]
    return "\n".join(
        [
            "# A data set larger than a memory limit",
            "",
            f"{record['rows']:,} rows, {record['bytes'] / 1e6:,.0f} MB ({record['parquet_bytes'] / 1e6:,.0f} MB as "
            f"Parquet), minibatches of {SIZE}, limit {record['limit'] / 2**20:.0f} MiB of memory beyond the imports.",
            "",
            report.table(header, lines),
            "`in the limit`: the way ran to its end with the data segment limited by the system; where it says no it "
            "ended in a MemoryError, and its figures are those of a run without a limit. A memory map is no data "
            "segment, so that this limit does not see it: its pages stay in resident memory.",
            "",
            f"{record['rounds']} rounds: median (lowest-highest). {report.machine_line(record['machine'])}",
            "",
        ]
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        folder, way, limit = sys.argv[2:]
        print(json.dumps(child(way, Path(folder), int(limit))))
        raise SystemExit
    command = report.parser_of(__doc__)
    command.add_argument("--rows", type=int, default=1_000_000)
    command.add_argument("--limit-mib", type=int, default=64)
    raise SystemExit(report.command(command, "offline_memory", measure, render, rounds=3))
