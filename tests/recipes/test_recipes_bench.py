"""`lockstep bench`: seeds in processes of their own, killed and gone on with, results that can be made again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lockstep.cli import main
from lockstep.recipes import bench

pytestmark = pytest.mark.long

RECIPE = bench.known_recipe("ppo", "CartPole-v1")
SHORT = ["bench", "run", "ppo", "CartPole-v1", "--draft", "--set", "reporting.total_steps=2000"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two seeds, run side by side."""
    folder = tmp_path_factory.mktemp("bench")
    assert main([*SHORT, "--seeds", "2", "--jobs", "2", "--root", str(folder)]) == 0
    return folder


def rows_of(root):
    return bench.read_rows(RECIPE, root / "draft")


def test_a_row_has_all_that_reproduces_the_result(root):
    first, second = rows_of(root)
    assert [first["seed"], second["seed"]] == [0, 1]
    assert first["weights_sha256"] != second["weights_sha256"]
    assert len(first["final_returns"]) == 50
    assert first["curve_steps"] == [0, 1000, 2000]
    assert len(first["curve_returns"]) == 3
    assert first["steps"] == 2000
    settings = json.loads(first["settings"])
    assert settings["reporting"]["total_steps"] == 2000
    assert settings["framework"]["compile"] is False  # as it was chosen
    assert json.loads(first["versions"])["torch"]
    words = "lockstep bench run ppo CartPole-v1 --first-seed 0 --seeds 1 --set reporting.total_steps=2000"
    assert first["command"] == words


def test_seeds_with_results_are_not_run_again(root, capfd):
    before = rows_of(root)
    assert main([*SHORT, "--seeds", "2", "--root", str(root)]) == 0
    assert "0 of 2 seeds to run" in capfd.readouterr().out
    assert rows_of(root) == before


def test_a_row_is_reproduced_from_its_settings(root, tmp_path, capfd):
    command = ["bench", "repeat", "ppo", "CartPole-v1", "--draft", "--first-seed", "1", "--seeds", "1"]
    before = rows_of(root)
    assert main([*command, "--root", str(root)]) == 0
    assert "the same weights" in capfd.readouterr().out
    assert rows_of(root) == before
    assert main([*command, "--root", str(tmp_path)]) == 2
    assert "bench list" in capfd.readouterr().err


@pytest.mark.faults
def test_a_killed_seed_continues_and_ends_with_the_same_bits(root, tmp_path):
    command = [sys.executable, "-m", "lockstep.cli", *SHORT, "--first-seed", "1", "--seeds", "1", "--root"]
    process = subprocess.Popen([*command, str(tmp_path)], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("draft/*/seed_1/*/checkpoints/*/manifest.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert rows_of(tmp_path) == []
    assert main([*SHORT, "--first-seed", "1", "--seeds", "1", "--root", str(tmp_path)]) == 0
    (row,) = rows_of(tmp_path)
    undisturbed = rows_of(root)[1]
    for name in ("weights_sha256", "final_returns", "curve_steps", "curve_returns"):
        assert row[name] == undisturbed[name]
    assert len(list((tmp_path / "draft").glob("*/seed_1/*"))) == 1


@pytest.mark.faults
def test_seeds_stop_when_their_command_is_killed(tmp_path):
    long = ["--set", "reporting.total_steps=10_000_000", "--set", "reporting.steps_per_epoch=1000"]
    command = [sys.executable, "-m", "lockstep.cli", *SHORT[:5], *long, "--seeds", "1", "--root", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert any("return" in line for line in process.stdout)
        process.kill()
        assert process.communicate(timeout=30)[0] is not None  # all that write there have ended


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench", "run", "ppo", "CartPole-v9"], ["CartPole-v9", "CartPole-v1"]),
        (["bench", "run", "pposs", "CartPole-v1"], ["pposs", "did you mean 'ppo'"]),
        ([*SHORT, "--set", "training.lr=0.5"], ["training.lr", "0.5", "--again"]),
        ([*SHORT, "--jobs", "0"], ["--jobs", "0"]),
    ],
    ids=["environment", "algorithm", "settings", "jobs"],
)
def test_seeds_that_cannot_run_are_refused_by_name(words, expected, root, capfd):
    before = rows_of(root)
    assert main([*words, "--root", str(root)]) == 2
    said = capfd.readouterr().err
    assert all(word in said for word in expected), said
    assert rows_of(root) == before


def test_changed_sources_are_refused_naming_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "SOURCES", tmp_path)
    assert bench.clean_revision().startswith("lockstep-rl ")
    (tmp_path / "lockstep").mkdir()
    for name in ("pyproject.toml", "lockstep/a.py"):
        (tmp_path / name).write_text("first")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    assert len(bench.clean_revision()) == 40
    (tmp_path / "results.json").write_text("not of the sources")
    assert len(bench.clean_revision()) == 40
    (tmp_path / "lockstep/a.py").write_text("second")
    with pytest.raises(ValueError, match=r"lockstep/a\.py.*--draft"):
        bench.clean_revision()


def test_table_and_pictures_show_every_recipe_with_results(root, tmp_path, capfd):
    assert main(["bench", "table", "--draft", "--root", str(root)]) == 0
    header, _, row = [line for line in capfd.readouterr().out.splitlines() if line.startswith("|")]
    cells = dict(zip(header.split("|"), row.split("|")))
    finals = [np.mean(one["final_returns"]) for one in rows_of(root)]
    assert float(cells[" worst "]) == pytest.approx(min(finals), abs=0.06)
    assert float(cells[" IQM "]) == pytest.approx(np.mean(finals), abs=0.06)
    output = tmp_path / "pictures"
    assert main(["bench", "pictures", "--draft", "--root", str(root), "-o", str(output)]) == 0
    (picture,) = output.iterdir()
    assert picture.name == "bench_CartPole-v1.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert Path(capfd.readouterr().out.strip()).name == picture.name
    drafts = next(folder for folder in root.rglob("*.parquet")).parent
    assert [path.name for path in bench.draw(output, drafts, by="algorithm")] == ["bench_ppo.png"]
