"""Compiled loops of :mod:`lockstep.ops.sum_tree`.

A tree is one float64 array: the leaves, then for each two of them their sum, then for each two of these theirs, up to
one number. `levels` [L] says where each level begins; every level but the last is filled up to an even number.

Many leaves are set or found in one go, level by level: what is done for one does not wait for the memory that another
needs. A sum is always computed anew from its two parts: the tree depends on its leaves alone, and no error piles up.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled


@compiled
def _sum_above(tree, levels, leaves):
    """Compute the sums above these leaves anew."""
    for level in range(1, levels.shape[0]):
        start, below = levels[level], levels[level - 1]
        num_nodes = (start - below) // 2
        if num_nodes <= leaves.shape[0]:  # most of them lie above some leaf
            for node in range(num_nodes):
                tree[start + node] = tree[below + 2 * node] + tree[below + 2 * node + 1]
        else:
            for k in range(leaves.shape[0]):
                node = leaves[k] >> level
                tree[start + node] = tree[below + 2 * node] + tree[below + 2 * node + 1]


@compiled
def assign(tree, levels, leaves, values):
    """Set leaves; of a leaf that is named twice the last value stays."""
    for k in range(leaves.shape[0]):
        tree[leaves[k]] = values[k]
    _sum_above(tree, levels, leaves)


@compiled
def assign_one(tree, levels, leaves, value):
    """Set several leaves to one value."""
    changed = False
    for k in range(leaves.shape[0]):
        changed |= tree[leaves[k]] != value
        tree[leaves[k]] = value
    if changed:
        _sum_above(tree, levels, leaves)


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
    _sum_above(tree, levels, leaves)
    return largest


@compiled
def rebuild(tree, levels):
    """Compute every sum from the leaves."""
    for level in range(1, levels.shape[0]):
        start, below = levels[level], levels[level - 1]
        for node in range((start - below) // 2):
            tree[start + node] = tree[below + 2 * node] + tree[below + 2 * node + 1]


@compiled
def find(tree, levels, masses, scale, leaves):
    """The leaf into whose part of the total each `mass * scale` falls; never one with value 0 (unless all are)."""
    rest = masses * scale
    leaves[:] = 0
    for level in range(levels.shape[0] - 2, -1, -1):
        for m in range(masses.shape[0]):  # without a jump that depends on the numbers: it could not be foretold
            left = levels[level] + 2 * leaves[m]
            goes_right = (rest[m] >= tree[left]) & (tree[left + 1] > 0.0)
            rest[m] -= tree[left] if goes_right else 0.0
            leaves[m] = 2 * leaves[m] + goes_right


@compiled
def relative_powers(tree, leaves, exponent, out):
    """`(value / smallest value) ** -exponent` of the leaves named."""
    smallest = np.inf
    for k in range(leaves.shape[0]):
        smallest = min(smallest, tree[leaves[k]])
    for k in range(leaves.shape[0]):
        out[k] = np.float32(smallest / tree[leaves[k]]) ** np.float32(exponent)
