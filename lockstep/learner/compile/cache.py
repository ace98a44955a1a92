"""Compiled graphs on the CPU: kept in files between processes, made by a process beside the run.

The key of a file is a hash of the graph itself, operation by operation, and of all else that its code depends on. What
made the graph (configuration, networks, the source of a loss) is not asked, so nothing of it can be forgotten.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from lockstep.learner.compile import process as compile_process
from lockstep.learner.compile.code_folder import CHECKSUM, bound, is_own_file, make_private, place_of_kept_code

CompiledCode = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""from the inputs of a graph to what it gives out; inputs that it writes to are written to"""
OPTIONS = {"cpp.use_decompose_tanh": True, "memory_planning": True}
"""tanh as 2 sigmoid(2x) - 1: its vector form is faster, at an absolute error of 1e-7. What lies between two kernels is
in one piece of memory: single pieces often stand 64 bytes beside a whole number of pages, where reading one waits for
writing the other."""
FROM_ENVIRONMENT = ("TORCHINDUCTOR_", "TORCH_", "CXX", "OMP_", "MKL_")
"""how names of variables begin that may change what the compiler makes"""
ENDING: list[subprocess.Popen[bytes]] = []
"""compilers that were told to end"""
NOT_IN_KEY = ("TORCHINDUCTOR_CACHE_DIR",)


def cache_folder() -> Path:
    """Return the folder of compiled code: `lockstep/compiled` in the user's cache folder (`$XDG_CACHE_HOME`).

    It is the user's own with mode 0700. Where it cannot be that or cannot be written, it is a folder for this process
    alone, and goes with it.
    """
    try:
        folder = place_of_kept_code()
        make_private(folder)
        tempfile.TemporaryFile(dir=folder).close()
        return folder
    except (OSError, RuntimeError) as error:  # there is no home, say
        return _folder_of_process(str(error))


@cache
def _folder_of_process(reason: str) -> Path:
    warnings.warn(f"compiled code cannot be kept for later runs: {reason}; set XDG_CACHE_HOME", stacklevel=2)
    folder = tempfile.mkdtemp(prefix="lockstep-")
    weakref.finalize(_folder_of_process, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def compiler_name() -> str:
    """Return the compiler that torch calls for code on the CPU: the one that the variable CXX names, or its default."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def has_compiler() -> bool:
    """Return whether this machine has the compiler."""
    return shutil.which(compiler_name().split()[0]) is not None


@cache
def _machine() -> str:
    """Return what the code for this processor depends on: it runs on no other, were the folder on several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("flags", "Features", "model name"))))
    except OSError:
        import platform

        return f"{platform.machine()} {platform.processor()}"


def key_of(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Return a hash of all that the compiled code depends on."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(FROM_ENVIRONMENT) and name not in NOT_IN_KEY
    }
    parts = (
        graph.code,
        _layouts(inputs),
        torch.__version__,
        torch.version.git_version,
        torch.backends.cpu.get_cpu_capability(),
        _machine(),
        torch.get_num_threads(),
        OPTIONS,
        sorted(environment.items()),
        Path(compile_process.__file__).read_text(),
    )
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


def _layouts(inputs: Sequence[Tensor]) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    return [(tuple(each.shape), each.stride(), str(each.dtype).removeprefix("torch.")) for each in inputs]


class CodeToCome:
    """Compiled code that is in the cache folder, or that a process is going to put there.

    Other processes may look for the same code; whoever is first, the file is whole.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        self._work = (graph.code, _layouts(inputs), OPTIONS, torch.get_num_threads())
        self._path = cache_folder() / f"{key_of(graph, inputs)[:32]}.so"
        self._code = self._load()
        self._process = None if self._code is not None else self._start()

    def get(self) -> CompiledCode:
        """Return the code, and wait for it if need be; `RuntimeError` where there is none."""
        if self._code is None:
            assert self._process is not None
            _, said = self._process.communicate()
            self._code = self._load()
            bound(self._path.parent)
            if self._code is None:
                lines = said.decode(errors="replace").strip().splitlines()
                raise RuntimeError(lines[-1] if lines else f"it ended with code {self._process.returncode}")
        return self._code

    def _load(self) -> CompiledCode | None:
        """Return the code of the file; None where it is missing or damaged."""
        try:
            checksum = Path(f"{self._path}{CHECKSUM}")
            if not (is_own_file(self._path) and is_own_file(checksum)):
                return None
            expected = checksum.read_text()
            if hashlib.sha256(self._path.read_bytes()).hexdigest() == expected:
                os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")  # else it takes memory as it was laid out
                runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(self._path), 1)
                os.utime(self._path)  # the folder is bounded by the time of last use
                run: CompiledCode = runner.run
                return run
        except (OSError, ValueError, RuntimeError):
            pass
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", compile_process.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            start_new_session=True,
        )
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps((*self._work, str(self._path))).encode())
            process.stdin.close()
        except BrokenPipeError:  # it ended at once; `get` says why
            pass
        process.stdin = None
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process whose code nobody waits for any more, with the compilers that it started; it takes a second."""
    ENDING[:] = [each for each in ENDING if each.poll() is None]
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        ENDING.append(process)
