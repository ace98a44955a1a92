"""Operations on episodes of several agents that ``data_player.py`` plays: a schedule of agents, and what is read of it.

Agents act in turns or together, appear late and finish early; each operation plays its own schedule from the start.
"""

from __future__ import annotations

from typing import Any

from data_player import Play, plain, stacked

Step = dict[str, Any]


def _played(state: Play, step: Step, *, until: int | None = None) -> Any:
    """An episode after the first ``until`` steps of the schedule."""
    episode = state.library.MultiAgentEpisode(id_="m")
    episode.add_env_reset(observations=dict(step["reset"]), infos={agent: {"n": 0} for agent in step["reset"]})
    for one in step["steps"][:until]:
        _add(episode, one)
    return episode


def _add(episode: Any, one: Step) -> None:
    episode.add_env_step(
        dict(one["observations"]),
        dict(one["actions"]),
        dict(one["rewards"]),
        {agent: {"n": 1} for agent in one["observations"]},
        terminateds=dict(one["terminateds"]),
        truncateds=dict(one["truncateds"]),
        extra_model_outputs={agent: {"logp": -0.5} for agent in one["actions"]},
    )


def _agents(episode: Any) -> dict[str, Any]:
    """What each agent's own episode holds."""
    return {agent: _one(part) for agent, part in sorted(episode.agent_episodes.items()) if part.is_reset}


def _one(part: Any) -> dict[str, Any]:
    return {
        "t": [part.t_started, part.t, len(part)],
        "ends": [bool(part.is_terminated), bool(part.is_truncated)],
        "observations": stacked(part.get_observations())["values"],
        "actions": stacked(part.get_actions())["values"],
        "rewards": stacked(part.get_rewards())["values"],
        "infos": plain(list(part.get_infos())),
    }


def several_agents(state: Play, step: Step) -> Any:
    """Every agent's steps."""
    _mark_ends(state, step)
    return _agents(_played(state, step))


def _held(step: Step, until: int | None = None) -> set[str]:
    """Agents that hold an observation which did not come in the last step."""
    steps = step["steps"][:until]
    holding = set(step["reset"])
    fresh = set(step["reset"])
    for one in steps:
        fresh = set(one["observations"])
        ended = {agent for agent, flag in one["terminateds"].items() if flag and agent != "__all__"}
        holding = ((holding - set(one["actions"])) | fresh) - ended
    return holding - fresh


def _ends_for_all(step: Step) -> bool:
    """Whether the schedule ends with `__all__`."""
    last = step["steps"][-1]
    return bool(last["terminateds"].get("__all__") or last["truncateds"].get("__all__"))


def _waits(step: Step, until: int | None = None) -> bool:
    """Whether an action has no observation after it yet."""
    waiting: set[str] = set()
    for one in step["steps"][:until]:
        waiting = (waiting | set(one["actions"])) - set(one["observations"])
    return bool(waiting)


def _mark_ends(state: Play, step: Step) -> None:
    state.mark("all_ends_between", _ends_for_all(step) and (bool(_held(step)) or _waits(step)))
    last = step["steps"][-1]
    both = bool(last["truncateds"].get("__all__")) and len(last["terminateds"]) > 1
    state.mark("terminated_as_all_truncate", both)
    state.mark("last_ends_as_newcomer_comes", _newcomer_at_the_end(step))


def _newcomer_at_the_end(step: Step) -> bool:
    """Whether an agent's first observation comes in the step in which all agents before it are done."""
    known, ended = set(step["reset"]), set()
    for one in step["steps"]:
        newcomers = set(one["observations"]) - known
        ended |= {agent for agent, flag in one["terminateds"].items() if flag}
        if newcomers and ("__all__" in ended or one["truncateds"].get("__all__") or known <= ended):
            return True
        known |= newcomers
    return False


def several_counts(state: Play, step: Step) -> Any:
    """Times, flags and counts."""
    _mark_ends(state, step)
    episode = _played(state, step)
    flags = [bool(episode.is_terminated), bool(episode.is_truncated), bool(episode.is_done)]
    return [episode.env_t, len(episode), flags, episode.env_steps(), episode.agent_steps()]


def several_to_act(state: Play, step: Step) -> Any:
    """Who acts next and who has just stepped."""
    _mark_ends(state, step)
    state.mark("to_act_holding", bool(_held(step)))
    episode = _played(state, step)
    return [sorted(episode.get_agents_to_act()), sorted(episode.get_agents_that_stepped())]


def several_returns(state: Play, step: Step) -> Any:
    _mark_ends(state, step)
    episode = _played(state, step)
    return float(episode.get_return(include_hanging_rewards=step["hanging"]))


def several_cut(state: Play, step: Step) -> Any:
    """The successor after a cut, grown by the rest of the schedule."""
    _mark_ends(state, step)
    between = bool(_held(step, step["at"])) or _waits(step, step["at"])
    state.mark("cut_between", between)
    episode = _played(state, step, until=step["at"])
    successor = episode.cut()
    for one in step["steps"][step["at"] :]:
        _add(successor, one)
    return {agent: shown for agent, shown in _agents(successor).items() if shown["t"][2]}


def several_concat(state: Play, step: Step) -> Any:
    """Cut, grown and joined again: as if never cut."""
    _mark_ends(state, step)
    seen = {agent for one in step["steps"][: step["at"]] for agent in one["observations"]} | set(step["reset"])
    state.mark("concat_first_outputs", bool(seen - {a for one in step["steps"][: step["at"]] for a in one["actions"]}))
    between = bool(_held(step, step["at"])) or _waits(step, step["at"])
    state.mark("cut_between", between)
    episode = _played(state, step, until=step["at"])
    successor = episode.cut()
    for one in step["steps"][step["at"] :]:
        _add(successor, one)
    episode.concat_episode(successor)
    return _agents(episode)


def several_read(state: Play, step: Step) -> Any:
    """One getter by agents, by environment steps or by the agents' own."""
    _mark_ends(state, step)
    index = step["indices"]
    items = len(step["steps"]) + (step["name"] == "observations")
    own = not step["env_steps"] and step["name"] != "observations"
    state.mark("own_steps_with_waiting_action", own and _waits(step))
    state.mark("several_slice_beyond", isinstance(index, list) and index[1] > items)
    episode = _played(state, step)
    found = getattr(episode, f"get_{step['name']}")(
        slice(*index) if isinstance(index, list) else index, env_steps=step["env_steps"], return_list=step["as_list"]
    )
    if step["as_list"]:
        return [{agent: _number(value) for agent, value in sorted(one.items())} for one in found]
    return {agent: _numbers(value) for agent, value in sorted(found.items())}


def _numbers(value: Any) -> Any:
    return stacked(value)["values"] if hasattr(value, "__len__") else _number(value)


def _number(value: Any) -> float:
    return float(value)


OPERATIONS = {
    name: value
    for name, value in globals().items()
    if callable(value) and getattr(value, "__module__", None) == __name__ and not name.startswith("_")
}
