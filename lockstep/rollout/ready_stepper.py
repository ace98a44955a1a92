"""`ReadyStepper`: waits for no environment that is slow; what is ready is stored and acts again."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import allocate, map_tree, named_leaves, rows_of, write_rows
from lockstep.data.values import ARRAY_SPACES
from lockstep.envs import WorkerVectorEnv
from lockstep.envs.workers import RowStepResult
from lockstep.replay import ReplayBuffer
from lockstep.rollout.callbacks import EpisodeRecorder
from lockstep.rollout.errors import first_not_finite, refuse_row
from lockstep.rollout.protocols import ActingLike, sole_part
from lockstep.rollout.replay_writer import ReplayWriter
from lockstep.rollout.vector_stepper import VectorStepper
from lockstep.state.streams import RandomStreams


class ReadyStepper(VectorStepper):
    """Steps whichever environments are ready, each of which is in a process of its own.

    The environments are at different steps, so that transitions go into a `ReplayBuffer` as they arrive.

    Raises `ValueError` for environments in this process, a recurrent policy, one that takes stacks of frames,
    and a buffer that is no `ReplayBuffer`.
    """

    env: WorkerVectorEnv
    store: ReplayWriter | None
    rounds_up = False
    has_vector_steps = False

    def __init__(self, policy: ActingLike, env: object, streams: RandomStreams) -> None:
        if not isinstance(env, WorkerVectorEnv) or not isinstance(env.action_space, ARRAY_SPACES):
            raise ValueError(
                "AsyncCollector needs environments in processes of their own, with plain actions; give "
                "make_vector(env, num_envs=n, mode='async')"
            )
        if getattr(sole_part(policy), "is_stateful", False):
            raise ValueError("AsyncCollector takes no recurrent policy; use Collector")
        exploration = getattr(sole_part(policy), "exploration", None)
        if exploration is not None and exploration.initial_state(1):
            raise ValueError(
                "AsyncCollector takes no exploration that goes on from step to step (env_runners.exploration='ou', "
                "'gsde'); use Collector"
            )
        recorded = getattr(sole_part(policy), "recorded", None)
        if recorded is not None and recorded.has_memory:
            names = [type(connector).__name__ for connector in recorded.connectors if connector.has_memory]
            raise ValueError(
                f"AsyncCollector follows no connectors with a memory, and the policy has {', '.join(names)}; use "
                "Collector, or environments that stack frames (gymnasium.wrappers.FrameStackObservation)"
            )
        super().__init__(policy, env, streams)
        stored = env.observation_space if recorded is None or recorded.is_identity else recorded.observation_space
        self._acted_on = map_tree(np.copy, allocate(stored, env.num_envs))
        """the observation that each environment's action under way was chosen for"""
        self._sent: dict[int, Any] = {}
        """by row: the action under way as the environment takes it, where a callback reads episodes"""
        self._actions: np.ndarray | None = None
        """[B, ...] actions under way, as learned from"""

    def _store_for(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> RolloutStore | None:
        if isinstance(buffer, RolloutStore):
            raise ValueError("AsyncCollector fills a replay buffer only: its environments are at different steps")
        return super()._store_for(buffer, raise_on_nan)

    def run(self, most: int) -> int:
        """Act where environments are idle, wait until some are ready, and store what they answer."""
        counting = self.episodes.counting
        idle = set(range(self.num_envs)) - set(self.env.in_flight)
        self._send([row for row in sorted(idle) if counting is None or counting[row]])
        began = time.perf_counter()
        arrived = self.env.receive(most if counting is None else self.num_envs)
        self.env_time += time.perf_counter() - began
        steps = self._take_in(arrived)
        if self.mode.on_step_hook is not None:
            self.mode.on_step_hook(arrived)
        return steps

    def _send(self, rows: list[int]) -> None:
        """Choose actions for these rows and hand them over; keep what they acted on until the answer comes."""
        if not rows:
            return
        began = time.perf_counter()
        obs = self._recorded_of(rows_of(self.env.observations, rows))
        part = self._part
        if self.mode.random:
            actions = self._random_actions(obs, len(rows))
        else:
            rng = self.streams.numpy("exploration")
            noise = part.draw_noise(rng, (1, len(rows)))[0] if self.mode.explores else None
            actions = part.act(obs, noise)
        if self._actions is None:
            self._actions = np.zeros((self.num_envs, *actions.shape[1:]), actions.dtype)
        self._actions[rows] = actions
        write_rows(self._acted_on, rows, obs)
        sent = part.to_env(actions)
        if self.recorder is not None:
            self.recorder.start(rows)
            self._sent.update(zip(rows, sent))
        self.act_time += time.perf_counter() - began
        self.env.send(rows, sent)

    def _recorded_of(self, obs: Any) -> Any:
        return obs if self.recorded is None else self.recorded(obs)

    def _take_in(self, arrived: list[RowStepResult]) -> int:
        """Store transitions, end episodes; return how many count."""
        counting, writer = self.episodes.counting, self.store
        if self.recorder is not None:
            self._record(arrived, self.recorder)
        lost = np.array([answer.row for answer in arrived if answer.lost], np.int64)
        answers = [answer for answer in arrived if not answer.lost]
        real = [answer for answer in answers if counting is None or counting[answer.row]]
        self.episodes.returns[lost] = 0.0
        self.episodes.lengths[lost] = 0
        if writer is not None:
            if lost.size:
                writer.buffer.cut(lost)
            others = [answer for answer in answers if counting is not None and not counting[answer.row]]
            if others:  # under way before the collect: their episodes have a gap there
                rows = np.array([answer.row for answer in others])
                writer.leave_out(rows, np.array([answer.final_obs is not None for answer in others]))
            if real:
                self._add(real, writer)
        for answer in answers:
            self.episodes.returns[answer.row] += answer.reward
            self.episodes.lengths[answer.row] += 1
            if answer.final_obs is not None:
                self.episodes.end(answer.row, 0)  # environments are at different steps: there is no vector step
        return len(real)

    def _record(self, arrived: list[RowStepResult], recorder: EpisodeRecorder) -> None:
        counting, following = self.episodes.counting, self.env.observations
        for answer in arrived:
            b = answer.row
            if answer.lost:
                recorder.drop(b, following)
                continue
            if counting is not None and not counting[b]:
                recorder.leave(b)
            obs = rows_of(following, b) if answer.final_obs is None else rows_of(answer.final_obs, 0)
            flags = {"terminated": answer.terminated, "truncated": answer.truncated}
            recorder.take(b, self._sent[b], map_tree(np.array, obs), answer.reward, **flags, following=following)
        recorder.events.metrics.end_step()

    def _add(self, answers: list[RowStepResult], writer: ReplayWriter) -> None:
        """Add the transitions to the replay buffer; raise `MalformedBufferError` for values that are not finite."""
        rows = np.array([answer.row for answer in answers], np.int64)
        following = rows_of(self.env.observations, rows)
        for k, answer in enumerate(answers):
            if answer.final_obs is not None:
                write_rows(following, [k], answer.final_obs)
        following = self._recorded_of(following)
        batch = {
            Columns.OBS: rows_of(self._acted_on, rows),
            Columns.ACTIONS: np.asarray(self._actions)[rows],
            Columns.REWARDS: np.array([answer.reward for answer in answers], np.float32),
            Columns.TERMINATEDS: np.array([answer.terminated for answer in answers]),
            Columns.TRUNCATEDS: np.array([answer.truncated for answer in answers]),
            Columns.NEXT_OBS: following,
        }
        if self.mode.raise_on_nan:
            for column in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS, Columns.REWARDS):  # causes first
                for name, leaf in named_leaves(column, batch[column]):
                    where = first_not_finite(leaf)
                    if where is not None:
                        refuse_row(name, self.episodes.num_steps + int(where[0]), int(rows[where[0]]), leaf[where[0]])
        writer.add(batch, rows)
