"""What SAC and CQL share: a learned temperature, soft values, the policy's loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.data.columns import Columns
from lockstep.learner.critics import register_actor_and_critic
from lockstep.learner.module_checks import check_parts
from lockstep.learner.optimizers import fused_adam
from lockstep.learner.targets import TargetNetwork

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

NOISE, NEXT_NOISE = "action_noise", "next_action_noise"
"""columns: what draws the policy's actions at an observation, and at the one after it"""
DISCRETE_ENTROPY = 0.98
"""share of the highest entropy that "auto" aims at where actions are discrete (Christodoulou 2019)"""


def set_up(learner: Learner, module_id: str) -> None:
    """Target critics (`target`) and temperature (`log_alpha`) are part of the learner's state."""
    check_parts(learner, module_id, "critics.is_discrete", *([] if is_discrete(learner, module_id) else ["sample"]))
    config: Any = learner.config_of(module_id)
    module: Any = learner.module[module_id]
    learner.register_state(f"{module_id}/target", TargetNetwork(module.critics))
    first = config.initial_alpha if config.alpha == "auto" else config.alpha
    log_alpha = torch.tensor(math.log(first) if first > 0 else -math.inf, dtype=learner.dtype, device=learner.device)
    learner.register_state(f"{module_id}/log_alpha", nn.Parameter(log_alpha, requires_grad=config.alpha == "auto"))


def register_optimizers(learner: Learner, module_id: str, config: Any) -> None:
    """Three: "actor", "critic" and, where the temperature is learned, "alpha"."""
    register_actor_and_critic(learner, module_id, config)
    if config.alpha == "auto":
        lr = config.lr if config.alpha_lr is None else config.alpha_lr
        log_alpha = learner.registered[f"{module_id}/log_alpha"]
        learner.optimizers.register(module_id, "alpha", fused_adam(config.adam_epsilon), [log_alpha], lr)


def is_discrete(learner: Learner, module_id: str) -> bool:
    """Are actions choices?"""
    return isinstance(learner.module[module_id].action_space, spaces.Discrete)


def noise_columns(learner: Learner, module_id: str) -> dict[str, int]:
    """For a Box: the random numbers of two actions for each row."""
    if is_discrete(learner, module_id):
        return {}
    return dict.fromkeys((NOISE, NEXT_NOISE), learner.module[module_id].action_dist_cls.noise_size)


@torch.no_grad()
def next_values(learner: Learner, module_id: str, batch: TensorColumns, alpha: Tensor | float) -> Tensor:
    """`[N]`: soft value (Haarnoja et al. 2018, equation 3) of the next observation, by the smallest target critic."""
    module: Any = learner.module[module_id]
    critics = learner.registered[f"{module_id}/target"].module
    after = {Columns.OBS: batch[Columns.NEXT_OBS]}
    if NEXT_NOISE in batch:
        actions, logp = module.sample(after, batch[NEXT_NOISE])
        return learner.to_tensor(critics(after[Columns.OBS], actions).amin(0)) - alpha * logp
    found = log_probs(learner, module_id, module.forward_inference(after))
    values = learner.to_tensor(critics(after[Columns.OBS]).amin(0))
    return (found.exp() * (values - alpha * found)).sum(-1)


def policy_terms(
    learner: Learner, module_id: str, batch: TensorColumns, fwd_out: Any, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """What each row adds to the policy's loss, and the log-density of its action, `[N]` each; of a discrete policy the
    means over all actions.
    """
    module: Any = learner.module[module_id]
    if is_discrete(learner, module_id):
        found = log_probs(learner, module_id, fwd_out)
        probs, values = found.exp(), fwd_out["q_values"].detach().amin(0)
        return (probs * (alpha * found - values)).sum(-1), (probs * found).sum(-1)
    dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
    actions, logp = dist.sample_with_log_prob(batch[NOISE])
    values = learner.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True).amin(0))
    return alpha * logp - values, logp


def log_probs(learner: Learner, module_id: str, fwd_out: Any) -> Tensor:
    """`[N, A]` of a discrete policy."""
    inputs = learner.to_tensor(fwd_out[Columns.ACTION_DIST_INPUTS])
    dist: Any = learner.module[module_id].action_dist_cls.from_inputs(inputs)
    found: Tensor = dist.log_probs
    return found


def temperature_loss(learner: Learner, module_id: str, batch: TensorColumns, neg_entropy: Tensor) -> Tensor | float:
    """Of a learned temperature (equation 18), 0 of a fixed one; entropy and temperature are logged."""
    config: Any = learner.config_of(module_id)
    log_alpha = learner.registered[f"{module_id}/log_alpha"]
    entropy = -learner.masked_mean(neg_entropy.detach(), batch)
    learner.log(module_id, entropy=entropy, alpha=log_alpha.detach().exp())
    if config.alpha != "auto":
        return 0.0
    missing = neg_entropy.detach() + target_entropy(learner, module_id)
    alpha_loss = learner.masked_mean(-log_alpha * missing, batch)
    learner.log(module_id, alpha_loss=alpha_loss)
    return alpha_loss


def target_entropy(learner: Learner, module_id: str) -> float:
    """As configured, in nats."""
    config: Any = learner.config_of(module_id)
    if config.target_entropy != "auto":
        return float(config.target_entropy)
    space: Any = learner.module[module_id].action_space
    if isinstance(space, spaces.Discrete):
        return DISCRETE_ENTROPY * math.log(int(space.n))
    return -float(math.prod(space.shape))
