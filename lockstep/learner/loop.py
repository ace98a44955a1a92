"""The loop around the gradient step: hooks, passes, minibatches, seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch

from lockstep.data.trajectories import Trajectories, num_rows_of
from lockstep.learner.means import any_learner, counts_over_learners
from lockstep.learner.minibatches import gather, module_minibatches, num_rows_in, step_counter
from lockstep.learner.noise import with_noise
from lockstep.learner.onpolicy import FirstValues
from lockstep.learner.plan import Agreement, plan_update
from lockstep.learner.results import Results
from lockstep.learner.summary import StepCounts, summarize_update, tell_rows_left_out
from lockstep.state.checks import check_flags, check_whole, suggestion

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns


NUMBERS = (int, float, np.integer)


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How often and in which pieces a batch is gone through."""

    timesteps: Mapping[str, int] = field(default_factory=dict)
    """for schedules and hooks, e.g. `{"num_env_steps_sampled_lifetime": 40_000}`"""
    num_epochs: int = 1
    """complete passes"""
    minibatch_size: int | None = None
    """rows of the largest module in one gradient step; `None`: all"""
    shuffle_batch_per_epoch: bool = False
    """a new permutation for each pass; ignored where `minibatch_size` is None"""

    def __post_init__(self) -> None:
        check_whole("num_epochs", self.num_epochs, 1)
        check_whole("minibatch_size", self.minibatch_size, 1, optional=True)
        check_flags(shuffle_batch_per_epoch=self.shuffle_batch_per_epoch)
        steps: Mapping[Any, Any] = self.timesteps if isinstance(self.timesteps, (dict, Mapping)) else {"": None}
        for name, value in steps.items():
            if not isinstance(value, NUMBERS) or value is True or not isinstance(name, str):
                raise TypeError(
                    "timesteps must be a dict such as {'num_env_steps_sampled_lifetime': 40_000}, "
                    f"not {self.timesteps!r}"
                )
            if not 0 <= value < math.inf:
                raise ValueError(f"timesteps={self.timesteps!r} is not allowed; steps are finite, at least 0")


class UpdateKeywords(TypedDict, total=False):
    """The keywords of `update_from_batch` and `update_from_episodes`; see `UpdateOptions`."""

    timesteps: Mapping[str, int] | None
    num_epochs: int
    minibatch_size: int | None
    shuffle_batch_per_epoch: bool


def update_options(given: UpdateKeywords) -> UpdateOptions:
    """The checked options; `TypeError` for an unknown keyword, with those that exist."""
    known = UpdateKeywords.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"an update has no option {name!r}; {suggestion(name, known)}")
    options = {name: value for name, value in given.items() if not (name == "timesteps" and value is None)}
    return UpdateOptions(**options)  # type: ignore[arg-type]


@dataclass(slots=True)
class StageSeconds:
    """Seconds of the stages of one update call. A compiled gradient step is one stage: forward and backward."""

    pipeline: float = 0.0
    forward_backward: float = 0.0
    reduction: float = 0.0
    step: float = 0.0


def run_update(
    learner: Learner,
    columns: dict[str, TensorColumns],
    agreed: Agreement,
    options: UpdateOptions,
    trajectories: Mapping[str, Trajectories],
) -> Results:
    """All gradient steps of one update call on `columns` by module; returns the results.

    `trajectories`: by module, what the columns were made from (if anything); statistics take them in at the end.
    """
    started = time.perf_counter()
    plan = plan_update(learner, columns, agreed.stand_ins, trajectories)
    columns = with_noise(learner, columns, plan)
    learner.before_gradient_based_update(timesteps=options.timesteps)
    learner.begin_watch()
    trained = dict.fromkeys(columns, 0)
    shuffle = options.shuffle_batch_per_epoch and options.minibatch_size is not None
    rng = learner.streams.numpy("minibatches")
    num_steps = step_counter(columns, plan.num_own_rows)
    passes, num_minibatches, before, num_rows_used = 0, 0, 0, 0
    values = FirstValues(learner, {} if trajectories else columns)
    for indices, ends_pass in module_minibatches(
        plan.num_rows, options.minibatch_size, options.num_epochs, shuffle, rng
    ):
        rows, stand_ins = plan.own_rows(indices)
        run_minibatch(learner, columns, rows, stand_ins)
        if passes == 0:
            values.add(rows, stand_ins)
        learner.metrics.end_step()
        num_minibatches += 1
        num_rows_used += num_rows_in(indices, plan.num_rows)
        for module_id, index in rows.items():
            trained[module_id] += 0 if module_id in stand_ins else num_steps(module_id, index)
        if ends_pass:
            passes += 1
            learner.metrics.end_pass(num_minibatches - before)
            before = num_minibatches
            if passes < options.num_epochs and any_learner(learner.reducer, learner.should_stop_passes()):
                break
    learner.weights_seq_no += 1
    learner.after_gradient_based_update(timesteps=options.timesteps)
    for module_id, part in trajectories.items():
        learner.rows_in_step = agreed.num_own_rows(module_id)
        learner.connectors[module_id].update(part.flat_obs(), part.rows())
    values.log_explained_variance()
    num_rows = sum(plan.num_rows.values())
    steps = StepCounts(num_minibatches, passes, agreed.env_steps * passes, num_rows * passes - num_rows_used)
    trained = counts_over_learners(learner.reducer, trained)
    tell_rows_left_out(learner, steps, num_rows, options.minibatch_size, shuffle)
    return summarize_update(learner, trained, steps, time.perf_counter() - started)


def run_minibatch(
    learner: Learner,
    columns: dict[str, TensorColumns],
    indices: Mapping[str, np.ndarray | None],
    stand_ins: frozenset[str],
) -> None:
    """One gradient step on the learner's rows `indices`, compiled where that was asked for.

    `stand_ins`: modules whose row is there only to keep the learner in step with the others.
    """
    learner.stand_ins = stand_ins
    learner.rows_in_step = 0
    tensors: dict[str, Any] = {}
    for module_id, index in indices.items():
        tensors[module_id] = None if index is None else torch.from_numpy(index).to(learner.device)
        if module_id not in stand_ins:
            one = next(iter(columns[module_id].values())) if index is None else index
            learner.rows_in_step += num_rows_of(one)
    started = time.perf_counter()
    if learner.compiled is not None and learner.compiled.run(columns, tensors):
        learner.seconds.forward_backward += time.perf_counter() - started
    else:
        learner._update(gather(columns, tensors))
    learner.after_gradient_step()
