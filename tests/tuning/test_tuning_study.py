"""A search: real processes, Optuna's real database; killed, it goes on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

from lockstep import PPOConfig, tune
from lockstep.analysis import Interval
from lockstep.cli import main
from lockstep.recipes.training import find_settings
from lockstep.tuning import Range, TrialRow, TuneResult
from lockstep.tuning.pictures import search_figure
from lockstep.tuning.study import _locked

SMALL = {
    "reporting.total_steps": 256,
    "reporting.steps_per_epoch": 64,
    "training.train_batch_size": 64,
    "training.minibatch_size": 32,
    "training.num_epochs": 1,
    "evaluation.evaluation_duration": 4,
    "rl_module.model_config": {"hiddens": [8]},
}
SPACE = {"training.lr": Range(1e-4, 1e-1, log=True), "training.num_epochs": Range(choices=(1, 2))}
OPTIONS = {"recipe": False, "settings": SMALL, "space": SPACE}


def study_of(folder):
    return optuna.load_study(study_name=None, storage=f"sqlite:///{folder / 'study.db'}")


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of three trials, two at once, and what its table showed."""
    shown = []
    root = tmp_path_factory.mktemp("tune")
    result = tune("ppo", "CartPole-v1", trials=3, jobs=2, final_seeds=1, root=root, on_change=shown.append, **OPTIONS)
    return result, shown


@pytest.mark.long
def test_the_first_trial_has_the_initial_settings(searched):
    result, shown = searched
    assert [row.number for row in result.trials] == [0, 1, 2]
    assert result.trials[0].values == {"training.lr": PPOConfig().lr, "training.num_epochs": 1}
    assert result.best.score == max(row.score for row in result.trials)
    assert result.config.training.lr == result.best.values["training.lr"]
    assert len({row.values["training.lr"] for row in result.trials}) == 3
    assert {row.state for rows in shown for row in rows} >= {"running", "complete"}
    assert len({(row.number, row.state) for row in shown[-1]}) == 3


@pytest.mark.long
def test_the_best_settings_are_a_file_that_training_takes(searched):
    result, _ = searched
    file = json.loads((result.path / "best.json").read_text())
    again = find_settings("ppo", "CartPole-v1", file=("best.json", file)).config
    assert again.to_dict() == result.config.to_dict()
    assert (result.path / "search.png").stat().st_size > 10_000


def test_the_picture_numbers_whole_trials_and_its_legend_covers_none():
    pytest.importorskip("matplotlib")
    figure = search_figure([120.0, 400.0, None], {"training.lr": 1.0})
    figure.draw_without_rendering()
    panel = figure.axes[0]
    assert all(float(number).is_integer() for number in panel.get_xticks())
    legend = figure.legends[0].get_window_extent()
    assert legend.y1 < panel.get_window_extent().y0


@pytest.mark.long
def test_new_seeds_compare_the_best_settings_with_those_of_the_start(searched):
    result, _ = searched
    assert set(result.final) == ({"start"} if result.best.number == 0 else {"best", "start"})
    for which, returns in result.final_returns.items():
        number = result.best.number if which == "best" else 0  # another best trial later has seeds of its own
        files = sorted((result.path / f"final_{number:04d}").glob("seed_*.json"))
        assert [file.stem for file in files] == ["seed_100000"]
        assert returns == tuple(np.mean(json.loads(file.read_text())) for file in files)


@pytest.mark.long
def test_the_same_call_adds_trials_and_repeats_none(searched):
    result, _ = searched
    more = tune("ppo", "CartPole-v1", trials=4, final_seeds=0, root=result.path.parent, **OPTIONS)
    assert more.trials[:3] == result.trials
    assert [row.number for row in more.trials] == [0, 1, 2, 3]
    assert more.final == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"space": {"training.lr": Range(1e-3, 1e-1, log=True)}}, "another space: training.lr.low=0.0001, now 0.001"),
        ({"settings": {**SMALL, "training.gamma": 0.9}}, "another setting: training.gamma=0.99, now 0.9"),
        ({"trials": 0}, "trials"),
        ({"jobs": 0}, "jobs"),
        ({"settings": {**SMALL, "evaluation.evaluation_interval": 0}}, "evaluation_interval"),
    ],
)
@pytest.mark.long
def test_a_different_search_is_refused_and_the_study_is_unchanged(searched, other, words):
    result, _ = searched
    before = (result.path / "study.db").read_bytes()
    with pytest.raises(ValueError, match=words):
        tune("ppo", "CartPole-v1", root=result.path.parent, **{**OPTIONS, "trials": 9, **other})
    assert (result.path / "study.db").read_bytes() == before


@pytest.mark.long
def test_two_searches_in_one_study_are_refused(searched):
    result, _ = searched
    with _locked(result.path / "lock", ""), pytest.raises(ValueError, match=r"another process.*--study"):
        tune("ppo", "CartPole-v1", trials=9, root=result.path.parent, **OPTIONS)


@pytest.mark.long
def test_the_command_shows_each_trial_and_how_to_train_the_best(tmp_path, capsys):
    words = ["tune", "ppo", "CartPole-v1", "--trials=1", "--final-seeds=0", "--no-recipe", f"--root={tmp_path}"]
    (tmp_path / "space.json").write_text('{"training.minibatch_size": {"choices": [32, 64]}}')
    settings = [f"--set={path}={json.dumps(value)}" for path, value in SMALL.items()]
    settings += ["--seed=1", f"--space={tmp_path / 'space.json'}", f"--config={tmp_path / 'file.json'}"]
    (tmp_path / "file.json").write_text('{"training": {"gamma": 0.5}, "reporting": {"total_steps": 512}}')
    settings = ["--total-steps=256", *(each for each in settings if "total_steps" not in each)]
    assert main([*words, *settings]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 trials of 256 steps: at most 1 runs, 256 steps")
    assert "trial 0 complete, return" in said
    assert "No trial was better" in said
    (best,) = tmp_path.glob("*/best.json")
    assert f"--config {best} --total-steps 512" in "".join(said.split("\n"))
    found = json.loads(best.read_text())
    assert (found["training"]["gamma"], found["reporting"]["total_steps"]) == (0.5, 256)


@pytest.mark.parametrize(("finals", "how"), [({"best": Interval(1.0, 0.0, 2.0)}, "those above"), ({}, "--final-seeds")])
def test_the_last_words_of_the_command_doubt_the_best_return(finals, how, monkeypatch, tmp_path, capsys):
    rows = tuple(TrialRow(i, "complete", 256, float(i), {}) for i in range(3))
    result = TuneResult(PPOConfig(), rows[2], rows, tmp_path, finals, dict.fromkeys(finals, (1.0,)))
    monkeypatch.setattr("lockstep.cli.tune.tune", lambda *_, **__: result)
    assert main(["tune", "ppo", "CartPole-v1"]) == 0
    last = " ".join(capsys.readouterr().out.splitlines()[-2:])
    assert "the best of 3 noisy ones" in last
    assert how in last


@pytest.mark.long
def test_a_search_whose_trials_all_fail_says_why(tmp_path):
    broken = {**SMALL, "environment.env_config": {"no_such_option": 1}}
    with pytest.raises(RuntimeError, match=r"no trial came to its end.*no_such_option"):
        tune("ppo", "CartPole-v1", trials=1, root=tmp_path, **{**OPTIONS, "settings": broken})


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_search_that_dies_five_times_is_the_study_that_nobody_disturbed(tmp_path):
    """kill -9 of the search and all its processes; no trial is lost or doubled, each has its values and its score."""
    words = [sys.executable, "-m", "lockstep.cli", "tune", "ppo", "CartPole-v1", "--trials=8", "--no-recipe"]
    words += [f"--set={path}={json.dumps(value)}" for path, value in SMALL.items()]
    words += ["--final-seeds=1"]
    rng, root = random.Random(0), Path(tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def search(name):
        return [*words, f"--root={root / name}", "--study=s"]

    subprocess.run(search("whole"), env=env, check=True, capture_output=True, timeout=600)
    for _ in range(5):
        process = subprocess.Popen(search("killed"), env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(4.0, 9.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(search("killed"), env=env, check=True, capture_output=True, timeout=600)
    assert [number for number, *_ in trials_of(root / "killed/s")] == list(range(8))
    assert trials_of(root / "killed/s") == trials_of(root / "whole/s")
    read = [(root / name / "s" / "best.json").read_text() for name in ("whole", "killed")]
    assert read[0] == read[1]


def trials_of(folder):
    trials = optuna.load_study(study_name="s", storage=f"sqlite:///{folder / 'study.db'}").trials
    return [(each.number, each.state.name, each.params, each.values, each.intermediate_values) for each in trials]


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_an_interrupted_search_ends_in_order_and_can_be_continued(tmp_path):
    """Ctrl-C reaches all processes of a terminal, `kill -INT` the command alone: with both no trial is cut short."""
    steps = {"reporting.total_steps": 2_000, "reporting.steps_per_epoch": 2_000}  # one evaluation, at the end
    words = [sys.executable, "-m", "lockstep.cli", "tune", "ppo", "CartPole-v1", "--trials=3", "--no-recipe"]
    words += [f"--set={path}={json.dumps(value)}" for path, value in {**SMALL, **steps}.items()]
    words += ["--final-seeds=1", "--study=s"]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "text": True, "stdout": subprocess.PIPE}

    def interrupted(what, send, code=signal.SIGINT):
        """Interrupt a search as soon as there are such files; return how it ended."""
        search = [*words, f"--root={tmp_path}"]
        with subprocess.Popen(search, start_new_session=True, stderr=subprocess.PIPE, **options) as process:
            while not list((tmp_path / "s").glob(what)):
                assert process.poll() is None
                time.sleep(0.01)
            send(process.pid, code)
            said = process.communicate(timeout=60)[1]  # all that write there have ended
        return process.returncode, said

    told = "interrupted; the same command continues: trials that ended are kept, the other ones are repeated\n"
    assert interrupted("trial_0000/*/config.json", os.killpg) == (130, told)
    assert [state for _, state, *_ in trials_of(tmp_path / "s")] == ["RUNNING"]
    assert interrupted("trial_0001/*/config.json", os.kill) == (130, told)
    assert [state for _, state, *_ in trials_of(tmp_path / "s")] == ["COMPLETE", "RUNNING"]
    assert interrupted("trial_0001/*/config.json", os.kill, signal.SIGKILL) == (-signal.SIGKILL, "")
    assert interrupted("final_*/*/*/config.json", os.killpg) == (130, told)
    found, best = trials_of(tmp_path / "s"), (tmp_path / "s/best.json").read_text()
    assert [state for _, state, *_ in found] == ["COMPLETE"] * 3
    assert not list((tmp_path / "s").glob("final_*/seed_*.json"))
    subprocess.run([*words, f"--root={tmp_path}"], check=True, timeout=100, **options)
    subprocess.run([*words, f"--root={tmp_path / 'whole'}"], check=True, timeout=200, **options)
    assert trials_of(tmp_path / "s") == trials_of(tmp_path / "whole/s") == found
    assert (tmp_path / "whole/s/best.json").read_text() == (tmp_path / "s/best.json").read_text() == best
    finals = [sorted((tmp_path / name).glob("s/final_*/seed_*.json")) for name in ("", "whole")]
    assert finals[0]
    assert [file.read_text() for file in finals[0]] == [file.read_text() for file in finals[1]]


@pytest.mark.faults
def test_a_trial_that_stays_behind_is_given_up_early(tmp_path):
    """With a rate of nearly 0 nothing is learned."""
    space = {"training.lr": Range(choices=(1e-3, 1e-12))}
    settings = {**SMALL, "reporting.total_steps": 6_000, "reporting.steps_per_epoch": 1_000, "training.num_epochs": 6}
    result = tune(
        "ppo", "CartPole-v1", trials=10, root=tmp_path, recipe=False, settings=settings, space=space, final_seeds=0
    )
    pruned = [row for row in result.trials if row.state == "pruned"]
    assert pruned
    assert all(row.number >= 5 and row.step < 6_000 for row in pruned)
    assert result.best.values["training.lr"] == 1e-3
