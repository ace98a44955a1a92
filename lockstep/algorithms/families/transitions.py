"""Learners of single transitions: `TransitionLearner` and two families of actor-critics.

`SoftActorCriticLearner` maximises the entropy of its policy. `DelayedActorCriticLearner` updates its policy only in
every n-th gradient step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.columns import MIRRORED, Columns
from lockstep.data.groups import CRITIC, POLICY
from lockstep.learner.config import SampledTraining
from lockstep.learner.learner import Learner, Outputs, Training
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.learner.sequences import TARGET_NEXT_OBS, errors_of_sequences, remembered_rows, without_burn_in
from lockstep.learner.targets import TargetNetwork
from lockstep.modules.mirror import original_of
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import DelayedActorCriticOptions, TargetSoftActorCriticOptions

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
"""Columns that every loss reads. `discounts` and `weights` are optional."""
NOISE, NEXT_NOISE = "action_noise", "next_action_noise"
"""Columns of random numbers for the policy's actions at an observation, and at the next observation."""
RECTIFIED = {"hiddens": (256, 256), "activation": "relu", "orthogonal_init": False}
"""Networks of the papers: two hidden layers of 256 units with ReLU."""
DISCRETE_ENTROPY = 0.98
"""Target entropy of `target_entropy="auto"` for discrete actions, as a share of the highest (Christodoulou 2019)."""
POLICY_DELAY, TARGET_UPDATE_INTERVAL = "policy_delay", "target_update_interval"
"""Options with a number of gradient steps: for each step of the policy, and for each update of the target networks."""
TARGET_NOISE = "target_noise"
"""Column of random numbers that smooth the target policy's action."""


def discounts_of(batch: TensorColumns, gamma: float, dtype: torch.dtype) -> Tensor:
    """Return the factors `[N]` of the next observations' values in the targets.

    A factor is 0 if the episode terminated, but not if it was truncated. For n-step returns the batch has a column of
    discounts, in place of `gamma`.
    """
    has_next = (~batch[Columns.TERMINATEDS].bool()).to(dtype)  # True for a truncated episode too
    return has_next * batch.get(Columns.DISCOUNTS, gamma)


def next_inputs(batch: TensorColumns, *, of_target: bool = False) -> TensorColumns:
    """Return a batch of the next observations, for the learning network or for a target network.

    The two differ for networks with a memory, where observations are outputs of each network's own memory.
    """
    name = TARGET_NEXT_OBS if of_target and TARGET_NEXT_OBS in batch else Columns.NEXT_OBS
    return {Columns.OBS: batch[name]}


def td_targets(batch: TensorColumns, next_values: Tensor, gamma: float) -> Tensor:
    """Return the targets `[N]`: reward plus the discounted value `[N]` of the next observation."""
    targets: Tensor = batch[Columns.REWARDS] + discounts_of(batch, gamma, next_values.dtype) * next_values
    return targets


def values_of_actions(batch: TensorColumns, values: Tensor) -> Tensor:
    """Return the critics' values `[K, N]` of the batch's actions.

    For discrete actions they are selected from the values `[K, N, A]` of all actions; otherwise they are `values`.
    """
    if values.dim() == 2:
        return values
    index = batch[Columns.ACTIONS].long().expand(len(values), -1).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)


def critic_loss(batch: TensorColumns, values: Tensor, targets: Tensor, *, module_id: str, learner: Learner) -> Tensor:
    """Return half the squared error, summed over the critics and averaged over the rows.

    Args:
        batch: the transitions, with optional weights.
        values: values `[K, N]` of all critics.
        targets: targets `[N]`.
        module_id: id of the module, for logs and priorities.
        learner: the learner, which logs the loss and keeps the errors for priorities.
    """
    errors = values - targets
    # The sum over critics, not their mean: the gradient of a critic must not depend on the number of critics.
    row_losses = 0.5 * errors.square().sum(0)
    return weighted_critic_loss(
        batch, row_losses, values.detach(), errors.detach(), module_id=module_id, learner=learner
    )


def weighted_critic_loss(
    batch: TensorColumns, row_losses: Tensor, values: Tensor, errors: Tensor, *, module_id: str, learner: Learner
) -> Tensor:
    """Return the weighted mean of the losses `[N]` of all rows, and log it.

    The sizes of the errors, averaged over the critics, are stored as priorities for a replay buffer.

    Args:
        batch: the transitions. Importance weights of prioritised replay are in the column `weights`.
        row_losses: loss `[N]` of each row, summed over the critics.
        values: detached values `[K, N]`, for the log.
        errors: detached errors `[K, N]`, for log and priorities.
        module_id: id of the module.
        learner: the learner.
    """
    if Columns.WEIGHTS in batch:
        row_losses = row_losses * batch[Columns.WEIGHTS]
    loss = learner.masked_mean(row_losses, batch)

    learner.row_errors[module_id] = errors.abs().mean(0)
    q_mean = learner.masked_mean(values.mean(0), batch)
    td_error = learner.masked_mean(learner.row_errors[module_id], batch)
    learner.log(module_id, critic_loss=loss, q_mean=q_mean, td_error_mean=td_error)
    return loss


def update_target_networks(learner: Learner[Any], interval_option: str | None = None) -> None:
    """Move the target networks of all modules that have learned in this step towards the learning networks.

    Args:
        learner: the learner, whose option `tau` is the share of the way.
        interval_option: name of the option with the number of gradient steps between two updates. None updates in each
            step.
    """
    # A module has several optimizers; its target network must move once.
    module_ids = dict.fromkeys(entry.module_id for entry in learner.optimizers if entry.has_loss)
    for module_id in module_ids:
        config = learner.config_of(module_id)
        interval = 1 if interval_option is None else getattr(config, interval_option)
        learner.registered[f"{module_id}/target"].after_gradient_step(learner.optimizers, interval, config.tau)


class TransitionLearner(Learner[Training]):
    """Learner of single transitions, or of sequences of them for a network with a memory.

    Losses always see rows `[N, ...]`. For a network with a memory `obs` and `new_obs` of these rows are outputs of the
    memory (`MemoryFeatures`), which the rest of the network takes as observations.
    """

    interval_options: tuple[str, ...] = ()
    """The options among `POLICY_DELAY` and `TARGET_UPDATE_INTERVAL` that the algorithm has."""

    def setup_module(self, module_id: str) -> None:
        self.check_memories(module_id)

    def check_memories(self, module_id: str) -> None:
        """Raise `ValueError` for a network with a memory that does not name its memories."""
        if self.module[module_id].is_stateful() and self.should_module_be_updated(module_id):
            self.check_parts(module_id, "memories")

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return COLUMNS

    def target_of(self, module_id: str) -> Any:
        """Return the target network of a module, or None for an algorithm without target networks."""
        target = self.registered.get(f"{module_id}/target")
        return None if target is None else target.module

    def prepare_sequences(self, module_id: str, columns: TensorColumns) -> TensorColumns:
        """Separate the burn-in of sequences, which only prepares the memory and is not learned from."""
        return without_burn_in(columns, self.reducer) if Columns.SEQ_LENS in columns else columns

    def forward_and_losses(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
        """Return outputs and losses by module. Sequences are run through the memories first."""
        sequences = {module_id: columns for module_id, columns in batch.items() if Columns.SEQ_LENS in columns}
        if not sequences:
            return super().forward_and_losses(batch)

        modules: Any = self.module
        rows = {}
        with self.mixed_precision():
            for module_id, columns in sequences.items():
                rows[module_id] = remembered_rows(columns, modules[module_id], self.target_of(module_id))
        outputs_and_losses = super().forward_and_losses(batch | rows)

        # A replay buffer draws whole sequences, so each has one priority.
        for module_id in sequences.keys() & self.row_errors.keys():
            errors = self.row_errors[module_id]
            self.row_errors[module_id] = errors_of_sequences(errors, batch[module_id][Columns.LOSS_MASK])
        return outputs_and_losses

    # -- gradient steps in which the policy learns, or target networks are updated ---

    def num_steps_of(self, module_id: str) -> int:
        """Return the number of gradient steps in which a module with a target network has learned."""
        return int(self.registered[f"{module_id}/target"].num_steps)

    @property
    def delays_policy(self) -> bool:
        """Whether the algorithm has the option `policy_delay`."""
        return POLICY_DELAY in self.interval_options

    def policy_learns(self, module_id: str) -> bool:
        """Return whether policy and temperature learn in this gradient step: in every `policy_delay`-th.

        Algorithms without this option train them in all steps.
        """
        if not self.delays_policy:
            return True
        delay: int = getattr(self.config_of(module_id), POLICY_DELAY)
        return (self.num_steps_of(module_id) + 1) % delay == 0

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Return whether the optimizer makes a step now: always for critics, else if the policy learns.

        A gradient of 0 would not be enough: the moments of Adam would still move the policy.
        """
        return entry.name == "critic" or self.policy_learns(entry.module_id)

    def compiled_variant(self) -> tuple[bool, ...] | None:
        """Return for each module whether its policy learns now; None if all policies learn in all steps."""
        if not self.delays_policy:
            return None
        return tuple(self.policy_learns(module_id) for module_id in self.learning_modules())

    def pattern(self, num_steps: int) -> Hashable:
        """Return for each option of `interval_options` and each module the coming steps in which its event takes place.

        A CUDA graph of several gradient steps is valid for one such pattern only.
        """
        patterns = []
        for name in self.interval_options:
            for module_id in self.learning_modules():
                interval = getattr(self.config_of(module_id), name)
                count = self.num_steps_of(module_id)
                patterns.append(tuple(i for i in range(1, num_steps + 1) if (count + i) % interval == 0))
        return tuple(patterns)


# -- actor-critics ---


@dataclass
class ActorCriticTraining(SampledTraining[ConfigT]):
    """Options of all actor-critics that learn from single transitions."""

    lr: ScheduleLike = 3e-4
    """Learning rate of all optimizers without a learning rate of their own."""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """Learning rate of the policy. Defaults to `lr`."""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """Learning rate of the critics. Defaults to `lr`."""

    def lr_of(self, optimizer_name: str) -> ScheduleLike:
        """Return the learning rate of an optimizer: the option `<name>_lr`, or `lr` if that is None."""
        own_lr: ScheduleLike | None = getattr(self, f"{optimizer_name}_lr")
        return self.lr if own_lr is None else own_lr


@dataclass
class TargetActorCriticTraining(ActorCriticTraining[ConfigT]):
    """Options of actor-critics with target networks: TD3, TD3+BC and IQL."""

    tau: float = option(0.005, gt=0, le=1)
    """Share of the way that an update moves the target networks towards the learning networks."""


def register_actor_and_critics(learner: Learner[Any], module_id: str, config: ActorCriticTraining[Any]) -> None:
    """Register the optimizer "critic" of a module's `critics`, and the optimizer "actor" of its other parameters."""
    module: Any = learner.module[module_id]
    critics: list[nn.Parameter] = list(module.critics.parameters())
    # Tensors compare by value, so membership is checked by identity.
    critic_ids = {id(param) for param in critics}
    actor = [param for param in module.parameters() if id(param) not in critic_ids]
    for name, params in (("actor", actor), ("critic", critics)):
        learner.register_configured(module_id, name, params, config.lr_of(name), config)


@dataclass
class SoftActorCriticTraining(ActorCriticTraining[ConfigT]):
    """Options that SAC, TQC, CrossQ and CQL have in common."""

    alpha_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """Learning rate of the temperature. Defaults to `lr`."""
    alpha: float | Literal["auto"] = option("auto", ge=0)
    """Temperature, which is the weight of the entropy. "auto" learns it so that the entropy becomes
    `target_entropy`."""
    initial_alpha: float = option(1.0, gt=0)
    """Initial value of a learned temperature."""
    target_entropy: float | Literal["auto"] = option("auto", finite=True)
    """Entropy in nats that a learned temperature aims at. "auto" is minus the number of action dimensions, or for
    discrete actions 0.98 of the highest entropy (with masks, of the highest entropy over the allowed actions of each
    row)."""


@dataclass
class TargetSoftActorCriticTraining(SoftActorCriticTraining[ConfigT]):
    """Options of soft actor-critics with target critics: SAC, TQC and CQL."""

    tau: float = option(0.005, gt=0, le=1)
    """Share of the way that an update moves the target critics towards the learning critics."""
    target_update_interval: int = option(1, ge=1)
    """Number of gradient steps from one update of the target critics to the next."""

    def __call__(self, **options: Unpack[TargetSoftActorCriticOptions]) -> ConfigT:
        return self.change(options)


SoftTraining = TypeVar("SoftTraining", bound=SoftActorCriticTraining[Any])


class SoftActorCriticLearner(TransitionLearner[SoftTraining]):
    """Base class of the learners of SAC, TQC, CrossQ, FlashSAC and CQL.

    The learner's state contains the target critics, `<module id>/target`, and the logarithm of the temperature,
    `<module id>/log_alpha`.
    """

    learns_symmetry = True
    observed_by = (POLICY, CRITIC)
    has_target_critics = True
    updates_targets_after_step = True
    interval_options: tuple[str, ...] = (TARGET_UPDATE_INTERVAL,)

    def setup_module(self, module_id: str) -> None:
        """Make target critics and temperature."""
        super().setup_module(module_id)
        required_parts = ["critics"] if self.is_discrete(module_id) else ["critics", "sample"]
        self.check_parts(module_id, *required_parts)
        config = self.config_of(module_id)
        module: Any = self.module[module_id]
        if self.has_target_critics:
            self.register_state(f"{module_id}/target", TargetNetwork(module.critics))

        # The logarithm is learned, so that the temperature stays positive. A fixed temperature may be 0.
        is_learned = config.alpha == "auto"
        initial = config.initial_alpha if config.alpha == "auto" else config.alpha
        initial_log = math.log(initial) if initial > 0 else -math.inf
        log_alpha = torch.tensor(initial_log, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/log_alpha", nn.Parameter(log_alpha, requires_grad=is_learned))

    def configure_optimizers_for_module(self, module_id: str, config: SoftTraining) -> None:
        """Register the optimizers "actor" and "critic", and "alpha" if the temperature is learned."""
        register_actor_and_critics(self, module_id, config)
        if config.alpha == "auto":
            params = [self.registered[f"{module_id}/log_alpha"]]
            self.register_configured(module_id, "alpha", params, config.lr_of("alpha"), config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the number of random numbers per row for continuous actions here and at the next observation."""
        if self.is_discrete(module_id):
            return {}
        names = [NOISE, NEXT_NOISE]
        if self.augments(module_id):
            names += [MIRRORED + name for name in names]  # mirror images draw actions of their own
        return dict.fromkeys(names, self.module[module_id].action_dist_cls.noise_size)

    def after_gradient_step(self) -> None:
        """Update the target critics every `target_update_interval` steps."""
        update_target_networks(self, TARGET_UPDATE_INTERVAL)

    def is_discrete(self, module_id: str) -> bool:
        """Return whether the action space is discrete."""
        return isinstance(self.module[module_id].action_space, spaces.Discrete)

    @torch.no_grad()
    def soft_next_values(self, module_id: str, batch: TensorColumns, alpha: Tensor | float) -> Tensor:
        """Return the soft values `[N]` of the next observations (Haarnoja et al. 2018, equation 3).

            V(s') = E[min_k Q'_k(s', a') - alpha log pi(a' | s')]

        For continuous actions the expectation is estimated with one sample; for discrete actions it is exact.
        """
        module: Any = self.module[module_id]
        target_critics = self.registered[f"{module_id}/target"].module
        next_batch = next_inputs(batch)
        target_obs = next_inputs(batch, of_target=True)[Columns.OBS]
        if NEXT_NOISE in batch:
            actions, logp = module.sample(next_batch, batch[NEXT_NOISE])
            return self.to_tensor(target_critics(target_obs, actions).amin(0)) - alpha * logp
        log_probs = self._log_probs(module_id, module.forward_inference(next_batch))
        values = self.to_tensor(target_critics(target_obs).amin(0))
        return (log_probs.exp() * (values - alpha * log_probs)).sum(-1)

    def policy_terms(
        self, module_id: str, batch: TensorColumns, fwd_out: Outputs, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the policy's loss `[N]` of each row, and the negative entropy `[N]` of its policy.

            loss = E[alpha log pi(a | s) - Q(s, a)]

        For continuous actions both are estimated with one sample; for discrete actions they are exact. No gradient
        flows into the critics.
        """
        module: Any = self.module[module_id]
        if self.is_discrete(module_id):
            log_probs = self._log_probs(module_id, fwd_out)
            probs = log_probs.exp()
            values = fwd_out["q_values"].detach().amin(0)
            return (probs * (alpha * log_probs - values)).sum(-1), (probs * log_probs).sum(-1)
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        # The sample is reparametrised: the gradient flows through the action into the policy.
        actions, logp = dist.sample_with_log_prob(batch[NOISE])
        values = self.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True))
        return alpha * logp - self.combine_critics(values), logp

    def combine_critics(self, values: Tensor) -> Tensor:
        """Return the values `[N]` that the policy maximises, from the values `[K, N]` of all critics: the smallest."""
        return values.amin(0)

    def _log_probs(self, module_id: str, outputs: Outputs) -> Tensor:
        """Return the logarithms `[N, A]` of a discrete policy's probabilities."""
        dist: Any = self.module[module_id].action_dist_cls.from_inputs(
            self.to_tensor(outputs[Columns.ACTION_DIST_INPUTS])
        )
        return dist.log_probs

    def temperature_loss(self, module_id: str, batch: TensorColumns, neg_entropy: Tensor) -> Tensor | float:
        """Return the loss of a learned temperature (equation 18), or 0 for a fixed one. Log entropy and temperature.

            loss = E[-log_alpha (log pi(a | s) + target_entropy)]

        The paper's equation has alpha in place of its logarithm. Learning the logarithm keeps the temperature positive.
        """
        config = self.config_of(module_id)
        log_alpha = self.registered[f"{module_id}/log_alpha"]
        entropy = -self.masked_mean(neg_entropy.detach(), batch)
        self.log(module_id, entropy=entropy, alpha=log_alpha.detach().exp())
        if config.alpha != "auto":
            return 0.0
        # How much less entropy the policy has than the target. The policy is a constant here.
        missing_entropy = neg_entropy.detach() + self.target_entropy(module_id, batch)
        alpha_loss = self.masked_mean(-log_alpha * missing_entropy, batch)
        self.log(module_id, alpha_loss=alpha_loss)
        return alpha_loss

    def target_entropy(self, module_id: str, batch: TensorColumns) -> Tensor | float:
        """Return the target entropy in nats: one number, or one for each row `[N]`.

        With action masks "auto" depends on the row: its highest entropy is the logarithm of the number of allowed
        actions. No policy could reach the entropy of all actions, and the temperature would grow without bound.
        """
        config = self.config_of(module_id)
        if config.target_entropy != "auto":
            return float(config.target_entropy)
        module: Any = self.module[module_id]
        space: Any = module.action_space
        if not isinstance(space, spaces.Discrete):
            return -float(math.prod(space.shape))
        if not carries_mask(module.observation_space):
            return DISCRETE_ENTROPY * math.log(int(space.n))
        obs = original_of(module, batch[Columns.OBS])
        num_allowed = obs[ACTION_MASK].to(torch.bool).sum(-1).clamp(min=1)
        return DISCRETE_ENTROPY * num_allowed.to(self.dtype).log()


@dataclass
class DelayedActorCriticTraining(TargetActorCriticTraining[ConfigT]):
    """Options that TD3 and TD3+BC have in common."""

    policy_delay: int = option(2, ge=1)
    """Number of gradient steps of the critics for each step of the policy and each update of the target networks."""
    target_noise: float = option(0.2, ge=0)
    """Standard deviation of the noise on the target policy's action. 0 adds no noise."""
    noise_clip: float = option(0.5, ge=0)
    """Limit of the noise on the target policy's action."""

    def __call__(self, **options: Unpack[DelayedActorCriticOptions]) -> ConfigT:
        return self.change(options)


DelayedTraining = TypeVar("DelayedTraining", bound=DelayedActorCriticTraining[Any])


class DelayedActorCriticLearner(TransitionLearner[DelayedTraining]):
    """Base class of the learners of TD3 and TD3+BC.

    The learner's state contains the target policy and critics, `<module id>/target`. `fwd_out["q_values"]` `[K, N]` are
    the critics' values of the batch's actions.
    """

    observed_by = (POLICY, CRITIC)
    updates_targets_after_step = True
    interval_options: tuple[str, ...] = (POLICY_DELAY,)

    def setup_module(self, module_id: str) -> None:
        """Make the target policy and critics."""
        super().setup_module(module_id)
        self.check_parts(module_id, "critics", "compute_actions")
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def configure_optimizers_for_module(self, module_id: str, config: DelayedTraining) -> None:
        """Register the optimizers "actor" and "critic"."""
        register_actor_and_critics(self, module_id, config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the number of random numbers per row that smooth the target action, if there is noise."""
        if self.config_of(module_id).target_noise == 0:
            return {}
        return {TARGET_NOISE: self.module[module_id].action_dist_cls.noise_size}

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return the critics' values `q_values` `[K, N]` of the batch's actions, by module."""
        modules: Any = self.module
        outputs: dict[str, Outputs] = {}
        with self.mixed_precision():
            for module_id, columns in batch.items():
                values = modules[module_id].critics(columns[Columns.OBS], columns[Columns.ACTIONS])
                outputs[module_id] = {"q_values": self.to_tensor(values)}
        return outputs

    @torch.no_grad()
    def smoothed_next_values(self, module_id: str, batch: TensorColumns) -> Tensor:
        """Return the values `[N]` of the target policy's smoothed next actions (Fujimoto et al. 2018, algorithm 1).

        a' = clip(pi'(s') + clip(noise)),  V(s') = min_k Q'_k(s', a')
        """
        config = self.config_of(module_id)
        target = self.registered[f"{module_id}/target"].module
        next_batch = next_inputs(batch, of_target=True)
        with self.mixed_precision():
            actions = self.to_tensor(target.compute_actions(next_batch))
            if TARGET_NOISE in batch:
                noise = (batch[TARGET_NOISE] * config.target_noise).clamp(-config.noise_clip, config.noise_clip)
                actions = (actions + noise).clamp(-1.0, 1.0)
            return self.to_tensor(target.critics(next_batch[Columns.OBS], actions).amin(0))

    def critic_loss(self, module_id: str, config: DelayedTraining, batch: TensorColumns, fwd_out: Outputs) -> Tensor:
        """Return the loss of clipped double Q-learning (algorithm 1)."""
        targets = td_targets(batch, self.smoothed_next_values(module_id, batch), config.gamma)
        return critic_loss(batch, fwd_out["q_values"], targets, module_id=module_id, learner=self)

    def policy_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor]:
        """Return the policy's actions `[N, A]` and their values `[N]` by the first critic.

        No gradient flows into the critic.
        """
        module: Any = self.module[module_id]
        with self.mixed_precision():
            actions = self.to_tensor(module.compute_actions(batch))
            values = module.critics(batch[Columns.OBS], actions, frozen=True, first_only=True)[0]
        return actions, self.to_tensor(values)

    def after_gradient_step(self) -> None:
        """Update the target networks of the modules whose policy has learned."""
        update_target_networks(self, POLICY_DELAY)
