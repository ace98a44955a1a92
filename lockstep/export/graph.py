"""`ActingGraph`: one torch module from a raw observation to the environment's action, for tracing."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from lockstep.connectors import Connector, ModuleConnectors
from lockstep.connectors.acting import ActingObservations
from lockstep.data.trees import Tree, map_tree
from lockstep.modules import RLModule
from lockstep.ops.arrays import torch_dtype

NOISE = "noise"
REWARD = "reward"
"""Names of inputs that are not part of an observation."""
STATE_IN = "state_in_"
STATE_OUT = "state_out_"
"""Prefixes of the inputs and outputs that hold the state of a row."""
LIBRARIES = ("torch.", "lockstep.")
"""Packages whose classes are not the user's own."""
NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ExportError(ValueError):
    """Error for a policy that cannot be exported, or for a damaged artefact. It says why and what to do."""


@dataclass(frozen=True)
class Port:
    """Description of one input or output of an artefact."""

    name: str
    path: tuple[str | int, ...]
    """Keys that lead to the leaf in an observation or action."""
    shape: tuple[int, ...]
    """Shape of one row."""
    dtype: np.dtype[Any]
    initial: Any = 0
    """Value of a state at the start of an episode: a number, or nested lists of the row's shape."""
    low: Any = None
    """Smallest value of an observation, in the form of `initial`. None if the policy accepts any value."""
    high: Any = None
    """Largest value of an observation, in the same form."""

    def to_dict(self) -> dict[str, Any]:
        """Return the port as plain values for the card."""
        fields: dict[str, Any] = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}
        if self.name.startswith(STATE_IN):
            return {**fields, "initial": self.initial}
        fields["path"] = list(self.path)
        if self.low is not None:
            fields |= {"low": self.low, "high": self.high}
        return fields

    def rows(self, number: int) -> np.ndarray:
        """Return the initial value for a number of rows, `[number, *shape]`."""
        return np.broadcast_to(np.asarray(self.initial, self.dtype), (number, *self.shape)).copy()


def ports_of(name: str, space: Space[Any], path: tuple[str | int, ...] = ()) -> Iterator[Port]:
    """Yield a port for each leaf of a space; `ExportError` for a leaf that is not numeric."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from ports_of(f"{name}/{key}", part, (*path, key))
    elif isinstance(space, NUMERIC):
        low, high = _choice_bounds(space)
        yield Port(name, path, tuple(space.shape or ()), np.dtype(space.dtype), low=low, high=high)
    else:
        raise ExportError(
            f"{name} is {space}, which has no array of fixed size; Box, Discrete, MultiDiscrete, MultiBinary, Dict and "
            "Tuple can be exported"
        )


def _choice_bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and largest value of a space of choices. None for a Box, whose bounds a policy ignores."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.tolist(), (space.start + space.nvec - 1).tolist()
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return None, None


def tree_of(space: Space[Any], leaves: Iterator[Any]) -> Any:
    """Return a tree with the structure of a space, with the next of `leaves` in place of each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: tree_of(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(tree_of(part, leaves) for part in space.spaces)
    return next(leaves)


class ActingGraph(nn.Module):
    """Module that computes the environment's actions from raw observations with a policy's network and connectors.

    `forward` takes a tensor `[B, ...]` for each port of `inputs` and returns one for each of `output_names`. Network
    and connectors are copies of those that act, so that the artefact cannot differ from them. Parts that only training
    needs are left out.

    Args:
        module: Network of the policy.
        connectors: Connectors around it.
        observations: Entries of observations that the policy sees, which are the inputs.
        action_space: Action space of the environment.
        draws: Draw actions with an input `noise`, instead of taking the most likely ones.

    Raises:
        ExportError: a connector, a space or the network cannot be exported.
    """

    def __init__(
        self,
        module: RLModule,
        connectors: ModuleConnectors,
        observations: ActingObservations,
        action_space: Space[Any],
        *,
        draws: bool = False,
    ) -> None:
        super().__init__()
        observation_space = observations.space
        self.observation_space = observation_space
        self._observations = observations
        self.action_space = action_space
        self.module = acting_copy(module)
        connectors = copy.deepcopy(connectors)
        self.obs_connectors: tuple[Connector, ...] = (*connectors.recorded.connectors, *connectors.obs.connectors)
        self.num_recording = len(connectors.recorded.connectors)
        """Number of connectors whose outputs are the stored observations, of which a symmetry makes mirror images."""
        self.symmetry = connectors.symmetry if connectors.obs.makes_pairs else None
        """Mirror images of stored observations, for a symmetric network; otherwise None."""
        for connector in self.obs_connectors:
            connector.keep_entries(observations.stored_space)
        self.action_connectors: tuple[Any, ...] = ()
        if connectors.actions is not None:
            self.action_connectors = connectors.actions.connectors
        self.dist = self.module.action_dist_cls
        self.is_stateful = self.module.is_stateful()
        self.draws = draws

        # States: the memories of the connectors, then the recurrent state of the network.
        memories = [_memory_of(connector) for connector in self.obs_connectors]
        self._memory_names: list[dict[str, str]] = []
        """Name in the artefact of each memory of each connector."""
        states: list[tuple[str, np.ndarray]] = []
        for number, memory in enumerate(memories):
            names = {name: _unique(name, number, memories) for name in memory}
            self._memory_names.append(names)
            states += [(names[name], leaf) for name, leaf in memory.items()]
        for name, tensor in self.module.get_initial_state().items():
            states.append((name, tensor.detach().cpu().numpy()))
        self.states = [Port(STATE_IN + name, (), leaf.shape, leaf.dtype, _start_value(leaf)) for name, leaf in states]

        self.observations = list(ports_of("obs", observation_space))
        self.actions = list(ports_of("action", action_space))
        self.extra: list[Port] = []
        """Inputs besides observations and states: the reward of the step before, and noise."""
        if any(connector.reads_rewards for connector in self.obs_connectors):
            self.extra.append(Port(REWARD, (), (), np.dtype(np.float32)))
        if draws:
            self.extra.append(Port(NOISE, (), (self.dist.noise_size,), np.dtype(np.float32)))
        self.inputs = [*self.observations, *self.extra, *self.states]
        self.output_names = [port.name for port in self.actions]
        self.output_names += [STATE_OUT + port.name.removeprefix(STATE_IN) for port in self.states]
        self.eval()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the leaves of the actions, followed by the next states."""
        values = self._by_name(inputs)
        outputs, memories, states = self._run(values)
        chosen = self._choose(outputs, values.get(NOISE))
        with export_errors_of(self.dist.action_space):
            actions = self.dist.to_env(chosen)  # type: ignore[arg-type]
        for connector in self.action_connectors:
            with export_errors_of(connector):
                mapped, _ = connector.export_call(actions, {})
                actions = _tensors_only(mapped)

        # Connectors may remember the action that was taken.
        next_states: dict[str, Tensor] = {}
        for connector, names, memory in zip(self.obs_connectors, self._memory_names, memories):
            with export_errors_of(connector):
                next_memory = connector.export_after(memory, actions)
            next_states |= {names[name]: leaf for name, leaf in next_memory.items()}
        next_states |= states

        leaves = [_at(actions, port.path) for port in self.actions]
        leaves += [next_states[port.name.removeprefix(STATE_IN)] for port in self.states]
        ports = [*self.actions, *self.states]
        return tuple(_output(leaf, port) for leaf, port in zip(leaves, ports))

    def scores(self, *inputs: Tensor) -> Tensor | None:
        """Return the inputs of the action distribution, `[B, D]`, with the noise added to them.

        None if the network chooses actions by itself.
        """
        values = self._by_name(inputs)
        outputs = self._run(values)[0]
        if "actions" in outputs:
            return None
        scores = outputs["action_dist_inputs"]
        if NOISE in values:
            noise_size = self.dist.noise_size
            scores = torch.cat([scores[:, :noise_size] + values[NOISE], scores[:, noise_size:]], 1)
        return scores

    def in_float64(self) -> ActingGraph:
        """Return a copy whose network computes in float64 and takes its state in float64."""
        exact = copy.deepcopy(self).double()
        # The memories of connectors come first and keep their dtypes: connectors compute as before.
        num_memories = sum(map(len, self._memory_names))
        exact.states = []
        for number, port in enumerate(self.states):
            is_network_state = number >= num_memories and port.dtype.kind == "f"
            exact.states.append(replace(port, dtype=np.dtype(np.float64)) if is_network_state else port)
        exact.inputs = [*self.observations, *self.extra, *exact.states]
        return exact

    def examples(self, num_rows: int) -> tuple[Tensor, ...]:
        """Return example inputs for tracing. Observations are sampled from their space: a network may refuse others."""
        space = batch_space(self.observation_space, num_rows)
        space.seed(0)
        sample = space.sample()
        values = {port.name: port.rows(num_rows) for port in self.inputs}
        for port in self.observations:
            values[port.name] = np.array(_at(sample, port.path), port.dtype)
        return self.inputs_from(values)

    def inputs_from(self, values: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        """Return arrays by name as input tensors, in order and in their dtypes."""
        return tuple(torch.from_numpy(np.array(values[port.name], port.dtype)) for port in self.inputs)

    def _by_name(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        return {port.name: tensor for port, tensor in zip(self.inputs, inputs, strict=True)}

    def _run(
        self, values: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return the network's outputs `[B, ...]`, the memory of each connector, and the network's next state."""
        data = tree_of(self.observation_space, iter([values[port.name] for port in self.observations]))
        data = self._observations.as_recorded(data)
        memories = []
        images: list[Any] = [data]
        for number, (connector, names) in enumerate(zip(self.obs_connectors, self._memory_names)):
            if number == self.num_recording:
                images = self._with_mirror_image(images)
            memory = {name: values[STATE_IN + full_name] for name, full_name in names.items()}
            if connector.reads_rewards:
                memory[REWARD] = values[REWARD]
            with export_errors_of(connector):
                called = [connector.export_call(image, memory) for image in images]
                images = [_tensors_only(image) for image, _ in called]
            memories.append(called[0][1])
        if self.num_recording == len(self.obs_connectors):
            images = self._with_mirror_image(images)
        images = [self._observations.for_network(image) for image in images]
        data = images[0] if self.symmetry is None else tuple(images)

        weight = next((p for p in self.module.parameters() if p.is_floating_point()), None)
        if weight is not None:
            # A policy casts observations to the dtype of its network, so the graph must do the same.
            data = map_tree(lambda leaf: leaf.to(weight.dtype) if leaf.is_floating_point() else leaf, data)

        with export_errors_of(self.module):
            if not self.is_stateful:
                return dict(self.module.forward_inference({"obs": data})), memories, {}
            state = {name: values[STATE_IN + name] for name in self.module.get_initial_state()}
            sequences = map_tree(lambda leaf: leaf.unsqueeze(1), data)  # of one step
            outputs = dict(self.module.forward_inference({"obs": sequences, "state_in": state}))
            name = "actions" if "actions" in outputs else "action_dist_inputs"
            next_state: Any = outputs["state_out"]
            return {name: outputs[name].squeeze(1)}, memories, next_state

    def _with_mirror_image(self, images: list[Any]) -> list[Any]:
        """Return the stored observations together with their mirror images, for a symmetric network."""
        if self.symmetry is None:
            return images
        with export_errors_of(self.symmetry):
            return [*images, self.symmetry.observations(images[0])]

    def _choose(self, outputs: Mapping[str, Tensor], noise: Tensor | None) -> Tensor:
        """Return the actions that the outputs of the network select, in the policy's form."""
        if "actions" in outputs:
            return outputs["actions"]
        dist = self.dist.from_inputs(outputs["action_dist_inputs"])
        return dist.mode() if noise is None else dist.sample_with_noise(noise)


def acting_copy(module: RLModule) -> RLModule:
    """Return an independent copy of a module on the CPU, without the parts that only training needs."""
    module = copy.deepcopy(module).cpu()
    module.inference_only = True
    for name in module.get_non_inference_attributes():
        *parents, last = name.split(".")
        owner: Any = module
        for parent in parents:
            owner = getattr(owner, parent, None)
        if owner is not None and getattr(owner, last, None) is not None:
            setattr(owner, last, None)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.requires_grad_(False)
        # Parameters of a learner are views into one flat tensor of all modules. The file must hold these alone.
        tensor.data = tensor.data.clone()
    return module


@contextmanager
def export_errors_of(part: object) -> Iterator[None]:
    """Turn errors of an operation that cannot be traced into an `ExportError` that names the part."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        part = _user_module_of(error) or part
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise ExportError(f"{type(part).__name__} cannot be exported: {reason}; {_advice(part)}") from error


def _user_module_of(error: BaseException) -> nn.Module | None:
    """Return the innermost module of the user's own that an error was raised in, or None."""
    user_module = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and not type(module).__module__.startswith(LIBRARIES):
            user_module = module
    return user_module


def _advice(part: object) -> str:
    """Return advice for a part that cannot be exported."""
    if isinstance(part, Connector):
        return (
            "an exported connector is called once with tensors, for all numbers of rows: give tensors for tensors, "
            "without reading their values, or override export_call(data, memory)"
        )
    if isinstance(part, nn.Module):
        method = "forward_inference" if isinstance(part, RLModule) else "forward"
        return (
            f"its {method} is traced once, for all numbers of rows, with observations drawn from their space: compute "
            "with torch's operations alone, without reading the values of tensors (item(), numpy(), if x > 0)"
        )
    return "compute with torch's operations alone"


def _memory_of(connector: Connector) -> dict[str, np.ndarray]:
    """Return the memory of a connector for one row at the start of an episode, by name."""
    try:
        return {name: np.asarray(leaf) for name, leaf in connector.export_memory().items()}
    except TypeError as error:
        raise ExportError(str(error)) from error


def _unique(name: str, index: int, memories: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a connector's memory in the artefact, with the connector's number if the name occurs twice."""
    return f"{index}_{name}" if sum(name in memory for memory in memories) > 1 else name


def _start_value(leaf: np.ndarray) -> Any:
    """Return an initial state for the card; 0 stands for all zeros."""
    return leaf.tolist() if leaf.any() else 0


def _tensors_only(data: Tree) -> Any:
    """Return the data; `TypeError` if a leaf is not a tensor."""

    def checked(leaf: object) -> Any:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"it gives a {type(leaf).__name__} for a tensor")
        return leaf

    return map_tree(checked, data)


def _at(tree: Tree, path: Sequence[str | int]) -> Tensor:
    """Return the leaf of a tree at a path of keys."""
    for key in path:
        tree = tree[key]
    leaf: Tensor = tree
    return leaf


def _output(leaf: Tensor, port: Port) -> Tensor:
    """Return an output in its dtype."""
    return leaf.to(torch_dtype(port.dtype))
