"""State of a learner as a tree, and as the folders of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lockstep.state.checkpoint import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner

State = dict[str, Any]


def learner_state(learner: Learner, *, inference_only: bool = False) -> State:
    """Everything mutable: networks, optimizers, schedules, coefficients, statistics, random streams, counters."""
    return {
        "rl_module": learner.module.get_state(inference_only=inference_only),
        "optimizer": learner.optimizers.get_state(),
        "connectors": {mid: connectors.get_state() for mid, connectors in learner.connectors.items()},
        "coefficients": {
            f"{mid}/{name}": {"schedule": schedule.get_state(), "value": float(value)}
            for (mid, name), (schedule, value) in learner.coefficients.items()
        },
        "registered": {name: _out(value) for name, value in learner.registered.items()},
        "should_module_be_updated": _policies(learner.policies_to_train),
        "weights_seq_no": learner.weights_seq_no,
        "lifetime": dict(learner.lifetime),
        "random": learner.streams.get_state(),
    }


def set_learner_state(learner: Learner, state: Mapping[str, Any]) -> None:
    """Restores the components present in `state`; what does not fit is refused before anything is changed."""
    known = set(learner_state(learner))
    unknown = sorted(set(state) - known)
    if unknown:
        raise ValueError(f"unknown components {unknown}; a learner's state has {sorted(known)}")
    _check(learner, state)
    before = learner_state(learner)
    try:
        _apply(learner, state)
    except Exception as error:
        _apply(learner, before)
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the state does not fit this learner, nothing was changed: {reason}") from error


def _apply(learner: Learner, state: Mapping[str, Any]) -> None:
    for module_id, weights in state.get("rl_module", {}).items():
        learner.module[module_id].set_state(weights)
    if "optimizer" in state:
        learner.optimizers.set_state(state["optimizer"])
    for module_id, saved in state.get("connectors", {}).items():
        learner.connectors[module_id].set_state(saved)
    for key, saved in state.get("coefficients", {}).items():
        module_id, name = key.rsplit("/", 1)
        schedule, value = learner.coefficients[module_id, name]
        schedule.set_state(saved["schedule"])
        value.fill_(saved["value"])
    for name, saved in state.get("registered", {}).items():
        _restore_registered(learner, name, saved)
    if "weights_seq_no" in state:
        learner.weights_seq_no = int(state["weights_seq_no"])
    if "lifetime" in state:
        learner.lifetime = {name: int(count) for name, count in state["lifetime"].items()}
    if "random" in state:
        learner.streams.set_state(state["random"])
    if isinstance(state.get("should_module_be_updated"), list):
        learner.policies_to_train = list(state["should_module_be_updated"])


def save_to_path(self: Learner, path: str | Path) -> str:
    """Writes a checkpoint folder (safetensors and JSON, SHA-256 manifest); returns its absolute path."""
    return str(write_checkpoint(Path(path), checkpoint_folders(self, "learner")))


def restore_from_path(self: Learner, path: str | Path, component: str | None = None) -> None:
    """Restores all of a checkpoint, or one component such as `"rl_module/default_policy"`; all or nothing.

    Raises `CheckpointError` for a damaged or foreign one, `KeyError` for a component that is not in it, `ValueError`
    for one that does not fit.
    """
    state = state_from_folders(read_checkpoint(Path(path)), "learner")
    self.set_state(select_components(state, component, None))


def checkpoint_folders(learner: Learner, prefix: str) -> dict[str, State]:
    """The folders of a learner's checkpoint: `prefix`, `prefix/optimizer`, `prefix/rl_module/<module id>`."""
    state = learner_state(learner)
    del state["rl_module"]
    optimizer = state.pop("optimizer")
    folders: dict[str, State] = {prefix: {"state": state}, f"{prefix}/optimizer": optimizer}
    for module_id, module in learner.module.items():
        folders[f"{prefix}/rl_module/{module_id}"] = module.state_tree()
    return folders


def state_from_folders(folders: Mapping[str, State], prefix: str) -> State:
    """The learner's state that `checkpoint_folders` wrote; `KeyError` naming the folder that is missing."""
    if prefix not in folders or "state" not in folders[prefix]:
        raise KeyError(f"the checkpoint has no folder {prefix!r} with a learner's state; it has {sorted(folders)}")
    state = dict(folders[prefix]["state"])
    state["optimizer"] = folders.get(f"{prefix}/optimizer", {})
    start = f"{prefix}/rl_module/"
    state["rl_module"] = {
        name[len(start) :]: tree["weights"] for name, tree in folders.items() if name.startswith(start)
    }
    return state


def select_components(
    state: State, components: Collection[str] | str | None, not_components: Collection[str] | str | None
) -> State:
    """The named components only (`"rl_module"`, `"rl_module/p0"`); `KeyError` with those that exist."""
    wanted = [components] if isinstance(components, str) else components
    unwanted = [not_components] if isinstance(not_components, str) else (not_components or [])
    chosen: State = dict(state) if wanted is None else {}
    for path in wanted or []:
        head, rest = _split_path(state, path)
        if rest:
            chosen[head] = {**chosen.get(head, {}), rest: state[head][rest]}
        else:
            chosen[head] = state[head]
    for path in unwanted:
        head, rest = _split_path(state, path)
        if not rest:
            chosen.pop(head, None)
        elif head in chosen:
            chosen[head] = {name: value for name, value in chosen[head].items() if name != rest}
    return chosen


def _split_path(state: State, path: str) -> tuple[str, str]:
    head, _, rest = path.partition("/")
    if head not in state or (rest and not (isinstance(state[head], Mapping) and rest in state[head])):
        known = sorted(state)
        if head in state and isinstance(state[head], Mapping):
            known = [f"{head}/{name}" for name in sorted(state[head])]
        raise KeyError(f"no component {path!r}; there are {known}")
    return head, rest


def _check(learner: Learner, state: Mapping[str, Any]) -> None:
    problems: list[str] = []
    for module_id, weights in state.get("rl_module", {}).items():
        if module_id not in learner.module:
            problems.append(f"module {module_id!r} is unknown (known: {sorted(learner.module)})")
            continue
        problems += [f"{module_id}: {text}" for text in weights_problems(learner.module[module_id], weights)]
    for group, known in (
        ("connectors", set(learner.connectors)),
        ("registered", set(learner.registered)),
        ("coefficients", {f"{mid}/{name}" for mid, name in learner.coefficients}),
    ):
        if group in state and set(state[group]) != known:
            missing, extra = sorted(known - set(state[group])), sorted(set(state[group]) - known)
            problems.append(f"{group}: missing {missing}, unknown {extra}")
    if problems:
        raise ValueError("the state does not fit this learner, nothing was changed: " + "; ".join(problems))
    if "optimizer" in state:
        learner.optimizers.check_state(state["optimizer"])


def weights_problems(module: torch.nn.Module, weights: Mapping[str, Any]) -> list[str]:
    """What keeps `weights` from being loaded into `module`, in words."""
    own = module.state_dict()
    problems = []
    if set(own) != set(weights):
        problems.append(f"missing {sorted(set(own) - set(weights))}, unknown {sorted(set(weights) - set(own))}")
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(own[name].shape)}"
        for name in sorted(set(own) & set(weights))
        if tuple(own[name].shape) != tuple(weights[name].shape)
    ]
    return problems


def _out(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.get_state() if hasattr(value, "get_state") else value


def _restore_registered(learner: Learner, name: str, saved: Any) -> None:
    value = learner.registered[name]
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(torch.as_tensor(saved))
    elif isinstance(value, np.ndarray):
        value[...] = saved
    elif hasattr(value, "set_state"):
        value.set_state(saved)
    else:
        learner.registered[name] = saved


def _policies(policies: Any) -> Any:
    return None if policies is None or callable(policies) else sorted(policies)
