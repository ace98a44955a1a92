"""`RecurrentPPO`: it remembers, keeps the state of its LSTM apart for each row, and resets it where episodes begin."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Aim, Copy, Count, Picture
from torch import nn

from lockstep.envs import MemoryProbe
from lockstep_sb3 import PPO, RecurrentPPO
from lockstep_sb3.common.callbacks import BaseCallback, EvalCallback
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.recurrent.policies import RecurrentActorCriticPolicy
from lockstep_sb3.common.recurrent.type_aliases import RNNStates
from lockstep_sb3.ppo_recurrent import CnnLstmPolicy, MlpLstmPolicy
from lockstep_sb3.ppo_recurrent.ppo_recurrent import count_sequences

SMALL = {"lstm_hidden_size": 16, "net_arch": [16]}


def make_model(env=Copy, **options):
    """Return a small model for environments of a class."""
    return RecurrentPPO("MlpLstmPolicy", env(), **{"n_steps": 32, "policy_kwargs": SMALL, "seed": 1, **options})


@pytest.mark.parametrize("critic", ["own", "none", "shared"])
def test_it_solves_a_task_that_needs_a_memory(critic):
    kinds = {
        "own": {},
        "none": {"enable_critic_lstm": False},
        "shared": {"enable_critic_lstm": False, "shared_lstm": True},
    }
    venv = make_vec_env(MemoryProbe, n_envs=8)
    options = {"n_steps": 32, "learning_rate": 5e-3, "gamma": 0.9, "n_epochs": 4, "seed": 1}
    model = RecurrentPPO("MlpLstmPolicy", venv, **options, policy_kwargs={**SMALL, **kinds[critic]}).learn(4_096)
    assert evaluate_policy(model, venv, n_eval_episodes=40)[0] == 1.0
    if critic == "own":
        plain = PPO("MlpPolicy", venv, **options, policy_kwargs={"net_arch": [16]}).learn(4_096)
        assert evaluate_policy(plain, venv, n_eval_episodes=40, deterministic=False)[0] < 0.6


def test_states_are_kept_by_row_and_reset_where_episodes_begin():
    model = make_model(Aim)
    rng = np.random.default_rng(1)
    steps = rng.normal(size=(4, 3, 2)).astype(np.float32)  # [T, B, 2]
    state = None
    for step in steps:
        actions, state = model.predict(step, state=state, deterministic=True)
    assert [part.shape for part in state] == [(1, 3, 16), (1, 3, 16)]

    # Each row alone, one observation at a time, gives the same.
    single = None
    for step in steps:
        action, single = model.predict(step[1], state=single, episode_start=np.array([False]), deterministic=True)
    assert action.shape == (1,)
    np.testing.assert_allclose(action, actions[1], atol=1e-6)
    np.testing.assert_allclose(single[0][:, 0], state[0][:, 1], atol=1e-6)

    # Where an episode begins, the past does not count.
    fresh, fresh_state = model.predict(steps[0], deterministic=True)
    starts = np.array([True, False, True])
    after, after_state = model.predict(steps[0], state=state, episode_start=starts, deterministic=True)
    np.testing.assert_array_equal(after[starts], fresh[starts])
    np.testing.assert_array_equal(after_state[1][:, starts], fresh_state[1][:, starts])
    assert np.abs(after_state[0] - fresh_state[0])[:, 1].max() > 1e-3
    with pytest.raises(ValueError, match="two arrays of shape"):
        model.predict(steps[0][:2], state=state)


def test_the_lstm_is_below_net_arch_and_has_the_given_size():
    kwargs = {"lstm_hidden_size": 12, "n_lstm_layers": 2, "net_arch": {"pi": [8, 7], "vf": [6]}}
    model = make_model(policy_kwargs={**kwargs, "activation_fn": nn.ReLU})
    network = model.lockstep.module
    assert [layer.input_size for layer in network.encoder.memory.layers] == [1, 12]
    assert [layer.out_features for layer in network.encoder.hidden_layers[::2]] == [8, 7]
    assert [layer.out_features for layer in network.value_encoder.hidden_layers[::2]] == [6]
    assert isinstance(network.encoder.hidden_layers[1], nn.ReLU)
    _, state = model.predict(np.zeros((5, 1), np.float32))
    assert state[1].shape == (2, 5, 12)
    model.learn(64)
    default = RecurrentPPO("MlpLstmPolicy", Copy())
    config = default.config.rl_module.model_config
    assert (config.recurrent_size, config.hiddens, config.memory_in, config.max_seq_len) == (
        256,
        (64, 64),
        "both",
        128,
    )
    assert (default.n_steps, default.batch_size, default.n_epochs) == (128, 128, 10)


@pytest.mark.parametrize("critic", [{}, {"enable_critic_lstm": False}, {"n_lstm_layers": 2}], ids=str)
def test_the_policy_of_a_model_gives_what_its_steps_give(critic):
    model = make_model(Aim, policy_kwargs={**SMALL, **critic})
    policy = model.policy
    num_layers, _, size = policy.lstm_hidden_state_shape
    assert (policy.lstm_critic is None) == ("enable_critic_lstm" in critic)
    zeros = tuple(torch.zeros(num_layers, 3, size) for _ in range(2))
    states = RNNStates(zeros, zeros)
    steps = torch.randn(4, 3, 2)  # [T, B, 2]
    starts = torch.zeros(4, 3)
    starts[2, 1] = 1.0

    # Step by step, with predict next to it.
    state = None
    found = []
    for obs, start in zip(steps, starts):
        actions, values, log_probs, states = policy(obs, states, start, deterministic=True)
        expected, state = model.predict(obs.numpy(), state=state, episode_start=start.numpy(), deterministic=True)
        np.testing.assert_allclose(np.clip(actions.detach().numpy(), -2, 2), expected, atol=1e-5)
        np.testing.assert_allclose(states.pi[1].detach().numpy(), state[1], atol=1e-5)
        found.append((actions, values, log_probs))

    # All steps of each sequence in one call.
    actions, values, log_probs = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*found))
    rows, row_starts = steps.transpose(0, 1).flatten(0, 1), starts.T.flatten()
    again = policy.evaluate_actions(rows, actions, RNNStates(zeros, zeros), row_starts)
    torch.testing.assert_close(again[:2], (values, log_probs))
    torch.testing.assert_close(policy.predict_values(rows, zeros, row_starts), values)
    torch.testing.assert_close(policy.get_distribution(rows, zeros, row_starts)[0].log_prob(actions), log_probs)


def test_minibatches_have_about_batch_size_steps():
    ends = np.zeros((10, 2), bool)
    ends[[2, 9], 0] = True
    assert count_sequences(ends, 100) == 3
    assert count_sequences(ends, 4) == 1 + 2 + 3
    seen = []

    class Watch(BaseCallback):
        def _on_rollout_start(self):
            if self.model.last_training is not None:
                seen.append(self.model.trainer.batch_size)

    # Episodes have 10 steps: 64 steps of two environments are 14 sequences, in 4 minibatches of 32 steps.
    venv = make_vec_env(Copy, n_envs=2)
    model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=64, batch_size=32, n_epochs=1, policy_kwargs=SMALL)
    model.learn(256, callback=Watch())
    assert seen == [4]
    assert model.config.rl_module.model_config.max_seq_len == 32


def test_a_saved_model_acts_and_continues_as_before(tmp_path):
    model = make_model().learn(64)
    model.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", env=Copy())
    obs = np.linspace(0, 1, 5, dtype=np.float32)[:, None]
    state = other = None
    for _ in range(3):
        actions, state = model.predict(obs, state=state, deterministic=True)
        found, other = loaded.predict(obs, state=other, deterministic=True)
        np.testing.assert_array_equal(found, actions)
    np.testing.assert_array_equal(other[0], state[0])
    assert loaded.learn(64, reset_num_timesteps=False).num_timesteps == 128


def test_images_dicts_and_noise_of_the_state_go_with_it():
    class Named(Copy):
        """`Copy` with its observation in a dict."""

        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(wanted=self.observation_space)

        def _draw(self):
            return {"wanted": super()._draw()}

    small = {"policy_kwargs": {"lstm_hidden_size": 8}, "n_steps": 16, "n_epochs": 1}
    picture = RecurrentPPO(CnnLstmPolicy, Picture(), **small).learn(16)
    assert picture.lockstep.module.encoder.encoder.output_size == 512
    assert picture.lockstep.module.encoder.memory.input_size == 512
    assert len(picture.lockstep.module.encoder.hidden_layers) == 0
    named = RecurrentPPO("MultiInputLstmPolicy", Named(), **small).learn(16)
    action, _ = named.predict({"wanted": np.ones(1, np.float32)})
    assert action in (0, 1)
    make_model(Aim, use_sde=True, sde_sample_freq=4).learn(32)


def test_evaluation_callbacks_carry_the_state():
    evaluate = EvalCallback(MemoryProbe(), eval_freq=32, n_eval_episodes=3, verbose=0)
    make_model(MemoryProbe).learn(64, callback=evaluate)
    assert len(evaluate.evaluations_results) == 2


REFUSED = [
    (lambda: RecurrentPPO("MlpPolicy", Copy()), "MlpLstmPolicy"),
    (lambda: make_model(policy_kwargs={"shared_lstm": True}), "enable_critic_lstm=False"),
    (lambda: make_model(policy_kwargs={"lstm_kwargs": {"dropout": 0.5}}), "dropout"),
    (lambda: make_model(policy_kwargs={"lstm_kwargs": {"wings": True}}), "wings"),
    (lambda: make_model(policy_kwargs={"lstm_hidden_size": 0}), "recurrent_size"),
]


@pytest.mark.parametrize("make, word", REFUSED, ids=[word for _, word in REFUSED])
def test_what_the_lstm_cannot_do_is_refused_by_name(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_modules_have_the_paths_of_sb3_contrib():
    for path in ("ppo_recurrent", "ppo_recurrent.ppo_recurrent"):
        assert importlib.import_module(f"lockstep_sb3.{path}").RecurrentPPO is RecurrentPPO
    policies = importlib.import_module("lockstep_sb3.ppo_recurrent.policies")
    assert policies.MlpLstmPolicy is MlpLstmPolicy is RecurrentActorCriticPolicy
    assert make_model().policy_name == RecurrentPPO(MlpLstmPolicy, Count()).policy_name
    make_model(policy_kwargs={**SMALL, "lstm_kwargs": {"bias": True}})
