"""Learning curves: read, aligned, smoothed, grouped and drawn."""

from pathlib import Path

import numpy as np
import pytest
from tracked_runs import make_run

from lockstep.analysis import iqm, plot_runs, read_curve
from lockstep.analysis.plots import MAX_POINTS, Curve, align_curves, draw_runs, smoothed
from lockstep.tracking import JsonlLogger


def test_a_curve_is_read_from_the_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with JsonlLogger(run.metrics_path, resume=True) as logger:
        logger.log_test_data({"returns_stat": {"mean": float("nan")}}, 5000)
        logger.log_test_data({"returns_stat": {"mean": None}}, 6000)
        logger.log_test_data({"returns_stat": {"mean": 77.0}}, 4000)
    curve = read_curve(run.path)
    assert curve.x.tolist() == [0, 1000, 2000, 3000, 4000]
    assert curve.values.tolist() == [0, 1000, 2000, 3000, 77.0]
    assert curve.spread.tolist()[:4] == [1.0] * 4
    assert np.isnan(curve.spread[4])
    with pytest.raises(ValueError, match=r"no record of test/nothing; it has: .*test/lens_stat/mean"):
        read_curve(run.path, "nothing")


def test_curves_are_compared_only_where_all_runs_have_been() -> None:
    nothing = np.full(3, np.nan)
    first = Curve(np.array([0, 10, 20]), np.array([0.0, 10.0, 20.0]), nothing)
    second = Curve(np.array([5, 15, 40]), np.array([1.0, 1.0, 1.0]), nothing)
    steps, values = align_curves([first, second])
    assert steps.tolist() == [5, 10, 15, 20]
    assert values.tolist() == [[5.0, 10.0, 15.0, 20.0], [1.0] * 4]
    with pytest.raises(ValueError, match="in common"):
        align_curves([first, Curve(np.array([50]), np.array([1.0]), nothing[:1])])


def test_plots_of_one_and_of_many_runs_are_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    runs = [make_run(tmp_path, seed=seed, scale=1 + seed / 10) for seed in range(3)]
    runs += [make_run(tmp_path, algo="a2c", seed=seed, scale=0.5) for seed in range(2)]
    runs += [make_run(tmp_path, env="Acrobot-v1")]
    one = plot_runs(runs[0].path, tmp_path / "new" / "one.png")
    many = plot_runs([run.path for run in runs], tmp_path / "many.png")
    pictures = image.imread(one), image.imread(many)
    for picture in pictures:
        assert (picture[..., :3].min(axis=-1) < 0.5).sum() > 1000  # something is drawn
    assert pictures[1].shape[1] > 1.9 * pictures[0].shape[1]  # a panel for each environment


def test_figures_say_what_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path, seed=seed, scale=1 + seed).path for seed in range(3)]
    runs += [make_run(tmp_path, algo="a2c").path]
    (panel,) = draw_runs(runs).axes
    assert panel.get_title() == "CartPole-v1"
    assert panel.get_xlabel() == "environment steps"
    assert panel.get_ylabel() == "evaluation return"
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["PPO, IQM of 3 runs", "A2C", "95 % bootstrap interval", "± std over episodes"]
    drawn = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
    expected = iqm(np.array([[1.0], [2.0], [3.0]]) * np.arange(0, 5000, 1000))
    np.testing.assert_allclose(drawn["PPO, IQM of 3 runs"], expected)


def test_long_settings_are_a_table_below_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = [{f"option_{name}": step for name in "abcdefgh"} for step in (1, 2)]
    figure = draw_runs([make_run(tmp_path, replay=each).path for each in options])
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names[:2] == ["PPO 1", "PPO 2"]
    figure.canvas.draw()
    below = figure.subfigs[1]
    words = " ".join(text.get_text() for text in below.texts)
    assert words.count("option_h=") == 2
    boxes = [text.get_window_extent() for text in below.texts]
    width, _ = figure.canvas.get_width_height()
    panel = figure.axes[0].get_tightbbox()
    assert all(box.x1 <= width and box.y0 >= 0 and box.y1 <= panel.y0 for box in boxes)
    assert len(draw_runs(make_run(tmp_path / "one").path).subfigs) == 0


def test_a_dollar_in_a_name_is_a_letter(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path, env="$\\frac{$", lr=text).path for text in ("$\\sqrt{", "b")]
    figure = draw_runs(runs)
    figure.canvas.draw()
    assert r"\$\sqrt{" in figure.axes[0].get_legend().get_texts()[0].get_text()


def test_plots_refuse_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run's folder"):
        plot_runs([], tmp_path / "p.png")
    with pytest.raises(ValueError, match="no run at"):
        plot_runs(tmp_path, tmp_path / "p.png")
    run = make_run(tmp_path)
    run.metrics_path.write_text("")
    with pytest.raises(ValueError, match="it has: none"):
        plot_runs(run.path, tmp_path / "p.png")
    run.metrics_path.unlink()
    with pytest.raises(ValueError, match=r"is damaged: it has no metrics\.jsonl"):
        plot_runs(run.path, tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def legend(figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.get_legend().get_texts()]


def test_runs_of_different_settings_are_different_curves(tmp_path: Path) -> None:
    """What differs is named, seeds are no difference, and each environment has a panel of its own."""
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path, seed=seed, scale=lr, lr=lr).path for lr in (1.0, 2.0) for seed in range(2)]
    assert legend(draw_runs(runs))[:2] == ["PPO lr=1, IQM of 2 runs", "PPO lr=2, IQM of 2 runs"]
    assert [text for text in legend(draw_runs(runs[:2])) if "PPO" in text] == ["PPO, IQM of 2 runs"]
    drawn = {line.get_label(): line.get_ydata()[-1] for line in draw_runs(runs).axes[0].get_lines()}
    assert drawn["PPO lr=2, IQM of 2 runs"] == 2 * drawn["PPO lr=1, IQM of 2 runs"] == 8000
    named = draw_runs(runs, labels=["slow", "fast"])
    assert legend(named)[:2] == ["slow, IQM of 2 runs", "fast, IQM of 2 runs"]
    by_seed = draw_runs(runs, group_by=["debugging.seed"])
    assert legend(by_seed)[:2] == ["PPO seed=0, IQM of 2 runs", "PPO seed=1, IQM of 2 runs"]


def test_curves_run_over_steps_seconds_or_gradient_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with JsonlLogger(run.metrics_path, resume=True) as logger:
        logger.save_data(1, 2000, 100)
        logger.save_data(2, 4000, 500)
        logger.log_update_data({"entropy": 0.5}, 300)
    assert read_curve(run.path, x="gradient_steps").x.tolist() == [0, 50, 100, 300, 500]
    assert read_curve(run.path, "entropy", "update", "gradient_steps").x.tolist() == [300]
    assert read_curve(run.path, "entropy", "update").x.tolist() == [3000]
    assert read_curve(run.path, x="seconds").x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="x='epochs' is not allowed"):
        read_curve(run.path, x="epochs")
    with pytest.raises(ValueError, match="no record of environment steps together with gradient steps"):
        read_curve(make_run(tmp_path, seed=5).path, x="gradient_steps")
    pytest.importorskip("matplotlib")
    labels = [draw_runs(run.path, x=x).axes[0].get_xlabel() for x in ("steps", "seconds", "gradient_steps")]
    assert labels == ["environment steps", "seconds of the run", "gradient steps"]


def test_an_offline_run_counts_gradient_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, algo="bc", offline_data={"input_": "data"})
    with JsonlLogger(run.metrics_path, resume=True) as logger:
        logger.save_data(1, 0, 4000)
    assert read_curve(run.path, x="gradient_steps").x.tolist() == read_curve(run.path).x.tolist()
    pytest.importorskip("matplotlib")
    assert draw_runs(run.path).axes[0].get_xlabel() == "gradient steps"


def test_smoothing_is_the_mean_of_past_points_and_is_shown_in_the_picture(tmp_path: Path) -> None:
    curve = Curve(np.arange(4), np.array([0.0, 2.0, 4.0, 12.0]), np.ones(4))
    assert smoothed(curve, 1) is curve
    assert smoothed(curve, 3).values.tolist() == [0.0, 1.0, 2.0, 6.0]
    assert np.isnan(smoothed(curve, 3).spread).all()
    with pytest.raises(ValueError, match="smooth=0 is not allowed"):
        smoothed(curve, 0)
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path).path
    assert draw_runs(run, smooth=3).get_supxlabel() == "smoothed: each point is the mean of 3 evaluations"
    assert draw_runs(run).get_supxlabel() == ""


def test_long_curves_are_thinned_where_they_meet() -> None:
    x = np.arange(10 * MAX_POINTS)
    curve = Curve(x, x.astype(float), np.full(len(x), np.nan))
    steps, values = align_curves([curve, curve])
    assert len(steps) == MAX_POINTS
    assert (steps[0], steps[-1]) == (0, x[-1])
    assert (values == steps).all()


def test_a_run_without_evaluations_says_that_training_returns_are_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.metrics_path.write_text("".join(line for line in run.metrics_path.open() if '"scope": "test"' not in line))
    with pytest.raises(ValueError, match=r"no evaluation in its records .*; scope 'train' has returns_stat/mean"):
        read_curve(run.path)
