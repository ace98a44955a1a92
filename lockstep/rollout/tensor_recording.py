"""`TensorRecording`: connectors on the device whose output is stored, such as stacks of frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep.connectors import ObsPipeline
from lockstep.data.row_share import RowShare
from lockstep.data.trees import Tree

Memory = dict[str, Tensor]
"""Memory of a connector, `{name: [B, ...]}`."""


class TensorRecording:
    """Connectors between the environments' observations and the stored ones, with their memories on a device.

    `ObsPipeline.follow` is the same on the host. The connectors run by `export_call`, which takes the memory as an
    argument, so that nothing depends on values. All memories stay at their addresses for a CUDA graph.

    Args:
        pipeline: The connectors. Without connectors, observations are stored as they are.
        num_envs: Number of environments B on this device.
        device: The device.

    Raises:
        ValueError: A connector does not run on a device.
    """

    def __init__(self, pipeline: ObsPipeline, num_envs: int, device: torch.device) -> None:
        refused = [type(connector).__name__ for connector in pipeline.connectors if not connector.on_device]
        if refused:
            raise ValueError(
                f"the connectors {refused}, whose output is stored, do not run on a device (on_device is False); take "
                "Collector for steps on the host, or leave them out"
            )
        self._pipeline = pipeline
        self._initial: list[Memory] = []
        """Memory of each connector at the beginning of an episode, `{name: [1, ...]}`."""
        for connector in pipeline.connectors:
            memory = connector.export_memory().items()
            self._initial.append({name: torch.as_tensor(leaf, device=device).unsqueeze(0) for name, leaf in memory})
        self.memories = [
            {name: leaf.repeat(num_envs, *[1] * (leaf.dim() - 1)) for name, leaf in memory.items()}
            for memory in self._initial
        ]
        """Memory of each connector before the next observations."""

    def forget(self) -> None:
        """Begin episodes in all environments."""
        for memory, initial in zip(self.memories, self._initial):
            for name, leaf in memory.items():
                leaf.copy_(initial[name].expand_as(leaf))

    def stored(self, obs: Tree, memories: list[Memory]) -> tuple[Tree, list[Memory]]:
        """Return the stored form of observations `[B, ...]`, and the memories after them. Nothing is changed."""
        after: list[Memory] = []
        for connector, memory in zip(self._pipeline.connectors, memories):
            obs, memory_after = connector.export_call(obs, memory)
            after.append(memory_after)
        return obs, after

    def after_step(self, memories: list[Memory], dones: Tensor) -> None:
        """Keep the memories after an observation, and reset them where an episode ended, bool `[B]`."""
        for memory, after, initial in zip(self.memories, memories, self._initial):
            for name, leaf in memory.items():
                is_done = dones.view(-1, *[1] * (leaf.dim() - 1))
                leaf.copy_(torch.where(is_done, initial[name], after[name]))

    def get_state(self, gather: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
        """Return the memories as arrays. `gather` returns the rows of all ranks for the rows of this one."""
        return [{name: gather(leaf).cpu().numpy().copy() for name, leaf in memory.items()} for memory in self.memories]

    def set_state(self, state: list[Mapping[str, Any]], share: RowShare) -> None:
        """Restore the rows of this rank from the state that `get_state` returned."""
        for memory, arrays in zip(self.memories, state, strict=True):
            for name, leaf in memory.items():
                leaf.copy_(share.of(torch.as_tensor(arrays[name])))
