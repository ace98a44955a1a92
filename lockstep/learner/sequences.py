"""Sequences for modules with memory: evaluation of a rollout in the order of time, and cutting it for training.

Episodes are cut into sequences of at most `max_seq_len` rows. The first sequence begins at the start of the episode.
If the episode began before the rollout, it begins with the rollout, from the recurrent state that acted there. The
state before each later sequence is computed here, with the parameters that acted, and stored with the sequence.
Gradients flow within a sequence only. Sequences are columns `[S, L, ...]`, padded with zeros.

Where a rollout ends in the middle of an episode, the value of the observation after the last row stands for the rewards
to come: the return is *bootstrapped* from this observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.data.actions import ACTION_MASK
from lockstep.data.columns import Columns, is_state_column
from lockstep.data.indices import cut_into_sequences, sequence_starts
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, is_numeric, leaves, map_tree, rows_of, to_numpy_leaf, zip_trees
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import MemoryFeatures, RLModule
from lockstep.modules.defaults.transition_module import state_of

DEFAULT_MAX_SEQ_LEN = 20
"""Length of sequences if the model configuration does not say it."""
State = dict[str, Tensor]
"""Recurrent state by name: tensors `[...]` of one sequence, or `[S, ...]` of several."""
ToTensor = Callable[[Any], Tensor]
"""Function `Learner.to_tensor`, which returns an array as a tensor on the learner's device, with floats in its
dtype."""


@dataclass(slots=True)
class SequenceRows:
    """Rows of flat columns that make up the sequences of a train batch."""

    rows: Tensor
    """Indices `[S, L]` int64 of the rows. Padding points to row 0."""
    lengths: Tensor
    """Numbers of rows `[S]` int64, without padding."""
    loss_mask: Tensor
    """Mask `[S, L]` bool of the rows that are transitions. Padding, and rows without a transition, are not."""
    state_in: State
    """Recurrent state before the first row of each sequence, `{name: [S, ...]}`."""

    def train_columns(self, columns: Mapping[str, Any]) -> TensorColumns:
        """Return flat columns `[N, ...]` as sequences `[S, L, ...]` with their states, lengths and loss mask."""
        padding = ~mask_of_lengths(self.lengths, self.rows.shape[1])

        def cut(leaf: Tensor) -> Tensor:
            sequences = leaf.index_select(0, self.rows.reshape(-1)).unflatten(0, self.rows.shape)
            sequences[padding] = 0
            return sequences

        return {
            **{name: map_tree(cut, value) for name, value in columns.items()},
            Columns.STATE_IN: self.state_in,
            Columns.SEQ_LENS: self.lengths,
            Columns.LOSS_MASK: self.loss_mask,
        }


def mask_of_lengths(lengths: Tensor, size: int) -> Tensor:
    """Return the mask `[S, size]` bool of the rows of sequences with `lengths` `[S]`; padding is False."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


def max_seq_len_of(model_config: object) -> int:
    """Return the option `max_seq_len` of a module's `model_config`. Defaults to 20."""
    options = model_config if isinstance(model_config, Mapping) else vars(model_config)
    return int(options.get("max_seq_len", DEFAULT_MAX_SEQ_LEN))


def repeated_states(state: State, count: int) -> State:
    """Return `count` copies of a state, `{name: [count, ...]}`."""
    return {name: leaf.detach().expand(count, *leaf.shape).clone() for name, leaf in state.items()}


@torch.no_grad()
def evaluate_sequences(
    to_tensor: ToTensor, module: RLModule, trajectories: Trajectories, obs: Tree, bootstrap_obs: Tree
) -> tuple[dict[str, Tensor], Tensor | None, SequenceRows]:
    """Evaluate a module with memory on all pieces of episodes in a rollout.

    A piece is an uninterrupted part of an episode. The first sequences of all pieces are evaluated in one batch, then
    the second sequences, from the states where the first ones ended, and so on.

    Args:
        to_tensor: See `ToTensor`.
        module: Module with memory.
        trajectories: Steps of the rollout.
        obs: Observations `[N, ...]` as tensors, after the observation connectors.
        bootstrap_obs: Observations `[K, ...]` from which returns are bootstrapped; None if there are none. Each follows
            the last row of its piece.

    Returns:
        Outputs `{name: [N, ...]}`, values of the bootstrap observations `[K]` (None for a module without values), and
        the sequences to train on.
    """
    plan = _SequencePlan(trajectories, max_seq_len_of(module.model_config))
    num_rows = trajectories.rewards.size
    num_boot = len(trajectories.bootstrap_index)

    # State before each sequence. Those of later sequences are set below, when the sequences before them have run.
    states = repeated_states(module.get_initial_state(), len(plan.first_row))
    if trajectories.state_index is not None:
        first_sequences = to_tensor(plan.sequences_beginning_at(trajectories.state_index))
        for name, stored in trajectories.states.items():
            states[name][first_sequences] = to_tensor(np.asarray(stored))
    obs = obs if bootstrap_obs is None else zip_trees(torch.cat, [obs, bootstrap_obs], Columns.OBS)

    results: dict[str, Tensor] = {}  # outputs `[N + K, ...]` by name
    for number in range(int(plan.number_in_piece.max()) + 1):
        sequences = np.flatnonzero(plan.number_in_piece == number)
        length = int(plan.lengths[sequences].max())
        rows = to_tensor(np.ascontiguousarray(plan.rows[sequences, :length]))
        batch = {Columns.OBS: rows_of(obs, rows), Columns.STATE_IN: rows_of(states, to_tensor(sequences))}
        out: dict[str, Any] = module.forward_train(batch)
        if Columns.STATE_OUT not in out:
            raise ValueError(
                f"{type(module).__name__}.forward_train must return 'state_out' too: a module with a state returns "
                "'state_out' {name: [B, ...]}, and 'vf_preds' [B, T] for a loss that reads values"
            )

        # `state_out` is the state after row L, which is padding in a shorter sequence. But only full sequences are
        # followed by another one of their piece, so the states that are kept here come after real rows.
        continues = plan.continues[sequences]
        for name, leaf in out[Columns.STATE_OUT].items():
            states[name][to_tensor(sequences[continues] + 1)] = leaf[to_tensor(continues)]

        real = mask_of_lengths(to_tensor(plan.lengths[sequences]), length)
        for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS):
            if name not in out:
                continue
            if name not in results:
                results[name] = out[name].new_zeros((num_rows + num_boot, *out[name].shape[2:]))
            results[name][rows[real]] = out[name][real]

    outputs = {name: leaf[:num_rows] for name, leaf in results.items()}
    values = results.get(Columns.VF_PREDS)
    bootstrap_values = None if values is None else values[num_rows:]
    return outputs, bootstrap_values, plan.train_rows(trajectories.valid, states, to_tensor)


def columns_of_sequences(to_tensor: ToTensor, module: RLModule, batch: SampleBatch, module_id: str) -> TensorColumns:
    """Return the columns `[S, L, ...]` of a batch with `seq_lens`, whichever layout the batch has.

    The contents of padding are dropped. Without `state_in` all sequences begin episodes. Raises `ValueError` without
    `seq_lens`, or if the names in `state_in` are not those of the module's state.
    """
    if Columns.SEQ_LENS not in batch:
        raise ValueError(
            f"module {module_id!r} remembers from step to step, but its batch has no 'seq_lens': say which rows follow "
            "each other (and give 'state_in' where a sequence does not begin an episode)"
        )
    flat = batch.copy(shallow=True).unpad()
    lengths = to_numpy_leaf(flat[Columns.SEQ_LENS]).astype(np.int64)
    nonempty = np.flatnonzero(lengths)
    firsts = sequence_starts(lengths)[nonempty]
    lengths = lengths[nonempty]
    steps = np.arange(int(lengths.max()))
    real = steps < lengths[:, None]
    states = repeated_states(module.get_initial_state(), len(nonempty))
    if Columns.STATE_IN in flat:
        state_in = flat[Columns.STATE_IN]
        if not isinstance(state_in, Mapping) or set(state_in) != set(states):
            names = sorted(state_in) if isinstance(state_in, Mapping) else type(state_in).__name__
            raise ValueError(f"state_in of module {module_id!r} must be a dict of {sorted(states)}, not {names}")
        sequences = to_tensor(nonempty)
        states = {name: to_tensor(state_in[name])[sequences] for name in states}

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
    """Set the masked rows of columns `[S, L, ...]` to zero, in place.

    Of the observations only numbers that are not finite are replaced. The others stay: masked rows at the beginning of
    a sequence are its burn-in, which the network has to remember.
    """
    masked = ~columns[Columns.LOSS_MASK]
    for name, column in columns.items():
        if name in (Columns.LOSS_MASK, Columns.SEQ_LENS) or is_state_column(name):
            continue
        for leaf in leaves(column):
            is_obs = name == Columns.OBS
            leaf[masked] = torch.nan_to_num(leaf[masked], 0.0, 0.0, 0.0) if is_obs else torch.zeros_like(leaf[masked])


# -- learning from transitions ---

BURN_IN_OBS = "burn_in_obs"
"""Column of the burn-in `[S, T, ...]`: observations before the first row of each sequence.

The state that is stored with a sequence was computed with older weights. So the network runs over these observations
first, without training on them, to have a state that fits its present weights."""
HAS_BURN_IN = "has_burn_in"
"""Column `[S]` bool: whether a sequence has a burn-in."""
TARGET_OBS = "target_obs"
TARGET_NEXT_OBS = "target_new_obs"
"""Columns of the target network's memories, next to `obs` and `new_obs` with those of the trained network."""


class MemoryNetwork(Protocol):
    """Network with memories: an `RLModule`, its critics, or a copy of them.

    A memory is a recurrent encoder. Policy, value function and critics may have one each.
    """

    is_masked: bool

    def memories(self) -> Mapping[str, Any]:
        """Return the `MemoryEncoder` for each field of `MemoryFeatures`."""
        ...

    def parameters(self) -> Iterator[Tensor]:
        """Return the parameters, of one dtype."""
        ...


def without_burn_in(columns: TensorColumns, reducer: Reducer) -> TensorColumns:
    """Return sequences `[S, L, ...]` without their burn-in: the masked rows that they begin with.

    The observations of the burn-in become a column of their own. All burn-ins in that column have the length of the
    longest one in the batch, so a sequence with a shorter burn-in keeps it as masked rows. All learners use the same
    sizes, so that their batches fit together.
    """
    mask = columns[Columns.LOSS_MASK]
    lengths = columns[Columns.SEQ_LENS]
    # Number of masked rows at the beginning of each sequence. At least one row stays.
    leading = (mask.cumsum(1) == 0).sum(1).clamp(max=lengths - 1)
    size = int(leading.max())
    if reducer.world_size > 1:
        size = max(reducer.gather(size))

    # Only sequences whose burn-in has this size are shortened by it.
    has_burn_in = leading == size
    shift = torch.where(has_burn_in, size, 0)
    longest = int((lengths - shift).max())
    if reducer.world_size > 1:
        longest = max(reducer.gather(longest))
    if size == 0 and longest == mask.shape[1]:
        return columns

    # Shift the rows of sequences with a burn-in to the left, and cut all sequences to the longest one.
    steps = torch.arange(longest, device=mask.device)
    rows = (shift.unsqueeze(1) + steps).clamp(max=mask.shape[1] - 1)
    sequences = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    shifted: TensorColumns = {}
    for name, column in columns.items():
        is_per_sequence = name in (Columns.STATE_IN, Columns.SEQ_LENS)
        shifted[name] = column if is_per_sequence else map_tree(lambda leaf: leaf[sequences, rows], column)
    shifted[Columns.SEQ_LENS] = lengths - shift
    shifted[Columns.LOSS_MASK] = shifted[Columns.LOSS_MASK] & (steps < shifted[Columns.SEQ_LENS].unsqueeze(1))
    if size:
        shifted[BURN_IN_OBS] = map_tree(lambda leaf: leaf[:, :size], columns[Columns.OBS])
        shifted[HAS_BURN_IN] = has_burn_in
    return shifted


def remembered_rows(columns: TensorColumns, network: MemoryNetwork, target: MemoryNetwork | None) -> TensorColumns:
    """Return sequences `[S, L, ...]` as rows `[S * L, ...]`, with the networks' memories in place of observations.

    The memory of a network at an observation is its features there (`MemoryFeatures`), which depend on all earlier
    observations of the sequence. Networks accept them in place of observations, so a loss can treat the rows like
    transitions of a module without memory.

    Each network runs once over the sequences and the observation after their last rows. It starts from the stored
    state, and runs over the burn-in without gradient (Kapturowski et al. 2019). A memory whose state is not stored
    starts with an empty one: value functions and critics, if the policy has a memory.

    `obs` becomes the memory of `network` at each row. `new_obs` becomes its memory at the row from which the learning
    target of that row bootstraps: the next one, or n rows later for a return of n steps. `target_obs` and
    `target_new_obs` are the same memories of the target network `target`, if there is one. Columns without `new_obs`
    get no memories at later rows.
    """
    obs = columns[Columns.OBS]
    lengths = columns[Columns.SEQ_LENS]
    num_sequences, max_length = columns[Columns.LOSS_MASK].shape
    sequences = torch.arange(num_sequences, device=lengths.device)

    def with_last(leaf: Tensor, next_leaf: Tensor) -> Tensor:
        """Return `leaf` as `[S, L + 1, ...]`, with the next observation of each last row after that row."""
        longer = torch.cat([leaf, leaf[:, :1]], 1)
        longer[sequences, lengths] = next_leaf[sequences, lengths - 1]
        return longer

    if Columns.NEXT_OBS in columns:
        obs = zip_trees(lambda pair: with_last(*pair), [obs, columns[Columns.NEXT_OBS]], Columns.OBS)

    # The return of row t sums n rewards (1, or `num_steps`), and is bootstrapped from row t + n.
    bootstrap_rows = columns.get(Columns.NUM_STEPS, 1) + torch.arange(max_length, device=lengths.device)
    bootstrap_rows = bootstrap_rows.clamp(max=max_length).expand(num_sequences, max_length)
    replaced = (Columns.OBS, Columns.NEXT_OBS, Columns.STATE_IN, Columns.SEQ_LENS, BURN_IN_OBS, HAS_BURN_IN)
    rows: TensorColumns = {}
    for name, column in columns.items():
        if name not in replaced:
            rows[name] = map_tree(lambda leaf: leaf.flatten(0, 1), column)

    memories = [(Columns.OBS, Columns.NEXT_OBS, _memories(columns, obs, network))]
    if target is not None:
        with torch.no_grad():
            memories.append((TARGET_OBS, TARGET_NEXT_OBS, _memories(columns, obs, target)))
    for obs_name, next_obs_name, parts in memories:
        rows[obs_name] = MemoryFeatures(**map_tree(lambda leaf: leaf[:, :max_length].flatten(0, 1), parts))
        if Columns.NEXT_OBS in columns:
            next_parts = map_tree(
                lambda leaf: leaf.detach()[sequences.unsqueeze(1), bootstrap_rows].flatten(0, 1), parts
            )
            rows[next_obs_name] = MemoryFeatures(**next_parts)
    return rows


def _memories(columns: TensorColumns, obs: Tree, network: MemoryNetwork) -> dict[str, Tensor]:
    """Return the memories of a network at each observation, `{field of MemoryFeatures: [S, L + 1, ...]}`."""
    memories: dict[str, Tensor] = {}
    burn_in = columns.get(BURN_IN_OBS)
    if network.is_masked:
        memories["mask"] = obs[ACTION_MASK]
    num_sequences = len(columns[Columns.SEQ_LENS])
    dtype = next(network.parameters()).dtype
    for name, memory in network.memories().items():
        state = state_of(name, memory, columns[Columns.STATE_IN])
        if state is None:
            state = repeated_states(memory.initial_state(), num_sequences)
        if burn_in is not None and state:
            with torch.no_grad():
                after = memory(burn_in, dtype, state)[1]
            stored_state = state
            state = {}
            for key, leaf in stored_state.items():
                has_burn_in = columns[HAS_BURN_IN].view(-1, *[1] * (leaf.dim() - 1))
                state[key] = torch.where(has_burn_in, after[key], leaf)
        memories[name] = memory(obs, dtype, state)[0]
    return memories


def errors_of_sequences(errors: Tensor, mask: Tensor) -> Tensor:
    """Return one error `[S]` for each sequence from the errors `[S * L]` of its rows where `mask` `[S, L]` is set.

    It is 0.9 max |error| + 0.1 mean |error| (Kapturowski et al. 2019, section 2.3).
    """
    magnitudes = torch.where(mask, errors.reshape(mask.shape).abs(), 0.0)
    return 0.9 * magnitudes.amax(1) + 0.1 * magnitudes.sum(1) / mask.sum(1).clamp(min=1)


class _SequencePlan:
    """Cut of all pieces of episodes into sequences.

    A piece is an uninterrupted part of an episode, which may be longer than a sequence. The plan first finds the pieces
    of all environment columns, then numbers their sequences, and then lists the rows of each sequence.

    If returns are bootstrapped from an observation after a piece, this observation is the last row of the piece. It has
    the number N + k, after the N = T * B rows of the rollout.
    """

    def __init__(self, trajectories: Trajectories, max_seq_len: int) -> None:
        num_steps, num_columns = trajectories.shape
        num_rows = num_steps * num_columns

        # Pieces: first row, number of rows, and number of the bootstrap observation (-1 for none). The rows of a piece
        # are `num_columns` apart.
        starts = self._starts(trajectories)
        # With a limit that no piece reaches, each "sequence" is a whole piece.
        first, sizes, _ = cut_into_sequences(starts, num_rows + 1)
        bootstrap_of_row = np.full(num_rows, -1, np.int64)
        bootstrap_of_row[trajectories.bootstrap_index] = np.arange(len(trajectories.bootstrap_index))
        last = first + (sizes - 1) * num_columns
        bootstrap_of_piece = bootstrap_of_row[last]

        # Sequences, piece by piece. `piece` is the piece of each sequence, and `begin` its first step in the piece.
        sizes_with_bootstrap = sizes + (bootstrap_of_piece >= 0)
        counts = -(-sizes_with_bootstrap // max_seq_len)  # rounded up
        piece = np.repeat(np.arange(len(first)), counts)
        self.number_in_piece = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)
        """Number of each sequence `[S]` within its piece, from 0."""
        begin = self.number_in_piece * max_seq_len
        self.first_row = first[piece] + begin * num_columns
        """First row of each sequence `[S]`."""
        self.lengths = np.minimum(sizes_with_bootstrap[piece] - begin, max_seq_len)
        """Number of rows of each sequence `[S]`, with the bootstrap observation."""
        self.real_lengths = np.minimum(sizes[piece] - begin, max_seq_len)
        """Number of rows of each sequence `[S]`, without it. It is 0 for a sequence of only the bootstrap
        observation."""
        self.continues = self.number_in_piece < counts[piece] - 1
        """Whether a sequence `[S]` is followed by another one of its piece."""

        # Rows of each sequence: steps of the rollout, perhaps the bootstrap observation after them, then padding.
        steps = np.arange(int(self.lengths.max()))
        rows = self.first_row[:, None] + steps * num_columns
        is_bootstrap = (steps >= self.real_lengths[:, None]) & (steps < self.lengths[:, None])
        rows = np.where(is_bootstrap, num_rows + bootstrap_of_piece[piece][:, None], rows)
        self.rows = np.where(steps < self.lengths[:, None], rows, 0)
        """Rows `[S, L]` of all sequences. Padding points to row 0."""

    def train_rows(self, valid: np.ndarray | None, states: State, to_tensor: ToTensor) -> SequenceRows:
        """Return the sequences with at least one transition. `valid` `[T, B]` marks transitions; None for all rows."""
        real = np.arange(self.rows.shape[1]) < self.real_lengths[:, None]
        rows = np.where(real, self.rows, 0)
        is_transition = real if valid is None else real & valid.reshape(-1)[rows]
        trained = np.flatnonzero(is_transition.any(axis=1))
        width = int(self.real_lengths[trained].max())
        return SequenceRows(
            to_tensor(np.ascontiguousarray(rows[trained, :width])),
            to_tensor(self.real_lengths[trained]),
            to_tensor(np.ascontiguousarray(is_transition[trained, :width])),
            rows_of(states, to_tensor(trained)),
        )

    @staticmethod
    def _starts(trajectories: Trajectories) -> np.ndarray:
        """Return the rows `[T, B]` bool at which a piece starts.

        The memory was reset there, or the row before it ends an episode or has a bootstrap observation.
        """
        starts = np.zeros(trajectories.shape, bool) if trajectories.starts is None else trajectories.starts.copy()
        ends = trajectories.dones.copy()
        ends.reshape(-1)[trajectories.bootstrap_index] = True
        # Without recorded starts (random actions, for example) rows that are no transitions separate episodes: they are
        # resets. Recorded starts already mark the rows after them.
        if trajectories.starts is None and trajectories.valid is not None:
            ends |= ~trajectories.valid
        starts[1:] |= ends[:-1]
        return starts

    def sequences_beginning_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the sequences that begin pieces at `rows`; `ValueError` if no piece begins there."""
        begins = np.flatnonzero(self.number_in_piece == 0)
        begins = begins[np.argsort(self.first_row[begins])]
        sequences = begins[np.minimum(np.searchsorted(self.first_row[begins], rows), len(begins) - 1)]
        if not np.array_equal(self.first_row[sequences], rows):
            raise ValueError(f"recurrent states are stored for the rows {rows}, but not all of these begin a sequence")
        return sequences
