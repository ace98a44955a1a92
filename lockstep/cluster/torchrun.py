"""`join_ranks`: processes that torchrun (or another launcher) started alike meet, as learners that act as one.

Each rank makes the same run, with one of the learners and a share of the environments.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Literal, Self

from lockstep.learner.many.reduction import (
    LOOPBACK,
    DistributedReducer,
    LearnerError,
    LocalReducer,
    Reducer,
    distributed,
    is_loopback,
    serve_store,
)

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
POLL_S = 0.02


@dataclass(frozen=True)
class Place:
    """This process among all ranks, as environment variables say; one that was started alone is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    """ranks on this machine; 1 where the launcher does not say"""
    host: str = ""
    """where rank 0 is met"""
    port: int = 0
    is_served: bool = False
    """whether torchrun's agent serves the store there, rather than rank 0"""
    run_id: str | None = None
    """the same in all restarts of one job; None where nothing restarts it"""
    num_restarts: int = 0

    @classmethod
    def of_process(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Return the place of this process. `ValueError` for variables that make no sense."""
        if any(not variables.get(name) for name in NAMES):
            return cls()
        try:
            rank, world_size, port = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
            local_rank = int(variables.get("LOCAL_RANK", 0))
            local_world_size = int(variables.get("LOCAL_WORLD_SIZE", 1))
        except ValueError:
            rank, world_size = -1, 0
        if not 0 <= rank < world_size:
            found = ", ".join(f"{name}={variables[name]}" for name in NAMES)
            raise ValueError(f"{found} do not name a rank; torchrun sets them, or your launcher must")
        run_id = variables.get("TORCHELASTIC_RUN_ID")
        if run_id == "none":  # torchrun was given none: its process stands for it
            run_id = f"{socket.gethostname()} {os.getppid()}"
        return cls(
            rank,
            world_size,
            local_rank,
            local_world_size,
            variables["MASTER_ADDR"],
            port,
            variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            run_id,
            int(variables.get("TORCHELASTIC_RESTART_COUNT", 0)),
        )


def join_ranks(
    place: Place, *, timeout_s: float, meeting_timeout_s: float, backend: Literal["gloo", "nccl"] = "gloo"
) -> Reducer:
    """Return what joins this rank with the others; of one that is alone, a reducer that adds nothing.

    Waits `timeout_s` seconds for the others to come, and `meeting_timeout_s` in each meeting after that. Every rank
    makes the same calls. Raises `LearnerError` that names the ranks that have not come, or a port that is in use.
    """
    if place.world_size == 1:
        return LocalReducer()
    store = _store(place, timeout_s)
    try:
        name = _meet(store, place, time.monotonic() + timeout_s)
    except RuntimeError as error:
        raise LearnerError(f"rank {place.rank} of {place.world_size}: rank 0 has left: {error}") from error
    if not isinstance(name, str):
        raise LearnerError(
            f"rank {place.rank} of {place.world_size}: of the other ranks, {name} did not come within {timeout_s:g} s "
            "(learners.learner_timeout_s). Look at what they print; start as many processes as WORLD_SIZE says"
        )
    options: Any = {"name": name, "timeout_s": meeting_timeout_s, "backend": backend}
    if is_loopback(place.host):
        options["host"] = LOOPBACK
    reducer = DistributedReducer(place.rank, place.world_size, store, **options)
    if place.rank == 0:
        store.delete_key("round")  # who is started again waits for the next one
    return reducer


@cache
def _store(place: Place, timeout_s: float) -> Any:
    """Return the store that all ranks reach, which lasts as long as this process."""
    limit, serves = timedelta(seconds=timeout_s), place.rank == 0 and not place.is_served
    options: Any = {"timeout": limit, "wait_for_workers": False}
    where = f"{place.host}:{place.port} (MASTER_ADDR, MASTER_PORT)"
    try:
        if serves:
            return serve_store(place.host, place.port, place.world_size, **options)
        return distributed.TCPStore(place.host, place.port, place.world_size, is_master=False, **options)
    except RuntimeError as error:
        if serves:
            raise LearnerError(
                f"rank 0 of {place.world_size} cannot listen at {where}: {_in_short(error)}. If the port is in use, "
                "choose another: torchrun --master-port, or --rdzv-endpoint"
            ) from error
        raise LearnerError(
            f"rank {place.rank} of {place.world_size}: rank 0 did not come within {timeout_s:g} s "
            f"(learners.learner_timeout_s) to {where}: {_in_short(error)}"
        ) from error


def _meet(store: Any, place: Place, until: float) -> str | list[int]:
    """Return a name for this meeting that all ranks have agreed on, or the ranks that did not come.

    The store may be left from ranks that have died, each at some point of this. So rank 0 makes up a name, and the
    others answer to the one that they read last, until rank 0 has heard all of them.
    """
    name = ""
    if place.rank == 0:
        name = secrets.token_hex(8)
        store.set("round", name)
    while True:
        if place.rank and store.check(["round"]) and (read := store.get("round").decode()) != name:
            name = read
            store.set(f"{name}/{place.rank}", "here")
        missing = [rank for rank in range(1, place.world_size) if name and not store.check([f"{name}/{rank}"])]
        if place.rank == 0 and not missing:
            store.set(f"{name}/go", "")
            return name
        if name and place.rank and store.check([f"{name}/go"]):
            return name
        if time.monotonic() > until:
            return missing or [0]
        time.sleep(POLL_S)


def _in_short(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
