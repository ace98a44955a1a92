"""Seeds side by side: each run in a process of its own, one display for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.options.checks import check_wholes
from lockstep.runs.pool import KILLED, PoolWorker, ProcessPool, UnsendableError
from lockstep.runs.run import Run, prepare_run
from lockstep.trainer.callbacks import Event, RunEnd, Stop
from lockstep.trainer.display import REFRESH_SECONDS, Progress, ProgressDisplay

POLL_SECONDS = 0.1
Describe = Callable[[Run, AlgorithmConfig], Mapping[str, str]]


@dataclass(frozen=True)
class SeedBegun:
    """A seed's run has its folder and is about to train."""

    seed: int
    path: Path
    facts: Mapping[str, str] = field(default_factory=dict)
    """what `describe` said"""


@dataclass(frozen=True)
class SeedProgress:
    """A seed has come so far; `line` is that of an epoch or an evaluation."""

    seed: int
    progress: Progress
    line: str = ""


@dataclass(frozen=True)
class SeedEnded:
    """A seed's run is over."""

    seed: int
    path: Path | None
    """its folder; None where none was made"""
    error: str = ""
    """what ended it, where that was an error"""


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
    """Train a configuration with several seeds, `jobs` of them at once, and yield what happens.

    Each seed is a run as `prepare_run` makes it, in a process of its own, with the bits that it has alone. One that
    fails does not end the others. `describe` is called with each run in its process. When `wants_stop()` is true no
    further seed begins, and those under way end after their update, with a checkpoint. An iterator that is closed early
    ends the processes at once.

    Raises `ValueError`: the configuration uses Ray, or cannot be sent to another process.
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
            of_seed = config.copy().debugging(seed=seed)
            tasks[pool.submit(_run_seed, root, of_seed, init_from, tuple(sources), describe)] = seed
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
                    error = "" if task.error is None else f"{type(task.error).__name__}: {task.error}"
                    if task.was_killed:
                        error = KILLED
                    yield SeedEnded(seed, paths[seed], error)
    except UnsendableError as error:
        raise ValueError(
            f"the configuration cannot be sent to another process ({error.__cause__}); give jobs=1, or put classes and "
            "functions into a file of their own"
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
    """Make one run in this process, and report on it: first its folder, then events."""
    seed = int(config.debugging.seed or 0)
    reporter = _Reporter(seed, worker)
    run = prepare_run(config, root, callbacks=[reporter], init_from=init_from, sources=sources)
    # On its own, so that the end of the seed names its folder even if it comes before the run begins.
    worker.send(run.folder.path)
    facts = {} if describe is None else describe(run, config)
    worker.send(SeedBegun(seed, run.folder.path, facts))
    run.finish()


class _Reporter(ProgressDisplay):
    """Reports on a run to the process of the pool, and stops the run with the pool."""

    def __init__(self, seed: int, worker: PoolWorker) -> None:
        super().__init__(live=False)
        self._seed = seed
        self._worker = worker
        self._reported = 0.0

    def on_event(self, event: Event) -> Stop:
        super().on_event(event)
        if self.seconds - self._reported >= REFRESH_SECONDS or isinstance(event, RunEnd):
            self._reported = self.seconds
            self._worker.send(SeedProgress(self._seed, self.progress))
        return "interrupted" if self._worker.wants_stop else None

    def say(self, text: str) -> None:
        """Report the line of an epoch or of an evaluation."""
        self._worker.send(SeedProgress(self._seed, self.progress, text))
