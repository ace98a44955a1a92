"""Episodes as time-major columns, and exact shards of them for several learners.

Rows form a grid `[T, B]`. The true next observation of row `(t, b)` is the observation of row `(t + 1, b)`, except for
the rows in `bootstrap_index`, whose true next observation is stored separately: an episode was cut by a time limit, or
the data ends.

Shards take rows in one order: column by column, in order of time. A shard *owns* some rows, and holds the rest of their
episodes (or environments) as well. So everything that is computed along an episode - returns, advantages, running
statistics - has the same values as on one learner. `owned` marks the rows to train on.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from lockstep.data.columns import Columns, is_state_column
from lockstep.data.episode import NO_EXTRAS, SingleAgentEpisode
from lockstep.data.groups import with_state
from lockstep.data.trees import Tree, leaves, map_tree, rows_of, zip_trees
from lockstep.options.checks import check_whole

_IN_GRID = (
    *("obs", "actions", "rewards", "terminateds", "truncateds", "cuts", "dones", "valid", "starts"),
    *("action_logp", "recorded"),
)
"""Fields with a value for each row of the grid."""
_VALUES_OF_INDEX = {"bootstrap_index": "bootstrap_obs", "state_index": "states", "terminal_index": "terminal_obs"}
"""Fields of flat row numbers, each with the field that holds the values of these rows."""


@dataclass(slots=True)
class Trajectories:
    """Time-major columns `[T, B, ...]`, which may be views on a rollout store.

    *Flat rows* are rows `t * B + b` of the grid.
    """

    is_on_device: ClassVar[Literal[False]] = False
    """Whether the columns are tensors on the networks' device, as those of a `TensorRollout`; here they are arrays."""

    obs: Tree
    """Observations `[T, B, ...]`."""
    actions: np.ndarray
    """Actions `[T, B, ...]`."""
    rewards: np.ndarray
    """Rewards, float32 `[T, B]`."""
    terminateds: np.ndarray
    """Rows whose episode terminated there, bool `[T, B]`. Nothing is bootstrapped."""
    cuts: np.ndarray
    """Rows at which the episode was truncated or the piece ends, bool `[T, B]`. The value of the row's own next
    observation is bootstrapped."""
    dones: np.ndarray
    """Rows after which another episode follows in the column, bool `[T, B]`. Not set at the end of the data alone."""
    bootstrap_index: np.ndarray
    """Flat rows `[K]` int64 whose next observation is bootstrapped and stored in `bootstrap_obs`."""
    bootstrap_obs: Tree
    """True next observations `[K, ...]` of these rows."""
    valid: np.ndarray | None = None
    """Rows that are transitions, bool `[T, B]`. None if all rows are."""
    starts: np.ndarray | None = None
    """Rows before which a recurrent policy was reset, bool `[T, B]`. None for policies without memory."""
    state_index: np.ndarray | None = None
    """Flat rows `[P]` int64 at which pieces with a stored recurrent state begin."""
    states: Tree = None
    """Recurrent states `{name: [P, ...]}` before these rows."""
    owned: np.ndarray | None = None
    """Rows to train on, bool `[T, B]`; the other rows of a shard only complete episodes. None if all rows are."""
    positions: np.ndarray | None = None
    """Numbers `[N]` int64 of the owned transitions among all transitions of all shards. None for 0 to N - 1."""
    place: tuple[int, int, int, int] | None = None
    """Place of a shard in the whole grid: (first step, first column, all steps, all columns). None for the whole."""
    action_logp: np.ndarray | None = None
    """Log-probability `[T, B]` of each action under the policy that acted; NaN if unknown. None if all are unknown."""
    truncateds: np.ndarray | None = None
    """Rows at which the episode was truncated, bool `[T, B]`; not set at the end of the data alone. None if all `cuts`
    are truncations."""
    recorded: dict[str, Tree] | None = None
    """Other extra model outputs that were recorded while acting, `{name: [T, B, ...]}`."""
    terminal_index: np.ndarray | None = None
    """Flat rows `[E]` int64 at which an episode terminated."""
    terminal_obs: Tree = None
    """True next observations `[E, ...]` of these rows."""

    def next_obs(self) -> Tree:
        """Return a copy of the true next observations `[T * B, ...]`, with zeros after the last row of the data."""

        def shifted(leaf: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf[1:], np.zeros_like(leaf[:1])]).reshape(-1, *leaf.shape[2:])

        next_obs = map_tree(shifted, self.obs)
        for index, obs in ((self.bootstrap_index, self.bootstrap_obs), (self.terminal_index, self.terminal_obs)):
            if index is not None and len(index):
                for leaf, values in zip(leaves(next_obs), leaves(obs)):
                    leaf[index] = values
        return next_obs

    def add_central_state(self, states: list[np.ndarray], is_open: np.ndarray) -> None:
        """Add the central states `[T + 1, ...]` of each piece to the observations, as entries.

        `is_open` [pieces]: whether the piece does not end with a termination.
        """
        warnings.warn(
            f"the infos of the episodes have {Columns.CRITIC_OBS!r}, as in version 0.2. It is read as the entry "
            "'state' of the observations; record it there, {'obs': observation, 'state': state}",
            DeprecationWarning,
            stacklevel=2,
        )
        last_states = np.stack([rows[-1] for rows in states])
        self.obs = with_state(self.obs, np.concatenate([rows[:-1] for rows in states])[:, None])
        self.bootstrap_obs = with_state(self.bootstrap_obs, last_states[is_open])
        self.terminal_obs = with_state(self.terminal_obs, last_states[~is_open])

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, B)`."""
        return self.rewards.shape[0], self.rewards.shape[1]

    @property
    def num_rows(self) -> int:
        """Number of transitions to train on."""
        rows = self.rows()
        return self.rewards.size if rows is None else len(rows)

    def rows(self) -> np.ndarray | None:
        """Return the flat rows of the transitions to train on, or None for all rows."""
        if self.owned is None:
            return None if self.valid is None else np.flatnonzero(self.valid)
        return np.flatnonzero(self.owned if self.valid is None else self.owned & self.valid)

    def flat_obs(self) -> Tree:
        """Return the observations as a view `[T * B, ...]`."""
        return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.obs)

    def flat_actions(self) -> np.ndarray:
        """Return the actions as a view `[T * B, ...]`."""
        return self.actions.reshape(-1, *self.actions.shape[2:])

    def shards(self, num_shards: int, *, cut: bool = True) -> list[Trajectories | None]:
        """Return `num_shards` views that together own every row once. Their sizes differ by at most one row.

        `positions` of a shard are the numbers of its transitions in the whole. A shard without transitions is None.

        With `cut=False` episodes stay whole (or, for several environments, their columns), and the sizes are balanced
        as well as possible. Modules with memory need it.

        Raises:
            ValueError: `num_shards` is below 1.
        """
        check_whole("num_shards", num_shards, 1)
        if num_shards == 1:
            return [self if self.num_rows else None]

        num_steps, num_envs = self.shape
        bounds = [shard * num_steps * num_envs // num_shards for shard in range(num_shards + 1)]
        begins = self._piece_begins()
        numbers: np.ndarray | None = self._numbers()
        if not cut:
            # A piece belongs to the shard that would own its first row.
            bounds = [int(begins[np.searchsorted(begins, bound)]) for bound in bounds]
            numbers = None

        shards: list[Trajectories | None] = []
        for start, stop in itertools.pairwise(bounds):
            shard = None if start == stop else self._shard(start, stop, begins, numbers)
            shards.append(shard if shard is not None and shard.num_rows else None)
        return shards

    def _piece_begins(self) -> np.ndarray:
        """Return the rows, counted column by column, before which the grid may be cut, and the number of all rows."""
        num_steps, num_envs = self.shape
        if num_envs > 1:
            # Pieces are whole columns, so that a shard is a rectangle of the grid.
            return np.arange(num_envs + 1) * num_steps
        ends = (self.dones | self.cuts)[:, 0]
        return np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [num_steps]]))

    def _numbers(self) -> np.ndarray:
        """Return the number of each transition among all of them, int64 `[T, B]`, as one learner counts them."""
        if self.valid is None:
            return np.arange(self.rewards.size).reshape(self.shape)
        return np.cumsum(self.valid.reshape(-1)).reshape(self.shape) - 1

    def _shard(self, start: int, stop: int, begins: np.ndarray, numbers: np.ndarray | None) -> Trajectories:
        """Return the pieces that hold rows `start` to `stop`, counted column by column.

        With `numbers` the shard owns just these rows, without it all rows of the pieces.
        """
        num_steps, num_envs = self.shape
        first = int(begins[np.searchsorted(begins, start, side="right") - 1])
        last = int(begins[np.searchsorted(begins, stop)])
        if num_envs == 1:
            times = slice(first, last)
            envs = slice(0, 1)
        else:
            times = slice(0, num_steps)
            envs = slice(first // num_steps, last // num_steps)

        shard = self._window(times, envs)
        if numbers is not None:
            rows_by_column = np.arange(first, last).reshape(envs.stop - envs.start, -1).T
            shard.owned = (rows_by_column >= start) & (rows_by_column < stop)
            shard.positions = numbers[times, envs].reshape(-1)[shard.rows()]
        return shard

    def _window(self, times: slice, envs: slice) -> Trajectories:
        """Return a rectangle of the grid as views."""
        changes: dict[str, Any] = {}
        for name in self._fields_with_data(_IN_GRID):
            changes[name] = rows_of(getattr(self, name), (times, envs))
        for index_name in self._fields_with_data(_VALUES_OF_INDEX):
            value_name = _VALUES_OF_INDEX[index_name]
            changes[index_name], is_inside = self._rows_in_window(getattr(self, index_name), times, envs)
            changes[value_name] = rows_of(getattr(self, value_name), is_inside)
        place = (times.start, envs.start, *self.shape)
        return replace(self, **changes, owned=None, positions=None, place=place)

    def _fields_with_data(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def _rows_in_window(self, rows: np.ndarray, times: slice, envs: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the flat rows of a window that correspond to flat `rows` of the grid, and the mask of those inside."""
        t, b = np.divmod(rows, self.shape[1])
        is_inside = (t >= times.start) & (t < times.stop) & (b >= envs.start) & (b < envs.stop)
        window_rows = (t[is_inside] - times.start) * (envs.stop - envs.start) + b[is_inside] - envs.start
        return window_rows, is_inside


def trajectories_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> Trajectories:
    """Return episodes, one after another, as trajectories with a single column: `[T, 1]`.

    All episodes of one rollout, in any order, are read as the columns `[T, B]` of the store instead, without a copy.

    Log-probabilities and other outputs that were recorded while acting are read from the extra model outputs
    (`action_logp` `[T]`, `action_dist_inputs`, ...). The recurrent state before the first step is read from the extra
    model output `state_in` `{name: [T, ...]}`, or from `custom_data["state_in"]`, which is
    `{"t": step, "state": {name: [...]}}`. Without them an episode begins with the initial state.

    Raises:
        ValueError: no episode has a step.
    """
    pieces = [episode for episode in episodes if len(episode)]
    if not pieces:
        raise ValueError("there is no step to learn from: every given episode is empty; collect at least one step")
    rollout = pieces[0].source
    if rollout is not None and rollout.is_whole(pieces):
        return rollout.trajectories()

    data = [piece.get_data_dict() for piece in pieces]
    lengths = np.array([len(piece) for piece in pieces])
    ends = np.cumsum(lengths) - 1

    def joined(column: str) -> Any:
        return zip_trees(lambda parts: np.concatenate(parts)[:, None], [item[column] for item in data], column)

    terminateds = joined(Columns.TERMINATEDS).astype(bool)
    dones = np.zeros_like(terminateds)
    dones[ends, 0] = True
    starts = np.zeros_like(terminateds)
    starts[ends - (lengths - 1), 0] = True

    states = [_state_before(item, piece) for item, piece in zip(data, pieces)]
    with_state = [i for i, state in enumerate(states) if state is not None]
    recorded = _recorded_outputs(data)
    last_obs = zip_trees(np.concatenate, [rows_of(item[Columns.NEXT_OBS], slice(-1, None)) for item in data], "")
    is_open = ~terminateds[ends, 0]

    trajectories = Trajectories(
        obs=joined(Columns.OBS),
        actions=joined(Columns.ACTIONS),
        rewards=joined(Columns.REWARDS).astype(np.float32),
        terminateds=terminateds,
        cuts=dones & ~terminateds,
        dones=dones,
        bootstrap_index=ends[is_open].astype(np.int64),
        bootstrap_obs=rows_of(last_obs, is_open),
        starts=starts,
        action_logp=recorded.pop(Columns.ACTION_LOGP, None),
        truncateds=joined(Columns.TRUNCATEDS).astype(bool),
        recorded=recorded,
        terminal_index=ends[~is_open].astype(np.int64),
        terminal_obs=rows_of(last_obs, ~is_open),
    )
    if with_state:
        trajectories.state_index = np.flatnonzero(starts)[with_state]
        trajectories.states = zip_trees(np.stack, [states[i] for i in with_state], Columns.STATE_IN)
    critic_obs = _critic_obs(pieces)
    if critic_obs is not None:
        trajectories.add_central_state(critic_obs, is_open)
    return trajectories


def _critic_obs(pieces: Sequence[SingleAgentEpisode]) -> list[np.ndarray] | None:
    """Return the input of a centralised critic, `[T + 1, ...]` for each piece, from the infos; None without a critic.

    It is zeros after the end of an agent that got no last observation.

    Raises:
        ValueError: some pieces have an input and others have none.
    """
    first_inputs = [(piece.get_infos(0) or {}).get(Columns.CRITIC_OBS) for piece in pieces]
    if first_inputs[0] is None:
        return None

    zeros = np.zeros_like(first_inputs[0])
    inputs = []
    for piece, first_input in zip(pieces, first_inputs):
        if first_input is None:
            raise ValueError(f"{Columns.CRITIC_OBS!r} is in the infos of some episodes only; give it with all of them")
        inputs.append(np.stack([(info or {}).get(Columns.CRITIC_OBS, zeros) for info in piece.get_infos()]))
    return inputs


COMPARED_WITH = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)
"""Extra model outputs that a loss compares with those of the present weights."""


def _recorded_outputs(data: Sequence[Mapping[str, Any]]) -> dict[str, Tree]:
    """Return the extra model outputs of all pieces, `{name: [T, 1, ...]}`.

    An output that a loss compares with is NaN in pieces that lack it. Other outputs are left out if a piece lacks them
    or they cannot be joined.
    """
    names: dict[str, None] = {}
    for item in data:
        names.update(dict.fromkeys(name for name in item if name not in NO_EXTRAS))

    outputs: dict[str, Tree] = {}
    for name in names:
        parts = [item.get(name) for item in data]
        if name in COMPARED_WITH:
            like = np.asarray(next(part for part in parts if part is not None))
            lengths = [len(item[Columns.REWARDS]) for item in data]
            parts = [np.full((n, *like.shape[1:]), np.nan) if p is None else p for n, p in zip(lengths, parts)]
        if is_state_column(name) or any(part is None for part in parts):
            continue
        try:
            outputs[name] = zip_trees(lambda arrays: np.concatenate(arrays)[:, None], parts, name)
        except ValueError:
            if name in COMPARED_WITH:
                raise
    return outputs


def _state_before(data: Mapping[str, Any], piece: SingleAgentEpisode) -> Tree:
    """Return the recurrent state before the first step of a piece, or None if it is not known."""
    if Columns.STATE_IN in data:
        return map_tree(lambda leaf: np.asarray(leaf)[0], data[Columns.STATE_IN])
    stored = piece.custom_data.get(Columns.STATE_IN)
    # A later slice of the episode has the same `custom_data`, and its state is not known.
    if stored is None or stored["t"] != piece.t_started:
        return None
    return map_tree(np.asarray, stored["state"])
