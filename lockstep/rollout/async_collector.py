"""`AsyncCollector`: waits for no environment that is slow; what is ready is stored and acts again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.envs import make_vector
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import BaseCollector, close_env_on_error, makes_environments, resolve_streams
from lockstep.rollout.collector import Collector
from lockstep.rollout.protocols import ActingLike
from lockstep.rollout.ready_stepper import ReadyStepper
from lockstep.state.streams import RandomStreams


class AsyncCollector(Collector):
    """Steps whichever environments are ready, each of which is in a process of its own.

    `collect(n_step=n)` returns when exactly `n` transitions are stored, for any `n`; what other environments are doing
    meanwhile is left under way and belongs to the next collect. So fast environments give more transitions than slow
    ones, an action may be chosen by weights that are one update old, and runs are not repeatable bit by bit.
    `collect(n_episode=n)` begins new episodes and counts the first `n` that start. For training from a replay buffer;
    evaluation refuses it.

    `env`: `make_vector(..., mode="async")`, or an id, function or class with `num_envs`. Other parameters: `Collector`;
    `on_step_hook` gets the list of `RowStepResult`. Steps under way cannot be saved: their episodes end at a
    checkpoint.

    Raises `ValueError` for environments in this process, a recurrent policy, one that takes stacks of frames,
    and a buffer that is no `ReplayBuffer`.
    """

    stepper: ReadyStepper
    may_evaluate = False

    def __init__(
        self,
        policy: ActingLike,
        env: Any,
        buffer: ReplayBuffer | None = None,
        exploration_noise: bool = False,
        on_step_hook: Callable[[Any], None] | None = None,
        on_episode_done_hook: Callable[[int, float, int], None] | None = None,
        raise_on_nan_in_buffer: bool = True,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        streams: RandomStreams | None = None,
    ) -> None:
        vector = make_vector(env, num_envs=num_envs, mode="async") if makes_environments(env) else env
        with close_env_on_error(env, vector):
            BaseCollector.__init__(
                self,
                ReadyStepper(policy, vector, resolve_streams(seed, streams)),
                buffer,
                exploration_noise=exploration_noise,
                epsilon=0.0,
                raise_on_nan_in_buffer=raise_on_nan_in_buffer,
                on_step_hook=on_step_hook,
                on_episode_done_hook=on_episode_done_hook,
                is_seeded=seed is not None or streams is not None,
                whole_episodes=False,
            )
