"""The learner beside RLlib's and beside loops written by hand: PPO updates on one rollout, one thread each.

    python benchmarks/setup_peers.py rllib
    python benchmarks/learner_speed.py                            # all networks, about five minutes
    python benchmarks/learner_speed.py --works 64x64 --rounds 9
    python benchmarks/learner_speed.py --device cuda --name learner_speed_cuda
    python benchmarks/learner_speed.py --render                   # the page again, from the raw results

Both sides live in processes of their own for the whole run; a round asks every entry for some updates in turn, and each
round starts at another entry. Building, compiling and two updates of each entry come before the clock. Written to
``results/<name>.json`` (every update) and ``.md`` (medians, their ratios, milliseconds by stage).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import report
import setup_peers

sys.path.insert(0, str(report.HERE / "peers"))

import learner_work as w

STAGE_UPDATES = 5
GOALS = (
    ("rllib, episodes", "lockstep eager, episodes", 3.0),
    ("rllib, episodes", "lockstep eager, rollout", 3.0),
    ("rllib, batch", "lockstep eager, batch", 3.0),
    ("rllib, episodes", "lockstep compiled, episodes", 6.0),
    ("rllib, episodes", "lockstep compiled, rollout", 6.0),
    ("rllib, batch", "lockstep compiled, batch", 6.0),
)
OVERHEADS = ("by hand, plain torch", "by hand, same operations")
OVERHEAD_GOAL = 1.10


class Worker:
    """A process that builds its entries and measures them when asked."""

    def __init__(self, python: str, script: str, arguments: list[str], timeout: float) -> None:
        environment = {**report.thread_environment(1), "PYTHONPATH": str(report.ROOT)}
        self.timeout, self.errors = timeout, tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            [python, f"benchmarks/peers/{script}", *arguments],
            cwd=report.ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.facts = self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request; the answer, or `RunFailed`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise report.RunFailed(self._last_words()) from None
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        alarm = threading.Timer(self.timeout, self.process.kill)
        alarm.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return dict(json.loads(line))
        finally:
            alarm.cancel()
        raise report.RunFailed(self._last_words())

    def _last_words(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        done = subprocess.CompletedProcess([], code, "", self.errors.read())
        return f"exit status {code} (killed after {self.timeout:.0f} s if -9): {report.last_words(done)}"


def start_workers(options: argparse.Namespace, work: str, rollout: Path) -> list[Worker]:
    """RLlib's (where it is installed) and ours."""
    arguments = ["--work", work, "--rollout", str(rollout), "--device", options.device]
    ours = Worker(
        report.lockstep_python(),
        "learner_lockstep.py",
        arguments + ([] if options.no_compile else ["--compile"]),
        options.timeout,
    )
    if options.no_peer:
        return [ours]
    return [Worker(str(setup_peers.environment_python("rllib")), "learner_rllib.py", arguments, options.timeout), ours]


def measure_work(work: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one network."""
    setting, began = w.WORKS[work], time.perf_counter()
    rounds = options.rounds if setting.kind == "vector" else max(5, options.rounds // 2)
    with tempfile.TemporaryDirectory() as folder:
        rollout = Path(folder) / "rollout.npz"
        facts = w.make_rollout(setting, rollout)
        workers: list[Worker] = []
        try:
            workers = start_workers(options, work, rollout)
            entries = [(name, worker) for worker in workers for name in worker.facts["entries"]]
            for name, worker in entries:
                warm = worker.ask(entry=name, updates=2)["seconds"]
                said(began, f"{work}: {name} is ready, second update {1e3 * warm[-1]:.1f} ms")
            runs: dict[str, dict[str, list[list[float]]]] = {
                name: {"seconds": [], "processor_seconds": []} for name, _ in entries
            }
            for number in range(rounds):
                shift = number * len(entries) // rounds
                for name, worker in entries[shift:] + entries[:shift]:
                    answer = worker.ask(entry=name, updates=setting.updates)
                    for kind, values in runs[name].items():
                        values.append([round(value, 6) for value in answer[kind]])
                said(began, f"{work}: round {number + 1} of {rounds}")
            stages = {name: worker.ask(entry=name, stages=STAGE_UPDATES)["stages"] for name, worker in entries}
        finally:
            for worker in workers:
                worker.close()
    versions = {worker.facts["name"]: worker.facts["version"] for worker in workers}
    return {
        "rows": setting.rows,
        "minibatch": setting.minibatch,
        "num_epochs": setting.num_epochs,
        "kind": setting.kind,
        "hiddens": setting.hiddens,
        "rollout": facts,
        "versions": versions,
        "torch": workers[0].facts["torch"],
        "runs": runs,
        "stages": {name: found for name, found in stages.items() if found},
    }


def said(began: float, text: str) -> None:
    """A progress line."""
    print(f"[{time.perf_counter() - began:5.0f} s] {text}", flush=True)


def flat(runs: dict[str, list[list[float]]], kind: str = "seconds") -> list[float]:
    """Every update of an entry."""
    return [value for values in runs[kind] for value in values]


def ratio(part: dict[str, Any], slow: str, fast: str) -> tuple[float, str]:
    """Ratio of the medians; in words the lowest and highest ratio of one round, and that of the processor times."""
    a, b = part["runs"][slow], part["runs"][fast]
    by_round = [statistics.median(x) / statistics.median(y) for x, y in zip(a["seconds"], b["seconds"])]
    whole, processor = [
        statistics.median(flat(a, kind)) / statistics.median(flat(b, kind)) for kind in ("seconds", "processor_seconds")
    ]
    return whole, f"by round {min(by_round):.2f}-{max(by_round):.2f}, processor time {processor:.2f}"


def verdicts(work: str, part: dict[str, Any]) -> list[str]:
    """The ratios that the project promises (for the networks of 64 units), and the same for the others."""
    lines = []
    with_goal = work == "64x64"
    for slow, fast, goal in GOALS:
        if slow in part["runs"] and fast in part["runs"]:
            middle, more = ratio(part, slow, fast)
            wanted = f"; goal {goal:g}" if with_goal else ""
            lines.append(f"- {fast} is **{middle:.2f}** x as fast as {slow} ({more}{wanted})")
    for hand in OVERHEADS if OVERHEADS[0] in part["runs"] else ():
        middle, more = ratio(part, "lockstep eager, batch", hand)
        wanted = f"; goal at most {OVERHEAD_GOAL:.2f}" if with_goal else ""
        lines.append(f"- lockstep eager, batch takes **{middle:.2f}** x {hand} ({more}{wanted})")
    return lines


def render_work(work: str, part: dict[str, Any]) -> str:
    """The section of one network."""
    lines = []
    for name, runs in part["runs"].items():
        milliseconds, processor = [[1e3 * v for v in flat(runs, k)] for k in ("seconds", "processor_seconds")]
        rate = part["rows"] / statistics.median(flat(runs))
        lines.append([name, f"{rate:,.0f}", report.spread(milliseconds, 1), f"{statistics.median(processor):,.1f}"])
    tables = [report.table(["entry", "steps/s", "ms for an update", "ms of processor time"], lines)]
    rows = [
        [name, *(f"{found[stage]:.1f}" for stage in w.STAGES), f"{sum(found.values()):.1f}"]
        for name, found in part["stages"].items()
    ]
    if rows:
        tables += ["Milliseconds by stage:\n", report.table(["entry", *w.STAGES, "sum"], rows)]
    kind = {"vector": "CartPole-v1", "image": "84x84x4 bytes", "lstm": f"CartPole-v1 in sequences of {w.SEQUENCE}"}[
        part["kind"]
    ]
    pieces = part["rollout"]["pieces"]
    about = (
        f"{kind}: {part['rows']:,} steps in {pieces} episodes or pieces of one, {part['num_epochs']} epoch(s), "
        f"minibatches of {part['minibatch']}{' sequences' if part['kind'] == 'lstm' else ''}.\n"
    )
    return "\n".join([f"## {work}\n", about, *tables, *verdicts(work, part), ""])


def render(record: dict[str, Any]) -> str:
    """The markdown page of a record."""
    parts = record["works"]
    first = next(iter(parts.values()))
    rllib = f"RLlib {first['versions']['rllib']}, " if "rllib" in first["versions"] else ""
    notes = [
        f"One thread, {record['device']}, {record['rounds']} rounds, entries alternating: median (lowest-highest). "
        "steps/s = steps of the rollout / seconds of the whole update. `episodes`: a list of episodes, with the "
        "pipeline (values, advantages); `rollout`: the same as the collector hands them out, views on one store; "
        "`batch`: a finished train batch of tensors.",
        "RLlib's minibatches run over the end of the batch (62 gradient steps for 4,000 rows in four epochs, ours 60: "
        "3 % of its time). Its `rest` holds minibatch slicing and metrics; its value network runs within `loss`, "
        "not `forward`. Its image network takes floats only, so it is given them (ours: bytes). Stages are timed in "
        "updates of their own.",
        "`by hand, plain torch`: `nn.Sequential`, the loss spelled out, flat parameters and gradients, fused Adam "
        "through `optimizer.step()`. `by hand, same operations`: the library's network and its fused "
        "loss, and Adam's kernel called directly. Both keep the losses, the KL and the norm of each step.",
        f"{rllib}Lockstep {first['versions']['lockstep']}, PyTorch {first['torch']}. "
        f"{report.machine_line(record['machine'])}",
    ]
    if "lstm" in parts:
        notes.insert(
            2,
            "lstm: from episodes only. RLlib is not given states with them (each sequence begins with zeros, which "
            "saves it work); ours computes them. Its minibatch of 256 steps is 13 sequences too.",
        )
    sections = [render_work(work, part) for work, part in parts.items()]
    return "\n".join(["# The update of the learner\n", *sections, *notes, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the learner's update beside RLlib's and loops by hand.")
    parser.add_argument("--works", nargs="+", choices=list(w.WORKS), default=list(w.WORKS))
    parser.add_argument("--rounds", type=int, default=9, help="at least 5 (images: half of it)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--no-compile", action="store_true", help="without the compiled gradient step")
    parser.add_argument("--no-peer", action="store_true", help="without RLlib")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one request, compiling included")
    parser.add_argument("--name", default="learner_speed", help="name of the files in benchmarks/results")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    options = parser.parse_args()
    if options.render:
        record = json.loads((report.RESULTS / f"{options.name}.json").read_text(encoding="utf-8"))
    else:
        if not options.no_peer and not setup_peers.is_ready("rllib"):
            parser.error("run first: python benchmarks/setup_peers.py rllib (or leave it out: --no-peer)")
        report.warn_if_busy()
        record = {"machine": report.machine(), "device": options.device, "rounds": options.rounds, "works": {}}
        for work in options.works:
            record["works"][work] = measure_work(work, options)
            report.write(options.name, record, render(record))
    text = render(record)
    report.write(options.name, record, text)
    print("\n" + text)
    return 0


if __name__ == "__main__":
    os.chdir(report.ROOT)
    raise SystemExit(main())
