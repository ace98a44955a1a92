"""Compiled loops of :mod:`lockstep.ops.fused_losses`, the PPO loss.

This file imports numba, so it is imported when a kernel is first called. `lockstep.ops.fused_losses.can_fuse_ppo`
checks dtypes and dimensions before; the kernels check only the lengths and actions that differ from batch to batch.

All sums and derivatives are computed in float64 whatever the dtype of the arrays.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from lockstep.ops.compiling import compiled

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@compiled
def _check(num_rows, values, actions, old_logp, advantages, value_targets):
    """Raise `ValueError` unless all columns have `num_rows` rows: a kernel would read memory behind a shorter one."""
    for column in (values, old_logp, advantages, value_targets):
        if len(column) != num_rows:
            raise ValueError("vf_preds, action_logp, advantages and value_targets need one number for each row")
    if len(actions) != num_rows:
        raise ValueError("actions need one row for each row of the batch")


@compiled
def moments(values, result):
    """Write the number of `values`, their mean, and the sum of squared distances from it to `result` `[3]`."""
    mean = 0.0
    for n in range(len(values)):
        mean += values[n]
    mean /= max(len(values), 1)
    squares = 0.0
    for n in range(len(values)):
        squares += (values[n] - mean) ** 2
    result[0] = len(values)
    result[1] = mean
    result[2] = squares


@compiled
def _scale(advantages, normalize, learner_moments):
    """Return `(count, mean, factor)`, with which `(advantage - mean) * factor` is the normalised advantage.

    `count` is the number of rows of all learners, and the factor is 1 / (deviation + 1e-8). `learner_moments` `[K, 3]`
    are the moments of the advantages of each learner; empty if there is one learner, which has all rows. Without
    `normalize` the mean is 0 and the factor 1.
    """
    if len(learner_moments) == 0:
        learner_moments = np.empty((1, 3), np.float64)
        moments(advantages, learner_moments[0])
    count = 0.0
    mean = 0.0
    squares = 0.0
    # Merge the moments (Chan et al. 1979). Each learner does so in the same order, so all get the same bits.
    for k in range(len(learner_moments)):
        number = learner_moments[k, 0]
        delta = learner_moments[k, 1] - mean
        if number > 0:
            count += number
            mean += delta * (number / count)
            squares += learner_moments[k, 2] + delta * delta * number * ((count - number) / count)
    count = max(count, 1.0)
    if not normalize:
        return count, 0.0, 1.0
    return count, mean, 1.0 / (math.sqrt(squares / count) + 1e-8)


@compiled
def _surrogate(logp, old_logp, advantage, clip, dual_clip):
    """Return one row's loss, its derivative by `logp`, the KL estimate k3, and whether the ratio is clipped.

    `ops.losses` has the equations: `clipped_surrogate_loss`, `approximate_kl` and `clipped_ratios`.
    """
    log_ratio = logp - old_logp
    ratio_less_1 = math.expm1(log_ratio)
    # d ratio / d logp = ratio, so the loss -ratio * A is its own derivative. Where it is clipped, it is constant.
    loss = -math.exp(log_ratio) * advantage
    slope = loss
    bound = -advantage - clip * abs(advantage)
    if loss < bound:
        loss = bound
        slope = 0.0
    if dual_clip > 0.0 and advantage < 0.0 and loss > -dual_clip * advantage:
        loss = -dual_clip * advantage
        slope = 0.0
    return loss, slope, ratio_less_1 - log_ratio, abs(ratio_less_1) > clip


@compiled
def _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, value_gradients, num_rows):
    """Return the sum of the rows' value losses divided by `num_rows`, and write its derivatives times `vf_coeff`.

    `ops.losses.clipped_value_loss` has the equation.
    """
    total = 0.0
    for n in range(len(values)):
        error = np.float64(values[n]) - value_targets[n]
        loss = 0.5 * error * error
        slope = error
        if vf_clip > 0.0:
            move = np.float64(values[n]) - old_values[n]
            error = old_values[n] + min(max(move, -vf_clip), vf_clip) - value_targets[n]
            if 0.5 * error * error > loss:
                loss = 0.5 * error * error
                # Outside of the interval the clipped value is a constant.
                slope = error if -vf_clip <= move <= vf_clip else 0.0
        total += loss
        value_gradients[n] = vf_coeff * slope / num_rows
    return total / num_rows


@compiled
def categorical(
    inputs, values, actions, old_logp, advantages, value_targets, old_values, input_gradients, value_gradients,
    total_loss, terms, clip_param, vf_coeff, entropy_coeff, dual_clip, vf_clip, normalize, learner_moments,
):  # fmt: skip
    """Write the PPO loss of choices, its gradients, and its five `terms`; `inputs` are logits `[N, D]`.

    `fused_losses.ppo_loss` describes the arguments. All results are this learner's part of the means over the rows of
    all learners (`learner_moments`, see `_scale`).

    With the probabilities `p`, the entropy is `H = -sum p log p`. By logit d, `log p[action]` has the derivative
    `1(d = action) - p[d]`, and `-H` has `p[d] (log p[d] + H)`.
    """
    size = inputs.shape[1]
    _check(len(inputs), values, actions, old_logp, advantages, value_targets)
    clip = np.float64(clip_param[()])
    bonus = np.float64(entropy_coeff[()])
    num_rows, mean, scale = _scale(advantages, normalize, learner_moments)
    log_probs = np.empty(size, np.float64)
    losses = 0.0
    entropies = 0.0
    kls = 0.0
    num_clipped = 0
    for n in range(len(inputs)):
        # log(sum(exp(logits))), without overflow: the largest exponent is 0.
        highest = np.float64(inputs[n, 0])
        for d in range(1, size):
            highest = max(highest, np.float64(inputs[n, d]))
        total = 0.0
        for d in range(size):
            total += math.exp(inputs[n, d] - highest)
        log_total = highest + math.log(total)
        entropy = 0.0
        for d in range(size):
            log_probs[d] = inputs[n, d] - log_total
            entropy -= math.exp(log_probs[d]) * log_probs[d]
        action = actions[n]
        if action < 0 or action >= size:
            raise IndexError("an action in the batch lies outside of the action space")
        advantage = (advantages[n] - mean) * scale
        loss, slope, kl, is_clipped = _surrogate(log_probs[action], old_logp[n], advantage, clip, dual_clip)
        for d in range(size):
            prob = math.exp(log_probs[d])
            by_surrogate = slope * ((1.0 if d == action else 0.0) - prob)
            input_gradients[n, d] = (by_surrogate + bonus * prob * (log_probs[d] + entropy)) / num_rows
        losses += loss
        entropies += entropy
        kls += kl
        num_clipped += is_clipped
    terms[0] = losses / num_rows
    terms[2] = entropies / num_rows
    terms[3] = kls / num_rows
    terms[4] = num_clipped / num_rows
    terms[1] = _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, value_gradients, num_rows)
    total_loss[()] = terms[0] + vf_coeff * terms[1] - bonus * terms[2]


@compiled
def diag_gaussian(
    inputs, values, actions, old_logp, advantages, value_targets, old_values, input_gradients, value_gradients,
    total_loss, terms, clip_param, vf_coeff, entropy_coeff, dual_clip, vf_clip, normalize, learner_moments,
):  # fmt: skip
    """Write the PPO loss of continuous actions, as `categorical` does.

    `inputs` `[N, 2 A]` are the means, then the logarithms of the standard deviations. With `z = (action - mean) / std`,
    `log p` has the derivative `z / std` by the mean and `z^2 - 1` by the logarithm of `std`; the entropy has 1 by the
    latter.
    """
    size = inputs.shape[1] // 2
    _check(len(inputs), values, actions, old_logp, advantages, value_targets)
    if actions.shape[1] != size:
        raise ValueError("actions must have half as many columns as the action_dist_inputs")
    clip = np.float64(clip_param[()])
    bonus = np.float64(entropy_coeff[()])
    num_rows, mean, scale = _scale(advantages, normalize, learner_moments)
    losses = 0.0
    entropies = 0.0
    kls = 0.0
    num_clipped = 0
    for n in range(len(inputs)):
        logp = -size * HALF_LOG_2_PI
        entropy = size * (0.5 + HALF_LOG_2_PI)
        for a in range(size):
            log_std = np.float64(inputs[n, size + a])
            z = (actions[n, a] - np.float64(inputs[n, a])) * math.exp(-log_std)
            logp -= log_std + 0.5 * z * z
            entropy += log_std
        advantage = (advantages[n] - mean) * scale
        loss, slope, kl, is_clipped = _surrogate(logp, old_logp[n], advantage, clip, dual_clip)
        for a in range(size):
            inverse = math.exp(-np.float64(inputs[n, size + a]))
            z = (actions[n, a] - np.float64(inputs[n, a])) * inverse
            input_gradients[n, a] = slope * z * inverse / num_rows
            input_gradients[n, size + a] = (slope * (z * z - 1.0) - bonus) / num_rows
        losses += loss
        entropies += entropy
        kls += kl
        num_clipped += is_clipped
    terms[0] = losses / num_rows
    terms[2] = entropies / num_rows
    terms[3] = kls / num_rows
    terms[4] = num_clipped / num_rows
    terms[1] = _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, value_gradients, num_rows)
    total_loss[()] = terms[0] + vf_coeff * terms[1] - bonus * terms[2]
