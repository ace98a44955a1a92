"""The whole gradient step (gather, forward, loss, gradient, clip, Adam) as one compiled function.

The learner's own Python is run once while its operations are recorded, so that every hook of a subclass is in the graph
(one that overrides what `NOT_TRACED` names is stepped eagerly); what is compiled has static shapes. Numbers that change
between steps (learning rate, coefficients, registered state) are inputs of the graph.

On the CPU the first `framework.compile_after` gradient steps are taken eagerly, whether or not the code is there
already, so that a run's bits do not depend on what was run before.
"""

from __future__ import annotations

import itertools
import operator
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from lockstep.data.trees import leaves, map_tree, named_leaves
from lockstep.learner.compile.cache import OPTIONS, CodeToCome, CompiledCode
from lockstep.learner.compile.recorded import NotRecordedError, record
from lockstep.learner.minibatches import TensorColumns, take_minibatch
from lockstep.learner.optimizers import NO_AVG, NO_AVG_SQ, RegisteredOptimizer
from lockstep.learner.protocols import SteppedLearner
from lockstep.learner.targets import TargetNetwork
from lockstep.state.streams import global_generator
from lockstep.tracking.metrics import Key

MAX_SHAPES = 4
NOT_A_TENSOR = -1.0
"""in the place of the weight of a metric that was logged as a plain number"""
NOT_TRACED = ("compute_gradients", "apply_gradients")
"""methods of the learner in whose place a compiled step has operations of its own"""
Metric = tuple[Key, float]
ColumnsByModule = Mapping[str, TensorColumns]
Losses = dict[str, Tensor]


@dataclass
class Step:
    """A gradient step that is compiled, or is being compiled."""

    get_code: Callable[[], CompiledCode]
    """waits for it; `RuntimeError` where compiling failed"""
    metrics: list[Metric]
    """what its first tensor holds"""
    with_errors: list[str]
    """modules whose row errors are the next tensors"""
    with_values: list[str]
    """modules whose row values follow"""
    read: list[Tensor]
    """tensors that it reads beside columns and state"""
    code: CompiledCode | None = None


class CompiledUpdate:
    """Compiled gradient steps of one learner, one for each combination of shapes. `base`: the class `Learner`."""

    def __init__(self, learner: SteppedLearner, base: type) -> None:
        self.learner, self._base = learner, base
        self._steps: dict[Any, Step | None] = {}
        self._rates: dict[str, _Rates] = {}
        """by optimizer"""
        self._last_key: Any = None
        self._last_columns: Any = None
        self._last_step: Step | None = None
        self._last_inputs: list[Tensor] = []
        self._state: list[Tensor] = []
        self._layouts: list[Any] = []
        """names and layouts of `_state`: what the compiled code takes for granted"""
        self._buffers = ModuleBuffers()
        self._eager_steps = learner.framework.compile_after if learner.device.type == "cpu" else 0

    def run(self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> bool:
        """Take one gradient step on rows of the columns. Returns False where it must be taken eagerly instead."""
        started, variant = time.perf_counter(), self.learner.compiled_variant()
        key = (id(columns), variant, *((m, None if i is None else i.size(0)) for m, i in indices.items()))
        if key != self._last_key:
            self._last_key, self._last_columns = key, columns
            state = self._present_state()
            signature, inputs = _signature_and_inputs(columns, indices)
            self._last_step = self._find((variant, *signature), columns, indices)
            read = self._last_step.read if self._last_step else []
            self._last_inputs = [*inputs, *state, *read]
        step = self._last_step
        if step is None or self.learner.lifetime.get("gradient_steps", 0) < self._eager_steps:
            return False
        if step.code is None:
            try:
                step.code = step.get_code()
            except Exception as error:  # a kernel that the device's compiler cannot make, say
                lines = str(error).strip().splitlines()  # the first may say only that a process failed
                self._forget(step, f"{type(error).__name__}: {' ... '.join(dict.fromkeys(lines[:1] + lines[-1:]))}")
                return False
        for entry in self.learner.optimizers:
            entry.has_loss = self.learner.has_loss(entry, indices)
            self._rates[entry.key].set_()
        rows = [index for index in indices.values() if index is not None]
        values, *found = step.code([*rows, *self._last_inputs])
        for entry in self.learner.optimizers:
            if self._rates[entry.key].bad_on_host():
                entry.keep_bad_gradient()
        if self.learner.gradient_watch.missing:
            self.learner.gradient_watch.see(self.learner.optimizers)
        self.learner.metrics.log_vector(step.metrics, values)
        self.learner.row_errors.update(zip(step.with_errors, found))
        self.learner.row_values = dict(zip(step.with_values, found[len(step.with_errors) :]))
        self.learner.seconds["forward_backward"] += time.perf_counter() - started
        return True

    def _forget(self, step: Step, reason: str) -> None:
        """Take steps like this one eagerly from now on."""
        _warn_of_eager(f"compiling it failed: {reason}")
        self._steps = {signature: None if each is step else each for signature, each in self._steps.items()}
        self._last_step = None

    def _find(
        self, signature: tuple[Any, ...], columns: ColumnsByModule, indices: Mapping[str, Tensor | None]
    ) -> Step | None:
        """Return the step of a signature; None where it cannot be compiled. The first is compiled for these columns."""
        if signature not in self._steps:
            self._steps[signature] = self._compile(_columns_for_graph(columns, indices), indices)
        return self._steps[signature]

    def _present_state(self) -> list[Tensor]:
        """Return the inputs beside the columns.

        Where others have taken their place that lie in memory in another way, what was compiled is forgotten. (One
        that is laid out anew in place is refused by the compiled code.)
        """
        state = self._state_inputs()
        if len(state) != len(self._state) or not all(map(operator.is_, state, self._state)):
            found = [*self.learner.registered, *((tensor.shape, tensor.stride(), tensor.dtype) for tensor in state)]
            if found != self._layouts:
                self._steps.clear()
            self._state, self._layouts = state, found
        return state

    def _state_inputs(self) -> list[Tensor]:
        learner, entries = self.learner, list(self.learner.optimizers)
        on_host = learner.device.type == "cpu"
        inputs: list[Tensor] = []
        for entry in entries:
            if not entry.is_plain_adam:  # refused
                continue
            if entry.key not in self._rates:
                self._rates[entry.key] = _Rates(learner.device, learner.dtype)
            rates, moments = self._rates[entry.key], entry.adam_state()
            rates.bind(entry, moments[2])
            inputs += (entry.flat.data, entry.flat.grad, entry.bad_steps, rates.tensor, *moments)
            if not on_host:
                inputs.append(entry.bad_gradient_buffer())
            if entry.hold is not None:
                inputs.append(entry.hold)
        inputs += [value for _, value in learner.coefficients.values()]
        for value in learner.registered.values():  # parameters that are optimized are inputs already
            if isinstance(value, Tensor) and not learner.optimizers.steps(value):
                inputs.append(value)
        inputs += self._buffers.of([learner.module[module_id] for module_id in learner.learning_modules()])
        return inputs + [target.flat for target in self._targets()]

    def reason_to_run_eagerly(self) -> str | None:
        """Return why gradient steps cannot be compiled, in words; None where they can."""
        learner = self.learner
        with_memory = [module_id for module_id, has_memory in learner.modules_with_memory().items() if has_memory]
        if with_memory:
            return f"the modules {with_memory} have memory, and recurrent layers are not compiled"
        overridden = [name for name in NOT_TRACED if getattr(type(learner), name) is not getattr(self._base, name)]
        if overridden:
            return f"{type(learner).__name__} overrides {', '.join(overridden)}, which a compiled step does not call"
        if learner.reducer.world_size > 1:
            return "several learners share the update"
        if any(learner.novelty_of(module_id) for module_id in learner.module):
            return "intrinsic rewards are not compiled"
        other = [entry.key for entry in learner.optimizers if not entry.is_plain_adam]
        if other:
            return f"the optimizers {other} are not plain Adam"
        if any(learner.config_of(entry.module_id).nan_policy == "zero" for entry in learner.optimizers):
            return "nan_policy='zero' is not compiled"
        return None

    def _compile(self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> Step | None:
        learner = self.learner
        reason = self.reason_to_run_eagerly()
        if reason is None and len(self._steps) >= MAX_SHAPES:
            reason = f"{MAX_SHAPES} other batch shapes are compiled already; use batches of one size"
        if reason is not None:
            _warn_of_eager(reason)
            return None
        # A tensor that is two columns would be one input of the trace.
        columns = {mid: map_tree(torch.Tensor.detach, part) for mid, part in columns.items()}
        rows = [index for index in indices.values() if index is not None]
        inputs = rows + _leaves_of(columns) + self._state
        names: list[Metric] = []
        with_errors: list[str] = []
        with_values: list[str] = []

        def step() -> tuple[Tensor, ...]:
            values = self._traced_step(columns, indices, names)
            with_errors[:], with_values[:] = learner.row_errors, learner.row_values
            return values, *learner.row_errors.values(), *learner.row_values.values()

        saved = [tensor.clone() for tensor in inputs]
        outer, learner.metrics = learner.metrics, learner.metrics.beside()
        learner.row_errors, learner.row_values = {}, {}
        streams = learner.streams.get_state()
        try:
            with global_generator():
                graph, recorded = record(step, inputs)
        except NotRecordedError as error:
            _warn_of_eager(str(error))
            return None
        finally:
            learner.metrics, learner.row_errors, learner.row_values = outer, {}, {}
            learner.streams.set_state(streams)
            for tensor, before in zip(inputs, saved):
                tensor.copy_(before)
        if plain := sorted({"/".join(key) for key, rows in names if rows == NOT_A_TENSOR}):
            _warn_of_eager(f"it logs {plain} as plain numbers, which compiled code would repeat; log tensors")
            return None
        get_code = compile_graph(graph, recorded, learner.device.type == "cpu")
        return Step(get_code, names, with_errors, with_values, recorded[len(inputs) :])

    def _traced_step(
        self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None], names: list[Metric]
    ) -> Tensor:
        learner = self.learner
        leaf_tensors = [entry.flat.data.detach().requires_grad_() for entry in learner.optimizers]
        views = {
            param: view if param.requires_grad else view.detach()
            for entry, leaf in zip(learner.optimizers, leaf_tensors)
            for param, view in zip(entry.flat.params, entry.flat.unflatten(leaf))
        }
        with self._traced_views():
            batch = take_minibatch(columns, indices)
            losses = self._functional_losses(views, batch)
            total = torch.stack(list(losses.values())).sum()
            with_loss = [entry for entry in learner.optimizers if learner.has_loss(entry, losses)]
            gradients = torch.autograd.grad(total, leaf_tensors, allow_unused=True, materialize_grads=True)
            by_param: dict[nn.Parameter, Tensor] = {}
            for entry, gradient in zip(learner.optimizers, gradients):
                entry.flat.grad.copy_(gradient if entry.on_host else torch.ops.lockstep.separate(gradient))
                by_param.update(zip(entry.flat.params, entry.flat.grad_views))
            learner.optimizers.take_gradients(learner.postprocess_gradients(by_param))
            for entry in with_loss:
                _adam_step_(self._rates[entry.key].tensor, entry)
        values: list[Tensor] = []
        for key, value, rows in learner.metrics.items():
            tensor = value if isinstance(value, Tensor) else torch.zeros(())
            names += [(key, rows if isinstance(value, Tensor) else NOT_A_TENSOR)] * tensor.numel()
            values.append(tensor.detach().reshape(-1))
        return torch.cat(values)

    @contextmanager
    def _traced_views(self) -> Iterator[None]:
        """Take gradient views anew from the flat gradient, which is an input of the graph, while tracing."""
        entries = list(self.learner.optimizers)
        before = [entry.flat.grad_views for entry in entries]
        for entry in entries:
            entry.flat.grad_views = entry.flat.unflatten(entry.flat.grad)
        try:
            yield
        finally:
            for entry, views in zip(entries, before):
                entry.flat.grad_views = views

    def _functional_losses(
        self, views: Mapping[nn.Parameter, Tensor], batch: dict[str, TensorColumns]
    ) -> dict[str, Tensor]:
        """Return the losses with `views` in the place of the parameters."""
        learner, targets = self.learner, self._targets()
        names = {p: f"module.{name}" for name, p in learner.module.named_parameters()}
        replaced = {names[param]: view for param, view in views.items() if param in names}
        for number, target in enumerate(targets):
            replaced |= {f"targets.{number}.{name}": view for name, view in target.views().items()}
        registered, losses = dict(learner.registered), _Losses(learner.module, targets, learner.forward_and_losses)
        try:  # registered parameters too are those that the gradient is taken of
            learner.registered.update(
                {name: views.get(value, value) for name, value in registered.items() if isinstance(value, nn.Parameter)}
            )
            found: dict[str, Tensor] = torch.func.functional_call(losses, replaced, (batch,))
            return found
        finally:
            learner.registered.update(registered)

    def _targets(self) -> list[TargetNetwork]:
        return [value for value in self.learner.registered.values() if isinstance(value, TargetNetwork)]


def _warn_of_eager(reason: str) -> None:
    warnings.warn(f"compile=True: this gradient step runs eagerly, because {reason}", stacklevel=2)


class _Losses(nn.Module):
    """The learner's forward pass and losses as a module, so that its parameters can be replaced for the trace."""

    def __init__(
        self, module: nn.Module, targets: Sequence[TargetNetwork], compute: Callable[..., tuple[object, Losses]]
    ) -> None:
        super().__init__()
        self.module = module
        self.targets = nn.ModuleList(target.module for target in targets)
        self.compute = compute

    def forward(self, batch: dict[str, TensorColumns]) -> Losses:
        return self.compute(batch)[1]


class ModuleBuffers:
    """The buffers of modules. Their trees are walked only after they have changed, since a walk takes as long as the
    code of a small gradient step.

    The list depends on which modules stand in the trees, and on the buffers that each of them has. Both are compared
    object by object, so that one that was replaced, added or removed is noticed.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        """submodules and buffers by name, of each module in the trees"""
        self._objects: list[Any] = []
        """the modules themselves, and the contents of `_parts`"""
        self._found: list[Tensor] = []

    def of(self, modules: Sequence[nn.Module]) -> list[Tensor]:
        """Return the buffers of all modules, those of the first module first."""
        objects = [*modules, *itertools.chain.from_iterable(map(dict.values, self._parts))]
        if len(objects) != len(self._objects) or not all(map(operator.is_, objects, self._objects)):
            trees = [each for module in modules for each in module.modules()]
            self._parts = [vars(each)[kind] for each in trees for kind in ("_modules", "_buffers")]
            self._objects = [*modules, *itertools.chain.from_iterable(map(dict.values, self._parts))]
            self._found = [buffer for module in modules for buffer in module.buffers()]
        return self._found


class _Rates:
    """An input `[2]` of the coming step: on the CPU the learning rate over the first moment's correction, and the
    inverse root of the second moment's; elsewhere the learning rate alone, since the host does not know the step.

    A kernel on the CPU would take both powers anew for every few parameters.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.tensor = torch.ones(2, dtype=torch.float32 if device.type == "cpu" else dtype, device=device)
        self._on_host = self.tensor.numpy() if device.type == "cpu" else None
        self._read: tuple[Tensor, Tensor] | None = None

    def bind(self, entry: RegisteredOptimizer, step: Tensor) -> None:
        """Remember what the steps of one update are read from; make arrays of tensors that are new."""
        self._group, self._rate, bad_steps = entry.optimizer.param_groups[0], entry.rate, entry.bad_steps
        read = self._read
        if self._on_host is not None and (read is None or read[0] is not step or read[1] is not bad_steps):
            self._read, self._step, self._bad_steps = (step, bad_steps), step.numpy(), bad_steps.numpy()

    def set_(self) -> None:
        """Compute it for the coming step."""
        group = self._group
        if self._on_host is None:
            if self._rate is None:
                self.tensor[0].fill_(group["lr"])
            else:
                self.tensor[0].copy_(self._rate)
            return
        (beta1, beta2), step = group["betas"], float(self._step) + 1.0
        self._on_host[0] = group["lr"] / (1.0 - beta1**step)
        self._on_host[1] = (1.0 - beta2**step) ** -0.5

    def bad_on_host(self) -> bool:
        """Return whether, on the CPU, a gradient was not finite since the last report."""
        return self._on_host is not None and bool(self._bad_steps)


def _adam_step_(rates: Tensor, entry: RegisteredOptimizer) -> None:
    """Take one Adam step (Kingma & Ba 2015, algorithm 1), or none if the gradient is not finite."""
    group = entry.optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    exp_avg, exp_avg_sq, step = entry.adam_state()
    gradient = entry.flat.grad
    good = torch.isfinite(gradient.sum())
    entry.bad_steps.add_((~good).to(entry.bad_steps.dtype))
    if not entry.on_host:
        bad_gradient = entry.bad_gradient_buffer()
        bad_gradient.copy_(torch.where(good, bad_gradient, gradient))
    if entry.hold is not None:
        good = good & (entry.hold == 0.0)
    moves = good if entry.flat.frozen is None else good & ~entry.flat.frozen
    new_step = step + good.to(step.dtype)
    new_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1)
    new_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2)
    new_avg = torch.where(moves, torch.where(new_avg.abs() < NO_AVG, 0.0, new_avg), exp_avg)
    new_sq = torch.where(moves, torch.where(new_sq < NO_AVG_SQ, 0.0, new_sq), exp_avg_sq)
    step_size, correction = rates.unbind()
    if not entry.on_host:
        count = new_step.to(gradient.dtype)
        step_size, correction = step_size / (1.0 - beta1**count), (1.0 - beta2**count).rsqrt()
    denominator = new_sq.sqrt() * correction + group["eps"]
    with torch.no_grad():
        moved = entry.flat.data - step_size * new_avg / denominator
        entry.flat.data.copy_(torch.where(moves, moved, entry.flat.data))
        exp_avg.copy_(new_avg)
        exp_avg_sq.copy_(new_sq)
        step.copy_(new_step)


def _leaves_of(columns: ColumnsByModule) -> list[Tensor]:
    found: list[Tensor] = []
    for part in columns.values():
        for column in part.values():
            found += (column,) if isinstance(column, Tensor) else leaves(column)
    return found


def _as_input(leaf: Tensor, index: Tensor | None) -> Tensor:
    """Return a column as a graph takes it, which reads all rows (`index` None) or gathers some: rows lie one after
    another.

    A column that is gathered from is filled up to a power of two, so that batches of about one size share a graph.
    (Where an environment's reset rows are left out, every batch has another number of rows.) No index points at what
    is filled in.
    """
    if index is not None and (missing := (1 << (len(leaf) - 1).bit_length()) - len(leaf)):
        leaf = torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])])
    return leaf.contiguous()


def _columns_for_graph(columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> dict[str, dict[str, Any]]:
    """Return columns with their leaves as a graph takes them."""
    return {mid: map_tree(partial(_as_input, index=index), columns[mid]) for mid, index in indices.items()}


def _signature_and_inputs(
    columns: ColumnsByModule, indices: Mapping[str, Tensor | None]
) -> tuple[list[Hashable], list[Tensor]]:
    """Return names, shapes and dtypes of columns, and their leaves as a graph takes them; in one pass, since there is
    one for each small update.
    """
    signature: list[Hashable] = []
    inputs: list[Tensor] = []
    for module_id, index in indices.items():
        signature += (module_id, None if index is None else len(index))
        for name, column in columns[module_id].items():
            for path, leaf in ((name, column),) if isinstance(column, Tensor) else named_leaves(name, column):
                leaf = _as_input(leaf, index)
                signature += (path, leaf.shape, leaf.dtype)
                inputs.append(leaf)
    return signature, inputs


# -- the compiler ---


# A copy that the compiler does not look into, so that no kernel lies on both sides of it: Triton 3.6 fails on one that
# sums up a batch and takes the optimizer's step with the sum, as for the temperature of SAC.
_LIBRARY = torch.library.Library("lockstep", "DEF")
_LIBRARY.define("separate(Tensor x) -> Tensor")
_LIBRARY.impl("separate", torch.clone, "CompositeExplicitAutograd")


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], on_host: bool) -> Callable[[], CompiledCode]:
    """Begin to compile a graph for inputs of these shapes and layouts; return what waits for the code.

    Other processes do it for the CPU; elsewhere, whoever asks for the code compiles it.
    """
    if on_host:
        return CodeToCome(graph, inputs).get

    def compile_now() -> CompiledCode:
        from torch._inductor import config as inductor_config
        from torch._inductor.compile_fx import compile_fx

        with inductor_config.patch(OPTIONS | {"memory_planning": False}):
            compiled: Any = compile_fx(graph, list(inputs))
        return lambda inputs: compiled(*inputs)

    return compile_now
