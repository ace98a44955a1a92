"""From arguments to a command and its exit code; every failure becomes one clear message on stderr."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

WRONG_INPUT, FAILED = 2, 1
_OWN = f"{os.sep}lockstep{os.sep}"
USER_ERRORS = (ValueError, TypeError, KeyError, OSError, ImportError)


class CommandFailedError(Exception):
    """Ends a command with a message on stderr and an exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, message: str, code: int = WRONG_INPUT) -> None:
        super().__init__(message)
        self.code = code


def run_command(given: list[str]) -> int:
    """Parses, runs one command, returns its exit code. With LOCKSTEP_DEBUG=1 tracebacks are printed too."""
    from lockstep._version import __version__

    if given == ["--version"]:
        print(f"lockstep {__version__}")
        return 0
    from lockstep.cli.arguments import parse

    try:
        command = parse(given or ["--help"])
    except SystemExit as ending:  # tyro has printed help (0) or what is wrong (2)
        return ending.code if isinstance(ending.code, int) else WRONG_INPUT
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `module:Class` may name a file beside the user
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return dispatch(command)
    except BrokenPipeError:  # the reader of our output has gone, as in `lockstep list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except CommandFailedError as error:
        return _complain(str(error), error.code)
    except USER_ERRORS as error:
        return _complain(describe(error), WRONG_INPUT)
    except Exception as error:
        hint = "" if _debugging() else " (LOCKSTEP_DEBUG=1 shows the traceback)"
        return _complain(f"{describe(error)}{hint}", FAILED)


def dispatch(command: Any) -> int:
    """Runs a parsed command; only the modules that it needs are imported."""
    from lockstep.cli import arguments

    if isinstance(command, arguments.Train):
        from lockstep.cli.train import train_command

        return train_command(command)
    if isinstance(command, arguments.Resume):
        from lockstep.cli.train import resume_command

        return resume_command(command)
    if isinstance(command, arguments.Eval):
        from lockstep.cli.evaluate import eval_command

        return eval_command(command)
    if isinstance(command, arguments.Plot):
        from lockstep.cli.evaluate import plot_command

        return plot_command(command)
    if isinstance(command, arguments.List):
        from lockstep.cli.listing import list_command

        return list_command(command)
    from lockstep.cli.doctor import doctor_command

    return doctor_command(command)


@contextmanager
def failing_run(folder: Path) -> Iterator[None]:
    """What goes wrong in here is a run that failed: exit code 1, with the folder and how to go on."""
    try:
        yield
    except Exception as error:
        then = f"The run's folder: {shown_path(folder)}."
        if any((folder / "checkpoints").glob("step_*/manifest.json")):
            then += f" To go on from its last checkpoint: lockstep resume {shown_path(folder)}"
        raise CommandFailedError(f"{describe(error)}\n{then}", FAILED) from error


def describe(error: BaseException) -> str:
    """An error in words, without a traceback."""
    from lockstep.envs.errors import EnvironmentStepError

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
    said = ValueError | OSError | ImportError | FloatingPointError | EnvironmentStepError
    if text and (isinstance(error, said) or (isinstance(error, TypeError) and _OWN in place)):
        return text
    return f"{type(error).__name__}: {text}{place}"


def shown_path(path: str | Path) -> str:
    """A path relative to here where it lies below, quoted for a shell where it must be."""
    import shlex

    full = Path(path).absolute()
    here = Path.cwd()
    return shlex.quote(str(full.relative_to(here) if full.is_relative_to(here) else full))


def _place(error: BaseException) -> str:
    """Where it was raised: ` (my_env.py:12, in step)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _complain(message: str, code: int) -> int:
    if _debugging():
        traceback.print_exc()
    sys.stderr.write(f"error: {message}\n")
    return code


def _debugging() -> bool:
    return os.environ.get("LOCKSTEP_DEBUG", "") not in ("", "0")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
        (file or sys.stderr).write(f"warning: {message}\n")
