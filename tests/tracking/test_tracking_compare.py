"""Two sets of runs compared: hand-checked numbers, scaling, notes, refusals."""

from pathlib import Path

import numpy as np
import pytest
from tracked_runs import make_run

from lockstep.analysis import compare_runs, compare_scores
from lockstep.tracking import RunFolder


def seeds(root: Path, scales: list[float], **options) -> list[Path]:
    return [make_run(root, seed=seed, scale=scale, **options).path for seed, scale in enumerate(scales)]


def test_the_numbers_of_two_settings(tmp_path: Path) -> None:
    """Last returns of 4, 8, 12 and 16 thousand against 8, 8, 4 and 0 thousand."""
    comparison = compare_runs(
        seeds(tmp_path, [1.0, 2.0, 3.0, 4.0], lr=1.0), seeds(tmp_path, [2.0, 2.0, 1.0, 0.0], lr=2.0)
    )
    assert comparison.labels == ("PPO lr=1", "PPO lr=2")
    assert comparison.scale == {}
    assert [float(interval.value) for interval in comparison.iqms] == [10_000.0, 6_000.0]
    assert float(comparison.difference.value) == 4_000.0
    # 4: a tie with 4, above 0; 8: two ties, above 4 and 0; 12 and 16 above all
    assert float(comparison.improvement.value) == (1.5 + 3 + 4 + 4) / 16
    share = dict(zip(comparison.thresholds.tolist(), comparison.profiles[0].value.tolist()))
    assert (share[0.0], share[8000.0], share[16000.0]) == (1.0, 0.5, 0.0)
    first, second = comparison.rows()
    assert first[:4] == ("CartPole-v1", "PPO lr=1", "4", "10,000")
    assert second[5:] == ("5,000", "6,000", "0", "8,000")
    assert comparison.notes == ("with 4 runs intervals come out too narrow; take 5 or more",)


def test_several_environments_are_strata_with_scaled_scores(tmp_path: Path) -> None:
    runs = {
        (side, env): seeds(tmp_path, scales, env=env, lr=side)
        for side, env, scales in [
            (1, "A-v0", [1.0, 1.0]), (1, "B-v0", [-1.0, 0.0, -1.0]), (2, "A-v0", [0.0, 0.0]), (2, "B-v0", [0.0, -2.0])
        ]
    }  # fmt: skip
    sides = [[path for (of, _), found in runs.items() if of == side for path in found] for side in (1, 2)]
    comparison = compare_runs(*sides)
    assert comparison.scale == {"A-v0": (0.0, 4000.0), "B-v0": (-8000.0, 0.0)}
    assert float(comparison.iqms[0].value) == np.mean([0.5, 1.0, 1.0])  # of 1, 1, 0.5, 1, 0.5 without one at each end
    assert float(comparison.iqms[1].value) == 0.0  # of 0, 0, 1, 0
    # A: always above; B: -1 between 0 and -2 (1/2), 0 a tie and above (3/4), -1 again: 7/12
    assert float(comparison.improvement.value) == pytest.approx((1 + 7 / 12) / 2)
    rows = [row[:3] for row in comparison.rows()]
    assert rows[-2:] == [("all, scaled", "PPO lr=1", "5"), ("all, scaled", "PPO lr=2", "4")]
    assert "A-v0 0 to 4000, B-v0 -8000 to 0" in comparison.facts()["scaled"]
    given = compare_runs(*sides, scale={"A-v0": (0.0, 8000.0)})
    assert given.scale["A-v0"] == (0.0, 8000.0)
    assert given.scale["B-v0"] == comparison.scale["B-v0"]
    low, high = (float(end) for end in comparison.iqms[0][1:])
    assert (low, high) == pytest.approx((2 / 3, 1.0))  # A never varies: only B's runs are drawn


def test_the_answer_says_what_the_interval_means() -> None:
    apart = compare_scores({"a": [2.0, 3.0, 4.0, 2.0, 3.0]}, {"a": [0.0, 1.0, 0.0, 1.0, 0.0]}, labels=("new", "old"))
    assert "new is better" in apart.facts()["so"]
    assert apart.notes == ()
    turned = compare_scores(apart.second, apart.first, labels=("old", "new"))
    assert "new is better" in turned.facts()["so"]
    equal = compare_scores({"a": [0.0, 1.0, 5.0]}, {"a": [1.0, 0.0, 5.0]})
    assert "not distinguished" in equal.facts()["so"]
    text = apart.markdown()
    assert text.startswith("| task | runs of | runs | IQM | 95 % interval |")
    assert "| a | new | 5 | 2.667 |" in text
    assert "- improvement: 1 (1 to 1)" in text


def test_a_step_may_be_named_at_which_runs_are_compared(tmp_path: Path) -> None:
    long, short = seeds(tmp_path, [1.0, 1.0], lr=1), seeds(tmp_path, [2.0, 2.0], lr=2)
    for path in short:
        lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (path / "metrics.jsonl").write_text("".join(lines[:6]))  # steps 0, 1000, 2000
    notes = compare_runs(long, short).notes
    assert (
        "the last evaluations are at different steps, 2,000 to 4,000; compare at one step with --at-step 2000" in notes
    )
    comparison = compare_runs(long, short, at_step=1500)
    assert [float(interval.value) for interval in comparison.iqms] == [1000.0, 2000.0]
    assert float(compare_runs(long, short, at_step=2000).iqms[0].value) == 2000.0
    with pytest.raises(ValueError, match="at_step=0 is not allowed"):
        compare_runs(long, short, at_step=0)


def test_notes_name_the_limits_of_a_comparison(tmp_path: Path) -> None:
    mixed = [*seeds(tmp_path, [1.0, 2.0], lr=1), *seeds(tmp_path, [3.0], lr=2)]
    comparison = compare_runs(mixed, seeds(tmp_path, [1.0, 1.0], lr=3))
    assert comparison.labels == ("A", "B")
    assert "A mixes runs of different settings on CartPole-v1: PPO lr=1; PPO lr=2" in comparison.notes
    again = [*seeds(tmp_path, [1.0], lr=4), *seeds(tmp_path, [1.0], lr=4)]
    notes = compare_runs(again, seeds(tmp_path, [1.0, 1.0], lr=4)).notes
    assert "A has more than one run of CartPole-v1 seed 0: runs with equal seeds are not independent" in notes
    assert "both sides have the same settings" in notes


def test_limits_are_named_before_the_verdict() -> None:
    comparison = compare_scores({"a": [2.0, 3.0]}, {"a": [0.0, 1.0]}, labels=("new", "old"))
    names = list(comparison.facts())
    assert "too narrow" in comparison.facts()["note 1"]
    assert names.index("note 1") < names.index("so")
    assert "new is better in these runs" in comparison.facts()["so"]


def test_algorithms_name_the_sides_where_their_settings_differ_by_task(tmp_path: Path) -> None:
    first = [*seeds(tmp_path, [1.0, 2.0], lr=1), *seeds(tmp_path, [1.0, 2.0], env="B-v0", lr=2)]
    second = [*seeds(tmp_path, [1.0, 2.0], algo="a2c"), *seeds(tmp_path, [1.0, 2.0], algo="a2c", env="B-v0", lr=3)]
    comparison = compare_runs(first, second)
    assert comparison.labels == ("PPO", "A2C")
    assert not any("mixes" in note for note in comparison.notes)
    assert compare_runs(first, second, labels=["new", "old"]).labels == ("new", "old")


def test_the_picture_has_three_panels(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    comparison = compare_scores({"a": [2.0, 3.0, 4.0]}, {"a": [0.0, 1.0, 5.0]}, labels=("new", "old"))
    titles = [panel.get_title() for panel in comparison.draw().axes]
    assert titles == ["Interquartile mean, a", "Probability of improvement", "Performance profile"]
    words = [text.get_text() for panel in comparison.draw().axes for text in panel.texts]
    assert words[0] == f"new: {comparison.iqms[0]}"
    assert words[2] == f"{comparison.improvement}, 3 against 3 runs"
    assert (
        comparison.draw().get_supxlabel()
        == comparison.notes[0]
        == "with 3 runs intervals come out too narrow; take 5 or more"
    )
    picture = image.imread(comparison.save(tmp_path / "new" / "comparison.png"))
    assert (picture[..., :3].min(axis=-1) < 0.5).sum() > 1000


@pytest.mark.parametrize(("first", "second"), [([9, 8, 7], [1, 2, 3]), ([1, 2, 3], [9, 8, 7]), ([1, 5, 9], [1, 5, 9])])
def test_the_probability_is_written_at_its_bar_and_in_the_panel(first: list[int], second: list[int]) -> None:
    pytest.importorskip("matplotlib")
    figure = compare_scores({"a": np.array(first)}, {"a": np.array(second)}).draw()
    figure.draw_without_rendering()
    panel = figure.axes[1]
    text = panel.texts[0].get_window_extent()
    bar = panel.lines[0].get_window_extent()
    assert text.x0 <= bar.x1
    assert text.x1 >= bar.x0
    assert abs(text.y0 - bar.y1) < 0.1 * panel.bbox.height
    assert panel.get_tightbbox().width < 1.1 * panel.bbox.width


REFUSED = {
    "environments": (lambda root: (seeds(root, [1, 1]), seeds(root, [1, 1], env="B-v0")), "CartPole-v1 against B-v0"),
    "options of the environment": (
        lambda root: (
            seeds(root, [1, 1]),
            seeds(root, [1, 1], environment={"env_config": {"gravity": 3}}),
        ),
        "CartPole-v1 against CartPole-v1 gravity=3",
    ),
    "one run": (lambda root: (seeds(root, [1]), seeds(root, [1, 1], lr=2)), "PPO lr=0.001 has 1 run of CartPole-v1"),
    "no run": (lambda root: ([], seeds(root, [1, 1])), "at least one run's folder"),
    "twice": (lambda root: (seeds(root / "a", [1, 1]), sorted((root / "a").iterdir())), "is given twice"),
    "no such folder": (lambda root: ([root / "nothing"], seeds(root, [1, 1])), "no run at"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path, name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        compare_runs(*make(tmp_path))


def test_damaged_runs_and_runs_without_evaluations_are_named(tmp_path: Path) -> None:
    first, second = seeds(tmp_path, [1.0, 2.0], lr=1), seeds(tmp_path, [1.0, 2.0], lr=2)
    run = RunFolder.open(first[1])
    text = run.metrics_path.read_text()
    run.metrics_path.write_text("nonsense\n" + text)
    with pytest.raises(ValueError, match=rf"{run.metrics_path}: line 1 is damaged"):
        compare_runs(first, second)
    run.metrics_path.write_text("")
    with pytest.raises(ValueError, match=f"{run.path} has no evaluation in its records"):
        compare_runs(first, second)


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ({"a": [1.0, 2.0]}, {"b": [1.0, 2.0]}, {}, "differ; compare scores of the same tasks"),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}, {}, "first has 1 run of a"),
        ({"a": [1.0, np.nan]}, {"a": [1.0, 2.0]}, {}, "no NaN"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}, {"scale": {"b": (0, 1)}}, "there is no task 'b'"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}, {"scale": {"a": (1, 1)}}, "the second must be the larger"),
        ({"a": [5.0, 5.0], "b": [1, 2]}, {"a": [5.0, 5.0], "b": [1, 2]}, {}, "all runs of a score 5"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(first, second, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        compare_scores(first, second, **options)
