"""`Collector`: lets a policy act in environments and writes what happens into time-major columns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.data.actions import random_actions
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult, VectorBoundary, make_vector
from lockstep.modules import Exploration
from lockstep.options.checks import check_functions, check_whole
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import CHUNK, BaseCollector, masks_in
from lockstep.rollout.callbacks import EnvironmentCallback, Episode, EpisodeRecorder
from lockstep.rollout.errors import check_finite
from lockstep.rollout.protocols import ActingLike, ActingPart, sole_part
from lockstep.rollout.replay_writer import ReplayWriter, begin_in_mid_episode, empty, store_for
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats, CollectTotals


class Collector(BaseCollector):
    """Steps all environments of a vector together.

    `env`: a boundary, a gymnasium environment or vector, an EnvPool pool, or an id. With a `buffer` every step is
    stored; without one (evaluation) only returns and lengths are kept. It explores within a training step, and
    everywhere where `exploration_noise` is set, or `epsilon`: with it a policy of action values takes any action with
    that probability, whatever it does in training. `on_step_hook(step_result)` (with arrays of its own) and
    `on_episode_done_hook(env_index, episode_return, length)` observe. What the policy's connectors are to record (frame
    stacks, previous actions, resized images) is stored, from a copy of them of its own. `seed`: for its own random
    streams (episodes, exploration, random actions); without one each collector plays other episodes, and a trainer
    gives it the streams of the policy's seed. `place`: `(first, number of all)` where several collectors have a part of
    the environments each. A collect that fails leaves no row behind (in a `ReplayBuffer`, which gets pieces of 128
    vector steps: no row of the piece); the next one begins new episodes.
    """

    def __init__(
        self,
        policy: ActingLike,
        env: Any,
        buffer: RolloutStore | ReplayBuffer | None = None,
        exploration_noise: bool = False,
        on_step_hook: Callable[[StepResult], None] | None = None,
        on_episode_done_hook: Callable[[int, float, int], None] | None = None,
        raise_on_nan_in_buffer: bool = True,
        *,
        epsilon: float = 0.0,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        place: tuple[int, int] | None = None,
    ) -> None:
        part = sole_part(policy)
        check_functions(on_step_hook=on_step_hook)
        self.policy, self.on_step_hook = policy, on_step_hook
        self.env: VectorBoundary = env if isinstance(env, VectorBoundary) else make_vector(env)
        super().__init__(
            exploration_noise=exploration_noise,
            epsilon=epsilon,
            raise_on_nan_in_buffer=raise_on_nan_in_buffer,
            on_episode_done_hook=on_episode_done_hook,
            seed=seed,
            streams=streams,
        )
        space = self.env.observation_space
        recorded: ObsPipeline | None = getattr(part, "recorded", None)
        self.recorded = None if recorded is None or recorded.is_identity else recorded.copy()
        """what observations go through before they are stored and acted on; None: nothing"""
        self.observation_space: Any = space if self.recorded is None else self.recorded.observation_space
        part.check_spaces(self.env.observation_space, self.env.action_space)
        self.memory = Memory(part, self.num_envs) if getattr(part, "is_stateful", False) else None
        first, self.num_envs_in_all = place or (0, self.num_envs)
        self.rows = slice(first, first + self.num_envs)
        """which of all environments these are; each has the random numbers that it has where one collector has all"""
        self.exploring: Exploring | None = None
        exploration = getattr(part, "exploration", None)
        if exploration is not None and exploration.initial_state(self.num_envs):
            self.exploring = Exploring(exploration, self.num_envs, self._generator)
        self._obs: Any = None
        self.store: RolloutStore | None = None
        self.buffer = buffer
        self.step_of_end = 0
        """Row of the buffer in which the newest episode ended; without a buffer, vector step of the run under way."""
        self.recorder: EpisodeRecorder | None = None
        """records whole episodes, where a callback reads them"""

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback], runner: Any = None) -> None:
        super().set_callbacks(callbacks, runner)
        needs = self.events is not None and self.events.needs_episodes
        self.recorder = EpisodeRecorder(self.events, self.env) if self.events is not None and needs else None

    def _running_episodes(self) -> Sequence[Episode]:
        return [] if self.recorder is None else self.recorder.running()

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored; one for each environment in a `ReplayBuffer`. May be replaced between collects: the
        episodes under way then go on in the new one, without what the old one has of them.
        """
        return self.store.buffer if isinstance(self.store, ReplayWriter) else self.store

    @buffer.setter
    def buffer(self, buffer: RolloutStore | ReplayBuffer | None) -> None:
        is_other = buffer is not self.buffer
        self.store = self._store_for(buffer)
        if is_other and self._is_begun:
            begin_in_mid_episode(self._lengths == 0, self.store)

    def _store_for(self, buffer: RolloutStore | ReplayBuffer | None) -> RolloutStore | None:
        return store_for(
            sole_part(self.policy),
            buffer,
            self.num_envs,
            self.observation_space,
            self.env.action_space,
            num_steps=CHUNK,
            raise_on_nan=self.raise_on_nan_in_buffer,
        )

    # -- resets ---

    def reset_env(self) -> None:
        """Begin new episodes everywhere. Those under way are left here: nothing is estimated across this boundary."""
        self._is_begun = False
        obs = self.env.reset(self.streams.seeds(f"env_reset/{self.num_resets}", self.rows.stop)[self.rows])
        self.num_resets += 1
        self._left_open, self._is_begun = False, True
        if self.recorder is not None:
            self.recorder.begin(obs)
        if self.recorded is not None:
            self.recorded.reset()
            obs = self.recorded(obs)
        self._obs = obs
        self._returns[:] = 0.0
        self._lengths[:] = 0
        for remembers in (self.memory, self.exploring):
            if remembers is not None:
                remembers.forget()
        if self.store is not None:
            if self.store.size:
                self.store.cut()
            else:
                self.store.restart()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer."""
        empty(self.store, (self._lengths > 0) & self._is_begun, keep_statistics)

    # -- collecting ---

    def _begin_collect(self) -> None:
        """Look up what acts (a policy that is restored may put another part in its place); prepare the buffer."""
        self._part: ActingPart = sole_part(self.policy)
        self._first_row = 0 if self.store is None else self.store.size
        if self.memory is not None:
            self.memory.begin_collect(self.store)
        if self.store is not None:
            self.store.begin_collect(self._lengths)

    def _end_collect(self) -> None:
        """Look for values that are not finite, and note where a recurrent policy forgot."""
        if self.store is not None and self.raise_on_nan_in_buffer and self.store.size > self._first_row:
            check_finite(self.store, self._first_row)
        if self.memory is not None:
            self.memory.end_collect(self.store)

    def _abandon_collect(self) -> None:
        """Drop the rows of a collect that failed."""
        if self.store is not None:
            self.store.drop_after(self._first_row)

    def _act_and_step(self) -> tuple[Callable[[Any, Any], np.ndarray], Callable[[Any], StepResult]]:
        """Return the policy's `act` and the environments' `step`, with what remembers around them."""
        store = self.store
        act: Callable[[Any, Any], np.ndarray] = self._part.act
        step: Callable[[Any], StepResult] = self.env.step
        if self.recorder is not None:
            step = self.recorder.watched(step, self._counting)
        if self.memory is not None:
            act, step = self.memory.act, self.memory.watched(step)
        elif store is not None and not isinstance(store, ReplayWriter):
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

    def _run(self, most: int, random: bool) -> int:
        """Act, step and store: the hot loop."""
        policy, store, counting, num_envs = self.policy, self.store, self._counting, self.num_envs
        num_vector_steps = min(CHUNK, -(-most // num_envs))
        to_env, clock, (act, env_step) = self._part.to_env, time.perf_counter, self._act_and_step()
        returns, lengths, obs = self._returns, self._lengths, self._obs
        noise = self._draw_noise(num_vector_steps) if self.explores and not random else None
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
            step = env_step(sent)
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
                obs = self._after_step(step, sent, t)
            if self.on_step_hook is not None:
                self.on_step_hook(step.copy())  # the next step writes into the arrays of this one
            t += 1
            if counting is not None and step.any_done and not counting.any():
                break
        self._env_time += env_time
        self._act_time += act_time
        self._obs = obs if store is None else store.end(t, obs)
        return steps

    def _after_step(self, step: StepResult, sent: Any, t: int) -> Any:
        """End episodes: keep the true final observation, take down returns and lengths. Returns what is acted on."""
        obs, final = (step.obs, step.final_obs) if self.recorded is None else self.recorded.follow(step, sent)
        if step.lost is not None:  # started again: the unfinished episodes count nowhere, and end before row `t`
            self._returns[step.lost], self._lengths[step.lost] = 0.0, 0
            if self.store is not None:
                self.store.lose(t, step.lost)
        if final is None:
            return obs
        indices, final_obs = final
        if self.store is not None:
            self.store.final_index.append(t * self.num_envs + np.asarray(indices, np.int64))
            self.store.final_obs.append(map_tree(np.copy, final_obs))
        self.step_of_end = t
        for b in indices:
            self._end_episode(int(b))
        return obs

    def _draw_noise(self, num_vector_steps: int) -> np.ndarray:
        """Draw `[num_vector_steps, num_envs, ...]`, for all environments, and return what belongs to these."""
        shape, rng = (num_vector_steps, self.num_envs_in_all), self.streams.numpy("exploration")
        options = (self.epsilon,) if self.epsilon else ()
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
        """Return environments (None where they cannot tell their state), episodes, random streams and counters.

        `ValueError` while there is data to be learned from.
        """
        return {
            **super().get_state(),
            "env": self.env.get_state() if self._is_begun else None,
            "obs": map_tree(np.copy, self._obs) if self._is_begun else None,
            "recorded": None if self.recorded is None else self.recorded.get_state(),
            "buffer": None if self.store is None else self.store.get_state(),
            "memory": None if self.memory is None else self.memory.get_state(),
            **({} if self.recorder is None else {"episodes": self.recorder.get_state()}),
            **({} if self.exploring is None else {"exploring": self.exploring.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes (a boundary). `ValueError` for a
        state of other environments: what was collected stays, episodes under way end."""
        self._is_begun, self.episodes_cut = False, 0  # without a state the next collect begins new episodes
        obs = None if state["env"] is None else self.env.set_state(state["env"])  # first: it may refuse
        super().set_state(state)
        if self.store is not None and state["buffer"] is not None:
            self.store.set_state(state["buffer"])
        if obs is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        if self.recorded is not None:
            self.recorded.set_state(state["recorded"])
            obs = state["obs"]
        self._obs, self._is_begun = map_tree(np.copy, obs), True
        self._returns[:] = state["returns"]
        self._lengths[:] = state["lengths"]
        if self.memory is not None:
            self.memory.set_state(state["memory"])
        if self.recorder is not None:
            self.recorder.set_state(state.get("episodes"))
        if self.exploring is not None and "exploring" in state:
            self.exploring.set_state(state["exploring"])


class Memory:
    """The recurrent state of `num_envs` environments; each forgets where its episode begins.

    It takes the place of the policy's `act` and stands around the environments' `step`. Which rows began an episode is
    noted for the rollout store, so that learning forgets exactly where acting did.
    """

    def __init__(self, part: ActingPart, num_envs: int) -> None:
        self.part, self.num_envs = part, num_envs
        self.state = part.get_initial_state(num_envs)
        self._store: RolloutStore | None = None
        """what is told the state before each row"""
        self._begins = np.ones(num_envs, bool)
        self._starts: list[np.ndarray] = []

    def forget(self) -> None:
        """Begin new episodes in all environments."""
        self._begins[:] = True

    def begin_collect(self, store: RolloutStore | None) -> None:
        """Tell an empty store the state before its first row; called before a collect."""
        self._starts = []
        self._store = store if store is not None and store.keeps_states else None
        if store is not None and store.size == 0:
            self._forget_where_episodes_begin()
            store.state_in = {name: leaf.copy() for name, leaf in self.state.items()}

    def end_collect(self, store: RolloutStore | None) -> None:
        """Tell the store where episodes began; called after a collect that went well."""
        if store is not None and self._starts:
            store.starts.append(np.stack(self._starts))
        self._starts = []

    def act(self, obs: Any, noise: np.ndarray | None) -> np.ndarray:
        """Act as the policy does, and carry the state of each environment on."""
        self._forget_where_episodes_begin()
        self._starts.append(self._begins.copy())
        if self._store is not None:  # what acts gives new arrays each time
            self._store.states.append(dict(self.state))
        actions, self.state = self.part.act_with_state(obs, noise, self.state)
        return actions

    def watched(self, env_step: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return `env_step`, watched for the ends of episodes."""

        def step(actions: Any) -> StepResult:
            result = env_step(actions)
            np.logical_or(result.terminateds, result.truncateds, out=self._begins)
            if result.valid is not None:  # a row that only reset its environment: the episode begins after it
                self._begins |= ~result.valid
            return result

        return step

    def _forget_where_episodes_begin(self) -> None:
        rows = self._begins
        if rows.any():
            for name, initial in self.part.get_initial_state(self.num_envs).items():
                self.state[name][rows] = initial[rows]

    def get_state(self) -> dict[str, Any]:
        """Return the recurrent state, and which environments are about to forget it."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]


class Exploring:
    """What an exploration remembers of `num_envs` environments; each begins anew with an episode.

    It stands around a policy's `act`, and around the environments' `step`.
    """

    def __init__(
        self, exploration: Exploration, num_envs: int, generators: Callable[[int], np.random.Generator]
    ) -> None:
        self.exploration, self.generators = exploration, generators
        self.state = exploration.initial_state(num_envs)
        self._begins = np.ones(num_envs, bool)

    def forget(self) -> None:
        """Begin new episodes in all environments."""
        self._begins[:] = True

    def around(self, act: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], np.ndarray]:
        """Return `act`, which gets what the exploration makes of the random numbers of a step."""

        def explore(obs: Any, noise: np.ndarray | None) -> np.ndarray:
            if noise is None:
                return act(obs, None)
            noise = self.exploration.advance(noise, self.state, self._begins, self.generators)
            self._begins[:] = False
            return act(obs, noise)

        return explore

    def watched(self, env_step: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return `env_step`, watched for the ends of episodes."""

        def step(actions: Any) -> StepResult:
            result = env_step(actions)
            self._begins |= result.terminateds | result.truncateds
            if result.valid is not None:
                self._begins |= ~result.valid
            return result

        return step

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered, and which environments are about to begin an episode."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]


class WholeEpisodeCollector(Collector):
    """A `Collector` whose `collect(n_step=...)` gives whole episodes only, with at least `n_step` steps in all.

    Each environment plays one episode from its start to its end, then all begin again, until there are enough steps.
    Environments that are done wait for the others; what they do meanwhile is neither counted nor learned from.
    """

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
    ) -> CollectStats:
        """Collect as `Collector` does, but `n_step` is reached or passed by the end of an episode, never within one.

        `ValueError` for `reset_before_collect=False` with `n_step`: each collect begins new episodes.
        """
        if n_step is None or n_episode is not None:
            return super().collect(n_step, n_episode, random=random, reset_before_collect=reset_before_collect)
        if reset_before_collect is False:
            raise ValueError("reset_before_collect=False: whole episodes begin with the collect; leave it out")
        amount = check_whole("n_step", n_step, 1)
        first = 0 if self.store is None else self.store.size
        totals, num_steps = CollectTotals(), 0
        try:
            while num_steps < amount:
                stats = super().collect(n_episode=self.num_envs, random=random)
                totals.add(stats)
                num_steps += stats.n_collected_steps
        except BaseException:
            if self.store is not None:
                self.store.drop_after(first)
            raise
        return totals.stats()
