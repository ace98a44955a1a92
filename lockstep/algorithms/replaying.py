"""How a policy learns from a replay buffer: gradient steps on fresh samples, new priorities."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from lockstep.data.columns import Columns
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.trees import leaves
from lockstep.learner.learner import Learner
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.replay import MultiAgentReplayBuffer, OfflineRows, ReplayBuffer
from lockstep.tracking.statistics import TrainingStats, merge_training_stats

if TYPE_CHECKING:
    from lockstep.algorithms.acting import ActingPolicy
    from lockstep.algorithms.multi_agent_policy import AnyPolicy, MultiAgentPolicy
    from lockstep.algorithms.policy import Policy

MOST_STEPS = 64
"""gradient steps whose samples are drawn together where the order of drawing and learning changes nothing"""
MOST_BYTES = 2**27
"""of the observations of all these samples, where there are several"""
UNUSED = (Columns.BATCH_INDEXES, Columns.TRUNCATEDS)


def update_from_replay(
    policy: Policy, sample_size: int, buffer: ReplayBuffer | OfflineRows, batch_size: int | None, repeat: int | None
) -> TrainingStats:
    """`repeat` gradient steps (None: one), each on a fresh sample of `sample_size` transitions; 0: on all of them.

    The statistics are of all steps. A prioritised buffer gets the errors of each step before the next sample is drawn.
    Raises `ValueError` for an empty buffer and for a `batch_size` other than `sample_size`.
    """
    steps = _checked_steps(sample_size, batch_size, repeat)
    at_once = 1 if buffer.priorities is not None else _steps_at_once(steps, sample_size, [policy])
    parts: list[TrainingStats] = []
    bad: SampleBatch | None = None
    for start in range(0, steps, at_once):
        now = min(at_once, steps - start)
        batch = buffer.sample(now * sample_size) if sample_size else buffer[buffer.permutation()]
        policy.last_batch = batch
        started = time.perf_counter()
        results = policy.learner_group.update_from_batch(
            _needed(policy, batch), timesteps=policy.timesteps, minibatch_size=sample_size or None
        )
        parts.append(policy.training_stats(results, started))
        if bad is None and parts[-1].first_bad_step is not None:
            size, number = len(batch) // now, parts[-1].first_bad_step
            bad = batch[(number - 1) * size : number * size]
        if isinstance(buffer, ReplayBuffer) and buffer.priorities is not None:
            _update_priorities(policy, DEFAULT_MODULE_ID, buffer, batch)
    policy.last_batch = policy.last_batch if bad is None else bad
    return parts[0] if len(parts) == 1 else merge_training_stats(parts)


def update_modules_from_replay(
    policy: MultiAgentPolicy,
    sample_size: int,
    buffer: MultiAgentReplayBuffer,
    batch_size: int | None,
    repeat: int | None,
) -> TrainingStats:
    """As `update_from_replay`, of several modules: each gradient step is one of all of them, on a sample of each."""
    steps = _checked_steps(sample_size, batch_size, repeat)
    at_once = 1 if buffer.is_prioritized else _steps_at_once(steps, sample_size, policy.acting.values())
    parts: list[TrainingStats] = []
    bad: MultiAgentBatch | None = None
    for start in range(0, steps, at_once):
        now = min(at_once, steps - start)
        batches = buffer.sample(now * sample_size)
        policy.last_batch = MultiAgentBatch(batches, max(map(len, batches.values())))
        started = time.perf_counter()
        needed = {module_id: _needed(policy.acting[module_id], batch) for module_id, batch in batches.items()}
        results = policy.learner_group.update_from_batch(
            MultiAgentBatch(needed, len(policy.last_batch)),
            timesteps=policy.timesteps,
            minibatch_size=sample_size or None,
        )
        parts.append(policy.training_stats(results, started))
        for module_id, batch in batches.items():
            own = buffer.buffers[module_id]
            if own.priorities is not None and module_id in results:
                _update_priorities(policy, module_id, own, batch)
        if bad is None and parts[-1].first_bad_step is not None:
            bad = policy.last_batch
    policy.last_batch = policy.last_batch if bad is None else bad
    return parts[0] if len(parts) == 1 else merge_training_stats(parts)


def _checked_steps(sample_size: int, batch_size: int | None, repeat: int | None) -> int:
    """The number of gradient steps; `ValueError` for numbers that are not allowed."""
    steps = 1 if repeat is None else repeat
    for name, value, least in (("sample_size", sample_size, 0), ("repeat", steps, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least {least}")
    if batch_size not in (None, sample_size):
        raise ValueError(
            f"batch_size={batch_size}: a gradient step takes a whole sample of {sample_size}; leave it out"
        )
    return steps


def _steps_at_once(steps: int, sample_size: int, acting: Iterable[ActingPolicy]) -> int:
    """Of so many gradient steps, those whose samples are drawn together; the same in each run of one configuration."""
    if steps == 1 or not sample_size:
        return 1
    rows = ((create_empty_array(one.observation_space), one.config.environment.frame_stack) for one in acting)
    row = sum(2 * frames * sum(leaf.nbytes for leaf in leaves(obs)) for obs, frames in rows)
    return min(MOST_STEPS, max(1, MOST_BYTES // (sample_size * row)))


def _needed(acting: ActingPolicy, batch: SampleBatch) -> SampleBatch:
    """The columns that are learned from, observations as the network sees them."""
    needed = {name: column for name, column in batch.items() if name not in UNUSED}
    if not acting.connectors.obs.is_identity:
        seen = (name for name in (Columns.OBS, Columns.NEXT_OBS) if name in needed)
        needed |= {name: acting.connectors.obs(needed[name]) for name in seen}
    return SampleBatch.trusted(needed)


def _update_priorities(policy: AnyPolicy, module_id: str, buffer: ReplayBuffer, batch: SampleBatch) -> None:
    errors = np.concatenate(policy.learner_group.foreach_learner(_row_errors, module_id))
    sound = np.isfinite(errors)  # what is done about the others, nan_policy says
    if sound.any():
        buffer.update_weight(batch[Columns.BATCH_INDEXES][sound], errors[sound])


def _row_errors(learner: Learner, module_id: str) -> Any:
    """Errors [N] of the learner's rows in the last gradient step."""
    if module_id not in learner.row_errors:
        raise ValueError(
            f"{type(learner).__name__} leaves no errors for the priorities; set self.row_errors[module_id] in its loss"
        )
    errors = learner.row_errors[module_id].cpu().numpy()
    return errors[:0] if module_id in learner.stand_ins else errors
