"""`export_policies`: one folder with all that acting needs, proven to act as the policy does before it is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, cast, get_args

from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors import ModuleConnectors
from lockstep.data.spaces import describe_space
from lockstep.data.trees import Tree
from lockstep.envs import VectorBoundary
from lockstep.export.exported import CARD, CHECKPOINT, EVALUATED, ExportedPolicy, sha256_of, signed_part
from lockstep.export.formats import FILES, Format, versions_of, write
from lockstep.export.graph import ActingGraph, ExportError, tree_of
from lockstep.export.model_card import model_card
from lockstep.export.parity import Acting, Proof
from lockstep.modules import RLModule
from lockstep.ops.distributions import Bernoulli, Categorical, Composite, DiagGaussian, Distribution
from lockstep.state.replace import clear_stale, move_into_place, temporary_sibling
from lockstep.state.trust import SIGNATURE, signature_of

ACT, README = "act.py", "README.md"
DRAWN: Mapping[type[Distribution], str] = {
    Categorical: "gumbel",
    Bernoulli: "logistic",
    DiagGaussian: "standard_normal",
}
"""the method of numpy's generators that draws the noise of a distribution"""


class ExportablePart(Acting, Protocol):
    """What is exported: a network and the connectors around it. It acts in the proof, so it is of the export's own."""

    module: RLModule
    connectors: ModuleConnectors
    observation_space: Any
    action_space: Any


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from, for its card."""

    facts: Mapping[str, Any]
    """algorithm, environment, environment steps (`steps`), returns of an evaluation, versions"""
    make_envs: Callable[[int], VectorBoundary] | None = None
    """makes environments to prove the artefact in; None: there are none, it is proven with random observations"""


def export_policies(
    parts: Mapping[str, ExportablePart],
    path: str | Path,
    origin: Origin,
    *,
    save: Callable[[Path], Any] | None = None,
    in_folders: bool = False,
    file_format: str = "onnx",
    deterministic: bool = True,
) -> Path:
    """Write an artefact to the folder `path` and return it; one that is there already is replaced.

    It takes raw observations and gives the environment's actions: the most likely ones, or without `deterministic`
    those that an input `noise` selects. Before it is put in its place, 10,000 observations go through the policy and
    through the written file. `parts` has one part, or with `in_folders` several, each of which gets a folder of its
    name. `save(path)` writes the policy's checkpoint, with which a new run can begin; one that cannot be saved is left
    out.

    Raises:
        ExportError: what cannot be exported and why, or an artefact that acts otherwise than the policy; nothing is
            left then.
        ValueError: another format, or a folder with other files.
        ImportError: packages that the format needs are missing.
    """
    if file_format not in get_args(Format):
        raise ValueError(f"format={file_format!r} is not allowed; it must be one of {', '.join(get_args(Format))}")
    target = checked_target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_stale(target.parent)
    temporary = temporary_sibling(target)
    temporary.mkdir()
    try:
        for name, part in parts.items():
            folder = temporary / name if in_folders else temporary
            folder.mkdir(exist_ok=True)
            _write(part, folder, origin, cast(Format, file_format), draws=not deterministic)
        if save is not None:
            with suppress(ValueError):  # options that cannot be saved: a function without a name, say
                save(temporary / CHECKPOINT)
        move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write(part: ExportablePart, folder: Path, origin: Origin, file_format: Format, draws: bool) -> None:
    """Write the files of one artefact, and prove them."""
    graph = ActingGraph(part.module, part.connectors, part.observation_space, part.action_space, draws=draws)
    file = folder / FILES[file_format]
    write(graph, file, file_format)
    card = {"format": file_format, "file": file.name, "sha256": sha256_of(file), **_describe_graph(graph, origin)}
    card["versions"] = {**card["versions"], **versions_of(file_format)}
    if file_format in EVALUATED:
        card[SIGNATURE] = signature_of(signed_part(card))
    _write_card(folder / CARD, card)
    card["parity"] = Proof(part, ExportedPolicy(folder, trust=True), graph).run(origin.make_envs).to_dict()
    _write_card(folder / CARD, card)
    (folder / README).write_text(model_card(card))
    if file_format == "onnx":
        (folder / ACT).write_text(resources.files(__package__).joinpath("act.py.txt").read_text())


def checked_target(path: str | Path) -> Path:
    """Return the folder to write to. `ValueError` where something else than an export is in the way."""
    target = Path(path).absolute()
    if target.suffix in (".onnx", ".pt", ".pt2"):
        raise ValueError(f"{path} is the name of a file; give a folder, {target.with_suffix('').name}/ for example")
    if target.exists() and not (target.is_dir() and (any(exported_in(target)) or not any(target.iterdir()))):
        raise ValueError(f"{path} exists and is no export; give another folder")
    return target


def _describe_graph(graph: ActingGraph, origin: Origin) -> dict[str, Any]:
    names = (port.name for port in graph.actions)
    return {
        **origin.facts,
        "deterministic": not graph.draws,
        "observation_space": describe_space(graph.observation_space),
        "action_space": describe_space(graph.action_space),
        "observation": [port.to_dict() for port in graph.observations],
        "reads_reward": any(port.name == "reward" for port in graph.extra),
        "noise": _drawn(graph.dist.dist_class, graph.dist.static) if graph.draws else [],
        "state": [port.to_dict() for port in graph.states],
        "outputs": graph.output_names,
        "actions": [port.to_dict() for port in graph.actions],
        "action": _as_lists(graph.action_space, tree_of(graph.action_space, names)),
    }


def _drawn(dist_class: type[Distribution], static: Mapping[str, Any]) -> list[list[Any]]:
    """Return how the noise is drawn: method of numpy's generator and number of numbers, part after part."""
    if dist_class is Composite:
        return [each for part in static["parts"] for each in _drawn(*part)]
    for known, method in DRAWN.items():
        if issubclass(dist_class, known):
            return [[method, dist_class.noise_size(**static)]]
    raise ExportError(
        f"a policy of {dist_class.__name__} actions is not drawn from a distribution; leave out --sample "
        "(deterministic=True)"
    )


def _as_lists(space: Space[Any], tree: Tree) -> Any:
    """Return the tree of names in JSON: a Dict as an object, a Tuple as a list."""
    if isinstance(space, spaces.Dict):
        return {key: _as_lists(part, tree[key]) for key, part in space.spaces.items()}
    return (
        [_as_lists(part, each) for part, each in zip(space.spaces, tree)] if isinstance(space, spaces.Tuple) else tree
    )


def _write_card(path: Path, card: Mapping[str, Any]) -> None:
    # Not `tracking.records.write_json`: bounds of spaces stay numbers here, infinite ones too.
    path.write_text(json.dumps(card, indent=2) + "\n")


def exported_in(path: Path) -> Iterator[Path]:
    """Yield the artefacts in a folder: itself, or one for each module of several agents."""
    if (path / CARD).exists():
        yield path
    else:
        yield from sorted(folder.parent for folder in path.glob(f"*/{CARD}"))
