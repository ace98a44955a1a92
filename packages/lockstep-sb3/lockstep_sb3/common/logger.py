"""`Logger`: values by name, which `dump` writes to the terminal and to TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """Figure of matplotlib, for TensorBoard."""

    figure: Any
    close: bool = False
    """Close the figure after it is written."""


class Image(NamedTuple):
    """Image, for TensorBoard."""

    image: Any
    dataformats: str
    """Order of the dimensions, such as "HWC"."""


class Video(NamedTuple):
    """Video with frames `[N, T, C, H, W]`, for TensorBoard."""

    frames: Any
    fps: float


class HParam(NamedTuple):
    """Hyperparameters, and the metrics to compare them by, for TensorBoard."""

    hparam_dict: dict[str, Any]
    metric_dict: dict[str, Any]


class TensorBoardOutputFormat(NamedTuple):
    """Open event file of TensorBoard. `logger.output_formats` has one if values are written to TensorBoard."""

    writer: Any

    def write(self, key: str, value: Any, step: int) -> None:
        """Write a value of any kind."""
        writer = self.writer
        if isinstance(value, Figure):
            writer.add_figure(key, value.figure, step, value.close)
        elif isinstance(value, Image):
            writer.add_image(key, value.image, step, dataformats=value.dataformats)
        elif isinstance(value, Video):
            writer.add_video(key, value.frames, step, value.fps)
        elif isinstance(value, HParam):
            writer.add_hparams(*value, run_name=".")
        else:
            add = writer.add_text if isinstance(value, str) else writer.add_scalar
            add(key, value, step)


class Logger:
    """Logger that collects values until `dump` writes them.

    A value is not written to the outputs in its `exclude`, "stdout" or "tensorboard".
    """

    def __init__(self, folder: str | Path | None = None, prints: bool = False) -> None:
        self.prints = prints
        self.name_to_value: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._excluded: dict[str, Any] = {}
        self.output_formats: list[TensorBoardOutputFormat] = []
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.output_formats.append(TensorBoardOutputFormat(SummaryWriter(folder)))

    def record(self, key: str, value: Any, exclude: str | Sequence[str] | None = None) -> None:
        """Record a value until the next dump."""
        self.name_to_value[key] = value
        self._excluded[key] = exclude or ()

    def record_mean(self, key: str, value: float, exclude: str | Sequence[str] | None = None) -> None:
        """Record a value as part of the mean of all values since the last dump."""
        count = self._counts.get(key, 0)
        mean = (self.name_to_value.get(key, 0.0) * count + value) / (count + 1)
        self.record(key, mean, exclude)
        self._counts[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Write all recorded values, and clear them."""
        for key, value in self.name_to_value.items():
            for output in self.output_formats if "tensorboard" not in self._excluded[key] else []:
                output.write(key, value, step)
            if self.prints and "stdout" not in self._excluded[key] and not isinstance(value, tuple):
                sys.stdout.write(f"| {key:<28} | {value!s:<14.14} |\n")
        if self.prints:
            sys.stdout.write("\n")
        self.name_to_value = {}
        self._counts = {}
