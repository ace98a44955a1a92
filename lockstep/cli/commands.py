"""The commands: what each takes, as tyro reads it (the docstrings of fields are the help texts), and what it does."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, Self

import numpy as np
import tyro
from tyro.conf import Positional, UseAppendAction, arg

from lockstep._version import __version__
from lockstep.algorithms import get_config
from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import Count, MaybeCount, MaybeNumber, MaybePath, MaybeText, parse_setting, read_config_file
from lockstep.cli.bench import Bench
from lockstep.cli.caching import Cache
from lockstep.cli.comparing import Compare, Plot, Report
from lockstep.cli.ejecting import Eject
from lockstep.cli.launching import launch_script, words_of
from lockstep.cli.listing import algorithm_table, markdown, recipe_table
from lockstep.cli.plan import Plan
from lockstep.cli.report import (
    fact_lines,
    make_console,
    return_text,
    say,
    say_facts,
    show_result,
    show_seeds,
    show_table,
    shown_path,
)
from lockstep.cli.trusting import Trust
from lockstep.cli.tune import Tune
from lockstep.cluster.torchrun import Place
from lockstep.diagnosis import doctor
from lockstep.envs.check import check_environment
from lockstep.envs.errors import EnvironmentStepError
from lockstep.envs.make import name_of_env
from lockstep.export import exported_in, read_card
from lockstep.policy import Policy
from lockstep.recipes.training import Settings, find_settings
from lockstep.rollout import Collector, MultiAgentCollector
from lockstep.runs.run import Run, evaluation_of, find_policy, load_policy, prepare_resume, prepare_run
from lockstep.runs.seeds import SeedBegun, SeedEnded, SeedProgress, run_seeds
from lockstep.runs.seeds_display import SeedsDisplay
from lockstep.runs.video import FORMATS, record_video
from lockstep.state.checks import check_whole
from lockstep.state.markup import number_text
from lockstep.state.names import name_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import let_typed_names_reach_current_folder
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import find_run, stage_seconds
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer import Callback, ProgressDisplay
from lockstep.trainer.callbacks import Event, Stop
from lockstep.trainer.evaluation import with_reward_metric
from lockstep.trainer.ranks import config_on_ranks

WRONG_INPUT, FAILED = 2, 1
USER_ERRORS = (ValueError, TypeError, KeyError, OSError, ImportError)
_OWN = f"{os.sep}lockstep{os.sep}"
CHECK_STEPS, CHECK_SECONDS = 200, 1.0
TRAINABLE = ("observation_outside", "seed_ignored", "limit_ignored")
"""findings of `check_environment` that are errors of the environment, but can be trained on: shown, not refused"""
MAX_EVALUATION_ENVS = 8


class CommandFailedError(Exception):
    """Ends a command with a message on stderr and an exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, message: str, code: int = WRONG_INPUT) -> None:
        super().__init__(message)
        self.code = code


# -- commands ---


@dataclass
class Train:
    """Train an agent: `lockstep train ppo CartPole-v1`."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Its name, e.g. ppo; `lockstep list` shows all."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """An environment's id (CartPole-v1, ALE/Pong-v5, package:Id-v0), a PettingZoo module, or your own module:Class."""
    total_steps: MaybeCount = None
    """Environment steps of the whole run."""
    seed: MaybeCount = None
    """Seed of all random streams."""
    seeds: Count = 1
    """Number of runs with seeds from --seed upwards."""
    jobs: Count = 1
    """Seeds side by side, each in a process of its own; 1: one after the other."""
    num_envs: MaybeCount = None
    """Environments stepped together; env runners share them evenly."""
    num_learners: MaybeCount = None
    """Learners in processes of their own (Ray); 0: one in this process."""
    num_env_runners: MaybeCount = None
    """Processes that step environments (Ray); 0: this one does."""
    ray_address: MaybeText = None
    """Ray cluster to join, e.g. auto; else Ray is started on this machine where it is needed."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any option: section.option=value with a JSON value, e.g. training.lr=3e-4. May be repeated."""
    config: MaybePath = None
    """JSON file of options by section, or the config.json of a run."""
    init_from: Annotated[MaybePath, arg(name="from")] = None
    """A run (its best policy) or a checkpoint: begin with its weights and connectors' statistics; all else is new."""
    stop_return: MaybeNumber = None
    """End the run when an evaluation's mean return reaches this."""
    logger: UseAppendAction[tuple[Literal["jsonl", "tensorboard", "wandb", "mlflow"], ...]] = ()
    """Where records go, beside metrics.jsonl. May be repeated."""
    compile: bool = False
    """Compile the gradient step."""
    device: MaybeText = None
    """cpu, cuda, cuda:1, ..."""
    recipe: bool = True
    """Use the recipe for this algorithm and environment, or the settings for its family, where there are any; else the
    algorithm's defaults."""
    check: bool = True
    """Take some random steps in the environment first and refuse one that is broken."""
    trust: bool = False
    """Take all objects that the file of --config names, such as functions, which are run. Your own need no word."""
    root: Path = field(default_factory=lambda: Path("runs"))
    """Where the run's folder is made."""

    def run(self) -> int:
        """Make one run, or several with successive seeds; return the exit code."""
        check_whole("--seeds", self.seeds, 1)
        check_whole("--jobs", self.jobs, 1)
        if self.jobs > 1 and Place.of_process().world_size > 1:
            raise ValueError(f"--jobs {self.jobs} is not allowed on ranks, which make one run together; leave it out")
        settings = self.settings()
        if self.check:
            _check_environment(settings.config)
        if self.jobs > 1 and self.seeds > 1:
            return self._run_side_by_side(settings)
        first, folders = settings.config.debugging.seed, []
        for seed in range(first, first + self.seeds):
            config, sources = settings.config.copy().debugging(seed=seed), settings.sources
            title = f"{config.algorithm.upper()} on {name_of_env(config.environment.env)}, seed {seed}"
            say(f"{config.algorithm.upper()} on {self.env}, seed {seed}")
            display = ProgressDisplay(make_console(), title=title)
            with Interruption(display) as interruption:
                if self.init_from is not None:
                    sources = [*sources, f"weights of {shown_path(find_policy(self.init_from))}"]
                callbacks = [display, interruption]
                run = prepare_run(config, self.root, callbacks=callbacks, init_from=self.init_from, sources=sources)
                code = _finish(run, config, interruption)
            folders.append(run.folder.path)
            if code:
                return code
        if len(folders) > 1:
            _show_seeds(folders)
        return 0

    def _run_side_by_side(self, settings: Settings) -> int:
        """Make runs with successive seeds, `jobs` at once, under one display; return the exit code."""
        config, sources = settings.config, settings.sources
        if self.init_from is not None:
            sources = [*sources, f"weights of {shown_path(find_policy(self.init_from))}"]
        name = f"{config.algorithm.upper()} on {self.env}"
        seeds = range(config.debugging.seed, config.debugging.seed + self.seeds)
        display = SeedsDisplay(seeds, make_console(), title=f"{name}, {self.seeds} seeds, {self.jobs} at once")
        begun: dict[int, Path] = {}
        ended: dict[int, SeedEnded] = {}
        with Interruption(display) as interruption:
            interruption.begin()
            events = run_seeds(
                config,
                seeds,
                jobs=self.jobs,
                root=self.root,
                init_from=self.init_from,
                sources=sources,
                describe=_plan_of,
                wants_stop=lambda: interruption.signal is not None,
            )
            try:
                with closing(events), display:
                    for event in events:
                        if isinstance(event, SeedProgress):
                            display.show(event.seed, event.progress, line=event.line)
                        elif isinstance(event, SeedEnded):
                            ended[event.seed] = event
                            state = f"failed: {event.error}" if event.error else "ended"
                            display.show(event.seed, None, state, line=state)
                        elif begun:
                            display.show(event.seed, None, line=f"begins in {shown_path(event.path)}")
                        else:  # the plan of the others is the same
                            facts = {**event.facts, "folder": shown_path(event.path)}
                            display.say("\n".join([f"{name}, seed {event.seed}", *fact_lines(facts), ""]))
                        if isinstance(event, SeedBegun):
                            begun[event.seed] = event.path
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else 130
                commands = [f"lockstep resume {shown_path(path)}" for seed, path in begun.items() if seed not in ended]
                raise CommandFailedError(
                    f"stopped at once; where there is a checkpoint, go on with: {'; '.join(commands)}", code
                ) from None
        _show_seeds([seed.path for _, seed in sorted(ended.items()) if seed.path is not None and not seed.error])
        for seed in seeds:
            last = ended.get(seed)
            if last is None:
                say(f"seed {seed} has not begun")
            elif last.error:
                sys.stderr.write(f"error: seed {seed}: {last.error}\n")
            elif interruption.signal is not None and last.path is not None:
                say(f"seed {seed} goes on with: lockstep resume {shown_path(last.path)}")
        return interruption.exit_code or (FAILED if any(last.error for last in ended.values()) else 0)

    def settings(self) -> Settings:
        """Return the recipe (or the algorithm's defaults), then the file, the options, `--set`, in that order."""
        check_whole("--total-steps", self.total_steps, 1, optional=True)
        options = {
            "reporting.total_steps": self.total_steps,
            "debugging.seed": self.seed,
            "learners.num_learners": self.num_learners,
            "env_runners.num_env_runners": self.num_env_runners,
            "resources.ray_address": self.ray_address,
            "evaluation.stop_return": self.stop_return,
            "framework.device": self.device,
            "framework.compile": self.compile or None,
            "reporting.loggers": list(dict.fromkeys(("jsonl", *self.logger))) if self.logger else None,
        }
        settings = find_settings(
            self.algorithm,
            self.env,
            recipe=self.recipe,
            num_envs=self.num_envs,
            options={path: value for path, value in options.items() if value is not None}
            | dict(parse_setting(text) for text in self.set),
            file=None if self.config is None else (str(self.config), read_config_file(self.config)),
            trust=self.trust,
        )
        settings.config.validate()
        return settings


@dataclass
class Launch:
    """Print a script that trains on several machines: `lockstep launch slurm ppo CartPole-v1 --nodes 2`."""

    system: Positional[Literal["slurm", "kubernetes"]]
    """slurm: a script for sbatch; kubernetes: a job for kubectl apply."""
    train: Train
    nodes: Count = 1
    """Machines, with torchrun on each."""
    ranks_per_node: Count = 1
    """Processes on each machine, each with one learner and a share of the environments."""
    max_restarts: Count = 3
    """How often all ranks start again after one died, each time from the newest checkpoint."""
    image: str = "lockstep:latest"
    """Of Kubernetes: the container's image."""
    output: Annotated[MaybePath, arg(aliases=["-o"])] = None
    """A file instead of the terminal."""

    def run(self) -> int:
        """Print the script, or write it; return the exit code."""
        nodes, ranks = check_whole("--nodes", self.nodes, 1), check_whole("--ranks-per-node", self.ranks_per_node, 1)
        config = self.train.settings().config  # what is wrong is said here, not on the machines
        config_on_ranks(config, nodes * ranks)
        text = launch_script(
            self.system,
            list(words_of(self.train)),
            nodes=nodes,
            ranks=ranks,
            max_restarts=check_whole("--max-restarts", self.max_restarts, 0),
            image=self.image,
            has_gpus=config.framework.device.startswith("cuda"),
        )
        if self.output is None:
            sys.stdout.write(text)
        else:
            self.output.write_text(text)
            start = "sbatch" if self.system == "slurm" else "kubectl apply -f"
            say(f"start it with: {start} {shown_path(self.output)}")
        return 0


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
            return _finish(run, resumption.config, interruption)


@dataclass
class Eval:
    """Evaluate the best policy of a run on new episodes, with the return of each agent where there are several."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """A run's folder, or one of its checkpoints."""
    episodes: Count = 20
    """Episodes to play."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely ones."""
    seed: Count = 0
    """Seed of these episodes."""
    video: MaybePath = None
    """Also write a video (.mp4 or .gif) of the first episodes."""
    video_episodes: Count = 1
    """Episodes in the video."""
    trust: bool = False
    """Take all objects that the run's files name, such as functions, which are run. Your own runs need no word."""

    def run(self) -> int:
        """Play episodes with the run's best policy and print their returns; return the exit code."""
        check_whole("--episodes", self.episodes, 1)
        check_whole("--video-episodes", self.video_episodes, 1)
        if self.video is not None and self.video.suffix.lower() not in FORMATS:
            raise ValueError(f"--video {self.video} must end in {' or '.join(FORMATS)}")
        if not self.folder.exists():
            raise ValueError(f"there is no {self.folder}; give a run's folder (runs/...) or one of its checkpoints")
        path = find_policy(self.folder)
        policy = load_policy(path, trust=self.trust)
        if self.video is not None and policy.is_multi_agent:
            raise ValueError(f"--video is for one agent, and {shown_path(path)} is of several; leave it out")
        policy.config.set_num_threads()
        stats = self._played(policy)
        returns, lens = stats.returns_stat, stats.lens_stat
        if returns is None or lens is None:
            raise RuntimeError("no episode ended")
        how = "drawn" if self.stochastic else "most likely"
        say_facts(
            {
                "policy": policy_text(policy, path),
                "episodes": f"{returns.count}, {how} actions, seed {self.seed}",
                "return": f"{return_text(returns.mean, returns.std)}, median {number_text(returns.median)}, "
                f"{number_text(returns.min)} to {number_text(returns.max)}",
                "length": f"{return_text(lens.mean, lens.std)}",
            }
        )
        if policy.is_multi_agent:
            found = {f"agent {agent}": values for agent, values in stats.returns_by_agent().items()}
            found |= {f"module {module_id}": values for module_id, values in stats.returns_by_module().items()}
            rows = [
                (name, return_text(float(np.mean(values)), float(np.std(values))), str(len(values)))
                for name, values in found.items()
            ]
            show_table(("of", "return", "episodes of an agent"), rows)
        if self.video is not None:
            filmed = record_video(
                policy, self.video, num_episodes=self.video_episodes, explore=self.stochastic, seed=self.seed
            )
            shown = ", ".join(number_text(value) for value in filmed.returns)
            say(f"  video     {shown_path(self.video)} (return {shown})")
        return 0

    def _played(self, policy: Policy) -> CollectStats:
        """Return the statistics of the episodes, of several agents with the returns that `reward_metric` makes."""
        config, num_envs = policy.config, min(MAX_EVALUATION_ENVS, self.episodes)
        options: dict[str, Any] = {
            "exploration_noise": self.stochastic,
            "streams": RandomStreams(self.seed).child("eval"),
        }
        if policy.is_multi_agent:
            assert isinstance(config, AlgorithmConfig)  # others build no policies
            agent_envs = config.make_agent_envs(num_envs)
            with closing(agent_envs):
                stats = MultiAgentCollector(policy, agent_envs, **options).collect(n_episode=self.episodes)
            return with_reward_metric(config.multi_agent.reward_metric, stats)
        with config.make_envs(num_envs) as envs:
            return Collector(policy, envs, **options).collect(n_episode=self.episodes)


@dataclass
class Export:
    """Write the policy of a run as files that act without Lockstep: ONNX with a few lines of Python, or torch's own."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """A run's folder, or one of its checkpoints."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx, or torch for an exported program (.pt2)."""
    checkpoint: Literal["best", "last"] = "best"
    """Of a run: the policy with the best evaluation, or that of the last checkpoint."""
    output: MaybePath = None
    """The folder to write; else export_onnx or export_torch in RUN."""
    sample: bool = False
    """Draw actions, by an input of noise, instead of taking the most likely ones."""
    trust: bool = False
    """Take all objects that the run's files name, such as functions, which are run. Your own runs need no word."""

    def run(self) -> int:
        """Write the artefact and say how it was proven; return the exit code."""
        if not self.folder.exists():
            raise ValueError(f"there is no {self.folder}; give a run's folder (runs/...) or one of its checkpoints")
        is_last = self.checkpoint == "last"
        run = find_run(self.folder)
        path = find_policy(run, last=is_last)
        policy = load_policy(path, trust=self.trust)
        target = run / f"export_{self.format}" if self.output is None else self.output
        evaluation = evaluation_of(run, last=is_last)
        written = policy.export(target, self.format, deterministic=not self.sample, evaluation=evaluation)
        say_facts({"policy": policy_text(policy, path)})
        for folder in exported_in(written):
            proof = read_card(folder)["parity"]
            kind = "of the environment" if proof["source"] == "environment" else "drawn at random"
            exact = f", continuous actions within {proof['largest_difference']:.1g}" * bool(proof["largest_difference"])
            ties = f", {proof['ties']} ties in float32" * bool(proof["ties"])
            say_facts(
                {
                    "written": f"{shown_path(folder)} ({', '.join(sorted(each.name for each in folder.iterdir()))})",
                    "proof": f"{proof['observations']:,} observations {kind}: the same actions{exact}{ties}",
                }
            )
        return 0


@dataclass
class List:
    """List algorithms, the spaces they take, and recipes with their reference scores."""

    markdown: bool = False
    """The whole reference, options included, as Markdown."""

    def run(self) -> int:
        """Print the lists; return the exit code."""
        if self.markdown:
            for line in markdown():
                say(line)
            return 0
        show_table(*algorithm_table())
        show_table(*recipe_table())
        return 0


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
    compiled = (config.get("framework") or {}).get("compile", False)
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


def _check_environment(config: AlgorithmConfig) -> None:
    """Raise `ValueError` for a broken environment, before a run's folder is made; print lesser findings."""
    if config.env_runners.vectorize_mode in ("vector", "envpool"):
        return  # these are no single environments; their boundary checks what it gets
    findings = check_environment(
        config.environment.env,
        env_config=config.environment.env_config,
        num_steps=CHECK_STEPS,
        max_seconds=CHECK_SECONDS,
    )
    broken = [finding for finding in findings if finding.level == "error" and finding.code not in TRAINABLE]
    if broken:
        lines = "\n".join(f"  {finding.message}" for finding in broken)
        raise ValueError(f"the environment is broken (lockstep doctor looks closer, --no-check skips this):\n{lines}")
    scaled = {
        "reward_scale": config.environment.normalize_rewards,
        "observation_scale": config.environment.normalize_observations,
    }
    for finding in findings:
        if finding.level != "info" and not scaled.get(finding.code):
            say(f"warning: the environment: {finding.message}")


# -- running a command ---


def policy_text(policy: Policy, path: Path) -> str:
    """Return where a policy lies, its algorithm, and the environment as the command line takes it."""
    env = policy.config.environment.env
    name = name_of(env) if hasattr(env, "__qualname__") else name_of_env(env)
    return f"{shown_path(path)} ({policy.config.algorithm} on {name})"


def _plan_of(run: Run, config: AlgorithmConfig) -> dict[str, str]:
    return Plan(run.trainer, config).facts(run.sources)


def _show_seeds(folders: Sequence[Path]) -> None:
    """Print a table of runs, and how to draw them."""
    if folders:
        say()
        show_seeds(folders)
        say(f"curves: lockstep plot {' '.join(shown_path(folder) for folder in folders)} -o curves.png")


class Interruption(Callback):
    """While entered, SIGINT and SIGTERM ask the run to stop where it can go on bit by bit: after an update.

    Before the run has begun they end the process as usual. A second signal ends the run without a new checkpoint.
    """

    def __init__(self, display: ProgressDisplay | SeedsDisplay | None = None) -> None:
        self.signal: int | None = None
        self._display = display
        self._running = False
        self._owner = os.getpid()
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell counts; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def begin(self) -> None:
        """Note that there is something to stop."""
        self._running = True

    def __enter__(self) -> Self:
        for code in (signal.SIGINT, signal.SIGTERM):
            self._before[code] = signal.signal(code, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for code, handler in self._before.items():
            signal.signal(code, handler)

    def _handle(self, code: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # processes of environments are ended by their owner
        if self.signal is not None:
            raise SystemExit(128 + code)
        self.signal = code
        if not self._running:
            raise KeyboardInterrupt
        note = "stopping after this update; once more stops at once"
        if self._display is not None and self._display.is_live:
            self._display.note = note
        else:
            os.write(2, f"{note}\n".encode())  # a handler must not enter a buffered stream a second time

    def on_event(self, event: Event) -> Stop:
        """Ask to stop after a signal; the update that belongs to collected data is still made."""
        self.begin()
        return None if self.signal is None else "interrupted"


def _finish(run: Run, config: AlgorithmConfig, interruption: Interruption) -> int:
    """Print the plan, train, print a short table; return the exit code."""
    folder, shown = run.folder, shown_path(run.folder.path)
    say_facts({**Plan(run.trainer, config).facts(run.sources), "folder": shown})
    say()
    try:
        run.finish()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 130
        there = folder.newest_checkpoint()
        how = f"go on from its last checkpoint with: lockstep resume {shown}" if there else "it has no checkpoint yet"
        raise CommandFailedError(f"stopped at once; {how}", code) from None
    except Exception as error:
        lines = [describe(error), f"The run's folder: {shown}."]
        if any(folder.checkpoints.glob("step_*/manifest.json")):
            lines[-1] += f" To go on from its last checkpoint: lockstep resume {shown}"
        if folder.error_checkpoint.is_dir():
            lines.append(f"The state when it failed is kept in {shown_path(folder.error_checkpoint)}")
        raise CommandFailedError("\n".join(lines), FAILED) from error
    if run.writes:
        show_result(folder)
    if interruption.signal is not None:
        say(f"\ninterrupted; go on with: lockstep resume {shown}")
    return interruption.exit_code


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Launch, tyro.conf.subcommand("launch")]
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
) -> (
    Train
    | Launch
    | Resume
    | Eval
    | Export
    | Eject
    | Plot
    | Compare
    | Report
    | List
    | Doctor
    | Cache
    | Bench
    | Tune
    | Trust
):
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


def describe(error: BaseException) -> str:
    """Return an error in words, without a traceback."""
    cause = error.__cause__
    if isinstance(error, EnvironmentStepError) and cause is not None:
        which = "an environment" if error.env_index is None else f"environment {error.env_index}"
        last = "" if error.action is None else f"; its last action was {error.action!r}"
        return f"{which} raised {type(cause).__name__}: {cause}{_place(cause)}{last}"
    text, place = str(error), _place(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])  # a sentence; a bare key says nothing without its place
    clear = ValueError | OSError | ImportError | FloatingPointError | EnvironmentStepError
    if text and (isinstance(error, clear) or (isinstance(error, TypeError) and _OWN in place)):
        return text
    return f"{type(error).__name__}: {text}{place}"


def _place(error: BaseException) -> str:
    """Return where it was raised: ` (my_env.py:12, in step)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


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
