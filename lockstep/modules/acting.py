"""Acting on numpy observations, with random numbers that were drawn in bulk.

For small plain networks numpy and a compiled layer are several times faster than torch (no dispatcher between small
operations); they work on the memory of the parameters themselves, so a new set of weights needs no copying.
:func:`make_actor` picks.
"""

from __future__ import annotations

from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import nn

from lockstep.modules.action_values import DistributionalQModule
from lockstep.modules.actor_critic import DefaultActorCriticModule
from lockstep.modules.deterministic import DefaultTD3Module
from lockstep.modules.plain import is_plain, places_of_policy, tanh_
from lockstep.modules.recurrent_acting import NumpyRecurrentActor, RecurrentActor
from lockstep.modules.rl_module import RLModule
from lockstep.modules.soft_actor_critic import DefaultSACModule
from lockstep.modules.spaces import map_leaves
from lockstep.ops.deterministic import SquashedDeterministic
from lockstep.ops.distributions import Categorical, DiagGaussian, SquashedGaussian

MAX_PLANS = 16
_LOWEST, _HIGHEST = np.full((), -1.0, np.float32), np.full((), 1.0, np.float32)
"""arrays: numbers would be made such in each call"""
_OF_ALL = ("_forward", "forward_inference", "forward_exploration", "action_dist_cls", "is_stateful")
_METHODS = (*_OF_ALL, "_run", "_policy")
_OF_MEANS = ("value_outputs", "mean_values", "mean_of_probs", "mean_of_array", "masked")


class Pipeline(Protocol):
    """What the observations go through before the network (known here only by this)."""

    is_identity: bool

    def __call__(self, data: Any) -> Any: ...


@runtime_checkable
class Actor(Protocol):
    """Picks actions for a batch of observations."""

    def act(self, obs: Any, noise: npt.NDArray[np.float32] | None = None) -> np.ndarray:
        """Actions `[B, ...]` as the distribution has them (`ActionDist.to_env` for the environment) for raw
        observations `[B, ...]`. `noise` `[B, D]` from `draw_noise` explores; None takes the mode.
        """
        ...

    def rebind(self) -> None:
        """To be called after the parameters' storage was replaced (`parameter.data = ...`), not after their
        values have changed.
        """
        ...

    def is_stale(self) -> bool:
        """Were parameters or layers replaced since it was made (or bound), so that it acts with the old ones?"""
        ...


class TorchActor:
    """Acts with any :class:`RLModule`, on its device."""

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        if module.is_stateful():
            raise ValueError(f"{type(module).__name__} keeps a state from step to step, so RecurrentActor must act")
        self.module = module
        self._pipeline = None if obs_pipeline is None or obs_pipeline.is_identity else obs_pipeline
        self.rebind()

    def rebind(self) -> None:
        parameter = next(self.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def is_stale(self) -> bool:
        parameter = next(self.module.parameters(), None)
        return parameter is not None and parameter.device != self._device

    @torch.inference_mode()
    def act(self, obs: Any, noise: npt.NDArray[np.float32] | None = None) -> np.ndarray:
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        batch = {"obs": map_leaves(self._to_tensor, obs)}
        if noise is None:
            outputs = self.module.forward_inference(batch)
        else:
            outputs = self.module.forward_exploration(batch)
        if "actions" in outputs:
            return outputs["actions"].cpu().numpy()
        dist = self.module.action_dist_cls.from_inputs(outputs["action_dist_inputs"])
        actions = dist.mode() if noise is None else dist.sample_with_noise(self._to_tensor(noise))
        return actions.cpu().numpy()

    def _to_tensor(self, array: Any) -> torch.Tensor:
        array = np.asarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)


class NumpyActor:
    """Acts with a plain :class:`DefaultActorCriticModule` (or SAC's, or TD3's) through compiled layers and
    numpy, on the memory of its parameters. What it gives for a row does not depend on the rows beside it.
    """

    def __init__(
        self, module: DefaultActorCriticModule | DefaultTD3Module, obs_pipeline: Pipeline | None = None
    ) -> None:
        """Use :meth:`build`, which checks whether the module is plain enough."""
        self.module = module
        self._pipeline = None if obs_pipeline is None or obs_pipeline.is_identity else obs_pipeline
        self._shape = cast(spaces.Box, module.observation_space).shape
        heads = {DiagGaussian: _gaussian, SquashedGaussian: _squashed_gaussian, SquashedDeterministic: _deterministic}
        self._head = heads.get(module.action_dist_cls.dist_class)
        self._log_std_bounds = getattr(module, "log_std_bounds", None)
        self._num_actions = module.action_dist_cls.noise_size
        self._mean = module.mean_of_array if isinstance(module, DistributionalQModule) else None
        activations = {type(layer) for layer in module.encoder.mlp if not isinstance(layer, nn.Linear)}
        self._rectify = activations == {nn.ReLU}
        from lockstep.ops._dense_kernel import dense  # imports numba

        self._dense = dense
        self.rebind()

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Pipeline | None = None) -> Self | None:
        """An actor, or None where numpy cannot act for this module: other observations than a flat Box, other
        heads than Categorical, Gaussian and deterministic ones, other activations than tanh and relu, overridden
        methods, hooks, another device, or networks so large that there is nothing to gain.
        """
        if isinstance(module, DistributionalQModule):
            # With dueling the order of the advantages' means is not that of the values' means.
            fits = module.value_head is None and is_plain(module, DistributionalQModule, (*_METHODS, *_OF_MEANS))
        elif isinstance(module, DefaultTD3Module):
            fits = is_plain(module, DefaultTD3Module, _OF_ALL, dists=(SquashedDeterministic,))
        else:
            base = DefaultSACModule if isinstance(module, DefaultSACModule) else DefaultActorCriticModule
            fits = is_plain(module, base, _METHODS, dists=(Categorical, DiagGaussian, SquashedGaussian))
        if not fits:
            return None
        return cls(cast(DefaultActorCriticModule, module), obs_pipeline)

    def rebind(self) -> None:
        layers = [layer for layer in self.module.encoder.mlp if isinstance(layer, nn.Linear)]
        layers.append(self.module.policy_head)
        self._layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]
        self._dtype = self._layers[0][0].dtype
        log_std = getattr(self.module, "log_std", None)
        self._log_std = None if log_std is None else log_std.detach().numpy()
        self._plans: dict[int, tuple[list[tuple[Any, Any, Any]], tuple[Any, Any, Any]]] = {}
        self._places = places_of_policy(self.module)

    def is_stale(self) -> bool:
        return self._places.have_changed()

    def act(self, obs: np.ndarray, noise: npt.NDArray[np.float32] | None = None) -> np.ndarray:
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        if obs.shape[1:] != self._shape:
            raise ValueError(
                f"observation of shape {obs.shape} does not fit the space {self.module.observation_space}: "
                f"expected "
                f"[B, {', '.join(map(str, self._shape))}]"
            )
        num_rows = len(obs)
        plan = self._plans.get(num_rows)
        hidden, (weight, bias, out) = plan if plan is not None else self._make_plan(num_rows)
        dense, rectify = self._dense, self._rectify
        x = obs if obs.ndim == 2 else obs.reshape(num_rows, -1)
        if x.dtype != self._dtype or not x.flags.carray:
            x = np.array(x, self._dtype, order="C")
        for hidden_weight, hidden_bias, buffer in hidden:
            dense(x, hidden_weight, hidden_bias, rectify, buffer)
            if not rectify:
                tanh_(buffer)
            x = buffer
        dense(x, weight, bias, False, out)
        if self._head is not None:
            mean, log_std = out[:, : self._num_actions], self._log_std
            if log_std is None:
                log_std = out[:, self._num_actions :]
            if self._log_std_bounds is not None:
                lowest, highest = self._log_std_bounds
                log_std = np.minimum(np.maximum(log_std, lowest), highest)
            return self._head(mean, log_std, noise)
        if self._mean is not None:
            out = self._mean(out)
        if noise is not None:
            np.add(out, noise, out)
        return cast(np.ndarray, out.argmax(1))

    def _make_plan(self, num_rows: int) -> tuple[list[tuple[Any, Any, Any]], tuple[Any, Any, Any]]:
        """Weights and biases with a buffer for the outputs of each layer, kept for each number of rows."""
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        steps = [(weight, bias, np.empty((num_rows, bias.size), self._dtype)) for weight, bias in self._layers]
        self._plans[num_rows] = steps[:-1], steps[-1]
        return self._plans[num_rows]


def _gaussian(mean: np.ndarray, log_std: np.ndarray, noise: npt.NDArray[np.float32] | None) -> np.ndarray:
    """New arrays, here and below: `mean` is a buffer."""
    if noise is None:
        return mean.copy()
    actions = np.exp(log_std) * noise
    np.add(actions, mean, actions)
    return cast(np.ndarray, actions)


def _squashed_gaussian(mean: np.ndarray, log_std: np.ndarray, noise: npt.NDArray[np.float32] | None) -> np.ndarray:
    actions = _gaussian(mean, log_std, noise)
    tanh_(actions)
    return actions


def _deterministic(mean: np.ndarray, log_std: np.ndarray, noise: npt.NDArray[np.float32] | None) -> np.ndarray:
    actions = np.tanh(mean)
    if noise is not None:
        np.add(actions, noise, actions)
        np.maximum(actions, _LOWEST, out=actions)
        np.minimum(actions, _HIGHEST, out=actions)
    return cast(np.ndarray, actions)


def make_actor(module: RLModule, obs_pipeline: Pipeline | None = None) -> Actor:
    """The fastest actor for a module; all give the same actions for the same noise, up to rounding.

    A module with a state gets a `RecurrentActor` or its numpy form, which act by `act_with_state`.
    """
    if module.is_stateful():
        return NumpyRecurrentActor.build(module, obs_pipeline) or RecurrentActor(module, obs_pipeline)
    return NumpyActor.build(module, obs_pipeline) or TorchActor(module, obs_pipeline)
