"""`ModuleConnectors`, all transforms around one network, with the connectors of actions, rewards and train columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors.connector import Connector, ObsPipeline
from lockstep.connectors.observations import NormalizeObs
from lockstep.connectors.symmetry import Symmetry
from lockstep.data.actions import COMPOSITE, RescaleActions, apply_to_parts, map_boxes
from lockstep.data.columns import MIRRORED, Columns
from lockstep.data.new_rows import NewRows
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, leaves
from lockstep.ops.arrays import Array, Constant, clip
from lockstep.ops.statistics import RunningMoments
from lockstep.ops.tensor_moments import TensorMoments
from lockstep.options.checks import check_number
from lockstep.state.optional import optional_state


def is_connector(value: object) -> TypeGuard[Connector]:
    """Return whether `value` is a connector.

    `RescaleActions` has the methods of a connector of actions. It is not a subclass of `Connector`, because it is in a
    lower folder.
    """
    return isinstance(value, Connector | RescaleActions)


class ActionPipeline:
    """Sequence of connectors from the module's actions to the environment's.

    Args:
        connectors: The connectors in their order. They have neither statistics nor memory.
        action_space: Action space of the environment.

    Attributes:
        module_space: Action space of the module: the `input_space` of the connectors, from the last to the first.

    Raises:
        TypeError: An object is not a connector of actions.
        ValueError: A connector has statistics or a memory.
    """

    def __init__(self, connectors: Sequence[Any], action_space: Space[Any]) -> None:
        self.connectors = tuple(connectors)
        self.action_space = action_space
        self.module_space = action_space
        for connector in reversed(self.connectors):
            if not is_connector(connector):
                raise TypeError(
                    f"{type(connector).__name__} is not a connector of actions; give a subclass of Connector"
                )
            connector.check_plain("env_runners.module_to_env_connector")
            self.module_space = connector.input_space(self.module_space)
        self.has_inverse = all(hasattr(connector, "inverse") for connector in self.connectors)
        """Whether `inverse` can be called."""
        self.rescales = any(connector.rescales for connector in self.connectors)
        """Whether one of the connectors maps [-1, 1] onto the bounds."""
        # On a device, random actions are drawn in the environment's space, and all actions get its shape.
        keeps_space = self.module_space == action_space
        self.on_device = keeps_space and all(connector.on_device for connector in self.connectors)
        """Whether actions of tensor environments can pass the connectors on their device."""

    def __call__(self, actions: Tree) -> Any:
        """Return the environment's actions `[..., *action]` for actions of the module."""
        for connector in self.connectors:
            actions = connector(actions)
        return actions

    def inverse(self, actions: Tree) -> Any:
        """Return the module's actions for actions of the environment. Needs `has_inverse`."""
        for connector in reversed(self.connectors):
            actions = connector.inverse(actions)
        return actions


class ClipActions(Connector):
    """Clipping of actions to the bounds of a Box. Actions of other spaces do not change.

    Actions are `[..., A]`, or in the shape of the space. In a Dict or Tuple the parts that are a Box are clipped. The
    learner keeps the actions before clipping, because a Gaussian has no density for clipped ones.

    Args:
        action_space: Action space of the environment.
    """

    on_device = True

    def __init__(self, action_space: Space[Any]) -> None:
        self._low: Constant | None = None
        self._high: Constant | None = None
        self._space = action_space
        self._parts: list[Any] = []
        if isinstance(action_space, COMPOSITE):
            self._parts = map_boxes(ClipActions, action_space)
        if isinstance(action_space, spaces.Box):
            has_bounds = action_space.bounded_below.any() or action_space.bounded_above.any()
            if has_bounds:
                self._low = Constant(action_space.low.reshape(-1))
                self._high = Constant(action_space.high.reshape(-1))
        # Collectors leave out a connector that changes nothing.
        self.is_identity = self._low is None and all(part is None or part.is_identity for part in self._parts)

    def __call__(self, actions: Tree) -> Tree:
        """Return the clipped actions."""
        if self._parts:
            return apply_to_parts(self._parts, self._space, actions)
        if self._low is None or self._high is None:
            return actions
        low, high = self._low.like(actions), self._high.like(actions)
        return clip(actions.reshape(-1, low.shape[0]), low, high).reshape(actions.shape)

    def inverse(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions unchanged: those within the bounds were not clipped."""
        return actions


class ClipRewards(Connector):
    """Clipping of the rewards in train columns to [low, high], or to their sign (Mnih et al. 2015).

    If a replay buffer sums the rewards of n steps, the sum is clipped.

    Args:
        low: Smallest reward.
        high: Largest reward.
        sign: Whether rewards become their sign (-1, 0 or 1) instead of being clipped.

    Raises:
        ValueError: `low` is not less than `high`.
    """

    on_device = True

    def __init__(self, low: float = -1.0, high: float = 1.0, *, sign: bool = False) -> None:
        if not low < high:
            raise ValueError(f"ClipRewards needs low < high, got {low} and {high}")
        self.low = float(low)
        self.high = float(high)
        self.sign = sign

    def __call__(self, data: Tree) -> Any:
        rewards = torch.as_tensor(data[Columns.REWARDS])
        clipped = rewards.sign() if self.sign else rewards.clamp(self.low, self.high)
        return {**data, Columns.REWARDS: clipped}


class ScaleRewards(Connector):
    """Multiplication of the rewards in train columns by `factor`."""

    on_device = True

    def __init__(self, factor: float) -> None:
        check_number("factor", factor)
        self.factor = float(factor)

    def __call__(self, data: Tree) -> Any:
        return {**data, Columns.REWARDS: data[Columns.REWARDS] * self.factor}


class NormalizeRewards:
    """Division of rewards by the standard deviation of the running discounted return, then clipping to [-clip, clip].

    The running return of an environment is `R_t = gamma * R_(t-1) + r_t`, which begins at zero in each episode. The
    mean is not subtracted, so that rewards keep their signs. (OpenAI baselines' VecNormalize; Huang et al. 2022, "The
    37 Implementation Details of Proximal Policy Optimization", continuous-control details 8 and 9.)

    Args:
        gamma: Discount of the running return, in [0, 1].
        clip: Limit of the scaled rewards. None sets no limit.
        epsilon: Added to the variance.
        bound: Limit of the scaled running returns so far: rewards are divided by the standard deviation or, if that is
            larger, by the largest running return / bound (Lee et al. 2025, "SimbaV2", arXiv:2502.15280, section 4.3).
            None sets no limit.

    Raises:
        ValueError: An argument is not allowed.
    """

    def __init__(
        self, gamma: float = 0.99, clip: float | None = 10.0, epsilon: float = 1e-8, bound: float | None = None
    ) -> None:
        if not 0.0 <= gamma <= 1.0 or not epsilon > 0 or (clip is not None and not clip > 0):
            raise ValueError(
                f"NormalizeRewards needs gamma in [0, 1], clip > 0 (or None) and epsilon > 0, got {gamma}, {clip} and "
                f"{epsilon}"
            )
        if bound is not None and not bound > 0:
            raise ValueError(f"NormalizeRewards needs bound > 0 (or None), got {bound}")
        self.bound = bound
        self.largest = 0.0
        """Largest absolute running return so far. Only used with a bound."""
        self.gamma = float(gamma)
        self.clip = clip
        self.epsilon = float(epsilon)
        self.moments = RunningMoments()
        """Moments of the running returns of all steps."""
        self._returns = np.zeros(0)
        """`[B]`, the running returns after the last rows."""
        self._new_returns: dict[str, Any] | None = None
        """The running returns after the last rows of this learner, for the other learners: `{"first": index of the
        first environment, "returns": [B]}`. None if the rows were not the last ones of their environments."""
        self._on_device: torch.Tensor | None = None
        """float64 `[3 + B]` on the device, for `normalize_tensors`: count, mean, squares and the running returns. It is
        changed in place, because CUDA graphs read and write its memory."""
        self._share = ALL_ROWS
        """Share of the environments whose running returns are in `_on_device`."""
        self._moments_on_device: TensorMoments | None = None
        """Moments on the device of `add_on_device`, changed in place likewise."""
        self._largest_on_device: torch.Tensor
        """`largest` on this device, 0-d."""

    def __call__(self, rewards: np.ndarray, dones: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Add rewards to the statistics, and return them scaled, in their own float dtype.

        In a call with another number of environments than before, their running returns begin at zero.

        Args:
            rewards: `[T, B]`.
            dones: bool `[T, B]`, whether an episode ended with this step (terminated or truncated).
            valid: bool `[T, B]`, whether a row is a transition. Other rows (resets) are passed over. Defaults to all.
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
        """Return the moments of the running returns of these steps alone, and continue the running returns.

        The caller merges the result into `moments`, with several learners after joining the results of all.

        Args:
            rewards: `[T, B]`.
            dones: bool `[T, B]`, whether an episode ended with this step.
            valid: bool `[T, B]`, whether a row is a transition. Defaults to all.
            counting: bool `[T, B]`, whether this learner counts a row. Other rows are part of the returns, but another
                learner counts them. Defaults to all.
            place: Place of a shard in the whole rollout, see `Trajectories`. `share_returns` then gives the returns at
                its end to the other learners. None if these are all rows.
        """
        num_steps, num_envs = rewards.shape
        first_step, first_env, all_steps, all_envs = place or (0, 0, num_steps, num_envs)
        all_returns = self._returns.copy() if len(self._returns) == all_envs else np.zeros(all_envs)
        # A shard that begins within the rollout begins with an episode, whose return is zero.
        running = all_returns[first_env : first_env + num_envs] if first_step == 0 else np.zeros(num_envs)

        # A row that is not a transition keeps the running return: reward 0 and discount 1.
        if valid is None:
            step_rewards = rewards
            discounts = np.full(rewards.shape, self.gamma)
        else:
            step_rewards = np.where(valid, rewards, 0.0)
            discounts = np.where(valid, self.gamma, 1.0)
        continues = np.logical_not(dones)
        returns = np.empty((num_steps, num_envs))
        for t in range(num_steps):
            running = np.add(running * discounts[t], step_rewards[t], out=returns[t])
            running = running * continues[t]

        self._new_returns = None
        if first_step + num_steps == all_steps:
            all_returns[first_env : first_env + num_envs] = running
            self._new_returns = {"first": first_env, "returns": running}
        self._returns = all_returns

        if counting is None:
            counted_rows = valid
        elif valid is None:
            counted_rows = counting
        else:
            counted_rows = counting & valid
        moments = RunningMoments()
        counted = returns.reshape(-1) if counted_rows is None else returns[counted_rows]
        moments.update(counted)
        if self.bound is not None and counted.size:
            self.largest = max(self.largest, float(np.abs(counted).max()))
        return moments

    def normalize_tensors(self, rewards: torch.Tensor, dones: torch.Tensor, share: RowShare = ALL_ROWS) -> torch.Tensor:
        """Add rewards on a device to the statistics, and return them scaled, without making the host wait.

        The statistics change on the device only. `copy_from_device` copies them to the host.

        Args:
            rewards: `[T, B]`.
            dones: bool `[T, B]`, whether an episode ended with this step.
            share: The share of the environments that this rank has. With several ranks the host waits for the others.
        """
        num_envs = rewards.shape[1]
        self._share = share
        if self._on_device is None or len(self._on_device) != 3 + num_envs:
            self._on_device = torch.zeros(3 + num_envs, dtype=torch.float64, device=rewards.device)
            self.copy_to_device()
        count, mean, squares = self._on_device[:3]
        running = self._on_device[3:]
        returns = torch.empty(rewards.shape, dtype=torch.float64, device=rewards.device)
        for t in range(len(rewards)):
            returns[t].copy_(running.mul_(self.gamma).add_(rewards[t]))
            running.masked_fill_(dones[t], 0.0)

        # `RunningMoments.merge` in tensors, in place.
        number = returns.numel()
        new_mean = returns.mean()
        new_squares = (returns - new_mean).square_().sum()
        if share.number > 1:
            joined = _joined_moments(share, number, new_mean, new_squares)
            number = joined.count
            new_mean = new_mean.new_tensor(float(joined.mean))
            new_squares = new_squares.new_tensor(float(joined.squares))
        delta = new_mean - mean
        total = count + number
        squares.add_(new_squares + delta.square() * (count * (number / total)))
        mean.add_(delta * (number / total))
        count.copy_(total)
        factor = 1.0 / (squares / count + self.epsilon).sqrt()
        return self._scaled(rewards, factor.to(rewards.dtype))

    def add_on_device(self, moments: TensorMoments, largest: torch.Tensor) -> None:
        """Add running returns on a device to the statistics there. The host does not wait.

        `copy_from_device` copies the statistics to the host.

        Args:
            moments: Moments of the running returns.
            largest: Largest absolute running return, 0-d.
        """
        if self._moments_on_device is None:
            device = moments.numbers.device
            self._moments_on_device = TensorMoments((), device)
            self._largest_on_device = torch.zeros((), dtype=torch.float64, device=device)
            self.copy_to_device()
        self._moments_on_device.merge(moments)
        if self.bound is not None:
            self._largest_on_device.copy_(torch.maximum(self._largest_on_device, largest))

    def scale_on_device(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return rewards of any shape on a device, scaled with the statistics there; see `scale`."""
        assert self._moments_on_device is not None, "add_on_device comes first"
        divisor = (self._moments_on_device.var + self.epsilon).sqrt()
        if self.bound is not None:
            divisor = torch.maximum(divisor, self._largest_on_device / self.bound)
        scaled: torch.Tensor = self._scaled(rewards, (1.0 / divisor).to(rewards.dtype))
        return scaled

    def copy_from_device(self) -> None:
        """Copy the statistics that were changed on the device to the host, which waits for the device."""
        if self._moments_on_device is not None:
            self.moments = self._moments_on_device.read()
            self.largest = float(self._largest_on_device)
        if self._on_device is not None:
            numbers = self._on_device.cpu().numpy().copy()
            count, mean, squares = numbers[:3]
            self._returns = np.concatenate(self._share.gather(numbers[3:]))
            self.moments.set_state({"count": count, "mean": mean, "squares": squares})

    def copy_to_device(self) -> None:
        """Copy the statistics to the device, from which `normalize_tensors` and `add_on_device` continue."""
        if self._moments_on_device is not None:
            self._moments_on_device.write(self.moments)
            self._largest_on_device.fill_(self.largest)
        if self._on_device is not None:
            num_envs = len(self._on_device) - 3
            first = self._share.rank * num_envs
            fits = len(self._returns) == num_envs * self._share.number
            returns = self._returns[first : first + num_envs] if fits else np.zeros(num_envs)
            moments = [self.moments.count, self.moments.mean, self.moments.squares]
            numbers = np.concatenate([moments, returns])
            self._on_device.copy_(torch.from_numpy(numbers))

    def share_returns(self, gather: Callable[[Any], list[Any]]) -> None:
        """Exchange the running returns with the other learners, so that each has those of all environments.

        Args:
            gather: Function that returns the values that all learners pass to it.
        """
        for part in gather(self._new_returns):
            if part is not None:
                self._returns[part["first"] : part["first"] + len(part["returns"])] = part["returns"]

    def scale(self, rewards: np.ndarray) -> np.ndarray:
        """Return rewards of any shape, scaled with the current statistics, which do not change."""
        divisor = np.sqrt(float(self.moments.var) + self.epsilon)
        if self.bound is not None:
            divisor = max(divisor, self.largest / self.bound)
        factor = rewards.dtype.type(1.0 / divisor)
        scaled: np.ndarray = self._scaled(rewards, factor)
        return scaled

    def _scaled(self, rewards: Array, factor: Array) -> Array:
        """Return rewards (array or tensor) times a factor of the same dtype, clipped."""
        scaled = rewards * factor
        return scaled if self.clip is None else scaled.clip(-self.clip, self.clip)

    def get_state(self) -> dict[str, Any]:
        """Return the moments and the running returns."""
        state = {"moments": self.moments.get_state(), "returns": self._returns.copy()}
        return state if self.bound is None else {**state, "largest": self.largest}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        moments = RunningMoments()
        moments.set_state(state["moments"])
        self.moments = moments
        self._returns = np.array(state["returns"], dtype=np.float64)
        self.largest = float(state.get("largest", 0.0))
        self.copy_to_device()


def _joined_moments(share: RowShare, number: int, mean: torch.Tensor, squares: torch.Tensor) -> RunningMoments:
    """Return the moments of the returns of all ranks, for the moments of the returns of this one."""
    joined = RunningMoments()
    for part in share.gather({"number": number, "mean": float(mean), "squares": float(squares)}):
        joined.merge(RunningMoments.of(int(part["number"]), np.asarray(part["mean"]), np.asarray(part["squares"])))
    return joined


@dataclass
class ModuleConnectors:
    """All transforms around one network: of observations, actions, rewards and train columns.

    Their statistics are frozen while a rollout is collected and learned from. `update` changes them once, after the
    gradient steps, so that the policy that acted and the policy that is compared with it see the same numbers.
    """

    obs: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    """Connectors of observations, applied when acting and whenever stored rows are read."""
    rewards: NormalizeRewards | None = None
    """Normalisation of rewards, or None."""
    actions: ActionPipeline | None = None
    """Connectors from the module's actions to the environment's. None if both are the same."""
    recorded: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    """Connectors of observations before `obs`, applied once when data are collected, so that their output is stored.
    Each collector has a copy, because of their memory."""
    learner: tuple[Connector, ...] = ()
    """Connectors from the recorded train columns to the columns that the loss reads."""
    symmetry: Symmetry | None = None
    """Mirror images of observations and actions. None without `training(symmetry=f)`."""
    mirrored_columns: tuple[str, ...] = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
    """Columns whose mirror images the loss reads, if there is a symmetry."""
    join: Callable[[RunningMoments], RunningMoments] | None = None
    """With several learners, the function from the moments of this one's rows to those of all rows."""
    gather: Callable[[Any], list[Any]] | None = None
    """With several learners, the function that returns the values that all of them pass to it."""

    @property
    def acting_names(self) -> tuple[str, ...]:
        """Class names of the connectors that acting needs: those of observations and of actions."""
        names = [connector.class_name for connector in (*self.recorded.connectors, *self.obs.connectors)]
        if self.actions is not None:
            names += [type(connector).__name__ for connector in self.actions.connectors]
        return tuple(names)

    @property
    def num_frames(self) -> int:
        """Number of frames in the stacks `[frames, ...]` that are stored, or 1 if there are none."""
        if not self.recorded.connectors:
            return 1
        return self.recorded.connectors[-1].num_stored_frames

    def train_columns(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the train columns (tensors) after the connectors of `learner`.

        Raises:
            ValueError: A connector does not return columns of the same rows.
        """
        if not self.learner:
            return columns
        # Mirror images pass the same connectors, as rows of their own.
        images = {name: column for name, column in columns.items() if name.startswith(MIRRORED)}
        rows = {name: column for name, column in columns.items() if name not in images}
        transformed = self._transformed(rows)
        if images:
            changed = {name.removeprefix(MIRRORED): column for name, column in images.items()}
            image_rows = self._transformed({**rows, **changed})
            transformed |= {name: image_rows[name.removeprefix(MIRRORED)] for name in images}
        return transformed

    def _transformed(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of rows after the connectors of `learner`."""
        number = len(columns[Columns.REWARDS])
        for connector in self.learner:
            columns = connector(columns)
            if not isinstance(columns, dict) or {len(each) for each in leaves(columns)} != {number}:
                raise ValueError(
                    f"training.learner_connector: {type(connector).__name__} must return a dict of columns, each of "
                    f"the {number} rows that it was given"
                )
        return columns

    def images(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns with the mirror images of rows; empty without a symmetry.

        Args:
            columns: Stored observations (`obs` `[N, ...]`, perhaps `new_obs`) and the policy's `actions`, as arrays or
                as tensors.

        Returns:
            `mirrored_obs`, `mirrored_new_obs` and `mirrored_actions`, as inputs of the network and of its losses.
        """
        images: dict[str, Any] = {}
        if self.symmetry is None:
            return images
        for name in self.mirrored_columns:
            if name not in columns:
                continue
            if name == Columns.ACTIONS:
                mirrored = self.symmetry.actions(columns[name], columns[Columns.OBS])
            else:
                mirrored = self.obs(self.symmetry.observations(columns[name]))
            images[MIRRORED + name] = mirrored
        return images

    def with_images(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return train columns, whose observations are inputs of the network, with the columns of their mirror images.

        Raises:
            ValueError: The images are missing, and cannot be computed from the outputs of connectors.
        """
        if self.symmetry is None or all(MIRRORED + name in columns for name in self.mirrored_columns):
            return columns
        obs = columns[Columns.OBS]
        if self.obs.makes_pairs and isinstance(obs, tuple):
            # A pair contains the mirror image, whose own mirror image is the original.
            pairs = {name: columns[name] for name in (Columns.OBS, Columns.NEXT_OBS) if name in columns}
            images = {MIRRORED + name: pair[::-1] for name, pair in pairs.items()}
            images[MIRRORED + Columns.ACTIONS] = self.symmetry.actions(columns[Columns.ACTIONS], obs[0])
            return {**columns, **images}
        if not self.obs.is_identity:
            raise ValueError(
                f"the batch has no mirror images (column {MIRRORED + Columns.OBS!r}), and its observations are outputs "
                "of connectors; policy.learning_columns(batch) makes both from stored observations, or learn from "
                "episodes"
            )
        return {**columns, **self.images(columns)}

    def learning_rewards(self, trajectories: Trajectories) -> np.ndarray:
        """Add rewards to the statistics, and return the scaled ones `[T, B]` for the estimator of advantages."""
        if self.rewards is None:
            return trajectories.rewards
        moments = self.rewards.moments_of(
            trajectories.rewards, trajectories.dones, trajectories.valid, trajectories.owned, trajectories.place
        )
        if self.gather is not None:
            self.rewards.share_returns(self.gather)
        self.rewards.moments.merge(moments if self.join is None else self.join(moments))
        return self.rewards.scale(trajectories.rewards)

    def learning_rewards_on_device(self, rollout: TensorRollout) -> torch.Tensor:
        """Add the rewards of a rollout on a device to the statistics, and return the scaled ones `[T, B]`.

        The host does not wait for the device. Sums are taken in another order than in `learning_rewards`, so the last
        digits differ.
        """
        return (
            rollout.rewards
            if self.rewards is None
            else self.rewards.normalize_tensors(rollout.rewards, rollout.cuts, rollout.share)
        )

    # -- statistics over a replay buffer on a device ---

    def new_rows_on_device(self, num_steps: int, num_envs: int, device: torch.device) -> NewRows | None:
        """Return an object that takes the rows of a replay buffer for `add_new_rows`; None without statistics.

        Args:
            num_steps: Number of vector steps of a collect.
            num_envs: Number of environments.
            device: The device of the rows.
        """
        normalizer = self._normalizer_on_device()
        if normalizer is None and self.rewards is None:
            return None
        gamma = None if self.rewards is None else self.rewards.gamma
        if normalizer is None:
            return NewRows(lambda obs: [], [], gamma, num_steps, num_envs, device)
        shapes = [moments.shape for moments in normalizer.moments]
        return NewRows(normalizer.normalized_leaves, shapes, gamma, num_steps, num_envs, device)

    def add_new_rows(self, new_rows: NewRows) -> None:
        """Add rows on a device to the statistics there, and remove them from `new_rows`. The host does not wait."""
        normalizer = self._normalizer_on_device()
        if normalizer is not None:
            normalizer.add_on_device(new_rows.obs)
        if self.rewards is not None:
            self.rewards.add_on_device(new_rows.returns, new_rows.largest)
        new_rows.clear()

    def copy_from_device(self) -> None:
        """Copy the statistics that were changed on a device to the host, which waits for it."""
        normalizer = self._normalizer_on_device()
        if normalizer is not None:
            normalizer.copy_from_device()
        if self.rewards is not None:
            self.rewards.copy_from_device()

    def copy_to_device(self) -> None:
        """Replace the statistics on a device by the statistics of the host."""
        normalizer = self._normalizer_on_device()
        if normalizer is not None:
            normalizer.copy_to_device()
        if self.rewards is not None:
            self.rewards.copy_to_device()

    def _normalizer_on_device(self) -> NormalizeObs | None:
        """Return the connector whose statistics are computed on a device: the first one, which gets raw observations.

        None if observations have no statistics.
        """
        return cast(NormalizeObs, self.obs.connectors[0]) if self.obs.has_statistics else None

    def update(self, flat_obs: Tree, rows: np.ndarray | None, *, joined: bool = True) -> None:
        """Add the environment's observations to the statistics of observations.

        Args:
            flat_obs: Observations `[N, ...]`.
            rows: Indices or flags `[N]` of the rows to add. None adds all.
            joined: Whether each of several learners has other rows. If all have the same rows, there is nothing to
                join.
        """
        self.obs.update(flat_obs, rows, self.join if joined else None)

    def get_state(self) -> dict[str, Any]:
        """Return the statistics of observations and rewards."""
        return {"obs": self.obs.get_state(), "rewards": optional_state(self.rewards)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.obs.set_state(state["obs"])
        if self.rewards is not None:
            self.rewards.set_state(state["rewards"])
