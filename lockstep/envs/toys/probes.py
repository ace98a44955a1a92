"""Probe environments: one thing to learn each, with the exact answer; and bit flipping, the smallest one with goals.

An algorithm that fails a probe is wrong, and which probe it fails tells where: the value's regression
(`ConstantProbe`), the way of the observation to the value (`ObservationProbe`), discounting and bootstrapping
(`DiscountProbe`), the policy's gradient (`ActionProbe`), both together (`ObservationActionProbe`), whether truncation
bootstraps where termination does not (`TruncationProbe`), and whether a recurrent network remembers (`MemoryProbe`).

Every probe has

    observations            every observation that is acted on, as tuples of floats
    exact_value(obs, gamma) the value of the best policy there (any policy, where actions do not matter)
    best_action(obs)        the best action; None where actions do not matter
    best_return             the undiscounted mean return of an episode under the best policy

and, as an id, `lockstep/<name>-v0` (see `register_environments`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from lockstep.options.checks import check_whole

BEST_CONTINUOUS = 0.5
"""The best action of the continuous probes, to be multiplied by the observation where that matters."""
Obs = npt.NDArray[np.float32]
Action = Any
StepAnswer = tuple[Obs, float, bool, bool, dict[str, Any]]
Bits = npt.NDArray[np.float32]
Info = Any
"""One info, or an array of them; not looked at."""
GoalFunction = Callable[[Any, Any, Any], Any]
"""`f(achieved_goal [N, ...], desired_goal [N, ...], info) -> [N]`"""


class Probe(gym.Env[Obs, Action]):
    """Base of the probes: observations are Box (1,), actions Discrete(2) or Box (1,) within [-1, 1].

    An episode has one step, unless a probe says otherwise, and its last observation is the first one.
    """

    metadata = {"render_modes": []}
    observations: ClassVar[tuple[tuple[float], ...]] = ((0.0,),)
    best_return: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False
    state_attributes: ClassVar[tuple[str, ...]] = ("current",)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        self.action_space: spaces.Space = spaces.Discrete(2)
        if self.continuous:
            self.action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        self.current = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode with its first observation."""
        super().reset(seed=seed)
        self.current = self._first()
        return self._observe(), {}

    def step(self, action: Action) -> StepAnswer:
        """Take a step of the episode."""
        return self._observe(), self._reward(action), True, False, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        """Return the value of the best policy at an observation, discounted with `gamma`."""
        return 1.0

    def best_action(self, observation: Sequence[float]) -> Action:
        """Return the best action at an observation; None where actions do not matter."""
        return None

    def _first(self) -> float:
        return self.observations[int(self.np_random.integers(len(self.observations)))][0]

    def _observe(self) -> Obs:
        return np.array([self.current], dtype=np.float32)

    def _reward(self, action: Action) -> float:
        return 1.0


class ConstantProbe(Probe):
    """Observation 0, reward 1, one step: the value is 1. Fails where the value does not learn at all."""


class ObservationProbe(Probe):
    """Observation -1 or 1, reward equal to it: the value is the observation."""

    observations = ((-1.0,), (1.0,))
    best_return = 0.0

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        return float(observation[0])

    def _reward(self, action: Action) -> float:
        return self.current


class DiscountProbe(Probe):
    """Observation 0, then 1; reward 0, then 1: the values are gamma and 1."""

    observations = ((0.0,), (1.0,))

    def step(self, action: Action) -> StepAnswer:
        if self.current == 0.0:
            self.current = 1.0
            return self._observe(), 0.0, False, False, {}
        return self._observe(), 1.0, True, False, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        return 1.0 if float(observation[0]) == 1.0 else gamma

    def _first(self) -> float:
        return 0.0


class ActionProbe(Probe):
    """Reward 1 for action 1, -1 for action 0: the value under the best policy is 1."""

    def best_action(self, observation: Sequence[float]) -> Action:
        return 1

    def _reward(self, action: Action) -> float:
        return 1.0 if int(action) == self.best_action([self.current]) else -1.0


class ActionProbeContinuous(Probe):
    """Reward `1 - (action - 0.5)^2`: the best action is 0.5, its value 1."""

    continuous = True

    def best_action(self, observation: Sequence[float]) -> Action:
        return np.array([BEST_CONTINUOUS], dtype=np.float32)

    def _reward(self, action: Action) -> float:
        best = float(self.best_action([self.current])[0])
        return 1.0 - (float(np.asarray(action).reshape(-1)[0]) - best) ** 2


class ObservationActionProbe(ActionProbe):
    """Observation -1 or 1; reward 1 for action 0 at -1 and action 1 at 1, else -1: the value is 1."""

    observations = ((-1.0,), (1.0,))

    def best_action(self, observation: Sequence[float]) -> Action:
        return int(float(observation[0]) > 0.0)


class ObservationActionProbeContinuous(ActionProbeContinuous):
    """Observation -1 or 1; reward `1 - (action - 0.5 observation)^2`: the value is 1."""

    observations = ((-1.0,), (1.0,))

    def best_action(self, observation: Sequence[float]) -> Action:
        return np.array([BEST_CONTINUOUS * float(observation[0])], dtype=np.float32)


class TruncationProbe(Probe):
    """One step, reward 1, and the last observation is the first one: -1 terminates, 1 truncates.

    A terminated episode is worth its reward, 1. A truncated one would have gone on for ever at the same observation: it
    is worth `1 / (1 - gamma)`. Who bootstraps both gets `1 / (1 - gamma)` twice, who bootstraps none 1 twice, and who
    takes the first observation of the next episode for the last one of this gets a mixture.
    """

    observations = ((-1.0,), (1.0,))

    def step(self, action: Action) -> StepAnswer:
        truncated = self.current > 0.0
        return self._observe(), 1.0, not truncated, truncated, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        return 1.0 / (1.0 - gamma) if float(observation[0]) > 0.0 else 1.0


class MemoryProbe(ObservationActionProbe):
    """The first observation, -1 or 1, has to be remembered for `delay` steps in which the observation is 0.

    Only the last of `delay + 1` actions counts: reward 1 for action 0 after -1 and action 1 after 1, else -1. Without
    memory nothing is better than a guess, whose mean return is 0.
    """

    delay: ClassVar[int] = 3
    state_attributes = ("current", "cue", "t")

    def _first(self) -> float:
        self.cue, self.t = super()._first(), 0
        return self.cue

    def step(self, action: Action) -> StepAnswer:
        self.current, self.t = 0.0, self.t + 1
        last = self.t > self.delay
        reward = (1.0 if int(action) == self.best_action([self.cue]) else -1.0) if last else 0.0
        return self._observe(), reward, last, False, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        """Return the value at the first observation: the reward comes `delay` steps later."""
        return gamma**self.delay


class CompositeProbe(Probe):
    """A nested action with a mask for each choice; the best action is another one at each observation, and is worth 1.

    The action is `{"arm": (gear, steering), "lights": (first, second)}`: Discrete, Box and MultiDiscrete. The reward is
    a third for each choice that is right, minus the squared distance of the steering from `0.5 observation`. Raises
    `ValueError` for an action that the mask forbids. The mask is built like the action; `flat_mask=True`: a vector.
    """

    observations = ((-1.0,), (1.0,))

    def __init__(self, flat_mask: bool = False) -> None:
        super().__init__()
        self.flat_mask = flat_mask
        box: Any = self.observation_space
        arm = spaces.Tuple([spaces.Discrete(3, start=1), box])
        self.action_space = spaces.Dict(arm=arm, lights=spaces.MultiDiscrete([2, 3]))
        masks = spaces.Dict(arm=spaces.Tuple([spaces.MultiBinary(3)]), lights=spaces.MultiBinary(5))
        mask = spaces.MultiBinary(8) if flat_mask else masks
        seen: Any = spaces.Dict(observations=box, action_mask=mask)
        self.observation_space = seen

    def best_action(self, observation: Sequence[float]) -> Action:
        right = int(float(observation[0]) > 0.0)
        steering = np.array([BEST_CONTINUOUS * float(observation[0])], dtype=np.float32)
        return {"arm": (2 + right, steering), "lights": np.array([right, 1 + right])}

    def _allowed(self) -> npt.NDArray[np.int8]:
        """Return the mask of the gears, the first and the second light."""
        return np.array([0, 1, 1, 1, 1, 1, 1, 0] if self.current < 0.0 else [1, 0, 1, 0, 1, 1, 1, 1], np.int8)

    def _observe(self) -> Any:
        mask = self._allowed()
        both = mask if self.flat_mask else {"arm": (mask[:3],), "lights": mask[3:]}
        return {"observations": super()._observe(), "action_mask": both}

    def _reward(self, action: Action) -> float:
        mask, best = self._allowed(), self.best_action([self.current])
        (gear, steering), (first, second) = action["arm"], action["lights"]
        if not self.action_space.contains(action) or not (mask[gear - 1] and mask[3 + first] and mask[5 + second]):
            raise ValueError(f"{action} is not allowed; the mask is {mask}")
        right = int(gear == best["arm"][0]) + int((action["lights"] == best["lights"]).sum())
        return right / 3.0 - float(steering[0] - best["arm"][1][0]) ** 2


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
"""The probes that every algorithm learns with any network."""
MEMORY_PROBES: tuple[type[Probe], ...] = (MemoryProbe,)
"""The probes that only a network with memory learns."""
COMPOSITE_PROBES: tuple[type[Probe], ...] = (CompositeProbe,)
"""The probes of algorithms that take a Dict of actions."""


# -- goals ---


class BitFlipping(gym.Env[Any, Any]):
    """Make some bits equal to others, flipping one in each step (Andrychowicz et al. 2017, arXiv:1707.01495).

    Reward -1 for each step, 0 for the one that reaches the goal, which terminates the episode; truncated after
    `num_bits` steps. Beginning and goal are drawn anew for each episode, different ones. For more than about 12 bits
    the goal is never met by chance, so that nothing is learned from the goals that were wanted, only from those that
    were reached.

    Observations are dicts with `observation` and `achieved_goal` (the bits) and `desired_goal`, zeros and ones. With
    `num_bits` n the best return is `1 - d` where d bits differ, about `1 - n / 2` in the mean.
    """

    metadata = {"render_modes": []}
    state_attributes = ("bits", "goal", "t")

    def __init__(self, num_bits: int = 15) -> None:
        self.num_bits = num_bits = check_whole("num_bits", num_bits, 1)
        box = spaces.Box(0.0, 1.0, (num_bits,), np.float32)
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = spaces.Discrete(num_bits)
        self.bits = np.zeros(num_bits, np.float32)
        self.goal = np.zeros(num_bits, np.float32)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw new bits and another goal."""
        super().reset(seed=seed)
        self.t = 0
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.num_bits)).astype(np.float32)
        if np.array_equal(self.bits, self.goal):
            self.goal[self.np_random.integers(self.num_bits)] += 1.0
            self.goal %= 2.0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flip the bit `action`."""
        self.bits = self.bits.copy()
        self.bits[action] = 1.0 - self.bits[action]
        self.t += 1
        reached = bool(self.compute_terminated(self.bits, self.goal, {}))
        return self._observe(), 0.0 if reached else -1.0, reached, not reached and self.t >= self.num_bits, {}

    def compute_reward(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return 0 where the goal `[..., n]` is reached, else -1; `[...]`."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return where the goal `[..., n]` is reached, bool `[...]`."""
        return np.asarray((np.asarray(achieved_goal) == np.asarray(desired_goal)).all(-1))

    def _observe(self) -> dict[str, npt.NDArray[np.float32]]:
        return {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}


# -- exploration ---


class SparseMaze(gym.Env[Any, Any]):
    """Find the way out of a maze; reward 1 at its end, and 0 everywhere before.

    The `size` x `size` cells form a tree, the same for each `layout`: there is one way from the first cell to the exit,
    the cell that is farthest from it, with dead ends beside it. An episode terminates at the exit and is truncated
    after four times as many steps as the way has, in which an agent that moves at random does not get there.

    Observations are the number of the cell, Discrete(`size * size`); actions are up, right, down and left. A step into
    a wall changes nothing.
    """

    metadata = {"render_modes": []}
    state_attributes = ("cell", "t")

    def __init__(self, size: int = 7, layout: int = 0) -> None:
        self.size = check_whole("size", size, 2)
        self.observation_space = spaces.Discrete(size * size)
        self.action_space = spaces.Discrete(4)
        self.next_cells = self._carve(np.random.default_rng(check_whole("layout", layout, 0)))
        """`[cells, 4]`, where each action leads"""
        distances = self._distances()
        self.exit, self.distance = int(distances.argmax()), int(distances.max())
        """the cell to be reached, and its distance from the first one in steps"""
        self.cell = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Go back to the first cell."""
        super().reset(seed=seed)
        self.cell = self.t = 0
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move where there is no wall."""
        self.cell = int(self.next_cells[self.cell, action])
        self.t += 1
        found = self.cell == self.exit
        return self.cell, float(found), found, not found and self.t >= 4 * self.distance, {}

    def _carve(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return `next_cells` of a maze made by a walk that goes back where it is stuck (depth-first search)."""
        cells = np.arange(self.size * self.size)
        next_cells, seen, way = np.repeat(cells[:, None], 4, axis=1), {0}, [0]
        while way:
            row, column = divmod(way[-1], self.size)
            around = ((row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1))
            fresh = [
                (action, r * self.size + c)
                for action, (r, c) in enumerate(around)
                if 0 <= r < self.size and 0 <= c < self.size and r * self.size + c not in seen
            ]
            if not fresh:
                way.pop()
                continue
            action, cell = fresh[rng.integers(len(fresh))]
            next_cells[way[-1], action], next_cells[cell, (action + 2) % 4] = cell, way[-1]
            seen.add(cell)
            way.append(cell)
        return next_cells

    def _distances(self) -> npt.NDArray[np.int64]:
        """Return how many steps each cell is from the first one."""
        distances, front = np.full(self.size * self.size, -1), np.array([0])
        for steps in range(len(distances)):
            distances[front] = steps
            reached = np.unique(self.next_cells[front])
            front = reached[distances[reached] < 0]
        return distances


def goal_functions(env: gym.Env[Any, Any]) -> tuple[GoalFunction, GoalFunction | None]:
    """Return `compute_reward` of an environment with goals and, where it has one, `compute_terminated`.

    gymnasium-robotics names them so.

    Raises:
        ValueError: it has no `compute_reward`.
    """
    base: Any = env.unwrapped
    compute_reward = getattr(base, "compute_reward", None)
    if not callable(compute_reward):
        raise ValueError(
            f"{type(base).__name__} has no compute_reward(achieved_goal, desired_goal, info), which hindsight replay "
            "needs; write it, or give the collector an HERVectorReplayBuffer with a function of your own"
        )
    compute_terminated = getattr(base, "compute_terminated", None)
    return compute_reward, compute_terminated if callable(compute_terminated) else None


def register_environments() -> None:
    """Make the ids `lockstep/<name>-v0` of the environments of this package known to gymnasium.

    May be called again. `make_vector` calls this for ids that begin with `lockstep/`.
    """
    probes = PROBES + MEMORY_PROBES + COMPOSITE_PROBES
    entry_points = {probe.__name__: f"{__name__}:{probe.__name__}" for probe in probes}
    entry_points["Counting"] = "lockstep.envs.toys.counting:CountingEnv"
    for name in ("BitFlipping", "SparseMaze"):
        entry_points[name] = f"{__name__}:{name}"
    lengths = {"StatelessCartPole": 500, "StatelessPendulum": 200}
    entry_points |= {name: f"lockstep.envs.toys.stateless:{name}" for name in lengths}
    for name, entry_point in entry_points.items():
        if f"lockstep/{name}-v0" not in gym.registry:
            gym.register(f"lockstep/{name}-v0", entry_point=entry_point, max_episode_steps=lengths.get(name))
