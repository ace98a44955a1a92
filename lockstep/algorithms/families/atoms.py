"""`AtomLearner`: base class of learners of return distributions on fixed atoms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, outputs_of_actions
from lockstep.algorithms.families.transitions import discounts_of
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import ModelConfig
from lockstep.ops import project_on_atoms
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import AtomOptions


@dataclass
class AtomTraining(ActionValueTraining[ConfigT]):
    """Options that C51 and Rainbow have in common."""

    num_atoms: int = option(51, ge=2)
    """Number of atoms: the returns that have a probability."""
    v_min: float = option(-100.0, finite=True)
    """Lowest atom. Lower returns count as this one."""
    v_max: float = option(100.0, finite=True)
    """Highest atom. Higher returns count as this one."""

    def __call__(self, **options: Unpack[AtomOptions]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Raise `ValueError` if the highest atom is not above the lowest."""
        super().validate()
        if self.v_max <= self.v_min:
            raise ValueError(
                f"training.v_max={self.v_max} is not allowed; it must be a finite number above v_min={self.v_min}"
            )

    def with_atoms(self, model_config: ModelConfig) -> ModelConfig:
        """Return the configuration of a network whose outputs are the probabilities of the atoms."""
        return replace(model_config, num_value_outputs=self.num_atoms, value_range=(self.v_min, self.v_max))


Training = TypeVar("Training", bound=AtomTraining[Any])


class AtomLearner(QLearner[Training]):
    """Base class of the learners of C51 and Rainbow."""

    required_parts = ("value_outputs", "masked", "mean_values", "mean_of_probs", "value_range")

    def compute_loss_for_module(
        self, *, module_id: str, config: Training, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the divergence of the target distribution from that of `Q(s, a)`, both on the same atoms.

            loss = KL(projection of r + gamma Z'(s', best) || Z(s, a))

        Its gradient is that of the cross entropy in Bellemare et al. 2017 (algorithm 1). The divergence of a transition
        is also its priority, as in Hessel et al. 2018 ("The Integrated Agent").
        """
        log_probs = outputs_of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS]).log_softmax(-1)
        targets = self.projected_targets(module_id, batch, config.gamma)
        row_losses = F.kl_div(log_probs, targets, reduction="none").sum(-1)

        module: Any = self.module[module_id]
        self.log(module_id, q_mean=self.masked_mean(module.mean_of_probs(log_probs.detach().exp()), batch))
        return self.weighted_loss(module_id, batch, row_losses, errors=row_losses)

    @torch.no_grad()
    def projected_targets(self, module_id: str, batch: TensorColumns, gamma: float) -> Tensor:
        """Return the probabilities `[N, K]` of the atoms for `r + gamma Z'(s', best)`.

        A return between two atoms gives its probability to both (Bellemare et al. 2017, equation 7).
        """
        next_probs = self.best_next_outputs(module_id, batch).softmax(-1)
        discounts = discounts_of(batch, gamma, next_probs.dtype)
        module: Any = self.module[module_id]
        v_min, v_max = module.value_range
        return project_on_atoms(next_probs, batch[Columns.REWARDS], discounts, v_min=v_min, v_max=v_max)
