"""Compiled loops of :mod:`lockstep.ops.sum_tree`.

A tree is one float64 array: the leaves, then for each four of them their sum, then for each four of these theirs, up
to one number. `levels` [L] (uint64) says where each level begins; every level but the last is filled up with zeros to
a multiple of four.

Many leaves are set or found in one go, level by level: what is done for one does not wait for the memory that another
needs. A sum is always computed anew from its parts: the tree depends on its leaves alone, and no error piles up.

Places are unsigned, as an index that may be negative costs a test for each number read.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled

HALF_ROOT = np.sqrt(0.5).view(np.int64)
"""bits of the root of 1/2"""
MANTISSA, LN_2 = np.int64(52), np.log(2.0)
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@compiled
def _sum_above(tree, levels, leaves):
    """Compute the sums above these leaves anew."""
    for level in range(1, levels.shape[0]):
        start, below = levels[level], levels[level - 1]
        num_nodes = (start - below) // FOUR
        if num_nodes <= np.uint64(leaves.shape[0]):  # most of them lie above some leaf
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
    """Set leaves; of a leaf that is named twice the last value stays."""
    for k in range(leaves.shape[0]):
        tree[np.uint64(leaves[k])] = values[k]
    _sum_above(tree, levels, leaves)


@compiled
def assign_one(tree, levels, leaves, value):
    """Set several leaves to one value."""
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
    """Fill `leaves`: the leaf into whose part each `mass * scale` falls; never one with value 0 (unless all are)."""
    rest = masses * scale
    leaves[:] = 0
    for level in range(levels.shape[0] - 2, -1, -1):
        start, last = levels[level], levels[level + 1] - FOUR
        for k in range(masses.shape[0]):  # without a jump that depends on the numbers: it could not be foretold
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
    for k in range(leaves.shape[0]):  # where rounding has led past the end of a part, zeros follow: back over them
        leaves[k] = min(leaves[k], num_leaves - 1)
        while tree[np.uint64(leaves[k])] == 0.0 and leaves[k] > 0:
            leaves[k] -= 1


@compiled
def _power(base, exponent):
    """Return `base ** exponent` for finite bases of at least 2**-1022, kept between 2**-1022 and 2**1023.

    Its relative error is at most 3e-15 or, where that is more, 2e-16 for each factor of two in it.

    Without calls and jumps, so that a loop over many takes several at a time. With `base = m * 2**e`, `m` between the
    roots of 1/2 and 2, `log m` is the series of `2 * atanh((m - 1) / (m + 1))`, and what is left of a power of two
    beside a whole one that of `exp`.
    """
    bits = np.float64(base).view(np.int64)
    e = (bits - HALF_ROOT) >> MANTISSA
    m = np.int64(bits - (e << MANTISSA)).view(np.float64)
    ratio = (m - 1.0) / (m + 1.0)
    square = ratio * ratio
    series = 1 / 21
    for factor in (1 / 19, 1 / 17, 1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0):
        series = series * square + factor
    log2 = min(max(exponent * (np.float64(e) + ratio * series * (2.0 / LN_2)), -1022.0), 1023.0)
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
    """Set leaves to `(|error| + epsilon) ** alpha`; returns the largest base, or -1 where one is not finite."""
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
    """Fill `out` with `(value / smallest value) ** exponent` of the leaves."""
    values = np.empty(leaves.shape[0], np.float64)
    smallest = np.inf
    for k in range(leaves.shape[0]):
        values[k] = tree[np.uint64(leaves[k])]
        smallest = min(smallest, values[k])
    for k in range(leaves.shape[0]):
        out[k] = _power(values[k] / smallest, exponent)
