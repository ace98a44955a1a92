"""What an update call reports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockstep.learner.optimizers import ALL_MODULES, RegisteredOptimizer
from lockstep.learner.results import Results, UpdateMetrics

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


class StepCounts(NamedTuple):
    """What an update call did, over all learners."""

    num_minibatches: int
    num_passes: int
    env_steps: int
    """each counted once for each pass"""
    num_rows_left_out: int
    """rows that filled no minibatch, over all passes"""


def summarize_update(learner: Learner, trained: Mapping[str, int], steps: StepCounts, seconds: float) -> Results:
    """Plain numbers by module, and under `ALL_MODULES` those of the whole call.

    `trained`: rows by module; `seconds`: of all gradient steps.
    Raises `FloatingPointError` where `nan_policy="stop"` and a gradient was not finite.
    """
    num_minibatches, passes, env_steps, left_out = steps
    metrics, learner.metrics = learner.metrics, UpdateMetrics()
    stages, learner.seconds = learner.seconds, type(learner.seconds)()
    for entry in learner.optimizers:
        if not entry.on_host:  # comes to the host with the metrics
            metrics.log(entry.module_id, {_bad_gradients(entry): entry.bad_steps.clone()}, 1)
            entry.bad_steps.zero_()
    results = metrics.reduce(learner.reducer)
    for module_id, rows in trained.items():
        numbers = results.setdefault(module_id, {})
        numbers.setdefault("diff_num_grad_updates_vs_sampler_policy", 0)  # where the data do not say
        numbers.update(
            num_module_steps_trained=rows,
            num_module_steps_trained_lifetime=learner.count(f"{module_id}/rows", rows),
            module_train_batch_size_mean=rows / num_minibatches,
            weights_seq_no=learner.weights_seq_no,
            num_trainable_parameters=learner.module.num_trainable_parameters(module_id),
        )
    if unreached := learner.gradient_watch.end(learner, trained, num_minibatches):
        results[ALL_MODULES]["parameters_without_gradient"] = unreached
    bad = 0
    for entry in learner.optimizers:
        _tell_zero_rate(learner, entry, trained)
        numbers = results.setdefault(entry.module_id, {})
        numbers[f"{entry.name}_learning_rate"] = entry.optimizer.param_groups[0]["lr"]
        if not entry.on_host:
            metrics.series.pop((entry.module_id, _bad_gradients(entry)))
            bad += int(numbers.pop(_bad_gradients(entry)))
        elif number := int(entry.bad_steps):  # the same on all learners
            bad += number
            entry.bad_steps.zero_()
    learner.last_series = metrics.series
    results[ALL_MODULES].update(
        num_env_steps_trained=env_steps,
        num_env_steps_trained_lifetime=learner.count("env_steps", env_steps),
        num_minibatches=num_minibatches,
        num_passes=passes,
        num_rows_left_out=left_out,
        num_gradient_steps_lifetime=learner.count("gradient_steps", num_minibatches),
        num_updates_skipped=0,
        num_bad_gradients=bad,
        seconds_pipeline=stages.pipeline,
        seconds_gradient_steps=seconds,
        seconds_forward_backward=stages.forward_backward,
        seconds_reduction=stages.reduction,
        seconds_step=stages.step,
    )
    if bad:
        _tell_bad_gradients(learner, bad)
    return results


def summarize_skipped(learner: Learner) -> Results:
    """What an update call without anything to train on reports; it is counted. `ValueError` where the learner must
    never skip one.
    """
    if learner.never_skip_update:
        raise ValueError("the update has nothing to train on, and never_skip_update=True does not allow that")
    learner.count("num_updates_skipped", 1)
    learner.last_series = {}
    nothing = dict.fromkeys(("num_minibatches", "num_rows_left_out", "num_env_steps_trained"), 0)
    return {ALL_MODULES: {"num_updates_skipped": 1, **nothing}}


def tell_rows_left_out(
    learner: Learner, steps: StepCounts, num_rows: int, minibatch_size: int | None, shuffle: bool
) -> None:
    """Warn, once in a learner's life, that each pass leaves rows of the batch out."""
    missing = steps.num_rows_left_out
    if not missing or learner.count("rows_left_out", missing) != missing or learner.reducer.rank != 0:
        return
    which = "another random part in each pass" if shuffle else "they come first in the next pass"
    warnings.warn(
        f"{missing // steps.num_passes} of {num_rows} rows are left out of each pass, because they fill no minibatch "
        f"of {minibatch_size} ({which}). Set minibatch_size to a number that divides the rows, None for the whole "
        "batch at once, or train_batch_size to a multiple of minibatch_size; results count them as num_rows_left_out",
        stacklevel=2,
    )


def _tell_zero_rate(learner: Learner, entry: RegisteredOptimizer, trained: Mapping[str, int]) -> None:
    """Warns once of an optimizer that trains nothing since its learning rate is 0 (and does not rise again).

    At the second such update: a schedule that ends with the run leaves its last one with a rate of 0.
    """
    if any(group["lr"] for group in entry.optimizer.param_groups):
        return
    if (entry.module_id not in (*trained, ALL_MODULES)) or (entry.schedule is not None and entry.schedule.rises_later):
        return
    entry.updates_at_zero_rate += 1
    if entry.updates_at_zero_rate == 2 and learner.reducer.rank == 0:
        warnings.warn(
            f"the learning rate of optimizer {entry.key!r} is 0: updates train nothing with it. Where a schedule has "
            "ended, give it a later last point; to train no further, stop updating",
            RuntimeWarning,
            stacklevel=2,
        )


def _bad_gradients(entry: RegisteredOptimizer) -> str:
    return f"{entry.name}_bad_gradients"


def _tell_bad_gradients(learner: Learner, count: int) -> None:
    """Names the first bad tensor: raises with `nan_policy="stop"`, warns otherwise (on one learner)."""
    found = [(entry, entry.take_bad_parameter()) for entry in learner.optimizers]
    entry, param = next((pair for pair in found if pair[1] is not None), (found[0][0], None))
    names = {id(p): name for name, p in learner.module.named_parameters()}
    names |= {id(value): name for name, value in learner.registered.items()}
    learner.first_bad_tensor = names.get(id(param), f"a parameter of optimizer {entry.key!r}")
    policy = learner.config_of(entry.module_id).nan_policy
    done = {"skip": "left out", "stop": "left out", "zero": "zero where they were bad"}[policy]
    text = (
        f"{count} gradient steps had a gradient that is not finite ({done}); first bad tensor: "
        f"{learner.first_bad_tensor}. Lower the learning rate or look at the batch"
    )
    if policy == "stop":
        raise FloatingPointError(f"{text}; nan_policy='skip' goes on without such steps")
    if learner.reducer.rank == 0:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
