"""The whole gradient step (gather, forward, loss, gradient, clip, Adam) as one compiled function.

The learner's own Python runs once while its operations are recorded, so that every hook of a subclass is in the graph.
A subclass that overrides a method in `NOT_TRACED` is stepped eagerly. Compiled code has static shapes. Numbers that
change between steps (learning rate, coefficients, registered state) are inputs of the graph.

On the CPU the first `framework.compile_after` gradient steps are eager, even if the code is in the cache already, so
that the bits of a run do not depend on earlier runs.
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
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from lockstep.data.trees import leaves, map_tree, named_leaves
from lockstep.learner.compile.cache import LIBRARY_RUNNER, OPTIONS, CompiledCode, PendingCode
from lockstep.learner.compile.recorded import NotRecordedError, record
from lockstep.learner.minibatches import TensorColumns, take_minibatch
from lockstep.learner.optimizers import MIN_AVG, MIN_AVG_SQ, RegisteredOptimizer
from lockstep.learner.protocols import SteppedLearner
from lockstep.learner.targets import TargetNetwork, target_networks
from lockstep.state.streams import global_generator
from lockstep.tracking.metrics import Key

MAX_SHAPES = 4
"""Number of batch shapes for which a learner compiles steps. A run with ever new shapes would compile all the time."""
NOT_A_TENSOR = -1.0
"""Weight that marks a metric which was logged as a plain number."""
NOT_TRACED = ("compute_gradients", "apply_gradients")
"""Methods of the learner that a compiled step does not call: it has operations of its own for them."""
Metric = tuple[Key, float]
"""Key and weight of a logged metric."""
ColumnsByModule = Mapping[str, TensorColumns]
Losses = dict[str, Tensor]
Result = TypeVar("Result")


@dataclass
class CompiledStep:
    """Gradient step that is compiled, or is being compiled."""

    get_code: Callable[[], CompiledCode]
    """Function that waits for the compiled code; raises `RuntimeError` if compiling failed."""
    metrics: list[Metric]
    """Metrics in the first output, one for each element."""
    with_errors: list[str]
    """Ids of the modules whose row errors are the next outputs."""
    with_values: list[str]
    """Ids of the modules whose row values are the last outputs."""
    extra_inputs: list[Tensor]
    """Tensors that the step reads besides the columns and the learner's state, such as constants of a loss."""
    code: CompiledCode | None = None
    """Compiled code, after the first call of `get_code`."""


class CompiledUpdate:
    """Compiled gradient steps of one learner, one for each combination of batch shapes."""

    def __init__(self, learner: SteppedLearner) -> None:
        self.learner = learner
        self._steps: dict[Any, CompiledStep | None] = {}
        """Compiled steps by signature; None for steps that have to be taken eagerly."""
        self._scalars: dict[str, _AdamScalars] = {}
        """Scalars of the coming step, by the key of the optimizer."""
        self._state: list[Tensor] = []
        """Inputs that hold the learner's state: parameters, moments, coefficients, buffers."""
        self._layouts: list[Any] = []
        """Names and memory layouts of `_state`, which the compiled code relies on."""
        self._buffers = ModuleBuffers()
        self._eager_steps = learner.framework.compile_after if learner.device.type == "cpu" else 0
        # All minibatches of an update that have the same size share step and inputs, apart from their row indices, so
        # these are looked up for the first minibatch only. The key has `id(columns)`. The columns are kept here because
        # Python could give the id of deleted columns to others.
        self._last_key: Any = None
        self._last_columns: Any = None
        self._last_step: CompiledStep | None = None
        self._last_inputs: list[Tensor] = []

    def run(self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> bool:
        """Take one gradient step on the rows `indices` of the columns; return False if it must be taken eagerly."""
        started = time.perf_counter()
        variant = self.learner.compiled_variant()
        key = (id(columns), variant, *((m, None if i is None else i.size(0)) for m, i in indices.items()))
        if key != self._last_key:
            self._last_key = key
            self._last_columns = columns
            state = self._present_state()
            signature, inputs = _signature_and_inputs(columns, indices)
            self._last_step = self._find((variant, *signature), columns, indices)
            extra_inputs = self._last_step.extra_inputs if self._last_step else []
            self._last_inputs = [*inputs, *state, *extra_inputs]

        # The counter advances when an update ends, so eager steps give way to compiled ones only between two updates.
        step = self._last_step
        if step is None or self.learner.lifetime.get("gradient_steps", 0) < self._eager_steps:
            return False
        if step.code is None:
            try:
                step.code = step.get_code()
            except Exception as error:  # for example a kernel that the device's compiler cannot make
                lines = str(error).strip().splitlines()  # the first may only say that a process failed
                self._give_up(step, f"{type(error).__name__}: {' ... '.join(dict.fromkeys(lines[:1] + lines[-1:]))}")
                return False

        for entry in self.learner.optimizers:
            entry.has_loss = self.learner.has_loss(entry, indices)
            self._scalars[entry.key].set_()
        rows = [index for index in indices.values() if index is not None]
        values, *row_results = step.code([*rows, *self._last_inputs])

        # From here on the learner is brought to the state that an eager step would have left.
        for entry in self.learner.optimizers:
            if self._scalars[entry.key].bad_on_host():
                entry.keep_bad_gradient()
        if self.learner.gradient_watch.missing:
            self.learner.gradient_watch.observe(self.learner.optimizers)
        self.learner.metrics.log_vector(step.metrics, values)
        self.learner.row_errors.update(zip(step.with_errors, row_results))
        self.learner.row_values = dict(zip(step.with_values, row_results[len(step.with_errors) :]))
        self.learner.seconds["forward_backward"] += time.perf_counter() - started
        return True

    def _give_up(self, step: CompiledStep, reason: str) -> None:
        """Take steps of this signature eagerly from now on."""
        _warn_of_eager(f"compiling it failed: {reason}")
        self._steps = {signature: None if each is step else each for signature, each in self._steps.items()}
        self._last_step = None

    def _find(
        self, signature: tuple[Any, ...], columns: ColumnsByModule, indices: Mapping[str, Tensor | None]
    ) -> CompiledStep | None:
        """Return the step of a signature, which is compiled at the first call; None if it cannot be compiled."""
        if signature not in self._steps:
            self._steps[signature] = self._compile(_columns_for_graph(columns, indices), indices)
        return self._steps[signature]

    # -- inputs of the graph besides the columns ---

    def _present_state(self) -> list[Tensor]:
        """Return the inputs that hold the learner's state.

        If a tensor of the state was replaced by one with another memory layout, all compiled steps are discarded. (A
        tensor whose layout was changed in place is refused by the compiled code.)
        """
        state = self._state_inputs()
        if len(state) != len(self._state) or not all(map(operator.is_, state, self._state)):
            layouts: list[Any] = [*self.learner.registered]
            layouts += [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in state]
            if layouts != self._layouts:
                self._steps.clear()
            self._state = state
            self._layouts = layouts
        return state

    def _state_inputs(self) -> list[Tensor]:
        learner = self.learner
        on_host = learner.device.type == "cpu"
        inputs: list[Tensor] = []
        for entry in learner.optimizers:
            if not entry.is_plain_adam:  # `reason_to_run_eagerly` refuses this learner later
                continue
            if entry.key not in self._scalars:
                self._scalars[entry.key] = _AdamScalars(learner.device, learner.dtype)
            scalars = self._scalars[entry.key]
            moments = entry.adam_state()
            scalars.bind(entry, moments[2])
            inputs += (entry.flat.data, entry.flat.grad, entry.bad_steps, scalars.tensor, *moments)
            if not on_host:
                inputs.append(entry.bad_gradient_buffer())
            if entry.suspended is not None:
                inputs.append(entry.suspended)

        inputs += [value for _, value in learner.coefficients.values()]
        for value in learner.registered.values():
            # Parameters that an optimizer steps are in its flat tensor, which is an input already.
            if isinstance(value, Tensor) and not learner.optimizers.steps(value):
                inputs.append(value)
        inputs += self._buffers.of([learner.module[module_id] for module_id in learner.learning_modules()])
        return inputs + [target.flat for target in self._targets()]

    def _targets(self) -> list[TargetNetwork]:
        return list(target_networks(self.learner.registered).values())

    # -- recording and compiling ---

    def reason_to_run_eagerly(self) -> str | None:
        """Return the reason why gradient steps cannot be compiled, as a clause for messages; None if they can."""
        learner = self.learner
        if learner.device.type == "cpu" and LIBRARY_RUNNER is None:
            return (
                f"torch {torch.__version__} has another way to load compiled code than this version of Lockstep knows"
            )
        with_memory = [module_id for module_id, has_memory in learner.modules_with_memory().items() if has_memory]
        if with_memory:
            return f"the modules {with_memory} have memory, and recurrent layers are not compiled"
        overridden = [name for name in NOT_TRACED if name in learner.overridden_methods]
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

    def _compile(self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> CompiledStep | None:
        """Record one step and begin to compile it; return None, with a warning, if that is not possible.

        The step is really taken while it is recorded, so everything that it has changed is put back afterwards.
        """
        learner = self.learner
        reason = self.reason_to_run_eagerly()
        if reason is None and len(self._steps) >= MAX_SHAPES:
            reason = f"{MAX_SHAPES} other batch shapes are compiled already; use batches of one size"
        if reason is not None:
            _warn_of_eager(reason)
            return None

        # `detach` makes a new tensor object of each column. One tensor in two columns would else be a single input of
        # the graph, while `run` hands over two.
        columns = {mid: map_tree(torch.Tensor.detach, part) for mid, part in columns.items()}
        rows = [index for index in indices.values() if index is not None]
        inputs = rows + _leaves_of(columns) + self._state
        metrics: list[Metric] = []
        with_errors: list[str] = []
        with_values: list[str] = []

        # The function fills the three lists while it is recorded: only then is it known what the step logs and sets.
        def step() -> tuple[Tensor, ...]:
            values = self._traced_step(columns, indices, metrics)
            with_errors[:] = learner.row_errors
            with_values[:] = learner.row_values
            return values, *learner.row_errors.values(), *learner.row_values.values()

        saved = [tensor.clone() for tensor in inputs]
        outer = learner.metrics
        learner.metrics = outer.for_tracing()
        learner.row_errors = {}
        learner.row_values = {}
        streams = learner.streams.get_state()
        try:
            with global_generator():
                graph, graph_inputs = record(step, inputs)
        except NotRecordedError as error:
            _warn_of_eager(str(error))
            return None
        finally:
            learner.metrics = outer
            learner.row_errors = {}
            learner.row_values = {}
            learner.streams.set_state(streams)
            for tensor, before in zip(inputs, saved):
                tensor.copy_(before)

        if plain := sorted({"/".join(key) for key, weight in metrics if weight == NOT_A_TENSOR}):
            _warn_of_eager(f"it logs {plain} as plain numbers, which compiled code would repeat; log tensors")
            return None
        get_code = compile_graph(graph, graph_inputs, learner.device.type == "cpu")
        return CompiledStep(get_code, metrics, with_errors, with_values, graph_inputs[len(inputs) :])

    def _traced_step(
        self, columns: ColumnsByModule, indices: Mapping[str, Tensor | None], metrics: list[Metric]
    ) -> Tensor:
        """Take one gradient step with operations that a graph can hold; return the metrics' values in one tensor.

        Key and weight of each value are appended to `metrics`. The gradient is taken with respect to the flat tensors
        and not to the parameters: it then comes as one tensor, and `.grad` of the parameters is not touched.
        """
        learner = self.learner
        flat_leaves = [entry.flat.data.detach().requires_grad_() for entry in learner.optimizers]
        views: dict[nn.Parameter, Tensor] = {}
        for entry, leaf in zip(learner.optimizers, flat_leaves):
            for param, view in zip(entry.flat.params, entry.flat.unflatten(leaf)):
                views[param] = view if param.requires_grad else view.detach()

        with self._traced_views():
            batch = take_minibatch(columns, indices)
            losses: Losses = self._call_with(views, learner.forward_and_losses, batch)[1]
            total = torch.stack(list(losses.values())).sum()
            with_loss = [entry for entry in learner.optimizers if learner.has_loss(entry, losses)]

            gradients = torch.autograd.grad(total, flat_leaves, allow_unused=True, materialize_grads=True)
            by_param: dict[nn.Parameter, Tensor] = {}
            for entry, gradient in zip(learner.optimizers, gradients):
                # `separate` is defined at the end of this file: a copy that the compiler does not fuse with a kernel.
                entry.flat.grad.copy_(gradient if entry.on_host else torch.ops.lockstep.separate(gradient))
                by_param.update(zip(entry.flat.params, entry.flat.grad_views))

            learner.optimizers.copy_gradients(learner.postprocess_gradients(by_param))
            for entry in with_loss:
                _adam_step_(self._scalars[entry.key].tensor, entry)
            self._constrain_weights(with_loss)

        values: list[Tensor] = []
        for key, value, weight in learner.metrics.items():
            if isinstance(value, Tensor):
                metrics += [(key, weight)] * value.numel()
                values.append(value.detach().reshape(-1))
            else:  # `_compile` refuses it, and wants to name all such metrics
                metrics.append((key, NOT_A_TENSOR))
                values.append(torch.zeros(1))
        return torch.cat(values)

    def _constrain_weights(self, stepped: Sequence[RegisteredOptimizer]) -> None:
        """Call the learner's hook of this name on copies of the parameters, and write these to the flat tensors.

        In a graph, each change of a view would become a new copy of the whole flat tensor.
        """
        learner = self.learner
        copies = {entry.key: [view.clone() for view in entry.flat.unflatten(entry.flat.data)] for entry in stepped}
        by_param: dict[nn.Parameter, Tensor] = {}
        for entry in stepped:
            by_param.update(zip(entry.flat.params, copies[entry.key]))
        self._call_with(by_param, learner.constrain_weights, stepped)
        for entry in stepped:
            entry.flat.data.copy_(torch.cat([copy.reshape(-1) for copy in copies[entry.key]]))

    @contextmanager
    def _traced_views(self) -> Iterator[None]:
        """Return a context in which gradient views are made from the flat gradient while the step is recorded.

        The flat gradient is an input of the graph. Views that were made before are not connected to it: the recorder
        would take each of them for one more input.
        """
        entries = list(self.learner.optimizers)
        before = [entry.flat.grad_views for entry in entries]
        for entry in entries:
            entry.flat.grad_views = entry.flat.unflatten(entry.flat.grad)
        try:
            yield
        finally:
            for entry, views in zip(entries, before):
                entry.flat.grad_views = views

    def _call_with(
        self, views: Mapping[nn.Parameter, Tensor], function: Callable[..., Result], *arguments: object
    ) -> Result:
        """Return what a method of the learner returns with `views` and new views of the targets as parameters."""
        learner = self.learner
        targets = self._targets()
        names = {param: f"module.{name}" for name, param in learner.module.named_parameters()}
        replaced = {names[param]: view for param, view in views.items() if param in names}
        for number, target in enumerate(targets):
            replaced |= {f"targets.{number}.{name}": view for name, view in target.views().items()}

        # Parameters that are registered (a temperature, say) are in no module, so `functional_call` does not see them.
        registered = dict(learner.registered)
        call = _Call(learner.module, targets, function)
        try:
            learner.registered.update(
                {name: views.get(value, value) for name, value in registered.items() if isinstance(value, nn.Parameter)}
            )
            result: Result = torch.func.functional_call(call, replaced, arguments)
            return result
        finally:
            learner.registered.update(registered)


def _warn_of_eager(reason: str) -> None:
    warnings.warn(f"compile=True: this gradient step runs eagerly, because {reason}", stacklevel=2)


class _Call(nn.Module):
    """Call of a method of the learner as a module, so that `functional_call` can replace the learner's parameters."""

    def __init__(self, module: nn.Module, targets: Sequence[TargetNetwork], function: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.targets = nn.ModuleList(target.module for target in targets)
        self.function = function

    def forward(self, *arguments: object) -> Any:
        return self.function(*arguments)


class ModuleBuffers:
    """List of the buffers of modules.

    The module trees are walked only after they have changed, since a walk takes as long as a small gradient step. The
    list of buffers depends on the submodules in the trees, and on the buffers that each of them has. Both are compared
    object by object, so that a replaced, added or removed one is noticed.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        """For each module in the trees: its submodules by name, and its buffers by name."""
        self._objects: list[Any] = []
        """The root modules, and all values of `_parts`."""
        self._buffers: list[Tensor] = []

    def of(self, modules: Sequence[nn.Module]) -> list[Tensor]:
        """Return the buffers of all modules, in the order of the modules."""
        objects = [*modules, *itertools.chain.from_iterable(map(dict.values, self._parts))]
        if len(objects) != len(self._objects) or not all(map(operator.is_, objects, self._objects)):
            self._walk(modules)
        return self._buffers

    def _walk(self, modules: Sequence[nn.Module]) -> None:
        self._parts = []
        self._buffers = []
        for module in modules:
            for submodule in module.modules():
                self._parts += (vars(submodule)["_modules"], vars(submodule)["_buffers"])
            self._buffers += module.buffers()
        self._objects = [*modules, *itertools.chain.from_iterable(map(dict.values, self._parts))]


class _AdamScalars:
    """Scalars of the coming Adam step as one input `[2]` of the compiled code.

    On the CPU they are the learning rate divided by the bias correction of the first moment, lr / (1 - beta1^t), and
    the inverse root of the correction of the second moment, (1 - beta2^t)^-1/2. A compiled CPU kernel would compute
    both powers again for every few parameters. On other devices only the learning rate is set, since the host does not
    know how many steps were skipped there.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.tensor = torch.ones(2, dtype=torch.float32 if device.type == "cpu" else dtype, device=device)
        self._array = self.tensor.numpy() if device.type == "cpu" else None
        """Array with the memory of `tensor`; None on other devices."""
        self._sources: tuple[Tensor, Tensor] | None = None
        """Tensors whose memory `_step` and `_bad_steps` share."""

    def bind(self, entry: RegisteredOptimizer, step: Tensor) -> None:
        """Remember the objects that the scalars of this update are computed from.

        Reading a number from a numpy array is much faster than from a tensor, so arrays are made of the tensors.
        """
        self._group = entry.optimizer.param_groups[0]
        self._rate = entry.rate
        bad_steps = entry.bad_steps
        sources = self._sources
        if self._array is not None and (sources is None or sources[0] is not step or sources[1] is not bad_steps):
            self._sources = (step, bad_steps)
            self._step = step.numpy()
            self._bad_steps = bad_steps.numpy()

    def set_(self) -> None:
        """Set the scalars of the coming step."""
        group = self._group
        if self._array is None:
            if self._rate is None:
                self.tensor[0].fill_(group["lr"])
            else:
                self.tensor[0].copy_(self._rate)
            return
        beta1, beta2 = group["betas"]
        step = float(self._step) + 1.0
        self._array[0] = group["lr"] / (1.0 - beta1**step)
        self._array[1] = (1.0 - beta2**step) ** -0.5

    def bad_on_host(self) -> bool:
        """Return whether a gradient was not finite since the last report; always False on a device, to avoid a wait."""
        return self._array is not None and bool(self._bad_steps)


def _adam_step_(scalars: Tensor, entry: RegisteredOptimizer) -> None:
    """Take one Adam step (Kingma & Ba 2015, algorithm 1), or none if the gradient is not finite.

        m_t = beta1 m_{t-1} + (1 - beta1) g
        v_t = beta2 v_{t-1} + (1 - beta2) g^2
        theta_t = theta_{t-1} - lr / (1 - beta1^t) * m_t / (sqrt(v_t / (1 - beta2^t)) + eps)

    Everything is computed by selection and not by branches, since a graph has no branches.
    """
    group = entry.optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    exp_avg, exp_avg_sq, step = entry.adam_state()
    gradient = entry.flat.grad

    good = torch.isfinite(gradient.sum())
    entry.bad_steps.add_((~good).to(entry.bad_steps.dtype))
    if not entry.on_host:
        bad_gradient = entry.bad_gradient_buffer()
        bad_gradient.copy_(torch.where(good, bad_gradient, gradient))
    if entry.suspended is not None:
        good = good & (entry.suspended == 0.0)
    moves = good if entry.flat.frozen is None else good & ~entry.flat.frozen

    new_step = step + good.to(step.dtype)
    new_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1)
    new_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2)
    new_avg = torch.where(moves, torch.where(new_avg.abs() < MIN_AVG, 0.0, new_avg), exp_avg)
    new_sq = torch.where(moves, torch.where(new_sq < MIN_AVG_SQ, 0.0, new_sq), exp_avg_sq)

    step_size, correction = scalars.unbind()
    if not entry.on_host:  # here the first scalar is the learning rate, and the second is not used
        count = new_step.to(gradient.dtype)
        step_size = step_size / (1.0 - beta1**count)
        correction = (1.0 - beta2**count).rsqrt()
    denominator = new_sq.sqrt() * correction + group["eps"]

    with torch.no_grad():
        moved = entry.flat.data - step_size * new_avg / denominator
        entry.flat.data.copy_(torch.where(moves, moved, entry.flat.data))
        exp_avg.copy_(new_avg)
        exp_avg_sq.copy_(new_sq)
        step.copy_(new_step)


def _leaves_of(columns: ColumnsByModule) -> list[Tensor]:
    """Return all tensors of the columns, in the order in which `_signature_and_inputs` lists them."""
    tensors: list[Tensor] = []
    for part in columns.values():
        for column in part.values():
            tensors += (column,) if isinstance(column, Tensor) else leaves(column)
    return tensors


def _as_input(leaf: Tensor, index: Tensor | None) -> Tensor:
    """Return a column as a graph reads it: contiguous, and padded if the graph gathers rows from it.

    A graph with an `index` gathers rows. Then the column is padded to a power of two, so that batches of about one size
    share a graph. In some rollouts the rows of environment resets are left out, and every batch then has another number
    of rows. No index points at the padding. Without an `index` the graph reads all rows.
    """
    if index is not None and (missing := (1 << (len(leaf) - 1).bit_length()) - len(leaf)):
        leaf = torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])])
    return leaf.contiguous()


def _columns_for_graph(columns: ColumnsByModule, indices: Mapping[str, Tensor | None]) -> dict[str, dict[str, Any]]:
    """Return the columns with their leaves as a graph reads them."""
    return {mid: map_tree(partial(_as_input, index=index), columns[mid]) for mid, index in indices.items()}


def _signature_and_inputs(
    columns: ColumnsByModule, indices: Mapping[str, Tensor | None]
) -> tuple[list[Hashable], list[Tensor]]:
    """Return names, shapes and dtypes of the columns, and their leaves as a graph reads them.

    Both come from one pass over the columns: off-policy algorithms have new columns for every gradient step.
    """
    signature: list[Hashable] = []
    inputs: list[Tensor] = []
    for module_id, index in indices.items():
        signature += (module_id, None if index is None else len(index))
        for name, column in columns[module_id].items():
            paths_and_leaves = ((name, column),) if isinstance(column, Tensor) else named_leaves(name, column)
            for path, leaf in paths_and_leaves:
                leaf = _as_input(leaf, index)
                signature += (path, leaf.shape, leaf.dtype)
                inputs.append(leaf)
    return signature, inputs


# -- the compiler ---


# An operation that the compiler does not look into, so that no kernel has operations on both sides of it. Triton 3.6
# fails on a kernel that sums over a batch and takes the optimizer's step with the sum, as for the temperature of SAC.
_LIBRARY = torch.library.Library("lockstep", "DEF")
_LIBRARY.define("separate(Tensor x) -> Tensor")
_LIBRARY.impl("separate", torch.clone, "CompositeExplicitAutograd")


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], on_host: bool) -> Callable[[], CompiledCode]:
    """Begin to compile a graph for the shapes and layouts of `inputs`; return a function that waits for the code.

    Code for the CPU is compiled by another process. Code for other devices is compiled in that function.
    """
    if on_host:
        return PendingCode(graph, inputs).get

    def compile_now() -> CompiledCode:
        from torch._inductor import config as inductor_config
        from torch._inductor.compile_fx import compile_fx

        with inductor_config.patch(OPTIONS | {"memory_planning": False}):
            compiled: Any = compile_fx(graph, list(inputs))
        return lambda inputs: compiled(*inputs)

    return compile_now
