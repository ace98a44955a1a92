"""`Policy`: acts, and learns through its group of learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from lockstep.algorithms import learning
from lockstep.algorithms.acting import ActingPolicy
from lockstep.algorithms.learning import update_from_rollout
from lockstep.algorithms.offline import fit_normalizers
from lockstep.algorithms.replaying import update_from_replay
from lockstep.algorithms.state_dicts import IncompatibleKeys, load_state_dict_of, state_dict_of
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.tracking.statistics import TrainingStats

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig
    from lockstep.algorithms.multi_agent_policy import AnyPolicy


class Policy(ActingPolicy):
    """The two verbs of both worlds: it acts (`compute_actions`) and learns (`update`, `learn_on_batch`).

    With a learner in this process it acts on that learner's memory, so what was just learned is acted on at once.
    Where learners are in other processes it acts with a copy, `module` and `connectors`, that gets their weights after
    each update. The spaces are the configuration's, or its environment's, where they are not given.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        learner_group: LearnerGroup,
        *,
        observation_space: Any = None,
        action_space: Any = None,
    ) -> None:
        if not hasattr(config, "sections"):
            raise TypeError(
                f"a Policy is made of a configuration and a group of learners, not of a {type(config).__name__}; a "
                "network of your own goes into config.rl_module(rl_module_spec=...), see wrap_module()"
            )
        from lockstep.algorithms.build import build_acting_parts, find_spaces

        if observation_space is None or action_space is None:
            observation_space, action_space = find_spaces(config, None, None)
        if learner_group.is_local:
            module = learner_group.learner.module[DEFAULT_MODULE_ID]
            connectors = learner_group.learner.connectors[DEFAULT_MODULE_ID]
        else:
            module, connectors = build_acting_parts(config, (observation_space, action_space))
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

    @property
    def learns_meanwhile(self) -> bool:
        """Is an asynchronous update under way, so that what acts now is not what will be learned from?"""
        return self.learner_group.num_in_flight > 0

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """What others need to act as this policy does; with `copy=False` it may change with the next update."""
        observations, timesteps = self.connectors.obs.get_state(), dict(self.timesteps)
        return ActingWeights(self.weights_seq_no, self.module.get_flat_weights(copy=copy), observations, timesteps)

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
            weights, self._last_series = self.learner_group.first_learner(Learner.after_update, DEFAULT_MODULE_ID)
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

    # -- as torch has it ---

    def state_dict(self) -> dict[str, Tensor]:
        """Return the networks' parameters and buffers and the connectors' statistics by name; copies, on the CPU.

        Names begin with `module.` or `connectors.`.
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
        return {DEFAULT_MODULE_ID: ""}

    def _set_config(self, config: AlgorithmConfig) -> None:
        self.config = config

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
