"""`Stepper`: one way to step environments with a policy and store the steps. A collector says how many."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from lockstep.data.actions import ACTION_MASK, carries_mask, flat_mask, mask_size
from lockstep.envs import VectorBoundary
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.rollout.callbacks import EnvironmentEvents, Episode
from lockstep.rollout.protocols import ActingLike
from lockstep.rollout.running_episodes import RunningEpisodes
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import returns_and_lens

CHUNK = 128
"""vector steps that are collected at a time, with random numbers drawn in bulk"""


@dataclass(frozen=True)
class StepMode:
    """How the steps of one collect are taken."""

    random: bool
    """Whether actions are drawn from the action space."""
    explores: bool
    """Whether the policy's actions are drawn, rather than the most likely ones taken."""
    epsilon: float
    """Probability of an action by chance in place of the policy's own; 0: its own"""
    raise_on_nan: bool
    """Whether values that are not finite are refused."""
    on_step_hook: Callable[[Any], None] | None
    """Called with the result of each step."""


class Stepper(ABC):
    """Steps environments with a policy, and stores what happens.

    A collector calls `begin_collect`, `run` until it has enough, and `end_collect`, or `abandon_collect` where
    something failed. It reads `episodes`, `env_time` and `act_time`.

    The names of the random streams, the order in which they are drawn from, and the keys of the state are fixed: the
    same seed gives the same bits, and saved states are read by later versions.

    Args:
        policy: what acts.
        env: the environments, a boundary.
        streams: random streams of the episodes, of exploration and of random actions.
        place: `(first, number of all)` where several steppers have a part of the environments each. An environment has
            the random numbers that it has where one stepper has all of them.
    """

    rounds_up: ClassVar[bool] = True
    """Whether all environments are stepped together, so that a number of steps is rounded up to whole vector steps."""
    has_vector_steps: ClassVar[bool] = True
    """Whether all environments are stepped together."""
    rests: ClassVar[bool] = False
    """Whether an environment is not stepped while its episode does not count."""
    agents_of_modules: Mapping[str, list[Any]]
    """Agents that each module acts for, by module id; empty for one agent"""

    def __init__(
        self,
        policy: ActingLike,
        env: VectorBoundary | AgentEnvs,
        streams: RandomStreams,
        place: tuple[int, int] | None,
    ) -> None:
        self.policy: Any = policy
        self.env: Any = env
        self.streams = streams
        self.num_resets = 0
        """Number of resets, by which the seeds of the next one are named."""
        self.num_envs: int = env.num_envs
        first, number = place or (0, self.num_envs)
        self.num_envs_in_all = number
        self.rows = slice(first, first + self.num_envs)
        """Which of all environments these are."""
        self.episodes = RunningEpisodes(self.num_envs)
        self.episodes_cut = 0
        """Running episodes that the last `set_state` could not continue."""
        self.events: EnvironmentEvents | None = None
        """Calls the callbacks that watch the environments."""
        self.env_time = 0.0
        self.act_time = 0.0
        """seconds of this collect in the environments and in the policy"""

    @property
    @abstractmethod
    def observation_space(self) -> Any:
        """Space of the observations as they are stored."""

    @property
    @abstractmethod
    def buffer(self) -> Any:
        """Where steps are stored."""

    @abstractmethod
    def set_buffer(self, buffer: Any, raise_on_nan: bool) -> None:
        """Store steps in `buffer` from now on. `ValueError` for a buffer that does not fit."""

    @abstractmethod
    def empty_buffer(self, keep_statistics: bool) -> None:
        """Remove all steps from the buffer."""

    def set_events(self, events: EnvironmentEvents | None) -> None:
        """Report to these callbacks what happens in the environments."""
        self.events = events

    @abstractmethod
    def running_episodes(self) -> Sequence[Episode]:
        """Return the episodes under way, as they are recorded for callbacks."""

    def reseed(self, streams: RandomStreams) -> None:
        """Use these random streams from the next reset on."""
        self.streams = streams
        self.num_resets = 0

    @abstractmethod
    def reset(self) -> None:
        """Begin new episodes everywhere. Nothing is estimated across this boundary."""

    # -- a collect ---

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:  # noqa: B027
        """Raise `ValueError` for a collect that this stepper cannot make. Most steppers make any."""

    def begin_collect(self, mode: StepMode) -> None:
        """Prepare the buffer for the steps to come."""
        self.mode = mode
        self.env_time = 0.0
        self.act_time = 0.0

    @abstractmethod
    def run(self, most: int) -> int:
        """Take the steps of one run, and return how many of them count.

        A run is at most `CHUNK` vector steps, or the answers of the environments that are ready, and about `most` steps
        at most. On a device a run is the whole collect, whatever `most` is; it is only launched here, and `end_collect`
        waits for it.

        In a collect by episodes only steps of the environments in `episodes.counting` count. The run ends when none is
        left.
        """

    @abstractmethod
    def end_collect(self) -> dict[str, Any]:
        """Check and store what was collected; return the statistics of single agents, where there are several."""

    def ended_episodes(self) -> tuple[Any, Any]:
        """Return returns and lengths of the episodes that ended in this collect and count, `[E]` each."""
        return returns_and_lens([(episode.episode_return, episode.length) for episode in self.episodes.ended])

    def seconds_since(self, started: float) -> float:
        """Return the seconds of a collect that began at `started`, a time of `time.perf_counter`."""
        return time.perf_counter() - started

    @abstractmethod
    def abandon_collect(self) -> None:
        """Remove what a failed collect has stored."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows in the buffer that `drop_after` can drop again."""

    @abstractmethod
    def drop_after(self, first: int) -> None:
        """Drop the rows behind the first `first` ones."""

    # -- state ---

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return environments and running episodes, as far as the environments can tell their state."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state` and the parts that a collector adds to it."""


def masks_in(obs: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> np.ndarray | None:
    """Return the action masks `[rows, choices]` that observations carry, or None."""
    if not mask_size(action_space) or not carries_mask(observation_space):
        return None
    return flat_mask(action_space, obs[ACTION_MASK]) != 0
