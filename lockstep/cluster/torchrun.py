"""`join_ranks`: connects the processes that torchrun, or another launcher, has started for one run.

Each rank executes the same program. It has one of the learners and a share of the environments.
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
"""Environment variables that every launcher sets."""
POLL_S = 0.02
"""Seconds from one look into the store to the next while ranks wait for each other."""


@dataclass(frozen=True)
class RankInfo:
    """Rank of this process among all processes of a run. A process that was started alone is rank 0 of 1."""

    rank: int = 0
    """Number of this process, from 0."""
    world_size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of this process among those on the same machine."""
    local_world_size: int = 1
    """Number of processes on this machine. 1 if the launcher does not set it."""
    host: str = ""
    """Host name of the store through which ranks find each other."""
    port: int = 0
    """Port of the store."""
    is_served: bool = False
    """Whether torchrun's agent serves the store. Otherwise rank 0 does."""
    run_id: str | None = None
    """Identifier of the job, which is the same after each restart. None if nothing restarts the job."""
    num_restarts: int = 0
    """Number of times that torchrun has restarted the job."""

    @property
    def can_be_restarted(self) -> bool:
        """Whether a launcher has started this process, which may start it again after a death."""
        return self.world_size > 1 or self.run_id is not None

    @classmethod
    def of_process(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Return the rank of this process from its environment variables.

        Raises:
            ValueError: the variables contradict each other.
        """
        if any(not variables.get(name) for name in NAMES):
            return cls()
        try:
            rank = int(variables["RANK"])
            world_size = int(variables["WORLD_SIZE"])
            port = int(variables["MASTER_PORT"])
            local_rank = int(variables.get("LOCAL_RANK", 0))
            local_world_size = int(variables.get("LOCAL_WORLD_SIZE", 1))
        except ValueError:
            rank, world_size = -1, 0  # refused below
        if not 0 <= rank < world_size:
            settings = ", ".join(f"{name}={variables[name]}" for name in NAMES)
            raise ValueError(f"{settings} do not name a rank; torchrun sets them, or your launcher must")

        run_id = variables.get("TORCHELASTIC_RUN_ID")
        if run_id == "none":
            # The user gave torchrun no id. Its process identifies the job, because it outlives all restarts.
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
    info: RankInfo, *, timeout_s: float, meeting_timeout_s: float, backend: Literal["gloo", "nccl"] = "gloo"
) -> Reducer:
    """Wait for the other ranks, and return the reducer that connects this rank with them.

    For a single process the reducer does nothing. Every rank must make the same calls.

    Args:
        info: rank of this process.
        timeout_s: seconds to wait for the other ranks here.
        meeting_timeout_s: seconds to wait for them in each later reduction.
        backend: backend of `torch.distributed`.

    Raises:
        LearnerError: other ranks did not come, which the message names, or the port is in use.
    """
    if info.world_size == 1:
        return LocalReducer()
    store = _store(info, timeout_s)
    try:
        name = _agree_on_name(store, info, time.monotonic() + timeout_s)
    except RuntimeError as error:
        raise LearnerError(f"rank {info.rank} of {info.world_size}: rank 0 has left: {error}") from error
    if not isinstance(name, str):
        raise LearnerError(
            f"rank {info.rank} of {info.world_size}: of the other ranks, {name} did not come within {timeout_s:g} s "
            "(learners.learner_timeout_s). Look at what they print; start as many processes as WORLD_SIZE says"
        )

    options: Any = {"name": name, "timeout_s": meeting_timeout_s, "backend": backend}
    if is_loopback(info.host):
        options["host"] = LOOPBACK
    reducer = DistributedReducer(info.rank, info.world_size, store, **options)
    if info.rank == 0:
        store.delete_key("round")  # a restarted rank must wait for the name of the next round
    return reducer


@cache
def _store(info: RankInfo, timeout_s: float) -> Any:
    """Return the key-value store that all ranks reach. It exists as long as this process."""
    serves = info.rank == 0 and not info.is_served
    options: Any = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
    address = f"{info.host}:{info.port} (MASTER_ADDR, MASTER_PORT)"
    try:
        if serves:
            return serve_store(info.host, info.port, info.world_size, **options)
        return distributed.TCPStore(info.host, info.port, info.world_size, is_master=False, **options)
    except RuntimeError as error:
        if serves:
            raise LearnerError(
                f"rank 0 of {info.world_size} cannot listen at {address}: {_first_line(error)}. If the port is in use, "
                "choose another: torchrun --master-port, or --rdzv-endpoint"
            ) from error
        raise LearnerError(
            f"rank {info.rank} of {info.world_size}: rank 0 did not come within {timeout_s:g} s "
            f"(learners.learner_timeout_s) to {address}: {_first_line(error)}"
        ) from error


def _agree_on_name(store: Any, info: RankInfo, deadline: float) -> str | list[int]:
    """Return a name for the process group that all ranks have agreed on, or the ranks that did not come in time.

    The store may still contain keys of ranks that have died, each at some point of this function. Therefore rank 0
    invents a new name, the other ranks confirm the name that they have read last, and rank 0 waits until all have
    confirmed its name.
    """
    name = ""
    if info.rank == 0:
        name = secrets.token_hex(8)
        store.set("round", name)
    while True:
        if info.rank and store.check(["round"]) and (present_name := store.get("round").decode()) != name:
            name = present_name
            store.set(f"{name}/{info.rank}", "here")
        missing = [rank for rank in range(1, info.world_size) if name and not store.check([f"{name}/{rank}"])]
        if info.rank == 0 and not missing:
            store.set(f"{name}/go", "")
            return name
        if name and info.rank and store.check([f"{name}/go"]):
            return name
        if time.monotonic() > deadline:
            return missing or [0]
        time.sleep(POLL_S)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
