"""What a run did, as lines of text that two runs with one seed have in common to the last bit."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.tracking.logger import BaseLogger
from lockstep.tracking.records import flatten, to_strict_json

_TIMED = re.compile(r"(?:^|[/_])(?:time|speed|path|wall_s)$|timing/|seconds")


def torch_param_hash(module: nn.Module) -> str:
    """SHA-256 over the names, shapes, dtypes and bytes of all parameters and buffers of a module.

    Buffers that are left out of `state_dict` count too; shared ones count under each of their names. The device, the
    training flag and `requires_grad` have no part in it.
    """
    sha = hashlib.sha256()
    named = [
        *(("parameter", *item) for item in module.named_parameters(remove_duplicate=False)),
        *(("buffer", *item) for item in module.named_buffers(remove_duplicate=False)),
    ]
    for kind, name, tensor in sorted(named, key=lambda item: item[:2]):
        sha.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class TraceLogger(BaseLogger):
    """Keeps every record that a trainer hands over as one line of text, without what a clock says.

    With modules, each update's line also has the hash of their parameters and buffers. Two runs with one seed have
    equal `lines`; `first_difference` tells where two have not.

        trace = TraceLogger(policy.module)
        OnpolicyTrainer(policy, logger=trace, ...).run()
        trace.digest()

    Args:
        modules: a module, or several by name.
    """

    def __init__(self, modules: nn.Module | Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.modules = {"module": modules} if isinstance(modules, nn.Module) else dict(modules or {})
        self.lines: list[str] = []

    def _log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """At once, whatever the interval: nothing is aggregated in a trace."""
        hashes = self.modules if name == "update" else {}
        self._note(name, step, {**flatten(data), **{f"hash/{key}": torch_param_hash(m) for key, m in hashes.items()}})

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Keeps one line."""
        self._note(step_type, step, flatten(data))

    def _note(self, what: str, step: int, values: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in values.items() if not _TIMED.search(name)}
        self.lines.append(f"{what} {step} {json.dumps(to_strict_json(kept), sort_keys=True)}")

    def digest(self) -> str:
        """SHA-256 of all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def first_difference(self, other: "TraceLogger") -> str | None:
        """The first line that differs, of both; None where there is none."""
        for number, (left, right) in enumerate(zip(self.lines, other.lines), start=1):
            if left != right:
                return f"line {number}:\n  {left}\n  {right}"
        if len(self.lines) != len(other.lines):
            return f"one trace has {len(self.lines)} lines, the other {len(other.lines)}"
        return None

    def get_state(self) -> dict[str, Any]:
        """The lines so far."""
        return {**super().get_state(), "lines": list(self.lines)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on after the lines of `get_state`."""
        super().set_state(state)
        self.lines = list(state["lines"])
