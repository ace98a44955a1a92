"""docs/migration.md: side by side, and both sides run."""

from __future__ import annotations

import ast
import os
import re
import subprocess

import pytest
from test_docs_pages import ROOT, Block, blocks_of

PAGE = (ROOT / "docs/migration.md").read_text()
PEERS = {"stable_baselines3": "sb3", "tianshou": "tianshou", "ray": "rllib"}
"""what a program imports, and the environment below `.bench/` that has it"""
SECTIONS = {heading.split("\n", 1)[0]: heading for heading in re.split(r"^## From ", PAGE, flags=re.MULTILINE)[1:]}


def peer_of(block: Block) -> str:
    """The one peer that a program imports."""
    nodes = list(ast.walk(ast.parse(block.text)))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    (peer,) = {module.split(".")[0] for module in modules} & set(PEERS)
    return peer


THERE = [pytest.param(block, id=f"{peer_of(block)}:{block.line}") for block in blocks_of(PAGE, "py")]


def test_each_library_stands_beside_ours_and_ours_comes_after_theirs():
    assert list(SECTIONS) == ["Stable-Baselines3", "Tianshou", "RLlib"]
    for section, peer in zip(SECTIONS.values(), PEERS):
        blocks = blocks_of(section, "py", "python")
        assert [block.language for block in blocks] == ["py", "python"] * (len(blocks) // 2), peer
        assert {peer_of(block) for block in blocks if block.language == "py"} == {peer}


@pytest.mark.faults
@pytest.mark.parametrize("block", THERE)
def test_programs_of_other_libraries_run_in_the_versions_of_their_environments(block, tmp_path):
    """Shortened; where `benchmarks/setup_peers.py` has made the environment."""
    python = ROOT / ".bench" / PEERS[peer_of(block)] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python.relative_to(ROOT)}: python benchmarks/setup_peers.py makes it")
    code = re.sub(r"\btotal_timesteps=[\d_]+", "total_timesteps=2_048", block.text)
    named = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**named, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout or "print(" not in block.text
