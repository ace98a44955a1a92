"""Communication of learners: sums over all of them, and means and decisions over the rows of all of them.

`Reducer` is for a learner that is alone: each method returns its argument or the learner's own result.
`DistributedReducer` connects several learners.

Every learner makes the same calls in the same order. A call that another learner does not answer raises `LearnerError`
after `timeout_s`. The reducer cannot be used after that, and a new one has to be made.
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

distributed: Any = torch.distributed  # torch has no type hints for its stores and process groups


class LearnerError(RuntimeError):
    """Failure of a learner that others wait for: it died, hangs, or could not take part in an update."""


class _TotalWithOwnGradient(torch.autograd.Function):
    """Operation that returns `total`, the sum of `local` over all learners. Its gradient is that of `local` alone.

    The learners sum their parameters' gradients after the backward pass, so each of them contributes its own part.
    """

    @staticmethod
    def forward(ctx: GradientContext, local: Tensor, total: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: GradientContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _sums_and_sizes(values: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum of each of `values` `[N, ...]` where `mask` is set, and how many numbers were added."""
    if mask is None:
        sums = torch.stack([each.sum() for each in values])
        return sums, torch.stack([sums.new_full((), float(each.numel())) for each in values])
    # Not a product with the mask: NaN times 0 is NaN, and padding may hold NaN.
    sums = torch.stack([torch.where(mask, each, 0.0).sum() for each in values])
    return sums, mask.sum().to(sums.dtype).expand(len(values))


class _JointSumContext(GradientContext, Protocol):
    reducer: Reducer


class _JointSum(torch.autograd.Function):
    """Operation that returns the sum of `local` over all learners. Its gradient is the sum of all learners' gradients.

    Every learner's loss depends on the sum, and so on the `local` of each learner.
    """

    @staticmethod
    def forward(ctx: _JointSumContext, local: Tensor, reducer: Reducer) -> Tensor:
        ctx.reducer = reducer
        return reducer.sum_(local.clone())

    @staticmethod
    def backward(ctx: _JointSumContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.reducer.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


def _sums_of_rows(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums `[..., 1, F]` of `values` `[..., N, F]` over rows where `mask` `[N]` is set, and their number."""
    if mask is None:
        return values.sum(-2, keepdim=True), values.new_full((), float(values.shape[-2]))
    sums = torch.where(mask.unsqueeze(-1), values, 0.0).sum(-2, keepdim=True)  # see `_sums_and_sizes`
    return sums, mask.sum().to(values.dtype)


class Reducer:
    """Communication of a learner with the others. This class is for a learner that is alone; see `DistributedReducer`.

    All results are the same on every learner, bit for bit.
    """

    world_size = 1
    """Number of learners."""
    rank = 0
    """Number of this learner, from 0 to `world_size - 1`."""
    num_calls = 0
    """Number of communications with the other learners so far. Another thread may read it."""
    is_waiting = False
    """Whether this learner waits for others at this moment. Another thread may read it."""

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a contiguous tensor over all learners in place, and return it. All of them get the same bits."""
        return tensor

    def gather(self, value: Tree) -> list[Tree]:
        """Return the `value` of each learner, by rank.

        It may consist of numbers, texts, arrays, tensors and None, in dicts, lists and tuples.
        """
        return [value]

    def first(self, value: Tree) -> Tree:
        """Return the `value` of learner 0."""
        return self.gather(value)[0]

    def close(self) -> None:
        """Leave the other learners. The reducer cannot be used after that."""

    # -- statistics over the rows of all learners ---

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any learner."""
        return flag

    def sum_counts(self, counts: dict[str, int]) -> dict[str, int]:
        """Return the sums of whole numbers by name over all learners, which have the same names."""
        return counts

    def means(self, values: Sequence[Tensor], mask: Tensor | None, counts: bool) -> list[Tensor]:
        """Return the mean (0-d) of each of `values` `[N, ...]` where `mask` is set, over the rows of all learners.

        Gradients reach this learner's rows only, with the weight that each row has in the global mean. `counts` says
        whether this learner's rows count; with False they are stand-ins, which have no weight.
        """
        sums, sizes = _sums_and_sizes(values, mask)
        return list((sums / sizes.clamp(min=1.0)).unbind())

    def mean_of_rows(self, values: Tensor, mask: Tensor | None, counts: bool) -> Tensor:
        """Return the means `[..., 1, F]` of `values` `[..., N, F]` where `mask` `[N]` is set, over all learners' rows.

        This is for means that enter the computation of each row, as in batch normalization. Then the loss of every
        learner depends on the rows of all learners, and gradients reach all of them, unlike with `means`. `counts` says
        whether this learner's rows count, see `means`.
        """
        sums, size = _sums_of_rows(values, mask)
        return sums / size.clamp(min=1.0)

    def once(self, term: Tensor) -> Tensor:
        """Return `term` with 1/n of its gradient, for a term that all n learners compute equally and add up."""
        return term

    def moments(self, moments: RunningMoments) -> RunningMoments:
        """Return the moments of the data of all learners together, exact up to rounding."""
        return moments

    def explained_variance(self, pred: np.ndarray, target: np.ndarray, counts: bool = True) -> float:
        """Return the share of the targets' variance that the predictions explain, over the rows of all learners.

        `pred` and `target` are `[N]`. With `counts=False` this learner's rows are left out.
        """
        return explained_variance(pred, target)


LocalReducer = Reducer
"""Reducer of a single learner."""


class DistributedReducer(Reducer):
    """Communication of one of `world_size` learners over `torch.distributed` (gloo, or NCCL on GPUs).

    Learners on the CPU of one machine connect over gloo, and then communicate through shared memory. The process group
    is a separate one; torch's default group is not touched.

    Args:
        rank: Number of this learner, from 0 to `world_size - 1`.
        world_size: Number of learners.
        store: Place where the learners find each other: a file that all can reach (a new one for each group),
            `"tcp://host:port"` (served by rank 0), or a `torch.distributed.Store`.
        name: Name of the group on the store. A group that is built again needs another name.
        timeout_s: Time limit in seconds for all learners to connect, and for each call.
        backend: "gloo" or "nccl".
        shares_memory: Whether learners of one machine communicate through shared memory.
        host: Address of this machine for the other learners. None takes the address of the machine's name.

    Raises:
        ValueError: `rank` is outside of the group.
        LearnerError: the other learners did not connect.
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
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = float(timeout_s)
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._limit = timedelta(seconds=self.timeout_s)
        self._group: Any = None
        self._memory: SharedMemory | None = None
        self._closing_reason: str | None = None
        """Reason why the learner has left the group; None while it is in it."""
        self.num_calls = 0
        self.is_waiting = False
        self._join(store, name, backend, host)
        if shares_memory and backend == "gloo" and world_size > 1:
            self._memory = share_memory(rank, world_size, self.gather, self.timeout_s)

    def _join(self, store: object, name: str, backend: str, host: str | None) -> None:
        """Connect to the other learners."""
        started = time.monotonic()
        try:
            group_store = distributed.PrefixStore(name, _open_store(store, self.rank, self.world_size, self._limit))
            if backend == "gloo":
                options = self._limit if host is None else _gloo_options(host, self._limit)
                self._group = distributed.ProcessGroupGloo(group_store, self.rank, self.world_size, options)
            else:
                options = distributed.ProcessGroupNCCL.Options()
                options._timeout = self._limit
                self._group = distributed.ProcessGroupNCCL(group_store, self.rank, self.world_size, options)
        except RuntimeError as error:
            raise self._error("joining the group", started, error) from error

    def sum_(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(self._device)  # NCCL sums on GPUs only, gloo and shared memory on the CPU
        if self._memory is not None:
            self._call("a sum", self._memory.sum_, sent)
        else:
            self._call("a sum", lambda: self._group.allreduce([sent]).wait())
        return tensor if sent is tensor else tensor.copy_(sent)

    def gather(self, value: Tree) -> list[Tree]:
        # torch gathers tensors of one shape, so first the sizes are gathered, then the bytes, padded to the largest.
        content = torch.frombuffer(bytearray(_to_bytes(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather(torch.tensor([len(content)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        return [_from_bytes(part[:size].numpy().tobytes()) for part, size in zip(self._gather(padded), sizes)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the `tensor` of each learner by rank, on the CPU. All have the same shape."""
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
            values = [each[:0] for each in values]
            mask = None if mask is None else mask[:0]
        sums, sizes = _sums_and_sizes(values, mask)
        totals = self.sum_(torch.cat([sums.detach(), sizes]))
        sums = _TotalWithOwnGradient.apply(sums, totals[: len(values)])
        sizes = totals[len(values) :]
        return list((sums / sizes.clamp(min=1.0)).unbind())

    def mean_of_rows(self, values: Tensor, mask: Tensor | None, counts: bool) -> Tensor:
        sums, size = _sums_of_rows(values, mask)
        weight = 1.0 if counts else 0.0
        totals = _JointSum.apply(weight * torch.cat([sums.flatten(), size.reshape(1)]), self)
        return totals[:-1].view_as(sums) / totals[-1].clamp(min=1.0)

    def once(self, term: Tensor) -> Tensor:
        constant = term.detach()
        return constant + (term - constant) / self.world_size  # the value of `term`, and 1/n of its gradient

    def moments(self, moments: RunningMoments) -> RunningMoments:
        return _merged(self.gather(moments.get_state()), moments)

    def explained_variance(self, pred: np.ndarray, target: np.ndarray, counts: bool = True) -> float:
        num_rows = None if counts else 0
        pred = np.asarray(pred, np.float64)[:num_rows]
        target = np.asarray(target, np.float64)[:num_rows]
        moments = RunningMoments((2,))
        moments.update(np.stack([target, target - pred], axis=-1))
        limits = [float(target.min()), float(target.max())] if len(target) else [np.inf, -np.inf]
        parts = self.gather({"moments": moments.get_state(), "limits": limits})

        # Targets that are all equal have no variance to explain. Their limits show this, since by rounding the
        # computed variance may not be 0.
        largest = max(part["limits"][1] for part in parts)
        smallest = min(part["limits"][0] for part in parts)
        if not largest > smallest:
            return float("nan")
        variance, residual = _merged([part["moments"] for part in parts], moments).var
        return float(1.0 - residual / variance)

    def _leave(self, reason: str) -> None:
        if self._memory is not None:
            self._memory.leave()
        self._group = None
        self._memory = None
        self._closing_reason = self._closing_reason or reason

    def _call(self, name: str, function: Callable[..., Any], *args: object) -> None:
        """Call a function that communicates with the other learners; `LearnerError` with its `name` if it fails."""
        if self._group is None:
            raise LearnerError(
                f"learner {self.rank} of {self.world_size} has no connection to the others: {self._closing_reason}; "
                "build the group again"
            )
        started = time.monotonic()
        self.num_calls += 1
        self.is_waiting = True
        try:
            function(*args)
        except RuntimeError as error:
            raise self._error(name, started, error) from error
        finally:
            self.is_waiting = False

    def _error(self, name: str, started: float, error: Exception) -> LearnerError:
        """Leave the group, and return the error to raise.

        After a failed call the learners may be at different calls, so further results would be wrong.
        """
        waited = time.monotonic() - started
        self._leave(f"{name} failed before")
        return LearnerError(
            f"learner {self.rank} of {self.world_size}: {name} failed after {waited:.1f} s (timeout_s="
            f"{self.timeout_s:g}). Another learner died, hangs, or makes other calls than this one. The cause: {error}"
        )


def _merged(states: Sequence[Any], like: RunningMoments) -> RunningMoments:
    """Return the moments of all `states`, merged in their order; `like` gives the shape."""
    merged = RunningMoments(like.shape)
    for state in states:
        part = RunningMoments(like.shape)
        part.set_state(state)
        merged.merge(part)
    return merged


# -- addresses and stores ---

LOOPBACK = "127.0.0.1"


def _gloo_options(host: str, limit: timedelta) -> Any:
    """Return options with which gloo listens at `host` only. torch offers this under private names alone."""
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = limit
    return options


def _open_store(store: object, rank: int, world_size: int, limit: timedelta) -> Any:
    """Return the torch store that `store` names, see `DistributedReducer`."""
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
    """Return whether an address is one that only this machine can reach."""
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
    """Return a TCP store that this process serves at the address `host` only.

    A store that torch opens itself listens at all addresses of the machine, where strangers could reach it.

    Raises:
        RuntimeError: the port is in use.
    """
    options: dict[str, Any] = {"is_master": True, "timeout": timeout, "wait_for_workers": wait_for_workers}
    try:
        listener = socket.create_server((host, port), backlog=socket.SOMAXCONN)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RuntimeError(f"cannot listen at {host}:{port}: {error.strerror}") from error
        # No network interface of this machine has the address. It may belong to a router that forwards to this machine,
        # so torch listens at all addresses instead.
        return distributed.TCPStore(host, port, world_size, **options)
    used_port = listener.getsockname()[1]  # port 0 asks for any free one
    return distributed.TCPStore(host, used_port, world_size, master_listen_fd=listener.detach(), **options)


def _to_bytes(value: Tree) -> bytes:
    """Return a tree as bytes: the length of its JSON form, this form, and its arrays. It is never pickled."""
    arrays: dict[str, Array] = {}
    text = json.dumps(encode(value, "value", arrays)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *tensor_file_chunks(arrays)])


def _from_bytes(content: bytes) -> Tree:
    """Return the tree that `_to_bytes` has written."""
    end = 8 + int.from_bytes(content[:8], "little")
    return decode(json.loads(content[8:end]), parse_tensor_file(content[end:]))
