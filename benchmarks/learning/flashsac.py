"""What each part of FlashSAC is worth on HalfCheetah: the recipe with one or two parts off, or with one size changed.

    python benchmarks/learning/flashsac.py run    # 100,000 steps, three seeds of each row
    python benchmarks/learning/flashsac.py times  # processor time of a step of each row
    python benchmarks/learning/flashsac.py table  # what has run so far, as Markdown

A run that was stopped continues from its newest checkpoint, and one that has ended is not run again. Several processes
may share the work: each takes a run that no other has. A run that has ended is a line of
``results/flashsac_parts.jsonl``: settings, curve, final returns, and seconds of collecting, learning and evaluating.
``times`` adds a line to ``results/flashsac_times.jsonl``. The recipe's own runs are
``lockstep bench run flashsac HalfCheetah-v5``.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report

import lockstep
from lockstep import FlashSACConfig
from lockstep.recipes.bench import evaluations, processor
from lockstep.recipes.mujoco import flashsac_mujoco
from lockstep.tracking.run_folder import RunFolder

RUNS = report.RESULTS / "flashsac_parts.jsonl"
TIMES = report.RESULTS / "flashsac_times.jsonl"
ENV = "HalfCheetah-v5"
FINAL_EPISODES = 40
PARTS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "critics of the mean": {"training.categorical_critic": False},
    "weights without a norm": {"training.unit_norm_weights": False},
    "no batch normalisation": {"training.batch_norm": False},
    "neither norms nor batch normalisation": {"training.unit_norm_weights": False, "training.batch_norm": False},
    "rewards as they are, atoms to 1,500": {
        "training.bounded_rewards": False,
        "training.v_min": -1500.0,
        "training.v_max": 1500.0,
    },
    "new noise in each step": {"training.noise_repeat": 1},
    "half the width": {"rl_module.model_config": {"hiddens": (32,), "critic_hiddens": (32, 32)}},
    "twice the width": {"rl_module.model_config": {"hiddens": (128,), "critic_hiddens": (128, 128)}},
    "batch 128": {"training.train_batch_size": 128},
    "batch 512": {"training.train_batch_size": 512},
    "half the gradient steps": {"replay.update_per_step": 0.5},
    "twice the gradient steps": {"replay.update_per_step": 2.0},
    "matrix products in float32": {"framework.mixed_precision": False},
}
"""Options that differ from the recipe, by the name of the row."""


def config_of(seed: int, steps: int, settings: dict[str, Any]) -> FlashSACConfig:
    """Return the configuration of a run: the recipe with other settings."""
    config = flashsac_mujoco(ENV).debugging(seed=seed)
    config.framework(compile=True, num_threads=1)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 10)
    for path, value in settings.items():
        config.set_path(path, value)
    return config


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def add_line(file: Path, line: dict[str, Any]) -> None:
    """Add a line to a file of results."""
    facts = {"processor": processor(), "date": report.machine()["date"], "revision": report.revision()}
    with file.open("a", encoding="utf-8") as results:
        results.write(json.dumps({**line, **facts}) + "\n")


@contextmanager
def run_lock(folder: Path) -> Iterator[bool]:
    """Lock the folder of a run; False if another process has the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def run(seed: int, steps: int, name: str, folder: Path) -> None:
    """Train one seed, or go on with it, and add its line to the results."""
    key = {"env": ENV, "seed": seed, "steps": steps, "part": name}
    if any(key.items() <= line.items() for line in lines_of(RUNS)):
        return
    begun = [path for path in sorted(folder.glob("*/")) if RunFolder.open(path).newest_checkpoint() is not None]
    if begun:
        result = lockstep.resume(begun[-1])
    else:
        result = lockstep.train(config_of(seed, steps, PARTS[name]), root=folder)
    timing = result.info.timing
    final = lockstep.Collector(result.policy, result.policy.config.make_envs(8), seed=1000).collect(
        n_episode=FINAL_EPISODES, reset_before_collect=True
    )
    line: dict[str, Any] = {
        **key,
        "settings": PARTS[name],
        "curve": list(evaluations(RunFolder.open(result.path)).items()),
        "final_returns": [float(each) for each in final.returns],
        "gradient_steps": int(result.info.gradient_step),
        "seconds": round(timing.train_time_collect + timing.train_time_update + timing.test_time),
    }
    add_line(RUNS, line)
    print(f"{name}, seed {seed}: {mean(line['final_returns']):.0f} in {line['seconds']} s", flush=True)


def times(rounds: int = 7, steps: int = 250) -> None:
    """Print the processor time of an environment step with each row's settings, and add it to the results.

    Each step includes the gradient steps that belong to it. The rows take turns of `steps` steps. Their first turns, in
    which updates are compiled, do not count.
    """
    trainers = {}
    for name, settings in PARTS.items():
        config = config_of(0, (rounds + 1) * steps, settings)
        config.reporting(steps_per_epoch=steps).evaluation(evaluation_interval=0).replay(learning_starts=steps // 2)
        trainers[name] = iter(config.build_trainer())
    milliseconds: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(rounds + 1):
        print(f"turn {turn} of {rounds}", flush=True)
        for name, trainer in trainers.items():
            begin = time.process_time()
            next(trainer)
            milliseconds[name].append(round((time.process_time() - begin) / steps * 1000, 2))
    line = {name: each[1:] for name, each in milliseconds.items()}
    add_line(TIMES, {"milliseconds": line})
    for name, each in line.items():
        print(f"{name}: {report.spread(each, 1)} ms")


def table(steps: int) -> str:
    """Return the results as a Markdown table. The last column is the time of a step, relative to the recipe."""
    lines = [line for line in lines_of(RUNS) if line["steps"] == steps]
    milliseconds = lines_of(TIMES)[-1]["milliseconds"]
    rows = []
    for name in PARTS:
        returns = [mean(line["final_returns"]) for line in lines if line["part"] == name]
        ratio = median(milliseconds[name]) / median(milliseconds["the recipe"])
        each = ", ".join(f"{value:,.0f}" for value in returns)
        rows.append([name, str(len(returns)), f"{mean(returns):,.0f}" if returns else "", each, f"{ratio:.2f}"])
    return report.table(["what differs", "seeds", "mean", "each seed", "time"], rows)


if __name__ == "__main__":
    parser = report.parser_of(__doc__)
    parser.add_argument("action", nargs="?", default="table", choices=("run", "times", "table"))
    parser.add_argument("--part", choices=PARTS, help="the only row to run")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    parser.add_argument("--root", type=Path, default=Path("runs/flashsac"), help="folder of the runs")
    given = parser.parse_args()
    if given.action == "table":
        print(table(given.steps))
    elif given.action == "times":
        times()
    else:
        for seed in range(given.seeds):
            for part in [given.part] if given.part else PARTS:
                folder = given.root / f"{given.steps}_{part.replace(' ', '-').replace('/', '-')}_{seed}"
                with run_lock(folder) as free:
                    if free:
                        run(seed, given.steps, part, folder)
