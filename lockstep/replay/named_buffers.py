"""`ReplayBuffer` by the names under which its combinations are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from lockstep.replay.buffer import Options, ReplayBuffer
from lockstep.replay.hindsight import GoalFunction, Hindsight
from lockstep.state import ScheduleLike


class VectorReplayBuffer(ReplayBuffer):
    """One sub-buffer of `total_size / buffer_num` rows (rounded up) for each environment of a vector.

    Further options as `ReplayBuffer`.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        *,
        priorities: Mapping[str, Any] | None = None,
        hindsight: Hindsight | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Rows are drawn in proportion to their errors to the power of `alpha`; see `Priorities`.

    `beta` is a number or a schedule over the number of rows added. Further options as `ReplayBuffer`.
    """

    def __init__(
        self,
        size: int,
        alpha: float = 0.6,
        beta: ScheduleLike = 0.4,
        *,
        epsilon: float = 1e-6,
        buffer_num: int = 1,
        hindsight: Hindsight | None = None,
        **options: Unpack[Options],
    ) -> None:
        priorities = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
        super().__init__(size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class PrioritizedVectorReplayBuffer(ReplayBuffer):
    """`VectorReplayBuffer` with the drawing of `PrioritizedReplayBuffer`."""

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        alpha: float = 0.6,
        beta: ScheduleLike = 0.4,
        *,
        epsilon: float = 1e-6,
        hindsight: Hindsight | None = None,
        **options: Unpack[Options],
    ) -> None:
        priorities = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class HERReplayBuffer(ReplayBuffer):
    """A share of what is drawn gets a goal that was reached; see `Hindsight`.

    `compute_reward(achieved_goal [M, ...], desired_goal [M, ...], info)` gives rewards [M]. Further options as
    `ReplayBuffer`.
    """

    def __init__(
        self,
        size: int,
        compute_reward: GoalFunction,
        *,
        future_k: float = 4.0,
        strategy: str = "future",
        compute_terminated: GoalFunction | None = None,
        buffer_num: int = 1,
        priorities: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class HERVectorReplayBuffer(ReplayBuffer):
    """`VectorReplayBuffer` with the goals of `HERReplayBuffer`."""

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        compute_reward: GoalFunction,
        *,
        future_k: float = 4.0,
        strategy: str = "future",
        compute_terminated: GoalFunction | None = None,
        priorities: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)
