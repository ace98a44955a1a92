"""Exploration in addition to a policy's own distribution: epsilon-greedy, noise on actions, state-dependent noise.

A collector draws random numbers for many steps at once (`draw_noise`), since drawing step by step costs more than the
numbers. Kinds of exploration with a memory keep a state with a row for each environment, and turn the numbers of a step
into the noise that the actor receives (`advance`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.layers import StateDependentHead, noise_matrices, weight_noise
from lockstep.modules.rl_module import RLModule
from lockstep.ops.arrays import Constant
from lockstep.ops.distributions import Distribution
from lockstep.options.checks import check_whole, is_number, suggestion
from lockstep.options.schedules import Schedule, ScheduleLike

Noise = npt.NDArray[np.float32]
State = dict[str, np.ndarray]
DeviceState = Mapping[str, Tensor]
Generators = Callable[[int], np.random.Generator]
"""Function that returns the random generator of one environment, by its row."""

RANDOM_BONUS = np.float32(1e8)
"""Scale of the numbers that replace action values for a random action. They exceed every difference of action values,
but not the number that forbids an action (-1e9)."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "epsilon": ("epsilon",),
    "normal": ("scale", "mean", "weights"),
    "ou": ("sigma", "theta", "dt", "mean", "weights"),
    "gsde": ("sample_freq", "log_std_init"),
    "noisy": ("sigma",),
}
"""Names of the options of each kind of exploration."""
BOX_KINDS = ("normal", "ou", "gsde")
"""Kinds of exploration that need a Box of actions."""
SCALE = 0.1
"""Standard deviation of normal noise, if the algorithm does not define one."""
SAMPLE_FREQ = 8
"""Number of steps for which gSDE keeps a matrix."""
NOISY_SIGMA = 0.5
"""Initial standard deviation of noise in weights, times the root of a layer's inputs (Fortunato et al. 2018, section
3.2)."""
LOG_STD_INIT = -2.0
"""Initial logarithm of gSDE's deviations. With 64 features of size 1, the deviation of actions is about 1 at first."""


class DevicePolicy(Protocol):
    """Policy with the observations that it acts on, on a device."""

    def distribution(self) -> Distribution:
        """Return the distributions of the actions, from a forward pass of the network."""

    def sample(self) -> Tensor:
        """Return sampled actions `[B, ...]`, from a forward pass of the network."""


class Exploration(ABC):
    """Base class of the random numbers that change a policy's actions during collection."""

    keeps_density = False
    """True if the density of actions is that of the policy's distribution."""
    draws_on_device = False
    """True if the class has the methods whose names end in `_on_device`, and `level` if its noise changes."""
    is_epsilon_greedy = False
    """True if `level` is the probability of a random action."""
    wraps_acting = False
    """True if actions come from the method `act`, which calls the network and may change its weights or its actions.
    False if the actor gets the noise and needs nothing else."""

    def level(self, step: int) -> float:
        """Return the amount of exploration at environment step `step`; 1 if it never changes.

        Raises `ValueError` for a bad number of a schedule.
        """
        return 1.0

    @abstractmethod
    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw random numbers `[*leading_shape, noise_size]` for many actions, at environment step `step`."""

    def initial_state(self, num_envs: int) -> State:
        """Return the state before the first step, `{name: [num_envs, ...]}`; empty for kinds without a state."""
        return {}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the noise for the actor, and update `state` in place.

        Args:
            noise: Random numbers of one step, `[B, D]`.
            state: State of all environments.
            begins: Bool `[B]`, True where an episode begins.
            generators: Function that returns the generator of one environment by its row.
        """
        return noise

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return the result of `act(obs, noise, *state)`, to which classes with `wraps_acting` add their exploration.

        Args:
            act: Method of an actor that returns actions, or actions and the next state.
            obs: Observations.
            noise: Noise from `advance`; None acts without exploration.
            state: State of the actor, if it has one.
        """
        return act(obs, noise, *state)

    # -- on a device: nothing waits for it, and shapes do not depend on values ---

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the random numbers of one step `[num_rows, ...]` on the device of `level`, a tensor without
        dimensions."""
        raise TypeError(f"{type(self).__name__} does not draw on a device")

    def advance_on_device(self, numbers: Tensor, state: DeviceState, begins: Tensor) -> Tensor:
        """Return the noise for the actor, and update `state` in place; see `advance`.

        Args:
            numbers: Random numbers of one step from `draw_on_device`, `[B, ...]`.
            state: State of all environments: `initial_state` as tensors, at the same addresses in each step.
            begins: Bool `[B]`, True where an episode begins.
        """
        return numbers

    def act_on_device(self, policy: DevicePolicy, noise: Tensor) -> Tensor:
        """Return the actions `[B, ...]` of a policy with the noise from `advance_on_device`.

        Args:
            policy: The policy, with the observations that it acts on.
            noise: The noise, in the dtype of the network.
        """
        return policy.distribution().sample_with_noise(noise)


class GaussianNoise(Exploration):
    """Normal noise that is added to actions in [-1, 1].

    Args:
        scale: Standard deviation: a number, or a schedule over sampled environment steps.
        num_actions: Number of action dimensions A.
        mean: Means `[A]` of the dimensions. Defaults to 0.
        weights: Factors `[A]` of the standard deviation. Defaults to 1.
    """

    draws_on_device = True

    def __init__(
        self,
        scale: ScheduleLike,
        num_actions: int,
        mean: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.scale = Schedule(scale, "exploration_noise")
        self.num_actions = num_actions
        self.mean = _dimensions("mean", mean, num_actions)
        self.weights = _dimensions("weights", weights, num_actions)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]` with the deviation at `step`. `ValueError` if it is negative."""
        noise = _normal(rng, (*leading_shape, self.num_actions), self.scale, step)
        if self.weights is not None:
            noise *= self.weights.array
        if self.mean is not None:
            noise += self.mean.array
        return noise

    def level(self, step: int) -> float:
        return _deviation(self.scale, step)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(num_rows, self.num_actions, generator=generator, device=level.device) * level
        if self.weights is not None:
            noise = noise * self.weights.like(noise)
        if self.mean is not None:
            noise = noise + self.mean.like(noise)
        return noise


class OrnsteinUhlenbeckNoise(Exploration):
    """Noise that is correlated in time: `x += theta * (mean - x) * dt + sigma * sqrt(dt) * N(0, 1)`.

    It is 0 before an episode.

    Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, section 3 and its supplement (theta 0.15, sigma 0.2).
    Without a collector's state, every number is the first one of an episode.

    Args:
        num_actions: Number of action dimensions A.
        sigma: Scale of the random part: a number, or a schedule over sampled environment steps.
        theta: Rate at which the noise returns to the mean.
        dt: Length of a step.
        mean: Means `[A]` of the dimensions. Defaults to 0.
        weights: Factors `[A]` of sigma. Defaults to 1.
    """

    draws_on_device = True

    def __init__(
        self,
        num_actions: int,
        sigma: ScheduleLike = 0.2,
        theta: float = 0.15,
        dt: float = 1.0,
        mean: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.sigma = Schedule(sigma, "sigma")
        self.num_actions = num_actions
        self.theta = float(theta)
        self.dt = float(dt)
        self.mean = _dimensions("mean", mean, num_actions)
        self.weights = _dimensions("weights", weights, num_actions)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw the random part of each step, `[*leading_shape, num_actions]`."""
        noise = _normal(rng, (*leading_shape, self.num_actions), self.sigma, step)
        noise *= np.float32(math.sqrt(self.dt))
        if self.weights is not None:
            noise *= self.weights.array
        if self.mean is not None:
            noise += self.mean.array * np.float32(self.theta * self.dt)
        return noise

    def initial_state(self, num_envs: int) -> State:
        """Return the process before an episode, `{"noise": zeros [num_envs, A]}`."""
        return {"noise": np.zeros((num_envs, self.num_actions), np.float32)}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the process `[B, A]` after this step."""
        process = state["noise"]
        process[begins] = 0.0
        process *= np.float32(1.0 - self.theta * self.dt)
        process += noise
        return process

    def level(self, step: int) -> float:
        return _deviation(self.sigma, step)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        numbers = torch.randn(num_rows, self.num_actions, generator=generator, device=level.device)
        noise = numbers * level * math.sqrt(self.dt)
        if self.weights is not None:
            noise = noise * self.weights.like(noise)
        if self.mean is not None:
            noise = noise + self.mean.like(noise) * (self.theta * self.dt)
        return noise

    def advance_on_device(self, numbers: Tensor, state: DeviceState, begins: Tensor) -> Tensor:
        process = state["noise"]
        process.masked_fill_(begins.unsqueeze(-1), 0.0)
        return process.mul_(1.0 - self.theta * self.dt).add_(numbers)


class AddedNoise(Exploration):
    """Noise that is added to actions drawn from a policy's distribution on [-1, 1], such as SAC's.

    Args:
        action_dist: Distribution of the policy.
        noise: Noise to add.
    """

    wraps_acting = True

    def __init__(self, action_dist: ActionDist, noise: Exploration) -> None:
        self.action_dist = action_dist
        self.noise = noise
        self.draws_on_device = noise.draws_on_device

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw the random numbers of the distribution followed by those of the noise, on the last axis."""
        policy_noise = self.action_dist.draw_noise(rng, leading_shape)
        return np.concatenate([policy_noise, self.noise.draw_noise(rng, leading_shape, step)], axis=-1)

    def initial_state(self, num_envs: int) -> State:
        """Return the initial state of the noise."""
        return self.noise.initial_state(num_envs)

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the random numbers of the distribution followed by the noise of this step."""
        policy_noise, added_noise = np.split(noise, [self.action_dist.noise_size], axis=-1)
        return np.concatenate([policy_noise, self.noise.advance(added_noise, state, begins, generators)], axis=-1)

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return the result of `act(obs, noise, *state)` with noise added to its actions, clipped to [-1, 1]."""
        if noise is None:
            return act(obs, None, *state)
        policy_noise, added_noise = np.split(noise, [self.action_dist.noise_size], axis=-1)
        result = act(obs, policy_noise, *state)
        actions, *next_state = result if state else (result,)
        actions = np.clip(actions + added_noise, -1.0, 1.0, dtype=actions.dtype)
        return (actions, *next_state) if state else actions

    # On a device the distribution draws its own random numbers, so these are the numbers of the added noise only.

    def level(self, step: int) -> float:
        return self.noise.level(step)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        return self.noise.draw_on_device(num_rows, level, generator)

    def advance_on_device(self, numbers: Tensor, state: DeviceState, begins: Tensor) -> Tensor:
        return self.noise.advance_on_device(numbers, state, begins)

    def act_on_device(self, policy: DevicePolicy, noise: Tensor) -> Tensor:
        return (policy.sample() + noise).clamp(-1.0, 1.0)


class RepeatedNoise(Exploration):
    """Random numbers of a policy's distribution that are kept for several steps (Kim et al. 2026, arXiv:2604.04539).

    The number n of steps is between 1 and `longest`, and has a probability proportional to n^-2, so that most numbers
    are new and some go on for long (Dabney et al. 2021, arXiv:2006.01782). Each environment has numbers of its own,
    which are new when an episode begins. Without a collector's state all numbers are new.

    Args:
        action_dist: Distribution of the policy.
        longest: Largest number of steps.
    """

    keeps_density = True
    wraps_acting = True
    draws_on_device = True

    def __init__(self, action_dist: ActionDist, longest: int) -> None:
        self.action_dist = action_dist
        chances = np.arange(1, longest + 1, dtype=np.float64) ** -2
        self._cumulated = Constant((np.cumsum(chances / chances.sum())[:-1]).astype(np.float32))
        """Probabilities `[longest - 1]` of at most 1, 2, ... steps."""

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw the random numbers of the distribution, and on the last axis one more that decides how long they last.

        That one is uniform in [0, 1).
        """
        policy_noise = self.action_dist.draw_noise(rng, leading_shape)
        return np.concatenate([policy_noise, rng.random((*leading_shape, 1), np.float32)], axis=-1)

    def initial_state(self, num_envs: int) -> State:
        """Return the numbers in use, `[num_envs, A + 1]`, and the number of steps for which they remain in use."""
        width = self.action_dist.noise_size + 1
        return {"noise": np.zeros((num_envs, width), np.float32), "left": np.zeros(num_envs, np.int64)}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the numbers `[B, A + 1]` of this step: the given ones where the last ones are used up."""
        kept = state["noise"]
        left = state["left"]
        due = begins | (left == 0)
        kept[due] = noise[due]
        left[due] = 1 + np.searchsorted(self._cumulated.array, noise[due, -1], side="right")
        left -= 1
        return kept

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return the result of `act(obs, noise, *state)` with the numbers of the distribution."""
        return act(obs, None if noise is None else noise[..., :-1], *state)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        size = (num_rows, self.action_dist.noise_size)
        numbers = torch.randn(size, generator=generator, device=level.device)
        return torch.cat([numbers, torch.rand(num_rows, 1, generator=generator, device=level.device)], dim=-1)

    def advance_on_device(self, numbers: Tensor, state: DeviceState, begins: Tensor) -> Tensor:
        kept = state["noise"]
        left = state["left"]
        due = begins | (left == 0)
        kept.copy_(torch.where(due.unsqueeze(-1), numbers, kept))
        lengths = 1 + torch.searchsorted(self._cumulated.like(numbers), numbers[:, -1].contiguous(), right=True)
        left.copy_(torch.where(due, lengths, left)).sub_(1)
        return kept

    def act_on_device(self, policy: DevicePolicy, noise: Tensor) -> Tensor:
        return policy.distribution().sample_with_noise(noise[..., :-1])


class NoisyWeights(Exploration):
    """Noise in a network's weights (`NoisyLinear`). The best action of the noisy network is taken.

    Each environment has new noise in each step.

    Args:
        noise_size: Number of random numbers that the weights need for one row.
    """

    wraps_acting = True
    draws_on_device = True

    def __init__(self, noise_size: int) -> None:
        self.noise_size = noise_size

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw standard normal numbers `[*leading_shape, noise_size]`."""
        return rng.standard_normal((*leading_shape, self.noise_size), np.float32)

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return the result of `act(obs, None, *state)` with this noise in the weights. None: no noise."""
        if noise is None:
            return act(obs, None, *state)
        with weight_noise(torch.tensor(noise)):
            return act(obs, None, *state)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(num_rows, self.noise_size, generator=generator, device=level.device)

    def act_on_device(self, policy: DevicePolicy, noise: Tensor) -> Tensor:
        with weight_noise(noise):
            return policy.distribution().mode()


class StateDependentNoise(Exploration):
    """Matrices of generalised state-dependent exploration (gSDE, Raffin et al. 2021, https://arxiv.org/abs/2005.05719).

    The noise of an action is `features @ (sigma * matrix)`. For `sample_freq` steps it is the same function of the
    features, so that actions are smooth. Sigma is learned (`StateDependentHead`). Without a collector's state, the
    noise has the same density but is independent in each step.

    Args:
        head: Head of the policy.
        sample_freq: Number of steps for which a matrix is kept. None: for an episode.
    """

    keeps_density = True
    draws_on_device = True

    def __init__(self, head: StateDependentHead, sample_freq: int | None = SAMPLE_FREQ) -> None:
        self.shape = (head.in_features, head.out_features)
        self.sample_freq = sample_freq

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw standard normal numbers `[*leading_shape, A]`, for acting without a collector's state."""
        return rng.standard_normal((*leading_shape, self.shape[1]), np.float32)

    def initial_state(self, num_envs: int) -> State:
        """Return zero matrices `[num_envs, F, A]`, and their age `[num_envs]`: the steps since they were drawn."""
        return {"matrices": np.zeros((num_envs, *self.shape), np.float32), "age": np.zeros(num_envs, np.int64)}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the matrices `[B, F, A]`. New ones are drawn when an episode begins and after `sample_freq` steps."""
        matrices = state["matrices"]
        age = state["age"]
        due = begins if self.sample_freq is None else begins | (age >= self.sample_freq)
        # From the generator of its environment, so that a matrix does not depend on the episodes of the others.
        for row in np.flatnonzero(due):
            matrices[row] = generators(int(row)).standard_normal(self.shape, np.float32)
        age[due] = 0
        age += 1
        return matrices

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        # For all rows in every step, although few rows need new matrices: which ones, the host does not know.
        return torch.randn(num_rows, *self.shape, generator=generator, device=level.device)

    def advance_on_device(self, numbers: Tensor, state: DeviceState, begins: Tensor) -> Tensor:
        matrices = state["matrices"]
        age = state["age"]
        due = begins
        if self.sample_freq is not None:
            due = due | (age >= self.sample_freq)
        matrices.copy_(torch.where(due.view(-1, 1, 1), numbers, matrices))
        age.masked_fill_(due, 0).add_(1)
        return matrices

    def act_on_device(self, policy: DevicePolicy, noise: Tensor) -> Tensor:
        with noise_matrices(noise):
            return policy.distribution().mode()


class EpsilonGreedy(Exploration):
    """Epsilon-greedy exploration: with probability `epsilon` a uniformly random action, else the best one.

    The noise is added to the action values, of which the largest is taken. It is 0 for the best action, and large
    random numbers for a random action. So acting needs no branch, and a mask still forbids actions.

    Args:
        epsilon: Probability of a random action: a number, or a schedule over sampled environment steps.
        num_actions: Number of actions A.
    """

    draws_on_device = True
    is_epsilon_greedy = True

    def __init__(self, epsilon: ScheduleLike, num_actions: int) -> None:
        self.epsilon = Schedule(epsilon, "epsilon")
        self.num_actions = num_actions

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]` with the epsilon at `step`. `ValueError` if it is not a probability."""
        epsilon = self.level(step)
        noise = rng.random((*leading_shape, self.num_actions), np.float32)
        noise *= RANDOM_BONUS * (rng.random((*leading_shape, 1)) < epsilon)
        return noise

    def level(self, step: int) -> float:
        epsilon = self.epsilon(step)
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon={epsilon!r} at step {step} is not allowed; it must be between 0 and 1")
        return epsilon

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        # One call for both, the decision and the actions: it is one kernel on a GPU.
        numbers = torch.rand(num_rows, self.num_actions + 1, generator=generator, device=level.device)
        is_random = numbers[:, :1] < level
        return numbers[:, 1:] * (is_random * float(RANDOM_BONUS))


def _normal(rng: np.random.Generator, shape: Sequence[int], schedule: Schedule, step: int) -> Noise:
    """Draw normal numbers with the standard deviation of a schedule at `step`."""
    scale = _deviation(schedule, step)
    noise = rng.standard_normal(shape, np.float32)
    noise *= np.float32(scale)
    return noise


def _dimensions(name: str, values: Sequence[float] | None, num_actions: int) -> Constant | None:
    """Return one number for each action dimension, float32 `[A]`; None for None. `ValueError` for another length."""
    if values is None:
        return None
    if len(values) != num_actions:
        raise ValueError(
            f"env_runners.exploration_config[{name!r}]={values!r} is not allowed; it must have {num_actions} numbers, "
            "one for each action dimension"
        )
    return Constant(np.asarray(values, np.float32))


def _deviation(schedule: Schedule, step: int) -> float:
    """Return the standard deviation of a schedule at `step`. `ValueError` if it is negative."""
    scale = schedule(step)
    if not scale >= 0.0:
        raise ValueError(f"{schedule.name}={scale!r} at step {step} is not allowed; it must be at least 0")
    return scale


def check_exploration(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of a kind of exploration. `ValueError` or `TypeError` for an unknown one or a bad value."""
    for option, value in options.items():
        path = f"env_runners.exploration_config[{option!r}]"
        if option not in OPTIONS[name]:
            known = suggestion(option, OPTIONS[name])
            raise ValueError(f"{path}={value!r} is not allowed for exploration={name!r}; {known}")
        if option in ("epsilon", "scale") or (option == "sigma" and name == "ou"):
            _check_schedule(path, value, most=1.0 if option == "epsilon" else math.inf)
        elif option in ("mean", "weights"):
            _check_dimensions(path, value, least=0.0 if option == "weights" else -math.inf)
        elif option == "sample_freq":
            check_whole(path, value, 1, optional=True)
        else:
            is_logarithm = option == "log_std_init"
            if not is_number(value) or not math.isfinite(value) or (not is_logarithm and not value > 0.0):
                kind = "finite" if is_logarithm else "positive"
                raise ValueError(f"{path}={value!r} is not allowed; it must be a {kind} number")
    # Above 1 the process would swing from one side of 0 to the other, with growing amplitude above 2.
    if name == "ou" and options.get("theta", 0.15) * options.get("dt", 1.0) > 1.0:
        raise ValueError(f"env_runners.exploration_config={dict(options)}: theta * dt must be at most 1")


def _check_schedule(path: str, value: ScheduleLike, *, most: float) -> None:
    """Check that a number or schedule is between 0 and `most`. A function is checked when it is called."""
    Schedule(value, path)
    if callable(value):
        return
    points: Any = value
    numbers = [value] if is_number(value) else [number for _, number in points]
    if not all(0.0 <= number <= most for number in numbers):
        limit = " and at most 1" if most == 1 else ""
        raise ValueError(f"{path}={value!r} is not allowed; it must be at least 0{limit}")


def _check_dimensions(path: str, value: object, *, least: float) -> None:
    """Check that a value is a list of finite numbers that are at least `least`."""
    numbers = value if isinstance(value, list | tuple) else []
    if not numbers or not all(is_number(each) and math.isfinite(each) and each >= least for each in numbers):
        limit = "" if math.isinf(least) else f", at least {least:g}"
        raise ValueError(f"{path}={value!r} is not allowed; it must be a list of finite numbers{limit}")


def make_exploration(
    name: str,
    options: Mapping[str, Any],
    module: RLModule,
    *,
    epsilon: ScheduleLike | None,
    exploration_noise: ScheduleLike | None,
) -> Exploration:
    """Return a new exploration of the kind `name` for a module.

    Args:
        name: Kind of exploration, a key of `OPTIONS`.
        options: Options of that kind, which take precedence over those of the algorithm.
        module: Module whose actions are explored.
        epsilon: Epsilon of the algorithm; None if it has none.
        exploration_noise: Scale of the algorithm's noise. None: its policy draws actions itself, so noise is added to
            them. Otherwise its policy is deterministic, and the actor adds the noise.

    Raises:
        ValueError: The module does not have the layers that this kind needs.
    """
    space: Any = module.action_space
    if name == "epsilon":
        return EpsilonGreedy(options.get("epsilon", epsilon), int(space.n))
    if name == "gsde":
        head = getattr(module, "policy_head", None)
        if not isinstance(head, StateDependentHead):
            raise ValueError(
                f"env_runners.exploration='gsde' needs the default network, and {type(module).__name__} has no "
                "StateDependentHead as its policy_head"
            )
        return StateDependentNoise(head, options.get("sample_freq", SAMPLE_FREQ))
    if name == "noisy":
        noise_size = getattr(module, "noise_size", 0)
        if not noise_size:
            raise ValueError(
                f"env_runners.exploration='noisy' needs the default network, and {type(module).__name__} has no "
                "NoisyLinear"
            )
        return NoisyWeights(noise_size)

    num_actions = math.prod(space.shape)
    default_scale = SCALE if exploration_noise is None else exploration_noise
    noise: Exploration
    if name == "ou":
        noise = OrnsteinUhlenbeckNoise(num_actions, **options)
    else:
        noise = GaussianNoise(num_actions=num_actions, **{"scale": default_scale, **options})
    return noise if exploration_noise is not None else AddedNoise(module.action_dist_cls, noise)


def needs_box(name: str | None, action_space: spaces.Space[Any]) -> bool:
    """Return whether a kind of exploration needs a Box although `action_space` is another space."""
    return name in BOX_KINDS and not isinstance(action_space, spaces.Box)
