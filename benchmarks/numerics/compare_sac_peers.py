"""The same gradient steps in Lockstep's SAC learner and in its peers': losses, gradients and parameters compared.

    python benchmarks/peers/setup_peers.py sb3 rllib
    python benchmarks/numerics/compare_sac_peers.py                # some minutes; exit status 1 above 1e-5
    python benchmarks/numerics/compare_sac_peers.py --no-compile   # leaves out Lockstep's compiled gradient step

Stable-Baselines3's SAC and RLlib's SAC learner (new API stack) start from given weights and take 50 gradient steps on
given rows with given random numbers (``peers/numerics.py``); Lockstep takes the same, in float32. Compared are the
losses and the temperature of each step, and gradients, parameters and target networks of steps 1 and 50. Where the
libraries differ on purpose the difference is switched off, and listed in the result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import compare_learner_peers as ppo  # puts peers/ on the path
import gymnasium as gym
import numerics as n
import numpy as np
import report
import torch

from lockstep import SACConfig, SampleBatch
from lockstep.algorithms.families.transitions import NEXT_NOISE, NOISE
from lockstep.algorithms.sac import SACLearner

PEERS: dict[str, tuple[str, str, float, tuple[str, ...]]] = {
    "Stable-Baselines3": (
        "sb3",
        "numerics_sb3.py",
        1e-8,
        (
            "Order: its policy learns from critics that have just moved, ours (and RLlib's) from those that also gave "
            "the critics' errors; its critics' optimizer steps after its policy's here.",
            "Density of an action: it takes log(1 - a^2 + 1e-6), ours is exact; its 1e-6 is 0 here.",
        ),
    ),
    "RLlib": (
        "rllib",
        "numerics_rllib.py",
        1e-7,
        (
            "Critics: its own encode observation and action apart; they have the usual networks here, by its hook.",
            "Error: Huber's, which is ours (half the square) while no critic is off by 1; its script makes sure of it.",
            "Adam: its epsilon is fixed at 1e-7; ours is set to the same.",
        ),
    ),
}


class GivenNoiseLearner(SACLearner):
    """The random numbers come with the batch."""

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Draw none."""
        return {}


class RecordingLearner(GivenNoiseLearner):
    """Our learner, looked at through its own hooks."""

    recording: n.Recording

    def postprocess_gradients(self, gradients: Any) -> Any:
        """Look at them as they come."""
        names = {param: name for name, param in named_parameters(self).items()}
        self.recording.keep("gradient", neutral({names[param]: value for param, value in gradients.items()}))
        return super().postprocess_gradients(gradients)


def named_parameters(learner: Any) -> dict[str, Any]:
    """Return all that learns, by the module's names, and ``log_alpha``."""
    return {
        **dict(learner.module[ppo.MODULE].named_parameters()),
        "log_alpha": learner.registered[f"{ppo.MODULE}/log_alpha"],
    }


def neutral(named: Mapping[str, torch.Tensor], critics: str = "critic") -> dict[str, np.ndarray]:
    """Return the same arrays under neutral names; batched critics one by one, as plain layers have them."""
    found: dict[str, np.ndarray] = {}
    plain = {"encoder.mlp.0": "policy.0", "encoder.mlp.2": "policy.1", "policy_head": "policy.2"}
    for name, value in named.items():
        array = value.detach().numpy()
        start, _, end = name.rpartition(".")
        if start in plain:
            found[f"{plain[start]}.{end}"] = array
        elif name == "log_alpha":
            found[name] = array
        else:  # critics.mlp.weights.1: [networks, inputs, outputs]
            is_weight = start.endswith("weights")
            for k, one in enumerate(array):
                found[f"{critics}{k}.{end}.{'weight' if is_weight else 'bias'}"] = one.T if is_weight else one[0]
    return found


def our_learner(epsilon: float, compiled: bool) -> Any:
    """Build a learner with the given weights."""
    config = (
        SACConfig()
        .environment(
            lambda: None,
            observation_space=gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32),
            action_space=gym.spaces.Box(-1.0, 1.0, (n.NUM_ACTIONS,), np.float32),
        )
        .training(
            learner_class=GivenNoiseLearner if compiled else RecordingLearner,
            lr=n.LEARNING_RATE,
            gamma=n.GAMMA,
            tau=n.TAU,
            initial_alpha=n.INITIAL_ALPHA,
            adam_epsilon=epsilon,
        )
        .rl_module(model_config={"hiddens": n.SAC_HIDDENS})
        .framework(compile=compiled, compile_after=0)
    )
    learner: Any = config.build_learner()
    weights = n.sac_weights()
    initial = {name: weights[name] for name in neutral(named_parameters(learner)) if name != "log_alpha"}
    with torch.no_grad():
        target = learner.registered[f"{ppo.MODULE}/target"]
        arrays = neutral(named_parameters(learner)) | neutral(target.views(), "target")
        for name, array in arrays.items():  # views of the learner's own memory
            if name != "log_alpha":
                array[...] = initial[name.replace("target", "critic")]
    return learner


def our_recording(epsilon: float, compiled: bool) -> n.Recording:
    """Take the gradient steps on the given rows with the given random numbers."""
    learner, rows, recording = our_learner(epsilon, compiled), n.make_rows(), n.Recording()
    if isinstance(learner, RecordingLearner):
        learner.recording = recording
    for number in range(1, n.NUM_UPDATES + 1):
        index = n.rows_of_update(number)
        noise = dict(zip((NOISE, NEXT_NOISE), n.noise_of_update(number)))
        recording.rows.append(index)
        results = learner.update_from_batch(
            SampleBatch({**{name: column[index] for name, column in rows.items()}, **noise})
        )
        recording.losses.append({name: float(results[ppo.MODULE][name]) for name in n.LOSSES})
        target = learner.registered[f"{ppo.MODULE}/target"].views()
        recording.keep("parameter", neutral(named_parameters(learner)) | neutral(target, "target"))
    return recording


def run_peer(peer: str, folder: Path, compiled: bool) -> list[dict[str, Any]]:
    """Compare one peer; ours eager and compiled."""
    environment, script, epsilon, _ = PEERS[peer]
    work = {"algorithm": "sac", "folder": str(folder)}
    line = report.run_json(ppo.Entry(script, environment).command(work), timeout=300)
    theirs, entries = np.load(folder / "0.npz"), []
    for mode in (False, True) if compiled else (False,):
        found = ppo.compare(our_recording(epsilon, mode), theirs, n.LOSSES, ("gradient", "parameter", "target"))
        entries.append(ppo.entry_of(peer, line["version"], mode, found))
    return entries


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    first, last = n.WATCHED
    kinds = ("gradients", "parameters", "targets")
    columns = [f"{kind} {k}" for kind in kinds for k in n.WATCHED]
    lines = [
        [f"{entry['peer']} {entry['peer_version']}", entry["lockstep"], *ppo.worst_of(entry, kinds)]
        for entry in record["entries"]
    ]
    table = report.table(["peer", "Lockstep", f"losses 1-{last}", *columns], lines)
    about = (
        f"SAC with two critics and a learned temperature, networks of 256 x 256, {n.SAC_BATCH} rows, {n.NUM_ACTIONS} "
        "actions, float32, one thread; the same weights, rows and random numbers. Losses: critics, policy, "
        f"temperature, and the temperature itself, of each of the {last} updates; gradients, parameters and target "
        f"networks of updates {first} and {last}."
    )
    notes = [f"{peer}: {text}" for peer, (*_, texts) in PEERS.items() for text in texts]
    return ppo.page(record, "SAC's gradient step beside the peers'", table, about, notes)


if __name__ == "__main__":
    raise SystemExit(ppo.main(__doc__, PEERS, run_peer, render, "sac_numerics"))
