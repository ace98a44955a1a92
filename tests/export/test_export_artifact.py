"""`policy.export`: the files, their proof, and what acts with them."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import runpy
import shutil
import warnings
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_cases import where
from exported_policies import ACTIONS, OBSERVATIONS, as_plain, make_policy, policy_of
from gymnasium import spaces
from huggingface_hub import ModelCard
from parts import one_in

from lockstep import Policy, PPOConfig, get_config
from lockstep.connectors import Connector, FrameStack, Grayscale, ObsPipeline, Resize
from lockstep.data.trees import leaves, map_tree, rows_of
from lockstep.export import ExportError, Origin, export_policies, formats, load_export, parity
from lockstep.export.graph import ports_of
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.policy.acting import ActingPolicy
from lockstep.runs.run import prepare_run
from lockstep.state.trust import UntrustedError

BOX, CHOICES = OBSERVATIONS["Box"], ACTIONS["Discrete"]
WITH_FRACTIONS = where(lambda case: "num_cosines" in case.small)[0]
"""an algorithm whose network draws fractions of the distribution of returns"""
REPRESENTATIVE = [
    ("ppo", "Dict", "Dict", "mask", "no memory", "normalised", "actions"),
    ("ppo", "Box", "Box", "no mask", "lstm", "normalised", "frames"),
    (WITH_FRACTIONS, "image", "Discrete", "no mask", "no memory", "as it is", "none"),
    ("sac", "Box", "Box", "no mask", "gru", "as it is", "rewards"),
]
"""what the fast suite exports: observations, actions, memories and connectors of each kind"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A plain policy's artefact, to be copied where it is changed."""
    return make_policy("ppo", BOX, CHOICES).export(tmp_path_factory.mktemp("plain") / "exported")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An artefact for a Dict of observations with a mask."""
    policy = make_policy("ppo", OBSERVATIONS["Dict"], CHOICES, mask=True)
    return policy.export(tmp_path_factory.mktemp("masked") / "exported")


def card_of(folder: Any) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


@pytest.mark.parametrize("cell", one_in(4, [(cell,) for cell in REPRESENTATIVE]), ids="-".join)
def test_the_artefact_acts_as_the_policy_and_so_does_act_py(cell, tmp_path):
    policy = policy_of(cell)
    folder = policy.export(tmp_path / "exported")
    found = card_of(folder)["parity"]
    assert found["observations"] >= 10_000
    assert found["largest_difference"] <= 1e-6
    files = {"policy.onnx", "card.json", "README.md", "act.py"}
    assert {path.name for path in folder.iterdir()} - {"checkpoint"} == files
    actor = runpy.run_path(str(folder / "act.py"))["Actor"](folder)
    space, rng = policy.observation_space, np.random.default_rng(0)
    space.seed(5)
    for _ in range(3):  # episodes
        policy.reset()
        actor.reset()
        state = None
        for step in range(5):
            obs, reward = as_plain(space.sample()), float(rng.normal()) if step else 0.0
            expected = policy.compute_single_action(obs, state, rewards=reward if step else None)
            if policy.is_stateful:
                expected, state = expected
            action = actor.act(obs, reward)
            assert policy.action_space.contains(action)
            for mine, theirs in zip(leaves(action), leaves(expected), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-6, rtol=0)
                assert type(mine) is type(theirs)


def test_act_py_has_40_lines_and_needs_numpy_and_onnxruntime_alone(plain):
    text = (plain / "act.py").read_text()
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    statements = re.findall(r"^(?:import|from) (\w+(?:, \w+)*)", text, re.MULTILINE)
    imported = {name for names in statements for name in names.split(", ")}
    assert imported == {"hashlib", "json", "pathlib", "numpy", "onnxruntime"}


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"place": None}, r"obs/place must be float64 \[2, 2\]"),
        ({"place": [[0.0, 1.0]]}, r"obs/place must be float64 \[2, 2\]"),
        ({"kind": [0]}, r"obs/kind/0 must be int64 \[2\]"),
        ({"action_mask": [1]}, r"obs/action_mask must be int8 \[4\]"),
        ({"action_mask": "none"}, r"obs/action_mask must be int8 \[4\]"),
        ({"place": [[0.0, 1.0], [np.nan, 0.0]]}, "obs/place must be float64 .* not .*nan"),
        ({"kind": ([3, 0], [0, 1, 1])}, r"obs/kind/0 must be .* \[0, 0\] to \[2, 3\]"),
        ({"kind": ([0, -1], [0, 1, 1])}, r"obs/kind/0 must be .* \[0, 0\] to \[2, 3\]"),
        ({"kind": ([0, 0.5], [0, 1, 1])}, "obs/kind/0 must be int64"),
        ({"kind": ([0, np.nan], [0, 1, 1])}, "obs/kind/0 must be int64"),
        ({"kind": ([0, 1], [0, 2, 1])}, "obs/kind/1 must be int8 .* 0 to 1"),
        ({"action_mask": [1, 300, 1, 1]}, "obs/action_mask must be int8"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_act_py_names_the_part_of_an_observation_that_does_not_fit(wrong, words, masked):
    actor, space = runpy.run_path(str(masked / "act.py"))["Actor"](masked), OBSERVATIONS["Dict"]
    whole = {**as_plain(space.sample()), "action_mask": np.int8([1, 0, 1, 1])}
    actor.act(whole)
    obs = {key: value for key, value in {**whole, **wrong}.items() if value is not None}
    with pytest.raises(ValueError, match=words):
        actor.act(obs)
    rows = map_tree(lambda leaf: np.asarray(leaf)[None], {**obs, "kind": tuple(map(np.asarray, obs["kind"]))})
    with pytest.raises(ValueError, match=words.partition(" ")[0]):
        load_export(masked).compute_actions(rows)


@pytest.mark.parametrize(
    "space, wrong",
    [
        (BOX, [0.0, np.nan, 0.0, 0.0]),
        (OBSERVATIONS["Discrete"], 1),
        (OBSERVATIONS["Discrete"], 9),
        (OBSERVATIONS["Discrete"], 2.5),
        (spaces.Box(0, 255, (2,), np.uint8), [0, 300]),
        (spaces.Box(0, 255, (2,), np.uint8), [0, -1]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_act_py_refuses_what_a_policy_refuses(space, wrong, tmp_path):
    text = resources.files("lockstep.export").joinpath("act.py.txt").read_text()
    (tmp_path / "act.py").write_text(text)
    part = runpy.run_path(str(tmp_path / "act.py"))["part"]
    (port,) = (json.loads(json.dumps(each.to_dict())) for each in ports_of("obs", space))
    assert part(space.sample(), port).dtype == space.dtype
    with pytest.raises(ValueError, match="obs must be"):
        part(wrong, port)


def test_the_card_says_what_it_is(tmp_path):
    config = PPOConfig().environment("CartPole-v1", normalize_observations=True)
    policy = config.build_policy()
    folder = policy.export(tmp_path / "exported", evaluation={"return_mean": 123.4, "return_std": 5.0})
    card, page = card_of(folder), (folder / "README.md").read_text()
    assert card["algorithm"] == "ppo"
    assert card["environment"] == "CartPole-v1"
    assert card["sha256"] == hashlib.sha256((folder / "policy.onnx").read_bytes()).hexdigest()
    assert card["parity"] == {"observations": 10_000, "source": "environment", "largest_difference": 0.0, "ties": 0}
    assert card["observation"] == [{"name": "obs", "path": [], "shape": [4], "dtype": "float32"}]
    assert card["outputs"] == ["action"]
    assert {"lockstep", "torch", "onnx", "onnxruntime"} <= set(card["versions"])
    front = ModelCard.load(folder / "README.md").data
    assert front.tags == ["reinforcement-learning", "ppo", "CartPole-v1"]
    assert front.eval_results[0].metric_value == "123.40 +/- 5.00"
    assert "| `obs` | [B, 4] | float32 |" in page
    assert "10,000 observations of the environment" in page


def test_names_and_shapes_are_those_of_the_spaces_and_the_batch_is_free(tmp_path):
    import onnx

    policy = make_policy("ppo", OBSERVATIONS["Dict"], ACTIONS["Tuple"], mask=True, model={"recurrent": "gru"})
    folder = policy.export(tmp_path / "exported")
    graph = onnx.load(folder / "policy.onnx").graph
    inputs = {each.name: each.type.tensor_type.shape.dim for each in graph.input}
    assert set(inputs) == {"obs/place", "obs/kind/0", "obs/kind/1", "obs/action_mask", "state_in_h"}
    assert {each.name for each in graph.output} == {"action/0", "action/1/pick", "state_out_h"}
    assert all(dims[0].dim_param == "batch" for dims in inputs.values())
    assert [dim.dim_value for dim in inputs["obs/place"][1:]] == [2, 2]
    trained = [each.name for each in graph.initializer if "value_" in each.name or "critic" in each.name]
    assert trained == [], "acting needs no value function"


@pytest.mark.long
def test_torch_writes_the_same_policy(tmp_path):
    policy = policy_of(REPRESENTATIVE[1])
    written = {name: load_export(policy.export(tmp_path / name, format=name)) for name in ("onnx", "torch")}
    assert not (tmp_path / "torch" / "act.py").exists()
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for _ in range(3):
        first, second = (each.compute_actions(obs) for each in written.values())
        np.testing.assert_allclose(first, second, atol=1e-6)
    assert isinstance(torch.export.load(tmp_path / "torch" / "policy.pt2"), torch.export.ExportedProgram)


@pytest.mark.long
def test_what_is_drawn_follows_the_policys_distribution(tmp_path):
    policy = make_policy("ppo", BOX, ACTIONS["Dict"])
    exported = load_export(policy.export(tmp_path / "exported", deterministic=False))
    assert exported.card["noise"] == [["standard_normal", 2], ["gumbel", 3]]
    obs = np.repeat(np.float32([[0.5, -1.0, 0.2, 1.5]]), 20_000, axis=0)
    drawn, expected = exported.compute_actions(obs), policy.compute_actions(obs, explore=True)
    for name in ("turn", "push"):
        np.testing.assert_allclose(drawn[name].mean(0), expected[name].mean(0), atol=0.05)
        np.testing.assert_allclose(drawn[name].std(0), expected[name].std(0), atol=0.05)
    assert len(np.unique(drawn["turn"])) > 1


def process_state() -> tuple[Any, ...]:
    """What an export must leave as it is in the process: threads, random numbers, warnings, loggers."""
    levels = {name: logging.getLogger(name).level for name in ("", "torch", "torch.onnx", "torch.fx")}
    generators = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
    return torch.get_num_threads(), generators, list(warnings.filters), levels, torch.is_grad_enabled()


def test_a_policy_is_exported_twice_into_one_folder_and_stays_as_it_is(tmp_path):
    policy = make_policy("ppo", BOX, CHOICES, frame_stack=2)
    before = {name: value.copy() for name, value in policy.module.get_state().items()}
    obs = as_plain(policy.observation_space.sample())
    action = policy.compute_single_action(obs)
    process = process_state()
    for _ in range(2):
        load_export(policy.export(tmp_path / "exported"))
    assert process_state() == process
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    assert all(np.array_equal(value, before[name]) for name, value in policy.module.get_state().items())
    policy.reset()
    assert str(policy.compute_single_action(obs)) == str(action)


@pytest.mark.long
def test_several_agents_have_a_folder_for_each_module(tmp_path):
    config = PPOConfig().multi_agent(policies={"one", "two"}, policy_mapping_fn=lambda agent, episode: agent)
    observation_space = {"one": BOX, "two": OBSERVATIONS["Discrete"]}
    action_space = {"one": CHOICES, "two": ACTIONS["Box"]}
    config.rl_module(model_config={"hiddens": (8,)})
    from lockstep import Policy

    group = config.build_learner_group(spaces=(observation_space, action_space))
    policy = Policy(config, group, observation_space=observation_space, action_space=action_space)
    folder = policy.export(tmp_path / "exported")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", "one", "two"]
    obs = {"one": np.float32([1.0, -1.0, 0.5, 0.0]), "two": 4}
    actions = policy.compute_actions(obs)
    for name, value in obs.items():
        alone = rows_of(load_export(folder / name).compute_actions(np.asarray(value)[None]), 0)
        np.testing.assert_allclose(alone, actions[name], atol=1e-6)


# -- refusals ---


def test_a_new_run_begins_with_the_weights_of_an_export(tmp_path):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy = config.build_policy()
    folder = policy.export(tmp_path / "exported")
    run = prepare_run(config.copy().debugging(seed=7), tmp_path / "runs", init_from=folder)
    run.trainer.close()
    before, now = policy.module.state_dict(), run.trainer.policy.module.state_dict()
    assert before.keys() == now.keys()
    assert all(torch.equal(value, now[name]) for name, value in before.items())
    assert run.folder.info["init_from"] == str(folder / "checkpoint")


def test_a_damaged_artefact_is_refused_by_name(plain, tmp_path):
    folder = Path(shutil.copytree(plain, tmp_path / "exported"))
    file, text = folder / "policy.onnx", (folder / "act.py").read_text()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ExportError, match=r"policy\.onnx is damaged: its SHA-256"):
        load_export(folder)
    with pytest.raises(ValueError, match=r"policy\.onnx is damaged"):
        runpy.run_path(str(folder / "act.py"))["Actor"](folder)
    assert "sha256" in text
    file.unlink()
    with pytest.raises(ExportError, match=r"policy\.onnx is missing"):
        load_export(folder)
    (folder / "card.json").write_text("{")
    with pytest.raises(ExportError, match=r"card\.json is damaged"):
        load_export(folder)
    with pytest.raises(ExportError, match="is no export"):
        load_export(tmp_path)


def test_a_mismatch_is_an_error_and_leaves_nothing(plain, tmp_path, monkeypatch):
    policy = make_policy("ppo", BOX, CHOICES)
    shutil.copytree(plain, tmp_path / "exported")
    before = (tmp_path / "exported" / "policy.onnx").read_bytes()
    written = formats.write

    def other(graph, path, file_format):
        for parameter in graph.module.parameters():
            parameter.mul_(1.01)
        written(graph, path, file_format)
        for parameter in graph.module.parameters():
            parameter.div_(1.01)

    monkeypatch.setattr("lockstep.export.artifact.write", other)
    with pytest.raises(ExportError, match=r"acts otherwise than the policy: .* instead of .* Nothing was written"):
        policy.export(tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    assert (tmp_path / "exported" / "policy.onnx").read_bytes() == before


class Reading(torch.nn.Module):
    """Reads the value of a tensor, so that only one way is traced."""

    output_size = 4

    def __init__(self, space: Any) -> None:
        super().__init__()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs if float(obs.sum()) > 0 else -obs


class Rare(Reading):
    """Computes an operation that ONNX does not have."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(obs)


def test_a_network_that_cannot_be_traced_says_which_and_what_to_do(tmp_path):
    policy = make_policy("ppo", BOX, CHOICES, model={"encoder": Reading})
    with pytest.raises(ExportError, match=r"^Reading cannot be exported: .*its forward is traced"):
        policy.export(tmp_path / "exported")
    policy = make_policy("ppo", BOX, CHOICES, model={"encoder": Rare})
    with pytest.raises(ExportError, match=r"\.\w*bessel_j0 has no ONNX form; .*format=\"torch\""):
        policy.export(tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []
    assert load_export(policy.export(tmp_path / "exported", format="torch")).card["format"] == "torch"


class Chosen(torch.nn.Module):
    """Takes no choice from outside of its space, 0 for example."""

    output_size = 6

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.start = int(space["kind"].start)

    def forward(self, obs: Any) -> torch.Tensor:
        return torch.nn.functional.one_hot(obs["kind"] - self.start, 6).float()


def test_a_network_is_traced_with_observations_of_its_space(tmp_path):
    space = spaces.Dict({"kind": spaces.Discrete(6, start=1), "place": BOX})
    policy = make_policy("ppo", space, CHOICES, model={"encoder": Chosen})
    assert card_of(policy.export(tmp_path / "exported"))["parity"]["observations"] >= 10_000


@pytest.mark.parametrize(
    "words, options",
    [
        ("'tflite' is not allowed", {"format": "tflite"}),
        ("name of a file; give a folder", {"path": "policy.onnx"}),
        ("exists and is no export", {"path": "taken"}),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(words, options, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    policy = make_policy("ppo", BOX, CHOICES)
    with pytest.raises(ValueError, match=words):
        policy.export(**{**options, "path": tmp_path / options.get("path", "exported")})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("algorithm", ["dqn", "td3"])
def test_an_algorithm_that_does_not_draw_is_refused_with_sample(algorithm, tmp_path):
    policy = make_policy(algorithm, BOX, ACTIONS["Discrete" if algorithm == "dqn" else "Box"])
    with pytest.raises(ValueError, match=f"{algorithm} explores by .*leave out --sample"):
        policy.export(tmp_path / "exported", deterministic=False)


def test_spaces_without_arrays_are_refused(tmp_path):
    with pytest.raises(ExportError, match=r"obs/note is Text.* has no array of fixed size"):
        list(ports_of("obs", spaces.Dict({"note": spaces.Text(5)})))


# -- the proof ---


def test_choices_equal_in_float32_are_counted_and_others_are_mismatches():
    policy = make_policy("ppo", BOX, spaces.Discrete(3))
    graph = formats_graph(policy)
    with torch.no_grad():
        graph.module.policy_head.weight.zero_()
        graph.module.policy_head.bias.copy_(torch.tensor([1.0, 1.0, 0.5]))
    inputs = {"obs": np.zeros((2, 4), np.float32)}
    proof, rows = parity.Proof(policy.acting["default_policy"], None, graph), np.array([True, False])
    proof.judge(inputs, np.array([0, 0]), np.array([1, 0]), rows)
    assert proof.parity.ties == 1
    with pytest.raises(ExportError, match="2 instead of 0"):
        proof.judge(inputs, np.array([0, 0]), np.array([2, 0]), rows)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_ties_of_a_network_with_memory_are_counted(memory):
    policy = make_policy("ppo", BOX, spaces.Discrete(3), model={"recurrent": memory, "recurrent_size": 8})
    graph = formats_graph(policy)
    with torch.no_grad():
        graph.module.policy_head.weight.zero_()
        graph.module.policy_head.bias.copy_(torch.tensor([1.0, 1.0, 0.5]))
    inputs = {port.name: port.rows(2) for port in graph.inputs}
    proof, rows = parity.Proof(policy.acting["default_policy"], None, graph), np.array([True, False])
    proof.judge(inputs, np.array([0, 0]), np.array([1, 0]), rows)
    assert proof.parity.ties == 1
    with pytest.raises(ExportError, match="2 instead of 0"):
        proof.judge(inputs, np.array([0, 0]), np.array([2, 0]), rows)


@pytest.mark.parametrize("algorithm", one_in(2, where(lambda case: "num_atoms" in case.small)))
def test_means_near_zero_of_a_wide_distribution_are_ties(algorithm, tmp_path):
    """The atoms reach from -100 to 100, the means are near 0: what rounds is the sum, not the mean."""
    config = get_config(algorithm).debugging(seed=0).training(v_min=-100, v_max=100)
    config.rl_module(model_config={"hiddens": (16,)})
    group = config.build_learner_group(spaces=(BOX, spaces.Discrete(18)))
    policy = Policy(config, group, observation_space=BOX, action_space=spaces.Discrete(18))
    found = card_of(policy.export(tmp_path / "exported"))["parity"]
    assert found["observations"] >= 10_000
    assert found["ties"] < 100


@pytest.mark.long
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_float64_memory_is_refused_for_onnx_and_exported_with_torch(memory, tmp_path):
    model = {"recurrent": memory, "recurrent_size": 8}
    policy = make_policy("ppo", BOX, CHOICES, model=model, dtype="float64")
    with pytest.raises(ExportError, match=r"onnxruntime cannot run policy\.onnx.*format=\"torch\""):
        policy.export(tmp_path / "exported")
    assert card_of(policy.export(tmp_path / "exported", format="torch"))["parity"]["observations"] >= 10_000


def formats_graph(policy: Any) -> Any:
    from lockstep.export.graph import ActingGraph

    part = policy.acting["default_policy"]
    return ActingGraph(part.module, part.connectors, part.observations, part.action_space)


def test_an_environment_that_cannot_be_made_is_replaced_by_random_data(tmp_path):
    def broken(**options: Any) -> gym.Env[Any, Any]:
        raise RuntimeError("no licence")

    policy = make_policy("ppo", BOX, CHOICES)
    policy.config.environment(broken)
    assert card_of(policy.export(tmp_path / "exported"))["parity"]["source"] == "random"


# -- connectors and networks of one's own ---


class Doubled(Connector):
    """Doubles observations, by what numpy and torch have in common."""

    def __call__(self, data: Any) -> Any:
        return data * 2


class InNumpy(Doubled):
    """Works on arrays alone."""

    def __call__(self, data: Any) -> Any:
        return np.tanh(np.asarray(data))


class Counted(Doubled):
    """Has a memory, and does not say how it is exported."""

    def reset(self, env_index: Any = None) -> None:
        return


class Turned(Connector):
    """Turns actions round, on arrays; in an artefact with torch."""

    def __call__(self, data: Any) -> Any:
        return np.negative(data)

    def export_call(self, data: Any, memory: Any) -> Any:
        return -data, {}


def test_connectors_of_ones_own_are_inside(tmp_path):
    policy = make_policy(
        "ppo",
        BOX,
        ACTIONS["Box"],
        env_to_module=lambda *spaces: Doubled(),
        module_to_env=lambda *spaces: Turned(),
        normalize_observations=True,
    )
    exported = load_export(policy.export(tmp_path / "exported"))
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(exported.compute_actions(obs), policy.compute_actions(obs), atol=1e-6)


@pytest.mark.parametrize(
    "connector, words",
    [
        (InNumpy, "InNumpy cannot be exported: .*give tensors for tensors.*override export_call"),
        (Counted, "Counted has a memory and does not say how it is exported; define export_memory"),
    ],
)
def test_a_connector_that_cannot_be_exported_is_named(connector, words, tmp_path):
    policy = make_policy("ppo", BOX, CHOICES, env_to_module=lambda *spaces: connector())
    with pytest.raises(ExportError, match=words):
        policy.export(tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: Grayscale(), (12, 10, 3)),
        (lambda: [Grayscale(), Resize(8, 9), FrameStack(2)], (3, 12, 10)),
        (lambda: Resize(9, 8), (12, 10, 3)),
    ],
)
def test_connectors_of_images_give_the_same_for_tensors(make, shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    pipeline = ObsPipeline(made if isinstance(made := make(), list) else [made], space)
    images = np.stack([space.sample() for _ in range(4)])
    expected, data = pipeline(images), torch.from_numpy(images)
    pipeline.reset()
    for connector in pipeline.connectors:
        memory = {
            name: torch.from_numpy(np.repeat(leaf[None], 4, 0)) for name, leaf in connector.export_memory().items()
        }
        data, _ = connector.export_call(data, memory)
    assert data.dtype == torch.uint8
    apart = np.abs(data.numpy().astype(int) - expected)  # sums in another order: a half is rounded up or down
    assert apart.max() <= 1
    assert apart.mean() < 0.05


class OwnMemory(RLModule):
    """Picks actions itself and counts down from 3, which is where its state begins."""

    def setup(self) -> None:
        self.layer = torch.nn.Linear(4, 4)

    def get_initial_state(self) -> dict[str, torch.Tensor]:
        return {"left": torch.full((1,), 3.0)}

    def _forward(self, batch: Any) -> dict[str, Any]:
        left = batch["state_in"]["left"]
        scores = self.layer(batch["obs"]) + left.unsqueeze(1) * torch.arange(4.0)
        return {"actions": scores.argmax(-1), "state_out": {"left": left - 1.0}}


def test_a_network_of_ones_own_that_picks_actions_and_begins_with_a_state(tmp_path):
    config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(OwnMemory))
    module, connectors = config.build_acting_parts((BOX, spaces.Discrete(4)), "default_policy")
    part = ActingPolicy(config, module, connectors, observation_space=BOX, action_space=spaces.Discrete(4))
    facts = {"algorithm": "ppo", "environment": "none", "steps": 0, "evaluation": None, "versions": {"lockstep": "0"}}
    folder = export_policies({"": part}, tmp_path / "exported", Origin(facts))
    card = card_of(folder)
    assert card["state"] == [{"name": "state_in_left", "shape": [1], "dtype": "float32", "initial": [3.0]}]
    actor = runpy.run_path(str(folder / "act.py"))["Actor"](folder)
    policy, obs, state, seen = part.with_new_history(), np.float32([0.1, -0.2, 0.3, 0.0]), None, set()
    for _ in range(6):
        expected, state = policy.compute_single_action(obs, state)
        assert actor.act(obs) == expected
        seen.add(expected)
    assert len(seen) > 1


# -- files from strangers ---


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A torch export, whose user has a key in a configuration folder of the test's."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        patch.delenv("LOCKSTEP_TRUST", raising=False)
        yield make_policy("ppo", BOX, CHOICES).export(tmp_path_factory.mktemp("torch") / "exported", format="torch")


def test_a_torch_export_of_the_same_user_needs_no_trust_and_no_pickle(evaluated):
    assert load_export(evaluated).compute_actions(np.zeros((2, 4), np.float32)).shape == (2,)
    with zipfile.ZipFile(evaluated / "policy.pt2") as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist() if "sample_inputs" in entry.filename}
    assert list(sizes.values()) == [0]


@pytest.mark.parametrize("stranger", ["another key", "no signature", "another file", "no home"])
def test_a_torch_export_of_a_stranger_needs_the_word(stranger, evaluated, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(evaluated, tmp_path / "exported"))
    card = card_of(folder)
    if stranger == "another key":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    elif stranger == "no signature":
        del card["signature"]
    elif stranger == "another file":
        with zipfile.ZipFile(folder / "policy.pt2", "a") as archive:
            archive.writestr("policy/extra/marker", "x")
        card["sha256"] = hashlib.sha256((folder / "policy.pt2").read_bytes()).hexdigest()
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UntrustedError, match=r"policy\.pt2 is a torch export.*trust=True.*LOCKSTEP_TRUST=1"):
        load_export(folder)
    obs = np.zeros((2, 4), np.float32)
    assert load_export(folder, trust=True).compute_actions(obs).shape == (2,)
    monkeypatch.setenv("LOCKSTEP_TRUST", "1")
    assert load_export(folder).compute_actions(obs).shape == (2,)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../policy.onnx"},
        {"file": "/etc/passwd"},
        {"file": "policy.pkl"},
        {"noise": [["standard_normal", 10**15]]},
        {"noise": [["bytes", 1]]},
        {"state": [{"name": "state_in_h", "shape": [10**5, 10**10], "dtype": "float32", "initial": 0}]},
        {"state": [{"name": "state_in_h", "shape": [2], "dtype": "object", "initial": 0}]},
        {"observation": [{"name": "obs", "path": [], "shape": ["x"], "dtype": "float32"}]},
        {"outputs": 3},
    ],
    ids=str,
)
def test_a_card_that_no_export_has_is_refused_before_memory_is_taken(change, plain, tmp_path):
    folder = Path(shutil.copytree(plain, tmp_path / "exported"))
    (folder / "policy.pkl").write_bytes((folder / "policy.onnx").read_bytes())
    card = card_of(folder) | change
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ExportError):
        load_export(folder)
