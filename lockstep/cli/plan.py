"""`Plan`: the numbers of a run, printed before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.minibatch import minibatches_per_pass
from lockstep.trainer import OfflineTrainer, OnpolicyTrainer
from lockstep.trainer.build import Trainer


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
            envs, env = collector.env, config.environment.env
            name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
            where = f"{envs.num_envs} x {name} ({envs.backend}, {envs.autoreset_mode}): "
        parameters = [p for p in policy.module.parameters() if p.requires_grad]
        num_bytes = sum(p.numel() * p.element_size() for p in parameters)
        framework, threads = config.framework, torch.get_num_threads()
        how = "compiled (the first update takes 10-20 s longer)" if framework.compile else "eager"
        return {
            "settings": "; ".join(sources),
            "environments": f"{where}{_space_text(policy.observation_space)} -> {_space_text(policy.action_space)}",
            **self._updates(),
            "networks": f"{sum(p.numel() for p in parameters):,} parameters ({size_text(num_bytes)})",
            "device": f"{framework.device}, {framework.dtype}, {_count(threads, 'thread', 'threads')}, {how}",
            "evaluation": self._evaluation_text(),
        }

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
            return {"updates": steps, "gradient steps": self._minibatches_text(trainer, num_updates, per_update)}
        return {
            "updates": f"{trainer.update_per_step:g} gradient steps for each of {left:,} environment steps, after "
            f"{trainer.learning_starts:,} random ones{self._beyond()}",
            "gradient steps": f"{'about ' if self._varies() else ''}{trainer.gradient_steps_left:,} on "
            f"{f'{trainer.batch_size:,}' if trainer.batch_size else 'all'} transitions each",
            "replay buffer": f"{buffer.maxsize:,} transitions, {len(buffer):,} in it",
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
        return next_step or self.config.env_runners.batch_mode == "complete_episodes"

    def _beyond(self) -> str:
        """Return words about a last collect that goes beyond the steps asked for."""
        asked, total = self.trainer.total_steps, self.trainer.steps_in_all
        if asked is None or total == asked:
            return ""
        return f" (whole collects: the run ends at {total:,}, the first that has the {asked:,} asked for)"

    def _evaluation_text(self) -> str:
        trainer, config = self.trainer, self.config
        if trainer.test_collector is None:
            return "none"
        every = trainer.step_per_epoch * trainer.test_interval
        epsilon, how = config.evaluation.epsilon, "most likely actions"
        if epsilon or config.evaluation.evaluation_explore:
            how = f"epsilon {epsilon:g}" if epsilon else "drawn actions"
        wanted = config.evaluation.stop_return
        stop = "" if wanted is None else f"; stops at a mean return of {wanted:g}"
        return f"{trainer.episode_per_test} episodes every {every:,} steps, {how}{stop}"


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
