"""Install each peer library in an environment of its own under ``.bench/``.

    python benchmarks/peers/setup_peers.py            # all peers; skips what is done
    python benchmarks/peers/setup_peers.py sb3 rllib  # some of them
    python benchmarks/peers/setup_peers.py --check    # say what is ready, install nothing

PyTorch comes first in every environment, at one version for all, so that no peer is measured on an
older or a newer one; the rest is pinned by ``benchmarks/peers/requirements/<peer>.txt``. An environment
counts as done when its ``.ready`` file holds the SHA-256 of what was asked of it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
PEERS = ("sb3", "tianshou", "rllib", "torchrl", "cleanrl")

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".bench"


def environment_folder(peer: str) -> Path:
    """Return the folder of the peer's virtual environment."""
    return ENVIRONMENTS / peer


def environment_python(peer: str) -> Path:
    """Return the interpreter of the peer's virtual environment (which may not exist yet)."""
    return environment_folder(peer) / "bin" / "python"


def requirements_file(peer: str) -> Path:
    """Return the peer's pinned versions."""
    return HERE / "requirements" / f"{peer}.txt"


def wanted(peer: str) -> str:
    """Return the SHA-256 of everything that the peer's environment is made from."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = "\n".join((version, TORCH, requirements_file(peer).read_text(encoding="utf-8")))
    return hashlib.sha256(text.encode()).hexdigest()


def is_ready(peer: str) -> bool:
    """Return whether the peer's environment exists and was made from the present pins."""
    mark = environment_folder(peer) / ".ready"
    return mark.is_file() and mark.read_text(encoding="utf-8").strip() == wanted(peer)


def install(peer: str, *, fresh: bool = False) -> None:
    """Make the peer's environment; a half-made one is used further unless ``fresh``."""
    folder, python = environment_folder(peer), str(environment_python(peer))
    if fresh and folder.exists():
        shutil.rmtree(folder)
    if not Path(python).exists():
        venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "-r", str(requirements_file(peer))], check=True)
    (folder / ".ready").write_text(wanted(peer) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the peer libraries, one environment each.")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"some of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--check", action="store_true", help="only say which environments are ready")
    parser.add_argument("--fresh", action="store_true", help="remove an environment before making it again")
    options = parser.parse_args()
    if unknown := [name for name in options.peers if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]!r}; the peers are {', '.join(PEERS)}")
    os.nice(10)  # an installation must not disturb a measurement that runs beside it
    failed = []
    for peer in options.peers or PEERS:
        if is_ready(peer) and not options.fresh:
            print(f"{peer:10} ready", flush=True)
        elif options.check:
            print(f"{peer:10} missing", flush=True)
            failed.append(peer)
        else:
            print(f"{peer:10} installing ...", flush=True)
            try:
                install(peer, fresh=options.fresh)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{peer:10} FAILED: {error}", file=sys.stderr, flush=True)
                failed.append(peer)
            else:
                print(f"{peer:10} ready", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
