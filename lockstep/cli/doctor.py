"""`lockstep doctor`: where a run's time went, or what is wrong with an environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.cli.app import FAILED
from lockstep.cli.arguments import Doctor
from lockstep.cli.report import say, show_table, stage_rows
from lockstep.envs.check import check_environment
from lockstep.tracking import RunFolder


def doctor_command(command: Doctor) -> int:
    """Examines a run's folder where there is one of that name, else an environment; returns the exit code."""
    path = Path(command.subject)
    if path.is_dir():
        return examine_run(RunFolder.open(path))
    return examine_environment(command.subject, command.steps)


def examine_run(folder: RunFolder) -> int:
    """Seconds and shares by stage, from summary.json, with advice about the largest."""
    summary = folder.read_summary()
    rows = stage_rows(summary)
    say(
        f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}: {summary['train_step']:,} steps, "
        f"{summary['steps_per_second']:,.0f} steps/s while training; ended by {summary.get('stop_reason')}"
    )
    table = [(name, f"{seconds:.2f}", f"{share:.1%}") for name, seconds, share in rows]
    show_table(("stage", "seconds", "share"), table)
    inner = summary.get("update_seconds_by_stage") or {}
    if inner:
        within = {name: float(seconds) for name, seconds in inner.items()}
        say("within the update: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in within.items()))
    for line in advice(rows, folder.config):
        say(line)
    return 0


def advice(rows: list[tuple[str, float, float]], config: Mapping[str, Any]) -> list[str]:
    """What to try, given where the time went."""
    shares = {name: share for name, _, share in rows}
    mode = (config.get("env_runners") or {}).get("vectorize_mode", "auto")
    compiled = (config.get("framework") or {}).get("compile", False)
    lines = []
    if shares.get("environment", 0) > 0.4 and mode in ("auto", "sync"):
        lines.append(
            "The environments take most: try --set env_runners.vectorize_mode=vector (native vectors), envpool, or "
            "async (one process each, for slow environments)."
        )
    if shares.get("update", 0) > 0.5 and not compiled:
        lines.append(
            "The update takes most: try --compile, larger minibatches (training.minibatch_size) or fewer passes "
            "(training.num_epochs)."
        )
    if shares.get("evaluation", 0) > 0.3:
        lines.append(
            "Evaluation takes much: fewer episodes (evaluation.evaluation_episodes) or longer epochs "
            "(reporting.steps_per_epoch)."
        )
    if shares.get("checkpoints, logs", 0) > 0.3:
        lines.append(
            "Checkpoints and logs take much: longer epochs (reporting.steps_per_epoch) or fewer checkpoints "
            "(checkpointing.checkpoint_interval)."
        )
    return lines or ["No stage stands out."]


def examine_environment(subject: str, steps: int) -> int:
    """Findings and speed of an environment; exit code 1 where it cannot be trained on."""
    if steps < 1:
        raise ValueError(f"--steps {steps} must be at least 1")
    findings = check_environment(subject, num_steps=steps)
    for found in findings:
        say(str(found))
    errors = sum(found.level == "error" for found in findings)
    warnings = sum(found.level == "warning" for found in findings)
    say(f"{subject}: {errors} errors, {warnings} warnings")
    return FAILED if errors else 0
