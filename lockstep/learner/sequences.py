"""Sequences for modules with memory: evaluate a rollout in the order of time, and cut it for training.

Episodes are cut into sequences of at most `max_seq_len` rows, from their beginning (or from where the rollout begins,
with the state that acted there). The state before each sequence is computed here, with the parameters that acted, and
stored with it; the gradient flows within a sequence. Sequences stand in columns `[S, L, ...]`, padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.data.columns import Columns, is_state_column
from lockstep.data.indices import cut_into_sequences, sequence_starts
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, is_numeric, leaves, map_tree, rows_of, to_numpy_leaf, zip_trees
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import Remembered, RLModule

DEFAULT_MAX_SEQ_LEN = 20
State = dict[str, Tensor]
ToTensor = Callable[[Any], Tensor]
"""`Learner.to_tensor`: an array on the learner's device, floats in its dtype"""


@dataclass(slots=True)
class SequenceRows:
    """Which rows make up the sequences of a train batch."""

    rows: Tensor
    """[S, L] int64 rows of the flat columns; padding points to row 0"""
    lengths: Tensor
    """[S] int64"""
    loss_mask: Tensor
    """[S, L] bool: real rows that are transitions"""
    state_in: State
    """{name: [S, ...]} before the first row of each sequence"""

    def train_columns(self, columns: Mapping[str, Any]) -> TensorColumns:
        """Return flat columns `[N, ...]` as `[S, L, ...]`, padded with zeros, and what memory needs besides."""
        padding = ~within(self.lengths, self.rows.shape[1])

        def cut(leaf: Tensor) -> Tensor:
            taken = leaf.index_select(0, self.rows.reshape(-1)).unflatten(0, self.rows.shape)
            taken[padding] = 0
            return taken

        return {
            **{name: map_tree(cut, value) for name, value in columns.items()},
            Columns.STATE_IN: self.state_in,
            Columns.SEQ_LENS: self.lengths,
            Columns.LOSS_MASK: self.loss_mask,
        }


def within(lengths: Tensor, size: int) -> Tensor:
    """Return `[S, size]` bool, the real rows of sequences with `lengths` `[S]`."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


def max_seq_len_of(model_config: object) -> int:
    """Return the option `max_seq_len` of a module's `model_config` (default 20)."""
    named = model_config if isinstance(model_config, Mapping) else vars(model_config)
    return int(named.get("max_seq_len", DEFAULT_MAX_SEQ_LEN))


def repeated_states(state: State, count: int) -> State:
    """Return `count` copies `{name: [count, ...]}` of the state at episode starts."""
    return {name: leaf.detach().expand(count, *leaf.shape).clone() for name, leaf in state.items()}


@torch.no_grad()
def evaluate_sequences(
    to_tensor: ToTensor, module: RLModule, trajectories: Trajectories, obs: Tree, bootstrap_obs: Tree
) -> tuple[dict[str, Tensor], Tensor | None, SequenceRows]:
    """Run the module over every piece of episode, all pieces together, one sequence after the other.

    `obs` `[N, ...]` and `bootstrap_obs` `[K, ...]` (None for K = 0) are tensors after the observation pipeline. Returns
    the outputs `{name: [N, ...]}`, the values of the bootstrap observations `[K]` (each follows the last row of its
    piece; None for a module without values), and the sequences to train on.
    """
    plan = _SequencePlan(trajectories, max_seq_len_of(module.model_config))
    num_rows, num_boot = trajectories.rewards.size, len(trajectories.bootstrap_index)
    states = repeated_states(module.get_initial_state(), len(plan.first))
    if trajectories.state_index is not None:
        where = to_tensor(plan.pieces_at(trajectories.state_index))
        for name, stored in trajectories.states.items():
            states[name][where] = to_tensor(np.asarray(stored))
    obs = obs if bootstrap_obs is None else zip_trees(torch.cat, [obs, bootstrap_obs], Columns.OBS)
    found: dict[str, Tensor] = {}
    for number in range(int(plan.number.max()) + 1):
        chosen = np.flatnonzero(plan.number == number)
        length = int(plan.lengths[chosen].max())
        which, rows = to_tensor(chosen), to_tensor(np.ascontiguousarray(plan.rows[chosen, :length]))
        batch = {Columns.OBS: rows_of(obs, rows), Columns.STATE_IN: rows_of(states, which)}
        out: dict[str, Any] = module.forward_train(batch)
        if Columns.STATE_OUT not in out:
            raise ValueError(
                f"{type(module).__name__}.forward_train must return 'state_out' too: a module with a state returns "
                "'state_out' {name: [B, ...]}, and 'vf_preds' [B, T] for a loss that reads values"
            )
        goes_on = plan.goes_on[chosen]  # these sequences are full, so their last state is the next one's first
        for name, leaf in out[Columns.STATE_OUT].items():
            states[name][to_tensor(chosen[goes_on] + 1)] = leaf[to_tensor(goes_on)]
        real = within(to_tensor(plan.lengths[chosen]), length)
        for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS):
            if name not in out:
                continue
            if name not in found:
                found[name] = out[name].new_zeros((num_rows + num_boot, *out[name].shape[2:]))
            found[name][rows[real]] = out[name][real]
    outputs = {name: leaf[:num_rows] for name, leaf in found.items()}
    values = found.get(Columns.VF_PREDS)
    return (
        outputs,
        None if values is None else values[num_rows:],
        plan.train_rows(trajectories.valid, states, to_tensor),
    )


def columns_of_sequences(to_tensor: ToTensor, module: RLModule, batch: SampleBatch, module_id: str) -> TensorColumns:
    """Return the columns `[S, L, ...]` of a batch with `seq_lens`, whichever layout it has.

    What stands in padding is dropped. Without `state_in` all sequences begin episodes. `ValueError` without
    `seq_lens`, or for another state than the module's.
    """
    if Columns.SEQ_LENS not in batch:
        raise ValueError(
            f"module {module_id!r} remembers from step to step, but its batch has no 'seq_lens': say which rows follow "
            "each other (and give 'state_in' where a sequence does not begin an episode)"
        )
    flat = batch.copy(shallow=True).unpad()
    lengths = to_numpy_leaf(flat[Columns.SEQ_LENS]).astype(np.int64)
    kept = np.flatnonzero(lengths)
    lengths, firsts = lengths[kept], sequence_starts(lengths)[kept]
    steps = np.arange(int(lengths.max()))
    real = steps < lengths[:, None]
    states = repeated_states(module.get_initial_state(), len(kept))
    if Columns.STATE_IN in flat:
        state_in = flat[Columns.STATE_IN]
        if not isinstance(state_in, Mapping) or set(state_in) != set(states):
            names = sorted(state_in) if isinstance(state_in, Mapping) else type(state_in).__name__
            raise ValueError(f"state_in of module {module_id!r} must be a dict of {sorted(states)}, not {names}")
        which = to_tensor(kept)
        states = {name: to_tensor(state_in[name])[which] for name in states}
    columns = {
        name: map_tree(to_tensor, value)
        for name, value in flat.items()
        if name not in (Columns.INFOS, Columns.SEQ_LENS, Columns.LOSS_MASK)
        and not is_state_column(name)
        and all(map(is_numeric, leaves(value)))
    }
    rows = to_tensor(np.where(real, firsts[:, None] + steps, 0))
    loss_mask = to_tensor(real)
    if Columns.LOSS_MASK in flat:
        loss_mask &= to_tensor(flat[Columns.LOSS_MASK]).to(torch.bool)[rows]
    columns = SequenceRows(rows, to_tensor(lengths), loss_mask, states).train_columns(columns)
    if Columns.LOSS_MASK in flat:
        _blank_masked_rows(columns)
    return columns


def _blank_masked_rows(columns: TensorColumns) -> None:
    """Put zeros into the masked rows of columns `[S, L, ...]`, in place.

    Observations stay where they are finite: the network may be meant to remember them.
    """
    masked = ~columns[Columns.LOSS_MASK]
    for name, column in columns.items():
        if name in (Columns.LOSS_MASK, Columns.SEQ_LENS) or is_state_column(name):
            continue
        for leaf in leaves(column):
            is_kept = name == Columns.OBS
            leaf[masked] = torch.nan_to_num(leaf[masked], 0.0, 0.0, 0.0) if is_kept else torch.zeros_like(leaf[masked])


# -- learning from transitions ---

BURN_IN_OBS, HAS_BURN_IN = "burn_in_obs", "has_burn_in"
"""columns: observations `[S, T, ...]` that come before sequences, and `[S]` which of them have those"""
TARGET_OBS, TARGET_NEXT_OBS = "target_obs", "target_new_obs"
"""columns: what target networks remember where `obs` and `new_obs` are what those that learn do"""


class Remembering(Protocol):
    """A network with memories, or one that stands for others: an `RLModule`, critics, a copy of them."""

    is_masked: bool

    def memories(self) -> Mapping[str, Any]:
        """Return each `MemoryEncoder` by the field of `Remembered` that it fills."""
        ...


def without_burn_in(columns: TensorColumns, reducer: Reducer) -> TensorColumns:
    """Return sequences `[S, L, ...]` without the masked rows that they begin with, whose observations are kept apart.

    All sequences have the same number of these, or stay as they are. `L` is the same on all learners.
    """
    mask, lengths = columns[Columns.LOSS_MASK], columns[Columns.SEQ_LENS]
    leading = (mask.cumsum(1) == 0).sum(1).clamp(max=lengths - 1)
    size = int(leading.max())
    longest = int((lengths - torch.where(leading == size, size, 0)).max())
    if reducer.world_size > 1:
        size = max(reducer.gather(size))
        longest = max(reducer.gather(int((lengths - torch.where(leading == size, size, 0)).max())))
    if size == 0 and longest == mask.shape[1]:
        return columns
    has = leading == size
    shift = torch.where(has, size, 0)
    steps = torch.arange(longest, device=mask.device)
    rows = (shift.unsqueeze(1) + steps).clamp(max=mask.shape[1] - 1)
    first = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    kept: TensorColumns = {
        name: column
        if name in (Columns.STATE_IN, Columns.SEQ_LENS)
        else map_tree(lambda leaf: leaf[first, rows], column)
        for name, column in columns.items()
    }
    kept[Columns.SEQ_LENS] = lengths - shift
    kept[Columns.LOSS_MASK] = kept[Columns.LOSS_MASK] & (steps < kept[Columns.SEQ_LENS].unsqueeze(1))
    if size:
        kept[BURN_IN_OBS] = map_tree(lambda leaf: leaf[:, :size], columns[Columns.OBS])
        kept[HAS_BURN_IN] = has
    return kept


def remembered_rows(columns: TensorColumns, network: Remembering, target: Remembering | None) -> TensorColumns:
    """Return sequences `[S, L, ...]` as rows `[S * L, ...]` whose observations are what networks remember at them.

    Each network runs once over the sequences and the observation after their last rows: without gradient over the
    burn-in, from the stored state (Kapturowski et al. 2019); values and critics with a memory of their own begin with
    an empty one. `new_obs` is what `network` remembers at the row that a target bootstraps from, `target_obs` and
    `target_new_obs` what `target` does, if there is one. Columns without `new_obs` get none.
    """
    obs, lengths = columns[Columns.OBS], columns[Columns.SEQ_LENS]
    number, size = columns[Columns.LOSS_MASK].shape
    every = torch.arange(number, device=lengths.device)

    def followed(leaf: Tensor, after: Tensor) -> Tensor:
        longer = torch.cat([leaf, leaf[:, :1]], 1)
        longer[every, lengths] = after[every, lengths - 1]
        return longer

    if Columns.NEXT_OBS in columns:
        obs = zip_trees(lambda pair: followed(*pair), [obs, columns[Columns.NEXT_OBS]], Columns.OBS)
    ahead = columns.get(Columns.NUM_STEPS, 1) + torch.arange(size, device=lengths.device)
    ahead = ahead.clamp(max=size).expand(number, size)
    apart = (Columns.OBS, Columns.NEXT_OBS, Columns.STATE_IN, Columns.SEQ_LENS, BURN_IN_OBS, HAS_BURN_IN)
    rows: TensorColumns = {
        name: map_tree(lambda leaf: leaf.flatten(0, 1), column) for name, column in columns.items() if name not in apart
    }
    learned = _unrolled(columns, obs, network)
    found = [(Columns.OBS, Columns.NEXT_OBS, learned)]
    if target is not None:
        with torch.no_grad():
            found.append((TARGET_OBS, TARGET_NEXT_OBS, _unrolled(columns, obs, target)))
    for here, after, parts in found:
        rows[here] = Remembered(**map_tree(lambda leaf: leaf[:, :size].flatten(0, 1), parts))
        if Columns.NEXT_OBS in columns:
            later = map_tree(lambda leaf: leaf.detach()[every.unsqueeze(1), ahead].flatten(0, 1), parts)
            rows[after] = Remembered(**later)
    return rows


def _unrolled(columns: TensorColumns, obs: Tree, network: Remembering) -> dict[str, Tensor]:
    """Return what a network remembers at each of the observations, `{field of Remembered: [S, L + 1, ...]}`."""
    found: dict[str, Tensor] = {}
    burn_in = columns.get(BURN_IN_OBS)
    if network.is_masked:
        found["mask"], obs = obs[ACTION_MASK], without_mask(obs)
        burn_in = None if burn_in is None else without_mask(burn_in)
    number = len(columns[Columns.SEQ_LENS])
    for name, memory in network.memories().items():
        is_stored = name == "features"
        state = columns[Columns.STATE_IN] if is_stored else repeated_states(memory.initial_state(), number)
        dtype = next(memory.parameters()).dtype
        if burn_in is not None:
            with torch.no_grad():
                after = memory(burn_in, dtype, state)[1]
            has = columns[HAS_BURN_IN]
            state = {
                key: torch.where(has.view(-1, *[1] * (leaf.dim() - 1)), after[key], leaf) for key, leaf in state.items()
            }
        found[name] = memory(obs, dtype, state)[0]
    return found


def errors_of_sequences(errors: Tensor, mask: Tensor) -> Tensor:
    """Return one error `[S]` for each sequence, of those of its rows `[S * L]` that count (`mask` `[S, L]`).

    0.9 times the largest and 0.1 times the mean (Kapturowski et al. 2019, section 2.3).
    """
    sizes = torch.where(mask, errors.reshape(mask.shape).abs(), 0.0)
    return 0.9 * sizes.amax(1) + 0.1 * sizes.sum(1) / mask.sum(1).clamp(min=1)


class _SequencePlan:
    """The sequences of all pieces, each piece followed by its bootstrap observation (row N + k) where it has one."""

    def __init__(self, trajectories: Trajectories, max_seq_len: int) -> None:
        num_steps, num_columns = trajectories.shape
        num_rows = num_steps * num_columns
        starts = self._starts(trajectories)
        first, sizes, _ = cut_into_sequences(starts, num_rows + 1)
        bootstrap = np.full(num_rows, -1, np.int64)
        bootstrap[trajectories.bootstrap_index] = np.arange(len(trajectories.bootstrap_index))
        extra = bootstrap[first + (sizes - 1) * num_columns]
        long = sizes + (extra >= 0)
        counts = -(-long // max_seq_len)
        piece = np.repeat(np.arange(len(first)), counts)
        self.number = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)
        done = self.number * max_seq_len
        self.first = first[piece] + done * num_columns
        self.lengths = np.minimum(long[piece] - done, max_seq_len)
        self.real_lengths = np.minimum(sizes[piece] - done, max_seq_len)
        self.goes_on = self.number < counts[piece] - 1
        steps = np.arange(int(self.lengths.max()))
        rows = self.first[:, None] + steps * num_columns
        is_bootstrap = (steps >= self.real_lengths[:, None]) & (steps < self.lengths[:, None])
        rows = np.where(is_bootstrap, num_rows + extra[piece][:, None], rows)
        self.rows = np.where(steps < self.lengths[:, None], rows, 0)

    def train_rows(self, valid: np.ndarray | None, states: State, to_tensor: ToTensor) -> SequenceRows:
        """Return the sequences that have a transition. `valid` `[T, B]`: where the rows are some; None: everywhere."""
        real = np.arange(self.rows.shape[1]) < self.real_lengths[:, None]
        rows = np.where(real, self.rows, 0)
        counts = real if valid is None else real & valid.reshape(-1)[rows]
        kept = np.flatnonzero(counts.any(axis=1))
        width = int(self.real_lengths[kept].max())
        return SequenceRows(
            to_tensor(np.ascontiguousarray(rows[kept, :width])),
            to_tensor(self.real_lengths[kept]),
            to_tensor(np.ascontiguousarray(counts[kept, :width])),
            rows_of(states, to_tensor(kept)),
        )

    @staticmethod
    def _starts(trajectories: Trajectories) -> np.ndarray:
        """Return where acting forgot; in any case after each end and each row with a bootstrap observation."""
        starts = np.zeros(trajectories.shape, bool) if trajectories.starts is None else trajectories.starts.copy()
        ends = trajectories.dones.copy()
        ends.reshape(-1)[trajectories.bootstrap_index] = True
        if trajectories.starts is None and trajectories.valid is not None:
            ends |= ~trajectories.valid
        starts[1:] |= ends[:-1]
        return starts

    def pieces_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the sequences that begin a piece at these flat rows; `ValueError` where none does."""
        begins = np.flatnonzero(self.number == 0)
        begins = begins[np.argsort(self.first[begins])]
        found = begins[np.minimum(np.searchsorted(self.first[begins], rows), len(begins) - 1)]
        if not np.array_equal(self.first[found], rows):
            raise ValueError(f"recurrent states are stored for the rows {rows}, but not all of these begin a sequence")
        return found
