"""What a group of learners raises when one of them fails."""

from __future__ import annotations


class LearnerError(RuntimeError):
    """A learner died, hangs, or could not take part in an update that others waited for."""
