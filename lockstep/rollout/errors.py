"""Errors of collection."""

from __future__ import annotations


class MalformedBufferError(ValueError):
    """Collected or given data cannot be learned from; the message names environment, step and column."""
