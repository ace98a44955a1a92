"""`lockstep doctor`: find out why a run does not learn, or check an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lockstep.algorithms import get_config
from lockstep.cli.arguments import Count, OptionalNumber
from lockstep.cli.exit_codes import FAILED
from lockstep.cli.terminal import say, show_table
from lockstep.diagnosis import doctor
from lockstep.envs.check import check_environment
from lockstep.options.checks import check_whole
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import stage_seconds


@dataclass
class Doctor:
    """Examine a run: why it does not learn, and where its time went. Or check an environment: its errors and speed."""

    subject: Positional[Annotated[str, arg(metavar="RUN|ENV")]]
    """Folder of the run; or the environment, by its id or as module:Class."""
    steps: Count = 2000
    """Number of random steps in an environment."""
    expected_return: Annotated[OptionalNumber, arg(help_behavior_hint="(default: none)")] = None
    """For a run: the return that you expect. A run below it that no longer improves counts as not learning."""
    play: bool = True
    """For a run: play a few hundred steps with its newest checkpoint, to look at rewards, actions and hidden units."""
    trust: bool = False
    """For a run: accept all objects that its files name, which are executed. Your own runs do not need this."""

    def run(self) -> int:
        """Examine the run if the subject is a folder, otherwise the environment; return the exit code."""
        if Path(self.subject).is_dir():
            self._examine_run(Path(self.subject))
            return 0
        return self._check_environment()

    def _check_environment(self) -> int:
        """Print the findings about the environment; return the exit code."""
        check_whole("--steps", self.steps, 1)
        try:
            findings = check_environment(self.subject, num_steps=self.steps)
        except ValueError as error:
            if os.sep not in self.subject:
                raise
            # A path with a typing error is more likely than an environment with a slash in its id.
            raise ValueError(f"there is no run's folder {self.subject}, and no environment: {error}") from error

        for finding in findings:
            say(str(finding))
        num_errors = sum(finding.level == "error" for finding in findings)
        num_warnings = sum(finding.level == "warning" for finding in findings)
        say(f"{self.subject}: {num_errors} errors, {num_warnings} warnings")
        return FAILED if num_errors else 0

    def _examine_run(self, path: Path) -> None:
        """Print what keeps the run from learning, and where its time went if it has ended."""
        examination = doctor(path, expected_return=self.expected_return, play=self.play, trust=self.trust)
        for line in examination.lines():
            say(line)
        folder = RunFolder.open(path)
        if not folder.summary_path.exists():
            say("Where the time went is known when the run has ended.")
            return

        summary = folder.read_summary()
        say(
            f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}: {summary['train_step']:,} steps, "
            f"{summary['steps_per_second']:,.0f} steps/s while training; ended: {folder.ending_text(summary)}"
        )
        stages = stage_seconds(summary)
        rows = [(name, f"{seconds:.2f}", f"{share:.1%}") for name, (seconds, share) in stages.items()]
        show_table(("stage", "seconds", "share"), rows)
        update_stages = summary.get("update_seconds_by_stage") or {}
        if update_stages:
            texts = [f"{name} {float(seconds):.2f} s" for name, seconds in update_stages.items()]
            say("within the update: " + ", ".join(texts))
        shares = {name: share for name, (_, share) in stages.items()}
        for line in advice(shares, folder.config, folder.algo):
            say(line)


def advice(shares: Mapping[str, float], config: Mapping[str, Any], algo: str) -> list[str]:
    """Return what could make a run faster, one sentence a line.

    Args:
        shares: Share of each stage in the run's time, between 0 and 1.
        config: Options of the run, by section.
        algo: Name of its algorithm.
    """
    vectorize_mode = (config.get("env_runners") or {}).get("vectorize_mode", "auto")
    is_compiled = (config.get("framework") or {}).get("compile") is True
    lines = []
    if shares.get("environment", 0) > 0.4 and vectorize_mode in ("auto", "sync"):
        lines.append(
            "The environments take most: try --set env_runners.vectorize_mode=vector (native vectors), envpool, or "
            "async (one process each, for slow environments)."
        )
    if shares.get("update", 0) > 0.5 and not is_compiled:
        lines.append(f"The update takes most: try --compile, {_cheaper_update(algo)}.")
    if shares.get("evaluation", 0) > 0.3:
        lines.append(
            "Evaluation takes much: fewer episodes (evaluation.evaluation_duration) or longer epochs "
            "(reporting.steps_per_epoch)."
        )
    if shares.get("checkpoints, logs", 0) > 0.3:
        lines.append(
            "Checkpoints and logs take much: longer epochs (reporting.steps_per_epoch) or fewer checkpoints "
            "(checkpointing.checkpoint_interval)."
        )
    return lines or ["No stage stands out."]


def _cheaper_update(algo: str) -> str:
    """Return the options with which an algorithm takes fewer or cheaper gradient steps."""
    algorithm = get_config(algo)
    if algorithm.is_offline:
        return "or smaller networks (rl_module.model_config)"
    if algorithm.is_off_policy:
        return "fewer gradient steps (replay.update_per_step) or smaller networks (rl_module.model_config)"
    return "larger minibatches (training.minibatch_size) or fewer passes (training.num_epochs)"
