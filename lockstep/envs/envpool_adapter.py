"""EnvPool (its gymnasium interface) behind the boundary.

EnvPool resets in the step after an ending (NEXT_STEP), steps rows on its own threads, and takes seeds only
when a pool is made. It reports an episode that terminates in the very step of its time limit as truncated
only.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.envs.adapters import VectorEnvBoundary
from lockstep.state.messages import install_hint

_LARGEST_SEED = 2**31 - 1


def is_envpool(env: Any) -> bool:
    """Whether ``env`` is a pool with the gymnasium interface; needs no import of EnvPool."""
    return any(base.__name__ == "GymnasiumEnvPoolMixin" for base in type(env).__mro__)


class EnvPoolBoundary(VectorEnvBoundary):
    """A pool behind the boundary; rows that only reset come as invalid.

    Args:
        env: a pool made by ``envpool.make_gymnasium``, with ``batch_size`` equal to ``num_envs``.
        make: makes the same pool with other seeds, for ``reset(seeds)``; None where only the caller could.
    """

    def __init__(self, env: Any, make: Any = None) -> None:
        if not is_envpool(env):
            raise TypeError(f"expected a pool made by envpool.make_gymnasium, got {type(env).__name__}.")
        config = env.config
        if config["batch_size"] != config["num_envs"]:
            raise ValueError(
                f"the pool answers {config['batch_size']} of its {config['num_envs']} rows at a time; the "
                "boundary "
                "steps all rows together. Make it with batch_size equal to num_envs."
            )
        super().__init__(env)
        self.backend = "envpool"
        self._make = make

    def _resets_single_rows(self, base: Any) -> bool:
        return False

    def _reset_all(self, seeds: list[int] | None) -> Any:
        if seeds is not None:
            if self._make is None:
                warnings.warn(
                    "a pool takes its seeds when it is made: the seeds given to reset are not used. Pass "
                    "the id "
                    "with mode='envpool' instead of a finished pool.",
                    stacklevel=3,
                )
            else:
                self.env.close()
                self.env = self._make([int(seed) % _LARGEST_SEED for seed in seeds])
                self._env_step = self.env.step
        return self.env.reset()[0]


def make_envpool(env_id: Any, num_envs: int, config: Mapping[str, Any]) -> EnvPoolBoundary:
    """A pool of ``num_envs`` environments of ``env_id``.

    Raises:
        ValueError: EnvPool is not installed, or does not know the id (with the nearest ones).
    """
    try:
        import envpool
    except ImportError as error:
        raise ValueError(f"mode='envpool' needs EnvPool: {install_hint('envpool')}") from error
    if not isinstance(env_id, str):
        raise TypeError(f"mode='envpool' needs an environment id, got {env_id!r}.")
    known = envpool.list_all_envs()
    if env_id not in known:
        near = difflib.get_close_matches(env_id, known, n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"EnvPool does not know the environment id {env_id!r}.{hint}")

    def make(seeds: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # spaces rounded to float32, told once for each bound
            pool = envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seeds, **config)
            _ = pool.observation_space, pool.action_space
        return pool

    seeds = np.random.default_rng().integers(_LARGEST_SEED, size=num_envs).tolist()
    return EnvPoolBoundary(make(seeds), make)
