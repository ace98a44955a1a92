"""`ActingPolicy`: a network with the transforms around it, which acts; and the check of observations it is handed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike

from lockstep.config.base import BaseConfig
from lockstep.connectors import ModuleConnectors, ObsPipeline
from lockstep.data import SampleBatch
from lockstep.data.actions import ActionForm, describe_actions, single_action
from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, map_tree
from lockstep.data.values import checked_array
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.modules import (
    ActingWeights,
    Actor,
    EpsilonGreedy,
    NumpyActor,
    RecurrentActor,
    RLModule,
    make_actor,
)
from lockstep.options.schedules import stages_of, value_at_step
from lockstep.policy.new_modules import NewModule
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import IN_MEMORY

NOT_LEARNED_FROM = (Columns.BATCH_INDEXES, Columns.TRUNCATEDS)
AT_ONCE = 65_536
"""rows that statistics take in together"""


class _Memory(threading.local):
    """Connectors with a memory, which follow the rows of `compute_actions`. Each thread has its own."""

    def __init__(self, recorded: ObsPipeline) -> None:
        self.recorded = recorded.copy()
        self.num_rows: int | None = None
        """Number of rows of `compute_actions`; None where episodes begin."""


class ActingPolicy:
    """The part of a policy that acts with one network: what an env runner has of a policy.

    Acting reads the parameters' memory, so new values are acted on at once. Any number of threads may ask it; what its
    connectors remember belongs to the calling thread.
    """

    def __init__(
        self,
        config: BaseConfig,
        module: RLModule,
        connectors: ModuleConnectors,
        *,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
    ) -> None:
        self.config = config
        self.observation_space, self.action_space = observation_space, action_space
        self.timesteps: dict[str, int] = {STEPS_SAMPLED: 0}
        self.is_stateful = module.is_stateful()
        self._dist = module.action_dist_cls
        self.exploration = config.exploration(module)
        """what draws its actions while collecting; None: its distribution"""
        wraps_acting = self.exploration is not None and self.exploration.wraps_acting
        self._around = self.exploration if wraps_acting else None
        """the same where it changes what the network gives out"""
        self.weights_seq_no = 0
        """version of the weights that act"""
        self.is_training = False
        """whether this is a training step, in which `compute_actions` explores"""
        self.seed(config.debugging.seed)
        self.act_with(module, connectors)
        self._memory = _Memory(connectors.recorded)

    def twin(self) -> ActingPolicy:
        """Return one that acts with the same network and connectors, and remembers nothing of what this one saw."""
        spaces: dict[str, Any] = {"observation_space": self.observation_space, "action_space": self.action_space}
        return ActingPolicy(self.config, self.module, self.connectors, **spaces)

    def check_draws(self) -> None:
        """Raise `ValueError` where the policy's own distribution does not draw its actions while it explores."""
        if self.exploration is not None and not self.exploration.keeps_density:
            raise ValueError(
                f"{self.config.algorithm} explores by {type(self.exploration).__name__}, not by drawing from its "
                "distribution, so there is nothing to sample; leave out --sample (deterministic=True)"
            )

    def act_with(self, module: RLModule, connectors: ModuleConnectors) -> None:
        """Act with this network and these transforms from now on."""
        self.module, self.connectors = module, connectors
        self._actor = make_actor(module, connectors.obs)

    @property
    def act(self) -> Callable[..., np.ndarray]:
        """`act(obs, noise)`: actions as learned from `[B, ...]`, with the parameters that the module has now.

        To be taken anew for each collect: what is held longer may act with parameters that were replaced meanwhile.
        """
        act = self._present_actor().act
        return act if self._around is None else partial(self._around.act, act)

    def _present_actor(self) -> Actor:
        if self._actor.is_stale():
            self._actor = make_actor(self.module, self.connectors.obs)
        return self._actor

    def seed(self, seed: int) -> None:
        """Begin the random numbers of `compute_actions` again."""
        self.rng = RandomStreams(seed).child("policy").numpy("compute_actions")

    @property
    def recorded(self) -> ObsPipeline:
        """What observations go through where data are collected; to be copied by whoever collects."""
        return self.connectors.recorded

    @property
    def seen_space(self) -> Any:
        """The space of the observations that are acted on and stored: what `recorded` makes of the environment's."""
        return self.observation_space if self.recorded.is_identity else self.recorded.observation_space

    def acting_weights(self, version: int, copy: bool) -> ActingWeights:
        """Return what others need to act as this does; without `copy` it may change with the next update."""
        flat, observations = self.module.get_flat_weights(copy=copy), self.connectors.obs.get_state()
        return ActingWeights(version, flat, observations, dict(self.timesteps))

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these from now on. `ValueError` where they are of another network; nothing is changed then."""
        self.module.set_flat_weights(weights.flat)
        if weights.obs_state:
            self.connectors.obs.set_state(weights.obs_state)
        if weights.timesteps:
            self.timesteps.clear()  # other modules of the policy may have the same dict
            self.timesteps.update(weights.timesteps)
        self.weights_seq_no = weights.version

    @torch.no_grad()
    def action_logp(self, obs: Tree, actions: np.ndarray) -> np.ndarray:
        """Return the log-probability [N] of `actions` [N, ...] as learned from, for raw observations [N, ...].

        Not for a policy with memory.
        """
        logp: np.ndarray = self._distribution(obs).log_prob(self._tensor(actions)).cpu().numpy()
        return logp

    @torch.no_grad()
    def act_with_logp(self, obs: Tree, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return actions as `act` does and how likely each was, `[B]`, from one pass through the network.

        Its weights may change at any time. Not for a policy with memory.
        """
        if noise is not None and noise.ndim > 2:  # of matrices: the density is that over all of them
            taken = self.act(obs, noise)
            return taken, self.action_logp(obs, taken)
        dist = self._distribution(obs)
        actions = dist.mode() if noise is None else dist.sample_with_noise(self._tensor(noise))
        return actions.cpu().numpy(), dist.log_prob(actions).cpu().numpy()

    def _distribution(self, obs: Tree) -> Any:
        """Return what actions are drawn from; where numpy acts, a row's does not depend on the rows beside it."""
        actor = self._present_actor()
        if isinstance(actor, NumpyActor) and self.exploration is None:
            return self._dist.from_inputs(torch.from_numpy(actor.dist_inputs(obs)))
        batch = {Columns.OBS: map_tree(self._tensor, self.connectors.obs(obs))}
        return self._dist.from_inputs(self.module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS])

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.as_tensor(array)
        like = next(self.module.parameters())
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)

    @property
    def exploration_level(self) -> float:
        """How much an exploration that draws on a device explores now."""
        if self.exploration is None:
            raise ValueError("the policy draws from its distribution, and has no level of exploration")
        return self.exploration.level(self.timesteps[STEPS_SAMPLED])

    @property
    def is_exploring(self) -> bool:
        """Whether this is a training step and exploration is not switched off."""
        return self.is_training and bool(self.config.env_runners.explore)

    def compute_actions(
        self,
        obs: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        rewards: ArrayLike | None = None,
    ) -> Any:
        """Return environment actions `[B, ...]` for raw observations `[B, ...]`.

        They are drawn with `explore=True`, the most likely ones with `explore=False`. None: drawn within a training
        step (`policy_within_training_step`), else the most likely ones. A recurrent policy returns `(actions, state)`;
        hand the state `{name: [B, ...]}` back with the next observations, None (or `get_initial_state(B)`) where
        episodes begin. Connectors with a memory follow the rows from call to call: `reset` where episodes begin, and
        `rewards` `[B]` of the step before where one needs them.

        Raises `ValueError` for observations or a state that do not fit, for NaN, and for another number of rows than
        are remembered.
        """
        checked, rows = checked_observations(self.observation_space, obs, batched=True)
        return self._followed(checked, rows, state, explore, rewards)

    def compute_single_action(
        self,
        obs: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = False,
        rewards: float | None = None,
    ) -> Any:
        """Return the environment's action for one observation (a plain int for a Discrete space).

        A recurrent policy returns `(action, state)`; the state `{name: [...]}` goes back in with the next observation.
        `rewards`: that of the step before, see `compute_actions`.
        """
        checked, rows = checked_observations(self.observation_space, obs, batched=False)
        if state is not None:
            state = map_tree(lambda leaf: np.asarray(leaf)[None], state)
        result = self._followed(checked, rows, state, explore, None if rewards is None else [rewards])
        action = single_action(result[0] if self.is_stateful else result, 0)
        return (action, {name: leaf[0] for name, leaf in result[1].items()}) if self.is_stateful else action

    def reset(self, env_index: int | np.ndarray | None = None) -> None:
        """Begin episodes in these rows of `compute_actions` (None: in all, whose number may be another then).

        It concerns connectors with a memory; what a collector remembers is its own.
        """
        self._memory.recorded.reset(env_index)
        if env_index is None:
            self._memory.num_rows = None

    def _followed(
        self, obs: Tree, rows: int, state: Mapping[str, Any] | None, explore: bool | None, rewards: ArrayLike | None
    ) -> Any:
        """Return what `compute_actions` does, for `rows` raw observations that are checked already."""
        memory = self._memory
        recorded = memory.recorded
        if recorded.is_identity:
            return self.actions_of(obs, rows, state, explore)
        if recorded.has_memory:
            if memory.num_rows not in (None, rows):
                raise ValueError(
                    f"{rows} observations, and the policy remembers {memory.num_rows} rows; call policy.reset() where "
                    "other episodes begin"
                )
            memory.num_rows = rows
        if rewards is not None:
            recorded.after_step(None, np.asarray(rewards))
        result = self.actions_of(recorded(obs), rows, state, explore)
        recorded.after_step(result[0] if self.is_stateful else result, None)
        return result

    def actions_of(self, obs: Tree, rows: int, state: Mapping[str, Any] | None, explore: bool | None) -> Any:
        """Return what `compute_actions` does, for `rows` observations as they are stored, which are checked already."""
        explores = self.is_exploring if explore is None else explore
        noise = self.draw_noise(self.rng, (rows,)) if explores else None
        if not self.is_stateful:
            return map_tree(np.copy, self.to_env(self.act(obs, noise)))
        actions, after = self.act_with_state(obs, noise, self._checked_state(state, rows))
        return map_tree(np.copy, self.to_env(actions)), after

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the state where episodes begin, `{name: [num_rows, ...]}`; empty for a policy without memory."""
        return self._actor.get_initial_state(num_rows)

    def act_with_state(
        self, obs: Tree, noise: np.ndarray | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return a recurrent policy's actions as learned from, and the state after them."""
        actor = self._present_actor()
        if not isinstance(actor, RecurrentActor):
            raise TypeError(f"{type(self.module).__name__} has no memory; use act")
        if self._around is not None:
            actions, after = self._around.act(actor.act_with_state, obs, noise, state)
            return actions, after
        return actor.act_with_state(obs, noise, state)

    def _checked_state(self, state: Mapping[str, Any] | None, rows: int) -> Mapping[str, np.ndarray]:
        expected = self.get_initial_state(rows)
        if state is None:
            return expected
        shapes = {name: np.shape(leaf) for name, leaf in state.items()} if isinstance(state, Mapping) else repr(state)
        wanted = {name: leaf.shape for name, leaf in expected.items()}
        if shapes != wanted:
            raise ValueError(f"the recurrent state has the shapes {shapes}, expected {wanted}; None begins episodes")
        return {name: np.asarray(state[name], leaf.dtype) for name, leaf in expected.items()}

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Draw random numbers for `act`, many steps at once; of action values with an `epsilon` of its own.

        Raises `ValueError` for an `epsilon` where actions do not come from action values.
        """
        if epsilon is not None:
            if not isinstance(self.exploration, EpsilonGreedy):
                raise ValueError(f"epsilon={epsilon}: {self.config.algorithm} does not explore by it; leave it out")
            return EpsilonGreedy(epsilon, self.exploration.num_actions).draw_noise(rng, leading_shape, 0)
        if self.exploration is not None:
            return self.exploration.draw_noise(rng, leading_shape, self.timesteps[STEPS_SAMPLED])
        return self._dist.draw_noise(rng, leading_shape)

    def to_env(self, actions: np.ndarray) -> Tree:
        """Return actions as the environment takes them, for actions as learned from."""
        of_space = self._dist.to_env(actions)
        return of_space if self.connectors.actions is None else self.connectors.actions(of_space)

    @property
    def random_space(self) -> Any:
        """The space that random actions are drawn from: the environment's, or the module's where no way leads back."""
        actions = self.connectors.actions
        return self.action_space if actions is None or actions.has_inverse else actions.module_space

    def from_env(self, actions: Tree) -> np.ndarray:
        """Return actions as learned from, for actions of `random_space`."""
        pipeline = self.connectors.actions
        return self._dist.from_env(
            pipeline.inverse(actions) if pipeline is not None and pipeline.has_inverse else actions
        )

    def check_action_form(self, buffer: ReplayBuffer) -> None:
        """Raise `MalformedBufferError` for a buffer whose actions are not those that the policy learns from."""
        if buffer.action_form != self.action_form:
            raise MalformedBufferError(
                f"the replay buffer holds {describe_actions(buffer.action_form)}, and the policy learns from "
                f"{describe_actions(self.action_form)}; give buffer.to_batch(), which is translated, or set "
                "buffer.action_form = policy.action_form where its actions are the policy's already"
            )

    @property
    def action_form(self) -> ActionForm | None:
        """How the actions that it learns from differ from the environment's; None: not at all."""
        actions = self.connectors.actions
        if actions is None:
            return ActionForm.of(self.action_space)
        return ActionForm.of(actions.module_space, rescaled=actions.rescales)

    def check_spaces(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Raise `ValueError` with both where the environment's spaces are not the policy's."""
        for name, space, other in (
            ("observation", self.observation_space, observation_space),
            ("action", self.action_space, action_space),
        ):
            if space != other:
                raise ValueError(
                    f"the policy's {name} space is {space}, the environment's is {other}; use the environment that the "
                    "policy was made for"
                )

    # -- what is learned from ---

    def learning_columns(self, batch: SampleBatch) -> SampleBatch:
        """Return the columns that are learned from, observations as the network sees them."""
        needed = {name: column for name, column in batch.items() if name not in NOT_LEARNED_FROM}
        if not self.connectors.obs.is_identity:
            seen = (name for name in (Columns.OBS, Columns.NEXT_OBS) if name in needed)
            needed |= {name: self.connectors.obs(needed[name]) for name in seen}
        if self.connectors.rewards is not None and Columns.REWARDS in needed:
            needed[Columns.REWARDS] = self.connectors.rewards.scale(needed[Columns.REWARDS])
        return SampleBatch.trusted(needed)

    @property
    def has_statistics(self) -> bool:
        """Whether observations or rewards are seen through running statistics."""
        return self.connectors.obs.has_statistics or self.connectors.rewards is not None

    def take_in(self, buffer: ReplayBuffer, rows: Sequence[np.ndarray]) -> None:
        """Take new rows of a replay buffer, those of each sub-buffer in their order, into the statistics."""
        if self.connectors.obs.has_statistics:
            self.connectors.update(buffer[np.concatenate(rows)][Columns.OBS], None, joined=False)
        if self.connectors.rewards is not None:
            shape = max(map(len, rows)), len(rows)
            rewards, dones, valid = np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool)
            for b, index in enumerate(rows):
                rewards[: len(index), b] = buffer.store.take(Columns.REWARDS, index)
                dones[: len(index), b] = buffer.ring.flags[index] != 0
                valid[: len(index), b] = True
            self.connectors.rewards(rewards, dones, valid)

    def fit_normalizers(self, data: ReplayBuffer | OfflineRows) -> bool:
        """Give the observation statistics all rows, once. Returns False, doing nothing, where there are none."""
        if not self.connectors.obs.has_statistics:
            return False
        rows = data.indices()
        for start in range(0, len(data), AT_ONCE):
            self.connectors.update(data[rows[start : start + AT_ONCE]][Columns.OBS], None, joined=False)
        return True


class AgentsActingPolicy:
    """Acts for several agents with weights from elsewhere: all that an env runner has of their policy.

    `acting` has the part of each module by module id. Modules come and go, and agents are mapped to others, with the
    weights.
    """

    is_multi_agent = True
    is_exploring = False  # its collector says

    def __init__(self, config: BaseConfig, acting: Mapping[str, ActingPolicy]) -> None:
        self.config, self.acting, self._mapping = config, dict(acting), config.multi_agent.policy_mapping_fn
        self._recipes: Mapping[str, Any] = {}
        """what the modules that were added are built from"""
        self.timesteps = {STEPS_SAMPLED: 0}
        for part in self.acting.values():
            part.timesteps = self.timesteps

    @property
    def policy_mapping_fns(self) -> list[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run."""
        return [mapping for _, mapping in stages_of("policy_mapping_fn", self._mapping)]

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """`f(agent, episode)` -> module id, for episodes that begin now."""
        mapping: Callable[..., str] | None = value_at_step(self.timesteps[STEPS_SAMPLED], self._mapping)
        return mapping

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights that act."""
        return next(iter(self.acting.values())).weights_seq_no

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these from now on, with the modules that they are of. `ValueError` for those of other networks."""
        by_module = weights.by_module()
        for module_id in set(self.acting) - set(by_module):
            del self.acting[module_id]
        for module_id, of_module in by_module.items():
            is_other = weights.recipes.get(module_id) != self._recipes.get(module_id)
            if module_id not in self.acting or is_other:
                self.acting[module_id] = self._built(module_id, weights)
            self.acting[module_id].set_weights(of_module)
        self._mapping, self._recipes = weights.policy_mapping_fn, weights.recipes

    def _built(self, module_id: str, weights: ActingWeights) -> ActingPolicy:
        if module_id not in weights.recipes:
            raise ValueError(f"the weights are of the module {module_id!r}, this policy has {list(self.acting)}")
        new = NewModule.of_recipe(self.config, weights.recipes[module_id], IN_MEMORY)
        parts, (observations, actions) = new.to_act(getattr(torch, self.config.framework.dtype)), new.spaces
        part = ActingPolicy(self.config, *parts, observation_space=observations, action_space=actions)
        part.timesteps = self.timesteps
        return part


# -- observations ---


ALONE = "give the observation alone, without the info that env.reset() returns beside it"


def checked_observations(space: spaces.Space[Any], obs: Tree, *, batched: bool, name: str = "obs") -> tuple[Any, int]:
    """Return the tree of arrays `[B, ...]` that `obs` is, and `B`; without `batched` it is one observation and gets
    `B = 1`.

    Raises `ValueError` with what was given and what is expected: for another shape or kind of numbers, for keys of a
    Dict that are unknown or missing, and for NaN, of which no action can be made.
    """
    rows: dict[str, int] = {}
    tree = _checked(space, obs, batched, name, rows)
    if len(set(rows.values())) > 1:
        raise ValueError(f"the parts of the observations have different numbers of rows: {rows}")
    return tree, next(iter(rows.values()))


def _checked(space: spaces.Space[Any], obs: Tree, batched: bool, name: str, rows: dict[str, int]) -> Any:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        found = dict(enumerate(obs)) if isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list) else obs
        if not isinstance(found, Mapping) or found.keys() != parts.keys():
            has = f"the keys {list(found)}" if isinstance(found, Mapping) else f"the type {type(obs).__name__}"
            raise ValueError(f"{name} has {has}, expected a {type(space).__name__} of {list(parts)}; {ALONE}")
        checked = {key: _checked(part, found[key], batched, f"{name}[{key!r}]", rows) for key, part in parts.items()}
        return checked if isinstance(space, spaces.Dict) else tuple(checked.values())
    if space.shape is None or space.dtype is None:  # not of numbers: for a network of the user's own
        rows[name] = len(obs) if batched else 1
        return obs if batched else [obs]
    array = _array(space, obs, batched, name)
    rows[name] = len(array)
    return array


def _array(space: spaces.Space[Any], obs: Tree, batched: bool, name: str) -> np.ndarray:
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ValueError(f"{name}={obs!r} makes no array of observations ({error}); {ALONE}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the dtype {array.dtype}, expected {space.dtype}; {ALONE}")
    shape = space.shape or ()
    if (array.shape[1:] if batched else array.shape) != shape or (batched and array.ndim == 0):
        expected = f"[{', '.join(map(str, ('B', *shape)))}]" if batched else shape
        raise ValueError(
            f"{name} has the shape {array.shape}, expected {expected} (compute_actions takes B observations, "
            "compute_single_action one, without B)"
        )
    broken = np.argwhere(np.isnan(array))
    if len(broken):
        raise ValueError(f"{name}{broken[0].tolist() or ''} is NaN: no action can be chosen for it")
    array = checked_array(space, array, name, array.shape[: array.ndim - len(shape)])
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
        outside = np.argwhere((array < space.start) | (array >= space.start + sizes))
        if len(outside):
            place = tuple(outside[0].tolist())
            raise ValueError(f"{name}{list(place) or ''} is {array[place]}, outside of {space}")
    return array if batched else array[None]
