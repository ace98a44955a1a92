"""`OnPolicyLearner`: base class of learners with an actor and a critic that learn from rollouts.

Values and log-probabilities of a whole rollout are computed once before an update, in one large batch. The words of
this file are explained in `docs/glossary.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import MIRRORED, Columns
from lockstep.data.groups import CRITIC, POLICY
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.config import TrainingSection
from lockstep.learner.device.sequences import DeviceSequences, evaluate_memory
from lockstep.learner.images import IS_IMAGE
from lockstep.learner.inputs import check_outputs, check_values, recorded_columns, recorded_columns_on_device
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns, take_rows
from lockstep.learner.sequences import SequenceRows, evaluate_sequences
from lockstep.modules import RLModule
from lockstep.modules.action_dist import ActionDist
from lockstep.ops import gae, vtrace
from lockstep.ops.device_returns import tensor_gae, tensor_vtrace
from lockstep.ops.fused_losses import GlobalReduction, can_fuse_ppo, load_ppo_kernel, moments, ppo_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import VTraceOptions

Training = TypeVar("Training", bound=TrainingSection)


@dataclass
class VTraceTraining(TrainingSection[ConfigT]):
    """Options of IMPALA and APPO.

    Their rollouts may come from an older policy than the one that learns. V-trace corrects for the difference.
    """

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 500
    # The lag is the age, in updates, of the weights that env runners in other processes act with. With `max_lag=2` the
    # rollout for update 10 may come from the weights after update 7; the learner then has the weights after update 9.
    max_lag: int = option(1, ge=0)
    """Maximum number of updates by which the weights that env runners in other processes act with may be older than the
    learner's weights. With 0 acting and learning alternate."""
    fixed_lag: bool = True
    """Make the lag exactly `max_lag` updates, so that results are the same in each repetition and for any number of env
    runners. False allows any lag up to `max_lag`, and a train batch consists of the samples that are ready first."""
    grad_clip: float | None = 40.0
    # IMPALA corrects towards the policy that learns. APPO corrects towards the target network instead, which is a slow
    # copy of the network that learns.
    vtrace: bool = True
    """Correct for the difference between the policy that acted and the one that learns (APPO: the target network).
    False assumes that they are the same."""
    vtrace_clip_rho_threshold: float | None = option(1.0, gt=0)
    """Upper limit of the importance weights in the value targets (the paper's rho-bar). `None` sets no limit."""
    vtrace_clip_pg_rho_threshold: float | None = option(1.0, gt=0)
    """Upper limit of the importance weights in the policy gradient. `None` sets no limit."""
    lambda_: float = option(1.0, ge=0, le=1)
    """Decay of the corrections over steps. With `vtrace=False` it is lambda of GAE."""
    vf_loss_coeff: float = option(0.5, ge=0)
    """Weight of the value loss."""
    entropy_coeff: ScheduleLike = 0.01
    """Weight of the entropy bonus. 0 gives no bonus."""

    def __call__(self, **options: Unpack[VTraceOptions]) -> ConfigT:
        return self.change(options)


@dataclass(slots=True)
class EvaluatedRollout:
    """Rollout with the outputs of two versions of the networks: the present one, and the one that acted.

    The present networks are those before the update. They differ from the networks that acted if env runners act with
    older weights, as in IMPALA.

    The fields `old_*` are the outputs that were recorded when acting. Where an episode has no record, they are the
    outputs of the present networks: it is assumed that these have acted.

    In shapes T is the number of vector steps, B of environments, K of bootstrap observations, and D of inputs of an
    action distribution.
    """

    obs: Tree
    """Observations after the observation pipeline: tensors of shape [T * B, ...]."""
    actions: Tensor
    """Actions [T * B, ...]."""
    action_dist_inputs: Tensor
    """Inputs [T * B, D] of the action distributions."""
    action_logp: Tensor
    """Log-probabilities [T * B] of the actions."""
    old_dist_inputs: Tensor
    """Inputs [T * B, D] of the action distributions when acting."""
    old_logp: Tensor
    """Log-probabilities [T * B] of the actions when acting."""
    old_values: Tensor
    """Values [T * B] of the observations when acting."""
    values: Any
    """Values [T, B] of the observations: an array, or a tensor for a rollout of tensors."""
    next_values: Any
    """Values [T, B] of the next observations, of the same type as `values`. At the end of an episode the next
    observation is the episode's last one, not the first one after the reset. Estimators ignore the values at terminated
    rows."""
    sequences: SequenceRows | DeviceSequences | None = None
    """Sequences to train on, for a module with a memory."""
    bootstrap_obs: Tree = None
    """Observations from which returns are bootstrapped, after the observation pipeline: tensors of shape [K, ...]. They
    follow the last row of an episode that was truncated, or that had not ended when the collect did. None for K = 0.
    For a rollout of tensors these are the observations after all rows: K = T * B."""
    rewards: Any = None
    """Rewards [T, B] after the learner connectors, which process whole batches: a tensor for a rollout of tensors, else
    an array, or None without learner connectors."""
    images: TensorColumns = field(default_factory=dict)
    """Columns [T * B, ...] of the mirror images of all rows. Empty without a symmetry."""


class OnPolicyLearner(Learner[Training]):
    """Base class of the learners of PPO, A2C, TRPO, IMPALA and APPO, which all have a critic of states (values V(s)).

    An on-policy algorithm without a critic subclasses `Learner` and makes its columns with `Learner.train_columns`.
    """

    # Advantages use the reward of each single step. A loss that uses only the sum of an episode's rewards would have
    # False here, and then an intrinsic reward is refused.
    learns_step_by_step = True
    observed_by = (POLICY, CRITIC)

    def setup_module(self, module_id: str) -> None:
        """Compile or load the kernels of estimators and losses now, so that the first update does not wait for them."""
        # A kernel is compiled for the types of its arguments, so these must be the types of real calls.
        value_dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        values = np.zeros((1, 1), value_dtype)
        ends = np.zeros((1, 1), bool)
        rewards = np.zeros((1, 1), np.float32)
        gae(rewards, values, values, ends, ends, gamma=0.0, lambda_=0.0)
        vtrace(values, rewards, values, values, ends, ends, gamma=0.0, lambda_=0.0)

        # An `ActionDist` describes the distribution of actions (see `modules/action_dist.py`), and its `dist_class` is
        # the class of the distribution, such as `Categorical`. A subclass may compute in another way than the kernel.
        action_dist = self.module[module_id].action_dist_cls
        if self.loss_has_kernel and type(action_dist) is ActionDist and self.device.type == "cpu":
            load_ppo_kernel(action_dist.dist_class, action_dist.input_size, self.dtype)

    # -- evaluation of a rollout with the present parameters ---

    @torch.no_grad()
    def evaluate(self, module_id: str, trajectories: Trajectories | TensorRollout) -> EvaluatedRollout:
        """Return the outputs of the present networks for all rows of a rollout and for its bootstrap observations.

        Networks with a memory are run over each episode in order.
        """
        if trajectories.is_on_device:
            return self._evaluate_on_device(module_id, trajectories)
        module = self.module[module_id]
        obs, actions, bootstrap_obs, rewards, images = self._read(module_id, trajectories)
        dist_inputs, flat_values, bootstrap_values, sequences = self._outputs(module, trajectories, obs, bootstrap_obs)

        # In the grid [T, B] the value after step t is the value of row t + 1. This is wrong at the rows of
        # `bootstrap_index`, where an episode was truncated or the rollout stops in the middle of an episode: the next
        # observation of such a row is not in the grid, but in `bootstrap_obs`. Terminated rows use no next value.
        values = flat_values.cpu().numpy().reshape(trajectories.shape)
        next_values = np.zeros_like(values)
        next_values[:-1] = values[1:]
        if bootstrap_values is not None:
            # `to_tensor` converts to the learner's dtype, since a network of the user's own may return another one.
            next_values.reshape(-1)[trajectories.bootstrap_index] = self.to_tensor(bootstrap_values).cpu().numpy()

        logp = module.action_dist_cls.from_inputs(dist_inputs).log_prob(actions)

        # Outputs of the policy that acted. The log-probability of a step comes from the first of these that exists:
        # 1. the recorded log-probability; 2. the recorded inputs of the distribution; 3. the present policy.
        old_dist_inputs = self._recorded(trajectories, Columns.ACTION_DIST_INPUTS, dist_inputs)
        logp_without_record = logp
        if old_dist_inputs is not dist_inputs:
            logp_without_record = module.action_dist_cls.from_inputs(old_dist_inputs).log_prob(actions)
        old_logp = self._recorded(trajectories, Columns.ACTION_LOGP, logp_without_record)
        old_values = self._recorded(trajectories, Columns.VF_PREDS, flat_values)
        return EvaluatedRollout(
            obs=obs,
            actions=actions,
            action_dist_inputs=dist_inputs,
            action_logp=logp,
            old_dist_inputs=old_dist_inputs,
            old_logp=old_logp,
            old_values=old_values,
            values=values,
            next_values=next_values,
            sequences=sequences,
            bootstrap_obs=bootstrap_obs,
            rewards=rewards,
            images=images,
        )

    def _evaluate_on_device(self, module_id: str, rollout: TensorRollout) -> EvaluatedRollout:
        """Return the outputs for a rollout of tensors.

        The values of all next observations are computed: selecting the rows that need them would make the host wait for
        the device.
        """
        module = self.module[module_id]
        obs, actions, next_obs, rewards, images = self._read_on_device(module_id, rollout)
        sequences = None
        if module.is_stateful():
            outputs = evaluate_memory(obs, next_obs, module, rollout)
            dist_inputs = outputs.action_dist_inputs
            flat_values = outputs.values
            flat_next_values = outputs.next_values
            sequences = outputs.sequences
        else:
            out = module.forward_train({Columns.OBS: obs})
            dist_inputs = out[Columns.ACTION_DIST_INPUTS]
            flat_values = out[Columns.VF_PREDS]
            flat_next_values = module.compute_values({Columns.OBS: next_obs})
        values = self.to_tensor(flat_values).view(rollout.shape)
        next_values = self.to_tensor(flat_next_values).view(rollout.shape)
        logp = module.action_dist_cls.from_inputs(dist_inputs).log_prob(actions)
        return EvaluatedRollout(
            obs=obs,
            actions=actions,
            action_dist_inputs=dist_inputs,
            action_logp=logp,
            old_dist_inputs=dist_inputs,
            old_logp=logp,
            old_values=values.reshape(-1),
            values=values,
            next_values=next_values,
            sequences=sequences,
            bootstrap_obs=next_obs,
            rewards=rewards,
            images=images,
        )

    def _read_on_device(
        self, module_id: str, rollout: TensorRollout
    ) -> tuple[Tree, Tensor, Tree, Tensor, TensorColumns]:
        """Apply the connectors to a rollout of tensors.

        Returns observations, actions and next observations, `[T * B, ...]` each, rewards `[T, B]`, and the columns with
        the mirror images of the rows.
        """
        columns = recorded_columns_on_device(self.to_tensor, self.connectors[module_id], rollout)
        # In the dtype of the environments, in which the host keeps rewards as well.
        rewards = columns[Columns.REWARDS].to(rollout.rewards.dtype).view(rollout.shape)
        images = images_in(columns)
        return columns[Columns.OBS], columns[Columns.ACTIONS], columns[Columns.NEXT_OBS], rewards, images

    def _read(
        self, module_id: str, trajectories: Trajectories
    ) -> tuple[Tree, Tensor, Tree, np.ndarray | None, TensorColumns]:
        """Apply the connectors to a rollout, and return observations, actions, bootstrap observations, rewards, images.

        All but the rewards are tensors on the learner's device. The rewards are an array, or None without learner
        connectors: only these can change rewards. The images are columns with the mirror images of the rows.
        """
        connectors = self.connectors[module_id]
        index = trajectories.bootstrap_index
        if not connectors.learner:
            obs = map_tree(self.to_tensor, connectors.obs(trajectories.flat_obs()))
            actions = self.to_tensor(trajectories.flat_actions())
            bootstrap_obs = None
            if len(index):
                bootstrap_obs = map_tree(self.to_tensor, connectors.obs(trajectories.bootstrap_obs))
            images: TensorColumns = {}
            if connectors.symmetry is not None:
                stored = {Columns.OBS: trajectories.flat_obs(), Columns.ACTIONS: trajectories.flat_actions()}
                images = map_tree(self.to_tensor, connectors.images(stored))
            return obs, actions, bootstrap_obs, None, images

        columns = recorded_columns(self.to_tensor, connectors, trajectories)
        next_obs = {Columns.OBS: columns[Columns.NEXT_OBS]}
        last = take_rows(next_obs, torch.from_numpy(index).to(self.device))
        bootstrap_obs = last[Columns.OBS] if len(index) else None
        rewards = columns[Columns.REWARDS].cpu().numpy().astype(trajectories.rewards.dtype)
        rewards = rewards.reshape(trajectories.shape)
        return columns[Columns.OBS], columns[Columns.ACTIONS], bootstrap_obs, rewards, images_in(columns)

    def _rewards(self, module_id: str, trajectories: Trajectories, evaluated: EvaluatedRollout) -> np.ndarray:
        """Return the rewards `[T, B]` for advantages and targets, with the intrinsic reward for novelty, if any."""
        rewards: np.ndarray | None = evaluated.rewards
        if rewards is None:
            rewards = self.connectors[module_id].learning_rewards(trajectories)
        novelty = self.novelty_of(module_id)
        if novelty is None:
            return rewards

        next_obs = map_tree(self.to_tensor, self.connectors[module_id].obs(trajectories.next_obs()))
        # The statistics of the novelty count real transitions only. A learner without own rows of this module
        # (`rows_in_step` is 0) has a stand-in instead, which is a copy of another learner's rows: with it all learners
        # make the same calls. The other learner counts these rows, so this one must not.
        rows = trajectories.rows()
        counted = torch.zeros(rewards.size, dtype=torch.bool)
        has_own_rows = self.rows_in_step > 0
        counted[slice(None) if rows is None else torch.from_numpy(rows)] = has_own_rows
        bonus = novelty(next_obs, counted, self.reducer).cpu().numpy()
        return rewards + bonus.reshape(rewards.shape)

    def _outputs(
        self, module: RLModule, trajectories: Trajectories, obs: Tree, bootstrap_obs: Tree
    ) -> tuple[Tensor, Tensor, Tensor | None, SequenceRows | None]:
        """Return the network's outputs for a rollout.

        Returns the inputs `[T * B, D]` of the action distributions, the values `[T * B]`, the values `[K]` of the
        bootstrap observations (None for K = 0), and the sequences of a network with a memory (otherwise None).
        """
        names = Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS
        module_name = type(module).__name__
        if module.is_stateful():
            out, bootstrap_values, sequences = evaluate_sequences(
                self.to_tensor, module, trajectories, obs, bootstrap_obs
            )
            check_outputs(out, names, module_name, type(self).__name__)
            return out[Columns.ACTION_DIST_INPUTS], self.to_tensor(out[Columns.VF_PREDS]), bootstrap_values, sequences

        batch = module.network_inputs(obs)
        out = module.forward_train(batch)
        # A user's network may leave values out of `forward_train`, and compute them in `compute_values`.
        if module.overrides_compute_values and Columns.VF_PREDS not in out:
            out = {**out, Columns.VF_PREDS: module.compute_values(batch)}
        check_outputs(out, names, module_name, type(self).__name__)
        values = out[Columns.VF_PREDS]
        check_values(values, module_name)

        bootstrap_values = None
        if bootstrap_obs is not None:
            bootstrap_values = module.compute_values(module.network_inputs(bootstrap_obs))
            check_values(bootstrap_values, module_name)
        return out[Columns.ACTION_DIST_INPUTS], self.to_tensor(values), bootstrap_values, None

    def _recorded(self, trajectories: Trajectories, name: str, computed: Tensor) -> Tensor:
        """Return the outputs that were recorded when acting, `[T * B, ...]`, and the `computed` ones for other steps.

        NaN marks a step without record.

        Raises:
            ValueError: the record has another number of values per step than this network.
        """
        if name == Columns.ACTION_LOGP:
            recorded: Any = trajectories.action_logp
        else:
            recorded = (trajectories.recorded or {}).get(name)
        if recorded is None:
            return computed

        recorded = self.to_tensor(np.ascontiguousarray(recorded)).to(computed.dtype)
        if recorded.numel() != computed.numel():
            raise ValueError(
                f"the episodes recorded {name!r} with {recorded.numel() // len(computed)} numbers for each step, this "
                f"network gives {computed.numel() // len(computed)}; leave {name!r} out of extra_model_outputs, or "
                "record what this network gave"
            )
        recorded = recorded.reshape(computed.shape)
        return torch.where(recorded.isnan(), computed, recorded)

    @torch.no_grad()
    def dist_inputs_of(
        self, module: RLModule, trajectories: Trajectories | TensorRollout, evaluated: EvaluatedRollout
    ) -> Tensor:
        """Return the action distribution inputs `[T * B, D]` of another module, such as a target network."""
        # `evaluated.sequences` has the states of the trained module. A module with memory computes its own ones.
        obs = evaluated.obs
        if not module.is_stateful():
            out = module.forward_train(module.network_inputs(obs))
        elif trajectories.is_on_device:
            return evaluate_memory(obs, evaluated.bootstrap_obs, module, trajectories).action_dist_inputs
        else:
            out = evaluate_sequences(self.to_tensor, module, trajectories, obs, evaluated.bootstrap_obs)[0]
        dist_inputs: Tensor = out[Columns.ACTION_DIST_INPUTS]
        return dist_inputs

    # -- advantages ---

    def generalized_advantages(
        self, module_id: str, trajectories: Trajectories | TensorRollout, evaluated: EvaluatedRollout
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, `[T * B]` each, by GAE (Schulman et al. 2016).

        delta_t = r_t + gamma V(s_t+1) - V(s_t)
        A_t = delta_t + gamma lambda A_t+1,  target_t = A_t + V(s_t)
        """
        if trajectories.is_on_device:
            return self._advantages_on_device(module_id, trajectories, evaluated)
        options: Any = self.config_of(module_id)
        # `cuts` are the truncated rows, and also the last row of each episode that continues after the rollout.
        advantages, targets = gae(
            self._rewards(module_id, trajectories, evaluated),
            evaluated.values,
            evaluated.next_values,
            trajectories.terminateds,
            trajectories.cuts,
            gamma=options.gamma,
            lambda_=options.lambda_,
        )
        self._log_explained_variance(module_id, trajectories, evaluated.values, targets)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def _advantages_on_device(
        self, module_id: str, rollout: TensorRollout, evaluated: EvaluatedRollout
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets by GAE, `[T * B]` each, for a rollout on a device.

        The host does not wait for the device, unless several ranks share the rollout.
        """
        options: Any = self.config_of(module_id)
        values = evaluated.values
        advantages, targets = tensor_gae(
            evaluated.rewards,
            values,
            evaluated.next_values,
            rollout.terminateds,
            rollout.cuts,
            gamma=options.gamma,
            lambda_=options.lambda_,
        )

        self._log_explained_variance_on_device(module_id, rollout, values, targets)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def vtrace_advantages(
        self,
        module_id: str,
        trajectories: Trajectories | TensorRollout,
        evaluated: EvaluatedRollout,
        *,
        target_logp: Tensor | None = None,
        weighted: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, `[T * B]` each, by V-trace (Espeholt et al. 2018, section 4.1).

        With the option `vtrace=False` nothing is corrected: the results are GAE and lambda returns.

        Args:
            module_id: id of the module.
            trajectories: the rollout.
            evaluated: its evaluation. Steps without recorded log-probabilities count as steps of the learning policy.
            target_logp: log-probabilities `[T * B]` of the actions under the target policy. Defaults to the learning
                policy.
            weighted: multiply the advantages with their importance weights.
        """
        options: Any = self.config_of(module_id)
        if target_logp is None:
            target_logp = evaluated.action_logp
        log_ratios = torch.zeros_like(evaluated.old_logp)
        if options.vtrace:
            log_ratios = target_logp - evaluated.old_logp
        coefficients: dict[str, Any] = {
            "gamma": options.gamma,
            "lambda_": options.lambda_,
            "clip_rho": options.vtrace_clip_rho_threshold,
            "clip_pg_rho": options.vtrace_clip_pg_rho_threshold,
            "weighted": weighted,
        }
        targets: Any
        advantages: Any
        if trajectories.is_on_device:
            targets, advantages = tensor_vtrace(
                log_ratios.view(trajectories.shape),
                evaluated.rewards,
                evaluated.values,
                evaluated.next_values,
                trajectories.terminateds,
                trajectories.cuts,
                **coefficients,
            )
            self._log_explained_variance_on_device(module_id, trajectories, evaluated.values, targets)
        else:
            targets, advantages = vtrace(
                log_ratios.cpu().numpy().reshape(trajectories.shape),
                self._rewards(module_id, trajectories, evaluated),
                evaluated.values,
                evaluated.next_values,
                trajectories.terminateds,
                trajectories.cuts,
                **coefficients,
            )
            self._log_explained_variance(module_id, trajectories, evaluated.values, targets)
        return self.to_tensor(advantages.reshape(-1)), self.to_tensor(targets.reshape(-1))

    def _log_explained_variance(
        self, module_id: str, trajectories: Trajectories, values: np.ndarray, targets: np.ndarray
    ) -> None:
        """Log the share of the value targets' variance that the values `[T, B]` explain, over all transitions."""
        rows = trajectories.rows()
        index = slice(None) if rows is None else rows
        row_values = values.reshape(-1)[index]
        row_targets = targets.reshape(-1)[index]
        # Without own rows the learner has a stand-in (rows copied from another learner), which must not count.
        has_own_rows = self.rows_in_step > 0
        explained = self.reducer.explained_variance(row_values, row_targets, counts=has_own_rows)
        self.log_for_update(module_id, vf_explained_var=explained)

    def _log_explained_variance_on_device(
        self, module_id: str, rollout: TensorRollout, values: Tensor, targets: Tensor
    ) -> None:
        """Log the explained share of the value targets' variance for values and targets `[T, B]` on a device.

        The host does not wait for the device, unless several ranks share the rollout.
        """
        explained: float | Tensor
        if rollout.share.number > 1:  # number of ranks; each of them has a share of the environments
            host_values = values.detach().flatten().cpu().numpy()
            host_targets = targets.detach().flatten().cpu().numpy()
            explained = self.reducer.explained_variance(host_values, host_targets)
        else:
            explained = 1.0 - (targets - values).var(correction=0) / targets.var(correction=0)
        self.log_for_update(module_id, vf_explained_var=explained)

    def rows_to_train(
        self, columns: TensorColumns, evaluated: EvaluatedRollout, trajectories: Trajectories | TensorRollout
    ) -> TensorColumns:
        """Return the part of the columns that minibatches are taken from.

        Rows of the grid that are not transitions are left out, such as the vector steps in which NEXT_STEP autoreset
        only resets an environment. Rows that another learner trains on are left out too. For a module with memory the
        rows are put together to S sequences of length L: `[S, L, ...]`.
        """
        if evaluated.images:
            columns = {**columns, **evaluated.images}
        if evaluated.sequences is not None:
            return evaluated.sequences.train_columns(columns)
        rows = trajectories.rows()  # None if every row is a transition
        return columns if rows is None else take_rows(columns, torch.from_numpy(rows).to(self.device))

    # -- the loss ---

    def adapt_kl_coefficient(self, module_id: str, target: float) -> None:
        """Adapt the coefficient of the KL penalty to the mean KL of the last pass (PPO's paper, section 4).

        It is doubled if the mean is above 1.5 times the target, and halved if it is below the target divided by 1.5.
        """
        mean_kl = float(self.metrics.pass_mean(module_id, "mean_kl_loss"))
        coefficient: Tensor = self.registered[f"{module_id}/kl_coeff"]
        if mean_kl > 1.5 * target:
            coefficient.mul_(2.0)
        elif mean_kl < target / 1.5:
            coefficient.mul_(0.5)

    def fused_loss(self, module_id: str, config: Any, batch: TensorColumns, fwd_out: Outputs) -> Tensor | None:
        """Return PPO's loss from one kernel, with its terms logged, or None if the kernel cannot compute it.

        Learners with `loss_has_kernel` call this method first, and `compute_loss_for_module` only if it returns None.
        Both give the same loss. Of the learners with this base class only PPO's sets `loss_has_kernel`. The method is
        here, next to `setup_module`, which loads the kernel, so that `ppo.py` contains the equations only.

        The kernel cannot compute masked rows, mirror images, a KL penalty, or an overridden `masked_mean` or
        `normalized`. It also requires an action distribution that it knows (Categorical or diagonal Gaussian) and
        tensors whose memory it can read. `can_fuse_ppo` checks that: they must be on the CPU, and not in a trace of
        torch (`torch.compile`) or within `torch.func`, where tensors stand for numbers that do not exist in memory.
        """
        action_dist = self.module[module_id].action_dist_cls
        dist_inputs = fwd_out[Columns.ACTION_DIST_INPUTS]
        values = fwd_out[Columns.VF_PREDS]
        names = [Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS]
        if config.vf_clip_param is not None:
            names.append(Columns.VF_PREDS)
        rows = [batch[name] for name in names]
        # The kernel averages and normalises by itself. If a subclass overrides `masked_mean` or `normalized`, the
        # kernel would bypass the override, so it is not used.
        if (
            Columns.LOSS_MASK in batch
            or IS_IMAGE in batch
            or config.kl_coeff > 0
            or not self.overridden_methods.isdisjoint(("masked_mean", "normalized"))
            or type(action_dist) is not ActionDist
            or not can_fuse_ppo(action_dist.dist_class, dist_inputs, values, *rows)
        ):
            return None

        # A learner without own rows of this module has a stand-in (see `learner/many/sharding.py`). It still takes part
        # in the reductions below, with no rows.
        if self.reducer.world_size > 1 and not self.rows_in_step:
            rows = [column[:0] for column in rows]
            dist_inputs = dist_inputs[:0]
            values = values[:0]
        actions, old_logp, advantages, targets, *old_values = rows
        clip_param = self.coefficient(module_id, "clip_param")
        entropy_coeff = self.coefficient(module_id, "entropy_coeff")

        # Advantages are normalised, and losses averaged, over the rows of all learners. The three moments of a learner
        # are the number of its advantages, their mean, and the sum of their squared distances from the mean. Each
        # learner fills its own row of a matrix of zeros. The sum of these matrices has the moments of every learner, as
        # a gather would give them. `ppo_loss` calls `sum_` once more: for the terms of the loss, after the kernel.
        reduction = None
        if self.reducer.world_size > 1:
            learner_moments = torch.zeros(self.reducer.world_size, 3, dtype=torch.float64)
            learner_moments[self.reducer.rank] = moments(advantages)
            reduction = GlobalReduction(self.reducer.sum_(learner_moments), self.reducer.sum_)
        loss, terms = ppo_loss(
            action_dist.dist_class,
            dist_inputs,
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


def images_in(columns: TensorColumns) -> TensorColumns:
    """Return the columns with the mirror images of observations and actions, if there are any."""
    names = (MIRRORED + Columns.OBS, MIRRORED + Columns.ACTIONS)
    return {name: columns[name] for name in names if name in columns}
