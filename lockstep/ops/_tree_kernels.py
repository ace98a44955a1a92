"""Compiled loops of :mod:`lockstep.ops.sum_tree`.

A tree is one float64 array of `2 * width` numbers, `width` a power of two: leaf `i` is number `width + i`, the
parent of number `k` is `k // 2`, the root is number 1. A parent is always the sum of its two children, computed
anew whenever one of them changes: the tree depends on its leaves alone, and no error piles up.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from lockstep.ops.compiling import compiled


@compiled
def assign(tree, leaves, values):
    """Set leaves; of a leaf that is named twice the last value stays."""
    width = tree.shape[0] // 2
    for k in range(leaves.shape[0]):
        node = width + leaves[k]
        tree[node] = values[k]
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


@compiled
def assign_one(tree, leaves, value):
    """Set several leaves to one value."""
    width = tree.shape[0] // 2
    for k in range(leaves.shape[0]):
        node = width + leaves[k]
        if tree[node] != value:
            tree[node] = value
            while node > 1:
                node //= 2
                tree[node] = tree[2 * node] + tree[2 * node + 1]


@compiled
def rebuild(tree):
    """Compute every inner number from the leaves."""
    for node in range(tree.shape[0] // 2 - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@compiled
def find(tree, masses, leaves):
    """The leaf into whose part of the total each mass falls; never one with value 0 (unless all are)."""
    width = tree.shape[0] // 2
    for k in range(masses.shape[0]):
        mass = masses[k]
        node = 1
        while node < width:
            node *= 2
            # rounding may leave a mass beyond the last part: an empty right side is not entered
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        leaves[k] = node - width
