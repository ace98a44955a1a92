"""`MultiAgentPolicy`: several modules that act for several agents and learn together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms import learning
from lockstep.algorithms.acting import ActingPolicy
from lockstep.algorithms.observations import checked_observations
from lockstep.algorithms.policy import Policy
from lockstep.algorithms.replaying import update_modules_from_replay
from lockstep.algorithms.state_dicts import IncompatibleKeys, load_state_dict_of, state_dict_of
from lockstep.connectors import ModuleConnectors
from lockstep.data import MultiAgentBatch, MultiAgentEpisode
from lockstep.data.rollout import EpisodeStore
from lockstep.envs.trees import stack_rows
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import STEPS_SAMPLED, Learner
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.modules import MultiRLModule, RLModule
from lockstep.replay import MultiAgentReplayBuffer
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import TrainingStats

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig

AgentID = Any
Parts = Mapping[str, tuple[RLModule, ModuleConnectors]]
"""by module id: the network that acts and the transforms around it"""


class MultiAgentPolicy:
    """What `Policy` is for one module: acts for dicts of agents and learns from their episodes.

    `acting` has for each module id the `ActingPolicy` that acts with its network; the configuration's
    `multi_agent.policy_mapping_fn` says who acts for which agent. Spaces are dicts by module id. Where learners are in
    other processes it acts with copies, `parts`, that get their weights after each update.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        learner_group: LearnerGroup,
        *,
        observation_space: Mapping[str, Any],
        action_space: Mapping[str, Any],
        parts: Parts | None = None,
    ) -> None:
        if learner_group.is_local:
            parts = _parts_of(learner_group)
        elif parts is None:
            raise ValueError("the learners are in other processes: give parts to act with")
        self.config, self.learner_group = config, learner_group
        self.observation_space, self.action_space = dict(observation_space), dict(action_space)
        self.policy_mapping_fn: Callable[..., str] | None = config.multi_agent.policy_mapping_fn
        self.acting: dict[str, ActingPolicy] = {
            module_id: ActingPolicy(
                config,
                *part,
                observation_space=self.observation_space[module_id],
                action_space=self.action_space[module_id],
            )
            for module_id, part in parts.items()
        }
        self.last_results: dict[str, Any] = {}
        self.last_batch: MultiAgentBatch | None = None
        self._last_series: dict[Any, Any] = {}
        self._training = False
        self._set_timesteps({STEPS_SAMPLED: 0})
        self.seed(config.debugging.seed)
        self._take_over()

    @property
    def module(self) -> MultiRLModule:
        """The networks that act, by module id."""
        return MultiRLModule({module_id: one.module for module_id, one in self.acting.items()})

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        if self.learner_group.is_local:
            return self.learner_group.learner.weights_seq_no
        return next(iter(self.acting.values())).weights_seq_no

    def seed(self, seed: int) -> None:
        """Begins the random numbers of `compute_actions` again, others for each module."""
        streams = RandomStreams(seed).child("policy")
        for module_id, one in self.acting.items():
            one.seed(streams.seed(module_id))

    # -- acting ---

    def module_for(self, agent: AgentID, episode: MultiAgentEpisode | None = None) -> str:
        """The id of the module that acts for an agent. `KeyError` for one that is not there."""
        if episode is None:  # one that has just been reset is false: it has no step
            episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        module_id = episode.module_for(agent)
        if module_id not in self.acting:
            raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(self.acting)}")
        return module_id

    def compute_actions(
        self,
        observations: Mapping[AgentID, Any],
        state: Mapping[AgentID, Any] | None = None,
        explore: bool | None = None,
    ) -> Any:
        """`{agent: action}` for `{agent: observation}`, each module asked once.

        `explore` as for `Policy.compute_actions`. Where a module has memory:
        `(actions, {agent: state})`; hand the states back with the next observations. Raises `ValueError` for
        observations that do not fit, `KeyError` for agents of an unknown module.
        """
        agents_of: dict[str, list[AgentID]] = {}
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy_mapping_fn)
        for agent in observations:
            agents_of.setdefault(self.module_for(agent, episode), []).append(agent)
        actions: dict[AgentID, Any] = {}
        after: dict[AgentID, Any] = {}
        for module_id, agents in agents_of.items():
            one, before = self.acting[module_id], None
            for agent in agents:
                name = f"observations[{agent!r}]"
                checked_observations(one.observation_space, observations[agent], batched=False, name=name)
            obs = stack_rows(one.observation_space, [observations[agent] for agent in agents])
            if one.is_stateful:
                initial = {name: leaf[0] for name, leaf in one.get_initial_state(1).items()}
                states = [(state or {}).get(agent, initial) for agent in agents]
                before = {name: np.stack([own[name] for own in states]) for name in initial}
            taken = one.actions_of(obs, len(agents), before, explore)
            if one.is_stateful:
                taken, new = taken
                after |= {agent: {name: leaf[i] for name, leaf in new.items()} for i, agent in enumerate(agents)}
            discrete = taken.ndim == 1 and taken.dtype.kind in "iu"
            actions |= {agent: int(taken[i]) if discrete else taken[i] for i, agent in enumerate(agents)}
        return (actions, after) if any(one.is_stateful for one in self.acting.values()) else actions

    @property
    def is_exploring(self) -> bool:
        """Is this a training step (see `within_training_step`), and exploration not switched off?"""
        return self._training and bool(self.config.env_runners.explore)

    @contextmanager
    def within_training_step(self, enabled: bool = True) -> Iterator[Self]:
        """The context in which `update` is allowed and the modules explore; gives the policy."""
        before = self._training
        self._set_training(enabled)
        try:
            yield self
        finally:
            self._set_training(before)

    def _set_training(self, enabled: bool) -> None:
        self._training = enabled
        for one in self.acting.values():
            one._training = enabled

    # -- learning ---

    def update(
        self,
        sample_size: int,
        buffer: EpisodeStore | MultiAgentReplayBuffer,
        batch_size: int | None = None,
        repeat: int | None = None,
    ) -> TrainingStats:
        """Gradient steps of all modules on the whole rollout in `buffer` (`sample_size=0`), `repeat` passes in
        minibatches of `batch_size` rows of the module that has most; or on a replay buffer, each of `repeat` steps on a
        fresh sample of `sample_size` of each module. Metrics are named `<module id>/<metric>`.

        Raises `RuntimeError` outside of a training step, `TypeError` for another buffer.
        """
        if not self._training:
            raise RuntimeError("update() outside of a training step; use `with policy_within_training_step(policy):`")
        if isinstance(buffer, MultiAgentReplayBuffer):
            return update_modules_from_replay(self, sample_size, buffer, batch_size, repeat)
        if not isinstance(buffer, EpisodeStore):
            raise TypeError(
                "several modules learn from an EpisodeStore or a MultiAgentReplayBuffer, not from a "
                f"{type(buffer).__name__}"
            )
        return learning.update_from_rollout(self, sample_size, buffer, batch_size, repeat)

    training_stats = learning.training_stats

    def learn_on_batch(self, batch: MultiAgentBatch) -> dict[str, Any]:
        """One pass over a prepared batch; returns the results by module."""
        results: dict[str, Any] = self.learner_group.update_from_batch(batch, timesteps=self.timesteps)
        self._take_over()
        return results

    bring_home = learning.bring_home

    def _act_with_learner(self) -> None:
        """Acts with the networks of the learner in this process."""
        for module_id, part in _parts_of(self.learner_group).items():
            self.acting[module_id]._act_with(*part)

    def _take_over(self) -> None:
        """Of learners in other processes: acts with what they have learned."""
        if self.learner_group.is_local:
            self._last_series = self.learner_group.learner.last_series
            return
        for module_id, one in self.acting.items():
            weights, self._last_series = self.learner_group.first_learner(Learner.after_update, module_id)
            one.set_weights(weights)

    @staticmethod
    def _metric_prefix(module_id: str) -> str:
        """What stands before the names of a module's metrics."""
        return "" if module_id == ALL_MODULES else f"{module_id}/"

    # -- as torch has it ---

    def state_dict(self) -> dict[str, Tensor]:
        """Return the networks' parameters and buffers and the connectors' statistics by name; copies, on the CPU.

        Names begin with `<module id>.module.` or `<module id>.connectors.`.
        It is all that acting needs; `save_to_path` keeps optimizers, random numbers and the configuration too.
        """
        return state_dict_of(self.learner_group, self._prefixes())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Set what `state_dict` returned; all or nothing. Returns the names that were missing and those unknown.

        Raises `RuntimeError` for other shapes and, with `strict`, for missing or unknown names.
        """
        keys = load_state_dict_of(self.learner_group, self._prefixes(), state_dict, strict)
        self._take_over()
        return keys

    def train(self, mode: bool = True) -> Self:
        """Set the networks' training mode (dropout, batch normalisation); it does not change whether they explore."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of the networks that act."""
        return self.module.parameters()

    def to(self, device: torch.device | str) -> Self:
        """Act and learn on another device from now on; the configuration's `framework.device` follows.

        Raises `RuntimeError` for learners in other processes, `ValueError` for a device that is not there.
        """
        learning.move_to(self, device)
        return self

    def _prefixes(self) -> dict[str, str]:
        return {module_id: f"{module_id}." for module_id in self.acting}

    def _set_config(self, config: AlgorithmConfig) -> None:
        self.config = config
        for one in self.acting.values():
            one.config = config

    # -- state ---

    __deepcopy__ = learning.deep_copy
    __reduce__ = learning.refuse_pickle
    get_state = learning.get_state
    set_state = learning.set_state
    checkpoint_folders = learning.checkpoint_folders
    set_checkpoint_folders = learning.set_checkpoint_folders
    save_to_path = learning.save_to_path
    restore_from_path = learning.restore_from_path

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, policy_mapping_fn: Callable[..., str] | None = None
    ) -> MultiAgentPolicy:
        """The policy in a checkpoint folder; no environment is made. `ValueError` where there is none in it.

        `policy_mapping_fn` takes the place of the saved one; a function without a name is not saved.
        """
        policy = learning.policy_from_checkpoint(path, policy_mapping_fn=policy_mapping_fn)
        if not isinstance(policy, cls):
            raise ValueError(f"{path} holds a {type(policy).__name__}; use its from_checkpoint")
        return policy

    def _set_timesteps(self, timesteps: dict[str, int]) -> None:
        """One dict for all, so that exploration goes by the same clock."""
        self.timesteps = timesteps
        for one in self.acting.values():
            one.timesteps = timesteps

    def _set_own_state(self, state: Mapping[str, Any]) -> None:
        self._set_timesteps({name: int(value) for name, value in state["timesteps"].items()})
        for module_id, one in self.acting.items():
            one._rng.bit_generator.state = state["rng"][module_id]
        self._take_over()

    def _rng_state(self) -> dict[str, Any]:
        return {module_id: dict(one._rng.bit_generator.state) for module_id, one in self.acting.items()}


AnyPolicy = Policy | MultiAgentPolicy


def _parts_of(group: LearnerGroup) -> Parts:
    learner = group.learner
    return {module_id: (learner.module[module_id], learner.connectors[module_id]) for module_id in learner.module}
