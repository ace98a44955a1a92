"""Describe the machine, run a measured process, write tables and files: what the benchmark commands share.

Standard library alone, so that any Python 3.11 can drive the measurements. Nothing that is written names a
path of this machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"


class RunFailed(Exception):
    """A measured process ended badly; the message is the end of what it said."""


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a failed process said, without this machine's paths."""
    return (done.stderr or done.stdout).strip().replace(f"{ROOT}{os.sep}", "")[-400:]


def thread_environment(threads: int) -> dict[str, str]:
    """Return the process environment with every library's thread count fixed."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


def run_json(
    command: Sequence[str], *, threads: int = 1, timeout: float = 900.0, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run ``command`` in the repository's root, with more environment variables where there are any.

    Returns the JSON object on the last line that it prints.

    Raises:
        RunFailed: the command fails, takes longer than ``timeout`` seconds or prints no such line.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**thread_environment(threads), **(variables or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no end after {timeout:.0f} s") from None
    except OSError as error:
        raise RunFailed(f"{Path(command[0]).name}: {error.strerror}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RunFailed(f"exit status {done.returncode}: {last_words(done)}")
    return dict(json.loads(lines[-1]))


def _first_line(path: str, start: str) -> str:
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(start):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def machine() -> dict[str, Any]:
    """Return the machine and the moment: processor, cores, memory, system, Python, date (UTC), revision."""
    memory = _first_line("/proc/meminfo", "MemTotal").removesuffix("kB").strip()
    return {
        "processor": _first_line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1) if memory.isdigit() else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def revision() -> str | None:
    """Return the git revision, with ``+`` when tracked files other than results differ; None outside a repository."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return None
    state = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results"]
    changed = subprocess.run(state, capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return one line for the foot of a table."""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}, "
        f"Python {facts['python']}; {facts['date']}; revision {facts['revision']}; "
        f"load before the first run {facts['load_average']}."
    )


def warn_if_busy() -> None:
    """Say on standard error that other work would disturb the measurement."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the machine is busy (load {load:.2f}); the figures will be low", file=sys.stderr)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return median and range: ``12,345 (11,900-12,800)``."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(name: str, record: Mapping[str, Any], text: str | None = None) -> None:
    """Write ``results/<name>.json`` and, with ``text``, ``results/<name>.md``, each replaced at once."""
    RESULTS.mkdir(exist_ok=True)
    files = {f"{name}.json": json.dumps(record, indent=1) + "\n"}
    if text is not None:
        files[f"{name}.md"] = text
    for file, content in files.items():
        temporary = RESULTS / f".{file}.part"
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(RESULTS / file)


def lockstep_python() -> str:
    """Return the project's interpreter: ``.venv``'s where there is one, otherwise this one."""
    inside = ROOT / ".venv" / "bin" / "python"
    return str(inside) if inside.exists() else sys.executable


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a command line whose help is the module's text."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def command(
    parser: argparse.ArgumentParser,
    name: str | Callable[[argparse.Namespace], str],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
    *,
    rounds: int | None = None,
) -> int:
    """Run a measurement's command: measure, or read the raw results (``--render``), write both files, print the page.

    Adds ``--name``, ``--render`` and, where there are ``rounds``, ``--rounds``. The exit status tells of failed runs.
    """
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    parser.add_argument(
        "--name", default=None if callable(name) else name, help="name of the files in benchmarks/results"
    )
    parser.add_argument("--render", action="store_true", help="only write the page again, from the raw results")
    options = parser.parse_args()
    options.name = options.name or (name(options) if callable(name) else name)
    if options.render:
        record = json.loads((RESULTS / f"{options.name}.json").read_text(encoding="utf-8"))
    else:
        warn_if_busy()
        record = measure(options)
    text = render(record)
    write(options.name, record, text)
    print("\n" + text)
    runs = record.get("runs", [])
    return 1 if isinstance(runs, list) and any("error" in run for run in runs) else 0
