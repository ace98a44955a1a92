"""`Policy`: acts with its modules, and learns with its group of learners."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from lockstep.config.base import BaseConfig, Spaces
from lockstep.config.json_form import to_plain
from lockstep.connectors import ModuleConnectors, ObsPipeline
from lockstep.data import MultiAgentBatch, MultiAgentEpisode, SampleBatch
from lockstep.data.actions import ActionForm, single_action
from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.minibatch import num_units, take_units
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.data.row_source import RowSource
from lockstep.data.spaces import describe_space
from lockstep.data.trees import Tree, leaves, rows_of, stack_observations
from lockstep.envs.multi_agent import with_agent_id
from lockstep.export.hub import pretrained_checkpoint, upload_pretrained, write_pretrained
from lockstep.learner.config import (
    PoliciesToTrain,
    PolicyMapping,
    check_policies_to_train,
    checked_spec,
    mapping_in_one_form,
)
from lockstep.learner.group import LearnerGroup
from lockstep.learner.inputs import TrainedModules, errors_of_rows
from lockstep.learner.learner import STEPS_SAMPLED, Learner
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.sequences import max_seq_len_of
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    ActingWeights,
    Exploration,
    MultiRLModule,
    RLModule,
    RLModuleSpec,
    check_module_id,
)
from lockstep.modules.multi_rl_module import module_changes
from lockstep.options.checks import check_whole
from lockstep.options.schedules import stages_of, value_at_step
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.files import PolicyFiles, SavedPolicy, keep_num_threads
from lockstep.policy.new_modules import InitialModule, NewModule, overrides_in, with_modules
from lockstep.policy.state_dict import IncompatibleKeys, StateDict
from lockstep.policy.tensor_updates import MAX_STEPS_PER_DRAW, update_from_tensors
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer, TensorReplay
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import IN_MEMORY, FileNames, signed
from lockstep.tracking.statistics import TrainingStats
from lockstep.tracking.totals import merge_training_stats

Rollout = RolloutStore | EpisodeStore
"""Buffer of an on-policy update."""
Replay = RowSource | TensorReplay
"""Buffer of an off-policy or offline update."""
MAX_OBS_BYTES_PER_DRAW = 2**27
"""Largest size in bytes of the observations of samples that are drawn at once for several gradient steps."""
CONNECTORS = ["learner/connectors"]
"""The component of a learner group's state with the connectors' statistics."""


class _AgentHistories(threading.local):
    """Recording connectors that follow each agent in `compute_actions`. Each thread has its own."""

    def __init__(self) -> None:
        self.recorded: dict[AgentID, ObsPipeline] = {}


class Policy:
    """Policy that acts (`compute_actions`) and learns (`update`, `learn_on_batch`).

    `acting` has an `ActingPolicy` for each module, by module id. A policy of a single agent has one entry,
    "default_policy", and also has the attributes of that part (`policy.to_env`, `policy.action_form`). With several
    agents, observations, actions and spaces are dicts, and `multi_agent(policy_mapping_fn=)` maps agents to modules.

    If the learner is in this process, the policy acts with the learner's own parameters, so that it acts with the
    result of an update at once. If learners are in other processes, it acts with copies, which get the new weights
    after each update.

    Any number of threads may call `compute_actions`; each has its own history of connectors with a memory.

    Args:
        config: The configuration that the group was built from.
        learner_group: The learners.
        observation_space: Observation space of a single agent, or `{module_id: space}`. Defaults to the space of the
            configuration's environment.
        action_space: Action space in the same form.
        agents: Agents in the order of their numbers, if observations contain these numbers
            (`multi_agent(agent_id_in_obs=True)`).
    """

    def __init__(
        self,
        config: BaseConfig,
        learner_group: LearnerGroup,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        agents: Sequence[AgentID] | None = None,
    ) -> None:
        if not isinstance(config, BaseConfig):
            raise TypeError(
                f"a Policy is made of a configuration and a group of learners, not of a {type(config).__name__}; a "
                "network of your own goes into config.rl_module(rl_module_spec=...), see wrap_module()"
            )
        if observation_space is None or action_space is None:
            observation_space, action_space = config.policy_spaces()
        self.config = config
        self.learner_group = learner_group
        self.is_multi_agent = config.is_multi_agent
        self.agents = None if agents is None else list(agents)
        self._mapping = config.multi_agent.policy_mapping_fn
        """Policy mapping function, or its stages."""
        self._policies_to_train: object = config.multi_agent.policies_to_train
        """Modules that learn, or the stages of this option."""
        self._stage_of_training = 0
        """Index of the present stage of `_policies_to_train`."""
        self._recipes: dict[str, Any] = {}
        """Descriptions that the modules that were added in the run are built from, as plain values, by module id."""
        self.acting: dict[str, ActingPolicy] = {}
        self._histories = _AgentHistories()
        self._training = False
        """Whether the policy is within a training step."""
        self.timesteps = {STEPS_SAMPLED: 0}
        """Number of sampled steps, on which schedules depend. The parts in `acting` share this dict."""

        spaces_by_module = {DEFAULT_MODULE_ID: (observation_space, action_space)}
        if self.is_multi_agent:
            spaces_by_module = {
                module_id: (space, action_space[module_id]) for module_id, space in observation_space.items()
            }
        for module_id, spaces in spaces_by_module.items():
            if learner_group.is_local:
                network, connectors = self._part_of_learner(module_id)
            else:
                network, connectors = config.build_acting_parts(spaces, module_id)
            self._begin_acting(module_id, network, connectors, spaces)
        self._rows_counted: dict[str, np.ndarray] = {}
        """How many rows of a module's replay buffer the running statistics contain: by module id, one number for each
        sub-buffer."""
        self.last_results: dict[str, Any] = {}
        """Results of the last update, by module id."""
        self.last_batch: SampleBatch | MultiAgentBatch | None = None
        """Last sample of a replay buffer that was learned from; after an update with a loss that is not finite, the
        sample of the first such loss."""
        self._last_series: Mapping[tuple[str, str], list[float]] = {}
        """Metrics of each gradient step of the last update, by module id and name."""
        self._pull_weights()

    @property
    def policy_mapping_fns(self) -> list[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run."""
        return [mapping for _, mapping in stages_of("policy_mapping_fn", self._mapping)]

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """Function `f(agent, episode)` that returns a module id, for episodes that begin now."""
        mapping: Callable[..., str] | None = value_at_step(self.timesteps[STEPS_SAMPLED], self._mapping)
        return mapping

    @policy_mapping_fn.setter
    def policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Replace the mapping, in any form that `multi_agent(policy_mapping_fn=)` accepts."""
        self._mapping = mapping_in_one_form(policy_mapping_fn)

    @property
    def observation_space(self) -> Any:
        """Space of the environment's observations; for several agents a dict of spaces by module id."""
        return self._by_module({module_id: part.observation_space for module_id, part in self.acting.items()})

    @property
    def action_space(self) -> Any:
        """Space of the environment's actions; for several agents a dict of spaces by module id."""
        return self._by_module({module_id: part.action_space for module_id, part in self.acting.items()})

    def _by_module(self, values: dict[str, Any]) -> Any:
        """Return values by module id; for a single agent the value of its module."""
        return values if self.is_multi_agent else values[DEFAULT_MODULE_ID]

    def _begin_acting(self, module_id: str, network: RLModule, connectors: ModuleConnectors, spaces: Spaces) -> None:
        """Add the acting part of a module, with the policy's step counter and its own random numbers."""
        observation_space, action_space = spaces
        part = ActingPolicy(
            self.config, network, connectors, observation_space=observation_space, action_space=action_space
        )
        part.timesteps = self.timesteps
        part.is_training = self._training
        part.seed(self._seed_of(module_id, self.config.debugging.seed))
        self.acting[module_id] = part

    def _part_of_learner(self, module_id: str) -> tuple[RLModule, ModuleConnectors]:
        """Return the network and the connectors of a module, as the learner in this process has them."""
        learner = self.learner_group.learner
        return learner.module[module_id], learner.connectors[module_id]

    @property
    def module(self) -> Any:
        """Network that acts; for several agents a `MultiRLModule` of all networks."""
        modules = {module_id: part.module for module_id, part in self.acting.items()}
        return MultiRLModule(modules) if self.is_multi_agent else modules[DEFAULT_MODULE_ID]

    @property
    def is_stateful(self) -> bool:
        """Whether a module has recurrent layers."""
        return any(part.is_stateful for part in self.acting.values())

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        # With learners in other processes the version is that of the copies that act here.
        if self.learner_group.is_local:
            return self.learner_group.learner.weights_seq_no
        return next(iter(self.acting.values())).weights_seq_no

    @property
    def has_update_in_flight(self) -> bool:
        """Whether an asynchronous update is running, so that the weights may change during a collect."""
        return self.learner_group.num_in_flight > 0

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """Return the weights that env runners act with. Unless `copy=True`, the next update changes them in place."""
        version = self.weights_seq_no
        parts = {module_id: part.acting_weights(version, copy) for module_id, part in self.acting.items()}
        if not self.is_multi_agent:
            return parts[DEFAULT_MODULE_ID]
        return ActingWeights.joined(parts, dict(self._recipes), self._mapping)

    def seed(self, seed: int) -> None:
        """Restart the random numbers of `compute_actions` from a seed; each module gets different ones."""
        for module_id, part in self.acting.items():
            part.seed(self._seed_of(module_id, seed))

    def _seed_of(self, module_id: str, seed: int) -> int:
        """Return the seed of a module's random numbers, derived from the seed of the policy."""
        return RandomStreams(seed).child("policy").seed(module_id) if self.is_multi_agent else seed

    # -- acting ---

    def compute_actions(
        self,
        observations: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        rewards: Tree = None,
    ) -> Any:
        """Return environment actions `[B, ...]` for raw observations `[B, ...]`; with several agents both are dicts by
        agent.

        A recurrent policy returns `(actions, state)`. Pass the state `{name: [B, ...]}` with the next observations.
        With several agents the states are a dict by agent.

        Connectors with a memory (`environment(frame_stack=)`, previous actions) follow the rows, or the agents, from
        call to call. Call `reset` where episodes begin.

        Args:
            observations: Raw observations.
            state: Recurrent state that the last call returned. None, `get_initial_state(B)`, or for several agents a
                missing entry begins an episode.
            explore: Whether actions are sampled; with False they are the most likely ones. Defaults to True within a
                training step (`policy_within_training_step`), else False.
            rewards: Rewards of the step before, `[B]` or a dict by agent, for connectors that need them.

        Raises:
            ValueError: Observations or a state that do not fit, NaN, or another number of rows than in the last call
                if connectors have a memory.
            KeyError: An agent is mapped to a module that does not exist.
        """
        if self.is_multi_agent:
            return self._compute_for_agents(observations, state or {}, explore, rewards or {})
        return self.acting[DEFAULT_MODULE_ID].compute_actions(observations, state, explore, rewards)

    def compute_single_action(
        self,
        obs: object,
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

        Raises:
            AttributeError: The policy is one of several agents, for which `compute_actions` takes a dict.
        """
        return self._sole_part("compute_single_action").compute_single_action(obs, state, explore, rewards)

    def to_env(self, actions: np.ndarray) -> Any:
        """Return actions as the environment takes them, for actions as learned from; for a single agent only."""
        return self._sole_part("to_env").to_env(actions)

    @property
    def stored_observation_space(self) -> Any:
        """Space of the observations that are stored and acted on; for a single agent only."""
        return self._sole_part("stored_observation_space").stored_observation_space

    @property
    def seen_space(self) -> Any:
        """Deprecated name of `stored_observation_space`."""
        message = "Policy.seen_space has a new name: read stored_observation_space"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.stored_observation_space

    def _sole_part(self, name: str) -> ActingPolicy:
        """Return the acting part of a single agent.

        Raises `AttributeError` for several agents: attribute `name` of such a policy does not exist.
        """
        if self.is_multi_agent:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} for several agents")
        return self.acting[DEFAULT_MODULE_ID]

    def reset(self, env_index: Any = None) -> None:
        """Begin episodes in `compute_actions`, for connectors with a memory. Collectors have their own connectors.

        `env_index`: row or rows; for several agents the agent. Defaults to all.
        """
        if not self.is_multi_agent:
            self.acting[DEFAULT_MODULE_ID].reset(env_index)
        elif env_index is None:
            self._histories.recorded.clear()
        else:
            self._histories.recorded.pop(env_index, None)

    def _compute_for_agents(
        self,
        observations: Mapping[AgentID, Any],
        states: Mapping[AgentID, Any],
        explore: bool | None,
        rewards: Mapping[AgentID, Any],
    ) -> Any:
        """Return the result of `compute_actions` for several agents; each module acts in one batch for its agents."""
        if self.agents is not None:
            observations = {agent: self._with_id(agent, value) for agent, value in observations.items()}

        agents_of: dict[str, list[AgentID]] = {}
        # Mapping functions get an episode. There is none here, so they get an empty one.
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        for agent in observations:
            agents_of.setdefault(self.module_for(agent, episode), []).append(agent)

        actions: dict[AgentID, Any] = {}
        after: dict[AgentID, Any] = {}
        for module_id, agents in agents_of.items():
            part = self.acting[module_id]
            stored = [self._stored_form(agent, part, observations[agent], rewards.get(agent)) for agent in agents]
            obs = stack_observations(part.observations.stored_space, stored)

            # Agents without a state begin an episode.
            before = None
            if part.is_stateful:
                initial = {name: leaf[0] for name, leaf in part.initial_acting_state(1).items()}
                rows = [states.get(agent, initial) for agent in agents]
                before = {name: np.stack([row[name] for row in rows]) for name in initial}

            module_actions = part.act_on_stored(obs, len(agents), before, explore)
            if part.is_stateful:
                module_actions, new_state = module_actions
                for i, agent in enumerate(agents):
                    after[agent] = {name: leaf[i] for name, leaf in new_state.items()}

            for i, agent in enumerate(agents):
                if agent in self._histories.recorded:
                    # Connectors may add the previous action to the next observation.
                    self._histories.recorded[agent].after_step(rows_of(module_actions, slice(i, i + 1)), None)
                actions[agent] = single_action(module_actions, i)
        return (actions, after) if self.is_stateful else actions

    def _with_id(self, agent: AgentID, observation: Tree) -> Any:
        """Return an observation with the agent's number, one-hot. Raises `KeyError` for an agent without a number."""
        agents = self.agents or []
        if agent not in agents:
            raise KeyError(f"agent {agent!r} has no number; there are {agents}")
        if not isinstance(observation, Mapping):
            observation = np.asarray(observation)
        return with_agent_id(observation, agents.index(agent), len(agents))

    def _stored_form(self, agent: AgentID, part: ActingPolicy, observation: Tree, reward: float | None) -> Tree:
        """Return an agent's observation as it is stored and acted on, and add it to the agent's history."""
        checked, _ = part.checked(observation, batched=False, name=f"observations[{agent!r}]")
        if part.recorded.is_identity:
            return rows_of(checked, 0)
        histories = self._histories.recorded
        if agent not in histories:
            histories[agent] = part.recorded.copy()
        if reward is not None:
            histories[agent].after_step(None, np.array([reward]))
        return rows_of(histories[agent](checked), 0)

    def module_for(self, agent: AgentID, episode: MultiAgentEpisode | None = None) -> str:
        """Return the id of the module that acts for an agent. Raises `KeyError` for a module that does not exist."""
        # `is None`: an episode without a step has length 0 and is false.
        if episode is None:
            episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        module_id = episode.module_for(agent)
        if module_id not in self.acting:
            raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(self.acting)}")
        return module_id

    @property
    def is_exploring(self) -> bool:
        """Whether the policy is within a training step (`within_training_step`) and `env_runners.explore` is on."""
        return self._training and bool(self.config.env_runners.explore)

    @contextmanager
    def within_training_step(self, enabled: bool = True) -> Iterator[Self]:
        """Return a context manager for a training step, in which `update` is allowed and modules explore."""
        before = self._training
        self._set_training(enabled)
        try:
            yield self
        finally:
            self._set_training(before)

    def _set_training(self, enabled: bool) -> None:
        """Enter or leave the training step, in all modules."""
        self._training = enabled
        for part in self.acting.values():
            part.is_training = enabled

    def _set_timesteps(self, timesteps: dict[str, int]) -> None:
        """Share one dict of step counts among all modules, so that their exploration schedules agree."""
        self.timesteps = timesteps
        for part in self.acting.values():
            part.timesteps = timesteps

    # -- attributes of the acting part of a single agent ---

    # Properties, even where the part has a method: for several agents reading one raises `AttributeError`, so that
    # `hasattr` is False.

    @property
    def act(self) -> Callable[..., np.ndarray]:
        """Function that acts, `ActingPolicy.act`; for a single agent only."""
        return self._sole_part("act").act

    @property
    def act_with_logp(self) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        """Method `ActingPolicy.act_with_logp`; for a single agent only."""
        return self._sole_part("act_with_logp").act_with_logp

    @property
    def act_with_state(self) -> Callable[..., tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Method `ActingPolicy.act_with_state`; for a single agent only."""
        return self._sole_part("act_with_state").act_with_state

    @property
    def action_form(self) -> ActionForm | None:
        """Form of the actions that the policy learns from, `ActingPolicy.action_form`; for a single agent only."""
        return self._sole_part("action_form").action_form

    @property
    def action_logp(self) -> Callable[[Tree, np.ndarray], np.ndarray]:
        """Method `ActingPolicy.action_logp`; for a single agent only."""
        return self._sole_part("action_logp").action_logp

    @property
    def check_spaces(self) -> Callable[[Any, Any], None]:
        """Method `ActingPolicy.check_spaces`; for a single agent only."""
        return self._sole_part("check_spaces").check_spaces

    @property
    def connectors(self) -> ModuleConnectors:
        """Connectors of the module; for a single agent only."""
        return self._sole_part("connectors").connectors

    @property
    def draw_noise(self) -> Callable[..., np.ndarray]:
        """Method `ActingPolicy.draw_noise`; for a single agent only."""
        return self._sole_part("draw_noise").draw_noise

    @property
    def exploration(self) -> Exploration | None:
        """Exploration that draws actions while collecting; for a single agent only."""
        return self._sole_part("exploration").exploration

    @property
    def exploration_level(self) -> float:
        """Present level of exploration, `ActingPolicy.exploration_level`; for a single agent only."""
        return self._sole_part("exploration_level").exploration_level

    @property
    def from_env(self) -> Callable[[Tree], np.ndarray]:
        """Method `ActingPolicy.from_env`; for a single agent only."""
        return self._sole_part("from_env").from_env

    @property
    def get_initial_state(self) -> Callable[[int], dict[str, np.ndarray]]:
        """Method `ActingPolicy.get_initial_state`; for a single agent only."""
        return self._sole_part("get_initial_state").get_initial_state

    @property
    def has_statistics(self) -> bool:
        """Whether observations or rewards are normalised with running statistics; for a single agent only."""
        return self._sole_part("has_statistics").has_statistics

    @property
    def learning_columns(self) -> Callable[[SampleBatch], SampleBatch]:
        """Method `ActingPolicy.learning_columns`; for a single agent only."""
        return self._sole_part("learning_columns").learning_columns

    @property
    def random_space(self) -> Any:
        """Space that random actions are drawn from, `ActingPolicy.random_space`; for a single agent only."""
        return self._sole_part("random_space").random_space

    @property
    def recorded(self) -> ObsPipeline:
        """Connectors that observations pass through before they are stored; for a single agent only."""
        return self._sole_part("recorded").recorded

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of `compute_actions`; for a single agent only."""
        return self._sole_part("rng").rng

    @property
    def set_weights(self) -> Callable[[ActingWeights], None]:
        """Method `ActingPolicy.set_weights`; for a single agent only."""
        return self._sole_part("set_weights").set_weights

    # -- learning ---

    def update(
        self,
        sample_size: int,
        buffer: Rollout | Replay,
        batch_size: int | None = None,
        repeat: int | None = None,
    ) -> TrainingStats:
        """Learn from a rollout, or take gradient steps on samples of a replay buffer.

        Args:
            sample_size: Number of transitions of a sample, for each module; 0 for the whole rollout or buffer.
            buffer: The rollout or the replay buffer.
            batch_size: Number of rows of a minibatch of a rollout. With several modules it is the number of the module
                with the most rows; minibatches of the others are smaller in proportion. Defaults to the whole rollout.
            repeat: Number of passes over a rollout; number of gradient steps, each on a new sample, from a replay
                buffer. A prioritised buffer gets the errors of a step before the next sample is drawn.

        Returns:
            The statistics of all steps. With several agents metrics are named `<module id>/<metric>`.

        Raises:
            RuntimeError: The policy is not within a training step.
            ValueError: `sample_size` of a rollout is not 0, the buffer is empty, or `batch_size` is not `sample_size`.
            TypeError: The policy has several modules and the buffer is for one.
        """
        if not self._training:
            raise RuntimeError("update() outside of a training step; use `with policy_within_training_step(policy):`")
        if self.is_multi_agent and not isinstance(buffer, EpisodeStore | MultiAgentReplayBuffer):
            raise TypeError(
                "several modules learn from an EpisodeStore or a MultiAgentReplayBuffer, not from a "
                f"{type(buffer).__name__}"
            )
        if isinstance(buffer, TensorReplay):
            return update_from_tensors(self, sample_size, buffer, 1 if repeat is None else repeat)
        if isinstance(buffer, RowSource):
            return self._update_from_replay(sample_size, buffer, batch_size, repeat)
        if sample_size != 0:
            raise ValueError(f"sample_size={sample_size}: an on-policy update uses the whole rollout; give 0")
        self._update_trained_modules()
        started = time.perf_counter()
        results = self.learner_group.update_from_episodes(
            buffer.episodes(),
            timesteps=self.timesteps,
            num_epochs=self.config.training.num_epochs if repeat is None else repeat,
            minibatch_size=batch_size,
            shuffle_batch_per_epoch=self.config.training.shuffle_batch_per_epoch,
        )
        # An update on a device may have been launched before this call, and has begun then.
        seconds = results[ALL_MODULES].get("seconds_gradient_steps", 0.0)
        return self.training_stats(results, min(started, time.perf_counter() - seconds))

    def _update_from_replay(
        self, sample_size: int, buffer: RowSource, batch_size: int | None, repeat: int | None
    ) -> TrainingStats:
        """Take gradient steps on samples of a replay buffer or of offline data."""
        num_steps = 1 if repeat is None else check_whole("repeat", repeat, 1)
        check_whole("sample_size", sample_size, 0)
        if batch_size not in (None, sample_size):
            raise ValueError(
                f"batch_size={batch_size}: a gradient step takes a whole sample of {sample_size}; leave it out"
            )
        self._update_trained_modules()
        buffers = buffer.by_module()
        # The statistics of offline data contain all rows since `process_buffer`.
        if not self.config.is_offline:
            for module_id, source in buffers.items():
                self._update_statistics(module_id, source)

        # Priorities change with each step, and the next sample depends on them. Otherwise several samples are drawn at
        # once: one gather of many rows, and one call of the learner, are faster than many.
        is_prioritized = any(source.is_prioritized for source in buffers.values())
        steps_per_draw = 1 if is_prioritized else self._steps_per_draw(num_steps, sample_size, buffers.values())

        stats: list[TrainingStats] = []
        bad_sample: SampleBatch | MultiAgentBatch | None = None
        for start in range(0, num_steps, steps_per_draw):
            num_drawn = min(steps_per_draw, num_steps - start)
            batches = buffer.draw(num_drawn * sample_size)
            sample: SampleBatch | MultiAgentBatch
            if buffer.is_by_module:
                sample = MultiAgentBatch(batches, max(map(len, batches.values())))
            else:
                sample = batches[DEFAULT_MODULE_ID]
            self.last_batch = sample

            started = time.perf_counter()
            columns = {
                module_id: self.acting[module_id].learning_columns(batch) for module_id, batch in batches.items()
            }
            results = self.learner_group.update_from_batch(
                MultiAgentBatch(columns, len(sample)) if buffer.is_by_module else columns[DEFAULT_MODULE_ID],
                timesteps=self.timesteps,
                minibatch_size=sample_size or None,
            )
            stats.append(self.training_stats(results, started))

            for module_id, batch in batches.items():
                has_learned = "total_loss" in results.get(module_id, ())
                if has_learned and buffers[module_id].is_prioritized:
                    self._update_priorities(module_id, buffers[module_id], batch)
            # Keep the sample of the first step with a loss that is not finite, for `last_batch`.
            if bad_sample is None and stats[-1].first_bad_step is not None:
                bad_sample = sample
                if not buffer.is_by_module:
                    # Cut it out of the samples that were drawn together. `first_bad_step` counts from 1; units are the
                    # sequences of a recurrent network, otherwise rows.
                    batch = batches[DEFAULT_MODULE_ID]
                    num_rows = num_units(batch) // num_drawn
                    first_row = sample_size * (stats[-1].first_bad_step - 1)
                    bad_sample = take_units(batch, np.arange(first_row, first_row + num_rows))
        if bad_sample is not None:
            self.last_batch = bad_sample
        return stats[0] if len(stats) == 1 else merge_training_stats(stats)

    def _update_statistics(self, module_id: str, buffer: RowSource) -> None:
        """Add the rows that are new in a replay buffer to a module's running statistics, here and on all learners."""
        part = self.acting[module_id]
        if not part.has_statistics or not isinstance(buffer, ReplayBuffer):
            return
        rows, self._rows_counted[module_id] = buffer.rows_since(self._rows_counted.get(module_id))
        if any(map(len, rows)):
            part.update_statistics(buffer, rows)
            self._share_statistics(module_id)

    def _share_statistics(self, module_id: str) -> None:
        """Copy the running statistics of a module from here to learners in other processes."""
        if not self.learner_group.is_local:
            state = self.acting[module_id].connectors.get_state()
            self.learner_group.foreach_learner(_set_statistics, module_id, state)

    def _steps_per_draw(self, num_steps: int, sample_size: int, sources: Iterable[RowSource]) -> int:
        """Return the number of gradient steps whose samples are drawn at once.

        It depends on the configuration only, not on free memory: the order of random numbers depends on it, and a run
        must be repeatable bit for bit.
        """
        if num_steps == 1 or not sample_size:
            return 1
        row_bytes = 0
        for part in self.acting.values():
            obs = create_empty_array(part.stored_observation_space)
            row_bytes += 2 * sum(leaf.nbytes for leaf in leaves(obs))  # observations and next observations
        # A recurrent network learns from sequences, each of which has many rows.
        row_bytes *= max((source.rows_of_sample for source in sources), default=1)
        return min(MAX_STEPS_PER_DRAW, max(1, MAX_OBS_BYTES_PER_DRAW // (sample_size * row_bytes)))

    def _update_priorities(self, module_id: str, buffer: RowSource, batch: SampleBatch) -> None:
        """Set the priorities of a sample's rows to the learners' errors in the last gradient step."""
        errors = np.concatenate(self.learner_group.foreach_learner(row_errors, module_id))
        if Columns.SEQ_LENS in batch:
            # Recurrent networks have one error for each sequence.
            errors = np.repeat(errors, batch[Columns.SEQ_LENS])
        # A NaN as a priority would spoil the sum tree. The option `nan_policy` decides about the update itself.
        has_priority = np.isfinite(errors)
        if Columns.LOSS_MASK in batch:
            has_priority &= batch[Columns.LOSS_MASK]
        if has_priority.any():
            buffer.update_weight(batch[Columns.BATCH_INDEXES][has_priority], errors[has_priority])

    def training_stats(self, results: dict[str, Any], started: float) -> TrainingStats:
        """Let the acting parts take the weights of an update, and return the update's statistics.

        Args:
            results: Results of the learner group, by module id.
            started: Time of `time.perf_counter` at which the update began.
        """
        self.last_results = results
        self._pull_weights()
        losses: list[float] = []
        for metrics in results.values():
            if isinstance(metrics, dict):
                losses += [value for name, value in metrics.items() if "loss" in name]
        # The series of all metrics are put together only when somebody reads them.
        return TrainingStats.of_update(
            time.perf_counter() - started,
            results[ALL_MODULES]["num_minibatches"],
            partial(_values_and_seconds, self.is_multi_agent, self._last_series, results),
            finite=math.isfinite(sum(losses)),
        )

    def learn_on_batch(self, batch: SampleBatch | MultiAgentBatch) -> dict[str, Any]:
        """Learn from a prepared batch in one pass, and return the results by module id."""
        results: dict[str, Any] = self.learner_group.update_from_batch(batch, timesteps=self.timesteps)
        self._pull_weights()
        return results

    def process_buffer(self, buffer: Any) -> Any:
        """Return offline data in the form that the algorithm learns from, after adding them to the statistics.

        A recurrent network gets sequences: those of the buffer, or sequences of up to `model_config.max_seq_len` rows,
        the first half of which only bring the recurrent state up to date (burn-in). Algorithms that are not offline
        leave a buffer as it is.

        Raises:
            MalformedBufferError: A recurrent network gets rows without an order in time.
        """
        if self.config.is_offline:
            part = self.acting[DEFAULT_MODULE_ID]
            if part.fit_normalizers(buffer):
                self._share_statistics(DEFAULT_MODULE_ID)
            if part.is_stateful:
                if not isinstance(buffer, ReplayBuffer):
                    raise MalformedBufferError(
                        "a network with memory learns from steps in the order of time, and the offline data "
                        f"({buffer!r}) have none; give a ReplayBuffer, or a batch with all columns of a transition"
                    )
                length, burn_in = buffer.options.sequence_length, buffer.options.burn_in
                if length is None:
                    length = max_seq_len_of(part.module.model_config)
                    burn_in = length // 2
                buffer = buffer.in_sequences(length, burn_in)
        return self.config.process_buffer(buffer)

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Names of the columns that the learners of a single agent's policy need."""
        names: tuple[str, ...] = self.learner_group.first_learner(methodcaller("required_columns", DEFAULT_MODULE_ID))
        return names

    def use_local_learner(self) -> None:
        """End learners in other processes, or leave other ranks. One learner in this process continues their state."""
        if not self.learner_group.is_alone:
            self._learn_in_process(self.config.copy().learners(num_learners=0))

    def bring_home(self) -> None:
        """Deprecated name of `use_local_learner`."""
        warnings.warn("Policy.bring_home has a new name: call use_local_learner", DeprecationWarning, stacklevel=2)
        self.use_local_learner()

    def _learn_in_process(self, config: BaseConfig) -> None:
        """Replace the learners by one in this process, built from `config`, with their state."""
        # The state first, because it is lost with the processes.
        state = self.learner_group.get_state()
        self.learner_group.shutdown()
        if self.is_multi_agent:
            config = with_modules(config, self._modules_state(), IN_MEMORY)
        self.learner_group = config.build_learner_group(spaces=(self.observation_space, self.action_space))
        self.learner_group.set_state(state)
        for module_id, part in self.acting.items():
            part.set_network(*self._part_of_learner(module_id))
        self._pull_weights()

    def _pull_weights(self) -> None:
        """Copy the weights of learners in other processes into the acting parts, and keep the last update's metrics."""
        if self.learner_group.is_local:
            self._last_series = self.learner_group.learner.last_series
            return
        for module_id, part in self.acting.items():
            if part.module.inference_only:
                continue  # frozen: its weights do not change
            weights, self._last_series = self.learner_group.first_learner(Learner.after_update, module_id)
            part.set_weights(weights)

    # -- modules that are added and removed in a run ---

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec | RLModule | Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        init_from: str | Path | None = None,
        *,
        frozen: bool = False,
        trust: bool = False,
    ) -> None:
        """Add a module that agents may be mapped to. It learns from the next update on.

        Args:
            module_id: Id of the new module.
            module_spec: Specification as in `multi_agent(policies=...)`. Defaults to that of `init_from`, or else to
                the algorithm's default module.
            config_overrides: Training options of this module.
            init_from: Id of a module of this policy, or path of a checkpoint (of a module, or of a policy that has a
                module of this id, or only one). The new module gets its weights and its connectors' statistics.
            frozen: Whether the module only acts. It then never learns, and has neither critic nor optimizer.
            trust: Whether all objects that the checkpoint names may be used; see `from_checkpoint`.

        Raises:
            ValueError: The id exists or is not allowed, the policy is one of a single agent, the weights do not fit, or
                the spaces of the module are not known. Nothing is changed then.
        """
        if not self.is_multi_agent:
            raise ValueError(
                f"add_module({module_id!r}): this policy is of one agent; name modules with multi_agent(policies=...)"
            )
        if module_id in self.acting:
            raise ValueError(f"there is a module {module_id!r} already; remove it first, or take another id")
        check_module_id(module_id)
        spec = checked_spec(module_id, module_spec) if isinstance(module_spec, Mapping) else module_spec
        initial = None if init_from is None else self._initial_module(module_id, init_from, trust)
        if spec is None and initial is not None:
            spec = replace(initial.spec, observation_space=None, action_space=None, inference_only=False)
        spec = RLModuleSpec() if spec is None else spec
        spaces = self._spaces_for(module_id, spec, init_from)
        new = NewModule.build(self.config, module_id, spec, spaces, initial, frozen, config_overrides)
        self._add(module_id, new, config_overrides)

    def _add(self, module_id: str, new: NewModule, overrides: Mapping[str, Any] | None) -> None:
        """Add a module to the learners, and its acting part to this policy."""
        # First, because it raises for overrides that a checkpoint could not contain.
        plain = to_plain(f"config_overrides of {module_id}", overrides)
        self.learner_group.add_module(
            module_id=module_id, module_spec=new.module, config_overrides=overrides, connectors=new.connectors
        )
        if self.learner_group.is_local:
            network, connectors = self._part_of_learner(module_id)
        else:
            network, connectors = new.acting_parts(getattr(torch, self.config.framework.dtype))
        self._begin_acting(module_id, network, connectors, new.spaces)
        self._recipes[module_id] = self._recipe_of(module_id, plain)

    def _initial_module(self, module_id: str, init_from: str | Path, trust: bool) -> InitialModule:
        """Return the module whose weights a new one begins with. Raises `ValueError` if `init_from` names none."""
        if isinstance(init_from, str) and init_from in self.acting:
            networks = [f"learner/rl_module/{init_from}", f"learner/connectors/{init_from}"]
            state = self.learner_group.get_state(networks)["learner"]
            weights, connectors = state["rl_module"][init_from], state["connectors"][init_from]
            return InitialModule(self.acting[init_from].module.spec(), weights, connectors)
        if not Path(init_from).exists():
            raise ValueError(
                f"init_from={init_from!r} is neither a module (there are {sorted(self.acting)}) nor a checkpoint"
            )
        return InitialModule.from_checkpoint(module_id, init_from, trust=trust)

    def _spaces_for(
        self, module_id: str, spec: RLModuleSpec | RLModule, init_from: str | Path | None
    ) -> tuple[Any, Any]:
        """Return the spaces of a new module: those of its spec, of `init_from`, or the spaces that all modules have."""
        if None not in (spec.observation_space, spec.action_space):
            return spec.observation_space, spec.action_space
        parts = [self.acting[init_from]] if init_from in self.acting else list(self.acting.values())
        spaces = parts[0].observation_space, parts[0].action_space
        if any((part.observation_space, part.action_space) != spaces for part in parts):
            raise ValueError(
                f"add_module({module_id!r}): the modules here have different spaces; give a module_spec with "
                "observation_space and action_space, or init_from=<module id>"
            )
        return spaces

    def remove_module(self, module_id: str) -> None:
        """Remove a module.

        Raises `KeyError` for an unknown module and `ValueError` for the last one; nothing is changed then.
        """
        self.learner_group.remove_module(module_id)
        del self.acting[module_id]
        self._recipes.pop(module_id, None)

    def set_policies_to_train(self, policies_to_train: PoliciesToTrain) -> None:
        """Set the modules that learn from the next update on, in any form of `multi_agent(policies_to_train=)`."""
        stages = stages_of("policies_to_train", policies_to_train)
        for _, allowed in stages:
            check_policies_to_train(allowed)
        self._set_trained_modules(value_at_step(self.timesteps[STEPS_SAMPLED], policies_to_train))
        self._policies_to_train = policies_to_train
        self._stage_of_training = 0

    def _update_trained_modules(self) -> None:
        """Switch the learning modules when `policies_to_train` reaches its next stage."""
        if not isinstance(self._policies_to_train, list | tuple):
            return
        stages = stages_of("policies_to_train", self._policies_to_train)
        stage = sum(step <= self.timesteps[STEPS_SAMPLED] for step, _ in stages) - 1
        if stage != self._stage_of_training:
            self._set_trained_modules(stages[stage][1])
            self._stage_of_training = stage

    def _set_trained_modules(self, modules: TrainedModules) -> None:
        """Set the modules that learn, on all learners."""
        self.learner_group.foreach_learner(methodcaller("set_policies_to_train", modules))

    def _modules_state(self) -> dict[str, Any]:
        """Return the descriptions that the modules are built from, by module id and in the order of the modules."""
        recipes = {}
        for module_id in self.acting:
            recipe = self._recipes.get(module_id)
            recipes[module_id] = self._recipe_of(module_id, None) if recipe is None else recipe
        return recipes

    def _recipe_of(self, module_id: str, overrides: object) -> dict[str, Any]:
        """Return the description that a module is built from. `overrides`: its own training options as plain values."""
        part = self.acting[module_id]
        recipe = {
            "spec": part.module.spec().to_dict(),
            "observation_space": describe_space(part.observation_space),
            "action_space": describe_space(part.action_space),
            "config_overrides": overrides,
        }
        # With the user's signature, so that objects that it names are trusted when this user reads it from a file.
        return signed(recipe)

    def restore_modules(self, state: Mapping[str, Any], file: FileNames) -> None:
        """Remove and add modules until they are the modules of a saved state, in the same order.

        Nothing is changed for the state of a single agent.

        Args:
            state: State of a policy, as `acting_state` returned it.
            file: Resolver of the objects that the state names.
        """
        if "modules" not in state:
            return
        saved = state["modules"]
        for change in module_changes(list(self.acting), list(saved)):
            module_id = change.module_id
            if change.is_added:
                recipe = saved[module_id]
                names = file.of_part(recipe)
                self._add(
                    module_id, NewModule.from_recipe(self.config, module_id, recipe, names), overrides_in(recipe, names)
                )
            else:
                self.remove_module(module_id)

    # -- interface of torch modules ---

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the networks' parameters and buffers and of the connectors' statistics, on the CPU, by name.

        Names begin with `module.` or `connectors.`, with several agents after `<module id>.`. The dict has everything
        that acting needs; `save_to_path` also saves optimizers, random numbers and the configuration.

        Raises `TypeError` for a connector whose state is not made of numbers.
        """
        return self._tensors.read()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Set the tensors that `state_dict` returned on every learner; return the missing and the unknown names.

        Raises `RuntimeError`, as torch does, for other shapes and, with `strict`, for missing or unknown names. Nothing
        is changed then.
        """
        incompatible = self._tensors.load(state_dict, strict=strict)
        self._pull_weights()
        return incompatible

    @property
    def _tensors(self) -> StateDict:
        """The networks and connectors of all learners as tensors by name."""
        return StateDict(self.learner_group, self.acting, self.is_multi_agent)

    def train(self, mode: bool = True) -> Self:
        """Set the networks' training mode (dropout, batch normalisation). It has no effect on exploration."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Set the networks' evaluation mode: `train(False)`."""
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Iterate over the parameters of the networks that act."""
        yield from self.module.parameters()

    def to(self, device: torch.device | str) -> Self:
        """Act and learn on another device from now on, and set the configuration's `framework.device`.

        Raises `RuntimeError` for learners in other processes, `ValueError` for a device that does not exist.
        """
        target = torch.device(device)
        if self.learner_group.is_remote:
            raise RuntimeError(
                "the learners are in other processes, whose devices learners(...) sets; call use_local_learner() "
                "before to()"
            )
        present = self.learner_group.learner.device
        if target.type != present.type or target.index not in (None, present.index):
            config = self.config.copy().framework(device=str(target))
            config.validate()
            self._learn_in_process(config)
            self.config = config
            for part in self.acting.values():
                part.config = config
        return self

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the state of the learners, the step counts and the random numbers of `compute_actions`."""
        return {"learner_group": self.learner_group.get_state(), **self.acting_state()}

    def set_state(self, state: Mapping[str, Any], *, names: FileNames = IN_MEMORY) -> None:
        """Restore the state that `get_state` returned. Modules that were added since are removed, and the reverse.

        `names`: resolver of the objects that the state names, if it was read from a file.
        """
        self.restore_modules(state, names)
        self.learner_group.set_state(state["learner_group"])
        self.set_acting_state(state)

    def acting_state(self) -> dict[str, Any]:
        """Return the state of the policy, except for the learners."""
        state: dict[str, Any] = {
            "timesteps": dict(self.timesteps),
            "rng": self._rng_state(),
            "taken": {module_id: counted.copy() for module_id, counted in self._rows_counted.items()},
        }
        if self.is_multi_agent:
            state["modules"] = self._modules_state()
            if self.agents is not None:
                state["agents"] = self.agents
        return state

    def set_acting_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `acting_state` returned. The modules and the learners must be restored before."""
        self._set_timesteps({name: int(value) for name, value in state["timesteps"].items()})
        for module_id, part in self.acting.items():
            part.rng.bit_generator.state = state["rng"][module_id] if self.is_multi_agent else state["rng"]
        self._rows_counted = {module_id: np.array(counted) for module_id, counted in state.get("taken", {}).items()}
        self.pull_from_learners()

    def pull_from_learners(self) -> None:
        """Copy the weights and statistics of learners in other processes into the acting parts."""
        self._pull_weights()
        if not self.learner_group.is_local:
            connectors = self.learner_group.get_state(CONNECTORS)["learner"]["connectors"]
            for module_id, part in self.acting.items():
                part.connectors.set_state(connectors[module_id])

    def _rng_state(self) -> dict[str, Any]:
        """Return the state of the random generators; for several agents a dict by module id."""
        states = {module_id: dict(part.rng.bit_generator.state) for module_id, part in self.acting.items()}
        return self._by_module(states)

    # -- files (see policy/files.py) ---

    @property
    def _files(self) -> PolicyFiles:
        """The files of this policy."""
        return PolicyFiles(self)

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a checkpoint: those of the learner group, and `policy`."""
        return self._files.folders()

    def set_checkpoint_folders(
        self, folders: Mapping[str, dict[str, Any]], *, trust: bool = False, file: str | Path = "the checkpoint"
    ) -> None:
        """Restore the policy from the folders of a checkpoint.

        Args:
            folders: The folders, as `checkpoint_folders` returned them.
            trust: Whether all objects that the checkpoint names may be used; see `from_checkpoint`.
            file: Path of the checkpoint, for errors.

        Raises:
            ValueError: The checkpoint does not contain a policy.
        """
        self._files.set_folders(folders, trust=trust, file=file)

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder, and return its absolute path. Defaults to a new temporary folder."""
        self.learner_group.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.learner_group.last_checkpoint

    def restore_from_path(self, path: str | Path, *, trust: bool = False) -> None:
        """Restore the policy from a checkpoint folder.

        `trust`: whether all objects that the checkpoint names may be used; see `from_checkpoint`.
        """
        self.set_checkpoint_folders(read_checkpoint(Path(path)), trust=trust, file=path)

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, policy_mapping_fn: Callable[..., str] | None = None, trust: bool = False
    ) -> Policy:
        """Return the policy in a checkpoint folder. No environment is constructed.

        Args:
            path: The folder.
            policy_mapping_fn: Mapping function that replaces the saved one. Functions without a name are not saved.
            trust: Whether all objects that the checkpoint names may be used. Using such an object executes its code. So
                by default an object must be a class of the kind that its option expects, in an installed module. A
                checkpoint that this user has written is always trusted. An environment is not checked before it is
                constructed.

        Raises:
            UntrustedError: The checkpoint names an object that needs `trust=True`.
            ValueError: The checkpoint does not contain a policy.
        """
        saved = SavedPolicy.read(path, trust=trust)
        config = saved.config()
        if policy_mapping_fn is not None:
            config.multi_agent(policy_mapping_fn=policy_mapping_fn)
        config = saved.with_saved_modules(config)
        observation_space, action_space = saved.spaces()
        # The policy will act in somebody else's process, whose number of torch threads must not change.
        with keep_num_threads(), claims_of(path):
            group = config.build_learner_group(spaces=(observation_space, action_space))
            policy = Policy(
                config,
                group,
                observation_space=observation_space,
                action_space=action_space,
                agents=saved.state.get("agents"),
            )
            policy.set_checkpoint_folders(saved.folders, trust=trust, file=path)
        return policy

    def start_from(self, path: str | Path) -> None:
        """Start with the weights and the connectors' statistics of a checkpoint; everything else stays new.

        Target networks begin as copies of these weights.

        Raises:
            ValueError: The checkpoint does not contain a policy, or its spaces, networks or connectors do not fit.
                Nothing is changed then.
        """
        self._files.start_from(Path(path))

    def export(
        self,
        path: str | Path,
        format: str = "onnx",
        deterministic: bool = True,
        *,
        evaluation: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write an artefact that acts as this policy without Lockstep, and return its folder.

        The artefact takes raw observations and returns the environment's actions; it contains all connectors, masks and
        recurrent states. Before it is written, its actions for 10,000 observations are compared with the policy's. With
        several agents there is a folder for each module.

        Args:
            path: The folder.
            format: `"onnx"`, or `"torch"` for an exported program (`.pt2`).
            deterministic: Whether the artefact takes the most likely actions. Otherwise it samples them: it has another
                input `noise`, random numbers that select the actions from the distribution.
            evaluation: `return_mean` and `return_std`, for the model card.

        Raises:
            ExportError: The policy cannot be exported (the message says why), or the artefact acts differently. Nothing
                is written then.
        """
        return self._files.export(path, format, deterministic, evaluation)

    def save_pretrained(self, save_directory: str | Path) -> Path:
        """Write a checkpoint and a model card in the format of the Hugging Face Hub, and return the folder.

        `from_pretrained` reads it. Raises `ValueError` if the folder exists and contains something else.
        """
        return write_pretrained(save_directory, self._files.facts(), self.save_to_path)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *, trust: bool = False, **options: object) -> Policy:
        """Return the policy in a folder of `save_pretrained`, or in a repository of the Hugging Face Hub.

        Args:
            name_or_path: The folder, or the name of the repository.
            trust: Whether all objects that the checkpoint names may be used; see `from_checkpoint`.
            options: Options of `huggingface_hub.snapshot_download` (`revision=`, `token=`, `cache_dir=`).

        Raises:
            ValueError: There is no policy.
        """
        return cls.from_checkpoint(pretrained_checkpoint(name_or_path, **options), trust=trust)

    def push_to_hub(self, repo_id: str, **options: object) -> str:
        """Upload the folder of `save_pretrained` to the Hugging Face Hub (extra `hub`), and return its address.

        Args:
            repo_id: Name of the repository.
            options: Options of `huggingface_hub.HfApi.create_repo` (`private=`, `token=`).
        """
        return upload_pretrained(self.save_pretrained, repo_id, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        """Return a policy with a learner in this process that continues to act and learn as this one would."""
        config = self.config.copy().learners(num_learners=0)
        if self.is_multi_agent:
            config = with_modules(config, self._modules_state(), IN_MEMORY)
        spaces = self.observation_space, self.action_space
        group = config.build_learner_group(spaces=spaces)
        copied = Policy(config, group, observation_space=spaces[0], action_space=spaces[1], agents=self.agents)
        copied.set_state(self.get_state())
        return copied

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Policy is not pickled: write it with save_to_path(path), read it with from_checkpoint(path)")


def policy_within_training_step(policy: Policy, enabled: bool = True) -> AbstractContextManager[Policy]:
    """Return a context manager for a training step of `policy`, in which it may learn and explores."""
    return policy.within_training_step(enabled)


# -- statistics ---


def _values_and_seconds(
    with_ids: bool, series: Mapping[tuple[str, str], list[float]], results: Mapping[str, Any]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the metrics of an update by name, and its durations in seconds by stage.

    Args:
        with_ids: Whether names begin with the module id.
        series: Values of each gradient step, by module id and name.
        results: Results of the learner group, by module id. They have metrics of the whole update, with one value.
    """

    def prefix_of(module_id: str) -> str:
        return f"{module_id}/" if with_ids and module_id != ALL_MODULES else ""

    values_by_name = {prefix_of(module_id) + name: values for (module_id, name), values in series.items()}
    for module_id, metrics in results.items():
        # The results of an asynchronous group also have the number of the call, which is not a dict.
        if module_id == ALL_MODULES or not isinstance(metrics, dict):
            continue
        prefix = prefix_of(module_id)
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                values_by_name.setdefault(prefix + name, [float(value)])

    seconds_by_stage = {}
    for name, value in results[ALL_MODULES].items():
        if name.startswith("seconds_"):
            seconds_by_stage[name.removeprefix("seconds_")] = value
    return values_by_name, seconds_by_stage


# -- functions that run on each learner ---


def row_errors(learner: Learner, module_id: str) -> np.ndarray:
    """Return the errors `[N]` of the learner's rows in the last gradient step; none if it has no rows of the module."""
    errors = errors_of_rows(learner.row_errors, module_id, type(learner).__name__).cpu().numpy()
    # A learner without rows of a module takes part in the step with stand-ins, whose errors do not count.
    return errors[:0] if module_id in learner.stand_ins else errors


def _set_statistics(learner: Learner, module_id: str, state: Mapping[str, Any]) -> None:
    """Set the running statistics of a module's connectors."""
    learner.connectors[module_id].set_state(state)
