"""Interquartile mean, its bootstrap interval, and learning curves."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from lockstep.tracking import JsonlLogger, RunFolder, iqm, iqm_bootstrap, plot_runs, read_curve
from lockstep.tracking.plots import Curve, align_curves


def test_iqm_of_written_out_cases() -> None:
    assert iqm(np.array([7.0])) == 7.0
    assert iqm(np.array([1.0, 3.0])) == 2.0
    assert iqm(np.array([0.0, 4.0, 11.0])) == 5.0  # no whole score is a quarter of three
    assert iqm(np.array([100.0, 2.0, 4.0, -50.0])) == 3.0
    assert iqm(np.array([9e9, 1.0, 2.0, 6.0, -9e9])) == 3.0
    assert iqm(np.array([np.inf, 2.0, 4.0, -np.inf])) == 3.0


@given(rows=st.integers(1, 20), seed=st.integers(0, 1000))
def test_iqm_is_the_trimmed_mean_and_does_not_depend_on_order(rows: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(rows, 3))
    # sums in another order: apart by the rounding of scores of size 1, however near 0 their mean is
    np.testing.assert_allclose(iqm(scores), trim_mean(scores, 0.25), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(iqm(scores[::-1]), iqm(scores), rtol=1e-12)
    np.testing.assert_allclose(iqm(scores.T, axis=1), iqm(scores), rtol=1e-12)


def test_bootstrap_of_one_or_two_runs_can_be_written_out() -> None:
    assert [float(part) for part in iqm_bootstrap(np.array([5.0]))] == [5.0, 5.0, 5.0]
    # of two runs the resampled mean is 0, 5 or 10 with chances 1/4, 1/2, 1/4
    interval = iqm_bootstrap(np.array([0.0, 10.0]))
    assert [float(part) for part in interval] == [5.0, 0.0, 10.0]
    narrow = iqm_bootstrap(np.array([0.0, 10.0]), confidence=0.4)
    assert [float(part) for part in narrow] == [5.0, 5.0, 5.0]


def test_bootstrap_is_stratified() -> None:
    """Two tasks of two equal runs each: drawing within a task changes nothing, drawing over all would."""
    interval = iqm_bootstrap([np.array([0.0, 0.0]), np.array([10.0, 10.0])])
    assert [float(part) for part in interval] == [5.0, 5.0, 5.0]
    over_all = iqm_bootstrap(np.array([0.0, 0.0, 10.0, 10.0]))
    assert over_all.low < 5.0 < over_all.high


def test_bootstrap_draws_runs_whole() -> None:
    """The points of one run stay together: with y = -x in every run, the bounds mirror each other."""
    first = np.random.default_rng(0).normal(size=7)
    interval = iqm_bootstrap(np.stack([first, -first], axis=1))
    np.testing.assert_allclose(interval.low, -interval.high[::-1], rtol=1e-9)


def test_bootstrap_covers_the_true_value_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for trial in range(200):
        interval = iqm_bootstrap(rng.normal(1.0, 2.0, size=40), num_resamples=300, seed=trial)
        inside += bool(interval.low <= 1.0 <= interval.high)
    assert 176 <= inside <= 199  # 95 % of 200 is 190


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.empty((0, 3)), "at least one score"),
        (np.array([1.0, np.nan]), "no NaN"),
        ([np.ones((2, 3)), np.ones((2, 4))], "must match"),
    ],
)
def test_bootstrap_refusals(scores: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iqm_bootstrap(scores)


def make_run(root: Path, algo: str = "ppo", env: str = "CartPole-v1", seed: int = 0, scale: float = 1.0) -> RunFolder:
    run = RunFolder.create(root, algo=algo, env=env, seed=seed, config={})
    with JsonlLogger(run.metrics_path) as logger:
        for step in range(0, 5000, 1000):
            logger.log_test_data({"returns_stat": {"mean": scale * step, "std": 1.0}, "lens_stat": {"mean": 3}}, step)
            logger.log_train_data({"returns_stat": {"mean": 0.0}}, step)
    return run


def test_a_curve_is_read_from_the_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with JsonlLogger(run.metrics_path, resume=True) as logger:
        logger.log_test_data({"returns_stat": {"mean": float("nan")}}, 5000)
        logger.log_test_data({"returns_stat": {"mean": None}}, 6000)
        logger.log_test_data({"returns_stat": {"mean": 77.0}}, 4000)
    curve = read_curve(run.path)
    assert curve.steps.tolist() == [0, 1000, 2000, 3000, 4000]
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
    from lockstep.tracking.plots import draw_runs

    runs = [make_run(tmp_path, seed=seed, scale=1 + seed).path for seed in range(3)]
    runs += [make_run(tmp_path, algo="a2c").path]
    (panel,) = draw_runs(runs).axes
    assert panel.get_title() == "CartPole-v1"
    assert panel.get_xlabel() == "environment steps"
    assert panel.get_ylabel() == "evaluation return"
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["PPO, IQM of 3 runs", "95 % bootstrap interval", "A2C", "± std over episodes"]
    drawn = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
    expected = iqm(np.array([[1.0], [2.0], [3.0]]) * np.arange(0, 5000, 1000))
    np.testing.assert_allclose(drawn["PPO, IQM of 3 runs"], expected)


def test_plots_refuse_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        plot_runs([], tmp_path / "p.png")
    with pytest.raises(ValueError, match="no run at"):
        plot_runs(tmp_path, tmp_path / "p.png")
    run = make_run(tmp_path)
    run.metrics_path.write_text("")
    with pytest.raises(ValueError, match="it has: none"):
        plot_runs(run.path, tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()
