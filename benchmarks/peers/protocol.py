"""Read one work description, print one JSON line: what every program of ``peers/`` shares.

    python benchmarks/peers/sb3_train.py '{"algorithm": "dqn", "steps": 4096, "seed": 1}'

What a description leaves out stands in `SETTINGS`, the same for every library. A program reads it *before* it imports
torch, so that the number of threads holds for every library underneath; it marks the clock after each update and ends
with one JSON line. Programs that stay (`serve`) say which entries they have and answer each line of their input.

Standard library alone (and torch once it is loaded): it runs in every peer's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

WARM_UPDATES = 5
"""left out of the steady rate: caches, lazy imports, compilers"""

PPO = {
    "environment": "CartPole-v1",
    "num_envs": 8,
    "steps_per_env": 128,
    "steps": 65_536,
    "steps_of_update": 1_024,
    "num_epochs": 4,
    "minibatch": 256,
    "hiddens": (64, 64),
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip": 0.2,
    "entropy_coeff": 0.01,
    "value_coeff": 0.5,
    "max_grad_norm": 0.5,
    "adam_epsilon": 1e-5,
    "measured_from": 0,
    "num_returns": 20,
}
DQN = {
    # CleanRL's published settings on 8 environments: `updates` gradient steps after each 10 vector steps (8: one for
    # ten environment steps), the target network copied every 6 of these rounds (480 environment steps; there 500).
    # Plain DQN: no double, dueling, n-step or prioritised part; squared or Huber errors as each library has it.
    **{name: PPO[name] for name in ("environment", "num_envs", "steps", "steps_of_update", "gamma", "num_returns")},
    "vector_steps": 10,
    "round_steps": 80,
    "updates": 8,
    "rounds_per_target": 6,
    "batch": 128,
    "hiddens": (120, 84),
    "lr": 2.5e-4,
    "capacity": 10_000,
    "random_steps": 1_040,
    "first_epsilon": 1.0,
    "last_epsilon": 0.05,
    "max_grad_norm": 10.0,
    "measured_from": 0,
}
SAC = {
    # One gradient step on 256 transitions for each step, two critics and a policy of rectified layers, a learned
    # temperature. The first 500 steps take random actions, 100 more are left out of the rate. With one thread rates are
    # steps in a second of the processor's time, which says more on a busy machine; with several, of the clock's.
    "environment": "Pendulum-v1",
    "num_envs": 1,
    "steps": 3_000,
    "steps_of_update": 1,
    "random_steps": 500,
    "measured_from": 600,
    "hiddens": (256, 256),
    "batch": 256,
    "lr": 1e-3,
    "gamma": 0.99,
    "tau": 0.005,
    "capacity": 100_000,
    "num_returns": 5,
}
TD3 = {**SAC, "noise": 0.1, "target_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": PPO, "dqn": DQN, "sac": SAC, "td3": TD3,
}  # fmt: skip


def read(description: str | None) -> Any:
    """Return the work of the command line with the algorithm's settings, and fix the number of threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("work", nargs="?", default="{}", help="the work as JSON; the rest stands in peers/protocol.py")
    asked = json.loads(parser.parse_args().work)
    algorithm = asked.get("algorithm", "ppo")
    common = {"algorithm": algorithm, "seed": 0, "threads": 1, "compile": False, "half": False, "planned": None}
    work = SimpleNamespace(**{**common, **SETTINGS[algorithm], **asked})
    if algorithm == "ppo":
        work.batch = work.steps_of_update = work.num_envs * work.steps_per_env
    work.steps = -(-work.steps // work.steps_of_update) * work.steps_of_update
    work.planned = work.planned or work.steps
    if work.steps <= work.measured_from:
        parser.error(f"steps must be above {work.measured_from}")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(work.threads)
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import torch

    torch.set_num_threads(work.threads)
    return work


def has_frames(work: Any) -> bool:
    """Return whether it plays an Atari game; the names of these environments are registered then."""
    if not work.environment.startswith("ALE/"):
        return False
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return True


def epsilon_at(work: Any, step: int) -> float:
    """Return DQN's epsilon: from the first to the last one over the first half."""
    falls = (work.first_epsilon - work.last_epsilon) * step / (0.5 * work.steps)
    return max(work.last_epsilon, work.first_epsilon - falls)


def print_line(name: str, version: str, **facts: Any) -> None:
    """Print a program's last line: one JSON object."""
    print(json.dumps({"name": name, "version": version, "python": sys.version.split()[0], **facts}), flush=True)


def processor_seconds() -> float:
    """Return the processor's time of this process and of the children that it waited for, such as a compiler."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Clock:
    """The time at the end of each update, the clock's and the processor's, and the returns of the last episodes."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.began: tuple[float, float, float] | None = None
        self.marks: list[tuple[float, float, float]] = []
        self.returns: deque[float] = deque(maxlen=work.num_returns)

    def start(self) -> None:
        """Start the clock: everything is built, nothing is collected yet."""
        self.began = (0, time.perf_counter(), processor_seconds())
        self.mark(0)

    def mark(self, steps: float) -> None:
        """Note the end of an update, ``steps`` environment steps since the start."""
        if steps >= self.work.measured_from and (not self.marks or steps > self.marks[-1][0]):
            self.marks.append((steps, time.perf_counter(), processor_seconds()))

    def episode(self, episode_return: float) -> None:
        """Note the return of a training episode that ended."""
        self.returns.append(float(episode_return))

    def report(self, name: str, version: str, **more: Any) -> None:
        """Print the last line: rates over the whole measured part and without its first updates."""
        import torch

        if len(self.marks) < 2:
            raise SystemExit("the run ended before anything was measured")
        steps, wall, processor = (end - begin for begin, end in zip(self.marks[0], self.marks[-1]))
        facts = {"seconds_total_loop": round(wall, 4), "threads": self.work.threads, "torch": torch.__version__}
        warm = self.marks[min(WARM_UPDATES, len(self.marks) - 2) if self.work.measured_from == 0 else 0]
        steady_steps, steady_wall, steady_processor = (end - begin for begin, end in zip(warm, self.marks[-1]))
        rates = {"processor_steps_per_s": steps / processor, "steps_per_s": steps / wall}
        rates |= {"processor_steady_steps_per_s": steady_steps / steady_processor}
        rates |= {"steady_steps_per_s": steady_steps / steady_wall}
        if self.work.measured_from and self.work.threads == 1:
            rates |= dict.fromkeys(("steps_per_s", "steady_steps_per_s"), steps / processor)
        facts["final_return"] = round(sum(self.returns) / len(self.returns), 2) if self.returns else None
        facts["steps"] = steps
        if self.began is not None:
            facts["first"] = stretch(self.began, warm)
        facts["rest"] = stretch(warm, self.marks[-1])
        print_line(name, version, **facts, **{key: round(rate, 1) for key, rate in rates.items()}, **more)


def stretch(begin: Sequence[float], end: Sequence[float]) -> dict[str, float]:
    """Return the steps between two marks of a clock, and the seconds that they took."""
    names = ("steps", "seconds", "processor_seconds")
    return {name: round(later - earlier, 4) for name, earlier, later in zip(names, begin, end)}


def least_seconds(call: Callable[[], Any], *, calls: int = 1, budget: float = 0.5) -> float:
    """Return the processor's seconds for one call: the least of at least 5 stretches within about ``budget`` seconds.

    ``calls`` is how many calls one ``call()`` makes. Short work is timed in groups.
    """
    began = time.perf_counter()
    call()
    group = max(1, int(0.002 / max(time.perf_counter() - began, 1e-7)))
    best, spent, groups = float("inf"), 0.0, 0
    while groups < 5 or spent < budget:
        began = time.process_time()
        for _ in range(group):
            call()
        took = time.process_time() - began
        best, spent, groups = min(best, took / group), spent + took, groups + 1
    return best / calls


class Measured:
    """An entry of a program that stays: ``fresh`` makes what a call consumes (not timed), ``call`` is timed.

    ``processor_time`` counts the processor's seconds so far; by default those of this process alone.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        fresh: Callable[[], Any] = lambda: None,
        stages: Callable[[], dict[str, float]] | None = None,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        self.call, self.fresh, self.stages = call, fresh, stages
        self.processor_time = processor_time

    def seconds(self, times: int, synchronize: Callable[[], None]) -> dict[str, list[float]]:
        """Return seconds of the clock and of the processor of each call."""
        wall, processor = [], []
        for _ in range(times):
            consumed = self.fresh()
            synchronize()
            began_processor, began = self.processor_time(), time.perf_counter()
            self.call(consumed)
            synchronize()
            wall.append(time.perf_counter() - began)
            processor.append(self.processor_time() - began_processor)
        return {"seconds": wall, "processor_seconds": processor}

    def median_stages(self, times: int) -> dict[str, float] | None:
        """Return the median milliseconds of each stage over some calls; None where stages cannot be told apart."""
        if self.stages is None:
            return None
        import statistics

        runs = [self.stages() for _ in range(times)]
        return {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}


def serve(
    name: str, version: str, entries: dict[str, Callable[[], Measured]], device: str = "cpu", **facts: Any
) -> None:
    """Answer requests until the input ends: ``{"entry": ..., "times": k}`` or ``{"entry": ..., "stages": k}``."""
    import torch

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    built: dict[str, Measured] = {}
    print_line(name, version, torch=torch.__version__, entries=list(entries), **facts)
    for line in sys.stdin:
        request = json.loads(line)
        which = request["entry"]
        if which not in built:
            built[which] = entries[which]()
        if "stages" in request:
            answer: dict[str, Any] = {"stages": built[which].median_stages(request["stages"])}
        else:
            answer = built[which].seconds(request["times"], synchronize)
        print(json.dumps(answer), flush=True)
