"""Checks of the parts that a trainer is built from.

Each error message contains the parameter's name, its value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.policy.policy import Policy
from lockstep.replay import ReplayBuffer
from lockstep.rollout import CollectorLike


def check_policy(policy: object, trainer: str, *, from_rollouts: bool, collects: bool) -> None:
    """Raise `ValueError` for a policy that this kind of trainer cannot train.

    Args:
        policy: object that was given as the policy.
        trainer: class name of the trainer, for messages.
        from_rollouts: whether the trainer learns from whole rollouts. Otherwise it learns from samples of a buffer.
        collects: whether the trainer collects its data.
    """
    if not isinstance(policy, Policy):
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    if policy.is_multi_agent and not collects:
        raise ValueError(
            f"policy is of several agents, which {trainer} does not train; use policy.learn_on_batch(batch)"
        )

    config = policy.config
    learns_from_samples = config.is_off_policy or config.is_offline
    is_mismatch = from_rollouts == learns_from_samples
    if is_mismatch:
        samples = "samples of a buffer"
        rollouts = "whole rollouts"
        needed = samples if learns_from_samples else rollouts
        provided = rollouts if from_rollouts else samples
        online_trainer = "OffpolicyTrainer" if config.is_off_policy else "OnpolicyTrainer"
        suitable_trainer = "OfflineTrainer" if config.is_offline else online_trainer
        raise ValueError(
            f"policy of {config.algorithm!r} learns from {needed}, {trainer} gives it {provided}; "
            f"use {suitable_trainer}"
        )


def check_collector(name: str, collector: CollectorLike, policy: object, reward_metric: object) -> None:
    """Raise `ValueError` for a collector that does not fit the policy or the reward metric.

    Args:
        name: the trainer's parameter, for messages.
        collector: the collector.
        policy: policy that the collector must act with. None allows any.
        reward_metric: the trainer's option; it needs a collector of several agents.
    """
    if policy is not None and isinstance(collector.policy, Policy) and collector.policy is not policy:
        raise ValueError(f"{name} acts with another policy than the one to train; make it with the same one")
    if reward_metric is not None and not getattr(collector.policy, "is_multi_agent", False):
        raise ValueError(f"reward_metric needs several agents, and {name} has one; leave it out")


def check_evaluation(
    test_collector: CollectorLike | None,
    train_collector: CollectorLike | None,
    functions: Mapping[str, Callable[..., Any] | None],
    durations: Mapping[str, int | None],
    parallel_to_training: bool,
) -> None:
    """Raise `ValueError` for an incomplete evaluation, or for functions that would never be called.

    Args:
        test_collector: collector of the evaluation. None: nothing is evaluated.
        train_collector: collector of the training data, which must not share environments with `test_collector`.
        functions: the user's functions that only an evaluation calls, by parameter name.
        durations: the parameters that set the length of an evaluation.
        parallel_to_training: whether evaluation runs in a thread of its own.
    """
    if test_collector is None:
        unused = [name for name, function in functions.items() if function is not None]
        if parallel_to_training:
            unused.append("evaluation_parallel_to_training")
        if unused:
            raise ValueError(f"{unused[0]} is never called without evaluation; give a test_collector, or leave it out")
        return

    num_durations = sum(duration is not None for duration in durations.values())
    # A custom function decides for itself how long it evaluates.
    is_missing = num_durations == 0 and functions["custom_evaluation_function"] is None
    if num_durations > 1 or is_missing:
        words = " and ".join(f"{name}={duration!r}" for name, duration in durations.items())
        raise ValueError(f"{words} are not allowed where there is a test_collector; give a number to one of them")

    if parallel_to_training and test_collector.policy is getattr(train_collector, "policy", None):
        raise ValueError(
            "evaluation_parallel_to_training=True needs a test_collector with a policy of its own; make it with "
            "copy.deepcopy(policy)"
        )
    if not test_collector.may_evaluate:
        raise ValueError(
            f"test_collector is an {type(test_collector).__name__}, whose runs are not repeatable; evaluate with a "
            "Collector on environments of its own"
        )
    if train_collector is not None and _environments_in(test_collector.env) & _environments_in(train_collector.env):
        raise ValueError(
            "test_collector has the environments of train_collector: evaluation would disturb training; give it "
            "environments of its own (a configuration: a function or class that makes them in environment(...), or "
            "evaluation(evaluation_interval=0))"
        )


def _environments_in(boundary: object) -> set[int]:
    """Return the identities (`id`) of a collector's environments: the collector's `env`, its vector and their parts.

    Args:
        boundary: the attribute `env` of a collector, usually a `VectorBoundary` around a vector environment.
    """
    tensors = getattr(boundary, "tensors", None)
    # Two adapters, such as `RslRlEnv`, may be around the same environments of another library.
    inner = (getattr(boundary, "env", None), *getattr(boundary, "envs", ()), tensors, getattr(tensors, "env", None))
    return {id(part) for part in (boundary, *inner) if part is not None}


def check_discounts(gamma: float, buffer: ReplayBuffer) -> None:
    """Raise `ValueError` if the buffer discounts its n-step returns with another factor than the policy's `gamma`."""
    options = buffer.options
    if options.n_step > 1 and options.gamma != gamma:
        raise ValueError(
            f"the buffer sums n_step={options.n_step} rewards with gamma={options.gamma}, the policy learns with "
            f"gamma={gamma}; give both the same (the buffer's gamma= has a default of its own)"
        )
