"""`Collector`: collects the steps of a policy in environments that are stepped together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.data.rollout import RolloutStore
from lockstep.envs import StepResult, make_vector
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import BaseCollector, close_env_on_error, resolve_streams
from lockstep.rollout.protocols import ActingLike, sole_part
from lockstep.rollout.vector_stepper import VectorStepper
from lockstep.state.streams import RandomStreams


class Collector(BaseCollector):
    """Collector that steps all environments of a vector together.

    Before observations are stored and acted on, they pass through connectors such as frame stacks, previous actions and
    resized images. These are a copy of the connectors in the policy's attribute `recorded`. The policy samples its
    actions within a training step, and elsewhere if `exploration_noise` or `epsilon` is set.

    A collect that fails leaves no row behind, and the next one begins new episodes. A `ReplayBuffer` is an exception:
    it gets the steps in blocks of at most 128 vector steps, and only the block that fails is not stored.

    Args:
        policy: The policy that acts.
        env: The environments: a `VectorBoundary` (the result of `make_vector`), a gymnasium environment or vector, an
            EnvPool pool, or an id.
        buffer: Buffer that steps are stored in. Without one, as in evaluation, only returns and lengths are kept.
        exploration_noise: Whether actions are sampled outside a training step too.
        on_step_hook: Function `f(step_result)`, called after each vector step with a copy of its result. The copy also
            has the actions of the policy and the observations that it acted on.
        on_episode_done_hook: Function `f(env_index, episode_return, length)`, called for each episode that ends.
        raise_on_nan_in_buffer: Whether values that are not finite raise `MalformedBufferError`.
        epsilon: Probability of a random action, for policies that act by Q-values (DQN and its variants). It replaces
            the probability that the policy uses in training.
        seed: Seed of the collector's random streams for episodes, exploration and random actions. Without one it is
            drawn at random, until a trainer replaces the streams by those of the policy's seed.
        streams: Random streams, instead of `seed`.
        place: `(first, total)` if several collectors share `total` environments: the index of this collector's first
            environment, and the total.
        whole_episodes: Whether `collect(n_step=...)` collects whole episodes: one in each environment, then another in
            each, until there are at least `n_step` steps.
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
        # `sole_part` returns the acting part of a policy with one module. Here it is called for its check only: it
        # raises an error for a policy with several modules or an object that cannot act, before environments are
        # constructed.
        sole_part(policy)
        boundary = make_vector(env)
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
        """Store that steps are written into; None without a buffer.

        If the buffer is a `RolloutStore`, it is the buffer itself. For a `ReplayBuffer` it is a `ReplayWriter`, a
        subclass of `RolloutStore` that passes the steps on to the buffer.
        """
        return self.stepper.store
