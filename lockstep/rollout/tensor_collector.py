"""`TensorCollector`: collects steps of tensor environments on their device, in one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.envs.tensor import TensorBoundary, TensorVecEnv
from lockstep.rollout.base_collector import BaseCollector, resolve_streams
from lockstep.rollout.protocols import ActingLike
from lockstep.rollout.tensor_stepper import TensorStepper
from lockstep.state.streams import RandomStreams


class TensorCollector(BaseCollector):
    """Steps tensor environments and writes what happens into a `TensorRollout`, or into a `TensorReplay`, without a
    copy to the host.

    Every collect takes the same number of vector steps; on a CUDA device that can hold them in a graph the third and
    all later ones are one launch. Only returns and lengths of the episodes that ended are copied to the host.
    `collect` raises `ValueError` for another amount, for episodes, and for random actions into a rollout.

    Args:
        policy: acts by drawing from its distribution, or by an exploration that draws on a device; without memory.
        env: the environments, on the device of the policy's network.
        num_steps: vector steps of each collect.
        replay: `capacity`, `n_step` and `gamma` of a `TensorReplay`; None: a rollout.
        share: which of the environments of several ranks these are. Each rank has a collector, and all make the same
            calls: rows, actions and statistics are those of one collector with the environments of all, and so is its
            state. `ValueError` for environments that do not draw by rows (`TensorEnv` does).
    """

    launches_updates = True
    stepper: TensorStepper

    def __init__(
        self,
        policy: ActingLike,
        env: TensorBoundary,
        num_steps: int,
        exploration_noise: bool = False,
        raise_on_nan_in_buffer: bool = True,
        *,
        replay: Mapping[str, Any] | None = None,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        share: RowShare = ALL_ROWS,
    ) -> None:
        stepper = TensorStepper(policy, env, resolve_streams(seed, streams), num_steps, replay, share)
        super().__init__(
            stepper,
            stepper.buffer,
            exploration_noise=exploration_noise,
            epsilon=0.0,
            raise_on_nan_in_buffer=raise_on_nan_in_buffer,
            on_step_hook=None,
            on_episode_done_hook=None,
            is_seeded=seed is not None or streams is not None,
            whole_episodes=False,
        )

    @property
    def num_steps(self) -> int:
        """Vector steps of each collect."""
        return self.stepper.num_steps

    @property
    def tensors(self) -> TensorVecEnv:
        """The environments on their device."""
        return self.stepper.tensors

    @property
    def share(self) -> RowShare:
        """Which of the environments of several ranks these are."""
        return self.stepper.share
