"""Errors of collection."""

from __future__ import annotations


class MalformedBufferError(ValueError):
    """Collected or given data cannot be learned from; the message names environment, step and column."""


class RunnerLostError(RuntimeError):
    """The process of an env runner ended, or its node did; what it was asked for is lost."""


class EnvRunnerError(RuntimeError):
    """An env runner died or hung more often than it may, or there is no room for it; the message says which."""
