"""Small functions of `lockstep_sb3.common.utils`, devices, and arguments that ask for what happens anyway."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Aim, Copy
from torch import nn

from lockstep_sb3 import A2C, PPO, SAC, get_system_info
from lockstep_sb3.common import utils
from lockstep_sb3.common.type_aliases import TrainFreq, TrainFrequencyUnit

SMALL = {"net_arch": [16]}


def test_schedules_have_their_values_at_the_remaining_progress():
    linear = utils.get_linear_fn(1.0, 0.2, 0.5)
    np.testing.assert_allclose([linear(left) for left in (1.0, 0.75, 0.5, 0.1)], [1.0, 0.6, 0.2, 0.2])
    assert utils.LinearSchedule(1.0, 0.1, 0.0)(1.0) == 0.1
    assert utils.constant_fn(3)(0.5) == 3
    for schedule in (utils.get_schedule_fn(3), utils.FloatSchedule(utils.FloatSchedule(lambda left: np.float32(3)))):
        assert type(schedule(0.5)) is float
        assert schedule(0.5) == 3.0


def test_statistics_have_their_written_out_values():
    assert utils.explained_variance(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 3)
    assert np.isnan(utils.explained_variance(np.ones(2), np.ones(2)))
    assert utils.safe_mean([1, 2, 6]) == 3.0
    assert np.isnan(utils.safe_mean([]))


def test_polyak_update_moves_targets_by_the_share_tau():
    params, targets = [torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 0.0])]
    utils.polyak_update(params, targets, 0.25)
    torch.testing.assert_close(targets[0], torch.tensor([0.25, 0.5]))
    with pytest.raises(ValueError, match="zip"):
        utils.polyak_update(params, [*targets, *targets], 0.25)


def test_optimizers_modules_and_observations_are_read_by_name():
    layer = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    utils.update_learning_rate(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert len(utils.get_parameters_by_name(layer, ["running_"])) == 2
    tensors = utils.obs_as_tensor({"a": np.ones(2)}, "cpu")
    assert tensors["a"].tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="list"):
        utils.obs_as_tensor([1.0], "cpu")


def test_runs_are_numbered_by_their_folders(tmp_path):
    assert utils.get_latest_run_id(str(tmp_path), "PPO") == 0
    for name in ("PPO_2", "PPO_11", "PPO_x", "PPO_long_30", "A2C_40"):
        (tmp_path / name).mkdir()
    assert utils.get_latest_run_id(str(tmp_path), "PPO") == 11
    assert utils.get_latest_run_id(str(tmp_path), "PPO_long") == 30


def test_train_frequencies_count_steps_or_episodes():
    steps, episodes = TrainFreq(4, TrainFrequencyUnit.STEP), TrainFreq(2, TrainFrequencyUnit.EPISODE)
    assert [utils.should_collect_more_steps(steps, number, 9) for number in (3, 4)] == [True, False]
    assert [utils.should_collect_more_steps(episodes, 99, number) for number in (1, 2)] == [True, False]


def test_batches_of_observations_are_told_from_single_ones():
    box = spaces.Box(-1.0, 1.0, (3,))
    assert not utils.is_vectorized_observation(np.zeros(3), box)
    assert utils.is_vectorized_observation(np.zeros((2, 3)), box)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        utils.is_vectorized_observation(np.zeros(4), box)
    space = spaces.Dict(a=box, b=spaces.Discrete(2))
    assert utils.is_vectorized_observation({"a": np.zeros((2, 3)), "b": np.zeros(2)}, space)
    with pytest.raises(ValueError, match="batches"):
        utils.is_vectorized_observation({"a": np.zeros((2, 3)), "b": np.zeros(())}, space)
    utils.check_for_correct_spaces(Copy(), Copy().observation_space, Copy().action_space)
    with pytest.raises(ValueError, match="action_space"):
        utils.check_for_correct_spaces(Copy(), Copy().observation_space, box)


def test_system_info_has_the_versions_of_the_libraries(capsys):
    versions, text = get_system_info()
    assert versions["PyTorch"] == torch.__version__
    assert text in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_without_cuda_becomes_the_cpu_with_a_warning(device):
    with pytest.warns(UserWarning, match="CUDA is not available"):
        model = A2C("MlpPolicy", Copy(), device=device, policy_kwargs=SMALL)
    assert model.device == torch.device("cpu")
    model.learn(5)
    assert utils.get_device("auto") == torch.device("cpu")


def test_arguments_that_ask_for_what_happens_anyway_are_accepted():
    anyway = {
        "net_arch": None,
        "use_expln": False,
        "full_std": True,
        "squash_output": False,
        "normalize_images": True,
        "optimizer_kwargs": None,
        "features_extractor_kwargs": None,
    }
    assert PPO("MlpPolicy", Copy(), policy_kwargs=anyway).config.rl_module.model_config.hiddens == (64, 64)
    options = {"use_sde": False, "sde_sample_freq": -1, "replay_buffer_kwargs": None, "_init_setup_model": True}
    model = SAC("MlpPolicy", Aim(), policy_kwargs={**anyway, "clip_mean": 2.0}, **options)
    assert model.config.rl_module.model_config.critic_hiddens == (256, 256)


def test_optimizer_options_hold_with_and_without_a_class():
    kwargs = {**SMALL, "optimizer_kwargs": {"weight_decay": 0.1, "eps": 1e-3}}
    model = SAC("MlpPolicy", Aim(), policy_kwargs=kwargs)
    training = model.config.training
    assert (training.optimizer_kwargs, training.adam_epsilon) == ({"weight_decay": 0.1}, 1e-3)
    model.learn(110)
    kwargs["optimizer_class"] = torch.optim.AdamW
    assert PPO("MlpPolicy", Copy(), policy_kwargs=kwargs).config.training.optimizer is torch.optim.AdamW
