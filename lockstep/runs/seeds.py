"""Seeds side by side: each run in a process of its own, one display for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.options.checks import check_wholes
from lockstep.runs.run import Run, prepare_run
from lockstep.trainer.callbacks import Event, RunEnd, Stop
from lockstep.trainer.display import REFRESH_SECONDS, Progress, ProgressDisplay

POLL_SECONDS = 0.1
KILLED = "its process was killed"
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
    stop, waiting = multiprocessing.get_context("spawn").Event(), deque(seeds)
    running: dict[Connection, tuple[BaseProcess, SeedEnded]] = {}
    try:
        while waiting or running:
            if wants_stop():
                stop.set()
                waiting.clear()
            while waiting and len(running) < jobs:
                seed = waiting.popleft()
                work = (stop, config.copy().debugging(seed=seed), root, init_from, tuple(sources), describe)
                begun, process = _start_seed(work)
                running[begun] = process, SeedEnded(seed, None, KILLED)
            for channel in wait(list(running), timeout=POLL_SECONDS):
                assert isinstance(channel, Connection)
                process, last = running[channel]
                try:
                    event: SeedEvent = channel.recv()
                except (EOFError, OSError):
                    process.join()
                    del running[channel]
                    yield last
                    continue
                if isinstance(event, SeedEnded):
                    running[channel] = process, event  # told when the process has ended
                    continue
                if isinstance(event, SeedBegun):
                    running[channel] = process, SeedEnded(event.seed, event.path, KILLED)
                yield event
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _start_seed(work: tuple[Any, ...]) -> tuple[Connection, BaseProcess]:
    """Start the process of a seed and return what it tells of itself through. `ValueError`: it cannot be sent there."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_seed, args=(theirs, *work))
    try:
        process.start()
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"the configuration cannot be sent to another process ({error}); give jobs=1, or put classes and functions "
            "into a file of their own"
        ) from error
    theirs.close()
    return ours, process


def _run_seed(
    channel: Connection,
    stop: Any,
    config: AlgorithmConfig,
    root: str | Path,
    init_from: str | Path | None,
    sources: Sequence[str],
    describe: Describe | None,
) -> None:
    """Make one run in this process, and tell of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the process above decides
    seed, path = int(config.debugging.seed or 0), None
    error = ""
    try:
        reporter = _Reporter(seed, channel, stop)
        run = prepare_run(config, root, callbacks=[reporter], init_from=init_from, sources=sources)
        path = run.folder.path
        reporter.tell(SeedBegun(seed, path, {} if describe is None else describe(run, config)))
        run.finish()
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    with suppress(OSError):
        channel.send(SeedEnded(seed, path, error))


class _Reporter(ProgressDisplay):
    """Tells another process of a run; asks for its end when that process wants it, or is gone."""

    def __init__(self, seed: int, channel: Connection, stop: Any) -> None:
        super().__init__(live=False)
        self._seed, self._channel, self._stop = seed, channel, stop
        self._parent, self._told = os.getppid(), 0.0

    def on_event(self, event: Event) -> Stop:
        super().on_event(event)
        if self.seconds - self._told >= REFRESH_SECONDS or isinstance(event, RunEnd):
            self._told = self.seconds
            self.tell(SeedProgress(self._seed, self.progress))
        return "interrupted" if self._stop.is_set() or os.getppid() != self._parent else None

    def say(self, text: str) -> None:
        """Tell a line of an epoch or of an evaluation."""
        self.tell(SeedProgress(self._seed, self.progress, text))

    def tell(self, event: SeedEvent) -> None:
        """Send an event; nobody listens where the process above is gone."""
        with suppress(OSError):
            self._channel.send(event)
