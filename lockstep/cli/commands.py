"""The command line: which command was called, how it runs, and how its errors are reported."""

from __future__ import annotations

import itertools
import os
import sys
import traceback
import warnings
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated

import tyro

from lockstep._version import __version__
from lockstep.cli.bench import Bench
from lockstep.cli.cache import Cache
from lockstep.cli.compare import Compare
from lockstep.cli.doctor import Doctor
from lockstep.cli.eject import Eject
from lockstep.cli.eval import Eval
from lockstep.cli.export import Export
from lockstep.cli.list import List
from lockstep.cli.plot import Plot
from lockstep.cli.report import Report
from lockstep.cli.resume import Resume
from lockstep.cli.running import FAILED, USER_ERRORS, WRONG_INPUT, CommandFailedError, describe
from lockstep.cli.train import Train
from lockstep.cli.trust import Trust
from lockstep.cli.tune import Tune
from lockstep.cluster.torchrun import Place
from lockstep.state.trust import let_typed_names_reach_current_folder

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Eject, tyro.conf.subcommand("eject")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Cache, tyro.conf.subcommand("cache")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Trust, tyro.conf.subcommand("trust")]
)


def parse(
    words: list[str],
) -> Train | Resume | Eval | Export | Eject | Plot | Compare | Report | List | Doctor | Cache | Bench | Tune | Trust:
    """Return the command that the words name. Ends the process with help (0) or a message about what is wrong (2)."""
    return tyro.cli(
        Command,
        prog="lockstep",
        description="Reinforcement learning on PyTorch: train, evaluate, resume, compare.",
        args=words,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
    )


def run_command(words: list[str]) -> int:
    """Parse and run one command; return its exit code. With LOCKSTEP_DEBUG=1 tracebacks are printed too."""
    if words == ["--version"]:
        print(f"lockstep {__version__}")
        return 0
    try:
        with redirect_stderr(StringIO()) as said:
            command = parse(words or ["--help"])
    except SystemExit as ending:  # tyro has printed help (0) or what is wrong (2)
        sys.stderr.write(said.getvalue())
        if ending.code:
            sys.stderr.write(f"error: {first_words(said.getvalue())}\n")
        return ending.code if isinstance(ending.code, int) else WRONG_INPUT
    let_typed_names_reach_current_folder()  # `module:Class` may name a file beside the user
    try:
        place = Place.of_process()
        if place.world_size > 1 and not isinstance(command, Train | Resume):
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
