"""The HDF5 file of a Minari dataset, made in memory.

HDF5 that meets a full disk leaves the process in a state in which it crashes when it ends; a file that is made in
memory is written by Python, where a full disk is an error like any other.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np


def hdf5_of(episodes: Iterable[Mapping[str, Any]]) -> memoryview:
    """The file's content, in Minari's layout: a group `episode_<n>` for each, tuples as groups of `_index_<n>`.

    An episode has `attributes`, and trees of arrays or lists of str by name (`observations`, ...).
    """
    h5py = import_module("h5py")
    content = io.BytesIO()
    with h5py.File(content, "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, **episode["attributes"]})
            for name, tree in episode.items():
                if name != "attributes" and tree is not None:
                    _add(h5py, group, name, tree)
    return content.getbuffer()


def _add(h5py: Any, group: Any, name: str, tree: Any) -> None:
    if isinstance(tree, dict | tuple):
        inside = tree.items() if isinstance(tree, dict) else ((f"_index_{i}", part) for i, part in enumerate(tree))
        branch = group.create_group(name)
        for key, part in inside:
            _add(h5py, branch, key, part)
        return
    text = isinstance(tree, list) or tree.dtype.kind == "U"
    rows: Any = list(tree) if text else np.ascontiguousarray(tree)
    shape = () if text else rows.shape[1:]
    # Chunks that can grow, so that Minari can append to an episode.
    group.create_dataset(
        name, data=rows, dtype=h5py.string_dtype("utf-8") if text else None, chunks=True, maxshape=(None, *shape)
    )
