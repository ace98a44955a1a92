"""Hashes of what the library computes, to show that a change of its shape changes no number.

    python benchmarks/numerics/hashes.py -o before.json               # all entries but the groups `compiled` and `ray`
    python benchmarks/numerics/hashes.py -o after.json --compare before.json
    python benchmarks/numerics/hashes.py --compare before.json after.json  # runs nothing

`--compare` prints what differs and ends with 1 if anything does. Entries are in `hashed/`. Each has a hash for each of
its results (weights, episodes, states, ...), so that the comparison says which part has changed. An entry that fails is
recorded with its error. Only public names are used: `PYTHONPATH=CHECKOUT` hashes an older revision.
Hashes are comparable on one machine with one version of torch and numpy only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[threads] = "1"  # before numpy and torch are imported
FOLDER = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), FOLDER)))  # of processes

from hashed import ENTRIES, EXTRA_GROUPS, chosen, hash_of  # noqa: E402

Hashes = dict[str, dict[str, str]]
"""By entry: the hash of each result, or the text of the error under "error"."""


def hashes_of(name: str) -> dict[str, str]:
    """Run an entry and hash its results; a failure becomes the result "error"."""
    try:
        return {part: hash_of(value) for part, value in ENTRIES[name]().items()}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def run(names: list[str], output: Path | None) -> Hashes:
    """Run the entries one after another. The file is written after each, so that nothing is lost with the process."""
    warnings.simplefilter("ignore")
    found: Hashes = {}
    for name in names:
        began = time.process_time()
        found[name] = hashes_of(name)
        result = found[name].get("error") or hash_of(found[name])
        print(f"{name}: {result} ({time.process_time() - began:.1f} s)", flush=True)
        if output is not None:
            output.write_text(json.dumps(found, indent=1) + "\n")
    return found


def compare(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> int:
    """Print what differs, entry by entry with its results; return the number of entries that differ."""
    names = sorted({*before, *after})
    differing = [name for name in names if before.get(name) != after.get(name)]
    for name in differing:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            print(f"{name}: only {'after' if old is None else 'before'}")
            continue
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part):
                print(f"{name}: {part}: {old.get(part)} -> {new.get(part)}")
    failing = sum("error" in after.get(name, {}) for name in names)
    print(f"{len(differing)} of {len(names)} entries differ" + (f", {failing} fail" if failing else ""))
    return len(differing)


def main() -> None:
    """Run entries, compare their hashes with a file, or compare two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file that the hashes are written to")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="FILE", help="BEFORE, or BEFORE and AFTER")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="entries with one of these in their name")
    parser.add_argument("--with", nargs="+", default=[], choices=EXTRA_GROUPS, dest="extra", help="further groups")
    parser.add_argument("--list", action="store_true", help="print the names of the chosen entries")
    given = parser.parse_args()
    if given.compare and len(given.compare) > 2:
        parser.error("--compare takes one file or two")
    names = chosen(given.only, given.extra)
    if given.list:
        print(*names, sep="\n")
        return
    before = json.loads(given.compare[0].read_text()) if given.compare else {}
    if given.compare and len(given.compare) == 2:
        sys.exit(bool(compare(before, json.loads(given.compare[1].read_text()))))
    if not names:
        sys.exit(f"no entry has {' or '.join(given.only)} in its name; --list prints all")
    found = run(names, given.output)
    if given.compare:
        sys.exit(bool(compare({name: parts for name, parts in before.items() if name in found}, found)))


if __name__ == "__main__":
    main()
