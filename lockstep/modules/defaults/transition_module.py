"""Base class of the networks that learn from single transitions or, with a memory, from sequences of transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK
from lockstep.data.groups import PartView
from lockstep.data.trees import map_tree
from lockstep.modules.defaults.actor_critic import DefaultActorCriticModule, require_part
from lockstep.modules.encoders import Encoder
from lockstep.modules.memory import MemoryEncoder, State
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch


@dataclass(frozen=True)
class MemoryFeatures:
    """Features that the memories of a network have computed for rows `[N]` or `[B, T]`.

    Networks with memory accept this in place of observations. So a loss can run the memories once over the sequences,
    and then call several heads on single rows of them.
    """

    features: Tensor | None = None
    """Features from the policy's memory."""
    value_features: Tensor | None = None
    """Features from a separate memory of the state value."""
    critic_features: Tensor | None = None
    """Features from a separate memory of the critics."""
    mask: Any = None
    """Action mask of the observations, if they have one."""

    def __getitem__(self, name: str) -> Any:
        """Return the mask under any name, so that `obs["action_mask"]` works as with an observation."""
        return self.mask

    def map(self, function: Callable[[Tensor], Tensor]) -> MemoryFeatures:
        """Return the result of applying `function` to each tensor."""
        return MemoryFeatures(*(None if part is None else map_tree(function, part) for part in vars(self).values()))


class TransitionModule(DefaultActorCriticModule):
    """Network of MARWIL, and base class of the default networks of DQN, SAC, TD3, BC, IQL and related algorithms.

    With `model_config.recurrent`, batches are sequences like those of `RecurrentActorCriticModule`, and outputs are
    `[B, T, ...]`. Or `batch["obs"]` is a `MemoryFeatures`: then the memories have run already, and outputs have its
    rows.
    """

    encoder: Encoder | MemoryEncoder  # type: ignore[assignment]
    value_encoder: Encoder | MemoryEncoder | None  # type: ignore[assignment]
    has_memory = False
    """True if the encoders have a memory."""

    def make_encoder(self, view: PartView, config: ModelConfig) -> Encoder | MemoryEncoder:  # type: ignore[override]
        """Return a new encoder of what a part sees, with a memory if `config` has one."""
        self.has_memory = config.has_memory
        if config.memory_in != "both":
            raise ValueError(f"memory_in={config.memory_in!r} is for on-policy algorithms; leave it out")
        encoder_class = MemoryEncoder if config.has_memory else Encoder
        return encoder_class(view.space, config, view)

    def get_initial_state(self) -> State:
        return self.memories()["features"].initial_state() if self.has_memory else {}

    def memories(self) -> dict[str, MemoryEncoder]:
        """Return the memories by the field of `MemoryFeatures` that they fill; empty without memory."""
        encoders = {"features": self.encoder, "value_features": self.value_encoder}
        return {name: encoder for name, encoder in encoders.items() if isinstance(encoder, MemoryEncoder)}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train)
        return super().forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[N]`. `RuntimeError` for a module built with `inference_only`."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        return super().compute_values(batch)

    def _sequence_values(self, batch: Batch) -> Tensor:
        """Run the memories over the batch's sequences, and return the state values `[B, T]` of their features."""
        return self.run_memories(batch, lambda rows: {"vf_preds": self.compute_values(rows)})["vf_preds"]

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting: `"action_dist_inputs"`, and with memory the last real row's `"state_out"`."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self._forward, "features")
        return self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Return the same outputs as `forward_inference`."""
        return self.forward_inference(batch)

    def has_raw_sequences(self, batch: Batch) -> bool:
        """Return whether the batch has sequences over which the memories must still run."""
        return self.has_memory and not isinstance(batch["obs"], MemoryFeatures)

    def run_memories(
        self, batch: Batch, forward: Callable[[Batch], dict[str, Tensor]], only: str | None = None
    ) -> dict[str, Any]:
        """Run the memories over the batch's sequences, and return the outputs of `forward` on their features.

        Memories that acting does not use begin empty, since a batch has no state of them.

        Args:
            batch: Batch of sequences.
            forward: Function of a batch whose `"obs"` is a `MemoryFeatures`.
            only: Name of the only memory that `forward` needs. None: all of them.

        Returns:
            The outputs, and `"state_out"`, the state of the policy's memory after the sequences.
        """
        obs, dtype = self._inputs(batch)
        fields: dict[str, Tensor] = {}
        state_out: State = {}
        for name, memory in self.memories().items():
            if only not in (None, name):
                continue
            if name == "features":
                fields[name], state_out = memory(obs, dtype, batch.get("state_in"), batch.get("seq_lens"))
            else:
                fields[name] = memory(obs, dtype)[0]
        if self.is_masked:
            fields["mask"] = batch["obs"][ACTION_MASK]
        return {**forward({**batch, "obs": MemoryFeatures(**fields)}), "state_out": state_out}

    def _run(self, batch: Batch, *networks: tuple[Any, nn.Linear]) -> Sequence[Tensor]:
        if not self.has_memory:
            return super()._run(batch, *networks)
        # The memories, which include the encoders, have run already: only the heads are left.
        outputs = []
        for encoder, head in networks:
            is_value = encoder is self.value_encoder
            features = batch["obs"].value_features if is_value else batch["obs"].features
            outputs.append(head(require_part(features)))
        return outputs

    def _run_both(self, batch: Batch) -> Sequence[Tensor]:
        if self.has_memory:
            value_network = (self.value_encoder or self.encoder, require_part(self.value_head))
            return self._run(batch, (self.encoder, self.policy_head), value_network)
        return super()._run_both(batch)


class DefaultPolicyModule(TransitionModule):
    """Policy of `DefaultActorCriticModule` without a value function, with the same initial weights (imitation)."""

    has_values = False

    def parts_left_out(self) -> list[str]:
        return self.get_non_inference_attributes()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`."""
        return self.forward_inference(batch)
