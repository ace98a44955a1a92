"""Compiled loops: the code that is kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import sys
import numpy as np
from lockstep.ops.compiling import compiled

@compiled
def running_sum(numbers):
    total, sums = 0.0, np.empty_like(numbers)
    for i, number in enumerate(numbers):
        total += number
        sums[i] = total
    return sums
"""
BEFORE = "print(*running_sum(np.arange(3, dtype=np.float32)), running_sum.stats.cache_hits)"
AFTER = """
print(*running_sum(np.arange(3, dtype=np.float32)), len(running_sum.stats.cache_hits), "numba.np.linalg" in sys.modules)
print(*running_sum(np.arange(4, dtype=np.float64)), len(running_sum.stats.cache_misses))
"""


@pytest.mark.long
def test_kept_code_is_loaded_without_what_numba_compiles_with(tmp_path: Path) -> None:
    """A second process loads the code of the first; for other types it compiles as if it had loaded nothing."""
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL + "exec(sys.argv[1])\n")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(code: str) -> list[str]:
        command = [sys.executable, str(script), code]
        done = subprocess.run(command, env=env, check=True, timeout=120, capture_output=True, text=True)
        return done.stdout.splitlines()

    assert run(BEFORE) == ["0.0 1.0 3.0 Counter()"]
    assert run(AFTER) == ["0.0 1.0 3.0 1 False", "0.0 1.0 3.0 6.0 1"]
