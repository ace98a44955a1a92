"""`lockstep_sb3.ARS` searches the weights of a policy without gradients."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Aim, Copy

from lockstep_sb3 import ARS
from lockstep_sb3.ars import LinearPolicy
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.vec_env import AsyncEval, VecNormalize

SMALL_SEARCH = {"policy_kwargs": {"net_arch": [8]}, "zero_policy": False, "delta_std": 0.1, "learning_rate": 0.05}


@pytest.mark.parametrize(("policy", "options"), [(LinearPolicy, {}), ("MlpPolicy", SMALL_SEARCH)])
def test_ars_balances_a_pole(policy, options):
    """Of 16 seeds each, the worst linear policy reached 456 and the worst network 297."""
    model = ARS(policy, "CartPole-v1", n_delta=4, seed=1, **options)
    assert evaluate_policy(model, "CartPole-v1", 3, warn=False)[0] < 60
    model.learn(20_000)
    assert evaluate_policy(model, "CartPole-v1", 3, warn=False)[0] > 120


def test_a_seed_decides_the_search_and_its_episodes():
    found = [ARS("MlpPolicy", "CartPole-v1", n_delta=2, seed=seed, **SMALL_SEARCH).learn(300) for seed in (1, 1, 2)]
    weights = [model.get_weights() for model in found]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    unseeded = [ARS("MlpPolicy", "CartPole-v1", n_delta=2, **SMALL_SEARCH).learn(300) for _ in range(2)]
    assert not torch.equal(unseeded[0].get_weights(), unseeded[1].get_weights())


def test_ars_learns_actions_of_a_box_with_several_environments():
    envs = VecNormalize(make_vec_env(Aim, n_envs=4), norm_reward=False)
    model = ARS("MlpPolicy", envs, seed=0, n_eval_episodes=4, zero_policy=False, policy_kwargs={"net_arch": [8]})
    before = evaluate_policy(model, envs, 4)[0]
    model.learn(8_000)
    assert evaluate_policy(model, envs, 4)[0] > before + 2


def test_an_update_of_ars_is_the_one_of_the_paper(monkeypatch):
    model = ARS(
        "LinearPolicy", Copy(), n_delta=3, n_top=2, seed=5, alive_bonus_offset=-1.0, policy_kwargs={"with_bias": True}
    )
    weights = torch.tensor([0.1, -0.2, 0.3, 0.0])
    model.set_weights(weights)
    candidates = []
    returns = []
    collect = model.trainer.collector.collect

    def collect_and_record(**amount):
        candidates.append(model.get_weights())
        stats = collect(**amount)
        returns.append(float(stats.returns.sum()) - 10.0)  # episodes of 10 steps, each with an offset of -1
        return stats

    monkeypatch.setattr(model.trainer.collector, "collect", collect_and_record)
    model.learn(1)
    assert len(candidates) == model.pop_size == 6
    assert model.num_timesteps == 60
    plus, minus = np.array(returns[:3]), np.array(returns[3:])
    deltas = (torch.stack(candidates[:3]) - weights).numpy() / 0.05
    np.testing.assert_allclose(torch.stack(candidates[3:]), weights.numpy() - 0.05 * deltas, atol=1e-6)

    best = sorted(range(3), key=lambda i: -max(plus[i], minus[i]))[:2]
    std = np.std([*plus[best], *minus[best]], ddof=1)
    step = sum((plus[i] - minus[i]) * deltas[i] for i in best) * 0.02 / (2 * std + 1e-6)
    assert np.abs(step).max() > 1e-4
    np.testing.assert_allclose(model.get_weights(), weights.numpy() + step, atol=1e-5)


def test_a_saved_model_of_ars_acts_alike_and_learns_on(tmp_path):
    model = ARS("LinearPolicy", "Pendulum-v1", n_delta=2, seed=3, delta_std=lambda remaining: 0.1 * remaining)
    model.learn(800).save(tmp_path / "model")
    loaded = ARS.load(tmp_path / "model", env="Pendulum-v1")
    observation = np.array([0.5, -0.5, 1.0], np.float32)
    assert loaded.predict(observation)[0] == model.predict(observation)[0]
    weights = loaded.get_weights()
    loaded.learn(800, reset_num_timesteps=False)
    assert loaded.num_timesteps == 1_600
    assert not torch.equal(weights, loaded.get_weights())


def test_biases_of_a_linear_policy_stay_zero():
    model = ARS("LinearPolicy", Copy(), n_delta=2, seed=0).learn(200)
    biases = [value for name, value in model.lockstep.state_dict().items() if name.endswith("bias")]
    assert all(not bias.any() for bias in biases)
    assert model.get_weights().any()


def test_a_callback_that_ends_ars_leaves_the_weights_between_two_updates():
    class Stop(BaseCallback):
        def _on_step(self):
            assert set(self.locals) >= {"infos", "dones", "rewards", "new_obs"}
            return self.num_timesteps < 95

    model = ARS("LinearPolicy", Copy(), n_delta=4, seed=0)
    model.learn(80)
    weights = model.get_weights()
    assert weights.any()
    model.learn(10_000, callback=Stop(), reset_num_timesteps=False)
    assert model.num_timesteps == 95
    assert torch.equal(model.get_weights(), weights)


def test_ars_logs_its_updates():
    logged = {}

    class Read(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_start(self):
            logged.update(self.logger.name_to_value)

    model = ARS("LinearPolicy", Copy(), n_delta=2, learning_rate=0.5).learn(200, callback=Read(), log_interval=None)
    assert logged["train/learning_rate"] == 0.5
    model.learning_rate = 0.25
    model.learn(200, callback=Read(), log_interval=None)
    assert logged["train/learning_rate"] == 0.25
    assert {"train/iterations", "train/delta_std", "train/step_size", "rollout/return_std"} <= set(logged)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_delta": 0}, "n_delta=0"),
        ({"n_top": 0}, "n_top=0"),
        ({"n_eval_episodes": 0}, "n_eval_episodes=0"),
        ({"gamma": 0.9}, "gamma=0.9"),
        ({"policy": "CnnPolicy"}, "CnnPolicy"),
        ({"policy_kwargs": {"net_arch": [8]}}, "net_arch"),
    ],
)
def test_ars_refuses_options_by_name(options, named):
    options = {"policy": "LinearPolicy", "env": Copy(), **options}
    with pytest.raises(ValueError, match=named):
        ARS(**options)


def test_ars_refuses_several_choices():
    env = Copy()
    env.action_space = spaces.MultiDiscrete([2, 2])
    with pytest.raises(ValueError, match="must be a Box or a Discrete"):
        ARS("LinearPolicy", env)


def test_ars_plays_candidates_in_processes():
    steps = []

    class CountSteps(BaseCallback):
        def _on_step(self):
            steps.append(self.num_timesteps)
            return self.num_timesteps < 2_000

    model = ARS("LinearPolicy", "CartPole-v1", n_delta=3, seed=0)
    make_envs = partial(make_vec_env, "CartPole-v1")
    processes = AsyncEval([make_envs, make_envs], model.policy, start_method="fork", n_eval_episodes=2)
    model.learn(100_000, callback=CountSteps(), async_eval=processes)
    assert steps == list(range(1, 2_001))
    assert not processes.processes
    assert evaluate_policy(model, "CartPole-v1", 3, warn=False)[0] > 30
    assert len(model.ep_info_buffer) >= 12


def test_processes_give_the_returns_of_their_candidates_in_order():
    model = ARS("LinearPolicy", Copy(), seed=0)
    processes = AsyncEval([partial(make_vec_env, Copy)] * 2, model.policy, start_method="fork")
    processes.start(model)
    # The first row gives the value of action 0, the second one that of action 1, for the observation 0 or 1.
    always_0 = torch.tensor([1.0, -1.0])
    played = processes.play(torch.stack([always_0, -always_0, always_0]))
    pids = [process.pid for process in processes.processes]
    processes.close()
    sums = [float(returns.sum()) for returns, _ in played]
    assert [list(lengths) for _, lengths in played] == [[10], [10], [10]]
    assert sums[1] == 10.0
    assert max(sums[0], sums[2]) < 10.0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_error_in_a_process_is_named():
    model = ARS("LinearPolicy", Copy(), seed=0)
    normalized = AsyncEval([lambda: VecNormalize(make_vec_env(Copy))], model.policy, start_method="fork")
    with pytest.raises(RuntimeError, match="VecNormalize"):
        model.learn(100, async_eval=normalized)
    assert not normalized.processes


def test_more_best_directions_than_directions_means_all():
    with pytest.warns(UserWarning, match="n_top=9"):
        model = ARS("LinearPolicy", Copy(), n_delta=2, n_top=9)
    assert model.n_top == 2
