"""Checkpoints and exports of policies, and their form on the Hugging Face Hub: `PolicyFiles` and `SavedPolicy`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lockstep.config.base import BaseConfig
from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import Tree
from lockstep.envs.make import name_of_env
from lockstep.export import Origin, export_policies
from lockstep.export.exported import CHECKPOINT
from lockstep.learner.checkpointing import state_from_folders
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import STEPS_SAMPLED, Learner
from lockstep.learner.targets import target_networks
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.new_modules import is_module_tree, recipe_space, with_modules
from lockstep.state.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.trust import FileNames
from lockstep.tracking.run_folder import find_run, versions

SHAPING = ("normalize_observations", "normalize_rewards", "frame_stack")
"""Options of the environment section that add connectors to a policy."""
EXPORTS = (".onnx", ".pt", ".pt2")
"""Suffixes of single files of an export, which do not contain a checkpoint."""


def find_policy(path: str | Path, *, last: bool = False) -> Path:
    """Return the checkpoint that `load_policy` reads: a run's best policy, or its newest checkpoint if it has none.

    In a folder that `export` or `save_pretrained` wrote, it is the checkpoint in it. A checkpoint is returned as it is.

    Args:
        path: A run's folder, a folder that holds one run, a checkpoint, or an exported or saved policy.
        last: Whether to return a run's newest checkpoint instead of its best policy.

    Raises:
        RunFolderError: the folder holds several runs.
    """
    path = find_run(path)
    if (path / CHECKPOINT).is_dir():
        return path / CHECKPOINT

    is_run = (path / "config.json").exists() and (path / "best").exists()
    if not is_run:
        return path
    newest = newest_checkpoint(path / "checkpoints")
    best = None if last else newest_checkpoint(path / "best")
    return best or newest or path


class SavablePolicy(Protocol):
    """The part of `Policy` that its files use. A protocol, because `Policy` imports this module."""

    config: BaseConfig
    learner_group: LearnerGroup
    acting: dict[str, ActingPolicy]
    is_multi_agent: bool
    timesteps: dict[str, int]

    @property
    def observation_space(self) -> Any:
        """Space of the environment's observations; for several agents a dict of spaces by module id."""

    @property
    def action_space(self) -> Any:
        """Space of the environment's actions; for several agents a dict of spaces by module id."""

    def acting_state(self) -> dict[str, Any]:
        """Return the state of the policy, except for the learners."""
        ...

    def set_acting_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `acting_state` returned."""
        ...

    def restore_modules(self, state: Mapping[str, Any], file: FileNames) -> None:
        """Remove and add modules until they are the modules of a saved state."""
        ...

    def pull_from_learners(self) -> None:
        """Copy the weights and statistics of learners in other processes into the acting parts."""
        ...

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder."""
        ...


class PolicyFiles:
    """Writer and reader of the files of one policy. It has no state."""

    def __init__(self, policy: SavablePolicy) -> None:
        self.policy = policy

    def folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a checkpoint: those of the learner group, and `policy`."""
        policy = self.policy
        state = {
            "config": policy.config.named_options(),
            "observation_space": describe_spaces(policy.observation_space),
            "action_space": describe_spaces(policy.action_space),
            **policy.acting_state(),
        }
        return {"policy": {"state": state}, **policy.learner_group.checkpoint_folders()}

    def set_folders(self, folders: Mapping[str, dict[str, Any]], *, trust: bool, file: str | Path) -> None:
        """Restore the policy from the folders of a checkpoint.

        Args:
            folders: The folders, as `folders` returned them.
            trust: Whether all objects that the checkpoint names may be used; see `Policy.from_checkpoint`.
            file: Path of the checkpoint, for errors.

        Raises:
            ValueError: The checkpoint does not contain a policy.
        """
        state = saved_policy_state(folders, file)
        self.policy.restore_modules(state, FileNames(file, {}, trust))
        self.policy.learner_group.set_checkpoint_folders(folders)
        self.policy.set_acting_state(state)

    def start_from(self, path: Path) -> None:
        """Start with the weights and the connectors' statistics of a checkpoint; everything else stays new.

        Raises:
            ValueError: The checkpoint does not contain a policy, or its spaces, networks or connectors do not fit.
        """
        if path.suffix in EXPORTS:
            raise ValueError(f"init_from={path} is one file of an export; give the folder, or a run or a checkpoint")
        folders = read_checkpoint(path)
        saved = saved_policy_state(folders, f"init_from={path}")
        for name in ("observation_space", "action_space"):
            space = getattr(self.policy, name)
            other = spaces_from(saved[name])
            if name == "observation_space":
                other = with_states(other, saved)
            if space != other:
                raise ValueError(f"init_from={path} has the {name} {other}, the environment of this run has {space}")

        state = state_from_folders(folders)
        try:
            of_learners = self.policy.learner_group.foreach_learner(
                start_learner, state["rl_module"], state["connectors"]
            )
        except (TypeError, ValueError) as error:
            changed_options = differences(self.policy.config.named_options(), saved["config"])
            if changed_options:
                # The message of `error` would list all tensors, and their shapes follow from these options.
                raise ValueError(
                    f"init_from={path} does not fit: {changed_options}Or take all options of that run: add --config "
                    "RUN/config.json (lockstep.train: settings=)"
                ) from error
            raise ValueError(f"init_from={path} does not fit: {error}") from error
        without_values = of_learners[0]
        if without_values:
            warnings.warn(
                f"init_from={path} has no value function for {', '.join(without_values)}: it begins with random "
                "weights, and its first estimates are wrong. A small training.lr lets the policy change little until "
                "they are right",
                stacklevel=2,
            )
        self.policy.pull_from_learners()

    def export(
        self, path: str | Path, file_format: str, deterministic: bool, evaluation: Mapping[str, Any] | None
    ) -> Path:
        """Write artefacts that act without Lockstep, and return their folder; see `Policy.export`."""
        policy = self.policy
        # Acting parts of their own: the export acts to compare results, and must not change the policy's history of
        # observations.
        parts = {module_id: part.with_new_history() for module_id, part in policy.acting.items()}
        if not deterministic:
            for part in policy.acting.values():
                part.check_samples_from_distribution()
        env = policy.config.environment.env
        # The artefact is compared on real observations if an environment of a single agent can be constructed.
        can_make_envs = not policy.is_multi_agent and (isinstance(env, str) or callable(env))
        origin = Origin(self.facts(evaluation), policy.config.make_envs if can_make_envs else None)
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
        """Return the algorithm, environment and further origins of the policy, for its model card."""
        return {
            "algorithm": self.policy.config.algorithm,
            "environment": name_of_env(self.policy.config.environment.env),
            "steps": self.policy.timesteps[STEPS_SAMPLED],
            "evaluation": None if evaluation is None else dict(evaluation),
            "versions": versions(),
        }


@dataclass(frozen=True)
class SavedPolicy:
    """Contents of a policy's checkpoint, from which the policy can be built."""

    path: Path
    folders: Mapping[str, dict[str, Any]]
    state: Mapping[str, Any]
    """State of the policy, except for the learners, with its configuration and its spaces."""
    trust: bool
    """Whether all objects that the checkpoint names may be used; see `Policy.from_checkpoint`."""

    @classmethod
    def read(cls, path: str | Path, *, trust: bool) -> SavedPolicy:
        """Read a checkpoint folder.

        Raises:
            CheckpointError: The folder is not a checkpoint, or the checkpoint is damaged.
            ValueError: The checkpoint does not contain a policy.
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
        return cls(Path(path), folders, saved_policy_state(folders, path), trust)

    def config(self) -> BaseConfig:
        """Return the policy's configuration, with a learner in this process."""
        config = BaseConfig.of_algorithm(self.state["config"]["algorithm"])
        config.update_from_dict(self.state["config"], trust=self.trust, file=self.path)
        config.learners(num_learners=0)
        return config

    def with_saved_modules(self, config: BaseConfig) -> BaseConfig:
        """Return a configuration with the modules that a policy of several agents had when it was saved."""
        if "modules" not in self.state:
            return config
        with claims_of(self.path):
            return with_modules(config, self.state["modules"], FileNames(self.path, {}, self.trust))

    def spaces(self) -> tuple[Any, Any]:
        """Return the policy's observation space and action space; for several agents each is a dict by module id."""
        with claims_of(self.path):
            observation_space = with_states(spaces_from(self.state["observation_space"]), self.state)
            return observation_space, spaces_from(self.state["action_space"])


def differences(options: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Return a sentence about the options of networks and connectors that differ; empty if they are equal.

    Args:
        options: Options of this run, by section.
        saved: Options of the saved run, by section.
    """
    pairs = [("environment", options["environment"], saved["environment"], SHAPING)]
    model = options["rl_module"]["model_config"]
    saved_model = saved["rl_module"]["model_config"]
    if isinstance(model, Mapping) and isinstance(saved_model, Mapping):
        pairs.append(("rl_module.model_config", model, saved_model, tuple(model)))

    changes: list[str] = []
    for prefix, here, there, names in pairs:
        changed = [name for name in names if name in there and there[name] != here[name]]
        changes += [f"{prefix}.{name}={there[name]!r} there, {here[name]!r} here" for name in changed]
    return f"{'; '.join(changes)}. Set them to the values there. " if changes else ""


@contextmanager
def keep_num_threads() -> Iterator[None]:
    """Restore torch's number of threads afterwards: a loaded policy acts in somebody else's process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def saved_policy_state(folders: Mapping[str, Any], origin: object) -> Any:
    """Return the state of the policy in a checkpoint.

    Args:
        folders: Folders of the checkpoint.
        origin: Path or name of the checkpoint, for errors.

    Raises:
        ValueError: The checkpoint does not contain a policy; the message says what it contains.
    """
    if "policy" in folders:
        return folders["policy"]["state"]
    content = f"the folders {sorted(folders)}"
    if is_module_tree(folders.get("", {})):
        content = "an RLModule (RLModule.from_checkpoint reads it)"
    elif "learner" in folders:
        content = "a learner (Learner.from_checkpoint reads it)"
    raise ValueError(f"{origin} holds no policy, but {content}; give what Policy.save_to_path wrote")


def describe_spaces(space: Any) -> Any:
    """Return a space, or a dict of spaces by module id, as plain values for JSON."""
    if type(space) is dict:
        return {"modules": {module_id: describe_space(subspace) for module_id, subspace in space.items()}}
    return describe_space(space)


def spaces_from(described: Any) -> Any:
    """Return the space, or the dict of spaces by module id, that `describe_spaces` described."""
    if isinstance(described, Mapping) and "modules" in described:
        return {module_id: space_from(subspace) for module_id, subspace in described["modules"].items()}
    return space_from(described)


def with_states(observation_space: Tree, state: Mapping[str, Any]) -> Any:
    """Return the observation spaces in a policy's state by module id, with the central state as an entry.

    Version 0.2 kept it apart: only the recipes of the modules have its space.
    """
    if "modules" not in state:
        return observation_space
    spaces_with_state = dict(observation_space)
    for module_id, recipe in state["modules"].items():
        spaces_with_state[module_id] = recipe_space(recipe)
    return spaces_with_state


# -- functions that run on each learner ---


def start_learner(learner: Learner, weights: Mapping[str, Any], connectors: Mapping[str, Any]) -> list[str]:
    """Set the weights and the connectors' statistics of another run.

    A value function that the other run does not have, as after imitation, keeps its new weights.

    Args:
        learner: The learner.
        weights: Weights by module id.
        connectors: States of the connectors by module id.

    Returns:
        The ids of the modules whose value function keeps its new weights.

    Raises:
        ValueError: The learner has other modules.
    """
    present = learner.get_state()
    new_states = {}
    for module_id, saved in connectors.items():
        present_state = present["connectors"].get(module_id)
        rewards = None if present_state is None else present_state["rewards"]
        # The scale of rewards is taken over if both runs scale rewards. Without the returns of running episodes: the
        # episodes of the other run are not continued.
        if rewards is not None and saved["rewards"] is not None:
            rewards = {**saved["rewards"], "returns": np.zeros(0)}
        new_states[module_id] = {"obs": saved["obs"], "rewards": rewards}
    unknown = sorted(set(weights) ^ set(learner.module))
    if unknown:
        raise ValueError(f"modules {unknown} are on one side only (here {sorted(learner.module)})")

    without_values = []
    new_weights = {}
    for module_id, saved in weights.items():
        parts = learner.module[module_id].value_parts
        values = {name: value for name, value in present["rl_module"][module_id].items() if _is_in(parts, name)}
        new_weights[module_id] = saved
        if values and not any(_is_in(parts, name) for name in saved):
            new_weights[module_id] = {**saved, **values}
            without_values.append(module_id)
    learner.set_state(
        {"rl_module": new_weights, "connectors": new_states, "weights_seq_no": learner.weights_seq_no + 1}
    )
    for target in target_networks(learner.registered).values():
        target.reset(learner.optimizers)
    return without_values


def _is_in(parts: tuple[str, ...], name: str) -> bool:
    """Return whether a tensor belongs to one of the parts of a module."""
    return name.partition(".")[0] in parts
