"""The file of an artefact, in ONNX or as torch's exported program: tracing, writing and running it."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lockstep.export.graph import ActingGraph, ExportError, export_errors_of

Format = Literal["onnx", "torch"]
FILES: Mapping[str, str] = {"onnx": "policy.onnx", "torch": "policy.pt2"}
"""File name of each format."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""Function from inputs `{name: [B, ...]}` to the list of outputs `[B, ...]`."""
EXAMPLE_ROWS = 3
"""Number of rows to trace with. `torch.export` would take a batch size of 1 for a constant."""


def write(graph: ActingGraph, path: Path, file_format: Format) -> None:
    """Trace a graph and write it to a file.

    Raises:
        ExportError: an operation cannot be traced, or the format has no form for it.
        ImportError: packages for ONNX are missing.
    """
    if file_format == "onnx":
        check_installed()
    with quiet_exporter():
        program = _traced(graph)
        if file_format == "torch":
            program.example_inputs = None  # they would be a pickle in the file, which loading may unpickle
            torch.export.save(program, path)
            return
        try:
            onnx_program: Any = torch.onnx.export(
                program,
                input_names=[port.name for port in graph.inputs],
                output_names=graph.output_names,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:
            raise _no_onnx_form(type(graph.module).__name__, error) from error
        _name_batch_dimension(onnx_program.model)
        onnx_program.save(path)


def read(path: Path, names: list[str]) -> Run:
    """Return a function that runs the file of an artefact.

    Args:
        path: File, whose suffix says the format.
        names: Names of the inputs, in order.
    """
    return _onnx_runner(path) if path.suffix == ".onnx" else _torch_runner(path, names)


def _onnx_runner(path: Path) -> Run:
    check_installed()
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a policy's network is too small for more
    options.log_severity_level = 3  # errors only
    with _onnx_errors(path):
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # An input that the network ignores is not in the file.
    names = {port.name for port in session.get_inputs()}

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with _onnx_errors(path):
            outputs: list[np.ndarray] = session.run(None, {name: inputs[name] for name in names})
        return outputs

    return run


def _torch_runner(path: Path, names: list[str]) -> Run:
    module = torch.export.load(path).module()

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        tensors = [torch.from_numpy(inputs[name]) for name in names]
        with torch.no_grad():
            return [output.numpy() for output in module(*tensors)]

    return run


@contextmanager
def _onnx_errors(path: Path) -> Iterator[None]:
    """Turn errors of onnxruntime, which are no `ValueError`, into an `ExportError` that names the file."""
    try:
        yield
    except Exception as error:
        raise ExportError(
            f"onnxruntime cannot run {path.name}: {str(error).strip()}; it lacks some operations in float64 (LSTM, "
            'GRU): train in float32, or export with format="torch"'
        ) from error


def check_installed() -> None:
    """Raise `ImportError`, which says what to install, if the packages for ONNX are missing."""
    for name in ONNX_PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"ONNX needs {', '.join(ONNX_PACKAGES)}: pip install {' '.join(ONNX_PACKAGES)} ({error})"
            ) from error


def versions_of(file_format: str) -> dict[str, str]:
    """Return the versions of the packages that write and run a format."""
    if file_format != "onnx":
        return {}
    return {name: importlib.metadata.version(name) for name in ONNX_PACKAGES}


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Suppress the warnings and messages of torch's exporter, which are about its own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


def _traced(graph: ActingGraph) -> torch.export.ExportedProgram:
    """Return the traced operations of a graph, for any number of rows."""
    examples = graph.examples(EXAMPLE_ROWS)
    with torch.no_grad():
        # Run it plainly first: its own errors are clearer than those of the tracer.
        graph(*examples)
        batch = torch.export.Dim("batch")
        dynamic_shapes = (tuple({0: batch} for _ in examples),)
        with export_errors_of(graph.module):
            return torch.export.export(graph, examples, dynamic_shapes=dynamic_shapes, strict=False)


def _name_batch_dimension(model: Any) -> None:
    """Name the free first dimension of all inputs and outputs "batch"."""
    ir: Any = importlib.import_module("onnx_ir")
    for value in (*model.graph.inputs, *model.graph.outputs):
        row_shape = list(value.shape)[1:]
        value.shape = ir.Shape(["batch", *row_shape])


def _no_onnx_form(network: str, error: Exception) -> ExportError:
    """Return an error that names the operations that ONNX lacks, which torch's message has somewhere in its text."""
    names = re.findall(r"\b(?:aten|prims?|lockstep|torchvision)[.:]+\w+", str(error))
    operations = ", ".join(sorted(set(names))) or str(error).strip().splitlines()[0]
    return ExportError(
        f"{network} cannot be written as ONNX: {operations} has no ONNX form; compute it with "
        'other operations, or export with format="torch"'
    )
