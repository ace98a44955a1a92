"""Learners and env runners on Ray actors and torchrun ranks, and trials of Ray Tune. Only this folder imports ray."""

from lockstep.cluster.tune_trainable import trainable

__all__ = ["trainable"]
