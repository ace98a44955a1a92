"""`SingleAgentEpisode`: one agent's (piece of an) episode, with its own storage or as a view on a rollout store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from lockstep.data import episode_edit as edit
from lockstep.data.episode_access import as_rows
from lockstep.data.episode_columns import EpisodeColumns
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import whole

Tree = Any
Slice = slice  # the method of this name hides the type in the class


class SingleAgentEpisode(EpisodeColumns):
    """T steps: T + 1 observations and infos, T actions, rewards and extra model outputs.

    The first `len_lookback_buffer` of the given steps (`"auto"`: all of them) are lookback: readable with negative
    indices, not counted. Steps that are added are kept by reference until the first read packs them into arrays.

    Args:
        id_: name of the episode, which all its pieces share; a new one by default.
        observations: L + T + 1 rows (list or tree of arrays); actions, rewards, extra_model_outputs: L + T each.
        observation_space, action_space: anything with `contains(value)`; values that are set later must lie in it.
        t_started: step of the episode at which this piece begins, lookback not counted (default 0).

    Raises `ValueError` where the lengths do not fit.
    """

    __slots__ = (
        "_duration",
        "_last_time",
        "_start_time",
        "agent_id",
        "custom_data",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
    )

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: Any = None,
        infos: Sequence[Any] | None = None,
        actions: Any = None,
        action_space: Any = None,
        rewards: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = 0,
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        self.id_ = uuid4().hex if id_ is None else id_
        self.observation_space, self.action_space = observation_space, action_space
        self.agent_id, self.module_id = agent_id, module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.custom_data: dict[str, Any] = {}
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._spare, self._source = {}, None
        self._last_obs = None
        self._new_obs = []
        self._new_steps = []
        self._duration, self._start_time, self._last_time = 0.0, 0.0, 0.0
        self._obs = _given(observations, "observations")
        self._actions = _given(actions, "actions")
        self._rewards = _given(rewards, "rewards")
        self._extras = {key: as_rows(value, key) for key, value in (extra_model_outputs or {}).items() if _some(value)}
        self._extra_keys = frozenset(self._extras) or None
        self._infos = None if infos is None else list(infos)
        steps = edit.check_lengths(self)
        lookback = steps if len_lookback_buffer == "auto" else len_lookback_buffer
        if not isinstance(lookback, int) or not 0 <= lookback <= steps:
            raise ValueError(f"len_lookback_buffer={len_lookback_buffer!r}; allowed are 'auto' and 0 to {steps}")
        self._lookback = lookback
        self.t_started = t_started or 0
        self.t = self.t_started + steps - lookback

    @classmethod
    def view(
        cls,
        *,
        observations: Tree,
        actions: Tree,
        rewards: np.ndarray,
        last_observation: Tree = None,
        infos: Sequence[Any] | None = None,
        extra_model_outputs: Mapping[str, Tree] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        t_started: int = 0,
        len_lookback_buffer: int = 0,
        id_: str | None = None,
        observation_space: Any = None,
        action_space: Any = None,
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> SingleAgentEpisode:
        """An episode on arrays that exist already, which are neither copied nor checked.

        `observations` has L + T + 1 rows, or L + T with `last_observation` (one row without a row axis) apart, as
        at an end that a rollout store keeps beside its columns. Later changes of the arrays show in the episode;
        its setters copy a column before they write. Without `infos` they are empty dicts.
        """
        episode = cls(
            id_,
            observation_space=observation_space,
            action_space=action_space,
            terminated=terminated,
            truncated=truncated,
            t_started=t_started,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
        )
        episode._obs, episode._last_obs = observations, last_observation
        episode._actions, episode._rewards = actions, rewards
        episode._extras = dict(extra_model_outputs or {})
        episode._extra_keys = frozenset(episode._extras) or None
        episode._infos = None if infos is None else list(infos)
        episode._lookback = len_lookback_buffer
        episode.t = t_started + len(rewards) - len_lookback_buffer
        return episode

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """What a copy or another process gets: the episode without the rollout it lies in."""
        state: Any = super().__getstate__()
        return None, {**state[1], "_source": None}

    # ---- growing -----------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: Mapping[str, Any] | None = None) -> None:
        """The first observation. `ValueError` a second time, after data, or outside the observation space."""
        if self.is_reset:
            raise ValueError(f"episode {self.id_} has been reset already and is at t={self.t}")
        if self.observation_space is not None and not self.observation_space.contains(observation):
            raise ValueError(f"observation {observation!r} does not lie in the space {self.observation_space}")
        self._new_obs.append(observation)
        self._infos = [infos if infos is not None else {}]
        self._start_time = self._last_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: float,
        infos: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """One step: `action` was taken, `reward` and the next `observation` came back.

        `ValueError` before the reset, after the end, or where the keys of `extra_model_outputs` change. Arrays are
        kept by reference until the first read: do not write into them.
        """
        if self.is_terminated or self.is_truncated:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; no step can be added")
        keys = extra_model_outputs.keys() if extra_model_outputs else None
        if keys != self._extra_keys:
            edit.check_new_keys(self, keys)
            self._extra_keys = frozenset(keys or ()) or None
        if self._infos is None:
            self._all_infos()
        self._new_obs.append(observation)
        self._new_steps.append((action, reward, extra_model_outputs))
        self._infos.append(infos if infos is not None else {})  # type: ignore[union-attr]
        self.t += 1
        if terminated:
            self.is_terminated = True
        if truncated:
            self.is_truncated = True
        self._last_time = time.perf_counter()

    # ---- what it is --------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Terminated or truncated."""
        return self.is_terminated or self.is_truncated

    def env_steps(self) -> int:
        """T."""
        return len(self)

    def agent_steps(self) -> int:
        """T."""
        return len(self)

    def get_return(self) -> float:
        """Sum of the rewards, without lookback."""
        return float(np.sum(self.get_rewards(), dtype=np.float64))

    def get_duration_s(self) -> float:
        """Seconds from the reset to the last added step; pieces joined together add up."""
        return self._duration + self._last_time - self._start_time

    def validate(self) -> None:
        """Raises `ValueError`, with the values, where an invariant does not hold."""
        edit.validate(self)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        agent = "" if self.agent_id is None else f", agent {self.agent_id!r}"
        return f"SingleAgentEpisode({self.id_!r}, t={self.t_started}..{self.t}, {end}{agent})"

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """The successor: same id, `t_started = t`, the last steps as lookback and the last observation.

        All of it is copied, `custom_data` too. `ValueError` where the episode is done or has no observation.
        """
        if self.is_done:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; it has no successor")
        if not self.is_reset:
            raise ValueError(f"episode {self.id_} has no observation yet; call add_env_reset first")
        wanted = whole("len_lookback_buffer", len_lookback_buffer, 0)
        return edit.successor(self, min(wanted, self._lookback + len(self)))

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Steps `slice_` as a new episode of views, with `t_started` moved; `infos` and `custom_data` are copied.

        The setters of either episode copy a column before they write, so that the other keeps its values.

        It is done only if it reaches the end of a done episode. It looks back over as many steps before it as this
        episode does (or `len_lookback_buffer`), as far as there are any. `ValueError` for a step other than 1.
        """
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise ValueError(f"an episode is a run of steps; slice step {step} is not allowed")
        wanted = self._lookback if len_lookback_buffer is None else whole("len_lookback_buffer", len_lookback_buffer, 0)
        part = edit.piece(self, start, max(start, stop), max(0, min(wanted, self._lookback + start)))
        if stop < start:
            part.is_terminated = part.is_truncated = False
        return part

    def __getitem__(self, key: int | Slice) -> SingleAgentEpisode:
        if isinstance(key, slice):
            return self.slice(key)
        index = key + len(self) if key < 0 else key
        if not 0 <= index < len(self):
            raise IndexError(f"step {key} is out of range of an episode of {len(self)} steps")
        return self.slice(slice(index, index + 1))

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Appends `other` in place: same id, its `t_started` equal to this `t`, its first observation this last.

        `ValueError` naming the values where that is not so, or where this episode is done.
        """
        edit.concat(self, other)

    # ---- other forms -------------------------------------------------------------------------------------

    def get_data_dict(self) -> dict[str, Any]:
        """Columns of T rows: obs, new_obs, actions, rewards, infos, terminateds, truncateds, t, eps_id, extras.

        `infos` are those that came with the step's next observation.
        """
        return edit.data_dict(self)

    def get_sample_batch(self) -> SampleBatch:
        """`get_data_dict` as a `SampleBatch`."""
        return SampleBatch(self.get_data_dict())

    @classmethod
    def from_sample_batch(cls, batch: SampleBatch) -> SingleAgentEpisode:
        """The episode whose steps are the rows of `batch` (obs, new_obs, actions, rewards, flags, extras).

        `ValueError` where the rows are more than one episode, `KeyError` where a column is missing.
        """
        return cls(**edit.arguments_from_batch(batch))

    def get_state(self) -> dict[str, Any]:
        """All of the episode, for `from_state`: plain values, arrays, and the infos."""
        return edit.get_state(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SingleAgentEpisode:
        """The episode that `get_state` described."""
        return edit.restore(cls, state)


def _some(values: Any) -> bool:
    return values is not None and not (isinstance(values, list | tuple) and len(values) == 0)


def _given(values: Any, name: str) -> Tree:
    return as_rows(values, name) if _some(values) else None
