"""Noisy weights and Rainbow: layer and loss against the papers' equations, where noise is drawn, and where not."""

import copy

import numpy as np
import pytest
import torch
from algorithm_cases import NAMES, class_of
from algorithm_tools import MODULE
from gymnasium import spaces
from parts import one_in

from lockstep import Collector, RainbowConfig, RolloutStore, SampleBatch, get_config
from lockstep.modules import NoisyLinear, RLModuleSpec
from lockstep.modules.layers import allocate_noise, weight_noise
from lockstep.rollout import rollout_of
from lockstep.trainer import restore_trainer

OBS, CHOICES = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2)
KINDS = [name for name in NAMES if "noisy" in class_of(name).explorations]
ROWS, GAMMA = 4, 0.9


def config_of(algorithm="rainbow", env="CartPole-v1", **model):
    config = get_config(algorithm).environment(env).env_runners(exploration="noisy", num_envs_per_env_runner=4)
    config.rl_module(model_config={"hiddens": (8,), **model}).evaluation(evaluation_interval=0).debugging(seed=3)
    config.training(train_batch_size=16).replay(capacity=500, learning_starts=16, update_per_step=0.25)
    return config


# -- the layer ---


def f(x):
    return np.sign(x) * np.sqrt(np.abs(x))


def test_a_row_has_the_weights_of_the_papers_factorised_noise():
    layers = torch.nn.Sequential(NoisyLinear(3, 2, 0.5), torch.nn.Tanh(), NoisyLinear(2, 4, 0.4)).double()
    assert allocate_noise(layers) == 3 + 2 + 2 + 4
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(5, 3)), rng.normal(size=(5, 11))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    weights = {name: parameter.detach().numpy() for name, parameter in layers.named_parameters()}

    def by_hand(row):
        out = x[row]
        for name, drawn in (("0", noise[row, :5]), ("2", noise[row, 5:])):
            size = weights[f"{name}.weight"].shape[1]
            of_inputs, of_outputs = f(drawn[:size]), f(drawn[size:])
            w = weights[f"{name}.weight"] + weights[f"{name}.sigma_weight"] * np.outer(of_outputs, of_inputs)
            out = w @ out + weights[f"{name}.bias"] + weights[f"{name}.sigma_bias"] * of_outputs
            out = np.tanh(out) if name == "0" else out
        return out

    with weight_noise(torch.from_numpy(noise)):
        found = layers(torch.from_numpy(x)).detach()
        several = layers(torch.from_numpy(np.stack([x, x], 1))).detach()  # rows [5, 2, 3] of which each has one noise
    np.testing.assert_allclose(found, [by_hand(row) for row in range(5)])
    np.testing.assert_allclose(several, np.stack([found, found], 1))
    plain = torch.nn.functional.linear(
        torch.tanh(torch.nn.functional.linear(torch.from_numpy(x), layers[0].weight, layers[0].bias)),
        layers[2].weight, layers[2].bias,
    )  # fmt: skip
    torch.testing.assert_close(layers(torch.from_numpy(x)), plain)


def test_deviations_begin_as_in_the_paper():
    layer = NoisyLinear(16, 5, 0.5)
    assert torch.cat([layer.sigma_weight.flatten(), layer.sigma_bias]).unique().tolist() == [0.125]
    module = config_of(env="CartPole-v1").build_policy().module
    noisy = [name for name, part in module.named_modules() if isinstance(part, NoisyLinear)]
    assert noisy == ["encoder.mlp.0", "policy_head", "value_encoder.mlp.0", "value_head"]
    assert module.noise_size == 2 * (4 + 8) + (8 + 2 * 51) + (8 + 51)
    remembering = config_of(recurrent="gru").build_policy().module
    assert [n for n, part in remembering.named_modules() if isinstance(part, NoisyLinear)] == [
        "policy_head",
        "value_head",
    ]


# -- the loss ---


def test_rainbows_loss_equals_its_equations_with_three_noises():
    config = RainbowConfig().framework(dtype="float64").environment(observation_space=OBS, action_space=CHOICES)
    config.training(gamma=GAMMA, num_atoms=5, v_min=-1.0, v_max=2.0, grad_clip=None)
    learner = config.rl_module(model_config={"hiddens": (6,)}).build_learner()
    target = learner.registered[f"{MODULE}/target"].module
    for parameter in target.parameters():
        parameter.mul_(1.5)
    module, rng = copy.deepcopy(learner.module[MODULE]), np.random.default_rng(0)
    batch = SampleBatch(
        {
            "obs": rng.uniform(-1, 1, (ROWS, 3)),
            "new_obs": rng.uniform(-1, 1, (ROWS, 3)),
            "actions": np.array([0, 1, 1, 0]),
            "rewards": rng.normal(size=ROWS),
            "terminateds": np.array([False, False, True, False]),
            "truncateds": np.array([False, True, False, False]),
            "discounts": np.array([0.9, 0.81, 0.729, 0.9]),
            "weights": rng.uniform(0.2, 1.0, ROWS),
        }
    )
    generator = copy.deepcopy(learner.streams.numpy(f"noise/{MODULE}"))
    size = module.noise_size
    drawn = generator.standard_normal((ROWS, 3 * size), np.float32).astype(np.float64)

    def probabilities(network, obs, noise):
        """`[A, K]` of one observation: the dueling softmax, from layers with the weights of this noise."""
        layers, outputs, start = dict(network.named_modules()), {}, 0
        for path in (("encoder.mlp.0", "policy_head"), ("value_encoder.mlp.0", "value_head")):
            x = obs
            for name in path:
                layer = layers[name]
                width = layer.in_features
                of_inputs, of_outputs = (
                    f(noise[start : start + width]),
                    f(noise[start + width : start + layer.noise_size]),
                )
                start += layer.noise_size
                mean, sigma = layer.weight.detach().numpy(), layer.sigma_weight.detach().numpy()
                bias = layer.bias.detach().numpy() + layer.sigma_bias.detach().numpy() * of_outputs
                x = (mean + sigma * np.outer(of_outputs, of_inputs)) @ x + bias
                x = x if name.endswith("head") else np.tanh(x)
            outputs[path[1]] = x
        advantages = outputs["policy_head"].reshape(2, 5)
        logits = outputs["value_head"] + advantages - advantages.mean(0)
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    atoms, losses = np.linspace(-1.0, 2.0, 5), []
    for row in range(ROWS):
        here, after, of_target = np.split(drawn[row], 3)
        best = int((probabilities(module, batch["new_obs"][row], after) @ atoms).argmax())
        following = probabilities(target, batch["new_obs"][row], of_target)[best]
        wanted = np.zeros(5)
        for atom, probability in zip(atoms, following):
            moved = batch["rewards"][row] + batch["discounts"][row] * (not batch["terminateds"][row]) * atom
            place = (np.clip(moved, -1.0, 2.0) + 1.0) / 0.75
            low = min(int(place), 3)
            wanted[low] += probability * (low + 1 - place)
            wanted[low + 1] += probability * (place - low)
        found = probabilities(module, batch["obs"][row], here)[batch["actions"][row]]
        losses.append(sum(w * np.log(w / p) for w, p in zip(wanted, found) if w > 0))
    results = learner.update_from_batch(batch)[MODULE]
    np.testing.assert_allclose(learner.row_errors[MODULE].numpy(), losses, rtol=1e-6)
    assert results["total_loss"] == pytest.approx(np.mean(np.array(losses) * batch["weights"]), rel=1e-6)


# -- acting ---


@pytest.mark.parametrize("algorithm", KINDS)
@pytest.mark.parametrize("memory", [{}, {"recurrent": "gru", "recurrent_size": 4}])
def test_each_row_and_step_has_noise_of_its_own_and_evaluation_has_none(algorithm, memory):
    config = config_of(algorithm, **memory).env_runners(exploration_config={"sigma": 4.0})
    policy = config.build_policy()
    obs = np.tile(np.array([[0.1, -0.2, 0.3, 0.4]], np.float32), (256, 1))

    def actions(explore):
        found = policy.compute_actions(obs, explore=explore)
        return found[0] if memory else found

    drawn = [actions(True) for _ in range(2)]
    assert all(0.02 < found.mean() < 0.98 for found in drawn)
    assert (drawn[0] != drawn[1]).any()
    assert len(np.unique(actions(False))) == 1
    np.testing.assert_array_equal(actions(False), actions(False))


@pytest.mark.parametrize("algorithm", one_in(3, KINDS))
def test_deviations_learn_and_a_run_goes_on_bit_for_bit(tmp_path, algorithm):
    def trainer(total):
        return config_of(algorithm).reporting(total_steps=total, steps_per_epoch=64).build_trainer()

    half, rest, whole = trainer(128), trainer(256), trainer(256)
    before = half.policy.module.policy_head.sigma_weight.detach().clone()
    half.run()
    assert (half.policy.module.policy_head.sigma_weight != before).float().mean() > 0.2
    restore_trainer(rest, half.save_to_path(tmp_path / "half"))
    rest.run()
    whole.run()
    np.testing.assert_array_equal(rest.policy.acting_weights().flat, whole.policy.acting_weights().flat)


def test_runners_with_a_part_of_the_environments_equal_one_collector():
    config = config_of().env_runners(exploration_config={"sigma": 4.0})
    policy, found = config.build_policy(), []
    for number in (1, 2):
        config.env_runners(num_envs_per_env_runner=4 // number)
        spaces_ = policy.observation_space, policy.action_space
        runners = [config.build_env_runner(spaces_, index=i, num_runners=number) for i in range(number)]
        fragments = []
        for runner in runners:
            runner.policy.set_weights(policy.acting_weights())
            fragments.append(runner.sample(160 // number))
        found.append(rollout_of(fragments, *spaces_).trajectories())
    np.testing.assert_array_equal(found[0].actions, found[1].actions)
    assert 0.1 < found[0].actions.mean() < 0.9


def test_an_evaluation_by_a_collector_is_without_noise():
    policy = config_of().env_runners(exploration_config={"sigma": 4.0}).build_policy()
    store = RolloutStore(8, 4, policy.observation_space, policy.action_space)
    Collector(policy, config_of().make_envs(4), store, seed=1).collect(32)
    rows = store.trajectories()
    np.testing.assert_array_equal(policy.compute_actions(rows.flat_obs(), explore=False), rows.actions.reshape(-1))


def test_atoms_with_dueling_act_by_the_value_too_wherever_they_act():
    policy = config_of().build_policy()
    part = policy.module
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    spec = RLModuleSpec(type(part), part.observation_space, part.action_space, True, part.model_config)
    frozen = spec.build(seed=0)
    frozen.set_state(part.get_state(inference_only=True))
    obs = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    inputs = [module.forward_inference({"obs": obs})["action_dist_inputs"] for module in (part, frozen)]
    torch.testing.assert_close(*inputs)
    assert part.get_flat_weights().size == sum(p.numel() for p in part.parameters()) * 4


# -- what is refused ---


def test_other_networks_and_wrong_deviations_are_refused():
    with pytest.raises(ValueError, match=r"evaluation\.epsilon.*rainbow, which does not explore by epsilon"):
        config_of().evaluation(epsilon=0.1).validate()
    with pytest.raises(ValueError, match=r"'sigma'.*positive"):
        config_of().env_runners(exploration_config={"sigma": 0.0}).validate()
    with pytest.raises(ValueError, match="noisy_sigma must be a positive number"):
        config_of(noisy_sigma=-1.0).build_policy()
    plain = type(get_config("dqn")).module_class

    class Own(plain):
        def setup(self):
            super().setup()
            self.policy_head = torch.nn.Linear(8, 2)
            self.noise_size = 0

    config = config_of("dqn").rl_module(rl_module_spec=RLModuleSpec(module_class=Own))
    with pytest.raises(ValueError, match="exploration='noisy' needs the default network, and Own has no NoisyLinear"):
        config.build_policy()
