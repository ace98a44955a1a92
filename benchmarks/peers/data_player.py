"""Play sequences of operations on batches and episodes, with whichever library's classes it is given.

A sequence is plain JSON: steps such as ``{"op": "getitem_slice", "on": 0, "start": 2, "stop": 5}``. A pool of batches
(or episodes) is numbered; what some operations make is put into the pool. The trace holds one entry for each step: the
result or the kind of error in plain values, and the *marks* of the step, names of the situations in which the libraries
are known to differ (``data_differences.md``). A step with a mark is recorded, but changes nothing: what follows goes on
from objects that are the same in both libraries.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import protocol

work = protocol.read(__doc__)

from data_agents import OPERATIONS as AGENTS  # noqa: E402
from data_batches import OPERATIONS as BATCHES  # noqa: E402
from data_episodes import OPERATIONS as EPISODES  # noqa: E402
from data_forms import Play, Step, plain  # noqa: E402

OPERATIONS = BATCHES | EPISODES | AGENTS


class Endless(BaseException):
    """A call that does not come back; no `except Exception` on its way may swallow it."""


def play(library: Any, steps: list[Step]) -> list[Step]:
    """Return the trace of one sequence."""
    state, trace = Play(library), list[Step]()
    for step in steps:
        state.marks, result = set(), None
        number = step.get("on", 0)
        try:
            result = in_time(lambda step=step, number=number: result_of(state, number, step))
            shown = plain(result)
        except (Exception, Endless) as error:
            shown = {"error": type(error).__name__}
        else:
            effect = OPERATIONS[step["op"]].effect
            if not state.marks and effect == "adds":
                state.pool.append(result)
            elif not state.marks and effect == "replaces":
                state.pool[number % len(state.pool)] = result
        trace.append({"result": shown, "marks": sorted(state.marks)})
    return trace


def result_of(state: Play, number: int, step: Step) -> Any:
    """Return the result of one step, on a copy of the object that it names."""
    arguments = {name: value for name, value in step.items() if name not in ("op", "on")}
    return OPERATIONS[step["op"]].run(state, state.at(number) if state.pool else None, **arguments)


def in_time(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; raise `Endless` where it does not come back."""

    def stop(*_: Any) -> None:
        raise Endless

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def library_of(name: str) -> SimpleNamespace:
    """Return Lockstep's or RLlib's version, classes and functions; `requirement` makes one that names a column."""
    batch_names = ("SampleBatch", "MultiAgentBatch", "concat_samples", "concat_samples_into_ma_batch")
    batch_names += ("convert_ma_batch_to_sample_batch",)
    if name == "lockstep":
        import lockstep
        from lockstep import data as batches
        from lockstep.data import MultiAgentEpisode, SingleAgentEpisode

        version, requirement = lockstep.__version__, str
    else:
        import ray
        from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
        from ray.rllib.policy import sample_batch as batches
        from ray.rllib.policy.view_requirement import ViewRequirement

        logging.disable(logging.WARNING)
        version, requirement = ray.__version__, lambda column: ViewRequirement(data_col=column)
    found = {each: getattr(batches, each) for each in batch_names}
    found |= {"SingleAgentEpisode": SingleAgentEpisode, "MultiAgentEpisode": MultiAgentEpisode}
    return SimpleNamespace(version=version, requirement=requirement, **found)


if __name__ == "__main__":
    library = library_of(work.library)
    sequences = json.loads(Path(work.source).read_text(encoding="utf-8"))
    traces = [play(library, sequence["steps"]) for sequence in sequences]
    Path(work.target).write_text(json.dumps(traces, default=str), encoding="utf-8")
    protocol.print_line(work.library, library.version, sequences=len(traces))
