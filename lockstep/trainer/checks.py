"""Checks of a trainer's parts at construction: each message has the parameter's name, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.policy.policy import Policy
from lockstep.replay import ReplayBuffer
from lockstep.rollout import CollectorLike


def check_policy(policy: object, trainer: str, *, from_rollouts: bool, collects: bool) -> None:
    """Raise `ValueError` for a policy that learns from something else than what the trainer gives it."""
    if not isinstance(policy, Policy):
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    if policy.is_multi_agent and not collects:
        raise ValueError(
            f"policy is of several agents, which {trainer} does not train; use policy.learn_on_batch(batch)"
        )
    config = policy.config
    if from_rollouts == (config.is_off_policy or config.is_offline):
        kinds = ("samples of a buffer", "whole rollouts")
        online = "OffpolicyTrainer" if config.is_off_policy else "OnpolicyTrainer"
        raise ValueError(
            f"policy of {config.algorithm!r} learns from {kinds[not from_rollouts]}, {trainer} gives it "
            f"{kinds[from_rollouts]}; use {'OfflineTrainer' if config.is_offline else online}"
        )


def check_collector(name: str, collector: CollectorLike, policy: object, reward_metric: object) -> None:
    """Raise `ValueError` for a collector of another policy than this (None: any), or one without use for the metric."""
    if policy is not None and isinstance(collector.policy, Policy) and collector.policy is not policy:
        raise ValueError(f"{name} acts with another policy than the one to train; make it with the same one")
    if reward_metric is not None and not getattr(collector.policy, "is_multi_agent", False):
        raise ValueError(f"reward_metric needs several agents, and {name} has one; leave it out")


def check_evaluation(
    test_collector: CollectorLike | None,
    train_collector: CollectorLike | None,
    functions: Mapping[str, Callable[..., Any] | None],
    amounts: Mapping[str, int | None],
    beside_training: bool,
) -> None:
    """Raise `ValueError` for an evaluation that lacks something, or functions that would never be called."""
    if test_collector is None:
        idle = [name for name, function in functions.items() if function is not None]
        idle += ["evaluation_parallel_to_training"] if beside_training else []
        if idle:
            raise ValueError(f"{idle[0]} is never called without evaluation; give a test_collector, or leave it out")
        return
    num_amounts = sum(amount is not None for amount in amounts.values())
    if num_amounts > 1 or (num_amounts == 0 and functions["custom_evaluation_function"] is None):
        words = " and ".join(f"{name}={amount!r}" for name, amount in amounts.items())
        raise ValueError(f"{words} are not allowed where there is a test_collector; give a number to one of them")
    if beside_training and test_collector.policy is getattr(train_collector, "policy", None):
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
    """Return the identities of a boundary and of the environments in it."""
    inner = (getattr(boundary, "env", None), *getattr(boundary, "envs", ()))
    return {id(part) for part in (boundary, *inner) if part}


def check_discounts(gamma: float, buffer: ReplayBuffer) -> None:
    """Raise `ValueError` where n-step returns of the buffer are not discounted with the policy's `gamma`."""
    options = buffer.options
    if options.n_step > 1 and options.gamma != gamma:
        raise ValueError(
            f"the buffer sums n_step={options.n_step} rewards with gamma={options.gamma}, the policy learns with "
            f"gamma={gamma}; give both the same (the buffer's gamma= has a default of its own)"
        )
