"""DQN on CartPole-v1: Lockstep and its peers, alternately, in processes of their own.

    python benchmarks/dqn_cartpole.py                        # 5 rounds of 51,200 steps, one thread each
    python benchmarks/dqn_cartpole.py --updates 40 --name dqn_cartpole_updates    # one gradient step for two steps
    python benchmarks/dqn_cartpole.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/dqn_cartpole.py --render               # the table again, from the raw results

The setting is in ``peers/dqn_setting.py``, the same for all. Eager entries are compared over the whole loop, compiled
ones after their first updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from training_comparison import Comparison, Entry, Row, best, main

ENTRIES = {
    "lockstep": Entry("lockstep_dqn.py", None),
    "lockstep-compiled": Entry("lockstep_dqn.py", None, ("--compile",), compiled=True),
    "sb3": Entry("sb3_dqn.py", "sb3"),
    "tianshou": Entry("tianshou_dqn.py", "tianshou"),
    "rllib": Entry("rllib_dqn.py", "rllib"),
    "torchrl": Entry("torchrl_dqn.py", "torchrl"),
    "cleanrl-style": Entry("cleanrl_style_dqn.py", "cleanrl"),
    "cleanrl-style-compiled": Entry("cleanrl_style_dqn.py", "cleanrl", ("--compile",), compiled=True),
}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Ours over the fastest peer: eager over eager, compiled over all."""
    lines = []
    for compiled, peers in ((False, False), (True, None), (False, None)):
        ours, peer = best(rows, ours=True, compiled=compiled), best(rows, ours=False, compiled=peers)
        line = (
            "" if ours is None or peer is None else f"- {ours.name} / {peer.name}: {ours.compared / peer.compared:.2f}"
        )
        if line and line not in lines:
            lines.append(line)
    return [*lines, "", "The goal is 3 over the fastest peer."]


DQN = Comparison(
    "DQN on CartPole-v1",
    "DQN, CartPole-v1, 8 environments x 10 steps and then gradient steps on 128 rows, network of 120 and 84 units",
    "dqn_cartpole",
    51_200,
    ENTRIES,
    verdicts,
    (("--updates", "gradient steps after each 80 environment steps", 8),),
)

if __name__ == "__main__":
    raise SystemExit(main(DQN))
