"""docs/migration.md: side by side, and both sides run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from dataclasses import fields

import numpy as np
import pytest
import torch
from test_docs_pages import ROOT, Block, blocks_of

from lockstep import PPOConfig
from lockstep.replay import VectorReplayBuffer
from lockstep.trainer.options import RunOptions

PAGE = (ROOT / "docs/migration.md").read_text()
PEERS = {"stable_baselines3": "sb3", "tianshou": "tianshou", "ray": "rllib"}
"""what a program imports, and the environment below `.bench/` that has it"""
SECTIONS = {heading.split("\n", 1)[0]: heading for heading in re.split(r"^## From ", PAGE, flags=re.MULTILINE)[1:]}


def peer_of(block: Block) -> str:
    """Return the one peer that a program imports."""
    nodes = list(ast.walk(ast.parse(block.text)))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    (peer,) = {module.split(".")[0] for module in modules} & set(PEERS)
    return peer


SHORT_PAGES = {peer: (ROOT / f"docs/from-{peer}.md").read_text() for peer in ("sb3", "rllib", "tianshou")}
"""Pages with one small program of the library, and the same in Lockstep."""
THERE = [pytest.param(block, id=f"{peer_of(block)}:{block.line}") for block in blocks_of(PAGE, "py")]
THERE += [pytest.param(blocks_of(page, "py")[0], id=f"{peer}:short") for peer, page in SHORT_PAGES.items()]


def test_each_library_stands_beside_ours_and_ours_comes_after_theirs():
    assert list(SECTIONS) == ["Stable-Baselines3", "Tianshou", "RLlib"]
    for section, peer in zip(SECTIONS.values(), PEERS):
        blocks = blocks_of(section, "py", "python")
        assert [block.language for block in blocks] == ["py", "python"] * (len(blocks) // 2), peer
        assert {peer_of(block) for block in blocks if block.language == "py"} == {peer}


@pytest.mark.parametrize("peer", SHORT_PAGES)
def test_a_short_page_has_their_program_then_ours_with_the_same_numbers(peer):
    there, here = blocks_of(SHORT_PAGES[peer], "py", "python")
    assert (there.language, here.language) == ("py", "python")
    assert PEERS[peer_of(there)] == peer
    for names in (
        "gamma",
        "lr|learning_rate",
        "batch_size|minibatch_size",
        "num_epochs|n_epochs",
        "clip_param|clip_range",
    ):
        theirs, ours = (set(re.findall(rf"\b(?:{names})=([\d_.e-]+)", block.text)) for block in (there, here))
        assert theirs == ours, names


def test_names_of_learners_methods_that_the_page_gives_exist():
    table = SECTIONS["RLlib"].partition("**Inside a learner's methods.**")[2].partition("Two more differences")[0]
    here = " ".join(line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| "))
    learner = PPOConfig().environment("CartPole-v1").build_learner()
    named = set(re.findall(r"`(?:self\.)?(\w+)\(", here)) - {"f"}
    assert {"masked_mean", "log", "once", "prepare_batch", "setup_module", "should_stop_passes"} <= named
    assert [name for name in sorted(named) if not hasattr(learner, name)] == []
    assert set(re.findall(r"`self\.(\w+)`", here)) <= set(vars(learner))
    module = learner.module["default_policy"]
    dist = module.action_dist_cls.from_inputs(module.forward_train({"obs": torch.zeros(2, 4)})["action_dist_inputs"])
    assert dist.log_prob(torch.zeros(2, dtype=torch.int64)).shape == (2,)


def test_the_three_defaults_that_the_page_names_are_those_of_the_trainers():
    defaults = {each.name: each.default for each in fields(RunOptions)}
    for name in ("test_in_train", "verbose", "show_progress"):
        assert f"| `{name}=True` by default | `False`" in SECTIONS["Tianshou"]
        assert defaults[name] is False


def test_rows_of_a_vector_buffer_lie_as_the_page_says():
    buffer = VectorReplayBuffer(12, 3)
    for step in range(4):
        rows = {name: np.full(3, step) for name in ("obs", "new_obs", "rewards")}
        flags = dict.fromkeys(("terminateds", "truncateds"), np.zeros(3, bool))
        buffer.add({**rows, **flags, "actions": np.arange(3)})
    index = np.arange(12)
    assert buffer[index]["obs"].tolist() == (index // buffer.buffer_num).tolist()
    assert buffer[index]["actions"].tolist() == (index % buffer.buffer_num).tolist()


@pytest.mark.faults
@pytest.mark.parametrize("block", THERE)
def test_programs_of_other_libraries_run_in_their_own_environments(block, tmp_path):
    """Shortened; where `benchmarks/peers/setup_peers.py` has made the environment."""
    python = ROOT / ".bench" / PEERS[peer_of(block)] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python.relative_to(ROOT)}: python benchmarks/peers/setup_peers.py makes it")
    code = re.sub(r"\btotal_timesteps=[\d_]+", "total_timesteps=2_048", block.text)
    code = code.replace("range(50)", "range(10)").replace("max_epochs=5", "max_epochs=1")
    named = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**named, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout or "print(" not in block.text
