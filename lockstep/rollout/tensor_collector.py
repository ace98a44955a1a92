"""`TensorCollector`: collects steps of tensor environments on their device, as one CUDA graph for each collect."""

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
    """Collector of tensor environments, which stores steps on their device without a copy to the host.

    Every collect takes the same number of vector steps. On a CUDA device, and if the environments' operations can be
    captured, the first two collects warm up, the third one captures the steps in a CUDA graph, and later collects are
    one launch. Only the returns and lengths of ended episodes are copied to the host.

    `collect` raises `ValueError` for another amount, for episodes, and for random actions into a rollout.

    Args:
        policy: Policy that acts by sampling from its distribution, or with an exploration that draws on a device. If it
            has a memory, it learns from rollouts (`replay` is None), and its module `reads_begins`.
        env: The environments, on the device of the policy's network.
        num_steps: Number of vector steps of each collect.
        exploration_noise: Whether actions are sampled outside a training step too.
        raise_on_nan_in_buffer: Whether values that are not finite raise `MalformedBufferError`.
        replay: Options of a `TensorReplay` to store steps in, such as `capacity`, `n_step`, `gamma` and `hindsight`.
            Defaults to a `TensorRollout`.
        seed: Seed of the collector's random streams.
        streams: Random streams, instead of `seed`.
        share: The part of all environments that this rank has, if several ranks (processes) share them. Each rank has
            a collector, and all ranks make the same calls. Rows, actions, statistics and state then equal the results
            of one collector with all environments.

    Raises:
        ValueError: Several ranks share the environments, and these do not draw random numbers for the rows of all ranks
            (as `TensorEnv.draw` does, so that a row gets the same numbers with any number of ranks); or the
            environments and the network are on different devices.
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
        """Number of vector steps of each collect."""
        return self.stepper.num_steps

    @property
    def tensors(self) -> TensorVecEnv:
        """The environments, without their boundary."""
        return self.stepper.tensors

    @property
    def share(self) -> RowShare:
        """The part of all environments that this rank has."""
        return self.stepper.share
