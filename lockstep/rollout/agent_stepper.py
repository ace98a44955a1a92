"""`AgentStepper`: lets the modules of a policy act for several agents in PettingZoo environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.data import MultiAgentEpisode
from lockstep.data.actions import random_actions, single_action
from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree, named_leaves, rows_of, stack_observations, zip_trees
from lockstep.envs.errors import RAISED, step_error
from lockstep.envs.multi_agent import AgentEnvAdapter, AgentEnvs
from lockstep.rollout.callbacks import EnvironmentEvents, Episode, EpisodeView
from lockstep.rollout.errors import MalformedBufferError, not_finite
from lockstep.rollout.protocols import ActingPart, LearningPolicy, State
from lockstep.rollout.replay_writer import AgentBuffer, Buffer, PieceWriter
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper, masks_in
from lockstep.state.streams import RandomStreams

ByAgent = dict[AgentID, Any]
Rows = list[tuple[int, AgentID]]
"""environment and agent of each row of a module's observations"""


class AgentConnectors:
    """What the connectors of one environment's agents remember: a copy of its module's for each agent."""

    def __init__(self, adapter: AgentEnvAdapter, part_of: Callable[[str, AgentID], ActingPart]) -> None:
        self._adapter, self._part_of = adapter, part_of
        self._pipelines: dict[AgentID, ObsPipeline] = {}
        self._earned: dict[AgentID, float] = {}
        """since the agent's last observation"""
        adapter.transform_observations = self.seen

    def forget(self) -> None:
        """Begin an episode."""
        self._pipelines, self._earned = {}, {}

    def get_state(self) -> list[list[Any]]:
        """Return `[agent, state of its connectors, reward since its last observation]` of each agent."""
        return [
            [agent, pipeline.get_state(), self._earned.get(agent, 0.0)] for agent, pipeline in self._pipelines.items()
        ]

    def set_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue from `get_state`; the adapter must have the episode of that time."""
        self.forget()
        for agent, of_connectors, earned in state:
            pipeline = self._part_of(self._adapter.episode.module_for(agent), agent).recorded.copy()
            pipeline.set_state(of_connectors)
            self._pipelines[agent], self._earned[agent] = pipeline, earned

    def note(self, agent: AgentID, actions: np.ndarray) -> None:
        """Take note of an agent's action `[1, ...]`."""
        if agent in self._pipelines:
            self._pipelines[agent].after_step(actions, None)

    def seen(self, observations: ByAgent, rewards: Mapping[AgentID, Any]) -> ByAgent:
        """Return observations as they are acted on and stored, after steps that brought `rewards`."""
        for agent, reward in rewards.items():
            self._earned[agent] = self._earned.get(agent, 0.0) + float(reward)
        found = {}
        for agent, observation in observations.items():
            part = self._part_of(self._adapter.episode.module_for(agent), agent)
            pipeline = self._pipelines.get(agent)
            if pipeline is None:
                pipeline = self._pipelines[agent] = part.recorded.copy()
            else:
                pipeline.after_step(None, np.array([self._earned.get(agent, 0.0)]))
            self._earned[agent] = 0.0
            rows = pipeline(stack_observations(part.observation_space, [observation]))
            found[agent] = map_tree(np.copy, rows_of(rows, 0))
        return found


class AgentStepper(Stepper):
    """Steps environments of several agents side by side, and asks each module once for all of its agents in all.

    A step is one of the environment, however many agents act in it; in a turn-based environment one agent does. Each
    episode is seeded from the streams by the number of its environment and of the episode. `with_logp`: see
    `MultiAgentCollector`. A collect that fails leaves nothing behind.
    """

    steps_only_counting = True
    env: AgentEnvs

    def __init__(
        self,
        policy: LearningPolicy,
        env: AgentEnvs,
        streams: RandomStreams,
        place: tuple[int, int] | None = None,
        *,
        with_logp: bool = False,
    ) -> None:
        super().__init__(policy, env, streams, place)
        self.adapters = [self.env.make_adapter(b, policy.policy_mapping_fn) for b in range(self.num_envs)]
        self._agent_index = {agent: i for i, agent in enumerate(self.env.agents)}
        self.agents_of_modules = agents_of_modules(policy, self.env.observation_space, self.env.action_space)
        self.begun = np.zeros(self.num_envs, np.int64)
        """episodes begun in each environment, on which the seed of its next one depends"""
        self.with_logp = with_logp
        self._noise: dict[str, np.ndarray] = {}
        """of each module: [vector steps, environments, agents, ...]"""
        self._followed = self._memories()
        self._agent_returns = np.zeros((self.num_envs, len(self.env.agents)), np.float64)
        """of the episode under way in each environment"""
        self._is_running = np.zeros(self.num_envs, bool)  # has the environment an episode under way?
        self._states: list[dict[AgentID, State]] = [{} for _ in range(self.num_envs)]
        """of recurrent modules, by environment and agent"""
        self._begin_counting()
        self._writer = PieceWriter(policy.acting, self.agents_of_modules, self.env.spaces, self.num_envs)
        self._views: list[Any] = [None] * self.num_envs
        """of the episodes under way, where a callback reads them"""

    def set_events(self, events: EnvironmentEvents | None) -> None:
        super().set_events(events)
        for adapter in self.adapters:
            adapter.records_whole_episode = events is not None and events.needs_episodes
        self._views = [None] * self.num_envs  # callbacks do not see the running episodes

    def running_episodes(self) -> Sequence[Episode]:
        watched = [adapter.whole_episode for adapter, view in zip(self.adapters, self._views) if view is not None]
        return [episode for episode in watched if episode is not None]

    @property
    def buffer(self) -> AgentBuffer | None:
        """Where steps are stored."""
        return self._writer.buffer

    def set_buffer(self, buffer: Buffer | None, raise_on_nan: bool) -> None:
        self._writer.set_buffer(buffer)

    def empty_buffer(self, keep_statistics: bool) -> None:
        if self.buffer is not None:
            self.buffer.reset()

    @property
    def observation_space(self) -> dict[AgentID, Any]:
        """Observation spaces by agent."""
        return self.env.observation_space

    def fit_replay(self, agents: Mapping[str, Sequence[AgentID]] | None = None) -> None:
        """Give each module that learns a replay buffer for these agents; None: for those whose spaces are its own."""
        self._writer.fit_replay(agents)

    def _memories(self) -> list[AgentConnectors]:
        """Return what connectors remember of the agents of each environment; empty where nothing is recorded."""
        if all(part.recorded.is_identity for part in self.policy.acting.values()):
            return []
        return [AgentConnectors(adapter, self._part_of) for adapter in self.adapters]

    def _part_of(self, module_id: str, agent: AgentID) -> ActingPart:
        return part_of(self.policy, module_id, agent)

    # -- resets ---

    def reset(self) -> None:
        """Leave the episodes under way; new ones begin with the next steps."""
        self._writer.cut()
        self._forget()

    def _forget(self) -> None:
        """Have no episode under way."""
        self.episodes.left_open = False
        self.episodes.is_begun = True
        self._is_running[:] = False
        self.episodes.forget()
        self._agent_returns[:] = 0.0
        self._states = [{} for _ in range(self.num_envs)]
        self._views = [None] * self.num_envs

    def leave_episodes_of(self, module_id: str) -> None:
        """Leave the episodes under way in which this module acts; new ones begin there with the next steps."""
        for b in np.flatnonzero(self._is_running).tolist():
            if module_id in self.adapters[b].episode.agent_module_ids.values():
                self._writer.cut([b])
                self._is_running[b], self._states[b] = False, {}
                self.episodes.returns[b] = self._agent_returns[b] = 0.0
                self.episodes.lengths[b] = 0

    # -- collecting ---

    def begin_collect(self, mode: StepMode) -> None:
        """Leave the episodes in a buffer that others wrote to."""
        super().begin_collect(mode)
        self._begin_counting()
        self._writer.begin()

    def _begin_counting(self) -> None:
        self._pieces: list[tuple[MultiAgentEpisode, int]] = []
        """what this collect has collected, with the index of the environment"""
        self._agent_returns_ended: list[tuple[float, ...]] = []
        self._agent_modules_ended: list[tuple[str, ...]] = []

    def end_collect(self) -> dict[str, Any]:
        """Keep what the running episodes have so far, and store all pieces, one environment's after another's."""
        for b in np.flatnonzero(self._is_running).tolist():
            self._keep(b)
            self.adapters[b].episode = self.adapters[b].episode.cut()
        self._pieces.sort(key=itemgetter(1))
        self._writer.add(self._pieces)
        return {
            "agents": tuple(map(str, self.env.agents)),
            "agent_returns": tuple(self._agent_returns_ended),
            "agent_modules": tuple(self._agent_modules_ended),
        }

    def abandon_collect(self) -> None:
        """Leave the episodes under way."""
        self.reset()

    @property
    def num_rows(self) -> int:
        """0: pieces of episodes are stored at the end of a collect only."""
        return 0

    def drop_after(self, first: int) -> None:
        """Do nothing: a collect that fails has stored nothing."""

    def run(self, most: int) -> int:
        num_vector_steps = min(CHUNK, -(-most // self.num_envs))
        counting = self.episodes.counting
        self._noise = self._draw_noise(num_vector_steps) if self.mode.explores and not self.mode.random else {}
        steps = 0
        for k in range(num_vector_steps):
            if counting is None:
                steps += self._vector_step(k, range(self.num_envs))
            elif counting.any():
                steps += self._vector_step(k, np.flatnonzero(counting).tolist())
        return steps

    def _draw_noise(self, num_vector_steps: int) -> dict[str, np.ndarray]:
        """Draw for each module and every agent in all environments, and return what belongs to these environments."""
        shape = (num_vector_steps, self.num_envs_in_all, len(self.env.agents))
        drawn = {}
        for module_id, part in self.policy.acting.items():
            rng = self.streams.numpy(f"exploration/{module_id}")
            drawn[module_id] = part.draw_noise(rng, shape, self.mode.epsilon or None)[:, self.rows]
        return drawn

    def _vector_step(self, k: int, envs: Sequence[int]) -> int:
        """Take one step of each of these environments, the `k`-th with the noise drawn; return their number."""
        clock = time.perf_counter
        began = clock()
        asked: dict[str, Rows] = {}
        for b in envs:
            if not self._is_running[b]:
                self._begin(b)
            for agent in self.adapters[b].to_act:
                asked.setdefault(self.adapters[b].episode.module_for(agent), []).append((b, agent))
        self._report_begun(envs)
        ready = clock()
        actions: dict[int, ByAgent] = {b: {} for b in envs}
        """as the environment takes them"""
        stored: dict[int, ByAgent] = {b: {} for b in envs}
        """as learned from"""
        extras: dict[int, ByAgent] = {b: {} for b in envs}
        """model outputs beside them"""
        for module_id, rows in asked.items():
            taken, learned, outputs = self._act(module_id, rows, k)
            for i, (b, agent) in enumerate(rows):
                if self._followed:
                    self._followed[b].note(agent, rows_of(taken, slice(i, i + 1)))
                actions[b][agent], stored[b][agent] = single_action(taken, i), learned[i].copy()
                if outputs:
                    extras[b][agent] = map_tree(np.copy, rows_of(outputs, i))
        acted = clock()
        for b in envs:
            self._step(b, actions[b], stored[b], extras[b])
            if self.events is not None and (view := self._views[b]) is not None:
                self._views[b] = None if view.is_done else view
                self.events.step(view, b)
        if self.events is not None:
            self.events.metrics.end_step()
        self.act_time += acted - ready
        self.episodes.vector_steps += 1
        self.env_time += clock() - acted + ready - began
        return len(envs)

    def _report_begun(self, envs: Sequence[int]) -> None:
        """Report the episodes that have begun to the callbacks."""
        if self.events is not None and self.events.needs_episodes:
            for b in envs:
                whole = self.adapters[b].whole_episode
                if self._views[b] is None and whole is not None and whole.env_t == 0:
                    self._views[b] = self.events.start(whole, b)
            self.events.metrics.end_step()

    def _begin(self, b: int) -> None:
        self.adapters[b].mapping_fn = self.policy.policy_mapping_fn
        number, begun = self.rows.start + b, int(self.begun[b])
        seed = self.streams.seed(f"episode/{number}/{begun}")
        if self._followed:
            self._followed[b].forget()
        try:
            self.adapters[b].begin(seed=seed, id_=str(begun * self.num_envs_in_all + number))
        except RAISED as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=None, during="reset") from error
        self.begun[b] += 1
        self._is_running[b], self._states[b], self._views[b] = True, {}, None

    def _step(self, b: int, actions: ByAgent, stored: ByAgent, extras: ByAgent) -> None:
        try:
            rewards = self.adapters[b].step(actions, stored=stored, extras=extras)
        except RAISED as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=actions, during="step") from error
        for agent, reward in rewards.items():
            self._agent_returns[b, self._agent_index[agent]] += float(reward)
        self.episodes.lengths[b] += 1
        self.episodes.taken[b] += 1
        if self.adapters[b].episode.is_done:
            self._keep(b)
            self.episodes.returns[b] = self._agent_returns[b].sum()
            self._agent_returns_ended.append(tuple(self._agent_returns[b].tolist()))
            modules = self.adapters[b].episode.agent_module_ids
            self._agent_modules_ended.append(tuple(modules.get(agent, "") for agent in self.env.agents))
            self._agent_returns[b], self._is_running[b] = 0.0, False
            self.episodes.end(b, 0)  # in the vector step under way

    def _act(self, module_id: str, rows: Rows, k: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return for all rows of a module the actions for the environment, those learned from, and model outputs."""
        part, random = self._part_of(module_id, rows[0][1]), self.mode.random
        obs = stack_observations(part.seen_space, [self.adapters[b].to_act[agent] for b, agent in rows])
        noise = None
        if self._noise:
            noise = self._noise[module_id][k, [b for b, _ in rows], [self._agent_index[agent] for _, agent in rows]]
        outputs: dict[str, Any] = {}
        if part.is_stateful:
            learned, outputs[Columns.STATE_IN] = self._act_with_state(part, obs, noise, rows)
        elif self.with_logp and not random:
            learned, outputs[Columns.ACTION_LOGP] = part.act_with_logp(obs, noise)
            outputs[Columns.WEIGHTS_SEQ_NO] = np.full(len(rows), self.policy.weights_seq_no)
        elif not random:
            learned = part.act(obs, noise)
        if random:
            masks = masks_in(obs, part.seen_space, part.random_space)
            drawn = []
            for i, (b, _) in enumerate(rows):
                rng = self.streams.numpy(f"random_actions/{self.rows.start + b}/{module_id}")
                drawn.append(random_actions(part.random_space, rng, 1, None if masks is None else masks[i : i + 1]))
            learned = part.from_env(zip_trees(np.concatenate, drawn, "actions"))
        return part.to_env(learned), learned, outputs

    def _act_with_state(
        self, part: ActingPart, obs: Any, noise: np.ndarray | None, rows: Rows
    ) -> tuple[np.ndarray, State]:
        """Return actions of a recurrent module, and the state before them; agents forget where episodes begin."""
        initial = _row(part.get_initial_state(1), 0)
        states = [self._states[b].get(agent, initial) for b, agent in rows]
        before = {name: np.stack([state[name] for state in states]) for name in initial}
        actions, after = part.act_with_state(obs, noise, before)
        for i, (b, agent) in enumerate(rows):
            self._states[b][agent] = _row(after, i)
        return actions, before

    def _keep(self, b: int) -> None:
        """Keep the present piece of an episode for the buffer. `MalformedBufferError` for NaN in it."""
        piece = self.adapters[b].episode
        if self.buffer is None or len(piece) == 0:
            return
        if self.mode.raise_on_nan:
            for agent, single in piece.agent_episodes.items():
                columns = {"rewards": single.get_rewards(), "actions": single.get_actions()} if len(single) else {}
                found = not_finite([*named_leaves("obs", single.get_observations()), *columns.items()])
                if found:
                    _, name, where, _ = min(found, key=itemgetter(0))
                    raise MalformedBufferError(
                        f"environment {b} gave agent {agent!r} a value that is not finite in column {name!r} at "
                        f"its step {single.t_started + where[0]}; fix the environment, or pass "
                        "raise_on_nan_in_buffer=False"
                    )
        self._pieces.append((piece, b))

    # -- state ---

    def reseed(self, streams: RandomStreams) -> None:
        """Use these random streams from now on, beginning with the first episode of each environment."""
        super().reseed(streams)
        self.begun[:] = 0

    def get_state(self) -> dict[str, Any]:
        """Return environments and episodes under way, as far as the environments can tell their state, and the states
        of recurrent modules."""
        env_states = [adapter.get_state() if runs else {} for adapter, runs in zip(self.adapters, self._is_running)]
        remembered = [memory.get_state() for memory in self._followed]
        return {
            **self.episodes.get_state(),
            "begun": self.begun.copy(),
            "env": None if None in env_states else env_states,
            **({"remembered": remembered} if remembered else {}),
            "agent_returns": self._agent_returns.copy(),
            "states": [[*map(list, states.items())] for states in self._states],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.begun[:] = state["begun"]
        env_states = state["env"]
        self._forget()
        self.episodes_cut = int(np.count_nonzero(state["lengths"])) if env_states is None else 0
        if env_states is None:
            self._writer.cut()
            return
        for b in (b for b, saved in enumerate(env_states) if saved):
            self.adapters[b].mapping_fn = self.policy.policy_mapping_fn
            self.adapters[b].set_state(env_states[b])
            if self._followed:
                self._followed[b].set_state(state["remembered"][b])
            self._is_running[b], self._states[b] = True, dict(state["states"][b])
            whole = self.adapters[b].whole_episode
            self._views[b] = None if whole is None else EpisodeView(whole)
        self.episodes.returns[:], self.episodes.lengths[:] = state["returns"], state["lengths"]
        self._agent_returns[:] = state["agent_returns"]
        self.episodes.left_open = bool(state["left_open"])
        self._writer.continue_episodes(np.flatnonzero(self._is_running).tolist())


def agents_of_modules(
    policy: LearningPolicy, observation_space: Mapping[AgentID, Any], action_space: Mapping[AgentID, Any]
) -> dict[str, list[AgentID]]:
    """Return for each module the agents that it acts for.

    Raises `KeyError` for an agent of an unknown module, `ValueError` for one whose spaces are not its module's.
    """
    agents: dict[str, list[AgentID]] = {}
    for mapping in policy.policy_mapping_fns:
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapping)
        for agent, space in observation_space.items():
            part_of(policy, episode.module_for(agent), agent).check_spaces(space, action_space[agent])
            known = agents.setdefault(episode.module_for(agent), [])
            known += [agent] if agent not in known else []
    return agents


def part_of(policy: LearningPolicy, module_id: str, agent: AgentID) -> ActingPart:
    """Return the acting part of an agent's module; `KeyError` for a module that is not there."""
    if module_id not in policy.acting:
        raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(policy.acting)}")
    part: ActingPart = policy.acting[module_id]
    return part


def _row(state: Mapping[str, np.ndarray], row: int) -> State:
    return {name: leaf[row].copy() for name, leaf in state.items()}
