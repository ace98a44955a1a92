"""Make the arrays of ``data_speed.py``, the same for every library.

100 fragments of 200 rows in 10 columns, 400 episodes of 50 rows in the same rows, and an episode of 200 steps with an
observation of 4 numbers. NumPy and the standard library alone: it runs in every peer's environment.
"""

from __future__ import annotations

import numpy as np

NUM_FRAGMENTS, ROWS, NUM_EPISODES, STEPS = 100, 200, 400, 200
ID_WIDTH = 32
"""characters of an episode's id, as of a UUID"""


def fragments() -> list[dict[str, np.ndarray]]:
    """Return 100 times 10 columns of 200 rows."""
    rng = np.random.default_rng(0)

    def one(number: int) -> dict[str, np.ndarray]:
        return {
            "obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "new_obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, ROWS),
            "rewards": rng.normal(size=ROWS).astype(np.float32),
            "terminateds": np.zeros(ROWS, bool),
            "truncateds": np.zeros(ROWS, bool),
            "t": np.arange(ROWS),
            "agent_index": np.full(ROWS, number),
            "action_logp": rng.normal(size=ROWS).astype(np.float32),
            "vf_preds": rng.normal(size=ROWS).astype(np.float32),
        }

    return [one(number) for number in range(NUM_FRAGMENTS)]


def episodes_by(kind: str) -> dict[str, np.ndarray]:
    """Return the 20,000 rows as 400 episodes told apart by integer ids, by ids of 32 characters, or by their flags."""
    joined = plain_concat(fragments())
    length = NUM_FRAGMENTS * ROWS // NUM_EPISODES
    numbers = np.repeat(np.arange(NUM_EPISODES), length)
    joined["terminateds"] = np.arange(len(numbers)) % length == length - 1
    del joined["agent_index"]  # 10 columns with the id
    if kind == "integers":
        joined["eps_id"] = numbers
    elif kind == "strings":
        joined["eps_id"] = np.array([f"{number:0{ID_WIDTH}x}" for number in range(NUM_EPISODES)])[numbers]
    return joined


def observations() -> list[np.ndarray]:
    """Return the 201 observations of an episode."""
    return list(np.random.default_rng(1).normal(size=(STEPS + 1, 4)).astype(np.float32))


def plain_concat(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join the columns with `np.concatenate` alone."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
