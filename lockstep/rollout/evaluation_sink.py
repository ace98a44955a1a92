"""`EvaluationSink`: decides which episodes of env runners count, and stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
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
    """Sink for evaluation: decides which episodes count, over the environments of all runners, and stores nothing.

    The first episodes that start count, however long they last: returns and lengths equal bit for bit the results
    of one `Collector` of all environments. A runner takes up to 128 vector steps before it reports which episodes
    ended, so that an evaluation may take up to 127 vector steps more than it needs.
    """

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Sample `n_step` steps, or `n_episode` episodes that begin with this collect, and return the episodes."""
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        if n_episode is None:
            return self._collect_steps(sample, amount)
        return self._collect_episodes(sample, amount)

    def _collect_steps(self, sample: Sample, n_step: int) -> CollectResult:
        """Sample `n_step` steps; the episodes that end within them count."""
        result = CollectResult(num_parallel=len(self.group))
        while result.num_steps < n_step:
            num_left = n_step - result.num_steps
            fragments = sample(min(CHUNK * self.num_envs, num_left), None)
            for fragment, i in by_end(fragments):
                result.add_episode(fragment, i)
            result.parts += [fragment.stats for fragment in fragments]
            result.num_steps += sum(map(len, fragments))
        return result

    def _collect_episodes(self, sample: Sample, n_episode: int) -> CollectResult:
        """Sample until the first `n_episode` episodes that start have ended.

        This is the rule of `RunningEpisodes`, applied afterwards: no runner knows the episodes of the other runners.
        """
        result = CollectResult(num_parallel=len(self.group))
        self.group.renew()
        counting = np.arange(self.num_envs) < n_episode
        to_start = n_episode - self.num_envs
        num_counted = np.zeros(self.num_envs, np.int64)
        steps_without_end = 0
        has_warned = False
        while counting.any():
            fragments = sample(CHUNK * self.num_envs, None)
            result.parts += [fragment.stats for fragment in fragments]
            steps_without_end += CHUNK
            for fragment, i in by_end(fragments):
                b = int(fragment.ended_in_env[i])
                if not counting[b]:
                    continue
                result.add_episode(fragment, i)
                num_counted[b] += 1
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
        result.num_steps = sum(length for _, length in result.episodes)
        if self.agents_of_modules:
            # Runners of several agents seed an episode by how many its environment has begun before. They have begun
            # episodes that did not count, which one collector of all environments would not have begun. So that the
            # next evaluation gets the same seeds as with one collector, only the counted episodes are counted as begun.
            self.group.foreach_env_runner(MultiAgentEnvRunner.seed_after_counted, num_counted)
        return result

    def renew(self) -> None:
        """Begin new episodes in all environments at once, as a `Collector` does. They get the next seeds."""
        self.group.reset()

    @property
    def buffer(self) -> None:
        """Always None: an evaluation stores nothing."""

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Raise `ValueError` unless `buffer` is None."""
        if buffer is not None:
            raise ValueError(f"buffer={buffer!r} is not allowed; env runners of evaluation store nothing")

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Do nothing: there is no buffer."""

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Do nothing: there is no buffer."""

    def restore_fragments(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return an empty list: an evaluation leaves no fragment behind."""
        return []

    def get_state(self) -> None:
        """Return None: there is no buffer, and an evaluation is complete after its collect."""

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Do nothing: the runners have the whole state."""


def by_end(fragments: Sequence[UnstoredFragment]) -> list[tuple[UnstoredFragment, int]]:
    """Return each ended episode as its fragment and its index in it, sorted by vector step and then by environment."""
    ended = []
    for fragment in fragments:
        for i, (step, env) in enumerate(zip(fragment.ended_in_step.tolist(), fragment.ended_in_env.tolist())):
            ended.append((step, env, fragment, i))
    ended.sort(key=itemgetter(0, 1))
    return [(fragment, i) for _, _, fragment, i in ended]
