"""Plan of a run, printed before it begins: settings, gradient steps, networks, evaluations, and a guess of the time."""

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

SECONDS_OF_A_GRADIENT_STEP = 5e-4
"""Time of a gradient step in addition to its arithmetic."""
SECONDS_OF_AN_ENV_STEP = 5e-5
"""Time of an environment step and its action."""
FLOPS_OF_A_ROW = 6
"""Operations for each parameter and row of a minibatch: two forward, four backward."""
FLOPS_OF_A_THREAD = 1e10
"""Operations of one thread in a second."""
MAX_SPACE_TEXT = 60
"""Longest text of a space that is printed as gymnasium writes it."""


class Plan:
    """Description of what a trainer will do from its current step on."""

    def __init__(self, trainer: Trainer, config: AlgorithmConfig) -> None:
        self.trainer = trainer
        self.config = config

    def facts(self, sources: Sequence[str]) -> dict[str, str]:
        """Return the plan as text by subject. `sources`: where the settings come from, in words."""
        return {
            "settings": "; ".join(sources),
            **self._agents(),
            "environments": self._environments_text(),
            **self.trainer.describe_updates(),
            "learning rate": self._rates_text(),
            "networks": self._networks_text(),
            **self._groups(),
            "device": self._device_text(),
            "evaluation": self._evaluation_text(),
            **self._time(),
        }

    # -- agents and environments ---

    def _agents(self) -> dict[str, str]:
        """Return which policy acts for which agents; empty for a single agent."""
        collector = self.trainer.train_collector or self.trainer.test_collector
        agents_of_modules = getattr(collector, "agents_of_modules", {})
        texts = [
            f"{module_id} acts for {', '.join(map(str, agents))}" for module_id, agents in agents_of_modules.items()
        ]
        return {"policies": "; ".join(texts)} if texts else {}

    def _environments_text(self) -> str:
        """Return number, name and kind of the environments, and their spaces; only the spaces without a collector."""
        policy = self.trainer.policy
        spaces = f"{_space_text(policy.observation_space)} -> {_space_text(policy.action_space)}"
        collector = self.trainer.train_collector or self.trainer.test_collector
        if collector is None:
            return spaces
        envs = collector.env
        name = name_of_env(self.config.environment.env)
        return f"{envs.num_envs} x {name} ({envs.backend}, {envs.autoreset_mode}): {spaces}"

    # -- networks and time ---

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.trainer.policy.module.parameters() if p.requires_grad]

    def _networks_text(self) -> str:
        """Return the number of parameters, and the part of the critics, whose layer widths are a separate option."""
        module = self.trainer.policy.module
        parameters = self._parameters
        num_bytes = sum(p.numel() * p.element_size() for p in parameters)
        text = f"{sum(p.numel() for p in parameters):,} parameters ({size_text(num_bytes)})"

        critics = [part for part in module.modules() if isinstance(part, ActionCritics)]
        if critics:
            num_critic_parameters = sum(_num_parameters(part) for part in critics)
            widths = ", ".join(map(str, critics[0].hiddens))
            text += (
                f", {num_critic_parameters:,} of them in critics with layers of {widths} (model_config.critic_hiddens)"
            )
        return text

    def _groups(self) -> dict[str, str]:
        """Return which entries of observations the parts of each network see; empty if all parts see all."""
        parts = self.trainer.policy.acting
        texts = []
        for module_id, part in parts.items():
            groups = part.module.observation_groups
            seen = [f"{name} sees {', '.join(keys)}" for name, keys in groups.items()]
            if seen:
                prefix = f"{module_id}: " if len(parts) > 1 else ""
                texts.append(prefix + ", ".join(seen))
        return {"observations": "; ".join(texts)} if texts else {}

    def _device_text(self) -> str:
        """Return device, precision, threads, and whether updates are compiled."""
        framework = self.trainer.policy.config.framework
        if framework.compile is not True:
            mode = "eager"
        elif framework.device == "cpu" and framework.compile_after:
            mode = f"compiled after {framework.compile_after:,} gradient steps"
        else:
            mode = "compiled (a first start waits for the compiler)"
        threads = count_text(torch.get_num_threads(), "thread", "threads")
        return f"{framework.device}, {framework.dtype}, {threads}, {mode}"

    def _time(self) -> dict[str, str]:
        """Return a first guess of the run's duration on a processor; empty for other devices."""
        if self.config.framework.device != "cpu":
            return {}
        num_steps, num_rows = self.trainer.work_left()
        num_parameters = sum(p.numel() for p in self._parameters)
        arithmetic = FLOPS_OF_A_ROW * num_parameters * num_rows / (FLOPS_OF_A_THREAD * torch.get_num_threads())
        environments = self.trainer.steps_left * SECONDS_OF_AN_ENV_STEP if self.trainer.collects else 0.0
        guess = duration_text(num_steps * SECONDS_OF_A_GRADIENT_STEP + arithmetic + environments)
        return {"time": f"a first guess is {guess}; images, memory and slow environments take longer"}

    # -- learning rates and evaluation ---

    def _rates_text(self) -> str:
        """Return the learning rates of the first and the last update, for each optimizer if they differ."""
        updates = self.trainer.first_and_last_update()
        rates: dict[str, str] = self.trainer.policy.learner_group.first_learner(_rates, *updates)
        texts = set(rates.values())
        if len(texts) == 1:
            return texts.pop()
        return "; ".join(f"{name} {text}" for name, text in rates.items())

    def _evaluation_text(self) -> str:
        trainer = self.trainer
        options = self.config.evaluation
        if trainer.test_collector is None:
            return "none"

        custom_function = trainer.evaluator.custom_function
        if custom_function is not None:
            amount = getattr(custom_function, "__name__", "a function of yours")
        elif trainer.episode_per_test is None:
            amount = f"{trainer.step_per_test} steps"
        else:
            amount = f"{trainer.episode_per_test} episodes"

        if options.epsilon:
            actions = f"epsilon {options.epsilon:g}"
        elif options.evaluation_explore:
            actions = "drawn actions"
        else:
            actions = "most likely actions"

        interval = trainer.step_per_epoch * trainer.test_interval
        text = f"{amount} every {interval:,} steps, {actions}"
        if trainer.evaluator.is_parallel:
            text += ", at the same time as training"
        if getattr(trainer.test_collector.env, "backend", None) == "tensor":
            text += ", steps copied to the host"
        if options.stop_return is not None:
            text += f"; stops at a mean return of {options.stop_return:g}"
        return text + self._evaluation_share_text(interval)

    def _evaluation_share_text(self, interval: int) -> str:
        """Return the share of evaluation in all environment steps if it may be over a third; otherwise an empty text.

        `interval`: training steps from one evaluation to the next.
        """
        trainer = self.trainer
        collector = trainer.test_collector
        if trainer.evaluator.custom_function is not None or not trainer.collects or collector is None:
            return ""

        max_steps = trainer.step_per_test
        if trainer.episode_per_test is not None:
            limits = (getattr(collector.env, "max_episode_steps", None), self.config.evaluation.max_episode_steps)
            known_limits = [limit for limit in limits if limit is not None]
            max_steps = trainer.episode_per_test * min(known_limits) if known_limits else None
        if max_steps is None or 2 * max_steps <= interval:
            return ""
        return f"; may take up to {max_steps / (max_steps + interval):.0%} of all steps"


def _rates(learner: Learner, first: int, last: int) -> dict[str, str]:
    """Return the learning rates of a learner's optimizers at two updates, in words. Runs in the learner's process."""
    rates = {}
    for entry in learner.optimizers:
        schedule = entry.schedule
        if schedule is None or schedule.constant:
            group_rates = [f"{group['lr']:g}" for group in entry.optimizer.param_groups]
            rates[entry.key] = ", ".join(dict.fromkeys(group_rates)) + " throughout"
        else:
            rates[entry.key] = f"{schedule.at(first):g} at the first update, {schedule.at(last):g} at the last"
    return rates


def _num_parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _space_text(space: Any) -> str:
    """Return a space as text, shortened to kind and shape if it is long. A dict has a space for each module."""
    if type(space) is dict:
        return ", ".join(f"{module_id}: {_space_text(part)}" for module_id, part in space.items())
    text = str(space).replace("\n", " ")
    if len(text) <= MAX_SPACE_TEXT:
        return text
    if getattr(space, "shape", None) is None:
        return f"{type(space).__name__}({len(space.spaces)} parts)"
    return f"{type(space).__name__}({space.shape}, {space.dtype})"
