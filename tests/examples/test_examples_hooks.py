"""The ten examples of hooks: each is short and does what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_examples_run import load as load_example

from lockstep import PPOConfig, SampleBatch
from lockstep.data.sample_batch import MultiAgentBatch

pytestmark = pytest.mark.long

HOOKS = Path(__file__).parents[2] / "examples" / "hooks"
NAMES = [
    "add_module", "custom_loss", "custom_network", "frozen_encoder", "gradient_noise", "lagrange_multiplier",
    "learning_rate_schedule", "per_module_config", "second_optimizer", "shared_encoder",
]  # fmt: skip
STEPS = 4_096
"""two updates of PPO's default size"""


def load(name: str):
    return load_example(f"hooks/{name}")


def learner_of(cls, training=None, **settings):
    """A learner with the example's class and its settings."""
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    return config.training(learner_class=cls, learner_config_dict=settings, **(training or {})).build_learner()


def batch(rows=64, seed=0):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        actions=rng.integers(2, size=rows),
        action_logp=np.full(rows, np.log(0.5), np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        value_targets=rng.normal(size=rows).astype(np.float32),
    )


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before, module):
    return {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}


def test_there_are_ten_examples_and_each_is_tested_here():
    assert sorted(path.stem for path in HOOKS.glob("*.py")) == NAMES
    text = Path(__file__).read_text()
    assert [name for name in NAMES if f'load("{name}")' not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_under_30_lines_and_says_how_it_is_run(name):
    text = (HOOKS / f"{name}.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) < 30
    assert f"python examples/hooks/{name}.py" in text
    assert 'if __name__ == "__main__":' in text


def test_custom_loss_is_added_and_keeps_logits_small():
    example = load("custom_loss")
    assert example.main(penalty=10.0, total_steps=STEPS // 2) < 0.5 * example.main(penalty=0.0, total_steps=STEPS // 2)


def test_custom_network_is_a_plain_module_that_is_trained():
    torch.manual_seed(0)
    example = load("custom_network")
    before = weights(example.Network())
    torch.manual_seed(0)
    network, best = example.main(total_steps=2 * STEPS)
    assert type(network).__mro__[1] is torch.nn.Module
    assert changed(before, network) == set(before)
    assert best > 40  # about 20 at random


def test_second_optimizer_steps_the_value_network_and_only_it():
    example = load("second_optimizer")
    learner = learner_of(example.TwoOptimizers)
    module = learner.module["default_policy"]
    assert [name for name, _ in learner.get_optimizers_for_module("default_policy")] == ["adam", "sgd"]
    learner._set_optimizer_lr(learner.get_optimizer("default_policy", "adam"), 0.0)
    before = weights(module)
    results = learner.update_from_batch(batch())["default_policy"]
    assert changed(before, module) == {name for name in before if name.startswith("value_")}
    assert (results["adam_learning_rate"], results["sgd_learning_rate"]) == (0.0, 1e-2)
    assert example.main(total_steps=STEPS).weights_seq_no == 2


def test_frozen_encoder_is_read_from_a_checkpoint_and_stays(tmp_path):
    example = load("frozen_encoder")
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"vf_share_layers": True})
    trained = config.debugging(seed=5).build_learner().module["default_policy"]
    module = example.main(trained.save_to_path(tmp_path / "trained"), total_steps=STEPS)
    kept = {name for name in module.state_dict() if name.startswith("encoder.")}
    assert len(kept) == 4
    assert not changed(weights(trained), module) & kept
    assert changed(weights(trained), module) == set(module.state_dict()) - kept
    assert {name for name, param in module.named_parameters() if not param.requires_grad} == kept


def test_gradient_noise_is_added_once_for_each_gradient_and_is_resumable():
    example = load("gradient_noise")
    silent, noisy, other = (learner_of(example.NoisyGradients, noise=noise) for noise in (0.0, 1e-2, 1e-2))
    for learner in (silent, noisy):
        learner.update_from_batch(batch())
    pairs = zip(silent.module.parameters(), noisy.module.parameters())
    noise = torch.cat([(second.grad - first.grad).reshape(-1) for first, second in pairs])
    assert float(noise.std()) == pytest.approx(1e-2, rel=0.3)
    assert abs(float(noise.mean())) < 3e-3
    other.set_state(noisy.get_state())
    for learner in (noisy, other):
        learner.update_from_batch(batch(seed=1))
    assert not changed(weights(noisy.module), other.module)
    assert example.main(total_steps=STEPS).weights_seq_no == 2


def test_the_lagrange_multiplier_rises_until_its_constraint_holds():
    example = load("lagrange_multiplier")
    free = {"clip_param": 10.0, "lr": 1e-2}
    strict, loose = (learner_of(example.EntropyAtLeast, free, entropy=entropy) for entropy in (0.6, 0.0))
    data = batch()
    data["advantages"] = np.where(data["actions"] == 0, 1.0, -1.0).astype(np.float32)  # pulls to one action
    entropies = []
    for learner in (strict, loose):
        for _ in range(40):
            results = learner.update_from_batch(data, num_epochs=10)["default_policy"]
        entropies.append(results["entropy"])
    assert float(loose.registered["default_policy/multiplier"]) == 0.0
    assert strict.get_state()["registered"]["default_policy/multiplier"] > 0.01
    assert entropies[0] > 0.5 > entropies[1] + 0.2
    assert example.main(total_steps=STEPS).weights_seq_no == 2


def test_learning_rate_falls_over_the_run_and_the_hook_halves_it():
    example = load("learning_rate_schedule")
    assert example.main(max_kl=1e9, total_steps=STEPS)[-1] == 0.0
    learner = learner_of(example.SlowerWhenFar, max_kl=0.0)
    learner.registered["default_policy/last_kl"] = 0.5
    assert learner.update_from_batch(batch())["default_policy"]["default_optimizer_learning_rate"] == 1.5e-4


def test_each_module_has_its_own_learning_rate_and_entropy_bonus():
    results = load("per_module_config").main(num_updates=2)[-1]
    rates = {name: results[name]["default_optimizer_learning_rate"] for name in ("bold", "calm")}
    assert rates == {"bold": 1e-2, "calm": 3e-4}
    assert results["bold"]["num_module_steps_trained_lifetime"] > 0
    assert results["bold"]["mean_kl_loss"] > results["calm"]["mean_kl_loss"]  # it moves further


def test_shared_encoder_learns_from_both_modules_and_is_stepped_once():
    learner = load("shared_encoder").main().learner
    left, right = learner.module["left"], learner.module["right"]
    assert left.encoder is right.encoder
    (entry,) = learner.optimizers
    assert len(entry.flat.params) == 4 + 2 * 4  # the encoder once, two heads for each
    before = weights(left), weights(right)
    learner.update_from_batch(MultiAgentBatch({"left": batch(), "right": batch(seed=1)}, 64))
    both = left.encoder.mlp[0].weight.grad.clone()
    assert all(changed(*pair) == set(pair[0]) for pair in zip(before, (left, right)))
    alone = []
    for part in ({"left": batch()}, {"right": batch(seed=1)}):
        fresh = load("shared_encoder").main().learner
        fresh.config.grad_clip = None
        fresh.update_from_batch(MultiAgentBatch(part, 64))
        alone.append(fresh.module["left"].encoder.mlp[0].weight.grad)
    total = alone[0] + alone[1]
    torch.testing.assert_close(both / both.norm(), total / total.norm(), rtol=1e-3, atol=1e-5)  # up to clipping


def test_a_module_added_mid_training_is_a_copy_that_stays():
    group, results = load("add_module").main(num_updates=4)
    learner_ids = ("default_policy", "opponent")
    own, opponent = (group.learner.module[name] for name in learner_ids)
    assert changed(weights(opponent), own) == set(own.state_dict())
    trained = [[mid for mid in learner_ids if "total_loss" in result.get(mid, {})] for result in results]
    assert trained == [["default_policy"]] * 4
    assert results[-1]["default_policy"]["num_module_steps_trained_lifetime"] > 3 * 4 * 448
    copied, _ = load("add_module").main(num_updates=2)
    (entry,) = [e for e in copied.learner.optimizers if e.module_id == "opponent"]
    assert not entry.optimizer.state  # never stepped
