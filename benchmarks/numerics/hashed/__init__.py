"""Entries of `benchmarks/numerics/hashes.py`: small computations whose results are hashed."""

from hashed import acting, agents, algorithms, collectors, compiled, data, ray_runs, replays, resumed
from hashed.entries import ENTRIES, EXTRA_GROUPS, chosen, hash_of

__all__ = [
    "ENTRIES",
    "EXTRA_GROUPS",
    "acting",
    "agents",
    "algorithms",
    "chosen",
    "collectors",
    "compiled",
    "data",
    "hash_of",
    "ray_runs",
    "replays",
    "resumed",
]
