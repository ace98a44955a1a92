"""SAC on Pendulum-v1: Lockstep and its peers, alternately, in processes of their own (`td3_pendulum.py`: TD3).

    python benchmarks/sac_pendulum.py                        # 5 rounds of 3,000 steps, one thread each
    python benchmarks/sac_pendulum.py --threads 2            # two threads each
    python benchmarks/sac_pendulum.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/sac_pendulum.py --render               # the table again, from the raw results

The setting is in ``peers/protocol.py``, the same for all: one gradient step on 256 rows for each step, networks of
256 x 256. What is measured leaves out random steps and warm-up, so that both columns of rates say the same. ``half``
entries multiply in bfloat16. Rates are by the processor's time with one thread and by the clock with several; the raw
record has both, and the gradient steps that each run counted. RLlib's new API stack has no TD3.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from runner import Entry
from training_comparison import Comparison, Row, main

COLUMNS = (
    "Both rates leave out the first 600 steps (500 without gradient steps). `return` is the mean of the last 5 "
    "training episodes (median over rounds)."
)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return ours over Stable-Baselines3, and over the fastest peer, each with as many threads."""
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
    """Return SAC's comparison or TD3's."""
    entries = {
        "lockstep": Entry("lockstep_train.py"),
        "lockstep-half": Entry("lockstep_train.py", None, {"half": True}),
        "lockstep-compiled": Entry("lockstep_train.py", None, {"compile": True}, compiled=True),
        "lockstep-compiled-half": Entry("lockstep_train.py", None, {"compile": True, "half": True}, compiled=True),
        "sb3": Entry("sb3_train.py", "sb3"),
        "tianshou": Entry("tianshou_train.py", "tianshou"),
        "torchrl": Entry("torchrl_train.py", "torchrl"),
        "rllib": Entry("rllib_train.py", "rllib"),
        "plain": Entry("sac_plain.py", "cleanrl"),
        "plain-compiled": Entry("sac_plain.py", "cleanrl", {"compile": True}, compiled=True),
    }
    if algorithm == "td3":
        del entries["rllib"]
    about = f"{algorithm.upper()}, Pendulum-v1, a gradient step on 256 rows for each step, networks of 256 x 256"
    title, name = f"{algorithm.upper()} on Pendulum-v1", f"{algorithm}_pendulum"
    return Comparison(title, about, name, {"algorithm": algorithm, "steps": 3_000}, entries, verdicts, columns=COLUMNS)


if __name__ == "__main__":
    raise SystemExit(main(__doc__, comparison("sac")))
