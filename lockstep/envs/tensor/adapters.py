"""Adapters for tensor environments of other libraries: those with rsl_rl's interface, and those in JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.envs.tensor.base import TensorVecEnv
from lockstep.options.checks import check_whole, suggestion

RSL_RL_NAMES = ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "get_observations", "step")
"""Names of the methods and attributes of rsl_rl's interface."""


class RslRlEnv(TensorVecEnv):
    """Adapter for environments with rsl_rl's interface, such as those of mjlab, Isaac Lab and Legged Gym.

    Three generations of the interface are supported. Observations may be a tensor, or a dict or `TensorDict` with the
    groups "policy" and optionally "critic", alone or in a tuple with extras. A step may return four values, or the five
    of Legged Gym, of which the second are the critic's observations. These environments give no final observations, and
    their state cannot be stored.

    Args:
        env: The environment. An environment of Isaac Lab must be wrapped in its `RslRlVecEnvWrapper` first.
        policy_group: Group of observations that the policy acts on.
        critic_group: Group of observations for the critic, if there is one.
        single_action_space: Action space of one environment. Defaults to a Box without bounds.

    Attributes:
        critic_obs: The newest observations for the critic, or None.
    """

    gives_final_obs = False

    def __init__(
        self,
        env: Any,
        *,
        policy_group: str = "policy",
        critic_group: str = "critic",
        single_action_space: spaces.Space | None = None,
    ) -> None:
        missing = [name for name in RSL_RL_NAMES if not hasattr(env, name)]
        if missing:
            raise TypeError(
                f"{type(env).__name__} is not in the form of rsl_rl's VecEnv: it has no {', '.join(missing)}. Give the "
                "environment in the wrapper that its library has for rsl_rl."
            )
        self.env = env
        self.policy_group = policy_group
        self.critic_group = critic_group
        self._privileged = getattr(env, "get_privileged_observations", lambda: None)  # Legged Gym
        self.num_envs = int(env.num_envs)
        # A number, or a tensor with one limit for each environment. The largest bounds all episodes.
        self.max_episode_length = int(torch.as_tensor(env.max_episode_length).max())
        self.critic_obs: Tensor | None = None
        self._obs = self._current_observations()
        self.device = self._obs.device
        self.single_observation_space = spaces.Box(-np.inf, np.inf, tuple(self._obs.shape[1:]))
        self.single_action_space = single_action_space or spaces.Box(-np.inf, np.inf, (int(env.num_actions),))

    def _current_observations(self) -> Tensor:
        """Return the environment's current observations to act on, and set `critic_obs`."""
        obs = self._split_groups(self.env.get_observations(), {})
        privileged = self._privileged()
        if privileged is not None:
            self.critic_obs = privileged.clone()
        return obs

    def _split_groups(self, observations: Any, extras: Any) -> Tensor:
        """Return the observations to act on, and set `critic_obs`.

        The returned tensor may be the environment's own; `critic_obs` is a copy.

        Args:
            observations: Observations in any of the forms that the interface allows.
            extras: Extras of the step, which may have the critic's observations.
        """
        if isinstance(observations, tuple):
            observations, extras = observations
        critic = None
        if isinstance(observations, Tensor):
            policy = observations
            if isinstance(extras, Mapping):
                critic = extras.get("observations", {}).get(self.critic_group)
        else:
            names = list(observations.keys())
            if self.policy_group not in names:
                raise ValueError(
                    f"the environment has no group of observations policy_group={self.policy_group!r}; "
                    f"{suggestion(self.policy_group, names)}"
                )
            policy = observations[self.policy_group]
            critic = observations[self.critic_group] if self.critic_group in names else None
        if not isinstance(policy, Tensor):
            raise ValueError(
                f"the group of observations {self.policy_group!r} must be one tensor, not a {type(policy).__name__}: "
                "have the environment join its terms."
            )
        self.critic_obs = None if critic is None else critic.clone()
        return policy

    @property
    def episode_length_buf(self) -> Tensor:
        """Number of steps of each episode under way, int64 [B], counted by the environment."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self.env.episode_length_buf = lengths

    def reset(self, seed: int | None = None) -> Tensor:
        """Begin a new episode everywhere and return its first observations; see `TensorVecEnv.reset`.

        An environment without a method `seed` was seeded when it was made; a seed then gives a warning. One without
        `reset` has begun its episodes by itself.
        """
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        elif seed is not None:
            warnings.warn(
                f"{type(self.env).__name__} has no method seed: seed={seed} is ignored, give it where it is made.",
                stacklevel=2,
            )
        if hasattr(self.env, "reset"):
            self.env.reset()
        self._obs = self._current_observations()
        return self.get_observations()

    def get_observations(self) -> Tensor:
        return self._obs.clone()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        obs, *privileged, rewards, dones, extras = self.env.step(actions)
        self._obs = self._split_groups(obs, extras)
        if privileged and privileged[0] is not None:
            self.critic_obs = privileged[0].clone()

        dones = dones != 0  # some environments return integers
        # Missing without a time limit. Some environments change it only when an episode ends, so it counts only there.
        time_outs = extras.get("time_outs")
        time_outs = torch.zeros_like(dones) if time_outs is None else dones & (time_outs != 0)
        rewards = rewards.to(torch.float32, copy=True)
        return self.get_observations(), rewards, dones, {**extras, "time_outs": time_outs}

    def get_state(self) -> None:
        """Return None: these environments cannot give their state."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        raise ValueError(f"{type(self.env).__name__} cannot be put into a stored state: reset it.")


JaxReset = Callable[[Any], tuple[Any, Any]]
"""Function `reset(key)` of one environment that returns `(obs, state)`."""
JaxStep = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any, Any]]
"""Function `step(key, state, action)` of one environment that returns `(obs, state, reward, terminated, truncated,
info)`."""


class JaxEnv(TensorVecEnv):
    """Adapter for B environments that are pure functions of JAX. Arrays are shared with torch by DLPack.

    They stay on JAX's device. Observations may be dicts or tuples of arrays, nested ones too. `step` must begin a new
    episode itself when one ends. `info["final_observation"]`, if it is present, must then have the last observation of
    the old episode. gymnax 1.0 does both; see `from_gymnax`.

    Args:
        reset, step: Functions of *one* environment. They are vectorised over B and compiled here.
        single_observation_space, single_action_space: gymnasium's spaces of one environment.
        num_envs: Number of environments B.
        seed: Seed of the random keys.
        max_episode_length: Number of steps after which the environments cut an episode off; None without a limit.
    """

    def __init__(
        self,
        reset: JaxReset,
        step: JaxStep,
        single_observation_space: spaces.Space,
        single_action_space: spaces.Space,
        *,
        num_envs: int,
        seed: int = 0,
        max_episode_length: int | None = None,
    ) -> None:
        self.jax = jax = import_module("jax")
        self.num_envs = check_whole("num_envs", num_envs, 1)
        self.max_episode_length = max_episode_length
        self.single_observation_space = single_observation_space
        self.single_action_space = single_action_space

        def reset_all(key: Any) -> tuple[Any, Any, Any]:
            keys = jax.random.split(key, num_envs + 1)
            return keys[0], *jax.vmap(reset)(keys[1:])

        def step_all(key: Any, state: Any, actions: Any) -> tuple[Any, ...]:
            keys = jax.random.split(key, num_envs + 1)
            outcome = jax.vmap(step)(keys[1:], state, actions)
            if len(outcome) != 6:
                raise ValueError(
                    f"step returned {len(outcome)} values; it must return six, (obs, state, reward, terminated, "
                    "truncated, info), as gymnax does from version 1.0 on."
                )
            obs, state, rewards, terminated, truncated, info = outcome
            extras = {"time_outs": truncated & ~terminated}
            if "final_observation" in info:
                extras["final_obs"] = info["final_observation"]
            rewards = jax.numpy.asarray(rewards, jax.numpy.float32)
            return keys[0], state, obs, rewards, terminated | truncated, extras

        self._reset = jax.jit(reset_all)
        self._step = jax.jit(step_all)
        self._key = jax.random.key(check_whole("seed", seed, 0))
        self._key, first, self._env_state = self._reset(self._key)
        self._obs: Tree = map_tree(from_dlpack, first)  # memory of JAX, which torch must not write to
        self.device: torch.device = next(leaves(self._obs)).device
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

        # Trace one step without running it, to see whether it returns final observations.
        actions = jax.numpy.zeros((num_envs, *(single_action_space.shape or ())), self._jax_dtype())
        *_, extras = jax.eval_shape(self._step, self._key, self._env_state, actions)
        self.gives_final_obs = "final_obs" in extras

    @classmethod
    def from_gymnax(cls, env: Any, params: Any = None, *, num_envs: int, seed: int = 0) -> JaxEnv:
        """Make B environments of gymnax.

        Args:
            env: An environment or its id.
            params: Parameters of the environment. Defaults to its default parameters.
            num_envs: Number of environments B.
            seed: Seed of the random keys.
        """
        if isinstance(env, str):
            env, _ = import_module("gymnax").make(env)
        params = env.default_params if params is None else params
        to_gymnasium = import_module("gymnax.environments.spaces").gymnax_space_to_gym_space
        return cls(
            lambda key: env.reset(key, params),
            lambda key, state, action: env.step(key, state, action, params),
            to_gymnasium(env.observation_space(params)),
            to_gymnasium(env.action_space(params)),
            num_envs=num_envs,
            seed=seed,
            max_episode_length=int(params.max_steps_in_episode),
        )

    def _jax_dtype(self) -> Any:
        """Return the dtype of actions. JAX has no int64 by default, so it is replaced by int32."""
        dtype = self.single_action_space.dtype
        return np.dtype(np.int32) if dtype == np.int64 else dtype

    def _tensor(self, array: Any) -> Tensor:
        """Return a copy of a JAX array as a tensor, which may be written to."""
        copy: Tensor = from_dlpack(array).clone()
        return copy

    @property
    def episode_length_buf(self) -> Tensor:
        """Number of steps of each episode under way, int64 [B]. Assigned values are copied into it."""
        return self._length

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self._length.copy_(lengths)

    def reset(self, seed: int | None = None) -> Tree:
        if seed is not None:
            self._key = self.jax.random.key(check_whole("seed", seed, 0))
        self._key, obs, self._env_state = self._reset(self._key)
        self._obs = map_tree(from_dlpack, obs)
        self._length.zero_()
        return self.get_observations()

    def get_observations(self) -> Tree:
        return map_tree(torch.Tensor.clone, self._obs)

    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        if actions.dtype == torch.int64:
            actions = actions.int()
        jax_actions = self.jax.dlpack.from_dlpack(actions.detach().contiguous())
        self._key, self._env_state, obs, rewards, dones, extras = self._step(self._key, self._env_state, jax_actions)
        self._obs = map_tree(from_dlpack, obs)
        done = self._tensor(dones)
        self._length.add_(1).masked_fill_(done, 0)
        tensors = map_tree(self._tensor, extras)
        return self.get_observations(), self._tensor(rewards), done, tensors

    def get_state(self) -> dict[str, Any]:
        """Return copies of the state's leaves, of the observations, of the episodes' lengths, and of the key."""
        leaves = self.jax.tree.leaves(self._env_state)
        return {
            "leaves": {str(index): torch.tensor(np.asarray(leaf)) for index, leaf in enumerate(leaves)},
            "obs": map_tree(lambda leaf: leaf.to("cpu", copy=True), self._obs),
            "episode_length_buf": self._length.to("cpu", copy=True),
            "key": torch.tensor(np.asarray(self.jax.random.key_data(self._key)).view(np.uint8)),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        jax = self.jax
        leaves, tree = jax.tree.flatten(self._env_state)
        stored = [tensor.numpy() for tensor in state["leaves"].values()]
        found = [(leaf.shape, str(leaf.dtype)) for leaf in stored]
        expected = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        if found != expected:
            raise ValueError(f"the state is of other environments: it has {found}, these have {expected}")
        self._env_state = jax.tree.unflatten(tree, [jax.numpy.array(leaf) for leaf in stored])
        self._obs = map_tree(lambda leaf: leaf.to(self.device, copy=True), state["obs"])
        self._length.copy_(state["episode_length_buf"])
        self._key = jax.random.wrap_key_data(jax.numpy.array(state["key"].numpy().view(np.uint32)))
