"""Fragments: the steps or episodes that one env runner sampled in one call, and their conversion to a rollout."""

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
    """Steps of one agent: columns `[T, k, ...]` of the `k` environments of one runner.

    The columns of a remote runner are in Ray's object store and must not be written to. The names of the fields are
    keys of checkpoints.
    """

    runner: int
    """Index of the runner."""
    weights_seq_no: int
    """Version of the weights that acted."""
    begins: np.ndarray
    """`[k]` bool, environments whose first row begins a new episode, rather than continuing the last fragment."""
    obs: Tree
    """`[T + 1, k, ...]` observations; the last row follows the last step."""
    actions: np.ndarray
    """`[T, k, ...]` actions as learned from."""
    rewards: np.ndarray
    """`[T, k]` rewards."""
    terminateds: np.ndarray
    """`[T, k]` bool."""
    truncateds: np.ndarray
    """`[T, k]` bool."""
    valid: np.ndarray | None
    """`[T, k]` bool, rows that are transitions and count; None if all rows do."""
    final_index: np.ndarray
    """`[n]` flat rows `t * k + b` at which episodes ended, ascending."""
    final_obs: Tree
    """`[n, ...]` true last observations of these episodes; None if no episode ended."""
    t_started: np.ndarray
    """`[k]` number of steps of the running episodes before the first row."""
    starts: np.ndarray | None
    """`[T, k]` bool, rows before which a recurrent policy reset its state; None for other policies."""
    state_in: Tree
    """Recurrent state before the first row, `{name: [k, ...]}`; None for a policy without recurrent layers."""
    stats: CollectStats
    """Statistics of the sample."""
    action_logp: np.ndarray | None = None
    """`[T, k]` log-probability of each action under the weights that acted; None unless the runner has `with_logp`."""
    states: Tree = None
    """Recurrent state before each row, `{name: [T, k, ...]}`; None unless the runner has `with_states`."""

    @property
    def num_steps(self) -> int:
        """Number of vector steps, T."""
        return len(self.rewards)

    @property
    def num_envs(self) -> int:
        """Number of environments of the runner, k."""
        return int(self.rewards.shape[1])

    def __len__(self) -> int:
        """Number of transitions."""
        return self.rewards.size if self.valid is None else int(np.count_nonzero(self.valid))

    @property
    def ended(self) -> np.ndarray:
        """`[k]` bool, environments whose episode ended with the last row."""
        ended = np.zeros(self.num_envs, bool)
        last = self.final_index - (self.num_steps - 1) * self.num_envs
        ended[last[last >= 0]] = True
        return ended

    @property
    def ended_in_step(self) -> np.ndarray:
        """`[n]` vector step in which each episode ended."""
        return self.final_index // self.num_envs

    @property
    def still_open(self) -> np.ndarray:
        """Environments whose last row is a transition of an episode that has not ended."""
        counts = ~self.ended if self.valid is None else self.valid[-1] & ~self.ended
        return np.flatnonzero(counts)

    @classmethod
    def of(cls, store: RolloutStore, runner: int, begins: np.ndarray, stats: CollectStats) -> Fragment:
        """Return the contents of `store` as a fragment of views."""
        size = store.size
        final_index = np.concatenate([*store.final_index, np.empty(0, np.int64)])
        # The store has one entry for each cause of an end (an end in the environment, a cut), not one ascending list.
        order = np.argsort(final_index, kind="stable")
        final_obs = None
        if store.final_obs:
            final_obs = rows_of(zip_trees(np.concatenate, store.final_obs, "obs"), order)

        valid = None if store.all_valid else store.valid[:size].copy()
        starts = np.concatenate(store.starts) if store.starts else None
        return cls(
            runner=runner,
            weights_seq_no=store.weights_seq_no,
            begins=begins,
            obs=map_tree(lambda leaf: leaf[: size + 1], store.obs),
            actions=store.actions[:size],
            rewards=store.rewards[:size],
            terminateds=store.terminateds[:size],
            truncateds=store.truncateds[:size],
            valid=valid,
            final_index=final_index[order],
            final_obs=final_obs,
            t_started=store.t_started.copy(),
            starts=starts,
            state_in=store.state_in,
            stats=stats,
            action_logp=store.action_logp,
            states=store.states_of(slice(size)) or None,
        )

    def has_acted(self, module_id: str) -> bool:
        """Return True: with one agent, its one module takes all steps."""
        return True

    def episodes(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> RolloutEpisodes:
        """Return the episodes and pieces of episodes of this fragment, in the form of `RolloutStore.episodes`."""
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
        """Write the steps into columns `envs` of a store.

        Args:
            store: The store.
            envs: Environments of the store that this fragment is written to.
            first: Row of the store for the fragment's first row.
            num_steps: Number of rows of the longest fragment of the same rollout.
        """
        size = self.num_steps
        rows = slice(first, first + size)
        for target, source in zip(leaves(store.obs), leaves(self.obs)):
            target[rows, envs] = source[:size]
            # The last observation belongs behind the rows of the longest fragment: later fragments begin there, and act
            # on it first.
            target[first + num_steps, envs] = source[size]
        for name in ("actions", "rewards", "terminateds", "truncateds"):
            getattr(store, name)[rows, envs] = getattr(self, name)
        store.valid[rows, envs] = True if self.valid is None else self.valid
        store.all_valid &= self.valid is None


@dataclass
class AgentFragment:
    """Episodes of several agents, and pieces of episodes, of the `k` environments of one runner.

    The names of the fields are keys of checkpoints.
    """

    runner: int
    """Index of the runner."""
    num_envs: int
    """Number of environments of the runner, k."""
    weights_seq_no: int
    """Version of the weights that acted."""
    pieces: list[tuple[MultiAgentEpisode, int]]
    """Each piece with the index of its environment among all environments of all runners, sorted by this index."""
    ended_in_step: np.ndarray
    """`[n]` vector step in which each episode ended."""
    stats: CollectStats
    """Statistics of the sample."""

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
    """Ended episodes of a runner that stores no steps, for evaluation. `stats` has their returns and lengths."""

    runner: int
    """Index of the runner."""
    ended_in_step: np.ndarray
    """`[n]` vector step in which each episode ended."""
    ended_in_env: np.ndarray
    """`[n]` index of each episode's environment among all environments of all runners."""
    stats: CollectStats
    """Statistics of the sample."""

    def __len__(self) -> int:
        """Number of transitions."""
        return self.stats.n_collected_steps


StoredFragment = Fragment | AgentFragment
"""Fragment with the steps of a runner."""
AnyFragment = StoredFragment | UnstoredFragment
"""Result of a runner's sample. All fragments of a group are of the same class."""


def rollout_of(
    fragments: Sequence[Fragment], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> RolloutStore:
    """Return a rollout with the environments of all fragments side by side, in the order of the fragments.

    Fragments that are shorter than the longest are padded with rows that do not count.
    """
    num_envs = sum(fragment.num_envs for fragment in fragments)
    longest = max(fragment.num_steps for fragment in fragments)
    store = RolloutStore(longest, num_envs, observation_space, action_space)
    append_fragments(fragments, store)
    return store


def append_fragments(fragments: Sequence[Fragment], store: RolloutStore, *, by_runner: bool = False) -> None:
    """Write fragments side by side behind the rows of a store, as one collector of all environments would.

    If a fragment begins new episodes, the running ones of its environments in the store are cut (`RolloutStore.cut`).

    Args:
        fragments: The fragments.
        store: The store that is written into.
        by_runner: Whether each fragment is written to the environments of its runner, some of which may be missing.
            Otherwise fragments get the store's environments in the order of `fragments`.
    """
    env_slices = _env_slices(fragments, by_runner)
    first = store.size
    num_steps = max(fragment.num_steps for fragment in fragments)

    begun = [envs.start + np.flatnonzero(fragment.begins) for fragment, envs in zip(fragments, env_slices)]
    begun_envs = np.concatenate(begun)
    if begun_envs.size:
        if store.size:
            store.cut(begun_envs)
        else:
            store.renew_episodes(begun_envs)

    store.ensure_room(first + num_steps)
    t_started = np.array(store.t_started)
    for fragment, envs in zip(fragments, env_slices):
        t_started[envs] = fragment.t_started
    store.begin_collect(t_started)
    if first == 0:
        _write_weights_and_states(fragments, env_slices, store)

    if store.actions.shape[1] == 0:
        # The column of actions has no shape before the first write.
        store.make_actions(fragments[0].actions.shape[2:], fragments[0].actions.dtype)
    if sum(fragment.rewards.size for fragment in fragments) < num_steps * store.num_envs:
        _write_padding(first, first + num_steps, store)
    for fragment, envs in zip(fragments, env_slices):
        fragment.write_to(store, envs, first, num_steps)

    for index, obs in _last_observations(fragments, env_slices, store.num_envs):
        store.final_index.append(first * store.num_envs + index)
        store.final_obs.append(obs)
        # `index` has the rows at which episodes ended, all of one vector step, so `t` has the same value everywhere. An
        # episode that is neither terminated nor truncated there was cut: its environment was lost or reset, or its
        # fragment is shorter than the rollout. The rows after it belong to another episode or are padding.
        t, envs_ended = divmod(store.final_index[-1], store.num_envs)
        cut_envs = envs_ended[~(store.terminateds[t, envs_ended] | store.truncateds[t, envs_ended])]
        if cut_envs.size:
            store.abandon_episodes(int(t[0]) + 1, cut_envs)

    if fragments[0].starts is not None:
        starts = [fragment.starts for fragment in fragments]
        store.starts.append(_side_by_side(starts, env_slices, num_steps, store.num_envs))
    if store.keeps_states:
        states = {
            name: _side_by_side(
                [fragment.states[name] for fragment in fragments], env_slices, num_steps, store.num_envs
            )
            for name in fragments[0].states
        }
        store.states += [{name: leaf[t] for name, leaf in states.items()} for t in range(num_steps)]
    # Only runners that sample while the policy learns return log-probabilities, and their rollout is written in one
    # call.
    if first == 0 and all(fragment.action_logp is not None for fragment in fragments):
        logp = [fragment.action_logp for fragment in fragments]
        store.action_logp = _side_by_side(logp, env_slices, num_steps, store.num_envs)

    store.end(first + num_steps, rows_of(store.obs, first + num_steps))


def _env_slices(fragments: Sequence[Fragment], by_runner: bool) -> list[slice]:
    """Return for each fragment the environments of the store that it is written to; see `append_fragments`."""
    env_slices = []
    stop = 0
    for fragment in fragments:
        start = fragment.runner * fragment.num_envs if by_runner else stop
        stop = start + fragment.num_envs
        env_slices.append(slice(start, stop))
    return env_slices


def _write_weights_and_states(fragments: Sequence[Fragment], env_slices: Sequence[slice], store: RolloutStore) -> None:
    """Write the versions of the weights, and the recurrent states before the first row, into an empty store."""
    versions = {fragment.weights_seq_no for fragment in fragments}
    store.weights_seq_no = max(versions)
    if len(versions) > 1:
        store.versions = np.full(store.num_envs, store.weights_seq_no)
        for fragment, envs in zip(fragments, env_slices):
            store.versions[envs] = fragment.weights_seq_no

    store.state_in = None
    if fragments[0].state_in is not None:
        store.state_in = {}
        for name in fragments[0].state_in:
            states = [fragment.state_in[name][None] for fragment in fragments]
            store.state_in[name] = _side_by_side(states, env_slices, 1, store.num_envs)[0]


def _write_padding(first: int, stop: int, store: RolloutStore) -> None:
    """Fill rows with zeros that do not count. Fragments are then written over them, as far as there are fragments."""
    for column in (store.actions, store.rewards, store.terminateds, store.truncateds, store.valid):
        column[first:stop] = 0
    for leaf in leaves(store.obs):
        leaf[first : stop + 1] = 0
    store.all_valid = False


def _last_observations(
    fragments: Sequence[Fragment], env_slices: Sequence[slice], num_envs: int
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Yield the flat rows with which episodes end, and the observations after these rows.

    There is one pair for each vector step, with ascending environments: the form in which one collector of all
    environments writes them, so that the bits of the rollout are the same.
    """
    all_indices = []
    all_obs = []
    longest = max(fragment.num_steps for fragment in fragments)
    for fragment, envs in zip(fragments, env_slices):
        ends = [(fragment.final_index, fragment.final_obs)]
        if fragment.num_steps < longest:
            # Padding follows the last row of a shorter fragment, so its running episodes are cut there.
            open_envs = fragment.still_open
            last_row = (fragment.num_steps - 1) * fragment.num_envs
            ends.append((last_row + open_envs, rows_of(fragment.obs, (-1, open_envs))))
        for index, obs in ends:
            if index.size:
                t, b = np.divmod(index, fragment.num_envs)
                all_indices.append(t * num_envs + envs.start + b)
                all_obs.append(obs)
    if not all_indices:
        return

    index = np.concatenate(all_indices)
    obs = zip_trees(np.concatenate, all_obs, "obs")
    order = np.argsort(index, kind="stable")
    index = index[order]
    first_of_steps = np.flatnonzero(np.diff(index // num_envs)) + 1
    for rows in np.split(np.arange(len(index)), first_of_steps):
        yield index[rows], rows_of(obs, order[rows])


def _side_by_side(parts: Sequence[Any], env_slices: Sequence[slice], num_steps: int, num_envs: int) -> np.ndarray:
    """Return one column `[num_steps, num_envs, ...]` of the columns `[t, k, ...]` of fragments, padded with zeros."""
    column = np.zeros((num_steps, num_envs, *parts[0].shape[2:]), parts[0].dtype)
    for part, envs in zip(parts, env_slices):
        column[: len(part), envs] = part
    return column
