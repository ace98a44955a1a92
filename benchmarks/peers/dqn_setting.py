"""The common setting of the DQN scripts; command line, clock and last line are `protocol`'s.

CleanRL's published settings (batch 128, a network of 120 and 84 rectified units, one gradient step for ten environment
steps, gamma 0.99, lr 2.5e-4, epsilon from 1 to 0.05 over half of the run), on 8 environments: after each 10 vector
steps come `--updates` gradient steps (8: one for ten environment steps). The target network is copied every 6 of these
rounds (480 environment steps; there 500), the first 1,040 steps are random. Plain DQN: no double, dueling, n-step or
prioritised part. Squared or Huber errors as each library has it.
"""

from __future__ import annotations

import protocol as p

VECTOR_STEPS = 10
ROUND = VECTOR_STEPS * p.NUM_ENVS
ROUNDS_PER_TARGET = 6
BATCH = 128
HIDDENS = (120, 84)
LEARNING_RATE = 2.5e-4
CAPACITY = 10_000
STARTS = 1_040
"""13 rounds"""
LAST_EPSILON = 0.05
MAX_GRAD_NORM = 10.0
UPDATES = ("--updates", "gradient steps after each 80 environment steps", 8)


def epsilon_at(step: int, total: int) -> float:
    """Falls from 1 to the last one over the first half."""
    return max(LAST_EPSILON, 1.0 - (1.0 - LAST_EPSILON) * step / (0.5 * total))
