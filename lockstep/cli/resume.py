"""`lockstep resume`: continue a run from its newest checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lockstep.cli.arguments import OptionalCount, OptionValues, parse_setting
from lockstep.cli.running import CommandFailedError, Interruption, finish_run
from lockstep.cli.terminal import make_console, say, shown_path
from lockstep.runs.run import Resumption, prepare_resume
from lockstep.trainer import ProgressDisplay


@dataclass
class Resume:
    """Continue a run from its newest intact checkpoint: `lockstep resume RUN`.

    The result has the same bits as that of a run that was not interrupted.
    """

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run, or the checkpoint in it to continue from."""
    total_steps: Annotated[OptionalCount, arg(help_behavior_hint="(default: as before)")] = None
    """New length of the whole run in environment steps, including the steps that it has."""
    set: OptionValues = ()
    """Set an option from here on; the value is JSON. Example: --set training.lr=1e-4."""
    drop_damaged_replay: bool = False
    """If only the replay buffer of a checkpoint is damaged, continue with an empty one."""
    trust: bool = False
    """Accept all objects that the run's files name, which are executed. Your own runs do not need this."""
    take_over: bool = False
    """Take the run from another process that is training it. That process ends at its next write."""

    def run(self) -> int:
        """Continue the run; return the exit code."""
        title = f"resumed {shown_path(self.folder)}"
        display = ProgressDisplay(make_console(), title=title)
        with Interruption(display) as interruption:
            try:
                resumption = self._resumption()
                run = resumption.build([display, interruption], take_over=self.take_over)
            except KeyError as error:
                raise ValueError(
                    f"the checkpoint of {shown_path(self.folder)} lacks {error}: another version of lockstep wrote it "
                    "(config.json says which)"
                ) from error
            folder = run.folder
            position = run.trainer.position
            say(f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}, continues at step {position:,}")
            return finish_run(run, resumption.config, interruption)

    def _resumption(self) -> Resumption:
        """Return the plan of the resume; raise `CommandFailedError` if the run has all its steps."""
        resumption = prepare_resume(
            self.folder,
            total_steps=self.total_steps,
            settings=dict(map(parse_setting, self.set)),
            drop_damaged_replay=self.drop_damaged_replay,
            trust=self.trust,
        )
        if resumption.is_finished:
            raise CommandFailedError(
                f"{shown_path(self.folder)} has made all its {resumption.step:,} steps; give more with --total-steps"
            )
        return resumption
