"""`Logger`: values by name, written to the terminal, CSV, JSON lines or TensorBoard when they are dumped."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.state.checks import check_choice


class Figure(NamedTuple):
    """A figure of matplotlib, for TensorBoard."""

    figure: Any
    close: bool = False


class Image(NamedTuple):
    """A picture, for TensorBoard; `dataformats` such as "HWC"."""

    image: Any
    dataformats: str


class Video(NamedTuple):
    """Frames `[N, T, C, H, W]`, for TensorBoard."""

    frames: Any
    fps: float


class HParam(NamedTuple):
    """Settings, and the names of what is compared, for TensorBoard."""

    hparam_dict: dict[str, Any]
    metric_dict: dict[str, Any]


class TensorBoardOutputFormat(NamedTuple):
    """The open event file: `logger.output_formats` has one where values go to TensorBoard."""

    writer: Any


class Logger:
    """Keeps values until `dump` writes them to all formats but those that a value's `exclude` names."""

    def __init__(self, folder: str | Path | None, formats: Sequence[str]) -> None:
        self.folder, self.formats = None if folder is None else Path(folder), formats
        self.name_to_value: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._excluded: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self.output_formats: list[TensorBoardOutputFormat] = []
        for name in formats:
            check_choice("format_strings", name, ("stdout", "csv", "json", "tensorboard"))
        if "tensorboard" in formats:
            from torch.utils.tensorboard import SummaryWriter

            self.output_formats.append(TensorBoardOutputFormat(SummaryWriter(folder)))

    def record(self, key: str, value: Any, exclude: str | Sequence[str] | None = None) -> None:
        """Keep a value."""
        self.name_to_value[key], self._excluded[key] = value, exclude or ()

    def record_mean(self, key: str, value: float, exclude: str | Sequence[str] | None = None) -> None:
        """Take a value into the mean of those since the last dump."""
        count = self._counts.get(key, 0)
        self.record(key, (self.name_to_value.get(key, 0.0) * count + value) / (count + 1), exclude)
        self._counts[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Write what was kept, and forget it."""
        for name in self.formats:
            values = {key: value for key, value in self.name_to_value.items() if name not in self._excluded[key]}
            for key, value in values.items() if name == "tensorboard" else ():
                self._to_tensorboard(key, value, step)
            values = {
                key: value if isinstance(value, str) else float(value)
                for key, value in values.items()
                if not isinstance(value, tuple)
            }
            if name == "stdout":
                sys.stdout.write("".join(f"| {key:<28} | {value!s:<14.14} |\n" for key, value in values.items()) + "\n")
            elif self.folder is not None and name in ("csv", "json"):
                self._to_file(name, self.folder / f"progress.{name}", values)
        self.name_to_value, self._counts = {}, {}

    def _to_file(self, name: str, path: Path, values: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rows += [values] if name == "csv" else []
        with path.open("a" if name == "json" else "w", newline="") as file:
            if name == "json":
                file.write(json.dumps(values) + "\n")
                return
            writer = csv.DictWriter(
                file, list(dict.fromkeys(key for row in self._rows for key in row))
            )  # new names may come
            writer.writeheader()
            writer.writerows(self._rows)

    def _to_tensorboard(self, key: str, value: Any, step: int) -> None:
        writer = self.output_formats[0].writer
        if isinstance(value, Figure):
            writer.add_figure(key, value.figure, step, close=value.close)
        elif isinstance(value, Image):
            writer.add_image(key, value.image, step, dataformats=value.dataformats)
        elif isinstance(value, Video):
            writer.add_video(key, value.frames, step, value.fps)
        elif isinstance(value, HParam):
            writer.add_hparams(*value, run_name=".")
        else:
            (writer.add_text if isinstance(value, str) else writer.add_scalar)(key, value, step)


def configure(folder: str | Path | None = None, format_strings: Sequence[str] = ("stdout",)) -> Logger:
    """Return a logger that writes into `folder`."""
    return Logger(folder, format_strings)
