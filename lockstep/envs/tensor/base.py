"""Vector environments that accept and return tensors on their device, with the interface of rsl_rl's `VecEnv`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.row_share import ALL_ROWS
from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.options.checks import check_whole

State = dict[str, Tensor]
"""State of all environments: tensors [B, ...] by name."""
DTYPES = (torch.float32, torch.float64)


class TensorVecEnv(ABC):
    """Interface of B environments that are stepped together by tensors on one device.

    Observations are a tensor [B, ...]. Those of a Dict or Tuple space are a tree of such tensors: a dict or tuple,
    which may be nested.

    An episode that ends is reset within the step: `obs` is then the first observation of the next episode, and
    `extras["final_obs"]` the last one of the old episode. `dones` is True where an episode ended. `extras["time_outs"]`
    is True where only a time limit ended it, so that its last observation still has a value to bootstrap from. A step
    returns new tensors, which later steps leave unchanged.

    Attributes:
        num_envs: Number of environments B.
        device: Device of all tensors.
        single_observation_space, single_action_space: Spaces of one environment.
        max_episode_length: Number of steps after which an episode is cut off; None without a limit.
        gives_final_obs: True if steps return `extras["final_obs"]`.
        capturable: True if a CUDA graph can capture a step.
    """

    num_envs: int
    device: torch.device
    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    max_episode_length: int | None
    gives_final_obs: bool
    capturable: bool = False
    _final_obs_before: Tree = ()
    """`extras["final_obs"]` of the step before. It is kept so that no new tensor can get its memory."""
    _keeps_final_obs = False
    """True once `final_obs`, in memory that steps write to again, held what the ended episodes had last."""

    @property
    @abstractmethod
    def episode_length_buf(self) -> Tensor:
        """Number of steps of each episode under way, int64 [B]. Assigned values are copied into it."""

    @episode_length_buf.setter
    @abstractmethod
    def episode_length_buf(self, lengths: Tensor) -> None: ...

    @abstractmethod
    def reset(self, seed: int | None = None) -> Tree:
        """Begin a new episode in every environment and return the first observations [B, ...].

        Args:
            seed: Seed for the random numbers; None continues with the generator as it is.
        """

    @abstractmethod
    def get_observations(self) -> Tree:
        """Return the observations [B, ...] to act on next."""

    @abstractmethod
    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, dict[str, Any]]:
        """Take one action in every environment and begin a new episode where one ended.

        Args:
            actions: Tensor [B, ...] with one action of `single_action_space` in each row; int64 [B] for a Discrete one.

        Returns:
            `(obs, rewards, dones, extras)`: the observations [B, ...] to act on next, rewards float32 [B], bool [B],
            and a dict with `time_outs` bool [B] and, if `gives_final_obs`, `final_obs` [B, ...] (equal to `obs` where
            no episode ended).
        """

    def check_action_space(self) -> None:
        """Raise `ValueError` for a space whose actions are not one tensor."""
        space = self.single_action_space
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise ValueError(
                f"{type(self).__name__} has the action space {space}, and tensor environments take one tensor of "
                "actions; give them a Box or a MultiDiscrete with all parts, and split it in step"
            )

    def check_actions(self, actions: Tensor) -> None:
        """Raise `ValueError` unless the actions have the shape and the device of these environments."""
        shape = (self.num_envs, *(self.single_action_space.shape or ()))
        if actions.shape != shape or actions.device != self.device:
            raise ValueError(
                f"actions of shape {tuple(actions.shape)} on {actions.device} are not allowed; they must be of shape "
                f"{shape} on {self.device}"
            )

    def take_log(self) -> dict[str, tuple[float, int]]:
        """Return the values that were logged in steps since the last call, by name: their mean and their number."""
        return {}

    def observations_before_step(self) -> Tree | None:
        """Return copies of the observations to act on, or None for environments that give final observations."""
        return None if self.gives_final_obs else map_tree(torch.Tensor.clone, self.get_observations())

    def check_final_observations(self, obs: Tree, dones: Tensor, extras: Mapping[str, Tree]) -> None:
        """Check that a step did not overwrite the last observations of episodes with the first ones of new episodes.

        They have been if `final_obs` is in the memory of `obs`, or if it is in memory that each step writes to and
        has the values of `obs`. A `TensorEnv` needs no check, since its steps return copies. Elsewhere the host waits
        for the device only if memory is shared or used again.

        Args:
            obs: Observations `[B, ...]` that the step returned.
            dones: Bool [B] that the step returned.
            extras: Dict that the step returned.

        Raises:
            ValueError: An episode ended, and its last observation was overwritten.
        """
        if "final_obs" not in extras:
            return
        final_obs = extras["final_obs"]
        before, self._final_obs_before = self._final_obs_before, final_obs
        is_shared = _share_memory(final_obs, obs)
        is_reused = not self._keeps_final_obs and _share_memory(final_obs, before)
        if not (is_shared or is_reused) or not bool(dones.any()):
            return
        pairs = zip(leaves(obs), leaves(final_obs), strict=True)
        if is_shared or all(torch.equal(first[dones], last[dones]) for first, last in pairs):
            raise ValueError(
                f"{type(self).__name__}.step returned extras['final_obs'] in memory that has been overwritten by the "
                "observations that follow, so the last observations of the ended episodes are lost; copy them before "
                "the environments are reset (obs.clone())"
            )
        self._keeps_final_obs = True

    @abstractmethod
    def get_state(self) -> dict[str, Any] | None:
        """Return the state that continues bit for bit, or None if the environments cannot give it."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned.

        Raises:
            ValueError: The state is from other environments, or these cannot be put into a state.
        """


class TensorEnv(TensorVecEnv):
    """Base class of environments written in torch, whose step a CUDA graph can capture.

    A subclass defines one step as arithmetic on whole tensors. Three rules make it capturable:

    - The state stays in the same memory: a step writes the new state over the old one, so that a replayed graph, which
      has fixed addresses, continues from it.
    - No operation waits for the device, and no shape depends on values.
    - Every step draws random numbers for all environments (`draw`), as if all of them began an episode. The rest of the
      step (`transition`) has no random numbers.

    Args:
        num_envs: Number of environments B.
        device: Device of all tensors.
        dtype: Dtype of the real numbers in the state, float32 or float64.
        seed: Seed of `generator`.
        max_episode_length: Time limit in steps. Defaults to the environment's own limit (`time_limit`).

    Attributes:
        generator: The random generator. Register it with a `CUDAGraph` (`register_generator_state`) before a step is
            captured.
    """

    gives_final_obs = True
    capturable = True
    share = ALL_ROWS
    """This rank's share of the environments of all ranks. Random numbers are drawn for the rows of all ranks, so that a
    row gets the same ones for any number of ranks."""
    num_draws: ClassVar[int]
    """Number of random numbers that one environment draws in a step."""
    draw_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Lower and upper bound of the uniform distribution of the random numbers."""
    time_limit: ClassVar[int | None]
    """Number of steps after which an episode is cut off by default; None without a limit."""
    gives_new_tensors: ClassVar[bool] = False
    """True if `begin` and `advance` return new tensors in each call, and `observe` tensors that are never written to
    again. Then a step copies nothing. A subclass that overrides one of these methods has to declare it again."""

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
        self.device = torch.zeros(0, device=device).device  # with its index: "cuda" becomes "cuda:0"
        self.dtype = dtype
        limit = check_whole("max_episode_length", max_episode_length, 1, optional=True)
        self.max_episode_length = limit or self.time_limit
        # Copies, because a space has a random generator, which the objects of a class must not share.
        self.single_observation_space = deepcopy(self.single_observation_space)
        self.single_action_space = deepcopy(self.single_action_space)
        self.generator = torch.Generator(self.device)
        self._copies = not _gives_new_tensors(type(self))
        """Whether a step copies the tensors that the methods of the subclass return."""
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._state = self.make_state()
        self.reset(seed)

    # -- defined by a subclass ---

    @abstractmethod
    def make_state(self) -> State:
        """Return the tensors that will hold the state; their content is ignored. Also the place to make constants."""

    @abstractmethod
    def begin(self, draws: Tensor) -> State:
        """Return the first state of an episode in all environments. Tensors that it leaves out keep their values.

        Args:
            draws: Random numbers [B, num_draws].
        """

    @abstractmethod
    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the next state, the rewards float32 [B], and where the task ended, bool [B].

        The next state may have tensors of `state`.

        Args:
            state: The state before the step. Must not be changed.
            actions: Tensor [B, ...], as for `step`.
            draws: Random numbers [B, num_draws], the same that `begin` gets.
        """

    @abstractmethod
    def observe(self, state: State) -> Tree:
        """Return the observations [B, ...] of a state. They are copied, unless `gives_new_tensors`."""

    # -- derived from it ---

    @property
    def episode_length_buf(self) -> Tensor:
        """Number of steps of each episode under way, int64 [B]. Assigned values are copied into it."""
        return self._length

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self._length.copy_(lengths)

    def draw(self) -> Tensor:
        """Return the random numbers of one step, [B, num_draws]."""
        num_envs_in_all = self.num_envs * self.share.number
        draws = torch.empty(num_envs_in_all, self.num_draws, dtype=self.dtype, device=self.device)
        return self.share.of(draws.uniform_(*self.draw_range, generator=self.generator))

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> Tree:
        if seed is not None:
            self.generator.manual_seed(check_whole("seed", seed, 0))
        first = self.begin(self.draw())
        for name, target in self._state.items():
            if name in first:
                target.copy_(first[name])
            else:
                target.zero_()
        self._length.zero_()
        return self.get_observations()

    @torch.no_grad()
    def get_observations(self) -> Tree:
        state = {name: tensor.clone() for name, tensor in self._state.items()}
        return self._copy_unless_new(self.observe(state))

    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        return self.transition(actions, self.draw())

    @torch.no_grad()
    def transition(self, actions: Tensor, draws: Tensor) -> tuple[Tree, Tensor, Tensor, dict[str, Any]]:
        """Take one step with these random numbers. `torch.compile` compiles this method as a whole.

        Args:
            actions: Tensor [B, ...], as for `step`.
            draws: Random numbers [B, num_draws], as `draw` returns.
        """
        next_state, rewards, dones = self.advance(self._state, actions, draws)
        # Tensors of a subclass may be part of the state, which is overwritten below, or memory that it writes to again
        # in its next call, such as `begin`. So all of them are copied before either happens.
        next_state = self._copy_unless_new(next_state)
        final_obs = self._copy_unless_new(self.observe(next_state))
        rewards = self._copy_unless_new(rewards)
        dones = self._copy_unless_new(dones)

        self._length.add_(1)
        if self.max_episode_length is None:
            time_outs = torch.zeros_like(dones)
        else:
            at_limit = self._length >= self.max_episode_length
            time_outs = at_limit > dones  # at_limit and not dones: an episode that terminates there is not truncated
            dones = at_limit | dones
        self._length.masked_fill_(dones, 0)

        # All environments begin an episode, and `where` uses it only in rows whose episode has ended.
        first = self.begin(draws)
        state = {}
        for name, value in next_state.items():
            if name in first:
                state[name] = torch.where(dones.view(-1, *[1] * (value.ndim - 1)), first[name], value)
            else:
                state[name] = value
        for name, target in self._state.items():
            target.copy_(state[name])
        obs = self._copy_unless_new(self.observe(state))
        return obs, rewards, dones, {"time_outs": time_outs, "final_obs": final_obs}

    def _copy_unless_new(self, tree: Tree) -> Any:
        """Return tensors that nobody writes to later: copies, unless the subclass promises new tensors."""
        return map_tree(torch.Tensor.clone, tree) if self._copies else tree

    def get_state(self) -> dict[str, Any]:
        """Return copies of the state, of the episodes' lengths and of the generator's state, on the host."""
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._state.items()}
        return {
            "state": tensors,
            "episode_length_buf": self._length.to("cpu", copy=True),
            "generator": self.generator.get_state(),
        }

    @torch.no_grad()
    def set_state(self, state: Mapping[str, Any]) -> None:
        tensors: Mapping[str, Tensor] = state["state"]
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in self._state.items()}
        if found != expected:
            raise ValueError(
                f"the state is of other environments: it has {found}, {type(self).__name__} has {expected}"
            )
        for name, tensor in tensors.items():
            self._state[name].copy_(tensor)
        self._length.copy_(state["episode_length_buf"])
        self.generator.set_state(state["generator"])


def _share_memory(tree: Tree, other: Tree) -> bool:
    """Return whether a tensor of one tree begins at the address of a tensor of the other."""
    places = {leaf.data_ptr() for leaf in leaves(other) if leaf.numel()}
    return any(leaf.data_ptr() in places for leaf in leaves(tree))


def _gives_new_tensors(cls: type[TensorEnv]) -> bool:
    """Return whether `gives_new_tensors` was declared for the methods of this class.

    A subclass that overrides one of them returns other tensors, for which the declaration of its base class does not
    speak.
    """
    for base in cls.__mro__:
        if "gives_new_tensors" in vars(base):
            return cls.gives_new_tensors
        if not {"begin", "advance", "observe"}.isdisjoint(vars(base)):
            return False
    return False
