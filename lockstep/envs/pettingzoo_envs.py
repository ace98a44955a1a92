"""`PettingZooEnvs`: several PettingZoo environments of one kind, to be stepped side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.envs.pettingzoo_play import AgentID, play_of


class PettingZooEnvs:
    """`num_envs` environments with the same agents, a `ParallelEnv` or an `AECEnv` each.

    `env`: a function that makes one (called with `env_config`), or a finished one, which is the only one then. `agents`
    are its `possible_agents`; the spaces are dicts by agent.

    Raises `ValueError` for something else, and for environments that do not say which agents there may be.
    """

    backend = "pettingzoo"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env: Any, num_envs: int = 1, env_config: Mapping[str, Any] | None = None) -> None:
        if isinstance(env, str) or env is None:
            raise ValueError(
                f"env={env!r}: several agents need a PettingZoo environment; give a function that makes one"
            )
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs} is not allowed; it must be at least 1")
        made = callable(env)
        self.envs: list[Any] = [env(**(env_config or {})) for _ in range(num_envs)] if made else [env]
        self.num_envs, self._closed = len(self.envs), False
        for one in self.envs:
            play_of(one)
            if not getattr(one, "possible_agents", None):
                raise ValueError(f"{one!r} does not say which possible_agents there may be; name all of them")
        first = self.envs[0]
        self.agents: tuple[AgentID, ...] = tuple(first.possible_agents)
        self.observation_space = {agent: first.observation_space(agent) for agent in self.agents}
        self.action_space = {agent: first.action_space(agent) for agent in self.agents}

    def close(self) -> None:
        """Closes all of them; a second call does nothing."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                env.close()

    def check_open(self) -> None:
        """Raises `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")
