"""`Policy`: acts, and learns through its group of learners."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.algorithms.offline import fit_normalizers
from lockstep.algorithms.plain_values import named_options
from lockstep.algorithms.replaying import update_from_replay
from lockstep.connectors import FrameStack
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.space_codec import describe_space, space_from
from lockstep.data.trees import map_tree
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.modules import DEFAULT_MODULE_ID, RecurrentActor, RLModule, make_actor
from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import SequenceSummaryStats, TrainingStats

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


class Policy:
    """The two verbs of both worlds: it acts (`compute_actions`) and learns (`update`, `learn_on_batch`).

    Acting reads the parameters' own memory, so what a learner in this process has just learned is acted on at once.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        learner_group: LearnerGroup,
        *,
        observation_space: Any,
        action_space: Any,
    ) -> None:
        self.config = config
        self.learner_group = learner_group
        self.observation_space, self.action_space = observation_space, action_space
        learner = learner_group.learner
        self.module: RLModule = learner.module[DEFAULT_MODULE_ID]
        self.connectors = learner.connectors[DEFAULT_MODULE_ID]
        self.timesteps: dict[str, int] = {STEPS_SAMPLED: 0}
        self.last_results: dict[str, Any] = {}
        self._actor = make_actor(self.module, self.connectors.obs)
        self.is_stateful = self.module.is_stateful()
        self._dist = self.module.action_dist_cls
        self._exploration = config.exploration(action_space)
        self.last_batch: SampleBatch | None = None
        """the last sample of a replay buffer that was learned from"""
        self._training = False
        self.seed(config.seed)
        self.act = self._actor.act

    def seed(self, seed: int) -> None:
        """Begins the random numbers of `compute_actions` again."""
        self._rng = RandomStreams(seed).child("policy").numpy("compute_actions")

    # -- acting ---

    @property
    def is_exploring(self) -> bool:
        """Is this a training step (see `within_training_step`), and exploration not switched off?"""
        return self._training and bool(self.config.explore)

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights."""
        return self.learner_group.learner.weights_seq_no

    def compute_actions(self, obs: Any, state: Any = None, explore: bool = True) -> Any:
        """Environment actions `[B, ...]` for raw observations `[B, ...]`.

        They are drawn within a training step (`policy_within_training_step`) unless `explore=False`; outside of it
        they are the most likely ones. A recurrent policy returns `(actions, state)`; hand the state `{name: [B, ...]}`
        back with the next observations, None (or `get_initial_state(B)`) where episodes begin. Raises `ValueError` for
        observations or a state that do not fit.
        """
        if self.observation_space.shape is not None:
            obs = np.asarray(obs)  # lists and tensors too
        rows = self._check_obs(obs)
        noise = self.draw_noise(self._rng, (rows,)) if explore and self.is_exploring else None
        if not self.is_stateful:
            return self.to_env(self.act(obs, noise)).copy()
        actions, after = self.act_with_state(obs, noise, self._checked_state(state, rows))
        return self.to_env(actions).copy(), after

    def compute_single_action(self, obs: Any, state: Any = None, explore: bool = False) -> Any:
        """The environment's action for one observation (a plain int for a Discrete space).

        A recurrent policy returns `(action, state)`; the state `{name: [...]}` goes back in with the next observation.
        """
        one = map_tree(lambda leaf: np.asarray(leaf)[None], obs)
        if state is not None:
            state = map_tree(lambda leaf: np.asarray(leaf)[None], state)
        result = self.compute_actions(one, state, explore=explore)
        action = result[0][0] if self.is_stateful else result[0]
        action = int(action) if action.ndim == 0 and action.dtype.kind in "iu" else action
        return (action, {name: leaf[0] for name, leaf in result[1].items()}) if self.is_stateful else action

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """A recurrent policy's state where episodes begin, `{name: [num_rows, ...]}`; empty for one without memory."""
        return self._actor.get_initial_state(num_rows) if isinstance(self._actor, RecurrentActor) else {}

    def act_with_state(
        self, obs: Any, noise: np.ndarray | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """As `act`, of a recurrent policy: actions as learned from, and the state after them."""
        if not isinstance(self._actor, RecurrentActor):
            raise TypeError(f"{type(self.module).__name__} has no memory; use act")
        return self._actor.act_with_state(obs, noise, state)

    def _checked_state(self, state: Any, rows: int) -> Mapping[str, np.ndarray]:
        expected = self.get_initial_state(rows)
        if state is None:
            return expected
        shapes = {name: np.shape(leaf) for name, leaf in state.items()} if isinstance(state, Mapping) else repr(state)
        wanted = {name: leaf.shape for name, leaf in expected.items()}
        if shapes != wanted:
            raise ValueError(f"the recurrent state has the shapes {shapes}, expected {wanted}; None begins episodes")
        return {name: np.asarray(state[name], leaf.dtype) for name, leaf in expected.items()}

    def draw_noise(self, rng: np.random.Generator, leading_shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers for `act`, for many steps at once."""
        if self._exploration is not None:
            return self._exploration.draw_noise(rng, leading_shape, self.timesteps[STEPS_SAMPLED])
        return self._dist.draw_noise(rng, leading_shape)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions as learned from -> actions as the environment takes them."""
        actions = self._dist.to_env(actions)
        return actions if self.connectors.actions is None else self.connectors.actions(actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse (for actions drawn from the action space)."""
        inverse = getattr(self.connectors.actions, "inverse", None)
        return self._dist.from_env(actions if inverse is None else inverse(actions))

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Raises `ValueError` with both where the environment's spaces are not the policy's."""
        for name, own, given in (
            ("observation", self.observation_space, observation_space),
            ("action", self.action_space, action_space),
        ):
            if own != given:
                raise ValueError(
                    f"the policy's {name} space is {own}, the environment's is {given}; use the environment that the "
                    "policy was made for"
                )

    def _check_obs(self, obs: Any) -> int:
        space = self.observation_space
        if isinstance(obs, np.ndarray) and space.shape is not None:
            expected = space.shape
            if self.config.frame_stack > 1:
                expected = FrameStack(self.config.frame_stack, space).observation_space.shape
            if obs.shape[1:] != expected:
                raise ValueError(f"observations have shape {obs.shape}, expected [B, {', '.join(map(str, expected))}]")
            return int(obs.shape[0])
        leaf = obs
        while isinstance(leaf, dict | tuple):
            leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
        return len(leaf)

    # -- learning ---

    @contextmanager
    def within_training_step(self, enabled: bool = True) -> Any:
        """The context in which `update` is allowed."""
        before, self._training = self._training, enabled
        try:
            yield
        finally:
            self._training = before

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
        series = self.learner_group.learner.last_series
        metrics = {name: SequenceSummaryStats.from_sequence(values) for (_, name), values in series.items()}
        for name, value in results.get(DEFAULT_MODULE_ID, {}).items():
            if name not in metrics and isinstance(value, int | float):
                metrics[name] = SequenceSummaryStats.from_sequence([value])
        common = results[ALL_MODULES]
        stages = {name.removeprefix("seconds_"): value for name, value in common.items() if name.startswith("seconds_")}
        return TrainingStats(time.perf_counter() - started, common["num_minibatches"], metrics, stages)

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """One pass over a prepared batch; returns the results by module."""
        return self.learner_group.update_from_batch(batch, timesteps=self.timesteps)

    def process_buffer(self, buffer: Any) -> Any:
        """Prepares offline data once: observation statistics take all rows in, the algorithm chooses how they are read.

        Algorithms that are not offline leave a buffer as it is.
        """
        if self.config.is_offline:
            fit_normalizers(buffer, self)
        return self.config.process_buffer(buffer)

    # -- state ---

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
        policy: Policy = config.build_policy(spaces=spaces)
        policy.set_checkpoint_folders(folders)
        return policy


@contextmanager
def policy_within_training_step(policy: Policy, enabled: bool = True) -> Any:
    """The context in which a policy may learn and explores."""
    with policy.within_training_step(enabled):
        yield policy
