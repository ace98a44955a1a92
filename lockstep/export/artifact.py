"""`export_policies`: write a folder with everything that acting needs, after a proof that it acts like the policy."""

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
from lockstep.connectors.acting import ActingObservations
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
from lockstep.state.signatures import signature_of
from lockstep.state.trust import SIGNATURE

ACT = "act.py"
README = "README.md"
NOISE_METHODS: Mapping[type[Distribution], str] = {
    Categorical: "gumbel",
    Bernoulli: "logistic",
    DiagGaussian: "standard_normal",
}
"""Method of numpy's generators that draws the noise of each distribution."""


class ExportablePart(Acting, Protocol):
    """Protocol of a part to export: a network and the connectors around it.

    It acts in the proof, which changes its memory, so it must not be shared with a running policy.
    """

    module: RLModule
    connectors: ModuleConnectors
    observations: ActingObservations
    action_space: Any


@dataclass(frozen=True)
class Origin:
    """Origin of a policy: facts for its card, and its environments."""

    facts: Mapping[str, Any]
    """Algorithm, environment, environment steps (`steps`), returns of an evaluation, versions."""
    make_envs: Callable[[int], VectorBoundary] | None = None
    """Function that makes a number of environments for the proof. None: the proof uses random observations."""


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
    """Write an artefact that maps raw observations to the environment's actions, and return its folder.

    Before the folder appears, 10,000 observations go through the policy and through the written file, and the actions
    are compared. After an error nothing is left.

    Args:
        parts: The part to export; with `in_folders` several parts by module id.
        path: Folder to write. An artefact that is there already is replaced.
        origin: Facts for the card, and environments for the proof.
        save: Function that writes the policy's checkpoint to a path, from which a new run can begin. If it raises
            `ValueError`, the artefact has no checkpoint.
        in_folders: Write each part to a folder of its name.
        file_format: `"onnx"` or `"torch"`.
        deterministic: Take the most likely actions. Otherwise an input `noise` selects them.

    Raises:
        ExportError: a part cannot be exported, or the artefact acts differently from the policy.
        ValueError: the format is unknown, or the folder holds other files.
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
            with suppress(ValueError):  # an option that cannot be saved, such as a function without a name
                save(temporary / CHECKPOINT)
        move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write(part: ExportablePart, folder: Path, origin: Origin, file_format: Format, draws: bool) -> None:
    """Write the files of one artefact after the proof."""
    graph = ActingGraph(part.module, part.connectors, part.observations, part.action_space, draws=draws)
    file = folder / FILES[file_format]
    write(graph, file, file_format)

    card = {"format": file_format, "file": file.name, "sha256": sha256_of(file), **_describe_graph(graph, origin)}
    card["versions"] = {**card["versions"], **versions_of(file_format)}
    if file_format in EVALUATED:
        card[SIGNATURE] = signature_of(signed_part(card))

    # The proof reads the artefact from its files, so they are written before and the card once more after it.
    _write_card(folder / CARD, card)
    card["parity"] = Proof(part, ExportedPolicy(folder, trust=True), graph).run(origin.make_envs).to_dict()
    _write_card(folder / CARD, card)
    (folder / README).write_text(model_card(card), encoding="utf-8")
    if file_format == "onnx":
        code = resources.files(__package__).joinpath("act.py.txt").read_text(encoding="utf-8")
        (folder / ACT).write_text(code, encoding="utf-8")


def checked_target(path: str | Path) -> Path:
    """Return the folder to write to. `ValueError` if it exists and is neither empty nor an export."""
    target = Path(path).absolute()
    if target.suffix in (".onnx", ".pt", ".pt2"):
        raise ValueError(f"{path} is the name of a file; give a folder, {target.with_suffix('').name}/ for example")
    if target.exists():
        is_replaceable = target.is_dir() and (any(exported_in(target)) or not any(target.iterdir()))
        if not is_replaceable:
            raise ValueError(f"{path} exists and is no export; give another folder")
    return target


def _describe_graph(graph: ActingGraph, origin: Origin) -> dict[str, Any]:
    """Return the entries of a card that describe a graph, so that a program without Lockstep can run it."""
    names = (port.name for port in graph.actions)
    return {
        **origin.facts,
        "deterministic": not graph.draws,
        "observation_space": describe_space(graph.observation_space),
        "action_space": describe_space(graph.action_space),
        "observation": [port.to_dict() for port in graph.observations],
        "observation_groups": {part: list(paths) for part, paths in (graph.module.observation_groups or {}).items()},
        "reads_reward": any(port.name == "reward" for port in graph.extra),
        "noise": _noise_draws(graph.dist.dist_class, graph.dist.static) if graph.draws else [],
        "state": [port.to_dict() for port in graph.states],
        "outputs": graph.output_names,
        "actions": [port.to_dict() for port in graph.actions],
        "action": _as_lists(graph.action_space, tree_of(graph.action_space, names)),
    }


def _noise_draws(dist_class: type[Distribution], static: Mapping[str, Any]) -> list[list[Any]]:
    """Return how to draw the noise: `[method of numpy's generators, number of values]` for each part."""
    if dist_class is Composite:
        draws = []
        for part in static["parts"]:
            draws += _noise_draws(*part)
        return draws
    for known, method in NOISE_METHODS.items():
        if issubclass(dist_class, known):
            return [[method, dist_class.noise_size(**static)]]
    raise ExportError(
        f"a policy of {dist_class.__name__} actions is not drawn from a distribution; leave out --sample "
        "(deterministic=True)"
    )


def _as_lists(space: Space[Any], tree: Tree) -> Any:
    """Return a tree of names for JSON: a Dict as an object, a Tuple as a list."""
    if isinstance(space, spaces.Dict):
        return {key: _as_lists(part, tree[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [_as_lists(part, name) for part, name in zip(space.spaces, tree)]
    return tree


def _write_card(path: Path, card: Mapping[str, Any]) -> None:
    # Not `tracking.records.write_json`: strict JSON has no infinite numbers, and bounds of spaces must stay numbers.
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def exported_in(path: Path) -> Iterator[Path]:
    """Yield the folders of the artefacts in a folder: itself, or one for each module of several agents."""
    if (path / CARD).exists():
        yield path
    else:
        yield from sorted(folder.parent for folder in path.glob(f"*/{CARD}"))
