"""`train`: from two names to a trained agent and its folder, with the settings that the command line takes too."""

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
from lockstep.runs.run import TrainResult, prepare_run
from lockstep.trainer.build import rescale_schedules
from lockstep.trainer.callbacks import Callback

RUNNERS, ENVS_PER_RUNNER = "env_runners.num_env_runners", "env_runners.num_envs_per_env_runner"


@dataclass
class Settings:
    """A configuration and where its options come from."""

    config: AlgorithmConfig
    sources: list[str] = field(default_factory=list)
    """in words, in the order in which they were applied"""

    def share_environments(self, options: Collection[str], num_envs: int) -> None:
        """Share `num_envs` environments out over the env runners, where `options` set the number of env runners (or of
        all environments) and not that of the environments of each.
        """
        if ENVS_PER_RUNNER in options or not {RUNNERS, "num_envs"} & set(options):
            return
        section = self.config.env_runners
        section(num_envs_per_env_runner=section.split(num_envs))
        if section.num_env_runners > 1:
            self.sources.append(f"{num_envs} environments, {section.num_envs_per_env_runner} on each env runner")

    def stretch(self, before: int, after: object) -> None:
        """Stretch the schedules of a recipe from one length of the run to another."""
        if after is None or after == before:
            return
        length: int = check_whole("reporting.total_steps", after, 1)
        stretched = rescale_schedules(self.config.training.options(), length / before)
        if stretched:
            self.config.set_section("training", stretched)
            paths = ", ".join(f"training.{name}" for name in stretched)
            self.sources.append(f"{paths} stretched to {length:,} steps")

    def start_early(self, total_steps: int | None) -> None:
        """Begin to learn in the first tenth of a run, where settings of a family are made for longer ones."""
        config = self.config
        if total_steps is not None and config.is_off_policy and config.replay.learning_starts > total_steps // 10:
            config.replay(learning_starts=total_steps // 10)
            self.sources.append(f"replay.learning_starts={total_steps // 10:,}, a tenth of the run")


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
    """Return the settings of a run: the recipe (or those for the environment's family, or the algorithm's defaults, or
    a copy of a configuration), then the options by section of `file`, `(name, options)`, then `options` by path.

    `env`: an id, `module:Class`, a PettingZoo module, a class or a function. An id without a version gets the highest
    one, which the configuration names, so that it is the same environment for ever. `num_envs`: environments of all env
    runners together. The number of all environments stays the same where only the number of env runners is set. The
    schedules of a recipe are stretched where `options` set other `reporting.total_steps`. `trust`: take all objects
    that the file names. Raises `ValueError` for mistakes, and (`UntrustedError`) for an object in the file that needs
    `trust=True`.
    """
    options = settings_by_path(options or {})
    if isinstance(env, str):
        named = named_environment(env)
        env = env if is_module_name(env) else with_version(named) if isinstance(named, str) else named
    settings, found = _first_settings(algorithm, env, recipe)
    config = settings.config
    length = None  # of the run that a whole configuration in a file is made for, with its schedules
    if file is not None:
        name, sections = file
        runners, total = sections.get("env_runners"), config.env_runners.num_envs
        config.update_from_dict(sections, trust=trust, file=name)
        if config.training.options().keys() <= sections.get("training", {}).keys():
            length = config.reporting.total_steps
        settings.sources.append(name)
        names = runners if isinstance(runners, Mapping) else ()
        settings.share_environments([f"env_runners.{option}" for option in names], total)
    if env is not None:
        config.environment(env)
    if found is not None:
        total_steps = options.get("reporting.total_steps")
        settings.stretch(length or found.total_steps, total_steps)
        if isinstance(found, Family):
            settings.start_early(total_steps)
    total = config.env_runners.num_envs
    for path, value in options.items():
        config.set_path(path, value)
    if num_envs is not None:
        if ENVS_PER_RUNNER in options:
            raise ValueError(
                f"num_envs={num_envs} and {ENVS_PER_RUNNER}={options[ENVS_PER_RUNNER]} are not allowed together; give "
                "num_envs for the environments of all env runners, or the other for those of each"
            )
        total = check_whole("num_envs", num_envs, 1)
        options = {"num_envs": num_envs, **options}
    if options:
        settings.sources.append(", ".join(f"{path}={value!r}" for path, value in options.items()))
    settings.share_environments(options, total)
    return settings


def _first_settings(
    algorithm: str | AlgorithmConfig, env: EnvLike | None, recipe: bool
) -> tuple[Settings, Recipe | Family | None]:
    """Return the settings that a run begins with, and the recipe or family that they are of."""
    if isinstance(algorithm, AlgorithmConfig):
        return Settings(algorithm.copy(), ["the configuration that was given"]), None
    config = get_config(algorithm)
    name = env.rpartition(":")[2] if isinstance(env, str) else env
    found = (find_recipe(config.algorithm, name) or find_family(config.algorithm, name)) if recipe else None
    if found is None:
        return Settings(config, [f"the defaults of {config.algorithm}"]), None
    if isinstance(found, Recipe):
        words = f"the recipe for {found.algorithm} on {found.env} (reference return {found.reference_return:g})"
    else:
        words = f"the settings of {found.source} for {found.algorithm} on {found.pattern} (no return is promised)"
    return Settings(found.config(), [words]), found


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
) -> TrainResult:
    """Train and return the policy, the history and the run's folder.

    `algorithm`: a name such as "ppo", or a configuration. `env`: an id, `module:Class`, a class or a function. A name
    begins with the recipe for this algorithm and environment where there is one (`recipe=False`: with the
    algorithm's defaults), as the command `lockstep train` does; `result.sources` says with which. A configuration
    is taken as it is. `num_envs`: environments in all, however many env runners share them. `settings`: more
    options by path, `{"training.lr": 1e-3}`, or nested, `{"training": {"lr": 1e-3}}`. `init_from`: a run or a
    checkpoint to begin with the weights and the connectors' statistics of; everything else is new. Raises
    `ValueError` for unknown names (with a suggestion).
    """
    named = {"reporting.total_steps": total_steps, "debugging.seed": seed}
    options = {path: value for path, value in named.items() if value is not None}
    chosen = find_settings(
        algorithm, env, recipe=recipe, num_envs=num_envs, options={**options, **settings_by_path(settings or {})}
    )
    if init_from is not None:
        chosen.sources.append(f"weights of {init_from}")
    run = prepare_run(chosen.config, root, callbacks=callbacks, init_from=init_from, sources=chosen.sources)
    return run.finish()
