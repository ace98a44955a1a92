"""`EnvRunner`: environments, a collector and a policy that only acts, as a unit that can be in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import VectorBoundary
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.modules import ActingWeights
from lockstep.rollout.callbacks import EnvironmentCallback, overridden_events, restore_callbacks, states_of
from lockstep.rollout.collector import Collector
from lockstep.rollout.fragments import AgentFragment, Fragment, UnstoredFragment
from lockstep.rollout.multi_agent_collector import MultiAgentCollector
from lockstep.rollout.protocols import ActingPart
from lockstep.state.streams import RandomStreams


@dataclass(frozen=True)
class RunnersEnv:
    """Description of the environments of one runner, or of all runners."""

    num_envs: int
    """Number of environments."""
    backend: str
    """Implementation that steps the environments."""
    autoreset_mode: str
    """Name of gymnasium's autoreset mode."""
    max_episode_steps: int | None
    """Number of steps after which an episode is truncated; None without a limit."""
    observation_space: Any
    """Space of the environments' observations; for several agents a dict of spaces by agent."""
    stored_observation_space: Any
    """Space of the stored observations, such as stacks of frames."""
    action_space: Any
    """Action space of the environments; for several agents a dict of spaces by agent."""


class EnvRunner:
    """Unit that samples fragments of experience: environments, and a policy that acts but does not learn.

    Environment `b` of runner `i` is number `i * num_envs + b` of all environments, and its random numbers depend on
    that number only. So m runners of k environments sample the same steps as one runner of m * k environments.

    Args:
        policy: Policy that acts. Its weights are set from outside.
        env: The runner's environments.
        index: Index of the runner.
        num_runners: Number of runners, each with the same number of environments.
        generation: Number of earlier runners with this index that were lost and whose random streams must not be
            repeated. Each generation has different streams.
        streams: Random streams of all runners.
        explore: Whether actions are sampled; otherwise the most likely ones are taken.
        epsilon: Probability of a random action; see `Collector`.
        stores: Whether steps are stored. With False, for evaluation, samples are `UnstoredFragment`s.
        with_logp: Whether fragments contain the log-probability of each action under the weights that acted. Not for
            policies with recurrent layers.
        with_states: Whether fragments contain the recurrent state before each row.
        whole_episodes: Whether samples consist of whole episodes.
        raise_on_nan: Whether values that are not finite raise `MalformedBufferError`.
        callbacks: Callbacks of this process.
    """

    def __init__(
        self,
        policy: ActingPart,
        env: VectorBoundary,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
        streams: RandomStreams | None = None,
        explore: bool = True,
        epsilon: float = 0.0,
        stores: bool = True,
        with_logp: bool = False,
        with_states: bool = False,
        whole_episodes: bool = False,
        raise_on_nan: bool = True,
        callbacks: Sequence[EnvironmentCallback] = (),
    ) -> None:
        self.policy = policy
        self.index = index
        self.with_logp = with_logp
        self.collector: Any = Collector(
            policy,
            env,
            exploration_noise=explore,
            epsilon=epsilon,
            raise_on_nan_in_buffer=raise_on_nan,
            streams=self._streams(streams, index, generation),
            place=(index * env.num_envs, num_runners * env.num_envs),
            whole_episodes=whole_episodes,
        )
        self.callbacks = [callback for callback in callbacks if overridden_events(callback)]
        self.collector.set_callbacks(self.callbacks, runner=self)
        self.store: Any = None
        """Store of the steps of a sample; None if they are not stored."""
        if stores:
            # With room for one vector step: it grows with the first sample.
            self.store = RolloutStore(1, env.num_envs, self.collector.observation_space, env.action_space)
        self.collector.buffer = self.store
        if self.store is not None:
            self.store.keeps_states = with_states

    @staticmethod
    def _streams(streams: RandomStreams | None, index: int, generation: int) -> RandomStreams:
        """Return the random streams of a runner: the common ones, or after a replacement the streams of its
        generation."""
        # A successor that repeated the numbers of a lost runner could run into the same error again.
        streams = streams or RandomStreams(0)
        return streams.child(f"replaced/{index}/{generation}") if generation else streams

    @property
    def num_envs(self) -> int:
        """Number of environments of this runner."""
        return self.collector.num_envs

    def apply(
        self,
        func: Callable[..., Any],
        *args: Any,
        weights: ActingWeights | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Call `func(runner, *args, **options)`, and return its result.

        Args:
            func: Function of a runner.
            args: Positional arguments of `func`.
            weights: Weights to act with from now on. Weights of another network raise `ValueError`.
            state: State that is restored first.
            options: Keyword arguments of `func`.
        """
        if weights is not None:
            self.policy.set_weights(weights)
        if state is not None:
            self.set_state(state)
        return func(self, *args, **options)

    def apply_with_state(self, func: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Any]:
        """Return the result of `apply`, and the state afterwards, which a successor of this runner can restore.

        The state is None if the environments do not support saving theirs.
        """
        value = self.apply(func, *args, **options)
        state = self.get_state()
        is_complete = state["collector"]["env"] is not None or not self.collector.is_begun
        return value, state if is_complete else None

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
        renew: bool = False,
    ) -> Any:
        """Return the next fragment: of `num_timesteps` steps, or of `num_episodes` whole episodes that begin now.

        The columns of the fragment are views on the runner's memory, which the next sample overwrites.

        A runner that stores nothing returns an `UnstoredFragment`. Rows that only reset an environment are then part of
        `num_timesteps`, so that all runners are at the same vector step.

        If an exception is raised, the next sample begins new episodes.

        Args:
            num_timesteps: Number of steps over all environments, rounded up to whole vector steps.
            num_episodes: Number of whole episodes over all environments.
            random: Whether actions are drawn uniformly from the action space.
            renew: Whether new episodes begin first.

        Raises:
            ValueError, MalformedBufferError, EnvironmentStepError: As `Collector.collect`.
        """
        if self.store is None:
            return self._sample_unstored(num_timesteps, num_episodes, random=random, renew=renew)
        return self._sample(num_timesteps, num_episodes, random=random, reset_before_collect=renew or None)

    def _sample(self, num_timesteps: int | None, num_episodes: int | None, **options: Any) -> Any:
        store = self.store
        store.clear()
        if num_timesteps is not None:
            store.ensure_room(-(-num_timesteps // self.num_envs))
        ids_before = store.episode_ids.copy()
        stats = self.collector.collect(num_timesteps, num_episodes, **options)
        if self.with_logp:
            store.action_logp = self._logp()
        begins = store.episode_ids != ids_before
        return Fragment.of(store, self.index, begins, stats)

    def _sample_unstored(
        self, num_timesteps: int | None, num_episodes: int | None, *, random: bool, renew: bool
    ) -> UnstoredFragment:
        if num_timesteps is None:
            stats = self.collector.collect(None, num_episodes, random=random)
        else:
            num_vector_steps = -(-num_timesteps // self.num_envs)
            stats = self.collector.collect_vector_steps(num_vector_steps, random=random, renew=renew)
        ended = self.collector.stepper.episodes.ended
        first = self.collector.stepper.rows.start
        return UnstoredFragment(
            self.index,
            np.array([episode.vector_step for episode in ended], np.int64),
            np.array([first + episode.env for episode in ended], np.int64),
            stats,
        )

    def _logp(self) -> np.ndarray:
        """Return the log-probabilities `[T, k]` of the stored actions under the weights that acted.

        All rows are one batch after the sample, which is faster than a batch for each vector step.
        """
        store = self.store
        rows = store.size * store.num_envs
        obs = map_tree(lambda leaf: leaf[: store.size].reshape(rows, *leaf.shape[2:]), store.obs)
        actions = store.actions[: store.size]
        logp = self.policy.action_logp(obs, actions.reshape(rows, *actions.shape[2:]))
        return logp.reshape(store.size, store.num_envs)

    def reset(self) -> None:
        """Begin new episodes in all environments now."""
        self.collector.reset(reset_buffer=False, reset_stats=False)

    def describe(self) -> RunnersEnv:
        """Return the description of the environments."""
        env = self.collector.env
        return RunnersEnv(
            env.num_envs,
            env.backend,
            env.autoreset_mode,
            env.max_episode_steps,
            env.observation_space,
            self.collector.observation_space,
            env.action_space,
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state of the collector and of the callbacks. Stored steps are not part of it.

        Environments that do not support saving their state are left out of it.
        """
        if self.store is not None:
            # The steps were returned with the sample. `Collector.get_state` refuses a buffer with data.
            self.store.clear()
        return {"collector": self.collector.get_state(), "callbacks": states_of(self.callbacks)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. Environments without a state begin new episodes."""
        if self.store is not None:
            self.store.clear()
        self.collector.set_state(state["collector"])
        restore_callbacks(self.callbacks, state.get("callbacks", ()))

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()


class MultiAgentEnvRunner(EnvRunner):
    """Env runner for several agents. Its fragments are `AgentFragment`s; `EnvRunner` documents the parameters."""

    def __init__(
        self,
        policy: Any,
        env: AgentEnvs,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
        streams: RandomStreams | None = None,
        explore: bool = True,
        epsilon: float = 0.0,
        stores: bool = True,
        with_logp: bool = False,
        whole_episodes: bool = False,
        raise_on_nan: bool = True,
        callbacks: Sequence[EnvironmentCallback] = (),
    ) -> None:
        self.policy = policy
        self.index = index
        self.with_logp = with_logp
        self.collector = MultiAgentCollector(
            policy,
            env,
            exploration_noise=explore,
            epsilon=epsilon,
            raise_on_nan_in_buffer=raise_on_nan,
            streams=self._streams(streams, index, generation),
            place=(index * env.num_envs, num_runners * env.num_envs),
            whole_episodes=whole_episodes,
            with_logp=with_logp,
        )
        self.callbacks = [callback for callback in callbacks if overridden_events(callback)]
        self.collector.set_callbacks(self.callbacks, runner=self)
        self.store = self.collector.buffer = EpisodeStore() if stores else None
        self._begun_before = self.collector.stepper.begun.copy()
        """`[k]` number of episodes that had begun in each environment before the present evaluation."""

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin in their environments."""
        self.collector.leave_episodes_of(module_id)

    def _sample_unstored(
        self, num_timesteps: int | None, num_episodes: int | None, *, random: bool, renew: bool
    ) -> UnstoredFragment:
        if renew:
            self._begun_before = self.collector.stepper.begun.copy()
        return super()._sample_unstored(num_timesteps, num_episodes, random=random, renew=renew)

    def seed_after_counted(self, num_counted: np.ndarray) -> None:
        """Seed the next episodes as if only the episodes that counted had begun in this evaluation.

        `num_counted`: `[B]` number of episodes that counted, for each environment of all runners.
        """
        self.collector.stepper.begun[:] = self._begun_before + num_counted[self.collector.stepper.rows]

    def _sample(self, num_timesteps: int | None, num_episodes: int | None, **options: Any) -> AgentFragment:
        self.store.clear()
        stats = self.collector.collect(num_timesteps, num_episodes, **options)
        first = self.index * self.num_envs
        ended = np.array([episode.vector_step for episode in self.collector.stepper.episodes.ended], np.int64)
        pieces = [(piece, first + b) for piece, b in self.store.pieces]
        return AgentFragment(self.index, self.num_envs, self.policy.weights_seq_no, pieces, ended, stats)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "begun_before": self._begun_before.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        # States of earlier versions do not have this entry. They were saved between two evaluations, and the next
        # evaluation sets it again.
        self._begun_before[:] = state.get("begun_before", self.collector.stepper.begun)
