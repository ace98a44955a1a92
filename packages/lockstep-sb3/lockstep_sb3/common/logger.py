"""`Logger`: values by name, which `dump` writes to the terminal, to files and to TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep_sb3.common.extras import naming_extra
from lockstep_sb3.common.files import naming_damage

DEBUG = 10
INFO = 20
WARN = 30
ERROR = 40
DISABLED = 50
FORMATS = ("stdout", "log", "json", "csv", "tensorboard")
"""Names of outputs, for `configure` and `make_output_format`."""


@dataclass(frozen=True)
class Video:
    """Video with frames `[N, T, C, H, W]`, for TensorBoard."""

    frames: Any
    fps: float


@dataclass(frozen=True)
class Figure:
    """Figure of matplotlib, for TensorBoard."""

    figure: Any
    close: bool = False
    """Close the figure after it is written."""


@dataclass(frozen=True)
class Image:
    """Image, for TensorBoard."""

    image: Any
    dataformats: str
    """Order of the dimensions, such as "HWC"."""


@dataclass(frozen=True)
class HParam:
    """Hyperparameters, and the metrics to compare them by, for TensorBoard."""

    hparam_dict: Mapping[str, Any]
    metric_dict: Mapping[str, Any]


MEDIA = (Video, Figure, Image, HParam)
"""Kinds of values that only TensorBoard shows."""


class FormatUnsupportedError(ValueError):
    """Signal that an output cannot write a value."""

    def __init__(self, unsupported_formats: Sequence[str], value_description: str) -> None:
        names = ", ".join(unsupported_formats)
        super().__init__(
            f"{value_description} cannot be written to {names}; leave these out with record(..., "
            f"exclude={tuple(unsupported_formats)!r})"
        )


class KVWriter:
    """Base class of outputs, which override `write`."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write values by name.

        Args:
            key_values: The values.
            key_excluded: For each name the outputs that do not write it.
            step: Number of environment steps.
        """
        raise TypeError(f"{type(self).__name__} must have a method write(key_values, key_excluded, step)")

    def close(self) -> None:
        """Close the output. Here it does nothing."""


class SeqWriter:
    """Base class of outputs that write messages."""

    def write_sequence(self, sequence: list[str]) -> None:
        """Write the words of a message."""
        raise TypeError(f"{type(self).__name__} must have a method write_sequence(sequence)")


def filter_excluded_keys(
    key_values: Mapping[str, Any], key_excluded: Mapping[str, tuple[str, ...] | None], _format: str
) -> dict[str, Any]:
    """Return the values that the output `_format` writes."""
    return {key: value for key, value in key_values.items() if _format not in (key_excluded.get(key) or ())}


def _check_no_media(values: Mapping[str, Any], *names: str) -> None:
    """Raise `FormatUnsupportedError` if a value can only be shown by TensorBoard."""
    for key, value in values.items():
        if isinstance(value, MEDIA):
            raise FormatUnsupportedError(names, f"{key!r}, a {type(value).__name__},")


class HumanOutputFormat(KVWriter, SeqWriter):
    """Output that writes values as a table of text.

    Args:
        filename_or_file: Path of a file that is made, or an open file such as `sys.stdout`.
        max_length: Number of characters after which names and values are cut off.
    """

    def __init__(self, filename_or_file: Any, max_length: int = 36) -> None:
        self.max_length = max_length
        self.own_file = isinstance(filename_or_file, str | Path)
        if self.own_file:
            self.file: Any = Path(filename_or_file).open("w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        elif hasattr(filename_or_file, "write"):
            self.file = filename_or_file
        else:
            raise ValueError(f"HumanOutputFormat takes a path or an open file, not {filename_or_file!r}")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = filter_excluded_keys(filter_excluded_keys(key_values, key_excluded, "stdout"), key_excluded, "log")
        _check_no_media(values, "stdout", "log")
        if not values:
            warnings.warn("there is nothing to write to the log; record(name, value) comes first", stacklevel=2)
            return
        rows: list[tuple[str, str]] = []
        section = ""
        for key, value in sorted(values.items()):
            # Names such as "train/loss" stand below a line for "train/".
            group, slash, name = key.rpartition("/")
            if slash and group + slash != section:
                section = group + slash
                rows.append((self._truncate(section), ""))
            text = f"{value:<8.3g}" if isinstance(value, float) else str(value)
            rows.append((self._truncate(f"   {name}" if slash else key), self._truncate(text)))

        key_width = max(len(key) for key, _ in rows)
        value_width = max(len(text) for _, text in rows)
        line = "-" * (key_width + value_width + 7)
        table = [f"| {key:<{key_width}} | {text:<{value_width}} |" for key, text in rows]
        self.file.write("\n".join([line, *table, line]) + "\n")
        self.file.flush()

    def _truncate(self, text: str) -> str:
        """Return a text of at most `max_length` characters."""
        return text if len(text) <= self.max_length else f"{text[: self.max_length - 3]}..."

    def write_sequence(self, sequence: list[str]) -> None:
        self.file.write(" ".join(sequence) + "\n")
        self.file.flush()

    def close(self) -> None:
        if self.own_file:
            self.file.close()


def _plain(value: Any) -> Any:
    """Return a value for JSON: arrays and tensors become numbers or lists."""
    if hasattr(value, "dtype"):
        plain = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        return plain.item() if plain.size == 1 else plain.tolist()
    return value


class JSONOutputFormat(KVWriter):
    """Output that writes values as lines of JSON to a file."""

    def __init__(self, filename: str | Path) -> None:
        self.file = Path(filename).open("w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = filter_excluded_keys(key_values, key_excluded, "json")
        _check_no_media(values, "json")
        self.file.write(json.dumps({key: _plain(value) for key, value in values.items()}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class CSVOutputFormat(KVWriter):
    """Output that writes values as a row of a CSV file. With a new name, the file is written again with its column."""

    def __init__(self, filename: str | Path) -> None:
        self.path = Path(filename)
        self.file = self.path.open("w", encoding="utf-8", newline="")
        self.keys: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = filter_excluded_keys(key_values, key_excluded, "csv")
        _check_no_media(values, "csv")
        row = {key: _plain(value) for key, value in values.items()}
        self.rows.append(row)
        new_keys = [key for key in row if key not in self.keys]
        if new_keys:
            self.keys += new_keys
            self.file.seek(0)
            self.file.write(_as_csv(self.keys, self.rows))
            self.file.truncate()
        else:
            csv.DictWriter(self.file, self.keys, lineterminator="\n").writerow(row)
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _as_csv(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class TensorBoardOutputFormat(KVWriter):
    """Output that writes values of any kind to the event file of TensorBoard in a folder."""

    def __init__(self, folder: str | Path) -> None:
        with naming_extra("TensorBoardOutputFormat", "tensorboard", "lockstep-rl"):
            from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        for key, value in filter_excluded_keys(key_values, key_excluded, "tensorboard").items():
            self._write_value(key, value, step)
        self.writer.flush()

    def _write_value(self, key: str, value: Any, step: int) -> None:
        """Write one value in the way of its kind."""
        writer: Any = self.writer
        if isinstance(value, Figure):
            writer.add_figure(key, value.figure, step, value.close)
        elif isinstance(value, Image):
            writer.add_image(key, value.image, step, dataformats=value.dataformats)
        elif isinstance(value, Video):
            writer.add_video(key, value.frames, step, value.fps)
        elif isinstance(value, HParam):
            writer.add_hparams(dict(value.hparam_dict), dict(value.metric_dict), run_name=".")
        elif isinstance(value, str):
            writer.add_text(key, value, step)
        elif torch.as_tensor(value).numel() > 1:
            writer.add_histogram(key, torch.as_tensor(value), step)
        else:
            writer.add_scalar(key, _plain(value), step)

    def close(self) -> None:
        self.writer.close()


def make_output_format(_format: str, log_dir: str, log_suffix: str = "") -> KVWriter:
    """Return an output by its name.

    Args:
        _format: "stdout", or "log", "json", "csv" or "tensorboard" for a file in `log_dir`.
        log_dir: Folder of the files, which is made.
        log_suffix: End of the file's name before its suffix.

    Raises:
        ValueError: The name is unknown.
    """
    if _format not in FORMATS:
        raise ValueError(f"the output {_format!r} is unknown; allowed: {', '.join(FORMATS)}")
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if _format == "stdout":
        return HumanOutputFormat(sys.stdout)
    if _format == "log":
        return HumanOutputFormat(folder / f"log{log_suffix}.txt")
    if _format == "json":
        return JSONOutputFormat(folder / f"progress{log_suffix}.json")
    if _format == "csv":
        return CSVOutputFormat(folder / f"progress{log_suffix}.csv")
    return TensorBoardOutputFormat(folder)


class Logger:
    """Logger that collects values until `dump` writes them.

    Args:
        folder: Folder of the files; None if there are none.
        output_formats: Outputs that values are written to.
    """

    def __init__(self, folder: str | None = None, output_formats: Sequence[KVWriter] = ()) -> None:
        self.dir = folder
        self.output_formats = list(output_formats)
        self.level = INFO
        self.name_to_value: dict[str, Any] = {}
        """Values since the last dump."""
        self.name_to_count: dict[str, int] = {}
        """Number of values in each mean."""
        self.name_to_excluded: dict[str, tuple[str, ...]] = {}
        """Names of the outputs that do not write a value."""

    def record(self, key: str, value: Any, exclude: str | Sequence[str] | None = None) -> None:
        """Record a value until the next dump. Outputs in `exclude`, such as "stdout", do not write it."""
        self.name_to_value[key] = value
        names = (exclude,) if isinstance(exclude, str) else tuple(exclude or ())
        self.name_to_excluded[key] = names

    def record_mean(self, key: str, value: float | None, exclude: str | Sequence[str] | None = None) -> None:
        """Record a value as part of the mean of all values since the last dump. None is left out."""
        if value is None:
            return
        count = self.name_to_count.get(key, 0)
        mean = (self.name_to_value.get(key, 0.0) * count + value) / (count + 1)
        self.record(key, mean, exclude)
        self.name_to_count[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Write all recorded values, and forget them."""
        if self.level == DISABLED:
            return
        for output in self.output_formats:
            output.write(self.name_to_value, self.name_to_excluded, step)
        self.name_to_value.clear()
        self.name_to_count.clear()
        self.name_to_excluded.clear()

    def log(self, *args: object, level: int = INFO) -> None:
        """Write a message, if its level is at least that of the logger."""
        if self.level > level:
            return
        for output in self.output_formats:
            if isinstance(output, SeqWriter):
                output.write_sequence([str(each) for each in args])

    def debug(self, *args: object) -> None:
        """Write a message of the level DEBUG."""
        self.log(*args, level=DEBUG)

    def info(self, *args: object) -> None:
        """Write a message of the level INFO."""
        self.log(*args, level=INFO)

    def warn(self, *args: object) -> None:
        """Write a message of the level WARN."""
        self.log(*args, level=WARN)

    def error(self, *args: object) -> None:
        """Write a message of the level ERROR."""
        self.log(*args, level=ERROR)

    def set_level(self, level: int) -> None:
        """Set the level below which messages are left out. DISABLED leaves out everything."""
        self.level = level

    def get_dir(self) -> str | None:
        """Return the folder of the files; None if there are none."""
        return self.dir

    def close(self) -> None:
        """Close all outputs."""
        for output in self.output_formats:
            output.close()


def configure(folder: str | Path | None = None, format_strings: Sequence[str] | None = None) -> Logger:
    """Return a logger with outputs by their names.

    Args:
        folder: Folder of the files. Defaults to the environment variable `SB3_LOGDIR`, or else to a new folder for
            temporary files.
        format_strings: Names of outputs, see `make_output_format`. Defaults to the names in `SB3_LOG_FORMAT`, separated
            by commas, or else to "stdout", "log" and "csv".
    """
    if folder is None:
        name = time.strftime("SB3-%Y-%m-%d-%H-%M-%S-")
        folder = os.environ.get("SB3_LOGDIR") or tempfile.mkdtemp(prefix=name)
    if format_strings is None:
        format_strings = os.environ.get("SB3_LOG_FORMAT", "stdout,log,csv").split(",")
    names = [name for name in format_strings if name]
    Path(folder).mkdir(parents=True, exist_ok=True)
    logger = Logger(str(folder), [make_output_format(name, str(folder)) for name in names])
    if names and names != ["stdout"]:
        logger.log(f"Logging to {folder}")
    return logger


def read_json(filename: str | Path) -> Any:
    """Return a file of `JSONOutputFormat` as a pandas table."""
    with naming_extra("read_json", "monitor"):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    with naming_damage(Path(filename), "file of JSONOutputFormat"):
        lines = Path(filename).read_text(encoding="utf-8").splitlines()
        return pd.DataFrame([json.loads(line) for line in lines])


def read_csv(filename: str | Path) -> Any:
    """Return a file of `CSVOutputFormat` as a pandas table."""
    with naming_extra("read_csv", "monitor"):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    with naming_damage(Path(filename), "file of CSVOutputFormat"):
        return pd.read_csv(filename, comment="#")
