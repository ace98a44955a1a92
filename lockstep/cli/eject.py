"""`lockstep eject`: write one Python file that trains without Lockstep what `lockstep train` trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from lockstep.cli.arguments import OptionalCount, OptionalPath, OptionValues, parse_setting, read_config_file
from lockstep.cli.terminal import say_facts, shown_path
from lockstep.eject import eject
from lockstep.recipes.training import find_settings


@dataclass
class Eject:
    """Write one Python file that trains the same agent without Lockstep: `lockstep eject ppo CartPole-v1`."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Algorithm: ppo, dqn or sac."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Id of an environment that is part of gymnasium, e.g. CartPole-v1."""
    output: Annotated[OptionalPath, arg(aliases=["-o"], help_behavior_hint="(default: ALGORITHM_ENV.py)")] = None
    """File to write. It must not exist."""
    total_steps: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Environment steps of the whole run."""
    seed: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Seed of all random numbers."""
    num_envs: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Number of environments that are stepped together."""
    set: OptionValues = ()
    """Set any option; the value is JSON. Example: --set training.lr=3e-4."""
    config: Annotated[OptionalPath, arg(help_behavior_hint="(default: no file)")] = None
    """JSON file with options by section, or the config.json of a run."""
    recipe: bool = True
    """Use the recipe for this algorithm and environment if there is one, otherwise the algorithm's defaults."""
    trust: bool = False
    """Accept all objects that the file of --config names, which are executed. Your own files do not need this."""

    def run(self) -> int:
        """Write the file; return the exit code."""
        options = {}
        if self.total_steps is not None:
            options["reporting.total_steps"] = self.total_steps
        if self.seed is not None:
            options["debugging.seed"] = self.seed
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
        output = self.output or f"{settings.config.algorithm}_{self.env}.py"
        path = eject(settings.config, output, sources=settings.sources)
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        say_facts(
            {
                "settings": "; ".join(settings.sources),
                "written": f"{shown_path(path)} ({num_lines} lines)",
                "train with it": f"python {shown_path(path)}",
            }
        )
        return 0
