"""What collection needs of a policy, and what a trainer needs of a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights
from lockstep.rollout.callbacks import EnvironmentCallback
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats

State = dict[str, np.ndarray]
"""of a recurrent module: `{name: [rows, ...]}`"""


class ActingLike(Protocol):
    """A policy that acts. `acting` has its parts by module id; without it the policy itself is its only part."""

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights that act."""

    @property
    def is_exploring(self) -> bool:
        """Is the policy within a training step, where it draws its actions?"""


class LearningPolicy(ActingLike, Protocol):
    """A policy whose modules learn in this process, beside a collector of several agents or over env runners."""

    is_multi_agent: bool

    @property
    def acting(self) -> Mapping[str, Any]:
        """The acting part of each module, by module id."""

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """`f(agent, episode)` -> module id, for episodes that begin now."""

    @property
    def policy_mapping_fns(self) -> Sequence[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run."""

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """Return the weights that env runners act with. Unless `copy=True`, the next update changes them in place."""


class ActingPart(ActingLike, Protocol):
    """What acts with one module: a part of a policy, or the whole policy of an env runner."""

    is_stateful: bool
    observation_space: Any
    action_space: Any

    @property
    def recorded(self) -> ObsPipeline:
        """What raw observations go through before they are stored and acted on; a collector copies it."""

    @property
    def seen_space(self) -> Any:
        """The space of the observations that are stored and acted on."""

    @property
    def random_space(self) -> Any:
        """The space that random actions are drawn from, which `from_env` takes."""

    @property
    def act(self) -> Callable[[Any, np.ndarray | None], np.ndarray]:
        """`act(obs, noise)`: actions as learned from, for observations `[B, ...]` as they are stored; without noise the
        most likely ones. Taken anew for each collect, because parameters may be replaced between collects.
        """

    def act_with_logp(self, obs: Any, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return actions as `act` does, and the log-probability of each, `[B]`."""

    def act_with_state(self, obs: Any, noise: np.ndarray | None, state: State) -> tuple[np.ndarray, State]:
        """Return actions of a recurrent module, and the state after them."""

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state of a recurrent module where episodes begin."""

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Draw random numbers for `act`, for many steps at once."""

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as the environment takes them."""

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as learned from, for actions of `random_space`."""

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Raise `ValueError` unless the environment's spaces fit."""

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these from now on."""

    def action_logp(self, obs: Any, actions: np.ndarray) -> np.ndarray:
        """Return the log-probability `[N]` of actions `[N, ...]` as learned from, for stored observations."""


class CollectorTraits:
    """Answers to what a trainer asks of a collector, as they are for most. `CollectorLike` says what they mean."""

    may_evaluate: ClassVar[bool] = True
    launches_updates: ClassVar[bool] = False
    in_runners: ClassVar[bool] = False
    counts_afterwards: ClassVar[bool] = False
    takes_state_of_one: ClassVar[bool] = True
    agents_of_modules: Mapping[str, list[Any]] = MappingProxyType({})

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Do nothing: the one module of a policy of one agent keeps its replay buffer."""

    def leave_episodes_of(self, module_id: str) -> None:
        """Do nothing: the one module of a policy of one agent is never removed."""


@runtime_checkable
class CollectorLike(Protocol):
    """What a trainer needs of a collector, wherever its environments are; `Collector` documents the methods."""

    may_evaluate: ClassVar[bool]
    """Whether an evaluation with this collector can be repeated."""
    launches_updates: ClassVar[bool]
    """Whether `collect` takes `then=`, a function that launches the next update on the device of the steps."""
    in_runners: ClassVar[bool]
    """Whether the environments are those of env runners. Random streams and callbacks are then made in the runners'
    processes from the configuration; objects of this process do not reach them."""
    counts_afterwards: ClassVar[bool]
    """Whether it is decided after the steps which of the episodes count, so that no callback can watch only those."""
    takes_state_of_one: ClassVar[bool]
    """Whether `set_state` takes the state of a collector whose environments are all in one process."""

    @property
    def policy(self) -> Any:
        """The policy that acts."""

    @property
    def env(self) -> Any:
        """The environments; has `num_envs`, `backend`, `autoreset_mode`, `observation_space`, `action_space`."""

    @property
    def agents_of_modules(self) -> Mapping[str, list[Any]]:
        """Agents that each module acts for, by module id; empty where there is one agent."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""

    @property
    def episodes_cut(self) -> int:
        """Number of running episodes that the last `set_state` could not continue."""

    @property
    def is_seeded(self) -> bool:
        """Whether the collector was given random streams or a seed."""

    @property
    def observation_space(self) -> Any:
        """Space of the observations as they are stored."""

    @property
    def buffer(self) -> Any:
        """Where steps are stored: `RolloutStore`, `ReplayBuffer`, their kinds for several agents, or None."""

    @buffer.setter
    def buffer(self, buffer: Any) -> None: ...

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps or `n_episode` whole episodes."""

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere."""

    def reseed(self, streams: RandomStreams) -> None:
        """Use these random streams from the next reset on. `ValueError` for env runners."""

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback]) -> None:
        """Call these callbacks for what happens in the environments. `ValueError` for callbacks that it cannot call."""

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin there with the next steps."""

    def get_state(self) -> dict[str, Any]:
        """Return all that the next collect depends on."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""

    def close(self) -> None:
        """Close the environments."""


def acting_parts(policy: object) -> Mapping[str, Any]:
    """Return the acting parts of a policy by module id; of one without `acting`, itself as its only part."""
    return getattr(policy, "acting", None) or {DEFAULT_MODULE_ID: policy}


def sole_part(policy: Any) -> Any:
    """Return the acting part of a policy with one module. `ValueError` for several, or where it cannot act."""
    parts = acting_parts(policy)
    if len(parts) != 1:
        raise ValueError(f"policy has the modules {sorted(parts)}; collect with a MultiAgentCollector")
    part = next(iter(parts.values()))
    if not hasattr(type(part), "act"):  # asked of the class: of a part, `act` may have to be made
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    return part
