"""`lockstep plot`, `compare` and `report` on runs of different settings."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import Said, Trained
from tracked_runs import make_run

from lockstep.analysis import compare_runs

Command = Callable[..., Said]


@pytest.fixture
def sides(tmp_path: Path) -> tuple[list[str], list[str]]:
    """Two learning rates with three seeds each."""
    return tuple(
        [str(make_run(tmp_path / f"lr{lr}", seed=seed, scale=lr + seed, lr=lr, ended=True).path) for seed in range(3)]
        for lr in (1, 2)
    )


def test_plot_takes_axis_groups_labels_and_smoothing(lockstep: Command, sides, tmp_path: Path) -> None:
    runs = [*sides[0], *sides[1]]
    words = ("--x", "seconds", "--group-by", "training.lr", "--label", "slow", "--label", "fast", "--smooth", "2")
    said = lockstep("plot", *runs, *words, "-o", "curves.svg")
    assert (said.code, said.out) == (0, "curves.svg (6 runs)\n"), said.err
    assert (tmp_path / "curves.svg").stat().st_size > 1000
    said = lockstep("plot", *runs, "--label", "slow")
    assert said.code == 2
    assert "1 labels for 2 groups of runs; give one for each of: PPO lr=1; PPO lr=2" in said.err


@pytest.mark.parametrize("name, picture", [("plot", "curves.png"), ("report", "report.html")])
def test_a_folder_of_runs_is_drawn_as_its_runs(lockstep: Command, tmp_path: Path, name: str, picture: str) -> None:
    folders = [tmp_path / "runs", tmp_path / "runs", tmp_path / "runs" / "fast"]
    runs = [str(make_run(folder, seed=seed, ended=True).path) for seed, folder in enumerate(folders)]
    make_run(tmp_path / "runs", "a2c").metrics_path.write_text("")
    said = lockstep(name, "runs")
    assert (said.code, said.out) == (0, f"{picture} (3 runs)\n"), said.err
    assert "left out: a2c_CartPole-v1_s0" in said.err
    if name == "plot":
        of_folder = (tmp_path / picture).read_bytes()
        assert lockstep(name, *runs).code == 0
        assert (tmp_path / picture).read_bytes() == of_folder


def test_compare_prints_a_table_and_draws(lockstep: Command, sides, tmp_path: Path) -> None:
    said = lockstep("compare", *sides[0], "--against", *sides[1])
    assert said.code == 0, said.err
    comparison = compare_runs(*sides)
    for row in comparison.rows():
        assert all(cell in said.out for cell in row)
    for fact in comparison.facts().values():
        assert fact in said.out
    assert "picture      comparison.png" in said.out
    assert (tmp_path / "comparison.png").stat().st_size > 1000


def test_compare_prints_markdown(lockstep: Command, sides, tmp_path: Path) -> None:
    words = ("--markdown", "--label", "slow", "--label", "fast", "--at-step", "3e3", "--scale", "CartPole-v1=0:6000")
    said = lockstep("compare", *sides[0], "--against", *sides[1], *words, "-o", "both.svg")
    assert said.code == 0, said.err
    comparison = compare_runs(*sides, labels=["slow", "fast"], at_step=3000, scale={"CartPole-v1": (0.0, 6000.0)})
    assert said.out == f"{comparison.markdown()}\n![comparison](both.svg)\n"
    assert (tmp_path / "both.svg").exists()


def test_report_writes_a_page(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    said = lockstep("report", *map(str, trained.runs), "--metric", "update/entropy", "--title", "Two seeds")
    assert (said.code, said.out) == (0, "report.html (2 runs)\n"), said.err
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Two seeds</h1>" in page
    assert all(run.name in page for run in trained.runs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare",), "compare needs runs on both sides"),
        (("compare", "A"), "compare needs runs on both sides"),
        (("compare", "A", "--against", "B", "-o", "a.doc"), "must end in .png, .pdf or .svg"),
        (("compare", "A", "--against", "B", "--scale", "CartPole-v1=5"), "write ENV=LOW:HIGH"),
        (("compare", "A", "--against", "B", "--label", "x"), "give two, one for each side"),
        (("compare", "A0", "--against", "B"), "PPO lr=1 has 1 run of CartPole-v1"),
        (("compare", "A", "--against", "C"), "runs of different environments cannot be compared"),
        (("plot", "A", "--group-by", "lr"), "did you mean 'training.lr'?"),
        (("plot", "A", "--smooth", "0"), "smooth=0 is not allowed"),
        (("plot", "A", "--metric", "nothing"), "has no record of test/nothing"),
        (("report",), "report needs at least one run's folder"),
        (("report", "A", "-o", "a.pdf"), "must end in .html or .htm"),
        (("report", "nothing"), "no run at"),
    ],
)
def test_wrong_input_is_one_message(lockstep: Command, sides, tmp_path: Path, words, message) -> None:
    other = [str(make_run(tmp_path / "other", env="Pole-v0", seed=seed).path) for seed in range(2)]
    named = {"A": sides[0], "A0": sides[0][:1], "B": sides[1], "C": other}
    said = lockstep(*(part for word in words for part in named.get(word, [word])))
    assert said.code == 2, said
    assert message in said.err
    assert said.err.count("error:") == 1
    assert "Traceback" not in said.err
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
