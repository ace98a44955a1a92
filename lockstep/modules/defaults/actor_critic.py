"""The default networks of actor-critic algorithms, for every observation space and every simple action space.

Initialised like PPO's reference implementation: orthogonal weights with gain sqrt(2) in hidden layers, 0.01 in the
policy's last layer (nearly uniform actions at first), 1 in the value's, zero biases; Gaussian policies have one learned
log-deviation for each action dimension, independent of the observation (Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization", core details 2 and 13, continuous-control details 1 to 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import make_head, make_policy_head, mask_logits, run_networks
from lockstep.modules.memory import MemoryEncoder, State
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch, RLModule
from lockstep.ops.distributions import DiagGaussian

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

    With a `critic_space` the value function, in a network of its own, sees `batch["critic_obs"]` besides. Acting runs
    the policy only. Observations of a Dict with the key `"action_mask"` restrict discrete actions to those
    whose mask is not 0; the network sees what is beside the mask.
    """

    value_encoder: Encoder | None
    """None: the policy's encoder, or no value function at all"""
    value_head: nn.Linear | None
    has_values = True
    """whether there is a value function, unless the module only acts"""

    def setup(self) -> None:
        config = self.make_policy()
        if self.has_values and "value_head" not in self.parts_left_out():
            if self.critic_space is not None and config.vf_share_layers:
                raise ValueError("vf_share_layers=True: a centralised critic has a network of its own; set it to False")
            if not config.vf_share_layers:
                self.value_encoder = self.make_encoder(self._value_space(), config)
            self.value_head = make_head((self.value_encoder or self.encoder).output_size, 1, config.value_gain, config)

    def make_policy(self) -> ModelConfig:
        """Make the policy's layers, and return the `ModelConfig` that they were made by."""
        config = ModelConfig.of(self.model_config)
        space, self.is_masked = self.action_dist_cls.split_mask(self.observation_space)
        self.encoder = self.make_encoder(space, config)
        self.policy_head, self.log_std = make_policy_head(self.encoder.output_size, self.action_dist_cls, config)
        self.squashes_mean = config.squash_mean
        if config.squash_mean and self.action_dist_cls.dist_class is not DiagGaussian:
            raise ValueError(f"squash_mean=True needs a Gaussian over the actions of a Box, not {self.action_dist_cls}")
        self.value_encoder = self.value_head = None
        return config

    def _value_space(self) -> Space[Any]:
        """Return the space of what the value function sees."""
        if self.critic_space is None:
            return self.encoder.space
        return spaces.Dict({"critic_obs": self.critic_space, "obs": self.encoder.space})

    def make_encoder(self, space: Space[Any], config: ModelConfig) -> Encoder:
        """Make what turns observations of `space` into features; `ValueError` where `config` asks for a memory."""
        if config.has_memory:
            raise ValueError(f"{config.memory_in_words} needs RecurrentActorCriticModule; this one has no memory")
        return Encoder(space, config)

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
        if self.critic_space is None:
            return run_networks(*(encoder.with_head(obs, dtype, head) for encoder, head in networks))
        seen = {self.encoder: obs, self.value_encoder: {"critic_obs": batch.get("critic_obs"), "obs": obs}}
        return run_networks(*(encoder.with_head(seen[encoder], dtype, head) for encoder, head in networks))

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
        if self.squashes_mean:
            size = self.action_dist_cls.noise_size
            inputs = torch.cat([inputs[..., :size].tanh(), inputs[..., size:]], dim=-1)
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand(*inputs.shape[:-1], -1)], dim=-1)
        if self.is_masked:
            inputs = mask_logits(inputs, self.action_dist_cls.full_mask(batch["obs"][ACTION_MASK]))
        return inputs


VALUE_STATE = "vf_"
"""what the names of the value function's state begin with"""


class RecurrentActorCriticModule(DefaultActorCriticModule):
    """Holds a policy and a value function, each with an encoder and a memory of its own, or with one for both.

    `model_config.recurrent` is `"lstm"` or `"gru"`, or `model_config.attention` is set. Batches are sequences:

        obs         [B, T, ...] each row one time step; all rows of a sequence lie in one episode
        state_in    the memory before the first row; absent: an episode's start. GRU {"h": [B, H]}, LSTM {"h", "c"},
                    attention {"memory": [B, layers, M, H], "length": [B, 1]}
        seq_lens    [B] real rows, where sequences are padded on the right; padding changes no real row

    A memory of the value function's own is there under names that begin with `"vf_"`. It is carried on while acting, so
    that values can be computed from the middle of an episode; the value head is not run. Observations with an action
    mask work as in `DefaultActorCriticModule`.
    """

    encoder: MemoryEncoder  # type: ignore[assignment]
    value_encoder: MemoryEncoder | None  # type: ignore[assignment]

    def make_encoder(self, space: Space[Any], config: ModelConfig) -> MemoryEncoder:  # type: ignore[override]
        if self.critic_space is not None:
            raise ValueError("a network with memory has no centralised critic; leave out one of them")
        return MemoryEncoder(space, config)

    def get_initial_state(self) -> State:
        own = {} if self.value_encoder is None else self.value_encoder.initial_state()
        return self.encoder.initial_state() | {VALUE_STATE + name: leaf for name, leaf in own.items()}

    def _forward(self, batch: Batch) -> dict[str, Any]:
        """Return what acting needs: `"action_dist_inputs"` `[B, T, D]`, and `"state_out"` after the last real row."""
        features, _, state = self._remember(batch, batch.get("seq_lens"))
        return {"action_dist_inputs": self._policy(batch, self.policy_head(features)), "state_out": state}

    def forward_train(self, batch: Batch) -> dict[str, Any]:
        """Return `"action_dist_inputs"` `[B, T, D]`, `"vf_preds"` `[B, T]` and, without padding, `"state_out"`."""
        features, value_features, state = self._remember(batch, None)
        inputs = self._policy(batch, self.policy_head(features))
        out: dict[str, Any] = {"action_dist_inputs": inputs, "vf_preds": self._value(value_features)}
        return out if "seq_lens" in batch else {**out, "state_out": state}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[B, T]`. `RuntimeError` for a module built with `inference_only`."""
        return self._value(self._remember(batch, None)[1])

    def get_non_inference_attributes(self) -> list[str]:
        """Return also the value function's memory where it is not carried on: with `inference_only`."""
        return ["value_encoder", "value_head"] if self.inference_only else ["value_head"]

    def _remember(self, batch: Batch, lengths: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Return features `[B, T, H]` of present and past for policy and value, and the state after them."""
        obs, dtype = self._inputs(batch)
        before = batch.get("state_in")
        features, state = self.encoder(obs, dtype, before, lengths)
        if self.value_encoder is None:
            return features, features, state
        if before is not None:
            before = {name: before[VALUE_STATE + name] for name in self.value_encoder.initial_state()}
        value_features, after = self.value_encoder(obs, dtype, before, lengths)
        return features, value_features, state | {VALUE_STATE + name: leaf for name, leaf in after.items()}

    def _value(self, features: Tensor) -> Tensor:
        return trained(self.value_head)(features).squeeze(-1)


def default_module_class(model_config: ModelConfig | Mapping[str, Any] | None) -> type[RLModule]:
    """Return the class of the default network: the one with memory where `model_config` asks for it."""
    fields = vars(model_config) if isinstance(model_config, ModelConfig) else model_config or {}
    has_memory = any(fields.get(name) is not None for name in ("recurrent", "attention"))
    return RecurrentActorCriticModule if has_memory else DefaultActorCriticModule
