"""Run folders: what they hold, refusals, nothing half-written."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.state import write_checkpoint
from lockstep.tracking import RunFolder, RunFolderError, git_revision, prune_checkpoints, versions


def make(root: Path, **changes: object) -> RunFolder:
    options: dict = {"algo": "ppo", "env": "CartPole-v1", "seed": 7, "config": {"lr": 3e-4, "hiddens": [64, 64]}}
    return RunFolder.create(root, **{**options, **changes})


def test_a_run_folder_has_its_name_and_its_parts(tmp_path: Path) -> None:
    run = make(tmp_path / "runs")
    assert re.fullmatch(r"ppo_CartPole-v1_s7_\d{8}-\d{6}", run.path.name)
    assert sorted(child.name for child in run.path.iterdir()) == ["best", "checkpoints", "config.json", "metrics.jsonl"]
    info = json.loads((run.path / "config.json").read_text())
    assert info["config"] == {"lr": 3e-4, "hiddens": [64, 64]}
    assert (info["algo"], info["env"], info["seed"]) == ("ppo", "CartPole-v1", 7)
    assert {"python", "lockstep", "torch", "numpy", "gymnasium"} <= set(info["versions"])
    again = RunFolder.open(run.path)
    assert (again.algo, again.env, again.seed, again.config) == ("ppo", "CartPole-v1", 7, run.config)


def test_runs_of_one_second_get_separate_folders(tmp_path: Path) -> None:
    assert len({make(tmp_path).path for _ in range(5)}) == 5


def test_names_unfit_for_files_are_changed_only_in_the_path(tmp_path: Path) -> None:
    run = make(tmp_path, env="ALE/Pong-v5", seed=None)
    assert run.path.parent == tmp_path
    assert run.path.name.startswith("ppo_ALE-Pong-v5_sNone_")
    assert RunFolder.open(run.path).env == "ALE/Pong-v5"
    assert make(tmp_path, env="../../etc").path.parent == tmp_path


def test_the_summary_has_seed_versions_and_revision(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(RunFolderError, match="has not ended"):
        run.read_summary()
    run.write_summary({"best_score": 500.0, "last": float("nan")})
    run.write_summary({"best_score": 499.0, "last": float("inf")})
    summary = run.read_summary()
    assert summary["best_score"] == 499.0
    assert summary["last"] == float("inf")
    assert summary["seed"] == 7
    assert summary["versions"] == versions()
    assert "git_revision" in summary
    run.summary_path.write_text("{")
    with pytest.raises(RunFolderError, match="cannot read"):
        run.read_summary()


def test_checkpoints_are_found_and_pruned(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.newest_checkpoint() is None
    for step in (512, 1024, 99_999_999):
        write_checkpoint(run.checkpoint_path(step), {"": {"step": step}})
    assert run.newest_checkpoint() == run.checkpoint_path(99_999_999)
    prune_checkpoints(run.checkpoints, keep=2)
    assert sorted(run.checkpoints.iterdir()) == [run.checkpoint_path(1024), run.checkpoint_path(99_999_999)]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, r"no config\.json"), ("{", "damaged"), ("[]", "not the config"), ('{"algo": "ppo"}', "not the config")],
)
def test_folders_without_a_run_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=message):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="no run at"):
        RunFolder.open(tmp_path / "nowhere")


def test_a_folder_with_one_run_means_that_run_and_several_are_named(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert RunFolder.open(tmp_path).path == run.path
    others = [make(tmp_path, seed=seed) for seed in (8, 9)]
    with pytest.raises(RunFolderError, match=r"it has no config\.json; it holds 3 runs, give one: ") as error:
        RunFolder.open(tmp_path)
    assert all(each.path.name in str(error.value) for each in (run, *others))
    assert RunFolder.open(run.path).path == run.path


def test_a_config_that_is_not_json_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        make(tmp_path / "runs", config={"f": print})
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "runs", Path("/proc/lockstep-runs")):
        with pytest.raises(OSError, match=str(root)):
            make(root)


def test_a_full_disk_leaves_no_half_made_folder_and_keeps_the_old_summary(tmp_path: Path, file_size_limit: Any) -> None:
    with file_size_limit(2048):
        run = make(tmp_path / "small")
        run.write_summary({"score": 1})
        with pytest.raises(OSError, match=r"summary\.json cannot be written: File too large"):
            run.write_summary({"score": 2, "history": list(range(1000))})
        assert run.read_summary()["score"] == 1
        assert not [child for child in run.path.iterdir() if child.name.startswith(".")]
        with pytest.raises(OSError, match="File too large"):
            make(tmp_path / "runs", config={"long": list(range(1000))})
        assert list((tmp_path / "runs").iterdir()) == []


def test_the_git_revision_is_the_commit_with_a_mark_for_changes(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert git_revision(tmp_path / "nowhere") is None
    git("init", "-q")
    assert git_revision(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD").strip()
    assert git_revision(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == f"{commit}-dirty"
