"""`Plan`: the numbers of a run, printed before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.envs.make import name_of_env
from lockstep.learner.learner import Learner
from lockstep.modules.defaults.action_critics import ActionCritics
from lockstep.options.texts import count_text, duration_text, size_text
from lockstep.trainer.build import Trainer

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

    def facts(self, sources: Sequence[str]) -> dict[str, str]:
        """Return the plan by subject; `sources`: where the settings come from."""
        trainer, config = self.trainer, self.config
        policy, collector = trainer.policy, trainer.train_collector or trainer.test_collector
        where = ""
        if collector is not None:
            envs, name = collector.env, name_of_env(config.environment.env)
            where = f"{envs.num_envs} x {name} ({envs.backend}, {envs.autoreset_mode}): "
        framework, threads = policy.config.framework, torch.get_num_threads()
        how = "eager"
        if framework.compile is True:
            after = framework.compile_after if framework.device == "cpu" else 0
            how = (
                f"compiled after {after:,} gradient steps"
                if after
                else "compiled (a first start waits for the compiler)"
            )
        return {
            "settings": "; ".join(sources),
            **self._agents(),
            "environments": f"{where}{_space_text(policy.observation_space)} -> {_space_text(policy.action_space)}",
            **trainer.describe_updates(),
            "learning rate": self._rates_text(),
            "networks": self._networks_text(),
            "device": f"{framework.device}, {framework.dtype}, {count_text(threads, 'thread', 'threads')}, {how}",
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
        steps, rows = self.trainer.work_left()
        num_parameters = sum(p.numel() for p in self._parameters)
        work = FLOPS_OF_A_ROW * num_parameters * rows / (FLOPS_OF_A_THREAD * torch.get_num_threads())
        of_envs = self.trainer.steps_left * SECONDS_OF_AN_ENV_STEP if self.trainer.collects else 0.0
        guess = duration_text(steps * SECONDS_OF_A_GRADIENT_STEP + work + of_envs)
        return {"time": f"a first guess is {guess}; images, memory and slow environments take longer"}

    def _agents(self) -> dict[str, str]:
        """Return which policy acts for which agents, where there are several."""
        of_modules = getattr(self.trainer.train_collector or self.trainer.test_collector, "agents_of_modules", {})
        text = "; ".join(
            f"{module_id} acts for {', '.join(map(str, names))}" for module_id, names in of_modules.items()
        )
        return {"policies": text} if text else {}

    # -- learning rates ---

    def _rates_text(self) -> str:
        """Return the learning rates of the first and the last update; by optimizer where they differ."""
        trainer = self.trainer
        updates = trainer.first_and_last_update()
        rates: dict[str, str] = trainer.policy.learner_group.first_learner(_rates, *updates)
        texts = set(rates.values())
        return texts.pop() if len(texts) == 1 else "; ".join(f"{name} {text}" for name, text in rates.items())

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
        beside = ", beside training" if trainer.evaluator.is_parallel else ""
        return f"{amount} every {every:,} steps, {how}{beside}{stop}{self._evaluation_share_text(every)}"

    def _evaluation_share_text(self, every: int) -> str:
        """Return words about evaluations that may take more than a third of all environment steps, else nothing."""
        trainer, collector = self.trainer, self.trainer.test_collector
        if trainer.evaluator.custom_function is not None or not trainer.collects or collector is None:
            return ""
        most = trainer.step_per_test
        if trainer.episode_per_test is not None:
            limits = (getattr(collector.env, "max_episode_steps", None), self.config.evaluation.max_episode_steps)
            known = [limit for limit in limits if limit is not None]
            most = trainer.episode_per_test * min(known) if known else None
        if most is None or 2 * most <= every:
            return ""
        return f"; each may take {most:,} steps, then more than a third of the run's steps are evaluation"


def _rates(learner: Learner, first: int, last: int) -> dict[str, str]:
    found = {}
    for entry in learner.optimizers:
        schedule, groups = entry.schedule, entry.optimizer.param_groups
        if schedule is None or schedule.constant:
            found[entry.key] = ", ".join(dict.fromkeys(f"{group['lr']:g}" for group in groups)) + " throughout"
        else:
            found[entry.key] = f"{schedule.at(first):g} at the first update, {schedule.at(last):g} at the last"
    return found


def _space_text(space: Any) -> str:
    if type(space) is dict:  # by module
        return ", ".join(f"{module_id}: {_space_text(part)}" for module_id, part in space.items())
    text = str(space).replace("\n", " ")
    if len(text) > 60:
        shape = "" if getattr(space, "shape", None) is None else f"{space.shape}, {space.dtype}"
        text = f"{type(space).__name__}({shape or f'{len(space.spaces)} parts'})"
    return text
