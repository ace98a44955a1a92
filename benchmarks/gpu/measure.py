"""What a CUDA device makes of Lockstep: steps per second, launches and waits of an iteration, beside its floors.

    python benchmarks/gpu/measure.py            # all, about 3 minutes; writes results/gpu_<part>.json
    python benchmarks/gpu/measure.py ppo        # one part

Every figure is of whole iterations of a trainer (collect, update, statistics, logging), the process's start and the
first iterations, in which graphs are captured, left out. `make gpu` runs the tests on the device first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lockstep import PPOConfig, SACConfig

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results"
PEERS = HERE / "peers"


def about() -> dict[str, Any]:
    """Return what the figures were measured on."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ppo_config(num_envs: int, hiddens: tuple[int, ...], device: str, **framework: Any) -> Any:
    """16 steps of each environment, 4 passes in 4 minibatches."""
    batch = 16 * num_envs
    config = PPOConfig().environment("tensor/CartPole-v1")
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=16)
    config.training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
    config.rl_module(model_config={"hiddens": hiddens})
    config.reporting(total_steps=10**12, steps_per_epoch=batch * 10**4).evaluation(evaluation_interval=0)
    return config.framework(device=device, **framework).debugging(seed=1)


def measure(trainer: Any, device: str, iterations: int) -> dict[str, Any]:
    """Return medians of seconds of an iteration and of its parts, and the kernels and waits of one."""
    started = time.perf_counter()
    for _ in range(4):
        trainer.training_step()
    wait(device)
    ready = time.perf_counter() - started
    whole = []
    for _ in range(iterations):
        begun = time.perf_counter()
        trainer.training_step()
        wait(device)
        whole.append(time.perf_counter() - begun)
    parts: dict[str, list[float]] = {"collect": [], "update": []}
    for _ in range(iterations):
        begun = time.perf_counter()
        with trainer.policy.within_training_step():
            stats = trainer.collector.collect(n_step=trainer.step_per_collect)
            wait(device)
            parts["collect"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            trainer.policy_update_fn(stats)
            wait(device)
            parts["update"].append(time.perf_counter() - begun)
        trainer.buffer.clear()
    found = {"seconds": statistics.median(whole), **{name: statistics.median(each) for name, each in parts.items()}}
    steps = trainer.buffer.num_steps * trainer.buffer.num_envs
    return {"steps_per_s": round(steps / found["seconds"]), "seconds_until_measured": round(ready, 2), **found}


def profile(trainer: Any) -> dict[str, Any]:
    """Return the launches and waits of the host in one iteration, and the device's busy share."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    wait("cuda")
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        begun = time.perf_counter()
        trainer.training_step()
        wait("cuda")
        seconds = time.perf_counter() - begun
    counts: dict[str, int] = {}
    busy, kernels = 0.0, 0
    for event in seen.events():
        name = event.name
        if (
            name.startswith(("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpy", "cuLaunchKernel"))
            or "Synchronize" in name
        ):
            counts[name] = counts.get(name, 0) + 1
        if str(event.device_type).endswith("CUDA"):
            busy += event.device_time_total / 1e6
            kernels += 1
    return {"host_calls": counts, "kernels": kernels, "device_busy_s": round(busy, 5), "profiled_s": round(seconds, 5)}


def floors(num_envs: int, hiddens: tuple[int, ...]) -> dict[str, float]:
    """Return the arithmetic of an iteration: multiply-adds of the networks times 2, in units of 1e9."""
    sizes = [4, *hiddens]
    layers = sum(a * b for a, b in itertools.pairwise(sizes))
    policy, value = layers + sizes[-1] * 2, layers + sizes[-1]
    rows = 16 * num_envs
    acting, evaluating = rows * policy, rows * (policy + 2 * value)
    learning = 4 * rows * 3 * (policy + value)
    return {"gflop": 2e-9 * (acting + evaluating + learning)}


def part_ppo(device: str) -> list[dict[str, Any]]:
    found = []
    cases: list[tuple[int, tuple[int, ...], dict[str, Any]]] = [
        (4096, (64, 64), {}),
        (16384, (64, 64), {}),
        (65536, (64, 64), {}),
        (16384, (64, 64), {"compile": True}),
        (65536, (64, 64), {"compile": True}),
        (65536, (256, 256, 256), {}),
        (65536, (256, 256, 256), {"compile": True}),
        (65536, (256, 256, 256), {"mixed_precision": True}),
    ]
    if device == "cpu":
        cases = [(64, (64, 64), {})]
    for num_envs, hiddens, framework in cases:
        trainer = ppo_config(num_envs, hiddens, device, **framework).build_trainer()
        row: dict[str, Any] = {"num_envs": num_envs, "hiddens": hiddens, **framework}
        row |= measure(trainer, device, 10) | floors(num_envs, hiddens)
        if device == "cuda":
            row |= profile(trainer)
        found.append(row)
        print(json.dumps(row), flush=True)
        del trainer
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def part_learning(device: str) -> list[dict[str, Any]]:
    """Return learning curves in float32 and bfloat16: mean returns of the episodes that end in each iteration."""
    found = []
    for precision, seed in itertools.product(("float32", "bfloat16"), range(5)):
        config = ppo_config(1024 if device == "cuda" else 16, (64, 64), device).debugging(seed=seed)
        config.framework(mixed_precision=precision == "bfloat16")
        trainer = config.build_trainer()
        curve = []
        for _ in range(80 if device == "cuda" else 3):
            stats, _, _ = trainer.training_step()
            curve.append(None if stats.returns_stat is None else round(stats.returns_stat.mean, 1))
        found.append({"precision": precision, "seed": seed, "returns": curve})
        print(precision, seed, curve[::10], curve[-1], flush=True)
    return found


def part_minatar(device: str) -> list[dict[str, Any]]:
    """Return what PPO has learned of MinAtar's Breakout after 2,000,000 frames, and in how many seconds."""
    found, small = [], device == "cpu"
    num_envs, steps = (8, 16) if small else (128, 64)
    for seed in range(2 if small else 5):
        config = PPOConfig().environment("tensor/MinAtar-Breakout-v1")
        config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=steps)
        batch = num_envs * steps
        total = 4 * batch if small else 2_000_000
        config.training(train_batch_size=batch, minibatch_size=batch // 8, num_epochs=4, lr=[[0, 2e-3], [total, 0.0]])
        config.training(entropy_coeff=0.01)
        config.rl_module(
            model_config={"conv_filters": ((16, 3, 1),), "conv_activation": "relu", "image_hiddens": (128,)}
        )
        config.reporting(total_steps=total, steps_per_epoch=total // 10 + 1)
        config.evaluation(evaluation_interval=10, evaluation_duration=128, evaluation_explore=True)
        config.evaluation(evaluation_num_envs=128)
        trainer = config.framework(device=device).debugging(seed=seed).build_trainer()
        begun = time.perf_counter()
        curve = []
        for _, stats, _ in trainer:
            returns = stats.train_collect_stat.returns_stat
            curve.append(None if returns is None else round(returns.mean, 2))
        seconds = time.perf_counter() - begun
        last = trainer.last_test.returns_stat.mean if trainer.last_test else None
        found.append({"seed": seed, "returns": curve, "evaluated": last, "seconds": round(seconds, 1)})
        print(json.dumps(found[-1]), flush=True)
    return found


def part_atari(device: str) -> list[dict[str, Any]]:
    """Return steps/s of PPO on Atari, alternating between Lockstep and a plain file, each time in a new process."""
    found = []
    for _ in range(2):
        for kind in ("plain", "compiled", "eager"):
            command = [sys.executable, "-W", "ignore", str(PEERS / "atari_on_gpu.py"), kind, "6"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found.append(json.loads(lines[-1]) if lines else {"name": kind, "failed": done.stderr[-2000:]})
            print(json.dumps(found[-1]), flush=True)
    return found


def sac_trainer(num_envs: int, batch: int, device: str, fragment: int, updates: int, compiled: bool) -> Any:
    """`updates` gradient steps for each vector step, `fragment` vector steps in an iteration."""
    config = SACConfig().environment("tensor/Pendulum-v1")
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
    config.training(train_batch_size=batch, lr=3e-4).replay(capacity=1_000_000, update_per_step=updates / num_envs)
    config.replay(learning_starts=0).rl_module(model_config={"hiddens": (256, 256)})
    config.reporting(total_steps=10**12, steps_per_epoch=num_envs * 10**6).evaluation(evaluation_interval=0)
    return config.framework(device=device, compile=compiled).debugging(seed=1).build_trainer()


def part_sac(device: str) -> list[dict[str, Any]]:
    """Return SAC's steps/s on many Pendulums, alternating with a plain file, and the ratio of medians."""
    sys.path.insert(0, str(PEERS))
    from fast_sac_plain import FastSac

    small = device == "cpu"
    num_envs, batch, block, rounds = (8, 16, 8, 2) if small else (1024, 8192, 200, 5)
    plain, found = FastSac(num_envs, batch, 2, device), []
    for fragment, updates, compiled in [(1, 2, False), (8, 2, False), (8, 2, True), (8, 8, False), (8, 8, True)]:
        if small and compiled:
            continue
        plain.updates = updates
        trainer = sac_trainer(num_envs, batch, device, fragment, updates, compiled)

        def ours(number: int, trainer: Any = trainer, fragment: int = fragment) -> None:
            for _ in range(number // fragment):
                trainer.training_step()

        speeds: dict[str, list[float]] = {"lockstep": [], "plain": []}
        for turn, (name, run) in itertools.product(
            range(rounds + 1), {"lockstep": ours, "plain": plain.iterate}.items()
        ):
            wait(device)
            begun = time.perf_counter()
            run(block)
            wait(device)
            if turn:  # the first one captures graphs
                speeds[name].append(num_envs * block / (time.perf_counter() - begun))
        row = {"num_envs": num_envs, "batch": batch, "fragment": fragment, "updates_per_step": updates}
        medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
        row |= {"compile": compiled, **medians, "ratio": round(medians["lockstep"] / medians["plain"], 3)}
        if device == "cuda":
            row |= profile(trainer)
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


PARTS = {"ppo": part_ppo, "sac": part_sac, "learning": part_learning, "minatar": part_minatar, "atari": part_atari}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.parts:
        rows = PARTS[name](given.device)
        path = given.out / f"gpu_{name}.json"
        path.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
        print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
