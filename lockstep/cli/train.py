"""`lockstep train` and `lockstep resume`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.algorithms import AlgorithmConfig
from lockstep.cli.app import CommandFailedError, failing_run, shown_path
from lockstep.cli.arguments import Resume, Train
from lockstep.cli.interrupt import Interruption
from lockstep.cli.plan import plan_of
from lockstep.cli.report import make_console, say, say_facts, show_result, show_seeds
from lockstep.cli.settings import parse_setting, settings_of
from lockstep.envs.check import check_environment
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.run import Run, find_policy, prepare_resume, prepare_run

CHECK_STEPS, CHECK_SECONDS = 200, 1.0
TRAINABLE = ("observation_outside", "seed_ignored", "limit_ignored")
"""findings of `check_environment` that are errors of the environment, but can be trained on: said, not refused"""


def train_command(command: Train) -> int:
    """One run, or several with successive seeds; returns the exit code."""
    if command.seeds < 1:
        raise ValueError(f"--seeds {command.seeds} is not allowed; it must be at least 1")
    settings = settings_of(command)
    if command.check:
        check(settings.config)
    first, folders = settings.config.debugging.seed, []
    for seed in range(first, first + command.seeds):
        config = settings.config.copy().debugging(seed=seed)
        say(f"{config.algorithm.upper()} on {command.env}, seed {seed}")
        code, folder = run(config, settings.sources, root=command.root, init_from=command.init_from)
        folders.append(folder)
        if code:
            return code
    if len(folders) > 1:
        say()
        show_seeds(folders)
        say(f"curves: lockstep plot {' '.join(shown_path(folder) for folder in folders)} -o curves.png")
    return 0


def resume_command(command: Resume) -> int:
    """Goes on with a run; returns the exit code."""
    display = ProgressDisplay(make_console(), title=f"resumed {shown_path(command.run)}")
    with Interruption(display) as interruption:
        settings = dict(parse_setting(text) for text in command.set)
        try:
            resumption = prepare_resume(command.run, total_steps=command.total_steps, settings=settings)
            if resumption.is_finished:
                made = f"{shown_path(command.run)} has made all its {resumption.step:,} steps"
                raise CommandFailedError(f"{made}; give more with --total-steps")
            run = resumption.build([display, interruption])
        except KeyError as error:
            raise ValueError(
                f"the checkpoint of {shown_path(command.run)} lacks {error}: another version of lockstep wrote it "
                "(config.json says which)"
            ) from error
        folder = run.folder
        say(f"{folder.algo.upper()} on {folder.env}, seed {folder.seed}, goes on at step {run.trainer.position:,}")
        return _run(run, resumption.config, interruption)


def run(
    config: AlgorithmConfig, sources: Sequence[str], *, root: Path, init_from: Path | None = None
) -> tuple[int, Path]:
    """Plan, training, short table. Returns the exit code and the run's folder."""
    display = ProgressDisplay(
        make_console(), title=f"{config.algorithm.upper()} on {config.environment.env}, seed {config.debugging.seed}"
    )
    with Interruption(display) as interruption:
        if init_from is not None:
            sources = [*sources, f"weights of {shown_path(find_policy(init_from))}"]
        new = prepare_run(config, root, callbacks=[display, interruption], init_from=init_from, sources=sources)
        return _run(new, config, interruption), new.folder.path


def _run(run: Run, config: AlgorithmConfig, interruption: Interruption) -> int:
    folder = run.folder
    say_facts({**plan_of(run.trainer, config, run.sources), "folder": shown_path(folder.path)})
    say()
    again = f"lockstep resume {shown_path(folder.path)}"
    try:
        with failing_run(folder.path):
            run.finish()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 130
        there = folder.newest_checkpoint()
        how = f"go on from its last checkpoint with: {again}" if there else "it has no checkpoint yet"
        raise CommandFailedError(f"stopped at once; {how}", code) from None
    show_result(folder)
    if interruption.signal is not None:
        say(f"\ninterrupted; go on with: {again}")
    return interruption.exit_code


def check(config: AlgorithmConfig) -> None:
    """Refuses a broken environment before a run's folder is made: `ValueError` with what is wrong."""
    if config.env_runners.vectorize_mode in ("vector", "envpool"):
        return  # these are no single environments; their boundary checks what it gets
    findings = check_environment(
        config.environment.env,
        env_config=config.environment.env_config,
        num_steps=CHECK_STEPS,
        max_seconds=CHECK_SECONDS,
    )
    broken = [found for found in findings if found.level == "error" and found.code not in TRAINABLE]
    if broken:
        what = "\n".join(f"  {found.message}" for found in broken)
        raise ValueError(f"the environment is broken (lockstep doctor looks closer, --no-check skips this):\n{what}")
    for found in findings:
        if found.level != "info":
            say(f"warning: the environment: {found.message}")
