"""`AsyncCollector`: steps each environment as soon as it is ready, without waiting for slower ones."""

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
    """Collector that steps each environment as soon as it is ready. Each environment has its own process.

    It is for training from a replay buffer; evaluation does not accept it.

    `collect(n_step=n)` returns when exactly `n` transitions are stored, for any `n`. Other environments may still be in
    the middle of a step; the next collect stores these steps. So fast environments contribute more transitions than
    slow ones, an action may be chosen by weights that are one update old, and a run cannot be repeated bit for bit.
    `collect(n_episode=n)` begins new episodes, and the first `n` that start count.

    Unfinished steps cannot be saved: their episodes are cut at a checkpoint.

    Args:
        policy: The policy that acts.
        env: The environments: `make_vector(..., mode="async")`, or an id, function or class.
        num_envs: Number of environments that are constructed from an id, function or class.
        on_step_hook: Function that is called with the list of `RowStepResult` that have arrived.

    `Collector` documents the other parameters.

    Raises:
        ValueError: The environments are in this process, the policy has recurrent layers or takes stacks of frames, or
            the buffer is not a `ReplayBuffer`.
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
