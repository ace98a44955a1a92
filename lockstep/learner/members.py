"""The modules of a learner: set up when it is built, added and removed while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from lockstep.connectors import ModuleConnectors
from lockstep.learner.config import TrainingSection, check_policies_to_train
from lockstep.learner.means import statistics_join
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
    check_module_id,
)
from lockstep.state.checks import suggestion
from lockstep.state.schedules import Schedule

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner

WhoLearns = Collection[str] | Callable[..., bool] | None


def built_modules(spec: MultiRLModuleSpec | MultiRLModule | RLModuleSpec | RLModule) -> MultiRLModule:
    """Built modules as they are, specs built; a single one under the default id. `TypeError` for anything else."""
    if isinstance(spec, MultiRLModule):
        return spec
    if isinstance(spec, MultiRLModuleSpec):
        return spec.build()
    if not isinstance(spec, RLModule | RLModuleSpec):
        raise TypeError(
            f"module_spec must be an RLModuleSpec, a MultiRLModuleSpec or a built module, not {type(spec).__name__}; "
            "wrap_module() takes a plain nn.Module"
        )
    return MultiRLModule({DEFAULT_MODULE_ID: spec if isinstance(spec, RLModule) else spec.build()})


def checked_modules(learner: Learner, module: MultiRLModule) -> MultiRLModule:
    """`module` on the learner's device; `ValueError` naming what cannot be trained and ids that are unknown."""
    if not len(module):
        raise ValueError("the module spec has no modules; a learner needs at least one")
    wrong = [mid for mid in module if not learner._is_module_compatible_with_learner(module[mid])]
    if wrong:
        raise ValueError(
            f"modules {wrong} cannot be trained here; each must be a torch.nn.Module, or override "
            f"{type(learner).__name__}._is_module_compatible_with_learner"
        )
    check_who_learns(learner.policies_to_train, module)
    unknown = sorted(set(learner.module_configs) - {*module, ALL_MODULES})
    if unknown:
        raise ValueError(f"module_configs names {unknown}; the modules are {sorted(module)}")
    return module.to(device=learner.device, dtype=learner.dtype)


def check_who_learns(allowed: WhoLearns, module_ids: Collection[str]) -> None:
    """Raises `ValueError` for ids that are no module's, `TypeError` for what cannot say who learns."""
    check_policies_to_train(allowed)
    unknown = [] if allowed is None or callable(allowed) else sorted(set(allowed) - set(module_ids))
    if unknown:
        raise ValueError(f"policies_to_train={list(allowed)} names {unknown}; the modules are {sorted(module_ids)}")  # type: ignore[arg-type]


def set_up_module(learner: Learner, module_id: str) -> None:
    """What a module has in its learner besides its optimizers: connectors, coefficients, state of its own."""
    connectors = learner.connectors.setdefault(module_id, ModuleConnectors())
    learner.module[module_id].acting_connectors = connectors.acting_names
    connectors.join = statistics_join(learner)
    if connectors.join is not None:
        connectors.gather = lambda value: learner.reducer.gather(value)
    config = learner.config_of(module_id)
    for name in learner.scheduled:
        schedule = Schedule(getattr(config, name), name=name)
        value = torch.tensor(schedule(0), dtype=learner.dtype, device=learner.device)
        learner.coefficients[module_id, name] = (schedule, value)
    learner.setup_module(module_id)


def add_module(
    self: Learner,
    *,
    module_id: str,
    module_spec: RLModuleSpec | RLModule,
    config_overrides: TrainingSection | Mapping[str, Any] | None = None,
    new_should_module_be_updated: WhoLearns = None,
) -> MultiRLModuleSpec:
    """Adds a module while training goes on; returns the new spec of all. What exists is left as it is.

    `config_overrides`: training options of this module. `new_should_module_be_updated`: as `policies_to_train`;
    `None` leaves it as it is. Initial weights depend on the learner's seed and the id only.
    Raises `ValueError` for an id that exists or is illegal, a module that cannot be trained, and unknown options;
    nothing is changed then.
    """
    check_module_id(module_id)
    if module_id in self.module:
        raise ValueError(f"there is a module {module_id!r} already; remove it first, or take another id")
    self.follow_replaced_parameters()
    module = _built(self, module_id, module_spec)
    if not self._is_module_compatible_with_learner(module):
        raise ValueError(
            f"module {module_id!r} cannot be trained here; override "
            f"{type(self).__name__}._is_module_compatible_with_learner"
        )
    if new_should_module_be_updated is not None:
        check_who_learns(new_should_module_be_updated, [*self.module, module_id])
    overridden = None if config_overrides is None else training_with(self.config, config_overrides)
    self.module.add_module(module_id, module.to(device=self.device, dtype=self.dtype))
    try:
        if overridden is not None:
            self.module_configs[module_id] = overridden
        set_up_module(self, module_id)
        self.configure_optimizers_for_module(module_id, self.config_of(module_id))
    except Exception:
        _forget(self, module_id)
        raise
    return _changed(self, new_should_module_be_updated)


def remove_module(
    self: Learner, module_id: str, *, new_should_module_be_updated: WhoLearns = None
) -> MultiRLModuleSpec:
    """Removes a module with its optimizers, schedules and registered state; returns the new spec of the others.

    Raises `KeyError` with the ids that exist for an unknown one, `ValueError` for the last one and for one whose
    optimizer steps parameters of others; nothing is changed then.
    """
    if module_id not in self.module:
        raise KeyError(f"no module {module_id!r}; there are {sorted(self.module)}")
    self.follow_replaced_parameters()
    remaining = [mid for mid in self.module if mid != module_id]
    if not remaining:
        raise ValueError(f"{module_id!r} is the only module; a learner needs at least one, add another first")
    if new_should_module_be_updated is not None:
        check_who_learns(new_should_module_be_updated, remaining)
    kept = {id(p) for mid in remaining for p in self.module[mid].parameters()}
    for entry in self.optimizers.of_module(module_id):
        if any(id(p) in kept for p in entry.flat.params):
            raise ValueError(
                f"optimizer {entry.key!r} of the module to remove steps parameters that other modules share; "
                f"register one optimizer for them under {ALL_MODULES!r} in configure_optimizers"
            )
    _forget(self, module_id)
    return _changed(self, new_should_module_be_updated)


def training_with(config: TrainingSection, overrides: TrainingSection | Mapping[str, Any]) -> TrainingSection:
    """A copy of `config` with some options changed; `ValueError` for unknown ones, with "did you mean"."""
    if isinstance(overrides, TrainingSection):
        overrides.validate()
        return overrides
    if not isinstance(overrides, Mapping):
        raise TypeError(
            f"overrides for one module must be a dict of training options or a training section, not {overrides!r}"
        )
    known = [option.name for option in fields(config)]
    for name in overrides:
        if name not in known:
            raise ValueError(f"training has no option {name!r} to override for a module; {suggestion(name, known)}")
        if name in config.of_whole_update:
            raise ValueError(
                f"training.{name} holds for the whole update, and cannot be overridden for one module; set it with "
                f"training({name}=...). A module may have its own "
                f"{', '.join(option for option in known if option not in config.of_whole_update)}"
            )
    changed = replace(config, **overrides)
    changed.validate()
    return changed


def _built(learner: Learner, module_id: str, spec: RLModuleSpec | RLModule) -> RLModule:
    if isinstance(spec, RLModule):
        return spec
    if isinstance(spec, RLModuleSpec):
        return spec.build(seed=learner.streams.seed(f"module/{module_id}"))
    raise TypeError(f"module_spec must be an RLModuleSpec or a built RLModule, not {type(spec).__name__}")


def _forget(learner: Learner, module_id: str) -> None:
    """Takes out the module with its optimizers, schedules, statistics, counters and registered state."""
    removed = learner.module.remove_module(module_id)
    kept = {id(p) for p in learner.module.parameters()}
    gone = {id(p) for p in removed.parameters()} - kept
    learner.optimizers.remove(module_id, gone)
    learner.connectors.pop(module_id, None)
    learner.module_configs.pop(module_id, None)
    start = f"{module_id}/"
    for key in [key for key in learner.coefficients if key[0] == module_id]:
        del learner.coefficients[key]
    for store in (learner.registered, learner.lifetime):
        for name in [name for name in store if name.startswith(start)]:
            del store[name]


def _changed(learner: Learner, who_learns: WhoLearns) -> MultiRLModuleSpec:
    if who_learns is not None:
        learner.policies_to_train = who_learns
    allowed = learner.policies_to_train
    if allowed is not None and not callable(allowed):
        learner.policies_to_train = [mid for mid in allowed if mid in learner.module]
    learner.reset_compiled()
    learner.watch_parameters()
    return learner.module.spec()
