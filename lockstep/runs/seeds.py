"""Training of one configuration with several seeds at once, each run in its own process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.options.checks import check_wholes
from lockstep.runs.pool import PoolWorker, ProcessPool, UnsendableError
from lockstep.runs.run import Run, prepare_run
from lockstep.trainer.callbacks import Event, RunEnd, Stop
from lockstep.trainer.display import REFRESH_SECONDS, Progress, ProgressDisplay

POLL_SECONDS = 0.1
"""Longest time between two calls of `wants_stop`."""
Describe = Callable[[Run, AlgorithmConfig], Mapping[str, str]]
"""Function that returns facts about a run, by name, for the event `SeedBegun`."""


@dataclass(frozen=True)
class SeedBegun:
    """Event: the run of a seed has its folder and is about to train."""

    seed: int
    path: Path
    """Folder of the run."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Return value of the `describe` function; empty without one."""


@dataclass(frozen=True)
class SeedProgress:
    """Event: the run of a seed has progressed."""

    seed: int
    progress: Progress
    line: str = ""
    """Text of the epoch or evaluation that has just ended; empty between them."""


@dataclass(frozen=True)
class SeedEnded:
    """Event: the run of a seed has ended."""

    seed: int
    path: Path | None
    """Folder of the run; None if the run failed before it had one."""
    error: str = ""
    """Class and message of the error that ended the run; empty if the run ended without one."""


SeedEvent = SeedBegun | SeedProgress | SeedEnded


def run_seeds(
    config: AlgorithmConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    root: str | Path = "runs",
    init_from: str | Path | None = None,
    sources: Sequence[str] = (),
    describe: Describe | None = None,
    wants_stop: Callable[[], bool] = bool,
) -> Generator[SeedEvent, None, None]:
    """Train a configuration with several seeds, `jobs` of them at once, and yield the events of their runs.

    Each seed is a run of `prepare_run` in its own process, with the same bits as if it ran alone. A run that fails does
    not end the other runs. Closing the iterator early kills the processes.

    Args:
        config: Configuration of all runs; only the seed differs.
        seeds: Seeds to train, in this order.
        jobs: Largest number of runs at a time.
        root: Folder that the runs' folders are made in.
        init_from: Run or checkpoint with the first weights, see `prepare_run`.
        sources: Where the settings come from, in words, see `prepare_run`.
        describe: Function that is called with each run and its configuration, in the run's process. Its return value
            becomes `SeedBegun.facts`.
        wants_stop: Function that is called a few times a second. Once it returns true, no further seed begins, and the
            running ones end after their current update, with a checkpoint.

    Raises:
        ValueError: the configuration uses Ray, or cannot be sent to another process.
    """
    check_wholes(jobs=jobs)
    if config.learners.num_learners or config.env_runners.num_env_runners:
        raise ValueError(
            "seeds side by side are not allowed with num_learners or num_env_runners, which share the machine already; "
            "give jobs=1, or 0 of both"
        )
    paths: dict[int, Path | None] = dict.fromkeys(seeds)
    pool = ProcessPool(jobs)
    try:
        tasks = {}
        for seed in seeds:
            seed_config = config.copy().debugging(seed=seed)
            task = pool.submit(_run_seed, root, seed_config, init_from, tuple(sources), describe)
            tasks[task] = seed

        while pool.is_working:
            if wants_stop():
                pool.stop()
            for task in pool.wait(POLL_SECONDS):
                seed = tasks[task]
                while task.messages:
                    message: Path | SeedEvent = task.messages.popleft()
                    if isinstance(message, Path):
                        paths[seed] = message
                    else:
                        yield message
                if task.is_done:
                    yield SeedEnded(seed, paths[seed], task.error_text)
    except UnsendableError as error:
        raise ValueError(
            f"the configuration cannot be sent to another process ({error.__cause__}); give jobs=1, or put classes and "
            "functions into a separate file"
        ) from error
    finally:
        pool.terminate()


def _run_seed(
    root: str | Path,
    config: AlgorithmConfig,
    init_from: str | Path | None,
    sources: Sequence[str],
    describe: Describe | None,
    worker: PoolWorker,
) -> None:
    """Train one seed in this process. Send the path of the run's folder first, then the events."""
    seed = int(config.debugging.seed or 0)
    reporter = _SeedReporter(seed, worker)
    run = prepare_run(config, root, callbacks=[reporter], init_from=init_from, sources=sources)

    # Sent before the event `SeedBegun`: if `describe` fails, `SeedEnded` names the folder all the same.
    worker.send(run.folder.path)
    facts = {} if describe is None else describe(run, config)
    worker.send(SeedBegun(seed, run.folder.path, facts))
    run.finish()


class _SeedReporter(ProgressDisplay):
    """Display that sends its progress and lines to the pool instead of showing them. Stops the run with the pool."""

    def __init__(self, seed: int, worker: PoolWorker) -> None:
        super().__init__(live=False)
        self._seed = seed
        self._worker = worker
        self._last_sent = 0.0
        """Time of the last progress message, in seconds since the run began."""

    def on_event(self, event: Event) -> Stop:
        super().on_event(event)
        # Sending at each event would slow down runs whose updates take less than a millisecond.
        if self.seconds - self._last_sent >= REFRESH_SECONDS:
            self._send_progress()
        return "interrupted" if self._worker.wants_stop else None

    def on_run_end(self, event: RunEnd) -> None:
        super().on_run_end(event)
        self._send_progress()

    def _send_progress(self) -> None:
        self._last_sent = self.seconds
        self._worker.send(SeedProgress(self._seed, self.progress))

    def say(self, text: str) -> None:
        """Send the line of an epoch or of an evaluation to the pool."""
        self._worker.send(SeedProgress(self._seed, self.progress, text))
