"""Cache of compiled graphs on the CPU: files that processes share, made by a compiler process next to the run.

The name of a file is a hash of the graph itself, operation by operation, and of everything else that its code depends
on. The origin of the graph (configuration, networks, the source of a loss) is not part of the hash. It can change the
code only by changing the graph, so the hash cannot miss anything of it.
"""

from __future__ import annotations

import ctypes
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
from lockstep.learner.compile.code_folder import CHECKSUM, SUFFIX, cache_path, is_own_file, limit_size, make_private

CompiledCode = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Compiled graph: maps the graph's inputs to its outputs. Inputs that the graph modifies are modified in place."""
LIBRARY_RUNNER: Any = getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)
"""torch's class that loads compiled libraries. It is private; None in a version of torch without it."""
OPTIONS = {"cpp.use_decompose_tanh": True, "memory_planning": True}
"""Options of the compiler.

`use_decompose_tanh` computes tanh(x) as 2 sigmoid(2x) - 1, whose vector form is faster, at an absolute error of 1e-7.

`memory_planning` puts the intermediate results of all kernels into one block of memory. Separate blocks often begin 64
bytes after a multiple of the page size, where a read from one has to wait for the write to another.
"""
FROM_ENVIRONMENT = ("TORCHINDUCTOR_", "TORCH_", "CXX", "OMP_", "MKL_")
"""Prefixes of the environment variables that may change the compiler's output."""
NOT_IN_KEY = ("TORCHINDUCTOR_CACHE_DIR",)
"""Environment variables with such a prefix that change nothing in the code."""
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 256 << 20)}
"""Options of glibc's allocator by environment variable: number for `mallopt`, and value in bytes.

Blocks up to the first value come from the heap, and free memory up to the second one stays in it.
"""
ENDING: list[subprocess.Popen[bytes]] = []
"""Compiler processes that were asked to end. They are held here so that Python can collect their exit codes; a
`Popen` that is dropped before its process has ended would warn and leave a zombie."""


def cache_folder() -> Path:
    """Return the folder of compiled code, and create it: `lockstep/compiled` in the user's cache (`$XDG_CACHE_HOME`).

    The folder belongs to the user, with mode 0700. If that cannot be had, or nothing can be written there, it is a
    temporary folder of this process, with a warning.
    """
    try:
        folder = cache_path()
        make_private(folder)
        tempfile.TemporaryFile(dir=folder).close()
        return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        return _folder_of_process(str(error))


@cache
def _folder_of_process(reason: str) -> Path:
    """Return a folder that is deleted when the process ends.

    `@cache` returns the same folder in later calls with the same reason, so there is also only one warning.
    """
    warnings.warn(f"compiled code cannot be kept for later runs: {reason}; set XDG_CACHE_HOME", stacklevel=2)
    folder = tempfile.mkdtemp(prefix="lockstep-")
    weakref.finalize(_folder_of_process, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def compiler_name() -> str:
    """Return the compiler that torch calls for CPU code: the one in the variable CXX, or the platform's default."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def has_compiler() -> bool:
    """Return whether this machine has the compiler, and can end it with the programs that it starts (not Windows)."""
    return hasattr(os, "killpg") and shutil.which(compiler_name().split()[0]) is not None


@cache
def _machine() -> str:
    """Return name and instruction sets of the processor: machines with one home folder on a network share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("flags", "Features", "model name"))))
    except OSError:
        import platform

        return f"{platform.machine()} {platform.processor()}"


def key_of(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Return a hash of everything that the compiled code of a graph depends on."""
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
        Path(compile_process.__file__).read_text(encoding="utf-8"),  # it has compiler options, too
    )
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


def _layouts(inputs: Sequence[Tensor]) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    """Return shape, strides and dtype of each input, in a form that JSON holds."""
    return [(tuple(each.shape), each.stride(), str(each.dtype).removeprefix("torch.")) for each in inputs]


@cache
def keep_freed_memory() -> None:
    """Let the allocator keep freed memory for the next gradient step, where it is glibc's.

    A compiled step allocates the same large blocks in each call. By default it is an accident of the heap's layout
    whether glibc returns them to the system each time; if it does, new pages take a sixth of the step's time. Options
    that the user has set in the environment are left as they are.
    """
    if sys.platform != "linux":
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries than glibc may lack it
    if set_option is not None and not KEPT_MEMORY.keys() & os.environ.keys():
        for number, value in KEPT_MEMORY.values():
            set_option(number, value)


class PendingCode:
    """Compiled code that is in the cache folder, or that a compiler process is going to put there.

    Other processes may compile the same graph at the same time. Files are renamed into place when they are complete,
    so it does not matter which of them is first.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        self._work = (graph.code, _layouts(inputs), OPTIONS, torch.get_num_threads())
        self._path = cache_folder() / f"{key_of(graph, inputs)[:32]}{SUFFIX}"
        self._code = self._load()
        self._process = None if self._code is not None else self._start()

    def get(self) -> CompiledCode:
        """Return the code, and wait for it if necessary; `RuntimeError` if the compiler failed."""
        if self._code is not None:
            return self._code
        assert self._process is not None
        _, output = self._process.communicate()
        self._code = self._load()
        limit_size(self._path.parent)
        if self._code is None:
            lines = output.decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"it ended with code {self._process.returncode}")
        return self._code

    def _load(self) -> CompiledCode | None:
        """Return the code in the file; None if the file is missing, damaged, or may have been written by others."""
        try:
            checksum = Path(f"{self._path}{CHECKSUM}")
            if not (is_own_file(self._path) and is_own_file(checksum)):
                return None
            if hashlib.sha256(self._path.read_bytes()).hexdigest() != checksum.read_text(encoding="utf-8"):
                return None
            # Without the check, code that is called with inputs of another layout reads memory beyond their ends.
            os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
            keep_freed_memory()
            runner = LIBRARY_RUNNER(str(self._path), 1)
            os.utime(self._path)  # `limit_size` deletes the least recently used code first
        except (OSError, ValueError, RuntimeError):
            return None
        run: CompiledCode = runner.run
        return run

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a compiler process, and return without waiting for it."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", compile_process.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            start_new_session=True,  # a process group of its own, so that `_end` reaches the compilers below it, too
        )
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps((*self._work, str(self._path))).encode())
            process.stdin.close()
        except BrokenPipeError:  # the process has ended already; `get` reports why
            pass
        process.stdin = None  # `communicate` would flush the closed pipe
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a compiler process that nobody waits for any more to end, with the compilers below it. Do not wait for it."""
    ENDING[:] = [each for each in ENDING if each.poll() is None]
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        ENDING.append(process)
