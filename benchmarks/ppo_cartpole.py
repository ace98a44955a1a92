"""PPO on CartPole-v1: Lockstep and its peers, alternately, in processes of their own.

    python benchmarks/ppo_cartpole.py                      # 5 rounds of 65,536 steps, one thread each
    python benchmarks/ppo_cartpole.py --threads 1 2        # each of them with one thread and with two
    python benchmarks/ppo_cartpole.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/ppo_cartpole.py --render             # the table again, from the raw results

A round runs every entry once; each round starts at another entry and has a seed of its own, so that slow
drifts of the machine fall on all alike. Every run is written to ``results/<name>.json`` as soon as it
ends; the table of medians comes beside it. Where several thread counts were measured, an entry is compared at
its faster one. Eager entries are compared over the whole loop, compiled ones after their first updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from training_comparison import Comparison, Entry, Row, best, main

ENTRIES = {
    "lockstep": Entry("lockstep_ppo.py", None),
    "lockstep-compiled": Entry("lockstep_ppo.py", None, ("--compile",), compiled=True),
    "sb3": Entry("sb3_ppo.py", "sb3"),
    "tianshou": Entry("tianshou_ppo.py", "tianshou"),
    "rllib": Entry("rllib_ppo.py", "rllib"),
    "torchrl": Entry("torchrl_ppo.py", "torchrl"),
    "cleanrl-style": Entry("cleanrl_style.py", "cleanrl"),
    "leanrl-style": Entry("leanrl_style.py", "cleanrl"),
    "leanrl-style-compiled": Entry("leanrl_style.py", "cleanrl", ("--compile",), compiled=True),
    "own-lean": Entry("cleanrl_style.py", "cleanrl", ("--lean",), own_loop=True),
    "own-lean-compiled": Entry("cleanrl_style.py", "cleanrl", ("--compile",), compiled=True, own_loop=True),
}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The ratios that the project promises, where both sides were measured; those to our own lean loop beside them."""
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
    65_536,
    ENTRIES,
    verdicts,
)

if __name__ == "__main__":
    raise SystemExit(main(PPO))
