"""Policies: their classes, what programs read of `model.policy`, and classes of the user's own."""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest
import torch
from small_tasks import Aim, Copy, Picture
from torch import nn

from lockstep_sb3 import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ
from lockstep_sb3.common.policies import ActorCriticPolicy, BasePolicy
from lockstep_sb3.common.torch_layers import BaseFeaturesExtractor

OBS = np.linspace(0.0, 1.0, 7, dtype=np.float32)[:, None]
ALGORITHMS = {each.__name__.lower(): each for each in (A2C, CrossQ, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO)}
NAMES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


def made(model_class=PPO, policy="MlpPolicy", env=Copy, **options):
    on_policy = {"n_steps": 32} if issubclass(model_class, PPO | A2C | TRPO) else {"learning_starts": 0}
    return model_class(policy, env(), **{"seed": 1, **on_policy, **options})


def layers(module, inputs):
    """Return the outputs of a sequence of linear layers and activations, written out."""
    for layer in module:
        is_linear = isinstance(layer, nn.Linear)
        inputs = inputs @ layer.weight.T + layer.bias if is_linear else layer(inputs)
    return inputs


# -- names ---


@pytest.mark.parametrize("name", ALGORITHMS)
def test_policies_are_found_where_stable_baselines3_has_them(name):
    package = importlib.import_module(f"lockstep_sb3.{name}")
    policies = importlib.import_module(f"lockstep_sb3.{name}.policies")
    module = importlib.import_module(f"lockstep_sb3.{name}.{name}")
    algorithm = ALGORITHMS[name]
    assert getattr(package, algorithm.__name__) is getattr(module, algorithm.__name__) is algorithm
    assert all(getattr(package, each) is getattr(policies, each) for each in NAMES)


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_a_policy_class_means_what_its_name_means(name):
    policy_class = importlib.import_module(f"lockstep_sb3.{name}").MlpPolicy
    env = Copy if name in ("ppo", "dqn") else Aim
    by_class = made(ALGORITHMS[name], policy_class, env)
    by_name = made(ALGORITHMS[name], "MlpPolicy", env)
    assert by_class.policy_name == "MlpPolicy"
    assert type(by_class.policy) is policy_class is type(by_name.policy)
    assert by_class.policy_aliases["MlpPolicy"] is policy_class
    other = by_name.policy.state_dict()
    assert all(torch.equal(value, other[key]) for key, value in by_class.policy.state_dict().items())


@pytest.mark.parametrize(
    "policy", ["LstmPolicy", DQN, nn.Linear, importlib.import_module("lockstep_sb3.sac").CnnPolicy]
)
def test_other_policies_are_refused_by_name(policy):
    with pytest.raises(ValueError, match=getattr(policy, "__name__", policy)):
        made(policy=policy)


# -- live layers ---


def test_values_and_distributions_are_those_of_the_layers_written_out():
    model = made(policy_kwargs={"net_arch": {"pi": [8], "vf": [16, 4]}}).learn(32)
    policy = model.policy
    obs, is_batch = policy.obs_to_tensor(OBS)
    assert is_batch
    assert not policy.obs_to_tensor(OBS[0])[1]
    hidden, value_hidden = policy.mlp_extractor(policy.extract_features(obs))
    assert (
        (hidden.shape[1], value_hidden.shape[1])
        == (8, 4)
        == (
            policy.mlp_extractor.latent_dim_pi,
            policy.mlp_extractor.latent_dim_vf,
        )
    )
    logits = layers([*policy.mlp_extractor.policy_net, policy.action_net], obs)
    values = layers([*policy.mlp_extractor.value_net, policy.value_net], obs)
    actions = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    log_probs = logits.log_softmax(-1)

    found_values, log_prob, entropy = policy.evaluate_actions(obs, actions)
    torch.testing.assert_close(found_values, values)
    torch.testing.assert_close(log_prob, log_probs[torch.arange(7), actions])
    torch.testing.assert_close(entropy, -(log_probs.exp() * log_probs).sum(-1))
    torch.testing.assert_close(policy.predict_values(obs), values)
    distribution = policy.get_distribution(obs)
    torch.testing.assert_close(distribution.distribution.probs, logits.softmax(-1))
    assert torch.equal(distribution.mode(), logits.argmax(-1))
    np.testing.assert_array_equal(model.predict(OBS, deterministic=True)[0], distribution.mode())
    acted, _, acted_log_prob = policy(obs, deterministic=True)
    torch.testing.assert_close(acted_log_prob, log_probs[torch.arange(7), acted])
    outputs = model.lockstep.module({"obs": obs})  # what the loss reads
    torch.testing.assert_close(outputs["action_dist_inputs"], logits)
    torch.testing.assert_close(outputs["vf_preds"], values.squeeze(-1))


def test_a_gaussian_policy_has_its_log_std():
    policy = made(env=Aim, policy_kwargs={"log_std_init": -1.0}).policy
    obs = torch.rand(5, 2)
    assert policy.log_std.tolist() == [-1.0]
    mean = layers([*policy.mlp_extractor.policy_net, policy.action_net], obs)
    actions = torch.rand(5, 1)
    expected = torch.distributions.Normal(mean, torch.exp(torch.tensor(-1.0)))
    _, log_prob, entropy = policy.evaluate_actions(obs, actions)
    torch.testing.assert_close(log_prob, expected.log_prob(actions).squeeze(-1))
    torch.testing.assert_close(entropy, expected.entropy().squeeze(-1))


def test_names_of_parameters_are_those_of_stable_baselines3():
    names = set(made().policy.state_dict())
    hidden = {
        f"mlp_extractor.{part}_net.{i}.{kind}"
        for part in ("policy", "value")
        for i in (0, 2)
        for kind in ("weight", "bias")
    }
    heads = {f"{part}_net.{kind}" for part in ("action", "value") for kind in ("weight", "bias")}
    assert names == hidden | heads
    assert set(dict(made(env=Aim).policy.named_parameters())) == hidden | heads | {"log_std"}


def test_numbers_of_networks_are_read_and_set_by_name():
    model, other = made(seed=1), made(seed=2)
    found = model.policy.state_dict()
    acting = {name: value for name, value in found.items() if "policy" in name or "action" in name}
    other.policy.load_state_dict(acting, strict=False)
    np.testing.assert_array_equal(other.predict(OBS, deterministic=True)[0], model.predict(OBS, deterministic=True)[0])
    assert not all(torch.equal(value, found[name]) for name, value in other.policy.state_dict().items())
    with pytest.raises(RuntimeError, match="Missing"):
        other.policy.load_state_dict({})
    vector = model.policy.parameters_to_vector()
    other.policy.load_from_vector(vector)
    np.testing.assert_array_equal(other.policy.parameters_to_vector(), vector)
    assert other.learn(32).policy.device.type == "cpu"


def flat_is_intact(model):
    (entry, *_) = model.lockstep.learner_group.learner.optimizers
    parameters = dict(model.policy.named_parameters()).values()
    return entry.flat.is_bound() and sum(p.numel() for p in parameters) == entry.flat.data.numel()


def test_a_loss_of_the_programs_own_trains_the_model():
    """Imitation: the actions of `Copy` are the observations."""
    model = made(learning_rate=0.01)
    policy = model.policy
    obs = torch.tensor([[0.0], [1.0]])
    before = policy.state_dict()["value_net.weight"].clone()
    for _ in range(100):
        _, log_prob, _ = policy.evaluate_actions(obs, torch.tensor([0, 1]))
        policy.optimizer.zero_grad()
        (-log_prob.mean()).backward()
        policy.optimizer.step()
    assert model.predict(obs.numpy(), deterministic=True)[0].tolist() == [0, 1]
    assert policy.get_distribution(obs).distribution.probs.diagonal().min() > 0.9
    assert torch.equal(policy.state_dict()["value_net.weight"], before)  # it has had no gradient
    assert flat_is_intact(model)
    assert model.learn(64).predict(obs.numpy(), deterministic=True)[0].tolist() == [0, 1]
    assert flat_is_intact(model)


def test_a_step_of_the_optimizer_equals_one_of_torch():
    model = made(learning_rate=0.01).learn(32)
    policy = model.policy
    alone = copy.deepcopy(policy)
    state = model.lockstep.learner_group.learner.optimizers
    (entry,) = state
    plain = torch.optim.Adam(alone.parameters(), lr=0.01, eps=1e-5)
    exp_avg, exp_avg_sq, step = entry.adam_state()
    order = [[id(p) for p in entry.flat.params].index(id(p)) for p in policy.parameters()]
    moments = [entry.flat.unflatten(each) for each in (exp_avg, exp_avg_sq)]
    for parameter, index in zip(plain.param_groups[0]["params"], order):
        first, second = (moment[index].clone() for moment in moments)
        plain.state[parameter] = {"step": step.clone(), "exp_avg": first, "exp_avg_sq": second}
    obs = torch.rand(9, 1)
    for network, optimizer in ((policy, policy.optimizer), (alone, plain)):
        for _ in range(3):
            optimizer.zero_grad()
            network.predict_values(obs).square().mean().backward()  # the policy's layers have no gradient
            optimizer.step()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(policy.state_dict()[name], value, msg=name)


def test_the_optimizer_shows_and_keeps_learning_rates():
    model = made(learning_rate=lambda left: 0.1 * left)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    model.learn(64)
    assert model.policy.optimizer.param_groups[0]["lr"] < 0.1
    model.policy.optimizer.param_groups[0]["lr"] = 0.3
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc", "crossq"])
def test_actors_and_critics_are_those_that_learn(name):
    model = made(ALGORITHMS[name], env=Aim, policy_kwargs={"net_arch": {"pi": [8], "qf": [16]}}, batch_size=4)
    model.learn(12)
    policy, network = model.policy, model.lockstep.module
    obs = torch.rand(5, 2)
    actions = policy(obs, deterministic=True)
    expected, _ = model.predict(obs.numpy(), deterministic=True)
    np.testing.assert_allclose(policy.unscale_action(actions.detach().numpy()), expected, atol=1e-5)
    np.testing.assert_allclose(policy.actor(obs, deterministic=True).detach(), actions.detach())
    found = policy.critic(obs, actions)
    values = network.critics({"obs": obs}["obs"], actions)
    stacked = found.transpose(0, 1) if name == "tqc" else torch.stack(found).squeeze(-1)
    torch.testing.assert_close(stacked, values)
    if name != "tqc":
        inputs = torch.cat([obs, actions], 1)
        torch.testing.assert_close(policy.critic.qf0(inputs), policy.critic.q1_forward(obs, actions))
    if name == "crossq":
        assert policy.critic_target is None
    else:
        assert not torch.equal(policy.critic_target(obs, actions)[0], found[0])
    loss = policy.critic(obs, actions.detach())[0].square().mean()
    before = policy.critic.parameters_to_vector()
    policy.critic.optimizer.zero_grad()
    loss.backward()
    policy.critic.optimizer.step()
    assert not np.array_equal(policy.critic.parameters_to_vector(), before)
    assert policy.optimizer is None


def test_a_soft_actor_has_layers_for_mean_and_deviation():
    model = made(SAC, env=Aim, policy_kwargs={"net_arch": [8]})
    actor = model.policy.actor
    obs = torch.rand(5, 2)
    mean, log_std, _ = actor.get_action_dist_params(obs)
    latent = layers(actor.latent_pi, obs)
    torch.testing.assert_close(layers([*actor.latent_pi], obs) @ actor.mu.weight.T + actor.mu.bias, mean)
    torch.testing.assert_close(actor.log_std(latent), log_std)
    torch.testing.assert_close(nn.Sequential(actor.latent_pi, actor.mu, nn.Tanh())(obs), actor(obs, True))
    actions, log_prob = actor.action_log_prob(obs)
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    expected = gaussian.log_prob(actions.atanh()) - torch.log(1.0 - actions.square() + 1e-6)
    torch.testing.assert_close(log_prob, expected.sum(-1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["dqn", "qrdqn"])
def test_action_values_are_those_that_learn(name):
    model = made(ALGORITHMS[name], policy_kwargs={"net_arch": [8]}, target_update_interval=10_000).learn(40)
    policy = model.policy
    obs = torch.as_tensor(OBS)
    network = policy.q_net if name == "dqn" else policy.quantile_net
    target = policy.q_net_target if name == "dqn" else policy.quantile_net_target
    values = network(obs) if name == "dqn" else network(obs).mean(1)
    expected = model.lockstep.module.forward_inference({"obs": obs})["action_dist_inputs"]
    torch.testing.assert_close(values, expected)
    np.testing.assert_array_equal(policy(obs), model.predict(OBS, deterministic=True)[0])
    assert not torch.equal(target(obs), network(obs))


def test_convolutions_have_the_names_of_stable_baselines3():
    policy = made(policy="CnnPolicy", env=Picture).policy
    names = set(policy.state_dict())
    assert {"features_extractor.cnn.0.weight", "features_extractor.linear.0.weight"} <= names
    obs, is_batch = policy.obs_to_tensor(np.full((12, 16, 3), 255, np.uint8))
    assert not is_batch
    assert obs.shape == (1, 3, 12, 16)
    values = policy.predict_values(obs)
    network = policy._model.lockstep.module
    raw = torch.full((1, 12, 16, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(values.squeeze(-1), network({"obs": raw})["vf_preds"])


def test_a_copy_of_a_policy_acts_and_changes_by_itself():
    model = made()
    alone = copy.deepcopy(model.policy)
    np.testing.assert_array_equal(alone.predict(OBS, deterministic=True)[0], model.predict(OBS, deterministic=True)[0])
    before = model.policy.parameters_to_vector()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(model.policy.parameters_to_vector(), before)
    assert alone.predict(OBS, deterministic=True)[0].tolist() == [0] * 7


# -- policies of the user's own ---


class Branches(nn.Module):
    """Hidden layers that policy and value function have in common."""

    def __init__(self, features_dim: int) -> None:
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = 8, 4
        self.shared = nn.Sequential(nn.Linear(features_dim, 32), nn.Tanh())
        self.policy_net = nn.Sequential(nn.Linear(32, 8), nn.Tanh())
        self.value_net = nn.Sequential(nn.Linear(32, 4), nn.Tanh())

    def forward(self, features):
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features):
        return self.policy_net(self.shared(features))

    def forward_critic(self, features):
        return self.value_net(self.shared(features))


class OwnPolicy(ActorCriticPolicy):
    def __init__(self, observation_space, action_space, lr_schedule, *args, **kwargs):
        kwargs["ortho_init"] = False
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build_mlp_extractor(self):
        self.mlp_extractor = Branches(self.features_dim)


@pytest.mark.parametrize("model_class", [PPO, A2C])
def test_a_policy_of_the_users_own_learns_and_is_loaded(model_class, tmp_path):
    n_steps = 5 if model_class is A2C else 32
    model = made(model_class, OwnPolicy, learning_rate=0.01, gamma=0.0, n_steps=n_steps)
    assert type(model.policy) is OwnPolicy
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(1500)
    assert all(not torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    assert model.predict(np.array([[0.0], [1.0]], np.float32), deterministic=True)[0].tolist() == [0, 1]
    assert flat_is_intact(model)
    model.save(tmp_path / "model")
    loaded = model_class.load(tmp_path / "model", env=Copy())
    assert type(loaded.policy) is OwnPolicy
    obs = torch.as_tensor(OBS)
    torch.testing.assert_close(loaded.policy.predict_values(obs), model.policy.predict_values(obs))
    values = layers([*model.policy.mlp_extractor.shared, *model.policy.mlp_extractor.value_net], obs)
    torch.testing.assert_close(model.policy.value_net(values), model.policy.predict_values(obs))
    loaded.learn(64)
    model.lockstep.save_to_path(tmp_path / "lockstep")


def test_a_policy_of_the_users_own_sees_images_with_channels_first():
    class Means(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 3)
            self.layer = nn.Linear(3, 3)

        def forward(self, observations):
            assert observations.shape[1:] == (3, 12, 16)
            assert observations.max() <= 1.0
            return self.layer(observations.mean((2, 3)))

    kwargs = {"features_extractor_class": Means, "share_features_extractor": False, "net_arch": {"pi": [4], "vf": []}}
    model = made(policy=OwnNet, env=Picture, policy_kwargs=kwargs).learn(64)
    assert model.policy.pi_features_extractor is not model.policy.vf_features_extractor
    assert model.policy.observation_space.shape == (3, 12, 16)
    assert model.policy.action_net.in_features == 4


class Mean(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 3)
        self.layer = nn.Linear(space.shape[0], 3)

    def forward(self, observations):
        return self.layer(observations)


def test_an_extractor_is_shared_if_a_program_asks_for_it(tmp_path):
    kwargs = {"features_extractor_class": Mean, "net_arch": {"pi": [4], "vf": [8]}, "share_features_extractor": True}
    model = made(policy_kwargs=kwargs).learn(64)
    policy = model.policy
    assert policy.pi_features_extractor is policy.vf_features_extractor
    assert sum(parameter.shape == (3, 1) for parameter in policy.parameters()) == 1
    assert flat_is_intact(model)
    model.save(tmp_path / "model")
    obs = torch.as_tensor(OBS)
    loaded = PPO.load(tmp_path / "model").policy
    torch.testing.assert_close(loaded.predict_values(obs), policy.predict_values(obs))
    apart = made(policy_kwargs={**kwargs, "share_features_extractor": False}).policy
    assert apart.pi_features_extractor is not apart.vf_features_extractor


class OwnNet(ActorCriticPolicy):
    pass


class WithSameForward(ActorCriticPolicy):
    def forward(self, obs, deterministic=False):
        latent_pi, latent_vf = self.mlp_extractor(self.extract_features(obs))
        distribution = self._get_action_dist_from_latent(latent_pi)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.value_net(latent_vf), distribution.log_prob(actions)

    def evaluate_actions(self, obs, actions):
        latent_pi, latent_vf = self.mlp_extractor(self.extract_features(obs))
        distribution = self._get_action_dist_from_latent(latent_pi)
        return self.value_net(latent_vf), distribution.log_prob(actions), distribution.entropy()


class WithOwnForward(ActorCriticPolicy):
    def forward(self, obs, deterministic=False):
        return super().forward(obs, True)


class WithOwnValues(ActorCriticPolicy):
    def predict_values(self, obs):
        return 2.0 * super().predict_values(obs)


@pytest.mark.parametrize("env", [Copy, Aim])
def test_overrides_with_equal_results_are_accepted(env):
    model = made(policy=WithSameForward, env=env).learn(64)
    assert type(model.policy) is WithSameForward


class WithOwnOptimizer(ActorCriticPolicy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs, optimizer_class=torch.optim.SGD)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: made(policy=WithOwnForward), "WithOwnForward overrides forward"),
        (lambda: made(policy=WithOwnValues), "WithOwnValues overrides predict_values"),
        (lambda: made(policy=WithOwnOptimizer), "optimizer_class"),
        (lambda: made(policy=OwnNet, use_sde=True, env=Aim), "use_sde"),
        (lambda: made(policy=OwnNet, policy_kwargs={"squash_output": True}), "squash_output"),
        (lambda: made(SAC, OwnNet, env=Aim), "OwnNet"),
        (lambda: importlib.import_module("lockstep_sb3.sac").MlpPolicy(1, 2), "SACPolicy"),
    ],
)
def test_what_a_policy_cannot_do_is_refused_by_name(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


class Onnxable(nn.Module):
    """The module that Stable-Baselines3's documentation exports."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, observation):
        return self.policy(observation, deterministic=True)


@pytest.mark.parametrize("model_class, env", [(PPO, Copy), (A2C, Aim), (SAC, Aim), (TD3, Aim), (DQN, Copy)])
def test_policies_are_traced(model_class, env):
    network = Onnxable(made(model_class, env=env).policy).eval()
    first, second = torch.rand(2, 1, *env().observation_space.shape)
    traced = torch.jit.freeze(torch.jit.trace(network, first))
    found, expected = traced(second), network(second)
    if isinstance(found, torch.Tensor):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_a_policy_without_a_model_acts_and_learns_alone():
    env = Copy()
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: 0.01)
    for _ in range(60):
        loss = -policy.evaluate_actions(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))[1].mean()
        policy.optimizer.zero_grad()
        loss.backward()
        policy.optimizer.step()
    assert policy.predict(np.array([[0.0], [1.0]], np.float32), deterministic=True)[0].tolist() == [0, 1]
    assert policy.predict(np.array([1.0], np.float32), deterministic=True)[0] == 1
    model = made()
    model.policy.load_state_dict(policy.state_dict())
    assert model.predict(np.array([1.0], np.float32), deterministic=True)[0] == 1
    with pytest.raises(ValueError, match="state_dict"):
        policy.save("policy")
    assert issubclass(ActorCriticPolicy, BasePolicy)


def test_another_policy_in_place_of_the_live_one_is_refused():
    model = made()
    model.policy = copy.deepcopy(model.policy)
    with pytest.raises(ValueError, match="load_state_dict"):
        model.learn(32)
