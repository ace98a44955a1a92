"""Small games of several agents, in PettingZoo's two forms and RLlib's, whose returns are known exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep import PPOConfig

OBS, TWO = spaces.Box(0.0, 100.0, (2,), np.float32), spaces.Discrete(2)


class Game:
    """`possible_agents` with the same spaces; an episode's length depends on its seed alone."""

    possible_agents: tuple[str, ...] = ("a", "b", "c")
    made = 0

    def __init__(self, shortest: int = 2, longest: int = 5, **options: Any) -> None:
        self.shortest, self.longest, self.options = shortest, longest, options
        self.closed = False
        self.agents: list[str] = []
        type(self).made += 1

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return OBS

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return TWO

    def length_of(self, seed: int) -> int:
        return self.shortest + seed % (self.longest - self.shortest + 1)

    def close(self) -> None:
        self.closed = True


class CountingGame(Game):
    """All at once: `a` is there from begin to end, `b` ends after two steps, `c` comes after the first one.

    Observations are the time and the agent's number, from 1; each step gives `a` 1, `b` 10, `c` 100.
    """

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.length, self.t, self.agents = self.length_of(int(seed or 0)), 0, ["a", "b"]
        return self._obs(self.agents), {agent: {} for agent in self.agents}

    def _obs(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.array([self.t, 1 + "abc".index(agent)], np.float32) for agent in agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        assert all(type(action) is int for action in actions.values())
        if self.t == self.options.get("fails_at"):
            raise RuntimeError("the board is on fire")
        self.t += 1
        over = self.t == self.length
        there = [*self.agents, *(["c"] if self.t == 1 else [])]
        rewards = {agent: {"a": 1.0, "b": 10.0, "c": 100.0}[agent] * (agent in actions) for agent in there}
        if self.t == self.options.get("nan_at"):
            rewards["a"] = float("nan")
        terminated = {agent: over or (agent == "b" and self.t == 2) for agent in there}
        self.agents = [agent for agent in there if not terminated[agent]]
        no = dict.fromkeys(there, False)
        return self._obs(there), rewards, terminated, no, {agent: {} for agent in there}

    @staticmethod
    def returns(length: int) -> tuple[float, float, float]:
        return float(length), 20.0, 100.0 * (length - 1)


class TurnGame(Game):
    """In turns: who acts gets 1, the other one 10 at the same time; over after `length` actions."""

    possible_agents = ("a", "b")

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.length, self.t, self.agents = self.length_of(int(seed or 0)), 0, ["a", "b"]
        self.agent_selection, self.rewards = "a", dict.fromkeys(self.agents, 0.0)

    def last(self) -> tuple[Any, ...]:
        obs = np.array([self.t, "ab".index(self.agent_selection)], np.float32)
        return obs, 0.0, False, self.t == self.length, {}

    def step(self, action: Any) -> None:
        me, other = self.agent_selection, "ba"["ab".index(self.agent_selection)]
        if self.t == self.length:
            assert action is None
            self.agents.remove(me)
            self.agent_selection = other
            return
        assert type(action) is int
        self.t += 1
        self.rewards = {me: 1.0, other: 10.0}
        self.agent_selection = other

    @staticmethod
    def returns(length: int) -> tuple[float, float]:
        of_a, of_b = -(-length // 2), length // 2
        return of_a + 10.0 * of_b, of_b + 10.0 * of_a


class DictGame:
    """In the form of RLlib's `MultiAgentEnv`: `a` acts in each step, `b` in every second one, `c` comes late.

    At time 3 nobody acts. Observations are the time and the agent's number, from 1; each step gives `a` 1, `b` 10 and
    `c`, which sees three numbers, 100. `b` ends at time 4, the episode after `length` steps.
    """

    possible_agents = ("a", "b", "c")
    observation_spaces = {"a": OBS, "b": OBS, "c": spaces.Box(0.0, 100.0, (3,), np.float32)}
    action_spaces = dict.fromkeys(possible_agents, TWO)

    def __init__(self, length: int = 6, **options: Any) -> None:
        self.length, self.options = length, options

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t, self.seed = 0, seed
        return self._obs(["a", "b"]), {"__common__": {"seed": seed}}

    def _obs(self, agents: Any) -> dict[str, np.ndarray]:
        seen = {agent: [self.t, 1 + "abc".index(agent), 7][: 3 if agent == "c" else 2] for agent in agents}
        return {agent: np.array(values, np.float32) for agent, values in seen.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.acting(self.t, self.length)), (self.t, actions)
        self.t += 1
        over = self.t == self.length
        there = [agent for agent in "abc" if agent != "b" or self.t <= 4] if over else self.acting(self.t, self.length)
        there += ["b"] if self.t == 4 else []
        rewards = {"a": 1.0, **({"b": 10.0} if self.t <= 4 else {}), "c": 100.0}
        ends = {"__all__": over and not self.options.get("truncates"), **({"b": True} if self.t == 4 else {})}
        return self._obs(there), rewards, ends, {"__all__": over and bool(self.options.get("truncates"))}, {}

    @staticmethod
    def acting(t: int, length: int) -> list[str]:
        """Return who acts at a time."""
        everyone = [*"a", *("b" if t % 2 == 0 and t < 4 else ""), *("c" if t >= 2 else "")]
        return [] if t in (3, length) else everyone


def telling(game: type) -> type:
    """Return a kind of game that tells its state, for a resume in the middle of an episode."""

    def get_env_state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("options", "closed")}

    def set_env_state(self: Any, state: dict[str, Any]) -> None:
        vars(self).update(state)

    return type(f"Telling{game.__name__}", (game,), {"get_env_state": get_env_state, "set_env_state": set_env_state})


TellingCountingGame, TellingTurnGame, TellingDictGame = map(telling, (CountingGame, TurnGame, DictGame))


class BitGame(Game):
    """One step: `x` gets 1 for the bit that it sees, `y` 1 for the other one (`alike=True`: too)."""

    possible_agents = ("x", "y")

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng(seed)
        self.agents = ["x", "y"]
        self.bits = {agent: int(rng.integers(2)) for agent in self.agents}
        return self._obs(), {agent: {} for agent in self.agents}

    def _obs(self) -> dict[str, np.ndarray]:
        return {agent: np.array([bit, "xy".index(agent)], np.float32) for agent, bit in self.bits.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        right = {agent: agent == "x" or bool(self.options.get("alike")) for agent in self.agents}
        rewards = {agent: float((actions[agent] == self.bits[agent]) == right[agent]) for agent in self.agents}
        ends, no, infos = (dict.fromkeys(self.agents, value) for value in (True, False, {}))
        self.agents = []
        return self._obs(), rewards, ends, no, infos


class Duel(Game):
    """One step: whoever takes action 1 against a 0 wins 1 from the other; every episode ends with it."""

    possible_agents = ("x", "y")

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = ["x", "y"]
        return self._obs(), {agent: {} for agent in self.agents}

    def _obs(self) -> dict[str, np.ndarray]:
        return {agent: np.array([1.0, "xy".index(agent)], np.float32) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == {"x", "y"}
        gain = float(actions["x"] - actions["y"])
        obs, ends, no, infos = self._obs(), *(dict.fromkeys(self.agents, value) for value in (True, False, {}))
        self.agents = []
        return obs, {"x": gain, "y": -gain}, ends, no, infos


def to_module(agent: str, episode: Any) -> str:
    """`a` and `x` have a module of their own, the others share one."""
    return "first" if agent in "ax" else "others"


def game_config(env: Any = CountingGame, algorithm: Any = PPOConfig, *, num_envs: int = 2, **sections: Any) -> Any:
    """Two modules of 8 units, 16 steps an update, two updates an epoch."""
    config = algorithm().environment(env)
    config.multi_agent(policies=["first", "others"], policy_mapping_fn=to_module)
    config.rl_module(model_config={"hiddens": (8,)})
    config.env_runners(num_envs_per_env_runner=num_envs)
    config.training(train_batch_size=16)
    config.evaluation(evaluation_duration=3, evaluation_num_envs=2)
    config.reporting(total_steps=64, steps_per_epoch=32)
    config.debugging(seed=3)
    for name, options in sections.items():
        getattr(config, name)(**options)
    if config.is_off_policy:
        config.replay(capacity=400, learning_starts=16, update_per_step=0.5)
    if algorithm is PPOConfig and config.minibatch_size == "auto":
        config.training(minibatch_size=8, num_epochs=2)
    return config


class SetGame:
    """A dict environment that makes all its dicts from sets of names, and whose state depends on the actions' order.

    `form` says where the agents are named: in `possible_agents` as a list or a set, or in `observation_spaces` only.
    """

    names = ("wolf", "hare", "stork", "fox", "newt", "owl")

    def __init__(self, form: str = "list", length: int = 5) -> None:
        self.length = length
        self.observation_spaces, self.action_spaces = dict.fromkeys(self.names, OBS), dict.fromkeys(self.names, TWO)
        if form != "spaces":
            self.possible_agents = list(self.names) if form == "list" else set(self.names)
        self.orders: list[list[str]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t, self.value = 0, float(seed or 0) % 7
        return self._of_all(lambda agent: self._obs(agent)), {}

    def _obs(self, agent: str) -> np.ndarray:
        return np.array([self.value, self.names.index(agent)], np.float32)

    def _of_all(self, value_of: Any) -> dict[str, Any]:
        return {agent: value_of(agent) for agent in set(self.names)}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.orders.append(list(actions))
        self.t += 1
        for agent, action in actions.items():
            self.value = (self.value * 1.7 + self.names.index(agent) * (1 + action)) % 10.0
        ends, no = self._of_all(lambda agent: self.t == self.length), self._of_all(lambda agent: False)
        return self._of_all(self._obs), self._of_all(lambda agent: self.value), ends, no, self._of_all(lambda agent: {})


class ParallelSetGame(SetGame):
    """The same in PettingZoo's parallel form."""

    def __init__(self, form: str = "list", length: int = 5) -> None:
        super().__init__(form, length)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return OBS

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return TWO

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.names)
        return super().reset(seed=seed, options=options)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        outcome = super().step(actions)
        if self.t == self.length:
            self.agents = []
        return outcome
