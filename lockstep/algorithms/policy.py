"""`Policy`: acts, and learns through its group of learners."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.algorithms import learning
from lockstep.algorithms.acting import ActingPolicy
from lockstep.algorithms.by_hand import configuration_of
from lockstep.algorithms.learning import update_from_rollout
from lockstep.algorithms.offline import fit_normalizers
from lockstep.algorithms.replaying import update_from_replay
from lockstep.connectors import ModuleConnectors
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.learner.group import LearnerGroup
from lockstep.learner.publishing import after_update
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights, RLModule, flatten_module
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.tracking.statistics import TrainingStats

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig
    from lockstep.algorithms.multi_agent_policy import AnyPolicy


class Policy(ActingPolicy):
    """The two verbs of both worlds: it acts (`compute_actions`) and learns (`update`, `learn_on_batch`).

    With a learner in this process it acts on that learner's memory, so what was just learned is acted on at once.
    Where learners are in other processes it acts with a copy, `module` and `connectors`, that gets their weights after
    each update. Made of a module, which the group's learner trains, it is configured as that learner is. The spaces are
    the configuration's, or the module's, where they are not given.
    """

    def __init__(
        self,
        config_or_module: AlgorithmConfig | RLModule,
        learner_group: LearnerGroup,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        module: RLModule | None = None,
        connectors: ModuleConnectors | None = None,
    ) -> None:
        config = configuration_of(config_or_module, learner_group)
        if observation_space is None or action_space is None:
            from lockstep.algorithms.build import find_spaces

            observation_space, action_space = find_spaces(config, None, None)
        if learner_group.is_local:
            module = learner_group.learner.module[DEFAULT_MODULE_ID]
            connectors = learner_group.learner.connectors[DEFAULT_MODULE_ID]
        elif module is None or connectors is None:
            raise ValueError("the learners are in other processes: give module and connectors to act with")
        super().__init__(config, module, connectors, observation_space=observation_space, action_space=action_space)
        self.learner_group = learner_group
        self.last_results: dict[str, Any] = {}
        self.last_batch: SampleBatch | None = None
        """the last sample of a replay buffer that was learned from, or the first of an update with a loss not finite"""
        self._last_series: dict[Any, Any] = {}
        self._take_over()

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        return self.learner_group.learner.weights_seq_no if self.learner_group.is_local else self._version

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """What others need to act as this policy does; with `copy=False` it may change with the next update."""
        observations, timesteps = self.connectors.obs.get_state(), dict(self.timesteps)
        return ActingWeights(self.weights_seq_no, flatten_module(self.module, copy=copy), observations, timesteps)

    bring_home = learning.bring_home

    def _act_with_learner(self) -> None:
        """Acts with the networks of the learner in this process."""
        learner = self.learner_group.learner
        self._act_with(learner.module[DEFAULT_MODULE_ID], learner.connectors[DEFAULT_MODULE_ID])

    def _take_over(self) -> None:
        """Of learners in other processes: acts with what they have learned."""
        if self.learner_group.is_local:
            self._last_series = self.learner_group.learner.last_series
        else:
            weights, self._last_series = self.learner_group.first_learner(after_update, DEFAULT_MODULE_ID)
            self.set_weights(weights)

    # -- learning ---

    def update(
        self,
        sample_size: int,
        buffer: RolloutStore | ReplayBuffer | OfflineRows,
        batch_size: int | None = None,
        repeat: int | None = None,
    ) -> TrainingStats:
        """Gradient steps on the whole rollout in `buffer` (`sample_size=0`), `repeat` passes in minibatches; or on a
        replay buffer, each of `repeat` steps on a fresh sample of `sample_size` (see `update_from_replay`).

        Raises `RuntimeError` outside of a training step, `ValueError` for a sample size of a rollout.
        """
        if not self._training:
            raise RuntimeError("update() outside of a training step; use `with policy_within_training_step(policy):`")
        if isinstance(buffer, ReplayBuffer | OfflineRows):
            return update_from_replay(self, sample_size, buffer, batch_size, repeat)
        return update_from_rollout(self, sample_size, buffer, batch_size, repeat)

    training_stats = learning.training_stats

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """One pass over a prepared batch; returns the results by module."""
        results: dict[str, Any] = self.learner_group.update_from_batch(batch, timesteps=self.timesteps)
        self._take_over()
        return results

    def process_buffer(self, buffer: Any) -> Any:
        """Prepares offline data once: observation statistics take all rows in, the algorithm chooses how they are read.

        Algorithms that are not offline leave a buffer as it is.
        """
        if self.config.is_offline:
            fit_normalizers(buffer, self)
        return self.config.process_buffer(buffer)

    # -- state ---

    __deepcopy__ = learning.deep_copy
    __reduce__ = learning.refuse_pickle
    get_state = learning.get_state
    set_state = learning.set_state
    checkpoint_folders = learning.checkpoint_folders
    set_checkpoint_folders = learning.set_checkpoint_folders
    save_to_path = learning.save_to_path
    restore_from_path = learning.restore_from_path

    def _set_own_state(self, state: Mapping[str, Any]) -> None:
        self.timesteps = {name: int(value) for name, value in state["timesteps"].items()}
        self._rng.bit_generator.state = state["rng"]
        self._take_over()

    def _rng_state(self) -> dict[str, Any]:
        return dict(self._rng.bit_generator.state)

    @staticmethod
    def _metric_prefix(module_id: str) -> str:
        """What stands before the names of a module's metrics: nothing, there is one module."""
        return ""

    @classmethod
    def from_checkpoint(cls, path: str | Path) -> Policy:
        """The policy in a checkpoint folder; no environment is made. `ValueError` where there is no policy in it."""
        policy = learning.policy_from_checkpoint(path)
        if not isinstance(policy, cls):
            raise ValueError(f"{path} holds a {type(policy).__name__}; use its from_checkpoint")
        return policy


def policy_within_training_step(policy: AnyPolicy, enabled: bool = True) -> AbstractContextManager[AnyPolicy]:
    """The context in which a policy may learn and explores; gives the policy."""
    return policy.within_training_step(enabled)
