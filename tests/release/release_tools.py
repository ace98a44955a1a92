"""Commands of tests of the packages, which run outside the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SB3 = ROOT / "packages/lockstep-sb3"
TORCH = "torch==2.13.0"


def run_outside(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without the variables that would let it find the checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
