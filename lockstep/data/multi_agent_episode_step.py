"""One environment step of several agents: what is checked first, and what it then changes.

Env step t leads from time t to time t + 1: the actions of step t answer observations of time t or before, and the
observations, rewards and flags that it brings have time t + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.data.episode import SingleAgentEpisode

if TYPE_CHECKING:
    from lockstep.data.multi_agent_episode import MultiAgentEpisode

AgentID = Any
AgentDict = Mapping[AgentID, Any]
OBSERVATIONS, INFOS, ACTIONS, REWARDS, EXTRAS = "observations", "infos", "actions", "rewards", "extra_model_outputs"
ALL = "__all__"
COMMON = "__common__"
"""key of infos that belong to no agent; they are not stored"""


class MultiAgentEnvError(ValueError):
    """An environment (or who feeds the episode) gave data that cannot be: names the agent and the env step."""


class Waiting(NamedTuple):
    """An action that no observation has followed yet, with its model outputs."""

    action: Any
    extras: Mapping[str, Any] | None


@dataclass(slots=True)
class AgentTrack:
    """When an agent's data came, in environment time, and what waits for its next observation."""

    times: list[int] = field(default_factory=list)
    """time of each stored observation, lookback included"""
    waiting: Waiting | None = None
    partial_rewards: list[tuple[int, float]] = field(default_factory=list)
    """(time, reward) of the rewards that came without an observation that closes a step"""
    acted_late: dict[int, int] = field(default_factory=dict)
    """time of an observation -> env step of its action, where that came later than at once"""
    ended_at: int | None = None
    """time at which the agent was done"""

    def waiting_reward(self) -> float:
        """Sum of the rewards since the last observation."""
        last = self.times[-1] if self.times else None
        total = 0.0
        for time, reward in reversed(self.partial_rewards):
            if last is not None and time <= last:
                break
            total += reward
        return total


@dataclass(slots=True)
class EnvStep:
    """What one env step brought, by agent."""

    observations: AgentDict
    actions: AgentDict
    rewards: AgentDict
    infos: AgentDict
    terminateds: AgentDict
    truncateds: AgentDict
    extras: AgentDict

    def flags(self, agent: AgentID) -> tuple[bool, bool]:
        """(terminated, truncated) of an agent; `__all__` speaks for agents without a flag of their own."""
        own = bool(self.terminateds.get(agent)), bool(self.truncateds.get(agent))
        return own if any(own) else (bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL)))


def as_agent_dict(data: Any, name: str, *, flags: bool = False) -> AgentDict:
    """`data`; nothing for None; for flags also `{"__all__": True}` for True and nothing for False. Else `TypeError`."""
    if data is None:
        return {}
    if flags and isinstance(data, bool):
        return {ALL: True} if data else {}
    if not isinstance(data, Mapping):
        raise TypeError(f"{name} is a {type(data).__name__}; a dict of agent id -> value is needed")
    return data


def problem(episode: MultiAgentEpisode, agent: AgentID, what: str) -> MultiAgentEnvError:
    """The error that names agent and step."""
    return MultiAgentEnvError(f"agent {agent!r} in env step {episode.env_t} of episode {episode.id_}: {what}")


# ---- checks: nothing is changed ------------------------------------------------------------------------------


def check_step(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """`MultiAgentEnvError` for data that cannot be; the episode is as before."""
    for name in ("observations", "actions", "rewards", "infos", "extras"):
        shown = "extra model outputs" if name == "extras" else name
        for agent, value in getattr(step, name).items():
            if agent == COMMON and name == "infos":
                continue
            check_agent(episode, agent, shown)
            if value is None:
                raise problem(episode, agent, f"None in {shown}; leave the agent out of the dict instead")
    for agent in step.actions:
        _check_action(episode, agent, step)
    for agent, observation in step.observations.items():
        _check_observation(episode, agent, observation, step)
    for agent, reward in step.rewards.items():
        as_number(episode, agent, reward)
    for agent in step.infos:
        if agent not in step.observations and agent != COMMON and not _closes_without(episode, agent, step):
            raise problem(episode, agent, "an info came without an observation; infos belong to observations")
    for agent in step.extras:
        if agent not in step.actions:
            raise problem(episode, agent, "extra model outputs came without an action")
    for data in (step.terminateds, step.truncateds):
        for agent, flag in data.items():
            if flag and agent != ALL and agent not in episode._tracks:
                check_agent(episode, agent, "flags")
    _check_ends(episode, step)


def _closes_without(episode: MultiAgentEpisode, agent: AgentID, step: EnvStep) -> bool:
    """Whether an agent's step is closed by its end, without an observation."""
    track = episode._tracks.get(agent)
    acts = agent in step.actions or (track is not None and track.waiting is not None)
    return acts and any(step.flags(agent))


def check_agent(episode: MultiAgentEpisode, agent: AgentID, name: str) -> None:
    """`MultiAgentEnvError` for an agent that is done or that the spaces do not know."""
    track = episode._tracks.get(agent)
    if track is not None and track.ended_at is not None:
        raise problem(episode, agent, f"{name} came, but the agent was done at t={track.ended_at}")
    if track is None:
        for spaces in (episode._observation_spaces, episode._action_spaces):
            if spaces is not None and agent not in spaces:
                raise problem(episode, agent, f"{name} came for an unknown agent; the spaces know {list(spaces)}")
        if agent == ALL:
            raise problem(episode, agent, f"{name} came under '__all__', which is for flags only")


def _check_action(episode: MultiAgentEpisode, agent: AgentID, step: EnvStep) -> None:
    single = episode.agent_episodes.get(agent)
    if single is None:
        raise problem(
            episode, agent, f"it acted without having observed anything; able to act are {episode._able_to_act()}"
        )
    track = episode._tracks[agent]
    if track.waiting is not None:
        raise problem(
            episode,
            agent,
            f"it acted again, but its action {track.waiting.action!r} after the observation of t={track.times[-1]} "
            f"still waits for an observation; able to act are {episode._able_to_act()}",
        )
    extras = step.extras.get(agent)
    if extras is not None and not isinstance(extras, Mapping):
        raise TypeError(f"extra model outputs of agent {agent!r} are a {type(extras).__name__}; a dict is needed")
    keys = frozenset(extras or ()) or None
    if single._stored and keys != (frozenset(single._extra_keys or ()) or None):
        raise problem(
            episode,
            agent,
            f"extra model outputs have the keys {sorted(keys or ())} and had {sorted(single._extra_keys or ())} before",
        )
    if agent in step.observations and agent not in step.rewards:
        raise problem(episode, agent, "it acted and received an observation, but no reward")


def _check_observation(episode: MultiAgentEpisode, agent: AgentID, observation: Any, step: EnvStep) -> None:
    track = episode._tracks.get(agent)
    if agent not in episode.agent_episodes:
        check_first_observation(episode, agent, observation)
    elif agent not in step.actions and track is not None and track.waiting is None:
        raise problem(
            episode,
            agent,
            f"a second observation came, but it has not acted since the one of t={track.times[-1]}; give an agent "
            "its observation when it is to act (or when it is done)",
        )


def check_first_observation(episode: MultiAgentEpisode, agent: AgentID, observation: Any) -> None:
    """`MultiAgentEnvError` where it does not lie in the agent's space."""
    space = (episode._observation_spaces or {}).get(agent)
    if space is not None and not space.contains(observation):
        raise problem(episode, agent, f"the observation {observation!r} does not lie in the space {space}")


def as_number(episode: MultiAgentEpisode, agent: AgentID, reward: Any) -> float:
    """The reward as a float; `TypeError` naming agent and step."""
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise TypeError(
            f"agent {agent!r} in env step {episode.env_t}: the reward {reward!r} is a {type(reward).__name__}; "
            "one number is needed"
        ) from None


def _check_ends(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """An agent that is truncated between its action and the next observation has nothing to bootstrap from."""
    for agent, track in episode._tracks.items():
        if track.ended_at is not None or agent in step.observations:
            continue
        terminated, truncated = step.flags(agent)
        if truncated and not terminated and (track.waiting is not None or agent in step.actions):
            raise problem(
                episode,
                agent,
                "it was truncated after an action and without a last observation, from whose value it must be "
                "bootstrapped; give the observation",
            )


# ---- changes ---------------------------------------------------------------------------------------------------


def apply_step(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """Adds a checked step."""
    episode.env_t += 1
    named = [*episode._tracks]
    for data in (step.observations, step.rewards, step.terminateds, step.truncateds):
        named += [agent for agent in data if agent not in episode._tracks and agent != ALL]
    ended = []
    for agent in dict.fromkeys(named):
        track = episode._tracks.get(agent)
        if track is not None and track.ended_at is not None:
            continue
        if _apply_agent(episode, agent, step):
            ended.append(agent)
    episode.is_terminated = bool(step.terminateds.get(ALL))
    episode.is_truncated = bool(step.truncateds.get(ALL))
    said = ALL in step.terminateds or ALL in step.truncateds
    if (
        not said
        and ended
        and episode.agent_episodes
        and all(single.is_done for single in episode.agent_episodes.values())
    ):
        # the environment leaves it to us; what ends last says how
        episode.is_terminated = any(step.flags(agent)[0] for agent in ended)
        episode.is_truncated = not episode.is_terminated


def _apply_agent(episode: MultiAgentEpisode, agent: AgentID, step: EnvStep) -> bool:
    """One agent's part of a step; whether the agent ends with it."""
    now = episode.env_t
    track = episode._tracks.get(agent)
    terminated, truncated = step.flags(agent)
    ends = terminated or truncated
    if track is None:
        own_end = bool(step.terminateds.get(agent) or step.truncateds.get(agent))
        if not own_end and agent not in step.observations and not step.rewards.get(agent):
            return False  # a flag that says that nothing happened
        track = episode._tracks[agent] = AgentTrack()
    reward = float(step.rewards.get(agent, 0.0))
    single = episode.agent_episodes.get(agent)
    if agent in step.actions:
        track.waiting = Waiting(step.actions[agent], step.extras.get(agent))
        if track.times[-1] != now - 1:
            track.acted_late[track.times[-1]] = now - 1
    observed = agent in step.observations
    if single is None and observed:
        single = episode._new_agent(agent)
        single.add_env_reset(step.observations[agent], step.infos.get(agent))
        track.times.append(now)
        observed = False
    if single is not None and track.waiting is not None and (observed or ends):
        _close_step(single, track, step, agent, reward)
        track.times.append(now)
    elif reward:
        track.partial_rewards.append((now, reward))
    if single is not None and ends:
        single.is_terminated, single.is_truncated = terminated, truncated
    if ends and (single is not None or step.terminateds.get(agent) or step.truncateds.get(agent)):
        track.ended_at = now  # `__all__` says nothing of agents that were never there
    return ends


def _close_step(single: SingleAgentEpisode, track: AgentTrack, step: EnvStep, agent: AgentID, reward: float) -> None:
    """The waiting action gets its observation; one that ends without any repeats the last (it is never used)."""
    waiting = track.waiting
    if waiting is None:
        return
    if agent in step.observations:
        observation, infos = step.observations[agent], step.infos.get(agent)
    else:
        observation, infos = single.get_observations(-1), step.infos.get(agent)
    reward += track.waiting_reward()
    single.add_env_step(observation, waiting.action, reward, infos, extra_model_outputs=waiting.extras)
    track.waiting = None
