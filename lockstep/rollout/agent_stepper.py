"""`AgentStepper`: steps environments of several agents, for which the modules of a policy act."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from lockstep.connectors import ObsPipeline
from lockstep.data import MultiAgentEpisode
from lockstep.data.actions import random_actions, single_action
from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, map_tree, named_leaves, rows_of, stack_observations, zip_trees
from lockstep.envs.errors import RAISED, step_error
from lockstep.envs.multi_agent import AgentEnvAdapter, AgentEnvs
from lockstep.rollout.callbacks import EnvironmentEvents, Episode
from lockstep.rollout.episode_view import MultiAgentEpisodeView
from lockstep.rollout.errors import MalformedBufferError, not_finite
from lockstep.rollout.protocols import ActingPart, LearningPolicy, State
from lockstep.rollout.replay_writer import AgentBuffer, Buffer, PieceWriter
from lockstep.rollout.stepper import CHUNK, StepMode, Stepper, masks_in
from lockstep.state.streams import RandomStreams

ByAgent = dict[AgentID, Any]
Rows = list[tuple[int, AgentID]]
"""Environment and agent of each row of a module's observations."""


class AgentConnectors:
    """Connectors with a memory (frame stacks, previous actions) of one environment's agents.

    Each agent has a copy of the connectors of its module, because each agent has its own history.

    Args:
        adapter: The environment, whose observations are transformed from now on.
        part_of: Function that returns the acting part of a module, by the ids of the module and of the agent.
    """

    def __init__(self, adapter: AgentEnvAdapter, part_of: Callable[[str, AgentID], ActingPart]) -> None:
        self._adapter = adapter
        self._part_of = part_of
        self._pipelines: dict[AgentID, ObsPipeline] = {}
        self._earned: dict[AgentID, float] = {}
        """Sum of each agent's rewards since its last observation."""
        adapter.transform_observations = self.transform

    def forget(self) -> None:
        """Forget the history of all agents, at the beginning of an episode."""
        self._pipelines = {}
        self._earned = {}

    def get_state(self) -> list[list[Any]]:
        """Return `[agent, state of its connectors, reward since its last observation]` for each agent."""
        return [
            [agent, pipeline.get_state(), self._earned.get(agent, 0.0)] for agent, pipeline in self._pipelines.items()
        ]

    def set_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state that `get_state` returned. The adapter's episode must be restored before."""
        self.forget()
        for agent, pipeline_state, earned in state:
            pipeline = self._part_of(self._adapter.episode.module_for(agent), agent).recorded.copy()
            pipeline.set_state(pipeline_state)
            self._pipelines[agent] = pipeline
            self._earned[agent] = earned

    def note_action(self, agent: AgentID, actions: np.ndarray) -> None:
        """Pass an agent's action `[1, ...]` to its connectors."""
        if agent in self._pipelines:
            self._pipelines[agent].after_step(actions, None)

    def transform(self, observations: ByAgent, rewards: Mapping[AgentID, Any]) -> ByAgent:
        """Return observations as they are stored and acted on.

        Args:
            observations: New observations, by agent.
            rewards: Rewards of the step before them, by agent. An agent may get rewards in steps without an observation
                for it; its connectors get the sum with its next observation.
        """
        for agent, reward in rewards.items():
            self._earned[agent] = self._earned.get(agent, 0.0) + float(reward)
        transformed = {}
        for agent, observation in observations.items():
            part = self._part_of(self._adapter.episode.module_for(agent), agent)
            pipeline = self._pipelines.get(agent)
            if pipeline is None:
                pipeline = self._pipelines[agent] = part.recorded.copy()
            else:
                pipeline.after_step(None, np.array([self._earned.get(agent, 0.0)]))
            self._earned[agent] = 0.0
            rows = pipeline(stack_observations(part.observation_space, [observation]))
            transformed[agent] = map_tree(np.copy, rows_of(rows, 0))
        return transformed


class AgentStepper(Stepper):
    """Stepper of environments with several agents, side by side.

    In each vector step a module acts once, in one batch, for all of its agents in all environments.

    A step is a step of the environment, however many agents act in it; in a turn-based environment one agent acts. The
    seed of an episode depends on the index of its environment and on how many episodes that environment has begun
    before, not on how long the episodes of other environments last. A collect that fails leaves nothing in the buffer.

    Args:
        policy: The policy, with an acting part for each module.
        env: The environments.
        streams: Random streams for the seeds of episodes, for exploration and for random actions.
        place: See `Stepper`.
        with_logp: See `MultiAgentCollector`.
    """

    steps_counting_envs_only = True
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
        """The environments, each with the episode that it records."""
        self._agent_index = {agent: i for i, agent in enumerate(self.env.agents)}
        self.agents_of_modules = agents_of_modules(policy, self.env.observation_space, self.env.action_space)
        self.begun = np.zeros(self.num_envs, np.int64)
        """`[B]` number of episodes that have begun in each environment. The seed of the next one depends on it."""
        self.with_logp = with_logp
        self._noise: dict[str, np.ndarray] = {}
        """Random numbers of the present run by module id, `[vector steps, environments, agents, ...]`."""
        self._connectors = self._make_connectors()
        """Connectors of each environment's agents; empty if observations are stored unchanged."""
        self._agent_returns = np.zeros((self.num_envs, len(self.env.agents)), np.float64)
        """`[B, agents]` returns so far of the running episodes."""
        self._is_running = np.zeros(self.num_envs, bool)
        """`[B]` whether each environment has a running episode."""
        self._states: list[dict[AgentID, State]] = [{} for _ in range(self.num_envs)]
        """Recurrent state of each agent, for each environment."""
        self._clear_collected()
        self._writer = PieceWriter(policy.acting, self.agents_of_modules, self.env.spaces, self.num_envs)
        self._views: list[Any] = [None] * self.num_envs
        """View of each running episode for callbacks; None if no callback reads it."""

    def set_events(self, events: EnvironmentEvents | None) -> None:
        super().set_events(events)
        for adapter in self.adapters:
            adapter.records_whole_episode = events is not None and events.needs_episodes
        # Running episodes were not recorded from their beginning, so callbacks do not get them.
        self._views = [None] * self.num_envs

    def running_episodes(self) -> Sequence[Episode]:
        viewed = [adapter.whole_episode for adapter, view in zip(self.adapters, self._views) if view is not None]
        return [episode for episode in viewed if episode is not None]

    @property
    def buffer(self) -> AgentBuffer | None:
        """Buffer that episodes and pieces of episodes are stored in."""
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
        """Give each learning module a replay buffer for its agents; see `CollectorLike.fit_replay`."""
        self._writer.fit_replay(agents)

    def _make_connectors(self) -> list[AgentConnectors]:
        """Return the connectors of each environment's agents; an empty list if no module has recording connectors."""
        if all(part.recorded.is_identity for part in self.policy.acting.values()):
            return []
        return [AgentConnectors(adapter, self._part_of) for adapter in self.adapters]

    def _part_of(self, module_id: str, agent: AgentID) -> ActingPart:
        """Return the acting part of an agent's module."""
        return part_of(self.policy, module_id, agent)

    # -- resets ---

    def reset(self) -> None:
        """Abandon the running episodes. The environments are reset with the next steps."""
        self._writer.cut()
        self._forget()

    def _forget(self) -> None:
        """Mark that no environment has a running episode."""
        self.episodes.left_open = False
        self.episodes.is_begun = True
        self._is_running[:] = False
        self.episodes.forget()
        self._agent_returns[:] = 0.0
        self._states = [{} for _ in range(self.num_envs)]
        self._views = [None] * self.num_envs

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin in their environments."""
        for b in np.flatnonzero(self._is_running).tolist():
            if module_id in self.adapters[b].episode.agent_module_ids.values():
                self._writer.cut([b])
                self._is_running[b] = False
                self._states[b] = {}
                self._agent_returns[b] = 0.0
                self.episodes.returns[b] = 0.0
                self.episodes.lengths[b] = 0

    # -- collecting ---

    def begin_collect(self, mode: StepMode) -> None:
        super().begin_collect(mode)
        self._clear_collected()
        self._writer.begin()

    def _clear_collected(self) -> None:
        """Discard the pieces and statistics of a collect."""
        self._pieces: list[tuple[MultiAgentEpisode, int]] = []
        """Pieces of episodes of this collect, each with the index of its environment."""
        self._agent_returns_ended: list[tuple[float, ...]] = []
        """Returns of the agents in each episode that ended in this collect."""
        self._agent_modules_ended: list[tuple[str, ...]] = []
        """Modules of the agents in each episode that ended in this collect."""

    def end_collect(self) -> dict[str, Any]:
        """Store the pieces of all episodes, and return the statistics of the agents."""
        # Running episodes are stored as far as they are, and continue in a new piece.
        for b in np.flatnonzero(self._is_running).tolist():
            self._add_piece(b)
            self.adapters[b].episode = self.adapters[b].episode.cut()
        # The pieces of an environment one after the other, so that the pieces of an episode follow each other in the
        # buffer.
        self._pieces.sort(key=itemgetter(1))
        self._writer.add(self._pieces)
        return {
            "agents": tuple(map(str, self.env.agents)),
            "agent_returns": tuple(self._agent_returns_ended),
            "agent_modules": tuple(self._agent_modules_ended),
        }

    def abandon_collect(self) -> None:
        self.reset()

    @property
    def num_rows(self) -> int:
        """Always 0: pieces of episodes are stored at the end of a collect only, so there is nothing to drop."""
        return 0

    def drop_after(self, first: int) -> None:
        """Do nothing: a collect that fails has stored nothing."""

    def run(self, most: int) -> int:
        num_vector_steps = min(CHUNK, -(-most // self.num_envs))
        counting = self.episodes.counting
        self._noise = self._draw_noise(num_vector_steps) if self.mode.explores and not self.mode.random else {}
        num_steps = 0
        for k in range(num_vector_steps):
            if counting is None:
                num_steps += self._vector_step(k, range(self.num_envs))
            elif counting.any():
                num_steps += self._vector_step(k, np.flatnonzero(counting).tolist())
        return num_steps

    def _draw_noise(self, num_vector_steps: int) -> dict[str, np.ndarray]:
        """Return the random numbers of a run's actions by module id, `[num_vector_steps, num_envs, agents, ...]`.

        They are drawn for every agent in the environments of all steppers, and sliced: an agent gets the same numbers
        however many steppers share the environments, and whichever agents act.
        """
        shape = (num_vector_steps, self.num_envs_in_all, len(self.env.agents))
        noise = {}
        for module_id, part in self.policy.acting.items():
            rng = self.streams.numpy(f"exploration/{module_id}")
            noise[module_id] = part.draw_noise(rng, shape, self.mode.epsilon or None)[:, self.rows]
        return noise

    def _vector_step(self, k: int, envs: Sequence[int]) -> int:
        """Take one step of each of these environments with the `k`-th random numbers, and return their number."""
        clock = time.perf_counter
        began = clock()
        rows_of_modules: dict[str, Rows] = {}
        for b in envs:
            if not self._is_running[b]:
                self._begin(b)
            # `to_act` has the new observation of each agent that has to act now.
            for agent in self.adapters[b].to_act:
                rows_of_modules.setdefault(self.adapters[b].episode.module_for(agent), []).append((b, agent))
        self._report_begun(envs)

        ready = clock()
        env_actions: dict[int, ByAgent] = {b: {} for b in envs}
        """Actions as the environment takes them."""
        stored_actions: dict[int, ByAgent] = {b: {} for b in envs}
        """Actions as learned from."""
        extras: dict[int, ByAgent] = {b: {} for b in envs}
        """Extra model outputs, such as log-probabilities."""
        for module_id, rows in rows_of_modules.items():
            for_env, learned, outputs = self._act(module_id, rows, k)
            for i, (b, agent) in enumerate(rows):
                if self._connectors:
                    self._connectors[b].note_action(agent, rows_of(for_env, slice(i, i + 1)))
                env_actions[b][agent] = single_action(for_env, i)
                stored_actions[b][agent] = learned[i].copy()
                if outputs:
                    extras[b][agent] = map_tree(np.copy, rows_of(outputs, i))

        acted = clock()
        for b in envs:
            self._step(b, env_actions[b], stored_actions[b], extras[b])
            if self.events is not None and (view := self._views[b]) is not None:
                self.events.step(view, b)
                if view.is_done:
                    self._views[b] = None
        if self.events is not None:
            # Values that callbacks log from now on belong to the next step of the metrics.
            self.events.metrics.end_step()
        self.act_time += acted - ready
        self.episodes.vector_steps += 1
        # Resets before acting and steps after it are both time in the environments.
        self.env_time += clock() - acted + ready - began
        return len(envs)

    def _report_begun(self, envs: Sequence[int]) -> None:
        """Notify the callbacks of the episodes that have begun in these environments."""
        if self.events is not None and self.events.needs_episodes:
            for b in envs:
                whole_episode = self.adapters[b].whole_episode
                # An episode without a step is new. A running one without a view began before these callbacks were set,
                # and they do not get it.
                if self._views[b] is None and whole_episode is not None and whole_episode.env_t == 0:
                    view = self._views[b] = MultiAgentEpisodeView(whole_episode)
                    self.events.start(view, b)
            self.events.metrics.end_step()

    def _begin(self, b: int) -> None:
        """Reset environment `b` and begin an episode."""
        # The mapping may have been replaced in the run. It takes effect with the next episode, so that an agent keeps
        # its module within an episode.
        self.adapters[b].mapping_fn = self.policy.policy_mapping_fn
        env_number = self.rows.start + b
        episode_number = int(self.begun[b])
        seed = self.streams.seed(f"episode/{env_number}/{episode_number}")
        if self._connectors:
            self._connectors[b].forget()
        try:
            self.adapters[b].begin(seed=seed, id_=str(episode_number * self.num_envs_in_all + env_number))
        except RAISED as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=None, during="reset") from error
        self.begun[b] += 1
        self._is_running[b] = True
        self._states[b] = {}
        self._views[b] = None

    def _step(self, b: int, env_actions: ByAgent, stored_actions: ByAgent, extras: ByAgent) -> None:
        """Step environment `b`, and record its episode if it has ended."""
        try:
            rewards = self.adapters[b].step(env_actions, stored=stored_actions, extras=extras)
        except RAISED as error:
            raise step_error(error, backend=self.env.backend, env_index=b, action=env_actions, during="step") from error
        for agent, reward in rewards.items():
            self._agent_returns[b, self._agent_index[agent]] += float(reward)
        self.episodes.lengths[b] += 1
        self.episodes.steps_taken[b] += 1
        if self.adapters[b].episode.is_done:
            self._add_piece(b)
            self.episodes.returns[b] = self._agent_returns[b].sum()
            self._agent_returns_ended.append(tuple(self._agent_returns[b].tolist()))
            module_ids = self.adapters[b].episode.agent_module_ids
            self._agent_modules_ended.append(tuple(module_ids.get(agent, "") for agent in self.env.agents))
            self._agent_returns[b] = 0.0
            self._is_running[b] = False
            # The step of `end` is counted from `episodes.vector_steps`, which `_vector_step` raises after each vector
            # step. So the present one is always step 0.
            self.episodes.end(b, 0)

    def _act(self, module_id: str, rows: Rows, k: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return a module's actions for the environment, its actions as learned from, and extra model outputs.

        Args:
            module_id: The module.
            rows: Environments and agents that it acts for.
            k: Index of the vector step in this run.
        """
        part = self._part_of(module_id, rows[0][1])
        random = self.mode.random
        obs = stack_observations(part.stored_observation_space, [self.adapters[b].to_act[agent] for b, agent in rows])
        noise = None
        if self._noise:
            envs = [b for b, _ in rows]
            agents = [self._agent_index[agent] for _, agent in rows]
            noise = self._noise[module_id][k, envs, agents]

        outputs: dict[str, Any] = {}
        if part.is_stateful:
            # With random actions too: the recurrent state has to follow the observations.
            learned, outputs[Columns.STATE_IN] = self._act_with_state(part, obs, noise, rows)
        elif self.with_logp and not random:
            learned, outputs[Columns.ACTION_LOGP] = part.act_with_logp(obs, noise)
            outputs[Columns.WEIGHTS_SEQ_NO] = np.full(len(rows), self.policy.weights_seq_no)
        elif not random:
            learned = part.act(obs, noise)
        if random:
            learned = self._random_actions(module_id, part, obs, rows)
        return part.to_env(learned), learned, outputs

    def _random_actions(self, module_id: str, part: ActingPart, obs: Tree, rows: Rows) -> np.ndarray:
        """Return random actions, as learned from. Each pair of environment and module has its own random stream."""
        masks = masks_in(obs, part.stored_observation_space, part.random_space)
        actions = []
        for i, (b, _) in enumerate(rows):
            rng = self.streams.numpy(f"random_actions/{self.rows.start + b}/{module_id}")
            mask = None if masks is None else masks[i : i + 1]
            actions.append(random_actions(part.random_space, rng, 1, mask))
        return part.from_env(zip_trees(np.concatenate, actions, "actions"))

    def _act_with_state(
        self, part: ActingPart, obs: Any, noise: np.ndarray | None, rows: Rows
    ) -> tuple[np.ndarray, State]:
        """Return the actions of a recurrent module and the state before them; keep the state after them.

        An agent without a state, at the beginning of an episode, gets the initial one.
        """
        initial = _row(part.get_initial_state(1), 0)
        states = [self._states[b].get(agent, initial) for b, agent in rows]
        before = {name: np.stack([state[name] for state in states]) for name in initial}
        actions, after = part.act_with_state(obs, noise, before)
        for i, (b, agent) in enumerate(rows):
            self._states[b][agent] = _row(after, i)
        return actions, before

    def _add_piece(self, b: int) -> None:
        """Add the present piece of environment `b`'s episode to the pieces of this collect.

        Raises `MalformedBufferError` if it has values that are not finite.
        """
        piece = self.adapters[b].episode
        if self.buffer is None or len(piece) == 0:
            return
        if self.mode.raise_on_nan:
            self._check_finite(piece, b)
        self._pieces.append((piece, b))

    def _check_finite(self, piece: MultiAgentEpisode, b: int) -> None:
        """Raise `MalformedBufferError` for the first value that is not finite in a piece of environment `b`'s
        episode."""
        for agent, single in piece.agent_episodes.items():
            columns = list(named_leaves("obs", single.get_observations()))
            if len(single):
                columns += [("rewards", single.get_rewards()), ("actions", single.get_actions())]
            values = not_finite(columns)
            if values:
                first = min(values, key=attrgetter("origin"))
                raise MalformedBufferError(
                    f"environment {b} gave agent {agent!r} a value that is not finite in column {first.name!r} at "
                    f"its step {single.t_started + first.position[0]}; fix the environment, or pass "
                    "raise_on_nan_in_buffer=False"
                )

    # -- state ---

    def reseed(self, streams: RandomStreams) -> None:
        super().reseed(streams)
        # The seeds of episodes depend on these numbers, which start again with the new streams.
        self.begun[:] = 0

    def get_state(self) -> dict[str, Any]:
        adapters = [
            adapter.get_state() if is_running else {} for adapter, is_running in zip(self.adapters, self._is_running)
        ]
        connectors = [connector.get_state() for connector in self._connectors]
        state = {
            **self.episodes.get_state(),
            "begun": self.begun.copy(),
            "env": None if None in adapters else adapters,
        }
        if connectors:
            state["remembered"] = connectors
        state["agent_returns"] = self._agent_returns.copy()
        # Pairs instead of dicts, because an agent's id need not be a string.
        state["states"] = [_as_pairs(states) for states in self._states]
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.begun[:] = state["begun"]
        self._forget()

        # Without the environments' state all running episodes are lost.
        adapters = state["env"]
        self.episodes_cut = int(np.count_nonzero(state["lengths"])) if adapters is None else 0
        if adapters is None:
            self._writer.cut()
            return

        for b, saved in enumerate(adapters):
            if not saved:
                continue
            if not self.adapters[b].can_continue(saved):
                self.episodes_cut += 1
                self._writer.cut([b])
                state["returns"][b] = 0.0
                state["lengths"][b] = 0
                state["agent_returns"][b] = 0.0
                continue
            self.adapters[b].mapping_fn = self.policy.policy_mapping_fn
            self.adapters[b].set_state(saved)
            if self._connectors:
                self._connectors[b].set_state(state["remembered"][b])
            self._is_running[b] = True
            self._states[b] = dict(state["states"][b])
            whole_episode = self.adapters[b].whole_episode
            self._views[b] = None if whole_episode is None else MultiAgentEpisodeView(whole_episode)
        self.episodes.returns[:] = state["returns"]
        self.episodes.lengths[:] = state["lengths"]
        self._agent_returns[:] = state["agent_returns"]
        self.episodes.left_open = bool(state["left_open"])
        self._writer.continue_episodes(np.flatnonzero(self._is_running).tolist())


def agents_of_modules(
    policy: LearningPolicy, observation_space: Mapping[AgentID, Any], action_space: Mapping[AgentID, Any]
) -> dict[str, list[AgentID]]:
    """Return the agents that each module acts for, by module id.

    Args:
        policy: The policy, with the mapping functions of every stage of the run.
        observation_space: Observation spaces of the environments, by agent.
        action_space: Action spaces of the environments, by agent.

    Raises:
        KeyError: An agent is mapped to a module that does not exist.
        ValueError: The spaces of an agent differ from the spaces of its module.
    """
    agents: dict[str, list[AgentID]] = {}
    for mapping in policy.policy_mapping_fns:
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapping)
        for agent, space in observation_space.items():
            module_id = episode.module_for(agent)
            part_of(policy, module_id, agent).check_spaces(space, action_space[agent])
            module_agents = agents.setdefault(module_id, [])
            if agent not in module_agents:
                module_agents.append(agent)
    return agents


def part_of(policy: LearningPolicy, module_id: str, agent: AgentID) -> ActingPart:
    """Return the acting part of an agent's module. Raises `KeyError` for a module that does not exist."""
    if module_id not in policy.acting:
        raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(policy.acting)}")
    part: ActingPart = policy.acting[module_id]
    return part


def _as_pairs(states: Mapping[AgentID, State]) -> list[list[Any]]:
    """Return the recurrent states of one environment's agents as a list of `[agent, state]`."""
    return [[agent, state] for agent, state in states.items()]


def _row(state: Mapping[str, np.ndarray], row: int) -> State:
    """Return a copy of one row of a recurrent state."""
    return {name: leaf[row].copy() for name, leaf in state.items()}
