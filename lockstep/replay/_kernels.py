"""Compiled index arithmetic of the replay ring.

A ring has `S` positions for each of `B` sub-buffers. Row `position * B + b` is a transition of sub-buffer `b`; the row
that follows it in time is `B` further on, modulo `S * B`. `flags` [S * B] is 0 for a row whose episode continues,
otherwise a sum of the flags of `lockstep.replay.flags`. `newest` and `oldest` [B] are rows, -1 in an empty sub-buffer.
The invariants are in the docstring of `Ring`.

Two boundaries limit every walk along an episode. Forwards it ends at a row with a flag, and at the newest row of the
sub-buffer: the row after that one is free, or the oldest. Backwards it ends where the row before has a flag, and at the
oldest row, whose predecessor in memory is the newest.

Kernels trust their input: callers check rows. Rows wrap around by a comparison and a subtraction, since `%` is a
division for each step.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled
from lockstep.replay.flags import LOST

# Lines of `bookkeeping` [8, B]. `Ring.__init__` describes each of them.
NEWEST = 0
OLDEST = 1
COUNT = 2
MID_EPISODE = 3
WRITTEN = 4
LENGTH = 5
START = 6
STORED = 7
"""Line whose first entry is the number of stored rows of all sub-buffers."""


@compiled
def _claim(b, flags, bookkeeping):
    """Make the next row of sub-buffer `b` its newest, overwriting the oldest if it is full, and return the row."""
    num_buffers = bookkeeping.shape[1]
    num_rows = flags.shape[0]
    row = b if bookkeeping[NEWEST, b] < 0 else bookkeeping[NEWEST, b] + num_buffers
    if row >= num_rows:
        row -= num_rows
    if bookkeeping[COUNT, b] * num_buffers == num_rows:
        # The oldest row is overwritten. Its successor becomes the oldest, and has lost its predecessor if it continued
        # the same episode, or if that had lost earlier rows already. The flags must be read before they are replaced.
        bookkeeping[MID_EPISODE, b] = flags[row] == 0 or flags[row] >= LOST
        after = row + num_buffers
        bookkeeping[OLDEST, b] = after - num_rows if after >= num_rows else after
    else:
        if bookkeeping[COUNT, b] == 0:
            bookkeeping[OLDEST, b] = row
        bookkeeping[COUNT, b] += 1
        bookkeeping[STORED, 0] += 1
    bookkeeping[NEWEST, b] = row
    bookkeeping[WRITTEN, b] += 1
    if bookkeeping[LENGTH, b] == 0:
        bookkeeping[START, b] = row
    elif bookkeeping[START, b] == row:  # an episode longer than the buffer has overwritten its own start
        bookkeeping[START, b] = -1
    bookkeeping[LENGTH, b] += 1
    return row


@compiled
def place(ids, rewards, terminateds, truncateds, cuts, flags, bookkeeping, returns, placed):
    """Assign a row to each new transition, one after another, and update the episodes under way.

    `cuts` are further flags; `rewards` is flat, [n * agents]. The kernel fills `placed` [3 + agents, n]: rows, lengths
    of ended episodes, first rows of the episodes, and the returns of ended episodes as the bits of float64 numbers.
    Returns whether the rows are contiguous in memory.
    """
    num_agents = returns.shape[1]
    ended_returns = placed[3:].view(np.float64)
    contiguous = True
    for k in range(ids.shape[0]):
        b = ids[k]
        row = _claim(b, flags, bookkeeping)
        placed[0, k] = row
        contiguous = contiguous and row == placed[0, 0] + k
        placed[1, k] = 0
        placed[2, k] = bookkeeping[START, b]

        # Only whole episodes are reported. A cut drops the sums of its episode without reporting them.
        done = terminateds[k] | truncateds[k]
        flag = terminateds[k] * np.uint8(1) + truncateds[k] * np.uint8(2) | cuts[k]
        flags[row] = flag
        for agent in range(num_agents):
            returns[b, agent] += rewards[k * num_agents + agent]
            ended_returns[agent, k] = returns[b, agent] if done else 0.0
            if flag != 0:
                returns[b, agent] = 0.0
        if done:
            placed[1, k] = bookkeeping[LENGTH, b]
        if flag != 0:
            bookkeeping[LENGTH, b] = 0
    return contiguous


@compiled
def next_rows(rows, flags, newest, out):
    """Fill `out` with the next row of each row's episode: the row itself if it ends the episode or is the newest."""
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        if flags[row] == 0 and row != newest[row % num_buffers]:
            row += num_buffers
            if row >= num_rows:
                row -= num_rows
        out[k] = row


@compiled
def previous_rows(rows, flags, oldest, out):
    """Fill `out` with the previous row of each row's episode: the row itself if it is the first or the oldest."""
    num_buffers = oldest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        if row != oldest[row % num_buffers]:
            before = row - num_buffers
            if before < 0:
                before += num_rows
            if flags[before] == 0:
                row = before
        out[k] = row


@compiled
def episode_bounds(rows, flags, newest, oldest, first, last):
    """Fill `first` and `last` with the first and the last stored row of each row's episode."""
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = newest[row % num_buffers]
        while flags[row] == 0 and row != stop:
            row += num_buffers
            if row >= num_rows:
                row -= num_rows
        last[k] = row

        row = rows[k]
        stop = oldest[row % num_buffers]
        while row != stop:
            before = row - num_buffers
            if before < 0:
                before += num_rows
            if flags[before] != 0:
                break
            row = before
        first[k] = row


@compiled
def stack_rows(rows, flags, oldest, out):
    """Fill `out` [N, K] with the last K rows of the episode up to each row, oldest first.

    If the episode has fewer rows, its first one is repeated.
    """
    num_buffers = oldest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = oldest[row % num_buffers]
        out[k, out.shape[1] - 1] = row
        for j in range(out.shape[1] - 2, -1, -1):
            if row != stop:
                before = row - num_buffers
                if before < 0:
                    before += num_rows
                if flags[before] == 0:
                    row = before
                else:
                    stop = row  # the episode begins here: all older frames repeat this row
            out[k, j] = row


@compiled
def can_be_stacked(rows, flags, oldest, mid_episode, num_frames, need_all, out):
    """Fill `out` with whether the frames of each row's stack are stored.

    They are not if the stack would reach into the part of the episode that is lost: the first row left must not be
    repeated as if the episode began there. With `need_all` the episode must have `num_frames` rows up to the row.
    """
    num_buffers = oldest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        b = row % num_buffers
        num_stored = 1
        begins = False
        lost = False
        while num_stored < num_frames and row != oldest[b] and not begins:
            before = row - num_buffers
            if before < 0:
                before += num_rows
            if flags[before] == 0:
                row = before
                num_stored += 1
            else:
                begins = True
                lost = flags[before] >= LOST
        lost = lost or (row == oldest[b] and mid_episode[b])
        out[k] = num_stored == num_frames or not (lost or need_all)


@compiled
def n_step(rows, rewards, flags, newest, gamma, n, last, totals, discounts):
    """Sum up to `n` discounted rewards from each row.

    For the row of step t and m <= n steps that can be walked: `totals = sum_{i < m} gamma^i r_{t+i}`, `last` is the row
    of step t + m - 1, and `discounts = gamma^m`, whether the episode terminated or not. The target then is
    `totals + discounts * ~terminated[last] * V(next observation of last)`.

    The walk ends at the end of the episode and at the newest row. With fewer than `n` steps the target is still right,
    since it bootstraps from the observation after the last step with that step's own discount.
    """
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = newest[row % num_buffers]
        for agent in range(rewards.shape[1]):
            totals[k, agent] = rewards[row, agent]
        discount = gamma
        for _ in range(n - 1):
            if flags[row] != 0 or row == stop:
                break
            row += num_buffers
            if row >= num_rows:
                row -= num_rows
            for agent in range(rewards.shape[1]):
                totals[k, agent] += discount * rewards[row, agent]
            discount *= gamma
        last[k] = row
        discounts[k] = discount


@compiled
def window(rows, flags, newest, out, lengths):
    """Fill `out` [N, n] with the rows that `n_step` walks over, and `lengths` [N] with their number.

    After these rows the last one is repeated.
    """
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = newest[row % num_buffers]
        out[k, 0] = row
        lengths[k] = 1
        for j in range(1, out.shape[1]):
            if flags[row] == 0 and row != stop:
                row += num_buffers
                if row >= num_rows:
                    row -= num_rows
                lengths[k] += 1
            out[k, j] = row


@compiled
def sequences(rows, flags, newest, oldest, length, burn_in, first, before, total):
    """Find the sequence that holds each row: its first row, its number of burn-in rows, and its number of rows.

    Episodes are cut into sequences of `length` rows from their first stored row, and up to `burn_in` rows of the
    episode come before a sequence. A fixed grid makes each row equally likely to be learned from: a sequence that began
    at the drawn row would draw the last rows of an episode more often than its first ones.
    """
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = oldest[row % num_buffers]
        position = 0  # of the row in its episode, counted backwards to the first stored row
        while row != stop:
            previous = row - num_buffers
            if previous < 0:
                previous += num_rows
            if flags[previous] != 0:
                break
            row = previous
            position += 1
        inside = position % length  # number of rows of the sequence before this one
        before[k] = min(burn_in, position - inside)
        first[k] = (row + (position - inside - before[k]) * num_buffers) % num_rows

        # Forwards from the row itself: the last sequence of an episode is shorter.
        row = rows[k]
        stop = newest[row % num_buffers]
        inside += 1
        while inside < length and flags[row] == 0 and row != stop:
            row += num_buffers
            if row >= num_rows:
                row -= num_rows
            inside += 1
        total[k] = before[k] + inside


@compiled
def n_step_within(rewards, lengths, gamma, n, totals, discounts, steps):
    """Sum up to `n` discounted rewards from each row of sequences that are given one after another.

    `rewards` [N, agents] has the rows of sequences with `lengths` rows each. No sum leaves its sequence, because the
    network's memory is known only within it; `steps` [N] says how many rewards each sum has.
    """
    start = 0
    for k in range(lengths.shape[0]):
        stop = start + lengths[k]
        for row in range(start, stop):
            steps[row] = min(n, stop - row)
            discount = 1.0
            totals[row] = 0.0
            for ahead in range(row, row + steps[row]):
                for agent in range(rewards.shape[1]):
                    totals[row, agent] += discount * rewards[ahead, agent]
                discount *= gamma
            discounts[row] = discount
        start = stop


@compiled
def sum_window(rewards, terminateds, lengths, gamma, totals, discounts):
    """Sum discounted `rewards` [N, n] over `lengths` [N] steps, which are shortened to the first terminated step."""
    for k in range(rewards.shape[0]):
        total = 0.0
        discount = 1.0
        for j in range(lengths[k]):
            total += discount * rewards[k, j]
            discount *= gamma
            if terminateds[k, j]:
                lengths[k] = j + 1
                break
        totals[k] = total
        discounts[k] = discount


@compiled
def draw_uniform(uniforms, count, out):
    """Fill `out` with stored rows, all equally likely, one for each of `uniforms` [N] in [0, 1)."""
    num_buffers = count.shape[0]
    total = 0
    equally_full = True
    for b in range(num_buffers):
        total += count[b]
        equally_full = equally_full and count[b] == count[0]
    for k in range(uniforms.shape[0]):
        row = min(np.int64(uniforms[k] * total), total - 1)  # the product may round up to `total`
        # Equally full sub-buffers use the first `total` rows without a gap, so the number is the row itself. Otherwise
        # it counts through the sub-buffers: stored positions are 0 .. count - 1, also in a full sub-buffer.
        if not equally_full:
            b = 0
            while row >= count[b]:
                row -= count[b]
                b += 1
            row = row * num_buffers + b
        out[k] = row


@compiled
def in_order(count, oldest, num_rows, out):
    """Fill `out` with all stored rows, sub-buffer after sub-buffer, oldest first."""
    num_buffers = count.shape[0]
    k = 0
    for b in range(num_buffers):
        row = oldest[b]
        for _ in range(count[b]):
            out[k] = row
            k += 1
            row += num_buffers
            if row >= num_rows:
                row -= num_rows


@compiled
def first_absent(rows, bookkeeping, num_rows):
    """Return the position in `rows` of the first number that is not a stored row; -1 if all are stored."""
    num_buffers = bookkeeping.shape[1]
    stored = num_rows  # all rows below this one are stored: a cheap test that most rows pass
    for b in range(num_buffers):
        stored = min(stored, bookkeeping[COUNT, b] * num_buffers)
    for k in range(rows.shape[0]):
        row = rows[k]
        if 0 <= row < stored:
            continue
        if row < 0 or row >= num_rows or row // num_buffers >= bookkeeping[COUNT, row % num_buffers]:
            return k
    return -1


@compiled
def ends(rows, flags, out):
    """Fill `out` [2, N] with whether each row is terminated, and whether it is truncated."""
    for k in range(rows.shape[0]):
        flag = flags[rows[k]]
        out[0, k] = flag & 1
        out[1, k] = flag & 2


@compiled
def same_rows(left, chosen, right, same):
    """Clear `same[k]` where row `chosen[k]` of `left` differs in any byte from row `k` of `right`.

    Bytes are compared, not numbers, so that a NaN equals itself.
    """
    for k in range(chosen.shape[0]):
        differing = np.uint8(0)
        for i in range(right.shape[1]):
            differing |= left[chosen[k], i] ^ right[k, i]
        same[k] &= differing == 0


@compiled
def newest_endings(ids, same, newest, flags, out):
    """Fill `out` [n] with how the newest row of each sub-buffer of `ids` ends, before a row is added after it.

    - 0: its episode continues, or the sub-buffer is empty.
    - 1: its flag ends the episode.
    - 2: its episode continues, but the new row does not begin with the observation that this row led to (`same` is
      False), so that the episode has to be cut here.

    Returns the number of rows that end.
    """
    number = 0
    for k in range(ids.shape[0]):
        row = newest[ids[k]]
        out[k] = 0
        if row >= 0 and flags[row] != 0:
            out[k] = 1
        elif row >= 0 and not same[k]:
            out[k] = 2
        number += out[k] != 0
    return number


@compiled
def num_with_slot(rows, slots):
    """Return how many of the rows have a slot in the pool of `SharedNextObs`."""
    number = 0
    for k in range(rows.shape[0]):
        number += slots[rows[k]] >= 0
    return number
