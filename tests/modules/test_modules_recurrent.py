"""The default module with memory: its arithmetic against torch's layers, sequences against single steps."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import nn

from lockstep.modules import (
    DefaultActorCriticModule,
    ModelConfig,
    NumpyActor,
    NumpyRecurrentActor,
    RecurrentActor,
    RecurrentActorCriticModule,
    RLModuleSpec,
    TorchActor,
    default_module_class,
    make_actor,
)

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
THREE = spaces.Discrete(3)
KINDS = ("lstm", "gru")


def module(kind="lstm", observation_space=BOX, action_space=THREE, dtype=torch.float32, seed=0, **config):
    config = ModelConfig(**{"hiddens": (5,), **config}, recurrent=kind, recurrent_size=4, policy_gain=1.0)
    spec = RLModuleSpec(RecurrentActorCriticModule, observation_space, action_space, model_config=config)
    return spec.build(seed=seed).to(dtype)


def obs(rows=3, steps=7, seed=0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, steps, 3))).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_recurrence_is_that_of_torchs_own_layer(kind):
    own = module(kind, dtype=torch.float64).encoder.memory
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](5, 4, batch_first=True).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(own, name).copy_(torch.randn_like(getattr(own, name)))
            getattr(layer, f"{name}_l0").copy_(getattr(own, name))
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    h, c = torch.randn(2, 3, 4, dtype=torch.float64)
    expected, after = layer(x, (h[None], c[None]) if kind == "lstm" else h[None])
    state = {"h": h, "c": c} if kind == "lstm" else {"h": h}
    features, got = own(x, state)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-12)
    for leaf, reference in zip(got.values(), after if kind == "lstm" else [after]):
        torch.testing.assert_close(leaf, reference[0], rtol=0, atol=1e-12)


RESETTING = {
    "lstm": {"recurrent": "lstm"},
    "gru of the critic": {"recurrent": "gru", "memory_in": "critic"},
    "two layers below others": {"recurrent": "lstm", "recurrent_layers": 2, "memory_below_hiddens": True},
    "shared": {"recurrent": "gru", "memory_in": "shared"},
    "attention": {"attention": {"memory": 3, "size": 8, "num_heads": 2, "num_layers": 2}},
    "attention to many rows": {"attention": {"memory": 12, "size": 8, "num_heads": 2}},
}


@pytest.mark.parametrize("name", RESETTING)
def test_a_memory_that_is_reset_in_a_sequence_equals_sequences_apart(name):
    """Outputs, states after them, and the gradient; the first sequence continues from a state."""
    config = ModelConfig(hiddens=(5,), recurrent_size=4, policy_gain=1.0, **RESETTING[name])
    net = RLModuleSpec(RecurrentActorCriticModule, BOX, THREE, model_config=config).build(seed=0).double()
    steps = 9
    x = obs(rows=4, steps=steps, dtype=torch.float64)
    before = net.forward_train({"obs": obs(rows=4, steps=2, seed=1, dtype=torch.float64)})["state_out"]
    before = {key: leaf.detach() for key, leaf in before.items()}
    initial = net.get_initial_state()
    begins = torch.zeros(4, steps, dtype=torch.bool)
    begins[1, 0] = begins[2, 4] = begins[3, 2] = begins[3, 3] = begins[3, 8] = True

    def gradient(outputs):
        net.zero_grad()
        sum((outputs[key] * (1.0 + outputs[key])).sum() for key in ("action_dist_inputs", "vf_preds")).backward()
        return {key: p.grad.clone() for key, p in net.named_parameters() if p.grad is not None}

    together = net.forward_train({"obs": x, "state_in": before, "begins": begins})
    rows, ends = [], []
    for row in range(4):
        cuts = [0, *(t for t in range(1, steps) if begins[row, t]), steps]
        outputs = []
        for first, last in pairwise(cuts):
            source = initial if begins[row, first] else {key: leaf[row] for key, leaf in before.items()}
            state = {key: leaf[None] for key, leaf in source.items()}
            outputs.append(net.forward_train({"obs": x[row : row + 1, first:last], "state_in": state}))
        rows.append({key: torch.cat([each[key] for each in outputs], 1) for key in ("action_dist_inputs", "vf_preds")})
        ends.append(outputs[-1]["state_out"])
    apart = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
    for key in apart:
        torch.testing.assert_close(together[key], apart[key], rtol=0, atol=1e-12)
    after = {key: leaf.clone() for key, leaf in together["state_out"].items()}
    wanted = {key: torch.cat([end[key] for end in ends]) for key in ends[0]}
    for state in (after, wanted):
        for prefix in ("", "vf_") if "attention" in name else ():  # rows that are not filled may hold anything
            memory = state[f"{prefix}memory"]
            size = memory.shape[2]
            filled = torch.arange(size) >= size - state[f"{prefix}length"]
            state[f"{prefix}memory"] = torch.where(filled[:, None, :, None], memory, 0.0)
    for key, leaf in wanted.items():
        torch.testing.assert_close(after[key], leaf, rtol=0, atol=1e-12)
    one, other = gradient(together), gradient(apart)
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_gives_what_step_by_step_gives(kind):
    net, x = module(kind), obs()
    whole = net.forward_train({"obs": x})
    state = {name: leaf.expand(3, -1) for name, leaf in net.get_initial_state().items()}
    for t in range(x.shape[1]):
        step = net.forward_train({"obs": x[:, t : t + 1], "state_in": state})
        for name in ("action_dist_inputs", "vf_preds"):
            torch.testing.assert_close(step[name][:, 0], whole[name][:, t], rtol=0, atol=1e-6)
        acted = net.forward_exploration({"obs": x[:, t : t + 1], "state_in": state})
        torch.testing.assert_close(acted["action_dist_inputs"], step["action_dist_inputs"], rtol=0, atol=1e-6)
        state = step["state_out"]
    for name, leaf in state.items():
        torch.testing.assert_close(leaf, whole["state_out"][name], rtol=0, atol=1e-6)
    torch.testing.assert_close(net.compute_values({"obs": x}), whole["vf_preds"], rtol=0, atol=0)


def test_policy_and_value_have_a_memory_each_or_share_one():
    apart, shared, x = module(), module(vf_share_layers=True), {"obs": obs()}
    assert list(apart.get_initial_state()) == ["h", "c", "vf_h", "vf_c"]
    assert list(shared.get_initial_state()) == ["h", "c"]
    for net, is_touched in ((apart, False), (shared, True)):
        net.forward_train(x)["vf_preds"].sum().backward()
        assert all((p.grad is not None) == is_touched for p in net.encoder.parameters())
        assert net.policy_head.weight.grad is None
    inputs = [net.forward_train(x)["action_dist_inputs"] for net in (apart, shared)]
    torch.testing.assert_close(*inputs)


LAYOUTS = [
    {"memory_below_hiddens": True, "hiddens": (6, 5)},
    {"recurrent_layers": 2},
    {"memory_in": "policy", "memory_below_hiddens": True},
    {"memory_in": "shared", "memory_below_hiddens": True, "hiddens": (6,), "value_hiddens": (7,)},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout))
def test_each_layout_of_memory_acts_step_by_step_as_in_sequences(layout):
    net, x = module(**{"hiddens": (5,), **layout}), obs()
    whole = net.forward_train({"obs": x})
    actor = make_actor(net)
    assert type(actor) is RecurrentActor  # numpy knows one layout only
    state = actor.get_initial_state(3)
    for t in range(x.shape[1]):
        tensors = {name: torch.from_numpy(leaf) for name, leaf in state.items()}
        step = net.forward_train({"obs": x[:, t : t + 1], "state_in": tensors})
        for name in ("action_dist_inputs", "vf_preds"):
            torch.testing.assert_close(step[name][:, 0], whole[name][:, t], rtol=0, atol=1e-6)
        actions, state = actor.act_with_state(x[:, t].numpy(), None, state)
        np.testing.assert_array_equal(actions, whole["action_dist_inputs"][:, t].argmax(-1).numpy())


def test_layers_are_above_the_memory_and_as_many_as_given():
    net = module(memory_below_hiddens=True, hiddens=(6, 5), value_hiddens=(7,), recurrent_layers=2)
    assert [layer.input_size for layer in net.encoder.memory.layers] == [3, 4]
    assert [layer.out_features for layer in net.encoder.hidden_layers[::2]] == [6, 5]
    assert [layer.out_features for layer in net.value_encoder.hidden_layers[::2]] == [7]
    assert list(net.get_initial_state()) == ["h", "c", "h_1", "c_1", "vf_h", "vf_c", "vf_h_1", "vf_c_1"]


def test_a_value_without_memory_sees_the_present_and_a_shared_one_trains_no_memory():
    x = obs()
    changed = x.clone()
    changed[:, 0] += 1.0
    blind = module(memory_in="policy")
    values = [blind.forward_train({"obs": each})["vf_preds"][:, 1:] for each in (x, changed)]
    torch.testing.assert_close(*values)
    shared = module(memory_in="shared", memory_below_hiddens=True)
    values = [shared.forward_train({"obs": each})["vf_preds"][:, 1:] for each in (x, changed)]
    assert ((values[0] - values[1]).abs() > 1e-6).all()
    values[0].sum().backward()
    assert all(p.grad is None for p in shared.encoder.parameters())
    assert all(p.grad is not None for p in shared.value_encoder.parameters())
    assert list(shared.get_initial_state()) == list(blind.get_initial_state()) == ["h", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_past_matters_and_the_future_does_not(kind):
    net, x = module(kind), obs()
    before = net.forward_train({"obs": x})["vf_preds"]
    changed = x.clone()
    changed[:, 3] += 1.0
    after = net.forward_train({"obs": changed})["vf_preds"]
    assert torch.equal(before[:, :3], after[:, :3])
    assert ((before - after).abs()[:, 3:] > 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_state_after_padded_sequences_is_that_after_the_last_real_row(kind):
    net, x, lengths = module(kind, dtype=torch.float64), obs(dtype=torch.float64), torch.tensor([7, 2, 4])
    start = {name: torch.randn(3, 4, dtype=torch.float64) for name in net.get_initial_state()}
    out = net.forward_inference({"obs": x, "seq_lens": lengths, "state_in": start})
    for row, length in enumerate(lengths.tolist()):
        own = {name: leaf[row : row + 1] for name, leaf in start.items()}
        alone = net.forward_inference({"obs": x[row : row + 1, :length], "state_in": own})
        torch.testing.assert_close(
            out["action_dist_inputs"][row, :length], alone["action_dist_inputs"][0], rtol=0, atol=1e-12
        )
        for name, leaf in alone["state_out"].items():
            torch.testing.assert_close(out["state_out"][name][row], leaf[0], rtol=0, atol=1e-12)


def test_padding_of_any_content_changes_no_real_row():
    net, x, lengths = module(), obs(), torch.tensor([7, 2, 4])
    padding = torch.arange(7) >= lengths[:, None]
    clean = net.forward_train({"obs": x, "seq_lens": lengths})["vf_preds"]
    x[padding] = torch.nan
    dirty = net.forward_train({"obs": x, "seq_lens": lengths})
    assert torch.equal(dirty["vf_preds"][~padding], clean[~padding])
    assert "state_out" not in dirty  # it would have seen the padding


def test_initialisation_is_orthogonal_for_each_gate_or_torchs_own():
    layer = module("lstm", seed=1).encoder.memory
    for gate in layer.weight_hh.split(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(4), rtol=0, atol=1e-6)
    assert not layer.bias_ih.any()
    plain = module("gru", orthogonal_init=False).encoder.memory
    assert plain.bias_ih.any()
    assert float(plain.weight_hh.detach().abs().max()) <= 0.5


def test_inference_only_omits_the_value_head_and_accepts_all_weights():
    full = module()
    small = RLModuleSpec(
        RecurrentActorCriticModule, BOX, THREE, inference_only=True, model_config=full.model_config
    ).build()
    small.set_state(full.get_state(inference_only=True))
    x = {"obs": obs()}
    torch.testing.assert_close(small._forward(x)["action_dist_inputs"], full._forward(x)["action_dist_inputs"])
    assert list(small.get_initial_state()) == ["h", "c"]  # of the policy alone
    small.set_state(full.get_state())
    with pytest.raises(RuntimeError, match="inference_only=True"):
        small.compute_values(x)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict({"a": BOX, "b": spaces.Discrete(2)}),
        spaces.Tuple((BOX, spaces.MultiBinary(2))),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
    ],
    ids=lambda space: type(space).__name__,
)
def test_every_observation_space_has_a_module_with_memory(space):
    net = RLModuleSpec(
        RecurrentActorCriticModule, space, spaces.Box(-1, 1, (2,)), model_config={"recurrent": "gru", "hiddens": (5,)}
    ).build(seed=0)
    actor = make_actor(net)
    state = actor.get_initial_state(2)
    actions, after = actor.act_with_state(batch_space(space, 2).sample(), None, state)
    assert actions.shape == (2, 2)
    assert after["h"].shape == (2, 64)


def test_action_mask_forbids_actions_in_sequences():
    space = spaces.Dict({"observations": BOX, "action_mask": spaces.MultiBinary(3)})
    net = module(observation_space=space)
    mask = torch.tensor([1, 0, 1]).expand(3, 7, 3)
    inputs = net.forward_train({"obs": {"observations": obs(), "action_mask": mask}})["action_dist_inputs"]
    probabilities = net.action_dist_cls.from_inputs(inputs).log_probs.exp().detach()
    assert float(probabilities[..., 1].max()) == 0.0
    assert float(probabilities[..., 2].min()) > 0.0


def test_actor_carries_the_state_and_refuses_to_act_without():
    net = module("lstm")
    actor = make_actor(net)
    assert isinstance(actor, RecurrentActor)
    x = obs(2, 5).numpy()
    noise = net.action_dist_cls.draw_noise(np.random.default_rng(0), (5, 2))
    state, actions = actor.get_initial_state(2), []
    for t in range(5):
        before = {name: leaf.copy() for name, leaf in state.items()}
        action, after = actor.act_with_state(x[:, t], noise[t], state)
        assert all(np.array_equal(before[name], state[name]) for name in state)
        state = after
        actions.append(action)
    inputs = net.forward_train({"obs": torch.from_numpy(x)})["action_dist_inputs"].detach()
    dist = net.action_dist_cls.from_inputs(inputs)
    expected = dist.sample_with_noise(torch.from_numpy(noise).transpose(0, 1))
    assert np.array_equal(np.stack(actions, 1), expected.numpy())
    with pytest.raises(TypeError, match="RecurrentActorCriticModule remembers from step to step; use act_with_state"):
        actor.act(x[:, 0])
    with pytest.raises(ValueError, match="keeps a state from step to step"):
        TorchActor(net)
    assert NumpyActor.build(net) is None


def test_the_configuration_chooses_the_class():
    for config in (None, ModelConfig(), {"hiddens": (3,)}):
        assert default_module_class(config) is DefaultActorCriticModule
    for config in ({"recurrent": "gru"}, ModelConfig(recurrent="lstm")):
        assert default_module_class(config) is RecurrentActorCriticModule
    assert module().is_stateful()
    assert not RLModuleSpec(DefaultActorCriticModule, BOX, THREE).build().is_stateful()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: ModelConfig(recurrent="rnn"), "recurrent='rnn'.*lstm.*gru"),
        (lambda: ModelConfig(memory_in="policy"), "memory_in='policy' needs a memory"),
        (lambda: ModelConfig(attention={}, recurrent_layers=2), "recurrent_layers=2 needs recurrent="),
        (lambda: ModelConfig(recurrent="gru", memory_in="shared", vf_share_layers=True), "vf_share_layers=True"),
        (lambda: ModelConfig(recurrent="gru", memory_in="all"), "memory_in='all'.*both"),
        (lambda: ModelConfig(max_seq_len=0), "max_seq_len=0.*at least 1"),
        (lambda: ModelConfig.of({"use_lstm": True}), "'use_lstm'; did you mean 'recurrent'"),
        (
            lambda: RLModuleSpec(DefaultActorCriticModule, BOX, THREE, model_config={"recurrent": "lstm"}).build(),
            "recurrent='lstm' needs RecurrentActorCriticModule",
        ),
        (lambda: RLModuleSpec(RecurrentActorCriticModule, BOX, THREE).build(), "needs 'lstm' or 'gru'"),
    ],
)
def test_memory_that_does_not_fit_is_refused(mistake, words):
    with pytest.raises(ValueError, match=words):
        mistake()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action_space", [THREE, spaces.Box(-1, 1, (2,))], ids=["discrete", "continuous"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared", [True, False])
def test_numpy_acts_as_torch_does_up_to_rounding(kind, action_space, activation, shared):
    config = {"free_log_std": shared, "vf_share_layers": shared}
    net = module(kind, action_space=action_space, activation=activation, **config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    fast, slow = make_actor(net), RecurrentActor(net)
    assert type(fast) is NumpyRecurrentActor
    x = 3 * obs(4, 9).numpy()
    for noise in (None, net.action_dist_cls.draw_noise(np.random.default_rng(0), (9, 4))):
        state = other = slow.get_initial_state(4)
        for t in range(9):
            before = {name: leaf.copy() for name, leaf in state.items()}
            action, after = fast.act_with_state(x[:, t], None if noise is None else noise[t], state)
            expected, other = slow.act_with_state(x[:, t], None if noise is None else noise[t], other)
            assert all(np.array_equal(before[name], state[name]) for name in state)
            state = after
            np.testing.assert_allclose(action, expected, rtol=2e-6, atol=2e-6)
            for name, leaf in other.items():
                np.testing.assert_allclose(state[name], leaf, rtol=2e-6, atol=2e-6)
    with pytest.raises(ValueError, match=r"shape \(2, 4\) does not fit the space"):
        fast.act_with_state(np.zeros((2, 4), np.float32), None, fast.get_initial_state(2))


def test_numpy_actor_reads_the_parameters_memory_and_refuses_other_layers():
    net = module()
    fast, x = make_actor(net), obs(2, 1).numpy()[:, 0]
    before = fast.act_with_state(x, None, fast.get_initial_state(2))[1]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    after = fast.act_with_state(x, None, fast.get_initial_state(2))[1]
    assert np.abs(before["h"] - after["h"]).max() > 1e-3
    net.encoder.memory.register_forward_hook(lambda *args: None)
    assert type(make_actor(net)) is RecurrentActor
    assert type(make_actor(module(observation_space=spaces.Dict({"a": BOX})))) is RecurrentActor
    assert type(make_actor(module(action_space=spaces.MultiDiscrete([2, 2])))) is RecurrentActor
