"""The same groups on Ray actors, and trials of Ray Tune; the only folder that imports ray."""

from lockstep.cluster.tune_trainable import trainable

__all__ = ["trainable"]
