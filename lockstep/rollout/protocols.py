"""Protocols of the policies that collectors use, and of the collectors that trainers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.data.trees import Tree
from lockstep.modules import DEFAULT_MODULE_ID, ActingWeights
from lockstep.rollout.callbacks import EnvironmentCallback
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats

State = dict[str, np.ndarray]
"""State of a recurrent module: `{name: [rows, ...]}`."""


class ActingLike(Protocol):
    """Policy that acts.

    A policy acts with one network (module) or with several. The part that acts with one module is an `ActingPart`. A
    policy with several modules has the attribute `acting`, the parts by module id. A policy without this attribute has
    one module and is itself the part.
    """

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights that act."""

    @property
    def is_exploring(self) -> bool:
        """Whether collectors sample the policy's actions without being asked to: in the context
        `policy_within_training_step`, in which a trainer collects and updates."""


class LearningPolicy(ActingLike, Protocol):
    """Policy that a trainer trains. Collectors of several agents, and collectors over env runners, need one."""

    config: Any
    """Configuration of the policy, whose section `multi_agent` says what is added to observations of agents."""
    is_multi_agent: bool
    """Whether the policy acts for several agents."""

    @property
    def acting(self) -> Mapping[str, Any]:
        """The acting part of each module, by module id."""

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """Function `f(agent, episode)` that returns a module id, for episodes that begin now."""

    @property
    def policy_mapping_fns(self) -> Sequence[Callable[..., str] | None]:
        """The policy mapping functions of every stage of the run.

        An option may be a list of stages `[[step, value], ...]`: the value changes when the run reaches the step.
        """

    def acting_weights(self, *, copy: bool = True) -> ActingWeights:
        """Return the weights that env runners act with. Unless `copy=True`, the next update changes them in place."""


class ActingPart(ActingLike, Protocol):
    """Part of a policy that acts with one module, or the whole policy of an env runner.

    *Actions as learned from* are the actions that the network's distribution returned, before they are rescaled or
    clipped for the environment. They are stored, because losses need their log-probabilities. `to_env` and `from_env`
    convert between the two forms.
    """

    is_stateful: bool
    """Whether the module has recurrent layers."""
    observation_space: Any
    """Observation space of the environment."""
    action_space: Any
    """Action space of the environment."""

    @property
    def recorded(self) -> ObsPipeline:
        """Connectors that raw observations pass through before they are recorded (stored) and acted on, such as a
        frame stack. A collector copies them."""

    @property
    def stored_observation_space(self) -> Any:
        """Space of the observations that are stored and acted on."""

    @property
    def random_space(self) -> Any:
        """Space that random actions are drawn from. `from_env` accepts the actions of this space."""

    @property
    def act(self) -> Callable[[Any, np.ndarray | None], np.ndarray]:
        """Function `act(obs, noise)` that returns actions as learned from, for stored observations `[B, ...]`.

        Without noise it returns the most likely actions. A collector reads this property in each collect, because
        parameters may be replaced between two collects.
        """

    def act_with_logp(self, obs: Any, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions that `act` returns, and the log-probability of each, `[B]`."""

    def act_with_state(self, obs: Any, noise: np.ndarray | None, state: State) -> tuple[np.ndarray, State]:
        """Return actions of a recurrent module, and the state after them."""

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state of a recurrent module at the beginning of an episode, for `num_rows` rows."""

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Return random numbers for `act`, `[*leading_shape, ...]`, for many steps at once.

        `epsilon` replaces the policy's own probability of a random action.
        """

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as the environment takes them, for actions as learned from."""

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as learned from, for actions of `random_space`."""

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Raise `ValueError` unless the spaces of an environment fit the policy."""

    def set_weights(self, weights: ActingWeights) -> None:
        """Act with these weights from now on."""

    def action_logp(self, obs: Any, actions: np.ndarray) -> np.ndarray:
        """Return the log-probabilities `[N]` of actions `[N, ...]` as learned from, given stored observations."""


class Guide(Protocol):
    """Policy that takes some of the actions of training in the place of the policy that learns."""

    def share(self) -> float:
        """Return the present probability, 0 to 1, that the guide takes an action."""

    def actions(self, obs: Tree) -> np.ndarray:
        """Return its actions, as the policy learns from them, for stored observations `[N, ...]`."""


class CollectorTraits:
    """Default values of the traits by which a trainer treats collectors differently; `CollectorLike` documents them."""

    may_evaluate: ClassVar[bool] = True
    launches_updates: ClassVar[bool] = False
    in_runners: ClassVar[bool] = False
    counts_afterwards: ClassVar[bool] = False
    takes_state_of_one: ClassVar[bool] = True
    agents_of_modules: Mapping[str, list[Any]] = MappingProxyType({})

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Do nothing: with one agent there is one module, and its replay buffer always fits."""

    def leave_episodes_of(self, module_id: str) -> None:
        """Do nothing: with one agent, the one module is never removed."""


@runtime_checkable
class CollectorLike(Protocol):
    """Collector that a trainer can use, wherever its environments are; `Collector` documents the methods."""

    may_evaluate: ClassVar[bool]
    """Whether an evaluation with this collector can be repeated."""
    launches_updates: ClassVar[bool]
    """Whether `collect` takes `then=`, a function that launches the next update. The steps are taken on a device, and
    the update is queued there behind them."""
    in_runners: ClassVar[bool]
    """Whether env runners step the environments. Random streams and callbacks are then constructed in the runners'
    processes from the configuration; objects of this process do not reach them."""
    counts_afterwards: ClassVar[bool]
    """Whether the collector decides only after the steps which episodes count. Callbacks then also get events of
    episodes that do not count."""
    takes_state_of_one: ClassVar[bool]
    """Whether `set_state` accepts the state of a single collector, one that has all environments in its own
    process."""

    @property
    def policy(self) -> Any:
        """The policy that acts."""

    @property
    def env(self) -> Any:
        """The environments, with `num_envs`, `backend`, `autoreset_mode`, `observation_space` and `action_space`."""

    @property
    def agents_of_modules(self) -> Mapping[str, list[Any]]:
        """Agents of each module, by module id; empty for an environment with a single agent."""

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
        """Space of the stored observations."""

    @property
    def buffer(self) -> Any:
        """Buffer that steps are stored in: `RolloutStore`, `ReplayBuffer`, `EpisodeStore`, `MultiAgentReplayBuffer` or
        None."""

    @buffer.setter
    def buffer(self, buffer: Any) -> None: ...

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collect `n_step` steps or `n_episode` whole episodes."""

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes in all environments; empty the buffer and the counters if requested."""

    def reseed(self, streams: RandomStreams) -> None:
        """Replace the random streams, from the next reset on. Raises `ValueError` for env runners."""

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback]) -> None:
        """Replace the callbacks that handle events of the environments. Raises `ValueError` if they cannot be
        called."""

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Give each learning module a replay buffer with a sub-buffer for each of its agents.

        A trainer calls this when modules or the mapping of agents change. `agents`: by module id, the agents whose
        steps the module learns from. Without it, a module gets all agents that have its spaces.
        """

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin in their environments."""

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next collect depends on."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""

    def close(self) -> None:
        """Close the environments."""


def acting_parts(policy: object) -> Mapping[str, Any]:
    """Return the acting parts of a policy by module id. A policy without `acting` is itself the only part."""
    return getattr(policy, "acting", None) or {DEFAULT_MODULE_ID: policy}


def sole_part(policy: Any) -> Any:
    """Return the acting part of a policy with one module.

    Raises `ValueError` for a policy with several modules, or an object that cannot act.
    """
    parts = acting_parts(policy)
    if len(parts) != 1:
        raise ValueError(f"policy has the modules {sorted(parts)}; collect with a MultiAgentCollector")
    part = next(iter(parts.values()))
    # Look at the class: on the object, `act` is a property, and reading it may build the functions that act.
    if not hasattr(type(part), "act"):
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    return part
