"""What each command takes, as tyro reads it: the docstrings here are the help texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec


def whole_number(text: str) -> int:
    """`"100_000"`, `"1e6"` -> int. `ValueError` for anything that is no whole number."""
    try:
        return int(text)
    except ValueError:
        found = number(text)
        if not found.is_integer():
            raise ValueError(f"{text!r} is no whole number") from None
        return int(found)


def number(text: str) -> float:
    """Text -> float. `ValueError` for anything that is no number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def _reader(kind: type, read: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """One word of the command line, read by `read`; None is only what it is where the option is left out."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda given: read(given[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )


Count = Annotated[int, _reader(int, whole_number, "INT")]
MaybeCount = Annotated[int | None, _reader(int, whole_number, "INT")]
MaybeNumber = Annotated[float | None, _reader(float, number, "FLOAT")]
MaybeText = Annotated[str | None, _reader(str, str, "STR")]
MaybePath = Annotated[Path | None, _reader(Path, Path, "PATH")]


@dataclass
class Train:
    """Train an agent: `lockstep train ppo CartPole-v1`."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Its name, e.g. ppo; `lockstep list` shows all."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """An environment's id (CartPole-v1, package:Id-v0), or module:Class of your own."""
    total_steps: MaybeCount = None
    """Environment steps of the whole run."""
    seed: MaybeCount = None
    """Seed of all random streams."""
    seeds: Count = 1
    """Number of runs, one after the other, with seeds from --seed upwards."""
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
    """Use the recipe for this algorithm and environment where there is one; else the algorithm's defaults."""
    check: bool = True
    """Take some random steps in the environment first and refuse one that is broken."""
    root: Path = field(default_factory=lambda: Path("runs"))
    """Where the run's folder is made."""


@dataclass
class Resume:
    """Go on with a run from its newest intact checkpoint."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """The run's folder."""
    total_steps: MaybeCount = None
    """A new length of the whole run, the steps that it has included."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Another value from here on: section.option=value, e.g. training.lr=1e-4. May be repeated."""


@dataclass
class Eval:
    """Evaluate the best policy of a run on new episodes."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
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


@dataclass
class Plot:
    """Draw the learning curves of runs; several seeds become an interquartile mean with its interval."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN")]]
    """Folders of runs."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("curves.png"))
    """The picture to write."""
    metric: str = "returns_stat/mean"
    """Name of the record."""
    scope: Literal["test", "train"] = "test"
    """Of evaluation, or of training episodes."""


@dataclass
class List:
    """List algorithms, the spaces they take, and recipes with their reference scores."""

    options: bool = False
    """Every option of every algorithm, too."""
    markdown: bool = False
    """The whole reference, options included, as Markdown."""


@dataclass
class Doctor:
    """Where a run's time went; or what is wrong with an environment, and how fast it is."""

    subject: Positional[Annotated[str, arg(metavar="RUN|ENV")]]
    """A run's folder, or an environment's id (or module:Class)."""
    steps: Count = 2000
    """Random steps to look at an environment for."""


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def parse(given: list[str]) -> Train | Resume | Eval | Plot | List | Doctor:
    """The command that `given` names. Ends the process with help (0) or a message about what is wrong (2)."""
    return tyro.cli(
        Command,
        prog="lockstep",
        description="Reinforcement learning on PyTorch: train, evaluate, resume, compare.",
        args=given,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
    )
