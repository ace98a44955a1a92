"""An update from a rollout that lies on the learner's device: all of it is one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.connectors import NormalizeObs
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.learner.many.sharding import Agreement
from lockstep.learner.metrics import FirstValues, Results
from lockstep.learner.minibatches import TensorColumns, UpdateOptions, take_minibatch
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.protocols import SteppedLearner
from lockstep.ops import RunningMoments
from lockstep.ops.graphs import CapturedFunction
from lockstep.tracking.metrics import Metrics

Outcome = tuple[Metrics, Tensor, Tensor | None, Tensor | None]
"""of an update: what was logged; how many gradients were not finite; where passes may be stopped, for each one 1 if no
step is taken after it; and where observations are normalised, mean and squared distances `[2, *obs]` of the new ones"""


class DeviceUpdate:
    """Updates one learner from tensor rollouts; the third and all later updates of one shape are one launch.

    The learner's own hooks compute it, as they do on the host: `prepare_batch` once, then for each minibatch the
    forward pass, losses, gradients and optimizers. Rows are permuted on the device, with the stream `minibatches` of
    the learner. Passes that `should_stop_passes` ends are computed and leave everything as it was.
    """

    def __init__(self, learner: SteppedLearner) -> None:
        self.learner = learner
        self._rates: dict[str, Tensor] = {}
        """0-d learning rates by optimizer"""
        self._hold = torch.zeros((), device=learner.device)
        """0-d, 1 once the passes of an update are to end"""
        self._key: Any = None
        self._captured: CapturedFunction[Outcome]
        self._launched: tuple[int, Outcome] | None = None
        """rows of a minibatch and outcome of an update that is under way"""

    def forget(self) -> None:
        """Capture anew with the next launch, after parameters or modules have changed."""
        self._key = None

    def launch(self, rollout: TensorRollout, options: UpdateOptions) -> None:
        """Begin an update that `run` is asked for next, with the same arguments; do not wait for it."""
        learner, module_id = self.learner, self.prepare(options)
        rewards = learner.connectors[module_id].rewards
        if self._launched is not None and rewards is not None:  # of a rollout that was refused
            rewards.lead_device()
        size = min(options.minibatch_size or len(rollout), len(rollout))
        key = (id(rollout), options.num_epochs, size, options.shuffle_batch_per_epoch, *self.places())
        if key != self._key:
            compute = partial(self._passes, module_id, rollout, size, options)
            generators = [self.stream("minibatches")] if size < len(rollout) else []
            can_capture = self.can_capture()
            self._key, self._captured = (
                key,
                CapturedFunction(compute, learner.device, generators, can_capture=can_capture),
            )
        self._launched = size, self._captured()

    def run(self, rollout: TensorRollout, options: UpdateOptions) -> Results:
        """Take all gradient steps of one update call, unless they were launched already; report it."""
        if self._launched is None:
            self.launch(rollout, options)
        assert self._launched is not None
        (size, (logged, num_bad, stopped, seen)), self._launched = self._launched, None
        passes = options.num_epochs if stopped is None else 1 + int((stopped[:-1] == 0).sum())
        self.learner.note_sampler(self._module_id(), np.array([rollout.weights_seq_no]))
        per_pass = len(rollout) // size
        results = self.report(options, logged, num_bad, len(rollout), size, per_pass, passes, self._captured)
        connectors = self.learner.connectors[self._module_id()]
        if connectors.rewards is not None:
            connectors.rewards.follow_device()
        if seen is not None:
            mean, squares = seen.cpu().numpy()
            moments = RunningMoments.of(rollout.size * rollout.num_envs, mean, squares)
            normalizer = cast(NormalizeObs, connectors.obs.connectors[0])
            normalizer.take_in(self.learner.reducer.moments(moments))
        return results

    # -- what updates from rollouts and from replay buffers share ---

    def prepare(self, options: UpdateOptions) -> str:
        """Prepare the host for a launch: schedules, learning rates, parameters that were replaced. Returns the id of
        the module that learns.
        """
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
        logged: Metrics,
        num_bad: Tensor,
        num_rows: int,
        size: int,
        per_pass: int,
        passes: int,
        captured: CapturedFunction[Any],
    ) -> Results:
        """Report `passes` over `num_rows` rows, of `per_pass` minibatches of `size` rows each; the host waits here."""
        learner, num_minibatches = self.learner, passes * per_pass
        learner.metrics.adopt_steps(logged, num_minibatches, per_pass)
        learner.metrics.log_value((ALL_MODULES, "num_bad_gradients"), num_bad, "item", weight=1)
        counts = {
            "num_env_steps_trained": num_rows * passes,
            "num_minibatches": num_minibatches,
            "num_passes": passes,
            "num_rows_left_out": (num_rows - per_pass * size) * passes,
            "num_updates_skipped": 0,
        }
        learner.end_update(options.timesteps or {}, Agreement({}, num_rows), {}, FirstValues({}))
        results: Results = learner.summarize({self._module_id(): num_minibatches * size}, counts, 0.0)
        results[ALL_MODULES]["seconds_gradient_steps"] = captured.seconds
        return results

    def _module_id(self) -> str:
        ids = self.learner.learning_modules()
        if len(ids) != 1 or len(self.learner.module) != 1:
            raise ValueError(f"a tensor rollout is of one module, and this learner has {sorted(self.learner.module)}")
        return ids[0]

    def can_capture(self) -> bool:
        """Return whether a graph can hold the steps: not where learners meet in them."""
        learner = self.learner
        return learner.reducer.world_size == 1 and all(entry.steps_directly for entry in learner.optimizers)

    def places(self) -> list[int]:
        """Return the addresses of all tensors that a step modifies. A CUDA graph is valid for these addresses only."""
        tensors = [value for value in self.learner.registered.values() if isinstance(value, Tensor)]
        for entry in self.learner.optimizers:
            tensors += (entry.flat.data, entry.flat.grad, *(entry.adam_state() if entry.is_plain_adam else ()))
        return [tensor.data_ptr() for tensor in tensors]

    def stream(self, name: str) -> torch.Generator:
        """Return the random numbers of a stream of the learner, on its device."""
        generator: torch.Generator = self.learner.streams.torch(name, self.learner.device)
        return generator

    def permutation(self, num_rows: int) -> Tensor:
        """Return the rows of a pass in the order in which it goes through them."""
        return torch.randperm(num_rows, generator=self.stream("minibatches"), device=self.learner.device)

    @contextmanager
    def stepping(self) -> Iterator[Metrics]:
        """Return a context for gradient steps that a graph may hold; it gives what they log into."""
        learner, outer = self.learner, self.learner.metrics
        learner.metrics = outer.for_tracing()
        for entry in learner.optimizers:
            entry.rate = self._rates.get(entry.key)
        try:
            yield learner.metrics
        finally:
            learner.metrics = outer
            for entry in learner.optimizers:
                entry.hold = entry.rate = None

    def step(self, columns: Mapping[str, TensorColumns], indices: Mapping[str, Tensor | None]) -> None:
        """Take one gradient step on rows of the columns."""
        learner = self.learner
        if learner.compiled is None or not learner.compiled.run(columns, indices):
            learner._update(take_minibatch(columns, indices))
        learner.after_gradient_step()
        learner.metrics.end_step()

    def step_on_share(self, module_id: str, columns: TensorColumns, rows: Tensor) -> None:
        """Take one gradient step that several ranks share, on own `rows` of the columns; where these are none, on a row
        that weighs nothing.
        """
        stand_ins = frozenset() if len(rows) else frozenset([module_id])
        with self.learner.in_step(len(rows), stand_ins):
            self.step({module_id: columns}, {module_id: rows if len(rows) else rows.new_zeros(1)})

    def num_bad(self) -> Tensor:
        """Return how many gradients were not finite, 0-d."""
        return torch.stack([entry.bad_steps for entry in self.learner.optimizers]).sum()

    def _passes(self, module_id: str, rollout: TensorRollout, size: int, options: UpdateOptions) -> Outcome:
        """Compute all passes."""
        learner, num_rows, share = self.learner, len(rollout), rollout.share
        with self.stepping() as metrics, learner.in_step(rollout.size * rollout.num_envs, frozenset()):
            may_stop, held = isinstance(learner.should_stop_passes(), Tensor), list[Tensor]()
            self._hold.zero_()
            for entry in learner.optimizers if may_stop else ():
                entry.hold = self._hold
            trajectories = cast(Trajectories, rollout)  # of tensors, with the same columns
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
                        with learner.in_step(size // share.number):  # the pass in one step has rows of every rank
                            self.step(columns, {module_id: index})
                metrics.end_pass()
                if not options.shuffle_batch_per_epoch:  # what was left out comes first in the next pass
                    rows = rows.roll(-(num_rows // size * size))
                if may_stop:
                    torch.maximum(self._hold, cast(Tensor, learner.should_stop_passes()), out=self._hold)
                    held.append(self._hold.clone())
            seen = moments_of(rollout.obs) if learner.connectors[module_id].obs.has_statistics else None
        return metrics, self.num_bad(), torch.stack(held) if held else None, seen


def moments_of(obs: Tensor) -> Tensor:
    """Return the mean of `obs` `[T, B, ...]` and the sum of squared distances from it, `[2, ...]` in float64."""
    rows = obs.flatten(0, 1).to(torch.float64)
    mean = rows.mean(0)
    return torch.stack([mean, (rows - mean).square_().sum(0)])
