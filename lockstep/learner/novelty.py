"""Random network distillation: a reward for new observations (Burda et al. 2018, arXiv:1810.12894)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.data.columns import Columns
from lockstep.data.groups import PartView
from lockstep.data.trees import Tree
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import Encoder, ModelConfig
from lockstep.ops.statistics import RunningMoments
from lockstep.state.streams import global_generator

NOVELTY = "novelty"
"""Name of the optimizer that trains the network, and last part of the name under which the learner registers it."""


class RandomNetworkDistillation(nn.Module):
    """Network that is trained to predict the output of a fixed network with random weights (section 2.2).

    Its error is small for observations like those that it was trained on, and large for new ones.
    """

    def __init__(self, observation_space: Space[Any], hiddens: tuple[int, ...] = (128, 128), size: int = 64) -> None:
        super().__init__()
        # The mask of allowed actions in an observation is not a part of what the agent observes.
        self.is_masked = isinstance(getattr(observation_space, "spaces", None), dict) and (
            ACTION_MASK in observation_space.spaces  # type: ignore[attr-defined]
        )
        space = without_mask(observation_space) if self.is_masked else observation_space
        config = ModelConfig(hiddens=hiddens, activation="relu")
        # Each line draws initial weights, so another order would give other weights for the same seed.
        self.target = Encoder(space, config)
        self.predictor = Encoder(space, config)
        self.target_head = nn.Linear(self.target.output_size, size)
        self.head = nn.Linear(self.target.output_size, size)
        self.target.requires_grad_(False)
        self.target_head.requires_grad_(False)

    def forward(self, obs: Tree) -> Tensor:
        """Return the mean squared error `[...]` of observations `[..., *shape]`."""
        inputs = without_mask(obs) if self.is_masked else obs
        dtype = self.head.weight.dtype
        prediction = self.head(self.predictor(inputs, dtype))
        return (prediction - self.target_head(self.target(inputs, dtype))).square().mean(-1)


class IntrinsicReward:
    """Intrinsic reward: the error of a network, divided by the running standard deviation of the errors.

    It follows section 2.4 of the paper with two differences. The errors are divided by their own deviation, not by that
    of their discounted sums. And there is one value function for the sum of both rewards, where the paper has two. So
    the intrinsic return ends with the episode, as the return of the environment must; in the paper it does not.
    """

    def __init__(self, network: nn.Module, coeff: float, view: PartView | None = None) -> None:
        self.network = network
        self.coeff = coeff
        self.view = view
        """What the network sees of an observation. None: all of it."""
        self.moments = RunningMoments()
        """Moments of all errors so far, over all learners."""

    def errors_of(self, obs: Tree) -> Tensor:
        """Return the network's error `[...]` for observations `[..., *shape]`."""
        errors: Tensor = self.network(obs if self.view is None else self.view(obs))
        return errors

    @torch.no_grad()
    def __call__(self, next_obs: Tree, counted: Tensor, reducer: Reducer) -> Tensor:
        """Return the rewards `[...]` of next observations, and add their errors to the statistics.

        `counted` `[N]` bool marks this learner's own rows; only their errors are added.
        """
        errors = self.errors_of(next_obs)
        new_moments = RunningMoments()
        new_moments.update(errors.reshape(-1)[counted.to(errors.device)].cpu().numpy())
        self.moments.merge(reducer.moments(new_moments))
        return errors * (self.coeff / (float(self.moments.var) ** 0.5 + 1e-8))

    def with_rewards(self, columns: TensorColumns, *, has_own_rows: bool, reducer: Reducer) -> TensorColumns:
        """Return the columns with the intrinsic reward added to the rewards.

        With `has_own_rows=False` the rows are stand-ins, whose errors do not count in the statistics. Columns without
        rewards or next observations are returned unchanged.
        """
        if Columns.REWARDS not in columns or Columns.NEXT_OBS not in columns:
            return columns
        rewards = columns[Columns.REWARDS]
        mask = columns.get(Columns.LOSS_MASK, torch.ones_like(rewards, dtype=torch.bool))
        intrinsic_rewards = self(columns[Columns.NEXT_OBS], mask.reshape(-1) & has_own_rows, reducer)
        return {**columns, Columns.REWARDS: rewards + intrinsic_rewards}

    def get_state(self) -> dict[str, Any]:
        """Return copies of the weights, and the statistics."""
        weights = {name: value.cpu().numpy().copy() for name, value in self.network.state_dict().items()}
        return {"network": weights, "moments": self.moments.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.network.load_state_dict({name: torch.as_tensor(value) for name, value in state["network"].items()})
        self.moments.set_state(state["moments"])


def make_intrinsic_reward(
    kind: Literal["rnd"] | Callable[[Space[Any]], nn.Module],
    observation_space: Space[Any],
    coeff: float,
    seed: int,
    view: PartView | None = None,
) -> IntrinsicReward:
    """Return the intrinsic reward of one module. Initial weights of its network depend on `seed` alone.

    Args:
        kind: "rnd", or a function of the observation space that returns a network.
        observation_space: Space of what the network sees.
        coeff: Weight of the reward.
        seed: Seed of the initial weights.
        view: What the network sees of an observation. None: all of it.
    """
    make_network = RandomNetworkDistillation if kind == "rnd" else kind
    with global_generator(seed):
        network = make_network(observation_space)
    return IntrinsicReward(network, coeff, view)
