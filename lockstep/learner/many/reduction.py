"""How learners meet: sums over all of them, and means and decisions over the rows of all. One alone adds nothing.

Every learner makes the same calls in the same order. A call that another learner does not answer ends in a
`LearnerError` after `timeout_s`; the reducer is of no use after that and a new one must be made.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.learner.many.shared_memory import SharedMemory, share_memory
from lockstep.ops import RunningMoments, explained_variance
from lockstep.ops.autograd import GradientContext
from lockstep.state.tree import Array, decode, encode, parse_tensor_file, tensor_file_chunks

distributed: Any = torch.distributed  # its stores and process groups are not in torch's type hints


class LearnerError(RuntimeError):
    """A learner died, hangs, or could not take part in an update that others waited for."""


class _SumOverLearners(torch.autograd.Function):
    """Gives the sum over all learners. The gradient goes to the own part only: gradients are summed afterwards."""

    @staticmethod
    def forward(ctx: GradientContext, local: Tensor, total: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: GradientContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _sums_and_sizes(values: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums of `values` [N, ...] where `mask` is set, and how many numbers each is of."""
    if mask is None:
        sums = torch.stack([each.sum() for each in values])
        return sums, torch.stack([sums.new_full((), float(each.numel())) for each in values])
    sums = torch.stack([torch.where(mask, each, 0.0).sum() for each in values])  # NaN in padding stays there
    return sums, mask.sum().to(sums.dtype).expand(len(values))


class _JointSumContext(GradientContext, Protocol):
    reducer: Reducer


class _JointSum(torch.autograd.Function):
    """Gives the sum over all learners; so is its gradient, as each of them goes on with the whole sum."""

    @staticmethod
    def forward(ctx: _JointSumContext, local: Tensor, reducer: Reducer) -> Tensor:
        ctx.reducer = reducer
        return reducer.sum_(local.clone())

    @staticmethod
    def backward(ctx: _JointSumContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.reducer.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


def _sums_of_rows(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums `[..., 1, F]` of `values` [..., N, F] over the rows where `mask` [N] is set, and their number."""
    if mask is None:
        return values.sum(-2, keepdim=True), values.new_full((), float(values.shape[-2]))
    sums = torch.where(mask.unsqueeze(-1), values, 0.0).sum(-2, keepdim=True)  # NaN in padding stays there
    return sums, mask.sum().to(values.dtype)


class Reducer:
    """Joins what the learners hold; every learner then has the same bits. This one is of a learner that is alone."""

    world_size = 1
    rank = 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all learners, in place; contiguous. All of them get the same bits."""
        return tensor

    def gather(self, value: Tree) -> list[Tree]:
        """Return `value` of each learner, by rank.

        Numbers, texts, arrays, tensors, None, and dicts, lists, tuples of them.
        """
        return [value]

    def first(self, value: Tree) -> Tree:
        """Return the `value` of learner 0; a `Tree` as `gather` takes it."""
        return self.gather(value)[0]

    def close(self) -> None:
        """Leave the group; the reducer cannot be used after that."""

    # -- over the rows of all learners ---

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any learner; the same answer for all."""
        return flag

    def sum_counts(self, counts: dict[str, int]) -> dict[str, int]:
        """Sum whole numbers by name over all learners, which have the same names."""
        return counts

    def means(self, values: Sequence[Tensor], mask: Tensor | None, counts: bool) -> list[Tensor]:
        """Return the means (0-d each) of `values` [N, ...] where `mask` is set, over all learners; alike for each.

        Their gradients reach the learner's own rows only, with the weight they have in the global mean. `counts=False`:
        the own rows stand in for none (they keep the learner in step) and weigh nothing.
        """
        sums, sizes = _sums_and_sizes(values, mask)
        return list((sums / sizes.clamp(min=1.0)).unbind())

    def mean_of_rows(self, values: Tensor, mask: Tensor | None, counts: bool) -> Tensor:
        """Return the means `[..., 1, F]` of `values` [..., N, F] where `mask` [N] is set, over all learners' rows.

        For means by which each row is changed, as batch normalisation does: other than with `means`, the gradient of
        every learner reaches the rows of all. `counts`: as there.
        """
        sums, size = _sums_of_rows(values, mask)
        return sums / size.clamp(min=1.0)

    def once(self, term: Tensor) -> Tensor:
        """Return `term` with 1/n of its gradient, for a term that all n learners compute alike."""
        return term

    def moments(self, seen: RunningMoments) -> RunningMoments:
        """Join the moments of what all learners have seen, by rank; exact up to rounding."""
        return seen

    def explained_variance(self, pred: np.ndarray, target: np.ndarray, counts: bool = True) -> float:
        """Return the share of the targets' variance that the predictions explain, over rows `[N]` of all learners."""
        return explained_variance(pred, target)


LocalReducer = Reducer
"""of one learner in one process"""


class DistributedReducer(Reducer):
    """One of `world_size` learners, joined by `torch.distributed` (gloo, or NCCL on GPUs).

    Learners on CPU that are all on one machine find each other over gloo and then meet in memory that they share,
    unless `shares_memory=False`. `host` is this machine's address for the others (None: that of its name).

    `store` is where they find each other: a file that all can reach (one for each group, not used before),
    `"tcp://host:port"` (served by rank 0), or a `torch.distributed.Store`. `name` separates groups on one store: a
    group that is built again takes another name. It is a process group of its own and leaves torch's default one
    alone. Waits at most `timeout_s` seconds, for the others to come and in each call. `num_calls` and `is_waiting` tell
    another thread how often this learner met the others and whether it waits for them now.

    Raises `ValueError` for a rank outside of the group, `LearnerError` when the others do not come.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: str | Path | object,
        *,
        name: str = "learners",
        timeout_s: float = 60.0,
        backend: Literal["gloo", "nccl"] = "gloo",
        shares_memory: bool = True,
        host: str | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not one of {world_size} learners; ranks go from 0 to {world_size - 1}")
        self.rank, self.world_size, self.timeout_s = rank, world_size, float(timeout_s)
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._limit = timedelta(seconds=self.timeout_s)
        self._group: Any = None
        self._memory: SharedMemory | None = None
        self._broken: str | None = None
        self.num_calls, self.is_waiting = 0, False
        self._join(store, name, backend, host)
        if shares_memory and backend == "gloo" and world_size > 1:
            self._memory = share_memory(rank, world_size, self.gather, self.timeout_s)

    def _join(self, store: object, name: str, backend: str, host: str | None) -> None:
        started = time.monotonic()
        try:
            shared = distributed.PrefixStore(name, _open_store(store, self.rank, self.world_size, self._limit))
            if backend == "gloo":
                how = self._limit if host is None else _gloo_options(host, self._limit)
                self._group = distributed.ProcessGroupGloo(shared, self.rank, self.world_size, how)
            else:
                options = distributed.ProcessGroupNCCL.Options()
                options._timeout = self._limit
                self._group = distributed.ProcessGroupNCCL(shared, self.rank, self.world_size, options)
        except RuntimeError as error:
            raise self._error("joining the group", started, error) from error

    def sum_(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(self._device)  # NCCL sums on GPUs only, the others on the CPU
        if self._memory is not None:
            self._call("a sum", self._memory.sum_, sent)
        else:
            self._call("a sum", lambda: self._group.allreduce([sent]).wait())
        return tensor if sent is tensor else tensor.copy_(sent)

    def gather(self, value: Tree) -> list[Tree]:
        content = torch.frombuffer(bytearray(_to_bytes(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather(torch.tensor([len(content)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        return [_from_bytes(part[:size].numpy().tobytes()) for part, size in zip(self._gather(padded), sizes)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        sent = tensor.to(self._device)
        parts = [torch.empty_like(sent) for _ in range(self.world_size)]
        if self._memory is not None:
            self._call("an exchange", self._memory.gather, parts, sent)
        else:
            self._call("an exchange", lambda: self._group.allgather([parts], [sent]).wait())
        return [part.cpu() for part in parts]

    def close(self) -> None:
        self._leave("it was closed")

    def any(self, flag: bool) -> bool:
        return bool(self.sum_(torch.tensor([float(flag)]))[0] > 0)

    def sum_counts(self, counts: dict[str, int]) -> dict[str, int]:
        return dict(zip(counts, self.sum_(torch.tensor(list(counts.values()), dtype=torch.int64)).tolist()))

    def means(self, values: Sequence[Tensor], mask: Tensor | None, counts: bool) -> list[Tensor]:
        if not counts:
            values, mask = [each[:0] for each in values], None if mask is None else mask[:0]
        sums, sizes = _sums_and_sizes(values, mask)
        totals = self.sum_(torch.cat([sums.detach(), sizes]))
        sums, sizes = _SumOverLearners.apply(sums, totals[: len(values)]), totals[len(values) :]
        return list((sums / sizes.clamp(min=1.0)).unbind())

    def mean_of_rows(self, values: Tensor, mask: Tensor | None, counts: bool) -> Tensor:
        sums, size = _sums_of_rows(values, mask)
        weight = 1.0 if counts else 0.0
        joined = _JointSum.apply(weight * torch.cat([sums.flatten(), size.reshape(1)]), self)
        return joined[:-1].view_as(sums) / joined[-1].clamp(min=1.0)

    def once(self, term: Tensor) -> Tensor:
        fixed = term.detach()
        return fixed + (term - fixed) / self.world_size

    def moments(self, seen: RunningMoments) -> RunningMoments:
        return _joined(self.gather(seen.get_state()), seen)

    def explained_variance(self, pred: np.ndarray, target: np.ndarray, counts: bool = True) -> float:
        pred, target = (np.asarray(values, np.float64)[: None if counts else 0] for values in (pred, target))
        moments = RunningMoments((2,))
        moments.update(np.stack([target, target - pred], axis=-1))
        ends = [float(target.min()), float(target.max())] if len(target) else [np.inf, -np.inf]
        parts = self.gather({"moments": moments.get_state(), "ends": ends})
        if not max(part["ends"][1] for part in parts) > min(part["ends"][0] for part in parts):
            return float("nan")
        variance, residual = _joined([part["moments"] for part in parts], moments).var
        return float(1.0 - residual / variance)

    def _leave(self, why: str) -> None:
        if self._memory is not None:
            self._memory.leave()
        self._group, self._memory, self._broken = None, None, self._broken or why

    def _call(self, name: str, work: Callable[..., Any], *args: object) -> None:
        if self._group is None:
            raise LearnerError(
                f"learner {self.rank} of {self.world_size} has no connection to the others: {self._broken}; build the "
                "group again"
            )
        started = time.monotonic()
        self.num_calls, self.is_waiting = self.num_calls + 1, True
        try:
            work(*args)
        except RuntimeError as error:
            raise self._error(name, started, error) from error
        finally:
            self.is_waiting = False

    def _error(self, name: str, started: float, error: Exception) -> LearnerError:
        waited = time.monotonic() - started
        self._leave(f"{name} failed before")
        return LearnerError(
            f"learner {self.rank} of {self.world_size}: {name} failed after {waited:.1f} s (timeout_s="
            f"{self.timeout_s:g}). Another learner died, hangs, or makes other calls than this one. The cause: {error}"
        )


def _joined(states: Sequence[Any], like: RunningMoments) -> RunningMoments:
    joined = RunningMoments(like.shape)
    for state in states:
        part = RunningMoments(like.shape)
        part.set_state(state)
        joined.merge(part)
    return joined


LOOPBACK = "127.0.0.1"


def _gloo_options(host: str, limit: timedelta) -> Any:
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = limit
    return options


def _open_store(store: object, rank: int, world_size: int, limit: timedelta) -> Any:
    if isinstance(store, distributed.Store):
        return store
    text = str(store)
    if not text.startswith("tcp://"):
        opened: Any = distributed.FileStore(text, world_size)
        opened.set_timeout(limit)
        return opened
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"store={text!r}; a TCP store is written 'tcp://host:port'")
    if rank == 0:
        return serve_store(host, int(port), world_size, timeout=limit)
    return distributed.TCPStore(host, int(port), world_size, is_master=False, timeout=limit)


def is_loopback(host: str) -> bool:
    """Return whether an address is one of this machine alone."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False


def serve_store(
    host: str,
    port: int,
    world_size: int,
    *,
    timeout: timedelta = distributed.default_pg_timeout,
    wait_for_workers: bool = True,
) -> Any:
    """Return a store that is served by this process at `host` alone; torch's own listens on all interfaces.

    Raises `RuntimeError`: the port is in use.
    """
    options: dict[str, Any] = {"is_master": True, "timeout": timeout, "wait_for_workers": wait_for_workers}
    try:
        listener = socket.create_server((host, port), backlog=socket.SOMAXCONN)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RuntimeError(f"cannot listen at {host}:{port}: {error.strerror}") from error
        # The address is another one from inside: behind a router, say.
        return distributed.TCPStore(host, port, world_size, **options)
    place = listener.getsockname()[1]
    return distributed.TCPStore(host, place, world_size, master_listen_fd=listener.detach(), **options)


def _to_bytes(value: Tree) -> bytes:
    arrays: dict[str, Array] = {}
    text = json.dumps(encode(value, "value", arrays)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *tensor_file_chunks(arrays)])


def _from_bytes(content: bytes) -> Tree:
    end = 8 + int.from_bytes(content[:8], "little")
    return decode(json.loads(content[8:end]), parse_tensor_file(content[end:]))
