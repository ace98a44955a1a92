"""`Fragment`: what one env runner collected in one call; and how fragments become one rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import RolloutEpisodes, RolloutStore
from lockstep.data.trees import Tree, leaves, map_tree, rows_of, zip_trees
from lockstep.tracking.statistics import CollectStats


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
    states: Tree = None
    """`{name: [T, k, ...]}` recurrent state before each row; None unless the runner was asked for it"""

    @property
    def num_steps(self) -> int:
        """T, vector steps."""
        return len(self.rewards)

    @property
    def num_envs(self) -> int:
        """Number of environments of this runner."""
        return int(self.rewards.shape[1])

    def __len__(self) -> int:
        """Number of transitions."""
        return self.rewards.size if self.valid is None else int(np.count_nonzero(self.valid))

    @property
    def ended(self) -> np.ndarray:
        """[k] bool, environments whose episode ended with the last row."""
        ended = np.zeros(self.num_envs, bool)
        last = self.final_index - (self.num_steps - 1) * self.num_envs
        ended[last[last >= 0]] = True
        return ended

    @property
    def ended_in_step(self) -> np.ndarray:
        """[n] the vector step in which each episode ended."""
        return self.final_index // self.num_envs

    @property
    def still_open(self) -> np.ndarray:
        """Environments whose last row is a transition of an episode that goes on after it."""
        counts = ~self.ended if self.valid is None else self.valid[-1] & ~self.ended
        return np.flatnonzero(counts)

    @classmethod
    def of(cls, store: RolloutStore, runner: int, begins: np.ndarray, stats: CollectStats) -> Fragment:
        """Return what is in `store`, as views on it."""
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
            valid=None if store.all_valid else store.valid[:size].copy(),
            final_index=np.concatenate([*store.final_index, np.empty(0, np.int64)])[order],
            final_obs=None if finals is None else rows_of(finals, order),
            t_started=store.t_started.copy(),
            starts=np.concatenate(store.starts) if store.starts else None,
            state_in=store.state_in,
            stats=stats,
            action_logp=store.action_logp,
            states=store.states_of(slice(size)) or None,
        )

    def has_acted(self, module_id: str) -> bool:
        """Return True: the one module of one agent takes all steps."""
        return True

    def episodes(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> RolloutEpisodes:
        """Return the pieces of episodes in this fragment, as `RolloutStore.episodes()` does."""
        return rollout_of([self], observation_space, action_space).episodes()

    def get_state(self) -> dict[str, Any]:
        """Return the fragment as values that a checkpoint can hold."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**columns, "stats": self.stats.get_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Fragment:
        """Return the fragment that `get_state` described."""
        return cls(**{**state, "stats": CollectStats.from_state(state["stats"])})

    def write_to(self, store: RolloutStore, envs: slice, first: int, num_steps: int) -> None:
        """Write all rows into columns `envs` of a store, from row `first` on, where `num_steps` rows have room."""
        size = self.num_steps
        rows = slice(first, first + size)
        for target, source in zip(leaves(store.obs), leaves(self.obs)):
            target[rows, envs] = source[:size]
            target[first + num_steps, envs] = source[size]
        for name in ("actions", "rewards", "terminateds", "truncateds"):
            getattr(store, name)[rows, envs] = getattr(self, name)
        store.valid[rows, envs] = True if self.valid is None else self.valid
        store.all_valid &= self.valid is None


@dataclass
class AgentFragment:
    """(Pieces of) episodes of several agents, of the `k` environments of one runner."""

    runner: int
    """index of the runner"""
    num_envs: int
    weights_seq_no: int
    """version of the weights that acted"""
    pieces: list[tuple[MultiAgentEpisode, int]]
    """each with the index of its environment among those of all runners, one environment's after another's"""
    ended_in_step: np.ndarray
    """[n] the vector step in which each episode ended"""
    stats: CollectStats

    def __len__(self) -> int:
        """Number of environment steps."""
        return self.stats.n_collected_steps

    def has_acted(self, module_id: str) -> bool:
        """Return whether this module acts in one of the episodes."""
        return any(module_id in piece.agent_module_ids.values() for piece, _ in self.pieces)

    def get_state(self) -> dict[str, Any]:
        """Return the fragment as values that a checkpoint can hold."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        pieces = [[piece.get_state(), b] for piece, b in self.pieces]
        return {**columns, "pieces": pieces, "stats": self.stats.get_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AgentFragment:
        """Return the fragment that `get_state` described."""
        pieces = [(MultiAgentEpisode.from_state(saved), b) for saved, b in state["pieces"]]
        return cls(**{**state, "pieces": pieces, "stats": CollectStats.from_state(state["stats"])})


@dataclass
class UnstoredFragment:
    """The episodes that ended in a sample of a runner that stores nothing. `stats` has their returns and lengths."""

    runner: int
    """index of the runner"""
    ended_in_step: np.ndarray
    """[n] the vector step in which each episode ended"""
    ended_in_env: np.ndarray
    """[n] the index of its environment among those of all runners"""
    stats: CollectStats

    def __len__(self) -> int:
        """Number of transitions."""
        return self.stats.n_collected_steps


StoredFragment = Fragment | AgentFragment
"""A fragment with the steps of a runner."""
AnyFragment = StoredFragment | UnstoredFragment
"""What a sample of a runner returns. All fragments of a group are of one kind."""


def rollout_of(
    fragments: Sequence[Fragment], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> RolloutStore:
    """Return the environments of all fragments side by side, in this order; shorter fragments are filled up with rows
    that do not count.
    """
    num_envs = sum(fragment.num_envs for fragment in fragments)
    longest = max(fragment.num_steps for fragment in fragments)
    store = RolloutStore(longest, num_envs, observation_space, action_space)
    append_fragments(fragments, store)
    return store


def append_fragments(fragments: Sequence[Fragment], store: RolloutStore, *, by_runner: bool = False) -> None:
    """Write fragments side by side behind the rows that are in `store`, in their order, or `by_runner`: each where the
    runner of its index has its environments, of which some may be missing.

    Where a fragment begins new episodes the ones under way in `store` are left (`RolloutStore.cut`).
    """
    columns, stop = [], 0
    for fragment in fragments:
        start = fragment.runner * fragment.num_envs if by_runner else stop
        columns.append(slice(start, stop := start + fragment.num_envs))
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
        states = [fragment.state_in for fragment in fragments]
        store.state_in = (
            None
            if states[0] is None
            else {
                name: _joined([state[name][None] for state in states], columns, 1, store.num_envs)[0]
                for name in states[0]
            }
        )
    if store.actions.shape[1] == 0:  # none were written yet
        store.make_actions(fragments[0].actions.shape[2:], fragments[0].actions.dtype)
    if sum(fragment.rewards.size for fragment in fragments) < num_steps * store.num_envs:
        _write_nothing(first, first + num_steps, store)
    for fragment, envs in zip(fragments, columns):
        fragment.write_to(store, envs, first, num_steps)
    for index, obs in _last_observations(fragments, columns, store.num_envs):
        store.final_index.append(first * store.num_envs + index)
        store.final_obs.append(obs)
        t, where = divmod(store.final_index[-1], store.num_envs)
        left = where[~(store.terminateds[t, where] | store.truncateds[t, where])]
        if left.size:
            store.abandon_episodes(int(t[0]) + 1, left)
    if fragments[0].starts is not None:
        store.starts.append(_joined([f.starts for f in fragments], columns, num_steps, store.num_envs))
    if store.keeps_states:
        kept = {
            name: _joined([f.states[name] for f in fragments], columns, num_steps, store.num_envs)
            for name in fragments[0].states
        }
        store.states += [{name: leaf[t] for name, leaf in kept.items()} for t in range(num_steps)]
    if first == 0 and all(fragment.action_logp is not None for fragment in fragments):
        store.action_logp = _joined([f.action_logp for f in fragments], columns, num_steps, store.num_envs)
    store.end(first + num_steps, rows_of(store.obs, first + num_steps))


def _write_nothing(first: int, stop: int, store: RolloutStore) -> None:
    """Write rows that do not count, where fragments lack some."""
    for column in (store.actions, store.rewards, store.terminateds, store.truncateds, store.valid):
        column[first:stop] = 0
    for leaf in leaves(store.obs):
        leaf[first : stop + 1] = 0
    store.all_valid = False


def _last_observations(
    fragments: Sequence[Fragment], columns: Sequence[slice], num_envs: int
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Yield flat rows after which an episode is left, and the observations that followed: one piece for each vector
    step, environments ascending, as one collector of all of them writes.
    """
    pieces_index, pieces_obs = [], []
    longest = max(fragment.num_steps for fragment in fragments)
    for fragment, envs in zip(fragments, columns):
        left = [(fragment.final_index, fragment.final_obs)]
        if fragment.num_steps < longest:  # no row follows its last one: what is under way there is cut
            open_envs = fragment.still_open
            last_row = (fragment.num_steps - 1) * fragment.num_envs
            left.append((last_row + open_envs, rows_of(fragment.obs, (-1, open_envs))))
        for index, obs in left:
            if index.size:
                t, b = np.divmod(index, fragment.num_envs)
                pieces_index.append(t * num_envs + envs.start + b)
                pieces_obs.append(obs)
    if not pieces_index:
        return
    index, obs = np.concatenate(pieces_index), zip_trees(np.concatenate, pieces_obs, "obs")
    order = np.argsort(index, kind="stable")
    index = index[order]
    for rows in np.split(np.arange(len(index)), np.flatnonzero(np.diff(index // num_envs)) + 1):
        yield index[rows], rows_of(obs, order[rows])


def _joined(parts: Sequence[Any], columns: Sequence[slice], num_steps: int, num_envs: int) -> np.ndarray:
    """Return `[T, B, ...]` of parts `[t, k, ...]`, zeros where there is none."""
    joined = np.zeros((num_steps, num_envs, *parts[0].shape[2:]), parts[0].dtype)
    for part, envs in zip(parts, columns):
        joined[: len(part), envs] = part
    return joined
