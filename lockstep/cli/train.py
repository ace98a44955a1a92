"""`lockstep train`: train one run, or several runs with successive seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.cli.arguments import (
    Count,
    OptionalCount,
    OptionalNumber,
    OptionalPath,
    OptionalText,
    OptionValues,
    parse_setting,
    read_config_file,
)
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
from lockstep.cluster.torchrun import RankInfo
from lockstep.envs.make import name_of_env
from lockstep.options.checks import check_whole
from lockstep.policy.files import find_policy
from lockstep.recipes.training import Settings, find_settings
from lockstep.runs.run import prepare_run
from lockstep.runs.seeds import SeedBegun, SeedEnded, SeedEvent, SeedProgress, run_seeds
from lockstep.runs.seeds_display import SeedsDisplay
from lockstep.trainer import ProgressDisplay


@dataclass
class Train:
    """Train an agent: `lockstep train ppo CartPole-v1`.

    Options that are left out have the values of the recipe for the algorithm and environment, or else the algorithm's
    defaults. The plan that is printed first says which.
    """

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Algorithm, e.g. ppo; `lockstep list` shows all."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Environment: an id (CartPole-v1, ALE/Pong-v5, package:Id-v0), a PettingZoo module, or your own module:Class."""
    total_steps: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Environment steps of the whole run (with recorded data: gradient steps)."""
    seed: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Seed of all random numbers."""
    seeds: Count = 1
    """Number of runs; their seeds are successive, from --seed on."""
    jobs: Count = 1
    """Number of runs that train at the same time, each in its own process."""
    num_envs: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Number of environments that are stepped together; env runners share them evenly."""
    num_learners: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Number of learner processes (Ray). With 0, this process learns."""
    num_env_runners: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Number of processes that step environments (Ray). With 0, this process does."""
    ray_address: Annotated[OptionalText, arg(metavar="ADDRESS", help_behavior_hint="(default: this machine)")] = None
    """Ray cluster to join, e.g. auto. Otherwise Ray is started on this machine if it is needed."""
    set: OptionValues = ()
    """Set any option; the value is JSON. Example: --set training.lr=3e-4."""
    config: Annotated[OptionalPath, arg(help_behavior_hint="(default: no file)")] = None
    """JSON file with options by section, or the config.json of a run."""
    init_from: Annotated[OptionalPath, arg(name="from", help_behavior_hint="(default: random weights)")] = None
    """Start with the weights and connector statistics of this run (its best policy) or checkpoint."""
    stop_return: Annotated[OptionalNumber, arg(help_behavior_hint="(default: train all steps)")] = None
    """End the run when the mean return of an evaluation reaches this value."""
    logger: UseAppendAction[tuple[Literal["jsonl", "tensorboard", "wandb", "mlflow"], ...]] = ()
    """Also write the metrics there; metrics.jsonl is always written."""
    lr: Annotated[OptionalNumber, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Learning rate, short for --set training.lr=VALUE."""
    compile: Annotated[bool, arg(help_behavior_hint="(default: runs of about a minute or more)")] = False
    """Compile the gradient step of a run of any length; --set framework.compile=false compiles none."""
    device: Annotated[OptionalText, arg(metavar="DEVICE", help_behavior_hint="(default: the recipe's)")] = None
    """Device of the networks: cpu, cuda, cuda:1, ..."""
    recipe: bool = True
    """Use the recipe for this algorithm and environment, or for its family of environments, if there is one."""
    check: bool = True
    """First take some random steps in the environment, and refuse to train if it is broken."""
    trust: bool = False
    """Accept all objects that the file of --config names, which are executed. Your own files do not need this."""
    root: Path = field(default_factory=lambda: Path("runs"))
    """Folder in which the run gets a new folder."""

    def run(self) -> int:
        """Train one run, or several with successive seeds; return the exit code."""
        check_whole("--seeds", self.seeds, 1)
        check_whole("--jobs", self.jobs, 1)
        if self.jobs > 1 and RankInfo.of_process().world_size > 1:
            raise ValueError(f"--jobs {self.jobs} is not allowed on ranks, which make one run together; leave it out")
        settings = self.settings()
        if self.check:
            refuse_broken_environment(settings.config)
        if self.jobs > 1 and self.seeds > 1:
            return self._run_in_parallel(settings)
        return self._run_one_after_another(settings)

    def _run_one_after_another(self, settings: Settings) -> int:
        """Train the runs in this process; return the exit code."""
        first_seed = settings.config.debugging.seed
        folders = []
        for seed in range(first_seed, first_seed + self.seeds):
            config = settings.config.copy().debugging(seed=seed)
            algorithm = config.algorithm.upper()
            say(f"{algorithm} on {self.env}, seed {seed}")
            title = f"{algorithm} on {name_of_env(config.environment.env)}, seed {seed}"
            display = ProgressDisplay(make_console(), title=title)
            with Interruption(display) as interruption:
                run = prepare_run(
                    config,
                    self.root,
                    callbacks=[display, interruption],
                    init_from=self.init_from,
                    sources=self._sources(settings),
                )
                code = finish_run(run, config, interruption)
            folders.append(run.folder.path)
            if code:
                return code

        if len(folders) > 1:
            show_seed_runs(folders)
        return 0

    def _run_in_parallel(self, settings: Settings) -> int:
        """Train `jobs` runs at a time in their own processes, with one display; return the exit code."""
        config = settings.config
        seeds = range(config.debugging.seed, config.debugging.seed + self.seeds)
        outcome = _SeedRuns(f"{config.algorithm.upper()} on {self.env}")
        title = f"{outcome.name}, {self.seeds} seeds, {self.jobs} at once"
        display = SeedsDisplay(seeds, make_console(), title=title)
        with Interruption(display) as interruption:
            interruption.begin()
            events = run_seeds(
                config,
                seeds,
                jobs=self.jobs,
                root=self.root,
                init_from=self.init_from,
                sources=self._sources(settings),
                describe=plan_facts,
                wants_stop=lambda: interruption.signal is not None,
            )
            try:
                with closing(events), display:
                    for event in events:
                        outcome.show(event, display)
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else 130
                commands = [f"lockstep resume {shown_path(path)}" for path in outcome.unfinished_paths()]
                raise CommandFailedError(
                    f"stopped at once; if there is a checkpoint, continue with: {'; '.join(commands)}", code
                ) from None

        outcome.show_result(seeds, was_interrupted=interruption.signal is not None)
        if interruption.exit_code:
            return interruption.exit_code
        return FAILED if outcome.has_errors else 0

    def _sources(self, settings: Settings) -> list[str]:
        """Return where the settings and the first weights come from, in words."""
        if self.init_from is None:
            return settings.sources
        return [*settings.sources, f"weights of {shown_path(find_policy(self.init_from))}"]

    def settings(self) -> Settings:
        """Return the settings of the run.

        Each source overrides those before it: the recipe or the algorithm's defaults, the file of `--config`, the
        options of the command, the options of `--set`.
        """
        check_whole("--total-steps", self.total_steps, 1, optional=True)
        named_options = {
            "reporting.total_steps": self.total_steps,
            "debugging.seed": self.seed,
            "learners.num_learners": self.num_learners,
            "env_runners.num_env_runners": self.num_env_runners,
            "resources.ray_address": self.ray_address,
            "evaluation.stop_return": self.stop_return,
            "training.lr": self.lr,
            "framework.device": self.device,
            "framework.compile": self.compile or None,
            "reporting.loggers": list(dict.fromkeys(("jsonl", *self.logger))) if self.logger else None,
        }
        options = {path: value for path, value in named_options.items() if value is not None}
        options.update(map(parse_setting, self.set))
        settings = find_settings(
            self.algorithm,
            self.env,
            recipe=self.recipe,
            num_envs=self.num_envs,
            options=options,
            file=None if self.config is None else (str(self.config), read_config_file(self.config)),
            trust=self.trust,
        )
        settings.config.validate()
        return settings


class _SeedRuns:
    """State of several runs that train in parallel, and the text that is printed about them."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Algorithm and environment of all runs."""
        self._paths: dict[int, Path] = {}
        """Folder of each run that has begun, by seed."""
        self._ended: dict[int, SeedEnded] = {}

    @property
    def has_errors(self) -> bool:
        """Whether a run has failed."""
        return any(seed.error for seed in self._ended.values())

    def unfinished_paths(self) -> list[Path]:
        """Return the folders of the runs that have begun and not ended."""
        return [path for seed, path in self._paths.items() if seed not in self._ended]

    def show(self, event: SeedEvent, display: SeedsDisplay) -> None:
        """Show an event, and note the start or end of a run."""
        if isinstance(event, SeedProgress):
            display.show(event.seed, event.progress, line=event.line)
        elif isinstance(event, SeedEnded):
            self._ended[event.seed] = event
            state = f"failed: {event.error}" if event.error else "ended"
            display.show(event.seed, None, state, line=state)
        else:
            self._show_begin(event, display)
            self._paths[event.seed] = event.path

    def _show_begin(self, event: SeedBegun, display: SeedsDisplay) -> None:
        """Print the plan of the first run, which is the plan of all; for the other runs only the folder."""
        if self._paths:
            display.show(event.seed, None, line=f"begins in {shown_path(event.path)}")
            return
        facts = {**event.facts, "folder": shown_path(event.path)}
        display.say("\n".join([f"{self.name}, seed {event.seed}", *fact_lines(facts), ""]))

    def show_result(self, seeds: Sequence[int], *, was_interrupted: bool) -> None:
        """Print a table of the runs that succeeded, then one line for each other seed."""
        ended = [self._ended[seed] for seed in sorted(self._ended)]
        show_seed_runs([seed.path for seed in ended if seed.path is not None and not seed.error])
        for seed in seeds:
            end = self._ended.get(seed)
            if end is None:
                say(f"seed {seed} has not begun")
            elif end.error:
                sys.stderr.write(f"error: seed {seed}: {end.error}\n")
            elif was_interrupted and end.path is not None:
                say(f"continue seed {seed} with: lockstep resume {shown_path(end.path)}")
