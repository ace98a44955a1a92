"""What the learners of several algorithms have in common: one class for each family of algorithms."""

from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.algorithms.families.on_policy import CorrectedTraining, OnPolicyLearner
from lockstep.algorithms.families.q_learning import ActionValueTraining, FollowedValueTraining, QLearner
from lockstep.algorithms.families.transitions import (
    ActorCriticTraining,
    DelayedActorCriticLearner,
    DelayedActorCriticTraining,
    FollowedActorCriticTraining,
    FollowedSoftActorCriticTraining,
    SoftActorCriticLearner,
    SoftActorCriticTraining,
    TransitionLearner,
)

__all__ = [
    "ActionValueTraining",
    "ActorCriticTraining",
    "AtomLearner",
    "AtomTraining",
    "CorrectedTraining",
    "DelayedActorCriticLearner",
    "DelayedActorCriticTraining",
    "FollowedActorCriticTraining",
    "FollowedSoftActorCriticTraining",
    "FollowedValueTraining",
    "OnPolicyLearner",
    "QLearner",
    "SoftActorCriticLearner",
    "SoftActorCriticTraining",
    "TransitionLearner",
]
