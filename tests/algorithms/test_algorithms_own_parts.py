"""Parts that a user brings (networks, losses, columns, options) in forms that torch alone would answer in its words."""

import numpy as np
import pytest
import torch
from algorithm_tools import some_episodes
from gymnasium import spaces
from torch import nn

from lockstep import CQLConfig, DQNConfig, PPOConfig
from lockstep.algorithms import APPOConfig, PPOLearner
from lockstep.data import SampleBatch
from lockstep.data.files.dataset import write_rows
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.policy.offline_data import offline_source

OBS, BOX, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


# -- lazy layers ---


class Lazy(RLModule):
    """Learns the number of its inputs from the first observation."""

    def setup(self):
        self.policy, self.value = nn.LazyLinear(2), nn.LazyLinear(1)

    def _forward(self, batch):
        return {"action_dist_inputs": self.policy(batch["obs"])}

    def compute_values(self, batch):
        return self.value(batch["obs"])[..., 0]


class LazyNowhere(Lazy):
    def setup(self):
        super().setup()
        self.unused = nn.LazyLinear(4)


def own(module_class, observation_space=OBS):
    config = PPOConfig().environment(observation_space=observation_space, action_space=CHOICES)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).debugging(seed=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lazy_layers_get_their_sizes_when_the_network_is_built(dtype):
    policy = own(Lazy, spaces.Box(-1, 1, (3,), dtype)).build_policy()
    assert policy.module.policy.weight.shape == (2, 3)
    assert policy.compute_actions(np.zeros((5, 3))).shape == (5,)
    again = own(Lazy).build_learner().module["default_policy"]
    assert torch.equal(again.policy.weight, policy.module.policy.weight)  # by the seed


def test_a_built_network_with_lazy_layers_is_taken():
    config = PPOConfig().environment(observation_space=OBS, action_space=CHOICES)
    assert config.rl_module(rl_module_spec=Lazy(OBS, CHOICES)).build_policy().module.value.weight.shape == (1, 3)


def test_lazy_layers_that_no_observation_reaches_are_refused_by_name():
    with pytest.raises(ValueError, match=r"LazyNowhere has parameters without a size, unused\.weight, unused\.bias"):
        own(LazyNowhere).build_policy()


# -- losses ---


def learner_with(loss):
    class Mine(PPOLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            return loss(batch)

    config = PPOConfig().environment(observation_space=OBS, action_space=CHOICES).training(learner_class=Mine)
    return config.training(train_batch_size=8).build_learner()


@pytest.mark.parametrize(
    "loss, words",
    [
        (lambda batch: 0.5, "returned a float"),
        (lambda batch: None, "returned a NoneType"),
        (lambda batch: batch["advantages"], r"returned a loss of shape \(\d+,\)"),
    ],
)
def test_a_loss_that_is_not_a_scalar_is_refused_with_method_and_shape(loss, words):
    learner = learner_with(loss)
    with pytest.raises((TypeError, ValueError), match=words) as refused:
        learner.update_from_episodes(some_episodes(num_actions=2))
    assert "Mine.compute_loss_for_module" in str(refused.value)
    assert "shape ()" in str(refused.value)


# -- columns ---


def columns(count=8):
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((count, 3)).astype(np.float32),
        "new_obs": rng.standard_normal((count, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, count),
        "rewards": rng.standard_normal(count).astype(np.float32),
        "terminateds": np.zeros(count, bool),
        "truncateds": np.zeros(count, bool),
    }


def trained(batch):
    config = DQNConfig().environment(observation_space=OBS, action_space=CHOICES).training(train_batch_size=8)
    learner = config.debugging(seed=2).build_learner()
    learner.update_from_batch(SampleBatch(batch))
    return torch.cat([p.detach().reshape(-1) for p in learner.module["default_policy"].parameters()])


def test_big_endian_columns_train_as_native_ones():
    swapped = {name: column.astype(column.dtype.newbyteorder(">")) for name, column in columns().items()}
    assert torch.equal(trained(swapped), trained(columns()))


def test_an_update_leaves_the_gradient_of_a_callers_column_alone():
    given = {name: torch.as_tensor(column) for name, column in columns().items()}
    given["obs"].requires_grad_(True)
    trained(given)
    assert given["obs"].grad is None


# -- options ---


@pytest.mark.parametrize("free", [True, False])
def test_log_std_init_may_be_a_whole_number(free):
    config = PPOConfig().environment(observation_space=OBS, action_space=BOX)
    config = config.rl_module(model_config={"log_std_init": -2, "free_log_std": free})
    policy = config.build_policy()
    assert policy.compute_actions(np.zeros((1, 3), np.float32), explore=True).shape == (1, 2)


@pytest.mark.parametrize("make", [PPOConfig, APPOConfig])
def test_a_clip_schedule_may_end_at_0_but_not_begin_there(make):
    config = make().training(clip_param=[[0, 0.2], [1000, 0.0]])
    assert config.training.clip_param[-1][1] == 0.0
    for wrong in (0.0, [[0, 0.0], [1000, 0.2]], [[0, 0.2], [1000, -0.1]]):
        with pytest.raises(ValueError, match="above 0"):
            make().training(clip_param=wrong)


def test_an_update_with_a_clip_range_of_0_stays_finite():
    config = PPOConfig().environment(observation_space=OBS, action_space=CHOICES)
    learner = config.training(clip_param=[[0, 0.2], [1, 0.0]], train_batch_size=8).build_learner()
    for _ in range(2):
        learner.update_from_episodes(some_episodes(num_actions=2), timesteps={"num_env_steps_sampled_lifetime": 100})
    assert all(bool(p.isfinite().all()) for p in learner.module["default_policy"].parameters())


# -- actions of offline data ---


@pytest.mark.parametrize(
    "make, space, width",
    [(CQLConfig, BOX, 4), (CQLConfig, BOX, 1), (DQNConfig, CHOICES, 2), (PPOConfig, BOX, 3)],
)
def test_offline_actions_of_another_width_are_refused_with_their_file(tmp_path, make, space, width):
    rows = columns(40)
    rows["actions"] = np.zeros((40, width), np.float32)
    path = tmp_path / "other.npy"
    write_rows(path, SampleBatch(rows))
    config = make().environment(observation_space=OBS, action_space=space)
    with pytest.raises(ValueError, match="column 'actions'") as refused:
        offline_source(str(path), config.build_policy())
    for word in (f"({width},)", str(tuple(space.shape)), "other.npy"):
        assert word in str(refused.value)
