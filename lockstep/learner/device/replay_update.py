"""Update from a replay buffer on the learner's device: all its gradient steps are one CUDA graph.

A replay buffer holds the transitions of earlier rollouts, from which each gradient step draws a random sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.new_rows import NewRows
from lockstep.data.row_share import RowShare
from lockstep.data.trees import concat_trees, map_tree, split_rows
from lockstep.learner.device.rollout_update import DeviceUpdate
from lockstep.learner.inputs import errors_of_rows
from lockstep.learner.metrics import Results
from lockstep.learner.minibatches import TensorColumns, UpdateOptions
from lockstep.learner.protocols import SteppedLearner
from lockstep.learner.targets import target_networks
from lockstep.ops.graphs import CapturedFunction
from lockstep.tracking.metrics import Metrics

Counts = Mapping[str, int]
"""Counters of gradient steps by name."""


class ReplayOutcome(NamedTuple):
    """Results of the gradient steps on samples of a buffer, as tensors that the host has not read yet."""

    metrics: Metrics
    """Metrics that the steps have logged."""
    num_bad: Tensor
    """Number of gradients that were not finite, 0-d."""
    samples: list[TensorColumns]
    """Columns of the rows that were drawn, one entry for each draw."""


class RowPriorities(Protocol):
    """Priorities of the rows of a replay buffer on a device."""

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Set the errors `[N]` of rows `[N]`, without waiting for the device."""


class SampledBuffer(Protocol):
    """Replay buffer on a device: the members that an update uses."""

    @property
    def priorities(self) -> RowPriorities | None:
        """Priorities with which rows are drawn; None if all rows are equally likely."""

    @property
    def new_rows(self) -> NewRows | None:
        """Rows that running statistics do not have yet; None if there are no statistics."""

    @property
    def share(self) -> RowShare:
        """Share of the rows that this rank has, if several ranks have one buffer together."""

    @property
    def num_envs(self) -> int:
        """Number of environments whose rows the buffer holds."""

    def draw_indices(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Return random row numbers `[num_rows]` over the rows of all ranks, without waiting for the device."""

    def draw_chances(self, num_rows: int, generator: torch.Generator) -> Tensor | None:
        """Return random numbers `[2, num_rows]` for the goals of rows, or None if rows keep their goals."""

    def rows(self, index: Tensor, chances: Tensor | None = None) -> TensorColumns:
        """Return the columns of this rank's rows `index` `[N]`, with goals by the random numbers `[2, N]` if given."""

    def sample(self, num_rows: int, generator: torch.Generator) -> TensorColumns:
        """Return the columns `[num_rows, ...]` of random rows, without waiting for the device.

        If rows have priorities, the columns include `weights` and `batch_indexes`.
        """


class ReplayUpdate(DeviceUpdate):
    """Updates of one learner from a replay buffer, and from rollouts as in `DeviceUpdate`.

    On a CUDA device the third and all later updates with the same arguments are one launch each, for the reason given
    there. The gradient steps go through the
    learner's hooks, as on the host.

    Rows are drawn with the learner's stream `replay`, and noise with its stream `noise/<module id>`. Both are drawn for
    all steps at once. With priorities they are drawn for each step when the errors of the step before are known.

    Some steps do more than others, such as every second step of TD3 (`Learner.pattern`). The host decides this while
    the steps are captured, so there is one graph for each pattern. The launch of a graph runs no Python, so it does not
    advance the host's counters of gradient steps. They are then advanced by the same amounts as in the capture.
    """

    def __init__(self, learner: SteppedLearner) -> None:
        super().__init__(learner)
        self.graphs: dict[Hashable, CapturedFunction[ReplayOutcome]] = {}
        """Captured gradient steps, by the arguments and the pattern that they depend on."""
        self._increments: dict[Hashable, Counts] = {}
        """By the same keys: the amounts by which one call advances the host's counters."""
        self._known_places: list[int] = []
        """Addresses of the tensors for which `graphs` are valid."""
        self._begun: tuple[tuple[int, int, int], CapturedFunction[ReplayOutcome], ReplayOutcome] | None = None
        """Arguments, function and outcome of the update that was launched and not yet reported."""
        self._samples: list[TensorColumns] = []
        """Samples of the last update."""

    @property
    def sampled(self) -> TensorColumns:
        """Columns of all rows that were drawn in the last update; empty before the first one."""
        names = self._samples[0] if self._samples else ()
        return {name: concat_trees([part[name] for part in self._samples], name) for name in names}

    def forget(self) -> None:
        super().forget()
        self.graphs.clear()

    def launch_steps(self, replay: SampledBuffer, num_steps: int, batch_size: int, options: UpdateOptions) -> None:
        """Begin an update without waiting for it. The next call should be `run_steps` with the same arguments."""
        learner = self.learner
        module_id = self.prepare(options)
        if self._begun is not None:
            # The collector has refused the rows of the last launch (numbers that are not finite), and has taken them
            # back. The statistics on the device include them, and are replaced by the ones of the host.
            learner.connectors[module_id].copy_to_device()
        places = self.places()
        if self._known_places != places:
            self._known_places = places
            self.graphs.clear()

        key = (id(replay), num_steps, batch_size, learner.pattern(num_steps))
        if key not in self.graphs:
            compute = partial(self._steps, module_id, replay, num_steps, batch_size)
            generators = [self.stream("replay")]
            if learner.noise_columns(module_id):
                generators.append(self.stream(f"noise/{module_id}"))
            self.graphs[key] = CapturedFunction(compute, learner.device, generators, can_capture=self.can_capture())

        captured = self.graphs[key]
        before = self.counts()
        takes_graph = captured.is_graph  # read before the call: the call that captures the graph still counts itself
        self._begun = key[:3], captured, captured()
        if takes_graph:
            self._advance_counts(self._increments[key])
        else:
            self._increments[key] = {name: count - before.get(name, 0) for name, count in self.counts().items()}

    def run_steps(self, replay: SampledBuffer, num_steps: int, batch_size: int, options: UpdateOptions) -> Results:
        """Take gradient steps, each on a new sample of `batch_size` rows, and return the results.

        Steps that were launched with the same arguments are not taken again.
        """
        if self._begun is None or self._begun[0] != (id(replay), num_steps, batch_size):
            self.launch_steps(replay, num_steps, batch_size, options)
        assert self._begun is not None
        _, captured, outcome = self._begun
        self._begun = None
        self._samples = outcome.samples
        rows = num_steps * batch_size
        results = self.report(
            options,
            outcome.metrics,
            outcome.num_bad,
            num_rows=rows,
            num_steps=rows,
            size=batch_size,
            per_pass=num_steps,
            passes=1,
            captured=captured,
        )
        if replay.new_rows is not None:
            learner = self.learner
            for module_id in learner.learning_modules():
                learner.connectors[module_id].copy_from_device()
        return results

    def counts(self) -> Counts:
        """Return the counters that the host advances in gradient steps: lifetime counters and steps of targets."""
        targets = {name: target.num_steps for name, target in target_networks(self.learner.registered).items()}
        return {**self.learner.lifetime, **targets}

    def _advance_counts(self, amounts: Counts) -> None:
        """Advance the counters by `amounts`, for steps that a graph has taken."""
        for name, amount in amounts.items():
            if name in self.learner.registered:
                self.learner.registered[name].num_steps += amount
            elif amount:
                self.learner.count(name, amount)

    def sample(self, replay: SampledBuffer, num_rows: int) -> TensorColumns:
        """Return the columns `[num_rows, ...]` of a new sample of a replay buffer."""
        return replay.sample(num_rows, self.stream("replay"))

    def noise(self, module_id: str, num_rows: int) -> dict[str, Tensor]:
        """Return the columns of standard normal numbers `[num_rows, width]` that the loss reads."""
        learner = self.learner
        widths = learner.noise_columns(module_id)
        if not widths:
            return {}
        generator = self.stream(f"noise/{module_id}")
        numbers = torch.randn(num_rows, sum(widths.values()), generator=generator, device=learner.device)
        return dict(zip(widths, learner.to_tensor(numbers).split(list(widths.values()), dim=-1)))

    def _steps(self, module_id: str, replay: SampledBuffer, num_steps: int, batch_size: int) -> ReplayOutcome:
        """Take all gradient steps, each on rows of its own. A graph may capture this function."""
        if replay.new_rows is not None:
            replay.new_rows.join(replay.share)
            self.learner.connectors[module_id].add_new_rows(replay.new_rows)
        if replay.share.number > 1:
            return self._steps_on_share(module_id, replay, num_steps, batch_size)
        learner = self.learner
        samples: list[TensorColumns] = []
        # With priorities, the rows of a step depend on the errors of the step before.
        steps_per_draw = num_steps if replay.priorities is None else 1
        with self.stepping() as metrics, learner.in_step(batch_size):
            for _ in range(0, num_steps, steps_per_draw):
                columns = self._columns(module_id, replay, steps_per_draw * batch_size)
                samples.append(columns)
                loss_columns = {name: part for name, part in columns.items() if name != Columns.BATCH_INDEXES}
                for batch in split_rows(loss_columns, batch_size):
                    self.step({module_id: batch}, {module_id: None})
                if replay.priorities is not None:
                    errors = errors_of_rows(learner.row_errors, module_id, type(learner).__name__)
                    replay.priorities.update(columns[Columns.BATCH_INDEXES], errors)
            metrics.end_pass()
        return ReplayOutcome(metrics, self.num_bad(), samples)

    def _columns(self, module_id: str, replay: SampledBuffer, num_rows: int) -> TensorColumns:
        """Return the columns of a new sample, with noise."""
        return self._network_inputs(module_id, self.sample(replay, num_rows)) | self.noise(module_id, num_rows)

    def _network_inputs(self, module_id: str, columns: TensorColumns) -> TensorColumns:
        """Return the columns in the learner's dtype after all connectors: of observations, rewards, train columns."""
        connectors = self.learner.connectors[module_id]
        images = connectors.images(columns)
        columns |= {name: connectors.obs(columns[name]) for name in (Columns.OBS, Columns.NEXT_OBS)}
        if connectors.rewards is not None:
            columns[Columns.REWARDS] = connectors.rewards.scale_on_device(columns[Columns.REWARDS])
        tensors: TensorColumns = map_tree(self.learner.to_tensor, columns | images)
        # No loss reads the indices of the rows, so connectors do not get them.
        kept = {name: tensors.pop(name) for name in (Columns.BATCH_INDEXES,) if name in tensors}
        return connectors.train_columns(tensors) | kept

    def _steps_on_share(self, module_id: str, replay: SampledBuffer, num_steps: int, batch_size: int) -> ReplayOutcome:
        """Take all gradient steps on a buffer that several ranks have together.

        All ranks draw the same rows, and noise for all of them. Each learns from those rows that it has.
        """
        share = replay.share  # `share.number` is the number of ranks
        num_rows = num_steps * batch_size
        indices = replay.draw_indices(num_rows, self.stream("replay"))
        chances = replay.draw_chances(num_rows, self.stream("replay"))
        is_own = share.contains(indices, replay.num_envs)
        own = share.local_rows(indices[is_own], replay.num_envs)

        # If this rank has no row in any of the steps, row 0 serves as a stand-in.
        if len(own):
            drawn = replay.rows(own, None if chances is None else chances[:, is_own])
        else:
            drawn = replay.rows(own.new_zeros(1))
        columns = self._network_inputs(module_id, drawn)
        for name, noise in self.noise(module_id, num_rows).items():
            columns[name] = noise[is_own] if len(own) else noise[:1]

        # Own rows are in the order of the steps, so the own rows of a step are a range.
        ends = is_own.view(num_steps, batch_size).sum(1).cumsum(0).tolist()
        rows = torch.arange(len(own), device=own.device)
        with self.stepping() as metrics:
            for start, end in itertools.pairwise([0, *ends]):
                self.step_on_share(module_id, columns, rows[start:end])
            metrics.end_pass()
        return ReplayOutcome(metrics, self.num_bad(), [columns])
