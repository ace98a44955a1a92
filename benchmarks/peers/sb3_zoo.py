"""Train with the settings of RL Baselines3 Zoo for a few steps, as its `train.py` does."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sb3_programs import STEPS

Settings = dict[str, Any]

ALGORITHMS = ("ppo", "a2c", "dqn", "sac", "td3", "tqc")
FAMILIES = {
    "classic control": ("CartPole", "MountainCar", "Acrobot", "Pendulum-"),
    "Box2D": ("LunarLander", "BipedalWalker", "CarRacing"),
    "MuJoCo": (
        *("HalfCheetah-v", "Ant-v", "Hopper-v", "Walker2d-v", "Humanoid-v", "Swimmer-v", "HumanoidStandup-v"),
        *("InvertedDoublePendulum-v", "InvertedPendulum-v", "Reacher-v"),
    ),
}
SHORT = {"learning_starts": 50, "n_steps": 32, "train_freq": 8, "gradient_steps": 8}
"""Most that these options may be, so that a few steps reach an update."""
EPOCHS = 2
"""Most epochs of PPO."""


def find_settings(folder: Path) -> dict[str, tuple[str, str, Settings]]:
    """Return the settings in the Zoo's folder `hyperparams`: name -> algorithm, environment, options."""
    import yaml

    prefixes = tuple(itertools.chain.from_iterable(FAMILIES.values()))
    found = {}
    for algorithm in ALGORITHMS:
        text = (folder / f"{algorithm}.yml").read_text(encoding="utf-8")
        for env_id, settings in yaml.safe_load(text).items():
            if env_id.startswith(prefixes) and "BulletEnv" not in env_id:
                found[f"{algorithm} {env_id}"] = (algorithm, env_id, settings)
    return found


def train(algorithm: str, env_id: str, settings: Settings, library: str) -> None:
    """Train with a setting of the Zoo for a few steps, and predict once.

    Old versions of MuJoCo's environments are gone from gymnasium: v5 is used instead.
    """
    import numpy as np

    if env_id.startswith(FAMILIES["MuJoCo"]):
        env_id = re.sub(r"-v[24]$", "-v5", env_id)
    root = "stable_baselines3" if library == "sb3" else "lockstep_sb3"
    contrib = "sb3_contrib" if library == "sb3" and algorithm == "tqc" else root
    model_class = getattr(importlib.import_module(contrib), algorithm.upper())
    noises = importlib.import_module(f"{root}.common.noise")

    settings = dict(settings)
    num_envs = settings.pop("n_envs", 1)
    settings.pop("n_timesteps", None)
    venv = make_venv(env_id, num_envs, settings, root)
    noise_type = settings.pop("noise_type", None)
    noise_std = settings.pop("noise_std", None)
    if noise_type is not None:
        size = venv.action_space.shape[0]
        noise_class = noises.NormalActionNoise if noise_type == "normal" else noises.OrnsteinUhlenbeckActionNoise
        settings["action_noise"] = noise_class(mean=np.zeros(size), sigma=noise_std * np.ones(size))
    evaluate_texts(settings, root)
    shorten(settings, algorithm)

    model = model_class(env=venv, seed=0, device="cpu", **settings)
    model.learn(max(STEPS // 2, num_envs * SHORT["n_steps"]))
    model.predict(venv.reset(), deterministic=True)


def make_venv(env_id: str, num_envs: int, settings: Settings, root: str) -> Any:
    """Return the setting's vector of environments; takes the options for it out of the settings."""
    vectors = importlib.import_module(f"{root}.common.vec_env")
    make_vec_env = importlib.import_module(f"{root}.common.env_util").make_vec_env
    wrappers = settings.pop("env_wrapper", [])
    normalize = settings.pop("normalize", False)
    frames = settings.pop("frame_stack", None)

    wrapper_class = wrapper_of(wrappers) if wrappers else None
    venv = make_vec_env(env_id, n_envs=num_envs, seed=0, wrapper_class=wrapper_class)
    if normalize:
        options = eval(normalize) if isinstance(normalize, str) else {}
        venv = vectors.VecNormalize(venv, gamma=settings.get("gamma", 0.99), **options)
    if frames:
        venv = vectors.VecFrameStack(venv, frames)
    return venv


def wrapper_of(entries: list[Any]) -> Callable[[Any], Any]:
    """Return a function that applies the wrappers of a setting. The Zoo's own two are replaced by equal ones."""
    import gymnasium as gym

    def wrapped(env: Any) -> Any:
        for entry in entries:
            path, options = next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})
            if path == "rl_zoo3.wrappers.FrameSkip":
                env = skip_frames(env, options["skip"])
            elif path == "rl_zoo3.wrappers.YAMLCompatResizeObservation":
                env = gym.wrappers.ResizeObservation(env, tuple(options["shape"]))
            else:
                module, _, attribute = path.rpartition(".")
                env = getattr(importlib.import_module(module), attribute)(env, **options)
        return env

    return wrapped


def skip_frames(env: Any, skip: int) -> Any:
    """Return the environment with each action repeated, as by the Zoo's `FrameSkip`."""
    import gymnasium as gym

    class FrameSkip(gym.Wrapper):
        def step(self, action: Any) -> Any:
            total = 0.0
            for _ in range(skip):
                obs, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            return obs, total, terminated, truncated, info

    return FrameSkip(env)


def evaluate_texts(settings: Settings, root: str) -> None:
    """Replace options that the Zoo writes as texts: Python expressions, names of classes, and schedules."""
    from torch import nn

    buffers = importlib.import_module(root)
    for name in ("policy_kwargs", "replay_buffer_kwargs"):
        if isinstance(settings.get(name), str):
            settings[name] = eval(settings[name], {"dict": dict, "nn": nn})
    if "replay_buffer_class" in settings:
        settings["replay_buffer_class"] = getattr(buffers, settings["replay_buffer_class"])
    for name in ("learning_rate", "clip_range"):
        text = settings.get(name)
        if isinstance(text, str) and text.startswith("lin_"):
            settings[name] = linear_schedule(float(text.removeprefix("lin_")))


def linear_schedule(initial: float) -> Callable[[float], float]:
    """Return a schedule that falls from its initial value to 0."""
    return lambda progress_remaining: progress_remaining * initial


def shorten(settings: Settings, algorithm: str) -> None:
    """Lower the options that would keep a few steps from reaching an update."""
    for name, most in SHORT.items():
        if isinstance(settings.get(name), int):
            settings[name] = min(settings[name], most)
    if algorithm == "ppo":
        settings["n_epochs"] = min(settings.get("n_epochs", EPOCHS), EPOCHS)
