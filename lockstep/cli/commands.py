"""The command line: which command was called, how it runs, and how its errors are reported."""

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
    "resume": "Go on with a run from its newest intact checkpoint.",
    "eval": "Evaluate the best policy of a run on new episodes, with the return of each agent where there are several.",
    "export": "Write the policy of a run as files that act without Lockstep: "
    "ONNX with a few lines of Python, or torch's own.",
    "eject": "Write one Python file, without Lockstep, that trains the same agent: `lockstep eject ppo CartPole-v1`.",
    "plot": "Draw the learning curves of runs; runs of equal settings become an interquartile mean with its interval.",
    "compare": "Compare the last evaluations of runs with those of others: is one better, and how sure is that?",
    "report": "Write one page about runs: curves, settings that differ, final evaluations, shares of time, videos.",
    "list": "List algorithms, the spaces they take, and recipes with their reference scores.",
    "doctor": "Why a run does not learn, and where its time went; "
    "or what is wrong with an environment, and how fast it is.",
    "cache": "Show the compiled code that is kept between runs, and how large it is; empty it.",
    "bench": "Run recipes over several seeds; show what they reach as tables and pictures.",
    "tune": "Search for settings with Optuna: `lockstep tune ppo CartPole-v1 --trials 20 --total-steps 50000`.",
    "trust": "Sign a run of your own that has no signature, as runs of version 0.2: `lockstep trust RUN`.",
}
"""The commands in the order of the help. Each is the class of its name in the file of its name in this folder, which is
imported when the command is called: it needs torch, and help must not wait for that."""
COMMANDS_OF_RANKS = ("train", "resume")


class Command(Protocol):
    """A command with the arguments that were given."""

    def run(self) -> int:
        """Run it and return the exit code."""
        ...


def parse(words: Sequence[str]) -> Any:
    """Return the command that the words name. Ends the process with help (0) or a message about what is wrong (2)."""
    name = words[0] if words else "--help"
    if name not in COMMANDS:
        return _parse_overview(words or [name])
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
    return tyro.cli(command_class(name), prog=f"lockstep {name}", args=words[1:], config=config)


def command_class(name: str) -> Any:
    """Import and return the class of a command."""
    return getattr(importlib.import_module(f"lockstep.cli.{name}"), name.capitalize())


def _parse_overview(words: Sequence[str]) -> NoReturn:
    """End the process with the list of commands, or with what is wrong with words that name none."""
    commands: Any = Union[  # noqa: UP007 (a union of a list)
        tuple(
            Annotated[dataclasses.make_dataclass(name, ()), tyro.conf.subcommand(name, description=description)]
            for name, description in COMMANDS.items()
        )
    ]
    description = "Reinforcement learning on PyTorch: train, evaluate, resume, compare."
    tyro.cli(commands, prog="lockstep", description=description, args=words)
    raise AssertionError(f"{words} name no command, and were read as one")


def run_command(words: list[str]) -> int:
    """Parse and run one command; return its exit code. With LOCKSTEP_DEBUG=1 tracebacks are printed too."""
    if words == ["--version"]:
        print(f"lockstep {__version__}")
        return 0
    if words and words[0] in COMMANDS:
        command_class(words[0])  # here, because libraries keep the stderr that they find when they are imported
    try:
        with redirect_stderr(StringIO()) as said:
            command = parse(words)
    except SystemExit as ending:  # tyro has printed help (0) or what is wrong (2)
        sys.stderr.write(said.getvalue())
        if ending.code:
            sys.stderr.write(f"error: {first_words(said.getvalue())}\n")
        return ending.code if isinstance(ending.code, int) else WRONG_INPUT
    return _run(words[0], command)


def _run(name: str, command: Command) -> int:
    """Run a command that was parsed, and report its errors; return its exit code."""
    from lockstep.cli.running import USER_ERRORS, CommandFailedError, describe
    from lockstep.cluster.torchrun import Place
    from lockstep.state.trust import search_current_folder

    search_current_folder()  # `module:Class` may name a file beside the user
    try:
        place = Place.of_process()
        if place.world_size > 1 and name not in COMMANDS_OF_RANKS:
            raise ValueError(f"WORLD_SIZE={place.world_size}: ranks train and resume together; give others one process")
        with warnings.catch_warnings(), ExitStack() as silence:
            warnings.showwarning = _show_warning
            if place.rank:  # the first rank says it for all
                warnings.showwarning = lambda *_, **__: None
                silence.enter_context(redirect_stdout(silence.enter_context(Path(os.devnull).open("w"))))
            return command.run()
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


def first_words(box: str) -> str:
    """Return the first paragraph in a box that tyro has drawn, as one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    return " ".join(itertools.takewhile(lambda line: line.strip("─"), lines))


def _complain(message: str, code: int) -> int:
    if _debugging():
        traceback.print_exc()
    which = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    sys.stderr.write(f"error: {which}{message}\n")
    return code


def _debugging() -> bool:
    return os.environ.get("LOCKSTEP_DEBUG", "") not in ("", "0")


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
        sys.stderr.write(f"warning: {message}\n")
