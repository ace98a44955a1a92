"""`Stepper`: acts with a policy, steps environments and stores the steps. A collector decides how many."""

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
from lockstep.rollout.protocols import ActingLike, Guide
from lockstep.rollout.running_episodes import RunningEpisodes
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import returns_and_lens

CHUNK = 128
"""Largest number of vector steps of one run. The random numbers of a run are drawn at once: one call of the generator
for 128 steps is much faster than 128 calls."""


@dataclass(frozen=True)
class StepMode:
    """The settings of one collect that its steps depend on."""

    random: bool
    """Whether actions are drawn uniformly from the action space."""
    explores: bool
    """Whether the policy samples its actions; otherwise it takes the most likely ones."""
    epsilon: float
    """Probability of a random action, instead of the policy's own probability; 0 to use the policy's own."""
    raise_on_nan: bool
    """Whether values that are not finite raise `MalformedBufferError`."""
    on_step_hook: Callable[[Any], None] | None
    """Function that is called with the result of each step."""


class Stepper(ABC):
    """Base class of the steppers, which act with a policy, step environments and store the steps.

    A collector calls `begin_collect`, then `run` until it has enough steps, then `end_collect`; or `abandon_collect` if
    one of these raises. It reads `episodes`, `env_time` and `act_time`.

    The names of the random streams, the order in which numbers are drawn from them, and the keys of the state are
    fixed: the same seed must give the same bits in later versions, and saved states must stay readable.

    Args:
        policy: The policy that acts.
        env: The environments, wrapped in their boundary.
        streams: Random streams for the seeds of episodes, for exploration and for random actions.
        place: `(first, total)` if several steppers share `total` environments: the index of this stepper's first
            environment, and the total. An environment then gets the same random numbers as in a single stepper that
            has all environments. None for a single stepper.
    """

    rounds_up: ClassVar[bool] = True
    """Whether `run` takes whole vector steps, so that a collect may have more steps than were requested."""
    has_vector_steps: ClassVar[bool] = True
    """Whether all environments take their steps together."""
    steps_counting_envs_only: ClassVar[bool] = False
    """Whether a collect of whole episodes steps only the environments whose episode counts."""
    agents_of_modules: Mapping[str, list[Any]]
    """Agents of each module, by module id; empty for an environment with a single agent."""

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
        """Number of resets since the random streams were set. It is part of the name of the stream that the seeds of
        the next reset are drawn from."""
        self.num_envs: int = env.num_envs
        """Number of environments of this stepper."""
        first, total = place or (0, self.num_envs)
        self.num_envs_in_all = total
        """Number of environments of all steppers that share them."""
        self.rows = slice(first, first + self.num_envs)
        """Indices of this stepper's environments among all environments."""
        self.episodes = RunningEpisodes(self.num_envs)
        self.episodes_cut = 0
        """Number of running episodes that the last `set_state` could not continue."""
        self.events: EnvironmentEvents | None = None
        """Dispatcher to the callbacks that handle events of environments; None without such callbacks."""
        self.env_time = 0.0
        """Seconds of this collect that were spent in the environments."""
        self.act_time = 0.0
        """Seconds of this collect that were spent choosing actions."""

    @property
    @abstractmethod
    def observation_space(self) -> Any:
        """Space of the stored observations; for several agents a dict of spaces by agent."""

    @property
    @abstractmethod
    def buffer(self) -> Any:
        """Buffer that steps are stored in."""

    @abstractmethod
    def set_buffer(self, buffer: Any, raise_on_nan: bool) -> None:
        """Store later steps in `buffer`. Raises `ValueError` for a buffer that does not fit."""

    @abstractmethod
    def empty_buffer(self, keep_statistics: bool) -> None:
        """Remove all steps from the buffer. `keep_statistics`: see `BaseCollector.reset_buffer`."""

    def set_events(self, events: EnvironmentEvents | None) -> None:
        """Replace the dispatcher to the callbacks that handle events of environments."""
        self.events = events

    def set_guide(self, guide: Guide) -> None:
        """Let `guide` take some of the actions. Raises `ValueError` if this stepper cannot."""
        raise ValueError(
            f"{type(self).__name__} lets the policy take all actions; another policy can take some of them for one "
            "agent whose environments are stepped together on the host"
        )

    @abstractmethod
    def running_episodes(self) -> Sequence[Episode]:
        """Return the running episodes as they are recorded for callbacks."""

    def reseed(self, streams: RandomStreams) -> None:
        """Replace the random streams. The next reset takes the first seeds of the new streams."""
        self.streams = streams
        self.num_resets = 0

    @abstractmethod
    def reset(self) -> None:
        """Begin new episodes in all environments. Running episodes are cut."""

    # -- a collect ---

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:  # noqa: B027
        """Raise `ValueError` for an amount that this stepper cannot collect. By default any amount is allowed."""

    def begin_collect(self, mode: StepMode) -> None:
        """Begin a collect whose steps are taken as `mode` says, and prepare the buffer."""
        self.mode = mode
        self.env_time = 0.0
        self.act_time = 0.0

    @abstractmethod
    def run(self, most: int) -> int:
        """Take and store steps, and return the number of those that count.

        How many steps a run takes depends on the stepper. If all environments step together, it takes `most` steps
        rounded up to whole vector steps, and at most `CHUNK` vector steps. If environments step when they are ready, it
        takes one step of each ready one, and at most `most`. On a device a run is the whole collect, whatever `most`
        is; it is only launched here, and `end_collect` waits for it.

        In a collect by episodes only steps of the environments in `episodes.counting` count, and the run ends as soon
        as no environment counts.
        """

    @abstractmethod
    def end_collect(self) -> dict[str, Any]:
        """Check and store the collected steps.

        Returns the statistics of single agents, as keyword arguments of `CollectStats`; empty for one agent.
        """

    def take_log(self) -> dict[str, tuple[float, int]]:
        """Return the values that the environments logged in this collect, by name: their mean and their number."""
        return {}

    def ended_episodes(self) -> tuple[Any, Any]:
        """Return the returns and the lengths of the episodes that ended in this collect and count, `[E]` each."""
        return returns_and_lens([(episode.episode_return, episode.length) for episode in self.episodes.ended])

    def seconds_since(self, started: float) -> float:
        """Return the duration in seconds of a collect that began at `started`, a time of `time.perf_counter`."""
        return time.perf_counter() - started

    @abstractmethod
    def abandon_collect(self) -> None:
        """Remove the steps that a failed collect has stored."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows in the buffer, as `drop_after` counts them."""

    @abstractmethod
    def drop_after(self, first: int) -> None:
        """Remove all rows of the buffer but the first `first` ones."""

    # -- state ---

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the running episodes, and the state of the environments or None if they do not support saving it."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a collector's state: what `get_state` returned, and the collector's own entries."""


def masks_in(obs: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> np.ndarray | None:
    """Return the action masks `[rows, choices]` (bool, True: allowed) in the observations; None without masks."""
    if not mask_size(action_space) or not carries_mask(observation_space):
        return None
    return flat_mask(action_space, obs[ACTION_MASK]) != 0
