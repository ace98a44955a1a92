"""Compiled loops of :mod:`lockstep.ops.fused_losses`; imported when one is first called. They trust their input."""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from lockstep.ops.compiling import compiled

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@compiled
def _check(num_rows, values, actions, old_logp, advantages, value_targets):
    for column in (values, old_logp, advantages, value_targets):
        if len(column) != num_rows:
            raise ValueError("vf_preds, action_logp, advantages and value_targets need one number for each row")
    if len(actions) != num_rows:
        raise ValueError("actions need one row for each row of the batch")


@compiled
def moments(values, result):
    """Fill `[3]` with number, mean, and sum of squared distances from the mean."""
    mean = 0.0
    for n in range(len(values)):
        mean += values[n]
    mean /= max(len(values), 1)
    squares = 0.0
    for n in range(len(values)):
        squares += (values[n] - mean) ** 2
    result[0], result[1], result[2] = len(values), mean, squares


@compiled
def _scale(advantages, normalize, parts):
    """Return the number of rows of all learners (their moments are `parts` `[K, 3]`; none: of these), and of the
    advantages the mean and the factor 1 / (deviation + 1e-8); 0 and 1 where they stay as they are.
    """
    if len(parts) == 0:
        parts = np.empty((1, 3), np.float64)
        moments(advantages, parts[0])
    count, mean, squares = 0.0, 0.0, 0.0
    for k in range(len(parts)):  # Chan et al. 1979
        number, apart = parts[k, 0], parts[k, 1] - mean
        if number > 0:
            count += number
            mean += apart * (number / count)
            squares += parts[k, 2] + apart * apart * number * ((count - number) / count)
    count = max(count, 1.0)
    if not normalize:
        return count, 0.0, 1.0
    return count, mean, 1.0 / (math.sqrt(squares / count) + 1e-8)


@compiled
def _surrogate(logp, old_logp, advantage, clip, dual_clip):
    """Return of one row the loss, its derivative by `logp`, the KL estimate k3, and whether its ratio is clipped."""
    log_ratio = logp - old_logp
    ratio_less_1 = math.expm1(log_ratio)
    loss = -math.exp(log_ratio) * advantage
    slope = loss
    bound = -advantage - clip * abs(advantage)
    if loss < bound:
        loss, slope = bound, 0.0
    if dual_clip > 0.0 and advantage < 0.0 and loss > -dual_clip * advantage:
        loss, slope = -dual_clip * advantage, 0.0
    return loss, slope, ratio_less_1 - log_ratio, abs(ratio_less_1) > clip


@compiled
def _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, of_values, num_rows):
    """Return the value loss over all `num_rows`; fill in its derivatives, times `vf_coeff`."""
    total = 0.0
    for n in range(len(values)):
        error = np.float64(values[n]) - value_targets[n]
        loss, slope = 0.5 * error * error, error
        if vf_clip > 0.0:
            move = np.float64(values[n]) - old_values[n]
            error = old_values[n] + min(max(move, -vf_clip), vf_clip) - value_targets[n]
            if 0.5 * error * error > loss:
                loss = 0.5 * error * error
                slope = error if -vf_clip <= move <= vf_clip else 0.0
        total += loss
        of_values[n] = vf_coeff * slope / num_rows
    return total / num_rows


@compiled
def categorical(
    inputs, values, actions, old_logp, advantages, value_targets, old_values,
    of_inputs, of_values, total_loss, terms, clip_param, vf_coeff, entropy_coeff, dual_clip, vf_clip, normalize,
    parts,
):  # fmt: skip
    """Fill in the loss, its derivatives `of_...` and the five `terms`; `inputs` are logits `[N, D]`.

    Of the means over the rows of all learners (`parts`, see `_scale`) it is what these rows add.
    """
    size = inputs.shape[1]
    _check(len(inputs), values, actions, old_logp, advantages, value_targets)
    clip, bonus = np.float64(clip_param[()]), np.float64(entropy_coeff[()])
    num_rows, mean, scale = _scale(advantages, normalize, parts)
    log_probs = np.empty(size, np.float64)
    losses, entropies, kls, num_clipped = 0.0, 0.0, 0.0, 0
    for n in range(len(inputs)):
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
            of_inputs[n, d] = (by_surrogate + bonus * prob * (log_probs[d] + entropy)) / num_rows
        losses += loss
        entropies += entropy
        kls += kl
        num_clipped += is_clipped
    terms[0], terms[2], terms[3] = losses / num_rows, entropies / num_rows, kls / num_rows
    terms[4] = num_clipped / num_rows
    terms[1] = _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, of_values, num_rows)
    total_loss[()] = terms[0] + vf_coeff * terms[1] - bonus * terms[2]


@compiled
def diag_gaussian(
    inputs, values, actions, old_logp, advantages, value_targets, old_values,
    of_inputs, of_values, total_loss, terms, clip_param, vf_coeff, entropy_coeff, dual_clip, vf_clip, normalize,
    parts,
):  # fmt: skip
    """Do as `categorical`; `inputs` `[N, 2 A]` are means, then the logarithms of the deviations."""
    size = inputs.shape[1] // 2
    _check(len(inputs), values, actions, old_logp, advantages, value_targets)
    if actions.shape[1] != size:
        raise ValueError("actions must have half as many columns as the action_dist_inputs")
    clip, bonus = np.float64(clip_param[()]), np.float64(entropy_coeff[()])
    num_rows, mean, scale = _scale(advantages, normalize, parts)
    losses, entropies, kls, num_clipped = 0.0, 0.0, 0.0, 0
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
            of_inputs[n, a] = slope * z * inverse / num_rows
            of_inputs[n, size + a] = (slope * (z * z - 1.0) - bonus) / num_rows
        losses += loss
        entropies += entropy
        kls += kl
        num_clipped += is_clipped
    terms[0], terms[2], terms[3] = losses / num_rows, entropies / num_rows, kls / num_rows
    terms[4] = num_clipped / num_rows
    terms[1] = _value_loss(values, value_targets, old_values, vf_clip, vf_coeff, of_values, num_rows)
    total_loss[()] = terms[0] + vf_coeff * terms[1] - bonus * terms[2]
