"""`MultiAgentEpisode`: a (piece of an) episode of several agents, who may act at once or in turns, come and go."""

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
    by_agent,
    flags_by_step,
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
    Write,
    check_follows,
    check_state,
)
from lockstep.data.indices import Indices, lookback_steps, position_array, run_of_steps
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import as_rows, num_items, read_list, read_tree, rows_of, stack_rows
from lockstep.options.checks import check_whole

Slice = slice  # the method of this name hides the type in the class
MappingFn = Callable[[AgentID, "MultiAgentEpisode"], str]
"""Returns the module that acts for an agent in an episode."""
AgentIDs = Collection[AgentID] | AgentID | None


class ReadAgents(TypedDict, total=False):
    """Options of all getters."""

    env_steps: bool
    neg_index_as_lookback: bool
    fill: Any
    return_list: bool


class ReadDiscreteAgents(ReadAgents, total=False):
    """Options of the getters of observations and actions."""

    one_hot_discrete: bool


class WriteAgents(Write, total=False):
    """Options of all setters."""

    agent_ids: AgentIDs
    env_steps: bool
    return_list: bool


_STATE = ("id_", "env_t", "env_t_started", "is_terminated", "is_truncated", "is_reset")


class MultiAgentEpisode:
    """T environment steps of several agents: one `SingleAgentEpisode` for each, and when its observations came.

    Time counts environment steps: the reset has time 0, and env step t leads from time t to t + 1. An agent's step
    begins with an observation, which it answers with an action, and is closed by its next observation; rewards in
    between are summed. Until then action and rewards wait (they "hang"). A step belongs to the piece of an episode
    in which it is closed. Rewards before an agent's first observation belong to no step and are kept apart.

    Args:
        id_: name of the episode, which all its pieces share; a new one by default.
        observations, infos: L + T + 1 dicts agent id -> value, the reset first; actions, rewards,
            extra_model_outputs: L + T dicts, those of each env step.
        observation_space, action_space: agent id -> space; then only these agents are allowed.
        terminateds, truncateds: flags at the end; an agent's own count from the last step in which it has data.
        env_t_started: time at which this piece begins, lookback not counted (default 0).
        agent_t_started: agent id -> the agent's own step at that time (default 0).
        len_lookback_buffer: number of the given steps that are lookback (`"auto"`: all).
        agent_episode_ids, agent_module_ids: agent id -> id of its episode, of its module.
        agent_to_module_mapping_fn: `f(agent_id, episode) -> module id`, asked once for each agent; by default
            all agents have `"default_policy"`.

    Raises:
        ValueError: the lengths do not fit.
        MultiAgentEnvError: data that cannot be (a `ValueError`).
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
        self.observation_space, self.action_space = observation_space, action_space
        self._observation_spaces = spaces_by_agent(observation_space, "observation_space")
        self._action_spaces = spaces_by_agent(action_space, "action_space")
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._modules: dict[AgentID, str] = dict(agent_module_ids or {})
        """pieces share it: it is replaced, not changed"""
        self._agent_episode_ids = dict(agent_episode_ids or {})
        self._agent_t_started = dict(agent_t_started or {})
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        """of the agents that have an observation in this piece"""
        self._agents: dict[AgentID, AgentSteps] = {}
        """of all agents that data came for"""
        self.custom_data: dict[str, Any] = {}
        self.is_reset = self.is_terminated = self.is_truncated = False
        self._duration, self._start_time, self._last_time = 0.0, 0.0, 0.0
        self.env_t = self.env_t_started = env_t_started or 0
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
        """Add the first observations; agents that are not there appear later. Once, before any step.

        `ValueError` a second time, `MultiAgentEnvError` for an unknown agent or an observation outside its space.
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
        """Add one environment step: the agents in `actions` acted, and the rest came back.

        `__all__` in a flag's dict (or a plain bool) speaks for every agent that has no flag of its own. Where
        neither dict has `__all__`, the episode ends with its last agent: truncated if all that end in that step
        are, else terminated. An agent that terminates while its action waits repeats its last observation.

        Raises:
            MultiAgentEnvError: naming agent and step, with nothing changed, for: data for an agent that is done
                or unknown; an action of an agent that has observed nothing since its last one; a second observation
                without an action; an action and an observation without a reward; a reward that is no number; a
                truncation after an action without a last observation; infos without observation, model outputs
                without action; a step before the reset or after the end.
            TypeError: values that are no dicts.
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
        able = [agent for agent, steps in self._agents.items() if steps.can_act]
        return MultiAgentEnvError(
            f"agent {agent!r} in env step {self.env_t} of episode {self.id_}: {reason}; able to act are {able}"
        )

    def _checked_agents(self, step: EnvStep) -> list[AgentID]:
        """Return the agents known so far and those of a step; `MultiAgentEnvError` for data that cannot be."""
        agents = list(dict.fromkeys([*self._agents, *step.agents()]))
        for agent in agents:
            known, space = self._agents.get(agent), self._observation_spaces.get(agent)
            steps = known or AgentSteps(agent)
            reason = (None if known else self._name_problem(agent)) or steps.problem_with(step)
            if reason is None and space is not None and steps.episode is None and agent in step.observations:
                observation = step.observations[agent]
                if not space.contains(observation):
                    reason = f"the observation {observation!r} does not lie in the space {space}"
            if reason is not None:
                raise self._problem(agent, reason)
        return agents

    def _name_problem(self, agent: AgentID) -> str | None:
        """Return why an agent without data so far cannot appear; None where it can."""
        if agent == ALL:
            return "data came under '__all__', which is for flags only"
        for spaces in (self._observation_spaces, self._action_spaces):
            if spaces and agent not in spaces:
                return f"data came for an unknown agent; the spaces know {list(spaces)}"
        return None

    def _apply(self, step: EnvStep, agents: Sequence[AgentID]) -> None:
        """Add a checked step."""
        self.env_t += 1
        ended = []
        for agent in agents:
            steps = self._agents.get(agent)
            if steps is None:
                if not (agent in step.observations or step.rewards.get(agent) or any(step.own_flags(agent))):
                    continue  # a reward of 0, which says that nothing happened
                steps = self._agents[agent] = AgentSteps(agent)
            if steps.ended_at is not None:
                continue
            if steps.episode is None and agent in step.observations:
                self._begin_agent(agent, step)
            if steps.apply(step, self.env_t):
                ended.append(agent)
        self.is_terminated = bool(step.terminateds.get(ALL))
        self.is_truncated = bool(step.truncateds.get(ALL))
        left_open = ALL not in step.terminateds and ALL not in step.truncateds
        singles = self.agent_episodes.values()
        if left_open and ended and singles and all(single.is_done for single in singles):
            # the environment leaves it to us; what ends last says how
            self.is_terminated = any(step.flags(agent)[0] for agent in ended)
            self.is_truncated = not self.is_terminated

    def _begin_agent(self, agent: AgentID, step: EnvStep) -> None:
        """Add an agent with its first observation, which came now."""
        single = self.agent_episodes[agent] = SingleAgentEpisode(
            self._agent_episode_ids.get(agent),
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self._observation_spaces.get(agent),
            action_space=self._action_spaces.get(agent),
            t_started=self._agent_t_started.get(agent, 0),
        )
        single.add_env_reset(step.observations[agent], step.infos.get(agent))
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
        """Add the given env steps one by one, then move the start behind the lookback."""
        num_steps = len(observations) - 1
        start = self.env_t_started
        self.env_t = self.env_t_started = start - lookback
        actions, rewards = steps[ACTIONS] or [], steps[REWARDS] or []
        infos, extras = infos or [{}] * (num_steps + 1), steps[EXTRAS] or [{}] * num_steps
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
        self.env_t_started, self._lookback = start, lookback
        for agent in self.agent_episodes:
            self.agent_episodes[agent] = self._agents[agent].look_back(start)

    # ---- sizes and marks ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    @property
    def len_lookback_buffer(self) -> int:
        """Number of env steps before the first that can be looked back at."""
        return self._lookback

    @property
    def is_done(self) -> bool:
        """Whether the episode was terminated or truncated for all."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' steps lie in arrays (reading packs them)."""
        return bool(self.agent_episodes) and all(single.is_numpy for single in self.agent_episodes.values())

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have an observation in this piece."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """Agent id -> id of its `SingleAgentEpisode`."""
        return {agent: single.id_ for agent, single in self.agent_episodes.items()}

    @property
    def agent_module_ids(self) -> dict[AgentID, str]:
        """Agent id -> id of its module, of all agents that were asked for so far."""
        return dict(self._modules)

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Agent id -> the agent's own step at which this piece begins."""
        return {agent: single.t_started for agent, single in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, list[int | str]]:
        """Agent id -> for each time from the lookback on, the agent's own time of its observation, or `"S"`."""
        begin, tag = self.env_t_started - self._lookback, self.SKIP_ENV_TS_TAG
        return {agent: self._agents[agent].own_times(begin, self.env_t, tag) for agent in self.agent_episodes}

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module of an agent, which the mapping function says the first time."""
        if agent_id not in self._modules:
            mapping = self.agent_to_module_mapping_fn
            module_id = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            if not isinstance(module_id, str):
                raise TypeError(f"agent {agent_id!r} was mapped to {module_id!r}; a module id is a str")
            self._modules = {**self._modules, agent_id: module_id}
        return self._modules[agent_id]

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Return agent id -> terminated, and `__all__`."""
        return {**{agent: one.is_terminated for agent, one in self.agent_episodes.items()}, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Return agent id -> truncated, and `__all__`."""
        return {**{agent: one.is_truncated for agent, one in self.agent_episodes.items()}, ALL: self.is_truncated}

    def get_agents_to_act(self) -> set[AgentID]:
        """Return the agents that are not done and have not answered their last observation."""
        return set() if self.is_done else {agent for agent, steps in self._agents.items() if steps.can_act}

    def get_agents_that_stepped(self) -> set[AgentID]:
        """Return the agents whose last observation came now, at time `env_t`, done or not."""
        return {agent for agent in self.agent_episodes if self._agents[agent].times[-1] == self.env_t}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of the rewards of all agents' closed steps, without lookback.

        `include_hanging_rewards` adds those that wait: since an agent's last observation, and before its first.
        """
        total = sum(single.get_return() for single in self.agent_episodes.values())
        if include_hanging_rewards:
            total += sum(steps.hanging_rewards(self.env_t_started, self.env_t) for steps in self._agents.values())
        return total

    def get_duration_s(self) -> float:
        """Return the seconds from the reset to the last added step; pieces joined together add up."""
        return self._duration + self._last_time - self._start_time

    def env_steps(self) -> int:
        """Return T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of closed steps of all agents together."""
        return sum(len(single) for single in self.agent_episodes.values())

    def validate(self) -> None:
        """Raise `ValueError`, with agent and values, where an invariant does not hold."""
        if self._lookback < 0 or self.env_t < self.env_t_started:
            raise ValueError(f"t={self.env_t_started}..{self.env_t} with {self._lookback} of lookback")
        for agent in self.agent_episodes:
            self._agents[agent].validate(self.env_t, self.module_for(agent))

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        agents = {agent: len(single) for agent, single in self.agent_episodes.items()}
        return f"MultiAgentEpisode({self.id_!r}, t={self.env_t_started}..{self.env_t}, {end}, steps {agents})"

    def print(self) -> None:
        """Print a time line: one row for each agent, one column for each time.

        `x` is an observation, `-` a time at which an action waits, `T` and `U` the end (terminated, truncated).
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
        self, indices: Indices = None, agent_ids: AgentIDs = None, **how: Unpack[ReadDiscreteAgents]
    ) -> Any:
        """Return observations `{agent: column}` at `indices`, which are env steps (T + 1 of them).

        An agent's column has a row for each index at which it observed; agents without any are left out. With
        `fill` each agent has a row for each index. An int gives single rows. `return_list=True` gives one dict for
        each index. With `env_steps=False` the indices are each agent's own steps. Indices, `neg_index_as_lookback`,
        `fill` and `one_hot_discrete` are as in `SingleAgentEpisode.get_observations`.

        Raises:
            IndexError: outside of the episode, without `fill`.
            KeyError: an unknown agent.
            ValueError: `return_list` with the agents' own steps.
        """
        return self._get(OBSERVATIONS, None, indices, agent_ids, **how)

    def get_infos(self, indices: Indices = None, agent_ids: AgentIDs = None, **how: Unpack[ReadAgents]) -> Any:
        """Return infos, as lists; see `get_observations`."""
        return self._get(INFOS, None, indices, agent_ids, **how)

    def get_actions(
        self, indices: Indices = None, agent_ids: AgentIDs = None, **how: Unpack[ReadDiscreteAgents]
    ) -> Any:
        """Return actions (T env steps); see `get_observations`.

        An action has the index of the observation that it answers. One that waits for the next observation counts.
        """
        return self._get(ACTIONS, None, indices, agent_ids, **how)

    def get_rewards(self, indices: Indices = None, agent_ids: AgentIDs = None, **how: Unpack[ReadAgents]) -> Any:
        """Return rewards of the actions, with their indices: each the sum until the agent's next observation."""
        return self._get(REWARDS, None, indices, agent_ids, **how)

    def get_extra_model_outputs(
        self, key: str | None = None, indices: Indices = None, agent_ids: AgentIDs = None, **how: Unpack[ReadAgents]
    ) -> Any:
        """Return model outputs under `key` with the indices of the actions; None: a dict of all for each agent."""
        return self._get(EXTRAS, key, indices, agent_ids, **how)

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
        filled = fill is not None
        times, single = self._times(name, indices, neg_index_as_lookback, filled, env_steps, return_list)
        read: dict[AgentID, tuple[np.ndarray, Any]] = {}
        for agent in self._chosen(agent_ids):
            steps = self._agents[agent]
            if env_steps:
                positions = steps.positions_at(name, times, self.env_t_started - self._lookback)
            else:
                positions = steps.own_positions(name, indices, neg_index_as_lookback, filled)
            found = np.full(len(positions), True) if filled else positions >= 0
            positions = positions[found]
            column = steps.column(name, key, one_hot_discrete) if len(positions) else {}
            if isinstance(column, list):
                read[agent] = found, read_list(column, positions, fill)
            elif not isinstance(column, dict) or column:
                read[agent] = found, read_tree(column, positions, fill, steps.num_rows(name))
        if return_list:
            result: list[dict[AgentID, Any]] = [{} for _ in range(len(times))]
            for agent, (found, rows) in read.items():
                for row, index in enumerate(np.flatnonzero(found).tolist()):
                    result[index][agent] = rows_of(rows, row)
            return result
        return {agent: rows_of(rows, 0) if single else rows for agent, (_, rows) in read.items()}

    def _chosen(self, agent_ids: AgentIDs) -> list[AgentID]:
        """Return the agents asked for; `KeyError` for one that has no observation in this episode."""
        if agent_ids is None:
            return [*self.agent_episodes]
        alone = isinstance(agent_ids, str) or not isinstance(agent_ids, Collection)
        alone = alone or (isinstance(agent_ids, tuple) and agent_ids in self.agent_episodes)
        chosen = [agent_ids] if alone else [*agent_ids]
        unknown = [agent for agent in chosen if agent not in self.agent_episodes]
        if unknown:
            raise KeyError(f"no agent {unknown[0]!r} in episode {self.id_}; its agents are {[*self.agent_episodes]}")
        return chosen

    def _times(
        self, name: str, indices: Indices, negative: bool, fill: bool, env_steps: bool, return_list: bool
    ) -> tuple[np.ndarray, bool]:
        """Return the times that env-step `indices` mean (none for agents' own steps), and whether they are one int."""
        single = isinstance(indices, int | np.integer)
        if not env_steps:
            if return_list:
                raise ValueError("return_list=True needs env_steps=True: agents' own steps have no common index")
            return np.empty(0, np.int64), single
        stored = self._lookback + len(self) + (name in (OBSERVATIONS, INFOS))
        positions = position_array(indices, self._lookback, stored, negative, fill=fill, name=name)
        return positions + (self.env_t_started - self._lookback), single

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(self, *, new_data: Any, **where: Unpack[WriteAgents]) -> None:
        """Replace observations by `new_data`, which has the form in which the getter with these arguments gives them.

        `at_indices` are the getter's indices; `agent_ids` limits the agents that are set. On an error nothing is
        changed.

        Raises:
            IndexError: lengths do not fit.
            ValueError: a value outside the agent's space.
            KeyError: an agent that is not there.
        """
        self._set(OBSERVATIONS, None, new_data, **where)

    def set_actions(self, *, new_data: Any, **where: Unpack[WriteAgents]) -> None:
        """Replace actions, waiting ones too; see `set_observations`."""
        self._set(ACTIONS, None, new_data, **where)

    def set_rewards(self, *, new_data: Any, **where: Unpack[WriteAgents]) -> None:
        """Replace rewards, those of waiting actions too; see `set_observations`."""
        self._set(REWARDS, None, new_data, **where)

    def set_extra_model_outputs(self, *, key: str, new_data: Any, **where: Unpack[WriteAgents]) -> None:
        """Replace outputs under `key`; a new key takes a value for every step. See `set_observations`."""
        self._set(EXTRAS, key, new_data, **where)

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
        """Replace columns; everything is checked before anything is changed."""
        times, single = self._times(name, at_indices, neg_index_as_lookback, False, env_steps, return_list)
        at: dict[AgentID, np.ndarray] = {}
        if return_list:
            new_data, at = by_agent(new_data, len(times), name)
            single = False
        if not isinstance(new_data, Mapping):
            raise TypeError(f"new_data is a {type(new_data).__name__}; a dict of agent id -> new {name} is needed")
        changes = []
        for agent in self._chosen([*new_data] if agent_ids is None else agent_ids):
            if agent not in new_data:
                raise KeyError(f"new_data has no agent {agent!r}; it has {[*new_data]}")
            steps = self._agents[agent]
            if not env_steps:
                positions = steps.own_positions(name, at_indices, neg_index_as_lookback, False)
            else:
                must = at.get(agent, np.full(len(times), single))
                positions = steps.positions_at(name, times, self.env_t_started - self._lookback)
                lacking = times[must & (positions < 0)]
                if len(lacking):
                    raise IndexError(f"agent {agent!r} has no {name} at t={lacking[0]}, which cannot be set")
                positions = positions[must if return_list else positions >= 0]
            rows = stack_rows(name, [new_data[agent]]) if single else as_rows(new_data[agent], name)
            if num_items(rows) != len(positions):
                raise IndexError(f"agent {agent!r}: {num_items(rows)} new {name} for {len(positions)} places")
            if len(positions):
                changes.append((steps, *steps.replaced(name, key, positions, rows)))
        for steps, column, last in changes:
            steps.put(name, key, column, last, self.env_t)

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> MultiAgentEpisode:
        """Return the successor: same id, `env_t_started = env_t`, the last env steps as lookback.

        It holds each live agent's last observation, also where that is older than the lookback, with the action and
        the rewards that wait. `ValueError` where the episode is done or has not been reset.
        """
        if self.is_done or not self.is_reset:
            state = f"ended at t={self.env_t}" if self.is_done else "has no observation yet; call add_env_reset first"
            raise ValueError(f"episode {self.id_} has no successor: it {state}")
        wanted = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        return self._piece(len(self), len(self), min(wanted, self._lookback + len(self)))

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Return env steps `slice_` as a new episode of views: what the episode was after them, begun before them.

        Each agent's step lies in the slice in which it is closed. An action that waits at the end of the slice waits
        in it, with the rewards that had come by then. The slice is done only if it reaches the end of a done
        episode. Lookback as in `SingleAgentEpisode.slice`. `ValueError` for a step other than 1.
        """
        start, stop = run_of_steps(slice_, len(self))
        wanted = check_whole("len_lookback_buffer", len_lookback_buffer, 0, optional=True)
        return self._piece(
            start, max(start, stop), min(self._lookback if wanted is None else wanted, self._lookback + start)
        )

    def __getitem__(self, key: int | Slice) -> MultiAgentEpisode:
        return self.slice(slice(*run_of_steps(key, len(self))))

    def _piece(self, start: int, stop: int, lookback: int) -> MultiAgentEpisode:
        """Return env steps `start:stop` with `lookback` of them before, as views."""
        begin, end = self.env_t_started + start, self.env_t_started + stop
        part = copy(self)
        part.env_t_started, part.env_t = begin, end
        part.custom_data = deepcopy(self.custom_data)
        if stop < len(self):
            part.is_terminated = part.is_truncated = False
        pieces = [steps.piece(begin, end, lookback) for steps in self._agents.values()]
        part._hold([piece for piece in pieces if piece is not None], lookback, now=self._last_time)
        return part

    def _hold(self, agents: Sequence[AgentSteps], lookback: int, *, now: float = 0.0, duration: float = 0.0) -> None:
        """Take the agents of a piece or of a state."""
        self._agents = {steps.agent: steps for steps in agents}
        self.agent_episodes = {steps.agent: steps.episode for steps in agents if steps.episode is not None}
        self._lookback = lookback
        self._duration, self._start_time, self._last_time = duration, now, now

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append `other` in place: same id, `env_t_started` equal to this `env_t`, agents that fit together.

        `ValueError`, changing nothing, where that is not so (naming agent and values) or where this one is done.
        """
        theirs = other._agents
        self._check_contiguous(other, theirs)
        for agent, steps in theirs.items():
            mine = self._agents.setdefault(agent, AgentSteps(agent))
            mine.follow(steps, self.env_t)
            if mine.episode is not None:
                self.agent_episodes.setdefault(agent, mine.episode)
        self.env_t = other.env_t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._modules = {**self._modules, **other._modules}
        self._duration += other.get_duration_s()
        self.custom_data.update(other.custom_data)

    def _check_contiguous(self, other: MultiAgentEpisode, theirs: Mapping[AgentID, AgentSteps]) -> None:
        check_follows(self.id_, self.env_t, self.is_done, other.id_, other.env_t_started)
        if not (self.is_reset and other.is_reset):
            raise ValueError("both pieces need an observation; call add_env_reset first")
        for agent, steps in self._agents.items():
            steps.check_contiguous(theirs.get(agent), self.env_t)
        for agent, steps in theirs.items():
            if steps.times and agent not in self.agent_episodes and steps.times[0] <= self.env_t:
                raise ValueError(
                    f"agent {agent!r} is missing in the first piece and has an observation of t={steps.times[0]}"
                )

    # ---- other forms -------------------------------------------------------------------------------------

    def to_numpy(self) -> MultiAgentEpisode:
        """Pack all agents' steps into arrays; return self."""
        for single in self.agent_episodes.values():
            single.to_numpy()
        return self

    def get_sample_batch(self) -> MultiAgentBatch:
        """Return the agents' steps by module, one agent's rows after another's.

        Columns of `SingleAgentEpisode.get_data_dict`, with `eps_id` the id of this episode and `t` the env time of
        the observation (so that rows of one env step can be found over all modules), and `agent_id`, `module_id`.
        `env_steps()` is T. Agents without a closed step are left out.
        """
        modules: dict[str, list[SampleBatch]] = {}
        for agent, single in self.agent_episodes.items():
            if len(single):
                module_id = self.module_for(agent)
                columns = self._agents[agent].batch_columns(self.id_, module_id)
                modules.setdefault(module_id, []).append(SampleBatch(columns))
        return MultiAgentBatch({key: concat_samples(parts) for key, parts in modules.items()}, len(self))

    def get_state(self) -> dict[str, Any]:
        """Return all of the episode but the mapping function, for `from_state`: plain values, arrays, and infos."""
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
        """Return the episode that `get_state` described. The function maps agents that appear later.

        `KeyError` naming what a foreign state lacks.
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
        episode._hold(agents, state["len_lookback_buffer"], duration=state["duration_s"])
        return episode


def _check_lists(lists: Mapping[str, Sequence[AgentDict] | None], flags: Sequence[AgentDict]) -> int:
    """Return the number of env steps in the lists; `ValueError` or `TypeError` naming those that do not fit."""
    times = len(lists[OBSERVATIONS] or ())
    num_steps = max(times - 1, 0)
    for name, data in lists.items():
        if isinstance(data, Mapping):
            raise TypeError(f"{name} must be a list with one dict of agent id -> value for each time")
        wanted = times if name in (OBSERVATIONS, INFOS) else num_steps
        left_out = data is None and name in (INFOS, EXTRAS)
        if len(data or ()) != wanted and not left_out:
            raise ValueError(f"{times} observations need {wanted} {name}, but there are {len(data or ())}")
    if not num_steps and any(any(named.values()) for named in flags):
        raise ValueError("flags are given without a step at which the episode could have ended")
    return num_steps
