"""Write the jar: one archive a case, the numbers that its continuation has, and their hashes.

It was run once with the code of each revision that `past_cases.py` names:

    PYTHONPATH=CHECKOUT_OF_THAT_REVISION python tests/past/write_past.py

It writes the cases of that revision, refuses any other code, and to write an archive that exists. `--numbers NAME ...`
is for a change that moves the numbers of a case on purpose: it writes them again with the code of today, from the
archive as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from past_cases import CASES, FIRST, REDRAWN, Numbers

import lockstep

JAR = Path(__file__).with_name("jar")
HASHES = JAR / "hashes.json"


def processor() -> str:
    """Return the processor's name, its model and the instructions that torch chooses."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = [
        match[1]
        for name in ("model name", "cpu family", "model")
        if (match := re.search(rf"^{name}\s*: (.*)$", text, re.M))
    ]
    return " / ".join([*found, torch.backends.cpu.get_cpu_capability()])


def hash_of(numbers: Numbers) -> str:
    """Return the SHA-256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(numbers):
        array = np.ascontiguousarray(numbers[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def pack(folder: Path, archive: Path) -> None:
    """Write the files of a folder into an archive without their times and owners."""
    with tarfile.open(archive, "x:xz", preset=9) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(str(path.relative_to(folder)))
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    file.addfile(info, content)


def unpack(name: str, folder: Path) -> None:
    """Write the files of a case into a folder."""
    with tarfile.open(JAR / f"{name}.tar.xz") as file:
        file.extractall(folder, filter="data")


def continued(name: str, folder: Path) -> Numbers:
    """Return what becomes of a case's files, unpacked in a folder that is the working directory meanwhile."""
    unpack(name, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CASES[name].go_on(folder)
    finally:
        os.chdir(before)


def check_revision() -> str:
    """Return the revision of the code that is imported; end the program unless it is one of the jar's, unchanged."""
    root = Path(lockstep.__file__).parents[1]
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run(
        ["git", "-C", root, "status", "--porcelain", "lockstep"], capture_output=True, text=True, check=True
    ).stdout
    for revision in (FIRST, REDRAWN):
        if head.startswith(revision) and not changed:
            return revision
    sys.exit(f"{root} is {head.strip()} {changed}; {FIRST} or {REDRAWN}, unchanged, write the jar: set PYTHONPATH")


def main() -> None:
    """Write the cases that are named and do not exist yet, by default all; or the numbers of those that are named."""
    torch.set_num_threads(1)
    notes: dict[str, Any] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    if sys.argv[1:2] == ["--numbers"]:
        write_numbers(sys.argv[2:], notes)
        return
    revision = check_revision()
    JAR.mkdir(exist_ok=True)
    notes = {"processor": processor(), "torch": torch.__version__} | notes
    # Bits are compared on one processor, so a case that another one has written has no hash.
    here = (notes["processor"], notes["torch"]) == (processor(), torch.__version__)
    hashes = notes.setdefault("hashes", {})
    revisions = notes.setdefault("revisions", {})
    failed = []
    for name in sys.argv[1:] or [name for name, case in CASES.items() if case.revision == revision]:
        if CASES[name].revision != revision:
            sys.exit(f"{name} is written by {CASES[name].revision}, and this is {revision}")
        if (JAR / f"{name}.tar.xz").exists():
            print(f"{name} exists and is never written again")
            continue
        try:
            numbers = write(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        hashes[name] = hash_of(numbers) if here else None
        revisions[name] = revision
        write_notes(notes)
        print(f"{name}: {(JAR / f'{name}.tar.xz').stat().st_size:,} bytes, {len(numbers)} arrays", flush=True)
    sys.exit(f"not written: {failed}" if failed else 0)


def write_numbers(names: list[str], notes: dict[str, Any]) -> None:
    """Write the numbers that cases have with the code of today; hashes only on the same processor."""
    here = (notes["processor"], notes["torch"]) == (processor(), torch.__version__)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            numbers = continued(name, Path(folder))
        np.savez_compressed(JAR / f"{name}.npz", **numbers)
        notes["hashes"][name] = hash_of(numbers) if here else None
    write_notes(notes)


def write_notes(notes: dict[str, Any]) -> None:
    """Write the hashes, and what they were made with."""
    HASHES.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n")


def write(name: str) -> Numbers:
    """Write a case's archive and the numbers of its continuation, neither of them where the other fails."""
    archive = JAR / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as again:
        before = Path.cwd()
        os.chdir(made)
        try:
            CASES[name].write(Path(made))
        finally:
            os.chdir(before)
        pack(Path(made), archive)
        try:
            numbers = continued(name, Path(again))
        except BaseException:
            archive.unlink()
            raise
    np.savez_compressed(JAR / f"{name}.npz", **numbers)
    return numbers


if __name__ == "__main__":
    main()
