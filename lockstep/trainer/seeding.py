"""`seed` of a trainer: the random streams of its parts, as a configuration with that seed would have made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.replay import OfflineRows, ReplayBuffer
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


def seed_run(trainer: BaseTrainer, seed: int) -> None:
    """Streams of environments, exploration, evaluation, samples and minibatches, each from the seed and its name.

    The initial weights are drawn when the policy is built and stay as they are.
    """
    streams = RandomStreams(seed)
    for name in ("train_collector", "test_collector"):
        collector = getattr(trainer, name)
        if collector is not None:
            collector.streams, collector.num_resets = streams.child(name), 0
    if trainer.train_collector is not None:
        seed_buffer(trainer.train_collector.buffer, seed)
    policy = trainer.policy
    policy.learner_group.learner.streams.set_state(streams.child("learner").get_state())
    policy.seed(seed)


def seed_buffer(buffer: object, seed: int | None) -> None:
    """The streams of a replay buffer, the order of rows; of anything else nothing."""
    if isinstance(buffer, OfflineRows) and seed is not None:
        buffer.seed = RandomStreams(seed).seed("replay")
    if isinstance(buffer, ReplayBuffer) and seed is not None:
        buffer.streams.set_state(RandomStreams(RandomStreams(seed).seed("replay")).get_state())
