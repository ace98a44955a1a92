"""Random network distillation: a reward for observations that are new (Burda et al. 2018, arXiv:1810.12894)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.data.columns import Columns
from lockstep.data.trees import Tree
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import Encoder, ModelConfig
from lockstep.ops.statistics import RunningMoments
from lockstep.state.streams import global_generator

NOVELTY = "novelty"
"""name of the optimizer, and end of the name of the registered state"""


class RandomNetworkDistillation(nn.Module):
    """Predicts what a network with random weights makes of an observation (section 2.2).

    The error is small where observations are like those that it was trained on, and large for new ones.
    """

    def __init__(self, observation_space: Space[Any], hiddens: tuple[int, ...] = (128, 128), size: int = 64) -> None:
        super().__init__()
        self.is_masked = isinstance(getattr(observation_space, "spaces", None), dict) and (
            ACTION_MASK in observation_space.spaces  # type: ignore[attr-defined]
        )
        space = without_mask(observation_space) if self.is_masked else observation_space
        config = ModelConfig(hiddens=hiddens, activation="relu")
        self.target, self.predictor = Encoder(space, config), Encoder(space, config)
        self.target_head, self.head = (nn.Linear(self.target.output_size, size) for _ in range(2))
        self.target.requires_grad_(False)
        self.target_head.requires_grad_(False)

    def forward(self, obs: Tree) -> Tensor:
        """Return the mean squared error `[...]` of observations `[..., *shape]`."""
        seen, dtype = without_mask(obs) if self.is_masked else obs, self.head.weight.dtype
        return (self.head(self.predictor(seen, dtype)) - self.target_head(self.target(seen, dtype))).square().mean(-1)


class IntrinsicReward:
    """The errors of a network, in units of their running deviation, as rewards `[...]` of a module.

    Section 2.4 of the paper, with two differences: what divides is the deviation of the errors, not that of their
    discounted sums, and both kinds of reward have one value function, so that novelty ends with the episode.
    """

    def __init__(self, network: nn.Module, coeff: float) -> None:
        self.network, self.coeff = network, coeff
        self.moments = RunningMoments()

    @torch.no_grad()
    def __call__(self, next_obs: Tree, counted: Tensor, reducer: Reducer) -> Tensor:
        """Return the rewards `[...]` of observations that were led to, and take them into the statistics.

        `counted`: bool `[N]`, which of the rows are this learner's own.
        """
        errors: Tensor = self.network(next_obs)
        seen = RunningMoments()
        seen.update(errors.reshape(-1)[counted.to(errors.device)].cpu().numpy())
        self.moments.merge(reducer.moments(seen))
        return errors * (self.coeff / (float(self.moments.var) ** 0.5 + 1e-8))

    def rewarded(self, columns: TensorColumns, counts: bool, reducer: Reducer) -> TensorColumns:
        """Return transitions with higher rewards where they led to new observations; other columns as they are.

        `counts`: whether the rows are this learner's own.
        """
        if Columns.REWARDS not in columns or Columns.NEXT_OBS not in columns:
            return columns
        rewards = columns[Columns.REWARDS]
        mask = columns.get(Columns.LOSS_MASK, torch.ones_like(rewards, dtype=torch.bool))
        added = self(columns[Columns.NEXT_OBS], mask.reshape(-1) & counts, reducer)
        return {**columns, Columns.REWARDS: rewards + added}

    def get_state(self) -> dict[str, Any]:
        """Return weights (copies) and statistics."""
        weights = {name: value.cpu().numpy().copy() for name, value in self.network.state_dict().items()}
        return {"network": weights, "moments": self.moments.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.network.load_state_dict({name: torch.as_tensor(value) for name, value in state["network"].items()})
        self.moments.set_state(state["moments"])


def make_intrinsic_reward(
    kind: Literal["rnd"] | Callable[[Space[Any]], nn.Module], observation_space: Space[Any], coeff: float, seed: int
) -> IntrinsicReward:
    """Make the reward of one module, whose initial weights depend on `seed` alone.

    `kind`: "rnd", or a function of the observation space that returns a network.
    """
    with global_generator(seed):
        network = (RandomNetworkDistillation if kind == "rnd" else kind)(observation_space)
    return IntrinsicReward(network, coeff)
