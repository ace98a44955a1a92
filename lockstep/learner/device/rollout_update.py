"""Update from a rollout on the learner's device: all of it is one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.connectors import NormalizeObs
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.learner.device.sequences import SequenceGrid
from lockstep.learner.many.sharding import Agreement
from lockstep.learner.metrics import FirstValues, Results
from lockstep.learner.minibatches import TensorColumns, UpdateOptions, take_minibatch
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.protocols import SteppedLearner
from lockstep.ops import RunningMoments
from lockstep.ops.graphs import CapturedFunction
from lockstep.tracking.metrics import Metrics


class RolloutOutcome(NamedTuple):
    """Results of the gradient steps on a rollout, as tensors that the host has not read yet."""

    metrics: Metrics
    """Metrics that the steps have logged."""
    num_bad: Tensor
    """Number of gradients that were not finite, 0-d."""
    stopped: Tensor | None
    """Flag for each pass `[passes]`, 1 if the update has stopped by its end; None if the learner never stops early."""
    obs_moments: list[Tensor]
    """Mean of each normalised entry of the observations and sum of squared distances from it, `[2, *entry]`. Empty if
    observations are not normalised."""


class DeviceUpdate:
    """Updates of one learner from tensor rollouts. On a CUDA device each update is one launch of a graph.

    Only the first two updates of a shape run eagerly, since a graph cannot record what libraries prepare in them. The
    third one captures the graph.

    The gradient steps go through the learner's hooks, as on the host: `prepare_batch` once, then for each minibatch the
    forward pass, losses, gradients and optimizers. Rows are permuted on the device with the learner's stream
    `minibatches`.

    A graph has no branches, so passes that `should_stop_passes` ends early are computed all the same. Their steps are
    suspended: they change nothing.
    """

    def __init__(self, learner: SteppedLearner) -> None:
        self.learner = learner
        self._rates: dict[str, Tensor] = {}
        """Learning rates by the key of the optimizer, 0-d. A graph reads them, and the host writes them."""
        self._suspended = torch.zeros((), device=learner.device)
        """0-d, 1 as soon as the passes of the present update are to end."""
        self._key: Any = None
        """Everything that the captured graph depends on; None if there is no valid graph."""
        self._captured: CapturedFunction[RolloutOutcome]
        self._launched: tuple[int, RolloutOutcome] | None = None
        """Number of rows in a minibatch, and outcome of the update that was launched and not yet reported."""

    def forget(self) -> None:
        """Discard the captured graph, since parameters or modules have changed. The next launch captures a new one."""
        self._key = None

    def launch(self, rollout: TensorRollout, options: UpdateOptions) -> None:
        """Begin an update without waiting for it. The next call must be `run` with the same arguments."""
        learner = self.learner
        module_id = self.prepare(options)
        rewards = learner.connectors[module_id].rewards
        if self._launched is not None and rewards is not None:
            # The last update was launched, but `run` was never called, because the collector has refused the rollout
            # (numbers that are not finite). The statistics of rewards on the device include that rollout, and are
            # replaced by those of the host, which do not.
            rewards.copy_to_device()
        num_rows = self.num_rows(module_id, rollout)
        size = min(options.minibatch_size or num_rows, num_rows)
        key = (id(rollout), options.num_epochs, size, options.shuffle_batch_per_epoch, *self.places())
        if key != self._key:
            compute = partial(self._passes, module_id, rollout, size, options)
            generators = [self.stream("minibatches")] if size < num_rows else []
            can_capture = self.can_capture()
            self._captured = CapturedFunction(compute, learner.device, generators, can_capture=can_capture)
            self._key = key
        self._launched = size, self._captured()

    def run(self, rollout: TensorRollout, options: UpdateOptions) -> Results:
        """Take all gradient steps of one update call, unless they were launched already; return the results."""
        if self._launched is None:
            self.launch(rollout, options)
        assert self._launched is not None
        size, outcome = self._launched
        self._launched = None

        passes = options.num_epochs
        if outcome.stopped is not None:
            # The first pass is always taken, and each later one if the flag of the pass before it is not set.
            passes = 1 + int((outcome.stopped[:-1] == 0).sum())
        self.learner.note_sampler(self._module_id(), np.array([rollout.weights_seq_no]))
        num_rows = self.num_rows(self._module_id(), rollout)
        per_pass = num_rows // size
        results = self.report(
            options,
            outcome.metrics,
            outcome.num_bad,
            num_rows=num_rows,
            num_steps=len(rollout),
            size=size,
            per_pass=per_pass,
            passes=passes,
            captured=self._captured,
        )

        # Statistics of connectors are updated after the steps, as on the host: the steps use those of before.
        connectors = self.learner.connectors[self._module_id()]
        if connectors.rewards is not None:
            connectors.rewards.copy_from_device()
        if outcome.obs_moments:
            new_moments = []
            for stacked in outcome.obs_moments:
                mean, squares = stacked.cpu().numpy()
                moments = RunningMoments.of(rollout.size * rollout.num_envs, mean, squares)
                new_moments.append(self.learner.reducer.moments(moments))
            self._normalizer(self._module_id()).merge_moments(new_moments)
        return results

    # -- parts of updates from rollouts and from replay buffers ---

    def prepare(self, options: UpdateOptions) -> str:
        """Update schedules, learning rates and replaced parameters before a launch; return the id of the module."""
        learner = self.learner
        learner.before_gradient_based_update(timesteps=options.timesteps or {})
        learner.follow_replaced_parameters()
        for entry in learner.optimizers if learner.device.type == "cuda" else ():
            rate = self._rates.setdefault(entry.key, torch.zeros((), device=learner.device))
            rate.fill_(entry.optimizer.param_groups[0]["lr"])
        return self._module_id()

    def report(
        self,
        options: UpdateOptions,
        metrics: Metrics,
        num_bad: Tensor,
        *,
        num_rows: int,
        num_steps: int,
        size: int,
        per_pass: int,
        passes: int,
        captured: CapturedFunction[Any],
    ) -> Results:
        """Return the results of an update. The host waits for the device here.

        Args:
            options: Options of the update.
            metrics: Metrics that the gradient steps have logged.
            num_bad: Number of gradients that were not finite, 0-d.
            num_rows: Number of rows in the data. With a memory these are sequences.
            num_steps: Number of transitions in the data.
            size: Number of rows in a minibatch.
            per_pass: Number of minibatches in a pass.
            passes: Number of passes.
            captured: Function that took the steps.
        """
        learner = self.learner
        num_minibatches = passes * per_pass
        learner.metrics.adopt_steps(metrics, num_minibatches, per_pass)
        learner.metrics.log_value((ALL_MODULES, "num_bad_gradients"), num_bad, "item", weight=1)
        counts = {
            "num_env_steps_trained": num_steps * passes,
            "num_minibatches": num_minibatches,
            "num_passes": passes,
            "num_rows_left_out": (num_rows - per_pass * size) * passes,
            "num_updates_skipped": 0,
        }
        learner.end_update(options.timesteps or {}, Agreement({}, num_steps), {}, FirstValues({}))
        # Sequences that were left out count as sequences of average length: which ones they were, the host does not
        # know, and the last ones of a rollout may be shorter.
        num_trained = round(num_minibatches * size * num_steps / num_rows)
        results: Results = learner.summarize({self._module_id(): num_trained}, counts, 0.0)
        results[ALL_MODULES]["seconds_gradient_steps"] = captured.seconds
        return results

    def num_rows(self, module_id: str, rollout: TensorRollout) -> int:
        """Return the number of rows that minibatches are taken from, over all ranks: sequences with a memory."""
        module = self.learner.module[module_id]
        if not module.is_stateful():
            return len(rollout)
        return SequenceGrid.of(module, rollout).num_sequences * rollout.share.number

    def _normalizer(self, module_id: str) -> NormalizeObs:
        """Return the connector whose statistics are computed on the device: the first one, which gets raw
        observations."""
        return cast(NormalizeObs, self.learner.connectors[module_id].obs.connectors[0])

    def _module_id(self) -> str:
        """Return the id of the only module; `ValueError` if there are several."""
        ids = self.learner.learning_modules()
        if len(ids) != 1 or len(self.learner.module) != 1:
            raise ValueError(f"a tensor rollout is of one module, and this learner has {sorted(self.learner.module)}")
        return ids[0]

    def can_capture(self) -> bool:
        """Return whether a graph can hold the steps. It cannot if several learners communicate in them."""
        learner = self.learner
        return learner.reducer.world_size == 1 and all(entry.steps_directly for entry in learner.optimizers)

    def places(self) -> list[int]:
        """Return the addresses of all tensors that a step modifies. A CUDA graph is valid for these addresses only."""
        tensors = [value for value in self.learner.registered.values() if isinstance(value, Tensor)]
        for entry in self.learner.optimizers:
            tensors += (entry.flat.data, entry.flat.grad)
            if entry.is_plain_adam:
                tensors += entry.adam_state()
        return [tensor.data_ptr() for tensor in tensors]

    def stream(self, name: str) -> torch.Generator:
        """Return the generator of a random stream of the learner, on its device."""
        generator: torch.Generator = self.learner.streams.torch(name, self.learner.device)
        return generator

    def permutation(self, num_rows: int) -> Tensor:
        """Return a random permutation of the rows for one pass, `[num_rows]`."""
        return torch.randperm(num_rows, generator=self.stream("minibatches"), device=self.learner.device)

    @contextmanager
    def stepping(self) -> Iterator[Metrics]:
        """Return a context for gradient steps that a graph may hold. Its value is the metrics that they log into.

        These are separate from the learner's, since a graph writes to the same tensors in each launch.
        """
        learner = self.learner
        outer = learner.metrics
        learner.metrics = outer.for_tracing()
        for entry in learner.optimizers:
            entry.rate = self._rates.get(entry.key)
        try:
            yield learner.metrics
        finally:
            learner.metrics = outer
            for entry in learner.optimizers:
                entry.suspended = None
                entry.rate = None

    def step(self, columns: Mapping[str, TensorColumns], indices: Mapping[str, Tensor | None]) -> None:
        """Take one gradient step on the rows `indices` of the columns."""
        learner = self.learner
        if learner.compiled is None or not learner.compiled.run(columns, indices):
            learner._update(take_minibatch(columns, indices))
        learner.after_gradient_step()
        learner.metrics.end_step()

    def step_on_share(self, module_id: str, columns: TensorColumns, rows: Tensor) -> None:
        """Take this rank's part in a gradient step, on its own `rows` of the columns.

        If it has no rows in this step, the part is computed on row 0, which then has no weight.
        """
        stand_ins = frozenset() if len(rows) else frozenset([module_id])
        with self.learner.in_step(len(rows), stand_ins):
            self.step({module_id: columns}, {module_id: rows if len(rows) else rows.new_zeros(1)})

    def num_bad(self) -> Tensor:
        """Return the number of gradients that were not finite, 0-d."""
        return torch.stack([entry.bad_steps for entry in self.learner.optimizers]).sum()

    def _passes(self, module_id: str, rollout: TensorRollout, size: int, options: UpdateOptions) -> RolloutOutcome:
        """Take the gradient steps of all passes, in minibatches of `size` rows. A graph may capture this function."""
        learner = self.learner
        # Rows are numbered over all ranks, sequences as well. This rank has only the rows of its own environments.
        num_rows = self.num_rows(module_id, rollout)
        num_own_rows = rollout.size * rollout.num_envs
        share = rollout.share
        with self.stepping() as metrics, learner.in_step(num_own_rows, frozenset()):
            # A learner that never stops passes early returns False here. One that may returns a tensor, which the host
            # must not read.
            may_stop = isinstance(learner.should_stop_passes(), Tensor)
            stopped: list[Tensor] = []
            self._suspended.zero_()
            for entry in learner.optimizers if may_stop else ():
                entry.suspended = self._suspended

            # A rollout has the columns of trajectories, with tensors for arrays.
            trajectories = cast(Trajectories, rollout)
            columns = {module_id: learner.prepare_batch(trajectories, module_id=module_id)}
            rows = torch.arange(num_rows, device=learner.device)
            for _ in range(options.num_epochs):
                if options.shuffle_batch_per_epoch and size < num_rows:
                    rows = self.permutation(num_rows)
                for start in range(0, num_rows - size + 1, size):
                    index = None if size == num_rows else rows[start : start + size]
                    if share.number > 1 and index is not None:
                        own = index[share.contains(index, rollout.num_envs)]
                        self.step_on_share(module_id, columns[module_id], share.local_rows(own, rollout.num_envs))
                    else:
                        # Either there is one rank, or the one step of a pass has all rows (`index` is None). Then each
                        # rank takes all rows that it has, `size // share.number` of them.
                        with learner.in_step(size // share.number):
                            self.step(columns, {module_id: index})
                metrics.end_pass()
                if not options.shuffle_batch_per_epoch:  # rows that were left out come first in the next pass
                    rows = rows.roll(-(num_rows // size * size))
                if may_stop:
                    torch.maximum(self._suspended, cast(Tensor, learner.should_stop_passes()), out=self._suspended)
                    stopped.append(self._suspended.clone())
            obs_moments = []
            if learner.connectors[module_id].obs.has_statistics:
                normalized = self._normalizer(module_id).normalized_leaves(rollout.obs)
                obs_moments = [moments_of(leaf) for leaf in normalized]
        return RolloutOutcome(metrics, self.num_bad(), torch.stack(stopped) if stopped else None, obs_moments)


def moments_of(obs: Tensor) -> Tensor:
    """Return the mean of `obs` `[T, B, ...]` and the sum of squared distances from it, as `[2, ...]` in float64."""
    rows = obs.flatten(0, 1).to(torch.float64)
    mean = rows.mean(0)
    return torch.stack([mean, (rows - mean).square_().sum(0)])
