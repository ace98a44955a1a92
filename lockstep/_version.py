"""The package version, read by the build and by checkpoints."""

__version__ = "0.3.0"
