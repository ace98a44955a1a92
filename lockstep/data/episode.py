"""`SingleAgentEpisode`: one agent's (piece of an) episode, with its own storage or as a view on a rollout store."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from lockstep.data import episode_edit as edit
from lockstep.data.episode_access import (
    Indices,
    append_rows,
    as_rows,
    one_hot,
    positions_of,
    read_list,
    read_tree,
)
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import zip_trees

Tree = Any


class SingleAgentEpisode:
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
        "_actions",
        "_duration",
        "_extra_keys",
        "_extras",
        "_infos",
        "_last_obs",
        "_last_time",
        "_lookback",
        "_new_obs",
        "_new_steps",
        "_obs",
        "_rewards",
        "_spare",
        "_start_time",
        "action_space",
        "agent_id",
        "custom_data",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "observation_space",
        "t",
        "t_started",
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
        self._spare: dict[str, Tree] = {}
        self._last_obs: Tree = None
        self._new_obs: list[Any] = []
        self._new_steps: list[tuple[Any, Any, Any]] = []
        self._duration, self._start_time, self._last_time = 0.0, 0.0, 0.0
        self._obs: Tree = _given(observations, "observations")
        self._actions: Tree = _given(actions, "actions")
        self._rewards: Any = _given(rewards, "rewards")
        self._extras: dict[str, Tree] = {
            key: as_rows(value, key) for key, value in (extra_model_outputs or {}).items() if _some(value)
        }
        self._extra_keys: Collection[str] | None = frozenset(self._extras) or None
        self._infos: list[Any] | None = None if infos is None else list(infos)
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
            edit.make_infos(self)
        self._new_obs.append(observation)
        self._new_steps.append((action, reward, extra_model_outputs))
        self._infos.append(infos if infos is not None else {})  # type: ignore[union-attr]
        self.t += 1
        if terminated:
            self.is_terminated = True
        if truncated:
            self.is_truncated = True
        self._last_time = time.perf_counter()

    def _pack(self) -> None:
        """Moves the steps added since the last read into the arrays."""
        if not self._new_obs:
            return
        if self._last_obs is not None:
            self._join()
        spare = self._spare
        self._obs, spare["obs"] = append_rows(self._obs, spare.get("obs"), self._new_obs, "observations")
        if self._new_steps:
            actions, rewards, extras = zip(*self._new_steps)
            self._actions, spare["a"] = append_rows(self._actions, spare.get("a"), actions, "actions")
            self._rewards, spare["r"] = append_rows(self._rewards, spare.get("r"), rewards, "rewards")
            for key in self._extra_keys or ():
                rows = [extra[key] for extra in extras]
                self._extras[key], spare[f"extra/{key}"] = append_rows(
                    self._extras.get(key), spare.get(f"extra/{key}"), rows, key
                )
        self._new_obs, self._new_steps = [], []

    def _join(self) -> None:
        """Puts a last observation that is kept apart behind the others (copies them once)."""
        self._obs = zip_trees(
            lambda parts: np.concatenate([parts[0], np.asarray(parts[1])[None]]), [self._obs, self._last_obs], "obs"
        )
        self._last_obs = None

    def to_numpy(self) -> SingleAgentEpisode:
        """Packs all steps into arrays; returns self."""
        self._pack()
        return self

    # ---- what it is --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.t - self.t_started

    @property
    def is_reset(self) -> bool:
        """Whether there is a first observation."""
        return bool(self._new_obs) or self._obs is not None

    @property
    def is_done(self) -> bool:
        """Terminated or truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether all steps lie in arrays (reading packs them)."""
        return not self._new_obs and self._obs is not None

    @property
    def len_lookback_buffer(self) -> int:
        """Number of steps before the first that can be looked back at."""
        return self._lookback

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

    # ---- reading -----------------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Tree:
        """Observations (T + 1 of them) at `indices`.

        None: all without lookback; an int: one; a list or slice: several. Negative indices count from the end, or
        with `neg_index_as_lookback` back from index 0. Outside: `IndexError`, or `fill` where it is given (slices
        without `fill` are clipped). `one_hot_discrete` gives Discrete parts as float32 one-hot vectors.
        """
        self._pack()
        stored = self._lookback + len(self) + 1 if self.is_reset else 0
        where = positions_of(
            indices, self._lookback, stored, neg_index_as_lookback, fill=fill is not None, what="observations"
        )
        if self._last_obs is not None:
            if isinstance(where, int) and where == stored - 1 and not one_hot_discrete:
                return self._last_obs
            if not (isinstance(where, slice) and where.stop < stored):
                self._join()
        return self._read(self._obs, where, fill, stored, self.observation_space, one_hot_discrete, "observations")

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Tree:
        """Actions (T of them); arguments as in `get_observations`."""
        return self._get("actions", indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: float | None = None
    ) -> Any:
        """Rewards (T of them); arguments as in `get_observations`."""
        return self._get("rewards", indices, neg_index_as_lookback, fill, False)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Tree:
        """Model outputs under `key` (T of them); arguments as in `get_observations`. Unknown key: `KeyError`."""
        return self._get(key, indices, neg_index_as_lookback, fill, False, extra=True)

    def get_infos(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Infos (T + 1 of them, a list); arguments as in `get_observations`."""
        if self._infos is None:
            edit.make_infos(self)
        infos = self._infos or []
        where = positions_of(
            indices, self._lookback, len(infos), neg_index_as_lookback, fill=fill is not None, what="infos"
        )
        return read_list(infos, where, fill)

    def _get(
        self, name: str, indices: Indices, negative: bool, fill: Any, hot: bool, *, extra: bool = False
    ) -> Tree:
        self._pack()
        if extra:
            if name not in self._extras:
                raise KeyError(f"no extra model output {name!r}; there are {sorted(self._extras)}")
            tree = self._extras[name]
        else:
            tree = self._actions if name == "actions" else self._rewards
        stored = self._lookback + len(self)
        where = positions_of(indices, self._lookback, stored, negative, fill=fill is not None, what=name)
        return self._read(tree, where, fill, stored, self.action_space, hot, name)

    def _read(
        self, tree: Tree, where: Any, fill: Any, stored: int, space: Any, hot: bool, name: str
    ) -> Tree:
        if tree is None:
            tree = np.empty(0, dtype=np.float32)
        if hot:
            tree = one_hot(tree, space, name)
        return read_tree(tree, where, fill, stored)

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replaces observations; indices as in the getters, None for all without lookback.

        `IndexError` where lengths differ, `ValueError` for a value outside the space. The arrays that came from
        elsewhere (a rollout store, the caller) are not written to.
        """
        edit.set_column(self, "observations", new_data, at_indices, neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replaces actions; see `set_observations`."""
        edit.set_column(self, "actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replaces rewards; see `set_observations`."""
        edit.set_column(self, "rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replaces outputs under `key`; a new key takes T values (zeros are put into the lookback)."""
        edit.set_extra(self, key, new_data, at_indices, neg_index_as_lookback)

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """The successor: same id, `t_started = t`, the last steps as lookback and the last observation.

        `ValueError` where the episode is done or has no observation.
        """
        if self.is_done:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; it has no successor")
        if not self.is_reset:
            raise ValueError(f"episode {self.id_} has no observation yet; call add_env_reset first")
        return edit.piece(self, len(self), len(self), min(len_lookback_buffer, self._lookback + len(self)))

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Steps `slice_` as a new episode of views, with `t_started` moved.

        It is done only if it reaches the end of a done episode. It looks back over as many steps before it as this
        episode does (or `len_lookback_buffer`), as far as there are any. `ValueError` for a step other than 1.
        """
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise ValueError(f"an episode is a run of steps; slice step {step} is not allowed")
        wanted = self._lookback if len_lookback_buffer is None else len_lookback_buffer
        return edit.piece(self, start, max(start, stop), max(0, min(wanted, self._lookback + start)))

    def __getitem__(self, key: int | slice) -> SingleAgentEpisode:
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


