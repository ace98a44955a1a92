"""What on-policy learners share: values and log-probabilities of a rollout, in one large batch (house, decision 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import leaves, map_tree
from lockstep.learner.means import explained_variance_over_learners
from lockstep.learner.minibatches import take_rows
from lockstep.learner.module_checks import check_outputs
from lockstep.learner.recurrent import SequenceRows, evaluate_sequences
from lockstep.modules import RLModule
from lockstep.ops import gae

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


def load_kernels(learner: Learner) -> None:
    """Loads the compiled estimator when the learner is built (half a second), not in its first update."""
    one, no = np.zeros((1, 1), torch.empty(0, dtype=learner.dtype).numpy().dtype), np.zeros((1, 1), bool)
    gae(np.zeros((1, 1), np.float32), one, one, no, no, gamma=0.0, lambda_=0.0)


@dataclass(slots=True)
class Evaluated:
    """A rollout seen by the networks that are about to be trained."""

    obs: Any
    """[T * B, ...] tensors, after the observation pipeline"""
    actions: Tensor
    """[T * B, ...]"""
    action_dist_inputs: Tensor
    """[T * B, D]"""
    action_logp: Tensor
    """[T * B]"""
    values: np.ndarray
    """[T, B]"""
    next_values: np.ndarray
    """[T, B] value of the true next observation; the estimator ignores it where the episode terminated"""
    sequences: SequenceRows | None = None
    """of a module with memory: the sequences to train on"""
    bootstrap_obs: Any = None
    """[K, ...] tensors, after the observation pipeline; None for K = 0"""


@torch.no_grad()
def evaluate_trajectories(learner: Learner, module_id: str, trajectories: Trajectories) -> Evaluated:
    """One forward pass over all rows and one over the bootstrap observations (of a module with memory: in order).

    The parameters are those that acted, so log-probabilities equal those at acting time.
    """
    module, pipeline = learner.module[module_id], learner.connectors[module_id].obs
    obs = map_tree(learner.to_tensor, pipeline(trajectories.flat_obs()))
    last = None
    if len(trajectories.bootstrap_index):
        last = map_tree(learner.to_tensor, pipeline(trajectories.bootstrap_obs))
    sequences, bootstrap = None, None
    if module.is_stateful():
        out, bootstrap, sequences = evaluate_sequences(learner, module, trajectories, obs, last)
    else:
        out = module.forward_train({Columns.OBS: obs})
        check_outputs(learner, module, out, (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS))
        if last is not None:
            bootstrap = module.compute_values({Columns.OBS: last})
    actions = learner.to_tensor(trajectories.flat_actions())
    inputs = out[Columns.ACTION_DIST_INPUTS]
    values = out[Columns.VF_PREDS].cpu().numpy().reshape(trajectories.shape)
    next_values = np.empty_like(values)
    next_values[:-1] = values[1:]
    next_values[-1] = 0.0
    if bootstrap is not None:
        next_values.reshape(-1)[trajectories.bootstrap_index] = bootstrap.cpu().numpy()
    logp = module.action_dist_cls.from_inputs(inputs).log_prob(actions)
    return Evaluated(obs, actions, inputs, logp, values, next_values, sequences, last)


@torch.no_grad()
def inputs_under(learner: Learner, module: RLModule, trajectories: Trajectories, rollout: Evaluated) -> Tensor:
    """`[T * B, D]` action distribution inputs under another module, such as a target network, with its own memory."""
    if module.is_stateful():
        out = evaluate_sequences(learner, module, trajectories, rollout.obs, rollout.bootstrap_obs)[0]
    else:
        out = module.forward_train({Columns.OBS: rollout.obs})
    inputs: Tensor = out[Columns.ACTION_DIST_INPUTS]
    return inputs


def adapt_kl_coefficient(coefficient: Tensor, mean_kl: float, target: float) -> None:
    """Of a KL penalty (PPO, section 4): doubled above 1.5 times the target, halved below a 1.5th of it. In place."""
    if mean_kl > 1.5 * target:
        coefficient.mul_(2.0)
    elif mean_kl < target / 1.5:
        coefficient.mul_(0.5)


def train_columns(columns: dict[str, Any], rollout: Evaluated, trajectories: Trajectories) -> dict[str, Any]:
    """What a gradient step takes rows of: the transitions, or the sequences `[S, L, ...]` of a module with memory."""
    if rollout.sequences is not None:
        return rollout.sequences.train_columns(columns)
    return select_rows(columns, trajectories.rows())


def select_rows(columns: dict[str, Any], rows: np.ndarray | None) -> dict[str, Any]:
    """Real rows of every column; `None`: all, without a copy."""
    if rows is None:
        return columns
    first = next(iter(leaves(columns)))
    return take_rows(columns, torch.from_numpy(rows).to(first.device))


def log_explained_variance(
    learner: Learner, module_id: str, trajectories: Trajectories, values: np.ndarray, targets: np.ndarray
) -> None:
    """The share of the value targets' variance that the values `[T, B]` explain, over all real transitions."""
    rows = trajectories.rows()
    flat = slice(None) if rows is None else rows
    pred, target = values.reshape(-1)[flat], targets.reshape(-1)[flat]
    explained = explained_variance_over_learners(learner.reducer, pred, target, counts=learner.rows_in_step > 0)
    learner.metrics.set(module_id, vf_explained_var=explained)
