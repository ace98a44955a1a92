"""Memories, which are layers that carry a state from step to step, and the encoder with a memory above it."""

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

from lockstep.data.groups import PartView
from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import make_mlp
from lockstep.modules.model_config import AttentionConfig, ModelConfig

State = dict[str, Tensor]


class Recurrence(nn.Module):
    """One layer of LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014), with torch's equations.

    It is not an `nn.LSTM`, because that keeps its weights packed in memory of its own; these four parameters may be
    views into the optimizer's flat tensor.

    Args:
        kind: "lstm" or "gru".
        input_size: Number of inputs F.
        hidden_size: Size H of the state.
        orthogonal: Orthogonal weights for each gate, and zero biases. False: torch's own initialisation.
    """

    def __init__(self, kind: str, input_size: int, hidden_size: int, orthogonal: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.input_size = input_size
        self.hidden_size = hidden_size
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
        """Return the state before an episode, zeros: `{"h": [H]}` of a GRU, `{"h": [H], "c": [H]}` of an LSTM."""
        zeros = self.weight_hh.new_zeros(self.hidden_size)
        return {"h": zeros, "c": zeros.clone()} if self.kind == "lstm" else {"h": zeros}

    def forward(
        self,
        inputs: Tensor,
        state: Mapping[str, Tensor],
        lengths: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return features `[B, T, H]` and the state after the last row.

        Args:
            inputs: `[B, T, F]`.
            state: State before the first row, leaves `[B, H]`.
            lengths: Number of real rows of each sequence, `[B]`. The returned state is then the one after the last
                real row. None: all rows are real.
            begins: Whether the memory is reset before a row, bool `[B, T]`. None: it is never reset. `lengths` is then
                ignored.
        """
        if begins is not None:
            return self._forward_with_resets(inputs, state, begins)
        weights = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        is_lstm = self.kind == "lstm"
        run: Any = torch.lstm if is_lstm else torch.gru
        # cuDNN keeps the values that its backward pass needs only in training mode.
        in_training = inputs.is_cuda and torch.is_grad_enabled()
        names = ("h", "c") if is_lstm else ("h",)
        start = [state[name].unsqueeze(0) for name in names]
        if lengths is None:
            features, *end = run(
                inputs, start if is_lstm else start[0], weights, True, 1, 0.0, in_training, False, True
            )
        else:
            # Packing sorts the sequences by length, so the states are sorted before and sorted back afterwards.
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            order: Any = packed.sorted_indices
            start = [part.index_select(1, order) for part in start]
            data, *end = run(
                packed.data,
                packed.batch_sizes,
                start if is_lstm else start[0],
                weights,
                True,
                1,
                0.0,
                in_training,
                False,
            )
            outputs = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            features = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0]
            original_order: Any = packed.unsorted_indices
            end = [part.index_select(1, original_order) for part in end]
        return features, dict(zip(names, (part.squeeze(0) for part in end)))

    def _forward_with_resets(self, inputs: Tensor, state: Mapping[str, Tensor], begins: Tensor) -> tuple[Tensor, State]:
        """Return features and state as `forward` does, row by row: torch's layers cannot reset their state between.

        Nothing depends on the values of `begins`, so that a CUDA graph can hold the operations.
        """
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        inputs = inputs.to(self.weight_ih.dtype)  # cells take no bfloat16 on the CPU, with mixed precision
        state = dict(state)
        features = []
        for row, is_reset in zip(inputs.unbind(1), begins.unsqueeze(-1).unbind(1)):
            hidden = state["h"].masked_fill(is_reset, 0.0)
            if self.kind == "lstm":
                cell = state["c"].masked_fill(is_reset, 0.0)
                hidden, cell = torch.lstm_cell(row, (hidden, cell), *weights)
                state = {"h": hidden, "c": cell}
            else:
                hidden = torch.gru_cell(row, hidden, *weights)
                state = {"h": hidden}
            features.append(hidden)
        return torch.stack(features, 1), state


class StackedRecurrence(nn.Module):
    """Several layers of LSTM or GRU, each on the outputs of the one below.

    The state has the names of `Recurrence` for the first layer, and names such as `"h_1"` for the layers above it.
    """

    def __init__(self, kind: str, input_size: int, hidden_size: int, num_layers: int, orthogonal: bool = True) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(Recurrence(kind, size, hidden_size, orthogonal) for size in sizes)
        self.output_size = hidden_size

    def initial_state(self) -> State:
        """Return the state before an episode, zeros."""
        state: State = {}
        for number, layer in enumerate(self.layers):
            state |= {_layer_name(name, number): leaf for name, leaf in layer.initial_state().items()}  # type: ignore[operator]
        return state

    def forward(
        self,
        inputs: Tensor,
        state: Mapping[str, Tensor],
        lengths: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return features `[B, T, H]` and the state after the last row; see `Recurrence.forward`."""
        features = inputs
        state_out: State = {}
        for number, layer in enumerate(self.layers):
            names = {name: _layer_name(name, number) for name in layer.initial_state()}  # type: ignore[operator]
            before = {name: state[full_name] for name, full_name in names.items()}
            features, after = layer(features, before, lengths, begins)
            state_out |= {full_name: after[name] for name, full_name in names.items()}
        return features, state_out


def _layer_name(name: str, number: int) -> str:
    """Return the name of a layer's state in that of several layers."""
    return f"{name}_{number}" if number else name


class Gate(nn.Module):
    """Gate that mixes a layer's output `y` into its input `x` by the equations of a GRU; all are `[..., size]`.

    Parisotto et al. 2019, section 3.2:

        r = sigmoid(W_r y + U_r x)
        z = sigmoid(W_z y + U_z x - bias)
        h = tanh(W_g y + U_g (r * x))
        g(x, y) = (1 - z) x + z h

    With a `bias` above 0 it passes on little of `y` at first.
    """

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.of_output = nn.Linear(size, 3 * size, bias=False)
        self.of_input = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), float(bias)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset, update, candidate = self.of_output(y).chunk(3, -1)
        reset_x, update_x = self.of_input(x).chunk(2, -1)
        update = (update + update_x - self.bias).sigmoid()
        candidate = (candidate + self.of_reset((reset + reset_x).sigmoid() * x)).tanh()
        # With mixed precision layers return bfloat16, which `lerp` does not mix with float32.
        return torch.lerp(x, candidate.to(x.dtype), update.to(x.dtype))


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions: it sees how far back a row is, and not its absolute position.

    Dai et al. 2019, "Transformer-XL" (https://arxiv.org/abs/1901.02860), section 3.3. The score of query i and key j is

        (q_i + u) . k_j + (q_i + v) . W_R R_(i-j)

    with the `content_bias` u, the `position_bias` v, and the encoding R of the distance i - j. So a sequence may be cut
    anywhere without changing the result.
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

    def forward(self, inputs: Tensor, context: Tensor, positions: Tensor, distances: Tensor, visible: Tensor) -> Tensor:
        """Return the attended values `[B, T, D]`.

        Args:
            inputs: Rows that attend, `[B, T, D]`.
            context: Rows that are attended to, `[B, C, D]`.
            positions: Encodings of the distances 0 to P - 1, `[P, D]`.
            distances: Distance of each context row from each input row, int64 `[T, C]`.
            visible: Context rows that an input row may attend to, bool `[B, T, C]`. At least one for each input row.
        """
        query = self.query(inputs)
        key, value = (self._heads(part) for part in self.key_value(context).chunk(2, -1))
        by_content = self._heads(query + self.content_bias) @ key.transpose(-1, -2)
        # Scores of all distances, `[B, heads, T, P]`, from which each pair of rows takes the one of its distance.
        by_distance = self._heads(query + self.position_bias) @ self._heads(self.position(positions)).transpose(-1, -2)
        by_distance = by_distance.gather(-1, distances.expand(*by_distance.shape[:2], -1, -1))
        scores = (by_content + by_distance) / math.sqrt(key.shape[-1])
        weights = scores.masked_fill(~visible.unsqueeze(1), -math.inf).softmax(-1)
        attended: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
        return attended

    def _heads(self, rows: Tensor) -> Tensor:
        """Return rows `[..., T, D]` split by head, `[..., heads, T, D / heads]`."""
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


class TransformerLayer(nn.Module):
    """Transformer layer: attention and then two dense layers, each on normalised inputs and behind a gate.

    The layer is close to the identity at first (identity map reordering, Parisotto et al. 2019, section 3).
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        size = config.size
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.gates = nn.ModuleList(Gate(size, config.gate_bias) for _ in range(2))
        self.attention = RelativeAttention(size, config.num_heads)
        self.dense = nn.Sequential(nn.Linear(size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, size))

    def forward(self, context: Tensor, positions: Tensor, distances: Tensor, visible: Tensor) -> Tensor:
        """Return `[B, T, D]` for the last T rows of `context` `[B, C, D]`; see `RelativeAttention.forward`."""
        size = distances.shape[0]
        normed = self.norms[0](context)
        attended = self.attention(normed[:, -size:], normed, positions, distances, visible)
        x = self.gates[0](context[:, -size:], F.relu(attended))
        y: Tensor = self.gates[1](x, F.relu(self.dense(self.norms[1](x))))
        return y


class GatedTransformer(nn.Module):
    """Gated transformer (GTrXL, Parisotto et al. 2019, https://arxiv.org/abs/1910.06764).

    Each row attends to itself and to the `memory` rows before it, however the rows are cut into sequences. The state is
    `{"memory": [layers, memory, size], "length": [1]}`: the last `memory` inputs of each layer, of which the last
    `length` are filled.
    """

    positions: Tensor

    def __init__(self, input_size: int, config: AttentionConfig) -> None:
        super().__init__()
        self.output_size = config.size
        self.size = config.memory
        """Number of earlier rows that a layer attends to."""
        self.embedding = nn.Linear(input_size, config.size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        # Sinusoidal encodings of the distances 0 to `memory` (Vaswani et al. 2017).
        angles = torch.arange(config.memory + 1.0).unsqueeze(1) * 1e4 ** -torch.linspace(0.0, 1.0, config.size // 2)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def initial_state(self) -> State:
        """Return an empty memory."""
        zeros = self.embedding.weight.new_zeros
        return {"memory": zeros(len(self.layers), self.size, self.output_size), "length": zeros(1)}

    def forward(
        self,
        inputs: Tensor,
        state: Mapping[str, Tensor],
        lengths: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return features `[B, T, D]` and the state after the last row; see `Recurrence.forward`."""
        num_sequences, num_steps = inputs.shape[:2]
        # A layer's context is its memory followed by its inputs. Context row c has the position c, input row t the
        # position `size + t`.
        context_positions = torch.arange(num_steps + self.size, device=inputs.device)
        distances = context_positions[self.size :].unsqueeze(1) - context_positions
        is_filled = context_positions >= self.size - state["length"]
        visible = ((distances >= 0) & (distances <= self.size)) & is_filled.unsqueeze(1)
        row_begins = None
        if begins is not None:
            # Position of the last reset up to each row, 0 without one. A row sees nothing of what lies before it.
            row_begins = torch.where(begins, context_positions[self.size :], 0).cummax(1).values
            visible = visible & (context_positions >= row_begins.unsqueeze(-1))
        distances = distances.clamp(0, self.size)

        # The new memory is the `size` context rows that end with the last real row.
        num_real = lengths
        if num_real is None:
            num_real = torch.full((num_sequences,), num_steps, device=inputs.device)
        memory_rows = context_positions[: self.size] + num_real[:, None]
        x = self.embedding(inputs)
        memories = []
        for layer, memory in zip(self.layers, state["memory"].unbind(1)):
            context = torch.cat([memory, x], 1)
            memories.append(context.gather(1, memory_rows.unsqueeze(-1).expand(-1, -1, context.shape[-1])))
            x = layer(context, self.positions, distances, visible)

        num_new = num_steps if lengths is None else lengths.unsqueeze(1)
        length = (state["length"] + num_new).clamp(max=self.size)
        if row_begins is not None:
            # After a reset only the rows since then are remembered.
            last_reset = row_begins[:, -1:]
            num_since = (num_steps + self.size - last_reset).clamp(max=self.size)
            length = torch.where(last_reset > 0, num_since.to(length.dtype), length)
        return x, {"memory": torch.stack(memories, 1), "length": length}


def make_memory(input_size: int, config: ModelConfig) -> Recurrence | StackedRecurrence | GatedTransformer:
    """Return a new memory by `config`, on features `[B, T, input_size]`.

    Every memory has the interface of `Recurrence`: `output_size`, `initial_state()` and `forward(inputs, state,
    lengths, begins)`.
    """
    if config.attention is not None:
        return GatedTransformer(input_size, config.attention)
    if config.recurrent is None:
        raise ValueError(
            "model_config.recurrent=None: a network with memory needs 'lstm' or 'gru', or model_config.attention"
        )
    kind = config.recurrent
    size = config.recurrent_size
    if config.recurrent_layers > 1:
        return StackedRecurrence(kind, input_size, size, config.recurrent_layers, config.orthogonal_init)
    return Recurrence(kind, input_size, size, config.orthogonal_init)


def make_hidden_layers(input_size: int, config: ModelConfig) -> tuple[nn.Sequential, int]:
    """Return the hidden layers above a memory with `input_size` outputs, and the size of their output.

    There are none unless `config.memory_below_hiddens`.
    """
    if not config.memory_below_hiddens:
        return nn.Sequential(), input_size
    gain = config.hidden_gain if config.orthogonal_init else None
    layers = make_mlp(input_size, config.hiddens, config.activation, gain, None, config.layer_norm)
    return layers, config.hiddens[-1] if config.hiddens else input_size


class MemoryEncoder(nn.Module):
    """`Encoder` with a memory above it, for sequences of observations `[B, T, ...]`.

    With `config.memory_below_hiddens` the hidden layers are above the memory. The features `[B, T, output_size]` depend
    on the present and the earlier observations. `ValueError` if the configuration has no memory. The arguments are
    those of `Encoder`.
    """

    has_memory = True

    def __init__(self, space: Space[Any], config: ModelConfig, view: PartView | None = None) -> None:
        super().__init__()
        self.space = space
        self.view = None if view is None or view.is_identity else view
        # Without noise in the weights: noise is drawn for each row, and the encoder sees rows of sequences.
        below = replace(config, noisy_sigma=None)
        if config.memory_below_hiddens:
            below = replace(below, hiddens=())
        self.encoder = Encoder(space, below)
        self.memory = make_memory(self.encoder.output_size, config)
        self.hidden_layers, self.output_size = make_hidden_layers(self.memory.output_size, config)
        """Layers above the memory."""

    @property
    def mlp(self) -> nn.Sequential:
        """Layers below the memory. An `Encoder` has its layers under the same name."""
        return self.encoder.mlp

    def initial_state(self) -> State:
        """Return the state at an episode's start, without a batch dimension."""
        return self.memory.initial_state()

    def forward(
        self,
        obs: Tree,
        dtype: torch.dtype,
        state: Mapping[str, Tensor] | None = None,
        lengths: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the features `[B, T, output_size]` and the state after the last row.

        Args:
            obs: Tree of tensors `[B, T, ...]`.
            dtype: Dtype of the weights, in which the features are computed.
            state: State before the first row, leaves `[B, ...]`; None at the start of episodes.
            lengths: Number of real rows of each sequence, `[B]`. The returned state is then the one after the last
                real row. None: all rows are real.
            begins: Whether the memory is reset before a row, bool `[B, T]`, see `Recurrence.forward`.
        """
        remembered, state = self.remember(obs, dtype, state, lengths, begins)
        return self.hidden_layers(remembered), state

    def remember(
        self,
        obs: Tree,
        dtype: torch.dtype,
        state: Mapping[str, Tensor] | None,
        lengths: Tensor | None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the outputs of the memory `[B, T, H]`, below the hidden layers, and the state; see `forward`."""
        seen = obs if self.view is None else self.view(obs)
        leading = next(leaves(seen)).shape[:2]
        encoded = self.encoder(map_tree(lambda leaf: leaf.flatten(0, 1), seen), dtype).unflatten(0, leading)
        if state is None:
            state = {name: leaf.expand(leading[0], *leaf.shape) for name, leaf in self.initial_state().items()}
        return self.memory(encoded, state, lengths, begins)
