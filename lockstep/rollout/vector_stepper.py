"""`VectorStepper`: steps all environments of a vector together, and stores the steps in time-major columns."""

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
from lockstep.data.trees import Tree, map_tree
from lockstep.envs import StepResult, VectorBoundary
from lockstep.replay import ReplayBuffer
from lockstep.rollout.callbacks import EnvironmentEvents, Episode, EpisodeRecorder
from lockstep.rollout.carried_state import ExplorationState, RecurrentStates
from lockstep.rollout.errors import check_finite
from lockstep.rollout.protocols import ActingLike, ActingPart, Guide, sole_part
from lockstep.rollout.replay_writer import store_for
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper, masks_in
from lockstep.state.optional import optional_state
from lockstep.state.streams import RandomStreams


class VectorStepper(Stepper):
    """Stepper that steps all environments of a vector together.

    Observations pass through a copy of the policy's recording connectors (frame stacks, previous actions, resized
    images) before they are stored and acted on.

    A collect that fails leaves no row behind. A `ReplayBuffer` is an exception: it gets pieces of 128 vector steps, and
    only the piece that fails is not stored.
    """

    env: VectorBoundary
    agents_of_modules: Mapping[str, list[Any]] = MappingProxyType({})

    def __init__(
        self, policy: ActingLike, env: VectorBoundary, streams: RandomStreams, place: tuple[int, int] | None = None
    ) -> None:
        part = sole_part(policy)
        super().__init__(policy, env, streams, place)

        raw_space = self.env.observation_space
        pipeline: ObsPipeline | None = getattr(part, "recorded", None)
        self.recorded: ObsPipeline | None = None
        """Connectors that observations pass through before they are stored and acted on; None without such connectors.
        """
        self._observation_space: Any = raw_space
        if pipeline is not None and not pipeline.is_identity:
            # A copy, because connectors with a memory have a state for each environment, which the environments of
            # training and of evaluation must not share.
            self.recorded = pipeline.copy()
            self._observation_space = self.recorded.observation_space
        part.check_spaces(raw_space, self.env.action_space)

        self.memory = RecurrentStates(part, self.num_envs) if getattr(part, "is_stateful", False) else None
        """Recurrent states of the environments; None for a policy without recurrent layers."""
        self.exploring: ExplorationState | None = None
        """State of correlated exploration noise; None if the noise of each step is independent."""
        exploration = getattr(part, "exploration", None)
        if exploration is not None and exploration.initial_state(self.num_envs):
            self.exploring = ExplorationState(exploration, self.num_envs, self._generator)

        self._obs: Any = None
        """Observations `[B, ...]` that the next step acts on; None before the first reset."""
        self.store: RolloutStore | None = None
        """Store that steps are written into: the buffer itself, or a `ReplayWriter` in front of a `ReplayBuffer`."""
        self.recorder: EpisodeRecorder | None = None
        """Recorder of whole episodes; None if no callback reads episodes."""
        self.guide: Guide | None = None
        """Policy that takes some of the actions; None if `policy` takes all of them."""

    @property
    def observation_space(self) -> Any:
        """Space of the stored observations."""
        return self._observation_space

    def set_events(self, events: EnvironmentEvents | None) -> None:
        super().set_events(events)
        self.recorder = None
        if events is not None and events.needs_episodes:
            self.recorder = EpisodeRecorder(events, self.env)

    def set_guide(self, guide: Guide) -> None:
        self.guide = guide

    def running_episodes(self) -> Sequence[Episode]:
        return [] if self.recorder is None else self.recorder.running()

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Buffer that steps are stored in; a `ReplayBuffer` has one sub-buffer for each environment."""
        buffer: RolloutStore | ReplayBuffer | None = None if self.store is None else self.store.buffer
        return buffer

    def set_buffer(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> None:
        is_other = buffer is not self.buffer
        self.store = self._store_for(buffer, raise_on_nan)
        # The first rows of running episodes are in the old buffer: returns and stacks of frames in the new one must not
        # reach back to them.
        if is_other and self.episodes.is_begun and self.store is not None:
            self.store.begin_in_mid_episode(self.episodes.lengths == 0)

    def _store_for(self, buffer: RolloutStore | ReplayBuffer | None, raise_on_nan: bool) -> RolloutStore | None:
        """Return the store that steps are written into for this buffer. Raises `ValueError` if it does not fit."""
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
        # An environment that raises in its reset must leave nothing that the next collect could continue.
        self.episodes.is_begun = False
        # Seeds are drawn for all environments up to this stepper's last one, so that an environment gets the same seed
        # in whichever stepper it is.
        seeds = self.streams.seeds(f"env_reset/{self.num_resets}", self.rows.stop)[self.rows]
        obs = self.env.reset(seeds)
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
        if self.memory is not None:
            self.memory.forget()
        if self.exploring is not None:
            self.exploring.forget()
        if self.store is not None:
            # Rows of an unfinished rollout stay, and their episodes are cut behind the last row. An empty store only
            # gets new episode ids.
            if self.store.size:
                self.store.cut()
            else:
                self.store.restart()

    # -- collecting ---

    def begin_collect(self, mode: StepMode) -> None:
        super().begin_collect(mode)
        # Looked up in each collect: a policy that is restored from a checkpoint may replace its part.
        self._part: ActingPart = sole_part(self.policy)
        self._first_row = self.num_rows
        if self.memory is not None:
            self.memory.begin_collect(self.store)
        if self.store is not None:
            self.store.begin_collect(self.episodes.lengths)

    def end_collect(self) -> dict[str, Any]:
        if self.store is not None and self.mode.raise_on_nan and self.store.size > self._first_row:
            check_finite(self.store, self._first_row)
        if self.memory is not None:
            self.memory.end_collect(self.store)
        return {}

    def take_log(self) -> dict[str, tuple[float, int]]:
        log: dict[str, tuple[float, int]] = self.env.take_log()
        return log

    def abandon_collect(self) -> None:
        self.drop_after(self._first_row)

    @property
    def num_rows(self) -> int:
        """Number of vector steps in the store."""
        return 0 if self.store is None else self.store.size

    def drop_after(self, first: int) -> None:
        """Remove all vector steps of the store but the first `first` ones."""
        if self.store is not None:
            self.store.drop_after(first)

    def _act_and_step(self) -> tuple[Callable[[Any, Any], np.ndarray], Callable[[Any], StepResult]]:
        """Return the functions that act and step in this run.

        Each optional feature (callbacks, recurrent states, correlated noise, log-probabilities) wraps a function, so
        that the loop of a run without it has no extra work.
        """
        act: Callable[[Any, Any], np.ndarray] = self._part.act
        step: Callable[[Any], StepResult] = self.env.step
        if self.recorder is not None:
            step = self.recorder.wrap_step(step, self.episodes.counting)
        if self.memory is not None:
            act = self.memory.act
            step = self.memory.wrap_step(step)
        elif self.store is not None and self.store.takes_logp and getattr(self.policy, "has_update_in_flight", False):
            # The store has a column for log-probabilities (logp), and another thread may change the weights.
            act = self._recording_act(self._part, self.store)
        if self.exploring is not None:
            act = self.exploring.wrap_act(act)
            step = self.exploring.wrap_step(step)
        if self.guide is not None:
            act = self._guided_act(act, self.guide)
        return act, step

    def _guided_act(self, act: Callable[[Any, Any], np.ndarray], guide: Guide) -> Callable[[Any, Any], np.ndarray]:
        """Return an `act` in which the guide takes each action with the probability of its present share.

        The policy acts for all rows nevertheless: its memory has to follow the observations. Like noise, the decisions
        are drawn for the environments of all steppers, and sliced.
        """
        rng = self.streams.numpy("guide")
        share = guide.share()
        if share == 0.0:
            return act

        def guided(obs: Tree, noise: np.ndarray | None) -> np.ndarray:
            actions = act(obs, noise)
            is_guided = rng.random(self.num_envs_in_all)[self.rows] < share
            if is_guided.any():
                actions = np.array(actions)  # the actor may reuse its memory
                actions[is_guided] = guide.actions(map_tree(lambda leaf: leaf[is_guided], obs))
            return actions

        return guided

    def _recording_act(self, part: ActingPart, store: RolloutStore) -> Callable[[Any, Any], np.ndarray]:
        """Return an `act` that writes the log-probability of each action into the store, from the next row on.

        Needed only while a learner changes the weights during a collect. Otherwise the learner computes the
        log-probabilities of the whole rollout in one batch, which is faster.
        """
        rows = itertools.count(store.size)
        store.record_logp()

        def act(obs: Any, noise: np.ndarray | None) -> np.ndarray:
            actions, logp = part.act_with_logp(obs, noise)
            store.write_logp(next(rows), logp)
            return actions

        return act

    def run(self, most: int) -> int:
        """Take and store at most `CHUNK` vector steps, and return the number of steps that count.

        This is the hot loop of collection. Everything here except acting and stepping is overhead of Python, so
        attributes are looked up before the loop.
        """
        policy = self.policy
        store = self.store
        counting = self.episodes.counting
        returns = self.episodes.returns
        lengths = self.episodes.lengths
        num_envs = self.num_envs
        random = self.mode.random
        on_step_hook = self.mode.on_step_hook
        to_env = self._part.to_env
        clock = time.perf_counter
        act, step_env = self._act_and_step()

        num_vector_steps = min(CHUNK, -(-most // num_envs))
        noise = self._draw_noise(num_vector_steps) if self.mode.explores and not random else None
        t = 0
        if store is not None:
            t = store.size
            store.ensure_room(t + num_vector_steps)
            store.weights_seq_no = policy.weights_seq_no

        obs = self._obs
        env_time = 0.0
        act_time = 0.0
        num_steps = 0
        for k in range(num_vector_steps):
            # Before the step: the environments may write the next observations into the memory of `obs`.
            if store is not None:
                store.write_obs(t, obs)
            if on_step_hook is not None:
                acted_on = map_tree(np.array, obs)

            began = clock()
            if random:
                actions = self._random_actions(obs, num_envs)
            elif noise is None:
                actions = act(obs, None)
            else:
                actions = act(obs, noise[k])
            acted = clock()
            env_actions = to_env(actions)
            step = step_env(env_actions)
            env_time += clock() - acted
            act_time += acted - began

            # `actions` as learned from, not as the environments take them: the learner needs the values that the
            # policy drew, before they were rescaled or clipped.
            valid = step.valid
            if store is not None:
                store.write_step(t, actions, step.rewards, step.terminateds, step.truncateds)
                if valid is not None or counting is not None:
                    store.mark_valid(t, valid, counting)

            # With the autoreset mode NEXT_STEP the environment resets in the step after the end of an episode. That row
            # ignores the action and is not a transition (`valid` is False): it adds to no return, length or amount.
            if valid is None:
                returns += step.rewards
                lengths += 1
                counted = counting
            else:
                returns += np.where(valid, step.rewards, 0.0)
                lengths += valid
                counted = valid if counting is None else counting & valid
            num_steps += num_envs if counted is None else int(np.count_nonzero(counted))

            # With SAME_STEP `step.obs` is the first observation of the next episode already, which the policy acts on;
            # the last observation of the ended one, whose value the learner needs if it was truncated, is in
            # `step.final_obs`.
            obs = step.obs
            if self.recorded is not None or step.any_done:
                obs = self._after_step(step, env_actions, t, k)
            if on_step_hook is not None:
                result = step.copy()  # the next step overwrites the arrays of this one
                result.acted_on = acted_on
                result.actions = map_tree(np.array, actions)
                on_step_hook(result)
            t += 1
            if counting is not None and step.any_done and not counting.any():
                break

        self.episodes.vector_steps += k + 1
        self.env_time += env_time
        self.act_time += act_time
        if store is not None:
            # The store returns the observations from its own memory, which the environments do not overwrite. A
            # `ReplayWriter` adds the steps to its buffer here.
            obs = store.end(t, obs)
        self._obs = obs
        return num_steps

    def _after_step(self, step: StepResult, env_actions: Any, t: int, k: int) -> Any:
        """End the episodes that ended in a vector step, and return the observations that the next step acts on.

        Args:
            step: Result of the vector step.
            env_actions: Actions that the environments took.
            t: Row of the vector step in the store.
            k: Index of the vector step in this run.
        """
        if self.recorded is None:
            obs = step.obs
            final = step.final_obs
        else:
            obs, final = self.recorded.follow(step, env_actions)

        # A lost environment (its process died or hung) was started again. Its unfinished episode has no last
        # observation and does not count; in the store it is cut before row `t`.
        if step.lost is not None:
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
        """Return the random numbers of a run's actions, `[num_vector_steps, num_envs, ...]`.

        They are drawn for the environments of all steppers, and sliced: an environment gets the same numbers however
        many steppers share the environments.
        """
        shape = (num_vector_steps, self.num_envs_in_all)
        rng = self.streams.numpy("exploration")
        options = (self.mode.epsilon,) if self.mode.epsilon else ()
        return self._part.draw_noise(rng, shape, *options)[:, self.rows]

    def _generator(self, row: int) -> np.random.Generator:
        """Return the random generator of one environment, which is the same in whichever stepper it is."""
        return self.streams.numpy(f"exploration/{self.rows.start + row}")

    def _random_actions(self, obs: Any, number: int) -> np.ndarray:
        """Return random actions, as learned from, for the observations of `number` environments.

        Like noise, they are drawn for the environments of all steppers, and sliced.
        """
        if self.memory is not None:
            # The recurrent state has to follow the observations, although its actions are not used: the learner
            # replays the same states.
            self.memory.act(obs, None)
        space = getattr(self._part, "random_space", self.env.action_space)
        rng = self.streams.numpy("random_actions")
        rows = slice(self.rows.start, self.rows.start + number)
        masks = masks_in(obs, self.observation_space, space)
        # Environments of other steppers get any mask: their numbers are drawn and not used.
        if masks is not None and len(masks) < self.num_envs_in_all:
            all_masks = np.ones((self.num_envs_in_all, masks.shape[1]), bool)
            all_masks[rows] = masks
            masks = all_masks
        return self._part.from_env(random_actions(space, rng, self.num_envs_in_all, masks))[rows]

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        # Before the first reset there is nothing to restore.
        env_state: Any = None
        obs: Any = None
        if self.episodes.is_begun:
            env_state = self.env.get_state()
            obs = map_tree(np.copy, self._obs)

        state = {
            **self.episodes.get_state(),
            "env": env_state,
            "obs": obs,
            "recorded": optional_state(self.recorded),
            "buffer": optional_state(self.store),
            "memory": optional_state(self.memory),
        }
        if self.recorder is not None:
            state["episodes"] = self.recorder.get_state()
        if self.exploring is not None:
            state["exploring"] = self.exploring.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        # Until the state is restored completely, the next collect begins new episodes.
        self.episodes.is_begun = False
        self.episodes_cut = 0

        # The environments come first: they may refuse the state, and then nothing else must have changed.
        obs = None if state["env"] is None else self.env.set_state(state["env"])
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
