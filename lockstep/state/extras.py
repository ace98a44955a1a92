"""How to install the packages of an extra, in words that work today: by their own names."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTION = "lockstep-rl"


def install_hint(extra: str) -> str:
    """Return the command that installs what an extra needs: `"pip install 'ray>=2.40'"`.

    The versions are those of the installed distribution's metadata (`pyproject.toml`).
    """
    try:
        found = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a folder of sources
        return f"pip install the packages of the extra {extra!r} in pyproject.toml"
    parts = [text.partition(";") for text in found]
    packages = [name.strip() for name, _, marker in parts if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
    return f"pip install {' '.join(map(repr, packages))}"
