"""`trust_run`: sign a run of one's own that has no signature, as runs of version 0.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.state.checkpoint import MANIFEST, CheckpointError, read_checkpoint
from lockstep.state.names import is_of_lockstep
from lockstep.state.trust import named_objects, names_module, without_signature, write_signatures
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import CONFIG, find_run

PARTS_WITH_NAMES = ("policy", "learner", "evaluation/policy", "evaluation/learner")
"""folders of a full checkpoint that name objects"""
SIGNED_KEYS = (
    {"algorithm", "environment"},
    {"module_class", "observation_space", "model_config"},
    {"spec", "config_overrides"},
    {"learner_class", "module_configs"},
)
"""keys of the dicts that are signed as a whole: a configuration, a module's spec, a module's and a learner's recipe"""


def trust_run(path: str | Path) -> dict[str, str]:
    """Sign all names in a run's folder, or in a checkpoint, as this user's own; return the objects by option.

    From then on the run is resumed, evaluated and exported as if this user had made it. The signatures are kept in
    `signatures.json` in the folder; no other file is changed. A name that is changed later is not covered.

    Raises `ValueError` where there is neither a run nor a checkpoint, and where no key can be kept.
    """
    folder = find_run(path).absolute()
    trees = list(_trees_in(folder))
    if not trees:
        raise ValueError(f"{path} is neither a run's folder nor a checkpoint: there is nothing to sign")
    payloads = []
    found: dict[str, str] = {}
    for tree in trees:
        for part in _signed_parts(tree):
            entries = named_objects(without_signature(part))
            payloads.append(entries)
            found |= {option.lstrip("."): name for option, name in entries if _is_object(name)}
    write_signatures(folder, payloads)
    return found


def _is_object(name: object) -> bool:
    return isinstance(name, str) and names_module(name) and not is_of_lockstep(name)


def _trees_in(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Iterate over what the files in a folder hold, where they may name objects."""
    if (folder / CONFIG).is_file() and not (folder / MANIFEST).is_file():
        yield {"config": RunFolder.open(folder).info["config"]}
    for manifest in sorted(folder.rglob(MANIFEST)):
        place = manifest.parent
        is_whole = not (place.parent / MANIFEST).is_file()
        parts = [place / name for name in PARTS_WITH_NAMES if (place / name / MANIFEST).is_file()]
        if not is_whole:
            continue
        for part in parts or [place]:
            try:
                yield read_checkpoint(part)
            except CheckpointError:
                continue  # a damaged one is not used either


def _signed_parts(tree: object) -> Iterator[Mapping[str, Any]]:
    """Iterate over the dicts in a tree that hold a signature of their own."""
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from _signed_parts(part)
    if not isinstance(tree, Mapping):
        return
    if any(keys <= tree.keys() for keys in SIGNED_KEYS):
        yield tree
    for part in tree.values():
        yield from _signed_parts(part)
