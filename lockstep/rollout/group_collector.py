"""`GroupCollector`: a group of env runners as a collector, so that a trainer need not know where environments are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import check_no_data, no_copies_of_collectors
from lockstep.rollout.fragments import Fragment, append_fragments
from lockstep.rollout.protocols import PublishingPolicy, sole_part
from lockstep.rollout.replay_writer import ReplayWriter, begin_in_mid_episode, store_for
from lockstep.rollout.runner_group import EnvRunnerGroup
from lockstep.tracking.statistics import CollectStats, returns_and_lens


@dataclass(frozen=True)
class RunnersEnv:
    """The environments of all runners, to look at."""

    num_envs: int
    backend: str
    autoreset_mode: str
    observation_space: Any
    action_space: Any
    max_episode_steps: int | None


class GroupCollector:
    """Collects with all runners of a group, in step, as a `Collector` of all their environments would.

    Each collect sends the policy's weights with the request, waits for the fragments, and writes them into `buffer`,
    the environments of the runners side by side. The buffer's owner empties it; without one only returns and lengths
    are kept. There are no hooks for single steps: they would be called in other processes.
    """

    def __init__(
        self,
        policy: PublishingPolicy,
        group: EnvRunnerGroup,
        buffer: RolloutStore | ReplayBuffer | None = None,
    ) -> None:
        self.policy, self.group = policy, group
        envs = group.envs
        backend = envs["backend"] if group.is_local else f"{envs['backend']} in {len(group)} env runners"
        spaces = envs["observation_space"], envs["action_space"]
        self.env = RunnersEnv(
            group.num_envs, backend, envs["autoreset_mode"], *spaces, max_episode_steps=envs["max_episode_steps"]
        )
        self.observation_space = envs["stacked_observation_space"]
        sole_part(policy).check_spaces(*spaces)
        self.episodes_cut = 0
        """running episodes that the last `set_state` could not continue"""
        self.store: RolloutStore | None = None
        self._ended = np.ones(self.num_envs, bool)
        """where the next row begins an episode"""
        self.buffer = buffer
        self.reset_stat()

    @property
    def num_envs(self) -> int:
        """Environments of all runners."""
        return self.group.num_envs

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored; one for each environment in a `ReplayBuffer`. May be replaced between collects, as a
        `Collector`'s.
        """
        return self.store.buffer if isinstance(self.store, ReplayWriter) else self.store

    @buffer.setter
    def buffer(self, buffer: RolloutStore | ReplayBuffer | None) -> None:
        is_other = buffer is not self.buffer
        self.store = store_for(
            sole_part(self.policy),
            buffer,
            self.num_envs,
            self.observation_space,
            self.env.action_space,
            num_steps=1,
            raise_on_nan=False,  # runners have looked
        )
        if is_other:
            begin_in_mid_episode(self._ended, self.store)

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collects `n_step` steps (rounded up to whole vector steps of all environments) or `n_episode` episodes, of
        which each runner plays its share; the collect after that begins new episodes.

        Raises as `EnvRunnerGroup.sample`; no row is left behind then, and the next collect begins new episodes.
        """
        started = time.perf_counter()
        self.group.set_weights(self.policy.acting_weights(copy=False))
        fragments = self.group.sample(n_step, n_episode, random=random)
        if self.store is not None:
            append_fragments(self.store, fragments, by_runner=True)
        for fragment in fragments:
            envs = slice(fragment.runner * fragment.num_envs, (fragment.runner + 1) * fragment.num_envs)
            self._ended[envs] = fragment.ended
        stats = merged_stats(fragments, time.perf_counter() - started)
        self.collect_step += stats.n_collected_steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time
        return stats

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """The next collect begins new episodes everywhere; empties buffer and counters if asked."""
        self.group.renew()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()

    def reset_env(self) -> None:
        """The next collect begins new episodes everywhere; nothing is estimated across this boundary."""
        self.group.renew()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empties the buffer."""
        if self.store is not None:
            self.store.clear()
        if isinstance(self.store, ReplayWriter):
            self.store.buffer.reset(keep_statistics)
            if not keep_statistics:
                self.store.buffer.cut(np.flatnonzero(~self._ended), goes_on=True)

    def reset_stat(self) -> None:
        """Counters to zero."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0

    def close(self) -> None:
        """Ends the runners and their environments. Collects and resets raise `RuntimeError` from then on."""
        self.group.shutdown()

    __reduce__ = no_copies_of_collectors

    def get_state(self) -> dict[str, Any]:
        """The runners' states (environments as far as they can tell theirs) and counters."""
        check_no_data(self.buffer)
        return {
            "group": self.group.get_state(),
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            "buffer": None if self.store is None else self.store.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`; with another number of runners, new episodes begin (a boundary)."""
        if "group" not in state:
            raise ValueError("the state is of a collector in one process; resume with env_runners.num_env_runners=0")
        runners = [saved["collector"] for saved in state["group"]["runners"]]
        lost = runners if len(runners) != len(self.group) else [saved for saved in runners if saved["env"] is None]
        self.episodes_cut = sum(int(np.count_nonzero(saved["lengths"])) for saved in lost)
        self.group.set_state(state["group"])
        self._ended[:] = False  # some may have: a few more stacks of frames than need be are not drawn then
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        buffer = state["buffer"]
        fits = buffer is not None and len(buffer.get("episode_ids", self._ended)) == self.num_envs
        if self.store is not None and fits:
            self.store.set_state(buffer)


def merged_stats(fragments: Sequence[Fragment], seconds: float) -> CollectStats:
    """Of all runners: episodes in the order in which they ended, seconds in environments and acting as means over them
    (they go on at the same time), `seconds` in all.
    """
    parts = [fragment.stats for fragment in fragments]
    ended = [(own, n) for part in parts for own, n in zip(part.returns, part.lens)]
    if all(len(fragment.final_index) == len(fragment.stats.returns) for fragment in fragments):
        index = np.concatenate([fragment.final_index // fragment.num_envs for fragment in fragments])
        ended = [ended[i] for i in np.argsort(index, kind="stable")]
    return CollectStats(
        len(ended),
        sum(part.n_collected_steps for part in parts),
        seconds,
        sum(part.env_time for part in parts) / len(parts),
        sum(part.act_time for part in parts) / len(parts),
        *returns_and_lens(ended),
        sum(part.env_restarts for part in parts),
    )
