"""SAC, TQC, CrossQ, TD3 and DDPG: each update against a plain torch implementation with separate losses, options."""

import copy
import math

import numpy as np
import pytest
import torch
from algorithm_cases import class_of, where
from algorithm_tools import MODULE, learned_transitions, noting
from gymnasium import spaces

from lockstep import (
    CrossQConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
    policy_within_training_step,
)
from lockstep.modules import ActionCritics, DefaultTD3Module, GaussianNoise, ModelConfig

OBS, BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32), spaces.Discrete(3)
IN_A_BOX = [class_of(name) for name in where(lambda case: case.in_a_box)]
ROWS, GAMMA, TAU, LR = 12, 0.9, 0.1, {"actor_lr": 1e-3, "critic_lr": 3e-3}


def learner_of(config, action_space=BOX, **training):
    config.framework(dtype="float64").rl_module(model_config={"hiddens": (16, 8), "critic_hiddens": (16, 8)})
    followed = {} if isinstance(config, CrossQConfig) else {"tau": TAU}
    config.training(gamma=GAMMA, learner_class=noting(config.learner_class), **{**followed, **LR, **training})
    return config.build_learner(spaces=(OBS, action_space))


# -- plain references: one network after another, one loss after another ---


def plain_networks(module):
    """The policy and the critics as layers of torch."""
    actor = copy.deepcopy(torch.nn.Sequential(*module.encoder.mlp, module.policy_head)).requires_grad_(True)
    return actor, torch.nn.ModuleList(module.critics.mlp.network(k) for k in range(module.critics.mlp.num_networks))


def assert_same_networks(module, actor, critics, tolerance=1e-12):
    own = torch.nn.Sequential(*module.encoder.mlp, module.policy_head)
    assert_same(own.parameters(), actor.parameters(), tolerance)
    for number, critic in enumerate(critics):
        assert_same(module.critics.mlp.network(number).parameters(), critic.parameters(), tolerance)


def assert_same(own, others, tolerance=1e-12):
    for mine, theirs in zip(own, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


def follow(target, source):
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_((1 - TAU) * mine + TAU * theirs)


def values_of(critics, obs, actions):
    return [critic(torch.cat([obs, actions], -1)).squeeze(-1) for critic in critics]


def step(optimizers, losses):
    """Each loss moves its own optimizer's parameters only; all gradients are taken before the first step."""
    for optimizer, loss in zip(optimizers, losses, strict=True):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for param, gradient in zip(params, torch.autograd.grad(loss, params, retain_graph=True)):
            param.grad = gradient
    for optimizer in optimizers:
        optimizer.step()


def squashed(actor, obs, noise):
    """Actions and log-densities, by torch's own distributions."""
    mean, log_std = actor(obs).chunk(2, -1)
    base = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
    dist = torch.distributions.TransformedDistribution(
        base, torch.distributions.TanhTransform(cache_size=1), validate_args=False
    )
    raw = mean + log_std.clamp(-20, 2).exp() * noise
    actions = dist.transforms[0](raw)
    return actions, dist.log_prob(actions).sum(-1)


class PlainSAC:
    def __init__(self, module, discrete, alpha_lr):
        self.discrete = discrete
        self.actor, self.critics = plain_networks(module)
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.entropy = 0.98 * math.log(3) if discrete else -2.0
        groups = (self.actor.parameters(), 1e-3), (self.critics.parameters(), 3e-3), ([self.log_alpha], alpha_lr)
        self.optimizers = [torch.optim.Adam(params, lr=lr) for params, lr in groups]

    def update(self, b):
        alpha = self.log_alpha.exp().detach()
        if self.discrete:
            losses = self.discrete_losses(b, alpha)
        else:
            with torch.no_grad():
                actions, logp = squashed(self.actor, b["new_obs"], b["next_action_noise"])
                following = torch.min(*values_of(self.targets, b["new_obs"], actions)) - alpha * logp
            actions, logp = squashed(self.actor, b["obs"], b["action_noise"])
            actor_loss = (alpha * logp - torch.min(*values_of(self.critics, b["obs"], actions))).mean()
            taken = values_of(self.critics, b["obs"], b["actions"])
            losses = actor_loss, self.critic_loss(b, taken, following), self.alpha_loss(logp)
        step(self.optimizers, losses)
        follow(self.targets, self.critics)

    def critic_loss(self, b, taken, following):
        targets = b["rewards"] + b.get("discounts", GAMMA) * (1 - b["terminateds"].double()) * following
        return sum(0.5 * (b.get("weights", 1.0) * (value - targets) ** 2).mean() for value in taken)

    def alpha_loss(self, logp):
        return -(self.log_alpha * (logp.detach() + self.entropy)).mean()

    def discrete_losses(self, b, alpha):
        with torch.no_grad():
            probs = self.actor(b["new_obs"]).softmax(-1)
            best = torch.min(*[critic(b["new_obs"]) for critic in self.targets])
            following = (probs * (best - alpha * probs.log())).sum(-1)
        probs = self.actor(b["obs"]).softmax(-1)
        values = [critic(b["obs"]) for critic in self.critics]
        actor_loss = (probs * (alpha * probs.log() - torch.min(*values).detach())).sum(-1).mean()
        taken = [value.gather(1, b["actions"][:, None]).squeeze(1) for value in values]
        logp = (probs * probs.log()).sum(-1)
        return actor_loss, self.critic_loss(b, taken, following), self.alpha_loss(logp)


class PlainTQC:
    """Each critic's quantiles against each target, level by level."""

    def __init__(self, module, config):
        self.config = config
        self.actor, self.critics = plain_networks(module)
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        groups = (self.actor.parameters(), 1e-3), (self.critics.parameters(), 3e-3), ([self.log_alpha], 5e-3)
        self.optimizers = [torch.optim.Adam(params, lr=lr) for params, lr in groups]

    def quantiles_of(self, critics, obs, actions):
        """Of each critic: `[K, N, M]`."""
        return torch.stack([critic(torch.cat([obs, actions], -1)) for critic in critics])

    def update(self, b):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            actions, logp = squashed(self.actor, b["new_obs"], b["next_action_noise"])
            mixture = self.quantiles_of(self.targets, b["new_obs"], actions)
            targets = []
            for row in range(ROWS):
                every = sorted(mixture[:, row].flatten().tolist())
                kept = every[: len(every) - self.config.quantiles_to_drop * len(self.critics)]
                discount = b.get("discounts", torch.full((ROWS,), GAMMA))[row] * (1 - b["terminateds"][row].double())
                targets.append([float(b["rewards"][row] + discount * (z - alpha * logp[row])) for z in kept])
            targets = torch.tensor(targets, dtype=torch.float64)
        weights, losses = b.get("weights", torch.ones(ROWS)), []
        for own in self.quantiles_of(self.critics, b["obs"], b["actions"]):
            levels = (torch.arange(own.shape[1]) + 0.5) / own.shape[1]
            errors = targets[:, None, :] - own[:, :, None]
            huber = torch.where(errors.abs() <= 1, 0.5 * errors**2, errors.abs() - 0.5)
            each = (levels[None, :, None] - (errors < 0).double()).abs() * huber
            losses.append((weights * each.mean((1, 2))).mean())
        actions, logp = squashed(self.actor, b["obs"], b["action_noise"])
        actor_loss = (alpha * logp - self.quantiles_of(self.critics, b["obs"], actions).mean((0, 2))).mean()
        alpha_loss = -(self.log_alpha * (logp.detach() - 2.0)).mean()
        step(self.optimizers, (actor_loss, sum(losses), alpha_loss))
        follow(self.targets, self.critics)


class BatchNorm(torch.nn.BatchNorm1d):
    """torch's, but with running variances of the batch itself, not of what it is a sample of."""

    def forward(self, x):
        before = self.running_var.clone()
        out = super().forward(x)
        if self.training:
            self.running_var = 0.99 * before + 0.01 * x.detach().var(0, correction=0)
        return out


class PlainCrossQ:
    """With torch's own batch normalisation, which batch renormalisation is while it warms up."""

    def __init__(self, module, config):
        self.config, self.num_steps = config, 0
        self.actor = copy.deepcopy(torch.nn.Sequential(*module.encoder.mlp, module.policy_head))
        self.critics = torch.nn.ModuleList(self.plain_critic(module.critics.mlp, k) for k in range(2))
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        groups = (self.critics.parameters(), 3e-3), (self.actor.parameters(), 1e-3), ([self.log_alpha], 5e-3)
        self.optimizers = [torch.optim.Adam(params, lr=lr, betas=(0.5, 0.999)) for params, lr in groups]

    @staticmethod
    def plain_critic(mlp, k):
        layers = []
        for weight, bias in zip(mlp.weights, mlp.biases):
            linear = torch.nn.Linear(*weight.shape[1:], dtype=torch.float64)
            linear.weight.data, linear.bias.data = weight[k].detach().T.clone(), bias[k, 0].detach().clone()
            layers += [BatchNorm(weight.shape[1], eps=1e-3, momentum=0.01).double(), linear, torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    def update(self, b):
        self.num_steps += 1
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            actions, logp = squashed(self.actor, b["new_obs"], b["next_action_noise"])
        rows = torch.cat([torch.cat([b["obs"], b["actions"]], -1), torch.cat([b["new_obs"], actions], -1)])
        taken, following = torch.stack([critic(rows).squeeze(-1) for critic in self.critics]).chunk(2, -1)
        targets = b["rewards"] + GAMMA * (1 - b["terminateds"].double()) * (following.detach().amin(0) - alpha * logp)
        losses = [sum(0.5 * (value - targets).pow(2).mean() for value in taken)]
        if self.num_steps % self.config.policy_delay == 0:
            actions, logp = squashed(self.actor, b["obs"], b["action_noise"])
            values = torch.stack(values_of(self.critics.eval(), b["obs"], actions))
            self.critics.train()
            losses.append((alpha * logp - values.amin(0)).mean())
            losses.append(-(self.log_alpha * (logp.detach() - 2.0)).mean())
        step(self.optimizers[: len(losses)], losses)


class PlainTD3:
    def __init__(self, module, config):
        self.config, self.num_steps = config, 0
        self.actor, self.critics = plain_networks(module)
        self.target_actor, self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        groups = (self.actor, 1e-3), (self.critics, 3e-3)
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=lr) for net, lr in groups]

    def update(self, b):
        self.num_steps += 1
        with torch.no_grad():
            actions = self.target_actor(b["new_obs"]).tanh()
            if self.config.target_noise:
                noise = self.config.target_noise * b["target_noise"]
                actions = (actions + noise.clamp(-self.config.noise_clip, self.config.noise_clip)).clamp(-1, 1)
            following = torch.stack(values_of(self.targets, b["new_obs"], actions)).min(0).values
            targets = b["rewards"] + GAMMA * (1 - b["terminateds"].double()) * following
        taken = values_of(self.critics, b["obs"], b["actions"])
        losses = [sum(0.5 * (value - targets).pow(2).mean() for value in taken)]
        due = self.num_steps % self.config.policy_delay == 0
        if due:
            losses.insert(0, -values_of(self.critics[:1], b["obs"], self.actor(b["obs"]).tanh())[0].mean())
        step(self.optimizers[0 if due else 1 :], losses)
        if due:
            follow(self.target_actor, self.actor)
            follow(self.targets, self.critics)


@pytest.mark.parametrize("space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_sac_equals_a_plain_implementation_with_a_loop_over_critics(space):
    learner = learner_of(SACConfig(), space, alpha_lr=5e-3)
    plain = PlainSAC(learner.module[MODULE], isinstance(space, spaces.Discrete), alpha_lr=5e-3)
    for number in range(10):
        rng = np.random.default_rng(number)
        more = {"weights": rng.random(ROWS), "discounts": rng.random(ROWS)} if number % 2 else {}
        learner.update_from_batch(learned_transitions(space, number, **more))
        plain.update(learner.seen)
        assert_same_networks(learner.module[MODULE], plain.actor, plain.critics)
        torch.testing.assert_close(learner.registered[f"{MODULE}/log_alpha"].detach(), plain.log_alpha.detach())
    target = learner.registered[f"{MODULE}/target"].module
    for k, critic in enumerate(plain.targets):
        assert_same(target.mlp.network(k).parameters(), critic.parameters())


@pytest.mark.parametrize("drop", [0, 3])
def test_tqc_equals_a_plain_implementation_with_all_quantile_pairs(drop):
    config = TQCConfig().rl_module(model_config={"num_critics": 3})
    learner = learner_of(config, num_quantiles=4, quantiles_to_drop=drop, alpha_lr=5e-3)
    plain = PlainTQC(learner.module[MODULE], learner.config)
    for number in range(10):
        rng = np.random.default_rng(number)
        more = {"weights": rng.random(ROWS), "discounts": rng.random(ROWS)} if number % 2 else {}
        learner.update_from_batch(learned_transitions(BOX, number, **more))
        plain.update(learner.seen)
        assert_same_networks(learner.module[MODULE], plain.actor, plain.critics, 1e-7)
        torch.testing.assert_close(learner.registered[f"{MODULE}/log_alpha"].detach(), plain.log_alpha.detach())
    target = learner.registered[f"{MODULE}/target"].module
    for k, critic in enumerate(plain.targets):
        assert_same(target.mlp.network(k).parameters(), critic.parameters(), 1e-7)


def test_tqc_has_the_networks_of_the_paper_and_means_of_all_quantiles():
    learner = TQCConfig().build_learner(spaces=(OBS, BOX))
    module = learner.module[MODULE]
    assert module.critics.mlp.num_networks == 5
    assert module.critics.mlp.sizes == (5, 512, 512, 512, 25)
    assert [layer.out_features for layer in module.encoder.mlp[::2]] == [256, 256]
    obs = torch.randn(4, 3)
    actions = module.forward_inference({"obs": obs})["action_dist_inputs"].chunk(2, -1)[0].tanh()
    expected = module.critics(obs, actions).mean((0, 2))
    torch.testing.assert_close(module.compute_values({"obs": obs}), expected)


def test_crossq_equals_a_plain_implementation_with_torchs_batch_norm():
    learner = learner_of(CrossQConfig(), alpha_lr=5e-3)
    module = learner.module[MODULE]
    plain = PlainCrossQ(module, learner.config)
    assert f"{MODULE}/target" not in learner.registered
    for number in range(10):
        before = [p.clone() for p in [*module.encoder.parameters(), learner.registered[f"{MODULE}/log_alpha"]]]
        results = learner.update_from_batch(learned_transitions(BOX, number))[MODULE]
        plain.update(learner.seen)
        due = plain.num_steps % 3 == 0
        moved = [
            not torch.equal(p, q)
            for p, q in zip(before, [*module.encoder.parameters(), learner.registered[f"{MODULE}/log_alpha"]])
        ]
        assert ("actor_loss" in results) == due
        assert all(moved) if due else not any(moved)
        assert_same([*module.encoder.parameters(), *module.policy_head.parameters()], plain.actor.parameters(), 1e-9)
        for k, critic in enumerate(plain.critics):
            for i, (norm, weight, bias) in enumerate(zip(module.critics.mlp.norms, *of_critics(module))):
                theirs, linear = critic[3 * i], critic[3 * i + 1]
                own = norm.weight[k, 0], norm.bias[k, 0], norm.mean[k, 0], weight[k].T, bias[k, 0]
                others = theirs.weight, theirs.bias, theirs.running_mean, linear.weight, linear.bias
                assert_same(own, others, 1e-7)
                assert int(norm.num_batches) == number + 1


def of_critics(module):
    return module.critics.mlp.weights, module.critics.mlp.biases


def test_ddpg_is_td3_with_one_critic_no_target_noise_and_no_policy_delay():
    ddpg = TD3Config.ddpg()
    assert (ddpg.policy_delay, ddpg.target_noise, ddpg.model_config.num_critics) == (1, 0.0, 1)
    assert ddpg.model_config.hiddens == TD3Config().model_config.hiddens


@pytest.mark.parametrize("kind", ["td3", "ddpg"])
def test_td3_and_ddpg_are_the_plain_implementation(kind):
    config = TD3Config() if kind == "td3" else TD3Config.ddpg()
    learner = learner_of(config, **({"policy_delay": 3, "noise_clip": 0.1} if kind == "td3" else {}))
    plain = PlainTD3(learner.module[MODULE], learner.config)
    assert len(plain.critics) == (2 if kind == "td3" else 1)
    for number in range(10):
        before = [p.clone() for p in learner.module[MODULE].encoder.parameters()]
        results = learner.update_from_batch(learned_transitions(BOX, seed=number))[MODULE]
        plain.update(learner.seen)
        assert_same_networks(learner.module[MODULE], plain.actor, plain.critics)
        due = plain.num_steps % learner.config.policy_delay == 0
        assert ("actor_loss" in results) == due
        moved = [not torch.equal(p, q) for p, q in zip(before, learner.module[MODULE].encoder.parameters())]
        assert all(moved) if due else not any(moved)
    target = learner.registered[f"{MODULE}/target"].module
    assert_same_networks(target, plain.target_actor, plain.targets)


def test_a_fixed_temperature_is_not_learned_and_zero_is_allowed():
    for alpha in (0.3, 0.0):
        learner = learner_of(SACConfig(), alpha=alpha)
        results = learner.update_from_batch(learned_transitions(BOX))[MODULE]
        assert results["alpha"] == pytest.approx(alpha)
        assert "alpha_loss" not in results
        assert math.isfinite(results["total_loss"])
        assert [entry.name for entry in learner.optimizers] == ["actor", "critic"]


def test_the_temperature_rises_below_its_target_entropy_and_falls_above():
    for target, rises in ((50.0, True), (-50.0, False)):
        learner = learner_of(SACConfig(), target_entropy=target, initial_alpha=0.5)
        learner.update_from_batch(learned_transitions(BOX))
        assert (float(learner.registered[f"{MODULE}/log_alpha"].detach().exp()) > 0.5) == rises


def test_each_optimizer_has_its_own_learning_rate_or_the_common_one():
    config = SACConfig().training(lr=1e-2, actor_lr=[[0, 1e-3], [100, 0.0]])
    learner = config.build_learner(spaces=(OBS, BOX))
    batch = learned_transitions(BOX)
    results = learner.update_from_batch(batch, timesteps={"num_env_steps_sampled_lifetime": 50})[MODULE]
    rates = {name: results[f"{name}_learning_rate"] for name in ("actor", "critic", "alpha")}
    assert rates == {"actor": pytest.approx(5e-4), "critic": 1e-2, "alpha": 1e-2}


@pytest.mark.parametrize("config", [SACConfig, TQCConfig, CrossQConfig, TD3Config])
def test_state_restores_targets_temperature_noise_and_the_next_update(config):
    """Three updates later CrossQ's policy is due again."""
    one, other = learner_of(config()), learner_of(config())
    for seed in range(5):
        one.update_from_batch(learned_transitions(BOX, seed=seed))
    other.set_state(one.get_state())
    for learner in (one, other):
        learner.update_from_batch(learned_transitions(BOX, seed=9))
    assert_same(one.module[MODULE].parameters(), other.module[MODULE].parameters())
    assert_same(one.module[MODULE].buffers(), other.module[MODULE].buffers())
    assert torch.equal(*[state_of(learner) for learner in (one, other)])


def test_critics_equal_a_loop_and_frozen_ones_have_no_gradient():
    for space in (OBS, spaces.Box(0, 255, (12, 12, 3), np.uint8)):
        critics = ActionCritics(space, BOX, ModelConfig(hiddens=(8,), num_critics=3, image_hiddens=(6,)))
        obs = torch.from_numpy(np.stack([space.sample() for _ in range(5)]))
        actions = torch.rand(5, 2, requires_grad=True)
        values = critics(obs, actions)
        inputs = torch.cat([critics.features(obs).float(), actions], -1)
        expected = torch.stack([critics.mlp.network(k)(inputs).squeeze(-1) for k in range(3)])
        torch.testing.assert_close(values, expected)
        torch.testing.assert_close(critics(obs, actions, frozen=True), values)
        critics(obs, actions, frozen=True).sum().backward()
        assert all(p.grad is None for p in critics.parameters())
        assert actions.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="critics of a Box action space need actions"):
        critics(obs)


@pytest.mark.parametrize("config", [SACConfig, TD3Config])
def test_actions_are_in_bounds_for_the_environment_and_learned_within_one(config):
    policy = config().build_policy(spaces=(OBS, BOX))
    obs = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    with policy_within_training_step(policy):
        actions = policy.compute_actions(obs)
    assert np.abs(actions).max() <= 2.0
    assert actions.std() > 0
    np.testing.assert_allclose(policy.to_env(policy.from_env(actions)), actions, atol=1e-6)
    assert np.abs(policy.from_env(actions)).max() <= 1.0
    again = policy.compute_actions(obs, explore=False)
    np.testing.assert_array_equal(again, policy.compute_actions(obs, explore=False))


def test_exploration_noise_of_td3_follows_its_schedule():
    policy = TD3Config().training(exploration_noise=[[0, 0.5], [100, 0.0]]).build_policy(spaces=(OBS, BOX))
    for at, expected in ((0, 0.5), (50, 0.25), (100, 0.0)):
        policy.timesteps["num_env_steps_sampled_lifetime"] = at
        noise = policy.draw_noise(np.random.default_rng(1), (5000,))
        assert noise.shape == (5000, 2)
        assert noise.std() == pytest.approx(expected, abs=0.01)
    with pytest.raises(ValueError, match="exploration_noise: the function gives -1 at step 0"):
        GaussianNoise(lambda step: -1.0, 2).draw_noise(np.random.default_rng(0), (1,), 0)


def test_what_a_deterministic_policy_cannot_say_is_refused():
    module = DefaultTD3Module(OBS, BOX, model_config={"hiddens": (4,)})
    dist = module.action_dist_cls.from_inputs(torch.zeros(1, 2))
    for ask in (lambda: dist.log_prob(torch.zeros(1, 2)), dist.entropy, lambda: dist.kl(dist)):
        with pytest.raises(TypeError, match="a deterministic policy has no density"):
            ask()


# -- compiled ---


def state_of(learner):
    parts = [*learner.module.parameters(), *learner.module.buffers()]
    if f"{MODULE}/target" in learner.registered:
        parts.append(learner.registered[f"{MODULE}/target"].flat)
    parts += [value for value in learner.registered.values() if isinstance(value, torch.Tensor)]
    return torch.cat([part.detach().reshape(-1) for part in parts])


@pytest.mark.learning
@pytest.mark.parametrize("config", IN_A_BOX)
@pytest.mark.parametrize("half", [False, True])
def test_compiled_gradient_steps_are_the_eager_ones(config, half):
    """Parameters, temperature, targets, metrics and row errors; TD3's policy waits in every second step."""
    eager, compiled = (
        config()
        .framework(compile=on, compile_after=0, mixed_precision=half)
        .rl_module(model_config={"hiddens": (16, 16), "critic_hiddens": (16, 16)})
        .build_learner(spaces=(OBS, BOX))
        for on in (False, True)
    )
    tolerance = 5e-3 if half else 1e-5
    for seed in range(6):
        batch = learned_transitions(BOX, seed, 16)
        results = [learner.update_from_batch(batch)[MODULE] for learner in (eager, compiled)]
        assert results[0].keys() == results[1].keys()
        torch.testing.assert_close(state_of(compiled), state_of(eager), atol=tolerance, rtol=0)
        errors = [learner.row_errors[MODULE] for learner in (eager, compiled)]
        torch.testing.assert_close(*errors, atol=5 * tolerance, rtol=0)
    assert compiled.compiled._steps
    assert None not in compiled.compiled._steps.values()
