"""Step environments in worker processes with Lockstep, with gymnasium and with EnvPool, for ``workers_speed.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
from workers_work import COSTS, actions_of, maker, processor_time  # noqa: E402

from lockstep import __version__  # noqa: E402
from lockstep.envs import make_vector  # noqa: E402

COST, NUM_ENVS = COSTS[w.cost], w.num_envs
MAKE = maker(COST)


def lockstep_in(mode: str) -> Any:
    """Return Lockstep's vector environment, reset."""
    vector = make_vector(MAKE, num_envs=NUM_ENVS, mode=mode)
    vector.reset(list(range(NUM_ENVS)))
    return vector


def gymnasium_workers() -> Any:
    """Return gymnasium's `AsyncVectorEnv` as it is by default, reset."""
    vector = gym.vector.AsyncVectorEnv([MAKE] * NUM_ENVS)
    vector.reset(seed=0)
    return vector


def envpool_threads() -> Any:
    """Return EnvPool's CartPole, written in C++, reset."""
    import envpool

    vector = envpool.make_gymnasium("CartPole-v1", num_envs=NUM_ENVS, seed=0)
    vector.reset()
    return vector


def stepping(make: Callable[[], Any]) -> Callable[[], protocol.Measured]:
    """Return what builds a vector and times its steps."""

    def build() -> protocol.Measured:
        vector, actions = make(), actions_of(COST, NUM_ENVS)

        def call(_: None) -> None:
            for each in actions:
                vector.step(each)

        return protocol.Measured(call, processor_time=processor_time)

    return build


def main() -> None:
    makers = {"lockstep async": lambda: lockstep_in("async"), "gymnasium": gymnasium_workers}
    if COST.kind != "waits":  # one wait after the other
        makers["lockstep sync"] = lambda: lockstep_in("sync")
    if COST.kind == "CartPole":
        makers["envpool"] = envpool_threads
    entries = {name: stepping(make) for name, make in makers.items()}
    protocol.serve("lockstep", __version__, entries, gymnasium=gym.__version__)


if __name__ == "__main__":
    main()
