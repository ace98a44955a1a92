"""Environments, networks and callbacks that the files of the past name. Their names and what they do never change."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lockstep.connectors import Connector, FrameStack, PreviousActions, PreviousRewards
from lockstep.trainer import Callback

LENGTH = 6


class Target(gym.Env[Any, Any]):
    """Pays 1 minus the distance between an action and a target that is drawn in each step; episodes of 6 steps."""

    state_attributes = ("target", "t")
    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.target = 0.0
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 - abs(float(np.asarray(action).reshape(-1)[0]) - self.target)
        self.t += 1
        return self._observe(), reward, False, self.t == LENGTH, {"t": self.t}

    def _observe(self) -> np.ndarray:
        self.target = float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self.target, self.t / LENGTH], np.float32)


class Choice(Target):
    """The same with three actions and a mask: the action that does not fit the sign of the target is forbidden."""

    observation_space = spaces.Dict(
        {"seen": spaces.Box(-1.0, 1.0, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
    )
    action_space = spaces.Discrete(3)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(float(action) - 1.0)

    def _observe(self) -> Any:
        seen = super()._observe()
        return {"seen": seen, "action_mask": np.array([self.target < 0, True, self.target >= 0], np.int8)}


class Picture(Target):
    """The same seen as an image whose left or right half is bright."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(2.0 * float(action) - 1.0)

    def _observe(self) -> np.ndarray:
        super()._observe()
        picture = np.zeros((8, 8, 1), np.uint8)
        half = picture[:, :4] if self.target < 0 else picture[:, 4:]
        half[:] = round(255 * abs(self.target))
        return picture


class Guests:
    """A parallel game: `a` is there from begin to end, `b` leaves after two steps, `c` comes after the first one."""

    possible_agents = ("a", "b", "c")
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.length = 0
        self.t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 100.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = ["a", "b"]
        self.length = 3 + int(seed or 0) % 3
        self.t = 0
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        present = list(self.agents)
        if self.t == 1:
            present.append("c")
        over = self.t == self.length
        rewards = {agent: float(actions.get(agent, 0)) * (1 + "abc".index(agent)) for agent in present}
        terminated = {agent: over or (agent == "b" and self.t == 2) for agent in present}
        self.agents = [agent for agent in present if not terminated[agent]]
        truncated = dict.fromkeys(present, False)
        return self._observe(present), rewards, terminated, truncated, {agent: {} for agent in present}

    def close(self) -> None:
        pass

    def get_env_state(self) -> dict[str, Any]:
        return {"agents": list(self.agents), "length": self.length, "t": self.t}

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.agents = list(state["agents"])
        self.length = state["length"]
        self.t = state["t"]

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.array([self.t, 1 + "abc".index(agent)], np.float32) for agent in agents}


class Duel:
    """A parallel game of one step: whoever takes action 1 against a 0 wins 1 from the other."""

    possible_agents = ("x", "y")
    metadata: dict[str, Any] = {}
    agents: tuple[str, ...] = ()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = self.possible_agents
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        gain = float(actions["x"]) - float(actions["y"])
        self.agents = ()
        both = self.possible_agents
        ends = dict.fromkeys(both, True)
        return self._observe(), {"x": gain, "y": -gain}, ends, dict.fromkeys(both, False), {agent: {} for agent in both}

    def close(self) -> None:
        pass

    def _observe(self) -> dict[str, np.ndarray]:
        return {agent: np.array([1.0, "xy".index(agent)], np.float32) for agent in self.possible_agents}


class Turns:
    """A game of turns: `a` and `b` act one after the other; an action 1 pays the other; 7 actions an episode."""

    possible_agents = ("a", "b")
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 100.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.t = 0
        self.agents = ["a", "b"]
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.t, "ab".index(agent)], np.float32)

    def last(self) -> tuple[Any, ...]:
        me = self.agent_selection
        return self.observe(me), self.rewards[me], self.terminations[me], self.truncations[me], self.infos[me]

    def step(self, action: Any) -> None:
        me = self.agent_selection
        other = "b" if me == "a" else "a"
        if self.terminations[me]:
            self.agents.remove(me)
            self.agent_selection = other
            return
        self.t += 1
        self.rewards = {me: 0.0, other: float(action)}
        if self.t >= 7:
            self.terminations = dict.fromkeys(self.terminations, True)
        self.agent_selection = other

    def close(self) -> None:
        pass

    def get_env_state(self) -> dict[str, Any]:
        return {
            "agents": list(self.agents),
            "t": self.t,
            "selection": self.agent_selection,
            "rewards": dict(self.rewards),
            "terminations": dict(self.terminations),
        }

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.reset()
        self.agents = list(state["agents"])
        self.t = state["t"]
        self.agent_selection = state["selection"]
        self.rewards = dict(state["rewards"])
        self.terminations = dict(state["terminations"])


def module_of(agent: str, episode: Any) -> str:
    """Map `a` to a module of its own and the others to a shared one."""
    return "first" if agent == "a" else "others"


def main_module(agent: str, episode: Any) -> str:
    """Map every agent to the module that learns."""
    return "main"


class HalfObs(Connector):
    """A connector of the user's own, named by its class: it halves observations."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()

    def output_space(self, input_space: Any) -> Any:
        return spaces.Box(input_space.low / 2, input_space.high / 2, dtype=input_space.dtype)

    def __call__(self, data: Any) -> Any:
        return data / 2


def remembering(observation_space: Any, action_space: Any) -> list[Connector]:
    """Make connectors with a memory: two frames, and what was done and earned in the step before."""
    return [FrameStack(2), PreviousActions(action_space), PreviousRewards()]


class OwnEncoder(nn.Module):
    """An encoder of the user's own, named by its class."""

    def __init__(self, observation_space: Any, size: int = 5) -> None:
        super().__init__()
        self.output_size = size
        self.layer = nn.Linear(int(np.prod(observation_space.shape)), size)

    def forward(self, observations: Any) -> Any:
        return torch.tanh(self.layer(observations.flatten(1)))


class SmallNovelty(nn.Module):
    """A network whose error is the intrinsic reward: what it predicts is fixed and random."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        size = int(np.prod(observation_space.shape))
        self.head = nn.Linear(size, 3)
        self.target_head = nn.Linear(size, 3)
        self.target_head.requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        flat = obs.reshape(*obs.shape[:1], -1).to(self.head.weight.dtype)
        return (self.head(flat) - self.target_head(flat)).square().mean(-1)


class CountEpisodes(Callback):
    """A callback with a state that watches the run and its environments, named by its class."""

    def __init__(self) -> None:
        self.updates = 0
        self.steps_of_episodes = 0

    def on_update_end(self, event: Any) -> None:
        self.updates += 1

    def on_episode_end(self, episode: Any, env_index: int) -> None:
        self.steps_of_episodes += len(episode)

    def get_state(self) -> dict[str, Any]:
        return {"updates": self.updates, "steps_of_episodes": self.steps_of_episodes}

    def set_state(self, state: Any) -> None:
        self.updates = int(state["updates"])
        self.steps_of_episodes = int(state["steps_of_episodes"])


def half_way(achieved: Any, desired: Any, info: Any) -> Any:
    """Return the reward of hindsight: 0 where the goal is reached, else -1."""
    return -(np.abs(achieved - desired).sum(-1) > 0).astype(np.float64)
