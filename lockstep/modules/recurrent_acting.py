"""Acting with a module that remembers: one time step for each row, the state handed in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lockstep.modules.plain import ACTIVATIONS, is_plain, places_of_policy, tanh_
from lockstep.modules.recurrent import Recurrence, RecurrentActorCriticModule
from lockstep.modules.rl_module import RLModule
from lockstep.modules.spaces import map_leaves
from lockstep.ops.distributions import DiagGaussian

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

    def is_stale(self) -> bool:
        """As `Actor.is_stale`."""
        return next(self.module.parameters()).device != self._device

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


class NumpyRecurrentActor(RecurrentActor):
    """Acts with a plain :class:`RecurrentActorCriticModule` through numpy, on the memory of its parameters."""

    module: RecurrentActorCriticModule

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Any = None) -> Self | None:
        """An actor, or None where numpy cannot act for this module (as `NumpyActor.build`)."""
        if not isinstance(module, RecurrentActorCriticModule) or type(module.recurrence) is not Recurrence:
            return None
        return (
            cls(module, obs_pipeline)
            if is_plain(module, RecurrentActorCriticModule, _METHODS, [module.recurrence])
            else None
        )

    def rebind(self) -> None:
        module, recurrence = self.module, self.module.recurrence
        linears = [layer for layer in module.encoder.mlp if isinstance(layer, nn.Linear)]
        activations = [layer for layer in module.encoder.mlp if not isinstance(layer, nn.Linear)]
        self._activate = ACTIVATIONS[type(activations[0])] if activations else tanh_
        *self._hidden, self._head = [_weights(layer.weight, layer.bias) for layer in (*linears, module.policy_head)]
        self._inputs = _weights(recurrence.weight_ih, recurrence.bias_ih)
        self._memory = _weights(recurrence.weight_hh, recurrence.bias_hh)
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._is_gaussian = module.action_dist_cls.dist_class is DiagGaussian
        self._num_actions = module.action_dist_cls.noise_size
        self._shape = tuple(module.observation_space.shape or ())
        self._cell = _lstm if recurrence.kind == "lstm" else _gru
        self._places = places_of_policy(module)

    def is_stale(self) -> bool:
        return self._places.have_changed()

    def act_with_state(
        self, obs: Any, noise: npt.NDArray[np.float32] | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """As `RecurrentActor.act_with_state`."""
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        if obs.shape[1:] != self._shape:
            raise ValueError(
                f"observation of shape {obs.shape} does not fit the space {self.module.observation_space}: expected "
                f"[B, {', '.join(map(str, self._shape))}]"
            )
        x = obs.reshape(len(obs), -1).astype(self._head[0].dtype, copy=False)
        for weight, bias in self._hidden:
            x = x @ weight
            x += bias
            self._activate(x)
        inputs, memory = x @ self._inputs[0], state["h"] @ self._memory[0]
        inputs += self._inputs[1]
        memory += self._memory[1]
        after = self._cell(inputs, memory, state)
        out = after["h"] @ self._head[0]
        out += self._head[1]
        return self._actions(out, noise), after

    def _actions(self, out: np.ndarray, noise: npt.NDArray[np.float32] | None) -> np.ndarray:
        if not self._is_gaussian:
            if noise is not None:
                out += noise
            return np.asarray(out.argmax(1))
        mean = out[:, : self._num_actions]
        if noise is None:
            return mean.copy()
        log_std = out[:, self._num_actions :] if self._log_std is None else self._log_std
        actions: np.ndarray = np.exp(log_std) * noise
        actions += mean
        return actions


def _lstm(inputs: np.ndarray, memory: np.ndarray, state: Mapping[str, np.ndarray]) -> State:
    """`inputs`, `memory` `[B, 4H]`: input gate, forget gate, candidate, output gate. Changes `inputs`."""
    inputs += memory
    size = inputs.shape[1] // 4
    _sigmoid_(inputs[:, : 2 * size])
    _sigmoid_(inputs[:, 3 * size :])
    candidate = inputs[:, 2 * size : 3 * size]
    np.tanh(candidate, candidate)
    cell = inputs[:, size : 2 * size] * state["c"]
    candidate *= inputs[:, :size]
    cell += candidate
    hidden = np.tanh(cell)
    hidden *= inputs[:, 3 * size :]
    return {"h": hidden, "c": cell}


def _gru(inputs: np.ndarray, memory: np.ndarray, state: Mapping[str, np.ndarray]) -> State:
    """`inputs`, `memory` `[B, 3H]`: reset gate, update gate, candidate. Changes both."""
    size = inputs.shape[1] // 3
    gates = inputs[:, : 2 * size]
    gates += memory[:, : 2 * size]
    _sigmoid_(gates)
    candidate = memory[:, 2 * size :]
    candidate *= inputs[:, :size]
    candidate += inputs[:, 2 * size :]
    np.tanh(candidate, candidate)
    hidden = state["h"] - candidate
    hidden *= inputs[:, size : 2 * size]
    hidden += candidate
    return {"h": hidden}


def _sigmoid_(x: np.ndarray) -> None:
    """In place, by `sigmoid(x) = (tanh(x / 2) + 1) / 2`, which cannot overflow."""
    x *= 0.5
    np.tanh(x, x)
    x *= 0.5
    x += 0.5


def _weights(weight: torch.Tensor, bias: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return weight.detach().numpy().T, bias.detach().numpy()


_METHODS = ("_forward", "_remember", "_policy", "forward_inference", "forward_exploration", "action_dist_cls",
            "get_initial_state")  # fmt: skip
