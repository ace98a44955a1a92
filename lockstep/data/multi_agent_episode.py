"""`MultiAgentEpisode`: a (piece of an) episode of several agents, who may act at once or in turns, come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from lockstep.data import multi_agent_episode_edit as edit
from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_episode_columns import MultiAgentColumns
from lockstep.data.multi_agent_episode_step import (
    ALL,
    COMMON,
    AgentID,
    AgentTrack,
    EnvStep,
    apply_step,
    as_agent_dict,
    check_agent,
    check_first_observation,
    check_step,
    problem,
)
from lockstep.data.sample_batch import MultiAgentBatch

Slice = slice  # the method of this name hides the type in the class
MappingFn = Callable[[AgentID, "MultiAgentEpisode"], str]


class MultiAgentEpisode(MultiAgentColumns):
    """T environment steps of several agents: one `SingleAgentEpisode` for each, and when its observations came.

    Time counts environment steps: the reset has time 0, and env step t leads from time t to t + 1. An agent's step
    begins with an observation, which it answers with an action, and is closed by its next observation; rewards in
    between are summed. Until then action and rewards wait (they "hang"). A step belongs to the piece of an episode
    in which it is closed. Rewards before an agent's first observation belong to no step and are kept apart.

    Args:
        id_: name of the episode, which all its pieces share; a new one by default.
        observations, infos: L + T + 1 dicts agent id -> value, the reset first; actions, rewards,
            extra_model_outputs: L + T dicts, those of each env step.
        observation_space, action_space: agent id -> space; then only these agents are allowed.
        terminateds, truncateds: flags at the end; an agent's own count from the last step in which it has data.
        env_t_started: time at which this piece begins, lookback not counted (default 0).
        agent_t_started: agent id -> the agent's own step at that time (default 0).
        len_lookback_buffer: number of the given steps that are lookback (`"auto"`: all).
        agent_episode_ids, agent_module_ids: agent id -> id of its episode, of its module.
        agent_to_module_mapping_fn: `f(agent_id, episode) -> module id`, asked once for each agent; by default
            all agents have `"default_policy"`.

    Raises `ValueError` where the lengths do not fit, `MultiAgentEnvError` (a `ValueError`) for data that cannot be.
    """

    __slots__ = (
        "_action_spaces",
        "_agent_episode_ids",
        "_agent_t_started",
        "_duration",
        "_last_time",
        "_modules",
        "_observation_spaces",
        "_start_time",
        "action_space",
        "agent_to_module_mapping_fn",
        "custom_data",
        "is_reset",
        "is_terminated",
        "is_truncated",
        "observation_space",
    )

    SKIP_ENV_TS_TAG = "S"

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Mapping[AgentID, Any]] | None = None,
        observation_space: Any = None,
        infos: Sequence[Mapping[AgentID, Any]] | None = None,
        actions: Sequence[Mapping[AgentID, Any]] | None = None,
        action_space: Any = None,
        rewards: Sequence[Mapping[AgentID, Any]] | None = None,
        terminateds: Mapping[AgentID, bool] | bool = False,
        truncateds: Mapping[AgentID, bool] | bool = False,
        extra_model_outputs: Sequence[Mapping[AgentID, Any]] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = 0,
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: MappingFn | None = None,
    ) -> None:
        self.id_ = uuid4().hex if id_ is None else id_
        self.observation_space, self.action_space = observation_space, action_space
        self._observation_spaces = edit.spaces_by_agent(observation_space, "observation_space")
        self._action_spaces = edit.spaces_by_agent(action_space, "action_space")
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._modules: dict[AgentID, str] = dict(agent_module_ids or {})
        self._agent_episode_ids = dict(agent_episode_ids or {})
        self._agent_t_started = dict(agent_t_started or {})
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        self._tracks: dict[AgentID, AgentTrack] = {}
        self.custom_data: dict[str, Any] = {}
        self.is_reset = self.is_terminated = self.is_truncated = False
        self._duration, self._start_time, self._last_time = 0.0, 0.0, 0.0
        self.env_t = self.env_t_started = env_t_started or 0
        self._lookback = 0
        given = edit.Given(observations, infos, actions, rewards, extra_model_outputs, terminateds, truncateds)
        edit.replay(self, given, len_lookback_buffer)

    # ---- growing -----------------------------------------------------------------------------------------

    def add_env_reset(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> None:
        """The first observations; agents that are not there appear later. Once, before any step.

        `ValueError` a second time, `MultiAgentEnvError` for an unknown agent or an observation outside its space.
        """
        if self.is_reset:
            raise ValueError(f"episode {self.id_} has been reset already and is at t={self.env_t}")
        observations, infos = as_agent_dict(observations, "observations"), as_agent_dict(infos, "infos")
        for agent, observation in observations.items():
            check_agent(self, agent, "observations")
            if observation is None:
                raise problem(self, agent, "None in observations; leave the agent out of the dict instead")
            check_first_observation(self, agent, observation)
        for agent in infos:
            if agent not in observations and agent != COMMON:
                raise problem(self, agent, "an info came without an observation; infos belong to observations")
        for agent, observation in observations.items():
            self._tracks[agent] = AgentTrack(times=[self.env_t])
            self._new_agent(agent).add_env_reset(observation, infos.get(agent))
        self.is_reset = True
        self._start_time = self._last_time = time.perf_counter()

    def add_env_step(
        self,
        observations: Mapping[AgentID, Any],
        actions: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any] | None = None,
        *,
        terminateds: Mapping[AgentID, bool] | bool | None = None,
        truncateds: Mapping[AgentID, bool] | bool | None = None,
        extra_model_outputs: Mapping[AgentID, Mapping[str, Any]] | None = None,
    ) -> None:
        """One environment step: the agents in `actions` acted, and the rest came back.

        `__all__` in a flag's dict (or a plain bool) speaks for every agent that has no flag of its own. Where
        neither dict has `__all__`, the episode ends with its last agent: truncated if all that end in that step
        are, else terminated. An agent that terminates while its action waits repeats its last observation.

        Raises `MultiAgentEnvError` naming agent and step, and changes nothing, for: data for an agent that is done
        or unknown; an action of an agent that has observed nothing since its last one; a second observation without
        an action; an action and an observation without a reward; a truncation after an action without a last
        observation; infos without observation, model outputs without action; a step before the reset or after the
        end. `TypeError` for values that are no dicts, and rewards that are no numbers.
        """
        step = EnvStep(
            as_agent_dict(observations, "observations"),
            as_agent_dict(actions, "actions"),
            as_agent_dict(rewards, "rewards"),
            as_agent_dict(infos, "infos"),
            as_agent_dict(terminateds, "terminateds", flags=True),
            as_agent_dict(truncateds, "truncateds", flags=True),
            as_agent_dict(extra_model_outputs, "extra_model_outputs"),
        )
        if not self.is_reset or self.is_done:
            agents = [*dict.fromkeys([*step.actions, *step.observations])]
            state = f"ended at t={self.env_t}" if self.is_done else "has not been reset; call add_env_reset first"
            raise problem(self, agents[0] if len(agents) == 1 else agents, f"data came, but the episode {state}")
        check_step(self, step)
        apply_step(self, step)
        self._last_time = time.perf_counter()

    def _new_agent(self, agent: AgentID) -> SingleAgentEpisode:
        single = self.agent_episodes[agent] = SingleAgentEpisode(
            self._agent_episode_ids.get(agent),
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=(self._observation_spaces or {}).get(agent),
            action_space=(self._action_spaces or {}).get(agent),
            t_started=self._agent_t_started.get(agent, 0),
        )
        return single

    # ---- what it is --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    @property
    def len_lookback_buffer(self) -> int:
        """Number of env steps before the first that can be looked back at."""
        return self._lookback

    @property
    def is_done(self) -> bool:
        """Terminated or truncated for all."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' steps lie in arrays (reading packs them)."""
        return bool(self.agent_episodes) and all(single.is_numpy for single in self.agent_episodes.values())

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have an observation in this piece."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """Agent id -> id of its `SingleAgentEpisode`."""
        return {agent: single.id_ for agent, single in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Agent id -> the agent's own step at which this piece begins."""
        return {agent: single.t_started for agent, single in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, list[int | str]]:
        """Agent id -> for each time from the lookback on, the agent's own time of its observation, or `"S"`."""
        return edit.env_t_to_agent_t(self)

    def module_for(self, agent_id: AgentID) -> str:
        """The module of an agent, which the mapping function says the first time."""
        if agent_id not in self._modules:
            mapping = self.agent_to_module_mapping_fn
            module_id = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            if not isinstance(module_id, str):
                raise TypeError(f"agent {agent_id!r} was mapped to {module_id!r}; a module id is a str")
            self._modules[agent_id] = module_id
        return self._modules[agent_id]

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Agent id -> terminated, and `__all__`."""
        flags = {agent: single.is_terminated for agent, single in self.agent_episodes.items()}
        return {**flags, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Agent id -> truncated, and `__all__`."""
        flags = {agent: single.is_truncated for agent, single in self.agent_episodes.items()}
        return {**flags, ALL: self.is_truncated}

    def _able_to_act(self) -> list[AgentID]:
        tracks = self._tracks
        return [
            agent for agent in self.agent_episodes if tracks[agent].ended_at is None and tracks[agent].waiting is None
        ]

    def get_agents_to_act(self) -> set[AgentID]:
        """The agents that are not done and have not answered their last observation."""
        return set() if self.is_done else set(self._able_to_act())

    def get_agents_that_stepped(self) -> set[AgentID]:
        """The agents whose last observation came now, at time `env_t`, done or not."""
        return {agent for agent in self.agent_episodes if self._tracks[agent].times[-1] == self.env_t}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of the rewards of all agents' closed steps, without lookback.

        `include_hanging_rewards` adds those that wait: since an agent's last observation, and before its first.
        """
        total = sum(single.get_return() for single in self.agent_episodes.values())
        return total + (edit.hanging_rewards(self) if include_hanging_rewards else 0.0)

    def get_duration_s(self) -> float:
        """Seconds from the reset to the last added step; pieces joined together add up."""
        return self._duration + self._last_time - self._start_time

    def env_steps(self) -> int:
        """T."""
        return len(self)

    def agent_steps(self) -> int:
        """Closed steps of all agents together."""
        return sum(len(single) for single in self.agent_episodes.values())

    def validate(self) -> None:
        """Raises `ValueError`, with agent and values, where an invariant does not hold."""
        edit.validate(self)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        agents = {agent: len(single) for agent, single in self.agent_episodes.items()}
        return f"MultiAgentEpisode({self.id_!r}, t={self.env_t_started}..{self.env_t}, {end}, steps {agents})"

    def print(self) -> None:
        """Prints a time line: one row for each agent, one column for each time.

        `x` is an observation, `-` a time at which an action waits, `T` and `U` the end (terminated, truncated).
        """
        print(edit.time_line(self))

    # ---- pieces ------------------------------------------------------------------------------------------

    def cut(self, len_lookback_buffer: int = 0) -> MultiAgentEpisode:
        """The successor: same id, `env_t_started = env_t`, the last env steps as lookback.

        It holds each live agent's last observation, also where that is older than the lookback, with the action and
        the rewards that wait. `ValueError` where the episode is done or has not been reset.
        """
        if self.is_done:
            raise ValueError(f"episode {self.id_} ended at t={self.env_t}; it has no successor")
        if not self.is_reset:
            raise ValueError(f"episode {self.id_} has no observation yet; call add_env_reset first")
        return edit.piece(self, len(self), len(self), min(len_lookback_buffer, self._lookback + len(self)))

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Env steps `slice_` as a new episode of views: what the episode was after them, begun before them.

        Each agent's step lies in the slice in which it is closed. An action that waits at the end of the slice waits
        in it, with the rewards that had come by then. The slice is done only if it reaches the end of a done
        episode. Lookback as in `SingleAgentEpisode.slice`. `ValueError` for a step other than 1.
        """
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise ValueError(f"an episode is a run of steps; slice step {step} is not allowed")
        wanted = self._lookback if len_lookback_buffer is None else len_lookback_buffer
        return edit.piece(self, start, max(start, stop), min(wanted, self._lookback + start))

    def __getitem__(self, key: int | Slice) -> MultiAgentEpisode:
        if isinstance(key, slice):
            return self.slice(key)
        index = key + len(self) if key < 0 else key
        if not 0 <= index < len(self):
            raise IndexError(f"env step {key} is out of range of an episode of {len(self)} env steps")
        return self.slice(slice(index, index + 1))

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Appends `other` in place: same id, `env_t_started` equal to this `env_t`, agents that fit together.

        `ValueError`, changing nothing, where that is not so (naming agent and values) or where this one is done.
        """
        edit.concat(self, other)

    # ---- other forms -------------------------------------------------------------------------------------

    def to_numpy(self) -> MultiAgentEpisode:
        """Packs all agents' steps into arrays; returns self."""
        for single in self.agent_episodes.values():
            single.to_numpy()
        return self

    def get_sample_batch(self) -> MultiAgentBatch:
        """The agents' steps by module, one agent's rows after another's.

        Columns of `SingleAgentEpisode.get_data_dict`, with `eps_id` the id of this episode and `t` the env time of
        the observation (so that rows of one env step can be found over all modules), and `agent_id`, `module_id`.
        `env_steps()` is T. Agents without a closed step are left out.
        """
        return edit.sample_batch(self)

    def get_state(self) -> dict[str, Any]:
        """All of the episode but the mapping function, for `from_state`: plain values, arrays, and the infos."""
        return edit.get_state(self)

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], agent_to_module_mapping_fn: MappingFn | None = None
    ) -> MultiAgentEpisode:
        """The episode that `get_state` described. The function maps agents that appear later."""
        return edit.restore(cls, state, agent_to_module_mapping_fn)
