"""`AgentSteps`: the steps of one agent in an episode of several agents, with their environment times.

Env step t leads from time t to time t + 1. The actions of step t answer observations of time t or earlier; the
observations, rewards and flags that the step returns have time t + 1.

An action is *pending* until the next observation of its agent, which closes the agent's step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode import ACTIONS, EXTRAS, INFOS, OBSERVATIONS, REWARDS, SingleAgentEpisode
from lockstep.data.indices import Indices, position_array
from lockstep.data.trees import (
    Tree,
    check_in_space,
    concat_trees,
    in_stored_dtype,
    map_tree,
    object_rows,
    one_hot,
    rows_of,
    stack_rows,
    trees_equal,
    zip_trees,
)
from lockstep.data.values import as_reward
from lockstep.state.optional import optional_state

AgentID = Any
"""Name of an agent in the environment, mostly text."""
AgentDict = Mapping[AgentID, Any]
"""One value for each agent."""
ALL = "__all__"
"""Key of the flags that hold for all agents."""
COMMON = "__common__"
"""Key of infos that belong to no agent. They are not stored."""


class MultiAgentEnvError(ValueError):
    """Error for data of an environment that is inconsistent; names the agent and the env step."""


def as_agent_dict(data: AgentDict | bool | None, name: str) -> AgentDict:
    """Return `data` as a dict by agent.

    None and False become an empty dict, and True becomes `{"__all__": True}`. `TypeError` for another value.
    """
    if data is None or isinstance(data, bool):
        return {ALL: True} if data else {}
    if not isinstance(data, Mapping):
        raise TypeError(f"{name} is a {type(data).__name__}; a dict of agent id -> value is needed")
    return data


def spaces_by_agent(space: object, name: str) -> dict[AgentID, Any]:
    """Return the spaces of a dict or Dict space by agent id; nothing for None. `TypeError` for another value."""
    inner = {} if space is None else getattr(space, "spaces", space)
    if not isinstance(inner, Mapping):
        raise TypeError(f"{name} is {space!r}; a dict (or Dict space) of agent id -> space is needed")
    return dict(inner)


def flags_by_step(
    flags: AgentDict, observations: Sequence[AgentDict], actions: Sequence[AgentDict], rewards: Sequence[AgentDict]
) -> list[dict[AgentID, bool]]:
    """Distribute the flags at the end of an episode over its env steps.

    An agent's flag belongs to the last step with data of the agent, and `__all__` to the last step.
    """
    steps = [*zip(observations[1:], actions, rewards)]
    result: list[dict[AgentID, bool]] = [{ALL: False} for _ in steps]
    result[-1:] = [{ALL: flags[ALL]} if ALL in flags else {}]  # a slice, since there may be no step
    for agent, flag in flags.items():
        if flag and agent != ALL:
            steps_with_data = [i for i, parts in enumerate(steps) if any(agent in part for part in parts)]
            result[max([0, *steps_with_data])][agent] = True
    return result


def lists_by_agent(
    new_data: object, length: int, name: str
) -> tuple[dict[AgentID, list[Any]], dict[AgentID, np.ndarray]]:
    """Turn a list of dicts, one for each env step, into lists by agent.

    Returns:
        The values of each agent, and a bool mask `[length]` of the env steps at which the agent has a value.

    Raises:
        TypeError: `new_data` is not a list of dicts.
        IndexError: the list has another length.
    """
    if not isinstance(new_data, list) or not all(isinstance(item, Mapping) for item in new_data):
        raise TypeError("with return_list=True new_data is a list with one dict of agent id -> value for each index")
    if len(new_data) != length:
        raise IndexError(f"new_data has {len(new_data)} dicts of {name} for {length} env steps")

    agents: dict[AgentID, None] = {}  # a set would lose the order
    for item in new_data:
        agents.update(dict.fromkeys(item))
    rows = {agent: [item[agent] for item in new_data if agent in item] for agent in agents}
    masks = {agent: np.array([agent in item for item in new_data]) for agent in agents}
    return rows, masks


class EnvStep(NamedTuple):
    """Data of one env step, by agent."""

    observations: AgentDict = {}
    actions: AgentDict = {}
    rewards: AgentDict = {}
    infos: AgentDict = {}
    extra_model_outputs: AgentDict = {}
    terminateds: AgentDict = {}
    truncateds: AgentDict = {}

    def flags(self, agent: AgentID) -> tuple[bool, bool]:
        """Return (terminated, truncated) of an agent. `__all__` holds for agents whose own flags are not set."""
        terminated, truncated = self.own_flags(agent)
        if terminated or truncated:
            return terminated, truncated
        return bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL))

    def own_flags(self, agent: AgentID) -> tuple[bool, bool]:
        """Return (terminated, truncated) of an agent, without the flags of `__all__`."""
        return bool(self.terminateds.get(agent)), bool(self.truncateds.get(agent))

    def agents(self) -> list[AgentID]:
        """Return the agents that have data in the step, or a flag that is set."""
        agents = []
        for data in self[:_NUM_DATA_FIELDS]:
            agents += [agent for agent in data if agent != COMMON]
        for flags in self[_NUM_DATA_FIELDS:]:
            agents += [agent for agent, flag in flags.items() if flag and agent != ALL]
        return agents


_NUM_DATA_FIELDS = 5
"""Number of fields of `EnvStep` that hold data; the other fields hold flags."""


class PendingAction(NamedTuple):
    """An action that no observation has followed yet, with its model outputs."""

    action: Any
    extras: Mapping[str, Any] | None


@dataclass(slots=True)
class AgentSteps:
    """Steps of one agent: its `SingleAgentEpisode`, the environment times, and the pending action and rewards."""

    agent: AgentID
    episode: SingleAgentEpisode | None = None
    """The agent's own episode; None before its first observation."""
    times: list[int] = field(default_factory=list)
    """Environment time of each stored observation, lookback included."""
    pending: PendingAction | None = None
    """The action that answers the last observation, until the next observation comes."""
    partial_rewards: list[tuple[int, float]] = field(default_factory=list)
    """(Time, reward) of the rewards that came without an observation that closes a step."""
    late_actions: dict[int, int] = field(default_factory=dict)
    """Time of an observation -> env step of the action that answers it, for actions that came in a later step."""
    ended_at: int | None = None
    """Time at which the agent was done."""

    @property
    def begun_episode(self) -> SingleAgentEpisode:
        """The agent's episode, which must have its first observation."""
        assert self.episode is not None
        return self.episode

    @property
    def can_act(self) -> bool:
        """Whether the agent is not done and has not answered its last observation."""
        return self.episode is not None and self.ended_at is None and self.pending is None

    # ---- growing -----------------------------------------------------------------------------------------

    def problem_with(self, step: EnvStep) -> str | None:
        """Return a text that says why the agent's data in a step is inconsistent; None if it is consistent."""
        agent = self.agent
        acts = agent in step.actions
        observes = agent in step.observations
        for name, data in zip(EnvStep._fields[:_NUM_DATA_FIELDS], step):
            if agent in data:
                if self.ended_at is not None:
                    return f"{name} came, but the agent was done at t={self.ended_at}"
                if data[agent] is None:
                    return f"None in {name}; leave the agent out of the dict instead"
        try:
            as_reward(step.rewards.get(agent, 0.0))
        except ValueError as error:
            return str(error)

        if acts:
            return self._action_problem(step, observes) or self._end_problem(step, observes)
        if agent in step.extra_model_outputs:
            return "extra model outputs came without an action"
        if observes and self.can_act:
            return (
                f"a second observation came, but it has not acted since the one of t={self.times[-1]}; give an agent "
                "its observation when it is to act (or when it is done)"
            )
        return self._end_problem(step, observes)

    def _action_problem(self, step: EnvStep, observes: bool) -> str | None:
        """Return why the agent cannot take its action; None if it can."""
        if self.episode is None:
            return "it acted without having observed anything"
        if self.pending is not None:
            return (
                f"it acted again, but its action {self.pending.action!r} after the observation of t={self.times[-1]} "
                "still waits for an observation"
            )

        extras = step.extra_model_outputs.get(self.agent)
        if extras is not None and not isinstance(extras, Mapping):
            return f"extra model outputs are a {type(extras).__name__}; a dict is needed"
        if len(self.times) > 1 and (frozenset(extras or ()) or None) != self.episode.extra_keys:
            before = sorted(self.episode.extra_keys or ())
            return f"extra model outputs have the keys {sorted(extras or ())} and had {before} before"

        if observes and self.agent not in step.rewards:
            return "it acted and received an observation, but no reward"
        return None

    def _end_problem(self, step: EnvStep, observes: bool) -> str | None:
        """Return why the agent's end or infos do not fit a step without an observation; None if they do."""
        if observes or self.ended_at is not None:
            return None
        terminated, truncated = step.flags(self.agent)
        is_pending = self.pending is not None or self.agent in step.actions
        if self.agent in step.infos and not (is_pending and (terminated or truncated)):
            return "an info came without an observation; infos belong to observations"
        if truncated and not terminated and is_pending:
            return (
                "it was truncated after an action and without a last observation, from whose value it must be "
                "bootstrapped; give the observation"
            )
        return None

    def apply(self, step: EnvStep, now: int) -> bool:
        """Add the agent's data of a step that leads to time `now`. Return whether the agent ends in the step."""
        terminated, truncated = step.flags(self.agent)
        ends = terminated or truncated
        reward = as_reward(step.rewards.get(self.agent, 0.0))

        if self.agent in step.actions:
            self.pending = PendingAction(step.actions[self.agent], step.extra_model_outputs.get(self.agent))
            if self.times[-1] != now - 1:
                self.late_actions[self.times[-1]] = now - 1

        if self.pending is not None and (ends or self.agent in step.observations):
            self._close_step(self.pending, step, reward)
            self.times.append(now)
        elif reward:
            self.partial_rewards.append((now, reward))

        if ends and self.episode is not None:
            self.episode.is_terminated = terminated
            self.episode.is_truncated = truncated
        # `__all__` does not end agents that have not appeared yet.
        if ends and (self.episode is not None or any(step.own_flags(self.agent))):
            self.ended_at = now
        return ends

    def _close_step(self, pending: PendingAction, step: EnvStep, reward: float) -> None:
        """Add the pending action to the episode, with its next observation and the rewards since the last one."""
        if self.agent in step.observations:
            observation = step.observations[self.agent]
        else:
            # The agent terminated without a last observation: any will do, since its value counts as 0.
            observation = self.begun_episode.get_observations(-1)
        reward += self.pending_reward()
        info = step.infos.get(self.agent)
        self.begun_episode.add_env_step(observation, pending.action, reward, info, extra_model_outputs=pending.extras)
        self.pending = None

    # ---- reading -----------------------------------------------------------------------------------------

    def pending_reward(self) -> float:
        """Return the sum of the rewards since the last observation."""
        last = self.times[-1] if self.times else None
        total = 0.0
        for time, reward in reversed(self.partial_rewards):
            if last is not None and time <= last:
                break
            total += reward
        return total

    def hanging_rewards(self, begin: int, end: int) -> float:
        """Return the sum of the rewards that belong to no closed step of the piece from time `begin` to `end`.

        These are the rewards since the last observation, and those before the first that came after `begin`.
        """
        first = self.times[0] if self.times else end
        last = self.times[-1] if self.times else first
        # A live agent closes its step later, with all rewards since its last observation. Those of an agent that is
        # done or not there count in the piece in which they came.
        since = begin if self.ended_at is not None or not self.times else last
        return sum(r for t, r in self.partial_rewards if begin < t <= first or t > max(last, since))

    def num_rows(self, name: str) -> int:
        """Return the number of rows of a column: stored rows, and the pending one."""
        num_steps = self.begun_episode.len_lookback_buffer + len(self.begun_episode)
        return num_steps + (name in (OBSERVATIONS, INFOS) or self.pending is not None)

    def own_positions(self, name: str, indices: Indices, neg_index_as_lookback: bool, fill: bool) -> np.ndarray:
        """Return the positions in a column for indices that count the agent's own steps."""
        label = f"{name} of agent {self.agent!r}"
        lookback = self.begun_episode.len_lookback_buffer
        return position_array(indices, lookback, self.num_rows(name), neg_index_as_lookback, fill=fill, name=label)

    def positions_at(self, name: str, times: np.ndarray, begin: int) -> np.ndarray:
        """Return the position in a column for each time, or -1 if the agent has nothing at the time.

        Times before `begin` count as -1.
        """
        known = self.times
        num_rows = min(len(known), self.num_rows(name))
        if len(times) == 1:  # the usual case of one env step, without an array of all times
            time = int(times[0])
            position = bisect_left(known, time)
            is_known = position < num_rows and known[position] == time and time >= begin
            return np.array([position if is_known else -1])

        known_array = np.asarray(known, dtype=np.int64)
        positions = np.searchsorted(known_array, times)
        is_found = (positions < num_rows) & (times >= begin)
        is_found[is_found] = known_array[positions[is_found]] == times[is_found]
        return np.where(is_found, positions, -1)

    def column(self, name: str, key: str | None, one_hot_discrete: bool = False) -> Tree:
        """Return a whole column, with the pending value as its last row; a list for infos."""
        pending = self.pending if name not in (OBSERVATIONS, INFOS) else None
        try:
            if name == EXTRAS and len(self.times) < 2:
                tree = None if key is None else self.begun_episode.stored_column(EXTRAS).get(key)
            else:
                tree = self.begun_episode.stored_column(name, key)
            if pending is not None:
                rows = stack_rows(name, [self._pending_value(pending, name, key)])
                tree = rows if tree is None else concat_trees([tree, rows], name)
        except KeyError as error:
            raise self.named(error) from None

        if one_hot_discrete:
            return one_hot(tree, self._space_of(name), name)
        return np.empty(0, dtype=np.float32) if tree is None else tree

    def _space_of(self, name: str) -> Any:
        return self.begun_episode.observation_space if name == OBSERVATIONS else self.begun_episode.action_space

    def _pending_value(self, pending: PendingAction, name: str, key: str | None) -> Any:
        if name == REWARDS:
            return self.pending_reward()
        if name == ACTIONS:
            return pending.action
        extras = dict(pending.extras or {})
        if key is not None and key not in extras:
            raise KeyError(f"no extra model output {key!r}; there are {sorted(extras)}")
        return extras if key is None else extras[key]

    def named(self, error: Exception) -> Exception:
        """Return an error of the same type whose message begins with the agent."""
        return type(error)(f"agent {self.agent!r}: {error.args[0]}")

    def batch_columns(self, episode_id: str, module_id: str) -> dict[str, Any]:
        """Return the agent's closed steps as columns of a batch. `t` is the environment time."""
        num_steps = len(self.begun_episode)
        first = self.begun_episode.len_lookback_buffer
        if isinstance(self.agent, str | int):
            agent_ids = np.full(num_steps, self.agent)
        else:
            agent_ids = object_rows([self.agent] * num_steps)  # numpy would take a tuple apart
        return {
            **self.begun_episode.get_data_dict(),
            Columns.T: np.asarray(self.times[first : first + num_steps], dtype=np.int64),
            Columns.EPS_ID: np.full(num_steps, episode_id),
            Columns.AGENT_ID: agent_ids,
            Columns.MODULE_ID: np.full(num_steps, module_id),
        }

    def own_times(self, begin: int, end: int, skipped: str) -> list[int | str]:
        """Return, for each time from `begin` to `end`, the own step of the observation at that time, or `skipped`."""
        row: list[int | str] = [skipped] * (end - begin + 1)
        first = self.begun_episode.t_started - self.begun_episode.len_lookback_buffer
        for position, time in enumerate(self.times):
            if time >= begin:
                row[time - begin] = first + position
        return row

    def mark_at(self, time: int) -> str:
        """Return the mark of a time line: `x` for an observation, `-` for a pending action, `T` and `U` for the end."""
        if time == self.ended_at:
            if self.begun_episode.is_terminated:
                return "T"
            return "U" if self.begun_episode.is_truncated else "x"

        index = bisect_right(self.times, time) - 1
        if index < 0 or (self.ended_at is not None and time > self.ended_at):
            return ""
        if self.times[index] == time:
            return "x"
        has_acted = self.late_actions.get(self.times[index], self.times[index]) < time
        return "-" if has_acted and (index < len(self.times) - 1 or self.pending is not None) else ""

    # ---- writing -----------------------------------------------------------------------------------------

    def replaced(self, name: str, key: str | None, positions: np.ndarray, rows: Tree) -> tuple[Tree, Any]:
        """Return a column with new rows at `positions`, and the new pending value; nothing is changed.

        The column is None if only the pending value is new, and the pending value is None if it stays.
        """
        single = self.begun_episode
        num_rows = len(self.times) - 1 + (name == OBSERVATIONS)
        is_pending = positions == num_rows
        stored_rows = map_tree(lambda leaf: leaf[~is_pending], rows)
        pending_value = None
        try:
            if is_pending.any():
                pending_value = self._replaced_pending(name, key, map_tree(lambda leaf: leaf[is_pending][-1:], rows))

            if name == EXTRAS and key not in single.stored_column(EXTRAS) and len(self.times) > 1:
                num_values = len(single) + (self.pending is not None)
                if len(positions) != num_values:
                    raise KeyError(f"no extra model output {key!r}; a new one takes all {num_values} values at once")
                return single.replaced_column(name, key, stored_rows, None, True), pending_value

            if is_pending.all():
                return None, pending_value
            indices = positions[~is_pending] - single.len_lookback_buffer
            return single.replaced_column(name, key, stored_rows, indices, True), pending_value
        except (ValueError, IndexError, KeyError) as error:
            raise self.named(error) from None

    def _replaced_pending(self, name: str, key: str | None, rows: Tree) -> Any:
        """Return the new pending value after a check, in the dtype of the old one."""
        if self.pending is not None and name == ACTIONS:
            rows = zip_trees(in_stored_dtype, [rows, stack_rows(name, [self.pending.action])], name)
        space = self._space_of(name) if name in (OBSERVATIONS, ACTIONS) else None
        check_in_space(rows, space, key or name)
        return rows_of(rows, 0)

    def store(self, name: str, key: str | None, column: Tree, pending_value: Tree, now: int) -> None:
        """Store the column and the pending value that `replaced` returned."""
        if column is not None:
            self.begun_episode.put_column(name, key, column)
        if pending_value is None or self.pending is None:
            return
        if name == ACTIONS:
            self.pending = PendingAction(pending_value, self.pending.extras)
        elif name == EXTRAS:
            self.pending = PendingAction(self.pending.action, {**(self.pending.extras or {}), str(key): pending_value})
        elif name == REWARDS:
            # The parts of the old sum give way to one reward.
            earlier = [entry for entry in self.partial_rewards if entry[0] <= self.times[-1]]
            self.partial_rewards = [*earlier, (now, float(pending_value))]

    # ---- pieces ------------------------------------------------------------------------------------------

    def piece(self, begin: int, end: int, lookback: int) -> AgentSteps | None:
        """Return the agent's steps from time `begin` to `end`, with `lookback` env steps before them.

        None if the agent has no data in this time.
        """
        ended_at = self.ended_at if self.ended_at is not None and self.ended_at <= end else None
        last = bisect_right(self.times, end) - 1
        if self.episode is None or last < 0:
            rewards = [entry for entry in self.partial_rewards if begin < entry[0] <= end]
            has_data = rewards or ended_at is not None
            return AgentSteps(self.agent, partial_rewards=rewards, ended_at=ended_at) if has_data else None

        # The last observation at or before `begin` is the one that the first step of the piece begins with.
        first = max(bisect_right(self.times, begin) - 1, 0)
        oldest = bisect_left(self.times, begin - lookback, 0, first)
        if ended_at is not None and ended_at <= begin and oldest == first:
            return AgentSteps(self.agent, ended_at=ended_at)  # done before the piece and its lookback

        offset = self.episode.len_lookback_buffer
        part = self.episode.slice(slice(first - offset, last - offset), len_lookback_buffer=first - oldest)
        if ended_at is None:
            part.is_terminated = False
            part.is_truncated = False

        times = self.times[oldest : last + 1]
        pending = None
        if ended_at is None and self.late_actions.get(times[-1], times[-1]) < end:
            # The agent has answered the last observation of the piece before the piece ends.
            pending = deepcopy(self.pending if last == len(self.times) - 1 else self._action_at(last))
        rewards = [entry for entry in self.partial_rewards if min(times[0], begin) < entry[0] <= end]
        late_actions = {time: step for time, step in self.late_actions.items() if times[0] <= time and step < end}
        return AgentSteps(self.agent, part, times, pending, rewards, late_actions, ended_at)

    def _action_at(self, position: int) -> PendingAction:
        """Return the action and model outputs of a stored step as they were before the step was closed."""
        extras = {key: rows_of(tree, position) for key, tree in self.begun_episode.stored_column(EXTRAS).items()}
        return PendingAction(rows_of(self.begun_episode.stored_column(ACTIONS), position), extras or None)

    def move_start(self, start: int) -> SingleAgentEpisode:
        """Make the steps before time `start` the lookback of the agent's episode, and return the episode."""
        lookback = max(bisect_right(self.times, start) - 1, 0)
        moved = self.begun_episode.slice(slice(lookback, None), len_lookback_buffer=lookback)
        # Own steps are counted from the start on, not from the first lookback step.
        num_steps = len(moved)
        moved.t_started = self.begun_episode.t_started
        moved.t = moved.t_started + num_steps
        self.episode = moved
        return moved

    def check_contiguous(self, other: AgentSteps | None, now: int) -> None:
        """Raise `ValueError` unless `other` continues the agent's steps in the piece that begins at time `now`."""
        following = None if other is None else other.episode
        if self.ended_at is not None and following is not None and len(following):
            raise ValueError(f"agent {self.agent!r} was done at t={self.ended_at} and has steps in the second piece")
        if self.ended_at is not None or self.episode is None:
            return
        if other is None or following is None:
            raise ValueError(f"agent {self.agent!r} is alive at t={now} and missing in the second piece")
        try:
            self.episode.check_contiguous(following)
        except ValueError as error:
            raise self.named(error) from None

        if self.pending is not None:
            # The pending action is the first one of the other piece, closed there or still pending.
            if len(following):
                next_action = following.get_actions(0)
            else:
                next_action = None if other.pending is None else other.pending.action
            if next_action is None or not trees_equal(next_action, self.pending.action):
                raise ValueError(
                    f"agent {self.agent!r} waits with action {self.pending.action!r}, the second piece begins with "
                    f"{next_action!r}"
                )

    def extend(self, other: AgentSteps, boundary: int) -> None:
        """Append the steps of the next piece, which begins at time `boundary`. An agent that is done stays as it is."""
        if self.ended_at is not None:
            return
        if self.episode is None and other.episode is not None:
            self.episode = other.episode[:]
            self.times = [*other.times]
        elif self.episode is not None and other.episode is not None:
            self.episode.concat_episode(other.episode)
            # The first observation of the other piece is the last one of this piece.
            self.times += other.times[other.episode.len_lookback_buffer + 1 :]
        self.partial_rewards += [entry for entry in other.partial_rewards if entry[0] > boundary]
        self.late_actions.update(other.late_actions)
        self.pending = other.pending
        self.ended_at = other.ended_at

    # ---- checks and state --------------------------------------------------------------------------------

    def validate(self, now: int, module_id: str) -> None:
        """Raise `ValueError`, naming agent and values, if an invariant does not hold at time `now`."""
        single = self.begun_episode
        times = self.times
        name = f"agent {self.agent!r}"
        try:
            single.validate()
        except ValueError as error:
            raise self.named(error) from None

        num_steps = single.len_lookback_buffer + len(single)
        if len(times) != num_steps + 1:
            raise ValueError(f"{name}: {num_steps} steps need one more observation, there are {times}")
        if any(later <= earlier for earlier, later in pairwise(times)) or times[-1] > now:
            raise ValueError(f"{name}: times {times} must grow and end at t={now} or before")
        if (self.ended_at is not None) != single.is_done or (single.is_done and self.pending is not None):
            raise ValueError(
                f"{name}: is_done={single.is_done}, but it ended at t={self.ended_at}; {self.pending} waits"
            )
        if single.module_id != module_id:
            raise ValueError(f"{name}: modules {single.module_id!r} and {module_id!r}")

    def get_state(self) -> dict[str, Any]:
        """Return the state of the agent: plain values, arrays, and infos."""
        # Stored keys keep their names: "waiting" is the pending action, "acted_late" are the late actions.
        waiting = None
        if self.pending is not None:
            waiting = deepcopy({"action": self.pending.action, "extras": self.pending.extras})
        return {
            "agent_id": self.agent,
            "episode": optional_state(self.episode),
            "times": [*self.times],
            "waiting": waiting,
            "partial_rewards": [[time, reward] for time, reward in self.partial_rewards],
            "acted_late": [[time, step] for time, step in self.late_actions.items()],
            "ended_at": self.ended_at,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AgentSteps:
        """Return the agent of a state of `get_state`."""
        agent = cls(
            state["agent_id"],
            times=[*state["times"]],
            partial_rewards=[(time, reward) for time, reward in state["partial_rewards"]],
            late_actions=dict(state["acted_late"]),
            ended_at=state["ended_at"],
        )
        if state["episode"] is not None:
            agent.episode = SingleAgentEpisode.from_state(state["episode"])
        if state["waiting"] is not None:
            agent.pending = PendingAction(**deepcopy(state["waiting"]))
        return agent
