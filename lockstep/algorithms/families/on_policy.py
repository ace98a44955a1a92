"""`OnPolicyLearner`: learns from rollouts, whose values and log-probabilities it computes in one large batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.config import TrainingSection
from lockstep.learner.inputs import check_outputs, check_values, recorded_columns
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns, take_rows
from lockstep.learner.sequences import SequenceRows, evaluate_sequences
from lockstep.modules import RLModule
from lockstep.modules.action_dist import ActionDist
from lockstep.ops import gae, vtrace
from lockstep.ops.device_returns import tensor_gae
from lockstep.ops.fused_losses import GlobalReduction, can_fuse_ppo, load_ppo_kernel, moments, ppo_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import CorrectedOptions

Training = TypeVar("Training", bound=TrainingSection)


@dataclass
class CorrectedTraining(TrainingSection[ConfigT]):
    """Options of IMPALA and APPO, which V-trace corrects for the policy that acted."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 500
    max_lag: int = option(1, ge=0)
    """with env runners in other processes: updates that lie between the policy that acted and the one that learns; 0:
    they take turns"""
    fixed_lag: bool = True
    """exactly so many: the run is then the same in each repetition and for any number of runners; `False`: at most so
    many, and a train batch is whatever is ready first"""
    grad_clip: float | None = 40.0
    vtrace: bool = True
    """correct for the policy that acted; `False`: take its steps for those of the policy that learns (or of the target
    network)"""
    vtrace_clip_rho_threshold: float | None = option(1.0, gt=0)
    """upper limit of the importance weights of the value targets (the paper's rho-bar); `None`: no limit"""
    vtrace_clip_pg_rho_threshold: float | None = option(1.0, gt=0)
    """the same in the policy gradient"""
    lambda_: float = option(1.0, ge=0, le=1)
    """how far the corrections reach; lambda of GAE with `vtrace=False`"""
    vf_loss_coeff: float = option(0.5, ge=0)
    """how much the value error counts beside the policy's loss"""
    entropy_coeff: ScheduleLike = 0.01
    """how much the entropy is rewarded; 0: not at all"""

    def __call__(self, **options: Unpack[CorrectedOptions]) -> ConfigT:
        return self.change(options)


@dataclass(slots=True)
class EvaluatedRollout:
    """A rollout seen by the networks that are about to be trained."""

    obs: Tree
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
    old_values: Tensor
    """[T * B] the same of the values"""
    values: Any
    """[T, B], an array; a tensor where the rollout is of tensors"""
    next_values: Any
    """the same; value of the true next observation; the estimator ignores it where the episode terminated"""
    sequences: SequenceRows | None = None
    """of a module with memory: the sequences to train on"""
    bootstrap_obs: Tree = None
    """[K, ...] tensors, after the observation pipeline; None for K = 0"""
    rewards: np.ndarray | None = None
    """[T, B] after the learner connectors; None where there are none"""
    critic_obs: Tensor | None = None
    """[T * B, ...] what a centralised critic sees"""


class OnPolicyLearner(Learner[Training]):
    """The family of PPO, A2C, IMPALA and APPO, which all have a critic.

    An on-policy algorithm without one subclasses `Learner` and makes its columns with `train_columns`.
    """

    learns_step_by_step = True
    has_state_critic = True

    def setup_module(self, module_id: str) -> None:
        """Load compiled estimators and losses when the learner is built, not in its first update."""
        value, no = np.zeros((1, 1), torch.empty(0, dtype=self.dtype).numpy().dtype), np.zeros((1, 1), bool)
        rewards = np.zeros((1, 1), np.float32)
        gae(rewards, value, value, no, no, gamma=0.0, lambda_=0.0)
        vtrace(value, rewards, value, value, no, no, gamma=0.0, lambda_=0.0)
        action_dist = self.module[module_id].action_dist_cls
        if self.loss_has_kernel and type(action_dist) is ActionDist and self.device.type == "cpu":
            load_ppo_kernel(action_dist.dist_class, action_dist.input_size, self.dtype)

    # -- a rollout and the present parameters ---

    @torch.no_grad()
    def evaluate(self, module_id: str, trajectories: Trajectories | TensorRollout) -> EvaluatedRollout:
        """Run the network over all rows and over the bootstrap observations (with memory: in order).

        All of it is computed with the present parameters. What the episodes recorded when acting stands beside it
        (`old_`); where they recorded nothing the parameters are those that acted, and the two are the same.
        """
        if isinstance(trajectories, TensorRollout):
            return self._evaluate_on_device(module_id, trajectories)
        module = self.module[module_id]
        obs, actions, last, rewards = self._read(module_id, trajectories)
        critic_obs = self._read_critic_obs(module_id, trajectories)
        inputs, flat_values, bootstrap, sequences = self._outputs(module, trajectories, obs, last, critic_obs)
        values = flat_values.cpu().numpy().reshape(trajectories.shape)
        next_values = np.zeros_like(values)
        next_values[:-1] = values[1:]
        if bootstrap is not None:
            next_values.reshape(-1)[trajectories.bootstrap_index] = self.to_tensor(bootstrap).cpu().numpy()
        logp = module.action_dist_cls.from_inputs(inputs).log_prob(actions)
        old_inputs = self._recorded(trajectories, Columns.ACTION_DIST_INPUTS, inputs)
        old_logp = logp
        if old_inputs is not inputs:
            old_logp = module.action_dist_cls.from_inputs(old_inputs).log_prob(actions)
        return EvaluatedRollout(
            obs=obs,
            actions=actions,
            action_dist_inputs=inputs,
            action_logp=logp,
            old_dist_inputs=old_inputs,
            old_logp=self._recorded(trajectories, Columns.ACTION_LOGP, old_logp),
            old_values=self._recorded(trajectories, Columns.VF_PREDS, flat_values),
            values=values,
            next_values=next_values,
            sequences=sequences,
            bootstrap_obs=last,
            rewards=rewards,
            critic_obs=critic_obs,
        )

    def _evaluate_on_device(self, module_id: str, rollout: TensorRollout) -> EvaluatedRollout:
        """Do the same with tensors; the values of what steps arrived at are computed for all rows."""
        module, shape = self.module[module_id], rollout.shape

        def seen(obs: Tensor) -> TensorColumns:
            return {Columns.OBS: self.to_tensor(self.connectors[module_id].obs(obs.flatten(0, 1)))}

        batch, actions = seen(rollout.obs), self.to_tensor(rollout.actions.flatten(0, 1))
        out = module.forward_train(batch)
        inputs, values = out[Columns.ACTION_DIST_INPUTS], self.to_tensor(out[Columns.VF_PREDS]).view(shape)
        next_values = self.to_tensor(module.compute_values(seen(rollout.next_obs))).view(shape)
        logp = module.action_dist_cls.from_inputs(inputs).log_prob(actions)
        return EvaluatedRollout(
            obs=batch[Columns.OBS],
            actions=actions,
            action_dist_inputs=inputs,
            action_logp=logp,
            old_dist_inputs=inputs,
            old_logp=logp,
            old_values=values.reshape(-1),
            values=values,
            next_values=next_values,
        )

    def _read(self, module_id: str, trajectories: Trajectories) -> tuple[Tree, Tensor, Tree, np.ndarray | None]:
        """Return observations, actions and bootstrap observations as tensors and, after learner connectors, rewards."""
        connectors, index = self.connectors[module_id], trajectories.bootstrap_index
        if connectors.learner:
            columns = recorded_columns(self.to_tensor, connectors, trajectories)
            last = take_rows({Columns.OBS: columns[Columns.NEXT_OBS]}, torch.from_numpy(index).to(self.device))
            rewards = columns[Columns.REWARDS].cpu().numpy().astype(trajectories.rewards.dtype)
            return (
                columns[Columns.OBS],
                columns[Columns.ACTIONS],
                last[Columns.OBS] if len(index) else None,
                rewards.reshape(trajectories.shape),
            )
        obs = map_tree(self.to_tensor, connectors.obs(trajectories.flat_obs()))
        bootstrap_obs = map_tree(self.to_tensor, connectors.obs(trajectories.bootstrap_obs)) if len(index) else None
        return obs, self.to_tensor(trajectories.flat_actions()), bootstrap_obs, None

    def _read_critic_obs(self, module_id: str, trajectories: Trajectories) -> Tensor | None:
        """Return what a centralised critic sees `[T * B, ...]`; None for a module without one."""
        if self.module[module_id].critic_space is None:
            return None
        found = trajectories.critic_obs
        if found is None:
            raise ValueError(
                f"module {module_id!r} has a centralised critic, and its episodes have no {Columns.CRITIC_OBS!r} in "
                "their infos; collect with multi_agent(centralized_critic=...), or add it to the infos"
            )
        return self.to_tensor(found.reshape(-1, *found.shape[2:]))

    def _rewards(self, module_id: str, trajectories: Trajectories, rollout: EvaluatedRollout) -> np.ndarray:
        """Return the rewards `[T, B]` that advantages and targets are made of."""
        rewards = rollout.rewards
        if rewards is None:
            rewards = self.connectors[module_id].learning_rewards(trajectories)
        novelty = self.novelty_of(module_id)
        if novelty is None:
            return rewards
        following = map_tree(self.to_tensor, self.connectors[module_id].obs(trajectories.next_obs()))
        rows, counted = trajectories.rows(), torch.zeros(rewards.size, dtype=torch.bool)
        counted[slice(None) if rows is None else torch.from_numpy(rows)] = self.rows_in_step > 0
        return rewards + novelty(following, counted, self.reducer).cpu().numpy().reshape(rewards.shape)

    def _outputs(
        self, module: RLModule, trajectories: Trajectories, obs: Tree, last: Tree, critic_obs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, SequenceRows | None]:
        """Return distribution inputs and values of all rows, values `[K]` of `last`, and sequences with memory."""
        bootstrap, sequences = None, None
        if module.is_stateful():
            out, bootstrap, sequences = evaluate_sequences(self.to_tensor, module, trajectories, obs, last)
        else:
            batch = columns_seen(obs, critic_obs)
            out = module.forward_train(batch)
            if type(module).compute_values is not RLModule.compute_values and Columns.VF_PREDS not in out:
                out = {**out, Columns.VF_PREDS: module.compute_values(batch)}
        names = Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS
        check_outputs(out, names, type(module).__name__, type(self).__name__)
        if last is not None and not module.is_stateful():
            seen = None if critic_obs is None else self.to_tensor(np.asarray(trajectories.bootstrap_critic_obs))
            bootstrap = module.compute_values(columns_seen(last, seen))
        if not module.is_stateful():
            check_values(out[Columns.VF_PREDS], type(module).__name__)
            check_values(out[Columns.VF_PREDS] if bootstrap is None else bootstrap, type(module).__name__)
        return out[names[0]], self.to_tensor(out[names[1]]), bootstrap, sequences

    def _recorded(self, trajectories: Trajectories, name: str, computed: Tensor) -> Tensor:
        """Return what was recorded as `name` when acting, in rows, and `computed` `[T * B, ...]` where it is NaN."""
        found: Any = (trajectories.recorded or {}).get(name)
        if name == Columns.ACTION_LOGP:
            found = trajectories.action_logp
        if found is None:
            return computed
        found = self.to_tensor(np.ascontiguousarray(found)).to(computed.dtype)
        if found.numel() != computed.numel():
            raise ValueError(
                f"the episodes recorded {name!r} with {found.numel() // len(computed)} numbers for each step, this "
                f"network gives {computed.numel() // len(computed)}; leave {name!r} out of extra_model_outputs, or "
                "record what this network gave"
            )
        found = found.reshape(computed.shape)
        return torch.where(found.isnan(), computed, found)

    @torch.no_grad()
    def inputs_under(self, module: RLModule, trajectories: Trajectories, rollout: EvaluatedRollout) -> Tensor:
        """Return `[T * B, D]` action distribution inputs under another module, such as a target network."""
        if module.is_stateful():  # with its own memory
            out = evaluate_sequences(self.to_tensor, module, trajectories, rollout.obs, rollout.bootstrap_obs)[0]
        else:
            out = module.forward_train(columns_seen(rollout.obs, rollout.critic_obs))
        inputs: Tensor = out[Columns.ACTION_DIST_INPUTS]
        return inputs

    # -- advantages ---

    def generalized_advantages(
        self, module_id: str, trajectories: Trajectories | TensorRollout, rollout: EvaluatedRollout
    ) -> tuple[Tensor, Tensor]:
        """Return advantages (GAE) and value targets, `[T * B]` each; how well the values explain them is logged."""
        if isinstance(trajectories, TensorRollout):
            return self._advantages_on_device(module_id, trajectories, rollout)
        options: Any = self.config_of(module_id)
        advantages, targets = gae(
            self._rewards(module_id, trajectories, rollout),
            rollout.values,
            rollout.next_values,
            trajectories.terminateds,
            trajectories.cuts,
            gamma=options.gamma,
            lambda_=options.lambda_,
        )
        self._log_explained_variance(module_id, trajectories, rollout.values, targets)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def _advantages_on_device(
        self, module_id: str, rollout: TensorRollout, evaluated: EvaluatedRollout
    ) -> tuple[Tensor, Tensor]:
        """Return advantages (GAE) and value targets, `[T * B]` each, of a rollout on a device, and log how well the
        values explain them. The host does not wait for the device, unless several ranks share the rollout.
        """
        options: Any = self.config_of(module_id)
        values = evaluated.values
        advantages, targets = tensor_gae(
            self.to_tensor(self.connectors[module_id].learning_rewards_on_device(rollout)),
            values,
            evaluated.next_values,
            rollout.terminateds,
            rollout.cuts,
            gamma=options.gamma,
            lambda_=options.lambda_,
        )

        explained: float | Tensor
        if rollout.share.number > 1:
            pred, target = (each.detach().flatten().cpu().numpy() for each in (values, targets))
            explained = self.reducer.explained_variance(pred, target)
        else:
            explained = 1.0 - (targets - values).var(correction=0) / targets.var(correction=0)
        self.log_for_update(module_id, vf_explained_var=explained)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def correct(
        self,
        module_id: str,
        trajectories: Trajectories,
        rollout: EvaluatedRollout,
        *,
        target_logp: Tensor | None = None,
        weighted: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, `[T * B]` each, by V-trace from the policy that acted.

        It corrects towards the policy of `target_logp` `[T * B]` (None: the one that learns). Steps whose `action_logp`
        is not known count as acted by the policy that learns, as it is now. With `vtrace=False` nothing is corrected:
        lambda returns and GAE. `weighted`: the advantages have importance weights in them.
        """
        options: Any = self.config_of(module_id)
        target, behaviour = rollout.action_logp if target_logp is None else target_logp, rollout.old_logp
        log_ratios = target - behaviour if options.vtrace else torch.zeros_like(behaviour)
        targets, advantages = vtrace(
            log_ratios.cpu().numpy().reshape(trajectories.shape),
            self._rewards(module_id, trajectories, rollout),
            rollout.values,
            rollout.next_values,
            trajectories.terminateds,
            trajectories.cuts,
            gamma=options.gamma,
            lambda_=options.lambda_,
            clip_rho=options.vtrace_clip_rho_threshold,
            clip_pg_rho=options.vtrace_clip_pg_rho_threshold,
            weighted=weighted,
        )
        self._log_explained_variance(module_id, trajectories, rollout.values, targets)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def _log_explained_variance(
        self, module_id: str, trajectories: Trajectories, values: np.ndarray, targets: np.ndarray
    ) -> None:
        """Report the share of the value targets' variance that the values `[T, B]` explain, over all transitions."""
        rows = trajectories.rows()
        flat = slice(None) if rows is None else rows
        pred, target = values.reshape(-1)[flat], targets.reshape(-1)[flat]
        explained = self.reducer.explained_variance(pred, target, counts=self.rows_in_step > 0)
        self.log_for_update(module_id, vf_explained_var=explained)

    def rows_to_train(
        self, columns: TensorColumns, rollout: EvaluatedRollout, trajectories: Trajectories | TensorRollout
    ) -> TensorColumns:
        """Return what a gradient step takes rows of: the transitions, or the sequences `[S, L, ...]` with memory."""
        if rollout.critic_obs is not None:
            columns = {**columns, Columns.CRITIC_OBS: rollout.critic_obs}
        if rollout.sequences is not None:
            return rollout.sequences.train_columns(columns)
        rows = trajectories.rows()
        return columns if rows is None else take_rows(columns, torch.from_numpy(rows).to(self.device))

    # -- the loss ---

    def adapt_kl_coefficient(self, module_id: str, target: float) -> None:
        """Double the coefficient of a KL penalty above 1.5 times the target, halve it below a 1.5th.

        As in section 4 of PPO's paper.
        """
        mean_kl = float(self.metrics.pass_mean(module_id, "mean_kl_loss"))
        coefficient: Tensor = self.registered[f"{module_id}/kl_coeff"]
        if mean_kl > 1.5 * target:
            coefficient.mul_(2.0)
        elif mean_kl < target / 1.5:
            coefficient.mul_(0.5)

    def fused_loss(self, module_id: str, config: Any, batch: TensorColumns, fwd_out: Outputs) -> Tensor | None:
        """Return the loss that PPO writes out from one kernel, its terms logged; None where it has to be written out.

        That is: masked rows, a KL penalty, an overridden `masked_mean` or `normalized`, an action distribution without
        a kernel, another device, a trace.
        """
        action_dist = self.module[module_id].action_dist_cls
        inputs, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.VF_PREDS]
        names = Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.VF_PREDS
        rows = [batch[name] for name in names[: 4 if config.vf_clip_param is None else 5]]
        if (
            Columns.LOSS_MASK in batch
            or config.kl_coeff > 0
            or not self.overridden_methods.isdisjoint(("masked_mean", "normalized"))
            or type(action_dist) is not ActionDist
            or not can_fuse_ppo(action_dist.dist_class, inputs, values, *rows)
        ):
            return None
        if self.reducer.world_size > 1 and not self.rows_in_step:  # stand-ins, which count for nothing
            rows, inputs, values = [column[:0] for column in rows], inputs[:0], values[:0]
        actions, old_logp, advantages, targets, *old_values = rows
        clip_param, entropy_coeff = (self.coefficient(module_id, name) for name in ("clip_param", "entropy_coeff"))
        reduction = None
        if self.reducer.world_size > 1:
            parts = torch.zeros(self.reducer.world_size, 3, dtype=torch.float64)
            parts[self.reducer.rank] = moments(advantages)
            reduction = GlobalReduction(self.reducer.sum_(parts), self.reducer.sum_)
        loss, terms = ppo_loss(
            action_dist.dist_class,
            inputs,
            values,
            (actions, old_logp, advantages, targets),
            coefficients=(clip_param, config.vf_loss_coeff, entropy_coeff),
            dual_clip=config.dual_clip,
            old_values=old_values[0] if old_values else None,
            vf_clip_param=config.vf_clip_param,
            normalize=config.normalize_advantages == "minibatch",
            reduction=reduction,
        )
        policy_loss, vf_loss, entropy, mean_kl, clip_fraction = terms.unbind()
        self.log(
            module_id,
            policy_loss=policy_loss,
            vf_loss=vf_loss,
            entropy=entropy,
            mean_kl_loss=mean_kl,
            clip_fraction=clip_fraction,
        )
        return loss


def columns_seen(obs: Tree, critic_obs: Tensor | None) -> TensorColumns:
    """Return what a network is given: observations, and what a centralised critic sees besides."""
    return {Columns.OBS: obs} if critic_obs is None else {Columns.OBS: obs, Columns.CRITIC_OBS: critic_obs}
