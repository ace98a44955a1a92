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
from lockstep.learner.learner import Learner
from lockstep.replay import ReplayBuffer
from lockstep.trainer import OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.trainer.build import Trainer
from lockstep.trainer.offline import UPDATES_AT_ONCE


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
        "learning rate": _rates_text(trainer, left),
        "networks": f"{sum(p.numel() for p in parameters):,} parameters "
        f"({size_text(sum(p.numel() * p.element_size() for p in parameters))})",
        "device": f"{config.framework.device}, {config.framework.dtype}, {_count(threads, 'thread', 'threads')}, "
        + ("compiled (the first update takes 10-20 s longer)" if config.framework.compile else "eager"),
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
    if getattr(policy.config.training, "target_kl", None) is not None:
        number = f"at most {number}"
    elif _varies(trainer):
        number = f"about {number}"
    text = f"{number}: {passes} {_count(per_pass, 'minibatch', 'minibatches')} of {size:,}"
    return text + (f"; {left_out:,} of {per_update:,} rows fill none and are left out of each pass" if left_out else "")


def _varies(trainer: OnpolicyTrainer | OffpolicyTrainer) -> bool:
    """Can a collect have more steps than it is asked for? With whole episodes, and where resets take rows."""
    whole = trainer.policy.config.env_runners.batch_mode == "complete_episodes"
    return whole or getattr(trainer.collector.env, "autoreset_mode", None) == "NEXT_STEP"


def _replay_facts(trainer: OffpolicyTrainer, left: int) -> dict[str, str]:
    about = "about " if _varies(trainer) else ""
    files = "in files of " if trainer.policy.config.replay.storage == "memmap" else ""
    return {
        "updates": f"{trainer.update_per_step:g} gradient steps for each of {left:,} environment steps, after "
        f"{trainer.learning_starts:,} random ones" + _beyond(trainer),
        "gradient steps": f"{about}{trainer.gradient_steps_left:,} on "
        f"{f'{trainer.batch_size:,}' if trainer.batch_size else 'all'} transitions each",
        "replay buffer": f"{trainer.buffer.maxsize:,} transitions, {len(trainer.buffer):,} in it"
        + (f", {files}{size_text(replay_bytes(trainer))}" if isinstance(trainer.buffer, ReplayBuffer) else ""),
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


def replay_bytes(trainer: OffpolicyTrainer) -> int:
    """Memory of the replay buffer's columns once it has rows."""
    buffer, collector = trainer.buffer, trainer.collector
    if buffer.nbytes():
        return int(buffer.nbytes())
    options = {**buffer.options.keywords(), "storage": "memory"}
    spaces = {"observation_space": collector.observation_space, "action_space": collector.env.action_space}
    small = ReplayBuffer(2 * buffer.buffer_num, **options, **spaces)
    return small.nbytes() // small.maxsize * int(buffer.maxsize)


def _rates_text(trainer: Trainer, left: int) -> str:
    """Learning rates of the first and the last update; by optimizer where they differ."""
    first, last = _updates_between(trainer, left)
    rates: dict[str, str] = trainer.policy.learner_group.first_learner(_rates, first, last)
    texts = set(rates.values())
    return texts.pop() if len(texts) == 1 else "; ".join(f"{name} {text}" for name, text in rates.items())


def _updates_between(trainer: Trainer, left: int) -> tuple[int, int]:
    """Steps of the run at its first and its last update, which schedules go by."""
    start, end = trainer.position, trainer.position + left
    if isinstance(trainer, OfflineTrainer):
        return start, max(start, end - ((left - 1) % trainer.step_per_epoch % UPDATES_AT_ONCE + 1))
    collect = trainer.step_per_collect
    if collect is None:
        return start, end
    if isinstance(trainer, OnpolicyTrainer):
        return start + collect, end
    rate, learned_from = trainer.update_per_step, trainer.steps_learned_from
    missing = (math.floor(rate * learned_from) + 1) / rate - learned_from
    return start + _random_steps(trainer) + max(1, math.ceil(missing / collect - 1e-9)) * collect, end


def _random_steps(trainer: OffpolicyTrainer) -> int:
    """Steps of whole collects with random actions, which are not learned from at once."""
    collect, missing = trainer.step_per_collect or 1, max(0, trainer.learning_starts - trainer.env_step)
    return -(-missing // collect) * collect


def _rates(learner: Learner, first: int, last: int) -> dict[str, str]:
    found = {}
    for entry in learner.optimizers:
        schedule, groups = entry.schedule, entry.optimizer.param_groups
        if schedule is None or schedule.constant:
            found[entry.key] = ", ".join(dict.fromkeys(f"{group['lr']:g}" for group in groups)) + " throughout"
        else:
            found[entry.key] = f"{schedule.at(first):g} at the first update, {schedule.at(last):g} at the last"
    return found


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
    epsilon, how = config.evaluation.epsilon, "most likely actions"
    if epsilon or config.evaluation.evaluation_explore:
        how = f"epsilon {epsilon:g}" if epsilon else "drawn actions"
    stop = (
        ""
        if config.evaluation.stop_return is None
        else f"; stops at a mean return of {config.evaluation.stop_return:g}"
    )
    return f"{trainer.episode_per_test} episodes every {every:,} steps, {how}{stop}"


def _environments_text(envs: Any, config: AlgorithmConfig) -> str:
    return f"{envs.num_envs} x {_name(config.environment.env)} ({envs.backend}, {envs.autoreset_mode}): "


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
