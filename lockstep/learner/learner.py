"""`Learner`: turns batches into gradients and gradients into parameters. The only place that calls `backward`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.connectors import ModuleConnectors
from lockstep.data.columns import Columns
from lockstep.data.multi_agent_batch import MultiAgentBatch
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trajectories import Trajectories, num_rows_of
from lockstep.learner.batches import tensors_of_batch, trajectories_by_module
from lockstep.learner.checkpointing import (
    checkpoint_folders,
    learner_state,
    select_components,
    set_learner_state,
    state_from_folders,
)
from lockstep.learner.compiled import CompiledUpdate
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.gradients import clip_gradients_, global_norm
from lockstep.learner.minibatches import gather, module_minibatches
from lockstep.learner.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, OptimizerSet
from lockstep.learner.reduction import LocalReducer, Reducer
from lockstep.learner.results import Results, UpdateMetrics
from lockstep.learner.summary import summarize_update
from lockstep.modules import DEFAULT_MODULE_ID, MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.schedules import Schedule, ScheduleLike
from lockstep.state.streams import RandomStreams

STEPS_SAMPLED = "num_env_steps_sampled_lifetime"
Gradients = dict[nn.Parameter, Tensor]
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
    ) -> None:
        self.config = config
        self.framework = framework or FrameworkSection()
        self.module_configs = dict(module_configs or {})
        self.policies_to_train = policies_to_train
        self.streams = streams or RandomStreams(0)
        self.reducer = reducer or LocalReducer()
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
        self._rows = 0
        self.last_series: dict[tuple[str, str], list[float]] = {}
        """value of each metric at each gradient step of the last update"""
        self._compiled: CompiledUpdate | None = None

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
        module = self._make_module()
        wrong = [mid for mid in module if not self._is_module_compatible_with_learner(module[mid])]
        if wrong:
            raise ValueError(f"modules {wrong} cannot be trained here; each must be a torch.nn.Module")
        allowed = self.policies_to_train
        unknown = [] if allowed is None or callable(allowed) else sorted(set(allowed) - set(module))
        if unknown:
            raise ValueError(f"policies_to_train={list(allowed)} names {unknown}; the modules are {sorted(module)}")  # type: ignore[arg-type]
        self._module = module.to(device=self.device, dtype=self.dtype)
        for module_id in module:
            self.connectors.setdefault(module_id, ModuleConnectors())
            config = self.config_of(module_id)
            for name in self.scheduled:
                schedule = Schedule(getattr(config, name), name=name)
                value = torch.tensor(schedule(0), dtype=self.dtype, device=self.device)
                self.coefficients[module_id, name] = (schedule, value)
        self.configure_optimizers()
        if self.framework.compile:
            self._compiled = CompiledUpdate(self)
        return self

    def _make_module(self) -> MultiRLModule:
        """The networks from the spec; weights of a module that was passed in are kept."""
        spec = self._module_spec
        if isinstance(spec, MultiRLModule):
            return spec
        if isinstance(spec, MultiRLModuleSpec):
            return spec.build()
        single = spec if isinstance(spec, RLModule) else spec.build()
        return MultiRLModule({DEFAULT_MODULE_ID: single})

    def _is_module_compatible_with_learner(self, module: Any) -> bool:
        return isinstance(module, nn.Module)

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

        def adam(flat: nn.Parameter) -> torch.optim.Optimizer:
            return torch.optim.Adam([flat], lr=1e-3, eps=config.adam_epsilon, fused=True)

        self.optimizers.register(module_id, DEFAULT_OPTIMIZER, adam, params, config.lr)

    def register_optimizer(
        self,
        *,
        module_id: str = ALL_MODULES,
        optimizer_name: str = DEFAULT_OPTIMIZER,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter],
        lr_or_lr_schedule: ScheduleLike | None = None,
    ) -> None:
        """Adds an optimizer of your own over `params`. `ValueError` when the name or a parameter is already taken."""
        self.optimizers.register(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    def get_optimizer(
        self, module_id: str = ALL_MODULES, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> torch.optim.Optimizer:
        """The optimizer of that name; `KeyError` with those that exist."""
        return self.optimizers.get(module_id, optimizer_name).optimizer

    def get_optimizers_for_module(self, module_id: str = ALL_MODULES) -> list[tuple[str, torch.optim.Optimizer]]:
        """`[(name, optimizer)]` registered under `module_id`."""
        return [(entry.name, entry.optimizer) for entry in self.optimizers.of_module(module_id)]

    def get_parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The module's parameters, in order."""
        return list(module.parameters())

    def get_param_ref(self, param: nn.Parameter) -> nn.Parameter:
        """What a parameter is called in a dict of gradients: itself."""
        return param

    # -- one update call ---

    def update_from_episodes(self, episodes: Sequence[Any], **options: Any) -> Results:
        """As `update_from_batch`, from episodes: `prepare_batch` makes each module's train batch from its steps, once.

        Episodes of one or of many agents (`trajectories_by_module` says whose steps go where); those that are views on
        one rollout store (what a collector hands out) are read without a copy.
        """
        started = time.perf_counter()
        trajectories, env_steps = trajectories_by_module(self, episodes)
        if not trajectories:
            return self._skip_update()
        columns = {mid: self.prepare_batch(part, module_id=mid) for mid, part in trajectories.items()}
        return self._run(columns, env_steps, time.perf_counter() - started, trajectories, **options)

    def update_from_batch(self, batch: SampleBatch | MultiAgentBatch, **options: Any) -> Results:
        """Gradient steps on a `SampleBatch` or `MultiAgentBatch` that has the columns the loss needs.

        Options: `timesteps` (dict for schedules), `num_epochs` (passes), `minibatch_size` (rows of the largest
        module), `shuffle_batch_per_epoch`. Returns `{module_id: {metric: number}}`.
        """
        started = time.perf_counter()
        columns = tensors_of_batch(self, batch)
        if not columns:
            return self._skip_update()
        return self._run(columns, batch.env_steps(), time.perf_counter() - started, {}, **options)

    def _run(
        self,
        columns: dict[str, TensorColumns],
        env_steps: int,
        pipeline_s: float,
        trajectories: Mapping[str, Trajectories],
        *,
        timesteps: Mapping[str, int] | None = None,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> Results:
        started = time.perf_counter()
        timesteps = dict(timesteps or {})
        num_rows = {mid: num_rows_of(next(iter(part.values()))) for mid, part in columns.items()}
        self.before_gradient_based_update(timesteps=timesteps)
        trained = dict.fromkeys(columns, 0)
        rng = self.streams.numpy("minibatches")
        passes, num_minibatches, before = 0, 0, 0
        for indices, ends_pass in module_minibatches(
            num_rows, minibatch_size, num_epochs, shuffle_batch_per_epoch and minibatch_size is not None, rng
        ):
            self._minibatch(columns, indices)
            num_minibatches += 1
            for module_id, index in indices.items():
                trained[module_id] += num_rows[module_id] if index is None else len(index)
            if ends_pass:
                passes += 1
                self.metrics.end_pass(num_minibatches - before)
                before = num_minibatches
                if passes < num_epochs and self.should_stop_passes():
                    break
        self.weights_seq_no += 1
        self.after_gradient_based_update(timesteps=timesteps)
        for module_id, part in trajectories.items():
            self.connectors[module_id].update(part.flat_obs(), part.rows())
        gradient_s = time.perf_counter() - started
        steps = (num_minibatches, passes, env_steps * passes)
        return summarize_update(self, trained, steps, (pipeline_s, gradient_s))

    def _minibatch(self, columns: dict[str, TensorColumns], indices: dict[str, np.ndarray | None]) -> None:
        self._rows = sum(
            num_rows_of(next(iter(columns[m].values()))) if i is None else len(i) for m, i in indices.items()
        )
        tensors = {m: None if i is None else torch.from_numpy(i).to(self.device) for m, i in indices.items()}
        if self._compiled is not None and self._compiled.run(columns, tensors):
            return
        self._update(gather(columns, tensors))

    def _update(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One gradient step: forward, losses, gradients, clipping, optimizers."""
        fwd_out = self.forward_train(batch)
        losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
        gradients = self.compute_gradients(losses)
        gradients = self.postprocess_gradients(gradients)
        self.apply_gradients(gradients)
        return fwd_out, losses

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Any]:
        """`{module_id: forward outputs}`."""
        return {module_id: self.module[module_id].forward_train(part) for module_id, part in batch.items()}

    # -- hooks ---

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """The train batch `{column: [N, ...]}` of an algorithm: values, advantages, targets. To be written."""
        raise TypeError(f"{type(self).__name__} learns from batches only: it has no prepare_batch; override it")

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int]) -> None:
        """Once before the gradient steps of an update call: schedules take their value at the given time."""
        now = int(timesteps.get(STEPS_SAMPLED, 0))
        for entry in self.optimizers:
            if not entry.schedule.constant:
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
        """`{module_id: 0-d loss}` over the modules present."""
        losses, rows_in_all = {}, self._rows
        for module_id, part in batch.items():
            self._rows = num_rows_of(next(iter(part.values())))  # what it logs is weighted by its own rows
            loss = self.compute_loss_for_module(
                module_id=module_id, config=self.config_of(module_id), batch=part, fwd_out=fwd_out[module_id]
            )
            self.log(module_id, total_loss=loss)
            losses[module_id] = loss
        self._rows = rows_in_all
        return losses

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The one method that an algorithm must write. Means go through `masked_mean`."""
        raise TypeError(f"{type(self).__name__} has no loss; override compute_loss_for_module")

    def masked_mean(self, values: Tensor, batch: TensorColumns) -> Tensor:
        """Sum over the real rows divided by their *global* count, so that n learners equal one. `values` [N]."""
        mask = batch.get(Columns.LOSS_MASK)
        if mask is None and self.reducer.world_size == 1:
            return values.mean()
        count = values.new_tensor(float(values.numel())) if mask is None else mask.sum().to(values.dtype)
        total = values.sum() if mask is None else (values * mask).sum()
        return total / self.reducer.sum_(count.detach().clone()).clamp(min=1.0)

    def normalized(self, values: Tensor, batch: TensorColumns, epsilon: float = 1e-8) -> Tensor:
        """`values` [N] shifted and scaled to mean 0 and deviation 1 over the rows of *all* learners."""
        if batch.get(Columns.LOSS_MASK) is None and self.reducer.world_size == 1:
            variance, mean = torch.var_mean(values, correction=0)
            return (values - mean) / (variance.sqrt() + epsilon)
        mean = self.masked_mean(values, batch)
        centered = values - mean
        return centered / (self.masked_mean(centered.square(), batch).sqrt() + epsilon)

    def coefficient(self, module_id: str, name: str) -> Tensor:
        """0-d tensor: the present value of an option listed in `scheduled`."""
        return self.coefficients[module_id, name][1]

    def log(self, module_id: str, **metrics: Tensor) -> None:
        """Metrics of this minibatch; they stay on the device until the update ends."""
        for name, value in metrics.items():
            self.metrics.log(module_id, name, (value if value.dim() == 0 else value.reshape(())).detach(), self._rows)

    def compute_gradients(self, loss_per_module: dict[str, Tensor]) -> Gradients:
        """Backward of the summed losses, into the flat gradients; summed over learners when it returns."""
        for entry in self.optimizers:
            entry.flat.zero_grad()
        losses = list(loss_per_module.values())
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        total.backward()
        for entry in self.optimizers:
            self.reducer.sum_(entry.flat.grad)
        return self.optimizers.gradients()

    def postprocess_gradients(self, gradients: Gradients) -> Gradients:
        """Clips the gradients of each optimizer as its module's config says. The dict stays complete."""
        in_place = self.optimizers.are_views(gradients)
        for entry in self.optimizers:
            config = self.config if entry.module_id == ALL_MODULES else self.config_of(entry.module_id)
            own = entry.flat.grad_views if in_place else [gradients[p] for p in entry.flat.params]
            whole = [entry.flat.grad] if in_place else own
            norm = global_norm(whole)
            self.log(entry.module_id, **{f"gradients_{entry.name}_global_norm": norm})
            if config.grad_clip is not None:
                tensors = own if config.grad_clip_by == "norm" else whole
                clip_gradients_(tensors, config.grad_clip, config.grad_clip_by, norm)
        return gradients

    def apply_gradients(self, gradients: Gradients) -> None:
        """One step of each optimizer; a gradient that is not finite follows `nan_policy`."""
        if not self.optimizers.are_views(gradients):
            for param, view in self.optimizers.gradients().items():
                if gradients[param] is not view:
                    view.copy_(gradients[param])
        for entry in self.optimizers:
            entry.step(self.config.nan_policy)

    def should_module_be_updated(self, module_id: str, batch: Any = None) -> bool:
        """Does `policies_to_train` name this module?"""
        allowed = self.policies_to_train
        if allowed is None:
            return True
        return bool(allowed(module_id, batch)) if callable(allowed) else module_id in allowed

    # -- state ---

    def register_state(self, name: str, value: Any) -> Any:
        """Makes `value` (tensor, array, number, or an object with get_state/set_state) part of the learner's state."""
        if name in self.registered:
            raise ValueError(f"the state {name!r} is already registered; give it another name")
        self.registered[name] = value
        return value

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
    ) -> dict[str, Any]:
        """Everything mutable, or only the named components; arrays and tensors are copies."""
        return select_components(learner_state(self), components, not_components)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the components given, all or none: what does not fit raises `ValueError` with the list."""
        set_learner_state(self, state)

    def save_to_path(self, path: str | Path) -> str:
        """Writes a checkpoint folder (safetensors and JSON, SHA-256 manifest); returns its path."""
        return str(write_checkpoint(Path(path), checkpoint_folders(self, "learner")))

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restores all of a checkpoint, or one component such as `"rl_module/default_policy"`."""
        state = state_from_folders(read_checkpoint(Path(path)), "learner")
        self.set_state(select_components(state, component, None))

    # -- inside ---

    def _skip_update(self) -> Results:
        self.lifetime["num_updates_skipped"] = self.lifetime.get("num_updates_skipped", 0) + 1
        self.last_series = {}
        return {ALL_MODULES: {"num_updates_skipped": 1, "num_minibatches": 0, "num_env_steps_trained": 0}}

    def to_tensor(self, value: Any) -> Tensor:
        """An array on the learner's device; floats in the learner's dtype; no copy where none is needed."""
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if tensor.is_floating_point() and tensor.dtype != self.dtype:
            return tensor.to(self.device, self.dtype)
        return tensor.to(self.device)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Columns that the loss reads; their absence is refused by name."""
        return ()

    def count(self, name: str, amount: int) -> int:
        """Adds to a lifetime counter and returns it."""
        self.lifetime[name] = self.lifetime.get(name, 0) + amount
        return self.lifetime[name]
