"""Environments of several agents in three forms, behind one interface, and their recording as episodes.

The forms are PettingZoo's parallel environments (all agents act at once), PettingZoo's turn-based (AEC) ones (one agent
acts), and those with the interface of RLlib's `MultiAgentEnv` (dicts by agent; any subset of agents acts). An adapter
per form turns each into the same env step: actions of the agents to act in, and observations, rewards, flags and infos
by agent out.
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
from lockstep.data.groups import has_state, with_state, with_state_space
from lockstep.data.multi_agent_episode import MappingFn
from lockstep.data.trees import Tree, copy_arrays, map_tree
from lockstep.data.values import BoundsWatch, ObservationForm, as_reward
from lockstep.envs.env_state import agents_env_state, set_agents_env_state
from lockstep.envs.make import name_of_env, named_environment, tensor_class
from lockstep.options.checks import check_whole
from lockstep.state.optional import optional_state

Act = Callable[[dict[AgentID, Any]], Any]
"""Function that returns the actions, by agent, for the observations of the agents to act."""
StepOutcome = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]
"""Observations, rewards, terminateds, truncateds and infos of an env step, by agent."""
AgentEnv = Any
"""A `ParallelEnv`, an `AECEnv`, or an environment with the interface of RLlib's `MultiAgentEnv`."""
ObservationTransform = Callable[[dict[AgentID, Any], AgentDict], dict[AgentID, Any]]
"""Function of `(observations, rewards)` by agent that returns the observations to act on and to store."""
Critic = Literal["state", "observations"] | bool
AGENT_ID = "agent_id"
"""Key of the one-hot agent number in Dict observations."""
AGENT_ENV_FORMS = (
    "a PettingZoo ParallelEnv or AECEnv, or an environment in the form of RLlib's MultiAgentEnv (reset and step with "
    "dicts by agent; possible_agents; observation_spaces and action_spaces)"
)


class AgentEnvAdapter(ABC):
    """Common interface of environments of several agents, which records each episode.

    Agents are in the order of `possible_agents`, whatever the order of the environment's dicts.

    Args:
        env: The environment.
        agent_to_module_mapping_fn: Function that names the module of an agent.
        agent_ids: Add the agent's number in `possible_agents`, one-hot, to its observations.
        critic: Add a central state to each agent's observations, as the entry "state" (`with_state`): the
            environment's `state()` ("state"), or the observations of all agents joined, zeros for absent agents
            ("observations"). True: the state if the environment has one, else the observations.

    Attributes:
        episode: The episode under way. The caller may replace it with its successor (`episode.cut()`) between two
            steps.
        to_act: Observations of the agents that must act next, by agent.
    """

    def __init__(
        self,
        env: AgentEnv,
        agent_to_module_mapping_fn: MappingFn | None = None,
        *,
        agent_ids: bool = False,
        critic: Critic = False,
    ) -> None:
        self.env = env
        self.mapping_fn = agent_to_module_mapping_fn
        self._agent_ids = agent_ids
        self._critic = critic
        self._state_space: spaces.Box | None = None
        """Space of the central state; None until it is known, or without one."""
        self._last_obs: dict[AgentID, Any] = {}
        """Last observation of each agent that is present, for a critic that sees the observations of all."""
        self.episode = MultiAgentEpisode()
        self.records_whole_episode = False
        """True to record the episodes that begin from now on a second time, in `whole_episode`."""
        self.whole_episode: MultiAgentEpisode | None = None
        """The episode under way from its reset on, also after `episode` was cut, with the actions that the environment
        received. None if it is not recorded."""
        self.to_act: dict[AgentID, Any] = {}
        self._spaces: dict[AgentID, Any] = {}
        """Observation space of each agent, as the environment declares it."""
        self._forms: dict[AgentID, ObservationForm] = {}
        """Checks and copies of each agent's observations. Made again if an agent's space is another object."""
        self._watches: dict[AgentID, BoundsWatch] = {}
        """Comparison of each agent's observations with their bounds, over the first episodes."""
        self.transform_observations: ObservationTransform | None = None
        """Function that transforms observations before they are stored and acted on; None stores them unchanged."""

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None, id_: str | None = None) -> None:
        """Reset the environment and begin a new episode."""
        outcome = self._reset(seed, options)
        # Only now: some environments decide on their agents in the reset.
        self._spaces, action_spaces = self.env_spaces()
        observations, infos = map(self._in_order, outcome)
        self._resolve_critic()
        self._last_obs = {}

        # The spaces of transformed observations are known to the caller only, so they are not checked.
        observation_spaces = None if self.transform_observations else self._stored_spaces(self._spaces) or None
        episode_options: dict[str, Any] = {
            "observation_space": observation_spaces,
            "action_space": action_spaces or None,
            "agent_to_module_mapping_fn": self.mapping_fn,
        }
        self.episode = MultiAgentEpisode(id_, **episode_options)
        observations, infos = self._prepare(observations, {}, infos)
        self.episode.add_env_reset(observations, infos)
        self.whole_episode = None
        if self.records_whole_episode:
            self.whole_episode = MultiAgentEpisode(id_, **episode_options)
            self.whole_episode.add_env_reset(copy_arrays(observations), copy_arrays(infos))
        self._set_agents_to_act(observations)

    def step(
        self, actions: AgentDict, *, stored: AgentDict | None = None, extras: AgentDict | None = None
    ) -> AgentDict:
        """Take one env step with the actions of all agents to act, and return the rewards by agent.

        Args:
            actions: The actions as the environment accepts them, by agent.
            stored: The actions to store in the episode, if they differ.
            extras: The model outputs that belong to the actions.

        Raises:
            MultiAgentEnvError: The environment returned invalid data.
        """
        sent = self._in_order(copy_arrays(dict(actions)))  # copies, because environments may write into the actions
        observations, rewards, terminateds, truncateds, infos = map(self._in_order, self._step(sent))
        rewards = {agent: self._checked_reward(agent, reward) for agent, reward in rewards.items()}
        observations, infos = self._prepare(observations, rewards, infos)

        self.episode.add_env_step(
            observations,
            actions if stored is None else stored,
            rewards,
            infos,
            terminateds=terminateds,
            truncateds=truncateds,
            extra_model_outputs=extras,
        )
        if self.whole_episode is not None:
            # Copies, so that a callback that writes into this episode does not change the other.
            self.whole_episode.add_env_step(
                copy_arrays(observations),
                copy_arrays(actions),
                rewards,
                copy_arrays(infos),
                terminateds=terminateds,
                truncateds=truncateds,
            )
        self._set_agents_to_act(observations)
        return rewards

    def spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observation and the action spaces of all possible agents; empty if the environment has none.

        With a central state this may reset the environment, because most environments do not declare their state.
        """
        if self._critic and self._state_space is None:
            self.begin(seed=0)
        observation_spaces, action_spaces = self.env_spaces()
        return self._stored_spaces(observation_spaces), action_spaces

    def _stored_spaces(self, observation_spaces: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        """Return the observation spaces with what `agent_ids` and `critic` add to them."""
        stored = dict(observation_spaces)
        if self._agent_ids:
            stored = {agent: with_agent_id_space(space, len(stored)) for agent, space in stored.items()}
        if self._state_space is not None:
            stored = {agent: with_state_space(space, self._state_space) for agent, space in stored.items()}
        return stored

    def _in_order(self, data: AgentDict | bool | None) -> Any:
        """Return a dict by agent in the order of `possible_agents`, with unknown agents last.

        An environment may build its dicts from sets of names, which every process iterates in another order. Runs with
        the same seed would then differ.
        """
        if not isinstance(data, Mapping):
            return data  # the episode refuses it with an error that names it
        ordered = {agent: data[agent] for agent in self._spaces if agent in data}
        return ordered if len(ordered) == len(data) else {**ordered, **data}

    def _prepare(
        self, observations: AgentDict, rewards: AgentDict, infos: AgentDict
    ) -> tuple[dict[AgentID, Any], AgentDict]:
        """Return observations and infos in the form in which they are stored and acted on."""
        copies = self._with_additions(self._copy_observations(observations))
        if self.transform_observations is not None:
            copies = self.transform_observations(copies, rewards)
        return copies, infos

    def _with_additions(self, observations: dict[AgentID, Any]) -> dict[AgentID, Any]:
        """Return observations with agent ids and the central state, as far as they are asked for."""
        with_additions = observations
        if self._agent_ids:
            agents = list(self._spaces)
            with_additions = {
                agent: with_agent_id(observation, agents.index(agent), len(agents))
                for agent, observation in observations.items()
            }
        if self._critic and observations:
            state = self._central_state(observations)
            with_additions = {agent: with_state(obs, state) for agent, obs in with_additions.items()}
        return with_additions

    def _central_state(self, observations: Mapping[AgentID, Any]) -> np.ndarray:
        """Return the central state at this env step, float32 `[features]`."""
        if self._critic == "state":
            return np.array(self.env.state(), np.float32)

        present = {agent: obs for agent, obs in self._last_obs.items() if self._is_present(agent)}
        self._last_obs = {**present, **self._idle_observations(), **observations}
        parts = []
        for agent, space in self._spaces.items():
            plain_space = _space_without_mask(space)
            obs = self._last_obs.get(agent)
            if obs is None:
                parts.append(np.zeros(spaces.flatdim(plain_space), np.float32))
            else:
                plain_obs = _obs_without_mask(obs, plain_space)
                parts.append(np.asarray(spaces.flatten(plain_space, plain_obs), np.float32))
        return np.concatenate(parts)

    def _resolve_critic(self) -> None:
        """Replace `critic=True` by what the environment offers, check `critic="state"`, and find the central state's
        space. Needs a reset before."""
        if not self._critic:
            return
        if self._critic in (True, "state"):
            self._resolve_state()
        if self._critic == "state":
            size = np.shape(self.env.state())
        else:
            plain_spaces = map(_space_without_mask, self._spaces.values())
            size = (sum(map(spaces.flatdim, plain_spaces)),)
        self._state_space = spaces.Box(-np.inf, np.inf, size, np.float32)

    def _resolve_state(self) -> None:
        """Set `_critic` to "state" or "observations". `ValueError` if "state" is asked for and there is none."""
        try:
            has_state = callable(getattr(self.env, "state", None)) and self.env.state() is not None
        except (AttributeError, RuntimeError):  # PettingZoo's base classes raise in place of a missing state
            has_state = False
        if self._critic == "state" and not has_state:
            raise ValueError(
                f"multi_agent.centralized_critic='state' is not allowed: {self.env!r} has no state(); use "
                "'observations'"
            )
        self._critic = "state" if has_state else "observations"

    def _is_present(self, agent: AgentID) -> bool:
        """Return whether an agent without a new observation is still in the episode."""
        return agent in self.env.agents

    def _idle_observations(self) -> Mapping[AgentID, Any]:
        """Return the observations of agents that do not act now, if the environment can give them."""
        return {}

    def env_spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observation and the action spaces that the environment declares."""
        env = self.env
        agents = _possible_agents(env) or ()
        observation_spaces = {agent: env.observation_space(agent) for agent in agents}
        action_spaces = {agent: env.action_space(agent) for agent in agents}
        return observation_spaces, action_spaces

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of environment and episode between two steps; None if the environment's is unknown."""
        state = agents_env_state(self.env)
        if state is None:
            return None
        whole = self.whole_episode
        return {
            "env": state,
            "episode": self.episode.get_state(),
            "whole": optional_state(whole),
            "to_act": [*map(list, self.to_act.items())],
            "seen": [*map(list, self._last_obs.items())],
        }

    def can_continue(self, state: Mapping[str, Any]) -> bool:
        """Return whether an episode can be continued from a state of `get_state`.

        With a central state that is not so for files of version 0.2, in which observations have no such entry.
        """
        return not self._critic or all(has_state(obs) for _, obs in state["to_act"])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned. `ValueError` for the state of another environment."""
        set_agents_env_state(self.env, state["env"])
        self._spaces, _ = self.env_spaces()
        self._resolve_critic()
        self.episode = MultiAgentEpisode.from_state(state["episode"], self.mapping_fn)
        self.whole_episode = None
        whole = state.get("whole")  # missing in checkpoints of version 0.2
        if self.records_whole_episode and whole is not None:
            self.whole_episode = MultiAgentEpisode.from_state(whole, self.mapping_fn)
        self.to_act = dict(state["to_act"])
        self._last_obs = dict(state["seen"])

    @abstractmethod
    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        """Reset the environment and return observations and infos by agent."""

    @abstractmethod
    def _step(self, actions: AgentDict) -> StepOutcome:
        """Take one env step in the environment. "__all__" in the flags says whether the episode ends for all agents."""

    @abstractmethod
    def _set_agents_to_act(self, observations: AgentDict) -> None:
        """Set `to_act` from the newest observations."""

    def _copy_observations(self, observations: AgentDict) -> dict[AgentID, Any]:
        """Return copies in the dtypes of the spaces. An environment may write into its arrays again."""
        copies = {}
        for agent, observation in observations.items():
            try:
                copies[agent] = self._copy_of(agent, observation)
            except ValueError as error:
                raise MultiAgentEnvError(f"agent {agent!r} at t={self.episode.env_t}: {error}") from None
        return copies

    def _checked_reward(self, agent: AgentID, reward: Tree) -> float:
        """Return the reward of an agent as a number."""
        try:
            return as_reward(reward)
        except ValueError as error:
            advice = "; leave the agent out of the dict instead" if reward is None else ""
            raise MultiAgentEnvError(f"agent {agent!r} in env step {self.episode.env_t}: {error}{advice}") from None

    def _copy_of(self, agent: AgentID, observation: Tree) -> Any:
        """Return a copy of an agent's observation. `ValueError` if its space cannot hold it."""
        space = self._spaces.get(agent)
        if space is None:
            return copy.deepcopy(observation)

        form = self._forms.get(agent)
        if form is None or form.space is not space:
            form = ObservationForm.of(space)
            self._forms[agent] = form
            self._watches.setdefault(agent, BoundsWatch(space))
        obs = form.copy(observation)
        watch = self._watches[agent]
        if not watch.is_over:
            # The watch ends after a number of episodes, which the observations at env step 0 count.
            watch.look(map_tree(lambda leaf: np.asarray(leaf)[None], obs), num_ended=int(not self.episode.env_t))
        return obs


class PettingZooAdapter(AgentEnvAdapter):
    """Adapter for PettingZoo's environments, whose list `agents` has the agents that are present.

    The episode is over when the list is empty.
    """

    def _step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self._env_step(actions)
        # Without this, the episode would count as over when all agents known so far are done, although others are
        # still to come.
        all_flag = {"__all__": False} if self.env.agents else {}
        return observations, rewards, {**terminateds, **all_flag}, {**truncateds, **all_flag}, infos

    @abstractmethod
    def _env_step(self, actions: AgentDict) -> StepOutcome:
        """Take one env step in the environment. The flags are those of single agents."""

    def _set_agents_to_act(self, observations: AgentDict) -> None:
        left = [agent for agent in self.episode.get_agents_to_act() if agent not in self.env.agents]
        if left and self.episode.env_t:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, left))} left the environment in env step {self.episode.env_t - 1} and were "
                "neither terminated nor truncated"
            )
        self.to_act = {agent: value for agent, value in observations.items() if agent in self.env.agents}
        if not self.to_act and not self.episode.is_done:
            raise MultiAgentEnvError("no agent is left to act, but the episode has not ended for all that were there")


class ParallelAdapter(PettingZooAdapter):
    """Adapter for a `ParallelEnv`: an env step is one action of every agent that is present."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, infos

    def _env_step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        # Some environments give rewards and infos of agents that left before; the episode has ended for them.
        rewards = {agent: reward for agent, reward in rewards.items() if agent in actions or agent in observations}
        infos = {agent: info for agent, info in infos.items() if agent in observations}
        return observations, rewards, terminateds, truncateds, infos

    def _set_agents_to_act(self, observations: AgentDict) -> None:
        acting = self.episode.get_agents_to_act()
        idle = [agent for agent in self.env.agents if agent not in acting]
        if idle:
            raise MultiAgentEnvError(
                f"agents {sorted(map(str, idle))} are in env.agents at t={self.episode.env_t}, but are done or got no "
                "observation; an environment takes out who is done and gives everyone else an observation"
            )
        super()._set_agents_to_act(observations)


class TurnBasedAdapter(PettingZooAdapter):
    """Adapter for an `AECEnv`: an env step is one action, of the agent whose turn it is."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        observations, infos, _, _ = self._selected()
        return observations, infos

    def _env_step(self, actions: AgentDict) -> StepOutcome:
        self.env.step(actions[self.env.agent_selection])
        # The rewards of this step only. `last()` would give sums since an agent's last turn, which the episode makes
        # itself.
        rewards = {agent: reward for agent, reward in self.env.rewards.items() if agent in self.env.agents}
        observations, infos, terminateds, truncateds = self._selected()
        return observations, rewards, terminateds, truncateds, infos

    def _selected(self) -> tuple[dict[AgentID, Any], ...]:
        """Return observations, infos, terminateds and truncateds of the next agent to act and of agents done before it.

        PettingZoo selects every done agent once more, for a step with the action None that removes it.
        """
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
            terminateds[agent] = bool(terminated)
            truncateds[agent] = bool(truncated)
            env.step(None)  # removes the done agent; not an env step
        return observations, infos, terminateds, truncateds

    def _idle_observations(self) -> Mapping[AgentID, Any]:
        return {agent: self.env.observe(agent) for agent in self.env.agents}


class DictAdapter(AgentEnvAdapter):
    """Adapter for an environment with the interface of RLlib's `MultiAgentEnv`.

    An agent acts if it received an observation and is not done. "__all__" in the flags ends the episode. After a step
    without any observation, the next env step has no actions.
    """

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[AgentDict, AgentDict]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _of_agents(infos, observations)

    def _step(self, actions: AgentDict) -> StepOutcome:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        return observations, rewards, terminateds, truncateds, _of_agents(infos, observations)

    def _set_agents_to_act(self, observations: AgentDict) -> None:
        acting = () if self.episode.is_done else self.episode.get_agents_to_act()
        self.to_act = {agent: value for agent, value in observations.items() if agent in acting}

    def _is_present(self, agent: AgentID) -> bool:
        agent_episode = self.episode.agent_episodes.get(agent)
        return agent_episode is not None and not agent_episode.is_done

    def env_spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observation and the action spaces that the environment declares."""
        return self._declared_spaces("observation"), self._declared_spaces("action")

    def _declared_spaces(self, kind: Literal["observation", "action"]) -> dict[AgentID, Any]:
        """Return the spaces of one kind, from the dict `observation_spaces` or from `get_observation_space(agent)`."""
        by_agent = spaces_by_agent(getattr(self.env, f"{kind}_spaces", None), f"{kind}_spaces")
        get_space: Callable[[AgentID], Any] = getattr(self.env, f"get_{kind}_space", lambda _: None)
        agents = _possible_agents(self.env) or by_agent
        declared = {agent: by_agent[agent] if agent in by_agent else get_space(agent) for agent in agents}
        missing = [agent for agent, space in declared.items() if space is None]
        if missing:
            raise MultiAgentEnvError(
                f"{self.env!r} has no {kind} space for agents {missing}; name them in {kind}_spaces, or give "
                f"get_{kind}_space(agent)"
            )
        return declared


def _possible_agents(env: AgentEnv) -> Collection[AgentID]:
    """Return the agents that an environment names, in its order. A set has no fixed order, so it is sorted by name."""
    agents: Collection[AgentID] = getattr(env, "possible_agents", None) or ()
    return sorted(agents, key=str) if isinstance(agents, set | frozenset) else agents


def _of_agents(infos: AgentDict, observations: AgentDict) -> AgentDict:
    """Return the infos of agents that have an observation. Other keys ("__common__") belong to no agent."""
    return {agent: info for agent, info in (infos or {}).items() if agent in observations}


def _has_methods(env: object, *names: str) -> bool:
    """Return whether an object has all these methods."""
    return all(callable(getattr(env, name, None)) for name in names)


def is_agent_env(env: object) -> bool:
    """Return whether `env` is an environment of several agents, in one of the three forms."""
    return _adapter_class(env) is not None


def _adapter_class(env: object) -> type[AgentEnvAdapter] | None:
    """Return the adapter for an environment's form; None if it is not an environment of several agents.

    The methods decide rather than the class, so that neither PettingZoo nor RLlib must be installed.
    """
    if isinstance(env, type) or not _has_methods(env, "reset", "step"):
        return None
    if _has_methods(env, "observation_space", "action_space"):
        return TurnBasedAdapter if _has_methods(env, "last") else ParallelAdapter
    has_spaces = isinstance(getattr(env, "observation_spaces", None), Mapping)
    return DictAdapter if has_spaces or _has_methods(env, "get_observation_space") else None


def with_agent_id_space(space: spaces.Space[Any], num_agents: int) -> spaces.Space[Any]:
    """Return the space of observations with an agent's number, one-hot.

    A vector becomes longer. Any other observation becomes a Dict with the key "agent_id".
    """
    ids = spaces.Box(0.0, 1.0, (num_agents,), np.float32)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({**space.spaces, AGENT_ID: ids})
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        low = np.append(space.low, ids.low)
        high = np.append(space.high, ids.high)
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)
    return spaces.Dict({"obs": space, AGENT_ID: ids})


def with_agent_id(observation: Tree, index: int, num_agents: int) -> Any:
    """Return an observation of agent number `index` with that number added, in `with_agent_id_space`."""
    one_hot = np.zeros(num_agents, np.float32)
    one_hot[index] = 1.0
    if isinstance(observation, Mapping):
        return {**observation, AGENT_ID: one_hot}
    if isinstance(observation, np.ndarray) and observation.ndim == 1 and observation.dtype.kind == "f":
        return np.concatenate([observation, one_hot.astype(observation.dtype)])
    return {"obs": observation, AGENT_ID: one_hot}


def _space_without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return an observation space without its action mask."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})


def _obs_without_mask(obs: Tree, space: spaces.Space[Any]) -> Any:
    """Return the parts of an observation that belong to `space`, which is without a mask."""
    return {key: obs[key] for key in space.spaces} if isinstance(space, spaces.Dict) else obs


def make_adapter(
    env: AgentEnv,
    agent_to_module_mapping_fn: MappingFn | None = None,
    *,
    agent_ids: bool = False,
    critic: Critic = False,
) -> AgentEnvAdapter:
    """Return the adapter of an environment of several agents. `ValueError` for any other object."""
    adapter_class = _adapter_class(env)
    if adapter_class is None:
        raise ValueError(f"{env!r} is no environment of several agents; give {AGENT_ENV_FORMS}")
    return adapter_class(env, agent_to_module_mapping_fn, agent_ids=agent_ids, critic=critic)


class AgentEnvs:
    """Vector of `num_envs` environments of several agents, with the same agents and spaces in each.

    Args:
        env: A function that makes an environment (called with `env_config`), its name `module:function`, or a finished
            environment, which must be the only one.
        num_envs: Number of environments B.
        env_config: Keyword arguments for the function.
        agent_ids, critic: Additions to observations; see `AgentEnvAdapter`.

    Attributes:
        agents: The `possible_agents`.
        observation_space, action_space: Dicts of spaces by agent.

    Raises:
        ValueError: `env` is something else, its environments do not name their possible agents or differ, or the
            function returned the same environment twice.
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
        self._agent_ids = agent_ids
        self._critic = critic
        env = named_environment(env) if isinstance(env, str) else env
        if tensor_class(env) is not None:
            raise ValueError(
                f"environment.env={name_of_env(env)}: tensor environments have one agent; several agents need a "
                f"function that makes {AGENT_ENV_FORMS}"
            )
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

        self.envs: list[Any] = [env]
        if not is_finished:
            self.envs = [env(**(env_config or {})) for _ in range(num_envs)]
        if len(set(map(id, self.envs))) < num_envs:
            raise ValueError(f"{env!r} gave the same environment twice; it must make a new one each time")

        self._closed = False
        self.backend = "dicts by agent" if _adapter_class(self.envs[0]) is DictAdapter else "pettingzoo"
        self.observation_space, self.action_space = self._spaces_of(0)
        self.agents = tuple(self.observation_space)
        for env_index in range(num_envs):
            found = self._spaces_of(env_index)
            # Equal dicts may differ in their order, which is the order of agents.
            if found != (self.observation_space, self.action_space) or tuple(found[0]) != self.agents:
                raise ValueError(
                    f"environment {env_index} has other agents or spaces than the first one; make them alike"
                )

    def _spaces_of(self, env_index: int) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observation and the action spaces of one environment, by agent."""
        spaces_of_agents = self.make_adapter(env_index).spaces()
        if not spaces_of_agents[0]:
            env = self.envs[env_index]
            raise ValueError(f"{env!r} does not say which possible_agents there may be; name all of them")
        return spaces_of_agents

    def make_adapter(self, env_index: int, agent_to_module_mapping_fn: MappingFn | None = None) -> AgentEnvAdapter:
        """Return a new adapter for one of the environments."""
        env = self.envs[env_index]
        return make_adapter(env, agent_to_module_mapping_fn, agent_ids=self._agent_ids, critic=self._critic)

    def close(self) -> None:
        """Close all environments. A second call does nothing."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                if _has_methods(env, "close"):
                    env.close()

    @property
    def spaces(self) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Observation and action spaces, each a dict by agent."""
        return self.observation_space, self.action_space

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")

    def single_envs(self) -> list[Any]:
        """Return all environments."""
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
    """Record one episode of an environment of several agents that act at once or in turns (`AECEnv`).

    An env step is one action of every agent, or in a turn-based environment one action. There an agent observes when it
    is selected; its rewards, which may come while other agents act, are summed until then.

    Args:
        env: The environment. It is reset first.
        act: `act({agent: observation})` returns `{agent: action}` for all agents to act, or a tuple of that and
            `{agent: {key: model output}}`.
        seed, options: Arguments of the reset.
        max_steps: Number of env steps after which the recording ends; the episode is then not done.
        id_: Id of the episode.
        agent_to_module_mapping_fn: Function that names the module of an agent.

    Raises:
        ValueError: `env` is not an environment of several agents.
        MultiAgentEnvError: `act` leaves an agent out, or the environment returned invalid data.
    """
    adapter = make_adapter(env, agent_to_module_mapping_fn)
    adapter.begin(seed=seed, options=options, id_=id_)
    while not adapter.episode.is_done and (max_steps is None or len(adapter.episode) < max_steps):
        answer = act(adapter.to_act)
        actions, extras = answer if isinstance(answer, tuple) else (answer, None)
        if not isinstance(actions, Mapping):
            raise TypeError(f"act returned a {type(actions).__name__}; a dict of agent id -> action is needed")
        if set(actions) != set(adapter.to_act):
            raise MultiAgentEnvError(
                f"in env step {adapter.episode.env_t} act gave actions for {sorted(map(str, actions))}; agents to act "
                f"are {sorted(map(str, adapter.to_act))}"
            )
        adapter.step(actions, extras=extras)
    return adapter.episode


record_parallel_episode = record_episode
record_aec_episode = record_episode
