"""Prints the figures by which the shape of the code is judged, a run-time trace of PPO and SAC included.

`python benchmarks/house.py` writes `benchmarks/results/house.md`; `--print` only prints. What is counted, and how, is
in `tests/architecture/house_counts.py`; the limits are held by `tests/architecture/test_architecture_house.py`.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "architecture"))

from architecture_checks import read_sources  # noqa: E402
from house_counts import (  # noqa: E402
    any_parameters,
    assigned_methods,
    checking_lines,
    circles,
    file_graph,
    lines_in,
    owner_first,
    private_accesses,
)

RESULT = ROOT / "benchmarks" / "results" / "house.md"
PACKAGE = str(ROOT / "lockstep")


@dataclass
class Trace:
    """What of the package a run enters, and how deep the optimizer's step lies in it."""

    codes: set[CodeType] = field(default_factory=set)
    frames: list[str] = field(default_factory=list)
    """from `trainer.run` to the first optimizer step, `file:function`"""

    def on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile function: notes the code of each Python function of the package that is entered."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.codes.add(frame.f_code)

    def note_frames(self) -> None:
        """Keeps the frames of the package between here and `trainer.run`, the first time only."""
        if self.frames:
            return
        frame: FrameType | None = sys._getframe(1)
        found: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                found.append(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}")
                if code.co_name == "run" and "/trainer/" in code.co_filename:
                    break
            frame = frame.f_back
        self.frames = found[::-1]

    @property
    def files(self) -> set[str]:
        """Files that were entered."""
        return {code.co_filename for code in self.functions}

    @property
    def functions(self) -> set[CodeType]:
        """Functions and methods that were entered; lambdas and comprehensions are part of where they stand."""
        return {code for code in self.codes if not code.co_name.startswith("<")}

    @property
    def lines(self) -> int:
        """Lines of the functions that were entered, each line once."""
        spans: set[tuple[str, int]] = set()
        for code in self.functions:
            source, start = inspect.getsourcelines(code)
            spans.update((code.co_filename, start + offset) for offset in range(len(source)))
        return len(spans)


def traced_run(make_config: Callable[[], Any]) -> Trace:
    """A short run of a trainer, eager, in one process; building it is not part of the trace."""
    import torch

    trainer = make_config().build_trainer()
    trace = Trace()
    original = torch._fused_adam_

    def noted(*args: Any, **options: Any) -> Any:
        trace.note_frames()
        return original(*args, **options)

    torch._fused_adam_ = noted
    threading.setprofile(trace.on_call)
    sys.setprofile(trace.on_call)
    try:
        trainer.run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        torch._fused_adam_ = original
    return trace


def ppo_config() -> Any:
    """PPO on CartPole-v1, four updates."""
    from lockstep import PPOConfig

    return PPOConfig().environment("CartPole-v1").reporting(total_steps=8_192).evaluation(evaluation_interval=1)


def sac_config() -> Any:
    """SAC on Pendulum-v1, some hundred gradient steps."""
    from lockstep.algorithms import SACConfig

    return SACConfig().environment("Pendulum-v1").replay(learning_starts=100).reporting(total_steps=400)


def table() -> str:
    """The figures as a Markdown table, and the frames to the optimizer's step."""
    sources = read_sources(ROOT, "lockstep")
    rings = circles(file_graph(sources))
    ppo, sac = traced_run(ppo_config), traced_run(sac_config)
    frame_files = len({frame.partition(":")[0] for frame in ppo.frames})
    rows = [
        ("lines of `lockstep/`", f"{lines_in(sources):,}"),
        ("files", f"{len(sources)}"),
        ("circles of files", f"{len(rings)}{' ' + str([len(ring) for ring in rings]) if rings else ''}"),
        ("accesses to another object's `_private`", f"{len(private_accesses(sources))}"),
        ("functions that take their owner first", f"{len(owner_first(sources))}"),
        ("methods assigned in class bodies", f"{len(assigned_methods(sources))}"),
        ("lines that only check", f"{checking_lines(sources):,}"),
        ("parameters annotated `Any`", f"{any_parameters(sources)}"),
        ("frames from `trainer.run` to the optimizer's step", f"{len(ppo.frames)} in {frame_files} files"),
        ("entered at run time for PPO", _entered(ppo)),
        ("entered at run time for SAC", _entered(sac)),
        ("lines of `tests/`", f"{lines_in(read_sources(ROOT, 'tests')):,}"),
        ("lines of `benchmarks/`", f"{lines_in(read_sources(ROOT, 'benchmarks')):,}"),
    ]
    lines = ["| what | figure |", "|---|---:|", *(f"| {what} | {figure} |" for what, figure in rows)]
    return "\n".join([*lines, "", "Frames of PPO:", "", *(f"1. `{frame}`" for frame in ppo.frames)])


def _entered(trace: Trace) -> str:
    return f"{len(trace.files)} files, {len(trace.functions)} functions, {trace.lines:,} lines"


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="do not write the result")
    only_prints = parser.parse_args().print
    text = f"{table()}\n"
    print(text)
    if not only_prints:
        RESULT.write_text(f"# The shape of the code\n\nWritten by `python benchmarks/house.py`.\n\n{text}")


if __name__ == "__main__":
    main()
