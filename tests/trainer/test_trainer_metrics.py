"""Metrics that the algorithms report in the `metrics.jsonl` of a run."""

import pytest
from algorithm_cases import exploring_by
from parts import one_in
from trainer_tools import smallest_config

import lockstep
from lockstep.tracking.records import read_metrics


def metrics_of(config, scope, folder):
    """Run it, and return the data of all records of this scope."""
    config.evaluation(evaluation_interval=0)
    config.reporting(logger_config={"jsonl": {f"{scope}_interval": 1}})
    path = lockstep.train(config, root=folder).path
    return [record["data"] for record in read_metrics(path) if record["scope"] == scope]


@pytest.mark.parametrize("algorithm", one_in(4, exploring_by("epsilon")))
def test_epsilon_is_reported_for_each_collect(algorithm, tmp_path):
    config = smallest_config(algorithm).training(epsilon=[[0, 1.0], [100, 0.5]])
    found = [data["epsilon"] for data in metrics_of(config, "train", tmp_path)]
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert 0.5 < found[-1] < 0.9


def test_noise_in_weights_has_no_epsilon_to_report(tmp_path):
    found = metrics_of(smallest_config(exploring_by("noisy")[0]), "train", tmp_path)
    assert found
    assert not any("epsilon" in data for data in found)


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_clip_fraction_is_reported_for_each_update(algorithm, tmp_path):
    config = smallest_config(algorithm).training(lr=1e-2, clip_param=0.01, num_epochs=3)
    found = [data["clip_fraction"] for data in metrics_of(config, "update", tmp_path)]
    assert len(found) > 1
    assert all(0.0 < fraction < 1.0 for fraction in found)
