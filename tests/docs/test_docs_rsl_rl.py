"""docs/from-rsl-rl.md: the program of rsl_rl runs with its own package, and has the same numbers as ours."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from test_docs_pages import ROOT, blocks_of

PAGE = (ROOT / "docs/from-rsl-rl.md").read_text()
ROBOT, OURS = blocks_of(PAGE, "python")[:2]
(THEIRS,) = blocks_of(PAGE, "py")


def test_the_programs_of_the_page_have_the_same_numbers():
    for theirs, ours in (
        ("learning_rate", "lr"),
        ("num_learning_epochs", "num_epochs"),
        ("gamma", "gamma"),
        ("lam", "lambda_"),
        ("clip_param", "clip_param"),
        ("clip_param", "vf_clip_param"),
        ("entropy_coef", "entropy_coeff"),
        ("max_grad_norm", "grad_clip"),
    ):
        number = r"=([\d.e-]+)"
        assert re.findall(rf"\b{theirs}{number}", THEIRS.text) == re.findall(rf"\b{ours}{number}", OURS.text), theirs
    assert "value_loss_coef=1.0" in THEIRS.text
    assert "vf_loss_coeff=2.0" in OURS.text


@pytest.mark.long
def test_options_of_the_page_exist_in_rsl_rl():
    algorithms = pytest.importorskip("rsl_rl.algorithms")
    options = inspect.signature(algorithms.PPO).parameters
    section = THEIRS.text.partition('"algorithm": dict(')[2].partition("    ),")[0]
    named = set(re.findall(r"^        (\w+)=", section, re.MULTILINE)) - {"class_name"}
    named |= {"desired_kl", "normalize_advantage_per_mini_batch", "use_mixed_precision", "rnd_cfg", "symmetry_cfg"}
    assert "num_mini_batches" in named
    assert sorted(named - set(options)) == []
    assert {name for name in named if f"`{name}" not in PAGE.partition("## Names")[2]} <= {"gamma", "clip_param"}


@pytest.mark.long
def test_the_program_of_the_page_runs_in_rsl_rl(tmp_path):
    pytest.importorskip("rsl_rl.runners")
    (tmp_path / "robot.py").write_text(ROBOT.text)
    code = THEIRS.text.replace("num_learning_iterations=100", "num_learning_iterations=2")
    (tmp_path / "theirs.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "theirs.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torch.Size([64, 1])" in done.stdout
    assert (tmp_path / "exported/policy.onnx").is_file()
