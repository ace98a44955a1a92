"""`seed` of a trainer: the random streams of its parts, as a configuration with that seed would have made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.learner.learner import Learner
from lockstep.replay import MultiAgentReplayBuffer, OfflineRows, ReplayBuffer
from lockstep.rollout import Collector, MultiAgentCollector
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


def seed_run(trainer: BaseTrainer, seed: int | None) -> None:
    """Streams of environments, exploration, evaluation, samples and minibatches, each from the seed and its name.

    Without one all have theirs already but collectors made by hand without a seed: those get the policy's, so that the
    run can be repeated.

    `ValueError` for env runners, whose environments have the streams of their own configuration. The initial weights
    are drawn when the policy is built and stay as they are.
    """
    streams = RandomStreams(trainer.policy.config.seed if seed is None else seed)
    for name in ("train_collector", "test_collector"):
        collector = getattr(trainer, name)
        if isinstance(collector, Collector | MultiAgentCollector):
            if seed is not None or not collector.is_seeded:
                collector.reseed(streams.child(name))
        elif seed is not None and collector is not None:
            raise ValueError(
                f"seed={seed} does not reach the env runners of {name}, which have that of their configuration; "
                "leave it out and set debugging(seed=...)"
            )
    if seed is None:
        return
    if trainer.train_collector is not None:
        seed_buffer(trainer.train_collector.buffer, seed)
    policy = trainer.policy
    policy.learner_group.foreach_learner(_seed_learner, seed)
    policy.seed(seed)


def _seed_learner(learner: Learner, seed: int) -> None:
    learner.streams.set_state(RandomStreams(seed).child("learner").get_state())


def seed_buffer(buffer: object, seed: int | None) -> None:
    """The streams of a replay buffer (of each module's own), the order of rows; of anything else nothing."""
    if isinstance(buffer, MultiAgentReplayBuffer) and seed is not None:
        seeds = RandomStreams(seed).child("replay")
        for module_id, own in buffer.buffers.items():
            own.streams.set_state(RandomStreams(seeds.seed(module_id)).get_state())
    if isinstance(buffer, OfflineRows) and seed is not None:
        buffer.seed = RandomStreams(seed).seed("replay")
    if isinstance(buffer, ReplayBuffer) and seed is not None:
        buffer.streams.set_state(RandomStreams(RandomStreams(seed).seed("replay")).get_state())
