"""`LearnerState`: saves and restores a learner, as one state or as the folders of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.learner import checkpointing
from lockstep.learner.optimizers import warn_of_configured
from lockstep.learner.protocols import StatefulLearner
from lockstep.state.checkpoint import read_checkpoint
from lockstep.state.names import name_of
from lockstep.state.trust import signed


class LearnerState:
    """Reader and writer of a learner's state.

    Checkpoints are written and restored through the learner's own `get_state` and `set_state`, so that a subclass that
    overrides them decides what is saved.
    """

    def __init__(self, learner: StatefulLearner) -> None:
        self.learner = learner

    # -- one state ---

    def get(
        self,
        components: Collection[str] | str | None = None,
        not_components: Collection[str] | str | None = None,
        *,
        inference_only: bool = False,
    ) -> checkpointing.State:
        """Return everything mutable, or only the named components; see `Learner.get_state`."""
        learner = self.learner
        coefficients = {
            f"{module_id}/{name}": {"schedule": schedule.get_state(), "value": float(value)}
            for (module_id, name), (schedule, value) in learner.coefficients.items()
        }
        state = {
            "rl_module": learner.module.get_state(inference_only=inference_only),
            "optimizer": learner.optimizers.get_state(),
            "connectors": {module_id: each.get_state() for module_id, each in learner.connectors.items()},
            "coefficients": coefficients,
            "registered": {name: checkpointing.state_of(value) for name, value in learner.registered.items()},
            "should_module_be_updated": checkpointing.policies_state(learner.policies_to_train),
            "weights_seq_no": learner.weights_seq_no,
            "lifetime": dict(learner.lifetime),
            "metrics": learner.metrics.get_state(),
            "random": learner.streams.get_state(),
        }
        return checkpointing.select_components(state, components, not_components)

    def set(self, state: Mapping[str, Any]) -> None:
        """Restore the components in `state`, all or none; `ValueError` with everything that does not fit."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a learner's state is a dict by component, not {type(state).__name__}")
        learner = self.learner
        before = learner.get_state()
        networks = ", ".join(sorted({type(module).__name__ for module in learner.module.values()}))
        checkpointing.check_state(state, before, type(learner).__name__, networks, learner.policies_to_train)
        if "optimizer" in state:
            learner.optimizers.check_state(state["optimizer"])

        # Objects that users register may refuse their state for reasons that no check above knows.
        try:
            self._restore(state)
        except Exception as error:
            self._restore(before)
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"the state does not fit this learner, nothing was changed: {reason}") from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore the components in `state`, one after another."""
        learner = self.learner
        for module_id, weights in state.get("rl_module", {}).items():
            learner.module[module_id].set_state(weights)
        if "optimizer" in state:
            learner.optimizers.set_state(state["optimizer"])
        for module_id, saved in state.get("connectors", {}).items():
            learner.connectors[module_id].set_state(saved)
        self._restore_coefficients(state.get("coefficients", {}))
        for name, saved in state.get("registered", {}).items():
            learner.registered[name] = checkpointing.restored(learner.registered[name], saved)
        if "weights_seq_no" in state:
            learner.weights_seq_no = int(state["weights_seq_no"])
        if "lifetime" in state:
            learner.lifetime = {name: int(count) for name, count in state["lifetime"].items()}
        if "metrics" in state:
            learner.metrics.set_state(state["metrics"])
        if "random" in state:
            learner.streams.set_state(state["random"])
        # A function cannot be saved, so the state has a dict with its name instead. Then the learner keeps the function
        # that it has. It also keeps its value if the state has no entry.
        allowed = state.get("should_module_be_updated", {})
        if not isinstance(allowed, Mapping):
            learner.policies_to_train = allowed if allowed is None else list(allowed)

    def _restore_coefficients(self, coefficients: Mapping[str, Any]) -> None:
        """Continue the schedules of coefficients.

        If another schedule is configured now, it is used instead, with a warning.
        """
        for key, saved in coefficients.items():
            module_id, name = key.rsplit("/", 1)
            schedule, value = self.learner.coefficients[module_id, name]
            value_of_old_schedule = schedule.follow(saved["schedule"])  # None if the schedule has not changed
            if value_of_old_schedule is None:
                value.fill_(saved["value"])
            else:
                value.fill_(schedule.value)
                warn_of_configured(f"{name} of {module_id}", schedule.value, value_of_old_schedule)

    def weights(
        self, module_ids: Collection[str] | str | None = None, inference_only: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of weights, `{module_id: {name: array}}`; `KeyError` for an unknown module."""
        module = self.learner.module
        ids = checkpointing.names_of(module_ids)
        unknown = sorted(set(ids or ()) - set(module))
        if unknown:
            raise KeyError(f"no modules {unknown}; there are {sorted(module)}")
        chosen = module if ids is None else ids
        return {module_id: module[module_id].get_state(inference_only=inference_only) for module_id in chosen}

    # -- checkpoints ---

    def folders(self) -> dict[str, checkpointing.State]:
        """Return the folders of a checkpoint: `learner`, `learner/optimizer`, `learner/rl_module/<module id>`."""
        learner = self.learner
        state = learner.get_state()
        del state["rl_module"]
        optimizer = state.pop("optimizer")
        module_configs = {mid: checkpointing.section_recipe(config) for mid, config in learner.module_configs.items()}
        recipe = {
            "learner_class": name_of(type(learner)),
            "training": checkpointing.section_recipe(learner.config),
            "framework": checkpointing.section_recipe(learner.framework),
            "module_configs": module_configs,
        }
        folders: dict[str, checkpointing.State] = {
            # The user's own signature, so that the checkpoint needs no `trust` where it was written.
            "learner": {"state": state, "recipe": signed(recipe)},
            "learner/optimizer": optimizer,
        }
        for module_id, module in learner.module.items():
            folders[f"learner/rl_module/{module_id}"] = module.state_tree()
        return folders

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restore all of a checkpoint, or one component; see `Learner.restore_from_path`."""
        folders = read_checkpoint(Path(path))
        self.learner.set_state(checkpointing.state_to_restore(folders, component, self.learner.get_state()))
