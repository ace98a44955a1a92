"""`Teacher`: a policy that labels the observations of another one, and takes a share of its actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors import ModuleConnectors
from lockstep.data.columns import Columns
from lockstep.data.groups import TEACHER, PartView, needed_paths, pruned, pruned_space
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.modules import RLModule
from lockstep.options.schedules import Schedule, ScheduleLike
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.files import find_policy
from lockstep.policy.policy import Policy


def sole_part(name: str, policy: Policy) -> ActingPolicy:
    """Return the acting part of a policy of a single agent; `ValueError` with its `name` for several agents."""
    if isinstance(policy.observation_space, dict):  # by module id; a Dict space is not a dict
        raise ValueError(f"{name} has several agents; distil their policies one by one, from a single agent")
    (part,) = policy.acting.values()
    return part


class Teacher:
    """Policy that labels the observations that a student has stored.

    The teacher acts through its own connectors, with its own statistics, which stay as they are.

    Args:
        policy: The policy, or the path of a run (its best policy), of a checkpoint or of an export.
        student: Network of the student. Its group "teacher" says which entries the teacher may see.
        connectors: Connectors of the student.
        needs_same_distribution: Whether the distributions of both must have the same form, so that their divergence
            is defined.

    Raises:
        ValueError: There is no policy, or the policy does not fit the student.
    """

    def __init__(
        self,
        policy: Policy | str | Path | None,
        student: RLModule,
        connectors: ModuleConnectors,
        *,
        needs_same_distribution: bool = False,
    ) -> None:
        if policy is None:
            raise ValueError(
                "training.teacher=None: distillation needs a teacher; set training(teacher=...) to a Policy, or to the "
                "path of a run, a checkpoint or an export"
            )
        name = "training.teacher"
        if isinstance(policy, str | Path):
            name = f"training.teacher={str(policy)!r}"
            policy = Policy.from_checkpoint(find_policy(policy))
        self._acting = sole_part(name, policy)
        self._student_dist = student.action_dist_cls
        self._student_actions = connectors.actions
        self._check_memory(name, connectors)
        self._check_actions(name, student, connectors, needs_same_distribution)

        stored_space = connectors.obs.input_space or student.observation_space
        groups = student.observation_groups
        self._view: PartView | None = None
        self._seen_space: Space[Any] | None = None
        """Space with the entries of the group "teacher" alone; None if the teacher may see all entries."""
        needed = self._acting.observations.space
        if isinstance(needed, spaces.Dict):
            paths = needed_paths(stored_space, groups, TEACHER)
            self._seen_space = None if paths is None else pruned_space(stored_space, paths)
            given = stored_space if self._seen_space is None else self._seen_space
        else:
            self._view = PartView(TEACHER, stored_space, groups)
            given = self._view.space
        _check_entries(name, needed, given, ())

    def _check_memory(self, name: str, connectors: ModuleConnectors) -> None:
        if self._acting.is_stateful:
            raise ValueError(f"{name} has a memory, which is not possible yet; give a teacher without recurrent layers")
        if not self._acting.recorded.is_identity:
            raise ValueError(
                f"{name} acts on {self._acting.recorded.connectors}, which follow episodes; give a teacher that acts "
                "on single observations"
            )
        if not connectors.recorded.is_identity:
            raise ValueError(
                f"the student stores the output of {connectors.recorded.connectors}, and its teacher needs the "
                "environment's observations; leave these connectors out"
            )

    def _check_actions(
        self, name: str, student: RLModule, connectors: ModuleConnectors, needs_same_distribution: bool
    ) -> None:
        actions = connectors.actions
        if actions is not None and not actions.has_inverse:
            raise ValueError(
                f"the student's actions pass {actions.connectors}, which have no inverse, so that the teacher's "
                "actions cannot be learned; leave module_to_env_connector out"
            )
        own_space = student.action_space if actions is None else actions.action_space
        if self._acting.action_space != own_space:
            raise ValueError(
                f"{name} takes other actions: its action space is {self._acting.action_space}, and the student's is "
                f"{own_space}; give a teacher of the same actions"
            )
        if needs_same_distribution and self._acting.module.action_dist_cls != student.action_dist_cls:
            raise ValueError(
                f"training.loss='kl' compares distributions, and the teacher's {self._acting.module.action_dist_cls} "
                f"differs from the student's {student.action_dist_cls}; set it to 'mse' or 'nll'"
            )

    def view(self, obs: Tree) -> Tree:
        """Return what the teacher sees of the observations `[N, ...]` that the student has stored."""
        if self._view is not None:
            return self._view(obs)
        if self._seen_space is not None:
            obs = pruned(obs, self._seen_space)
        return self._acting.observations.of_policy(obs)

    @torch.no_grad()
    def dist_inputs(self, seen: Tree) -> np.ndarray:
        """Return the inputs `[N, D]` of the teacher's action distributions."""
        acting = self._acting
        module = acting.module
        parameter = next(module.parameters())

        def tensor(leaf: np.ndarray) -> torch.Tensor:
            column = torch.as_tensor(leaf)
            dtype = parameter.dtype if column.is_floating_point() else None
            return column.to(parameter.device, dtype)

        batch = {Columns.OBS: map_tree(tensor, acting.observations(seen))}
        inputs: np.ndarray = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS].cpu().numpy()
        return inputs

    def actions(self, seen: Tree) -> np.ndarray:
        """Return the teacher's most likely actions `[N, ...]` in the form that the student learns from."""
        mode = self._acting.module.action_dist_cls.from_inputs(torch.from_numpy(self.dist_inputs(seen))).mode()
        actions = self._acting.to_env(mode.numpy())
        if self._student_actions is not None:
            actions = self._student_actions.inverse(actions)
        return self._student_dist.from_env(actions)


class TeacherShare:
    """Guide that takes the teacher's actions, in a share of the steps that a student collects (beta of DAgger).

    Args:
        teacher: The teacher of the policy that collects.
        share: Probability that the teacher takes an action: a number, or a schedule over sampled steps.
        policy: The policy that collects, whose sampled steps the schedule follows.
    """

    def __init__(self, teacher: Teacher, share: ScheduleLike, policy: Policy | ActingPolicy) -> None:
        self._teacher = teacher
        self._share = Schedule(share, "training.teacher_share")
        self._policy = policy

    def share(self) -> float:
        """Return the present probability; `ValueError` if a function returned a number that is not one."""
        step = self._policy.timesteps[STEPS_SAMPLED]
        share = self._share.at(step)
        if not 0.0 <= share <= 1.0:
            raise ValueError(
                f"training.teacher_share={share!r} at step {step} is not allowed; it must be between 0 and 1"
            )
        return share

    def actions(self, obs: Tree) -> np.ndarray:
        """Return the teacher's most likely actions `[N, ...]` for observations `[N, ...]` that the student stores."""
        return self._teacher.actions(self._teacher.view(obs))


def _check_entries(name: str, needed: Space[Any], given: Space[Any], above: tuple[str, ...]) -> None:
    """Raise `ValueError` unless a space has all entries of another one, in the same shapes and dtypes."""
    if isinstance(needed, spaces.Dict) and isinstance(given, spaces.Dict):
        missing = ["/".join((*above, key)) for key in needed.spaces if key not in given.spaces]
        if missing:
            raise ValueError(
                f"{name} observes {', '.join(map(repr, missing))}, which the observations for it do not have: they are "
                f"{list(given.spaces)}. Add them to the environment or to observation_groups['teacher'], or give a "
                "teacher that does without them"
            )
        for key, part in needed.spaces.items():
            _check_entries(name, part, given.spaces[key], (*above, key))
        return
    is_equal = type(needed) is type(given) and needed.shape == given.shape and needed.dtype == given.dtype
    if not is_equal:
        entry = f"entry {'/'.join(above)!r}" if above else "observation"
        raise ValueError(
            f"{name} needs the {entry} as {needed}, and the observations for it are {given}; give it a group of its "
            "own with rl_module(observation_groups={'teacher': [...]}), or another teacher"
        )
