"""RLlib's SAC with critics of the usual kind, observation and action side by side into one network.

Given through the hook that its catalog has for that. (Its own default encodes observation and action apart, in as many
layers each as the policy has, and joins them in four more.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.configs import MLPEncoderConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec


class JoinedEncoder(torch.nn.Module):
    """Observation and action side by side into RLlib's encoder."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: dict[str, Any]) -> Any:
        return self.encoder({Columns.OBS: torch.cat([batch[Columns.OBS], batch[Columns.ACTIONS]], dim=-1)})


class JoinedCatalog(SACCatalog):
    """Critics of as many layers as `fcnet_hiddens` has, the policy's sizes."""

    def build_qf_encoder(self, framework: str) -> JoinedEncoder:
        *before, last = self._model_config_dict["fcnet_hiddens"]
        config = MLPEncoderConfig(
            input_dims=[self.observation_space.shape[0] + self.action_space.shape[0]],
            hidden_layer_dims=before,
            hidden_layer_activation=self._model_config_dict["fcnet_activation"],
            output_layer_dim=last,
            output_layer_activation=self._model_config_dict["fcnet_activation"],
        )
        return JoinedEncoder(config.build(framework=framework))


def module_options(hiddens: Sequence[int]) -> dict[str, Any]:
    """Return what `config.rl_module` takes: rectified layers."""
    return {
        "rl_module_spec": RLModuleSpec(module_class=DefaultSACTorchRLModule, catalog_class=JoinedCatalog),
        "model_config": DefaultModelConfig(fcnet_hiddens=list(hiddens), fcnet_activation="relu"),
    }
