"""`PolicyFiles` and `SavedPolicy`: a policy's checkpoints, exports and its repository on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lockstep.config.base import BaseConfig
from lockstep.data.spaces import describe_space, space_from
from lockstep.envs.make import name_of_env
from lockstep.export import Origin, export_policies
from lockstep.learner.checkpointing import state_from_folders
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import STEPS_SAMPLED, Learner
from lockstep.learner.targets import target_networks
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.new_modules import with_modules
from lockstep.state.checkpoint import CheckpointError, read_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.trust import FileNames
from lockstep.tracking.run_folder import versions

SHAPING = ("normalize_observations", "normalize_rewards", "frame_stack")
"""Options of the environment section that decide which connectors there are."""
EXPORTS = (".onnx", ".pt", ".pt2")
"""Endings of single files of an export, which hold no checkpoint."""


class SavablePolicy(Protocol):
    """A policy, as far as its files know it (`Policy`, which is above this file)."""

    config: BaseConfig
    learner_group: LearnerGroup
    acting: dict[str, ActingPolicy]
    is_multi_agent: bool
    timesteps: dict[str, int]

    @property
    def observation_space(self) -> Any:
        """Space of the environment's observations; of several agents a dict of spaces by module id."""

    @property
    def action_space(self) -> Any:
        """Space of the environment's actions; of several agents a dict of spaces by module id."""

    def own_state(self) -> dict[str, Any]:
        """Return the state of the policy itself."""
        ...

    def set_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `own_state` returned."""
        ...

    def restore_modules(self, state: Mapping[str, Any], file: FileNames) -> None:
        """Remove and add modules until there are those of a saved state."""
        ...

    def take_over_learners(self) -> None:
        """Act with the weights and statistics of the learners."""
        ...

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder."""
        ...


class PolicyFiles:
    """The files of one policy. It holds no state."""

    def __init__(self, policy: SavablePolicy) -> None:
        self.policy = policy

    def folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a checkpoint: those of the learner group, and `policy`."""
        policy = self.policy
        state = {
            "config": policy.config.named_options(),
            "observation_space": describe_spaces(policy.observation_space),
            "action_space": describe_spaces(policy.action_space),
            **policy.own_state(),
        }
        return {"policy": {"state": state}, **policy.learner_group.checkpoint_folders()}

    def set_folders(self, folders: Mapping[str, dict[str, Any]], *, trust: bool, file: str | Path) -> None:
        """Restore the policy from the folders of a checkpoint. `file` is the place they were read from.

        Raises:
            ValueError: there is no policy in them.
        """
        state = policy_in(folders, file)
        self.policy.restore_modules(state, FileNames(file, {}, trust))
        self.policy.learner_group.set_checkpoint_folders(folders)
        self.policy.set_own_state(state)

    def start_from(self, path: Path) -> None:
        """Take the weights and the connectors' statistics of a checkpoint; all else stays new.

        Raises:
            ValueError: there is no policy in the checkpoint, or its spaces, networks or connectors do not fit.
        """
        if path.suffix in EXPORTS:
            raise ValueError(f"init_from={path} is one file of an export; give the folder, or a run or a checkpoint")
        folders = read_checkpoint(path)
        saved = policy_in(folders, f"init_from={path}")
        for name in ("observation_space", "action_space"):
            space = getattr(self.policy, name)
            other = spaces_from(saved[name])
            if space != other:
                raise ValueError(f"init_from={path} has the {name} {other}, the environment of this run has {space}")

        state = state_from_folders(folders)
        try:
            self.policy.learner_group.foreach_learner(start_learner, state["rl_module"], state["connectors"])
        except (TypeError, ValueError) as error:
            other = differences(self.policy.config.named_options(), saved["config"])
            if other:
                # Which tensors differ follows from the options, and would be a list of all of them.
                raise ValueError(
                    f"init_from={path} does not fit: {other}Or take all options of that run: add --config "
                    "RUN/config.json (lockstep.train: settings=)"
                ) from error
            raise ValueError(f"init_from={path} does not fit: {error}") from error
        self.policy.take_over_learners()

    def export(
        self, path: str | Path, file_format: str, deterministic: bool, evaluation: Mapping[str, Any] | None
    ) -> Path:
        """Write the policy as files that act without Lockstep, and return their folder; see `Policy.export`."""
        policy = self.policy
        parts = {module_id: part.twin() for module_id, part in policy.acting.items()}
        if not deterministic:
            for part in policy.acting.values():
                part.check_draws()
        env = policy.config.environment.env
        # Real observations prove the artefact where an environment of a single agent can be made.
        can_make = not policy.is_multi_agent and (isinstance(env, str) or callable(env))
        origin = Origin(self.facts(evaluation), policy.config.make_envs if can_make else None)
        return export_policies(
            parts,
            path,
            origin,
            save=policy.save_to_path,
            in_folders=policy.is_multi_agent,
            file_format=file_format,
            deterministic=deterministic,
        )

    def facts(self, evaluation: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return where the policy comes from, for its model card."""
        return {
            "algorithm": self.policy.config.algorithm,
            "environment": name_of_env(self.policy.config.environment.env),
            "steps": self.policy.timesteps[STEPS_SAMPLED],
            "evaluation": None if evaluation is None else dict(evaluation),
            "versions": versions(),
        }


@dataclass(frozen=True)
class SavedPolicy:
    """A policy in a checkpoint, before it is built."""

    path: Path
    folders: Mapping[str, dict[str, Any]]
    state: Mapping[str, Any]
    """The state of the policy itself, with its configuration and its spaces."""
    trust: bool
    """Whether all objects that the checkpoint names may be taken, see `Policy.from_checkpoint`."""

    @classmethod
    def read(cls, path: str | Path, *, trust: bool) -> SavedPolicy:
        """Read a checkpoint folder.

        Raises:
            CheckpointError: it is not a checkpoint, or a damaged one.
            ValueError: there is no policy in it.
        """
        try:
            folders = read_checkpoint(Path(path))
        except CheckpointError as error:
            if any((folder / "config.json").exists() for folder in (Path(path), Path(path).parent)):
                raise CheckpointError(
                    f"{error}; the best policy of a run is in best/policy of its folder, and "
                    "lockstep.load_policy(folder) finds it"
                ) from error
            raise
        return cls(Path(path), folders, policy_in(folders, path), trust)

    def config(self) -> BaseConfig:
        """Return its configuration, for a learner in this process."""
        config = BaseConfig.of_algorithm(self.state["config"]["algorithm"])
        config.update_from_dict(self.state["config"], trust=self.trust, file=self.path)
        config.learners(num_learners=0)
        return config

    def with_its_modules(self, config: BaseConfig) -> BaseConfig:
        """Return a configuration with the modules that the policy of several agents had when it was saved."""
        if "modules" not in self.state:
            return config
        with claims_of(self.path):
            return with_modules(config, self.state["modules"], FileNames(self.path, {}, self.trust))

    def spaces(self) -> tuple[Any, Any]:
        """Return its observation space and its action space; of several agents each is a dict by module id."""
        with claims_of(self.path):
            return spaces_from(self.state["observation_space"]), spaces_from(self.state["action_space"])


def differences(options: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Say which options of networks and connectors differ, and what to do."""
    pairs = [("environment", options["environment"], saved["environment"], SHAPING)]
    models = [each["rl_module"]["model_config"] for each in (options, saved)]
    if all(isinstance(model, Mapping) for model in models):
        pairs.append(("rl_module.model_config", models[0], models[1], tuple(models[0])))
    found = [
        f"{prefix}.{name}={there[name]!r} there, {here[name]!r} here"
        for prefix, here, there, names in pairs
        for name in names
        if name in there and there[name] != here[name]
    ]
    return f"{'; '.join(found)}. Set them as there. " if found else ""


@contextmanager
def same_threads() -> Iterator[None]:
    """Leave torch's threads as they are: a policy that is loaded acts in somebody else's process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def policy_in(folders: Mapping[str, Any], where: object) -> Any:
    """Return the state of the policy in a checkpoint; `ValueError` says what it holds instead."""
    if "policy" in folders:
        return folders["policy"]["state"]
    found = f"the folders {sorted(folders)}"
    if {"weights", "spec"} <= set(folders.get("", {})):
        found = "an RLModule (RLModule.from_checkpoint reads it)"
    elif "learner" in folders:
        found = "a learner (Learner.from_checkpoint reads it)"
    raise ValueError(f"{where} holds no policy, but {found}; give what Policy.save_to_path wrote")


def describe_spaces(space: Any) -> Any:
    """Return a space, or a dict of spaces by module id, as plain values for JSON."""
    if type(space) is dict:
        return {"modules": {module_id: describe_space(each) for module_id, each in space.items()}}
    return describe_space(space)


def spaces_from(described: Any) -> Any:
    """Return what `describe_spaces` described."""
    if isinstance(described, Mapping) and "modules" in described:
        return {module_id: space_from(each) for module_id, each in described["modules"].items()}
    return space_from(described)


# -- run on each learner ---


def start_learner(learner: Learner, weights: Mapping[str, Any], connectors: Mapping[str, Any]) -> None:
    """Take weights and statistics of another run. No episode is continued."""
    present = learner.get_state()["connectors"]
    taken = {}
    for module_id, saved in connectors.items():
        here = present.get(module_id)
        rewards = None if here is None else here["rewards"]
        if rewards is not None and saved["rewards"] is not None:  # rewards are scaled here and there
            rewards = {**saved["rewards"], "returns": np.zeros(0)}
        taken[module_id] = {"obs": saved["obs"], "rewards": rewards}
    unknown = sorted(set(weights) ^ set(learner.module))
    if unknown:
        raise ValueError(f"modules {unknown} are on one side only (here {sorted(learner.module)})")
    learner.set_state({"rl_module": weights, "connectors": taken, "weights_seq_no": learner.weights_seq_no + 1})
    for target in target_networks(learner.registered).values():
        target.reset(learner.optimizers)
