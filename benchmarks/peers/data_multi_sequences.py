"""Random schedules of several agents (see ``data_multi_operations.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

Step = dict[str, Any]
Random = np.random.Generator
AGENTS = ("a", "b", "c")


def _chance(rng: Random, share: float) -> bool:
    return bool(rng.random() < share)


def schedule(rng: Random) -> Step:
    """Agents that act together or in turns, appear late, finish early; the last step may end all."""
    first = [agent for agent in AGENTS if _chance(rng, 0.6)] or ["a"]
    able, waiting, done = set(first), set(), set()
    turns = _chance(rng, 0.4)
    reset = {agent: float(rng.integers(99)) for agent in first}
    steps = []
    length = int(rng.integers(1, 8))
    for number in range(length):
        actors = sorted(able)[:1] if turns else [agent for agent in sorted(able) if _chance(rng, 0.85)]
        able -= set(actors)
        waiting |= set(actors)
        newcomers = [agent for agent in AGENTS if agent not in able | waiting | done and _chance(rng, 0.3)]
        last = number == length - 1
        seen = [agent for agent in sorted(waiting) if _chance(rng, 0.75) or not able]
        rewarded = sorted({*seen, *(agent for agent in sorted(waiting) if _chance(rng, 0.4))})
        ended = [agent for agent in seen if _chance(rng, 0.06)]
        everyone = last and _chance(rng, 0.5)
        truncated = everyone and _chance(rng, 0.4)
        steps.append(
            {
                "observations": {agent: float(rng.integers(99)) for agent in [*seen, *newcomers]},
                "actions": {agent: int(rng.integers(9)) for agent in actors},
                "rewards": {agent: float(rng.integers(-40, 40)) / 8 for agent in rewarded},
                "terminateds": {**dict.fromkeys(ended, True), "__all__": everyone and not truncated},
                "truncateds": {"__all__": truncated},
            }
        )
        able = (able | set(seen) | set(newcomers)) - set(ended)
        waiting -= set(seen)
        done |= set(ended)
        if not able | waiting:
            steps[-1]["terminateds"]["__all__"] = True
            steps[-1]["truncateds"]["__all__"] = False
            break
    return {"reset": reset, "steps": steps}


def multi_sequence(rng: Random) -> list[Step]:
    """One schedule, read in every way."""
    played = schedule(rng)
    length = len(played["steps"])
    steps = [
        {"op": "several_agents"},
        {"op": "several_counts"},
        {"op": "several_to_act"},
        {"op": "several_returns", "hanging": _chance(rng, 0.5)},
        {"op": "several_cut", "at": int(rng.integers(0, length))},
        {"op": "several_concat", "at": int(rng.integers(0, length))},
    ]
    for _ in range(4):
        indices: Any = [None, int(rng.integers(-3, 6)), [int(rng.integers(0, 3)), int(rng.integers(2, 6))]]
        by_env = _chance(rng, 0.7)
        steps.append(
            {
                "op": "several_read",
                "name": ["observations", "actions", "rewards"][int(rng.integers(3))],
                "indices": indices[int(rng.integers(3))],
                "env_steps": by_env,
                "as_list": False,
            }
        )
        steps[-1]["as_list"] = by_env and not isinstance(steps[-1]["indices"], int) and _chance(rng, 0.5)
    return [{**step, **played} for step in steps]
