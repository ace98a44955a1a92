"""`ReadyStepper`: steps each environment as soon as it is ready, without waiting for slower ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from lockstep.rollout.protocols import ActingLike, Guide, sole_part
from lockstep.rollout.replay_writer import ReplayWriter
from lockstep.rollout.vector_stepper import VectorStepper
from lockstep.state.streams import RandomStreams


class ReadyStepper(VectorStepper):
    """Stepper that steps each environment as soon as it is ready. Each environment has its own process.

    The environments are at different steps, so their transitions have no place in time-major columns: each is added to
    a `ReplayBuffer` when it arrives.

    Raises:
        ValueError: The environments are in this process, the policy has recurrent layers, correlated exploration noise
            or connectors with a memory, or the buffer is not a `ReplayBuffer`.
    """

    env: WorkerVectorEnv
    store: ReplayWriter | None
    rounds_up = False
    has_vector_steps = False

    def __init__(self, policy: ActingLike, env: object, streams: RandomStreams) -> None:
        # Plain actions are arrays: not those of a Dict or Tuple space.
        if not isinstance(env, WorkerVectorEnv) or not isinstance(env.action_space, ARRAY_SPACES):
            raise ValueError(
                "AsyncCollector needs environments in processes of their own, with plain actions; give "
                "make_vector(env, num_envs=n, mode='async')"
            )
        part = sole_part(policy)
        if getattr(part, "is_stateful", False):
            raise ValueError("AsyncCollector takes no recurrent policy; use Collector")
        exploration = getattr(part, "exploration", None)
        if exploration is not None and exploration.initial_state(1):
            raise ValueError(
                "AsyncCollector takes no exploration that goes on from step to step (env_runners.exploration='ou', "
                "'gsde'); use Collector"
            )
        pipeline = getattr(part, "recorded", None)
        if pipeline is not None and pipeline.has_memory:
            names = [type(connector).__name__ for connector in pipeline.connectors if connector.has_memory]
            raise ValueError(
                f"AsyncCollector follows no connectors with a memory, and the policy has {', '.join(names)}; use "
                "Collector, or environments that stack frames (gymnasium.wrappers.FrameStackObservation)"
            )
        super().__init__(policy, env, streams)
        self._acted_on = map_tree(np.copy, allocate(self.observation_space, env.num_envs))
        """`[B, ...]` stored observation that each environment's unfinished action was chosen for."""
        self._env_actions: dict[int, Any] = {}
        """Unfinished action as the environment takes it, by row; filled only if a callback reads episodes."""
        self._actions: np.ndarray | None = None
        """`[B, ...]` unfinished actions as learned from; None before the first action."""

    def set_guide(self, guide: Guide) -> None:
        raise ValueError("AsyncCollector lets the policy take all actions; use Collector")

    def _store_for(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> RolloutStore | None:
        if isinstance(buffer, RolloutStore):
            raise ValueError("AsyncCollector fills a replay buffer only: its environments are at different steps")
        return super()._store_for(buffer, raise_on_nan)

    def run(self, most: int) -> int:
        """Act in the idle environments, wait until some environments are ready, and store their transitions.

        Returns the number of transitions that count.
        """
        counting = self.episodes.counting
        idle = set(range(self.num_envs)) - set(self.env.in_flight)
        self._send([row for row in sorted(idle) if counting is None or counting[row]])

        # In a collect by steps no more than `most` answers are taken, so that it has exactly the requested number. The
        # other answers wait for the next collect.
        max_answers = most if counting is None else self.num_envs
        began = time.perf_counter()
        answers = self.env.receive(max_answers)
        self.env_time += time.perf_counter() - began
        num_steps = self._take_in(answers)
        if self.mode.on_step_hook is not None:
            self.mode.on_step_hook(answers)
        return num_steps

    def _send(self, rows: list[int]) -> None:
        """Choose actions for these environments and send them; keep their observations until the answers arrive."""
        if not rows:
            return
        began = time.perf_counter()
        obs = self._record(rows_of(self.env.observations, rows))
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

        env_actions = part.to_env(actions)
        if self.recorder is not None:
            self.recorder.start(rows)
            self._env_actions.update(zip(rows, env_actions))
        self.act_time += time.perf_counter() - began
        self.env.send(rows, env_actions)

    def _record(self, obs: Any) -> Any:
        """Return observations as they are stored and acted on."""
        return obs if self.recorded is None else self.recorded(obs)

    def _take_in(self, arrived: list[RowStepResult]) -> int:
        """Store transitions and end episodes, and return the number of transitions that count."""
        counting = self.episodes.counting
        writer = self.store
        if self.recorder is not None:
            self._report_steps(arrived, self.recorder)

        answers = []
        counted = []
        uncounted = []
        lost_rows = []
        for answer in arrived:
            if answer.lost:
                lost_rows.append(answer.row)
                continue
            answers.append(answer)
            if counting is None or counting[answer.row]:
                counted.append(answer)
            else:
                uncounted.append(answer)

        # A lost environment was started again: its unfinished episode does not count and is cut.
        lost = np.array(lost_rows, np.int64)
        self.episodes.returns[lost] = 0.0
        self.episodes.lengths[lost] = 0
        if writer is not None:
            if lost.size:
                writer.buffer.cut(lost)
            if uncounted:
                # Steps that had been sent before a collect by episodes began. They are not stored, so the episodes
                # have a gap there.
                rows = np.array([answer.row for answer in uncounted])
                writer.leave_out(rows, np.array([answer.final_obs is not None for answer in uncounted]))
            if counted:
                self._add(counted, writer)

        for answer in answers:
            self.episodes.returns[answer.row] += answer.reward
            self.episodes.lengths[answer.row] += 1
            if answer.final_obs is not None:
                # The environments are at different steps: there is no vector step in which the episode ended.
                self.episodes.end(answer.row, 0)
        return len(counted)

    def _report_steps(self, arrived: list[RowStepResult], recorder: EpisodeRecorder) -> None:
        """Record the steps for the callbacks, which are notified of them."""
        counting = self.episodes.counting
        next_obs = self.env.observations
        for answer in arrived:
            b = answer.row
            if answer.lost:
                recorder.restart(b, next_obs)
                continue
            if counting is not None and not counting[b]:
                recorder.stop_recording(b)  # `take` then adds no step, but notes where the next episode begins
            obs = rows_of(next_obs, b) if answer.final_obs is None else rows_of(answer.final_obs, 0)
            recorder.take(
                b,
                self._env_actions[b],
                map_tree(np.array, obs),
                answer.reward,
                terminated=answer.terminated,
                truncated=answer.truncated,
                next_obs=next_obs,
            )
        recorder.events.metrics.end_step()

    def _add(self, answers: list[RowStepResult], writer: ReplayWriter) -> None:
        """Add transitions to the replay buffer. Raises `MalformedBufferError` for values that are not finite."""
        rows = np.array([answer.row for answer in answers], np.int64)
        # Where an episode ended, the environment's observation is the first of the next episode already.
        next_obs = rows_of(self.env.observations, rows)
        for k, answer in enumerate(answers):
            if answer.final_obs is not None:
                write_rows(next_obs, [k], answer.final_obs)
        next_obs = self._record(next_obs)
        batch = {
            Columns.OBS: rows_of(self._acted_on, rows),
            Columns.ACTIONS: np.asarray(self._actions)[rows],
            Columns.REWARDS: np.array([answer.reward for answer in answers], np.float32),
            Columns.TERMINATEDS: np.array([answer.terminated for answer in answers]),
            Columns.TRUNCATEDS: np.array([answer.truncated for answer in answers]),
            Columns.NEXT_OBS: next_obs,
        }
        if self.mode.raise_on_nan:
            self._check_finite(batch, rows)
        writer.add(batch, rows)

    def _check_finite(self, batch: Mapping[str, Any], rows: np.ndarray) -> None:
        """Raise `MalformedBufferError` for the first value of transitions that is not finite.

        The columns are checked in the order of cause and effect: a NaN in an observation leads to a NaN action.
        """
        for column in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS, Columns.REWARDS):
            for name, leaf in named_leaves(column, batch[column]):
                index = first_not_finite(leaf)
                if index is not None:
                    i = int(index[0])
                    refuse_row(name, self.episodes.num_steps + i, int(rows[i]), leaf[i])
