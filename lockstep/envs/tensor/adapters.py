"""Tensor environments of other libraries: those in rsl_rl's form, and those of JAX."""

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

from lockstep.envs.tensor.base import TensorVecEnv
from lockstep.options.checks import check_whole, suggestion

RSL_RL_NAMES = ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "get_observations", "step")
"""what an environment in rsl_rl's form has"""


class RslRlEnv(TensorVecEnv):
    """Wraps an environment in the form of rsl_rl's `VecEnv`, as those of mjlab, Isaac Lab and Legged Gym.

    Observations may be a tensor, or a dict or `TensorDict` with the groups "policy" and maybe "critic", alone or with
    extras in a tuple; a step may return four values, or the five of Legged Gym, whose second are the critic's
    observations. They do not tell final observations, and their state cannot be stored.

    Args:
        env: the environment. One that Isaac Lab made goes into its `RslRlVecEnvWrapper` first.
        policy_group: the group of observations to act on.
        critic_group: the group for the critic, where there is one.
        single_action_space: of one environment; None for numbers without bounds.

    Attributes:
        critic_obs: the newest observations for the critic, or None.
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
        self.env, self.policy_group, self.critic_group = env, policy_group, critic_group
        self._privileged = getattr(env, "get_privileged_observations", lambda: None)  # Legged Gym
        self.num_envs = int(env.num_envs)
        # A number, or a tensor with one for each environment: an episode is at most as long as the largest.
        self.max_episode_length = int(torch.as_tensor(env.max_episode_length).max())
        self.critic_obs: Tensor | None = None
        self._obs = self._observed()
        self.device = self._obs.device
        self.single_observation_space = spaces.Box(-np.inf, np.inf, tuple(self._obs.shape[1:]))
        self.single_action_space = single_action_space or spaces.Box(-np.inf, np.inf, (int(env.num_actions),))

    def _observed(self) -> Tensor:
        """Ask the environment for its observations."""
        obs = self._take(self.env.get_observations(), {})
        privileged = self._privileged()
        self.critic_obs = self.critic_obs if privileged is None else privileged.clone()
        return obs

    def _take(self, observations: Any, extras: Any) -> Tensor:
        """Return the observations to act on, which the environment may own; keep a copy of the critic's."""
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
        """Steps of the episodes under way, int64 [B], as the environment counts them."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self.env.episode_length_buf = lengths

    def reset(self, seed: int | None = None) -> Tensor:
        """Begin a new episode everywhere and return its first observations; see `TensorVecEnv.reset`.

        An environment without `seed` was seeded where it was made (a warning says so); one without `reset` began by
        itself.
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
        self._obs = self._observed()
        return self.get_observations()

    def get_observations(self) -> Tensor:
        return self._obs.clone()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        obs, *critic, rewards, dones, extras = self.env.step(actions)
        self._obs = self._take(obs, extras)
        if critic and critic[0] is not None:
            self.critic_obs = critic[0].clone()
        dones = dones != 0
        time_outs = extras.get("time_outs")  # missing where there is no limit, old where no episode ended
        time_outs = torch.zeros_like(dones) if time_outs is None else dones & (time_outs != 0)
        rewards = rewards.to(torch.float32, copy=True)
        return self.get_observations(), rewards, dones, {**extras, "time_outs": time_outs}

    def get_state(self) -> None:
        """Return None: these environments cannot tell their state."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        raise ValueError(f"{type(self.env).__name__} cannot be put into a stored state: reset it.")


JaxReset = Callable[[Any], tuple[Any, Any]]
"""`reset(key)` of one environment, which returns `(obs, state)`"""
JaxStep = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any, Any]]
"""`step(key, state, action)` of one environment, which returns `(obs, state, reward, terminated, truncated, info)`"""


class JaxEnv(TensorVecEnv):
    """Steps B environments that are pure functions of JAX, and shares their arrays with torch by DLPack.

    They stay on JAX's device. `step` must begin a new episode itself where one ended; where
    `info["final_observation"]` is there, it has the observation at which the old one arrived. gymnax 1.0 is like that:
    see `from_gymnax`.

    Args:
        reset, step: the functions of *one* environment; they are mapped over B and compiled here.
        single_observation_space, single_action_space: gymnasium's spaces of one environment.
        num_envs: number of environments B.
        seed: of the keys.
        max_episode_length: after how many steps they cut an episode; None where they do not.
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
        self.num_envs, self.max_episode_length = check_whole("num_envs", num_envs, 1), max_episode_length
        self.single_observation_space, self.single_action_space = single_observation_space, single_action_space

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
            arrived = {"final_obs": info["final_observation"]} if "final_observation" in info else {}
            rewards = jax.numpy.asarray(rewards, jax.numpy.float32)
            told = {"time_outs": truncated & ~terminated, **arrived}
            return keys[0], state, obs, rewards, terminated | truncated, told

        self._reset, self._step = jax.jit(reset_all), jax.jit(step_all)
        self._key = jax.random.key(check_whole("seed", seed, 0))
        self._key, first, self._env_state = self._reset(self._key)
        self._obs = from_dlpack(first)  # JAX owns it
        self.device = self._obs.device
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        actions = jax.numpy.zeros((num_envs, *(single_action_space.shape or ())), self._jax_dtype())
        *_, told = jax.eval_shape(self._step, self._key, self._env_state, actions)
        self.gives_final_obs = "final_obs" in told

    @classmethod
    def from_gymnax(cls, env: Any, params: Any = None, *, num_envs: int, seed: int = 0) -> JaxEnv:
        """Step an environment of gymnax.

        Args:
            env: its id, or the environment.
            params: its parameters; None for the usual ones.
            num_envs: number of environments B.
            seed: of the keys.
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
        """Return the dtype of actions: JAX has no int64 unless it is told so."""
        return np.dtype(np.int32) if self.single_action_space.dtype == np.int64 else self.single_action_space.dtype

    def _tensor(self, array: Any) -> Tensor:
        """Return a copy, which may be written to; JAX keeps the array."""
        return from_dlpack(array).clone()

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps of the episodes under way, int64 [B]; what is assigned is copied into it."""
        return self._length

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self._length.copy_(lengths)

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._key = self.jax.random.key(check_whole("seed", seed, 0))
        self._key, obs, self._env_state = self._reset(self._key)
        self._obs = from_dlpack(obs)
        self._length.zero_()
        return self.get_observations()

    def get_observations(self) -> Tensor:
        return self._obs.clone()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        if actions.dtype == torch.int64:
            actions = actions.int()
        taken = self.jax.dlpack.from_dlpack(actions.detach().contiguous())
        self._key, self._env_state, obs, rewards, dones, told = self._step(self._key, self._env_state, taken)
        self._obs = from_dlpack(obs)
        ended = self._tensor(dones)
        self._length.add_(1).masked_fill_(ended, 0)
        extras = {name: self._tensor(value) for name, value in told.items()}
        return self.get_observations(), self._tensor(rewards), ended, extras

    def get_state(self) -> dict[str, Any]:
        """Return copies of the leaves of the state, the observations, the lengths of the episodes, and the key."""
        leaves = self.jax.tree.leaves(self._env_state)
        return {
            "leaves": {str(index): torch.tensor(np.asarray(leaf)) for index, leaf in enumerate(leaves)},
            "obs": self._obs.to("cpu", copy=True),
            "episode_length_buf": self._length.to("cpu", copy=True),
            "key": torch.tensor(np.asarray(self.jax.random.key_data(self._key)).view(np.uint8)),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        jax = self.jax
        leaves, tree = jax.tree.flatten(self._env_state)
        stored = [tensor.numpy() for tensor in state["leaves"].values()]
        found, kept = ([(leaf.shape, str(leaf.dtype)) for leaf in each] for each in (stored, leaves))
        if found != kept:
            raise ValueError(f"the state is of other environments: it has {found}, these have {kept}")
        self._env_state = jax.tree.unflatten(tree, [jax.numpy.array(leaf) for leaf in stored])
        self._obs = state["obs"].to(self.device, copy=True)
        self._length.copy_(state["episode_length_buf"])
        self._key = jax.random.wrap_key_data(jax.numpy.array(state["key"].numpy().view(np.uint32)))
