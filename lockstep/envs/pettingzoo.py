"""PettingZoo environments: stepped side by side, env step by env step, or recorded as episodes.

Parallel ones, where all agents act at once, and turn-based (AEC) ones are played alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode
from lockstep.envs.trees import as_row
from lockstep.state.checks import check_whole

AgentID = Any
AgentDict = Mapping[AgentID, Any]
MappingFn = Callable[[AgentID, MultiAgentEpisode], str]
Act = Callable[[dict[AgentID, Any]], Any]
StepOutcome = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]
"""Observations, rewards, terminateds, truncateds and infos of an env step, by agent."""
PettingZooEnv = Any
"""A `ParallelEnv` or an `AECEnv`."""


class Play(ABC):
    """Plays an environment and writes what happens into `episode`; `to_act` has the observations to answer.

    `episode` may be replaced by its successor (`episode.cut()`) between two steps.
    """

    def __init__(self, env: PettingZooEnv, agent_to_module_mapping_fn: MappingFn | None = None) -> None:
        self.env, self.mapping_fn = env, agent_to_module_mapping_fn
        self.episode = MultiAgentEpisode()
        self.keeps_whole, self.whole = False, MultiAgentEpisode()
        """is the whole episode recorded a second time, with actions as the environment takes them; and that record"""
        self.to_act: dict[AgentID, Any] = {}
        self._spaces: dict[AgentID, Any] = {}

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None, id_: str | None = None) -> None:
        """Reset the environment and begin a new episode."""
        observations, infos = self._reset(seed, options)
        agents = getattr(self.env, "possible_agents", None) or ()
        self._spaces = {agent: self.env.observation_space(agent) for agent in agents}
        options_of_episodes: dict[str, Any] = {
            "observation_space": self._spaces or None,
            "action_space": {agent: self.env.action_space(agent) for agent in agents} or None,
            "agent_to_module_mapping_fn": self.mapping_fn,
        }
        self.episode = MultiAgentEpisode(id_, **options_of_episodes)
        observations = self._copied(observations)
        self.episode.add_env_reset(observations, infos)
        if self.keeps_whole:
            self.whole = MultiAgentEpisode(id_, **options_of_episodes)
            self.whole.add_env_reset(observations, infos)
        self._choose_who_acts(observations)

    def step(
        self, actions: AgentDict, *, stored: AgentDict | None = None, extras: AgentDict | None = None
    ) -> AgentDict:
        """Take one env step with the actions of all agents to act; return the rewards that came.

        Args:
            stored: the actions to write into the episode, where those are others.
            extras: the model outputs of the actions.

        Raises:
            MultiAgentEnvError: data that cannot be.
        """
        observations, rewards, terminateds, truncateds, infos = self._step(actions)
        observations = self._copied(observations)
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
        if self.keeps_whole:
            flags: dict[str, Any] = {
                "terminateds": {**terminateds, **going_on},
                "truncateds": {**truncateds, **going_on},
            }
            self.whole.add_env_step(observations, actions, rewards, infos, **flags)
        left = [agent for agent in self.episode.get_agents_to_act() if agent not in self.env.agents]
        if left:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, left))} left the environment in env step {self.episode.env_t - 1} and were "
                "neither terminated nor truncated"
            )
        self._choose_who_acts(observations)
        return rewards

    @abstractmethod
    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        """Reset the environment; return observations and infos."""

    @abstractmethod
    def _step(self, actions: AgentDict) -> StepOutcome:
        """Step the environment."""

    @abstractmethod
    def _choose_who_acts(self, observations: AgentDict) -> None:
        """Set `to_act`."""

    def _copied(self, observations: AgentDict) -> dict[AgentID, Any]:
        """Return copies, as the spaces have them: an environment may write into its arrays again."""
        copies = {}
        for agent, observation in observations.items():
            try:
                copies[agent] = as_row(self._spaces.get(agent), observation)
            except ValueError as error:
                raise MultiAgentEnvError(f"agent {agent!r} at t={self.episode.env_t}: {error}") from None
        return copies


class ParallelPlay(Play):
    """Plays a `ParallelEnv`: an env step is one action of every agent that is there."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, infos

    def _step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self.env.step(dict(actions))
        rewards = {agent: reward for agent, reward in rewards.items() if agent in actions or agent in observations}
        infos = {agent: info for agent, info in infos.items() if agent in observations}
        return observations, rewards, terminateds, truncateds, infos

    def _choose_who_acts(self, observations: AgentDict) -> None:
        able = self.episode.get_agents_to_act()
        idle = [agent for agent in self.env.agents if agent not in able]
        if idle:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, idle))} are in env.agents at t={self.episode.env_t}, but are done or got no "
                "observation; an environment takes out who is done and gives everyone else an observation"
            )
        self.to_act = {agent: observations[agent] for agent in self.env.agents}


class TurnPlay(Play):
    """Plays an `AECEnv`: an env step is one action, of the agent whose turn it is."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        observations, infos, _, _ = self._selected()
        return observations, infos

    def _step(self, actions: AgentDict) -> StepOutcome:
        self.env.step(actions[self.env.agent_selection])
        rewards = {agent: reward for agent, reward in self.env.rewards.items() if agent in self.env.agents}
        observations, infos, terminateds, truncateds = self._selected()
        return observations, rewards, terminateds, truncateds, infos

    def _selected(self) -> tuple[dict[AgentID, Any], ...]:
        """Return observations, infos, terminateds and truncateds of the agent to act and of those that end before."""
        env = self.env
        observations: dict[AgentID, Any] = {}
        infos: dict[AgentID, Any] = {}
        terminateds: dict[AgentID, Any] = {}
        truncateds: dict[AgentID, Any] = {}
        while env.agents:
            agent = env.agent_selection
            observations[agent], _, terminated, truncated, infos[agent] = env.last()
            if not (terminated or truncated):
                break
            terminateds[agent], truncateds[agent] = bool(terminated), bool(truncated)
            env.step(None)  # takes a done agent out; no time passes
        return observations, infos, terminateds, truncateds

    def _choose_who_acts(self, observations: AgentDict) -> None:
        self.to_act = {agent: value for agent, value in observations.items() if agent in self.env.agents}


def play_of(env: PettingZooEnv, agent_to_module_mapping_fn: MappingFn | None = None) -> Play:
    """Return how `env` is played. `ValueError` for something that is no PettingZoo environment."""
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        raise ValueError(
            f"{env!r} is no PettingZoo environment; give a ParallelEnv or an AECEnv, with methods reset, step, "
            "observation_space(agent) and action_space(agent)"
        )
    kind = TurnPlay if callable(getattr(env, "last", None)) else ParallelPlay
    return kind(env, agent_to_module_mapping_fn)


class PettingZooEnvs:
    """Holds `num_envs` environments with the same agents, a `ParallelEnv` or an `AECEnv` each.

    `agents` are the `possible_agents`; the spaces are dicts by agent.

    Args:
        env: a function that makes one (called with `env_config`), or a finished one, which is the only one then.

    Raises:
        ValueError: something else, environments that do not say which agents there may be or that differ, or a function
            that gives the same one twice.
    """

    backend = "pettingzoo"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env: PettingZooEnv, num_envs: int = 1, env_config: Mapping[str, Any] | None = None) -> None:
        if isinstance(env, str) or env is None:
            raise ValueError(
                f"env={env!r}: several agents need a PettingZoo environment; give a function that makes one"
            )
        self.num_envs = check_whole("num_envs", num_envs, 1)
        is_finished = not callable(env)
        if is_finished and (num_envs != 1 or env_config):
            raise ValueError(
                f"{env!r} is a finished environment, one: num_envs={num_envs} and env_config={env_config!r} apply to a "
                "function that makes them. Leave them out, or give such a function"
            )
        self.envs: list[Any] = [env] if is_finished else [env(**(env_config or {})) for _ in range(num_envs)]
        if len(set(map(id, self.envs))) < num_envs:
            raise ValueError(f"{env!r} gave the same environment twice; it must make a new one each time")
        self._closed = False
        self.agents, self.observation_space, self.action_space = _agents_and_spaces(self.envs[0])
        for b, other in enumerate(self.envs):
            if _agents_and_spaces(other) != (self.agents, self.observation_space, self.action_space):
                raise ValueError(f"environment {b} has other agents or spaces than the first one; make them alike")

    def close(self) -> None:
        """Close all of them; a second call does nothing."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                env.close()

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")

    def single_envs(self) -> list[Any]:
        """Return all of them."""
        return list(self.envs)


def _agents_and_spaces(env: PettingZooEnv) -> tuple[tuple[AgentID, ...], dict[AgentID, Any], dict[AgentID, Any]]:
    play_of(env)  # refuses what is no such environment
    agents = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ValueError(f"{env!r} does not say which possible_agents there may be; name all of them")
    return agents, {a: env.observation_space(a) for a in agents}, {a: env.action_space(a) for a in agents}


def record_episode(
    env: PettingZooEnv,
    act: Act,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    max_steps: int | None = None,
    id_: str | None = None,
    agent_to_module_mapping_fn: MappingFn | None = None,
) -> MultiAgentEpisode:
    """Play one episode of a PettingZoo environment, where all agents act at once or one after the other (`AECEnv`).

    The environment is reset first (`seed`, `options`). The episode is done when no agent is left, and open after
    `max_steps` env steps. An env step is one action of every agent, or in a turn-based environment one action. There an
    agent observes when it is selected; its rewards, which may come while others act, are summed until then.

    Args:
        act: `act({agent: observation})` returns `{agent: action}` for all agents to act, or that and
            `{agent: {key: model output}}`.

    Raises:
        ValueError: `env` is no PettingZoo environment.
        MultiAgentEnvError: `act` leaves an agent out, or the environment gives data that cannot be.
    """
    play = play_of(env, agent_to_module_mapping_fn)
    play.begin(seed=seed, options=options, id_=id_)
    while env.agents and (max_steps is None or len(play.episode) < max_steps):
        answer = act(play.to_act)
        actions, extras = answer if isinstance(answer, tuple) else (answer, None)
        if not isinstance(actions, Mapping):
            raise TypeError(f"act returned a {type(actions).__name__}; a dict of agent id -> action is needed")
        if set(actions) != set(play.to_act):
            raise MultiAgentEnvError(
                f"in env step {play.episode.env_t} act gave actions for {sorted(map(str, actions))}; agents to act are "
                f"{sorted(map(str, play.to_act))}"
            )
        play.step(actions, extras=extras)
    return play.episode


record_parallel_episode = record_aec_episode = record_episode
