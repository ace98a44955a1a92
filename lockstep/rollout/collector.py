"""`Collector`: lets a policy act in environments that are stepped together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.data.rollout import RolloutStore
from lockstep.envs import StepResult, VectorBoundary, make_vector
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import BaseCollector, close_env_on_error, resolve_streams
from lockstep.rollout.protocols import ActingLike, sole_part
from lockstep.rollout.vector_stepper import VectorStepper
from lockstep.state.streams import RandomStreams


class Collector(BaseCollector):
    """Steps all environments of a vector together.

    `env`: a boundary, a gymnasium environment or vector, an EnvPool pool, or an id. With a `buffer` every step is
    stored; without one (evaluation) only returns and lengths are kept. It explores within a training step, and
    everywhere where `exploration_noise` is set, or `epsilon`: with it a policy of action values takes any action with
    that probability, whatever it does in training. `on_step_hook(step_result)` (with arrays of its own) and
    `on_episode_done_hook(env_index, episode_return, length)` observe. What the policy's connectors are to record (frame
    stacks, previous actions, resized images) is stored, from a copy of them of its own. `seed`: for its own random
    streams (episodes, exploration, random actions); without one each collector plays other episodes, and a trainer
    gives it the streams of the policy's seed. `place`: `(first, number of all)` where several collectors have a part of
    the environments each. `whole_episodes`: `collect(n_step=...)` collects whole episodes only: one in each
    environment, then another in each, until there are at least `n_step` steps. A collect that fails leaves no row
    behind (in a `ReplayBuffer`, which gets pieces of 128 vector steps: no row of the piece); the next one begins new
    episodes.
    """

    stepper: VectorStepper

    def __init__(
        self,
        policy: ActingLike,
        env: Any,
        buffer: RolloutStore | ReplayBuffer | None = None,
        exploration_noise: bool = False,
        on_step_hook: Callable[[StepResult], None] | None = None,
        on_episode_done_hook: Callable[[int, float, int], None] | None = None,
        raise_on_nan_in_buffer: bool = True,
        *,
        epsilon: float = 0.0,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        place: tuple[int, int] | None = None,
        whole_episodes: bool = False,
    ) -> None:
        sole_part(policy)  # a policy that cannot act is refused before environments are made
        boundary = env if isinstance(env, VectorBoundary) else make_vector(env)
        with close_env_on_error(env, boundary):
            super().__init__(
                VectorStepper(policy, boundary, resolve_streams(seed, streams), place),
                buffer,
                exploration_noise=exploration_noise,
                epsilon=epsilon,
                raise_on_nan_in_buffer=raise_on_nan_in_buffer,
                on_step_hook=on_step_hook,
                on_episode_done_hook=on_episode_done_hook,
                is_seeded=seed is not None or streams is not None,
                whole_episodes=whole_episodes,
            )

    @property
    def store(self) -> RolloutStore | None:
        """What steps are written into: the buffer itself, or what stands in front of a `ReplayBuffer`."""
        return self.stepper.store
