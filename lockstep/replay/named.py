"""The buffers by the names under which they are known: the same `ReplayBuffer` with its parts chosen."""

from __future__ import annotations

from typing import Any

from lockstep.replay.buffer import ReplayBuffer
from lockstep.replay.hindsight import GoalFunction, Hindsight
from lockstep.state import ScheduleLike


class VectorReplayBuffer(ReplayBuffer):
    """One sub-buffer of `total_size / buffer_num` rows (rounded up) for each environment of a vector.

    Further options as `ReplayBuffer`.
    """

    def __init__(self, total_size: int, buffer_num: int, **options: Any) -> None:
        super().__init__(total_size, buffer_num=buffer_num, **options)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Rows are drawn in proportion to their errors to the power of `alpha`; see `Priorities`.

    `beta` is a number or a schedule over the number of rows added. Further options as `ReplayBuffer`.
    """

    def __init__(
        self, size: int, alpha: float = 0.6, beta: ScheduleLike = 0.4, *, epsilon: float = 1e-6, **options: Any
    ) -> None:
        super().__init__(size, priorities={"alpha": alpha, "beta": beta, "epsilon": epsilon}, **options)


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
        **options: Any,
    ) -> None:
        priorities = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, **options)


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
        **options: Any,
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(size, hindsight=hindsight, **options)


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
        **options: Any,
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(total_size, buffer_num=buffer_num, hindsight=hindsight, **options)
