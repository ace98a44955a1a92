"""Learning from single transitions: what all such losses share, and two families of actor-critics.

`SoftActorCriticLearner` has a policy that keeps its entropy, `DelayedActorCriticLearner` one that learns in every n-th
step only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining
from lockstep.learner.learner import Learner, Outputs, Training
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.learner.sequences import TARGET_NEXT_OBS, errors_of_sequences, remembered_rows, without_burn_in
from lockstep.learner.targets import TargetNetwork
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import DelayedActorCriticOptions, FollowedSoftActorCriticOptions

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
"""what the losses read, and `discounts` and `weights` where they are there"""
NOISE, NEXT_NOISE = "action_noise", "next_action_noise"
"""columns: what draws the policy's actions at an observation, and at the one after it"""
RECTIFIED = {"hiddens": (256, 256), "activation": "relu", "orthogonal_init": False}
"""the networks of the papers: two layers of 256 rectified units"""
DISCRETE_ENTROPY = 0.98
"""share of the highest entropy that "auto" aims at where actions are discrete (Christodoulou 2019)"""
TARGET_NOISE = "target_noise"
"""column: what smooths the target policy's action"""


def discounts_of(batch: TensorColumns, gamma: float, dtype: torch.dtype) -> Tensor:
    """Return `[N]`, what the value of the next observation is multiplied with.

    0 where the episode terminated, not where it was truncated; of n steps as the buffer says.
    """
    going_on = (~batch[Columns.TERMINATEDS].bool()).to(dtype)
    return going_on * batch.get(Columns.DISCOUNTS, gamma)


def next_inputs(batch: TensorColumns, *, of_target: bool = False) -> TensorColumns:
    """Return the observations that come next, as a batch for the network that learns, or for a target network."""
    name = TARGET_NEXT_OBS if of_target and TARGET_NEXT_OBS in batch else Columns.NEXT_OBS
    return {Columns.OBS: batch[name]}


def td_targets(batch: TensorColumns, following: Tensor, gamma: float) -> Tensor:
    """Return `[N]`, reward plus the discounted value `following` `[N]` of the next observation."""
    targets: Tensor = batch[Columns.REWARDS] + discounts_of(batch, gamma, following.dtype) * following
    return targets


def values_of_actions(batch: TensorColumns, values: Tensor) -> Tensor:
    """Return `[K, N]`, critics' values of the batch's actions: `values` itself, or taken out of `[K, N, A]`."""
    if values.dim() == 2:
        return values
    index = batch[Columns.ACTIONS].long().expand(len(values), -1).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)


def critic_loss(batch: TensorColumns, values: Tensor, targets: Tensor, *, module_id: str, learner: Learner) -> Tensor:
    """Return half the squared errors of all critics `values` `[K, N]`, as `log_critic_loss` does."""
    errors = values - targets
    each = 0.5 * errors.square().sum(0)
    return log_critic_loss(batch, each, values.detach(), errors.detach(), module_id=module_id, learner=learner)


def log_critic_loss(
    batch: TensorColumns, each: Tensor, values: Tensor, errors: Tensor, *, module_id: str, learner: Learner
) -> Tensor:
    """Return the mean of `each` `[N]` with the rows' weights, if any; log it beside `values` and `errors` `[K, N]`.

    The errors are left for the priorities of a replay buffer: their size `[N]`, the mean over all critics.
    """
    if Columns.WEIGHTS in batch:
        each = each * batch[Columns.WEIGHTS]
    loss = learner.masked_mean(each, batch)
    learner.row_errors[module_id] = errors.abs().mean(0)
    q_mean = learner.masked_mean(values.mean(0), batch)
    td_error = learner.masked_mean(learner.row_errors[module_id], batch)
    learner.log(module_id, critic_loss=loss, q_mean=q_mean, td_error_mean=td_error)
    return loss


def follow_targets(learner: Learner[Any], interval_option: str | None = None) -> None:
    """Let target networks go `tau` towards what learns, in each step or as often as an option says."""
    for module_id in dict.fromkeys(entry.module_id for entry in learner.optimizers if entry.has_loss):
        config = learner.config_of(module_id)
        interval = 1 if interval_option is None else getattr(config, interval_option)
        learner.registered[f"{module_id}/target"].after_gradient_step(learner.optimizers, interval, config.tau)


def pattern_of_targets(learner: Learner[Any], interval_option: str, num_steps: int) -> Hashable:
    """Return for each module the coming gradient steps after which its target network follows."""
    counts = {mid: learner.registered[f"{mid}/target"].num_steps for mid in learner.learning_modules()}
    return pattern_of(counts, {mid: getattr(learner.config_of(mid), interval_option) for mid in counts}, num_steps)


def pattern_of(counts: Mapping[str, int], intervals: Mapping[str, int], num_steps: int) -> Hashable:
    """Return by module which of the coming steps end an interval, where so many were counted."""
    steps = range(1, num_steps + 1)
    return tuple(tuple(i for i in steps if (count + i) % intervals[mid] == 0) for mid, count in counts.items())


class TransitionLearner(Learner[Training]):
    """Learns from transitions, which a network with memory remembers in sequences.

    Losses see rows `[N, ...]` in any case. With memory their `obs` and `new_obs` are what the networks remember there
    (`Remembered`), which the networks take for observations.
    """

    def setup_module(self, module_id: str) -> None:
        """Refuse a network with memory that does not say which memories it has."""
        if self.module[module_id].is_stateful() and self.should_module_be_updated(module_id):
            self.check_parts(module_id, "memories")

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return COLUMNS

    def target_of(self, module_id: str) -> Any:
        """Return the target network `<module id>/target`; None where the algorithm has none."""
        target = self.registered.get(f"{module_id}/target")
        return None if target is None else target.module

    def prepare_sequences(self, module_id: str, columns: TensorColumns) -> TensorColumns:
        """Keep what comes before sequences apart, which is remembered and not learned from."""
        return without_burn_in(columns, self.reducer) if Columns.SEQ_LENS in columns else columns

    def forward_and_losses(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
        """Return outputs and losses; sequences are run through the memories first, and have one error each."""
        in_sequences = {mid: part for mid, part in batch.items() if Columns.SEQ_LENS in part}
        if not in_sequences:
            return super().forward_and_losses(batch)
        modules: Any = self.module
        with self.mixed_precision():
            rows = {mid: remembered_rows(part, modules[mid], self.target_of(mid)) for mid, part in in_sequences.items()}
        found = super().forward_and_losses(batch | rows)
        for mid in in_sequences.keys() & self.row_errors.keys():
            self.row_errors[mid] = errors_of_sequences(self.row_errors[mid], batch[mid][Columns.LOSS_MASK])
        return found


# -- actor-critics ---


@dataclass
class ActorCriticTraining(SampledTraining[ConfigT]):
    """Options of all actor-critics that learn from single transitions."""

    lr: ScheduleLike = 3e-4
    """learning rate of all optimizers that have none of their own"""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the critics; `None`: `lr`"""

    def lr_of(self, optimizer_name: str) -> ScheduleLike:
        """Return the learning rate of an optimizer: its own, `<name>_lr`, or `lr`."""
        own: ScheduleLike | None = getattr(self, f"{optimizer_name}_lr")
        return self.lr if own is None else own


@dataclass
class FollowedActorCriticTraining(ActorCriticTraining[ConfigT]):
    """Options of TD3, TD3+BC and IQL: of actor-critics with target networks."""

    tau: float = option(0.005, gt=0, le=1)
    """how far target networks go towards those that learn, in each update of them"""


def register_actor_and_critics(learner: Learner[Any], module_id: str, config: ActorCriticTraining[Any]) -> None:
    """Register the optimizers "actor" and "critic": of a module's `critics`, and of all its other parameters."""
    module: Any = learner.module[module_id]
    critics: list[nn.Parameter] = list(module.critics.parameters())
    ids = {id(param) for param in critics}
    actor = [param for param in module.parameters() if id(param) not in ids]
    for name, params in (("actor", actor), ("critic", critics)):
        learner.register_configured(module_id, name, params, config.lr_of(name), config)


@dataclass
class SoftActorCriticTraining(ActorCriticTraining[ConfigT]):
    """Options that SAC, TQC, CrossQ and CQL have in common."""

    alpha_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the temperature; `None`: `lr`"""
    alpha: float | Literal["auto"] = option("auto", ge=0)
    """temperature, the weight of the entropy: a number, or "auto": learned, so that the entropy is `target_entropy`"""
    initial_alpha: float = option(1.0, gt=0)
    """where a learned temperature begins"""
    target_entropy: float | Literal["auto"] = option("auto", finite=True)
    """in nats; "auto": minus the number of action dimensions, or for discrete actions 0.98 of the highest entropy (with
    masks, of the highest that the allowed actions of each row can have)"""


@dataclass
class FollowedSoftActorCriticTraining(SoftActorCriticTraining[ConfigT]):
    """Options of SAC, TQC and CQL, which have target critics."""

    tau: float = option(0.005, gt=0, le=1)
    """how far the target critics go towards those that learn, in each update of them"""
    target_update_interval: int = option(1, ge=1)
    """gradient steps between two updates of the target critics"""

    def __call__(self, **options: Unpack[FollowedSoftActorCriticOptions]) -> ConfigT:
        return self.change(options)


SoftTraining = TypeVar("SoftTraining", bound=SoftActorCriticTraining[Any])


class SoftActorCriticLearner(TransitionLearner[SoftTraining]):
    """The family of SAC, TQC, CrossQ and CQL. Target critics and temperature are part of the learner's state."""

    has_target_critics = True
    updates_targets_after_step = True

    def setup_module(self, module_id: str) -> None:
        """Make the target critics, `<module id>/target`, if any, and the temperature, `<module id>/log_alpha`."""
        super().setup_module(module_id)
        self.check_parts(module_id, "critics", *([] if self.is_discrete(module_id) else ["sample"]))
        config = self.config_of(module_id)
        module: Any = self.module[module_id]
        if self.has_target_critics:
            self.register_state(f"{module_id}/target", TargetNetwork(module.critics))
        first = config.initial_alpha if config.alpha == "auto" else config.alpha
        log_alpha = torch.tensor(math.log(first) if first > 0 else -math.inf, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/log_alpha", nn.Parameter(log_alpha, requires_grad=config.alpha == "auto"))

    def configure_optimizers_for_module(self, module_id: str, config: SoftTraining) -> None:
        """Register "actor", "critic" and, where the temperature is learned, "alpha"."""
        register_actor_and_critics(self, module_id, config)
        if config.alpha == "auto":
            params = [self.registered[f"{module_id}/log_alpha"]]
            self.register_configured(module_id, "alpha", params, config.lr_of("alpha"), config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return, for a Box, the random numbers of two actions for each row."""
        if self.is_discrete(module_id):
            return {}
        return dict.fromkeys((NOISE, NEXT_NOISE), self.module[module_id].action_dist_cls.noise_size)

    def after_gradient_step(self) -> None:
        """Let the target critics follow, as `target_update_interval` and `tau` say."""
        follow_targets(self, "target_update_interval")

    def pattern(self, num_steps: int) -> Hashable:
        return pattern_of_targets(self, "target_update_interval", num_steps)

    def is_discrete(self, module_id: str) -> bool:
        """Return whether actions are choices."""
        return isinstance(self.module[module_id].action_space, spaces.Discrete)

    @torch.no_grad()
    def soft_next_values(self, module_id: str, batch: TensorColumns, alpha: Tensor | float) -> Tensor:
        """Return the soft value `[N]` (Haarnoja et al. 2018, equation 3) of the next observation.

        By the smallest target critic.
        """
        module: Any = self.module[module_id]
        critics = self.registered[f"{module_id}/target"].module
        after, after_obs = next_inputs(batch), next_inputs(batch, of_target=True)[Columns.OBS]
        if NEXT_NOISE in batch:
            actions, logp = module.sample(after, batch[NEXT_NOISE])
            return self.to_tensor(critics(after_obs, actions).amin(0)) - alpha * logp
        log_probs = self._log_probs(module_id, module.forward_inference(after))
        values = self.to_tensor(critics(after_obs).amin(0))
        return (log_probs.exp() * (values - alpha * log_probs)).sum(-1)

    def policy_terms(
        self, module_id: str, batch: TensorColumns, fwd_out: Outputs, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what each row adds to the policy's loss, and the log-density of its action, `[N]` each.

        Of a discrete policy both are means over all actions.
        """
        module: Any = self.module[module_id]
        if self.is_discrete(module_id):
            log_probs = self._log_probs(module_id, fwd_out)
            probs, values = log_probs.exp(), fwd_out["q_values"].detach().amin(0)
            return (probs * (alpha * log_probs - values)).sum(-1), (probs * log_probs).sum(-1)
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actions, logp = dist.sample_with_log_prob(batch[NOISE])
        values = self.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True))
        return alpha * logp - self.joint_value(values), logp

    def joint_value(self, values: Tensor) -> Tensor:
        """Return `[N]`, what the policy takes all critics' values `[K, N]` for: the smallest."""
        return values.amin(0)

    def _log_probs(self, module_id: str, outputs: Outputs) -> Tensor:
        """Return `[N, A]` of a discrete policy."""
        dist: Any = self.module[module_id].action_dist_cls.from_inputs(
            self.to_tensor(outputs[Columns.ACTION_DIST_INPUTS])
        )
        return dist.log_probs

    def temperature_loss(self, module_id: str, batch: TensorColumns, neg_entropy: Tensor) -> Tensor | float:
        """Return the loss of a learned temperature (equation 18), 0 of a fixed one; log entropy and temperature."""
        config = self.config_of(module_id)
        log_alpha = self.registered[f"{module_id}/log_alpha"]
        entropy = -self.masked_mean(neg_entropy.detach(), batch)
        self.log(module_id, entropy=entropy, alpha=log_alpha.detach().exp())
        if config.alpha != "auto":
            return 0.0
        missing = neg_entropy.detach() + self.target_entropy(module_id, batch)
        alpha_loss = self.masked_mean(-log_alpha * missing, batch)
        self.log(module_id, alpha_loss=alpha_loss)
        return alpha_loss

    def target_entropy(self, module_id: str, batch: TensorColumns) -> Tensor | float:
        """Return the entropy in nats that the temperature is learned for: one number, or one for each row `[N]`.

        With action masks "auto" depends on the row: the highest entropy is the logarithm of the number of actions that
        the row allows. No policy could reach that of all actions, and the temperature would grow without bound.
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
        num_allowed = batch[Columns.OBS][ACTION_MASK].to(torch.bool).sum(-1).clamp(min=1)
        return DISCRETE_ENTROPY * num_allowed.to(self.dtype).log()


@dataclass
class DelayedActorCriticTraining(FollowedActorCriticTraining[ConfigT]):
    """Options that TD3 and TD3+BC have in common."""

    policy_delay: int = option(2, ge=1)
    """gradient steps of the critics for one of the policy and one update of the target networks"""
    target_noise: float = option(0.2, ge=0)
    """deviation of the noise on the target policy's action; 0: none"""
    noise_clip: float = option(0.5, ge=0)
    """limit of that noise"""

    def __call__(self, **options: Unpack[DelayedActorCriticOptions]) -> ConfigT:
        return self.change(options)


DelayedTraining = TypeVar("DelayedTraining", bound=DelayedActorCriticTraining[Any])


class DelayedActorCriticLearner(TransitionLearner[DelayedTraining]):
    """The family of TD3 and TD3+BC. Target policy and critics are part of the learner's state.

    `fwd_out["q_values"]` `[K, N]` are the values of the actions that were taken.
    """

    updates_targets_after_step = True

    def setup_module(self, module_id: str) -> None:
        """Make the target policy and critics, `<module id>/target`."""
        super().setup_module(module_id)
        self.check_parts(module_id, "critics", "compute_actions")
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def configure_optimizers_for_module(self, module_id: str, config: DelayedTraining) -> None:
        """Register "actor" and "critic"."""
        register_actor_and_critics(self, module_id, config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the random numbers that smooth the target action; none where there is no noise."""
        config = self.config_of(module_id)
        return {TARGET_NOISE: self.module[module_id].action_dist_cls.noise_size} if config.target_noise > 0 else {}

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return `q_values` `[K, N]` of the actions that were taken, by module."""
        modules: Any = self.module
        with self.mixed_precision():
            return {
                mid: {"q_values": self.to_tensor(modules[mid].critics(part[Columns.OBS], part[Columns.ACTIONS]))}
                for mid, part in batch.items()
            }

    @torch.no_grad()
    def smoothed_next_values(self, module_id: str, batch: TensorColumns) -> Tensor:
        """Return `[N]`, what the smallest target critic says of the target policy's next action, smoothed by noise.

        Fujimoto et al. 2018, algorithm 1.
        """
        config = self.config_of(module_id)
        target = self.registered[f"{module_id}/target"].module
        after = next_inputs(batch, of_target=True)
        with self.mixed_precision():
            actions = self.to_tensor(target.compute_actions(after))
            if TARGET_NOISE in batch:
                noise = (batch[TARGET_NOISE] * config.target_noise).clamp(-config.noise_clip, config.noise_clip)
                actions = (actions + noise).clamp(-1.0, 1.0)
            return self.to_tensor(target.critics(after[Columns.OBS], actions).amin(0))

    def critic_loss(self, module_id: str, config: DelayedTraining, batch: TensorColumns, fwd_out: Outputs) -> Tensor:
        """Return the errors of clipped double Q-learning (algorithm 1)."""
        targets = td_targets(batch, self.smoothed_next_values(module_id, batch), config.gamma)
        return critic_loss(batch, fwd_out["q_values"], targets, module_id=module_id, learner=self)

    def policy_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor]:
        """Return the policy's actions `[N, A]`, and what the first critic says of them `[N]`, without its gradient."""
        module: Any = self.module[module_id]
        with self.mixed_precision():
            actions = self.to_tensor(module.compute_actions(batch))
            values = module.critics(batch[Columns.OBS], actions, frozen=True, first_only=True)[0]
        return actions, self.to_tensor(values)

    # -- every n-th step ---

    def policy_learns(self, module_id: str) -> bool:
        """Return whether, in the present gradient step, the policy learns and the target networks follow."""
        config = self.config_of(module_id)
        return bool((self.registered[f"{module_id}/target"].num_steps + 1) % config.policy_delay == 0)

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Return whether the optimizer is stepped now: that of the policy when it is due."""
        return entry.name != "actor" or self.policy_learns(entry.module_id)

    def compiled_variant(self) -> tuple[bool, ...]:
        """Return which policies learn now."""
        return tuple(self.policy_learns(module_id) for module_id in self.learning_modules())

    def after_gradient_step(self) -> None:
        """Let the target networks follow where the policy has learned."""
        follow_targets(self, "policy_delay")

    def pattern(self, num_steps: int) -> Hashable:
        return pattern_of_targets(self, "policy_delay", num_steps)
