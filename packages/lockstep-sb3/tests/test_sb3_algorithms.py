"""Algorithms of `lockstep_sb3`: they learn, continue, are saved, and refuse options without a counterpart."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Aim, Copy, Count, Picture
from torch import nn

from lockstep_sb3 import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from lockstep_sb3.common.torch_layers import BaseFeaturesExtractor
from lockstep_sb3.ppo import MlpPolicy

SMALL = {"net_arch": [16]}
NOISE = NormalActionNoise(mean=np.zeros(1), sigma=0.3 * np.ones(1))
KINDS = {
    "ppo": (PPO, Copy, {"n_steps": 128, "learning_rate": 1e-2}, 1500),
    "a2c": (A2C, Copy, {"learning_rate": 1e-2}, 1500),
    "dqn": (DQN, Copy, {"learning_rate": 1e-2, "target_update_interval": 50, "gamma": 0.0}, 1500),
    "sac": (SAC, Aim, {"learning_rate": 1e-2, "gamma": 0.0, "batch_size": 32}, 500),
    "td3": (
        TD3,
        Aim,
        {"gamma": 0.0, "batch_size": 32, "action_noise": NOISE, "policy_kwargs": {"net_arch": [64]}},
        1000,
    ),
    "ddpg": (
        DDPG,
        Aim,
        {"gamma": 0.0, "batch_size": 32, "action_noise": NOISE, "policy_kwargs": {"net_arch": [64]}},
        1000,
    ),
    "tqc": (TQC, Aim, {"learning_rate": 1e-2, "gamma": 0.0, "batch_size": 32}, 500),
    "crossq": (CrossQ, Aim, {"learning_rate": 1e-2, "gamma": 0.0, "batch_size": 32}, 500),
    "trpo": (TRPO, Copy, {"n_steps": 128, "policy_kwargs": {"net_arch": [16]}}, 1500),
    "qrdqn": (
        QRDQN,
        Copy,
        {
            "learning_rate": 1e-2,
            "target_update_interval": 50,
            "gamma": 0.0,
            "policy_kwargs": {"net_arch": [16], "n_quantiles": 10},
        },
        1500,
    ),
}


def made(kind: str, **more):
    model_class, env, options, _ = KINDS[kind]
    return model_class("MlpPolicy", env(), **{"seed": 1, "policy_kwargs": dict(SMALL), **options, **more})


FAST = ("ppo", "sac", "ddpg")
"""One on-policy and two off-policy algorithms. The others run with the long tests."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.long) for kind in KINDS])
def test_each_class_learns_continues_and_acts_equally_after_loading(kind, tmp_path):
    model_class, env, _, steps = KINDS[kind]
    model = made(kind)
    before, _ = evaluate_policy(model, env(), n_eval_episodes=5)
    assert model.learn(steps) is model
    assert steps <= model.num_timesteps < steps + 128
    after, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=5)
    assert after > 9.0 if env is Copy else after > -3.0, (before, after)

    obs = np.stack([model.observation_space.sample() for _ in range(20)])
    actions, state = model.predict(obs, deterministic=True)
    assert state is None
    assert model.predict(obs[0], deterministic=True)[0] == pytest.approx(actions[0])
    assert actions.shape == (20, *model.action_space.shape)
    model.save(tmp_path / "model")
    loaded = model_class.load(tmp_path / "model", env=env())
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], actions)
    assert loaded.num_timesteps == model.num_timesteps
    loaded.learn(128, reset_num_timesteps=False)
    assert model.num_timesteps + 128 <= loaded.num_timesteps < model.num_timesteps + 256
    alone = MlpPolicy.load(tmp_path / "model.zip")
    np.testing.assert_array_equal(alone.predict(obs, deterministic=True)[0], actions)


def drawn(venv):
    return random.random(), np.random.random(), torch.rand(1).item(), int(venv.action_space.sample())  # noqa: NPY002


def test_a_seed_is_that_of_python_numpy_torch_and_the_action_space_too(tmp_path):
    def made(seed):
        venv = make_vec_env(Count, n_envs=2)
        return venv, A2C("MlpPolicy", venv, n_steps=4, seed=seed, policy_kwargs=SMALL)

    found = [drawn(made(seed)[0]) for seed in (3, 3, 4)]
    assert found[0] == found[1]
    assert all(one != other for one, other in zip(found[0][:3], found[2][:3]))
    venv, model = made(3)
    venv.action_space.seed(0)
    random.seed(0)
    model.save(tmp_path / "model")
    A2C.load(tmp_path / "model", env=venv)
    assert drawn(venv)[0] == found[0][0]
    model.set_random_seed(4)
    assert drawn(venv)[0] == found[2][0]
    random.seed(7)
    before = random.getstate()
    made(None)
    assert random.getstate() == before


def test_the_same_seed_gives_the_same_weights():
    one, other, third = (made("a2c", seed=seed).learn(200).policy.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], third[name]) for name in one)


def test_defaults_and_names_become_those_of_lockstep():
    training = PPO("MlpPolicy", make_vec_env(Copy, n_envs=2), vf_coef=0.4, batch_size=10_000).config.training
    assert (training.lr, training.train_batch_size, training.minibatch_size, training.num_epochs) == (
        3e-4,
        4096,
        4096,
        10,
    )
    assert (training.vf_loss_coeff, training.grad_clip, training.clip_param, training.lambda_) == (0.8, 0.5, 0.2, 0.95)
    a2c = A2C("MlpPolicy", Copy()).config.training
    assert (a2c.optimizer, a2c.optimizer_kwargs) == ("rmsprop", {"alpha": 0.99, "eps": 1e-5})
    config = DQN("MlpPolicy", make_vec_env(Copy, n_envs=2), train_freq=4, gradient_steps=2).config
    assert (config.replay.capacity, config.replay.learning_starts, config.replay.update_per_step) == (
        1_000_000,
        100,
        0.25,
    )
    assert (config.training.target_update_interval, config.training.double_q, config.training.huber_delta) == (
        2500,
        False,
        1.0,
    )
    often = DQN("MlpPolicy", Copy(), train_freq=256, gradient_steps=128, target_update_interval=10)
    assert often.config.training.target_update_interval == 128  # nothing is learned between the steps of a rollout
    config = TD3("MlpPolicy", Aim()).config
    assert config.training.exploration_noise == 0.0
    assert config.rl_module.model_config.hiddens == config.rl_module.model_config.critic_hiddens == (400, 300)
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1))
    runners = TD3("MlpPolicy", Aim(), action_noise=noise).config.env_runners
    assert (runners.exploration, runners.exploration_config) == ("ou", {"sigma": 0.5, "theta": 0.15, "dt": 0.01})
    config = SAC(
        "MlpPolicy", Aim(), ent_coef="auto_0.1", use_sde=True, sde_sample_freq=4, train_freq=8, gradient_steps=-1
    ).config
    assert (config.training.alpha, config.training.initial_alpha, config.replay.update_per_step) == ("auto", 0.1, 1.0)
    assert config.env_runners.exploration_config == {"log_std_init": -3.0, "sample_freq": 4}
    tqc = TQC(
        "MlpPolicy", Aim(), top_quantiles_to_drop_per_net=3, policy_kwargs={"n_quantiles": 10, "n_critics": 4}
    ).config
    assert (tqc.training.num_quantiles, tqc.training.quantiles_to_drop, tqc.rl_module.model_config.num_critics) == (
        10,
        3,
        4,
    )


def test_options_of_ddpg_and_of_sb3_contrib_become_those_of_lockstep():
    ddpg = DDPG("MlpPolicy", Aim()).config
    assert (ddpg.training.policy_delay, ddpg.training.target_noise, ddpg.rl_module.model_config.num_critics) == (
        1,
        0.0,
        1,
    )
    qrdqn = QRDQN("MlpPolicy", Copy()).config.training
    assert (qrdqn.lr, qrdqn.num_quantiles, qrdqn.adam_epsilon, qrdqn.grad_clip) == (5e-5, 200, 0.01 / 32, None)
    assert (qrdqn.double_q, qrdqn.target_update_interval) == (False, 2500)
    trpo = TRPO("MlpPolicy", make_vec_env(Copy, n_envs=2), n_steps=100, batch_size=64).config.training
    assert (trpo.lr, trpo.max_kl, trpo.cg_iterations, trpo.cg_damping, trpo.lambda_) == (1e-3, 0.01, 15, 0.1, 0.95)
    assert trpo.num_epochs == 10 * 4  # 4 minibatches of up to 64 rows hold the 200 rows of a rollout
    crossq = CrossQ("MlpPolicy", Aim()).config
    assert (crossq.training.policy_delay, crossq.training.optimizer_kwargs) == (3, {"betas": (0.5, 0.999)})
    network = crossq.rl_module.model_config
    assert (network.hiddens, network.critic_hiddens, network.num_critics) == ((256, 256), (1024, 1024), 2)


def test_schedules_are_those_of_the_progress_that_remains(tmp_path):
    seen = []

    class Seen(BaseCallback):
        def _on_rollout_start(self):
            step = self.model.num_timesteps
            seen.append((step, self.model.config.training.lr(step), self.model.config.training.clip_param(step)))

    model = PPO(
        "MlpPolicy",
        Copy(),
        n_steps=50,
        batch_size=50,
        n_epochs=1,
        learning_rate=lambda left: 0.1 * left,
        clip_range=lambda left: left,
    )
    model.learn(200, callback=Seen())
    assert [row[0] for row in seen] == [0, 50, 100, 150]
    np.testing.assert_allclose([row[1] for row in seen], [0.1, 0.075, 0.05, 0.025])
    np.testing.assert_allclose([row[2] for row in seen], [1.0, 0.75, 0.5, 0.25])
    model.save(tmp_path / "model")
    assert PPO.load(tmp_path / "model").learning_rate(0.35) == pytest.approx(0.035)
    dqn = DQN("MlpPolicy", Copy(), exploration_fraction=0.5, exploration_final_eps=0.1)
    dqn.total[0] = 100
    np.testing.assert_allclose([dqn.config.training.epsilon(step) for step in (0, 25, 50, 100)], [1.0, 0.55, 0.1, 0.1])


def test_a_second_learn_counts_from_0_unless_it_continues():
    model = made("a2c")
    model.learn(100)
    model.learn(50)
    assert model.num_timesteps == 50
    model.get_env().reset()  # by hand: each `learn` begins new episodes
    model.learn(50, reset_num_timesteps=False)
    assert (model.num_timesteps, model.total[0]) == (100, 100)


def test_set_env_keeps_the_replay_buffer(tmp_path):
    model = made("dqn")
    model.learn(160)
    assert model.replay_buffer.size() == 160
    model.save_replay_buffer(tmp_path / "replay.pkl")
    model.set_env(Copy())
    model.learn(40, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 200
    model.load_replay_buffer(tmp_path / "replay.pkl")
    assert model.replay_buffer.size() == 160
    model.save(tmp_path / "model")
    loaded = DQN.load(tmp_path / "model")
    assert loaded.replay_buffer.size() == 0
    loaded.load_replay_buffer(tmp_path / "replay.pkl")
    loaded.set_env(Copy())
    assert loaded.learn(40, reset_num_timesteps=False).replay_buffer.size() == 200
    with pytest.raises(ValueError, match="2 environments"):
        model.set_env(make_vec_env(Copy, n_envs=2))
    with pytest.raises(ValueError, match="observation space"):
        model.set_env(Count())


def test_an_extractor_sees_images_with_channels_first_between_0_and_1():
    class Means(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Box, features_dim: int = 2):
            super().__init__(space, features_dim)
            assert space.shape == (3, 12, 16)
            self.layer = nn.Linear(3, features_dim)

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            assert observations.shape[1:] == (3, 12, 16)
            assert observations.max() <= 1.0
            return self.layer(observations.mean((2, 3)))

    kwargs = {"features_extractor_class": Means, "features_extractor_kwargs": {"features_dim": 5}}
    model = PPO("CnnPolicy", Picture(), n_steps=32, policy_kwargs=kwargs).learn(32)
    network = model.lockstep.module
    assert network.encoder.features.output_size == 5
    assert network.policy_head.in_features == 64
    model = PPO("CnnPolicy", Picture(), n_steps=32, policy_kwargs={**kwargs, "net_arch": []}).learn(32)
    assert model.lockstep.module.policy_head.in_features == 5
    assert model.config.rl_module.model_config.vf_share_layers is True
    assert PPO("CnnPolicy", Picture(), n_steps=32).config.rl_module.model_config.image_hiddens == (512,)


def test_verbose_prints_and_tensorboard_counts_its_runs(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    model = A2C("MlpPolicy", Copy(), verbose=1, tensorboard_log=str(tmp_path), policy_kwargs=SMALL)
    model.learn(50, log_interval=5)
    printed = capsys.readouterr().out
    for name in ("ep_rew_mean", "total_timesteps", "policy_loss", "value_loss"):
        assert name in printed
    model.learn(50, log_interval=5, reset_num_timesteps=False)
    model.learn(50, tb_log_name="other")
    model.learn(50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A2C_1", "A2C_2", "other_1"]


def test_off_policy_logs_by_episodes(capsys):
    made("dqn", verbose=1).learn(100, log_interval=5)
    assert capsys.readouterr().out.count("ep_rew_mean") == 2  # 10 episodes of 10 steps


def test_excluded_options_have_their_defaults_after_loading(tmp_path):
    model = made("a2c", gamma=0.5, learning_rate=0.1)
    model.save(tmp_path / "model", exclude=["gamma", "replay_buffer", "env"], include=["learning_rate"])
    loaded = A2C.load(tmp_path / "model")
    assert (loaded.gamma, loaded.learning_rate) == (0.99, 0.1)


def test_a_model_may_be_loaded_to_act_with_a_clip_range_of_0(tmp_path):
    made("ppo").save(tmp_path / "model")
    for clip_range in (0, lambda left: 0.0):
        objects = {"learning_rate": 0.0, "lr_schedule": lambda left: 0.0, "clip_range": clip_range}
        model = PPO.load(tmp_path / "model", custom_objects=objects)
        assert model.predict(np.zeros(1, np.float32))[0] in (0, 1)


class OwnNoise(NormalActionNoise):
    """Noise of a program's own."""


def test_action_noise_has_a_mean_and_a_deviation_for_each_dimension(tmp_path):
    class Two(Aim):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-2.0, 2.0, (2,))

    normal = NormalActionNoise(mean=np.array([0.5, 0.0]), sigma=np.array([0.1, 0.4]))
    model = TD3("MlpPolicy", Two(), action_noise=VectorizedActionNoise(normal, 1), policy_kwargs=SMALL)
    found = model.config.env_runners.exploration_config
    assert found == {"scale": 0.4, "weights": [0.25, 1.0], "mean": [0.5, 0.0]}
    model.save(tmp_path / "model")
    assert TD3.load(tmp_path / "model", env=Two()).learn(110).config.env_runners.exploration_config == found
    process = OrnsteinUhlenbeckActionNoise(np.array([0.5, 0.0]), np.array([0.1, 0.4]), dt=0.5)
    options = SAC("MlpPolicy", Two(), action_noise=process, policy_kwargs=SMALL).config.env_runners.exploration_config
    assert options == {"sigma": 0.4, "theta": 0.15, "dt": 0.5, "weights": [0.25, 1.0], "mean": [0.5, 0.0]}


def test_noise_that_a_program_calls_has_its_mean_and_deviation():
    np.random.seed(0)  # noqa: NPY002
    normal = NormalActionNoise(mean=np.ones(2), sigma=np.array([0.0, 0.5]))
    drawn = np.stack([normal() for _ in range(2000)])
    np.testing.assert_allclose(drawn.mean(0), [1.0, 1.0], atol=0.05)
    np.testing.assert_allclose(drawn.std(0), [0.0, 0.5], atol=0.05)
    still = OrnsteinUhlenbeckActionNoise(mean=np.ones(1), sigma=np.zeros(1), theta=0.5, dt=0.5)
    np.testing.assert_allclose([still()[0], still()[0]], [0.25, 0.4375])
    several = VectorizedActionNoise(still, 2)
    assert several().shape == (2, 1)
    several.reset([1])
    np.testing.assert_allclose(several()[:, 0], [0.4375, 0.25])


REFUSED = [
    (lambda: PPO("LstmPolicy", Copy()), "LstmPolicy"),
    (lambda: PPO("MlpPolicy", Copy(), policy_kwargs={"net_arch": {"pi": [8], "qf": [16]}}), "net_arch"),
    (lambda: SAC("MlpPolicy", Aim(), policy_kwargs={"net_arch": {"pi": [8], "vf": [16]}}), "net_arch"),
    (lambda: DQN("MlpPolicy", Copy(), policy_kwargs={"net_arch": {"pi": [8]}}), "net_arch"),
    (lambda: PPO("MlpPolicy", Copy(), policy_kwargs={"net_arch": [8, {"pi": [8], "vf": [16]}]}), "net_arch"),
    (lambda: PPO("MlpPolicy", Copy(), policy_kwargs={"activation_fn": nn.Softmax}), "Softmax"),
    (lambda: PPO("MlpPolicy", Copy(), policy_kwargs={"use_expln": True}), "use_expln"),
    (lambda: PPO("MlpPolicy", Copy(), policy_kwargs={"wings": 2}), "wings"),
    (lambda: PPO("MlpPolicy", Copy(), rollout_buffer_class=dict), "rollout_buffer_class"),
    (lambda: SAC("MlpPolicy", Aim(), use_sde=True, use_sde_at_warmup=True), "use_sde_at_warmup"),
    (lambda: SAC("MlpPolicy", Aim(), replay_buffer_class=dict), "replay_buffer_class"),
    (lambda: SAC("MlpPolicy", Aim(), replay_buffer_kwargs={"colour": 1}), "colour"),
    (lambda: TD3("MlpPolicy", Aim(), action_noise=OwnNoise(np.zeros(1), np.ones(1))), "OwnNoise"),
    (lambda: PPO("CnnPolicy", Copy()), "CnnPolicy"),
    (lambda: TRPO("MlpPolicy", Copy(), sub_sampling_factor=2), "sub_sampling_factor"),
    (lambda: CrossQ("MlpPolicy", Aim(), policy_kwargs={"batch_norm_eps": 0.1}), "batch_norm_eps"),
    (lambda: PPO("CnnPolicy", Picture(), policy_kwargs={"features_extractor_kwargs": {"wings": 2}}), "wings"),
    (lambda: made("a2c").save("model", exclude=["wings"]), "exclude"),
    (lambda: made("a2c").save("model", include=["env"]), "include"),
]


@pytest.mark.parametrize("make, word", REFUSED, ids=[word for _, word in REFUSED])
def test_options_without_a_counterpart_are_refused_by_name(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_a_file_of_another_class_or_library_is_refused(tmp_path):
    made("a2c").save(tmp_path / "model")
    with pytest.raises(ValueError, match="A2C, not of PPO"):
        PPO.load(tmp_path / "model")
    (tmp_path / "other.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="Stable-Baselines3"):
        PPO.load(tmp_path / "other")
    model = A2C.load(tmp_path / "model")
    with pytest.raises(ValueError, match="set_env"):
        model.learn(10)
