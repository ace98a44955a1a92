"""Components of a learner's state, folders of its checkpoint, and the recipe in a checkpoint to build it again."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypedDict

import numpy as np
import torch

from lockstep.connectors import ModuleConnectors
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.inputs import TrainedModules
from lockstep.modules import MultiRLModule, RLModule
from lockstep.options.section import Section
from lockstep.state.names import name_of
from lockstep.state.trust import FileNames, Kind, NameInFile, find_class

State = dict[str, Any]
COMPONENTS = (
    "rl_module", "optimizer", "connectors", "coefficients", "registered", "should_module_be_updated", "weights_seq_no",
    "lifetime", "metrics", "random",
)  # fmt: skip
"""Names of the components of a learner's state.

`should_module_be_updated` is `policies_to_train`, `lifetime` are counters over the life of the learner, and
`registered` is the state that `Learner.register_state` has added."""
LEARNER_CLASS = "learner_class"
"""Additional key in a state from a checkpoint: the name of the learner's class, for messages if it does not fit."""


def check_state(
    state: Mapping[str, Any], present: Mapping[str, Any], learner: str, networks: str, policies_to_train: object
) -> None:
    """Check that `state` fits a learner whose state is `present`; `ValueError` with everything that does not.

    The state of optimizers is not checked here. `learner` and `networks` are names of classes, for messages.
    """
    unknown = sorted(set(state) - {*COMPONENTS, LEARNER_CLASS})
    if unknown:
        raise ValueError(f"unknown components {unknown}; a learner's state has {sorted(COMPONENTS)}")
    for part in ("rl_module", "optimizer", "connectors", "coefficients", "registered", "lifetime", "metrics"):
        if not isinstance(state.get(part, {}), Mapping):
            raise ValueError(f"{part} must be a dict, not {type(state[part]).__name__}; nothing was changed")

    problems: list[str] = []
    for part in ("connectors", "coefficients", "registered"):
        if part in state:
            problems += _misfits(part, state[part], present[part])
    modules = present["rl_module"]
    for module_id, weights in state.get("rl_module", {}).items():
        if module_id in modules:
            problems += _misfits(module_id, weights, modules[module_id])
        else:
            problems.append(f"module {module_id!r} is unknown (known: {sorted(modules)})")

    allowed = state.get("should_module_be_updated")
    if isinstance(allowed, Mapping):  # the name of a function, see `policies_state`
        if not callable(policies_to_train):
            name = allowed.get("function")
            problems.append(f"should_module_be_updated was the function {name}: set policies_to_train to it")
    elif allowed is not None and not isinstance(allowed, list | tuple):
        problems.append(f"should_module_be_updated must be None or a list of ids, not {allowed!r}")
    elif unknown := sorted(set(map(str, allowed or ())) - set(modules)):
        problems.append(f"should_module_be_updated names {unknown} (known: {sorted(modules)})")

    if problems:
        saved_class = state.get(LEARNER_CLASS)
        is_other_class = saved_class and saved_class != learner
        hint = f": it is of a {saved_class}; from_checkpoint(path) builds what was saved" if is_other_class else ""
        raise ValueError(
            f"the state does not fit this {learner} (of {networks}){hint}, nothing was changed: {'; '.join(problems)}"
        )


def _misfits(where: str, saved: object, present: Mapping[str, Any]) -> list[str]:
    """Return descriptions of all differences in names, and in shapes of arrays, between `saved` and `present`."""
    if not isinstance(saved, Mapping):
        return [f"{where} must be a dict, not {type(saved).__name__}"]
    missing = sorted(set(present) - set(saved))
    unknown = sorted(set(saved) - set(present))
    problems = [f"{where}: missing {missing}, unknown {unknown}"] if missing or unknown else []
    for name, value in present.items():
        if name not in saved or not isinstance(value, torch.Tensor | np.ndarray):
            continue
        if np.shape(saved[name]) != value.shape:
            saved_shape = tuple(np.shape(saved[name]))
            problems.append(f"{where}: {name} has shape {saved_shape}, expected {tuple(value.shape)}")
    return problems


def state_to_restore(folders: Mapping[str, State], component: str | None, current: Mapping[str, Any]) -> State:
    """Return the state in the folders of a checkpoint, whole or one component of it.

    `current` is the present state of the learner. A component such as `"lifetime/env_steps"` is a part of another one,
    `"lifetime"`, which can only be restored as a whole. Its other parts are then taken from `current`. Checkpoints of
    modules without a learner have the components `"rl_module"` and `"rl_module/<id>"` only.

    Raises `ValueError` if a whole state lacks components. Then it is older, or was put together by hand.
    """
    modules = _modules_of(folders)
    if modules is not None:
        return {"rl_module": _weights_to_restore(modules, component, current)}
    state = state_from_folders(folders)
    if component is None:
        missing = sorted(set(COMPONENTS) - {"metrics"} - set(state))  # older checkpoints have no metrics
        if missing:
            raise ValueError(
                f"the checkpoint lacks {missing}: it is of an older version. It has {sorted(state)}; restore those "
                "one by one with component=..., e.g. component='rl_module'"
            )
        recipe = folders["learner"].get("recipe") or {}
        return {**state, LEARNER_CLASS: str(recipe.get("learner_class", "")).rpartition(":")[2]}

    restored_state: State = {}
    for name, value in select_components(state, component, None).items():
        # Weights are restored module by module, all other components as a whole.
        is_part = "/" in component
        needs_other_parts = is_part and name != "rl_module" and name in current
        restored_state[name] = {**current[name], **value} if needs_other_parts else value
    return restored_state


def _modules_of(folders: Mapping[str, State]) -> dict[str, State] | None:
    """Return the state trees of modules that were saved without a learner, by module id; None for other folders.

    The id of a module that was saved alone is `""`.
    """
    # The root folder, named "", is empty unless it holds a module that was saved alone.
    trees = {name: tree for name, tree in folders.items() if name or tree}
    return trees if trees and all({"weights", "spec"} <= tree.keys() for tree in trees.values()) else None


def _weights_to_restore(trees: Mapping[str, State], component: str | None, current: Mapping[str, Any]) -> State:
    """Return the weights that `component` selects from modules that were saved without a learner, by module id.

    `trees` are their state trees as `_modules_of` returns them, and `current` is the present state of the learner. One
    module that was saved alone has no id, so `component` or the learner's only module says which module gets it.

    Raises `ValueError` if it does not say which module gets them, and `KeyError` for an unknown module.
    """
    head, _, module_id = (component or "").partition("/")
    learner_modules = sorted(current.get("rl_module", {}))
    if head != "rl_module":
        raise ValueError(
            "this is a checkpoint of modules, without a learner's state; restore their weights with "
            "component='rl_module' or 'rl_module/<module id>' (of a group: 'learner/rl_module...')"
        )
    if "" not in trees:
        weights = {name: tree["weights"] for name, tree in trees.items()}
        return dict(select_components({"rl_module": weights}, component, None)["rl_module"])
    if not module_id and len(learner_modules) != 1:
        raise ValueError(
            f"the checkpoint has one module, and the learner has {learner_modules}; say which of them with "
            f"component={head + '/<id>'!r}"
        )
    return {module_id or learner_modules[0]: trees[""]["weights"]}


def state_from_folders(folders: Mapping[str, State]) -> State:
    """Return the learner's state in the folders of `Learner.checkpoint_folders`; `KeyError` if a folder is missing."""
    if "state" not in folders.get("learner", ()):
        raise KeyError(f"the checkpoint has no folder 'learner' with a learner's state; it has {sorted(folders)}")
    weights = {module_id: tree["weights"] for module_id, tree in _module_folders(folders).items()}
    return {**folders["learner"]["state"], "optimizer": folders.get("learner/optimizer", {}), "rl_module": weights}


def _module_folders(folders: Mapping[str, State]) -> dict[str, State]:
    """Return the state tree of each module of a learner, by module id."""
    prefix = "learner/rl_module/"
    return {name.removeprefix(prefix): tree for name, tree in folders.items() if name.startswith(prefix)}


def select_components(
    state: State, components: Collection[str] | str | None, not_components: Collection[str] | str | None
) -> State:
    """Return the `components` of a state without `not_components`; `KeyError` with the known names for another one.

    Names are paths such as `"rl_module"` or `"rl_module/p0"`. `components=None` takes all of them.
    """
    wanted = names_of(components)
    unwanted = names_of(not_components) or []
    chosen: State = dict(state) if wanted is None else {}  # never a part of `state` itself, which stays unchanged
    for path in wanted or []:
        component, part = _split_path(state, path)
        if part:
            chosen[component] = {**chosen.get(component, {}), part: state[component][part]}
        else:
            chosen[component] = state[component]
    for path in unwanted:
        component, part = _split_path(state, path)
        if not part:
            chosen.pop(component, None)
        elif component in chosen:
            chosen[component] = {name: value for name, value in chosen[component].items() if name != part}
    return chosen


def _split_path(state: State, path: str) -> tuple[str, str]:
    """Return the component in a path, and the part of it (or `""`); `KeyError` if the state does not have them."""
    component, _, part = path.partition("/")
    has_parts = isinstance(state.get(component), Mapping)
    if component not in state or (part and not (has_parts and part in state[component])):
        known = sorted(state)
        if has_parts:
            known = [f"{component}/{name}" for name in sorted(state[component])]
        raise KeyError(f"no component {path!r}; there are {known}")
    return component, part


def state_of(value: object) -> Any:
    """Return a copy of a registered value as state: a tensor, an array, a number, or the state of an object."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.get_state() if hasattr(value, "get_state") else copy.deepcopy(value)


def restored(present: object, saved: object) -> Any:
    """Return the registered value `present` with the saved state. Tensors, arrays and objects are changed in place.

    Compiled steps and graphs keep reading the old objects, so they would not notice new ones.
    """
    if isinstance(present, torch.Tensor):
        with torch.no_grad():
            present.copy_(torch.as_tensor(saved))
    elif isinstance(present, np.ndarray):
        present[...] = saved
    elif hasattr(present, "set_state"):
        present.set_state(saved)
    else:
        return copy.deepcopy(saved)
    return present


def policies_state(policies: TrainedModules) -> Any:
    """Return `policies_to_train` as plain data. Of a function it holds the name only."""
    if callable(policies):
        return {"function": getattr(policies, "__qualname__", type(policies).__name__)}
    return None if policies is None else sorted(policies)


def check_no_statistics(saved: Mapping[str, Any]) -> None:
    """Check that saved connectors have no statistics; `ValueError` otherwise.

    A checkpoint does not say how connectors are built, so those with statistics have to be passed in. Connectors
    without statistics are recognized by the fact that their state fits new, empty connectors.
    """
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


def names_of(names: Collection[str] | str | None) -> list[str] | None:
    """Return one name or several names as a list; `TypeError` for a value that is not text."""
    if names is None:
        return None
    several = [names] if isinstance(names, str) else names
    if isinstance(several, Mapping) or not all(isinstance(name, str) for name in several):
        raise TypeError(f"{names!r} must be one name, a list of names, or None")
    return list(several)


# -- building a learner ---


class LearnerParts(TypedDict, total=False):
    """Arguments of `Learner.from_checkpoint`: parts of a learner that a file cannot hold."""

    config: TrainingSection | None
    framework: FrameworkSection | None
    connectors: Mapping[str, ModuleConnectors] | None
    module_configs: Mapping[str, TrainingSection] | None
    modules: Mapping[str, RLModule] | None
    policies_to_train: TrainedModules


def arguments_of_saved_learner(
    folders: Mapping[str, State],
    *,
    config: Section | None = None,
    framework: Section | None = None,
    connectors: Mapping[str, ModuleConnectors] | None = None,
    module_configs: Mapping[str, Section] | None = None,
    modules: Mapping[str, RLModule] | None = None,
    policies_to_train: object = None,
    names: FileNames | None = None,
) -> tuple[dict[str, Any], str, State]:
    """Return the arguments of the learner in a checkpoint, the import path of its class, and its state.

    Parts that are passed in replace saved ones. Raises `ValueError` naming the parts that have to be passed in. `names`
    finds the objects that the checkpoint names; None treats the file as not trusted by the user.
    """
    state = state_to_restore(folders, None, {})
    recipe = folders["learner"].get("recipe")
    if recipe is None:
        raise ValueError("the checkpoint does not say how its learner is built; build one and use restore_from_path")
    names = (names or FileNames("the checkpoint", {})).of_part(recipe)
    configs = module_configs or {}
    passed_modules = modules or {}
    if connectors is None:
        check_no_statistics(state["connectors"])
    networks = {
        mid: passed_modules.get(mid) or RLModule.from_state_tree(tree, names=names)
        for mid, tree in _module_folders(folders).items()
    }
    arguments = {
        "module_spec": MultiRLModule(networks),
        "config": built_section(recipe["training"], config, TrainingSection, names),
        "framework": built_section(recipe["framework"], framework, FrameworkSection, names),
        "connectors": connectors,
        "module_configs": {
            mid: built_section(saved, configs.get(mid), TrainingSection, names)
            for mid, saved in recipe["module_configs"].items()
        },
        "policies_to_train": policies_to_train,
    }
    return arguments, recipe["learner_class"], state


def section_recipe(section: Section) -> State:
    """Return the recipe of a section: the name of its class, its plain options, and the names of all other options."""
    options = {
        f.name: getattr(section, f.name)
        for f in fields(section)  # type: ignore[arg-type]
        if f.name != "learner_class"
    }
    return {
        "class": name_of(type(section)),
        "options": {name: value for name, value in options.items() if _is_plain(value)},
        "functions": sorted(name for name, value in options.items() if not _is_plain(value)),
    }


def built_section(saved: Mapping[str, Any], section: Section | None, base: type, names: FileNames) -> Any:
    """Return `section`, or the saved section if it is None.

    Raises `ValueError` if the saved one cannot be built, naming the argument that has to be passed in.
    """
    if section is not None:
        return section
    name = "framework" if base is FrameworkSection else "config"
    if saved["functions"]:
        raise ValueError(
            f"the options {saved['functions']} are functions or objects, which a checkpoint does not hold; pass {name}="
        )
    return class_in_file(saved["class"], base, f"pass {name}=", names)(**saved["options"])


def class_in_file(path: str, base: type, otherwise: str, names: FileNames) -> Any:
    """Return the class that a checkpoint names; `ValueError` unless it is importable and a subclass of `base`.

    `path` is the name of the class, `module:Class`. `otherwise` ends each message with what the user can do
    instead.
    """
    option = f"the {base.__name__} class"
    # `takes_others=False`: not even a file that the user trusts may name an object that is not such a class.
    kind = Kind(f"a subclass of {base.__name__}", (base,), takes_others=False)
    return find_class(option, NameInFile(path, names, option), kind, otherwise)


def _is_plain(value: object) -> bool:
    """Return whether JSON can hold a value."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
