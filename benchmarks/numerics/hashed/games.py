"""Small environments, connectors and networks of the entries. What they do never changes: hashes depend on it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lockstep.connectors import ClipActions, Connector, FrameStack, PreviousActions, PreviousRewards

LENGTH = 6
SEEN = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Target(gym.Env[Any, Any]):
    """Pays 1 minus the distance between the action and a target that is drawn in each step; episodes of 3 to 6 steps.

    Half of the episodes are truncated, the others are terminated.
    """

    state_attributes = ("target", "t", "length")
    observation_space: spaces.Space[Any] = SEEN
    action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.target = 0.0
        self.t = 0
        self.length = LENGTH

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.length = int(self.np_random.integers(3, LENGTH + 1))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 - abs(self.value_of(action) - self.target)
        self.t += 1
        over = self.t == self.length
        even = self.length % 2 == 0
        return self.observe(), reward, over and even, over and not even, {"t": self.t}

    def value_of(self, action: Any) -> float:
        """Return the number in [-1, 1] that an action stands for."""
        return float(np.asarray(action).reshape(-1)[0])

    def observe(self) -> Any:
        """Draw the next target and return the observation."""
        self.target = float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self.target, self.t / LENGTH], np.float32)


class Choice(Target):
    """`Target` with three actions and a mask, which forbids the action on the other side of the target."""

    observation_space = spaces.Dict({"seen": SEEN, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    action_space = spaces.Discrete(3)

    def value_of(self, action: Any) -> float:
        return float(action) - 1.0

    def observe(self) -> Any:
        seen = super().observe()
        return {"seen": seen, "action_mask": np.array([self.target < 0, True, self.target >= 0], np.int8)}


class Picture(Target):
    """`Target` with two actions, seen as an image whose left or right half is bright."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def value_of(self, action: Any) -> float:
        return 2.0 * float(action) - 1.0

    def observe(self) -> np.ndarray:
        super().observe()
        picture = np.zeros((8, 8, 1), np.uint8)
        half = picture[:, :4] if self.target < 0 else picture[:, 4:]
        half[:] = round(255 * abs(self.target))
        return picture


class Nested(Target):
    """`Target` with observations of several kinds. Its keys are not in the order of the alphabet."""

    observation_space = spaces.Dict(
        {
            "where": SEEN,
            "kind": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
            "grid": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        }
    )

    def __init__(self, continuous: bool = False) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(3)

    def value_of(self, action: Any) -> float:
        value = super().value_of(action)
        return value - 1.0 if isinstance(self.action_space, spaces.Discrete) else value

    def observe(self) -> Any:
        where = super().observe()
        kind = (np.int64(1 + self.t % 3), np.array([self.target < 0, self.t % 2], np.int8))
        return {"where": where, "kind": kind, "grid": np.full((2, 2), 10.0 * self.target)}


class Several(Target):
    """`Target` with actions of several parts; only the first one counts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.action_space = {
            "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
            "MultiBinary": spaces.MultiBinary(2),
            "Dict": spaces.Dict({"turn": spaces.Discrete(2), "push": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
        }[kind]

    def value_of(self, action: Any) -> float:
        first = action["turn"] if isinstance(action, dict) else action
        return 2.0 * super().value_of(first) - 1.0


class Halved(Connector):
    """A connector without a memory: it halves observations."""

    def output_space(self, input_space: Any) -> Any:
        return spaces.Box(input_space.low / 2, input_space.high / 2, dtype=input_space.dtype)

    def __call__(self, data: Any) -> Any:
        return data / 2


def halved(observation_space: Any, action_space: Any) -> list[Connector]:
    """Make the connectors of observations."""
    return [Halved()]


def clipped(observation_space: Any, action_space: Any) -> list[Connector]:
    """Make the connectors of actions."""
    return [ClipActions(action_space)]


def remembering(observation_space: Any, action_space: Any) -> list[Connector]:
    """Make connectors with a memory: two frames, the previous action and the previous reward."""
    return [FrameStack(2), PreviousActions(action_space), PreviousRewards()]


class OwnEncoder(nn.Module):
    """An encoder of flat observations."""

    def __init__(self, observation_space: Any, size: int = 5) -> None:
        super().__init__()
        self.output_size = size
        self.layer = nn.Linear(int(np.prod(observation_space.shape)), size)

    def forward(self, observations: Any) -> Any:
        return torch.tanh(self.layer(observations.flatten(1)))


class Novelty(nn.Module):
    """A network whose error is the intrinsic reward. What it predicts is fixed and random."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        size = int(np.prod(observation_space.shape))
        self.head = nn.Linear(size, 3)
        self.target_head = nn.Linear(size, 3)
        self.target_head.requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        flat = obs.reshape(*obs.shape[:1], -1).to(self.head.weight.dtype)
        return (self.head(flat) - self.target_head(flat)).square().mean(-1)


# -- several agents ---


class Parallel:
    """PettingZoo's parallel form. `a` stays to the end, `b` leaves after two steps, `c` comes after the first one."""

    possible_agents: tuple[str, ...] = ("a", "b", "c")
    metadata: dict[str, Any] = {}
    action: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.length = 0
        self.t = 0
        self.value = 0.0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 100.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = ["a", "b"]
        self.length = 3 + int(seed or 0) % 3
        self.t = 0
        self.value = float(seed or 0) % 7
        return self.observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        present = list(self.agents)
        if self.t == 1:
            present.append("c")
        over = self.t == self.length
        rewards = {agent: number(actions.get(agent, 0)) * (1 + "abc".index(agent)) for agent in present}
        for agent, action in actions.items():  # the order of the actions counts
            self.value = (self.value * 1.7 + (1 + "abc".index(agent)) * (1.0 + number(action))) % 10.0
        terminated = {agent: over or (agent == "b" and self.t == 2) for agent in present}
        self.agents = [agent for agent in present if not terminated[agent]]
        truncated = dict.fromkeys(present, False)
        return self.observe(present), rewards, terminated, truncated, {agent: {} for agent in present}

    def state(self) -> np.ndarray:
        return np.array([self.t, self.value], np.float32)

    @property
    def state_space(self) -> spaces.Space[Any]:
        return spaces.Box(0.0, 100.0, (2,), np.float32)

    def close(self) -> None:
        pass

    def get_env_state(self) -> dict[str, Any]:
        return {"agents": list(self.agents), "length": self.length, "t": self.t, "value": self.value}

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.agents = list(state["agents"])
        self.length = state["length"]
        self.t = state["t"]
        self.value = state["value"]

    def observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        """Return the observations of the agents."""
        return {agent: np.array([self.t, 1 + "abc".index(agent), self.value], np.float32) for agent in agents}


class ParallelContinuous(Parallel):
    """`Parallel` with continuous actions."""

    action = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Turns:
    """PettingZoo's form in turns: who acts gets 1, the other one 10 at the same time."""

    possible_agents = ("a", "b")
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.agent_selection = "a"
        self.rewards: dict[str, float] = {}
        self.length = 0
        self.t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 100.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = ["a", "b"]
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.length = 3 + int(seed or 0) % 4
        self.t = 0

    def last(self) -> tuple[Any, ...]:
        obs = np.array([self.t, "ab".index(self.agent_selection)], np.float32)
        return obs, 0.0, False, self.t == self.length, {}

    def step(self, action: Any) -> None:
        me = self.agent_selection
        other = "ba"["ab".index(me)]
        self.agent_selection = other
        if self.t == self.length:
            self.agents.remove(me)
            return
        self.t += 1
        self.rewards = {me: 1.0 + float(action), other: 10.0}

    def close(self) -> None:
        pass

    def get_env_state(self) -> dict[str, Any]:
        return {name: list(value) if name == "agents" else value for name, value in vars(self).items()}

    def set_env_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class ByDict:
    """The form of RLlib's `MultiAgentEnv`: `a` acts in each step, `b` in every second one, `c` comes late."""

    possible_agents = ("a", "b", "c")
    observation_spaces = {
        "a": spaces.Box(0.0, 100.0, (2,), np.float32),
        "b": spaces.Box(0.0, 100.0, (2,), np.float32),
        "c": spaces.Box(0.0, 100.0, (3,), np.float32),
    }
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def __init__(self) -> None:
        self.length = 6
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t = 0
        self.length = 5 + int(seed or 0) % 3
        return self.observe(["a", "b"]), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        over = self.t == self.length
        present = ["a", "b", "c"] if over else ["a", *("b" if self.t % 2 == 0 else ""), *("c" if self.t > 1 else "")]
        if over and self.t < 2:
            present.remove("c")
        rewards = {"a": 1.0 + number(actions.get("a", 0)), "b": 10.0, "c": 100.0}
        return self.observe(present), rewards, {"__all__": over}, {"__all__": False}, {}

    def observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        """Return the observations of the agents."""
        seen = {agent: [self.t, 1 + "abc".index(agent), 7][: 3 if agent == "c" else 2] for agent in agents}
        return {agent: np.array(values, np.float32) for agent, values in seen.items()}


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
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        gain = float(actions["x"]) - float(actions["y"])
        self.agents = ()
        both = self.possible_agents
        ends = dict.fromkeys(both, True)
        return self.observe(), {"x": gain, "y": -gain}, ends, dict.fromkeys(both, False), {agent: {} for agent in both}

    def close(self) -> None:
        pass

    def observe(self) -> dict[str, np.ndarray]:
        """Return the observations of both agents."""
        return {agent: np.array([1.0, "xy".index(agent)], np.float32) for agent in self.possible_agents}


def number(action: Any) -> float:
    """Return an action as a number."""
    return float(np.asarray(action).reshape(-1)[0])


def two_modules(agent: str, episode: Any) -> str:
    """Map the first agent to a module of its own and the others to a shared one."""
    return "first" if agent in "ax" else "others"


def by_space(agent: str, episode: Any) -> str:
    """Map the agents of `ByDict`, of which `c` sees more than the others."""
    return "others" if agent == "c" else "first"


def one_module(agent: str, episode: Any) -> str:
    """Map every agent to the module "main"."""
    return "main"
