"""`ActingGraph`: all between a raw observation and the environment's action as one torch module, to be traced."""

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
from lockstep.data.trees import Tree, map_tree
from lockstep.modules import RLModule
from lockstep.ops.arrays import torch_dtype

NOISE, REWARD, STATE_IN, STATE_OUT = "noise", "reward", "state_in_", "state_out_"
LIBRARIES = ("torch.", "lockstep.")
"""packages whose classes are not the user's own"""
NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ExportError(ValueError):
    """A policy cannot be exported, or an exported artefact is damaged. The message says why and what to do."""


@dataclass(frozen=True)
class Port:
    """Describes an input or output of an artefact: name, place in the tree of its space, shape and dtype of a row."""

    name: str
    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    initial: Any = 0
    """of a state, where an episode begins: a number, or nested lists of the row's shape"""
    low: Any = None
    """Smallest value of an observation, as `initial`; None where the policy takes any."""
    high: Any = None
    """Largest value of an observation."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the card."""
        fields: dict[str, Any] = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}
        if self.name.startswith(STATE_IN):
            return {**fields, "initial": self.initial}
        fields["path"] = list(self.path)
        if self.low is not None:
            fields |= {"low": self.low, "high": self.high}
        return fields

    def rows(self, number: int) -> np.ndarray:
        """Return the value at an episode's start in each of some rows."""
        return np.broadcast_to(np.asarray(self.initial, self.dtype), (number, *self.shape)).copy()


def ports_of(name: str, space: Space[Any], path: tuple[str | int, ...] = ()) -> Iterator[Port]:
    """Yield the leaves of a space. `ExportError` for one that is not of numbers."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from ports_of(f"{name}/{key}", part, (*path, key))
    elif isinstance(space, NUMERIC):
        low, high = _ends(space)
        yield Port(name, path, tuple(space.shape or ()), np.dtype(space.dtype), low=low, high=high)
    else:
        raise ExportError(
            f"{name} is {space}, which has no array of fixed size; Box, Discrete, MultiDiscrete, MultiBinary, Dict and "
            "Tuple can be exported"
        )


def _ends(space: Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and largest value of a space of choices; None for a Box, whose bounds a policy ignores."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.tolist(), (space.start + space.nvec - 1).tolist()
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return None, None


def tree_of(space: Space[Any], leaves: Iterator[Any]) -> Any:
    """Return the tree of a space with the next of `leaves` at each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: tree_of(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(tree_of(part, leaves) for part in space.spaces)
    return next(leaves)


class ActingGraph(nn.Module):
    """Computes environment actions from raw observations by the policy's own network and connectors, in copies.

    `forward` takes a tensor `[B, ...]` for each of `inputs` and returns one for each of `outputs`. Network and
    connectors are those that act, so the artefact cannot differ from them; what only training needs is left out.

    Raises:
        ExportError: a connector, a space or a network that cannot be exported.
    """

    def __init__(
        self,
        module: RLModule,
        connectors: ModuleConnectors,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        draws: bool = False,
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.module = acting_copy(module)
        connectors = copy.deepcopy(connectors)
        self.before: tuple[Connector, ...] = (*connectors.recorded.connectors, *connectors.obs.connectors)
        self.after: tuple[Any, ...] = () if connectors.actions is None else connectors.actions.connectors
        self.dist = self.module.action_dist_cls
        self.is_stateful = self.module.is_stateful()
        self.draws = draws
        memories = [_memory_of(connector) for connector in self.before]
        self._memory_names = [
            {name: _unique(name, i, memories) for name in memory} for i, memory in enumerate(memories)
        ]
        states = [
            (self._memory_names[i][name], leaf) for i, memory in enumerate(memories) for name, leaf in memory.items()
        ]
        states += [(name, leaf.detach().cpu().numpy()) for name, leaf in self.module.get_initial_state().items()]
        self.states = [Port(STATE_IN + name, (), leaf.shape, leaf.dtype, _start_value(leaf)) for name, leaf in states]
        self.observations = list(ports_of("obs", observation_space))
        self.actions = list(ports_of("action", action_space))
        self.extra = [Port(REWARD, (), (), np.dtype(np.float32))] if any(c.reads_rewards for c in self.before) else []
        if draws:
            self.extra.append(Port(NOISE, (), (self.dist.noise_size,), np.dtype(np.float32)))
        self.inputs = [*self.observations, *self.extra, *self.states]
        self.output_names = [port.name for port in self.actions]
        self.output_names += [STATE_OUT + port.name.removeprefix(STATE_IN) for port in self.states]
        self.eval()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the leaves of the actions, then the states after them."""
        given = self._named(inputs)
        outputs, memories, states = self._run(given)
        actions = self._pick(outputs, given.get(NOISE))
        with blamed(self.dist.action_space):
            taken = self.dist.to_env(actions)  # type: ignore[arg-type]
        for connector in self.after:
            with blamed(connector):
                changed = connector.export_call(taken, {})[0] if isinstance(connector, Connector) else connector(taken)
                taken = _tensors_only(changed)
        found: dict[str, Tensor] = {}
        for connector, names, memory in zip(self.before, self._memory_names, memories):
            with blamed(connector):
                after = connector.export_after(memory, taken)
            found |= {names[name]: leaf for name, leaf in after.items()}
        found |= states
        ordered = [found[port.name.removeprefix(STATE_IN)] for port in self.states]
        leaves = [_at(taken, port.path) for port in self.actions]
        return (*(_typed(leaf, port) for leaf, port in zip([*leaves, *ordered], [*self.actions, *self.states])),)

    def scores(self, *inputs: Tensor) -> Tensor | None:
        """Return what the distribution is made of, `[B, D]`, moved by noise; None where the network picks by itself."""
        given = self._named(inputs)
        outputs = self._run(given)[0]
        if "actions" in outputs:
            return None
        scores = outputs["action_dist_inputs"]
        if NOISE in given:
            scores = torch.cat([scores[:, : self.dist.noise_size] + given[NOISE], scores[:, self.dist.noise_size :]], 1)
        return scores

    def in_float64(self) -> ActingGraph:
        """Return a copy whose network computes in float64, and takes its state in float64."""
        exact = copy.deepcopy(self).double()
        # Memories of connectors come first and keep their dtypes: connectors compute as before.
        num_memories = sum(map(len, self._memory_names))
        exact.states = [
            port if place < num_memories or port.dtype.kind != "f" else replace(port, dtype=np.dtype(np.float64))
            for place, port in enumerate(self.states)
        ]
        exact.inputs = [*self.observations, *self.extra, *exact.states]
        return exact

    def examples(self, rows: int) -> tuple[Tensor, ...]:
        """Return inputs to trace with: observations from their space, as a network may refuse all others."""
        space = batch_space(self.observation_space, rows)
        space.seed(0)
        drawn = space.sample()
        found = {port.name: np.array(_at(drawn, port.path), port.dtype) for port in self.observations}
        return self.inputs_from({**{port.name: port.rows(rows) for port in self.inputs}, **found})

    def inputs_from(self, values: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        """Return the inputs in order and in their dtypes, from arrays by name."""
        return tuple(torch.from_numpy(np.array(values[port.name], port.dtype)) for port in self.inputs)

    def _named(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        return {port.name: tensor for port, tensor in zip(self.inputs, inputs, strict=True)}

    def _run(self, given: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return the network's outputs `[B, ...]`, the memory of each connector, and the network's state."""
        data = tree_of(self.observation_space, iter([given[port.name] for port in self.observations]))
        memories = []
        for connector, names in zip(self.before, self._memory_names):
            memory = {name: given[STATE_IN + full] for name, full in names.items()}
            if connector.reads_rewards:
                memory[REWARD] = given[REWARD]
            with blamed(connector):
                data, memory = connector.export_call(data, memory)
                data = _tensors_only(data)
            memories.append(memory)
        weight = next((p for p in self.module.parameters() if p.is_floating_point()), None)
        if weight is not None:  # as a policy hands them to its network
            data = map_tree(lambda leaf: leaf.to(weight.dtype) if leaf.is_floating_point() else leaf, data)
        with blamed(self.module):
            if not self.is_stateful:
                return dict(self.module.forward_inference({"obs": data})), memories, {}
            state = {name: given[STATE_IN + name] for name in self.module.get_initial_state()}
            sequences = map_tree(lambda leaf: leaf.unsqueeze(1), data)
            outputs = dict(self.module.forward_inference({"obs": sequences, "state_in": state}))
            name = "actions" if "actions" in outputs else "action_dist_inputs"
            after: Any = outputs["state_out"]
            return {name: outputs[name].squeeze(1)}, memories, after

    def _pick(self, outputs: Mapping[str, Tensor], noise: Tensor | None) -> Tensor:
        if "actions" in outputs:
            return outputs["actions"]
        dist = self.dist.from_inputs(outputs["action_dist_inputs"])
        return dist.mode() if noise is None else dist.sample_with_noise(noise)


def acting_copy(module: RLModule) -> RLModule:
    """Return a copy on the CPU with memory of its own, without the parts that only training needs."""
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
        tensor.data = tensor.data.clone()  # not a view into the flat parameters of all parts
    return module


@contextmanager
def blamed(part: object) -> Iterator[None]:
    """Say whose operation failed, where one cannot be traced."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        part = _raised_in(error) or part
        name = type(part).__name__
        raise ExportError(
            f"{name} cannot be exported: {str(error).strip().splitlines()[0] if str(error) else type(error).__name__}; "
            f"{_advice(part)}"
        ) from error


def _raised_in(error: BaseException) -> nn.Module | None:
    """Return the innermost network of the user's own whose method was running."""
    frames = traceback.walk_tb(error.__traceback__)
    running = [frame.f_locals.get("self") for frame, _ in frames]
    own = [each for each in running if isinstance(each, nn.Module) and not type(each).__module__.startswith(LIBRARIES)]
    return own[-1] if own else None


def _advice(part: object) -> str:
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
    try:
        return {name: np.asarray(leaf) for name, leaf in connector.export_memory().items()}
    except TypeError as error:
        raise ExportError(str(error)) from error


def _unique(name: str, index: int, memories: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a connector's memory; with its place before it where another one has the same."""
    return f"{index}_{name}" if sum(name in memory for memory in memories) > 1 else name


def _start_value(leaf: np.ndarray) -> Any:
    return leaf.tolist() if leaf.any() else 0


def _tensors_only(data: Tree) -> Any:
    def checked(leaf: object) -> Any:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"it gives a {type(leaf).__name__} for a tensor")
        return leaf

    return map_tree(checked, data)


def _at(tree: Tree, path: Sequence[str | int]) -> Tensor:
    for key in path:
        tree = tree[key]
    leaf: Tensor = tree
    return leaf


def _typed(leaf: Tensor, port: Port) -> Tensor:
    """Return an output in its dtype; a new tensor, as an output may not be an input."""
    return leaf.to(torch_dtype(port.dtype))
