"""Two ranks of torchrun on one CUDA device compute what one process computes, and what the CPU does."""

from __future__ import annotations

import os
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
TENSOR_RUNS = Path(__file__).parents[1] / "cluster/tensor_rank_runs.py"


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


def tensor_runs(folder: Path, device: str, *launcher: str) -> dict[str, dict[str, Any]]:
    """Return the numbers of all runs on tensor environments, by the name of the run."""
    folder.mkdir()
    words = [sys.executable, *launcher, str(TENSOR_RUNS), str(folder), device]
    subprocess.run(words, check=True, timeout=900, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


def check_tensor_ranks(folder: Path, device: str) -> None:
    """Check that two ranks on a device have the numbers of one process on it, but for the rounding of sums."""
    one, two = tensor_runs(folder / "one", device), tensor_runs(folder / "two", device, *TORCHRUN)
    assert one.keys() == two.keys()
    assert len(one) > 15
    for kind, numbers in one.items():
        tolerance = 1e-4 if "float32" in kind else 1e-10
        for name, value in numbers.items():
            np.testing.assert_allclose(two[kind][name], value, rtol=0, atol=tolerance, err_msg=f"{kind}: {name}")


@pytest.mark.timeout(1800)
def test_two_ranks_on_tensor_environments_have_the_numbers_of_one_process(tmp_path):
    check_tensor_ranks(tmp_path, "cuda")
