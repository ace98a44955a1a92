"""Environments of several agents: stepped side by side, env step by env step, or recorded as episodes.

PettingZoo's parallel ones, where all agents act at once, its turn-based (AEC) ones, and those in the form of RLlib's
`MultiAgentEnv`, which take and give a dict by agent, are played alike.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode
from lockstep.data.actions import ACTION_MASK
from lockstep.data.agent_steps import AgentDict, AgentID, spaces_by_agent
from lockstep.data.columns import Columns
from lockstep.data.multi_agent_episode import MappingFn
from lockstep.data.trees import Tree, copy_arrays, map_tree
from lockstep.data.values import BoundsWatch, ObservationForm, as_reward
from lockstep.envs.env_state import agents_env_state, set_agents_env_state
from lockstep.envs.make import named_environment
from lockstep.options.checks import check_whole

Act = Callable[[dict[AgentID, Any]], Any]
StepOutcome = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]
"""Observations, rewards, terminateds, truncateds and infos of an env step, by agent."""
AgentEnv = Any
"""A `ParallelEnv`, an `AECEnv`, or an environment in the form of RLlib's `MultiAgentEnv`."""
Critic = Literal["state", "observations"] | bool
AGENT_ID = "agent_id"
AGENT_ENV_FORMS = (
    "a PettingZoo ParallelEnv or AECEnv, or an environment in the form of RLlib's MultiAgentEnv (reset and step with "
    "dicts by agent; possible_agents; observation_spaces and action_spaces)"
)


class Play(ABC):
    """Plays an environment and writes what happens into `episode`; `to_act` has the observations to answer.

    Agents come in the order of `possible_agents`, in whatever order the environment's dicts have them.
    `episode` may be replaced by its successor (`episode.cut()`) between two steps.

    `agent_ids`: observations have the agent's number in `possible_agents`, one-hot. `critic`: infos have what a
    centralised critic sees at the observation, `"critic_obs"`: the environment's `state()` ("state"), or all agents'
    observations joined, zeros for who is not there ("observations"); True: the state where there is one.
    """

    def __init__(
        self,
        env: AgentEnv,
        agent_to_module_mapping_fn: MappingFn | None = None,
        *,
        agent_ids: bool = False,
        critic: Critic = False,
    ) -> None:
        self.env, self.mapping_fn = env, agent_to_module_mapping_fn
        self._agent_ids, self._critic = agent_ids, critic
        self._seen: dict[AgentID, Any] = {}
        """the last observation of each agent, where a critic sees them all"""
        self.episode = MultiAgentEpisode()
        self.keeps_whole = False
        """Whether the whole of each episode that begins is recorded a second time, in `whole`."""
        self.whole: MultiAgentEpisode | None = None
        """The whole episode, with actions as the environment takes them; None where it is not recorded."""
        self.to_act: dict[AgentID, Any] = {}
        self._spaces: dict[AgentID, Any] = {}
        self._forms: dict[AgentID, ObservationForm] = {}
        self._watches: dict[AgentID, BoundsWatch] = {}
        self.seen: Callable[[dict[AgentID, Any], AgentDict], dict[AgentID, Any]] | None = None
        """`seen(observations, rewards)`: the observations as they are acted on and stored; None: as they are"""

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None, id_: str | None = None) -> None:
        """Reset the environment and begin a new episode."""
        outcome = self._reset(seed, options)
        self._spaces, action_spaces = self.env_spaces()
        observations, infos = map(self._in_order, outcome)
        if self._critic in (True, "state"):
            self._critic = self._critic_of_env()
        self._seen = {}
        options_of_episodes: dict[str, Any] = {
            "observation_space": (self._with_ids(self._spaces) or None) if self.seen is None else None,
            "action_space": action_spaces or None,
            "agent_to_module_mapping_fn": self.mapping_fn,
        }
        self.episode = MultiAgentEpisode(id_, **options_of_episodes)
        observations, infos = self._observed(observations, {}, infos)
        self.episode.add_env_reset(observations, infos)
        self.whole = None
        if self.keeps_whole:
            self.whole = MultiAgentEpisode(id_, **options_of_episodes)
            self.whole.add_env_reset(copy_arrays(observations), copy_arrays(infos))
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
        sent = self._in_order(copy_arrays(dict(actions)))  # an environment may write into the arrays that it gets
        observations, rewards, terminateds, truncateds, infos = map(self._in_order, self._step(sent))
        rewards = {agent: self._reward_of(agent, reward) for agent, reward in rewards.items()}
        observations, infos = self._observed(observations, rewards, infos)
        self.episode.add_env_step(
            observations,
            actions if stored is None else stored,
            rewards,
            infos,
            terminateds=terminateds,
            truncateds=truncateds,
            extra_model_outputs=extras,
        )
        if self.whole is not None:
            flags: dict[str, Any] = {"terminateds": terminateds, "truncateds": truncateds}
            seen = copy_arrays(observations)  # a callback that writes into its episode changes no other
            self.whole.add_env_step(seen, copy_arrays(actions), rewards, copy_arrays(infos), **flags)
        self._choose_who_acts(observations)
        return rewards

    def spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observation and the action spaces of all agents that there may be; empty where it is not said."""
        observation_spaces, action_spaces = self.env_spaces()
        return self._with_ids(observation_spaces), action_spaces

    def critic_space(self) -> Any:
        """Return the space of what a centralised critic sees; the environment is reset for it."""
        self.begin(seed=0)
        infos = next(iter(self.episode.agent_episodes.values())).get_infos(0)
        return spaces.Box(-np.inf, np.inf, infos[Columns.CRITIC_OBS].shape, np.float32)

    def _with_ids(self, observation_spaces: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        number = len(observation_spaces)
        return {
            agent: with_agent_id_space(space, number) if self._agent_ids else space
            for agent, space in observation_spaces.items()
        }

    def _in_order(self, data: AgentDict | bool | None) -> Any:
        """Return a dict by agent in the order of `possible_agents`, unknown agents behind; all else as it is.

        An environment may make its dicts from sets of names, which each process iterates over in another order.
        """
        if not isinstance(data, Mapping):
            return data  # refused by the episode, with its name
        ordered = {agent: data[agent] for agent in self._spaces if agent in data}
        return ordered if len(ordered) == len(data) else {**ordered, **data}

    def _observed(
        self, observations: AgentDict, rewards: AgentDict, infos: AgentDict
    ) -> tuple[dict[AgentID, Any], AgentDict]:
        """Return observations and infos as they are acted on and stored."""
        added, infos = self._added(self._copied(observations), infos)
        return added if self.seen is None else self.seen(added, rewards), infos

    def _added(self, observations: dict[AgentID, Any], infos: AgentDict) -> tuple[dict[AgentID, Any], AgentDict]:
        """Return observations and infos with what is added to them."""
        if self._critic and observations:
            joint = self._critic_obs(observations)
            infos = {agent: {**(infos.get(agent) or {}), Columns.CRITIC_OBS: joint} for agent in observations}
        if self._agent_ids:
            agents = list(self._spaces)
            observations = {
                agent: with_agent_id(observation, agents.index(agent), len(agents))
                for agent, observation in observations.items()
            }
        return observations, infos

    def _critic_obs(self, observations: Mapping[AgentID, Any]) -> np.ndarray:
        """Return what a centralised critic sees now, float32."""
        if self._critic == "state":
            return np.array(self.env.state(), np.float32)
        self._seen = {**{a: o for a, o in self._seen.items() if self._is_there(a)}, **self._others(), **observations}
        parts = []
        for agent, space in self._spaces.items():
            space, seen = _without_mask(space), self._seen.get(agent)
            if seen is None:
                parts.append(np.zeros(spaces.flatdim(space), np.float32))
            else:
                parts.append(np.asarray(spaces.flatten(space, _without_mask(seen, space)), np.float32))
        return np.concatenate(parts)

    def _critic_of_env(self) -> Critic:
        """Return what a critic sees of an environment that has begun. `ValueError` for a state that is not there."""
        try:
            has_state = callable(getattr(self.env, "state", None)) and self.env.state() is not None
        except (AttributeError, RuntimeError):  # a base class says so
            has_state = False
        if self._critic == "state" and not has_state:
            raise ValueError(
                f"multi_agent.centralized_critic='state' is not allowed: {self.env!r} has no state(); use "
                "'observations'"
            )
        return "state" if has_state else "observations"

    def _is_there(self, agent: AgentID) -> bool:
        """Return whether an agent that got no observation now is still there."""
        return agent in self.env.agents

    def _others(self) -> Mapping[AgentID, Any]:
        """Return observations of agents who are not to act, where the environment tells them."""
        return {}

    def env_spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the spaces as the environment has them."""
        env = self.env
        agents = _possible_agents(env) or ()
        return {a: env.observation_space(a) for a in agents}, {a: env.action_space(a) for a in agents}

    def get_state(self) -> dict[str, Any] | None:
        """Return environment and episode, between two steps; None where the environment cannot tell its state."""
        state = agents_env_state(self.env)
        if state is None:
            return None
        return {
            "env": state,
            "episode": self.episode.get_state(),
            "whole": None if self.whole is None else self.whole.get_state(),
            "to_act": [*map(list, self.to_act.items())],
            "seen": [*map(list, self._seen.items())],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`. `ValueError` for the state of another environment."""
        set_agents_env_state(self.env, state["env"])
        self._spaces, _ = self.env_spaces()
        if self._critic in (True, "state"):
            self._critic = self._critic_of_env()
        self.episode = MultiAgentEpisode.from_state(state["episode"], self.mapping_fn)
        self.whole = None
        whole = state.get("whole")  # not in checkpoints of 0.2
        if self.keeps_whole and whole is not None:
            self.whole = MultiAgentEpisode.from_state(whole, self.mapping_fn)
        self.to_act, self._seen = dict(state["to_act"]), dict(state["seen"])

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
                copies[agent] = self._copy_of(agent, observation)
            except ValueError as error:
                raise MultiAgentEnvError(f"agent {agent!r} at t={self.episode.env_t}: {error}") from None
        return copies

    def _reward_of(self, agent: AgentID, reward: Tree) -> float:
        """Return an agent's reward as a number."""
        try:
            return as_reward(reward)
        except ValueError as error:
            advice = "; leave the agent out of the dict instead" if reward is None else ""
            raise MultiAgentEnvError(f"agent {agent!r} in env step {self.episode.env_t}: {error}{advice}") from None

    def _copy_of(self, agent: AgentID, observation: Tree) -> Any:
        """Return a copy of an agent's observation. `ValueError` where its space cannot hold it."""
        space = self._spaces.get(agent)
        if space is None:
            return copy.deepcopy(observation)
        form = self._forms.get(agent)
        if form is None or form.space is not space:
            form = self._forms[agent] = ObservationForm.of(space)
            self._watches.setdefault(agent, BoundsWatch(space))
        held = form.copy(observation)
        watch = self._watches[agent]
        if not watch.is_over:
            watch.look(map_tree(lambda leaf: np.asarray(leaf)[None], held), num_ended=int(not self.episode.env_t))
        return held


class PettingZooPlay(Play):
    """Plays an environment that keeps `agents`: those that are there. It is over when none is left."""

    def _step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self._outcome(actions)
        going_on = {"__all__": False} if self.env.agents else {}
        return observations, rewards, {**terminateds, **going_on}, {**truncateds, **going_on}, infos

    @abstractmethod
    def _outcome(self, actions: AgentDict) -> StepOutcome:
        """Step the environment; the flags speak of single agents."""

    def _choose_who_acts(self, observations: AgentDict) -> None:
        left = [agent for agent in self.episode.get_agents_to_act() if agent not in self.env.agents]
        if left and self.episode.env_t:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, left))} left the environment in env step {self.episode.env_t - 1} and were "
                "neither terminated nor truncated"
            )
        self.to_act = {agent: value for agent, value in observations.items() if agent in self.env.agents}
        if not self.to_act and not self.episode.is_done:
            raise MultiAgentEnvError("no agent is left to act, but the episode has not ended for all that were there")


class ParallelPlay(PettingZooPlay):
    """Plays a `ParallelEnv`: an env step is one action of every agent that is there."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, infos

    def _outcome(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
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
        super()._choose_who_acts(observations)


class TurnPlay(PettingZooPlay):
    """Plays an `AECEnv`: an env step is one action, of the agent whose turn it is."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        observations, infos, _, _ = self._selected()
        return observations, infos

    def _outcome(self, actions: AgentDict) -> StepOutcome:
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

    def _others(self) -> Mapping[AgentID, Any]:
        return {agent: self.env.observe(agent) for agent in self.env.agents}


class DictPlay(Play):
    """Plays an environment in the form of RLlib's `MultiAgentEnv`.

    An agent acts where it got an observation and is not done; "__all__" in the flags ends the episode. In a step that
    brings nobody an observation nobody acts in the next one.
    """

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _of_agents(infos, observations)

    def _step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        return observations, rewards, terminateds, truncateds, _of_agents(infos, observations)

    def _choose_who_acts(self, observations: AgentDict) -> None:
        able = () if self.episode.is_done else self.episode.get_agents_to_act()
        self.to_act = {agent: value for agent, value in observations.items() if agent in able}

    def _is_there(self, agent: AgentID) -> bool:
        single = self.episode.agent_episodes.get(agent)
        return single is not None and not single.is_done

    def env_spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the spaces as the environment has them."""
        both = []
        for kind in ("observation", "action"):
            named = spaces_by_agent(getattr(self.env, f"{kind}_spaces", None), f"{kind}_spaces")
            agents = _possible_agents(self.env) or named
            get: Callable[[AgentID], Any] = getattr(self.env, f"get_{kind}_space", lambda _: None)
            found = {agent: named[agent] if agent in named else get(agent) for agent in agents}
            lacking = [agent for agent, space in found.items() if space is None]
            if lacking:
                raise MultiAgentEnvError(
                    f"{self.env!r} has no {kind} space for agents {lacking}; name them in {kind}_spaces, or give "
                    f"get_{kind}_space(agent)"
                )
            both.append(found)
        return both[0], both[1]


def _possible_agents(env: AgentEnv) -> Collection[AgentID]:
    """Return the agents that an environment names, in their order; that of a set is made by sorting the names."""
    agents: Collection[AgentID] = getattr(env, "possible_agents", None) or ()
    return sorted(agents, key=str) if isinstance(agents, set | frozenset) else agents


def _of_agents(infos: AgentDict, observations: AgentDict) -> AgentDict:
    """Return the infos that belong to an observation; others ("__common__") are nobody's."""
    return {agent: info for agent, info in (infos or {}).items() if agent in observations}


def _has_methods(env: object, *names: str) -> bool:
    return all(callable(getattr(env, name, None)) for name in names)


def is_agent_env(env: object) -> bool:
    """Return whether `env` is an environment of several agents, in one of the three forms."""
    return _kind_of(env) is not None


def _kind_of(env: object) -> type[Play] | None:
    if isinstance(env, type) or not _has_methods(env, "reset", "step"):
        return None
    if _has_methods(env, "observation_space", "action_space"):
        return TurnPlay if _has_methods(env, "last") else ParallelPlay
    tells = isinstance(getattr(env, "observation_spaces", None), Mapping) or _has_methods(env, "get_observation_space")
    return DictPlay if tells else None


def with_agent_id_space(space: spaces.Space[Any], num_agents: int) -> spaces.Space[Any]:
    """Return the space of observations with an agent's id: a longer vector, or a Dict with the key "agent_id"."""
    ids = spaces.Box(0.0, 1.0, (num_agents,), np.float32)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({**space.spaces, AGENT_ID: ids})
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        low, high = np.append(space.low, ids.low), np.append(space.high, ids.high)
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)
    return spaces.Dict({"obs": space, AGENT_ID: ids})


def with_agent_id(observation: Tree, index: int, num_agents: int) -> Any:
    """Return an observation of the agent number `index`, in the form of `with_agent_id_space`."""
    one_hot = np.zeros(num_agents, np.float32)
    one_hot[index] = 1.0
    if isinstance(observation, Mapping):
        return {**observation, AGENT_ID: one_hot}
    if isinstance(observation, np.ndarray) and observation.ndim == 1 and observation.dtype.kind == "f":
        return np.concatenate([observation, one_hot.astype(observation.dtype)])
    return {"obs": observation, AGENT_ID: one_hot}


def _without_mask(tree: Tree, space: Any = None) -> Any:
    """Return a space, or an observation of `space`, without an action mask."""
    if space is not None:
        return {key: tree[key] for key in space.spaces} if isinstance(space, spaces.Dict) else tree
    if not isinstance(tree, spaces.Dict) or ACTION_MASK not in tree.spaces:
        return tree
    return spaces.Dict({key: part for key, part in tree.spaces.items() if key != ACTION_MASK})


def play_of(
    env: AgentEnv,
    agent_to_module_mapping_fn: MappingFn | None = None,
    *,
    agent_ids: bool = False,
    critic: Critic = False,
) -> Play:
    """Return how `env` is played. `ValueError` for something that is no environment of several agents."""
    kind = _kind_of(env)
    if kind is None:
        raise ValueError(f"{env!r} is no environment of several agents; give {AGENT_ENV_FORMS}")
    return kind(env, agent_to_module_mapping_fn, agent_ids=agent_ids, critic=critic)


class AgentEnvs:
    """Holds `num_envs` environments of several agents, which are the same in each.

    `agents` are the `possible_agents`; the spaces are dicts by agent.

    Args:
        env: a function that makes one (called with `env_config`), its name `module:function`, or a finished one, which
            is the only one then.
        agent_ids, critic: what is added to observations and infos, see `Play`.

    Raises:
        ValueError: something else, environments that do not say which agents there may be or that differ, or a function
            that gives the same one twice.
    """

    autoreset_mode = "SAME_STEP"
    max_episode_steps = None

    def __init__(
        self,
        env: AgentEnv,
        num_envs: int = 1,
        env_config: Mapping[str, Any] | None = None,
        *,
        agent_ids: bool = False,
        critic: Critic = False,
    ) -> None:
        self._agent_ids, self._critic = agent_ids, critic
        env = named_environment(env) if isinstance(env, str) else env
        if isinstance(env, str) or env is None:
            raise ValueError(
                f"env={env!r} is of one agent; several agents need a function that makes {AGENT_ENV_FORMS}"
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
        self.backend = "dicts by agent" if _kind_of(self.envs[0]) is DictPlay else "pettingzoo"
        self.observation_space, self.action_space = self._spaces_of(0)
        self.agents = tuple(self.observation_space)
        for b in range(num_envs):
            found = self._spaces_of(b)
            if found != (self.observation_space, self.action_space) or tuple(found[0]) != self.agents:
                raise ValueError(f"environment {b} has other agents or spaces than the first one; make them alike")

    def _spaces_of(self, env_index: int) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        spaces_of_agents = self.play_of(env_index).spaces()
        if not spaces_of_agents[0]:
            env = self.envs[env_index]
            raise ValueError(f"{env!r} does not say which possible_agents there may be; name all of them")
        return spaces_of_agents

    def play_of(self, env_index: int, agent_to_module_mapping_fn: MappingFn | None = None) -> Play:
        """Return how one of the environments is played."""
        env = self.envs[env_index]
        return play_of(env, agent_to_module_mapping_fn, agent_ids=self._agent_ids, critic=self._critic)

    def close(self) -> None:
        """Close all of them; a second call does nothing."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                if _has_methods(env, "close"):
                    env.close()

    @property
    def spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """The observation and the action spaces, each by agent."""
        return self.observation_space, self.action_space

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")

    def single_envs(self) -> list[Any]:
        """Return all of them."""
        return list(self.envs)


def record_episode(
    env: AgentEnv,
    act: Act,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    max_steps: int | None = None,
    id_: str | None = None,
    agent_to_module_mapping_fn: MappingFn | None = None,
) -> MultiAgentEpisode:
    """Play one episode of an environment of several agents, who act at once or one after the other (`AECEnv`).

    The environment is reset first (`seed`, `options`). The episode is open after `max_steps` env steps. An env step is
    one action of every agent, or in a turn-based environment one action. There an agent observes when it is selected;
    its rewards, which may come while others act, are summed until then.

    Args:
        act: `act({agent: observation})` returns `{agent: action}` for all agents to act, or that and
            `{agent: {key: model output}}`.

    Raises:
        ValueError: `env` is no environment of several agents.
        MultiAgentEnvError: `act` leaves an agent out, or the environment gives data that cannot be.
    """
    play = play_of(env, agent_to_module_mapping_fn)
    play.begin(seed=seed, options=options, id_=id_)
    while not play.episode.is_done and (max_steps is None or len(play.episode) < max_steps):
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
