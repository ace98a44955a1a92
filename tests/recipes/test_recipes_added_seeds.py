"""`benchmarks/learning.py --add`: seeds that are added stand beside those made with the same settings only."""

import json

import pytest

SETTINGS = {"training": {"lr": 1e-3, "gamma": 0.99}, "framework": {"compile": False, "dtype": "float32"}}


@pytest.fixture
def learning(benchmark, monkeypatch):
    """The command's module with seeds that are made up: seed n returns n."""
    module = benchmark("learning")

    def run_seed(options, algorithm, env, seed):
        lr = json.loads(options.set[0].partition("=")[2]) if options.set else 1e-3
        config = {
            "training": {**SETTINGS["training"], "lr": lr, "new_option": None},
            "framework": {"compile": options.compile, "dtype": "float32"},
            "debugging": {"seed": seed},
        }
        numbers = {"final_return": float(seed), "steps_per_second": 1.0, "seconds": 1.0}
        return {"seed": seed, **numbers, "config": config, "lockstep": "0", "versions": {}}

    monkeypatch.setattr(module, "run_seed", run_seed)
    return module


def run(learning, *words):
    learning.run_seeds(learning.parse(["ppo", "CartPole-v1", "--name", "trial", *words]), "ppo", "CartPole-v1")


def result(learning):
    return json.loads((learning.report.RESULTS / "trial.json").read_text())


def test_added_seeds_stand_beside_the_earlier_ones_each_with_its_revision(learning):
    run(learning, "--seeds", "2")
    first = result(learning)["runs"]
    run(learning, "--add", "--first-seed", "3", "--seeds", "2", "--compile")
    record = result(learning)
    assert [run["seed"] for run in record["runs"]] == [0, 1, 3, 4]
    assert record["runs"][:2] == first
    assert (record["seeds"], record["median"], record["worst"], record["best"]) == (4, 2.0, 0.0, 4.0)
    assert [run["compile"] for run in record["runs"]] == [False, False, True, True]
    assert record["compile"] is False
    assert all("revision" in run and "date" in run for run in record["runs"])


def test_a_seed_that_is_run_again_takes_the_place_of_its_older_run(learning):
    run(learning, "--seeds", "2")
    run(learning, "--add", "--first-seed", "1", "--seeds", "1", "--compile")
    assert [(run["seed"], run["compile"]) for run in result(learning)["runs"]] == [(0, False), (1, True)]


def test_without_add_the_file_begins_anew(learning):
    run(learning, "--seeds", "2")
    run(learning, "--first-seed", "5", "--seeds", "1")
    assert [run["seed"] for run in result(learning)["runs"]] == [5]


def test_seeds_with_other_settings_are_refused_by_name_and_the_file_stays(learning):
    run(learning, "--seeds", "2")
    before = result(learning)
    with pytest.raises(SystemExit, match=r"training.lr: 0.001, now 0.01"):
        run(learning, "--add", "--first-seed", "2", "--seeds", "1", "--set", "training.lr=0.01")
    assert result(learning) == before
