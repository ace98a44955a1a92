"""DQN on CartPole-v1: Lockstep and its peers, alternately, in processes of their own.

    python benchmarks/dqn_cartpole.py                        # 5 rounds of 51,200 steps, one thread each
    python benchmarks/dqn_cartpole.py --updates 40 --name dqn_cartpole_updates    # one gradient step for two steps
    python benchmarks/dqn_cartpole.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/dqn_cartpole.py --render               # the table again, from the raw results

The setting is in ``peers/protocol.py``, the same for all. Eager entries are compared over the whole loop, compiled ones
after their first updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner import Entry
from training_comparison import Comparison, Row, best, main

ENTRIES = {
    "lockstep": Entry("lockstep_train.py"),
    "lockstep-compiled": Entry("lockstep_train.py", None, {"compile": True}, compiled=True),
    "sb3": Entry("sb3_train.py", "sb3"),
    "tianshou": Entry("tianshou_train.py", "tianshou"),
    "rllib": Entry("rllib_train.py", "rllib"),
    "torchrl": Entry("torchrl_train.py", "torchrl"),
    "cleanrl-style": Entry("cleanrl_style_dqn.py", "cleanrl"),
    "cleanrl-style-compiled": Entry("cleanrl_style_dqn.py", "cleanrl", {"compile": True}, compiled=True),
}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return ours over the fastest peer: eager over eager, compiled over all."""
    lines = []
    for compiled, peers in ((False, False), (True, None), (False, None)):
        ours, peer = best(rows, ours=True, compiled=compiled), best(rows, ours=False, compiled=peers)
        if ours is not None and peer is not None:
            lines.append(f"- {ours.name} / {peer.name}: {ours.compared / peer.compared:.2f}")
    return [*dict.fromkeys(lines), "", "The goal is 3 over the fastest peer."]


DQN = Comparison(
    "DQN on CartPole-v1",
    "DQN, CartPole-v1, 8 environments x 10 steps and then gradient steps on 128 rows, network of 120 and 84 units",
    "dqn_cartpole",
    {"algorithm": "dqn", "steps": 51_200},
    ENTRIES,
    verdicts,
    {"updates": ("gradient steps after each 80 environment steps", 8)},
)

if __name__ == "__main__":
    raise SystemExit(main(__doc__, DQN))
