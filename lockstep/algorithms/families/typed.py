"""Keyword types of the options of algorithms."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from typing import Any, Literal

from lockstep.learner.typed import TrainingOptions
from lockstep.options.schedules import ScheduleLike


class TargetValueOptions(TrainingOptions, total=False):
    """Options of `TargetValueTraining`."""

    epsilon: ScheduleLike
    target_update_interval: int
    tau: float


class ActionValueOptions(TargetValueOptions, total=False):
    """Options of `ActionValueTraining`."""

    double_q: bool


class AtomOptions(ActionValueOptions, total=False):
    """Options of `AtomTraining`."""

    num_atoms: int
    v_min: float
    v_max: float


class VTraceOptions(TrainingOptions, total=False):
    """Options of `VTraceTraining`."""

    max_lag: int
    fixed_lag: bool
    vtrace: bool
    vtrace_clip_rho_threshold: float | None
    vtrace_clip_pg_rho_threshold: float | None
    lambda_: float
    vf_loss_coeff: float
    entropy_coeff: ScheduleLike


class ActorCriticOptions(TrainingOptions, total=False):
    """Options of `ActorCriticTraining`."""

    actor_lr: ScheduleLike | None
    critic_lr: ScheduleLike | None


class TargetActorCriticOptions(ActorCriticOptions, total=False):
    """Options of `TargetActorCriticTraining`."""

    tau: float


class SoftActorCriticOptions(ActorCriticOptions, total=False):
    """Options of `SoftActorCriticTraining`."""

    alpha_lr: ScheduleLike | None
    alpha: float | Literal["auto"]
    initial_alpha: float
    target_entropy: float | Literal["auto"]


class TargetSoftActorCriticOptions(SoftActorCriticOptions, total=False):
    """Options of `TargetSoftActorCriticTraining`."""

    tau: float
    target_update_interval: int


class DelayedActorCriticOptions(TargetActorCriticOptions, total=False):
    """Options of `DelayedActorCriticTraining`."""

    policy_delay: int
    target_noise: float
    noise_clip: float


class A2COptions(TrainingOptions, total=False):
    """Options of `A2CTraining`."""

    lambda_: float
    vf_loss_coeff: float
    entropy_coeff: ScheduleLike
    normalize_advantages: bool


class APPOOptions(VTraceOptions, total=False):
    """Options of `APPOTraining`."""

    clip_param: ScheduleLike
    target_worker_clipping: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    target_network_update_freq: int
    tau: float


class BCOptions(TrainingOptions, total=False):
    """Options of `BCTraining`."""

    loss: Literal["log_prob", "mse"]
    entropy_coeff: ScheduleLike


class CQLOptions(TargetSoftActorCriticOptions, total=False):
    """Options of `CQLTraining`."""

    min_q_weight: float
    num_actions: int
    temperature: float
    deterministic_backup: bool
    bc_iters: int
    lagrangian: bool
    lagrangian_thresh: float


class CrossQOptions(SoftActorCriticOptions, total=False):
    """Options of `CrossQTraining`."""

    policy_delay: int


class DistillationOptions(TrainingOptions, total=False):
    """Options of `DistillationTraining`."""

    teacher: Any
    loss: Literal["mse", "kl", "nll"]
    teacher_share: ScheduleLike


class DQNOptions(ActionValueOptions, total=False):
    """Options of `DQNTraining`."""

    huber_delta: float | None


class FlashSACOptions(TargetSoftActorCriticOptions, total=False):
    """Options of `FlashSACTraining`."""

    target_std: float
    policy_delay: int
    categorical_critic: bool
    num_atoms: int
    v_min: float
    v_max: float
    unit_norm_weights: bool
    batch_norm: bool
    joint_batch: bool
    bounded_rewards: bool
    noise_repeat: int


class IQLOptions(TargetActorCriticOptions, total=False):
    """Options of `IQLTraining`."""

    value_lr: ScheduleLike | None
    expectile: float
    beta: float
    exp_adv_max: float


class IQNOptions(ActionValueOptions, total=False):
    """Options of `IQNTraining`."""

    num_quantiles: int
    num_target_quantiles: int
    num_policy_quantiles: int
    num_cosines: int
    kappa: float


class MARWILOptions(TrainingOptions, total=False):
    """Options of `MARWILTraining`."""

    beta: float
    vf_coeff: float
    moving_average_sqd_adv_norm_start: float
    moving_average_sqd_adv_norm_update_rate: float
    max_weight: float | None
    bc_logstd_coeff: float


class MunchausenDQNOptions(TargetValueOptions, total=False):
    """Options of `MunchausenDQNTraining`."""

    munchausen_coeff: float
    entropy_temperature: float
    lowest_log_policy: float


class PPOOptions(TrainingOptions, total=False):
    """Options of `PPOTraining`."""

    lambda_: float
    clip_param: ScheduleLike
    vf_clip_param: float | None
    vf_loss_coeff: float
    entropy_coeff: ScheduleLike
    normalize_advantages: Literal["minibatch", "batch"] | None
    dual_clip: float | None
    target_kl: float | None
    kl_coeff: float
    kl_target: float


class PQNOptions(TrainingOptions, total=False):
    """Options of `PQNTraining`."""

    epsilon: ScheduleLike
    lambda_: float


class QRDQNOptions(ActionValueOptions, total=False):
    """Options of `QRDQNTraining`."""

    num_quantiles: int
    kappa: float


class REINFORCEOptions(TrainingOptions, total=False):
    """Options of `REINFORCETraining`."""

    normalize_returns: bool


class TD3Options(DelayedActorCriticOptions, total=False):
    """Options of `TD3Training`."""

    exploration_noise: ScheduleLike


class TD3BCOptions(DelayedActorCriticOptions, total=False):
    """Options of `TD3BCTraining`."""

    alpha: float


class TQCOptions(TargetSoftActorCriticOptions, total=False):
    """Options of `TQCTraining`."""

    num_quantiles: int
    quantiles_to_drop: int


class TRPOOptions(TrainingOptions, total=False):
    """Options of `TRPOTraining`."""

    lambda_: float
    max_kl: float
    cg_iterations: int
    cg_damping: float
