"""`RunConfig`: the configuration of a whole run, without the methods that build its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from lockstep.config.base import BaseConfig, Spaces
from lockstep.config.rules import OF_SEVERAL_AGENTS, RULES, Rule, refuse
from lockstep.envs.make import TimeLimitedMaker, name_of_env, tensor_class
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.learner.optimizers import check_configured_optimizer
from lockstep.options.section import settings_by_path
from lockstep.policy.policy import Policy
from lockstep.rollout import EnvRunner, EnvRunnerGroup

EVALUATION_OPTIONS = (
    "environment.env",
    "environment.env_config",
    "env_runners.explore",
    "env_runners.vectorize_mode",
    "env_runners.step_timeout",
    "env_runners.sample_timeout_s",
    "env_runners.num_cpus_per_env_runner",
    "env_runners.num_gpus_per_env_runner",
    "env_runners.custom_resources_per_env_runner",
)
"""Options that `evaluation_config` may set. Options of connectors are not among them: connectors are part of the
policy.
"""


class RunConfig(BaseConfig, ABC):
    """Configuration of a whole run: rules between its sections, settings of evaluation, environments and fragments.

    Builders call its methods, which users may override. The methods that build parts are abstract here and implemented
    in `AlgorithmConfig`, which imports the builders.
    """

    learns_from_tensors: ClassVar[bool] = False
    """Whether the algorithm's learner can learn from a `TensorRollout` or a `TensorReplay`."""
    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """Rules between options of one algorithm, in addition to the general ones; see `lockstep.config.rules`."""

    # -- checks across sections ---

    def validate(self) -> None:
        """Raise `ValueError` for options that contradict each other. Each method that builds a part calls this
        first."""
        super().validate()
        refuse(self, RULES)
        self.evaluation_settings()
        for module_id, overrides in self.rl_module.algorithm_config_overrides_per_module.items():
            try:
                check_configured_optimizer(self.training.overridden(overrides))
            except (TypeError, ValueError) as error:
                path = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
                raise type(error)(f"{path}: {error}") from None
        refuse(self, self.rules)

    def allows_compiling(self) -> bool:
        """Return whether `framework(compile=True)` is allowed, which some algorithms refuse."""
        compiled = self.with_sections()
        compiled.framework.compile = True
        try:
            compiled.validate()
        except ValueError:
            return False
        return True

    # -- evaluation ---

    def evaluation_settings(self) -> Self:
        """Return the configuration of evaluation: this one with the env runners of evaluation and `evaluation_config`.

        Raises `ValueError` for an option that is unknown, or that must be the same in training and evaluation.
        """
        section = self.evaluation
        config = self.copy()
        runners = max(1, section.evaluation_num_env_runners)
        config.env_runners(
            num_env_runners=section.evaluation_num_env_runners,
            num_envs_per_env_runner=section.num_envs // runners,
            batch_mode="truncate_episodes",
            explore=section.evaluation_explore,
        )
        for path, value in settings_by_path(section.evaluation_config).items():
            try:
                config.set_path(path, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"evaluation.evaluation_config[{path!r}]: {error}") from None
            # The path may lead into an allowed option: "environment.env_config.size".
            is_allowed = f"{path}.".startswith(tuple(f"{option}." for option in EVALUATION_OPTIONS))
            if not is_allowed:
                raise ValueError(
                    f"evaluation.evaluation_config[{path!r}]={value!r} is not allowed: it is the same in training and "
                    f"evaluation, or an option of evaluation(...); others are {', '.join(EVALUATION_OPTIONS)}"
                )
        if section.max_episode_steps is not None:
            config.environment(config.time_limited_env(section.max_episode_steps))
        return config

    def time_limited_env(self, limit: int) -> TimeLimitedMaker:
        """Return a function that constructs the environment with episodes of at most `limit` steps.

        Raises `ValueError` if single environments are not constructed, which alone can be wrapped.
        """
        env = self.environment.env
        mode = self.env_runners.vectorize_mode
        reason = ""
        if self.is_multi_agent:
            reason = "for several agents"
        elif tensor_class(env) is not None:
            reason = f"for {name_of_env(env)}, whose rows are stepped together"
        elif mode in ("vector", "envpool"):
            reason = f"with env_runners.vectorize_mode={mode!r}, where rows are stepped together"
        elif not isinstance(env, str) and not callable(env):
            reason = f"for environment.env={env!r}, which is finished; give an id, a class or a function"
        if reason:
            raise ValueError(
                f"evaluation.max_episode_steps={limit} is not allowed {reason}; limit the episodes in the environment "
                "itself, and leave the option out"
            )
        return TimeLimitedMaker(env, limit)

    # -- environments and fragments ---

    def make_agent_envs(self, num_envs: int) -> AgentEnvs:
        """Construct environments of several agents. Raises `ValueError` for options that are not allowed with them."""
        self.check_several_agents()
        env = self.environment.env
        section = self.multi_agent
        options: Any = {"agent_ids": section.agent_id_in_obs, "critic": section.centralized_critic}
        is_finished = not isinstance(env, str) and not callable(env)
        if is_finished:
            return AgentEnvs(env, **options)
        return AgentEnvs(env, num_envs, self.environment.env_config, **options)

    def check_several_agents(self) -> None:
        """Raise `ValueError` for options that are not allowed with several agents."""
        if self.is_offline:
            raise ValueError(
                f"{self.algorithm} learns from data that are there already, which no trainer does for several agents; "
                "use build_learner_group() and update_from_batch(MultiAgentBatch)"
            )
        refuse(self, OF_SEVERAL_AGENTS)

    def fragments(self) -> tuple[int, int]:
        """Return the number of vector steps of a fragment, and the number of fragments of a train batch.

        The fragments of a batch have at least `train_batch_size` steps. Without `rollout_fragment_length`, one fragment
        of each runner makes a batch.
        """
        section = self.env_runners
        batch_size = self.training.train_batch_size
        num_envs = section.num_envs_per_env_runner
        num_runners = max(1, section.num_env_runners)  # 0: this process collects like one runner
        length = section.rollout_fragment_length or -(-batch_size // (num_runners * num_envs))
        num_fragments = max(1, -(-batch_size // (length * num_envs)))
        return length, num_fragments

    @property
    def steps_per_batch(self) -> int:
        """Number of environment steps in a train batch of whole fragments."""
        length, number = self.fragments()
        return length * number * self.env_runners.num_envs_per_env_runner

    # -- methods that `AlgorithmConfig` implements ---

    @abstractmethod
    def collects_tensors(self, policy: Policy) -> bool:
        """Return whether steps of tensor environments are collected and learned from on their device."""

    @abstractmethod
    def build_env_runner_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build the group of env runners."""

    @abstractmethod
    def build_env_runner(
        self,
        spaces: Spaces,
        with_logp: bool = False,
        evaluates: bool = False,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
    ) -> EnvRunner:
        """Build one env runner and its environments."""
