"""Families of algorithms: learners and options that several algorithms share."""

from typing import Any

from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.algorithms.families.on_policy import OnPolicyLearner, VTraceTraining
from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, TargetValueTraining
from lockstep.algorithms.families.transitions import (
    ActorCriticTraining,
    DelayedActorCriticLearner,
    DelayedActorCriticTraining,
    SoftActorCriticLearner,
    SoftActorCriticTraining,
    TargetActorCriticTraining,
    TargetSoftActorCriticTraining,
    TransitionLearner,
)
from lockstep.state.moved import moved_name

__all__ = [
    "ActionValueTraining",
    "ActorCriticTraining",
    "AtomLearner",
    "AtomTraining",
    "DelayedActorCriticLearner",
    "DelayedActorCriticTraining",
    "OnPolicyLearner",
    "QLearner",
    "SoftActorCriticLearner",
    "SoftActorCriticTraining",
    "TargetActorCriticTraining",
    "TargetSoftActorCriticTraining",
    "TargetValueTraining",
    "TransitionLearner",
    "VTraceTraining",
]

_MOVED = {
    "CorrectedTraining": "lockstep.algorithms.families:VTraceTraining",
    "FollowedActorCriticTraining": "lockstep.algorithms.families:TargetActorCriticTraining",
    "FollowedSoftActorCriticTraining": "lockstep.algorithms.families:TargetSoftActorCriticTraining",
    "FollowedValueTraining": "lockstep.algorithms.families:TargetValueTraining",
}


def __getattr__(name: str) -> Any:
    """Return the class that has an old name."""
    return moved_name(__name__, name, _MOVED)
