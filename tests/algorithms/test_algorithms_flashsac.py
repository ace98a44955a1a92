"""FlashSAC: its update against a plain implementation, each switch, bounded rewards, repeated noise, exact resume."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, learned_transitions, noting
from gymnasium import spaces

from lockstep import Collector, FlashSACConfig, RolloutStore
from lockstep.connectors import NormalizeRewards
from lockstep.export import load_export
from lockstep.modules import ModelConfig, RepeatedNoise
from lockstep.trainer import restore_trainer

OBS, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)
ROWS, GAMMA, TAU = 12, 0.9, 0.1
NETWORKS = {"hiddens": (6,), "critic_hiddens": (8, 8)}


def learner_of(networks=NETWORKS, **training):
    options = {"num_atoms": 7, "v_min": -2.0, "v_max": 3.0, "gamma": GAMMA, "tau": TAU, "initial_alpha": 0.5}
    config = FlashSACConfig().framework(dtype="float64").rl_module(model_config=networks)
    config.training(learner_class=noting(config.learner_class), actor_lr=1e-3, critic_lr=3e-3, alpha_lr=5e-3)
    return config.training(**{**options, **training}).build_learner(spaces=(OBS, BOX))


# -- a plain reference: one network after another, row by row in numpy where that is possible ---


class PlainNorm:
    def __init__(self, norm, k, normalizes):
        self.normalizes = normalizes
        self.weight, self.bias = (p[k, 0].detach().clone().requires_grad_() for p in (norm.weight, norm.bias))
        self.mean = np.zeros(len(self.weight))
        self.variance = np.ones(len(self.weight))

    def __call__(self, x, by_batch, keeps):
        if not self.normalizes:
            return x * self.weight + self.bias
        if not by_batch:
            mean, variance = torch.from_numpy(self.mean), torch.from_numpy(self.variance)
            return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias
        if keeps:
            self.mean = 0.99 * self.mean + 0.01 * x.detach().numpy().mean(0)
            self.variance = 0.99 * self.variance + 0.01 * x.detach().numpy().var(0)
        return torch.nn.functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=1e-5)


class PlainResidual:
    """One network: embedding, blocks, root mean square, head."""

    def __init__(self, mlp, k, head, bias, normalizes):
        self.weights = [weight[k].detach().clone().requires_grad_() for weight in mlp.weights]
        self.norms = [PlainNorm(norm, k, normalizes) for norm in mlp.norms]
        self.scale = mlp.scale[k, 0].detach().clone().requires_grad_()
        self.head, self.bias = (p.detach().clone().requires_grad_() for p in (head, bias))

    def parameters(self):
        norms = [p for norm in self.norms for p in (norm.weight, norm.bias)]
        return [*self.weights, *norms, self.scale, self.head, self.bias]

    def __call__(self, x, by_batch, keeps=True):
        x = self.norms[0](x, by_batch, keeps) @ self.weights[0]
        for i in range(1, len(self.weights), 2):
            inner = self.norms[i](x @ self.weights[i], by_batch, keeps).relu()
            x = x + self.norms[i + 1](inner @ self.weights[i + 1], by_batch, keeps).relu()
        x = x / ((x**2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.scale
        return x @ self.head + self.bias

    @torch.no_grad()
    def normalize(self):
        for weight in (*self.weights, self.head):
            weight /= (weight**2).sum(0, keepdim=True).sqrt()
        for norm in self.norms:
            factor = math.sqrt(len(norm.weight) / float((norm.weight**2).sum() + (norm.bias**2).sum()))
            norm.weight *= factor
            norm.bias *= factor
        self.scale *= math.sqrt(len(self.scale) / float((self.scale**2).sum()))


def projected(probs, rewards, discounts, costs, atoms):
    """The target distribution, atom by atom."""
    targets = np.zeros_like(probs)
    spacing = atoms[1] - atoms[0]
    for row, atom in np.ndindex(probs.shape):
        place = rewards[row] + discounts[row] * (atoms[atom] - costs[row])
        place = (min(max(place, atoms[0]), atoms[-1]) - atoms[0]) / spacing
        below = min(int(place), len(atoms) - 2)
        targets[row, below] += probs[row, atom] * (below + 1 - place)
        targets[row, below + 1] += probs[row, atom] * (place - below)
    return targets


class PlainFlashSAC:
    def __init__(self, module, config):
        self.config, self.num_steps = config, 0
        head = module.policy_head
        normalizes = config.batch_norm
        self.actor = PlainResidual(module.encoder.mlp, 0, head.weight.T, head.bias, normalizes)
        mlp = module.critics.mlp
        self.critics = [PlainResidual(mlp.body, k, mlp.weights[0][k], mlp.bias[k, 0], normalizes) for k in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
        of_critics = [p for critic in self.critics for p in critic.parameters()]
        groups = (of_critics, 3e-3), (self.actor.parameters(), 1e-3), ([self.log_alpha], 5e-3)
        self.optimizers = [torch.optim.Adam(params, lr=lr) for params, lr in groups]

    def sample(self, obs, noise, by_batch):
        mean, raw = self.actor(obs, by_batch).chunk(2, -1)
        deviation = (-10 + 6 * (1 + raw.tanh())).exp()
        before = mean + deviation * noise
        logp = torch.distributions.Normal(mean, deviation).log_prob(before) - (1 - before.tanh() ** 2).log()
        return before.tanh(), logp.sum(-1)

    def values(self, outputs):
        if not self.config.categorical_critic:
            return outputs.squeeze(-1)
        return outputs.softmax(-1) @ torch.linspace(-2, 3, 7, dtype=torch.float64)

    def update(self, b):
        self.num_steps += 1
        due = self.num_steps % 2 == 0
        alpha = self.log_alpha.exp().detach()
        if due:
            own_actions, own_logp = self.sample(b["obs"], b["action_noise"], True)
        with torch.no_grad():
            actions, logp = self.sample(b["new_obs"], b["next_action_noise"], False)
        now, after = torch.cat([b["obs"], b["actions"]], -1), torch.cat([b["new_obs"], actions], -1)
        if self.config.joint_batch:
            joint = torch.cat([now, after])
            following = torch.stack([target(joint, True, keeps=False)[ROWS:] for target in self.targets]).detach()
            taken = torch.stack([critic(joint, True)[:ROWS] for critic in self.critics])
        else:
            following = torch.stack([target(after, False) for target in self.targets]).detach()
            taken = torch.stack([critic(now, True) for critic in self.critics])
        losses = [self.critic_loss(b, taken, following, alpha * logp)]
        if due:
            values = torch.stack(
                [self.values(critic(torch.cat([b["obs"], own_actions], -1), False)) for critic in self.critics]
            )
            losses.append((alpha * own_logp - values.amin(0)).mean())
            entropy = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.15))
            losses.append(-(self.log_alpha * (own_logp.detach() + entropy)).mean())
        self.step(losses)
        if self.config.unit_norm_weights:
            for network in (*self.critics, *([self.actor] if due else [])):
                network.normalize()
        for target, critic in zip(self.targets, self.critics):
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), critic.parameters()):
                    mine.copy_((1 - TAU) * mine + TAU * theirs)
            for mine, theirs in zip(target.norms, critic.norms):
                mine.mean, mine.variance = theirs.mean, theirs.variance

    def critic_loss(self, b, taken, following, costs):
        weights = b.get("weights", torch.ones(ROWS, dtype=torch.float64))
        discounts = b.get("discounts", GAMMA) * (1 - b["terminateds"].double())
        if not self.config.categorical_critic:
            targets = b["rewards"] + discounts * (self.values(following).amin(0) - costs)
            return sum((0.5 * weights * (self.values(each) - targets) ** 2).mean() for each in taken)
        best = self.values(following).argmin(0)
        probs = following.softmax(-1)[best, torch.arange(ROWS)].numpy()
        atoms = np.linspace(-2, 3, 7)
        targets = projected(probs, b["rewards"].numpy(), discounts.numpy(), costs.numpy(), atoms)
        targets = torch.from_numpy(targets)
        return sum(-(weights * (targets * each.log_softmax(-1)).sum(-1)).mean() for each in taken)

    def step(self, losses):
        optimizers = self.optimizers[: len(losses)]
        for optimizer, loss in zip(optimizers, losses):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            for param, gradient in zip(params, torch.autograd.grad(loss, params, retain_graph=True)):
                param.grad = gradient
        for optimizer in optimizers:
            optimizer.step()


def assert_same_network(mlp, k, head, bias, plain, tolerance=1e-9):
    own = [*(weight[k] for weight in mlp.weights), mlp.scale[k, 0], head, bias]
    others = [*plain.weights, plain.scale, plain.head, plain.bias]
    for norm, theirs in zip(mlp.norms, plain.norms, strict=True):
        own += [norm.weight[k, 0], norm.bias[k, 0]]
        others += [theirs.weight, theirs.bias]
        if theirs.normalizes:
            own += [norm.mean[k, 0], norm.variance[k, 0]]
            others += [torch.from_numpy(theirs.mean), torch.from_numpy(theirs.variance)]
    for mine, other in zip(own, others, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"joint_batch": False},
        {"categorical_critic": False},
        {"unit_norm_weights": False},
        {"batch_norm": False},
        {"batch_norm": False, "joint_batch": False, "unit_norm_weights": False},
    ],
    ids=str,
)
def test_an_update_equals_a_plain_implementation_in_numpy_and_torch(options):
    learner = learner_of(**options)
    module = learner.module[MODULE]
    plain = PlainFlashSAC(module, learner.config)
    for number in range(6):
        rng = np.random.default_rng(number)
        more = {"weights": rng.random(ROWS), "discounts": rng.random(ROWS)} if number % 2 else {}
        learner.update_from_batch(learned_transitions(BOX, number, **more))
        plain.update(learner.seen)
        mlp = module.critics.mlp
        head = module.policy_head
        assert_same_network(module.encoder.mlp, 0, head.weight.T, head.bias, plain.actor)
        for k, critic in enumerate(plain.critics):
            assert_same_network(mlp.body, k, mlp.weights[0][k], mlp.bias[k, 0], critic)
        torch.testing.assert_close(learner.registered[f"{MODULE}/log_alpha"].detach(), plain.log_alpha.detach())
    target = learner.registered[f"{MODULE}/target"].module.mlp
    for k, critic in enumerate(plain.targets):
        assert_same_network(target.body, k, target.weights[0][k], target.bias[k, 0], critic)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"joint_batch": False, "categorical_critic": False}], ids=str)
def test_compiled_steps_equal_eager_ones_with_all_statistics(options):
    config = FlashSACConfig().rl_module(model_config=NETWORKS).training(train_batch_size=ROWS, lr=1e-2, **options)
    compiled, eager = (config.copy().framework(compile=both, compile_after=0) for both in (True, False))
    compiled, eager = (each.build_learner(spaces=(OBS, BOX)) for each in (compiled, eager))
    for seed in range(6):
        for learner in (compiled, eager):
            learner.update_from_batch(learned_transitions(BOX, seed))
    assert all(compiled.compiled._steps.values())
    for mine, theirs in zip(compiled.module.parameters(), eager.module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(compiled.module.buffers(), eager.module.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    targets = [learner.registered[f"{MODULE}/target"].flat for learner in (compiled, eager)]
    torch.testing.assert_close(*targets, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_an_exported_policy_acts_by_the_running_statistics(tmp_path):
    trainer = small_run().build_trainer()
    trainer.run()
    policy = trainer.policy
    policy.export(tmp_path / "exported")
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    exported = load_export(tmp_path / "exported")
    np.testing.assert_allclose(exported.compute_actions(obs), policy.compute_actions(obs, explore=False), atol=1e-5)


# -- switches ---


def norms_of(module):
    """Norms of the weights of all units of the critics."""
    mlp = module.critics.mlp
    return torch.cat([weight.norm(dim=1).flatten() for weight in (*mlp.body.weights, *mlp.weights)])


@pytest.mark.parametrize("is_on", [True, False])
def test_unit_norm_weights_keep_each_unit_on_the_sphere(is_on):
    learner = learner_of(unit_norm_weights=is_on)
    for seed in range(4):
        learner.update_from_batch(learned_transitions(BOX, seed))
    far = (norms_of(learner.module[MODULE]) - 1.0).abs()
    assert float(far.max()) < 1e-12 if is_on else float(far.median()) > 1e-4
    norm = learner.module[MODULE].critics.mlp.body.norms[1]
    squares = norm.weight.square().sum(-1) + norm.bias.square().sum(-1)
    assert bool((squares - norm.weight.shape[-1]).abs().max() < 1e-12) == is_on


@pytest.mark.parametrize("is_on", [True, False])
def test_without_batch_norm_a_row_does_not_depend_on_the_others(is_on):
    module = learner_of(batch_norm=is_on).module[MODULE]
    assert len(list(module.buffers())) == (2 * (3 + 5) if is_on else 0)
    obs = torch.rand(8, 3, dtype=torch.float64)

    def outputs(rows):
        return module.policy_outputs({"obs": obs[:rows]}, lambda features: features.mean(-2, keepdim=True))[:4]

    assert torch.allclose(outputs(8), outputs(4)) == (not is_on)


def test_a_categorical_critic_has_an_output_for_each_atom():
    learner = learner_of()
    critics = learner.module[MODULE].critics
    assert critics(torch.zeros(5, 3).double(), torch.zeros(5, 2)).shape == (2, 5, 7)
    assert learner_of(categorical_critic=False).module[MODULE].critics(torch.zeros(5, 3), torch.zeros(5, 2)).shape == (
        2,
        5,
    )
    logits = torch.zeros(4, 7, dtype=torch.float64)
    logits[:, 6] = 100.0
    torch.testing.assert_close(learner.module[MODULE].mean_values(logits), torch.full((4,), 3.0).double())


def test_acting_uses_running_statistics_and_batches_of_any_size():
    learner = learner_of()
    for seed in range(3):
        learner.update_from_batch(learned_transitions(BOX, seed))
    module = learner.module[MODULE]
    obs = torch.rand(6, 3, dtype=torch.float64)
    together = module.forward_inference({"obs": obs})["action_dist_inputs"]
    alone = torch.cat([module.forward_inference({"obs": row[None]})["action_dist_inputs"] for row in obs])
    torch.testing.assert_close(together, alone)
    values = module.compute_values({"obs": obs})
    actions = together.chunk(2, -1)[0].tanh()
    torch.testing.assert_close(values, module.mean_values(module.critics(obs, actions)).amin(0))


# -- bounded rewards ---


def test_rewards_are_divided_by_the_deviation_or_the_largest_return():
    rng = np.random.default_rng(0)
    rewards, dones = rng.normal(2.0, 1.0, (50, 3)), rng.random((50, 3)) < 0.1
    bounded = NormalizeRewards(0.9, clip=None, bound=5.0)
    plain = NormalizeRewards(0.9, clip=None)
    returns, largest = np.zeros(3), 0.0
    for t in range(50):
        returns = 0.9 * returns + rewards[t]
        largest = max(largest, np.abs(returns).max())
        returns = returns * ~dones[t]
    plain(rewards, dones)
    found = bounded(rewards, dones)
    deviation = math.sqrt(plain.moments.var + 1e-8)
    assert largest / 5.0 < deviation
    np.testing.assert_allclose(found, rewards / deviation)
    narrow = NormalizeRewards(0.9, clip=None, bound=0.5)
    np.testing.assert_allclose(narrow(rewards, dones), rewards / (largest / 0.5))
    again = NormalizeRewards(0.9, clip=None, bound=0.5)
    again.set_state(narrow.get_state())
    np.testing.assert_array_equal(again.scale(rewards), narrow.scale(rewards))
    assert "largest" not in plain.get_state()
    with pytest.raises(ValueError, match="bound > 0"):
        NormalizeRewards(bound=0.0)


@pytest.mark.parametrize("is_on", [True, False])
def test_bounded_rewards_scale_the_rewards_that_the_loss_reads(is_on):
    config = small_run(bounded_rewards=is_on, v_min=-1.0, v_max=2.0).environment("Pendulum-v1")
    trainer = config.build_trainer()
    trainer.run()
    rewards = trainer.policy.connectors.rewards
    assert (rewards is not None) == is_on
    if is_on:
        assert rewards.bound == 2.0
        assert rewards.largest > 20.0
        np.testing.assert_allclose(rewards.scale(np.array([-rewards.largest])), [-2.0], rtol=0.35)
        assert rewards.scale(np.array([-rewards.largest]))[0] >= -2.0 - 1e-6


def test_returns_outside_of_the_atoms_are_reported_once_with_a_metric():
    learner = learner_of(v_min=-0.1, v_max=0.1)
    batches = [learned_transitions(BOX, seed) for seed in range(3)]
    with pytest.warns(RuntimeWarning, match=r"of the targets are returns outside of the atoms \[-0.1, 0.1\]"):
        results = learner.update_from_batch(batches[0])
    assert 0.5 < results[MODULE]["targets_outside"] <= 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.update_from_batch(batches[1])
        wide = learner_of(v_min=-50.0, v_max=50.0)
        assert wide.update_from_batch(batches[2])[MODULE]["targets_outside"] == 0.0


# -- repeated noise ---


def test_noise_is_repeated_for_n_steps_with_probability_n_to_the_minus_2():
    noise = RepeatedNoise(FlashSACConfig().build_learner(spaces=(OBS, BOX)).module[MODULE].action_dist_cls, 16)
    rng = np.random.default_rng(0)
    num_envs, num_steps = 200, 400
    state = noise.initial_state(num_envs)
    begins = np.ones(num_envs, bool)
    seen = []
    for _ in range(num_steps):
        drawn = noise.draw_noise(rng, (num_envs,), 0)
        seen.append(noise.advance(drawn, state, begins, None)[:, :-1].copy())
        begins[:] = False
    seen = np.stack(seen)
    changes = np.any(seen[1:] != seen[:-1], -1)
    lengths = np.concatenate([np.diff(np.flatnonzero(changes[:, env])) for env in range(num_envs)])
    assert lengths.max() <= 16
    expected = np.arange(1, 17.0) ** -2 / (np.arange(1, 17.0) ** -2).sum()
    found = np.bincount(lengths, minlength=17)[1:17] / len(lengths)
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert abs(seen.mean()) < 0.02
    assert abs(seen.std() - 1.0) < 0.02


def test_noise_on_a_device_is_kept_as_on_the_host():
    noise = RepeatedNoise(learner_of().module[MODULE].action_dist_cls, 16)
    rng = np.random.default_rng(0)
    host = noise.initial_state(6)
    device = {name: torch.from_numpy(leaf.copy()) for name, leaf in host.items()}
    for _ in range(60):
        numbers = noise.draw_noise(rng, (6,), 0)
        begins = rng.random(6) < 0.1
        expected = noise.advance(numbers, host, begins, None)
        np.testing.assert_array_equal(expected[begins], numbers[begins])  # new where an episode begins
        found = noise.advance_on_device(torch.from_numpy(numbers), device, torch.from_numpy(begins))
        np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(device["left"].numpy(), host["left"])
    drawn = noise.draw_on_device(1_000, torch.zeros(()), torch.Generator().manual_seed(0))
    assert drawn.shape == (1_000, 3)
    assert 0.0 <= float(drawn[:, 2].min()) <= float(drawn[:, 2].max()) < 1.0


@pytest.mark.parametrize("options", [{"bounded_rewards": False, "v_min": -100.0, "v_max": 1.0}, {}], ids=str)
def test_tensor_environments_stay_on_the_device(options):
    config = small_run(**options).environment("tensor/Pendulum-v1")
    trainer = config.build_trainer()
    trainer.run()
    assert type(trainer.train_collector).__name__ == "TensorCollector"
    assert trainer.gradient_step > 0
    assert (trainer.policy.connectors.rewards is None) == bool(options)


@torch.no_grad()
def share_of_repeats(module, obs, actions):
    """Return the share of steps `[30 * 2]` of two environments with the random numbers of the step before."""
    dist = module.action_dist_cls.from_inputs(module.forward_inference({"obs": obs})["action_dist_inputs"])
    noise = (actions.arctanh() - dist.mean) / dist.log_std.exp()
    return float((noise.view(30, 2).diff(dim=0).abs() < 1e-3).float().mean())


def share_of_repeated_noise(noise_repeat):
    """Return the share of repeated random numbers in collected steps."""
    config = FlashSACConfig().rl_module(model_config=NETWORKS).training(noise_repeat=noise_repeat)
    policy = config.environment("Pendulum-v1").build_policy()
    store = RolloutStore(30, 2, policy.observation_space, policy.action_space)
    collector = Collector(policy, config.make_envs(2), store, exploration_noise=True, seed=5)
    collector.collect(60)
    rows = store.trajectories()
    obs, actions = torch.from_numpy(rows.flat_obs()), torch.from_numpy(rows.actions.reshape(-1, 1))
    return share_of_repeats(policy.module, obs, actions)


def share_of_repeated_noise_on_a_device(noise_repeat):
    """Return the share of repeated random numbers in steps that stay on the device."""
    config = FlashSACConfig().rl_module(model_config=NETWORKS).training(noise_repeat=noise_repeat)
    config.environment("tensor/Pendulum-v1").env_runners(num_envs_per_env_runner=2).debugging(seed=5)
    collector = config.build_collector()
    collector.exploration_noise = True
    for _ in range(30):
        collector.collect(n_step=2)
    obs, actions = (collector.buffer.columns[name][:30].flatten(0, 1) for name in ("obs", "actions"))
    return share_of_repeats(collector.policy.module, obs, actions)


@pytest.mark.parametrize("share", [share_of_repeated_noise, share_of_repeated_noise_on_a_device])
def test_noise_is_repeated_in_collected_actions_and_with_1_is_new(share):
    assert 0.15 < share(16) < 0.75
    assert share(1) == 0.0


def small_run(**training):
    config = FlashSACConfig().environment("Pendulum-v1")
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.env_runners(num_envs_per_env_runner=4).evaluation(evaluation_interval=0).debugging(seed=3)
    config.replay(capacity=500, learning_starts=16, update_per_step=0.25)
    config.training(train_batch_size=16, **training)
    return config.reporting(total_steps=128, steps_per_epoch=64)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"noise_repeat": 1, "bounded_rewards": False}], ids=str)
def test_a_run_is_resumed_bit_for_bit_with_its_noise_and_statistics(tmp_path, options):
    half, rest, whole = (small_run(**options).reporting(total_steps=total).build_trainer() for total in (128, 256, 256))
    half.run()
    restore_trainer(rest, half.save_to_path(tmp_path / "half"))
    rest.run()
    whole.run()
    np.testing.assert_array_equal(rest.policy.acting_weights().flat, whole.policy.acting_weights().flat)
    if not options:
        mine, theirs = (run.collector.get_state()["exploring"]["state"] for run in (rest, whole))
        np.testing.assert_array_equal(mine["noise"], theirs["noise"])
        np.testing.assert_array_equal(mine["left"], theirs["left"])
        assert rest.policy.connectors.rewards.largest == whole.policy.connectors.rewards.largest


# -- bad input ---


def test_blocks_of_different_widths_and_discrete_actions_are_refused():
    with pytest.raises(ValueError, match="residual blocks have one width"):
        FlashSACConfig().rl_module(model_config={"hiddens": (8, 4)}).build_learner(spaces=(OBS, BOX))
    with pytest.raises(ValueError, match="FlashSAC needs a Box action space"):
        FlashSACConfig().build_learner(spaces=(OBS, spaces.Discrete(2)))
    assert ModelConfig().batch_norm is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"v_min": 1.0, "v_max": 1.0}, "v_max=1.0 is not allowed.*above v_min=1.0"),
        ({"num_atoms": 1}, "num_atoms=1.*at least 2"),
        ({"noise_repeat": 0}, "noise_repeat=0.*at least 1"),
        ({"target_std": 0.0}, "target_std=0.0.*above 0"),
    ],
)
def test_bad_numbers_are_refused_when_the_configuration_is_built(options, words):
    with pytest.raises(ValueError, match=words):
        FlashSACConfig().training(**options).environment("Pendulum-v1").validate()


def test_repeated_noise_of_several_agents_is_refused_by_name():
    config = (
        FlashSACConfig()
        .environment("Pendulum-v1")
        .multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: agent)
    )
    with pytest.raises(ValueError, match=r"training.noise_repeat=16 .*several agents.*set noise_repeat=1"):
        config.validate()
    config.training(noise_repeat=1).validate()
