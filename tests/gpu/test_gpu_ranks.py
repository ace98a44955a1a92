"""Two ranks of torchrun on one CUDA device compute what one process computes, and what the CPU does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranked_run import WORDS

from lockstep.state.checkpoint import read_checkpoint

pytestmark = pytest.mark.cuda

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def weights(root: Path, device: str, *launcher: str) -> dict[str, Any]:
    words = [*launcher, "-m", "lockstep", *WORDS, "--device", device, "--root", str(root)]
    subprocess.run([sys.executable, *words], check=True, timeout=200)
    last = max(root.glob("ppo_*/checkpoints/step_*"))
    return read_checkpoint(last)["learner/rl_module/default_policy"]["weights"]


def test_two_ranks_on_one_device_have_the_parameters_of_one_process(tmp_path):
    """NCCL would refuse them; they meet by gloo."""
    runs = [("cpu", []), ("cuda", []), ("cuda", TORCHRUN)]
    one, *others = [weights(tmp_path / str(k), device, *launcher) for k, (device, launcher) in enumerate(runs)]
    for other in others:
        for name, value in one.items():
            np.testing.assert_allclose(np.asarray(other[name]), np.asarray(value), rtol=0, atol=1e-12, err_msg=name)
