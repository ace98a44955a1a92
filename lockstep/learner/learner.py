"""`Learner`: turns batches into gradients and gradients into parameters. The only place that calls `backward`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.connectors import ModuleConnectors
from lockstep.data.columns import Columns
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import map_tree
from lockstep.learner import checkpointing, members, optimizer_methods
from lockstep.learner.argument_checks import check_parts_of_learner
from lockstep.learner.batches import tensors_of_batch, trajectories_by_module
from lockstep.learner.compiled import CompiledUpdate
from lockstep.learner.config import FrameworkSection, TrainingSection, takes_batch
from lockstep.learner.gradients import ClipFunction, clip_gradients_, global_norm
from lockstep.learner.loop import StageSeconds, UpdateKeywords, run_update, update_options
from lockstep.learner.losses import losses_of, rows_of_module
from lockstep.learner.means import means_over_learners, once_over_learners
from lockstep.learner.onpolicy import columns_to_train, recorded_columns
from lockstep.learner.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, OptimizerSet, RegisteredOptimizer, fused_adam
from lockstep.learner.parameter_watch import GradientWatch, ParameterWatch
from lockstep.learner.plan import agree_on_parts
from lockstep.learner.reduction import LocalReducer, Reducer
from lockstep.learner.results import Results, UpdateMetrics
from lockstep.learner.summary import summarize_skipped
from lockstep.modules import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.state.schedules import Schedule
from lockstep.state.streams import RandomStreams

STEPS_SAMPLED = "num_env_steps_sampled_lifetime"
Gradients = dict[nn.Parameter, Tensor]
T = TypeVar("T")
TensorColumns = dict[str, Any]


class Learner:
    """One learner. An algorithm writes `prepare_batch` and `compute_loss_for_module`; all other methods are hooks.

    `module_spec` may be a spec or a built module (whose weights are kept). `config` is the training section; a
    module's own overrides are in `module_configs`. Use `build()` before anything else.
    """

    scheduled: tuple[str, ...] = ()
    """names of training options that may be schedules; read them with `coefficient`"""

    def __init__(
        self,
        *,
        config: TrainingSection,
        module_spec: MultiRLModuleSpec | MultiRLModule | RLModuleSpec | RLModule,
        framework: FrameworkSection | None = None,
        connectors: Mapping[str, ModuleConnectors] | None = None,
        module_configs: Mapping[str, TrainingSection] | None = None,
        policies_to_train: Collection[str] | Callable[..., bool] | None = None,
        streams: RandomStreams | None = None,
        reducer: Reducer | None = None,
        never_skip_update: bool = False,
    ) -> None:
        check_parts_of_learner(config, framework, connectors, module_configs, streams, reducer)
        self.config = config
        self.framework = framework or FrameworkSection()
        self.module_configs = dict(module_configs or {})
        self.policies_to_train = policies_to_train
        self.streams = streams or RandomStreams(0)
        self.reducer = reducer or LocalReducer()
        self.never_skip_update = never_skip_update
        """an update without anything to train on raises `ValueError`"""
        self.device = torch.device(self.framework.device)
        self.dtype = getattr(torch, self.framework.dtype)
        self.connectors = dict(connectors or {})
        self.metrics = UpdateMetrics()
        self.weights_seq_no = 0
        self._module_spec = module_spec
        self._module: MultiRLModule | None = None
        self.optimizers = OptimizerSet()
        self.coefficients: dict[tuple[str, str], tuple[Schedule, Tensor]] = {}
        self.registered: dict[str, Any] = {}
        self.lifetime: dict[str, int] = {}
        self.rows_in_step = 0
        """rows of the present gradient step, the weight of what it logs; 0 where they only stand in for none"""
        self.stand_ins: frozenset[str] = frozenset()
        """modules whose row in the present gradient step stands in for none; see `plan`"""
        self.modules_in_step: tuple[str, ...] | None = None
        """modules that the present gradient step is about; None before the first"""
        self.seconds = StageSeconds()
        self.last_series: dict[tuple[str, str], list[float]] = {}
        """value of each metric at each gradient step of the last update"""
        self.row_errors: dict[str, Tensor] = {}
        """by module: error [N] of each own row of the last gradient step, where the loss leaves them for priorities"""
        self.row_values: dict[str, Tensor] = {}
        """by module: value [N] of each own row of the last gradient step, where its batch has value targets"""
        self.first_bad_tensor: str | None = None
        """name of the tensor whose gradient was not finite last, see `nan_policy`"""
        self.compiled: CompiledUpdate | None = None
        self.parameter_watch: ParameterWatch | None = None
        self.gradient_watch = GradientWatch()

    # -- construction ---

    @property
    def module(self) -> MultiRLModule:
        """All networks, by module id. `RuntimeError` before `build()`."""
        if self._module is None:
            raise RuntimeError("this learner is not built; call build() first")
        return self._module

    def build(self) -> Self:
        """Module, device, coefficients, optimizers, compile; a second call does nothing."""
        if self._module is not None:
            return self
        self._module = members.checked_modules(self, self._make_module())
        for module_id in self._module:
            members.set_up_module(self, module_id)
        self.configure_optimizers()
        self.reset_compiled()
        self.watch_parameters()
        return self

    def _make_module(self) -> MultiRLModule:
        """The networks from the spec; weights of a module that was passed in are kept."""
        return members.built_modules(self._module_spec)

    def _is_module_compatible_with_learner(self, module: Any) -> bool:
        return isinstance(module, nn.Module)

    def setup_module(self, module_id: str) -> None:
        """Once for each module, when the learner is built or the module added, before its optimizers are made.

        The place for state of your own: `self.register_state(f"{module_id}/name", value)`, which goes with the module.
        """

    def reset_compiled(self) -> None:
        """Forgets what was compiled; with `framework(compile=True)` the next gradient step is compiled anew."""
        self.compiled = CompiledUpdate(self) if self.framework.compile else None

    def watch_parameters(self) -> None:
        """From now on the next update notices what others replace or freeze; see `ParameterWatch`."""
        self.parameter_watch = ParameterWatch(self.module, self.optimizers, self.registered)
        self.gradient_watch.forget()

    def follow_replaced_parameters(self) -> None:
        """Optimizers, targets and compiled code go on with the parameters as they are now.

        `ValueError` naming a parameter with which they cannot.
        """
        if self.parameter_watch is not None and self.parameter_watch.look():
            self.reset_compiled()
            self.gradient_watch.forget()

    def begin_watch(self) -> None:
        """Each update begins with it: what others replaced is followed, gradients that stay away are noticed."""
        self.follow_replaced_parameters()
        self.gradient_watch.begin(self.optimizers)

    add_module = members.add_module
    remove_module = members.remove_module

    def config_of(self, module_id: str) -> TrainingSection:
        """The training section of one module: its own, or the common one."""
        return self.module_configs.get(module_id, self.config)

    def configure_optimizers(self) -> None:
        """One optimizer for each module; override to share one between modules."""
        for module_id in self.module:
            self.configure_optimizers_for_module(module_id, self.config_of(module_id))

    def configure_optimizers_for_module(self, module_id: str, config: TrainingSection) -> None:
        """One fused Adam over the module's trainable parameters, as one flat tensor."""
        params = [p for p in self.module[module_id].parameters() if p.requires_grad]
        self.optimizers.register(module_id, DEFAULT_OPTIMIZER, fused_adam(config.adam_epsilon), params, config.lr)

    register_optimizer = optimizer_methods.register_optimizer
    get_optimizer = optimizer_methods.get_optimizer
    get_optimizers_for_module = optimizer_methods.get_optimizers_for_module
    get_parameters = optimizer_methods.get_parameters
    get_param_ref = optimizer_methods.get_param_ref
    filter_param_dict_for_optimizer = optimizer_methods.filter_param_dict_for_optimizer
    _check_registered_optimizer = optimizer_methods.check_registered_optimizer
    _set_optimizer_lr = optimizer_methods.set_optimizer_lr
    _get_optimizer_lr = optimizer_methods.get_optimizer_lr

    # -- one update call ---

    def update_from_episodes(self, episodes: Sequence[Any], **options: Unpack[UpdateKeywords]) -> Results:
        """As `update_from_batch`, from episodes: `prepare_batch` makes each module's train batch from its steps, once.

        Episodes of one or of many agents (`trajectories_by_module` says whose steps go where); those that are views on
        one rollout store (what a collector hands out) are read without a copy.
        """
        given, started = update_options(options), time.perf_counter()
        agreed = agree_on_parts(self, lambda: trajectories_by_module(self, episodes), given)
        if not agreed.parts:
            return summarize_skipped(self)
        columns = {}
        for module_id, trajectories in agreed.parts.items():
            self.rows_in_step = agreed.num_own_rows(module_id)
            columns[module_id] = self.prepare_batch(trajectories, module_id=module_id)
        self.seconds.pipeline = time.perf_counter() - started
        return run_update(self, columns, agreed, given, agreed.parts)

    def update_from_batch(self, batch: SampleBatch | MultiAgentBatch, **options: Unpack[UpdateKeywords]) -> Results:
        """Gradient steps on a `SampleBatch` or `MultiAgentBatch` that has the columns the loss needs.

        Options: `timesteps` (dict for schedules), `num_epochs` (passes), `minibatch_size` (rows of the largest
        module), `shuffle_batch_per_epoch`. Returns `{module_id: {metric: number}}`.
        """
        given, started = update_options(options), time.perf_counter()
        agreed = agree_on_parts(self, lambda: (tensors_of_batch(self, batch), batch.env_steps()), given)
        if not agreed.parts:
            return summarize_skipped(self)
        self.seconds.pipeline = time.perf_counter() - started
        return run_update(self, agreed.parts, agreed, given, {})

    def _update(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One gradient step: forward, losses, gradients, clipping, optimizers. Returns forward outputs and losses."""
        started, reduction = time.perf_counter(), self.seconds.reduction
        fwd_out, losses = losses_of(self, batch)
        gradients = self.compute_gradients(losses)
        computed = time.perf_counter()
        gradients = self.postprocess_gradients(gradients)
        self.apply_gradients(gradients)
        self.seconds.forward_backward += computed - started - (self.seconds.reduction - reduction)
        self.seconds.step += time.perf_counter() - computed
        return fwd_out, losses

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Any]:
        """`{module_id: forward outputs}`; computed in bfloat16 with `mixed_precision`, and float32 again after it."""
        with self.mixed_precision():
            outputs = {module_id: self.module[module_id].forward_train(part) for module_id, part in batch.items()}
        return map_tree(self.to_tensor, outputs) if self.framework.mixed_precision else outputs

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Within it networks compute in bfloat16 where `framework(mixed_precision=True)` says so."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.framework.mixed_precision else nullcontext()

    # -- hooks ---

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the train batch `{column: [N, ...]}`: what the episodes recorded (`obs`, `actions`, `rewards`,
        `new_obs`, `terminateds`, `truncateds` and the extra model outputs).

        An algorithm that needs values, advantages or targets overrides it.
        """
        return columns_to_train(self, module_id, recorded_columns(self, module_id, trajectories), trajectories)

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int]) -> None:
        """Once before the gradient steps of an update call: schedules take their value at the given time."""
        now = int(timesteps.get(STEPS_SAMPLED, 0))
        for entry in self.optimizers:
            if entry.schedule is not None and not entry.schedule.constant:
                entry.set_lr(entry.schedule(now))
        for schedule, value in self.coefficients.values():
            if not schedule.constant:
                value.fill_(schedule(now))

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int]) -> None:
        """Once after the gradient steps of an update call, e.g. for a coefficient that adapts."""

    def should_stop_passes(self) -> bool:
        """Asked after each pass: end the update here? (PPO's KL stop.)"""
        return False

    def compute_losses(self, *, fwd_out: dict[str, Any], batch: dict[str, TensorColumns]) -> dict[str, Tensor]:
        """`{module_id: 0-d loss}` over the modules present, or `{ALL_MODULES: 0-d loss}`: one for all of them."""
        losses, rows_in_all = {}, self.rows_in_step
        for module_id, part in batch.items():
            # What it logs is weighted by its own rows.
            self.rows_in_step = rows_of_module(self, module_id, part)
            loss = self.compute_loss_for_module(
                module_id=module_id, config=self.config_of(module_id), batch=part, fwd_out=fwd_out[module_id]
            )
            losses[module_id] = loss
        self.rows_in_step = rows_in_all
        return losses

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The one method that an algorithm must write. Means go through `masked_mean`."""
        raise TypeError(f"{type(self).__name__} has no loss; override compute_loss_for_module")

    def masked_mean(self, values: Tensor, batch: TensorColumns) -> Tensor:
        """The mean of `values` [N] (or [S, L] of a module with memory) over the real rows of *all* learners, the same
        on each, so that n equal one.

        Its gradient is that of the learner's own rows, and gradients are summed. So any function of such means is a
        sound loss; a term that does not come from rows goes through `once`.
        """
        mask = batch.get(Columns.LOSS_MASK)
        if mask is None and self.reducer.world_size == 1:
            return values.mean()
        return means_over_learners(self.reducer, (values,), mask, counts=self.rows_in_step > 0)[0]

    def masked_means(self, values: Sequence[Tensor], batch: TensorColumns) -> list[Tensor]:
        """`masked_mean` of each; with several learners in one meeting (unless `masked_mean` is overridden)."""
        if self.reducer.world_size == 1 or type(self).masked_mean is not Learner.masked_mean:
            return [self.masked_mean(each, batch) for each in values]
        mask = batch.get(Columns.LOSS_MASK)
        return means_over_learners(self.reducer, values, mask, counts=self.rows_in_step > 0)

    def normalized(self, values: Tensor, batch: TensorColumns, epsilon: float = 1e-8) -> Tensor:
        """`values` [N] shifted and scaled to mean 0 and deviation 1 over the rows of *all* learners."""
        if batch.get(Columns.LOSS_MASK) is None and self.reducer.world_size == 1:
            variance, mean = torch.var_mean(values, correction=0)
            return (values - mean) / (variance.sqrt() + epsilon)
        mean = self.masked_mean(values, batch)
        centered = values - mean
        return centered / (self.masked_mean(centered.square(), batch).sqrt() + epsilon)

    def once(self, term: Tensor) -> Tensor:
        """A term of the loss that all learners compute alike, such as a penalty on parameters: counted once in all."""
        return once_over_learners(self.reducer, term)

    def coefficient(self, module_id: str, name: str) -> Tensor:
        """0-d tensor: the present value of an option listed in `scheduled`."""
        return self.coefficients[module_id, name][1]

    def log(self, module_id: str, **metrics: Tensor) -> None:
        """Metrics of this minibatch; they stay on the device until the update ends."""
        plain = {
            name: value.detach().reshape(()) if value.requires_grad or value.dim() else value
            for name, value in metrics.items()
        }
        self.metrics.log(module_id, plain, self.rows_in_step)

    def compute_gradients(self, loss_per_module: dict[str, Tensor]) -> Gradients:
        """Backward of the summed losses, into the flat gradients; summed over learners when it returns."""
        for entry in self.optimizers:
            entry.flat.zero_grad()
            entry.has_loss = self.has_loss(entry, loss_per_module)
        losses = list(loss_per_module.values())
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        total.backward()
        started = time.perf_counter()
        for entry in self.optimizers:
            self.reducer.sum_(entry.flat.grad)
        self.seconds.reduction += time.perf_counter() - started
        if self.gradient_watch.missing:
            self.gradient_watch.see(self.optimizers, total)
        return self.optimizers.gradients()

    def postprocess_gradients(self, gradients: Gradients) -> Gradients:
        """Clips the gradients of each optimizer as its module's config says. The dict stays complete."""
        module_ids = self.optimizers.module_ids()
        for module_id in module_ids:
            part = gradients if len(module_ids) == 1 else self.optimizers.part_of_module(module_id, gradients)
            found = self.postprocess_gradients_for_module(
                module_id=module_id, config=self.config_of(module_id), module_gradients_dict=part
            )
            if found is not gradients:
                gradients |= found
        return gradients

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: TrainingSection, module_gradients_dict: Gradients
    ) -> Gradients:
        """Clips what the optimizers registered under `module_id` step (`ALL_MODULES` too); returns all of it."""
        for entry in self.optimizers.of_module(module_id):
            own = entry.flat.take(module_gradients_dict)
            whole = [entry.flat.grad] if own is entry.flat.grad_views else own
            norm = global_norm(whole)
            self.log(module_id, **{f"gradients_{entry.name}_global_norm": norm})
            if config.grad_clip is not None:
                tensors = own if config.grad_clip_by == "norm" else whole
                self._get_clip_function()(tensors, config.grad_clip, config.grad_clip_by, norm)
        return module_gradients_dict

    def _get_clip_function(self) -> ClipFunction:
        """What clips: `f(tensors, limit, by, norm)`, in place."""
        return clip_gradients_

    def apply_gradients(self, gradients: Gradients) -> None:
        """One step of each optimizer; a gradient that is not finite follows `nan_policy`."""
        self.optimizers.take_gradients(gradients)
        for entry in self.optimizers:
            if entry.has_loss:  # a module without rows stays as it is, whatever its moments say
                entry.step(self.config_of(entry.module_id).nan_policy)

    def has_loss(self, entry: RegisteredOptimizer, losses: Collection[str]) -> bool:
        """Is this optimizer stepped on the present losses, given by the modules that they are of?"""
        module_id = entry.module_id
        if module_id not in losses and module_id != ALL_MODULES:
            present: Collection[str] = self.module if self.modules_in_step is None else self.modules_in_step
            if ALL_MODULES not in losses or module_id not in present:
                return False
        return self.takes_part(entry)

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Is this optimizer stepped in the present gradient step, where its module has a loss?"""
        return True

    def compiled_variant(self) -> Hashable:
        """With `compile=True`: what the operations of the present gradient step depend on besides shapes."""
        return None

    def after_gradient_step(self) -> None:
        """After each gradient step, compiled ones too: target networks follow."""

    def should_module_be_updated(self, module_id: str, batch: Any = None) -> bool:
        """Does `policies_to_train` name this module? `batch`: what is to be trained on; None for episodes."""
        allowed = self.policies_to_train
        if not callable(allowed):
            return allowed is None or module_id in allowed
        return bool(allowed(module_id, batch) if takes_batch(allowed) else allowed(module_id))

    # -- state ---

    def register_state(self, name: str, value: Any) -> Any:
        """Makes `value` (tensor, array, number, or an object with get_state/set_state) part of the learner's state."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a state must be a text, not {name!r}")
        if name in self.registered:
            raise ValueError(f"the state {name!r} is already registered; give it another name")
        self.registered[name] = value
        return value

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
        inference_only: bool = False,
    ) -> dict[str, Any]:
        """Everything mutable, or only the named components; arrays and tensors are copies.

        `inference_only` leaves out the weights that acting does not need. `KeyError` for an unknown component.
        """
        state = checkpointing.learner_state(self, inference_only=inference_only)
        return checkpointing.select_components(state, components, not_components)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the components given, all or none: what does not fit raises `ValueError` with the list."""
        checkpointing.set_learner_state(self, state)

    _get_optimizer_state = optimizer_methods.get_optimizer_state
    _set_optimizer_state = optimizer_methods.set_optimizer_state
    save_to_path = checkpointing.save_to_path
    restore_from_path = checkpointing.restore_from_path
    from_checkpoint = classmethod(checkpointing.from_checkpoint)

    # -- the rest ---

    def apply(self, func: Callable[..., T], *args: Any) -> T:
        """`func(learner, *args)`: what a group calls on each of its learners."""
        return func(self, *args)

    def shutdown(self) -> None:
        """Lets go of what only an update needs; a later update makes it anew."""
        self.reset_compiled()

    def _get_tensor_variable(self, value: Any, dtype: torch.dtype | None = None, trainable: bool = False) -> Tensor:
        """`value` as a tensor on the learner's device: floats in float32 unless `dtype` says otherwise.

        Whole numbers and bools keep their kind. `trainable=True` gives an `nn.Parameter`, to be handed to
        `register_optimizer`.
        """
        tensor = torch.as_tensor(value, device=self.device).detach().clone()
        if dtype is None and tensor.is_floating_point():
            dtype = torch.float32
        tensor = tensor if dtype is None else tensor.to(dtype)
        if trainable and not tensor.is_floating_point():
            raise ValueError(f"only floats can be trained, not {tensor.dtype}; give dtype=torch.float32")
        return nn.Parameter(tensor) if trainable else tensor

    def to_tensor(self, value: Any) -> Tensor:
        """An array on the learner's device; floats in the learner's dtype; no copy where none is needed."""
        if isinstance(value, np.ndarray):  # torch has no negative strides, as those of `array[::-1]`
            value = torch.from_numpy(value.copy() if any(step < 0 for step in value.strides) else value)
        tensor: Tensor = value
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor if tensor.dtype == dtype and tensor.device == self.device else tensor.to(self.device, dtype)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Columns of standard normal numbers that the loss reads, with their widths: drawn for each row of an update,
        from a stream of the learner's, the same for any number of learners.
        """
        return {}

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Columns that the loss reads; their absence is refused by name."""
        return ()

    def count(self, name: str, amount: int) -> int:
        """Adds to a lifetime counter and returns it."""
        self.lifetime[name] = self.lifetime.get(name, 0) + amount
        return self.lifetime[name]
