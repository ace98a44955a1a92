"""Updates from a replay buffer that lies on the learner's device: all gradient steps of one are one CUDA graph."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import RowShare
from lockstep.learner.device.rollout_update import DeviceUpdate
from lockstep.learner.inputs import errors_of_rows
from lockstep.learner.metrics import Results
from lockstep.learner.minibatches import TensorColumns, UpdateOptions
from lockstep.learner.protocols import SteppedLearner
from lockstep.learner.targets import target_networks
from lockstep.ops.graphs import CapturedFunction
from lockstep.tracking.metrics import Metrics

Outcome = tuple[Metrics, Tensor, list[TensorColumns]]
"""of an update: what was logged, how many gradients were not finite, the rows that were drawn, draw by draw"""
Counts = Mapping[str, int]


class Prioritized(Protocol):
    """The priorities of rows on a device, as an update needs them."""

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Set new errors `[N]` of rows `[N]`, without a wait for the device."""


class Sampled(Protocol):
    """A replay buffer on a device, as an update needs it."""

    @property
    def priorities(self) -> Prioritized | None:
        """What rows are drawn by; None where all have equal chances."""

    @property
    def share(self) -> RowShare:
        """Which rows these are, where several ranks have a buffer together."""

    @property
    def num_envs(self) -> int:
        """Environments whose rows these are."""

    def draw_indices(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Return rows `[num_rows]`, numbered over all ranks, without a wait for the device."""

    def rows(self, index: Tensor) -> dict[str, Tensor]:
        """Return columns of own rows `[N]`."""

    def sample(self, num_rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return columns `[num_rows, ...]` of rows drawn with the generator, without a wait for the device.

        Where they have priorities, `weights` and `batch_indexes` are among them.
        """


class ReplayUpdate(DeviceUpdate):
    """Updates one learner from a replay buffer (and from rollouts, as `DeviceUpdate` does); the third and all later
    updates of one kind are one launch.

    The learner's own hooks compute it, as they do on the host. The rows of all steps are drawn with its stream
    `replay`, and the noise that it asks for with `noise/<module id>`: of all steps at once, or, by priority, of each
    step when the errors of the one before it are known. What steps do besides others (`Learner.pattern`)
    the host decides when they are captured, so there is a graph for each pattern; what it counts meanwhile is counted
    again at each launch.
    """

    def __init__(self, learner: SteppedLearner) -> None:
        super().__init__(learner)
        self.graphs: dict[Hashable, CapturedFunction[Outcome]] = {}
        """by what they depend on"""
        self._counted: dict[Hashable, Counts] = {}
        """what the host counts in one call of each of them"""
        self._known_places: list[int] = []
        self._begun: tuple[tuple[int, int, int], CapturedFunction[Outcome], Outcome] | None = None
        """an update that is under way, and what it was launched for"""
        self._drawn: list[TensorColumns] = []
        """the rows of the last update"""

    @property
    def sampled(self) -> TensorColumns:
        """The rows of the last update."""
        return {name: torch.cat([part[name] for part in self._drawn]) for name in (self._drawn or [{}])[0]}

    def forget(self) -> None:
        super().forget()
        self.graphs.clear()

    def launch_steps(self, replay: Sampled, num_steps: int, batch_size: int, options: UpdateOptions) -> None:
        """Begin an update that `run_steps` is asked for next, with the same arguments; do not wait for it."""
        learner, module_id = self.learner, self.prepare(options)
        if self._known_places != (places := self.places()):
            self._known_places = places
            self.graphs.clear()
        key = (id(replay), num_steps, batch_size, learner.pattern(num_steps))
        if key not in self.graphs:
            compute = partial(self._steps, module_id, replay, num_steps, batch_size)
            generators = [self.stream("replay")]
            if learner.noise_columns(module_id):
                generators.append(self.stream(f"noise/{module_id}"))
            self.graphs[key] = CapturedFunction(compute, learner.device, generators, can_capture=self.can_capture())
        captured, before = self.graphs[key], self.counts()
        is_launch = captured.is_graph
        self._begun = key[:3], captured, captured()
        if is_launch:
            self._count(self._counted[key])
        else:
            self._counted[key] = {name: count - before.get(name, 0) for name, count in self.counts().items()}

    def run_steps(self, replay: Sampled, num_steps: int, batch_size: int, options: UpdateOptions) -> Results:
        """Take gradient steps, each on a fresh sample of `batch_size` rows, unless they were launched already; report
        them.
        """
        if self._begun is None or self._begun[0] != (id(replay), num_steps, batch_size):
            self.launch_steps(replay, num_steps, batch_size, options)
        assert self._begun is not None
        (_, captured, (logged, num_bad, self._drawn)), self._begun = self._begun, None
        rows = num_steps * batch_size
        return self.report(options, logged, num_bad, rows, batch_size, num_steps, 1, captured)

    def counts(self) -> Counts:
        """Return what the host counts in gradient steps: lifetime counters, and the steps of target networks."""
        targets = {name: target.num_steps for name, target in target_networks(self.learner.registered).items()}
        return {**self.learner.lifetime, **targets}

    def _count(self, amounts: Counts) -> None:
        """Count what the host did not see, in steps that a graph has taken."""
        for name, amount in amounts.items():
            if name in self.learner.registered:
                self.learner.registered[name].num_steps += amount
            elif amount:
                self.learner.count(name, amount)

    def sample(self, replay: Sampled, num_rows: int) -> dict[str, Tensor]:
        """Return columns `[num_rows, ...]` of a replay buffer, drawn anew."""
        return replay.sample(num_rows, self.stream("replay"))

    def noise(self, module_id: str, num_rows: int) -> dict[str, Tensor]:
        """Return the columns of standard normal numbers `[num_rows, width]` that the learner asks for."""
        learner, widths = self.learner, self.learner.noise_columns(module_id)
        if not widths:
            return {}
        generator = self.stream(f"noise/{module_id}")
        numbers = torch.randn(num_rows, sum(widths.values()), generator=generator, device=learner.device)
        return dict(zip(widths, learner.to_tensor(numbers).split(list(widths.values()), dim=-1)))

    def _steps(self, module_id: str, replay: Sampled, num_steps: int, batch_size: int) -> Outcome:
        """Compute all gradient steps, each on rows of its own."""
        if replay.share.number > 1:
            return self._steps_on_share(module_id, replay, num_steps, batch_size)
        learner, drawn = self.learner, list[TensorColumns]()
        at_once = num_steps if replay.priorities is None else 1
        with self.stepping() as metrics, learner.in_step(batch_size):
            for _ in range(0, num_steps, at_once):
                columns = self._columns(module_id, replay, at_once * batch_size)
                drawn.append(columns)
                learned = {name: part for name, part in columns.items() if name != Columns.BATCH_INDEXES}
                parts = {name: column.split(batch_size) for name, column in learned.items()}
                for i in range(at_once):
                    self.step({module_id: {name: part[i] for name, part in parts.items()}}, {module_id: None})
                if replay.priorities is not None:
                    errors = errors_of_rows(learner.row_errors, module_id, type(learner).__name__)
                    replay.priorities.update(columns[Columns.BATCH_INDEXES], errors)
            metrics.end_pass()
        return metrics, self.num_bad(), drawn

    def _columns(self, module_id: str, replay: Sampled, num_rows: int) -> TensorColumns:
        """Draw rows and noise; return them as the network sees them."""
        return self._seen(module_id, self.sample(replay, num_rows)) | self.noise(module_id, num_rows)

    def _seen(self, module_id: str, columns: dict[str, Tensor]) -> TensorColumns:
        """Return columns as the network sees them."""
        see = self.learner.connectors[module_id].obs
        columns |= {name: see(columns[name]) for name in (Columns.OBS, Columns.NEXT_OBS)}
        return {name: self.learner.to_tensor(column) for name, column in columns.items()}

    def _steps_on_share(self, module_id: str, replay: Sampled, num_steps: int, batch_size: int) -> Outcome:
        """Compute the gradient steps of a buffer that several ranks have: all draw the same rows, and noise for all of
        them, and each learns from its own.
        """
        share, number = replay.share, num_steps * batch_size
        steps = replay.draw_indices(number, self.stream("replay"))
        is_own = share.contains(steps, replay.num_envs)
        own = share.local_rows(steps[is_own], replay.num_envs)
        columns = self._seen(module_id, replay.rows(own if len(own) else own.new_zeros(1)))
        for name, noise in self.noise(module_id, number).items():
            columns[name] = noise[is_own] if len(own) else noise[:1]
        ends = is_own.view(num_steps, batch_size).sum(1).cumsum(0).tolist()
        rows = torch.arange(len(own), device=own.device)
        with self.stepping() as metrics:
            for start, end in itertools.pairwise([0, *ends]):
                self.step_on_share(module_id, columns, rows[start:end])
            metrics.end_pass()
        return metrics, self.num_bad(), [columns]
