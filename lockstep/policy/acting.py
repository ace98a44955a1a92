"""Policies that act with one network or several (`ActingPolicy`, `AgentsActingPolicy`), and the check of their
observations."""

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
from lockstep.connectors.acting import ActingObservations
from lockstep.data import SampleBatch
from lockstep.data.actions import ActionForm, describe_actions, single_action
from lockstep.data.columns import Columns
from lockstep.data.groups import central_groups, has_state, split_state
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
from lockstep.modules.defaults.actor_critic import CRITIC_STATE_PREFIX, VALUE_STATE_PREFIX
from lockstep.options.schedules import stages_of, value_at_step
from lockstep.policy.new_modules import NewModule
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import IN_MEMORY

UNLEARNED_COLUMNS = (Columns.BATCH_INDEXES, Columns.TRUNCATEDS)
"""Columns of samples that no loss reads."""
STATISTICS_CHUNK = 65_536
"""Number of rows that are added to the statistics at a time, so that data larger than the memory can be added."""


class _ConnectorHistory(threading.local):
    """Copy of the connectors `ActingPolicy.recorded`, with the memory of the episodes that `compute_actions` acts in.

    A frame stack, for example, keeps the last frames of each row. A row is the same episode in consecutive calls. Each
    thread has its own copy.
    """

    def __init__(self, recorded: ObsPipeline) -> None:
        self.recorded = recorded.copy()
        self.num_rows: int | None = None
        """Number of rows of the last `compute_actions`; None after `reset`."""


class ActingPolicy:
    """Policy that acts with one network and does not learn: a part of a `Policy`, or the policy of an env runner.

    It shares the memory of the network's parameters: if a learner changes them, it acts with the new values at once.
    Any number of threads may call it; each has its own history of connectors with a memory.

    Args:
        config: The configuration.
        module: The network.
        connectors: The connectors of observations, actions and rewards.
        observation_space: Observation space of the environment.
        action_space: Action space of the environment.
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
        self.observation_space = observation_space
        self.action_space = action_space
        self.timesteps: dict[str, int] = {STEPS_SAMPLED: 0}
        """Number of sampled steps, which schedules of exploration depend on. All parts of a policy share one dict."""
        self.is_stateful = module.is_stateful()
        """Whether the network has recurrent layers."""
        self._dist = module.action_dist_cls
        self.exploration = config.exploration(module)
        """Exploration that draws the actions while collecting; None if the policy's distribution draws them."""
        wraps_acting = self.exploration is not None and self.exploration.wraps_acting
        self._acting_wrapper = self.exploration if wraps_acting else None
        """The exploration, if it wraps the function that acts, as noisy weights do; otherwise None."""
        self.weights_seq_no = 0
        """Version of the weights."""
        self.is_training = False
        """Whether the policy is within a training step, where `compute_actions` explores."""
        self.seed(config.debugging.seed)
        self.set_network(module, connectors)
        self._history = _ConnectorHistory(connectors.recorded)

    def with_new_history(self) -> ActingPolicy:
        """Return a policy with the same network and connectors, and without this policy's history of observations."""
        return ActingPolicy(
            self.config,
            self.module,
            self.connectors,
            observation_space=self.observation_space,
            action_space=self.action_space,
        )

    def check_samples_from_distribution(self) -> None:
        """Raise `ValueError` if the actions while exploring are not samples of the policy's distribution."""
        # `keeps_density`: actions of this exploration have the density of the distribution, as with gSDE.
        # Of the two options that the message names, `--sample` is that of the command `export`, and
        # `deterministic=True` that of `Policy.export`, for the same choice.
        if self.exploration is not None and not self.exploration.keeps_density:
            raise ValueError(
                f"{self.config.algorithm} explores by {type(self.exploration).__name__}, not by drawing from its "
                "distribution, so there is nothing to sample; leave out --sample (deterministic=True)"
            )

    def set_network(self, module: RLModule, connectors: ModuleConnectors) -> None:
        """Act with this network and these connectors from now on."""
        self.module = module
        self.connectors = connectors
        self.observations = self._make_observations()
        self._actor = make_actor(module, self.observations)

    def _make_observations(self) -> ActingObservations:
        """Return the way of observations to the network, which uses only what the policy sees."""
        groups = self.module.observation_groups
        has_central_state = bool(self.config.multi_agent.centralized_critic)
        if has_central_state and not groups:
            # A network of version 0.2, which has a space of the state in place of groups.
            own_space, _ = split_state(self.observation_space)
            groups = central_groups(own_space)
        return ActingObservations(
            groups,
            self.recorded,
            self.connectors.obs,
            self.observation_space,
            has_central_state=has_central_state,
            is_old=self.module.critic_space is not None,
            has_other_memory=self.is_stateful,
        )

    def checked(self, obs: Tree, *, batched: bool, name: str = "obs") -> tuple[Any, int]:
        """Return what a caller gives to act on in the form of the environment's observations, and the number of rows.

        Entries that the policy does not see may be missing, and are left out. Arguments and errors: see
        `checked_observations`.
        """
        seen = self.observations.of_policy(obs)
        tree, rows = checked_observations(self.observations.space, seen, batched=batched, name=name)
        return self.observations.as_recorded(tree), rows

    @property
    def act(self) -> Callable[..., np.ndarray]:
        """Function `act(obs, noise)` that returns actions as learned from, `[B, ...]`, for stored observations.

        "As learned from" is the form in which the network gives actions and losses read them. `to_env` converts them to
        the environment's form. Example: for `Discrete(3, start=1)` the learner's action 0 is the environment's action
        1.

        Read this property in each collect: an older function may act with parameters that were replaced since.
        """
        act = self._present_actor().act
        return act if self._acting_wrapper is None else partial(self._acting_wrapper.act, act)

    def _present_actor(self) -> Actor:
        """Return the actor of the network, built again if the network's parameters are at other addresses."""
        if self._actor.is_stale():
            self._actor = make_actor(self.module, self.observations)
        return self._actor

    def seed(self, seed: int) -> None:
        """Restart the random numbers of `compute_actions` from a seed."""
        self.rng = RandomStreams(seed).child("policy").numpy("compute_actions")

    @property
    def recorded(self) -> ObsPipeline:
        """Connectors that raw observations pass through before they are stored and acted on. A collector copies
        them."""
        return self.connectors.recorded

    @property
    def stored_observation_space(self) -> Any:
        """Space of the observations that are stored and acted on: the output space of `recorded`."""
        return self.observation_space if self.recorded.is_identity else self.recorded.observation_space

    def acting_weights(self, version: int, copy: bool) -> ActingWeights:
        """Return the weights and the observation statistics that env runners act with.

        Unless `copy` is True, the next update changes the weights in place.
        """
        flat = self.module.get_flat_weights(copy=copy)
        obs_state = self.connectors.obs.get_state()
        return ActingWeights(version, flat, obs_state, dict(self.timesteps))

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these weights from now on.

        Raises `ValueError` for the weights of another network; nothing is changed then.
        """
        self.module.set_flat_weights(weights.flat)
        # Statistics travel with the weights: the network was trained on observations that were normalised with them.
        if weights.obs_state:
            self.connectors.obs.set_state(weights.obs_state)
        if weights.timesteps:
            # In place: all parts of a policy share this dict.
            self.timesteps.clear()
            self.timesteps.update(weights.timesteps)
        self.weights_seq_no = weights.version

    @torch.no_grad()
    def action_logp(self, obs: Tree, actions: np.ndarray) -> np.ndarray:
        """Return the log-probabilities `[N]` of `actions` `[N, ...]` as learned from, for stored observations `[N,
        ...]`.

        Not for policies with recurrent layers.
        """
        logp: np.ndarray = self._distribution(obs).log_prob(self._tensor(actions)).cpu().numpy()
        return logp

    @torch.no_grad()
    def act_with_logp(self, obs: Tree, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return actions and the log-probability of each, `[B]`.

        Both come from one pass through the network: another thread may change the weights at any time, and the
        log-probability must be that of the weights that chose the action. Not for policies with recurrent layers.
        """
        if noise is not None and noise.ndim > 2:
            # Noise of gSDE is a random matrix for each row. For one given matrix the action is certain and has no
            # log-probability. So the log-probability is that of the action if the matrix is unknown: if it is drawn
            # from normal numbers, actions are normally distributed.
            actions = self.act(obs, noise)
            return actions, self.action_logp(obs, actions)
        dist = self._distribution(obs)
        actions = dist.mode() if noise is None else dist.sample_with_noise(self._tensor(noise))
        return actions.cpu().numpy(), dist.log_prob(actions).cpu().numpy()

    def _distribution(self, obs: Tree) -> Any:
        """Return the distribution of actions for stored observations."""
        actor = self._present_actor()
        # 1. Without an exploration the `NumpyActor` is used, if there is one. It computes each row alone, so the
        #    log-probability of an action has the same bits in a batch of one vector step and in one of a whole rollout.
        #    A matrix product of torch may round a row differently in batches of different sizes.
        # 2. Otherwise the module is used. With an exploration the distribution may be part of the module's forward
        #    pass: with gSDE, for example, the policy's head computes the deviations from the features.
        if isinstance(actor, NumpyActor) and self.exploration is None:
            return self._dist.from_inputs(torch.from_numpy(actor.dist_inputs(obs)))
        batch = {Columns.OBS: map_tree(self._tensor, self.observations(obs))}
        return self._dist.from_inputs(self.module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS])

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        """Return a tensor on the network's device; floats get the network's dtype."""
        tensor = torch.as_tensor(array)
        parameter = next(self.module.parameters())
        dtype = parameter.dtype if tensor.is_floating_point() else None
        return tensor.to(parameter.device, dtype)

    @property
    def exploration_level(self) -> float:
        """Present level of exploration, such as epsilon or the scale of noise.

        Raises `ValueError` for a policy that samples from its distribution.
        """
        if self.exploration is None:
            raise ValueError("the policy draws from its distribution, and has no level of exploration")
        return self.exploration.level(self.timesteps[STEPS_SAMPLED])

    @property
    def is_exploring(self) -> bool:
        """Whether the policy is within a training step and `env_runners.explore` is on."""
        return self.is_training and bool(self.config.env_runners.explore)

    def compute_actions(
        self,
        obs: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        rewards: ArrayLike | None = None,
    ) -> Any:
        """Return environment actions `[B, ...]` for raw observations `[B, ...]`; see `Policy.compute_actions`.

        Args:
            obs: Observations.
            state: Recurrent state `{name: [B, ...]}` that the last call returned. None begins episodes.
            explore: Whether actions are sampled. Defaults to True within a training step, else False.
            rewards: Rewards `[B]` of the step before, for connectors that need them.

        Returns:
            The actions; for a recurrent policy `(actions, state)`.

        Raises:
            ValueError: Observations or a state that do not fit, NaN, or another number of rows than in the last call
                if connectors have a memory.
        """
        checked, rows = self.checked(obs, batched=True)
        return self._compute_actions(checked, rows, state, explore, rewards)

    def compute_single_action(
        self,
        obs: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = False,
        rewards: float | None = None,
    ) -> Any:
        """Return the environment's action for one observation; a plain int for a Discrete space.

        A recurrent policy returns `(action, state)`; pass the state `{name: [...]}` with the next observation.

        Args:
            obs: The observation.
            state: Recurrent state that the last call returned. None begins an episode.
            explore: Whether the action is sampled. None samples within a training step.
            rewards: Reward of the step before, for connectors that need it.
        """
        checked, rows = self.checked(obs, batched=False)
        if state is not None:
            state = map_tree(lambda leaf: np.asarray(leaf)[None], state)
        reward_rows = None if rewards is None else [rewards]
        result = self._compute_actions(checked, rows, state, explore, reward_rows)
        if not self.is_stateful:
            return single_action(result, 0)
        actions, after = result
        return single_action(actions, 0), {name: leaf[0] for name, leaf in after.items()}

    def reset(self, env_index: int | np.ndarray | None = None) -> None:
        """Begin episodes in these rows of `compute_actions`, for connectors with a memory.

        `env_index` defaults to all rows; the next call may then have another number of rows.

        Collectors do not need this call: each has its own copy of the connectors, and resets it when an episode begins.
        """
        self._history.recorded.reset(env_index)
        if env_index is None:
            self._history.num_rows = None

    def _compute_actions(
        self, obs: Tree, rows: int, state: Mapping[str, Any] | None, explore: bool | None, rewards: ArrayLike | None
    ) -> Any:
        """Return the result of `compute_actions` for `rows` raw observations that are already checked."""
        history = self._history
        recorded = history.recorded
        if recorded.is_identity:
            return self.act_on_stored(obs, rows, state, explore)
        if recorded.has_memory:
            if history.num_rows not in (None, rows):
                raise ValueError(
                    f"{rows} observations, and the policy remembers {history.num_rows} rows; call policy.reset() where "
                    "other episodes begin"
                )
            history.num_rows = rows
        # A step is recorded in two halves. Its actions are known when the policy has acted, at the end of this call.
        # Its rewards are known after the environment's step: the next call gets them. So `rewards` belong to the
        # actions of the call before, and must be recorded before the connectors see the new observations.
        if rewards is not None:
            recorded.after_step(None, np.asarray(rewards))
        result = self.act_on_stored(recorded(obs), rows, state, explore)
        recorded.after_step(result[0] if self.is_stateful else result, None)
        return result

    def act_on_stored(self, obs: Tree, rows: int, state: Mapping[str, Any] | None, explore: bool | None) -> Any:
        """Return the result of `compute_actions` for `rows` observations as they are stored, already checked."""
        explores = self.is_exploring if explore is None else explore
        noise = self.draw_noise(self.rng, (rows,)) if explores else None
        # The results are copied because `to_env` may return views: the parts of a Dict of actions share one array.
        if not self.is_stateful:
            return map_tree(np.copy, self.to_env(self.act(obs, noise)))
        actions, after = self.act_with_state(obs, noise, self._checked_state(state, rows))
        return map_tree(np.copy, self.to_env(actions)), after

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the recurrent state at the beginning of episodes, `{name: [num_rows, ...]}`; empty without recurrent
        layers."""
        return self._actor.get_initial_state(num_rows)

    def initial_acting_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the recurrent state at the beginning of episodes that are not learned from.

        A value function that sees more than the policy has no memory there, because its entries may be missing.
        """
        state = self._actor.get_initial_state(num_rows)
        return state if self.observations.sees_all else _without_value_memory(state)

    def act_with_state(
        self, obs: Tree, noise: np.ndarray | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the actions of a recurrent policy in the form as learned from (see `act`), and the state after them.

        Raises `TypeError` for a policy without recurrent layers.
        """
        actor = self._present_actor()
        if not isinstance(actor, RecurrentActor):
            raise TypeError(f"{type(self.module).__name__} has no memory; use act")
        if self._acting_wrapper is not None:
            actions, after = self._acting_wrapper.act(actor.act_with_state, obs, noise, state)
            return actions, after
        return actor.act_with_state(obs, noise, state)

    def _checked_state(self, state: Mapping[str, Any] | None, rows: int) -> Mapping[str, np.ndarray]:
        """Return a state with the dtypes of the network. Raises `ValueError` for other names or shapes."""
        expected = self.initial_acting_state(rows)
        if isinstance(state, Mapping) and not self.observations.sees_all:
            state = _without_value_memory(state)
        if state is None:
            return expected
        shapes: Any = repr(state)
        if isinstance(state, Mapping):
            shapes = {name: np.shape(leaf) for name, leaf in state.items()}
        expected_shapes = {name: leaf.shape for name, leaf in expected.items()}
        if shapes != expected_shapes:
            raise ValueError(
                f"the recurrent state has the shapes {shapes}, expected {expected_shapes}; None begins episodes"
            )
        return {name: np.asarray(state[name], leaf.dtype) for name, leaf in expected.items()}

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Return random numbers for `act`, `[*leading_shape, ...]`, for many steps at once.

        Args:
            rng: Random generator.
            leading_shape: Leading dimensions of the numbers, such as `(steps, environments)`.
            epsilon: Probability of a random action, instead of the exploration's own.

        Raises:
            ValueError: `epsilon` is passed, and the policy does not explore epsilon-greedily.
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
        env_actions = self._dist.to_env(actions)
        return env_actions if self.connectors.actions is None else self.connectors.actions(env_actions)

    @property
    def random_space(self) -> Any:
        """Space that random actions are drawn from.

        It is the environment's action space if the action connectors have an inverse. Otherwise it is the module's
        action space: the learner needs actions in the module's form, and the environment's could not be converted.
        """
        pipeline = self.connectors.actions
        if pipeline is None or pipeline.has_inverse:
            return self.action_space
        return pipeline.module_space

    def from_env(self, actions: Tree) -> np.ndarray:
        """Return actions as learned from, for actions of `random_space`."""
        pipeline = self.connectors.actions
        if pipeline is not None and pipeline.has_inverse:
            actions = pipeline.inverse(actions)
        return self._dist.from_env(actions)

    def check_action_form(self, buffer: ReplayBuffer) -> None:
        """Raise `MalformedBufferError` for a buffer with actions of another form than the policy learns from.

        The message suggests `buffer.to_batch()`: it returns a batch with actions in the environment's form, and the
        policy converts the actions of a batch to its own form when it reads them.
        """
        if buffer.action_form != self.action_form:
            raise MalformedBufferError(
                f"the replay buffer holds {describe_actions(buffer.action_form)}, and the policy learns from "
                f"{describe_actions(self.action_form)}; give buffer.to_batch(), which is translated, or set "
                "buffer.action_form = policy.action_form where its actions are the policy's already"
            )

    @property
    def action_form(self) -> ActionForm | None:
        """Form of the actions that the policy learns from; None if the environment's actions have the same form.

        It is None for `Discrete(3)`, for example, and for a `Box` of shape (2,) if actions are not rescaled. It is an
        `ActionForm`, which converts in both directions, for:

        - a Dict or Tuple;
        - a shape that is not flat, such as (2, 2);
        - a start other than 0, such as `Discrete(3, start=1)`;
        - a policy that acts in [-1, 1] if the bounds of the `Box` are others.
        """
        # `ActionForm.of` returns None if both forms are equal.
        actions = self.connectors.actions
        if actions is None:
            return ActionForm.of(self.action_space)
        return ActionForm.of(actions.module_space, rescaled=actions.rescales)

    def check_spaces(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Raise `ValueError` unless an environment has the spaces of the policy."""
        self._check_central_state(observation_space)
        for name, space, other in (
            ("observation", self.observation_space, observation_space),
            ("action", self.action_space, action_space),
        ):
            if space != other:
                raise ValueError(
                    f"the policy's {name} space is {space}, the environment's is {other}; use the environment that the "
                    "policy was made for"
                )

    def _check_central_state(self, observation_space: spaces.Space[Any]) -> None:
        """Raise `ValueError` if an environment has another central state than the policy was made for, and only that.

        With `centralized_critic=True` an environment without a state, such as one of evaluation, offers the
        observations of all agents in its place.
        """
        if not has_state(self.observation_space) or not has_state(observation_space):
            return
        own_space, state_space = split_state(self.observation_space)
        other_own_space, other_state_space = split_state(observation_space)
        if own_space == other_own_space and state_space != other_state_space:
            raise ValueError(
                f"the central state of this environment is {other_state_space}, and the policy was made for "
                f"{state_space}. multi_agent.centralized_critic=True takes state() where an environment has it, and "
                "else the observations of all agents: give all environments, also for evaluation, the same "
                "state(), or set centralized_critic='observations'"
            )

    # -- data for the learner ---

    def learning_columns(self, batch: SampleBatch) -> SampleBatch:
        """Return the columns that losses read: observations as inputs of the network, rewards scaled."""
        columns = {name: column for name, column in batch.items() if name not in UNLEARNED_COLUMNS}
        if self.connectors.symmetry is not None and Columns.ACTIONS in columns:
            columns |= self.connectors.images(columns)
        if not self.connectors.obs.is_identity:
            for name in (Columns.OBS, Columns.NEXT_OBS):
                if name in columns:
                    columns[name] = self.connectors.obs(columns[name])
        if self.connectors.rewards is not None and Columns.REWARDS in columns:
            columns[Columns.REWARDS] = self.connectors.rewards.scale(columns[Columns.REWARDS])
        return SampleBatch.trusted(columns)

    @property
    def has_statistics(self) -> bool:
        """Whether observations or rewards are normalised with running statistics."""
        return self.connectors.obs.has_statistics or self.connectors.rewards is not None

    def update_statistics(self, buffer: ReplayBuffer, rows: Sequence[np.ndarray]) -> None:
        """Add rows of a replay buffer to the running statistics.

        Args:
            buffer: The replay buffer.
            rows: Indices of the rows of each sub-buffer, in the order of time.
        """
        if self.connectors.obs.has_statistics:
            # `joined=False`: these are all new rows, not one learner's share, so nothing is added up over learners.
            self.connectors.update(buffer[np.concatenate(rows)][Columns.OBS], None, joined=False)
        if self.connectors.rewards is not None:
            # Time-major columns: rewards are divided by the standard deviation of discounted returns (sums of rewards,
            # weighted with a power of gamma), which have to be summed in the order of time.
            shape = (max(map(len, rows)), len(rows))
            rewards = np.zeros(shape, np.float32)
            dones = np.zeros(shape, bool)
            valid = np.zeros(shape, bool)
            for b, index in enumerate(rows):
                rewards[: len(index), b] = buffer.store.take(Columns.REWARDS, index)
                # The flags of a row are 0 exactly if its episode continues in the next row.
                dones[: len(index), b] = buffer.ring.flags[index] != 0
                valid[: len(index), b] = True
            self.connectors.rewards(rewards, dones, valid)

    def fit_normalizers(self, data: ReplayBuffer | OfflineRows) -> bool:
        """Add all rows of offline data to the observation statistics; return whether there are such statistics."""
        if not self.connectors.obs.has_statistics:
            return False
        rows = data.indices()
        for start in range(0, len(data), STATISTICS_CHUNK):
            chunk = rows[start : start + STATISTICS_CHUNK]
            self.connectors.update(data[chunk][Columns.OBS], None, joined=False)
        return True


class AgentsActingPolicy:
    """Policy that acts for several agents and does not learn: the policy of an env runner.

    `set_weights` also adds and removes modules, and replaces the mapping of agents to modules.

    Args:
        config: The configuration.
        acting: The acting part of each module, by module id.
    """

    is_multi_agent = True
    is_exploring = False
    """Always False: whether actions are sampled is an option of the collector (`exploration_noise`)."""

    def __init__(self, config: BaseConfig, acting: Mapping[str, ActingPolicy]) -> None:
        self.config = config
        self.acting = dict(acting)
        self._mapping = config.multi_agent.policy_mapping_fn
        self._recipes: Mapping[str, Any] = {}
        """Descriptions of the modules that were added in the run, by module id: their spaces and their network's spec.

        Env runners build the modules from them. (The recipes in `lockstep.recipes`, tested settings of an algorithm,
        are something else.)"""
        self.timesteps = {STEPS_SAMPLED: 0}
        for part in self.acting.values():
            part.timesteps = self.timesteps

    @property
    def policy_mapping_fns(self) -> list[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run."""
        return [mapping for _, mapping in stages_of("policy_mapping_fn", self._mapping)]

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """Function `f(agent, episode)` that returns a module id, for episodes that begin now."""
        mapping: Callable[..., str] | None = value_at_step(self.timesteps[STEPS_SAMPLED], self._mapping)
        return mapping

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        return next(iter(self.acting.values())).weights_seq_no

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these weights and their modules from now on. Raises `ValueError` for weights of other networks."""
        by_module = weights.by_module()
        for module_id in set(self.acting) - set(by_module):
            del self.acting[module_id]
        for module_id, module_weights in by_module.items():
            # A module that was removed and added again under its id has another recipe.
            is_replaced = weights.recipes.get(module_id) != self._recipes.get(module_id)
            if module_id not in self.acting or is_replaced:
                self.acting[module_id] = self._build_part(module_id, weights)
            self.acting[module_id].set_weights(module_weights)
        self._mapping = weights.policy_mapping_fn
        self._recipes = weights.recipes

    def _build_part(self, module_id: str, weights: ActingWeights) -> ActingPolicy:
        """Return the acting part of a module that was added in the run."""
        if module_id not in weights.recipes:
            raise ValueError(f"the weights are of the module {module_id!r}, this policy has {list(self.acting)}")
        # A description names objects to import, such as the class of the network. `IN_MEMORY` imports them without the
        # check that names in a checkpoint need: the description comes with the weights, from the run's own policy.
        new = NewModule.from_recipe(self.config, module_id, weights.recipes[module_id], IN_MEMORY)
        module, connectors = new.acting_parts(getattr(torch, self.config.framework.dtype))
        observation_space, action_space = new.spaces
        part = ActingPolicy(
            self.config, module, connectors, observation_space=observation_space, action_space=action_space
        )
        part.timesteps = self.timesteps
        return part


# -- observations ---


OBSERVATION_ADVICE = "give the observation alone, without the info that env.reset() returns beside it"
"""Last part of messages about observations: the most frequent cause."""


def _without_value_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recurrent state without the memories of a value function and of critics."""
    left_out = (VALUE_STATE_PREFIX, CRITIC_STATE_PREFIX)
    return {name: leaf for name, leaf in state.items() if not name.startswith(left_out)}


def checked_observations(space: spaces.Space[Any], obs: Tree, *, batched: bool, name: str = "obs") -> tuple[Any, int]:
    """Return observations as a tree of arrays `[B, ...]`, and `B`.

    Args:
        space: Observation space.
        obs: Observations `[B, ...]`, or one observation if `batched` is False.
        batched: Whether `obs` has a leading dimension. Otherwise one is added, and `B` is 1.
        name: Name of the observations in errors.

    Raises:
        ValueError: Another shape or kind of numbers, unknown or missing keys of a Dict, values outside of a Discrete
            space, or NaN, for which no action can be chosen.
    """
    rows: dict[str, int] = {}
    tree = _checked(space, obs, batched, name, rows)
    if len(set(rows.values())) > 1:
        raise ValueError(f"the parts of the observations have different numbers of rows: {rows}")
    return tree, next(iter(rows.values()))


def _checked(space: spaces.Space[Any], obs: Tree, batched: bool, name: str, rows: dict[str, int]) -> Any:
    """Return checked observations, and write the number of rows of each leaf into `rows`, by name."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        subspaces: dict[Any, spaces.Space[Any]]
        parts = obs
        if isinstance(space, spaces.Dict):
            subspaces = dict(space.spaces)
        else:
            subspaces = dict(enumerate(space.spaces))
            if isinstance(obs, tuple | list):
                parts = dict(enumerate(obs))
        if not isinstance(parts, Mapping) or parts.keys() != subspaces.keys():
            has = f"the keys {list(parts)}" if isinstance(parts, Mapping) else f"the type {type(obs).__name__}"
            raise ValueError(
                f"{name} has {has}, expected a {type(space).__name__} of {list(subspaces)}; {OBSERVATION_ADVICE}"
            )
        checked = {
            key: _checked(subspace, parts[key], batched, f"{name}[{key!r}]", rows)
            for key, subspace in subspaces.items()
        }
        return checked if isinstance(space, spaces.Dict) else tuple(checked.values())
    if space.shape is None or space.dtype is None:
        # Not made of numbers (text, graphs): observations for a network of the user's own.
        rows[name] = len(obs) if batched else 1
        return obs if batched else [obs]
    array = _array(space, obs, batched, name)
    rows[name] = len(array)
    return array


def _array(space: spaces.Space[Any], obs: Tree, batched: bool, name: str) -> np.ndarray:
    """Return checked observations of a space of numbers as one array `[B, ...]`."""
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ValueError(f"{name}={obs!r} makes no array of observations ({error}); {OBSERVATION_ADVICE}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the dtype {array.dtype}, expected {space.dtype}; {OBSERVATION_ADVICE}")
    shape = space.shape or ()
    row_shape = array.shape[1:] if batched else array.shape
    if row_shape != shape or (batched and array.ndim == 0):
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
