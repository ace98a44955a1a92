"""What walks name: one small game in every form that Lockstep steps, for one agent or for three, with masks or without.

Who acts in a step draws from the game's one generator, in the order in which the actions are given: so the game changes
where that order does. Everything is kept in `state`, which a resumed run gets back.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.connectors import PreviousActions, PreviousRewards
from lockstep.replay import VectorReplayBuffer
from lockstep.trainer import Callback

AGENTS = ("left", "right", "middle")
CHOICES = 3


class Game:
    """Shows each agent a cue from -1 to 1, pays for actions near it, and lasts 3 to 6 steps."""

    def __init__(self, agents: tuple[str, ...], *, mask: bool, continuous: bool) -> None:
        self.agents = agents
        self.mask = mask
        self.continuous = continuous
        self.rng = np.random.default_rng(0)
        self.cues: dict[str, float] = {}
        self.t = 0
        self.length = 0

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of one agent."""
        seen = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if not self.mask:
            return seen
        return spaces.Dict({"seen": seen, "action_mask": spaces.Box(0, 1, (CHOICES,), np.int8)})

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space of one agent."""
        return spaces.Box(-1.0, 1.0, (1,), np.float32) if self.continuous else spaces.Discrete(CHOICES)

    def begin(self, seed: int | None) -> None:
        """Begin an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t = 0
        self.length = int(self.rng.integers(3, 7))
        self.cues = {agent: float(self.rng.uniform(-1, 1)) for agent in self.agents}

    def act(self, actions: dict[str, Any]) -> dict[str, float]:
        """Take the actions one after another; return what each is paid."""
        rewards = {}
        for agent, action in actions.items():
            place = float(np.asarray(action).reshape(-1)[0])
            if not self.continuous:
                if self.mask and not self.allowed(agent)[int(place)]:
                    raise ValueError(f"{agent} takes {action!r}, which is forbidden")
                place -= 1.0
            rewards[agent] = 1.0 - abs(place - self.cues[agent])
            self.cues[agent] = float(self.rng.uniform(-1, 1))
        self.t += 1
        return rewards

    def allowed(self, agent: str) -> np.ndarray:
        """Return the mask: the choice on the other side of the cue is forbidden."""
        return np.array([self.cues[agent] < 0, True, self.cues[agent] >= 0], np.int8)

    def seen(self, agent: str) -> Any:
        """Return an agent's observation."""
        seen = np.array([self.cues[agent], self.t / 6], np.float32)
        return {"seen": seen, "action_mask": self.allowed(agent)} if self.mask else seen

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.t >= self.length

    def get_state(self) -> dict[str, Any]:
        """Return all that changes."""
        generator = deepcopy(self.rng.bit_generator.state)
        return {"t": self.t, "length": self.length, "cues": dict(self.cues), "generator": generator}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from `get_state`."""
        self.t = int(state["t"])
        self.length = int(state["length"])
        self.cues = {agent: float(cue) for agent, cue in state["cues"].items()}
        self.rng.bit_generator.state = state["generator"]


class OneAgent(gym.Env[Any, Any]):
    """The game of one agent."""

    def __init__(self, mask: bool = False, continuous: bool = False) -> None:
        self.game = Game(AGENTS[:1], mask=mask, continuous=continuous)
        self.observation_space = self.game.observation_space
        self.action_space = self.game.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.begin(seed)
        return self.game.seen(AGENTS[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rewards = self.game.act({AGENTS[0]: action})
        even = self.game.length % 2 == 0
        over = self.game.over
        return self.game.seen(AGENTS[0]), rewards[AGENTS[0]], over and even, over and not even, {}

    def get_env_state(self) -> dict[str, Any]:
        return self.game.get_state()

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.game.set_state(state)


class SeveralAgents:
    """What the forms of several agents share."""

    possible_agents = AGENTS
    metadata: dict[str, Any] = {}

    def __init__(self, mask: bool = False, continuous: bool = False) -> None:
        self.game = Game(AGENTS, mask=mask, continuous=continuous)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.game.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.game.action_space

    def close(self) -> None:
        pass

    def get_env_state(self) -> dict[str, Any]:
        return {"agents": list(self.agents), "game": self.game.get_state()}

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.agents = list(state["agents"])
        self.game.set_state(state["game"])


class AllAtOnce(SeveralAgents):
    """A PettingZoo `ParallelEnv`."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(AGENTS)
        self.game.begin(seed)
        return self._seen(), {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        rewards = self.game.act(actions)
        over = self.game.over
        self.agents = [] if over else list(AGENTS)
        ends = dict.fromkeys(AGENTS, over)
        return self._seen(), rewards, ends, dict.fromkeys(AGENTS, False), {agent: {} for agent in AGENTS}

    def _seen(self) -> dict[str, Any]:
        return {agent: self.game.seen(agent) for agent in AGENTS}


class InTurns(SeveralAgents):
    """A PettingZoo `AECEnv`."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(AGENTS)
        self.game.begin(seed)
        self.agent_selection = AGENTS[0]
        self.rewards = dict.fromkeys(AGENTS, 0.0)

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        return self.game.seen(agent), 0.0, self.game.over, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        following = AGENTS[(AGENTS.index(agent) + 1) % len(AGENTS)]
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        if self.game.over:
            self.agents.remove(agent)
        else:
            self.rewards |= self.game.act({agent: action})
        self.agent_selection = following

    def get_env_state(self) -> dict[str, Any]:
        more = {"agent_selection": self.agent_selection, "rewards": dict(self.rewards)}
        return {**super().get_env_state(), **more}

    def set_env_state(self, state: dict[str, Any]) -> None:
        super().set_env_state(state)
        self.agent_selection = state["agent_selection"]
        self.rewards = dict(state["rewards"])


class ByDict:
    """The form of RLlib's `MultiAgentEnv`: all act in every second step, in the others the first one alone."""

    possible_agents = AGENTS

    def __init__(self, mask: bool = False, continuous: bool = False) -> None:
        self.game = Game(AGENTS, mask=mask, continuous=continuous)
        self.observation_spaces = dict.fromkeys(AGENTS, self.game.observation_space)
        self.action_spaces = dict.fromkeys(AGENTS, self.game.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.game.begin(seed)
        return self._seen(AGENTS), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        rewards = self.game.act(actions)
        over = self.game.over
        seen = self._seen(AGENTS if over or self.game.t % 2 == 0 else AGENTS[:1])
        return seen, rewards, {"__all__": over}, {"__all__": False}, {}

    def _seen(self, agents: tuple[str, ...]) -> dict[str, Any]:
        return {agent: self.game.seen(agent) for agent in agents}

    def get_env_state(self) -> dict[str, Any]:
        return self.game.get_state()

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.game.set_state(state)


WORLDS: dict[str, Any] = {"one": OneAgent, "at once": AllAtOnce, "in turns": InTurns, "by dict": ByDict}


def previous(observation_space: Any, action_space: Any) -> list[Any]:
    """Show what was done and earned in the step before."""
    return [PreviousActions(action_space), PreviousRewards()]


def module_of(agent: str, episode: Any) -> str:
    """Give the first agent a module of its own."""
    return "first" if agent == AGENTS[0] else "others"


class Watching(Callback):
    """Counts what happens to environments and to the run."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("episodes", "steps", "updates", "evaluations"), 0)

    def on_episode_end(self, episode: Any, env_index: int) -> None:
        self.counts["episodes"] += 1

    def on_episode_step(self, episode: Any, env_index: int) -> None:
        self.counts["steps"] += 1

    def on_update_end(self, event: Any) -> None:
        self.counts["updates"] += 1

    def on_evaluation_end(self, event: Any) -> None:
        self.counts["evaluations"] += 1

    def get_state(self) -> dict[str, Any]:
        return dict(self.counts)

    def set_state(self, state: Any) -> None:
        self.counts = dict(state)


class OwnBuffer(VectorReplayBuffer):
    """A replay buffer of the user's own, which counts how often it was asked."""

    asked = 0

    def sample(self, n: int) -> Any:
        self.asked += 1
        return super().sample(n)
