"""`Plan`: the numbers of a run, printed before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.actions import COMPOSITE, action_width
from lockstep.data.minibatch import minibatches_per_pass
from lockstep.data.rollout import RolloutStore
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trees import leaves
from lockstep.envs.make import name_of_env
from lockstep.learner.learner import Learner
from lockstep.modules.defaults.action_critics import ActionCritics
from lockstep.replay import ReplayBuffer
from lockstep.rollout import CollectorLike
from lockstep.rollout.protocols import sole_part
from lockstep.trainer import OfflineTrainer, OnpolicyTrainer
from lockstep.trainer.build import Trainer
from lockstep.trainer.offline import UPDATES_AT_ONCE

SECONDS_OF_A_GRADIENT_STEP, SECONDS_OF_AN_ENV_STEP = 5e-4, 5e-5
"""Time of a gradient step beside its arithmetic, and of an environment step with its action."""
FLOPS_OF_A_ROW = 6
"""Operations for each parameter and row: two forward, four backward."""
FLOPS_OF_A_THREAD = 1e10
"""Operations of a thread in a second."""


class Plan:
    """What a trainer is going to do from where it stands, in words."""

    def __init__(self, trainer: Trainer, config: AlgorithmConfig) -> None:
        self.trainer, self.config = trainer, config
        self.left = trainer.steps_in_all - trainer.position
        """steps that the rest of the run makes"""

    def facts(self, sources: Sequence[str]) -> dict[str, str]:
        """Return the plan by subject; `sources`: where the settings come from."""
        trainer, config = self.trainer, self.config
        policy, collector = trainer.policy, trainer.train_collector or trainer.test_collector
        where = ""
        if collector is not None:
            envs, name = collector.env, name_of_env(config.environment.env)
            where = f"{envs.num_envs} x {name} ({envs.backend}, {envs.autoreset_mode}): "
        framework, threads = config.framework, torch.get_num_threads()
        how = "eager"
        if framework.compile:
            after = framework.compile_after if framework.device == "cpu" else 0
            how = f"compiled after {after:,} gradient steps" if after else "compiled"
        return {
            "settings": "; ".join(sources),
            **self._agents(),
            "environments": f"{where}{_space_text(policy.observation_space)} -> {_space_text(policy.action_space)}",
            **self._updates(),
            "learning rate": self._rates_text(),
            "networks": self._networks_text(),
            "device": f"{framework.device}, {framework.dtype}, {_count(threads, 'thread', 'threads')}, {how}",
            "evaluation": self._evaluation_text(),
            **self._time(),
        }

    # -- networks and time ---

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.trainer.policy.module.parameters() if p.requires_grad]

    def _networks_text(self) -> str:
        """Return the number of parameters, and how many of them are the critics', whose widths are their own."""
        module, parameters = self.trainer.policy.module, self._parameters
        num_bytes = sum(p.numel() * p.element_size() for p in parameters)
        text = f"{sum(p.numel() for p in parameters):,} parameters ({size_text(num_bytes)})"
        critics = [part for part in module.modules() if isinstance(part, ActionCritics)]
        if critics:
            number = sum(p.numel() for part in critics for p in part.parameters())
            widths = ", ".join(map(str, critics[0].hiddens))
            text += f", {number:,} of them in critics with layers of {widths} (model_config.critic_hiddens)"
        return text

    def _time(self) -> dict[str, str]:
        """Return a first guess of the time that the run takes on a processor; nothing for other devices."""
        if self.config.framework.device != "cpu":
            return {}
        steps, rows = self._steps_and_rows()
        num_parameters = sum(p.numel() for p in self._parameters)
        work = FLOPS_OF_A_ROW * num_parameters * rows / (FLOPS_OF_A_THREAD * torch.get_num_threads())
        of_envs = 0 if isinstance(self.trainer, OfflineTrainer) else self.left * SECONDS_OF_AN_ENV_STEP
        guess = duration_text(steps * SECONDS_OF_A_GRADIENT_STEP + work + of_envs)
        return {"time": f"a first guess is {guess}; images, memory and slow environments take longer"}

    def _steps_and_rows(self) -> tuple[float, float]:
        """Return how many gradient steps are to come, and how many rows they read in all."""
        trainer, left = self.trainer, self.left
        if isinstance(trainer, OfflineTrainer):
            return left, left * (trainer.batch_size or len(trainer.buffer))
        if isinstance(trainer, OnpolicyTrainer):
            rows = left * trainer.repeat_per_collect
            per_update = trainer.step_per_collect or trainer.buffer.num_steps * trainer.collector.num_envs
            return rows / (trainer.batch_size or per_update), rows
        steps = trainer.gradient_steps_left
        return steps, steps * (trainer.batch_size or len(trainer.buffer))

    def _agents(self) -> dict[str, str]:
        """Return which policy acts for which agents, where there are several."""
        of_modules = getattr(self.trainer.train_collector or self.trainer.test_collector, "agents_of_modules", {})
        text = "; ".join(
            f"{module_id} acts for {', '.join(map(str, names))}" for module_id, names in of_modules.items()
        )
        return {"policies": text} if text else {}

    # -- updates ---

    def _updates(self) -> dict[str, str]:
        trainer, left = self.trainer, self.left
        if isinstance(trainer, OfflineTrainer):
            size, rows = trainer.batch_size or len(trainer.buffer), len(trainer.buffer)
            return {
                "gradient steps": f"{left:,} on {size:,} transitions each, {left * size / rows:.3g} passes",
                "data": f"{rows:,} transitions ({type(trainer.buffer).__name__})",
            }
        num_envs, buffer = trainer.collector.num_envs, trainer.buffer
        if isinstance(trainer, OnpolicyTrainer):
            per_update = trainer.step_per_collect or buffer.num_steps * num_envs
            num_updates = math.ceil(left / per_update)
            steps = f"{num_updates:,} of {per_update:,} environment steps, {left:,} in all{self._beyond()}"
            facts = {"updates": steps, "gradient steps": self._minibatches_text(trainer, num_updates, per_update)}
            if isinstance(buffer, RolloutStore):
                facts["rollout store"] = f"{buffer.num_steps:,} x {num_envs} steps, {size_text(_store_bytes(buffer))}"
            elif isinstance(buffer, TensorRollout):
                extent = f"{buffer.num_steps:,} x {num_envs} steps on {buffer.device}"
                facts["rollout store"] = f"{extent}, {size_text(buffer.num_bytes)}"
            return facts
        memory = ""
        if isinstance(buffer, ReplayBuffer):
            files = "in files of " if self.config.replay.storage == "memmap" else ""
            memory = f", {files}{size_text(_replay_bytes(buffer, trainer.collector))}"
        return {
            "updates": f"{trainer.update_per_step:g} gradient steps for each of {left:,} environment steps, after "
            f"{trainer.learning_starts:,} random ones{self._beyond()}",
            "gradient steps": f"{'about ' if self._varies() else ''}{trainer.gradient_steps_left:,} on "
            f"{f'{trainer.batch_size:,}' if trainer.batch_size else 'all'} transitions each",
            "replay buffer": f"{buffer.maxsize:,} transitions, {len(buffer):,} in it{memory}",
        }

    def _minibatches_text(self, trainer: OnpolicyTrainer, num_updates: int, per_update: int) -> str:
        """Return the number of gradient steps, and the rows that fill no minibatch."""
        policy, minibatch = trainer.policy, trainer.batch_size
        passes = f"for each update {_count(trainer.repeat_per_collect, 'pass', 'passes')} over"
        if minibatch is not None and (policy.is_multi_agent or policy.is_stateful):
            rows = "rows of the module that has most" if policy.is_multi_agent else "sequences"
            return f"{passes} minibatches of {minibatch:,} {rows}, as many as the episodes fill"
        per_pass = minibatches_per_pass({"": per_update}, minibatch)
        size = min(minibatch or per_update, per_update)
        left_out = per_update - per_pass * size
        number = f"{num_updates * trainer.repeat_per_collect * per_pass:,}"
        if getattr(self.config.training, "target_kl", None) is not None:
            number = f"at most {number}"
        elif self._varies():
            number = f"about {number}"
        text = f"{number}: {passes} {_count(per_pass, 'minibatch', 'minibatches')} of {size:,}"
        if left_out:
            text += f"; {left_out:,} of {per_update:,} rows fill none and are left out of each pass"
        return text

    def _varies(self) -> bool:
        """Return whether a collect may have more steps than asked for: whole episodes, or rows that only reset."""
        collector = self.trainer.train_collector
        next_step = collector is not None and getattr(collector.env, "autoreset_mode", None) == "NEXT_STEP"
        return next_step or self._collects_episodes

    @property
    def _collects_episodes(self) -> bool:
        return self.config.env_runners.collects_whole_episodes

    def _beyond(self) -> str:
        """Return words about collects that go beyond the steps asked for."""
        if self._collects_episodes:
            return " (a collect goes on to the end of its episodes, so it may have more steps)"
        asked, total = self.trainer.total_steps, self.trainer.steps_in_all
        if asked is None or total == asked:
            return ""
        return f" ({asked:,} were asked for; the last collect is not cut)"

    # -- learning rates ---

    def _rates_text(self) -> str:
        """Return the learning rates of the first and the last update; by optimizer where they differ."""
        rates: dict[str, str] = self.trainer.policy.learner_group.first_learner(_rates, *self._first_and_last_update())
        texts = set(rates.values())
        return texts.pop() if len(texts) == 1 else "; ".join(f"{name} {text}" for name, text in rates.items())

    def _first_and_last_update(self) -> tuple[int, int]:
        """Return the steps of the run at its first and its last update, by which schedules go."""
        trainer = self.trainer
        start, end = trainer.position, trainer.position + self.left
        if isinstance(trainer, OfflineTrainer):
            return start, max(start, end - ((self.left - 1) % trainer.step_per_epoch % UPDATES_AT_ONCE + 1))
        collect = trainer.step_per_collect
        if collect is None:
            return start, end
        if isinstance(trainer, OnpolicyTrainer):
            return start + collect, end
        random = -(-max(0, trainer.learning_starts - trainer.env_step) // collect) * collect
        rate, learned_from = trainer.update_per_step, trainer.steps_learned_from
        missing = (math.floor(rate * learned_from) + 1) / rate - learned_from
        return start + random + max(1, math.ceil(missing / collect - 1e-9)) * collect, end

    def _evaluation_text(self) -> str:
        trainer, config = self.trainer, self.config
        if trainer.test_collector is None:
            return "none"
        every = trainer.step_per_epoch * trainer.test_interval
        epsilon, how = config.evaluation.epsilon, "most likely actions"
        if epsilon or config.evaluation.evaluation_explore:
            how = f"epsilon {epsilon:g}" if epsilon else "drawn actions"
        enough = config.evaluation.stop_return
        stop = "" if enough is None else f"; stops at a mean return of {enough:g}"
        episodes = trainer.episode_per_test
        amount = f"{trainer.step_per_test} steps" if episodes is None else f"{episodes} episodes"
        if trainer.evaluator.custom_function is not None:
            amount = getattr(trainer.evaluator.custom_function, "__name__", "a function of yours")
        beside = ", beside training" if trainer.evaluator.beside_training else ""
        return f"{amount} every {every:,} steps, {how}{beside}{stop}{self._evaluation_share_text(every)}"

    def _evaluation_share_text(self, every: int) -> str:
        """Return words about evaluations that may take more than a third of all environment steps, else nothing."""
        trainer, collector = self.trainer, self.trainer.test_collector
        if trainer.evaluator.custom_function is not None or isinstance(trainer, OfflineTrainer) or collector is None:
            return ""
        most = trainer.step_per_test
        if trainer.episode_per_test is not None:
            limits = (getattr(collector.env, "max_episode_steps", None), self.config.evaluation.max_episode_steps)
            known = [limit for limit in limits if limit is not None]
            most = trainer.episode_per_test * min(known) if known else None
        if most is None or 2 * most <= every:
            return ""
        return f"; each may take {most:,} steps, then more than a third of the run's steps are evaluation"


def _store_bytes(store: Any) -> int:
    """Return the memory of a rollout store, its actions included."""
    columns = [*leaves(store.obs), store.rewards, store.terminateds, store.truncateds, store.valid]
    space = store.action_space
    is_whole = not isinstance(space, COMPOSITE) and np.issubdtype(space.dtype, np.integer)
    action = action_width(space) * (8 if is_whole else 4)
    return sum(column.nbytes for column in columns) + store.num_steps * store.num_envs * action


def _replay_bytes(buffer: Any, collector: CollectorLike) -> int:
    """Return the memory of a replay buffer's columns once it has rows."""
    if buffer.nbytes():
        return int(buffer.nbytes())
    options = {**buffer.options.keywords(), "storage": "memory"}
    spaces = {"observation_space": collector.observation_space, "action_space": collector.env.action_space}
    small = ReplayBuffer(2 * buffer.buffer_num, **options, **spaces)
    states = sole_part(collector.policy).get_initial_state(1).values()
    row = small.nbytes() // small.maxsize + sum(leaf.nbytes for leaf in states)
    return row * int(buffer.maxsize)


def _rates(learner: Learner, first: int, last: int) -> dict[str, str]:
    found = {}
    for entry in learner.optimizers:
        schedule, groups = entry.schedule, entry.optimizer.param_groups
        if schedule is None or schedule.constant:
            found[entry.key] = ", ".join(dict.fromkeys(f"{group['lr']:g}" for group in groups)) + " throughout"
        else:
            found[entry.key] = f"{schedule.at(first):g} at the first update, {schedule.at(last):g} at the last"
    return found


def duration_text(seconds: float) -> str:
    """Return `"25 s"`, `"12 min"` or `"3.5 h"`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size_text(num_bytes: int) -> str:
    """Return `"36.0 KiB"`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _space_text(space: Any) -> str:
    if type(space) is dict:  # by module
        return ", ".join(f"{module_id}: {_space_text(part)}" for module_id, part in space.items())
    text = str(space).replace("\n", " ")
    if len(text) > 60:
        shape = "" if getattr(space, "shape", None) is None else f"{space.shape}, {space.dtype}"
        text = f"{type(space).__name__}({shape or f'{len(space.spaces)} parts'})"
    return text


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"
