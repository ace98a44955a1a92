"""SAC on Pendulum-v1: Lockstep and its peers, alternately, in processes of their own (`td3_pendulum.py`: TD3).

    python benchmarks/sac_pendulum.py                        # 5 rounds of 3,000 steps, one thread each
    python benchmarks/sac_pendulum.py --threads 2            # two threads each
    python benchmarks/sac_pendulum.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/sac_pendulum.py --render               # the table again, from the raw results

The setting is in ``peers/sac_protocol.py``, the same for all: one gradient step on 256 rows for each step, networks of
256 x 256. What is measured leaves out random steps and warm-up, so that both columns of rates say the same. ``half``
entries multiply in bfloat16. Rates are by the processor's time with one thread and by the clock with several; the raw
record has both, and the gradient steps that each run counted. RLlib's new API stack has no TD3.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from training_comparison import Comparison, Entry, Row, main

COLUMNS = (
    "Both rates leave out the first 600 steps (500 without gradient steps). `return` is the mean of the last 5 "
    "training episodes (median over rounds)."
)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Ours over Stable-Baselines3, and over the fastest peer, each with as many threads."""
    lines = []
    for row in rows:
        peers = [peer for peer in rows if not peer.entry.is_ours and peer.threads == row.threads]
        if row.entry.is_ours and peers:
            fastest = max(peers, key=lambda peer: statistics.median(peer.steady))
            for peer in dict.fromkeys(["sb3", fastest.name]):
                for other in peers:
                    if other.name == peer:
                        ratio = statistics.median(row.steady) / statistics.median(other.steady)
                        lines.append(f"- {row.name} / {peer}, {row.threads} thread(s) each: {ratio:.2f}")
    return [
        *lines,
        "",
        "The goals are 2 over Stable-Baselines3 in float32, and 4 with products in bfloat16. Rates are by the "
        "processor's time with one thread, by the clock with more. The products alone: `sac_products.md`.",
    ]


def comparison(algorithm: str) -> Comparison:
    """SAC's or TD3's."""
    chosen = ("--algorithm", algorithm)
    entries = {
        "lockstep": Entry("sac_lockstep.py", None, chosen),
        "lockstep-half": Entry("sac_lockstep.py", None, (*chosen, "--half")),
        "lockstep-compiled": Entry("sac_lockstep.py", None, (*chosen, "--compile"), compiled=True),
        "lockstep-compiled-half": Entry("sac_lockstep.py", None, (*chosen, "--compile", "--half"), compiled=True),
        "sb3": Entry("sac_sb3.py", "sb3", chosen),
        "tianshou": Entry("sac_tianshou.py", "tianshou", chosen),
        "torchrl": Entry("sac_torchrl.py", "torchrl", chosen),
        "rllib": Entry("sac_rllib.py", "rllib", chosen),
        "plain": Entry("sac_plain.py", "cleanrl", chosen),
        "plain-compiled": Entry("sac_plain.py", "cleanrl", (*chosen, "--compile"), compiled=True),
    }
    if algorithm == "td3":
        del entries["rllib"]
    work = f"{algorithm.upper()}, Pendulum-v1, a gradient step on 256 rows for each step, networks of 256 x 256"
    title, name = f"{algorithm.upper()} on Pendulum-v1", f"{algorithm}_pendulum"
    return Comparison(title, work, name, 3_000, entries, verdicts, columns=COLUMNS)


if __name__ == "__main__":
    raise SystemExit(main(comparison("sac")))
