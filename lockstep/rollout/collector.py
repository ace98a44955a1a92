"""`Collector`: lets a policy act in environments and writes what happens into time-major columns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from lockstep.connectors import FrameStack
from lockstep.data.actions import ACTION_MASK, MASKABLE, allowed_actions, carries_mask
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult, VectorBoundary, make_vector
from lockstep.replay import ReplayBuffer
from lockstep.rollout.checks import (
    check_collector,
    check_ends,
    check_finite,
    checked_amount,
    checked_epsilon,
    chosen_streams,
    no_copies_of_collectors,
)
from lockstep.rollout.memory import Memory, RememberingPolicy
from lockstep.rollout.random_actions import random_actions
from lockstep.rollout.replay_writer import ReplayWriter, begin_in_mid_episode, buffer_of, store_for
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats, returns_and_lens

NOISE_CHUNK = 128


class ActingPolicy(Protocol):
    """What a collector needs of a policy. One with `is_stateful=True` also has what `Memory` needs, used for `act`."""

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights that act."""
        ...

    @property
    def is_exploring(self) -> bool:
        """Is the policy within a training step, where it draws its actions?"""
        ...

    def act(self, obs: Any, noise: np.ndarray | None) -> np.ndarray:
        """Actions as learned from, for raw observations `[B, ...]`; `noise=None` takes the most likely ones."""
        ...

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Random numbers for `act`, for many steps at once."""
        ...

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them."""
        ...

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse, for actions drawn from the action space."""
        ...

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Raises `ValueError` where the environment's spaces do not fit."""
        ...


class RecordingPolicy(Protocol):
    """What a collector needs of a policy that learns while it acts (`learns_meanwhile`)."""

    def act_with_logp(self, obs: Any, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions as `act` gives them, and the log-probability of each, `[B]`."""
        ...


class Collector:
    """Steps all environments of a vector together.

    `env`: a boundary, a gymnasium environment or vector, an EnvPool pool, or an id. With a `buffer` every step is
    stored; without one (evaluation) only returns and lengths are kept. It explores within a training step, and
    everywhere where `exploration_noise` is set, or `epsilon`: with it a policy of action values takes any action with
    that probability, whatever it does in training. `on_step_hook(step_result)` and
    `on_episode_done_hook(env_index, episode_return, length)` observe. It stacks as many frames as the policy takes
    (`frame_stack=None`). `seed`: of its own random streams (episodes, exploration, random actions); without one each
    collector plays other episodes, and a trainer gives it the streams of the policy's seed. `place`: `(first, number of
    all)` where several collectors have a part of the environments each. A collect that fails leaves no row behind (of a
    `ReplayBuffer`, which gets pieces of 128 vector steps: no row of the piece); the next one begins new episodes.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        env: Any,
        buffer: RolloutStore | ReplayBuffer | None = None,
        exploration_noise: bool = False,
        on_step_hook: Callable[[StepResult], None] | None = None,
        on_episode_done_hook: Callable[[int, float, int], None] | None = None,
        raise_on_nan_in_buffer: bool = True,
        *,
        frame_stack: int | None = None,
        epsilon: float = 0.0,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        place: tuple[int, int] | None = None,
    ) -> None:
        flags = {"exploration_noise": exploration_noise, "raise_on_nan_in_buffer": raise_on_nan_in_buffer}
        check_collector(policy, flags, {"on_step_hook": on_step_hook, "on_episode_done_hook": on_episode_done_hook})
        self.policy = policy
        self.env: VectorBoundary = env if isinstance(env, VectorBoundary) else make_vector(env)
        space = self.env.observation_space
        frames = getattr(policy, "frame_stack", 1) if frame_stack is None else frame_stack
        self.frame_stack = FrameStack(frames, space) if frames != 1 else None
        self.observation_space = space if self.frame_stack is None else self.frame_stack.observation_space
        policy.check_spaces(self.env.observation_space, self.env.action_space)
        self.raise_on_nan_in_buffer = raise_on_nan_in_buffer
        remembers = getattr(policy, "is_stateful", False)
        self.memory = Memory(cast(RememberingPolicy, policy), self.num_envs) if remembers else None
        self.exploration_noise, self.epsilon = exploration_noise, checked_epsilon(epsilon)
        self.on_step_hook = on_step_hook
        self.on_episode_done_hook = on_episode_done_hook
        self.streams, self.is_seeded = chosen_streams(seed, streams), seed is not None or streams is not None
        first, self.num_envs_in_all = place or (0, self.num_envs)
        self.rows = slice(first, first + self.num_envs)
        """which of all environments these are; each has the random numbers that it has where one collector has all"""
        self.num_resets = 0
        self.episodes_cut = 0  # running ones that the last `set_state` could not continue
        self._obs: Any = None
        self._left_open = False  # a collect by episodes has left others unfinished, whose beginnings are not stored
        self.store: RolloutStore | None = None
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._ended: list[tuple[float, int]] = []
        self._counting: np.ndarray | None = None
        self.buffer = buffer
        self.reset_stat()

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self.env.num_envs

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored; one for each environment in a `ReplayBuffer`. May be replaced between collects: the
        episodes under way then go on in the new one, without what the old one has of them.
        """
        return buffer_of(self.store)

    @buffer.setter
    def buffer(self, buffer: RolloutStore | ReplayBuffer | None) -> None:
        is_other = buffer is not self.buffer
        self.store = store_for(
            self.policy,
            buffer,
            self.num_envs,
            self.observation_space,
            self.env.action_space,
            num_steps=NOISE_CHUNK,
            remembers=self.memory is not None,
            raise_on_nan=self.raise_on_nan_in_buffer,
        )
        if is_other and self._obs is not None:
            begin_in_mid_episode(buffer, self._lengths == 0)

    def reseed(self, streams: RandomStreams) -> None:
        """Take these random streams from now on, beginning with their first reset."""
        self.streams, self.num_resets, self.is_seeded = streams, 0, True

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """New episodes everywhere, seeded from the collector's own streams; empties buffer and statistics if asked."""
        self.env.check_open()
        if reset_buffer:
            self.reset_buffer()
        if reset_stats:
            self.reset_stat()
        self.reset_env()

    def reset_env(self) -> None:
        """New episodes everywhere. Those under way are left here: nothing is estimated across this boundary."""
        self._obs = None
        obs = self.env.reset(self.streams.seeds(f"env_reset/{self.num_resets}", self.rows.stop)[self.rows])
        self.num_resets += 1
        self._left_open = False
        self._obs = obs if self.frame_stack is None else self.frame_stack.reset(obs)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        if self.memory is not None:
            self.memory.forget()
        if self.store is not None:
            if self.store.size:
                self.store.cut()
            else:
                self.store.restart()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empties the buffer."""
        if self.store is not None:
            self.store.clear()
        if isinstance(self.store, ReplayWriter):
            self.store.buffer.reset(keep_statistics)
            if self._obs is not None and not keep_statistics:
                self.store.buffer.cut(np.flatnonzero(self._lengths), goes_on=True)
        if not keep_statistics:
            self._ended.clear()

    def reset_stat(self) -> None:
        """Counters to zero."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0

    def close(self) -> None:
        """Closes the environments (a second call does nothing). Collects and resets raise `RuntimeError` then."""
        self.env.close()

    # -- collecting ---

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
    ) -> CollectStats:
        """Collects `n_step` steps (rounded up to whole vector steps, with a warning) or `n_episode` whole episodes.

        Episodes are counted without bias: the first `n_episode` that *start* count, however long they last; so this
        form begins new episodes, and so does the collect after it, because the other environments are in the middle of
        episodes that were not stored (unless `reset_before_collect=False`). `random=True` draws actions from the space.
        Rows that only reset or restart an environment are no steps: `n_step` then takes more vector steps, and may give
        up to `num_envs - 1` transitions more.

        Raises `ValueError` unless exactly one of the two is given, `MalformedBufferError` for NaN in a new row,
        `EnvironmentStepError` where an environment raises.
        """
        amount = self._checked_amount(n_step, n_episode)
        begins = reset_before_collect
        if begins is None:
            begins = n_episode is not None or self._left_open
        if begins or self._obs is None:
            self.reset(reset_buffer=False, reset_stats=False)
        started = time.perf_counter()
        self._ended.clear()
        self._env_time = self._act_time = 0.0
        first, restarts = self._begin_collect(), self.env.num_restarts
        try:
            steps = self._collect_amount(amount, n_episode is None, random)
            if self.store is not None and self.raise_on_nan_in_buffer and self.store.size > first:
                check_finite(self.store, first)
        except BaseException:
            self._obs = None
            if self.store is not None:
                self.store.drop_after(first)
            raise
        self._left_open = n_episode is not None
        if self.memory is not None:
            self.memory.end_collect(self.store)
        seconds = time.perf_counter() - started
        self.collect_step += steps
        self.collect_episode += len(self._ended)
        self.collect_time += seconds
        return CollectStats(
            len(self._ended),
            steps,
            seconds,
            self._env_time,
            self._act_time,
            *returns_and_lens(self._ended),
            self.env.num_restarts - restarts,
        )

    def _begin_collect(self) -> int:
        """Rows that are in the buffer already; an empty one is told what came before its first row."""
        if self.memory is not None:
            self.memory.begin_collect(self.store)
        if self.store is None:
            return 0
        self.store.begin_collect(self._lengths)
        if isinstance(self.store, ReplayWriter):
            self.store.steps_before = 0
        return self.store.size

    def _act_and_step(self) -> tuple[Callable[[Any, Any], np.ndarray], Callable[[Any], StepResult]]:
        """The policy's `act` and the environments' `step`; of a recurrent policy, with its memory around them."""
        if self.memory is None:
            store = self.store
            meanwhile = getattr(self.policy, "learns_meanwhile", False)
            if meanwhile and isinstance(store, RolloutStore) and not isinstance(store, ReplayWriter):
                return self._recording_act(store), self.env.step
            return self.policy.act, self.env.step
        return self.memory.act, self.memory.watched(self.env.step)

    def _recording_act(self, store: RolloutStore) -> Callable[[Any, Any], np.ndarray]:
        """Return an `act` that writes into the store how likely each action was, from the next row on.

        Only while weights may change under the collector: otherwise the learner computes it, all at once.
        """
        policy, rows = cast(RecordingPolicy, self.policy), itertools.count(store.size)
        store.record_logp()

        def act(obs: Any, noise: np.ndarray | None) -> np.ndarray:
            actions, logp = policy.act_with_logp(obs, noise)
            store.write_logp(next(rows), logp)
            return actions

        return act

    def _checked_amount(self, n_step: int | None, n_episode: int | None) -> int:
        return checked_amount(n_step, n_episode, self.num_envs, depth=4)

    def _collect_amount(self, amount: int, by_steps: bool, random: bool) -> int:
        """Steps until so many steps are done, or episodes ended; returns the steps that count."""
        return self._collect_steps(amount, random) if by_steps else self._collect_episodes(amount, random)

    def _collect_steps(self, amount: int, random: bool) -> int:
        steps, self._counting = 0, None
        while steps < amount:  # rows that only reset an environment are no steps: as many vector steps as it takes
            num_vector_steps = -(-(amount - steps) // self.num_envs)
            steps += self._run(min(NOISE_CHUNK, num_vector_steps), random)
        return steps

    def _collect_episodes(self, n_episode: int, random: bool) -> int:
        self._counting = np.arange(self.num_envs) < n_episode
        self._to_start = max(0, n_episode - self.num_envs)
        steps = 0
        while self._counting.any():
            steps += self._run(NOISE_CHUNK, random)
            check_ends(int(self._lengths[self._counting].max(initial=0)), NOISE_CHUNK)
        self._counting = None
        return steps

    def _run(self, num_vector_steps: int, random: bool) -> int:
        """The hot loop: act, step, store."""
        policy, store, counting, num_envs = self.policy, self.store, self._counting, self.num_envs
        to_env, clock, (act, env_step) = policy.to_env, time.perf_counter, self._act_and_step()
        returns, lengths, obs = self._returns, self._lengths, self._obs
        noise = None
        if (self.exploration_noise or self.epsilon or policy.is_exploring) and not random:
            noise = self._draw_noise(num_vector_steps)
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
            step = env_step(to_env(actions))
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
            if self.frame_stack is not None or step.any_done:
                obs = self._after_step(step, t, counting)
            if self.on_step_hook is not None:
                self.on_step_hook(step)
            t += 1
            if counting is not None and step.any_done and not counting.any():
                break
        self._env_time += env_time
        self._act_time += act_time
        self._obs = obs if store is None else store.end(t, obs)
        return steps

    def _after_step(self, step: StepResult, t: int, counting: np.ndarray | None) -> Any:
        """Ends episodes: the true final observation is kept, returns and lengths are recorded."""
        obs, final = step.obs, step.final_obs
        if self.frame_stack is not None:
            obs, final = self.frame_stack.step(obs, final, step.valid)
        if step.lost is not None:
            self._lose(step.lost, t)
        if final is None:
            return obs
        indices, final_obs = final
        if self.store is not None:
            self.store.final_index.append(t * self.num_envs + np.asarray(indices, np.int64))
            self.store.final_obs.append(map_tree(np.copy, final_obs))
        for b in indices:
            episode = (float(self._returns[b]), int(self._lengths[b]))
            self._returns[b], self._lengths[b] = 0.0, 0
            if counting is not None:
                if not counting[b]:
                    continue
                if self._to_start > 0:
                    self._to_start -= 1
                else:
                    counting[b] = False
            self._ended.append(episode)
            if self.on_episode_done_hook is not None:
                self.on_episode_done_hook(int(b), *episode)
        return obs

    def _lose(self, envs: np.ndarray, t: int) -> None:
        """These environments were started again: their unfinished episodes count nowhere, and end before row `t`."""
        self._returns[envs], self._lengths[envs] = 0.0, 0
        if self.store is not None:
            self.store.lose(t, envs)

    def _draw_noise(self, num_vector_steps: int) -> np.ndarray:
        """`[num_vector_steps, num_envs, ...]`, drawn for all environments and cut to the own ones."""
        shape = num_vector_steps, self.num_envs_in_all
        rng = self.streams.numpy("exploration")
        if self.epsilon:
            return self.policy.draw_noise(rng, shape, self.epsilon)[:, self.rows]
        return self.policy.draw_noise(rng, shape)[:, self.rows]

    def _random_actions(self, obs: Any, number: int) -> np.ndarray:
        """For `obs` of so many environments, of the actions that a mask allows; drawn for all and cut to the own."""
        if self.memory is not None:
            self.memory.act(obs, None)  # it remembers what it sees, whoever acts
        space, rng = self.env.action_space, self.streams.numpy("random_actions")
        own = slice(self.rows.start, self.rows.start + number)
        if isinstance(space, MASKABLE) and carries_mask(self.env.observation_space):
            own_masks = obs[ACTION_MASK] != 0
            masks = np.ones((self.num_envs_in_all, own_masks.shape[1]), bool)
            masks[own] = own_masks
            return self.policy.from_env(allowed_actions(space, rng, masks)[own])
        return self.policy.from_env(random_actions(space, rng, self.num_envs_in_all)[own])

    # -- state ---

    __reduce__ = no_copies_of_collectors

    def get_state(self) -> dict[str, Any]:
        """Environments (None where they cannot tell their state), running episodes, random streams, counters."""
        if self.store is not None and self.store.size:
            raise ValueError(
                "a collector can be saved between an update and the next collect only, not with data in it"
            )
        return {
            "env": None if self._obs is None else self.env.get_state(),
            "obs": None if self._obs is None else map_tree(np.copy, self._obs),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "left_open": self._left_open,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
            "frame_stack": None if self.frame_stack is None else self.frame_stack.get_state(),
            "buffer": None if self.store is None else self.store.get_state(),
            "memory": None if self.memory is None else self.memory.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`; environments without a state begin new episodes (a boundary). `ValueError` for a
        state of other environments: what was collected stays, episodes under way end."""
        self._obs, self.episodes_cut = None, 0  # without a state the next collect begins new episodes
        obs = None if state["env"] is None else self.env.set_state(state["env"])  # first: it may refuse
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self._left_open = bool(state.get("left_open", False))  # earlier versions did not say
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if self.store is not None and state["buffer"] is not None:
            self.store.set_state(state["buffer"])
        if obs is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        if self.frame_stack is not None:
            self.frame_stack.set_state(state["frame_stack"])
            obs = state["obs"]
        self._obs = map_tree(np.copy, obs)
        self._returns[:] = state["returns"]
        self._lengths[:] = state["lengths"]
        if self.memory is not None:
            self.memory.set_state(state["memory"])
