"""Compiled gradient steps, and the cache of compiled code."""
