"""Memories: layers that carry a state from step to step, and the encoder that has one above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lockstep.data.trees import leaves, map_tree
from lockstep.modules.encoders import Encoder
from lockstep.modules.model_config import ModelConfig

State = dict[str, Tensor]


class Recurrence(nn.Module):
    """Computes one layer of LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014), with torch's equations.

    Its four parameters are ordinary ones (not the packed weights of `nn.LSTM`), so that they may be views into a flat
    tensor. Orthogonal weights for each gate and zero biases with `orthogonal`, else torch's own initialisation.
    """

    def __init__(self, kind: str, input_size: int, hidden_size: int, orthogonal: bool = True) -> None:
        super().__init__()
        self.kind, self.input_size, self.hidden_size = kind, input_size, hidden_size
        self.output_size = hidden_size
        rows = (4 if kind == "lstm" else 3) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias_ih = nn.Parameter(torch.zeros(rows))
        self.bias_hh = nn.Parameter(torch.zeros(rows))
        if orthogonal:
            for weight in (self.weight_ih, self.weight_hh):
                for gate in weight.data.split(hidden_size):
                    nn.init.orthogonal_(gate)
        else:
            bound = 1.0 / math.sqrt(hidden_size)
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self) -> State:
        """Return zeros: `{"h": [H]}`, for an LSTM `{"h": [H], "c": [H]}`."""
        zeros = self.weight_hh.new_zeros(self.hidden_size)
        return {"h": zeros, "c": zeros.clone()} if self.kind == "lstm" else {"h": zeros}

    def forward(
        self, inputs: Tensor, state: Mapping[str, Tensor], lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return features `[B, T, H]` and the state after the last row.

        Args:
            inputs: `[B, T, F]`.
            state: before the first row, leaves `[B, H]`.
            lengths: `[B]`, the real rows of each sequence; the state is then that after its last real row.
        """
        weights = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        is_lstm = self.kind == "lstm"
        run: Any = torch.lstm if is_lstm else torch.gru
        start = [state[name].unsqueeze(0) for name in (("h", "c") if is_lstm else ("h",))]
        if lengths is None:
            begin = start if is_lstm else start[0]
            features, *after = run(inputs, begin, weights, True, 1, 0.0, False, False, True)
        else:
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            order: Any = packed.sorted_indices
            start = [part.index_select(1, order) for part in start]
            begin = start if is_lstm else start[0]
            data, *after = run(packed.data, packed.batch_sizes, begin, weights, True, 1, 0.0, False, False)
            again = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            features = pad_packed_sequence(again, batch_first=True, total_length=inputs.shape[1])[0]
            back: Any = packed.unsorted_indices
            after = [part.index_select(1, back) for part in after]
        return features, dict(zip(("h", "c"), (part.squeeze(0) for part in after)))


def make_memory(input_size: int, config: ModelConfig) -> Recurrence:
    """Make the memory that `config` asks for, on features `[B, T, input_size]`.

    It has `output_size`, `initial_state()` and `forward(inputs, state, lengths)`, as `Recurrence` does.
    """
    if config.recurrent is None:
        raise ValueError("model_config.recurrent=None: a network with memory needs 'lstm' or 'gru'")
    return Recurrence(config.recurrent, input_size, config.recurrent_size, config.orthogonal_init)


class MemoryEncoder(nn.Module):
    """Turns sequences of observations `[B, T, ...]` into features `[B, T, output_size]` of the present and the past.

    It is an `Encoder` and a memory above it. `ValueError` where the configuration names no memory.
    """

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.space = space
        self.encoder = Encoder(space, config)
        self.memory = make_memory(self.encoder.output_size, config)
        self.output_size = self.memory.output_size

    def initial_state(self) -> State:
        """Return the state at an episode's start, without a batch dimension."""
        return self.memory.initial_state()

    def forward(
        self, obs: Any, dtype: torch.dtype, state: Mapping[str, Tensor] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return features, computed in `dtype`, and the state after the last row.

        Args:
            obs: a tree of tensors `[B, T, ...]`.
            dtype: that of the weights.
            state: before the first row, leaves `[B, ...]`; None at an episode's start.
            lengths: `[B]`, the real rows of each sequence; the state is then that after its last real row.
        """
        leading = next(leaves(obs)).shape[:2]
        encoded = self.encoder(map_tree(lambda leaf: leaf.flatten(0, 1), obs), dtype).unflatten(0, leading)
        if state is None:
            state = {name: leaf.expand(leading[0], *leaf.shape) for name, leaf in self.initial_state().items()}
        return self.memory(encoded, state, lengths)
