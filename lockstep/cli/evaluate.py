"""`lockstep eval` and `lockstep plot`."""

from __future__ import annotations

from pathlib import Path

from lockstep.algorithms.build import make_envs, set_num_threads
from lockstep.algorithms.policy import Policy
from lockstep.cli.app import describe, shown_path
from lockstep.cli.arguments import Eval, Plot
from lockstep.cli.report import return_text, say, say_facts
from lockstep.rollout.collector import Collector
from lockstep.state.streams import RandomStreams
from lockstep.tracking import plot_runs
from lockstep.trainer.run import find_policy, load_policy
from lockstep.trainer.video import FORMATS, record_video

MAX_ENVS = 8


def eval_command(command: Eval) -> int:
    """Plays episodes with a run's best policy and prints their returns; returns the exit code."""
    for name in ("episodes", "video_episodes"):
        if getattr(command, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(command, name)} must be at least 1")
    if command.video is not None and command.video.suffix.lower() not in FORMATS:
        raise ValueError(f"--video {command.video} must end in {' or '.join(FORMATS)}")
    _check_there(command.run)
    path = find_policy(command.run)
    policy = load_policy(path)
    if not isinstance(policy, Policy):
        raise ValueError(f"{shown_path(path)} is of several agents; play it with MultiAgentCollector(policy, make_env)")
    set_num_threads(policy.config)
    with make_envs(policy.config, min(MAX_ENVS, command.episodes)) as envs:
        collector = Collector(
            policy,
            envs,
            exploration_noise=command.stochastic,
            streams=RandomStreams(command.seed).child("eval"),
        )
        stats = collector.collect(n_episode=command.episodes)
    returns, lens = stats.returns_stat, stats.lens_stat
    if returns is None or lens is None:
        raise RuntimeError("no episode ended")
    how = "drawn" if command.stochastic else "most likely"
    say_facts(
        {
            "policy": f"{shown_path(path)} ({policy.config.algorithm} on {policy.config.environment.env})",
            "episodes": f"{returns.count}, {how} actions, seed {command.seed}",
            "return": f"{return_text(returns.mean, returns.std)}, median {returns.median:.4g}, "
            f"{returns.min:.4g} to {returns.max:.4g}",
            "length": f"{return_text(lens.mean, lens.std)}",
        }
    )
    if command.video is not None:
        filmed = record_video(
            policy, command.video, num_episodes=command.video_episodes, explore=command.stochastic, seed=command.seed
        )
        shown = ", ".join(f"{value:.4g}" for value in filmed.returns)
        say(f"  video     {shown_path(command.video)} (return {shown})")
    return 0


def plot_command(command: Plot) -> int:
    """Draws the curves; returns the exit code."""
    if not command.runs:
        raise ValueError("plot needs at least one run's folder: lockstep plot runs/ppo_* -o curves.png")
    if command.output.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--output {command.output} must end in .png, .pdf or .svg")
    try:
        picture = plot_runs(command.runs, command.output, metric=command.metric, scope=command.scope)
    except OSError as error:
        raise ValueError(f"cannot write {command.output}: {describe(error)}") from error
    say(shown_path(picture))
    return 0


def _check_there(run: Path) -> None:
    if not run.exists():
        raise ValueError(f"there is no {run}; give a run's folder (runs/...) or one of its checkpoints")
