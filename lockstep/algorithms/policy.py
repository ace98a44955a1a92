"""`Policy`: acts, and learns through its group of learners."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.algorithms.acting import ActingPolicy
from lockstep.algorithms.by_hand import configuration_of
from lockstep.algorithms.offline import fit_normalizers
from lockstep.algorithms.plain_values import named_options
from lockstep.algorithms.replaying import update_from_replay
from lockstep.connectors import ModuleConnectors
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.space_codec import describe_space, space_from
from lockstep.learner.group import LearnerGroup
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.publishing import after_update
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights, RLModule, flatten_module
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.tracking.statistics import SequenceSummaryStats, TrainingStats, first_bad_step

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


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

    def bring_home(self) -> None:
        """Ends learners in other processes; the policy goes on with one in this process that has their state."""
        group = self.learner_group
        if group.is_local:
            return
        spaces = self.observation_space, self.action_space
        own = self.config.copy().learners(num_learners=0).build_learner_group(spaces=spaces)
        own.set_state(group.get_state())
        group.shutdown()
        self.learner_group = own
        self._act_with(own.learner.module[DEFAULT_MODULE_ID], own.learner.connectors[DEFAULT_MODULE_ID])
        self._take_over()

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
        if sample_size != 0:
            raise ValueError(f"sample_size={sample_size}: an on-policy update uses the whole rollout; give 0")
        started = time.perf_counter()
        results = self.learner_group.update_from_episodes(
            buffer.episodes(),
            timesteps=self.timesteps,
            num_epochs=self.config.num_epochs if repeat is None else repeat,
            minibatch_size=batch_size,
            shuffle_batch_per_epoch=self.config.shuffle_batch_per_epoch,
        )
        return self.training_stats(results, started)

    def training_stats(self, results: dict[str, Any], started: float) -> TrainingStats:
        """Statistics of the update that gave `results` and began at `started` (`time.perf_counter`)."""
        self.last_results = results
        self._take_over()
        series = self._last_series
        metrics = {name: SequenceSummaryStats.from_sequence(values) for (_, name), values in series.items()}
        for name, value in results.get(DEFAULT_MODULE_ID, {}).items():
            if name not in metrics and isinstance(value, int | float):
                metrics[name] = SequenceSummaryStats.from_sequence([value])
        common = results[ALL_MODULES]
        stages = {name.removeprefix("seconds_"): value for name, value in common.items() if name.startswith("seconds_")}
        bad = first_bad_step({name: values for (_, name), values in series.items()})
        return TrainingStats(time.perf_counter() - started, common["num_minibatches"], metrics, stages, bad)

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        """A policy of its own, with a learner in this process, that acts and learns on as this one would."""
        spaces = self.observation_space, self.action_space
        twin: Policy = self.config.copy().learners(num_learners=0).build_policy(spaces=spaces)
        twin.set_state(self.get_state())
        return twin

    def __reduce__(self) -> Any:
        raise TypeError("a Policy is not pickled: write it with save_to_path(path), read it with from_checkpoint(path)")

    def get_state(self) -> dict[str, Any]:
        """The group's state, the time and the random numbers of `compute_actions`."""
        return {
            "learner_group": self.learner_group.get_state(),
            "timesteps": dict(self.timesteps),
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self.learner_group.set_state(state["learner_group"])
        self._set_own_state(state)

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """The folders of a checkpoint: the group's, and `policy`."""
        own = {
            "config": named_options(self.config),
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
            "timesteps": self.timesteps,
            "rng": self._rng.bit_generator.state,
        }
        return {"policy": {"state": own}, **self.learner_group.checkpoint_folders()}

    def set_checkpoint_folders(self, folders: Mapping[str, dict[str, Any]]) -> None:
        """Restores from the folders of a checkpoint; `ValueError` where there is no policy in it."""
        if "policy" not in folders:
            raise ValueError(f"there is no policy, only {sorted(folders)}; give what Policy.save_to_path wrote")
        self.learner_group.set_checkpoint_folders(folders)
        self._set_own_state(folders["policy"]["state"])

    def _set_own_state(self, state: Mapping[str, Any]) -> None:
        self.timesteps = {name: int(value) for name, value in state["timesteps"].items()}
        self._rng.bit_generator.state = state["rng"]
        self._take_over()

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Writes a checkpoint folder, a new temporary one for None; returns its absolute path."""
        self.learner_group.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.learner_group.last_checkpoint

    def restore_from_path(self, path: str | Path) -> None:
        """Restores from a checkpoint folder."""
        self.set_checkpoint_folders(read_checkpoint(Path(path)))

    @classmethod
    def from_checkpoint(cls, path: str | Path) -> Policy:
        """The policy in a checkpoint folder; no environment is made. `ValueError` where there is no policy in it."""
        from lockstep.algorithms import get_config

        folders = read_checkpoint(Path(path))
        if "policy" not in folders:
            raise ValueError(f"{path} holds no policy, only {sorted(folders)}; give what Policy.save_to_path wrote")
        saved = folders["policy"]["state"]
        config = get_config(saved["config"]["algorithm"]).update_from_dict(saved["config"])
        spaces = space_from(saved["observation_space"]), space_from(saved["action_space"])
        policy: Policy = config.learners(num_learners=0).build_policy(spaces=spaces)
        policy.set_checkpoint_folders(folders)
        return policy


@contextmanager
def policy_within_training_step(policy: Policy, enabled: bool = True) -> Any:
    """The context in which a policy may learn and explores."""
    with policy.within_training_step(enabled):
        yield policy
