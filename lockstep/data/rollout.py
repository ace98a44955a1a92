"""`RolloutStore`, where a collector writes in time-major columns, and `EpisodeStore` for several agents."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, overload

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from lockstep.data.actions import COMPOSITE, action_width
from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.sample_batch import concat_samples_into_ma_batch
from lockstep.data.training_buffer import TrainingBuffer
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, allocate, leaves, map_tree, rows_of, zip_trees


class RolloutStore(TrainingBuffer):
    """The on-policy buffer: columns `[T, B, ...]`, observations `[T + 1, B, ...]`.

    `num_steps` is the capacity in vector steps; it grows (doubling) where an unknown number is collected. The store
    is empty after `clear()`, which keeps the last observation as the first one of the next rollout.
    """

    takes_logp: ClassVar[bool] = True
    """Whether `record_logp` may be called."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
    ) -> None:
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"num_steps and num_envs must be at least 1, not {num_steps} and {num_envs}")
        self.num_envs = num_envs
        self.num_steps = num_steps
        self.observation_space, self.action_space = observation_space, action_space
        self.size = 0
        """vector steps written"""
        self.obs: Tree = allocate(observation_space, num_steps + 1, num_envs, make=np.empty)
        self._needs_actions = True
        self.actions: np.ndarray = np.empty((num_steps, 0))
        """as learned from; shape and dtype come with the first ones written"""
        self.rewards = np.empty((num_steps, num_envs), np.float32)
        self.terminateds = np.empty((num_steps, num_envs), bool)
        self.truncateds = np.empty((num_steps, num_envs), bool)
        self.valid = np.ones((num_steps, num_envs), bool)
        self.all_valid = True
        self.final_index: list[np.ndarray] = []
        """flat rows at which an episode ended (or was left by a reset), in pieces"""
        self.final_obs: list[Tree] = []
        """their true next observations"""
        self.episode_ids = np.arange(num_envs, dtype=np.int64)
        """id of the episode each environment is in at the first row"""
        self.t_started = np.zeros(num_envs, np.int64)
        """steps of that episode before the first row; the collector tells it with the first row"""
        self.t_started_later: dict[int, np.ndarray] = {}
        """the same of later collects into one rollout, by their first row"""
        self.next_episode_id = num_envs
        self.times_emptied = 0
        self.starts: list[np.ndarray] = []
        """of a recurrent policy: `[t, num_envs]` bool in pieces, rows before which it forgot"""
        self.state_in: Tree = None
        """of a recurrent policy: its state before the first row, `{name: [num_envs, ...]}`"""
        self.keeps_states = False
        """whether the state before each row is wanted, too"""
        self.states: list[dict[str, np.ndarray]] = []
        """that state, `{name: [num_envs, ...]}` for each row"""
        self.weights_seq_no = 0
        """version of the weights that acted"""
        self.versions: np.ndarray | None = None
        """[B] the same, where environments differ; None where they do not"""
        self.action_logp: np.ndarray | None = None
        """[T, B] log-probabilities under the policy that acted; None where it is the one that learns"""

    def __len__(self) -> int:
        """Return the number of real transitions."""
        if self.all_valid:
            return self.size * self.num_envs
        return int(np.count_nonzero(self.valid[: self.size]))

    @property
    def buffer(self) -> Any:
        """The buffer that is learned from: this store, or the replay buffer that a subclass hands its steps on to."""
        return self

    def sampler_versions(self) -> np.ndarray:
        """Return the version [N] of the weights that acted, for each real transition."""
        if self.versions is None:
            return np.full(len(self), self.weights_seq_no)
        return np.broadcast_to(self.versions, (self.size, self.num_envs))[self.valid[: self.size]]

    def ensure_room(self, num_steps: int) -> None:
        """Make room for at least `num_steps` vector steps in all."""
        if num_steps <= self.num_steps:
            return
        old, self.num_steps = self.num_steps, max(num_steps, 2 * self.num_steps)

        def grown(leaf: np.ndarray) -> np.ndarray:
            new = np.empty((leaf.shape[0] - old + self.num_steps, *leaf.shape[1:]), leaf.dtype)
            new[: leaf.shape[0]] = leaf
            return new

        self.obs = map_tree(grown, self.obs)
        self.actions, self.rewards = grown(self.actions), grown(self.rewards)
        self.terminateds, self.truncateds = grown(self.terminateds), grown(self.truncateds)
        self.valid = grown(self.valid)
        self.valid[old:] = True
        if self.action_logp is not None:
            self.action_logp = grown(self.action_logp)
            self.action_logp[old:] = np.nan

    def record_logp(self) -> None:
        """Make the column of log-probabilities, NaN where none is written."""
        if self.action_logp is None:
            self.action_logp = np.full((self.num_steps, self.num_envs), np.nan, np.float32)

    def write_logp(self, t: int, logp: np.ndarray) -> None:
        """Write `logp` `[B]` of the actions of vector step `t`, from the policy that acted (after `record_logp`)."""
        if self.action_logp is not None:
            self.action_logp[t] = logp

    def write_obs(self, t: int, obs: Tree) -> None:
        """Write `obs` `[B, ...]` that vector step `t` begins with."""
        if type(self.obs) is np.ndarray:
            self.obs[t] = obs
        else:
            for target, source in zip(leaves(self.obs), leaves(obs)):
                target[t] = source

    def write_step(
        self, t: int, actions: np.ndarray, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray
    ) -> None:
        """Write vector step `t`: `actions` `[B, ...]` as learned from, rewards and flags `[B]`."""
        if self._needs_actions:
            self.make_actions(actions.shape[1:], actions.dtype)
        self.actions[t] = actions
        self.rewards[t] = rewards
        self.terminateds[t] = terminateds
        self.truncateds[t] = truncateds

    def states_of(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the states before some rows, `{name: [T, num_envs, ...]}`; empty where none were kept."""
        kept = self.states[rows]
        return {name: np.stack([state[name] for state in kept]) for name in (kept[0] if kept else ())}

    def make_actions(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Make the column of actions, of `shape` each."""
        self.actions = np.empty((self.num_steps, self.num_envs, *shape), dtype)
        self._needs_actions = False

    def end(self, size: int, obs: Tree) -> Tree:
        """End a collect of `size` vector steps, which `obs` follows; return it from the store's own memory."""
        self.size = size
        self.write_obs(size, obs)
        return rows_of(self.obs, size)

    def begin_collect(self, lengths: np.ndarray) -> None:
        """Note `lengths` `[B]`: the steps of each environment's episode before the row that comes next."""
        if self.size == 0:
            self.t_started[:] = lengths
        else:
            self.t_started_later[self.size] = lengths.copy()

    def mark_valid(self, t: int, valid: np.ndarray | None, counting: np.ndarray | None) -> None:
        """Note which rows of vector step `t` are transitions that count."""
        row = counting if valid is None else valid if counting is None else valid & counting
        if row is not None and not row.all():
            self.valid[t] = row
            self.all_valid = False

    def get_state(self) -> dict[str, Any]:
        """Return the ids of the running episodes (the store is empty between updates)."""
        return {"episode_ids": self.episode_ids.copy(), "next_episode_id": self.next_episode_id}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue the episodes of `get_state` with an empty store."""
        self._empty()
        self.episode_ids = state["episode_ids"].copy()
        self.next_episode_id = int(state["next_episode_id"])

    def clear(self) -> None:
        """Empty the store; episodes that go on keep their ids."""
        if self.size:
            num_ended = self.ends().sum(axis=0)
            self.episode_ids = np.where(num_ended > 0, self.first_new_ids() + num_ended - 1, self.episode_ids)
            self.next_episode_id += int(num_ended.sum())
        self._empty()

    def _empty(self) -> None:
        self.size, self.all_valid, self.final_index, self.final_obs = 0, True, [], []
        self.times_emptied += 1
        self.starts, self.state_in, self.states, self.action_logp = [], None, [], None
        self.versions, self.t_started_later = None, {}
        self.valid[:] = True

    def drop_after(self, size: int) -> None:
        """Forget what was written after the first `size` vector steps (of a collect that failed)."""
        kept = [(index, obs) for index, obs in zip(self.final_index, self.final_obs) if index[0] < size * self.num_envs]
        self.final_index, self.final_obs = [index for index, _ in kept], [obs for _, obs in kept]
        self.size = size
        del self.states[size:]
        if self.starts:
            self.starts = [np.concatenate(self.starts)[:size]]
        self.valid[size:] = True
        self.all_valid = bool(self.valid[:size].all())
        if self.action_logp is not None:
            self.action_logp[size:] = np.nan

    def cut(self, envs: np.ndarray | None = None) -> None:
        """Leave the episodes under way after the last row: what follows are new ones, nothing reaches across.

        The left episodes are neither terminated nor truncated; their last observations are kept for bootstrapping.
        `envs`: in these environments only.
        """
        if self.size:
            open_envs = np.flatnonzero(~self.ends()[-1])
            self._leave(self.size, open_envs if envs is None else np.intersect1d(open_envs, envs))

    def _leave(self, t: int, envs: np.ndarray) -> None:
        """Leave the episodes of these environments behind before row `t`."""
        if envs.size:
            self.final_index.append((t - 1) * self.num_envs + envs)
            self.final_obs.append(rows_of(self.obs, (t, envs)))

    def abandon_episodes(self, t: int, envs: np.ndarray) -> None:
        """Leave the episodes under way in these environments before row `t`, which is no transition of theirs.

        What was written of them stays, cut after its last row.
        """
        if t == 0:
            self.t_started[envs] = 0
            self.renew_episodes(envs)
            return
        if t in self.t_started_later:
            self.t_started_later[t][envs] = 0
        ended = np.isin((t - 1) * self.num_envs + envs, np.concatenate([[-1], *self.final_index]))
        self._leave(t, envs[~ended & self.valid[t - 1, envs]])

    def begin_in_mid_episode(self, ended: np.ndarray) -> None:
        """Take the next steps of episodes whose earlier steps are stored elsewhere; those stored here are left.

        `ended` `[B]`: whether the next row of an environment begins an episode.
        """
        self.cut()

    def reset_buffer(self, running: np.ndarray, keep_statistics: bool) -> None:
        """Empty the buffer. `running` `[B]`: whether an environment has an episode under way, which continues without
        its beginning."""
        self.clear()

    def restart(self) -> None:
        """Empty the store and begin a new episode in every environment."""
        self.clear()
        self.renew_episodes(np.arange(self.num_envs))

    def renew_episodes(self, envs: np.ndarray) -> None:
        """Begin new episodes in these environments with the next row of an empty store."""
        self.episode_ids[envs] = np.arange(self.next_episode_id, self.next_episode_id + len(envs))
        self.next_episode_id += len(envs)

    def trajectories(self) -> Trajectories:
        """Return what was collected, as views; only the bootstrap observations are gathered."""
        size, num_envs = self.size, self.num_envs
        if size == 0:
            raise ValueError("the rollout store is empty: collect before learning")
        terminateds, dones = self.terminateds[:size], self.ends()
        cuts = dones & ~terminateds
        open_envs = np.flatnonzero(~dones[-1])
        cuts[-1, open_envs] = True
        index = np.concatenate([(size - 1) * num_envs + open_envs, *self.final_index]).astype(np.int64)
        last = zip_trees(np.concatenate, [rows_of(self.obs, (size, open_envs)), *self.final_obs], "obs")
        ended = terminateds.reshape(-1)[index]
        return Trajectories(
            obs=map_tree(lambda leaf: leaf[:size], self.obs),
            actions=self.actions[:size],
            rewards=self.rewards[:size],
            terminateds=terminateds,
            cuts=cuts,
            dones=dones,
            bootstrap_index=index[~ended],
            bootstrap_obs=rows_of(last, ~ended),
            valid=None if self.all_valid else self.valid[:size],
            starts=np.concatenate(self.starts) if self.starts else None,
            state_index=None if self.state_in is None else np.arange(num_envs),
            states=self.state_in,
            action_logp=None if self.action_logp is None else self.action_logp[:size],
            truncateds=self.truncateds[:size],
            terminal_index=index[ended],
            terminal_obs=rows_of(last, ended),
        )

    def episodes(self) -> RolloutEpisodes:
        """Return the pieces of episodes in the store, as views made when they are asked for."""
        return RolloutEpisodes(self)

    def ends(self) -> np.ndarray:
        """Return [T, B] bool: an episode ended here, or was left by a reset."""
        ends = np.zeros((self.size, self.num_envs), bool)
        for index in self.final_index:
            ends.reshape(-1)[index] = True
        return ends

    @property
    def num_bytes(self) -> int:
        columns = [*leaves(self.obs), self.rewards, self.terminateds, self.truncateds, self.valid]
        # The column of actions is made with the first ones written.
        space = self.action_space
        is_whole = not isinstance(space, COMPOSITE) and np.issubdtype(space.dtype, np.integer)
        action = action_width(space) * (8 if is_whole else 4)
        return sum(column.nbytes for column in columns) + self.num_steps * self.num_envs * action

    def columns(self) -> dict[str, Any]:
        """Return copies of the columns `[T, B, ...]`."""
        trajectories = self.trajectories()
        names = ("obs", "actions", "rewards", "terminateds", "cuts", "bootstrap_index", "bootstrap_obs")
        return {name: map_tree(np.array, getattr(trajectories, name)) for name in names}

    def first_new_ids(self) -> np.ndarray:
        """Return the id [B] of the first episode that each environment began within the rollout."""
        num_ended = self.ends().sum(axis=0)
        return self.next_episode_id + np.cumsum(num_ended) - num_ended


class RolloutEpisodes(Sequence[SingleAgentEpisode]):
    """The episodes of one rollout: a sequence whose items are views on the store.

    A learner that is handed this object reads the store's columns at once and makes no episode at all.
    """

    def __init__(self, store: RolloutStore) -> None:
        self.store = store
        self._written = store.times_emptied, store.size
        self._items: list[SingleAgentEpisode] | None = None

    def is_whole(self, episodes: Sequence[SingleAgentEpisode]) -> bool:
        """Return whether `episodes` are all of these, each once and unchanged, and the store still holds them."""
        if self._written != (self.store.times_emptied, self.store.size) or len(episodes) != len(self):
            return False
        unchanged = all(episode.source is self and episode.is_numpy for episode in episodes)
        return unchanged and len(set(map(id, episodes))) == len(episodes)

    def trajectories(self) -> Trajectories:
        """Return the columns behind all these episodes."""
        return self.store.trajectories()

    def env_steps(self) -> int:
        """Return the number of environment steps, without making an episode."""
        return len(self.store)

    def copy(self) -> RolloutEpisodes:
        """Return the episodes of a copy of the store. Spaces are shared."""
        store = self.store
        shared = (store.observation_space, store.action_space)
        return RolloutEpisodes(copy.deepcopy(store, {id(space): space for space in shared}))

    def __len__(self) -> int:
        return len(self._made())

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        return self._made()[index]

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return iter(self._made())

    def _made(self) -> list[SingleAgentEpisode]:
        if self._items is None:
            store = self.store
            final = {
                int(row): rows_of(obs, k)
                for index, obs in zip(store.final_index, store.final_obs)
                for k, row in enumerate(index)
            }
            ends, first_new = store.ends(), store.first_new_ids()
            self._items = [
                episode
                for b in range(store.num_envs)
                for episode in self._of_env(b, ends[:, b], int(first_new[b]), final)
            ]
        return self._items

    def _of_env(
        self, b: int, ends: np.ndarray, first_new: int, final: Mapping[int, Tree]
    ) -> Iterator[SingleAgentEpisode]:
        store = self.store
        rows = np.flatnonzero(store.valid[: store.size, b])
        if rows.size == 0:
            return
        # rows that do not count are in no piece: an episode that goes on after them has one before and one behind
        for piece in np.split(rows, np.flatnonzero(ends[rows[:-1]] | (np.diff(rows) > 1)) + 1):
            start, stop = int(piece[0]), int(piece[-1]) + 1
            last = final.get((stop - 1) * store.num_envs + b)
            num_ended = int(ends[:start].sum())
            first = num_ended == 0
            episode = SingleAgentEpisode.view(
                id_=str(int(store.episode_ids[b]) if first else first_new + num_ended - 1),
                observations=rows_of(store.obs, (slice(start, stop), b)),
                last_observation=rows_of(store.obs, (stop, b)) if last is None else last,
                actions=store.actions[start:stop, b],
                rewards=store.rewards[start:stop, b],
                extra_model_outputs=(
                    None if store.action_logp is None else {Columns.ACTION_LOGP: store.action_logp[start:stop, b]}
                ),
                terminated=bool(store.terminateds[stop - 1, b]),
                truncated=bool(store.truncateds[stop - 1, b]),
                t_started=self._steps_before(b, start, ends),
                observation_space=store.observation_space,
                action_space=store.action_space,
            )
            episode.source = self
            if start == 0 and store.state_in is not None:
                episode.custom_data[Columns.STATE_IN] = {"t": episode.t_started, "state": rows_of(store.state_in, b)}
            yield episode

    def _steps_before(self, b: int, row: int, ends: np.ndarray) -> int:
        """Return the steps of the environment's episode before `row`, which is the first of a piece."""
        begun = {0: self.store.t_started} | self.store.t_started_later
        collect = max(first for first in begun if first <= row)
        return 0 if ends[collect:row].any() else int(begun[collect][b])


class EpisodeStore(TrainingBuffer):
    """(Pieces of) episodes of several agents in the order in which they came: what `RolloutStore` is for one agent."""

    num_added: ClassVar[int] = 0
    """Constant. A writer compares it to see whether others wrote meanwhile, and here that does not matter: each piece
    says itself which episode it belongs to."""

    def __init__(self) -> None:
        self.pieces: list[tuple[MultiAgentEpisode, int]] = []
        """each with the index of its environment"""

    def __len__(self) -> int:
        """Return the number of episodes or pieces."""
        return len(self.pieces)

    @property
    def size(self) -> int:
        """Environment steps in it."""
        return sum(len(episode) for episode, _ in self.pieces)

    def check_agents(self, agents: Mapping[str, Sequence[AgentID]], module_ids: Collection[str], num_envs: int) -> None:
        """Do nothing: there is room for episodes of any agents. `MultiAgentReplayBuffer` has buffers for some only."""

    def fit(self, agents: Mapping[str, Sequence[AgentID]], ignored: Collection[str] = ()) -> None:
        """Do nothing: episodes are not divided by module."""

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Keep pieces, of whichever environments."""
        self.pieces += pieces

    def cut(self, env_index: int) -> None:
        """Leave the episode under way in this environment; pieces know where they end, so nothing is to do."""

    def episodes(self) -> list[MultiAgentEpisode]:
        """Return what `update_from_episodes` takes."""
        return [episode for episode, _ in self.pieces]

    def clear(self) -> None:
        """Empty the store."""
        self.pieces.clear()

    reset = clear

    def columns(self) -> dict[str, Any]:
        """Return `{module_id: {column: [N, ...]}}` of all that is in it, numbers only."""
        names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
        batches = [episode.get_sample_batch() for episode in self.episodes()]
        whole = concat_samples_into_ma_batch(batches, on_missing="drop")
        return {module_id: {name: rows[name] for name in names} for module_id, rows in whole.policy_batches.items()}
