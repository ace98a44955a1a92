"""Decision whether compiling pays for a run: `framework(compile="auto")`.

Compiled steps differ from eager ones in their last digits. The same seed therefore gives the same bits only if the
decision uses no clock and does not ask whether an earlier run has left its code. It depends on the planned gradient
steps and on the sizes of the networks alone.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

# Times in microseconds, measured on one thread of an AMD EPYC. A slower machine is slower both at training and at
# compiling, so the comparison holds there, too.
SAVED_BY_PARAMETER = 40.0
"""Time that a compiled gradient step saves for each trainable tensor. With small networks most of the time of an eager
step is torch's overhead for each call."""
SAVED_BY_FLOP = 4e-6
"""Time that a compiled gradient step saves for each floating-point operation. With large networks an eager step reads
and writes memory between the matrix products, which a compiled step avoids."""
COMPILER_START = 12e6
"""Time that the compiler takes for any graph."""
COMPILER_BY_PARAMETER = 1.5e6
"""Time that the compiler takes in addition for each trainable tensor."""
FLOPS_OF_A_ROW = 6
"""Floating-point operations for each parameter and each row: two in the forward pass, four in the backward pass."""


def compiling_pays(gradient_steps: float, rows: float, parameters: Collection[nn.Parameter]) -> bool:
    """Return whether compiled code saves more time than the compiler takes. A first run waits for the compiler.

    The estimate is on the safe side: both the compiler and the compiled code are assumed slower than measured.

    Args:
        gradient_steps: Planned number of gradient steps.
        rows: Number of rows that they read in all.
        parameters: Parameters that they train.
    """
    flops = FLOPS_OF_A_ROW * rows * sum(parameter.numel() for parameter in parameters)
    saved_by_calls = gradient_steps * len(parameters) * SAVED_BY_PARAMETER
    saved_by_passes = flops * SAVED_BY_FLOP
    compiler_time = COMPILER_START + COMPILER_BY_PARAMETER * len(parameters)
    return saved_by_calls + saved_by_passes > compiler_time
