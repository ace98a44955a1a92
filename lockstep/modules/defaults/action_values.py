"""Default networks of algorithms that learn action values, as a number or as a distribution for each action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.actions import ACTION_MASK
from lockstep.data.groups import PartView
from lockstep.modules.defaults.actor_critic import require_part
from lockstep.modules.defaults.transition_module import TransitionModule
from lockstep.modules.layers import allocate_noise, make_head, make_mlp, mask_logits, weight_noise
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch

WEIGHT_NOISE = "weight_noise"
"""Column of standard normal numbers for the noise of noisy layers."""
LEVEL_NOISE = "level_noise"
"""Column of standard normal numbers, whose cumulative probabilities are the levels of quantiles."""


class DefaultQModule(TransitionModule):
    """Action values `[N, A]`, from one network or, with `dueling`, from advantages and a state value.

    With `dueling`, `Q = V + A - mean(A)` (Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9). Advantages
    and value have separate encoders, unless `vf_share_layers` is set or they share a memory.

    Acting takes the largest output of `policy_head`. That is the largest value or the largest advantage, which belong
    to the same action. Actions that a mask forbids (`"action_mask"` in a Dict observation) have a very low value. With
    `noisy_sigma`, dense layers have noise if a batch has `"weight_noise"` `[N, noise_size]`, or acting explores by it.
    """

    noise_size = 0
    """Number of random numbers that the noise of all weights needs for one row."""

    def setup(self) -> None:
        config = ModelConfig.of(self.model_config)
        if not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"action values need a Discrete action space, not {self.action_space}")
        if config.value_hiddens is not None:
            raise ValueError(
                f"value_hiddens={config.value_hiddens}: networks of action values have the same widths for advantages "
                "and value; set hiddens"
            )
        if config.memory_in != "both":
            raise ValueError(
                f"memory_in={config.memory_in!r}: action values are one network, which has the memory; leave it out"
            )
        if config.has_memory:  # one memory for advantages and value
            self.model_config = replace(config, vf_share_layers=True)
        super().setup()
        if not config.dueling:
            self.value_encoder = None
            self.value_head = None
        self.noise_size = allocate_noise(self)

    def value_view(self) -> PartView:
        """Return what the policy sees: with `dueling`, the state value is a part of the values that it acts by."""
        return self.policy_view

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"q_values"` `[N, A]`."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train)
        return {"q_values": self.masked(batch, self.value_outputs(batch))}

    def value_outputs(self, batch: Batch) -> Tensor:
        """Return the action values `[N, A]`, without regard to the mask."""
        advantages, value = self._advantages_and_value(batch)
        return advantages if value is None else value + advantages - advantages.mean(-1, keepdim=True)

    def mean_values(self, outputs: Tensor) -> Tensor:
        """Return the action values `[N, A]` of `value_outputs`. Here they are the same; subclasses take means."""
        return outputs

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the value `[N]` of the best action."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        values = self.mean_values(self.value_outputs(batch))
        return self.masked(batch, values).amax(-1)

    def masked(self, batch: Batch, values: Tensor) -> Tensor:
        """Return values `[N, A]` with very low ones where the observations' mask forbids the action."""
        return mask_logits(values, batch["obs"][ACTION_MASK]) if self.is_masked else values

    def _advantages_and_value(self, batch: Batch) -> Sequence[Any]:
        """Return the outputs of the two heads with the batch's noise. The second is None without `dueling`."""
        noise = batch.get(WEIGHT_NOISE)
        if noise is None:
            return self._run_heads(batch)
        with weight_noise(noise):
            return self._run_heads(batch)

    def _run_heads(self, batch: Batch) -> Sequence[Any]:
        """Return the outputs of the two heads. The second is None without `dueling`."""
        if self.value_head is None:
            (values,) = self._run(batch, (self.encoder, self.policy_head))
            return values, None
        return self._run_both(batch)


class DistributionalQModule(DefaultQModule):
    """Distribution of the return for each action, as `num_value_outputs` numbers.

    With a `value_range` the numbers are logits of atoms, which are returns at equal distances within the range
    (Bellemare et al. 2017, arXiv:1707.06887). Without it they are quantiles (Dabney et al. 2018, arXiv:1710.10044).

    With `dueling`, each number is computed from a value and advantages like the values of `DefaultQModule`. Acting
    takes the action with the largest mean.
    """

    def setup(self) -> None:
        super().setup()
        config = ModelConfig.of(self.model_config)
        self.num_outputs = config.num_value_outputs
        self.value_range = config.value_range
        if self.num_outputs < 2:
            raise ValueError(
                f"num_value_outputs={self.num_outputs}: a distribution needs at least 2 numbers; C51Config and "
                "QRDQNConfig set them"
            )
        # The heads that `super().setup()` made have one output per action. They are replaced.
        width = self.encoder.output_size
        num_actions = int(cast(spaces.Discrete, self.action_space).n)
        self.policy_head = make_head(width, num_actions * self.num_outputs, config.policy_gain, config)
        if self.value_head is not None:
            self.value_head = make_head(width, self.num_outputs, config.value_gain, config)
        self.noise_size = allocate_noise(self)
        low, high = self.value_range or (0.0, 0.0)
        self.atoms: Tensor
        self.register_buffer("atoms", torch.linspace(low, high, self.num_outputs), persistent=False)

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting: the means, as `"action_dist_inputs"` `[N, A]`."""
        values = self.mean_values(self.value_outputs(batch))
        return {"action_dist_inputs": self.masked(batch, values)}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"value_outputs"` `[N, A, K]`."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train)
        return {"value_outputs": self.value_outputs(batch)}

    def value_outputs(self, batch: Batch) -> Tensor:
        """Return the logits of atoms, or the quantiles, `[N, A, K]`."""
        advantages, value = self._advantages_and_value(batch)
        outputs = advantages.unflatten(-1, (-1, self.num_outputs))
        if value is not None:
            outputs = value.unsqueeze(-2) + outputs - outputs.mean(-2, keepdim=True)
        return outputs

    def mean_values(self, outputs: Tensor) -> Tensor:
        """Return the means `[...]` of outputs `[..., K]`."""
        return outputs.mean(-1) if self.value_range is None else self.mean_of_probs(outputs.softmax(-1))

    def get_non_inference_attributes(self) -> list[str]:
        """Return the parts that acting does not need. Atoms with `dueling` need all of them.

        A value's logits are added before the softmax, so they change which action has the largest mean.
        """
        config = ModelConfig.of(self.model_config)
        needs_value = config.dueling and config.value_range is not None
        return [] if needs_value else super().get_non_inference_attributes()

    def mean_of_probs(self, probs: Tensor) -> Tensor:
        """Return the means `[...]` of probabilities `[..., K]` of the atoms."""
        return probs @ self.atoms.to(probs.dtype)

    def mean_of_array(self, outputs: np.ndarray) -> np.ndarray:
        """Return the means `[N, A]` of the head's outputs `[N, A * K]`. Like `mean_values`, in numpy."""
        outputs = outputs.reshape(len(outputs), -1, self.num_outputs)
        if self.value_range is None:
            return np.asarray(outputs.mean(-1))
        probs = np.exp(outputs - outputs.max(-1, keepdims=True))
        return np.asarray(probs @ self.atoms.numpy().astype(probs.dtype, copy=False) / probs.sum(-1))


class ImplicitQuantileModule(DefaultQModule):
    """Quantiles of the return of each action at any levels (Dabney et al. 2018, arXiv:1806.06923).

    The features are multiplied by an embedding of the level t, and pass one more hidden layer and the head. The
    embedding is a dense layer with relu on `cos(pi i t)` for i from 0 to `num_cosines - 1` (equation 4).

    A batch has its levels as `"level_noise"` `[N, K]`. Without them, as in acting, the levels are the midpoints of
    `num_value_outputs` equal parts of [0, 1].

    With `dueling`, each quantile is computed from a value and advantages like the values of `DefaultQModule`. Acting
    takes the action with the largest mean.
    """

    def setup(self) -> None:
        super().setup()
        config = ModelConfig.of(self.model_config)
        width = self.encoder.output_size
        gain = config.hidden_gain if config.orthogonal_init else None
        self.embedding = make_mlp(config.num_cosines, (width,), "relu", gain)
        make_hidden = partial(make_mlp, width, (width,), config.activation, gain, config.noisy_sigma)
        self.hidden = make_hidden()
        self.value_hidden = None if self.value_head is None else make_hidden()
        self.noise_size = allocate_noise(self)
        levels = (torch.arange(config.num_value_outputs) + 0.5) / config.num_value_outputs
        self.middles: Tensor
        self.frequencies: Tensor
        self.register_buffer("middles", levels, persistent=False)
        self.register_buffer("frequencies", math.pi * torch.arange(config.num_cosines), persistent=False)

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting: the means, as `"action_dist_inputs"` `[N, A]`."""
        values = self.mean_values(self.value_outputs(batch))
        return {"action_dist_inputs": self.masked(batch, values)}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"value_outputs"` `[N, A, K]`, and their `"levels"` `[N, K]` (`[K]` without noise)."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train)
        return {"value_outputs": self.value_outputs(batch), "levels": self.levels_of(batch)}

    def levels_of(self, batch: Batch) -> Tensor:
        """Return the batch's levels `[N, K]`, uniform in [0, 1]; if it has none, those of acting, `[K]`."""
        return torch.special.ndtr(batch[LEVEL_NOISE]) if LEVEL_NOISE in batch else self.middles

    def value_outputs(self, batch: Batch) -> Tensor:
        """Return the quantiles `[N, A, K]`."""
        return super().value_outputs(batch).transpose(-1, -2)

    def mean_values(self, outputs: Tensor) -> Tensor:
        """Return the means `[...]` of quantiles `[..., K]`."""
        return outputs.mean(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "value_hidden"]

    def _run_heads(self, batch: Batch) -> Sequence[Any]:
        """Return the outputs of the two heads, `[N, K, A]` and `[N, K, 1]`. The second is None without `dueling`."""
        dtype = self.policy_head.weight.dtype
        cosines = (self.levels_of(batch).unsqueeze(-1) * self.frequencies).cos()
        embedded = self.embedding(cosines.to(dtype))
        features = self._features(batch, self.encoder)
        advantages = self.policy_head(self.hidden(features.unsqueeze(-2) * embedded))
        if self.value_head is None or self.value_hidden is None:
            return advantages, None
        if self.value_encoder is not None:
            features = self._features(batch, self.value_encoder)
        return advantages, self.value_head(self.value_hidden(features.unsqueeze(-2) * embedded))

    def _features(self, batch: Batch, encoder: Callable[..., Tensor]) -> Tensor:
        """Return the features `[N, F]`: the memory's, if there is one, else the encoder's."""
        obs = batch["obs"]
        return require_part(obs.features) if self.has_memory else encoder(*self._inputs(batch))
