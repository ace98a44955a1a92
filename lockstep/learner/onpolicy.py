"""What on-policy learners share: values and log-probabilities of a rollout, in one large batch (house, decision 4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import is_numeric, leaves, map_tree
from lockstep.learner.batch_checks import check_columns
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
    old_dist_inputs: Tensor
    """[T * B, D] what acted, as far as it was recorded; `action_dist_inputs` where it was not"""
    old_logp: Tensor
    """[T * B] the same of `action_logp`"""
    values: np.ndarray
    """[T, B]"""
    old_values: np.ndarray
    """[T, B] values as recorded when acting; `values` where they were not"""
    next_values: np.ndarray
    """[T, B] value of the true next observation; the estimator ignores it where the episode terminated"""
    sequences: SequenceRows | None = None
    """of a module with memory: the sequences to train on"""
    bootstrap_obs: Any = None
    """[K, ...] tensors, after the observation pipeline; None for K = 0"""


@torch.no_grad()
def evaluate_trajectories(learner: Learner, module_id: str, trajectories: Trajectories) -> Evaluated:
    """One forward pass over all rows and one over the bootstrap observations (of a module with memory: in order).

    All of it is computed with the present parameters. What the episodes recorded when acting stands beside it (`old_`);
    where they recorded nothing the parameters are those that acted, and the two are the same.
    """
    module, pipeline = learner.module[module_id], learner.connectors[module_id].obs
    obs = map_tree(learner.to_tensor, pipeline(trajectories.flat_obs()))
    last = None
    if len(trajectories.bootstrap_index):
        last = map_tree(learner.to_tensor, pipeline(trajectories.bootstrap_obs))
    sequences, bootstrap = None, None
    if module.is_stateful():
        out, bootstrap, sequences = evaluate_sequences(learner, module, trajectories, obs, last)
        check_outputs(learner, module, out, (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS))
    else:
        out = module.forward_train({Columns.OBS: obs})
        if type(module).compute_values is not RLModule.compute_values and Columns.VF_PREDS not in out:
            out = {**out, Columns.VF_PREDS: module.compute_values({Columns.OBS: obs})}
        check_outputs(learner, module, out, (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS))
        if last is not None:
            bootstrap = module.compute_values({Columns.OBS: last})
    actions = learner.to_tensor(trajectories.flat_actions())
    inputs = out[Columns.ACTION_DIST_INPUTS]
    values = learner.to_tensor(out[Columns.VF_PREDS]).cpu().numpy().reshape(trajectories.shape)
    next_values = np.empty_like(values)
    next_values[:-1] = values[1:]
    next_values[-1] = 0.0
    if bootstrap is not None:
        next_values.reshape(-1)[trajectories.bootstrap_index] = learner.to_tensor(bootstrap).cpu().numpy()
    logp = module.action_dist_cls.from_inputs(inputs).log_prob(actions)
    old_inputs, old_logp, old_values = _of_acting(learner, module, trajectories, actions, (inputs, logp, values))
    return Evaluated(obs, actions, inputs, logp, old_inputs, old_logp, values, old_values, next_values, sequences, last)


def _of_acting(
    learner: Learner, module: RLModule, trajectories: Trajectories, actions: Tensor, present: tuple[Any, Any, Any]
) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return inputs of the action distribution, log-probabilities and values as recorded when acting, and those of
    `present` where nothing was recorded.
    """
    (inputs, logp, values), recorded = present, dict(trajectories.recorded or {})
    old_inputs = _recorded(learner, recorded, Columns.ACTION_DIST_INPUTS, inputs)
    if old_inputs is not inputs:
        logp = module.action_dist_cls.from_inputs(old_inputs).log_prob(actions)
    if trajectories.action_logp is not None:
        recorded[Columns.ACTION_LOGP] = trajectories.action_logp
        logp = _recorded(learner, recorded, Columns.ACTION_LOGP, logp)
    if Columns.VF_PREDS in recorded:
        flat = _recorded(learner, recorded, Columns.VF_PREDS, learner.to_tensor(values.reshape(-1)))
        values = flat.cpu().numpy().reshape(values.shape)
    return old_inputs, logp, values


def _recorded(learner: Learner, recorded: Mapping[str, Any], name: str, computed: Tensor) -> Tensor:
    """Return what was recorded as `name` `[T, B, ...]` in rows, and `computed` `[T * B, ...]` where it is NaN."""
    if name not in recorded:
        return computed
    given = learner.to_tensor(np.ascontiguousarray(recorded[name])).to(computed.dtype)
    if given.numel() != computed.numel():
        raise ValueError(
            f"the episodes recorded {name!r} with {given.numel() // len(computed)} numbers for each step, this network "
            f"gives {computed.numel() // len(computed)}; leave {name!r} out of extra_model_outputs, or record what "
            "this network gave"
        )
    given = given.reshape(computed.shape)
    return torch.where(given.isnan(), computed, given)


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


def recorded_columns(learner: Learner, module_id: str, trajectories: Trajectories) -> dict[str, Any]:
    """Return what the episodes recorded, `{name: [T * B, ...]}`, observations after the observation pipeline."""
    connectors = learner.connectors[module_id]
    truncateds = trajectories.cuts if trajectories.truncateds is None else trajectories.truncateds
    found: dict[str, Any] = {
        Columns.OBS: connectors.obs(trajectories.flat_obs()),
        Columns.ACTIONS: trajectories.flat_actions(),
        Columns.REWARDS: np.ascontiguousarray(connectors.learning_rewards(trajectories)).reshape(-1),
        Columns.NEXT_OBS: connectors.obs(trajectories.next_obs()),
        Columns.TERMINATEDS: trajectories.terminateds.reshape(-1),
        Columns.TRUNCATEDS: truncateds.reshape(-1),
    }
    extras = {Columns.ACTION_LOGP: trajectories.action_logp, **(trajectories.recorded or {})}
    for name, column in extras.items():
        if column is not None and name not in found and all(map(is_numeric, leaves(column))):
            found[name] = map_tree(lambda leaf: np.ascontiguousarray(leaf).reshape(-1, *leaf.shape[2:]), column)
    return {name: map_tree(learner.to_tensor, column) for name, column in found.items()}


def columns_to_train(
    learner: Learner, module_id: str, columns: dict[str, Any], trajectories: Trajectories
) -> dict[str, Any]:
    """As `train_columns`, without an evaluation of the networks where there is no memory; checked."""
    module = learner.module[module_id]
    if module.is_stateful():
        last = None
        if len(trajectories.bootstrap_index):
            last = map_tree(learner.to_tensor, learner.connectors[module_id].obs(trajectories.bootstrap_obs))
        sequences = evaluate_sequences(learner, module, trajectories, columns[Columns.OBS], last)[2]
        chosen: dict[str, Any] = sequences.train_columns(columns)
    else:
        chosen = select_rows(columns, trajectories.rows())
    check_columns(learner, module_id, chosen)
    return chosen


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


class FirstValues:
    """The values that the first pass over a batch finds, each row's before it is trained on: for `vf_explained_var`."""

    def __init__(self, learner: Learner, columns: Mapping[str, Any]) -> None:
        self._learner = learner
        self._columns = {module_id: part for module_id, part in columns.items() if Columns.VALUE_TARGETS in part}
        self._found: dict[str, list[tuple[Tensor, np.ndarray | None]]] = {}
        """by module: the values of some rows, and which these are (None: all)"""

    def add(self, rows: Mapping[str, np.ndarray | None], stand_ins: Collection[str]) -> None:
        """Take what the last gradient step found for its `rows`."""
        for module_id, values in self._learner.row_values.items():
            if module_id in self._columns:
                found = self._found.setdefault(module_id, [])
                if module_id not in stand_ins:
                    found.append((values, rows[module_id]))

    def log_explained_variance(self) -> None:
        """Report the share of the targets' variance that the values explain, over the rows of all learners."""
        for module_id, found in self._found.items():
            targets, mask = (self._columns[module_id].get(n) for n in (Columns.VALUE_TARGETS, Columns.LOSS_MASK))
            values, target = targets.new_empty(0), targets[:0]
            if found:
                indices = [np.arange(len(targets)) if index is None else index for _, index in found]
                rows = torch.from_numpy(np.concatenate(indices)).to(targets.device)
                values, target = torch.cat([each for each, _ in found]), targets[rows]
                if values.shape != target.shape:
                    continue  # a loss of one's own may mean anything by these names
                if mask is not None:
                    values, target = values[mask[rows]], target[mask[rows]]
            pred, target = (each.cpu().numpy().reshape(-1) for each in (values, target))
            explained = explained_variance_over_learners(self._learner.reducer, pred, target, counts=len(pred) > 0)
            self._learner.metrics.set(module_id, vf_explained_var=explained)
