"""Compile a graph in a process of its own: run as a script, with what to compile on the standard input.

It imports nothing of Lockstep, so that it starts early.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

QUICK = {
    "cpp.vec_isa_ok": True,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
}
"""Half of the time: no trial of what instructions the compiler knows, no headers prepared for graphs to come."""


def main() -> None:
    """Write the library and its checksum to the place that is asked for, each of them at once or not at all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by an exception, so that the folder goes
    threading.Thread(target=end_with_parent, args=(int(sys.argv[1]),), daemon=True).start()
    received = sys.stdin.buffer.read()  # all of it before torch is loaded: the learner waits until it is read
    code, layouts, options, num_threads, target = json.loads(received)
    if "carefully" in sys.argv:  # for a process that has the lock
        make(code, layouts, options, num_threads, target, received)
        return
    with open(f"{target}.lock", "w") as lock:  # several runs that begin together need the code once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(Path(target)):
            make(code, layouts, options, num_threads, target, received)
        Path(lock.name).unlink(missing_ok=True)


def is_made(target: Path) -> bool:
    """Return whether the library is there, whole."""
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() == Path(f"{target}.sha256").read_text()
    except OSError:
        return False


def make(
    code: str, layouts: list[Any], options: dict[str, Any], num_threads: int, target: str, received: bytes
) -> None:
    """Compile the source of a graph's `forward` for inputs of these layouts. `received`: all of this as it came."""
    import torch
    from torch._inductor import aot_compile

    torch.set_num_threads(num_threads)
    names = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "NoneType": type(None)}
    exec(code, names)  # the source of a graph's `forward`
    graph = torch.fx.symbolic_trace(type("Recorded", (torch.nn.Module,), {"forward": names["forward"]})())
    inputs = []
    for shape, stride, dtype in layouts:
        inputs.append(torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)).zero_())
    with tempfile.TemporaryDirectory(dir=Path(target).parent, prefix="making-") as folder:
        options["aot_inductor.output_path"] = f"{folder}/step.so"
        try:
            made = aot_compile(graph, tuple(inputs), options=options if "carefully" in sys.argv else options | QUICK)
        except Exception:  # a compiler, say, that does not know all instructions of the processor
            if "carefully" in sys.argv:
                raise
            command = [*sys.orig_argv[:-1], str(os.getpid()), "carefully"]
            sys.exit(subprocess.run(command, input=received, check=False).returncode)
        checksum = Path(folder, "step.sha256")
        checksum.write_text(hashlib.sha256(Path(str(made)).read_bytes()).hexdigest())
        os.replace(str(made), target)
        os.replace(checksum, f"{target}.sha256")


def end_with_parent(parent: int) -> None:
    """End this process and the compilers that it started when the process that asked for the code is gone.

    Its number is an argument: it may be gone before this process can ask for the one above it.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGTERM)  # it has a session, and so a group, of its own


if __name__ == "__main__":
    main()
