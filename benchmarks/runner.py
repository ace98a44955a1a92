"""Run the entries of a comparison in turn: programs of ``peers/``, each in its library's own environment.

A program gets one work description (JSON, `peers/protocol.py`) and prints one JSON line. `run_rounds` starts each in a
process of its own, once a round; `ask_rounds` asks programs that stay. Each round starts at another entry, so that slow
drifts of the machine fall on all alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import report

sys.path.append(str(report.HERE / "peers"))
import setup_peers

Item = TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """A program of ``peers/`` with its part of the work, in an environment (None: the project's own)."""

    script: str
    environment: str | None = None
    work: Mapping[str, Any] = field(default_factory=dict)
    compiled: bool = False
    own_loop: bool = False
    """a loop of ours, leaner than anything published: shown, but no peer"""

    @property
    def is_ours(self) -> bool:
        """Whether it runs Lockstep."""
        return self.environment is None

    @property
    def missing(self) -> str | None:
        """Return how to install what the entry needs, or None if it is there."""
        if self.environment is None or setup_peers.is_ready(self.environment):
            return None
        return f"run: python benchmarks/peers/setup_peers.py {self.environment}"

    def command(self, work: Mapping[str, Any]) -> list[str]:
        """Return the words that run it on ``work``."""
        peer = self.environment
        python = report.lockstep_python() if peer is None else str(setup_peers.environment_python(peer))
        return [python, f"benchmarks/peers/{self.script}", json.dumps({**self.work, **work})]


def check_installed(entries: Sequence[Entry]) -> None:
    """End the program with the command that installs what is missing."""
    for entry in entries:
        if entry.missing:
            raise SystemExit(entry.missing)


def alternate(items: Sequence[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Iterate over ``(round, item)``; each round starts at another item."""
    for number in range(rounds):
        shift = number * len(items) // rounds
        for item in [*items[shift:], *items[:shift]]:
            yield number, item


def run_rounds(
    name: str,
    record: dict[str, Any],
    variants: Sequence[tuple[dict[str, Any], Entry, dict[str, Any]]],
    options: Any,
    tell: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Run every variant once a round and keep its line, or ``error``, in ``record["runs"]``.

    A variant is what the record says of it, its entry and its work; the round is the seed. The raw record is written
    after each run, and ``tell`` says what a run found.
    """
    record["runs"] = []
    began, total = time.perf_counter(), options.rounds * len(variants)
    for done, (number, (facts, entry, work)) in enumerate(alternate(variants, options.rounds), start=1):
        words = entry.command({**work, "seed": number})
        run = {"round": number, **facts, "command": f"python {words[1]} '{words[2]}'"}
        run["load_average"], started = round(os.getloadavg()[0], 2), time.perf_counter()
        try:
            line = report.run_json(words, threads=work.get("threads", 1), timeout=options.timeout)
        except report.RunFailed as error:
            line = {"error": str(error)}
        record["runs"].append({**run, "seconds_process": round(time.perf_counter() - started, 2), **line})
        report.write(name, record)
        left = (time.perf_counter() - began) / done * (total - done)
        found = "FAILED: " + line["error"] if "error" in line else tell(line)
        label = ", ".join(str(value) for value in facts.values())
        print(f"[{done:3}/{total}] {label:28} {found}  ({left / 60:.1f} min left)", flush=True)
    return record


def run_programs(entries: Mapping[str, Entry], options: Any) -> dict[str, Any]:
    """Run programs that time pieces of work, and return the record of all rounds."""
    check_installed(list(entries.values()))
    record: dict[str, Any] = {"rounds": options.rounds, "machine": report.machine()}
    variants = [({"entry": name}, entry, dict[str, Any]()) for name, entry in entries.items()]
    return run_rounds(options.name, record, variants, options, lambda line: f"{len(line['seconds'])} works")


def seconds_of(record: dict[str, Any], library: str, work: str) -> list[float]:
    """Return a program's figure of each round; empty where the library has no such thing."""
    runs = [run["seconds"] for run in record["runs"] if run.get("name") == library]
    return [seconds[work] for seconds in runs if work in seconds]


class Resident:
    """A program that stays: it says which entries it has and measures them when asked."""

    def __init__(self, command: Sequence[str], timeout: float, root: Path = report.ROOT) -> None:
        self.timeout, self.errors = timeout, tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env={**report.thread_environment(1), "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.facts = self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RunFailed: the program ended, or gave no answer in time.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise report.RunFailed(self._last_words()) from None
        return self._answer()

    def close(self) -> None:
        """End the program."""
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


def ask_rounds(
    entries: Sequence[Entry],
    work: dict[str, Any],
    options: Any,
    times: Callable[[str], int],
    stages: int = 0,
) -> dict[str, Any]:
    """Start the programs, ask all their entries in turn, and return versions and every measured call.

    ``times`` is how often an entry is called for one request. Building, compiling and two calls come before the clock.
    With ``stages``, so many calls of those entries that can are timed by stage.
    """
    began, residents = time.perf_counter(), list[Resident]()

    def tell(text: str) -> None:
        print(f"[{time.perf_counter() - began:5.0f} s] {work['work']}: {text}", flush=True)

    try:
        for entry in entries:
            residents.append(Resident(entry.command(work), options.timeout))
        pairs = [(name, resident) for resident in residents for name in resident.facts["entries"]]
        for name, resident in pairs:
            warm = resident.ask(entry=name, times=2)["seconds"]
            tell(f"{name} is ready, second call {1e3 * warm[-1]:.1f} ms")
        runs: dict[str, dict[str, list[list[float]]]] = {
            name: {"seconds": [], "processor_seconds": []} for name, _ in pairs
        }
        for number, (name, resident) in alternate(pairs, options.rounds):
            answer = resident.ask(entry=name, times=times(name))
            for kind, values in runs[name].items():
                values.append([round(value, 6) for value in answer[kind]])
            if all(len(found["seconds"]) == number + 1 for found in runs.values()):
                tell(f"round {number + 1} of {options.rounds}")
        found = {name: resident.ask(entry=name, stages=stages)["stages"] for name, resident in pairs} if stages else {}
    finally:
        for resident in residents:
            resident.close()
    return {
        "versions": {resident.facts["name"]: resident.facts["version"] for resident in residents},
        "torch": residents[-1].facts["torch"],
        "facts": {resident.facts["name"]: resident.facts for resident in residents},
        "runs": runs,
        "stages": {name: by_stage for name, by_stage in found.items() if by_stage},
    }
