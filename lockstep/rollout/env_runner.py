"""`EnvRunner`: environments, a collector and a network that only acts, as one unit that can live in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import VectorBoundary
from lockstep.modules import ActingWeights
from lockstep.rollout.callbacks import EnvironmentCallback, overridden_events, restore_callbacks
from lockstep.rollout.collector import Collector, WholeEpisodeCollector
from lockstep.rollout.fragments import Fragment
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
        frame_stack: int | None = None,
        with_logp: bool = False,
        with_states: bool = False,
        whole_episodes: bool = False,
        raise_on_nan: bool = True,
        callbacks: Sequence[EnvironmentCallback] = (),
    ) -> None:
        streams = streams or RandomStreams(0)
        self.policy, self.index, self.with_logp = policy, index, with_logp
        self.collector = (WholeEpisodeCollector if whole_episodes else Collector)(
            policy,
            env,
            exploration_noise=explore,
            raise_on_nan_in_buffer=raise_on_nan,
            frame_stack=frame_stack,
            streams=streams.child(f"replaced/{index}/{generation}") if generation else streams,
            place=(index * env.num_envs, num_runners * env.num_envs),
        )
        self.callbacks = [callback for callback in callbacks if overridden_events(callback)]
        self.collector.set_callbacks(self.callbacks, runner=self)
        spaces = self.collector.observation_space, env.action_space
        self.store = self.collector.buffer = RolloutStore(1, env.num_envs, *spaces)  # it grows
        self.store.keeps_states = with_states

    @property
    def num_envs(self) -> int:
        """Environments of this runner."""
        return self.collector.num_envs

    def apply(self, func: Callable[..., Any], *args: Any, weights: ActingWeights | None = None, **options: Any) -> Any:
        """Return `func(runner, *args, **options)`. `weights`: act with these from now on; `ValueError` for others."""
        if weights is not None:
            self.policy.set_weights(weights)
        return func(self, *args, **options)

    def sample(
        self,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        *,
        random: bool = False,
        renew: bool = False,
    ) -> Fragment:
        """Return the next fragment: `num_timesteps` steps over all environments (rounded up to whole vector steps), or
        `num_episodes` whole episodes that begin now. Its columns are views on the runner's memory, good until the next
        sample; `fragment.episodes(...)` gives episodes.

        `random`: actions from the action space. `renew`: new episodes first.
        Raises as `Collector.collect`; the next sample begins new episodes then.
        """
        store = self.store
        store.clear()
        if num_timesteps is not None:
            store.ensure_room(-(-num_timesteps // self.num_envs))
        before = store.episode_ids.copy()
        stats = self.collector.collect(num_timesteps, num_episodes, random=random, reset_before_collect=renew or None)
        if self.with_logp:
            store.action_logp = self._logp()
        return Fragment.of(store, self.index, store.episode_ids != before, stats)

    def _logp(self) -> np.ndarray:
        """Return `[T, k]` log-probabilities, all rows in one batch, under the weights that have acted."""
        store = self.store
        rows = store.size * store.num_envs
        obs = map_tree(lambda leaf: leaf[: store.size].reshape(rows, *leaf.shape[2:]), store.obs)
        actions = store.actions[: store.size]
        logp = self.policy.action_logp(obs, actions.reshape(rows, *actions.shape[2:]))
        return logp.reshape(store.size, store.num_envs)

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
        self.store.clear()  # what was sampled belongs to who sampled it
        callbacks = [[type(callback).__name__, dict(callback.get_state())] for callback in self.callbacks]
        return {"collector": self.collector.get_state(), "callbacks": callbacks}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes."""
        self.store.clear()
        self.collector.set_state(state["collector"])
        restore_callbacks(self.callbacks, state.get("callbacks", ()))

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()
