"""`trainable`: Ray Tune's own class, stepped, saved, restored and given other settings."""

import sys
from pathlib import Path

import pytest

from lockstep import PPOConfig
from lockstep.cluster import trainable

tune = pytest.importorskip("ray.tune")
EXAMPLES = Path(__file__).parents[2] / "examples"


def config():
    made = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    made.training(train_batch_size=64, minibatch_size=32, num_epochs=2).evaluation(evaluation_duration=2)
    return made.reporting(total_steps=256, steps_per_epoch=64)


def weights(trial):
    return trial.trainer.policy.module.state_dict()


def test_a_step_is_an_epoch_and_the_last_one_is_done():
    trial = trainable(config())(config={"training.lr": 0.01})
    results = [trial.train() for _ in range(4)]
    trial.stop()
    assert [result["env_steps"] for result in results] == [64, 128, 192, 256]
    assert [result["done"] for result in results] == [False, False, False, True]
    assert all(result["episode_return_mean"] > 0 for result in results)
    assert trial.trainer.policy.config.training.lr == 0.01


def test_a_restored_trial_goes_on_bit_by_bit(tmp_path):
    kind = trainable(config())
    first, whole = kind(config={}), kind(config={})
    for _ in range(2):
        first.train()
    saved = first.save(str(tmp_path))
    second = kind(config={})
    second.restore(saved)
    for _ in range(2):
        second.train()
    for _ in range(4):
        whole.train()
    assert all(weights(second)[name].equal(value) for name, value in weights(whole).items())
    assert any(not weights(first)[name].equal(value) for name, value in weights(whole).items())


def test_other_settings_go_on_with_the_weights_of_another_trial(tmp_path):
    kind = trainable(config())
    ahead, behind = kind(config={"training.lr": 1e-3}), kind(config={"training.lr": 1e-2})
    ahead.train()
    saved = ahead.save(str(tmp_path))
    assert behind.reset_config({"training.lr": 5e-3})
    behind.restore(saved)
    assert all(weights(behind)[name].equal(value) for name, value in weights(ahead).items())
    assert behind.train()["env_steps"] == 128
    assert behind.trainer.policy.config.training.lr == 5e-3


def test_an_option_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match=r"learning_rate.*did you mean"):
        trainable(config())(config={"training.learning_rate": 0.01})


@pytest.mark.faults
def test_the_example_trains_a_population(cluster, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        best = __import__("population_based").main(total_steps=20_000, population=3, root=str(tmp_path))
    finally:
        sys.modules.pop("population_based", None)
    assert best.metrics["episode_return_mean"] > 100
    assert 1e-4 / 2 < best.config["training.lr"] < 2e-2
