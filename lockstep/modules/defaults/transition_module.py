"""Base class of the networks that learn from single transitions or, with a memory, from sequences of transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK
from lockstep.data.groups import PartView
from lockstep.data.trees import map_tree
from lockstep.modules.defaults.actor_critic import (
    CRITIC_STATE_PREFIX,
    VALUE_STATE_PREFIX,
    DefaultActorCriticModule,
    MemorylessEncoder,
    require_part,
)
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


SequenceEncoder = MemoryEncoder | MemorylessEncoder
"""Encoder of sequences of observations."""
STATE_PREFIXES = {"features": "", "value_features": VALUE_STATE_PREFIX, "critic_features": CRITIC_STATE_PREFIX}
"""Beginning of the names of a memory's state, by the field of `MemoryFeatures` that the memory fills."""


def state_of(field: str, memory: SequenceEncoder, stored: State) -> State | None:
    """Return the part of a stored state that belongs to a memory, or None if there is none.

    Args:
        field: Field of `MemoryFeatures` that the memory fills.
        memory: The memory.
        stored: States of memories, leaves `[B, ...]`.
    """
    names = {name: STATE_PREFIXES[field] + name for name in memory.initial_state()}
    if not names or not all(stored_name in stored for stored_name in names.values()):
        return None
    return {name: stored[stored_name] for name, stored_name in names.items()}


class TransitionModule(DefaultActorCriticModule):
    """Network of MARWIL, and base class of the default networks of DQN, SAC, TD3, BC, IQL and related algorithms.

    With `model_config.recurrent`, batches are sequences like those of `RecurrentActorCriticModule`, and outputs are
    `[B, T, ...]`. Or `batch["obs"]` is a `MemoryFeatures`: then the memories have run already, and outputs have its
    rows.

    With `model_config.memory_in` a part without memory has a `MemorylessEncoder`, which counts as a memory without a
    state. A policy without memory that was built to act only acts on single rows.
    """

    encoder: Encoder | SequenceEncoder  # type: ignore[assignment]
    value_encoder: Encoder | SequenceEncoder | None  # type: ignore[assignment]
    takes_sequences = False
    """True if the options give a part a memory. Networks without one need not look at their parts in each call."""

    @property
    def has_memory(self) -> bool:
        """Whether a part has a memory."""
        return self.takes_sequences and any(memory.has_memory for memory in self.memories().values())

    def make_encoder(self, view: PartView, config: ModelConfig) -> Encoder | SequenceEncoder:  # type: ignore[override]
        """Return the policy's new encoder, with a memory if `config` has one for it."""
        return self._encoder_of(view, config, has_memory=config.memory_in != "critic")

    def make_value_encoder(self, view: PartView, config: ModelConfig) -> Encoder | SequenceEncoder:  # type: ignore[override]
        return self._encoder_of(view, config, has_memory=config.memory_in != "policy")

    def _encoder_of(self, view: PartView, config: ModelConfig, *, has_memory: bool) -> Encoder | SequenceEncoder:
        """Return the new encoder of a part. It takes sequences if any part has a memory.

        Args:
            view: What the part sees.
            config: Options of the network.
            has_memory: Whether this part has the memory of `config`.

        Raises:
            ValueError: `memory_in` is "shared".
        """
        self.takes_sequences = config.has_memory
        if not config.has_memory:
            return Encoder(view.space, config, view)
        if config.memory_in == "shared":
            raise ValueError("memory_in='shared' is for on-policy algorithms; set 'both', 'policy' or 'critic'")
        encoder_class = MemoryEncoder if has_memory else MemorylessEncoder
        return encoder_class(view.space, config, view)

    def get_initial_state(self) -> State:
        """Return the state of the policy's memory, or, if it has none, of the memories of values and critics."""
        states = {name: memory.initial_state() for name, memory in self.memories().items()}
        if states.get("features"):
            return states["features"]
        return {STATE_PREFIXES[name] + key: leaf for name, state in states.items() for key, leaf in state.items()}

    def memories(self) -> dict[str, SequenceEncoder]:
        """Return the memories by the field of `MemoryFeatures` that they fill; empty without memory."""
        encoders = {"features": self.encoder, "value_features": self.value_encoder}
        return {name: each for name, each in encoders.items() if isinstance(each, MemoryEncoder | MemorylessEncoder)}

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
            return self.run_memories(batch, self._forward, acts=True)
        return self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Return the same outputs as `forward_inference`."""
        return self.forward_inference(batch)

    def has_raw_sequences(self, batch: Batch) -> bool:
        """Return whether the batch has sequences over which the memories must still run."""
        return self.has_memory and not isinstance(batch["obs"], MemoryFeatures)

    def run_memories(
        self, batch: Batch, forward: Callable[[Batch], dict[str, Tensor]], *, acts: bool = False
    ) -> dict[str, Any]:
        """Run the memories over the batch's sequences, and return the outputs of `forward` on their features.

        A memory whose state the batch does not have begins empty.

        Args:
            batch: Batch of sequences.
            forward: Function of a batch whose `"obs"` is a `MemoryFeatures`.
            acts: Whether `forward` needs the policy's features only. Of the other memories, those run whose state the
                batch has, or, if it has none, whose state is part of `get_initial_state`.

        Returns:
            The outputs, and `"state_out"`, the state after the sequences.
        """
        obs, dtype = self._inputs(batch)
        state_in = batch.get("state_in")
        stored = self.get_initial_state() if state_in is None else state_in
        fields: dict[str, Tensor] = {}
        state_out: State = {}
        for field, memory in self.memories().items():
            state = state_of(field, memory, stored)
            if acts and field != "features" and state is None:
                continue
            before = None if state_in is None else state
            fields[field], after = memory(obs, dtype, before, batch.get("seq_lens"))
            if state is not None:
                state_out |= {STATE_PREFIXES[field] + name: leaf for name, leaf in after.items()}
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

    def setup(self) -> None:
        memory_in = ModelConfig.of(self.model_config).memory_in
        if memory_in != "both":
            raise ValueError(f"memory_in={memory_in!r} needs a value function or critics, and this network has none")
        super().setup()

    def parts_left_out(self) -> list[str]:
        return self.get_non_inference_attributes()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`."""
        return self.forward_inference(batch)
