"""Acting on numpy observations, with random numbers that were drawn in bulk.

For small plain networks numpy and a compiled layer are several times faster than torch (no dispatcher between small
operations). They work on the memory of the parameters themselves, so new values of the weights need no copying.
`make_actor` picks.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from lockstep.modules.defaults.actor_critic import VALUE_STATE, DefaultActorCriticModule, RecurrentActorCriticModule
from lockstep.modules.defaults.transition_module import TransitionModule
from lockstep.modules.encoders import Encoder, FlatFeatures
from lockstep.modules.layers import hooks_of, noise_matrices
from lockstep.modules.memory import MemoryEncoder, Recurrence
from lockstep.modules.rl_module import RLModule
from lockstep.ops.distributions import Categorical, DiagGaussian, SquashedDeterministic, SquashedGaussian

Noise = npt.NDArray[np.float32]
State = dict[str, np.ndarray]
Plan = tuple[list[tuple[Any, Any, Any]], tuple[Any, Any, Any]]
"""Weight, bias and memory for the outputs of each hidden layer, and of the last one."""


@dataclass(frozen=True)
class ActingWeights:
    """All that acting needs of one module at one moment, as it travels from who learns to who acts."""

    version: int
    """`weights_seq_no` of the learner: updates made so far"""
    flat: np.ndarray
    """[bytes] uint8: the tensors that acting needs, one after another (`RLModule.get_flat_weights`)"""
    obs_state: Mapping[str, Any] = field(default_factory=dict)
    """statistics of the observation pipeline; empty: leave them as they are"""
    timesteps: Mapping[str, int] = field(default_factory=dict)
    """the time, for exploration that depends on it; empty: leave it as it is"""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """of several modules, by id: the bytes of each in `flat`, one after another; `obs_state` is by id then"""
    recipes: Mapping[str, Any] = field(default_factory=dict)
    """how to build those of several modules that the configuration does not name, by id"""
    policy_mapping_fn: Any = None
    """which module acts for which of several agents"""

    @classmethod
    def joined(cls, parts: Mapping[str, ActingWeights], recipes: Mapping[str, Any], mapping: object) -> ActingWeights:
        """Return the weights of several modules as one."""
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
        """Return the weights of each of several modules."""
        found, start = {}, 0
        for module_id, size in self.sizes.items():
            flat, start = self.flat[start : start + size], start + size
            found[module_id] = replace(self, flat=flat, obs_state=self.obs_state.get(module_id, {}), sizes={})
        return found

    @property
    def num_bytes(self) -> int:
        """Size of the flat buffer."""
        return int(self.flat.nbytes)


class ParameterAddresses:
    """Notices when parameters that were read as arrays or views were replaced.

    Asking costs about a microsecond: no attribute of a module is looked up.
    """

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        """Note where the parameters `names` of `module` are now."""
        layers: dict[tuple[int, str], tuple[dict[str, Any], str, nn.Module]] = {}
        owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        for path in names:
            here, (*between, name) = module, path.split(".")
            for key in between:
                within: dict[str, Any] = here._modules
                here = within[key]
                layers[id(within), key] = (within, key, here)
            owners.append(here._parameters)
            self._names.append(name)
        self._owners = owners
        self._layers = [[*each] for each in zip(*layers.values())] or [[], [], []]
        self._places = list(map(Tensor.data_ptr, map(operator.getitem, self._owners, self._names)))

    def have_changed(self) -> bool:
        """Return whether a layer on the way is another object, or the memory of a parameter is elsewhere."""
        within, keys, layers = self._layers
        try:
            if not all(map(operator.is_, map(operator.getitem, within, keys), layers)):
                return True
            return list(map(Tensor.data_ptr, map(operator.getitem, self._owners, self._names))) != self._places
        except (KeyError, TypeError):  # gone, or None now
            return True


class Pipeline(Protocol):
    """What observations go through before the network."""

    is_identity: bool

    def __call__(self, data: Tree) -> Any: ...


class Actor(Protocol):
    """Picks actions for a batch of observations."""

    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        """Return actions `[B, ...]` for raw observations `[B, ...]`, as the distribution has them.

        `ActionDist.to_env` turns them into the environment's. `noise` `[B, D]` from `draw_noise` explores; None takes
        the mode.
        """
        ...

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state `{name: [num_rows, ...]}` at the start of episodes; empty for a module without a state."""
        ...

    def is_stale(self) -> bool:
        """Return whether parameters or layers were replaced since it was made, so that it acts with the old ones."""
        ...


def make_actor(module: RLModule, obs_pipeline: Pipeline | None = None) -> Actor:
    """Make the fastest actor for a module; all give the same actions for the same noise, up to rounding.

    A module with a state gets a `RecurrentActor`, which acts by `act_with_state`.
    """
    if module.is_stateful():
        return NumpyRecurrentActor.build(module, obs_pipeline) or RecurrentActor(module, obs_pipeline)
    return NumpyActor.build(module, obs_pipeline) or TorchActor(module, obs_pipeline)


# -- with torch ---


class _OnDevice:
    """Runs an `RLModule` on the device where it lies."""

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        self.module = module
        self._pipeline = _used(obs_pipeline)
        self._device = _device_of(module)
        self._dtype = _dtype_of(module)

    def get_initial_state(self, num_rows: int) -> State:
        """Return no state."""
        return {}

    def is_stale(self) -> bool:
        """Return whether the module was moved; see `Actor.is_stale`."""
        return _device_of(self.module) != self._device

    def _forward(self, batch: dict[str, Any], noise: Noise | None) -> dict[str, Any]:
        if noise is None:
            return dict(self.module.forward_inference(batch))
        if noise.ndim == 2:
            return dict(self.module.forward_exploration(batch))
        with noise_matrices(self._to_tensor(noise)):
            return dict(self.module.forward_exploration(batch))

    def _pick(self, outputs: Mapping[str, Any], noise: Noise | None) -> np.ndarray:
        """Return the actions `[B, ...]` that these outputs name, or that their distribution gives."""
        if "actions" in outputs:
            return cast(np.ndarray, outputs["actions"].cpu().numpy())
        dist = self.module.action_dist_cls.from_inputs(outputs["action_dist_inputs"])
        is_drawn = noise is not None and noise.ndim == 2  # matrices have moved the mode already
        actions = dist.sample_with_noise(self._to_tensor(noise)) if is_drawn else dist.mode()
        return actions.cpu().numpy()

    def _to_tensor(self, array: ArrayLike | None) -> Tensor:
        array = np.asarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)

    def _of_weights(self, array: ArrayLike) -> Tensor:
        """Return observations as a tensor, floats in the dtype of the weights: so does the learner hand them in."""
        tensor = self._to_tensor(array)
        return tensor.to(self._dtype) if tensor.is_floating_point() and self._dtype is not None else tensor


class TorchActor(_OnDevice):
    """Acts with any `RLModule` that has no state, on its device."""

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        if module.is_stateful():
            raise ValueError(f"{type(module).__name__} keeps a state from step to step, so RecurrentActor must act")
        super().__init__(module, obs_pipeline)

    @torch.inference_mode()
    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        return self._pick(self._forward({"obs": map_tree(self._of_weights, obs)}, noise), noise)


class RecurrentActor(_OnDevice):
    """Acts with any `RLModule` that has a state, on its device."""

    def get_initial_state(self, num_rows: int) -> State:
        """Return the state `{name: [num_rows, ...]}` at the start of episodes, in new arrays."""
        initial = self.module.get_initial_state()
        return {name: np.repeat(leaf.detach().cpu().numpy()[None], num_rows, axis=0) for name, leaf in initial.items()}

    def act(self, obs: Tree, noise: Noise | None = None) -> np.ndarray:
        """Refuse with a `TypeError`: nobody would carry the state on."""
        raise TypeError(f"{type(self.module).__name__} remembers from step to step; use act_with_state")

    @torch.inference_mode()
    def act_with_state(
        self, obs: Tree, noise: Noise | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """Return actions `[B, ...]` for raw observations `[B, ...]`, as `Actor.act` does, and the state after them.

        `state` `{name: [B, ...]}` is not changed.
        """
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        batch = {
            "obs": map_tree(lambda leaf: self._of_weights(leaf).unsqueeze(1), obs),
            "state_in": map_tree(self._to_tensor, dict(state)),
        }
        outputs = self._forward(batch, noise)
        after = {name: leaf.cpu().numpy() for name, leaf in outputs["state_out"].items()}
        name = "actions" if "actions" in outputs else "action_dist_inputs"
        return self._pick({name: outputs[name].squeeze(1)}, noise), after


def _used(pipeline: Pipeline | None) -> Pipeline | None:
    return None if pipeline is None or pipeline.is_identity else pipeline


def _dtype_of(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of the first weights that are floats; None for a network without any."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), None)


def _device_of(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


# -- with numpy ---

MAX_PLANS = 16
LARGEST_FOR_NUMPY = 1 << 20
"""Multiply-adds for one row; beyond, torch's overhead is nothing."""
# arrays: in each call a number would be made one
_ZERO, _LOWEST, _HIGHEST = (np.full((), number, np.float32) for number in (0.0, -1.0, 1.0))
_PLAIN_DISTS = (Categorical, DiagGaussian, SquashedGaussian, SquashedDeterministic)
_PLAIN_CLASSES = (
    *(DistributionalQModule, DefaultQModule, DefaultTD3Module),
    *(DefaultSACModule, TransitionModule, RecurrentActorCriticModule, DefaultActorCriticModule),
)
"""What numpy can act for, subclasses first, with those subclasses that override no method of `_ACTING`."""
_ACTING = (
    *("_forward", "forward_inference", "forward_exploration", "action_dist_cls", "is_stateful", "get_initial_state"),
    *("_run", "_run_heads", "_inputs", "_policy_inputs", "_run_memories"),
    *("_advantages_and_value", "value_outputs", "mean_values", "mean_of_probs", "mean_of_array", "masked"),
)


class PlainPolicy:
    """The layers of a module that `is_plain` as arrays that share the memory of its parameters."""

    def __init__(self, module: Any) -> None:
        mlp = module.encoder.mlp
        self.layers = [*_arrays(mlp), *_arrays([module.policy_head])]
        self.rectify = any(isinstance(layer, nn.ReLU) for layer in mlp)
        self.dtype = self.layers[0][0].dtype
        self.space: spaces.Box = module.observation_space
        parts = ("encoder.", "policy_head.", "log_std", *(("value_encoder.",) if module.is_stateful() else ()))
        names = [name for name, _ in module.named_parameters() if name.startswith(parts)]
        self.places = ParameterAddresses(module, names)
        self._dist = module.action_dist_cls.dist_class
        self._num_actions = module.action_dist_cls.noise_size
        self._mean_of = module.mean_of_array if isinstance(module, DistributionalQModule) else None
        log_std = getattr(module, "log_std", None)
        self.log_std = None if log_std is None else _array(log_std)
        self._log_std_bounds = getattr(module, "log_std_bounds", None)
        self.squashes_mean = module.squashes_mean

    def pick(self, out: np.ndarray, noise: Noise | None) -> np.ndarray:
        """Return the actions, in new arrays, for what the last layer gives, `[B, D]`. That may be changed."""
        if self._dist is Categorical:
            if self._mean_of is not None:
                out = self._mean_of(out)
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
        """Return the mean `[B, A]` in what the last layer gives, `[B, D]`; one that is squashed is changed in place."""
        mean = out[:, : self._num_actions]
        if self.squashes_mean:
            np.tanh(mean, mean)
        return mean

    def misshaped(self, obs: np.ndarray) -> ValueError:
        """Return the error for observations that the module cannot take."""
        expected = ", ".join(map(str, self.space.shape))
        return ValueError(
            f"observation of shape {obs.shape} does not fit the space {self.space}: expected [B, {expected}]"
        )


class _Plans(threading.local):
    """The weights and biases of an actor with memory for the outputs of each layer, by shape of the observations.

    Each thread has its own, so that a policy may be asked by several threads at once.
    """

    def __init__(self) -> None:
        self.by_shape: dict[tuple[int, ...], Plan] = {}


class NumpyActor:
    """Acts with a plain module through compiled layers and numpy.

    It reads the memory of the parameters. What it gives for a row does not depend on the rows beside it.
    """

    def __init__(self, module: RLModule, obs_pipeline: Pipeline | None = None) -> None:
        from lockstep.ops._dense_kernel import dense  # imports numba

        self._plain = plain = PlainPolicy(module)
        self._pipeline = _used(obs_pipeline)
        self._dense, self._rectify, self._pick = dense, plain.rectify, plain.pick
        self._shape, self._dtype = plain.space.shape, plain.dtype
        self._plans = _Plans()

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Pipeline | None = None) -> Self | None:
        """Make an actor, or return None where numpy cannot act for this module (see `is_plain`)."""
        if module.is_stateful() or (isinstance(module, DistributionalQModule) and module.value_head is not None):
            return None  # with dueling, the order of the advantages' means is not that of the values' means
        return cls(module, obs_pipeline) if is_plain(module) else None

    def get_initial_state(self, num_rows: int) -> State:
        return {}

    def is_stale(self) -> bool:
        return self._plain.places.have_changed()

    def act(self, obs: np.ndarray, noise: Noise | None = None) -> np.ndarray:
        return self._pick(self._outputs(obs), noise)

    def dist_inputs(self, obs: np.ndarray) -> np.ndarray:
        """Return what actions are drawn from for raw observations `[B, ...]`: the inputs `[B, D]` of the distribution,
        in a new array."""
        out, log_std = self._outputs(obs), self._plain.log_std
        if self._plain.squashes_mean:
            self._plain.mean_of(out)
        return out.copy() if log_std is None else np.concatenate([out, np.broadcast_to(log_std, out.shape)], axis=1)

    def _outputs(self, obs: np.ndarray) -> np.ndarray:
        """Return what the last layer gives, `[B, D]`, in memory that the next call of this thread overwrites."""
        if self._pipeline is not None:
            obs = self._pipeline(obs)
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
        """Return weights and biases with a buffer for the outputs of each layer, kept for observations of this shape.

        `ValueError` for a shape that the module cannot take.
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
    """Acts with a plain `RecurrentActorCriticModule` through numpy, on the memory of its parameters."""

    def __init__(self, module: RecurrentActorCriticModule, obs_pipeline: Pipeline | None = None) -> None:
        super().__init__(module, obs_pipeline)
        self._plain = plain = PlainPolicy(module)
        weight, bias = plain.layers[-1]
        self._head = weight.T, bias
        self._policy = _NumpyMemory(module.encoder, plain.rectify, "")
        value_encoder = module.value_encoder
        self._value = None if value_encoder is None else _NumpyMemory(value_encoder, plain.rectify, VALUE_STATE)

    @classmethod
    def build(cls, module: RLModule, obs_pipeline: Pipeline | None = None) -> Self | None:
        """Make an actor, or return None where numpy cannot act for this module (see `is_plain`)."""
        if not isinstance(module, RecurrentActorCriticModule):
            return None
        return cls(module, obs_pipeline) if is_plain(module) else None

    def is_stale(self) -> bool:
        return self._plain.places.have_changed()

    def act_with_state(
        self, obs: Tree, noise: Noise | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, State]:
        """Return actions and the state after them; see `RecurrentActor.act_with_state`."""
        plain = self._plain
        if self._pipeline is not None:
            obs = self._pipeline(obs)
        if obs.shape[1:] != plain.space.shape:
            raise plain.misshaped(obs)
        x = obs.reshape(len(obs), -1).astype(plain.dtype, copy=False)
        features, after = self._policy.step(x, state)
        if self._value is not None:
            after |= self._value.step(x, state)[1]
        out = features @ self._head[0]
        out += self._head[1]
        return plain.pick(out, noise), after


class _NumpyMemory:
    """The layers of a `MemoryEncoder` as arrays that share the memory of its parameters."""

    def __init__(self, encoder: MemoryEncoder, rectify: bool, prefix: str) -> None:
        recurrence: Any = encoder.memory
        self._hidden = [(weight.T, bias) for weight, bias in _arrays(encoder.encoder.mlp)]
        self._inputs = _array(recurrence.weight_ih).T, _array(recurrence.bias_ih)
        self._memory = _array(recurrence.weight_hh).T, _array(recurrence.bias_hh)
        self._cell = _lstm if recurrence.kind == "lstm" else _gru
        self._rectify = rectify
        self._names = {name: prefix + name for name in recurrence.initial_state()}

    def step(self, x: np.ndarray, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, State]:
        """Return features `[B, H]` after observations `x` `[B, F]`, and the state after them."""
        for weight, bias in self._hidden:
            x = x @ weight
            x += bias
            x = np.maximum(x, _ZERO, out=x) if self._rectify else np.tanh(x, x)
        before = {name: state[full] for name, full in self._names.items()}
        inputs, memory = x @ self._inputs[0], before["h"] @ self._memory[0]
        inputs += self._inputs[1]
        memory += self._memory[1]
        after = self._cell(inputs, memory, before)
        return after["h"], {full: after[name] for name, full in self._names.items()}


def is_plain(module: Any) -> bool:
    """Return whether numpy can act for a module.

    It must observe a Box as flat numbers, without an action mask, and act by the methods of a default module, with a
    Categorical, a Gaussian or a deterministic policy. Its layers must be linear with tanh or relu, without hooks, in
    float32 or float64 on the host, and small enough for there to be something to gain.
    """
    base = next((cls for cls in _PLAIN_CLASSES if isinstance(module, cls)), None)
    if base is None or getattr(module, "is_masked", False) or module.action_dist_cls.dist_class not in _PLAIN_DISTS:
        return False
    if any(getattr(type(module), name, None) is not getattr(base, name, None) for name in _ACTING):
        return False
    if not isinstance(module.observation_space, spaces.Box) or not module.observation_space.shape:
        return False
    encoders, memories = [module.encoder], []
    if base is RecurrentActorCriticModule:
        remembering = [each for each in (module.encoder, module.value_encoder) if each is not None]
        memories = [each.memory for each in remembering]
        if {type(each) for each in remembering} != {MemoryEncoder} or {type(each) for each in memories} != {Recurrence}:
            return False
        encoders = [each.encoder for each in remembering]
    linears, activations = [module.policy_head], set()
    parts = [*encoders, *memories, module.policy_head]
    for encoder in encoders:
        if (type(encoder), type(encoder.features), type(encoder.mlp)) != (Encoder, FlatFeatures, nn.Sequential):
            return False
        parts += (encoder.features, encoder.mlp, *encoder.mlp)
        linears += encoder.mlp[::2]
        activations |= {type(layer) for layer in encoder.mlp[1::2]}
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linears):
        return False
    if len(activations) > 1 or not activations <= {nn.Tanh, nn.ReLU} or any(len(each.mlp) % 2 for each in encoders):
        return False
    parts += remembering if memories else []
    if not vars(module).keys().isdisjoint(_ACTING) or any(hooks for part in parts for hooks in hooks_of(part)[:2]):
        return False
    num_weights = sum(p.numel() for part in (*linears, *memories) for p in part.parameters() if p.dim() > 1)
    on_host = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64) for p in module.parameters())
    return on_host and num_weights <= LARGEST_FOR_NUMPY


def _arrays(layers: Iterable[nn.Module]) -> list[tuple[Any, Any]]:
    """Return weight and bias of each linear layer."""
    return [(_array(layer.weight), _array(layer.bias)) for layer in layers if isinstance(layer, nn.Linear)]


def _array(parameter: Tensor) -> Any:
    """Return the memory of a parameter as an array."""
    return parameter.detach().numpy()


def _lstm(inputs: np.ndarray, memory: np.ndarray, state: Mapping[str, np.ndarray]) -> State:
    """Step an LSTM; `inputs`, `memory` `[B, 4H]`: input, forget, candidate, output gate. Changes `inputs`."""
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
    """Step a GRU; `inputs`, `memory` `[B, 3H]`: reset gate, update gate, candidate. Changes both."""
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
    """Apply the sigmoid in place, by `sigmoid(x) = (tanh(x / 2) + 1) / 2`, which cannot overflow."""
    x *= 0.5
    np.tanh(x, x)
    x *= 0.5
    x += 0.5
