"""Default networks of actor-critic algorithms, for every observation space and every simple action space.

The initialisation is that of PPO's reference implementation: orthogonal weights with gain sqrt(2) in hidden layers,
0.01 in the policy's last layer (nearly uniform actions at first) and 1 in the value's, and zero biases. A Gaussian
policy has one learned log standard deviation for each action dimension, independent of the observation (Huang et al.
2022, "The 37 Implementation Details of Proximal Policy Optimization", core details 2 and 13, continuous-control
details 1 to 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK
from lockstep.data.columns import BEGINS
from lockstep.data.groups import CRITIC, POLICY, PartView
from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import make_head, make_policy_head, mask_logits, run_networks
from lockstep.modules.memory import MemoryEncoder, State, make_hidden_layers
from lockstep.modules.mirror import ActionMirror
from lockstep.modules.model_config import ModelConfig, options_of
from lockstep.modules.rl_module import Batch, RLModule
from lockstep.ops.distributions import DiagGaussian

T = TypeVar("T")


def require_part(part: T | None) -> T:
    """Return a part of a module that only training needs. `RuntimeError` if the module was built without it."""
    if part is None:
        raise RuntimeError(
            "this network has no value function: it is a policy alone (DefaultPolicyModule), or was built with "
            "inference_only=True"
        )
    return part


class DefaultActorCriticModule(RLModule):
    """Policy and value function, in two networks or above one shared encoder.

    With `observation_groups`, policy and value function see the entries of their groups. Acting runs the policy only,
    and needs no other entries. The key `"action_mask"` of Dict observations restricts discrete actions to those whose
    mask is not 0; the networks get the observation without it.
    """

    value_encoder: Encoder | None
    """Encoder of the value function. None: the policy's encoder is used, or there is no value function."""
    value_head: nn.Linear | None
    """Last layer of the value function. None: there is no value function."""
    has_values = True
    """True if the class has a value function. A module that only acts is built without it."""
    value_parts = ("value_encoder", "value_head")
    action_mirror: ActionMirror | None
    """Mirror of actions of a symmetric network, whose observations are pairs: `batch["obs"]` is (observations, their
    mirror images). None for any other network."""

    def setup(self) -> None:
        config = self.make_policy()
        if self.has_values and "value_head" not in self.parts_left_out():
            view = self.value_view()
            if config.vf_share_layers and view.paths != self.policy_view.paths:
                raise ValueError(
                    "vf_share_layers=True gives policy and value one encoder, and their groups of observations differ: "
                    f"{self.policy_view.in_words} and {view.in_words}. Set vf_share_layers=False, or leave out the "
                    "groups"
                )
            if not config.vf_share_layers:
                self.value_encoder = self.make_value_encoder(view, config.for_value())
            value_size = (self.value_encoder or self.encoder).output_size
            self.value_head = make_head(value_size, 1, config.value_gain, config)

    def make_policy(self) -> ModelConfig:
        """Make the policy's layers, and return the `ModelConfig` that was used."""
        config = ModelConfig.of(self.model_config)
        _, self.is_masked = self.action_dist_cls.split_mask(self.observation_space)
        self.policy_view = self.view_of(POLICY)
        self.encoder = self.make_encoder(self.policy_view, config)
        self.policy_head, self.log_std = make_policy_head(self.encoder.output_size, self.action_dist_cls, config)
        self.squashes_mean = config.squash_mean
        if config.squash_mean and self.action_dist_cls.dist_class is not DiagGaussian:
            raise ValueError(f"squash_mean=True needs a Gaussian over the actions of a Box, not {self.action_dist_cls}")
        self.value_encoder = None
        self.value_head = None
        self.action_mirror = ActionMirror(self.action_dist_cls) if config.symmetric else None
        return config

    def value_view(self) -> PartView:
        """Return what the value function sees."""
        return self.view_of(CRITIC)

    def make_encoder(self, view: PartView, config: ModelConfig) -> Encoder:
        """Return a new encoder of what a part sees. `ValueError` if `config` has a memory."""
        if config.has_memory:
            raise ValueError(f"{config.memory_in_words} needs RecurrentActorCriticModule; this one has no memory")
        return Encoder(view.space, config, view)

    def make_value_encoder(self, view: PartView, config: ModelConfig) -> Encoder:
        """Return a new encoder of the state value."""
        return self.make_encoder(view, config)

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting: `"action_dist_inputs"` `[N, D]`."""
        if self.action_mirror is None:
            return {"action_dist_inputs": self._policy_outputs(batch)}
        of_images = [self._policy_outputs({**batch, "obs": image}) for image in self._images(batch)]
        return {"action_dist_inputs": self.action_mirror.symmetrised(*of_images)}

    def _policy_outputs(self, batch: Batch) -> Tensor:
        """Return the inputs of the action distribution `[N, D]` for single observations, not pairs."""
        (outputs,) = self._run(batch, (self.encoder, self.policy_head))
        return self._dist_inputs(batch, outputs)

    def _images(self, batch: Batch) -> tuple[Any, Any]:
        """Return the observations and their mirror images; `ValueError` if the batch does not have both."""
        pair = batch["obs"]
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(
                "a symmetric network needs pairs of observations and their mirror images, which the connectors of a "
                "policy make: act with policy.compute_actions, or with an export"
            )
        return pair

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        if self.action_mirror is not None:
            return {**self._forward(batch), "vf_preds": self.compute_values(batch)}
        outputs, values = self._run_both(batch)
        return {"action_dist_inputs": self._dist_inputs(batch, outputs), "vf_preds": values.squeeze(-1)}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[N]`. `RuntimeError` for a module built with `inference_only`."""
        value_head = require_part(self.value_head)
        if self.action_mirror is not None:
            batch = {**batch, "obs": self._images(batch)[0]}
        (values,) = self._run(batch, (self.value_encoder or self.encoder, value_head))
        return values.squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["value_encoder", "value_head"]

    def _run(self, batch: Batch, *networks: tuple[Encoder, nn.Linear]) -> Sequence[Tensor]:
        """Return the outputs of encoders with their heads, which run together where that is faster."""
        obs, dtype = self._inputs(batch)
        return run_networks(*(encoder.with_head(obs, dtype, head) for encoder, head in networks))

    def _run_both(self, batch: Batch) -> Sequence[Tensor]:
        """Return the outputs of the policy's and the value's head. A shared encoder runs once."""
        value_encoder = self.value_encoder
        value_head = require_part(self.value_head)
        if value_encoder is None:
            features = self.encoder(*self._inputs(batch))
            return self.policy_head(features), value_head(features)
        return self._run(batch, (self.encoder, self.policy_head), (value_encoder, value_head))

    def _inputs(self, batch: Batch) -> tuple[Any, torch.dtype]:
        """Return the observations, of which each encoder takes what it sees, and the dtype to compute in."""
        return batch["obs"], self.policy_head.weight.dtype

    def _dist_inputs(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Return the inputs of the action distribution `[N, D]` for outputs of the policy's head."""
        if self.squashes_mean:
            size = self.action_dist_cls.noise_size
            outputs = torch.cat([outputs[..., :size].tanh(), outputs[..., size:]], dim=-1)
        if self.log_std is not None:
            outputs = torch.cat([outputs, self.log_std.expand(*outputs.shape[:-1], -1)], dim=-1)
        if self.is_masked:
            outputs = mask_logits(outputs, self.action_dist_cls.full_mask(batch["obs"][ACTION_MASK]))
        return outputs


VALUE_STATE_PREFIX = "vf_"
"""Prefix of the names of the value function's state."""
CRITIC_STATE_PREFIX = "qf_"
"""Prefix of the names of the critics' state."""


class MemorylessEncoder(Encoder):
    """`Encoder` for sequences of observations `[B, T, ...]`, with the interface of `MemoryEncoder` and no state."""

    has_memory = False

    def __init__(self, space: Space[Any], config: ModelConfig, view: PartView | None = None) -> None:
        # Without noise in the weights: noise is drawn for each row, and the encoder sees rows of sequences.
        super().__init__(space, replace(config, noisy_sigma=None), view)
        self.hidden_layers = nn.Identity()
        """Layers above the memory of a `MemoryEncoder`; there is none here."""

    def initial_state(self) -> State:
        """Return an empty state."""
        return {}

    def of_rows(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        """Return the features `[N, output_size]` of single observations."""
        return super().forward(obs, dtype)

    def remember(
        self,
        obs: Tree,
        dtype: torch.dtype,
        state: Mapping[str, Tensor] | None,
        lengths: Tensor | None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the same as `forward`."""
        return self(obs, dtype)

    def forward(  # type: ignore[override]
        self,
        obs: Tree,
        dtype: torch.dtype,
        state: Mapping[str, Tensor] | None = None,
        lengths: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the features `[B, T, output_size]`, each of its own observation, and an empty state."""
        leading = next(leaves(obs)).shape[:2]
        features = super().forward(map_tree(lambda leaf: leaf.flatten(0, 1), obs), dtype)
        return features.unflatten(0, leading), {}


class SharedMemoryLayers(nn.Module):
    """Hidden layers of a state value on the outputs `[B, T, H]` of the policy's memory."""

    def __init__(self, input_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.layers, self.output_size = make_hidden_layers(input_size, config)

    def initial_state(self) -> State:
        """Return an empty state."""
        return {}

    def forward(self, remembered: Tensor) -> Tensor:
        """Return the features `[B, T, output_size]`."""
        features: Tensor = self.layers(remembered)
        return features


class RecurrentActorCriticModule(DefaultActorCriticModule):
    """Policy and value function with memory. Each has an encoder and a memory of its own, or both share one.

    With `model_config.memory_in` one of them has no memory, or the value reads the policy's memory.

    `model_config.recurrent` is `"lstm"` or `"gru"`, or `model_config.attention` is set. Batches are sequences:

        obs         [B, T, ...] each row is one time step; without `begins` a sequence is in one episode
        state_in    the memory before the first row; absent at the start of episodes. GRU {"h": [B, H]}, LSTM
                    {"h", "c"}, attention {"memory": [B, layers, M, H], "length": [B, 1]}
        seq_lens    [B] number of real rows, for sequences padded on the right; padding changes no real row
        begins      [B, T] bool, whether an episode begins with the row, so that the memory is reset before it

    The state of a separate value memory has names that begin with `"vf_"`. Acting updates it as well, although it does
    not run the value head: a sequence that begins in the middle of an episode needs both states to compute values.
    Action masks work as in `DefaultActorCriticModule`.
    """

    encoder: Any
    """`MemoryEncoder`, or `MemorylessEncoder` of a policy without memory."""
    value_encoder: Any
    """`MemoryEncoder`, `MemorylessEncoder` or `SharedMemoryLayers` of the state value. None: the policy's encoder is
    used, or there is no value function."""
    shares_memory = False
    """True if the state value reads the policy's memory, and has separate layers above it."""

    def make_value_encoder(  # type: ignore[override]
        self, view: PartView, config: ModelConfig
    ) -> MemoryEncoder | MemorylessEncoder | SharedMemoryLayers:
        if config.memory_in == "policy":
            return MemorylessEncoder(view.space, config, view)
        if config.memory_in == "shared":
            self.shares_memory = True
            return SharedMemoryLayers(self.encoder.memory.output_size, config)
        return MemoryEncoder(view.space, config, view)

    def make_encoder(  # type: ignore[override]
        self, view: PartView, config: ModelConfig
    ) -> MemoryEncoder | MemorylessEncoder:
        encoder_class = MemorylessEncoder if config.memory_in == "critic" else MemoryEncoder
        return encoder_class(view.space, config, view)

    @property
    def reads_begins(self) -> bool:
        # A subclass that computes in another way may not reset its memory.
        methods = ("_forward", "forward_train", "compute_values", "_run_memories")
        return all(getattr(type(self), name) is getattr(RecurrentActorCriticModule, name) for name in methods)

    def get_initial_state(self) -> State:
        value_state = {} if self.value_encoder is None else self.value_encoder.initial_state()
        return self.encoder.initial_state() | {VALUE_STATE_PREFIX + name: leaf for name, leaf in value_state.items()}

    def _forward(self, batch: Batch) -> dict[str, Any]:
        """Return the outputs for acting: `"action_dist_inputs"` `[B, T, D]`, and the last real row's `"state_out"`."""
        if self.value_encoder is None and not self.encoder.has_memory:
            # Only the critic has a memory, and this module was built without it: it acts on single rows.
            features = self.encoder.of_rows(*self._inputs(batch))
            return {"action_dist_inputs": self._dist_inputs(batch, self.policy_head(features))}
        features, _, state = self._run_memories(batch, batch.get("seq_lens"), acts=True)
        inputs = self._dist_inputs(batch, self.policy_head(features))
        return {"action_dist_inputs": inputs, "state_out": state}

    def forward_train(self, batch: Batch) -> dict[str, Any]:
        """Return `"action_dist_inputs"` `[B, T, D]`, `"vf_preds"` `[B, T]` and, without padding, `"state_out"`."""
        # Padding is at the end, so real rows are right without their number; only the state after it would be wrong.
        features, value_features, state = self._run_memories(batch, None)
        inputs = self._dist_inputs(batch, self.policy_head(features))
        out: dict[str, Any] = {"action_dist_inputs": inputs, "vf_preds": self._value(value_features)}
        return out if "seq_lens" in batch else {**out, "state_out": state}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[B, T]`. `RuntimeError` for a module built with `inference_only`."""
        _, value_features, _ = self._run_memories(batch, None)
        return self._value(value_features)

    def get_non_inference_attributes(self) -> list[str]:
        """Return the parts that acting does not need. The value's memory is one of them only with `inference_only`."""
        return ["value_encoder", "value_head"] if self.inference_only else ["value_head"]

    def _run_memories(
        self, batch: Batch, lengths: Tensor | None, *, acts: bool = False
    ) -> tuple[Tensor, Tensor, State]:
        """Return the features `[B, T, H]` for policy and value, and the state after the sequences.

        With `acts` the value is not needed, but only its memory, if the batch has its state.
        """
        obs, dtype = self._inputs(batch)
        state_in = batch.get("state_in")
        begins = batch.get(BEGINS)
        remembered, state = self.encoder.remember(obs, dtype, state_in, lengths, begins)
        features = self.encoder.hidden_layers(remembered)
        if self.value_encoder is None or (acts and not self._has_value_state(state_in)):
            return features, features, state
        if self.shares_memory:
            # The value's loss does not change what the policy remembers.
            return features, self.value_encoder(remembered.detach()), state

        value_state_in = None
        if state_in is not None:
            value_state_in = {name: state_in[VALUE_STATE_PREFIX + name] for name in self.value_encoder.initial_state()}
        value_features, value_state = self.value_encoder(obs, dtype, value_state_in, lengths, begins)
        state = state | {VALUE_STATE_PREFIX + name: leaf for name, leaf in value_state.items()}
        return features, value_features, state

    def _has_value_state(self, state_in: Mapping[str, Tensor] | None) -> bool:
        """Return whether the state value has a memory, whose state is in `state_in` (None: the initial one).

        Acting outside of a training run leaves it out if that memory sees more than the policy.
        """
        names = self.value_encoder.initial_state()
        return bool(names) and (state_in is None or all(VALUE_STATE_PREFIX + name in state_in for name in names))

    def _value(self, features: Tensor) -> Tensor:
        return require_part(self.value_head)(features).squeeze(-1)


def default_module_class(model_config: ModelConfig | Mapping[str, Any] | None) -> type[RLModule]:
    """Return the class of the default network, which has a memory if `model_config` says so."""
    options = options_of(model_config or {})
    has_memory = any(options.get(name) is not None for name in ("recurrent", "attention"))
    return RecurrentActorCriticModule if has_memory else DefaultActorCriticModule
