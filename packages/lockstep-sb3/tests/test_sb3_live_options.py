"""Options that a program changes after a model is made, while it learns, or when it loads a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_tasks import Aim, Copy

from lockstep_sb3 import A2C, DQN, PPO, SAC, TD3
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.utils import LinearSchedule

SMALL = {"net_arch": [16]}


def small_ppo(**options) -> PPO:
    return PPO(
        "MlpPolicy", Copy(), **{"n_steps": 32, "batch_size": 16, "n_epochs": 2, "policy_kwargs": SMALL, **options}
    )


def rate_of(model) -> float:
    """Return the learning rate that the optimizer uses."""
    return next(iter(model.learner.optimizers)).optimizer.param_groups[0]["lr"]


def test_a_changed_option_holds_from_the_next_update_on():
    changed, made = (
        small_ppo(seed=1),
        small_ppo(seed=1, gamma=0.5, ent_coef=0.1, n_epochs=3, learning_rate=1e-2, batch_size=32),
    )
    for name in ("gamma", "ent_coef", "n_epochs", "learning_rate", "batch_size"):
        setattr(changed, name, getattr(made, name))
    changed.learn(64)
    made.learn(64)
    other = small_ppo(seed=1).learn(64).policy.state_dict()
    expected = made.policy.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in changed.policy.state_dict().items())
    assert not all(torch.equal(value, expected[name]) for name, value in other.items())


def test_callbacks_change_options_while_a_model_learns():
    seen = []

    class Anneal(BaseCallback):
        def _on_rollout_start(self) -> None:
            (coefficient,) = [
                value for key, (_, value) in self.model.learner.coefficients.items() if key[1] == "entropy_coeff"
            ]
            seen.append((float(coefficient), rate_of(self.model)))

        def _on_step(self) -> bool:
            self.model.ent_coef = 0.1 * self.num_timesteps / 32
            self.model.lr_schedule = lambda left: 0.5
            return True

    small_ppo().learn(96, callback=Anneal())
    np.testing.assert_allclose(seen, [(0.0, 3e-4), (0.1, 0.5), (0.2, 0.5)], rtol=1e-5)


def test_off_policy_options_change_between_two_calls_of_learn():
    model = TD3("MlpPolicy", Aim(), learning_starts=10, batch_size=8, policy_kwargs=SMALL).learn(20)
    assert model.trainer.gradient_step == 10
    model.learning_starts = 0
    model.train_freq = (1, "episode")
    model.gradient_steps = 3
    model.learn(40, reset_num_timesteps=False)
    assert model.trainer.gradient_step == 4 * 3
    model.gradient_steps = 0
    assert model.learn(20).trainer.gradient_step == 0


def test_the_schedule_of_exploration_can_be_replaced():
    model = DQN("MlpPolicy", Copy(), learning_starts=0, policy_kwargs=SMALL, exploration_fraction=1.0)
    model.learn(40)
    assert model.exploration_rate == pytest.approx(0.05)
    model.exploration_schedule = LinearSchedule(0.5, 0.25, 1.0)
    model.batch_size = 8  # another option leaves it alone
    model.learn(40)
    assert model.exploration_rate == pytest.approx(0.25)
    model.exploration_final_eps = 0.1
    assert model.learn(40).exploration_rate == pytest.approx(0.1)


def test_a_clip_range_of_values_may_be_a_schedule():
    seen = []

    class Seen(BaseCallback):
        def _on_rollout_start(self) -> None:
            seen.append(self.model.learner.config.vf_clip_param)

        def _on_step(self) -> bool:
            return True

    small_ppo(clip_range_vf=lambda left: 0.1 + left).learn(128, callback=Seen())
    np.testing.assert_allclose(seen, [1.1, 0.85, 0.6, 0.35])


def test_a_learning_rate_may_rise_as_far_as_it_likes():
    model = A2C("MlpPolicy", Copy(), learning_rate=lambda left: 1e-6 + 1e-2 * (1.0 - left), policy_kwargs=SMALL)
    model.learn(50)
    assert rate_of(model) == pytest.approx(1e-6 + 0.9e-2, rel=0.2)
    assert model.lr_schedule(0.5) == pytest.approx(1e-6 + 0.5e-2)


def test_loading_replaces_options_by_their_names_in_files_of_sb3(tmp_path):
    small_ppo(learning_rate=lambda left: left).save(tmp_path / "model")
    objects = {"learning_rate": 0.0, "lr_schedule": lambda left: 0.25, "clip_range": lambda left: 0.5}
    model = PPO.load(tmp_path / "model", env=Copy(), custom_objects=objects, ent_coef=0.3)
    assert (model.lr_schedule(1.0), model.ent_coef) == (0.25, 0.3)
    model.learn(32, reset_num_timesteps=False)
    assert rate_of(model) == 0.25


REFUSED = [
    (lambda: setattr(small_ppo(), "policy_kwargs", {"net_arch": [8]}), "policy_kwargs"),
    (lambda: setattr(SAC("MlpPolicy", Aim(), policy_kwargs=SMALL), "buffer_size", 10), "buffer_size=10"),
    (lambda: setattr(small_ppo(), "gamma", 2.0), "gamma=2.0"),
]


@pytest.mark.parametrize("change, word", REFUSED, ids=[word for _, word in REFUSED])
def test_a_change_that_cannot_hold_is_refused_by_name(change, word):
    with pytest.raises(ValueError, match=word):
        change()


def test_a_refused_change_leaves_the_option_as_it_was():
    model = small_ppo()
    with pytest.raises(ValueError, match="gamma"):
        model.gamma = 2.0
    assert (model.gamma, model.config.training.gamma) == (0.99, 0.99)
    model.learn(32)
