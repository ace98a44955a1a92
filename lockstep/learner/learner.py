"""`Learner`: computes gradients from batches, and new parameters from gradients.

This is the only file of the library that calls `backward`.

Three conditions decide whether a module (the network of one policy) learns. A *frozen* module never learns. An update
trains those of the other modules that `policies_to_train` selects and that have data. Within the update, the algorithm
may step an optimizer in some gradient steps only (`takes_part`): TD3 updates its policy in every second one.

With several learners each one computes on its *own rows* of a minibatch. If it has none for a module, it computes on a
*stand-in*: a copied row without weight, with which all learners make the same calls. `in_step` says how many own rows
there are and which modules have a stand-in. `many/sharding.py` describes how rows are divided.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from lockstep.connectors import ModuleConnectors, Symmetry
from lockstep.data.columns import MIRRORED, Columns
from lockstep.data.groups import INTRINSIC, POLICY, PartView, central_groups, with_state_space
from lockstep.data.rollout import RolloutEpisodes
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import map_tree, num_items
from lockstep.learner import checkpointing, inputs
from lockstep.learner.checkpointing import LearnerParts
from lockstep.learner.compile.cache import compiler_name, has_compiler
from lockstep.learner.compile.choice import compiling_pays
from lockstep.learner.compile.update import CompiledUpdate
from lockstep.learner.config import FrameworkSection, TrainingSection, takes_batch
from lockstep.learner.device.replay_update import ReplayUpdate
from lockstep.learner.images import mean_of_images, num_rows, with_images
from lockstep.learner.inputs import TrainedModules
from lockstep.learner.learner_state import LearnerState
from lockstep.learner.many.reduction import LocalReducer, Reducer
from lockstep.learner.many.sharding import (
    Agreement,
    EpisodeParts,
    Episodes,
    UpdatePlan,
    agree_on_parts,
    parts_of_episodes,
    plan_update,
)
from lockstep.learner.metrics import FirstValues, Results, report_metrics
from lockstep.learner.minibatches import (
    TensorColumns,
    UpdateOptions,
    module_minibatches,
    rows_on_device,
    steps_by_row,
    take_minibatch,
    take_rows,
    warn_of_rows_left_out,
)
from lockstep.learner.novelty import NOVELTY, IntrinsicReward, make_intrinsic_reward
from lockstep.learner.optimizers import (
    ALL_MODULES,
    DEFAULT_OPTIMIZER,
    ClipFunction,
    OptimizerSet,
    RegisteredOptimizer,
    check_optimizer,
    clip_gradients_,
    configured_optimizer,
    global_norm,
)
from lockstep.learner.sequences import evaluate_sequences
from lockstep.learner.step import StepContext
from lockstep.learner.watch import GradientWatch, ParameterWatch, first_bad_tensor
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    ActingWeights,
    ActionMirror,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
    check_module_id,
)
from lockstep.ops import RunningMoments
from lockstep.options.schedules import Schedule, ScheduleLike
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import FileNames, handed_in
from lockstep.tracking.metrics import Metrics

STEPS_SAMPLED = "num_env_steps_sampled_lifetime"
"""Key of `timesteps` with the number of environment steps so far, which schedules depend on."""
STAGES = ("pipeline", "forward_backward", "reduction", "step")
"""Stages of an update whose durations are in the results."""
REPLACED_BY_FAST_PATHS = ("masked_mean", "normalized", "compute_gradients", "apply_gradients")
"""Methods that compiled steps, kernels of losses and `masked_means` bypass, see `Learner.overridden_methods`."""
Gradients = dict[nn.Parameter, Tensor]
Outputs = dict[str, Any]
"""Outputs of a module's `forward_train` by name."""
T = TypeVar("T")
Training = TypeVar("Training", bound=TrainingSection)


class Learner(Generic[Training]):
    """Learner of one or several modules: their networks, losses, optimizers and state.

    A subclass for an algorithm implements `compute_loss_for_module`, and `prepare_batch` if the loss needs columns that
    are not recorded. All other methods are hooks that may be overridden. Call `build()` before anything else.

    Args:
        config: Training section of a configuration.
        module_spec: Specification of the networks, or built networks, whose weights are kept.
        framework: Device, number format and compilation.
        connectors: Connectors of each module, by module id.
        module_configs: Training sections of the modules that have their own, by module id.
        policies_to_train: Modules to train; None for all.
        streams: Random streams.
        reducer: Communication with other learners; None for a learner that is alone.
        never_skip_update: Raise `ValueError` for an update without data, instead of counting it as skipped.
    """

    scheduled: tuple[str, ...] = ()
    """Names of the training options that may be schedules. `coefficient` returns their present values."""
    loss_has_kernel: bool = False
    """Whether `fused_loss` computes the same loss and metrics as `compute_loss_for_module`, but with one kernel.

    A subclass that overrides `compute_loss_for_module` has another loss. It counts as without a kernel, unless it sets
    this attribute again."""
    learns_step_by_step: bool = False
    """Whether the loss uses the reward of each single step of a rollout. An on-policy algorithm needs this to have an
    intrinsic reward."""
    learns_symmetry: bool = False
    """Whether the loss may see rows together with their mirror images (`training(symmetry=f)`)."""
    observed_by: tuple[str, ...] = (POLICY,)
    """Parts of the networks that observe: "policy", and "critic" if there are value functions or action values beside
    it. Each may have its own group of observations (`rl_module(observation_groups=...)`)."""
    updates_targets_after_step: bool = False
    """Whether target networks are updated in `after_gradient_step` and nowhere else.

    It is the only hook that runs after each single gradient step, compiled or eager. `framework(compile=True)` is
    refused for an algorithm with a replay buffer or recorded data that does not set this attribute."""

    def __init__(
        self,
        *,
        config: Training,
        module_spec: MultiRLModuleSpec | MultiRLModule | RLModuleSpec | RLModule,
        framework: FrameworkSection | None = None,
        connectors: Mapping[str, ModuleConnectors] | None = None,
        module_configs: Mapping[str, Training] | None = None,
        policies_to_train: TrainedModules = None,
        streams: RandomStreams | None = None,
        reducer: Reducer | None = None,
        never_skip_update: bool = False,
    ) -> None:
        if not isinstance(config, TrainingSection):
            raise TypeError(
                f"config is a {type(config).__name__}; a learner takes a training section, such as "
                "PPOConfig().training (of a whole configuration, use its build_learner())"
            )
        self.config = config
        self.framework = framework or FrameworkSection()
        self.module_configs = dict(module_configs or {})
        self.policies_to_train = policies_to_train
        self.streams = streams or RandomStreams(0)
        self.reducer = reducer or LocalReducer()
        self.never_skip_update = never_skip_update
        self.device = torch.device(self.framework.device)
        self.dtype: torch.dtype = getattr(torch, self.framework.dtype)
        self.connectors = dict(connectors or {})
        self.built_connectors: dict[str, ModuleConnectors] = {}
        """Connectors of the modules when the learner was built, including modules that were removed later."""
        self.metrics = Metrics()
        self.weights_seq_no = 0
        """Version of the weights: the number of updates so far."""
        self._module_spec = module_spec
        self._module: MultiRLModule | None = None
        self.optimizers = OptimizerSet()
        self.coefficients: dict[tuple[str, str], tuple[Schedule, Tensor]] = {}
        """Schedule and present value (0-d) of each scheduled option, by module id and name."""
        self.action_mirrors: dict[str, ActionMirror | None] = {}
        """Mirror of actions of each module with a symmetry; None if its actions do not just change places and signs."""
        self.registered: dict[str, Any] = {}
        """Additional state by name, see `register_state`."""
        self.lifetime: dict[str, int] = {}
        """Counters over the life of the learner, by name."""
        self.step_context = StepContext()
        """Present gradient step, see `in_step`. Between two steps it describes the whole update."""
        self.seconds = dict.fromkeys(STAGES, 0.0)
        """Duration of each stage of the present update, in seconds. A compiled gradient step is one stage, which counts
        as forward and backward."""
        self.rows_in_step = 0  # a property: it sets the weight of the metrics
        self._lags: dict[str, tuple[float, int]] = {}
        """By module id: mean age of the weights that acted, in updates, and the number of rows it is the mean over."""
        self.last_series: dict[tuple[str, str], list[float]] = {}
        """Values of each metric in the gradient steps of the last update, by module id and name."""
        self.first_bad_tensor: str | None = None
        """Name of the last tensor whose gradient was not finite, see `nan_policy`."""
        self.compiled: CompiledUpdate | None = None
        self.device_update = ReplayUpdate(self)
        """Updates whose data are on the learner's device: from rollouts (`run`, of the base class) as well as from
        replay buffers (`run_steps`)."""
        self.parameter_watch: ParameterWatch | None = None
        self.gradient_watch = GradientWatch()
        self.loss_has_kernel = _kernel_computes_loss(type(self))
        self.overridden_methods = frozenset(
            name for name in REPLACED_BY_FAST_PATHS if getattr(type(self), name) is not getattr(Learner, name)
        )
        """Methods in `REPLACED_BY_FAST_PATHS` that a subclass overrides. A fast path that would leave such a method out
        is not taken. Methods are compared here, and not declared by the subclass, because with a forgotten declaration
        the learner would silently train without the override."""
        self._state = LearnerState(self)

    # -- construction ---

    @property
    def module(self) -> MultiRLModule:
        """All networks by module id; `RuntimeError` before `build()`."""
        if self._module is None:
            raise RuntimeError("this learner is not built; call build() first")
        return self._module

    def build(self) -> Self:
        """Create networks, coefficients and optimizers, and return the learner. A second call does nothing."""
        if self._module is not None:
            return self
        module = self._make_module()
        if not len(module):
            raise ValueError("the module spec has no modules; a learner needs at least one")
        for module_id in module:
            self._check_trainable(module_id, module[module_id])
        inputs.check_trained_modules(self.policies_to_train, module)
        unknown = sorted(set(self.module_configs) - {*module, ALL_MODULES})
        if unknown:
            raise ValueError(f"module_configs names {unknown}; the modules are {sorted(module)}")

        # Networks are on their device before anything takes hold of their parameters.
        self._module = module.to(device=self.device, dtype=self.dtype)
        for module_id in module:
            self._prepare_module(module_id)
        self.built_connectors = dict(self.connectors)
        self.configure_optimizers()
        self.reset_compiled()
        self._watch_parameters()
        return self

    def _make_module(self) -> MultiRLModule:
        """Return the networks of the specification. Networks that were passed in keep their weights."""
        spec = self._module_spec
        module = spec.build() if isinstance(spec, MultiRLModuleSpec | RLModuleSpec) else spec
        if isinstance(module, MultiRLModule):
            return module
        if not isinstance(module, RLModule):
            raise TypeError(
                f"module_spec must be an RLModuleSpec, a MultiRLModuleSpec or a built module, not "
                f"{type(spec).__name__}; wrap_module() takes a plain nn.Module"
            )
        return MultiRLModule({DEFAULT_MODULE_ID: module})

    def _is_module_compatible_with_learner(self, module: object) -> bool:
        return isinstance(module, nn.Module)

    def _check_trainable(self, module_id: str, module: object) -> None:
        if not self._is_module_compatible_with_learner(module):
            raise ValueError(
                f"module {module_id!r} cannot be trained here; it must be a torch.nn.Module, or override "
                f"{type(self).__name__}._is_module_compatible_with_learner"
            )

    def _prepare_module(self, module_id: str) -> None:
        """Create everything that belongs to a module besides optimizers: connectors, coefficients, registered state."""
        connectors = self.connectors.setdefault(module_id, ModuleConnectors())
        # Checkpoints of the module have the names of these connectors. A warning follows if the module is restored
        # without them.
        self.module[module_id].acting_connectors = connectors.acting_names
        self._prepare_symmetry(module_id, connectors)
        if self.is_frozen(module_id):
            self.module[module_id].requires_grad_(False)
            return

        # Connectors join their statistics over learners with these functions. `self.reducer` is looked up at each call,
        # since it is replaced when the number of learners changes.
        has_peers = self.reducer.world_size > 1
        connectors.join = self._joined_moments if has_peers else None
        connectors.gather = (lambda value: self.reducer.gather(value)) if has_peers else None

        config = self.config_of(module_id)
        for name in self.scheduled:
            schedule = Schedule(getattr(config, name), name=name)
            value = torch.tensor(schedule(0), dtype=self.dtype, device=self.device)
            self.coefficients[module_id, name] = (schedule, value)
        if config.intrinsic_reward is not None:
            module = self.module[module_id]
            space = module.observation_space
            view = module.view_of(INTRINSIC) if INTRINSIC in module.observation_groups else None
            if module.critic_space is not None:  # a class that was written for version 0.2
                view = PartView(POLICY, with_state_space(space, module.critic_space), central_groups(space))
            space = space if view is None else view.space
            seed = self.streams.seed(f"{module_id}/{NOVELTY}")
            novelty = make_intrinsic_reward(config.intrinsic_reward, space, config.intrinsic_coeff, seed, view)
            parameters = novelty.network.to(device=self.device, dtype=self.dtype).parameters()
            self.register_state(f"{module_id}/{NOVELTY}", novelty)
            self.register_configured(module_id, NOVELTY, parameters, config.lr, config)
        self.setup_module(module_id)

    def _prepare_symmetry(self, module_id: str, connectors: ModuleConnectors) -> None:
        """Make the mirror images of a module with `training(symmetry=f)`.

        Raises `ValueError` if the algorithm or the network cannot learn from them, or the function is not a mirror.
        """
        module = self.module[module_id]
        function = self.config_of(module_id).symmetry
        if function is None:
            return
        if not self.learns_symmetry or module.is_stateful():
            reason = "has a memory" if module.is_stateful() else f"is trained by {type(self).__name__}"
            raise ValueError(
                f"training.symmetry is not allowed for module {module_id!r}, which {reason}: it needs a learner with "
                "learns_symmetry=True, and a network without memory"
            )
        if connectors.symmetry is None:  # connectors that were not built from a configuration
            space = connectors.obs.input_space or module.observation_space
            connectors.symmetry = Symmetry(function, space, module.action_space, connectors.actions)
        numbers = connectors.symmetry.numbers
        self.action_mirrors[module_id] = None
        if numbers is not None:
            mirror = ActionMirror(module.action_dist_cls).to(device=self.device, dtype=self.dtype)
            mirror.set_numbers(numbers)
            self.action_mirrors[module_id] = mirror
            own_mirror: Any = getattr(module, "action_mirror", None)
            if own_mirror is not None:  # a symmetric network
                own_mirror.set_numbers(numbers)

    def novelty_of(self, module_id: str) -> IntrinsicReward | None:
        """Return the intrinsic reward of a module; None without `intrinsic_reward`."""
        return self.registered.get(f"{module_id}/{NOVELTY}")

    def _joined_moments(self, moments: RunningMoments) -> RunningMoments:
        """Return the moments of the rows of all learners together.

        A learner without rows has moments of a stand-in (see `many/sharding.py`), which are left out.
        """
        return self.reducer.moments(moments if self.rows_in_step else RunningMoments(moments.shape))

    def setup_module(self, module_id: str) -> None:
        """Set up a module when the learner is built or the module added, before its optimizers are created.

        A subclass can register its own state here: `self.register_state(f"{module_id}/name", value)`. Such state is
        removed together with the module.
        """

    def check_parts(self, module_id: str, *names: str) -> None:
        """Check that a module has all attributes in `names`; `ValueError` with the missing ones otherwise."""
        inputs.check_parts(self.module[module_id], names, module_id, type(self).__name__)

    def is_frozen(self, module_id: str) -> bool:
        """Return whether a module was built with `inference_only`. It only acts, and has no optimizer."""
        return self.module[module_id].inference_only

    def learning_modules(self) -> list[str]:
        """Return the ids of the modules that are not frozen, which means that they can learn.

        An update trains those of them for which `should_module_be_updated` returns True.
        """
        return [module_id for module_id in self.module if not self.is_frozen(module_id)]

    def config_of(self, module_id: str) -> Training:
        """Return the training section of a module: its own, or the common one."""
        return self.module_configs.get(module_id, self.config)

    def reset_compiled(self) -> None:
        """Discard compiled code. With `framework(compile=True)` the next gradient step is compiled again."""
        self.compiled = CompiledUpdate(self) if self.framework.compile is True else None
        self.device_update.forget()

    def choose_compiling(self, gradient_steps: float, rows: float) -> bool:
        """Decide whether the gradient steps of a run are compiled, and return the decision.

        Gradient steps before this call are eager. `framework(compile="auto")` compiles if that pays. On a machine
        without a compiler steps stay eager, with a warning.

        Args:
            gradient_steps: Planned number of gradient steps.
            rows: Number of rows that they read in all.
        """
        framework = self.framework
        on_host = self.device.type == "cpu"
        compiles = framework.compile is True
        if framework.compile == "auto" and on_host:
            parameters: list[nn.Parameter] = []
            for entry in self.optimizers:
                parameters += entry.flat.params
            compiles = compiling_pays(gradient_steps, rows, parameters)
            # A new `CompiledUpdate` answers this without compiling anything.
            compiles = compiles and CompiledUpdate(self).reason_to_run_eagerly() is None
        if compiles and on_host and not has_compiler():
            warnings.warn(
                f"the run trains eagerly: there is no {compiler_name()} on this machine, and compiling needs one. "
                "Install it (Debian and Ubuntu: apt install g++), or name another compiler by the variable CXX",
                RuntimeWarning,
                stacklevel=2,
            )
            compiles = False
        if framework.compile is not compiles:
            framework.compile = compiles
            self.reset_compiled()
        return compiles

    def _watch_parameters(self) -> None:
        """Watch the present parameters and their gradients."""
        self.parameter_watch = ParameterWatch(self.module, self.optimizers, self.registered)
        self.gradient_watch.forget()

    def follow_replaced_parameters(self) -> None:
        """Adapt optimizers, targets and compiled code to parameters that were replaced since the last update.

        Raises `ValueError` naming a parameter to which they cannot adapt.
        """
        if self.parameter_watch is not None and self.parameter_watch.bind_replaced():
            self.reset_compiled()
            self.gradient_watch.forget()

    # -- one update call ---

    def update_from_episodes(
        self,
        episodes: Episodes | RolloutEpisodes | EpisodeParts | TensorRollout,
        *,
        timesteps: Mapping[str, int] | None = None,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> Results:
        """Train on episodes, and return the results. `prepare_batch` makes the train batch of each module once.

        `episodes` are those of one or of many agents. Views on one rollout store, which collectors return, are read
        without a copy, and so is a `TensorRollout`. Options and results are those of `update_from_batch`.
        """
        started = time.perf_counter()
        options = UpdateOptions(timesteps, num_epochs, minibatch_size, shuffle_batch_per_epoch)
        if isinstance(episodes, TensorRollout):
            return self.device_update.run(episodes, options)
        # The learners exchange their numbers of rows and agree on the modules of this update. A learner without rows of
        # such a module gets a copied row of another learner as stand-in. `agreement.parts` has the data by module.
        agreement = agree_on_parts(
            self.module, lambda: self._read_episodes(episodes), options, self.to_tensor, self.reducer
        )
        columns = {}
        for module_id, trajectories in agreement.parts.items():
            # Preparing a batch may reduce over learners, where stand-ins must not count.
            with self.in_step(agreement.num_own_rows(module_id), agreement.stand_ins):
                columns[module_id] = self.prepare_batch(trajectories, module_id=module_id)
        self.seconds["pipeline"] = time.perf_counter() - started
        return self._train(columns, agreement, options, agreement.parts)

    def update_from_batch(
        self,
        batch: SampleBatch | MultiAgentBatch,
        *,
        timesteps: Mapping[str, int] | None = None,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> Results:
        """Train on a batch with the columns that the loss needs, and return `{module_id: {metric: number}}`.

        Args:
            batch: Batch of the only module, or of several.
            timesteps: Present time for schedules, e.g. `{"num_env_steps_sampled_lifetime": 40_000}`.
            num_epochs: Number of passes over the batch.
            minibatch_size: Number of rows in one gradient step, of the module with the most rows. None takes all rows.
            shuffle_batch_per_epoch: Shuffle the rows again before each pass.
        """
        started = time.perf_counter()
        options = UpdateOptions(timesteps, num_epochs, minibatch_size, shuffle_batch_per_epoch)
        agreement = agree_on_parts(self.module, lambda: self._read_batch(batch), options, self.to_tensor, self.reducer)
        self.seconds["pipeline"] = time.perf_counter() - started
        return self._train(agreement.parts, agreement, options, {})

    def _train(
        self,
        columns: dict[str, TensorColumns],
        agreement: Agreement,
        options: UpdateOptions,
        trajectories: Mapping[str, Trajectories],
    ) -> Results:
        """Take all gradient steps of one update call on `columns`, and return the results.

        `trajectories` are the episodes that the columns were made from; empty if they come from a batch.
        """
        if not columns:
            return self._skip_update()
        started = time.perf_counter()
        plan = plan_update(columns, agreement.stand_ins, trajectories, self.reducer)
        self._complete_columns(columns, plan)
        self.rows_in_step = sum(plan.num_own_rows.values())  # the weight of metrics that hooks log outside of steps
        self.before_gradient_based_update(timesteps=options.timesteps or {})
        self.follow_replaced_parameters()
        self.gradient_watch.begin(self.module, self.registered, self.optimizers, columns)

        rng = self.streams.numpy("minibatches")
        # Number of transitions in each row, by module id. Modules without an entry have one transition in each row. For
        # a module with memory a row is a sequence of several.
        row_lengths = steps_by_row(columns)
        # Values of the first pass, for the explained variance. Algorithms that make their batch from episodes log it
        # themselves.
        first_values = FirstValues({} if trajectories else columns)
        trained = dict.fromkeys(columns, 0)  # number of transitions trained on, by module id
        passes = 0
        num_minibatches = 0
        num_rows_used = 0
        for minibatches in module_minibatches(plan.num_rows, options, rng):
            # A pass. The minibatches are row numbers over all learners; `rows` are this learner's rows among them, by
            # module id, and `stand_ins` the modules of which it has none. All indices go to the device in one transfer.
            own_minibatches = [plan.own_rows(indices) for indices in minibatches]
            device_minibatches = rows_on_device([rows for rows, _ in own_minibatches], self.device)
            for (rows, stand_ins), device_rows in zip(own_minibatches, device_minibatches):
                sizes = plan.own_sizes(rows, stand_ins)
                for module_id, size in sizes.items():
                    lengths = row_lengths.get(module_id)
                    # `rows[module_id]` is None for all rows. As an index None adds an axis, and the sum stays the same:
                    # np.array([3, 5])[None] is [[3, 5]], with the sum 8.
                    trained[module_id] += size if lengths is None else int(lengths[rows[module_id]].sum())

                # The gradient step: compiled if that is possible, otherwise eager.
                with self.in_step(sum(sizes.values()), stand_ins):
                    if self.compiled is None or not self.compiled.run(columns, device_rows):
                        self._update(take_minibatch(columns, device_rows))
                    self.after_gradient_step()

                if passes == 0:
                    first_values.add(self.row_values, rows, stand_ins)
                self.metrics.end_step()
            self.metrics.end_pass()
            num_rows_used += sum(map(plan.num_rows_in, minibatches))
            passes += 1
            num_minibatches += len(minibatches)
            # All learners stop together: the next minibatch needs the gradients of all of them.
            if passes < options.num_epochs and self.reducer.any(bool(self.should_stop_passes())):
                break

        num_rows = sum(plan.num_rows.values())
        counts = {
            "num_env_steps_trained": agreement.env_steps * passes,
            "num_minibatches": num_minibatches,
            "num_passes": passes,
            "num_rows_left_out": num_rows * passes - num_rows_used,
            "num_updates_skipped": 0,
        }
        self.end_update(options.timesteps or {}, agreement, trajectories, first_values)
        if self._count_and_should_warn("rows_left_out", counts["num_rows_left_out"]):
            left_out_per_pass = counts["num_rows_left_out"] // passes
            warn_of_rows_left_out(left_out_per_pass, num_rows, options, self.config.train_batch_size)
        return self.summarize(self.reducer.sum_counts(trained), counts, time.perf_counter() - started)

    def _complete_columns(self, columns: dict[str, TensorColumns], plan: UpdatePlan) -> None:
        """Add intrinsic rewards and noise to the columns of each module, and check its actions.

        The noise are standard normal numbers from which losses draw actions or weights, see `noise_columns`.
        """
        for module_id, part in columns.items():
            # Observations may have a mask of the allowed actions. Reading the masks takes a while, so the check for
            # forbidden actions runs after 0, 1, 2, 4, 8, ... updates only.
            if (self.weights_seq_no & (self.weights_seq_no - 1)) == 0:
                inputs.look_for_forbidden_actions(part, self.module[module_id], module_id, self._count_and_should_warn)
            novelty = self.novelty_of(module_id)
            if novelty is not None:
                has_own_rows = plan.num_own_rows[module_id] > 0
                part = novelty.with_rewards(part, has_own_rows=has_own_rows, reducer=self.reducer)
            part = self.prepare_sequences(module_id, part)
            widths = self.noise_columns(module_id)
            columns[module_id] = plan.with_noise(module_id, part, widths, self.streams, self.to_tensor)

    def end_update(
        self,
        timesteps: Mapping[str, int],
        agreement: Agreement,
        trajectories: Mapping[str, Trajectories],
        first_values: FirstValues,
    ) -> None:
        """End an update after its gradient steps: hooks, statistics of observations, explained variance of values.

        Connectors get the new observations only now, after training. So the policy was trained on observations with the
        same normalization as those that it acted on.
        """
        self.weights_seq_no += 1
        self.after_gradient_based_update(timesteps=timesteps)
        for module_id, part in trajectories.items():
            with self.in_step(agreement.num_own_rows(module_id)):
                self.connectors[module_id].update(part.flat_obs(), part.rows())
        for module_id, explained in first_values.explained_variances(self.reducer):
            self.log_for_update(module_id, vf_explained_var=explained)

    def _update(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
        """Take one gradient step: forward, losses, gradients, clipping, optimizers. Return outputs and losses."""
        started = time.perf_counter()
        reduction = self.seconds["reduction"]
        fwd_out, losses = self.forward_and_losses(batch)
        for module_id, part in batch.items():
            novelty = self.novelty_of(module_id)
            if novelty is not None:
                self._add_novelty_loss(losses, module_id, part, novelty.errors_of(part[Columns.OBS]))
        gradients = self.compute_gradients(losses)
        computed = time.perf_counter()
        gradients = self.postprocess_gradients(gradients)
        self.apply_gradients(gradients)
        self.constrain_weights([entry for entry in self.optimizers if entry.has_loss])
        # `compute_gradients` contains the reduction, which is a stage of its own.
        self.seconds["forward_backward"] += computed - started - (self.seconds["reduction"] - reduction)
        self.seconds["step"] += time.perf_counter() - computed
        return fwd_out, losses

    def _add_novelty_loss(self, losses: dict[str, Tensor], module_id: str, part: TensorColumns, errors: Tensor) -> None:
        """Add the novelty errors of a batch to the loss of its module, or to the common loss of all modules."""
        with self.in_step(self._weight_of(module_id, part)):
            loss = self.masked_mean(errors, part)
            self.log(module_id, novelty_loss=loss)
        name = module_id if module_id in losses else ALL_MODULES
        losses[name] = losses[name] + loss

    # -- the present step ---

    @contextmanager
    def in_step(self, rows: int, stand_ins: frozenset[str] | None = None) -> Iterator[StepContext]:
        """Return a context for code that computes on `rows` own rows. Metrics logged in it have this number as weight.

        The code is mostly a gradient step, or the part of one module in it. The parts of an update before and after the
        gradient steps (`prepare_batch`, `end_update`) use it too, since they log metrics and reduce over learners.

        `stand_ins` are the ids of the modules that this learner has no own row of, see `many/sharding.py`; None takes
        the stand-ins of the present step. Contexts may be nested. The errors and values of rows that are set within a
        nested context can still be read after its end.
        """
        outer = self.step_context
        metrics = self.metrics
        weight = metrics.weight
        self.step_context = step = outer.nested(stand_ins)
        metrics.weight = rows
        try:
            yield step
        finally:
            self.step_context = outer
            metrics.weight = weight
            outer.keep_results_of(step)

    @property
    def rows_in_step(self) -> int:
        """Number of own rows in the present gradient step, which is the weight of its metrics; 0 for stand-ins."""
        return int(self.metrics.weight)

    @rows_in_step.setter
    def rows_in_step(self, rows: int) -> None:
        self.metrics.weight = rows

    @property
    def stand_ins(self) -> frozenset[str]:
        """Ids of the modules whose row in the present or last gradient step is a stand-in, see `many/sharding.py`."""
        return self.step_context.stand_ins

    @property
    def row_errors(self) -> dict[str, Tensor]:
        """Error `[N]` of each own row of the present or last gradient step, by module id. Priorities are made of it."""
        return self.step_context.errors

    @row_errors.setter
    def row_errors(self, errors: dict[str, Tensor]) -> None:
        self.step_context.errors = errors

    @property
    def row_values(self) -> dict[str, Tensor]:
        """Value `[N]` of each own row with a value target in the present or last gradient step, by module id."""
        return self.step_context.values

    @row_values.setter
    def row_values(self, values: dict[str, Tensor]) -> None:
        self.step_context.values = values

    # -- train batches ---

    def _read_episodes(
        self, episodes: Episodes | RolloutEpisodes | EpisodeParts
    ) -> tuple[dict[str, Trajectories], int]:
        """Return the trajectories of the modules to train, if they have steps, and the number of environment steps."""
        # For `EpisodeParts`, `parts_of_episodes` returns its argument, which may have modules that this update does not
        # train. So the modules to train are selected here once more.
        parts = parts_of_episodes(episodes, self.module.keys(), self._to_train)
        ids = self._to_train(parts.trajectories)
        for module_id in ids:
            trajectories = parts.trajectories[module_id]
            space = self.module[module_id].action_space
            trajectories.actions = inputs.flat_actions(trajectories.actions, space)
            inputs.check_actions(torch.as_tensor(trajectories.flat_actions()), space, module_id)
        for module_id, versions in parts.versions.items():
            if module_id not in ids:
                continue
            self.note_sampler(module_id, versions)
            if Columns.ACTION_LOGP in self.required_columns(module_id):
                num_steps = inputs.steps_of_unknown_policy(versions, self.weights_seq_no, parts.trajectories[module_id])
                if self._count_and_should_warn(f"{module_id}/steps_of_unknown_policy", num_steps):
                    inputs.warn_of_unknown_policy(module_id, num_steps, versions, self.weights_seq_no)
        return {module_id: parts.trajectories[module_id] for module_id in ids}, parts.env_steps

    def _column(self, value: np.ndarray | Tensor) -> Tensor:
        """Return a column as a tensor. No gradient flows back to the tensor of the caller."""
        column = self.to_tensor(value)
        return column.detach() if column.requires_grad else column

    def _read_batch(self, batch: SampleBatch | MultiAgentBatch) -> tuple[dict[str, TensorColumns], int]:
        """Return the columns of the modules to train that have rows, and the number of environment steps."""
        columns: dict[str, TensorColumns] = {}
        batches = inputs.batches_by_module(batch, self.module.keys())
        for module_id in self._to_train(batches, batch):
            module = self.module[module_id]
            tensors = inputs.columns_of_batch(self._column, module, batches[module_id], module_id)
            inputs.check_columns(tensors, self.required_columns(module_id), module, module_id, type(self).__name__)
            connectors = self.connectors[module_id]
            tensors = connectors.train_columns(connectors.with_images(tensors))
            if Columns.WEIGHTS_SEQ_NO in tensors:
                versions = tensors[Columns.WEIGHTS_SEQ_NO]
                mask = tensors.get(Columns.LOSS_MASK)
                self.note_sampler(module_id, versions if mask is None else versions[mask])
            columns[module_id] = tensors
        return columns, batch.env_steps()

    def _to_train(self, parts: Collection[str], batch: SampleBatch | MultiAgentBatch | None = None) -> list[str]:
        """Return the ids of the modules to train among `parts`, in the learner's order; `KeyError` for unknown ids."""
        module = self.module
        unknown = [module_id for module_id in parts if module_id not in module]
        if unknown:
            raise KeyError(f"there are rows for {sorted(unknown)}; this learner's modules are {sorted(module)}")
        return [mid for mid in module if mid in parts and self.should_module_be_updated(mid, batch)]

    def should_module_be_updated(self, module_id: str, batch: SampleBatch | MultiAgentBatch | None = None) -> bool:
        """Return whether an update trains this module, as `policies_to_train` says. Frozen modules are never trained.

        `batch` is the data of the update; None if these are episodes.
        """
        if self.is_frozen(module_id):
            return False
        allowed = self.policies_to_train
        if not callable(allowed):
            return allowed is None or module_id in allowed
        return bool(allowed(module_id, batch) if takes_batch(allowed) else allowed(module_id))

    def note_sampler(self, module_id: str, versions: np.ndarray | Tensor) -> None:
        """Record the age of the weights that acted (the "sampler"), in updates.

        `versions` `[N]` are the versions of these weights in each row.
        """
        age = self.weights_seq_no - float(versions.sum()) / len(versions)
        self._lags[module_id] = age, len(versions)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the train batch of a module, `{column: [N, ...]}`.

        It has the recorded columns: `obs`, `actions`, `rewards`, `new_obs`, `terminateds`, `truncateds` and the extra
        model outputs. An algorithm that needs values, advantages or targets overrides this method.
        """
        columns = inputs.recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        return self.train_columns(module_id, columns, trajectories)

    def train_columns(self, module_id: str, columns: TensorColumns, trajectories: Trajectories) -> TensorColumns:
        """Return the rows of `columns` that are transitions, or for a module with memory the sequences `[S, L, ...]`.

        The columns are checked against `required_columns`.
        """
        module = self.module[module_id]
        if module.is_stateful():
            bootstrap_obs = None
            if len(trajectories.bootstrap_index):
                bootstrap_obs = map_tree(self.to_tensor, self.connectors[module_id].obs(trajectories.bootstrap_obs))
            _, _, sequences = evaluate_sequences(
                self.to_tensor, module, trajectories, columns[Columns.OBS], bootstrap_obs
            )
            columns = sequences.train_columns(columns)
        elif (rows := trajectories.rows()) is not None:
            columns = take_rows(columns, torch.from_numpy(rows).to(self.device))
        inputs.check_columns(columns, self.required_columns(module_id), module, module_id, type(self).__name__)
        return columns

    def prepare_sequences(self, module_id: str, columns: TensorColumns) -> TensorColumns:
        """Return the columns from which the minibatches of an update are taken. Called once for each update and module.

        A subclass can change the sequences `[S, L, ...]` of a module with memory here. All learners make this call
        together, so it may communicate with them.
        """
        return columns

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Return the names of the columns that the loss reads. A batch without one of them is refused."""
        return ()

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the columns of standard normal numbers that the loss reads: their widths by name.

        The numbers of each row are drawn from a stream of the learner. They are the same for any number of learners.
        """
        return {}

    # -- forward pass and losses ---

    def forward_and_losses(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
        """Return the outputs of the networks, and the losses, both by module id.

        Losses are logged as `total_loss` here, and not in a hook that a subclass may override. So a loss that is not
        finite always shows in the results.
        """
        originals = batch
        if self.action_mirrors:
            batch = {mid: with_images(part) if self.augments(mid) else part for mid, part in batch.items()}
        fwd_out = self.forward_train(batch)
        for module_id, outputs in fwd_out.items():
            if isinstance(outputs, dict) and Columns.VF_PREDS not in outputs:
                fwd_out[module_id] = self._with_values(module_id, outputs, batch[module_id])

        try:
            losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
        except KeyError as error:
            names = {module_id: type(module).__name__ for module_id, module in self.module.items()}
            inputs.check_read(error.args[0] if error.args else None, fwd_out, batch, names, type(self).__name__)
            raise
        for module_id, loss in losses.items():
            inputs.check_loss(loss, f"{type(self).__name__}.compute_losses", module_id)
        for module_id in self.action_mirrors.keys() & originals.keys():
            self._add_symmetry_loss(losses, module_id, originals[module_id], fwd_out[module_id])

        self.step_context.modules = tuple(batch)
        row_values: dict[str, Tensor] = {}
        for module_id, outputs in fwd_out.items():
            has_targets = Columns.VALUE_TARGETS in batch.get(module_id, ())
            if has_targets and isinstance(outputs, dict) and Columns.VF_PREDS in outputs:
                row_values[module_id] = outputs[Columns.VF_PREDS].detach()
        self.row_values = row_values
        for module_id in filter(self.augments, self.action_mirrors.keys() & originals.keys()):
            # Each row has two images here, and one value and one priority elsewhere.
            if module_id in row_values:
                row_values[module_id] = row_values[module_id][: num_rows(originals[module_id])]
            if module_id in self.row_errors:
                self.row_errors[module_id] = mean_of_images(self.row_errors[module_id])

        for module_id, loss in losses.items():
            if module_id != ALL_MODULES and module_id not in self.module:
                raise ValueError(
                    f"compute_losses gave a loss for {module_id!r}; there are the modules {sorted(self.module)}, and "
                    f"{ALL_MODULES!r} for one loss of all"
                )
            rows = self._weight_of(module_id, batch[module_id]) if module_id in batch else self.rows_in_step
            with self.in_step(rows):
                self.log(module_id, total_loss=loss)
        return fwd_out, losses

    def augments(self, module_id: str) -> bool:
        """Return whether a module learns from each row and from its mirror image."""
        config = self.config_of(module_id)
        return config.symmetry is not None and config.symmetry_augmentation

    def _add_symmetry_loss(
        self, losses: dict[str, Tensor], module_id: str, rows: TensorColumns, outputs: Outputs
    ) -> None:
        """Log how far the policy is from its mirror image, and add it to the losses with `symmetry_loss_coeff`.

        Nothing is done in steps in which the policy has no outputs, since it does not learn.
        """
        mirror = self.action_mirrors[module_id]
        config = self.config_of(module_id)
        has_images = self.augments(module_id) or MIRRORED + Columns.OBS in rows
        if mirror is None or not has_images or Columns.ACTION_DIST_INPUTS not in outputs:
            return
        module = self.module[module_id]
        dist_inputs = outputs[Columns.ACTION_DIST_INPUTS]
        with torch.set_grad_enabled(torch.is_grad_enabled() and config.symmetry_loss_coeff > 0):
            if self.augments(module_id):
                of_rows, of_images = dist_inputs.chunk(2)
            else:
                of_rows = dist_inputs
                with self.mixed_precision():
                    image_outputs = module.forward_inference({Columns.OBS: rows[MIRRORED + Columns.OBS]})
                of_images = self.to_tensor(image_outputs[Columns.ACTION_DIST_INPUTS])
            differences = mirror.asymmetry(of_rows, of_images)
        with self.in_step(self._weight_of(module_id, rows)):
            loss = self.masked_mean(differences, rows)
            self.log(module_id, symmetry_loss=loss)
        if config.symmetry_loss_coeff > 0:
            name = module_id if module_id in losses else ALL_MODULES
            losses[name] = losses[name] + config.symmetry_loss_coeff * loss

    def _with_values(self, module_id: str, outputs: Outputs, columns: TensorColumns) -> Outputs:
        """Return outputs whose `vf_preds` are computed by the module's `compute_values` when a loss reads them.

        Modules without `compute_values`, and modules with memory, keep their outputs.
        """
        module = self.module[module_id]
        if not module.overrides_compute_values or module.is_stateful():
            return outputs

        def values() -> Tensor:
            with self.mixed_precision():
                computed = module.compute_values(columns)
            return self.to_tensor(computed)

        return inputs.OutputsWithValues(outputs, values)

    def _weight_of(self, module_id: str, columns: TensorColumns) -> int:
        """Return the number of own rows of a module, which is the weight of its metrics; 0 for a stand-in."""
        return 0 if module_id in self.stand_ins else num_items(next(iter(columns.values())))

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return the outputs of the networks by module id.

        With `mixed_precision` they are computed in bfloat16, and returned in the learner's dtype.
        """
        with self.mixed_precision():
            outputs = {}
            for module_id, part in batch.items():
                module = self.module[module_id]
                if module.critic_space is not None:  # a class that was written for version 0.2
                    part = {**part, **module.network_inputs(part[Columns.OBS])}
                outputs[module_id] = module.forward_train(part)
        return map_tree(self.to_tensor, outputs) if self.framework.mixed_precision else outputs

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Return a context in which networks compute in bfloat16 with `framework(mixed_precision=True)`."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.framework.mixed_precision else nullcontext()

    def compute_losses(self, *, fwd_out: dict[str, Outputs], batch: dict[str, TensorColumns]) -> dict[str, Tensor]:
        """Return the losses (0-d) by module id, or one common loss under `ALL_MODULES`."""
        losses: dict[str, Tensor] = {}
        for module_id, part in batch.items():
            config = self.config_of(module_id)
            outputs = fwd_out[module_id]
            loss = None
            with self.in_step(self._weight_of(module_id, part)):  # a module's metrics are weighted by its own rows
                if self.loss_has_kernel and self.framework.fused_losses:
                    loss = self.fused_loss(module_id, config, part, outputs)
                if loss is None:
                    loss = self.compute_loss_for_module(module_id=module_id, config=config, batch=part, fwd_out=outputs)
                    inputs.check_loss(loss, f"{type(self).__name__}.compute_loss_for_module", module_id)
            losses[module_id] = loss
        return losses

    def compute_loss_for_module(
        self, *, module_id: str, config: Training, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of a module, 0-d. Every algorithm must implement this method.

        Means over rows are computed with `masked_mean`, so that several learners compute the same loss as one learner
        with all rows.
        """
        raise TypeError(f"{type(self).__name__} has no loss; override compute_loss_for_module")

    def fused_loss(self, module_id: str, config: Training, batch: TensorColumns, fwd_out: Outputs) -> Tensor | None:
        """Return the loss of `compute_loss_for_module`, computed by a kernel; None if the kernel cannot compute it.

        It logs the same metrics. Only `compute_losses` calls it, if `loss_has_kernel` is set.
        `framework(fused_losses=False)` switches it off.
        """
        return None

    def masked_mean(self, values: Tensor, batch: TensorColumns) -> Tensor:
        """Return the mean of `values` over the rows of *all* learners where the loss mask is set.

        `values` are `[N]`, or `[S, L]` for a module with memory. The mean is the same on each learner, but gradients
        flow to the learner's own rows only. The sum of these gradients over all learners is the gradient that one
        learner with all rows would compute. A loss may be any function of such means, also a nonlinear one: the sum of
        its gradients is right as well. A term of the loss that does not come from rows, such as a penalty on
        parameters, goes through `once`.
        """
        mask = batch.get(Columns.LOSS_MASK)
        if mask is None and self.reducer.world_size == 1:
            return values.mean()
        return self.reducer.means((values,), mask, counts=self.rows_in_step > 0)[0]

    def masked_means(self, values: Sequence[Tensor], batch: TensorColumns) -> list[Tensor]:
        """Return the `masked_mean` of each of `values`, with one communication between learners for all of them."""
        if self.reducer.world_size == 1 or "masked_mean" in self.overridden_methods:
            return [self.masked_mean(each, batch) for each in values]
        mask = batch.get(Columns.LOSS_MASK)
        return self.reducer.means(values, mask, counts=self.rows_in_step > 0)

    def normalized(self, values: Tensor, batch: TensorColumns) -> Tensor:
        """Return `values` `[N]` with mean 0 and standard deviation 1 over the rows of *all* learners."""
        if batch.get(Columns.LOSS_MASK) is None and self.reducer.world_size == 1:
            variance, mean = torch.var_mean(values, correction=0)
            return (values - mean) / (variance.sqrt() + 1e-8)
        mean = self.masked_mean(values, batch)
        centered = values - mean
        return centered / (self.masked_mean(centered.square(), batch).sqrt() + 1e-8)

    def once(self, term: Tensor) -> Tensor:
        """Return a term of the loss with 1/n of its gradient, so that n learners which all compute it count it once."""
        return self.reducer.once(term)

    def coefficient(self, module_id: str, name: str) -> Tensor:
        """Return the present value (0-d) of an option listed in `scheduled`."""
        return self.coefficients[module_id, name][1]

    def log(self, module_id: str, **metrics: Tensor) -> None:
        """Log metrics of the present gradient step. They stay on the device until the update ends."""
        plain = {
            name: value.detach().reshape(()) if value.requires_grad or value.dim() else value
            for name, value in metrics.items()
        }
        self.metrics.log_means((module_id,), plain)

    def log_for_update(self, module_id: str, **numbers: float | Tensor) -> None:
        """Log numbers of the whole update, which are the same on all learners."""
        for name, number in numbers.items():
            self.metrics.log_value((module_id, name), number, reduce="item", weight=1)

    # -- gradients ---

    def compute_gradients(self, loss_per_module: dict[str, Tensor]) -> Gradients:
        """Compute the gradients of the summed losses, and return them summed over learners, by parameter.

        Each optimizer has one flat tensor, `entry.flat.grad`, that contains the gradients of all its parameters. The
        returned gradients are views of these tensors.
        """
        for entry in self.optimizers:
            entry.flat.zero_grad()
            entry.has_loss = self.has_loss(entry, loss_per_module)
        losses = list(loss_per_module.values())
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        total.backward()
        started = time.perf_counter()
        for entry in self.optimizers:
            self.reducer.sum_(entry.flat.grad)
        self.seconds["reduction"] += time.perf_counter() - started
        # Parameters without a gradient so far, during a check of the watch. Between checks there are none.
        if self.gradient_watch.missing:
            self.gradient_watch.observe(self.optimizers)
        return self.optimizers.gradients()

    def postprocess_gradients(self, gradients: Gradients) -> Gradients:
        """Clip the gradients of each optimizer, and return the gradients of all parameters."""
        module_ids = self.optimizers.module_ids()
        for module_id in module_ids:
            part = gradients
            if len(module_ids) > 1:
                part = {}
                for entry in self.optimizers.of_module(module_id):
                    part.update({param: gradients[param] for param in entry.flat.params})
            processed = self.postprocess_gradients_for_module(
                module_id=module_id, config=self.config_of(module_id), module_gradients_dict=part
            )
            if processed is not gradients:
                gradients |= processed
        return gradients

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Training, module_gradients_dict: Gradients
    ) -> Gradients:
        """Clip the gradients of the optimizers that are registered under `module_id`, and return all gradients.

        `module_id` may also be `ALL_MODULES`.
        """
        for entry in self.optimizers.of_module(module_id):
            # If all gradients are still views of the flat gradient, norm and clipping take one operation each on it.
            # Clipping "by norm" cannot use it: it limits the norm of each parameter's gradient separately.
            parts = entry.flat.gradients_from(module_gradients_dict)
            whole = [entry.flat.grad] if parts is entry.flat.grad_views else parts
            norm = global_norm(whole)
            self.log(module_id, **{f"gradients_{entry.name}_global_norm": norm})
            if config.grad_clip is not None:
                tensors = parts if config.grad_clip_by == "norm" else whole
                self._get_clip_function()(tensors, config.grad_clip, config.grad_clip_by, norm)
        return module_gradients_dict

    def _get_clip_function(self) -> ClipFunction:
        """Return the function `f(tensors, limit, by, norm)` that clips gradients in place."""
        return clip_gradients_

    def apply_gradients(self, gradients: Gradients) -> None:
        """Take one step of each optimizer. `nan_policy` says what happens if its gradient is not finite."""
        self.optimizers.copy_gradients(gradients)
        for entry in self.optimizers:
            # Without a loss the gradient is 0, but the moments of earlier steps would still move the parameters.
            if entry.has_loss:
                entry.step(self.config_of(entry.module_id).nan_policy)

    def has_loss(self, entry: RegisteredOptimizer, losses: Collection[str]) -> bool:
        """Return whether an optimizer is stepped in the present gradient step.

        `losses` are the keys of the step's losses: module ids, or `ALL_MODULES`.
        """
        module_id = entry.module_id
        # There are two forms of losses: one for each module, or a common one under `ALL_MODULES`. If a module has no
        # loss of its own, its optimizers are stepped for the common loss, but only if the module has rows in this step.
        # (`step_context.modules` are the modules with rows; if it is None, all modules count.) Optimizers that are
        # registered under `ALL_MODULES` are stepped in any case.
        if module_id not in losses and module_id != ALL_MODULES:
            modules_in_step = self.step_context.modules
            present: Collection[str] = self.module if modules_in_step is None else modules_in_step
            if ALL_MODULES not in losses or module_id not in present:
                return False
        return self.takes_part(entry)

    # -- hooks ---

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Set schedules to their values at the present time. Called once before the gradient steps of an update.

        `timesteps=None` is the time 0.
        """
        now = int((timesteps or {}).get(STEPS_SAMPLED, 0))
        for entry in self.optimizers:
            if entry.schedule is not None and not entry.schedule.constant:
                entry.set_lr(entry.schedule(now))
        for schedule, value in self.coefficients.values():
            if not schedule.constant:
                value.fill_(schedule(now))

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Adapt coefficients and the like. Called once after the gradient steps of an update."""

    def constrain_weights(self, stepped: Sequence[RegisteredOptimizer]) -> None:
        """Change weights in place so that they satisfy a constraint, such as a norm.

        Called in each gradient step, after the optimizers `stepped` have moved their parameters. A compiled step
        contains these operations.
        """

    def after_gradient_step(self) -> None:
        """Update target networks. Called after each gradient step, eager or compiled."""

    def should_stop_passes(self) -> bool | Tensor:
        """Return whether the update ends with the present pass, such as in PPO if the KL divergence is too large.

        It may be a bool or a 0-d tensor, which the host need not read. Called after each pass.
        """
        return False

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Return whether an optimizer whose module has a loss is stepped in the present gradient step.

        For algorithms that update a part of the network less often, as TD3 updates its policy in every second step.
        """
        return True

    def pattern(self, num_steps: int) -> Hashable:
        """Return a key of the coming `num_steps` gradient steps: equal keys mean equal operations, step by step.

        Several gradient steps from a replay buffer are captured in one CUDA graph, which always repeats the same
        operations. So there is one graph for each key. An example: if every second step updates a target network, the
        key of the next 3 steps says whether the target is updated after step 2, or after steps 1 and 3.
        """
        return None

    def compiled_variant(self) -> Hashable:
        """Return a key of everything besides shapes that the operations of the present gradient step depend on.

        Compiled code is valid for one key only.
        """
        return None

    # -- optimizers ---

    def configure_optimizers(self) -> None:
        """Register one optimizer for each module that learns. A subclass may share an optimizer between modules."""
        for module_id in self.learning_modules():
            self.configure_optimizers_for_module(module_id, self.config_of(module_id))

    def configure_optimizers_for_module(self, module_id: str, config: Training) -> None:
        """Register one optimizer over the trainable parameters of a module."""
        self.register_configured(module_id, DEFAULT_OPTIMIZER, self.module[module_id].parameters(), config.lr, config)

    def register_configured(
        self, module_id: str, name: str, params: Iterable[nn.Parameter], lr: ScheduleLike, config: Training
    ) -> None:
        """Register the optimizer of `config` over the trainable ones among `params`."""
        trainable = [param for param in params if param.requires_grad]
        self.optimizers.register(module_id, name, configured_optimizer(config), trainable, lr)

    def register_optimizer(
        self,
        *,
        module_id: str = ALL_MODULES,
        optimizer_name: str = DEFAULT_OPTIMIZER,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter],
        lr_or_lr_schedule: ScheduleLike | None = None,
    ) -> None:
        """Register an optimizer of your own.

        Args:
            module_id: Module that it belongs to, or `ALL_MODULES` for several modules.
            optimizer_name: Name within the module.
            optimizer: torch optimizer over exactly `params`.
            params: Parameters that it steps.
            lr_or_lr_schedule: Learning rate or schedule. None keeps the optimizer's own learning rate.

        Raises:
            ValueError: the name is taken, a parameter has an optimizer already, or `optimizer` holds other parameters.
            KeyError: the module is unknown.
        """
        if module_id != ALL_MODULES and module_id not in self.module:
            raise KeyError(f"no module {module_id!r} for optimizer {optimizer_name!r}; there are {sorted(self.module)}")
        self._check_registered_optimizer(optimizer, params)
        self.optimizers.register(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    def get_optimizer(
        self, module_id: str = ALL_MODULES, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> torch.optim.Optimizer:
        """Return the optimizer with a name; `KeyError` with the registered names for another one."""
        return self.optimizers.get(module_id, optimizer_name).optimizer

    def get_optimizers_for_module(self, module_id: str = ALL_MODULES) -> list[tuple[str, torch.optim.Optimizer]]:
        """Return names and optimizers that are registered under `module_id`; `KeyError` for an unknown module."""
        if module_id != ALL_MODULES and module_id not in self.module:
            raise KeyError(f"no module {module_id!r}; there are {sorted(self.module)}, and {ALL_MODULES!r}")
        return [(entry.name, entry.optimizer) for entry in self.optimizers.of_module(module_id)]

    def get_parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the module's parameters, in order."""
        if not isinstance(module, nn.Module):
            raise ValueError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        return list(module.parameters())

    def get_param_ref(self, param: nn.Parameter) -> nn.Parameter:
        """Return the key of a parameter in a dict of gradients, which is the parameter itself."""
        if not isinstance(param, Tensor):
            raise ValueError(f"param must be a parameter of a module, not {type(param).__name__}")
        return param

    def filter_param_dict_for_optimizer(
        self, param_dict: Mapping[nn.Parameter, T], optimizer: torch.optim.Optimizer
    ) -> dict[nn.Parameter, T]:
        """Return the part of `param_dict`, such as gradients by parameter, whose parameters `optimizer` steps."""
        params = self.optimizers.entry_of(optimizer).flat.params
        return {param: param_dict[param] for param in params if param in param_dict}

    def _check_registered_optimizer(self, optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> None:
        """Check that `optimizer` is a torch optimizer over exactly `params`; `ValueError` otherwise."""
        check_optimizer(optimizer, params)

    def _set_optimizer_lr(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """Set the learning rate of a registered optimizer, until its schedule sets the next one."""
        self.optimizers.entry_of(optimizer).set_lr(lr)

    def _get_optimizer_lr(self, optimizer: torch.optim.Optimizer) -> float:
        """Return the present learning rate of a registered optimizer."""
        return float(self.optimizers.entry_of(optimizer).optimizer.param_groups[0]["lr"])

    def _get_optimizer_state(self) -> dict[str, Any]:
        """Return the state of each optimizer by `module_id.name`. Tensors are copies."""
        return self.optimizers.get_state()

    def _set_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Restore all optimizers, or none; `ValueError` with the list of everything that does not fit."""
        self.optimizers.set_state(state)

    # -- adding and removing modules ---

    def add_module(
        self,
        *,
        module_id: str,
        module_spec: RLModuleSpec | RLModule,
        config_overrides: TrainingSection | Mapping[str, Any] | None = None,
        connectors: ModuleConnectors | None = None,
        new_should_module_be_updated: TrainedModules = None,
    ) -> MultiRLModuleSpec:
        """Add a module during training, and return the new spec of all modules.

        Optimizers, statistics and counters of the other modules stay the same objects. Compiled steps and graphs are
        kept if the new module is frozen, as in self-play, since they do not depend on it.

        Args:
            module_id: Id of the new module.
            module_spec: Specification, whose initial weights depend on the learner's seed and the id only, or a built
                module. A module with `inference_only` is frozen: it only acts, and gets no optimizer.
            config_overrides: Training options of this module that differ from the common ones.
            connectors: Connectors of this module.
            new_should_module_be_updated: New value of `policies_to_train`. None leaves it as it is.

        Raises:
            ValueError: the id exists or is illegal, the module cannot be trained, or an option is unknown. Nothing is
                changed then.
        """
        check_module_id(module_id)
        if module_id in self.module:
            raise ValueError(f"there is a module {module_id!r} already; remove it first, or take another id")
        self.follow_replaced_parameters()
        module = module_spec
        if isinstance(module, RLModuleSpec):
            module = module.build(seed=self.streams.seed(f"module/{module_id}"))
        if not isinstance(module, RLModule):
            raise TypeError(f"module_spec must be an RLModuleSpec or a built RLModule, not {type(module).__name__}")
        self._check_trainable(module_id, module)
        inputs.check_trained_modules(new_should_module_be_updated, [*self.module, module_id])
        overridden = None if config_overrides is None else self.config.overridden(config_overrides)
        self.module.add_module(module_id, module.to(device=self.device, dtype=self.dtype))
        try:
            if overridden is not None:
                self.module_configs[module_id] = overridden
            if connectors is not None:
                self.connectors[module_id] = connectors
            self._prepare_module(module_id)
            if not self.is_frozen(module_id):
                self.configure_optimizers_for_module(module_id, self.config_of(module_id))
        except Exception:
            self._forget(module_id)
            raise
        if not self.is_frozen(module_id):
            self.reset_compiled()
        return self._adapt_to_modules(new_should_module_be_updated)

    def remove_module(
        self, module_id: str, *, new_should_module_be_updated: TrainedModules = None
    ) -> MultiRLModuleSpec:
        """Remove a module with its optimizers, schedules and registered state, and return the new spec of the others.

        Raises `KeyError` for an unknown module, and `ValueError` for the last module and for one whose optimizer steps
        parameters of other modules. Nothing is changed then.
        """
        if module_id not in self.module:
            raise KeyError(f"no module {module_id!r}; there are {sorted(self.module)}")
        self.follow_replaced_parameters()
        remaining = [mid for mid in self.module if mid != module_id]
        if not remaining:
            raise ValueError(f"{module_id!r} is the only module; a learner needs at least one, add another first")
        inputs.check_trained_modules(new_should_module_be_updated, remaining)
        remaining_params: set[int] = set()
        for mid in remaining:
            remaining_params.update(map(id, self.module[mid].parameters()))
        for entry in self.optimizers.of_module(module_id):
            if any(id(p) in remaining_params for p in entry.flat.params):
                raise ValueError(
                    f"optimizer {entry.key!r} of the module to remove steps parameters that other modules share; "
                    f"register one optimizer for them under {ALL_MODULES!r} in configure_optimizers"
                )
        if not self.is_frozen(module_id):
            self.reset_compiled()
        self._forget(module_id)
        return self._adapt_to_modules(new_should_module_be_updated)

    def _forget(self, module_id: str) -> None:
        """Remove a module with its optimizers, schedules, statistics, counters and registered state."""
        removed = self.module.remove_module(module_id)
        remaining_params = {id(p) for p in self.module.parameters()}
        self.optimizers.remove(module_id, {id(p) for p in removed.parameters()} - remaining_params)
        self.connectors.pop(module_id, None)
        self.action_mirrors.pop(module_id, None)
        self.module_configs.pop(module_id, None)
        for key in [key for key in self.coefficients if key[0] == module_id]:
            del self.coefficients[key]
        stores: tuple[dict[str, Any], ...] = (self.registered, self.lifetime)
        for store in stores:
            for name in [name for name in store if name.startswith(f"{module_id}/")]:
                del store[name]

    def _adapt_to_modules(self, trained: TrainedModules) -> MultiRLModuleSpec:
        """Adapt to modules that were added or removed, and return the spec of all modules.

        `trained` is the new value of `policies_to_train`. None keeps the present one, without removed modules.
        """
        allowed = self.policies_to_train if trained is None else trained
        if allowed is not None and not callable(allowed):
            allowed = [mid for mid in allowed if mid in self.module]
        self.policies_to_train = allowed
        self._watch_parameters()
        return self.module.spec()

    def set_policies_to_train(self, policies_to_train: TrainedModules) -> None:
        """Set the modules that learn from the next update on: their ids, a function, or None for all modules.

        Raises `ValueError` for an unknown id, or that of a frozen module.
        """
        inputs.check_trained_modules(policies_to_train, self.learning_modules())
        self.policies_to_train = policies_to_train

    def modules_with_memory(self) -> dict[str, bool]:
        """Return whether each module has memory, by module id."""
        return {module_id: module.is_stateful() for module_id, module in self.module.items()}

    # -- results ---

    def _skip_update(self) -> Results:
        """Count an update call without data, and return its results; `ValueError` with `never_skip_update`."""
        if self.never_skip_update:
            raise ValueError("the update has nothing to train on, and never_skip_update=True does not allow that")
        self.count("num_updates_skipped", 1)
        self.last_series = {}
        zeros = dict.fromkeys(("num_minibatches", "num_rows_left_out", "num_env_steps_trained"), 0)
        return {ALL_MODULES: {"num_updates_skipped": 1, **zeros}}

    def summarize(self, trained: Mapping[str, int], counts: dict[str, int], seconds: float) -> Results:
        """Return the results of an update: numbers by module id, and those of the whole call under `ALL_MODULES`.

        Args:
            trained: Number of trained rows over all learners, by module id.
            counts: Numbers of the whole call, over all learners.
            seconds: Duration of all gradient steps.

        Raises:
            FloatingPointError: a gradient was not finite, with `nan_policy="stop"`.
        """
        stages = self.seconds
        self.seconds = dict.fromkeys(STAGES, 0.0)
        results, self.last_series = report_metrics(self.metrics, self.reducer, self.module.keys(), self._lags)
        self._lags = {}
        for module_id, rows in trained.items():
            numbers = results.setdefault(module_id, {})
            numbers.setdefault("diff_num_grad_updates_vs_sampler_policy", 0)  # if the data have no versions
            numbers.update(
                num_module_steps_trained=rows,
                num_module_steps_trained_lifetime=self.count(f"{module_id}/rows", rows),
                module_train_batch_size_mean=rows / counts["num_minibatches"],
                weights_seq_no=self.weights_seq_no,
                num_trainable_parameters=self.module.num_trainable_parameters(module_id),
            )

        # All learners find the same problems; one of them warns.
        num_without_gradient, problems = self.gradient_watch.end(counts["num_minibatches"])
        for problem in problems if self.reducer.rank == 0 else ():
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
        if num_without_gradient:
            results[ALL_MODULES]["parameters_without_gradient"] = num_without_gradient
        # Ids of the modules whose optimizers `end_update` may warn of (learning rates of 0).
        may_warn_of = trained if self.reducer.rank == 0 else ()
        num_bad = self.optimizers.end_update(results, may_warn_of, self.last_series, self.config_of)
        results[ALL_MODULES].update(
            num_env_steps_trained_lifetime=self.count("env_steps", counts["num_env_steps_trained"]),
            num_gradient_steps_lifetime=self.count("gradient_steps", counts["num_minibatches"]),
            num_bad_gradients=num_bad,
            seconds_gradient_steps=seconds,
            **counts,
            **{f"seconds_{stage}": value for stage, value in stages.items()},
        )
        if num_bad:
            self._report_bad_gradients(num_bad)
        return results

    def _report_bad_gradients(self, count: int) -> None:
        """Report gradients that were not finite, with the name of the first bad tensor.

        With `nan_policy="stop"` it raises `FloatingPointError`; otherwise one learner warns.
        """
        entry, self.first_bad_tensor = first_bad_tensor(self.module, self.registered, self.optimizers)
        policy = self.config_of(entry.module_id).nan_policy
        action = "zero where they were bad" if policy == "zero" else "left out"
        problem = (
            f"{count} gradient steps had a gradient that is not finite ({action}); first bad tensor: "
            f"{self.first_bad_tensor}. Lower the learning rate or look at the batch"
        )
        if policy == "stop":
            raise FloatingPointError(f"{problem}; nan_policy='skip' goes on without such steps")
        if self.reducer.rank == 0:
            warnings.warn(problem, RuntimeWarning, stacklevel=2)

    def count(self, name: str, amount: int) -> int:
        """Add `amount` to a lifetime counter, and return the counter."""
        self.lifetime[name] = self.lifetime.get(name, 0) + amount
        return self.lifetime[name]

    def _count_and_should_warn(self, name: str, amount: int) -> bool:
        """Add `amount` to a lifetime counter, and return whether this learner is to warn of it.

        Rank 0 warns, the first time that the amount is not 0.
        """
        if not amount:
            return False
        is_first = self.count(name, amount) == amount
        return is_first and self.reducer.rank == 0

    # -- state ---

    def register_state(self, name: str, value: T) -> T:
        """Make `value` a part of the learner's state, and return it.

        It may be a tensor, an array, a number, or an object with `get_state` and `set_state`. Raises `ValueError` if
        the name is taken.
        """
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
        """Return the whole state of the learner, or only some components of it. Arrays and tensors are copies.

        `inference_only` leaves out weights that acting does not need. Raises `KeyError` for an unknown component.
        """
        return self._state.get(components, not_components, inference_only=inference_only)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the components in `state`, all or none; `ValueError` with everything that does not fit."""
        self._state.set(state)

    def get_weights(
        self, module_ids: Collection[str] | str | None = None, inference_only: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of weights, `{module_id: {name: array}}`; `KeyError` for an unknown module."""
        return self._state.weights(module_ids, inference_only)

    def acting_weights(self, module_id: str) -> ActingWeights:
        """Return the weights that env runners act with, and the state of observation connectors.

        The weights are not copied: the next update changes them in place.
        """
        observations = self.connectors[module_id].obs.get_state()
        return ActingWeights(self.weights_seq_no, self.module[module_id].get_flat_weights(copy=False), observations)

    def after_update(self, module_id: str) -> tuple[ActingWeights, dict[tuple[str, str], list[float]]]:
        """Return `acting_weights`, and the values of each metric in the gradient steps of the last update."""
        return self.acting_weights(module_id), self.last_series

    # -- checkpoints ---

    def checkpoint_folders(self) -> dict[str, checkpointing.State]:
        """Return the folders of a checkpoint: `learner`, `learner/optimizer`, `learner/rl_module/<module id>`."""
        return self._state.folders()

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder (safetensors and JSON, SHA-256 manifest), and return its absolute path.

        `path=None` makes a temporary folder.
        """
        return str(write_checkpoint(path, self.checkpoint_folders()))

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restore all of a checkpoint, or one component such as `"rl_module/default_policy"`; all or nothing.

        That component may also be read from the folder of a module or of a `MultiRLModule`.

        Raises:
            CheckpointError: the folder is damaged, or is not a checkpoint.
            KeyError: the component is not in the checkpoint.
            ValueError: the state does not fit.
        """
        self._state.restore_from_path(path, component)

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, trust: bool = False, **parts: Unpack[LearnerParts]) -> Self:
        """Return the learner in a checkpoint, built and restored.

        `Learner.from_checkpoint` takes the class that was saved.

        Args:
            path: Folder of the checkpoint.
            trust: Import all objects that the checkpoint names, such as the function of a custom encoder. Without it,
                `UntrustedError` names such an object.
            **parts: Parts that a file cannot hold: `config` (with schedules that are functions), `framework`,
                `connectors` (with statistics), `module_configs`, `modules` by id (wrapped ones, or of classes that
                cannot be imported), `policies_to_train` (a function).

        Raises:
            CheckpointError: the folder is damaged, or is not a checkpoint.
            ValueError: a part has to be passed in. The message says which.
        """
        # The checkpoint has the name of the learner's class. For a class of the running script (`__main__:MyLearner`)
        # names are not looked up, except for the classes that this context allows.
        with handed_in(cls):
            return cls.from_folders(read_checkpoint(Path(path)), names=FileNames(path, {}, trust), **parts)

    @classmethod
    def from_folders(
        cls,
        folders: Mapping[str, checkpointing.State],
        *,
        reducer: Reducer | None = None,
        names: FileNames | None = None,
        **parts: Unpack[LearnerParts],
    ) -> Self:
        """Return the learner in the folders of a checkpoint, built and restored.

        Args:
            folders: Folders of the checkpoint, as `checkpoint_folders` returns them.
            reducer: Communication with other learners; None for a learner that is alone.
            names: Access to the objects that the checkpoint names. None treats the file as not trusted by the user.
            **parts: See `from_checkpoint`.
        """
        # The recipe of a checkpoint has everything that a learner is built from: the name of its class, the sections
        # `training` and `framework`, and the names of custom classes and functions.
        names = FileNames("the checkpoint", {}) if names is None else names
        with claims_of(names.file):  # sizes that the file claims are checked while networks are built
            arguments, class_path, state = checkpointing.arguments_of_saved_learner(folders, names=names, **parts)
        learner_class = cls
        if cls is Learner:
            # A user's signature in a file allows the objects that it names without `trust=True`. The recipe is signed
            # separately from the rest of the checkpoint, so its names are checked with its own signature.
            names = names.of_part(folders["learner"]["recipe"])
            otherwise = "build it and use restore_from_path"
            learner_class = checkpointing.class_in_file(class_path, Learner, otherwise, names)
        learner = learner_class(**arguments, reducer=reducer)
        learner.build()
        learner.set_state(state)
        return learner

    # -- other methods ---

    def apply(self, func: Callable[..., T], *args: object) -> T:
        """Return `func(learner, *args)`."""
        return func(self, *args)

    def shutdown(self) -> None:
        """Release compiled code and graphs. A later update makes them again."""
        self.reset_compiled()

    def _get_tensor_variable(
        self, value: ArrayLike | Tensor, dtype: torch.dtype | None = None, trainable: bool = False
    ) -> Tensor:
        """Return a copy of `value` as a tensor on the learner's device.

        Floats become float32 unless `dtype` says otherwise; whole numbers and bools keep their dtype. With
        `trainable=True` it is an `nn.Parameter`, which `register_optimizer` can take.
        """
        tensor = torch.as_tensor(value, device=self.device).detach().clone()
        if dtype is None and tensor.is_floating_point():
            dtype = torch.float32
        tensor = tensor if dtype is None else tensor.to(dtype)
        if trainable and not tensor.is_floating_point():
            raise ValueError(f"only floats can be trained, not {tensor.dtype}; give dtype=torch.float32")
        return nn.Parameter(tensor) if trainable else tensor

    def to_tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """Return an array or tensor as a tensor on the learner's device, with floats in the learner's dtype.

        It is not copied unless that is necessary.
        """
        if isinstance(value, np.ndarray):
            if not value.dtype.isnative:
                value = value.astype(value.dtype.newbyteorder("="))
            # torch has no negative strides, such as those of `array[::-1]`.
            is_forward = value.flags.c_contiguous or min(value.strides, default=0) >= 0
            value = torch.from_numpy(value if is_forward else value.copy())
        tensor: Tensor = value
        dtype = tensor.dtype
        if dtype.is_floating_point:
            dtype = self.dtype
        return tensor if tensor.dtype == dtype and tensor.device == self.device else tensor.to(self.device, dtype)


def _kernel_computes_loss(cls: type[Learner[Any]]) -> bool:
    """Return whether `loss_has_kernel` was declared for the loss of this class.

    A subclass that overrides `compute_loss_for_module` has another loss, which the kernel of its base class would not
    compute.
    """
    for base in cls.__mro__:
        if "loss_has_kernel" in vars(base):
            return bool(vars(base)["loss_has_kernel"])
        if "compute_loss_for_module" in vars(base):
            return False
    return False
