"""State, checkpoints and specs of modules; several modules under ids; wrapping."""

import ast
import copy
import itertools
import json
import pickle
import textwrap

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from warm import run_python

from lockstep.modules import (
    DefaultActorCriticModule,
    ModelConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
    wrap_module,
)
from lockstep.modules.multi_rl_module import module_changes
from lockstep.state.checkpoint import CheckpointError

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
SPEC = RLModuleSpec(DefaultActorCriticModule, BOX, spaces.Discrete(3))


def outputs(module):
    generator = torch.Generator().manual_seed(0)
    return module.forward_train({"obs": torch.randn(5, 4, generator=generator)})


def assert_equal_outputs(one, two):
    one, two = outputs(one), outputs(two)
    assert all(torch.equal(one[key], two[key]) for key in one)


# One module


def test_state_is_a_copy_and_goes_round():
    module, other = SPEC.build(seed=1), SPEC.build(seed=2)
    state = module.get_state()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    with torch.no_grad():
        module.policy_head.weight.zero_()
    assert state["policy_head.weight"].any()
    other.set_state(state)
    assert_equal_outputs(other, SPEC.build(seed=1))


def test_bfloat16_goes_round_exactly():
    module, other = (SPEC.build(seed=seed).to(torch.bfloat16) for seed in (1, 2))
    other.set_state(module.get_state())
    assert all(map(torch.equal, module.parameters(), other.parameters()))


def test_a_state_that_does_not_fit_lists_everything_and_changes_nothing():
    module = SPEC.build(seed=1)
    before = module.get_state()
    state = SPEC.build(seed=2).get_state()
    del state["value_head.bias"]
    state["extra"] = np.zeros(3)
    state["policy_head.weight"] = np.zeros((2, 64), np.float32)
    message = (
        r"missing: value_head\.bias; unknown: extra; of another shape: policy_head\.weight is \(2, 64\), not \(3, 64\)"
    )
    with pytest.raises(ValueError, match=message):
        module.set_state(state)
    after = module.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_inference_only_state_and_modules():
    module = SPEC.build(seed=1)
    state = module.get_state(inference_only=True)
    assert {name.partition(".")[0] for name in state} == {"encoder", "policy_head"}
    actor = RLModuleSpec(DefaultActorCriticModule, BOX, spaces.Discrete(3), inference_only=True).build()
    for given in (state, module.get_state()):
        actor.set_state(given)
        expected = outputs(module)["action_dist_inputs"]
        generator = torch.Generator().manual_seed(0)
        out = actor.forward_inference({"obs": torch.randn(5, 4, generator=generator)})
        assert torch.equal(out["action_dist_inputs"], expected)
    assert actor.get_state().keys() == state.keys()
    with pytest.raises(RuntimeError, match="inference_only"):
        actor.compute_values({"obs": torch.randn(2, 4)})
    with pytest.raises(ValueError, match="missing: value_encoder"):
        module.set_state(state)


@pytest.mark.parametrize(
    "config", [None, {"hiddens": [8], "activation": "relu"}, ModelConfig(hiddens=(8,), vf_share_layers=True)]
)
def test_a_checkpoint_gives_the_module_back(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    spec = RLModuleSpec(DefaultActorCriticModule, BOX, spaces.Box(-1, 1, (2,), np.float32), model_config=config)
    module, other = spec.build(), spec.build()
    path = module.save_to_path("module")
    assert path == str(tmp_path / "module")
    files = {file.name for file in (tmp_path / "module").iterdir()}
    assert files == {"weights.safetensors", "spec.json", "manifest.json"}
    loaded = RLModule.from_checkpoint("module")
    assert type(loaded) is DefaultActorCriticModule
    assert (loaded.observation_space, loaded.action_space) == (module.observation_space, module.action_space)
    assert loaded.spec() == module.spec()
    assert_equal_outputs(loaded, module)
    other.restore_from_path(path)
    assert_equal_outputs(other, module)


def test_a_modules_folder_is_usable_from_a_new_process(tmp_path):
    multi = MultiRLModuleSpec({"p0": SPEC, "p1": SPEC}).build(seeds={"p0": 1, "p1": 2})
    multi.save_to_path(tmp_path / "all")
    (tmp_path / "all" / "p1").rename(tmp_path / "alone")
    code = """
        import sys, torch
        from lockstep.modules import RLModule
        module = RLModule.from_checkpoint(sys.argv[1])
        obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        weights = sum(float(p.detach().double().sum()) for p in module.parameters())
        print(repr([weights, *module.forward_train({"obs": obs})["vf_preds"].tolist()]))
    """
    done = run_python(["-c", textwrap.dedent(code), tmp_path / "alone"])
    assert done.returncode == 0, done.stderr
    weights, *values = ast.literal_eval(done.stdout)
    assert weights == sum(float(p.detach().double().sum()) for p in multi["p1"].parameters())
    # another number of threads adds in another order
    np.testing.assert_allclose(values, outputs(multi["p1"])["vf_preds"].tolist(), rtol=0, atol=1e-6)


class Custom(RLModule):
    """A module of a user's own, with a model_config of a user's own and a buffer."""

    def setup(self):
        self.layer = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(float(self.model_config["scale"])))

    def _forward(self, batch):
        return {"action_dist_inputs": self.layer(batch["obs"]) * self.scale}


def test_a_users_own_module_acts_and_is_saved(tmp_path):
    class Unimportable(Custom):
        pass

    module = RLModuleSpec(Unimportable, BOX, spaces.Discrete(3), model_config={"scale": 2.5}).build(seed=0)
    assert outputs(module)["action_dist_inputs"].shape == (5, 3)
    assert not module.is_stateful()
    with pytest.raises(TypeError, match="Unimportable has no value function"):
        module.compute_values({"obs": torch.zeros(1, 4)})
    path = module.save_to_path(tmp_path / "m")
    with pytest.raises(ValueError, match=r"Unimportable cannot be imported.*module_class="):
        RLModule.from_checkpoint(path)
    loaded = RLModule.from_checkpoint(path, module_class=Unimportable)
    assert loaded.scale == 2.5
    assert_equal_outputs(loaded, module)


def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path):
    path = tmp_path / "m"
    SPEC.build().save_to_path(path)
    content = bytearray((path / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "weights.safetensors").write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
        RLModule.from_checkpoint(path)
    with pytest.raises(CheckpointError, match="nothing_here"):
        RLModule.from_checkpoint(tmp_path / "nothing_here")
    MultiRLModule({"a": SPEC.build()}).save_to_path(tmp_path / "multi")
    with pytest.raises(CheckpointError, match="not of one RLModule"):
        RLModule.from_checkpoint(tmp_path / "multi")
    with pytest.raises(CheckpointError, match="not of a MultiRLModule"):
        MultiRLModule.from_checkpoint(SPEC.build().save_to_path(tmp_path / "single"))


def test_specs_go_through_plain_values():
    specs = [
        SPEC,
        RLModuleSpec(),
        RLModuleSpec(DefaultActorCriticModule, BOX, spaces.MultiDiscrete([2, 3]), True, ModelConfig(hiddens=(3,))),
        RLModuleSpec(model_config={"hiddens": [3]}),
    ]
    for spec in specs:
        assert RLModuleSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


class Local(nn.Module):
    """Returns two tensors."""

    def forward(self, obs):
        return obs, obs


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: RLModuleSpec(observation_space=BOX).build(), "needs module_class, action_space"),
        (lambda: RLModuleSpec(nn.Linear, BOX, spaces.Discrete(2)).build(), "subclass of RLModule.*wrap_module"),
        (lambda: outputs(RLModuleSpec(RLModule, BOX, spaces.Discrete(2)).build()), "RLModule must define _forward"),
        (
            lambda: RLModuleSpec.from_dict({**SPEC.to_dict(), "module_class": "subprocess:Popen"}),
            "subprocess:Popen is not an RLModule",
        ),
        (lambda: MultiRLModuleSpec({"p0": "x"}), "RLModuleSpec, got str"),
        (lambda: MultiRLModule({"p0": nn.Linear(1, 1)}), "must be an RLModule, got Linear"),
        (lambda: wrap_module(lambda obs: obs, BOX, spaces.Discrete(3)), r"takes a torch nn\.Module, got function"),
        (lambda: wrap_module(nn.Linear(4, 3), BOX, spaces.Discrete(3), "logits"), "outputs must name"),
        (lambda: wrap_module(nn.Linear(4, 3), BOX, spaces.Discrete(3), ("vf_preds",)), "outputs must name"),
        (lambda: wrap_module(nn.Linear(4, 3), BOX, spaces.Discrete(3), ("actions", "actions")), "outputs must name"),
        (lambda: outputs(wrap_module(Local(), BOX, spaces.Discrete(3))), "returned 2 tensors"),
    ],
)
def test_what_cannot_be_a_module_is_refused(mistake, words):
    with pytest.raises((ValueError, TypeError), match=words):
        mistake()


# Several modules


def multi():
    return MultiRLModuleSpec({"p0": SPEC, "p1": SPEC}).build(seeds={"p0": 1, "p1": 2})


@pytest.mark.parametrize("made", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_has_modules_of_its_own(made):
    module = multi()
    twin = made(module)
    assert twin["p0"] is twin.rl_modules["p0"] is not module["p0"]
    twin.add_module("p2", SPEC.build())
    assert twin.keys() == list(twin.rl_modules) == ["p0", "p1", "p2"]
    module.remove_module("p0")
    assert (len(twin), module.keys()) == (3, ["p1"])


def test_multi_module_is_a_mapping_that_adds_and_removes():
    module = multi()
    assert list(module) == module.keys() == ["p0", "p1"]
    assert len(module) == 2
    assert "p0" in module
    assert "nobody" not in module
    assert module.values()[1] is module["p1"] is dict(module.items())["p1"]
    assert module.foreach_module(lambda module_id, m: (module_id, m)) == {mid: (mid, m) for mid, m in module.items()}
    assert {name.split(".")[1] for name, _ in module.named_parameters()} == {"p0", "p1"}
    module.add_module("p2", SPEC.build())
    removed = module.remove_module("p1")
    assert isinstance(removed, RLModule)
    assert module.keys() == ["p0", "p2"]
    for missing in (module.remove_module, module.__getitem__):
        with pytest.raises(KeyError, match=r"no module 'p1'; there are 'p0', 'p2'"):
            missing("p1")
    with pytest.raises(ValueError, match="'p0' already"):
        module.add_module("p0", SPEC.build())
    module.add_module("p0", removed, override=True)
    assert module["p0"] is removed


@pytest.mark.parametrize(
    "bad", ["", "a/b", "a.b", "__all_modules__", "keys", "training", "a\nb", "a*", "end ", 3, None]
)
def test_illegal_module_ids(bad):
    with pytest.raises(ValueError, match="module id"):
        MultiRLModule().add_module(bad, SPEC.build())
    with pytest.raises(ValueError, match="module id"):
        MultiRLModuleSpec({bad: SPEC})


def test_multi_forward_runs_the_modules_that_have_a_batch():
    module = multi()
    batch = {"p1": {"obs": torch.randn(2, 4)}}
    for forward in (module.forward_train, module.forward_inference, module.forward_exploration, module):
        out = forward(batch)
        assert list(out) == ["p1"]
        expected = module["p1"].forward_train(batch["p1"])["action_dist_inputs"]
        assert torch.equal(out["p1"]["action_dist_inputs"], expected)
    assert "vf_preds" in module(batch)["p1"]
    assert "vf_preds" not in module.forward_exploration(batch)["p1"]
    with pytest.raises(KeyError, match="nobody"):
        module.forward_train({"nobody": {}})


def test_multi_state_is_all_or_nothing():
    module, other = multi(), multi()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
    state = module.get_state()
    state["p1"].pop("value_head.bias")
    before = other.get_state()
    with pytest.raises(ValueError, match=r"missing: value_head\.bias"):
        other.set_state(state)
    with pytest.raises(KeyError, match="p9"):
        other.set_state({"p0": state["p0"], "p9": state["p0"]})
    after = other.get_state()
    assert all(np.array_equal(before[m][n], after[m][n]) for m in before for n in before[m])
    other.set_state({"p0": state["p0"]})
    assert_equal_outputs(other["p0"], module["p0"])
    assert "value_head.bias" not in module.get_state(inference_only=True)["p0"]


def test_multi_checkpoint(tmp_path):
    module = multi()
    path = module.save_to_path(tmp_path / "m")
    loaded = MultiRLModule.from_checkpoint(path)
    assert loaded.spec() == module.spec()
    for module_id in module:
        assert_equal_outputs(loaded[module_id], module[module_id])
    other = MultiRLModuleSpec({"p0": SPEC, "p1": SPEC}).build()
    other.restore_from_path(path)
    assert_equal_outputs(other["p1"], module["p1"])
    assert_equal_outputs(RLModule.from_checkpoint(f"{path}/p0"), module["p0"])


def test_changes_turn_any_modules_into_any_others_and_keep_equal_ones():
    orders = [ids for number in (1, 2, 3) for ids in itertools.permutations("abcd", number)]
    for present, wanted in itertools.product(orders, orders):
        num_equal = next((n for n, pair in enumerate(zip(present, wanted)) if pair[0] != pair[1]), len(wanted))
        modules = list(present)
        for change in module_changes(present, wanted):
            assert change.module_id not in wanted[: min(num_equal, len(present))]
            if change.is_added:
                assert change.module_id not in modules
                modules.append(change.module_id)
            else:
                modules.remove(change.module_id)
            assert modules
        assert modules == list(wanted)
    assert not [*module_changes("abc", "abc")]


# Wrapping


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.value = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, obs):
        return self.policy(obs), self.value(obs)


def test_any_nn_module_is_wrapped_in_one_line(tmp_path):
    network = TwoHeads()
    module = wrap_module(network, BOX, spaces.Discrete(3), ("action_dist_inputs", "vf_preds"))
    obs = torch.randn(5, 4)
    out = module.forward_train({"obs": obs})
    assert torch.equal(out["action_dist_inputs"], network(obs)[0])
    assert torch.equal(out["vf_preds"], network(obs)[1][:, 0])
    assert torch.equal(module.compute_values({"obs": obs}), out["vf_preds"])
    assert {id(p) for p in module.parameters()} == {id(p) for p in network.parameters()}

    path = module.save_to_path(tmp_path / "m")
    other = wrap_module(TwoHeads(), BOX, spaces.Discrete(3), ("action_dist_inputs", "vf_preds"))
    other.restore_from_path(path)
    assert_equal_outputs(other, module)
    with pytest.raises(ValueError, match=r"wrap_module.*restore_from_path"):
        RLModule.from_checkpoint(path)


def test_wrapping_a_single_tensor_and_a_dict():
    network = nn.Linear(4, 3)
    module = wrap_module(network, BOX, spaces.Discrete(3))
    obs = torch.randn(5, 4)
    assert torch.equal(module.forward_inference({"obs": obs})["action_dist_inputs"], network(obs))
    with pytest.raises(TypeError, match="no value function"):
        module.compute_values({"obs": obs})

    class Named(nn.Module):
        def forward(self, obs):
            return {"action_dist_inputs": obs[:, :3], "vf_preds": obs[:, 0], "more": obs}

    module = wrap_module(Named(), BOX, spaces.Discrete(3), ("action_dist_inputs", "vf_preds"))
    assert list(module.forward_train({"obs": obs})) == ["action_dist_inputs", "vf_preds"]


def test_a_spec_names_the_classes_in_a_model_config(tmp_path):
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    config = {"encoder": Doubled, "encoder_config": {"layer": torch.nn.Linear, "sizes": (2, 4)}}
    module = RLModuleSpec(DefaultActorCriticModule, space, spaces.Discrete(2), model_config=config).build()
    module.save_to_path(tmp_path / "module")
    loaded = RLModule.from_checkpoint(tmp_path / "module")
    assert loaded.model_config["encoder_config"] == config["encoder_config"]
    obs = {"obs": torch.rand(2, 3)}
    torch.testing.assert_close(loaded(obs), module(obs))


class Doubled(torch.nn.Module):
    def __init__(self, space, layer, sizes):
        super().__init__()
        self.layer = layer(3, sum(sizes))
        self.output_size = sum(sizes)

    def forward(self, obs):
        return 2.0 * self.layer(obs)
