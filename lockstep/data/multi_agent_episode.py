"""`MultiAgentEpisode`: an episode of several agents, or a piece of it.

Agents may act together or in turns, and may appear and leave at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Literal, TypedDict, Unpack
from uuid import uuid4

import numpy as np

from lockstep.data.agent_steps import (
    ALL,
    AgentDict,
    AgentID,
    AgentSteps,
    EnvStep,
    MultiAgentEnvError,
    as_agent_dict,
    flags_by_step,
    lists_by_agent,
    spaces_by_agent,
)
from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.episode import (
    ACTIONS,
    EXTRAS,
    INFOS,
    OBSERVATIONS,
    REWARDS,
    SingleAgentEpisode,
    WriteArguments,
    check_follows,
    check_state,
)
from lockstep.data.indices import Indices, lookback_steps, position_array, run_of_steps
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import as_rows, num_items, read_list, read_tree, rows_of, stack_rows
from lockstep.options.checks import check_whole

Slice = slice  # inside the class, annotations with `slice` would mean the method of that name
MappingFn = Callable[[AgentID, "MultiAgentEpisode"], str]
"""Function that returns the module that acts for an agent in an episode."""
AgentIDs = Collection[AgentID] | AgentID | None
"""One agent or several; None for all agents."""


class AgentReadArguments(TypedDict, total=False):
    """Keyword arguments that all getters share."""

    env_steps: bool
    neg_index_as_lookback: bool
    fill: Any
    return_list: bool


class SpaceReadArguments(AgentReadArguments, total=False):
    """Keyword arguments of the getters of observations and actions, which have a space."""

    one_hot_discrete: bool


class AgentWriteArguments(WriteArguments, total=False):
    """Keyword arguments that all setters share."""

    agent_ids: AgentIDs
    env_steps: bool
    return_list: bool


_STATE = ("id_", "env_t", "env_t_started", "is_terminated", "is_truncated", "is_reset")
"""Attributes that the state of an episode holds under their own names."""


class MultiAgentEpisode:
    """T environment steps of several agents: one `SingleAgentEpisode` for each, with the times of its observations.

    Time counts environment steps: the reset has time 0, and env step t leads from time t to t + 1.

    An agent's step begins with an observation, which the agent answers with an action. The agent's next observation
    closes the step; the rewards in between are summed. Until then the action is *pending*, and the rewards are
    *hanging*. A step belongs to the piece of an episode in which it is closed. Rewards before an agent's first
    observation belong to no step and are stored separately.

    Args:
        id_: Name of the episode, which all its pieces share. Defaults to a new unique name.
        observations, infos: L + T + 1 dicts by agent id; the first is that of the reset.
        actions, rewards, extra_model_outputs: L + T dicts by agent id, one for each env step.
        observation_space, action_space: Spaces by agent id. With them only these agents are allowed.
        terminateds, truncateds: Flags at the end. An agent's flag belongs to the last step with data of the agent.
        env_t_started: Time at which the T steps begin. Defaults to 0.
        agent_t_started: Own step of each agent at that time, by agent id. Defaults to 0.
        len_lookback_buffer: L, the number of lookback steps among the given ones. `"auto"` makes all of them lookback.
        agent_episode_ids, agent_module_ids: Id of the episode and of the module of each agent.
        agent_to_module_mapping_fn: Function `f(agent_id, episode) -> module id`, called once for each agent. By default
            all agents have `"default_policy"`.

    Raises:
        ValueError: the lengths do not fit.
        MultiAgentEnvError: the data of an agent is inconsistent. It is a `ValueError`.
    """

    __slots__ = (
        "_action_spaces",
        "_agent_episode_ids",
        "_agent_t_started",
        "_agents",
        "_duration",
        "_last_time",
        "_lookback",
        "_modules",
        "_observation_spaces",
        "_start_time",
        "action_space",
        "agent_episodes",
        "agent_to_module_mapping_fn",
        "custom_data",
        "env_t",
        "env_t_started",
        "id_",
        "is_reset",
        "is_terminated",
        "is_truncated",
        "observation_space",
    )

    SKIP_ENV_TS_TAG = "S"

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[AgentDict] | None = None,
        observation_space: Any = None,
        infos: Sequence[AgentDict] | None = None,
        actions: Sequence[AgentDict] | None = None,
        action_space: Any = None,
        rewards: Sequence[AgentDict] | None = None,
        terminateds: Mapping[AgentID, bool] | bool = False,
        truncateds: Mapping[AgentID, bool] | bool = False,
        extra_model_outputs: Sequence[AgentDict] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = 0,
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: MappingFn | None = None,
    ) -> None:
        self.id_ = uuid4().hex if id_ is None else id_
        self.observation_space = observation_space
        self.action_space = action_space
        self._observation_spaces = spaces_by_agent(observation_space, "observation_space")
        self._action_spaces = spaces_by_agent(action_space, "action_space")
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._modules: dict[AgentID, str] = dict(agent_module_ids or {})
        """Module of each agent. Pieces share this dict, so it is replaced and never changed."""
        self._agent_episode_ids = dict(agent_episode_ids or {})
        self._agent_t_started = dict(agent_t_started or {})
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        """Episodes of the agents that have an observation in this piece."""
        self._agents: dict[AgentID, AgentSteps] = {}
        """Steps of all agents that have data, also of those without an observation yet."""
        self.custom_data: dict[str, Any] = {}

        self.is_reset = False
        self.is_terminated = False
        self.is_truncated = False
        self._duration = 0.0
        self._start_time = 0.0
        self._last_time = 0.0
        self.env_t_started = env_t_started or 0
        self.env_t = self.env_t_started
        self._lookback = 0

        steps = {ACTIONS: actions, REWARDS: rewards, EXTRAS: extra_model_outputs}
        flags = [as_agent_dict(terminateds, "terminateds"), as_agent_dict(truncateds, "truncateds")]
        num_steps = _check_lists({OBSERVATIONS: observations, INFOS: infos, **steps}, flags)
        lookback = lookback_steps(len_lookback_buffer, num_steps)
        if observations:
            self._replay(observations, infos, steps, flags, lookback)

    # ---- growing -----------------------------------------------------------------------------------------

    def add_env_reset(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> None:
        """Add the first observations. Other agents may appear in later steps.

        Raises:
            ValueError: the episode has been reset already.
            MultiAgentEnvError: an agent is unknown, or its observation is outside its space.
        """
        if self.is_reset:
            raise ValueError(f"episode {self.id_} has been reset already and is at t={self.env_t}")
        step = EnvStep(as_agent_dict(observations, OBSERVATIONS), infos=as_agent_dict(infos, INFOS))
        for agent in self._checked_agents(step):
            self._begin_agent(agent, step)
        self.is_reset = True
        self._start_time = self._last_time = time.perf_counter()

    def add_env_step(
        self,
        observations: Mapping[AgentID, Any],
        actions: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any] | None = None,
        *,
        terminateds: Mapping[AgentID, bool] | bool | None = None,
        truncateds: Mapping[AgentID, bool] | bool | None = None,
        extra_model_outputs: Mapping[AgentID, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add one environment step: the actions that agents took, and the data that the environment returned.

        `__all__` in a dict of flags, or a plain bool, holds for every agent that has no flag of its own. If neither
        dict has `__all__`, the episode ends with its last agent: truncated if all agents that end in that step are
        truncated, else terminated. If an agent terminates without a last observation while its action is pending, its
        previous observation is repeated.

        Raises:
            MultiAgentEnvError: the data is inconsistent; names the agent and the step, and nothing is changed. Causes
                are: an agent that is done or unknown; an action without an observation since the last action; a second
                observation without an action; an action and an observation without a reward; a reward that is not a
                number; a truncation after an action without a last observation; infos without an observation; model
                outputs without an action; a step before the reset or after the end.
            TypeError: an argument is not a dict.
        """
        data = (observations, actions, rewards, infos, extra_model_outputs, terminateds, truncateds)
        step = EnvStep(*map(as_agent_dict, data, EnvStep._fields))
        if not self.is_reset or self.is_done:
            state = f"ended at t={self.env_t}" if self.is_done else "has not been reset; call add_env_reset first"
            agents = list(dict.fromkeys(step.agents()))
            raise self._problem(agents[0] if len(agents) == 1 else agents, f"data came, but the episode {state}")
        self._apply(step, self._checked_agents(step))
        self._last_time = time.perf_counter()

    def _problem(self, agent: AgentID, reason: str) -> MultiAgentEnvError:
        can_act = [agent for agent, steps in self._agents.items() if steps.can_act]
        return MultiAgentEnvError(
            f"agent {agent!r} in env step {self.env_t} of episode {self.id_}: {reason}; able to act are {can_act}"
        )

    def _checked_agents(self, step: EnvStep) -> list[AgentID]:
        """Return the known agents and those of a step; `MultiAgentEnvError` if the step is inconsistent."""
        agents = list(dict.fromkeys([*self._agents, *step.agents()]))
        for agent in agents:
            known = self._agents.get(agent)
            steps = known or AgentSteps(agent)
            reason = self._name_problem(agent) if known is None else None
            reason = reason or steps.problem_with(step)

            # The agent's episode would refuse its first observation later, when other agents have been changed already.
            space = self._observation_spaces.get(agent)
            if reason is None and space is not None and steps.episode is None and agent in step.observations:
                observation = step.observations[agent]
                if not space.contains(observation):
                    reason = f"the observation {observation!r} does not lie in the space {space}"
            if reason is not None:
                raise self._problem(agent, reason)
        return agents

    def _name_problem(self, agent: AgentID) -> str | None:
        """Return why an agent without data so far cannot appear; None if it can."""
        if agent == ALL:
            return "data came under '__all__', which is for flags only"
        for spaces in (self._observation_spaces, self._action_spaces):
            if spaces and agent not in spaces:
                return f"data came for an unknown agent; the spaces know {list(spaces)}"
        return None

    def _apply(self, step: EnvStep, agents: Sequence[AgentID]) -> None:
        """Add a step after its checks."""
        self.env_t += 1
        ended = []
        for agent in agents:
            steps = self._agents.get(agent)
            if steps is None:
                if not (agent in step.observations or step.rewards.get(agent) or any(step.own_flags(agent))):
                    continue  # a reward of 0 for an agent that has not appeared yet
                steps = AgentSteps(agent)
                self._agents[agent] = steps
            if steps.ended_at is not None:
                continue
            if steps.episode is None and agent in step.observations:
                self._begin_agent(agent, step)
            if steps.apply(step, self.env_t):
                ended.append(agent)

        self.is_terminated = bool(step.terminateds.get(ALL))
        self.is_truncated = bool(step.truncateds.get(ALL))
        has_flag_for_all = ALL in step.terminateds or ALL in step.truncateds
        singles = self.agent_episodes.values()
        if not has_flag_for_all and ended and singles and all(single.is_done for single in singles):
            # The environment does not say whether the episode ends: it ends with its last agents, and as they do.
            self.is_terminated = any(step.flags(agent)[0] for agent in ended)
            self.is_truncated = not self.is_terminated

    def _begin_agent(self, agent: AgentID, step: EnvStep) -> None:
        """Add an agent with its first observation, at the present time."""
        single = SingleAgentEpisode(
            self._agent_episode_ids.get(agent),
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self._observation_spaces.get(agent),
            action_space=self._action_spaces.get(agent),
            t_started=self._agent_t_started.get(agent, 0),
        )
        single.add_env_reset(step.observations[agent], step.infos.get(agent))
        self.agent_episodes[agent] = single
        steps = self._agents.setdefault(agent, AgentSteps(agent))
        steps.episode = single
        steps.times.append(self.env_t)

    def _replay(
        self,
        observations: Sequence[AgentDict],
        infos: Sequence[AgentDict] | None,
        steps: Mapping[str, Sequence[AgentDict] | None],
        flags: Sequence[AgentDict],
        lookback: int,
    ) -> None:
        """Add the given env steps one by one, then turn the first ones into lookback."""
        num_steps = len(observations) - 1
        start = self.env_t_started
        self.env_t_started = start - lookback
        self.env_t = self.env_t_started

        actions = steps[ACTIONS] or []
        rewards = steps[REWARDS] or []
        infos = infos or [{}] * (num_steps + 1)
        extras = steps[EXTRAS] or [{}] * num_steps
        terminateds, truncateds = (flags_by_step(named, observations, actions, rewards) for named in flags)

        self.add_env_reset(observations[0], infos[0])
        for i in range(num_steps):
            self.add_env_step(
                observations[i + 1],
                actions[i],
                rewards[i],
                infos[i + 1],
                terminateds=terminateds[i],
                truncateds=truncateds[i],
                extra_model_outputs=extras[i],
            )

        self.env_t_started = start
        self._lookback = lookback
        for agent in self.agent_episodes:
            self.agent_episodes[agent] = self._agents[agent].move_start(start)

    # ---- sizes and flags ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    @property
    def len_lookback_buffer(self) -> int:
        """Number of lookback env steps, L."""
        return self._lookback

    @property
    def is_done(self) -> bool:
        """Whether the episode was terminated or truncated for all agents."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' steps are in arrays. Reading packs them."""
        return bool(self.agent_episodes) and all(single.is_numpy for single in self.agent_episodes.values())

    @property
    def agent_ids(self) -> set[AgentID]:
        """Ids of the agents that have an observation in this piece."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """Id of the `SingleAgentEpisode` of each agent, by agent id."""
        return {agent: single.id_ for agent, single in self.agent_episodes.items()}

    @property
    def agent_module_ids(self) -> dict[AgentID, str]:
        """Module of each agent that has been mapped so far, by agent id."""
        return dict(self._modules)

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Own step of each agent at which this piece begins, by agent id."""
        return {agent: single.t_started for agent, single in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, list[int | str]]:
        """Own step of the agent's observation at each env time, lookback included, by agent id.

        It is `"S"` (`SKIP_ENV_TS_TAG`) at times without an observation of the agent.
        """
        begin = self.env_t_started - self._lookback
        tag = self.SKIP_ENV_TS_TAG
        return {agent: self._agents[agent].own_times(begin, self.env_t, tag) for agent in self.agent_episodes}

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module of an agent. The mapping function is called once for each agent."""
        if agent_id not in self._modules:
            mapping = self.agent_to_module_mapping_fn
            module_id = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            if not isinstance(module_id, str):
                raise TypeError(f"agent {agent_id!r} was mapped to {module_id!r}; a module id is a str")
            self._modules = {**self._modules, agent_id: module_id}
        return self._modules[agent_id]

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Return whether each agent, and the episode (`__all__`), was terminated."""
        flags = {agent: single.is_terminated for agent, single in self.agent_episodes.items()}
        return {**flags, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Return whether each agent, and the episode (`__all__`), was truncated."""
        flags = {agent: single.is_truncated for agent, single in self.agent_episodes.items()}
        return {**flags, ALL: self.is_truncated}

    def get_agents_to_act(self) -> set[AgentID]:
        """Return the agents that are not done and have not answered their last observation."""
        if self.is_done:
            return set()
        return {agent for agent, steps in self._agents.items() if steps.can_act}

    def get_agents_that_stepped(self) -> set[AgentID]:
        """Return the agents whose last observation has the present time `env_t`, whether they are done or not."""
        return {agent for agent in self.agent_episodes if self._agents[agent].times[-1] == self.env_t}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of the rewards of all agents' closed steps, without lookback.

        `include_hanging_rewards` adds the rewards since each agent's last observation and those before its first.
        """
        total = sum(single.get_return() for single in self.agent_episodes.values())
        if include_hanging_rewards:
            total += sum(steps.hanging_rewards(self.env_t_started, self.env_t) for steps in self._agents.values())
        return total

    def get_duration_s(self) -> float:
        """Return the seconds from the reset to the last step that was added. Joined pieces add up."""
        return self._duration + self._last_time - self._start_time

    def env_steps(self) -> int:
        """Return the number of environment steps, T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of closed steps of all agents together."""
        return sum(len(single) for single in self.agent_episodes.values())

    def validate(self) -> None:
        """Raise `ValueError`, naming agent and values, if an invariant of the episode does not hold."""
        if self._lookback < 0 or self.env_t < self.env_t_started:
            raise ValueError(f"t={self.env_t_started}..{self.env_t} with {self._lookback} of lookback")
        for agent in self.agent_episodes:
            self._agents[agent].validate(self.env_t, self.module_for(agent))

    def __repr__(self) -> str:
        end = "open"
        if self.is_terminated:
            end = "terminated"
        elif self.is_truncated:
            end = "truncated"
        agents = {agent: len(single) for agent, single in self.agent_episodes.items()}
        return f"MultiAgentEpisode({self.id_!r}, t={self.env_t_started}..{self.env_t}, {end}, steps {agents})"

    def print(self) -> None:
        """Print a time line with a row for each agent and a column for each time.

        `x` is an observation, `-` a pending action, and `T` or `U` the end (terminated or truncated).
        """
        times = range(self.env_t_started - self._lookback, self.env_t + 1)
        width = max(len(str(time)) for time in (times[0], times[-1])) + 1
        margin = max([1, *(len(str(agent)) for agent in self.agent_episodes)])
        print("t".ljust(margin) + "".join(str(time).rjust(width) for time in times))
        for agent in self.agent_episodes:
            marks = "".join(self._agents[agent].mark_at(time).rjust(width) for time in times)
            print((str(agent).ljust(margin) + marks).rstrip())

    # ---- reading -----------------------------------------------------------------------------------------

    def get_observations(
        self, indices: Indices = None, agent_ids: AgentIDs = None, **arguments: Unpack[SpaceReadArguments]
    ) -> Any:
        """Return the observations `{agent: column}` of env steps, of which there are T + 1.

        An agent's column has a row for each index at which the agent observed. Agents without any are left out.

        Args:
            indices: Indices of env steps, as in `SingleAgentEpisode.get_observations`. An int returns single rows.
            agent_ids: Agents to return. Defaults to all agents.
            env_steps: False: the indices count each agent's own steps.
            fill: Value for indices at which an agent has no observation. With it all columns have a row for each index.
            return_list: Return one dict `{agent: row}` for each index.
            neg_index_as_lookback, one_hot_discrete: As in `SingleAgentEpisode.get_observations`.

        Raises:
            IndexError: an index is out of range, and there is no `fill`.
            KeyError: an agent is unknown.
            ValueError: `return_list` is combined with the agents' own steps.
        """
        return self._get(OBSERVATIONS, None, indices, agent_ids, **arguments)

    def get_infos(
        self, indices: Indices = None, agent_ids: AgentIDs = None, **arguments: Unpack[AgentReadArguments]
    ) -> Any:
        """Return infos, as lists; see `get_observations`."""
        return self._get(INFOS, None, indices, agent_ids, **arguments)

    def get_actions(
        self, indices: Indices = None, agent_ids: AgentIDs = None, **arguments: Unpack[SpaceReadArguments]
    ) -> Any:
        """Return actions, of which there are T env steps; see `get_observations`.

        An action has the index of the observation that it answers. A pending action counts.
        """
        return self._get(ACTIONS, None, indices, agent_ids, **arguments)

    def get_rewards(
        self, indices: Indices = None, agent_ids: AgentIDs = None, **arguments: Unpack[AgentReadArguments]
    ) -> Any:
        """Return rewards; see `get_observations`.

        A reward has the index of its action. It is the sum of the rewards up to the agent's next observation.
        """
        return self._get(REWARDS, None, indices, agent_ids, **arguments)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        **arguments: Unpack[AgentReadArguments],
    ) -> Any:
        """Return the extra model outputs `key`, or for each agent a dict of all outputs; see `get_observations`.

        Outputs have the indices of their actions.
        """
        return self._get(EXTRAS, key, indices, agent_ids, **arguments)

    def _get(
        self,
        name: str,
        key: str | None,
        indices: Indices,
        agent_ids: AgentIDs,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        has_fill = fill is not None
        times, is_single = self._times(name, indices, neg_index_as_lookback, has_fill, env_steps, return_list)
        found: dict[AgentID, tuple[np.ndarray, Any]] = {}
        """For each agent a mask of the indices at which it has data, and the rows there."""
        for agent in self._selected(agent_ids):
            steps = self._agents[agent]
            if env_steps:
                positions = steps.positions_at(name, times, self.env_t_started - self._lookback)
            else:
                positions = steps.own_positions(name, indices, neg_index_as_lookback, has_fill)
            has_data = np.full(len(positions), True) if has_fill else positions >= 0
            positions = positions[has_data]
            column = steps.column(name, key, one_hot_discrete) if len(positions) else {}
            if isinstance(column, list):
                found[agent] = has_data, read_list(column, positions, fill)
            elif not isinstance(column, dict) or column:
                found[agent] = has_data, read_tree(column, positions, fill, steps.num_rows(name))

        if return_list:
            result: list[dict[AgentID, Any]] = [{} for _ in range(len(times))]
            for agent, (has_data, rows) in found.items():
                for row, index in enumerate(np.flatnonzero(has_data).tolist()):
                    result[index][agent] = rows_of(rows, row)
            return result
        return {agent: rows_of(rows, 0) if is_single else rows for agent, (_, rows) in found.items()}

    def _selected(self, agent_ids: AgentIDs) -> list[AgentID]:
        """Return the selected agents as a list; `KeyError` for one that has no observation in this episode."""
        if agent_ids is None:
            return [*self.agent_episodes]
        # Text is the id of one agent, and so is a tuple that the episode knows.
        is_one = isinstance(agent_ids, str) or not isinstance(agent_ids, Collection)
        is_one = is_one or (isinstance(agent_ids, tuple) and agent_ids in self.agent_episodes)
        agents = [agent_ids] if is_one else [*agent_ids]
        unknown = [agent for agent in agents if agent not in self.agent_episodes]
        if unknown:
            raise KeyError(f"no agent {unknown[0]!r} in episode {self.id_}; its agents are {[*self.agent_episodes]}")
        return agents

    def _times(
        self,
        name: str,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: bool,
        env_steps: bool,
        return_list: bool,
    ) -> tuple[np.ndarray, bool]:
        """Return the times of env-step `indices`, and whether `indices` is a single int.

        With `env_steps=False` there are no times.
        """
        is_single = isinstance(indices, int | np.integer)
        if not env_steps:
            if return_list:
                raise ValueError("return_list=True needs env_steps=True: agents' own steps have no common index")
            return np.empty(0, np.int64), is_single
        num_stored = self._lookback + len(self) + (name in (OBSERVATIONS, INFOS))
        positions = position_array(indices, self._lookback, num_stored, neg_index_as_lookback, fill=fill, name=name)
        return positions + (self.env_t_started - self._lookback), is_single

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(self, *, new_data: Any, **arguments: Unpack[AgentWriteArguments]) -> None:
        """Replace observations. After an error the episode is unchanged.

        Args:
            new_data: New observations, in the form in which the getter with the same arguments returns them.
            at_indices: Indices, as in the getter. Defaults to all without lookback.
            agent_ids: Agents whose observations are replaced. Defaults to those in `new_data`.
            env_steps, neg_index_as_lookback, return_list: As in `get_observations`.

        Raises:
            IndexError: there are more or fewer new values than indices.
            ValueError: a new value is outside the agent's space.
            KeyError: an agent is missing.
        """
        self._set(OBSERVATIONS, None, new_data, **arguments)

    def set_actions(self, *, new_data: Any, **arguments: Unpack[AgentWriteArguments]) -> None:
        """Replace actions, pending ones included; see `set_observations`."""
        self._set(ACTIONS, None, new_data, **arguments)

    def set_rewards(self, *, new_data: Any, **arguments: Unpack[AgentWriteArguments]) -> None:
        """Replace rewards, those of pending actions included; see `set_observations`."""
        self._set(REWARDS, None, new_data, **arguments)

    def set_extra_model_outputs(self, *, key: str, new_data: Any, **arguments: Unpack[AgentWriteArguments]) -> None:
        """Replace the extra model outputs `key`; see `set_observations`. A new key takes a value for every step."""
        self._set(EXTRAS, key, new_data, **arguments)

    def _set(
        self,
        name: str,
        key: str | None,
        new_data: Any,
        *,
        at_indices: Indices = None,
        agent_ids: AgentIDs = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        return_list: bool = False,
    ) -> None:
        """Replace columns. Everything is checked before anything is changed."""
        times, is_single = self._times(name, at_indices, neg_index_as_lookback, False, env_steps, return_list)
        has_value: dict[AgentID, np.ndarray] = {}
        """Mask of the times at which the list of dicts has a value, by agent."""
        if return_list:
            new_data, has_value = lists_by_agent(new_data, len(times), name)
            is_single = False
        if not isinstance(new_data, Mapping):
            raise TypeError(f"new_data is a {type(new_data).__name__}; a dict of agent id -> new {name} is needed")

        changes = []
        for agent in self._selected([*new_data] if agent_ids is None else agent_ids):
            if agent not in new_data:
                raise KeyError(f"new_data has no agent {agent!r}; it has {[*new_data]}")
            steps = self._agents[agent]
            if env_steps:
                is_named = has_value.get(agent, np.full(len(times), is_single))
                positions = self._positions_to_set(steps, name, times, is_named)
            else:
                positions = steps.own_positions(name, at_indices, neg_index_as_lookback, False)

            rows = stack_rows(name, [new_data[agent]]) if is_single else as_rows(new_data[agent], name)
            if num_items(rows) != len(positions):
                raise IndexError(f"agent {agent!r}: {num_items(rows)} new {name} for {len(positions)} places")
            if len(positions):
                column, pending_value = steps.replaced(name, key, positions, rows)
                changes.append((steps, column, pending_value))

        for steps, column, pending_value in changes:
            steps.store(name, key, column, pending_value, self.env_t)

    def _positions_to_set(self, steps: AgentSteps, name: str, times: np.ndarray, is_named: np.ndarray) -> np.ndarray:
        """Return the positions of an agent's values at env `times`.

        `is_named` marks the times that the caller has named for this agent, one by one. The agent must have a value
        there. If no time is named, as for a slice, times without a value are skipped.

        Raises:
            IndexError: the agent has no value at a named time.
        """
        positions = steps.positions_at(name, times, self.env_t_started - self._lookback)
        missing = times[is_named & (positions < 0)]
        if len(missing):
            raise IndexError(f"agent {steps.agent!r} has no {name} at t={missing[0]}, which cannot be set")
        return positions[is_named if is_named.any() else positions >= 0]

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> MultiAgentEpisode:
        """Return the successor of this piece, to which the next steps of the episode are added.

        It has the same id, `env_t_started = env_t`, and the last `len_lookback_buffer` env steps as lookback. It holds
        the last observation of each live agent, even if it is older than the lookback, with the pending action and
        rewards.

        Raises:
            ValueError: the episode is done or has not been reset.
        """
        if self.is_done or not self.is_reset:
            state = f"ended at t={self.env_t}" if self.is_done else "has no observation yet; call add_env_reset first"
            raise ValueError(f"episode {self.id_} has no successor: it {state}")
        lookback = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        return self._piece(len(self), len(self), min(lookback, self._lookback + len(self)))

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Return the env steps of a slice as a new episode of views.

        An agent's step belongs to the slice in which it is closed. An action that is pending at the end of the slice is
        pending in it, with the rewards up to there. The slice is done only if it reaches the end of a done episode.

        Args:
            slice_: Env steps to return.
            len_lookback_buffer: Number of lookback steps, as far as there are steps. Defaults to that of this episode.

        Raises:
            ValueError: the slice has another step than 1.
        """
        start, stop = run_of_steps(slice_, len(self))
        lookback = check_whole("len_lookback_buffer", len_lookback_buffer, 0, optional=True)
        if lookback is None:
            lookback = self._lookback
        return self._piece(start, max(start, stop), min(lookback, self._lookback + start))

    def __getitem__(self, key: int | Slice) -> MultiAgentEpisode:
        return self.slice(slice(*run_of_steps(key, len(self))))

    def _piece(self, start: int, stop: int, lookback: int) -> MultiAgentEpisode:
        """Return env steps `start:stop` with `lookback` env steps before them, as views."""
        begin = self.env_t_started + start
        end = self.env_t_started + stop
        part = copy(self)
        part.env_t_started = begin
        part.env_t = end
        part.custom_data = deepcopy(self.custom_data)
        if stop < len(self):
            part.is_terminated = False
            part.is_truncated = False
        pieces = [steps.piece(begin, end, lookback) for steps in self._agents.values()]
        part._set_agents([piece for piece in pieces if piece is not None], lookback, now=self._last_time)
        return part

    def _set_agents(
        self, agents: Sequence[AgentSteps], lookback: int, *, now: float = 0.0, duration: float = 0.0
    ) -> None:
        """Replace the agents and times by those of a piece or of a state."""
        self._agents = {steps.agent: steps for steps in agents}
        self.agent_episodes = {steps.agent: steps.episode for steps in agents if steps.episode is not None}
        self._lookback = lookback
        self._duration = duration
        self._start_time = now
        self._last_time = now

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append the episode `other`, which must continue this one, in place.

        Raises:
            ValueError: this episode is done, the ids differ, or `other` begins at another time or with other
                observations than this episode ends; names agent and values, and nothing is changed.
        """
        other_agents = other._agents
        self._check_contiguous(other, other_agents)
        for agent, other_steps in other_agents.items():
            steps = self._agents.setdefault(agent, AgentSteps(agent))
            steps.extend(other_steps, self.env_t)
            if steps.episode is not None:
                self.agent_episodes.setdefault(agent, steps.episode)
        self.env_t = other.env_t
        self.is_terminated = other.is_terminated
        self.is_truncated = other.is_truncated
        self._modules = {**self._modules, **other._modules}
        self._duration += other.get_duration_s()
        self.custom_data.update(other.custom_data)

    def _check_contiguous(self, other: MultiAgentEpisode, other_agents: Mapping[AgentID, AgentSteps]) -> None:
        check_follows(self.id_, self.env_t, self.is_done, other.id_, other.env_t_started)
        if not (self.is_reset and other.is_reset):
            raise ValueError("both pieces need an observation; call add_env_reset first")
        for agent, steps in self._agents.items():
            steps.check_contiguous(other_agents.get(agent), self.env_t)
        for agent, steps in other_agents.items():
            if steps.times and agent not in self.agent_episodes and steps.times[0] <= self.env_t:
                raise ValueError(
                    f"agent {agent!r} is missing in the first piece and has an observation of t={steps.times[0]}"
                )

    # ---- other forms -------------------------------------------------------------------------------------

    def to_numpy(self) -> MultiAgentEpisode:
        """Pack the steps of all agents into arrays, and return self."""
        for single in self.agent_episodes.values():
            single.to_numpy()
        return self

    def get_sample_batch(self) -> MultiAgentBatch:
        """Return the agents' closed steps by module, agent after agent. `env_steps()` of the batch is T.

        The columns are those of `SingleAgentEpisode.get_data_dict`, and `agent_id` and `module_id`. `eps_id` is the id
        of this episode, and `t` the environment time of the observation, so that rows of one env step can be matched
        across modules.
        """
        modules: dict[str, list[SampleBatch]] = {}
        for agent, single in self.agent_episodes.items():
            if len(single):
                module_id = self.module_for(agent)
                columns = self._agents[agent].batch_columns(self.id_, module_id)
                modules.setdefault(module_id, []).append(SampleBatch(columns))
        return MultiAgentBatch({key: concat_samples(parts) for key, parts in modules.items()}, len(self))

    def get_state(self) -> dict[str, Any]:
        """Return the state of the episode for `from_state`: plain values, arrays and infos.

        The mapping function is not part of it.
        """
        return {
            **{name: getattr(self, name) for name in _STATE},
            "len_lookback_buffer": self._lookback,
            "custom_data": deepcopy(self.custom_data),
            "duration_s": self.get_duration_s(),
            "agent_module_ids": [*map(list, self._modules.items())],
            "agent_episode_ids": [*map(list, self._agent_episode_ids.items())],
            "agent_t_started": [*map(list, self._agent_t_started.items())],
            "observation_space": [[agent, describe_space(space)] for agent, space in self._observation_spaces.items()],
            "action_space": [[agent, describe_space(space)] for agent, space in self._action_spaces.items()],
            "agents": [steps.get_state() for steps in self._agents.values()],
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], agent_to_module_mapping_fn: MappingFn | None = None
    ) -> MultiAgentEpisode:
        """Return the episode of a state of `get_state`. The function maps agents that appear later.

        Raises:
            KeyError: the state is foreign; names the keys that it lacks.
        """
        check_state(state, (*_STATE, "agents", "len_lookback_buffer"), "a multi-agent episode")
        episode = cls(
            state["id_"],
            observation_space={agent: space_from(space) for agent, space in state["observation_space"]} or None,
            action_space={agent: space_from(space) for agent, space in state["action_space"]} or None,
            agent_module_ids=dict(state["agent_module_ids"]),
            agent_episode_ids=dict(state["agent_episode_ids"]),
            agent_t_started=dict(state["agent_t_started"]),
            agent_to_module_mapping_fn=agent_to_module_mapping_fn,
        )
        for name in _STATE:
            setattr(episode, name, state[name])
        episode.custom_data = deepcopy(state["custom_data"])
        agents = [AgentSteps.from_state(part) for part in state["agents"]]
        episode._set_agents(agents, state["len_lookback_buffer"], duration=state["duration_s"])
        return episode


def _check_lists(lists: Mapping[str, Sequence[AgentDict] | None], flags: Sequence[AgentDict]) -> int:
    """Return the number of env steps in the lists of an episode.

    Raises:
        ValueError: the lists have lengths that do not fit, or there are flags but no step.
        TypeError: an argument is a dict instead of a list of dicts.
    """
    num_times = len(lists[OBSERVATIONS] or ())
    num_steps = max(num_times - 1, 0)
    for name, data in lists.items():
        if isinstance(data, Mapping):
            raise TypeError(f"{name} must be a list with one dict of agent id -> value for each time")
        wanted = num_times if name in (OBSERVATIONS, INFOS) else num_steps
        is_optional = data is None and name in (INFOS, EXTRAS)
        if len(data or ()) != wanted and not is_optional:
            raise ValueError(f"{num_times} observations need {wanted} {name}, but there are {len(data or ())}")
    if not num_steps and any(any(named.values()) for named in flags):
        raise ValueError("flags are given without a step at which the episode could have ended")
    return num_steps
