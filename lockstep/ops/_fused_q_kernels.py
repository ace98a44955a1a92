"""Compiled loop of :mod:`lockstep.ops.fused_q`; imported when it is first called. It trusts its input."""

# numba infers the types of the kernel below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from lockstep.ops.compiling import compiled as _compiled


@_compiled
def q_loss(
    values, actions, rewards, terminateds, target_values, picking, discounts, weights, of_values, errors, terms,
    gamma, delta
):  # fmt: skip
    """Fills `of_values` (derivatives of the mean loss), `errors` [N] and `terms`: means of loss, value, size of error.

    `picking`, `discounts` and `weights` may be empty: the target values pick, `gamma`, 1. `delta` 0: squares.
    """
    num_rows, num_actions = values.shape
    total_loss = total_value = total_size = 0.0
    for n in range(num_rows):
        best = 0
        for a in range(1, num_actions):
            if len(picking):
                if picking[n, a] > picking[n, best]:
                    best = a
            elif target_values[n, a] > target_values[n, best]:
                best = a
        target = rewards[n]
        if not terminateds[n]:
            target += (discounts[n] if len(discounts) else gamma) * target_values[n, best]
        taken = values[n, actions[n]]
        error = taken - target
        size = abs(error)
        slope = error
        loss = 0.5 * error * error
        if delta > 0.0 and size > delta:
            loss = delta * (size - 0.5 * delta)
            slope = delta if error > 0.0 else -delta
        weight = weights[n] if len(weights) else 1.0
        for a in range(num_actions):
            of_values[n, a] = 0.0
        of_values[n, actions[n]] = weight * slope / num_rows
        errors[n] = error
        total_loss += weight * loss
        total_value += taken
        total_size += size
    terms[0] = total_loss / num_rows
    terms[1] = total_value / num_rows
    terms[2] = total_size / num_rows
