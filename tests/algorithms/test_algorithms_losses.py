"""Losses of PPO and A2C and their gradients against an independent computation in plain torch."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, exact_learner, loss_and_gradients, some_episodes
from gymnasium import spaces
from torch import tensor
from torch.distributions import Categorical, Normal, kl_divergence

from lockstep import A2CConfig, APPOConfig, IMPALAConfig, PPOConfig, REINFORCEConfig, SampleBatch
from lockstep.algorithms.ppo import PPOLearner, PPOTraining
from lockstep.data.trajectories import trajectories_from_episodes

F64 = torch.float64

# Written out: probabilities of three actions, old probabilities of the action taken, values, advantages. The ratios
# are 1.25 (above the clip), 0.5 (below it), 3.0 (far above, with a negative advantage) and 1.0.
PROBABILITIES = tensor([[0.50, 0.25, 0.25], [0.40, 0.20, 0.40], [0.30, 0.60, 0.10], [0.25, 0.25, 0.50]], dtype=F64)
ACTIONS = tensor([0, 1, 1, 2])
OLD_PROBABILITY = tensor([0.40, 0.40, 0.20, 0.50], dtype=F64)
ADVANTAGES = tensor([2.0, -1.0, -3.0, 0.5], dtype=F64)
VALUES = tensor([1.0, -0.5, 3.0, 0.25], dtype=F64)
OLD_VALUES = tensor([0.0, -0.4, 0.5, 0.25], dtype=F64)
TARGETS = tensor([2.0, 0.5, 0.0, 1.25], dtype=F64)
OLD_INPUTS = tensor([[0.3, -0.1, 0.2], [1.0, 0.0, -1.0], [0.0, 2.0, 0.1], [0.5, 0.5, 0.5]], dtype=F64)


def ppo_reference(inputs, values, batch, *, clip=0.2, vf_clip=None, vf_coeff=0.5, entropy_coeff=0.0, dual=None,
                  kl_coeff=0.0, normalize=True):  # fmt: skip
    """PPO's loss row by row in Python, from the definitions in the papers."""
    inputs, values = inputs.clone().requires_grad_(), values.clone().requires_grad_()
    advantages = batch["advantages"]
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    total = torch.zeros((), dtype=F64)
    for row in range(len(values)):
        dist, advantage = Categorical(logits=inputs[row]), advantages[row]
        ratio = (dist.log_prob(batch["actions"][row]) - batch["action_logp"][row]).exp()
        clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
        surrogate = min(ratio * advantage, clipped * advantage)
        if dual is not None and advantage < 0:
            surrogate = max(surrogate, dual * advantage)
        error = (values[row] - batch["value_targets"][row]) ** 2
        if vf_clip is not None:
            old = batch["vf_preds"][row]
            moved = old + torch.clamp(values[row] - old, -vf_clip, vf_clip)
            error = max(error, (moved - batch["value_targets"][row]) ** 2)
        total = total - surrogate + vf_coeff * 0.5 * error - entropy_coeff * dist.entropy()
        if kl_coeff:
            old_dist = Categorical(logits=batch["action_dist_inputs"][row])
            total = total + kl_coeff * kl_divergence(old_dist, dist)
    loss = total / len(values)
    return loss.detach(), torch.autograd.grad(loss, (inputs, values))


def written_out_batch():
    return {
        "actions": ACTIONS,
        "action_logp": OLD_PROBABILITY.log(),
        "advantages": ADVANTAGES,
        "value_targets": TARGETS,
        "vf_preds": OLD_VALUES,
        "action_dist_inputs": OLD_INPUTS,
    }


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "training, reference",
    [
        ({}, {}),
        ({"normalize_advantages": None}, {"normalize": False}),
        ({"normalize_advantages": "batch"}, {"normalize": False}),  # done before the minibatches are cut
        ({"clip_param": 0.6, "vf_loss_coeff": 2.0}, {"clip": 0.6, "vf_coeff": 2.0}),
        ({"vf_clip_param": 0.3}, {"vf_clip": 0.3}),
        ({"entropy_coeff": 0.25}, {"entropy_coeff": 0.25}),
        ({"dual_clip": 1.5, "normalize_advantages": None}, {"dual": 1.5, "normalize": False}),
        ({"kl_coeff": 0.7}, {"kl_coeff": 0.7}),
        (
            {"dual_clip": 1.5, "vf_clip_param": 0.3, "entropy_coeff": 0.1, "kl_coeff": 0.2},
            {"dual": 1.5, "vf_clip": 0.3, "entropy_coeff": 0.1, "kl_coeff": 0.2},
        ),
    ],
)
def test_ppo_loss_and_its_gradients_equal_a_plain_torch_computation(training, reference, fused, monkeypatch):
    learner = exact_learner(PPOConfig().framework(fused_losses=fused), **training)
    written_out = []
    original = PPOLearner.compute_loss_for_module
    monkeypatch.setattr(
        PPOLearner, "compute_loss_for_module", lambda self, **parts: written_out.append(1) or original(self, **parts)
    )
    inputs = PROBABILITIES.log()
    loss, gradients = loss_and_gradients(learner, inputs, VALUES, written_out_batch())
    expected, expected_gradients = ppo_reference(inputs, VALUES, written_out_batch(), **reference)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-12)
    assert bool(written_out) == (not fused or learner.config.kl_coeff > 0)


# A value of each option of PPO that differs from its default.
OTHER_VALUES = {
    "minibatch_size": 2,
    "num_epochs": 1,
    "grad_clip": 0.1,
    "adam_epsilon": 1e-3,
    "lambda_": 0.5,
    "clip_param": 0.6,
    "vf_clip_param": 0.3,
    "vf_loss_coeff": 2.0,
    "entropy_coeff": 0.25,
    "normalize_advantages": None,
    "dual_clip": 1.5,
    "target_kl": 0.01,
    "kl_coeff": 0.7,
    "kl_target": 0.1,
}


def test_no_option_of_ppo_is_left_out_here():
    assert set(OTHER_VALUES) == {*PPOTraining.__annotations__}


@pytest.mark.parametrize("option", OTHER_VALUES)
def test_the_loss_that_runs_has_every_option_of_the_loss_that_is_read(option):
    losses = []
    for fused in (True, False):
        learner = exact_learner(PPOConfig().framework(fused_losses=fused), **{option: OTHER_VALUES[option]})
        losses.append(loss_and_gradients(learner, PROBABILITIES.log(), VALUES, written_out_batch()))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-12)


class Doubled(PPOLearner):
    def compute_loss_for_module(self, **parts):
        return 2.0 * super().compute_loss_for_module(**parts)


class Summed(PPOLearner):
    """Overrides what the loss is made of."""

    def masked_mean(self, values, batch):
        return values.sum()


@pytest.mark.parametrize("learner_class, factor", [(Doubled, 2.0), (Summed, 4.0)])
def test_what_a_subclass_writes_is_what_runs_and_not_the_kernel(learner_class, factor):
    plain, changed = (
        exact_learner(PPOConfig(), learner_class=c, normalize_advantages=None) for c in (None, learner_class)
    )
    losses = [loss_and_gradients(x, PROBABILITIES.log(), VALUES, written_out_batch())[0] for x in (plain, changed)]
    torch.testing.assert_close(losses[1], factor * losses[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_ppo_terms_equal_numbers_worked_out_by_hand(fused):
    learner = exact_learner(PPOConfig().framework(fused_losses=fused), normalize_advantages=None, grad_clip=None)
    loss, _ = loss_and_gradients(learner, PROBABILITIES.log(), VALUES, written_out_batch())
    logged = {name: float(value) for (_, name), value, _ in learner.metrics.items()}
    # ratios 1.25, 0.5, 3, 1 with clip 0.2: min(2.5, 2.4), min(-0.5, -0.8), min(-9, -3.6), 0.5
    assert logged["policy_loss"] == pytest.approx(-(2.4 - 0.8 - 9.0 + 0.5) / 4)
    # 0.5 * (1, 1, 9, 1)
    assert logged["vf_loss"] == pytest.approx(1.5)
    # k3 = ratio - 1 - log ratio
    kls = [ratio - 1 - math.log(ratio) for ratio in (1.25, 0.5, 3.0, 1.0)]
    assert logged["mean_kl_loss"] == pytest.approx(sum(kls) / 4)
    assert logged["clip_fraction"] == 3 / 4
    entropies = [-sum(p * math.log(p) for p in row) for row in PROBABILITIES.tolist()]
    assert logged["entropy"] == pytest.approx(sum(entropies) / 4)
    assert float(loss) == pytest.approx(logged["policy_loss"] + 0.5 * 1.5)


@pytest.mark.parametrize("mask, expected", [(None, 2 / 4), ([False, True, True, True], 2 / 3)])
def test_appo_reports_the_fraction_of_the_ratios_that_are_clipped(mask, expected):
    learner = exact_learner(APPOConfig())
    batch = written_out_batch() | ({} if mask is None else {"loss_mask": tensor(mask)})
    loss_and_gradients(learner, PROBABILITIES.log(), VALUES, batch)
    logged = {name: float(value) for (_, name), value, _ in learner.metrics.items()}
    # ratios 1.25, 0.5, 3, 1 with clip 0.4
    assert logged["clip_fraction"] == pytest.approx(expected, abs=1e-15)


def test_ppo_masked_rows_count_nowhere():
    learner = exact_learner(PPOConfig(), entropy_coeff=0.25)
    full = written_out_batch()
    kept = {name: column[:3] for name, column in full.items()}
    expected, (expected_inputs, _) = loss_and_gradients(learner, PROBABILITIES[:3].log(), VALUES[:3], kept)
    masked = {**full, "loss_mask": tensor([True, True, True, False])}
    loss, (inputs, values) = loss_and_gradients(learner, PROBABILITIES.log(), VALUES, masked)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(inputs[:3], expected_inputs)
    assert inputs[3].abs().sum() == 0
    assert values[3] == 0


@pytest.mark.parametrize("normalize", [False, True])
def test_a2c_loss_and_its_gradients_equal_a_plain_torch_computation(normalize):
    box = spaces.Box(-1, 1, (2,), np.float32)
    learner = exact_learner(A2CConfig(), box, vf_loss_coeff=0.7, entropy_coeff=0.2, normalize_advantages=normalize)
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(4, 4, dtype=F64, generator=rng)
    actions = torch.randn(4, 2, dtype=F64, generator=rng)
    batch = {"actions": actions, "advantages": ADVANTAGES, "value_targets": TARGETS}
    loss, gradients = loss_and_gradients(learner, inputs, VALUES, batch)

    leaves = inputs.clone().requires_grad_(), VALUES.clone().requires_grad_()
    mean, log_std = leaves[0][:, :2], leaves[0][:, 2:]
    dist = Normal(mean, log_std.exp())
    advantages = ADVANTAGES
    if normalize:
        advantages = (advantages - advantages.mean()) / advantages.std(correction=0)
    policy_loss = -(dist.log_prob(actions).sum(1) * advantages).mean()
    vf_loss = 0.5 * ((leaves[1] - TARGETS) ** 2).mean()
    expected = policy_loss + 0.7 * vf_loss - 0.2 * dist.entropy().sum(1).mean()
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-7)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, leaves), rtol=0, atol=1e-7)
    logged = {name: float(value) for (_, name), value, _ in learner.metrics.items()}
    assert logged["policy_loss"] == pytest.approx(policy_loss.item(), abs=1e-7)
    assert logged["vf_loss"] == pytest.approx(vf_loss.item())


def reinforce_loss(**training):
    learner = exact_learner(REINFORCEConfig(), **training)
    outputs = {MODULE: {"action_dist_inputs": PROBABILITIES.log()}}
    batch = {"actions": ACTIONS, "returns_to_go": ADVANTAGES}
    return float(learner.compute_losses(fwd_out=outputs, batch={MODULE: batch})[MODULE])


def test_reinforce_loss_equals_numbers_worked_out_by_hand():
    logs = [math.log(p) for p in (0.5, 0.2, 0.6, 0.5)]
    plain = -(2.0 * logs[0] - 1.0 * logs[1] - 3.0 * logs[2] + 0.5 * logs[3]) / 4
    assert reinforce_loss(normalize_returns=False) == pytest.approx(plain)
    deviation = math.sqrt((2.375**2 + 0.625**2 + 2.625**2 + 0.875**2) / 4)  # around the mean, -0.375
    with_baseline = -(2.375 * logs[0] - 0.625 * logs[1] - 2.625 * logs[2] + 0.875 * logs[3]) / 4
    assert reinforce_loss() == pytest.approx(with_baseline / deviation)


# -- what a rollout becomes ---


def test_reinforce_returns_are_those_of_the_rest_of_each_episode():
    learner, episodes = exact_learner(REINFORCEConfig(), gamma=0.9), some_episodes()
    columns = learner.prepare_batch(trajectories_from_episodes(episodes), module_id=MODULE)
    expected = []
    for episode in episodes:
        rewards = [float(reward) for reward in episode.get_rewards()]
        expected += [sum(0.9**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    np.testing.assert_allclose(columns["returns_to_go"].numpy(), expected, atol=1e-6)


def advantages_by_hand(learner, episodes, gamma, lambda_):
    """GAE in plain Python: a terminated end is worth nothing, any other one the value of its last observation."""
    module = learner.module[MODULE]
    advantages, targets = [], []
    for episode in episodes:
        with torch.no_grad():
            obs = torch.as_tensor(np.asarray(episode.get_observations()), dtype=F64)
            values = module.compute_values({"obs": obs}).tolist()
        if episode.is_terminated:
            values[-1] = 0.0
        running, own = 0.0, []
        for t in reversed(range(len(episode))):
            delta = float(episode.get_rewards(t)) + gamma * values[t + 1] - values[t]
            running = delta + gamma * lambda_ * running
            own.insert(0, running)
        advantages += own
        targets += [advantage + value for advantage, value in zip(own, values)]
    return advantages, targets


@pytest.mark.parametrize("config, lambda_", [(PPOConfig(), 0.8), (A2CConfig(), 1.0)])
def test_truncated_ends_bootstrap_from_their_last_observation(config, lambda_):
    learner, episodes = exact_learner(config, gamma=0.9, lambda_=lambda_), some_episodes()
    columns = learner.prepare_batch(trajectories_from_episodes(episodes), module_id=MODULE)
    advantages, targets = advantages_by_hand(learner, episodes, 0.9, lambda_)
    np.testing.assert_allclose(columns["advantages"].numpy(), advantages, atol=1e-6)
    np.testing.assert_allclose(columns["value_targets"].numpy(), targets, atol=1e-6)


def test_advantages_are_normalised_over_the_whole_batch_if_asked():
    plain, whole = (
        exact_learner(PPOConfig(), normalize_advantages=option).prepare_batch(
            trajectories_from_episodes(some_episodes()), module_id=MODULE
        )["advantages"]
        for option in (None, "batch")
    )
    torch.testing.assert_close(whole, (plain - plain.mean()) / plain.std(correction=0))


def test_old_log_probabilities_are_those_of_the_weights_that_acted():
    learner, episodes = exact_learner(PPOConfig()), some_episodes()
    columns = learner.prepare_batch(trajectories_from_episodes(episodes), module_id=MODULE)
    with torch.no_grad():
        inputs = learner.module[MODULE].forward_train({"obs": columns["obs"]})["action_dist_inputs"]
    expected = torch.log_softmax(inputs, -1)[torch.arange(12), columns["actions"]]
    torch.testing.assert_close(columns["action_logp"], expected)


# -- coefficients and stops ---


def train_on(learner, num_epochs, **options):
    return learner.update_from_episodes(some_episodes(), num_epochs=num_epochs, **{"minibatch_size": 4, **options})


def test_kl_stop_ends_the_passes_after_the_pass_that_went_too_far():
    options = {"lr": 0.05, "grad_clip": None}
    free = exact_learner(PPOConfig(), **options)
    train_on(free, 6)
    kls = free.last_series[MODULE, "mean_kl_loss"]
    means = [sum(kls[3 * i : 3 * i + 3]) / 3 for i in range(6)]
    assert all(earlier < later for earlier, later in pairwise(means[:3]))
    stopped = exact_learner(PPOConfig(), target_kl=(means[1] + means[2]) / 2, **options)
    results = train_on(stopped, 6)["__all_modules__"]
    assert (results["num_passes"], results["num_minibatches"]) == (3, 9)
    assert results["num_env_steps_trained"] == 36
    assert stopped.last_series[MODULE, "mean_kl_loss"] == pytest.approx(kls[:9])


@pytest.mark.parametrize("lr, factor", [(0.05, 2.0), (1e-5, 0.5)])
def test_kl_penalty_doubles_above_its_target_and_halves_below_it(lr, factor):
    learner = exact_learner(PPOConfig(), lr=lr, kl_coeff=0.3, kl_target=0.001, grad_clip=None)
    train_on(learner, 4)
    assert float(learner.registered[f"{MODULE}/kl_coeff"]) == pytest.approx(0.3 * factor)
    train_on(learner, 4)
    assert float(learner.registered[f"{MODULE}/kl_coeff"]) == pytest.approx(0.3 * factor**2)


def test_kl_penalty_stays_within_its_band():
    probe = exact_learner(PPOConfig(), lr=0.01, kl_coeff=0.3, grad_clip=None)
    train_on(probe, 1)
    reached = float(np.mean(probe.last_series[MODULE, "mean_kl_loss"]))
    learner = exact_learner(PPOConfig(), lr=0.01, kl_coeff=0.3, kl_target=reached, grad_clip=None)
    train_on(learner, 1)
    assert float(learner.registered[f"{MODULE}/kl_coeff"]) == pytest.approx(0.3)


@pytest.mark.parametrize("config", [PPOConfig(), A2CConfig()])
def test_entropy_schedule_weighs_the_bonus_with_its_value_at_t(config):
    learner = exact_learner(config, entropy_coeff=[[0, 0.5], [100, 0.1]], vf_loss_coeff=0.0)
    for step, coefficient in ((0, 0.5), (50, 0.3), (200, 0.1)):
        results = train_on(learner, 1, minibatch_size=None, timesteps={"num_env_steps_sampled_lifetime": step})[MODULE]
        assert results["total_loss"] == pytest.approx(results["policy_loss"] - coefficient * results["entropy"])


@pytest.mark.parametrize("config", [PPOConfig, IMPALAConfig, APPOConfig])
def test_batch_needs_the_columns_of_the_loss(config):
    batch = SampleBatch(obs=np.zeros((4, 3), np.float32), actions=np.zeros(4, np.int64))
    learner = exact_learner(config())
    with pytest.raises(KeyError) as refused:
        learner.update_from_batch(batch)
    where = f"{type(learner).__name__}.compute_loss_for_module"
    for word in (MODULE, "action_logp", "advantages", "value_targets", where):
        assert word in str(refused.value)
