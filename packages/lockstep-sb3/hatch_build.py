"""Version and dependencies of the package: both follow from the version of the library, which is written down once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class VersionOfLockstep(MetadataHookInterface):
    """Gives this package the version of `lockstep-rl`, and makes it depend on just this version.

    Both are built on the same revision of the repository. In an sdist, hatchling reads them from `PKG-INFO` instead.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Write both fields, which `pyproject.toml` calls dynamic."""
        text = (Path(self.root).parents[1] / "lockstep" / "_version.py").read_text()
        found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
        if found is None:
            raise ValueError("lockstep/_version.py has no line __version__ = '...'")
        metadata["version"] = found[1]
        metadata["dependencies"] = [f"lockstep-rl=={found[1]}"]
