"""`TransitionModule`: networks that learn from single transitions or, with a memory, from sequences of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.data.trees import map_tree
from lockstep.modules.defaults.actor_critic import DefaultActorCriticModule, trained
from lockstep.modules.encoders import Encoder
from lockstep.modules.memory import MemoryEncoder, State
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch


@dataclass(frozen=True)
class MemoryFeatures:
    """What networks with memory know at rows `[N]` or `[B, T]`; they take it in the place of observations."""

    features: Tensor | None = None
    """of the network that acts"""
    value_features: Tensor | None = None
    """of a state value with a memory of its own"""
    critic_features: Tensor | None = None
    """of critics with a memory of their own"""
    mask: Any = None
    """of the observations, where these carry one"""

    def __getitem__(self, name: str) -> Any:
        """Return the mask, as an observation does."""
        return self.mask

    def map(self, function: Callable[[Tensor], Tensor]) -> MemoryFeatures:
        """Return `function` of each part that is there."""
        return MemoryFeatures(*(None if part is None else map_tree(function, part) for part in vars(self).values()))


class TransitionModule(DefaultActorCriticModule):
    """Holds what MARWIL learns, and is the base of the default networks of DQN, SAC, TD3, BC, IQL and their kin.

    With `model_config.recurrent` batches are sequences, as those of `RecurrentActorCriticModule`, and outputs are
    `[B, T, ...]`. Or `batch["obs"]` is `MemoryFeatures`: then memories have run already, and outputs are of its rows.
    """

    encoder: Encoder | MemoryEncoder  # type: ignore[assignment]
    value_encoder: Encoder | MemoryEncoder | None  # type: ignore[assignment]
    has_memory = False

    def make_encoder(self, space: Space[Any], config: ModelConfig) -> Encoder | MemoryEncoder:  # type: ignore[override]
        """Make what turns observations of `space` into features, with a memory where `config` asks for one."""
        self.has_memory = config.has_memory
        return MemoryEncoder(space, config) if config.has_memory else Encoder(space, config)

    def get_initial_state(self) -> State:
        return self.memories()["features"].initial_state() if self.has_memory else {}

    def memories(self) -> dict[str, MemoryEncoder]:
        """Return each memory by the field of `MemoryFeatures` that it fills; none without memory."""
        parts = {"features": self.encoder, "value_features": self.value_encoder}
        return {name: part for name, part in parts.items() if isinstance(part, MemoryEncoder)}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        if self.is_unread(batch):
            return self.with_state(batch, self.forward_train)
        return super().forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[N]`. `RuntimeError` for a module built with `inference_only`."""
        if self.is_unread(batch):
            return self.with_state(batch, lambda rows: {"vf_preds": self.compute_values(rows)})["vf_preds"]
        return super().compute_values(batch)

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """Return what acting needs: `"action_dist_inputs"`, and with memory `"state_out"` after the last real row."""
        return self.with_state(batch, self._forward, "features") if self.is_unread(batch) else self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Return what `forward_inference` does."""
        return self.forward_inference(batch)

    def is_unread(self, batch: Batch) -> bool:
        """Return whether the batch has sequences that the memories have not gone through yet."""
        return self.has_memory and not isinstance(batch["obs"], MemoryFeatures)

    def with_state(
        self, batch: Batch, forward: Callable[[Batch], dict[str, Tensor]], only: str | None = None
    ) -> dict[str, Any]:
        """Return the outputs of `forward` for sequences, and `"state_out"`; memories that do not act begin empty.

        `only`: which memory `forward` needs; None: all.
        """
        obs, dtype = self._inputs(batch)
        found: dict[str, Tensor] = {}
        after: State = {}
        for name, memory in self.memories().items():
            if only not in (None, name):
                continue
            if name == "features":
                found[name], after = memory(obs, dtype, batch.get("state_in"), batch.get("seq_lens"))
            else:
                found[name] = memory(obs, dtype)[0]
        if self.is_masked:
            found["mask"] = batch["obs"][ACTION_MASK]
        return {**forward({**batch, "obs": MemoryFeatures(**found)}), "state_out": after}

    def _inputs(self, batch: Batch) -> tuple[Any, torch.dtype]:
        obs = batch["obs"]
        is_masked = self.is_masked and not isinstance(obs, MemoryFeatures)
        return without_mask(obs) if is_masked else obs, self.policy_head.weight.dtype

    def _run(self, batch: Batch, *networks: tuple[Any, nn.Linear]) -> Sequence[Tensor]:
        if self.has_memory:  # the memories have run already
            features, value_features = batch["obs"].features, batch["obs"].value_features
            return [
                head(trained(value_features if encoder is self.value_encoder else features))
                for encoder, head in networks
            ]
        return super()._run(batch, *networks)

    def _run_both(self, batch: Batch) -> Sequence[Tensor]:
        if self.has_memory:
            value = self.value_encoder or self.encoder, trained(self.value_head)
            return self._run(batch, (self.encoder, self.policy_head), value)
        return super()._run_both(batch)


class DefaultPolicyModule(TransitionModule):
    """Holds the policy of `DefaultActorCriticModule`, with the same initial weights, and nothing else (imitation)."""

    has_values = False

    def parts_left_out(self) -> list[str]:
        return self.get_non_inference_attributes()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`."""
        return self.forward_inference(batch)
