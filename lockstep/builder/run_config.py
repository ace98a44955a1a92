"""`RunConfig`: the configuration of a whole run, without anything that builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from lockstep.config.base import BaseConfig, Spaces
from lockstep.config.rules import OF_SEVERAL_AGENTS, RULES, Rule, refuse
from lockstep.envs.make import TimeLimitedMaker
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.envs.tensor import TENSOR_ENVS
from lockstep.learner.optimizers import check_configured_optimizer
from lockstep.options.section import settings_by_path
from lockstep.policy.policy import Policy
from lockstep.rollout import EnvRunner, EnvRunnerGroup

OF_EVALUATION = (
    *("environment.env", "environment.env_config"),
    *("env_runners.explore", "env_runners.vectorize_mode", "env_runners.step_timeout", "env_runners.sample_timeout_s"),
    *("env_runners.num_cpus_per_env_runner", "env_runners.num_gpus_per_env_runner"),
    "env_runners.custom_resources_per_env_runner",
)
"""options that `evaluation_config` may set; what observations and actions go through is part of the policy"""


class RunConfig(BaseConfig, ABC):
    """The configuration of a whole run: rules across its sections, its evaluation, environments and fragments.

    A `Builder` asks it, by methods that users override in their configurations. Those that build are written in
    `AlgorithmConfig`, which stands above the builders.
    """

    learns_from_tensors: ClassVar[bool] = False
    """Whether its learner takes a `TensorRollout`, or draws from a `TensorReplay`."""
    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """Rules between options that an algorithm adds to those of all, see `lockstep.config.rules`."""

    # -- checks across sections ---

    def validate(self) -> None:
        """Refuse options that do not go together; every build calls it. `ValueError` names them and their values."""
        super().validate()
        refuse(self, RULES)
        self.evaluation_settings()
        for module_id, overrides in self.rl_module.algorithm_config_overrides_per_module.items():
            try:
                check_configured_optimizer(self.training.overridden(overrides))
            except (TypeError, ValueError) as error:
                where = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
                raise type(error)(f"{where}: {error}") from None
        refuse(self, self.rules)

    def allows_compiling(self) -> bool:
        """Return whether `framework(compile=True)`, which some algorithms refuse, could be asked for."""
        compiled = self.with_sections()
        compiled.framework.compile = True
        try:
            compiled.validate()
        except ValueError:
            return False
        return True

    # -- evaluation ---

    def evaluation_settings(self) -> Self:
        """Return the configuration that evaluation makes its environments with: `evaluation_config` set, and
        `env_runners` those of evaluation.

        Raises `ValueError` for an option that is unknown, or that evaluation shares with training.
        """
        section, config = self.evaluation, self.copy()
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
            if not f"{path}.".startswith(tuple(f"{each}." for each in OF_EVALUATION)):
                raise ValueError(
                    f"evaluation.evaluation_config[{path!r}]={value!r} is not allowed: it is the same in training and "
                    f"evaluation, or an option of evaluation(...); others are {', '.join(OF_EVALUATION)}"
                )
        if section.max_episode_steps is not None:
            config.environment(config.time_limited_env(section.max_episode_steps))
        return config

    def time_limited_env(self, limit: int) -> TimeLimitedMaker:
        """Return a function that makes the environment with episodes of at most `limit` steps. `ValueError` where
        single environments are not made."""
        env, mode = self.environment.env, self.env_runners.vectorize_mode
        reason = ""
        if self.is_multi_agent:
            reason = "for several agents"
        elif isinstance(env, str) and env in TENSOR_ENVS:
            reason = f"for {env}, whose rows are stepped together"
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
        """Make the environments of several agents; `ValueError` for options that do not go with them."""
        self.check_several_agents()
        env, section = self.environment.env, self.multi_agent
        added: Any = {"agent_ids": section.agent_id_in_obs, "critic": section.centralized_critic}
        if not isinstance(env, str) and not callable(env):
            return AgentEnvs(env, **added)
        return AgentEnvs(env, num_envs, self.environment.env_config, **added)

    def check_several_agents(self) -> None:
        """Raise `ValueError` for options with which nothing is built that steps several agents."""
        if self.is_offline:
            raise ValueError(
                f"{self.algorithm} learns from data that are there already, which no trainer does for several agents; "
                "use build_learner_group() and update_from_batch(MultiAgentBatch)"
            )
        refuse(self, OF_SEVERAL_AGENTS)

    def fragments(self) -> tuple[int, int]:
        """Return the vector steps of a fragment, and how many fragments reach `train_batch_size`.

        Without a `rollout_fragment_length`, fragments of all runners make one batch.
        """
        section, batch = self.env_runners, self.training.train_batch_size
        num_envs = section.num_envs_per_env_runner
        num_runners = max(1, section.num_env_runners)  # without runners this process is the one
        length = section.rollout_fragment_length or -(-batch // (num_runners * num_envs))
        return length, max(1, -(-batch // (length * num_envs)))

    @property
    def steps_per_batch(self) -> int:
        """Environment steps in a train batch of whole fragments."""
        length, number = self.fragments()
        return length * number * self.env_runners.num_envs_per_env_runner

    # -- what builders ask of `AlgorithmConfig` ---

    @abstractmethod
    def collects_tensors(self, policy: Policy) -> bool:
        """Return whether steps of tensor environments are collected and learned from on their device."""

    @abstractmethod
    def build_env_runner_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build env runners that sample together."""

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
        """Build the runner number `index` of `num_runners`."""
