"""Compiled loops of :mod:`lockstep.ops.sum_tree`.

A tree is one float64 array: the leaves, then the sum of each four leaves, then the sum of each four of these sums, up
to one number. `levels` [L] (uint64) holds the position at which each level begins. Every level but the last is padded
with zeros to a multiple of four.

Many leaves are set or found in one call, level by level. So the processor works on one leaf while it waits for the
memory of another. A sum is always computed from its four parts, never corrected by a difference: the tree depends on
its leaves alone, and no rounding error piles up.

Positions are unsigned, because an index that may be negative costs a test for each number read.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled

HALF_ROOT = np.sqrt(0.5).view(np.int64)
"""Bits of the square root of 1/2, as a whole number."""
MANTISSA = np.int64(52)
"""Number of bits of a float64's mantissa."""
LN_2 = np.log(2.0)
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@compiled
def _sum_above(tree, levels, leaves):
    """Compute the sums above these leaves."""
    for level in range(1, levels.shape[0]):
        start, below = levels[level], levels[level - 1]
        num_nodes = (start - below) // FOUR
        # As many leaves as nodes: most nodes are above one of them, and summing all needs no jumps.
        if num_nodes <= np.uint64(leaves.shape[0]):
            _sum_level(tree, start, below, num_nodes)
        else:
            for k in range(leaves.shape[0]):
                node = np.uint64(leaves[k]) >> np.uint64(2 * level)
                part = below + FOUR * node
                tree[start + node] = (tree[part] + tree[part + ONE]) + (tree[part + TWO] + tree[part + THREE])


@compiled
def _sum_level(tree, start, below, num_nodes):
    """Compute all sums of one level."""
    for k in range(num_nodes):
        part = below + FOUR * np.uint64(k)
        tree[start + np.uint64(k)] = (tree[part] + tree[part + ONE]) + (tree[part + TWO] + tree[part + THREE])


@compiled
def assign(tree, levels, leaves, values):
    """Set `leaves` to `values`. If a leaf occurs several times, its last value counts."""
    for k in range(leaves.shape[0]):
        tree[np.uint64(leaves[k])] = values[k]
    _sum_above(tree, levels, leaves)


@compiled
def assign_one(tree, levels, leaves, value):
    """Set `leaves` to one value. The sums are left alone if the leaves had that value, as new rows of a buffer do."""
    changed = False
    for k in range(leaves.shape[0]):
        leaf = np.uint64(leaves[k])
        changed |= tree[leaf] != value
        tree[leaf] = value
    if changed:
        _sum_above(tree, levels, leaves)


@compiled
def rebuild(tree, levels):
    """Compute every sum from the leaves."""
    for level in range(1, levels.shape[0]):
        start, below = levels[level], levels[level - 1]
        _sum_level(tree, start, below, (start - below) // FOUR)


@compiled
def find(tree, levels, masses, scale, leaves):
    """Write to `leaves` the leaf into whose part of the total each `mass * scale` falls.

    It is never a leaf with value 0, unless all are.
    """
    # The mass that remains to be passed below the node that has been reached, for each draw.
    rest = masses * scale
    leaves[:] = 0
    for level in range(levels.shape[0] - 2, -1, -1):
        start, last = levels[level], levels[level + 1] - FOUR
        # Without branches that depend on the numbers: the processor could not predict them.
        for k in range(masses.shape[0]):
            part = min(start + FOUR * np.uint64(leaves[k]), last)
            first = tree[part]
            second = first + tree[part + ONE]
            third = second + tree[part + TWO]
            mass = rest[k]
            passed = np.uint64(mass >= first) + np.uint64(mass >= second) + np.uint64(mass >= third)
            below = first if mass >= first else 0.0
            below = second if mass >= second else below
            below = third if mass >= third else below
            rest[k] = mass - below
            leaves[k] = FOUR * np.uint64(leaves[k]) + passed
    num_leaves = np.int64(levels[1])
    # Rounding may lead past the last leaf of a part, into the zeros behind it: go back over them.
    for k in range(leaves.shape[0]):
        leaves[k] = min(leaves[k], num_leaves - 1)
        while tree[np.uint64(leaves[k])] == 0.0 and leaves[k] > 0:
            leaves[k] -= 1


@compiled
def _power(base, exponent):
    """Return `base ** exponent` for a finite base of at least 2**-1022, limited to [2**-1022, 2**1023].

    The relative error is at most 3e-15 or, if that is more, 2e-16 for each factor of two in the result.

    There are no calls and no branches, so that the compiler can compute several powers of a loop at a time:

    1. `base = m * 2**e`, with `m` between the square roots of 1/2 and of 2.
    2. `log m = 2 atanh((m - 1) / (m + 1))`, as a series of odd powers; `log2` of the result follows.
    3. `2**log2` is a whole power of two, which goes into the exponent's bits, times `exp` of a number in
       [-ln 2 / 2, ln 2 / 2], again as a series.
    """
    # 1. Taking off the bits of sqrt(1/2) before the shift gives the exponent for which `m` is in that interval.
    bits = np.float64(base).view(np.int64)
    e = (bits - HALF_ROOT) >> MANTISSA
    m = np.int64(bits - (e << MANTISSA)).view(np.float64)

    # 2.
    ratio = (m - 1.0) / (m + 1.0)
    square = ratio * ratio
    series = 1 / 21
    for factor in (1 / 19, 1 / 17, 1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0):
        series = series * square + factor
    log2 = min(max(exponent * (np.float64(e) + ratio * series * (2.0 / LN_2)), -1022.0), 1023.0)

    # 3.
    whole = np.rint(log2)
    rest = (log2 - whole) * LN_2
    series = 1 / 6227020800
    for factor in (
        1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6,
        1 / 2, 1.0, 1.0,
    ):  # fmt: skip
        series = series * rest + factor
    return np.int64(np.float64(series).view(np.int64) + (np.int64(whole) << MANTISSA)).view(np.float64)


@compiled
def set_powers(tree, levels, leaves, errors, epsilon, alpha):
    """Set `leaves` to `(|error| + epsilon) ** alpha` and return the largest base.

    If a base is not finite, nothing is set and the result is -1.
    """
    values = np.empty(errors.shape[0], np.float64)
    largest = 0.0
    finite = True
    for k in range(errors.shape[0]):
        values[k] = abs(errors[k]) + epsilon
        finite &= np.isfinite(values[k])
        largest = max(largest, values[k])
    if not finite:
        return -1.0
    for k in range(errors.shape[0]):
        values[k] = _power(values[k], alpha)
    assign(tree, levels, leaves, values)
    return largest


@compiled
def relative_powers(tree, leaves, exponent, out):
    """Write `(value / smallest value) ** exponent` of the leaves' values to `out`."""
    values = np.empty(leaves.shape[0], np.float64)
    smallest = np.inf
    for k in range(leaves.shape[0]):
        values[k] = tree[np.uint64(leaves[k])]
        smallest = min(smallest, values[k])
    for k in range(leaves.shape[0]):
        out[k] = _power(values[k] / smallest, exponent)
