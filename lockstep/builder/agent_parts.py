"""Builders of environments, collectors and env runners: for one agent (`SingleAgentParts`), and for several
(`MultiAgentParts`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from lockstep.builder.run_config import RunConfig
from lockstep.config.base import Spaces
from lockstep.envs.boundary import VectorBoundary
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.policy.acting import ActingPolicy, AgentsActingPolicy
from lockstep.policy.policy import Policy
from lockstep.rollout import Collector, CollectorLike, EnvRunner, MultiAgentCollector
from lockstep.rollout.env_runner import MultiAgentEnvRunner

EnvsT = TypeVar("EnvsT")
"""Environments that are stepped together: `VectorBoundary` or `AgentEnvs`."""


class AgentParts(ABC, Generic[EnvsT]):
    """Base class of the builders of environments, collectors and env runners.

    Only here builders distinguish between one agent and several, except for tensor environments, which always have one.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @classmethod
    def of(cls, config: RunConfig, is_multi_agent: bool) -> AgentParts[Any]:
        """Return the builder for several agents, or for one."""
        return MultiAgentParts(config) if is_multi_agent else SingleAgentParts(config)

    @abstractmethod
    def check(self) -> None:
        """Raise `ValueError` for options that are not allowed with this number of agents, before processes are
        started."""

    @abstractmethod
    def make_envs(self, num_envs: int) -> EnvsT:
        """Construct the environments of the configuration."""

    @abstractmethod
    def build_collector(self, policy: Policy, envs: EnvsT, options: Mapping[str, Any]) -> CollectorLike:
        """Build the collector that steps these environments in this process.

        `options`: keyword arguments of the collector.
        """

    @abstractmethod
    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build an env runner and its environments.

        Args:
            spaces: Observation space and action space of the policy.
            options: Keyword arguments of the runner.
        """

    def _acting_policy(self, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID) -> ActingPolicy:
        """Return a policy for a runner, with a new network. It gets its weights before it acts."""
        module, connectors = self.config.build_acting_parts(spaces, module_id)
        return ActingPolicy(self.config, module, connectors, observation_space=spaces[0], action_space=spaces[1])


class SingleAgentParts(AgentParts[VectorBoundary]):
    """Builder of environments, collectors and env runners for one agent."""

    def check(self) -> None:
        """Do nothing: the general rules of the configuration are those for one agent."""

    def make_envs(self, num_envs: int) -> VectorBoundary:
        """Construct a vector of environments."""
        return self.config.make_envs(num_envs)

    def build_collector(self, policy: Policy, envs: VectorBoundary, options: Mapping[str, Any]) -> CollectorLike:
        """Build a `Collector`."""
        return Collector(policy, envs, **options)

    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build an `EnvRunner`."""
        acting = self._acting_policy(spaces)
        envs = self.config.make_envs(self.config.env_runners.num_envs_per_env_runner)
        return EnvRunner(acting, envs, with_states=self.config.is_off_policy, **options)


class MultiAgentParts(AgentParts[AgentEnvs]):
    """Builder of environments, collectors and env runners for several agents."""

    def check(self) -> None:
        """Raise `ValueError` for options that are not allowed with several agents."""
        self.config.check_several_agents()

    def make_envs(self, num_envs: int) -> AgentEnvs:
        """Construct environments that are stepped side by side."""
        return self.config.make_agent_envs(num_envs)

    def build_collector(self, policy: Policy, envs: AgentEnvs, options: Mapping[str, Any]) -> CollectorLike:
        """Build a `MultiAgentCollector`."""
        return MultiAgentCollector(policy, envs, **options)

    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build a `MultiAgentEnvRunner`. `spaces` are dicts by module id."""
        observation_spaces, action_spaces = spaces
        parts = {
            module_id: self._acting_policy((space, action_spaces[module_id]), module_id)
            for module_id, space in observation_spaces.items()
        }
        envs = self.config.make_agent_envs(self.config.env_runners.num_envs_per_env_runner)
        return MultiAgentEnvRunner(AgentsActingPolicy(self.config, parts), envs, **options)
