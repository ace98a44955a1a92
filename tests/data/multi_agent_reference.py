"""Random schedules of agents, and a slow, obvious reference for the episodes that they make."""

from dataclasses import dataclass, field

import numpy as np

from lockstep.data import MultiAgentEpisode

AGENTS = ("a", "b", "c", "d")


@dataclass
class Log:
    """What an environment gave: dicts by time (observations, infos) and by env step (the rest)."""

    observations: list = field(default_factory=list)
    infos: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    extras: list = field(default_factory=list)
    terminateds: list = field(default_factory=list)
    truncateds: list = field(default_factory=list)

    def __len__(self):
        return len(self.actions)


def plain(value):
    """Arrays as lists, all the way down."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def state_of(episode):
    """All of an episode but the seconds it took and the modules of agents that it has not seen."""
    state = plain(episode.get_state())
    for part in (state, *[agent["episode"] for agent in state["agents"] if agent["episode"]]):
        part.pop("duration_s")
    for part in [agent["episode"] for agent in state["agents"] if agent["episode"]]:
        if part["t"] == part["t_started"] and not part["len_lookback_buffer"]:  # columns without rows may be left out
            part["actions"] = part["rewards"] = None
            part["extra_model_outputs"] = {}
    state["agent_module_ids"] = sorted(pair for pair in state["agent_module_ids"] if pair[0] in episode.agent_ids)
    state["agents"].sort(key=lambda part: part["agent_id"])
    return state


def random_log(seed, steps, ending):
    """A valid schedule: agents act at once, late or in turns, appear and end when they like."""
    rng = np.random.default_rng(seed)
    eager, appear, end = rng.uniform(0.3, 1), rng.uniform(0.1, 0.9), rng.choice([0.0, 0.1])
    status = dict.fromkeys(AGENTS, "absent")  # absent, holds (an observation), waits (after its action), done
    log = Log()

    def observe(agent):
        log.observations[-1][agent] = np.array([100.0 * len(log) + ord(agent), rng.integers(9)])
        if rng.random() < 0.7:
            log.infos[-1][agent] = {"at": len(log)}

    log.observations.append({})
    log.infos.append({})
    for agent in AGENTS:
        if rng.random() < 0.6:
            observe(agent)
            status[agent] = "holds"
    for step in range(steps):
        acting = [agent for agent in AGENTS if status[agent] == "holds" and rng.random() < eager]
        log.actions.append({agent: int(rng.integers(100)) for agent in acting})
        log.extras.append({agent: {"v": float(rng.integers(100)), "w": rng.integers(9, size=2)} for agent in acting})
        log.observations.append({})
        log.infos.append({})
        last = step == steps - 1
        flags = {"terminateds": {"__all__": last and ending == "terminated"}}
        flags["truncateds"] = {"__all__": last and ending == "truncated"}
        rewards = {}
        for agent in AGENTS:
            if status[agent] == "done":
                continue
            if agent in acting:
                status[agent] = "waits"
            ends = status[agent] != "absent" and rng.random() < end
            truncated = ends and rng.random() < 0.5
            if ends:
                flags["truncateds" if truncated else "terminateds"][agent] = True
            truncated = truncated or (last and ending == "truncated" and not ends)
            answered = status[agent] == "waits" and (truncated or rng.random() < 0.6)
            if answered or (status[agent] == "absent" and rng.random() < appear * 0.3):
                observe(agent)
                status[agent] = "holds"
            must = agent in acting and agent in log.observations[-1]
            if must or rng.random() < 0.4:
                rewards[agent] = float(rng.integers(-8, 8)) / 4
            if ends:
                status[agent] = "done"
        log.rewards.append(rewards)
        log.terminateds.append(flags["terminateds"])
        log.truncateds.append(flags["truncateds"])
    return log


def play(log, steps=None, cuts=(), lookback=0):
    """The log as episodes, cut before each of the env steps `cuts`; one episode where there are none."""
    episode = MultiAgentEpisode(
        "e", agent_episode_ids={agent: f"e/{agent}" for agent in AGENTS}, agent_to_module_mapping_fn=module_of
    )
    episode.add_env_reset(log.observations[0], log.infos[0])
    pieces = [episode]
    for t in range(len(log) if steps is None else steps):
        if t in cuts:
            episode = episode.cut(lookback)
            pieces.append(episode)
        episode.add_env_step(
            log.observations[t + 1],
            log.actions[t],
            log.rewards[t],
            log.infos[t + 1],
            terminateds=log.terminateds[t],
            truncateds=log.truncateds[t],
            extra_model_outputs=log.extras[t],
        )
    return pieces


def module_of(agent, episode):
    return "p" if agent in "ab" else "q"


@dataclass
class Seen:
    """One observation of an agent, and the action that answered it."""

    time: int
    obs: list
    info: dict
    action: int | None = None
    acted: int | None = None
    extras: dict | None = None


class Reference:
    """What the piece from time `begin` to `end` with `lookback` must show, read off the log by definition."""

    def __init__(self, log, begin, end, lookback):
        self.log, self.begin, self.end, self.oldest = log, begin, end, begin - lookback
        self.whole = end == len(log)
        self.seen, self.ended = {}, {}
        for agent in AGENTS:
            self.follow(agent)

    def follow(self, agent):
        """Record the observations of an agent until `end`, and how it ended."""
        seen = []
        for t in range(self.end + 1):
            if t and agent in self.log.actions[t - 1]:
                seen[-1].action, seen[-1].acted = self.log.actions[t - 1][agent], t - 1
                seen[-1].extras = plain(self.log.extras[t - 1][agent])
            if agent in self.log.observations[t]:
                obs = self.log.observations[t][agent].tolist()
                seen.append(Seen(t, obs, self.log.infos[t].get(agent, {})))
            ends = self.flags(agent, t) if t and agent not in self.ended else None
            if ends:
                self.ended[agent] = (t, *ends)
                if seen and seen[-1].action is not None:  # its end closes the step, the last observation once more
                    seen.append(Seen(t, seen[-1].obs, {}))
        if seen:
            self.seen[agent] = seen

    def flags(self, agent, t):
        terminated, truncated = self.log.terminateds[t - 1], self.log.truncateds[t - 1]
        own = terminated.get(agent, False), truncated.get(agent, False)
        every = terminated["__all__"], truncated["__all__"]
        return own if any(own) else every if any(every) else None

    def steps(self, agent):
        """Return (observation, reward, next observation) of each action until `end`; the last is None if pending."""
        result = []
        seen = self.seen.get(agent, [])
        for step, following in zip(seen, [*seen[1:], None]):
            if step.action is not None:
                until = following.time if following else self.end
                reward = sum(self.log.rewards[t - 1].get(agent, 0.0) for t in range(step.time + 1, until + 1))
                result.append((step, reward, following))
        return result

    def closed(self, agent):
        return [(step, reward, after) for step, reward, after in self.steps(agent) if after and self.begin < after.time]

    def looked_back_at(self, agent):
        return [
            step
            for step, _, after in self.steps(agent)
            if after and after.time <= self.begin and step.time >= self.oldest
        ]

    def agents(self):
        """Return the agents with data in the piece. One that was done before needs a step in the lookback."""
        return {
            agent
            for agent in self.seen
            if self.ended.get(agent, (self.end + 1,))[0] > self.begin or self.looked_back_at(agent)
        }

    def items(self, column, agent):
        """Return the items that can be read by env step, by env time."""
        if column in ("observations", "infos"):
            found = {step.time: step.obs if column == "observations" else step.info for step in self.seen[agent]}
        elif column == "extra":
            found = {step.time: step.extras for step, _, _ in self.steps(agent)}
        else:
            found = {step.time: step.action if column == "actions" else reward for step, reward, _ in self.steps(agent)}
        return {time: item for time, item in found.items() if time >= self.oldest}

    def read(self, column, times, fill=None):
        """Return the items at `times` of each agent."""
        result = {}
        for agent in self.agents():
            items = self.items(column, agent)
            rows = [items.get(t, fill) for t in times if fill is not None or t in items]
            if rows:
                result[agent] = rows
        return result

    def by_own_step(self, column, agent):
        """Return the items by own step, lookback first, and the number of those in the lookback."""
        back = len(self.looked_back_at(agent))
        items = list(self.seen[agent])
        before = [step for step in items if step.time <= self.begin]
        start = max(len(before) - 1, 0) - back
        if column in ("observations", "infos"):
            return [step.obs if column == "observations" else step.info for step in items[start:]], back
        steps = self.steps(agent)[start:]
        return [step.action if column == "actions" else reward for step, reward, _ in steps], back

    def returns(self):
        """(return, return with hanging rewards)."""
        total = hanging = 0.0
        for agent in AGENTS:
            total += sum(reward for _, reward, _ in self.closed(agent))
            first = self.seen[agent][0].time if agent in self.seen else self.end
            last = self.seen[agent][-1].time if agent in self.seen else self.end
            for t in range(1, self.end + 1):
                reward = self.log.rewards[t - 1].get(agent, 0.0)
                late = t > last and (agent not in self.ended or t > self.begin)
                hanging += reward if late or self.begin < t <= first else 0.0
        return total, total + hanging

    def rows(self, module):
        """Rows of the module's batch."""
        return [
            (agent, step.time, step.obs, step.action, reward, after.obs, step.extras["v"])
            for agent in AGENTS
            for step, reward, after in self.closed(agent)
            if module_of(agent, None) == module
        ]

    def able(self):
        return {agent for agent, seen in self.seen.items() if agent not in self.ended and seen[-1].action is None}
