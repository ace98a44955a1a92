"""The file of an artefact: traced, written and run, as ONNX or as torch's exported program."""

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

from lockstep.export.graph import ActingGraph, ExportError, blamed

Format = Literal["onnx", "torch"]
FILES: Mapping[str, str] = {"onnx": "policy.onnx", "torch": "policy.pt2"}
"""the name of the file of each format"""
NEEDED = ("onnx", "onnxscript", "onnxruntime")
Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""from inputs `{name: [B, ...]}` to the outputs `[B, ...]`"""
EXAMPLE_ROWS = 3


def write(graph: ActingGraph, path: Path, file_format: Format) -> None:
    """Write the file. `ExportError` where an operation has no form in it, `ImportError` where packages are missing."""
    if file_format == "onnx":
        check_installed()
    with quietly():
        program = _traced(graph)
        if file_format == "torch":
            program.example_inputs = None  # else a pickle in the file, which loading may unpickle
            torch.export.save(program, path)
            return
        try:
            written: Any = torch.onnx.export(
                program,
                input_names=[port.name for port in graph.inputs],
                output_names=graph.output_names,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:
            raise _no_onnx_form(graph, error) from error
        _name_the_batch(written.model)
        written.save(path)


def read(path: Path, names: list[str]) -> Run:
    """Return what runs a file; `names` are those of its inputs, in order."""
    if path.suffix == ".onnx":
        check_installed()
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        with _named_failure(path):
            session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        known = {each.name for each in session.get_inputs()}

        def run_session(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            with _named_failure(path):
                found: list[np.ndarray] = session.run(None, {name: inputs[name] for name in known})
            return found

        return run_session
    module = torch.export.load(path).module()

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [out.numpy() for out in module(*(torch.from_numpy(inputs[name]) for name in names))]

    return run


@contextmanager
def _named_failure(path: Path) -> Iterator[None]:
    """Raise `ExportError` with the file's name where onnxruntime fails: its own errors are no `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ExportError(
            f"onnxruntime cannot run {path.name}: {str(error).strip()}; it lacks some operations in float64 (LSTM, "
            'GRU): train in float32, or export with format="torch"'
        ) from error


def check_installed() -> None:
    """Raise `ImportError` with what to install where ONNX cannot be written or run."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"ONNX needs {', '.join(NEEDED)}: pip install {' '.join(NEEDED)} ({error})") from error


def versions_of(file_format: str) -> dict[str, str]:
    """Return the versions of the packages that write and run this format."""
    return {name: importlib.metadata.version(name) for name in NEEDED} if file_format == "onnx" else {}


@contextmanager
def quietly() -> Iterator[None]:
    """Keep back what torch says about its own exporter."""
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
    """Return the operations of the graph, for any number of rows."""
    examples = graph.examples(EXAMPLE_ROWS)
    with torch.no_grad():
        graph(*examples)  # says plainly what does not take tensors
        batch = torch.export.Dim("batch")
        with blamed(graph.module):
            return torch.export.export(
                graph, examples, dynamic_shapes=(tuple({0: batch} for _ in examples),), strict=False
            )


def _name_the_batch(model: Any) -> None:
    """Name the free dimension."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        rest = list(value.shape)[1:]
        ir: Any = importlib.import_module("onnx_ir")
        value.shape = ir.Shape(["batch", *rest])


def _no_onnx_form(graph: ActingGraph, error: Exception) -> ExportError:
    """Return the error that names the operation which ONNX lacks."""
    found = re.findall(r"\b(?:aten|prims?|lockstep|torchvision)[.:]+\w+", str(error))
    operations = ", ".join(sorted(set(found))) or str(error).strip().splitlines()[0]
    return ExportError(
        f"{type(graph.module).__name__} cannot be written as ONNX: {operations} has no ONNX form; compute it with "
        'other operations, or export with format="torch"'
    )
