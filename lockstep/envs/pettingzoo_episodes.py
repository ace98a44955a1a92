"""Episodes of PettingZoo environments: parallel ones, where all agents act at once, and turn-based (AEC) ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode

AgentID = Any
Act = Callable[[dict[AgentID, Any]], Any]
MappingFn = Callable[[AgentID, MultiAgentEpisode], str]


def record_parallel_episode(
    env: Any,
    act: Act,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    max_steps: int | None = None,
    id_: str | None = None,
    agent_to_module_mapping_fn: MappingFn | None = None,
) -> MultiAgentEpisode:
    """Plays one episode of a PettingZoo parallel environment.

    `act({agent: observation})` returns `{agent: action}` for all of them, or that and
    `{agent: {key: model output}}`. The environment is reset first (`seed`, `options`). The episode is done when no
    agent is left, and open after `max_steps` env steps. Raises `MultiAgentEnvError` where `act` leaves an agent out
    or the environment gives data that cannot be.
    """
    observations, infos = env.reset(seed=seed, options=options)
    episode = _new_episode(env, id_, agent_to_module_mapping_fn)
    episode.add_env_reset(observations, infos)
    while env.agents and (max_steps is None or len(episode) < max_steps):
        alive = [*env.agents]
        actions, extras = _ask(act, {agent: observations[agent] for agent in alive}, episode)
        observations, rewards, terminateds, truncateds, infos = env.step(actions)
        going_on = {"__all__": False} if env.agents else {}
        episode.add_env_step(
            observations,
            actions,
            {agent: rewards[agent] for agent in rewards if agent in alive or agent in observations},
            {agent: info for agent, info in infos.items() if agent in observations},
            terminateds={**terminateds, **going_on},
            truncateds={**truncateds, **going_on},
            extra_model_outputs=extras,
        )
        _check_left(env, episode)
    return episode


def record_aec_episode(
    env: Any,
    act: Act,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    max_steps: int | None = None,
    id_: str | None = None,
    agent_to_module_mapping_fn: MappingFn | None = None,
) -> MultiAgentEpisode:
    """Plays one episode of a turn-based PettingZoo environment (an `AECEnv`).

    As `record_parallel_episode`; `act` gets the one agent whose turn it is. An env step is one action. An agent
    observes when it is selected; its rewards, which may come while others act, are summed until then.
    """
    env.reset(seed=seed, options=options)
    episode = _new_episode(env, id_, agent_to_module_mapping_fn)
    observations, infos, _, _ = _selected(env)
    episode.add_env_reset(observations, infos)
    while env.agents and (max_steps is None or len(episode) < max_steps):
        actions, extras = _ask(act, observations, episode)
        env.step(actions[env.agent_selection])
        rewards = {agent: reward for agent, reward in env.rewards.items() if agent in env.agents}
        observations, infos, terminateds, truncateds = _selected(env)
        going_on = {"__all__": False} if env.agents else {}
        episode.add_env_step(
            observations,
            actions,
            rewards,
            infos,
            terminateds={**terminateds, **going_on},
            truncateds={**truncateds, **going_on},
            extra_model_outputs=extras,
        )
        observations = {agent: value for agent, value in observations.items() if agent in env.agents}
        _check_left(env, episode)
    return episode


def _selected(env: Any) -> tuple[dict[AgentID, Any], ...]:
    """(observations, infos, terminateds, truncateds) of the agent to act and of those that end before it."""
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


def _new_episode(env: Any, id_: str | None, mapping_fn: MappingFn | None) -> MultiAgentEpisode:
    agents = getattr(env, "possible_agents", None)
    return MultiAgentEpisode(
        id_,
        observation_space=agents and {agent: env.observation_space(agent) for agent in agents},
        action_space=agents and {agent: env.action_space(agent) for agent in agents},
        agent_to_module_mapping_fn=mapping_fn,
    )


def _ask(
    act: Act, observations: dict[AgentID, Any], episode: MultiAgentEpisode
) -> tuple[Mapping[AgentID, Any], Mapping[AgentID, Any] | None]:
    """(actions, model outputs) of the agents that observed; an action for each of them and no other."""
    answer = act(observations)
    actions, extras = answer if isinstance(answer, tuple) else (answer, None)
    if not isinstance(actions, Mapping):
        raise TypeError(f"act returned a {type(actions).__name__}; a dict of agent id -> action is needed")
    if set(actions) != set(observations):
        raise MultiAgentEnvError(
            f"in env step {episode.env_t} act gave actions for {sorted(map(str, actions))}; agents to act are "
            f"{sorted(map(str, observations))}"
        )
    return actions, extras


def _check_left(env: Any, episode: MultiAgentEpisode) -> None:
    """An agent that left the environment must have been terminated or truncated."""
    left = [agent for agent in episode.get_agents_to_act() if agent not in env.agents]
    if left:
        raise MultiAgentEnvError(
            f"agents {sorted(map(str, left))} left the environment in env step {episode.env_t - 1} and were neither "
            "terminated nor truncated"
        )
