"""`TensorboardLogger`: records as TensorBoard event files.

tensorboard, an extra, is imported when the first record is written.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from lockstep.options.checks import install_hint
from lockstep.tracking.logger import BaseLogger, Intervals, RestoredData
from lockstep.tracking.records import flatten

_EVENTS = "events.out.tfevents.*"
_COUNTERS = "save/counters"
"""Tag of the counters of a save."""


class TensorboardLogger(BaseLogger):
    """Logger that writes numbers as scalars and text as text to TensorBoard event files.

    A tag is the scoped name (`test/returns_stat/mean`), over the steps of its scope. The state holds the length of each
    event file: `set_state` cuts away all records after the checkpoint.

    Args:
        log_dir: directory of the event files, which is made when it is needed.
        intervals: options of `BaseLogger`.

    Raises:
        ImportError: at the first record, if tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], **intervals: Unpack[Intervals]) -> None:
        super().__init__(**intervals)
        self.log_dir = Path(log_dir).absolute()
        self._writer: Any = None

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Write each value of `data` under its name. None is left out."""
        writer = self._open()
        for name, value in flatten(data).items():
            if isinstance(value, str):
                writer.add_text(name, value, global_step=step)
            elif value is not None:
                writer.add_scalar(name, float(value), global_step=step)

    def flush(self) -> None:
        """Write all pending records, and flush the event file."""
        super().flush()
        if self._writer is not None:
            self._writer.flush()

    def finalize(self) -> None:
        super().finalize()
        self._close()

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last recorded save, zeros if there is none.

        Records after that save stay where they are.
        """
        counters = self._last_text(_COUNTERS)
        if counters is None:
            return 0, 0, 0
        epoch, env_step, gradient_step = json.loads(counters)
        self._continue_from(epoch, env_step, gradient_step)
        return epoch, env_step, gradient_step

    def last_checkpoint(self) -> str | None:
        return self._last_text("save/path")

    def _last_text(self, name: str) -> str | None:
        """Return the newest text under a name, None if there is none."""
        accumulator = self._read(self.log_dir)
        tag = f"{name}/text_summary"  # how TensorBoard calls it
        if accumulator is None or tag not in accumulator.Tags()["tensors"]:
            return None
        return str(accumulator.Tensors(tag)[-1].tensor_proto.string_val[0].decode())

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return all scalars in the event files at `path`, by tag: `{"step": [...], "value": [...]}`, as float32."""
        accumulator = self._read(path)
        restored: RestoredData = {}
        if accumulator is None:
            return restored
        for tag in accumulator.Tags()["scalars"]:
            events = accumulator.Scalars(tag)
            restored[tag] = {"step": [e.step for e in events], "value": [e.value for e in events]}
        return restored

    def _read(self, path: str | os.PathLike[str]) -> Any:
        """Return TensorBoard's reader of the event files at `path`, None if there are no such files."""
        if self._writer is not None:
            self._writer.flush()
        if not any(Path(path).glob(_EVENTS)):
            return None
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(os.fspath(path), size_guidance={"scalars": 0})  # 0: all of them
        accumulator.Reload()
        return accumulator

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base, with the name and length of each event file."""
        if self._writer is not None:
            self._writer.flush()
        files = {file.name: file.stat().st_size for file in sorted(self.log_dir.glob(_EVENTS))}
        return {**super().get_state(), "files": files}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`: cut the event files to their lengths and delete later ones.

        New records go to a new file, because TensorBoard's writer cannot continue one.
        """
        super().set_state(state)
        self._close()
        for file in self.log_dir.glob(_EVENTS):
            length = state["files"].get(file.name)
            if length is None:
                file.unlink()
            elif length < file.stat().st_size:
                os.truncate(file, length)

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        """Record the counters as scalars and as text: scalars are float32, which is not exact above 2^24."""
        super().record_save(epoch, env_step, gradient_step, path)
        self._open().add_text(_COUNTERS, json.dumps([epoch, env_step, gradient_step]), global_step=env_step)

    def _close(self) -> None:
        """Close the writer, if there is one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        """Return TensorBoard's writer, made on first use."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(f"TensorboardLogger needs tensorboard: {install_hint('tensorboard')}") from error
            self._writer = SummaryWriter(str(self.log_dir))
        return self._writer
