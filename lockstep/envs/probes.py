"""Probe environments: one thing to learn each, with the exact answer.

An algorithm that fails a probe is wrong, and which probe it fails tells where: the value's regression
(`ConstantProbe`), the way of the observation to the value (`ObservationProbe`), discounting and bootstrapping
(`DiscountProbe`), the policy's gradient (`ActionProbe`), both together (`ObservationActionProbe`), and
whether truncation bootstraps where termination does not (`TruncationProbe`), and whether a recurrent network
remembers (`MemoryProbe`).

Every probe has

    observations            every observation that is acted on, as tuples of floats
    exact_value(obs, gamma) the value of the best policy there (any policy, where actions do not matter)
    best_action(obs)        the best action; None where actions do not matter
    best_return             the undiscounted mean return of an episode under the best policy

and, as an id, ``lockstep/<name>-v0`` (see `register_environments`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

BEST_CONTINUOUS = 0.5
"""The best action of the continuous probes, to be multiplied by the observation where that matters."""


class Probe(gym.Env[npt.NDArray[np.float32], Any]):
    """Base of the probes: observations are Box (1,), actions Discrete(2) or Box (1,) within [-1, 1]."""

    metadata = {"render_modes": []}
    observations: ClassVar[tuple[tuple[float], ...]] = ((0.0,),)
    best_return: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        self.action_space: spaces.Space = spaces.Discrete(2)
        if self.continuous:
            self.action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        self.current = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode with its first observation."""
        super().reset(seed=seed)
        self.current = self._first()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """The only step of an episode, unless a probe says otherwise; the last observation is the first."""
        return self._observe(), self._reward(action), True, False, {}

    def exact_value(self, observation: Any, gamma: float) -> float:
        """The value of the best policy at an observation, discounted with ``gamma``."""
        return 1.0

    def best_action(self, observation: Any) -> Any:
        """The best action at an observation; None where actions do not matter."""
        return None

    def get_env_state(self) -> dict[str, Any]:
        """The current observation."""
        return {"current": self.current}

    def set_env_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_env_state` gave."""
        self.current = float(state["current"])

    def _first(self) -> float:
        return self.observations[int(self.np_random.integers(len(self.observations)))][0]

    def _observe(self) -> npt.NDArray[np.float32]:
        return np.array([self.current], dtype=np.float32)

    def _reward(self, action: Any) -> float:
        return 1.0


class ConstantProbe(Probe):
    """Observation 0, reward 1, one step: the value is 1. Fails where the value does not learn at all."""


class ObservationProbe(Probe):
    """Observation -1 or 1, reward equal to it: the value is the observation."""

    observations = ((-1.0,), (1.0,))
    best_return = 0.0

    def exact_value(self, observation: Any, gamma: float) -> float:
        """The observation itself."""
        return float(observation[0])

    def _reward(self, action: Any) -> float:
        return self.current


class DiscountProbe(Probe):
    """Observation 0, then 1; reward 0, then 1: the values are gamma and 1."""

    observations = ((0.0,), (1.0,))

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """The first step leads to observation 1, the second ends with reward 1."""
        if self.current == 0.0:
            self.current = 1.0
            return self._observe(), 0.0, False, False, {}
        return self._observe(), 1.0, True, False, {}

    def exact_value(self, observation: Any, gamma: float) -> float:
        """gamma at the first step, 1 at the second."""
        return 1.0 if float(observation[0]) == 1.0 else gamma

    def _first(self) -> float:
        return 0.0


class ActionProbe(Probe):
    """Reward 1 for action 1, -1 for action 0: the value under the best policy is 1."""

    def best_action(self, observation: Any) -> Any:
        """Action 1."""
        return 1

    def _reward(self, action: Any) -> float:
        return 1.0 if int(action) == 1 else -1.0


class ActionProbeContinuous(Probe):
    """Reward ``1 - (action - 0.5)^2``: the best action is 0.5, its value 1."""

    continuous = True

    def best_action(self, observation: Any) -> Any:
        """0.5."""
        return np.array([BEST_CONTINUOUS], dtype=np.float32)

    def _reward(self, action: Any) -> float:
        return 1.0 - (float(np.asarray(action).reshape(-1)[0]) - BEST_CONTINUOUS) ** 2


class ObservationActionProbe(Probe):
    """Observation -1 or 1; reward 1 for action 0 at -1 and action 1 at 1, else -1: the value is 1."""

    observations = ((-1.0,), (1.0,))

    def best_action(self, observation: Any) -> Any:
        """0 at -1, 1 at 1."""
        return int(float(observation[0]) > 0.0)

    def _reward(self, action: Any) -> float:
        return 1.0 if int(action) == self.best_action([self.current]) else -1.0


class ObservationActionProbeContinuous(Probe):
    """Observation -1 or 1; reward ``1 - (action - 0.5 observation)^2``: the value is 1."""

    observations = ((-1.0,), (1.0,))
    continuous = True

    def best_action(self, observation: Any) -> Any:
        """Half of the observation."""
        return np.array([BEST_CONTINUOUS * float(observation[0])], dtype=np.float32)

    def _reward(self, action: Any) -> float:
        return 1.0 - (float(np.asarray(action).reshape(-1)[0]) - BEST_CONTINUOUS * self.current) ** 2


class TruncationProbe(Probe):
    """One step, reward 1, and the last observation is the first one: -1 terminates, 1 truncates.

    A terminated episode is worth its reward, 1. A truncated one would have gone on for ever at the same
    observation: it is worth ``1 / (1 - gamma)``. Who bootstraps both gets ``1 / (1 - gamma)`` twice, who
    bootstraps none 1 twice, and who takes the first observation of the next episode for the last one of this
    gets a mixture.
    """

    observations = ((-1.0,), (1.0,))

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Ends the episode: terminated at -1, truncated at 1."""
        truncated = self.current > 0.0
        return self._observe(), 1.0, not truncated, truncated, {}

    def exact_value(self, observation: Any, gamma: float) -> float:
        """1 where it terminates, ``1 / (1 - gamma)`` where it is truncated."""
        return 1.0 / (1.0 - gamma) if float(observation[0]) > 0.0 else 1.0


class MemoryProbe(Probe):
    """The first observation, -1 or 1, has to be remembered for `delay` steps in which the observation is 0.

    Only the last action counts: reward 1 for action 0 after -1 and action 1 after 1, else -1. Without memory nothing
    is better than a guess, whose mean return is 0.
    """

    delay: ClassVar[int] = 3
    observations = ((-1.0,), (1.0,))

    def __init__(self) -> None:
        super().__init__()
        self.cue, self.t = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin with the observation to remember."""
        first = super().reset(seed=seed, options=options)
        self.cue, self.t = self.current, 0
        return first

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Zeros, and a reward for the last of `delay + 1` actions."""
        self.current, self.t = 0.0, self.t + 1
        last = self.t > self.delay
        reward = (1.0 if int(action) == self.best_action([self.cue]) else -1.0) if last else 0.0
        return self._observe(), reward, last, False, {}

    def exact_value(self, observation: Any, gamma: float) -> float:
        """At the first observation: the reward comes `delay` steps later."""
        return gamma**self.delay

    def best_action(self, observation: Any) -> Any:
        """The last action, by the first observation: 0 after -1, 1 after 1."""
        return int(float(observation[0]) > 0.0)

    def get_env_state(self) -> dict[str, Any]:
        """The current and the first observation, and the step."""
        return {"current": self.current, "cue": self.cue, "t": self.t}

    def set_env_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_env_state` gave."""
        self.current, self.cue, self.t = float(state["current"]), float(state["cue"]), int(state["t"])


PROBES: tuple[type[Probe], ...] = (
    ConstantProbe,
    ObservationProbe,
    DiscountProbe,
    ActionProbe,
    ActionProbeContinuous,
    ObservationActionProbe,
    ObservationActionProbeContinuous,
    TruncationProbe,
)
"""what every algorithm learns with any network"""
MEMORY_PROBES: tuple[type[Probe], ...] = (MemoryProbe,)
"""what only a network with memory learns"""


def register_environments() -> None:
    """Make ``lockstep/<probe>-v0``, ``lockstep/Counting-v0`` and ``lockstep/BitFlipping-v0`` known to gymnasium; may
    be called again.

    `make_vector` calls this for ids that begin with ``lockstep/``.
    """
    for probe in PROBES + MEMORY_PROBES:
        _register(f"lockstep/{probe.__name__}-v0", f"{__name__}:{probe.__name__}")
    _register("lockstep/Counting-v0", "lockstep.envs.counting:CountingEnv")
    _register("lockstep/BitFlipping-v0", "lockstep.envs.goals:BitFlipping")


def _register(env_id: str, entry_point: str) -> None:
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=entry_point)
