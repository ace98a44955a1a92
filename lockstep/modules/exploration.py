"""Exploration that a policy's own distribution does not draw: by chance, by noise on actions, by noise of the state.

A collector draws random numbers for many steps at once (`draw_noise`). What remembers within an episode keeps arrays
with a row for each environment beside them, and makes of the numbers of a step what the actor takes (`advance`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.layers import StateDependentHead, weight_noise
from lockstep.modules.rl_module import RLModule
from lockstep.options.checks import check_whole, is_number, suggestion
from lockstep.options.schedules import Schedule, ScheduleLike

Noise = npt.NDArray[np.float32]
State = dict[str, np.ndarray]
Generators = Callable[[int], np.random.Generator]
"""the random numbers of one environment, by its row"""

LARGE = np.float32(1e8)
"""Outweighs every difference of action values, but not what forbids an action (-1e9)"""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "epsilon": ("epsilon",),
    "normal": ("scale",),
    "ou": ("sigma", "theta", "dt"),
    "gsde": ("sample_freq", "log_std_init"),
    "noisy": ("sigma",),
}
"""the kinds of exploration, and the names of their options"""
OF_A_BOX = ("normal", "ou", "gsde")
"""those that need a Box of actions"""
SCALE, SAMPLE_FREQ, NOISY_SIGMA = 0.1, 8, 0.5
"""deviation of normal noise where the algorithm has none of its own; steps that a matrix of gSDE is kept; deviation
that noise in weights begins with, times the root of a layer's inputs (Fortunato et al. 2018, section 3.2)"""
LOG_STD_INIT = -2.0
"""start of the logarithms of gSDE's deviations: with 64 features of size 1, actions deviate by about 1 at first"""


class Exploration(ABC):
    """Draws what an algorithm adds to its policy's actions while collecting."""

    keeps_density = False
    """whether actions are as likely as the policy's distribution says"""
    draws_on_device = False
    """whether it has `level` and `draw_on_device`"""
    is_epsilon_greedy = False
    """Whether `level` is the probability of an action by chance."""
    wraps_acting = False
    """Whether actions come from `act`, which calls the network, rather than from the network with the noise drawn."""

    def level(self, step: int) -> float:
        """Return how much is explored at environment step `step`; `ValueError` where that is no such number."""
        raise TypeError(f"{type(self).__name__} does not draw on a device")

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        """Return `draw_noise` of one step `[num_rows, noise_size]` on the device of `level`, which is 0-d."""
        raise TypeError(f"{type(self).__name__} does not draw on a device")

    @abstractmethod
    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw random numbers `[*leading_shape, noise_size]` for acting many times, at environment step `step`."""

    def initial_state(self, num_envs: int) -> State:
        """Return what it remembers before the first step, `{name: [num_envs, ...]}`; empty: nothing."""
        return {}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return what the actor takes for the numbers `[B, D]` of one step; `state` moves on in place.

        `begins` `[B]`: an episode begins there. `generators(row)`: random numbers of that environment alone.
        """
        return noise

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return the actions of `act(obs, noise, *state)`; kinds with `wraps_acting` change the call or its actions."""
        return act(obs, noise, *state)


class GaussianNoise(Exploration):
    """Draws normal numbers with deviation `scale`, to be added to actions in [-1, 1].

    `scale`: a number, or a schedule over sampled environment steps.
    """

    draws_on_device = True

    def __init__(self, scale: ScheduleLike, num_actions: int) -> None:
        self.scale = Schedule(scale, "exploration_noise")
        self.num_actions = num_actions

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]`, with the deviation of `step`; `ValueError` where that is below 0."""
        return _normal(rng, (*leading_shape, self.num_actions), self.scale, step)

    def level(self, step: int) -> float:
        return _deviation(self.scale, step)

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(num_rows, self.num_actions, generator=generator, device=level.device) * level


class OrnsteinUhlenbeckNoise(Exploration):
    """Draws noise that goes on from step to step: `x += -theta * x * dt + sigma * sqrt(dt) * N(0, 1)`.

    It is 0 before an episode.
    Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, section 3 and its supplement (theta 0.15, sigma 0.2).
    `sigma`: a number, or a schedule over sampled environment steps. Of numbers drawn without a collector's memory each
    is the first one of an episode.
    """

    def __init__(self, num_actions: int, sigma: ScheduleLike = 0.2, theta: float = 0.15, dt: float = 1.0) -> None:
        self.sigma = Schedule(sigma, "sigma")
        self.num_actions, self.theta, self.dt = num_actions, float(theta), float(dt)

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw what is added to the process at each step, `[*leading_shape, num_actions]`."""
        noise = _normal(rng, (*leading_shape, self.num_actions), self.sigma, step)
        noise *= np.float32(math.sqrt(self.dt))
        return noise

    def initial_state(self, num_envs: int) -> State:
        """Return `{"noise": zeros [num_envs, A]}`."""
        return {"noise": np.zeros((num_envs, self.num_actions), np.float32)}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the process `[B, A]` after this step."""
        process = state["noise"]
        process[begins] = 0.0
        process *= np.float32(1.0 - self.theta * self.dt)
        process += noise
        return process


class AddedNoise(Exploration):
    """Adds noise to actions that are drawn from a policy's distribution on [-1, 1], as SAC's is."""

    wraps_acting = True

    def __init__(self, action_dist: ActionDist, noise: Exploration) -> None:
        self.action_dist, self.noise = action_dist, noise

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw the numbers of the distribution, then those of the noise."""
        own = self.action_dist.draw_noise(rng, leading_shape)
        return np.concatenate([own, self.noise.draw_noise(rng, leading_shape, step)], axis=-1)

    def initial_state(self, num_envs: int) -> State:
        """Return that of the noise."""
        return self.noise.initial_state(num_envs)

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the numbers of the distribution, then the noise after this step."""
        own, added = np.split(noise, [self.action_dist.noise_size], axis=-1)
        return np.concatenate([own, self.noise.advance(added, state, begins, generators)], axis=-1)

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return what `act(obs, noise, *state)` gives, with the noise added to its actions, within [-1, 1]."""
        if noise is None:
            return act(obs, None, *state)
        own, added = np.split(noise, [self.action_dist.noise_size], axis=-1)
        result = act(obs, own, *state)
        actions, *after = result if state else (result,)
        actions = np.clip(actions + added, -1.0, 1.0, dtype=actions.dtype)
        return (actions, *after) if state else actions


class NoisyWeights(Exploration):
    """Draws the noise of a network's weights (`NoisyLinear`), and acts by the best action of what comes of it.

    Each environment has new noise at each step.
    """

    wraps_acting = True

    def __init__(self, noise_size: int) -> None:
        self.noise_size = noise_size

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, noise_size]` standard normal numbers."""
        return rng.standard_normal((*leading_shape, self.noise_size), np.float32)

    def act(self, act: Callable[..., Any], obs: Tree, noise: Noise | None, *state: Mapping[str, np.ndarray]) -> Any:
        """Return what `act(obs, None, *state)` gives with this noise in the weights; None: without."""
        if noise is None:
            return act(obs, None, *state)
        with weight_noise(torch.tensor(noise)):
            return act(obs, None, *state)


class StateDependentNoise(Exploration):
    """Draws the matrices of generalised state-dependent exploration (gSDE).

    Raffin et al. 2021, https://arxiv.org/abs/2005.05719. The noise of an action is `features @ (sigma * matrix)`:
    within `sample_freq` steps (None: an episode) it is the same function of the features, so that actions are smooth.
    Sigma is learned (`StateDependentHead`). Numbers drawn without a collector's memory have the same density, but are
    independent of each other.
    """

    keeps_density = True

    def __init__(self, head: StateDependentHead, sample_freq: int | None = SAMPLE_FREQ) -> None:
        self.shape, self.sample_freq = (head.in_features, head.out_features), sample_freq

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, A]` standard normal numbers, which a collector does not use."""
        return rng.standard_normal((*leading_shape, self.shape[1]), np.float32)

    def initial_state(self, num_envs: int) -> State:
        """Return the matrices `[num_envs, F, A]`, and the steps `[num_envs]` since each was drawn."""
        return {"matrices": np.zeros((num_envs, *self.shape), np.float32), "age": np.zeros(num_envs, np.int64)}

    def advance(self, noise: Noise, state: State, begins: np.ndarray, generators: Generators) -> Noise:
        """Return the matrices `[B, F, A]`; new ones where an episode begins and after `sample_freq` steps."""
        matrices, age = state["matrices"], state["age"]
        due = begins if self.sample_freq is None else begins | (age >= self.sample_freq)
        for row in np.flatnonzero(due):
            matrices[row] = generators(int(row)).standard_normal(self.shape, np.float32)
        age[due] = 0
        age += 1
        return matrices


class EpsilonGreedy(Exploration):
    """Takes any action with probability `epsilon`, each equally likely; else the best one.

    It draws random numbers that are added to the action values before the largest is taken: zeros for the best action,
    large ones for any. `epsilon`: a number, or a schedule over sampled environment steps.
    """

    draws_on_device = True
    is_epsilon_greedy = True

    def __init__(self, epsilon: ScheduleLike, num_actions: int) -> None:
        self.epsilon = Schedule(epsilon, "epsilon")
        self.num_actions = num_actions

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]`, with the epsilon of `step`; `ValueError` where that is none."""
        epsilon = self.level(step)
        noise = rng.random((*leading_shape, self.num_actions), np.float32)
        noise *= LARGE * (rng.random((*leading_shape, 1)) < epsilon)
        return noise

    def level(self, step: int) -> float:
        epsilon = self.epsilon(step)
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon={epsilon!r} at step {step} is not allowed; it must be between 0 and 1")
        return epsilon

    def draw_on_device(self, num_rows: int, level: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(num_rows, self.num_actions + 1, generator=generator, device=level.device)
        return drawn[:, 1:] * ((drawn[:, :1] < level) * float(LARGE))


def _normal(rng: np.random.Generator, shape: Sequence[int], schedule: Schedule, step: int) -> Noise:
    scale = _deviation(schedule, step)
    noise = rng.standard_normal(shape, np.float32)
    noise *= np.float32(scale)
    return noise


def _deviation(schedule: Schedule, step: int) -> float:
    scale = schedule(step)
    if not scale >= 0.0:
        raise ValueError(f"{schedule.name}={scale!r} at step {step} is not allowed; it must be at least 0")
    return scale


def check_exploration(name: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` or `TypeError` for options that a kind of exploration does not have, or their values."""
    for option, value in options.items():
        path = f"env_runners.exploration_config[{option!r}]"
        if option not in OPTIONS[name]:
            known = suggestion(option, OPTIONS[name])
            raise ValueError(f"{path}={value!r} is not allowed for exploration={name!r}; {known}")
        if option in ("epsilon", "scale") or (option == "sigma" and name == "ou"):
            Schedule(value, path)
            values = [value] if is_number(value) else [] if callable(value) else [point[1] for point in value]
            most = 1.0 if option == "epsilon" else math.inf
            if not all(0.0 <= each <= most for each in values):
                raise ValueError(
                    f"{path}={value!r} is not allowed; it must be at least 0" + " and at most 1" * (most == 1)
                )
        elif option == "sample_freq":
            check_whole(path, value, 1, optional=True)
        elif not is_number(value) or not math.isfinite(value) or (option != "log_std_init" and not value > 0.0):
            kind = "finite" if option == "log_std_init" else "positive"
            raise ValueError(f"{path}={value!r} is not allowed; it must be a {kind} number")
    if name == "ou" and options.get("theta", 0.15) * options.get("dt", 1.0) > 1.0:
        raise ValueError(f"env_runners.exploration_config={dict(options)}: theta * dt must be at most 1")


def make_exploration(
    name: str,
    options: Mapping[str, Any],
    module: RLModule,
    *,
    epsilon: ScheduleLike | None,
    exploration_noise: ScheduleLike | None,
) -> Exploration:
    """Return the exploration of this kind for the actions of a module.

    `epsilon` and `exploration_noise` are those of the algorithm, for which `options` has other names. An algorithm with
    the latter has a policy without chance; of others the noise is added to what their policy draws.
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
    size, scale = math.prod(space.shape), SCALE if exploration_noise is None else exploration_noise
    noise: Exploration = GaussianNoise(options.get("scale", scale), size)
    if name == "ou":
        noise = OrnsteinUhlenbeckNoise(size, **options)
    return noise if exploration_noise is not None else AddedNoise(module.action_dist_cls, noise)


def needs_box(name: str | None, action_space: spaces.Space[Any]) -> bool:
    """Return whether this kind of exploration needs a Box, and `action_space` is none."""
    return name in OF_A_BOX and not isinstance(action_space, spaces.Box)
