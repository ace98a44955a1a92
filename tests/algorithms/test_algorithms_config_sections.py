"""`AlgorithmConfig`: sections about faults, offline data and whole episodes."""

import numpy as np
import pytest
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.data import SampleBatch, write_rows
from lockstep.state.restarts import RestartLimits


@pytest.fixture
def rows(tmp_path):
    batch = SampleBatch({"observation": np.arange(12.0).reshape(6, 2), "rewards": np.arange(6.0)})
    return write_rows(tmp_path / "data.rows", batch)


def test_fault_tolerance_gives_the_limits_of_restarts_to_learners_env_runners_and_environments():
    section = PPOConfig().sections["fault_tolerance"]
    assert section.learner_limits == section.env_runner_limits == section.env_limits == RestartLimits(10, 1, 60.0)
    config = PPOConfig().fault_tolerance(
        max_learner_restarts=5,
        max_env_restarts=6,
        max_restarts_in_window=4,
        restart_window_s=2.0,
        restart_failed_env_runners=False,
    )
    section = config.sections["fault_tolerance"]
    assert section.learner_limits == RestartLimits(5, 4, 2.0)
    assert section.env_limits == RestartLimits(6, 4, 2.0)
    assert section.env_runner_limits.in_run == 0


def test_offline_data_names_the_rows_that_build_offline_data_opens(rows):
    dataset = PPOConfig().offline_data(input_=rows).build_offline_data()
    assert dataset.columns == ("observation", "rewards")
    assert len(dataset) == 6
    config = PPOConfig().offline_data(input_=[str(rows)] * 2, columns={"obs": "observation"}, max_memory_bytes=0)
    dataset = config.build_offline_data()
    assert dataset.columns == ("obs",)
    np.testing.assert_array_equal(dataset[[0, 11]]["obs"], [[0.0, 1.0], [10.0, 11.0]])
    assert PPOConfig().update_from_dict(config.to_dict()) == config


def test_offline_data_takes_a_path_through_json(rows):
    config = PPOConfig().offline_data(input_=rows)
    assert PPOConfig().update_from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({}, ValueError, "offline_data.input_ is not set"),
        ({"input_": []}, ValueError, r"offline_data.input_=\[\] names no file"),
        ({"input_": [3]}, TypeError, r"offline_data.input_=\[3\] must be the path of a file"),
        ({"input_": "nowhere.rows"}, FileNotFoundError, "nowhere.rows"),
    ],
)
def test_offline_data_refuses_with_the_option_named(options, error, message):
    with pytest.raises(error, match=message):
        PPOConfig().offline_data(**options).build_offline_data()


def test_offline_data_names_a_column_that_is_not_in_the_files(rows):
    with pytest.raises(KeyError, match="has no column 'obs'; columns are"):
        PPOConfig().offline_data(input_=rows, columns={"x": "obs"}).build_offline_data()


def test_batch_mode_complete_episodes_trains_on_whole_episodes_only():
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=3, batch_mode="complete_episodes")
        .training(train_batch_size=60, minibatch_size=20, num_epochs=1)
        .rl_module(model_config={"hiddens": (4,)})
        .reporting(total_steps=120, steps_per_epoch=60)
        .evaluation(evaluation_interval=0)
    )
    trainer = config.build_trainer()
    collects = []
    collect = trainer.collector.collect

    def watched(**amount):
        collects.append(collect(**amount))
        return collects[-1]

    trainer.collector.collect = watched
    info = trainer.run()
    assert len(collects) >= 1
    for stats in collects:
        assert stats.n_collected_steps == sum(stats.lens) >= 60
        assert stats.n_collected_episodes % 3 == 0
    assert info.train_step == sum(stats.n_collected_steps for stats in collects)


def test_attributes_that_are_assigned_are_treated_like_options_of_a_section():
    config = PPOConfig().environment(
        observation_space=spaces.Box(-1, 1, (2,), np.float32), action_space=spaces.Discrete(2)
    )
    config.model_config = {"hiddens": (3,)}
    config.freeze().validate()
    assert config.model_config.hiddens == (3,)
