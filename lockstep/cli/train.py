"""`lockstep train`: one run, or several seeds of it."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.cli.arguments import Count, MaybeCount, MaybeNumber, MaybePath, MaybeText, parse_setting, read_config_file
from lockstep.cli.exit_codes import FAILED
from lockstep.cli.running import (
    CommandFailedError,
    Interruption,
    finish_run,
    plan_facts,
    refuse_broken_environment,
    show_seed_runs,
)
from lockstep.cli.terminal import fact_lines, make_console, say, shown_path
from lockstep.cluster.torchrun import Place
from lockstep.envs.make import name_of_env
from lockstep.options.checks import check_whole
from lockstep.recipes.training import Settings, find_settings
from lockstep.runs.run import find_policy, prepare_run
from lockstep.runs.seeds import SeedBegun, SeedEnded, SeedProgress, run_seeds
from lockstep.runs.seeds_display import SeedsDisplay
from lockstep.trainer import ProgressDisplay


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
    """Compile the gradient step in any case; else runs of about a minute or more do (never: --set
    framework.compile=false)."""
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
            refuse_broken_environment(settings.config)
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
                code = finish_run(run, config, interruption)
            folders.append(run.folder.path)
            if code:
                return code
        if len(folders) > 1:
            show_seed_runs(folders)
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
                describe=plan_facts,
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
        show_seed_runs([seed.path for _, seed in sorted(ended.items()) if seed.path is not None and not seed.error])
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
