"""`RayProcesses`: the Ray actors of one group, started, replaced and ended; and how Ray itself is started."""

from __future__ import annotations

import importlib
import logging
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

ROOM_S = 30.0
"""seconds that the cluster may take to find room"""


class Worker:
    """What runs in an actor of a group. It learns its place from its first calls: a standby has none yet."""

    def __init__(self) -> None:
        # What comes through the object store is read where it lies, and must not be written to; nothing here does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def where(self) -> tuple[int, str]:
        """Return process id and node id."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()


class RayProcesses:
    """One actor for each place, or None where it was ended.

    Room for all places is reserved before any actor is started. Ray is started on this machine where it does not run
    yet, and ended with the group. `kind`: the word for an actor in messages, e.g. "learner". `error`: what is raised
    where there is no room. `worker_options`: those of `ray.remote`. `num_standby`: actors without a place, from which
    the first takes that of a lost one.
    """

    def __init__(
        self,
        worker: type[Worker],
        *,
        kind: str,
        resources: Mapping[str, float],
        strategy: str,
        error: type[Exception],
        start_ray: Callable[[], bool],
        worker_options: Mapping[str, Any] | None = None,
        num_standby: int = 0,
    ) -> None:
        import ray

        self.ray, self.kind, self.error, self.strategy = ray, kind, error, strategy
        self.resources = {name: amount for name, amount in resources.items() if amount}
        """what each actor takes of the cluster, "CPU" and "GPU" among them"""
        self.actors: list[Any] = []
        self._group: Any = None
        self._where: dict[int, Any] = {}
        """place -> reference to process id and node id"""
        self._standby: list[Any] = []
        self._num_standby = 0 if "GPU" in self.resources else num_standby
        self._owns_ray = start_ray()
        remote: Any = ray.remote  # its options are not all in its type hints
        self._actor_class = remote(**worker_options)(worker) if worker_options else remote(worker)

    def __len__(self) -> int:
        return len(self.actors)

    @property
    def alive(self) -> list[int]:
        """Places that have an actor."""
        return [place for place, actor in enumerate(self.actors) if actor is not None]

    def process_ids(self) -> list[int]:
        """Return the process ids, by place."""
        return [self.ray.get(self._where[place])[0] for place in self.alive]

    def reserve(self, number: int, room_s: float | None = None) -> None:
        """Reserve room for actors, none of them started. `error` where there is none in `room_s` (None: 30) seconds."""
        from ray.util.placement_group import placement_group

        bundle = self.resources or {"CPU": 0.001}
        self._group = placement_group([bundle] * number, strategy=self.strategy)
        self.actors = [None] * number
        if not self._group.wait(ROOM_S if room_s is None else room_s):
            free = self.ray.available_resources()
            self.stop()
            kind = self.kind.replace(" ", "_")
            raise self.error(
                f"the cluster has no room for {number} {self.kind}s with {bundle} each; free are "
                f"{ {name: free.get(name, 0) for name in bundle} }. Take fewer {self.kind}s (num_{kind}s), or less for "
                f"each (num_cpus_per_{kind}, num_gpus_per_{kind}, custom_resources_per_{kind})"
            )

    def start(self, places: Iterable[int]) -> None:
        """Start an actor in each of these places, or take one that stands by. `error` where the cluster has lost their
        room."""
        chosen = list(places)
        if chosen and not self._group.wait(ROOM_S):
            raise self.error(f"the cluster has no room for {self.kind}s {chosen}, whose machine is lost")
        for place in chosen:
            self.actors[place] = self._standby.pop(0) if self._standby else self._started(place)
            self._where[place] = self.actors[place].where.remote()
        while len(self._standby) < self._num_standby:
            self._standby.append(self._actor_class.options(num_cpus=0).remote())

    def _started(self, place: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = {name: amount for name, amount in self.resources.items() if name not in ("CPU", "GPU")}
        return self._actor_class.options(
            num_cpus=self.resources.get("CPU", 0),
            num_gpus=self.resources.get("GPU", 0),
            resources=others or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, place),
        ).remote()

    def end(self, places: Iterable[int]) -> None:
        """End actors, whatever they do."""
        here = self.ray.get_runtime_context().get_node_id()
        for place in places:
            actor, self.actors[place] = self.actors[place], None
            if actor is None:
                continue
            with suppress(self.ray.exceptions.RayError, ProcessLookupError):
                process_id, node = self.ray.get(self._where[place], timeout=0)
                if node == here:  # a stopped process would take Ray seconds
                    os.kill(process_id, signal.SIGKILL)
            self.ray.kill(actor)

    def stop(self) -> None:
        """End all actors and give their room back."""
        from ray.util.placement_group import remove_placement_group

        self.end(self.alive)
        self.actors = []
        for actor in self._standby:
            self.ray.kill(actor)
        self._standby = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def shutdown(self) -> None:
        """End all actors, and Ray if it was started here."""
        if self.ray.is_initialized():
            self.stop()
            if self._owns_ray:
                self.ray.shutdown()

    def store(self, value: object) -> Any:
        """Put `value` into the object store; return the reference. `error` where the store is full."""
        exceptions = self.ray.exceptions
        try:
            return self.ray.put(value)
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise self.error(
                f"Ray's object store has no room for the data of this call, and no {self.kind} got it; give it less at "
                "once, let fewer asynchronous calls wait (max_requests_in_flight_per_learner), or start Ray with "
                f"ray.init(object_store_memory=...). Ray says: {error}"
            ) from error


def start_ray(address: str | None = None, num_cpus: float = 0.0) -> bool:
    """Connect this process to Ray, unless it is connected already; return whether it did (who did, ends it).

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
    with _importable(), _on_loopback():
        ray.init(
            address="local", num_cpus=room, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    return True


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray's services that are started meanwhile, and the workers that they start, listen on loopback alone.

    Ray asks nobody who they are, so whoever reached its ports could run programs. It listens on loopback where it is
    told that clusters are not wanted, which it reads from a constant (in processes that have imported it) and from a
    variable of the environment (in those to come). The address of `ray.init` cannot say so: it is replaced there.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = os.environ.get(constants.ENABLE_RAY_CLUSTERS_ENV_VAR)
    is_enabled = constants.ENABLE_RAY_CLUSTER
    os.environ[constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = is_enabled
        if before is None:
            del os.environ[constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        else:
            os.environ[constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = before


@contextmanager
def _importable() -> Iterator[None]:
    """Hand the module search path of this process to those started meanwhile."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
