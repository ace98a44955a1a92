"""A new run that begins with what another one has learned: weights, and statistics of connectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.algorithms.learning import space_of, told_of
from lockstep.algorithms.plain_values import named_options
from lockstep.learner.checkpointing import state_from_folders
from lockstep.learner.learner import Learner
from lockstep.learner.targets import TargetNetwork
from lockstep.state.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from lockstep.algorithms.multi_agent_policy import AnyPolicy

EXPORTS = (".onnx", ".pt", ".pt2")
SHAPING = ("normalize_observations", "normalize_rewards", "frame_stack")
"""options of the environment section that decide which connectors there are"""


def start_from(policy: AnyPolicy, path: str | Path) -> None:
    """Give a new policy the weights and the connectors' statistics of the checkpoint at `path`; all else stays new.

    Target networks begin as copies of these weights. Raises `ValueError`, changing nothing, for a checkpoint without a
    policy, for other spaces and for networks or connectors that do not fit.
    """
    path = Path(path)
    if path.suffix in EXPORTS or (path / "card.json").exists():
        raise ValueError(f"init_from={path} is an export; give the run or the checkpoint that it was made of")
    folders = read_checkpoint(path)
    if "policy" not in folders:
        raise ValueError(
            f"init_from={path} holds no policy, but {told_of(folders)}; give a run or one of its checkpoints"
        )
    saved = folders["policy"]["state"]
    for name in ("observation_space", "action_space"):
        own, other = getattr(policy, name), space_of(saved[name])
        if own != other:
            raise ValueError(f"init_from={path} has the {name} {other}, the environment of this run has {own}")
    state = state_from_folders(folders, "learner")
    try:
        policy.learner_group.foreach_learner(_start_learner, state["rl_module"], state["connectors"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"init_from={path} does not fit: {_differences(policy, saved['config'])}{error}") from error
    policy._take_over()


def _start_learner(learner: Learner, weights: Mapping[str, Any], connectors: Mapping[str, Any]) -> None:
    own = learner.get_state()["connectors"]
    taken = {module_id: _statistics(saved, own.get(module_id)) for module_id, saved in connectors.items()}
    unknown = sorted(set(weights) ^ set(learner.module))
    if unknown:
        raise ValueError(f"modules {unknown} are on one side only (here {sorted(learner.module)})")
    learner.set_state({"rl_module": weights, "connectors": taken, "weights_seq_no": learner.weights_seq_no + 1})
    for registered in learner.registered.values():
        if isinstance(registered, TargetNetwork):
            registered.begin_anew(learner.optimizers)


def _statistics(saved: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of observations, and of rewards where they are scaled here and there; no episode goes on."""
    rewards = None if own is None else own["rewards"]
    if rewards is not None and saved["rewards"] is not None:
        rewards = {**saved["rewards"], "returns": np.zeros(0)}
    return {"obs": saved["obs"], "rewards": rewards}


def _differences(policy: AnyPolicy, saved: Mapping[str, Any]) -> str:
    """Options of networks and connectors that differ, with how to set them."""
    own = named_options(policy.config)
    found = []
    pairs = [("environment", own["environment"], saved["environment"], SHAPING)]
    models = [config["rl_module"]["model_config"] for config in (own, saved)]
    if all(isinstance(model, Mapping) for model in models):
        pairs.append(("rl_module.model_config", models[0], models[1], tuple(models[0])))
    for prefix, here, there, names in pairs:
        found += [
            f"{prefix}.{name}={there[name]!r} there, {here[name]!r} here"
            for name in names
            if name in there and there[name] != here[name]
        ]
    return f"{'; '.join(found)}. Set them as there. " if found else ""
