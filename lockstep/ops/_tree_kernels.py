"""Compiled loops of :mod:`lockstep.ops.sum_tree`.

A tree is one float64 array: the leaves, then for each eight of them their sum, then for each eight of these theirs,
up to one number. `levels` [L] says where each level begins; every level but the last is filled up to a multiple of
eight. Eight numbers are a line of the processor's cache, so that a walk from the root to a leaf touches few lines.

A sum is always computed anew from its eight parts, from the left: the tree depends on its leaves alone, and no error
piles up.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled

FAN = 8


@compiled
def _sum_above(tree, levels, node):
    """Compute the sums above leaf `node` anew."""
    for level in range(1, levels.shape[0]):
        node //= FAN
        first = levels[level - 1] + node * FAN
        total = 0.0
        for k in range(FAN):
            total += tree[first + k]
        tree[levels[level] + node] = total


@compiled
def assign(tree, levels, leaves, values):
    """Set leaves; of a leaf that is named twice the last value stays."""
    for k in range(leaves.shape[0]):
        tree[leaves[k]] = values[k]
        _sum_above(tree, levels, leaves[k])


@compiled
def assign_one(tree, levels, leaves, value):
    """Set several leaves to one value."""
    for k in range(leaves.shape[0]):
        if tree[leaves[k]] != value:
            tree[leaves[k]] = value
            _sum_above(tree, levels, leaves[k])


@compiled
def assign_powers(tree, levels, leaves, errors, epsilon, alpha):
    """Set leaves to `(|error| + epsilon) ** alpha`; the largest base, or -1 and nothing set where one is not finite."""
    largest = 0.0
    for k in range(leaves.shape[0]):
        base = abs(errors[k]) + epsilon
        if not np.isfinite(base):
            return -1.0
        largest = max(largest, base)
    for k in range(leaves.shape[0]):
        tree[leaves[k]] = (abs(errors[k]) + epsilon) ** alpha
        _sum_above(tree, levels, leaves[k])
    return largest


@compiled
def rebuild(tree, levels):
    """Compute every sum from the leaves."""
    for level in range(1, levels.shape[0]):
        for node in range((levels[level] - levels[level - 1]) // FAN):
            first = levels[level - 1] + node * FAN
            total = 0.0
            for k in range(FAN):
                total += tree[first + k]
            tree[levels[level] + node] = total


@compiled
def _last_part(tree, first):
    """The last of eight numbers that is not 0, and the sum of those before it."""
    last = 0
    before = 0.0
    total = 0.0
    for k in range(FAN):
        if tree[first + k] > 0.0:
            last, before = k, total
        total += tree[first + k]
    return last, before


@compiled
def find(tree, levels, masses, scale, leaves):
    """The leaf into whose part of the total each `mass * scale` falls; never one with value 0 (unless all are)."""
    for m in range(masses.shape[0]):
        mass = masses[m] * scale
        node = 0
        for level in range(levels.shape[0] - 2, -1, -1):
            first = levels[level] + node * FAN
            passed = 0
            total = 0.0
            before = 0.0
            for k in range(FAN):  # without a jump that depends on the numbers: it could not be foretold
                total += tree[first + k]
                beyond = mass >= total
                passed += beyond
                before = total if beyond else before
            if passed == FAN:  # by rounding: it belongs to the last part that is not empty
                passed, before = _last_part(tree, first)
            mass -= before
            node = node * FAN + passed
        leaves[m] = node


@compiled
def relative_powers(tree, leaves, exponent, out):
    """`(value / smallest value) ** -exponent` of the leaves named."""
    smallest = np.inf
    for k in range(leaves.shape[0]):
        smallest = min(smallest, tree[leaves[k]])
    for k in range(leaves.shape[0]):
        out[k] = (smallest / tree[leaves[k]]) ** exponent
