"""`lockstep resume`: a run from its newest checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.cli.arguments import MaybeCount, parse_setting
from lockstep.cli.running import CommandFailedError, Interruption, finish_run
from lockstep.cli.terminal import make_console, say, shown_path
from lockstep.runs.run import prepare_resume
from lockstep.trainer import ProgressDisplay


@dataclass
class Resume:
    """Go on with a run from its newest intact checkpoint."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """The run's folder, or one of its checkpoints to go on from."""
    total_steps: MaybeCount = None
    """A new length of the whole run, the steps that it has included."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Another value from here on: section.option=value, e.g. training.lr=1e-4. May be repeated."""
    drop_damaged_replay: bool = False
    """Where nothing but the replay buffer of a checkpoint is damaged: go on from it with an empty one."""
    trust: bool = False
    """Take all objects that the run's files name, such as functions, which are run. Your own runs need no word."""
    take_over: bool = False
    """Take the run over from the process that trains it now, which ends at its next write."""

    def run(self) -> int:
        """Go on with the run; return the exit code."""
        shown = shown_path(self.folder)
        display = ProgressDisplay(make_console(), title=f"resumed {shown}")
        with Interruption(display) as interruption:
            settings = dict(parse_setting(text) for text in self.set)
            try:
                resumption = prepare_resume(
                    self.folder,
                    total_steps=self.total_steps,
                    settings=settings,
                    drop_damaged_replay=self.drop_damaged_replay,
                    trust=self.trust,
                )
                if resumption.is_finished:
                    raise CommandFailedError(
                        f"{shown} has made all its {resumption.step:,} steps; give more with --total-steps"
                    )
                run = resumption.build([display, interruption], take_over=self.take_over)
            except KeyError as error:
                raise ValueError(
                    f"the checkpoint of {shown} lacks {error}: another version of lockstep wrote it (config.json says "
                    "which)"
                ) from error
            folder = run.folder
            say(f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}, goes on at step {run.trainer.position:,}")
            return finish_run(run, resumption.config, interruption)
