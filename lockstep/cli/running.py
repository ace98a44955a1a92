"""Functions that several commands share: check the environment, finish a run, handle Ctrl-C, describe errors."""

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
from lockstep.tracking import RunFolder
from lockstep.trainer import Callback, ProgressDisplay
from lockstep.trainer.callbacks import Event, Stop

USER_ERRORS = (ValueError, TypeError, KeyError, OSError, ImportError)
"""Errors that wrong input causes: the exit code is 2, and there is no hint at a traceback."""
LOCKSTEP_FOLDER = f"{os.sep}lockstep{os.sep}"
"""Part of the path of every file in this package."""
CHECK_STEPS = 200
CHECK_SECONDS = 1.0
"""Longest time of the check before a run, which ends after `CHECK_STEPS` otherwise."""
TRAINABLE_FINDINGS = ("observation_outside", "seed_ignored", "limit_ignored")
"""Errors of an environment that do not prevent training on it: they are shown, and the run begins."""


class CommandFailedError(Exception):
    """Error that ends a command with a message and an exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, message: str, code: int = WRONG_INPUT) -> None:
        super().__init__(message)
        self.code = code


def refuse_broken_environment(config: AlgorithmConfig) -> None:
    """Check the environment of a run before its folder is made, and print warnings about it.

    Raises:
        ValueError: the environment is broken.
    """
    if config.env_runners.vectorize_mode in ("vector", "envpool"):
        return  # native vectors are not made of single environments; their wrapper checks each step
    findings = check_environment(
        config.environment.env,
        env_config=config.environment.env_config,
        num_steps=CHECK_STEPS,
        max_seconds=CHECK_SECONDS,
    )

    errors = [finding for finding in findings if finding.level == "error" and finding.code not in TRAINABLE_FINDINGS]
    if errors:
        lines = "\n".join(f"  {finding.message}" for finding in errors)
        raise ValueError(f"the environment is broken (lockstep doctor looks closer, --no-check skips this):\n{lines}")

    # A large scale is not worth a warning if the run normalizes it.
    is_normalized = {
        "reward_scale": config.environment.normalize_rewards,
        "observation_scale": config.environment.normalize_observations,
    }
    for finding in findings:
        if finding.level != "info" and not is_normalized.get(finding.code):
            say(f"warning: the environment: {finding.message}")


def policy_text(policy: Policy, path: Path) -> str:
    """Return a policy's path, its algorithm, and its environment as the command line accepts it."""
    env = policy.config.environment.env
    name = name_of(env) if hasattr(env, "__qualname__") else name_of_env(env)
    return f"{shown_path(path)} ({policy.config.algorithm} on {name})"


def plan_facts(run: Run, config: AlgorithmConfig) -> dict[str, str]:
    """Return the plan of a run, for `say_facts`."""
    return Plan(run.trainer, config).facts(run.sources)


def show_seed_runs(folders: Sequence[Path]) -> None:
    """Print a table of runs, and the commands that draw their curves and export the best policy of all."""
    if not folders:
        return
    say()
    show_seeds(folders)
    say(f"curves: lockstep plot {' '.join(shown_path(folder) for folder in folders)} -o curves.png")
    best_run = _best_of(folders)
    if best_run is not None:
        say(f"export of the best evaluation: lockstep export {shown_path(best_run)}")


def _best_of(folders: Sequence[Path]) -> Path | None:
    """Return the run with the highest evaluation, the first of equal ones; None if no run was evaluated."""
    scores: dict[Path, float] = {}
    for folder in folders:
        score = RunFolder.open(folder).read_summary().get("best_score")
        if score is not None:
            scores[folder] = score
    return max(scores, key=scores.__getitem__, default=None)


class Interruption(Callback):
    """Context manager that stops a run after its current update at SIGINT (Ctrl-C) or SIGTERM.

    It is also a callback of the run, which it asks to stop. A run that was stopped so can be resumed with identical
    results. Before the run has begun, the signals end the process as usual. A second signal ends the run at once,
    without a new checkpoint.
    """

    def __init__(self, display: ProgressDisplay | SeedsDisplay | None = None) -> None:
        self.signal: int | None = None
        """Number of the signal that has arrived; None before."""
        self._display = display
        self._is_running = False
        self._owner_pid = os.getpid()
        self._previous_handlers: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells define it; 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal

    def begin(self) -> None:
        """Let signals stop the run from now on, instead of ending the process."""
        self._is_running = True

    def __enter__(self) -> Self:
        for code in (signal.SIGINT, signal.SIGTERM):
            self._previous_handlers[code] = signal.signal(code, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for code, handler in self._previous_handlers.items():
            signal.signal(code, handler)

    def _handle(self, code: int, frame: FrameType | None) -> None:
        # Forked processes of environments inherit this handler. They are ended by the process that started them.
        if os.getpid() != self._owner_pid:
            return
        if self.signal is not None:
            raise SystemExit(128 + code)
        self.signal = code
        if not self._is_running:
            raise KeyboardInterrupt

        note = "stopping after this update; once more stops at once"
        if self._display is not None and self._display.is_live:
            self._display.note = note
        else:
            # The signal may have interrupted a write to sys.stderr, and a buffered stream cannot be entered twice.
            os.write(2, f"{note}\n".encode())

    def on_event(self, event: Event) -> Stop:
        """Request the end of the run after a signal. The update with the collected data is still made."""
        self.begin()
        return None if self.signal is None else "interrupted"


def finish_run(run: Run, config: AlgorithmConfig, interruption: Interruption) -> int:
    """Print the plan, train, and print the result; return the exit code."""
    folder = run.folder
    shown = shown_path(folder.path)
    # Read before the run: at its end every rank gets its own learner, and would take itself for the first rank.
    is_writer = run.is_writer
    say_facts({**plan_facts(run, config), "folder": shown})
    say()

    try:
        run.finish()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 130
        advice = "it has no checkpoint yet"
        if folder.newest_checkpoint():
            advice = f"continue from its last checkpoint with: lockstep resume {shown}"
        raise CommandFailedError(f"stopped at once; {advice}", code) from None
    except Exception as error:
        raise CommandFailedError(_failure_text(error, folder), FAILED) from error

    if is_writer:
        show_result(folder)
    if interruption.signal is not None:
        say(f"\ninterrupted; continue with: lockstep resume {shown}")
    return interruption.exit_code


def _failure_text(error: Exception, folder: RunFolder) -> str:
    """Return the message for a run that an error ended: the error, the folder, and what can be resumed."""
    shown = shown_path(folder.path)
    lines = [describe(error), f"The run's folder: {shown}."]
    if any(folder.checkpoints.glob("step_*/manifest.json")):
        lines[-1] += f" To continue from its last checkpoint: lockstep resume {shown}"
    if folder.error_checkpoint.is_dir():
        lines.append(f"The state when it failed is kept in {shown_path(folder.error_checkpoint)}")
    return "\n".join(lines)


def describe(error: BaseException) -> str:
    """Return an error as text without a traceback. An error that does not explain itself gets its class and place."""
    cause = error.__cause__
    if isinstance(error, EnvironmentStepError) and cause is not None:
        # The user's environment raised the cause, so its place is in the user's file.
        env_text = "an environment" if error.env_index is None else f"environment {error.env_index}"
        action_text = "" if error.action is None else f"; its last action was {error.action!r}"
        return f"{env_text} raised {type(cause).__name__}: {cause}{_place(cause)}{action_text}"

    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])  # a sentence, which str() would put in quotes

    text = str(error)
    place = _place(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    # The messages of these classes are written for users. A TypeError is so only if Lockstep has raised it.
    explains_itself = isinstance(error, ValueError | OSError | ImportError | FloatingPointError | EnvironmentStepError)
    if isinstance(error, TypeError) and LOCKSTEP_FOLDER in place:
        explains_itself = True
    if text and explains_itself:
        return text
    return f"{type(error).__name__}: {text}{place}"


def _place(error: BaseException) -> str:
    """Return where an error was raised: ` (my_env.py:12, in step)`; empty for an error without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})"
