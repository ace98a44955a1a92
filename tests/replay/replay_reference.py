"""The obvious replay buffer: lists of transitions, every question answered by a loop."""

from __future__ import annotations

import numpy as np


class Row:
    """One transition; `end` is "", "terminated", "truncated", "both" or "cut"."""

    def __init__(self, index, obs, action, reward, new_obs, end, history):
        self.index, self.obs, self.action, self.reward, self.new_obs = index, obs, action, reward, new_obs
        self.end = end
        self.history = history
        """all observations of the episode up to this row, overwritten or not"""


class SlowBuffer:
    """`size` rows for each of `num_buffers`; the index of a row as in `ReplayBuffer`."""

    def __init__(self, size, num_buffers):
        self.size, self.num_buffers = size, num_buffers
        self.reset()

    def reset(self):
        self.rows = [[] for _ in range(self.num_buffers)]
        self.written = [0] * self.num_buffers
        self.episodes = [[] for _ in range(self.num_buffers)]

    def add(self, b, obs, action, reward, new_obs, end):
        index = self.written[b] % self.size * self.num_buffers + b
        self.written[b] += 1
        self.episodes[b].append((obs, reward, index))
        row = Row(index, obs, action, reward, new_obs, end, [o for o, _, _ in self.episodes[b]])
        self.rows[b] = [*self.rows[b], row][-self.size :]
        episode = self.episodes[b]
        start = episode[0][2] if len(episode) <= self.size else -1
        if not end:
            return index, 0.0, 0, start
        self.episodes[b] = []
        return index, float(sum(r for _, r, _ in episode)), len(episode), start

    def cut(self, b):
        self.episodes[b] = []
        if self.rows[b] and not self.rows[b][-1].end:
            self.rows[b][-1].end = "cut"

    def everything(self):
        return [row for rows in self.rows for row in rows]

    def place(self, index):
        (found,) = [(rows, k) for rows in self.rows for k, row in enumerate(rows) if row.index == index]
        return found

    def next(self, index):
        rows, k = self.place(index)
        return index if rows[k].end or k + 1 == len(rows) else rows[k + 1].index

    def prev(self, index):
        rows, k = self.place(index)
        return index if k == 0 or rows[k - 1].end else rows[k - 1].index

    def unfinished(self):
        return [rows[-1].index for rows in self.rows if rows and not rows[-1].end]

    def can_stack(self, index, stack, need_all):
        rows, k = self.place(index)
        history = len(rows[k].history)
        stored = 1
        while stored <= k and not rows[k - stored].end:
            stored += 1
        return min(history, stack) <= stored and not (need_all and history < stack)

    def transition(self, index, stack=1, n_step=1, gamma=0.9):
        """(obs, new_obs, action, reward, terminated, truncated, discount)"""
        rows, k = self.place(index)
        last, reward, discount = k, 0.0, 1.0
        for j in range(k, min(k + n_step, len(rows))):
            reward += discount * rows[j].reward
            discount *= gamma
            last = j
            if rows[j].end:
                break
        row, final = rows[k], rows[last]
        return (
            self.frames(row.history, stack),
            self.frames([*final.history, final.new_obs], stack),
            row.action,
            reward,
            final.end in ("terminated", "both"),
            final.end in ("truncated", "both"),
            discount,
        )

    @staticmethod
    def frames(history, stack):
        if stack == 1:
            return np.asarray(history[-1])
        filled = [history[0]] * stack + list(history)
        # the first observation fills the stack it begins
        return np.stack(filled[-stack:]) if len(history) < stack else np.stack(history[-stack:])
