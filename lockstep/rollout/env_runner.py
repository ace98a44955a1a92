"""`EnvRunner`: environments, a collector and a network that only acts, as one unit that can live in any process."""

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
    """The environments of one runner or of all, to look at."""

    num_envs: int
    backend: str
    autoreset_mode: str
    max_episode_steps: int | None
    observation_space: Any
    stacked_observation_space: Any
    """of observations as they are stored"""
    action_space: Any


class EnvRunner:
    """Samples fragments of experience.

    `env`: the runner's own environments. `policy` acts with weights from elsewhere; nothing is learned
    here. `index` and `num_runners`: its place among runners of equally many environments each; environment `b` of
    runner `i` is number `i * num_envs + b` of all, and its random numbers depend on that number only, so that m runners
    of k environments see what one runner of m * k sees. `generation`: how often the runner was replaced; each begins
    with random streams of its own. `whole_episodes`: no episode is cut at the end of a sample. `with_logp`: fragments
    say how likely each action was when it was taken (not for a policy with memory). `with_states`: they have the state
    of a policy with memory before each row. `callbacks`: those of this process.
    `epsilon`: as a `Collector`'s. `stores=False`: for evaluation; its samples are `UnstoredFragment`s.
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
        self.policy, self.index, self.with_logp = policy, index, with_logp
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
        spaces = self.collector.observation_space, env.action_space
        self.store: Any = RolloutStore(1, env.num_envs, *spaces) if stores else None  # it grows
        self.collector.buffer = self.store
        if self.store is not None:
            self.store.keeps_states = with_states

    @staticmethod
    def _streams(streams: RandomStreams | None, index: int, generation: int) -> RandomStreams:
        """Return the random streams of all runners, or where it replaces another one streams of its own."""
        streams = streams or RandomStreams(0)
        return streams.child(f"replaced/{index}/{generation}") if generation else streams

    @property
    def num_envs(self) -> int:
        """Environments of this runner."""
        return self.collector.num_envs

    def apply(
        self,
        func: Callable[..., Any],
        *args: Any,
        weights: ActingWeights | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return `func(runner, *args, **options)`. `weights`: act with these from now on; `ValueError` for others.
        `state`: go on from this one."""
        if weights is not None:
            self.policy.set_weights(weights)
        if state is not None:
            self.set_state(state)
        return func(self, *args, **options)

    def apply_with_state(self, func: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Any]:
        """Return what `apply` returns, and the state afterwards, from which a successor goes on; None where the
        environments cannot tell theirs.
        """
        value, state = self.apply(func, *args, **options), self.get_state()
        is_whole = state["collector"]["env"] is not None or not self.collector.is_begun
        return value, state if is_whole else None

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
        renew: bool = False,
    ) -> Any:
        """Return the next fragment: `num_timesteps` steps over all environments (rounded up to whole vector steps), or
        `num_episodes` whole episodes that begin now. Its columns are views on the runner's memory, good until the next
        sample; `fragment.episodes(...)` gives episodes.

        A runner that stores nothing returns an `UnstoredFragment`, and rows that only reset an environment are part of
        its `num_timesteps`: so all runners have made the same vector steps.

        `random`: actions from the action space. `renew`: new episodes first.
        Raises as `Collector.collect`; the next sample begins new episodes then.
        """
        if self.store is None:
            return self._sample_unstored(num_timesteps, num_episodes, random=random, renew=renew)
        return self._sample(num_timesteps, num_episodes, random=random, reset_before_collect=renew or None)

    def _sample(self, num_timesteps: int | None, num_episodes: int | None, **options: Any) -> Any:
        store = self.store
        store.clear()
        if num_timesteps is not None:
            store.ensure_room(-(-num_timesteps // self.num_envs))
        before = store.episode_ids.copy()
        stats = self.collector.collect(num_timesteps, num_episodes, **options)
        if self.with_logp:
            store.action_logp = self._logp()
        return Fragment.of(store, self.index, store.episode_ids != before, stats)

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
        """Return `[T, k]` log-probabilities, all rows in one batch, under the weights that have acted."""
        store = self.store
        rows = store.size * store.num_envs
        obs = map_tree(lambda leaf: leaf[: store.size].reshape(rows, *leaf.shape[2:]), store.obs)
        actions = store.actions[: store.size]
        logp = self.policy.action_logp(obs, actions.reshape(rows, *actions.shape[2:]))
        return logp.reshape(store.size, store.num_envs)

    def reset(self) -> None:
        """Begin new episodes now."""
        self.collector.reset(reset_buffer=False, reset_stats=False)

    def describe(self) -> RunnersEnv:
        """Return what the environments are."""
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
        """Return environments (as far as they can tell their state), running episodes, random streams, counters."""
        if self.store is not None:
            self.store.clear()  # what was sampled belongs to who sampled it
        return {"collector": self.collector.get_state(), "callbacks": states_of(self.callbacks)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes."""
        if self.store is not None:
            self.store.clear()
        self.collector.set_state(state["collector"])
        restore_callbacks(self.callbacks, state.get("callbacks", ()))

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()


class MultiAgentEnvRunner(EnvRunner):
    """Samples (pieces of) episodes of several agents, as `AgentFragment`s; see `EnvRunner`."""

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
        self.policy, self.index, self.with_logp = policy, index, with_logp
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
        """[k] episodes that were begun in each environment before this evaluation"""

    def leave_episodes_of(self, module_id: str) -> None:
        """Leave the episodes under way in which this module acts; new ones begin there with the next steps."""
        self.collector.leave_episodes_of(module_id)

    def _sample_unstored(
        self, num_timesteps: int | None, num_episodes: int | None, *, random: bool, renew: bool
    ) -> UnstoredFragment:
        if renew:
            self._begun_before = self.collector.stepper.begun.copy()
        return super()._sample_unstored(num_timesteps, num_episodes, random=random, renew=renew)

    def seed_after_counted(self, counted: np.ndarray) -> None:
        """Seed the next episodes as if only those that counted had begun in this evaluation.

        `counted`: episodes that counted, of each environment of all runners.
        """
        self.collector.stepper.begun[:] = self._begun_before + counted[self.collector.stepper.rows]

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
        # States of earlier versions were saved between evaluations, the next of which notes them again.
        self._begun_before[:] = state.get("begun_before", self.collector.stepper.begun)
