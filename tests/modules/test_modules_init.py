"""Initial weights: gains, orthogonality, biases, seeds; and parameters that are views into one flat tensor."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from lockstep.data.trees import map_tree
from lockstep.modules import DefaultActorCriticModule, DefaultQModule, RLModuleSpec
from lockstep.modules.model_config import ACTIVATIONS

BOX = spaces.Box(-np.inf, np.inf, (64,), np.float32)
FOUR = spaces.Discrete(4)


def build(action_space=FOUR, seed=0, space=BOX, **config):
    return RLModuleSpec(DefaultActorCriticModule, space, action_space, model_config=config).build(seed=seed)


def assert_orthogonal(weight, gain):
    matrix = weight.detach().flatten(1).double()
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram), dtype=torch.float64), atol=1e-5, rtol=0)


def test_hidden_layers_and_heads_have_the_reference_gains_and_zero_biases():
    module = build()
    for encoder in (module.encoder, module.value_encoder):
        for layer in (encoder.mlp[0], encoder.mlp[2]):
            assert_orthogonal(layer.weight, math.sqrt(2.0))
    assert_orthogonal(module.policy_head.weight, 0.01)
    assert_orthogonal(module.value_head.weight, 1.0)
    assert all(not p.any() for name, p in module.named_parameters() if name.endswith("bias"))


def test_convolutions_are_orthogonal_too():
    module = build(space=spaces.Box(0, 255, (84, 84, 4), np.uint8))
    for layer in module.encoder.features.network:
        if hasattr(layer, "weight"):
            assert_orthogonal(layer.weight, math.sqrt(2.0))
            assert not layer.bias.any()


def test_gains_can_be_chosen_and_orthogonal_init_left_out():
    module = build(hidden_gain=0.5, policy_gain=2.0, value_gain=3.0)
    assert_orthogonal(module.encoder.mlp[0].weight, 0.5)
    assert_orthogonal(module.policy_head.weight, 2.0)
    assert_orthogonal(module.value_head.weight, 3.0)
    module = build(orthogonal_init=False)
    weight = module.encoder.mlp[0].weight
    assert weight.abs().max() <= 1 / math.sqrt(64)  # torch's own: uniform in +-1/sqrt(fan_in)
    assert weight.std().item() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.05)


def test_log_std_is_one_parameter_per_action_without_the_observation():
    module = build(spaces.Box(-1, 1, (3,), np.float32), log_std_init=-0.5)
    assert module.log_std.tolist() == [-0.5] * 3
    inputs = module.forward_train({"obs": torch.randn(7, 64)})["action_dist_inputs"]
    assert torch.equal(inputs[:, 3:], torch.full((7, 3), -0.5))
    inputs[:, 3:].sum().backward()
    assert module.log_std.grad.tolist() == [7.0] * 3
    assert module.policy_head.weight.shape == (3, 64)


def test_log_std_can_come_from_the_network():
    module = build(spaces.Box(-1, 1, (3,), np.float32), log_std_init=-0.5, free_log_std=False)
    assert module.log_std is None
    inputs = module.forward_train({"obs": torch.randn(7, 64)})["action_dist_inputs"]
    assert inputs.shape == (7, 6)
    torch.testing.assert_close(inputs[:, 3:], torch.full((7, 3), -0.5), atol=0.1, rtol=0)
    assert inputs[:, 3:].std(0).min() > 0


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two, other = build(seed=1), build(seed=1), build(seed=2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    assert not torch.equal(one.encoder.mlp[0].weight, other.encoder.mlp[0].weight)


def flatten_parameters(module):
    """Every parameter becomes a view into one tensor, as a learner does it."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view(p.shape)
        offset += p.numel()
    return flat


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(0, 255, (40, 40, 3), np.uint8),
        spaces.Dict({"a": BOX, "b": spaces.Discrete(4)}),
    ],
)
@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
@pytest.mark.parametrize("share", [False, True])
def test_parameters_may_be_views_into_one_flat_tensor(space, action_space, share):
    module = build(action_space, space=space, vf_share_layers=share)
    batch = {"obs": map_tree(torch.from_numpy, batch_space(space, 4).sample())}
    before = module.forward_train(batch)
    state = module.get_state()
    flat = flatten_parameters(module)
    after = module.forward_train(batch)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert flat.numel() == sum(value.size for value in state.values())

    with torch.no_grad():
        flat.zero_()
    assert not module.forward_train(batch)["vf_preds"].any()
    module.set_state(state)  # in place: still views
    assert flat.any()
    assert all(torch.equal(before[key], module.forward_train(batch)[key]) for key in before)
    parameters = list(module.parameters())
    assert all(p.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for p in parameters)


def test_the_value_function_may_have_other_hidden_widths():
    module = build(hiddens=(16,), value_hiddens=(32, 8))
    assert [layer.out_features for layer in module.encoder.mlp[::2]] == [16]
    assert [layer.out_features for layer in module.value_encoder.mlp[::2]] == [32, 8]
    assert module.value_head.in_features == 8
    obs = torch.randn(5, 64)
    features = obs
    for layer in (*module.value_encoder.mlp, module.value_head):
        features = layer(features)
    torch.testing.assert_close(module.forward_train({"obs": obs})["vf_preds"], features.squeeze(-1))


def test_other_hidden_widths_of_values_need_layers_of_their_own():
    with pytest.raises(ValueError, match="value_hiddens"):
        build(value_hiddens=(8,), vf_share_layers=True)
    with pytest.raises(ValueError, match="value_hiddens"):
        RLModuleSpec(DefaultQModule, BOX, FOUR, model_config={"value_hiddens": (8,), "dueling": True}).build()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_is_torch_s_layer(name):
    module = build(hiddens=(8,), activation=name)
    obs = torch.randn(3, 64)
    hidden = getattr(torch.nn, type(module.encoder.mlp[1]).__name__)()(module.encoder.mlp[0](obs))
    assert type(module.encoder.mlp[1]).__name__.lower() == name.replace("_", "")
    torch.testing.assert_close(module({"obs": obs})["action_dist_inputs"], module.policy_head(hidden))
