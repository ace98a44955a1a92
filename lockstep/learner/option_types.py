"""Is the value of an option of the type that its section declares?"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union

import numpy as np

from lockstep.state.checks import suggestion
from lockstep.state.schedules import Schedule

ELSEWHERE = {
    "learning_rate": "lr",
    "n_steps": "train_batch_size rollout_fragment_length",
    "num_steps": "rollout_fragment_length",
    "n_envs": "num_envs_per_env_runner",
    "num_envs": "num_envs_per_env_runner",
    "batch_size": "minibatch_size train_batch_size",
    "train_batch_size_per_learner": "train_batch_size",
    "sgd_minibatch_size": "minibatch_size",
    "n_epochs": "num_epochs",
    "num_sgd_iter": "num_epochs",
    "update_epochs": "num_epochs",
    "repeat_per_collect": "num_epochs",
    "discount_factor": "gamma",
    "gae_lambda": "lambda_",
    "lambda": "lambda_",
    "clip_range": "clip_param",
    "clip_coef": "clip_param",
    "eps_clip": "clip_param",
    "clip_range_vf": "vf_clip_param",
    "value_clip": "vf_clip_param",
    "use_kl_loss": "kl_coeff",
    "advantage_normalization": "normalize_advantages",
    "ent_coef": "entropy_coeff alpha",
    "vf_coef": "vf_loss_coeff",
    "max_grad_norm": "grad_clip",
    "exploration_fraction": "epsilon",
    "exploration_initial_eps": "epsilon",
    "exploration_final_eps": "epsilon",
    "estimation_step": "n_step",
    "polyak": "tau",
    "policy_freq": "policy_delay",
    "action_noise": "exploration_noise",
    "target_policy_noise": "target_noise",
    "target_noise_clip": "noise_clip",
    "q_lr": "critic_lr",
    "policy_lr": "actor_lr",
    "critic_learning_rate": "critic_lr",
    "actor_learning_rate": "actor_lr",
    "alpha_learning_rate": "alpha_lr",
    "buffer_size": "capacity",
    "train_freq": "update_per_step",
    "gradient_steps": "update_per_step",
    "num_steps_sampled_before_learning_starts": "learning_starts",
    "total_timesteps": "total_steps",
    "net_arch": "model_config",
    "policy_kwargs": "model_config",
    "model": "model_config",
    "eval_freq": "evaluation_interval",
    "n_eval_episodes": "evaluation_episodes",
    "evaluation_duration": "evaluation_episodes",
    "normalize_actions": "rescale_actions",
    "max_num_env_runner_restarts": "max_env_runner_restarts",
    "restart_failed_sub_environments": "restart_failed_envs",
}
"""what other libraries call an option -> its names here, of which an algorithm has one"""

PLAIN = {bool, int, float, str}


def meant(option: str, section: str, sections: Mapping[str, Any]) -> str:
    """For an option that a section has not: those of it by which other libraries mean the same, else options of other
    sections with that name or meaning, else the nearest names.
    """
    names = [option, *ELSEWHERE.get(option, "").split()]
    known = {each: [field.name for field in fields(sections[each])] for each in sections}
    here = [name for name in names if name in known[section]]
    there = [f"{each}.{name}" for each in known for name in names if name in known[each]]
    return suggestion(option, sorted(known[section]), elsewhere=here or there, most=3)


def check_types(name: str, section: Any) -> None:
    """Raises `TypeError` with the option, its value and what is allowed."""
    for option, hint in typing.get_type_hints(type(section)).items():
        value = getattr(section, option)
        kinds = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
        if PLAIN & set(kinds) and not _fits(value, hint):  # what is made of parts, the section checks itself
            raise TypeError(f"{name}.{option}={value!r} is not allowed; it must be {_spoken(hint)}")


def check_schedules(name: str, section: Any, steps: Iterable[int]) -> None:
    """Asks the functions of a section that give values over time what they give at `steps`; `ValueError` naming one
    that gives what cannot be meant (see `Schedule`).
    """
    for option, hint in typing.get_type_hints(type(section)).items():
        value = getattr(section, option)
        if callable(value) and float in typing.get_args(hint):
            schedule = Schedule(value, f"{name}.{option}")
            for step in steps:
                schedule(step)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, tuple({type(part) for part in parts}))
    if hint in (NoneType, None):
        return value is None
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in (int, float):
        numbers = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if origin is Callable or hint is Callable:
        return callable(value)
    kind = origin or hint
    if hint is not Any and isinstance(value, str) and isinstance(kind, type):
        return kind in (str, object)  # not a sequence of letters
    if hint is Any or not isinstance(kind, type):
        return True
    return isinstance(value, (list, tuple) if kind is tuple else kind)  # JSON knows lists only


def _spoken(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_spoken(part) for part in parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is Callable:
        return "a function"
    return names.get(hint, f"a {getattr(origin or hint, '__name__', hint)}")


def takes_batch(function: Callable[..., Any]) -> bool:
    """Is `function` called with (module_id, batch), rather than with (module_id)? `TypeError` where neither works."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it does not tell
        return True
    for arguments in (("id", None), ("id",)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise TypeError(f"policies_to_train{signature} must take (module_id), or (module_id, batch)")
