"""Dispatcher of the command line: parses the command, runs it, and reports its errors."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol, Union

import tyro

from lockstep._version import __version__
from lockstep.cli.exit_codes import FAILED, WRONG_INPUT

COMMANDS = {
    "train": "Train an agent: `lockstep train ppo CartPole-v1`.",
    "resume": "Continue a run from its newest intact checkpoint: `lockstep resume RUN`.",
    "eval": "Evaluate the best policy of a run on new episodes; with several agents, show the return of each.",
    "export": "Export the policy of a run to files that act without Lockstep: "
    "ONNX with a few lines of Python, or torch.",
    "eject": "Write one Python file that trains the same agent without Lockstep: `lockstep eject ppo CartPole-v1`.",
    "plot": "Draw the learning curves of runs. "
    "Runs with the same settings become one curve with a confidence interval.",
    "compare": "Compare the last evaluations of two groups of runs: which group is better, and how certain is that?",
    "report": "Write an HTML page about runs: curves, settings that differ, final evaluations, shares of time, videos.",
    "list": "List the algorithms with the spaces that they accept, and the recipes with their reference returns.",
    "doctor": "Examine a run: why it does not learn, and where its time went. "
    "Or check an environment: its errors and speed.",
    "cache": "Show how much compiled code is kept between runs, or delete it.",
    "bench": "Run recipes over several seeds, and show their results: `lockstep bench run ppo CartPole-v1 --seeds 3`.",
    "tune": "Search for good settings with Optuna: `lockstep tune ppo CartPole-v1 --trials 20 --total-steps 50000`.",
    "trust": "Sign a run of your own that has no signature, such as a run of version 0.2: `lockstep trust RUN`.",
}
"""Commands in the order of the help, each with the first paragraph of its class's docstring.

Command `x` is the class `X` in the file `x.py` of this folder. The file is imported when the command is called: most of
them need torch, and help must not wait for that."""
COMMANDS_OF_RANKS = ("train", "resume")
"""Commands that torchrun may start on several ranks."""


class Command(Protocol):
    """Parsed command line of one command."""

    def run(self) -> int:
        """Run the command and return the exit code."""
        ...


def parse(words: Sequence[str]) -> Any:
    """Return the command for the words of a command line.

    Ends the process after printing help (exit code 0) or a message about a wrong word (exit code 2).
    """
    name = words[0] if words else "--help"
    if name not in COMMANDS:
        return _parse_overview(words or [name])
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
    return tyro.cli(command_class(name), prog=f"lockstep {name}", args=words[1:], config=config)


def command_class(name: str) -> Any:
    """Import and return the class of a command."""
    return getattr(importlib.import_module(f"lockstep.cli.{name}"), name.capitalize())


def _parse_overview(words: Sequence[str]) -> NoReturn:
    """End the process after printing the list of commands, or a message about words that are not a command."""
    commands: Any = Union[  # noqa: UP007 (a union of a list)
        tuple(
            Annotated[dataclasses.make_dataclass(name, ()), tyro.conf.subcommand(name, description=description)]
            for name, description in COMMANDS.items()
        )
    ]
    description = "Reinforcement learning on PyTorch: train, evaluate, resume, compare."
    tyro.cli(commands, prog="lockstep", description=description, args=words)
    raise AssertionError(f"{words} are not a command, but were parsed as one")


def run_command(words: list[str]) -> int:
    """Parse and run one command; return its exit code. With LOCKSTEP_DEBUG=1 tracebacks are printed too."""
    if words == ["--version"]:
        print(f"lockstep {__version__}")
        return 0
    if words and words[0] in COMMANDS:
        # Imported before stderr is redirected, because some libraries keep the stderr of their import for their log.
        command_class(words[0])
    try:
        with redirect_stderr(StringIO()) as parser_output:
            command = parse(words)
    except SystemExit as ending:  # tyro has printed help (0) or an error (2)
        sys.stderr.write(parser_output.getvalue())
        if ending.code:
            # The error again on one line, in the form of all other errors.
            sys.stderr.write(f"error: {first_words(parser_output.getvalue())}\n")
        return ending.code if isinstance(ending.code, int) else WRONG_INPUT
    return _run(words[0], command)


def _run(name: str, command: Command) -> int:
    """Run a parsed command and report its errors; return its exit code."""
    from lockstep.cli.running import USER_ERRORS, CommandFailedError, describe
    from lockstep.cluster.torchrun import RankInfo
    from lockstep.state.trust import search_current_folder

    search_current_folder()  # `module:Class` may name a file in the current folder
    try:
        info = RankInfo.of_process()
        if info.world_size > 1 and name not in COMMANDS_OF_RANKS:
            raise ValueError(f"WORLD_SIZE={info.world_size}: ranks train and resume together; give others one process")
        with warnings.catch_warnings(), ExitStack() as silence:
            warnings.showwarning = _show_warning
            if info.rank:  # only the first rank prints
                warnings.showwarning = lambda *_, **__: None
                nowhere = silence.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                silence.enter_context(redirect_stdout(nowhere))
            return command.run()
    except BrokenPipeError:  # the reader of the output has exited, as in `lockstep list | head`
        # Python flushes stdout at its exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except CommandFailedError as error:
        return _report_error(str(error), error.code)
    except USER_ERRORS as error:
        return _report_error(describe(error), WRONG_INPUT)
    except Exception as error:
        hint = "" if _is_debugging() else " (LOCKSTEP_DEBUG=1 shows the traceback)"
        return _report_error(f"{describe(error)}{hint}", FAILED)


def first_words(box: str) -> str:
    """Return the first paragraph in a box that tyro has drawn, as one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    return " ".join(itertools.takewhile(lambda line: line.strip("─"), lines))


def _report_error(message: str, code: int) -> int:
    """Print an error, with its traceback if the user debugs, and return the exit code."""
    if _is_debugging():
        traceback.print_exc()
    rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    sys.stderr.write(f"error: {rank}{message}\n")
    return code


def _is_debugging() -> bool:
    return os.environ.get("LOCKSTEP_DEBUG", "") not in ("", "0")


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning on one line, unless it concerns only programmers."""
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
        sys.stderr.write(f"warning: {message}\n")
