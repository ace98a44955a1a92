"""`StepLog`: means of the values that environments on a device log in their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.options.checks import is_number

MAX_PENDING = 256
"""Number of steps whose values are kept until they are summed."""


@dataclass
class _Sums:
    """Sum and number of the values of one name. What is on a device stays there until it is read."""

    count: int = 0
    """Number of all values."""
    on_host: float = 0.0
    on_device: Tensor | None = None
    """0-d, float64."""


class StepLog:
    """Values that environments log in their steps, as a mean for each name (`extras["log"]` of rsl_rl).

    Each element of a tensor counts as one value, as in rsl_rl. Tensors are copied, because environments may write to
    them again. The host waits for the device in `take` only.
    """

    def __init__(self) -> None:
        self._pending: list[dict[str, object]] = []
        """Values of the steps that are not in `_sums` yet."""
        self._sums: dict[str, _Sums] = {}

    def add(self, values: Mapping[str, object]) -> None:
        """Add the values of one step: numbers and tensors of any shape, by name."""
        self._pending.append(
            {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()}
        )
        if len(self._pending) >= MAX_PENDING:  # nobody may call `take` for a long time
            self._sum_pending()

    def take(self) -> dict[str, tuple[float, int]]:
        """Return the mean and the number of the values of each name since the last call, and forget them."""
        self._sum_pending()
        named_sums = {name: sums for name, sums in self._sums.items() if sums.count}
        self.forget()
        on_device = [sums.on_device for sums in named_sums.values() if sums.on_device is not None]
        numbers = iter(torch.stack(on_device).tolist() if on_device else ())
        means = {}
        for name, sums in named_sums.items():
            total = sums.on_host
            if sums.on_device is not None:
                total += next(numbers)
            means[name] = (total / sums.count, sums.count)
        return means

    def forget(self) -> None:
        """Forget all values."""
        self._pending = []
        self._sums = {}

    def _sum_pending(self) -> None:
        """Add the pending values to the sums.

        Raises:
            TypeError: A value is neither a number nor a tensor.
        """
        pending, self._pending = self._pending, []
        tensors: dict[str, list[Tensor]] = {}
        for values in pending:
            for name, value in values.items():
                sums = self._sums.setdefault(name, _Sums())
                if isinstance(value, Tensor):
                    tensors.setdefault(name, []).append(value.reshape(-1))
                    sums.count += value.numel()
                elif is_number(value):
                    sums.on_host += float(value)
                    sums.count += 1
                else:
                    raise TypeError(f"extras['log'][{name!r}] is {value!r}; it must be a number or a tensor of numbers")
        for name, parts in tensors.items():
            sums = self._sums[name]
            # The tensors of one name are on one device, which need not be that of the environments.
            total = torch.cat(parts).sum(dtype=torch.float64)
            if total.device.type == "cpu":
                sums.on_host += float(total)
            elif sums.on_device is None:
                sums.on_device = total
            else:
                sums.on_device += total
