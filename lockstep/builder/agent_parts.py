"""What a run needs around its policy where there is one agent, and where there are several."""

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
"""What is stepped together: `VectorBoundary` or `AgentEnvs`."""


class AgentParts(ABC, Generic[EnvsT]):
    """Builds the environments of a run, and what steps them and stores their steps.

    Here the builders choose between one agent and several, but for tensor environments, which are of one agent.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @classmethod
    def of(cls, config: RunConfig, several: bool) -> AgentParts[Any]:
        """Return the parts for several agents, or for one."""
        return PartsOfAgents(config) if several else PartsOfOneAgent(config)

    @abstractmethod
    def check(self) -> None:
        """Raise `ValueError` for options that do not go with these agents, before anything is started."""

    @abstractmethod
    def make_envs(self, num_envs: int) -> EnvsT:
        """Make the environments, as the configuration does."""

    @abstractmethod
    def build_collector(self, policy: Policy, envs: EnvsT, options: Mapping[str, Any]) -> CollectorLike:
        """Build the collector that steps these environments in this process."""

    @abstractmethod
    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build an env runner with environments of its own."""

    def _acting_policy(self, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID) -> ActingPolicy:
        module, connectors = self.config.build_acting_parts(spaces, module_id)
        return ActingPolicy(self.config, module, connectors, observation_space=spaces[0], action_space=spaces[1])


class PartsOfOneAgent(AgentParts[VectorBoundary]):
    """Builds what steps environments of one agent."""

    def check(self) -> None:
        """Refuse nothing: the configuration's rules are for one agent."""

    def make_envs(self, num_envs: int) -> VectorBoundary:
        """Make a vector of environments."""
        return self.config.make_envs(num_envs)

    def build_collector(self, policy: Policy, envs: VectorBoundary, options: Mapping[str, Any]) -> CollectorLike:
        """Build a `Collector`."""
        return Collector(policy, envs, **options)

    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build an `EnvRunner`."""
        acting = self._acting_policy(spaces)
        envs = self.config.make_envs(self.config.env_runners.num_envs_per_env_runner)
        return EnvRunner(acting, envs, with_states=self.config.is_off_policy, **options)


class PartsOfAgents(AgentParts[AgentEnvs]):
    """Builds what steps environments of several agents, whose parts are mappings by module id."""

    def check(self) -> None:
        """Raise `ValueError` for options with which no trainer is built for several agents."""
        self.config.check_several_agents()

    def make_envs(self, num_envs: int) -> AgentEnvs:
        """Make environments that are stepped side by side."""
        return self.config.make_agent_envs(num_envs)

    def build_collector(self, policy: Policy, envs: AgentEnvs, options: Mapping[str, Any]) -> CollectorLike:
        """Build a `MultiAgentCollector`."""
        return MultiAgentCollector(policy, envs, **options)

    def build_runner(self, spaces: Spaces, options: Mapping[str, Any]) -> EnvRunner:
        """Build a `MultiAgentEnvRunner`. `spaces` are mappings by module id."""
        observation_spaces, action_spaces = spaces
        parts = {
            module_id: self._acting_policy((space, action_spaces[module_id]), module_id)
            for module_id, space in observation_spaces.items()
        }
        envs = self.config.make_agent_envs(self.config.env_runners.num_envs_per_env_runner)
        return MultiAgentEnvRunner(AgentsActingPolicy(self.config, parts), envs, **options)
