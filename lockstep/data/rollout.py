"""On-policy buffers on the host: `RolloutStore` with time-major columns, and `EpisodeStore` for several agents."""

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
    """On-policy buffer of one agent: columns `[T, B, ...]`, and observations `[T + 1, B, ...]`.

    T is the capacity in vector steps. It doubles if a collect of unknown length needs more. A collector writes each
    vector step once; batches and episodes are views on the columns.

    An episode that a reset interrupts is *abandoned*: it is cut after its last row and bootstrapped from its last
    observation, like a truncated one.

    Args:
        num_steps: Capacity in vector steps, T.
        num_envs: Number of environments, B.
        observation_space: Space of a single observation.
        action_space: Space of a single action of the environment.

    Raises:
        ValueError: `num_steps` or `num_envs` is below 1.
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
        self.observation_space = observation_space
        self.action_space = action_space
        self.size = 0
        """Number of vector steps written."""

        self.obs: Tree = allocate(observation_space, num_steps + 1, num_envs, make=np.empty)
        self._needs_actions = True
        self.actions: np.ndarray = np.empty((num_steps, 0))
        """Actions in the policy's form. The column is made with the first actions, which give its shape and dtype."""
        self.rewards = np.empty((num_steps, num_envs), np.float32)
        self.terminateds = np.empty((num_steps, num_envs), bool)
        self.truncateds = np.empty((num_steps, num_envs), bool)
        self.valid = np.ones((num_steps, num_envs), bool)
        """Rows that are transitions. Others are, for example, the reset rows of NEXT_STEP autoreset."""
        self.all_valid = True

        self.final_index: list[np.ndarray] = []
        """Flat rows at which an episode ended or was abandoned, in pieces."""
        self.final_obs: list[Tree] = []
        """True next observations of these rows. The row below holds the first observation of the next episode."""

        self.episode_ids = np.arange(num_envs, dtype=np.int64)
        """Id of the episode that each environment is in at the first row, `[B]`."""
        self.t_started = np.zeros(num_envs, np.int64)
        """Number of steps of that episode before the first row, `[B]`. The collector sets it."""
        self.t_started_later: dict[int, np.ndarray] = {}
        """The same for later collects into the rollout, by their first row."""
        self.next_episode_id = num_envs
        self.times_emptied = 0
        """Version of the content: episodes of an earlier rollout are recognized by it."""

        self.starts: list[np.ndarray] = []
        """Rows before which a recurrent policy was reset, bool `[t, B]` in pieces. Empty for other policies."""
        self.state_in: Tree = None
        """State of a recurrent policy before the first row, `{name: [B, ...]}`."""
        self.keeps_states = False
        """Whether the state before every row is stored as well."""
        self.states: list[dict[str, np.ndarray]] = []
        """State before each row, `{name: [B, ...]}`."""

        self.weights_seq_no = 0
        """Version of the weights that acted."""
        self.versions: np.ndarray | None = None
        """Versions of the weights by environment, `[B]`. None if all environments have the same."""
        self.action_logp: np.ndarray | None = None
        """Log-probabilities `[T, B]` of the actions under the policy that acted. None if it is the policy that learns,
        which computes them before the update."""

    def __len__(self) -> int:
        """Return the number of transitions."""
        if self.all_valid:
            return self.size * self.num_envs
        return int(np.count_nonzero(self.valid[: self.size]))

    @property
    def buffer(self) -> Any:
        """The buffer to learn from: this store, or the replay buffer to which a subclass passes the steps on."""
        return self

    def sampler_versions(self) -> np.ndarray:
        """Return the version of the weights that acted in each transition, `[N]`."""
        if self.versions is None:
            return np.full(len(self), self.weights_seq_no)
        return np.broadcast_to(self.versions, (self.size, self.num_envs))[self.valid[: self.size]]

    def ensure_room(self, num_steps: int) -> None:
        """Enlarge the store to at least `num_steps` vector steps."""
        if num_steps <= self.num_steps:
            return
        old_num_steps = self.num_steps
        self.num_steps = max(num_steps, 2 * old_num_steps)

        def grown(leaf: np.ndarray) -> np.ndarray:
            # Observations have one row more than the other columns.
            num_rows = leaf.shape[0] - old_num_steps + self.num_steps
            new = np.empty((num_rows, *leaf.shape[1:]), leaf.dtype)
            new[: leaf.shape[0]] = leaf
            return new

        self.obs = map_tree(grown, self.obs)
        self.actions = grown(self.actions)
        self.rewards = grown(self.rewards)
        self.terminateds = grown(self.terminateds)
        self.truncateds = grown(self.truncateds)
        self.valid = grown(self.valid)
        self.valid[old_num_steps:] = True
        if self.action_logp is not None:
            self.action_logp = grown(self.action_logp)
            self.action_logp[old_num_steps:] = np.nan

    def record_logp(self) -> None:
        """Make the column of log-probabilities. Rows are NaN until they are written."""
        if self.action_logp is None:
            self.action_logp = np.full((self.num_steps, self.num_envs), np.nan, np.float32)

    def write_logp(self, t: int, logp: np.ndarray) -> None:
        """Write the log-probabilities `[B]` of the actions of vector step `t`, if `record_logp` has made a column."""
        if self.action_logp is not None:
            self.action_logp[t] = logp

    def write_obs(self, t: int, obs: Tree) -> None:
        """Write the observations `[B, ...]` on which vector step `t` acts."""
        if type(self.obs) is np.ndarray:
            self.obs[t] = obs
        else:
            for target, source in zip(leaves(self.obs), leaves(obs)):
                target[t] = source

    def write_step(
        self, t: int, actions: np.ndarray, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray
    ) -> None:
        """Write vector step `t`: actions `[B, ...]` in the policy's form, rewards `[B]` and flags `[B]`."""
        if self._needs_actions:
            self.make_actions(actions.shape[1:], actions.dtype)
        self.actions[t] = actions
        self.rewards[t] = rewards
        self.terminateds[t] = terminateds
        self.truncateds[t] = truncateds

    def states_of(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the states before the given rows, `{name: [T, B, ...]}`; an empty dict if none are stored."""
        states = self.states[rows]
        names = states[0] if states else ()
        return {name: np.stack([state[name] for state in states]) for name in names}

    def make_actions(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Make the column of actions. `shape` is that of a single action."""
        self.actions = np.empty((self.num_steps, self.num_envs, *shape), dtype)
        self._needs_actions = False

    def end(self, size: int, obs: Tree) -> Tree:
        """End a collect after vector step `size`, and write the observations that follow it.

        Return them as views on the store, which the next rollout begins with.
        """
        self.size = size
        self.write_obs(size, obs)
        return rows_of(self.obs, size)

    def begin_collect(self, lengths: np.ndarray) -> None:
        """Begin a collect. `lengths` `[B]` are the steps of each environment's episode before the first row."""
        if self.size == 0:
            self.t_started[:] = lengths
        else:
            self.t_started_later[self.size] = lengths.copy()

    def mark_valid(self, t: int, valid: np.ndarray | None, counting: np.ndarray | None) -> None:
        """Mark which rows of vector step `t` are transitions to learn from.

        Args:
            t: Vector step.
            valid: Rows that are transitions, bool `[B]`. None for all.
            counting: Rows that belong to the collect, bool `[B]`. None for all.
        """
        row = valid
        if row is None:
            row = counting
        elif counting is not None:
            row = valid & counting
        if row is not None and not row.all():
            self.valid[t] = row
            self.all_valid = False

    def get_state(self) -> dict[str, Any]:
        """Return the ids of the running episodes. The columns need no state: the store is empty between updates."""
        return {"episode_ids": self.episode_ids.copy(), "next_episode_id": self.next_episode_id}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue the episodes of a state of `get_state` with an empty store."""
        self._empty()
        self.episode_ids = state["episode_ids"].copy()
        self.next_episode_id = int(state["next_episode_id"])

    def clear(self) -> None:
        """Empty the store. Episodes that continue keep their ids."""
        if self.size:
            num_ended = self.ends().sum(axis=0)
            # The running episode of an environment is the last one that began in it.
            self.episode_ids = np.where(num_ended > 0, self.first_new_ids() + num_ended - 1, self.episode_ids)
            self.next_episode_id += int(num_ended.sum())
        self._empty()

    def _empty(self) -> None:
        self.size = 0
        self.times_emptied += 1
        self.valid[:] = True
        self.all_valid = True
        self.final_index = []
        self.final_obs = []
        self.starts = []
        self.state_in = None
        self.states = []
        self.action_logp = None
        self.versions = None
        self.t_started_later = {}

    def drop_after(self, size: int) -> None:
        """Drop all rows after the first `size` vector steps, after a collect that failed."""
        final_index = []
        final_obs = []
        for index, obs in zip(self.final_index, self.final_obs):
            if index[0] < size * self.num_envs:
                final_index.append(index)
                final_obs.append(obs)
        self.final_index = final_index
        self.final_obs = final_obs

        self.size = size
        del self.states[size:]
        if self.starts:
            self.starts = [np.concatenate(self.starts)[:size]]
        self.valid[size:] = True
        self.all_valid = bool(self.valid[:size].all())
        if self.action_logp is not None:
            self.action_logp[size:] = np.nan

    def cut(self, envs: np.ndarray | None = None) -> None:
        """Abandon the running episodes after the last row, in all environments or in `envs`.

        The next rows belong to new episodes. The abandoned ones are neither terminated nor truncated, and their last
        observations are kept for bootstrapping.
        """
        if self.size:
            open_envs = np.flatnonzero(~self.ends()[-1])
            self._abandon(self.size, open_envs if envs is None else np.intersect1d(open_envs, envs))

    def _abandon(self, t: int, envs: np.ndarray) -> None:
        if envs.size:
            self.final_index.append((t - 1) * self.num_envs + envs)
            self.final_obs.append(rows_of(self.obs, (t, envs)))

    def abandon_episodes(self, t: int, envs: np.ndarray) -> None:
        """Abandon the running episodes of `envs` before row `t`, which does not belong to them.

        Their earlier rows stay.
        """
        if t == 0:
            self.t_started[envs] = 0
            self.renew_episodes(envs)
            return
        if t in self.t_started_later:
            self.t_started_later[t][envs] = 0
        # Nothing is abandoned where the row before ended its episode, or is not a transition.
        ended = np.isin((t - 1) * self.num_envs + envs, np.concatenate([[-1], *self.final_index]))
        self._abandon(t, envs[~ended & self.valid[t - 1, envs]])

    def begin_in_mid_episode(self, ended: np.ndarray) -> None:
        """Abandon the stored episodes: the next rows continue episodes whose earlier steps another buffer stores.

        `ended` `[B]` says whether the next row of an environment begins an episode.
        """
        self.cut()

    def reset_buffer(self, running: np.ndarray, keep_statistics: bool) -> None:
        """Empty the buffer.

        `running` `[B]` marks the environments with a running episode, which continues without its earlier steps.
        """
        self.clear()

    def restart(self) -> None:
        """Empty the store and begin a new episode in every environment."""
        self.clear()
        self.renew_episodes(np.arange(self.num_envs))

    def renew_episodes(self, envs: np.ndarray) -> None:
        """Give new episode ids to these environments, from the first row of an empty store on."""
        self.episode_ids[envs] = np.arange(self.next_episode_id, self.next_episode_id + len(envs))
        self.next_episode_id += len(envs)

    def trajectories(self) -> Trajectories:
        """Return the collected rows as views. Only the bootstrap observations are copied.

        Raises:
            ValueError: the store is empty.
        """
        size = self.size
        num_envs = self.num_envs
        if size == 0:
            raise ValueError("the rollout store is empty: collect before learning")

        terminateds = self.terminateds[:size]
        dones = self.ends()
        cuts = dones & ~terminateds
        open_envs = np.flatnonzero(~dones[-1])
        cuts[-1, open_envs] = True  # the data ends there

        # Flat rows whose next observation is not in the row below: the last ones, and ends of episodes.
        index = np.concatenate([(size - 1) * num_envs + open_envs, *self.final_index]).astype(np.int64)
        last_obs = zip_trees(np.concatenate, [rows_of(self.obs, (size, open_envs)), *self.final_obs], "obs")
        is_terminal = terminateds.reshape(-1)[index]
        trajectories = Trajectories(
            obs=map_tree(lambda leaf: leaf[:size], self.obs),
            actions=self.actions[:size],
            rewards=self.rewards[:size],
            terminateds=terminateds,
            cuts=cuts,
            dones=dones,
            bootstrap_index=index[~is_terminal],
            bootstrap_obs=rows_of(last_obs, ~is_terminal),
            truncateds=self.truncateds[:size],
            terminal_index=index[is_terminal],
            terminal_obs=rows_of(last_obs, is_terminal),
        )
        if not self.all_valid:
            trajectories.valid = self.valid[:size]
        if self.starts:
            trajectories.starts = np.concatenate(self.starts)
        if self.state_in is not None:
            trajectories.state_index = np.arange(num_envs)
            trajectories.states = self.state_in
        if self.action_logp is not None:
            trajectories.action_logp = self.action_logp[:size]
        return trajectories

    def episodes(self) -> RolloutEpisodes:
        """Return the episodes in the store, whole or in pieces. They are made, as views, when they are read."""
        return RolloutEpisodes(self)

    def ends(self) -> np.ndarray:
        """Return the rows at which an episode ended or was abandoned, bool `[T, B]`."""
        ends = np.zeros((self.size, self.num_envs), bool)
        for index in self.final_index:
            ends.reshape(-1)[index] = True
        return ends

    @property
    def num_bytes(self) -> int:
        columns = [*leaves(self.obs), self.rewards, self.terminateds, self.truncateds, self.valid]
        # The column of actions is made with the first actions, so its size is computed from the space.
        space = self.action_space
        is_integer = not isinstance(space, COMPOSITE) and np.issubdtype(space.dtype, np.integer)
        bytes_per_action = action_width(space) * (8 if is_integer else 4)
        return sum(column.nbytes for column in columns) + self.num_steps * self.num_envs * bytes_per_action

    def columns(self) -> dict[str, Any]:
        """Return copies of the columns `[T, B, ...]`."""
        trajectories = self.trajectories()
        names = ("obs", "actions", "rewards", "terminateds", "cuts", "bootstrap_index", "bootstrap_obs")
        return {name: map_tree(np.array, getattr(trajectories, name)) for name in names}

    def first_new_ids(self) -> np.ndarray:
        """Return the id of the first episode that each environment began within the rollout, `[B]`.

        New ids are consecutive, environment after environment: each has as many as episodes ended in it.
        """
        num_ended = self.ends().sum(axis=0)
        return self.next_episode_id + np.cumsum(num_ended) - num_ended


class RolloutEpisodes(Sequence[SingleAgentEpisode]):
    """Sequence of the episodes of one rollout, which are views on the store.

    A learner that gets this object reads the columns of the store and makes no episode at all.
    """

    def __init__(self, store: RolloutStore) -> None:
        self.store = store
        self._version = (store.times_emptied, store.size)
        self._items: list[SingleAgentEpisode] | None = None

    def is_whole(self, episodes: Sequence[SingleAgentEpisode]) -> bool:
        """Return whether `episodes` are all items, each once and unchanged, and the store still holds them."""
        if self._version != (self.store.times_emptied, self.store.size) or len(episodes) != len(self):
            return False
        unchanged = all(episode.source is self and episode.is_numpy for episode in episodes)
        return unchanged and len(set(map(id, episodes))) == len(episodes)

    def trajectories(self) -> Trajectories:
        """Return the columns of all episodes."""
        return self.store.trajectories()

    def env_steps(self) -> int:
        """Return the number of environment steps. No episode is made for it."""
        return len(self.store)

    def copy(self) -> RolloutEpisodes:
        """Return the episodes of a copy of the store. The spaces are shared."""
        store = self.store
        spaces_by_id = {id(space): space for space in (store.observation_space, store.action_space)}
        return RolloutEpisodes(copy.deepcopy(store, spaces_by_id))

    def __len__(self) -> int:
        return len(self._episodes())

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        return self._episodes()[index]

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return iter(self._episodes())

    def _episodes(self) -> list[SingleAgentEpisode]:
        """Return all episodes, environment by environment. They are made at the first call."""
        if self._items is None:
            store = self.store
            final_obs: dict[int, Tree] = {}
            for index, obs in zip(store.final_index, store.final_obs):
                for k, row in enumerate(index):
                    final_obs[int(row)] = rows_of(obs, k)

            ends = store.ends()
            first_new_ids = store.first_new_ids()
            self._items = []
            for b in range(store.num_envs):
                self._items += self._episodes_of_env(b, ends[:, b], int(first_new_ids[b]), final_obs)
        return self._items

    def _episodes_of_env(
        self, b: int, ends: np.ndarray, first_new_id: int, final_obs: Mapping[int, Tree]
    ) -> Iterator[SingleAgentEpisode]:
        """Iterate over the episodes of environment `b`.

        Args:
            b: Number of the environment.
            ends: Rows at which its episodes end, bool `[T]`.
            first_new_id: Id of the first episode that began within the rollout.
            final_obs: True next observations by flat row.
        """
        store = self.store
        rows = np.flatnonzero(store.valid[: store.size, b])
        if rows.size == 0:
            return

        # Rows that are no transitions are in no piece: an episode that continues after them becomes two pieces.
        begins_piece = ends[rows[:-1]] | (np.diff(rows) > 1)
        for piece in np.split(rows, np.flatnonzero(begins_piece) + 1):
            start = int(piece[0])
            stop = int(piece[-1]) + 1
            num_ended = int(ends[:start].sum())
            episode_id = int(store.episode_ids[b]) if num_ended == 0 else first_new_id + num_ended - 1

            last_obs = final_obs.get((stop - 1) * store.num_envs + b)
            if last_obs is None:
                last_obs = rows_of(store.obs, (stop, b))
            extra_model_outputs = None
            if store.action_logp is not None:
                extra_model_outputs = {Columns.ACTION_LOGP: store.action_logp[start:stop, b]}
            episode = SingleAgentEpisode.view(
                id_=str(episode_id),
                observations=rows_of(store.obs, (slice(start, stop), b)),
                last_observation=last_obs,
                actions=store.actions[start:stop, b],
                rewards=store.rewards[start:stop, b],
                extra_model_outputs=extra_model_outputs,
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
        """Return the number of steps of the episode of environment `b` before `row`, the first row of a piece."""
        t_started = {0: self.store.t_started} | self.store.t_started_later
        collect = max(first_row for first_row in t_started if first_row <= row)
        return 0 if ends[collect:row].any() else int(t_started[collect][b])


class EpisodeStore(TrainingBuffer):
    """On-policy buffer of several agents: episodes, or pieces of them, in the order in which they were collected."""

    num_added: ClassVar[int] = 0
    """Constant. A writer compares it to see whether others have written since, which does not matter here: each piece
    knows its episode."""

    def __init__(self) -> None:
        self.pieces: list[tuple[MultiAgentEpisode, int]] = []
        """(Piece, number of its environment)."""

    def __len__(self) -> int:
        """Return the number of episodes or pieces."""
        return len(self.pieces)

    @property
    def size(self) -> int:
        """Number of environment steps in the store."""
        return sum(len(episode) for episode, _ in self.pieces)

    def check_agents(self, agents: Mapping[str, Sequence[AgentID]], module_ids: Collection[str], num_envs: int) -> None:
        """Do nothing: the store takes episodes of any agents, unlike `MultiAgentReplayBuffer`."""

    def fit(self, agents: Mapping[str, Sequence[AgentID]], ignored: Collection[str] = ()) -> None:
        """Do nothing: episodes are not divided by module."""

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Add pieces with the numbers of their environments."""
        self.pieces += pieces

    def cut(self, env_index: int) -> None:
        """Do nothing: pieces know where they end, so the running episode needs no cut."""

    def episodes(self) -> list[MultiAgentEpisode]:
        """Return the episodes for `update_from_episodes`."""
        return [episode for episode, _ in self.pieces]

    def clear(self) -> None:
        """Empty the store."""
        self.pieces.clear()

    reset = clear

    def columns(self) -> dict[str, Any]:
        """Return the numeric columns of all rows by module, `{module_id: {column: [N, ...]}}`."""
        names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
        batches = [episode.get_sample_batch() for episode in self.episodes()]
        joined = concat_samples_into_ma_batch(batches, on_missing="drop")
        return {module_id: {name: batch[name] for name in names} for module_id, batch in joined.policy_batches.items()}
