"""New Python processes that start at once: forked from one that has loaded the library and done nothing else."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

INSTALLED = (sys.prefix, sys.base_prefix)


def run_python(
    words: Sequence[object],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Do what `subprocess.run([sys.executable, *words], capture_output=True, text=True)` does, without its imports.

    `words` begin with `-c`, `-m` or a path. The process has its own memory, folder, environment variables, `sys.path`,
    `__main__`, standard streams and exit code; what is not new are the modules of the library (and those that they
    import) and the seed of hashes. Tests of these need a real process.
    """
    plain = [str(word) for word in words]
    with tempfile.TemporaryDirectory(prefix="lockstep-warm-") as folder:
        streams = [os.path.join(folder, name) for name in ("in", "out", "err")]
        for path, text in zip(streams, (input, "", "")):
            Path(path).write_text(text)
        arguments = (plain, str(cwd or os.getcwd()), dict(os.environ if env is None else env), streams)
        process = multiprocessing.get_context("forkserver").Process(target=_become, args=arguments)
        process.start()
        process.join(timeout)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        said, complained = (Path(path).read_text() for path in streams[1:])
        if late:
            raise subprocess.TimeoutExpired(plain, timeout, said, complained)
        return subprocess.CompletedProcess(plain, process.exitcode, said, complained)


def _become(words: list[str], cwd: str, env: dict[str, str], streams: list[str]) -> None:
    """Be a new interpreter with these words, in the process that was forked."""
    modes = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
    for number, (path, mode) in enumerate(zip(streams, modes)):
        opened = os.open(path, mode | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.set_start_method(os.environ.get("START_METHOD"), force=True)  # None: not chosen
    multiprocessing.process._parent_process = None

    kind, rest = (words[0], words[1:]) if words[0] in ("-c", "-m") else ("file", words)
    first = {"-c": "", "-m": cwd, "file": os.path.dirname(os.path.abspath(rest[0]))}[kind]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *paths, *(path for path in sys.path if path.startswith(INSTALLED))]
    sys.argv = ["-c", *rest[1:]] if kind == "-c" else list(rest)
    try:
        if kind == "-c":
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        elif kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(rest[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # processes of `multiprocessing` leave them out
