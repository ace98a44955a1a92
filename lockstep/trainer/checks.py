"""What a trainer refuses at construction: each message has the parameter's name, its value and what is allowed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.algorithms.multi_agent_policy import AnyPolicy, MultiAgentPolicy
from lockstep.algorithms.policy import Policy
from lockstep.data.trees import named_leaves
from lockstep.replay import ReplayBuffer
from lockstep.replay.storage import shapes_of_space
from lockstep.rollout import AsyncCollector, CollectorLike, MultiAgentCollector
from lockstep.rollout.async_group import AsyncGroupCollector
from lockstep.state.checks import check_flags, check_functions, check_whole, suggestion
from lockstep.tracking import BaseLogger, LazyLogger
from lockstep.trainer.callbacks import Callback


def check_foreign(trainer: type, elsewhere: Mapping[str, str], options: dict[str, Any]) -> None:
    """Takes the parameters of other trainers out of `options`; raises `ValueError` for one that is set, `TypeError` for
    one that no trainer has.

    `elsewhere`: `{parameter: what this trainer does instead}`.
    """
    foreign = [name for name in elsewhere if options.pop(name, None) is not None]
    if foreign:
        raise ValueError(f"{foreign[0]} does not apply to {trainer.__name__}: it {elsewhere[foreign[0]]}")
    own = [
        inspect.signature(vars(one)["__init__"]).parameters for one in trainer.__mro__[:-1] if "__init__" in vars(one)
    ]
    known = {name for parameters in own for name in parameters} - {"self", "args", "kwargs", "options"}
    for name in options:
        if name not in known:
            raise TypeError(f"{trainer.__name__} has no parameter {name!r}; {suggestion(name, sorted(known))}")


def check_kind(trainer: str, policy: Any, *, from_rollouts: bool) -> None:
    """Raises `ValueError` for a policy that learns from something else than what this trainer gives it."""
    if not isinstance(policy, AnyPolicy):
        return  # `check_parts` tells it
    config = policy.config
    if isinstance(policy, MultiAgentPolicy) and trainer == "OfflineTrainer":
        raise ValueError(
            "policy is of several agents, which OfflineTrainer does not train; use policy.learn_on_batch(batch)"
        )
    if from_rollouts == (not (config.is_off_policy or config.is_offline)):
        return
    kinds = ("samples of a buffer", "whole rollouts")
    fitting = (
        "OffpolicyTrainer" if config.is_off_policy else "OfflineTrainer" if config.is_offline else "OnpolicyTrainer"
    )
    raise ValueError(
        f"policy of {config.algorithm!r} learns from {kinds[not from_rollouts]}, {trainer} gives it "
        f"{kinds[from_rollouts]}; use {fitting}"
    )


def check_online(trainer: str, policy: Any, train_collector: Any, *, from_rollouts: bool) -> None:
    """As `check_kind`; and `ValueError` without a collector to train with."""
    check_kind(trainer, policy, from_rollouts=from_rollouts)
    if not isinstance(train_collector, CollectorLike):
        raise ValueError(f"train_collector={train_collector!r} is not allowed; it must be a lockstep.Collector")


def check_stacks(collector: CollectorLike, buffer: ReplayBuffer) -> None:
    """Raises `ValueError` where the buffer stacks frames (or takes stacks apart) into what the policy does not take."""
    stack_num, only_last = buffer.options.stack_num, buffer.options.save_only_last_obs
    if stack_num == 1 and not only_last:
        return
    shapes = shapes_of_space(collector.observation_space)  # it stacks what the policy wants stacked
    for name, leaf in named_leaves("obs", shapes):
        frame = leaf.shape[1:] if only_last else leaf.shape
        gives = frame if stack_num == 1 else (stack_num, *frame)
        if gives != leaf.shape:
            raise ValueError(
                f"stack_num={stack_num}, save_only_last_obs={only_last}: the buffer of train_collector would give "
                f"observations of shape {gives}, and the policy takes {leaf.shape} ({name}). Environments that stack "
                "frames on the first axis go with save_only_last_obs=True; for others leave both out"
            )


def check_discounts(policy: Policy, buffer: ReplayBuffer) -> None:
    """Raises `ValueError` where the returns of n steps that the buffer gives are discounted otherwise than the policy's
    values.
    """
    options, gamma = buffer.options, policy.config.gamma
    if options.n_step > 1 and options.gamma != gamma:
        raise ValueError(
            f"the buffer sums n_step={options.n_step} rewards with gamma={options.gamma}, the policy learns with "
            f"gamma={gamma}; give both the same (the buffer's gamma= has a default of its own)"
        )


def check_priorities(policy: Policy, buffer: Any) -> None:
    """Raises `ValueError` for a buffer that draws by priority and an algorithm that has none to give."""
    if isinstance(buffer, ReplayBuffer) and buffer.priorities is not None and not policy.config.can_prioritize:
        raise ValueError(
            f"buffer draws by priority, and {policy.config.algorithm} has no errors that priorities could come from; "
            "give its transitions alone: buffer.to_batch()"
        )


def check_amount(step_per_collect: Any, episode_per_collect: Any) -> tuple[int | None, int | None]:
    """The two, of which exactly one is given. Raises `ValueError` unless it is a whole number of at least 1."""
    if (step_per_collect is None) == (episode_per_collect is None):
        raise ValueError(
            f"give exactly one of step_per_collect and episode_per_collect, not {step_per_collect} and "
            f"{episode_per_collect}"
        )
    return (
        check_whole("step_per_collect", step_per_collect, 1, optional=True),
        check_whole("episode_per_collect", episode_per_collect, 1, optional=True),
    )


def can_test_in_train(wanted: bool, stop_fn: Any) -> bool:
    """Whether an evaluation inside an epoch could stop the run; a warning where it is wanted in vain."""
    if wanted and stop_fn is None:
        warnings.warn("test_in_train=True is off: it needs a test_collector and a stop_fn", stacklevel=4)
    return wanted and stop_fn is not None


def check_reset(reset_collectors: Any, reset_buffer: Any) -> None:
    """Raises `ValueError` for what is neither True nor False, and for a buffer that is to be emptied alone."""
    check_flags(reset_collectors=reset_collectors, reset_buffer=reset_buffer)
    if reset_buffer and not reset_collectors:
        raise ValueError(
            "reset_buffer=True is not allowed with reset_collectors=False; a buffer is emptied where its collector "
            "begins new episodes"
        )


def check_parts(policy: Any, train_collector: Any, test_collector: Any, reward_metric: Any) -> None:
    """Raises `ValueError` for something that is no policy or no collector, for collectors of another policy, and for a
    `reward_metric` where there is one agent."""
    check_functions(reward_metric=reward_metric)
    if not isinstance(policy, AnyPolicy):
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    for name, collector in (("train_collector", train_collector), ("test_collector", test_collector)):
        if collector is None:
            continue
        if not isinstance(collector, CollectorLike):
            raise ValueError(f"{name}={collector!r} is not allowed; it must be a lockstep.Collector, or None")
        if isinstance(collector.policy, AnyPolicy) and collector.policy is not policy:
            raise ValueError(f"{name} acts with another policy than the one to train; make it with the same one")
        if reward_metric is not None and not isinstance(collector, MultiAgentCollector):
            raise ValueError(
                f"reward_metric needs several agents, and {name} has one, whose return is one number already; leave it "
                "out, or collect with a MultiAgentCollector"
            )


def check_observers(logger: Any, callbacks: Sequence[Any], resume_from_log: Any) -> None:
    """Raises `ValueError` for something that is no logger or no callback, or a log to resume from that is not there."""
    if resume_from_log is True and (logger is None or isinstance(logger, LazyLogger)):
        raise ValueError("resume_from_log=True needs a logger that keeps records; give the logger of the earlier run")
    if logger is not None and not isinstance(logger, BaseLogger):
        raise ValueError(f"logger={logger!r} is not allowed; it must be a lockstep.tracking.BaseLogger, or None")
    check_callbacks(callbacks)


def check_callbacks(callbacks: Any) -> None:
    """Raises `ValueError` unless it is a list of callbacks."""
    if not isinstance(callbacks, Sequence):
        told = "; put it into one, callbacks=[...]" if isinstance(callbacks, Callback) else ""
        raise ValueError(
            f"callbacks={callbacks!r} is not allowed; it must be a list of lockstep.trainer.Callback{told}"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks: {callback!r} is not allowed; each must be a lockstep.trainer.Callback")
        _check_event_methods(type(callback))


def _check_event_methods(kind: type[Callback]) -> None:
    """Raises `ValueError` where a method that looks like one of an event is none and would never be called."""
    there = [name for name in vars(Callback) if name.startswith("on_") and name != "on_event"]
    others = [name for name in dir(kind) if name.startswith("on_") and not hasattr(Callback, name)]
    unknown = [name for name in others if callable(getattr(kind, name))]
    if unknown and kind.on_event is Callback.on_event:
        raise ValueError(
            f"callbacks: {kind.__name__}.{unknown[0]} would never be called; {suggestion(unknown[0], there)} A method "
            "of your own needs a name without on_"
        )


def check_evaluation(test_collector: Any, train_collector: Any, episodes: Any, functions: dict[str, Any]) -> int | None:
    """The episodes of an evaluation. Raises `ValueError` for one that lacks something, or for functions that would
    never be called.
    """
    if test_collector is None:
        idle = [name for name, function in functions.items() if function is not None]
        if idle:
            raise ValueError(f"{idle[0]} is never called without evaluation; give a test_collector, or leave it out")
        return check_whole("episode_per_test", episodes, 1, optional=True)
    if episodes is None:
        raise ValueError("episode_per_test=None is not allowed where there is a test_collector; say how many episodes")
    number: int = check_whole("episode_per_test", episodes, 1)
    if isinstance(test_collector, AsyncCollector | AsyncGroupCollector):
        raise ValueError(
            f"test_collector is an {type(test_collector).__name__}, whose runs are not repeatable; evaluate with a "
            "Collector on environments of its own"
        )
    if train_collector is not None and _steps_what(test_collector.env) & _steps_what(train_collector.env):
        raise ValueError(
            "test_collector has the environments of train_collector: evaluation would disturb training; give it "
            "environments of its own (a configuration: a function or class that makes them in environment(...), or "
            "evaluation(evaluation_interval=0))"
        )
    return number


def _steps_what(boundary: Any) -> set[int]:
    """Identities of what a boundary steps."""
    return {id(part) for part in (boundary, getattr(boundary, "env", None), *getattr(boundary, "envs", ())) if part}
