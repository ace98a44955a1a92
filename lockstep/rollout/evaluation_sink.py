"""`EvaluationSink`: decides which episodes of env runners count, and stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.rollout.base_collector import (
    EPISODE_LIMIT_ADVICE,
    MAX_EPISODE_STEPS,
    WARN_EPISODE_STEPS,
    exactly_one,
    warn_of_long_episode,
)
from lockstep.rollout.env_runner import MultiAgentEnvRunner
from lockstep.rollout.fragment_sinks import CollectResult, FragmentSink, Sample
from lockstep.rollout.fragments import StoredFragment, UnstoredFragment
from lockstep.rollout.replay_writer import Buffer
from lockstep.rollout.stepper import CHUNK


class EvaluationSink(FragmentSink):
    """Decides which episodes count, over the environments of all runners, and stores nothing.

    The first episodes that start count, however long they last: returns and lengths are those of one `Collector` of all
    environments, to the last bit. Runners take up to 128 vector steps at a time, so that an evaluation may continue for
    up to 127 vector steps after its end.
    """

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Sample until there are `n_step` steps, or `n_episode` episodes, with which new ones begin."""
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        if n_episode is None:
            return self._collect_steps(sample, amount)
        return self._collect_episodes(sample, amount)

    def _collect_steps(self, sample: Sample, n_step: int) -> CollectResult:
        collected = CollectResult([], 0, [], len(self.group), [], [])
        while collected.num_steps < n_step:
            left = n_step - collected.num_steps
            fragments = sample(min(CHUNK * self.num_envs, left), None)
            for fragment, i in in_order_of_ends(fragments):
                collected.count(fragment, i)
            collected.parts += [fragment.stats for fragment in fragments]
            collected.num_steps += sum(map(len, fragments))
        return collected

    def _collect_episodes(self, sample: Sample, n_episode: int) -> CollectResult:
        collected = CollectResult([], 0, [], len(self.group), [], [])
        self.group.renew()
        counting = np.arange(self.num_envs) < n_episode
        to_start = n_episode - self.num_envs
        counted = np.zeros(self.num_envs, np.int64)
        steps_without_end = 0
        has_warned = False
        while counting.any():
            fragments = sample(CHUNK * self.num_envs, None)
            collected.parts += [fragment.stats for fragment in fragments]
            steps_without_end += CHUNK
            for fragment, i in in_order_of_ends(fragments):
                b = int(fragment.ended_in_env[i])
                if not counting[b]:
                    continue
                collected.count(fragment, i)
                counted[b] += 1
                steps_without_end = 0
                if to_start <= 0:
                    counting[b] = False
                to_start -= 1
            if steps_without_end > MAX_EPISODE_STEPS:
                raise RuntimeError(
                    f"no episode has ended in {steps_without_end} steps of {self.num_envs} environments; "
                    f"{EPISODE_LIMIT_ADVICE}"
                )
            if steps_without_end > WARN_EPISODE_STEPS and not has_warned:
                has_warned = True
                warn_of_long_episode(steps_without_end)

        self.group.renew()
        collected.num_steps = sum(length for _, length in collected.episodes)
        if self.agents_of_modules:
            # Only the episodes that count have a seed: the next collect begins with the episodes that come then.
            self.group.foreach_env_runner(MultiAgentEnvRunner.seed_after_counted, counted)
        return collected

    def renew(self) -> None:
        """Begin new episodes everywhere now, as a `Collector` does: the next ones have other seeds."""
        self.group.reset()

    @property
    def buffer(self) -> None:
        """None: nothing is stored."""

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Raise `ValueError` for a buffer."""
        if buffer is not None:
            raise ValueError(f"buffer={buffer!r} is not allowed; env runners of evaluation store nothing")

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Do nothing: there is no buffer."""

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Do nothing: there is no buffer."""

    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return an empty list: an evaluation leaves no fragment behind."""
        return []

    def get_state(self) -> None:
        """Return None: there is no buffer, and an evaluation is complete after its collect."""

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Do nothing: the runners have the whole state."""


def in_order_of_ends(fragments: Sequence[UnstoredFragment]) -> list[tuple[UnstoredFragment, int]]:
    """Return the fragment of each ended episode and its index there, by vector step and then by environment."""
    ended = []
    for fragment in fragments:
        for i, (step, env) in enumerate(zip(fragment.ended_in_step.tolist(), fragment.ended_in_env.tolist())):
            ended.append((step, env, fragment, i))
    return [(fragment, i) for _, _, fragment, i in sorted(ended, key=lambda each: each[:2])]
