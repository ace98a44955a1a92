"""Acting with a module that remembers: one time step for each row, the state handed in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.modules.rl_module import RLModule
from lockstep.modules.spaces import map_leaves

State = dict[str, np.ndarray]


class RecurrentActor:
    """Acts with any :class:`RLModule` that has a state, on its device."""

    def __init__(self, module: RLModule, obs_pipeline: Any = None) -> None:
        self.module = module
        self._pipeline = None if obs_pipeline is None or obs_pipeline.is_identity else obs_pipeline
        self.rebind()

    def rebind(self) -> None:
        """As `Actor.rebind`."""
        parameter = next(self.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def get_initial_state(self, num_rows: int) -> State:
        """`{name: [num_rows, ...]}` at the start of episodes; arrays of its own."""
        initial = self.module.get_initial_state()
        return {name: np.repeat(leaf.detach().cpu().numpy()[None], num_rows, axis=0) for name, leaf in initial.items()}

    def act(self, obs: Any, noise: npt.NDArray[np.float32] | None = None) -> np.ndarray:
        """Refused: `TypeError`, because nobody would carry the state on."""
        raise TypeError(f"{type(self.module).__name__} remembers from step to step; use act_with_state")

    @torch.inference_mode()
    def act_with_state(
        self, obs: Any, noise: npt.NDArray[np.float32] | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """Actions `[B, ...]` as the distribution has them for raw observations `[B, ...]`, and the state after them.

        `noise` `[B, D]` from `draw_noise` explores; None takes the mode. `state` `{name: [B, ...]}` is not changed.
        """
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        batch = {
            "obs": map_leaves(lambda leaf: self._to_tensor(leaf).unsqueeze(1), obs),
            "state_in": map_leaves(self._to_tensor, dict(state)),
        }
        forward = self.module.forward_inference if noise is None else self.module.forward_exploration
        outputs: dict[str, Any] = dict(forward(batch))
        after = {name: leaf.cpu().numpy() for name, leaf in outputs["state_out"].items()}
        if "actions" in outputs:
            return outputs["actions"].squeeze(1).cpu().numpy(), after
        dist = self.module.action_dist_cls.from_inputs(outputs["action_dist_inputs"].squeeze(1))
        actions = dist.mode() if noise is None else dist.sample_with_noise(self._to_tensor(noise))
        return actions.cpu().numpy(), after

    def _to_tensor(self, array: Any) -> torch.Tensor:
        array = np.asarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)
