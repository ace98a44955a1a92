"""Version and dependencies of the package, which follow from the version of the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class VersionOfLockstep(MetadataHookInterface):
    """Build hook that gives this package the version of `lockstep-rl`, and makes it depend on exactly this version.

    Both packages are built from the same revision of the repository. In an sdist, hatchling reads both fields from
    `PKG-INFO` instead.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields, which `pyproject.toml` declares as dynamic."""
        text = (Path(self.root).parents[1] / "lockstep" / "_version.py").read_text()
        match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
        if match is None:
            raise ValueError("lockstep/_version.py has no line __version__ = '...'")
        metadata["version"] = match[1]
        metadata["dependencies"] = [f"lockstep-rl=={match[1]}"]
