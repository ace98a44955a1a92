"""Every buffer against the obvious one, over random sequences of adding, cutting, emptying and drawing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from replay_reference import SlowBuffer

from lockstep.replay import ReplayBuffer

GAMMA = 0.9


class Driver:
    """Random episodes in several sub-buffers, written to a buffer and to the reference."""

    def __init__(self, seed, size, num_buffers, nested=False, **options):
        self.rng = np.random.default_rng(seed)
        self.buffer = ReplayBuffer(size * num_buffers, buffer_num=num_buffers, gamma=GAMMA, **options)
        self.slow = SlowBuffer(size, num_buffers)
        self.num_buffers, self.nested = num_buffers, nested
        self.episode, self.step = np.zeros(num_buffers, int), np.zeros(num_buffers, int)
        self.number = 0

    def obs(self, b, step):
        return np.array([b, self.episode[b], step], np.float32)

    def tree(self, rows):
        rows = np.stack(rows)
        return {"a": rows[:, :1], "b": (rows[:, 1:].astype(np.int64),)} if self.nested else rows

    def add(self, ids):
        obs = [self.obs(b, self.step[b]) for b in ids]
        new_obs = [self.obs(b, self.step[b] + 1) for b in ids]
        ends = self.rng.choice(["", "", "", "", "terminated", "truncated", "both"], len(ids))
        rewards = self.rng.integers(-9, 9, len(ids)).astype(np.float32)
        actions = np.arange(self.number, self.number + len(ids))
        self.number += len(ids)
        batch = {
            "obs": self.tree(obs),
            "actions": actions,
            "rewards": rewards,
            "terminateds": np.isin(ends, ["terminated", "both"]),
            "truncateds": np.isin(ends, ["truncated", "both"]),
            "new_obs": self.tree(new_obs),
            "twice": 2 * actions,
        }
        everyone = list(ids) == list(range(self.num_buffers)) and self.rng.random() < 0.5
        got = self.buffer.add(batch, None if everyone else ids)
        for k, b in enumerate(ids):
            want = self.slow.add(b, obs[k], actions[k], float(rewards[k]), new_obs[k], str(ends[k]))
            assert want == tuple(part[k] for part in got)
            self.advance(b, bool(ends[k]))

    def advance(self, b, ended):
        self.episode[b] += ended
        self.step[b] = 0 if ended else self.step[b] + 1

    def cut(self, ids):
        self.buffer.cut(ids)
        for b in ids:
            self.slow.cut(b)
            self.advance(b, True)

    def reset(self):
        self.buffer.reset()
        self.slow.reset()
        self.episode += 1
        self.step[:] = 0

    def random_walk(self, num_steps, check):
        for _ in range(num_steps):
            ids = np.flatnonzero(self.rng.random(self.num_buffers) < 0.8)
            what = self.rng.random()
            if what < 0.9 and len(ids):
                self.add(
                    self.rng.permutation(ids) if what < 0.3 else ids if what < 0.6 else np.arange(self.num_buffers)
                )
            elif what < 0.98:
                self.cut(ids)
            else:
                self.reset()
            if self.rng.random() < 0.3:
                check(self)


def plain(tree):
    """Observations of `Driver.tree` back as [N, ..., 3]."""
    return np.concatenate([tree["a"], tree["b"][0]], -1) if isinstance(tree, dict) else tree


def check_everything(driver):
    buffer, slow = driver.buffer, driver.slow
    stack, n_step, need_all = buffer.options.stack_num, buffer.options.n_step, buffer.options.sample_avail
    rows = slow.everything()
    assert len(buffer) == len(rows)
    allowed = [row.index for row in rows if stack == 1 or slow.can_stack(row.index, stack, need_all)]
    assert buffer.indices().tolist() == allowed
    if not rows:
        return
    every = [row.index for row in rows]
    assert buffer.next(every).tolist() == [slow.next(i) for i in every]
    assert buffer.prev(every).tolist() == [slow.prev(i) for i in every]
    assert sorted(buffer.unfinished_index().tolist()) == sorted(slow.unfinished())
    if not allowed:
        with pytest.raises(ValueError, match="frames of its stack"):
            buffer.sample(3)
        return
    assert sorted(buffer.permutation().tolist()) == sorted(allowed)
    drawn = buffer.sample(5)
    assert set(drawn["batch_indexes"].tolist()) <= set(allowed)
    for batch in (buffer.all(), drawn):
        for k, index in enumerate(batch["batch_indexes"]):
            obs, new_obs, action, reward, terminated, truncated, discount = slow.transition(index, stack, n_step, GAMMA)
            np.testing.assert_array_equal(plain(batch["obs"])[k], obs)
            np.testing.assert_array_equal(plain(batch["new_obs"])[k], new_obs)
            assert batch["actions"][k] == action
            assert batch["twice"][k] == 2 * action
            assert batch["rewards"][k] == pytest.approx(reward, abs=1e-5)
            assert (batch["terminateds"][k], batch["truncateds"][k]) == (terminated, truncated)
            if n_step > 1:
                assert batch["discounts"][k] == pytest.approx(discount)


@examples(150)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 9),
    num_buffers=st.integers(1, 3),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
    need_all=st.booleans(),
    shared=st.booleans(),
    nested=st.booleans(),
    prioritized=st.booleans(),
)
def test_any_order_of_add_cut_reset_and_sample_equals_a_list_of_episodes(
    seed, size, num_buffers, stack, n_step, need_all, shared, nested, prioritized
):
    driver = Driver(
        seed,
        size,
        num_buffers,
        nested,
        stack_num=stack,
        n_step=n_step,
        sample_avail=need_all and stack > 1,
        ignore_obs_next=shared,
        priorities={} if prioritized else None,
    )
    driver.random_walk(30, check_everything)
    check_everything(driver)
    assert driver.buffer.num_added == driver.number
