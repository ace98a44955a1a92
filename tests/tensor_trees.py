"""Tensor environments whose observations are trees, next to the same environments with one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lockstep.envs.tensor import CartPole, Pendulum, TensorEnv


def box_of(space: Any, columns: slice) -> spaces.Box:
    return spaces.Box(space.low[columns], space.high[columns])


CART = CartPole.single_observation_space
SWING = Pendulum.single_observation_space


class TreeCartPole(CartPole):
    """CartPole with an entry for the cart, and a nested one for the pole, in the order of CartPole's numbers."""

    single_observation_space = spaces.Dict(
        {
            "cart": box_of(CART, slice(0, 2)),
            "pole": spaces.Dict({"angle": box_of(CART, slice(2, 3)), "spin": box_of(CART, slice(3, 4))}),
        }
    )

    def observe(self, state: Any) -> Any:
        numbers = super().observe(state)
        # Not in the order of the space, and parts of one tensor.
        return {"pole": {"spin": numbers[:, 3:], "angle": numbers[:, 2:3]}, "cart": numbers[:, :2]}


class TreePendulum(Pendulum):
    """Pendulum with an entry for the direction, and one for the speed."""

    single_observation_space = spaces.Dict(
        {"direction": box_of(SWING, slice(0, 2)), "speed": box_of(SWING, slice(2, 3))}
    )

    def observe(self, state: Any) -> Any:
        numbers = super().observe(state)
        return {"speed": numbers[:, 2:], "direction": numbers[:, :2]}


class PendulumWithMore(TreePendulum):
    """`TreePendulum` with an entry in front that no part has to see."""

    single_observation_space = spaces.Dict(
        {"a number": spaces.Box(0.0, 1.0, (1,)), **TreePendulum.single_observation_space.spaces}
    )

    def observe(self, state: Any) -> Any:
        seen = super().observe(state)
        return {**seen, "a number": seen["speed"].abs() / 10.0}


class MaskedSteps(TensorEnv):
    """Counts steps, shows them in several forms, and forbids one of three actions, another one in each step.

    The observation is a tuple in a Dict: the step as a float, as bytes and as a choice.
    """

    num_draws = 1
    time_limit = 6
    single_action_space = spaces.Discrete(3)
    single_observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(3),
            "step": spaces.Tuple(
                (spaces.Box(0.0, 10.0, (2,)), spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(10))
            ),
        }
    )

    def make_state(self) -> Any:
        return {"step": torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)}

    def begin(self, draws: Any) -> Any:
        return {"step": (draws[:, 0] * 3).long()}

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        step = state["step"]
        rewards = (actions == (step + 1) % 3).float() - 10.0 * (actions == step % 3)
        return {"step": step + 1}, rewards, step + 1 >= 9

    def observe(self, state: Any) -> Any:
        step = state["step"]
        numbers = torch.stack((step, step % 3), 1).float()
        mask = torch.arange(3, device=self.device) != (step % 3).unsqueeze(1)
        return {"step": (numbers, step.unsqueeze(1).to(torch.uint8), step), "action_mask": mask.to(torch.int8)}


def flat_of(obs: Any) -> torch.Tensor:
    """Return an observation tree of `TreeCartPole` or `TreePendulum` as one tensor `[..., numbers]`."""
    if "cart" in obs:
        parts = (obs["cart"], obs["pole"]["angle"], obs["pole"]["spin"])
    else:
        parts = (obs["direction"], obs["speed"])
    return torch.cat(parts, -1)


class FlipBits(TensorEnv):
    """`BitFlipping` on a device: bits that must become equal to a goal, one is flipped in each step."""

    num_draws = 12
    time_limit = 6
    single_action_space = spaces.Discrete(6)
    single_observation_space = spaces.Dict(
        {name: spaces.Box(0.0, 1.0, (6,)) for name in ("achieved_goal", "desired_goal", "observation")}
    )

    def make_state(self) -> Any:
        return {name: torch.zeros(self.num_envs, 6, device=self.device) for name in ("bits", "goal")}

    def begin(self, draws: Any) -> Any:
        bits, goal = draws.round().float().split(6, dim=1)
        # One that differs, so that no episode begins at its goal.
        return {"bits": torch.cat([1.0 - goal[:, :1], bits[:, 1:]], 1), "goal": goal}

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        flipped = (actions.unsqueeze(1) == torch.arange(6, device=self.device)).float()  # `one_hot` waits
        bits = (state["bits"] - flipped).abs()
        rewards = self.compute_reward(bits, state["goal"], {})
        return {"bits": bits, "goal": state["goal"]}, rewards, self.compute_terminated(bits, state["goal"], {})

    def observe(self, state: Any) -> Any:
        bits = state["bits"]
        return {"observation": bits, "achieved_goal": bits, "desired_goal": state["goal"]}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return self.compute_terminated(achieved_goal, desired_goal, info).float() - 1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal == desired_goal).all(-1)
