"""`lockstep doctor`: why a run does not learn, or what is wrong with an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lockstep.algorithms import get_config
from lockstep.cli.arguments import Count, MaybeNumber
from lockstep.cli.exit_codes import FAILED
from lockstep.cli.terminal import say, show_table
from lockstep.diagnosis import doctor
from lockstep.envs.check import check_environment
from lockstep.options.checks import check_whole
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import stage_seconds


@dataclass
class Doctor:
    """Why a run does not learn, and where its time went; or what is wrong with an environment, and how fast it is."""

    subject: Positional[Annotated[str, arg(metavar="RUN|ENV")]]
    """A run's folder, or an environment's id (or module:Class)."""
    steps: Count = 2000
    """Random steps to look at an environment for."""
    expected_return: MaybeNumber = None
    """Of a run: below this return, one that no longer gets better counts as one that does not learn."""
    play: bool = True
    """Of a run: play some hundred steps with its newest checkpoint, to look at rewards, actions and hidden units."""
    trust: bool = False
    """Of a run: take all objects that its files name, such as functions, which are run. Your own runs need no word."""

    def run(self) -> int:
        """Examine a run's folder where there is one of that name, else an environment; return the exit code."""
        if Path(self.subject).is_dir():
            return self._examine_run(Path(self.subject))
        check_whole("--steps", self.steps, 1)
        try:
            findings = check_environment(self.subject, num_steps=self.steps)
        except ValueError as error:
            if os.sep not in self.subject:
                raise
            raise ValueError(f"there is no run's folder {self.subject}, and no environment: {error}") from error
        for finding in findings:
            say(str(finding))
        errors = sum(finding.level == "error" for finding in findings)
        say(f"{self.subject}: {errors} errors, {sum(finding.level == 'warning' for finding in findings)} warnings")
        return FAILED if errors else 0

    def _examine_run(self, path: Path) -> int:
        """Print what keeps the run from learning; and where its time went, from summary.json, if it has ended."""
        for line in doctor(path, expected_return=self.expected_return, play=self.play, trust=self.trust).lines():
            say(line)
        folder = RunFolder.open(path)
        if not folder.summary_path.exists():
            say("Where the time went is known when the run has ended.")
            return 0
        summary = folder.read_summary()
        stages = stage_seconds(summary)
        say(
            f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}: {summary['train_step']:,} steps, "
            f"{summary['steps_per_second']:,.0f} steps/s while training; ended by {summary.get('stop_reason')}"
        )
        table = [(name, f"{seconds:.2f}", f"{share:.1%}") for name, (seconds, share) in stages.items()]
        show_table(("stage", "seconds", "share"), table)
        inner = summary.get("update_seconds_by_stage") or {}
        if inner:
            say("within the update: " + ", ".join(f"{name} {float(seconds):.2f} s" for name, seconds in inner.items()))
        for line in advice({name: share for name, (_, share) in stages.items()}, folder.config, folder.algo):
            say(line)
        return 0


def advice(shares: Mapping[str, float], config: Mapping[str, Any], algo: str) -> list[str]:
    """Return what to try, from where the time went: shares by stage, and the options of the run by section."""
    mode = (config.get("env_runners") or {}).get("vectorize_mode", "auto")
    compiled = (config.get("framework") or {}).get("compile") is True
    lines = []
    if shares.get("environment", 0) > 0.4 and mode in ("auto", "sync"):
        lines.append(
            "The environments take most: try --set env_runners.vectorize_mode=vector (native vectors), envpool, or "
            "async (one process each, for slow environments)."
        )
    if shares.get("update", 0) > 0.5 and not compiled:
        lines.append(f"The update takes most: try --compile, {_fewer_steps(algo)}.")
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


def _fewer_steps(algo: str) -> str:
    """Return the options by which an algorithm takes fewer or cheaper gradient steps."""
    algorithm = get_config(algo)
    if algorithm.is_offline:
        return "or smaller networks (rl_module.model_config)"
    if algorithm.is_off_policy:
        return "fewer gradient steps (replay.update_per_step) or smaller networks (rl_module.model_config)"
    return "larger minibatches (training.minibatch_size) or fewer passes (training.num_epochs)"
