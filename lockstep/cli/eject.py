"""`lockstep eject`: one Python file that trains what `lockstep train` trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.cli.arguments import MaybeCount, MaybePath, parse_setting, read_config_file
from lockstep.cli.terminal import say_facts, shown_path
from lockstep.eject import eject
from lockstep.recipes.training import find_settings


@dataclass
class Eject:
    """Write one Python file, without Lockstep, that trains the same agent: `lockstep eject ppo CartPole-v1`."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Its name: ppo, dqn or sac."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """An environment's id that gymnasium has by itself, e.g. CartPole-v1."""
    output: Annotated[MaybePath, arg(aliases=["-o"])] = None
    """The file to write, which may not be there yet; else ALGORITHM_ENV.py."""
    total_steps: MaybeCount = None
    """Environment steps of the whole run."""
    seed: MaybeCount = None
    """Seed of all random streams."""
    num_envs: MaybeCount = None
    """Environments stepped together."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any option: section.option=value with a JSON value, e.g. training.lr=3e-4. May be repeated."""
    config: MaybePath = None
    """JSON file of options by section, or the config.json of a run."""
    recipe: bool = True
    """Use the recipe for this algorithm and environment where there is one; else the algorithm's defaults."""
    trust: bool = False
    """Take all objects that the file of --config names, such as functions, which are run. Your own need no word."""

    def run(self) -> int:
        """Write the file; return the exit code."""
        named = {"reporting.total_steps": self.total_steps, "debugging.seed": self.seed}
        settings = find_settings(
            self.algorithm,
            self.env,
            recipe=self.recipe,
            num_envs=self.num_envs,
            options={path: value for path, value in named.items() if value is not None}
            | dict(parse_setting(text) for text in self.set),
            file=None if self.config is None else (str(self.config), read_config_file(self.config)),
            trust=self.trust,
        )
        path = eject(settings.config, self.output or f"{self.algorithm}_{self.env}.py", sources=settings.sources)
        say_facts(
            {
                "settings": "; ".join(settings.sources),
                "written": f"{shown_path(path)} ({len(path.read_text(encoding='utf-8').splitlines())} lines)",
                "train with it": f"python {shown_path(path)}",
            }
        )
        return 0
