"""`SingleAgentEpisode`: one agent's (piece of an) episode, with its own storage or as a view on a rollout store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Self, TypedDict, Unpack
from uuid import uuid4

import numpy as np
from gymnasium.spaces import Space

from lockstep.data.columns import Columns
from lockstep.data.indices import Indices, lookback_steps, positions_of, run_of_steps
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import (
    Tree,
    append_rows,
    as_column,
    as_rows,
    check_in_space,
    concat_trees,
    copy_leaf,
    in_stored_dtype,
    map_tree,
    num_items,
    one_hot,
    read_list,
    read_tree,
    replace_rows,
    rows_of,
    stack_rows,
    trees_equal,
    zip_trees,
)
from lockstep.options.checks import check_whole

Slice = slice  # the method of this name hides the type in the class
OBSERVATIONS, INFOS, ACTIONS, REWARDS, EXTRAS = "observations", "infos", "actions", "rewards", "extra_model_outputs"

_NAMES = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
_STATE = (*_NAMES, "is_terminated", "is_truncated", "t", "t_started")
NO_EXTRAS = {
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.TERMINATEDS),
    *(Columns.TRUNCATEDS, Columns.DONES, Columns.T, Columns.EPS_ID, Columns.SEQ_LENS, Columns.AGENT_ID),
    *(Columns.MODULE_ID, Columns.STATE_IN),
}
"""columns of a batch that are no extra model outputs"""


class Write(TypedDict, total=False):
    """Options of all setters."""

    at_indices: Indices
    neg_index_as_lookback: bool


class SingleAgentEpisode:
    """T steps: T + 1 observations and infos, T actions, rewards and extra model outputs.

    The first `len_lookback_buffer` of the given steps (`"auto"`: all of them) are lookback: readable with negative
    indices, not counted. Steps that are added are kept by reference until the first read packs them into arrays.

    Args:
        id_: name of the episode, which all its pieces share; a new one by default.
        observations: L + T + 1 rows (list or tree of arrays); actions, rewards, extra_model_outputs: L + T each.
        observation_space, action_space: anything with `contains(value)`; values that are set later must lie in it.
        t_started: step of the episode at which this piece begins, lookback not counted (default 0).

    Raises:
        ValueError: the lengths do not fit.
    """

    __slots__ = (
        "_columns",
        "_extras",
        "_infos",
        "_last_obs",
        "_last_time",
        "_lookback",
        "_new_obs",
        "_new_steps",
        "_spare",
        "_start_time",
        "action_space",
        "agent_id",
        "custom_data",
        "extra_keys",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "observation_space",
        "seconds_before",
        "source",
        "t",
        "t_started",
    )

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Tree = None,
        observation_space: Space[Any] | None = None,
        infos: Sequence[Any] | None = None,
        actions: Tree = None,
        action_space: Space[Any] | None = None,
        rewards: Tree = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Tree] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = 0,
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        self.id_ = uuid4().hex if id_ is None else id_
        self.observation_space, self.action_space = observation_space, action_space
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        self.custom_data: dict[str, Any] = {}
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        given = {OBSERVATIONS: observations, ACTIONS: actions, REWARDS: rewards}
        extras = {key: as_rows(value, key) for key, value in (extra_model_outputs or {}).items() if _has_rows(value)}
        columns = {name: as_rows(rows, name) if _has_rows(rows) else None for name, rows in given.items()}
        self._hold(columns, extras, infos)
        num_steps = self._check_lengths()
        self._begin(t_started or 0, num_steps, lookback_steps(len_lookback_buffer, num_steps))

    def _hold(
        self, columns: dict[str, Tree], extras: dict[str, Tree], infos: Sequence[Any] | None, last: Tree = None
    ) -> None:
        """Take data, in place of all before."""
        self._columns = columns
        """actions and rewards [L + T, ...] or None; observations [L + T + 1, ...], or one less with the last apart"""
        self._last_obs = last
        self._extras = extras
        self.extra_keys = frozenset(extras) or None
        """names of the extra model outputs; None where there are none"""
        self._infos = None if infos is None else list(infos)
        """None stands for an empty dict for each observation"""
        self._new_obs: list[Any] = []
        self._new_steps: list[tuple[Any, Any, Any]] = []
        self._spare: dict[str, Tree] = {}
        """columns with room to grow, of which the stored ones are views"""
        self.source: Any = None
        """the `RolloutEpisodes` of which this is a whole, unchanged item; else None"""
        self.seconds_before = 0.0
        """duration of the pieces that were joined to this one"""
        self._start_time = self._last_time = 0.0

    def _begin(self, t_started: int, stored: int, lookback: int) -> None:
        """Take `stored` steps, of which the first are lookback."""
        self.t_started, self.t = t_started, t_started + stored - lookback
        self._lookback = lookback

    @classmethod
    def view(
        cls,
        id_: str | None = None,
        *,
        observations: Tree,
        actions: Tree,
        rewards: Tree,
        last_observation: Tree = None,
        infos: Sequence[Any] | None = None,
        extra_model_outputs: Mapping[str, Tree] | None = None,
        t_started: int = 0,
        len_lookback_buffer: int = 0,
        **marks: Any,
    ) -> Self:
        """Return an episode on arrays that exist already, which are neither copied nor checked.

        `observations` has L + T + 1 rows, or L + T with `last_observation` (one row without a row axis) apart, as
        at an end that a rollout store keeps beside its columns. Later changes of the arrays show in the episode;
        its setters copy a column before they write. Without `infos` they are empty dicts. `marks` are the other
        arguments of the class.
        """
        episode = cls(id_, **marks)
        columns = {OBSERVATIONS: observations, ACTIONS: actions, REWARDS: rewards}
        episode._hold(columns, dict(extra_model_outputs or {}), infos, last_observation)
        episode._begin(t_started, 0 if rewards is None else len(rewards), len_lookback_buffer)
        return episode

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return what a copy or another process gets: the episode without the rollout it lies in."""
        state: Any = super().__getstate__()
        return None, {**state[1], "source": None}

    # ---- growing -----------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Tree, infos: Mapping[str, Any] | None = None) -> None:
        """Add the first observation. `ValueError` a second time, after data, or outside the observation space."""
        if self.is_reset:
            raise ValueError(f"episode {self.id_} has been reset already and is at t={self.t}")
        if self.observation_space is not None and not self.observation_space.contains(observation):
            raise ValueError(f"observation {observation!r} does not lie in the space {self.observation_space}")
        self._new_obs.append(observation)
        self._infos = [infos if infos is not None else {}]
        self._start_time = self._last_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Tree,
        action: Tree,
        reward: float,
        infos: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one step: `action` was taken, `reward` and the next `observation` came back.

        `ValueError` before the reset, after the end, or where the keys of `extra_model_outputs` change. Arrays are
        kept by reference until the first read: do not write into them.
        """
        if self.is_terminated or self.is_truncated:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; no step can be added")
        keys = extra_model_outputs.keys() if extra_model_outputs else None
        if keys != self.extra_keys:
            self._change_extra_keys(frozenset(keys or ()))
        if self._infos is None:
            self._check_is_reset()
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

    def _change_extra_keys(self, keys: frozenset[str]) -> None:
        """Take other keys with the first step; columns of those before, which have no row yet, are dropped."""
        if self._new_steps or self._stored:
            raise ValueError(
                f"extra model outputs have the keys {sorted(keys)} at t={self.t}, and had "
                f"{sorted(self.extra_keys or ())} before; a new key can only come with the first step"
            )
        self._extras = {}
        self.extra_keys = keys or None

    def to_numpy(self) -> Self:
        """Pack the steps added since the last read into arrays (all of them, or on an error none); return self."""
        if not self._new_obs:
            return self
        before = dict(self._columns), dict(self._extras), self._last_obs
        try:
            self._append_new()
        except (ValueError, TypeError, KeyError):
            self._columns, self._extras, self._last_obs = before
            self._spare = {}
            raise
        self._new_obs, self._new_steps = [], []
        return self

    def _append_new(self) -> None:
        self.source = None
        self._join_last()
        new: dict[str, Sequence[Any]] = {OBSERVATIONS: self._new_obs}
        if self._new_steps:
            new[ACTIONS], new[REWARDS], extras = zip(*self._new_steps)
            for key in sorted(self.extra_keys or ()):  # a set has another order in each process
                outputs = [extra[key] for extra in extras]
                self._extras[key] = self._appended(self._extras.get(key), f"{EXTRAS}/{key}", outputs)
        for name, rows in new.items():
            self._columns[name] = self._appended(self._columns[name], name, rows)

    def _appended(self, column: Tree, name: str, rows: Sequence[Any]) -> Tree:
        column, self._spare[name] = append_rows(column, self._spare.get(name), rows, name)
        return column

    def _join_last(self) -> None:
        """Put a last observation that is kept apart behind the others (copies them once)."""
        if self._last_obs is not None:
            last = map_tree(lambda leaf: np.asarray(leaf)[None], self._last_obs)
            self._columns[OBSERVATIONS] = _joined(self._columns[OBSERVATIONS], last, OBSERVATIONS)
            self._last_obs = None

    # ---- sizes and marks ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.t - self.t_started

    @property
    def _stored(self) -> int:
        """Number of steps stored, lookback included."""
        return self._lookback + self.t - self.t_started

    @property
    def is_reset(self) -> bool:
        """Whether there is a first observation."""
        return bool(self._new_obs) or self._columns[OBSERVATIONS] is not None

    @property
    def is_numpy(self) -> bool:
        """Whether all steps lie in arrays (reading packs them)."""
        return not self._new_obs and self._columns[OBSERVATIONS] is not None

    @property
    def is_done(self) -> bool:
        """Whether the episode was terminated or truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def len_lookback_buffer(self) -> int:
        """Number of steps before the first that can be looked back at."""
        return self._lookback

    def env_steps(self) -> int:
        """Return T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return T."""
        return len(self)

    def get_return(self) -> float:
        """Return the sum of the rewards, without lookback."""
        return float(np.sum(self.get_rewards(), dtype=np.float64))

    def get_duration_s(self) -> float:
        """Return the seconds from the reset to the last added step; pieces joined together add up."""
        return self.seconds_before + self._last_time - self._start_time

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        agent = "" if self.agent_id is None else f", agent {self.agent_id!r}"
        return f"SingleAgentEpisode({self.id_!r}, t={self.t_started}..{self.t}, {end}{agent})"

    # ---- checks ------------------------------------------------------------------------------------------

    def _check_lengths(self) -> int:
        """Return the number of steps stored, lookback included; `ValueError` naming the data that do not fit."""
        columns = {**self._columns, **self._extras}
        sizes = {name: 0 if column is None else num_items(column) for name, column in columns.items()}
        observations = sizes.pop(OBSERVATIONS) + (self._last_obs is not None)
        if not self.is_reset:
            if any(sizes.values()) or self._infos:
                raise ValueError(f"an episode with {sizes} and infos {self._infos} needs observations, one more each")
            self._infos = None
            return 0
        num_infos = observations if self._infos is None else len(self._infos)
        if num_infos != observations or any(size != observations - 1 for size in sizes.values()):
            raise ValueError(
                f"{observations} observations need as many infos, and one less of the others; there are {num_infos} "
                f"infos and {sizes}"
            )
        return observations - 1

    def validate(self) -> None:
        """Raise `ValueError`, with the values, where an invariant does not hold."""
        self.to_numpy()
        steps = self._check_lengths()
        if len(self) != steps - self._lookback or (self.is_done and not self.is_reset):
            raise ValueError(
                f"t={self.t} and t_started={self.t_started} do not fit {steps} stored steps, {self._lookback} of them "
                f"lookback, of an episode with is_reset={self.is_reset} and is_done={self.is_done}"
            )
        rewards = self._columns[REWARDS]
        if rewards is not None and (rewards.ndim != 1 or not np.isfinite(rewards).all()):
            raise ValueError(f"rewards must be one finite number for each step, got {rewards!r}")
        for name in (OBSERVATIONS, ACTIONS):
            check_in_space(self.stored_column(name), self._space_of(name), name)

    def check_contiguous(self, other: SingleAgentEpisode) -> None:
        """Raise `ValueError`, naming the values, unless `other` can follow this episode."""
        check_follows(self.id_, self.t, self.is_done, other.id_, other.t_started)
        if not (self.is_reset and other.is_reset):
            raise ValueError("both pieces need an observation; call add_env_reset first")
        last, first = self.get_observations(-1), other.get_observations(0)
        if not trees_equal(last, first):
            raise ValueError(f"the first piece ends with observation {last!r}, the second begins with {first!r}")
        if self._stored and len(other) and self.extra_keys != other.extra_keys:
            raise ValueError(
                f"extra model outputs differ: {sorted(self.extra_keys or ())} and {sorted(other.extra_keys or ())}"
            )

    # ---- reading -----------------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Tree = None,
        one_hot_discrete: bool = False,
    ) -> Tree:
        """Return observations (T + 1 of them) at `indices`.

        None: all without lookback; an int: one; a list or slice: several. Negative indices count from the end, or
        with `neg_index_as_lookback=True` back from index 0. Outside: `IndexError`, or `fill` where it is given (slices
        without `fill` are clipped). `one_hot_discrete=True` gives Discrete parts as float32 one-hot vectors.
        """
        return self._get(OBSERVATIONS, None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Tree = None,
        one_hot_discrete: bool = False,
    ) -> Tree:
        """Return actions (T of them); arguments as in `get_observations`."""
        return self._get(ACTIONS, None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None) -> Tree:
        """Return rewards (T of them); arguments as in `get_observations`."""
        return self._get(REWARDS, None, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None
    ) -> Tree:
        """Return model outputs under `key` (T of them); arguments as in `get_observations`. Unknown: `KeyError`."""
        return self._get(EXTRAS, key, indices, neg_index_as_lookback, fill)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None) -> Any:
        """Return infos (T + 1 of them, a list); arguments as in `get_observations`."""
        infos, filled = self._all_infos(), fill is not None
        where = positions_of(indices, self._lookback, len(infos), neg_index_as_lookback, fill=filled, name=INFOS)
        return read_list(infos, where, fill)

    def _get(self, name: str, key: str | None, indices: Indices, negative: bool, fill: Tree, hot: bool = False) -> Tree:
        self.to_numpy()
        tree = self._columns[name] if key is None else self.stored_column(name, key)
        stored = self._stored + (name == OBSERVATIONS and tree is not None)
        where = positions_of(indices, self._lookback, stored, negative, fill=fill is not None, name=key or name)
        if name == OBSERVATIONS and self._last_obs is not None:
            if isinstance(where, int) and where == stored - 1 and not hot:
                return self._last_obs
            inside = isinstance(where, int) or (isinstance(where, slice) and where.stop < stored)
            if not inside or hot:
                tree = self.stored_column(name)
        if hot:
            tree = one_hot(tree, self._space_of(name), name)
        return read_tree(tree, where, fill, stored)

    def _space_of(self, name: str) -> Space[Any] | None:
        return {OBSERVATIONS: self.observation_space, ACTIONS: self.action_space}.get(name)

    def _all_infos(self) -> list[Any]:
        """Return the infos of every observation, made where there are none."""
        if self._infos is None:
            if not self.is_reset:
                return []
            self._infos = [{} for _ in range(self._stored + 1)]
        return self._infos

    def _check_is_reset(self) -> None:
        if not self.is_reset:
            raise ValueError(f"episode {self.id_} has no observation yet; call add_env_reset first")

    def stored_column(self, name: str, key: str | None = None) -> Tree:
        """Return a whole column with the lookback before it, None where nothing is stored.

        `name` is `"observations"`, `"infos"`, `"actions"`, `"rewards"` or `"extra_model_outputs"`; of these the
        output `key` (`KeyError` for an unknown one), or a dict of all.
        """
        if name == INFOS:
            return self._all_infos()
        self.to_numpy()
        if name == OBSERVATIONS:
            self._join_last()
        if name != EXTRAS:
            return self._columns[name]
        if key is None:
            return dict(self._extras)
        if key not in self._extras:
            raise KeyError(f"no extra model output {key!r}; there are {sorted(self._extras)}")
        return self._extras[key]

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(self, *, new_data: Tree, **where: Unpack[Write]) -> None:
        """Replace observations `at_indices` (as in the getters; None: all without lookback).

        `neg_index_as_lookback` as in the getters. `IndexError` where lengths differ, `ValueError` for a value outside
        the space. The arrays that came from elsewhere (a rollout store, the caller) are not written to.
        """
        self._set(OBSERVATIONS, None, new_data, **where)

    def set_actions(self, *, new_data: Tree, **where: Unpack[Write]) -> None:
        """Replace actions; see `set_observations`."""
        self._set(ACTIONS, None, new_data, **where)

    def set_rewards(self, *, new_data: Tree, **where: Unpack[Write]) -> None:
        """Replace rewards; see `set_observations`."""
        self._set(REWARDS, None, new_data, **where)

    def set_extra_model_outputs(self, *, key: str, new_data: Tree, **where: Unpack[Write]) -> None:
        """Replace outputs under `key`; a new key takes T values (zeros are put into the lookback)."""
        self._set(EXTRAS, key, new_data, **where)

    def _set(
        self,
        name: str,
        key: str | None,
        new_data: Tree,
        *,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        self.put_column(name, key, self.replaced_column(name, key, new_data, at_indices, neg_index_as_lookback))

    def replaced_column(
        self, name: str, key: str | None, new_data: Tree, indices: Indices, neg_index_as_lookback: bool
    ) -> Tree:
        """Return a column as in `stored_column` with new items; nothing is written to."""
        self.to_numpy()
        if name == EXTRAS and key not in self._extras:
            return self._new_extra(str(key), as_rows(new_data, str(key)), indices)
        old = self.stored_column(name, key)
        stored, space = self._stored + (name == OBSERVATIONS and old is not None), self._space_of(name)
        where = positions_of(indices, self._lookback, stored, neg_index_as_lookback, fill=False, name=key or name)
        rows = stack_rows(name, [new_data]) if isinstance(where, int) else as_rows(new_data, name)
        if old is None:
            if num_items(rows):
                raise IndexError(f"new {name} have {num_items(rows)} items, and the episode has no {name}")
            return None
        if space is not None or name == REWARDS:
            rows = zip_trees(in_stored_dtype, [rows, old], name)
            check_in_space(rows, space, name)
        return replace_rows(old, np.array([where]) if isinstance(where, int) else where, rows, key or name)

    def _new_extra(self, key: str, rows: Tree, indices: Indices) -> Tree:
        """Return a new column of T rows, with zeros in the lookback."""
        if indices is not None or num_items(rows) != len(self):
            raise (IndexError if indices is None else KeyError)(
                f"no extra model output {key!r}; a new one takes all {len(self)} values at once"
            )
        return map_tree(
            lambda leaf: np.concatenate([np.zeros((self._lookback, *leaf.shape[1:]), leaf.dtype), leaf]), rows
        )

    def put_column(self, name: str, key: str | None, column: Tree) -> None:
        """Store a whole column, which `replaced_column` made."""
        self.source, self._spare = None, {}
        if key is None:
            self._columns[name] = column
        else:
            self._extras[key] = column
            self.extra_keys = frozenset(self._extras)

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Return the successor: same id, `t_started = t`, the last steps as lookback and the last observation.

        All of it is copied, `custom_data` too. `ValueError` where the episode is done or has no observation.
        """
        if self.is_done:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; it has no successor")
        self._check_is_reset()
        wanted = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        return self._piece(len(self), len(self), min(wanted, self._stored), copied=True)

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Return steps `slice_` as a new episode of views, with `t_started` moved; infos and `custom_data` are copied.

        The setters of either episode copy a column before they write, so that the other keeps its values.

        It is done only if it reaches the end of a done episode. It looks back over as many steps before it as this
        episode does (or `len_lookback_buffer`), as far as there are any. `ValueError` for a step other than 1.
        """
        start, stop = run_of_steps(slice_, len(self))
        wanted = self._lookback
        if len_lookback_buffer is not None:
            wanted = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        part = self._piece(start, max(start, stop), min(wanted, self._lookback + start))
        if stop < start:
            part.is_terminated = part.is_truncated = False
        return part

    def __getitem__(self, key: int | Slice) -> SingleAgentEpisode:
        return self.slice(key if isinstance(key, slice) else slice(*run_of_steps(key, len(self))))

    def _piece(self, start: int, stop: int, lookback: int, *, copied: bool = False) -> SingleAgentEpisode:
        """Return steps `start:stop` with `lookback` steps before them, as views or copied."""
        if self._new_obs:
            self.to_numpy()
        first = self._lookback + start - lookback
        last = self._lookback + stop
        at_end = stop == len(self)
        last_obs = self._last_obs if at_end else None
        if copied:
            last_obs = map_tree(lambda leaf: copy_leaf(leaf) if hasattr(leaf, "dtype") else leaf, last_obs)
        take = _copied_rows if copied else _rows
        infos = None if self._infos is None else self._infos[first : last + 1]
        part = object.__new__(type(self))
        part.id_, part.agent_id, part.module_id = self.id_, self.agent_id, self.module_id
        part.multi_agent_episode_id = self.multi_agent_episode_id
        part.observation_space, part.action_space = self.observation_space, self.action_space
        columns = {name: take(self._columns[name], first, last) for name in (ACTIONS, REWARDS)}
        columns[OBSERVATIONS] = take(self._columns[OBSERVATIONS], first, last + (last_obs is None))
        extras = {key: take(tree, first, last) for key, tree in self._extras.items()}
        part._hold(columns, extras, _copied_infos(infos), last_obs)
        part._begin(self.t_started + start, last - first, lookback)
        part.is_terminated, part.is_truncated = at_end and self.is_terminated, at_end and self.is_truncated
        part.custom_data = _unshared(self.custom_data)
        part._start_time = part._last_time = self._last_time
        return part

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append `other` in place: same id, its `t_started` equal to this `t`, its first observation this last.

        `ValueError` naming the values where that is not so, or where this episode is done.
        """
        self.check_contiguous(other)
        if self._infos is not None or other._infos is not None:
            self._infos = self._all_infos()[:-1] + other.get_infos()
        if len(other):
            for name in (ACTIONS, REWARDS):
                new = _rows(other.stored_column(name), other.len_lookback_buffer)
                self._columns[name] = _joined(self._columns[name], new, name)
            for key in other.stored_column(EXTRAS):
                self._extras[key] = _joined(self._extras.get(key), other.get_extra_model_outputs(key), key)
            self.extra_keys = other.extra_keys
        seen = _rows(self._columns[OBSERVATIONS], 0, self._stored)
        self._columns[OBSERVATIONS] = _joined(seen, other.get_observations(), OBSERVATIONS)
        self._last_obs, self._spare, self.source = None, {}, None
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self.seconds_before += other.get_duration_s()
        self.custom_data.update(other.custom_data)

    # ---- other forms -------------------------------------------------------------------------------------

    def get_data_dict(self) -> dict[str, Any]:
        """Return columns of T rows: obs, new_obs, actions, rewards, infos, terminateds, truncateds, t, eps_id, extras.

        `infos` are those that came with the step's next observation.
        """
        self.to_numpy()
        self._check_is_reset()
        first, steps = self._lookback, len(self)
        last = first + steps
        seen = self._columns[OBSERVATIONS]
        obs, new_obs = _rows(seen, first, last), _rows(seen, first + 1, last + 1)
        if self._last_obs is not None:
            tail = map_tree(lambda leaf: np.asarray(leaf)[None], self._last_obs)
            new_obs = _rows(_joined(_rows(seen, first + 1, last), tail, Columns.NEXT_OBS), 0, steps)
        ends = np.zeros((2, steps), dtype=bool)
        if steps:
            ends[:, -1] = self.is_terminated, self.is_truncated
        return {
            Columns.OBS: obs,
            Columns.NEXT_OBS: new_obs,
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            Columns.INFOS: as_column(Columns.INFOS, list(self._all_infos()[first + 1 :])),
            Columns.TERMINATEDS: ends[0],
            Columns.TRUNCATEDS: ends[1],
            Columns.T: np.arange(self.t_started, self.t),
            Columns.EPS_ID: np.full(steps, self.id_),
            **{key: _rows(tree, first, last) for key, tree in self._extras.items()},
        }

    def get_sample_batch(self) -> SampleBatch:
        """Return `get_data_dict` as a `SampleBatch`."""
        return SampleBatch(self.get_data_dict())

    @classmethod
    def from_sample_batch(cls, batch: SampleBatch) -> SingleAgentEpisode:
        """Return the episode whose steps are the rows of `batch` (obs, new_obs, actions, rewards, flags, extras).

        `ValueError` where the rows are no episode or more than one, `KeyError` where a column is missing.
        """
        if not len(batch) or not batch.is_single_trajectory():
            raise ValueError(f"a batch of {len(batch)} rows is no episode, or more than one; use split_by_episode()")
        flat = batch.flat().to_numpy()
        _check_run_of_steps(flat)
        value_of = {
            name: flat[column][0].item() if isinstance(flat[column][0], np.generic) else flat[column][0]
            for column, name in (
                (Columns.EPS_ID, "id_"),
                (Columns.AGENT_ID, "agent_id"),
                (Columns.MODULE_ID, "module_id"),
            )
            if column in flat
        }
        return cls(
            **value_of,
            observations=_joined(flat[Columns.OBS], _rows(flat[Columns.NEXT_OBS], -1, None), Columns.OBS),
            actions=flat[Columns.ACTIONS],
            rewards=flat[Columns.REWARDS],
            terminated=bool(flat[Columns.TERMINATEDS][-1]) if Columns.TERMINATEDS in flat else False,
            truncated=bool(flat[Columns.TRUNCATEDS][-1]) if Columns.TRUNCATEDS in flat else False,
            t_started=int(flat[Columns.T][0]) if Columns.T in flat else 0,
            infos=[{}, *flat[Columns.INFOS]] if Columns.INFOS in flat else None,
            extra_model_outputs={key: tree for key, tree in flat.items() if key not in NO_EXTRAS},
        )

    def get_state(self) -> dict[str, Any]:
        """Return all of the episode, for `from_state`: plain values, copies of the arrays, and the infos."""
        return {
            **{name: getattr(self, name) for name in _STATE},
            "custom_data": deepcopy(self.custom_data),
            "len_lookback_buffer": self._lookback,
            "duration_s": self.get_duration_s(),
            **{name: _copied_rows(self.stored_column(name)) for name in (OBSERVATIONS, ACTIONS, REWARDS)},
            "extra_model_outputs": {key: _copied_rows(tree) for key, tree in self._extras.items()},
            "infos": _copied_infos(self._infos),
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SingleAgentEpisode:
        """Return the episode that `get_state` described; `KeyError` naming what a foreign state lacks."""
        check_state(state, (*_STATE, OBSERVATIONS, "len_lookback_buffer"), "an episode")
        names = (*_NAMES, "t_started", "len_lookback_buffer", OBSERVATIONS, ACTIONS, REWARDS, EXTRAS, INFOS)
        episode = cls(
            **{name: state[name] for name in names},
            observation_space=space_from(state["observation_space"]),
            action_space=space_from(state["action_space"]),
            terminated=state["is_terminated"],
            truncated=state["is_truncated"],
        )
        episode.custom_data = deepcopy(state["custom_data"])
        episode.seconds_before = state["duration_s"]
        return episode


def check_follows(id_: str, t: int, is_done: bool, other_id: str, other_t_started: int) -> None:
    """Raise `ValueError` unless a piece of an episode can follow another by id and time."""
    if other_id != id_:
        raise ValueError(f"the episodes have different ids, {id_!r} and {other_id!r}")
    if is_done:
        raise ValueError(f"episode {id_} ended at t={t}; nothing can follow")
    if other_t_started != t:
        raise ValueError(f"the first piece ends at t={t}, the second begins at t={other_t_started}")


def check_state(state: Mapping[str, Any], names: Sequence[str], kind: str) -> None:
    """Raise `KeyError` naming what a state lacks."""
    missing = [name for name in names if name not in state]
    if missing:
        raise KeyError(f"this is no state of {kind}; it lacks {missing}")


def _check_run_of_steps(columns: Mapping[str, Any]) -> None:
    """Raise `ValueError` naming the first row that does not follow the one before."""
    times = columns.get(Columns.T, np.empty(0))
    jumps = np.flatnonzero(np.diff(times) != 1)
    if len(jumps):
        before, after = times[jumps[0] : jumps[0] + 2].tolist()
        raise ValueError(f"column 't', row {jumps[0] + 1}: {after} does not follow {before}; steps must be in order")
    before, after = _rows(columns[Columns.NEXT_OBS], 0, -1), _rows(columns[Columns.OBS], 1, None)
    if not trees_equal(before, after):
        row = next(i for i in range(num_items(after)) if not trees_equal(rows_of(before, i), rows_of(after, i)))
        raise ValueError(
            f"column 'new_obs', row {row} is not column 'obs', row {row + 1}: they are not steps one after another"
        )


def _has_rows(values: Tree) -> bool:
    return values is not None and not (isinstance(values, list | tuple) and len(values) == 0)


def _rows(tree: Tree, start: int = 0, stop: int | None = None) -> Tree:
    """Return rows of a column as views; None for None."""
    if tree is None or type(tree) is np.ndarray:
        return None if tree is None else tree[start:stop]
    return map_tree(lambda leaf: leaf[start:stop], tree)


def _copied_rows(tree: Tree, start: int = 0, stop: int | None = None) -> Tree:
    return None if tree is None else map_tree(copy_leaf, _rows(tree, start, stop))


def _copied_infos(infos: list[Any] | None) -> list[Any] | None:
    """Return a deep copy of infos; None, which stands for empty ones, where all are empty."""
    if infos is None or infos.count({}) == len(infos):
        return None
    return list(map(_unshared, infos))


def _unshared(value: Any) -> Any:
    """Return a copy that shares no dict, list or array; what cannot be copied (a lock, a handle) is shared."""
    kind = type(value)
    if kind is dict:
        return {key: _unshared(part) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_unshared, value))
    if kind in (int, float, bool, str, type(None)):
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    try:
        return deepcopy(value)
    except TypeError:
        return value


def _joined(first: Tree, second: Tree, name: str) -> Tree:
    if first is None:
        return _copied_rows(second)
    return concat_trees([first, second], name)
