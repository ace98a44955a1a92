"""Episodes of PettingZoo environments: parallel ones, where all agents act at once, and turn-based (AEC) ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode
from lockstep.envs.pettingzoo_play import AgentID, MappingFn, ParallelPlay, Play, TurnPlay

Act = Callable[[dict[AgentID, Any]], Any]


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
    play = ParallelPlay(env, agent_to_module_mapping_fn)
    play.begin(seed=seed, options=options, id_=id_)
    return _played(play, act, max_steps)


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
    play = TurnPlay(env, agent_to_module_mapping_fn)
    play.begin(seed=seed, options=options, id_=id_)
    return _played(play, act, max_steps)


def _played(play: Play, act: Act, max_steps: int | None) -> MultiAgentEpisode:
    """The episode that was begun, to its end or for `max_steps` env steps."""
    while play.env.agents and (max_steps is None or len(play.episode) < max_steps):
        actions, extras = _ask(act, play.to_act, play.episode)
        play.step(actions, extras=extras)
    return play.episode


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
