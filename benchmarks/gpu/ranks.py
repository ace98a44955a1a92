"""Several GPUs, one rank of torchrun on each: the same parameters as one rank, and steps per second.

    python benchmarks/gpu/ranks.py                          # on a machine with several GPUs: 1, 2, 4, ... ranks
    python benchmarks/gpu/ranks.py --ranks 2 --device cpu   # the same on the processor, by gloo: a rehearsal

Environments are split over the ranks, and each row draws what it draws in one process. So the parameters of n ranks
are those of one up to the rounding of sums: in float64 they are compared after `--updates` iterations, for PPO and
SAC. In float32, rounding grows with training as it does in one process that adds up the rows of a minibatch in another
order, so float32 is for speed only. Writes results/gpu_ranks.json; a rehearsal writes nothing. Without enough GPUs it
says so and ends with exit code 2. No machine with several GPUs has run it yet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep import PPOConfig, SACConfig

RESULTS = Path(__file__).resolve().parents[1] / "results"
TOLERANCE = 1e-9
"""Largest difference of a parameter in float64."""


def config_of(name: str, num_envs: int, device: str, dtype: str) -> Any:
    """Return the configuration of a run; `num_envs` are the environments of all ranks."""
    if name == "ppo":
        batch = 16 * num_envs
        config = PPOConfig().environment("tensor/Pendulum-v1", normalize_observations=True, normalize_rewards=True)
        config.env_runners(rollout_fragment_length=16)
        config.training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4)
    else:
        config = SACConfig().environment("tensor/Pendulum-v1", normalize_observations=True)
        config.env_runners(rollout_fragment_length=4).training(train_batch_size=8 * num_envs)
        config.replay(capacity=200 * num_envs, learning_starts=8 * num_envs, update_per_step=4 / (4 * num_envs))
    config.env_runners(num_envs_per_env_runner=num_envs).rl_module(model_config={"hiddens": (64, 64)})
    config.reporting(total_steps=10**12, steps_per_epoch=10**9).evaluation(evaluation_interval=0)
    return config.framework(device=device, dtype=dtype, compile=False).debugging(seed=1)


def work(folder: Path, options: argparse.Namespace) -> None:
    """Train as one rank; the first one writes its parameters and its speed."""
    speeds: dict[str, float] = {}
    for name in ("ppo", "sac"):
        for dtype in ("float64", "float32"):
            trainer = config_of(name, options.num_envs, options.device, dtype).build_trainer()
            for _ in range(options.updates):
                trainer.training_step()
            if dtype == "float64":
                state = trainer.policy.state_dict()
                found = {key: value.cpu().numpy() for key, value in state.items() if key.startswith("module.")}
                if os.environ.get("RANK", "0") == "0":
                    np.savez(folder / f"{name}.npz", **found)
            else:
                speeds[name] = steps_per_second(trainer, options)
            trainer.close()
    if os.environ.get("RANK", "0") == "0":
        (folder / "speeds.json").write_text(json.dumps(speeds), encoding="utf-8")


def steps_per_second(trainer: Any, options: argparse.Namespace) -> float:
    """Return the environment steps per second of whole iterations, over all ranks."""
    started = time.perf_counter()
    first = trainer.env_step
    for _ in range(options.updates):
        trainer.training_step()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return float((trainer.env_step - first) / (time.perf_counter() - started))


def run(number: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start ranks and return their parameters and speeds."""
    folder.mkdir()
    words = [__file__, "--worker", str(folder), "--device", options.device]
    words += ["--num-envs", str(options.num_envs), "--updates", str(options.updates)]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"] if number > 1 else []
    subprocess.run([sys.executable, *launcher, *words], check=True)
    parameters = {name: dict(np.load(folder / f"{name}.npz")) for name in ("ppo", "sac")}
    return {"parameters": parameters, "speeds": json.loads((folder / "speeds.json").read_text(encoding="utf-8"))}


def main(options: argparse.Namespace) -> int:
    """Compare each number of ranks with one, print a line for each, and return the exit code."""
    num_gpus = torch.cuda.device_count()
    most = options.ranks or num_gpus
    if options.device == "cuda" and not 2 <= most <= num_gpus:
        print(f"this needs at least 2 GPUs and as many as ranks: torch sees {num_gpus}; --device cpu rehearses it")
        return 2

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        alone = run(1, Path(root) / "1", options)
        rows.append({"ranks": 1, "steps_per_s": alone["speeds"], "difference": {"ppo": 0.0, "sac": 0.0}})
        number = 2
        while number <= most:
            found = run(number, Path(root) / str(number), options)
            differences = {}
            for name, parameters in alone["parameters"].items():
                others = found["parameters"][name]
                differences[name] = max(float(np.abs(parameters[key] - others[key]).max()) for key in parameters)
            rows.append({"ranks": number, "steps_per_s": found["speeds"], "difference": differences})
            number *= 2

    for row in rows:
        for name, difference in row["difference"].items():
            speed = row["steps_per_s"][name]
            print(f"{row['ranks']} ranks, {name}: {speed:,.0f} steps/s, float64 {difference:.1e} from one rank")
    if options.device == "cuda":
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        content = {"about": about, "num_envs": options.num_envs, "rows": rows}
        (RESULTS / "gpu_ranks.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    is_equal = all(max(row["difference"].values()) <= TOLERANCE for row in rows)
    return 0 if is_equal else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="largest number of ranks; by default the number of GPUs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--num-envs", type=int, default=4096, help="environments of all ranks")
    parser.add_argument("--updates", type=int, default=10, help="iterations that are compared, and that are timed")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.worker, arguments)
    else:
        sys.exit(main(arguments))
