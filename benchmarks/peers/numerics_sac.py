"""What the sides of ``compare_sac_peers.py`` share: setting, neutral names of parameters, rows, noise.

NumPy and the standard library alone: it runs in every peer's environment.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numerics import NUM_UPDATES, Recording, Weights

NUM_ROWS = 4_000
BATCH = 256
HIDDENS = (256, 256)
OBS_SIZE = 4
NUM_ACTIONS = 2
LEARNING_RATE = 3e-4
GAMMA = 0.99
TAU = 0.005
INITIAL_ALPHA = 0.05
LOSSES = ("critic_loss", "actor_loss", "alpha_loss", "alpha")


def initial_weights() -> Weights:
    """float32 weights: ``policy.0.weight`` ... ``policy.2.bias`` (mean, then log-deviation), ``critic0.0.weight`` ...
    ``critic1.2.bias``. Targets begin as copies.
    """
    rng = np.random.default_rng(7)
    weights: Weights = {}
    sizes = {"policy": (OBS_SIZE, 2 * NUM_ACTIONS), "critic0": (OBS_SIZE + NUM_ACTIONS, 1)}
    sizes["critic1"] = sizes["critic0"]
    for network, (inputs, outputs) in sizes.items():
        for layer, size in enumerate((*HIDDENS, outputs)):
            scale = inputs**-0.5
            weights[f"{network}.{layer}.weight"] = rng.uniform(-scale, scale, (size, inputs)).astype(np.float32)
            weights[f"{network}.{layer}.bias"] = rng.uniform(-scale, scale, size).astype(np.float32)
            inputs = size
    return weights


def make_rows() -> dict[str, np.ndarray]:
    """Transitions, a tenth of which end; rewards are small, so that no critic is off by 1 or more."""
    rng = np.random.default_rng(11)
    obs, next_obs = rng.normal(0.0, 1.0, (2, NUM_ROWS, OBS_SIZE)).astype(np.float32)
    return {
        "obs": obs,
        "actions": rng.uniform(-1.0, 1.0, (NUM_ROWS, NUM_ACTIONS)).astype(np.float32),
        "rewards": rng.uniform(-0.3, 0.3, NUM_ROWS).astype(np.float32),
        "terminateds": rng.random(NUM_ROWS) < 0.1,
        "new_obs": next_obs,
    }


def rows_of_update(number: int) -> np.ndarray:
    """The rows of gradient step `number` (from 1)."""
    return np.random.default_rng((13, number)).integers(0, NUM_ROWS, BATCH)


def noise_of_update(number: int) -> np.ndarray:
    """``[2, BATCH, NUM_ACTIONS]``: what draws the policy's actions at the observation, and at the next one."""
    return np.random.default_rng((17, number)).standard_normal((2, BATCH, NUM_ACTIONS), np.float32)


def peer_main(name: str, run: Callable[[Weights, dict[str, np.ndarray]], Recording], version: str) -> None:
    """A peer's command line: ``--out FILE``; takes the gradient steps, writes the npz, prints one JSON line."""
    parser = argparse.ArgumentParser(description=f"{name}'s side of compare_sac_peers.py")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recording = run(initial_weights(), make_rows())
    assert recording.done == NUM_UPDATES
    recording.save(options.out)
    print(json.dumps({"name": name, "version": version, "python": sys.version.split()[0]}), flush=True)
