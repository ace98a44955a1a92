"""`train`: trains an agent from the names of an algorithm and an environment, as `lockstep train` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.algorithms import get_config
from lockstep.builder import AlgorithmConfig
from lockstep.envs.boundary import EnvLike
from lockstep.envs.make import is_module_name, named_environment, with_version
from lockstep.options.checks import check_whole
from lockstep.options.section import settings_by_path
from lockstep.recipes import Recipe, find_recipe
from lockstep.recipes.families import Family, find_family
from lockstep.runs.run import TrainResult, prepare_run, progress_displays
from lockstep.trainer.build import rescale_schedules
from lockstep.trainer.callbacks import Callback

RUNNERS = "env_runners.num_env_runners"
ENVS_PER_RUNNER = "env_runners.num_envs_per_env_runner"


@dataclass
class Settings:
    """Configuration of a run, with the sources of its options."""

    config: AlgorithmConfig
    """The configuration, which is changed in place."""
    sources: list[str] = field(default_factory=list)
    """Descriptions of the sources, in the order in which they were applied."""

    def share_environments(self, options: Collection[str], num_envs: int) -> None:
        """Divide `num_envs` environments among the env runners, if their number per env runner is not set.

        Args:
            options: paths of the options that were set. Only a number of env runners, or of all environments
                (`num_envs`), is a reason to divide them.
            num_envs: number of environments of all env runners together.
        """
        if ENVS_PER_RUNNER in options or not {RUNNERS, "num_envs"} & set(options):
            return
        section = self.config.env_runners
        section(num_envs_per_env_runner=section.split(num_envs))
        if section.num_env_runners > 1:
            self.sources.append(f"{num_envs} environments, {section.num_envs_per_env_runner} on each env runner")

    def stretch(self, before: int, after: object) -> None:
        """Stretch the schedules of a recipe from one length of the run to another. None leaves them as they are."""
        if after is None or after == before:
            return
        length: int = check_whole("reporting.total_steps", after, 1)
        stretched = rescale_schedules(self.config.training.options(), length / before)
        if stretched:
            self.config.set_section("training", stretched)
            paths = ", ".join(f"training.{name}" for name in stretched)
            self.sources.append(f"{paths} stretched to {length:,} steps")

    def start_early(self, total_steps: int | None) -> None:
        """Begin to learn in the first tenth of a run. The settings of families are made for runs of millions of steps.

        With them a short run would end before it has learned anything.
        """
        config = self.config
        if total_steps is not None and config.is_off_policy and config.replay.learning_starts > total_steps // 10:
            config.replay(learning_starts=total_steps // 10)
            self.sources.append(f"replay.learning_starts={total_steps // 10:,}, a tenth of the run")

    def apply_file(self, name: str, sections: Mapping[str, Any], trust: bool) -> int | None:
        """Apply the options of a file, by section.

        Returns:
            The length of the run that the file's schedules are made for; None if the file has no whole section
            `training`, and with it schedules.
        """
        config = self.config
        num_envs = config.env_runners.num_envs
        config.update_from_dict(sections, trust=trust, file=name)
        self.sources.append(name)
        runners = sections.get("env_runners")
        names = runners if isinstance(runners, Mapping) else ()
        self.share_environments([f"env_runners.{option}" for option in names], num_envs)
        has_schedules = config.training.options().keys() <= sections.get("training", {}).keys()
        return config.reporting.total_steps if has_schedules else None

    def apply_options(self, options: Mapping[str, Any], num_envs: int | None) -> None:
        """Apply options by path, and a number of environments of all env runners together, unless it is None."""
        num_total = self.config.env_runners.num_envs
        for path, value in options.items():
            self.config.set_path(path, value)
        if num_envs is not None:
            if ENVS_PER_RUNNER in options:
                raise ValueError(
                    f"num_envs={num_envs} and {ENVS_PER_RUNNER}={options[ENVS_PER_RUNNER]} are not allowed together; "
                    "give num_envs for the environments of all env runners, or the other for those of each"
                )
            num_total = check_whole("num_envs", num_envs, 1)
            options = {"num_envs": num_envs, **options}
        if options:
            self.sources.append(", ".join(f"{path}={value!r}" for path, value in options.items()))
        self.share_environments(options, num_total)


def find_settings(
    algorithm: str | AlgorithmConfig,
    env: EnvLike | None = None,
    *,
    recipe: bool = True,
    num_envs: int | None = None,
    options: Mapping[str, Any] | None = None,
    file: tuple[str, Mapping[str, Any]] | None = None,
    trust: bool = False,
) -> Settings:
    """Return the settings of a run.

    They begin with the recipe; or the settings for the environment's family; or the algorithm's defaults; or a copy of
    a configuration. Options of a file are applied next, and `options` last. The number of all environments stays the
    same if only the number of env runners is set. The schedules of a recipe are stretched if `options` have another
    `reporting.total_steps`.

    Args:
        algorithm: name of an algorithm, or a configuration.
        env: an id, `module:Class`, a PettingZoo module, a class or a function. An id without a version gets the highest
            one. The configuration names the version, so that it always means the same environment.
        recipe: whether recipes and settings of families are used.
        num_envs: number of environments of all env runners together.
        options: options by path, or nested.
        file: name of a file, and its options by section.
        trust: whether all objects that the file names are accepted.

    Raises:
        ValueError: an option or a name is wrong.
        UntrustedError: the file names an object that needs `trust=True`.
    """
    options = settings_by_path(options or {})
    if isinstance(env, str):
        named = named_environment(env)
        if not is_module_name(env):  # a module stays a name, which can be saved; that it exists is checked by now
            env = with_version(named) if isinstance(named, str) else named
    settings, preset = _first_settings(algorithm, env, recipe)

    schedule_steps = None
    if file is not None:
        name, sections = file
        schedule_steps = settings.apply_file(name, sections, trust)
    if env is not None:
        settings.config.environment(env)
    if preset is not None:
        total_steps = options.get("reporting.total_steps")
        settings.stretch(schedule_steps or preset.total_steps, total_steps)
        if preset.is_for_long_runs:
            settings.start_early(total_steps)
    settings.apply_options(options, num_envs)
    return settings


def _first_settings(
    algorithm: str | AlgorithmConfig, env: EnvLike | None, recipe: bool
) -> tuple[Settings, Recipe | Family | None]:
    """Return the settings that a run begins with, and the recipe or family that they come from."""
    if isinstance(algorithm, AlgorithmConfig):
        return Settings(algorithm.copy(), ["the configuration that was given"]), None
    config = get_config(algorithm)
    name = env.rpartition(":")[2] if isinstance(env, str) else env
    preset: Recipe | Family | None = None
    if recipe:
        preset = find_recipe(config.algorithm, name) or find_family(config.algorithm, name)
    if preset is None:
        return Settings(config, [f"the defaults of {config.algorithm}"]), None
    return Settings(preset.config(), [preset.description]), preset


def train(
    algorithm: str | AlgorithmConfig,
    env: EnvLike | None = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    recipe: bool = True,
    root: str | Path = "runs",
    callbacks: Sequence[Callback] = (),
    settings: Mapping[str, Any] | None = None,
    init_from: str | Path | None = None,
    progress: bool = False,
) -> TrainResult:
    """Train an agent, and return its policy, the history and the run's folder.

    An algorithm's name begins with the recipe for the environment, as the command `lockstep train` does, or with other
    settings that `result.sources` names. A configuration is taken as it is.

    Args:
        algorithm: name such as "ppo", or a configuration.
        env: an id, `module:Class`, a class or a function.
        total_steps: environment steps of the run (offline: gradient steps).
        seed: seed of all random streams.
        num_envs: number of environments of all env runners together.
        recipe: whether a recipe is used; otherwise the algorithm's defaults.
        root: folder in which the run's folder is made.
        callbacks: callbacks of the trainer.
        settings: further options by path, `{"training.lr": 1e-3}`, or nested, `{"training": {"lr": 1e-3}}`.
        init_from: a run or a checkpoint whose weights and connector statistics are used at the beginning. Everything
            else is new.
        progress: whether to show the progress: a live display in a terminal or a notebook, which there has a picture of
            the returns, and lines of text elsewhere.

    Raises:
        ValueError: a name is unknown. The message suggests the closest one.
    """
    options: dict[str, Any] = {}
    if total_steps is not None:
        options["reporting.total_steps"] = total_steps
    if seed is not None:
        options["debugging.seed"] = seed
    options.update(settings_by_path(settings or {}))

    run_settings = find_settings(algorithm, env, recipe=recipe, num_envs=num_envs, options=options)
    sources = run_settings.sources
    if init_from is not None:
        sources.append(f"weights of {init_from}")
    config = run_settings.config
    run = prepare_run(
        config, root, callbacks=[*progress_displays(progress, config), *callbacks], init_from=init_from, sources=sources
    )
    return run.finish()
