"""`SingleAgentEpisode`: an episode of one agent, or a piece of it, in its own arrays or as views on a rollout store."""

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

Slice = slice  # inside the class, annotations with `slice` would mean the method of that name

OBSERVATIONS = "observations"
INFOS = "infos"
ACTIONS = "actions"
REWARDS = "rewards"
EXTRAS = "extra_model_outputs"

_NAMES = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
"""Arguments that identify an episode."""
_STATE = (*_NAMES, "is_terminated", "is_truncated", "t", "t_started")
"""Attributes that the state of an episode holds under their own names."""
NO_EXTRAS = {
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.TERMINATEDS),
    *(Columns.TRUNCATEDS, Columns.DONES, Columns.T, Columns.EPS_ID, Columns.SEQ_LENS, Columns.AGENT_ID),
    *(Columns.MODULE_ID, Columns.STATE_IN),
}
"""Columns of a batch that are not extra model outputs."""


class WriteArguments(TypedDict, total=False):
    """Keyword arguments that all setters share."""

    at_indices: Indices
    neg_index_as_lookback: bool


class SingleAgentEpisode:
    """T steps of an episode: T + 1 observations and infos; T actions, rewards and extra model outputs.

    L steps before them are *lookback*: negative indices can read them, but they do not count as steps.

    New steps are kept by reference, and packed into arrays at the first read.

    Args:
        id_: Name of the episode, which all its pieces share. Defaults to a new unique name.
        observations: L + T + 1 rows, as a list or a tree of arrays.
        infos: L + T + 1 dicts. Defaults to empty dicts.
        actions, rewards, extra_model_outputs: L + T rows each; extra model outputs by name.
        observation_space, action_space: Objects with `contains(value)`, in which values that are set later must lie.
        terminated, truncated: Whether the episode ends with the last step, and how.
        t_started: Step of the whole episode at which the T steps begin. Defaults to 0.
        len_lookback_buffer: L, the number of lookback steps among the given ones. `"auto"` makes all of them lookback.
        agent_id, module_id, multi_agent_episode_id: Origin of the episode among several agents.

    Attributes:
        t: Step of the whole episode after the last one: `t_started + T`.
        custom_data: Dict for the user's own data. Slices get copies of it.

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
        self.observation_space = observation_space
        self.action_space = action_space
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.custom_data: dict[str, Any] = {}
        self.is_terminated = bool(terminated)
        self.is_truncated = bool(truncated)

        columns: dict[str, Tree] = {}
        for name, rows in ((OBSERVATIONS, observations), (ACTIONS, actions), (REWARDS, rewards)):
            columns[name] = as_rows(rows, name) if _has_rows(rows) else None
        extras = {key: as_rows(value, key) for key, value in (extra_model_outputs or {}).items() if _has_rows(value)}
        self._set_data(columns, extras, infos)

        num_steps = self._check_lengths()
        self._set_times(t_started or 0, num_steps, lookback_steps(len_lookback_buffer, num_steps))

    def _set_data(
        self, columns: dict[str, Tree], extras: dict[str, Tree], infos: Sequence[Any] | None, last: Tree = None
    ) -> None:
        """Replace all data of the episode."""
        self._columns = columns
        """Actions and rewards `[L + T, ...]`, or None; observations `[L + T + 1, ...]`, or `[L + T, ...]` if
        `_last_obs` holds the last one."""
        self._last_obs = last
        """Last observation, without a row axis, if it is stored separately: at the end of an episode a rollout store
        has the first observation of the next episode behind the others."""
        self._extras = extras
        self.extra_keys = frozenset(extras) or None
        """Names of the extra model outputs; None if there are none."""
        self._infos = None if infos is None else list(infos)
        """Infos of the L + T + 1 observations. None stands for an empty dict for each."""

        self._new_obs: list[Any] = []
        self._new_steps: list[tuple[Any, Any, Any]] = []
        """(Action, reward, extra model outputs) of the steps that are not in arrays yet."""
        self._spare: dict[str, Tree] = {}
        """Columns with room to grow, on which the stored columns are views."""
        self.source: Any = None
        """The `RolloutEpisodes` of which this is an unchanged item, else None. A learner that gets all of its items
        reads the columns of the store instead."""
        self.seconds_before = 0.0
        """Duration of the pieces that were joined to this one, in seconds."""
        self._start_time = 0.0
        self._last_time = 0.0

    def _set_times(self, t_started: int, num_stored: int, lookback: int) -> None:
        """Set the times for `num_stored` stored steps, of which the first `lookback` are lookback."""
        self.t_started = t_started
        self.t = t_started + num_stored - lookback
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
        """Return an episode on existing arrays, which are neither copied nor checked.

        Later changes of the arrays show in the episode. Its setters copy a column before they write.

        Args:
            id_: Name of the episode.
            observations: L + T + 1 rows, or L + T rows if `last_observation` is given.
            actions: L + T rows.
            rewards: L + T rows.
            last_observation: Observation after the last step, without a row axis.
            infos: Infos of the observations. Defaults to empty dicts.
            extra_model_outputs: L + T rows by name.
            t_started: Step of the whole episode at which the T steps begin.
            len_lookback_buffer: L, the number of lookback steps.
            **marks: Further arguments of the class.
        """
        episode = cls(id_, **marks)
        columns = {OBSERVATIONS: observations, ACTIONS: actions, REWARDS: rewards}
        episode._set_data(columns, dict(extra_model_outputs or {}), infos, last_observation)
        episode._set_times(t_started, 0 if rewards is None else len(rewards), len_lookback_buffer)
        return episode

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return the state for copies and other processes, without the rollout that the episode is a view on."""
        state: Any = super().__getstate__()
        return None, {**state[1], "source": None}

    # ---- growing -----------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Tree, infos: Mapping[str, Any] | None = None) -> None:
        """Add the first observation.

        Raises:
            ValueError: the episode has an observation already, or this one is outside the observation space.
        """
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
        """Add one step: the action that was taken, and the reward and next observation that it led to.

        Arrays are kept by reference until the first read: do not write into them.

        Raises:
            ValueError: the episode has no first observation or has ended, or the keys of `extra_model_outputs` change.
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
        """Set the keys of the extra model outputs with the first step. Later changes raise `ValueError`."""
        if self._new_steps or self._num_stored:
            raise ValueError(
                f"extra model outputs have the keys {sorted(keys)} at t={self.t}, and had "
                f"{sorted(self.extra_keys or ())} before; a new key can only come with the first step"
            )
        self._extras = {}
        self.extra_keys = keys or None

    def to_numpy(self) -> Self:
        """Pack the steps that were added since the last read into arrays, and return self.

        After an error none of them is packed, so that the episode stays consistent.
        """
        if not self._new_obs:
            return self
        columns = dict(self._columns)
        extras = dict(self._extras)
        last_obs = self._last_obs
        try:
            self._append_new()
        except (ValueError, TypeError, KeyError):
            self._columns = columns
            self._extras = extras
            self._last_obs = last_obs
            self._spare = {}
            raise
        self._new_obs = []
        self._new_steps = []
        return self

    def _append_new(self) -> None:
        self.source = None
        self._join_last_obs()
        rows_of_columns: dict[str, Sequence[Any]] = {OBSERVATIONS: self._new_obs}
        if self._new_steps:
            actions, rewards, extras = zip(*self._new_steps)
            rows_of_columns[ACTIONS] = actions
            rows_of_columns[REWARDS] = rewards
            for key in sorted(self.extra_keys or ()):  # a set has another order in each process
                outputs = [extra[key] for extra in extras]
                self._extras[key] = self._append_to(self._extras.get(key), f"{EXTRAS}/{key}", outputs)
        for name, rows in rows_of_columns.items():
            self._columns[name] = self._append_to(self._columns[name], name, rows)

    def _append_to(self, column: Tree, name: str, rows: Sequence[Any]) -> Tree:
        column, self._spare[name] = append_rows(column, self._spare.get(name), rows, name)
        return column

    def _join_last_obs(self) -> None:
        """Append a last observation that is stored separately to the others, which copies them once."""
        if self._last_obs is not None:
            last = map_tree(lambda leaf: np.asarray(leaf)[None], self._last_obs)
            self._columns[OBSERVATIONS] = _joined(self._columns[OBSERVATIONS], last, OBSERVATIONS)
            self._last_obs = None

    # ---- sizes and flags ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.t - self.t_started

    @property
    def _num_stored(self) -> int:
        """Number of stored steps, lookback included."""
        return self._lookback + self.t - self.t_started

    @property
    def is_reset(self) -> bool:
        """Whether the episode has a first observation."""
        return bool(self._new_obs) or self._columns[OBSERVATIONS] is not None

    @property
    def is_numpy(self) -> bool:
        """Whether all steps are in arrays. Reading packs them."""
        return not self._new_obs and self._columns[OBSERVATIONS] is not None

    @property
    def is_done(self) -> bool:
        """Whether the episode was terminated or truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def len_lookback_buffer(self) -> int:
        """Number of lookback steps, L."""
        return self._lookback

    def env_steps(self) -> int:
        """Return the number of steps, T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of steps, T."""
        return len(self)

    def get_return(self) -> float:
        """Return the sum of the rewards, without lookback."""
        return float(np.sum(self.get_rewards(), dtype=np.float64))

    def get_duration_s(self) -> float:
        """Return the seconds from the reset to the last step that was added. Joined pieces add up."""
        return self.seconds_before + self._last_time - self._start_time

    def __repr__(self) -> str:
        end = "open"
        if self.is_terminated:
            end = "terminated"
        elif self.is_truncated:
            end = "truncated"
        agent = "" if self.agent_id is None else f", agent {self.agent_id!r}"
        return f"SingleAgentEpisode({self.id_!r}, t={self.t_started}..{self.t}, {end}{agent})"

    # ---- checks ------------------------------------------------------------------------------------------

    def _check_lengths(self) -> int:
        """Return the number of stored steps, lookback included.

        Raises:
            ValueError: the numbers of observations, infos and other rows do not fit; names them.
        """
        columns = {**self._columns, **self._extras}
        sizes = {name: 0 if column is None else num_items(column) for name, column in columns.items()}
        num_observations = sizes.pop(OBSERVATIONS) + (self._last_obs is not None)
        if not self.is_reset:
            if any(sizes.values()) or self._infos:
                raise ValueError(f"an episode with {sizes} and infos {self._infos} needs observations, one more each")
            self._infos = None
            return 0

        num_infos = num_observations if self._infos is None else len(self._infos)
        if num_infos != num_observations or any(size != num_observations - 1 for size in sizes.values()):
            raise ValueError(
                f"{num_observations} observations need as many infos, and one less of the others; there are "
                f"{num_infos} infos and {sizes}"
            )
        return num_observations - 1

    def validate(self) -> None:
        """Raise `ValueError`, naming the values, if an invariant of the episode does not hold."""
        self.to_numpy()
        num_stored = self._check_lengths()
        if len(self) != num_stored - self._lookback or (self.is_done and not self.is_reset):
            raise ValueError(
                f"t={self.t} and t_started={self.t_started} do not fit {num_stored} stored steps, {self._lookback} of "
                f"them lookback, of an episode with is_reset={self.is_reset} and is_done={self.is_done}"
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
        last = self.get_observations(-1)
        first = other.get_observations(0)
        if not trees_equal(last, first):
            raise ValueError(f"the first piece ends with observation {last!r}, the second begins with {first!r}")
        if self._num_stored and len(other) and self.extra_keys != other.extra_keys:
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
        """Return observations, of which there are T + 1.

        Args:
            indices: An int for one observation, a list or slice for several. Defaults to all without lookback.
            neg_index_as_lookback: Count negative indices back from index 0 into the lookback, instead of from the end.
            fill: Value for indices that are out of range.
            one_hot_discrete: Return Discrete parts as float32 one-hot vectors.

        Raises:
            IndexError: an index is out of range, and there is no `fill`. Slices are clipped.
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
        """Return actions, of which there are T. For the arguments see `get_observations`."""
        return self._get(ACTIONS, None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None) -> Tree:
        """Return rewards, of which there are T. For the arguments see `get_observations`."""
        return self._get(REWARDS, None, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None
    ) -> Tree:
        """Return the extra model outputs `key`, of which there are T; `KeyError` for an unknown key.

        For the other arguments see `get_observations`.
        """
        return self._get(EXTRAS, key, indices, neg_index_as_lookback, fill)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Tree = None) -> Any:
        """Return a list of infos, of which there are T + 1. For the arguments see `get_observations`."""
        infos = self._all_infos()
        has_fill = fill is not None
        where = positions_of(indices, self._lookback, len(infos), neg_index_as_lookback, fill=has_fill, name=INFOS)
        return read_list(infos, where, fill)

    def _get(
        self,
        name: str,
        key: str | None,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: Tree,
        one_hot_discrete: bool = False,
    ) -> Tree:
        self.to_numpy()
        tree = self._columns[name] if key is None else self.stored_column(name, key)
        num_stored = self._num_stored + (name == OBSERVATIONS and tree is not None)
        has_fill = fill is not None
        where = positions_of(
            indices, self._lookback, num_stored, neg_index_as_lookback, fill=has_fill, name=key or name
        )

        if name == OBSERVATIONS and self._last_obs is not None:
            # The last observation is stored separately: all others can be read without joining, which would copy.
            if isinstance(where, int) and where == num_stored - 1 and not one_hot_discrete:
                return self._last_obs
            is_before_last = isinstance(where, int) or (isinstance(where, slice) and where.stop < num_stored)
            if not is_before_last or one_hot_discrete:
                tree = self.stored_column(name)

        if one_hot_discrete:
            tree = one_hot(tree, self._space_of(name), name)
        return read_tree(tree, where, fill, num_stored)

    def _space_of(self, name: str) -> Space[Any] | None:
        return {OBSERVATIONS: self.observation_space, ACTIONS: self.action_space}.get(name)

    def _all_infos(self) -> list[Any]:
        """Return the infos of all observations. If there are none, empty ones are made."""
        if self._infos is None:
            if not self.is_reset:
                return []
            self._infos = [{} for _ in range(self._num_stored + 1)]
        return self._infos

    def _check_is_reset(self) -> None:
        if not self.is_reset:
            raise ValueError(f"episode {self.id_} has no observation yet; call add_env_reset first")

    def stored_column(self, name: str, key: str | None = None) -> Tree:
        """Return a whole column, lookback included; None if nothing is stored.

        Args:
            name: `"observations"`, `"infos"`, `"actions"`, `"rewards"` or `"extra_model_outputs"`.
            key: Name of an extra model output. Without it, `"extra_model_outputs"` returns a dict of all of them.

        Raises:
            KeyError: there is no extra model output `key`.
        """
        if name == INFOS:
            return self._all_infos()
        self.to_numpy()
        if name == OBSERVATIONS:
            self._join_last_obs()
        if name != EXTRAS:
            return self._columns[name]
        if key is None:
            return dict(self._extras)
        if key not in self._extras:
            raise KeyError(f"no extra model output {key!r}; there are {sorted(self._extras)}")
        return self._extras[key]

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(self, *, new_data: Tree, **arguments: Unpack[WriteArguments]) -> None:
        """Replace observations.

        The arrays of a rollout store or of the caller are not changed: the column is copied first.

        Args:
            new_data: New observations, in the form in which `get_observations` returns them.
            at_indices: Indices of the observations, as in `get_observations`. Defaults to all without lookback.
            neg_index_as_lookback: As in `get_observations`.

        Raises:
            IndexError: there are more or fewer new observations than indices.
            ValueError: a new observation is outside the space.
        """
        self._set(OBSERVATIONS, None, new_data, **arguments)

    def set_actions(self, *, new_data: Tree, **arguments: Unpack[WriteArguments]) -> None:
        """Replace actions; see `set_observations`."""
        self._set(ACTIONS, None, new_data, **arguments)

    def set_rewards(self, *, new_data: Tree, **arguments: Unpack[WriteArguments]) -> None:
        """Replace rewards; see `set_observations`."""
        self._set(REWARDS, None, new_data, **arguments)

    def set_extra_model_outputs(self, *, key: str, new_data: Tree, **arguments: Unpack[WriteArguments]) -> None:
        """Replace extra model outputs `key`; see `set_observations`.

        A new key takes T values at once; its lookback becomes zeros.
        """
        self._set(EXTRAS, key, new_data, **arguments)

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
        """Return a copy of the column of `stored_column` with new items. The episode is not changed."""
        self.to_numpy()
        if name == EXTRAS and key not in self._extras:
            return self._new_extra(str(key), as_rows(new_data, str(key)), indices)

        old = self.stored_column(name, key)
        num_stored = self._num_stored + (name == OBSERVATIONS and old is not None)
        where = positions_of(indices, self._lookback, num_stored, neg_index_as_lookback, fill=False, name=key or name)
        rows = stack_rows(name, [new_data]) if isinstance(where, int) else as_rows(new_data, name)
        if old is None:
            if num_items(rows):
                raise IndexError(f"new {name} have {num_items(rows)} items, and the episode has no {name}")
            return None

        space = self._space_of(name)
        if space is not None or name == REWARDS:
            rows = zip_trees(in_stored_dtype, [rows, old], name)
            check_in_space(rows, space, name)
        return replace_rows(old, np.array([where]) if isinstance(where, int) else where, rows, key or name)

    def _new_extra(self, key: str, rows: Tree, indices: Indices) -> Tree:
        """Return a new column of extra model outputs: T rows, with zeros for the lookback before them."""
        if indices is not None or num_items(rows) != len(self):
            raise (IndexError if indices is None else KeyError)(
                f"no extra model output {key!r}; a new one takes all {len(self)} values at once"
            )

        def with_lookback(leaf: np.ndarray) -> np.ndarray:
            zeros = np.zeros((self._lookback, *leaf.shape[1:]), leaf.dtype)
            return np.concatenate([zeros, leaf])

        return map_tree(with_lookback, rows)

    def put_column(self, name: str, key: str | None, column: Tree) -> None:
        """Store a whole column of `replaced_column`."""
        self.source = None
        self._spare = {}
        if key is None:
            self._columns[name] = column
        else:
            self._extras[key] = column
            self.extra_keys = frozenset(self._extras)

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Return the successor of this piece, to which the next steps of the episode are added.

        It has the same id, `t_started = t`, the last observation, and the last `len_lookback_buffer` steps as lookback.
        Everything is copied, `custom_data` as well.

        Raises:
            ValueError: the episode is done or has no observation.
        """
        if self.is_done:
            raise ValueError(f"episode {self.id_} ended at t={self.t}; it has no successor")
        self._check_is_reset()
        lookback = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        return self._piece(len(self), len(self), min(lookback, self._num_stored), copied=True)

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Return the steps of a slice as a new episode of views. Infos and `custom_data` are copied.

        The setters of both episodes copy a column before they write, so that the other one keeps its values. The slice
        is done only if it reaches the end of a done episode.

        Args:
            slice_: Steps to return.
            len_lookback_buffer: Number of lookback steps, as far as there are steps. Defaults to that of this episode.

        Raises:
            ValueError: the slice has another step than 1.
        """
        start, stop = run_of_steps(slice_, len(self))
        lookback = self._lookback
        if len_lookback_buffer is not None:
            lookback = check_whole("len_lookback_buffer", len_lookback_buffer, 0)
        part = self._piece(start, max(start, stop), min(lookback, self._lookback + start))
        if stop < start:
            # An empty slice may begin at the end without being the end of the episode.
            part.is_terminated = False
            part.is_truncated = False
        return part

    def __getitem__(self, key: int | Slice) -> SingleAgentEpisode:
        return self.slice(key if isinstance(key, slice) else slice(*run_of_steps(key, len(self))))

    def _piece(self, start: int, stop: int, lookback: int, *, copied: bool = False) -> SingleAgentEpisode:
        """Return steps `start:stop` with `lookback` steps before them, as views or as copies."""
        if self._new_obs:
            self.to_numpy()
        first = self._lookback + start - lookback
        last = self._lookback + stop
        at_end = stop == len(self)
        last_obs = self._last_obs if at_end else None
        if copied:
            last_obs = map_tree(lambda leaf: copy_leaf(leaf) if hasattr(leaf, "dtype") else leaf, last_obs)

        take = _copied_rows if copied else _rows
        columns = {name: take(self._columns[name], first, last) for name in (ACTIONS, REWARDS)}
        columns[OBSERVATIONS] = take(self._columns[OBSERVATIONS], first, last + (last_obs is None))
        extras = {key: take(tree, first, last) for key, tree in self._extras.items()}
        infos = None if self._infos is None else self._infos[first : last + 1]

        # Not the constructor, which would check and convert the data again.
        part = object.__new__(type(self))
        part.id_ = self.id_
        part.agent_id = self.agent_id
        part.module_id = self.module_id
        part.multi_agent_episode_id = self.multi_agent_episode_id
        part.observation_space = self.observation_space
        part.action_space = self.action_space
        part._set_data(columns, extras, _copied_infos(infos), last_obs)
        part._set_times(self.t_started + start, last - first, lookback)
        part.is_terminated = at_end and self.is_terminated
        part.is_truncated = at_end and self.is_truncated
        part.custom_data = _unshared(self.custom_data)
        part._start_time = self._last_time
        part._last_time = self._last_time
        return part

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append the episode `other`, which must continue this one, in place.

        Raises:
            ValueError: this episode is done, the ids differ, or `other` begins at another step or with another
                observation than this episode ends; names the values.
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
        # The last observation of this episode is the first of the other: it is taken from the other.
        observations = _rows(self._columns[OBSERVATIONS], 0, self._num_stored)
        self._columns[OBSERVATIONS] = _joined(observations, other.get_observations(), OBSERVATIONS)
        self._last_obs = None
        self._spare = {}
        self.source = None

        self.t = other.t
        self.is_terminated = other.is_terminated
        self.is_truncated = other.is_truncated
        self.seconds_before += other.get_duration_s()
        self.custom_data.update(other.custom_data)

    # ---- other forms -------------------------------------------------------------------------------------

    def get_data_dict(self) -> dict[str, Any]:
        """Return columns of T rows: obs, new_obs, actions, rewards, infos, terminateds, truncateds, t, eps_id, extras.

        The infos of a row came with its `new_obs`.
        """
        self.to_numpy()
        self._check_is_reset()
        num_steps = len(self)
        first = self._lookback
        last = first + num_steps

        observations = self._columns[OBSERVATIONS]
        next_obs = _rows(observations, first + 1, last + 1)
        if self._last_obs is not None:
            last_row = map_tree(lambda leaf: np.asarray(leaf)[None], self._last_obs)
            next_obs = _joined(_rows(observations, first + 1, last), last_row, Columns.NEXT_OBS)
            next_obs = _rows(next_obs, 0, num_steps)  # an episode without steps has a last observation as well

        terminateds = np.zeros(num_steps, dtype=bool)
        truncateds = np.zeros(num_steps, dtype=bool)
        if num_steps:
            terminateds[-1] = self.is_terminated
            truncateds[-1] = self.is_truncated
        return {
            Columns.OBS: _rows(observations, first, last),
            Columns.NEXT_OBS: next_obs,
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            Columns.INFOS: as_column(Columns.INFOS, list(self._all_infos()[first + 1 :])),
            Columns.TERMINATEDS: terminateds,
            Columns.TRUNCATEDS: truncateds,
            Columns.T: np.arange(self.t_started, self.t),
            Columns.EPS_ID: np.full(num_steps, self.id_),
            **{key: _rows(tree, first, last) for key, tree in self._extras.items()},
        }

    def get_sample_batch(self) -> SampleBatch:
        """Return `get_data_dict` as a `SampleBatch`."""
        return SampleBatch(self.get_data_dict())

    @classmethod
    def from_sample_batch(cls, batch: SampleBatch) -> SingleAgentEpisode:
        """Return the episode whose steps are the rows of a batch: obs, new_obs, actions, rewards, flags and extras.

        Raises:
            ValueError: the rows are not steps of one episode, one after another.
            KeyError: a column is missing.
        """
        if not len(batch) or not batch.is_single_trajectory():
            raise ValueError(f"a batch of {len(batch)} rows is no episode, or more than one; use split_by_episode()")
        flat = batch.flat().to_numpy()
        _check_consecutive(flat)

        names = {}
        for column, name in ((Columns.EPS_ID, "id_"), (Columns.AGENT_ID, "agent_id"), (Columns.MODULE_ID, "module_id")):
            if column in flat:
                value = flat[column][0]
                names[name] = value.item() if isinstance(value, np.generic) else value

        last_obs = _rows(flat[Columns.NEXT_OBS], -1, None)
        infos = None
        if Columns.INFOS in flat:
            # The infos of a row came with its next observation; the first observation has none.
            infos = [{}, *flat[Columns.INFOS]]
        return cls(
            **names,
            observations=_joined(flat[Columns.OBS], last_obs, Columns.OBS),
            actions=flat[Columns.ACTIONS],
            rewards=flat[Columns.REWARDS],
            terminated=Columns.TERMINATEDS in flat and bool(flat[Columns.TERMINATEDS][-1]),
            truncated=Columns.TRUNCATEDS in flat and bool(flat[Columns.TRUNCATEDS][-1]),
            t_started=int(flat[Columns.T][0]) if Columns.T in flat else 0,
            infos=infos,
            extra_model_outputs={key: tree for key, tree in flat.items() if key not in NO_EXTRAS},
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state of the episode for `from_state`: plain values, and copies of the arrays and infos."""
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
        """Return the episode of a state of `get_state`; `KeyError` naming the missing keys of a foreign state."""
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
    """Raise `KeyError` naming the keys that a state lacks. `kind` says in the message what it is a state of."""
    missing = [name for name in names if name not in state]
    if missing:
        raise KeyError(f"this is no state of {kind}; it lacks {missing}")


def _check_consecutive(columns: Mapping[str, Any]) -> None:
    """Raise `ValueError` naming the first row that is not the step after the row before it."""
    times = columns.get(Columns.T, np.empty(0))
    jumps = np.flatnonzero(np.diff(times) != 1)
    if len(jumps):
        before, after = times[jumps[0] : jumps[0] + 2].tolist()
        raise ValueError(f"column 't', row {jumps[0] + 1}: {after} does not follow {before}; steps must be in order")

    next_obs = _rows(columns[Columns.NEXT_OBS], 0, -1)
    obs = _rows(columns[Columns.OBS], 1, None)
    if not trees_equal(next_obs, obs):
        row = next(i for i in range(num_items(obs)) if not trees_equal(rows_of(next_obs, i), rows_of(obs, i)))
        raise ValueError(
            f"column 'new_obs', row {row} is not column 'obs', row {row + 1}: they are not steps one after another"
        )


def _has_rows(values: Tree) -> bool:
    return values is not None and not (isinstance(values, list | tuple) and len(values) == 0)


def _rows(tree: Tree, start: int = 0, stop: int | None = None) -> Tree:
    """Return rows of a column as views; None for None."""
    if tree is None:
        return None
    if type(tree) is np.ndarray:
        return tree[start:stop]
    return map_tree(lambda leaf: leaf[start:stop], tree)


def _copied_rows(tree: Tree, start: int = 0, stop: int | None = None) -> Tree:
    return None if tree is None else map_tree(copy_leaf, _rows(tree, start, stop))


def _copied_infos(infos: list[Any] | None) -> list[Any] | None:
    """Return a deep copy of infos. If all are empty, return None, which stands for them."""
    if infos is None or infos.count({}) == len(infos):
        return None
    return list(map(_unshared, infos))


def _unshared(value: Any) -> Any:
    """Return a copy that shares no dict, list or array. Objects that cannot be copied (a lock, a handle) are shared."""
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
    """Return two columns one after another, in new memory. The first may be None."""
    if first is None:
        return _copied_rows(second)
    return concat_trees([first, second], name)
