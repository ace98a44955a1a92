"""One agent in an episode of several: its own steps, when they came in environment time, and what waits.

Env step t leads from time t to time t + 1: the actions of step t answer observations of time t or before, and the
observations, rewards and flags that it brings have time t + 1.
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

AgentID = Any
"""Name of an agent: what the environment calls it, mostly text."""
AgentDict = Mapping[AgentID, Any]
"""A value for each agent."""
ALL = "__all__"
COMMON = "__common__"
"""key of infos that belong to no agent; they are not stored"""


class MultiAgentEnvError(ValueError):
    """An environment (or whoever feeds the episode) gave data that cannot be: names the agent and the env step."""


def as_agent_dict(data: AgentDict | bool | None, name: str) -> AgentDict:
    """Return `data`; nothing for None and False, `{"__all__": True}` for True. Else `TypeError`."""
    if data is None or isinstance(data, bool):
        return {ALL: True} if data else {}
    if not isinstance(data, Mapping):
        raise TypeError(f"{name} is a {type(data).__name__}; a dict of agent id -> value is needed")
    return data


def spaces_by_agent(space: object, name: str) -> dict[AgentID, Any]:
    """Return agent id -> space of a dict or a Dict space, nothing for None; `TypeError` for another kind."""
    inner = {} if space is None else getattr(space, "spaces", space)
    if not isinstance(inner, Mapping):
        raise TypeError(f"{name} is {space!r}; a dict (or Dict space) of agent id -> space is needed")
    return dict(inner)


def flags_by_step(
    flags: AgentDict, observations: Sequence[AgentDict], actions: Sequence[AgentDict], rewards: Sequence[AgentDict]
) -> list[dict[AgentID, bool]]:
    """Return the flags of each env step: an agent's in the step of its last data, that of `__all__` in the last."""
    steps = [*zip(observations[1:], actions, rewards)]
    result = [{ALL: False} for _ in steps]
    result[-1:] = [{ALL: flags[ALL]} if ALL in flags else {}]
    for agent in [agent for agent, flag in flags.items() if flag and agent != ALL]:
        last = max([0, *(i for i, parts in enumerate(steps) if any(agent in part for part in parts))])
        result[last][agent] = True
    return result


def by_agent(new_data: Any, length: int, name: str) -> tuple[dict[AgentID, list[Any]], dict[AgentID, np.ndarray]]:
    """Return a list of dicts by env step as lists by agent, and at which indices each agent has a value."""
    if not isinstance(new_data, list) or not all(isinstance(item, Mapping) for item in new_data):
        raise TypeError("with return_list=True new_data is a list with one dict of agent id -> value for each index")
    if len(new_data) != length:
        raise IndexError(f"new_data has {len(new_data)} dicts of {name} for {length} env steps")
    agents = dict.fromkeys(agent for item in new_data for agent in item)
    rows = {agent: [item[agent] for item in new_data if agent in item] for agent in agents}
    return rows, {agent: np.array([agent in item for item in new_data]) for agent in agents}


class EnvStep(NamedTuple):
    """The data that one env step brought, by agent."""

    observations: AgentDict = {}
    actions: AgentDict = {}
    rewards: AgentDict = {}
    infos: AgentDict = {}
    extra_model_outputs: AgentDict = {}
    terminateds: AgentDict = {}
    truncateds: AgentDict = {}

    def flags(self, agent: AgentID) -> tuple[bool, bool]:
        """Return (terminated, truncated) of an agent; `__all__` speaks for agents without a flag of their own."""
        terminated, truncated = self.own_flags(agent)
        if terminated or truncated:
            return terminated, truncated
        return bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL))

    def own_flags(self, agent: AgentID) -> tuple[bool, bool]:
        """Return (terminated, truncated) of an agent without those of `__all__`."""
        return bool(self.terminateds.get(agent)), bool(self.truncateds.get(agent))

    def agents(self) -> list[AgentID]:
        """Return the agents that data came for, or a flag that is set."""
        flags = [agent for named in self[5:] for agent, flag in named.items() if flag and agent != ALL]
        return [*(agent for data in self[:5] for agent in data if agent != COMMON), *flags]


class Waiting(NamedTuple):
    """An action that no observation has followed yet, with its model outputs."""

    action: Any
    extras: Mapping[str, Any] | None


@dataclass(slots=True)
class AgentSteps:
    """An agent's steps as a `SingleAgentEpisode`, the environment time of each, and what waits to be closed."""

    agent: AgentID
    episode: SingleAgentEpisode | None = None
    """None before the agent's first observation"""
    times: list[int] = field(default_factory=list)
    """time of each stored observation, lookback included"""
    waiting: Waiting | None = None
    partial_rewards: list[tuple[int, float]] = field(default_factory=list)
    """(time, reward) of the rewards that came without an observation that closes a step"""
    acted_late: dict[int, int] = field(default_factory=dict)
    """time of an observation -> env step of its action, where that came later than at once"""
    ended_at: int | None = None
    """time at which the agent was done"""

    @property
    def own(self) -> SingleAgentEpisode:
        """The agent's own episode, which must have begun."""
        assert self.episode is not None
        return self.episode

    @property
    def can_act(self) -> bool:
        """Whether the agent has not answered its last observation."""
        return self.episode is not None and self.ended_at is None and self.waiting is None

    # ---- growing -----------------------------------------------------------------------------------------

    def problem_with(self, step: EnvStep) -> str | None:
        """Return why the agent's part of a step cannot be, in words; None where it can."""
        agent = self.agent
        acts, observes = agent in step.actions, agent in step.observations
        for name, data in zip(EnvStep._fields[:5], step):
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
        if self.episode is None:
            return "it acted without having observed anything"
        if self.waiting is not None:
            return (
                f"it acted again, but its action {self.waiting.action!r} after the observation of t={self.times[-1]} "
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
        """Return what is wrong with an end that leaves an action open, or with infos without an observation."""
        if observes or self.ended_at is not None:
            return None
        terminated, truncated = step.flags(self.agent)
        waits = self.waiting is not None or self.agent in step.actions
        if self.agent in step.infos and not (waits and (terminated or truncated)):
            return "an info came without an observation; infos belong to observations"
        if truncated and not terminated and waits:
            return (
                "it was truncated after an action and without a last observation, from whose value it must be "
                "bootstrapped; give the observation"
            )
        return None

    def apply(self, step: EnvStep, now: int) -> bool:
        """Take the agent's part of a step that leads to time `now`; return whether the agent ends with it."""
        terminated, truncated = step.flags(self.agent)
        ends = terminated or truncated
        reward = as_reward(step.rewards.get(self.agent, 0.0))
        if self.agent in step.actions:
            self.waiting = Waiting(step.actions[self.agent], step.extra_model_outputs.get(self.agent))
            if self.times[-1] != now - 1:
                self.acted_late[self.times[-1]] = now - 1
        if self.waiting is not None and (ends or self.agent in step.observations):
            self._close_step(self.waiting, step, reward)
            self.times.append(now)
        elif reward:
            self.partial_rewards.append((now, reward))
        if ends and self.episode is not None:
            self.episode.is_terminated, self.episode.is_truncated = terminated, truncated
        if ends and (self.episode is not None or any(step.own_flags(self.agent))):
            self.ended_at = now  # `__all__` says nothing of agents that were never there
        return ends

    def _close_step(self, waiting: Waiting, step: EnvStep, reward: float) -> None:
        """Give the waiting action its observation; one that ends without any repeats the last (it is never used)."""
        seen = self.agent in step.observations
        observation = step.observations[self.agent] if seen else self.own.get_observations(-1)
        reward += self.waiting_reward()
        info = step.infos.get(self.agent)
        self.own.add_env_step(observation, waiting.action, reward, info, extra_model_outputs=waiting.extras)
        self.waiting = None

    # ---- reading -----------------------------------------------------------------------------------------

    def waiting_reward(self) -> float:
        """Return the sum of the rewards since the last observation."""
        last = self.times[-1] if self.times else None
        total = 0.0
        for time, reward in reversed(self.partial_rewards):
            if last is not None and time <= last:
                break
            total += reward
        return total

    def hanging_rewards(self, begin: int, end: int) -> float:
        """Return the rewards since the last observation, and those before the first that came after `begin`."""
        first = self.times[0] if self.times else end
        last = self.times[-1] if self.times else first
        carried = begin if self.ended_at is not None or not self.times else last  # a live agent's are still to come
        return sum(r for t, r in self.partial_rewards if begin < t <= first or t > max(last, carried))

    def num_rows(self, name: str) -> int:
        """Return how many rows a column has: stored ones, and for actions one that waits."""
        stored = self.own.len_lookback_buffer + len(self.own)
        return stored + (name in (OBSERVATIONS, INFOS) or self.waiting is not None)

    def own_positions(self, name: str, indices: Indices, negative: bool, fill: bool) -> np.ndarray:
        """Return the positions of the agent's own steps in a column."""
        label, rows = f"{name} of agent {self.agent!r}", self.num_rows(name)
        return position_array(indices, self.own.len_lookback_buffer, rows, negative, fill=fill, name=label)

    def positions_at(self, name: str, times: np.ndarray, begin: int) -> np.ndarray:
        """Return the row of a column for each time from `begin` on, -1 where there is none."""
        known, rows = self.times, min(len(self.times), self.num_rows(name))
        if len(times) == 1:  # without a look at all of them
            time = int(times[0])
            at = bisect_left(known, time)
            found = at < rows and known[at] == time and time >= begin
            return np.array([at if found else -1])
        own = np.asarray(known, dtype=np.int64)
        positions = np.searchsorted(own, times)
        inside = (positions < rows) & (times >= begin)
        inside[inside] = own[positions[inside]] == times[inside]
        return np.where(inside, positions, -1)

    def column(self, name: str, key: str | None, hot: bool = False) -> Tree:
        """Return a whole column, with what waits as its last row; a list for infos."""
        waits = self.waiting if name not in (OBSERVATIONS, INFOS) else None
        try:
            if name == EXTRAS and len(self.times) < 2:
                tree = None if key is None else self.own.stored_column(EXTRAS).get(key)
            else:
                tree = self.own.stored_column(name, key)
            if waits is not None:
                rows = stack_rows(name, [self._waiting_value(waits, name, key)])
                tree = rows if tree is None else concat_trees([tree, rows], name)
        except KeyError as error:
            raise self.named(error) from None
        if hot:
            space = self.own.observation_space if name == OBSERVATIONS else self.own.action_space
            return one_hot(tree, space, name)
        return np.empty(0, dtype=np.float32) if tree is None else tree

    def _waiting_value(self, waiting: Waiting, name: str, key: str | None) -> Any:
        if name == REWARDS:
            return self.waiting_reward()
        if name == ACTIONS:
            return waiting.action
        extras = dict(waiting.extras or {})
        if key is not None and key not in extras:
            raise KeyError(f"no extra model output {key!r}; there are {sorted(extras)}")
        return extras if key is None else extras[key]

    def named(self, error: Exception) -> Exception:
        """Return the error with the agent's name before it."""
        return type(error)(f"agent {self.agent!r}: {error.args[0]}")

    def batch_columns(self, episode_id: str, module_id: str) -> dict[str, Any]:
        """Return the agent's closed steps as columns of a batch, with env times as `t`."""
        steps, before = len(self.own), self.own.len_lookback_buffer
        plain = isinstance(self.agent, str | int)
        return {
            **self.own.get_data_dict(),
            Columns.T: np.asarray(self.times[before : before + steps], dtype=np.int64),
            Columns.EPS_ID: np.full(steps, episode_id),
            Columns.AGENT_ID: np.full(steps, self.agent) if plain else object_rows([self.agent] * steps),
            Columns.MODULE_ID: np.full(steps, module_id),
        }

    def own_times(self, begin: int, end: int, skipped: str) -> list[int | str]:
        """Return the own time of the observation at each time from `begin` to `end`, or `skipped`."""
        row: list[int | str] = [skipped] * (end - begin + 1)
        for position, time in enumerate(self.times):
            if time >= begin:
                row[time - begin] = self.own.t_started - self.own.len_lookback_buffer + position
        return row

    def mark_at(self, time: int) -> str:
        """Return the mark of a time line: `x` an observation, `-` an action waits, `T` and `U` the end."""
        index = bisect_right(self.times, time) - 1
        if time == self.ended_at:
            return "T" if self.own.is_terminated else "U" if self.own.is_truncated else "x"
        if index < 0 or (self.ended_at is not None and time > self.ended_at):
            return ""
        if self.times[index] == time:
            return "x"
        acted = self.acted_late.get(self.times[index], self.times[index]) < time
        return "-" if acted and (index < len(self.times) - 1 or self.waiting is not None) else ""

    # ---- writing -----------------------------------------------------------------------------------------

    def replaced(self, name: str, key: str | None, positions: np.ndarray, rows: Tree) -> tuple[Tree, Any]:
        """Return the column with new rows, and the new value of what waits (None: as it is); nothing is changed."""
        single, steps = self.own, len(self.times) - 1 + (name == OBSERVATIONS)
        waits = positions == steps
        kept = map_tree(lambda leaf: leaf[~waits], rows)
        last = None
        try:
            if waits.any():
                last = self._replaced_waiting(name, key, map_tree(lambda leaf: leaf[waits][-1:], rows))
            if name == EXTRAS and key not in single.stored_column(EXTRAS) and len(self.times) > 1:
                wanted = len(single) + (self.waiting is not None)
                if len(positions) != wanted:
                    raise KeyError(f"no extra model output {key!r}; a new one takes all {wanted} values at once")
                return single.replaced_column(name, key, kept, None, True), last
            if waits.all():
                return None, last
            return single.replaced_column(name, key, kept, positions[~waits] - single.len_lookback_buffer, True), last
        except (ValueError, IndexError, KeyError) as error:
            raise self.named(error) from None

    def _replaced_waiting(self, name: str, key: str | None, rows: Tree) -> Any:
        """Return the checked new value of what waits, in the kind of numbers of the old one."""
        if self.waiting is not None and name == ACTIONS:
            rows = zip_trees(in_stored_dtype, [rows, stack_rows(name, [self.waiting.action])], name)
        space = {OBSERVATIONS: self.own.observation_space, ACTIONS: self.own.action_space}.get(name)
        check_in_space(rows, space, key or name)
        return rows_of(rows, 0)

    def put(self, name: str, key: str | None, column: Tree, last: Any, now: int) -> None:
        """Store what `replaced` returned."""
        if column is not None:
            self.own.put_column(name, key, column)
        if last is None or self.waiting is None:
            return
        if name == ACTIONS:
            self.waiting = Waiting(last, self.waiting.extras)
        elif name == EXTRAS:
            self.waiting = Waiting(self.waiting.action, {**(self.waiting.extras or {}), str(key): last})
        elif name == REWARDS:
            before = [entry for entry in self.partial_rewards if entry[0] <= self.times[-1]]
            self.partial_rewards = [*before, (now, float(last))]

    # ---- pieces ------------------------------------------------------------------------------------------

    def piece(self, begin: int, end: int, lookback: int) -> AgentSteps | None:
        """Return the agent from time `begin` to `end` and in the lookback before; None where it is not there."""
        ended_at = self.ended_at if self.ended_at is not None and self.ended_at <= end else None
        last = bisect_right(self.times, end) - 1
        if self.episode is None or last < 0:
            rewards = [entry for entry in self.partial_rewards if begin < entry[0] <= end]
            there = rewards or ended_at is not None
            return AgentSteps(self.agent, partial_rewards=rewards, ended_at=ended_at) if there else None
        first = max(bisect_right(self.times, begin) - 1, 0)
        oldest = bisect_left(self.times, begin - lookback, 0, first)
        if ended_at is not None and ended_at <= begin and oldest == first:
            return AgentSteps(self.agent, ended_at=ended_at)  # gone before, and out of sight
        before = self.episode.len_lookback_buffer
        part = self.episode.slice(slice(first - before, last - before), len_lookback_buffer=first - oldest)
        if ended_at is None:
            part.is_terminated = part.is_truncated = False
        times = self.times[oldest : last + 1]
        waiting = None
        if ended_at is None and self.acted_late.get(times[-1], times[-1]) < end:
            waiting = deepcopy(self.waiting if last == len(self.times) - 1 else self._step_at(last))
        rewards = [entry for entry in self.partial_rewards if min(times[0], begin) < entry[0] <= end]
        late = {time: step for time, step in self.acted_late.items() if times[0] <= time and step < end}
        return AgentSteps(self.agent, part, times, waiting, rewards, late, ended_at)

    def _step_at(self, position: int) -> Waiting:
        """Return action and model outputs of a stored step, as they waited before it was closed."""
        extras = {key: rows_of(tree, position) for key, tree in self.own.stored_column(EXTRAS).items()}
        return Waiting(rows_of(self.own.stored_column(ACTIONS), position), extras or None)

    def look_back(self, start: int) -> SingleAgentEpisode:
        """Make the steps before time `start` the lookback of the agent's episode; return it."""
        before = max(bisect_right(self.times, start) - 1, 0)
        moved = self.own.slice(slice(before, None), len_lookback_buffer=before)
        moved.t_started, moved.t = self.own.t_started, self.own.t_started + len(moved)
        self.episode = moved
        return moved

    def check_contiguous(self, other: AgentSteps | None, now: int) -> None:
        """Raise `ValueError` unless the agent in the next piece, which begins at `now`, goes on where it stands."""
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
        if self.waiting is not None:
            goes_on = following.get_actions(0) if len(following) else other.waiting and other.waiting.action
            if goes_on is None or not trees_equal(goes_on, self.waiting.action):
                raise ValueError(
                    f"agent {self.agent!r} waits with action {self.waiting.action!r}, the second piece begins with "
                    f"{goes_on!r}"
                )

    def follow(self, other: AgentSteps, boundary: int) -> None:
        """Go on with the steps of the next piece, which begins at time `boundary`, unless the agent is done."""
        if self.ended_at is not None:
            return
        if self.episode is None and other.episode is not None:
            self.episode = other.episode[:]
            self.times = [*other.times]
        elif self.episode is not None and other.episode is not None:
            self.episode.concat_episode(other.episode)
            self.times += other.times[other.episode.len_lookback_buffer + 1 :]
        self.partial_rewards += [entry for entry in other.partial_rewards if entry[0] > boundary]
        self.acted_late.update(other.acted_late)
        self.waiting, self.ended_at = other.waiting, other.ended_at

    # ---- checks and state --------------------------------------------------------------------------------

    def validate(self, now: int, module_id: str) -> None:
        """Raise `ValueError`, with agent and values, where an invariant does not hold at time `now`."""
        single, times, name = self.own, self.times, f"agent {self.agent!r}"
        try:
            single.validate()
        except ValueError as error:
            raise self.named(error) from None
        steps = single.len_lookback_buffer + len(single)
        if len(times) != steps + 1:
            raise ValueError(f"{name}: {steps} steps need one more observation, there are {times}")
        if any(b <= a for a, b in pairwise(times)) or times[-1] > now:
            raise ValueError(f"{name}: times {times} must grow and end at t={now} or before")
        if (self.ended_at is not None) != single.is_done or (single.is_done and self.waiting is not None):
            raise ValueError(
                f"{name}: is_done={single.is_done}, but it ended at t={self.ended_at}; {self.waiting} waits"
            )
        if single.module_id != module_id:
            raise ValueError(f"{name}: modules {single.module_id!r} and {module_id!r}")

    def get_state(self) -> dict[str, Any]:
        """Return plain values, arrays, and infos."""
        waiting = self.waiting
        return {
            "agent_id": self.agent,
            "episode": None if self.episode is None else self.episode.get_state(),
            "times": [*self.times],
            "waiting": None if waiting is None else deepcopy({"action": waiting.action, "extras": waiting.extras}),
            "partial_rewards": [[time, reward] for time, reward in self.partial_rewards],
            "acted_late": [[time, step] for time, step in self.acted_late.items()],
            "ended_at": self.ended_at,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AgentSteps:
        """Return the agent that `get_state` described."""
        waiting, episode = state["waiting"], state["episode"]
        return cls(
            state["agent_id"],
            None if episode is None else SingleAgentEpisode.from_state(episode),
            [*state["times"]],
            None if waiting is None else Waiting(**deepcopy(waiting)),
            [(time, reward) for time, reward in state["partial_rewards"]],
            dict(state["acted_late"]),
            state["ended_at"],
        )
