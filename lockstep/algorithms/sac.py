"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

https://arxiv.org/abs/1812.05905, with a learned temperature alpha (equation 18); for discrete actions as in
Christodoulou 2019, https://arxiv.org/abs/1910.07207. With a' ~ pi(. | s') and the target critics Q':

    y = r + gamma (min_k Q'_k(s', a') - alpha log pi(a' | s'))
    critics:      minimise  E[sum_k (Q_k(s, a) - y)^2 / 2]                         (equations 5 and 6)
    policy:       minimise  E[alpha log pi(a | s) - min_k Q_k(s, a)],  a ~ pi      (equation 9)
    temperature:  minimise  E[-alpha (log pi(a | s) + target entropy)]             (equation 18)

The weights of the two critics are stacked, so that each layer of both is computed by one batched matrix product. Their
target networks, which are slow copies of the critics, are updated after every gradient step: each weight moves towards
the critic's weight by the share tau of their difference (with 0.005 by half a percent). All three losses are computed
with the same parameters, and one backward pass gives all gradients. The policy's loss sends no gradient into the
critics.

Defaults: those of the paper (table 1): batch 256, two layers of 256 units with ReLU, Adam with lr 3e-4, tau 0.005,
gamma 0.99, a replay buffer of a million transitions, one gradient step for each environment step, and a target entropy
of minus the number of action dimensions.
"""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from lockstep.algorithms.families.transitions import (
    RECTIFIED,
    SoftActorCriticLearner,
    TargetSoftActorCriticTraining,
    critic_loss,
    td_targets,
    values_of_actions,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultSACModule


class SACLearner(SoftActorCriticLearner[TargetSoftActorCriticTraining[Any]]):
    """The update of SAC."""

    def compute_loss_for_module(
        self, *, module_id: str, config: TargetSoftActorCriticTraining[Any], batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the sum of the losses of critics (equations 5 and 6), policy (9) and temperature (18)."""
        # The losses of critics and policy treat the temperature as a constant. Only `temperature_loss` changes it.
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            next_values = self.soft_next_values(module_id, batch, alpha)
            # Loss of the policy and negative entropy, `[N]` each: one number for each row.
            policy_losses, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)

        # Values `[K, N]` of the batch's actions by K critics. With continuous actions `q_values` are these already.
        # With discrete actions they are the values `[K, N, A]` of all A actions, and one of the A is selected in each
        # row.
        values = values_of_actions(batch, fwd_out["q_values"])
        targets = td_targets(batch, next_values, config.gamma)
        # `learner` is an argument because the function also writes to it: it logs the loss, and stores the error of
        # each row as its priority for prioritised replay.
        loss = critic_loss(batch, values, targets, module_id=module_id, learner=self)

        actor_loss = self.masked_mean(policy_losses, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)


class SACConfig(AlgorithmConfig):
    """`SACConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "sac"
    # Allowed values of `env_runners(exploration=...)`: normal noise or Ornstein-Uhlenbeck noise ("ou") that is added to
    # the actions, or generalised state-dependent exploration. The default is None: samples of the policy's
    # distribution.
    explorations = ("normal", "ou", "gsde")
    learner_class = SACLearner
    # The temperature begins with the number `alpha`, or with `initial_alpha` if `alpha="auto"` lets it be learned. A
    # checkpoint contains it, so a resumed run continues with that value and refuses other values of both options.
    first_values = ("alpha", "initial_alpha")
    # Options of soft actor-critics in general, and those of target networks: `tau` and `target_update_interval`.
    training_class = TargetSoftActorCriticTraining
    module_class = DefaultSACModule
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: TargetSoftActorCriticTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, update_per_step=1.0)
        # `RECTIFIED` has two hidden layers of 256 units with ReLU. With `free_log_std=False` the network computes the
        # standard deviations of the actions from the observation, as in the paper, instead of learning one for all
        # observations.
        self.rl_module(model_config={**RECTIFIED, "free_log_std": False, "squash_actions": True})
