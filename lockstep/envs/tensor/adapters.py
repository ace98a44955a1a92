"""Adapters for tensor environments of other libraries: those with rsl_rl's interface, and those in JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from lockstep.data.trees import Tree, leaves, map_tree, named_leaves
from lockstep.envs.tensor.base import TensorVecEnv
from lockstep.envs.tensor.step_log import StepLog
from lockstep.options.checks import check_whole, suggestion

RSL_RL_NAMES = ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "get_observations", "step")
"""Names of the methods and attributes of rsl_rl's interface."""


OBSERVATION_SETS = {
    "actor": "policy",
    "student": "policy",
    "policy": "policy",
    "critic": "critic",
    "teacher": "teacher",
    "rnd_state": "intrinsic",
}
"""Our names of the parts of an algorithm, by the names of rsl_rl's observation sets. "policy" was once the name of
"actor"."""


class RslRlEnv(TensorVecEnv):
    """Adapter for environments with rsl_rl's interface, such as those of mjlab, Isaac Lab and Legged Gym.

    Each group of observations is an entry of a Dict observation space, also a group within a group.
    `observation_groups` says which entries the parts of an algorithm see unless `rl_module(observation_groups=...)`
    says otherwise. Values in `extras["log"]` (or `extras["episode"]`) are averaged over a collect, and are in its
    metrics.

    Three generations of the interface are supported. Observations are a `TensorDict`, a dict, or a tensor, alone or in
    a tuple with extras. A tensor is the only observation or, if there are observations for the critic besides it, the
    entry "policy" beside the entry "critic". A step may return four values, or the five of Legged Gym, of which the
    second are the critic's observations. These environments give no final observations, and their state cannot be
    stored.

    Args:
        env: The environment. An environment of Isaac Lab must be wrapped in its `RslRlVecEnvWrapper` first.
        obs_groups: Groups of observations by observation set, as in rsl_rl's configuration of a runner:
            `{"actor": ["proprio"], "critic": ["proprio", "heights"]}`. A group within a group is a path such as
            `"sensors/left"`. As in rsl_rl, a set that is left out is the group of the same name if there is one,
            otherwise the group "policy". If there is neither, it has all groups.
        single_action_space: Action space of one environment. Defaults to a Box without bounds.
        policy_group: Deprecated; use `obs_groups={"actor": [policy_group]}`.
        critic_group: Deprecated; use `obs_groups={"critic": [critic_group]}`.

    Raises:
        TypeError: The environment lacks a part of rsl_rl's interface.
        ValueError: `obs_groups` has an unknown set, an empty list or a group that the environment does not have.

    Attributes:
        observation_groups: Paths of entries of the observations by part of an algorithm: "policy", "critic", "teacher"
            and "intrinsic". Empty if observations are one tensor.
    """

    gives_final_obs = False

    def __init__(
        self,
        env: Any,
        *,
        obs_groups: Mapping[str, Sequence[str]] | None = None,
        single_action_space: spaces.Space | None = None,
        policy_group: str | None = None,
        critic_group: str | None = None,
    ) -> None:
        missing = [name for name in RSL_RL_NAMES if not hasattr(env, name)]
        if missing:
            raise TypeError(
                f"{type(env).__name__} is not in the form of rsl_rl's VecEnv: it has no {', '.join(missing)}. Give the "
                "environment in the wrapper that its library has for rsl_rl."
            )
        obs_groups = dict(obs_groups or {})
        for name, observation_set, group in (
            ("policy_group", "actor", policy_group),
            ("critic_group", "critic", critic_group),
        ):
            if group is not None:
                warnings.warn(
                    f"RslRlEnv({name}={group!r}) is deprecated; use obs_groups={{{observation_set!r}: [{group!r}]}}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                obs_groups.setdefault(observation_set, [group])
        self.env = env
        self._privileged = getattr(env, "get_privileged_observations", lambda: None)  # Legged Gym
        self._log = StepLog()
        self.num_envs = int(env.num_envs)
        # A number, or a tensor with one limit for each environment. The largest bounds all episodes.
        self.max_episode_length = int(torch.as_tensor(env.max_episode_length).max())
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Shapes `[B, ...]` of the entries of the first observations by path. Later ones must have them too."""
        self._obs = self._current_observations()
        self._shapes = {path: tuple(leaf.shape) for path, leaf in named_leaves("", self._obs)}
        self.device = next(leaves(self._obs)).device
        self.single_observation_space = _space_of(self._obs)
        self.single_action_space = single_action_space or spaces.Box(-np.inf, np.inf, (int(env.num_actions),))
        self.observation_groups = self._resolve(obs_groups)

    def _resolve(self, obs_groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the groups by our names, and groups of the same names for parts that are not configured."""
        if not isinstance(self._obs, dict):
            if obs_groups:
                raise ValueError(f"obs_groups={obs_groups!r} is not allowed: the observations are one tensor")
            return {}
        known = _paths(self._obs)
        groups: dict[str, list[str]] = {}
        for name, paths in obs_groups.items():
            if name not in OBSERVATION_SETS:
                raise ValueError(f"obs_groups has the unknown set {name!r}; {suggestion(name, OBSERVATION_SETS)}")
            if isinstance(paths, str) or not paths:
                raise ValueError(f"obs_groups[{name!r}]={paths!r} is not allowed; it must be a list with group names")
            for path in paths:
                if path not in known:
                    raise ValueError(
                        f"obs_groups[{name!r}] has {path!r}, and the environment has no such group of observations; "
                        f"{suggestion(path, known)}"
                    )
            part = OBSERVATION_SETS[name]
            if groups.setdefault(part, list(paths)) != list(paths):
                raise ValueError(
                    f"obs_groups has two sets for the policy, with different groups: {obs_groups!r}; give the set of "
                    "the policy that is trained"
                )
        for name, part in OBSERVATION_SETS.items():
            # In the order of the table: a group "actor" comes before a group "policy".
            if part not in groups and name in self._obs:
                groups[part] = [name]
        for part in dict.fromkeys(OBSERVATION_SETS.values()):
            if part not in groups and "policy" in self._obs:
                groups[part] = ["policy"]
        return groups

    def _current_observations(self) -> Tree:
        """Return copies of the environment's current observations."""
        return self._read(self.env.get_observations(), {}, self._privileged())

    def _read(self, observations: Tree, extras: Mapping[str, Any], privileged: Tensor | None) -> Tree:
        """Return copies of observations as a tensor, or as a nested dict of tensors.

        Args:
            observations: Observations in any of the forms that the interface allows.
            extras: Extras of the step, which may have the critic's observations.
            privileged: Legged Gym's observations for the critic, or None.

        Raises:
            ValueError: An entry is missing, or has another shape than in the first observations.
        """
        if isinstance(observations, tuple):
            observations, extras = observations
        if isinstance(observations, Tensor):
            if privileged is None and isinstance(extras, Mapping):
                privileged = extras.get("observations", {}).get("critic")
            if privileged is not None:
                observations = {"policy": observations, "critic": privileged}
        tree = _copied(observations)
        if self._shapes:
            found = {path: tuple(leaf.shape) for path, leaf in named_leaves("", tree)}
            if found != self._shapes:
                raise ValueError(
                    f"{type(self.env).__name__} gave observations of the shapes {_without_slash(found)}, and the first "
                    f"ones had {_without_slash(self._shapes)}; groups and shapes must not change"
                )
        return tree

    @property
    def episode_length_buf(self) -> Tensor:
        """Number of steps of each episode under way, int64 [B], counted by the environment."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: Tensor) -> None:
        self.env.episode_length_buf = lengths

    def reset(self, seed: int | None = None) -> Tree:
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
        self._log.forget()
        self._obs = self._current_observations()
        return self.get_observations()

    def get_observations(self) -> Tree:
        return map_tree(torch.Tensor.clone, self._obs)

    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, dict[str, Any]]:
        self.check_actions(actions)
        obs, *privileged, rewards, dones, extras = self.env.step(actions)
        self._obs = self._read(obs, extras, privileged[0] if privileged else None)
        log = extras.get("episode", extras.get("log"))
        if log:
            self._log.add(log)

        dones = dones != 0  # some environments return integers
        # Missing without a time limit. Some environments change it only when an episode ends, so it counts only there.
        time_outs = extras.get("time_outs")
        time_outs = torch.zeros_like(dones) if time_outs is None else dones & (time_outs != 0)
        rewards = rewards.to(torch.float32, copy=True)
        return self.get_observations(), rewards, dones, {**extras, "time_outs": time_outs}

    def take_log(self) -> dict[str, tuple[float, int]]:
        return self._log.take()

    def get_state(self) -> None:
        """Return None: these environments cannot give their state."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        raise ValueError(f"{type(self.env).__name__} cannot be put into a stored state: reset it.")


def _copied(observations: Tree) -> Tree:
    """Return copies of observations: a tensor, or a nested dict of tensors for a `TensorDict` or a dict.

    Raises:
        ValueError: An entry is neither.
    """
    if isinstance(observations, Tensor):
        return observations.clone()
    if not hasattr(observations, "keys"):
        raise ValueError(
            f"observations must be tensors, and dicts or TensorDicts of them, not a {type(observations).__name__}"
        )
    return {name: _copied(observations[name]) for name in observations.keys()}  # noqa: SIM118 - a TensorDict is no dict


def _space_of(obs: Tree) -> spaces.Space[Any]:
    """Return the space of one environment for observations `[B, ...]`."""
    if isinstance(obs, dict):
        return spaces.Dict([(name, _space_of(part)) for name, part in obs.items()])
    shape = tuple(obs.shape[1:])
    if obs.dtype == torch.bool:
        return spaces.Box(0, 1, shape, np.bool_)
    if obs.is_floating_point():
        return spaces.Box(-np.inf, np.inf, shape, np.float64 if obs.dtype == torch.float64 else np.float32)
    limits = torch.iinfo(obs.dtype)
    return spaces.Box(limits.min, limits.max, shape, torch.empty(0, dtype=obs.dtype).numpy().dtype)


def _paths(obs: Tree, above: str = "") -> list[str]:
    """Return the paths of all entries of a nested dict, and of all dicts in it."""
    if not isinstance(obs, dict):
        return []
    paths = []
    for name, part in obs.items():
        paths += [above + name, *_paths(part, f"{above}{name}/")]
    return paths


def _without_slash(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {path.removeprefix("/"): shape for path, shape in shapes.items()}


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
