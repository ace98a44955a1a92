"""`Policy`: acts with its modules, and learns through its group of learners."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from lockstep.config.base import BaseConfig, Spaces
from lockstep.config.json_form import to_plain
from lockstep.connectors import ModuleConnectors, ObsPipeline
from lockstep.data import MultiAgentBatch, MultiAgentEpisode, SampleBatch
from lockstep.data.actions import single_action
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
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights, MultiRLModule, RLModule, RLModuleSpec, check_module_id
from lockstep.modules.multi_rl_module import module_changes
from lockstep.options.checks import check_whole
from lockstep.options.schedules import stages_of, value_at_step
from lockstep.policy.acting import ActingPolicy, checked_observations
from lockstep.policy.files import PolicyFiles, SavedPolicy, same_threads
from lockstep.policy.new_modules import NewModule, Source, overrides_in, with_modules
from lockstep.policy.state_dict import IncompatibleKeys, StateDict
from lockstep.policy.tensor_updates import MOST_STEPS, update_from_tensors
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer, TensorReplay
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import IN_MEMORY, FileNames, signed
from lockstep.tracking.statistics import TrainingStats
from lockstep.tracking.totals import merge_training_stats

Rollout = RolloutStore | EpisodeStore
Replay = RowSource | TensorReplay
MOST_BYTES = 2**27
"""of the observations of all these samples, where there are several"""
CONNECTORS = ["learner/connectors"]
"""The component of a learner group's state with the connectors' statistics."""


class _AgentsMemory(threading.local):
    """What the observations of each of several agents go through in `compute_actions`. Each thread has its own."""

    def __init__(self) -> None:
        self.recorded: dict[AgentID, ObsPipeline] = {}


class Policy:
    """The two verbs of both worlds: it acts (`compute_actions`) and learns (`update`, `learn_on_batch`).

    `acting` has for each module id the `ActingPolicy` that acts with its network: one entry, "default_policy", for a
    single agent. A policy of a single agent has what that part has, too (`policy.to_env`, `policy.action_form`). Of
    several agents `multi_agent(policy_mapping_fn=)` says which module acts for which agent, and observations, actions
    and spaces are dicts.

    With a learner in this process it acts on that learner's memory, so what was just learned is acted on at once.
    Where learners are in other processes it acts with copies that get their weights after each update.

    Any number of threads may ask it for actions; what its connectors remember belongs to the calling thread.

    Args:
        config: the configuration that the group was built from.
        learner_group: the learners.
        observation_space: of a single agent, or `{module_id: space}`; the configuration's where it is None.
        action_space: as `observation_space`.
        agents: in the order of their numbers, where observations have these (`multi_agent(agent_id_in_obs=True)`).
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
        self.config, self.learner_group = config, learner_group
        self.is_multi_agent = config.is_multi_agent
        self.agents = None if agents is None else list(agents)
        self._mapping = config.multi_agent.policy_mapping_fn
        self._who_learns: object = config.multi_agent.policies_to_train
        self._stage_of_who_learns = 0
        self._recipes: dict[str, Any] = {}
        """What the modules that were added are built from, as plain values."""
        self.acting: dict[str, ActingPolicy] = {}
        self._memory = _AgentsMemory()
        self._training = False
        self.timesteps = {STEPS_SAMPLED: 0}
        spaces_of = {DEFAULT_MODULE_ID: (observation_space, action_space)}
        if self.is_multi_agent:
            spaces_of = {mid: (space, action_space[mid]) for mid, space in observation_space.items()}
        for module_id, spaces in spaces_of.items():
            if learner_group.is_local:
                network, connectors = self._part_of_learner(module_id)
            else:
                network, connectors = config.build_acting_parts(spaces, module_id)
                if config.multi_agent.centralized_critic:
                    network.critic_space = learner_group.first_learner(Learner.critic_space_of, module_id)
            self._begin_acting(module_id, network, connectors, spaces)
        self._taken: dict[str, np.ndarray] = {}
        """rows of each sub-buffer of replay that the statistics have seen, by module"""
        self.last_results: dict[str, Any] = {}
        self.last_batch: SampleBatch | MultiAgentBatch | None = None
        """the last sample of a replay buffer that was learned from, or the first of an update with a loss not finite"""
        self._last_series: Mapping[tuple[str, str], list[float]] = {}
        self._take_over()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            parts = self.__dict__.get("acting", {})
            if name.startswith("_") or len(parts) != 1 or self.is_multi_agent:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            return getattr(next(iter(parts.values())), name)

    @property
    def policy_mapping_fns(self) -> list[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run."""
        return [mapping for _, mapping in stages_of("policy_mapping_fn", self._mapping)]

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """`f(agent, episode)` -> module id, for episodes that begin now."""
        mapping: Callable[..., str] | None = value_at_step(self.timesteps[STEPS_SAMPLED], self._mapping)
        return mapping

    @policy_mapping_fn.setter
    def policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Take what `multi_agent(policy_mapping_fn=)` takes."""
        self._mapping = mapping_in_one_form(policy_mapping_fn)

    @property
    def observation_space(self) -> Any:
        """Space of the environment's observations; of several agents a dict of spaces by module id."""
        return self._by_module({module_id: part.observation_space for module_id, part in self.acting.items()})

    @property
    def action_space(self) -> Any:
        """Space of the environment's actions; of several agents a dict of spaces by module id."""
        return self._by_module({module_id: part.action_space for module_id, part in self.acting.items()})

    def _by_module(self, values: dict[str, Any]) -> Any:
        """Return values by module id; of a single agent the value of its module."""
        return values if self.is_multi_agent else values[DEFAULT_MODULE_ID]

    def _begin_acting(self, module_id: str, network: RLModule, connectors: ModuleConnectors, spaces: Spaces) -> None:
        """Let a module act: at the policy's time, with random numbers of its own."""
        observations, actions = spaces
        part = ActingPolicy(self.config, network, connectors, observation_space=observations, action_space=actions)
        part.timesteps = self.timesteps
        part.is_training = self._training
        part.seed(self._seed_of(module_id, self.config.debugging.seed))
        self.acting[module_id] = part

    def _part_of_learner(self, module_id: str) -> tuple[RLModule, ModuleConnectors]:
        learner = self.learner_group.learner
        return learner.module[module_id], learner.connectors[module_id]

    @property
    def module(self) -> Any:
        """The network that acts; of several agents a `MultiRLModule` of all."""
        modules = {module_id: part.module for module_id, part in self.acting.items()}
        return MultiRLModule(modules) if self.is_multi_agent else modules[DEFAULT_MODULE_ID]

    @property
    def is_stateful(self) -> bool:
        """Whether a module has a memory."""
        return any(part.is_stateful for part in self.acting.values())

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        if self.learner_group.is_local:
            return self.learner_group.learner.weights_seq_no
        return next(iter(self.acting.values())).weights_seq_no

    @property
    def learns_meanwhile(self) -> bool:
        """Whether an asynchronous update is under way, so that what acts now is not what will be learned from."""
        return self.learner_group.num_in_flight > 0

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """Return what others need to act as this policy does; without `copy` it may change with the next update."""
        parts = {mid: part.acting_weights(self.weights_seq_no, copy) for mid, part in self.acting.items()}
        if not self.is_multi_agent:
            return parts[DEFAULT_MODULE_ID]
        return ActingWeights.joined(parts, dict(self._recipes), self._mapping)

    def seed(self, seed: int) -> None:
        """Begin the random numbers of `compute_actions` again, others for each module."""
        for module_id, part in self.acting.items():
            part.seed(self._seed_of(module_id, seed))

    def _seed_of(self, module_id: str, seed: int) -> int:
        """Return the seed of a module's random numbers, for the seed of the policy."""
        return RandomStreams(seed).child("policy").seed(module_id) if self.is_multi_agent else seed

    # -- acting ---

    def compute_actions(
        self,
        observations: Tree,
        state: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        rewards: Tree = None,
    ) -> Any:
        """Return environment actions for raw observations: `[B, ...]` for `[B, ...]`, or a dict for a dict of agents.

        They are drawn with `explore=True`, the most likely ones with `explore=False`. None: drawn within a training
        step (`policy_within_training_step`), else the most likely ones.

        A recurrent policy returns `(actions, state)`; hand the state `{name: [B, ...]}` back with the next
        observations, None (or `get_initial_state(B)`) where episodes begin. Of several agents the states are dicts by
        agent, and a missing one begins an episode.

        Connectors with a memory (`environment(frame_stack=)`, previous actions) follow the rows, or the agents, from
        call to call: `reset` where episodes begin. `rewards` of the step before, `[B]` or a dict by agent, are for
        connectors that need them.

        Raises:
            ValueError: observations or a state that do not fit, NaN, or another number of rows than are remembered.
            KeyError: an agent of an unknown module.
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
        """Return the environment's action for one observation (a plain int for a Discrete space).

        A recurrent policy returns `(action, state)`; the state `{name: [...]}` goes back in with the next observation.
        `rewards`: that of the step before, see `compute_actions`. `AttributeError` for several agents, for which
        `compute_actions` takes a dict.
        """
        return self._sole_part("compute_single_action").compute_single_action(obs, state, explore, rewards)

    def to_env(self, actions: np.ndarray) -> Any:
        """Return actions as the environment takes them, for actions as learned from. Of a single agent."""
        return self._sole_part("to_env").to_env(actions)

    @property
    def seen_space(self) -> Any:
        """The space of the observations that are acted on and stored. Of a single agent."""
        return self._sole_part("seen_space").seen_space

    def _sole_part(self, name: str) -> ActingPolicy:
        """Return the part that acts for a single agent; `AttributeError` where there are several."""
        if self.is_multi_agent:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} for several agents")
        return self.acting[DEFAULT_MODULE_ID]

    def reset(self, env_index: Any = None) -> None:
        """Begin episodes in these rows of `compute_actions` (an index or several), or of this agent; None: in all.

        It concerns connectors with a memory; what a collector remembers is its own.
        """
        if not self.is_multi_agent:
            self.acting[DEFAULT_MODULE_ID].reset(env_index)
        elif env_index is None:
            self._memory.recorded.clear()
        else:
            self._memory.recorded.pop(env_index, None)

    def _compute_for_agents(
        self,
        observations: Mapping[AgentID, Any],
        states: Mapping[AgentID, Any],
        explore: bool | None,
        rewards: Mapping[AgentID, Any],
    ) -> Any:
        agents_of: dict[str, list[AgentID]] = {}
        if self.agents is not None:
            observations = {agent: self._with_id(agent, value) for agent, value in observations.items()}
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        for agent in observations:
            agents_of.setdefault(self.module_for(agent, episode), []).append(agent)
        actions: dict[AgentID, Any] = {}
        after: dict[AgentID, Any] = {}
        for module_id, agents in agents_of.items():
            part, before = self.acting[module_id], None
            seen = [self._seen_by(agent, part, observations[agent], rewards.get(agent)) for agent in agents]
            obs = stack_observations(part.seen_space, seen)
            if part.is_stateful:
                initial = {name: leaf[0] for name, leaf in part.get_initial_state(1).items()}
                rows = [states.get(agent, initial) for agent in agents]
                before = {name: np.stack([row[name] for row in rows]) for name in initial}
            taken = part.actions_of(obs, len(agents), before, explore)
            if part.is_stateful:
                taken, new = taken
                after |= {agent: {name: leaf[i] for name, leaf in new.items()} for i, agent in enumerate(agents)}
            for i, agent in enumerate(agents):
                if agent in self._memory.recorded:
                    self._memory.recorded[agent].after_step(rows_of(taken, slice(i, i + 1)), None)
                actions[agent] = single_action(taken, i)
        return (actions, after) if self.is_stateful else actions

    def _with_id(self, agent: AgentID, observation: Tree) -> Any:
        """Return an observation with the agent's number."""
        agents = self.agents or []
        if agent not in agents:
            raise KeyError(f"agent {agent!r} has no number; there are {agents}")
        if not isinstance(observation, Mapping):
            observation = np.asarray(observation)
        return with_agent_id(observation, agents.index(agent), len(agents))

    def _seen_by(self, agent: AgentID, part: ActingPolicy, observation: Tree, reward: float | None) -> Tree:
        """Return an agent's observation as it is acted on; its connectors with a memory follow it."""
        checked, _ = checked_observations(
            part.observation_space, observation, batched=False, name=f"observations[{agent!r}]"
        )
        if part.recorded.is_identity:
            return rows_of(checked, 0)
        memory = self._memory.recorded
        if agent not in memory:
            memory[agent] = part.recorded.copy()
        if reward is not None:
            memory[agent].after_step(None, np.array([reward]))
        return rows_of(memory[agent](checked), 0)

    def module_for(self, agent: AgentID, episode: MultiAgentEpisode | None = None) -> str:
        """Return the id of the module that acts for an agent. `KeyError` for a module that is not there."""
        if episode is None:  # one that has just been reset is false: it has no step
            episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        module_id = episode.module_for(agent)
        if module_id not in self.acting:
            raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(self.acting)}")
        return module_id

    @property
    def is_exploring(self) -> bool:
        """Whether this is a training step (see `within_training_step`) and exploration is not switched off."""
        return self._training and bool(self.config.env_runners.explore)

    @contextmanager
    def within_training_step(self, enabled: bool = True) -> Iterator[Self]:
        """Open the context in which `update` is allowed and modules explore; gives the policy."""
        before = self._training
        self._set_training(enabled)
        try:
            yield self
        finally:
            self._set_training(before)

    def _set_training(self, enabled: bool) -> None:
        self._training = enabled
        for part in self.acting.values():
            part.is_training = enabled

    def _set_timesteps(self, timesteps: dict[str, int]) -> None:
        """Take one dict for all modules, so that exploration goes by the same clock."""
        self.timesteps = timesteps
        for part in self.acting.values():
            part.timesteps = timesteps

    # -- learning ---

    def update(
        self,
        sample_size: int,
        buffer: Rollout | Replay,
        batch_size: int | None = None,
        repeat: int | None = None,
    ) -> TrainingStats:
        """Learn from the whole rollout in `buffer` (`sample_size=0`), or in gradient steps from a replay buffer.

        From a rollout: `repeat` passes in minibatches of `batch_size` rows (of the module that has most). From a replay
        buffer: `repeat` gradient steps, each on a fresh sample of `sample_size` transitions of each module, 0: on all;
        a prioritised one gets the errors of each step before the next sample is drawn. The statistics are of all steps;
        of several agents metrics are named `<module id>/<metric>`.

        Raises:
            RuntimeError: outside of a training step.
            ValueError: a sample size of a rollout, an empty buffer, a `batch_size` other than `sample_size`.
            TypeError: several modules and a buffer of one.
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
        self._follow_who_learns()
        started = time.perf_counter()
        results = self.learner_group.update_from_episodes(
            buffer.episodes(),
            timesteps=self.timesteps,
            num_epochs=self.config.training.num_epochs if repeat is None else repeat,
            minibatch_size=batch_size,
            shuffle_batch_per_epoch=self.config.training.shuffle_batch_per_epoch,
        )
        seconds = results[ALL_MODULES].get("seconds_gradient_steps", 0.0)  # longer, where it was launched before
        return self.training_stats(results, min(started, time.perf_counter() - seconds))

    def _update_from_replay(
        self, sample_size: int, buffer: RowSource, batch_size: int | None, repeat: int | None
    ) -> TrainingStats:
        steps = 1 if repeat is None else check_whole("repeat", repeat, 1)
        check_whole("sample_size", sample_size, 0)
        if batch_size not in (None, sample_size):
            raise ValueError(
                f"batch_size={batch_size}: a gradient step takes a whole sample of {sample_size}; leave it out"
            )
        self._follow_who_learns()
        buffers, several = buffer.by_module(), buffer.is_by_module
        if not self.config.is_offline:  # else `process_buffer` has taken all
            for module_id, source in buffers.items():
                self._take_in(module_id, source)
        prioritized = any(source.is_prioritized for source in buffers.values())
        at_once = 1 if prioritized else self._steps_at_once(steps, sample_size, buffers.values())
        parts: list[TrainingStats] = []
        bad: SampleBatch | MultiAgentBatch | None = None
        for start in range(0, steps, at_once):
            now = min(at_once, steps - start)
            batches = buffer.draw(now * sample_size)
            whole: SampleBatch | MultiAgentBatch
            if several:
                whole = MultiAgentBatch(batches, max(map(len, batches.values())))
            else:
                whole = batches[DEFAULT_MODULE_ID]
            self.last_batch = whole
            started = time.perf_counter()
            needed = {mid: self.acting[mid].learning_columns(each) for mid, each in batches.items()}
            results = self.learner_group.update_from_batch(
                MultiAgentBatch(needed, len(whole)) if several else needed[DEFAULT_MODULE_ID],
                timesteps=self.timesteps,
                minibatch_size=sample_size or None,
            )
            parts.append(self.training_stats(results, started))
            for module_id, each in batches.items():
                learns = "total_loss" in results.get(module_id, ())
                if learns and buffers[module_id].is_prioritized:
                    self._update_priorities(module_id, buffers[module_id], each)
            if bad is None and parts[-1].first_bad_step is not None:
                first = sample_size * (parts[-1].first_bad_step - 1)
                bad = whole
                if isinstance(whole, SampleBatch):
                    bad = take_units(whole, np.arange(first, first + num_units(whole) // now))
        self.last_batch = self.last_batch if bad is None else bad
        return parts[0] if len(parts) == 1 else merge_training_stats(parts)

    def _take_in(self, module_id: str, buffer: RowSource) -> None:
        """Give the statistics the rows that were added since the last time, on all learners."""
        part = self.acting[module_id]
        if not part.has_statistics or not isinstance(buffer, ReplayBuffer):
            return
        rows, self._taken[module_id] = buffer.rows_since(self._taken.get(module_id))
        if any(map(len, rows)):
            part.take_in(buffer, rows)
            self._share_statistics(module_id)

    def _share_statistics(self, module_id: str) -> None:
        """Give learners in other processes the statistics of the copy that acts here."""
        if not self.learner_group.is_local:
            state = self.acting[module_id].connectors.get_state()
            self.learner_group.foreach_learner(_take_statistics, module_id, state)

    def _steps_at_once(self, steps: int, sample_size: int, sources: Iterable[RowSource]) -> int:
        """How many of the gradient steps draw their samples together; the same in each run of one configuration."""
        if steps == 1 or not sample_size:
            return 1
        observations = [create_empty_array(part.seen_space) for part in self.acting.values()]
        row = sum(2 * sum(leaf.nbytes for leaf in leaves(obs)) for obs in observations)
        row *= max((source.rows_of_sample for source in sources), default=1)
        return min(MOST_STEPS, max(1, MOST_BYTES // (sample_size * row)))

    def _update_priorities(self, module_id: str, buffer: RowSource, batch: SampleBatch) -> None:
        errors = np.concatenate(self.learner_group.foreach_learner(row_errors, module_id))
        if Columns.SEQ_LENS in batch:  # one for each sequence
            errors = np.repeat(errors, batch[Columns.SEQ_LENS])
        sound = np.isfinite(errors)  # what is done about the others, nan_policy says
        if Columns.LOSS_MASK in batch:
            sound &= batch[Columns.LOSS_MASK]
        if sound.any():
            buffer.update_weight(batch[Columns.BATCH_INDEXES][sound], errors[sound])

    def training_stats(self, results: dict[str, Any], started: float) -> TrainingStats:
        """Return statistics of the update that gave `results` and began at `started` (`time.perf_counter`)."""
        self.last_results = results
        self._take_over()
        numbers = (module.items() for module in results.values() if isinstance(module, dict))
        losses = [value for module in numbers for name, value in module if "loss" in name]
        return TrainingStats.of_update(
            time.perf_counter() - started,
            results[ALL_MODULES]["num_minibatches"],
            partial(_values_and_seconds, self.is_multi_agent, self._last_series, results),
            finite=math.isfinite(sum(losses)),
        )

    def learn_on_batch(self, batch: SampleBatch | MultiAgentBatch) -> dict[str, Any]:
        """Learn from a prepared batch in one pass; returns the results by module."""
        results: dict[str, Any] = self.learner_group.update_from_batch(batch, timesteps=self.timesteps)
        self._take_over()
        return results

    def process_buffer(self, buffer: Any) -> Any:
        """Prepare offline data once: observation statistics take all rows in, the algorithm chooses their form.

        A network with memory gets sequences: as the buffer has them, else of up to `model_config.max_seq_len` rows with
        half as many of burn-in. Algorithms that are not offline leave a buffer as it is. `MalformedBufferError` where a
        network with memory gets rows without an order in time.
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
        """Columns without which the learners of a single agent's policy cannot learn."""
        names: tuple[str, ...] = self.learner_group.first_learner(methodcaller("required_columns", DEFAULT_MODULE_ID))
        return names

    def bring_home(self) -> None:
        """End learners in other processes, or leave other ranks; one in this process goes on with their state."""
        if not self.learner_group.is_alone:
            self._learn_in_process(self.config.copy().learners(num_learners=0))

    def _learn_in_process(self, config: BaseConfig) -> None:
        """Replace the learners by one in this process, as `config` says, with their state."""
        state = self.learner_group.get_state()
        self.learner_group.shutdown()
        config = with_modules(config, self._modules_state(), IN_MEMORY) if self.is_multi_agent else config
        self.learner_group = config.build_learner_group(spaces=(self.observation_space, self.action_space))
        self.learner_group.set_state(state)
        for module_id, part in self.acting.items():
            part.act_with(*self._part_of_learner(module_id))
        self._take_over()

    def _take_over(self) -> None:
        """Act with what learners in other processes have learned, and keep the metrics of their last update."""
        if self.learner_group.is_local:
            self._last_series = self.learner_group.learner.last_series
            return
        for module_id, part in self.acting.items():
            if part.module.inference_only:  # frozen
                continue
            weights, self._last_series = self.learner_group.first_learner(Learner.after_update, module_id)
            part.set_weights(weights)

    # -- modules that come and go ---

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
        """Add a module that agents may be mapped to; it learns from the next update on.

        Args:
            module_spec: as in `multi_agent(policies=...)`; None: the module of `init_from`, else the default one.
            config_overrides: training options of this module.
            init_from: a module of this policy, or a checkpoint (of a module, or of a policy that has one of this id, or
                only one): its weights and its connectors' statistics are taken.
            frozen: it only acts: it never learns, and has neither critic nor optimizer.
            trust: take all objects that the checkpoint names, see `from_checkpoint`.

        Raises `ValueError`, changing nothing, for an id that is there or is no id, a policy of one agent, weights that
        do not fit, and where nothing says what the module's spaces are.
        """
        if not self.is_multi_agent:
            raise ValueError(
                f"add_module({module_id!r}): this policy is of one agent; name modules with multi_agent(policies=...)"
            )
        if module_id in self.acting:
            raise ValueError(f"there is a module {module_id!r} already; remove it first, or take another id")
        check_module_id(module_id)
        spec = checked_spec(module_id, module_spec) if isinstance(module_spec, Mapping) else module_spec
        source = None if init_from is None else self._source(module_id, init_from, trust)
        if spec is None and source is not None:
            spec = replace(source.spec, observation_space=None, action_space=None, inference_only=False)
        spec = RLModuleSpec() if spec is None else spec
        if self.config.multi_agent.centralized_critic and not spec.is_built:
            known = (part.module.critic_space for part in self.acting.values())
            spec = replace(spec, critic_space=spec.critic_space or next(space for space in known if space is not None))
        spaces = self._spaces_for(module_id, spec, init_from)
        self._add(module_id, NewModule.build(self.config, module_id, spec, spaces, source, frozen), config_overrides)

    def _add(self, module_id: str, new: NewModule, overrides: Mapping[str, Any] | None) -> None:
        """Add a module to the learners, and the part that acts with it."""
        plain = to_plain(f"config_overrides of {module_id}", overrides)  # checkpoints hold them
        self.learner_group.add_module(
            module_id=module_id, module_spec=new.module, config_overrides=overrides, connectors=new.connectors
        )
        is_local = self.learner_group.is_local
        part = self._part_of_learner(module_id) if is_local else new.to_act(getattr(torch, self.config.framework.dtype))
        self._begin_acting(module_id, *part, new.spaces)
        self._recipes[module_id] = self._recipe_of(module_id, plain)

    def _source(self, module_id: str, init_from: str | Path, trust: bool) -> Source:
        """Return the module that another one begins as. `ValueError` where `init_from` names none."""
        if isinstance(init_from, str) and init_from in self.acting:
            networks = [f"learner/rl_module/{init_from}", f"learner/connectors/{init_from}"]
            state = self.learner_group.get_state(networks)["learner"]
            weights, connectors = state["rl_module"][init_from], state["connectors"][init_from]
            return Source(self.acting[init_from].module.spec(), weights, connectors)
        if not Path(init_from).exists():
            raise ValueError(
                f"init_from={init_from!r} is neither a module (there are {sorted(self.acting)}) nor a checkpoint"
            )
        return Source.of_checkpoint(module_id, init_from, trust=trust)

    def _spaces_for(
        self, module_id: str, spec: RLModuleSpec | RLModule, init_from: str | Path | None
    ) -> tuple[Any, Any]:
        """Return the spaces of a new module: its spec's, those of `init_from`, or those that all modules have."""
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
        """Remove a module. `KeyError` for an unknown one, `ValueError` for the last; nothing is changed then."""
        self.learner_group.remove_module(module_id)
        del self.acting[module_id]
        self._recipes.pop(module_id, None)

    def set_policies_to_train(self, policies_to_train: PoliciesToTrain) -> None:
        """Let these modules learn from the next update on, as `multi_agent(policies_to_train=)` takes them."""
        stages = stages_of("policies_to_train", policies_to_train)
        for _, allowed in stages:
            check_policies_to_train(allowed)
        self._let_learn(value_at_step(self.timesteps[STEPS_SAMPLED], policies_to_train))
        self._who_learns, self._stage_of_who_learns = policies_to_train, 0

    def _follow_who_learns(self) -> None:
        """Switch the learning modules when `policies_to_train` reaches its next stage."""
        if not isinstance(self._who_learns, list | tuple):
            return
        stages = stages_of("policies_to_train", self._who_learns)
        stage = sum(step <= self.timesteps[STEPS_SAMPLED] for step, _ in stages) - 1
        if stage != self._stage_of_who_learns:
            self._let_learn(stages[stage][1])
            self._stage_of_who_learns = stage

    def _let_learn(self, who_learns: TrainedModules) -> None:
        self.learner_group.foreach_learner(methodcaller("set_policies_to_train", who_learns))

    def _modules_state(self) -> dict[str, Any]:
        """Return what the modules of several agents are built from, in their order."""
        recipes = {}
        for module_id in self.acting:
            added = self._recipes.get(module_id)
            recipes[module_id] = self._recipe_of(module_id, None) if added is None else added
        return recipes

    def _recipe_of(self, module_id: str, overrides: object) -> dict[str, Any]:
        """Return what a module is built from. `overrides`: its training options as plain values, if it has its own."""
        part = self.acting[module_id]
        recipe = {
            "spec": part.module.spec().to_dict(),
            "observation_space": describe_space(part.observation_space),
            "action_space": describe_space(part.action_space),
            "config_overrides": overrides,
        }
        return signed(recipe)

    def restore_modules(self, state: Mapping[str, Any], file: FileNames) -> None:
        """Remove and add modules until there are those of a saved state, in its order.

        A state of a single agent names none: nothing changes. `file` finds the objects that the state names.
        """
        if "modules" not in state:
            return
        saved = state["modules"]
        for change in module_changes(list(self.acting), list(saved)):
            module_id = change.module_id
            if change.is_added:
                recipe = saved[module_id]
                names = file.of_part(recipe)
                self._add(module_id, NewModule.of_recipe(self.config, recipe, names), overrides_in(recipe, names))
            else:
                self.remove_module(module_id)

    # -- as torch has it ---

    def state_dict(self) -> dict[str, Tensor]:
        """Return the networks' parameters and buffers and the connectors' statistics by name; copies, on the CPU.

        Names begin with `module.` or `connectors.`, of several agents with `<module id>.` before that. It is all that
        acting needs; `save_to_path` keeps optimizers, random numbers and the configuration too. Raises `TypeError` for
        a connector whose state is not made of numbers.
        """
        return self._tensors.read()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Set what `state_dict` returned, on every learner; all or nothing. Returns names that were missing or unknown.

        Raises `RuntimeError`, as torch does, for other shapes and, with `strict`, for missing or unknown names.
        """
        incompatible = self._tensors.load(state_dict, strict=strict)
        self._take_over()
        return incompatible

    @property
    def _tensors(self) -> StateDict:
        return StateDict(self.learner_group, self.acting, self.is_multi_agent)

    def train(self, mode: bool = True) -> Self:
        """Set the networks' training mode (dropout, batch normalisation); it does not change whether they explore."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Iterate over the parameters of the networks that act."""
        yield from self.module.parameters()

    def to(self, device: torch.device | str) -> Self:
        """Act and learn on another device from now on; the configuration's `framework.device` follows.

        Raises `RuntimeError` for learners in other processes, `ValueError` for a device that is not there.
        """
        wanted = torch.device(device)
        if self.learner_group.is_remote:
            raise RuntimeError(
                "the learners are in other processes, whose devices learners(...) sets; call bring_home() before to()"
            )
        present = self.learner_group.learner.device
        if wanted.type != present.type or wanted.index not in (None, present.index):
            config = self.config.copy().framework(device=str(wanted))
            config.validate()
            self._learn_in_process(config)
            self.config = config
            for part in self.acting.values():
                part.config = config
        return self

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the group's state, the time and the random numbers of `compute_actions`."""
        return {"learner_group": self.learner_group.get_state(), **self.own_state()}

    def set_state(self, state: Mapping[str, Any], *, names: FileNames = IN_MEMORY) -> None:
        """Restore what `get_state` returned; modules that were added or removed since are removed or added again.

        `names` finds the objects that the state names, where it was read from a file.
        """
        self.restore_modules(state, names)
        self.learner_group.set_state(state["learner_group"])
        self.set_own_state(state)

    def own_state(self) -> dict[str, Any]:
        """Return the state of the policy itself. The learners keep their own."""
        state: dict[str, Any] = {
            "timesteps": dict(self.timesteps),
            "rng": self._rng_state(),
            "taken": {module_id: written.copy() for module_id, written in self._taken.items()},
        }
        if self.is_multi_agent:
            state["modules"] = self._modules_state()
            if self.agents is not None:
                state["agents"] = self.agents
        return state

    def set_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `own_state` returned, after the learners have their state and the modules are those of then."""
        self._set_timesteps({name: int(value) for name, value in state["timesteps"].items()})
        for module_id, part in self.acting.items():
            part.rng.bit_generator.state = state["rng"][module_id] if self.is_multi_agent else state["rng"]
        self._taken = {module_id: np.array(written) for module_id, written in state.get("taken", {}).items()}
        self.take_over_learners()

    def take_over_learners(self) -> None:
        """Act with the weights and statistics of the learners, where these are in other processes."""
        self._take_over()
        if not self.learner_group.is_local:
            saved = self.learner_group.get_state(CONNECTORS)["learner"]["connectors"]
            for module_id, part in self.acting.items():
                part.connectors.set_state(saved[module_id])

    def _rng_state(self) -> dict[str, Any]:
        states = {module_id: dict(part.rng.bit_generator.state) for module_id, part in self.acting.items()}
        return self._by_module(states)

    # -- files (see policy/files.py) ---

    @property
    def _files(self) -> PolicyFiles:
        return PolicyFiles(self)

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a checkpoint: the group's, and `policy`."""
        return self._files.folders()

    def set_checkpoint_folders(
        self, folders: Mapping[str, dict[str, Any]], *, trust: bool = False, file: str | Path = "the checkpoint"
    ) -> None:
        """Restore from the folders of a checkpoint; `ValueError` where there is no policy in it.

        `trust`: take all objects that it names, see `from_checkpoint`. `file`: where it was read.
        """
        self._files.set_folders(folders, trust=trust, file=file)

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder, a new temporary one for None; returns its absolute path."""
        self.learner_group.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.learner_group.last_checkpoint

    def restore_from_path(self, path: str | Path, *, trust: bool = False) -> None:
        """Restore from a checkpoint folder. `trust`: take all objects that it names, see `from_checkpoint`."""
        self.set_checkpoint_folders(read_checkpoint(Path(path)), trust=trust, file=path)

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, policy_mapping_fn: Callable[..., str] | None = None, trust: bool = False
    ) -> Policy:
        """Return the policy in a checkpoint folder; no environment is made.

        Args:
            path: the folder.
            policy_mapping_fn: takes the place of the saved one; a function without a name is not saved.
            trust: take all objects that the checkpoint names. Without it they must be classes of the kind that their
                options expect, in installed modules, unless this user has made the checkpoint: what a stranger's file
                names is run. An environment is not checked before it is made.

        Raises:
            UntrustedError: the checkpoint names an object that needs `trust=True`.
            ValueError: there is no policy in it.
        """
        saved = SavedPolicy.read(path, trust=trust)
        config = saved.config()
        if policy_mapping_fn is not None:
            config.multi_agent(policy_mapping_fn=policy_mapping_fn)
        config = saved.with_its_modules(config)
        observations, actions = saved.spaces()
        # The policy will act in somebody else's process: torch's threads stay as they are.
        with same_threads(), claims_of(path):
            group = config.build_learner_group(spaces=(observations, actions))
            policy = Policy(
                config, group, observation_space=observations, action_space=actions, agents=saved.state.get("agents")
            )
            policy.set_checkpoint_folders(saved.folders, trust=trust, file=path)
        return policy

    def start_from(self, path: str | Path) -> None:
        """Take the weights and the connectors' statistics of the checkpoint at `path`; all else stays new.

        Target networks begin as copies of these weights. Raises `ValueError`, changing nothing, for a checkpoint
        without a policy, for other spaces and for networks or connectors that do not fit.
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
        """Write what acts as this policy does, without Lockstep, to the folder `path`, and return it.

        The artefact takes raw observations and gives the environment's actions; all connectors, masks and memories are
        in it. 10,000 observations prove it first. Of several agents there is a folder for each module.

        Args:
            format: `"onnx"`, or `"torch"` for an exported program (`.pt2`).
            deterministic: take the most likely actions; False: those that an input `noise` selects.
            evaluation: `return_mean` and `return_std`, for the model card.

        Raises:
            ExportError: what cannot be exported and why, or an artefact that acts otherwise; nothing is written then.
        """
        return self._files.export(path, format, deterministic, evaluation)

    def save_pretrained(self, save_directory: str | Path) -> Path:
        """Write this policy as the Hugging Face Hub has it, a checkpoint and a model card, and return the folder.

        `from_pretrained` reads it. `ValueError` where a folder of that name holds something else.
        """
        return write_pretrained(save_directory, self._files.facts(), self.save_to_path)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *, trust: bool = False, **options: object) -> Policy:
        """Return the policy in a folder of `save_pretrained`, or in a repository of the Hugging Face Hub.

        `trust`: take all objects that it names, see `from_checkpoint`. `options`: for
        `huggingface_hub.snapshot_download` (`revision=`, `token=`, `cache_dir=`). `ValueError` where there is none.
        """
        return cls.from_checkpoint(pretrained_checkpoint(name_or_path, **options), trust=trust)

    def push_to_hub(self, repo_id: str, **options: object) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub (extra `hub`), and return its address.

        `options`: for `huggingface_hub.HfApi.create_repo` (`private=`, `token=`).
        """
        return upload_pretrained(self.save_pretrained, repo_id, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        """Return a policy with a learner in this process that acts and learns on as this one would."""
        config = self.config.copy().learners(num_learners=0)
        if self.is_multi_agent:
            config = with_modules(config, self._modules_state(), IN_MEMORY)
        spaces = self.observation_space, self.action_space
        group = config.build_learner_group(spaces=spaces)
        twin = Policy(config, group, observation_space=spaces[0], action_space=spaces[1], agents=self.agents)
        twin.set_state(self.get_state())
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Policy is not pickled: write it with save_to_path(path), read it with from_checkpoint(path)")


def policy_within_training_step(policy: Policy, enabled: bool = True) -> AbstractContextManager[Policy]:
    """Return the context in which a policy may learn and explores; it gives the policy."""
    return policy.within_training_step(enabled)


# -- statistics ---


def _values_and_seconds(
    with_ids: bool, series: Mapping[tuple[str, str], list[float]], results: Mapping[str, Any]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """By name: what the modules logged in each gradient step and report of the whole update; seconds by stage."""

    def prefix_of(module_id: str) -> str:
        return f"{module_id}/" if with_ids and module_id != ALL_MODULES else ""

    named = {prefix_of(module_id) + name: values for (module_id, name), values in series.items()}
    for module_id, numbers in results.items():
        if module_id == ALL_MODULES or not isinstance(numbers, dict):  # the number of the call
            continue
        prefix = prefix_of(module_id)
        for name, value in numbers.items():
            if isinstance(value, (int, float)):
                named.setdefault(prefix + name, [float(value)])
    seconds = {k.removeprefix("seconds_"): v for k, v in results[ALL_MODULES].items() if k.startswith("seconds_")}
    return named, seconds


# -- run on each learner ---


def row_errors(learner: Learner, module_id: str) -> np.ndarray:
    """Errors [N] of the learner's rows in the last gradient step."""
    errors = errors_of_rows(learner.row_errors, module_id, type(learner).__name__).cpu().numpy()
    return errors[:0] if module_id in learner.stand_ins else errors


def _take_statistics(learner: Learner, module_id: str, state: Mapping[str, Any]) -> None:
    learner.connectors[module_id].set_state(state)
