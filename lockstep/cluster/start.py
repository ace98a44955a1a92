"""Starts Ray on this machine, or joins a cluster."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def start_ray(address: str | None = None, num_cpus: float = 0.0) -> bool:
    """Connects this process to Ray, unless it is connected already; returns whether it did (who did, ends it).

    `address`: of a running cluster ("auto": the one of this machine); None starts Ray on this machine, with room for
    `num_cpus` even where there are fewer cores: a run that is laid out for a cluster works on a laptop, more slowly.
    Workers on this machine import what this process can import. Raises `ConnectionError` where there is no cluster.
    """
    import ray

    if ray.is_initialized():
        return False
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return True
    room = max(os.cpu_count() or 1, math.ceil(num_cpus))
    with _importable():
        ray.init(
            address="local", num_cpus=room, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    return True


@contextmanager
def _importable() -> Iterator[None]:
    """For the processes started meanwhile: the module search path of this one."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
