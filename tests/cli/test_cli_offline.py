"""`lockstep train` with an offline algorithm: its recipe, other data, and what is said where there are none."""

import numpy as np
import pytest

from lockstep import SampleBatch


@pytest.fixture
def no_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.usefixtures("no_datasets")
def test_a_recipe_without_its_data_says_how_to_make_or_replace_them(lockstep, tmp_path):
    said = lockstep("train", "bc", "CartPole-v1", "--root", "runs")
    assert said.code == 2
    assert "there is no Minari dataset 'lockstep/cartpole/expert-v0'" in said.err
    assert "python benchmarks/learning/make_offline_data.py makes it" in said.err
    assert "--set offline_data.input_=PATH" in said.err
    assert not list((tmp_path / "runs").glob("*"))
    said = lockstep("train", "bc", "CartPole-v1", "--no-recipe")
    assert said.code == 2
    assert "offline_data.input_ is not set" in said.err
    assert "--set offline_data.input_=PATH" in said.err


@pytest.mark.usefixtures("no_datasets")
def test_an_offline_recipe_trains_on_given_data_and_resumes(lockstep, tmp_path):
    rng = np.random.default_rng(0)
    SampleBatch(obs=rng.random((300, 4), np.float32), actions=rng.integers(0, 2, 300)).to_npz(tmp_path / "some.npz")
    options = ("--set", "evaluation.evaluation_duration=2", "--set", "reporting.steps_per_epoch=20")
    given = ("--set", "offline_data.input_=some.npz", "--total-steps", "20", *options)
    said = lockstep("train", "bc", "CartPole-v1", *given)
    assert said.code == 0, said.err
    assert "the recipe for bc on CartPole-v1" in said.out
    assert "20 gradient steps" in said.out
    (run,) = (tmp_path / "runs").iterdir()
    again = lockstep("resume", str(run), "--total-steps", "40")
    assert again.code == 0, again.err
    assert "40 gradient steps" in again.out
