"""Define the cases of ``compare_learner_peers.py`` and ``compare_sac_peers.py``, and record what a learner does.

Parameters have neutral names: ``policy.0.weight`` ... ``value.2.bias``, ``critic0.0.weight`` ..., ``log_std``.

NumPy and the standard library alone: it runs in every peer's environment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import protocol

NUM_ROWS = 4_000
MINIBATCH = 256
NUM_UPDATES = 50
WATCHED = (1, NUM_UPDATES)  # gradients and parameters are compared after these updates
HIDDENS = (64, 64)
OBS_SIZE = 4
NUM_ACTIONS = 2  # actions of the discrete case, dimensions of the continuous one
LEARNING_RATE = 3e-4
CLIP = 0.2
VALUE_COEFFICIENT = 0.5  # of the squared error, without a half
ENTROPY_COEFFICIENT = 0.01


@dataclass(frozen=True)
class Case:
    """One setting of the update."""

    discrete: bool = True
    grad_clip: float = 0.5
    grad_clip_by: str = "global_norm"
    kl_coeff: float = 0.0
    adam_epsilon: float = 1e-8


RLLIB_CASES = {
    "discrete, global norm": Case(),
    "discrete, KL penalty, norm of each tensor": Case(kl_coeff=0.2, grad_clip=0.1, grad_clip_by="norm"),
    "continuous, each element": Case(discrete=False, grad_clip=0.01, grad_clip_by="value"),
}
SB3_CASES = {
    "discrete, global norm": Case(adam_epsilon=1e-5),
    "continuous, global norm": Case(discrete=False, adam_epsilon=1e-5),
}

Weights = dict[str, np.ndarray]


def drawn_weights(rng: np.random.Generator, networks: dict[str, tuple[int, int]], hiddens: tuple[int, int]) -> Weights:
    """Return weights and biases of networks with so many inputs and outputs."""
    weights: Weights = {}
    for network, (inputs, outputs) in networks.items():
        for layer, size in enumerate((*hiddens, outputs)):
            scale = inputs**-0.5
            weights[f"{network}.{layer}.weight"] = rng.uniform(-scale, scale, (size, inputs)).astype(np.float32)
            weights[f"{network}.{layer}.bias"] = rng.uniform(-scale, scale, size).astype(np.float32)
            inputs = size
    return weights


def initial_weights(case: Case) -> Weights:
    """Return PPO's float32 weights."""
    rng = np.random.default_rng(7)
    weights = drawn_weights(rng, {"policy": (OBS_SIZE, NUM_ACTIONS), "value": (OBS_SIZE, 1)}, HIDDENS)
    if not case.discrete:
        weights["log_std"] = rng.normal(-0.3, 0.1, NUM_ACTIONS).astype(np.float32)
    return weights


def by_neutral_name(parameters: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return parameters under their neutral names; `names` are a library's names of layers and of `log_std`."""
    return {
        neutral + end: parameters[name + end]
        for neutral, name in names.items()
        for end in ("", ".weight", ".bias")
        if name + end in parameters
    }


def make_batch(case: Case, weights: Weights) -> dict[str, np.ndarray]:
    """Return a train batch of ``NUM_ROWS`` rows. The acting policy is a little off the learning one, so that ratios are
    clipped from the first update on.
    """
    rng = np.random.default_rng(11)
    obs = rng.normal(0.0, 1.0, (NUM_ROWS, OBS_SIZE)).astype(np.float32)
    hidden = obs.astype(np.float64)
    for layer in range(3):
        hidden = hidden @ weights[f"policy.{layer}.weight"].T.astype(np.float64) + weights[f"policy.{layer}.bias"]
        hidden = np.tanh(hidden) if layer < 2 else hidden
    outputs = hidden + rng.normal(0.0, 0.2, hidden.shape)
    if case.discrete:
        logp = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
        actions = (rng.random(NUM_ROWS) > np.exp(logp[:, 0])).astype(np.int64)
        action_logp, inputs = logp[np.arange(NUM_ROWS), actions], outputs
    else:
        log_std = np.broadcast_to(weights["log_std"].astype(np.float64), outputs.shape)
        noise = rng.normal(0.0, 1.0, outputs.shape)
        actions = (outputs + np.exp(log_std) * noise).astype(np.float32)
        action_logp = (-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        inputs = np.concatenate([outputs, log_std], axis=1)
    return {
        "obs": obs,
        "actions": actions,
        "action_dist_inputs": inputs.astype(np.float32),
        "action_logp": action_logp.astype(np.float32),
        "advantages": rng.normal(0.0, 1.0, NUM_ROWS).astype(np.float32),
        "value_targets": rng.normal(0.5, 1.5, NUM_ROWS).astype(np.float32),
    }


@dataclass
class Recording:
    """What one side did: rows and losses of each update, gradients and parameters of the watched ones."""

    rows: list[np.ndarray] = field(default_factory=list)
    losses: list[dict[str, float]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The updates that have begun."""
        return len(self.rows)

    def keep(self, kind: str, named: dict[str, Any]) -> None:
        """Keep copies of `named` arrays of the present update, when it is a watched one."""
        if self.done in WATCHED:
            for name, value in named.items():
                self.arrays[f"{kind}/{self.done}/{name}"] = np.array(value, copy=True)

    def save(self, path: Path) -> None:
        """Write one npz file."""
        losses = {f"loss/{name}": np.array([step[name] for step in self.losses]) for name in self.losses[0]}
        rows = {f"rows/{number}": rows for number, rows in enumerate(self.rows[:NUM_UPDATES], start=1)}
        np.savez(path, **rows, **losses, **self.arrays)


# ---- SAC ----------------------------------------------------------------------------------------------------------

SAC_BATCH = 256
SAC_HIDDENS = (256, 256)
GAMMA = 0.99
TAU = 0.005
INITIAL_ALPHA = 0.05
LOSSES = ("critic_loss", "actor_loss", "alpha_loss", "alpha")


def sac_weights() -> Weights:
    """Return float32 weights of the policy (mean, then log-deviation) and two critics; targets begin as copies."""
    critic = (OBS_SIZE + NUM_ACTIONS, 1)
    networks = {"policy": (OBS_SIZE, 2 * NUM_ACTIONS), "critic0": critic, "critic1": critic}
    return drawn_weights(np.random.default_rng(7), networks, SAC_HIDDENS)


def make_rows() -> dict[str, np.ndarray]:
    """Return transitions, a tenth of which end; rewards are small, so that no critic is off by 1 or more."""
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
    """Return the rows of gradient step `number` (from 1)."""
    return np.random.default_rng((13, number)).integers(0, NUM_ROWS, SAC_BATCH)


def noise_of_update(number: int) -> np.ndarray:
    """Return ``[2, SAC_BATCH, NUM_ACTIONS]``: what draws actions at the observation, and at the next one."""
    return np.random.default_rng((17, number)).standard_normal((2, SAC_BATCH, NUM_ACTIONS), np.float32)


def peer_main(text: str | None, ppo_cases: dict[str, Case], run_ppo: Any, run_sac: Any, version: str) -> None:
    """Take the gradient steps of a peer, write them to ``folder`` as ``<number>.npz`` and print one JSON line."""
    work = protocol.read(text)
    folder = Path(work.folder)
    if work.algorithm == "sac":
        recording = run_sac(sac_weights(), make_rows())
        assert recording.done == NUM_UPDATES
        recording.save(folder / "0.npz")
    else:
        for number, case in enumerate(ppo_cases.values()):
            weights = initial_weights(case)
            run_ppo(case, weights, make_batch(case, weights)).save(folder / f"{number}.npz")
    protocol.print_line(Path(sys.argv[0]).stem, version)
