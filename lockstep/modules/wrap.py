"""Any `nn.Module` as an `RLModule`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.modules.layers import mask_logits
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch, RLModule

MASKED_OUTPUTS = ("action_dist_inputs", "q_values")
"""the outputs with an entry for each action"""


class WrappedModule(RLModule):
    """An `RLModule` around a plain `nn.Module`; made by `wrap_module`."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        inference_only: bool = False,
        model_config: ModelConfig | Mapping[str, Any] | None = None,
        network: nn.Module | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        if not isinstance(network, nn.Module):
            raise ValueError(
                "a wrapped nn.Module cannot be built from its spec alone; make it anew, wrap it with wrap_module() and "
                "call restore_from_path()"
            )
        super().__init__(observation_space, action_space, inference_only=inference_only, model_config=model_config)
        self.network = network
        self.outputs = tuple(outputs)
        self.is_masked = carries_mask(observation_space) and self.action_dist_cls.split_mask(observation_space)[1]
        if self.is_masked and "actions" in self.outputs:
            raise ValueError(
                f"outputs={self.outputs} of a network for observations with an action mask: the mask cannot be applied "
                "to actions that are already chosen; let the network return 'action_dist_inputs' instead"
            )

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        returned = self.network(batch["obs"])
        if isinstance(returned, Tensor):
            returned = (returned,)
        if isinstance(returned, Mapping):
            absent = [name for name in self.outputs if name not in returned]
            if absent:
                raise ValueError(f"the wrapped module did not return {absent}, but {list(returned)}")
            named = {name: returned[name] for name in self.outputs}
        elif len(returned) == len(self.outputs):
            named = dict(zip(self.outputs, returned))
        else:
            raise ValueError(f"the wrapped module returned {len(returned)} tensors for the outputs {self.outputs}")
        values = named.get("vf_preds")
        if values is not None and values.dim() > 1 and values.shape[-1] == 1:
            named["vf_preds"] = values.squeeze(-1)
        if self.is_masked:
            mask = batch["obs"][ACTION_MASK]
            named |= {name: mask_logits(named[name], mask) for name in MASKED_OUTPUTS if name in named}
        return named

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the output `"vf_preds"` `[N]`; `TypeError` if it is not among the declared ones."""
        if "vf_preds" not in self.outputs:
            return super().compute_values(batch)
        return self._forward(batch)["vf_preds"]


def wrap_module(
    network: nn.Module,
    observation_space: Space[Any],
    action_space: Space[Any],
    outputs: str | Sequence[str] = "action_dist_inputs",
    *,
    model_config: ModelConfig | Mapping[str, Any] | None = None,
) -> RLModule:
    """Make an `RLModule` of a plain `nn.Module`; it shares the parameters.

    The network sees the whole observation. Where that carries an action mask, the wrapper applies it to
    `"action_dist_inputs"` and `"q_values"`: forbidden actions get a very low number, when acting and when learning.

        outputs = ("action_dist_inputs", "vf_preds")
        module = wrap_module(MyNetwork(), env.observation_space, env.action_space, outputs)

    Args:
        outputs: names what `network(obs)` returns: one name for a tensor, several for a tuple (or for the entries to
            take of a dict). Among them must be `"action_dist_inputs"` `[N, D]` or `"actions"`; `"vf_preds"` `[N]` or
            `[N, 1]` are the state values.

    Raises:
        TypeError: `network` is no `nn.Module`.
        ValueError: no output to act with, or a mask that cannot be applied.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"wrap_module takes a torch nn.Module, got {type(network).__name__}")
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not {"action_dist_inputs", "actions"} & set(names) or len(set(names)) != len(names):
        raise ValueError(f"outputs must name 'action_dist_inputs' or 'actions', each name once; got {names}")
    return WrappedModule(observation_space, action_space, model_config=model_config, network=network, outputs=names)
