"""Compiled index arithmetic of the replay ring.

A ring has `S` positions for each of `B` sub-buffers. Row `position * B + b` is a transition of sub-buffer `b`; the row
that follows it in time is `B` further on, modulo `S * B`. `flags` [S * B] says how each row ends: 0 goes on, else
the sum of 1 (terminated), 2 (truncated), 4 (cut) and 8 (what the next row went on with is lost). `newest` and
`oldest` [B] are rows, -1 in an empty sub-buffer.

Kernels trust their input.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled

NEWEST, OLDEST, COUNT, INHERITS, WRITTEN, LENGTH, START, STORED = range(8)
"""lines of `marks` [8, B], see `Ring`"""


@compiled
def _claim(b, flags, marks):
    """Return the next row of sub-buffer `b`, which now is its newest."""
    num_buffers = marks.shape[1]
    num_rows = flags.shape[0]
    row = b if marks[NEWEST, b] < 0 else marks[NEWEST, b] + num_buffers
    if row >= num_rows:
        row -= num_rows
    if marks[COUNT, b] * num_buffers == num_rows:
        # the oldest is overwritten; what it leads to may go on without it
        marks[INHERITS, b] = flags[row] == 0 or flags[row] >= 8
        after = row + num_buffers
        marks[OLDEST, b] = after - num_rows if after >= num_rows else after
    else:
        if marks[COUNT, b] == 0:
            marks[OLDEST, b] = row
        marks[COUNT, b] += 1
        marks[STORED, 0] += 1
    marks[NEWEST, b] = row
    marks[WRITTEN, b] += 1
    if marks[LENGTH, b] == 0:
        marks[START, b] = row
    elif marks[START, b] == row:  # an episode longer than the buffer has overwritten its own start
        marks[START, b] = -1
    marks[LENGTH, b] += 1
    return row


@compiled
def place(ids, rewards, terminateds, truncateds, cuts, flags, marks, returns, placed):
    """Give each new transition its row, one after another, and keep account of the episodes.

    `cuts`: further flags; `rewards` is flat [n * agents]. Fills `placed` [3 + agents, n] with rows, lengths of ended
    episodes and starts, and, as bits of float64, returns of ended episodes. Returns whether the rows follow one another
    in memory.
    """
    num_agents = returns.shape[1]
    ended_returns = placed[3:].view(np.float64)
    follow = True
    for k in range(ids.shape[0]):
        b = ids[k]
        row = _claim(b, flags, marks)
        placed[0, k] = row
        follow = follow and row == placed[0, 0] + k
        placed[1, k] = 0
        placed[2, k] = marks[START, b]
        done = terminateds[k] | truncateds[k]
        flag = terminateds[k] * np.uint8(1) + truncateds[k] * np.uint8(2) | cuts[k]
        flags[row] = flag
        for agent in range(num_agents):
            returns[b, agent] += rewards[k * num_agents + agent]
            ended_returns[agent, k] = returns[b, agent] if done else 0.0
            if flag != 0:
                returns[b, agent] = 0.0
        if done:
            placed[1, k] = marks[LENGTH, b]
        if flag != 0:
            marks[LENGTH, b] = 0
    return follow


@compiled
def following(rows, flags, newest, out):
    """Fill `out`: the next row of the same episode; the row itself where it ends the episode or is the newest."""
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
def preceding(rows, flags, oldest, out):
    """Fill `out`: the row before in the same episode; the row itself where it begins the episode or is the oldest."""
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
    """Fill `first` and `last`: the first and last row of each row's episode, as far as they are stored."""
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
def stacked(rows, flags, oldest, out):
    """Fill `out` [N, K]: the last K rows of the episode up to each row, oldest first.

    The first one is repeated where the episode has fewer.
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
                    stop = row
            out[k, j] = row


@compiled
def can_be_stacked(rows, flags, oldest, inherits, num_frames, need_all, out):
    """Fill `out`: are the frames that belong to each row's stack stored?

    Not so where the episode's beginning was overwritten and the stack reaches into it. With `need_all` the episode
    must have `num_frames` frames up to the row.
    """
    num_buffers = oldest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        b = row % num_buffers
        found = 1
        begins = False
        lost = False
        while found < num_frames and row != oldest[b] and not begins:
            before = row - num_buffers
            if before < 0:
                before += num_rows
            if flags[before] == 0:
                row = before
                found += 1
            else:
                begins = True
                lost = flags[before] >= 8
        lost = lost or (row == oldest[b] and inherits[b])
        out[k] = found == num_frames or not (lost or need_all)


@compiled
def n_step(rows, rewards, flags, newest, gamma, n, last, totals, discounts):
    """Fill in the last row, sum of rewards and discount of what follows for up to `n` steps from each row.

    Stops at the end of the episode and at the newest row; `discounts` is `gamma ** (number of steps)` whether the
    episode terminated or not.
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
    """Fill `out` [N, n]: the rows that `n_step` walks over; beyond `lengths` the last one is repeated."""
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
    """Fill in, for the sequence that holds each row, its first row, its rows of burn-in, and all its rows.

    Episodes are cut into pieces of `length` rows from their first stored row; up to `burn_in` rows come before a piece.
    """
    num_buffers = newest.shape[0]
    num_rows = flags.shape[0]
    for k in range(rows.shape[0]):
        row = rows[k]
        stop = oldest[row % num_buffers]
        position = 0
        while row != stop:
            previous = row - num_buffers
            if previous < 0:
                previous += num_rows
            if flags[previous] != 0:
                break
            row = previous
            position += 1
        inside = position % length
        before[k] = min(burn_in, position - inside)
        first[k] = (row + (position - inside - before[k]) * num_buffers) % num_rows
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
    """Fill in sums of rewards, discounts and numbers of steps of up to `n` rows from each row of sequences.

    `rewards` [N, agents] are those of sequences of `lengths` rows, one after another; no sum leaves its sequence.
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
    """Sum discounted `rewards` [N, n] over `lengths`, which are shortened to the first terminated step."""
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
    """Fill `out` with stored rows, each equally likely; `uniforms` [N] in [0, 1)."""
    num_buffers = count.shape[0]
    total = 0
    level = True
    for b in range(num_buffers):
        total += count[b]
        level = level and count[b] == count[0]
    for k in range(uniforms.shape[0]):
        row = min(np.int64(uniforms[k] * total), total - 1)
        if not level:
            b = 0
            while row >= count[b]:
                row -= count[b]
                b += 1
            row = row * num_buffers + b  # rows are filled from position 0
        out[k] = row


@compiled
def in_order(count, oldest, num_rows, out):
    """Fill `out`: all stored rows, sub-buffer after sub-buffer, oldest first."""
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
def first_absent(rows, marks, num_rows):
    """Return the position of the first number that is no stored row; -1 where all are."""
    num_buffers = marks.shape[1]
    stored = num_rows  # all rows below this one are
    for b in range(num_buffers):
        stored = min(stored, marks[COUNT, b] * num_buffers)
    for k in range(rows.shape[0]):
        row = rows[k]
        if row < 0 or (row >= stored and (row >= num_rows or row // num_buffers >= marks[COUNT, row % num_buffers])):
            return k
    return -1


@compiled
def ends(rows, flags, out):
    """Fill `out` [2, N]: are the rows terminated, are they truncated?"""
    for k in range(rows.shape[0]):
        flag = flags[rows[k]]
        out[0, k] = flag & 1
        out[1, k] = flag & 2


@compiled
def same_rows(left, chosen, right, same):
    """Keep `same` [n] where row `chosen[k]` of `left` has the bytes of row `k` of `right`."""
    for k in range(chosen.shape[0]):
        differing = np.uint8(0)
        for i in range(right.shape[1]):
            differing |= left[chosen[k], i] ^ right[k, i]
        same[k] &= differing == 0


@compiled
def left_behind(ids, same, newest, flags, out):
    """Fill `out` [n] for newest rows: 1 ends by itself, 2 as what comes is not the `same`; return how many end."""
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
def num_taken(rows, slots):
    """Return how many of the rows have a slot."""
    number = 0
    for k in range(rows.shape[0]):
        number += slots[rows[k]] >= 0
    return number
