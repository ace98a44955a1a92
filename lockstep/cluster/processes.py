"""`RayProcesses`: starts, replaces and ends the Ray actors of one group; `start_ray` starts Ray itself."""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from lockstep.state.processes import KILL_SIGNAL

RESERVE_TIMEOUT_S = 30.0
"""Seconds that the cluster may take to reserve resources."""


class Worker:
    """Base class of the actors of a group.

    A constructor without arguments, because a standby process gets its index in the group only when it is needed.
    """

    def __init__(self) -> None:
        # Arrays in Ray's object store are read-only. Workers never write to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def location(self) -> tuple[int, str]:
        """Return the process id and the node id."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()


class RayProcesses:
    """Actors of a group, by index. An actor that was ended is None.

    The resources of all actors are reserved before the first one is started. If Ray is not running, it is started on
    this machine, and ended with the group.

    Args:
        worker: class of the actors.
        kind: word for an actor in messages, for example "learner".
        resources: resources of the cluster for each actor, including "CPU" and "GPU".
        strategy: Ray's placement strategy for the group.
        error: class of the exception for missing resources.
        start_ray: function that connects to Ray, and returns whether it did.
        worker_options: options of `ray.remote`.
        num_standby: number of additional processes without an index, one of which replaces a lost one.
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

        self.ray = ray
        self.kind = kind
        self.error = error
        self.strategy = strategy
        self.resources = {name: amount for name, amount in resources.items() if amount}
        """Resources of the cluster for each actor."""
        self.actors: list[Any] = []
        self._placement_group: Any = None
        self._locations: dict[int, Any] = {}
        """Reference to the process id and node id of each actor."""
        self._standby: list[Any] = []
        # A standby process has no resources reserved, so it cannot have a GPU.
        self._num_standby = 0 if "GPU" in self.resources else num_standby
        self._owns_ray = start_ray()
        remote: Any = ray.remote  # its type hints lack some of its options
        self._actor_class = remote(**worker_options)(worker) if worker_options else remote(worker)

    def __len__(self) -> int:
        return len(self.actors)

    @property
    def alive(self) -> list[int]:
        """Indices that have an actor."""
        return [index for index, actor in enumerate(self.actors) if actor is not None]

    def process_ids(self) -> list[int]:
        """Return the process ids, by index."""
        return [self.ray.get(self._locations[index])[0] for index in self.alive]

    def reserve(self, number: int, timeout_s: float | None = None) -> None:
        """Reserve the resources of a number of actors, without starting them.

        Args:
            number: number of actors.
            timeout_s: seconds to wait for the resources. Defaults to 30.

        Raises:
            Exception: `error` if the cluster does not have the resources.
        """
        from ray.util.placement_group import placement_group

        bundle = self.resources or {"CPU": 0.001}  # Ray does not allow an empty one
        self._placement_group = placement_group([bundle] * number, strategy=self.strategy)
        self.actors = [None] * number
        if not self._placement_group.wait(RESERVE_TIMEOUT_S if timeout_s is None else timeout_s):
            free = self.ray.available_resources()
            self.stop()
            kind = self.kind.replace(" ", "_")
            raise self.error(
                f"the cluster has no room for {number} {self.kind}s with {bundle} each; free are "
                f"{ {name: free.get(name, 0) for name in bundle} }. Take fewer {self.kind}s (num_{kind}s), or less for "
                f"each (num_cpus_per_{kind}, num_gpus_per_{kind}, custom_resources_per_{kind})"
            )

    def start(self, indices: Iterable[int]) -> None:
        """Start an actor for each of these indices, or use a standby process.

        Raises:
            Exception: `error` if the machine with their resources was lost.
        """
        started = list(indices)
        if started and not self._placement_group.wait(RESERVE_TIMEOUT_S):
            raise self.error(f"the cluster has no room for {self.kind}s {started}, whose machine is lost")
        for index in started:
            self.actors[index] = self._standby.pop(0) if self._standby else self._start_actor(index)
            self._locations[index] = self.actors[index].location.remote()
        while len(self._standby) < self._num_standby:
            self._standby.append(self._actor_class.options(num_cpus=0).remote())

    def _start_actor(self, index: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        custom = {name: amount for name, amount in self.resources.items() if name not in ("CPU", "GPU")}
        return self._actor_class.options(
            num_cpus=self.resources.get("CPU", 0),
            num_gpus=self.resources.get("GPU", 0),
            resources=custom or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement_group, index),
        ).remote()

    def end(self, indices: Iterable[int]) -> None:
        """End actors at once, even if they are busy or stopped."""
        own_node = self.ray.get_runtime_context().get_node_id()
        for index in indices:
            actor = self.actors[index]
            self.actors[index] = None
            if actor is None:
                continue
            with suppress(self.ray.exceptions.RayError, ProcessLookupError):
                process_id, node = self.ray.get(self._locations[index], timeout=0)
                if node == own_node:  # Ray takes seconds to end a process that was stopped (SIGSTOP)
                    os.kill(process_id, KILL_SIGNAL)
            self.ray.kill(actor)

    def stop(self) -> None:
        """End all actors and release their resources."""
        from ray.util.placement_group import remove_placement_group

        self.end(self.alive)
        self.actors = []
        for actor in self._standby:
            self.ray.kill(actor)
        self._standby = []
        if self._placement_group is not None:
            remove_placement_group(self._placement_group)
            self._placement_group = None

    def shutdown(self) -> None:
        """End all actors, and Ray if this group has started it."""
        if self.ray.is_initialized():
            self.stop()
            if self._owns_ray:
                self.ray.shutdown()

    def store(self, value: object) -> Any:
        """Put a value into the object store and return its reference.

        Raises:
            Exception: `error` if the store is full.
        """
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
    """Connect this process to Ray, unless it is connected, and return whether it was connected here.

    The caller that connected it must also shut it down.

    Args:
        address: address of a running cluster ("auto" finds the one on this machine). None starts Ray on this machine.
        num_cpus: number of processors that a new Ray claims to have at least, even if there are fewer cores. A run that
            is configured for a cluster then works on a laptop, more slowly.

    Raises:
        ConnectionError: there is no cluster at the address.
    """
    import ray

    if ray.is_initialized():
        return False
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return True
    claimed_cpus = max(os.cpu_count() or 1, math.ceil(num_cpus))
    with _same_import_path(), _on_loopback():
        ray.init(
            address="local",
            num_cpus=claimed_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    return True


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray's services that are started in the block, and their workers, listen on loopback only.

    Ray does not authenticate clients: everybody who can reach its ports could run programs. It listens on loopback only
    if clusters are disabled, which it reads from a constant (in this process) and from an environment variable (in new
    processes). The address given to `ray.init` has no such effect, because Ray replaces it.
    """
    # A private module of Ray. If a new version lacks these names the error names them, instead of opening the ports.
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
def _same_import_path() -> Iterator[None]:
    """Give the module search path of this process to processes that are started in the block."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
