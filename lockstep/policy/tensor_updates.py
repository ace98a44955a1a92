"""Gradient steps of a policy on samples of a replay buffer on the learner's device."""

from __future__ import annotations

import time
from typing import Any, Protocol

from lockstep.learner.group import LearnerGroup
from lockstep.learner.minibatches import UpdateOptions
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.options.checks import check_whole
from lockstep.replay import TensorReplay
from lockstep.tracking.statistics import TrainingStats
from lockstep.tracking.totals import merge_training_stats

MAX_STEPS_PER_DRAW = 64
"""Largest number of gradient steps whose samples are drawn at once. A prioritised buffer draws the sample of each step
by itself, because a step changes the priorities."""
MAX_BYTES_PER_DRAW = 2**29
"""Largest size in bytes of samples that are drawn at once on a device for several gradient steps."""


class TensorLearningPolicy(Protocol):
    """The part of `Policy` that updates from a `TensorReplay` use. A protocol, because `Policy` imports this
    module."""

    learner_group: LearnerGroup
    timesteps: dict[str, int]

    def training_stats(self, results: dict[str, Any], started: float) -> TrainingStats:
        """Return the statistics of an update with these results, which began at `started` (`time.perf_counter`)."""
        ...


def update_from_tensors(
    policy: TensorLearningPolicy, sample_size: int, buffer: TensorReplay, steps: int
) -> TrainingStats:
    """Take gradient steps, each on a new sample, and return their statistics.

    One launch takes as many steps as `steps_per_draw` returns. `launch_update` may have begun the first launch already.

    Args:
        policy: The policy.
        sample_size: Number of transitions of a sample.
        buffer: The replay buffer.
        steps: Number of gradient steps.

    Raises:
        ValueError: The buffer is empty, or `sample_size` or `steps` is not a whole number above 0.
    """
    check_whole("repeat", steps, 1)
    check_whole("sample_size", sample_size, 1)
    if len(buffer) == 0:
        raise ValueError("the replay buffer is empty; collect before the update")
    learner = policy.learner_group.learner
    steps_per_launch = steps_per_draw(sample_size, buffer)
    stats: list[TrainingStats] = []
    for start in range(0, steps, steps_per_launch):
        started = time.perf_counter()
        num_steps = min(steps_per_launch, steps - start)
        results = learner.device_update.run_steps(buffer, num_steps, sample_size, UpdateOptions(policy.timesteps))
        # The first launch may have begun before this call.
        seconds = results[ALL_MODULES]["seconds_gradient_steps"]
        stats.append(policy.training_stats(results, min(started, time.perf_counter() - seconds)))
    return stats[0] if len(stats) == 1 else merge_training_stats(stats)


def launch_update(policy: TensorLearningPolicy, sample_size: int, buffer: TensorReplay, steps: int) -> None:
    """Begin the first launch of the next `update_from_tensors` with the same arguments, without waiting for it."""
    num_steps = min(steps_per_draw(sample_size, buffer), steps)
    options = UpdateOptions(policy.timesteps)
    policy.learner_group.learner.device_update.launch_steps(buffer, num_steps, sample_size, options)


def steps_per_draw(sample_size: int, buffer: TensorReplay) -> int:
    """Return the number of gradient steps whose samples are drawn at once."""
    return min(MAX_STEPS_PER_DRAW, max(1, MAX_BYTES_PER_DRAW // (sample_size * buffer.row_bytes)))
