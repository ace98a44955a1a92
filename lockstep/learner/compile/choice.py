"""Whether compiling pays for a run: `framework(compile="auto")`.

Compiled steps give other last digits than eager ones, so the same seed gives the same bits only if the decision asks no
clock, and no code that an earlier run has left. It is made from the planned gradient steps and the networks.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

# Microseconds, on one thread of an AMD EPYC. Both sides are slower on a slower machine, so the decision holds there.
SAVED_BY_PARAMETER = 40.0
"""In each gradient step, for each trainable tensor: torch's calls around small products."""
SAVED_BY_FLOP = 4e-6
"""In each gradient step: passes over the memory between large products."""
COMPILER_START = 12e6
COMPILER_BY_PARAMETER = 1.5e6
FLOPS_OF_A_ROW = 6
"""Operations for each number of the networks and each row: two forward, four backward."""


def compiling_pays(gradient_steps: float, rows: float, parameters: Collection[nn.Parameter]) -> bool:
    """Return whether compiled code saves more time than the compiler takes, which a first start waits for.

    On the safe side: the compiler is taken to be slower than it is, and compiled code too.

    Args:
        gradient_steps: those that are planned.
        rows: the rows that they read in all.
        parameters: what they change.
    """
    flops = FLOPS_OF_A_ROW * rows * sum(parameter.numel() for parameter in parameters)
    saved = gradient_steps * len(parameters) * SAVED_BY_PARAMETER + flops * SAVED_BY_FLOP
    return saved > COMPILER_START + COMPILER_BY_PARAMETER * len(parameters)
