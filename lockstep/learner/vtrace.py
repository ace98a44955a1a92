"""What learners with V-trace share: rollouts of an older policy, corrected for what has been learned since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.trajectories import Trajectories
from lockstep.learner.onpolicy import Evaluated, log_explained_variance
from lockstep.ops import vtrace

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


@dataclass(slots=True)
class Corrected:
    """A rollout `[T, B]`, corrected; flat rows `[T * B]` on the learner's device."""

    behaviour_logp: Tensor
    """log-probability of each action under the policy that acted"""
    advantages: Tensor
    """for the policy gradient, without an importance weight (unless `weighted`)"""
    value_targets: Tensor


def correct(
    learner: Learner,
    module_id: str,
    trajectories: Trajectories,
    rollout: Evaluated,
    *,
    target_logp: Tensor | None = None,
    weighted: bool = False,
) -> Corrected:
    """V-trace from the policy that acted to the one of `target_logp` `[T * B]` (None: the one that learns).

    `rollout`: the trajectories as the learner's networks see them. Steps whose `action_logp` is not known count as
    acted by the policy that learns, as it is now. With `vtrace=False` in the module's options nothing is corrected:
    lambda returns and GAE.
    """
    config: Any = learner.config_of(module_id)
    target, behaviour = rollout.action_logp if target_logp is None else target_logp, rollout.old_logp
    log_ratios = target - behaviour if config.vtrace else torch.zeros_like(behaviour)
    targets, advantages = vtrace(
        log_ratios.cpu().numpy().reshape(trajectories.shape),
        learner.connectors[module_id].learning_rewards(trajectories),
        rollout.values,
        rollout.next_values,
        trajectories.terminateds,
        trajectories.cuts,
        gamma=config.gamma,
        lambda_=config.lambda_,
        clip_rho=config.vtrace_clip_rho_threshold,
        clip_pg_rho=config.vtrace_clip_pg_rho_threshold,
        weighted=weighted,
    )
    log_explained_variance(learner, module_id, trajectories, rollout.values, targets)
    flat = learner.to_tensor(advantages.reshape(-1)), learner.to_tensor(targets.reshape(-1))
    return Corrected(behaviour, *flat)


def load_vtrace(learner: Learner) -> None:
    """Loads the compiled estimator when the learner is built, not in its first update."""
    one, no = np.zeros((1, 1), torch.empty(0, dtype=learner.dtype).numpy().dtype), np.zeros((1, 1), bool)
    vtrace(one, np.zeros((1, 1), np.float32), one, one, no, no, gamma=0.0, lambda_=0.0)
