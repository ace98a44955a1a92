"""`MultiAgentCollector`: lets the modules of a policy act for several agents in PettingZoo environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from lockstep.data import MultiAgentEnvError, MultiAgentEpisode
from lockstep.data.actions import ACTION_MASK, MASKABLE, allowed_actions, carries_mask
from lockstep.data.columns import Columns
from lockstep.data.rollout import EpisodeStore
from lockstep.data.trees import named_leaves
from lockstep.envs.errors import step_error
from lockstep.envs.pettingzoo_envs import PettingZooEnvs
from lockstep.envs.pettingzoo_play import play_of
from lockstep.envs.trees import stack_rows
from lockstep.replay import MultiAgentReplayBuffer
from lockstep.rollout.checks import (
    check_ends,
    checked_amount,
    checked_epsilon,
    chosen_streams,
    no_copies_of_collectors,
    not_finite,
)
from lockstep.rollout.errors import MalformedBufferError
from lockstep.rollout.random_actions import random_actions
from lockstep.rollout.replay_writer import take_actions_of
from lockstep.state.checks import check_flags
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats, returns_and_lens

AgentID = Any
ByAgent = dict[AgentID, Any]
Turn = tuple[ByAgent, ByAgent, ByAgent]
"""actions for the environment, as learned from, and the model outputs that go with them"""
Rows = list[tuple[int, AgentID]]
"""environment and agent of each row of a module's observations"""


class ActingModules(Protocol):
    """What the collector needs of a policy."""

    @property
    def acting(self) -> Mapping[str, Any]:
        """By module id who acts: an `ActingPolicy` with its spaces, where `is_stateful` one with a memory."""
        ...

    @property
    def policy_mapping_fn(self) -> Callable[..., str] | None:
        """`f(agent, episode)` -> module id."""
        ...

    @property
    def is_exploring(self) -> bool:
        """Is the policy within a training step, where it draws its actions?"""
        ...


class MultiAgentCollector:
    """Steps PettingZoo environments side by side and asks each module once for all of its agents in all of them.

    `env`: a function that makes a `ParallelEnv` or an `AECEnv` (`num_envs` are made), one such environment, or
    `PettingZooEnvs`. With a `buffer` the (pieces of) episodes are kept, or their transitions; without one (evaluation)
    only returns and lengths are. It explores within a training step, and everywhere where `exploration_noise` is set,
    or `epsilon` (see `Collector`).

    A step is one of the environment, however many agents act in it; in a turn-based environment one agent does. The
    steps that an agent has not closed when a collect ends (it waits for its next observation) come with the next piece
    of its episode. Returns are those of each agent; an episode's is their sum (a trainer's `reward_metric` may say
    otherwise). Each episode is seeded from the collector's own streams, and these from `seed`; without one every
    collector plays other episodes. A collect that fails leaves nothing behind; the
    next one begins new episodes.
    """

    def __init__(
        self,
        policy: ActingModules,
        env: Any,
        buffer: EpisodeStore | MultiAgentReplayBuffer | None = None,
        exploration_noise: bool = False,
        raise_on_nan_in_buffer: bool = True,
        *,
        num_envs: int = 1,
        epsilon: float = 0.0,
        seed: int | None = None,
        streams: RandomStreams | None = None,
    ) -> None:
        if not isinstance(getattr(policy, "acting", None), Mapping):
            raise ValueError(
                f"policy={policy!r} is not allowed; it must be a MultiAgentPolicy (build_policy() of a configuration "
                "with multi_agent(policies=...))"
            )
        check_flags(exploration_noise=exploration_noise, raise_on_nan_in_buffer=raise_on_nan_in_buffer)
        self.policy = policy
        self.env = env if isinstance(env, PettingZooEnvs) else PettingZooEnvs(env, num_envs)
        if num_envs not in (1, self.env.num_envs):
            raise ValueError(f"num_envs={num_envs}, but env has {self.env.num_envs} environments; leave num_envs out")
        self.exploration_noise, self.raise_on_nan_in_buffer = exploration_noise, raise_on_nan_in_buffer
        self.epsilon = checked_epsilon(epsilon)
        self.streams, self.is_seeded = chosen_streams(seed, streams), seed is not None or streams is not None
        self.num_resets = 0
        """episodes begun so far; the seed of each depends on it"""
        self.episodes_cut = 0
        """running episodes that the last `set_state` could not continue"""
        self.plays = [play_of(one, policy.policy_mapping_fn) for one in self.env.envs]
        self._agent_index = {agent: i for i, agent in enumerate(self.env.agents)}
        self.agents_of_modules = self._checked_modules()
        """module id -> the agents that it acts for"""
        self._buffer: EpisodeStore | MultiAgentReplayBuffer | None = None
        self.buffer = buffer
        self._returns = np.zeros((self.num_envs, len(self.env.agents)), np.float64)
        self._forget()
        self.reset_stat()

    @property
    def buffer(self) -> EpisodeStore | MultiAgentReplayBuffer | None:
        """Where steps are stored. May be replaced between collects: nothing reaches over from what the new one has."""
        return self._buffer

    @buffer.setter
    def buffer(self, buffer: EpisodeStore | MultiAgentReplayBuffer | None) -> None:
        if buffer is not None and not isinstance(buffer, EpisodeStore | MultiAgentReplayBuffer):
            raise ValueError(
                f"buffer={buffer!r} is not allowed; it must be an EpisodeStore or a MultiAgentReplayBuffer, or None"
            )
        if isinstance(buffer, MultiAgentReplayBuffer):
            unknown = sorted(set(buffer.agents) - set(self.policy.acting))
            if unknown:
                raise ValueError(
                    f"buffer has rows for the modules {unknown}, and the policy has {sorted(self.policy.acting)}; make "
                    f"it for {self.agents_of_modules}"
                )
            lacks = any(set(own) - set(buffer.agents.get(mid, ())) for mid, own in self.agents_of_modules.items())
            if lacks or buffer.num_envs != self.num_envs:
                raise ValueError(
                    f"buffer is for {buffer.agents} in {buffer.num_envs} environments; make it for "
                    f"{self.agents_of_modules} in {self.num_envs}"
                )
            for module_id, own in buffer.buffers.items():
                take_actions_of(self.policy.acting[module_id], own)
        if buffer is not self._buffer:
            self._buffer = buffer
            self._cut_buffer()

    def _cut_buffer(self) -> None:
        """What comes next does not follow what the buffer has."""
        if self._buffer is not None:
            for b in range(self.num_envs):
                self._buffer.cut(b)
        self._note_added()

    def _note_added(self) -> None:
        self._added = self._buffer.num_added if isinstance(self._buffer, MultiAgentReplayBuffer) else 0

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self.env.num_envs

    @property
    def observation_space(self) -> dict[AgentID, Any]:
        """By agent."""
        return self.env.observation_space

    def _checked_modules(self) -> dict[str, list[AgentID]]:
        """`KeyError` for an agent of an unknown module, `ValueError` for one whose spaces are not its module's."""
        agents: dict[str, list[AgentID]] = {}
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.policy.policy_mapping_fn)
        for agent in self.env.agents:
            acting = self._acting_of(episode.module_for(agent), agent)
            acting.check_spaces(self.env.observation_space[agent], self.env.action_space[agent])
            agents.setdefault(episode.module_for(agent), []).append(agent)
        return agents

    def _acting_of(self, module_id: str, agent: AgentID) -> Any:
        if module_id not in self.policy.acting:
            raise KeyError(
                f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(self.policy.acting)}"
            )
        return self.policy.acting[module_id]

    def reseed(self, streams: RandomStreams) -> None:
        """Take these random streams from now on, beginning with their first episode."""
        self.streams, self.num_resets, self.is_seeded = streams, 0, True

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """The next collect begins new episodes everywhere; empties buffer and counters if asked."""
        self.env.check_open()
        if reset_buffer and self.buffer is not None:
            self.buffer.reset()
        if reset_stats:
            self.reset_stat()
        self._forget()

    def reset_stat(self) -> None:
        """Counters to zero."""
        self.collect_step = 0
        self.collect_episode = 0
        self.collect_time = 0.0

    def close(self) -> None:
        """Closes the environments (a second call does nothing). Collects and resets raise `RuntimeError` then."""
        self.env.close()

    __reduce__ = no_copies_of_collectors

    def _forget(self) -> None:
        """Leaves the episodes that are under way."""
        self._cut_buffer()
        self._running = [False] * self.num_envs
        self._returns[:] = 0.0
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._memory: list[dict[AgentID, dict[str, np.ndarray]]] = [{} for _ in range(self.num_envs)]

    # -- collecting ---

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collects `n_step` environment steps (rounded up to whole vector steps, with a warning) or `n_episode` whole
        episodes.

        Episodes are counted without bias: the first `n_episode` that *start* count, however long they last; so this
        form begins new episodes. `random=True` draws actions from the spaces, of those that a mask allows.

        Raises `ValueError` unless exactly one of the two is given, `MalformedBufferError` for NaN in what is new,
        `EnvironmentStepError` where an environment raises or gives what cannot be.
        """
        self.env.check_open()
        amount = checked_amount(n_step, n_episode, self.num_envs, depth=3)
        if n_episode is not None:
            self._forget()
        elif isinstance(self.buffer, MultiAgentReplayBuffer) and self.buffer.num_added != self._added:
            self._cut_buffer()  # others wrote to it, or it was put back
        started = time.perf_counter()
        self._ended: list[tuple[np.ndarray, int]] = []
        self._env_time = self._act_time = 0.0
        self._pieces: list[tuple[MultiAgentEpisode, int]] = []
        try:
            steps = self._collect_episodes(amount, random) if n_step is None else self._collect_steps(amount, random)
            if self.buffer is not None:
                self.buffer.add(self._pieces)
                self._note_added()
        except BaseException:
            self._forget()
            raise
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
            *returns_and_lens([(returns.sum(), length) for returns, length in self._ended]),
            agents=tuple(map(str, self.env.agents)),
            agent_returns=tuple(tuple(returns.tolist()) for returns, _ in self._ended),
        )

    def _collect_steps(self, amount: int, random: bool) -> int:
        everywhere, steps = range(self.num_envs), 0
        for _ in range(-(-amount // self.num_envs)):
            steps += self._vector_step(everywhere, random)
        for b in everywhere:
            if self._running[b]:
                self._keep(b)
                self.plays[b].episode = self.plays[b].episode.cut()
        return steps

    def _collect_episodes(self, n_episode: int, random: bool) -> int:
        to_start, steps = n_episode, 0
        while True:
            playing = [b for b in range(self.num_envs) if self._running[b]]
            starting = [b for b in range(self.num_envs) if not self._running[b]][:to_start]
            to_start -= len(starting)
            if not playing and not starting:
                return steps
            steps += self._vector_step(sorted(playing + starting), random)
            check_ends(int(self._lengths.max()))

    def _vector_step(self, envs: Sequence[int], random: bool) -> int:
        """One step of each of these environments; returns their number."""
        clock = time.perf_counter
        began = clock()
        asked: dict[str, Rows] = {}
        for b in envs:
            if not self._running[b]:
                self._begin(b)
            for agent in self.plays[b].to_act:
                asked.setdefault(self.plays[b].episode.module_for(agent), []).append((b, agent))
        ready = clock()
        turns: dict[int, Turn] = {b: ({}, {}, {}) for b in envs}
        for module_id, rows in asked.items():
            for (b, agent), action, learned, outputs in self._act(module_id, rows, random):
                turns[b][0][agent], turns[b][1][agent] = action, learned
                if outputs is not None:
                    turns[b][2][agent] = outputs
        acted = clock()
        for b, turn in turns.items():
            self._step(b, *turn)
        self._act_time += acted - ready
        self._env_time += clock() - acted + ready - began
        return len(envs)

    def _begin(self, b: int) -> None:
        seed = self.streams.seed(f"episode/{self.num_resets}")
        try:
            self.plays[b].begin(seed=seed, id_=str(self.num_resets))
            self._check_alive(b)
        except Exception as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=None, during="reset") from error
        self.num_resets += 1
        self._running[b], self._memory[b] = True, {}

    def _step(self, b: int, actions: ByAgent, stored: ByAgent, extras: ByAgent) -> None:
        try:
            rewards = self.plays[b].step(actions, stored=stored, extras=extras)
            self._check_alive(b)
        except Exception as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=actions, during="step") from error
        for agent, reward in rewards.items():
            self._returns[b, self._agent_index[agent]] += float(reward)
        self._lengths[b] += 1
        if self.plays[b].episode.is_done:
            self._keep(b)
            self._ended.append((self._returns[b].copy(), int(self._lengths[b])))
            self._returns[b], self._lengths[b], self._running[b] = 0.0, 0, False

    def _check_alive(self, b: int) -> None:
        if not self.plays[b].to_act and not self.plays[b].episode.is_done:
            raise MultiAgentEnvError("no agent is left to act, but the episode has not ended for all that were there")

    def _act(self, module_id: str, rows: Rows, random: bool) -> list[tuple[tuple[int, AgentID], Any, Any, Any]]:
        """For each row: whose it is, the action for the environment, as learned from, and what goes with it."""
        acting = self._acting_of(module_id, rows[0][1])
        obs = stack_rows(acting.observation_space, [self.plays[b].to_act[agent] for b, agent in rows])
        noise = None
        if (self.exploration_noise or self.epsilon or self.policy.is_exploring) and not random:
            rng = self.streams.numpy(f"exploration/{module_id}")
            noise = acting.draw_noise(rng, (len(rows),), self.epsilon or None)
        before = None
        if acting.is_stateful:
            learned, before = self._remember(acting, obs, noise, rows)
        elif not random:
            learned = acting.act(obs, noise)
        if random:
            learned = acting.from_env(self._random(module_id, acting, obs, len(rows)))
        taken = acting.to_env(learned)
        outputs = [None if before is None else {Columns.STATE_IN: _row(before, i)} for i in range(len(rows))]
        return [(row, _plain(taken[i]), learned[i].copy(), outputs[i]) for i, row in enumerate(rows)]

    def _random(self, module_id: str, acting: Any, obs: Any, number: int) -> np.ndarray:
        """Actions as the environment takes them, of those that a mask allows."""
        rng = self.streams.numpy(f"random_actions/{module_id}")
        if isinstance(acting.action_space, MASKABLE) and carries_mask(acting.observation_space):
            return allowed_actions(acting.action_space, rng, obs[ACTION_MASK])
        return random_actions(acting.action_space, rng, number)

    def _remember(
        self, acting: Any, obs: Any, noise: np.ndarray | None, rows: Rows
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Actions of a module with memory, and the state before them; each agent forgets where its episode begins."""
        initial = _row(acting.get_initial_state(1), 0)
        states = [self._memory[b].get(agent, initial) for b, agent in rows]
        before = {name: np.stack([state[name] for state in states]) for name in initial}
        actions, after = acting.act_with_state(obs, noise, before)
        for i, (b, agent) in enumerate(rows):
            self._memory[b][agent] = _row(after, i)
        return actions, before

    def _keep(self, b: int) -> None:
        """The present piece of an episode goes to the buffer with the others. `MalformedBufferError` for NaN in it."""
        piece = self.plays[b].episode
        if self.buffer is None or len(piece) == 0:
            return
        if self.raise_on_nan_in_buffer:
            for agent, single in piece.agent_episodes.items():
                columns = {"rewards": single.get_rewards(), "actions": single.get_actions()} if len(single) else {}
                found = not_finite([*named_leaves("obs", single.get_observations()), *columns.items()])
                if found:
                    _, name, where, _ = min(found, key=itemgetter(0))
                    raise MalformedBufferError(
                        f"environment {b} gave agent {agent!r} a value that is not finite in column {name!r} at "
                        f"its step {single.t_started + where[0]}; mend the environment, or pass "
                        "raise_on_nan_in_buffer=False"
                    )
        self._pieces.append((piece, b))

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Random streams, counters, lengths of running episodes. PettingZoo environments cannot tell their state."""
        if isinstance(self.buffer, EpisodeStore) and len(self.buffer):
            raise ValueError(
                "a collector can be saved between an update and the next collect only, not with data in it"
            )
        return {
            "lengths": self._lengths.copy(),
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`: with new episodes, a boundary where one was under way."""
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        self._forget()
        self.episodes_cut = int(np.count_nonzero(state["lengths"]))


def _row(state: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    return {name: leaf[row].copy() for name, leaf in state.items()}


def _plain(action: Any) -> Any:
    """One action as an environment takes it: a plain int of a Discrete space."""
    return int(action) if action.ndim == 0 and action.dtype.kind in "iu" else action.copy()
