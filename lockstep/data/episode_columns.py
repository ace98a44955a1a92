"""The columns of an episode: packing, reading, writing. `SingleAgentEpisode` adds how an episode lives."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import numpy as np

from lockstep.data.episode_access import (
    Indices,
    append_rows,
    as_rows,
    check_in_space,
    num_items,
    one_hot,
    positions_of,
    read_list,
    read_tree,
    written,
)
from lockstep.data.trees import map_tree, stack_rows, zip_trees

Tree = Any


class EpisodeColumns:
    """Stored columns of T steps and the lookback before them, with the steps added since the last packing."""

    __slots__ = (
        "_actions",
        "_extra_keys",
        "_extras",
        "_infos",
        "_last_obs",
        "_lookback",
        "_new_obs",
        "_new_steps",
        "_obs",
        "_rewards",
        "_source",
        "_spare",
        "action_space",
        "observation_space",
        "t",
        "t_started",
    )

    _obs: Tree
    """[L + T + 1, ...], or [L + T, ...] while the last observation is kept apart"""
    _last_obs: Tree
    _actions: Tree
    _rewards: Any
    _extras: dict[str, Tree]
    _extra_keys: Collection[str] | None
    _infos: list[Any] | None
    """None stands for an empty dict for each observation"""
    _new_obs: list[Any]
    _new_steps: list[tuple[Any, Any, Any]]
    _spare: dict[str, Tree]
    """columns with room to grow, of which the stored ones are views"""
    _lookback: int
    _source: Any
    """the `RolloutEpisodes` of which this is a whole, unchanged item; else None"""
    observation_space: Any
    action_space: Any
    t: int
    t_started: int

    def __len__(self) -> int:
        return self.t - self.t_started

    @property
    def _stored(self) -> int:
        """Steps stored, lookback included."""
        return self._lookback + self.t - self.t_started

    @property
    def is_reset(self) -> bool:
        """Whether there is a first observation."""
        return bool(self._new_obs) or self._obs is not None

    @property
    def is_numpy(self) -> bool:
        """Whether all steps lie in arrays (reading packs them)."""
        return not self._new_obs and self._obs is not None

    @property
    def len_lookback_buffer(self) -> int:
        """Number of steps before the first that can be looked back at."""
        return self._lookback

    def _pack(self) -> None:
        """Moves the steps added since the last read into the arrays; all of them, or on an error none."""
        if not self._new_obs:
            return
        before = self._obs, self._actions, self._rewards, dict(self._extras), self._last_obs
        try:
            self._append_new()
        except (ValueError, TypeError, KeyError):
            self._obs, self._actions, self._rewards, self._extras, self._last_obs = before
            self._spare = {}
            raise
        self._new_obs, self._new_steps = [], []

    def _append_new(self) -> None:
        self._source = None
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

    def _join(self) -> None:
        """Puts a last observation that is kept apart behind the others (copies them once)."""
        self._obs = zip_trees(
            lambda parts: np.concatenate([parts[0], np.asarray(parts[1])[None]]), [self._obs, self._last_obs], "obs"
        )
        self._last_obs = None

    def to_numpy(self) -> Self:
        """Packs all steps into arrays; returns self."""
        self._pack()
        return self

    def _all_infos(self) -> list[Any]:
        """The infos of every observation, made where there are none; `ValueError` without an observation."""
        if self._infos is None:
            if not self.is_reset:
                raise ValueError("this episode has no observation yet; call add_env_reset first")
            self._infos = [{} for _ in range(self._stored + 1)]
        return self._infos

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
        stored = self._stored + 1 if self.is_reset else 0
        where = positions_of(
            indices, self._lookback, stored, neg_index_as_lookback, fill=fill is not None, what="observations"
        )
        if self._last_obs is not None:
            if isinstance(where, int) and where == stored - 1 and not one_hot_discrete:
                return self._last_obs
            inside = isinstance(where, int) or (isinstance(where, slice) and where.stop < stored)
            if not inside or one_hot_discrete:
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

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Infos (T + 1 of them, a list); arguments as in `get_observations`."""
        infos = self._all_infos() if self.is_reset else []
        where = positions_of(
            indices, self._lookback, len(infos), neg_index_as_lookback, fill=fill is not None, what="infos"
        )
        return read_list(infos, where, fill)

    def _get(self, name: str, indices: Indices, negative: bool, fill: Any, hot: bool, *, extra: bool = False) -> Tree:
        self._pack()
        if extra:
            if name not in self._extras:
                raise KeyError(f"no extra model output {name!r}; there are {sorted(self._extras)}")
            tree = self._extras[name]
        else:
            tree = self._actions if name == "actions" else self._rewards
        stored = self._stored
        where = positions_of(indices, self._lookback, stored, negative, fill=fill is not None, what=name)
        return self._read(tree, where, fill, stored, self.action_space, hot, name)

    def _read(self, tree: Tree, where: Any, fill: Any, stored: int, space: Any, hot: bool, name: str) -> Tree:
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
        self._set_column("observations", new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replaces actions; see `set_observations`."""
        self._set_column("actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replaces rewards; see `set_observations`."""
        self._set_column("rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replaces outputs under `key`; a new key takes T values (zeros are put into the lookback)."""
        self._set_extra(key, new_data, at_indices, neg_index_as_lookback)

    def _set_column(self, name: str, new_data: Any, indices: Indices, negative: bool) -> None:
        self._pack()
        self._source = None
        if self._last_obs is not None and name == "observations":
            self._join()
        attribute = {"observations": "_obs", "actions": "_actions", "rewards": "_rewards"}[name]
        space = {"observations": self.observation_space, "actions": self.action_space}.get(name)
        setattr(self, attribute, self._replaced(getattr(self, attribute), name, new_data, indices, negative, space))
        self._spare = {}

    def _set_extra(self, key: str, new_data: Any, indices: Indices, negative: bool) -> None:
        self._pack()
        self._source = None
        old = self._extras.get(key)
        if old is not None:
            self._extras[key] = self._replaced(old, key, new_data, indices, negative, None)
        else:
            if indices is not None:
                raise KeyError(f"no extra model output {key!r}; a new one takes all {len(self)} values at once")
            rows = as_rows(new_data, key)
            if num_items(rows) != len(self):
                raise IndexError(f"new {key} have {num_items(rows)} items for {len(self)} steps")
            before = self._lookback

            def led(leaf: np.ndarray) -> np.ndarray:
                return np.concatenate([np.zeros((before, *leaf.shape[1:]), leaf.dtype), leaf])

            self._extras[key] = map_tree(led, rows)
            self._extra_keys = frozenset(self._extras)
        self._spare = {}

    def _replaced(self, old: Tree, name: str, new_data: Any, indices: Indices, negative: bool, space: Any) -> Tree:
        """The column with new items; `old` itself is not written to."""
        stored = self._stored + (name == "observations" and self.is_reset)
        where = positions_of(indices, self._lookback, stored, negative, fill=False, what=name)
        rows = stack_rows(name, [new_data]) if isinstance(where, int) else as_rows(new_data, name)
        if old is None:
            if num_items(rows):
                raise IndexError(f"new {name} have {num_items(rows)} items, and the episode has no {name}")
            return None
        if space is not None or name == "rewards":
            rows = zip_trees(same_kind, [rows, old], name)
            check_in_space(rows, space, name)
        return written(old, np.array([where]) if isinstance(where, int) else where, rows, name)


def same_kind(pair: list[np.ndarray]) -> np.ndarray:
    """New values in the stored precision (a float64 list for a float32 column, whole numbers for floats)."""
    new, old = pair
    fits = new.dtype.kind == old.dtype.kind or (old.dtype.kind == "f" and new.dtype.kind in "iu")
    return new.astype(old.dtype) if fits else new
