"""Gated transformer memory: its equations, sequences against single steps, its range, and its errors."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.modules import (
    AttentionConfig,
    GatedTransformer,
    ModelConfig,
    RecurrentActor,
    RecurrentActorCriticModule,
    RLModuleSpec,
    default_module_class,
    make_actor,
)
from lockstep.modules.memory import Gate, RelativeAttention, TransformerLayer

BOX, THREE = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)
SMALL = {"num_layers": 2, "size": 4, "num_heads": 2, "memory": 3, "hidden_size": 6}
EXACT = {"rtol": 0, "atol": 1e-12}


def module(**config):
    config = ModelConfig(hiddens=(5,), policy_gain=1.0, attention={**SMALL, **config})
    return RLModuleSpec(RecurrentActorCriticModule, BOX, THREE, model_config=config).build(seed=0).double()


def obs(rows=3, steps=9, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, steps, 3)))


def state_of(net, rows=3):
    return {name: leaf.expand(rows, *leaf.shape) for name, leaf in net.get_initial_state().items()}


def test_the_gate_is_a_gru_that_begins_closed():
    gate, x, y = Gate(2, 2.0).double(), torch.randn(3, 2).double(), torch.randn(3, 2).double()
    w_r, w_z, w_h = gate.of_output.weight.split(2)
    u_r, u_z = gate.of_input.weight.split(2)
    r = torch.sigmoid(y @ w_r.T + x @ u_r.T)
    z = torch.sigmoid(y @ w_z.T + x @ u_z.T - 2.0)
    h = torch.tanh(y @ w_h.T + (r * x) @ gate.of_reset.weight.T)
    torch.testing.assert_close(gate(x, y), (1 - z) * x + z * h, **EXACT)
    shut = Gate(2, 50.0).double()
    torch.testing.assert_close(shut(x, y), x, **EXACT)


def test_attention_is_that_written_out_row_by_row():
    torch.manual_seed(0)
    layer = RelativeAttention(4, 2).double()
    with torch.no_grad():
        for bias in (layer.content_bias, layer.position_bias):
            bias.copy_(torch.randn(4))
    context, positions = torch.randn(1, 3, 4).double(), torch.randn(3, 4).double()
    distances = (torch.arange(3)[:, None] - torch.arange(3)).clamp(min=0)
    seen = torch.tensor([[[1, 0, 0], [1, 1, 0], [0, 1, 1]]], dtype=torch.bool)
    got = layer(context, context, positions, distances, seen)
    key, value = layer.key_value(context[0]).split(4, -1)
    for i, sees in enumerate(([0], [0, 1], [1, 2])):
        heads = []
        for head in (slice(0, 2), slice(2, 4)):
            query = layer.query(context[0, i])
            scores = [
                (query + layer.content_bias)[head] @ key[j, head]
                + (query + layer.position_bias)[head] @ layer.position(positions[i - j])[head]
                for j in sees
            ]
            weights = (torch.stack(scores) / math.sqrt(2)).softmax(0)
            heads.append(sum(weight * value[j, head] for weight, j in zip(weights, sees)))
        torch.testing.assert_close(got[0, i], layer.output(torch.cat(heads)), **EXACT)


def test_a_layer_with_closed_gates_is_the_identity():
    layer = TransformerLayer(AttentionConfig(**{**SMALL, "gate_bias": 60.0})).double()
    x, seen = torch.randn(2, 5, 4).double(), torch.ones(2, 5, 5, dtype=torch.bool).tril()
    distances = (torch.arange(5)[:, None] - torch.arange(5)).clamp(min=0)
    torch.testing.assert_close(layer(x, torch.randn(5, 4).double(), distances, seen), x, **EXACT)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_sequence_equals_its_pieces_and_single_steps(cut):
    net, x = module(), obs()
    whole, state = net.forward_train({"obs": x}), state_of(net)
    for t in range(0, x.shape[1], cut):
        piece = net.forward_train({"obs": x[:, t : t + cut], "state_in": state})
        for name in ("action_dist_inputs", "vf_preds"):
            torch.testing.assert_close(piece[name], whole[name][:, t : t + cut], **EXACT)
        state = piece["state_out"]
    for name, leaf in state.items():
        torch.testing.assert_close(leaf, whole["state_out"][name], **EXACT)
    assert state["memory"].shape == (3, 2, 3, 4)
    assert state["length"].tolist() == [[3.0]] * 3


def test_each_layer_sees_as_many_steps_as_its_memory_and_none_that_come():
    net, x = module(num_layers=1), obs()
    before = net.forward_train({"obs": x})["vf_preds"]
    changed = x.clone()
    changed[:, 4] += 1.0
    touched = (net.forward_train({"obs": changed})["vf_preds"] - before).abs() > 1e-9
    assert touched.all(0).tolist() == touched.any(0).tolist() == [4 <= t <= 7 for t in range(9)]


def test_state_after_padded_sequences_is_that_after_the_last_real_row():
    net, x, lengths = module(), obs(), torch.tensor([9, 1, 4])
    start = net.forward_inference({"obs": obs(steps=2, seed=1)})["state_out"]
    out = net.forward_inference({"obs": x, "seq_lens": lengths, "state_in": start})
    for row, length in enumerate(lengths.tolist()):
        own = {name: leaf[row : row + 1] for name, leaf in start.items()}
        alone = net.forward_inference({"obs": x[row : row + 1, :length], "state_in": own})
        got = out["action_dist_inputs"][row, :length]
        torch.testing.assert_close(got, alone["action_dist_inputs"][0], **EXACT)
        for name, leaf in alone["state_out"].items():
            torch.testing.assert_close(out["state_out"][name][row], leaf[0], **EXACT)


def test_the_actor_carries_the_memory_on():
    net, x = module().float(), obs(2, 8).float().numpy()
    actor = make_actor(net)
    assert type(actor) is RecurrentActor
    state, actions = actor.get_initial_state(2), []
    for t in range(8):
        action, state = actor.act_with_state(x[:, t], None, state)
        actions.append(action)
    inputs = net.forward_train({"obs": torch.from_numpy(x)})["action_dist_inputs"]
    assert np.array_equal(np.stack(actions, 1), net.action_dist_cls.from_inputs(inputs).mode().numpy())


def test_the_configuration_chooses_it_in_any_form(tmp_path):
    for config in ({"attention": {}}, {"attention": AttentionConfig()}, ModelConfig(attention={})):
        assert default_module_class(config) is RecurrentActorCriticModule
    config = ModelConfig(attention=SMALL)
    assert config.attention == AttentionConfig(**SMALL)
    assert ModelConfig.of(config.to_dict()) == config
    assert type(module().encoder.memory) is GatedTransformer


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: ModelConfig(attention={"heads": 3}), "unknown attention key 'heads'; did you mean 'num_heads'"),
        (lambda: ModelConfig(attention={"attention_dim": 3}), "did you mean 'size'"),
        (lambda: ModelConfig(attention={"size": 6, "num_heads": 4}), "attention.size=6 must be a multiple of num_h"),
        (lambda: ModelConfig(attention={"memory": 0}), "attention.memory=0.*at least 1"),
        (lambda: ModelConfig(attention={"gate_bias": math.inf}), "attention.gate_bias must be a finite number"),
        (lambda: ModelConfig(attention=True), "attention=True must be a dict"),
        (lambda: ModelConfig(attention={}, recurrent="gru"), "does not go with recurrent='gru': choose one"),
        (lambda: ModelConfig(attention={}, q_share_layers=True), "q_share_layers=True does not go with attention"),
        (lambda: PPOConfig().rl_module(model_config={"use_attention": True}), "did you mean 'attention'"),
    ],
)
def test_attention_that_cannot_be_is_refused_by_name(mistake, words):
    with pytest.raises(ValueError, match=words):
        mistake()
