"""`Logger`: values by name, written to the terminal and TensorBoard when they are dumped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


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
            (writer.add_text if isinstance(value, str) else writer.add_scalar)(key, value, step)


class Logger:
    """Keeps values until `dump` writes them, but not where a value's `exclude` names "stdout" or "tensorboard"."""

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
        """Keep a value."""
        self.name_to_value[key], self._excluded[key] = value, exclude or ()

    def record_mean(self, key: str, value: float, exclude: str | Sequence[str] | None = None) -> None:
        """Take a value into the mean of those since the last dump."""
        count = self._counts.get(key, 0)
        self.record(key, (self.name_to_value.get(key, 0.0) * count + value) / (count + 1), exclude)
        self._counts[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Write what was kept, and forget it."""
        for key, value in self.name_to_value.items():
            for output in self.output_formats if "tensorboard" not in self._excluded[key] else []:
                output.write(key, value, step)
            if self.prints and "stdout" not in self._excluded[key] and not isinstance(value, tuple):
                sys.stdout.write(f"| {key:<28} | {value!s:<14.14} |\n")
        if self.prints:
            sys.stdout.write("\n")
        self.name_to_value, self._counts = {}, {}
