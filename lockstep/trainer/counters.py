"""`Counters`: what a run counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, repr=False)
class Counters:
    """What a run counts: plain values, reset with it and part of its checkpoints."""

    epoch: int = 0
    in_epoch: bool = False
    """an epoch has begun and not ended"""
    epoch_steps: int = 0
    """of the epoch under way; between two, those beyond `step_per_epoch` (below 0: those that a cut epoch lacks)"""
    epoch_end_due: bool = False
    """the last epoch is saved, but callbacks have not seen its end yet"""
    env_step: int = 0
    env_episode: int = 0
    gradient_step: int = 0
    test_env_step: int = 0
    test_episode: int = 0
    """steps and episodes of all evaluations"""
    last_test_at: int | None = None
    """`position` at the last evaluation"""
    tested_in_train: bool = False
    best_score: float | None = None
    best_epoch: int | None = None
    stop_reason: str | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("total", "collect", "update", "test", "env", "act"), 0.0)
    )
    steps_learned_from: int = 0
    """off-policy: collected steps that gradient steps are due for"""
    updates_made: int = 0
    """off-policy: gradient steps that were made for them"""
    learning_resumes_at: int = 0
    """off-policy: environment step before which nothing is learned, as the replay buffer was lost and fills again"""
    samples_seen: int = 0
    """offline: transitions in all gradient steps"""
