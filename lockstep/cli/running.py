"""What several commands share: the check before a run, its end, and how it is interrupted."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

from lockstep.builder import AlgorithmConfig
from lockstep.cli.exit_codes import FAILED, WRONG_INPUT
from lockstep.cli.plan import Plan
from lockstep.cli.terminal import say, say_facts, show_result, show_seeds, shown_path
from lockstep.envs.check import check_environment
from lockstep.envs.errors import EnvironmentStepError
from lockstep.envs.make import name_of_env
from lockstep.policy import Policy
from lockstep.runs.run import Run
from lockstep.runs.seeds_display import SeedsDisplay
from lockstep.state.names import name_of
from lockstep.trainer import Callback, ProgressDisplay
from lockstep.trainer.callbacks import Event, Stop

USER_ERRORS = (ValueError, TypeError, KeyError, OSError, ImportError)
_OWN = f"{os.sep}lockstep{os.sep}"
CHECK_STEPS, CHECK_SECONDS = 200, 1.0
TRAINABLE = ("observation_outside", "seed_ignored", "limit_ignored")
"""findings of `check_environment` that are errors of the environment, but can be trained on: shown, not refused"""


class CommandFailedError(Exception):
    """Ends a command with a message on stderr and an exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, message: str, code: int = WRONG_INPUT) -> None:
        super().__init__(message)
        self.code = code


def refuse_broken_environment(config: AlgorithmConfig) -> None:
    """Raise `ValueError` for a broken environment, before a run's folder is made; print lesser findings."""
    if config.env_runners.vectorize_mode in ("vector", "envpool"):
        return  # these are no single environments; their boundary checks what it gets
    findings = check_environment(
        config.environment.env,
        env_config=config.environment.env_config,
        num_steps=CHECK_STEPS,
        max_seconds=CHECK_SECONDS,
    )
    broken = [finding for finding in findings if finding.level == "error" and finding.code not in TRAINABLE]
    if broken:
        lines = "\n".join(f"  {finding.message}" for finding in broken)
        raise ValueError(f"the environment is broken (lockstep doctor looks closer, --no-check skips this):\n{lines}")
    scaled = {
        "reward_scale": config.environment.normalize_rewards,
        "observation_scale": config.environment.normalize_observations,
    }
    for finding in findings:
        if finding.level != "info" and not scaled.get(finding.code):
            say(f"warning: the environment: {finding.message}")


def policy_text(policy: Policy, path: Path) -> str:
    """Return where a policy lies, its algorithm, and the environment as the command line takes it."""
    env = policy.config.environment.env
    name = name_of(env) if hasattr(env, "__qualname__") else name_of_env(env)
    return f"{shown_path(path)} ({policy.config.algorithm} on {name})"


def plan_facts(run: Run, config: AlgorithmConfig) -> dict[str, str]:
    """Return the plan of a run, for `say_facts`."""
    return Plan(run.trainer, config).facts(run.sources)


def show_seed_runs(folders: Sequence[Path]) -> None:
    """Print a table of runs, and how to draw them."""
    if folders:
        say()
        show_seeds(folders)
        say(f"curves: lockstep plot {' '.join(shown_path(folder) for folder in folders)} -o curves.png")


class Interruption(Callback):
    """While entered, SIGINT and SIGTERM ask the run to stop where it can go on bit by bit: after an update.

    Before the run has begun they end the process as usual. A second signal ends the run without a new checkpoint.
    """

    def __init__(self, display: ProgressDisplay | SeedsDisplay | None = None) -> None:
        self.signal: int | None = None
        self._display = display
        self._running = False
        self._owner = os.getpid()
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell counts; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def begin(self) -> None:
        """Note that there is something to stop."""
        self._running = True

    def __enter__(self) -> Self:
        for code in (signal.SIGINT, signal.SIGTERM):
            self._before[code] = signal.signal(code, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for code, handler in self._before.items():
            signal.signal(code, handler)

    def _handle(self, code: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # processes of environments are ended by their owner
        if self.signal is not None:
            raise SystemExit(128 + code)
        self.signal = code
        if not self._running:
            raise KeyboardInterrupt
        note = "stopping after this update; once more stops at once"
        if self._display is not None and self._display.is_live:
            self._display.note = note
        else:
            os.write(2, f"{note}\n".encode())  # a handler must not enter a buffered stream a second time

    def on_event(self, event: Event) -> Stop:
        """Ask to stop after a signal; the update that belongs to collected data is still made."""
        self.begin()
        return None if self.signal is None else "interrupted"


def finish_run(run: Run, config: AlgorithmConfig, interruption: Interruption) -> int:
    """Print the plan, train, print a short table; return the exit code."""
    folder, shown = run.folder, shown_path(run.folder.path)
    # After the run each rank has a learner of its own and would take itself for the one that writes.
    writes = run.is_writer
    say_facts({**Plan(run.trainer, config).facts(run.sources), "folder": shown})
    say()
    try:
        run.finish()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 130
        there = folder.newest_checkpoint()
        how = f"go on from its last checkpoint with: lockstep resume {shown}" if there else "it has no checkpoint yet"
        raise CommandFailedError(f"stopped at once; {how}", code) from None
    except Exception as error:
        lines = [describe(error), f"The run's folder: {shown}."]
        if any(folder.checkpoints.glob("step_*/manifest.json")):
            lines[-1] += f" To go on from its last checkpoint: lockstep resume {shown}"
        if folder.error_checkpoint.is_dir():
            lines.append(f"The state when it failed is kept in {shown_path(folder.error_checkpoint)}")
        raise CommandFailedError("\n".join(lines), FAILED) from error
    if writes:
        show_result(folder)
    if interruption.signal is not None:
        say(f"\ninterrupted; go on with: lockstep resume {shown}")
    return interruption.exit_code


def describe(error: BaseException) -> str:
    """Return an error in words, without a traceback."""
    cause = error.__cause__
    if isinstance(error, EnvironmentStepError) and cause is not None:
        which = "an environment" if error.env_index is None else f"environment {error.env_index}"
        last = "" if error.action is None else f"; its last action was {error.action!r}"
        return f"{which} raised {type(cause).__name__}: {cause}{_place(cause)}{last}"
    text, place = str(error), _place(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])  # a sentence; a bare key says nothing without its place
    clear = ValueError | OSError | ImportError | FloatingPointError | EnvironmentStepError
    if text and (isinstance(error, clear) or (isinstance(error, TypeError) and _OWN in place)):
        return text
    return f"{type(error).__name__}: {text}{place}"


def _place(error: BaseException) -> str:
    """Return where it was raised: ` (my_env.py:12, in step)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
