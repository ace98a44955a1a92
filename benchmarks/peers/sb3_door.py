"""Measure `lockstep_sb3`: which programs for Stable-Baselines3 run with only the import changed, and how fast.

    python benchmarks/peers/sb3_door.py examples FOLDER...    # Python files, and the blocks of Markdown pages
    python benchmarks/peers/sb3_door.py notebooks FOLDER...   # the code cells of notebooks
    python benchmarks/peers/sb3_door.py names FOLDER...       # whether the names that files import exist
    python benchmarks/peers/sb3_door.py zoo HYPERPARAMS       # the settings of RL Baselines3 Zoo
    python benchmarks/peers/sb3_door.py speed                 # both libraries in turns, in CPU seconds

The programs of others are not part of this repository. `FOLDER` is the folder `docs` of a clone of
DLR-RM/stable-baselines3, or any folder of Python files or notebooks; `HYPERPARAMS` is the folder `hyperparams` of a
clone of DLR-RM/rl-baselines3-zoo.

First let Stable-Baselines3 run them, in its own environment (`python benchmarks/peers/setup_peers.py sb3`, then
install what the programs import). Then compare:

    .bench/sb3/bin/python benchmarks/peers/sb3_door.py examples FOLDER --library sb3 -o sb3.json
    python benchmarks/peers/sb3_door.py examples FOLDER --against sb3.json

`--half report` takes the programs that were not looked at while the package was written, by a hash of their names
relative to `FOLDER`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sb3_names
import sb3_programs
import sb3_speed
import sb3_zoo

ENVIRONMENT = {"SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg", "MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1"}
HALVES = ("work", "report")
MOST_MISSING = 40
"""Missing names that are printed, the most frequent first."""


def main() -> None:
    options = parse_options()
    began = time.time()
    if options.what == "speed":
        names = [name for name in sb3_speed.RUNS if options.only in name]
        speeds = sb3_speed.compare_speed(options.python, options.repeats, names)
        write_report(options.output, {"found": speeds}, began)
        return

    os.environ.update(ENVIRONMENT)
    importlib.import_module("stable_baselines3" if options.library == "sb3" else "lockstep_sb3")  # before the forks
    with contextlib.suppress(ImportError):
        importlib.import_module("ale_py")  # registers the Atari games
    errors = check_names(options) if options.what == "names" else run_all(options)
    summary = summarize(errors, options)
    print("\n".join(summary))
    write_report(options.output, {"summary": summary, "found": errors}, began)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    description, _, usage = str(__doc__).partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, epilog=usage, formatter_class=formatter)
    parser.add_argument("what", choices=["examples", "notebooks", "names", "zoo", "speed"])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="where the programs are; not for speed")
    parser.add_argument("--library", choices=["lockstep", "sb3"], default="lockstep")
    parser.add_argument("--half", choices=[*HALVES, "all"], default="all", help="by a hash of a program's name")
    parser.add_argument("--against", type=Path, help="output of the same command with `--library sb3`")
    parser.add_argument("--only", default="", help="programs whose name contains this text")
    parser.add_argument("--python", default=".bench/sb3/bin/python", help="Stable-Baselines3's interpreter, for speed")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each library and algorithm, for speed")
    parser.add_argument("--output", "-o", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if not options.folders and options.what != "speed":
        parser.error(f"{options.what} needs a folder")
    options.folders = [folder.resolve() for folder in options.folders]
    options.peer_programs = None if options.against is None else programs_that_run(options.against)
    return options


def check_names(options: argparse.Namespace) -> dict[str, str]:
    """Return for each chosen file the names that the library lacks, "" if none; print the most frequent ones."""
    files = sb3_names.names_of_files(options.folders)
    chosen = {file: names for file, names in files.items() if is_chosen(file, options)}
    missing = sb3_names.missing_names(chosen, options.library)
    for name, count in sb3_names.count_missing(missing.values()).most_common(MOST_MISSING):
        print(f"{count:4} files miss {name}")
    return {file: " ".join(names) for file, names in missing.items()}


def run_all(options: argparse.Namespace) -> dict[str, str]:
    """Run each chosen program in a process of its own. Returns their errors, "" for a program that runs."""
    errors = {}
    for name, program in programs_of(options).items():
        if not is_chosen(name, options):
            continue
        errors[name] = sb3_programs.run_in_fork(program)
        if options.what == "zoo" or sb3_programs.half_of(name) == "work":  # the other half stays unseen
            print(f"{name:<60} {errors[name] or 'runs'}", flush=True)
    return errors


def programs_of(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Return what there is to run, by name."""
    library = options.library
    if options.what == "zoo":
        settings = sb3_zoo.find_settings(options.folders[0])
        return {name: partial(sb3_zoo.train, *setting, library) for name, setting in settings.items()}
    if options.what == "examples":
        texts = sb3_programs.find_examples(options.folders)
        run = sb3_programs.run_script
    else:
        texts = sb3_programs.find_notebooks(options.folders)
        run = sb3_programs.run_cells
    return {name: partial(run, sb3_programs.with_imports(text, library)) for name, text in texts.items()}


def is_chosen(name: str, options: argparse.Namespace) -> bool:
    """Return whether the options choose a program: by its name, its half, and whether Stable-Baselines3 runs it."""
    if options.peer_programs is not None and name not in options.peer_programs:
        return False
    return options.only in name and options.half in ("all", sb3_programs.half_of(name))


def programs_that_run(result: Path) -> set[str]:
    """Return the names of the programs that run, from the output of this command."""
    found = json.loads(result.read_text(encoding="utf-8"))["found"]
    return {name for name, error in found.items() if not error}


def summarize(errors: dict[str, str], options: argparse.Namespace) -> list[str]:
    """Return how many of the programs run, in each half and in all."""
    if options.what == "names":
        programs, verb = "files", "find all their names"
    else:
        programs, verb = "programs", "run"
    if options.against is not None:
        programs += f" that {verb} with Stable-Baselines3 itself"

    lines = []
    for half in (*HALVES, "all"):
        names = [name for name in errors if half in ("all", sb3_programs.half_of(name))]
        if names:
            count = sum(not errors[name] for name in names)
            lines.append(f"{half}: {count} of {len(names)} {programs} {verb} ({count / len(names):.0%})")
    return lines


def write_report(output: Path | None, found: dict[str, Any], began: float) -> None:
    """Write a result with the command and the machine that it was measured with."""
    if output is None:
        return
    command = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    about = {
        "command": command,
        "seconds": round(time.time() - began),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(load) for load in os.getloadavg()],
    }
    output.write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
