"""Networks and numbers of a model that programs read: they are the live ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from small_tasks import Aim, Copy

from lockstep_sb3 import DQN, QRDQN, SAC, TD3, CrossQ
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.env_util import make_vec_env

SMALL = {"net_arch": [16]}
OPTIONS = {"policy_kwargs": SMALL, "learning_starts": 8, "batch_size": 8}
NETWORKS = [
    (DQN, Copy, ("q_net", "q_net_target")),
    (QRDQN, Copy, ("quantile_net", "quantile_net_target")),
    (SAC, Aim, ("actor", "critic")),
    (TD3, Aim, ("critic", "actor_target")),
]


@pytest.mark.parametrize("model_class, env, names", NETWORKS, ids=[entry[0].__name__ for entry in NETWORKS])
def test_networks_of_a_model_change_when_it_learns(model_class, env, names):
    model = model_class("MlpPolicy", env(), **OPTIONS)
    first = getattr(model, names[0])
    before = [parameter.detach().clone() for parameter in first.parameters()]
    assert before
    assert list(getattr(model, names[1]).parameters())
    model.learn(40)
    after = list(first.parameters())
    assert not all(torch.equal(old, new) for old, new in zip(before, after))
    assert getattr(model, names[0]) is first


def test_setting_weights_of_a_network_changes_actions():
    model = DQN("MlpPolicy", Copy(), **OPTIONS)
    last = list(model.q_net.parameters())[-1]
    for action in (0, 1):
        with torch.no_grad():
            last.copy_(torch.tensor([100.0, -100.0] if action == 0 else [-100.0, 100.0]))
        assert model.predict(np.ones(1, np.float32), deterministic=True)[0] == action


def test_the_temperature_is_read_from_the_learner():
    model = SAC("MlpPolicy", Aim(), ent_coef="auto_0.5", **OPTIONS)
    assert float(model.ent_coef_tensor) == pytest.approx(0.5)
    model.learn(40)
    assert float(model.log_ent_coef.detach().exp()) == pytest.approx(float(model.ent_coef_tensor)) != 0.5
    assert SAC("MlpPolicy", Aim(), ent_coef=0.1, **OPTIONS).log_ent_coef is None
    assert CrossQ("MlpPolicy", Aim(), **OPTIONS).critic_target is None
    model.actor = model.policy.actor
    with pytest.raises(ValueError, match="set_parameters"):
        model.actor = torch.nn.Linear(2, 1)


def test_callbacks_read_the_observations_that_were_acted_on():
    seen = []

    class Seen(BaseCallback):
        def _on_step(self) -> bool:
            seen.append((self.model._last_obs.copy(), self.locals["new_obs"].copy()))
            return True

    DQN("MlpPolicy", make_vec_env(Copy, n_envs=2), **OPTIONS).learn(8, callback=Seen())
    for (_, new_obs), (last_obs, _) in itertools.pairwise(seen):
        np.testing.assert_array_equal(last_obs, new_obs)
