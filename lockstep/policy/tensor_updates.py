"""A policy's gradient steps on samples of a replay buffer that lies on its learner's device."""

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

MOST_STEPS = 64
"""gradient steps whose samples are drawn together where the order of drawing and learning changes nothing"""
MOST_BYTES = 2**29
"""of all these samples on a device, where there are several"""


class TensorLearningPolicy(Protocol):
    """A policy, as far as its updates from a tensor replay know it (`Policy`, which is above this file)."""

    learner_group: LearnerGroup
    timesteps: dict[str, int]

    def training_stats(self, results: dict[str, Any], started: float) -> TrainingStats:
        """Return statistics of the update that gave `results` and began at `started` (`time.perf_counter`)."""
        ...


def update_from_tensors(
    policy: TensorLearningPolicy, sample_size: int, buffer: TensorReplay, steps: int
) -> TrainingStats:
    """Take gradient steps, each on a fresh sample, and return their statistics.

    As many are one launch as `steps_at_once` says. The first launch may be under way, see `launch_update`.

    Raises:
        ValueError: an empty buffer, no sample size, or no steps.
    """
    check_whole("repeat", steps, 1)
    check_whole("sample_size", sample_size, 1)
    if len(buffer) == 0:
        raise ValueError("the replay buffer is empty; collect before the update")
    learner, parts = policy.learner_group.learner, []
    at_once = steps_at_once(sample_size, buffer)
    for start in range(0, steps, at_once):
        started, now = time.perf_counter(), min(at_once, steps - start)
        results = learner.device_update.run_steps(buffer, now, sample_size, UpdateOptions(policy.timesteps))
        seconds = results[ALL_MODULES]["seconds_gradient_steps"]  # longer, where it was launched before
        parts.append(policy.training_stats(results, min(started, time.perf_counter() - seconds)))
    return parts[0] if len(parts) == 1 else merge_training_stats(parts)


def launch_update(policy: TensorLearningPolicy, sample_size: int, buffer: TensorReplay, steps: int) -> None:
    """Begin the first launch of the update that `update_from_tensors` is called for next, and do not wait for it."""
    now, options = min(steps_at_once(sample_size, buffer), steps), UpdateOptions(policy.timesteps)
    policy.learner_group.learner.device_update.launch_steps(buffer, now, sample_size, options)


def steps_at_once(sample_size: int, buffer: TensorReplay) -> int:
    """Return how many gradient steps draw their samples together."""
    return min(MOST_STEPS, max(1, MOST_BYTES // (sample_size * buffer.row_bytes)))
