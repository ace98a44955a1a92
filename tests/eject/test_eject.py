"""`lockstep eject`: files that train, without Lockstep, what the library trains."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from parts import fast_if

from lockstep import PPOConfig, SACConfig
from lockstep.cli import main
from lockstep.eject import EjectError, eject
from lockstep.eject.eject import file_text, source_of, with_settings
from lockstep.eject.eject import settings_of as settings_text
from lockstep.recipes.training import Settings, find_settings

PACKAGES = {"torch", "numpy", "gymnasium"}
OWN_SETTINGS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1", "sac": "Pendulum-v1"}
"""by algorithm: the environment whose recipe gives the settings of the file in the package"""
ALONE = """
import runpy, sys
import numpy as np

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lockstep", "numba"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocker())
agent = runpy.run_path(sys.argv[1], run_name="ejected")["train"]()
np.savez(sys.argv[2], **{name: each.detach().numpy() for name, each in agent.named_parameters()})
"""
SHORT_PPO = {"training.train_batch_size": 256, "training.minibatch_size": 64, "training.num_epochs": 3}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo CartPole": ("ppo", "CartPole-v1", {"reporting.total_steps": 8_000}),
    "ppo Acrobot": ("ppo", "Acrobot-v1", {**SHORT_PPO, "reporting.total_steps": 5_120}),
    "ppo Pendulum": ("ppo", "Pendulum-v1", {**SHORT_PPO, "reporting.total_steps": 5_120}),
    "ppo LunarLander": ("ppo", "LunarLander-v3", {**SHORT_PPO, "reporting.total_steps": 5_200}),
    "ppo other options": (
        "ppo",
        "CartPole-v1",
        {
            "reporting.total_steps": 4_000,
            "debugging.seed": 7,
            "training.train_batch_size": 200,
            "training.minibatch_size": 60,
            "training.clip_param": [[0, 0.2], [4_000, 0.1]],
            "training.entropy_coeff": [[0, 0.01], [4_000, 0.0]],
            "training.vf_clip_param": 0.5,
            "training.target_kl": 0.001,
            "training.normalize_advantages": "batch",
            "environment.normalize_rewards": True,
            "environment.clip_rewards": None,
            "environment.env_config": {"sutton_barto_reward": True},
            "rl_module.model_config": {"hiddens": (32,), "activation": "silu", "orthogonal_init": False},
        },
    ),
    "ppo whole batches": (
        "ppo",
        "CartPole-v1",
        {
            "reporting.total_steps": 4_000,
            "training.train_batch_size": 200,
            "training.minibatch_size": None,
            "training.grad_clip": None,
            "training.normalize_advantages": None,
        },
    ),
}


RUNS |= {
    "dqn CartPole": ("dqn", "CartPole-v1", {"reporting.total_steps": 1_600, "replay.learning_starts": 1_000}),
    "dqn Acrobot": ("dqn", "Acrobot-v1", {"reporting.total_steps": 3_000}),
    "dqn other options": (
        "dqn",
        "CartPole-v1",
        {
            "reporting.total_steps": 1_200,
            "training.lr": 1e-3,
            "training.epsilon": 0.1,
            "training.double_q": False,
            "training.target_update_interval": 5,
            "training.grad_clip": None,
            "replay.capacity": 300,
            "replay.learning_starts": 200,
            "replay.update_per_step": 0.3,
            "replay.n_step": 1,
            "rl_module.model_config": {"dueling": False, "orthogonal_init": True, "activation": "tanh"},
        },
    ),
    "sac Pendulum": ("sac", "Pendulum-v1", {"reporting.total_steps": 600}),
    "sac MountainCar": ("sac", "MountainCarContinuous-v0", {"reporting.total_steps": 1_200}),
    "sac other options": (  # where episodes terminate: Pendulum's do not, nor MountainCar's in so few steps
        "sac",
        "LunarLanderContinuous-v3",
        {
            "reporting.total_steps": 400,
            "env_runners.num_envs_per_env_runner": 2,
            "replay.learning_starts": 200,
            "training.actor_lr": [[0, 1e-3], [400, 1e-4]],  # the other rates are numbers
            "training.target_entropy": -0.5,
            "training.initial_alpha": 0.5,
            "training.target_update_interval": 3,
            "replay.capacity": 300,
            "replay.n_step": 3,
            "rl_module.model_config": {"critic_hiddens": (32,), "num_critics": 3, "orthogonal_init": True},
        },
    ),
}
QUICK = ("ppo other options", "dqn other options", "sac other options")
FAST = ("ppo other options", "sac other options")
"""What the fast suite trains, and DQN in float64, so that each file runs once. `make test-long` runs the others."""


FEW = ("ppo Pendulum", "dqn CartPole", "sac Pendulum")


def settings_of(name: str, **options: Any) -> Settings:
    algorithm, env, own = RUNS[name]
    return find_settings(algorithm, env, options={**own, **options})


def trained_alone(settings: Settings, folder: Path) -> dict[str, np.ndarray]:
    """Return the parameters that the ejected file makes, in a process that cannot import Lockstep."""
    path = eject(settings.config, folder / "agent.py", sources=settings.sources)
    (folder / "alone.py").write_text(ALONE)
    command = [sys.executable, "-I", str(folder / "alone.py"), str(path), str(folder / "found.npz")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    return dict(np.load(folder / "found.npz"))


def trained_here(settings: Settings, *, plain: bool) -> dict[str, np.ndarray]:
    """Return the parameters that the library makes; `plain`: by torch's own operations, one after another."""
    config = settings.config.copy().evaluation(evaluation_interval=0).framework(fused_losses=not plain)
    trainer = config.build_trainer()
    part, learner = trainer.policy.acting["default_policy"], trainer.policy.learner_group.learner
    if plain:
        targets = [each.module for each in learner.registered.values() if hasattr(each, "module")]
        for network in (part.module, *targets):
            for layer in network.modules():  # who is watched is called as it is, and acts with torch
                layer.register_forward_hook(lambda *_: None)
        part.set_network(part.module, part.connectors)
    trainer.run()
    return {name: each.detach().numpy() for name, each in part.module.named_parameters()}


def check_equal(alone: dict[str, np.ndarray], here: dict[str, np.ndarray], tolerance: float) -> None:
    assert [each.shape for each in alone.values()] == [each.shape for each in here.values()]
    for (name, found), expected in zip(alone.items(), here.values()):
        assert np.abs(found - expected).max() <= tolerance, name


CASES = [
    *(pytest.param(name, "float32", marks=() if name in FAST else pytest.mark.long) for name in RUNS),
    *(
        pytest.param(name, "float64", marks=pytest.mark.long if name in FEW else pytest.mark.exhaustive)
        for name in RUNS
    ),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_file_alone_makes_the_bits_of_the_librarys_plain_operations(name, dtype, tmp_path):
    settings = settings_of(name, **{"framework.dtype": dtype})
    check_equal(trained_alone(settings, tmp_path), trained_here(settings, plain=True), 0.0)


@pytest.mark.parametrize("name", fast_if("dqn CartPole".__eq__, ["ppo CartPole", *FEW]))
def test_in_float64_it_is_within_1e_12_of_the_librarys_fast_kernels(name, tmp_path):
    """Rounding grows with each gradient step, so there are few of them."""
    epochs = {"training.num_epochs": 2} if name.startswith("ppo") else {}
    settings = settings_of(name, **{"framework.dtype": "float64", **epochs})
    check_equal(trained_alone(settings, tmp_path), trained_here(settings, plain=False), 1e-12)


@pytest.mark.parametrize("name", RUNS)
def test_the_file_is_clean_and_imports_three_packages(name, tmp_path):
    settings = settings_of(name)
    text = file_text(settings.config, settings.sources)
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {each.partition(".")[0] for each in imported} <= PACKAGES | sys.stdlib_module_names
    path, config = tmp_path / "agent.py", str(Path(__file__).parents[2] / "pyproject.toml")
    path.write_text(text)
    for words in (["check"], ["format", "--diff"]):
        ended = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--config", config, str(path)], capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(("algorithm", "env"), OWN_SETTINGS.items())
def test_a_file_of_the_package_has_the_settings_of_a_recipe(algorithm, env):
    text = source_of(algorithm)
    assert text == with_settings(text, settings_text(find_settings(algorithm, env).config))


@pytest.mark.parametrize("algorithm", OWN_SETTINGS)
def test_an_ejected_file_differs_in_settings_and_docstring_only(algorithm):
    name = next(name for name in QUICK if name.startswith(algorithm))
    own = ast.parse(source_of(algorithm)).body
    copied = ast.parse(file_text(settings_of(name).config)).body
    names = set(settings_text(settings_of(name).config))
    assert len(own) == len(copied)
    for before, after in list(zip(own, copied))[1:]:
        target = before.target if isinstance(before, ast.AnnAssign) else getattr(before, "targets", [None])[0]
        if getattr(target, "id", None) in names:
            before.value = after.value
        assert ast.dump(before) == ast.dump(after)


def test_settings_that_the_block_does_not_have_are_refused():
    text = source_of("ppo")
    settings = settings_text(PPOConfig().environment("CartPole-v1"))
    without_seed = {name: value for name, value in settings.items() if name != "SEED"}
    for name, wrong in (("TAU", {**settings, "TAU": "1"}), ("SEED", without_seed)):
        with pytest.raises(KeyError, match=name):
            with_settings(text, wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"training.dual_clip": 3.0}, "training.dual_clip=3.0"),
        ({"training.kl_coeff": 0.1}, "training.kl_coeff=0.1"),
        ({"training.lr": lambda step: 1e-3}, "function"),
        ({"environment.frame_stack": 4}, "environment.frame_stack=4"),
        ({"environment.rescale_actions": True}, "environment.rescale_actions"),
        ({"rl_module.model_config": {"recurrent": "lstm"}}, "rl_module.model_config.recurrent='lstm'"),
        ({"rl_module.model_config": {"vf_share_layers": True}}, "vf_share_layers"),
        ({"rl_module.model_config": {"activation": "mish"}}, "activation='mish'"),
        ({"rl_module.model_config": {"value_hiddens": [8]}}, "value_hiddens"),
        ({"env_runners.exploration": "gsde"}, "env_runners.exploration='gsde'"),
        ({"env_runners.num_env_runners": 2}, "env_runners.num_env_runners=2"),
        ({"env_runners.vectorize_mode": "async"}, "vectorize_mode='async'"),
        ({"env_runners.batch_mode": "complete_episodes"}, "batch_mode"),
        ({"env_runners.env_to_module_connector": lambda *_: []}, "env_to_module_connector"),
        ({"framework.compile": True}, "framework.compile=True"),
        ({"framework.device": "cuda"}, "framework.device='cuda'"),
        ({"learners.num_learners": 2}, "learners.num_learners=2"),
        ({"multi_agent.policies": ["a", "b"]}, "multi_agent.policies"),
        ({"evaluation.stop_return": 475.0}, "evaluation.stop_return=475.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_that_the_file_cannot_say_is_refused_by_name(options, words, tmp_path):
    config = PPOConfig().environment("CartPole-v1")
    for path, value in options.items():
        config.set_path(path, value)
    with pytest.raises(EjectError, match="cannot be ejected") as refused:
        eject(config, tmp_path / "agent.py")
    assert words in str(refused.value)
    assert not list(tmp_path.iterdir())


REFUSED = pytest.mark.parametrize(
    ("algorithm", "env", "words"),
    [
        ("td3", "Pendulum-v1", "td3 cannot be ejected; ppo, dqn, sac can"),
        ("sac", "CartPole-v1", "actions of Discrete(2)"),
        ("ppo", "FrozenLake-v1", "observations of Discrete(16)"),
        ("ppo", "lockstep/BitFlipping-v0", "another package"),
        ("ppo", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", "environment.env"),
    ],
)


def test_an_off_policy_option_that_the_file_cannot_say_is_refused_by_name(tmp_path):
    for algorithm, env, path, value in (
        ("dqn", "CartPole-v1", "replay.prioritized", True),
        ("dqn", "CartPole-v1", "environment.normalize_observations", True),
        ("dqn", "CartPole-v1", "env_runners.exploration", "noisy"),
        ("dqn", "CartPole-v1", "env_runners.rollout_fragment_length", 129),
        ("sac", "Pendulum-v1", "env_runners.exploration", "normal"),
        ("sac", "Pendulum-v1", "training.alpha", 0.0),
    ):
        config = find_settings(algorithm, env, options={path: value}).config
        with pytest.raises(EjectError, match=path.rpartition(".")[2]):
            eject(config, tmp_path / "agent.py")
    assert not list(tmp_path.iterdir())


def test_sac_needs_bounds_of_actions(monkeypatch):
    config = SACConfig().environment("Pendulum-v1")
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    monkeypatch.setattr(type(config), "find_spaces", lambda self: (space, space))
    with pytest.raises(EjectError, match="bounds must be finite"):
        file_text(config)


@REFUSED
def test_other_algorithms_environments_and_spaces_are_refused_by_name(algorithm, env, words, tmp_path, capsys):
    assert main(["eject", algorithm, env, "-o", str(tmp_path / "agent.py")]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_no_environment_that_can_be_ejected_has_entries_for_groups():
    """Ejected files need no observation groups as long as all of gymnasium's environments have observations without
    entries."""
    kinds = {}
    for env_id, spec in gym.registry.items():
        origin = str(spec.entry_point)
        needs_jax = origin.startswith(("gymnasium.envs.phys2d", "gymnasium.envs.tabular"))
        needs_old_mujoco = origin.startswith("gymnasium.envs.mujoco") and not env_id.endswith("-v5")
        if origin.startswith("gymnasium.") and not needs_jax and not needs_old_mujoco:
            env = gym.make(env_id)
            kinds[env_id] = type(env.observation_space)
            env.close()
    assert len(kinds) > 20
    assert spaces.Dict not in kinds.values()


def test_the_command_writes_what_runs_and_never_over_a_file(tmp_path, capsys):
    path = tmp_path / "my_ppo.py"
    words = ["eject", "ppo", "CartPole-v1", "-o", str(path), "--total-steps", "600", "--seed", "3", "--no-recipe"]
    words += ["--num-envs", "4", "--set", "training.train_batch_size=200", "--set", "evaluation.evaluation_duration=2"]
    assert main(words) == 0
    assert "my_ppo.py" in capsys.readouterr().out
    text = path.read_text()
    for line in ("SEED = 3", "NUM_ENVS = 4", "NUM_STEPS = 50", "EVALUATION_EPISODES = 2", "the defaults of ppo"):
        assert line in text
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("evaluation: return ")
    assert main(words) == 2
    assert path.read_text() == text


HOSTILE = (
    'x"; open("marker", "w"); "',
    "x'; open('marker', 'w'); '",
    "both ' and \" \\ and\nopen('marker', 'w')\n",
    '\\"; open("marker", "w") #',
    '\u2028"""\nopen("marker", "w")',
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_of_a_file_stays_a_literal(text):
    options = {"sutton_barto_reward": [text, {text: (text, 1)}, True, None, -1, 2.5, 123_456]}
    config = PPOConfig().environment("CartPole-v1", env_config=options)
    assigned = [node for node in ast.parse(file_text(config)).body if isinstance(node, ast.AnnAssign)]
    found = {ast.unparse(node.target): node.value for node in assigned}
    assert ast.literal_eval(found["ENV_CONFIG"]) == options


@pytest.mark.parametrize("text", HOSTILE)
def test_the_name_of_a_source_does_not_end_the_docstring(text):
    config = settings_of("ppo CartPole").config
    plain, hostile = (ast.parse(file_text(config, sources=[words])).body for words in ("a file", text))
    assert list(map(ast.dump, hostile[1:])) == list(map(ast.dump, plain[1:]))
    assert isinstance(hostile[0], ast.Expr)
    assert isinstance(hostile[0].value, ast.Constant)


@pytest.mark.parametrize("value", [float("inf"), Path("x"), {1, 2}, np.zeros(2), b"x"], ids=repr)
def test_a_value_without_a_literal_is_refused(value):
    config = PPOConfig().environment("CartPole-v1", env_config={"sutton_barto_reward": value})
    with pytest.raises(EjectError, match="cannot be ejected"):
        file_text(config)


@pytest.mark.parametrize("path", ["framework.dtype", "framework.num_threads", "rl_module.model_config.activation"])
def test_an_option_that_is_written_as_code_takes_known_words_only(path, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"algorithm": "ppo", "environment": {"env": "CartPole-v1"}}))
    settings = json.loads((tmp_path / "run.json").read_text())
    section, _, option = path.partition(".")
    *between, option = option.split(".")
    place = settings.setdefault(section, {})
    for name in between:
        place = place.setdefault(name, {})
    place[option] = "float32; open('marker', 'w')"
    (tmp_path / "run.json").write_text(json.dumps(settings))
    words = ["eject", "ppo", "CartPole-v1", "--config", str(tmp_path / "run.json"), "-o", str(tmp_path / "agent.py")]
    assert main(words) == 2
    assert not (tmp_path / "agent.py").exists()
