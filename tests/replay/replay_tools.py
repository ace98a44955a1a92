"""Transitions of counting environments, and what each of them must look like."""

from __future__ import annotations

import numpy as np

from lockstep.envs.sync import LightSyncVectorEnv
from lockstep.envs.toys.counting import CountingEnv

EPISODES = ((5, "terminate"), (3, "truncate"), (7, "terminate"), (1, "both"), (4, "truncate"))


def rows(number, first=0, obs_size=4, ends=None, dtype=np.float32):
    """`number` rows that count: obs [first + i], new_obs one more."""
    count = np.arange(first, first + number)
    ends = [""] * number if ends is None else ends
    return {
        "obs": np.repeat(count[:, None], obs_size, 1).astype(dtype),
        "actions": count % 3,
        "rewards": count.astype(np.float32),
        "terminateds": np.array([end == "terminated" for end in ends]),
        "truncateds": np.array([end == "truncated" for end in ends]),
        "new_obs": np.repeat(count[:, None] + 1, obs_size, 1).astype(dtype),
    }


def fill_from_counting(buffer, num_steps, *, seed=0, cut_at=(), random_rows=False):
    """Steps one counting environment for each sub-buffer and adds what happened; cuts and resets at some steps."""
    number = buffer.buffer_num
    env = LightSyncVectorEnv([lambda b=b: CountingEnv(EPISODES, offset=b) for b in range(number)])
    rng = np.random.default_rng(seed)
    obs = env.reset(list(range(number))).copy()
    for step in range(num_steps):
        if step in cut_at:
            buffer.cut()
            obs = env.reset().copy()
        actions = rng.integers(0, 4, number)
        result = env.step(actions)
        new_obs = result.obs.copy()
        if result.final_obs is not None:
            new_obs[result.final_obs[0]] = result.final_obs[1]
        valid = np.arange(number) if result.valid is None else np.flatnonzero(result.valid)
        batch = {
            "obs": obs,
            "actions": actions,
            "rewards": result.rewards.astype(np.float32),
            "terminateds": result.terminateds.copy(),
            "truncateds": result.truncateds.copy(),
            "new_obs": new_obs,
        }
        if random_rows:
            valid = rng.permutation(valid)
        buffer.add({name: column[valid] for name, column in batch.items()}, valid)
        obs = result.obs.copy()
    return buffer


def check_counting(buffer, batch):
    """Every transition is the one that a single environment gives (n-step and stacked ones too)."""
    n, gamma, stack = buffer.options.n_step, buffer.options.gamma, buffer.options.stack_num
    for k, row in enumerate(batch["batch_indexes"]):
        step, episode = (batch["obs"][k] if stack == 1 else batch["obs"][k, -1]).astype(int)
        length, ending = EPISODES[(row % buffer.buffer_num + episode) % len(EPISODES)]
        last, last_episode = (batch["new_obs"][k] if stack == 1 else batch["new_obs"][k, -1]).astype(int)
        steps = last - step
        assert last_episode == episode
        assert 1 <= steps <= min(n, length - step)
        if steps < min(n, length - step):  # only before a boundary or the newest row
            here = np.array([row])
            for _ in range(steps - 1):
                here = buffer.next(here)
            assert buffer.next(here) == here
            assert not batch["terminateds"][k]
        if stack > 1:
            for frames, newest in ((batch["obs"][k], step), (batch["new_obs"][k], last)):
                wanted = [[max(0, newest - j), episode] for j in range(stack - 1, -1, -1)]
                np.testing.assert_array_equal(frames, wanted)
        assert batch["terminateds"][k] == (last == length and ending != "truncate")
        assert batch["truncateds"][k] == (last == length and ending != "terminate")
        if n == 1:
            assert batch["rewards"][k] == 10 * last + batch["actions"][k]
        else:
            assert batch["discounts"][k] == np.float32(gamma**steps)
            base = sum(gamma**j * 10 * (step + 1 + j) for j in range(steps))
            assert base - 1e-3 <= batch["rewards"][k] <= base + 3 * steps + 1e-3
