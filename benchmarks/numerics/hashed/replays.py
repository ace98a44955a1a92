"""Replay buffers by hand, and runs that learn from each kind of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hashed import games
from hashed.algorithms import add_runs, run_of
from hashed.entries import Results, entry

BUFFERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"priorities": {"alpha": 0.7, "beta": [[0, 0.4], [99, 1.0]]}},
    "n_step": {"n_step": 3, "ignore_obs_next": True},
    "stacked": {"stack_num": 3, "priorities": {}, "ignore_obs_next": True},
    "only available stacks": {"stack_num": 2, "sample_avail": True},
    "last observations only": {"stack_num": 2, "save_only_last_obs": True},
    "memmap": {"storage": "memmap", "n_step": 2},
}


@entry("replay")
def buffers_by_hand() -> Results:
    """What is drawn from buffers of each kind, before and after they are saved."""
    import tempfile
    from pathlib import Path

    from lockstep.replay import ReplayBuffer

    found = {}
    for name, options in BUFFERS.items():
        buffer = ReplayBuffer(24, buffer_num=2, seed=5, **options)
        fill(buffer, 15, seed=1, stacked=options.get("save_only_last_obs", False))
        found[name] = draws(buffer)
        with tempfile.TemporaryDirectory() as folder:
            buffer.save(Path(folder) / "buffer")
            found[f"{name}, loaded"] = draws(ReplayBuffer.load(Path(folder) / "buffer"))
    return found


@entry("replay")
def hindsight_by_hand() -> Results:
    """What is drawn from a buffer with hindsight, by both strategies."""
    from lockstep.replay import Hindsight, ReplayBuffer

    found = {}
    for strategy in ("future", "final"):
        hindsight = Hindsight(reached, future_k=2.0, strategy=strategy)
        buffer = ReplayBuffer(24, buffer_num=2, seed=5, hindsight=hindsight)
        fill_goals(buffer, 15, seed=1)
        found[strategy] = draws(buffer)
    return found


def reached(achieved: Any, desired: Any, info: Any) -> Any:
    """Return 0 where a goal is reached, else -1."""
    return -(np.abs(achieved - desired).sum(-1) > 0).astype(np.float64)


def draws(buffer: Any) -> list[Any]:
    """Draw four times; between the draws the priorities change."""
    found = []
    for _ in range(4):
        batch = buffer.sample(8)
        found.append({name: column for name, column in batch.items() if name != "infos"})
        if buffer.priorities is not None:
            buffer.update_weight(batch["batch_indexes"], np.arange(8.0) + 0.5)
    return found


def fill(buffer: Any, steps: int, seed: int, stacked: bool = False) -> None:
    """Add vector steps of as many environments as the buffer has parts."""
    rng = np.random.default_rng(seed)
    number = buffer.buffer_num
    obs = rng.normal(size=(steps + 1, number, *((2,) if stacked else ()), 2)).astype(np.float32)
    for t in range(steps):
        ends = rng.random((2, number)) < 0.1
        buffer.add(
            {
                "obs": obs[t],
                "actions": rng.integers(3, size=number),
                "rewards": rng.normal(size=number).astype(np.float32),
                "terminateds": ends[0],
                "truncateds": ends[1] & ~ends[0],
                "new_obs": obs[t + 1],
            }
        )


def fill_goals(buffer: Any, steps: int, seed: int) -> None:
    """Add steps towards goals on a line."""
    rng = np.random.default_rng(seed)
    number = buffer.buffer_num
    places = rng.integers(0, 4, (steps + 1, number, 1)).astype(np.float32)

    def seen(t: int) -> dict[str, np.ndarray]:
        return {"observation": places[t], "achieved_goal": places[t], "desired_goal": np.full_like(places[t], 9.0)}

    for t in range(steps):
        buffer.add(
            {
                "obs": seen(t),
                "actions": rng.integers(3, size=number),
                "rewards": np.full(number, -1.0, np.float32),
                "terminateds": np.zeros(number, bool),
                "truncateds": np.full(number, t % 5 == 4),
                "new_obs": seen(t + 1),
            }
        )


@entry("replay")
def tensors_by_hand() -> Results:
    """What is drawn from the ring of tensors, of one step and of three."""
    import torch

    from lockstep.replay import TensorReplay

    found: dict[str, Any] = {}
    for n_step in (1, 3):
        replay = TensorReplay(12, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), n_step, 0.9)
        rng = np.random.default_rng(0)
        for step in range(7):
            obs, final = (torch.from_numpy(array) for array in rng.normal(size=(2, 3, 2)).astype(np.float32))
            rewards = torch.from_numpy(rng.normal(size=3).astype(np.float32))
            ended, cut = (torch.from_numpy(flags) for flags in rng.random((2, 3)) < 0.2)
            replay.begin_step(step, obs)
            extras = {"time_outs": cut & ~ended, "final_obs": final}
            replay.end_step(step, torch.arange(3), rewards, ended | cut, extras)
        replay.count(7)
        drawn = replay.sample(40, torch.Generator().manual_seed(2))
        found[f"{n_step} steps"] = {"drawn": dict(drawn), "state": replay.get_state()}
    return found


PRIORITIES = {"prioritized": True, "beta": [[0, 0.4], [192, 1.0]]}
BITS = {"env": "lockstep/BitFlipping-v0", "env_config": {"num_bits": 4}}
add_runs(
    "replay",
    {
        "dqn_prioritized": partial(run_of, "dqn", replay=PRIORITIES),
        "dqn_n_step": partial(run_of, "dqn", replay={"n_step": 3}),
        "dqn_prioritized_n_step": partial(run_of, "dqn", replay={**PRIORITIES, "n_step": 3}),
        "dqn_hindsight": partial(run_of, "dqn", environment=BITS, replay={"her": True}),
        "dqn_hindsight_final": partial(
            run_of, "dqn", environment=BITS, replay={"her": True, "her_strategy": "final", "her_future_k": 1.0}
        ),
        "dqn_hindsight_prioritized": partial(run_of, "dqn", environment=BITS, replay={"her": True, **PRIORITIES}),
        "dqn_memmap": partial(run_of, "dqn", replay={"storage": "memmap"}),
        "dqn_observations_once": partial(run_of, "dqn", replay={"ignore_obs_next": True, "n_step": 2}),
        "dqn_many_updates": partial(run_of, "dqn", replay={"update_per_step": 1.3}),
        "dqn_whole_episodes": partial(run_of, "dqn", games.Nested, env_runners={"batch_mode": "complete_episodes"}),
        "c51_prioritized": partial(run_of, "c51", replay=PRIORITIES),
        "qrdqn_n_step": partial(run_of, "qrdqn", replay={"n_step": 2}),
        "sac_prioritized": partial(run_of, "sac", replay=PRIORITIES),
        "sac_n_step": partial(run_of, "sac", replay={"n_step": 3}),
        "td3_prioritized_n_step": partial(run_of, "td3", replay={**PRIORITIES, "n_step": 2}),
        "tqc_memmap": partial(run_of, "tqc", replay={"storage": "memmap"}),
    },
)
