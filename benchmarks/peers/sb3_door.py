"""Measure `lockstep_sb3`: which programs for Stable-Baselines3 run with only the import changed, and how fast.

    python benchmarks/peers/sb3_door.py examples DOCS --library lockstep     # the Python blocks of its documentation
    python benchmarks/peers/sb3_door.py zoo HYPERPARAMS --library lockstep   # the settings of RL Baselines3 Zoo
    python benchmarks/peers/sb3_door.py speed --python .bench/sb3/bin/python # both, one after the other, in CPU seconds

`DOCS` is `docs/guide` of a clone of DLR-RM/stable-baselines3, `HYPERPARAMS` the folder `hyperparams` of a clone of
DLR-RM/rl-baselines3-zoo. With `--library sb3` the same is done by Stable-Baselines3 itself, in its own environment
(`python benchmarks/peers/setup_peers.py sb3`, then what the examples import: sb3-contrib, box2d, mujoco, pandas, ...).
Programs are shortened in the same way for both: few steps, no window. Each runs in a forked process.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGES = ["examples", "quickstart", "callbacks", "vec_envs", "custom_policy", "custom_env", "tensorboard", "save_format"]
STEPS, LOOPS, EVERY = 300, 20, 100
FREQUENCIES = ("eval_freq", "check_freq", "save_freq", "render_freq")
ALGORITHMS = ("ppo", "a2c", "dqn", "sac", "td3", "tqc")
FAMILIES = {
    "classic control": ("CartPole", "MountainCar", "Acrobot", "Pendulum-"),
    "Box2D": ("LunarLander", "BipedalWalker", "CarRacing"),
    "MuJoCo": (
        *("HalfCheetah-v", "Ant-v", "Hopper-v", "Walker2d-v", "Humanoid-v", "Swimmer-v", "HumanoidStandup-v"),
        *("InvertedDoublePendulum-v", "InvertedPendulum-v", "Reacher-v"),
    ),
}


# -- programs ---


class Shortened(ast.NodeTransformer):
    """Fewer steps, loops and members of populations; evaluations that come soon; nothing that needs a screen."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "learn":
            node.args[:1] = [at_most(each, STEPS) for each in node.args[:1]]
        if name == "range" and len(node.args) == 1:
            node.args[0] = at_most(node.args[0], LOOPS)
        for keyword in node.keywords:
            if keyword.arg in FREQUENCIES:
                keyword.value = at_most(keyword.value, EVERY)
            if name == "learn" and keyword.arg == "total_timesteps":
                keyword.value = at_most(keyword.value, STEPS)
            if keyword.arg == "render_mode":
                keyword.value = ast.Constant("rgb_array")
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        shown = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        return ast.Pass() if shown and node.value.func.attr in ("render", "show") else node  # type: ignore[attr-defined]

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        loop = f"for _ in range({LOOPS}): pass"
        found: Any = ast.parse(loop).body[0]
        found.body = node.body
        return found

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "pop_size":
            node.value = ast.Constant(10)
        return node


def at_most(value: ast.expr, limit: int) -> ast.expr:
    """Return the expression `min(value, limit)`."""
    return ast.Call(ast.Name("min", ast.Load()), [value, ast.Constant(limit)], [])


def with_imports(text: str, library: str) -> str:
    """Return a program with only its imports changed."""
    if library == "sb3":
        return text
    return re.sub(r"^(\s*(?:from|import) )(stable_baselines3|sb3_contrib)\b", r"\1lockstep_sb3", text, flags=re.M)


def in_fork(run: Callable[[], Any], seconds: int) -> str:
    """Run a function in a forked process, in a folder of its own; return "" or the last line of what it raised."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        found = ""
        try:
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"after {seconds} s")))
            signal.alarm(seconds)
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, 1)
                os.dup2(nothing, 2)
                run()
                os.chdir("/")
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = re.sub(r"/[\w./-]*/(lockstep/)", r"\1", " ".join(str(error).split()))[:300]
            found = f"{type(error).__name__}: {said} [{Path(last.filename).name}:{last.lineno}]"
        os.write(write, found[:1000].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    return found if status == 0 or found else f"ended with status {status}"


def examples(docs: Path, library: str, only: str) -> dict[str, str]:
    """Run the blocks of the pages; return what each raised, "" where it ran."""
    found = {}
    for page in PAGES:
        text = (docs / f"{page}.md").read_text()
        for number, block in enumerate(re.findall(r"^[ ]*```python\n(.*?)^[ ]*```", text, re.M | re.S), 1):
            name = f"{page} {number}"
            if only and only not in name:
                continue
            found[name] = in_fork(lambda block=block: program(block, library), 240)
            print(f"{name:<20} {found[name] or 'runs'}", flush=True)
    return found


def program(block: str, library: str) -> None:
    """Run one block, shortened."""
    lines = block.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    tree = ast.parse(with_imports("\n".join(line[margin:] for line in lines), library))
    tree = ast.fix_missing_locations(Shortened().visit(tree))
    exec(compile(tree, "block", "exec"), {"__name__": "__main__"})


# -- the Zoo's settings ---


def zoo(folder: Path, library: str, only: str) -> dict[str, str]:
    """Train with each setting for a few steps; return what each raised, "" where it ran."""
    import yaml

    found = {}
    for algorithm in ALGORITHMS:
        for env_id, settings in yaml.safe_load((folder / f"{algorithm}.yml").read_text()).items():
            family = next((name for name, ids in FAMILIES.items() if env_id.startswith(ids)), None)
            name = f"{algorithm} {env_id}"
            if family is None or "BulletEnv" in env_id or only not in name:
                continue
            found[name] = in_fork(lambda a=algorithm, e=env_id, s=settings: trained(a, e, dict(s), library), 240)
            print(f"{name:<40} {found[name] or 'runs'}", flush=True)
    return found


def trained(algorithm: str, env_id: str, settings: dict[str, Any], library: str) -> None:
    """Do what the Zoo's `train.py` does with a setting. MuJoCo's old versions are gone from gymnasium: v5 is used."""
    import importlib

    import gymnasium as gym
    import numpy as np
    from torch import nn

    root = "stable_baselines3" if library == "sb3" else "lockstep_sb3"
    contrib = "sb3_contrib" if library == "sb3" and algorithm == "tqc" else root
    model_class = getattr(importlib.import_module(contrib), algorithm.upper())
    common = f"{root}.common."
    vectors = importlib.import_module(f"{common}vec_env")
    noises, buffers = importlib.import_module(f"{common}noise"), importlib.import_module(root)
    if re.search(r"-v[24]$", env_id) and env_id.startswith(FAMILIES["MuJoCo"]):
        env_id = re.sub(r"-v[24]$", "-v5", env_id)
    number, _ = settings.pop("n_envs", 1), settings.pop("n_timesteps", 0)
    normalize, frames = settings.pop("normalize", False), settings.pop("frame_stack", None)
    wrappers = settings.pop("env_wrapper", [])
    kind, deviation = settings.pop("noise_type", None), settings.pop("noise_std", None)
    for name in ("policy_kwargs", "replay_buffer_kwargs"):
        if isinstance(settings.get(name), str):
            settings[name] = eval(settings[name], {"dict": dict, "nn": nn})
    if "replay_buffer_class" in settings:
        settings["replay_buffer_class"] = getattr(buffers, settings["replay_buffer_class"])
    for name in ("learning_rate", "clip_range"):
        if isinstance(settings.get(name), str) and settings[name].startswith("lin_"):
            first = float(settings[name][4:])
            settings[name] = lambda progress_remaining, first=first: progress_remaining * first

    def wrapped(env: Any) -> Any:
        for entry in wrappers:
            path, options = next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})
            if path == "rl_zoo3.wrappers.FrameSkip":
                env = Skipping(env, options["skip"])
            elif path == "rl_zoo3.wrappers.YAMLCompatResizeObservation":
                env = gym.wrappers.ResizeObservation(env, tuple(options["shape"]))
            else:
                module, _, attribute = path.rpartition(".")
                env = getattr(importlib.import_module(module), attribute)(env, **options)
        return env

    make_vec_env = importlib.import_module(f"{common}env_util").make_vec_env
    venv = make_vec_env(env_id, n_envs=number, seed=0, wrapper_class=wrapped if wrappers else None)
    if normalize:
        options = eval(normalize) if isinstance(normalize, str) else {}
        venv = vectors.VecNormalize(venv, gamma=settings.get("gamma", 0.99), **options)
    if frames:
        venv = vectors.VecFrameStack(venv, frames)
    if kind is not None:
        size = venv.action_space.shape[0]
        noise = noises.NormalActionNoise if kind == "normal" else noises.OrnsteinUhlenbeckActionNoise
        settings["action_noise"] = noise(mean=np.zeros(size), sigma=deviation * np.ones(size))
    for name, most in (("learning_starts", 50), ("n_steps", 32), ("train_freq", 8), ("gradient_steps", 8)):
        if isinstance(settings.get(name), int):
            settings[name] = min(settings[name], most)
    settings["n_epochs"] = min(settings.get("n_epochs", 2), 2)
    if algorithm != "ppo":
        del settings["n_epochs"]
    model = model_class(env=venv, seed=0, device="cpu", **settings)
    model.learn(max(STEPS // 2, number * 32))
    model.predict(venv.reset(), deterministic=True)


class Skipping:
    """Stands in for the Zoo's `FrameSkip` (made when gymnasium is there)."""

    def __new__(cls, env: Any, skip: int) -> Any:
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


# -- speed ---

RUNS = {
    "PPO": ("CartPole-v1", 8_192),
    "A2C": ("CartPole-v1", 5_000),
    "DQN": ("CartPole-v1", 6_000),
    "SAC": ("Pendulum-v1", 500),
    "TD3": ("Pendulum-v1", 500),
    "TQC": ("Pendulum-v1", 300),
}
"""algorithm -> environment and steps, with the defaults of Stable-Baselines3; the steps after a first `learn` of 200"""
PROGRAM = """
import sys, time
name, env, steps, library = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
import importlib, torch
torch.set_num_threads(1)
root = "stable_baselines3" if library == "sb3" else "lockstep_sb3"
root = "sb3_contrib" if library == "sb3" and name == "TQC" else root
model = getattr(importlib.import_module(root), name)("MlpPolicy", env, seed=int(sys.argv[5]), device="cpu")
model.learn(200)
cpu, wall = time.process_time(), time.perf_counter()
model.learn(steps)
print(time.process_time() - cpu, time.perf_counter() - wall, model.num_timesteps)
"""


def speed(python: str, repeats: int, names: list[str]) -> dict[str, Any]:
    """Train with both libraries, one after the other, and compare the medians of their CPU seconds."""
    found: dict[str, Any] = {}
    for name in names:
        env, steps = RUNS[name]
        seconds: dict[str, list[list[float]]] = {"sb3": [], "lockstep": []}
        for seed in range(repeats):
            order = [("sb3", python), ("lockstep", sys.executable)]
            for library, interpreter in order if seed % 2 == 0 else order[::-1]:
                command = [interpreter, "-c", PROGRAM, name, env, str(steps), library, str(seed)]
                out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1200).stdout
                seconds[library].append([float(part) for part in out.split()])
        cpu = {library: statistics.median(run[0] for run in runs) for library, runs in seconds.items()}
        found[name] = {"environment": env, "steps": steps, "runs": seconds, "cpu_ratio": cpu["sb3"] / cpu["lockstep"]}
        found[name] |= {"cpu_seconds": cpu}
        print(f"{name} {env} {steps} steps, CPU seconds {cpu}: {found[name]['cpu_ratio']:.2f} times", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["examples", "zoo", "speed"])
    parser.add_argument("folder", nargs="?", type=Path, help="of the clone; not for speed")
    parser.add_argument("--library", choices=["lockstep", "sb3"], default="lockstep")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--python", default=".bench/sb3/bin/python", help="of Stable-Baselines3, for speed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    began = time.time()
    if options.what == "speed":
        names = [name for name in RUNS if options.only in name]
        found: dict[str, Any] = speed(options.python, options.repeats, names)
    else:
        os.environ |= {"SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg", "MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1"}
        __import__("stable_baselines3" if options.library == "sb3" else "lockstep_sb3")  # once, before the forks
        run = examples if options.what == "examples" else zoo
        found = dict(run(options.folder.resolve(), options.library, options.only))
        print(f"{sum(not error for error in found.values())} of {len(found)} run")
    if options.output is not None:
        command = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
        about = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": [round(load) for load in os.getloadavg()],
        }
        report = {"command": command, "seconds": round(time.time() - began), **about, "found": found}
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
