"""`Fragment`: what one env runner collected in one call; and how fragments become one rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data.rollout import RolloutEpisodes, RolloutStore, rows_of
from lockstep.data.trees import leaves, map_tree, zip_trees
from lockstep.tracking.statistics import CollectStats

Tree = Any


@dataclass
class Fragment:
    """Columns `[T, k, ...]` of the `k` environments of one runner.

    Of a remote runner they lie in the object store and must not be written to.
    """

    runner: int
    """index of the runner"""
    weights_seq_no: int
    """version of the weights that acted"""
    begins: np.ndarray
    """[k] bool, environments whose episodes begin with the first row: nothing before it belongs to them"""
    obs: Tree
    """[T + 1, k, ...]"""
    actions: np.ndarray
    """[T, k, ...] as learned from"""
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    valid: np.ndarray | None
    """[T, k] bool, the rows that are transitions that count; None: all"""
    final_index: np.ndarray
    """[n] flat rows `t * k + b` at which episodes ended, ascending"""
    final_obs: Tree
    """[n, ...] their true last observations; None for n = 0"""
    t_started: np.ndarray
    """[k] steps of the running episodes before the first row"""
    starts: np.ndarray | None
    """[T, k] bool, of a recurrent policy: rows before which it forgot"""
    state_in: Tree
    """of a recurrent policy: its state before the first row, `{name: [k, ...]}`"""
    stats: CollectStats
    action_logp: np.ndarray | None = None
    """[T, k] log-probability of each action when it was taken; None unless the runner was asked for it"""

    @property
    def num_steps(self) -> int:
        """T, vector steps."""
        return len(self.rewards)

    @property
    def num_envs(self) -> int:
        """k, environments of the runner."""
        return int(self.rewards.shape[1])

    def __len__(self) -> int:
        """Number of transitions."""
        return self.rewards.size if self.valid is None else int(np.count_nonzero(self.valid))

    @property
    def ended(self) -> np.ndarray:
        """[k] bool: the episode ended with the last row."""
        ended = np.zeros(self.num_envs, bool)
        last = self.final_index - (self.num_steps - 1) * self.num_envs
        ended[last[last >= 0]] = True
        return ended

    @property
    def still_open(self) -> np.ndarray:
        """Environments whose last row is a transition of an episode that goes on after it."""
        counts = ~self.ended if self.valid is None else self.valid[-1] & ~self.ended
        return np.flatnonzero(counts)

    @classmethod
    def of(cls, store: RolloutStore, runner: int, begins: np.ndarray, stats: CollectStats) -> Fragment:
        """What is in `store`, as views on it."""
        size = store.size
        order = np.argsort(np.concatenate([*store.final_index, np.empty(0, np.int64)]), kind="stable")
        finals = zip_trees(np.concatenate, store.final_obs, "obs") if store.final_obs else None
        return cls(
            runner=runner,
            weights_seq_no=store.weights_seq_no,
            begins=begins,
            obs=map_tree(lambda leaf: leaf[: size + 1], store.obs),
            actions=store.actions[:size],
            rewards=store.rewards[:size],
            terminateds=store.terminateds[:size],
            truncateds=store.truncateds[:size],
            valid=None if store.all_valid else store.valid[:size],
            final_index=np.concatenate([*store.final_index, np.empty(0, np.int64)])[order],
            final_obs=None if finals is None else rows_of(finals, order),
            t_started=store.t_started.copy(),
            starts=np.concatenate(store.starts) if store.starts else None,
            state_in=store.state_in,
            stats=stats,
            action_logp=store.action_logp,
        )

    def episodes(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> RolloutEpisodes:
        """The pieces of episodes in this fragment, as `RolloutStore.episodes()` gives them."""
        return rollout_of([self], observation_space, action_space).episodes()


def rollout_of(
    fragments: Sequence[Fragment], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> RolloutStore:
    """The environments of all fragments side by side, in the order given; shorter fragments are filled up with rows
    that do not count. `ValueError` for none.
    """
    if not fragments:
        raise ValueError("there is no fragment to make a rollout of; sample first")
    num_envs = sum(fragment.num_envs for fragment in fragments)
    longest = max(fragment.num_steps for fragment in fragments)
    store = RolloutStore(longest, num_envs, observation_space, action_space)
    append_fragments(store, fragments)
    return store


def append_fragments(store: RolloutStore, fragments: Sequence[Fragment], *, by_runner: bool = False) -> None:
    """Writes fragments side by side behind the rows that are in `store`, in their order, or `by_runner`: each where the
    runner of its index has its environments, of which some may be missing.

    Where a fragment begins new episodes the ones under way in `store` are left (`RolloutStore.cut`). `ValueError` where
    the store has another number of environments.
    """
    columns, stop = [], 0
    for fragment in fragments:
        start = fragment.runner * fragment.num_envs if by_runner else stop
        columns.append(slice(start, stop := start + fragment.num_envs))
    if stop > store.num_envs or (stop < store.num_envs and not by_runner):
        raise ValueError(f"the fragments have {stop} environments in all, the store has {store.num_envs}")
    first, num_steps = store.size, max(fragment.num_steps for fragment in fragments)
    begun = np.concatenate([envs.start + np.flatnonzero(f.begins) for f, envs in zip(fragments, columns)])
    if begun.size:
        (store.cut if store.size else store.renew_episodes)(begun)
    store.ensure_room(first + num_steps)
    t_started = np.array(store.t_started)
    for fragment, envs in zip(fragments, columns):
        t_started[envs] = fragment.t_started
    store.begin_collect(t_started)
    if first == 0:
        store.weights_seq_no = max(fragment.weights_seq_no for fragment in fragments)
        if len({fragment.weights_seq_no for fragment in fragments}) > 1:
            store.versions = np.full(store.num_envs, store.weights_seq_no)
            for fragment, envs in zip(fragments, columns):
                store.versions[envs] = fragment.weights_seq_no
        store.state_in = _joined_states(fragments, columns, store.num_envs)
    if store._needs_actions:
        store.make_actions(fragments[0].actions.shape[2:], fragments[0].actions.dtype)
    if sum(fragment.num_envs for fragment in fragments) < store.num_envs:
        _pass_over(store, slice(first, first + num_steps), slice(None))
    for fragment, envs in zip(fragments, columns):
        _write(store, fragment, envs, first, num_steps)
    _add_finals(store, fragments, columns, first)
    if fragments[0].starts is not None:
        store.starts.append(_joined([f.starts for f in fragments], columns, (num_steps, store.num_envs)))
    if first == 0 and all(fragment.action_logp is not None for fragment in fragments):
        store.action_logp = _joined([f.action_logp for f in fragments], columns, (num_steps, store.num_envs))
    store.end(first + num_steps, rows_of(store.obs, first + num_steps))


def _write(store: RolloutStore, fragment: Fragment, envs: slice, first: int, num_steps: int) -> None:
    size = fragment.num_steps
    rows = slice(first, first + size)
    if size < num_steps:
        _pass_over(store, slice(first + size, first + num_steps), envs)
    for target, source in zip(leaves(store.obs), leaves(fragment.obs)):
        target[rows, envs] = source[:size]
        target[first + num_steps, envs] = source[size]
    store.actions[rows, envs] = fragment.actions
    store.rewards[rows, envs] = fragment.rewards
    store.terminateds[rows, envs] = fragment.terminateds
    store.truncateds[rows, envs] = fragment.truncateds
    store.valid[rows, envs] = True if fragment.valid is None else fragment.valid
    store.all_valid &= fragment.valid is None


def _pass_over(store: RolloutStore, rows: slice, envs: slice) -> None:
    """These rows do not count."""
    columns = store.actions, store.rewards, store.terminateds, store.truncateds, store.valid
    for column in (*leaves(store.obs), *columns):
        column[rows, envs] = 0
    for leaf in leaves(store.obs):
        leaf[rows.stop, envs] = 0
    store.all_valid = False


def _add_finals(store: RolloutStore, fragments: Sequence[Fragment], columns: Sequence[slice], first: int) -> None:
    """One piece for each vector step, environments ascending, as one collector of all environments writes them."""
    pieces_index, pieces_obs = [], []
    longest = max(fragment.num_steps for fragment in fragments)
    for fragment, envs in zip(fragments, columns):
        left_open = fragment.still_open if fragment.num_steps < longest else np.empty(0, np.int64)
        for index, obs in (
            (fragment.final_index, fragment.final_obs),
            # No row of a shorter fragment follows its last one here: what is under way there is cut, not run on.
            ((fragment.num_steps - 1) * fragment.num_envs + left_open, rows_of(fragment.obs, (-1, left_open))),
        ):
            if index.size:
                t, b = np.divmod(index, fragment.num_envs)
                pieces_index.append((first + t) * store.num_envs + envs.start + b)
                pieces_obs.append(obs)
    if not pieces_index:
        return
    index, obs = np.concatenate(pieces_index), zip_trees(np.concatenate, pieces_obs, "obs")
    order = np.argsort(index, kind="stable")
    index = index[order]
    for rows in np.split(np.arange(len(index)), np.flatnonzero(np.diff(index // store.num_envs)) + 1):
        store.final_index.append(index[rows])
        store.final_obs.append(rows_of(obs, order[rows]))
        t, where = divmod(index[rows], store.num_envs)
        left = where[~(store.terminateds[t, where] | store.truncateds[t, where])]
        if left.size:
            store.lose(int(t[0]) + 1, left)


def _joined(parts: Sequence[Any], columns: Sequence[slice], shape: tuple[int, int]) -> np.ndarray:
    """[T, B] of parts `[t, k]`, zeros where there is none."""
    joined = np.zeros(shape, parts[0].dtype)
    for part, envs in zip(parts, columns):
        joined[: len(part), envs] = part
    return joined


def _joined_states(fragments: Sequence[Fragment], columns: Sequence[slice], num_envs: int) -> Tree:
    if fragments[0].state_in is None:
        return None
    joined = {name: np.zeros((num_envs, *leaf.shape[1:]), leaf.dtype) for name, leaf in fragments[0].state_in.items()}
    for fragment, envs in zip(fragments, columns):
        for name, leaf in fragment.state_in.items():
            joined[name][envs] = leaf
    return joined
