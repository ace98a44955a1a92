"""CQL and IQL after ten steps: each part against d3rlpy's numbers, all parts together against an update written out.

d3rlpy steps its critics before its policy; here all losses are taken at the same parameters. So d3rlpy's numbers are of
one part at a time. `benchmarks/peers/offline_d3rlpy.py` made them, and says how.
"""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, learned_transitions, noting
from gymnasium import spaces
from torch import nn

from lockstep import CQLConfig, IQLConfig, SampleBatch

pytestmark = pytest.mark.filterwarnings("ignore:the learning rate of optimizer")  # parts are held by a rate of 0
PEER = json.loads((Path(__file__).parent / "offline_d3rlpy.json").read_text())
GIVEN, SETTINGS = PEER["given"], PEER["settings"]
OBS, BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32), spaces.Discrete(3)
MASKED = spaces.Dict(observations=OBS, action_mask=spaces.MultiBinary(3))
GAMMA, TAU, RATE = SETTINGS["gamma"], SETTINGS["tau"], SETTINGS["lr"]


# -- d3rlpy ---


def with_given_noise(learner_class):
    """The class with learners that take from the file the random numbers that they would draw."""

    class Given(learner_class):
        def compute_losses(self, *, fwd_out, batch):
            part = batch[MODULE]
            for name in self.noise_columns(MODULE):
                part[name] = torch.tensor(self.rows[name]).reshape(len(part["obs"]), -1)
            return super().compute_losses(fwd_out=fwd_out, batch=batch)

    return Given


def learner_with_given_weights(config, policy, **training):
    network = {"hiddens": (8, 8), "log_std_init": SETTINGS["log_std"] if policy == "gaussian" else 0.0}
    config.framework(dtype="float64").rl_module(model_config=network)
    config.training(learner_class=with_given_noise(config.learner_class), gamma=GAMMA, tau=TAU, **training)
    learner = config.build_learner(spaces=(OBS, BOX))
    module = learner.module[MODULE]
    put([*module.encoder.mlp, module.policy_head], GIVEN[policy])
    if policy == "gaussian":
        put([*module.value_encoder.mlp, module.value_head], GIVEN["value"])
    target = learner.registered[f"{MODULE}/target"]
    for owner in (module.critics, getattr(target.module, "critics", target.module)):
        for k, values in enumerate(GIVEN["critics"]):
            for layer, (weight, bias) in enumerate(values):
                owner.mlp.weights[layer].data[k] = torch.tensor(weight).T
                owner.mlp.biases[layer].data[k, 0] = torch.tensor(bias)
    return learner


def put(layers, values):
    for layer, (weight, bias) in zip(linear(layers), values, strict=True):
        layer.weight.data.copy_(torch.tensor(weight))
        layer.bias.data.copy_(torch.tensor(bias))


def linear(layers):
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def take_ten_steps(learner, after=None):
    for rows in GIVEN["batches"]:
        learner.rows = rows
        columns = {name: np.array(rows[name]) for name in ("obs", "new_obs", "actions", "rewards", "terminateds")}
        learner.update_from_batch(SampleBatch(columns, truncateds=np.zeros(len(columns["obs"]), bool)))
        if after is not None:
            after()


def assert_layers(layers, expected):
    for layer, (weight, bias) in zip(linear(layers), expected, strict=True):
        assert_near(layer.weight, weight)
        assert_near(layer.bias, bias)


def assert_critics(critics, expected):
    for k, values in enumerate(expected):
        assert_layers(critics.mlp.network(k), values)


def assert_near(found, expected):
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-6)


def cql_learner(**training):
    settings = {"alpha": SETTINGS["alpha"], "min_q_weight": SETTINGS["min_q_weight"], "num_actions": 3}
    config = CQLConfig()
    return learner_with_given_weights(config, "squashed", **settings | {"deterministic_backup": False} | training)


def test_the_critics_of_cql_are_d3rlpys_after_ten_steps():
    learner = cql_learner(critic_lr=RATE, actor_lr=0.0)
    take_ten_steps(learner)
    assert_critics(learner.module[MODULE].critics, PEER["cql"]["critics"])


def test_the_policy_of_cql_is_d3rlpys_after_ten_steps():
    learner = cql_learner(critic_lr=0.0, actor_lr=RATE)
    take_ten_steps(learner)
    module = learner.module[MODULE]
    assert_layers([*module.encoder.mlp, module.policy_head], PEER["cql"]["policy"])


def test_the_temperature_of_cql_is_d3rlpys_after_ten_steps():
    """d3rlpy's loss is `alpha` times the one of the paper's code, which is ours: Adam's steps are nearly the same."""
    alpha = {"alpha": "auto", "initial_alpha": SETTINGS["alpha"], "alpha_lr": SETTINGS["alpha_lr"]}
    learner = cql_learner(critic_lr=0.0, actor_lr=0.0, **alpha)
    take_ten_steps(learner)
    assert_near(learner.registered[f"{MODULE}/log_alpha"], PEER["cql"]["log_alpha"])


def iql_learner(**training):
    settings = {name: SETTINGS[name] for name in ("expectile", "beta", "exp_adv_max")}
    return learner_with_given_weights(IQLConfig(), "gaussian", **settings, **training)


def test_the_critics_and_the_value_of_iql_are_d3rlpys_after_ten_steps():
    learner = iql_learner(critic_lr=RATE, value_lr=RATE, actor_lr=0.0)
    take_ten_steps(learner)
    module = learner.module[MODULE]
    assert_critics(module.critics, PEER["iql"]["critics"])
    assert_layers([*module.value_encoder.mlp, module.value_head], PEER["iql"]["value"])


def test_the_policy_of_iql_is_d3rlpys_after_ten_steps():
    """The deviations are held: d3rlpy has them as sigmoids of its parameters, the authors' code as they are here."""
    learner = iql_learner(critic_lr=0.0, value_lr=0.0, actor_lr=RATE)
    module = learner.module[MODULE]
    take_ten_steps(learner, after=lambda: module.log_std.data.fill_(SETTINGS["log_std"]))
    assert_layers([*module.encoder.mlp, module.policy_head], PEER["iql"]["policy"])


# -- the whole update, written out ---


class PlainUpdate:
    """Networks as plain layers, one loss after another, and a loop over two critics."""

    def __init__(self, learner):
        module = learner.module[MODULE]
        self.actor = copy.deepcopy(nn.Sequential(*module.encoder.mlp, module.policy_head))
        self.critics = nn.ModuleList(module.critics.mlp.network(k) for k in range(2))
        self.targets = copy.deepcopy(self.critics)

    def values(self, critics, obs, actions=None):
        inputs = obs if actions is None else torch.cat([obs, actions], -1)
        return [critic(inputs).squeeze(-1) for critic in critics]

    def step(self, losses):
        """Step each optimizer with the gradient of its loss; all gradients are taken before the first step."""
        for optimizer, loss in losses.items():
            params = [p for group in optimizer.param_groups for p in group["params"]]
            for param, gradient in zip(params, torch.autograd.grad(loss, params, retain_graph=True)):
                param.grad = gradient
        for optimizer in losses:
            optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.targets.parameters(), self.critics.parameters()):
                mine.copy_((1 - TAU) * mine + TAU * theirs)

    def td_targets(self, b, following):
        return b["rewards"] + GAMMA * (1 - b["terminateds"].double()) * following


class PlainCQL(PlainUpdate):
    """Of a Box or, with `num_choices`, of that many choices, some of which a mask forbids."""

    def __init__(self, learner, num_choices=None):
        super().__init__(learner)
        self.num_choices = num_choices
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        parts = (self.actor.parameters(), 1e-3), (self.critics.parameters(), 3e-3), ([self.log_alpha], 5e-3)
        self.optimizers = [torch.optim.Adam(params, lr=lr) for params, lr in parts]

    def update(self, b):
        losses = self.losses_of_choices(b) if self.num_choices else self.losses_of_a_box(b)
        self.step(dict(zip(self.optimizers, losses)))

    def drawn(self, obs, noise):
        mean, log_std = self.actor(obs).chunk(2, -1)
        base = torch.distributions.Normal(mean, log_std.exp())
        raw = mean + log_std.exp() * noise
        return raw.tanh(), (base.log_prob(raw) - torch.log(1 - raw.tanh() ** 2)).sum(-1)

    def losses_of_a_box(self, b):
        alpha, rows = self.log_alpha.exp().detach(), len(b["obs"])
        noise = b["cql_noise"].reshape(rows, 3, 4, 2)
        with torch.no_grad():
            actions, _ = self.drawn(b["new_obs"], b["next_action_noise"])
            following = torch.minimum(*self.values(self.targets, b["new_obs"], actions))
            uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(noise[:, 0]) - 1
            here = [self.drawn(b["obs"], noise[:, 1, i]) for i in range(4)]
            after = [self.drawn(b["new_obs"], noise[:, 2, i]) for i in range(4)]
        sampled = [(uniform[:, i], torch.full((rows,), 2 * math.log(0.5))) for i in range(4)] + here + after
        targets, critic_loss = self.td_targets(b, following), 0.0
        for critic in self.critics:
            taken = self.values([critic], b["obs"], b["actions"])[0]
            each = [self.values([critic], b["obs"], action)[0] - logp for action, logp in sampled]
            gap = torch.logsumexp(torch.stack(each), 0) - taken
            critic_loss = critic_loss + ((taken - targets) ** 2 + 2.0 * gap).mean()
        actions, logp = self.drawn(b["obs"], b["action_noise"])
        actor_loss = (alpha * logp - torch.minimum(*self.values(self.critics, b["obs"], actions))).mean()
        return actor_loss, critic_loss, -(self.log_alpha * (logp.detach() - 2.0)).mean()

    def losses_of_choices(self, b):
        alpha = self.log_alpha.exp().detach()
        obs, new_obs, allowed = b["obs"], b["new_obs"], torch.ones(len(b["rewards"]), self.num_choices, dtype=bool)
        next_allowed = allowed
        if isinstance(obs, dict):
            allowed, next_allowed = obs["action_mask"].bool(), new_obs["action_mask"].bool()
            obs, new_obs = obs["observations"], new_obs["observations"]

        def policy(seen, mask):
            return torch.log_softmax(self.actor(seen).masked_fill(~mask, -1e9), -1)

        with torch.no_grad():
            log_probs = policy(new_obs, next_allowed)
            best = torch.minimum(*self.values(self.targets, new_obs)).masked_fill(~next_allowed, 0.0)
            following = (log_probs.exp() * best).sum(-1)
        targets, critic_loss = self.td_targets(b, following), 0.0
        for critic in self.critics:
            values = critic(obs).masked_fill(~allowed, -1e9)
            taken = values.gather(1, b["actions"][:, None]).squeeze(1)
            gap = torch.logsumexp(values, -1) - taken
            critic_loss = critic_loss + ((taken - targets) ** 2 + 2.0 * gap).mean()
        log_probs = policy(obs, allowed)
        probs = log_probs.exp()
        values = torch.minimum(*self.values(self.critics, obs)).detach().masked_fill(~allowed, 0.0)
        actor_loss = (probs * (alpha * log_probs - values)).sum(-1).mean()
        neg_entropy = (probs * log_probs).sum(-1).detach()
        highest = allowed.sum(-1).double().log()
        return actor_loss, critic_loss, -(self.log_alpha * (neg_entropy + 0.98 * highest)).mean()


class PlainIQL(PlainUpdate):
    def __init__(self, learner):
        super().__init__(learner)
        module = learner.module[MODULE]
        self.value = copy.deepcopy(nn.Sequential(*module.value_encoder.mlp, module.value_head))
        self.log_std = module.log_std.detach().clone().requires_grad_(True)
        parts = [[*self.actor.parameters(), self.log_std], self.critics.parameters(), self.value.parameters()]
        self.optimizers = [torch.optim.Adam(params, lr=lr) for params, lr in zip(parts, (1e-3, 3e-3, 2e-3))]

    def update(self, b):
        with torch.no_grad():
            believed = torch.minimum(*self.values(self.targets, b["obs"], b["actions"]))
            following = self.value(b["new_obs"]).squeeze(-1)
        u = believed - self.value(b["obs"]).squeeze(-1)
        value_loss = (torch.where(u < 0, 0.2, 0.8) * u**2).mean()
        targets = self.td_targets(b, following)
        taken = self.values(self.critics, b["obs"], b["actions"])
        critic_loss = sum((0.5 * (values - targets) ** 2).mean() for values in taken)
        weights = torch.exp(2.0 * u.detach()).clamp(max=100.0)
        dist = torch.distributions.Normal(self.actor(b["obs"]).tanh(), self.log_std.exp())
        actor_loss = -(weights * dist.log_prob(b["actions"]).sum(-1)).mean()
        self.step(dict(zip(self.optimizers, (actor_loss, critic_loss, value_loss))))


def own_learner(config, observation_space=OBS, action_space=BOX, **training):
    config.framework(dtype="float64").rl_module(model_config={"hiddens": (16, 8)}).debugging(seed=1)
    rates = {"actor_lr": 1e-3, "critic_lr": 3e-3}
    config.training(gamma=GAMMA, tau=TAU, learner_class=noting(config.learner_class), **rates, **training)
    return config.build_learner(spaces=(observation_space, action_space))


def masked(batch, seed):
    """The batch with masks that allow one to three actions, among them the one that was taken."""
    rng = np.random.default_rng(seed)
    masks = (rng.random((2, len(batch), 3)) < 0.4).astype(np.int8)
    masks[0, np.arange(len(batch)), batch["actions"]] = 1
    masks[1, :, 0] = 1
    seen = {name: {"observations": batch[name], "action_mask": mask} for name, mask in zip(("obs", "new_obs"), masks)}
    return SampleBatch({**dict(batch.items()), **seen})


def assert_same_update(learner, plain, batches):
    module = learner.module[MODULE]
    for batch in batches:
        learner.update_from_batch(batch)
        plain.update(learner.seen)
    for own, other in zip([*module.encoder.mlp, module.policy_head], plain.actor, strict=True):
        for mine, theirs in zip(own.parameters(), other.parameters()):
            assert_near(mine, theirs.detach())
    target = learner.registered[f"{MODULE}/target"].module
    for critics, others in ((module.critics, plain.critics), (target, plain.targets)):
        for k, other in enumerate(others):
            for mine, theirs in zip(critics.mlp.network(k).parameters(), other.parameters(), strict=True):
                assert_near(mine, theirs.detach())


def test_cql_is_the_update_that_is_written_out():
    learner = own_learner(CQLConfig(), alpha_lr=5e-3, num_actions=4, min_q_weight=2.0)
    plain = PlainCQL(learner)
    assert_same_update(learner, plain, [learned_transitions(BOX, seed) for seed in range(10)])
    assert_near(learner.registered[f"{MODULE}/log_alpha"], plain.log_alpha.item())


@pytest.mark.parametrize("is_masked", [False, True], ids=["all", "masked"])
def test_cql_of_choices_is_the_update_that_is_written_out(is_masked):
    space = MASKED if is_masked else OBS
    learner = own_learner(CQLConfig(), space, DISCRETE, alpha_lr=5e-3, min_q_weight=2.0)
    plain = PlainCQL(learner, num_choices=3)
    batches = [learned_transitions(DISCRETE, seed) for seed in range(10)]
    if is_masked:
        batches = [masked(batch, seed) for seed, batch in enumerate(batches)]
    assert_same_update(learner, plain, batches)
    assert_near(learner.registered[f"{MODULE}/log_alpha"], plain.log_alpha.item())


def test_iql_is_the_update_that_is_written_out():
    learner = own_learner(IQLConfig(), value_lr=2e-3, expectile=0.8, beta=2.0)
    plain = PlainIQL(learner)
    assert_same_update(learner, plain, [learned_transitions(BOX, seed) for seed in range(10)])
    module = learner.module[MODULE]
    assert_near(module.log_std, plain.log_std.detach())
    for mine, theirs in zip(
        [*module.value_encoder.parameters(), *module.value_head.parameters()], plain.value.parameters()
    ):
        assert_near(mine, theirs.detach())
