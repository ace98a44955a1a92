"""Signatures for a user's own runs that have none, such as runs of version 0.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.state.checkpoint import MANIFEST, CheckpointError, read_checkpoint
from lockstep.state.names import is_of_lockstep
from lockstep.state.signatures import write_signatures
from lockstep.state.trust import named_objects, names_module, without_signature
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import CONFIG, find_run

PARTS_WITH_NAMES = ("policy", "learner", "evaluation/policy", "evaluation/learner")
"""Folders of a full checkpoint whose files name objects."""
SIGNED_KEYS = (
    {"algorithm", "environment"},
    {"module_class", "observation_space", "model_config"},
    {"spec", "config_overrides"},
    {"learner_class", "module_configs"},
)
"""Keys that identify a dict that is signed as a whole: a configuration, a module's spec, a module's recipe, and a
learner's recipe."""


def trust_run(path: str | Path) -> dict[str, str]:
    """Sign all names in a run's folder, or in a checkpoint, as this user's own; return the objects by option.

    From then on the run is resumed, evaluated and exported as if this user had made it. The signatures are written to
    `signatures.json` in the folder, and no other file is changed. The signature of a name does not cover what the name
    is changed to later.

    Raises:
        ValueError: the folder is neither a run nor a checkpoint, or the user's key cannot be stored.
    """
    folder = find_run(path).absolute()
    trees = list(_trees_in(folder))
    if not trees:
        raise ValueError(f"{path} is neither a run's folder nor a checkpoint: there is nothing to sign")

    payloads = []
    objects: dict[str, str] = {}
    for tree in trees:
        for part in _signed_parts(tree):
            entries = named_objects(without_signature(part))
            payloads.append(entries)
            for option, name in entries:
                if _is_foreign_object(name):
                    objects[option.lstrip(".")] = name

    write_signatures(folder, payloads)
    return objects


def _is_foreign_object(name: object) -> bool:
    """Return whether a name is that of an object outside Lockstep, which needs the user's trust."""
    return isinstance(name, str) and names_module(name) and not is_of_lockstep(name)


def _trees_in(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Iterate over the contents of all files in a folder that may name objects."""
    if (folder / CONFIG).is_file() and not (folder / MANIFEST).is_file():
        yield {"config": RunFolder.open(folder).info["config"]}

    for manifest in sorted(folder.rglob(MANIFEST)):
        checkpoint = manifest.parent
        # A folder whose parent has a manifest is a part of that checkpoint, and is read with it.
        if (checkpoint.parent / MANIFEST).is_file():
            continue
        parts = [checkpoint / name for name in PARTS_WITH_NAMES if (checkpoint / name / MANIFEST).is_file()]
        for part in parts or [checkpoint]:
            try:
                yield read_checkpoint(part)
            except CheckpointError:
                continue  # no command loads a damaged checkpoint, so its names need no signature


def _signed_parts(tree: object) -> Iterator[Mapping[str, Any]]:
    """Iterate over the dicts in a tree that have their own signature."""
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from _signed_parts(part)
    if not isinstance(tree, Mapping):
        return

    if any(keys <= tree.keys() for keys in SIGNED_KEYS):
        yield tree
    for part in tree.values():
        yield from _signed_parts(part)
