"""PettingZoo environments, env step by env step: parallel ones (all agents act at once) and turn-based (AEC) ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode
from lockstep.envs.trees import as_row

AgentID = Any
AgentDict = Mapping[AgentID, Any]
MappingFn = Callable[[AgentID, MultiAgentEpisode], str]
Came = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]
"""observations, rewards, terminateds, truncateds and infos of an env step, by agent"""


def play_of(env: Any, agent_to_module_mapping_fn: MappingFn | None = None) -> Play:
    """How `env` is played. `ValueError` for something that is no PettingZoo environment."""
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        raise ValueError(
            f"{env!r} is no PettingZoo environment; give a ParallelEnv or an AECEnv, with methods reset, step, "
            "observation_space(agent) and action_space(agent)"
        )
    kind = TurnPlay if callable(getattr(env, "last", None)) else ParallelPlay
    return kind(env, agent_to_module_mapping_fn)


class Play:
    """Plays an environment and writes what happens into `episode`; `to_act` has the observations to answer.

    `episode` may be replaced by its successor (`episode.cut()`) between two steps.
    """

    def __init__(self, env: Any, agent_to_module_mapping_fn: MappingFn | None = None) -> None:
        self.env, self.mapping_fn = env, agent_to_module_mapping_fn
        self.episode = MultiAgentEpisode()
        self.to_act: dict[AgentID, Any] = {}
        self._spaces: dict[AgentID, Any] = {}

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None, id_: str | None = None) -> None:
        """A new episode: resets the environment."""
        observations, infos = self._reset(seed, options)
        agents = getattr(self.env, "possible_agents", None) or ()
        self._spaces = {agent: self.env.observation_space(agent) for agent in agents}
        self.episode = MultiAgentEpisode(
            id_,
            observation_space=self._spaces or None,
            action_space={agent: self.env.action_space(agent) for agent in agents} or None,
            agent_to_module_mapping_fn=self.mapping_fn,
        )
        observations = self._own(observations)
        self.episode.add_env_reset(observations, infos)
        self._ask(observations)

    def step(
        self, actions: AgentDict, *, stored: AgentDict | None = None, extras: AgentDict | None = None
    ) -> AgentDict:
        """One env step with the actions of all agents to act; returns the rewards that came.

        `stored`: the actions to write into the episode, where those are others; `extras`: their model outputs. Raises
        `MultiAgentEnvError` for data that cannot be.
        """
        observations, rewards, terminateds, truncateds, infos = self._step(actions)
        observations = self._own(observations)
        going_on = {"__all__": False} if self.env.agents else {}
        self.episode.add_env_step(
            observations,
            actions if stored is None else stored,
            rewards,
            infos,
            terminateds={**terminateds, **going_on},
            truncateds={**truncateds, **going_on},
            extra_model_outputs=extras,
        )
        left = [agent for agent in self.episode.get_agents_to_act() if agent not in self.env.agents]
        if left:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, left))} left the environment in env step {self.episode.env_t - 1} and were "
                "neither terminated nor truncated"
            )
        self._ask(observations)
        return rewards

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        raise TypeError(f"{type(self).__name__} says not how to reset; use play_of(env)")

    def _step(self, actions: AgentDict) -> Came:
        raise TypeError(f"{type(self).__name__} says not how to step; use play_of(env)")

    def _ask(self, observations: AgentDict) -> None:
        """Who is to act now."""
        able = self.episode.get_agents_to_act()
        idle = [agent for agent in self.env.agents if agent not in able]
        if idle:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, idle))} are in env.agents at t={self.episode.env_t}, but are done or got no "
                "observation; an environment takes out who is done and gives everyone else an observation"
            )
        self.to_act = {agent: observations[agent] for agent in self.env.agents}

    def _own(self, observations: AgentDict) -> dict[AgentID, Any]:
        """Copies, as the spaces have them: an environment may write into its arrays again."""
        own = {}
        for agent, observation in observations.items():
            try:
                own[agent] = as_row(self._spaces.get(agent), observation)
            except ValueError as error:
                raise MultiAgentEnvError(f"agent {agent!r} at t={self.episode.env_t}: {error}") from None
        return own


class ParallelPlay(Play):
    """A `ParallelEnv`: an env step is one action of every agent that is there."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, infos

    def _step(self, actions: AgentDict) -> Came:
        observations, rewards, terminateds, truncateds, infos = self.env.step(dict(actions))
        rewards = {agent: reward for agent, reward in rewards.items() if agent in actions or agent in observations}
        infos = {agent: info for agent, info in infos.items() if agent in observations}
        return observations, rewards, terminateds, truncateds, infos


class TurnPlay(Play):
    """An `AECEnv`: an env step is one action, of the agent whose turn it is.

    An agent observes when it is selected; its rewards, which may come while others act, are summed until then.
    """

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        observations, infos, _, _ = self._selected()
        return observations, infos

    def _step(self, actions: AgentDict) -> Came:
        self.env.step(actions[self.env.agent_selection])
        rewards = {agent: reward for agent, reward in self.env.rewards.items() if agent in self.env.agents}
        observations, infos, terminateds, truncateds = self._selected()
        return observations, rewards, terminateds, truncateds, infos

    def _selected(self) -> tuple[dict[AgentID, Any], ...]:
        """(observations, infos, terminateds, truncateds) of the agent to act and of those that end before it."""
        env = self.env
        observations: dict[AgentID, Any] = {}
        infos: dict[AgentID, Any] = {}
        flags: tuple[dict[AgentID, bool], dict[AgentID, bool]] = ({}, {})
        while env.agents:
            agent = env.agent_selection
            observations[agent], _, terminated, truncated, infos[agent] = env.last()
            if not (terminated or truncated):
                break
            flags[0][agent], flags[1][agent] = bool(terminated), bool(truncated)
            env.step(None)  # takes a done agent out; no time passes
        return observations, infos, *flags

    def _ask(self, observations: AgentDict) -> None:
        self.to_act = {agent: value for agent, value in observations.items() if agent in self.env.agents}
