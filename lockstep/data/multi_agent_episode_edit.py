"""What makes a `MultiAgentEpisode` from data or from another: replay, pieces, joining, batch, state, time line."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.episode_access import trees_equal
from lockstep.data.episode_edit import check_contiguous
from lockstep.data.multi_agent_episode_step import ALL, AgentDict, AgentID, AgentTrack, Waiting, as_agent_dict
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from lockstep.data.space_codec import describe_space, space_from
from lockstep.data.trees import row_of

if TYPE_CHECKING:
    from lockstep.data.multi_agent_episode import MultiAgentEpisode


class Given(NamedTuple):
    """The data that the constructor was given."""

    observations: Sequence[AgentDict] | None
    infos: Sequence[AgentDict] | None
    actions: Sequence[AgentDict] | None
    rewards: Sequence[AgentDict] | None
    extras: Sequence[AgentDict] | None
    terminateds: AgentDict | bool
    truncateds: AgentDict | bool


def spaces_by_agent(space: Any, name: str) -> dict[AgentID, Any] | None:
    """Agent id -> space of a dict or a Dict space; `TypeError` for another kind."""
    if space is None:
        return None
    inner = getattr(space, "spaces", space)
    if not isinstance(inner, Mapping):
        raise TypeError(f"{name} is {space!r}; a dict (or Dict space) of agent id -> space is needed")
    return dict(inner)


# ---- from lists ------------------------------------------------------------------------------------------------


def replay(episode: MultiAgentEpisode, given: Given, len_lookback_buffer: Any) -> None:
    """Adds the given env steps one by one, then moves the start behind the lookback."""
    steps = _check_given(given)
    lookback = steps if len_lookback_buffer == "auto" else len_lookback_buffer
    if not isinstance(lookback, int) or not 0 <= lookback <= steps:
        raise ValueError(f"len_lookback_buffer={len_lookback_buffer!r}; allowed are 'auto' and 0 to {steps}")
    if not given.observations:
        return
    start = episode.env_t_started
    episode.env_t = episode.env_t_started = start - lookback
    flags = [as_agent_dict(given.terminateds, "terminateds", flags=True)]
    flags.append(as_agent_dict(given.truncateds, "truncateds", flags=True))
    own: list[dict[int, dict[AgentID, bool]]] = [_flags_by_step(given, named, steps) for named in flags]
    infos, extras = given.infos or [{}] * (steps + 1), given.extras or [{}] * steps
    episode.add_env_reset(given.observations[0], infos[0])
    for i in range(steps):
        last = i == steps - 1
        ends = [{**named.get(i, {}), ALL: bool(whole.get(ALL)) and last} for named, whole in zip(own, flags)]
        if last and not any(ALL in whole for whole in flags):
            ends = [{agent: flag for agent, flag in named.items() if agent != ALL} for named in ends]
        actions, rewards = (given.actions or [])[i], (given.rewards or [])[i]
        episode.add_env_step(
            given.observations[i + 1],
            actions,
            rewards,
            infos[i + 1],
            terminateds=ends[0],
            truncateds=ends[1],
            extra_model_outputs=extras[i],
        )
    if not steps and any(any(named.values()) for named in flags):
        raise ValueError("flags are given without a step at which the episode could have ended")
    episode.env_t_started, episode._lookback = start, lookback
    for agent, single in episode.agent_episodes.items():
        before = max(bisect_right(episode._tracks[agent].times, start) - 1, 0)
        moved = single.slice(slice(before, None), len_lookback_buffer=before)
        moved.t_started, moved.t = single.t_started, single.t_started + len(moved)
        episode.agent_episodes[agent] = moved


def _check_given(given: Given) -> int:
    """Number of env steps given; `ValueError` or `TypeError` naming the data that do not fit."""
    named = {"actions": given.actions, "rewards": given.rewards, "extra_model_outputs": given.extras}
    for name, data in {"observations": given.observations, "infos": given.infos, **named}.items():
        if data is not None and (isinstance(data, Mapping) or not all(isinstance(item, Mapping) for item in data)):
            raise TypeError(f"{name} must be a list with one dict of agent id -> value for each time")
    if not given.observations:
        rest = [name for name, data in {"infos": given.infos, **named}.items() if data]
        if rest or given.terminateds or given.truncateds:
            raise ValueError(f"an episode with {rest or 'flags'} needs observations, one dict more than actions")
        return 0
    steps = len(given.observations) - 1
    for name, data in named.items():
        if len(data or ()) != steps and not (name == "extra_model_outputs" and data is None):
            raise ValueError(
                f"{steps + 1} dicts of observations make {steps} env steps, but there are {len(data or ())} {name}"
            )
    if given.infos is not None and len(given.infos) != steps + 1:
        raise ValueError(f"{steps + 1} dicts of observations need as many infos, but there are {len(given.infos)}")
    return steps


def _flags_by_step(given: Given, flags: AgentDict, steps: int) -> dict[int, dict[AgentID, bool]]:
    """Env step -> the flags of the agents that have their last data in it."""
    result: dict[int, dict[AgentID, bool]] = {}
    for agent, flag in flags.items():
        if agent == ALL or not flag:
            continue
        last = [0] + [i for i in range(steps) if agent in (given.actions or [])[i] or agent in (given.rewards or [])[i]]
        last += [i for i in range(steps) if agent in (given.observations or [])[i + 1]]
        result.setdefault(max(last), {})[agent] = bool(flag)
    return result


# ---- pieces ----------------------------------------------------------------------------------------------------


def piece(episode: MultiAgentEpisode, start: int, stop: int, lookback: int) -> MultiAgentEpisode:
    """Env steps `start:stop` with `lookback` of them before, as views."""
    if lookback < 0:
        raise ValueError(f"len_lookback_buffer={lookback}; it cannot be negative")
    new = type(episode)(
        episode.id_,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        env_t_started=episode.env_t_started + start,
        agent_module_ids=episode._modules,
        agent_episode_ids=episode._agent_episode_ids,
        agent_t_started=episode._agent_t_started,
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    new.env_t, new._lookback, new.is_reset = episode.env_t_started + stop, lookback, episode.is_reset
    new.custom_data = deepcopy(episode.custom_data)
    if stop == len(episode):
        new.is_terminated, new.is_truncated = episode.is_terminated, episode.is_truncated
    new._start_time = new._last_time = episode._last_time
    for agent, track in episode._tracks.items():
        part, single = _agent_piece(track, episode.agent_episodes.get(agent), new)
        if part is not None:
            new._tracks[agent] = part
        if single is not None:
            new.agent_episodes[agent] = single
    return new


def _agent_piece(
    track: AgentTrack, single: SingleAgentEpisode | None, new: MultiAgentEpisode
) -> tuple[AgentTrack | None, SingleAgentEpisode | None]:
    """One agent in a piece from `new.env_t_started` to `new.env_t`; None where it is not there."""
    begin, end = new.env_t_started, new.env_t
    ended_at = track.ended_at if track.ended_at is not None and track.ended_at <= end else None
    last = bisect_right(track.times, end) - 1
    if single is None or last < 0:
        rewards = [entry for entry in track.partial_rewards if begin < entry[0] <= end]
        there = rewards or ended_at is not None
        return (AgentTrack(partial_rewards=rewards, ended_at=ended_at) if there else None), None
    first = max(bisect_right(track.times, begin) - 1, 0)
    oldest = bisect_left(track.times, begin - new._lookback, 0, first)
    if ended_at is not None and ended_at <= begin and oldest == first:
        return AgentTrack(ended_at=ended_at), None  # gone before, and out of sight
    part = single.slice(
        slice(first - single.len_lookback_buffer, last - single.len_lookback_buffer),
        len_lookback_buffer=first - oldest,
    )
    if ended_at is None:
        part.is_terminated = part.is_truncated = False
    times = track.times[oldest : last + 1]
    since = min(times[0], begin)
    waiting = None
    if ended_at is None and track.acted_late.get(times[-1], times[-1]) < end:
        waiting = deepcopy(track.waiting if last == len(track.times) - 1 else _step_of(single, last))
    rewards = [entry for entry in track.partial_rewards if since < entry[0] <= end]
    late = {time: step for time, step in track.acted_late.items() if times[0] <= time and step < end}
    return AgentTrack(times, waiting, rewards, late, ended_at), part


def _step_of(single: SingleAgentEpisode, position: int) -> Waiting:
    """Action and model outputs of a stored step, as they wait before it is closed."""
    extras = {key: row_of(tree, position) for key, tree in single._extras.items()}
    return Waiting(row_of(single._actions, position), extras or None)


def concat(episode: MultiAgentEpisode, other: MultiAgentEpisode) -> None:
    """Appends `other` in place."""
    if not isinstance(other, type(episode)):
        raise TypeError(f"concat_episode takes a {type(episode).__name__}, not {other!r}")
    _check_fit(episode, other)
    boundary = episode.env_t
    for agent, theirs in other._tracks.items():
        mine = episode._tracks.get(agent)
        single, next_single = episode.agent_episodes.get(agent), other.agent_episodes.get(agent)
        if mine is not None and mine.ended_at is not None:
            continue
        if mine is None:
            mine = episode._tracks[agent] = AgentTrack()
        if single is None and next_single is not None:
            episode.agent_episodes[agent] = next_single[:]
            mine.times = [*theirs.times]
        elif single is not None and next_single is not None:
            single.concat_episode(next_single)
            mine.times += theirs.times[next_single.len_lookback_buffer + 1 :]
        mine.partial_rewards += [entry for entry in theirs.partial_rewards if entry[0] > boundary]
        mine.acted_late.update(theirs.acted_late)
        mine.waiting, mine.ended_at = theirs.waiting, theirs.ended_at
    episode.env_t = other.env_t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._modules.update(other._modules)
    episode._duration += other.get_duration_s()
    episode.custom_data.update(other.custom_data)


def _check_fit(episode: MultiAgentEpisode, other: MultiAgentEpisode) -> None:
    if other.id_ != episode.id_:
        raise ValueError(f"the episodes have different ids, {episode.id_!r} and {other.id_!r}")
    if episode.is_done:
        raise ValueError(f"episode {episode.id_} ended at t={episode.env_t}; nothing can follow")
    if other.env_t_started != episode.env_t:
        raise ValueError(f"the first piece ends at t={episode.env_t}, the second begins at t={other.env_t_started}")
    if not (episode.is_reset and other.is_reset):
        raise ValueError("both pieces need an observation; call add_env_reset first")
    for agent, track in episode._tracks.items():
        single, following = episode.agent_episodes.get(agent), other.agent_episodes.get(agent)
        if track.ended_at is not None:
            if following is not None and len(following):
                raise ValueError(f"agent {agent!r} was done at t={track.ended_at} and has steps in the second piece")
        elif single is not None:
            if following is None:
                raise ValueError(f"agent {agent!r} is alive at t={episode.env_t} and missing in the second piece")
            try:
                check_contiguous(single, following)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
            _check_waiting(agent, track.waiting, other._tracks[agent].waiting, following)
    for agent in other.agent_episodes:
        if agent not in episode.agent_episodes and other._tracks[agent].times[0] <= episode.env_t:
            time = other._tracks[agent].times[0]
            raise ValueError(f"agent {agent!r} is missing in the first piece and has an observation of t={time}")


def _check_waiting(agent: AgentID, mine: Waiting | None, theirs: Waiting | None, following: SingleAgentEpisode) -> None:
    """The action that waits at the end of the first piece is the one that the second goes on with."""
    if mine is None:
        return
    if len(following):
        goes_on = following.get_actions(0)
    elif theirs is None:
        raise ValueError(f"agent {agent!r} waits with action {mine.action!r}, which the second piece does not have")
    else:
        goes_on = theirs.action
    if not trees_equal(goes_on, mine.action):
        raise ValueError(f"agent {agent!r} waits with action {mine.action!r}, the second piece begins with {goes_on!r}")


# ---- what is in it ---------------------------------------------------------------------------------------------


def hanging_rewards(episode: MultiAgentEpisode) -> float:
    """Rewards since each agent's last observation, and those before its first that came in this piece."""
    total, begin = 0.0, episode.env_t_started
    for track in episode._tracks.values():
        first = track.times[0] if track.times else episode.env_t
        last = track.times[-1] if track.times else first
        carried = begin if track.ended_at is not None or not track.times else last  # a live agent's are still to come
        total += sum(r for t, r in track.partial_rewards if begin < t <= first or t > max(last, carried))
    return total


def env_t_to_agent_t(episode: MultiAgentEpisode) -> dict[AgentID, list[int | str]]:
    """Own time of each agent's observation for each time that can be read."""
    begin = episode.env_t_started - episode._lookback
    result: dict[AgentID, list[int | str]] = {}
    for agent, single in episode.agent_episodes.items():
        row: list[int | str] = [episode.SKIP_ENV_TS_TAG] * (episode.env_t - begin + 1)
        for position, time in enumerate(episode._tracks[agent].times):
            if time >= begin:
                row[time - begin] = single.t_started - single.len_lookback_buffer + position
        result[agent] = row
    return result


def time_line(episode: MultiAgentEpisode) -> str:
    """One row for each agent; see `MultiAgentEpisode.print`."""
    begin = episode.env_t_started - episode._lookback
    times = range(begin, episode.env_t + 1)
    width = max(len(str(time)) for time in (begin, episode.env_t)) + 1
    names = {agent: str(agent) for agent in episode.agent_episodes}
    margin = max([1, *map(len, names.values())])
    lines = ["t".ljust(margin) + "".join(str(time).rjust(width) for time in times)]
    for agent, name in names.items():
        track, single = episode._tracks[agent], episode.agent_episodes[agent]
        end = "T" if single.is_terminated else "U" if single.is_truncated else "x"
        marks = []
        for time in times:
            index = bisect_right(track.times, time) - 1
            if time == track.ended_at:
                marks.append(end)
            elif index < 0 or (track.ended_at is not None and time > track.ended_at):
                marks.append("")
            elif track.times[index] == time:
                marks.append("x")
            else:
                acted = track.acted_late.get(track.times[index], track.times[index]) < time
                answered = index < len(track.times) - 1 or track.waiting is not None
                marks.append("-" if acted and answered else "")
        lines.append((name.ljust(margin) + "".join(mark.rjust(width) for mark in marks)).rstrip())
    return "\n".join(lines)


def sample_batch(episode: MultiAgentEpisode) -> MultiAgentBatch:
    """The agents' steps by module."""
    modules: dict[str, list[SampleBatch]] = {}
    for agent, single in episode.agent_episodes.items():
        steps, before = len(single), single.len_lookback_buffer
        if not steps:
            continue
        columns = single.get_data_dict()
        module_id = episode.module_for(agent)
        columns[Columns.T] = np.asarray(episode._tracks[agent].times[before : before + steps], dtype=np.int64)
        columns[Columns.EPS_ID] = np.full(steps, episode.id_)
        columns[Columns.AGENT_ID] = _full(steps, agent)
        columns[Columns.MODULE_ID] = np.full(steps, module_id)
        modules.setdefault(module_id, []).append(SampleBatch(columns))
    return MultiAgentBatch({key: concat_samples(parts) for key, parts in modules.items()}, len(episode))


def _full(steps: int, agent: AgentID) -> np.ndarray:
    if isinstance(agent, str | int):
        return np.full(steps, agent)
    column = np.empty(steps, dtype=object)
    column[:] = [agent] * steps
    return column


def validate(episode: MultiAgentEpisode) -> None:
    """Raises `ValueError`, with agent and values, where an invariant does not hold."""
    if episode._lookback < 0 or episode.env_t < episode.env_t_started:
        raise ValueError(f"t={episode.env_t_started}..{episode.env_t} with {episode._lookback} of lookback")
    for agent, single in episode.agent_episodes.items():
        track = episode._tracks[agent]
        try:
            single.validate()
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        times = track.times
        if len(times) != single._stored + 1:
            raise ValueError(f"agent {agent!r}: {single._stored} steps need one more observation, there are {times}")
        if any(b <= a for a, b in pairwise(times)) or times[-1] > episode.env_t:
            raise ValueError(f"agent {agent!r}: times {times} must grow and end at t={episode.env_t} or before")
        if (track.ended_at is not None) != single.is_done:
            raise ValueError(f"agent {agent!r}: is_done={single.is_done}, but it ended at t={track.ended_at}")
        if track.ended_at is not None and track.waiting is not None:
            raise ValueError(f"agent {agent!r} was done at t={track.ended_at} and its action still waits")
        if single.module_id != episode.module_for(agent):
            raise ValueError(f"agent {agent!r}: modules {single.module_id!r} and {episode.module_for(agent)!r}")


# ---- state -----------------------------------------------------------------------------------------------------

_PLAIN = ("id_", "env_t", "env_t_started", "is_terminated", "is_truncated", "is_reset")


def get_state(episode: MultiAgentEpisode) -> dict[str, Any]:
    """Plain values, arrays, and infos."""
    return {
        **{name: getattr(episode, name) for name in _PLAIN},
        "len_lookback_buffer": episode._lookback,
        "custom_data": deepcopy(episode.custom_data),
        "duration_s": episode.get_duration_s(),
        "agent_module_ids": [[agent, module_id] for agent, module_id in episode._modules.items()],
        "agent_episode_ids": [[agent, id_] for agent, id_ in episode._agent_episode_ids.items()],
        "agent_t_started": [[agent, t] for agent, t in episode._agent_t_started.items()],
        "observation_space": _described(episode._observation_spaces),
        "action_space": _described(episode._action_spaces),
        "agents": [
            _agent_state(agent, track, episode.agent_episodes.get(agent)) for agent, track in episode._tracks.items()
        ],
    }


def _agent_state(agent: AgentID, track: AgentTrack, single: SingleAgentEpisode | None) -> dict[str, Any]:
    waiting = track.waiting
    return {
        "agent_id": agent,
        "episode": None if single is None else single.get_state(),
        "times": [*track.times],
        "waiting": None if waiting is None else deepcopy({"action": waiting.action, "extras": waiting.extras}),
        "partial_rewards": [[time, reward] for time, reward in track.partial_rewards],
        "acted_late": [[time, step] for time, step in track.acted_late.items()],
        "ended_at": track.ended_at,
    }


def _described(spaces: dict[AgentID, Any] | None) -> list[list[Any]] | None:
    return None if spaces is None else [[agent, describe_space(space)] for agent, space in spaces.items()]


def restore(cls: type[MultiAgentEpisode], state: Mapping[str, Any], mapping_fn: Any) -> MultiAgentEpisode:
    """The episode of a state; `KeyError` naming what a foreign state lacks."""
    missing = [name for name in (*_PLAIN, "agents", "len_lookback_buffer") if name not in state]
    if missing:
        raise KeyError(f"this is no state of a multi-agent episode; it lacks {missing}")
    spaces = [
        None if state[name] is None else {agent: space_from(described) for agent, described in state[name]}
        for name in ("observation_space", "action_space")
    ]
    episode = cls(
        state["id_"],
        observation_space=spaces[0],
        action_space=spaces[1],
        agent_module_ids=dict(state["agent_module_ids"]),
        agent_episode_ids=dict(state["agent_episode_ids"]),
        agent_t_started=dict(state["agent_t_started"]),
        agent_to_module_mapping_fn=mapping_fn,
    )
    for name in _PLAIN:
        setattr(episode, name, state[name])
    episode._lookback, episode.custom_data = state["len_lookback_buffer"], deepcopy(state["custom_data"])
    episode._duration = state["duration_s"]
    for part in state["agents"]:
        agent, waiting = part["agent_id"], part["waiting"]
        episode._tracks[agent] = AgentTrack(
            [*part["times"]],
            None if waiting is None else Waiting(**deepcopy(waiting)),
            [(time, reward) for time, reward in part["partial_rewards"]],
            dict(part["acted_late"]),
            part["ended_at"],
        )
        if part["episode"] is not None:
            episode.agent_episodes[agent] = SingleAgentEpisode.from_state(part["episode"])
    return episode
