"""A linear layer in one compiled call, for the few rows of an action step."""

# numba infers the types of the kernel below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled_sums

ROWS = 32
"""Rows of a block: few enough to stay in the processor's first cache while all outputs are computed. Even, because
rows are taken in pairs."""


@compiled_sums
def dense(x, weight, bias, rectify, out):
    """Write `x` [N, K] @ `weight` [M, K]^T + `bias` [M] to `out` [N, M].

    All arrays have one dtype, float32 or float64. With `rectify` negative outputs become 0; NaN stays NaN.

    Four outputs of two rows are summed at a time, so that each number read is used more than once. Every row is summed
    by the same machine code, the last one of an odd number too (it is paired with itself). So the output of a row does
    not depend on the number of rows, which sums in any order would not guarantee by themselves.
    """
    num_rows, num_inputs = x.shape
    num_outputs = weight.shape[0]
    tiled = num_outputs - num_outputs % 4
    for begin in range(0, num_rows, ROWS):
        end = min(begin + ROWS, num_rows)
        for o in range(0, tiled, 4):
            w0, w1, w2, w3 = weight[o], weight[o + 1], weight[o + 2], weight[o + 3]
            for row in range(begin, end, 2):
                pair = min(row + 1, num_rows - 1)
                x0, x1 = x[row], x[pair]
                # Sums a of `row` and b of `pair`. float32 zeros: numba widens them where the arrays are float64.
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
                for i in range(num_inputs):
                    u, v = x0[i], x1[i]
                    a0 += u * w0[i]
                    a1 += u * w1[i]
                    a2 += u * w2[i]
                    a3 += u * w3[i]
                    b0 += v * w0[i]
                    b1 += v * w1[i]
                    b2 += v * w2[i]
                    b3 += v * w3[i]
                out[row, o], out[row, o + 1], out[row, o + 2], out[row, o + 3] = a0, a1, a2, a3
                out[pair, o], out[pair, o + 1], out[pair, o + 2], out[pair, o + 3] = b0, b1, b2, b3

    # The outputs that do not fill a tile of four.
    for o in range(tiled, num_outputs):
        for row in range(num_rows):
            total = np.float32(0)
            for i in range(num_inputs):
                total += x[row, i] * weight[o, i]
            out[row, o] = total

    # The comparison is false for NaN, so that a NaN is not hidden as a zero.
    for row in range(num_rows):
        for o in range(num_outputs):
            value = out[row, o] + bias[o]
            out[row, o] = 0 if rectify and value < 0 else value
