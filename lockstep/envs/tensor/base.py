"""Vector environments that take and return tensors on their device, in the form of rsl_rl's `VecEnv`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.row_share import ALL_ROWS
from lockstep.options.checks import check_whole

State = dict[str, Tensor]
"""what the environments are in: tensors [B, ...] by name"""
DTYPES = (torch.float32, torch.float64)


class TensorVecEnv(ABC):
    """B environments that are stepped at once by tensors on one device.

    An episode that ends is reset within the step: `obs` is then the first observation of the next one, and
    `extras["final_obs"]` the one at which the old episode arrived. `dones` says that an episode ended,
    `extras["time_outs"]` that only its time limit ended it: what followed is worth the value of its final observation.
    A step returns tensors of its own, which later steps leave alone.

    Attributes:
        num_envs: number of environments B.
        device: where all tensors are.
        single_observation_space, single_action_space: the spaces of one environment.
        max_episode_length: steps after which an episode is cut; None without a limit.
        gives_final_obs: True where steps have `extras["final_obs"]`.
        capturable: True where a CUDA graph can hold a step.
    """

    num_envs: int
    device: torch.device
    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    max_episode_length: int | None
    gives_final_obs: bool
    capturable: bool = False

    @property
    @abstractmethod
    def episode_length_buf(self) -> Tensor:
        """Steps of the episodes under way, int64 [B]; what is assigned is copied into it."""

    @episode_length_buf.setter
    @abstractmethod
    def episode_length_buf(self, lengths: Tensor) -> None: ...

    @abstractmethod
    def reset(self, seed: int | None = None) -> Tensor:
        """Begin a new episode everywhere and return its first observations [B, ...].

        Args:
            seed: start the random numbers anew from it; None goes on with them.
        """

    @abstractmethod
    def get_observations(self) -> Tensor:
        """Return the observations [B, ...] to act on next."""

    @abstractmethod
    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take one action in every environment and begin a new episode where one ended.

        Args:
            actions: [B, ...] for the single action space; int64 [B] for a Discrete one.

        Returns:
            `(obs, rewards, dones, extras)`: the observations [B, ...] to act on next, float32 [B], bool [B], and a dict
            with `time_outs` bool [B] and, where `gives_final_obs`, `final_obs` [B, ...] (equal to `obs` where no
            episode ended).
        """

    def check_actions(self, actions: Tensor) -> None:
        """Raise `ValueError` unless the actions have the shape and the device of these environments."""
        shape = (self.num_envs, *(self.single_action_space.shape or ()))
        if actions.shape != shape or actions.device != self.device:
            raise ValueError(
                f"actions of shape {tuple(actions.shape)} on {actions.device} are not allowed; they must be of shape "
                f"{shape} on {self.device}"
            )

    @abstractmethod
    def get_state(self) -> dict[str, Any] | None:
        """Return all that is needed to go on bit for bit, or None where the environments cannot tell it."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned.

        Raises:
            ValueError: it is of other environments, or these cannot be put into a state.
        """


class TensorEnv(TensorVecEnv):
    """An environment that is written in torch, whose step a CUDA graph can hold.

    A subclass writes down one step as arithmetic on whole tensors. The state stays in the same memory: a step writes
    the new one over the old, so that a graph that is replayed goes on from there. For the same reason no operation may
    wait for the device or depend in its shape on values. Every step draws random numbers for all environments
    (`draw`), as if all of them began an episode; the rest of it (`transition`) is free of random numbers.

    Args:
        num_envs: number of environments B.
        device: where they are.
        dtype: of the real numbers in the state, float32 or float64.
        seed: of `generator`.
        max_episode_length: another limit than the usual one; None for that one.

    Attributes:
        generator: the random numbers. Register it with the `CUDAGraph` (`register_generator_state`) before a step is
            captured.
    """

    gives_final_obs = True
    capturable = True
    share = ALL_ROWS
    """which rows of several ranks these are; numbers are drawn for the rows of all, and the own ones taken"""
    num_draws: ClassVar[int]
    """random numbers that one environment draws in a step"""
    draw_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """where they lie, evenly spread"""
    time_limit: ClassVar[int | None]
    gives_new_tensors: ClassVar[bool] = False
    """True where `advance` returns new tensors in each call, and `observe` none that it writes to again: then nothing
    has to be copied."""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        max_episode_length: int | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype} is not allowed; choose one of {', '.join(map(str, DTYPES))}")
        self.num_envs = check_whole("num_envs", num_envs, 1)
        self.device = torch.zeros(0, device=device).device  # with its number: "cuda" is "cuda:0"
        self.dtype = dtype
        limit = check_whole("max_episode_length", max_episode_length, 1, optional=True)
        self.max_episode_length = limit or self.time_limit
        # spaces of its own, as they have random numbers of their own
        self.single_observation_space = deepcopy(self.single_observation_space)
        self.single_action_space = deepcopy(self.single_action_space)
        self.generator = torch.Generator(self.device)
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._state = self.make_state()
        self.reset(seed)

    # -- what a subclass says ---

    @abstractmethod
    def make_state(self) -> State:
        """Return the tensors that hold the state, of any content; keep constants of the step on the device as well."""

    @abstractmethod
    def begin(self, draws: Tensor) -> State:
        """Return the first state of an episode in all environments; what it leaves out goes on from the last one.

        Args:
            draws: [B, num_draws].
        """

    @abstractmethod
    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the state that follows, rewards float32 [B], and where the task ended, bool [B].

        Tensors of `state` may be handed on as they are.
        """

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Return the observations [B, ...] of a state. They are copied: they may be a tensor that is kept."""

    # -- what follows from it ---

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps of the episodes under way, int64 [B]; what is assigned is copied into it."""
        return self._length

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self._length.copy_(lengths)

    def draw(self) -> Tensor:
        """Return the random numbers of one step, [B, num_draws]."""
        number = self.num_envs * self.share.number
        draws = torch.empty(number, self.num_draws, dtype=self.dtype, device=self.device)
        return self.share.of(draws.uniform_(*self.draw_range, generator=self.generator))

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self.generator.manual_seed(check_whole("seed", seed, 0))
        first = self.begin(self.draw())
        for name, kept in self._state.items():
            if name in first:
                kept.copy_(first[name])
            else:
                kept.zero_()
        self._length.zero_()
        return self.get_observations()

    @torch.no_grad()
    def get_observations(self) -> Tensor:
        return self._own(self.observe({name: kept.clone() for name, kept in self._state.items()}))

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        return self.transition(actions, self.draw())

    @torch.no_grad()
    def transition(self, actions: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take one step with given random numbers; this is what `torch.compile` takes whole.

        Args:
            actions: [B, ...], as for `step`.
            draws: [B, num_draws], as `draw` returns.
        """
        arrived, rewards, dones = self.advance(self._state, actions, draws)
        # What a subclass returns may be part of the state, which is overwritten below, or memory that it writes to
        # again in the next call. So all that leaves a step is a copy, made before either.
        final_obs, rewards = self._own(self.observe(arrived)), self._own(rewards)
        self._length.add_(1)
        if self.max_episode_length is None:
            time_outs = torch.zeros_like(dones)
            dones = self._own(dones)
        else:
            limited = self._length >= self.max_episode_length
            time_outs = limited > dones  # and not
            dones = limited | dones
        self._length.masked_fill_(dones, 0)
        first = self.begin(draws)
        after = {}
        for name, value in arrived.items():
            if name in first:
                after[name] = torch.where(dones.view(-1, *[1] * (value.ndim - 1)), first[name], value)
            else:
                after[name] = self._own(value)
        for name, kept in self._state.items():
            kept.copy_(after[name])
        obs = self._own(self.observe(after))
        return obs, rewards, dones, {"time_outs": time_outs, "final_obs": final_obs}

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor if self.gives_new_tensors else tensor.clone()

    def get_state(self) -> dict[str, Any]:
        """Return copies of the state, the lengths of the episodes, and the generator's state, on the host."""
        tensors = {name: kept.to("cpu", copy=True) for name, kept in self._state.items()}
        return {
            "state": tensors,
            "episode_length_buf": self._length.to("cpu", copy=True),
            "generator": self.generator.get_state(),
        }

    @torch.no_grad()
    def set_state(self, state: Mapping[str, Any]) -> None:
        tensors: Mapping[str, Tensor] = state["state"]
        found, kept = ({name: tuple(t.shape) for name, t in each.items()} for each in (tensors, self._state))
        if found != kept:
            raise ValueError(f"the state is of other environments: it has {found}, {type(self).__name__} has {kept}")
        for name, tensor in tensors.items():
            self._state[name].copy_(tensor)
        self._length.copy_(state["episode_length_buf"])
        self.generator.set_state(state["generator"])
