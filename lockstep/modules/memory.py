"""Memories: layers that carry a state from step to step, and the encoder that has one above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.modules.encoders import Encoder
from lockstep.modules.model_config import AttentionConfig, ModelConfig

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
        trains = inputs.is_cuda and torch.is_grad_enabled()  # else cuDNN does not keep what its backward pass needs
        start = [state[name].unsqueeze(0) for name in (("h", "c") if is_lstm else ("h",))]
        if lengths is None:
            begin = start if is_lstm else start[0]
            features, *after = run(inputs, begin, weights, True, 1, 0.0, trains, False, True)
        else:
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            order: Any = packed.sorted_indices
            start = [part.index_select(1, order) for part in start]
            begin = start if is_lstm else start[0]
            data, *after = run(packed.data, packed.batch_sizes, begin, weights, True, 1, 0.0, trains, False)
            again = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            features = pad_packed_sequence(again, batch_first=True, total_length=inputs.shape[1])[0]
            back: Any = packed.unsorted_indices
            after = [part.index_select(1, back) for part in after]
        return features, dict(zip(("h", "c"), (part.squeeze(0) for part in after)))


class Gate(nn.Module):
    """Lets as much of a layer's output `y` into its input `x` as it learns to, by the equations of a GRU.

    At first little, for a `bias` above 0 (Parisotto et al. 2019, section 3.2). All are `[..., size]`.
    """

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.of_output = nn.Linear(size, 3 * size, bias=False)
        self.of_input = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), float(bias)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (reset, update, candidate), (reset_x, update_x) = self.of_output(y).chunk(3, -1), self.of_input(x).chunk(2, -1)
        update = (update + update_x - self.bias).sigmoid()
        candidate = (candidate + self.of_reset((reset + reset_x).sigmoid() * x)).tanh()
        return torch.lerp(x, candidate, update)


class RelativeAttention(nn.Module):
    """Computes attention with several heads that knows how far back a row lies, not where it stands.

    As in Dai et al. 2019, "Transformer-XL" (https://arxiv.org/abs/1901.02860), equation of section 3.3.
    """

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(size, size, bias=False)
        self.key_value = nn.Linear(size, 2 * size, bias=False)
        self.position = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(size))
        self.position_bias = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor, context: Tensor, positions: Tensor, distances: Tensor, seen: Tensor) -> Tensor:
        """Return `[B, T, D]`.

        Args:
            inputs: `[B, T, D]`, which look.
            context: `[B, C, D]`, which are looked at.
            positions: `[P, D]` encodings of distances 0 to P - 1.
            distances: `[T, C]` int64, how far back each row of the context lies.
            seen: `[B, T, C]` bool, which rows may be looked at; for each at least one.
        """
        query = self.query(inputs)
        key, value = (self._heads(part) for part in self.key_value(context).chunk(2, -1))
        by_content = self._heads(query + self.content_bias) @ key.transpose(-1, -2)
        by_distance = self._heads(query + self.position_bias) @ self._heads(self.position(positions)).transpose(-1, -2)
        by_distance = by_distance.gather(-1, distances.expand(*by_distance.shape[:2], -1, -1))
        scores = (by_content + by_distance) / math.sqrt(key.shape[-1])
        weights = scores.masked_fill(~seen.unsqueeze(1), -math.inf).softmax(-1)
        attended: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
        return attended

    def _heads(self, rows: Tensor) -> Tensor:
        """Return `[..., T, D]` as `[..., heads, T, D / heads]`."""
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


class TransformerLayer(nn.Module):
    """Computes attention and two dense layers, each on normalised inputs and behind a gate.

    The layer's inputs go through unchanged at first (identity map reordering, Parisotto et al. 2019, section 3).
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        size = config.size
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.gates = nn.ModuleList(Gate(size, config.gate_bias) for _ in range(2))
        self.attention = RelativeAttention(size, config.num_heads)
        self.dense = nn.Sequential(nn.Linear(size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, size))

    def forward(self, context: Tensor, positions: Tensor, distances: Tensor, seen: Tensor) -> Tensor:
        """Return `[B, T, D]` for the last T rows of `context` `[B, C, D]`; see `RelativeAttention.forward`."""
        size = distances.shape[0]
        normed = self.norms[0](context)
        attended = self.attention(normed[:, -size:], normed, positions, distances, seen)
        x = self.gates[0](context[:, -size:], F.relu(attended))
        y: Tensor = self.gates[1](x, F.relu(self.dense(self.norms[1](x))))
        return y


class GatedTransformer(nn.Module):
    """Computes a gated transformer (GTrXL, Parisotto et al. 2019, https://arxiv.org/abs/1910.06764).

    Each row sees itself and the `memory` rows before it, however these were cut into sequences. The state is the last
    `memory` inputs of each layer, `{"memory": [layers, memory, size], "length": [1]}`, `length` of which are filled.
    """

    positions: Tensor

    def __init__(self, input_size: int, config: AttentionConfig) -> None:
        super().__init__()
        self.output_size, self.size = config.size, config.memory
        self.embedding = nn.Linear(input_size, config.size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        angles = torch.arange(config.memory + 1.0).unsqueeze(1) * 1e4 ** -torch.linspace(0.0, 1.0, config.size // 2)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def initial_state(self) -> State:
        """Return an empty memory."""
        zeros = self.embedding.weight.new_zeros
        return {"memory": zeros(len(self.layers), self.size, self.output_size), "length": zeros(1)}

    def forward(
        self, inputs: Tensor, state: Mapping[str, Tensor], lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return features `[B, T, D]` and the state after the last row; see `Recurrence.forward`."""
        number, steps = inputs.shape[:2]
        here = torch.arange(steps + self.size, device=inputs.device)
        distances = here[self.size :].unsqueeze(1) - here
        is_filled = here >= self.size - state["length"]
        seen = ((distances >= 0) & (distances <= self.size)) & is_filled.unsqueeze(1)
        distances = distances.clamp(0, self.size)
        last = (
            here[: self.size]
            + (torch.full((number,), steps, device=here.device) if lengths is None else lengths)[:, None]
        )
        x, kept = self.embedding(inputs), []
        for layer, memory in zip(self.layers, state["memory"].unbind(1)):
            context = torch.cat([memory, x], 1)
            kept.append(context.gather(1, last.unsqueeze(-1).expand(-1, -1, context.shape[-1])))
            x = layer(context, self.positions, distances, seen)
        done = steps if lengths is None else lengths.unsqueeze(1)
        return x, {"memory": torch.stack(kept, 1), "length": (state["length"] + done).clamp(max=self.size)}


def make_memory(input_size: int, config: ModelConfig) -> Recurrence | GatedTransformer:
    """Make the memory that `config` asks for, on features `[B, T, input_size]`.

    It has `output_size`, `initial_state()` and `forward(inputs, state, lengths)`, as `Recurrence` does.
    """
    if config.attention is not None:
        return GatedTransformer(input_size, config.attention)
    if config.recurrent is None:
        raise ValueError(
            "model_config.recurrent=None: a network with memory needs 'lstm' or 'gru', or model_config.attention"
        )
    return Recurrence(config.recurrent, input_size, config.recurrent_size, config.orthogonal_init)


class MemoryEncoder(nn.Module):
    """Turns sequences of observations `[B, T, ...]` into features `[B, T, output_size]` of the present and the past.

    It is an `Encoder` and a memory above it. `ValueError` where the configuration names no memory.
    """

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.space = space
        self.encoder = Encoder(space, replace(config, noisy_sigma=None))  # noise is of rows, not of sequences
        self.memory = make_memory(self.encoder.output_size, config)
        self.output_size = self.memory.output_size

    @property
    def mlp(self) -> nn.Sequential:
        """The layers below the memory, under the name that an `Encoder` has for its layers."""
        return self.encoder.mlp

    def initial_state(self) -> State:
        """Return the state at an episode's start, without a batch dimension."""
        return self.memory.initial_state()

    def forward(
        self, obs: Tree, dtype: torch.dtype, state: Mapping[str, Tensor] | None = None, lengths: Tensor | None = None
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
