"""`AsyncCollector`: waits for no environment that is slow; what is ready is stored and acts again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree, named_leaves
from lockstep.envs import WorkerVectorEnv, make_vector
from lockstep.envs import trees as env_trees
from lockstep.envs.workers import Arrived
from lockstep.replay import ReplayBuffer
from lockstep.rollout.checks import check_ends, first_not_finite, refuse_row
from lockstep.rollout.collector import ActingPolicy, Collector
from lockstep.rollout.replay_writer import begin_in_mid_episode, leave_out, take_actions_of
from lockstep.state.checks import check_whole
from lockstep.state.streams import RandomStreams


class AsyncCollector(Collector):
    """Steps whichever environments are ready, each of which is in a process of its own.

    `collect(n_step=n)` returns when exactly `n` transitions are stored, for any `n`; what other environments are doing
    meanwhile is left under way and belongs to the next collect. So fast environments give more transitions than slow
    ones, an action may be chosen by weights that are one update old, and runs are not repeatable bit by bit.
    `collect(n_episode=n)` begins new episodes and counts the first `n` that start. For training from a replay buffer;
    evaluation refuses it.

    `env`: `make_vector(..., mode="async")`, or an id, function or class with `num_envs`. Other parameters: `Collector`;
    `on_step_hook` gets the list of `Arrived`.

    Raises `ValueError` for environments in this process, a recurrent policy, one that takes stacks of frames,
    and a buffer that is no `ReplayBuffer`.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        env: Any,
        buffer: ReplayBuffer | None = None,
        exploration_noise: bool = False,
        on_step_hook: Callable[[Any], None] | None = None,
        on_episode_done_hook: Callable[[int, float, int], None] | None = None,
        raise_on_nan_in_buffer: bool = True,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        streams: RandomStreams | None = None,
    ) -> None:
        if isinstance(env, str) or callable(env):
            env = make_vector(env, num_envs=num_envs, mode="async")
        if not isinstance(env, WorkerVectorEnv) or not env._rows_of_actions:
            raise ValueError(
                "AsyncCollector needs environments in processes of their own, with plain actions; give "
                "make_vector(env, num_envs=n, mode='async')"
            )
        if getattr(policy, "is_stateful", False):
            raise ValueError("AsyncCollector takes no recurrent policy; use Collector")
        if (frames := getattr(policy, "frame_stack", 1)) != 1:
            raise ValueError(
                f"AsyncCollector stacks no frames, and the policy takes {frames}; use Collector, or "
                "environments that stack them (gymnasium.wrappers.FrameStackObservation)"
            )
        hooks = (on_step_hook, on_episode_done_hook)
        super().__init__(
            policy, env, None, exploration_noise, *hooks, raise_on_nan_in_buffer, seed=seed, streams=streams
        )
        self.vector: WorkerVectorEnv = env
        self._known = map_tree(np.copy, env_trees.allocate(env.observation_space, env.num_envs))
        self._actions: np.ndarray | None = None
        self._replay: ReplayBuffer | None = None
        self.buffer = buffer

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where transitions go as they come in."""
        return getattr(self, "_replay", None)

    @buffer.setter
    def buffer(self, buffer: RolloutStore | ReplayBuffer | None) -> None:
        if buffer is not None and not isinstance(buffer, ReplayBuffer):
            raise ValueError("AsyncCollector fills a replay buffer only: its environments are at different steps")
        if buffer is not None and buffer.buffer_num != self.num_envs:
            raise ValueError(
                f"the buffer has {buffer.buffer_num} sub-buffers, and there are {self.num_envs} environments; "
                f"use VectorReplayBuffer(total_size, buffer_num={self.num_envs})"
            )
        if buffer is not None:
            take_actions_of(self.policy, buffer)
        is_other = buffer is not self.buffer
        self.store, self._replay = None, buffer
        self._added = None if buffer is None else buffer.num_added
        if is_other and self._obs is not None:
            begin_in_mid_episode(buffer, self._lengths == 0)

    def reset_env(self) -> None:
        """New episodes everywhere; what is under way is forgotten, and nothing is estimated across."""
        super().reset_env()
        if self._replay is not None:
            self._replay.cut()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empties the buffer."""
        if self._replay is not None:
            self._replay.reset(keep_statistics)
            if self._obs is not None and not keep_statistics:
                self._replay.cut(np.flatnonzero(self._lengths), goes_on=True)
        super().reset_buffer(keep_statistics)

    def _checked_amount(self, n_step: int | None, n_episode: int | None) -> int:
        if n_step is not None and n_episode is None:
            return check_whole("n_step", n_step, 1)  # exact, whatever the number of environments
        return super()._checked_amount(n_step, n_episode)

    def _begin_collect(self) -> int:
        """As `Collector`'s; where others wrote to the buffer since, what comes does not follow what it has."""
        if self._replay is not None and self._added not in (None, self._replay.num_added):
            begin_in_mid_episode(self._replay, self._lengths == 0)
        return super()._begin_collect()

    def _collect_amount(self, amount: int, by_steps: bool, random: bool) -> int:
        """Acts, waits and stores until the amount is there."""
        counting = None
        if not by_steps:
            counting = np.arange(self.num_envs) < amount
            self._to_start = max(0, amount - self.num_envs)
        steps = 0
        idle = set(range(self.num_envs)) - set(self.vector.in_flight)
        self._send([row for row in sorted(idle) if counting is None or counting[row]], random)
        while steps < amount if counting is None else counting.any():
            began = time.perf_counter()
            arrived = self.vector.receive(amount - steps if counting is None else self.num_envs)
            self._env_time += time.perf_counter() - began
            steps += self._take_in(arrived, counting, steps)
            if self.on_step_hook is not None:
                self.on_step_hook(arrived)  # type: ignore[arg-type]
            if counting is not None or steps < amount:
                self._send([one.row for one in arrived if counting is None or counting[one.row]], random)
        return steps

    def _send(self, rows: list[int], random: bool) -> None:
        """Chooses actions for these rows and hands them over; what they acted on is kept until the answer comes."""
        if not rows:
            return
        began = time.perf_counter()
        obs = env_trees.gather(self.vector._obs, rows)
        if random:
            actions = self._random_actions(obs, len(rows))
        else:
            explores = self.exploration_noise or self.policy.is_exploring
            rng = self.streams.numpy("exploration")
            actions = self.policy.act(obs, self.policy.draw_noise(rng, (1, len(rows)))[0] if explores else None)
        if self._actions is None:
            self._actions = np.zeros((self.num_envs, *actions.shape[1:]), actions.dtype)
        self._actions[rows] = actions
        env_trees.scatter(self._known, rows, obs)
        sent = self.policy.to_env(actions)
        self._act_time += time.perf_counter() - began
        self.vector.send(rows, sent)

    def _take_in(self, arrived: list[Arrived], counting: np.ndarray | None, before: int) -> int:
        """Stores transitions, ends episodes; returns how many count."""
        lost = np.array([one.row for one in arrived if one.lost], np.int64)
        if lost.size:
            self._returns[lost], self._lengths[lost] = 0.0, 0
            if self._replay is not None:
                self._replay.cut(lost)
        real = [one for one in arrived if not one.lost and (counting is None or counting[one.row])]
        self._leave_out([one for one in arrived if not one.lost and counting is not None and not counting[one.row]])
        if not real:
            return 0
        if self._replay is not None:
            self._store(real, before)
        for one in real:
            self._returns[one.row] += one.reward
            self._lengths[one.row] += 1
            if one.final_obs is not None:
                self._end_episode(one.row, counting)
            elif counting is not None:
                check_ends(int(self._lengths[one.row]))
        return len(real)

    def _leave_out(self, others: list[Arrived]) -> None:
        """Steps that do not count, which were under way before the collect: their episodes have a gap there."""
        if not others:
            return
        rows, ended = np.array([one.row for one in others]), np.array([one.final_obs is not None for one in others])
        rewards = np.array([one.reward for one in others])
        self._returns[rows] = np.where(ended, 0.0, self._returns[rows] + rewards)
        self._lengths[rows] = np.where(ended, 0, self._lengths[rows] + 1)
        if self._replay is not None:
            leave_out(self._replay, rows, ended)

    def _store(self, real: list[Arrived], before: int) -> None:
        rows = np.array([one.row for one in real], np.int64)
        following = env_trees.gather(self.vector._obs, rows)
        for k, one in enumerate(real):
            if one.final_obs is not None:
                env_trees.scatter(following, [k], one.final_obs)
        batch = {
            Columns.OBS: env_trees.gather(self._known, rows),
            Columns.ACTIONS: np.asarray(self._actions)[rows],
            Columns.REWARDS: np.array([one.reward for one in real], np.float32),
            Columns.TERMINATEDS: np.array([one.terminated for one in real]),
            Columns.TRUNCATEDS: np.array([one.truncated for one in real]),
            Columns.NEXT_OBS: following,
        }
        if self.raise_on_nan_in_buffer:
            for column in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS, Columns.REWARDS):  # causes first
                for name, leaf in named_leaves(column, batch[column]):
                    where = first_not_finite(leaf)
                    if where is not None:
                        refuse_row(name, before + int(where[0]), int(rows[where[0]]), leaf[where[0]])
        if self._replay is not None:
            self._replay.add(batch, rows)
            self._added = self._replay.num_added

    def _end_episode(self, row: int, counting: np.ndarray | None) -> None:
        episode = (float(self._returns[row]), int(self._lengths[row]))
        self._returns[row], self._lengths[row] = 0.0, 0
        if counting is not None:
            if self._to_start > 0:
                self._to_start -= 1
            else:
                counting[row] = False
        self._ended.append(episode)
        if self.on_episode_done_hook is not None:
            self.on_episode_done_hook(row, *episode)

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """As `Collector.get_state`; steps under way cannot be kept, so that their episodes end at the checkpoint."""
        return {**super().get_state(), "buffer": {"added": self._added}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`; where steps were under way, with new episodes."""
        super().set_state(state)
        self._added = (state["buffer"] or {}).get("added")  # earlier versions did not say
