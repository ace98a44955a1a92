"""Operations on episodes of several agents: a random schedule of agents, and what is read of it.

Agents act in turns or together, appear late and finish early; each operation plays its own schedule from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data_forms import Draw, Operation, Play, Step, plain, stacked

AGENTS = ("a", "b", "c")


def played(play: Play, steps: list[Step], reset: dict[str, float]) -> Any:
    """Return an episode after the steps of a schedule."""
    episode = play.library.MultiAgentEpisode(id_="m")
    episode.add_env_reset(observations=dict(reset), infos={agent: {"n": 0} for agent in reset})
    return grown(episode, steps)


def grown(episode: Any, steps: list[Step]) -> Any:
    for step in steps:
        episode.add_env_step(
            dict(step["observations"]),
            dict(step["actions"]),
            dict(step["rewards"]),
            {agent: {"n": 1} for agent in step["observations"]},
            terminateds=dict(step["terminateds"]),
            truncateds=dict(step["truncateds"]),
            extra_model_outputs={agent: {"logp": -0.5} for agent in step["actions"]},
        )
    return episode


def agents_of(episode: Any) -> dict[str, Any]:
    """Return what each agent's own episode holds."""
    return {
        agent: {
            "t": [part.t_started, part.t, len(part)],
            "ends": [bool(part.is_terminated), bool(part.is_truncated)],
            "observations": stacked(part.get_observations())["values"],
            "actions": stacked(part.get_actions())["values"],
            "rewards": stacked(part.get_rewards())["values"],
            "infos": plain(list(part.get_infos())),
        }
        for agent, part in sorted(episode.agent_episodes.items())
        if part.is_reset
    }


def held(steps: list[Step], reset: dict[str, float]) -> set[str]:
    """Return the agents that hold an observation which did not come in the last step."""
    holding = fresh = set(reset)
    for step in steps:
        fresh = set(step["observations"])
        ended = {agent for agent, flag in step["terminateds"].items() if flag and agent != "__all__"}
        holding = ((holding - set(step["actions"])) | fresh) - ended
    return holding - fresh


def is_between(steps: list[Step], reset: dict[str, float]) -> bool:
    """Return whether an agent holds an observation, or an action has none after it yet."""
    return bool(held(steps, reset)) or waits(steps)


def waits(steps: list[Step]) -> bool:
    waiting: set[str] = set()
    for step in steps:
        waiting = (waiting | set(step["actions"])) - set(step["observations"])
    return bool(waiting)


def mark_ends(play: Play, steps: list[Step], reset: dict[str, float]) -> None:
    terminated, truncated = steps[-1]["terminateds"], steps[-1]["truncateds"]
    ends = bool(terminated.get("__all__") or truncated.get("__all__"))
    play.mark("all_ends_between", ends and is_between(steps, reset))
    play.mark("terminated_as_all_truncate", bool(truncated.get("__all__")) and len(terminated) > 1)
    play.mark("last_ends_as_newcomer_comes", newcomer_at_the_end(steps, reset))


def newcomer_at_the_end(steps: list[Step], reset: dict[str, float]) -> bool:
    """Return whether an agent's first observation comes in the step in which all agents before it are done."""
    known, ended = set(reset), set()
    for step in steps:
        newcomers = set(step["observations"]) - known
        ended |= {agent for agent, flag in step["terminateds"].items() if flag}
        if newcomers and ("__all__" in ended or step["truncateds"].get("__all__") or known <= ended):
            return True
        known |= newcomers
    return False


def several_agents(play: Play, steps: list[Step], reset: dict[str, float]) -> Any:
    """Return every agent's steps."""
    return agents_of(played(play, steps, reset))


def several_counts(play: Play, steps: list[Step], reset: dict[str, float]) -> Any:
    """Return times, flags and counts."""
    episode = played(play, steps, reset)
    flags = [bool(episode.is_terminated), bool(episode.is_truncated), bool(episode.is_done)]
    return [episode.env_t, len(episode), flags, episode.env_steps(), episode.agent_steps()]


def several_to_act(play: Play, steps: list[Step], reset: dict[str, float]) -> Any:
    """Return who acts next and who has just stepped."""
    play.mark("to_act_holding", bool(held(steps, reset)))
    episode = played(play, steps, reset)
    return [sorted(episode.get_agents_to_act()), sorted(episode.get_agents_that_stepped())]


def several_returns(play: Play, steps: list[Step], reset: dict[str, float], hanging: bool) -> float:
    return float(played(play, steps, reset).get_return(include_hanging_rewards=hanging))


def several_cut(play: Play, steps: list[Step], reset: dict[str, float], at: int) -> Any:
    """Return the successor after a cut, grown by the rest of the schedule."""
    play.mark("cut_between", is_between(steps[:at], reset))
    successor = grown(played(play, steps[:at], reset).cut(), steps[at:])
    return {agent: shown for agent, shown in agents_of(successor).items() if shown["t"][2]}


def several_concat(play: Play, steps: list[Step], reset: dict[str, float], at: int) -> Any:
    """Cut, grow and join again: as if never cut."""
    seen = {agent for step in steps[:at] for agent in step["observations"]} | set(reset)
    play.mark("concat_first_outputs", bool(seen - {agent for step in steps[:at] for agent in step["actions"]}))
    play.mark("cut_between", is_between(steps[:at], reset))
    episode = played(play, steps[:at], reset)
    episode.concat_episode(grown(episode.cut(), steps[at:]))
    return agents_of(episode)


def several_read(
    play: Play,
    steps: list[Step],
    reset: dict[str, float],
    name: str,
    indices: Any,
    env_steps: bool,
    as_list: bool,
) -> Any:
    """Call one getter by agents, by environment steps or by the agents' own."""
    items = len(steps) + (name == "observations")
    play.mark("own_steps_with_waiting_action", not env_steps and name != "observations" and waits(steps))
    play.mark("several_slice_beyond", isinstance(indices, list) and indices[1] > items)
    getter = getattr(played(play, steps, reset), f"get_{name}")
    indices = slice(*indices) if isinstance(indices, list) else indices
    found = getter(indices, env_steps=env_steps, return_list=as_list)
    if as_list:
        return [{agent: float(value) for agent, value in sorted(part.items())} for part in found]
    return {
        agent: stacked(value)["values"] if hasattr(value, "__len__") else float(value)
        for agent, value in sorted(found.items())
    }


def of_a_schedule(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that needs no object of the pool, and marks how its schedule ends."""

    def run(play: Play, _: Any, steps: list[Step], reset: dict[str, float], **arguments: Any) -> Any:
        mark_ends(play, steps, reset)
        return operation(play, steps, reset, **arguments)

    return run


OPERATIONS: dict[str, Operation] = {
    operation.__name__: Operation("reads", of_a_schedule(operation))
    for operation in (
        several_agents, several_counts, several_to_act, several_returns, several_cut, several_concat, several_read,
    )
}  # fmt: skip


def schedule(draw: Draw) -> Step:
    """Return agents that act together or in turns, appear late, finish early; the last step may end all."""
    first = [agent for agent in AGENTS if draw.chance(0.6)] or ["a"]
    able, waiting, done = set(first), set(), set()
    turns = draw.chance(0.4)
    reset = {agent: float(draw.whole(0, 99)) for agent in first}
    steps = []
    length = draw.whole(1, 8)
    for number in range(length):
        actors = sorted(able)[:1] if turns else [agent for agent in sorted(able) if draw.chance(0.85)]
        able -= set(actors)
        waiting |= set(actors)
        newcomers = [agent for agent in AGENTS if agent not in able | waiting | done and draw.chance(0.3)]
        seen = [agent for agent in sorted(waiting) if draw.chance(0.75) or not able]
        rewarded = sorted({*seen, *(agent for agent in sorted(waiting) if draw.chance(0.4))})
        ended = [agent for agent in seen if draw.chance(0.06)]
        everyone = number == length - 1 and draw.chance()
        truncated = everyone and draw.chance(0.4)
        steps.append(
            {
                "observations": {agent: float(draw.whole(0, 99)) for agent in [*seen, *newcomers]},
                "actions": {agent: draw.whole(0, 9) for agent in actors},
                "rewards": {agent: draw.eighths() for agent in rewarded},
                "terminateds": {**dict.fromkeys(ended, True), "__all__": everyone and not truncated},
                "truncateds": {"__all__": truncated},
            }
        )
        able = (able | set(seen) | set(newcomers)) - set(ended)
        waiting -= set(seen)
        done |= set(ended)
        if not able | waiting:
            steps[-1]["terminateds"]["__all__"] = True
            steps[-1]["truncateds"]["__all__"] = False
            break
    return {"reset": reset, "steps": steps}


def multi_sequence(draw: Draw) -> list[Step]:
    """Return one schedule, read in every way."""
    played = schedule(draw)
    length = len(played["steps"])
    steps: list[Step] = [
        {"op": "several_agents"},
        {"op": "several_counts"},
        {"op": "several_to_act"},
        {"op": "several_returns", "hanging": draw.chance()},
        {"op": "several_cut", "at": draw.whole(0, length)},
        {"op": "several_concat", "at": draw.whole(0, length)},
    ]
    for _ in range(4):
        choices: Any = [None, draw.whole(-3, 6), [draw.whole(0, 3), draw.whole(2, 6)]]
        by_env = draw.chance(0.7)
        name = draw.some(["observations", "actions", "rewards"])
        indices = draw.some(choices)
        as_list = by_env and not isinstance(indices, int) and draw.chance()
        read = {"name": name, "indices": indices, "env_steps": by_env, "as_list": as_list}
        steps.append({"op": "several_read", **read})
    return [{**step, **played} for step in steps]
