"""`VectorStepper`: steps all environments of a vector together and writes the steps into time-major columns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.data.actions import random_actions
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult, VectorBoundary
from lockstep.replay import ReplayBuffer
from lockstep.rollout.callbacks import EnvironmentEvents, Episode, EpisodeRecorder
from lockstep.rollout.errors import check_finite
from lockstep.rollout.protocols import ActingLike, ActingPart, sole_part
from lockstep.rollout.remembering import Exploring, Memory
from lockstep.rollout.replay_writer import store_for
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper, masks_in
from lockstep.state.streams import RandomStreams


class VectorStepper(Stepper):
    """Steps all environments of a vector together.

    Observations are stored and acted on as the policy's connectors record them (frame stacks, previous actions,
    resized images), by a copy of the connectors of its own. A collect that fails leaves no row behind (in a
    `ReplayBuffer`, which gets pieces of 128 vector steps: no row of the piece).
    """

    env: VectorBoundary
    agents_of_modules: Mapping[str, list[Any]] = MappingProxyType({})

    def __init__(
        self, policy: ActingLike, env: VectorBoundary, streams: RandomStreams, place: tuple[int, int] | None = None
    ) -> None:
        part = sole_part(policy)
        super().__init__(policy, env, streams, place)
        space = self.env.observation_space
        recorded: ObsPipeline | None = getattr(part, "recorded", None)
        self.recorded = None if recorded is None or recorded.is_identity else recorded.copy()
        """what observations go through before they are stored and acted on; None: nothing"""
        self._observation_space: Any = space if self.recorded is None else self.recorded.observation_space
        part.check_spaces(self.env.observation_space, self.env.action_space)
        self.memory = Memory(part, self.num_envs) if getattr(part, "is_stateful", False) else None
        self.exploring: Exploring | None = None
        exploration = getattr(part, "exploration", None)
        if exploration is not None and exploration.initial_state(self.num_envs):
            self.exploring = Exploring(exploration, self.num_envs, self._generator)
        self._obs: Any = None
        self.store: RolloutStore | None = None
        """What steps are written into: the buffer itself, or a `ReplayWriter` in front of a `ReplayBuffer`."""
        self.recorder: EpisodeRecorder | None = None
        """records whole episodes, where a callback reads them"""

    @property
    def observation_space(self) -> Any:
        """Space of the observations as they are stored."""
        return self._observation_space

    def set_events(self, events: EnvironmentEvents | None) -> None:
        super().set_events(events)
        self.recorder = None
        if events is not None and events.needs_episodes:
            self.recorder = EpisodeRecorder(events, self.env)

    def running_episodes(self) -> Sequence[Episode]:
        return [] if self.recorder is None else self.recorder.running()

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored; a `ReplayBuffer` has one sub-buffer for each environment."""
        buffer: RolloutStore | ReplayBuffer | None = None if self.store is None else self.store.buffer
        return buffer

    def set_buffer(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> None:
        is_other = buffer is not self.buffer
        self.store = self._store_for(buffer, raise_on_nan)
        if is_other and self.episodes.is_begun and self.store is not None:
            self.store.begin_in_mid_episode(self.episodes.lengths == 0)

    def _store_for(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> RolloutStore | None:
        return store_for(
            sole_part(self.policy),
            buffer,
            self.num_envs,
            self.observation_space,
            self.env.action_space,
            num_steps=CHUNK,
            raise_on_nan=raise_on_nan,
        )

    def empty_buffer(self, keep_statistics: bool) -> None:
        if self.store is not None:
            is_running = (self.episodes.lengths > 0) & self.episodes.is_begun
            self.store.reset_buffer(is_running, keep_statistics)

    # -- resets ---

    def reset(self) -> None:
        """Begin new episodes everywhere. Those under way are left here: nothing is estimated across this boundary."""
        self.episodes.is_begun = False
        obs = self.env.reset(self.streams.seeds(f"env_reset/{self.num_resets}", self.rows.stop)[self.rows])
        self.num_resets += 1
        self.episodes.left_open = False
        self.episodes.is_begun = True
        if self.recorder is not None:
            self.recorder.begin(obs)
        if self.recorded is not None:
            self.recorded.reset()
            obs = self.recorded(obs)
        self._obs = obs
        self.episodes.forget()
        for remembers in (self.memory, self.exploring):
            if remembers is not None:
                remembers.forget()
        if self.store is not None:
            if self.store.size:
                self.store.cut()
            else:
                self.store.restart()

    # -- collecting ---

    def begin_collect(self, mode: StepMode) -> None:
        """Look up what acts (a policy that is restored may put another part in its place); prepare the buffer."""
        super().begin_collect(mode)
        self._part: ActingPart = sole_part(self.policy)
        self._first_row = self.num_rows
        if self.memory is not None:
            self.memory.begin_collect(self.store)
        if self.store is not None:
            self.store.begin_collect(self.episodes.lengths)

    def end_collect(self) -> dict[str, Any]:
        """Look for values that are not finite, and note where a recurrent policy forgot."""
        if self.store is not None and self.mode.raise_on_nan and self.store.size > self._first_row:
            check_finite(self.store, self._first_row)
        if self.memory is not None:
            self.memory.end_collect(self.store)
        return {}

    def abandon_collect(self) -> None:
        """Drop the rows of a collect that failed."""
        self.drop_after(self._first_row)

    @property
    def num_rows(self) -> int:
        """Vector steps in the store."""
        return 0 if self.store is None else self.store.size

    def drop_after(self, first: int) -> None:
        """Drop the vector steps behind the first `first` ones."""
        if self.store is not None:
            self.store.drop_after(first)

    def _act_and_step(self) -> tuple[Callable[[Any, Any], np.ndarray], Callable[[Any], StepResult]]:
        """Return the policy's `act` and the environments' `step`, with what remembers around them."""
        store = self.store
        act: Callable[[Any, Any], np.ndarray] = self._part.act
        step: Callable[[Any], StepResult] = self.env.step
        if self.recorder is not None:
            step = self.recorder.watched(step, self.episodes.counting)
        if self.memory is not None:
            act, step = self.memory.act, self.memory.watched(step)
        elif store is not None and store.takes_logp:
            if getattr(self.policy, "learns_meanwhile", False):
                act = self._recording_act(self._part, store)
        return (act, step) if self.exploring is None else (self.exploring.around(act), self.exploring.watched(step))

    def _recording_act(self, part: ActingPart, store: RolloutStore) -> Callable[[Any, Any], np.ndarray]:
        """Return an `act` that writes into the store how likely each action was, from the next row on.

        Only while weights may change under the collector: otherwise the learner computes it, all at once.
        """
        rows = itertools.count(store.size)
        store.record_logp()

        def act(obs: Any, noise: np.ndarray | None) -> np.ndarray:
            actions, logp = part.act_with_logp(obs, noise)
            store.write_logp(next(rows), logp)
            return actions

        return act

    def run(self, most: int) -> int:
        """Act, step and store: the hot loop."""
        policy, store, counting, num_envs = self.policy, self.store, self.episodes.counting, self.num_envs
        random, on_step_hook = self.mode.random, self.mode.on_step_hook
        num_vector_steps = min(CHUNK, -(-most // num_envs))
        to_env, clock, (act, step_env) = self._part.to_env, time.perf_counter, self._act_and_step()
        returns, lengths, obs = self.episodes.returns, self.episodes.lengths, self._obs
        noise = self._draw_noise(num_vector_steps) if self.mode.explores and not random else None
        t = 0
        if store is not None:
            t = store.size
            store.ensure_room(t + num_vector_steps)
            store.weights_seq_no = policy.weights_seq_no
        env_time = act_time = 0.0
        steps = 0
        for k in range(num_vector_steps):
            if store is not None:  # before the step: environments may write the next observation into this memory
                store.write_obs(t, obs)
            began = clock()
            actions = self._random_actions(obs, num_envs) if random else act(obs, None if noise is None else noise[k])
            acted = clock()
            sent = to_env(actions)
            step = step_env(sent)
            env_time += clock() - acted
            act_time += acted - began
            valid = step.valid
            if store is not None:
                store.write_step(t, actions, step.rewards, step.terminateds, step.truncateds)
                if valid is not None or counting is not None:
                    store.mark_valid(t, valid, counting)
            if valid is None:
                returns += step.rewards
                lengths += 1
            else:
                returns += np.where(valid, step.rewards, 0.0)
                lengths += valid
            real = counting if valid is None else valid if counting is None else counting & valid
            steps += num_envs if real is None else int(np.count_nonzero(real))
            obs = step.obs
            if self.recorded is not None or step.any_done:
                obs = self._after_step(step, sent, t, k)
            if on_step_hook is not None:
                on_step_hook(step.copy())  # the next step writes into the arrays of this one
            t += 1
            if counting is not None and step.any_done and not counting.any():
                break
        self.episodes.vector_steps += k + 1
        self.env_time += env_time
        self.act_time += act_time
        self._obs = obs if store is None else store.end(t, obs)  # a `ReplayWriter` adds the steps to its buffer here
        return steps

    def _after_step(self, step: StepResult, sent: Any, t: int, k: int) -> Any:
        """End episodes: keep the true final observation, record returns and lengths. Return what is acted on.

        Args:
            step: the result of vector step `k` of this run.
            sent: the actions that the environments took.
            t: the step's row in the store.
            k: the step's number in this run.
        """
        obs, final = (step.obs, step.final_obs) if self.recorded is None else self.recorded.follow(step, sent)
        if step.lost is not None:  # started again: the unfinished episodes count nowhere, and end before row `t`
            self.episodes.returns[step.lost] = 0.0
            self.episodes.lengths[step.lost] = 0
            if self.store is not None:
                self.store.abandon_episodes(t, step.lost)
        if final is None:
            return obs
        indices, final_obs = final
        if self.store is not None:
            self.store.final_index.append(t * self.num_envs + np.asarray(indices, np.int64))
            self.store.final_obs.append(map_tree(np.copy, final_obs))
        for b in indices:
            self.episodes.end(int(b), k)
        return obs

    def _draw_noise(self, num_vector_steps: int) -> np.ndarray:
        """Draw `[num_vector_steps, num_envs, ...]`, for all environments, and return what belongs to these."""
        shape, rng = (num_vector_steps, self.num_envs_in_all), self.streams.numpy("exploration")
        options = (self.mode.epsilon,) if self.mode.epsilon else ()
        return self._part.draw_noise(rng, shape, *options)[:, self.rows]

    def _generator(self, row: int) -> np.random.Generator:
        """Return the random numbers of one environment alone, the same in whichever collector it is."""
        return self.streams.numpy(f"exploration/{self.rows.start + row}")

    def _random_actions(self, obs: Any, number: int) -> np.ndarray:
        """Draw actions for `obs` of `number` environments; for all environments, and return what belongs to these."""
        if self.memory is not None:
            self.memory.act(obs, None)  # it remembers what it sees, whoever acts
        space = getattr(self._part, "random_space", self.env.action_space)
        rng = self.streams.numpy("random_actions")
        rows = slice(self.rows.start, self.rows.start + number)
        masks = masks_in(obs, self.observation_space, space)
        if masks is not None and len(masks) < self.num_envs_in_all:
            everywhere = np.ones((self.num_envs_in_all, masks.shape[1]), bool)
            everywhere[rows] = masks
            masks = everywhere
        return self._part.from_env(random_actions(space, rng, self.num_envs_in_all, masks))[rows]

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        is_begun = self.episodes.is_begun
        return {
            **self.episodes.get_state(),
            "env": self.env.get_state() if is_begun else None,
            "obs": map_tree(np.copy, self._obs) if is_begun else None,
            "recorded": None if self.recorded is None else self.recorded.get_state(),
            "buffer": None if self.store is None else self.store.get_state(),
            "memory": None if self.memory is None else self.memory.get_state(),
            **({} if self.recorder is None else {"episodes": self.recorder.get_state()}),
            **({} if self.exploring is None else {"exploring": self.exploring.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.episodes.is_begun = False  # without a state the next collect begins new episodes
        self.episodes_cut = 0
        obs = None if state["env"] is None else self.env.set_state(state["env"])  # first: it may refuse
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.episodes.left_open = bool(state["left_open"])
        if self.store is not None and state["buffer"] is not None:
            self.store.set_state(state["buffer"])
        if obs is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        if self.recorded is not None:
            self.recorded.set_state(state["recorded"])
            obs = state["obs"]
        self._obs = map_tree(np.copy, obs)
        self.episodes.is_begun = True
        self.episodes.returns[:] = state["returns"]
        self.episodes.lengths[:] = state["lengths"]
        if self.memory is not None:
            self.memory.set_state(state["memory"])
        if self.recorder is not None:
            self.recorder.set_state(state.get("episodes"))
        if self.exploring is not None and "exploring" in state:
            self.exploring.set_state(state["exploring"])
