"""State of a learner as a tree, and as the folders of a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lockstep.connectors import ModuleConnectors
from lockstep.learner.argument_checks import checked_names
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.optimizers import tell_configured
from lockstep.learner.recipe import built_section, imported_class, recipe_of
from lockstep.learner.reduction import Reducer
from lockstep.modules import MultiRLModule, RLModule
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner

State = dict[str, Any]
COMPONENTS = (
    "rl_module", "optimizer", "connectors", "coefficients", "registered", "should_module_be_updated", "weights_seq_no",
    "lifetime", "random",
)  # fmt: skip

LEARNER_CLASS = "learner_class"
"""beside the components of a state from a checkpoint: whose it is, to be told where it does not fit"""


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
    if not isinstance(state, Mapping):
        raise TypeError(f"a learner's state is a dict by component, not {type(state).__name__}")
    unknown = sorted(set(state) - {*COMPONENTS, LEARNER_CLASS})
    if unknown:
        raise ValueError(f"unknown components {unknown}; a learner's state has {sorted(COMPONENTS)}")
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
        saved_value = schedule.follow(saved["schedule"])
        value.fill_(saved["value"] if saved_value is None else schedule.value)
        if saved_value is not None:
            tell_configured(f"{name} of {module_id}", schedule.value, saved_value)
    for name, saved in state.get("registered", {}).items():
        _restore_registered(learner, name, saved)
    if "weights_seq_no" in state:
        learner.weights_seq_no = int(state["weights_seq_no"])
    if "lifetime" in state:
        learner.lifetime = {name: int(count) for name, count in state["lifetime"].items()}
    if "random" in state:
        learner.streams.set_state(state["random"])
    allowed = state.get("should_module_be_updated", {})
    if not isinstance(allowed, Mapping):  # a function cannot be saved: the learner keeps its own
        learner.policies_to_train = allowed if allowed is None else list(allowed)


def save_to_path(self: Learner, path: str | Path | None = None) -> str:
    """Writes a checkpoint folder (safetensors and JSON, SHA-256 manifest); returns its absolute path.

    `path` None: a new temporary folder.
    """
    return str(write_checkpoint(path, checkpoint_folders(self, "learner")))


def restore_from_path(self: Learner, path: str | Path, component: str | None = None) -> None:
    """Restores all of a checkpoint, or one component such as `"rl_module/default_policy"`; all or nothing.

    That component may also come from a module's own folder, or from that of a `MultiRLModule`.

    Raises `CheckpointError` for a damaged or foreign one, `KeyError` for a component that is not in it, `ValueError`
    for one that does not fit.
    """
    self.set_state(state_to_restore(read_checkpoint(Path(path)), component, self.get_state()))


def from_checkpoint(
    cls: type[Learner],
    path: str | Path,
    *,
    config: TrainingSection | None = None,
    framework: FrameworkSection | None = None,
    connectors: Mapping[str, ModuleConnectors] | None = None,
    module_configs: Mapping[str, TrainingSection] | None = None,
    modules: Mapping[str, RLModule] | None = None,
    policies_to_train: Any = None,
) -> Learner:
    """The learner of a checkpoint, built as it was and restored; called on `Learner`, of the class that was saved.

    What a file cannot hold is passed in: `config` (with schedules that are functions), `connectors` (with
    statistics), `modules` by id (of classes that cannot be imported, or wrapped), `policies_to_train` (a function).
    Raises `CheckpointError` for a damaged or foreign checkpoint, `ValueError` saying what has to be passed in.
    """
    return learner_from_folders(
        read_checkpoint(Path(path)),
        cls,
        config=config,
        framework=framework,
        connectors=connectors,
        module_configs=module_configs,
        modules=modules,
        policies_to_train=policies_to_train,
    )


def learner_from_folders(
    folders: Mapping[str, State],
    cls: type[Learner] | None = None,
    *,
    config: TrainingSection | None = None,
    framework: FrameworkSection | None = None,
    connectors: Mapping[str, ModuleConnectors] | None = None,
    module_configs: Mapping[str, TrainingSection] | None = None,
    modules: Mapping[str, RLModule] | None = None,
    policies_to_train: Any = None,
    reducer: Reducer | None = None,
) -> Learner:
    """As `from_checkpoint`, from what was read of it; with a `reducer` one of several learners that act as one."""
    from lockstep.learner.learner import Learner

    cls = cls or Learner
    state = state_to_restore(folders, None, {})
    recipe = folders["learner"].get("recipe")
    if recipe is None:
        raise ValueError("the checkpoint does not say how its learner is built; build one and use restore_from_path")
    given = module_configs or {}
    configs = {
        mid: built_section(saved, given.get(mid), TrainingSection) for mid, saved in recipe["module_configs"].items()
    }
    start = "learner/rl_module/"
    trees = {name[len(start) :]: tree for name, tree in folders.items() if name.startswith(start)}
    built = {mid: (modules or {}).get(mid) or RLModule.from_state_tree(tree) for mid, tree in trees.items()}
    if connectors is None:
        _check_no_statistics(state_from_folders(folders, "learner")["connectors"])
    learner_class = (
        imported_class(recipe["learner_class"], Learner, "build it and use restore_from_path")
        if cls is Learner
        else cls
    )
    learner: Learner = learner_class(
        config=built_section(recipe["training"], config, TrainingSection),
        framework=built_section(recipe["framework"], framework, FrameworkSection),
        module_spec=MultiRLModule(built),
        connectors=connectors,
        module_configs=configs,
        policies_to_train=policies_to_train,
        reducer=reducer,
    )
    learner.build()
    learner.set_state(state)
    return learner


def state_to_restore(folders: Mapping[str, State], component: str | None, current: Mapping[str, Any]) -> State:
    """The state of a checkpoint's learner, whole or one component of it (what is beside it, as in `current`).

    A module's own folder, or one of several modules, has the component `"rl_module"`, and `"rl_module/<id>"`.
    Raises `ValueError` where a whole one lacks components (it is older, or was put together by hand).
    """
    modules = _modules_of(folders)
    if modules is not None:
        return {"rl_module": _weights_to_restore(modules, component, current)}
    state = state_from_folders(folders, "learner")
    if component is None:
        missing = sorted(set(COMPONENTS) - set(state))
        if missing:
            raise ValueError(
                f"the checkpoint lacks {missing}: it is of an older version. It has {sorted(state)}; restore those "
                "one by one with component=..., e.g. component='rl_module'"
            )
        recipe = folders["learner"].get("recipe") or {}
        return {**state, LEARNER_CLASS: str(recipe.get("learner_class", "")).rpartition(":")[2]}
    chosen = select_components(state, component, None)
    return {
        head: {**current[head], **part} if "/" in component and head != "rl_module" and head in current else part
        for head, part in chosen.items()
    }


def _modules_of(folders: Mapping[str, State]) -> dict[str, State] | None:
    """The trees by id of what a module or several modules wrote (`""` for a module alone), or None."""
    trees = {name: tree for name, tree in folders.items() if name or tree}
    return trees if trees and all({"weights", "spec"} <= tree.keys() for tree in trees.values()) else None


def _weights_to_restore(trees: Mapping[str, State], component: str | None, current: Mapping[str, Any]) -> State:
    """The weights by module id that `component` takes from modules that were saved without a learner.

    Raises `ValueError` where it does not say which module gets them, `KeyError` for one that is not there.
    """
    head, _, module_id = (component or "").partition("/")
    known = sorted(current.get("rl_module", {}))
    if head != "rl_module":
        raise ValueError(
            "this is a checkpoint of modules, without a learner's state; restore their weights with "
            "component='rl_module' or 'rl_module/<module id>' (of a group: 'learner/rl_module...')"
        )
    if "" not in trees:
        weights = {name: tree["weights"] for name, tree in trees.items()}
        return dict(select_components({"rl_module": weights}, component, None)["rl_module"])
    if not module_id and len(known) != 1:
        raise ValueError(f"this is one module, and there are {known}; say which with component={head + '/<id>'!r}")
    return {module_id or known[0]: trees[""]["weights"]}


def checkpoint_folders(learner: Learner, prefix: str) -> dict[str, State]:
    """The folders of a learner's checkpoint: `prefix`, `prefix/optimizer`, `prefix/rl_module/<module id>`."""
    state = learner_state(learner)
    del state["rl_module"]
    optimizer = state.pop("optimizer")
    folders: dict[str, State] = {
        prefix: {"state": state, "recipe": recipe_of(learner)},
        f"{prefix}/optimizer": optimizer,
    }
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
    wanted = checked_names("components", components)
    unwanted = checked_names("not_components", not_components) or []
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
    for part in ("rl_module", "optimizer", "connectors", "coefficients", "registered", "lifetime"):
        if not isinstance(state.get(part, {}), Mapping):
            raise ValueError(f"{part} must be a dict, not {type(state[part]).__name__}; nothing was changed")
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
    for name, saved in state.get("registered", {}).items():
        own = learner.registered.get(name)
        if isinstance(own, torch.Tensor | np.ndarray) and np.shape(saved) != tuple(own.shape):
            problems.append(f"registered {name!r} has shape {tuple(np.shape(saved))}, expected {tuple(own.shape)}")
    problems += _who_learns_problems(learner, state)
    if problems:
        raise ValueError(f"{_whose(learner, state)}, nothing was changed: {'; '.join(problems)}")
    if "optimizer" in state:
        learner.optimizers.check_state(state["optimizer"])


def _whose(learner: Learner, state: Mapping[str, Any]) -> str:
    """That the state does not fit, and of which learners the two are."""
    own, saved = type(learner).__name__, state.get(LEARNER_CLASS)
    modules = ", ".join(sorted({type(module).__name__ for module in learner.module.values()}))
    told = f"the state does not fit this {own} (of {modules})"
    if saved and saved != own:
        return f"{told}: it is of a {saved}; from_checkpoint(path) builds what was saved"
    return told


def _who_learns_problems(learner: Learner, state: Mapping[str, Any]) -> list[str]:
    allowed = state.get("should_module_be_updated")
    if isinstance(allowed, Mapping) and not callable(learner.policies_to_train):
        return [f"should_module_be_updated was the function {allowed.get('function')}: set policies_to_train to it"]
    if allowed is None or isinstance(allowed, Mapping):
        return []
    if not isinstance(allowed, list | tuple):
        return [f"should_module_be_updated must be None or a list of ids, not {allowed!r}"]
    unknown = sorted(set(map(str, allowed)) - set(learner.module))
    return [f"should_module_be_updated names {unknown} (known: {sorted(learner.module)})"] if unknown else []


def weights_problems(module: torch.nn.Module, weights: Any) -> list[str]:
    """What keeps `weights` from being loaded into `module`, in words."""
    own = module.state_dict()
    if not isinstance(weights, Mapping):
        return [f"its weights must be a dict by name, not {type(weights).__name__}"]
    problems = []
    if set(own) != set(weights):
        problems.append(f"missing {sorted(set(own) - set(weights))}, unknown {sorted(set(weights) - set(own))}")
    problems += [
        f"{name} has shape {tuple(np.shape(weights[name]))}, expected {tuple(own[name].shape)}"
        for name in sorted(set(own) & set(weights))
        if tuple(own[name].shape) != tuple(np.shape(weights[name]))
    ]
    return problems


def _out(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.get_state() if hasattr(value, "get_state") else copy.deepcopy(value)


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
        learner.registered[name] = copy.deepcopy(saved)


def _policies(policies: Any) -> Any:
    if callable(policies):
        return {"function": getattr(policies, "__qualname__", type(policies).__name__)}
    return None if policies is None else sorted(policies)


def _check_no_statistics(saved: Mapping[str, Any]) -> None:
    for module_id, state in saved.items():
        try:
            if state["rewards"] is not None:
                raise ValueError("it scales rewards")
            ModuleConnectors().set_state(state)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"module {module_id!r} had connectors with statistics, which a checkpoint does not build ({error}); "
                "pass connectors={module_id: ModuleConnectors(...)}"
            ) from None
