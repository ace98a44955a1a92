"""Probe environments, each with one thing to learn and its exact answer, and small environments with one difficulty.

An algorithm that fails a probe is wrong, and the probe that it fails shows where: the regression of the value
(`ConstantProbe`), the path from the observation to the value (`ObservationProbe`), discounting and bootstrapping
(`DiscountProbe`), the policy gradient (`ActionProbe`), both together (`ObservationActionProbe`), bootstrapping after
truncation but not after termination (`TruncationProbe`), and the memory of a recurrent network (`MemoryProbe`).

Every probe has

    observations            every observation that is acted on, as tuples of floats
    exact_value(obs, gamma) value of an observation under the best policy (any policy, if actions do not matter)
    best_action(obs)        the best action; None if actions do not matter
    best_return             the undiscounted mean return of an episode under the best policy

and the id `lockstep/<name>-v0` (see `register_environments`). `BitFlipping` needs learning from reached goals, and
`SparseMaze` needs exploration.
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
"""Best action of the continuous probes; with an observation of -1 or 1, it is multiplied by the observation."""
Obs = npt.NDArray[np.float32]
Action = Any
StepAnswer = tuple[Obs, float, bool, bool, dict[str, Any]]
Bits = npt.NDArray[np.float32]
Info = Any
"""An info or an array of infos, which is not used."""
GoalFunction = Callable[[Any, Any, Any], Any]
"""Function `f(achieved_goal [N, ...], desired_goal [N, ...], info) -> [N]`."""


class Probe(gym.Env[Obs, Action]):
    """Base class of the probes: observations are Box (1,), actions Discrete(2) or Box (1,) within [-1, 1].

    By default an episode has one step, whose last observation equals the first one.
    """

    metadata = {"render_modes": []}
    observations: ClassVar[tuple[tuple[float], ...]] = ((0.0,),)
    """Every observation that is acted on."""
    best_return: ClassVar[float] = 1.0
    """Undiscounted mean return of an episode under the best policy."""
    continuous: ClassVar[bool] = False
    """True for actions in Box (1,)."""
    state_attributes: ClassVar[tuple[str, ...]] = ("current",)
    """Names of the attributes that are the environment's state; see `lockstep.envs.env_state`."""

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
        """Return the best action at an observation; None if actions do not matter."""
        return None

    def _first(self) -> float:
        """Draw the first observation of an episode."""
        index = int(self.np_random.integers(len(self.observations)))
        return self.observations[index][0]

    def _observe(self) -> Obs:
        return np.array([self.current], dtype=np.float32)

    def _reward(self, action: Action) -> float:
        return 1.0


class ConstantProbe(Probe):
    """Probe with observation 0, reward 1 and one step. The value is 1. Fails if the value is not learned at all."""


class ObservationProbe(Probe):
    """Probe with observation -1 or 1 and a reward equal to it. The value is the observation."""

    observations = ((-1.0,), (1.0,))
    best_return = 0.0

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        return float(observation[0])

    def _reward(self, action: Action) -> float:
        return self.current


class DiscountProbe(Probe):
    """Probe with observation 0, then 1, and reward 0, then 1. The values are gamma and 1."""

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
    """Probe with reward 1 for action 1 and -1 for action 0. The value under the best policy is 1."""

    def best_action(self, observation: Sequence[float]) -> Action:
        return 1

    def _reward(self, action: Action) -> float:
        return 1.0 if int(action) == self.best_action([self.current]) else -1.0


class ActionProbeContinuous(Probe):
    """Probe with reward `1 - (action - 0.5)^2`. The best action is 0.5, and its value is 1."""

    continuous = True

    def best_action(self, observation: Sequence[float]) -> Action:
        return np.array([BEST_CONTINUOUS], dtype=np.float32)

    def _reward(self, action: Action) -> float:
        best = float(self.best_action([self.current])[0])
        return 1.0 - (float(np.asarray(action).reshape(-1)[0]) - best) ** 2


class ObservationActionProbe(ActionProbe):
    """Probe with observation -1 or 1. Reward 1 for action 0 at -1 and action 1 at 1, else -1. The value is 1."""

    observations = ((-1.0,), (1.0,))

    def best_action(self, observation: Sequence[float]) -> Action:
        return int(float(observation[0]) > 0.0)


class ObservationActionProbeContinuous(ActionProbeContinuous):
    """Probe with observation -1 or 1 and reward `1 - (action - 0.5 observation)^2`. The value is 1."""

    observations = ((-1.0,), (1.0,))

    def best_action(self, observation: Sequence[float]) -> Action:
        return np.array([BEST_CONTINUOUS * float(observation[0])], dtype=np.float32)


class TruncationProbe(Probe):
    """Probe with one step and reward 1. Observation -1 terminates the episode, observation 1 truncates it.

    The last observation equals the first one. A terminated episode is worth its reward, 1. A truncated one would have
    continued for ever at the same observation, so it is worth `1 / (1 - gamma)`. An algorithm that bootstraps after
    both learns `1 / (1 - gamma)` twice, and one that bootstraps after neither learns 1 twice. One that bootstraps from
    the first observation of the next episode learns a mixture.
    """

    observations = ((-1.0,), (1.0,))

    def step(self, action: Action) -> StepAnswer:
        truncated = self.current > 0.0
        return self._observe(), 1.0, not truncated, truncated, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        return 1.0 / (1.0 - gamma) if float(observation[0]) > 0.0 else 1.0


class MemoryProbe(ObservationActionProbe):
    """Probe whose first observation, -1 or 1, must be remembered for `delay` steps in which the observation is 0.

    Only the last of `delay + 1` actions counts: reward 1 for action 0 after -1 and action 1 after 1, else -1. Without
    memory nothing is better than a guess, whose mean return is 0.
    """

    delay: ClassVar[int] = 3
    """Number of steps between the observation and the action that depends on it."""
    state_attributes = ("current", "cue", "t")

    def _first(self) -> float:
        self.cue = super()._first()
        self.t = 0
        return self.cue

    def step(self, action: Action) -> StepAnswer:
        self.current = 0.0
        self.t += 1
        is_last = self.t > self.delay
        reward = 0.0
        if is_last:
            reward = 1.0 if int(action) == self.best_action([self.cue]) else -1.0
        return self._observe(), reward, is_last, False, {}

    def exact_value(self, observation: Sequence[float], gamma: float) -> float:
        """Return the value of the first observation; the reward follows `delay` steps later."""
        return gamma**self.delay


class CompositeProbe(Probe):
    """Probe with a nested action and a mask for each choice.

    The best action depends on the observation, and its value is 1.

    The action is `{"arm": (gear, steering), "lights": (first, second)}`: Discrete, Box and MultiDiscrete. The reward is
    a third for each correct choice, minus the squared distance of the steering from `0.5 observation`. An action that
    the mask forbids raises `ValueError`.

    Args:
        flat_mask: Give the mask as one vector instead of a structure like the action's.
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
        with_mask: Any = spaces.Dict(observations=box, action_mask=mask)
        self.observation_space = with_mask

    def best_action(self, observation: Sequence[float]) -> Action:
        right = int(float(observation[0]) > 0.0)
        steering = np.array([BEST_CONTINUOUS * float(observation[0])], dtype=np.float32)
        return {"arm": (2 + right, steering), "lights": np.array([right, 1 + right])}

    def _allowed(self) -> npt.NDArray[np.int8]:
        """Return the mask of the 3 gears, the 2 states of the first and the 3 states of the second light."""
        return np.array([0, 1, 1, 1, 1, 1, 1, 0] if self.current < 0.0 else [1, 0, 1, 0, 1, 1, 1, 1], np.int8)

    def _observe(self) -> Any:
        mask = self._allowed()
        action_mask = mask if self.flat_mask else {"arm": (mask[:3],), "lights": mask[3:]}
        return {"observations": super()._observe(), "action_mask": action_mask}

    def _reward(self, action: Action) -> float:
        mask = self._allowed()
        best = self.best_action([self.current])
        gear, steering = action["arm"]
        first, second = action["lights"]
        if not self.action_space.contains(action) or not (mask[gear - 1] and mask[3 + first] and mask[5 + second]):
            raise ValueError(f"{action} is not allowed; the mask is {mask}")
        best_gear, best_steering = best["arm"]
        correct = int(gear == best_gear) + int((action["lights"] == best["lights"]).sum())
        return correct / 3.0 - float(steering[0] - best_steering[0]) ** 2


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
"""Probes that every algorithm solves with any network."""
MEMORY_PROBES: tuple[type[Probe], ...] = (MemoryProbe,)
"""Probes that only a network with memory solves."""
COMPOSITE_PROBES: tuple[type[Probe], ...] = (CompositeProbe,)
"""Probes for algorithms that support Dict action spaces."""


# -- goals ---


class BitFlipping(gym.Env[Any, Any]):
    """Bits that must become equal to a goal, flipping one in each step (Andrychowicz et al. 2017, arXiv:1707.01495).

    The reward is -1 in each step, and 0 in the step that reaches the goal, which terminates the episode. An episode is
    truncated after `num_bits` steps. Each episode draws new bits and a goal that differs from them. With more than
    about 12 bits the goal is never reached by chance, so that nothing is learned from the desired goals; hindsight
    replay learns from the goals that were reached instead.

    Observations are dicts with `observation` and `achieved_goal` (the bits) and `desired_goal`, all zeros and ones. The
    best return is `1 - d` if d bits differ, about `1 - num_bits / 2` in the mean.

    Args:
        num_bits: Number of bits.
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
        """Draw new bits and a goal that differs from them."""
        super().reset(seed=seed)
        self.t = 0
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.num_bits)).astype(np.float32)
        if np.array_equal(self.bits, self.goal):
            self.goal[self.np_random.integers(self.num_bits)] += 1.0
            self.goal %= 2.0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flip the bit `action`."""
        self.bits = self.bits.copy()  # the last observation has the same array
        self.bits[action] = 1.0 - self.bits[action]
        self.t += 1
        reached = bool(self.compute_terminated(self.bits, self.goal, {}))
        return self._observe(), 0.0 if reached else -1.0, reached, not reached and self.t >= self.num_bits, {}

    def compute_reward(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return the rewards `[...]` of goals `[..., n]`: 0 where the goal is reached, else -1."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, info: Info) -> npt.NDArray[Any]:
        """Return bool `[...]`, True where the goal `[..., n]` is reached."""
        return np.asarray((np.asarray(achieved_goal) == np.asarray(desired_goal)).all(-1))

    def _observe(self) -> dict[str, npt.NDArray[np.float32]]:
        return {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}


# -- exploration ---


class SparseMaze(gym.Env[Any, Any]):
    """Maze whose only reward, 1, is at its exit.

    The `size` x `size` cells form a tree. So exactly one path leads from the first cell to the exit, which is the cell
    farthest from it; all other branches are dead ends. An episode terminates at the exit, and is truncated after four
    times the length of the path, in which an agent that moves at random does not arrive.

    Observations are the number of the cell, Discrete(`size * size`). Actions are up, right, down and left. A step into
    a wall changes nothing.

    Args:
        size: Number of rows and of columns.
        layout: Seed of the maze.
    """

    metadata = {"render_modes": []}
    state_attributes = ("cell", "t")

    def __init__(self, size: int = 7, layout: int = 0) -> None:
        self.size = check_whole("size", size, 2)
        self.observation_space = spaces.Discrete(size * size)
        self.action_space = spaces.Discrete(4)
        self.next_cells = self._carve(np.random.default_rng(check_whole("layout", layout, 0)))
        """Cell that each action leads to, int64 `[cells, 4]`."""
        distances = self._distances()
        self.exit = int(distances.argmax())
        """Number of the cell to be reached."""
        self.distance = int(distances.max())
        """Number of steps from the first cell to the exit."""
        self.cell = 0
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return to the first cell."""
        super().reset(seed=seed)
        self.cell = 0
        self.t = 0
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move to the next cell, unless there is a wall."""
        self.cell = int(self.next_cells[self.cell, action])
        self.t += 1
        at_exit = self.cell == self.exit
        truncated = not at_exit and self.t >= 4 * self.distance
        return self.cell, float(at_exit), at_exit, truncated, {}

    def _carve(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return `next_cells` of a random maze (depth-first search).

        A walk continues to a random neighbour that it has not visited, opening the wall between them. At a dead end it
        goes back along its path.
        """
        cells = np.arange(self.size * self.size)
        next_cells = np.repeat(cells[:, None], 4, axis=1)  # at first every action leads into a wall
        visited = {0}
        path = [0]
        while path:
            row, column = divmod(path[-1], self.size)
            neighbours = ((row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1))
            moves = [
                (action, r * self.size + c)
                for action, (r, c) in enumerate(neighbours)
                if 0 <= r < self.size and 0 <= c < self.size and r * self.size + c not in visited
            ]
            if not moves:
                path.pop()
                continue
            action, cell = moves[rng.integers(len(moves))]
            opposite = (action + 2) % 4
            next_cells[path[-1], action] = cell
            next_cells[cell, opposite] = path[-1]
            visited.add(cell)
            path.append(cell)
        return next_cells

    def _distances(self) -> npt.NDArray[np.int64]:
        """Return the distance of each cell from the first one in steps, `[cells]` (breadth-first search)."""
        distances = np.full(self.size * self.size, -1)
        front = np.array([0])
        for steps in range(len(distances)):
            distances[front] = steps
            reached = np.unique(self.next_cells[front])
            front = reached[distances[reached] < 0]
        return distances


def goal_functions(env: object) -> tuple[GoalFunction, GoalFunction | None]:
    """Return the methods `compute_reward` and `compute_terminated` of an environment, or tensor environments, with
    goals.

    The names are gymnasium-robotics'. The second is None if the environment does not have it.

    Raises:
        ValueError: The environment has no `compute_reward`.
    """
    base: Any = getattr(env, "unwrapped", env)
    compute_reward = getattr(base, "compute_reward", None)
    if not callable(compute_reward):
        raise ValueError(
            f"{type(base).__name__} has no compute_reward(achieved_goal, desired_goal, info), which hindsight replay "
            "needs; write it, or give the collector an HERVectorReplayBuffer with a function of your own"
        )
    compute_terminated = getattr(base, "compute_terminated", None)
    return compute_reward, compute_terminated if callable(compute_terminated) else None


def register_environments() -> None:
    """Register the ids `lockstep/<name>-v0` of the environments of this package with gymnasium.

    May be called again. `make_vector` calls it for ids that begin with `lockstep/`.
    """
    probes = PROBES + MEMORY_PROBES + COMPOSITE_PROBES
    entry_points = {probe.__name__: f"{__name__}:{probe.__name__}" for probe in probes}
    for name in ("PrivilegedProbe", "HistoryProbe"):
        entry_points[name] = f"lockstep.envs.toys.privileged:{name}"
    entry_points["Counting"] = "lockstep.envs.toys.counting:CountingEnv"
    for name in ("BitFlipping", "SparseMaze"):
        entry_points[name] = f"{__name__}:{name}"
    time_limits = {"StatelessCartPole": 500, "StatelessPendulum": 200}
    entry_points |= {name: f"lockstep.envs.toys.stateless:{name}" for name in time_limits}
    for name, entry_point in entry_points.items():
        env_id = f"lockstep/{name}-v0"
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point, max_episode_steps=time_limits.get(name))
