"""The default networks of actor-critic algorithms, for every observation space and every simple action space.

Initialised like PPO's reference implementation: orthogonal weights with gain sqrt(2) in hidden layers, 0.01 in the
policy's last layer (nearly uniform actions at first), 1 in the value's, zero biases; Gaussian policies have one learned
log-deviation for each action dimension, independent of the observation (Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization", core details 2 and 13, continuous-control details 1 to 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.data.trees import leaves, map_tree
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import make_head, mask_logits, policy_head, run_networks
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch, RLModule

State = dict[str, Tensor]
T = TypeVar("T")


def trained(part: T | None) -> T:
    """Return a part that acting does not need; `RuntimeError` where the module was built without it."""
    if part is None:
        raise RuntimeError(
            "this network has no value function: it is a policy alone (DefaultPolicyModule), or was built with "
            "inference_only=True"
        )
    return part


class DefaultActorCriticModule(RLModule):
    """Holds a policy and a value function, in two networks or on one shared encoder.

    Acting runs the policy only. Observations of a Dict with the key `"action_mask"` restrict discrete actions to those
    whose mask is not 0; the network sees what is beside the mask.
    """

    value_encoder: Encoder | None
    """None: the policy's encoder, or no value function at all"""
    value_head: nn.Linear | None

    def setup(self) -> None:
        config = self.make_policy()
        if not self.inference_only:
            if not config.share_value_network:
                self.value_encoder = Encoder(self.encoder.space, config)
            self.value_head = make_head(self.encoder.output_size, 1, config.value_gain, config)

    def make_policy(self) -> ModelConfig:
        """Make the policy's layers, and return the `ModelConfig` that they were made by."""
        config = ModelConfig.of(self.model_config)
        if config.recurrent is not None:
            raise ValueError(f"recurrent={config.recurrent!r} needs RecurrentActorCriticModule; this one has no memory")
        space, self.is_masked = self.action_dist_cls.split_mask(self.observation_space)
        self.encoder = Encoder(space, config)
        self.policy_head, self.log_std = policy_head(self.encoder.output_size, self.action_dist_cls, config)
        self.value_encoder = self.value_head = None
        return config

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return what acting needs: `"action_dist_inputs"` `[N, D]`."""
        return {"action_dist_inputs": self._policy(batch, *self._run(batch, (self.encoder, self.policy_head)))}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        inputs, values = self._run_both(batch)
        return {"action_dist_inputs": self._policy(batch, inputs), "vf_preds": values.squeeze(-1)}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[N]`. `RuntimeError` for a module built with `inference_only`."""
        return self._run(batch, (self.value_encoder or self.encoder, trained(self.value_head)))[0].squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["value_encoder", "value_head"]

    def _run(self, batch: Batch, *networks: tuple[Encoder, nn.Linear]) -> Sequence[Tensor]:
        """Run encoders with their heads, together where that is faster."""
        obs, dtype = self._inputs(batch)
        return run_networks(*(encoder.with_head(obs, dtype, head) for encoder, head in networks))

    def _run_both(self, batch: Batch) -> Sequence[Tensor]:
        """Return what the heads of policy and value give; one pass where they share the encoder."""
        value_encoder, value_head = self.value_encoder, trained(self.value_head)
        if value_encoder is None:
            features = self.encoder(*self._inputs(batch))
            return self.policy_head(features), value_head(features)
        return self._run(batch, (self.encoder, self.policy_head), (value_encoder, value_head))

    def _inputs(self, batch: Batch) -> tuple[Any, torch.dtype]:
        return without_mask(batch["obs"]) if self.is_masked else batch["obs"], self.policy_head.weight.dtype

    def _policy(self, batch: Batch, inputs: Tensor) -> Tensor:
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand(*inputs.shape[:-1], -1)], dim=-1)
        if self.is_masked:
            inputs = mask_logits(inputs, self.action_dist_cls.full_mask(batch["obs"][ACTION_MASK]))
        return inputs


class DefaultPolicyModule(DefaultActorCriticModule):
    """Holds the policy of `DefaultActorCriticModule`, with the same initial weights, and nothing else (imitation)."""

    def setup(self) -> None:
        self.inference_only = True
        super().setup()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`."""
        return self._forward(batch)


class Recurrence(nn.Module):
    """Computes one layer of LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014), with torch's equations.

    Its four parameters are ordinary ones (not the packed weights of `nn.LSTM`), so that they may be views into a flat
    tensor. Orthogonal weights for each gate and zero biases with `orthogonal`, else torch's own initialisation.
    """

    def __init__(self, kind: str, input_size: int, hidden_size: int, orthogonal: bool = True) -> None:
        super().__init__()
        self.kind, self.input_size, self.hidden_size = kind, input_size, hidden_size
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


class RecurrentActorCriticModule(DefaultActorCriticModule):
    """Holds an encoder, a recurrent layer, and linear heads for policy and value, which share the memory.

    `model_config.recurrent` is `"lstm"` or `"gru"`. Batches are sequences:

        obs         [B, T, ...] each row one time step; all rows of a sequence lie in one episode
        state_in    {"h": [B, H], ("c": [B, H])} the memory before the first row; absent: an episode's start
        seq_lens    [B] real rows, where sequences are padded on the right; padding changes no real row

    Acting runs no value head. Observations with an action mask work as in `DefaultActorCriticModule`.
    """

    def setup(self) -> None:
        config = ModelConfig.of(self.model_config)
        if config.recurrent is None:
            raise ValueError(
                "model_config.recurrent=None: a module with memory needs 'lstm' or 'gru'; without memory use "
                "DefaultActorCriticModule"
            )
        space, self.is_masked = self.action_dist_cls.split_mask(self.observation_space)
        self.encoder = Encoder(space, config)
        size = config.recurrent_size
        self.recurrence = Recurrence(config.recurrent, self.encoder.output_size, size, config.orthogonal_init)
        self.policy_head, self.log_std = policy_head(size, self.action_dist_cls, config)
        self.value_head = None if self.inference_only else make_head(size, 1, config.value_gain, config)

    def get_initial_state(self) -> State:
        return self.recurrence.initial_state()

    def _forward(self, batch: Batch) -> dict[str, Any]:
        """Return what acting needs: `"action_dist_inputs"` `[B, T, D]`, and `"state_out"` after the last real row."""
        features, state = self._remember(batch, batch.get("seq_lens"))
        return {"action_dist_inputs": self._policy(batch, self.policy_head(features)), "state_out": state}

    def forward_train(self, batch: Batch) -> dict[str, Any]:
        """Return `"action_dist_inputs"` `[B, T, D]`, `"vf_preds"` `[B, T]` and, without padding, `"state_out"`."""
        features, state = self._remember(batch, None)
        inputs = self._policy(batch, self.policy_head(features))
        out: dict[str, Any] = {"action_dist_inputs": inputs, "vf_preds": self._value(features)}
        return out if "seq_lens" in batch else {**out, "state_out": state}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[B, T]`. `RuntimeError` for a module built with `inference_only`."""
        return self._value(self._remember(batch, None)[0])

    def _remember(self, batch: Batch, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Return features `[B, T, H]` of the present and the past, and the state after them."""
        obs, dtype = self._inputs(batch)
        leading = next(leaves(obs)).shape[:2]
        encoded = self.encoder(map_tree(lambda leaf: leaf.flatten(0, 1), obs), dtype).unflatten(0, leading)
        state = batch.get("state_in")
        if state is None:
            state = {name: leaf.expand(leading[0], -1) for name, leaf in self.get_initial_state().items()}
        return self.recurrence(encoded, state, lengths)

    def _value(self, features: Tensor) -> Tensor:
        return trained(self.value_head)(features).squeeze(-1)


def default_module_class(model_config: ModelConfig | Mapping[str, Any] | None) -> type[RLModule]:
    """Return the class of the default network: the one with memory where `model_config` asks for it."""
    fields = vars(model_config) if isinstance(model_config, ModelConfig) else model_config or {}
    return DefaultActorCriticModule if fields.get("recurrent") is None else RecurrentActorCriticModule
