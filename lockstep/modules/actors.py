"""Actors, which compute the actions of a module for numpy observations, with random numbers that were drawn in bulk.

For small plain networks, numpy and a compiled layer are several times faster than torch, whose dispatcher takes longer
than their arithmetic. These actors read the memory of the parameters itself, so that new weights need no copying. In
return they must notice when a parameter is replaced (`is_stale`). `make_actor` chooses the fastest actor for a module.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor, nn

from lockstep.data.trees import Tree, map_tree
from lockstep.modules.defaults.action_critics import DefaultSACModule, DefaultTD3Module
from lockstep.modules.defaults.action_values import DefaultQModule, DistributionalQModule
from lockstep.modules.defaults.actor_critic import (
    VALUE_STATE_PREFIX,
    DefaultActorCriticModule,
    RecurrentActorCriticModule,
)
from lockstep.modules.defaults.transition_module import TransitionModule
from lockstep.modules.encoders import Encoder, FlatFeatures
from lockstep.modules.layers import hooks_of, noise_matrices
from lockstep.modules.memory import MemoryEncoder, Recurrence
from lockstep.modules.rl_module import RLModule
from lockstep.ops.distributions import Categorical, DiagGaussian, SquashedDeterministic, SquashedGaussian

Noise = npt.NDArray[np.float32]
State = dict[str, np.ndarray]
Plan = tuple[list[tuple[Any, Any, Any]], tuple[Any, Any, Any]]
"""Weight, bias and output buffer of each hidden layer, and of the last layer."""


@dataclass(frozen=True)
class ActingWeights:
    """Weights of one or several modules and other values that acting needs, sent from a learner to env runners."""

    version: int
    """`weights_seq_no` of the learner: the number of updates so far."""
    flat: np.ndarray
    """Tensors that acting needs, one after another, uint8 [bytes] (`RLModule.get_flat_weights`)."""
    obs_state: Mapping[str, Any] = field(default_factory=dict)
    """Statistics of the observation pipeline. Empty: unchanged."""
    timesteps: Mapping[str, int] = field(default_factory=dict)
    """Time steps so far, for exploration schedules. Empty: unchanged."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """For several modules, the number of bytes of each in `flat`, by module id and in order. `obs_state` is then by
    module id as well."""
    recipes: Mapping[str, Any] = field(default_factory=dict)
    """Specs, by module id, of modules that were added during training and are not in the configuration."""
    policy_mapping_fn: Any = None
    """Function that names the module of each agent."""

    @classmethod
    def joined(cls, parts: Mapping[str, ActingWeights], recipes: Mapping[str, Any], mapping: object) -> ActingWeights:
        """Return the weights of several modules as one object."""
        first = next(iter(parts.values()))
        return cls(
            first.version,
            np.concatenate([part.flat for part in parts.values()]),
            {module_id: part.obs_state for module_id, part in parts.items()},
            first.timesteps,
            {module_id: part.num_bytes for module_id, part in parts.items()},
            recipes,
            mapping,
        )

    def by_module(self) -> dict[str, ActingWeights]:
        """Return the weights of each module by its id."""
        parts = {}
        start = 0
        for module_id, size in self.sizes.items():
            flat = self.flat[start : start + size]
            start += size
            parts[module_id] = replace(self, flat=flat, obs_state=self.obs_state.get(module_id, {}), sizes={})
        return parts

    @property
    def num_bytes(self) -> int:
        """Number of bytes in `flat`."""
        return int(self.flat.nbytes)


class ParameterAddresses:
    """Addresses of parameters that were read as arrays or views, to notice when one of them is replaced.

    A check takes about a microsecond. It runs before every call of an actor, so it uses the dicts of the modules and
    does not look up an attribute of a module, which runs Python code.

    Args:
        module: Module that contains the parameters.
        names: Names of the parameters, such as `"encoder.mlp.0.weight"`.
    """

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        layers: dict[tuple[int, str], tuple[dict[str, Any], str, nn.Module]] = {}
        owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        for path in names:
            *layer_names, name = path.split(".")
            layer = module
            for layer_name in layer_names:
                submodules: dict[str, Any] = layer._modules
                layer = submodules[layer_name]
                layers[id(submodules), layer_name] = (submodules, layer_name, layer)
            owners.append(layer._parameters)
            self._names.append(name)
        self._owners = owners
        self._layers = [[*column] for column in zip(*layers.values())] or [[], [], []]
        """Dicts of submodules, names in them, and the layers that were there."""
        self._addresses = self._current_addresses()

    def have_changed(self) -> bool:
        """Return whether a layer was replaced, or a parameter is at another address."""
        submodules, names, layers = self._layers
        try:
            if not all(map(operator.is_, map(operator.getitem, submodules, names), layers)):
                return True
            return self._current_addresses() != self._addresses
        except (KeyError, TypeError):  # a layer or parameter was removed, or is None
            return True

    def _current_addresses(self) -> list[int]:
        return list(map(Tensor.data_ptr, map(operator.getitem, self._owners, self._names)))


class Pipeline(Protocol):
    """Transform of observations before the network."""

    is_identity: bool
    """True if observations pass unchanged."""

    def __call__(self, data: Tree) -> Any: ...


class Actor(Protocol):
    """Interface of objects that compute actions for batches of observations."""

    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        """Return actions `[B, ...]` for raw observations `[B, ...]`.

        The actions have the form of batches; `ActionDist.to_env` converts them for the environment.

        Args:
            obs: Observations as the environment returns them.
            noise: Random numbers `[B, D]` from `draw_noise`. None: the mode of the distribution.
        """
        ...

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state at the start of episodes, `{name: [num_rows, ...]}`; empty for a module without a state."""
        ...

    def is_stale(self) -> bool:
        """Return whether parameters or layers were replaced, so that this actor would act with the old ones."""
        ...


def make_actor(module: RLModule, obs_pipeline: Pipeline | None = None) -> Actor:
    """Return a new actor of the fastest class for a module.

    All classes give the same actions for the same noise, up to rounding. For a module with a state it is a
    `RecurrentActor`, whose method is `act_with_state`.
    """
    if module.is_stateful():
        return NumpyRecurrentActor.build(module, obs_pipeline) or RecurrentActor(module, obs_pipeline)
    return NumpyActor.build(module, obs_pipeline) or TorchActor(module, obs_pipeline)


# -- with torch ---


class _DeviceActor:
    """Base class of actors that run an `RLModule` in torch, on the module's device."""

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        self.module = module
        self._pipeline = _unless_identity(obs_pipeline)
        self._device = _device_of(module)
        self._dtype = _dtype_of(module)

    def get_initial_state(self, num_rows: int) -> State:
        """Return an empty state."""
        return {}

    def is_stale(self) -> bool:
        """Return whether the module was moved to another device; see `Actor.is_stale`."""
        return _device_of(self.module) != self._device

    def _forward(self, batch: dict[str, Any], noise: Noise | None) -> dict[str, Any]:
        """Return the module's outputs. Noise of three dimensions is gSDE's matrices `[B, F, A]`."""
        if noise is None:
            return dict(self.module.forward_inference(batch))
        if noise.ndim == 2:
            return dict(self.module.forward_exploration(batch))
        with noise_matrices(self._to_tensor(noise)):
            return dict(self.module.forward_exploration(batch))

    def _pick(self, outputs: Mapping[str, Any], noise: Noise | None) -> np.ndarray:
        """Return the actions `[B, ...]` among the outputs, or those that the noise selects from their distribution."""
        if "actions" in outputs:
            return cast(np.ndarray, outputs["actions"].cpu().numpy())
        dist = self.module.action_dist_cls.from_inputs(outputs["action_dist_inputs"])
        draws = noise is not None and noise.ndim == 2  # gSDE's matrices have moved the mode already
        actions = dist.sample_with_noise(self._to_tensor(noise)) if draws else dist.mode()
        return actions.cpu().numpy()

    def _to_tensor(self, array: ArrayLike | None) -> Tensor:
        """Return an array as a tensor on the module's device."""
        array = np.asarray(array)
        writeable = array if array.flags.writeable else array.copy()  # torch warns about read-only memory
        return torch.from_numpy(writeable).to(self._device)

    def _obs_to_tensor(self, array: ArrayLike) -> Tensor:
        """Return observations as a tensor, floats in the dtype of the weights, as a learner passes them."""
        tensor = self._to_tensor(array)
        return tensor.to(self._dtype) if tensor.is_floating_point() and self._dtype is not None else tensor


class TorchActor(_DeviceActor):
    """Actor for any `RLModule` without a state, on its device."""

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        if module.is_stateful():
            raise ValueError(f"{type(module).__name__} keeps a state from step to step, so RecurrentActor must act")
        super().__init__(module, obs_pipeline)

    @torch.inference_mode()
    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        outputs = self._forward({"obs": map_tree(self._obs_to_tensor, obs)}, noise)
        return self._pick(outputs, noise)


class RecurrentActor(_DeviceActor):
    """Actor for any `RLModule` with a state, on its device."""

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state at the start of episodes, `{name: [num_rows, ...]}`, in new arrays."""
        initial = self.module.get_initial_state()
        return {name: np.repeat(leaf.detach().cpu().numpy()[None], num_rows, axis=0) for name, leaf in initial.items()}

    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        """Raise `TypeError`: the state after the step would be lost."""
        raise TypeError(f"{type(self.module).__name__} remembers from step to step; use act_with_state")

    @torch.inference_mode()
    def act_with_state(
        self, obs: Tree, noise: Noise | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """Return actions `[B, ...]` for raw observations `[B, ...]`, and the next state.

        Args:
            obs, noise: See `Actor.act`.
            state: State before the step, `{name: [B, ...]}`. It is not changed.
        """
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        batch = {
            "obs": map_tree(lambda leaf: self._obs_to_tensor(leaf).unsqueeze(1), obs),  # sequences of one step
            "state_in": map_tree(self._to_tensor, dict(state)),
        }
        outputs = self._forward(batch, noise)
        next_state = {name: leaf.cpu().numpy() for name, leaf in outputs["state_out"].items()}
        name = "actions" if "actions" in outputs else "action_dist_inputs"
        return self._pick({name: outputs[name].squeeze(1)}, noise), next_state


def _unless_identity(pipeline: Pipeline | None) -> Pipeline | None:
    """Return a pipeline, or None for one that changes nothing and need not be called."""
    return None if pipeline is None or pipeline.is_identity else pipeline


def _dtype_of(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of the first weights that are floats; None if there are none."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), None)


def _device_of(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


# -- with numpy ---

MAX_PLANS = 16
"""Number of observation shapes for which an actor keeps buffers."""
LARGEST_FOR_NUMPY = 1 << 20
"""Number of weights up to which numpy acts. In larger networks torch's overhead is negligible."""
# Arrays, because numpy would convert a number in each call.
_ZERO, _LOWEST, _HIGHEST = (np.full((), number, np.float32) for number in (0.0, -1.0, 1.0))
_PLAIN_DISTS = (Categorical, DiagGaussian, SquashedGaussian, SquashedDeterministic)
"""Distributions that `PlainPolicy` computes."""
_PLAIN_CLASSES = (
    *(DistributionalQModule, DefaultQModule, DefaultTD3Module),
    *(DefaultSACModule, TransitionModule, RecurrentActorCriticModule, DefaultActorCriticModule),
)
"""Classes that numpy can act for, subclasses before their bases. Further subclasses are included if they override no
method of `_ACTING`."""
_ACTING = (
    *("_forward", "forward_inference", "forward_exploration", "action_dist_cls", "is_stateful", "get_initial_state"),
    *("_run", "_run_heads", "_inputs", "_dist_inputs", "_run_memories", "_policy_outputs"),
    *("_advantages_and_value", "value_outputs", "mean_values", "mean_of_probs", "mean_of_array", "masked"),
)
"""Methods that acting calls. numpy's arithmetic replaces all of them, so an overridden one would be ignored."""


class PlainPolicy:
    """Layers of a module that `is_plain`, as arrays that share the memory of its parameters."""

    def __init__(self, module: Any) -> None:
        mlp = module.encoder.mlp
        self.layers = [*_arrays(mlp), *_arrays([module.policy_head])]
        """Weight and bias of each linear layer, the policy's head last."""
        self.rectify = any(isinstance(layer, nn.ReLU) for layer in mlp)
        """True if the activation is relu, False for tanh."""
        self.dtype = self.layers[0][0].dtype
        self.space: spaces.Box = module.encoder.space
        self.view: Callable[[Tree], Any] | None = module.encoder.view
        """Function from whole observations to what the policy sees; None if that is all."""

        parts = ["encoder.", "policy_head.", "log_std"]
        if module.is_stateful():  # the value's memory is updated while acting
            parts.append("value_encoder.")
        names = [name for name, _ in module.named_parameters() if name.startswith(tuple(parts))]
        self.addresses = ParameterAddresses(module, names)

        self._dist = module.action_dist_cls.dist_class
        self._num_actions = module.action_dist_cls.noise_size
        self._mean_of_array = getattr(module, "mean_of_array", None)  # of a distribution over returns
        log_std = getattr(module, "log_std", None)
        self.log_std = None if log_std is None else _array(log_std)
        self._log_std_bounds = getattr(module, "log_std_bounds", None)
        self.squashes_mean = module.squashes_mean

    def pick(self, out: np.ndarray, noise: Noise | None) -> np.ndarray:
        """Return the actions, in new arrays, for outputs `[B, D]` of the last layer, which may be overwritten."""
        if self._dist is Categorical:
            if self._mean_of_array is not None:
                out = self._mean_of_array(out)
            if noise is not None:
                np.add(out, noise, out)
            return np.asarray(out.argmax(1))
        mean = self.mean_of(out)
        if self._dist is SquashedDeterministic:
            actions = np.tanh(mean)
            if noise is not None:
                np.add(actions, noise, actions)
                np.maximum(actions, _LOWEST, out=actions)
                np.minimum(actions, _HIGHEST, out=actions)
            return actions
        if noise is None:
            actions = mean.copy()
        else:
            log_std = out[:, self._num_actions :] if self.log_std is None else self.log_std
            if self._log_std_bounds is not None:
                lowest, highest = self._log_std_bounds
                log_std = np.minimum(np.maximum(log_std, lowest), highest)
            actions = np.exp(log_std) * noise
            np.add(actions, mean, actions)
        if self._dist is SquashedGaussian:
            np.tanh(actions, actions)
        return actions

    def mean_of(self, out: np.ndarray) -> np.ndarray:
        """Return the means `[B, A]` among outputs `[B, D]` of the last layer. Squashes them in place, if they are."""
        mean = out[:, : self._num_actions]
        if self.squashes_mean:
            np.tanh(mean, mean)
        return mean

    def misshaped(self, obs: np.ndarray) -> ValueError:
        """Return the error for observations of a wrong shape."""
        expected = ", ".join(map(str, self.space.shape))
        return ValueError(
            f"observation of shape {obs.shape} does not fit the space {self.space}: expected [B, {expected}]"
        )


class _Plans(threading.local):
    """Weights, biases and output buffers of an actor's layers, by shape of the observations.

    Each thread has buffers of its own, so that several threads may act with one policy at the same time.
    """

    def __init__(self) -> None:
        self.by_shape: dict[tuple[int, ...], Plan] = {}


class NumpyActor:
    """Actor for a plain module, by compiled layers and numpy on the memory of its parameters.

    The result for a row does not depend on the other rows of the batch: the compiled layer computes each row alone, in
    contrast to a matrix product, whose rounding may change with the number of rows.
    """

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        from lockstep.ops._dense_kernel import dense  # imports numba

        plain = PlainPolicy(module)
        self._plain = plain
        self._pipeline = _unless_identity(obs_pipeline)
        self._view = plain.view
        self._dense = dense
        self._rectify = plain.rectify
        self._pick = plain.pick
        self._shape = plain.space.shape
        self._dtype = plain.dtype
        self._plans = _Plans()

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Pipeline | None = None) -> Self | None:
        """Return a new actor, or None if numpy cannot act for this module (see `is_plain`)."""
        if module.is_stateful():
            return None
        # With dueling, the action with the largest mean advantage is not always the one with the largest mean value.
        if isinstance(module, DistributionalQModule) and module.value_head is not None:
            return None
        return cls(module, obs_pipeline) if is_plain(module) else None

    def get_initial_state(self, num_rows: int) -> State:
        return {}

    def is_stale(self) -> bool:
        return self._plain.addresses.have_changed()

    def act(self, obs: np.ndarray, noise: Noise | None = None) -> np.ndarray:
        return self._pick(self._outputs(obs), noise)

    def dist_inputs(self, obs: np.ndarray) -> np.ndarray:
        """Return the inputs `[B, D]` of the action distribution for raw observations `[B, ...]`, in a new array."""
        out = self._outputs(obs)
        log_std = self._plain.log_std
        if self._plain.squashes_mean:
            self._plain.mean_of(out)
        return out.copy() if log_std is None else np.concatenate([out, np.broadcast_to(log_std, out.shape)], axis=1)

    def _outputs(self, obs: np.ndarray) -> np.ndarray:
        """Return the outputs `[B, D]` of the last layer, in memory that the next call of this thread overwrites."""
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        if self._view is not None:
            obs = self._view(obs)
        plan = self._plans.by_shape.get(obs.shape)
        hidden, (weight, bias, out) = plan if plan is not None else self._make_plan(obs)
        dense, rectify = self._dense, self._rectify
        x = obs if obs.ndim == 2 else obs.reshape(len(obs), -1)
        if x.dtype != self._dtype or not x.flags.carray:
            x = np.array(x, self._dtype, order="C")
        for hidden_weight, hidden_bias, buffer in hidden:
            dense(x, hidden_weight, hidden_bias, rectify, buffer)
            x = buffer if rectify else np.tanh(buffer, buffer)
        dense(x, weight, bias, False, out)
        return out

    def _make_plan(self, obs: np.ndarray) -> Plan:
        """Return the weights, biases and new output buffers for observations of this shape, and keep them.

        `ValueError` for a shape that does not fit the observation space.
        """
        if obs.shape[1:] != self._shape:
            raise self._plain.misshaped(obs)
        num_rows = len(obs)
        plans = self._plans.by_shape
        if len(plans) >= MAX_PLANS:
            plans.clear()
        steps = [(weight, bias, np.empty((num_rows, bias.size), self._dtype)) for weight, bias in self._plain.layers]
        plans[obs.shape] = steps[:-1], steps[-1]
        return plans[obs.shape]


class NumpyRecurrentActor(RecurrentActor):
    """Actor for a plain `RecurrentActorCriticModule`, by numpy on the memory of its parameters."""

    def __init__(self, module: RecurrentActorCriticModule, obs_pipeline: Pipeline | None = None) -> None:
        super().__init__(module, obs_pipeline)
        plain = PlainPolicy(module)
        self._plain = plain
        weight, bias = plain.layers[-1]
        self._head = (weight.T, bias)
        self._policy = _NumpyMemory(module.encoder, plain.rectify, "")
        value_encoder: Any = module.value_encoder
        self._value = None if value_encoder is None else _NumpyMemory(value_encoder, plain.rectify, VALUE_STATE_PREFIX)

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Pipeline | None = None) -> Self | None:
        """Return a new actor, or None if numpy cannot act for this module (see `is_plain`)."""
        if not isinstance(module, RecurrentActorCriticModule):
            return None
        return cls(module, obs_pipeline) if is_plain(module) else None

    def is_stale(self) -> bool:
        return self._plain.addresses.have_changed()

    def act_with_state(
        self, obs: Tree, noise: Noise | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """Return actions and the next state; see `RecurrentActor.act_with_state`."""
        plain = self._plain
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        if plain.view is not None:
            obs = plain.view(obs)
        if obs.shape[1:] != plain.space.shape:
            raise plain.misshaped(obs)
        x = obs.reshape(len(obs), -1).astype(plain.dtype, copy=False)
        features, next_state = self._policy.step(x, state)
        if self._value is not None:
            next_state |= self._value.step(x, state)[1]
        out = features @ self._head[0]
        out += self._head[1]
        return plain.pick(out, noise), next_state


class _NumpyMemory:
    """Layers of a `MemoryEncoder`, as arrays that share the memory of its parameters.

    `prefix`: beginning of the names of its state.
    """

    def __init__(self, encoder: MemoryEncoder, rectify: bool, prefix: str) -> None:
        recurrence: Any = encoder.memory
        self._hidden = [(weight.T, bias) for weight, bias in _arrays(encoder.encoder.mlp)]
        self._inputs = (_array(recurrence.weight_ih).T, _array(recurrence.bias_ih))
        self._memory = (_array(recurrence.weight_hh).T, _array(recurrence.bias_hh))
        self._cell = _lstm if recurrence.kind == "lstm" else _gru
        self._rectify = rectify
        self._names = {name: prefix + name for name in recurrence.initial_state()}

    def step(self, x: np.ndarray, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, State]:
        """Return the features `[B, H]` for observations `x` `[B, F]`, and the next state."""
        for weight, bias in self._hidden:
            x = x @ weight
            x += bias
            x = np.maximum(x, _ZERO, out=x) if self._rectify else np.tanh(x, x)
        before = {name: state[full_name] for name, full_name in self._names.items()}
        inputs = x @ self._inputs[0]
        inputs += self._inputs[1]
        memory = before["h"] @ self._memory[0]
        memory += self._memory[1]
        after = self._cell(inputs, memory, before)
        return after["h"], {full_name: after[name] for name, full_name in self._names.items()}


def is_plain(module: Any) -> bool:
    """Return whether numpy can act for a module.

    It must observe a Box as flat numbers, without an action mask, and act by the methods of a default module, with a
    Categorical, a Gaussian or a deterministic policy. Its layers must be linear with tanh or relu, without hooks, in
    float32 or float64 on the host, and small enough for numpy to be faster.
    """
    base = next((cls for cls in _PLAIN_CLASSES if isinstance(module, cls)), None)
    if base is None or getattr(module, "action_mirror", None) is not None:
        return False
    if getattr(module, "is_masked", False) or module.action_dist_cls.dist_class not in _PLAIN_DISTS:
        return False
    seen_space = module.encoder.space
    if not isinstance(seen_space, spaces.Box) or not seen_space.shape:
        return False

    # Overridden methods, in the class or in the object, would be ignored.
    if any(getattr(type(module), name, None) is not getattr(base, name, None) for name in _ACTING):
        return False
    if not vars(module).keys().isdisjoint(_ACTING):
        return False

    # The layers must have exactly the classes whose arithmetic numpy repeats.
    encoders = [module.encoder]
    memory_encoders = []
    memories = []
    if base is RecurrentActorCriticModule:
        memory_encoders = [each for each in (module.encoder, module.value_encoder) if each is not None]
        if {type(each) for each in memory_encoders} != {MemoryEncoder}:
            return False
        if module.value_encoder is not None and module.value_view().paths != module.policy_view.paths:
            return False
        memories = [each.memory for each in memory_encoders]
        if {type(each) for each in memories} != {Recurrence}:
            return False
        if any(len(each.hidden_layers) for each in memory_encoders):
            return False
        encoders = [each.encoder for each in memory_encoders]

    linears = [module.policy_head]
    activations = set()
    parts = [*encoders, *memory_encoders, *memories, module.policy_head]
    for encoder in encoders:
        if (type(encoder), type(encoder.features), type(encoder.mlp)) != (Encoder, FlatFeatures, nn.Sequential):
            return False
        if len(encoder.mlp) % 2:
            return False
        parts += (encoder.features, encoder.mlp, *encoder.mlp)
        linears += encoder.mlp[::2]
        activations |= {type(layer) for layer in encoder.mlp[1::2]}
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linears):
        return False
    if len(activations) > 1 or not activations <= {nn.Tanh, nn.ReLU}:
        return False

    has_hooks = any(any(hooks_of(part)[:2]) for part in parts)  # those of the forward pass
    parameters = chain.from_iterable(part.parameters() for part in (*linears, *memories))
    num_weights = sum(p.numel() for p in parameters if p.dim() > 1)  # biases have one dimension
    on_host = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64) for p in module.parameters())
    return not has_hooks and on_host and num_weights <= LARGEST_FOR_NUMPY


def _arrays(layers: Iterable[nn.Module]) -> list[tuple[Any, Any]]:
    """Return the weight and bias of each linear layer."""
    return [(_array(layer.weight), _array(layer.bias)) for layer in layers if isinstance(layer, nn.Linear)]


def _array(parameter: Tensor) -> Any:
    """Return a parameter as an array that shares its memory."""
    return parameter.detach().numpy()


def _lstm(inputs: np.ndarray, memory: np.ndarray, state: Mapping[str, np.ndarray]) -> State:
    """Return the state after one step of an LSTM, from pre-activations `[B, 4H]` in torch's order: i, f, g, o.

    Overwrites `inputs`, to save time for allocations.
    """
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
    """Return the state after one step of a GRU, from pre-activations `[B, 3H]` in torch's order: r, z, n.

    Overwrites `inputs` and `memory`, to save time for allocations.
    """
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
    """Replace `x` by its sigmoid, computed as `(tanh(x / 2) + 1) / 2`, which cannot overflow."""
    x *= 0.5
    np.tanh(x, x)
    x *= 0.5
    x += 0.5
