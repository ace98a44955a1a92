"""What leaves a learner after an update: the weights to act with, and the metrics of each gradient step."""

from __future__ import annotations

from typing import Any

from lockstep.learner.learner import Learner
from lockstep.modules import ActingWeights


def acting_weights(learner: Learner, module_id: str) -> ActingWeights:
    """All that acting with this module needs, with the version of the weights; good until the next update."""
    observations = learner.connectors[module_id].obs.get_state()
    return ActingWeights(learner.weights_seq_no, learner.module[module_id].get_flat_weights(copy=False), observations)


def after_update(learner: Learner, module_id: str) -> tuple[ActingWeights, dict[Any, Any]]:
    """`acting_weights`, and the values of each metric over the gradient steps of the last update."""
    return acting_weights(learner, module_id), learner.last_series
