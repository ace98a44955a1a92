"""All transforms around one network, used alike when acting and when learning: the class, rewards and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors.connector import Connector, ObsPipeline
from lockstep.data.actions import COMPOSITE, RescaleActions, apply_to_parts, map_boxes
from lockstep.data.columns import Columns
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, leaves
from lockstep.ops.arrays import Array, Constant, clip
from lockstep.ops.statistics import RunningMoments
from lockstep.options.checks import check_number


def is_connector(value: object) -> TypeGuard[Connector]:
    """Return whether `value` is a connector.

    `RescaleActions` is in a lower folder than `Connector` and so no subclass, but has the methods of one of actions.
    """
    return isinstance(value, Connector | RescaleActions)


class ActionPipeline:
    """Applies connectors one after the other: actions of the module in, actions of the environment out.

    `module_space`: what the module acts in, `input_space` of all connectors from the last to the first.

    Raises:
        TypeError: something that is no connector of actions.
        ValueError: one with statistics or a memory.
    """

    def __init__(self, connectors: Sequence[Any], action_space: Space[Any]) -> None:
        self.connectors = tuple(connectors)
        self.action_space = action_space
        self.module_space = action_space
        for connector in reversed(self.connectors):
            if not is_connector(connector):
                raise TypeError(f"{type(connector).__name__} is no connector of actions; give a subclass of Connector")
            connector.check_plain("env_runners.module_to_env_connector")
            self.module_space = connector.input_space(self.module_space)
        self.has_inverse = all(hasattr(connector, "inverse") for connector in self.connectors)
        """Whether `inverse` brings the environment's actions to the module's."""
        self.rescales = any(connector.rescales for connector in self.connectors)
        """Whether one of the connectors maps [-1, 1] onto the bounds."""

    def __call__(self, actions: Tree) -> Any:
        """Return the environment's actions `[..., *action]` for the module's."""
        for connector in self.connectors:
            actions = connector(actions)
        return actions

    def inverse(self, actions: Tree) -> Any:
        """Return the module's actions for the environment's; only where each connector has an inverse."""
        for connector in reversed(self.connectors):
            actions = connector.inverse(actions)
        return actions


class ClipActions(Connector):
    """Limits actions of a Box, `[..., A]` or in the space's own shape, to its bounds; actions of other spaces pass.

    Of a Dict or Tuple the parts that are a Box are limited.
    The learner keeps the actions as they were drawn: a Gaussian's density is that of the unlimited ones.
    """

    def __init__(self, action_space: Space[Any]) -> None:
        self._low: Constant | None = None
        self._high: Constant | None = None
        self._space, self._parts = action_space, []
        if isinstance(action_space, COMPOSITE):
            self._parts = map_boxes(ClipActions, action_space)
        if isinstance(action_space, spaces.Box) and (
            action_space.bounded_below.any() or action_space.bounded_above.any()
        ):
            self._low = Constant(action_space.low.reshape(-1))
            self._high = Constant(action_space.high.reshape(-1))
        self.is_identity = self._low is None and all(part is None or part.is_identity for part in self._parts)

    def __call__(self, actions: Tree) -> Tree:
        """Return the actions within the bounds, in a new array."""
        if self._parts:
            return apply_to_parts(self._parts, self._space, actions)
        if self._low is None or self._high is None:
            return actions
        low, high = self._low.like(actions), self._high.like(actions)
        return clip(actions.reshape(-1, low.shape[0]), low, high).reshape(actions.shape)

    def inverse(self, actions: np.ndarray) -> np.ndarray:
        """Return actions within the bounds as they are."""
        return actions


class ClipRewards(Connector):
    """Limits the rewards of train columns to [low, high]; with `sign=True` only their sign is left (Mnih et al. 2015).

    Where a replay buffer sums the rewards of n steps, it is the sum that is limited.
    """

    def __init__(self, low: float = -1.0, high: float = 1.0, *, sign: bool = False) -> None:
        if not low < high:
            raise ValueError(f"ClipRewards needs low < high, got {low} and {high}")
        self.low, self.high, self.sign = float(low), float(high), sign

    def __call__(self, data: Tree) -> Any:
        rewards = torch.as_tensor(data[Columns.REWARDS])
        return {**data, Columns.REWARDS: rewards.sign() if self.sign else rewards.clamp(self.low, self.high)}


class ScaleRewards(Connector):
    """Multiplies the rewards of train columns by `factor`."""

    def __init__(self, factor: float) -> None:
        check_number("factor", factor)
        self.factor = float(factor)

    def __call__(self, data: Tree) -> Any:
        return {**data, Columns.REWARDS: data[Columns.REWARDS] * self.factor}


class NormalizeRewards:
    """Divides rewards by the standard deviation of the running discounted return, then limits them to [-clip, clip].

    The running return of an environment is `R_t = gamma * R_(t-1) + r_t`, zero again after an episode's end. The mean
    is not subtracted, so signs stay. (OpenAI baselines' VecNormalize; Huang et al. 2022, "The 37 Implementation Details
    of Proximal Policy Optimization", continuous-control details 8 and 9.)
    """

    def __init__(self, gamma: float = 0.99, clip: float | None = 10.0, epsilon: float = 1e-8) -> None:
        if not 0.0 <= gamma <= 1.0 or not epsilon > 0 or (clip is not None and not clip > 0):
            raise ValueError(
                f"NormalizeRewards needs gamma in [0, 1], clip > 0 (or None) and epsilon > 0, got {gamma}, {clip} and "
                f"{epsilon}"
            )
        self.gamma, self.clip, self.epsilon = float(gamma), clip, float(epsilon)
        self.moments = RunningMoments()
        self._returns = np.zeros(0)  # [B], the running returns after the last row seen
        self._new_returns: dict[str, Any] | None = None  # those of them that the last rows led to, and from where
        self._on_device: torch.Tensor | None = None
        """float64 [3 + B] where `of_tensors` computes: count, mean, squares and the running returns; it stays in its
        memory, which CUDA graphs read and write"""

    def __call__(self, rewards: np.ndarray, dones: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Take rewards `[T, B]` into the statistics, then return them scaled, in their own float type.

        A call with another number of environments than before begins their returns anew.

        Args:
            dones: bool `[T, B]`, an episode ended with this step (terminated or truncated).
            valid: None, or bool `[T, B]`; False rows (a reset, no transition) are passed over.
        """
        self.moments.merge(self.moments_of(rewards, dones, valid))
        return self.scale(rewards)

    def moments_of(
        self,
        rewards: np.ndarray,
        dones: np.ndarray,
        valid: np.ndarray | None = None,
        counting: np.ndarray | None = None,
        place: tuple[int, int, int, int] | None = None,
    ) -> RunningMoments:
        """Return moments of the running returns of these steps alone, to be merged into `moments`; move the returns.

        Args:
            counting: None, or bool `[T, B]`; other rows are part of the returns, but another learner counts them.
            place: of a shard, see `Trajectories`; `share_returns` tells the others what it led to.
        """
        num_steps, num_envs = rewards.shape
        returns = np.empty((num_steps, num_envs))
        step, env, all_steps, all_envs = place or (0, 0, num_steps, num_envs)
        carried = self._returns.copy() if len(self._returns) == all_envs else np.zeros(all_envs)
        running = carried[env : env + num_envs] if step == 0 else np.zeros(num_envs)
        counted = rewards if valid is None else np.where(valid, rewards, 0.0)
        discounts = np.full(rewards.shape, self.gamma) if valid is None else np.where(valid, self.gamma, 1.0)
        keeps = np.logical_not(dones)
        for t in range(num_steps):
            running = np.add(running * discounts[t], counted[t], out=returns[t])
            running = running * keeps[t]
        is_end = step + num_steps == all_steps
        if is_end:
            carried[env : env + num_envs] = running
        self._returns, self._new_returns = carried, {"first": env, "returns": running} if is_end else None
        seen = RunningMoments()
        chosen = valid if counting is None else counting if valid is None else counting & valid
        seen.update(returns.reshape(-1) if chosen is None else returns[chosen])
        return seen

    def of_tensors(self, rewards: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
        """Do what a call does with tensors `[T, B]`, where they are; the host does not wait for it.

        `follow_device` brings the statistics here.
        """
        if self._on_device is None or len(self._on_device) != 3 + rewards.shape[1]:
            self._on_device = torch.zeros(3 + rewards.shape[1], dtype=torch.float64, device=rewards.device)
            self.lead_device()
        (count, mean, squares), running = self._on_device[:3], self._on_device[3:]
        returns = torch.empty(rewards.shape, dtype=torch.float64, device=rewards.device)
        for t in range(len(rewards)):
            returns[t].copy_(running.mul_(self.gamma).add_(rewards[t]))
            running.masked_fill_(dones[t], 0.0)
        number, seen = returns.numel(), returns.mean()
        delta, total = seen - mean, count + number
        squares.add_((returns - seen).square_().sum() + delta.square() * (count * (number / total)))
        mean.add_(delta * (number / total))
        count.copy_(total)
        factor = 1.0 / (squares / count + self.epsilon).sqrt()
        return self._scaled(rewards, factor.to(rewards.dtype))

    def follow_device(self) -> None:
        """Take over the statistics that `of_tensors` has changed; waits for the device."""
        if self._on_device is not None:
            (count, mean, squares), self._returns = np.split(self._on_device.cpu().numpy().copy(), [3])
            self.moments.set_state({"count": count, "mean": mean, "squares": squares})

    def lead_device(self) -> None:
        """Have `of_tensors` go on from the statistics that are here."""
        if self._on_device is not None:
            number, moments = len(self._on_device) - 3, self.moments
            returns = self._returns if len(self._returns) == number else np.zeros(number)
            state = np.concatenate([[moments.count, moments.mean, moments.squares], returns])
            self._on_device.copy_(torch.from_numpy(state))

    def share_returns(self, gather: Callable[[Any], list[Any]]) -> None:
        """Give each of several learners the running returns of all environments, as one learner has them.

        `gather(value)` returns what all of them hand in.
        """
        for part in gather(self._new_returns):
            if part is not None:
                self._returns[part["first"] : part["first"] + len(part["returns"])] = part["returns"]

    def scale(self, rewards: np.ndarray) -> np.ndarray:
        """Return rewards of any shape, scaled with the statistics as they are."""
        factor = rewards.dtype.type(1.0 / np.sqrt(float(self.moments.var) + self.epsilon))
        scaled: np.ndarray = self._scaled(rewards, factor)
        return scaled

    def _scaled(self, rewards: Array, factor: Array) -> Array:
        """Return rewards times a factor of their own float type, within the bounds; arrays or tensors."""
        scaled = rewards * factor
        return scaled if self.clip is None else scaled.clip(-self.clip, self.clip)

    def get_state(self) -> dict[str, Any]:
        """Return the statistics and the running returns."""
        return {"moments": self.moments.get_state(), "returns": self._returns.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        moments = RunningMoments()
        moments.set_state(state["moments"])
        self.moments, self._returns = moments, np.array(state["returns"], dtype=np.float64)
        self.lead_device()


@dataclass
class ModuleConnectors:
    """Holds the pipeline of observations, the scaling of rewards, and what brings actions to the environment.

    Their statistics are frozen while a rollout is collected and learned from; `update` moves them once after the
    gradient steps, so that the policy that acted and the one that is compared with it see the same numbers.
    """

    obs: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    """applied when acting, and whenever stored rows are read"""
    rewards: NormalizeRewards | None = None
    actions: ActionPipeline | None = None
    """from module actions to environment actions; `None`: as they are"""
    recorded: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    """applied before `obs`, once, where data are collected, which each collector does with a copy: its output is
    stored"""
    learner: tuple[Connector, ...] = ()
    """from the recorded train columns to those that are learned from"""
    join: Callable[[RunningMoments], RunningMoments] | None = None
    """with several learners: from the moments of what this one has seen to those of what all have seen"""
    gather: Callable[[Any], list[Any]] | None = None
    """with several learners: returns what each of them hands in"""

    @property
    def acting_names(self) -> tuple[str, ...]:
        """The names of the connectors that acting needs: all but the rewards'."""
        acting = [*self.recorded.connectors, *self.obs.connectors]
        acting += [] if self.actions is None else self.actions.connectors
        return tuple(type(connector).__name__ for connector in acting)

    @property
    def num_frames(self) -> int:
        """The frames of the stacks `[frames, ...]` that are stored; 1 where no such stacks are."""
        if not self.recorded.connectors:
            return 1
        return self.recorded.connectors[-1].num_stored_frames

    def train_columns(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return what the learner connectors make of train columns (tensors); `ValueError` for other rows."""
        if not self.learner:
            return columns
        number = len(columns[Columns.REWARDS])
        for connector in self.learner:
            columns = connector(columns)
            if not isinstance(columns, dict) or {len(each) for each in leaves(columns)} != {number}:
                raise ValueError(
                    f"training.learner_connector: {type(connector).__name__} must return a dict of columns, each of "
                    f"the {number} rows that it was given"
                )
        return columns

    def learning_rewards(self, trajectories: Trajectories) -> np.ndarray:
        """Take rewards into the statistics, and return them `[T, B]` as the estimator reads them."""
        if self.rewards is None:
            return trajectories.rewards
        seen = self.rewards.moments_of(
            trajectories.rewards, trajectories.dones, trajectories.valid, trajectories.owned, trajectories.place
        )
        if self.gather is not None:
            self.rewards.share_returns(self.gather)
        self.rewards.moments.merge(seen if self.join is None else self.join(seen))
        return self.rewards.scale(trajectories.rewards)

    def learning_rewards_on_device(self, rollout: TensorRollout) -> torch.Tensor:
        """Return the rewards `[T, B]` of a rollout on a device, scaled for the estimator; update their statistics.

        Nothing leaves the device. Its sums are taken in another order than in `learning_rewards`, so the last digits
        differ.
        """
        return rollout.rewards if self.rewards is None else self.rewards.of_tensors(rollout.rewards, rollout.cuts)

    def update(self, flat_obs: Tree, rows: np.ndarray | None, *, joined: bool = True) -> None:
        """Take the raw rows `[N, ...]`, or those in `rows`, into the statistics of observations.

        `joined=False`: all learners take in the same rows, rather than each its own.
        """
        self.obs.update(flat_obs, rows, self.join if joined else None)

    def get_state(self) -> dict[str, Any]:
        """Return the statistics."""
        return {"obs": self.obs.get_state(), "rewards": None if self.rewards is None else self.rewards.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.obs.set_state(state["obs"])
        if self.rewards is not None:
            self.rewards.set_state(state["rewards"])
