"""What a run is going to do, said before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.multi_agent_policy import MultiAgentPolicy
from lockstep.data.minibatch import minibatches_per_pass
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import leaves
from lockstep.trainer import OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.trainer.build import Trainer


def plan_of(trainer: Trainer, config: AlgorithmConfig, sources: Sequence[str]) -> dict[str, str]:
    """The plan by subject, in words."""
    import torch

    policy, collector = trainer.policy, trainer.train_collector or trainer.test_collector
    left = trainer.steps_in_all - trainer.position
    facts = _data_facts(trainer, left)
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    threads = torch.get_num_threads()
    return {
        "settings": "; ".join(sources),
        "environments": ("" if collector is None else _environments_text(collector.env, config))
        + f"{_space_text(policy.observation_space)} -> {_space_text(policy.action_space)}",
        **facts,
        "networks": f"{sum(p.numel() for p in parameters):,} parameters "
        f"({size_text(sum(p.numel() * p.element_size() for p in parameters))})",
        "device": f"{config.device}, {config.dtype}, {_count(threads, 'thread', 'threads')}, "
        + ("compiled (the first update takes 10-20 s longer)" if config.compile else "eager"),
        "evaluation": _evaluation_text(trainer, config),
    }


def _data_facts(trainer: Trainer, left: int) -> dict[str, str]:
    if isinstance(trainer, OnpolicyTrainer):
        return _rollout_facts(trainer, left)
    return _replay_facts(trainer, left) if isinstance(trainer, OffpolicyTrainer) else _offline_facts(trainer, left)


def _offline_facts(trainer: OfflineTrainer, left: int) -> dict[str, str]:
    size = trainer.batch_size or len(trainer.buffer)
    return {
        "gradient steps": f"{left:,} on {size:,} transitions each, {left * size / len(trainer.buffer):.3g} passes",
        "data": f"{len(trainer.buffer):,} transitions ({type(trainer.buffer).__name__})",
    }


def _rollout_facts(trainer: OnpolicyTrainer, left: int) -> dict[str, str]:
    num_envs, store = trainer.collector.num_envs, trainer.buffer
    per_update = trainer.step_per_collect or store.num_steps * num_envs
    num_updates = math.ceil(left / per_update)
    facts = {
        "updates": f"{num_updates:,} of {per_update:,} environment steps, {left:,} in all" + _beyond(trainer),
        "gradient steps": _gradient_steps_text(trainer, num_updates, per_update),
    }
    if isinstance(store, RolloutStore):
        facts["rollout store"] = f"{store.num_steps:,} x {num_envs} steps, {size_text(store_bytes(trainer))}"
    return facts


def _gradient_steps_text(trainer: OnpolicyTrainer, num_updates: int, per_update: int) -> str:
    """How many, cut as the learner cuts them; rows that fill no minibatch are told."""
    policy, minibatch = trainer.policy, trainer.batch_size
    passes = f"for each update {_count(trainer.repeat_per_collect, 'pass', 'passes')} over"
    if minibatch is not None and (isinstance(policy, MultiAgentPolicy) or policy.is_stateful):
        rows = "rows of the module that has most" if isinstance(policy, MultiAgentPolicy) else "sequences"
        return f"{passes} minibatches of {minibatch:,} {rows}, as many as the episodes fill"
    per_pass = minibatches_per_pass({"": per_update}, minibatch)
    size = min(minibatch or per_update, per_update)
    left_out = per_update - per_pass * size
    number = f"{num_updates * trainer.repeat_per_collect * per_pass:,}"
    if getattr(policy.config.sections["training"], "target_kl", None) is not None:
        number = f"at most {number}"
    elif _varies(trainer):
        number = f"about {number}"
    text = f"{number}: {passes} {_count(per_pass, 'minibatch', 'minibatches')} of {size:,}"
    return text + (f"; {left_out:,} of {per_update:,} rows fill none and are left out of each pass" if left_out else "")


def _varies(trainer: OnpolicyTrainer | OffpolicyTrainer) -> bool:
    """Can a collect have more steps than it is asked for? With whole episodes, and where resets take rows."""
    whole = trainer.policy.config.batch_mode == "complete_episodes"
    return whole or getattr(trainer.collector.env, "autoreset_mode", None) == "NEXT_STEP"


def _replay_facts(trainer: OffpolicyTrainer, left: int) -> dict[str, str]:
    about = "about " if _varies(trainer) else ""
    return {
        "updates": f"{trainer.update_per_step:g} gradient steps for each of {left:,} environment steps, after "
        f"{trainer.learning_starts:,} random ones" + _beyond(trainer),
        "gradient steps": f"{about}{trainer.gradient_steps_left:,} on "
        f"{f'{trainer.batch_size:,}' if trainer.batch_size else 'all'} transitions each",
        "replay buffer": f"{trainer.buffer.maxsize:,} transitions, {len(trainer.buffer):,} in it",
    }


def _beyond(trainer: Trainer) -> str:
    """Says that the last collect goes beyond the steps asked for, where it does."""
    asked, made = trainer.total_steps, trainer.steps_in_all
    if asked is None or made == asked:
        return ""
    return f" (whole collects: the run ends at {made:,}, the first that has the {asked:,} asked for)"


def store_bytes(trainer: OnpolicyTrainer) -> int:
    """Memory of the rollout store, its actions included."""
    store = trainer.buffer
    columns = [*leaves(store.obs), store.rewards, store.terminateds, store.truncateds, store.valid]
    space = store.action_space
    action = int(np.prod(space.shape or ())) * 8 if space.shape is not None else 8
    return sum(column.nbytes for column in columns) + store.num_steps * store.num_envs * action


def size_text(num_bytes: int) -> str:
    """`"36.0 KiB"`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _evaluation_text(trainer: Trainer, config: AlgorithmConfig) -> str:
    if trainer.test_collector is None:
        return "none"
    every = trainer.step_per_epoch * trainer.test_interval
    epsilon, how = config.sections["evaluation"].epsilon, "most likely actions"
    if epsilon or config.evaluation_explore:
        how = f"epsilon {epsilon:g}" if epsilon else "drawn actions"
    stop = "" if config.stop_return is None else f"; stops at a mean return of {config.stop_return:g}"
    return f"{trainer.episode_per_test} episodes every {every:,} steps, {how}{stop}"


def _environments_text(envs: Any, config: AlgorithmConfig) -> str:
    return f"{envs.num_envs} x {_name(config.env)} ({envs.backend}, {envs.autoreset_mode}): "


def _space_text(space: Any) -> str:
    if type(space) is dict:  # by module
        return ", ".join(f"{module_id}: {_space_text(own)}" for module_id, own in space.items())
    text = str(space).replace("\n", " ")
    if len(text) > 60:
        shape = "" if getattr(space, "shape", None) is None else f"{space.shape}, {space.dtype}"
        text = f"{type(space).__name__}({shape or f'{len(space.spaces)} parts'})"
    return text


def _name(env: Any) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
