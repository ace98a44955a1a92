"""`AtomLearner`: learns the distribution of returns as probabilities of fixed returns, the atoms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, of_actions
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
    """returns that have a probability"""
    v_min: float = option(-100.0, finite=True)
    """the lowest of them"""
    v_max: float = option(100.0, finite=True)
    """the highest of them"""

    def __call__(self, **options: Unpack[AtomOptions]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Refuse bounds of the returns that are the wrong way round."""
        super().validate()
        if self.v_max <= self.v_min:
            raise ValueError(
                f"training.v_max={self.v_max} is not allowed; it must be a finite number above v_min={self.v_min}"
            )

    def with_atoms(self, model_config: ModelConfig) -> ModelConfig:
        """Return the configuration of a network that gives probabilities of these returns."""
        return replace(model_config, num_value_outputs=self.num_atoms, value_range=(self.v_min, self.v_max))


Training = TypeVar("Training", bound=AtomTraining[Any])


class AtomLearner(QLearner[Training]):
    """The family of C51 and Rainbow."""

    parts = ("value_outputs", "masked", "mean_values", "mean_of_probs", "value_range")

    def compute_loss_for_module(
        self, *, module_id: str, config: Training, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return how far the distribution of `Q(s, a)` is from that of `r + gamma Q'(s', best)` on the same atoms.

        It is the Kullback-Leibler divergence, whose gradient is that of Bellemare et al.'s cross entropy (algorithm 1),
        and which is the priority of a transition in Hessel et al. 2018 ("The Integrated Agent").
        """
        log_probs = of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS]).log_softmax(-1)
        targets = self.projected_targets(module_id, batch, config.gamma)
        each = F.kl_div(log_probs, targets, reduction="none").sum(-1)
        module: Any = self.module[module_id]
        self.log(module_id, q_mean=self.masked_mean(module.mean_of_probs(log_probs.detach().exp()), batch))
        return self.mean_of_rows(module_id, batch, each, each)

    @torch.no_grad()
    def projected_targets(self, module_id: str, batch: TensorColumns, gamma: float) -> Tensor:
        """Return `[N, K]`, the distribution of `r + gamma Z'(s', best)` on the atoms, of n steps as the batch says."""
        following = self.best_next_outputs(module_id, batch).softmax(-1)
        discounts = discounts_of(batch, gamma, following.dtype)
        module: Any = self.module[module_id]
        v_min, v_max = module.value_range
        return project_on_atoms(following, batch[Columns.REWARDS], discounts, v_min=v_min, v_max=v_max)
