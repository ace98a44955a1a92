"""PPO on CartPole-v1: Lockstep and its peers, alternately, in processes of their own.

    python benchmarks/ppo_cartpole.py                      # 5 rounds of 65,536 steps, one thread each
    python benchmarks/ppo_cartpole.py --threads 1 2        # each of them with one thread and with two
    python benchmarks/ppo_cartpole.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/ppo_cartpole.py --render             # the table again, from the raw results

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
    "cleanrl-style": Entry("cleanrl_style.py", "cleanrl"),
    "leanrl-style": Entry("leanrl_style.py", "cleanrl"),
    "leanrl-style-compiled": Entry("leanrl_style.py", "cleanrl", {"compile": True}, compiled=True),
    "own-lean": Entry("cleanrl_style.py", "cleanrl", {"lean": True}, own_loop=True),
    "own-lean-compiled": Entry("cleanrl_style.py", "cleanrl", {"compile": True}, compiled=True, own_loop=True),
}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the ratios that the project promises, where both sides were measured, and those to our own lean loop."""
    eager, compiled = best(rows, ours=True, compiled=False), best(rows, ours=True, compiled=True)
    any_peer, eager_peer = best(rows, ours=False), best(rows, ours=False, compiled=False)
    sb3 = next((row for row in rows if row.name == "sb3"), None)
    wanted = [(eager, sb3, 2.5), (eager, eager_peer, 2.0), (compiled, any_peer, 3.0)]
    lines = [
        f"- {ours.name} / {peer.name}: **{ours.compared / peer.compared:.2f}** (goal {goal})"
        for ours, peer, goal in wanted
        if ours is not None and peer is not None
    ]
    for row in rows:
        ours = compiled if row.entry.compiled else eager
        if row.entry.own_loop and ours is not None and any(r.name.startswith("leanrl") for r in rows):
            lines.append(f"- {ours.name} / {row.name}: {ours.compared / row.compared:.2f} (a loop of ours, no peer)")
    return lines


PPO = Comparison(
    "PPO on CartPole-v1",
    "PPO, CartPole-v1, 8 environments x 128 steps, 4 epochs, minibatch 256, two 64x64 networks",
    "ppo_cartpole",
    {"algorithm": "ppo", "steps": 65_536},
    ENTRIES,
    verdicts,
)

if __name__ == "__main__":
    raise SystemExit(main(__doc__, PPO))
